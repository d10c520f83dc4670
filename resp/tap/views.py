"""An exchange as one line, as a tree, and as a hex dump.

Tree and dump are made from the same nodes, so their offsets agree, and each covers every byte that
was kept once and in order. A row of the tree:

    1221    46      $40  "5f2c..."      digest = claim
    offset  size    type  value         what it is

indented by its depth. Strings of a peer are in quotes, statuses are not; a number, `null`, `true`
and `false` have none, and their type says which of the forms they had. In a dump each byte has its
kind in the last column, unless colours say it:

    .  framing   C  command   D  digest   S  script    K  key       A  argument   P  payload
    s  status    e  error     n  number   !  bytes that are no RESP, or of a token that is not whole

What is left out is told with its size, and so is what of a frame was not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ..decode import ErrorReply, Verbatim
from . import table
from .chunk import check_number
from .dialogue import Exchange, Frame, command_name
from .frames import AGGREGATES, Node, parse, spans
from .style import COLORS, ELLIPSIS, PLAIN, Style, escaped, padded, quoted, width

if TYPE_CHECKING:
    from .meaning import Scripts

# Lines

_KEY: Final = 48  # columns of a key, and of a value
# Texts that are remembered, the first ones that come: to make one again costs less than to keep
# the newest.
_MOST: Final = 4096
_SHORT: Final = 64  # bytes of a reply whose text is remembered

_names: dict[bytes, str] = {}  # of commands whose first argument is a key
_keys: dict[bytes, str] = {}
_replies: dict[bytes, str] = {}

_LINE: Final = "%12.6f  %-8s %7d B> <%7d B %10.3f ms  %s  -> %s"
_BARE: Final = re.compile(rb"[!#-\[\]-~]{1,48}")
_BULK: Final = re.compile(rb"\$[0-9]{1,2}\r\n([ !#-\[\]-~]{1,48})\r\n")
_SIMPLE_STATUS: Final = re.compile(rb"[A-Z][A-Z0-9_ ]{0,40}")
_SCRIPTS: Final = frozenset({b"EVALSHA", b"EVALSHA_RO", b"FCALL", b"FCALL_RO"})


def line(
    exchange: Exchange,
    *,
    scripts: Scripts | None = None,
    origin_ns: int = 0,
    style: Style = PLAIN,
) -> str:
    """Answer an exchange as one line: when, which, bytes each way, round trip, what, its answer.

    Args:
        exchange: An exchange.
        scripts: Knows names of scripts.
        origin_ns: The monotonic time that is shown as 0.
        style: Colours, or none.
    """
    connection, number, kind, request, replies, _, _ = exchange
    if kind == "reply" and request is not None and len(replies) == 1 and not style.colors:
        words = request[4]
        if words and len(words) > 1 and words[0] in _names:
            key, data = words[1], replies[0][3]
            at = request[1]
            return _LINE % (
                (at - origin_ns) / 1e9,
                f"{connection}#{number}",
                request[2],
                replies[0][2],
                (replies[0][1] - at) / 1e6,
                f"{_names[words[0]]} {_keys.get(key) or _key(key)}",
                _replies.get(data) or _reply(data),
            )
    return _line(exchange, scripts, origin_ns, style)


def _line(exchange: Exchange, scripts: Scripts | None, origin_ns: int, style: Style) -> str:
    paint = style.paint
    began = (exchange.time_ns - origin_ns) / 1e9
    up = f"{exchange.up} B>" if exchange.request is not None else ""
    down = f"<{exchange.down:7d} B" if exchange.replies else ""
    rtt = exchange.rtt_ns
    trip = f"{rtt / 1e6:10.3f} ms" if rtt is not None else ""
    faint = paint("faint", f"{began:12.6f}  {exchange.connection}#{exchange.number}".ljust(22))
    head = f"{faint} {up:>10} {down:>10} {trip:>13}  "
    said = _said(exchange.request, scripts, style)
    arrow = paint("faint", "->")
    kind = exchange.kind
    if exchange.request is None and kind != "malformed":
        name = "push" if kind == "push" else paint("error", "not asked for")
        return f"{head}{paint('command', '<-')} {name}  {_answers(exchange.replies, style)}"
    if kind == "reply":
        return f"{head}{said}  {arrow} {_answers(exchange.replies, style)}"
    if kind == "silent":
        return f"{head}{said}  {arrow} {paint('faint', 'no reply is owed')}"
    told = escaped(exchange.error.encode("utf-8", "surrogateescape"))
    said = f"{said}  {arrow} " if said else ""
    if kind == "lost":
        return f"{head}{said}{paint('error', f'lost: {told}' if told else 'lost')}"
    return f"{head}{said}{paint('malformed', f'malformed: {told}' if told else 'malformed')}"


def _said(request: Frame | None, scripts: Scripts | None, style: Style) -> str:
    """Answer a command's name, and what it is about: its script, its first key."""
    if request is None:
        return ""
    words = request.words
    if not words:
        return quoted(request.data, _KEY) if request.data.strip() else "nothing"
    first = words[0]
    name = _names.get(first)
    if name is None:
        name, simple = _named(words)
        if not simple:
            return _about(name, words, scripts, style)
        if len(_names) >= _MOST:
            _names.clear()
        _names[first] = name
    shown = style.paint("command", name)
    return f"{shown} {style.paint('key', _key(words[1]))}" if len(words) > 1 else shown


def _named(words: Sequence[bytes]) -> tuple[str, bool]:
    """Answer a command's name, and whether its first argument is a key."""
    known = table.find(words)
    name = command_name(tuple(words[:2]))
    if name == "?":
        return quoted(words[0], _KEY), False
    if known is None or known.words != 1 or not known.arguments:
        return name, False
    place = known.arguments[0]
    return name, isinstance(place, table.Place) and place.role == "key"


def _about(name: str, words: Sequence[bytes], scripts: Scripts | None, style: Style) -> str:
    shown = style.paint("command", name)
    upper = words[0].upper()
    if upper in _SCRIPTS and len(words) > 2:
        known = scripts.get(words[1]) if scripts is not None and upper[:1] == b"E" else None
        if known is not None:
            script = known.name
        elif upper[:1] == b"E" and len(words[1]) == 40:
            script = escaped(words[1][:8]) + ELLIPSIS
        else:
            script = _key(words[1])
        parts = [shown, style.paint("digest", script)]
        keys = int(words[2]) if words[2].isdigit() and len(words[2]) < 9 else 0
        parts += [style.paint("key", _key(word)) for word in words[3 : 3 + min(keys, 1)]]
        parts += [_key(word) for word in words[3 + keys : 4 + keys]]
        return " ".join(parts)
    few = words[:16]
    places = table.arguments(few, len(words))
    found = [(word, place) for word, place in zip(few, places, strict=True) if place.role == "key"]
    if not found:
        found = [
            (word, place)
            for word, place in zip(few, places, strict=True)
            if place.role not in ("command", "script")
        ]
    for word, place in found[:1]:
        return f"{shown} {style.paint(place.role, _key(word))}"
    return shown


def _key(key: bytes) -> str:
    """Answer a key as it is if it has no blanks or escapes, else in quotes."""
    found = key.decode("ascii") if _BARE.fullmatch(key) else quoted(key, _KEY)
    if len(_keys) < _MOST and len(key) <= _SHORT:
        _keys[key] = found
    return found


def _answers(replies: Sequence[Frame], style: Style) -> str:
    shown = []
    for reply in replies[:2]:
        text = _replies.get(reply.data) or _reply(reply.data)
        shown.append(style.paint("error", text) if text[:1] in "-!" else text)
    if len(replies) > 2:
        shown.append(f"{ELLIPSIS} {len(replies)} replies")
    return "  ".join(shown)


def _reply(data: bytes) -> str:
    """Answer a reply in short."""
    bulk = _BULK.fullmatch(data)
    text = f'"{bulk[1].decode("ascii")}"' if bulk else _short(data, 0)[0]
    if len(_replies) < _MOST and len(data) <= _SHORT:
        _replies[data] = text
    return text


def _short(data: bytes, at: int, deep: bool = False) -> tuple[str, int]:
    """Answer a reply in short, and where it ends; 0 if that was not looked for."""
    mark = data[at : at + 1]
    eol = data.find(b"\r\n", at + 1, at + 65_540)
    if eol < 0:
        return quoted(data[at:], _KEY), 0
    text = data[at + 1 : eol]
    after = eol + 2
    if mark in b"$=!" and text.isdigit():
        size = int(text[:20])
        start = after + 4 if mark == b"=" else after
        stop = after + size
        if mark == b"!":
            return "-" + escaped(data[after : min(stop, after + _KEY)]), stop + 2
        if stop - start > 4 * _KEY:
            shown = quoted(data[start : start + 4 * _KEY + 4], _KEY)
            return f"{shown[: shown.rindex(' ', 0, -2)]} {stop - start:,} B", stop + 2
        return quoted(data[start:stop], _KEY), stop + 2
    if text == b"-1" or mark == b"_":
        return "null", after
    if mark in b":(,":
        return escaped(text[:_KEY]) + (ELLIPSIS if len(text) > _KEY else ""), after
    if mark == b"+":
        return (
            escaped(text) if _SIMPLE_STATUS.fullmatch(text) else "+" + quoted(text, _KEY)
        ), after
    if mark == b"-":
        return "-" + escaped(text[: 4 * _KEY]), after
    if mark == b"#":
        return {b"t": "true", b"f": "false"}.get(text, quoted(data[at:eol], _KEY)), after
    if mark in b"*~%>" and mark:
        opener, closer = ("{", "}") if mark == b"%" else ("[", "]")
        count = int(text[:20]) if text.isdigit() else -1
        if not count:
            return opener + closer, after
        told = f"{count:,}" if count > 0 else "?"
        if deep:
            return f"{opener}{told}{closer}", 0
        items, stop = _few(data, after, 2 * count if mark == b"%" else count)
        return f"{opener}{told}{closer} {' '.join(items)}", stop
    if mark == b"|":
        root = parse(data[at : at + 4096])[-1]
        if root.mark not in "|?":
            return _short(data, root.at + at, deep)
    return quoted(data[at:], _KEY), 0


def _few(data: bytes, at: int, count: int) -> tuple[list[str], int]:
    shown: list[str] = []
    while at < len(data) and len(shown) < 3 and len(shown) != count:
        text, at = _short(data, at, True)
        shown.append(text)
        if not at:
            break
    if len(shown) != count:
        shown.append(ELLIPSIS)
    return shown, 0


# Trees


class _Row(NamedTuple):
    """A row of a tree: a token or, without a node, what is left out."""

    depth: int
    start: int
    end: int
    node: Node | None
    items: int = 0


def tree(
    exchange: Exchange,
    *,
    scripts: Scripts | None = None,
    width: int = 100,
    limit: int | None = 80,
    style: Style = PLAIN,
    origin_ns: int = 0,
) -> list[str]:
    """Answer an exchange as lines, a token each.

    Args:
        exchange: An exchange.
        scripts: Knows names of scripts, of their keys and of their arguments.
        width: Columns of a line, as far as values can be cut.
        limit: Columns of a value, and rows of a command or reply; None: all of them.
        style: Colours, or none.
        origin_ns: The monotonic time that is shown as 0.
    """
    if limit is not None:
        check_number("limit", limit)
    lines = [_title(exchange, scripts, origin_ns, style)]
    for frame, nodes, sent in _annotated(exchange, scripts):
        lines.append(_direction(exchange, frame, sent, style))
        lines += _tree(nodes, frame.data, frame.at, width, limit, style, frame.size)
        lines += _not_kept(frame, style)
    return lines


def tree_of(
    nodes: Iterable[Node],
    data: bytes = b"",
    at: int = 0,
    *,
    width: int = 100,
    limit: int | None = 80,
    style: Style = PLAIN,
) -> list[str]:
    """Answer tokens as lines, one each.

    Args:
        nodes: What `frames.parse` answers.
        data, at: What it was given: without them, bytes that are no RESP are told by their size.
        width, limit, style: As for `tree`.
    """
    return _tree(list(nodes), data, at, width, limit, style, None)


def _annotated(
    exchange: Exchange, scripts: Scripts | None
) -> Iterator[tuple[Frame, list[Node], bool]]:
    from .meaning import annotate

    request, replies = annotate(exchange, scripts)
    if exchange.request is not None:
        yield exchange.request, request, True
    for frame, nodes in zip(exchange.replies, replies, strict=True):
        yield frame, nodes, False


def _title(exchange: Exchange, scripts: Scripts | None, origin_ns: int, style: Style) -> str:
    paint = style.paint
    if exchange.request is not None:
        said = _said(exchange.request, scripts, style)
    else:
        said = "push" if exchange.kind == "push" else "not asked for"
    parts = [
        f"{paint('title', f'{exchange.connection}#{exchange.number}')}  {said}",
        f"{(exchange.time_ns - origin_ns) / 1e9:.6f} s",
    ]
    if exchange.request is not None:
        parts.append(f"sent {exchange.up:,} B")
    if exchange.replies:
        parts.append(f"received {exchange.down:,} B")
    if exchange.rtt_ns is not None:
        parts.append(f"{exchange.rtt_ns / 1e6:.3f} ms")
    if exchange.kind == "silent":
        parts.append("no reply is owed")
    elif exchange.kind in ("lost", "malformed"):
        told = escaped(exchange.error.encode("utf-8", "surrogateescape"))
        parts.append(paint("error", f"{exchange.kind}: {told}" if told else exchange.kind))
    return "   ".join(parts)


def _direction(exchange: Exchange, frame: Frame, sent: bool, style: Style) -> str:
    text = f"{'->' if sent else '<-'} @{frame.at}  {frame.size:,} B"
    if not sent and exchange.request is not None:
        text += f"  after {(frame.time_ns - exchange.request.time_ns) / 1e6:.3f} ms"
    return style.paint("title", text)


def _not_kept(frame: Frame, style: Style) -> list[str]:
    if frame.size <= len(frame.data):
        return []
    return [style.paint("faint", f"  {ELLIPSIS} {frame.size - len(frame.data):,} B were not kept")]


def _tree(
    nodes: list[Node],
    data: bytes,
    at: int,
    columns: int,
    limit: int | None,
    style: Style,
    size: int | None,
) -> list[str]:
    if not nodes:
        return []
    rows = list(_rows(nodes, limit))
    kept = size is None or size <= len(data)
    places = max(4, len(str(nodes[-1].end)))
    sizes = max(3, max(len(str(row.end - row.start)) for row in rows))
    tokens = [_indent(row.depth) + (_token(row.node) if row.node else ELLIPSIS) for row in rows]
    token = max(map(len, tokens))
    labels = [_label(row.node, kept) if row.node is not None else "" for row in rows]
    fixed = 2 + places + 2 + sizes + 2 + token + 2
    room: int | None = None
    if limit is not None:
        room = max(16, min(limit, columns - fixed - max(map(len, labels)) - 4 - len('"" ')))
    values = [_value(row, data, at, room) for row in rows]
    # A few long values do not push what they are out of sight.
    column = max(
        (width(value) for value, label in zip(values, labels, strict=True) if label), default=0
    )
    if limit is not None:
        column = min(column, max(16, columns - fixed - max(map(len, labels)) - 2))
    else:
        column = min(column, 60)
    lines = []
    for row, mark, value, label in zip(rows, tokens, values, labels, strict=True):
        role = _role(row.node) if row.node is not None else "faint"
        error = row.node is not None and row.node.error and kept
        spoken = style.paint("error" if error else role, padded(value, column) if label else value)
        lines.append(
            f"  {style.paint('faint', f'{row.start:>{places}}  {row.end - row.start:>{sizes}}')}"
            f"  {style.paint('framing', mark.ljust(token))}  {spoken}"
            f"{'  ' if label else ''}{style.paint('error' if error else role, label)}".rstrip()
        )
    return lines


_INDENTS: Final = 16  # levels that are indented


def _indent(depth: int) -> str:
    return "  " * depth if depth <= _INDENTS else "  " * _INDENTS + f"({depth}) "


def _rows(nodes: list[Node], limit: int | None) -> Iterator[_Row]:
    """Answer a tree's rows, about `limit` of them; what is wrong at its end is among them."""
    budget = limit if limit is not None else 1 << 62
    end = nodes[-1].end
    stack: list[tuple[list[Node], int, int]] = [(nodes, 0, end)]
    while stack:
        items, place, end = stack.pop()
        if place == len(items):
            continue
        depth = len(stack)
        if budget <= 0:
            stop = len(items) - (1 if items[-1].error else 0)
            if place < stop:
                until = items[stop].at if stop < len(items) else end
                yield _Row(depth, items[place].at, until, None, stop - place)
                stack.append((items, stop, end))
                continue
        node = items[place]
        budget -= 1
        # Blanks between the words of a line belong to the word before them.
        after = items[place + 1].at if place + 1 < len(items) else end
        head = node.items[0].at if node.items else after
        yield _Row(depth, node.at, head, node)
        stack.append((items, place + 1, end))
        if node.items:
            stack.append((node.items, 0, after))


_LENGTHS: Final = frozenset("$!=;")
_NULL_HEADER: Final = len("*-1\r\n")


def _token(node: Node) -> str:
    """Answer a token's header: `$5`, `*-1`, `:`."""
    mark = node.mark
    if mark in AGGREGATES and node.value is not None:
        return f"{mark}{node.value}"
    if mark in AGGREGATES or (mark == "$" and (node.items or node.value is None)):
        return f"{mark}-1" if node.body - node.at == _NULL_HEADER else f"{mark}?"
    if mark in _LENGTHS:
        return f"{mark}{node.due - node.body}"
    return mark


def _is_null(node: Node) -> bool:
    if node.mark == "_":
        return True
    return node.mark in "$*" and node.value is None and node.body - node.at == _NULL_HEADER


def _value(row: _Row, data: bytes, at: int, room: int | None) -> str:
    node = row.node
    if node is None:
        told = f"{row.items:,} item{'s' if row.items > 1 else ''} more"
        return f"{told}, {row.end - row.start:,} B"
    if node.mark == "?":
        return _malformed(node, data, at, room)
    if node.mark in AGGREGATES or node.mark in ("inline", "."):
        return "null" if _is_null(node) else ""
    value = node.value
    if value is None:
        return "null" if _is_null(node) else ""
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return _digits(value, room)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Verbatim):
        return f"{escaped(value.format.encode('utf-8', 'surrogateescape'))}:{quoted(value, room)}"
    if isinstance(value, bytes):
        if node.due > node.stop and room is not None:
            return f"{quoted(value, room)} of {node.due - node.body:,} B"
        return quoted(value, room)
    text = value.message if isinstance(value, ErrorReply) else value
    raw = text.encode("utf-8", "surrogateescape")
    if _SIMPLE_STATUS.fullmatch(raw):
        return escaped(raw)
    return quoted(raw, room)


def _digits(number: int, room: int | None) -> str:
    """Write a number of any size, which str() may refuse to."""
    if -(10**600) < number < 10**600:
        text = str(number)
    else:
        parts = []
        rest = abs(number)
        while rest:
            rest, part = divmod(rest, 10**600)
            parts.append(f"{part:0600d}")
        text = "-" * (number < 0) + "".join(reversed(parts)).lstrip("0")
    if room is None or len(text) <= room:
        return text
    return f"{text[:room]}{ELLIPSIS} {len(text):,} digits"


_AT: Final = re.compile(r" at offset ([0-9]+)\Z")


def _malformed(node: Node, data: bytes, at: int, room: int | None) -> str:
    """Answer bytes that are no RESP up to the one that is none, that one, and how many follow."""
    text = data[node.at - at : node.end - at]
    if not text:
        return f"{node.end - node.at:,} B"
    found = _AT.search(node.error)
    if found is None:
        return quoted(text, room)
    fault = int(found[1]) - node.at
    before, one, rest = text[:fault], text[fault : fault + 1], text[fault + 1 :]
    parts = [quoted(before, room)] if before else []
    if one:
        parts.append(f">{quoted(one)}<")
    if rest:
        parts.append(quoted(rest) if room is None else f"{len(rest):,} B more")
    return " ".join(parts)


def _label(node: Node, kept: bool) -> str:
    """Answer what a token is, and what is wrong with it."""
    label = node.label or ("" if node.role in ("framing", "") else node.role)
    if node.mark == "?" or (_is_null(node) and label == "null"):
        label = ""
    if node.error and kept:  # else it is missing as it was not kept, which is told at the end
        label = f"{label}, {node.error}" if label else node.error
    return label


_MARK_ROLES: Final = {
    "+": "status", "-": "error", "!": "error", ":": "number", ",": "number", "(": "number",
    "#": "number", "_": "null", "$": "payload", "=": "payload", ";": "payload", "word": "argument",
    "?": "malformed",
}  # fmt: skip


def _role(node: Node) -> str:
    if node.mark == "?":
        return "malformed"
    return node.role or _MARK_ROLES.get(node.mark, "framing")


# Hex dumps

_LETTERS: Final = {
    "framing": ".", "command": "C", "digest": "D", "script": "S", "key": "K", "argument": "A",
    "payload": "P", "status": "s", "error": "e", "number": "n", "malformed": "!",
}  # fmt: skip
_PRINTABLE: Final = bytes(byte if 0x20 <= byte < 0x7F else 0x2E for byte in range(256))
_ROW: Final = 16


class _Part(NamedTuple):
    """Bytes of a dump that are one thing."""

    start: int
    end: int
    role: str
    note: str


def hexdump(
    exchange: Exchange,
    *,
    scripts: Scripts | None = None,
    limit: int | None = 256,
    style: Style = PLAIN,
    origin_ns: int = 0,
) -> list[str]:
    """Answer an exchange as a hex dump: offset, 16 bytes, their characters, what they are.

    Args:
        exchange: An exchange.
        scripts: Knows names of scripts, of their keys and of their arguments.
        limit: Bytes of one token, and rows of a command or reply; None: all of them.
        style: Colours, or none.
        origin_ns: The monotonic time that is shown as 0.
    """
    if limit is not None:
        check_number("limit", limit)
    lines = [_title(exchange, scripts, origin_ns, style)]
    for frame, nodes, sent in _annotated(exchange, scripts):
        lines.append(_direction(exchange, frame, sent, style))
        kept = frame.size <= len(frame.data)
        lines += _dump(list(_parts(nodes, kept)), frame.data, frame.at, limit, style)
        lines += _not_kept(frame, style)
    return lines


def hexdump_of(
    nodes: Iterable[Node],
    data: bytes,
    at: int = 0,
    *,
    limit: int | None = 256,
    style: Style = PLAIN,
) -> list[str]:
    """Answer tokens as a hex dump.

    Args:
        nodes: What `frames.parse` answers.
        data, at: What it was given.
        limit, style: As for `hexdump`.
    """
    return _dump(list(_parts(nodes, True)), data, at, limit, style)


def _parts(nodes: Iterable[Node], kept: bool) -> Iterator[_Part]:
    for root in nodes:
        for start, end, kind, node in spans(root):
            if kind == "framing":
                note = ""
                if start == node.at:
                    note = _token(node)
                    label = _label(node, kept)
                    if node.body == node.stop and not node.items:
                        label = "null" if _is_null(node) else label
                    if label and (node.items or node.body == node.stop or node.error):
                        note = f"{note} {label}"
                yield _Part(start, end, "framing", note)
            elif kind == "malformed":
                yield _Part(start, end, "malformed", _label(node, True))
            else:
                role = _role(node)
                yield _Part(start, end, role, node.label or role)


def _dump(parts: list[_Part], data: bytes, at: int, limit: int | None, style: Style) -> list[str]:
    lines: list[str] = []
    end = at + len(data)
    places = max(4, len(str(end)))
    position = at
    place = shown = 0
    budget = limit if limit is not None else 1 << 62
    while position < end:
        while parts[place].end <= position:
            place += 1
            shown = 0
        part = parts[place]
        left_out = 0
        if limit is not None:
            if len(lines) >= budget:
                left_out = (end - position - 1) // _ROW - 3
                budget += 8
            elif shown >= limit and part.start < position:
                left_out = (part.end - position) // _ROW
            if left_out > 2:
                left_out *= _ROW
                text = f"  {position:>{places}}  {ELLIPSIS} {left_out:,} bytes more"
                lines.append(style.paint("faint", text))
                position += left_out
                continue
        row: list[_Part] = []
        stop = min(position + _ROW, end)
        at_part = place
        while at_part < len(parts) and parts[at_part].start < stop:
            row.append(parts[at_part])
            at_part += 1
        lines.append(_dump_row(row, data, at, position, stop, places, style))
        shown += stop - position if part.start <= position else 0
        position = stop
    return lines


def _dump_row(
    row: list[_Part], data: bytes, at: int, start: int, stop: int, places: int, style: Style
) -> str:
    hexes: list[str] = []
    texts: list[str] = []
    letters: list[str] = []
    notes: list[str] = []
    for part in row:
        first, last = max(part.start, start), min(part.end, stop)
        piece = data[first - at : last - at]
        # A blank after each byte, and one more in the middle of the row.
        codes = "".join(
            f"{byte:02x}{'  ' if index == 7 else ' '}"
            for index, byte in enumerate(piece, first - start)
        )
        hexes.append(style.paint(part.role, codes))
        texts.append(style.paint(part.role, piece.translate(_PRINTABLE).decode("ascii")))
        letters.append(_LETTERS.get(part.role, "A") * len(piece))
        if part.note and part.start >= start:
            notes.append(style.paint(part.role, part.note))
    missing = _ROW - (stop - start)
    blanks = " " * (3 * missing + (1 if stop - start < 8 else 0))
    kinds = "" if style.colors else f"  {''.join(letters)}{' ' * missing}"
    return (
        f"  {style.paint('faint', f'{start:>{places}}')}  {''.join(hexes)}{blanks} "
        f"{''.join(texts)}{' ' * missing}{kinds}  {'  '.join(notes)}"
    ).rstrip()


__all__ = [
    "COLORS", "PLAIN", "Style", "hexdump", "hexdump_of", "line", "tree", "tree_of",
]  # fmt: skip

"""Where every byte of RESP stands: a stream's tokens as trees, with exact offsets.

A decoder answers what bytes mean and forgets where they were; a view needs both. `parse` answers a
`Node` a token, each with four offsets:

    $5\\r\\n        hello         \\r\\n
    ^ at    ^ body      ^ stop      ^ end

[at, body) and [stop, end) are framing, [body, stop) is content; of an aggregate the content is its
items, which lie side by side. So the leaves of a tree cover every byte once and in order, also
where bytes are missing or are no RESP: those are a node of mark `?`, whose `error` says where they
stop making sense.

Values and complaints are the decoder's own, by its tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from ..decode import BLOBS, LINES, STRAY, STRAY_TOLD, Malformed, length_of

MAX_DEPTH: Final = 128  # aggregates inside each other, as for the decoder
MAX_LINE: Final = 64 * 1024  # bytes of a line, as for the decoder

AGGREGATES: Final = {"*": 1, "%": 2, "~": 1, ">": 1, "|": 2}
"""Marks of what holds items, and items for one of what its header counts."""

_STREAM: Final = -1
_NULL: Final = -2
_DIGITS: Final = 20

# A word of a command that is no RESP, as servers split a line: up to a blank that is in no quotes,
# which may begin within the word. Quotes that are not closed go to the end.
_QUOTED: Final = rb"\"((?:\\.|[^\"\\])*)[\"\\]?|'((?:\\'|[^'\\]|\\(?!'))*)'?"
WORD: Final = re.compile(rb"(?:[^\s\"']+|%b)+" % _QUOTED, re.DOTALL)
_PART: Final = re.compile(rb"([^\"']+)|%b" % _QUOTED, re.DOTALL)
_SOUND: Final = re.compile(
    rb"[^\s\"'\0]*(?:\"(?:\\.|[^\"\\\0])*\"|'(?:\\'|[^'\\\0]|\\(?!'))*')?", re.DOTALL
)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


class Node:
    """A token, with its place.

    Attributes:
        mark: Its type: the first byte of RESP's, `inline` for a command that is a line of words,
            `word` for one of those, `?` for bytes that are no RESP or that are not whole.
        at, body, stop, end: Offsets in the stream: of its first byte, of its content, of what is
            behind its content, and of what is behind it all.
        value: Of a scalar what the decoder answers; of an aggregate the number its header
            announces; of a `?` its bytes; None for a null and for what is streamed.
        items: What is inside of it.
        error: What is wrong with it, or `""`.
        due: Offset where its content ends by its header, for a blob of which bytes are missing;
            else the same as `stop`.
        role, label: What it is in its exchange, in one word and in words; `""` until it is known.
    """

    __slots__ = (
        "at", "body", "due", "end", "error", "items", "label", "mark", "role", "stop", "value",
    )  # fmt: skip

    def __init__(self, mark: str, at: int, body: int, stop: int, end: int, value: Any) -> None:
        self.mark = mark
        self.at = at
        self.body = body
        self.stop = self.due = stop
        self.end = end
        self.value = value
        self.items: list[Node] = []
        self.error = ""
        self.role = ""
        self.label = ""

    def __repr__(self) -> str:
        return f"Node({self.mark!r}, at={self.at}, end={self.end}, value={self.value!r:.60})"


class Span(NamedTuple):
    """Bytes that are one thing.

    Attributes:
        start, end: Offsets in the stream.
        kind: `framing`, `content` or `malformed`.
        node: Whose bytes they are.
    """

    start: int
    end: int
    kind: Literal["framing", "content", "malformed"]
    node: Node


def spans(node: Node) -> Iterator[Span]:
    """Answer the leaves of a tree in order: every byte from `at` to `end` is in one of them."""
    work: list[Node | Span] = [node]
    while work:
        node_or_span = work.pop()
        if isinstance(node_or_span, Span):
            if node_or_span.start < node_or_span.end:
                yield node_or_span
            continue
        found = node_or_span
        if found.mark == "?":
            yield Span(found.at, found.end, "malformed", found)
            continue
        if found.at < found.body:
            yield Span(found.at, found.body, "framing", found)
        work.append(Span(found.stop, found.end, "framing", found))
        if not found.items:
            work.append(Span(found.body, found.stop, "content", found))
            continue
        before = found.stop
        for item in reversed(found.items):
            work.append(Span(item.end, before, "framing", found))  # between words
            work.append(item)
            before = item.at
        work.append(Span(found.body, before, "framing", found))


def parse(data: bytes, at: int = 0, *, inline: bool = False) -> list[Node]:
    """Answer every token of `data` as trees; bytes that are no RESP, or not whole, as a `?`.

    Args:
        data: Bytes of one direction of a connection, from the start of a token.
        at: Offset of the first of them.
        inline: They are a client's: a line that does not start with `*` is a command.
    """
    return _Parser(data, at, inline).roots


def is_sound(word: bytes) -> bool:
    """Say whether a word of a line is one for a server: its quotes are closed, and end it."""
    return _SOUND.fullmatch(word) is not None


def unquoted(word: bytes) -> bytes:
    """Answer what a word of a line stands for: without its quotes, escapes resolved."""
    if b'"' not in word and b"'" not in word:
        return word
    parts = []
    for plain, double, single in _PART.findall(word):
        parts += [plain, _ESCAPE.sub(_escaped, double), single.replace(b"\\'", b"'")]
    return b"".join(parts)


def _escaped(found: re.Match[bytes]) -> bytes:
    if found[1]:
        return bytes.fromhex(found[1].decode())
    return _ESCAPES.get(found[2], found[2])


class _Parser:
    def __init__(self, data: bytes, at: int, inline: bool) -> None:
        self.roots: list[Node] = []
        self._data = data
        self._base = at
        self._items = self.roots
        self._stack: list[tuple[Node, int]] = []  # open aggregates, and the items they miss
        self._text: Node | None = None  # the streamed string that is open
        position, size = 0, len(data)
        try:
            while position < size:
                if inline and not self._stack and data[position] != 0x2A:
                    after = self._inline(position)
                else:
                    after = self._token(position)
                if not after:
                    break
                position = after
        except Malformed as malformed:
            fault = position if malformed.at is None else malformed.at
            self._rest(position, f"{malformed.message} at offset {at + fault}")
            return
        if position < size:
            self._rest(position, "not whole")
        self._give_up()

    def _node(self, mark: str, at: int, body: int, stop: int, end: int, value: Any) -> Node:
        base = self._base
        node = Node(mark, base + at, base + body, base + stop, base + end, value)
        self._items.append(node)
        return node

    def _rest(self, position: int, error: str) -> None:
        """Make the bytes from a token's start on one node, and close what is open."""
        if position < len(self._data):
            end = len(self._data)
            self._node("?", position, position, end, end, self._data[position:]).error = error
        self._give_up()

    def _give_up(self) -> None:
        end = self._base + len(self._data)
        if self._text is not None:
            self._text.stop = self._text.due = self._text.end = end
            self._text.error = "not whole"
        while self._stack:
            node, left = self._stack.pop()
            node.stop = node.due = node.end = end
            if not node.error:
                node.error = "no end" if left < 0 else f"{left} items are missing"

    def _inline(self, position: int) -> int:
        data = self._data
        lf = data.find(b"\n", position, position + MAX_LINE + 2)
        if lf < 0:
            if len(data) - position > MAX_LINE:
                raise Malformed("a line of more than 64 KiB", position + MAX_LINE)
            return 0
        stop = lf - 1 if data[lf - 1] == 0x0D and lf > position else lf
        node = self._node("inline", position, position, stop, lf + 1, None)
        for word in WORD.finditer(data, position, stop):
            start, end = word.span()
            base = self._base
            node.items.append(
                Node("word", base + start, base + start, base + end, base + end, word[0])
            )
        node.value = len(node.items)
        return lf + 1

    def _token(self, position: int) -> int:
        """Take one token. Answer where the next one starts, or 0 if this one is not whole."""
        data = self._data
        mark = chr(data[position])
        chunk = mark == ";"
        if mark not in "+-:,#(_$!=*%~>|;.":
            raise Malformed("an unknown type")
        if chunk is not (self._text is not None):
            raise Malformed("a chunk outside a streamed string, or something else inside one")
        eol = data.find(b"\r\n", position + 1, position + MAX_LINE + 3)
        if eol < 0:
            stray = STRAY.search(data, position + 1, position + MAX_LINE + 3)
            if stray:
                raise Malformed(STRAY_TOLD, stray.start())
            if len(data) - position - 1 > MAX_LINE:
                raise Malformed("a line of more than 64 KiB", position + 1 + MAX_LINE)
            return 0
        line = data[position + 1 : eol]
        try:
            convert = LINES.get(data[position])
            if convert is not None:
                self._node(mark, position, position + 1, eol, eol + 2, convert(line))
                self._taken()
                return eol + 2
            if mark == ".":
                return self._streamed_end(position, eol, line)
            length = length_of(line, data[position])
        except Malformed:
            stray = STRAY.search(data, position + 1, eol + 1)
            if stray:
                raise Malformed(STRAY_TOLD, stray.start()) from None
            raise
        if mark in AGGREGATES:
            return self._open(mark, position, eol + 2, length)
        return self._blob(mark, position, eol + 2, length)

    def _open(self, mark: str, position: int, body: int, length: int) -> int:
        if length == _NULL:
            self._node(mark, position, body, body, body, None)
            self._taken()
            return body
        wrong = ""
        if mark == ">":
            if self._stack:
                wrong = "a push inside another reply"
            elif not length:
                raise Malformed("a push without a kind")
        if len(self._stack) >= MAX_DEPTH:
            raise Malformed(f"more than {MAX_DEPTH} aggregates inside each other")
        value = None if length == _STREAM else length
        node = self._node(mark, position, body, body, body, value)
        node.error = wrong
        left = length if length == _STREAM else length * AGGREGATES[mark]
        self._stack.append((node, left))
        self._items = node.items
        if not left:
            self._close()
        return body

    def _close(self) -> None:
        """The innermost aggregate has all its items; it is an item itself, but for attributes."""
        node, _ = self._stack.pop()
        if node.items:
            node.stop = node.due = node.end = node.items[-1].end
        if node.mark == ">" and not node.error:
            kind = next(item for item in node.items if item.mark != "|")
            if not isinstance(kind.value, str | bytes):
                node.error = "a push whose kind is no string"
        self._items = self._stack[-1][0].items if self._stack else self.roots
        if node.mark != "|":
            self._taken()

    def _taken(self) -> None:
        if not self._stack:
            return
        node, left = self._stack[-1]
        if left < 0:
            return
        self._stack[-1] = node, left - 1
        if left == 1:
            self._close()

    def _streamed_end(self, position: int, eol: int, line: bytes) -> int:
        if line:
            raise Malformed("an end with something in it")
        if not self._stack or self._stack[-1][1] >= 0:
            raise Malformed("an end without a streamed aggregate")
        node, _ = self._stack[-1]
        if node.items and node.items[-1].mark == "|":
            raise Malformed("an attribute without its value")
        if node.mark == "%" and sum(item.mark != "|" for item in node.items) % 2:
            raise Malformed("a key without its value")
        self._node(".", position, eol + 2, eol + 2, eol + 2, None)
        self._close()
        return eol + 2

    def _blob(self, mark: str, position: int, body: int, length: int) -> int:
        data = self._data
        if length == _NULL:
            self._node(mark, position, body, body, body, None)
            self._taken()
            return body
        if length == _STREAM:
            self._text = self._node(mark, position, body, body, body, None)
            self._items = self._text.items
            return body
        if mark == ";" and not length:  # the last one has no CRLF of its own
            return self._last_chunk(position, body)
        if mark == "=" and length < 4:
            raise Malformed("a verbatim string without a format")
        stop = body + length
        for place, byte in ((stop, 0x0D), (stop + 1, 0x0A)):
            if len(data) > place and data[place] != byte:
                raise Malformed("a blob that does not end with CRLF", place)
        blob = data[body:stop]
        if len(data) < stop + 2:
            stop, end = min(stop, len(data)), len(data)
            node = self._node(mark, position, body, stop, end, blob)
            node.due = self._base + body + length
            node.error = f"{body + length + 2 - len(data)} bytes are missing"
            return end
        if mark == ";":
            self._node(";", position, body, stop, stop + 2, blob)
            return stop + 2
        self._node(mark, position, body, stop, stop + 2, BLOBS[data[position]](blob))
        self._taken()
        return stop + 2

    def _last_chunk(self, position: int, body: int) -> int:
        text = self._text
        assert text is not None
        self._node(";", position, body, body, body, b"")
        text.value = b"".join(chunk.value for chunk in text.items)
        text.stop = text.due = text.end = self._base + body
        self._text = None
        self._items = self._stack[-1][0].items if self._stack else self.roots
        self._taken()
        return body


__all__ = ["AGGREGATES", "WORD", "Node", "Span", "is_sound", "parse", "spans", "unquoted"]

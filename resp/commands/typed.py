"""Replies as text: for a person, for a pipe, and for a program.

`formatted` is what redis-cli shows on a terminal, with a mark for each type that RESP3 tells apart:

    (integer) 1    (double) 1.5    (true)    (nil)    "bytes"    status    (error) ERR no
    1) array       1~ set          1# key => value    1> push

`raw` is the bytes alone, and `as_json` one line of JSON in ASCII. What JSON has no form for is an
object of one name that begins with `$`:

    {"$base64": "/w=="}      bytes that are no UTF-8
    {"$error": "ERR no"}     an error reply
    {"$double": "nan"}       nan, inf, -inf
    {"$pairs": [[k, v]]}     a map whose keys are not all different texts
    {"$push": ["kind", ...]}

Python keeps no order in a set, so its members are shown sorted.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final

from ..decode import ErrorReply, Pairs, Push, Reply, Verbatim
from .words import quoted

# On a terminal these would move the cursor, or reorder what is read: all controls but newline and
# tab, and the marks of direction.
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """Answer a peer's text for a terminal: what is not printable escaped, newlines too."""
    return shown(text.replace("\n", "\\n").replace("\t", "\\t"))


def shown(text: str) -> str:
    """Answer a peer's text for a terminal; newlines and tabs stay."""
    return _CONTROLS.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8
        code -= 0xDC00
    if code == 0x0D:
        return "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def formatted(reply: Reply) -> str:
    """Answer `reply` as redis-cli shows it on a terminal, without the last newline."""
    lines: list[str] = []
    _add(lines, reply, "", "")
    return "\n".join(lines)


def _add(lines: list[str], reply: Reply, head: str, indent: str) -> None:
    """Add `reply` behind `head`, which is what stands before it on its first line.

    Args:
        lines: Gets them.
        reply: A reply, nested at most as deep as the decoder allows.
        head: Of the first line.
        indent: Of the lines below, in blanks.
    """
    mark, items = _items(reply)
    if items is None:
        lines.append(head + _scalar(reply))
        return
    if not items:
        lines.append(f"{head}(empty {_EMPTY[mark]})")
        return
    width = len(str(len(items)))
    inner = indent + " " * (width + 2)
    for at, item in enumerate(items):
        number = f"{head if not at else indent}{at + 1:>{width}}{mark} "
        if mark == "#":
            key, value = item
            _add(lines, key, number, inner)
            line = lines.pop() + " => "
            if _size(value) > 1:
                lines.append(line.rstrip())
                line = inner
            _add(lines, value, line, inner)
        else:
            _add(lines, item, number, inner)


_EMPTY: Final = {")": "array", "#": "hash", "~": "set", ">": "push"}


def _items(reply: Reply) -> tuple[str, list[Any] | None]:
    """Answer the mark of an aggregate's items, and these; of a map, its pairs."""
    if isinstance(reply, Pairs):
        return "#", list(reply)
    if isinstance(reply, dict):
        return "#", list(reply.items())
    if isinstance(reply, (set, frozenset)):
        return "~", members(reply)
    if isinstance(reply, Push):
        return ">", [reply.kind.encode("utf-8", "surrogateescape"), *reply.items]
    if isinstance(reply, (list, tuple)):
        return ")", list(reply)
    return "", None


def _size(reply: Reply) -> int:
    return len(reply) if isinstance(reply, (Pairs, dict, set, frozenset, list, tuple)) else 0


def members(group: Iterable[Any]) -> list[Any]:
    """Answer a set's members in an order of their own: by type, then by value."""
    return sorted(group, key=_rank)


def _rank(member: Any) -> tuple[str, Any]:
    if isinstance(member, (bytes, str)):
        return type(member).__name__, member
    if isinstance(member, (int, float)) and not (isinstance(member, float) and math.isnan(member)):
        return "", member
    return "~", repr(member)


def _scalar(reply: Reply) -> str:
    if isinstance(reply, Verbatim):
        return shown(_text(bytes(reply)))
    if isinstance(reply, bytes):
        return quoted(reply)
    if isinstance(reply, str):
        return plain(reply)
    if isinstance(reply, ErrorReply):
        return f"(error) {plain(reply.message)}"
    if reply is None:
        return "(nil)"
    if isinstance(reply, bool):
        return "(true)" if reply else "(false)"
    if isinstance(reply, int):
        return f"(integer) {integer(reply)}"
    if isinstance(reply, float):
        return f"(double) {double(reply)}"
    return ascii(reply)  # what no decoder answers


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def integer(value: int) -> str:
    """Answer its digits; of one so large that printing takes long, by their number."""
    try:
        return str(value)
    except ValueError:  # thousands of digits, which the interpreter refuses to make
        return f"0x{value:x}" if value >= 0 else f"-0x{-value:x}"


def double(value: float) -> str:
    """Answer a double as a server writes it: `3`, `1.5`, `inf`, `nan`."""
    return repr(value).removesuffix(".0")


def raw(reply: Reply) -> bytes:
    """Answer the bytes of `reply` alone: an item a line, a map's key and value with a blank."""
    if isinstance(reply, bytes):
        return bytes(reply)
    if isinstance(reply, str):
        return reply.encode("utf-8", "surrogateescape")
    if isinstance(reply, ErrorReply):
        return reply.message.encode("utf-8", "surrogateescape")
    if reply is None:
        return b""
    mark, items = _items(reply)
    if items is None:
        if isinstance(reply, bool):
            return b"(true)" if reply else b"(false)"
        return (double(reply) if isinstance(reply, float) else integer(reply)).encode()
    if mark == "#":
        return b"\n".join(b"%b %b" % (raw(key), raw(value)) for key, value in items)
    return b"\n".join(map(raw, items))


def as_json(reply: Reply) -> str:
    """Answer `reply` as a line of JSON, in ASCII."""
    return json.dumps(_jsonable(reply), allow_nan=False)


def _jsonable(reply: Reply) -> Any:
    if isinstance(reply, (bytes, str)):
        data = reply if isinstance(reply, bytes) else reply.encode("utf-8", "surrogateescape")
        try:
            return data.decode()
        except UnicodeDecodeError:
            return {"$base64": base64.b64encode(data).decode()}
    if isinstance(reply, ErrorReply):
        return {"$error": plain(reply.message)}
    if isinstance(reply, float):
        return reply if math.isfinite(reply) else {"$double": double(reply)}
    if isinstance(reply, int) and not isinstance(reply, bool):
        try:
            str(reply)
        except ValueError:  # too many digits for the interpreter
            return {"$integer": integer(reply)}
        return reply
    mark, items = _items(reply)
    if items is None:
        return reply
    if mark == ">":
        return {"$push": [_jsonable(item) for item in items]}
    if mark != "#":
        return [_jsonable(item) for item in items]
    pairs = [(_jsonable(key), _jsonable(value)) for key, value in items]
    keys = {key for key, _ in pairs if isinstance(key, str)}
    if len(keys) == len(pairs):
        return dict(pairs)
    return {"$pairs": [list(pair) for pair in pairs]}


__all__ = ["as_json", "double", "formatted", "integer", "members", "plain", "raw", "shown"]

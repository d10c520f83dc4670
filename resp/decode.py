"""Bytes from a server into replies, however the bytes were cut.

    wire                 Python
    +                    str (UTF-8, surrogateescape)
    $                    bytes
    - !                  ErrorReply, a value: whoever asked decides whether to raise
    : (                  int, of any size
    ,                    float
    #                    bool
    _ $-1 *-1            None
    *                    list
    %                    dict; Pairs where a key repeats or cannot be hashed
    ~                    set; list where a member repeats or cannot be hashed
    >                    Push
    =                    Verbatim
    |                    Decoder.attributes of the reply that follows, never a reply
    $? *? %? ~?          the streamed forms, as the whole value

The rules:

- Between calls the decoder holds the bytes of the token that is not complete, and a stack of open
  aggregates. A line, or a blob with its length, is taken whole or not at all, so no cut matters and
  nothing recurses. How many bytes the token needs is known before they are joined, so the work is
  proportional to the bytes however small the pieces are.
- Memory follows the bytes received. A length that was announced allocates nothing.
- Numbers are what the protocol's grammar says: no spaces, underscores, plus signs or leading
  zeros. A line holds no CR or LF of its own.
- Python has `True == 1 == 1.0`. A map or set that would lose one of them becomes Pairs or a list.
  Every nan is the same object, so that two of them repeat.
- A push inside another reply is an error: MULTI, SUBSCRIBE, EXEC makes a server send one, and the
  array around it then has the wrong length.
- The first malformed byte ends the stream. It is raised when every reply before it has been taken,
  and again for ever after. Which error, and where, does not depend on the cuts: a CR or LF out of
  place and a missing CRLF are reported at the byte itself, anything else where its token starts.
"""

from __future__ import annotations

import enum
import math
import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

from .errors import ProtocolError

Reply: TypeAlias = Any
"""A value of the right-hand column of the table above; a list's or map's items are replies too."""


class _NeedData(enum.Enum):
    NEED_DATA = enum.auto()

    def __repr__(self) -> str:
        return self.name


NEED_DATA: Final = _NeedData.NEED_DATA
"""No reply is complete. Never equal to a reply, as None and False are replies."""


class ErrorReply:
    """An error that the server answered, as a value.

    Attributes:
        code: The first word where it is an error code (`WRONGTYPE`), else `""`.
        message: The whole text, code included.
    """

    __slots__ = ("code", "message")
    __match_args__ = ("code", "message")

    code: str
    message: str

    def __init__(self, code: str, message: str) -> None:
        object.__setattr__(self, "code", code)
        object.__setattr__(self, "message", message)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"an ErrorReply does not change; {name!r} was not set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"an ErrorReply does not change; {name!r} was not deleted")

    def __reduce__(self) -> tuple[type[ErrorReply], tuple[str, str]]:
        return ErrorReply, (self.code, self.message)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ErrorReply):
            return NotImplemented
        return self.message == other.message and self.code == other.code

    def __hash__(self) -> int:
        return hash((ErrorReply, self.message))

    def __repr__(self) -> str:
        return f"ErrorReply(code={self.code!r}, message={self.message!r})"


class Push:
    """A message that answers no command: pub/sub, invalidation, monitoring.

    Attributes:
        kind: What it is: `message`, `subscribe`, `invalidate`.
        items: What came after the kind.
    """

    __slots__ = ("items", "kind")
    __match_args__ = ("kind", "items")
    __hash__ = None  # type: ignore[assignment]  # its items are a list

    def __init__(self, kind: str, items: list[Reply]) -> None:
        self.kind = kind
        self.items = items

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Push):
            return NotImplemented
        return self.kind == other.kind and self.items == other.items

    def __repr__(self) -> str:
        return f"Push(kind={self.kind!r}, items={self.items!r})"


class Verbatim(bytes):
    """A text with a format, such as `txt` or `mkd`. It equals the bytes of the text.

    Attributes:
        format: Three characters that say how to show the text.
    """

    format: str

    def __new__(cls, text: bytes, format: str = "txt") -> Verbatim:
        self = super().__new__(cls, text)
        self.format = format
        return self

    def __reduce__(self) -> tuple[type[Verbatim], tuple[bytes, str]]:
        return Verbatim, (bytes(self), self.format)

    def __repr__(self) -> str:
        return f"Verbatim({bytes(self)!r}, format={self.format!r})"


class Pairs(list[tuple[Reply, Reply]]):
    """A map that no dict can hold, as a key repeats or cannot be hashed; in the wire's order."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Pairs({super().__repr__()})"


class _Malformed(Exception):
    """What is wrong with a token, and where in the buffer if that is not the token's start."""

    def __init__(self, message: str, at: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


# Lines: from what stands between the type and CRLF to a reply.

_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]*(?!\S)")
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]*")
_DOUBLE: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# Servers before 7.2 print what their C library prints: a sign, capitals, a payload.
_NAN: Final = re.compile(rb"-?(?:nan|NAN)(?:\([0-9A-Za-z_]*\))?")
_INFINITIES: Final = {b"inf": math.inf, b"-inf": -math.inf}
_BOOLS: Final = {b"t": True, b"f": False}
_ESCAPE: Final = "surrogateescape"

# sys.set_int_max_str_digits() goes down to 640 digits; below that, int() of digits cannot fail.
_SAFE_DIGITS: Final = 600


def _simple(line: bytes) -> str:
    if b"\r" in line or b"\n" in line:
        raise _Malformed("a CR or LF inside a line")
    return line.decode("utf-8", _ESCAPE)


def _error(line: bytes) -> ErrorReply:
    return _error_text(_simple(line))


def _error_text(message: str) -> ErrorReply:
    code = _CODE.match(message)
    return ErrorReply(code[0] if code else "", message)


def _integer(line: bytes) -> int:
    # int() alone takes " 5", "1_000" and, from a str, Arabic digits.
    if not _INTEGER.fullmatch(line):
        raise _Malformed("not an integer")
    return int(line) if len(line) <= _SAFE_DIGITS else _long_integer(line)


def _long_integer(line: bytes) -> int:
    """Convert digits by joining neighbours, pair by pair, where int() would refuse so many."""
    digits = line.removeprefix(b"-")
    digits = digits.zfill(-(-len(digits) // _SAFE_DIGITS) * _SAFE_DIGITS)
    parts = [
        int(digits[start : start + _SAFE_DIGITS]) for start in range(0, len(digits), _SAFE_DIGITS)
    ]
    base = 10**_SAFE_DIGITS
    while len(parts) > 1:
        if len(parts) % 2:
            parts.insert(0, 0)
        parts = [high * base + low for high, low in zip(parts[::2], parts[1::2], strict=True)]
        base *= base
    return -parts[0] if line[0] == _MINUS else parts[0]


def _double(line: bytes) -> float:
    if _DOUBLE.fullmatch(line):
        number = float(line)
        if math.isfinite(number):
            return number
    elif line in _INFINITIES:
        return _INFINITIES[line]
    elif _NAN.fullmatch(line):
        return math.nan
    raise _Malformed("not a double")


def _bool(line: bytes) -> bool:
    if line not in _BOOLS:
        raise _Malformed("not a boolean")
    return _BOOLS[line]


def _null(line: bytes) -> None:
    if line:
        raise _Malformed("a null with something in it")


# Blobs: from the bytes that a length announced to a reply.


def _blob_error(blob: bytes) -> ErrorReply:
    return _error_text(blob.decode("utf-8", _ESCAPE))


def _verbatim(blob: bytes) -> Verbatim:
    if blob[3:4] != b":":
        raise _Malformed("a verbatim string without a format")
    return Verbatim(blob[4:], blob[:3].decode("utf-8", _ESCAPE))


# Aggregates: from their items, in the order of the wire, to a reply.


def _itself(items: list[Reply]) -> list[Reply]:
    return items


def _pairs(items: list[Reply]) -> dict[Reply, Reply] | Pairs:
    keys, values = items[::2], items[1::2]
    try:
        found = dict(zip(keys, values, strict=True))
    except TypeError:
        found = {}
    return found if len(found) == len(keys) else Pairs(zip(keys, values, strict=True))


def _members(items: list[Reply]) -> set[Reply] | list[Reply]:
    try:
        found = set(items)
    except TypeError:
        return items
    return found if len(found) == len(items) else items


def _push(items: list[Reply]) -> Push:
    kind: str | bytes = items.pop(0)
    return Push(kind if isinstance(kind, str) else kind.decode("utf-8", _ESCAPE), items)


_MINUS: Final = ord("-")
_CR: Final = ord("\r")
_LF: Final = ord("\n")
_BULK: Final = ord("$")
_VERBATIM: Final = ord("=")
_ARRAY: Final = ord("*")
_MAP: Final = ord("%")
_SET: Final = ord("~")
_PUSH: Final = ord(">")
_ATTRIBUTE: Final = ord("|")
_CHUNK: Final = ord(";")
_END: Final = ord(".")

_LINES: Final[dict[int, Callable[[bytes], Reply]]] = {
    ord("+"): _simple,
    ord("-"): _error,
    ord(":"): _integer,
    ord("("): _integer,
    ord(","): _double,
    ord("#"): _bool,
    ord("_"): _null,
}
_BLOBS: Final[dict[int, Callable[[bytes], Reply]]] = {
    _BULK: bytes,
    ord("!"): _blob_error,
    _VERBATIM: _verbatim,
}
_AGGREGATES: Final[dict[int, Callable[[list[Reply]], Reply]]] = {
    _ARRAY: _itself,
    _MAP: _pairs,
    _SET: _members,
    _PUSH: _push,
    _ATTRIBUTE: _itself,
}
_NULLABLE: Final = frozenset({_BULK, _ARRAY})
_STREAMED: Final = frozenset({_BULK, _ARRAY, _MAP, _SET})
_MARKS: Final = frozenset({*_LINES, *_BLOBS, *_AGGREGATES, _CHUNK, _END})
_NO_ITEM: Final = frozenset({_ATTRIBUTE, _CHUNK, _END})
_WIDTH: Final = {_ARRAY: 1, _MAP: 2, _SET: 1, _PUSH: 1, _ATTRIBUTE: 2}
"""Items for one of what an aggregate's header counts."""

_LENGTH: Final = re.compile(rb"0|[1-9][0-9]*")
_LENGTH_DIGITS: Final = 20  # more than any limit has, and few enough for int() to be quick
_STRAY: Final = re.compile(rb"\r(?!\n|\Z)|(?<!\r)\n")
_STRAY_TOLD: Final = "a CR or LF inside a line"

_STREAM: Final = -1  # the length `?`; and items left of an aggregate that has no length
_NULL: Final = -2  # the length -1
_TOP: Final = 0  # the kind of what no aggregate is around
_LARGE_BLOB: Final = 16 * 1024
_SMALL_PART: Final = 1024
_JOINED_PART: Final = 64 * 1024

_Frame: TypeAlias = tuple[list[Reply], int, int]
"""An open aggregate: its items, how many are missing, its type. The outermost is the replies."""


class Decoder:
    """Turns the bytes of one connection into replies.

        decoder.feed(chunk)
        for reply in decoder.replies(): ...

    Args:
        max_bulk: Bytes in one blob, streamed or not; the server's own limit is the default.
        max_line: Bytes in a line, without its type and CRLF. Servers keep to far fewer.
        max_elements: Items in one aggregate. Keys and values count, and streamed items.
        max_depth: Aggregates open inside each other, attributes too.
    """

    __slots__ = (
        "_base",
        "_blob",
        "_dangling",
        "_fault",
        "_have",
        "_in_line",
        "_items",
        "_kind",
        "_left",
        "_need",
        "_notes",
        "_out",
        "_parts",
        "_push_at",
        "_queue",
        "_returned",
        "_stack",
        "_text",
        "attributes",
        "max_bulk",
        "max_depth",
        "max_elements",
        "max_line",
    )

    attributes: dict[Reply, Reply] | Pairs | None
    """What came with the reply just returned (with the last one of `replies`), or None."""

    def __init__(
        self,
        *,
        max_bulk: int = 512 * 1024 * 1024,
        max_line: int = 64 * 1024,
        max_elements: int = 2**24,
        max_depth: int = 128,
    ) -> None:
        self.max_bulk = max_bulk
        self.max_line = max_line
        self.max_elements = max_elements
        self.max_depth = max_depth
        self.attributes = None

        self._parts: list[bytes | bytearray] = []  # unread bytes, from the start of a token
        self._have = 0  # bytes in _parts
        self._need = 1  # bytes in _parts that make another look worth while
        self._in_line = False  # whether a CR or LF makes it worth while too
        self._blob: tuple[int, int] | None = None  # header and length, if _parts is a large blob
        self._base = 0  # bytes of the stream before _parts

        self._out: list[Reply] = []  # complete replies that nobody took yet
        self._queue: deque[Reply] = deque()  # what next() took and did not return yet
        self._returned = 0
        self._items = self._out  # of the innermost open aggregate
        self._left = _STREAM  # items that it misses
        self._kind = _TOP
        self._stack: list[_Frame] = []  # what is around it
        self._text: bytearray | None = None  # the streamed string that is open
        self._push_at = 0  # offset of the push that is open
        self._notes: dict[int, list[Reply]] = {}  # attributes, by number of the reply they precede
        self._dangling: tuple[list[Reply], int] | None = None  # the place after an inner attribute
        self._fault: tuple[str, int] | None = None

    @property
    def offset(self) -> int:
        """Bytes of the stream before the first one that is waiting for more to be of use."""
        return self._fault[1] if self._fault else self._base

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take what was received. A bytearray or memoryview is copied and may be used again."""
        if self._fault is not None:
            return
        if type(data) is not bytes:
            data = bytes(data)
        parts = self._parts
        self._have += len(data)
        if self._in_line and (b"\n" in data or b"\r" in data):
            self._need = 0
        if parts and len(data) < _SMALL_PART:
            # An object for every few bytes would take many times the memory of the bytes.
            last = parts[-1]
            if type(last) is bytearray and len(last) < _JOINED_PART:
                last += data
            else:
                parts.append(bytearray(data))
        else:
            parts.append(data)

    def next(self) -> Reply:
        """Answer the next reply, or `NEED_DATA` if it is not complete.

        Raises:
            ProtocolError: What follows the replies returned so far is not RESP.
        """
        queue = self._queue
        if not queue:
            if self._have >= self._need:
                self._run()
            queue.extend(self._out)
            self._out.clear()
        self.attributes = None
        if queue:
            self._returned += 1
            if self._notes:
                self._note()
            return queue.popleft()
        if self._fault is not None:
            raise ProtocolError(*self._fault)
        return NEED_DATA

    def replies(self) -> list[Reply]:
        """Answer every reply that is complete, in order; an empty list if none is.

        Raises:
            ProtocolError: None is, and what follows is not RESP.
        """
        if self._have >= self._need:
            self._run()
        replies = [*self._queue, *self._out]
        self._queue.clear()
        self._out.clear()
        self.attributes = None
        if replies:
            self._returned += len(replies)
            if self._notes:
                self._note()
        elif self._fault is not None:
            raise ProtocolError(*self._fault)
        return replies

    def _note(self) -> None:
        """Show the attributes of the reply that is returned, and forget those before it."""
        for number in [number for number in self._notes if number <= self._returned]:
            items = self._notes.pop(number)
            if number == self._returned:
                self.attributes = _pairs(items)

    def _run(self) -> None:
        """Take every token that is complete."""
        position = 0
        try:
            buffer = self._join()
            end = len(buffer)
            self._need = 1
            self._in_line = False
            self._blob = None
            while position < end:
                after = self._take(buffer, position)
                if not after:
                    self._parts.append(buffer[position:])
                    break
                position = after
        except _Malformed as malformed:
            at = position if malformed.at is None else malformed.at
            self._fail(malformed.message, self._base + at)
            return
        self._base += position
        self._have = end - position

    def _join(self) -> bytes:
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            return bytes(parts[0])
        if self._blob is not None:
            # A large blob is joined without its header and CRLF, which saves cutting it out.
            header, length = self._blob
            last = memoryview(parts[-1])
            cut = len(last) - (self._have - header - length)
            if cut >= 0 and bytes(last[cut : cut + 2]) == b"\r\n":
                first = memoryview(parts[0])[header:]
                blob = b"".join((first, *parts[1:-1], last[:cut]))
                self._base += header + length + 2
                self._add(blob)
                return bytes(last[cut + 2 :])
        return b"".join(parts)

    def _fail(self, message: str, offset: int) -> None:
        """End the stream, and let go of everything but the replies before the fault."""
        self._fault = message, offset
        self._have = 0
        self._need = 1
        self._in_line = False
        self._stack.clear()
        self._items = []
        self._text = None

    def _take(self, buffer: bytes, position: int) -> int:
        """Take one token. Answer where the next one starts, or 0 if this one is not complete."""
        mark = buffer[position]
        if mark not in _MARKS:
            raise _Malformed("an unknown type")
        if (mark == _CHUNK) is not (self._text is not None):
            raise _Malformed("a chunk outside a streamed string, or something else inside one")
        if (
            self._left < 0
            and self._kind != _TOP
            and len(self._items) >= self.max_elements
            and mark not in _NO_ITEM
        ):
            raise _Malformed("more items than max_elements")
        eol = buffer.find(b"\r\n", position + 1, position + self.max_line + 3)
        if eol < 0:
            self._wait_for_line(buffer, position)
            return 0
        line = buffer[position + 1 : eol]
        try:
            convert = _LINES.get(mark)
            if convert is not None:
                self._add(convert(line))
                return eol + 2
            if mark == _END:
                self._end(line)
                return eol + 2
            length = _length(line, mark)
        except _Malformed:
            stray = _STRAY.search(buffer, position + 1, eol + 1)
            if stray:
                raise _Malformed(_STRAY_TOLD, stray.start()) from None
            raise
        if mark in _AGGREGATES:
            self._open(mark, length, position)
            return eol + 2
        return self._take_blob(buffer, position, eol + 2, mark, length)

    def _wait_for_line(self, buffer: bytes, position: int) -> None:
        """Look at a line that has no end yet, and say what would make another look worth while."""
        start = position + 1
        stray = _STRAY.search(buffer, start, start + self.max_line + 2)
        if stray and stray.start() <= start + self.max_line:
            raise _Malformed(_STRAY_TOLD, stray.start())
        ends_in_cr = len(buffer) > start and buffer[-1] == _CR
        if len(buffer) - start - ends_in_cr > self.max_line:
            raise _Malformed("a line of more than max_line bytes", start + self.max_line)
        self._in_line = not ends_in_cr
        self._need = len(buffer) - position + 1 if ends_in_cr else self.max_line + 2

    def _take_blob(self, buffer: bytes, position: int, start: int, mark: int, length: int) -> int:
        if length == _NULL:
            self._add(None)
            return start
        if length == _STREAM:
            self._text = bytearray()
            return start
        if mark == _CHUNK and not length:
            text, self._text = self._text, None
            self._add(bytes(text or b""))
            return start
        if length + len(self._text or b"") > self.max_bulk:
            raise _Malformed("a blob of more than max_bulk bytes")
        if mark == _VERBATIM and length < 4:
            raise _Malformed("a verbatim string without a format")
        stop = start + length
        if len(buffer) > stop and buffer[stop] != _CR:
            raise _Malformed("a blob that does not end with CRLF", stop)
        if len(buffer) < stop + 2:
            # The CR is looked at as soon as it is there; a length that is wrong shows in it.
            self._need = stop + (1 if len(buffer) <= stop else 2) - position
            if mark == _BULK and length >= _LARGE_BLOB:
                self._blob = start - position, length
            return 0
        if buffer[stop + 1] != _LF:
            raise _Malformed("a blob that does not end with CRLF", stop + 1)
        blob = buffer[start:stop]
        if self._text is not None:
            self._text += blob
        else:
            self._add(_BLOBS[mark](blob))
        return stop + 2

    def _open(self, mark: int, length: int, position: int) -> None:
        if length == _NULL:
            self._add(None)
            return
        if mark == _PUSH:
            if self._stack:
                raise _Malformed("a push inside another reply")
            if not length:
                raise _Malformed("a push without a kind")
            self._push_at = self._base + position
        left = length if length == _STREAM else length * _WIDTH[mark]
        if left > self.max_elements:
            raise _Malformed("more items than max_elements")
        if len(self._stack) >= self.max_depth:
            raise _Malformed("more aggregates inside each other than max_depth")
        self._stack.append((self._items, self._left, self._kind))
        self._items, self._left, self._kind = [], left, mark
        if not left:
            self._close()

    def _end(self, line: bytes) -> None:
        if line:
            raise _Malformed("an end with something in it")
        if self._kind == _TOP or self._left >= 0:
            raise _Malformed("an end without a streamed aggregate")
        items = self._items
        if self._dangling is not None:
            where, count = self._dangling
            if where is items and count == len(items):
                raise _Malformed("an attribute without its value")
        if self._kind == _MAP and len(items) % 2:
            raise _Malformed("a key without its value")
        self._close()

    def _add(self, value: Reply) -> None:
        self._items.append(value)
        self._left -= 1
        if not self._left:
            self._close()

    def _close(self) -> None:
        """Close the innermost aggregate, and every one around it that this completes."""
        while True:
            items, kind = self._items, self._kind
            self._items, self._left, self._kind = self._stack.pop()
            if kind == _ATTRIBUTE:
                self._attribute(items)
                return
            if kind == _PUSH and not isinstance(items[0], str | bytes):
                raise _Malformed("a push whose kind is no string", self._push_at - self._base)
            self._items.append(_AGGREGATES[kind](items))
            self._left -= 1
            if self._left:
                return

    def _attribute(self, items: list[Reply]) -> None:
        if self._stack:
            self._dangling = self._items, len(self._items)
        else:
            number = self._returned + len(self._queue) + len(self._out) + 1
            self._notes.setdefault(number, []).extend(items)


def _length(line: bytes, mark: int) -> int:
    """Read the length in a header."""
    if line == b"-1" and mark in _NULLABLE:
        return _NULL
    if line == b"?" and mark in _STREAMED:
        return _STREAM
    if not _LENGTH.fullmatch(line):
        raise _Malformed("not a length")
    return int(line[:_LENGTH_DIGITS])

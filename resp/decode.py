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
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from operator import itemgetter, length_hint
from struct import Struct
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
        _set_code(self, code)
        _set_message(self, message)

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


_set_code: Final = ErrorReply.__dict__["code"].__set__
_set_message: Final = ErrorReply.__dict__["message"].__set__


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


class Malformed(Exception):
    """What is wrong with a token, and where in the buffer if that is not the token's start."""

    def __init__(self, message: str, at: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


# Lines: from what stands between the type and CRLF to a reply.

# The codes that most errors have need no match.
_CODES: Final = frozenset(
    {"ASK", "ERR", "LOADING", "MOVED", "NOAUTH", "NOPERM", "NOSCRIPT", "READONLY", "WRONGTYPE"}
)
_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]*(?!\S)")
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]*")
_DOUBLE: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# Servers before 7.2 print what their C library prints: a sign, capitals, a payload.
_NAN: Final = re.compile(rb"-?(?:nan|NAN)(?:\([0-9A-Za-z_]*\))?")
_INFINITIES: Final = {b"inf": math.inf, b"-inf": -math.inf}
_BOOLS: Final = {b"t": True, b"f": False}
_ESCAPE: Final = "surrogateescape"
STRAY: Final = re.compile(rb"\r(?!\n|\Z)|(?<!\r)\n")
STRAY_TOLD: Final = "a CR or LF inside a line"

# sys.set_int_max_str_digits() goes down to 640 digits; below that, int() of digits cannot fail.
_SAFE_DIGITS: Final = 600


def _simple(line: bytes) -> str:
    if b"\r" in line or b"\n" in line:
        raise Malformed(STRAY_TOLD)
    return line.decode("utf-8", _ESCAPE)


def _error(line: bytes) -> ErrorReply:
    return _error_text(_simple(line))


def _error_text(message: str) -> ErrorReply:
    code = message.partition(" ")[0]
    if code not in _CODES:
        found = _CODE.match(message)
        code = found[0] if found else ""
    return ErrorReply(code, message)


def _integer(line: bytes) -> int:
    if line.isdigit() and len(line) < 19 and (line[0] != _ZERO or len(line) == 1):
        return int(line)
    # int() alone takes " 5", "1_000" and, from a str, Arabic digits.
    if not _INTEGER.fullmatch(line):
        raise Malformed("not an integer")
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
    raise Malformed("not a double")


def _bool(line: bytes) -> bool:
    if line not in _BOOLS:
        raise Malformed("not a boolean")
    return _BOOLS[line]


def _null(line: bytes) -> None:
    if line:
        raise Malformed("a null with something in it")


# Blobs: from the bytes that a length announced to a reply.


def _blob_error(blob: bytes) -> ErrorReply:
    return _error_text(blob.decode("utf-8", _ESCAPE))


def _verbatim(blob: bytes) -> Verbatim:
    if blob[3:4] != b":":
        raise Malformed("a verbatim string without a format")
    return Verbatim(blob[4:], blob[:3].decode("utf-8", _ESCAPE))


# Aggregates: from their items, in the order of the wire, to a reply.


def _itself(items: list[Reply]) -> list[Reply]:
    return items


_FLOOD: Final = 4096  # items, from which on it matters how many of them share a hash


def _collide(keys: list[Reply]) -> bool:
    """Whether so many keys share a hash that building a table of them would be quadratic.

    Numbers can be chosen so (multiples of 2**61 - 1 all hash to 0); bytes and str cannot.
    """
    return 8 * len(set(map(hash, keys))) < len(keys)


def _pairs(items: list[Reply]) -> dict[Reply, Reply] | Pairs:
    rest = iter(items)
    try:
        if len(items) > _FLOOD and _collide(items[::2]):
            return Pairs(zip(items[::2], items[1::2], strict=True))
        found = dict(zip(rest, rest, strict=True))
    except TypeError:
        found = {}
    if 2 * len(found) == len(items):
        return found
    return Pairs(zip(items[::2], items[1::2], strict=True))


def _members(items: list[Reply]) -> set[Reply] | list[Reply]:
    try:
        if len(items) > _FLOOD and _collide(items):
            return items
        found = set(items)
    except TypeError:
        return items
    return found if len(found) == len(items) else items


def _push(items: list[Reply]) -> Push:
    kind, *rest = items
    if isinstance(kind, bytes):
        kind = kind.decode("utf-8", _ESCAPE)
    elif not isinstance(kind, str):
        raise Malformed("a push whose kind is no string")
    return Push(kind, rest)


_MINUS: Final = ord("-")
_ZERO: Final = ord("0")
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
_COLON: Final = ord(":")
_END: Final = ord(".")

LINES: Final[dict[int, Callable[[bytes], Reply]]] = {
    ord("+"): _simple,
    ord("-"): _error,
    ord(":"): _integer,
    ord("("): _integer,
    ord(","): _double,
    ord("#"): _bool,
    ord("_"): _null,
}
BLOBS: Final[dict[int, Callable[[bytes], Reply]]] = {
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
_MARKS: Final = frozenset({*LINES, *BLOBS, *_AGGREGATES, _CHUNK, _END})
_NO_ITEM: Final = frozenset({_ATTRIBUTE, _CHUNK, _END})
_WIDTH: Final = {_ARRAY: 1, _MAP: 2, _SET: 1, _PUSH: 1, _ATTRIBUTE: 2}
"""Items for one of what an aggregate's header counts."""

_LENGTH: Final = re.compile(rb"0|[1-9][0-9]*")
_LENGTH_DIGITS: Final = 20  # more than any limit has, and few enough for int() to be quick

_STREAM: Final = -1  # the length `?`; and items left of an aggregate that has no length
_NULL: Final = -2  # the length -1
_TOP: Final = 0  # the kind of what no aggregate is around

# Pieces that are waiting, in bytes.
_SMALL_PIECE: Final = 1024  # below this, the object around a piece is too much of its memory
_JOINED_PIECES: Final = 64 * 1024  # small pieces put together in one object
_LARGE_BLOB: Final = 1024  # from this on, a blob is joined apart from what follows it

# What the bursts know by heart. A line found in these tables is well formed, and none of its
# numbers is above a limit: a decoder with lower limits does without bursts.
_TABLED: Final = 1024
_BULKS: Final = {b"$%d" % size: size for size in range(_TABLED)}
_BULK_HEADERS: Final = tuple(_BULKS)
_NO_BLOB: Final = bytes(_TABLED)  # fits no header in the table
_SCALARS: Final[dict[bytes, Reply]] = {
    **{b":%d" % number: number for number in range(-1, _TABLED)},
    **{b"+" + text.encode(): text for text in ("OK", "QUEUED", "PONG")},
    b"$-1": None,
    b"*-1": None,
    b"_": None,
    b"#t": True,
    b"#f": False,
}
_SCALAR_REPLIES: Final = {line + b"\r\n": value for line, value in _SCALARS.items()}
_LONGEST_SCALAR: Final = max(map(len, _SCALAR_REPLIES))
_OPENERS: Final = {
    b"%c%d" % (kind, count): (kind, count * _WIDTH[kind])
    for kind in (_ARRAY, _MAP, _SET, _PUSH)
    for count in range(kind == _PUSH, _TABLED // _WIDTH[kind] + 1)
}

_ARRAYS: Final = {line: size for line, (kind, size) in _OPENERS.items() if kind == _ARRAY and size}

# Bytes that a burst looks at. More are worth splitting as long as bursts succeed; what a failed one
# has cost is made up for by tokens taken without trying.
_WINDOW: Final = 2 * 1024
_WIDEST_WINDOW: Final = 32 * 1024
_WORTH_A_BURST: Final = 256
_LONGEST_SKIP: Final = 16  # tokens
_HEADER: Final = 24  # any header with its CRLF, and most lines
_ONE_SHOT: Final = 4 * 1024  # a chunk that is read at one go
_EQUAL_BULK: Final = 4 * 1024  # bulks up to this size are taken many at once if sizes are equal
_LARGE_BULK: Final = 512  # from this size on, looking for CRLFs in a bulk costs more than it saves

_LINE_RUNS: Final = (64, 8, 1)  # equal lines compared at once
_LONGEST_EQUAL_LINE: Final = 256
_BULK_RUNS: Final = (256, 64, 16, 4)  # equal headers compared at once
_COLUMN: Final = 16  # tokens or rows that are worth reading as a column
_MANY_TOKENS: Final = 96
_ROW_TOKENS: Final = 48  # more than a row has that is worth it

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
        "_idle",
        "_in_line",
        "_items",
        "_kind",
        "_left",
        "_max_bulk",
        "_max_depth",
        "_max_elements",
        "_max_line",
        "_need",
        "_notes",
        "_out",
        "_parts",
        "_push_at",
        "_queue",
        "_quick",
        "_stack",
        "_text",
        "attributes",
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
        for limit in (max_bulk, max_line, max_elements, max_depth):
            if type(limit) is not int or limit < 0:
                raise ValueError(f"a limit is a whole number, 0 or more, not {limit!r:.60}")
        self._max_bulk = max_bulk
        self._max_line = max_line
        self._max_elements = max_elements
        self._max_depth = max_depth
        self.attributes = None
        # The tables of the bursts hold no number above any limit, so that they need not compare.
        self._quick = (
            max_bulk >= _EQUAL_BULK and max_elements >= _TABLED and max_line >= _WIDEST_WINDOW
        )
        self._idle = self._quick  # whether a reply that comes whole can be taken by itself

        self._parts: list[bytes | bytearray] = []  # unread bytes, from the start of a token
        self._have = 0  # bytes in _parts
        self._need = 1  # bytes in _parts that make another look worth while
        self._in_line = False  # whether a CR or LF makes it worth while too
        self._blob: tuple[int, int] | None = None  # header and length, if _parts is a large blob
        self._base = 0  # bytes of the stream before _parts

        self._out: list[Reply] = []  # complete replies that nobody took yet
        self._queue: deque[Reply] = deque()  # what next() took and did not return yet
        self._items = self._out  # of the innermost open aggregate
        self._left = _STREAM  # items that it misses
        self._kind = _TOP
        self._stack: list[_Frame] = []  # what is around it
        self._text: bytearray | None = None  # the streamed string that is open
        self._push_at = 0  # offset of the push that is open
        self._notes: dict[int, list[Reply]] = {}  # attributes, by place of the reply among those
        self._dangling: tuple[list[Reply], int] | None = None  # the place after an inner attribute
        self._fault: tuple[str, int] | None = None

    @property
    def offset(self) -> int:
        """Bytes of the stream before the first one that is waiting for more to be of use."""
        return self._fault[1] if self._fault else self._base

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take what was received. A bytearray or memoryview is copied and may be used again."""
        if self._parts or type(data) is not bytes or self._fault is not None:
            if not isinstance(data, bytes | bytearray | memoryview):
                raise TypeError(f"a decoder is fed bytes, not {type(data).__name__}")
            self._keep(bytes(data))
        elif data:
            self._parts.append(data)
            self._have = len(data)

    def _keep(self, data: bytes) -> None:
        if not data or self._fault is not None:
            return
        parts = self._parts
        self._have += len(data)
        if self._in_line and (b"\n" in data or b"\r" in data):
            self._need = 0
        if parts and len(data) < _SMALL_PIECE:
            # An object for every few bytes would take many times the memory of the bytes.
            last = parts[-1]
            if type(last) is bytearray and len(last) < _JOINED_PIECES:
                last += data
            else:
                parts.append(bytearray(data))
        else:
            parts.append(data)

    def decode(self, data: bytes) -> list[Reply]:
        """Feed one chunk and answer every reply that is complete now: `feed` and `replies` in one.

        Raises:
            ProtocolError: As `replies` does.
        """
        if data and self._idle and not self._parts:
            replies = _one_shot(data, self._max_bulk, self._max_depth)
            if replies:
                self._base += len(data)
                self.attributes = None
                return replies
        self.feed(data)
        return self.replies()

    def next(self) -> Reply:
        """Answer the next reply, or `NEED_DATA` if it is not complete.

        Raises:
            ProtocolError: What follows the replies returned so far is not RESP.
        """
        queue = self._queue
        if not queue:
            queue.extend(self._gather())
        self.attributes = None
        if queue:
            reply = queue.popleft()
            if self._notes:
                self._note(1)
            return reply
        if self._fault is not None:
            raise ProtocolError(*self._fault)
        return NEED_DATA

    def replies(self) -> list[Reply]:
        """Answer every reply that is complete, in order; an empty list if none is.

        Raises:
            ProtocolError: None is, and what follows is not RESP.
        """
        parts = self._parts
        if self._idle and len(parts) < 2:
            self.attributes = None
            if not parts:
                return []
            replies = _one_shot(parts[0], self._max_bulk, self._max_depth)
            if replies:
                parts.clear()
                self._base += self._have
                self._have = 0
                return replies
        replies = [*self._queue, *self._gather()]
        self._queue.clear()
        self.attributes = None
        if replies:
            if self._notes:
                self._note(len(replies))
        elif self._fault is not None:
            raise ProtocolError(*self._fault)
        self._idle = self._quick and not (
            self._stack or self._parts or self._notes or self._fault or self._text is not None
        )
        return replies

    def _gather(self) -> list[Reply]:
        """Answer the replies that what was fed completes, as far as none was answered before."""
        if self._have < self._need:
            return []
        self._idle = False
        self._run()
        found = self._out[:]
        self._out.clear()
        return found

    def _note(self, count: int) -> None:
        """Show the attributes of the last of `count` replies, and forget those before it."""
        items = self._notes.pop(count - 1, None)
        if items is not None:
            self.attributes = _pairs(items)
        self._notes = {at - count: items for at, items in self._notes.items() if at >= count}

    def _run(self) -> None:
        """Take every token that is complete."""
        position = 0
        try:
            buffer, position = self._join()
            end = len(buffer)
            self._need = 1
            self._in_line = False
            self._blob = None
            window = _WINDOW
            misses = skip = 0
            while position < end:
                if skip:
                    skip -= 1
                elif self._quick:
                    before = position
                    position = self._burst(buffer, position, window)
                    if position - before >= _WORTH_A_BURST:
                        window = min(window * 4, _WIDEST_WINDOW)
                        misses = 0
                        continue
                    window = _WINDOW
                    misses += 1
                    skip = min(misses, _LONGEST_SKIP)
                    if position == end:
                        break
                after = self._take(buffer, position)
                if not after:
                    self._parts.append(buffer[position:])
                    break
                position = after
        except Malformed as malformed:
            at = position if malformed.at is None else malformed.at
            self._fail(malformed.message, self._base + at)
            return
        self._base += position
        self._have = end - position

    def _join(self) -> tuple[bytes, int]:
        """Answer what was fed as one buffer, and where in it the first token starts."""
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            return bytes(parts[0]), 0
        if self._blob is not None:
            # A blob that ends in the last part is joined by itself, and the rest is not copied.
            header, length = self._blob
            last = bytes(parts[-1])
            cut = len(last) - (self._have - header - length)
            if cut >= 0 and last.startswith(b"\r\n", cut):
                head = memoryview(parts[0])[header:]
                self._add(b"".join((head, *parts[1:-1], memoryview(last)[:cut])))
                self._base += self._have - len(last)
                return last, cut + 2
        return b"".join(parts), 0

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
            raise Malformed("an unknown type")
        if (mark == _CHUNK) is not (self._text is not None):
            raise Malformed("a chunk outside a streamed string, or something else inside one")
        if (
            self._left < 0
            and self._kind != _TOP
            and len(self._items) >= self._max_elements
            and mark not in _NO_ITEM
        ):
            raise Malformed("more items than max_elements")
        eol = buffer.find(b"\r\n", position + 1, position + self._max_line + 3)
        if eol < 0:
            self._wait_for_line(buffer, position)
            return 0
        line = buffer[position + 1 : eol]
        try:
            convert = LINES.get(mark)
            if convert is not None:
                self._add(convert(line))
                return eol + 2
            if mark == _END:
                self._end(line)
                return eol + 2
            length = length_of(line, mark)
        except Malformed:
            stray = STRAY.search(buffer, position + 1, eol + 1)
            if stray:
                raise Malformed(STRAY_TOLD, stray.start()) from None
            raise
        if mark in _AGGREGATES:
            self._open(mark, length, position)
            return eol + 2
        return self._take_blob(buffer, position, eol + 2, mark, length)

    def _wait_for_line(self, buffer: bytes, position: int) -> None:
        """Look at a line that has no end yet, and say what would make another look worth while."""
        start = position + 1
        stray = STRAY.search(buffer, start, start + self._max_line + 2)
        if stray and stray.start() <= start + self._max_line:
            raise Malformed(STRAY_TOLD, stray.start())
        ends_in_cr = len(buffer) > start and buffer[-1] == _CR
        if len(buffer) - start - ends_in_cr > self._max_line:
            raise Malformed("a line of more than max_line bytes", start + self._max_line)
        self._in_line = not ends_in_cr
        self._need = len(buffer) - position + 1 if ends_in_cr else self._max_line + 2

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
        if length + len(self._text or b"") > self._max_bulk:
            raise Malformed("a blob of more than max_bulk bytes")
        if mark == _VERBATIM and length < 4:
            raise Malformed("a verbatim string without a format")
        stop = start + length
        if len(buffer) > stop and buffer[stop] != _CR:
            raise Malformed("a blob that does not end with CRLF", stop)
        if len(buffer) < stop + 2:
            # The CR is looked at as soon as it is there; a length that is wrong shows in it.
            self._need = stop + (1 if len(buffer) <= stop else 2) - position
            if mark == _BULK and length >= _LARGE_BLOB:
                self._blob = start - position, length
            return 0
        if buffer[stop + 1] != _LF:
            raise Malformed("a blob that does not end with CRLF", stop + 1)
        blob = buffer[start:stop]
        if self._text is not None:
            self._text += blob
        else:
            self._add(BLOBS[mark](blob))
        return stop + 2

    def _open(self, mark: int, length: int, position: int) -> None:
        if length == _NULL:
            self._add(None)
            return
        if mark == _PUSH:
            if self._stack:
                raise Malformed("a push inside another reply", position)
            if not length:
                raise Malformed("a push without a kind", position)
            self._push_at = self._base + position
        left = length if length == _STREAM else length * _WIDTH[mark]
        if left > self._max_elements:
            raise Malformed("more items than max_elements", position)
        if len(self._stack) >= self._max_depth:
            raise Malformed("more aggregates inside each other than max_depth", position)
        if mark == _ATTRIBUTE and not self._stack:
            notes = self._notes.get(len(self._queue) + len(self._out), [])
            if len(notes) + left > self._max_elements:
                raise Malformed("more attributes before one reply than max_elements", position)
        self._stack.append((self._items, self._left, self._kind))
        self._items, self._left, self._kind = [], left, mark
        if not left:
            self._close()

    def _end(self, line: bytes) -> None:
        if line:
            raise Malformed("an end with something in it")
        if self._kind == _TOP or self._left >= 0:
            raise Malformed("an end without a streamed aggregate")
        items = self._items
        if self._dangling is not None:
            where, count = self._dangling
            if where is items and count == len(items):
                raise Malformed("an attribute without its value")
        if self._kind == _MAP and len(items) % 2:
            raise Malformed("a key without its value")
        self._close()

    # Bursts: many tokens at once, where the bytes are as they are nearly always. A burst takes only
    # what the plain path would take, token for token, and stops before anything else.

    def _burst(self, buffer: bytes, position: int, window: int) -> int:
        """Take tokens as far as they are alike or plain. Answer where it stopped."""
        if self._text is not None or (self._left < 0 and self._kind != _TOP):
            return position
        eol = buffer.find(b"\r\n", position, position + _HEADER)
        line = buffer[position:eol] if eol > 0 else b""
        while line in _OPENERS and _OPENERS[line][1] > _MANY_TOKENS:
            # It is likely to end after the window, which would then be read for nothing.
            self._open(line[0], _OPENERS[line][1] // _WIDTH[line[0]], position)
            position = eol + 2
            eol = buffer.find(b"\r\n", position, position + _HEADER)
            if eol < 0:
                return position
            line = buffer[position:eol]
        after = position
        if buffer[position] in LINES:
            after = self._burst_of_equal_lines(buffer, position)
        elif buffer[position] == _BULK:
            size = _bulk_size(line)
            if 0 <= size <= _EQUAL_BULK:
                after = self._burst_of_bulks(buffer, position, eol + 2, size)
            if after == position and size >= _LARGE_BULK:
                return self._burst_of_large_bulks(buffer, position)
        elif line not in _OPENERS:
            return position
        if after > position:
            return after
        if 0 < self._left < _MANY_TOKENS:
            window = _WINDOW  # what follows may be of another kind
        return self._burst_of_tokens(buffer, position, window)

    def _burst_of_equal_lines(self, buffer: bytes, position: int) -> int:
        """Take lines that are all the same. Their value is shared; none of them can change."""
        after = buffer.find(b"\r\n", position, position + _LONGEST_EQUAL_LINE) + 2
        if after < 2:
            return position
        line = buffer[position:after]
        if not buffer.startswith(line, after):
            return position
        try:
            value = LINES[line[0]](line[1:-2])
        except Malformed:
            return position
        room = self._left if self._left > 0 else len(buffer)
        start = position
        for width in _LINE_RUNS:
            pattern = line * width
            while width <= room and buffer.startswith(pattern, position):
                position += len(pattern)
                room -= width
        self._extend([value] * ((position - start) // len(line)))
        return position

    def _burst_of_bulks(self, buffer: bytes, position: int, after: int, size: int) -> int:
        """Take bulks of one size, or of two in turn, if their headers are where they should be."""
        first = buffer[position:after]
        stride = after - position + size + 2
        heads: tuple[bytes, ...] = (first,)
        sizes: tuple[int, ...] = (size,)
        if not buffer.startswith(first, position + stride):
            after = buffer.find(b"\r\n", position + stride, position + stride + _HEADER) + 2
            second = buffer[position + stride : after]
            size = _bulk_size(second[:-2])
            if not 0 <= size <= _EQUAL_BULK:
                return position
            stride += len(second) + size + 2
            heads = (first, second)
            sizes = (*sizes, size)
        items = self._items
        before = len(items)
        room = (self._left if self._left > 0 else len(buffer)) // len(sizes)
        for width in _BULK_RUNS:
            span = stride * width
            if width > room or not buffer.startswith(first, position + span - stride):
                continue  # before a layout is made for nothing
            cells, columns = _cells(heads, sizes, width)
            while (
                width <= room
                and buffer.startswith(first, position)
                and buffer.startswith(b"\r\n", position + span - 2)
            ):
                stop = position + span
                for at, column in columns:
                    if buffer[position + at : stop : stride] != column:
                        break
                else:
                    items += cells.unpack_from(buffer, position)
                    position = stop
                    room -= width
                    continue
                break
        self._left -= len(items) - before
        if not self._left:
            self._close()
        return position

    def _burst_of_large_bulks(self, buffer: bytes, position: int) -> int:
        """Take bulks that are too large to be worth looking for a CRLF in."""
        room = self._left if self._left > 0 else len(buffer)
        found: list[Reply] = []
        while len(found) < room:
            eol = buffer.find(b"\r\n", position, position + _HEADER)
            digits = buffer[position + 1 : eol]
            if eol < 0 or buffer[position] != _BULK or not digits.isdigit() or len(digits) > 18:
                break
            size = int(digits)
            stop = eol + 2 + size
            if (
                digits[0] == _ZERO
                or not _LARGE_BULK <= size <= self._max_bulk
                or not buffer.startswith(b"\r\n", stop)
            ):
                break
            found.append(buffer[eol + 2 : stop])
            position = stop + 2
        if found:
            self._extend(found)
        return position

    def _extend(self, values: list[Reply]) -> None:
        self._items += values
        self._left -= len(values)
        if not self._left:
            self._close()

    def _burst_of_tokens(self, buffer: bytes, position: int, window: int) -> int:
        """Take what the CRLFs of the next few KiB separate, as long as nothing holds one itself."""
        stop = buffer.rfind(b"\r\n", position, position + window)
        if stop < 0:
            return position
        tokens = buffer[position:stop].split(b"\r\n")
        missing = len(tokens)
        if missing > _COLUMN:
            blobs = _column(tokens, 0, self._left if self._left > 0 else missing)
            if blobs:
                self._extend(blobs)
                del tokens[: 2 * len(blobs)]
                missing -= 2 * len(blobs)
        if self._left > 0 or self._kind == _TOP:
            depth = self._max_depth - len(self._stack)
            values, used = _walk(tokens, self._left, depth)
            if values:
                self._extend(values)
                del tokens[:used]
                missing -= used
        return stop + 2 - sum(map(len, tokens)) - 2 * missing

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
            try:
                self._items.append(_AGGREGATES[kind](items))
            except Malformed as malformed:  # a push, and so not inside anything
                raise Malformed(malformed.message, self._push_at - self._base) from None
            self._left -= 1
            if self._left:
                return

    def _attribute(self, items: list[Reply]) -> None:
        if self._stack:
            self._dangling = self._items, len(self._items)
        else:
            self._notes.setdefault(len(self._queue) + len(self._out), []).extend(items)


def _one_shot(data: bytes | bytearray, max_bulk: int, max_depth: int) -> list[Reply]:
    """Answer the replies in `data` if it holds whole ones alone, and plain ones, else none."""
    if type(data) is not bytes:
        return []
    if len(data) <= _LONGEST_SCALAR and data in _SCALAR_REPLIES:
        return [_SCALAR_REPLIES[data]]
    size = len(data)
    if data[0] == _BULK:
        head = _bulk_heads[size] if size in _bulk_heads else _bulk_head(size)
        if head and data.startswith(head) and data.endswith(b"\r\n"):
            blob = data[len(head) : -2]
            return [blob] if len(blob) <= max_bulk else []
    if size > _ONE_SHOT:
        return []
    tokens = data.split(b"\r\n")
    if tokens.pop():
        return []
    first = tokens[0]
    if first in _OPENERS and max_depth:
        kind, size = _OPENERS[first]
        if len(tokens) == 1 + 2 * size and (kind == _MAP or (kind == _ARRAY and size >= _COLUMN)):
            blobs = tokens[2::2]
            try:
                if tokens[1::2] == list(map(_BULK_HEADERS.__getitem__, map(len, blobs))):
                    return [_pairs(blobs) if kind == _MAP else list(blobs)]
            except IndexError:  # one that is longer than the table
                pass
    if first in _ARRAYS and len(tokens) < _MANY_TOKENS and max_depth:
        items = _flat(tokens)
        if len(items) == _ARRAYS[first]:
            return [items]
    values, used = _walk(tokens, -1, max_depth)
    return values if used == len(tokens) else []


def _flat(tokens: list[bytes]) -> list[Reply]:
    """Answer what follows the first token, if it is bulks and scalars that are known by heart."""
    items: list[Reply] = []
    rest = iter(tokens)
    next(rest)
    for token in rest:
        if token in _BULKS:
            blob = next(rest, _NO_BLOB)
            if len(blob) != _BULKS[token]:
                return []
            items.append(blob)
        elif token in _SCALARS:
            items.append(_SCALARS[token])
        else:
            return []
    return items


_bulk_heads: Final[dict[int, bytes]] = {}


def _bulk_head(size: int) -> bytes:
    """Answer how a bulk begins that is `size` bytes, from its `$` to its last CRLF, or b"".

    One at the most is so long: a length tells how many digits announce it.
    """
    head = b""
    for digits in range(1, len(b"%d" % size) + 1):
        length = size - len(b"$\r\n\r\n") - digits
        if length >= 0 and len(b"%d" % length) == digits:
            head = b"$%d\r\n" % length
    if size <= _ONE_SHOT:
        _bulk_heads[size] = head
    return head


def _bulk_size(line: bytes) -> int:
    """Answer the size of the bulk that a whole line announces, or -1."""
    digits = line[1:]
    if digits.isdigit() and line[0] == _BULK and (digits[0] != _ZERO or digits == b"0"):
        return int(digits) if len(digits) < 19 else -1
    return -1


def _walk(tokens: list[bytes], room: int, max_depth: int) -> tuple[list[Reply], int]:
    """Read tokens, as far as they are what CRLFs separate, into at most `room` values.

    Returns:
        The values that are complete, and the number of tokens that they took.
    """
    values: list[Reply] = []
    items, left, kind = values, room, _TOP
    stack: list[_Frame] = []
    total = len(tokens)
    rest = iter(tokens)
    tries = 2 if total >= _MANY_TOKENS else 0
    opened = unread = 0
    for token in rest:
        if token in _BULKS:
            blob = next(rest, _NO_BLOB)
            if len(blob) != _BULKS[token]:
                unread = 1 if blob is _NO_BLOB else 2
                break
            items.append(blob)
        elif token in _SCALARS:
            items.append(_SCALARS[token])
        elif token in _OPENERS:
            inner, size = _OPENERS[token]
            if (
                size > length_hint(rest)
                or len(stack) >= max_depth
                or (inner == _PUSH and (stack or left >= 0))
            ):
                unread = 1
                break
            rows: list[Reply] = []
            if tries and (left < 0 or left > _COLUMN):
                tries -= 1
                start = total - length_hint(rest) - 1
                rows, used = _rows(tokens, start, left, max_depth - len(stack))
            if rows:
                tries += 1
                items += rows
                left -= len(rows)
                deque(islice(rest, used - 1), maxlen=0)
            else:
                if not stack:
                    opened = length_hint(rest) + 1
                stack.append((items, left, kind))
                items = []
                kind, left = inner, size
                if left > _COLUMN:
                    blobs = _column(tokens, total - length_hint(rest), left)
                    items += blobs
                    left -= len(blobs)
                    deque(islice(rest, 2 * len(blobs)), maxlen=0)
            if left:
                continue
            left = 1  # which the next line makes 0
        else:
            mark = token[0] if token else 0
            line = token[1:]
            if mark == _COLON and len(line) < 19 and line.isdigit() and line[0] != _ZERO:
                items.append(int(line))
            elif mark in LINES:
                try:
                    items.append(LINES[mark](line))
                except Malformed:
                    unread = 1
                    break
            else:
                unread = 1
                break
        left -= 1
        if left:
            continue
        while stack and not left:
            if kind == _PUSH and not isinstance(items[0], str | bytes):
                return values, total - opened
            value = items if kind == _ARRAY else _AGGREGATES[kind](items)
            items, left, kind = stack.pop()
            items.append(value)
            left -= 1
        if not left:
            break
    if stack:
        return values, total - opened
    return values, total - length_hint(rest) - unread


def _rows(tokens: list[bytes], start: int, room: int, max_depth: int) -> tuple[list[Reply], int]:
    """Read arrays that follow each other and have one layout, a column at a time.

    Returns:
        The arrays, at most `room`, and the number of tokens that they took; none if the first two
        differ.
    """
    first, stride = _walk(tokens[start : start + _ROW_TOKENS], 1, max_depth)
    if not first or tokens[start + stride : start + stride + 1] != [tokens[start]]:
        return [], 0
    most = (len(tokens) - start) // stride
    if room > 0:
        most = min(most, room)
    found: list[Reply] = []
    width = _COLUMN
    while width <= most - len(found):
        rows = _block(tokens, start, stride, len(found), width)
        if not rows:
            break
        found += rows
        width = max(2, min(4 * width, most - len(found)))
    return found, len(found) * stride


def _block(tokens: list[bytes], start: int, stride: int, skip: int, count: int) -> list[Reply]:
    """Read `count` rows, from the one `skip` rows after `start`; none if one has another layout.

    The row at `start` says what each place holds: it alone is known to end after `stride` tokens.
    """
    columns: list[list[Reply]] = []
    left = _STREAM
    stack: list[tuple[list[list[Reply]], int]] = []
    ahead = skip * stride
    stop = start + ahead + count * stride
    places = iter(range(start, start + stride))
    for place in places:
        heads = tokens[place + ahead : stop : stride]
        head = tokens[place]
        if head in _BULKS:
            blobs = tokens[next(places) + ahead : stop : stride]
            if not _fit(heads, blobs):
                return []
            columns.append(blobs)
        elif head[0] == _ARRAY and head in _OPENERS:
            left_inside = _OPENERS[head][1]
            if not left_inside or heads.count(head) != len(heads):
                return []
            stack.append((columns, left))
            columns, left = [], left_inside
            continue
        else:
            try:
                columns.append(
                    [
                        _SCALARS[line] if line in _SCALARS else LINES[line[0]](line[1:])
                        for line in heads
                    ]
                )
            except (KeyError, IndexError, Malformed):
                return []
        left -= 1
        while not left:
            rows = list(map(list, zip(*columns, strict=True)))
            columns, left = stack.pop()
            columns.append(rows)
            left -= 1
    return columns[0]


def _column(tokens: list[bytes], start: int, count: int) -> list[bytes]:
    """Answer the bulks that follow each other in `tokens`, at most `count`, as far as all fit."""
    if len(tokens) <= start + 3 or tokens[start] not in _BULKS or tokens[start + 2] not in _BULKS:
        return []
    blobs = tokens[start + 1 : start + 2 * count : 2]
    headers = tokens[start : start + 2 * len(blobs) : 2]
    return blobs if _fit(headers, blobs) else list(_fitting(headers, blobs))


def _fit(headers: list[bytes], blobs: list[bytes]) -> bool:
    """Say whether all headers, two or more, announce the bulks they precede."""
    try:
        return headers == list(itemgetter(*map(len, blobs))(_BULK_HEADERS))
    except IndexError:
        return False


def _fitting(headers: list[bytes], blobs: list[bytes]) -> Iterator[bytes]:
    for header, blob in zip(headers, blobs, strict=True):
        if _BULKS.get(header) != len(blob):
            return
        yield blob


@lru_cache(maxsize=64)
def _cells(
    heads: tuple[bytes, ...], sizes: tuple[int, ...], width: int
) -> tuple[Struct, list[tuple[int, bytes]]]:
    """Lay out `width` times bulks of these sizes.

    Returns:
        What cuts out their texts, and what must stand around them: of each byte of a row that
        belongs to no text, where it is in the row, and itself as often as there are rows.
    """
    row, layout = b"", ""
    columns: list[tuple[int, bytes]] = []
    for head, size in zip(heads, sizes, strict=True):
        for start, text in ((len(row), head), (len(row) + len(head) + size, b"\r\n")):
            columns += [(start + at, text[at : at + 1] * width) for at in range(len(text))]
        row += head + bytes(size + 2)
        layout += f"{len(head)}x{size}s2x"
    return Struct(layout * width), columns


def length_of(line: bytes, mark: int) -> int:
    """Read the length in a header."""
    if line == b"-1" and mark in _NULLABLE:
        return _NULL
    if line == b"?" and mark in _STREAMED:
        return _STREAM
    if not _LENGTH.fullmatch(line):
        raise Malformed("not a length")
    return int(line[:_LENGTH_DIGITS])

"""What a RESP decoder is tested with, and the properties that it must have.

The strategies draw streams of replies as a server may write them, together with the Python values
they stand for; the encoder is written from the protocol's tables and shares nothing with the
package. The checks take a factory, so that they can be pointed at any decoder that has `feed`,
`next`, `replies` and `attributes`:

    @given(streams(), cuts())
    def test_mine(stream, cut):
        check_round_trip(MyDecoder, stream, cut)

`python -m tests.fuzz --decoder module:Class` runs all of them for as long as one likes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

from hypothesis import strategies as st

from resp.decode import NEED_DATA, Decoder, ErrorReply, Pairs, Push, Verbatim
from resp.errors import ProtocolError


class DecoderLike(Protocol):
    """What the checks use of a decoder."""

    @property
    def attributes(self) -> Any: ...

    def feed(self, data: bytes) -> None: ...

    def next(self) -> Any: ...

    def replies(self) -> list[Any]: ...


Factory: TypeAlias = Callable[[], DecoderLike]


@dataclass(frozen=True)
class Encoded:
    """A value, the bytes that a server may write for it, and whether RESP2 has all of it."""

    wire: bytes
    value: Any
    resp2: bool = True


@dataclass(frozen=True)
class Stream:
    """Replies one after the other.

    Attributes:
        wire: All of their bytes.
        values: The value of each.
        attributes: The attributes of each, or None.
    """

    wire: bytes
    values: list[Any] = field(default_factory=list)
    attributes: list[Any] = field(default_factory=list)


@dataclass
class Outcome:
    """What a decoder made of a stream; two of them compare by `==`, types and nan included."""

    replies: list[Any] = field(default_factory=list)
    attributes: list[Any] = field(default_factory=list)
    error: str | None = None
    offset: int | None = None


# Comparing


def typed(value: Any) -> Any:
    """Answer a form of a reply in which 1, 1.0 and True differ, and one nan equals another."""
    kind = type(value)
    if kind is Push:
        return "Push", value.kind, typed(value.items)
    if kind is ErrorReply:
        return "ErrorReply", value.code, value.message
    if kind is Verbatim:
        return "Verbatim", bytes(value), value.format
    if kind is dict:
        return "dict", [(typed(key), typed(item)) for key, item in value.items()]
    if kind is Pairs:
        return "Pairs", [(typed(key), typed(item)) for key, item in value]
    if kind is list:
        return "list", [typed(item) for item in value]
    if kind is set:
        return "set", sorted((typed(item) for item in value), key=repr)
    if kind is float:
        return "float", "nan" if math.isnan(value) else value.hex()
    if kind is int:
        return "int", hex(value)  # decimal digits of a huge one may be refused
    return kind.__name__, value


# The encoder


def line(mark: bytes, text: bytes) -> bytes:
    """Write a reply that is one line."""
    return mark + text + b"\r\n"


def blob(mark: bytes, text: bytes) -> bytes:
    """Write a reply that announces its length."""
    return b"%b%d\r\n%b\r\n" % (mark, len(text), text)


def aggregate(mark: bytes, items: list[Encoded], width: int = 1) -> bytes:
    """Write an aggregate that announces its length."""
    return b"%b%d\r\n" % (mark, len(items) // width) + b"".join(item.wire for item in items)


def streamed(mark: bytes, items: list[Encoded]) -> bytes:
    """Write an aggregate that ends where it says so (RESP3, "Streamed aggregate types")."""
    return mark + b"?\r\n" + b"".join(item.wire for item in items) + b".\r\n"


def as_map(items: list[Encoded]) -> Any:
    """Answer the value of a map of these keys and values: a dict, or Pairs if it loses any."""
    pairs = [(items[at].value, items[at + 1].value) for at in range(0, len(items), 2)]
    keys = [key for key, _ in pairs]
    return Pairs(pairs) if _unfit(keys) else dict(pairs)


def as_set(items: list[Encoded]) -> Any:
    """Answer the value of a set of these members: a set, or a list if it loses any."""
    members = [item.value for item in items]
    return members if _unfit(members) else set(members)


def _unfit(keys: list[Any]) -> bool:
    for at, key in enumerate(keys):
        if isinstance(key, list | dict | set | Push):
            return True
        for other in keys[:at]:
            if key is other or key == other:
                return True
    return False


# Replies

_TEXT = st.one_of(
    st.sampled_from([b"OK", b"QUEUED", b"PONG", b"", b" ", b"OK ", b"$3", b"-1", b"caf\xc3\xa9"]),
    st.binary(max_size=20).map(lambda text: text.replace(b"\r", b"").replace(b"\n", b"")),
)
_BLOB = st.one_of(
    st.binary(max_size=24),
    st.sampled_from(
        [b"", b"\r\n", b"\r", b"\n", b"\r\n\r\n", b"+OK\r\n", b"$1\r\na\r\n", b"a\r\nb"]
    ),
    st.integers(0, 3000).map(lambda size: b"x" * size),
    st.sampled_from([1023, 1024, 4095, 4096, 4097, 40_000]).map(lambda size: b"y" * size),
)
_INTEGERS = st.one_of(
    st.integers(-3, 3),
    st.integers(1020, 1027),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(10**700), 10**700),
    st.sampled_from([10**600 - 1, 10**600, -(10**600), 10**1200, 10**18, 10**19]),
)


def _text(wire: bytes) -> str:
    return wire.decode("utf-8", "surrogateescape")


def _code(message: str) -> str:
    word = message.split(" ")[0] if " " in message else message
    fits = word[:1].isascii() and word[:1].isupper()
    fits = fits and all(c.isascii() and (c.isupper() or c.isdigit() or c == "_") for c in word)
    return word if fits else ""


def _error(message: bytes) -> ErrorReply:
    return ErrorReply(_code(_text(message)), _text(message))


_MESSAGES = st.one_of(
    st.sampled_from(
        [b"ERR", b"ERR x", b"NOSCRIPT No matching script.", b"my thing", b"", b"E2_A b"]
    ),
    _TEXT.map(lambda text: text.replace(b"\t", b"").replace(b"\x0b", b"").replace(b"\x0c", b"")),
).filter(lambda text: not any(c.isspace() and c != " " for c in _text(text)))


def _double_forms(number: float) -> st.SearchStrategy[bytes]:
    forms = [repr(number).encode(), b"%.17g" % number]
    if number == int(number) and abs(number) < 1e15:
        forms.append(b"%d" % number if number or math.copysign(1, number) > 0 else b"-0")
    return st.sampled_from(forms)


@st.composite
def _doubles(draw: st.DrawFn) -> Encoded:
    number = draw(st.floats(allow_nan=False, allow_infinity=False))
    return Encoded(line(b",", draw(_double_forms(number))), number, False)


_ODD_DOUBLES = st.sampled_from(
    [
        Encoded(b",inf\r\n", math.inf, False),
        Encoded(b",-inf\r\n", -math.inf, False),
        Encoded(b",nan\r\n", math.nan, False),
        Encoded(b",-nan\r\n", math.nan, False),
        Encoded(b",1E5\r\n", 1e5, False),
    ]
)
_CONSTANTS = st.sampled_from(
    [
        Encoded(b"$-1\r\n", None),
        Encoded(b"*-1\r\n", None),
        Encoded(b"_\r\n", None, False),
        Encoded(b"#t\r\n", True, False),
        Encoded(b"#f\r\n", False, False),
        Encoded(b"*0\r\n", []),
        Encoded(b"%0\r\n", {}, False),
        Encoded(b"~0\r\n", set(), False),
        Encoded(b"$?\r\n;0\r\n", b"", False),
    ]
)


def _digits(number: int) -> bytes:
    """Write a decimal of any length, which str() may refuse to."""
    sign = b"-" if number < 0 else b""
    number, parts = abs(number), []
    while True:
        number, part = divmod(number, 10**300)
        parts.append(b"%0300d" % part)
        if not number:
            return sign + (b"".join(reversed(parts)).lstrip(b"0") or b"0")


@st.composite
def _streamed_strings(draw: st.DrawFn) -> Encoded:
    chunks = draw(st.lists(_BLOB.filter(bool), max_size=3))
    wire = b"$?\r\n" + b"".join(blob(b";", chunk) for chunk in chunks) + b";0\r\n"
    return Encoded(wire, b"".join(chunks), False)


def scalars() -> st.SearchStrategy[Encoded]:
    """Replies that hold no others, in all their forms."""
    return st.one_of(
        _TEXT.map(lambda text: Encoded(line(b"+", text), _text(text))),
        _BLOB.map(lambda text: Encoded(blob(b"$", text), text)),
        _INTEGERS.map(lambda number: Encoded(line(b":", _digits(number)), number)),
        _MESSAGES.map(lambda text: Encoded(line(b"-", text), _error(text))),
        _CONSTANTS,
        _INTEGERS.map(lambda number: Encoded(line(b"(", _digits(number)), number, False)),
        _MESSAGES.map(lambda text: Encoded(blob(b"!", text), _error(text), False)),
        _BLOB.map(lambda text: Encoded(blob(b"=", b"mkd:" + text), Verbatim(text, "mkd"), False)),
        _doubles(),
        _ODD_DOUBLES,
        _streamed_strings(),
    )


@st.composite
def _attributed(draw: st.DrawFn, inner: st.SearchStrategy[Encoded]) -> Encoded:
    """Draw a value with attributes before it; inside another value they leave no trace."""
    value = draw(inner)
    if draw(st.integers(0, 9)):
        return value
    items = draw(st.lists(inner, max_size=4).map(lambda items: items[: len(items) // 2 * 2]))
    return Encoded(aggregate(b"|", items, 2) + value.wire, value.value, False)


@st.composite
def _aggregates(draw: st.DrawFn, inner: st.SearchStrategy[Encoded]) -> Encoded:
    items = draw(st.lists(_attributed(inner), max_size=6))
    values = [item.value for item in items]
    plain = all(item.resp2 for item in items)
    even = items[: len(items) // 2 * 2]
    form = draw(st.sampled_from(["*", "*", "%", "~", "*?", "%?", "~?"]))
    match form:
        case "*":
            return Encoded(aggregate(b"*", items), values, plain)
        case "%":
            return Encoded(aggregate(b"%", even, 2), as_map(even), False)
        case "~":
            return Encoded(aggregate(b"~", items), as_set(items), False)
        case "*?":
            return Encoded(streamed(b"*", items), values, False)
        case "%?":
            return Encoded(streamed(b"%", even), as_map(even), False)
        case _:
            return Encoded(streamed(b"~", items), as_set(items), False)


def values() -> st.SearchStrategy[Encoded]:
    """Replies of any type, some levels deep. Pushes are not among them: they are top-level."""
    return st.recursive(scalars(), _aggregates, max_leaves=12)


@st.composite
def pushes(draw: st.DrawFn) -> Encoded:
    """Pushes of any kind."""
    kind = draw(st.sampled_from([b"message", b"invalidate", b"caf\xc3\xa9", b"\xff"]))
    items = draw(st.lists(scalars(), max_size=3))
    first = draw(st.sampled_from([line(b"+", kind), blob(b"$", kind)]))
    wire = b">%d\r\n%b" % (len(items) + 1, first) + b"".join(item.wire for item in items)
    return Encoded(wire, Push(_text(kind), [item.value for item in items]), False)


@st.composite
def _repeated(draw: st.DrawFn) -> list[Encoded]:
    """Draw what pipelines and large replies look like: the same shape over and over."""
    shape = draw(st.sampled_from(["same", "bulks", "integers", "rows", "maps", "sizes"]))
    count = draw(st.sampled_from([2, 17, 63, 64, 65, 129, 300]))
    size = draw(st.integers(0, 40))
    match shape:
        case "same":
            items = [draw(values())] * count
        case "bulks":
            items = [_bulk((b"%040d" % (at % 7))[40 - size :]) for at in range(count)]
        case "sizes":
            items = [_bulk(b"z" * (at * 37 % (20 * size + 1))) for at in range(count)]
        case "integers":
            items = [_int(at**3 - 5) for at in range(count)]
        case "rows":
            items = [
                _array([_bulk(b"JOB%05d" % at), _bulk(b"v" * (at % 9)), _int(at % 5)])
                for at in range(count)
            ]
            if draw(st.booleans()):
                items = [_array([_bulk(b"1-%d" % at), item]) for at, item in enumerate(items)]
        case _:
            items = [_bulk(b"f%d" % at) for at in range(count // 2 * 2)]
    for _ in range(draw(st.integers(0, 2))):
        items[draw(st.integers(0, len(items) - 1))] = draw(values())
    outer = draw(st.sampled_from(["none", "*", "%", "*?", "~"]))
    even = items[: len(items) // 2 * 2]
    match outer:
        case "none":
            return items
        case "*":
            return [Encoded(aggregate(b"*", items), [item.value for item in items])]
        case "%":
            return [Encoded(aggregate(b"%", even, 2), as_map(even))]
        case "*?":
            return [Encoded(streamed(b"*", items), [item.value for item in items])]
        case _:
            return [Encoded(aggregate(b"~", items), as_set(items))]


def _bulk(text: bytes) -> Encoded:
    return Encoded(blob(b"$", text), text)


def _int(number: int) -> Encoded:
    return Encoded(line(b":", b"%d" % number), number)


def _array(items: list[Encoded]) -> Encoded:
    return Encoded(aggregate(b"*", items), [item.value for item in items])


@st.composite
def streams(draw: st.DrawFn, resp2: bool = False) -> Stream:
    """Streams of some replies, RESP3 unless `resp2`; attributes and pushes among them."""
    if resp2:
        single = values().filter(lambda item: item.resp2)
        items = draw(st.lists(single, min_size=1, max_size=6))
        return Stream(
            b"".join(item.wire for item in items),
            [item.value for item in items],
            [None] * len(items),
        )
    wire = b""
    found: list[Any] = []
    attributes: list[Any] = []
    groups = draw(
        st.lists(
            st.one_of(
                values().map(lambda item: [item]), pushes().map(lambda item: [item]), _repeated()
            ),
            min_size=1,
            max_size=4,
        )
    )
    for item in (item for group in groups for item in group):
        noted = None
        if len(found) < 8 and not draw(st.integers(0, 7)):
            rounds = draw(st.lists(st.lists(scalars(), max_size=4), min_size=1, max_size=2))
            pairs = [entry[: len(entry) // 2 * 2] for entry in rounds]
            wire += b"".join(aggregate(b"|", entry, 2) for entry in pairs)
            noted = as_map([entry for pair in pairs for entry in pair])
        wire += item.wire
        found.append(item.value)
        attributes.append(noted)
    return Stream(wire, found, attributes)


# Garbage

_TOKENS = st.sampled_from([
    *(b"%c" % mark for mark in b"+-:$*_#,(!=%~>|;.?"),
    *(b"%c%d\r\n" % (mark, count) for mark in b"$*%~>|;!=:(" for count in (0, 1, 2, 3, 17)),
    b"\r\n", b"\r", b"\n", b"+OK\r\n", b":1\r\n", b"$1\r\na\r\n", b"$-1\r\n", b"*-1\r\n", b"_\r\n",
    b"#t\r\n", b",1.5\r\n", b"$?\r\n", b"*?\r\n", b"%?\r\n", b"~?\r\n", b".\r\n", b";0\r\n", b"-1",
    b"0", b"1", b"9" * 25, b"1_000", b" 5", b"\xd9\xa5", b"$536870912\r\n", b"*16777216\r\n",
    b">2\r\n+message\r\n", b"$4\r\n\r\n\r\n\r\n", b"*1\r\n" * 40, b":7\r\n" * 70,
    b"$1\r\nb\r\n" * 70, b"*2\r\n$1\r\na\r\n:1\r\n" * 50, b"*5000\r\n",
])  # fmt: skip


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    wire = bytearray(draw(streams()).wire)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(wire)))
        span = draw(st.integers(0, 4))
        wire[at : at + span] = draw(st.one_of(st.just(b""), st.binary(max_size=3), _TOKENS))
    return bytes(wire)


def garbage() -> st.SearchStrategy[bytes]:
    """Bytes that are not, or not quite, what a server writes."""
    return st.one_of(
        st.binary(max_size=60),
        st.lists(_TOKENS, max_size=12).map(b"".join),
        _mutated(),
    )


# Runs: what the bursts take many at once, and what they must not take for more of it

Cell: TypeAlias = "str | tuple[str, list[Cell]]"
"""What stands at one place of a reply: a name of the table below, or a mark and what is inside."""

_CELLS: dict[str, Callable[[int], bytes]] = {
    "bulk": lambda at: blob(b"$", b"x"),
    "job": lambda at: blob(b"$", b"JOB%05d" % at),
    "sizes": lambda at: blob(b"$", b"v" * (at % 9)),
    "table's end": lambda at: blob(b"$", b"v" * (1022 + at % 4)),
    "CRLF": lambda at: blob(b"$", b"a\r\n:1"),
    "header": lambda at: blob(b"$", b"1\r\n$1"),
    "empty": lambda at: b"$0\r\n\r\n",
    "digit": lambda at: b":%d\r\n" % (at % 5),
    "number": lambda at: b":%d\r\n" % (at**3 - 5),
    "null": lambda at: b"$-1\r\n",
    "null array": lambda at: b"*-1\r\n",
    "null 3": lambda at: b"_\r\n",
    "true": lambda at: b"#t\r\n",
    "OK": lambda at: b"+OK\r\n",
    "text": lambda at: b"+%d\r\n" % at,
    "error": lambda at: b"-ERR %d\r\n" % (at % 3),
    "double": lambda at: b",1.5\r\n",
    "big": lambda at: b"(%d\r\n" % at,
    "no items": lambda at: b"*0\r\n",
    "verbatim": lambda at: b"=5\r\ntxt:a\r\n",
    "blob error": lambda at: b"!5\r\nERR x\r\n",
    "streamed": lambda at: b"$?\r\n;1\r\na\r\n;0\r\n",
    # What no server writes.
    "zeros": lambda at: b"$01\r\nx\r\n",
    "short": lambda at: b"$2\r\nx\r\n",
    "long": lambda at: b"$1\r\nxx\r\n",
    "negative": lambda at: b"$-2\r\n",
    "huge": lambda at: b"*16777217\r\n",
    "nothing": lambda at: b"\r\n",
    "LF": lambda at: b":1\n\r\n",
}
_GOOD_CELLS = list(_CELLS)[: list(_CELLS).index("zeros")]
_PLAIN_CELLS = ["bulk", "job", "sizes", "digit", "number", "null", "OK", "text", "error"]
_LINE_CELLS = ["digit", "number", "null", "null 3", "OK", "true", "text", "error", "no items"]
_BLOCKS = [16, 16, 16, 80, 34]  # rows that are read at once, and after which something else is
_COUNTS = [
    *(1, 2, 3, 4, 8, 11, 12, 13, 15, 16, 17, 20, 31, 32, 33, 34, 47, 48, 49, 63, 64, 65, 80),
    *(95, 96, 97, 127, 128, 129, 255, 256, 257, 300),
]


def _write(cell: Cell, at: int) -> bytes:
    """Write a reply; `at` varies its payload."""
    if isinstance(cell, str):
        return _CELLS[cell](at)
    mark, cells = cell
    inside = b"".join(_write(each, at + place) for place, each in enumerate(cells))
    if mark.endswith("?"):
        return b"%b\r\n%b.\r\n" % (mark.encode(), inside)
    return b"%b%d\r\n%b" % (mark.encode(), len(cells) // (1 + (mark in "%|")), inside)


def _cell(rng: random.Random, deep: int = 0) -> Cell:
    """Draw what stands at one place: mostly what a server writes much of."""
    drawn = rng.randrange(200)
    if drawn < 140:
        return rng.choice(_PLAIN_CELLS)
    if drawn < 160:
        return rng.choice(_GOOD_CELLS)
    if drawn < 161:
        return rng.choice(list(_CELLS))
    return _row(rng, deep + 1) if deep < 3 else "bulk"


def _row(rng: random.Random, deep: int = 0) -> Cell:
    drawn = rng.randrange(100)
    mark = "*" if drawn < 75 else rng.choice(["%", "~", "|", "*?", "%?", "~?", *[">"] * (not deep)])
    count = 17 if drawn < 3 else rng.choice([1, 2, 2, 3, 3, 3, 3, 4, 5, 6])
    return mark, [_cell(rng, deep + 1) for _ in range(count + (count % 2 and mark[0] in "%|"))]


def _other(rng: random.Random, cell: Cell) -> Cell:
    """Answer a reply that differs from this one in one place, be it type, arity or depth."""
    if isinstance(cell, str) or not cell[1]:
        return rng.choice(_LINE_CELLS) if rng.randrange(2) else _cell(rng, 1)
    mark, cells = cell[0], list(cell[1])
    at = rng.randrange(len(cells))
    match rng.randrange(8):
        case 0:
            del cells[at]
        case 1:
            cells.insert(at, _cell(rng, 1))
        case 2:
            mark = rng.choice("*%~")
        case 3:
            cells[at] = ("*", cells[at:])  # which swallows what follows the row
        case 4:
            cells[at] = _cell(rng, 1)
        case _:
            cells[at] = _other(rng, cells[at])
    return mark, cells


def write_runs(rng: random.Random) -> bytes:
    """Write runs of equal replies, each but little other than the one before, and spoil them.

    A run is as long as a burst needs, or one off. What follows it is mostly a row that differs in
    one place, together with replies that make it as many tokens, so that columns go on.
    """
    cells = [_row(rng) if rng.randrange(5) else _cell(rng)]
    written: list[bytes] = []
    for _ in range(rng.choice([1, 2, 2, 2, 3, 3])):
        count = rng.choice(_COUNTS if rng.randrange(3) == 0 else _BLOCKS)
        run = [b"".join(_write(cell, at) for cell in cells) for at in range(count)]
        while rng.randrange(4) == 3:
            run[rng.randrange(count)] = _write(_other(rng, cells[0]), count)
        wire = b"".join(run)
        around = rng.randrange(-15, 5)
        if 0 <= around < 4:
            items = count * len(cells)
            if rng.randrange(4) == 3:
                items += rng.choice([-1, 1])  # less or more than follow
            wire = b"%c%d\r\n%b" % (b"*%~>"[around], items // (1 + (around == 1)), wire)
        elif around == 4:
            wire = rng.choice([b"*?", b"~?", b"%?"]) + b"\r\n" + wire + b".\r\n"
        written.append(wire)
        stride = run[0].count(b"\r\n")
        cells = [_other(rng, cells[0]) if rng.randrange(6) else _cell(rng)]
        short = stride - _write(cells[0], 0).count(b"\r\n")
        if 0 < short < 10 and rng.randrange(8):
            cells += [rng.choice(_LINE_CELLS) for _ in range(short)]
        elif rng.randrange(4) == 3:
            cells.append(_cell(rng))
    wire = b"".join(written)
    while rng.randrange(3) == 2:
        wire = _spoil(rng, wire)
    return wire


def _spoil(rng: random.Random, wire: bytes) -> bytes:
    """Change one byte of a header or a payload, or cut the end off."""
    if rng.randrange(6) == 0:
        return wire[: rng.randrange(len(wire) + 1)]
    start = rng.randrange(len(wire) + 1)
    if rng.randrange(4):
        start = wire.find(b"\r\n", start) + 2  # where a token starts, or the payload of one
    at = start + rng.choice([-2, -1, 0, 0, 1, 1, 1, 2])
    at = min(max(at, 0), len(wire))
    byte = rng.choice([b"", *(b"%c" % each for each in b"$*:_x0129-\r\n")])
    return wire[:at] + byte + wire[at + rng.randrange(2) :]


def runs() -> st.SearchStrategy[bytes]:
    """Draw what `write_runs` writes: the smallest number it draws is the simplest choice."""
    return st.randoms(use_true_random=False).map(write_runs)


# Cuts

Cut: TypeAlias = Callable[[bytes], list[bytes]]


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    """Ways to cut a stream into what arrives together."""
    way = draw(st.sampled_from(["size", "places"]))
    if way == "size":
        size = draw(st.sampled_from([1, 2, 3, 7, 64, 1460, 65536]))
        return lambda wire: [wire[at : at + size] for at in range(0, len(wire), size)]
    fractions = sorted(draw(st.lists(st.floats(0, 1), max_size=8)))

    def cut(wire: bytes) -> list[bytes]:
        places = [0, *(int(fraction * len(wire)) for fraction in fractions), len(wire)]
        return [wire[start:stop] for start, stop in pairwise(places)]

    return cut


# Running a decoder


def plain(**limits: int) -> Decoder:
    """Answer a decoder that takes every token by its plain path."""
    decoder = Decoder(**limits)
    decoder._quick = decoder._idle = False
    return decoder


BURST_LIMITS = {"max_bulk": 4096, "max_line": 32 * 1024, "max_elements": 1024}
"""The lowest limits with which a decoder takes bursts."""


class AtOnce:
    """A decoder that is fed by `decode`, as the router does it; for `replies`."""

    def __init__(self, **limits: int) -> None:
        self._decoder = Decoder(**limits)
        self._ready: list[Any] = []
        self._error: ProtocolError | None = None

    def feed(self, data: bytes) -> None:
        try:
            self._ready = self._decoder.decode(data)
        except ProtocolError as error:
            self._error = error

    def replies(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        ready, self._ready = self._ready, []
        return ready or self._decoder.replies()

    def next(self) -> Any:
        return self._decoder.next()

    @property
    def attributes(self) -> Any:
        return self._decoder.attributes


_WAYS: tuple[Callable[..., DecoderLike], ...] = (Decoder, AtOnce, plain)


def decode(factory: Factory, chunks: list[bytes], *, singly: bool = True) -> Outcome:
    """Feed the chunks and take what is complete after each: with `next`, or with `replies`."""
    decoder = factory()
    outcome = Outcome()
    try:
        for chunk in chunks:
            decoder.feed(chunk)
            if singly:
                while (reply := decoder.next()) is not NEED_DATA:
                    outcome.replies.append(typed(reply))
                    outcome.attributes.append(typed(decoder.attributes))
            else:
                while replies := decoder.replies():
                    outcome.replies += map(typed, replies)
                    outcome.attributes += [None] * (len(replies) - 1)
                    outcome.attributes.append(typed(decoder.attributes))
    except ProtocolError as error:
        outcome.error, outcome.offset = str(error), error.offset
    return outcome


# Properties


def check_round_trip(factory: Factory, stream: Stream, cut: Cut) -> None:
    """What was encoded is decoded, however it was cut, and no byte is left over."""
    expected = [typed(value) for value in stream.values]
    for singly in (True, False):
        outcome = decode(factory, cut(stream.wire), singly=singly)
        assert outcome.error is None
        assert outcome.replies == expected
    outcome = decode(factory, cut(stream.wire))
    assert outcome.attributes == [typed(noted) for noted in stream.attributes]


def check_cuts_agree(factory: Factory, wire: bytes, cut: Cut) -> None:
    """Any bytes give replies, a wish for more or a ProtocolError, the same whatever the cuts."""
    whole = decode(factory, [wire])
    assert decode(factory, cut(wire)) == whole
    together = decode(factory, cut(wire), singly=False)
    assert (together.replies, together.error) == (whole.replies, whole.error)
    assert whole.offset is None or 0 <= whole.offset <= len(wire)


def check_same(factory: Factory, other: Factory, wire: bytes, cut: Cut) -> None:
    """Two decoders make the same of any bytes."""
    for chunks in ([wire], cut(wire)):
        for singly in (True, False):
            assert decode(factory, chunks, singly=singly) == decode(other, chunks, singly=singly)


def check_prefix(factory: Factory, stream: Stream, at: float) -> None:
    """The start of a valid stream gives the replies that it holds whole, and no error."""
    wire = stream.wire[: int(at * len(stream.wire))]
    outcome = decode(factory, [wire])
    assert outcome.error is None
    assert outcome.replies == [typed(value) for value in stream.values[: len(outcome.replies)]]


def check_ways_agree(wire: bytes, cut: Cut, **limits: int) -> None:
    """Any bytes give the same replies, then the same error, whatever way they are asked for.

    The measure is the plain path byte by byte, which knows nothing of what follows a token.
    """
    measure = decode(partial(plain, **limits), [wire[at : at + 1] for at in range(len(wire))])
    expected = measure.replies, measure.error, measure.offset
    for chunks in ([wire], cut(wire)):
        assert decode(partial(Decoder, **limits), chunks) == measure
        for way in _WAYS:
            found = decode(partial(way, **limits), chunks, singly=False)
            assert (found.replies, found.error, found.offset) == expected

"""Branded ids: a namespace of three letters and a 63-bit snowflake, in 14 bytes of ASCII.

    bits 62..22   ts     41 bits   ms since 2024-01-01T00:00:00Z
    bits 21..12   node   10 bits   who minted it
    bits 11..0    seq    12 bits   which one in that ms

The snowflake is written in base62, most significant digit first, padded to eleven digits. The
alphabet is in ascending byte order and the width is fixed, so within one namespace the order of
the ids as bytes is the order in which they were minted: a sorted set whose members all score 0
needs no second index.

**Unique without asking anybody.** Two processes that share a node, and mint in the same ms, would
mint the same ids if both counted from 0. A `Mint` that is given no node draws two things: its node
(1 of 1024) and the number that its count starts from in each ms (1 of 3072). Two processes that
mint now and then clash only where both draws agree, once in three million pairs, and then only for
ids minted in the same ms. Processes that mint `n` ids each within one ms overlap with a chance of
about 2n / 3072 / 1024 a pair. What remains is for the enqueue verb to settle: it sees that a
fresh id exists already, and mints again.
"""

from __future__ import annotations

import os
import re
import time
from _thread import allocate_lock  # the lock alone: nothing here starts a thread or waits for one
from collections.abc import Callable
from typing import Final, NamedTuple

from .errors import InvalidId, WrongKind

EPOCH_MS: Final = 1_704_067_200_000  # 2024-01-01T00:00:00Z
MAX_SNOWFLAKE: Final = 2**63 - 1
JOB: Final = "JOB"
EVENT: Final = "EVT"

_TS_SHIFT: Final = 22
_NODE_SHIFT: Final = 12
_NODES: Final = 1 << 10
_SEQS: Final = 1 << 12
_TAIL: Final = (1 << _TS_SHIFT) - 1
_LAST: Final = (MAX_SNOWFLAKE >> _TS_SHIFT) << _NODE_SHIFT | (_SEQS - 1)

# A quarter of each ms stays above the highest start: 1024 ids a ms before the next ms is borrowed,
# which is faster than this code can mint.
_STARTS: Final = _SEQS * 3 // 4

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS: Final = {digit: value for value, digit in enumerate(_ALPHABET)}
_PAIRS: Final = [high + low for high in _ALPHABET for low in _ALPHABET]
_BASE2: Final = 62**2
_BASE4: Final = 62**4
_BASE8: Final = 62**8
_HIGHEST: Final = "AzL8n0Y58m7"  # MAX_SNOWFLAKE
_FIRST_JOB: Final = f"{JOB}{'0' * len(_HIGHEST)}".encode()
_LAST_JOB: Final = f"{JOB}{_HIGHEST}".encode()

_namespace = re.compile(r"[A-Z]{3}").fullmatch
_branded = re.compile(r"[A-Z]{3}[0-9A-Za-z]{11}").fullmatch


class Id(NamedTuple):
    """A branded id, taken apart."""

    namespace: str
    snowflake: int

    @property
    def unix_ms(self) -> int:
        """When it was minted, by the clock of whoever minted it."""
        return (self.snowflake >> _TS_SHIFT) + EPOCH_MS

    @property
    def node(self) -> int:
        """Who minted it, 0..1023."""
        return (self.snowflake >> _NODE_SHIFT) & (_NODES - 1)

    @property
    def seq(self) -> int:
        """Its number within its ms, 0..4095."""
        return self.snowflake & (_SEQS - 1)

    @property
    def tail(self) -> int:
        """Node and sequence in one number, the low 22 bits; a stream entry's second part."""
        return self.snowflake & _TAIL

    def __str__(self) -> str:
        return encode(self.namespace, self.snowflake)


def valid(id: str | bytes) -> bool:
    """Answer whether `id` is a branded id of any namespace."""
    return _text(id) is not None


def parse(id: str | bytes) -> Id:
    """Take a branded id apart.

    Raises:
        InvalidId: It is not one.
    """
    text = check_id(id)
    snowflake = 0
    for digit in text[3:]:
        snowflake = snowflake * 62 + _DIGITS[digit]
    return Id(text[:3], snowflake)


def check_id(id: str | bytes) -> str:
    """Answer a branded id of any namespace as str.

    Raises:
        InvalidId: It is not one.
    """
    text = _text(id)
    if text is None:
        raise InvalidId(_shown(id))
    return text


def check_job_id(id: str | bytes) -> str:
    """Answer a job's id as str.

    Raises:
        InvalidId: It is no branded id.
        WrongKind: It is one of another namespace.
    """
    text = _text(id)
    if text is None:
        raise InvalidId(_shown(id))
    if not text.startswith(JOB):
        raise WrongKind(text)
    return text


def received_job_id(id: bytes) -> str | None:
    """Answer a job's id that a server sent as str, or None if it is none.

    It says what `check_job_id` says, in a third of the time, since every claim asks: what lies
    between the first and the last job's id begins with their namespace, and `isalnum` of bytes is
    ASCII's.
    """
    if len(id) == len(_LAST_JOB) and _FIRST_JOB <= id <= _LAST_JOB and id.isalnum():
        return id.decode("ascii")
    return None


def encode(namespace: str, snowflake: int) -> str:
    """Write a branded id.

    Raises:
        ValueError: The namespace is not three capital letters, or the snowflake does not fit.
        TypeError: The one is no str, or the other no int.
    """
    _check_namespace(namespace)
    if not isinstance(snowflake, int):
        raise TypeError(f"a snowflake is an int, not {type(snowflake).__name__}")
    if not 0 <= snowflake <= MAX_SNOWFLAKE:
        raise ValueError(f"a snowflake is 0 to 2^63-1, not {snowflake}")
    return namespace + _base62(snowflake)


def min_for(unix_ms: int) -> int:
    """Answer the smallest snowflake that can be minted at or after an instant.

    Raises:
        ValueError: The instant is before 2024 or after the last ms that an id can carry.
        TypeError: It is no int.
    """
    if not isinstance(unix_ms, int):
        raise TypeError(f"unix_ms is an int, not {type(unix_ms).__name__}")
    snowflake = (unix_ms - EPOCH_MS) << _TS_SHIFT
    if not 0 <= snowflake <= MAX_SNOWFLAKE:
        raise ValueError(f"an id carries an instant from 2024 to September 2093, not {unix_ms} ms")
    return snowflake


class Mint:
    """A source of ids, each greater than all before it, from any number of threads.

    Args:
        node: Who mints, 0..1023, where somebody hands nodes out; then the count starts from 0 in
            each ms. None draws a node and a start.
        clock: Answers the time in ms since 1970. None is the system's clock.
        namespace: What the ids stand for.

    A clock that goes back, and more ids than a ms holds, both make the mint count on from its last
    id, ahead of the clock. Mints that name neither a node nor a clock share one count, so that no
    two of them in one process can clash. A forked child draws a node and a start of its own, also
    where its parent was given a node: the two would mint the same ids otherwise.
    """

    __slots__ = ("_cell", "_namespace")

    def __init__(
        self,
        node: int | None = None,
        clock: Callable[[], int] | None = None,
        namespace: str = JOB,
    ) -> None:
        _check_namespace(namespace)
        if node is not None and type(node) is not int:
            raise TypeError(f"a node is an int, not {type(node).__name__}")
        if node is not None and not 0 <= node < _NODES:
            told = node if abs(node) < MAX_SNOWFLAKE else "a number of so many digits"
            raise ValueError(f"a node is 0 to {_NODES - 1}, not {told}")
        if clock is not None and not callable(clock):
            raise TypeError(f"a clock is a callable, not {type(clock).__name__}")
        self._namespace = namespace
        self._cell = _SHARED if node is None and clock is None else _Cell(node, clock or _wall_ms)

    @property
    def node(self) -> int:
        """The node that this process's ids carry."""
        return self._cell.identity()[0]

    def mint(self) -> str:
        """Mint the next id.

        Raises:
            ValueError: The clock says a date after 2093, which no id can carry.
        """
        return self._namespace + _base62(self._cell.next())


class _Cell:
    """The last `ts << 12 | seq` that was given out, and whose it is.

    Invariant: `_last` only grows, under `_lock`.
    """

    __slots__ = ("_clock", "_forks", "_last", "_lock", "_node", "_start")

    def __init__(self, node: int | None, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last = -1
        self._lock = allocate_lock()
        self._forks = _forks
        self._node, self._start = _draw() if node is None else (node, 0)

    def next(self) -> int:
        if self._forks != _forks:
            self._leave_parent()
        with self._lock:
            last = self._last + 1
            now = ((self._clock() - EPOCH_MS) << _NODE_SHIFT) + self._start
            if now > last:
                last = now
            if last > _LAST:
                raise ValueError("the clock is past September 2093, the last date an id can carry")
            self._last = last
            node = self._node
        return (last >> _NODE_SHIFT) << _TS_SHIFT | node << _NODE_SHIFT | last & (_SEQS - 1)

    def identity(self) -> tuple[int, int]:
        if self._forks != _forks:
            self._leave_parent()
        return self._node, self._start

    def _leave_parent(self) -> None:
        with _leaving:
            if self._forks == _forks:
                return
            # The parent's lock may have been held by a thread that does not exist here.
            self._lock = allocate_lock()
            self._node, self._start = _draw()
            self._forks = _forks  # last: who sees it may use the rest


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _draw() -> tuple[int, int]:
    """Draw a node and the number that a ms starts from."""
    drawn = int.from_bytes(os.urandom(8), "big")
    return drawn % _NODES, drawn // _NODES % _STARTS


def _base62(snowflake: int) -> str:
    """Eleven digits, two at a time."""
    high, low8 = divmod(snowflake, _BASE8)
    high4, low4 = divmod(low8, _BASE4)
    a, b = divmod(high, _BASE2)
    c, d = divmod(high4, _BASE2)
    e, f = divmod(low4, _BASE2)
    return _ALPHABET[a] + _PAIRS[b] + _PAIRS[c] + _PAIRS[d] + _PAIRS[e] + _PAIRS[f]


def _check_namespace(namespace: str) -> None:
    if not isinstance(namespace, str):
        raise TypeError(f"a namespace is a str, not {type(namespace).__name__}")
    if not _namespace(namespace):
        raise ValueError(f"a namespace is three capital letters, not {namespace[:20]!a}")


def _text(id: object) -> str | None:
    if isinstance(id, bytes):
        # Every byte is some character of latin-1, and none above 0x7f is in the alphabet.
        id = id.decode("latin-1")
    if isinstance(id, str) and _branded(id) and id[3:] <= _HIGHEST:
        return id
    return None


def _shown(id: object) -> str:
    if isinstance(id, str):
        return id
    return id.decode("latin-1") if isinstance(id, bytes) else f"<{type(id).__name__}>"


_forks = 0
_leaving = allocate_lock()


def _forked() -> None:
    global _forks, _leaving
    _forks += 1
    _leaving = allocate_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

_SHARED: Final = _Cell(None, _wall_ms)

__all__ = [
    "EPOCH_MS",
    "EVENT",
    "JOB",
    "MAX_SNOWFLAKE",
    "Id",
    "Mint",
    "check_id",
    "check_job_id",
    "encode",
    "min_for",
    "parse",
    "received_job_id",
    "valid",
]

"""Every byte, recorded: what crossed a connector's sockets, when, and which way.

    tap = Tap()
    with connect(url, tap=tap) as connector:
        connector.command("PING")
    for record in tap:
        print(record.sent, record.data)

Secrets are masked before a record is made: passwords in commands and in replies, and the arguments
that a server quotes when it does not know a command. The mask has their length, so that sizes and
offsets stay those of the wire.

A tap that fails, on a full disk, say, stops recording, and the connector does not notice. What
cannot be masked is not recorded.
"""

from __future__ import annotations

import copy
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from .chunk import Record, check_number
from .dialogue import Dialogue, Exchange

if TYPE_CHECKING:
    from types import TracebackType

    from .recording import Writer


class _Connection:
    """What a tap knows of a connection."""

    __slots__ = ("busy", "dialogue", "file_number", "lock", "spoilt")

    def __init__(self, dialogue: Dialogue) -> None:
        self.lock = threading.RLock()  # a signal handler may come with bytes of its own
        self.dialogue = dialogue
        self.file_number: int | None = None
        self.busy = False  # stays so if an interrupt broke off what was at work
        self.spoilt = False  # bytes were missed, so nobody knows any more what is a secret


class Tap:
    """The last reads and writes of the connectors it was given to, or all of them in a file.

    What is kept in memory is whole: if it gets too much, the oldest records go, and one above
    `max_bytes` is not kept. Beside it, at most 1 MiB is held of each command and reply that is not
    whole, for each connection that is open.

    Any number of threads may share a tap. A forked child goes on with a copy, and in the same file.

    Args:
        capacity: Records kept in memory; 0, with a file, keeps none.
        max_bytes: Bytes of data kept in memory.
        file: A path, or a Writer, to append records to as they come. The tap closes what it opened.
        payloads: False masks payloads, too: what is stored under keys, and what scripts are passed.

    Attributes:
        error: What ended the recording, or None.

    Raises:
        TypeError, ValueError: An argument is none that it takes.
        RecordingError: The file is no recording, or somebody else writes to it.
        OSError: It cannot be opened.
    """

    def __init__(
        self,
        capacity: int = 65_536,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        file: str | os.PathLike[str] | Writer | None = None,
        payloads: bool = True,
    ) -> None:
        for name, number in (("capacity", capacity), ("max_bytes", max_bytes)):
            check_number(name, number, 0 if name == "capacity" and file is not None else 1)
        self.error: Exception | None = None
        self._on = True
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._conceal = None if payloads else _conceal()
        self._lock = threading.RLock()  # of the five below; last to be taken
        # Plain tuples, which the garbage collector stops looking at.
        self._records: deque[tuple[int, int, bool, bytes]] = deque()
        self._bytes = 0
        self._bases: dict[int, Dialogue] = {}  # where conversations stood before the oldest record
        self._held: dict[int, int] = {}  # records of each connection
        self._gone: set[int] = set()  # connections that are closed, but have records
        self._connections: dict[int, _Connection] = {}
        self._numbers = itertools.count(1)
        self._last = 0  # number that was given out
        self._owned = False
        self._writer: Writer | None = None
        if isinstance(file, (str, os.PathLike)):
            from .recording import Writer

            self._writer = Writer(file)
            self._owned = True
        elif file is None or hasattr(file, "received"):
            self._writer = file
        else:
            raise TypeError(f"file is a path or a Writer, not {type(file).__name__}")
        _taps.add(self)

    # What connectors call.

    def connection(self, address: str = "", role: str = "client") -> int:
        """Answer a number for a new connection.

        Args:
            address: Where it leads, for a file.
            role: Who speaks on it: `client`, or what a proxy calls it.
        """
        number = self._last = next(self._numbers)
        if self._on:
            try:
                self._connection(number, address, role)
            except Exception as error:
                self._fail(error)
        return number

    def write(self, connection: int, data: bytes) -> None:
        """Record bytes that are about to be written."""
        self._take(connection, True, data)

    def read(self, connection: int, data: bytes) -> None:
        """Record bytes that were read."""
        self._take(connection, False, data)

    def closed(self, connection: int, reason: str = "") -> None:
        """Note that a connection ended; what is held for it is freed as its records go."""
        known = self._connections.pop(connection, None)
        if known is None or not self._on:
            return
        try:
            with known.lock:
                if self._writer is not None and known.file_number is not None:
                    self._writer.closed(known.file_number, reason)
            with self._lock:
                if self._held.get(connection):
                    self._gone.add(connection)
                else:
                    self._bases.pop(connection, None)
        except Exception as error:
            self._fail(error)

    def _take(self, number: int, sent: bool, data: bytes) -> None:
        if not self._on:
            return
        try:
            known = self._connections.get(number)
            if known is None:
                if number <= self._last:  # closed: what stood before it is forgotten
                    return
                known = self._connection(number)
            with known.lock:
                if known.busy or known.spoilt:
                    known.spoilt = True
                    return
                known.busy = True
                if type(data) is not bytes:
                    data = bytes(data)
                time_ns = monotonic_ns()
                if sent:
                    data, _ = known.dialogue.sent(data, time_ns)
                else:
                    data, _ = known.dialogue.received(data, time_ns)
                if self._writer is not None and known.file_number is not None:
                    append = self._writer.sent if sent else self._writer.received
                    append(known.file_number, data, time_ns)
                if self._capacity:
                    self._keep(time_ns, number, sent, data)
                known.busy = False
        except Exception as error:
            self._fail(error)

    def _connection(self, number: int, address: str = "", role: str = "client") -> _Connection:
        known = _Connection(Dialogue(number, conceal=self._conceal))
        known = self._connections.setdefault(number, known)
        with known.lock:
            if self._writer is not None and known.file_number is None:
                known.file_number = self._writer.connection(address, role)
        return known

    def _fail(self, error: Exception) -> None:
        """Stop recording, and say so once, where Python tells of errors nobody can catch."""
        self._on = False
        if self.error is None:
            self.error = error
            _Unraisable(error)

    def _keep(self, time_ns: int, number: int, sent: bool, data: bytes) -> None:
        with self._lock:
            records = self._records
            records.append((time_ns, number, sent, data))
            self._bytes += len(data)
            self._held[number] = self._held.get(number, 0) + 1
            while len(records) > self._capacity or self._bytes > self._max_bytes:
                self._drop()

    def _drop(self) -> None:
        """Drop the oldest record. Its connection's base takes it, so that what is left is paired
        with what it answers."""
        time_ns, number, sent, data = self._records.popleft()
        self._bytes -= len(data)
        base = self._bases.get(number)
        if base is None:
            base = self._bases[number] = Dialogue(number)
        if sent:
            base.sent(data, time_ns)
        else:
            base.received(data, time_ns)
        self._held[number] -= 1
        if not self._held[number]:
            del self._held[number]
            if number in self._gone:
                self._gone.discard(number)
                del self._bases[number]

    # What callers call.

    def clear(self) -> None:
        """Forget what was recorded; a file keeps it."""
        with self._lock:
            while self._records:
                self._drop()

    def close(self) -> None:
        """Record no more, and close the file if the tap opened it. What is in memory stays."""
        self._on = False
        if self._owned and self._writer is not None:
            self._writer.close()

    def exchanges(self) -> Iterator[Exchange]:
        """Pair the commands with the replies that are in memory.

        A reply whose command's record is gone is paired all the same; what is in flight is `lost`.
        """
        with self._lock:
            records = list(self._records)
            dialogues = copy.deepcopy(self._bases)
        time_ns = 0
        for time_ns, number, sent, data in records:
            dialogue = dialogues.get(number)
            if dialogue is None:
                dialogue = dialogues[number] = Dialogue(number)
            yield from (dialogue.sent if sent else dialogue.received)(data, time_ns)[1]
        for dialogue in dialogues.values():
            yield from dialogue.end(time_ns)

    def __iter__(self) -> Iterator[Record]:
        with self._lock:
            return map(Record._make, list(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def __enter__(self) -> Tap:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _forked(self) -> None:
        """Go on in a child: no lock is held by a thread that is not there, and connections have
        numbers of their own in the file."""
        self._lock = threading.RLock()
        for known in self._connections.values():
            known.lock = threading.RLock()
            known.file_number = None


def _conceal() -> Callable[[Exchange], Iterable[tuple[int, int]]]:
    from functools import partial

    from .lens import lenses
    from .meaning import payload_extents

    return partial(payload_extents, lenses=lenses())


class _Unraisable:
    """Says an error through `sys.unraisablehook`, which takes none but the interpreter's own."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise RuntimeError("a tap stopped recording; see its `error`") from self._error


_taps: Final[weakref.WeakSet[Tap]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for tap in list(_taps):
        tap._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["Record", "Tap"]

"""A recording: what a tap saw, in a file that is only ever appended to.

    for item in read("traffic.tap"):
        ...                                   # Session, Opened, Closed, Record, Gap
    for exchange in exchanges("traffic.tap"):
        ...

The format, version 1. All integers are unsigned and little-endian; times are nanoseconds of the
monotonic clock of the machine; texts are UTF-8, behind their length in 2 bytes.

    file      header record*
    header    24 bytes
       0  12  89 "RESPTAP" 0D 0A 1A 0A
      12   2  version, 1
      14   2  0
      16   4  mark: drawn at random for each file
      20   4  CRC-32 of the 20 bytes before it
    record    13 bytes, and a body
       0   4  mark, as in the header
       4   4  CRC-32 of the mark and of all that follows this field, body included
       8   4  length of the body, at most 1,048,832
      12   1  kind; a reader skips those that it does not know
      13      body

    kind         body
    1 session    8 wall clock, ns since 1970; 8 monotonic clock at that moment; 4 process id;
                 text version of the writer; text note
    2 opened     8 connection; 8 time; text role (`client`, or what the writer says); text address
    3 closed     8 connection; 8 time; text reason
    4 sent       8 connection; 8 time; 8 offset of the first byte in its direction; bytes
    5 received   8 connection; 8 time; 8 offset of the first byte in its direction; bytes

CRC-32 is that of zlib. A connection's number is unique in its session: the id of the process that
opened it, times 2^32, plus a counter. A chunk of more than 1 MiB becomes several records.

Each record is one write to a file opened for appending, so a process that is killed loses at most
the record that it was writing, and a forked child may go on in the same file. What is damaged is
left out: a reader goes on at the next mark whose CRC fits. Offsets show what is missing. The file
is locked (`flock`, where there is one) while somebody writes to it; the next writer cuts off a torn
tail.

Secrets are masked before they come here, by the Tap; payloads are not, unless it is told to. A file
that is created can be read by its owner only.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TypeAlias

from ..errors import RespError
from .chunk import Record
from .dialogue import Dialogue, Exchange

if TYPE_CHECKING:
    from types import TracebackType

try:
    import fcntl
except ImportError:  # a system without flock
    fcntl = None  # type: ignore[assignment]

VERSION: Final = 1
PIECE: Final = 1 << 20
"""Bytes of a chunk that go into one record at most, so that a reader knows how much to hold."""

_MAGIC: Final = b"\x89RESPTAP\r\n\x1a\n"
_HEADER: Final = struct.Struct("<12sHHII")
_HEAD: Final = struct.Struct("<4sIIB")  # mark, CRC, length, kind
_REST: Final = struct.Struct("<IB")  # of the head, what the CRC is of
_SESSION: Final = struct.Struct("<QQI")
_EVENT: Final = struct.Struct("<QQ")
_CHUNK: Final = struct.Struct("<QQQ")
_LONGEST: Final = PIECE + 256
_BLOCK: Final = 1 << 20

SESSION, OPENED, CLOSED, SENT, RECEIVED = range(1, 6)


class RecordingError(RespError):
    """A file that is no recording, that is in use, or that cannot be one."""


class Session(NamedTuple):
    """A writer began.

    Attributes:
        wall_ns: Nanoseconds since 1970.
        time_ns: The monotonic clock at that moment.
        pid: Its process.
        version: Its version.
        note: What it was told to note.
    """

    wall_ns: int
    time_ns: int
    pid: int
    version: str
    note: str


class Opened(NamedTuple):
    """A connection began. Its number is dense, from 1, in order of appearance in the file."""

    time_ns: int
    connection: int
    address: str
    role: str


class Closed(NamedTuple):
    """A connection ended."""

    time_ns: int
    connection: int
    reason: str


class Gap(NamedTuple):
    """Bytes of a connection are missing, for records of it are damaged.

    Attributes:
        time_ns: Of the chunk behind it.
        sent: True for bytes written.
        at: Offset of the first byte that is missing.
        size: How many are.
    """

    time_ns: int
    connection: int
    sent: bool
    at: int
    size: int


Item: TypeAlias = Session | Opened | Closed | Record | Gap


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")[:200]
    return len(data).to_bytes(2, "little") + data


class Writer:
    """Appends to a recording; creates it if it is not there.

    Connections may be written to by several threads at once, a single connection by one at a time.
    After a fork, both processes may go on, each with connections that it opens itself.

    Args:
        path: The file.
        note: Kept with the session: what is recorded, and why.

    Raises:
        RecordingError: It is something else, or another writer has it.
        OSError: It cannot be opened, or written to.
    """

    def __init__(self, path: str | os.PathLike[str], *, note: str = "") -> None:
        self.path = os.fspath(path)
        self._numbers = itertools.count(1)
        self._offsets: dict[int, list[int]] = {}  # of each open connection: received, sent
        self._fd = -1
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise RecordingError(f"{self.path!r} is no regular file")
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self._fd = os.open(self.path, flags, 0o600)
        try:
            self._lock()
            self._mark = self._begin()
            session = _SESSION.pack(time.time_ns(), time.monotonic_ns(), os.getpid())
            self._append(SESSION, session + _text(_version()) + _text(note))
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordingError(
                f"{self.path!r} is being written to by somebody else; name another file"
            ) from None
        except OSError:  # a file system without locks
            return

    def _begin(self) -> bytes:
        """Write the header, or check it and cut off a torn tail. Answer the mark."""
        with open(self._fd, "rb", closefd=False) as file:
            start = file.read(_HEADER.size)
            if len(start) == _HEADER.size:
                reader = _Reader(file, self.path)
                for _ in reader.raw():
                    pass
                if reader.torn:
                    os.ftruncate(self._fd, reader.good)
                return reader.mark
        if not _MAGIC.startswith(start[: len(_MAGIC)]):
            raise RecordingError(f"{self.path!r} is no recording; it is left as it is")
        os.ftruncate(self._fd, 0)  # killed within the header: nothing was recorded
        mark = os.urandom(4)
        header = _HEADER.pack(_MAGIC, VERSION, 0, int.from_bytes(mark, "little"), 0)[:-4]
        self._write(header + zlib.crc32(header).to_bytes(4, "little"))
        return mark

    def _append(self, kind: int, body: bytes, data: bytes = b"") -> None:
        mark = self._mark
        rest = _REST.pack(len(body) + len(data), kind) + body
        check = zlib.crc32(data, zlib.crc32(rest, zlib.crc32(mark)))
        self._write(b"%b%b%b%b" % (mark, check.to_bytes(4, "little"), rest, data))

    def _write(self, record: bytes) -> None:
        written = os.write(self._fd, record)
        while written < len(record):  # the disk is full, and the next try says so
            written += os.write(self._fd, record[written:])

    def connection(self, address: str = "", role: str = "client") -> int:
        """Note that a connection began. Answer its number, for the calls below."""
        number = os.getpid() << 32 | next(self._numbers)
        self._offsets[number] = [0, 0]
        event = _EVENT.pack(number, time.monotonic_ns())
        self._append(OPENED, event + _text(role) + _text(address))
        return number

    def sent(self, connection: int, data: bytes, time_ns: int | None = None) -> None:
        """Append bytes that were written.

        Args:
            time_ns: Of the monotonic clock; None is now.

        Raises:
            KeyError: This process has opened no such connection.
            OSError: It is not written, or not as a whole: there is a gap now.
        """
        self._chunk(SENT, connection, data, time_ns)

    def received(self, connection: int, data: bytes, time_ns: int | None = None) -> None:
        """Append bytes that were read; else as `sent`."""
        self._chunk(RECEIVED, connection, data, time_ns)

    def _chunk(self, kind: int, connection: int, data: bytes, time_ns: int | None) -> None:
        if connection >> 32 != os.getpid():
            raise KeyError(connection)
        if time_ns is None:
            time_ns = time.monotonic_ns()
        offsets = self._offsets[connection]
        sent = kind == SENT
        at = offsets[sent]
        offsets[sent] += len(data)  # first: what is not written is a gap, and never an overlap
        if len(data) <= PIECE:
            self._append(kind, _CHUNK.pack(connection, time_ns, at), data)
            return
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self._append(kind, _CHUNK.pack(connection, time_ns, at + start), piece)

    def closed(self, connection: int, reason: str = "", time_ns: int | None = None) -> None:
        """Note that a connection ended; nothing happens if that is noted already."""
        known = self._offsets.pop(connection, None) is not None
        if known and connection >> 32 == os.getpid():
            now = time.monotonic_ns() if time_ns is None else time_ns
            self._append(CLOSED, _EVENT.pack(connection, now) + _text(reason))

    def close(self) -> None:
        """Close the file. Connections that are open end here, for a reader."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("echomq")
    except PackageNotFoundError:
        return ""


class _Reader:
    """Finds the records of a file, after its header.

    Attributes:
        mark: What records begin with.
        good: Offset behind the last record that is whole.
        damaged: Bytes before `good` that are in no whole record.
        torn: Bytes behind `good`.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        file.seek(0)
        self.mark = _check_header(file.read(_HEADER.size), path)
        self._file = file
        self._buffer = b""
        self._at = 0  # where in the buffer the next record is sought
        self.good = _HEADER.size
        self.damaged = 0

    @property
    def torn(self) -> int:
        """Bytes behind the last record that is whole."""
        return max(0, os.fstat(self._file.fileno()).st_size - self.good)

    def raw(self) -> Iterator[tuple[int, bytes]]:
        """Answer the whole records that are there, as kinds and bodies. May be called again."""
        self._file.seek(self.good)
        self._buffer = b""
        self._at = 0
        passed = 0  # bytes since `good` that are no record
        ended = False
        while True:
            while not ended and len(self._buffer) - self._at < _HEAD.size + _LONGEST:
                more = self._file.read(_BLOCK)
                self._buffer = self._buffer[self._at :] + more
                self._at = 0
                ended = not more
            found = self._record()
            if found is not None:
                kind, body, size = found
                self.damaged += passed
                self.good += passed + size
                self._at += size
                passed = 0
                yield kind, body
                continue
            # Damaged, or the end: go on at the next mark.
            after = self._buffer.find(self.mark, self._at + 1)
            if after < 0:
                if ended:
                    return
                after = len(self._buffer) - len(self.mark) + 1
            passed += after - self._at
            self._at = after

    def _record(self) -> tuple[int, bytes, int] | None:
        buffer, at = self._buffer, self._at
        if len(buffer) - at < _HEAD.size:
            return None
        mark, check, length, kind = _HEAD.unpack_from(buffer, at)
        end = at + _HEAD.size + length
        if mark != self.mark or length > _LONGEST or end > len(buffer):
            return None
        if zlib.crc32(buffer[at + 8 : end], zlib.crc32(mark)) != check:
            return None
        return kind, buffer[at + _HEAD.size : end], end - at


def _check_header(header: bytes, path: str) -> bytes:
    """Answer the mark that a header tells."""
    if not header:
        raise RecordingError(f"{path!r} is empty")
    if not header.startswith(_MAGIC[: len(header)]):
        raise RecordingError(f"{path!r} is no recording")
    if len(header) < _HEADER.size:
        raise RecordingError(f"{path!r} ends within its header, after {len(header)} bytes")
    _, version, _, mark, check = _HEADER.unpack(header)
    if version != VERSION:
        raise RecordingError(
            f"{path!r} is a recording of version {version}, and this reads version {VERSION}"
        )
    if zlib.crc32(header[:-4]) != check:
        raise RecordingError(f"{path!r} has a damaged header")
    return bytes(mark.to_bytes(4, "little"))


class Recording:
    """A recording that is read; iterate it once, which closes it.

    Attributes:
        damaged: Bytes that were passed over so far, for they are in no whole record.
        torn: Bytes of the tail that are no whole record, as of now.
    """

    def __init__(self, file: BinaryIO, path: str, follow: bool, poll_s: float) -> None:
        self._file = file
        self._reader = _Reader(file, path)
        self._follow = follow
        self._poll_s = poll_s
        self._numbers: dict[int, int] = {}  # of connections, as in the file
        self._offsets: dict[int, list[int]] = {}
        self._last = 0
        self._torn = 0

    @property
    def damaged(self) -> int:
        """Bytes that are in no whole record, before the last that is one."""
        return self._reader.damaged

    @property
    def torn(self) -> int:
        """Bytes of the tail that are in no whole record."""
        return self._torn if self._file.closed else self._reader.torn

    def close(self) -> None:
        """Close the file."""
        if not self._file.closed:
            self._torn = self._reader.torn
            self._file.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        if self._file.closed:
            return
        with self:
            while True:
                for kind, body in self._reader.raw():
                    try:
                        items = self._items(kind, body)
                    except struct.error:  # whole, but not what its kind has
                        continue
                    yield from items
                if not self._follow:
                    return
                time.sleep(self._poll_s)

    def _items(self, kind: int, body: bytes) -> list[Item]:
        if kind in (SENT, RECEIVED):
            return self._chunk(kind == SENT, body)
        if kind == SESSION:
            wall_ns, time_ns, pid = _SESSION.unpack_from(body)
            version, note = _texts(body[_SESSION.size :], 2)
            self._numbers.clear()
            self._offsets.clear()
            return [Session(wall_ns, time_ns, pid, version, note)]
        if kind == OPENED:
            connection, time_ns = _EVENT.unpack_from(body)
            role, address = _texts(body[_EVENT.size :], 2)
            return [Opened(time_ns, self._number(connection), address, role)]
        if kind == CLOSED:
            connection, time_ns = _EVENT.unpack_from(body)
            [reason] = _texts(body[_EVENT.size :], 1)
            number = self._numbers.pop(connection, None)
            if number is None:
                return []
            del self._offsets[number]
            return [Closed(time_ns, number, reason)]
        return []

    def _number(self, connection: int) -> int:
        self._last += 1
        self._numbers[connection] = self._last
        self._offsets[self._last] = [0, 0]
        return self._last

    def _chunk(self, sent: bool, body: bytes) -> list[Item]:
        connection, time_ns, at = _CHUNK.unpack_from(body)
        data = body[_CHUNK.size :]
        number = self._numbers.get(connection)
        if number is None or at < self._offsets[number][sent]:
            number = self._number(connection)  # that it was opened is in a damaged record
        offsets = self._offsets[number]
        items: list[Item] = []
        if at > offsets[sent]:
            items.append(Gap(time_ns, number, sent, offsets[sent], at - offsets[sent]))
        offsets[sent] = at + len(data)
        items.append(Record(time_ns, number, sent, data))
        return items


def _texts(data: bytes, count: int) -> list[str]:
    texts = []
    for _ in range(count):
        end = 2 + int.from_bytes(data[:2], "little")
        texts.append(data[2:end].decode("utf-8", "backslashreplace"))
        data = data[end:]
    return texts


def read(
    path: str | os.PathLike[str] | Path, *, follow: bool = False, poll_s: float = 0.1
) -> Recording:
    """Open a recording, to be iterated.

    Args:
        path: The file.
        follow: Wait for more at its end, and never end.
        poll_s: How often to look then, seconds.

    Raises:
        RecordingError: It is no recording, or one of another version.
        OSError: It cannot be read.
    """
    name = os.fspath(path)
    file = open(name, "rb")  # noqa: SIM115 - the iterator closes it
    try:
        return Recording(file, name, follow, poll_s)
    except BaseException:
        file.close()
        raise


def exchanges(
    path: str | os.PathLike[str] | Path | Recording, *, follow: bool = False, **options: Any
) -> Iterator[Exchange]:
    """Pair what a recording holds; what is in flight at its end is `lost`.

    Of a connection with a gap no more is paired behind it, for it might be paired wrongly.

    Args:
        path: The file, or what `read` answered.
        follow: Wait for more at its end, and never end.
        options: For each Dialogue.
    """
    recording = path if isinstance(path, Recording) else read(path, follow=follow)
    return _exchanges(recording, options)


def _exchanges(recording: Recording, options: dict[str, Any]) -> Iterator[Exchange]:
    dialogues: dict[int, Dialogue | None] = {}
    time_ns = 0
    for item in recording:
        if isinstance(item, Record):
            time_ns, connection, sent, data = item
            if connection not in dialogues:
                dialogues[connection] = Dialogue(connection, **options)
            dialogue = dialogues[connection]
            if dialogue is not None:
                yield from (dialogue.sent if sent else dialogue.received)(data, time_ns)[1]
        elif isinstance(item, (Closed, Gap)):
            dialogue = dialogues.get(item.connection)
            dialogues[item.connection] = None
            if dialogue is not None:
                yield from dialogue.end(item.time_ns)
        elif isinstance(item, Session):
            for dialogue in dialogues.values():
                if dialogue is not None:
                    yield from dialogue.end(time_ns)
            dialogues.clear()
    for dialogue in dialogues.values():
        if dialogue is not None:
            yield from dialogue.end(time_ns)


__all__ = [
    "PIECE",
    "VERSION",
    "Closed",
    "Gap",
    "Item",
    "Opened",
    "Recording",
    "RecordingError",
    "Session",
    "Writer",
    "exchanges",
    "read",
]

"""The file format: what is written is read, whatever was cut, killed, flipped or forked."""

from __future__ import annotations

import os
import resource
import signal
import stat
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resp import RespError, Tap, connect, encode_command
from resp.tap.record import Record
from resp.tap.recording import (
    PIECE,
    Closed,
    Gap,
    Item,
    Opened,
    Recording,
    RecordingError,
    Session,
    Writer,
    exchanges,
    read,
)

HEADER: Final = 24
ROOT: Final = Path(__file__).parents[3]
GET: Final = encode_command("GET", "k")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traffic.tap"


def records(path: Path) -> list[Record]:
    return [item for item in read(path) if isinstance(item, Record)]


def write_some(path: Path, count: int = 3) -> list[int]:
    """Record some commands and replies; the file's size after each record."""
    sizes = []
    with Writer(path, note="a test") as writer:
        sizes.append(path.stat().st_size)
        one = writer.connection("valkey://h:1", "client")
        sizes.append(path.stat().st_size)
        for number in range(count):
            writer.sent(one, b"*1\r\n$4\r\nPING\r\n", 1000 + number)
            sizes.append(path.stat().st_size)
            writer.received(one, b"+PONG\r\n", 2000 + number)
            sizes.append(path.stat().st_size)
        writer.closed(one, "done", 9000)
        sizes.append(path.stat().st_size)
    return sizes


def test_what_is_written_is_read(path: Path) -> None:
    with Writer(path, note="why") as writer:
        one = writer.connection("valkey://one", "client")
        two = writer.connection("valkey://two", "server")
        writer.sent(two, b"b" * 5, 7)
        writer.sent(one, b"a", 8)
        writer.received(one, b"", 9)
        writer.closed(one, "it was closed", 10)
        writer.closed(one, "again", 11)
    session, *rest = read(path)
    assert isinstance(session, Session)
    assert (session.pid, session.note) == (os.getpid(), "why")
    assert abs(session.wall_ns / 1e9 - path.stat().st_mtime) < 60
    opened = [item for item in rest if isinstance(item, Opened)]
    assert [item[1:] for item in opened] == [
        (1, "valkey://one", "client"),
        (2, "valkey://two", "server"),
    ]
    assert rest[2:] == [
        Record(7, 2, True, b"bbbbb"),
        Record(8, 1, True, b"a"),
        Record(9, 1, False, b""),
        Closed(10, 1, "it was closed"),
    ]


def test_the_format_is_what_the_docstring_says(path: Path) -> None:
    """A reader of its own, from the words alone."""
    write_some(path, count=1)
    data = path.read_bytes()
    assert data[:12] == b"\x89RESPTAP\r\n\x1a\n"
    version, zero, mark, check = struct.unpack("<HH4sI", data[12:24])
    assert (version, zero, check) == (1, 0, zlib.crc32(data[:20]))
    kinds = []
    at = 24
    while at < len(data):
        assert data[at : at + 4] == mark
        check, length, kind = struct.unpack("<IIB", data[at + 4 : at + 13])
        body = data[at + 13 : at + 13 + length]
        assert check == zlib.crc32(mark + data[at + 8 : at + 13 + length])
        kinds.append(kind)
        if kind == 2:
            connection, _, size = struct.unpack("<QQH", body[:18])
            assert connection >> 32 == os.getpid()
            assert body[18 : 18 + size] == b"client"
            assert body[20 + size :] == b"valkey://h:1"
        if kind == 4:
            assert struct.unpack("<QQQ", body[:24]) == (connection, 1000, 0)
            assert body[24:] == b"*1\r\n$4\r\nPING\r\n"
        at += 13 + length
    assert at == len(data)
    assert kinds == [1, 2, 4, 5, 3]


def test_a_file_is_its_owners(path: Path) -> None:
    write_some(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_exchanges_of_a_recording(path: Path) -> None:
    write_some(path)
    with Writer(path) as writer:
        one, two = writer.connection(), writer.connection()
        writer.sent(one, GET + GET, 1)
        writer.sent(two, GET, 2)
        writer.received(two, b"$1\r\n2\r\n", 3)
        writer.received(one, b"$1\r\n1\r\n", 4)
    found = [(e.connection, e.name, e.kind, e.down) for e in exchanges(path)]
    assert found == [
        (1, "PING", "reply", 7),
        (1, "PING", "reply", 7),
        (1, "PING", "reply", 7),
        (3, "GET", "reply", 7),
        (2, "GET", "reply", 7),
        (2, "GET", "lost", 0),
    ]


def test_a_large_chunk_comes_in_pieces(path: Path) -> None:
    data = os.urandom(PIECE * 2 + 17)
    with Writer(path) as writer:
        one = writer.connection()
        writer.received(one, data, 5)
        writer.received(one, b"x", 6)
    found = records(path)
    assert [len(record.data) for record in found] == [PIECE, PIECE, 17, 1]
    assert b"".join(record.data for record in found) == data + b"x"
    assert [record.time_ns for record in found] == [5, 5, 5, 6]


def test_cut_anywhere(path: Path) -> None:
    """Every record but the one that is cut is read; the next writer mends the tail."""
    sizes = write_some(path)
    data = path.read_bytes()
    whole = list(read(path))
    for size in range(HEADER, len(data)):
        path.write_bytes(data[:size])
        recording = read(path)
        count = sum(end <= size for end in sizes)
        assert list(recording) == whole[:count]
        assert recording.torn == size - max([HEADER, *(end for end in sizes if end <= size)])
        assert recording.damaged == 0
    for size in (*range(sizes[-2], sizes[-1]), HEADER, HEADER + 5):
        path.write_bytes(data[:size])
        count = sum(end <= size for end in sizes)
        with Writer(path, note="mended"):
            pass
        mended = read(path)
        items = list(mended)
        assert items[:count] == whole[:count]
        assert [item.note for item in items[count:] if isinstance(item, Session)] == ["mended"]
        assert len(items) == count + 1
        assert mended.torn == mended.damaged == 0


@pytest.mark.parametrize("size", range(HEADER))
def test_cut_within_the_header(path: Path, size: int) -> None:
    write_some(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RecordingError, match="ends within its header" if size else "is empty"):
        read(path)
    write_some(path)
    assert len(records(path)) == 6


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "is empty"),
        (b"#!/bin/sh\n", "is no recording"),
        (b"\x89RESPTAQ", "is no recording"),
        (b"REDIS0011" + b"\0" * 100, "is no recording"),
    ],
    ids=["empty", "script", "near", "rdb"],
)
def test_what_is_no_recording(path: Path, data: bytes, told: str) -> None:
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=told):
        read(path)
    if data:
        with pytest.raises(RecordingError, match=told):
            Writer(path)
        assert path.read_bytes() == data


def test_a_version_from_the_future(path: Path) -> None:
    write_some(path)
    data = bytearray(path.read_bytes())
    data[12] = 2
    path.write_bytes(data)
    for open_it in (read, Writer):
        with pytest.raises(RecordingError, match="version 2, and this reads version 1"):
            open_it(path)
    assert path.read_bytes() == data


def test_what_is_no_file(tmp_path: Path) -> None:
    for odd in (tmp_path, Path("/dev/full")):
        with pytest.raises(RecordingError, match="no regular file"):
            Writer(odd)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")
    assert issubclass(RecordingError, RespError)


def test_a_kind_of_the_future_is_skipped(path: Path) -> None:
    with Writer(path) as writer:
        one = writer.connection()
        writer._append(99, b"new")
        writer._append(4, b"short")  # whole, but not what a chunk has
        writer.sent(one, b"x", 1)
    assert records(path) == [Record(1, 1, True, b"x")]


def test_a_second_writer_is_refused(path: Path) -> None:
    with Writer(path):
        size = path.stat().st_size
        with pytest.raises(RecordingError, match="being written to by somebody else"):
            Writer(path)
        assert path.stat().st_size == size
    with Writer(path):
        pass


def test_appending_ends_the_connections_of_before(path: Path) -> None:
    with Writer(path) as writer:
        one = writer.connection()
        writer.sent(one, GET, 1)
    with Writer(path) as writer:
        again = writer.connection()
        assert again == one
        writer.received(again, b"+NOT THE REPLY TO IT\r\n", 2)
    found = list(exchanges(path))
    assert [(e.connection, e.kind) for e in found] == [(1, "lost"), (2, "malformed")]


def test_unknown_connections_are_refused(path: Path) -> None:
    with Writer(path) as writer:
        one = writer.connection()
        writer.closed(one)
        for number in (one, one + 1, 7):
            with pytest.raises(KeyError):
                writer.sent(number, b"x")


def test_a_gap_ends_the_pairing(path: Path) -> None:
    """A damaged record in the middle: the others are read, and nothing is paired wrongly."""
    with Writer(path) as writer:
        one, two = writer.connection(), writer.connection()
        writer.sent(one, GET, 1)
        before = path.stat().st_size
        writer.received(one, b"$5\r\nfirst\r\n", 2)
        writer.sent(one, GET, 3)
        writer.received(one, b"$6\r\nsecond\r\n", 4)
        writer.sent(two, GET, 5)
        writer.received(two, b"$1\r\n2\r\n", 6)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(before + 15)
        file.write(b"\xff")
    recording = read(path)
    items = list(recording)
    assert recording.damaged == 13 + 24 + 11
    assert recording.torn == 0
    assert [item for item in items if isinstance(item, Gap)] == [Gap(4, 1, False, 0, 11)]
    found = [(e.connection, e.kind) for e in exchanges(path)]
    assert found == [(1, "lost"), (1, "lost"), (2, "reply")]
    with Writer(path):
        pass
    assert path.stat().st_size > size  # nothing whole was cut off


def test_a_recording_of_a_recording_is_not_mistaken(path: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner.tap"
    write_some(inner)
    with Writer(path) as writer:
        one = writer.connection()
        at = path.stat().st_size
        writer.sent(one, inner.read_bytes(), 1)
    with path.open("r+b") as file:
        file.seek(at + 4)
        file.write(b"\0\0\0\0")
    assert records(path) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bytes(path: Path, data: Any) -> None:
    """Never a crash, and never a record that was not written."""
    path.unlink(missing_ok=True)
    write_some(path, count=4)
    written = {(record.time_ns, record.sent, record.data) for record in records(path)}
    broken = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(broken)
    try:
        found = records(path)
        list(exchanges(path))
    except RecordingError:
        return
    assert {(record.time_ns, record.sent, record.data) for record in found} <= written


@given(st.binary(max_size=300), st.binary(max_size=100))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_behind_a_recording(path: Path, garbage: bytes, more: bytes) -> None:
    path.unlink(missing_ok=True)
    write_some(path)
    size = path.stat().st_size
    mark = path.read_bytes()[16:20]
    with path.open("ab") as file:
        file.write(garbage + mark + more)
    recording = read(path)
    assert len(list(recording)) == 9
    assert recording.torn == len(garbage) + 4 + len(more)
    with Writer(path):
        pass
    assert path.stat().st_size > size
    mended = read(path)
    assert len(list(mended)) == 10
    assert mended.torn == mended.damaged == 0


def test_many_small_records_take_linear_time(path: Path) -> None:
    import time

    with Writer(path) as writer:
        one = writer.connection()
        for _ in range(30_000):
            writer.sent(one, b"x", 1)
    began = time.process_time()
    assert len(records(path)) == 30_000
    assert time.process_time() - began < 5


def test_a_growing_file_is_followed(path: Path) -> None:
    with Writer(path) as writer:
        one = writer.connection()
        items: Iterator[Item] = iter(read(path, follow=True, poll_s=0.001))
        assert isinstance(next(items), Session)
        assert isinstance(next(items), Opened)
        for number in range(3):
            timer = threading.Timer(0.02, writer.sent, (one, b"x", number))
            timer.start()
            assert next(items) == Record(number, 1, True, b"x")
            timer.join()


def test_a_torn_tail_is_waited_for(path: Path) -> None:
    sizes = write_some(path)
    data = path.read_bytes()
    path.write_bytes(data[: sizes[3] - 1])
    items = iter(read(path, follow=True, poll_s=0.001))
    assert [type(next(items)) for _ in range(3)] == [Session, Opened, Record]
    path.write_bytes(data)
    assert next(items) == Record(2000, 1, False, b"+PONG\r\n")


def test_a_forked_child_goes_on_in_the_same_file(path: Path) -> None:
    with Writer(path) as writer:
        mine = writer.connection("parent")
        writer.sent(mine, GET, 1)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                own = writer.connection("child")
                for number in range(200):
                    writer.sent(own, GET, 10 + number)
                    writer.received(own, b"$-1\r\n", 10 + number)
                try:
                    writer.sent(mine, b"not mine")
                except KeyError:
                    status = 0
                writer.close()
            finally:
                os._exit(status)
        for number in range(200):
            writer.received(mine, b"$-1\r\n", 10 + number)
            writer.sent(mine, GET, 10 + number)
        assert os.waitpid(child, 0)[1] == 0
    recording = read(path)
    items = list(recording)
    assert recording.torn == recording.damaged == 0
    assert [item.address for item in items if isinstance(item, Opened)] == ["parent", "child"]
    assert not [item for item in items if isinstance(item, Gap)]
    kinds = [(e.connection, e.kind) for e in exchanges(path)]
    assert kinds.count((1, "reply")) == kinds.count((2, "reply")) == 200
    assert kinds.count((1, "lost")) == 1


def test_a_full_disk_loses_one_record(path: Path) -> None:
    """The limit stands for a disk: a write is cut short, and the next one fails."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            with Writer(path) as writer:
                one = writer.connection()
                resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 500,) * 2)
                try:
                    for number in range(20):
                        writer.sent(one, b"x" * 50, number)
                except OSError:
                    status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    recording = read(path)
    found = [item for item in recording if isinstance(item, Record)]
    assert [record.time_ns for record in found] == list(range(5))
    assert recording.torn == 500 % (13 + 24 + 50)
    with Writer(path):
        pass
    assert len(records(path)) == 5


LOAD: Final = """
import asyncio, itertools, sys
from resp import Tap, connect, connect_async
url, path, shell = sys.argv[1:]
tap = Tap(0, file=path)
def batch(n):
    return [("SET", "killed:%d" % (n + i), "v%d" % (n + i)) for i in range(20)]
if shell == "threads":
    with connect(url, tap=tap) as connector:
        for n in itertools.count(0, 20):
            connector.pipeline(batch(n))
            connector.command("ECHO", n)
            if n == 400:
                print("ready", flush=True)
else:
    async def main():
        async with await connect_async(url, tap=tap) as connector:
            for n in itertools.count(0, 20):
                await asyncio.gather(*(connector.command(*words) for words in batch(n)))
                await connector.command("ECHO", n)
                if n == 400:
                    print("ready", flush=True)
    asyncio.run(main())
"""


@pytest.mark.parametrize("shell", ["threads", "asyncio"])
def test_killed_under_load(path: Path, server: Any, shell: str) -> None:
    """All but the torn tail is there, and each command has its own reply."""
    process = subprocess.Popen(
        [sys.executable, "-c", LOAD, server.url, str(path), shell],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    recording = read(path)
    items = list(recording)
    assert recording.damaged == 0
    assert recording.torn < PIECE
    assert not [item for item in items if isinstance(item, Gap)]
    echoes = 0
    names = []
    for exchange in exchanges(path):
        if exchange.kind != "reply" or exchange.request is None:
            assert exchange.kind == "lost"
            continue
        names.append(exchange.name)
        if exchange.name == "ECHO":
            assert exchange.request.words is not None
            word = exchange.request.words[1]
            assert exchange.replies[0].data == b"$%d\r\n%b\r\n" % (len(word), word)
            echoes += 1
        elif exchange.name == "SET":
            assert exchange.replies[0].data == b"+OK\r\n"
    assert echoes >= 20
    assert names.count("SET") >= 420
    with Writer(path):
        pass
    assert list(read(path))[: len(items)] == items


def test_what_iterates_a_recording_may_stop(path: Path) -> None:
    write_some(path)
    recording = read(path)
    assert isinstance(recording, Recording)
    for _ in recording:
        break
    with read(path) as unread:
        assert unread.torn == path.stat().st_size - HEADER
    assert list(unread) == []


def test_a_recording_says_where_a_connection_led(tmp_path: Path, server: Any) -> None:
    path = tmp_path / "led.tap"
    with Tap(file=path) as tap, connect(server.url, tap=tap) as connector:
        connector.command("PING")
    [opened] = [entry for entry in read(path) if isinstance(entry, Opened)]
    assert opened.address == f"{server.host}:{server.port}"

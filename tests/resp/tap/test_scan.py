"""Streams cut into frames: the same however they came, one a reply, and little held."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resp.encode import encode_command
from resp.tap.frames import parse
from resp.tap.scan import KEEP, Found, Scanner
from tests.strategies import Cut, Stream, cuts, decode, garbage, plain, runs, streams, typed

from .test_frames import captures, value_of, vectors


def scan(chunks: list[bytes], **options: Any) -> tuple[list[Found], Scanner]:
    """Feed chunks; check what holds of every scanner at every moment."""
    scanner = Scanner(**options)
    found: list[Found] = []
    fed = 0
    for chunk in chunks:
        found += scanner.feed(chunk)
        fed += len(chunk)
        assert scanner.offset == fed
        assert scanner.open_at + scanner.open_size == fed
        if scanner.open_size < 4096:  # it is a copy: of long frames, once at the end
            assert len(scanner.open()) == min(scanner.open_size, options.get("keep", KEEP))
    place = 0
    for at, size, _, _ in found:
        assert at == place
        place += size
    assert scanner.open_at == place
    return found, scanner


def check_cuts(wire: bytes, cut: Cut, **options: Any) -> list[Found]:
    """Check that a stream gives the same whole, byte by byte and cut; answer its frames."""
    found, scanner = scan([wire], **options)
    keep = options.get("keep", KEEP)
    ways = [cut(wire)]
    if len(wire) <= 20_000:
        ways.append([bytes((byte,)) for byte in wire])
    for chunks in ways:
        cut_found, cut_scanner = scan(chunks, **options)
        assert [frame[:3] for frame in cut_found] == [frame[:3] for frame in found]
        assert cut_scanner.fault == scanner.fault
        assert cut_scanner.open() == scanner.open()
        assert cut_scanner.open_at == scanner.open_at
        check_words(cut_found, keep)
    check_words(found, keep)
    for at, size, data, _ in found:
        assert data == wire[at : at + size][:keep]
    assert scanner.open() == wire[scanner.open_at :][:keep]
    return found


def check_words(found: list[Found], keep: int) -> None:
    """Check that the arguments that a scanner tells are those in the bytes of the frame."""
    for _, size, data, words in found:
        if words is not None:
            assert size <= keep
            [node] = parse(data, inline=True)
            assert words == tuple(item.value for item in node.items)
            assert all(item.mark == "$" for item in node.items)


def check_one_a_reply(wire: bytes, found: list[Found]) -> None:
    """Check that every reply of the decoder's has its frame, with no byte more or less."""
    outcome = decode(plain, [wire])
    values = []
    for _, _, data, _ in found[: len(outcome.replies)]:
        *notes, root = parse(data)
        assert all(note.mark == "|" for note in notes)
        values.append(typed(value_of(root)))
    assert values == outcome.replies
    if outcome.error is None:
        assert len(found) == len(values)


@given(streams(), cuts())
def test_streams(stream: Stream, cut: Cut) -> None:
    found = check_cuts(stream.wire, cut)
    assert len(found) == len(stream.values)
    check_one_a_reply(stream.wire, found)


@pytest.mark.parametrize("wire", captures())
def test_recordings(wire: bytes) -> None:
    found = check_cuts(wire, lambda wire: [wire[at : at + 7] for at in range(0, len(wire), 7)])
    check_one_a_reply(wire, found)


@pytest.mark.parametrize("wire", vectors())
def test_vectors(wire: bytes) -> None:
    found = check_cuts(
        wire, lambda wire: [wire[at : at + 4096] for at in range(0, len(wire), 4096)]
    )
    check_one_a_reply(wire, found)


@given(garbage(), cuts(), st.sampled_from([1, 7, 40, KEEP]))
def test_garbage(wire: bytes, cut: Cut, keep: int) -> None:
    check_cuts(wire, cut, keep=keep)
    check_one_a_reply(wire, scan([wire])[0])


@given(runs(), cuts())
def test_runs(wire: bytes, cut: Cut) -> None:
    check_one_a_reply(wire, check_cuts(wire, cut))


# Commands

_WORDS = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b"\r\n", b"$1\r\na", b"a\r\n$3\r\nGET", b"GET", b"*1\r\n$4\r\nPING\r\n"]),
    st.sampled_from([1023, 1024, 5000]).map(bytes),
)
_COMMANDS = st.one_of(
    st.lists(_WORDS, min_size=1, max_size=6).map(lambda words: encode_command(b"X", *words)),
    st.sampled_from(
        [b"*0\r\n", b"*-1\r\n", b"PING\r\n", b"PING\n", b"\r\n", b"\n", b"GET 'a b'\r\n"]
    ),
    st.integers(126, 131).map(lambda count: encode_command("DEL", *[b"k"] * count)),
)
_BROKEN = st.sampled_from([
    b"*1\r\n:1\r\n", b"*x\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$1\r\nabc\r\n", b"*1\r\n*1\r\n",
    b"*01\r\n$1\r\na\r\n", b"*1\r\n$01\r\na\r\n", b"*2\r\n$1\r\na\r\n", b"*1\n$1\na\n",
    b"*?\r\n", b"*1\r\n$?\r\n",
])  # fmt: skip


@given(st.lists(_COMMANDS, max_size=8), cuts(), st.booleans())
def test_commands(commands: list[bytes], cut: Cut, held: bool) -> None:
    wire = b"".join(commands)
    found = check_cuts(wire, cut, requests=True, keep=20 if held else KEEP)
    assert [frame[1] for frame in found] == list(map(len, commands))


@given(st.lists(_COMMANDS, max_size=4), _BROKEN, st.lists(_COMMANDS, max_size=2), cuts())
def test_commands_that_are_none(
    before: list[bytes], broken: bytes, after: list[bytes], cut: Cut
) -> None:
    wire = b"".join([*before, broken, *after])
    found = check_cuts(wire, cut, requests=True)
    assert [frame[2] for frame in found[: len(before)]] == before


@given(st.binary(max_size=60) | garbage(), cuts())
def test_anything_from_a_client(wire: bytes, cut: Cut) -> None:
    check_cuts(wire, cut, requests=True)


@given(st.lists(_WORDS, max_size=4), st.integers(0, 3))
@example([b"a\r\n$1\r\nb"], 0)
@example([b""], 0)
def test_arguments_are_told_at_once_where_they_are_plain(words: list[bytes], more: int) -> None:
    """The quick way gives up on an argument with a CRLF, and takes the commands before it."""
    command = encode_command(b"X", *words)
    wire = encode_command("GET", "k") * more + command
    found, _ = scan([wire], requests=True)
    told = [frame[3] for frame in found]
    assert told[:more] == [(b"GET", b"k")] * more
    assert told[more] in {(b"X", *words), None}
    if not any(b"\r\n" in word for word in words):
        assert told[more] == (b"X", *words)


@pytest.mark.parametrize("size", [200_000, 300_000])
def test_the_quick_way_is_for_chunks_of_some_size(size: int) -> None:
    command = encode_command("SET", "k", bytes(100))
    wire = command * (size // len(command))
    found, scanner = scan([wire], requests=True)
    assert len(found) == size // len(command)
    assert not scanner.open_size


# Faults


@pytest.mark.parametrize(
    ("wire", "fault"),
    [
        (b"?", "type"),
        (b"+OK\r\nHTTP/1.1", "type"),
        (b"$x\r\n", "length"),
        (b"$1\r\nab\r\n", "CRLF"),
        (b";1\r\na\r\n", "chunk"),
        (b"$?\r\n+a\r\n", "streamed string"),
        (b".\r\n", "end"),
        (b"*1\r\n.\r\n", "end"),
        (b"*1\r\n" * 129, "aggregates"),
        (b"+" + b"a" * 66_000, "64 KiB"),
        (b"%-1\r\n", "length"),
        (b"+a\r\n\r\n", "type"),
    ],
)
def test_a_fault_keeps_its_frame_open(wire: bytes, fault: str) -> None:
    found, scanner = scan([wire[:-1], wire[-1:], b"+more\r\n"])
    assert fault in scanner.fault
    assert scanner.open() == (wire + b"+more\r\n")[scanner.open_at :]
    assert all(data == b"+OK\r\n" or data == b"+a\r\n" for _, _, data, _ in found)


def test_what_lines_hold_is_not_looked_at() -> None:
    """A frame's end is plain even where its content is not; the view of the frame says so."""
    wire = b":x\r\n#q\r\n,1_0\r\n+OK\r\n"
    found, scanner = scan([wire])
    assert [data for _, _, data, _ in found] == [b":x\r\n", b"#q\r\n", b",1_0\r\n", b"+OK\r\n"]
    assert not scanner.fault


def test_a_push_inside_an_array_is_one_of_its_items() -> None:
    wire = b"*2\r\n>2\r\n+subscribe\r\n:1\r\n:2\r\n"
    assert len(scan([wire + b"+OK\r\n"])[0]) == 2


# Memory and work


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit


@pytest.mark.parametrize(
    ("before", "piece", "after"),
    [
        (b"$30000000\r\n", bytes(30_000), b"\r\n"),
        (b"*3000\r\n", b"$9994\r\n" + bytes(9994) + b"\r\n", b""),
        (b"*?\r\n", b":1\r\n" * 1000, b".\r\n"),
        (b"$?\r\n", b";1000\r\n" + bytes(1000) + b"\r\n", b";0\r\n"),
    ],
    ids=["bulk", "array", "streamed", "chunks"],
)
def test_what_is_held_of_a_frame_is_bounded(before: bytes, piece: bytes, after: bytes) -> None:
    count = 1000 if before[:2] == b"$3" else 3000
    scanner = Scanner(keep=10_000)
    found = []
    with memory_below(400_000):
        for chunk in [before, *[piece] * count, after]:
            found += scanner.feed(chunk)
    [(at, size, data, words)] = found
    assert (at, size, words) == (0, len(before) + len(piece) * count + len(after), None)
    assert data == (before + piece * 10 + after)[:10_000]


@pytest.mark.parametrize("size", [2, 3])
def test_small_pieces_take_little_more_than_their_bytes(size: int) -> None:
    scanner = Scanner()
    scanner.feed(b"$900000\r\n")
    with memory_below(3_000_000):
        for at in range(0, 900_000, size):
            scanner.feed(b"%d" % (10 ** (size - 1) + at % 9))
    assert scanner.open_size == 900_009


def test_bytes_behind_a_fault_are_not_held() -> None:
    scanner = Scanner(keep=1000)
    with memory_below(200_000):
        for _ in range(1000):
            scanner.feed(b"?" * 10_000)
    assert scanner.open_size == 10_000_000
    assert scanner.open() == b"?" * 1000


_HUGE = 1 << 20


@pytest.mark.parametrize("size", [1, 3, 1460, 1 << 16])
@pytest.mark.parametrize(
    ("wire", "requests"),
    [
        (b"$%d\r\n%b\r\n" % (_HUGE, bytes(_HUGE)), False),
        (b"*%d\r\n" % (_HUGE // 8) + b"$1\r\na\r\n" * (_HUGE // 8), False),
        (b"$?\r\n" + b";1\r\na\r\n" * (_HUGE // 8) + b";0\r\n", False),
        (b"+%b\r\n" % (b"x" * 65_000) * 16, False),
        (encode_command("SET", "k", bytes(_HUGE)), True),
        (encode_command("MSET", *[b"x"] * (_HUGE // 8)), True),
        (encode_command("GET", "k") * (_HUGE // 20), True),
        (encode_command("SET", "k", b"\r\n") * (_HUGE // 30), True),
        (b"PING " + b"x" * 65_000 + b"\r\n", True),
    ],
    ids=["bulk", "array", "chunks", "lines", "SET", "MSET", "GETs", "CRLFs", "line"],
)
def test_work_follows_the_bytes_whatever_their_cuts(wire: bytes, requests: bool, size: int) -> None:
    """What joined or read again all that is held would take minutes."""
    scanner = Scanner(requests=requests)
    began = time.process_time()
    for at in range(0, len(wire), size):
        scanner.feed(wire[at : at + size])
    assert time.process_time() - began < 20
    assert not scanner.open_size
    assert not scanner.fault


def test_a_chunk_of_many_frames_is_linear() -> None:
    wire = encode_command("SET", "k", b"a\r\nb") * 100_000 + b"*1\r\n$4\r\nPING\r\n" * 100_000
    began = time.process_time()
    found, _ = scan([wire], requests=True)
    assert time.process_time() - began < 20
    assert len(found) == 200_000

"""Decoding and encoding alone, in memory, against hiredis and redis-py's own parser and packer.

    python -m bench codec [--rounds N] [--only WORD] [--json]

Every contender decodes the same bytes, in pieces of 64 KiB as from a socket unless the workload
says otherwise. A round times each of them once, in turn, so that a noisy moment falls on all; the
figures are medians of processor time over the rounds, of one run of the workload. What is to be
reached is in `goals`. A peer that is not installed is named as missing. The last rows compare a
workload with itself on half its size: 2.0 is linear.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from resp.decode import Decoder
from resp.encode import Arg, Head, encode_command

from . import goals, machine
from .figures import Progress, Run, Series, Size, figures, silent
from .goals import HALF, HIREDIS, REDIS_PY
from .options import MOST_ROUNDS, parser, tell, terminal, up_to
from .peers import OURS

SUITE: Final = "codec"
ROUNDS: Final = 7
SECTIONS: Final = ("decode", "encode", "linear")
_ABOUT: Final = 27  # workloads there are, for the bar
_NEEDS: Final = {HIREDIS: "hiredis", REDIS_PY: "redis"}
_CHUNK: Final = 64 * 1024

Lap: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Workload:
    """A stream of replies.

    Attributes:
        name: What it is, or what draws it.
        wire: All of its bytes.
        replies: Replies in `wire`.
        chunk: Bytes that arrive together; 0 = each reply by itself, all of one length.
    """

    name: str
    wire: bytes
    replies: int
    chunk: int = _CHUNK

    def chunks(self) -> list[bytes]:
        """Answer `wire` as it arrives."""
        size = self.chunk or len(self.wire) // self.replies
        return [self.wire[start : start + size] for start in range(0, len(self.wire), size)]


# Workloads


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _bulks(texts: Iterator[bytes]) -> bytes:
    return b"".join(map(_bulk, texts))


def _claim(number: int) -> bytes:
    payload = b'{"to":"user%d@example.com"}' % number
    return b"*3\r\n%b%b:%d\r\n" % (_bulk(b"JOB%011d" % number), _bulk(payload), number % 7 + 1)


def _entry(number: int) -> bytes:
    fields = (b"sensor", b"%d" % (number % 9), b"temperature", b"%d.5" % (number % 40))
    return b"*2\r\n%b*4\r\n%b" % (_bulk(b"1526919030474-%d" % number), _bulks(iter(fields)))


def _score(number: int) -> bytes:
    return b"*2\r\n%b,%d.25\r\n" % (_bulk(b"member:%d" % number), number)


def _fields(count: int) -> bytes:
    pairs = (text for n in range(count) for text in (b"field:%d" % n, b"value of field %d" % n))
    return b"%%%d\r\n%b" % (count, _bulks(pairs))


def workloads() -> Iterator[Workload]:
    """Make the streams that are decoded."""
    thousand = range(1000)
    claims = b"".join(map(_claim, thousand))
    message = b">3\r\n%b" % _bulks(iter((b"message", b"news", b"hello")))
    equal = _bulks(b"%032d" % n for n in thousand)
    sizes = _bulks(b"x" * (10 + n * 37 % 90) for n in thousand)

    runs = b"+OK\r\n" * 50_000 + b":1\r\n" * 50_000
    yield Workload("runs of equal scalars", runs, 100_000)
    yield Workload("32-byte bulks", equal * 20, 20_000)
    yield Workload("16 MiB bulk", _bulk(bytes(2**24)), 1)
    yield Workload("map of 1000", _fields(1000) * 20, 20)
    yield Workload("array of 1000 bulks of 32 bytes", (b"*1000\r\n" + equal) * 10, 10)
    yield Workload("array of 1000 bulks of 10 to 99 bytes", (b"*1000\r\n" + sizes) * 10, 10)
    yield Workload("nested claim replies", (b"*1000\r\n" + claims) * 5, 5)
    yield Workload("pipelined claim replies", claims * 10, 10_000)
    yield Workload("one claim reply at a time", _claim(0) * 5000, 5000, chunk=0)
    yield Workload("one +OK at a time", b"+OK\r\n" * 5000, 5000, chunk=0)
    yield Workload("one 1 KB bulk at a time", _bulk(bytes(1024)) * 5000, 5000, chunk=0)
    yield Workload("one map of 20 at a time", _fields(20) * 500, 500, chunk=0)
    yield Workload("one push at a time", message * 2000, 2000, chunk=0)
    yield Workload("1 KB bulks", _bulks(b"%01024d" % n for n in range(3000)), 3000)
    large = _bulks(bytes(1024 + n * 997 % 3072) for n in range(1500))
    yield Workload("bulks of 1 to 4 KB", large, 1500)
    yield Workload("bulks full of CRLF", _bulks(b"\r\n%04d\r\n" % n * 6 for n in range(5000)), 5000)
    yield Workload("integers", b"".join(b":%d\r\n" % (n * n) for n in range(20_000)), 20_000)
    errors = (b"-MOVED %d 127.0.0.1:6381\r\n" % n for n in range(2000))
    yield Workload("errors", b"".join(errors), 2000)
    entries = b"".join(map(_entry, thousand))
    yield Workload("XRANGE of 1000", (b"*1000\r\n" + entries) * 5, 5)
    scores = b"".join(map(_score, thousand))
    yield Workload("ZRANGE WITHSCORES of 1000", (b"*1000\r\n" + scores) * 5, 5)


# Contenders


def decode_ours(workload: Workload) -> Lap:
    chunks = workload.chunks()

    def run() -> int:
        decoder = Decoder()
        feed, replies = decoder.feed, decoder.replies
        count = 0
        for chunk in chunks:
            feed(chunk)
            count += len(replies())
        return count

    return run


def _decode_hiredis(workload: Workload) -> Lap:
    hiredis = importlib.import_module("hiredis")
    chunks = workload.chunks()

    def run() -> int:
        reader = hiredis.Reader()
        feed, gets = reader.feed, reader.gets
        count = 0
        for chunk in chunks:
            feed(chunk)
            while gets() is not False:
                count += 1
        return count

    return run


class _Socket:
    """What redis-py's parser reads from."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = iter(chunks)

    def recv(self, size: int) -> bytes:
        return next(self._chunks)

    def recv_into(self, buffer: bytearray, size: int = 0) -> int:
        data = next(self._chunks)
        buffer[: len(data)] = data
        return len(data)

    def settimeout(self, timeout: float | None) -> None:
        """Do nothing: it never blocks."""


def _decode_redis_py(workload: Workload) -> Lap:
    parsers = importlib.import_module("redis._parsers")
    buffers = importlib.import_module("redis._parsers.socket")
    chunks = workload.chunks()

    def run() -> int:
        parser = parsers._RESP3Parser(_CHUNK)
        parser._sock = _Socket(chunks)
        parser._buffer = buffers.SocketBuffer(parser._sock, _CHUNK, None)
        parser.pubsub_push_handler_func = len  # it logs every message unless told what to do
        for _ in range(workload.replies):
            parser.read_response(disable_decoding=True, push_request=True)
        return workload.replies

    return run


_DECODERS: Final[dict[str, Callable[[Workload], Lap]]] = {
    OURS: decode_ours,
    HIREDIS: _decode_hiredis,
    REDIS_PY: _decode_redis_py,
}

_TIMES: Final = 2000  # a command takes half a microsecond; a run should take a millisecond
_EVALSHA: Final[tuple[Arg, ...]] = (
    *("EVALSHA", "6b1bf486c81ceb7edf3c093f4f3ee9b2a2ea44d7", 2),
    *("emq:{orders}:pending", "emq:{orders}:active", "30000", b"JOB00000000001"),
)


def _times(encode: Callable[..., object], *args: object) -> Lap:
    def run() -> None:
        for _ in range(_TIMES):
            encode(*args)

    return run


def _encoders() -> Iterator[tuple[str, dict[str, Callable[[], Lap]]]]:
    def hiredis() -> Lap:
        return _times(importlib.import_module("hiredis").pack_command, _EVALSHA)

    def redis_py() -> Lap:
        connection = importlib.import_module("redis.connection")
        packer = connection.PythonRespSerializer(
            6000, connection.Encoder("utf-8", "strict", False).encode
        )
        return _times(packer.pack, *_EVALSHA)

    peers = {HIREDIS: hiredis, REDIS_PY: redis_py}
    for name, run in encodings():
        yield name, {OURS: functools.partial(_itself, run), **peers}


def encodings() -> Iterator[tuple[str, Lap]]:
    """Make what encodes an EVALSHA of 2 keys and 2 arguments, in each way that there is."""
    script, keys = Head(*_EVALSHA[:3]), Head(*_EVALSHA[:5])
    yield "EVALSHA, encode_command", _times(encode_command, *_EVALSHA)
    yield "EVALSHA, Head of the script", _times(script.encode, _EVALSHA[3:])
    yield "EVALSHA, Head with the keys bound", _times(keys.encode, _EVALSHA[5:])


def _itself(run: Lap) -> Lap:
    return run


# Whatever the size, twice the bytes take twice the time.


def _endless_line(size: int) -> Lap:
    pieces = [b"+", *[b"a" * 7] * (size // 7)]

    def run() -> None:
        decoder = Decoder(max_line=size)
        for piece in pieces:
            decoder.feed(piece)
            if decoder.replies():
                raise AssertionError

    return run


def _linear() -> Iterator[tuple[str, Lap, Lap]]:
    for name, count in (("16 MiB bulk, 7 bytes at a time", 2**24), ("same, 1460", 2**24)):
        chunk = 7 if "7 bytes" in name else 1460
        half, whole = (Workload(name, _bulk(bytes(size)), 1, chunk) for size in (count // 2, count))
        yield name, decode_ours(half), decode_ours(whole)
    half, whole = (
        Workload("", b"*%d\r\n" % count + b":7\r\n+OK\r\n" * (count // 2), 1)
        for count in (500_000, 1_000_000)
    )
    yield "array of 10^6", decode_ours(half), decode_ours(whole)
    yield (
        "line of 64 KiB without an end, 7 bytes at a time",
        _endless_line(2**15),
        _endless_line(2**16),
    )


# Measuring


def _rounds(runs: dict[str, Lap], rounds: int) -> dict[str, list[float]]:
    """Time all runs in turn, and answer each one's microseconds, round by round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.process_time()
            run()
            # Never nothing, though a clock that ticks may say so.
            times[name].append(max((time.process_time() - begin) * 1e6, 0.1))
    return times


def _works() -> Iterator[tuple[str, str, dict[str, Callable[[], Lap]]]]:
    """By section and name, how each contender's run is prepared."""
    for workload in workloads():
        decoders: dict[str, Callable[[], Lap]] = {
            name: functools.partial(prepare, workload) for name, prepare in _DECODERS.items()
        }
        yield "decode", workload.name, decoders
    for name, encoders in _encoders():
        yield "encode", name, encoders
    for name, half, whole in _linear():
        sizes: dict[str, Callable[[], Lap]] = {
            OURS: functools.partial(_itself, whole),
            HALF: functools.partial(_itself, half),
        }
        yield "linear", name, sizes


def measure(
    rounds: int = ROUNDS, only: str = "", progress: Progress = silent, *, scale: bool = True
) -> Run:
    """Measure every workload whose name has `only` in it.

    Args:
        rounds: Times that each contender runs each workload.
        only: A part of the names to measure.
        progress: Told of each workload.
        scale: Whether workloads are compared with their halves too, which takes seconds.
    """
    run = Run(notes=[f"encoding and decoding in memory, medians of {rounds} rounds"])
    found = []
    for at, (section, name, contenders) in enumerate(_works()):
        if only not in name or (section == "linear" and not scale):
            continue
        progress(f"{section}: {name}", at / _ABOUT)
        laps: dict[str, Lap] = {}
        for who, prepare in contenders.items():
            try:
                laps[who] = prepare()
            except (ImportError, AttributeError):
                run.missing[who] = f"pip install {_NEEDS[who]}"
        times = max(3, rounds // 2) if section == "linear" else rounds
        found.append(Series(section, name, "us CPU", OURS, values=_rounds(laps, times)))
    progress("")
    run.figures = figures(SUITE, found)
    run.verdicts = goals.verdicts(SUITE, found)
    run.versions = machine.versions(_NEEDS.values())
    return run


def suite(size: Size, progress: Progress) -> Run:
    """Measure for `bench all`."""
    rounds = size.rounds or (1 if size.quick else ROUNDS)
    return measure(rounds, progress=progress, scale=not size.quick)


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    line = parser(SUITE, "Encoding and decoding alone, beside hiredis and redis-py's own.")
    line.add_argument(
        "--rounds", type=up_to(MOST_ROUNDS), default=ROUNDS, help="times each contender runs; 7"
    )
    line.add_argument("--only", default="", help="a part of the names to measure")
    options = line.parse_args(argv)
    run = measure(options.rounds, options.only, terminal())
    if not run.figures:
        line.error(f"no name has {options.only!r} in it; without --only all are measured")
    tell(run, as_document=options.json)
    return 0

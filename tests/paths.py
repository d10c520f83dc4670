"""How the decoder reads: which of its ways took how much of a stream. No clock, so it is exact.

    python -m tests.paths [--write]

Fast ways and the plain one answer the same, so that no test of replies can tell which was taken.
Here each way's calls are counted, and the bytes or replies that they took, for streams of every
shape and for chunks of several sizes. `--write` puts the counts into `tests/data/paths.json`; a
change of them is to be meant. Without it, what differs is printed, and the run ends with 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from struct import Struct
from typing import Any, Final
from unittest.mock import patch

from bench.ending import exit_code
from resp import decode
from resp.decode import Decoder
from resp.errors import ProtocolError

FILE: Final = Path(__file__).parent / "data" / "paths.json"
CHUNKS: Final = (1 << 16, 1460, 100)

# What answers how far it came in the buffer, and what answers replies.
_METHODS: Final = (
    "_take",
    "_burst",
    "_burst_of_equal_lines",
    "_burst_of_bulks",
    "_burst_of_large_bulks",
    "_burst_of_tokens",
)
_FUNCTIONS: Final = (
    *("_one_shot", "_flat", "_walk", "_rows", "_block", "_column", "_fit", "_cells"),
    *("_bulk_head", "_bulk_size"),
)

Counts = dict[str, list[int]]


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def array(*items: bytes, mark: bytes = b"*") -> bytes:
    width = 2 if mark == b"%" else 1
    return b"%b%d\r\n%b" % (mark, len(items) // width, b"".join(items))


def claim(number: int, payload: int = 20) -> bytes:
    return array(bulk(b"JOB%011d" % number), bulk(b"p" * payload), b":%d\r\n" % (number % 5))


def streams() -> Iterator[tuple[str, bytes]]:
    """Streams of every shape that a way is made for, and of what stops it."""
    for count in (1, 3, 4, 5, 15, 16, 17, 63, 64, 65, 80, 255, 256, 257, 340, 600):
        yield f"{count} equal bulks", bulk(b"x" * 10) * count
        yield f"array of {count} equal bulks", array(*[bulk(b"%05d" % n) for n in range(count)])
        yield f"{count} equal lines", b":7\r\n" * count + b"+OK\r\n"
        yield f"array of {count} numbers", array(*[b":%d\r\n" % (n * n) for n in range(count)])
        yield f"{count} claims", b"".join(map(claim, range(count)))
        yield f"array of {count} claims", array(*map(claim, range(count)))
        pairs = [bulk(b"%d" % n * (n % 7 + 1)) for n in range(2 * count)]
        yield f"map of {count}", array(*pairs, mark=b"%")
        yield f"array of {count} bulks", array(*pairs[:count])
        alternate = (bulk(b"field"), bulk(b"value %02d" % (count % 100)))
        yield f"map of {count} of two sizes", array(*alternate * count, mark=b"%")
        yield f"set of {count}", array(*[bulk(b"%04d" % n) for n in range(count)], mark=b"~")
    for size in (0, 9, 10, 99, 100, 500, 511, 512, 513, 999, 1023, 1024, 1025, 4086, 4096, 5000):
        yield f"bulk of {size}", bulk(b"x" * size)
        yield f"8 bulks of {size}", bulk(b"x" * size) * 8
        yield f"bulks from {size}", b"".join(bulk(b"x" * (size + n)) for n in range(8))
        yield f"map of 4, {size}", array(*[bulk(b"k"), bulk(b"v" * size)] * 4, mark=b"%")
    for line in (b"+OK", b"+hello", b":1", b":-5", b":01", b":%d" % 10**18, b"-ERR no", b",1.5"):
        yield f"{line!r} once", line + b"\r\n"
        yield f"{line!r} often", (line + b"\r\n") * 100
        yield f"{line!r} in an array", array(*[line + b"\r\n"] * 20)
    for kind in (b"*", b"~", b">", b"%", b"|"):
        yield f"{kind!r} of all", array(*[b"+k\r\n", b"$-1\r\n"] * 3, mark=kind) + b"+OK\r\n"
        yield f"20 {kind!r}", (array(b"+k\r\n", bulk(b"v"), mark=kind) + b"#t\r\n") * 20
    for depth in (1, 2, 20, 127, 128, 129):
        yield f"{depth} deep", b"*1\r\n" * depth + b":1\r\n" + b"+OK\r\n" * 40
    draw = random.Random(7)
    texts = [b"a\r\nb", b"$3\r\nabc", b"", b"\r", b"x" * 30, b"*2", b"x" * 600]
    for number in range(40):
        rows = [claim(n, draw.choice((5, 5, 5, 30))) for n in range(draw.randrange(8, 120))]
        for _ in range(draw.randrange(3)):
            rows[draw.randrange(len(rows))] = draw.choice(
                [b"*-1\r\n", bulk(draw.choice(texts)), array(bulk(b"x"), b":1\r\n"), b"_\r\n"]
            )
        yield f"claims, disturbed, {number}", array(*rows) + b"".join(rows)
    for number in range(40):
        some = [bulk(draw.choice(texts)) for _ in range(draw.randrange(4, 90))]
        yield f"texts, {number}", array(*some) + b"".join(some)
    layouts: tuple[Callable[[int], bytes], ...] = (
        lambda n: array(bulk(b"%d-1" % n), array(bulk(b"k"), bulk(b"v%d" % n))),
        lambda n: array(bulk(b"member"), b",%d.5\r\n" % n),
        lambda n: array(b":%d\r\n" % n, b"+OK\r\n", b"$-1\r\n", b"#t\r\n"),
        lambda n: array(b"+text %d\r\n" % n, array(b":1\r\n", array(bulk(b"x" * (n % 3))))),
        lambda n: array(array(), bulk(b"x")),
        lambda n: array(b"*-1\r\n", bulk(b"x")),
        lambda n: array(*[b":%d\r\n" % at for at in range(47)]),
        lambda n: array(*[b":%d\r\n" % at for at in range(49)]),
        lambda n: array(bulk(b"x" * 1024), b":1\r\n"),
        lambda n: array(bulk(b"k"), b":1\r\n", mark=b"%"),
    )
    others = (
        *(bulk(b"xx"), b":1\r\n", b":01\r\n", b"-ERR\r\n", b"?\r\n", array(bulk(b"x"))),
        *(array(bulk(b"x"), b",a\r\n"), array(bulk(b"x"), array()), b"*2\r\n:1\r\n_\r\n"),
    )
    for number, layout in enumerate(layouts):
        for count in (2, 3, 15, 16, 17, 31, 80, 100):
            rows = [layout(n) for n in range(count)]
            yield f"{count} rows {number}", b"".join(rows) + b"+OK\r\n"
            yield f"array of {count} rows {number}", array(*rows) + b"+OK\r\n"
        for at, other in enumerate(others):
            rows = [layout(n) for n in range(40)]
            rows[20 + at] = other
            yield f"rows {number}, another {at}", b"".join(rows)
            yield f"array of rows {number}, another {at}", array(*rows)
    yield "streamed", b"*?\r\n:1\r\n" + b":2\r\n" * 30 + b".\r\n" + b"$?\r\n;2\r\nab\r\n;0\r\n" * 9
    yield "attributes", (b"|1\r\n+k\r\n:1\r\n" + bulk(b"v")) * 30
    yield "malformed later", claim(1) * 40 + b"*3\r\n$1\r\nab\r\n"
    yield "a push in an array", array(*[b":1\r\n"] * 30, b">1\r\n+a\r\n")


@contextmanager
def counted(counts: Counts) -> Iterator[None]:
    """Count what each way does."""

    def note(name: str, took: int) -> None:
        entry = counts.setdefault(name, [0, 0])
        entry[0] += 1
        entry[1] += took

    def method(name: str, way: Callable[..., int]) -> Callable[..., int]:
        def call(self: Decoder, buffer: bytes, position: int, *rest: Any) -> int:
            after = way(self, buffer, position, *rest)
            note(name, after - position if after else 0)
            return after

        return call

    def function(name: str, way: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            answer = way(*args)
            told = answer[0] if isinstance(answer, tuple) else answer
            if isinstance(told, Struct):
                told = told.size
            note(name, told if isinstance(told, int) else len(told))
            return answer

        return call

    with ExitStack() as stack:
        for name in _METHODS:
            way = method(name, getattr(Decoder, name))
            stack.enter_context(patch.object(Decoder, name, way))
        for name in _FUNCTIONS:
            stack.enter_context(patch.object(decode, name, function(name, getattr(decode, name))))
        yield


def read(wire: bytes, chunk: int) -> Counts:
    """How a stream is read that comes in chunks of a size."""
    counts: Counts = {}
    decode._bulk_heads.clear()  # what was read before must not tell
    decoder = Decoder()
    with counted(counts):
        try:
            for at in range(0, len(wire), chunk):
                decoder.decode(wire[at : at + chunk])
        except ProtocolError:
            pass
    return dict(sorted(counts.items()))


def measured() -> dict[str, dict[str, Counts]]:
    """How every stream is read, by its name and the size of its chunks."""
    return {
        name: {
            str(chunk): read(wire, chunk)
            for chunk in CHUNKS
            if chunk == CHUNKS[0] or len(wire) > chunk
        }
        for name, wire in streams()
    }


def main(argv: list[str] | None = None) -> int:
    """Compare with what is written down, or write it; answer the exit code."""
    told = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(prog="python -m tests.paths", description=told)
    parser.add_argument("--write", action="store_true", help="write tests/data/paths.json anew")
    options = parser.parse_args(argv)
    found = measured()
    if options.write:
        lines = (
            f"{json.dumps(name)}:{json.dumps(ways, separators=(',', ':'))}"
            for name, ways in found.items()
        )
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    known = json.loads(FILE.read_text())
    differ = [name for name in {**known, **found} if known.get(name) != found.get(name)]
    for name in differ:
        print(f"{name}\n  written {known.get(name)}\n  found   {found.get(name)}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))

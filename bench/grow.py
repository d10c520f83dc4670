"""How cost grows: decoding with the reply, a connector with its callers, a queue with its length.

    python -m bench grow [--only codec,callers,queue] [--most 100000] [--rounds 7] [--quick]
                         [--json]

    codec    processor time, the garbage collector off, of decoding arrays of 10 items to `--most`,
             and one bulk of a hundred bytes to ten times `--most`, above which fresh pages of the
             kernel's are what takes time; all come in chunks of 64 KiB
    callers  time a command on one connector with 1 to 500 tasks, or 1 to 64 threads, and p99 from
             call to answer
    queue    each verb on sets of 10^3 jobs to `--most`: the time that the server says it spent on
             the call, of the faster half of the calls, and the time from call to answer; one place
             of the queue is grown at a time

A round takes every size in turn, so that a noisy moment falls on all; a figure is the median over
the rounds. The exponent is the slope of the logarithm of the time over that of the size, by least
squares within each round, over the upper three decades: 0 is constant, 1 is linear. What takes
O(log n) has 0.1 from 10^3 to 10^6 at the most, where log n doubles; decoding is linear, and may
have 1.2, as large replies leave the caches.

`bench all` goes up to a million, of which jobs take 250 MB of the private server's memory.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import resp
from emq.embedded import Embedded, EmbeddedError
from resp.decode import Decoder

from . import options
from .figures import Figure, Progress, Run, Size, Verdict, quartiles, silent
from .lengths import PLACES, Cost, Lengths, Verb, WrongWork, verbs
from .load import from_threads

SUITE: Final = "grow"
SECTIONS: Final = ("codec", "callers", "queue")
OURS: Final = "resp"
SERVER: Final = "server"
ROUND_TRIP: Final = "round trip"
EXPONENT: Final = "exponent"

_LINEAR: Final = 1.2
_FLAT: Final = 0.1
_UPPER: Final = 4  # sizes, three decades: below, what a call costs anyhow hides the growth
_CHUNK: Final = 64 * 1024
_LAP: Final = 4_000_000  # bytes
_TASKS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_THREADS: Final = (1, 2, 4, 8, 16, 32, 64)
_MANY: Final = 10  # tasks from which on a command costs the same
# With n callers in turn, each waits for n commands: p99 above that is a caller that is passed over.
_UNFAIR: Final = 3.0


@dataclass(frozen=True)
class Scale:
    """How much is done.

    Attributes:
        rounds: How often each is timed.
        most: Items of an array, and jobs in a set; a bulk has a hundred times as many bytes.
        least: Jobs in the smallest set.
        calls: Of a verb, a round; of one that is about a hundred jobs, a tenth of that.
        commands: Of all callers together, a round.
    """

    rounds: int = 7
    most: int = 100_000
    least: int = 1000
    calls: int = 40
    commands: int = 10_000


FULL: Final = Scale(rounds=5, most=1_000_000)
QUICK: Final = Scale(rounds=3, most=10_000, least=100, calls=10, commands=1000)


def decades(least: int, most: int) -> list[int]:
    """Answer least, ten times that, and so on to `most`."""
    return [*itertools.takewhile(lambda size: size <= most, (least * 10**n for n in range(20)))]


def exponent(times: Mapping[int, float]) -> float:
    """Answer the slope of log time over log size; 0 where there is one size."""
    if len(times) < 2:
        return 0.0
    # A clock that ticks may say that something took no time.
    points = [(math.log(size), math.log(max(took, 0.001))) for size, took in times.items()]
    slope: float = statistics.linear_regression(*zip(*points, strict=True)).slope
    return slope


def _found(
    run: Run,
    section: str,
    work: str,
    contender: str,
    unit: str,
    rounds: Sequence[Mapping[int, float]],
) -> None:
    """Add a figure for each size."""
    for size in rounds[0]:
        low, median, high = quartiles([times[size] for times in rounds])
        run.figures.append(
            Figure(
                *(SUITE, section, work, contender, unit, median, low, high, len(rounds)), size=size
            )
        )


def _grown(
    run: Run,
    section: str,
    work: str,
    rounds: Sequence[Mapping[int, float]],
    bound: float | None,
    cost: str,
    of: str,
) -> None:
    """Add the exponent as a figure, and whether it is within its bound."""
    found = [exponent(times) for times in rounds]
    low, median, high = quartiles(found)
    run.figures.append(
        Figure(SUITE, section, work, f"{EXPONENT} of {of}", "", median, low, high, len(rounds))
    )
    if bound is not None:
        run.verdicts.append(
            Verdict(
                *(SUITE, f"{work}: {EXPONENT}, {cost}", of, "", "", bound, False),
                got=median,
                low=low,
                high=high,
            )
        )


# Decoding.


def _array(item: Callable[[int], bytes], size: int) -> bytes:
    return b"*%d\r\n%b" % (size, b"".join(map(item, range(size))))


def _integer(number: int) -> bytes:
    return b":%d\r\n" % (number * 7919)


def _bulk(number: int) -> bytes:
    return b"$32\r\n%032d\r\n" % number


def _claim(number: int) -> bytes:
    payload = b'{"to":"user%d@example.com"}' % number
    told = (number, len(payload), payload, number % 7 + 1)
    return b"*3\r\n$14\r\nJOB%011d\r\n$%d\r\n%b\r\n:%d\r\n" % told


def _one_bulk(size: int) -> bytes:
    return b"$%d\r\n%b\r\n" % (size, bytes(size))


@dataclass(frozen=True)
class _Stream:
    """A reply of a growing size.

    Attributes:
        name: What it is.
        wire: Make its bytes, for a size.
        per: What its time is divided by, in words and in sizes.
        times: Its least and most size as a multiple of those of an array.
    """

    name: str
    wire: Callable[[int], bytes]
    per: tuple[str, int] = ("an item", 1)
    times: int = 1


_STREAMS: Final = (
    _Stream("array of integers", partial(_array, _integer)),
    _Stream("array of bulks of 32 bytes", partial(_array, _bulk)),
    _Stream("array of claim replies", partial(_array, _claim)),
    _Stream("one bulk", _one_bulk, ("KiB", 1024), 10),
)


def _decode(chunks: Sequence[bytes]) -> None:
    decoder = Decoder()
    replies = 0
    for chunk in chunks:
        decoder.feed(chunk)
        replies += len(decoder.replies())
    if replies != 1:
        raise WrongWork(f"{replies} replies of one")


def _decode_us(chunks: Sequence[bytes], repeats: int) -> float:
    """Processor time of one decoding, in microseconds.

    Without the garbage collector: of a million lists, it takes half of the time, whoever makes
    them.
    """
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        for _ in range(repeats):
            _decode(chunks)
        return (time.process_time() - began) / repeats * 1e6
    finally:
        gc.enable()


def _repeats(chunks: Sequence[bytes]) -> int:
    """How often to decode, for a lap of a few milliseconds."""
    return min(2000, max(1, _LAP // sum(map(len, chunks))))


def _codec(run: Run, scale: Scale, progress: Progress) -> None:
    for at, stream in enumerate(_STREAMS):
        sizes = decades(10 * stream.times, scale.most * stream.times)
        chunks: dict[int, list[bytes]] = {}
        for size in sizes:
            data = stream.wire(size)
            chunks[size] = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
        rounds: list[dict[int, float]] = []
        for turn in range(scale.rounds + 1):
            done = turn / (scale.rounds + 1)
            progress(f"{stream.name}, round {turn}", (at + done) / len(_STREAMS))
            took = {size: _decode_us(chunks[size], _repeats(chunks[size])) for size in sizes}
            if turn:  # the first got memory from the system
                rounds.append(took)
        per, divisor = stream.per
        work = f"{stream.name}, {per}"
        each = [{size: us / size * divisor for size, us in took.items()} for took in rounds]
        _found(run, "codec", work, OURS, "us CPU", each)
        upper = [{size: took[size] for size in sizes[-_UPPER:]} for took in rounds]
        _grown(run, "codec", work, upper, _LINEAR, "O(bytes)", OURS)


# Callers.


async def _from_tasks(
    connector: resp.AsyncConnector, tasks: int, times: int
) -> tuple[float, float]:
    """Microseconds a command, and p99 from call to answer."""
    clock = time.perf_counter
    each: list[float] = []

    async def call() -> None:
        command = connector.command
        for _ in range(times):
            began = clock()
            await command("GET", "key")
            each.append(clock() - began)

    began = clock()
    await asyncio.gather(*(call() for _ in range(tasks)))
    took = clock() - began
    each.sort()
    return took / len(each) * 1e6, each[len(each) * 99 // 100] * 1e6


async def _tasks_rounds(url: str, scale: Scale, progress: Progress) -> list[_Laps]:
    rounds = []
    async with await resp.connect_async(url) as connector:
        for at in range(scale.rounds + 1):
            progress(f"tasks, round {at}", at / (scale.rounds + 1) / 2)
            laps = {
                tasks: await _from_tasks(connector, tasks, max(2, scale.commands // tasks))
                for tasks in _TASKS
            }
            if at:
                rounds.append(laps)
    return rounds


_Laps = dict[int, tuple[float, float]]


def _threads_rounds(url: str, scale: Scale, progress: Progress) -> list[_Laps]:
    rounds = []
    with resp.connect(url) as connector:
        call = partial(connector.command, "GET", "key")
        for at in range(scale.rounds + 1):
            progress(f"threads, round {at}", (1 + at / (scale.rounds + 1)) / 2)
            laps: _Laps = {}
            for threads in _THREADS:
                lap = from_threads([call] * threads, max(2, scale.commands // threads))
                laps[threads] = lap.us, lap.p99_us
            if at:
                rounds.append(laps)
    return rounds


def _callers(run: Run, scale: Scale, progress: Progress) -> None:
    with Embedded(tcp=True) as server:
        with resp.connect(server.url) as connector:
            connector.command("SET", "key", "x" * 32)
        tasks = asyncio.run(_tasks_rounds(server.url, scale, progress))
        threads = _threads_rounds(server.url, scale, progress)
    for who, rounds in (("tasks", tasks), ("threads", threads)):
        work = f"GET from {who}"
        costs = [{callers: lap[0] for callers, lap in laps.items()} for laps in rounds]
        _found(run, "callers", f"{work}, a command", OURS, "us", costs)
        many = [{n: cost for n, cost in laps.items() if n >= _MANY} for laps in costs]
        bound = _FLAT if who == "tasks" else None
        _grown(run, "callers", f"{work}, a command", many, bound, "O(1)", OURS)
        late = [{callers: lap[1] for callers, lap in laps.items()} for laps in rounds]
        _found(run, "callers", f"{work}, p99", OURS, "us", late)
        if who == "tasks":
            most = max(_TASKS)
            shares = [laps[most][1] / laps[most][0] / most for laps in rounds]
            low, median, high = quartiles(shares)
            run.verdicts.append(
                Verdict(
                    *(SUITE, f"{work}, {most}: p99 in fair shares", OURS, "", "x", _UNFAIR, False),
                    got=median,
                    low=low,
                    high=high,
                )
            )


# The queue.


def _lap(lengths: Lengths, verb: Verb, sizes: Sequence[int], calls: int) -> dict[int, Cost]:
    return {size: lengths.time(verb, size, calls) for size in sizes}


def _calls(scale: Scale, verb: Verb) -> int:
    """How often a round calls a verb: what is about a hundred jobs must not double the set."""
    return max(2, scale.calls // 10) if verb.jobs > 2 else scale.calls


def _queue(run: Run, scale: Scale, progress: Progress) -> None:
    sizes = decades(scale.least, scale.most)
    with Lengths(sizes) as lengths:
        for turn, place in enumerate(PLACES):
            progress(f"filling {place}", turn / len(PLACES))
            lengths.grow(place)
            due = [verb for verb in verbs() if place in verb.places]
            rounds: list[list[dict[int, Cost]]] = []
            for at in range(scale.rounds + 1):
                done = at / (scale.rounds + 1)
                progress(f"{place} grows, round {at}", (turn + done) / len(PLACES))
                laps = [_lap(lengths, verb, sizes, _calls(scale, verb)) for verb in due]
                if at:  # the first loaded the scripts
                    rounds.append(laps)
            for verb, series in zip(due, zip(*rounds, strict=True), strict=True):
                _tell(run, verb, place, series)


def _tell(run: Run, verb: Verb, place: str, series: Sequence[Mapping[int, Cost]]) -> None:
    section = f"queue, {place} grows"
    spent = [{size: cost.server for size, cost in laps.items()} for laps in series]
    trips = [{size: cost.round_trip for size, cost in laps.items()} for laps in series]
    _found(run, section, verb.name, SERVER, "us", spent)
    _found(run, section, verb.name, ROUND_TRIP, "us", trips)
    _grown(run, section, verb.name, spent, verb.exponent, f"{verb.cost} in {place}", SERVER)


_MEASURES: Final = {"codec": _codec, "callers": _callers, "queue": _queue}


def measure(scale: Scale, only: Sequence[str] = SECTIONS, progress: Progress = silent) -> Run:
    """Measure some sections.

    Raises:
        EmbeddedError: There is no server.
        WrongWork: A verb answered something else than what it is timed for.
    """
    run = Run()
    for at, section in enumerate(only):

        def told(text: str, part: float = 0.0, section: str = section, at: int = at) -> None:
            progress(f"{section}: {text}", (at + part) / len(only))

        _MEASURES[section](run, scale, told)
    progress("", 1)
    return run


def suite(size: Size, progress: Progress) -> Run:
    """Measure everything, up to a million."""
    scale = QUICK if size.quick else FULL
    return measure(replace(scale, rounds=size.rounds or scale.rounds), progress=progress)


def main(argv: Sequence[str]) -> int:
    """Measure and print; 3 where there is no server, 1 where a verb did not do its work."""
    parser = options.parser(SUITE, "How cost grows: with a reply, with callers, with a queue.")
    whole = Scale()
    parser.add_argument(
        "--rounds",
        type=options.up_to(options.MOST_ROUNDS),
        help=f"how often each is timed; {whole.rounds}",
    )
    parser.add_argument(
        "--most",
        type=options.up_to(FULL.most),
        help=f"items of a reply, and jobs in a set; {whole.most:,}",
    )
    parser.add_argument(
        "--only",
        type=options.some(*SECTIONS),
        default=list(SECTIONS),
        metavar="SECTIONS",
        help=f"some of {','.join(SECTIONS)}",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see it run")
    told = parser.parse_args(argv)
    scale = QUICK if told.quick else whole
    scale = replace(scale, rounds=told.rounds or scale.rounds, most=told.most or scale.most)
    if scale.most < scale.least:
        parser.error(f"--most is at least {scale.least:,}")
    try:
        run = measure(scale, told.only, options.terminal())
    except (EmbeddedError, WrongWork) as error:
        print(f"bench {SUITE}: {error}", file=sys.stderr)
        return 3 if isinstance(error, EmbeddedError) else 1
    options.tell(run, as_document=told.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

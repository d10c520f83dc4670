"""Jobs through a queue, beside other queues and beside a bare socket.

    python -m bench jobs [--rounds 5] [--jobs 5000] [--only jobs,enqueue,latency,life]
                         [--against taskiq,bullmq,...] [--quick] [--pin] [--json]

Every contender gets a producer and one worker process of its own, on the same private server. A
round times all of them in turn, so that a noisy moment falls on all; a figure is the median over
the rounds, and a ratio is the median of the ratios within each round.

    jobs     no-op jobs are enqueued, then the worker starts: from the first that its handler sees
             until the server knows that the last is done
    enqueue  the same jobs on their way in, one by one, and in bulk where there is such a call
    latency  an idle worker, and a job every 20 to 50 ms: from before the enqueue to the handler
    life     counted, not timed: bytes both ways and commands of the clients for each job, through a
             relay, with a backlog before the worker; what the worker says while there is nothing to
             do; and keys and bytes that the server still holds for each finished job

`x ours` says how many times as much as ours it costs: time, bytes or commands, also where the
figure shown is a rate. What is to be reached is in `goals`.

Worker, producer and server share the machine's cores, so how the scheduler places them moves every
figure. `--pin` keeps all on one core: figures that repeat, in which the work itself is what
differs, the server's and the idle processes' included.

A contender that is not installed, or fails, is named with the reason.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import emq
import resp
from emq.embedded import Embedded, EmbeddedError

from . import goals, machine
from .figures import Progress, Run, Series, figures, silent
from .figures import Size as Extent
from .goals import FUSED, VERBS
from .options import CAN_PIN, MOST_ROUNDS, one_core, parser, some, tell, terminal, up_to
from .queues import contenders as named
from .queues.contenders import CONTENDERS, Contender
from .queues.host import Failed, Host
from .queues.party import MOST_JOBS, QUEUE
from .relay import Crossed, Relay

SUITE: Final = "jobs"
SECTIONS: Final = {
    "jobs": "one worker process",
    "enqueue": "one producer",
    "latency": "idle worker, enqueue to handler",
    "life": "a job's life, counted",
}


@dataclass(frozen=True)
class Work:
    """What is measured.

    Attributes:
        section: One of `SECTIONS`.
        name: What it is.
        unit: Of the figures.
        ours: Whose costs the others' are a multiple of.
        rate: Whether a higher figure is the better one.
    """

    section: str
    name: str
    unit: str
    ours: str
    rate: bool = False


JOBS: Final = Work("jobs", "no-op jobs", "/s", named.CONSUMER, rate=True)
SINGLY: Final = Work("enqueue", "one by one", "/s", named.QUEUE_OF_OURS, rate=True)
BULK: Final = Work("enqueue", "in bulk", "/s", named.QUEUE_OF_OURS, rate=True)
P50: Final = Work("latency", "p50", "ms", named.CONSUMER)
P99: Final = Work("latency", "p99", "ms", named.CONSUMER)
BYTES: Final = Work("life", "bytes a job", "B", named.CONSUMER)
COMMANDS: Final = Work("life", "commands a job", "", named.CONSUMER)
IDLE: Final = Work("life", "commands of an idle worker", "/s", named.CONSUMER)
KEYS: Final = Work("life", "keys left a job", "", named.CONSUMER)
MEMORY: Final = Work("life", "bytes left a job", "B", named.CONSUMER)
WORKS: Final = (JOBS, SINGLY, BULK, P50, P99, BYTES, COMMANDS, IDLE, KEYS, MEMORY)


@dataclass(frozen=True)
class Size:
    """How much is done.

    Attributes:
        rounds: How often each is timed.
        jobs: No-op jobs a round, before a contender's share is taken.
        samples: Jobs a round whose pickup is timed.
        counted: Jobs whose bytes, commands and remains are counted.
        idle: Seconds that idle workers are listened to.
    """

    rounds: int = 5
    jobs: int = 5000
    samples: int = 100
    counted: int = 2000
    idle: float = 20.0


_QUICK: Final = Size(rounds=1, jobs=200, samples=10, counted=40, idle=1.0)
_PACE_S: Final = {"low": 0.02, "high": 0.05}
_PATIENCE_S: Final = 120.0
_SETTLE_S: Final = 0.3  # for what a worker says after its last job
_WARM: Final = 20  # jobs before anything is counted
_TIMED: Final = 0.8  # the part of a run in which it is timed


# Measuring.


class _Bench:
    """One run: the server, who takes part, and what was found so far."""

    def __init__(
        self,
        server: Embedded,
        connector: resp.Connector,
        who: Sequence[Contender],
        size: Size,
        progress: Progress = silent,
    ) -> None:
        self.server = server
        self.connector = connector
        self.size = size
        self.missing: dict[str, str] = {}
        self.found = {
            work: Series(SECTIONS[work.section], work.name, work.unit, work.ours, work.rate)
            for work in WORKS
        }
        self._progress = progress
        self._who = list(who)
        for contender in who:
            if contender.is_missing():
                self._drop(contender, f"pip install {' '.join(contender.packages)}")

    def _drop(self, contender: Contender, reason: str) -> None:
        self.missing[contender.name] = reason
        self._who.remove(contender)
        for series in self.found.values():
            series.values.pop(contender.name, None)

    def _fail(self, contender: Contender, error: Failed) -> None:
        """Go on without a peer that failed.

        Raises:
            Failed: It is one of ours.
        """
        if contender.ours:
            raise Failed(f"{contender.name}: {error}") from error
        self._drop(contender, str(error))

    def note(self, work: Work, contender: str, value: float) -> None:
        """Keep a figure of this round."""
        self.found[work].values.setdefault(contender, []).append(value)

    def timed(self, sections: Sequence[str]) -> None:
        """Time everybody in turn, again and again."""
        for at in range(self.size.rounds):
            for contender in self._who.copy():
                mine = [section for section in sections if section in contender.sections]
                if mine:
                    told = f"round {at + 1} of {self.size.rounds}: {contender.name}"
                    self._progress(told, _TIMED * at / self.size.rounds)
                    try:
                        self._lap(contender, mine)
                    except Failed as error:
                        self._fail(contender, error)

    def _lap(self, contender: Contender, sections: Sequence[str]) -> None:
        self.connector.command("FLUSHALL")
        party = contender.load()
        name, url = contender.name, f"redis://{self.server.host}:{self.server.port}/0"
        jobs = max(1, int(self.size.jobs * contender.share))
        with ExitStack() as stack:
            producer = stack.enter_context(Host(name, "producer", url))
            works = "jobs" in sections or "latency" in sections
            worker = stack.enter_context(Host(name, "worker", url)) if works else None
            producer.ask("open", jobs=jobs)
            waiting = 0
            if "enqueue" in sections:
                waiting = max(1, jobs // 4)
                told = producer.ask("singly", _PATIENCE_S, jobs=waiting)
                self.note(SINGLY, name, waiting / told["ns"] * 1e9)
                if party.bulk:
                    waiting += jobs
                    told = producer.ask("bulk", _PATIENCE_S, jobs=jobs)
                    self.note(BULK, name, jobs / told["ns"] * 1e9)
            if worker is None:
                return
            more = (jobs if "jobs" in sections else _WARM) - waiting
            if more > 0:
                producer.ask("bulk", _PATIENCE_S, jobs=more)
                waiting += more
            worker.ask("expect", jobs=waiting)
            worker.ask("work")
            told = self._handled(worker, waiting)
            done = self._acknowledged(party.left, self.connector)
            if "jobs" in sections:
                self.note(JOBS, name, waiting / (done - told["first"]) * 1e9)
            if "latency" in sections:
                worker.ask("expect", jobs=self.size.samples)
                producer.ask("pace", _PATIENCE_S, jobs=self.size.samples, **_PACE_S)
                late = sorted(self._handled(worker, self.size.samples)["late_us"])
                self.note(P50, name, statistics.median(late) / 1000)
                self.note(P99, name, late[len(late) * 99 // 100] / 1000)

    def _handled(self, worker: Host, jobs: int) -> dict[str, Any]:
        told = worker.ask("report", _PATIENCE_S + 5, patience=_PATIENCE_S)
        if told["seen"] != jobs:
            raise Failed(f"its handler saw {told['seen']:,} of {jobs:,} jobs")
        return told

    def _acknowledged(self, left: Any, connector: resp.Connector) -> int:
        """Wait until the server holds no job that is not done, and answer when that was."""
        end = time.monotonic() + _PATIENCE_S
        while jobs := left(connector):
            if time.monotonic() > end:
                raise Failed(f"{jobs:,} jobs were handled, and not acknowledged")
            time.sleep(0.0005)
        return time.monotonic_ns()

    def counted(self) -> None:
        """Count bytes, commands and remains of everybody, each in a database of its own."""
        self.connector.command("FLUSHALL")
        with ExitStack() as stack:
            idle: list[tuple[Contender, Relay, Host, Crossed, float]] = []
            database = 0
            for contender in self._who.copy():
                if "life" not in contender.sections:
                    continue
                self._progress(f"counting: {contender.name}", _TIMED)
                database += 1
                relay = stack.enter_context(Relay(self.server.host, self.server.port))
                if contender.name == named.QUEUE_OF_OURS:
                    self._verbs(relay, database)
                    continue
                worker = stack.enter_context(
                    Host(contender.name, "worker", f"redis://127.0.0.1:{relay.port}/{database}")
                )
                try:
                    lives = self._lives(contender, relay, worker, database)
                    idle.append((contender, relay, worker, *lives))
                except Failed as error:
                    self._fail(contender, error)
            self._progress("listening to idle workers", _TIMED)
            before = [relay.crossed() for _, relay, *_ in idle]
            time.sleep(self.size.idle)
            for (contender, relay, _, life, took), began in zip(idle, before, strict=True):
                rate = (relay.crossed() - began).times(1 / self.size.idle)
                jobs = self._counted(contender)
                own = (life - rate.times(took)).times(1 / jobs)
                self.note(BYTES, contender.name, own.size)
                self.note(COMMANDS, contender.name, own.commands)
                self.note(IDLE, contender.name, rate.commands)

    def _counted(self, contender: Contender) -> int:
        return max(_WARM, int(self.size.counted * contender.share))

    def _lives(
        self, contender: Contender, relay: Relay, worker: Host, database: int
    ) -> tuple[Crossed, float]:
        """What crossed for a backlog of jobs, and the seconds that the worker ran meanwhile."""
        party, jobs = contender.load(), self._counted(contender)
        url = f"redis://127.0.0.1:{relay.port}/{database}"
        direct = f"valkey://{self.server.host}:{self.server.port}/{database}"
        with Host(contender.name, "producer", url) as producer, resp.connect(direct) as connector:
            producer.ask("open", jobs=jobs)
            producer.ask("singly", jobs=_WARM)
            worker.ask("expect", jobs=_WARM)
            worker.ask("work")
            self._handled(worker, _WARM)
            self._acknowledged(party.left, connector)
            time.sleep(_SETTLE_S)
            crossed, held = relay.crossed(), _held(connector)
            worker.ask("expect", jobs=jobs)
            with worker.stopped():
                producer.ask("singly", _PATIENCE_S, jobs=jobs)
            began = time.monotonic()
            self._handled(worker, jobs)
            self._acknowledged(party.left, connector)
            time.sleep(_SETTLE_S)
            life, took = relay.crossed() - crossed, time.monotonic() - began
            for work, before, after in zip((KEYS, MEMORY), held, _held(connector), strict=True):
                # What is there once for all jobs may have shrunk meanwhile.
                self.note(work, contender.name, max(0, after - before) / jobs)
        return life, took

    def _verbs(self, relay: Relay, database: int) -> None:
        """Our own verbs, called here: no idle worker is among what crosses."""
        jobs = self.size.counted
        with emq.connect(f"valkey://127.0.0.1:{relay.port}/{database}") as connector:
            queue = emq.Queue(connector, QUEUE)

            def three(jobs: int) -> None:
                for _ in range(jobs):
                    queue.enqueue(b"0")
                for _ in range(jobs):
                    job = queue.claim()
                    assert job is not None
                    queue.complete(job)

            def fused(jobs: int) -> None:
                for _ in range(jobs):
                    queue.enqueue(b"0")
                job = queue.claim()
                while job is not None:
                    job = queue.complete_and_claim(job)

            for name, live in ((VERBS, three), (FUSED, fused)):
                live(1)  # loads the scripts
                began = relay.crossed()
                live(jobs)
                middle = relay.crossed()
                live(2 * jobs)
                # The difference of the two leaves out the claim before the first job.
                own = (relay.crossed() - middle - (middle - began)).times(1 / jobs)
                self.note(BYTES, name, own.size)
                self.note(COMMANDS, name, own.commands)


def _held(connector: resp.Connector) -> tuple[int, int]:
    """How many keys a database has, and the bytes that they take."""
    keys = set[bytes]()
    cursor, done = b"0", False
    while not done:
        page: Any = connector.command("SCAN", cursor, "COUNT", 1000)
        cursor, some = page
        keys.update(some)
        done = cursor == b"0"
    sizes: Any = connector.pipeline([("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys])
    return len(keys), sum(size or 0 for size in sizes)


def measure(
    size: Size,
    only: Sequence[str] = tuple(SECTIONS),
    against: Sequence[str] | None = None,
    progress: Progress = silent,
) -> Run:
    """Measure some sections, for ours, the floors and some peers; None is all.

    Raises:
        Failed: One of ours did.
        EmbeddedError: There is no server.
    """
    who = [
        contender
        for contender in CONTENDERS
        if (not contender.packages or against is None or contender.name in against)
        and any(section in contender.sections for section in only)
    ]
    with Embedded(tcp=True) as server, resp.connect(server.url) as connector:
        bench = _Bench(server, connector, who, size, progress)
        bench.timed(only)
        if "life" in only:
            bench.counted()
        versions = machine.server(connector)
    progress("")
    found = list(bench.found.values())
    packages = {name for one in who if one.name not in bench.missing for name in one.packages}
    return Run(
        figures(SUITE, found),
        goals.verdicts(SUITE, found),
        bench.missing,
        [f"jobs through a queue, medians of {size.rounds} rounds of {size.jobs:,}"],
        versions | machine.versions(packages),
    )


def suite(size: Extent, progress: Progress) -> Run:
    """Measure for `bench all`."""
    own = _QUICK if size.quick else Size()
    return measure(replace(own, rounds=size.rounds or own.rounds), progress=progress)


def main(argv: Sequence[str]) -> int:
    """Measure and print; 3 where there is no server to measure on, 1 where one of ours failed."""
    line = parser(SUITE, "Jobs through a queue, beside other queues.")
    whole = Size()
    peers = [contender.name for contender in CONTENDERS if contender.packages]
    line.add_argument("--rounds", type=up_to(MOST_ROUNDS), help=f"{whole.rounds}")
    line.add_argument("--jobs", type=up_to(MOST_JOBS), help=f"no-op jobs a round; {whole.jobs}")
    line.add_argument(
        "--only",
        type=some(*SECTIONS),
        default=list(SECTIONS),
        metavar="SECTIONS",
        help=f"some of {','.join(SECTIONS)}",
    )
    line.add_argument(
        "--against",
        type=some("none", *peers),
        metavar="PEERS",
        help=f"none, or some of {','.join(peers)}",
    )
    line.add_argument("--quick", action="store_true", help="a round of few jobs, to see it run")
    line.add_argument("--pin", action="store_true", help="everything on one core (Linux)")
    options = line.parse_args(argv)
    if options.pin and not CAN_PIN:
        line.error("--pin needs Linux")
    size = _QUICK if options.quick else whole
    if options.rounds:
        size = replace(size, rounds=options.rounds)
    if options.jobs:
        size = replace(size, jobs=options.jobs, counted=min(options.jobs, size.counted))

    try:
        with one_core() if options.pin else nullcontext():
            run = measure(size, options.only, options.against, terminal())
    except (EmbeddedError, Failed) as error:
        print(f"bench jobs: {error}", file=sys.stderr)
        return 3 if isinstance(error, EmbeddedError) else 1
    tell(run, as_document=options.json)
    return 0

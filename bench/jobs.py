"""Jobs through a queue, beside other queues and beside a bare socket.

    python -m bench jobs [--rounds 5] [--jobs 5000] [--only jobs,enqueue,latency,life,import]
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
    import   a fresh interpreter's import statement

`x ours` says how many times as much as ours it costs: time, bytes or commands, also where the
figure shown is a rate. `reach` is what the project holds itself to.

Worker, producer and server share the machine's cores, so how the scheduler places them moves every
figure. `--pin` keeps all on one core: figures that repeat, in which the work itself is what
differs, the server's and the idle processes' included.

A contender that is not installed, or fails, is named with the reason.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import emq
import resp
from emq.embedded import Embedded, EmbeddedError

from .options import MOST_ROUNDS, up_to
from .queues import contenders as named
from .queues.contenders import CONTENDERS, Contender
from .queues.host import Failed, Host
from .queues.party import MOST_JOBS, QUEUE
from .relay import Crossed, Relay
from .wire import _one_core, _quartiles

SECTIONS: Final = ("jobs", "enqueue", "latency", "life", "import")

_VERBS: Final = "enqueue, claim, complete"
_FUSED: Final = "enqueue, complete_and_claim"
_EMQ: Final = "emq"
_NAMED: Final = "emq, its Queue and connect"
_REDIS: Final = "redis"
_IMPORTS: Final = {
    _EMQ: "import emq",
    _NAMED: "from emq import Queue, connect",
    _REDIS: "import redis",
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
IMPORT: Final = Work("import", "import", "ms", _EMQ)
WORKS: Final = (JOBS, SINGLY, BULK, P50, P99, BYTES, COMMANDS, IDLE, KEYS, MEMORY, IMPORT)


@dataclass(frozen=True)
class Reach:
    """What one of ours must do.

    Attributes:
        work: At what.
        ours: Who.
        bound: What its figure must be at least, for a rate, or at most.
        against: Whose figure it is divided by first, round by round; None is nobody's.
    """

    work: Work
    ours: str
    bound: float
    against: str | None = None


REACH: Final = (
    Reach(JOBS, named.CONSUMER, 4, named.TASKIQ),
    Reach(JOBS, named.CONSUMER, 7, named.BULLMQ),
    Reach(JOBS, named.ASYNC_CONSUMER, 4, named.TASKIQ),
    Reach(JOBS, named.ASYNC_CONSUMER, 7, named.BULLMQ),
    Reach(JOBS, named.BATCHED, 10, named.BULLMQ),
    Reach(BULK, named.QUEUE_OF_OURS, 2, named.BULLMQ),
    Reach(P50, named.CONSUMER, 0.6, named.HUEY),
    Reach(BYTES, _VERBS, 500),
    Reach(BYTES, named.CONSUMER, 500),
    Reach(COMMANDS, _VERBS, 3),
    Reach(COMMANDS, _FUSED, 2),
    Reach(COMMANDS, named.CONSUMER, 3),
    Reach(IDLE, named.CONSUMER, 0.5),
    Reach(IDLE, named.ASYNC_CONSUMER, 0.5),
    Reach(KEYS, named.CONSUMER, 0),
    Reach(IMPORT, _EMQ, 0.3, _REDIS),
)


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


# Measuring.


@dataclass(frozen=True)
class Row:
    """What one contender did at one work.

    Attributes:
        section, work, contender: Who did what.
        unit: Of the figure.
        figure: The median over the rounds.
        low, high: The quartiles of the same.
        ratio: What it costs as a multiple of what ours does in the same round, the median; None
            where ours costs nothing.
    """

    section: str
    work: str
    contender: str
    unit: str
    figure: float
    low: float
    high: float
    ratio: float | None


@dataclass(frozen=True)
class Verdict:
    """Whether something was reached: a figure of ours, or its ratio to that of another.

    Attributes:
        section, work, ours, against: Who did what, and whose figure it was divided by.
        figure: The median over the rounds.
        at_least: Whether the bound is a lower one.
        bound: As told.
    """

    section: str
    work: str
    ours: str
    against: str | None
    figure: float
    at_least: bool
    bound: float

    @property
    def reached(self) -> bool:
        """Whether the figure is on the right side of its bound."""
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound


@dataclass
class Report:
    """The rows, what they say about what is to be reached, and who is missing, with the reason."""

    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    server: str = ""
    versions: dict[str, str] = field(default_factory=dict)


_Series = dict[Work, dict[str, list[float]]]


class _Bench:
    """One run: the server, who takes part, and what was found so far."""

    def __init__(
        self, server: Embedded, connector: resp.Connector, who: Sequence[Contender], size: Size
    ) -> None:
        self.server = server
        self.connector = connector
        self.size = size
        self.missing: dict[str, str] = {}
        self.found: _Series = defaultdict(lambda: defaultdict(list))
        self._who = list(who)
        for contender in who:
            if contender.is_missing():
                self._drop(contender, f"pip install {' '.join(contender.packages)}")

    def _drop(self, contender: Contender, reason: str) -> None:
        self.missing[contender.name] = reason
        self._who.remove(contender)
        for series in self.found.values():
            series.pop(contender.name, None)

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
        self.found[work][contender].append(value)

    def timed(self, sections: Sequence[str]) -> None:
        """Time everybody in turn, again and again."""
        for at in range(self.size.rounds):
            for contender in self._who.copy():
                mine = [section for section in sections if section in contender.sections]
                if mine:
                    _progress(f"round {at + 1} of {self.size.rounds}: {contender.name}")
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
                _progress(f"counting: {contender.name}")
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
            _progress("listening to idle workers")
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

            for name, live in ((_VERBS, three), (_FUSED, fused)):
                live(1)  # loads the scripts
                began = relay.crossed()
                live(jobs)
                middle = relay.crossed()
                live(2 * jobs)
                # The difference of the two leaves out the claim before the first job.
                own = (relay.crossed() - middle - (middle - began)).times(1 / jobs)
                self.note(BYTES, name, own.size)
                self.note(COMMANDS, name, own.commands)

    def imports(self) -> None:
        """Time import statements in fresh interpreters."""
        texts = dict(_IMPORTS)
        if importlib.util.find_spec(_REDIS) is None:
            del texts[_REDIS]
            self.missing.setdefault(_REDIS, "pip install redis")
        with tempfile.TemporaryDirectory() as bytecode:
            for at in range(3 * self.size.rounds + 1):
                for name, text in texts.items():
                    _progress(f"importing: {name}")
                    took = _import_ms(text, bytecode)
                    if at:  # the first wrote the bytecode
                        self.note(IMPORT, name, took)


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


def _import_ms(text: str, bytecode: str) -> float:
    """How long a statement took in a fresh interpreter, which keeps bytecode in that folder."""
    code = f"import time; began = time.perf_counter(); {text}; print(time.perf_counter() - began)"
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": bytecode,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return float(run.stdout) * 1000


def measure(
    size: Size, only: Sequence[str] = SECTIONS, against: Sequence[str] | None = None
) -> Report:
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
        bench = _Bench(server, connector, who, size)
        bench.timed(only)
        if "life" in only:
            bench.counted()
        if "import" in only:
            bench.imports()
        info: Any = connector.command("INFO", "server")
    _progress("")
    return Report(
        list(_rows(bench.found)),
        list(_verdicts(bench.found)),
        bench.missing,
        _server(bytes(info)),
        {
            package: importlib.metadata.version(package)
            for package in sorted({package for one in who for package in one.packages})
            if _version(package)
        },
    )


def _server(info: bytes) -> str:
    told = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    name = "Valkey" if "valkey_version" in told else "Redis"
    return f"{name} {told.get('valkey_version') or told.get('redis_version')}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _rows(found: _Series) -> Iterator[Row]:
    for work in WORKS:
        for who, values in found.get(work, {}).items():
            ratios = [
                ours / its if work.rate else its / ours
                for ours, its in zip(found[work][work.ours], values, strict=False)
                if (its if work.rate else ours)
            ]
            yield Row(
                work.section,
                work.name,
                who,
                work.unit,
                statistics.median(values),
                *_quartiles(values),
                statistics.median(ratios) if ratios else None,
            )


def _verdicts(found: _Series) -> Iterator[Verdict]:
    for reach in REACH:
        series = found.get(reach.work, {})
        ours = series.get(reach.ours)
        its = series.get(reach.against) if reach.against else None
        if not ours or (reach.against and not its):
            continue
        if its:
            ours = [a / b for a, b in zip(ours, its, strict=True)]
        yield Verdict(
            reach.work.section,
            reach.work.name,
            reach.ours,
            reach.against,
            statistics.median(ours),
            reach.work.rate,
            reach.bound,
        )


# Telling.


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:70}\r", end="", file=sys.stderr, flush=True)


_HEADS: Final = {
    "jobs": "one worker process",
    "enqueue": "one producer",
    "latency": "idle worker, enqueue to handler",
    "life": "counted",
    "import": "a fresh interpreter",
}


def _number(value: float) -> str:
    places = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value + 0.0:,.{places}f}"


def table(report: Report, size: Size) -> str:
    """The report as text."""
    lines = [
        f"Jobs through a queue, medians of {size.rounds} rounds of {size.jobs:,} jobs",
        f"{_machine()}, {report.server}",
        ", ".join(f"{name} {version}" for name, version in report.versions.items()),
    ]
    section = work = ""
    for row in report.rows:
        if row.section != section:
            head = f"{_HEADS[row.section]:34}{'contender':30}{'figure':>12}{'quartiles':>22}"
            lines += ["", f"{head}{'x ours':>9}"]
        name = row.work if row.work != work else ""
        spread = f"{_number(row.low)} to {_number(row.high)}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        figure = f"{_number(row.figure)} {row.unit}".rstrip()
        lines.append(f"{name:34}{row.contender:30}{figure:>12}{spread:>22}{ratio:>9}")
        section, work = row.section, row.work
    lines += ["", f"{'reach':34}{'ours':30}{'figure':>12}"]
    for verdict in report.verdicts:
        name = f"{verdict.work}, to {verdict.against}" if verdict.against else verdict.work
        told = "reached" if verdict.reached else "missed"
        sign = ">=" if verdict.at_least else "<="
        cells = f"{name:34}{verdict.ours:30}{verdict.figure:>12.2f}"
        lines.append(f"{cells}  {sign} {verdict.bound:g}  {told}")
    reached = sum(verdict.reached for verdict in report.verdicts)
    lines.append(f"{reached} of {len(report.verdicts)} reached")
    lines += [f"missing: {name}: {reason}" for name, reason in report.missing.items()]
    return "\n".join(line.rstrip() for line in lines)


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    implementation = platform.python_implementation()
    return (
        f"{implementation} {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{cores} cores"
    )


def _some(*names: str) -> Callable[[str], list[str]]:
    """argparse's type of a list with commas between."""

    def some(text: str) -> list[str]:
        words = text.split(",")
        if unknown := [word for word in words if word not in names]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names)}")
        return words

    return some


def main(argv: Sequence[str]) -> int:
    """Measure and print; 3 where there is no server to measure on, 1 where one of ours failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench jobs", description="Jobs through a queue, beside other queues."
    )
    whole = Size()
    peers = [contender.name for contender in CONTENDERS if contender.packages]
    parser.add_argument("--rounds", type=up_to(MOST_ROUNDS), help=f"{whole.rounds}")
    parser.add_argument("--jobs", type=up_to(MOST_JOBS), help=f"no-op jobs a round; {whole.jobs}")
    parser.add_argument(
        "--only",
        type=_some(*SECTIONS),
        default=list(SECTIONS),
        metavar="SECTIONS",
        help=f"some of {','.join(SECTIONS)}",
    )
    parser.add_argument(
        "--against",
        type=_some("none", *peers),
        metavar="PEERS",
        help=f"none, or some of {','.join(peers)}",
    )
    parser.add_argument("--quick", action="store_true", help="a round of few jobs, to see it run")
    parser.add_argument("--pin", action="store_true", help="everything on one core (Linux)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args(argv)
    if options.pin and not hasattr(os, "sched_setaffinity"):
        parser.error("--pin needs Linux")
    size = _QUICK if options.quick else whole
    if options.rounds:
        size = replace(size, rounds=options.rounds)
    if options.jobs:
        size = replace(size, jobs=options.jobs, counted=min(options.jobs, size.counted))

    try:
        with _one_core() if options.pin else nullcontext():
            report = measure(size, options.only, options.against)
    except (EmbeddedError, Failed) as error:
        print(f"bench jobs: {error}", file=sys.stderr)
        return 3 if isinstance(error, EmbeddedError) else 1
    if options.json:
        told = {**asdict(size), **asdict(report)}
        told["verdicts"] = [
            {**asdict(verdict), "reached": verdict.reached} for verdict in report.verdicts
        ]
        print(json.dumps(told, indent=2))
    else:
        print(table(report, size))
    return 0

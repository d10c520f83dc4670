"""What a worker is, without its threads and its loop.

The two consumers share all that decides something: the options, what a job looks like to its
handler, what becomes of a job whose handler returned or raised, which leases are to be renewed, and
which errors are waited out. They differ in how they wait.

Who decides on a job's outcome is settled in one place: a job that runs stands in `Leases.running`,
and whoever takes it out (its slot when the handler has ended, the watcher at the time limit, the
stop at its deadline) is the one who settles it. The others drop what they have.
"""

from __future__ import annotations

import inspect
import itertools
import json
import logging
import math
import os
import random
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields
from enum import Enum
from time import monotonic, time_ns
from typing import Any, Final, Protocol, TypeVar

from resp import Plan, Refused, ServerError, TransportError

from .backoff import Backoff, exponential, jitter
from .errors import JobGone, StaleToken
from .job import Blob, Job
from .keyspace import Keyspace
from .numbers import shown, whole
from .options import JobOptions
from .plans import admin
from .plans.arguments import blob
from .plans.work import LONGEST_WAIT_MS, Completed, Delayed, Failed, Settlement

T = TypeVar("T")

log: Final = logging.getLogger("emq")

ERROR_CHARS: Final = 2_000  # of an error's text that are kept as last_error
PARK_MS: Final = LONGEST_WAIT_MS  # the longest that an idle worker sleeps
BURST_PARK_MS: Final = 100  # how often one looks, that is to end when nothing is left
TAKEN_AT_MOST: Final = 500  # in one step, which keeps everybody else waiting
UPKEEP_S: Final = 1.0  # how often a worker whose slots are all busy promotes and sweeps
OVERDUE_S: Final = 0.05  # how long an outcome of a batch waits for others
PARK_MARGIN_S: Final = 1.0  # how much later than asked the server may let a parked worker go
OBEY_S: Final = 1.0  # for a coroutine that is cancelled at its time limit, to end
REMIND_S: Final = 0.002  # after a parked worker's wait should be over, the server is told the time
GOODBYE_S: Final = 1.0  # for what a worker says when it stops
WAKE_S: Final = 0.2  # for the wake of its parked turn, before its connection is ended instead
# The connections of a worker: tried again soon, so that it is back soon after its server.
LINE: Final[dict[str, Any]] = {"backoff": (0.05, 0.25)}
# Seconds for a dial, in turn. Most are short: one that began in a silence lasts as long as it may,
# though the server be back. One is long, for those to whom the way is.
DIALS_S: Final = (0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 5.0)

# Of jobs that failed: with ten attempts, what they need may be away for minutes.
BACKOFF: Final = jitter(exponential(1_000, 300_000))
MAX_ATTEMPTS: Final = 10

LONGEST_S: Final = 10**9  # what a wait of the system takes, and more than anybody waits

_NO_WISHES: Final = JobOptions()
_WRONG_TRIES: Final = 5  # of a settlement that the server refuses for no reason that may pass
_ORDINARY: Final = nullcontext()
_YIELDS: Final = "handler has a yield, so a call runs none of it; return instead"
_numbers: Final = itertools.count(1)

# Errors of the server that pass: it is full, or busy, or not itself yet.
_PASSING: Final = frozenset(
    [
        "OOM",
        "LOADING",
        "BUSY",
        "NOSCRIPT",
        "NOPERM",
        "NOAUTH",
        "MISCONF",
        "NOREPLICAS",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "MASTERDOWN",
        "UNKILLABLE",
    ]
)
# And those of a server that is no longer the one to ask.
_MOVED: Final = frozenset(("READONLY", "MOVED"))


class Signal(Exception):
    """What a handler may raise, or return, to say what is to become of its job."""


class Retry(Signal):
    """The job failed, and is to be tried again, unless it has been often enough.

    Args:
        delay_ms: When, in ms from now; None as the backoff says.
        reason: Kept as the job's error.
    """

    def __init__(self, delay_ms: int | None = None, reason: str | None = None) -> None:
        super().__init__(delay_ms, reason)
        self.delay_ms = None if delay_ms is None else whole("delay_ms", delay_ms, 0)
        self.reason = reason


class Discard(Signal):
    """The job failed, and another attempt would not help: it is dead.

    Args:
        reason: Kept as the job's error.
    """

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class Delay(Signal):
    """Not now: the job is put off, and this attempt does not count.

    Args:
        delay_ms: For how long.
    """

    def __init__(self, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.delay_ms = whole("delay_ms", delay_ms, 0)


class TimeIsUp(Exception):
    """A handler that is a coroutine was cancelled at its time limit."""


class Codec(Protocol):
    """What makes data of payloads, and results of what handlers return."""

    def decode(self, payload: bytes, /) -> Any:
        """Answer what a payload says; whatever it raises fails that job."""

    def encode(self, value: Any, /) -> bytes:
        """Answer a value as bytes."""


class RawCodec:
    """Payloads are bytes, results are bytes or text; what else a handler returns is not kept."""

    def decode(self, payload: bytes) -> bytes:
        return payload

    def encode(self, value: Blob) -> bytes:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise TypeError("without a codec, a result is bytes or str")


class JsonCodec:
    """Payloads and results are JSON, in UTF-8."""

    def decode(self, payload: bytes) -> Any:
        return json.loads(payload)

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode()


class Telemetry(Protocol):
    """What a consumer tells of its work; `emq.Telemetry` is one."""

    def emit(self, name: str, measurements: dict[str, Any], metadata: dict[str, Any], /) -> Any: ...

    def handling(self, job: Any, /) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """How a consumer behaves.

    Attributes:
        concurrency: How many jobs run at a time.
        lease_ms: How long a job is the worker's without a renewal; a crash delays it by so much.
        max_attempts: A job that failed this often is dead. A job's own wish wins.
        max_stalled: A job whose workers died this often is dead.
        backoff: How long a failed job waits. A job's own wish wins.
        time_limit_ms: How long one attempt may take; None is no limit. A job's own wish wins.
        drain_timeout: Seconds that running handlers have to finish when the worker stops.
        codec: Makes data of payloads; None hands out bytes.
        batch: How many jobs are claimed, and settled, in one step.
        result_ttl_ms: How long results are kept; None keeps those of jobs that ask for it.
        telemetry: Is told of jobs and of the worker.
        name: The worker's name, for logs and events; None makes one, of its process's number.
    """

    concurrency: int = 1
    lease_ms: int = 30_000
    max_attempts: int = MAX_ATTEMPTS
    max_stalled: int = 5
    backoff: Backoff = BACKOFF
    time_limit_ms: int | None = None
    drain_timeout: float = 25.0
    codec: Codec | None = None
    batch: int = 1
    result_ttl_ms: int | None = None
    telemetry: Telemetry | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for name, most in (("concurrency", 10_000), ("batch", 10_000)):
            if whole(name, getattr(self, name), 1) > most:
                raise ValueError(f"{name} is at most {most}, not {getattr(self, name)}")
        for name in ("lease_ms", "max_attempts", "max_stalled"):
            whole(name, getattr(self, name), 1)
        for name in ("time_limit_ms", "result_ttl_ms"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)
        if not isinstance(self.backoff, Backoff):
            raise TypeError(
                "backoff is what emq.fixed, emq.exponential or emq.jitter answers, "
                f"not {type(self.backoff).__name__}"
            )
        check_seconds("drain_timeout", self.drain_timeout)
        for name, verbs in (("codec", ("decode", "encode")), ("telemetry", ("emit", "handling"))):
            value = getattr(self, name)
            if value is not None and not all(
                callable(getattr(value, verb, None)) for verb in verbs
            ):
                raise TypeError(f"{name} has {' and '.join(verbs)}, or is None: not {value!r:.60}")
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise TypeError(f"name is a text that is not empty, or None, not {self.name!r:.60}")

    @property
    def beat_s(self) -> float:
        """Seconds between renewals."""
        return self.lease_ms / 3000

    @property
    def beat_timeout_s(self) -> float:
        """Seconds that a renewal may take, so that another try fits into the lease."""
        return min(5.0, max(self.beat_s / 2, 0.5))

    @property
    def held_at_most(self) -> int:
        """How many jobs the worker has in hand at a time."""
        return max(self.batch, self.concurrency)


SETTINGS: Final = frozenset(field.name for field in fields(Settings))


def check_seconds(name: str, value: object) -> float:
    """Answer a number of seconds, 0 to 10^9.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_S:
        raise ValueError(f"{name} is a number of seconds, 0 to 10^9, not {shown(value)}")
    return float(value)


def check_handler(handler: object) -> bool:
    """Whether a handler is a coroutine function.

    Raises:
        TypeError: It cannot be called with one job, or a call of it would run none of its code.
    """
    if not callable(handler):
        raise TypeError(f"handler is a function of one job, not {type(handler).__name__}")
    # Of an instance, the method that a call of it runs.
    ways = (handler, getattr(handler, "__call__", None))  # noqa: B004
    if any(inspect.isgeneratorfunction(way) or inspect.isasyncgenfunction(way) for way in ways):
        raise TypeError(_YIELDS)
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # of some that are not written in Python nobody knows
        pass
    else:
        try:
            signature.bind(None)
        except TypeError as error:
            raise TypeError(
                f"handler cannot be called with one job ({error}); write def handler(job)"
            ) from None
    return any(map(inspect.iscoroutinefunction, ways))


def check_registry(handler: object, codec: Codec | None) -> None:
    """Refuse what would run a task's function on the job itself, or read its payloads twice.

    Raises:
        TypeError: The handler is one task, or a registry beside a codec.
    """
    tasks: Any = sys.modules.get("emq.tasks")  # who has a task has imported it
    if tasks is None:
        return
    if isinstance(handler, tasks.Task | tasks.JobTask):
        raise TypeError(
            f"{handler!r} is one task; give the worker the emq.Tasks that it is registered in"
        )
    if codec is not None and isinstance(getattr(handler, "__self__", handler), tasks.Tasks):
        raise TypeError("an emq.Tasks has its own codec; leave the worker's out")


def worker_name(name: str | None) -> str:
    """Answer the worker's name: as given, or one that no other worker of this host has."""
    return name or f"worker-{os.getpid()}-{next(_numbers)}"


def end_if_forked(pid: int) -> None:
    """End a process that a handler has forked, where it comes back from there.

    It has none of the worker's threads, and the job is not its own: it must not go on as a worker.
    """
    if os.getpid() != pid:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(0)


def waiter_name() -> str:
    """Answer a name to park under, which no other worker has."""
    return f"{random.getrandbits(60):012x}"


class Held:
    """A claimed job as its handler sees it."""

    __slots__ = (
        "_job",
        "_keys",
        "_say",
        "began",
        "cancel",
        "claimed",
        "data",
        "ends",
        "lost",
        "name",
    )

    def __init__(self, job: Job, keys: Keyspace, say: Callable[[Plan[Any]], Any]) -> None:
        self._job = job
        self._keys = keys
        self._say = say
        self.data: Any = job.payload
        self.lost = False
        # For the consumer: of what kind it is, when it was claimed and begun, when its time is up,
        # and what ends its handler.
        self.name: str | None = None
        self.claimed = monotonic()
        self.began = 0.0
        self.ends: float | None = None
        self.cancel: Callable[[], object] | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self._job.id

    @property
    def payload(self) -> bytes:
        """What the producer enqueued."""
        return self._job.payload

    @property
    def token(self) -> int:
        """The claim's number."""
        return self._job.token

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self._job.queue

    @property
    def group(self) -> str | None:
        """The lane's group id; None for a flat job."""
        return self._job.group

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._job.attempt

    @property
    def headers(self) -> dict[str, str]:
        """What the producer sent along beside the payload."""
        return dict(wishes(self._job).headers)

    @property
    def job(self) -> Job:
        """The claim itself, for the verbs of a Queue."""
        return self._job

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._job!r}, lost={self.lost})"


class HeldJob(Held):
    """A claimed job as its handler sees it.

    Attributes:
        id, payload, token, queue, group, attempt, headers, job: See there.
        data: The payload as the consumer's codec reads it; the payload itself without one.
        lost: Whether the job is no longer the handler's: its lease could not be renewed, its time
            was up, or it was given back. What the handler does from then on may be done by another
            too, and its outcome is dropped; it had better stop.
    """

    __slots__ = ()

    def progress(self, text: str) -> None:
        """Tell how far the job is; kept in its row, published to whoever listens.

        Raises:
            StaleToken, JobGone: The job is no longer this handler's; nothing was written.
        """
        return self._say(admin.progress(self._keys, self._job, text, None))  # type: ignore[no-any-return]

    def log(self, line: str, keep: int = 0) -> int:
        """Add a line to the job's log; answer how many lines it has.

        Args:
            line: The line.
            keep: How many of the newest lines are kept; 0 keeps all.

        Raises:
            StaleToken, JobGone: The job is no longer this handler's; nothing was written.
        """
        return self._say(admin.log(self._keys, self._job, line, keep, None))  # type: ignore[no-any-return]


class AsyncHeldJob(Held):
    """A claimed job as a coroutine function sees it: a `HeldJob` whose verbs are awaited."""

    __slots__ = ()

    async def progress(self, text: str) -> None:
        """Tell how far the job is; kept in its row, published to whoever listens."""
        await self._say(admin.progress(self._keys, self._job, text, None))

    async def log(self, line: str, keep: int = 0) -> int:
        """Add a line to the job's log; answer how many lines it has."""
        lines: int = await self._say(admin.log(self._keys, self._job, line, keep, None))
        return lines


def wishes(job: Job) -> JobOptions:
    """Answer the job's own wishes."""
    return job.settings if job.options else _NO_WISHES


def time_limit_ms(job: Job, settings: Settings) -> int | None:
    """Answer how long an attempt at a job may take."""
    own = wishes(job).time_limit_ms
    return settings.time_limit_ms if own is None else own


def on_return(job: Job, settings: Settings, value: Any) -> Settlement:
    """What becomes of a job whose handler returned.

    A value that the codec cannot write is dropped, with a warning: the work is done, and doing it
    again would not make the value any better.
    """
    if isinstance(value, Signal):
        return on_error(job, settings, value)
    if isinstance(value, type) and issubclass(value, Signal):
        try:
            return on_error(job, settings, value())
        except TypeError as error:  # it needs its arguments
            return on_error(job, settings, error)
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return on_error(job, settings, TypeError(_YIELDS))  # nothing has run, so nothing is done
    result = None
    if value is not None:
        try:
            result = bytes((settings.codec or RAW).encode(value))
        except Exception as error:
            # Not the error's text: it may quote the value.
            log.warning(
                "job %s: its handler returned %s, which cannot be kept as a result (%s); dropped",
                job.id,
                type(value).__name__,
                type(error).__name__,
            )
    return Completed(job, result, settings.result_ttl_ms)


def on_error(job: Job, settings: Settings, error: BaseException) -> Settlement:
    """What becomes of a job whose handler raised."""
    if isinstance(error, Delay):
        return Delayed(job, error.delay_ms)
    if isinstance(error, Discard):
        # An attempt was made, so no more are left.
        return Failed(job, 0, 1, _reason(error), place_of(error))
    if isinstance(error, Retry):
        return failed(job, settings, _reason(error), error.delay_ms, place_of(error))
    return failed(job, settings, error_text(error), None, place_of(error))


def check_claims(job: Job, settings: Settings) -> None:
    """Let no job crash its workers for ever, whoever gives it back to the queue.

    Nodes of other makes reap leases without counting stalls, so a job that crashes its workers
    beside them is only seen by how often it was claimed. An operator may have it run again beyond
    its attempts, hence the margin.

    Raises:
        Discard: It was claimed as often as it may fail and stall together.
    """
    most = (wishes(job).max_attempts or settings.max_attempts) + settings.max_stalled
    if job.attempt > most:
        raise Discard(f"claimed {job.token} times, and no worker lived to say how it went")


def on_time_limit(job: Job, settings: Settings) -> Settlement:
    """What becomes of a job whose time is up."""
    limit_ms = time_limit_ms(job, settings) or 0
    return failed(job, settings, b"time limit of %d ms" % limit_ms, None, "its time was up")


def failed(
    job: Job, settings: Settings, error: bytes, delay_ms: int | None = None, place: str = ""
) -> Settlement:
    """What becomes of a job that failed."""
    own = wishes(job)
    if delay_ms is None:
        delay_ms = (own.backoff or settings.backoff).delay_ms(job.attempt)
    return Failed(job, delay_ms, own.max_attempts or settings.max_attempts, error, place)


def place_of(error: BaseException) -> str:
    """Answer an error's type, and where it was raised: what a log may say of it."""
    name = type(error).__name__
    trace = error.__traceback__
    if trace is None:
        return name  # a signal that was returned
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{name} at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"


def _reason(signal: Retry | Discard) -> bytes:
    if signal.reason is None and signal.__cause__ is not None:
        return error_text(signal.__cause__)
    return _bounded(_printed(signal.reason) or type(signal).__name__)


def error_text(error: BaseException) -> bytes:
    """Answer an error as `TypeName: message`, cut to `ERROR_CHARS` characters."""
    name, message = type(error).__name__, _printed(error)
    return _bounded(f"{name}: {message}" if message else name)


def _printed(value: object) -> str:
    """The value's text, whatever its `__str__` does."""
    if value is None:
        return ""
    try:
        return str(value)[: ERROR_CHARS + 1]
    except BaseException as error:
        return f"(its text cannot be had: {type(error).__name__})"


def _bounded(text: str) -> bytes:
    if len(text) > ERROR_CHARS:
        text = text[: ERROR_CHARS - 3] + "..."
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate is no UTF-8


RAW: Final = RawCodec()


class Leases:
    """Which jobs a worker holds, and which of their leases are to be renewed.

    Attributes:
        waiting: Jobs that are claimed and not begun.
        running: Jobs whose handlers run. Whoever takes one out settles it.
        settling: Jobs whose outcomes wait to be told to the server.
        strays: Jobs whose handlers run, but are not asked for an outcome any more.

    They are dictionaries, each of whose methods is one step of the interpreter: no lock is held,
    and what comes or goes meanwhile is seen by the next beat.
    """

    def __init__(self, settings: Settings) -> None:
        self.waiting: dict[Held, Held] = {}
        self.running: dict[Held, Held] = {}
        self.settling: dict[Held, Held] = {}
        self.strays: dict[Held, Held] = {}
        self._beat_s = settings.beat_s
        self._lease_s = settings.lease_ms / 1000
        self._next = monotonic() + settings.beat_s
        self._doubted: set[Held] = set()
        self._renewed = -math.inf  # when the latest renewal that worked was sent

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running) + len(self.settling)

    def take(self, held: Held) -> bool:
        """Take a running job out, to settle it in its handler's place; False if it is too late."""
        self.strays[held] = held
        if self.running.pop(held, None) is None:
            self.strays.pop(held, None)
            return False
        held.lost = True
        return True

    def due(self, now: float) -> list[tuple[str, int]]:
        """Whose leases are to be renewed now: of jobs that are held for longer than a beat.

        So a job that ends sooner costs no renewal, and one that goes on is renewed with a third of
        its lease to spare.
        """
        if now < self._next:
            return []
        old = now - self._beat_s
        return [
            (each.id, each.token)
            for each in self._all()
            if each.claimed <= old and (not each.lost or each in self._doubted)
        ]

    def doubt(self, now: float) -> list[Held]:
        """Answer the jobs whose leases may be over, since no renewal came through: lost for now.

        Others may run them. Where nobody did, the next renewal says that they are held after all.
        """
        held = [*list(self.waiting), *list(self.running)]
        doubted = [each for each in held if not each.lost and self._ends(each) <= now]
        for each in doubted:
            each.lost = True
        self._doubted.update(doubted)
        return doubted

    def _ends(self, held: Held) -> float:
        began = held.claimed if held.claimed > self._renewed - self._beat_s else self._renewed
        return began + self._lease_s

    def renewed(self, now: float) -> None:
        """The leases that were due are renewed, or none were."""
        if now >= self._next:
            self._next = now + self._beat_s
            self._renewed = now

    def again(self, now: float, pause: float) -> None:
        """They could not be renewed; the next try is after `pause` seconds."""
        self._next = now + min(pause, self._beat_s)

    def lost(self, asked: Iterable[tuple[str, int]], ids: Iterable[str]) -> list[Held]:
        """Answer the held jobs among those asked for whose ids could not be extended."""
        left = set(ids)
        gone: set[tuple[str, int]] = set()
        # Where the same job is held twice, it is the older claim that was lost.
        for pair in sorted(asked, key=lambda pair: pair[1]):
            if pair[0] in left:
                left.discard(pair[0])
                gone.add(pair)
        # Of those that are being settled, the settlement itself says whether it came too late.
        held = [*list(self.waiting), *list(self.running)]
        doubted, self._doubted = self._doubted, set()
        for each in held:
            if each in doubted:
                each.lost = False
        return [each for each in held if (each.id, each.token) in gone and not each.lost]

    def overdue(self, now: float) -> list[Held]:
        """Answer the jobs whose time is up."""
        return [each for each in list(self.running) if each.ends is not None and each.ends <= now]

    def wake_at(self) -> float:
        """When there is something to do at the latest, if nothing comes meanwhile."""
        ends = [each.ends for each in list(self.running) if each.ends is not None]
        return min([self._next, monotonic() + LONGEST_S, *ends])

    def _all(self) -> list[Held]:
        return [*list(self.waiting), *list(self.running), *list(self.settling)]


class Trouble(Enum):
    """What an error of the server, or of the way to it, asks for."""

    REFUSED = "refused"
    """The job is not ours any more."""
    AWAY = "away"
    """Nobody answers; try again."""
    MOVED = "moved"
    """Another server is the one to ask; dial again, and try again."""
    PASSING = "passing"
    """It is full, or busy, or not ready; try again."""
    WRONG = "wrong"
    """Nothing that waiting would mend."""

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        """Classify an error."""
        if isinstance(error, StaleToken | JobGone):
            return cls.REFUSED
        if isinstance(error, TransportError):
            return cls.AWAY
        if isinstance(error, ServerError):
            if error.code in _MOVED:
                return cls.MOVED
            if error.code in _PASSING:
                return cls.PASSING
        return cls.WRONG


class Again(Enum):
    """How a settlement that failed goes on."""

    TRY = "try"
    SETTLED = "settled"
    REFUSED = "refused"
    GIVE_UP = "give up"


class Tries:
    """What is known of a settlement that is on its way.

    A try whose answer was lost may have been carried out. The next one is then refused, as the job
    has moved on, and that says that it is settled.
    """

    def __init__(self, may_have_run: bool = False) -> None:
        self._may_have_run = may_have_run
        self._wrong = 0

    def after(self, error: BaseException) -> Again:
        """How to go on after an error."""
        trouble = Trouble.of(error)
        if trouble is Trouble.REFUSED:
            return Again.SETTLED if self._may_have_run else Again.REFUSED
        if isinstance(error, TransportError):
            self._may_have_run = self._may_have_run or error.may_have_run
        if trouble is Trouble.WRONG:
            self._may_have_run = True  # an error stops a script half way
            self._wrong += 1
            if self._wrong == _WRONG_TRIES:
                return Again.GIVE_UP
        return Again.TRY


class Pauses:
    """How long a loop waits after failures in a row, in seconds."""

    def __init__(self, first: float = 0.05, most: float = 0.25) -> None:
        self._first = first
        self._most = most
        self.count = 0

    @property
    def failing(self) -> bool:
        """Whether the latest try failed."""
        return self.count > 0

    def next(self) -> float:
        """How long to wait after one more failure."""
        wait: float = min(self._first * 2.0 ** min(self.count, 16), self._most)
        self.count += 1
        return wait * random.uniform(0.5, 1.0)

    def worked(self) -> None:
        """A try succeeded."""
        self.count = 0


def in_a_row(pauses: Pauses, free: int = 3) -> bool:
    """Whether a loop that was told to come again at once has done so too often to be believed."""
    if pauses.count < free:
        pauses.count += 1
        return False
    return True


def assumed_place(settlement: Settlement) -> str:
    """Where a job is, whose settlement was carried out without an answer."""
    if isinstance(settlement, Completed):
        return "completed"
    if isinstance(settlement, Delayed):
        return "delayed"
    return "dead" if settlement.job.attempt >= settlement.max_attempts else "scheduled"


def report_failed(worker: str, settlement: Settlement, place: str) -> None:
    """Say that an attempt failed. Its error is in the row: it may quote what none should log."""
    if not isinstance(settlement, Failed):
        return
    job, why = settlement.job, settlement.place or "its handler said so"
    if place == "dead":
        log.error(
            "%s: job %s: attempt %d failed (%s); it is dead", worker, job.id, job.attempt, why
        )
    else:
        log.warning(
            "%s: job %s: attempt %d failed (%s); the next is in %d ms",
            worker,
            job.id,
            job.attempt,
            why,
            settlement.delay_ms,
        )


def report_dead(worker: str, ids: Iterable[str]) -> None:
    """Say which jobs are dead since their workers died."""
    for id in ids:
        log.error(
            "%s: job %s is dead: it stalled too often, as if it killed its workers", worker, id
        )


class Weather:
    """Says in the log that a server is away, and that it is back: once each, and not each try.

    A server that answers, and refuses the connection, is said to do so, once more: a password that
    was changed is no outage, and waiting does not end it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._told: set[str] = set()

    def bad(self, error: BaseException) -> None:
        """Something failed."""
        trouble = Trouble.of(error)
        kind = trouble.value
        # Away comes in many forms that follow each other; a refusal, as the cause of the next.
        refused = next((e for e in (error, error.__cause__) if isinstance(e, Refused)), None)
        if refused is not None:
            kind += refused.code
        elif trouble is not Trouble.AWAY:
            kind += getattr(error, "code", "") or type(error).__name__
        if kind in self._told:
            return
        self._told.add(kind)
        if trouble is Trouble.WRONG and not isinstance(error, ServerError):
            log.error("%s: %s; trying again", self._what, told(error), exc_info=error)
        else:
            log.warning("%s: %s; trying again", self._what, told(error))

    def good(self) -> None:
        """Something worked."""
        if self._told:
            self._told.clear()
            log.info("%s: works again", self._what)


def told(error: BaseException) -> str:
    """An error for the log."""
    return _bounded(f"{type(error).__name__}: {_printed(error)}").decode()


COUNTED: Final = (
    "started",
    "completed",
    "failed",
    "dead",
    "retried",
    "delayed",
    "lost",
    "given_back",
)


class Tally:
    """What one thread, or one loop, has counted; `total` adds them up."""

    __slots__ = COUNTED

    def __init__(self) -> None:
        for name in COUNTED:
            setattr(self, name, 0)

    started: int
    completed: int
    failed: int
    dead: int
    retried: int
    delayed: int
    lost: int
    given_back: int

    def settled(self, place: str) -> None:
        """Count a job that was settled, by where it is now."""
        if place == "completed":
            self.completed += 1
        elif place == "delayed":
            self.delayed += 1
        else:
            self.failed += 1
            if place == "dead":
                self.dead += 1
            else:
                self.retried += 1


def total(tallies: Iterable[Tally]) -> dict[str, int]:
    """Add up what was counted."""
    tallies = list(tallies)
    return {name: sum(getattr(each, name) for each in tallies) for name in COUNTED}


class Reporter:
    """Tells `telemetry` of jobs and of the worker. Whatever a hook does, the work goes on."""

    def __init__(self, telemetry: Telemetry, queue: str, worker: str, handler: object) -> None:
        self._telemetry = telemetry
        self._queue = queue
        self._worker = worker
        self._handler = getattr(handler, "__name__", type(handler).__name__)
        # Of a registry, or of its method: which of its functions runs.
        self._name_of = getattr(getattr(handler, "__self__", handler), "job_name", None)

    def worker_started(self, concurrency: int) -> None:
        self._emit("emq.worker.start", {"concurrency": concurrency}, self._of_worker())

    def worker_stopped(self, uptime_s: float) -> None:
        self._emit("emq.worker.stop", {"uptime": _ns(uptime_s)}, self._of_worker())

    def started(self, held: Held) -> None:
        held.began = monotonic()
        if self._name_of is not None:
            try:
                held.name = self._name_of(held)
            except Exception as error:
                log.warning("telemetry: %s", told(error))
        self._emit("emq.job.start", {"system_time": time_ns()}, self._of(held))

    def settled(self, held: Held, settlement: Settlement, place: str) -> None:
        measured = {"duration": _ns(monotonic() - held.began)}
        if isinstance(settlement, Completed):
            self._emit("emq.job.complete", measured, self._of(held))
        elif isinstance(settlement, Failed):
            error = blob("error", settlement.error).decode()
            self._emit("emq.job.fail", measured, {**self._of(held), "error": error})
            if place != "dead":
                numbers = {"attempt": held.attempt, "delay": settlement.delay_ms}
                self._emit("emq.job.retry", numbers, self._of(held))

    def lost(self, held: Held) -> None:
        self._emit("emq.job.lost", {"duration": _ns(monotonic() - held.began)}, self._of(held))

    def handling(self, held: Held) -> AbstractContextManager[Any]:
        try:
            return _Guarded(self._telemetry.handling(held))
        except Exception as error:
            log.warning("telemetry: %s", told(error))
            return _ORDINARY

    def _of_worker(self) -> dict[str, Any]:
        return {"queue": self._queue, "worker": self._worker}

    def _of(self, held: Held) -> dict[str, Any]:
        return {**self._of_worker(), "job_id": held.id, "job_name": held.name or self._handler}

    def _emit(self, name: str, measurements: dict[str, Any], metadata: dict[str, Any]) -> None:
        try:
            self._telemetry.emit(name, measurements, metadata)
        except Exception as error:
            log.warning("telemetry: %s: %s", name, told(error))


class _Guarded:
    """A context manager whose failures are logged, and which swallows no error of its block."""

    def __init__(self, inner: AbstractContextManager[Any]) -> None:
        self._inner: AbstractContextManager[Any] | None = inner

    def __enter__(self) -> None:
        try:
            self._inner.__enter__()  # type: ignore[union-attr]
        except Exception as error:
            self._inner = None
            log.warning("telemetry: %s", told(error))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._inner is None:
            return
        try:
            self._inner.__exit__(kind, error, traceback)
        except BaseException as own:
            if own is not error:
                log.warning("telemetry: %s", told(own))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)

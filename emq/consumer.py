"""A worker on threads.

There is one thread more than handlers may run at a time. Of those that run none, one fetches: it
asks for as many jobs as handlers may run, parks where there are none, and sees to what falls due.
When jobs come it runs the first of them itself, so that no switch of threads lies between, and
another fetches. While jobs are waiting, a thread settles one and claims the next in one round trip,
and needs nobody. One more thread renews the leases and watches the time limits, on a connection of
its own, whatever the handlers do.

Whoever calls `run`, or a thread of `start`, supervises: it waits for what the others, the signals
and `stop` have to say, and ends the worker in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import itertools
import math
import os
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from resp import Closed, ConnectFailed, Plan, Refused, ReplyTimeout, ServerFull, TransportError

from .backoff import Backoff
from .plans.jobs import complete_and_claim
from .plans.reads import counts
from .plans.recovery import extend_many, give_back
from .plans.work import (
    Completed,
    Settlement,
    Taken,
    leave,
    park_and_take,
    remind,
    settle,
    settle_and_take,
    take,
)
from .queue import Queue
from .work import (
    BACKOFF,
    BURST_PARK_MS,
    DIALS_S,
    GOODBYE_S,
    LINE,
    MAX_ATTEMPTS,
    OBEY_S,
    OVERDUE_S,
    PARK_MARGIN_S,
    PARK_MS,
    REMIND_S,
    TAKEN_AT_MOST,
    UPKEEP_S,
    WAKE_S,
    Again,
    AsyncHeldJob,
    Codec,
    Held,
    HeldJob,
    Leases,
    Pauses,
    Reporter,
    Settings,
    Tally,
    Telemetry,
    TimeIsUp,
    Tries,
    Trouble,
    Weather,
    assumed_place,
    check_claims,
    check_handler,
    check_registry,
    check_seconds,
    end_if_forked,
    in_a_row,
    log,
    on_error,
    on_return,
    on_time_limit,
    report_dead,
    report_failed,
    time_limit_ms,
    told,
    total,
    waiter_name,
    worker_name,
)

T = TypeVar("T")

Handler: TypeAlias = Callable[[HeldJob], Any] | Callable[[AsyncHeldJob], Awaitable[Any]]

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Consumer:
    """Runs a handler on the jobs of a queue, on threads.

        def greet(job: HeldJob) -> None:
            print("hello", job.payload)

        Consumer(queue, greet, concurrency=4).run()

    What the handler returns completes the job, and is its result; what it raises fails it, to be
    tried again later, up to `max_attempts`. `Retry`, `Discard` and `Delay`, raised or returned,
    say otherwise. A coroutine function runs on an event loop of its slot.

    A job may run more than once: its worker may die after the work and before it could say so. A
    job whose lease was lost, or whose time is up, has `lost` set; its outcome is dropped. A thread
    cannot be stopped from outside: a handler that goes on after its time limit keeps its slot
    until it returns, and one that goes on after `drain_timeout` its thread, which does not keep
    the process.

    Args:
        queue: Where the jobs are; the consumer makes connections of its own to its server.
        handler: Is called with each job.
        concurrency: How many jobs run at a time.
        lease_ms: How long a crash of the worker delays a job. Leases are renewed while handlers
            run, so they may take as long as they like.
        max_attempts: A job that failed this often is dead. A job's own wish wins, as it does for
            `backoff` and `time_limit_ms`.
        max_stalled: A job whose workers died this often is dead.
        backoff: How long a failed job waits.
        time_limit_ms: How long one attempt may take; None is no limit.
        drain_timeout: Seconds that running handlers have to finish when the worker stops. The
            jobs of those that do not are given back.
        codec: Makes `job.data` of payloads, and bytes of results; None leaves both as they are.
        batch: How many jobs are claimed, and settled, in one step. More is faster, and a crash
            delays more. Outcomes wait for others, at most about a second.
        result_ttl_ms: How long results are kept for `Queue.wait`; None leaves that to the jobs.
        telemetry: Is told of jobs and of the worker; `emq.Telemetry` is one.
        name: The worker's name, for logs and events.

    Raises:
        TypeError, ValueError: An argument is none of these.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        *,
        concurrency: int = 1,
        lease_ms: int = 30_000,
        max_attempts: int = MAX_ATTEMPTS,
        max_stalled: int = 5,
        backoff: Backoff = BACKOFF,
        time_limit_ms: int | None = None,
        drain_timeout: float = 25.0,
        codec: Codec | None = None,
        batch: int = 1,
        result_ttl_ms: int | None = None,
        telemetry: Telemetry | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(queue, Queue):
            raise TypeError(
                f"queue is an emq.Queue, not {type(queue).__name__}; AsyncConsumer is for asyncio"
            )
        check_handler(handler)
        check_registry(handler, codec)
        self.queue = queue
        self.name = worker_name(name)
        self._handler = handler
        self._settings = Settings(
            concurrency=concurrency,
            lease_ms=lease_ms,
            max_attempts=max_attempts,
            max_stalled=max_stalled,
            backoff=backoff,
            time_limit_ms=time_limit_ms,
            drain_timeout=drain_timeout,
            codec=codec,
            batch=batch,
            result_ttl_ms=result_ttl_ms,
            telemetry=telemetry,
            name=name,
        )
        self._shift: _Shift | None = None
        self._starting = threading.Lock()

    def __repr__(self) -> str:
        return f"<Consumer {self.name} of {self.queue.name}, {self._status()}>"

    def run(self, *, burst: bool = False, signals: bool = True) -> None:
        """Work until stopped, and return then.

        A server that is not there yet is waited for.

        Args:
            burst: Return when nothing is left to do, now or later: nothing pending, scheduled or
                active.
            signals: Stop on SIGTERM and SIGINT, where this is the main thread: nothing more is
                claimed, running handlers may finish, and a second signal gives their jobs back at
                once. The handlers that were there before are put back afterwards.

        Raises:
            Refused, ServerFull, FenceError: The server will not have this client.
            RuntimeError: The consumer runs already.
            KeyboardInterrupt: It came, with `signals` off; the worker was stopped first.
        """
        shift = self._new_shift(burst)
        main = threading.current_thread() is threading.main_thread()
        with shift.signals() if signals and main else contextlib.nullcontext():
            shift.run()

    def start(self, *, burst: bool = False) -> None:
        """Work on threads of its own, until `stop`.

        Raises:
            ConnectFailed: The server cannot be reached.
            RuntimeError: The consumer runs already.
        """
        shift = self._new_shift(burst)
        try:
            shift.connect()
        except BaseException:
            shift.finish()
            raise
        threading.Thread(target=shift.run, name=f"{self.name} supervisor", daemon=True).start()

    def stop(self, timeout: float | None = None) -> None:
        """Claim nothing more, let running handlers finish, and return when all has ended.

        From a handler, and where the consumer's own `run` is further down the stack, it returns at
        once.

        Args:
            timeout: Seconds that the handlers have; None for `drain_timeout`. The jobs of those
                that are late are given back.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        shift = self._shift
        if shift is None:
            return
        shift.stop(self._settings.drain_timeout if timeout is None else timeout)
        if not shift.is_mine():
            shift.ended.wait()

    @property
    def idle(self) -> bool:
        """Whether it runs, and holds no job."""
        shift = self._shift
        return shift is not None and shift.is_idle()

    def stats(self) -> dict[str, int]:
        """Counters of this run, or of the latest.

        `started`, `completed`, `failed` (attempts; `retried` and `dead` say what became of the
        jobs), `delayed`, `lost` (leases, and outcomes that came too late), `given_back`,
        `in_flight` (held now), `reconnects`.
        """
        shift = self._shift
        if shift is None:
            return {**total(()), "in_flight": 0, "reconnects": 0}
        return shift.stats()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _new_shift(self, burst: bool) -> _Shift:
        with self._starting:
            if self._shift is not None and not self._shift.ended.is_set():
                raise RuntimeError(f"{self!r} runs already; stop it first")
            shift = _Shift(self.queue, self._handler, self._settings, self.name, burst)
            self._shift = shift
            return shift

    def _status(self) -> str:
        shift = self._shift
        if shift is None:
            return "not started"
        if shift.ended.is_set():
            return "stopped"
        return "stopping" if shift.stopping else "running"


class _Line:
    """A connection of the worker's own. It is dialled again where it does not serve any more.

    Raises:
        TransportError: On making it, and by `run`.
    """

    def __init__(self, parent: Any) -> None:
        self._parent = parent
        self._mutex = threading.Lock()
        self._closed = False
        self._renewals = 0
        self._pauses = Pauses()
        self._dials_s = itertools.cycle(DIALS_S)
        self._not_before = -math.inf
        self._error: TransportError | None = None
        self._line: Any = parent.sibling(**LINE)

    def run(self, plan: Plan[T], timeout: float | None = None) -> T:
        """Drive a plan."""
        line = self._line
        if line is None:
            line = self._dialled()
        try:
            answer: T = line.run(plan, timeout)
            return answer
        except Exception as error:
            # What is late may be late for ever, and what is read-only is no leader any more.
            late = isinstance(error, ReplyTimeout | ConnectFailed)
            if late or Trouble.of(error) is Trouble.MOVED:
                self._drop(line)
            raise

    def close(self) -> None:
        """End the connection, and who waits for an answer on it."""
        self._closed = True
        line = self._line
        if line is not None:
            line.close()

    def reconnects(self) -> int:
        line = self._line
        return self._renewals + (0 if line is None else int(line.stats()["reconnects"]))

    def _drop(self, line: Any) -> None:
        with self._mutex:
            if self._line is line:
                self._renewals += int(line.stats()["reconnects"])
                self._line = None
        line.close()

    def _dialled(self) -> Any:
        with self._mutex:
            if self._line is not None:
                return self._line
            if self._closed:
                raise Closed
            if self._error is not None and monotonic() < self._not_before:
                raise ConnectFailed(str(self._error)) from self._error  # somebody tried just now
            try:
                line = self._parent.sibling(connect_timeout=next(self._dials_s), **LINE)
            except TransportError as error:
                self._error = error
                self._not_before = monotonic() + self._pauses.next()
                raise
            self._error = None
            self._pauses.worked()
            self._dials_s = itertools.cycle(DIALS_S)
            self._renewals += 1
            self._line = line
        if self._closed:
            line.close()
            raise Closed
        return line


class _Slot:
    """What one slot's thread has of its own."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._runner: asyncio.Runner | None = None

    def await_(self, held: Held, awaitable: Awaitable[Any]) -> Any:
        """Run what a handler made, within its time limit.

        Raises:
            TimeIsUp: It is up; the coroutine was cancelled.
        """
        if self._runner is None:
            self._runner = asyncio.Runner()
        ends = held.ends
        if ends is not None:
            held.ends = ends + OBEY_S  # it is cancelled here; who watches sees that it ends
        # In the context of the call, which telemetry may have set.
        return self._runner.run(_within(held, awaitable, ends), context=contextvars.copy_context())

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


async def _within(held: Held, awaitable: Awaitable[Any], ends: float | None) -> Any:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    held.cancel = lambda: loop.call_soon_threadsafe(task.cancel) if task is not None else None
    if ends is None:
        return await awaitable
    try:
        async with asyncio.timeout(max(ends - monotonic(), 0)) as bound:
            return await awaitable
    except TimeoutError:
        if bound.expired():
            raise TimeIsUp from None
        raise


class _Shift:
    """A consumer's run, from its start to its end."""

    def __init__(
        self, queue: Queue, handler: Handler, settings: Settings, name: str, burst: bool
    ) -> None:
        self.stopping = False  # nothing more is claimed
        self.ended = threading.Event()
        self._queue = queue
        self._keys = queue.keys
        self._handler: Callable[[Any], Any] = handler
        self._settings = settings
        self._name = name
        self._burst = burst
        self._batched = settings.batch > 1
        self._kind = AsyncHeldJob if check_handler(handler) else HeldJob
        self._decode = None if settings.codec is None else settings.codec.decode
        self._reporter = (
            None
            if settings.telemetry is None
            else Reporter(settings.telemetry, queue.name, name, handler)
        )
        self._leases = Leases(settings)
        self._waiter = waiter_name()
        self._terms: dict[str, Any] = {
            "lease_ms": settings.lease_ms,
            "max_stalled": settings.max_stalled,
            "wait_ms": BURST_PARK_MS if burst else PARK_MS,
            "waiter": self._waiter,
        }
        self._weather = Weather(f"{name}: queue {queue.name}")
        self._told_weather = Weather(f"{name}: outcomes of queue {queue.name}")
        self._beat_weather = Weather(f"{name}: leases of queue {queue.name}")
        self._began = monotonic()
        self._pid = os.getpid()
        self._lines: list[_Line] = []
        self._tallies: list[Tally] = []
        self._tally = self._new_tally()  # the supervisor's
        # Between the fetcher and the others.
        self._lock = threading.Lock()
        # `ready` has something, or nobody fetches, or it is the end.
        self._filled = threading.Condition(self._lock)
        self._starving = threading.Condition(self._lock)  # one more has nothing to do
        self._ready: deque[Held] = deque()
        self._fetching = False
        self._serving = 0  # how many run handlers
        self._idle = 0  # how many have nothing to do, beside the fetcher
        self._quiet = threading.Event()  # set when nothing more is fetched: for pauses
        # Of batches.
        self._turn = threading.Lock()  # who takes, while nobody parks
        self._parked = False
        self._door = threading.Lock()  # the last word of the fetcher is that it has left
        self._left = False
        self._back_at = math.inf  # when the parked one is to be back, if early
        self._outbox: deque[tuple[Held, Settlement, _Slot]] = deque()
        self._oldest = math.inf  # when the outbox' first came
        # Between the slots and the watch.
        self._nudge: SimpleQueue[None] = SimpleQueue()
        self._wakes_at = math.inf
        self._over = False
        # What the supervisor hears: a thread that has ended, or seconds until the end.
        self._control: SimpleQueue[threading.Thread | float] = SimpleQueue()
        self._alive: set[threading.Thread] = set()
        self._abort = threading.Event()  # what is not settled by now is left
        self._deadline = math.inf
        self._supervisor: threading.Thread | None = None
        self._watcher: threading.Thread | None = None

    # The supervisor.

    def connect(self) -> None:
        """Dial the worker's three connections."""
        connector: Any = self._queue.connector
        while len(self._lines) < 3:
            self._lines.append(_Line(connector))
        self._work, self._park, self._beat = self._lines

    def run(self) -> None:
        """Work until told to stop, and end in order."""
        self._supervisor = threading.current_thread()
        interrupt: BaseException | None = None
        try:
            while True:
                try:
                    if self._connected():
                        self._launch()
                        self._supervise()
                    break
                except (KeyboardInterrupt, SystemExit) as error:
                    # The first stops as a signal does, a second gives back at once.
                    self.stop(self._settings.drain_timeout if interrupt is None else 0.0)
                    interrupt = error
        finally:
            self.finish()
        if interrupt is not None:
            raise interrupt

    def stop(self, seconds: float) -> None:
        """Ask the supervisor to stop. May be called from a signal handler."""
        self._control.put(seconds)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Stop on a signal, and at once on a second one."""
        count = 0

        def on_signal(number: int, frame: FrameType | None) -> None:
            nonlocal count
            count += 1
            self.stop(self._settings.drain_timeout if count == 1 else 0.0)

        before = {number: signal.signal(number, on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def is_mine(self) -> bool:
        """Whether this thread belongs to the run, and so cannot wait for its end."""
        thread = threading.current_thread()
        return thread is self._supervisor or thread in self._alive

    def is_idle(self) -> bool:
        with self._lock:
            free = self._idle == self._settings.concurrency and not self._ready
        return free and not self.stopping

    def stats(self) -> dict[str, int]:
        return {
            **total(self._tallies),
            "in_flight": len(self._leases),
            "reconnects": sum(line.reconnects() for line in self._lines),
        }

    def _connected(self) -> bool:
        """Dial, and wait for a server that is not there; False where it is time to stop."""
        pauses = Pauses()
        while not self.stopping:
            try:
                self.connect()
            except TransportError as error:
                if isinstance(error, Refused) and not isinstance(error, ServerFull):
                    raise
                self._weather.bad(error)
            else:
                self._weather.good()
                return True
            with contextlib.suppress(Empty):
                self._control.get(timeout=pauses.next())
                self.stopping = True
        return bool(self._alive)

    def _launch(self) -> None:
        if self._alive or self.stopping:
            return  # after an interrupt
        log.info("%s: works on queue %s", self._name, self._queue.name)
        if self._reporter is not None:
            self._reporter.worker_started(self._settings.concurrency)
        self._watcher = threading.Thread(
            target=self._watch, name=f"{self._name} leases", daemon=True
        )
        self._watcher.start()
        threads = [
            threading.Thread(
                target=self._until_its_end, name=f"{self._name} slot {at}", daemon=True
            )
            for at in range(self._settings.concurrency + 1)
        ]
        self._alive = set(threads)
        for thread in threads:
            thread.start()

    def _until_its_end(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            log.critical(
                "%s: %s; a thread of the worker ends", self._name, told(error), exc_info=error
            )
            self.stop(self._settings.drain_timeout)
        finally:
            self._control.put(threading.current_thread())

    def _supervise(self) -> None:
        while self._alive:
            left = self._deadline - monotonic()
            try:
                heard = self._control.get(timeout=None if left == math.inf else max(left, 0))
            except Empty:
                self._abandon()
                return
            if isinstance(heard, threading.Thread):
                self._gone(heard)
            else:
                self._begin_to_stop()
                self._deadline = min(self._deadline, monotonic() + heard)

    def _begin_to_stop(self) -> None:
        if self.stopping:
            return
        log.info("%s: stops; %d jobs are in hand", self._name, len(self._leases))
        with self._lock:
            self.stopping = True
            unstarted = list(self._ready)
            self._ready.clear()
            self._filled.notify_all()
            self._starving.notify_all()
        self._quiet.set()
        self._wake_fetcher()
        self._give_back(unstarted, self._tally)

    def _wake_fetcher(self) -> None:
        """Let it park no longer. What it is given by then, it gives back."""
        with self._door:
            if self._parked and not self._left:
                try:
                    self._work.run(leave(self._keys, self._waiter, blocks=True), WAKE_S)
                except Exception:
                    self._park.close()

    def _abandon(self) -> None:
        """The time to finish is up: give back what still runs."""
        self._abort.set()
        late = [held for held in list(self._leases.running) if self._leases.take(held)]
        for held in late:
            if held.cancel is not None:
                with contextlib.suppress(RuntimeError):  # it has ended by now, and its loop
                    held.cancel()
        if late:
            log.warning("%s: gives back %d jobs whose handlers still run", self._name, len(late))
        self._give_back(late, self._tally)
        self._see_off(GOODBYE_S)

    def _see_off(self, seconds: float) -> None:
        """Wait for the threads to end, but for those whose handlers go on."""
        until = monotonic() + seconds
        while len(self._alive) > self._stuck() and (left := until - monotonic()) > 0:
            with contextlib.suppress(Empty):
                heard = self._control.get(timeout=left)
                if isinstance(heard, threading.Thread):
                    self._gone(heard)

    def _stuck(self) -> int:
        """How many slots run a handler that nothing can end."""
        return sum(held.cancel is None for held in list(self._leases.strays))

    def _gone(self, thread: threading.Thread) -> None:
        thread.join()
        self._alive.discard(thread)

    def finish(self) -> None:
        """Leave nothing behind."""
        late = self._abort.is_set()  # they were waited for
        self.stopping = self._over = True
        self._quiet.set()
        self._abort.set()
        try:
            with self._lock:
                self._filled.notify_all()
                self._starving.notify_all()
            self._nudge.put(None)
            for line in self._lines:
                line.close()
            self._see_off(0.1 if late else GOODBYE_S)
            if self._watcher is not None:
                self._watcher.join()
                if self._reporter is not None:
                    self._reporter.worker_stopped(monotonic() - self._began)
                log.info("%s: has stopped", self._name)
        finally:
            self.ended.set()

    def _new_tally(self) -> Tally:
        tally = Tally()
        self._tallies.append(tally)
        return tally

    def _give_back(self, jobs: Sequence[Held], tally: Tally) -> None:
        """Let others have jobs that were not done. If that cannot be said, their leases end."""
        if not jobs:
            return
        for held in jobs:
            held.lost = True
            self._leases.waiting.pop(held, None)
        try:
            plan = give_back(self._keys, [(held.id, held.token) for held in jobs])
            gone = self._work.run(plan, GOODBYE_S)
        except Exception as error:
            log.warning(
                "%s: %d jobs could not be given back (%s); they wait until their leases end",
                self._name,
                len(jobs),
                told(error),
            )
        else:
            tally.given_back += len(jobs) - len(gone)

    # The fetcher.

    def _fetch(self) -> Held | None:
        """Fetch until there is a job for this thread; None at the end."""
        pauses, hurry = Pauses(), Pauses(0.001, 0.5)
        park_ms = 0
        while not self.stopping:
            try:
                count = self._wait_for_room()
                if self.stopping:
                    break
                if self._batched and monotonic() - self._oldest > OVERDUE_S:
                    self._flush(False)  # all slots are at work, and nobody tells
                taken = self._take(count, park_ms)
                park_ms = 0
                held = self._receive(taken, self._tally, fetched=True)
                if held is not None:
                    self._weather.good()
                    return held
                if taken.jobs or not count:
                    hurry.worked()
                elif self._burst and self._is_finished():
                    self.stop(self._settings.drain_timeout)
                    break
                elif taken.wait_ms:
                    hurry.worked()
                    park_ms = taken.wait_ms
                elif in_a_row(hurry):
                    self._quiet.wait(hurry.next())
            except Exception as error:
                if self.stopping:
                    break
                park_ms = 0
                self._weather.bad(error)
                self._quiet.wait(pauses.next())
            else:
                pauses.worked()
                self._weather.good()
        with self._door, contextlib.suppress(Exception):
            self._left = True
            self._work.run(leave(self._keys, self._waiter), GOODBYE_S)
        return None

    def _wait_for_room(self) -> int:
        """How many jobs to ask for; 0, every second, where all slots are busy."""
        with self._lock:
            if self._idle <= len(self._ready) and not self.stopping:
                self._starving.wait(UPKEEP_S)
            starving = self._idle - len(self._ready)
            if starving <= 0 or not self._batched:
                return min(max(starving, 0), TAKEN_AT_MOST)
            return self._room()

    def _room(self) -> int:
        """How many more jobs a batch has room for."""
        held = len(self._ready) + len(self._leases.running)
        return min(max(self._settings.held_at_most - held, 0), TAKEN_AT_MOST)

    def _take(self, count: int, park_ms: int) -> Taken:
        """Take a turn, parked before it for as long as the last one said."""
        parks = park_ms > 0 and count > 0
        try:
            if parks:
                if park_ms < PARK_MS and not self._burst:
                    self._back_at = monotonic() + park_ms / 1000 + REMIND_S
                    if self._back_at < self._wakes_at:
                        self._nudge.put(None)
                plan = park_and_take(self._keys, park_ms, count, **self._terms)
                taken = self._park.run(plan, park_ms / 1000 + PARK_MARGIN_S)
            else:
                with self._turn:
                    self._parked = False
                    taken = self._work.run(take(self._keys, count, **self._terms))
                    self._parked = count > 0 and taken.wait_ms > 0
        except BaseException:
            self._parked = False
            raise
        finally:
            self._back_at = math.inf
        if parks:
            self._parked = taken.wait_ms > 0
        return taken

    def _receive(self, taken: Taken, tally: Tally, *, fetched: bool = False) -> Held | None:
        """Let the jobs of a turn run. Of those that were fetched, the first is the caller's own."""
        report_dead(self._name, taken.dead)
        if not taken.jobs:
            return None
        jobs = [self._kind(job, self._keys, self._say) for job in taken.jobs]
        with self._lock:
            if not self.stopping:
                if self._batched:
                    for held in jobs:
                        self._leases.waiting[held] = held
                self._ready.extend(jobs)
                self._filled.notify(len(jobs))
                if not fetched:
                    return None
                self._fetching = False  # one of those that are notified goes on
                self._serving += 1
                return self._ready.popleft()
        self._give_back(jobs, tally)
        return None

    def _is_finished(self) -> bool:
        """Whether nothing is left to do, now or later."""
        with self._lock:
            if self._idle < self._settings.concurrency or self._ready:
                return False
        there = self._work.run(counts(self._keys))
        return not (there["pending"] or there["active"] or there["schedule"])

    # The slots.

    def _serve(self) -> None:
        slot = _Slot(self._new_tally())
        serve = self._serve_batches if self._batched else self._serve_one_by_one
        try:
            while (held := self._next()) is not None:
                try:
                    serve(held, slot)
                except Exception as error:  # the slot goes on, the job's lease ends
                    log.error("%s: job %s: %s", self._name, held.id, told(error), exc_info=error)
                    self._leases.running.pop(held, None)
                finally:
                    with self._lock:
                        self._serving -= 1
            if self._batched:
                self._flush(False)  # what others have done must not wait for what they do now
        finally:
            slot.close()

    def _next(self) -> Held | None:
        """Wait for a job, or fetch one where nobody does; None at the end."""
        with self._lock:
            while True:
                if self._ready and self._serving < self._settings.concurrency:
                    self._serving += 1
                    return self._ready.popleft()
                if self.stopping:
                    return None
                if not self._fetching:
                    self._fetching = True
                    break
                self._idle += 1
                self._starving.notify()
                self._filled.wait()
                self._idle -= 1
        return self._fetch()

    def _serve_one_by_one(self, first: Held, slot: _Slot) -> None:
        """Run the job, and those that come with its completion, until none comes."""
        held: Held | None = first
        keys, run, tally = self._keys, self._work.run, slot.tally
        lease_ms = self._settings.lease_ms
        while held is not None:
            settlement = self._handle(held, slot)
            if settlement is None:
                return
            if self.stopping or type(settlement) is not Completed:
                self._settle(held, settlement, tally)
                return
            _, result, ttl_ms = settlement
            try:
                job = run(complete_and_claim(keys, held.job, lease_ms, result, None, ttl_ms))
            except Exception as error:
                self._settle(held, settlement, tally, error)
                return
            self._settled(held, settlement, "completed", tally)
            held = None if job is None else self._kind(job, keys, self._say)
            if held is not None and self.stopping:
                self._give_back([held], tally)
                return

    def _handle(self, held: Held, slot: _Slot) -> Settlement | None:
        """Run the handler on a job; None if it is not ours to settle any more."""
        settings, job, leases, reporter = self._settings, held.job, self._leases, self._reporter
        slot.tally.started += 1
        running = leases.running
        running[held] = held
        try:
            if job.token > settings.max_attempts:
                check_claims(job, settings)
            if job.options or settings.time_limit_ms is not None:
                self._limit(held)
            if self._decode is not None:
                held.data = self._decode(job.payload)
            if reporter is None:
                value = self._handler(held)
                if value is not None and inspect.isawaitable(value):
                    value = slot.await_(held, value)
            else:
                reporter.started(held)
                with reporter.handling(held):
                    value = self._handler(held)
                    if inspect.isawaitable(value):
                        value = slot.await_(held, value)
            settlement = on_return(job, settings, value)
        except TimeIsUp:
            settlement = on_time_limit(job, settings)
        except BaseException as error:
            log.debug("%s: job %s: its handler raised", self._name, job.id, exc_info=error)
            settlement = on_error(job, settings, error)
        end_if_forked(self._pid)
        if running.pop(held, None) is None:
            leases.strays.pop(held, None)
            log.info(
                "%s: job %s is not this worker's any more; its outcome is dropped",
                self._name,
                job.id,
            )
            return None
        return settlement

    def _limit(self, held: Held) -> None:
        limit_ms = time_limit_ms(held.job, self._settings)
        if limit_ms is not None:
            held.ends = monotonic() + limit_ms / 1000
            if held.ends < self._wakes_at:
                self._nudge.put(None)

    def _say(self, plan: Plan[T]) -> Any:
        """Say what a handler has to say of its job; awaited where the handler is."""
        if asyncio._get_running_loop() is not None:
            return asyncio.to_thread(self._work.run, plan)
        return self._work.run(plan)

    def _settled(self, held: Held, settlement: Settlement, place: str, tally: Tally) -> None:
        tally.settled(place)
        if type(settlement) is not Completed:
            report_failed(self._name, settlement, place)
        if self._reporter is not None:
            self._reporter.settled(held, settlement, place)

    def _settle(
        self,
        held: Held,
        settlement: Settlement,
        tally: Tally,
        error: Exception | None = None,
        may_have_run: bool = False,
    ) -> None:
        """Tell the server of an outcome, however long it is away.

        Args:
            error: Of a try that was made already.
            may_have_run: Whether that one may have been carried out, whatever the error says.
        """
        tries, pauses, leases = Tries(may_have_run), Pauses(), self._leases
        leases.settling[held] = held
        try:
            while True:
                if error is not None and self._is_over(held, settlement, tally, tries, error):
                    return
                if error is not None and self._abort.wait(pauses.next()):
                    log.warning("%s: the outcome of job %s is dropped", self._name, held.id)
                    return
                error = self._told(self._work, held, settlement, tally)
                if error is None:
                    return
        finally:
            leases.settling.pop(held, None)

    def _told(
        self, line: _Line, held: Held, settlement: Settlement, tally: Tally
    ) -> Exception | None:
        """Tell the server of an outcome, once; what was raised."""
        try:
            [place] = line.run(settle(self._keys, [settlement]))
        except Exception as error:
            return error
        if isinstance(place, Exception):
            return place
        self._told_weather.good()
        self._settled(held, settlement, place, tally)
        return None

    def _is_over(
        self, held: Held, settlement: Settlement, tally: Tally, tries: Tries, error: Exception
    ) -> bool:
        """Whether a settlement that failed is not to be tried again."""
        match tries.after(error):
            case Again.TRY:
                self._told_weather.bad(error)
                return False
            case Again.SETTLED:
                self._settled(held, settlement, assumed_place(settlement), tally)
            case Again.REFUSED:
                log.info("%s: job %s: %s", self._name, held.id, error)
                if not held.lost:
                    held.lost = True
                    tally.lost += 1
            case Again.GIVE_UP:
                log.error(
                    "%s: the outcome of job %s is dropped: %s", self._name, held.id, told(error)
                )
        return True

    # Batches: outcomes are gathered, and told when no job is at hand or the first waits too long.

    def _serve_batches(self, first: Held, slot: _Slot) -> None:
        held: Held | None = first
        while held is not None:
            self._leases.waiting.pop(held, None)
            # Whose lease was lost while it waited here is another's to run.
            settlement = None if held.lost else self._handle(held, slot)
            if settlement is not None:
                self._leases.settling[held] = held
                self._outbox.append((held, settlement, slot))
                self._oldest = min(self._oldest, monotonic())
            held = self._next_at_hand()
            if held is None:
                self._flush(True)
                held = self._next_at_hand()
            elif (
                len(self._outbox) >= self._settings.batch or monotonic() - self._oldest > OVERDUE_S
            ):
                self._flush(False)

    def _next_at_hand(self) -> Held | None:
        with self._lock:
            return self._ready.popleft() if self._ready and not self.stopping else None

    def _flush(self, takes: bool) -> None:
        """Tell of all outcomes; with `takes`, and unless somebody parks, ask for more jobs."""
        with self._turn:
            told_of = [self._outbox.popleft() for _ in range(len(self._outbox))]
            self._oldest = math.inf
            with self._lock:
                takes = takes and not (self.stopping or self._parked or self._ready)
                room = self._room() if takes else 0
            if not told_of:
                return
            settlements = [settlement for _, settlement, _ in told_of]
            taken, failed = None, False
            try:
                if room:
                    places, taken = self._work.run(
                        settle_and_take(
                            self._keys,
                            settlements,
                            room,
                            **self._terms,
                        )
                    )
                else:
                    places = self._work.run(settle(self._keys, settlements))
            except Exception as error:
                failed = True
                places = [error] * len(told_of)
        if taken is not None:
            self._receive(taken, told_of[0][2].tally)
        for (held, settlement, slot), place in zip(told_of, places, strict=True):
            if isinstance(place, Exception):
                self._settle(held, settlement, slot.tally, place, failed)
            else:
                self._leases.settling.pop(held, None)
                self._settled(held, settlement, place, slot.tally)

    # The watch: leases and time limits.

    def _watch(self) -> None:
        pauses = Pauses()
        tally = self._new_tally()
        late: dict[Held, tuple[Settlement, Tries]] = {}
        while not self._over:
            # Infinite while it is worked out: whoever comes with an earlier limit then nudges.
            self._wakes_at = math.inf
            wakes_at = min(self._leases.wake_at(), self._back_at)
            if late:
                wakes_at = min(wakes_at, monotonic() + pauses.next())
            self._wakes_at = wakes_at
            with contextlib.suppress(Empty):
                self._nudge.get(timeout=max(wakes_at - monotonic(), 0))
            if self._over:
                return
            try:
                if self._back_at <= monotonic():
                    self._back_at = math.inf
                    with contextlib.suppress(Exception):
                        self._beat.run(remind(), self._settings.beat_timeout_s)
                for held in self._leases.overdue(monotonic()):
                    if self._leases.take(held):
                        self._leases.settling[held] = held
                        late[held] = on_time_limit(held.job, self._settings), Tries()
                for held, (settlement, tries) in list(late.items()):
                    if self._settle_late(held, settlement, tries, tally):
                        late.pop(held)
                        self._leases.settling.pop(held, None)
                self._renew(pauses, tally)
            except Exception as error:
                log.error("%s: leases: %s", self._name, told(error), exc_info=error)
                self._abort.wait(pauses.next())

    def _settle_late(self, held: Held, settlement: Settlement, tries: Tries, tally: Tally) -> bool:
        error = self._told(self._beat, held, settlement, tally)
        return error is None or self._is_over(held, settlement, tally, tries, error)

    def _renew(self, pauses: Pauses, tally: Tally) -> None:
        leases, settings = self._leases, self._settings
        now = monotonic()
        asked = leases.due(now)
        if not asked:
            leases.renewed(now)
            return
        try:
            plan = extend_many(self._keys, asked, settings.lease_ms, None)
            ids = self._beat.run(plan, settings.beat_timeout_s)
        except Exception as error:
            if not self._over:
                self._beat_weather.bad(error)
            leases.again(monotonic(), pauses.next())
            for held in leases.doubt(monotonic()):
                log.warning("%s: the lease of job %s may be over", self._name, held.id)
            return
        pauses.worked()
        self._beat_weather.good()
        leases.renewed(now)
        for held in leases.lost(asked, ids):
            held.lost = True
            tally.lost += 1
            log.warning("%s: the lease of job %s was lost", self._name, held.id)
            if self._reporter is not None:
                self._reporter.lost(held)


__all__ = ["SIGNALS", "Consumer", "Handler"]

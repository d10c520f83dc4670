"""A worker on asyncio.

The tasks of one event loop do what the threads of `Consumer` do: one fetches, each slot is one that
runs handlers. What must go on while a handler blocks the loop, the renewal of leases and the time
limits of functions, is a thread's, with a loop and a connection of its own.
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
from collections.abc import Callable, Coroutine, Iterator, Sequence
from queue import SimpleQueue
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from resp import Closed, ConnectFailed, Plan, Refused, ReplyTimeout, ServerFull, TransportError

from .backoff import Backoff
from .consumer import SIGNALS, Handler
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
from .queue import AsyncQueue
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


class AsyncConsumer:
    """Runs a handler on the jobs of a queue, on an event loop.

        async def greet(job: AsyncHeldJob) -> None:
            await job.progress("half way")

        await AsyncConsumer(queue, greet, concurrency=100).run()

    What `Consumer` says of handlers, their outcomes, and jobs that run more than once holds here
    too. A coroutine function runs in the loop, and is cancelled at its time limit; a function runs
    on a thread, and keeps its slot until it returns.

    Args:
        queue, handler, concurrency, lease_ms, max_attempts, max_stalled, backoff, time_limit_ms,
            drain_timeout, codec, batch, result_ttl_ms, telemetry, name: As for `Consumer`.
        cancel_lost: Cancel a coroutine whose job's lease was lost.

    Raises:
        TypeError, ValueError: An argument is none of these.
    """

    def __init__(
        self,
        queue: AsyncQueue,
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
        cancel_lost: bool = False,
    ) -> None:
        if not isinstance(queue, AsyncQueue):
            raise TypeError(
                f"queue is an emq.AsyncQueue, not {type(queue).__name__}; Consumer is for threads"
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
        self._cancel_lost = cancel_lost
        self._shift: _Shift | None = None
        self._running: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self.name} of {self.queue.name}, {self._status()}>"

    async def run(self, *, burst: bool = False, signals: bool = True) -> None:
        """Work until stopped, and return then.

        A server that is not there yet is waited for. Where this is cancelled, the jobs in hand are
        given back at once.

        Args:
            burst: Return when nothing is left to do, now or later: nothing pending, scheduled or
                active.
            signals: Stop on SIGTERM and SIGINT, where the loop runs in the main thread: nothing
                more is claimed, running handlers may finish, and a second signal gives their jobs
                back at once.

        Raises:
            Refused, ServerFull, FenceError: The server will not have this client.
            RuntimeError: The consumer runs already.
        """
        shift = self._new_shift(burst)
        with shift.signals() if signals else contextlib.nullcontext():
            await shift.run()

    async def start(self, *, burst: bool = False) -> None:
        """Work in tasks of its own, until `stop`.

        Raises:
            ConnectFailed: The server cannot be reached.
            RuntimeError: The consumer runs already.
        """
        shift = self._new_shift(burst)
        try:
            await shift.connect()
        except BaseException:
            await shift.finish()
            raise
        self._running = asyncio.create_task(shift.run(), name=f"{self.name} supervisor")

    async def stop(self, timeout: float | None = None) -> None:
        """Claim nothing more, let running handlers finish, and return when all has ended.

        From a handler it returns at once. Another loop, in another thread, may await it too.

        Args:
            timeout: Seconds that the handlers have; None for `drain_timeout`. The jobs of those
                that are late are given back.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        shift = self._shift
        if shift is None or shift.loop.is_closed():
            return
        if asyncio.get_running_loop() is not shift.loop:
            there = asyncio.run_coroutine_threadsafe(self.stop(timeout), shift.loop)
            await asyncio.wrap_future(there)
            return
        shift.stop(self._settings.drain_timeout if timeout is None else timeout)
        if not shift.is_mine():
            await shift.ended.wait()

    @property
    def idle(self) -> bool:
        """Whether it runs, and holds no job."""
        shift = self._shift
        return shift is not None and shift.is_idle()

    def stats(self) -> dict[str, int]:
        """Counters of this run, or of the latest; as `Consumer.stats`."""
        shift = self._shift
        if shift is None:
            return {**total(()), "in_flight": 0, "reconnects": 0}
        return shift.stats()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def _new_shift(self, burst: bool) -> _Shift:
        if self._shift is not None and not self._shift.ended.is_set():
            raise RuntimeError(f"{self!r} runs already; stop it first")
        self._shift = _Shift(
            self.queue, self._handler, self._settings, self.name, burst, self._cancel_lost
        )
        return self._shift

    def _status(self) -> str:
        shift = self._shift
        if shift is None:
            return "not started"
        if shift.ended.is_set():
            return "stopped"
        return "stopping" if shift.stopping else "running"


class _Line:
    """A connection of the worker's own. It is dialled again where it does not serve any more."""

    def __init__(self, parent: Any) -> None:
        self._parent = parent
        self._mutex = asyncio.Lock()
        self._closed = False
        self._renewals = 0
        self._pauses = Pauses()
        self._dialled = False
        self._dials_s = itertools.cycle(DIALS_S)
        self._not_before = -math.inf
        self._error: TransportError | None = None
        self._line: Any = None

    async def run(self, plan: Plan[T], timeout: float | None = None) -> T:
        """Drive a plan.

        Raises:
            TransportError: It cannot be dialled, or failed.
        """
        line = self._line
        if line is None:
            line = await self.dial()
        try:
            answer: T = await line.run(plan, timeout)
            return answer
        except Exception as error:
            # What is late may be late for ever, and what is read-only is no leader any more.
            late = isinstance(error, ReplyTimeout | ConnectFailed)
            if late or Trouble.of(error) is Trouble.MOVED:
                if self._line is line:
                    self._renewals += int(line.stats()["reconnects"])
                    self._line = None
                await line.close()
            raise

    async def dial(self) -> Any:
        """Answer the connection, made where there is none."""
        async with self._mutex:
            if self._line is not None:
                return self._line
            if self._closed:
                raise Closed
            if self._error is not None and monotonic() < self._not_before:
                raise ConnectFailed(str(self._error)) from self._error  # somebody tried just now
            try:
                # The first is as patient as the queue's own connection.
                timeout = {"connect_timeout": next(self._dials_s)} if self._dialled else {}
                line = await self._parent.sibling(**timeout, **LINE)
            except TransportError as error:
                self._error = error
                self._not_before = monotonic() + self._pauses.next()
                raise
            self._error = None
            self._pauses.worked()
            self._dials_s = itertools.cycle(DIALS_S)
            self._renewals += self._dialled
            self._dialled = True
            self._line = line
        if self._closed:
            await line.close()
            raise Closed
        return line

    async def close(self) -> None:
        """End the connection, and who waits for an answer on it."""
        self._closed = True
        if self._line is not None:
            await self._line.close()

    def reconnects(self) -> int:
        line = self._line
        return self._renewals + (0 if line is None else int(line.stats()["reconnects"]))


class _Hands:
    """Threads for handlers that are functions. They do not keep the process from its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._free = 0
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._busy: set[threading.Thread] = set()

    async def run(self, work: Callable[[Held], Any], held: Held) -> Any:
        """Call a handler on a thread; what it returns, or `_Raised`. A cancelled one goes on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        pid = os.getpid()

        def call() -> None:
            try:
                outcome = context.run(work, held)
            except BaseException as error:
                outcome = _Raised(error)
            end_if_forked(pid)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_tell, future, outcome)

        with self._lock:
            self._todo.put(call)
            if self._free:
                self._free -= 1
            else:
                thread = threading.Thread(
                    target=self._work, name=f"{self._name} hand {len(self._threads)}", daemon=True
                )
                self._threads.add(thread)
                thread.start()
        return await future

    def _work(self) -> None:
        thread = threading.current_thread()
        while (call := self._todo.get()) is not None:
            self._busy.add(thread)
            call()
            del call
            with self._lock:
                self._busy.discard(thread)
                self._free += 1

    def close(self) -> None:
        """End the threads; those whose handlers still run end with them."""
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads - self._busy:
            thread.join(GOODBYE_S)


class _Raised:
    """What a handler raised on its thread: some errors a future, or a coroutine, cannot carry."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _tell(future: asyncio.Future[Any], outcome: Any) -> None:
    if not future.done():
        future.set_result(outcome)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do what must be done, however often whoever waits for it is cancelled."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


class _Shift:
    """A consumer's run, from its start to its end."""

    def __init__(
        self,
        queue: AsyncQueue,
        handler: Handler,
        settings: Settings,
        name: str,
        burst: bool,
        cancel_lost: bool,
    ) -> None:
        self.stopping = False  # nothing more is claimed
        self.ended = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self._queue = queue
        self._keys = queue.keys
        self._handler: Callable[[Any], Any] = handler
        self._settings = settings
        self._name = name
        self._burst = burst
        self._cancel_lost = cancel_lost
        self._batched = settings.batch > 1
        self._awaits = check_handler(handler)
        self._kind = AsyncHeldJob if self._awaits else HeldJob
        self._hands = _Hands(name)
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
        self._work = _Line(queue.connector)
        self._park = _Line(queue.connector)
        self._tally = Tally()
        # Between the fetcher and the slots.
        self._ready: deque[Held] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._starving = asyncio.Event()
        self._quiet = asyncio.Event()  # set when nothing more is fetched: for pauses
        # Of batches.
        self._turn = asyncio.Lock()  # who takes, while nobody parks
        self._parked = False
        self._left = False  # the last word of the fetcher
        self._back_at = math.inf  # when the parked one is to be back, if early
        self._outbox: deque[tuple[Held, Settlement]] = deque()
        self._oldest = math.inf  # when the outbox' first came
        # The supervisor.
        self._alive: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stop_in: float | None = None
        self._deadline = math.inf
        self._abort = asyncio.Event()  # what is not settled by now is left
        self._watch = _Watch(self, queue.connector)

    # The supervisor.

    async def connect(self) -> None:
        """Dial; the watch dials its own."""
        await self._work.dial()
        await self._park.dial()

    async def run(self) -> None:
        """Work until told to stop, and end in order."""
        try:
            if await self._connected():
                self._launch()
                await self._supervise()
        except BaseException:
            await _to_its_end(self._end_at_once())
            raise
        finally:
            await self.finish()

    async def _end_at_once(self) -> None:
        await self._begin_to_stop()
        await self._abandon()

    def stop(self, seconds: float) -> None:
        """Ask the supervisor to stop."""
        self._stop_in = seconds if self._stop_in is None else min(self._stop_in, seconds)
        self._quiet.set()
        self._changed.set()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Stop on a signal, and at once on a second one."""
        count = 0

        def on_signal() -> None:
            nonlocal count
            count += 1
            self.stop(self._settings.drain_timeout if count == 1 else 0.0)

        before: dict[signal.Signals, Any] = {}
        try:
            # Elsewhere than in the main thread, and on loops that know no signals, there are none.
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                for number in SIGNALS:
                    handler = signal.getsignal(number)
                    self.loop.add_signal_handler(number, on_signal)
                    before[number] = signal.SIG_DFL if handler is None else handler
            yield
        finally:
            for number, handler in before.items():
                self.loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def is_mine(self) -> bool:
        """Whether this task belongs to the run, and so cannot wait for its end."""
        return asyncio.current_task() in self._alive

    def is_idle(self) -> bool:
        free = len(self._idle) == self._settings.concurrency and not self._ready
        return free and not self.stopping

    def stats(self) -> dict[str, int]:
        lines = (self._work, self._park)
        return {
            **total((self._tally, self._watch.tally)),
            "in_flight": len(self._leases),
            "reconnects": sum(line.reconnects() for line in lines) + self._watch.reconnects,
        }

    async def _connected(self) -> bool:
        """Dial, and wait for a server that is not there; False where it is time to stop."""
        pauses = Pauses()
        while self._stop_in is None:
            try:
                await self.connect()
            except TransportError as error:
                if isinstance(error, Refused) and not isinstance(error, ServerFull):
                    raise
                self._weather.bad(error)
            else:
                self._weather.good()
                return True
            await self._pause(self._quiet, pauses.next())
        return False

    def _launch(self) -> None:
        log.info("%s: works on queue %s", self._name, self._queue.name)
        if self._reporter is not None:
            self._reporter.worker_started(self._settings.concurrency)
        self._watch.start()
        self._start(self._fetch(), "fetcher")
        for at in range(self._settings.concurrency):
            self._start(self._serve(), f"slot {at}")

    def _start(self, work: Coroutine[Any, Any, None], role: str) -> None:
        task = self.loop.create_task(work, name=f"{self._name} {role}")
        self._alive.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._alive.discard(task)
        self._changed.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical(
                "%s: %s; a task of the worker ends", self._name, told(error), exc_info=error
            )
        if not self.stopping:
            self.stop(self._settings.drain_timeout)

    async def _supervise(self) -> None:
        while self._alive:
            self._changed.clear()
            if self._stop_in is not None:
                stop_in, self._stop_in = self._stop_in, None
                await self._begin_to_stop()
                self._deadline = min(self._deadline, monotonic() + stop_in)
            elif not await self._pause(self._changed, self._deadline - monotonic()):
                await self._abandon()
                return

    async def _pause(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for an event for so long; whether it came."""
        if event.is_set():
            return True
        try:
            async with asyncio.timeout(None if seconds == math.inf else max(seconds, 0)):
                return await event.wait()
        except TimeoutError:
            return False

    async def _begin_to_stop(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        self._quiet.set()
        self._starving.set()
        log.info("%s: stops; %d jobs are in hand", self._name, len(self._leases))
        unstarted = list(self._ready)
        self._ready.clear()
        self._wake(len(self._idle))
        await self._wake_fetcher()
        await self._give_back(unstarted)

    async def _wake_fetcher(self) -> None:
        """Let it park no longer. What it is given by then, it gives back."""
        if self._parked and not self._left:
            try:
                await self._work.run(leave(self._keys, self._waiter, blocks=True), WAKE_S)
            except Exception:
                await self._park.close()

    async def _abandon(self) -> None:
        """The time to finish is up: give back what still runs, and cancel it."""
        self._abort.set()
        late = [held for held in list(self._leases.running) if self._leases.take(held)]
        if late:
            log.warning("%s: gives back %d jobs whose handlers still run", self._name, len(late))
        for held in late:
            if held.cancel is not None:
                held.cancel()
        await self._give_back(late)
        # Those who have a last word to say may say it; a handler on a thread keeps its slot.
        until = monotonic() + GOODBYE_S
        while self._alive and monotonic() < until:
            await asyncio.wait(list(self._alive), timeout=0.1)
            for task in list(self._alive):
                task.cancel()
        if self._alive:
            log.error(
                "%s: %d handlers ignore that they are cancelled", self._name, len(self._alive)
            )

    async def finish(self) -> None:
        """Leave nothing behind."""
        try:
            await _to_its_end(self._finish())
        finally:
            self.ended.set()

    async def _finish(self) -> None:
        self.stopping = True
        self._quiet.set()
        self._abort.set()
        if self._watch.started:
            await self._watch.stop()
        self._hands.close()
        await self._park.close()
        await self._work.close()
        if self._watch.started:
            if self._reporter is not None:
                self._reporter.worker_stopped(monotonic() - self._began)
            log.info("%s: has stopped", self._name)

    async def _give_back(self, jobs: Sequence[Held]) -> None:
        """Let others have jobs that were not done. If that cannot be said, their leases end."""
        if not jobs:
            return
        for held in jobs:
            held.lost = True
            self._leases.waiting.pop(held, None)
        try:
            plan = give_back(self._keys, [(held.id, held.token) for held in jobs])
            gone = await self._work.run(plan, GOODBYE_S)
        except Exception as error:
            log.warning(
                "%s: %d jobs could not be given back (%s); they wait until their leases end",
                self._name,
                len(jobs),
                told(error),
            )
        else:
            self._tally.given_back += len(jobs) - len(gone)

    # The fetcher.

    async def _fetch(self) -> None:
        try:
            await self._fetch_on()
            if self._batched:
                await self._flush(False)  # what slots have done must not wait for what they do now
        finally:
            with contextlib.suppress(Exception):
                async with self._turn:
                    self._left = True
                    await self._work.run(leave(self._keys, self._waiter), GOODBYE_S)

    async def _fetch_on(self) -> None:
        pauses, hurry = Pauses(), Pauses(0.001, 0.5)
        park_ms = 0
        while not self.stopping:
            try:
                count = await self._wait_for_room()
                if self.stopping:
                    return
                if self._batched and monotonic() - self._oldest > OVERDUE_S:
                    await self._flush(False)  # all slots are at work, and nobody tells
                taken = await self._take(count, park_ms)
                park_ms = 0
                if taken.jobs or not count:
                    hurry.worked()
                elif self._burst and await self._is_finished():
                    self.stop(self._settings.drain_timeout)
                    return
                elif taken.wait_ms:
                    hurry.worked()
                    park_ms = taken.wait_ms
                elif in_a_row(hurry):
                    await self._pause(self._quiet, hurry.next())
            except Exception as error:
                if self.stopping:
                    return
                park_ms = 0
                self._weather.bad(error)
                await self._pause(self._quiet, pauses.next())
            else:
                pauses.worked()
                self._weather.good()

    async def _wait_for_room(self) -> int:
        """How many jobs to ask for; 0, every second, where all slots are busy."""
        if not self._idle:
            self._starving.clear()
            if not self.stopping:
                await self._pause(self._starving, UPKEEP_S)
        if not self._idle or not self._batched:
            return min(len(self._idle), TAKEN_AT_MOST)
        return self._room()

    def _room(self) -> int:
        """How many more jobs a batch has room for."""
        held = len(self._ready) + len(self._leases.running)
        return min(max(self._settings.held_at_most - held, 0), TAKEN_AT_MOST)

    async def _take(self, count: int, park_ms: int) -> Taken:
        """Take a turn, parked before it for as long as the last one said."""
        parks = park_ms > 0 and count > 0
        try:
            if parks:
                if park_ms < PARK_MS and not self._burst:
                    self._back_at = monotonic() + park_ms / 1000 + REMIND_S
                    self._watch.nudge(self._back_at)
                plan = park_and_take(self._keys, park_ms, count, **self._terms)
                taken = await self._park.run(plan, park_ms / 1000 + PARK_MARGIN_S)
            else:
                async with self._turn:
                    self._parked = False
                    taken = await self._work.run(take(self._keys, count, **self._terms))
                    self._parked = count > 0 and taken.wait_ms > 0
        except BaseException:
            self._parked = False
            raise
        finally:
            self._back_at = math.inf
        if parks:
            self._parked = taken.wait_ms > 0
        await self._receive(taken)
        return taken

    async def _receive(self, taken: Taken) -> None:
        report_dead(self._name, taken.dead)
        if not taken.jobs:
            return
        jobs = [self._kind(job, self._keys, self._say) for job in taken.jobs]
        if self.stopping:
            await self._give_back(jobs)
            return
        if self._batched:
            for held in jobs:
                self._leases.waiting[held] = held
        self._ready.extend(jobs)
        self._wake(len(jobs))

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)

    async def _is_finished(self) -> bool:
        """Whether nothing is left to do, now or later."""
        if len(self._idle) < self._settings.concurrency or self._ready:
            return False
        there = await self._work.run(counts(self._keys))
        return not (there["pending"] or there["active"] or there["schedule"])

    # The slots.

    async def _serve(self) -> None:
        serve = self._serve_batches if self._batched else self._serve_one_by_one
        while (held := await self._next()) is not None:
            try:
                await serve(held)
            except Exception as error:  # the slot goes on, the job's lease ends
                log.error("%s: job %s: %s", self._name, held.id, told(error), exc_info=error)
                self._leases.running.pop(held, None)

    async def _next(self) -> Held | None:
        """Wait for a job; None at the end."""
        while not self._ready:
            if self.stopping:
                return None
            future: asyncio.Future[None] = self.loop.create_future()
            self._idle.append(future)
            self._starving.set()
            try:
                await future
            finally:
                with contextlib.suppress(ValueError):
                    self._idle.remove(future)
        return self._ready.popleft()

    async def _serve_one_by_one(self, first: Held) -> None:
        """Run the job, and those that come with its completion, until none comes."""
        held: Held | None = first
        keys, lease_ms = self._keys, self._settings.lease_ms
        while held is not None:
            settlement = await self._handle(held)
            if settlement is None:
                return
            if self.stopping or type(settlement) is not Completed:
                await self._settle(held, settlement)
                return
            _, result, ttl_ms = settlement
            try:
                plan = complete_and_claim(keys, held.job, lease_ms, result, None, ttl_ms)
                job = await self._work.run(plan)
            except Exception as error:
                await self._settle(held, settlement, error)
                return
            self._settled(held, settlement, "completed")
            held = None if job is None else self._kind(job, keys, self._say)
            if held is not None and self.stopping:
                await self._give_back([held])
                return

    async def _handle(self, held: Held) -> Settlement | None:
        """Run the handler on a job; None if it is not ours to settle any more."""
        settings, job, leases, reporter = self._settings, held.job, self._leases, self._reporter
        self._tally.started += 1
        leases.running[held] = held
        task: Any = asyncio.current_task()
        try:
            if job.token > settings.max_attempts:
                check_claims(job, settings)
            if job.options or settings.time_limit_ms is not None:
                self._limit(held)
            if self._awaits:
                held.cancel = task.cancel
            if self._decode is not None:
                held.data = self._decode(job.payload)
            if reporter is None:
                value = await self._call(held)
                if type(value) is _Raised:
                    raise value.error
            else:
                reporter.started(held)
                with reporter.handling(held):
                    value = await self._call(held)
                    if type(value) is _Raised:
                        raise value.error
            settlement = on_return(job, settings, value)
        except TimeIsUp:
            settlement = on_time_limit(job, settings)
        except asyncio.CancelledError as error:
            if held in leases.running and task.cancelling():
                raise  # it is the worker's task that was cancelled, not by the worker
            settlement = on_error(job, settings, error)
        except KeyboardInterrupt:
            raise  # the main thread was told to end
        except BaseException as error:
            log.debug("%s: job %s: its handler raised", self._name, job.id, exc_info=error)
            settlement = on_error(job, settings, error)
        end_if_forked(self._pid)
        held.cancel = None
        if leases.running.pop(held, None) is None:
            leases.strays.pop(held, None)
            while not self._abort.is_set() and task.cancelling():
                task.uncancel()  # it was meant for the handler
            log.info(
                "%s: job %s is not this worker's any more; its outcome is dropped",
                self._name,
                job.id,
            )
            return None
        return settlement

    async def _call(self, held: Held) -> Any:
        if not self._awaits:
            value = await self._hands.run(self._handler, held)
            if not inspect.isawaitable(value):
                return value
            held.cancel = asyncio.current_task().cancel  # type: ignore[union-attr]
        else:
            value = self._handler(held)
        ends = held.ends
        if ends is None:
            return await value
        held.ends = ends + OBEY_S  # it is cancelled here; who watches sees that it ends
        try:
            async with asyncio.timeout(max(ends - monotonic(), 0)) as bound:
                return await value
        except TimeoutError:
            if bound.expired():
                raise TimeIsUp from None
            raise

    def _limit(self, held: Held) -> None:
        limit_ms = time_limit_ms(held.job, self._settings)
        if limit_ms is not None:
            held.ends = monotonic() + limit_ms / 1000
            self._watch.nudge(held.ends + OBEY_S if self._awaits else held.ends)

    def _say(self, plan: Plan[T]) -> Any:
        """Say what a handler has to say of its job; awaited where the handler is."""
        if asyncio._get_running_loop() is self.loop:
            return self._work.run(plan)
        return asyncio.run_coroutine_threadsafe(self._work.run(plan), self.loop).result()

    def cut(self, held: Held) -> None:
        """Cancel a handler whose lease was lost."""
        if held.cancel is not None and self._leases.take(held):
            held.cancel()

    def _settled(
        self, held: Held, settlement: Settlement, place: str, tally: Tally | None = None
    ) -> None:
        (tally or self._tally).settled(place)
        if type(settlement) is not Completed:
            report_failed(self._name, settlement, place)
        if self._reporter is not None:
            self._reporter.settled(held, settlement, place)

    async def _settle(
        self,
        held: Held,
        settlement: Settlement,
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
                if error is not None and self._is_over(held, settlement, tries, error, self._tally):
                    return
                if error is not None and await self._pause(self._abort, pauses.next()):
                    log.warning("%s: the outcome of job %s is dropped", self._name, held.id)
                    return
                place = await self.tell(self._work, settlement)
                if isinstance(place, str):
                    self._told_weather.good()
                    self._settled(held, settlement, place)
                    return
                error = place
        finally:
            leases.settling.pop(held, None)

    async def tell(self, line: _Line, settlement: Settlement) -> str | Exception:
        """Tell the server of an outcome, once; where the job is, or what was raised."""
        try:
            [place] = await line.run(settle(self._keys, [settlement]))
        except Exception as error:
            return error
        return place

    def _is_over(
        self, held: Held, settlement: Settlement, tries: Tries, error: Exception, tally: Tally
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

    async def _serve_batches(self, first: Held) -> None:
        held: Held | None = first
        while held is not None:
            self._leases.waiting.pop(held, None)
            # Whose lease was lost while it waited here is another's to run.
            settlement = None if held.lost else await self._handle(held)
            if settlement is not None:
                self._leases.settling[held] = held
                self._outbox.append((held, settlement))
                self._oldest = min(self._oldest, monotonic())
            if not self._ready:
                await self._flush(True)
            elif (
                len(self._outbox) >= self._settings.batch or monotonic() - self._oldest > OVERDUE_S
            ):
                await self._flush(False)
            held = self._ready.popleft() if self._ready and not self.stopping else None

    async def _flush(self, takes: bool) -> None:
        """Tell of all outcomes; with `takes`, and unless somebody parks, ask for more jobs."""
        async with self._turn:
            outcomes = list(self._outbox)
            self._outbox.clear()
            self._oldest = math.inf
            if not outcomes:
                return
            takes = takes and not (self.stopping or self._parked or self._ready)
            room = self._room() if takes else 0
            settlements = [settlement for _, settlement in outcomes]
            taken, failed = None, False
            places: Sequence[str | Exception]
            try:
                if room:
                    places, taken = await self._work.run(
                        settle_and_take(
                            self._keys,
                            settlements,
                            room,
                            **self._terms,
                        )
                    )
                else:
                    places = await self._work.run(settle(self._keys, settlements))
            except Exception as error:
                failed = True
                places = [error] * len(outcomes)
            if taken is not None:
                await self._receive(taken)
        for (held, settlement), place in zip(outcomes, places, strict=True):
            if isinstance(place, Exception):
                await self._settle(held, settlement, place, failed)
            else:
                self._leases.settling.pop(held, None)
                self._settled(held, settlement, place)


class _Watch:
    """The thread that renews the leases and watches the time limits, whatever the loop does."""

    def __init__(self, shift: _Shift, connector: Any) -> None:
        self.tally = Tally()
        self.started = False
        self.reconnects = 0
        self._shift = shift
        self._connector = connector
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._nudged: asyncio.Event | None = None
        self._wakes_at = math.inf
        self._over = False
        self._ended: asyncio.Future[None] = shift.loop.create_future()
        self._thread = threading.Thread(
            target=self._main, name=f"{shift._name} leases", daemon=True
        )

    def start(self) -> None:
        self.started = True
        self._thread.start()

    def nudge(self, ends: float) -> None:
        """Look again, if not before `ends` anyway."""
        if ends < self._wakes_at and self._loop is not None and self._nudged is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._nudged.set)

    async def stop(self) -> None:
        """End the thread."""
        self._over = True
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        await self._ended
        self._thread.join()

    def _main(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._run())
        finally:
            with contextlib.suppress(RuntimeError):
                self._shift.loop.call_soon_threadsafe(_tell, self._ended, None)

    async def _run(self) -> None:
        self._nudged = asyncio.Event()
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        line = _Line(self._connector)
        pauses = Pauses()
        late: dict[Held, tuple[Settlement, Tries]] = {}
        try:
            with contextlib.suppress(TransportError):
                await line.dial()
            while not self._over:
                try:
                    await self._turn(line, pauses, late)
                except Exception as error:
                    log.error("%s: leases: %s", self._shift._name, told(error), exc_info=error)
                    await asyncio.sleep(pauses.next())
                self.reconnects = line.reconnects()
        finally:
            await line.close()

    async def _turn(
        self, line: _Line, pauses: Pauses, late: dict[Held, tuple[Settlement, Tries]]
    ) -> None:
        shift, nudged = self._shift, self._nudged
        leases = shift._leases
        assert nudged is not None
        # Infinite while it is worked out: whoever comes with an earlier limit then nudges.
        self._wakes_at = math.inf
        nudged.clear()
        wakes_at = min(leases.wake_at(), shift._back_at)
        if late:
            wakes_at = min(wakes_at, monotonic() + pauses.next())
        self._wakes_at = wakes_at
        await shift._pause(nudged, wakes_at - monotonic())
        if shift._back_at <= monotonic():
            shift._back_at = math.inf
            with contextlib.suppress(Exception):
                await line.run(remind(), shift._settings.beat_timeout_s)
        for held in leases.overdue(monotonic()):
            if leases.take(held):
                leases.settling[held] = held
                late[held] = on_time_limit(held.job, shift._settings), Tries()
        for held, (settlement, tries) in list(late.items()):
            place = await shift.tell(line, settlement)
            if isinstance(place, str):
                shift._settled(held, settlement, place, self.tally)
            elif not shift._is_over(held, settlement, tries, place, self.tally):
                continue
            late.pop(held)
            leases.settling.pop(held, None)
        await self._renew(line, pauses)

    async def _renew(self, line: _Line, pauses: Pauses) -> None:
        shift = self._shift
        leases, settings = shift._leases, shift._settings
        now = monotonic()
        asked = leases.due(now)
        if not asked:
            leases.renewed(now)
            return
        try:
            plan = extend_many(shift._keys, asked, settings.lease_ms, None)
            ids = await line.run(plan, settings.beat_timeout_s)
        except Exception as error:
            shift._beat_weather.bad(error)
            leases.again(monotonic(), pauses.next())
            for held in leases.doubt(monotonic()):
                log.warning("%s: the lease of job %s may be over", shift._name, held.id)
            return
        pauses.worked()
        shift._beat_weather.good()
        leases.renewed(now)
        for held in leases.lost(asked, ids):
            held.lost = True
            self.tally.lost += 1
            log.warning("%s: the lease of job %s was lost", shift._name, held.id)
            if shift._reporter is not None:
                shift._reporter.lost(held)
            if shift._cancel_lost:
                with contextlib.suppress(RuntimeError):
                    shift.loop.call_soon_threadsafe(shift.cut, held)


__all__ = ["AsyncConsumer"]

"""A queue: the verbs of the bus, for threads and for asyncio.

The two classes are one line a method over the same plans; they differ in `await` alone.

Where the connection is lost in the middle of a call, a `TransportError` is raised. Unless the last
byte of the request had reached the server, nothing has changed ("request cut"); else the verb has
run, whatever came of the reply ("reply cut"). `may_have_run` is False only where nothing has run.
Nothing is sent twice: the caller says the same again if it wants to ("said again" is what it gets
where the verb has run), or looks. What was claimed by a call that got no answer waits for its lease
to end. A verb that takes several steps may be cut between two of them.

What a lost connection leaves behind, by verb:

verb                           request cut     reply cut                         said again
-----------------------------  --------------  --------------------------------  -------------------
enqueue (job_id), enqueue      as it was       new -> pending                    admitted False
(dedup), enqueue_many
(job_id)
enqueue (no job_id),           as it was       new -> pending                    another job
enqueue_many (no job_id)
enqueue (job_id, delay_ms)     as it was       new -> schedule                   admitted False
enqueue_many (job_id, in 2     0-1 of 2 steps  new -> pending                    admitted False
scripts)
claim                          as it was       pending -> active                 the next Job
claim_many                     as it was       pending -> active                 the next Jobs
claim_many (in 2 scripts)      0-1 of 2 steps  1-2 of 2 steps: pending ->        the next Jobs
                                               active
complete                       as it was       active -> gone                    JobGone
complete (result_ttl_ms)       as it was       active -> gone, its outcome       JobGone
complete_and_claim             as it was       active -> gone, pending ->        JobGone
                                               active
retry (scheduled), delay,      as it was       active -> schedule                StaleToken
delay (excuse)
retry (dead)                   as it was       active -> dead                    StaleToken
extend                         as it was       the lease ends later              None
extend_many                    as it was       the lease ends later              []
give_back                      as it was       active -> pending                 their ids
lock                           as it was       locked                            None
unlock                         as it was       not locked                        False
promote                        as it was       schedule -> pending               0
reap                           as it was       active -> pending                 0
sweep_stalled (recovered)      as it was       active -> pending                 an empty Sweep
sweep_stalled (dead)           as it was       active -> dead                    an empty Sweep
progress                       as it was       the text                          None, published
log                            as it was       a line more                       2, a line more
update_payload                 as it was       the new payload                   None
remove                         as it was       pending -> gone                   JobGone
reprocess                      as it was       dead -> pending                   WrongState
pause                          as it was       paused                            None
resume                         as it was       not paused                        None
drain                          as it was       pending -> gone                   0
drain (include_schedule)       0-1 of 2 steps  1-2 of 2 steps: pending,          0
                                               schedule -> gone
obliterate                     0-2 of 3 steps  1-3 of 3 steps: active, pending,  WrongState
                                               schedule -> gone, not paused
set_concurrency                as it was       the new limit                     None
set_events                     as it was       the new setting                   None
publish                        as it was       published                         1, published

Each row is what `python -m tests.matrix` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from resp import Plan

from . import waiting
from .ids import Mint
from .job import Blob, Entry, Item, Job, Metric, Outcome, Receipt, Row, Sweep
from .keyspace import Keyspace
from .plans import admin, events, jobs, reads, recovery, schedule

if TYPE_CHECKING:
    from .backoff import Backoff
    from .events import AsyncEventStream, EventStream

T = TypeVar("T")


class Runner(Protocol):
    """What a `Queue` needs of its connector."""

    def run(self, plan: Plan[T], /) -> T: ...

    @property
    def subscribe(self) -> Callable[..., Any]: ...


class AsyncRunner(Protocol):
    """What an `AsyncQueue` needs of its connector."""

    async def run(self, plan: Plan[T], /) -> T: ...

    @property
    def subscribe(self) -> Callable[..., Any]: ...


# Of a code object, `inspect.CO_COROUTINE` and `inspect.CO_ITERABLE_COROUTINE`: calling it makes
# something to await.
_AWAITED: Final = 0x80 | 0x100


def _check_connector(connector: object, *, awaited: bool) -> None:
    """Refuse a connector of the other shell, which would send nothing or wait for nothing.

    A callable that does not show its code passes: it may be a pool's, or a wrapper's.
    """
    mine, other = ("AsyncQueue", "Queue") if awaited else ("Queue", "AsyncQueue")
    verb = "connect_async" if awaited else "connect"
    run = getattr(connector, "run", None)
    if not callable(run):
        raise TypeError(
            f"connector is what emq.{verb} answers, not {type(connector).__name__}; "
            f"dial first: {mine}({'await ' if awaited else ''}emq.{verb}(url), name)"
        )
    flags = getattr(getattr(run, "__code__", None), "co_flags", None)
    if isinstance(flags, int) and bool(flags & _AWAITED) is not awaited:
        raise TypeError(
            f"{mine} needs a connector whose run is {'' if awaited else 'not '}a coroutine "
            f"function, as emq.{verb} answers; use {other} with this {type(connector).__name__}"
        )


def _checked_mint(mint: Mint | None) -> Mint:
    if mint is None:
        return Mint()
    if not callable(getattr(mint, "mint", None)):
        raise TypeError(f"mint is an emq.Mint or None, not {type(mint).__name__}")
    return mint


class Queue:
    """One queue of jobs, to be used from any number of threads.

    Every verb that changes something is one script on the server: it happens whole or not at all.
    Ill-formed ids, and numbers out of range, raise before anything is sent. A verb that is refused
    has written nothing. A `TransportError` leaves open whether the verb was carried out, unless
    its `may_have_run` is False.

    A verb that settles a job takes the `Job` that `claim` answered, or its id and `token=`.

    Args:
        connector: What `emq.connect` answers; many queues may share one.
        name: 1 to 128 of `A-Z a-z 0-9 . _ -`, and not `emq`.
        mint: Where ids come from; None is a mint of the process's own.

    Attributes:
        connector: As given.
        name: As given.
        keys: The names of the queue's keys.

    Raises:
        TypeError: The connector is no connector, or one for asyncio; or `mint` is no mint.
        ValueError: The name is not one.
    """

    def __init__(self, connector: Runner, name: str, *, mint: Mint | None = None) -> None:
        _check_connector(connector, awaited=False)
        self.connector = connector
        self.keys = Keyspace(name)
        self.name = self.keys.queue
        self._mint = _checked_mint(mint)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def enqueue(
        self,
        payload: Blob,
        *,
        job_id: str | bytes | None = None,
        delay_ms: int | None = None,
        run_at_ms: int | None = None,
        dedup: str | None = None,
        dedup_ttl_ms: int | None = None,
        result_ttl_ms: int | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        time_limit_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Receipt:
        """Add a job, to be claimed at once or when it falls due.

        Args:
            payload: What the job carries; text is sent as UTF-8. Claims hand back bytes.
            job_id: The job's id, to make the call repeatable: where a job of that id exists,
                nothing is changed and the receipt's `admitted` is False. None mints one.
            delay_ms: When it falls due, in ms from now by the server's clock.
            run_at_ms: When it falls due, in ms since 1970. Excludes `delay_ms`.
            dedup: A key, 1 to 255 of `A-Z a-z 0-9 . _ -`, that one job at a time may hold. Where
                one does, nothing is changed, and the receipt has its id and `admitted` False. The
                key is free again when the job is completed, dead or removed.
            dedup_ttl_ms: The key is free again after this many ms, if it is not before.
            result_ttl_ms: For how many ms the job's outcome is kept when it has ended, for `wait`;
                None keeps nothing.
            max_attempts, backoff, time_limit_ms: What the job wants of its worker: when it is dead,
                how it waits between attempts, how long one may take; None leaves it to the worker.
            headers: Texts that go with the job beside its payload, such as a trace's context.

        Raises:
            InvalidId: `job_id` is no branded id.
            WrongKind: It is one, but not a job's.
            ValueError, TypeError: An option is out of range, or of a wrong type; nothing was sent.
        """
        return self.connector.run(
            jobs.enqueue(
                self.keys,
                self._mint,
                Item(
                    payload,
                    job_id,
                    delay_ms,
                    run_at_ms,
                    dedup,
                    dedup_ttl_ms,
                    result_ttl_ms,
                    max_attempts,
                    backoff,
                    time_limit_ms,
                    headers,
                ),
            )
        )

    def enqueue_many(self, items: Iterable[Blob | Item]) -> list[Receipt]:
        """Add many jobs in one flush, in order.

        Args:
            items: Payloads, or an `Item` where a job has an id or a due time. All are checked
                before the first is sent.

        Returns:
            A receipt for each, in order.

        Raises:
            InvalidId, WrongKind: An id is no job's; nothing was sent.
            ServerError: The server refused a part; a note on the error says how many it admitted.
            TransportError: The call was cut; any of the jobs may have been admitted, as a note on
                the error says. A bulk whose Items all have a `job_id` can be sent again: what was
                admitted stays as it is, and its receipt's `admitted` is False.
            TypeError: `items` is one payload or a mapping, or holds what is neither payload nor
                Item; nothing was sent.
        """
        return self.connector.run(jobs.enqueue_many(self.keys, self._mint, items))

    def claim(self, lease_ms: int = 30_000) -> Job | None:
        """Take the oldest pending job for a bounded time.

        None if nothing is pending, or the queue is paused or at its ceiling.

        Args:
            lease_ms: Length of the lease, in ms of server time. Extend it before it ends.

        Raises:
            TransportError: No answer; a job may be claimed, and comes back when its lease ends.
            ContractError: The entry is none that an enqueue makes. It is leased, so the next claim
                gets past it.
        """
        return self.connector.run(jobs.claim(self.keys, lease_ms))

    def claim_many(self, count: int, lease_ms: int = 30_000) -> list[Job]:
        """Take the oldest pending jobs for a bounded time, as one step.

        Fewer than `count`, or none, if fewer are pending, or the queue is paused or at its ceiling.
        More than 250 are claimed by several steps.

        Args:
            count: At most this many.
            lease_ms: Length of the leases, in ms of server time; those of one step end together.
        """
        return self.connector.run(jobs.claim_many(self.keys, count, lease_ms))

    def complete(
        self,
        job: Job | str | bytes,
        result: Blob | None = None,
        *,
        token: int | None = None,
        result_ttl_ms: int | None = None,
    ) -> None:
        """Settle a job as done. Its row is deleted.

        Args:
            job: The claimed job, or its id with `token`.
            result: Kept for the parent of a flow, and for `wait` where the outcome is kept; dropped
                for any other job.
            token: The token of an id.
            result_ttl_ms: For how many ms to keep the outcome; None does as the job's producer
                asked.

        Raises:
            StaleToken: Another claim holds the job, or it was settled already.
            JobGone: There is no such job.
        """
        return self.connector.run(jobs.complete(self.keys, job, result, token, result_ttl_ms))

    def complete_and_claim(
        self,
        job: Job | str | bytes,
        lease_ms: int = 30_000,
        *,
        result: Blob | None = None,
        token: int | None = None,
        result_ttl_ms: int | None = None,
    ) -> Job | None:
        """Settle a job as done and take the next one, in one step.

        None if nothing is pending, or the queue is paused; the job is completed even so. Where the
        completion is refused, nothing is claimed. Arguments and errors are those of `complete` and
        of `claim`; where it raises `ContractError`, the job is completed.
        """
        return self.connector.run(
            jobs.complete_and_claim(self.keys, job, lease_ms, result, token, result_ttl_ms)
        )

    def retry(
        self,
        job: Job | str | bytes,
        *,
        delay_ms: int,
        max_attempts: int,
        error: Blob,
        token: int | None = None,
    ) -> str:
        """Settle a job as failed: it falls due again after a delay, or is dead.

        Args:
            job: The claimed job, or its id with `token`.
            delay_ms: Until it falls due again, in ms of server time.
            max_attempts: A job that failed this often is dead. Claims whose workers died, or that
                were excused, are no failures.
            error: Why it failed; kept as the row's `last_error`.
            token: The token of an id.

        Returns:
            `"scheduled"` or `"dead"`.

        Raises:
            StaleToken: Another claim holds the job, or it was settled already.
            JobGone: There is no such job.
        """
        return self.connector.run(jobs.retry(self.keys, job, delay_ms, max_attempts, error, token))

    def delay(
        self,
        job: Job | str | bytes,
        delay_ms: int | None = None,
        *,
        run_at_ms: int | None = None,
        token: int | None = None,
        excuse: bool = False,
    ) -> None:
        """Settle a job as put off: it falls due again later, and did not fail.

        Args:
            job: The claimed job, or its id with `token`.
            delay_ms: Until it falls due again, in ms of server time.
            run_at_ms: When it falls due again, in ms since 1970. Excludes `delay_ms`.
            token: The token of an id.
            excuse: The attempt does not count against `max_attempts`; the wire's delay counts it.

        Raises:
            StaleToken: Another claim holds the job, or it was settled already.
            JobGone: There is no such job.
        """
        return self.connector.run(
            schedule.delay(self.keys, job, delay_ms, run_at_ms, token, excuse)
        )

    def extend(self, job: Job | str | bytes, lease_ms: int, *, token: int | None = None) -> None:
        """Let a job's lease end `lease_ms` from now.

        A lease that has run out can be extended as long as nobody has reaped it.

        Raises:
            StaleToken: Another claim holds the job, or it was settled, or it was reaped.
            JobGone: There is no such job.
        """
        return self.connector.run(recovery.extend(self.keys, job, lease_ms, token))

    def extend_many(
        self,
        jobs: Iterable[Job | tuple[str | bytes, int]],
        lease_ms: int,
        *,
        lock_ttl_ms: int | None = None,
    ) -> list[str]:
        """Let many leases end `lease_ms` from now.

        Args:
            jobs: Claimed jobs, or pairs of id and token.
            lease_ms: Length of the leases, in ms of server time.
            lock_ttl_ms: For those that their holder has locked: how long the lock lasts, in ms.

        Returns:
            The ids whose leases could not be extended: they are held by another claim, settled,
            reaped or gone. Nothing was written for them.

        Raises:
            InvalidId, WrongKind: An id is no job's; nothing was sent.
            TypeError: They are neither Jobs nor pairs; nothing was sent.
        """
        return self.connector.run(recovery.extend_many(self.keys, jobs, lease_ms, lock_ttl_ms))

    def give_back(self, jobs: Iterable[Job | tuple[str | bytes, int]]) -> list[str]:
        """Let claimed jobs wait again at once, as if they had not been claimed.

        Args:
            jobs: Claimed jobs, or pairs of id and token.

        Returns:
            The ids that their claim did not hold any more; nothing was written for them. The claims
            of the others are no attempts.
        """
        return self.connector.run(recovery.give_back(self.keys, jobs))

    def lock(self, job: Job | str | bytes, ttl_ms: int, *, token: int | None = None) -> None:
        """Keep a claimed job from being removed.

        Args:
            job: The claimed job, or its id with `token`.
            ttl_ms: For how long, in ms. `extend_many` can let it last longer.
            token: The token of an id.

        Raises:
            StaleToken: Another claim holds the job, or it was settled already.
            JobGone: There is no such job.
        """
        return self.connector.run(recovery.lock(self.keys, job, ttl_ms, token))

    def unlock(self, job: Job | str | bytes, *, token: int | None = None) -> bool:
        """Let a job be removed again; False if it was not locked under this token."""
        return self.connector.run(recovery.unlock(self.keys, job, token))

    def promote(self, limit: int = 100) -> int:
        """Let the scheduled jobs wait that have fallen due, and answer how many.

        Args:
            limit: How many entries to look at. An entry whose job was deleted is dropped; it uses
                up the limit and is not counted.
        """
        return self.connector.run(schedule.promote(self.keys, limit))

    def reap(self, limit: int = 100) -> int:
        """Let the jobs wait again whose leases have run out, and answer how many.

        Args:
            limit: How many entries to look at. An entry whose job was deleted is dropped; it uses
                up the limit and is not counted.
        """
        return self.connector.run(recovery.reap(self.keys, limit))

    def sweep_stalled(self, max_stalled: int = 1, limit: int = 100) -> Sweep:
        """Count the leases that have run out: a job that stalled too often is dead, others wait.

        Args:
            max_stalled: A job that stalled this often is dead, with `stalled` as its error. With
                the default the first stall kills.
            limit: How many entries to look at.
        """
        return self.connector.run(recovery.sweep_stalled(self.keys, max_stalled, limit))

    def counts(self) -> dict[str, int]:
        """Answer how many jobs are pending, active, schedule, dead, completed and failed.

        One instant, by place. Jobs that wait in lanes are not among the pending.
        """
        return self.connector.run(reads.counts(self.keys))

    def state(self, job_id: str | bytes) -> str | None:
        """Answer where a job is, or None if there is no such job.

        One of pending, active, scheduled, dead, awaiting_children; unknown for a row that is in no
        place.
        """
        return self.connector.run(reads.state(self.keys, job_id))

    def job(self, job_id: str | bytes) -> Row | None:
        """Answer a job's row, or None if there is no such job."""
        return self.connector.run(reads.job(self.keys, job_id))

    def browse(self, limit: int = 100) -> list[str]:
        """Answer the ids of the pending jobs, newest first."""
        return self.connector.run(reads.browse(self.keys, limit))

    def metrics(self) -> dict[str, Metric]:
        """Answer the counters of the jobs that are `completed` and that `failed` for good."""
        return self.connector.run(reads.metrics(self.keys))

    def peek(self, place: str = "pending", limit: int = 100, *, offset: int = 0) -> list[Entry]:
        """Answer the first entries of one of the queue's places, which are next to leave it.

        Args:
            place: `pending`, `active`, `schedule` or `dead`.
            limit: How many entries.
            offset: How many to leave out first.
        """
        return self.connector.run(reads.peek(self.keys, place, limit, offset))

    def progress(self, job: Job | str | bytes, text: Blob, *, token: int | None = None) -> None:
        """Write down how far a job has come, and publish it on the queue's events.

        Args:
            job: A claimed job, whose token must still count; or an id, for an operator.
            text: How far.
            token: The token of an id, to have it checked.

        Raises:
            StaleToken: Another claim holds the job, or it was settled already.
            JobGone: There is no such job.
        """
        return self.connector.run(admin.progress(self.keys, job, text, token))

    def log(
        self, job: Job | str | bytes, line: Blob, *, keep: int = 0, token: int | None = None
    ) -> int:
        """Add a line to a job's log, which goes with the job; answer how many lines there are.

        Args:
            job: A claimed job, whose token must still count; or an id, for an operator.
            line: The line.
            keep: How many lines to keep, the last ones; 0 keeps all.
            token: The token of an id, to have it checked.

        Raises:
            StaleToken: Another claim holds the job, or it was settled already.
            JobGone: There is no such job.
        """
        return self.connector.run(admin.log(self.keys, job, line, keep, token))

    def logs(self, job_id: str | bytes) -> list[str]:
        """Answer the lines of a job's log, oldest first.

        Raises:
            JobGone: There is no such job.
        """
        return self.connector.run(admin.logs(self.keys, job_id))

    def update_payload(self, job_id: str | bytes, payload: Blob) -> None:
        """Replace what a job carries. Who holds it already keeps what it was given.

        Raises:
            JobGone: There is no such job.
        """
        return self.connector.run(admin.update_payload(self.keys, job_id, payload))

    def remove(self, job_id: str | bytes, *, dedup: str | None = None) -> None:
        """Take a job away, wherever it is, with its log and all else that is its own.

        Whoever holds it is refused when it settles. A flow's parent learns that its child died.

        Args:
            job_id: The job.
            dedup: A deduplication key to set free, if the job holds it. One that its enqueue took
                is set free anyway.

        Raises:
            JobLocked: Somebody has locked it.
            JobGone: There is no such job.
        """
        return self.connector.run(admin.remove(self.keys, job_id, dedup))

    def reprocess(self, job_id: str | bytes, *, reset: bool = False) -> None:
        """Let a dead job wait again, in its lane if it has one.

        Args:
            job_id: The job.
            reset: Its attempts so far, and its stalls, do not count any more. The wire's own verb
                keeps them, so the next failure may be the last again.

        Raises:
            WrongState: It is not dead.
            JobGone: There is no such job.
        """
        return self.connector.run(admin.reprocess(self.keys, job_id, reset))

    def pause(self) -> None:
        """Let no job be claimed any more, from this instant; what is claimed goes on."""
        return self.connector.run(admin.pause(self.keys))

    def resume(self) -> None:
        """Let jobs be claimed again."""
        return self.connector.run(admin.resume(self.keys))

    def paused(self) -> bool:
        """Answer whether the queue is paused."""
        return self.connector.run(reads.paused(self.keys))

    def drain(self, *, include_schedule: bool = False) -> int:
        """Delete the pending jobs, 500 a step, and answer how many. Claimed ones are left alone.

        Args:
            include_schedule: The scheduled ones, too.
        """
        return self.connector.run(admin.drain(self.keys, include_schedule))

    def obliterate(self, *, force: bool = False, budget: int = 1000) -> bool:
        """Delete a paused queue with all its keys; False where there is more: call it again.

        Args:
            force: Claimed jobs, too. Whoever holds them is refused when it settles.
            budget: At most this many jobs in this call. Keys that belong to no job are found by a
                SCAN of the whole database, in steps of 1000 keys.

        Raises:
            WrongState: The queue is not paused, or jobs are claimed and `force` is not given.
        """
        return self.connector.run(admin.obliterate(self.keys, force, budget))

    def set_concurrency(self, limit: int | None) -> None:
        """Set how many jobs may be claimed at once, by all workers together; None is no limit.

        Claims of this client keep to it: at the limit they answer as if nothing were pending.
        """
        return self.connector.run(admin.set_concurrency(self.keys, limit))

    def concurrency(self) -> int | None:
        """Answer how many jobs may be claimed at once; None is no limit."""
        return self.connector.run(reads.concurrency(self.keys))

    def check_ceiling(self) -> None:
        """Look whether another job may be claimed now.

        Raises:
            AtCeiling: As many jobs are claimed as `set_concurrency` allows.
        """
        return self.connector.run(reads.check_ceiling(self.keys))

    def rate_limit(self) -> int:
        """Answer the rate limit that an operator wrote into the settings; 0 is none."""
        return self.connector.run(reads.rate_limit(self.keys))

    def rate_ttl_ms(self, most: int = 0) -> int:
        """Answer for how many ms the rate limit's counter is at its limit; 0 is below.

        Args:
            most: The limit; 0 is the one in the queue's settings.
        """
        return self.connector.run(reads.rate_ttl_ms(self.keys, most))

    def dedup(self, key: str) -> str | None:
        """Answer the id of the job that holds a deduplication key."""
        return self.connector.run(reads.dedup(self.keys, key))

    def set_events(self, enabled: bool) -> None:
        """Let every transition of this queue be published, by all clients of this make, or not.

        The names are added, scheduled, active, completed, failed (with `error` and `to`), delayed,
        promoted, reaped, stalled (`to`), returned, removed, reprocessed, updated; and of the queue
        itself paused, resumed, drained (`place`, `jobs`), obliterated.
        """
        return self.connector.run(admin.set_events(self.keys, enabled))

    def publish(self, event: str, job_id: str | bytes, **more: str) -> int:
        """Publish an event about a job; answer how many listeners there were.

        Args:
            event: Its name.
            job_id: The job.
            **more: What else the message says.
        """
        return self.connector.run(events.publish(self.keys, event, job_id, more))

    def events(self, **options: Any) -> EventStream:
        """Listen to what is published of this queue's jobs from now on.

        Transitions are published once `set_events(True)` was said, progress always. What is
        published while nobody listens, or while the connection is lost, is not heard.

        Args:
            **options: Those of `resp.Connector.subscribe`: `capacity`, `overflow`, `timeout`.

        Raises:
            RequiresResp3: The connection speaks RESP2. Nothing was sent.
        """
        from .events import EventStream

        return EventStream(self.connector.subscribe(self.keys.events, **options))

    def wait(self, job_id: str | bytes, timeout: float | None = None) -> Outcome | None:
        """Wait until a job that keeps its outcome has ended, and answer how; None if time is up.

        Args:
            job_id: The job, enqueued with `result_ttl_ms`, or completed with it.
            timeout: How long to wait, in seconds; None waits as long as it takes, 0 looks.

        Raises:
            JobGone: There is no such job, and no outcome: it kept none, or was removed, or ended
                too long ago.
        """
        return waiting.wait(self.connector, self.keys, job_id, timeout)


class AsyncQueue:
    """One queue of jobs, to be used from any number of tasks of one event loop.

    Every method is the awaited form of the one of that name in `Queue`, which says what it does.
    """

    def __init__(self, connector: AsyncRunner, name: str, *, mint: Mint | None = None) -> None:
        _check_connector(connector, awaited=True)
        self.connector = connector
        self.keys = Keyspace(name)
        self.name = self.keys.queue
        self._mint = _checked_mint(mint)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def enqueue(
        self,
        payload: Blob,
        *,
        job_id: str | bytes | None = None,
        delay_ms: int | None = None,
        run_at_ms: int | None = None,
        dedup: str | None = None,
        dedup_ttl_ms: int | None = None,
        result_ttl_ms: int | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        time_limit_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Receipt:
        """Add a job, to be claimed at once or when it falls due."""
        return await self.connector.run(
            jobs.enqueue(
                self.keys,
                self._mint,
                Item(
                    payload,
                    job_id,
                    delay_ms,
                    run_at_ms,
                    dedup,
                    dedup_ttl_ms,
                    result_ttl_ms,
                    max_attempts,
                    backoff,
                    time_limit_ms,
                    headers,
                ),
            )
        )

    async def enqueue_many(self, items: Iterable[Blob | Item]) -> list[Receipt]:
        """Add many jobs in one flush, in order.

        Where it is cut by a TransportError, any of the jobs may have been admitted: give ids.
        """
        return await self.connector.run(jobs.enqueue_many(self.keys, self._mint, items))

    async def claim(self, lease_ms: int = 30_000) -> Job | None:
        """Take the oldest pending job for a bounded time."""
        return await self.connector.run(jobs.claim(self.keys, lease_ms))

    async def claim_many(self, count: int, lease_ms: int = 30_000) -> list[Job]:
        """Take the oldest pending jobs for a bounded time, as one step."""
        return await self.connector.run(jobs.claim_many(self.keys, count, lease_ms))

    async def complete(
        self,
        job: Job | str | bytes,
        result: Blob | None = None,
        *,
        token: int | None = None,
        result_ttl_ms: int | None = None,
    ) -> None:
        """Settle a job as done. Its row is deleted."""
        return await self.connector.run(jobs.complete(self.keys, job, result, token, result_ttl_ms))

    async def complete_and_claim(
        self,
        job: Job | str | bytes,
        lease_ms: int = 30_000,
        *,
        result: Blob | None = None,
        token: int | None = None,
        result_ttl_ms: int | None = None,
    ) -> Job | None:
        """Settle a job as done and take the next one, in one step."""
        return await self.connector.run(
            jobs.complete_and_claim(self.keys, job, lease_ms, result, token, result_ttl_ms)
        )

    async def retry(
        self,
        job: Job | str | bytes,
        *,
        delay_ms: int,
        max_attempts: int,
        error: Blob,
        token: int | None = None,
    ) -> str:
        """Settle a job as failed: it falls due again after a delay, or is dead."""
        return await self.connector.run(
            jobs.retry(self.keys, job, delay_ms, max_attempts, error, token)
        )

    async def delay(
        self,
        job: Job | str | bytes,
        delay_ms: int | None = None,
        *,
        run_at_ms: int | None = None,
        token: int | None = None,
        excuse: bool = False,
    ) -> None:
        """Settle a job as put off: it falls due again later, and did not fail."""
        return await self.connector.run(
            schedule.delay(self.keys, job, delay_ms, run_at_ms, token, excuse)
        )

    async def extend(
        self, job: Job | str | bytes, lease_ms: int, *, token: int | None = None
    ) -> None:
        """Let a job's lease end `lease_ms` from now."""
        return await self.connector.run(recovery.extend(self.keys, job, lease_ms, token))

    async def extend_many(
        self,
        jobs: Iterable[Job | tuple[str | bytes, int]],
        lease_ms: int,
        *,
        lock_ttl_ms: int | None = None,
    ) -> list[str]:
        """Let many leases end `lease_ms` from now."""
        return await self.connector.run(
            recovery.extend_many(self.keys, jobs, lease_ms, lock_ttl_ms)
        )

    async def give_back(self, jobs: Iterable[Job | tuple[str | bytes, int]]) -> list[str]:
        """Let claimed jobs wait again at once, as if they had not been claimed."""
        return await self.connector.run(recovery.give_back(self.keys, jobs))

    async def lock(self, job: Job | str | bytes, ttl_ms: int, *, token: int | None = None) -> None:
        """Keep a claimed job from being removed."""
        return await self.connector.run(recovery.lock(self.keys, job, ttl_ms, token))

    async def unlock(self, job: Job | str | bytes, *, token: int | None = None) -> bool:
        """Let a job be removed again; False if it was not locked under this token."""
        return await self.connector.run(recovery.unlock(self.keys, job, token))

    async def promote(self, limit: int = 100) -> int:
        """Let the scheduled jobs wait that have fallen due, and answer how many."""
        return await self.connector.run(schedule.promote(self.keys, limit))

    async def reap(self, limit: int = 100) -> int:
        """Let the jobs wait again whose leases have run out, and answer how many."""
        return await self.connector.run(recovery.reap(self.keys, limit))

    async def sweep_stalled(self, max_stalled: int = 1, limit: int = 100) -> Sweep:
        """Count the leases that have run out: a job that stalled too often is dead, others wait."""
        return await self.connector.run(recovery.sweep_stalled(self.keys, max_stalled, limit))

    async def counts(self) -> dict[str, int]:
        """Answer how many jobs are pending, active, schedule, dead, completed and failed."""
        return await self.connector.run(reads.counts(self.keys))

    async def state(self, job_id: str | bytes) -> str | None:
        """Answer where a job is, or None if there is no such job."""
        return await self.connector.run(reads.state(self.keys, job_id))

    async def job(self, job_id: str | bytes) -> Row | None:
        """Answer a job's row, or None if there is no such job."""
        return await self.connector.run(reads.job(self.keys, job_id))

    async def browse(self, limit: int = 100) -> list[str]:
        """Answer the ids of the pending jobs, newest first."""
        return await self.connector.run(reads.browse(self.keys, limit))

    async def metrics(self) -> dict[str, Metric]:
        """Answer the counters of the jobs that are `completed` and that `failed` for good."""
        return await self.connector.run(reads.metrics(self.keys))

    async def peek(
        self, place: str = "pending", limit: int = 100, *, offset: int = 0
    ) -> list[Entry]:
        """Answer the first entries of one of the queue's places, which are next to leave it."""
        return await self.connector.run(reads.peek(self.keys, place, limit, offset))

    async def progress(
        self, job: Job | str | bytes, text: Blob, *, token: int | None = None
    ) -> None:
        """Write down how far a job has come, and publish it on the queue's events."""
        return await self.connector.run(admin.progress(self.keys, job, text, token))

    async def log(
        self, job: Job | str | bytes, line: Blob, *, keep: int = 0, token: int | None = None
    ) -> int:
        """Add a line to a job's log, which goes with the job; answer how many lines there are."""
        return await self.connector.run(admin.log(self.keys, job, line, keep, token))

    async def logs(self, job_id: str | bytes) -> list[str]:
        """Answer the lines of a job's log, oldest first."""
        return await self.connector.run(admin.logs(self.keys, job_id))

    async def update_payload(self, job_id: str | bytes, payload: Blob) -> None:
        """Replace what a job carries. Who holds it already keeps what it was given."""
        return await self.connector.run(admin.update_payload(self.keys, job_id, payload))

    async def remove(self, job_id: str | bytes, *, dedup: str | None = None) -> None:
        """Take a job away, wherever it is, with its log and all else that is its own."""
        return await self.connector.run(admin.remove(self.keys, job_id, dedup))

    async def reprocess(self, job_id: str | bytes, *, reset: bool = False) -> None:
        """Let a dead job wait again, in its lane if it has one."""
        return await self.connector.run(admin.reprocess(self.keys, job_id, reset))

    async def pause(self) -> None:
        """Let no job be claimed any more, from this instant; what is claimed goes on."""
        return await self.connector.run(admin.pause(self.keys))

    async def resume(self) -> None:
        """Let jobs be claimed again."""
        return await self.connector.run(admin.resume(self.keys))

    async def paused(self) -> bool:
        """Answer whether the queue is paused."""
        return await self.connector.run(reads.paused(self.keys))

    async def drain(self, *, include_schedule: bool = False) -> int:
        """Delete the pending jobs, 500 a step, and answer how many. Claimed ones are left alone."""
        return await self.connector.run(admin.drain(self.keys, include_schedule))

    async def obliterate(self, *, force: bool = False, budget: int = 1000) -> bool:
        """Delete a paused queue with all its keys; False where there is more: call it again."""
        return await self.connector.run(admin.obliterate(self.keys, force, budget))

    async def set_concurrency(self, limit: int | None) -> None:
        """Set how many jobs may be claimed at once, by all workers together; None is no limit."""
        return await self.connector.run(admin.set_concurrency(self.keys, limit))

    async def concurrency(self) -> int | None:
        """Answer how many jobs may be claimed at once; None is no limit."""
        return await self.connector.run(reads.concurrency(self.keys))

    async def check_ceiling(self) -> None:
        """Look whether another job may be claimed now."""
        return await self.connector.run(reads.check_ceiling(self.keys))

    async def rate_limit(self) -> int:
        """Answer the rate limit that an operator wrote into the settings; 0 is none."""
        return await self.connector.run(reads.rate_limit(self.keys))

    async def rate_ttl_ms(self, most: int = 0) -> int:
        """Answer for how many ms the rate limit's counter is at its limit; 0 is below."""
        return await self.connector.run(reads.rate_ttl_ms(self.keys, most))

    async def dedup(self, key: str) -> str | None:
        """Answer the id of the job that holds a deduplication key."""
        return await self.connector.run(reads.dedup(self.keys, key))

    async def set_events(self, enabled: bool) -> None:
        """Let every transition of this queue be published, by all clients of this make, or not."""
        return await self.connector.run(admin.set_events(self.keys, enabled))

    async def publish(self, event: str, job_id: str | bytes, **more: str) -> int:
        """Publish an event about a job; answer how many listeners there were."""
        return await self.connector.run(events.publish(self.keys, event, job_id, more))

    async def events(self, **options: Any) -> AsyncEventStream:
        """Listen to what is published of this queue's jobs from now on."""
        from .events import AsyncEventStream

        return AsyncEventStream(await self.connector.subscribe(self.keys.events, **options))

    async def wait(self, job_id: str | bytes, timeout: float | None = None) -> Outcome | None:
        """Wait until a job that keeps its outcome has ended, and answer how; None if time is up."""
        return await waiting.wait_async(self.connector, self.keys, job_id, timeout)


__all__ = ["AsyncQueue", "Queue"]

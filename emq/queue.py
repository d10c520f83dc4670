"""A queue: the verbs of the bus, for threads and for asyncio.

The two classes are one line a method over the same plans; they differ in `await` alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from resp import Plan

from .ids import Mint
from .job import Blob, Item, Job, Receipt, Row, Sweep
from .keyspace import Keyspace
from .plans import jobs, reads, recovery, schedule

T = TypeVar("T")


class Runner(Protocol):
    """What a `Queue` needs of its connector."""

    def run(self, plan: Plan[T], /) -> T: ...


class AsyncRunner(Protocol):
    """What an `AsyncQueue` needs of its connector."""

    async def run(self, plan: Plan[T], /) -> T: ...


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
    ) -> Receipt:
        """Add a job, to be claimed at once or when it falls due.

        Args:
            payload: What the job carries; text is sent as UTF-8. Claims hand back bytes.
            job_id: The job's id, to make the call repeatable: where a job of that id exists,
                nothing is changed and the receipt's `admitted` is False. None mints one.
            delay_ms: When it falls due, in ms from now by the server's clock.
            run_at_ms: When it falls due, in ms since 1970. Excludes `delay_ms`.

        Raises:
            InvalidId: `job_id` is no branded id.
            WrongKind: It is one, but not a job's.
        """
        return self.connector.run(
            jobs.enqueue(self.keys, self._mint, payload, job_id, delay_ms, run_at_ms)
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

        None if nothing is pending, or the queue is paused.

        Args:
            lease_ms: Length of the lease, in ms of server time. Extend it before it ends.

        Raises:
            TransportError: No answer; a job may be claimed, and comes back when its lease ends.
            ContractError: The entry is none that an enqueue makes. It is leased, so the next claim
                gets past it.
        """
        return self.connector.run(jobs.claim(self.keys, lease_ms))

    def complete(
        self, job: Job | str | bytes, result: Blob | None = None, *, token: int | None = None
    ) -> None:
        """Settle a job as done. Its row is deleted.

        Args:
            job: The claimed job, or its id with `token`.
            result: Kept for the parent of a flow, and dropped for any other job.
            token: The token of an id.

        Raises:
            StaleToken: Another claim holds the job, or it was settled already.
            JobGone: There is no such job.
        """
        return self.connector.run(jobs.complete(self.keys, job, result, token))

    def complete_and_claim(
        self,
        job: Job | str | bytes,
        lease_ms: int = 30_000,
        *,
        result: Blob | None = None,
        token: int | None = None,
    ) -> Job | None:
        """Settle a job as done and take the next one, in one step.

        None if nothing is pending, or the queue is paused; the job is completed even so. Where the
        completion is refused, nothing is claimed. Arguments and errors are those of `complete` and
        of `claim`; where it raises `ContractError`, the job is completed.
        """
        return self.connector.run(jobs.complete_and_claim(self.keys, job, lease_ms, result, token))

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
            max_attempts: A job that was claimed this often is dead.
            error: Why it failed; kept as the row's `last_error`.
            token: The token of an id.

        Returns:
            `"scheduled"` or `"dead"`.

        Raises:
            StaleToken: Another claim holds the job, or it was settled already.
            JobGone: There is no such job.
        """
        return self.connector.run(jobs.retry(self.keys, job, delay_ms, max_attempts, error, token))

    def extend(self, job: Job | str | bytes, lease_ms: int, *, token: int | None = None) -> None:
        """Let a job's lease end `lease_ms` from now.

        A lease that has run out can be extended as long as nobody has reaped it.

        Raises:
            StaleToken: Another claim holds the job, or it was settled, or it was reaped.
            JobGone: There is no such job.
        """
        return self.connector.run(recovery.extend(self.keys, job, lease_ms, token))

    def extend_many(
        self, jobs: Iterable[Job | tuple[str | bytes, int]], lease_ms: int
    ) -> list[str]:
        """Let many leases end `lease_ms` from now.

        Args:
            jobs: Claimed jobs, or pairs of id and token.
            lease_ms: Length of the leases, in ms of server time.

        Returns:
            The ids whose leases could not be extended: they are held by another claim, settled,
            reaped or gone. Nothing was written for them.

        Raises:
            InvalidId, WrongKind: An id is no job's; nothing was sent.
            TypeError: They are neither Jobs nor pairs; nothing was sent.
        """
        return self.connector.run(recovery.extend_many(self.keys, jobs, lease_ms))

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
    ) -> Receipt:
        """Add a job, to be claimed at once or when it falls due."""
        return await self.connector.run(
            jobs.enqueue(self.keys, self._mint, payload, job_id, delay_ms, run_at_ms)
        )

    async def enqueue_many(self, items: Iterable[Blob | Item]) -> list[Receipt]:
        """Add many jobs in one flush, in order.

        Where it is cut by a TransportError, any of the jobs may have been admitted: give ids.
        """
        return await self.connector.run(jobs.enqueue_many(self.keys, self._mint, items))

    async def claim(self, lease_ms: int = 30_000) -> Job | None:
        """Take the oldest pending job for a bounded time."""
        return await self.connector.run(jobs.claim(self.keys, lease_ms))

    async def complete(
        self, job: Job | str | bytes, result: Blob | None = None, *, token: int | None = None
    ) -> None:
        """Settle a job as done. Its row is deleted."""
        return await self.connector.run(jobs.complete(self.keys, job, result, token))

    async def complete_and_claim(
        self,
        job: Job | str | bytes,
        lease_ms: int = 30_000,
        *,
        result: Blob | None = None,
        token: int | None = None,
    ) -> Job | None:
        """Settle a job as done and take the next one, in one step."""
        return await self.connector.run(
            jobs.complete_and_claim(self.keys, job, lease_ms, result, token)
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

    async def extend(
        self, job: Job | str | bytes, lease_ms: int, *, token: int | None = None
    ) -> None:
        """Let a job's lease end `lease_ms` from now."""
        return await self.connector.run(recovery.extend(self.keys, job, lease_ms, token))

    async def extend_many(
        self, jobs: Iterable[Job | tuple[str | bytes, int]], lease_ms: int
    ) -> list[str]:
        """Let many leases end `lease_ms` from now."""
        return await self.connector.run(recovery.extend_many(self.keys, jobs, lease_ms))

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


__all__ = ["AsyncQueue", "Queue"]

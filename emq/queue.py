"""A queue: the verbs of the bus, for threads and for asyncio.

The two classes are one line a method over the same plans; they differ in `await` alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from resp import Plan

from .ids import Mint
from .job import Item, Job, Receipt, Row, Sweep
from .keyspace import Keyspace
from .plans import jobs, reads, recovery, schedule

T = TypeVar("T")


class Runner(Protocol):
    """What a `Queue` needs of its connector."""

    def run(self, plan: Plan[T], /) -> T: ...


class AsyncRunner(Protocol):
    """What an `AsyncQueue` needs of its connector."""

    async def run(self, plan: Plan[T], /) -> T: ...


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
    """

    def __init__(self, connector: Runner, name: str, *, mint: Mint | None = None) -> None:
        self.connector = connector
        self.keys = Keyspace(name)
        self.name = self.keys.queue
        self._mint = Mint() if mint is None else mint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def enqueue(
        self,
        payload: bytes | str,
        *,
        job_id: str | None = None,
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

    def enqueue_many(self, items: Iterable[bytes | str | Item]) -> list[Receipt]:
        """Add many jobs in one flush, in order.

        Args:
            items: Payloads, or an `Item` where a job has an id or a due time. All are checked
                before the first is sent.

        Returns:
            A receipt for each, in order.

        Raises:
            InvalidId, WrongKind: An id is no job's; nothing was sent.
            ServerError: The server refused a part; a note on the error says how many it admitted.
        """
        return self.connector.run(jobs.enqueue_many(self.keys, self._mint, items))

    def claim(self, lease_ms: int = 30_000) -> Job | None:
        """Take the oldest pending job for a bounded time.

        None if nothing is pending, or the queue is paused.

        Args:
            lease_ms: Length of the lease, in ms of server time. Extend it before it ends.

        Raises:
            TransportError: No answer; a job may be claimed, and comes back when its lease ends.
        """
        return self.connector.run(jobs.claim(self.keys, lease_ms))

    def complete(
        self, job: Job | str, result: bytes | str | None = None, *, token: int | None = None
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
        job: Job | str,
        lease_ms: int = 30_000,
        *,
        result: bytes | str | None = None,
        token: int | None = None,
    ) -> Job | None:
        """Settle a job as done and take the next one, in one step.

        None if nothing is pending, or the queue is paused; the job is completed even so. Where the
        completion is refused, nothing is claimed. Arguments and errors are those of `complete` and
        of `claim`.
        """
        return self.connector.run(jobs.complete_and_claim(self.keys, job, lease_ms, result, token))

    def retry(
        self,
        job: Job | str,
        *,
        delay_ms: int,
        max_attempts: int,
        error: bytes | str,
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

    def extend(self, job: Job | str, lease_ms: int, *, token: int | None = None) -> None:
        """Let a job's lease end `lease_ms` from now.

        A lease that has run out can be extended as long as nobody has reaped it.

        Raises:
            StaleToken: Another claim holds the job, or it was settled, or it was reaped.
            JobGone: There is no such job.
        """
        return self.connector.run(recovery.extend(self.keys, job, lease_ms, token))

    def extend_many(self, jobs: Iterable[Job | tuple[str, int]], lease_ms: int) -> list[str]:
        """Let many leases end `lease_ms` from now.

        Args:
            jobs: Claimed jobs, or pairs of id and token.
            lease_ms: Length of the leases, in ms of server time.

        Returns:
            The ids whose leases could not be extended: they are held by another claim, settled,
            reaped or gone. Nothing was written for them.
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

    def state(self, job_id: str) -> str | None:
        """Answer where a job is, or None if there is no such job.

        One of pending, active, scheduled, dead, awaiting_children; unknown for a row that is in no
        place.
        """
        return self.connector.run(reads.state(self.keys, job_id))

    def job(self, job_id: str) -> Row | None:
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
        self.connector = connector
        self.keys = Keyspace(name)
        self.name = self.keys.queue
        self._mint = Mint() if mint is None else mint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def enqueue(
        self,
        payload: bytes | str,
        *,
        job_id: str | None = None,
        delay_ms: int | None = None,
        run_at_ms: int | None = None,
    ) -> Receipt:
        """Add a job, to be claimed at once or when it falls due."""
        return await self.connector.run(
            jobs.enqueue(self.keys, self._mint, payload, job_id, delay_ms, run_at_ms)
        )

    async def enqueue_many(self, items: Iterable[bytes | str | Item]) -> list[Receipt]:
        """Add many jobs in one flush, in order."""
        return await self.connector.run(jobs.enqueue_many(self.keys, self._mint, items))

    async def claim(self, lease_ms: int = 30_000) -> Job | None:
        """Take the oldest pending job for a bounded time."""
        return await self.connector.run(jobs.claim(self.keys, lease_ms))

    async def complete(
        self, job: Job | str, result: bytes | str | None = None, *, token: int | None = None
    ) -> None:
        """Settle a job as done. Its row is deleted."""
        return await self.connector.run(jobs.complete(self.keys, job, result, token))

    async def complete_and_claim(
        self,
        job: Job | str,
        lease_ms: int = 30_000,
        *,
        result: bytes | str | None = None,
        token: int | None = None,
    ) -> Job | None:
        """Settle a job as done and take the next one, in one step."""
        return await self.connector.run(
            jobs.complete_and_claim(self.keys, job, lease_ms, result, token)
        )

    async def retry(
        self,
        job: Job | str,
        *,
        delay_ms: int,
        max_attempts: int,
        error: bytes | str,
        token: int | None = None,
    ) -> str:
        """Settle a job as failed: it falls due again after a delay, or is dead."""
        return await self.connector.run(
            jobs.retry(self.keys, job, delay_ms, max_attempts, error, token)
        )

    async def extend(self, job: Job | str, lease_ms: int, *, token: int | None = None) -> None:
        """Let a job's lease end `lease_ms` from now."""
        return await self.connector.run(recovery.extend(self.keys, job, lease_ms, token))

    async def extend_many(self, jobs: Iterable[Job | tuple[str, int]], lease_ms: int) -> list[str]:
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

    async def state(self, job_id: str) -> str | None:
        """Answer where a job is, or None if there is no such job."""
        return await self.connector.run(reads.state(self.keys, job_id))

    async def job(self, job_id: str) -> Row | None:
        """Answer a job's row, or None if there is no such job."""
        return await self.connector.run(reads.job(self.keys, job_id))

    async def browse(self, limit: int = 100) -> list[str]:
        """Answer the ids of the pending jobs, newest first."""
        return await self.connector.run(reads.browse(self.keys, limit))


__all__ = ["AsyncQueue", "Queue"]

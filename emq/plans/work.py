"""A worker's turns: what a loop over jobs says to the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from resp import Command, ErrorReply, Plan, Reply

from ..errors import ContractError, JobGone
from ..ids import received_job_id
from ..job import Job
from ..keyspace import Keyspace
from ..scripts import COMPLETE, DELAY, LEAVE, RETRY, TAKE, Transition
from .arguments import blob, held, kept, whole
from .jobs import claimed
from .reads import answered

LONGEST_WAIT_MS = 5000  # what the scripts know, too: none of them wakes a worker for what is later


class Taken(NamedTuple):
    """What a worker's turn brought.

    Attributes:
        jobs: Claimed by it.
        wait_ms: Where that is none: how long to park; 0 is not at all.
        dead: The ids of jobs that stalled once too often.
    """

    jobs: list[Job]
    wait_ms: int
    dead: list[str]


class Completed(NamedTuple):
    """A settlement: the job is done."""

    job: Job
    result: bytes | None = None
    result_ttl_ms: int | None = None


class Failed(NamedTuple):
    """A settlement: the job failed; it falls due again, or is dead.

    `place` is for logs, and goes nowhere else: the error's type, and where it was raised.
    """

    job: Job
    delay_ms: int
    max_attempts: int
    error: bytes | str
    place: str = ""


class Delayed(NamedTuple):
    """A settlement: the job is put off; that is no attempt."""

    job: Job
    delay_ms: int


Settlement: TypeAlias = Completed | Failed | Delayed


def take(
    keys: Keyspace,
    count: int,
    lease_ms: int,
    *,
    max_stalled: int,
    wait_ms: int,
    waiter: str,
) -> Plan[Taken]:
    """Take a turn: see to what is due, claim up to `count` jobs, else learn when to come again."""
    reply = yield _take(keys, count, lease_ms, max_stalled, wait_ms, waiter)
    return _taken(keys, reply)


def _take(
    keys: Keyspace,
    count: int,
    lease_ms: int,
    max_stalled: int,
    wait_ms: int,
    waiter: str,
) -> Command:
    return TAKE.call(
        base=keys.base,
        count=whole("count", count, 0),
        lease_ms=whole("lease_ms", lease_ms, 1),
        max_stalled=whole("max_stalled", max_stalled, 1),
        wait_ms=whole("wait_ms", wait_ms, 1),
        waiter=waiter,
    )


def _taken(keys: Keyspace, reply: Reply) -> Taken:
    match TAKE.reply(reply):
        case [int(wait_ms), [*dead], *jobs] if all(type(id) is bytes for id in dead):
            told, broken = [], None
            for job in jobs:
                try:
                    told.append(claimed(keys, TAKE, job))
                except ContractError as error:
                    broken = error
            if broken is not None and not told:
                raise broken
            # An entry that is no job must not take along those that were claimed with it: they
            # would wait for the end of a lease that nobody knows of. It can be found in active, or
            # in dead.
            return Taken(told, wait_ms, [id for each in dead if (id := received_job_id(each))])
        case other:
            raise TAKE.unexpected(other)


def park_and_take(
    keys: Keyspace,
    park_ms: int,
    count: int,
    lease_ms: int,
    *,
    max_stalled: int,
    wait_ms: int,
    waiter: str,
) -> Plan[Taken]:
    """Park as the last turn said, then take the next one, in one flush.

    It blocks its connection, which is for nothing else. The server goes from the wake to the turn
    by itself: no round trip lies between.

    Args:
        park_ms: What the last turn answered as `wait_ms`.
    """
    whole("park_ms", park_ms, 1)  # the server takes 0 for ever
    wake, turn = yield [
        ("BLPOP", keys.rouse, f"{keys.rouse}:{waiter}", f"{park_ms / 1000:.3f}"),
        _take(keys, count, lease_ms, max_stalled, wait_ms, waiter),
    ]
    taken = _taken(keys, turn)
    if not taken.jobs:
        answered("BLPOP", wake)  # where it cannot block, it must not come again at once
    return taken


def remind() -> Plan[None]:
    """Let the server see that the wait of a parked worker is over.

    A server that nobody talks to looks at its clock ten times a second.
    """
    answered("PING", (yield ("PING",)))


def leave(keys: Keyspace, waiter: str, *, blocks: bool = False) -> Plan[None]:
    """Wait no more: let a wake that this worker was to have reach another.

    Args:
        blocks: Wake its `park_and_take`, which takes its turn as ever; leave again after that.
    """
    LEAVE.count((yield from LEAVE(base=keys.base, waiter=waiter, blocks=1 if blocks else None)))


def settle(keys: Keyspace, settlements: Sequence[Settlement]) -> Plan[list[str | Exception]]:
    """Settle jobs in one flush.

    Returns:
        For each, in order: `completed`, `scheduled`, `dead`, `delayed`, or what refused it.
    """
    if not settlements:
        return []
    replies = yield [_settling(keys, each) for each in settlements]
    return [_settled(*pair) for pair in zip(settlements, replies, strict=True)]


def settle_and_take(
    keys: Keyspace,
    settlements: Sequence[Settlement],
    count: int,
    lease_ms: int,
    *,
    max_stalled: int,
    wait_ms: int,
    waiter: str,
) -> Plan[tuple[list[str | Exception], Taken]]:
    """Settle jobs and take a turn, in one flush. What fails of the turn is raised."""
    flush = [_settling(keys, each) for each in settlements]
    flush.append(_take(keys, count, lease_ms, max_stalled, wait_ms, waiter))
    *replies, turn = yield flush
    outcomes = [_settled(*pair) for pair in zip(settlements, replies, strict=True)]
    return outcomes, _taken(keys, turn)


def _settling(keys: Keyspace, settlement: Settlement) -> Command:
    id, token = held(keys, settlement.job, None)
    row = keys.job_prefix + id
    match settlement:
        case Completed(_, result, result_ttl_ms):
            return COMPLETE.call(row=row, token=token, kept=kept(result, result_ttl_ms))
        case Failed(_, delay_ms, max_attempts, error, _):
            return RETRY.call(
                row=row,
                token=token,
                delay_ms=whole("delay_ms", delay_ms, 0),
                max_attempts=whole("max_attempts", max_attempts, 1),
                reason=blob("error", error),
            )
        case Delayed(_, delay_ms):
            due = f"+{whole('delay_ms', delay_ms, 0)}"
            return DELAY.call(row=row, token=token, due=due, excuse=1)


def _settled(settlement: Settlement, reply: Reply) -> str | Exception:
    script, done = _SCRIPTS[type(settlement)]
    try:
        if type(reply) is ErrorReply:
            script.reply(reply, settlement.job.id)
        if done is None:
            return script.word(reply, "scheduled", "dead")
        if script.count(reply) == 0:
            raise JobGone(settlement.job.id)
        return done
    except Exception as error:
        return error


_SCRIPTS: dict[type, tuple[Transition, str | None]] = {
    Completed: (COMPLETE, "completed"),
    Failed: (RETRY, None),
    Delayed: (DELAY, "delayed"),
}

__all__ = [
    "LONGEST_WAIT_MS",
    "Completed",
    "Delayed",
    "Failed",
    "Settlement",
    "Taken",
    "leave",
    "park_and_take",
    "remind",
    "settle",
    "settle_and_take",
    "take",
]

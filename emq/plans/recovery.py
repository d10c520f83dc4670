"""Leases: those that go on, and what becomes of the jobs whose leases have run out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from resp import Command, Plan

from ..errors import JobGone
from ..job import Job, Sweep
from ..keyspace import Keyspace
from ..scripts import EXTEND, EXTEND_MANY, GIVE_BACK, LOCK, REAP, SWEEP_STALLED, UNLOCK
from .arguments import held, holds, whole

_CALL_HELD: Final = 500  # leases that one call of the script extends


def extend(keys: Keyspace, job: Job | str | bytes, lease_ms: int, token: int | None) -> Plan[None]:
    id, token = held(keys, job, token)
    whole("lease_ms", lease_ms, 1)
    reply = yield from EXTEND(row=keys.job_prefix + id, token=token, lease_ms=lease_ms)
    match reply:
        case 1:
            return
        case 0:
            raise JobGone(id)
        case _:
            raise EXTEND.unexpected(reply)


def extend_many(
    keys: Keyspace,
    jobs: Iterable[Job | tuple[str | bytes, int]],
    lease_ms: int,
    lock_ttl_ms: int | None,
) -> Plan[list[str]]:
    whole("lease_ms", lease_ms, 1)
    lock_ms = 0 if lock_ttl_ms is None else whole("lock_ttl_ms", lock_ttl_ms, 1)
    pairs = holds(keys, jobs)
    if not pairs:
        return []
    flush: list[Command] = [
        EXTEND_MANY.call(
            base=keys.base,
            lease_ms=lease_ms,
            lock_ms=lock_ms,
            held=[part for pair in pairs[at : at + _CALL_HELD] for part in pair],
        )
        for at in range(0, len(pairs), _CALL_HELD)
    ]
    replies = yield flush
    return [id for reply in replies for id in EXTEND_MANY.ids(EXTEND_MANY.reply(reply))]


def give_back(keys: Keyspace, jobs: Iterable[Job | tuple[str | bytes, int]]) -> Plan[list[str]]:
    pairs = holds(keys, jobs)
    if not pairs:
        return []
    flush: list[Command] = [
        GIVE_BACK.call(
            base=keys.base,
            held=[part for pair in pairs[at : at + _CALL_HELD] for part in pair],
        )
        for at in range(0, len(pairs), _CALL_HELD)
    ]
    replies = yield flush
    return [id for reply in replies for id in GIVE_BACK.ids(GIVE_BACK.reply(reply))]


def lock(keys: Keyspace, job: Job | str | bytes, ttl_ms: int, token: int | None) -> Plan[None]:
    id, token = held(keys, job, token)
    reply = yield from LOCK(
        row=keys.job_prefix + id, token=token, ttl_ms=whole("ttl_ms", ttl_ms, 1)
    )
    match reply:
        case 1:
            return
        case 0:
            raise JobGone(id)
        case _:
            raise LOCK.unexpected(reply)


def unlock(keys: Keyspace, job: Job | str | bytes, token: int | None) -> Plan[bool]:
    id, token = held(keys, job, token)
    reply = yield from UNLOCK(row=keys.job_prefix + id, token=token)
    return UNLOCK.count(reply) == 1


def reap(keys: Keyspace, limit: int) -> Plan[int]:
    reply = yield from REAP(base=keys.base, limit=whole("limit", limit, 1))
    return REAP.count(reply)


def sweep_stalled(keys: Keyspace, max_stalled: int, limit: int) -> Plan[Sweep]:
    reply = yield from SWEEP_STALLED(
        base=keys.base,
        max_stalled=whole("max_stalled", max_stalled, 1),
        limit=whole("limit", limit, 1),
    )
    match reply:
        case [recovered, dead]:
            return Sweep(SWEEP_STALLED.ids(recovered), SWEEP_STALLED.ids(dead))
        case _:
            raise SWEEP_STALLED.unexpected(reply)


__all__ = ["extend", "extend_many", "give_back", "lock", "reap", "sweep_stalled", "unlock"]

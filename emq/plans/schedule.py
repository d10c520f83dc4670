"""Due times: jobs that are put off, and what lets them wait to be claimed."""

from __future__ import annotations

from resp import Plan

from ..errors import JobGone
from ..job import Job
from ..keyspace import Keyspace
from ..scripts import DELAY, PROMOTE
from .arguments import due, held, whole


def delay(
    keys: Keyspace,
    job: Job | str | bytes,
    delay_ms: int | None,
    run_at_ms: int | None,
    token: int | None,
    excuse: bool,
) -> Plan[None]:
    id, token = held(keys, job, token)
    when = due(delay_ms, run_at_ms)
    if when is None:
        raise ValueError("a delay needs its end; pass delay_ms or run_at_ms")
    reply = yield from DELAY(
        row=keys.job_prefix + id, token=token, due=when, excuse=1 if excuse else None
    )
    match reply:
        case 1:
            return
        case 0:
            raise JobGone(id)
        case _:
            raise DELAY.unexpected(reply)


def promote(keys: Keyspace, limit: int) -> Plan[int]:
    reply = yield from PROMOTE(base=keys.base, limit=whole("limit", limit, 1))
    return PROMOTE.count(reply)


__all__ = ["delay", "promote"]

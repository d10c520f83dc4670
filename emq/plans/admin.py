"""The operator's verbs: the queue as a whole, and one job whoever holds it."""

from __future__ import annotations

from typing import Final

from resp import Command, Plan

from ..errors import JobGone
from ..ids import check_job_id
from ..job import Blob, Job
from ..keyspace import Keyspace
from ..scripts import (
    CONFIGURE,
    DRAIN,
    FORGET,
    LOG,
    OBLITERATE,
    PAUSE,
    PROGRESS,
    REMOVE,
    REPROCESS,
    RESUME,
    UPDATE_PAYLOAD,
    Transition,
)
from .arguments import blob, dedup_key, held, whole
from .reads import answered

_CALL_JOBS: Final = 500  # jobs that one call of a script deletes
_CALL_KEYS: Final = 500
_SCANNED: Final = 1000  # keys that one SCAN looks at, of all that the database holds


def pause(keys: Keyspace) -> Plan[None]:
    reply = yield from PAUSE(base=keys.base)
    PAUSE.count(reply)


def resume(keys: Keyspace) -> Plan[None]:
    reply = yield from RESUME(base=keys.base)
    RESUME.count(reply)


def configure(keys: Keyspace, field: str, value: str | int) -> Plan[None]:
    reply = yield from CONFIGURE(base=keys.base, field=field, value=value)
    CONFIGURE.count(reply)


def set_concurrency(keys: Keyspace, limit: int | None) -> Plan[None]:
    value = "" if limit is None else whole("limit", limit, 1)
    return (yield from configure(keys, "concurrency", value))


def set_events(keys: Keyspace, enabled: bool) -> Plan[None]:
    return (yield from configure(keys, "events", "1" if enabled else ""))


def drain(keys: Keyspace, include_schedule: bool) -> Plan[int]:
    drained = 0
    for place in ("pending", "schedule") if include_schedule else ("pending",):
        while True:
            reply = yield from DRAIN(base=keys.base, place=place, limit=_CALL_JOBS)
            drained += DRAIN.count(reply)
            if reply < _CALL_JOBS:
                break
    return drained


def obliterate(keys: Keyspace, force: bool, budget: int) -> Plan[bool]:
    whole("budget", budget, 1)
    left = budget
    while True:
        some = min(left, _CALL_JOBS)
        reply = yield from OBLITERATE(base=keys.base, force=1 if force else 0, budget=some)
        if OBLITERATE.count(reply) == 0:
            break
        left -= some
        if left == 0:
            return False
    # What no place names is found by looking. The settings go last: until then nobody claims.
    cursor: bytes | str = "0"
    while True:
        found = yield ("SCAN", cursor, "MATCH", keys.base + "*", "COUNT", _SCANNED)
        match answered("SCAN", found):
            case [bytes(cursor), list(names)]:
                suffixes = [name[len(keys.base) :] for name in names]
                # Who waits for a job of the queue's next life is to hear of it.
                suffixes = [suffix for suffix in suffixes if suffix not in (b"meta", b"parked")]
            case other:
                raise FORGET.unexpected(other)
        for at in range(0, len(suffixes), _CALL_KEYS):
            if not (yield from _forgotten(keys, suffixes[at : at + _CALL_KEYS])):
                return False
        if cursor == b"0":
            return (yield from _forgotten(keys, [b"meta"]))


def _forgotten(keys: Keyspace, suffixes: list[bytes]) -> Plan[bool]:
    reply = yield from FORGET(base=keys.base, suffixes=suffixes)
    return FORGET.count(reply) == 0


def update_payload(keys: Keyspace, job_id: str | bytes, payload: Blob) -> Plan[None]:
    id = check_job_id(job_id)
    reply = yield from UPDATE_PAYLOAD(row=keys.job_prefix + id, payload=blob("payload", payload))
    _expect_job(UPDATE_PAYLOAD, reply, id)


def progress(keys: Keyspace, job: Job | str | bytes, text: Blob, token: int | None) -> Plan[None]:
    id, token = _maybe_held(keys, job, token)
    reply = yield from PROGRESS(row=keys.job_prefix + id, text=blob("text", text), token=token)
    _expect_job(PROGRESS, reply, id)


def log(
    keys: Keyspace, job: Job | str | bytes, line: Blob, keep: int, token: int | None
) -> Plan[int]:
    id, token = _maybe_held(keys, job, token)
    reply = yield from LOG(
        row=keys.job_prefix + id,
        line=blob("line", line),
        keep=whole("keep", keep, 0),
        token=token,
    )
    return _expect_job(LOG, reply, id)


def logs(keys: Keyspace, job_id: str | bytes) -> Plan[list[str]]:
    id = check_job_id(job_id)
    flush: list[Command] = [
        ("EXISTS", keys.job_prefix + id),
        ("LRANGE", f"{keys.job_prefix}{id}:logs", 0, -1),
    ]
    exists, lines = yield flush
    if not answered("EXISTS", exists):
        raise JobGone(id)
    return [line.decode("utf-8", "backslashreplace") for line in answered("LRANGE", lines)]


def remove(keys: Keyspace, job_id: str | bytes, dedup: str | None) -> Plan[None]:
    id = check_job_id(job_id)
    key = None if dedup is None else dedup_key(dedup)
    reply = yield from REMOVE(row=keys.job_prefix + id, dedup=key)
    _expect_job(REMOVE, reply, id)


def reprocess(keys: Keyspace, job_id: str | bytes, reset: bool) -> Plan[None]:
    id = check_job_id(job_id)
    reply = yield from REPROCESS(row=keys.job_prefix + id, reset=1 if reset else 0)
    _expect_job(REPROCESS, reply, id)


def _maybe_held(
    keys: Keyspace, job: Job | str | bytes, token: int | None
) -> tuple[str, int | None]:
    """Answer a holder's id and token; an id alone is an operator's, whom no token binds."""
    if token is None and isinstance(job, str | bytes):
        return check_job_id(job), None
    return held(keys, job, token)


def _expect_job(script: Transition, reply: object, id: str) -> int:
    if type(reply) is not int:
        raise script.unexpected(reply)
    if reply == 0:
        raise JobGone(id)
    return reply


__all__ = [
    "drain",
    "log",
    "logs",
    "obliterate",
    "pause",
    "progress",
    "remove",
    "reprocess",
    "resume",
    "set_concurrency",
    "set_events",
    "update_payload",
]

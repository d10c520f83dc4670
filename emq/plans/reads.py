"""Reads: where the jobs are. Nothing here writes."""

from __future__ import annotations

from typing import Any, Final

from resp import ErrorReply, Plan, ServerError

from ..errors import AtCeiling, JobGone
from ..ids import check_job_id
from ..job import Entry, Metric, Outcome, Row
from ..keyspace import Keyspace
from ..scripts import COUNTS, STATE, id_of, ids_of
from .arguments import MAX, dedup_key, whole

_COUNTED: Final = ("pending", "active", "schedule", "dead", "completed", "failed")
_PLACES: Final = ("pending", "active", "schedule", "dead")
_STATES: Final = ("pending", "active", "scheduled", "dead", "awaiting_children", "unknown")


def counts(keys: Keyspace) -> Plan[dict[str, int]]:
    reply = yield from COUNTS(base=keys.base)
    if not isinstance(reply, list) or len(reply) != len(_COUNTED):
        raise COUNTS.unexpected(reply)
    return {place: COUNTS.count(number) for place, number in zip(_COUNTED, reply, strict=True)}


def state(keys: Keyspace, job_id: str | bytes) -> Plan[str | None]:
    reply = yield from STATE(row=keys.job(job_id))
    return None if reply is None else STATE.word(reply, *_STATES)


def job(keys: Keyspace, job_id: str | bytes) -> Plan[Row | None]:
    reply = answered("HGETALL", (yield ("HGETALL", keys.job(job_id))))
    held = _map(reply)
    if not held:
        return None
    payload = held.pop(b"payload", None)
    fields = {_text(field): _text(value) for field, value in held.items()}
    attempts = fields.pop("attempts", "0")
    return Row(
        state=fields.pop("state", None),
        # Another's text may be no number, or one of too many digits for int().
        attempts=_number(attempts.encode("utf-8", "surrogateescape")),
        payload=payload,
        fields=fields,
    )


def browse(keys: Keyspace, limit: int) -> Plan[list[str]]:
    whole("limit", limit, 1)
    newest = ("ZRANGE", keys.pending, "+", "-", "BYLEX", "REV", "LIMIT", 0, limit)
    return ids_of("browse", answered("ZRANGE", (yield newest)))


def peek(keys: Keyspace, place: str, limit: int, offset: int) -> Plan[list[Entry]]:
    if place not in _PLACES:
        told = ascii(place)[:80] if isinstance(place, str) else type(place).__name__
        raise ValueError(f"place is one of {', '.join(_PLACES)}, not {told}")
    whole("limit", limit, 1)
    whole("offset", offset, 0)
    first = ("ZRANGE", keys.base + place, offset, offset + limit - 1, "WITHSCORES")
    reply = answered("ZRANGE", (yield first))
    # RESP3 answers pairs, RESP2 members and scores in turn.
    pairs = (
        reply if not reply or type(reply[0]) is list else zip(reply[::2], reply[1::2], strict=True)
    )
    return [Entry(id_of("peek", reply, id), _score(score)) for id, score in pairs]


def metrics(keys: Keyspace) -> Plan[dict[str, Metric]]:
    replies = yield [
        ("HGET", keys.metrics_completed, "count"),
        ("LLEN", keys.metrics_completed_data),
        ("HGET", keys.metrics_failed, "count"),
        ("LLEN", keys.metrics_failed_data),
    ]
    done, done_points, failed, failed_points = (answered("HGET", reply) for reply in replies)
    return {
        "completed": Metric(_number(done), done_points),
        "failed": Metric(_number(failed), failed_points),
    }


def paused(keys: Keyspace) -> Plan[bool]:
    return bool(answered("HEXISTS", (yield ("HEXISTS", keys.meta, "paused"))))


def concurrency(keys: Keyspace) -> Plan[int | None]:
    return _number(answered("HGET", (yield ("HGET", keys.meta, "concurrency")))) or None


def check_ceiling(keys: Keyspace) -> Plan[None]:
    limit, active = yield [("HGET", keys.meta, "concurrency"), ("ZCARD", keys.active)]
    most = _number(answered("HGET", limit))
    if 0 < most <= answered("ZCARD", active):
        raise AtCeiling(None, "EMQRATE at concurrency ceiling")


def rate_limit(keys: Keyspace) -> Plan[int]:
    return _number(answered("HGET", (yield ("HGET", keys.meta, "max"))))


def rate_ttl_ms(keys: Keyspace, most: int) -> Plan[int]:
    whole("most", most, 0)
    limit, counted, ttl = yield [
        ("HGET", keys.meta, "max"),
        ("GET", keys.limiter),
        ("PTTL", keys.limiter),
    ]
    most = most or _number(answered("HGET", limit))
    over = 0 < most <= _number(answered("GET", counted))
    return max(0, answered("PTTL", ttl)) if over else 0


def dedup(keys: Keyspace, key: str) -> Plan[str | None]:
    reply = answered("GET", (yield ("GET", f"{keys.base}de:{dedup_key(key)}")))
    return None if reply is None else id_of("dedup", reply, reply)


def outcome(keys: Keyspace, job_id: str | bytes) -> Plan[Outcome | None]:
    """Read how a job ended; None while it has not.

    Raises:
        JobGone: There is no such job, and no outcome was kept.
    """
    id = check_job_id(job_id)
    row = keys.job_prefix + id
    # The row first: the step that deletes it also keeps the outcome.
    fields, kept = yield [("HMGET", row, "state", "last_error"), ("HGETALL", row + ":result")]
    state, last_error = answered("HMGET", fields)
    told = _map(answered("HGETALL", kept))
    if state == b"dead":
        return Outcome("dead", None, None if last_error is None else _text(last_error))
    if state is not None:
        return None  # what is kept is of an earlier life of the same id
    if not told:
        raise JobGone(id)
    error = told.get(b"error")
    return Outcome(
        _text(told.get(b"state", b"completed")),
        told.get(b"result"),
        None if error is None else _text(error),
    )


def answered(command: str, reply: Any) -> Any:
    """Answer a command's reply.

    Raises:
        ServerError: It is an error.
    """
    if type(reply) is ErrorReply:
        raise ServerError(reply.code, reply.message, command)
    return reply


def _number(text: bytes | None) -> int:
    """A number that somebody wrote as text; 0 for anything else."""
    return int(text) if text and text.isdigit() and len(text) < 20 else 0


def _score(told: Any) -> int:
    """A score as a time; somebody may have written one that never comes, or always has."""
    return int(min(max(float(told), -MAX), MAX))


def _map(reply: Any) -> dict[bytes, bytes]:
    # RESP3 answers a map, RESP2 a list of fields and values in turn.
    return dict(reply if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


__all__ = [
    "answered",
    "browse",
    "check_ceiling",
    "concurrency",
    "counts",
    "dedup",
    "job",
    "metrics",
    "outcome",
    "paused",
    "peek",
    "rate_limit",
    "rate_ttl_ms",
    "state",
]

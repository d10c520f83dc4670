"""Reads: where the jobs are. Nothing here writes."""

from __future__ import annotations

from typing import Any, Final

from resp import ErrorReply, Plan, ServerError

from ..job import Row
from ..keyspace import Keyspace
from ..scripts import COUNTS, STATE, ids_of
from .arguments import whole

_COUNTED: Final = ("pending", "active", "schedule", "dead", "completed", "failed")
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
    reply = _answer("HGETALL", (yield ("HGETALL", keys.job(job_id))))
    # RESP3 answers a map, RESP2 a list of fields and values in turn.
    held = dict(reply if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True))
    if not held:
        return None
    payload = held.pop(b"payload", None)
    fields = {_text(field): _text(value) for field, value in held.items()}
    attempts = fields.pop("attempts", "0")
    return Row(
        state=fields.pop("state", None),
        # Another's text may be no number, or one of too many digits for int().
        attempts=int(attempts) if attempts.isdecimal() and len(attempts) < 20 else 0,
        payload=payload,
        fields=fields,
    )


def browse(keys: Keyspace, limit: int) -> Plan[list[str]]:
    whole("limit", limit, 1)
    newest = ("ZRANGE", keys.pending, "+", "-", "BYLEX", "REV", "LIMIT", 0, limit)
    return ids_of("browse", _answer("ZRANGE", (yield newest)))


def _answer(command: str, reply: Any) -> Any:
    if type(reply) is ErrorReply:
        raise ServerError(reply.code, reply.message, command)
    return reply


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


__all__ = ["browse", "counts", "job", "state"]

"""How queues are doing, for people who look at them: many queues in two flushes.

Nothing here writes, and nothing is one instant: each number is read by itself, so that one that
cannot be read leaves the others. It is then among the `errors`, and never a zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from resp import Command, ErrorReply, Plan

from ..errors import EmqError
from ..ids import parse, valid
from ..keyspace import Keyspace
from .reads import answered

COUNTED: Final = ("pending", "active", "schedule", "dead", "completed", "failed")

_FLUSH_QUEUES: Final = 50  # about 900 commands; the server answers others between two flushes
_LANES: Final = 1000  # lanes of one queue that are looked at
_SOON_MS: Final = 10_000


class Leases(NamedTuple):
    """How many leases end when.

    Attributes:
        lapsed: Have ended, and nobody has reaped them.
        soon: End within 10 s.
        later: Last longer.
    """

    lapsed: int
    soon: int
    later: int


class Overview(NamedTuple):
    """One queue, as it was read. What could not be read is None, and among the errors.

    Attributes:
        queue: Its name.
        now_ms: When, by the server's clock, in ms since 1970.
        counts: How many jobs are in each place, and how many ever completed and failed.
        lanes: How many jobs wait in each lane, by group; lanes without any are left out.
        paused: Nothing is claimed.
        concurrency: How many jobs may be active at once; None without a ceiling.
        rate_limit: What the rate limiter counts up to; None without a limit.
        events: Transitions are published.
        waiting: Workers that have found nothing to do.
        oldest_ms: How long ago the oldest job that waits was minted, in ms.
        next_due_ms: Until the next scheduled job falls due, in ms; negative if it has.
        next_lease_end_ms: Until the next lease ends, in ms; negative if it has.
        leases: How many leases end when.
        errors: The server's words, by what could not be read.
    """

    queue: str
    now_ms: int
    counts: Mapping[str, int | None]
    lanes: Mapping[str, int]
    paused: bool | None
    concurrency: int | None
    rate_limit: int | None
    events: bool | None
    waiting: int | None
    oldest_ms: int | None
    next_due_ms: int | None
    next_lease_end_ms: int | None
    leases: Leases | None
    errors: Mapping[str, str]

    @property
    def backlog(self) -> int:
        """How many jobs wait in lanes."""
        return sum(self.lanes.values())


class Glance(NamedTuple):
    """What a list of jobs shows of each.

    Attributes:
        state: What the row says; None where it says nothing, or there is no row.
        attempts: How often the job was claimed; None where the row does not say.
        size: Of the payload, in bytes; None where the row has none.
        last_error: Why its last attempt failed; None where none did.
        group: Its lane's group; None for a flat job.
    """

    state: str | None
    attempts: int | None
    size: int | None
    last_error: str | None
    group: str | None


def now_ms() -> Plan[int]:
    """Answer the server's time, in ms since 1970."""
    return _ms(answered("TIME", (yield ("TIME",))))


def overviews(queues: Iterable[Keyspace]) -> Plan[list[Overview]]:
    found: list[Overview] = []
    todo = list(queues)
    for at in range(0, len(todo), _FLUSH_QUEUES):
        found += yield from _some(todo[at : at + _FLUSH_QUEUES])
    return found


def overview(keys: Keyspace) -> Plan[Overview]:
    [found] = yield from overviews([keys])
    return found


def death_reasons(keys: Keyspace, sample: int, most: int) -> Plan[list[tuple[str, int]]]:
    """Answer the commonest errors of dead jobs with how many have them, the commonest first.

    Args:
        sample: How many jobs of the morgue to look at, the newest.
        most: How many reasons to answer.
    """
    newest = ("ZRANGE", keys.dead, 0, sample - 1, "REV")
    ids: list[bytes] = answered("ZRANGE", (yield newest))
    if not ids:
        return []
    # An entry that somebody made by hand may be no id; its row is asked for all the same.
    flush: list[Command] = [("HGET", keys.job_prefix.encode() + id, "last_error") for id in ids]
    replies = yield flush
    reasons = Counter(
        "unreadable"
        if isinstance(reply, ErrorReply)
        else (reply or b"no reason given")
        .decode("utf-8", "surrogateescape")
        .partition("\n")[0][:80]
        for reply in replies
    )
    return reasons.most_common(most)


def glances(keys: Keyspace, ids: Iterable[str]) -> Plan[list[Glance]]:
    """Answer what a list shows of each of some jobs. Payloads are not read."""
    flush: list[Command] = []
    for id in ids:
        row = keys.job(id)
        flush += [
            ("HMGET", row, "state", "attempts", "last_error", "group"),
            ("HSTRLEN", row, "payload"),
            ("HEXISTS", row, "payload"),
        ]
    replies = (yield flush) if flush else []
    seen = []
    for fields, size, there in zip(replies[::3], replies[1::3], replies[2::3], strict=True):
        state, attempts, error, group = answered("HMGET", fields)
        size = answered("HSTRLEN", size) if answered("HEXISTS", there) else None
        seen.append(Glance(_text(state), _number(attempts), size, _text(error), _text(group)))
    return seen


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")


_Read = tuple[Callable[[Keyspace], tuple[Any, ...]], Callable[[Any], Any]]


def _number(text: Any) -> int | None:
    """A number that others may have written; None for what is none."""
    told = text.decode("latin-1") if isinstance(text, bytes) else ""
    return int(told) if told.isascii() and told.isdecimal() and len(told) < 20 else None


def _first_score(reply: list[Any]) -> int | None:
    # RESP3 answers pairs of member and double, RESP2 members and texts in turn.
    if not reply:
        return None
    score = float(reply[0][1] if isinstance(reply[0], list) else reply[1])
    return int(score) if abs(score) < 2**63 else None


_READS: Final[dict[str, _Read]] = {
    "pending": (lambda keys: ("ZCARD", keys.pending), int),
    "active": (lambda keys: ("ZCARD", keys.active), int),
    "schedule": (lambda keys: ("ZCARD", keys.schedule), int),
    "dead": (lambda keys: ("ZCARD", keys.dead), int),
    "completed": (
        lambda keys: ("HGET", keys.metrics_completed, "count"),
        lambda reply: _number(reply) or 0,
    ),
    "failed": (
        lambda keys: ("HGET", keys.metrics_failed, "count"),
        lambda reply: _number(reply) or 0,
    ),
    "meta": (
        lambda keys: ("HMGET", keys.meta, "paused", "concurrency", "max", "events"),
        tuple,
    ),
    "waiting": (lambda keys: ("ZCARD", keys.parked), int),
    "oldest": (lambda keys: ("ZRANGE", keys.pending, 0, 0), list),
    "next due": (lambda keys: ("ZRANGE", keys.schedule, 0, 0, "WITHSCORES"), _first_score),
    "next lease": (lambda keys: ("ZRANGE", keys.active, 0, 0, "WITHSCORES"), _first_score),
    "ring": (lambda keys: ("LRANGE", keys.ring, 0, _LANES - 1), list),
    "paused lanes": (lambda keys: ("SMEMBERS", keys.paused), list),
    "busy lanes": (lambda keys: ("HKEYS", keys.gactive), list),
}


def _some(queues: list[Keyspace]) -> Plan[list[Overview]]:
    flush: list[Command] = [("TIME",)]
    flush += [command(keys) for keys in queues for command, _ in _READS.values()]
    replies = yield flush
    now = _ms(answered("TIME", replies[0]))
    width = len(_READS)
    parts = []
    second: list[Command] = []
    for at, keys in enumerate(queues):
        values, errors = _read(replies[1 + at * width : 1 + (at + 1) * width])
        groups = _groups(values)
        more: list[Command] = [
            ("ZCOUNT", keys.active, "-inf", now),
            ("ZCOUNT", keys.active, f"({now}", now + _SOON_MS),
        ]
        for group in groups:
            lane = keys.lane(group)
            more += [("ZCARD", lane), ("ZRANGE", lane, 0, 0)]
        parts.append((keys, values, errors, groups, len(second), len(more)))
        second += more
    replies = yield second
    return [
        _assembled(keys, now, values, errors, groups, replies[start : start + size])
        for keys, values, errors, groups, start, size in parts
    ]


def _read(replies: list[Any]) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for (name, (_, read)), reply in zip(_READS.items(), replies, strict=True):
        if isinstance(reply, ErrorReply):
            errors[name] = reply.message
            values[name] = None
        else:
            values[name] = read(reply)
    return values, errors


def _groups(values: Mapping[str, Any]) -> list[str]:
    """The lanes that may hold jobs: in rotation, paused, or kept out since they are busy."""
    told: list[bytes] = []
    for name in ("ring", "paused lanes", "busy lanes"):
        told += values[name] or ()
    return [group.decode() for group in dict.fromkeys(told) if valid(group)][:_LANES]


def _assembled(
    keys: Keyspace,
    now: int,
    values: dict[str, Any],
    errors: dict[str, str],
    groups: list[str],
    replies: list[Any],
) -> Overview:
    lapsed, soon, *of_lanes = replies
    lanes: dict[str, int] = {}
    oldest = [*(values["oldest"] or ())]
    for group, size, first in zip(groups, of_lanes[::2], of_lanes[1::2], strict=True):
        if isinstance(size, ErrorReply) or isinstance(first, ErrorReply):
            errors[f"lane {group}"] = str(getattr(size, "message", "") or first.message)
        elif size:
            lanes[group] = size
            oldest += first
    ages = [now - parse(id).unix_ms for id in oldest if valid(id)]
    leases = None
    if not isinstance(lapsed, ErrorReply) and not isinstance(soon, ErrorReply):
        # The three were counted at different instants.
        leases = Leases(lapsed, soon, max((values["active"] or 0) - lapsed - soon, 0))
    paused, concurrency, limit, events = values["meta"] or (None, None, None, None)
    known = values["meta"] is not None
    return Overview(
        queue=keys.queue,
        now_ms=now,
        counts={name: values[name] for name in COUNTED},
        lanes=lanes,
        paused=paused is not None if known else None,
        concurrency=_number(concurrency) or None,
        rate_limit=_number(limit) or None,
        events=events is not None if known else None,
        waiting=values["waiting"],
        oldest_ms=max(ages) if ages else None,
        next_due_ms=_until(values["next due"], now),
        next_lease_end_ms=_until(values["next lease"], now),
        leases=leases,
        errors=errors,
    )


def _until(score: int | None, now: int) -> int | None:
    return None if score is None else score - now


def _ms(time: Any) -> int:
    try:
        seconds, microseconds = time
        return int(seconds) * 1000 + int(microseconds) // 1000
    except (TypeError, ValueError):
        raise EmqError("TIME answered what is no time; is this a Valkey?") from None


__all__ = [
    "COUNTED",
    "Glance",
    "Leases",
    "Overview",
    "death_reasons",
    "glances",
    "now_ms",
    "overview",
    "overviews",
]

"""Depth: the corners of the planes before, and locks that are fields of a row."""

from __future__ import annotations

from typing import Any

from resp import Plan, ServerError

from ..errors import AtCeiling, JobLocked
from ..plans import admin, reads, recovery
from .kit import Mismatch, Trial, expect, refused, say


def unknown_state(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    yield from t.claim(id)
    expect("entries removed by hand", (yield from say("ZREM", t.key("active"), id)), 1)
    expect("its state", (yield from reads.state(t.keys, id)), "unknown")
    row = yield from reads.job(t.keys, id)
    expect("its row's state", row and row.state, "active")
    expect("no job's state", (yield from reads.state(t.keys, t.mint())), None)


def rate_consult(t: Trial) -> Plan[None]:
    yield from say("HSET", t.key("meta"), "concurrency", 1)
    yield from t.enqueue()
    held = yield from t.claim()
    yield from t.enqueue()
    yield from refused(AtCeiling, "a look at the ceiling", reads.check_ceiling(t.keys))
    counts = yield from reads.counts(t.keys)
    expect("active and pending", (counts["active"], counts["pending"]), (1, 1))
    yield from t.complete(held)
    yield from reads.check_ceiling(t.keys)


def dedup_release(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    other = t.mint()
    yield from say("SET", t.key("de:conf-dedup"), id)
    yield from say("SET", t.key("de:conf-orphan"), other)
    expect("the key's job", (yield from reads.dedup(t.keys, "conf-dedup")), id)
    yield from admin.remove(t.keys, id, "conf-dedup")
    expect("the key of a job that is gone", (yield from reads.dedup(t.keys, "conf-dedup")), None)
    expect("the orphan's job", (yield from reads.dedup(t.keys, "conf-orphan")), other)


def extend_locks_batch(t: Trial) -> Plan[None]:
    live, stale = yield from t.enqueue_some(2)
    gone = t.mint()
    held = yield from t.claim(live)
    yield from t.claim(stale)
    for id in (live, stale):
        yield from t.lapse(id)
    leases = [(live, held.token), (stale, 999), (gone, 1)]
    failed = yield from recovery.extend_many(t.keys, leases, 90_000, None)
    expect("leases that could not be extended", set(failed), {stale, gone})
    expect("a reap, of the one that was not", (yield from recovery.reap(t.keys, 100)), 1)
    yield from t.expect_places([live], "active")
    yield from t.expect_places([stale], "pending")
    yield from t.expect_places([gone], None)


def native_lock_field(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    row = t.row_key(id)
    yield from say("HSET", row, "lock", "worker-1")
    expect("HEXPIRE", (yield from _say_new("HEXPIRE", row, 30, "FIELDS", 1, "lock")), [1])
    expect("whether the field is there", (yield from say("HEXISTS", row, "lock")), 1)
    [left] = yield from _say_new("HPTTL", row, "FIELDS", 1, "lock")
    if left <= 0:
        raise Mismatch(f"a field with a life of 30 s has {left} ms left")
    yield from _say_new("HPEXPIREAT", row, 1, "FIELDS", 1, "lock")
    expect("whether the field is there", (yield from say("HEXISTS", row, "lock")), 0)
    expect("the job's state", (yield from reads.state(t.keys, id)), "pending")


def native_lock_refuses(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    row = t.row_key(id)
    yield from say("HSET", row, "lock", "worker-1")
    yield from refused(
        JobLocked,
        "a remove of a locked job",
        admin.remove(t.keys, id, None),
        "EMQLOCK job is locked",
    )
    expect("its state", (yield from reads.state(t.keys, id)), "pending")
    yield from _say_new("HPEXPIREAT", row, 1, "FIELDS", 1, "lock")
    yield from admin.remove(t.keys, id, None)
    expect("its state", (yield from reads.state(t.keys, id)), None)


def _say_new(*command: Any) -> Plan[Any]:
    """Say a command that only newer servers know."""
    try:
        return (yield from say(*command))
    except ServerError as error:
        if "unknown command" not in error.message:
            raise
        needed = "Valkey 9 or Redis 7.4"
        raise Mismatch(f"the server does not know {command[0]}; it needs {needed}") from error


__all__ = [
    "dedup_release",
    "extend_locks_batch",
    "native_lock_field",
    "native_lock_refuses",
    "rate_consult",
    "unknown_state",
]

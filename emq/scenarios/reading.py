"""The read plane: what a queue says of itself."""

from __future__ import annotations

from resp import Plan

from ..errors import AtCeiling
from ..job import Metric
from ..plans import reads
from .kit import Mismatch, Trial, expect, refused, say


def counts(t: Trial) -> Plan[None]:
    yield from t.enqueue()
    yield from t.claim()
    yield from t.enqueue_some(3)
    yield from t.enqueue(delay_ms=60_000)
    found = yield from reads.counts(t.keys)
    expect(
        "the counts",
        found,
        {"pending": 3, "active": 1, "schedule": 1, "dead": 0, "completed": 0, "failed": 0},
    )
    try:
        yield from reads.peek(t.keys, "wait", 1, 0)
    except ValueError:
        return
    raise Mismatch("a place called wait was looked at, though there is none")


def state(t: Trial) -> Plan[None]:
    claimed = yield from t.enqueue(b"s")
    yield from t.claim(claimed)
    scheduled = yield from t.enqueue(b"s", delay_ms=60_000)
    missing = t.mint()
    for id, wanted in ((claimed, "active"), (scheduled, "scheduled"), (missing, None)):
        expect("the state", (yield from reads.state(t.keys, id)), wanted)
    row = yield from reads.job(t.keys, claimed)
    expect("the claimed job", row and row[:3], ("active", 1, b"s"))
    expect("the missing job", (yield from reads.job(t.keys, missing)), None)


def metrics(t: Trial) -> Plan[None]:
    yield from t.enqueue()
    job = yield from t.claim()
    found = yield from reads.metrics(t.keys)
    expect("the metric before", found["completed"], Metric(0, 0))
    yield from t.complete(job)
    found = yield from reads.metrics(t.keys)
    expect("the metric after", found["completed"], Metric(1, 0))
    counted = yield from say("HGET", t.key("metrics:completed"), "count")
    expect("the count of metrics:completed", counted, b"1")


def dedup(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    yield from say("SET", t.key("de:order-42"), id)
    expect("the key's job", (yield from reads.dedup(t.keys, "order-42")), id)
    expect("another key's job", (yield from reads.dedup(t.keys, "never-parked")), None)


def rate(t: Trial) -> Plan[None]:
    yield from say("HSET", t.key("meta"), "concurrency", 1)
    yield from reads.check_ceiling(t.keys)
    yield from t.enqueue()
    yield from t.claim()
    yield from refused(
        AtCeiling,
        "a look at the ceiling",
        reads.check_ceiling(t.keys),
        "EMQRATE at concurrency ceiling",
    )


__all__ = ["counts", "dedup", "metrics", "rate", "state"]

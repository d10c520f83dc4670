"""Batches: many jobs claimed in one step, shaped by a policy, and settled each by its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resp import Plan

from ..backoff import fixed
from ..batch import WAIT, Done, Flush, Partition, Shaper, Verdict, partition, verdicts
from ..errors import JobGone, StaleToken
from ..events import parse
from ..job import Job
from ..plans import admin, jobs, recovery
from ..plans.work import settle
from ..work import Settings, on_error, on_return
from .kit import LEASE_MS, Hear, Listen, Scene, Trial, expect, refused, say


def batch_claim(t: Trial) -> Plan[None]:
    ids = yield from t.enqueue_some(8)
    batch = yield from _batch(t, 4)
    expect("the batch, oldest first", [job.id for job in batch], ids[:4])
    expect("its tokens", [job.token for job in batch], [1] * 4)
    ends = []
    for id in ids[:4]:
        yield from t.expect_row(id, state=b"active", attempts=b"1")
        ends.append((yield from t.score("active", id)))
    expect("different ends of its leases", len(set(ends)), 1)
    yield from t.expect_places(ids[:4], "active")
    yield from t.expect_places(ids[4:], "pending")


def batch_claim_short(t: Trial) -> Plan[None]:
    ids = yield from t.enqueue_some(3)
    expect("a batch of 7", [job.id for job in (yield from _batch(t, 7))], ids)
    expect("a batch of none", (yield from _batch(t, 5)), [])
    paused = t.beside("paused")
    yield from paused.enqueue()
    yield from admin.pause(paused.keys)
    expect("a batch of a paused queue", (yield from _batch(paused, 5)), [])
    expect("its pending jobs", (yield from say("ZCARD", paused.key("pending"))), 1)


def batch_partial_failure(t: Trial) -> Plan[None]:
    ids = yield from t.enqueue_some(3)
    poison, *others = yield from _batch(t, 3)
    expect("the oldest", poison.id, ids[0])
    yield from refused(StaleToken, "a completion under token 99", t.complete(poison.id, token=99))
    expect("the retry", (yield from t.retry(poison, 3, "poison")), "scheduled")
    for job in others:
        yield from t.complete(job)
        yield from t.expect_gone(job.id)
    yield from t.expect_row(poison.id, state=b"scheduled", last_error=b"poison")
    yield from t.fall_due(poison.id)
    yield from _expect_batch(t, {poison.id: 2})


def batch_shaping_floor(t: Trial) -> Plan[None]:
    ids = yield from t.enqueue_some(6)
    shaper = Shaper(min_size=4, timeout_ms=200)
    expect("the decision on 3 at once", shaper.decide(3, 0), WAIT)
    decision = shaper.decide(6, 0)
    expect("the decision on 6 at once", decision, Flush(6))
    yield from _expect_done(t, ids)


def batch_shaping_timeout(t: Trial) -> Plan[None]:
    ids = yield from t.enqueue_some(2)
    shaper = Shaper(min_size=5, timeout_ms=200)
    expect("the decision on 2 after 199 ms", shaper.decide(2, 199), WAIT)
    expect("the decision on 2 after 200 ms", shaper.decide(2, 200), Flush(2))
    expect("the decision on none after 200 ms", shaper.decide(0, 200), WAIT)
    yield from _expect_done(t, ids)


def batch_shaping_partial_failure(t: Trial) -> Scene[None]:
    ids = yield from t.enqueue_some(3)
    batch = yield from _batch(t, 3)
    yield Listen(t.key("events"))
    yield from admin.set_events(t.keys, True)
    said = verdicts(ids, {ids[0]: ("error", "poison"), ids[1]: "ok"})
    settings = dict.fromkeys(ids, Settings(max_attempts=5, backoff=fixed(60_000)))
    outcomes = yield from _settled(t, batch, said, settings)
    expect("the outcomes", list(outcomes.values()), ["scheduled", "completed", "scheduled"])
    yield from t.expect_row(ids[0], state=b"scheduled", last_error=b"poison")
    yield from t.expect_gone(ids[1])
    yield from t.expect_row(ids[2], state=b"scheduled", last_error=b"missing verdict")
    # In any order: of a flush, what the server has not cached is run last.
    told = {}
    for _ in ids:
        event = parse((yield Hear(1.0)) or b"")
        told[event.job_id] = event.name
    expect("the events", told, dict(zip(ids, ("failed", "completed", "failed"), strict=True)))
    for id in (ids[0], ids[2]):
        yield from t.fall_due(id)
    yield from _expect_batch(t, {ids[0]: 2, ids[2]: 2})


def batch_partition(t: Trial) -> Plan[None]:
    ids = yield from t.enqueue_some(5)
    done, sched, dead, delayed, omitted = ids
    batch = yield from _batch(t, 5)
    answer = {
        done: "ok",
        sched: ("error", "again"),
        dead: ("error", "no more"),
        delayed: ("delay", 60_000),
    }
    said = verdicts(ids, answer)
    often = Settings(max_attempts=9, backoff=fixed(60_000))
    settings = {**dict.fromkeys(ids, often), dead: Settings(max_attempts=1)}
    outcomes = yield from _settled(t, batch, said, settings)
    parts = partition(ids, said, outcomes)
    expect("the parts", parts, Partition([done], [delayed], [dead], [sched, omitted]))
    expect("all parts together", sorted(id for part in parts for id in part), sorted(ids))
    yield from t.expect_gone(done)
    yield from t.expect_row(dead, state=b"dead", last_error=b"no more")
    for id in (sched, delayed, omitted):
        yield from t.expect_row(id, state=b"scheduled")
    yield from t.expect_places([sched, delayed, omitted], "schedule")
    yield from t.expect_row(omitted, last_error=b"missing verdict")


def batch_delay(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    job = yield from t.claim(id)
    yield from t.delay(job, 60_000)
    yield from t.expect_row(id, state=b"scheduled", attempts=b"1")
    yield from t.expect_places([id], "schedule")
    yield from t.claim_nothing("before the job is due")
    yield from t.fall_due(id)
    yield from t.complete((yield from t.claim(id, token=2)))
    yield from t.expect_gone(id)


def batch_delay_stale(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    yield from t.claim(id)
    yield from t.lapse(id)
    expect("a reap", (yield from recovery.reap(t.keys, 100)), 1)
    second = yield from t.claim(id, token=2)
    refusal = refused(
        StaleToken,
        "a delay under token 1",
        t.delay(id, 60_000, token=1),
        "EMQSTALE delay token mismatch",
    )
    yield from t.unseen(refusal)
    yield from t.expect_places([id], "active")
    yield from t.delay(second, 60_000)
    yield from t.expect_row(id, state=b"scheduled")
    yield from t.expect_places([id], "schedule")
    missing = t.mint()
    yield from refused(JobGone, "a delay of no job", t.delay(missing, 60_000, token=1))
    yield from t.expect_places([missing], None)


def _batch(t: Trial, count: int) -> Plan[list[Job]]:
    return jobs.claim_many(t.keys, count, LEASE_MS)


def _expect_batch(t: Trial, tokens: Mapping[str, int]) -> Plan[None]:
    """Go on if the next batch is of these jobs, under these tokens."""
    batch = yield from _batch(t, 5)
    expect("the next batch", {job.id: job.token for job in batch}, tokens)


def _expect_done(t: Trial, ids: list[str]) -> Plan[None]:
    """Go on if the next batch is of these jobs, and they can be completed."""
    batch = yield from _batch(t, len(ids))
    expect("the batch", [(job.id, job.token) for job in batch], [(id, 1) for id in ids])
    for job in batch:
        yield from t.complete(job)
        yield from t.expect_gone(job.id)


def _settled(
    t: Trial,
    batch: list[Job],
    said: Mapping[str, Verdict],
    settings: Mapping[str, Settings],
) -> Plan[dict[str, Any]]:
    """Settle a batch as a consumer does; what became of each job."""
    settlements = []
    for job in batch:
        verdict = said[job.id]
        if isinstance(verdict, Done):
            settlements.append(on_return(job, settings[job.id], verdict.result))
        else:
            settlements.append(on_error(job, settings[job.id], verdict))
    outcomes = yield from settle(t.keys, settlements)
    return dict(zip((job.id for job in batch), outcomes, strict=True))


__all__ = [
    "batch_claim",
    "batch_claim_short",
    "batch_delay",
    "batch_delay_stale",
    "batch_partial_failure",
    "batch_partition",
    "batch_shaping_floor",
    "batch_shaping_partial_failure",
    "batch_shaping_timeout",
]

"""The operator plane: a queue as a whole, and one job whoever holds it."""

from __future__ import annotations

from resp import Plan

from ..errors import JobGone, JobLocked, WrongState
from ..events import parse
from ..plans import admin, reads
from .kit import Hear, Listen, Scene, Trial, expect, refused, say


def queue_pause(t: Trial) -> Plan[None]:
    id = yield from t.enqueue(b"work")
    yield from admin.pause(t.keys)
    expect("meta's paused", (yield from say("HGET", t.key("meta"), "paused")), b"1")
    yield from t.claim_nothing("from a paused queue")
    expect("pending", (yield from reads.counts(t.keys))["pending"], 1)
    yield from admin.resume(t.keys)
    expect("meta's paused", (yield from say("HGET", t.key("meta"), "paused")), None)
    job = yield from t.claim(id)
    expect("the job's payload", job.payload, b"work")


def drain(t: Trial) -> Plan[None]:
    claimed = yield from t.enqueue()
    yield from t.claim(claimed)
    waiting = yield from t.enqueue_some(3)
    expect("jobs drained", (yield from admin.drain(t.keys, False)), 3)
    counts = yield from reads.counts(t.keys)
    expect("pending and active", (counts["pending"], counts["active"]), (0, 1))
    expect("the claimed job's state", (yield from reads.state(t.keys, claimed)), "active")
    for id in waiting:
        yield from t.expect_gone(id)


def obliterate(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    yield from refused(
        WrongState,
        "an obliterate of a queue that is not paused",
        admin.obliterate(t.keys, False, 1000),
        "EMQSTATE not paused",
    )
    expect("pending", (yield from reads.counts(t.keys))["pending"], 1)
    yield from admin.pause(t.keys)
    expect("whether nothing is left", (yield from admin.obliterate(t.keys, False, 1000)), True)
    counts = yield from reads.counts(t.keys)
    expect("all counts", set(counts.values()), {0})
    yield from t.expect_gone(id)
    expect("whether it is paused", (yield from reads.paused(t.keys)), False)


def update_data(t: Trial) -> Plan[None]:
    id = yield from t.enqueue(b"old")
    yield from admin.update_payload(t.keys, id, b"new")
    yield from t.expect_row(id, payload=b"new")
    missing = t.mint()
    yield from refused(
        JobGone, "an update of no job", admin.update_payload(t.keys, missing, b"new")
    )
    yield from t.expect_gone(missing)


def update_progress(t: Trial) -> Scene[None]:
    id = yield from t.enqueue()
    yield Listen(t.key("events"))
    yield from admin.progress(t.keys, id, "50", None)
    yield from t.expect_row(id, progress=b"50")
    message = yield Hear(1.0)
    for part in ('"event":"progress"', f'"{id}"', '"progress":"50"'):
        expect(f"whether {message!a} has {part}", part.encode() in (message or b""), True)
    event = parse(message)
    expect("the event", (event.name, event.job_id), ("progress", id))
    missing = t.mint()
    yield from refused(JobGone, "progress of no job", admin.progress(t.keys, missing, "50", None))
    yield from t.expect_gone(missing)


def job_logs(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    lines = ["line-1", "line-2", "line-3"]
    expect("lines", (yield from admin.log(t.keys, id, lines[0], 0, None)), 1)
    expect("lines", (yield from admin.log(t.keys, id, lines[1], 0, None)), 2)
    expect("the log", (yield from admin.logs(t.keys, id)), lines[:2])
    expect("lines kept", (yield from admin.log(t.keys, id, lines[2], 2, None)), 2)
    expect("the log", (yield from admin.logs(t.keys, id)), lines[1:])
    kept = yield from say("LRANGE", t.row_key(id) + ":logs", 0, -1)
    expect("the log's key", kept, [line.encode() for line in lines[1:]])
    missing = t.mint()
    yield from refused(JobGone, "a log of no job", admin.log(t.keys, missing, "x", 0, None))
    yield from refused(JobGone, "a read of no job's log", admin.logs(t.keys, missing))


def remove_job(t: Trial) -> Plan[None]:
    free, held = yield from t.enqueue_some(2)
    yield from say("SET", t.key("de:dedup-7"), free)
    yield from say("SET", t.row_key(held) + ":lock", "worker-1")
    yield from admin.remove(t.keys, free, "dedup-7")
    expect("the removed job's state", (yield from reads.state(t.keys, free)), None)
    expect("its deduplication key", (yield from reads.dedup(t.keys, "dedup-7")), None)
    yield from t.expect_places([free], None)
    yield from refused(
        JobLocked,
        "a remove of a locked job",
        admin.remove(t.keys, held, None),
        "EMQLOCK job is locked",
    )
    expect("the locked job's state", (yield from reads.state(t.keys, held)), "pending")


def reprocess_job(t: Trial) -> Plan[None]:
    dead = yield from t.dead()
    live = yield from t.enqueue()
    yield from admin.reprocess(t.keys, dead, False)
    expect("its state", (yield from reads.state(t.keys, dead)), "pending")
    yield from t.expect_places([dead], "pending")
    row = yield from t.row(dead)
    expect("its row's state", row["state"], b"pending")
    expect("its last error", row.get("last_error"), None)
    expect("its attempts", row["attempts"], b"1")
    yield from refused(
        WrongState,
        "a reprocess of a live job",
        admin.reprocess(t.keys, live, False),
        "EMQSTATE not dead",
    )
    yield from t.expect_places([live], "pending")


__all__ = [
    "drain",
    "job_logs",
    "obliterate",
    "queue_pause",
    "remove_job",
    "reprocess_job",
    "update_data",
    "update_progress",
]

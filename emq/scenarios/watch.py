"""The watch plane: leases, stalls, events, and what needs no server at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resp import Plan

from ..cancel import Cancelled, CancelToken
from ..errors import JobGone, StaleToken
from ..events import parse
from ..plans import events as publishing
from ..plans import reads, recovery
from ..telemetry import Telemetry
from .kit import LEASE_MS, Hear, Listen, Mismatch, Scene, Trial, clock, expect, refused


def lock_extend(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    job = yield from t.claim(id)
    yield from t.lapse(id)
    earliest = yield from clock()
    yield from recovery.extend(t.keys, job, LEASE_MS, None)
    latest = yield from clock()
    expect("a reap of an extended lease", (yield from recovery.reap(t.keys, 100)), 0)
    yield from t.expect_places([id], "active")
    yield from t.expect_due("active", id, earliest, latest, LEASE_MS)
    before = yield from t.score("active", id)
    yield from refused(
        StaleToken,
        "an extend under token 2",
        recovery.extend(t.keys, id, 2 * LEASE_MS, 2),
        "EMQSTALE extend token mismatch",
    )
    missing = t.mint()
    yield from refused(
        JobGone, "an extend of no job", recovery.extend(t.keys, missing, LEASE_MS, 1)
    )
    expect("the lease after refusals", (yield from t.score("active", id)), before)
    yield from t.expect_places([missing], None)


def stalled(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    yield from t.claim(id)
    expect("a sweep of no stall", (yield from recovery.sweep_stalled(t.keys, 2, 100)), ([], []))
    yield from _expect_stalled(t, id, False)
    yield from t.lapse(id)
    expect("the first sweep", (yield from recovery.sweep_stalled(t.keys, 2, 100)), ([id], []))
    yield from _expect_stalled(t, id, True)
    yield from t.expect_row(id, state=b"pending")
    yield from t.expect_places([id], "pending")
    yield from t.claim(id, token=2)
    yield from t.lapse(id)
    expect("the second sweep", (yield from recovery.sweep_stalled(t.keys, 2, 100)), ([], [id]))
    yield from t.expect_row(id, state=b"dead", last_error=b"stalled", stalled=b"2")
    yield from t.expect_places([id], "dead")
    expect("jobs that failed", (yield from reads.counts(t.keys))["failed"], 1)


def _expect_stalled(t: Trial, id: str, wanted: bool) -> Plan[None]:
    row = yield from t.row(id)
    expect("whether the row tells of a stall", int(row.get("stalled", b"0")) > 0, wanted)


def events(t: Trial) -> Scene[None]:
    id = yield from t.enqueue()
    yield Listen(t.key("events"))
    yield from t.complete((yield from t.claim(id)))
    expect("receivers", (yield from publishing.publish(t.keys, "completed", id, {})), 1)
    message = yield Hear(1.0)
    for part in ('"event":"completed"', f'"job":"{id}"'):
        expect(f"whether {message!a} has {part}", part.encode() in (message or b""), True)
    expect("the event's name", parse(message).name, "completed")


def telemetry(t: Trial) -> Plan[None]:
    seen: list[tuple[str, Any, Any]] = []

    def hook(name: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        seen.append((name, measurements.get("duration"), metadata.get("job_id")))

    told = Telemetry()
    detach = told.attach("emq.job.complete", hook)
    id = yield from t.enqueue()
    yield from t.complete((yield from t.claim(id)))
    told.job_completed(t.queue, id, 1234, job_name="w", worker="conformance")
    detach()
    told.job_completed(t.queue, id, 5678)
    expect("what the hook was told", seen, [("emq.job.complete", 1234, id)])


def cancel(t: Trial) -> Plan[None]:
    for reason in ("stop", "again"):
        token = CancelToken()
        expect("a check", token.check(), None)
        token.check_or_raise()
        token.cancel(reason)
        expect("a check after the cancel", token.check(), reason)
        try:
            token.check_or_raise()
        except Cancelled as error:
            expect("the reason", error.reason, reason)
        else:
            raise Mismatch("a cancelled token let its work go on")
    yield from ()  # nothing is said to the server


__all__ = ["cancel", "events", "lock_extend", "stalled", "telemetry"]

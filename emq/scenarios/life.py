"""The state machine: a job from its enqueue to its end."""

from __future__ import annotations

from resp import Plan, TransportError

from ..backoff import exponential
from ..errors import JobGone, StaleToken, WrongKind
from ..ids import Mint
from ..plans import reads, recovery
from ..scripts import ENQUEUE
from .kit import (
    LEASE_MS,
    Ask,
    Hear,
    Listen,
    Mismatch,
    Scene,
    Trial,
    clock,
    expect,
    refused,
    say,
)

_BACK_S = 2.0
_LOOK_S = 0.02


def fence(t: Trial) -> Plan[None]:
    version = yield from say("GET", "{emq}:version")
    expect("the version that connecting claims", version, t.wire_version.encode())


def mint(t: Trial) -> Plan[None]:
    id = yield from t.enqueue(b"cargo")
    row = yield from t.row(id)
    expect("a fresh row", row, {"state": b"pending", "attempts": b"0", "payload": b"cargo"})
    expect("its score in pending", (yield from t.score("pending", id)), 0)


def duplicate(t: Trial) -> Plan[None]:
    id = yield from t.enqueue(b"once")
    expect("the receipt of a duplicate", (yield from t.admit(b"twice", id)), (id, False))
    yield from t.expect_row(id, payload=b"once")
    expect("the entries in pending", (yield from t.newest_first("pending")), [id])


def kind(t: Trial) -> Plan[None]:
    id = Mint(namespace="ORD").mint()
    yield from refused(WrongKind, "an enqueue of an ORD id", t.admit(b"x", id))
    # The client says no by itself. The script's no is for clients that do not ask themselves.
    yield from refused(
        WrongKind,
        "the enqueue script with an ORD id",
        ENQUEUE(row=t.row_key(id), payload=b"x", wishes=[]),
        "EMQKIND job id must be JOB-namespaced",
    )
    expect("whether there is a row", (yield from t.exists(t.row_key(id))), False)
    expect("the entries in pending", (yield from t.newest_first("pending")), [])


def order(t: Trial) -> Plan[None]:
    ids = yield from t.enqueue_some(3)
    expect("pending, newest first", (yield from t.newest_first("pending")), ids[::-1])
    expect("a browse", (yield from reads.browse(t.keys, 10)), ids[::-1])
    expect("a browse of two", (yield from reads.browse(t.keys, 2)), ids[:0:-1])


def claim(t: Trial) -> Plan[None]:
    id = yield from t.enqueue(b"work")
    earliest = yield from clock()
    job = yield from t.claim(id)
    latest = yield from clock()
    expect("the job", (job.payload, job.token, job.group), (b"work", 1, None))
    yield from t.expect_row(id, state=b"active", attempts=b"1")
    yield from t.expect_places([id], "active")
    yield from t.expect_due("active", id, earliest, latest, LEASE_MS)


def stale(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    job = yield from t.claim(id)
    before = yield from t.row(id)
    refusal = refused(
        StaleToken,
        "a completion under token 99",
        t.complete(id, token=99),
        "EMQSTALE complete token mismatch",
    )
    yield from t.unseen(refusal)
    expect("the row after a refusal", (yield from t.row(id)), before)
    yield from t.complete(job)
    yield from t.expect_gone(id)


def complete(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    job = yield from t.claim(id)
    yield from t.complete(job)
    expect("whether there is a row", (yield from t.exists(t.row_key(id))), False)
    expect("the size of active", (yield from say("ZCARD", t.key("active"))), 0)
    yield from t.expect_places([id], None)
    yield from refused(JobGone, "a second completion", t.complete(job))


def retry(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    job = yield from t.claim(id)
    earliest = yield from clock()
    expect("a retry", (yield from t.retry(job, 3, "boom", delay_ms=60_000)), "scheduled")
    latest = yield from clock()
    yield from t.expect_row(id, state=b"scheduled", last_error=b"boom", attempts=b"1")
    yield from t.expect_places([id], "schedule")
    yield from t.expect_due("schedule", id, earliest, latest, 60_000)
    yield from t.fall_due(id)
    yield from t.expect_row(id, state=b"pending")
    yield from t.complete((yield from t.claim(id, token=2)))
    yield from t.expect_gone(id)


def dead(t: Trial) -> Plan[None]:
    id = yield from t.dead("gave up")
    yield from t.expect_row(id, state=b"dead", last_error=b"gave up")
    yield from t.expect_places([id], "dead")
    expect("dead, newest first", (yield from t.newest_first("dead")), [id])
    expect("its score in dead", (yield from t.score("dead", id)), 0)


def reap(t: Trial) -> Plan[None]:
    id = yield from t.enqueue()
    first = yield from t.claim(id)
    expect("a reap before the lease has ended", (yield from recovery.reap(t.keys, 100)), 0)
    yield from t.lapse(id)
    expect("a reap when the lease has ended", (yield from recovery.reap(t.keys, 100)), 1)
    yield from t.expect_row(id, state=b"pending", attempts=b"1")
    yield from t.expect_places([id], "pending")
    second = yield from t.claim(id, token=2)
    yield from refused(StaleToken, "a completion by the first claim", t.complete(first))
    yield from t.complete(second)
    yield from t.expect_gone(id)


def schedule(t: Trial) -> Plan[None]:
    earliest = yield from clock()
    id = yield from t.enqueue(b"later", delay_ms=60_000)
    latest = yield from clock()
    row = yield from t.row(id)
    expect("a fresh row", row, {"state": b"scheduled", "attempts": b"0", "payload": b"later"})
    yield from t.expect_due("schedule", id, earliest, latest, 60_000)
    yield from t.claim_nothing("before the job is due")
    yield from t.fall_due(id)
    job = yield from t.claim(id)
    expect("its payload", job.payload, b"later")
    yield from t.complete(job)


def backoff(t: Trial) -> Plan[None]:
    id = yield from t.enqueue(b"poison")
    curve = exponential(1, 10)
    for attempt in (1, 2, 3):
        job = yield from t.claim(id, token=attempt)
        delay_ms = curve.delay_ms(job.attempt)
        expect("the backoff's delay", delay_ms, (1, 2, 4)[attempt - 1])
        # Times a minute: the delay must not be over before it was looked at.
        outcome = yield from t.retry(job, 3, f"boom {attempt}", delay_ms * 60_000)
        expect(f"a retry of attempt {attempt}", outcome, "dead" if attempt == 3 else "scheduled")
        if outcome == "scheduled":
            yield from t.fall_due(id)
    yield from t.expect_row(id, state=b"dead", last_error=b"boom 3", attempts=b"3")
    expect("dead", (yield from t.newest_first("dead")), [id])


def resubscribe(t: Trial) -> Scene[None]:
    channel = t.key("chan")
    yield Listen(channel)
    expect("receivers before", (yield from say("PUBLISH", channel, "before")), 1)
    expect("the message before", (yield Hear(1.0)), b"before")
    lost = yield Ask(("CLIENT", "ID"))
    expect("connections killed", (yield from say("CLIENT", "KILL", "ID", lost)), 1)
    yield from _back_after(lost)
    expect("receivers after", (yield from say("PUBLISH", channel, "after")), 1)
    expect("the message after", (yield Hear(2.0)), b"after")


def _back_after(lost: int) -> Scene[None]:
    """Read until the subscription has another connection than the lost one."""
    for _ in range(round(_BACK_S / _LOOK_S)):
        try:
            yield Hear(_LOOK_S)
            if (yield Ask(("CLIENT", "ID"))) != lost:
                return
        except TransportError:  # it was noticed just now
            continue
    raise Mismatch(f"the subscriber was not connected again within {_BACK_S:.0f} s")


__all__ = [
    "backoff",
    "claim",
    "complete",
    "dead",
    "duplicate",
    "fence",
    "kind",
    "mint",
    "order",
    "reap",
    "resubscribe",
    "retry",
    "schedule",
    "stale",
]

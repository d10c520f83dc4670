"""The bus contract's conformance scenarios, by name, on both shells and both protocols.

Where a scenario sleeps until a lease or a delay is over, the score is moved instead.
"""

from __future__ import annotations

from typing import Any

import pytest

from emq import Queue
from emq.errors import JobGone, StaleToken, WrongKind
from emq.fence import WIRE_VERSION
from emq.ids import Mint
from emq.job import Job, Row

from .conftest import Due, Expire, Keys, needs

LEASE = 60_000


def mint(count: int) -> list[str]:
    mints = Mint()
    return [mints.mint() for _ in range(count)]


def enqueue(queue: Queue, *ids: str, payload: bytes = b"work") -> None:
    for id in ids:
        assert queue.enqueue(payload, job_id=id).admitted


def claim(queue: Queue, lease_ms: int = LEASE) -> Job:
    job = queue.claim(lease_ms)
    assert job is not None
    return job


def test_fence(queue: Queue, keys: Keys) -> None:
    assert keys.admin.get("{emq}:version") == WIRE_VERSION.encode()


def test_mint(queue: Queue, keys: Keys) -> None:
    (id,) = mint(1)

    assert queue.enqueue(b"cargo", job_id=id) == (id, True)
    assert keys.row(id) == {"state": b"pending", "attempts": b"0", "payload": b"cargo"}


def test_duplicate(queue: Queue, keys: Keys) -> None:
    (id,) = mint(1)

    assert queue.enqueue(b"once", job_id=id).admitted
    assert queue.enqueue(b"twice", job_id=id) == (id, False)
    assert keys.row(id)["payload"] == b"once"


def test_kind(queue: Queue, keys: Keys) -> None:
    id = Mint(namespace="ORD").mint()

    with pytest.raises(WrongKind) as caught:
        queue.enqueue(b"x", job_id=id)
    assert caught.value.job_id == id
    assert keys.dumped() == {}


def test_order(queue: Queue) -> None:
    ids = mint(3)
    enqueue(queue, *ids)

    assert queue.browse(10) == ids[::-1]
    assert queue.browse(2) == ids[:0:-1]


def test_claim(queue: Queue, keys: Keys) -> None:
    (id,) = mint(1)
    enqueue(queue, id)

    assert claim(queue) == Job(id, b"work", 1, queue.name)
    assert keys.row(id)["state"] == b"active"


def test_stale(queue: Queue, server: Any) -> None:
    server.admin.script_flush()  # so that the refusal comes by way of load and repeat
    (id,) = mint(1)
    enqueue(queue, id)
    job = claim(queue)
    server.admin.script_flush()

    with pytest.raises(StaleToken) as caught:
        queue.complete(job.id, token=99)
    assert caught.value.job_id == id
    queue.complete(job)
    assert queue.state(id) is None


def test_complete(queue: Queue, keys: Keys) -> None:
    (id,) = mint(1)
    enqueue(queue, id)

    queue.complete(claim(queue))
    assert keys.row(id) == {}
    assert keys.members("active") == []
    with pytest.raises(JobGone):
        queue.complete(id, token=1)


def test_retry(queue: Queue, keys: Keys, due: Due) -> None:
    (id,) = mint(1)
    enqueue(queue, id)

    job = claim(queue)
    assert queue.retry(job, delay_ms=60_000, max_attempts=3, error="boom") == "scheduled"
    assert keys.row(id)["state"] == b"scheduled"
    assert keys.row(id)["last_error"] == b"boom"
    assert queue.promote(10) == 0
    due(id)
    assert queue.promote(10) == 1
    again = claim(queue)
    assert again.token == 2
    queue.complete(again)


def test_dead(queue: Queue, keys: Keys) -> None:
    (id,) = mint(1)
    enqueue(queue, id)

    assert queue.retry(claim(queue), delay_ms=10, max_attempts=1, error="gave up") == "dead"
    assert keys.row(id)["state"] == b"dead"
    assert keys.row(id)["last_error"] == b"gave up"
    assert keys.members("dead") == [id]
    assert keys.score("dead", id) == 0


def test_reap(queue: Queue, keys: Keys, expire: Expire) -> None:
    (id,) = mint(1)
    enqueue(queue, id)

    first = claim(queue)
    assert queue.reap() == 0
    expire(first)
    assert queue.reap() == 1
    assert keys.row(id)["state"] == b"pending"
    second = claim(queue)
    assert second.token == 2
    with pytest.raises(StaleToken):
        queue.complete(first)
    queue.complete(second)


def test_schedule(queue: Queue, keys: Keys, due: Due) -> None:
    (id,) = mint(1)

    assert queue.enqueue(b"later", job_id=id, delay_ms=30_000).admitted
    assert keys.row(id) == {"state": b"scheduled", "attempts": b"0", "payload": b"later"}
    assert queue.claim(LEASE) is None
    assert queue.promote(10) == 0
    due(id)
    assert queue.promote(10) == 1
    job = claim(queue)
    assert job == Job(id, b"later", 1, queue.name)
    queue.complete(job)


def test_backoff(queue: Queue, keys: Keys, due: Due) -> None:
    (id,) = mint(1)
    enqueue(queue, id, payload=b"poison")

    outcomes = []
    for attempt in (1, 2, 3):
        job = claim(queue)
        assert job.token == attempt
        outcomes.append(queue.retry(job, delay_ms=5000, max_attempts=3, error=f"boom {attempt}"))
        if outcomes[-1] == "scheduled":
            due(id)
            assert queue.promote(10) == 1
    assert outcomes == ["scheduled", "scheduled", "dead"]
    assert keys.row(id)["last_error"] == b"boom 3"
    assert keys.members("dead") == [id]


def test_counts(queue: Queue) -> None:
    ids = mint(5)
    enqueue(queue, *ids[:4])
    claim(queue)
    queue.enqueue(b"later", job_id=ids[4], delay_ms=60_000)

    assert queue.counts() == {
        "pending": 3,
        "active": 1,
        "schedule": 1,
        "dead": 0,
        "completed": 0,
        "failed": 0,
    }


def test_state(queue: Queue) -> None:
    claimed, scheduled, never = mint(3)
    enqueue(queue, claimed, payload=b"s")
    claim(queue)
    queue.enqueue(b"s", job_id=scheduled, delay_ms=60_000)

    assert queue.state(claimed) == "active"
    assert queue.state(scheduled) == "scheduled"
    assert queue.state(never) is None
    assert queue.job(claimed) == Row("active", 1, b"s", {})
    assert queue.job(never) is None


def test_metrics(queue: Queue) -> None:
    enqueue(queue, *mint(2))
    done, doomed = claim(queue), claim(queue)

    assert (queue.counts()["completed"], queue.counts()["failed"]) == (0, 0)
    queue.complete(done)
    assert (queue.counts()["completed"], queue.counts()["failed"]) == (1, 0)
    queue.retry(doomed, delay_ms=0, max_attempts=1, error="boom")
    assert (queue.counts()["completed"], queue.counts()["failed"]) == (1, 1)


def test_lock_extend(queue: Queue, keys: Keys, expire: Expire) -> None:
    id, never = mint(2)
    enqueue(queue, id)
    job = claim(queue)
    expire(job)

    queue.extend(job, LEASE)
    assert queue.reap() == 0
    assert keys.members("active") == [id]
    before = keys.dumped()
    with pytest.raises(StaleToken):
        queue.extend(id, LEASE, token=2)
    with pytest.raises(JobGone):
        queue.extend(never, LEASE, token=1)
    assert keys.dumped() == before


def test_stalled(queue: Queue, keys: Keys, expire: Expire) -> None:
    (id,) = mint(1)
    enqueue(queue, id)
    first = claim(queue)
    assert queue.sweep_stalled(max_stalled=2) == ([], [])
    assert "stalled" not in keys.row(id)

    expire(first)
    assert queue.sweep_stalled(max_stalled=2) == ([id], [])
    assert keys.row(id)["stalled"] == b"1"
    assert keys.row(id)["state"] == b"pending"

    second = claim(queue)
    assert second.token == 2
    expire(second)
    assert queue.sweep_stalled(max_stalled=2) == ([], [id])
    row = keys.row(id)
    assert (row["state"], row["last_error"], row["stalled"]) == (b"dead", b"stalled", b"2")
    assert keys.members("dead") == [id]
    assert queue.counts()["failed"] == 1


def test_stalled_once_is_dead_by_the_wire_default(queue: Queue, expire: Expire) -> None:
    (id,) = mint(1)
    enqueue(queue, id)
    expire(claim(queue))

    assert queue.sweep_stalled() == ([], [id])


def test_unknown_state(queue: Queue, keys: Keys) -> None:
    id, never = mint(2)
    enqueue(queue, id)
    claim(queue)
    assert keys.admin.zrem(keys.base + "active", id) == 1

    assert queue.state(id) == "unknown"
    row = queue.job(id)
    assert row is not None
    assert row.state == "active"
    assert queue.state(never) is None


def test_extend_locks_batch(queue: Queue, keys: Keys, expire: Expire) -> None:
    live, stale, gone = mint(3)
    enqueue(queue, live, stale)
    held, other = claim(queue), claim(queue)
    expire(held)
    expire(other)

    late = [other._replace(token=999), Job(gone, b"", 1, queue.name)]
    assert set(queue.extend_many([held, *late], 90_000)) == {stale, gone}
    assert keys.score("active", stale) == 1
    assert queue.reap() == 1
    assert keys.members("active") == [live]
    assert queue.extend_many([], 90_000) == []


@needs("claim_many")
def test_batch_claim(queue: Any, keys: Keys) -> None:
    ids = mint(8)
    enqueue(queue, *ids)

    jobs = queue.claim_many(4, lease_ms=LEASE)
    assert [job.id for job in jobs] == ids[:4]
    assert {job.token for job in jobs} == {1}
    assert len({keys.score("active", id) for id in ids[:4]}) == 1
    assert {keys.row(id)["state"] for id in ids[:4]} == {b"active"}


@needs("claim_many")
def test_batch_claim_short(queue: Any, keys: Keys) -> None:
    ids = mint(4)
    enqueue(queue, *ids[:3])

    assert [job.id for job in queue.claim_many(7, lease_ms=LEASE)] == ids[:3]
    assert queue.claim_many(5, lease_ms=LEASE) == []
    enqueue(queue, ids[3])
    keys.admin.hset(keys.base + "meta", "paused", "1")
    assert queue.claim_many(5, lease_ms=LEASE) == []
    assert queue.claim(LEASE) is None
    assert keys.members("pending") == [ids[3]]


@needs("claim_many")
def test_batch_partial_failure(queue: Any, keys: Keys, due: Due) -> None:
    ids = mint(3)
    enqueue(queue, *ids)
    poison, *rest = queue.claim_many(3, lease_ms=LEASE)

    with pytest.raises(StaleToken):
        queue.complete(poison.id, token=99)
    assert queue.retry(poison, delay_ms=5000, max_attempts=3, error="poison") == "scheduled"
    for job in rest:
        queue.complete(job)
    assert keys.row(ids[0])["last_error"] == b"poison"
    assert keys.row(ids[1]) == keys.row(ids[2]) == {}
    due(ids[0])
    assert queue.promote(10) == 1
    assert [(job.id, job.token) for job in queue.claim_many(5)] == [(ids[0], 2)]

"""Many jobs in one step: claimed, extended, given back."""

from __future__ import annotations

import pytest

from emq import Job, Queue
from emq.errors import ContractError, StaleToken
from emq.ids import Mint
from resp import ServerError

from .conftest import Expire, Keys
from .foreign import Node

HOUR = 3_600_000
GROUP = "PRT0EEMl9I7KXg"
LANE = f"g:{GROUP}:pending"
ID = "JOB0EEMl9I7KXg"


def calls(queue: Queue) -> int:
    return int(queue.connector.stats()["evalsha_calls"])  # type: ignore[attr-defined]


def ghosts(keys: Keys, count: int) -> None:
    mint = Mint()
    keys.admin.zadd(keys.base + "pending", {mint.mint(): 0 for _ in range(count)})


# Claim.


def test_claims_are_in_order_and_end_together(queue: Queue, keys: Keys) -> None:
    ids = [receipt.job_id for receipt in queue.enqueue_many([b"1", b"2", b"3"])]

    jobs = queue.claim_many(2, HOUR)
    assert jobs == [Job(ids[0], b"1", 1, queue.name), Job(ids[1], b"2", 1, queue.name)]
    first, second = (keys.score("active", job.id) for job in jobs)
    assert first == second
    assert keys.members("pending") == [ids[2]]
    assert keys.row(ids[1]) == {"state": b"active", "attempts": b"1", "payload": b"2"}


def test_fewer_are_claimed_where_fewer_wait(queue: Queue, keys: Keys) -> None:
    assert queue.claim_many(3) == []
    assert keys.dumped() == {}
    queue.enqueue(b"1")
    assert [job.payload for job in queue.claim_many(3)] == [b"1"]


@pytest.mark.parametrize(("count", "steps"), [(250, 1), (251, 2), (600, 3)])
def test_any_number_is_claimed_in_bounded_steps(queue: Queue, count: int, steps: int) -> None:
    queue.enqueue_many([str(n) for n in range(601)])
    queue.claim()  # loads a script
    queue.claim_many(1)
    before = calls(queue)

    jobs = queue.claim_many(count, HOUR)
    assert calls(queue) - before == steps
    assert len(jobs) == min(count, 599)
    assert [int(job.payload) for job in jobs] == list(range(2, 2 + len(jobs)))


def test_ghosts_are_dropped_and_the_jobs_behind_them_served(queue: Queue, keys: Keys) -> None:
    ghosts(keys, 350)
    ids = [receipt.job_id for receipt in queue.enqueue_many([b"1", b"2"])]

    assert [job.id for job in queue.claim_many(2)] == ids
    assert keys.members("pending") == []
    assert keys.members("active") == ids


def test_nothing_but_ghosts_is_nothing(queue: Queue, keys: Keys) -> None:
    ghosts(keys, 350)

    assert queue.claim_many(5) == []
    assert keys.dumped() == {}


def test_paused_queue_hands_out_nothing(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"1")
    queue.pause()
    before = keys.dumped()

    assert queue.claim_many(2) == []
    assert keys.dumped() == before


def test_settings_that_cannot_be_read_are_an_error(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"1")
    keys.admin.set(keys.base + "meta", "no hash")
    before = keys.dumped()

    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.claim_many(1)
    assert keys.dumped() == before


def test_ceiling_bounds_every_claim(queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([b"1", b"2", b"3", b"4", b"5"])
    queue.set_concurrency(3)
    jobs = queue.claim_many(2)
    assert len(jobs) == 2
    jobs += queue.claim_many(2)
    assert len(jobs) == 3
    before = keys.dumped()

    assert queue.claim_many(2) == []
    assert queue.claim() is None
    assert keys.dumped() == before
    assert queue.complete_and_claim(jobs[0]) is not None
    queue.set_concurrency(2)
    assert queue.complete_and_claim(jobs[1]) is None
    queue.set_concurrency(None)
    assert len(queue.claim_many(5)) == 1


def test_laned_rows_among_the_flat_ones_are_counted_in(queue: Queue, keys: Keys) -> None:
    flat = queue.enqueue(b"flat").job_id
    row = {"state": "pending", "attempts": "0", "payload": "p", "group": GROUP}
    keys.admin.hset(f"{keys.base}job:{ID}", mapping=row)
    keys.admin.zadd(keys.base + "pending", {ID: 0})

    laned, other = queue.claim_many(5)
    assert laned == Job(ID, b"p", 1, queue.name, GROUP)
    assert other == Job(flat, b"flat", 1, queue.name)
    assert keys.admin.hget(keys.base + "gactive", GROUP) == b"1"


def test_entry_that_is_no_jobs_breaks_the_contract_and_is_leased(queue: Queue, keys: Keys) -> None:
    keys.admin.hset(f"{keys.base}job:whatever", "payload", "p")
    keys.admin.zadd(keys.base + "pending", {"whatever": 0})

    with pytest.raises(ContractError):
        queue.claim_many(2)
    assert keys.members("active") == ["whatever"]


# Give back.


def test_given_back_jobs_wait_again_in_their_old_places(queue: Queue, keys: Keys) -> None:
    ids = [receipt.job_id for receipt in queue.enqueue_many([b"1", b"2", b"3", b"4"])]
    jobs = queue.claim_many(3, HOUR)

    assert queue.give_back([jobs[2], (jobs[0].id, jobs[0].token)]) == []
    assert keys.members("pending") == [ids[0], ids[2], ids[3]]
    assert keys.members("active") == [ids[1]]
    assert keys.score("pending", ids[0]) == 0
    assert keys.row(ids[0]) == {
        "state": b"pending",
        "attempts": b"1",
        "payload": b"1",
        "excused": b"1",
    }
    again = queue.claim()
    assert again == Job(ids[0], b"1", 2, queue.name, None, 1)
    assert again.attempt == 1


def test_claims_that_were_given_back_are_no_attempts(queue: Queue) -> None:
    queue.enqueue(b"p")
    for _ in range(5):
        queue.give_back(queue.claim_many(1))
    [job] = queue.claim_many(1)

    assert (job.token, job.attempt) == (6, 1)
    assert queue.retry(job, delay_ms=0, max_attempts=2, error="e") == "scheduled"
    queue.promote()
    [job] = queue.claim_many(1)
    assert job.attempt == 2
    assert queue.retry(job, delay_ms=0, max_attempts=2, error="e") == "dead"


def test_jobs_that_are_not_held_are_told_and_left(queue: Queue, keys: Keys, expire: Expire) -> None:
    queue.enqueue_many([b"1", b"2", b"3", b"4"])
    reaped, settled, held, twice = queue.claim_many(4, HOUR)
    expire(reaped)
    queue.reap()
    queue.retry(settled, delay_ms=HOUR, max_attempts=5, error="e")
    stale = held._replace(token=held.token + 1)
    never = Job(ID, b"", 0, queue.name)
    before = keys.dumped()

    lost = [reaped, settled, stale, never, Job(ID, b"", 1, queue.name)]
    assert queue.give_back(lost) == [job.id for job in lost]
    assert keys.dumped() == before
    assert queue.give_back([twice, twice]) == [twice.id]
    with pytest.raises(StaleToken):
        queue.extend(twice, HOUR)


def test_laned_job_goes_back_to_its_lane(queue: Queue, keys: Keys) -> None:
    node = Node(keys.admin, keys.base)
    node.limit(GROUP, 1)
    node.enqueue(GROUP, ID, "p")
    claimed = node.claim(HOUR)
    assert claimed == (ID, 1)
    assert keys.admin.hget(keys.base + "gactive", GROUP) == b"1"
    keys.admin.delete(keys.base + "wake")

    assert queue.give_back([(ID, 1)]) == []
    assert keys.members(LANE) == [ID]
    assert keys.members("pending") == []
    assert keys.admin.hgetall(keys.base + "gactive") == {}
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == [GROUP.encode()]
    assert keys.admin.lrange(keys.base + "wake", 0, -1) == [b"1"]
    assert node.claim(HOUR) == (ID, 2)


@pytest.mark.parametrize("count", [0, 1, 500, 1_001])
def test_any_number_is_given_back(queue: Queue, count: int) -> None:
    queue.enqueue_many([b"p"] * count)
    jobs = queue.claim_many(count) if count else []

    assert queue.give_back(iter(jobs)) == []
    assert queue.counts()["pending"] == count


# Excused attempts.


def test_stalls_are_no_failures(queue: Queue, expire: Expire) -> None:
    queue.enqueue(b"p")
    for stalls in range(3):
        [job] = queue.claim_many(1)
        assert (job.token, job.excused, job.attempt) == (stalls + 1, stalls, 1)
        expire(job)
        queue.sweep_stalled(5)
    [job] = queue.claim_many(1)

    assert job.excused == 3
    assert queue.retry(job, delay_ms=0, max_attempts=2, error="e") == "scheduled"


def test_reaped_claims_are_attempts(queue: Queue, expire: Expire) -> None:
    """The wire's own reap does not count stalls, so nothing says that its claims were none."""
    queue.enqueue(b"p")
    [job] = queue.claim_many(1)
    expire(job)
    queue.reap()
    [job] = queue.claim_many(1)

    assert job.attempt == 2

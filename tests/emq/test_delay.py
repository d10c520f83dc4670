"""Jobs that are put off by who holds them."""

from __future__ import annotations

import pytest

from emq import Job, Queue
from emq.errors import JobGone, StaleToken

from .conftest import Due, Expire, Keys
from .foreign import Node
from .snapshot import now_ms

HOUR = 3_600_000
GROUP = "PRT0EEMl9I7KXg"
ID = "JOB0EEMl9I7KXg"


def claim(queue: Queue) -> Job:
    job = queue.claim(HOUR)
    assert job is not None
    return job


def test_delayed_job_falls_due_later(queue: Queue, keys: Keys, due: Due) -> None:
    queue.enqueue(b"p")
    job = claim(queue)

    queue.delay(job, HOUR)
    assert keys.members("active") == []
    score = keys.score("schedule", job.id)
    assert score is not None
    assert abs(score - now_ms(keys.admin) - HOUR) < 2_000
    assert keys.row(job.id) == {"state": b"scheduled", "attempts": b"1", "payload": b"p"}
    due(job.id)
    assert queue.promote() == 1
    assert claim(queue) == Job(job.id, b"p", 2, queue.name)


@pytest.mark.parametrize("at_ms", [0, 1_750_000_000_005, 2**53])
def test_due_time_is_kept_to_the_ms(queue: Queue, keys: Keys, at_ms: int) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    queue.delay(job.id, run_at_ms=at_ms, token=job.token)

    assert keys.score("schedule", job.id) == at_ms


def test_delay_is_an_attempt_unless_it_is_excused(queue: Queue, due: Due) -> None:
    queue.enqueue(b"p")
    for excuse, attempt in ((True, 1), (False, 1), (True, 2), (False, 2)):
        job = claim(queue)
        assert job.attempt == attempt
        queue.delay(job, HOUR, excuse=excuse)
        due(job.id)
        queue.promote()
    job = claim(queue)

    assert (job.token, job.excused, job.attempt) == (5, 2, 3)
    assert queue.retry(job, delay_ms=0, max_attempts=4, error="e") == "scheduled"


def test_delay_needs_one_end(queue: Queue) -> None:
    with pytest.raises(ValueError, match="needs its end"):
        queue.delay(ID, token=1)
    with pytest.raises(ValueError, match="exclude each other"):
        queue.delay(ID, 1, run_at_ms=1, token=1)


def test_delay_is_refused_to_who_does_not_hold_the_job(
    queue: Queue, keys: Keys, expire: Expire
) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    for error, held in (
        (StaleToken, job._replace(token=2)),
        (StaleToken, job._replace(token=0)),
        (JobGone, Job(ID, b"", 1, queue.name)),
    ):
        before = keys.dumped()
        with pytest.raises(error):
            queue.delay(held, HOUR)
        assert keys.dumped() == before
    queue.delay(job, HOUR)
    before = keys.dumped()
    with pytest.raises(StaleToken) as caught:
        queue.delay(job, HOUR)
    assert caught.value.detail == "EMQSTALE delay state moved on"
    assert keys.dumped() == before


def test_reaped_job_is_put_off_too_and_is_in_one_place(
    queue: Queue, keys: Keys, expire: Expire
) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    expire(job)
    queue.reap()

    queue.delay(job, HOUR)
    assert (keys.members("pending"), keys.members("schedule")) == ([], [job.id])


def test_delayed_job_of_a_lane_is_counted_out_and_comes_back_to_it(
    queue: Queue, keys: Keys, due: Due
) -> None:
    node = Node(keys.admin, keys.base)
    node.limit(GROUP, 1)
    node.enqueue(GROUP, ID, "p")
    node.enqueue(GROUP, "JOB0EEMl9I7KXh", "p")
    assert node.claim(HOUR) == (ID, 1)

    queue.delay(ID, HOUR, token=1)
    assert keys.admin.hgetall(keys.base + "gactive") == {}
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == [GROUP.encode()]
    due(ID)
    assert queue.promote() == 1
    assert ID in keys.members(f"g:{GROUP}:pending")

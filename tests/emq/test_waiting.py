"""A job's outcome: who keeps it, for how long, and how one waits for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from emq import Item, Job, Queue, waiting
from emq.errors import JobGone
from emq.job import Outcome
from resp import TransportError

from .conftest import Due, Expire, Keys, Queues
from .shells import Shell

HOUR = 3_600_000
ID = "JOB0EEMl9I7KXg"
SOON = 20.0  # nothing in this file takes that long


def claim(queue: Queue) -> Job:
    job = queue.claim(HOUR)
    assert job is not None
    return job


def fail(queue: Queue, job: Job, most: int = 1) -> None:
    queue.retry(job, delay_ms=HOUR, max_attempts=most, error="boom")


def kept(keys: Keys, job_id: str) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = keys.admin.hgetall(f"{keys.base}job:{job_id}:result")
    return fields


def ttl(keys: Keys, job_id: str) -> int:
    return int(keys.admin.pttl(f"{keys.base}job:{job_id}:result"))


# What is kept.


def test_nothing_is_kept_by_default(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", dedup="k", max_attempts=3, headers={"a": "b"})
    job = claim(queue)
    queue.log(job, "line")
    queue.lock(job, HOUR)
    queue.progress(job, "50")
    queue.complete(job, b"result")

    assert list(keys.dumped()) == [f"{keys.base}metrics:completed".encode()]
    with pytest.raises(JobGone) as caught:
        queue.wait(job.id, 0)
    assert caught.value.job_id == job.id


@pytest.mark.parametrize("result", [None, b"", b"\x00\xff", "text \u00e9"])
@pytest.mark.parametrize("asked", ["enqueue", "enqueue_many", "complete", "complete_and_claim"])
def test_outcome_is_kept_for_who_asked(queue: Queue, keys: Keys, asked: str, result: Any) -> None:
    ask = None if asked.startswith("enqueue") else HOUR
    if asked == "enqueue_many":
        queue.enqueue_many([Item(b"p", result_ttl_ms=HOUR)])
    else:
        queue.enqueue(b"p", result_ttl_ms=HOUR if asked == "enqueue" else None)
    job = claim(queue)
    if asked == "complete_and_claim":
        queue.complete_and_claim(job, result=result, result_ttl_ms=ask)
    else:
        queue.complete(job, result, result_ttl_ms=ask)

    want = result.encode() if isinstance(result, str) else result
    assert queue.wait(job.id) == Outcome("completed", want)
    assert kept(keys, job.id) == {b"state": b"completed"} | (
        {} if want is None else {b"result": want}
    )
    assert HOUR - 10_000 < ttl(keys, job.id) <= HOUR
    assert queue.state(job.id) is None
    assert queue.job(job.id) is None


def test_worker_can_keep_it_longer_than_the_producer_asked(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", result_ttl_ms=10_000)
    job = claim(queue)
    queue.complete(job, b"r", result_ttl_ms=HOUR)

    assert ttl(keys, job.id) > 10_000


@pytest.mark.parametrize("verb", ["retry", "sweep"])
def test_death_is_an_outcome(queue: Queue, keys: Keys, expire: Expire, verb: str) -> None:
    queue.enqueue(b"p", result_ttl_ms=HOUR)
    job = claim(queue)
    if verb == "retry":
        fail(queue, job)
    else:
        expire(job)
        queue.sweep_stalled(1)

    error = "boom" if verb == "retry" else "stalled"
    assert queue.wait(job.id) == Outcome("dead", None, error)
    assert kept(keys, job.id) == {b"state": b"dead", b"error": error.encode()}
    assert 0 < ttl(keys, job.id) <= HOUR
    queue.remove(job.id)
    with pytest.raises(JobGone):
        queue.wait(job.id, 0)
    assert kept(keys, job.id) == {}


def test_morgue_tells_of_a_death_that_was_kept_by_nobody(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    queue.retry(job, delay_ms=0, max_attempts=1, error=b"\xff boom")

    assert queue.wait(job.id, 0) == Outcome("dead", None, "\udcff boom")
    assert kept(keys, job.id) == {}


def test_attempts_that_are_not_the_last_are_no_outcome(queue: Queue, keys: Keys, due: Due) -> None:
    queue.enqueue(b"p", result_ttl_ms=HOUR)
    job = claim(queue)
    fail(queue, job, most=2)
    assert queue.wait(job.id, 0) is None
    due(job.id)
    queue.promote()
    job = claim(queue)
    assert queue.wait(job.id, 0) is None
    assert kept(keys, job.id) == {}
    queue.complete(job, b"r")
    assert queue.wait(job.id, 0) == Outcome("completed", b"r")


# Earlier lives of the same id.


def test_outcome_of_an_earlier_life_is_not_this_ones(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", job_id=ID, result_ttl_ms=HOUR)
    queue.complete(claim(queue), b"first")
    queue.enqueue(b"p", job_id=ID)

    assert queue.wait(ID, 0) is None
    job = claim(queue)
    assert queue.wait(ID, 0) is None
    queue.complete(job)
    with pytest.raises(JobGone):
        queue.wait(ID, 0)
    assert kept(keys, ID) == {}


def test_reprocessed_job_is_waited_for_again(queue: Queue) -> None:
    queue.enqueue(b"p", job_id=ID, result_ttl_ms=HOUR)
    fail(queue, claim(queue))
    assert queue.wait(ID, 0) == Outcome("dead", None, "boom")
    queue.reprocess(ID)

    assert queue.wait(ID, 0) is None
    queue.complete(claim(queue), b"r")
    assert queue.wait(ID, 0) == Outcome("completed", b"r")


# Waiting.


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def listeners(keys: Keys, job_id: str) -> int:
    [(_, count)] = keys.admin.pubsub_numsub(f"{keys.base}job:{job_id}:result")
    return int(count)


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < ends, "it never came so far"
        time.sleep(0.002)


def waiting_for(
    pool: ThreadPoolExecutor, shell: Shell, queue: Queue, keys: Keys, job_id: str, many: int = 1
) -> list[Future[Outcome | None]]:
    """Calls that wait: where there are messages, each has subscribed."""
    calls = [pool.submit(queue.wait, job_id, SOON) for _ in range(many)]
    if shell.protocol == 3:
        until(lambda: listeners(keys, job_id) >= 1)
    return calls


Act = Callable[[Queue, Job], Any]
ENDS: dict[str, tuple[Act, Outcome]] = {
    "completed": (lambda q, job: q.complete(job, b"r"), Outcome("completed", b"r")),
    "fused": (lambda q, job: q.complete_and_claim(job), Outcome("completed")),
    "dead": (lambda q, job: fail(q, job), Outcome("dead", None, "boom")),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("many", [1, 3])
def test_end_is_heard_while_waiting(
    pool: ThreadPoolExecutor, shell: Shell, queue: Queue, keys: Keys, end: str, many: int
) -> None:
    job_id = queue.enqueue(b"p", result_ttl_ms=HOUR).job_id
    job = claim(queue)
    calls = waiting_for(pool, shell, queue, keys, job_id, many)
    act, outcome = ENDS[end]
    started = time.monotonic()
    act(queue, job)

    assert [call.result(SOON) for call in calls] == [outcome] * many
    assert time.monotonic() - started < 2.5, "it was found by looking, not by listening"
    until(lambda: listeners(keys, job_id) == 0)


@pytest.mark.parametrize("how", ["remove", "drain", "obliterate"])
def test_removal_is_heard_while_waiting(
    pool: ThreadPoolExecutor, shell: Shell, queue: Queue, keys: Keys, how: str
) -> None:
    job_id = queue.enqueue(b"p", result_ttl_ms=HOUR).job_id
    [call] = waiting_for(pool, shell, queue, keys, job_id)
    started = time.monotonic()
    if how == "remove":
        queue.remove(job_id)
    elif how == "drain":
        queue.drain()
    else:
        queue.pause()
        queue.obliterate()

    with pytest.raises(JobGone):
        call.result(SOON)
    assert time.monotonic() - started < 2.5


def test_unknown_job_is_gone(queue: Queue) -> None:
    for timeout in (None, 0, 5):
        with pytest.raises(JobGone):
            queue.wait(ID, timeout)


@pytest.mark.parametrize("timeout", [0, 0.0, 0.02])
def test_time_is_up(queue: Queue, timeout: float) -> None:
    job_id = queue.enqueue(b"p", result_ttl_ms=HOUR).job_id
    started = time.monotonic()

    assert queue.wait(job_id, timeout) is None
    assert timeout <= time.monotonic() - started < 2


@pytest.mark.parametrize("timeout", [None, math.inf, 5])
def test_outcome_that_is_there_is_answered_at_once(queue: Queue, timeout: float | None) -> None:
    queue.enqueue(b"p", result_ttl_ms=HOUR)
    job = claim(queue)
    queue.complete(job, b"r")

    assert queue.wait(job.id, timeout) == Outcome("completed", b"r")


def test_time_that_is_up_leaves_the_connection_in_order(queue: Queue, keys: Keys) -> None:
    job_id = queue.enqueue(b"p", result_ttl_ms=HOUR).job_id
    for _ in range(5):
        assert queue.wait(job_id, 0.001) is None
    queue.complete(claim(queue), b"r")

    assert queue.wait(job_id) == Outcome("completed", b"r")
    until(lambda: listeners(keys, job_id) == 0)


def test_lost_message_is_made_up_for_by_looking(
    queue: Queue, keys: Keys, pool: ThreadPoolExecutor, shell: Shell, monkeypatch: Any
) -> None:
    monkeypatch.setattr(waiting, "_LOOK_S", 0.05)
    job_id = queue.enqueue(b"p", job_id=ID).job_id  # keeps no outcome, so its end is not told
    [call] = waiting_for(pool, shell, queue, keys, job_id)
    queue.complete(claim(queue))

    with pytest.raises(JobGone):
        call.result(SOON)


@pytest.mark.parametrize("kind", ["threads", "aio"])
def test_connection_that_is_lost_while_waiting_is_made_anew(
    server: Any, fresh_name: str, keys: Keys, pool: ThreadPoolExecutor, kind: str
) -> None:
    shell = Shell(kind, 3, server.url)
    try:
        queue = shell.queue(fresh_name)
        job_id = queue.enqueue(b"p", result_ttl_ms=HOUR).job_id
        job = claim(queue)
        [call] = waiting_for(pool, shell, queue, keys, job_id)
        for client in server.admin.client_list():
            if int(client["sub"]):
                server.admin.client_kill_filter(_id=client["id"])
        until(lambda: listeners(keys, job_id) == 1 or call.done())
        queue.complete(job, b"r")

        assert call.result(SOON) == Outcome("completed", b"r")
    finally:
        shell.close()


@pytest.mark.parametrize("kind", ["threads", "aio"])
def test_server_that_is_gone_is_an_error(
    server: Any, fresh_name: str, pool: ThreadPoolExecutor, kind: str
) -> None:
    shell = Shell(kind, 3, server.url)
    queue = shell.queue(fresh_name)
    job_id = queue.enqueue(b"p", result_ttl_ms=HOUR).job_id
    shell.close() if kind == "threads" else shell.connector.close()
    with pytest.raises(TransportError):
        queue.wait(job_id, 1)
    if kind == "aio":
        shell.close()


def test_queues_of_other_names_keep_apart(queues: Queues) -> None:
    mine, other = queues("-a"), queues("-b")
    for queue in (mine, other):
        queue.enqueue(b"p", job_id=ID, result_ttl_ms=HOUR)
    mine.complete(claim(mine), b"r")

    assert other.wait(ID, 0) is None
    assert mine.wait(ID, 0) == Outcome("completed", b"r")

"""Deduplication keys: one job at a time may hold one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from emq import Item, Job, Queue, Receipt
from emq.errors import ContractError, WrongKind
from emq.ids import Mint

from .conftest import Expire, Keys

HOUR = 3_600_000
ID = "JOB0EEMl9I7KXg"
SECOND = "JOB0EEMl9I7KXh"


def claim(queue: Queue) -> Job:
    job = queue.claim(HOUR)
    assert job is not None
    return job


def test_a_key_admits_one_job(queue: Queue, keys: Keys) -> None:
    first = queue.enqueue(b"one", dedup="k")
    before = keys.dumped()

    assert first.admitted
    assert queue.enqueue(b"two", dedup="k") == Receipt(first.job_id, False)
    assert queue.enqueue(b"two", dedup="k", job_id=SECOND, delay_ms=5) == (first.job_id, False)
    assert keys.dumped() == before
    assert queue.dedup("k") == first.job_id
    assert queue.dedup("other") is None
    assert queue.enqueue(b"two", dedup="other").admitted


def test_the_holders_own_id_is_a_repeated_id(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"one", dedup="k", job_id=ID)
    before = keys.dumped()

    assert queue.enqueue(b"one", dedup="k", job_id=ID) == Receipt(ID, False)
    assert queue.enqueue(b"one", job_id=ID) == Receipt(ID, False)
    assert keys.dumped() == before


def test_items_of_one_bulk_exclude_each_other(queue: Queue, keys: Keys) -> None:
    held = queue.enqueue(b"held", dedup="held").job_id
    one, two, three, four, five = queue.enqueue_many(
        [
            Item(b"1", dedup="k"),
            Item(b"2", dedup="k"),
            b"3",
            Item(b"4", dedup="held", job_id=SECOND),
            Item(b"5", dedup="m", delay_ms=HOUR),
        ]
    )

    assert [r.admitted for r in (one, two, three, four, five)] == [True, False, True, False, True]
    assert (two.job_id, four.job_id) == (one.job_id, held)
    assert queue.state(SECOND) is None
    assert queue.dedup("m") == five.job_id
    assert keys.members("pending") == sorted([held, one.job_id, three.job_id])


def test_minted_ids_that_clash_are_minted_again_beside_holders(queue: Queue, queues: Any) -> None:
    taken, other, fresh = (Mint().mint() for _ in range(3))
    queue.enqueue(b"p", job_id=taken, dedup="k")
    ids = iter([taken, other, fresh])

    class Steered(Mint):
        def mint(self) -> str:
            return next(ids)

    receipts = queues(mint=Steered()).enqueue_many([b"q", Item(b"r", dedup="k")])
    assert receipts == [Receipt(fresh, True), Receipt(taken, False)]


ENDS: dict[str, Callable[[Queue, Job], Any]] = {
    "complete": lambda q, job: q.complete(job),
    "complete_and_claim": lambda q, job: q.complete_and_claim(job),
    "retry": lambda q, job: q.retry(job, delay_ms=0, max_attempts=1, error="e"),
    "remove": lambda q, job: q.remove(job.id),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_key_is_free_when_its_job_has_ended(queue: Queue, end: str) -> None:
    queue.enqueue(b"p", dedup="k")
    job = claim(queue)
    assert queue.dedup("k") == job.id

    ENDS[end](queue, job)
    assert queue.dedup("k") is None
    assert queue.enqueue(b"q", dedup="k").admitted


def test_a_key_is_free_when_its_job_stalled_to_death(queue: Queue, expire: Expire) -> None:
    queue.enqueue(b"p", dedup="k")
    expire(claim(queue))
    queue.sweep_stalled(2)
    assert queue.dedup("k") is not None
    expire(claim(queue))
    queue.sweep_stalled(2)

    assert queue.dedup("k") is None


@pytest.mark.parametrize("delay_ms", [None, HOUR])
def test_a_key_is_free_when_its_job_was_drained(queue: Queue, delay_ms: int | None) -> None:
    queue.enqueue(b"p", dedup="k", delay_ms=delay_ms)
    queue.drain(include_schedule=True)

    assert queue.dedup("k") is None


@pytest.mark.parametrize("verb", ["retry", "delay", "give_back", "reap"])
def test_a_key_is_held_between_attempts(queue: Queue, expire: Expire, verb: str) -> None:
    queue.enqueue(b"p", dedup="k")
    job = claim(queue)
    if verb == "retry":
        queue.retry(job, delay_ms=HOUR, max_attempts=2, error="e")
    elif verb == "delay":
        queue.delay(job, HOUR)
    elif verb == "give_back":
        queue.give_back([job])
    else:
        expire(job)
        queue.reap()

    assert queue.enqueue(b"q", dedup="k") == Receipt(job.id, False)


def test_a_key_is_free_after_its_time_and_not_taken_from_the_next(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", dedup="k", dedup_ttl_ms=HOUR)
    assert 0 < keys.admin.pttl(f"{keys.base}de:k") <= HOUR
    job = claim(queue)
    keys.admin.delete(f"{keys.base}de:k")  # its time is up

    second = queue.enqueue(b"q", dedup="k")
    assert second.admitted
    assert keys.admin.pttl(f"{keys.base}de:k") == -1
    queue.complete(job)
    assert queue.dedup("k") == second.job_id


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_one_job_leaves_the_key_of_another(queue: Queue, keys: Keys, end: str) -> None:
    queue.enqueue(b"p", dedup="k")
    job = claim(queue)
    keys.admin.set(f"{keys.base}de:k", SECOND)

    ENDS[end](queue, job)
    assert queue.dedup("k") == SECOND


def test_a_key_whose_job_is_gone_holds_nothing(queue: Queue, keys: Keys) -> None:
    keys.admin.set(f"{keys.base}de:k", SECOND)

    receipt = queue.enqueue(b"p", dedup="k")
    assert receipt.admitted
    assert queue.dedup("k") == receipt.job_id


def test_remove_frees_a_key_that_another_make_wrote(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", job_id=ID)
    queue.enqueue(b"p", job_id=SECOND)
    keys.admin.mset({f"{keys.base}de:a": ID, f"{keys.base}de:b": SECOND})

    queue.remove(ID, dedup="b")
    assert queue.dedup("b") == SECOND
    queue.remove(SECOND, dedup="b")
    assert queue.dedup("b") is None
    assert queue.dedup("a") == ID


def test_reprocessed_job_does_not_take_the_key_back(queue: Queue) -> None:
    queue.enqueue(b"p", dedup="k")
    job = claim(queue)
    queue.retry(job, delay_ms=0, max_attempts=1, error="e")
    second = queue.enqueue(b"q", dedup="k").job_id
    queue.reprocess(job.id)

    assert queue.dedup("k") == second
    queue.complete(claim(queue))
    assert queue.dedup("k") == second


@pytest.mark.parametrize("holder", ["ORD0EEMl9I7KXg", "whoever", ""])
def test_holder_that_is_no_job_breaks_the_contract(queue: Queue, keys: Keys, holder: str) -> None:
    keys.admin.set(f"{keys.base}de:k", holder)
    keys.admin.hset(f"{keys.base}job:{holder}", "state", "odd")

    for ask in (
        lambda: queue.enqueue(b"p", dedup="k"),
        lambda: queue.enqueue_many([Item(b"p", dedup="k")]),
        lambda: queue.dedup("k"),
    ):
        with pytest.raises(ContractError):
            ask()


def test_wrong_kind_is_refused_before_the_key_is_looked_at(queue: Queue) -> None:
    with pytest.raises(WrongKind):
        queue.enqueue(b"p", dedup="k", job_id="ORD0EEMl9I7KXg")

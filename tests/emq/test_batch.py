"""When a batch is taken, what its handler's answer says, and what became of its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emq import Queue
from emq.batch import (
    WAIT,
    Done,
    Flush,
    Partition,
    Shaper,
    Verdict,
    Window,
    partition,
    verdicts,
)
from emq.job import Job
from emq.work import Delay, Discard, Retry

from .conftest import Due


@pytest.mark.parametrize(
    ("least", "depth", "elapsed_ms", "decision"),
    [
        (4, 3, 0, WAIT),
        (4, 6, 0, Flush(6)),
        (4, 4, 0, Flush(4)),
        (5, 2, 199, WAIT),
        (5, 2, 200, Flush(2)),
        (5, 0, 200, WAIT),
        (1, 0, 0, WAIT),
        (1, 1, 0, Flush(1)),
    ],
)
def test_a_batch_is_taken_when_it_is_large_enough_or_has_waited(
    least: int, depth: int, elapsed_ms: int, decision: object
) -> None:
    assert Shaper(least, 200).decide(depth, elapsed_ms) == decision


def test_a_batch_can_be_bounded() -> None:
    shaper = Shaper(2, 200, max_size=3)
    assert shaper.decide(10, 0) == Flush(3)
    assert shaper.decide(2, 0) == Flush(2)


@pytest.mark.parametrize(
    "numbers", [(0, 200), (1, 0), (True, 200), (1.5, 200), (1, 200, 0), (5, 200, 4)]
)
def test_numbers_out_of_range_are_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"min_size|timeout_ms|max_size"):
        Shaper(*numbers)


def test_a_window_opens_with_the_first_job_and_not_before() -> None:
    window = Window(Shaper(5, 200))
    assert window.left_ms(0) is None
    assert window.look(0, 0) is WAIT
    # Long after the queue was first seen empty: the floor still holds.
    assert window.look(2, 10_000) is WAIT
    assert window.left_ms(10_150) == 50
    assert window.look(2, 10_199) is WAIT
    assert window.look(3, 10_200) == Flush(3)
    assert window.left_ms(10_200) is None
    # What comes next waits anew.
    assert window.look(2, 10_201) is WAIT
    assert window.look(0, 10_300) is WAIT
    assert window.look(2, 10_402) is WAIT
    assert window.left_ms(11_000) == 0
    assert window.look(5, 10_403) == Flush(5)


JOBS = ["a", "b", "c"]


def told(verdict: Verdict) -> tuple[Any, ...]:
    """A verdict as a value that compares."""
    if isinstance(verdict, Done):
        return ("done", verdict.result)
    return (type(verdict), *verdict.args)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (None, ("done", None)),
        (True, ("done", None)),
        ("ok", ("done", None)),
        (Done(b"r"), ("done", b"r")),
        (("ok", b"r"), ("done", b"r")),
        (("error", "poison"), (Retry, None, "poison")),
        (["error", 5], (Retry, None, "5")),
        (("error", ValueError("v")), (ValueError, "v")),
        (KeyError("k"), (KeyError, "k")),
        (Retry(10, "later"), (Retry, 10, "later")),
        (Discard("no"), (Discard, "no")),
        (Delay(40), (Delay, 40)),
        (("delay", 40), (Delay, 40)),
        (("delay", -1), (Retry, None, "bad verdict: tuple")),
        (("delay", "40"), (Retry, None, "bad verdict: tuple")),
        (("delay", True), (Retry, None, "bad verdict: tuple")),
        (("nonsense", 1), (Retry, None, "bad verdict: tuple")),
        ((1, 2), (Retry, None, "bad verdict: tuple")),
        ((), (Retry, None, "bad verdict: tuple")),
        (False, (Retry, None, "bad verdict: bool")),
        ("nope", (Retry, None, "bad verdict: str")),
        (b"ok", (Retry, None, "bad verdict: bytes")),
        (object(), (Retry, None, "bad verdict: object")),
    ],
)
def test_a_verdict_is_read(answer: object, verdict: tuple[Any, ...]) -> None:
    assert told(verdicts(["a"], {"a": answer})["a"]) == verdict


def test_what_was_left_out_is_retried_and_what_is_of_no_batch_is_left_out() -> None:
    read = verdicts(JOBS, {"c": "ok", "b": ("error", "poison"), "z": "ok"})

    assert list(read) == JOBS
    assert [told(verdict) for verdict in read.values()] == [
        (Retry, None, "missing verdict"),
        (Retry, None, "poison"),
        ("done", None),
    ]


@pytest.mark.parametrize(
    ("answer", "kind"), [(None, "NoneType"), (["secret"], "list"), ("ok", "str"), (3, "int")]
)
def test_an_answer_that_is_no_mapping_has_all_retried(answer: object, kind: str) -> None:
    read = verdicts(JOBS, answer)

    assert list(read) == JOBS
    assert {told(verdict) for verdict in read.values()} == {(Retry, None, f"bad verdict: {kind}")}


def test_an_exception_is_the_verdict_on_all() -> None:
    error = RuntimeError("boom")
    assert verdicts(JOBS, error) == dict.fromkeys(JOBS, error)


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Broken(Mapping[str, object]):
    def __getitem__(self, key: str) -> object:
        raise RuntimeError("no item")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no iteration")

    def __len__(self) -> int:
        raise RuntimeError("no length")


def test_no_answer_makes_it_raise() -> None:
    assert told(verdicts(["a"], Broken())["a"]) == (RuntimeError, "no item")
    read = verdicts(["a"], {"a": ("error", Unprintable())})
    assert told(read["a"]) == (Retry, None, "its reason cannot be had: RuntimeError")


def test_a_batch_is_sorted_by_what_became_of_it() -> None:
    ids = ["done", "sched", "dead", "delayed", "omitted", "refused"]
    read = verdicts(
        ids,
        {
            "done": "ok",
            "sched": ("error", "s"),
            "dead": ("error", "d"),
            "delayed": ("delay", 30),
            "refused": "ok",
        },
    )
    outcomes = {
        "done": "completed",
        "sched": "scheduled",
        "dead": "dead",
        "delayed": "delayed",
        "omitted": "scheduled",
        "refused": ValueError("stale"),
    }

    assert partition(ids, read, outcomes) == Partition(
        completed=["done"],
        delayed=["delayed"],
        dead=["dead"],
        retried=["sched", "omitted", "refused"],
    )
    assert partition(ids, read, {}).retried == ids
    assert partition(ids, {}, outcomes).retried == ids


_verdicts = st.sampled_from([Done(), Retry(), Discard(), Delay(1), ValueError()])
_outcomes = st.sampled_from(["completed", "scheduled", "dead", "delayed", ValueError(), None, 7])


@given(
    st.lists(st.text(max_size=2), unique=True),
    st.dictionaries(st.text(max_size=2), _verdicts),
    st.dictionaries(st.text(max_size=2), _outcomes),
)
def test_a_partition_is_a_permutation_in_order(
    ids: list[str], read: dict[str, Verdict], outcomes: dict[str, object]
) -> None:
    parts = partition(ids, read, outcomes)

    assert sorted(id for part in parts for id in part) == sorted(ids)
    for part in parts:
        assert part == [id for id in ids if id in part]
    assert all(isinstance(read[id], Done) for id in parts.completed)


def settled(queue: Queue, jobs: list[Job], answer: object, most: dict[str, int]) -> Partition:
    """Settle a batch as its handler said, and sort it."""
    read = verdicts([job.id for job in jobs], answer)
    outcomes: dict[str, object] = {}
    for job in jobs:
        verdict = read[job.id]
        if isinstance(verdict, Done):
            queue.complete(job, verdict.result)
            outcomes[job.id] = "completed"
        elif isinstance(verdict, Delay):
            queue.delay(job, verdict.delay_ms)
            outcomes[job.id] = "delayed"
        else:
            assert isinstance(verdict, Retry)
            outcomes[job.id] = queue.retry(
                job,
                delay_ms=60_000,
                max_attempts=most.get(job.id, 5),
                error=str(verdict.reason),
            )
    return partition([job.id for job in jobs], read, outcomes)


def test_the_floor_on_a_server(queue: Queue) -> None:
    receipts = queue.enqueue_many([b"%d" % n for n in range(6)])
    decision = Shaper(4, 200).decide(queue.counts()["pending"], 0)
    assert decision == Flush(6)
    assert isinstance(decision, Flush)
    jobs = queue.claim_many(decision.size)

    assert [(job.id, job.token) for job in jobs] == [(each.job_id, 1) for each in receipts]
    parts = settled(queue, jobs, {job.id: "ok" for job in jobs}, {})
    assert parts.completed == [each.job_id for each in receipts]
    assert queue.counts()["pending"] == queue.counts()["active"] == 0


def test_a_part_of_a_batch_that_fails_is_retried_alone(queue: Queue, due: Due) -> None:
    queue.enqueue_many([b"1", b"2", b"3"])
    jobs = queue.claim_many(3)
    first, second, third = (job.id for job in jobs)
    parts = settled(queue, jobs, {first: ("error", "poison"), second: "ok"}, {})

    assert parts == Partition([second], [], [], [first, third])
    assert queue.job(second) is None
    for id, reason in ((first, "poison"), (third, "missing verdict")):
        row = queue.job(id)
        assert row is not None
        assert (row.state, row.fields["last_error"]) == ("scheduled", reason)
        due(id)
    assert queue.promote() == 2
    assert [(job.id, job.token) for job in queue.claim_many(5)] == [(first, 2), (third, 2)]


def test_the_parts_of_a_batch_are_where_it_says(queue: Queue) -> None:
    queue.enqueue_many([b"%d" % n for n in range(5)])
    jobs = queue.claim_many(5)
    done, sched, dead, delayed, omitted = (job.id for job in jobs)
    answer = {
        done: "ok",
        sched: ("error", "s"),
        dead: ("error", "d"),
        delayed: ("delay", 60_000),
    }

    assert settled(queue, jobs, answer, {dead: 1}) == Partition(
        [done], [delayed], [dead], [sched, omitted]
    )
    assert [queue.state(job.id) for job in jobs] == [
        None,
        "scheduled",
        "dead",
        "scheduled",
        "scheduled",
    ]

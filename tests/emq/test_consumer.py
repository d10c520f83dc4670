"""What both consumers promise, each with functions and with coroutine functions."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

import pytest

import emq
from emq import Queue
from emq.aio_consumer import AsyncConsumer
from emq.backoff import exponential, fixed
from emq.consumer import Consumer
from emq.job import Item
from emq.work import Delay, Discard, JsonCodec, Retry

from .conftest import Due, Expire, Keys
from .workers import KINDS, PATIENCE_S, Gate, Worker, until

_ROOT = Path(__file__).parents[2]


class Workers(Protocol):
    """Makes workers of the test's kind on the test's queue."""

    def __call__(self, handler: Callable[[Any], Any], **options: Any) -> Worker: ...


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def workers(kind: str, server: Any, fresh_name: str) -> Iterator[Workers]:
    made: list[Worker] = []

    def make(handler: Callable[[Any], Any], **options: Any) -> Worker:
        made.append(Worker(kind, server.url, fresh_name, handler, **options))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def jobs(server: Any, fresh_name: str) -> Iterator[Queue]:
    """The queue, for the test itself."""
    with emq.connect(server.url) as connector:
        yield Queue(connector, fresh_name)


def commands(admin: Any) -> int:
    """How many commands of workers the server has run."""
    stats = admin.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "blpop"))


def nothing(job: Any) -> None:
    pass


# What becomes of a job.


def test_jobs_are_run_once_each_and_completed(workers: Workers, jobs: Queue) -> None:
    seen: list[bytes] = []
    jobs.enqueue_many([b"%d" % number for number in range(50)])
    worker = workers(lambda job: seen.append(job.payload))
    worker.run(burst=True)

    assert seen == [b"%d" % number for number in range(50)]
    assert jobs.counts() == {**dict.fromkeys(jobs.counts(), 0), "completed": 50}
    assert worker.stats["started"] == worker.stats["completed"] == 50
    assert worker.stats["in_flight"] == 0


def test_a_handler_sees_its_job(workers: Workers, jobs: Queue, fresh_name: str) -> None:
    seen: list[Any] = []
    id = jobs.enqueue(b'{"a": 1}', headers={"traceparent": "00-1"}).job_id

    def handler(job: Any) -> None:
        seen.append((job.id, job.payload, job.data, job.token, job.queue, job.group, job.attempt))
        seen.append((job.headers, job.lost, repr(job)))

    workers(handler, codec=JsonCodec()).run(burst=True)

    assert seen[0] == (id, b'{"a": 1}', {"a": 1}, 1, fresh_name, None, 1)
    assert seen[1][:2] == ({"traceparent": "00-1"}, False)
    assert '"a"' not in seen[1][2]


@pytest.mark.parametrize(
    ("value", "kept"),
    [(b"\xff", b"\xff"), ("text", b"text"), (None, None), (7, None), (object(), None)],
)
def test_what_a_handler_returns_is_the_result(
    workers: Workers, jobs: Queue, value: Any, kept: bytes | None
) -> None:
    id = jobs.enqueue(b"").job_id
    workers(lambda job: value, result_ttl_ms=10_000).run(burst=True)

    outcome = jobs.wait(id, 1)
    assert outcome is not None
    assert (outcome.state, outcome.result) == ("completed", kept)


def test_a_job_may_ask_for_its_result_itself(workers: Workers, jobs: Queue) -> None:
    id = jobs.enqueue(b"[1]", result_ttl_ms=10_000).job_id
    other = jobs.enqueue(b"[1]").job_id
    workers(lambda job: {"sum": job.data}, codec=JsonCodec()).run(burst=True)

    outcome = jobs.wait(id, 1)
    assert outcome is not None
    assert outcome.result == b'{"sum":[1]}'
    assert jobs.state(other) is None


def test_a_job_that_fails_is_tried_again_and_is_dead_at_last(
    workers: Workers, jobs: Queue, keys: Keys
) -> None:
    attempts: list[int] = []
    id = jobs.enqueue(b"").job_id

    def handler(job: Any) -> None:
        attempts.append(job.attempt)
        raise ValueError("no good")

    worker = workers(handler, max_attempts=3, backoff=fixed(1))
    worker.run(burst=True)

    assert attempts == [1, 2, 3]
    assert jobs.state(id) == "dead"
    assert keys.row(id)["last_error"] == b"ValueError: no good"
    assert (worker.stats["failed"], worker.stats["retried"], worker.stats["dead"]) == (3, 2, 1)


def test_the_backoff_grows_with_the_attempts(
    workers: Workers, jobs: Queue, keys: Keys, due: Due
) -> None:
    id = jobs.enqueue(b"").job_id

    def handler(job: Any) -> None:
        raise ValueError

    worker = workers(handler, backoff=exponential(100_000, 1_000_000))
    for attempt in (1, 2, 3):
        worker.start()
        until(lambda: worker.stats["retried"] == 1)
        worker.stop()
        seconds, _ = keys.admin.time()
        score = keys.score("schedule", id)
        assert score is not None
        assert -2 <= score / 1000 - seconds - 100 * 2 ** (attempt - 1) <= 2
        due(id)


def test_a_jobs_own_wishes_win(workers: Workers, jobs: Queue, keys: Keys) -> None:
    once = jobs.enqueue(b"", max_attempts=1).job_id
    later = jobs.enqueue(b"", backoff=fixed(1_000_000)).job_id

    def handler(job: Any) -> None:
        raise ValueError

    worker = workers(handler, max_attempts=3, backoff=fixed(2_000))
    worker.start()
    until(lambda: worker.stats["failed"] == 2)

    assert jobs.state(once) == "dead"
    seconds, _ = keys.admin.time()
    score = keys.score("schedule", later)
    assert score is not None
    assert score / 1000 - seconds > 900


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("name"), "KeyError: 'name'"),
        (ValueError(), "ValueError"),
        (ValueError("x" * 5000), "ValueError: " + "x" * (2000 - 15) + "..."),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (Unprintable(), "Unprintable: (its text cannot be had: RuntimeError)"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(5), "StopIteration: 5"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_a_handler_raises_fails_its_job_and_no_more(
    workers: Workers, jobs: Queue, keys: Keys, error: BaseException, text: str, kind: str
) -> None:
    if kind in ("threads-coroutine", "aio") and isinstance(error, StopIteration | GeneratorExit):
        pytest.skip("what the test runs it on cannot carry it")
    id = jobs.enqueue(b"bad").job_id
    jobs.enqueue(b"good")

    def handler(job: Any) -> None:
        if job.payload == b"bad":
            raise error

    worker = workers(handler, max_attempts=1)
    worker.run(burst=True)

    assert jobs.state(id) == "dead"
    assert keys.row(id)["last_error"].decode() == text
    assert worker.stats["completed"] == 1


def test_signals_say_what_becomes_of_a_job(workers: Workers, jobs: Queue, keys: Keys) -> None:
    def from_cause() -> None:
        try:
            raise KeyError("cause")
        except KeyError as error:
            raise Retry(500_000) from error

    def raised(error: Exception) -> None:
        raise error

    acts: dict[bytes, Callable[[], Any]] = {
        b"retry": lambda: raised(Retry(500_000, "come again")),
        b"retry from": from_cause,
        b"retry returned": lambda: Retry(500_000, "returned"),
        b"retry class": lambda: Retry,
        b"discard": lambda: raised(Discard("useless")),
        b"discard class": lambda: Discard,
        b"delay": lambda: raised(Delay(500_000)),
        b"delay returned": lambda: Delay(500_000),
    }
    ids = {
        name: receipt.job_id
        for name, receipt in zip(acts, jobs.enqueue_many(list(acts)), strict=True)
    }
    worker = workers(lambda job: acts[job.payload](), backoff=fixed(500_000))
    worker.start()
    until(lambda: sum(worker.stats[name] for name in ("failed", "delayed")) == len(acts))

    states = {name: jobs.state(id) for name, id in ids.items()}
    dead = [name for name, state in states.items() if state == "dead"]
    assert dead == [b"discard", b"discard class"]
    assert set(states.values()) == {"dead", "scheduled"}
    errors = {name: keys.row(id).get("last_error", b"").decode() for name, id in ids.items()}
    assert errors == {
        b"retry": "come again",
        b"retry from": "KeyError: 'cause'",
        b"retry returned": "returned",
        b"retry class": "Retry",
        b"discard": "useless",
        b"discard class": "Discard",
        b"delay": "",
        b"delay returned": "",
    }
    assert worker.stats["delayed"] == 2


def test_a_delay_is_no_attempt(workers: Workers, jobs: Queue) -> None:
    attempts: list[int] = []
    jobs.enqueue(b"")

    def handler(job: Any) -> None:
        attempts.append(job.attempt)
        if len(attempts) < 4:
            raise Delay(1)

    worker = workers(handler, max_attempts=1)
    worker.run(burst=True)

    assert attempts == [1, 1, 1, 1]
    assert worker.stats["completed"] == 1


def test_a_payload_that_cannot_be_decoded_fails_that_job_alone(
    workers: Workers, jobs: Queue, keys: Keys
) -> None:
    seen: list[Any] = []
    bad = jobs.enqueue(b"{").job_id
    jobs.enqueue(b"[2]")
    workers(lambda job: seen.append(job.data), codec=JsonCodec(), max_attempts=1).run(burst=True)

    assert seen == [[2]]
    assert keys.row(bad)["last_error"].startswith(b"JSONDecodeError: ")


def test_a_failure_is_logged_and_its_text_is_not(
    workers: Workers, jobs: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    id = jobs.enqueue(b"").job_id

    def handler(job: Any) -> None:
        raise ValueError("secret")

    with caplog.at_level(logging.INFO, "emq"):
        workers(handler, max_attempts=2, backoff=fixed(7)).run(burst=True)

    told = [record for record in caplog.records if id in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING", "ERROR"]
    place = r"\(ValueError at test_consumer.py:\d+\)"
    assert re.search(rf"attempt 1 failed {place}; the next is in 7 ms", told[0].getMessage())
    assert re.search(rf"attempt 2 failed {place}; it is dead", told[1].getMessage())
    assert "secret" not in caplog.text


def test_what_cannot_be_a_result_is_warned_of_and_never_logged(
    workers: Workers, jobs: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.enqueue(b"secret payload")

    def handler(job: Any) -> Any:
        return {"secret result": job.payload}

    with caplog.at_level(logging.DEBUG, "emq"):
        workers(handler).run(burst=True)

    assert "returned dict, which cannot be kept as a result" in caplog.text
    assert "secret" not in caplog.text


# Time limits.


def test_a_job_that_takes_too_long_has_failed_at_its_limit(
    workers: Workers, jobs: Queue, keys: Keys, kind: str
) -> None:
    gate = Gate()
    id = jobs.enqueue(b"", time_limit_ms=50).job_id
    worker = workers(gate, backoff=fixed(1_000_000))
    worker.start()
    job = gate.wait_begun()
    until(lambda: jobs.state(id) == "scheduled", 2.0)

    assert keys.row(id)["last_error"] == b"time limit of 50 ms"
    if kind in ("threads", "aio-function"):
        assert job.lost
        other = jobs.enqueue(b"other").job_id
        sleep(0.05)
        assert jobs.state(other) == "pending", "the slot is not free before the handler is"
    gate.open.set()
    if kind in ("threads", "aio-function"):
        until(lambda: worker.stats["completed"] == 1)
    assert jobs.state(id) == "scheduled"
    until(lambda: worker.stats["retried"] == 1)


def test_the_consumers_limit_is_for_jobs_without_one(
    workers: Workers, jobs: Queue, keys: Keys
) -> None:
    short = jobs.enqueue(b"").job_id
    jobs.enqueue(b"", time_limit_ms=60_000)

    def handler(job: Any) -> None:
        sleep(0.2)

    workers(handler, concurrency=2, time_limit_ms=50, max_attempts=1).run(burst=True)

    assert keys.row(short)["last_error"] == b"time limit of 50 ms"
    assert jobs.counts()["completed"] == 1


# Leases.


def test_a_lease_is_renewed_however_long_the_handler_blocks(
    workers: Workers, jobs: Queue, keys: Keys
) -> None:
    starts: list[int] = []
    jobs.enqueue(b"")

    def handler(job: Any) -> None:
        starts.append(job.token)
        sleep(1.0)

    worker = workers(handler, lease_ms=300)
    worker.start()
    until(lambda: starts)
    other = workers(handler)  # which sweeps
    other.start()
    until(lambda: worker.stats["completed"] == 1)

    assert starts == [1]
    assert worker.stats["lost"] == 0


def test_one_call_renews_all_leases(workers: Workers, jobs: Queue, keys: Keys) -> None:
    gate = Gate()
    jobs.enqueue_many([b""] * 5)
    worker = workers(gate, concurrency=5, lease_ms=600)
    worker.start()
    until(lambda: len(gate.jobs) == 5)
    calls: list[Any] = []
    with keys.admin.monitor() as monitor:
        end = monotonic() + 0.9
        keys.admin.echo("begin")
        for command in monitor.listen():
            words = command["command"].split(" ")
            if words[0] == "EVALSHA" and len(words) > 10:
                calls.append(words)
            if monotonic() > end:
                break
            if len(calls) == 2:
                break
    gate.open.set()
    until(lambda: worker.stats["completed"] == 5)

    assert len(calls) == 2
    for words in calls:
        assert {job.id for job in gate.jobs} <= set(words)


def test_a_handler_is_told_that_its_lease_is_lost(
    workers: Workers, jobs: Queue, expire: Expire, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    id = jobs.enqueue(b"").job_id
    worker = workers(gate, lease_ms=600)
    worker.start()
    job = gate.wait_begun()
    with caplog.at_level(logging.INFO, "emq"):
        expire(job.job)
        jobs.reap()
        mine = jobs.claim()
        assert mine is not None
        until(lambda: job.lost, 1.0)
        gate.open.set()
        until(lambda: gate.ended)
        until(lambda: worker.idle)

    assert jobs.state(id) == "active"
    jobs.complete(mine)
    assert (worker.stats["completed"], worker.stats["lost"]) == (0, 1)
    assert f"the lease of job {id} was lost" in caplog.text


def test_an_outcome_that_comes_too_late_is_dropped(
    workers: Workers, jobs: Queue, expire: Expire, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    jobs.enqueue(b"")
    worker = workers(gate)
    worker.start()
    job = gate.wait_begun()
    expire(job.job)
    jobs.reap()
    mine = jobs.claim()
    assert mine is not None
    with caplog.at_level(logging.INFO, "emq"):
        gate.open.set()
        until(lambda: worker.stats["lost"] == 1)

    jobs.complete(mine)
    jobs.enqueue(b"")
    until(lambda: worker.stats["completed"] == 1)
    assert [record.levelname for record in caplog.records if "stale" in record.message] == ["INFO"]


def test_a_job_of_a_worker_that_died_is_served_within_its_lease_and_a_second(
    workers: Workers, jobs: Queue
) -> None:
    gate = Gate()
    gate.open.set()
    jobs.enqueue(b"")
    assert jobs.claim(lease_ms=300) is not None
    worker = workers(gate)
    worker.start()
    worker.wait_idle()
    began = monotonic()
    job = gate.wait_begun()

    assert monotonic() - began < 1.3
    assert (job.token, job.attempt) == (2, 1), "a crash is no attempt"


def test_a_job_that_kills_its_workers_is_put_away(
    workers: Workers, jobs: Queue, expire: Expire, caplog: pytest.LogCaptureFixture
) -> None:
    id = jobs.enqueue(b"").job_id
    job = jobs.claim()
    assert job is not None
    expire(job)
    worker = workers(nothing, max_stalled=1)
    worker.start()
    until(lambda: jobs.state(id) == "dead")
    until(lambda: f"job {id} is dead" in caplog.text)


# When there is nothing to do, and when there is much.


def test_scheduled_jobs_are_run_when_they_fall_due(workers: Workers, jobs: Queue) -> None:
    gate = Gate()
    gate.open.set()
    worker = workers(gate)
    worker.start()
    worker.wait_idle()
    jobs.enqueue(b"", delay_ms=200)
    began = monotonic()
    gate.wait_begun()

    assert 0.15 < monotonic() - began < 1.2


def test_a_burst_ends_when_nothing_is_left_now_or_later(workers: Workers, jobs: Queue) -> None:
    seen: list[bytes] = []
    jobs.enqueue(b"later", delay_ms=300)
    jobs.enqueue(b"now")
    workers(lambda job: seen.append(job.payload), concurrency=3).run(burst=True)

    assert seen == [b"now", b"later"]


def test_an_idle_worker_says_next_to_nothing(workers: Workers, server: Any, jobs: Queue) -> None:
    worker = workers(nothing, concurrency=4)
    worker.start()
    worker.wait_idle()
    sleep(0.1)
    before = commands(server.admin)
    sleep(1.0)

    assert commands(server.admin) - before <= 1


def test_a_paused_queue_is_left_alone_until_it_goes_on(
    workers: Workers, server: Any, jobs: Queue
) -> None:
    gate = Gate()
    gate.open.set()
    jobs.pause()
    jobs.enqueue(b"")
    worker = workers(gate)
    worker.start()
    worker.wait_idle()
    before = commands(server.admin)
    sleep(0.6)
    assert commands(server.admin) - before <= 1
    assert gate.jobs == []
    jobs.resume()
    gate.begun.wait(1.0)
    assert gate.jobs


@pytest.mark.parametrize("batch", [1, 20])
def test_a_busy_worker_needs_one_round_trip_a_job(
    workers: Workers, server: Any, jobs: Queue, batch: int
) -> None:
    jobs.enqueue_many([b""] * 200)
    worker = workers(nothing, batch=batch)
    before = commands(server.admin)
    worker.run(burst=True)

    # and a few to begin and to end; a batch says as many, in a tenth of the flushes
    assert 200 <= commands(server.admin) - before <= 230
    assert jobs.counts()["completed"] == 200


def test_as_many_jobs_run_at_a_time_as_there_are_slots(workers: Workers, jobs: Queue) -> None:
    gate = Gate()
    jobs.enqueue_many([b""] * 6)
    worker = workers(gate, concurrency=4)
    worker.start()
    until(lambda: len(gate.jobs) == 4)
    sleep(0.05)

    assert len(gate.jobs) == 4
    assert jobs.counts()["active"] == 4
    assert worker.stats["in_flight"] == 4
    gate.open.set()
    until(lambda: worker.stats["completed"] == 6)


def test_a_worker_whose_slots_are_busy_still_sees_to_what_falls_due(
    workers: Workers, jobs: Queue, keys: Keys
) -> None:
    gate = Gate()
    jobs.enqueue(b"")
    worker = workers(gate)
    worker.start()
    gate.wait_begun()
    id = jobs.enqueue(b"", delay_ms=1).job_id
    until(lambda: jobs.state(id) == "pending", 2.5)
    gate.open.set()


def test_a_job_that_comes_while_others_run_finds_a_free_slot(workers: Workers, jobs: Queue) -> None:
    gate = Gate()
    worker = workers(gate, concurrency=2)
    worker.start()
    jobs.enqueue(b"1")
    gate.wait_begun()
    until(lambda: worker.consumer._shift._parked)  # for the other slot
    jobs.enqueue(b"2")
    until(lambda: len(gate.jobs) == 2, 1.0)
    gate.open.set()


# Batches.


def test_a_slot_of_a_batch_asks_for_nothing_while_the_fetcher_is_parked(
    workers: Workers, server: Any, jobs: Queue
) -> None:
    gate = Gate()
    jobs.enqueue(b"")
    worker = workers(gate, batch=10, concurrency=2)
    worker.start()
    gate.wait_begun()
    until(lambda: worker.consumer._shift._parked)
    before = commands(server.admin)
    gate.open.set()
    until(lambda: worker.stats["completed"] == 1)
    sleep(0.05)

    assert commands(server.admin) - before == 1
    jobs.enqueue(b"")
    until(lambda: worker.stats["completed"] == 2, 1.0)


def test_a_batch_is_claimed_at_once_and_settled_in_one_flush(
    workers: Workers, jobs: Queue, keys: Keys
) -> None:
    gate = Gate()
    jobs.enqueue_many([b""] * 30)
    worker = workers(gate, batch=10)
    worker.start()
    gate.wait_begun()
    assert jobs.counts()["active"] == 10
    gate.open.set()
    until(lambda: worker.stats["completed"] == 30)
    assert jobs.counts()["active"] == 0


def test_the_jobs_of_a_batch_have_each_their_own_outcome(workers: Workers, jobs: Queue) -> None:
    def handler(job: Any) -> Any:
        if job.payload == b"fail":
            raise ValueError
        if job.payload == b"delay":
            raise Delay(1_000_000)
        return b"done"

    done, failed, delayed = (
        receipt.job_id
        for receipt in jobs.enqueue_many([Item(b"ok", result_ttl_ms=10_000), b"fail", b"delay"])
    )
    worker = workers(handler, batch=10, max_attempts=1)
    worker.start()
    until(lambda: worker.stats["completed"] + worker.stats["dead"] + worker.stats["delayed"] == 3)

    outcome = jobs.wait(done, 1)
    assert outcome is not None
    assert outcome.result == b"done"
    assert [jobs.state(failed), jobs.state(delayed)] == ["dead", "scheduled"]
    assert worker.stats["in_flight"] == 0


def test_an_outcome_does_not_wait_for_a_long_job_of_its_batch(
    workers: Workers, jobs: Queue
) -> None:
    gate = Gate()
    quick, slow = (receipt.job_id for receipt in jobs.enqueue_many([b"quick", b"slow"]))
    jobs.enqueue(b"later")
    worker = workers(lambda job: gate(job) if job.payload == b"slow" else None, batch=10)
    worker.start()
    gate.wait_begun()
    until(lambda: jobs.state(quick) is None, 3.0)
    assert jobs.state(slow) == "active"
    gate.open.set()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_every_job_is_done_once_whatever_the_batch(
    workers: Workers, jobs: Queue, concurrency: int
) -> None:
    seen: list[bytes] = []
    names = [b"%d" % number for number in range(300)]
    jobs.enqueue_many(names)
    worker = workers(lambda job: seen.append(job.payload), batch=25, concurrency=concurrency)
    worker.run(burst=True)

    assert sorted(seen) == sorted(names)
    assert jobs.counts()["completed"] == 300


# Stopping.


def test_a_stop_lets_running_handlers_finish(workers: Workers, jobs: Queue) -> None:
    gate = Gate()
    jobs.enqueue_many([b""] * 3)
    worker = workers(gate)
    worker.start()
    gate.wait_begun()
    stopping = worker.stop_later()
    until(lambda: worker.consumer._shift.stopping)
    gate.open.set()
    stopping.join(PATIENCE_S)

    assert not stopping.is_alive()
    assert worker.stats["completed"] == 1
    assert jobs.counts()["pending"] == 2
    assert jobs.counts()["active"] == 0


def test_a_stop_gives_back_at_once_what_was_not_begun(workers: Workers, jobs: Queue) -> None:
    gate = Gate()
    jobs.enqueue_many([b""] * 10)
    worker = workers(gate, batch=10)
    worker.start()
    gate.wait_begun()
    assert jobs.counts()["active"] == 10
    began = monotonic()
    stopping = worker.stop_later()
    until(lambda: jobs.counts()["pending"] == 9)
    assert monotonic() - began < 0.3  # 0.1 s, on a machine of its own
    gate.open.set()
    stopping.join(PATIENCE_S)

    assert (worker.stats["given_back"], worker.stats["completed"]) == (9, 1)
    again = jobs.claim_many(10)
    assert {job.attempt for job in again} == {1}


def test_a_job_that_others_reap_for_ever_dies_of_its_claims(workers: Workers, jobs: Queue) -> None:
    """Whoever reaps without counting stalls keeps a job that kills its workers in a circle."""
    seen: list[int] = []
    id = jobs.enqueue(b"").job_id
    for _ in range(4):
        jobs.claim(1)
        until(lambda: jobs.reap() == 1)
    workers(lambda job: seen.append(job.attempt), max_attempts=2, max_stalled=2).run(burst=True)

    assert seen == []
    row = jobs.job(id)
    assert row is not None
    assert row.state == "dead"
    assert row.fields["last_error"] == "claimed 5 times, and no worker lived to say how it went"


def test_a_job_that_was_claimed_often_still_runs(workers: Workers, jobs: Queue) -> None:
    seen: list[int] = []
    jobs.enqueue(b"")
    for _ in range(3):
        jobs.claim(1)
        until(lambda: jobs.reap() == 1)
    workers(lambda job: seen.append(job.attempt), max_attempts=2, max_stalled=2).run(burst=True)

    assert seen == [4]


def test_a_handler_that_is_late_has_its_job_given_back(
    workers: Workers, jobs: Queue, kind: str
) -> None:
    gate = Gate()
    id = jobs.enqueue(b"").job_id
    worker = workers(gate)
    worker.start()
    job = gate.wait_begun()
    began = monotonic()
    worker.stop(0.1)

    assert 0.1 <= monotonic() - began < 2.0
    assert job.lost
    assert jobs.state(id) == "pending"
    again = jobs.claim()
    assert again is not None
    assert (again.token, again.attempt) == (2, 1)
    gate.open.set()
    until(lambda: gate.ended)
    assert jobs.state(id) == "active", "the outcome of the late one is dropped"
    assert worker.stats["given_back"] == 1


def test_a_stop_ends_a_parked_worker_at_once(workers: Workers, jobs: Queue) -> None:
    worker = workers(nothing)
    worker.start()
    worker.wait_idle()
    began = monotonic()
    worker.stop()

    assert monotonic() - began < 0.5
    assert not worker.idle


def test_a_worker_that_stops_passes_its_wake_on(workers: Workers, jobs: Queue, keys: Keys) -> None:
    worker = workers(nothing)
    worker.start()
    worker.wait_idle()
    assert len(keys.members("parked")) == 1
    worker.stop()

    assert keys.members("parked") == []


def test_nothing_is_left_behind(workers: Workers, jobs: Queue, server: Any, keys: Keys) -> None:
    worker = workers(nothing, concurrency=3)
    jobs.enqueue_many([b""] * 20)
    threads = set(threading.enumerate())
    clients = {client["id"] for client in server.admin.client_list()}
    for _ in range(2):
        worker.run(burst=True)
        worker.start()
        worker.wait_idle()
        worker.stop()
    ours = {
        thread
        for thread in set(threading.enumerate()) - threads
        if not thread.name.startswith("asyncio_")  # of the test's own to_thread
    }
    assert not ours
    until(lambda: {client["id"] for client in server.admin.client_list()} <= clients)


def test_a_handler_may_stop_its_worker(workers: Workers, jobs: Queue, kind: str) -> None:
    if kind in ("aio", "threads-coroutine", "aio-function"):
        pytest.skip("see the tests of the kind's own")
    jobs.enqueue_many([b""] * 3)
    worker = workers(lambda job: worker.consumer.stop())
    worker.run()

    assert worker.stats["completed"] == 1
    assert jobs.counts()["pending"] == 2


def test_a_worker_runs_once_at_a_time_and_may_run_again(workers: Workers, jobs: Queue) -> None:
    worker = workers(nothing)
    assert worker.stats["started"] == 0
    worker.stop()
    worker.start()
    assert "running" in repr(worker.consumer)
    with pytest.raises(RuntimeError, match="runs already"):
        worker.start()
    worker.stop()
    assert "stopped" in repr(worker.consumer)
    jobs.enqueue(b"")
    worker.run(burst=True)
    assert worker.stats["completed"] == 1


# What a handler may say, and who is told.


def test_what_a_handler_says_is_fenced(
    kind: str, server: Any, fresh_name: str, jobs: Queue, expire: Expire, keys: Keys
) -> None:
    errors: list[BaseException] = []
    begun, go_on = threading.Event(), threading.Event()

    def before(job: Any) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    def function(job: Any) -> None:
        job.progress("1 of 2")
        assert job.log("line 1") == 1
        before(job)
        for say in (job.progress, job.log):
            try:
                say("too late")
            except Exception as error:
                errors.append(error)

    async def coroutine(job: Any) -> None:
        await job.progress("1 of 2")
        assert await job.log("line 1") == 1
        await asyncio.to_thread(before, job)
        for say in (job.progress, job.log):
            try:
                await say("too late")
            except Exception as error:
                errors.append(error)

    handler: Any = function if kind in ("threads", "aio-function") else coroutine
    plain = {"threads": "threads", "threads-coroutine": "threads"}.get(kind, "aio-function")
    id = jobs.enqueue(b"").job_id
    worker = Worker(plain, server.url, fresh_name, handler)
    try:
        worker.start()
        assert begun.wait(PATIENCE_S)
        assert keys.row(id)["progress"] == b"1 of 2"
        assert jobs.logs(id) == ["line 1"]
        [held] = [held.job for held in worker.consumer._shift._leases.running]
        expire(held)
        jobs.reap()
        assert jobs.claim() is not None
        go_on.set()
        until(lambda: len(errors) == 2)
    finally:
        go_on.set()
        worker.close()

    assert [type(error) for error in errors] == [emq.StaleToken, emq.StaleToken]
    assert keys.row(id)["progress"] == b"1 of 2"


class Told:
    """A telemetry that writes down what it is told."""

    def __init__(self, fails: bool = False) -> None:
        self.events: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        self.handled: list[str] = []
        self.fails = fails

    def emit(self, name: str, measurements: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.events.append((name, measurements, metadata))
        if self.fails:
            raise RuntimeError("a hook")

    @contextmanager
    def handling(self, job: Any) -> Iterator[None]:
        self.handled.append(job.id)
        if self.fails:
            raise RuntimeError("a hook")
        yield


@pytest.mark.parametrize("fails", [False, True])
def test_telemetry_is_told_and_harms_nobody(
    workers: Workers, jobs: Queue, fails: bool, fresh_name: str
) -> None:
    telemetry = Told(fails)
    id = jobs.enqueue(b"").job_id
    attempts = itertools.count(1)

    def handler(job: Any) -> None:
        if next(attempts) == 1:
            raise ValueError("first")

    worker = workers(handler, telemetry=telemetry, name="w1", backoff=fixed(1))
    worker.run(burst=True)

    assert [name for name, _, _ in telemetry.events] == [
        "emq.worker.start",
        "emq.job.start",
        "emq.job.fail",
        "emq.job.retry",
        "emq.job.start",
        "emq.job.complete",
        "emq.worker.stop",
    ]
    assert telemetry.handled == [id, id]
    assert telemetry.events[0][1:] == ({"concurrency": 1}, {"queue": fresh_name, "worker": "w1"})
    _, measured, metadata = telemetry.events[2]
    assert measured["duration"] > 0
    assert metadata["error"] == "ValueError: first"
    assert metadata["job_id"] == id
    assert telemetry.events[3][1] == {"attempt": 1, "delay": 1}
    assert worker.stats["completed"] == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"concurrency": 0}, ValueError),
        ({"concurrency": 1.5}, ValueError),
        ({"batch": 100_000}, ValueError),
        ({"lease_ms": 0}, ValueError),
        ({"max_attempts": 0}, ValueError),
        ({"max_stalled": True}, ValueError),
        ({"time_limit_ms": 0}, ValueError),
        ({"result_ttl_ms": -1}, ValueError),
        ({"drain_timeout": -1}, ValueError),
        ({"drain_timeout": float("nan")}, ValueError),
        ({"backoff": 5}, TypeError),
        ({"codec": json}, TypeError),
        ({"telemetry": 5}, TypeError),
        ({"name": ""}, TypeError),
    ],
    ids=str,
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], jobs: Queue) -> None:
    with pytest.raises(error, match=next(iter(options))):
        Consumer(jobs, nothing, **options)


def test_a_queue_of_the_other_shell_is_refused(jobs: Queue) -> None:
    with pytest.raises(TypeError, match="AsyncQueue"):
        AsyncConsumer(jobs, nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AsyncConsumer is for asyncio"):
        Consumer(object(), nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="handler"):
        Consumer(jobs, None)  # type: ignore[arg-type]


# Signals, in a process of their own.

_PROGRAM = """
import asyncio, signal, sys, time
import emq
from emq import AsyncQueue, Queue
from emq.aio_consumer import AsyncConsumer
from emq.consumer import Consumer

kind, url, name, seconds, signals = sys.argv[1:]

def say(*words):
    print(*words, flush=True)

def function(job):
    say("begun")
    for _ in range(int(float(seconds) * 100)):
        time.sleep(0.01)
        if job.lost:
            say("lost")
            return
    say("ended")

async def coroutine(job):
    say("begun")
    await asyncio.sleep(float(seconds))
    say("ended")

before = [lambda *_: None] * 2
if signals == "on":
    signal.signal(signal.SIGTERM, before[0])
options = {"signals": signals == "on"}

def threads():
    with emq.connect(url) as connector:
        Consumer(Queue(connector, name), function, batch=5).run(**options)

async def aio():
    async with await emq.connect_async(url) as connector:
        await AsyncConsumer(AsyncQueue(connector, name), coroutine, batch=5).run(**options)
        if signals == "on":
            assert signal.getsignal(signal.SIGTERM) is before[0]

try:
    threads() if kind == "threads" else asyncio.run(aio())
except KeyboardInterrupt:
    say("interrupted")
    raise SystemExit(9)
if signals == "on":
    assert signal.getsignal(signal.SIGTERM) is before[0]
say("returned")
"""


@contextmanager
def program(
    kind: str, url: str, name: str, seconds: float, signals: str = "on"
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM), kind, url, name, str(seconds), signals],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["threads", "aio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_worker_in_order(
    kind: str, server: Any, fresh_name: str, jobs: Queue, number: int
) -> None:
    jobs.enqueue_many([b""] * 5)
    with program(kind, server.url, fresh_name, 0.5) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        began = monotonic()
        process.send_signal(number)
        until(lambda: jobs.counts()["pending"] == 4)
        given_back_s = monotonic() - began
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout.read() == "ended\nreturned\n"

    assert given_back_s < 0.3  # 0.1 s, on a machine of its own
    assert jobs.counts()["completed"] == 1
    assert jobs.counts()["active"] == 0


@pytest.mark.parametrize("kind", ["threads", "aio"])
def test_a_second_signal_gives_back_at_once(
    kind: str, server: Any, fresh_name: str, jobs: Queue
) -> None:
    jobs.enqueue_many([b""] * 2)
    with program(kind, server.url, fresh_name, 15) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        until(lambda: jobs.counts()["pending"] == 1)
        began = monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert monotonic() - began < 3
        assert "returned\n" in process.stdout.read()

    assert jobs.counts()["pending"] == 2
    assert {job.attempt for job in jobs.claim_many(2)} == {1}


@pytest.mark.parametrize("kind", ["threads", "aio"])
def test_an_interrupt_stops_the_worker_and_goes_on(
    kind: str, server: Any, fresh_name: str, jobs: Queue
) -> None:
    jobs.enqueue_many([b""] * 2)
    with program(kind, server.url, fresh_name, 0.3, "off") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 9
        assert "interrupted\n" in process.stdout.read()

    assert jobs.counts()["active"] == 0
    assert jobs.counts()["pending"] + jobs.counts()["completed"] == 2


@pytest.mark.parametrize("kind", ["threads", "aio"])
def test_a_killed_worker_loses_nothing(
    kind: str, server: Any, fresh_name: str, jobs: Queue, expire: Expire
) -> None:
    ids = {receipt.job_id for receipt in jobs.enqueue_many([b""] * 5)}
    with program(kind, server.url, fresh_name, 15) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
        process.wait(PATIENCE_S)
    done: set[str] = set()
    for entry in jobs.peek("active"):
        server.admin.zadd(f"emq:{{{fresh_name}}}:active", {entry.job_id: 1})
    Consumer(jobs, lambda job: done.add(job.id)).run(burst=True)

    assert done == ids


def test_a_worker_that_may_not_start_leaves_nothing(
    workers: Workers, server: Any, jobs: Queue
) -> None:
    worker = workers(nothing)
    server.admin.set("{emq}:version", "echomq:0.0.0")
    try:
        with pytest.raises(emq.FenceError):
            worker.start()
        with pytest.raises(emq.FenceError):
            worker.run()
    finally:
        server.admin.set("{emq}:version", emq.WIRE_VERSION)
    jobs.enqueue(b"")
    worker.run(burst=True)
    assert worker.stats["completed"] == 1


def test_a_fault_of_the_workers_own_costs_one_job_and_no_slot(
    workers: Workers, jobs: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    worker = workers(nothing)
    worker.start()
    worker.wait_idle()
    shift = worker.consumer._shift
    handle, shift._handle = shift._handle, None
    jobs.enqueue(b"")
    until(lambda: "NoneType" in caplog.text)
    shift._handle = handle
    jobs.enqueue(b"")
    until(lambda: worker.stats["completed"] == 1)


def test_what_was_done_is_told_at_a_stop_whatever_else_is_late(
    workers: Workers, jobs: Queue
) -> None:
    gate = Gate()

    def handler(job: Any) -> None:
        if job.payload == b"late":
            gate(job)

    worker = workers(handler, batch=10)
    jobs.enqueue_many([b"early", b"late"])
    worker.start()
    gate.wait_begun()
    stopping = worker.stop_later(5.0)
    try:
        until(lambda: jobs.counts()["completed"] == 1, 0.5)
        worker.stop(0.0)
        assert (jobs.counts()["pending"], jobs.counts()["active"]) == (1, 0)
    finally:
        gate.open.set()
        stopping.join()


def test_a_coroutine_that_ends_as_its_time_to_finish_is_up_harms_no_other(
    server: Any, fresh_name: str, jobs: Queue
) -> None:
    begun, late = threading.Event(), threading.Event()

    async def handler(job: Any) -> None:
        if job.payload == b"late":
            begun.set()
            while not late.is_set():
                await asyncio.sleep(0.01)

    with emq.connect(server.url) as connector:
        consumer = Consumer(Queue(connector, fresh_name), handler, concurrency=2)
        jobs.enqueue(b"late")
        consumer.start()
        assert begun.wait(PATIENCE_S)
        [held] = consumer._shift._leases.running  # type: ignore[union-attr]

        def cancel() -> None:
            raise RuntimeError("Event loop is closed")

        held.cancel = cancel
        consumer.stop(0.0)
        assert jobs.counts()["pending"] == 1, "it was given back all the same"
        late.set()


def test_a_queue_that_was_obliterated_wakes_its_workers_as_ever(
    workers: Workers, jobs: Queue
) -> None:
    gate = Gate()
    gate.open.set()
    worker = workers(gate)
    worker.start()
    worker.wait_idle()
    jobs.pause()
    sleep(0.1)
    jobs.obliterate()
    jobs.enqueue(b"")
    until(lambda: gate.ended, 1.0)


FORK = """
    import asyncio, os, sys, emq
    from emq import AsyncQueue, Queue
    from emq.aio_consumer import AsyncConsumer
    from emq.consumer import Consumer

    url, queue, kind, how = sys.argv[1:]

    def handler(job):
        if job.payload == b"fork" and (child := os.fork()):
            os.waitpid(child, 0)
        elif job.payload == b"fork" and how == "exits":
            sys.exit()

    async def main():
        connector = await emq.connect_async(url)
        await AsyncConsumer(AsyncQueue(connector, queue), handler).run(burst=True)
        await connector.close()

    if kind == "aio":
        asyncio.run(main())
    else:
        with emq.connect(url) as connector:
            Consumer(Queue(connector, queue), handler).run(burst=True)
    print("ended")
"""


@pytest.mark.parametrize("how", ["returns", "exits"])
@pytest.mark.parametrize("shell", ["threads", "aio"])
def test_a_process_that_a_handler_forked_does_not_go_on_as_a_worker(
    shell: str, how: str, server: Any, fresh_name: str, jobs: Queue
) -> None:
    jobs.enqueue_many([b"fork", b"", b""])
    command = [sys.executable, "-c", textwrap.dedent(FORK), server.url, fresh_name, shell, how]
    told = subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert told.stdout == "ended\n"
    assert jobs.counts()["completed"] == 3


def test_a_job_that_was_lost_before_it_was_begun_is_not_begun(
    workers: Workers, jobs: Queue, expire: Expire
) -> None:
    gate = Gate()
    worker = workers(gate, batch=10, lease_ms=600)
    jobs.enqueue_many([b""] * 3)
    worker.start()
    first = gate.wait_begun()
    others = [held for held in worker.consumer._shift._leases.waiting if held is not first]
    assert len(others) == 2
    for held in others:
        expire(held.job)
    assert jobs.reap() == 2
    assert len(jobs.claim_many(2)) == 2  # they are another's now
    until(lambda: worker.stats["lost"] == 2)
    gate.open.set()
    until(lambda: worker.stats["completed"] == 1)
    sleep(0.1)
    assert worker.stats["started"] == 1
    assert gate.jobs == [first]


def test_a_scheduled_job_is_begun_when_it_falls_due_on_a_server_that_has_nothing_else_to_do(
    workers: Workers, jobs: Queue
) -> None:
    begun: list[float] = []
    worker = workers(lambda job: begun.append(monotonic()))
    worker.start()
    late: list[float] = []
    for _ in range(3):  # a busy machine is late by itself now and then
        for delay_ms in (130, 170, 210, 250, 290):
            worker.wait_idle()
            due = monotonic() + delay_ms / 1000
            jobs.enqueue(b"", delay_ms=delay_ms)
            until(lambda: len(begun) > len(late))
            late.append(begun[-1] - due)
        if sorted(late[-5:])[3] < 0.03:  # the server's own clock ticks every 0.1 s
            return
    raise AssertionError(late)

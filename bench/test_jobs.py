"""Verbs and workers of the queue, without peers, under pytest-benchmark; `test_codec` says how."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import emq
from emq.embedded import Embedded

_JOBS = 200
_MANY = 1000


@pytest.fixture
def queue(server: Embedded, request: pytest.FixtureRequest) -> Iterator[emq.Queue]:
    with emq.connect(server.url) as connector:
        yield emq.Queue(connector, request.node.name)


def _worked(queue: emq.Queue, benchmark: Any, work: Callable[[], object]) -> None:
    """Time what empties the queue, filled anew each time."""

    def fill() -> None:
        queue.enqueue_many([b"0"] * _JOBS)

    benchmark.pedantic(work, setup=fill, rounds=10)
    _drained(queue)


def _drained(queue: emq.Queue) -> None:
    counts = queue.counts()
    assert (counts["pending"], counts["active"]) == (0, 0)


def test_enqueue(queue: emq.Queue, benchmark: BenchmarkFixture) -> None:
    assert benchmark(queue.enqueue, b"0").admitted


def test_enqueue_many(queue: emq.Queue, benchmark: BenchmarkFixture) -> None:
    assert len(benchmark(queue.enqueue_many, [b"0"] * _MANY)) == _MANY


def test_life_in_three_commands(queue: emq.Queue, benchmark: BenchmarkFixture) -> None:
    def live() -> None:
        queue.enqueue(b"0")
        job = queue.claim()
        assert job is not None
        queue.complete(job)

    benchmark(live)
    _drained(queue)


def test_complete_and_claim(queue: emq.Queue, benchmark: BenchmarkFixture) -> None:
    def work() -> None:
        job = queue.claim()
        while job is not None:
            job = queue.complete_and_claim(job)

    _worked(queue, benchmark, work)


def test_consumer(queue: emq.Queue, benchmark: BenchmarkFixture) -> None:
    def work() -> None:
        emq.Consumer(queue, lambda job: None, concurrency=1).run(burst=True, signals=False)

    _worked(queue, benchmark, work)


def test_async_consumer(queue: emq.Queue, server: Embedded, benchmark: BenchmarkFixture) -> None:
    async def work() -> None:
        async with await emq.connect_async(server.url) as connector:
            mine = emq.AsyncQueue(connector, queue.name)
            await emq.AsyncConsumer(mine, lambda job: None).run(burst=True, signals=False)

    _worked(queue, benchmark, lambda: asyncio.run(work()))

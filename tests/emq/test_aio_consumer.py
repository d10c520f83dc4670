"""What is the asyncio consumer's alone: coroutines in the loop, and a loop that they block."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

import pytest

import emq
from emq import AsyncQueue, Queue
from emq.aio_consumer import AsyncConsumer
from emq.backoff import fixed
from emq.consumer import Consumer
from emq.work import Retry

from .conftest import Expire, Keys
from .workers import PATIENCE_S
from .workers import until as wait_until


@pytest.fixture
def jobs(server: Any, fresh_name: str) -> Iterator[Queue]:
    """The queue, for the test itself."""
    with emq.connect(server.url) as connector:
        yield Queue(connector, fresh_name)


def play(server: Any, name: str, scene: Callable[[AsyncQueue], Coroutine[Any, Any, None]]) -> None:
    """Run a scene in a loop of its own, which must have nothing left at its end."""

    async def main() -> None:
        async with await emq.connect_async(server.url) as connector:
            await scene(AsyncQueue(connector, name))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    before = set(threading.enumerate())
    asyncio.run(main())
    assert set(threading.enumerate()) <= before


async def until(done: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
    end = monotonic() + seconds
    while not done():
        assert monotonic() < end, "it never came to be"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def working(consumer: AsyncConsumer) -> Any:
    async with consumer:
        try:
            yield consumer
        finally:
            await consumer.stop(0)


async def anothers(jobs: Queue, expire: Expire, id: str) -> None:
    """Let another worker have a job."""
    held = jobs.peek("active")
    assert [entry.job_id for entry in held] == [id]
    assert jobs.job(id) is not None
    jobs.connector.command("ZADD", jobs.keys.active, "XX", 1, id)  # type: ignore[attr-defined]
    jobs.reap()
    assert jobs.claim() is not None


def test_a_handler_that_blocks_the_loop_keeps_its_lease(
    server: Any, fresh_name: str, jobs: Queue
) -> None:
    starts: list[int] = []
    jobs.enqueue(b"")

    async def handler(job: Any) -> None:
        starts.append(job.token)
        time.sleep(0.9)

    stop = threading.Event()

    def sweep() -> None:
        while not stop.wait(0.02):
            jobs.sweep_stalled(5)

    async def scene(queue: AsyncQueue) -> None:
        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        try:
            await AsyncConsumer(queue, handler, lease_ms=300).run(burst=True)
        finally:
            stop.set()
            sweeper.join()

    play(server, fresh_name, scene)

    assert starts == [1]
    assert jobs.counts()["completed"] == 1


def test_a_coroutine_is_cancelled_at_its_limit_and_tried_again(
    server: Any, fresh_name: str, jobs: Queue, keys: Keys
) -> None:
    events: list[str] = []
    id = jobs.enqueue(b"", time_limit_ms=50).job_id

    async def handler(job: Any) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    async def scene(queue: AsyncQueue) -> None:
        async with working(AsyncConsumer(queue, handler, backoff=fixed(1_000_000))) as consumer:
            await until(lambda: consumer.stats()["retried"] == 1)

    play(server, fresh_name, scene)

    assert events == ["cancelled"]
    assert jobs.state(id) == "scheduled"
    assert keys.row(id)["last_error"] == b"time limit of 50 ms"


def test_a_timeout_of_the_handlers_own_is_its_error(
    server: Any, fresh_name: str, jobs: Queue, keys: Keys
) -> None:
    own = jobs.enqueue(b"own", time_limit_ms=60_000).job_id
    cancelled = jobs.enqueue(b"cancelled").job_id

    async def handler(job: Any) -> None:
        if job.payload == b"cancelled":
            raise asyncio.CancelledError
        async with asyncio.timeout(0.01):
            await asyncio.sleep(PATIENCE_S)

    async def scene(queue: AsyncQueue) -> None:
        await AsyncConsumer(queue, handler, max_attempts=1).run(burst=True)

    play(server, fresh_name, scene)

    assert keys.row(own)["last_error"] == b"TimeoutError"
    assert keys.row(cancelled)["last_error"] == b"CancelledError"


@pytest.mark.parametrize("cancel_lost", [False, True])
def test_a_coroutine_whose_job_is_lost_may_be_cancelled(
    server: Any, fresh_name: str, jobs: Queue, expire: Expire, cancel_lost: bool
) -> None:
    events: list[str] = []
    id = jobs.enqueue(b"").job_id

    async def handler(job: Any) -> None:
        if job.payload == b"cancels":
            raise asyncio.CancelledError  # its own: the slot is not cancelled any more
        if job.payload:
            return
        events.append("begun")
        try:
            await until(lambda: job.lost)
            await asyncio.sleep(0.05)
            events.append("told")
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    async def scene(queue: AsyncQueue) -> None:
        consumer = AsyncConsumer(queue, handler, lease_ms=300, cancel_lost=cancel_lost)
        async with working(consumer):
            await until(lambda: events)
            await anothers(jobs, expire, id)
            await until(lambda: len(events) == 2)
            await queue.enqueue(b"cancels")
            await queue.enqueue(b"next")
            await until(lambda: consumer.stats()["completed"] == 1)
            assert consumer.stats()["retried"] == 1
            assert consumer.stats()["lost"] == 1

    play(server, fresh_name, scene)

    assert events == ["begun", "cancelled" if cancel_lost else "told"]
    assert jobs.state(id) == "active"


def test_functions_do_not_block_the_loop(server: Any, fresh_name: str, jobs: Queue) -> None:
    jobs.enqueue_many([b""] * 4)
    turns = 0

    async def scene(queue: AsyncQueue) -> None:
        nonlocal turns
        consumer = AsyncConsumer(queue, lambda job: time.sleep(0.2), concurrency=4)
        began = monotonic()
        run = asyncio.create_task(consumer.run(burst=True))
        while not run.done():
            await asyncio.sleep(0.01)
            turns += 1
        await run
        assert monotonic() - began < 0.7

    play(server, fresh_name, scene)

    assert turns > 8


def test_a_function_keeps_the_cause_of_what_it_raises(
    server: Any, fresh_name: str, jobs: Queue, keys: Keys
) -> None:
    id = jobs.enqueue(b"").job_id

    def handler(job: Any) -> None:
        raise Retry(1_000_000) from KeyError("cause")

    async def scene(queue: AsyncQueue) -> None:
        async with working(AsyncConsumer(queue, handler)) as consumer:
            await until(lambda: consumer.stats()["retried"] == 1)

    play(server, fresh_name, scene)

    assert keys.row(id)["last_error"] == b"KeyError: 'cause'"


def test_a_function_may_answer_a_coroutine_and_speak_from_both(
    server: Any, fresh_name: str, jobs: Queue
) -> None:
    id = jobs.enqueue(b"", result_ttl_ms=10_000).job_id
    lines: list[int] = []

    def handler(job: Any) -> Awaitable[str]:
        lines.append(job.log("on a thread"))

        async def more() -> str:
            lines.append(await job.log("in the loop"))
            return "done"

        return more()

    async def scene(queue: AsyncQueue) -> None:
        await AsyncConsumer(queue, handler).run(burst=True)
        outcome = await queue.wait(id, 1)
        assert outcome is not None
        assert outcome.result == b"done"

    play(server, fresh_name, scene)

    assert lines == [1, 2]


def test_cancelling_the_run_gives_back_at_once(server: Any, fresh_name: str, jobs: Queue) -> None:
    events: list[str] = []
    jobs.enqueue_many([b""] * 3)

    async def handler(job: Any) -> None:
        events.append("begun")
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            events.append("left")

    async def scene(queue: AsyncQueue) -> None:
        run = asyncio.create_task(AsyncConsumer(queue, handler, batch=3).run(signals=False))
        await until(lambda: events)
        began = monotonic()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert monotonic() - began < 1.0

    play(server, fresh_name, scene)

    assert events == ["begun", "left"]
    assert jobs.counts()["pending"] == 3
    assert {job.attempt for job in jobs.claim_many(3)} == {1}


def test_late_coroutines_are_cancelled(server: Any, fresh_name: str, jobs: Queue) -> None:
    events: list[str] = []
    jobs.enqueue_many([b""] * 2)

    async def handler(job: Any) -> None:
        events.append("begun")
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            events.append("left")

    async def scene(queue: AsyncQueue) -> None:
        consumer = AsyncConsumer(queue, handler, concurrency=2)
        await consumer.start()
        await until(lambda: len(events) == 2)
        began = monotonic()
        await consumer.stop(0.1)
        assert 0.1 <= monotonic() - began < 1.0
        assert consumer.stats()["given_back"] == 2

    play(server, fresh_name, scene)

    assert sorted(events) == ["begun", "begun", "left", "left"]
    assert jobs.counts()["pending"] == 2


def test_a_handler_may_stop_its_worker(server: Any, fresh_name: str, jobs: Queue) -> None:
    jobs.enqueue_many([b""] * 3)

    async def scene(queue: AsyncQueue) -> None:
        async def handler(job: Any) -> None:
            await consumer.stop()

        consumer = AsyncConsumer(queue, handler)
        await consumer.run()
        assert consumer.stats()["completed"] == 1

    play(server, fresh_name, scene)

    assert jobs.counts()["pending"] == 2


def test_another_thread_may_stop_it(server: Any, fresh_name: str) -> None:
    async def handler(job: Any) -> None: ...

    async def scene(queue: AsyncQueue) -> None:
        consumer = AsyncConsumer(queue, handler)
        await consumer.start()
        thread = threading.Thread(target=lambda: asyncio.run(consumer.stop()))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.002)
        assert "stopped" in repr(consumer)

    play(server, fresh_name, scene)


def test_contexts_reach_functions(server: Any, fresh_name: str, jobs: Queue) -> None:
    import contextvars

    var = contextvars.ContextVar("var", default="unset")
    seen: list[str] = []
    jobs.enqueue(b"")

    async def scene(queue: AsyncQueue) -> None:
        var.set("set")
        await AsyncConsumer(queue, lambda job: seen.append(var.get())).run(burst=True)

    play(server, fresh_name, scene)

    assert seen == ["set"]


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.05])
def test_cancelling_the_run_again_and_again_leaves_nothing(
    server: Any, fresh_name: str, jobs: Queue, pause: float
) -> None:
    async def handler(job: Any) -> None:
        await asyncio.sleep(PATIENCE_S)

    async def main() -> None:
        connector = await emq.connect_async(server.url)
        consumer = AsyncConsumer(AsyncQueue(connector, fresh_name), handler)
        run = asyncio.create_task(consumer.run(signals=False))
        while consumer.stats()["started"] < 1:
            await asyncio.sleep(0.01)
        for _ in range(6):
            run.cancel()
            await asyncio.sleep(pause)
        with pytest.raises(asyncio.CancelledError):
            await run
        await asyncio.wait_for(consumer.stop(), 1.0)
        await connector.close()

    jobs.enqueue(b"")
    asyncio.run(main())
    assert (jobs.counts()["pending"], jobs.counts()["active"]) == (1, 0)


@pytest.mark.parametrize("shell", ["threads", "aio"])
def test_a_coroutine_that_ignores_its_limit_has_failed_all_the_same(
    shell: str, server: Any, fresh_name: str, jobs: Queue
) -> None:
    lost: list[bool] = []

    async def handler(job: Any) -> None:
        while not job.lost:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        lost.append(job.lost)

    options: dict[str, Any] = {"time_limit_ms": 100, "backoff": fixed(10**6)}
    id = jobs.enqueue(b"").job_id

    async def main() -> None:
        connector = await emq.connect_async(server.url)
        async with AsyncConsumer(AsyncQueue(connector, fresh_name), handler, **options):
            await asyncio.to_thread(wait_until, lambda: lost, 3.0)
        await connector.close()

    if shell == "aio":
        asyncio.run(main())
    else:
        with Consumer(jobs, handler, **options):
            wait_until(lambda: lost, 3.0)
    assert jobs.state(id) == "scheduled"
    row = jobs.job(id)
    assert row is not None
    assert row.fields["last_error"] == "time limit of 100 ms"

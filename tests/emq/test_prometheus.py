"""What a scrape answers of queues, also of those that cannot be read, and what workers count."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, Gauge, generate_latest

import emq
from emq import AsyncQueue, Mint, Queue
from emq.backoff import fixed
from emq.prometheus import Metrics, QueueCollector
from emq.telemetry import Telemetry
from resp import ConnectFailed

from .workers import Worker

JOB = "JOB0EEMl9I7KXg"


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_a_scrape_reads_the_queues(server: Any, fresh_name: str) -> None:
    now_ms = 1_800_000_000_000
    with emq.connect(server.url) as connector:
        queue = Queue(connector, fresh_name, mint=Mint(node=1, clock=lambda: now_ms))
        other = Queue(connector, f"{fresh_name}-2")
        queue.enqueue_many([b"%d" % n for n in range(6)])
        queue.enqueue(b"later", delay_ms=60_000)
        for _ in range(2):
            queue.complete(queue.claim())  # type: ignore[arg-type]
        queue.retry(queue.claim(), delay_ms=0, max_attempts=1, error="e")  # type: ignore[arg-type]
        queue.claim()
        other.pause()

        registry = CollectorRegistry()
        clock: Callable[[], float] = lambda: now_ms / 1000 + 7.5  # noqa: E731
        registry.register(QueueCollector([queue, other], clock=clock))
        states = ("pending", "active", "scheduled", "dead")
        assert [sample(registry, "emq_jobs", queue=queue.name, state=s) for s in states] == [
            2,
            1,
            1,
            1,
        ]
        assert sample(registry, "emq_up", queue=queue.name) == 1
        assert sample(registry, "emq_jobs_completed_total", queue=queue.name) == 2
        assert sample(registry, "emq_jobs_failed_total", queue=queue.name) == 1
        assert sample(registry, "emq_oldest_pending_age_seconds", queue=queue.name) == 7.5
        assert sample(registry, "emq_paused", queue=queue.name) == 0
        assert sample(registry, "emq_paused", queue=other.name) == 1
        assert sample(registry, "emq_oldest_pending_age_seconds", queue=other.name) == 0
        queue.enqueue(b"more")
        assert sample(registry, "emq_jobs", queue=queue.name, state="pending") == 3


def test_a_producers_fast_clock_gives_no_negative_age(server: Any, fresh_name: str) -> None:
    with emq.connect(server.url) as connector:
        queue = Queue(connector, fresh_name)
        queue.enqueue(b"1")
        registry = CollectorRegistry()
        registry.register(QueueCollector(queue, clock=lambda: 0.0))
        assert sample(registry, "emq_oldest_pending_age_seconds", queue=fresh_name) == 0


def test_an_entry_that_is_no_id_has_no_age(server: Any, fresh_name: str, keys: Any) -> None:
    server.admin.zadd(f"{keys.base}pending", {"foreign": 0})
    with emq.connect(server.url) as connector:
        registry = CollectorRegistry()
        registry.register(QueueCollector(Queue(connector, fresh_name)))
        assert sample(registry, "emq_up", queue=fresh_name) == 1
        assert sample(registry, "emq_jobs", queue=fresh_name, state="pending") == 1
        assert sample(registry, "emq_oldest_pending_age_seconds", queue=fresh_name) is None


class Down:
    """A connector whose server is away."""

    def __init__(self) -> None:
        self.asked = 0

    def run(self, plan: Any) -> Any:
        self.asked += 1
        raise ConnectFailed("away")

    def subscribe(self, *channels: Any, **options: Any) -> Any:
        raise NotImplementedError


def test_a_queue_that_cannot_be_read_is_down(
    server: Any, fresh_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    connector = Down()
    away, also = Queue(connector, "away"), Queue(connector, "also")
    with emq.connect(server.url) as working:
        fine = Queue(working, fresh_name)
        broken = Queue(working, f"{fresh_name}-2")
        server.admin.set(broken.keys.pending, "not a sorted set")
        registry = CollectorRegistry()
        registry.register(QueueCollector([away, also, broken, fine]))
        assert connector.asked == 0
        with caplog.at_level(logging.WARNING, "emq.prometheus"):
            text = [generate_latest(registry).decode() for _ in range(2)][1]

    assert 'emq_up{queue="away"} 0.0' in text
    assert 'emq_up{queue="also"} 0.0' in text
    assert f'emq_up{{queue="{broken.name}"}} 0.0' in text
    assert f'emq_up{{queue="{fine.name}"}} 1.0' in text
    assert 'emq_jobs{queue="away"' not in text
    assert connector.asked == 2  # once a scrape, whatever the number of its queues
    said = [record.getMessage().partition(" cannot")[0] for record in caplog.records]
    assert said == ["queue away", f"queue {broken.name}"]


def test_only_queues_on_threads_are_taken(server: Any) -> None:
    class Awaited:
        async def run(self, plan: Any) -> Any: ...
        async def subscribe(self, *channels: Any, **options: Any) -> Any: ...

    queue: Any = AsyncQueue(Awaited(), "q")
    with pytest.raises(TypeError, match="not AsyncQueue; give the collector a connector"):
        QueueCollector([queue])


def test_workers_are_counted_as_their_telemetry_tells() -> None:
    telemetry, registry = Telemetry(), CollectorRegistry()
    metrics = Metrics(telemetry, registry=registry, buckets_s=(0.1, 1))
    telemetry.worker_started("q", "w", 2)
    for _ in range(4):
        telemetry.job_started("q", JOB)
    telemetry.job_completed("q", JOB, 50_000_000)
    telemetry.job_completed("q", JOB, 500_000_000)
    telemetry.job_failed("q", JOB, 2_000_000_000, "e")
    telemetry.job_retried("q", JOB, 1, 10)
    telemetry.job_lost("q", JOB, 1)

    def count(what: str) -> float | None:
        return sample(registry, f"emq_worker_jobs_{what}_total", queue="q")

    whats = ("started", "completed", "failed", "retried", "lost")
    assert [count(what) for what in whats] == [4, 2, 1, 1, 1]
    seconds = "emq_job_duration_seconds"
    done: dict[str, str] = {"queue": "q", "outcome": "completed"}
    assert sample(registry, f"{seconds}_bucket", **done, le="0.1") == 1
    assert sample(registry, f"{seconds}_bucket", **done, le="1.0") == 2
    assert sample(registry, f"{seconds}_sum", **done) == pytest.approx(0.55)
    assert sample(registry, f"{seconds}_count", queue="q", outcome="failed") == 1
    assert sample(registry, "emq_workers", queue="q") == 1
    telemetry.worker_stopped("q", "w", 1)
    assert sample(registry, "emq_workers", queue="q") == 0

    metrics.close()
    telemetry.job_started("q", JOB)
    assert count("started") is None
    Metrics(telemetry, registry=registry).close()


def test_metrics_that_are_there_already_leave_nothing_behind() -> None:
    registry = CollectorRegistry()
    Gauge("emq_workers", "Another's.", registry=registry)
    before = generate_latest(registry)
    telemetry = Telemetry()
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(telemetry, registry=registry)
    assert generate_latest(registry) == before
    assert telemetry._attached == []


def test_without_the_client_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; import emq.prometheus"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'echomq[prometheus]'" in done.stderr


def test_a_workers_metrics_are_those_of_its_jobs(server: Any, fresh_name: str) -> None:
    telemetry, registry = Telemetry(), CollectorRegistry()
    Metrics(telemetry, registry=registry)

    def handler(job: Any) -> None:
        if job.payload == b"bad" and job.attempt == 1:
            raise ValueError("boom")

    with emq.connect(server.url) as connector:
        queue = Queue(connector, fresh_name)
        good, bad = (queue.enqueue(each, result_ttl_ms=60_000) for each in (b"good", b"bad"))
        options: dict[str, Any] = {"backoff": fixed(0), "telemetry": telemetry}
        with contextlib.closing(
            Worker("threads", server.url, fresh_name, handler, **options)
        ) as worker:
            worker.start()
            assert queue.wait(good.job_id, timeout=20)
            assert queue.wait(bad.job_id, timeout=20)
            assert sample(registry, "emq_workers", queue=fresh_name) == 1

    assert [
        sample(registry, f"emq_worker_jobs_{what}_total", queue=fresh_name)
        for what in ("started", "completed", "failed", "retried")
    ] == [3, 2, 1, 1]
    assert sample(registry, "emq_workers", queue=fresh_name) == 0

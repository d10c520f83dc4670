"""Numbers for Prometheus: what stands in queues, read when it scrapes, and what a worker does.

    REGISTRY.register(QueueCollector([orders, mails]))   # in one program that watches
    Metrics(telemetry)                                   # in each worker, told by its telemetry

Needs `prometheus_client` (the extra `prometheus`). A scrape is synchronous, so the queues are those
for threads; a program on asyncio gives the collector a connector of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "emq.prometheus needs prometheus_client; install it with: pip install 'echomq[prometheus]'"
    ) from error

from resp import TransportError

from .errors import ContractError
from .ids import parse
from .queue import Queue
from .telemetry import Telemetry

_log: Final = logging.getLogger("emq.prometheus")

# As states are called elsewhere; the place of the scheduled ones is called `schedule`.
_STATES: Final = {
    "pending": "pending",
    "active": "active",
    "scheduled": "schedule",
    "dead": "dead",
}
_BUCKETS_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
)
_NS: Final = 1e-9


class _Reading(NamedTuple):
    counts: Mapping[str, int]
    oldest_s: float | None
    paused: bool


class QueueCollector(Collector):
    """What stands in queues, read anew for each scrape.

        emq_up{queue}                          1 if the queue was read, else 0 and no more of it
        emq_jobs{queue,state}                  jobs that are pending, active, scheduled, dead
        emq_oldest_pending_age_seconds{queue}  since the job that is next was enqueued; 0 if none is
        emq_paused{queue}                      1 while nothing is handed out
        emq_jobs_completed_total{queue}        jobs done since the queue was made
        emq_jobs_failed_total{queue}           jobs dead since then

    The age is the difference of two machines' clocks: that of the producer, and this one's. A job
    that was put off or retried keeps the time at which it was first enqueued.

    Args:
        queues: A `Queue`, or several. After a connector was found to be down, others of its queues
            are not tried in the same scrape.
        clock: Answers seconds since 1970.

    Raises:
        TypeError: They are no Queues; an AsyncQueue is none.
    """

    def __init__(
        self, queues: Queue | Iterable[Queue], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._queues = [queues] if isinstance(queues, Queue) else list(_several(queues))
        self._clock = clock
        self._down: set[str] = set()

    def describe(self) -> Iterator[Metric]:
        """The metrics without values: to register the collector asks nobody anything."""
        yield from _Families()

    def collect(self) -> Iterator[Metric]:
        """Read the queues. One that cannot be read is down; nothing is raised."""
        families = _Families()
        unreachable: set[int] = set()
        for queue in self._queues:
            reading = None if id(queue.connector) in unreachable else self._read(queue, unreachable)
            families.up.add_metric([queue.name], 0.0 if reading is None else 1.0)
            if reading is not None:
                families.add(queue.name, reading)
        yield from families

    def _read(self, queue: Queue, unreachable: set[int]) -> _Reading | None:
        try:
            reading = _Reading(queue.counts(), self._oldest_s(queue), queue.paused())
        except Exception as error:
            if isinstance(error, TransportError):
                unreachable.add(id(queue.connector))
            if queue.name not in self._down:
                self._down.add(queue.name)
                _log.warning("queue %s cannot be read: %s", queue.name, error)
            return None
        self._down.discard(queue.name)
        return reading

    def _oldest_s(self, queue: Queue) -> float | None:
        try:
            first = queue.peek("pending", 1)
        except ContractError:  # another program's entry: nobody knows since when
            return None
        if not first:
            return 0.0
        return max(0.0, self._clock() - parse(first[0].job_id).unix_ms / 1000)


def _several(queues: Iterable[Queue]) -> Iterator[Queue]:
    for queue in queues:
        if not isinstance(queue, Queue):
            raise TypeError(
                f"queues are Queues on threads, not {type(queue).__name__}; give the collector a "
                "connector of its own"
            )
        yield queue


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        label = ["queue"]
        self.up = GaugeMetricFamily("emq_up", "Whether the queue could be read.", labels=label)
        self.jobs = GaugeMetricFamily("emq_jobs", "Jobs by state.", labels=[*label, "state"])
        self.oldest = GaugeMetricFamily(
            "emq_oldest_pending_age_seconds",
            "Since the job that is next was enqueued.",
            labels=label,
        )
        self.paused = GaugeMetricFamily(
            "emq_paused", "Whether the queue hands out nothing.", labels=label
        )
        self.completed = CounterMetricFamily("emq_jobs_completed", "Jobs done.", labels=label)
        self.failed = CounterMetricFamily("emq_jobs_failed", "Jobs dead.", labels=label)

    def __iter__(self) -> Iterator[Metric]:
        return iter((self.up, self.jobs, self.oldest, self.paused, self.completed, self.failed))

    def add(self, queue: str, reading: _Reading) -> None:
        for state, place in _STATES.items():
            self.jobs.add_metric([queue, state], reading.counts[place])
        if reading.oldest_s is not None:
            self.oldest.add_metric([queue], reading.oldest_s)
        self.paused.add_metric([queue], reading.paused)
        self.completed.add_metric([queue], reading.counts["completed"])
        self.failed.add_metric([queue], reading.counts["failed"])


class Metrics:
    """What the workers of this process do, counted as their telemetry tells it.

        emq_worker_jobs_started_total{queue}    attempts begun
        emq_worker_jobs_completed_total{queue}  attempts that ended well
        emq_worker_jobs_failed_total{queue}     attempts that failed
        emq_worker_jobs_retried_total{queue}    failed attempts after which there will be another
        emq_worker_jobs_lost_total{queue}       attempts whose lease ended under them
        emq_job_duration_seconds{queue,outcome} how long attempts took, completed or failed
        emq_workers{queue}                      workers that run now

    Args:
        telemetry: Which workers are given, too; an `OpenTelemetry` is one.
        registry: Where the metrics are registered; None is prometheus_client's own.
        buckets_s: Upper bounds of the histogram, in seconds.

    Raises:
        ValueError: The registry has metrics of these names already.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        registry: CollectorRegistry | None = None,
        buckets_s: Iterable[float] = _BUCKETS_S,
    ) -> None:
        self._registry = REGISTRY if registry is None else registry
        # Made without a registry, so that a name that is taken leaves none of them registered.
        self._duration = Histogram(
            "emq_job_duration_seconds",
            "How long attempts took.",
            ["queue", "outcome"],
            buckets=tuple(buckets_s),
            registry=None,
        )
        self._started = _counter("started", "Attempts begun.")
        self._completed = _counter("completed", "Attempts that ended well.")
        self._failed = _counter("failed", "Attempts that failed.")
        self._retried = _counter("retried", "Failed attempts that will be followed by another.")
        self._lost = _counter("lost", "Attempts whose lease ended under them.")
        self._workers = Gauge("emq_workers", "Workers that run now.", ["queue"], registry=None)
        self._made: list[Collector] = []
        try:
            for each in (
                self._duration,
                self._started,
                self._completed,
                self._failed,
                self._retried,
                self._lost,
                self._workers,
            ):
                self._registry.register(each)
                self._made.append(each)
        except ValueError:
            self._unregister()
            raise
        told = {
            "emq.job.start": lambda queue, _: self._started.labels(queue).inc(),
            "emq.job.complete": self._on_complete,
            "emq.job.fail": self._on_fail,
            "emq.job.retry": lambda queue, _: self._retried.labels(queue).inc(),
            "emq.job.lost": lambda queue, _: self._lost.labels(queue).inc(),
            "emq.worker.start": lambda queue, _: self._workers.labels(queue).inc(),
            "emq.worker.stop": lambda queue, _: self._workers.labels(queue).dec(),
        }
        self._detach = [telemetry.attach(name, _hook(tell)) for name, tell in told.items()]

    def close(self) -> None:
        """Count no more, and take the metrics out of the registry."""
        for detach in self._detach:
            detach()
        self._unregister()

    def _unregister(self) -> None:
        while self._made:
            self._registry.unregister(self._made.pop())

    def _on_complete(self, queue: str, measurements: Mapping[str, Any]) -> None:
        self._completed.labels(queue).inc()
        self._duration.labels(queue, "completed").observe(measurements["duration"] * _NS)

    def _on_fail(self, queue: str, measurements: Mapping[str, Any]) -> None:
        self._failed.labels(queue).inc()
        self._duration.labels(queue, "failed").observe(measurements["duration"] * _NS)


def _counter(what: str, told: str) -> Counter:
    return Counter(f"emq_worker_jobs_{what}", told, ["queue"], registry=None)


def _hook(
    tell: Callable[[str, Mapping[str, Any]], None],
) -> Callable[[str, Mapping[str, Any], Mapping[str, Any]], None]:
    return lambda _, measurements, metadata: tell(metadata["queue"], measurements)


__all__ = ["Metrics", "QueueCollector"]

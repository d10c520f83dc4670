"""Traces: a span for an enqueue, one for each attempt, and what leads from one to the other."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import emq
from emq import Item, Queue
from emq.backoff import fixed
from emq.otel import OpenTelemetry
from emq.tasks import Tasks
from emq.work import Delay

from .workers import KINDS, Worker, until

JOB = "JOB0EEMl9I7KXg"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


@pytest.fixture
def telemetry(provider: TracerProvider) -> OpenTelemetry:
    return OpenTelemetry(tracer_provider=provider)


def held(headers: Mapping[str, str], id: str = JOB, attempt: int = 1) -> Any:
    return SimpleNamespace(id=id, queue="orders", attempt=attempt, headers=headers)


@pytest.fixture
def queue(server: Any, fresh_name: str) -> Iterator[Queue]:
    with emq.connect(server.url) as connector:
        yield Queue(connector, fresh_name)


def test_an_attempt_is_a_child_of_its_enqueue(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter, queue: Queue
) -> None:
    receipt = telemetry.enqueue(queue, b"secret")
    job = queue.claim()
    assert job is not None
    assert job.payload == b"secret"
    with telemetry.handling(held(job.settings.headers, job.id, 2)):
        assert trace.get_current_span().is_recording()
    assert not trace.get_current_span().is_recording()

    sent, done = spans.get_finished_spans()
    assert (sent.name, sent.kind) == (f"emq.enqueue {queue.name}", SpanKind.PRODUCER)
    assert dict(sent.attributes or {}) == {
        "messaging.system": "emq",
        "messaging.destination.name": queue.name,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.message.id": receipt.job_id,
        "emq.admitted": True,
    }
    assert (done.name, done.kind) == ("emq.process orders", SpanKind.CONSUMER)
    assert dict(done.attributes or {}) == {
        "messaging.system": "emq",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": job.id,
        "emq.attempt": 2,
    }
    assert sent.context is not None
    assert done.context is not None
    assert done.parent is not None
    assert done.parent.span_id == sent.context.span_id
    assert done.context.trace_id == sent.context.trace_id
    assert (sent.status.status_code, done.status.status_code) == (StatusCode.UNSET,) * 2
    assert "secret" not in sent.to_json() + done.to_json()


def test_the_context_is_carried_as_traceparent(
    telemetry: OpenTelemetry, provider: TracerProvider
) -> None:
    assert telemetry.headers() == {}
    with provider.get_tracer("test").start_as_current_span("root") as root:
        headers = telemetry.headers()
    context = root.get_span_context()
    told = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert headers == {"traceparent": told}


def test_tracestate_goes_on(telemetry: OpenTelemetry) -> None:
    given = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=value",
    }
    with telemetry.handling(held(given)):
        carried = telemetry.headers()
    assert carried["tracestate"] == "vendor=value"
    assert carried["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")


def test_an_attempt_can_be_linked_instead(
    provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    telemetry = OpenTelemetry(tracer_provider=provider, link=True)
    with telemetry.sending("orders") as sending:
        pass
    with telemetry.handling(held(sending.headers)):
        pass

    sent, done = spans.get_finished_spans()
    assert done.parent is None
    assert [link.context for link in done.links] == [
        trace.SpanContext(
            sent.context.trace_id, sent.context.span_id, True, sent.context.trace_flags
        )
    ]


@pytest.mark.parametrize(
    "headers", [{}, {"traceparent": ""}, {"traceparent": "x" * 1000}, {"other": "é"}]
)
def test_a_job_without_a_context_begins_a_trace(
    telemetry: OpenTelemetry,
    provider: TracerProvider,
    spans: InMemorySpanExporter,
    headers: dict[str, str],
) -> None:
    with (
        provider.get_tracer("test").start_as_current_span("the worker's own"),
        telemetry.handling(held(headers)),
    ):
        pass
    done = spans.get_finished_spans()[0]
    assert done.name == "emq.process orders"
    assert done.parent is None


def test_a_batch_is_linked_to_all_who_sent_it(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter, queue: Queue
) -> None:
    telemetry.enqueue_many(queue, [b"1", Item(b"2")])
    telemetry.enqueue(queue, b"3")
    queue.enqueue(b"4")
    jobs = queue.claim_many(5)
    with telemetry.handling(*(held(job.settings.headers, job.id) for job in jobs)):
        pass

    many, one, done = spans.get_finished_spans()
    assert many.attributes is not None
    assert many.attributes["messaging.batch.message_count"] == 2
    assert many.attributes["emq.admitted_count"] == 2
    assert [link.context.span_id for link in done.links] == [
        many.context.span_id,
        many.context.span_id,
        one.context.span_id,
    ]
    assert done.attributes is not None
    assert done.attributes["messaging.batch.message_count"] == 4


def test_a_handlers_exception_is_recorded_and_goes_on(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter
) -> None:
    error = ValueError("boom")
    with pytest.raises(ValueError, match="boom") as raised, telemetry.handling(held({})):
        raise error

    assert raised.value is error
    [done] = spans.get_finished_spans()
    assert done.status.status_code is StatusCode.ERROR
    assert done.attributes is not None
    assert done.attributes["error.type"] == "ValueError"
    [event] = done.events
    assert event.name == "exception"
    assert event.attributes is not None
    assert event.attributes["exception.message"] == "boom"


def test_what_is_put_off_did_not_fail(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter
) -> None:
    with pytest.raises(Delay), telemetry.handling(held({})):
        raise Delay(10)
    [done] = spans.get_finished_spans()
    assert (done.status.status_code, done.events) == (StatusCode.UNSET, ())


def test_an_interrupt_is_an_error_without_an_event(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter
) -> None:
    with pytest.raises(KeyboardInterrupt), telemetry.handling(held({})):
        raise KeyboardInterrupt
    [done] = spans.get_finished_spans()
    assert (done.status.status_code, done.events) == (StatusCode.ERROR, ())


def test_an_enqueue_that_is_refused_is_recorded(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter, queue: Queue
) -> None:
    with pytest.raises(ValueError, match="branded id"):
        telemetry.enqueue(queue, b"1", job_id="no id")
    [sent] = spans.get_finished_spans()
    assert sent.status.status_code is StatusCode.ERROR
    assert sent.attributes is not None
    assert sent.attributes["error.type"] == "emq.errors.InvalidId"


def test_an_async_queue_is_traced_too(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter, server: Any, fresh_name: str
) -> None:
    async def go() -> list[Any]:
        async with await emq.connect_async(server.url) as connector:
            queue = emq.AsyncQueue(connector, fresh_name)
            await telemetry.enqueue_async(queue, b"1")
            await telemetry.enqueue_many_async(queue, [b"2"])
            await Tasks(telemetry=telemetry).task(name="t")(print).enqueue_async(queue)
            return await queue.claim_many(5)

    jobs = asyncio.run(go())
    sent = spans.get_finished_spans()
    assert [job.settings.headers["traceparent"].split("-")[2] for job in jobs] == [
        f"{span.context.span_id:016x}" for span in sent
    ]


def test_it_is_still_a_telemetry(telemetry: OpenTelemetry, queue: Queue) -> None:
    heard: list[str] = []
    telemetry.attach("emq", lambda name, *_: heard.append(name))
    telemetry.enqueue(queue, b"1")
    assert heard == ["emq.job.add"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_traces_its_attempts(
    telemetry: OpenTelemetry,
    spans: InMemorySpanExporter,
    server: Any,
    queue: Queue,
    kind: str,
) -> None:
    attempts: list[Any] = []

    def handler(job: Any) -> None:
        attempts.append(trace.get_current_span().get_span_context())
        if job.attempt == 1:
            raise ValueError("boom")

    options = {"backoff": fixed(0), "telemetry": telemetry}
    receipt = telemetry.enqueue(queue, b"1", result_ttl_ms=60_000)
    with contextlib.closing(Worker(kind, server.url, queue.name, handler, **options)) as worker:
        worker.start()
        outcome = queue.wait(receipt.job_id, timeout=20)

    assert outcome is not None
    assert outcome.state == "completed"
    sent, first, second = spans.get_finished_spans()
    for span, number in ((first, 1), (second, 2)):
        assert span.parent is not None
        assert span.parent.span_id == sent.context.span_id
        assert span.attributes is not None
        assert span.attributes["emq.attempt"] == number
    assert [each.span_id for each in attempts] == [first.context.span_id, second.context.span_id]
    assert (first.status.status_code, second.status.status_code) == (
        StatusCode.ERROR,
        StatusCode.UNSET,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_telemetry_names_the_task_that_runs(
    telemetry: OpenTelemetry, spans: InMemorySpanExporter, server: Any, queue: Queue, kind: str
) -> None:
    tasks = Tasks()
    greet = tasks.task(name="greet", result_ttl_ms=60_000)(lambda: "hello")
    names: list[object] = []
    telemetry.attach("emq.job", lambda _, __, metadata: names.append(metadata["job_name"]))
    handler: Any = tasks.on_loop if kind == "aio" else tasks

    receipt = greet.enqueue(queue)
    stranger = queue.enqueue(b'{"task":"secret"}', max_attempts=1)
    with contextlib.closing(Worker(kind, server.url, queue.name, lambda job: None)) as worker:
        worker.consumer = type(worker.consumer)(
            worker.consumer.queue, handler, telemetry=telemetry, name="w"
        )
        worker.start()
        queue.wait(receipt.job_id, timeout=20)
        until(lambda: queue.state(stranger.job_id) == "dead" and len(names) == 4)

    assert names[:2] == ["greet", "greet"]
    assert "secret" not in names
    first, second = spans.get_finished_spans()
    assert (first.attributes or {})["emq.task"] == "greet"
    assert "emq.task" not in (second.attributes or {})


def test_without_the_api_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import emq.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'echomq[otel]'" in done.stderr

"""Traces of jobs through OpenTelemetry: from the enqueue to every attempt, wherever it runs.

    telemetry = OpenTelemetry()
    telemetry.enqueue(queue, payload)                      # a producer's span
    Consumer(queue, handler, telemetry=telemetry).run()    # a consumer's span for each attempt

Needs `opentelemetry-api` (the extra `otel`); where the spans go is up to the program's own set-up
of its SDK. The trace's context travels in the job's headers, beside the payload, which stays as it
is. Spans tell ids, names and numbers, and the exceptions of handlers; never a payload.

Source: OpenTelemetry semantic conventions, "Messaging spans"; W3C Trace Context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.propagators.textmap import TextMapPropagator
except ImportError as error:
    raise ImportError(
        "emq.otel needs opentelemetry-api; install it with: pip install 'echomq[otel]'"
    ) from error

from .job import Receipt
from .telemetry import Handled, Sending, Telemetry
from .work import Delay

_SYSTEM: Final = {"messaging.system": "emq"}


class OpenTelemetry(Telemetry):
    """A `Telemetry` that also traces.

    Args:
        tracer_provider: Makes the spans; None is the program's own.
        propagator: Writes and reads the headers; None is the program's own, whose default is the
            W3C's `traceparent` and `tracestate`, and baggage.
        link: An attempt is a trace of its own, linked to the producer's, where it otherwise is a
            part of the producer's trace. For jobs that run long after they were enqueued.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
        link: bool = False,
    ) -> None:
        super().__init__()
        self._tracer = trace.get_tracer("emq", tracer_provider=tracer_provider)
        self._propagator = propagator
        self._link = link

    def headers(self) -> dict[str, str]:
        """Answer the current context as headers, for `Queue.enqueue`; {} where there is none."""
        carrier: dict[str, str] = {}
        self._through.inject(carrier)
        return carrier

    def sending(self, queue: str, count: int = 1) -> AbstractContextManager[Sending]:
        """Put a producer's span around an enqueue; what it carries leads back to that span."""
        return self._sending(queue, count)

    @contextmanager
    def _sending(self, queue: str, count: int) -> Iterator[Sending]:
        attributes: dict[str, Any] = {
            **_SYSTEM,
            "messaging.destination.name": queue,
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
        }
        if count != 1:
            attributes["messaging.batch.message_count"] = count
        with self._tracer.start_as_current_span(
            f"emq.enqueue {queue}",
            kind=trace.SpanKind.PRODUCER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield _TracedSending(self.headers(), span)
            except BaseException as error:
                _record(span, error)
                raise

    def handling(self, *jobs: Handled) -> AbstractContextManager[object]:
        """Put a consumer's span around a handler's run.

        A single job's span is the child of its producer's, or linked to it as the constructor was
        told; a batch's span is linked to each of its jobs' producers.
        """
        return self._handling(jobs)

    @contextmanager
    def _handling(self, jobs: Sequence[Handled]) -> Iterator[trace.Span]:
        # From an empty context: what the worker itself is traced in is not where the job came from.
        given = [self._through.extract(job.headers, contexts.Context()) for job in jobs]
        child = len(given) == 1 and not self._link
        parent = given[0] if child else contexts.Context()
        origins = [trace.get_current_span(each).get_span_context() for each in given]
        links = [] if child else [trace.Link(origin) for origin in origins if origin.is_valid]
        queue = jobs[0].queue if jobs else ""
        token = contexts.attach(parent)
        try:
            with self._tracer.start_as_current_span(
                f"emq.process {queue}",
                kind=trace.SpanKind.CONSUMER,
                attributes=_of(jobs, queue),
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    yield span
                except BaseException as error:
                    if not isinstance(error, Delay):  # the job is put off: nothing went wrong
                        _record(span, error)
                    raise
        finally:
            contexts.detach(token)

    @property
    def _through(self) -> TextMapPropagator:
        return self._propagator or propagate.get_global_textmap()


class _TracedSending(Sending):
    def __init__(self, headers: Mapping[str, str], span: trace.Span) -> None:
        super().__init__(headers)
        self._span = span

    def sent(self, receipts: Sequence[Receipt]) -> None:
        if len(receipts) == 1:
            self._span.set_attribute("messaging.message.id", receipts[0].job_id)
            self._span.set_attribute("emq.admitted", receipts[0].admitted)
        else:
            admitted = sum(receipt.admitted for receipt in receipts)
            self._span.set_attribute("emq.admitted_count", admitted)


def _of(jobs: Sequence[Handled], queue: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        **_SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
    }
    if len(jobs) == 1:
        attributes["messaging.message.id"] = jobs[0].id
        attributes["emq.attempt"] = jobs[0].attempt
        if name := getattr(jobs[0], "name", None):
            attributes["emq.task"] = name
    else:
        attributes["messaging.batch.message_count"] = len(jobs)
    return attributes


def _record(span: trace.Span, error: BaseException) -> None:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    span.set_attribute("error.type", name)
    span.set_status(trace.StatusCode.ERROR, kind.__name__)
    if isinstance(error, Exception):
        span.record_exception(error)


__all__ = ["OpenTelemetry"]

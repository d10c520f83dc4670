"""What a program is told of its jobs, its workers and its connector: hooks on named events.

    telemetry = Telemetry()
    detach = telemetry.attach("emq.job", lambda name, measurements, metadata: print(name, metadata))

A `Telemetry` is a value that is passed to whoever tells: nothing is registered anywhere else. An
event has a name of dotted words, measurements (numbers) and metadata (what it was about, never a
payload). The names are those that nodes of other makes use:

    event                              measurements          metadata
    emq.job.add                        queue_time            queue job_id job_name
    emq.job.start                      system_time           queue job_id job_name worker
    emq.job.complete                   duration              queue job_id job_name worker
    emq.job.fail                       duration              queue job_id job_name worker error
    emq.job.retry                      attempt delay         queue job_id job_name
    emq.job.lost                       duration              queue job_id job_name worker
    emq.worker.start                   concurrency           queue worker
    emq.worker.stop                    uptime                queue worker
    emq.rate_limit.hit                 delay                 queue
    emq.connector.connection           duration              label
    emq.connector.reconnect            duration              label
    emq.connector.disconnection        duration              label error
    emq.connector.overload             commands              label error
    emq.connector.pipeline.stop        duration commands     label kind command error
    emq.<suffix>.start                 system_time           as the span was given
    emq.<suffix>.stop                  duration              as the span was given
    emq.<suffix>.exception             duration              and kind reason stacktrace

`duration`, `uptime`, `system_time` and `queue_time` are whole nanoseconds, the latter two since
1970 by this machine's clock; `delay` is in milliseconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from .job import Blob, Item, Receipt
from .plans.arguments import many

if TYPE_CHECKING:
    from resp import Event as ConnectorEvent

    from .queue import AsyncQueue, Queue

Hook: TypeAlias = Callable[[str, Mapping[str, Any], Mapping[str, Any]], object]

_log: Final = logging.getLogger("emq.telemetry")
_NOTHING: Final[Mapping[str, Any]] = {}


class Handled(Protocol):
    """What telemetry reads of a job that a handler has in hand."""

    @property
    def id(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


class Sending:
    """Jobs on their way to a queue.

    Attributes:
        headers: What to carry with each of them, beside its payload.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers

    def sent(self, receipts: Sequence[Receipt]) -> None:
        """They were enqueued: what became of each."""


class Telemetry:
    """Hooks on named events. Any number of threads and tasks may attach and emit at once.

    Hooks run where the event happens, in the order in which they were attached; they should count
    and return. One that raises is logged the first time, and harms neither the others nor whoever
    told. With no hook attached an event costs about as much as a method call.
    """

    def __init__(self) -> None:
        self._attached: list[_Attachment] = []

    def attach(self, name: str, hook: Hook) -> Callable[[], None]:
        """Call `hook(name, measurements, metadata)` for events, and answer what ends that.

        Args:
            name: An event's name, or the words that names begin with: `emq.job` stands for
                `emq.job.start` and all others of its kind; `""` for every event.
            hook: Must not change what it is given: the next hook gets the same.

        Returns:
            A callable that detaches the hook; calling it again does nothing. An event that is
            being told meanwhile may still reach the hook.
        """
        if not isinstance(name, str):
            raise TypeError(f"name is an event's name or prefix, not {type(name).__name__}")
        if not callable(hook):
            raise TypeError(f"hook is a callable, not {type(hook).__name__}")
        attachment = _Attachment(name, hook)
        self._attached.append(attachment)

        def detach() -> None:
            with suppress(ValueError):
                self._attached.remove(attachment)

        return detach

    def emit(
        self,
        name: str,
        measurements: Mapping[str, Any] = _NOTHING,
        metadata: Mapping[str, Any] = _NOTHING,
    ) -> None:
        """Tell every hook that is attached to `name`."""
        if not self._attached:
            return
        for attachment in tuple(self._attached):
            if attachment.takes(name):
                attachment.call(name, measurements, metadata)

    def span(
        self, suffix: str, metadata: Mapping[str, Any] = _NOTHING
    ) -> AbstractContextManager[None]:
        """Tell that a block begins, and how it ends: `emq.<suffix>.start`, `.stop`, `.exception`.

        An exception goes on as it came; `.exception` carries it as `reason`, its traceback as
        `stacktrace`, and as `kind` "error", or "exit" for what is no Exception.
        """
        return _Span(self, f"emq.{suffix}", metadata)

    # What goes with a job, and what is put around it. A subclass that traces has more to say.

    def headers(self) -> dict[str, str]:
        """Answer what to carry with a job that is enqueued now, such as a trace's context."""
        return {}

    def handling(self, *jobs: Handled) -> AbstractContextManager[object]:
        """Answer what to put around a handler's run on a job, or on a batch of them."""
        return nullcontext()

    def sending(self, queue: str, count: int = 1) -> AbstractContextManager[Sending]:
        """Answer what to put around an enqueue of `count` jobs."""
        return nullcontext(Sending(self.headers()))

    # Enqueue, and tell of it. The callers' own headers win.

    def enqueue(
        self,
        queue: Queue,
        payload: Blob,
        *,
        headers: Mapping[str, str] | None = None,
        job_name: str | None = None,
        **options: Any,
    ) -> Receipt:
        """Enqueue a job as `queue.enqueue` does, with what it has to carry; tell `emq.job.add`.

        Args:
            queue, payload, headers, **options: As `Queue.enqueue` takes them.
            job_name: Of what kind the job is; told, and not sent.
        """
        with self.sending(queue.name) as sending:
            carried = {**sending.headers, **(headers or {})}
            receipt = queue.enqueue(payload, headers=carried or None, **options)
            sending.sent((receipt,))
        self._added(queue.name, (receipt,), job_name)
        return receipt

    async def enqueue_async(
        self,
        queue: AsyncQueue,
        payload: Blob,
        *,
        headers: Mapping[str, str] | None = None,
        job_name: str | None = None,
        **options: Any,
    ) -> Receipt:
        """Do what `enqueue` does, on an `AsyncQueue`."""
        with self.sending(queue.name) as sending:
            carried = {**sending.headers, **(headers or {})}
            receipt = await queue.enqueue(payload, headers=carried or None, **options)
            sending.sent((receipt,))
        self._added(queue.name, (receipt,), job_name)
        return receipt

    def enqueue_many(self, queue: Queue, items: Iterable[Blob | Item]) -> list[Receipt]:
        """Enqueue jobs as `queue.enqueue_many` does, all with what they have to carry."""
        items = many("items", items, "payloads or Items")
        with self.sending(queue.name, len(items)) as sending:
            receipts = queue.enqueue_many(list(_carrying(items, sending.headers)))
            sending.sent(receipts)
        self._added(queue.name, receipts, None)
        return receipts

    async def enqueue_many_async(
        self, queue: AsyncQueue, items: Iterable[Blob | Item]
    ) -> list[Receipt]:
        """Do what `enqueue_many` does, on an `AsyncQueue`."""
        items = many("items", items, "payloads or Items")
        with self.sending(queue.name, len(items)) as sending:
            receipts = await queue.enqueue_many(list(_carrying(items, sending.headers)))
            sending.sent(receipts)
        self._added(queue.name, receipts, None)
        return receipts

    def _added(self, queue: str, receipts: Sequence[Receipt], job_name: str | None) -> None:
        if self._attached:
            for receipt in receipts:
                if receipt.admitted:
                    self.job_added(queue, receipt.job_id, job_name=job_name)

    # The events, one a method.

    def job_added(self, queue: str, job_id: str, *, job_name: str | None = None) -> None:
        """A job was enqueued."""
        if self._attached:
            self.emit(
                "emq.job.add",
                {"queue_time": time.time_ns()},
                {"queue": queue, "job_id": job_id, "job_name": job_name},
            )

    def job_started(
        self, queue: str, job_id: str, *, job_name: str | None = None, worker: str | None = None
    ) -> None:
        """A handler begins with a job."""
        if self._attached:
            self.emit(
                "emq.job.start",
                {"system_time": time.time_ns()},
                _of_a_job(queue, job_id, job_name, worker),
            )

    def job_completed(
        self,
        queue: str,
        job_id: str,
        duration_ns: int,
        *,
        job_name: str | None = None,
        worker: str | None = None,
    ) -> None:
        """A handler did a job, and it was settled as done."""
        if self._attached:
            self.emit(
                "emq.job.complete",
                {"duration": duration_ns},
                _of_a_job(queue, job_id, job_name, worker),
            )

    def job_failed(
        self,
        queue: str,
        job_id: str,
        duration_ns: int,
        error: object,
        *,
        job_name: str | None = None,
        worker: str | None = None,
    ) -> None:
        """A handler failed on a job; `error` is the exception, or a text."""
        if self._attached:
            self.emit(
                "emq.job.fail",
                {"duration": duration_ns},
                {**_of_a_job(queue, job_id, job_name, worker), "error": error},
            )

    def job_retried(
        self,
        queue: str,
        job_id: str,
        attempt: int,
        delay_ms: int,
        *,
        job_name: str | None = None,
    ) -> None:
        """A job whose attempt of this number failed will be tried again after a delay."""
        if self._attached:
            self.emit(
                "emq.job.retry",
                {"attempt": attempt, "delay": delay_ms},
                {"queue": queue, "job_id": job_id, "job_name": job_name},
            )

    def job_lost(
        self,
        queue: str,
        job_id: str,
        duration_ns: int,
        *,
        job_name: str | None = None,
        worker: str | None = None,
    ) -> None:
        """A handler's lease ended under it: another worker may have the job."""
        if self._attached:
            self.emit(
                "emq.job.lost",
                {"duration": duration_ns},
                _of_a_job(queue, job_id, job_name, worker),
            )

    def worker_started(self, queue: str, worker: str, concurrency: int) -> None:
        """A worker serves a queue."""
        if self._attached:
            self.emit(
                "emq.worker.start",
                {"concurrency": concurrency},
                {"queue": queue, "worker": worker},
            )

    def worker_stopped(self, queue: str, worker: str, uptime_ns: int) -> None:
        """A worker serves it no more."""
        if self._attached:
            self.emit("emq.worker.stop", {"uptime": uptime_ns}, {"queue": queue, "worker": worker})

    def rate_limited(self, queue: str, delay_ms: int) -> None:
        """A queue's rate limit is reached, for a time."""
        if self._attached:
            self.emit("emq.rate_limit.hit", {"delay": delay_ms}, {"queue": queue})

    def connector_events(self) -> Callable[[ConnectorEvent], None]:
        """Answer an `on_event` for `emq.connect`, which tells of the connector here.

            connector = emq.connect(url, on_event=telemetry.connector_events())

        `label` is the server's address; `kind` is plain or transaction; `command` the name of the
        exchange's first command.
        """
        return self._connector_event

    def _connector_event(self, event: ConnectorEvent) -> None:
        if not self._attached:
            return
        duration = int(event.duration_s * 1e9)
        metadata: dict[str, Any] = {"label": event.address}
        measurements = {"duration": duration}
        match event.kind:
            case "connected":
                name = "connection"
            case "reconnected":
                name = "reconnect"
            case "disconnected":
                name = "disconnection"
                metadata["error"] = event.error
            case "overloaded":
                name = "overload"
                metadata["error"] = event.error
                measurements = {"commands": event.commands}
            case "exchange":
                name = "pipeline.stop"
                metadata |= {
                    "kind": _kind(event),
                    "command": event.command,
                    "error": event.error,
                }
                measurements["commands"] = event.commands
        self.emit(f"emq.connector.{name}", measurements, metadata)


class _Attachment:
    """A hook, and what it is attached to. Two of the same hook are two."""

    __slots__ = ("hook", "name", "prefix", "reported")

    def __init__(self, name: str, hook: Hook) -> None:
        self.name = name
        self.prefix = f"{name}." if name else ""
        self.hook = hook
        self.reported = False

    def takes(self, name: str) -> bool:
        return name == self.name or name.startswith(self.prefix)

    def call(self, name: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        try:
            self.hook(name, measurements, metadata)
        except Exception:
            if self.reported:
                return
            self.reported = True
            _log.exception("a hook failed on %s; its further failures are not logged", name)


class _Span:
    __slots__ = ("_began", "_metadata", "_name", "_telemetry")

    def __init__(self, telemetry: Telemetry, name: str, metadata: Mapping[str, Any]) -> None:
        self._telemetry = telemetry
        self._name = name
        self._metadata = metadata
        self._began = 0

    def __enter__(self) -> None:
        if self._telemetry._attached:
            self._telemetry.emit(
                f"{self._name}.start", {"system_time": time.time_ns()}, self._metadata
            )
        self._began = time.perf_counter_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._telemetry._attached:
            return
        measurements = {"duration": time.perf_counter_ns() - self._began}
        if error is None:
            self._telemetry.emit(f"{self._name}.stop", measurements, self._metadata)
            return
        told = {
            **self._metadata,
            "kind": "error" if isinstance(error, Exception) else "exit",
            "reason": error,
            "stacktrace": traceback,
        }
        self._telemetry.emit(f"{self._name}.exception", measurements, told)


def _of_a_job(
    queue: str, job_id: str, job_name: str | None, worker: str | None
) -> dict[str, object]:
    return {"queue": queue, "job_id": job_id, "job_name": job_name, "worker": worker}


def _carrying(items: Iterable[Blob | Item], headers: Mapping[str, str]) -> Iterator[Blob | Item]:
    for item in items:
        if not headers:
            yield item
        elif isinstance(item, Item):
            yield item._replace(headers={**headers, **(item.headers or {})})
        else:
            yield Item(item, headers=headers)


def _kind(event: ConnectorEvent) -> str:
    return "transaction" if event.command == "MULTI" else "plain"


__all__ = ["Handled", "Hook", "Sending", "Telemetry"]

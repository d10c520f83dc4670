"""What the verbs take and answer. A payload is bytes, and no repr shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from .options import JobOptions

if TYPE_CHECKING:
    from .backoff import Backoff

# A payload, a result or an error text, as verbs take it; text is sent as UTF-8.
Blob: TypeAlias = bytes | bytearray | memoryview | str

_SHOWN: Final = 40  # characters of a text, and fields of a row: what others wrote may be huge


class Job(NamedTuple):
    """A claimed job: what to do, and the right to settle it.

    Attributes:
        id: The job's id.
        payload: What the producer enqueued.
        token: The claim's number, from 1. A later claim of the same job makes it stale.
        queue: The name of the queue it was claimed from.
        group: The lane's group id; None for a flat job.
        excused: How many of its claims do not count as attempts: their workers died, or gave the
            job back, or put it off.
        options: The row's field of that name, as it is; `settings` reads it.
    """

    id: str
    payload: bytes
    token: int
    queue: str
    group: str | None = None
    excused: int = 0
    options: bytes = b""

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return max(1, self.token - self.excused)

    @property
    def settings(self) -> JobOptions:
        """What the producer wants of the workers."""
        return JobOptions.decode(self.options)

    def __repr__(self) -> str:
        excused = f", excused={self.excused}" if self.excused else ""
        options = f", options={_hidden(self.options)}" if self.options else ""
        return (
            f"Job(id={self.id!r}, payload={_hidden(self.payload)}, token={self.token}, "
            f"queue={self.queue!r}, group={self.group!r}{excused}{options})"
        )


class Receipt(NamedTuple):
    """What became of an enqueue.

    Attributes:
        job_id: The job's id, given or minted; where another job holds the deduplication key, that
            job's.
        admitted: False where a job of that id, or of that key, existed; then nothing was changed.
    """

    job_id: str
    admitted: bool


class Item(NamedTuple):
    """One job of a bulk enqueue. At most one of `delay_ms` and `run_at_ms` is given.

    Attributes:
        payload: What the job carries.
        job_id: Its id; None mints one.
        delay_ms: When it becomes due, in ms from now by the server's clock.
        run_at_ms: When it becomes due, in ms since 1970.
        dedup: A key that one job at a time may hold: where one does, this one is not admitted.
        dedup_ttl_ms: The key is free again after this time, if the job is not done before.
        result_ttl_ms: How long the job's outcome is kept for `wait`; None keeps none.
        max_attempts: A job that failed this often is dead; None leaves it to the worker.
        backoff: How long it waits between attempts; None leaves it to the worker.
        time_limit_ms: How long one attempt may take; None leaves it to the worker.
        headers: What goes with the job and is no part of its payload, such as a trace's context.
    """

    payload: Blob
    job_id: str | bytes | None = None
    delay_ms: int | None = None
    run_at_ms: int | None = None
    dedup: str | None = None
    dedup_ttl_ms: int | None = None
    result_ttl_ms: int | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    time_limit_ms: int | None = None
    headers: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        told = "".join(
            f", {name}={_cut(value) if isinstance(value, str) else repr(value)}"
            for name, value in zip(self._fields[4:-1], self[4:-1], strict=True)
            if value is not None
        )
        if self.headers:
            told += f", headers=<{len(self.headers)}>"
        return (
            f"Item(payload={_hidden(self.payload)}, job_id={self.job_id!r}, "
            f"delay_ms={self.delay_ms!r}, run_at_ms={self.run_at_ms!r}{told})"
        )


class Row(NamedTuple):
    """A job's row, as it was read.

    Attributes:
        state: What the row itself says; None where it says nothing.
        attempts: How often it was claimed.
        payload: What it carries; None where the row has none.
        fields: All its other fields, such as `last_error`, `progress` or `group`.
    """

    state: str | None
    attempts: int
    payload: bytes | None
    fields: dict[str, str]

    def __repr__(self) -> str:
        told = [
            f"{_cut(name)}: {_hidden(self.fields[name])}" for name in list(self.fields)[:_SHOWN]
        ]
        if len(self.fields) > _SHOWN:
            told.append("...")
        return (
            f"Row(state={_cut(self.state)}, attempts={self.attempts}, "
            f"payload={_hidden(self.payload)}, fields={{{', '.join(told)}}})"
        )


class Sweep(NamedTuple):
    """What a sweep of the stalled jobs did.

    Attributes:
        recovered: The ids that wait again.
        dead: The ids that stalled once too often.
    """

    recovered: list[str]
    dead: list[str]


class Outcome(NamedTuple):
    """How a job ended that keeps its outcome.

    Attributes:
        state: `completed` or `dead`.
        result: What it was completed with; None where that was nothing, or it died.
        error: Why it died; None where it was completed.
    """

    state: str
    result: bytes | None = None
    error: str | None = None

    def __repr__(self) -> str:
        told = f"result={_hidden(self.result)}, error={_cut(self.error)}"
        return f"Outcome(state={self.state!r}, {told})"


class Metric(NamedTuple):
    """A counter of the queue's.

    Attributes:
        total: How many, since the queue was made.
        data_points: How many entries its series has; nobody writes one yet.
    """

    total: int
    data_points: int


class Entry(NamedTuple):
    """A job's entry in one of the queue's places.

    Attributes:
        job_id: The job.
        score: In `schedule` when it falls due, in `active` when its lease ends, both in ms since
            1970 by the server's clock; 0 elsewhere.
    """

    job_id: str
    score: int


def _hidden(value: object) -> str:
    """A value by its size and its type alone."""
    if value is None:
        return "None"
    kind = type(value).__name__
    if isinstance(value, memoryview):
        try:
            return f"<{value.nbytes} {kind}>"
        except ValueError:  # it was released
            return f"<{kind}>"
    return f"<{len(value)} {kind}>" if isinstance(value, bytes | bytearray | str) else f"<{kind}>"


def _cut(text: str | None) -> str:
    if text is None or len(text) <= _SHOWN:
        return ascii(text)
    return ascii(text[:_SHOWN]) + "..."


__all__ = ["Blob", "Entry", "Item", "Job", "Metric", "Outcome", "Receipt", "Row", "Sweep"]

"""What the verbs take and answer. A payload is bytes, and no repr shows it."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

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
    """

    id: str
    payload: bytes
    token: int
    queue: str
    group: str | None = None

    def __repr__(self) -> str:
        return (
            f"Job(id={self.id!r}, payload={_hidden(self.payload)}, token={self.token}, "
            f"queue={self.queue!r}, group={self.group!r})"
        )


class Receipt(NamedTuple):
    """What became of an enqueue.

    Attributes:
        job_id: The job's id, given or minted.
        admitted: False where a job of that id existed; then nothing was changed.
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
    """

    payload: Blob
    job_id: str | bytes | None = None
    delay_ms: int | None = None
    run_at_ms: int | None = None

    def __repr__(self) -> str:
        return (
            f"Item(payload={_hidden(self.payload)}, job_id={self.job_id!r}, "
            f"delay_ms={self.delay_ms!r}, run_at_ms={self.run_at_ms!r})"
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


__all__ = ["Blob", "Item", "Job", "Receipt", "Row", "Sweep"]

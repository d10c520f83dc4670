"""What callers pass, checked before a byte is sent."""

from __future__ import annotations

from typing import Final

from ..ids import check_job_id
from ..job import Job
from ..keyspace import Keyspace

MAX: Final = 2**53  # what a script, whose numbers are doubles, can still count by ones


def whole(name: str, value: object, least: int) -> int:
    """Answer a number that is `least` to 2^53.

    Raises:
        ValueError: It is not; a bool, a float or a text is not a whole number either.
    """
    if type(value) is int and least <= value <= MAX:
        return value
    raise ValueError(f"{name} is a whole number, {least} to 2^53, not {ascii(value)[:60]}")


def blob(name: str, value: object) -> bytes:
    """Answer a payload, a result or an error text as bytes; text becomes UTF-8.

    Raises:
        TypeError: It is neither bytes nor str.
        ValueError: It is str with a lone surrogate, or a memoryview that was released.
    """
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{name} is bytes or str, not {type(value).__name__}")


def held(keys: Keyspace, job: Job | str, token: int | None) -> tuple[str, int]:
    """Answer the id and the token of a job that a caller holds.

    Raises:
        InvalidId, WrongKind: The id is no job's.
        TypeError: An id came without its token, or a Job with one.
        ValueError: The token is out of range, or the job was claimed from another queue.
    """
    if isinstance(job, Job):
        if token is not None:
            raise TypeError("a Job carries its token; pass token= with an id only")
        if job.queue != keys.queue:
            raise ValueError(
                f"the job was claimed from queue {job.queue!r}, not from {keys.queue!r}; "
                "settle it there"
            )
        return check_job_id(job.id), whole("token", job.token, 0)
    if token is None:
        raise TypeError("an id needs its token; pass the Job that claim answered, or token=")
    return check_job_id(job), whole("token", token, 0)


def due(delay_ms: int | None, run_at_ms: int | None) -> str | None:
    """Answer when a job falls due, as scripts take it; None for at once.

    Raises:
        ValueError: Both are given, or one is out of range.
    """
    if delay_ms is None and run_at_ms is None:
        return None
    if run_at_ms is None:
        return f"+{whole('delay_ms', delay_ms, 0)}"
    if delay_ms is None:
        return str(whole("run_at_ms", run_at_ms, 0))
    raise ValueError("delay_ms and run_at_ms exclude each other; pass one of them")


__all__ = ["MAX", "blob", "due", "held", "whole"]

"""What callers pass, checked before a byte is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..ids import check_job_id
from ..job import Blob, Item, Job
from ..keyspace import Keyspace
from ..keyspace import dedup_key as checked_dedup_key
from ..numbers import MAX, whole
from ..options import JobOptions


def blob(name: str, value: Blob) -> bytes:
    """Answer a payload, a result or an error text as bytes; text becomes UTF-8.

    Raises:
        TypeError: It is neither bytes (nor bytearray nor memoryview) nor str.
        ValueError: It is str with a lone surrogate, or a memoryview that was released.
    """
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return str.encode(value)
        except UnicodeEncodeError:
            pass  # it carries the whole text, so it must not be the context of what is raised
        raise ValueError(f"{name} is str with a lone surrogate; encode it to bytes yourself")
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value)
        except ValueError:
            raise ValueError(f"{name} is a memoryview that was released; pass its bytes") from None
    raise TypeError(f"{name} is bytes or str, not {type(value).__name__}")


def many(name: str, value: Any, each: str) -> list[Any]:
    """Answer what a collection holds. What is one thing itself is refused, though it iterates.

    Raises:
        TypeError: It is bytes, a text, a mapping, one Item or one Job, or nothing to iterate over.
    """
    one = isinstance(value, str | bytes | bytearray | memoryview | Mapping | Item | Job)
    if one or not (hasattr(value, "__iter__") or hasattr(value, "__getitem__")):
        raise TypeError(
            f"{name} is a collection, such as a list, of {each}, not {type(value).__name__}"
        )
    return list(value)


def held(keys: Keyspace, job: Job | str | bytes, token: int | None) -> tuple[str, int]:
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
                f"the job was claimed from queue {ascii(job.queue)[:140]}, not from "
                f"{keys.queue!r}; "
                "settle it there"
            )
        return check_job_id(job.id), whole("token", job.token, 0)
    if token is None:
        if not isinstance(job, str | bytes):
            raise TypeError(
                "job is the Job that claim answered, or an id with its token=, "
                f"not {type(job).__name__}"
            )
        raise TypeError("an id needs its token; pass the Job that claim answered, or token=")
    return check_job_id(job), whole("token", token, 0)


def holds(keys: Keyspace, jobs: Iterable[Job | tuple[str | bytes, int]]) -> list[tuple[str, int]]:
    """Answer the ids and the tokens of many jobs that a caller holds.

    Raises:
        InvalidId, WrongKind, ValueError: As `held`, for any of them.
        TypeError: They are no collection of Jobs and of pairs.
    """
    told = "Jobs or pairs of id and token"
    pairs = []
    for job in many("jobs", jobs, told):
        if isinstance(job, Job):
            pairs.append(held(keys, job, None))
        elif isinstance(job, tuple | list) and len(job) == 2 and not isinstance(job[0], Job):
            pairs.append((check_job_id(job[0]), whole("token", job[1], 0)))
        else:
            size = f" of {len(job)}" if isinstance(job, tuple | list) else ""
            raise TypeError(f"jobs are {told}, not {type(job).__name__}{size}")
    return pairs


def dedup_key(key: str) -> str:
    """Answer a deduplication id, which is well formed.

    Raises:
        TypeError: It is no text.
        ValueError: It is ill-formed.
    """
    if not isinstance(key, str):
        raise TypeError(f"a deduplication id is str, not {type(key).__name__}")
    return checked_dedup_key(key)


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


def wishes(item: Item) -> list[str | bytes]:
    """Answer what stands beside a job's payload, as scripts take it: names and values in turn.

    Raises:
        ValueError: A number is out of range, two exclude each other, or a key is ill-formed.
        TypeError: One is of a wrong type.
    """
    _, _, delay_ms, run_at_ms, *rest = item
    told: list[str | bytes] = []
    if delay_ms is not None or run_at_ms is not None:
        told += ("due", due(delay_ms, run_at_ms) or "")
    if not any(wish is not None for wish in rest):
        return told
    if item.dedup is not None:
        told += ("dedup", dedup_key(item.dedup))
    if item.dedup_ttl_ms is not None:
        if item.dedup is None:
            raise ValueError("dedup_ttl_ms is the life of a dedup key; pass dedup= with it")
        told += ("dedup_ttl", str(whole("dedup_ttl_ms", item.dedup_ttl_ms, 1)))
    if item.result_ttl_ms is not None:
        told += ("result_ttl", str(whole("result_ttl_ms", item.result_ttl_ms, 1)))
    options = JobOptions(
        item.max_attempts, item.backoff, item.time_limit_ms, item.headers or {}
    ).encode()
    if options:
        told += ("options", options)
    return told


def kept(result: Blob | None, result_ttl_ms: int | None) -> list[bytes | int]:
    """Answer what a completion keeps, as scripts take it."""
    if result is None and result_ttl_ms is None:
        return []
    told: list[bytes | int] = [
        b"" if result_ttl_ms is None else whole("result_ttl_ms", result_ttl_ms, 1)
    ]
    if result is not None:
        told.append(blob("result", result))
    return told


__all__ = [
    "MAX",
    "blob",
    "dedup_key",
    "due",
    "held",
    "holds",
    "kept",
    "many",
    "whole",
    "wishes",
]

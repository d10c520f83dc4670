"""What a job's producer wants of the workers that will run it.

It lies in the row's field `options` as JSON, beside the payload, which stays as it was given. The
scripts hand it on unread; a row without it is a job without wishes, as nodes of other makes enqueue
them.

    {"attempts": 5, "backoff": [1000, 60000, 1], "limit": 30000, "headers": {"traceparent": "..."}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from .numbers import MAX, whole

if TYPE_CHECKING:
    from .backoff import Backoff


class JobOptions(NamedTuple):
    """A job's own wishes; None leaves the matter to the worker.

    Attributes:
        max_attempts: A job that failed this often is dead.
        backoff: How long it waits between attempts.
        time_limit_ms: How long one attempt may take.
        headers: What goes with the job and is no part of its payload, such as a trace's context.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = None
    time_limit_ms: int | None = None
    headers: Mapping[str, str] = MappingProxyType({})

    def encode(self) -> bytes:
        """Answer the field's text; b"" where there is nothing to say.

        Raises:
            TypeError: `backoff` is no Backoff, or `headers` no mapping of str to str.
            ValueError: A number is out of range.
        """
        told: dict[str, Any] = {}
        if self.max_attempts is not None:
            told["attempts"] = whole("max_attempts", self.max_attempts, 1)
        if self.backoff is not None:
            from .backoff import Backoff  # few jobs have one

            if not isinstance(self.backoff, Backoff):
                raise TypeError(
                    "backoff is what emq.fixed, emq.exponential or emq.jitter answers, "
                    f"not {type(self.backoff).__name__}"
                )
            told["backoff"] = self.backoff.told()
        if self.time_limit_ms is not None:
            told["limit"] = whole("time_limit_ms", self.time_limit_ms, 1)
        if self.headers:
            told["headers"] = _checked(self.headers)
        return json.dumps(told, separators=(",", ":")).encode() if told else b""

    @classmethod
    def decode(cls, data: bytes | None) -> JobOptions:
        """Answer what `encode` wrote. What is not understood is left out, whoever wrote it."""
        if not data:
            return cls()
        try:
            told = json.loads(data)
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(told, dict):
            return cls()
        from .backoff import Backoff

        headers = told.get("headers")
        if not isinstance(headers, dict):
            headers = {}
        return cls(
            max_attempts=_count(told.get("attempts")),
            backoff=Backoff.read(told.get("backoff")),
            time_limit_ms=_count(told.get("limit")),
            headers={name: value for name, value in headers.items() if isinstance(value, str)},
        )


def _count(value: object) -> int | None:
    return value if type(value) is int and 1 <= value <= MAX else None


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are a mapping of str to str, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                f"headers are str to str, not {type(name).__name__} to {type(value).__name__}"
            )
    return dict(headers)


__all__ = ["JobOptions"]

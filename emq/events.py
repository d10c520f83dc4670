"""What a queue tells of its jobs while it happens: the messages on its channel, as values.

A message is one JSON object of texts, `{"event":"completed","job":"JOB0..."}`, and whatever else
the event has to say. It is told at most once: who does not listen, or whose connection is down,
misses it, so an event is a reason to look and never the only record.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from .errors import escaped

if TYPE_CHECKING:
    from resp import AsyncSubscription, Subscription

UNKNOWN: Final = "unknown"


class Event(NamedTuple):
    """One thing that happened in a queue.

    Attributes:
        name: What happened, such as `added`, `completed` or `failed`; `unknown` for a message that
            is no event, whose text is then `fields["raw"]`, escaped and cut.
        job_id: The job it happened to; None where it was the queue.
        fields: What else was told, such as `error` or `progress`.
    """

    name: str
    job_id: str | None
    fields: Mapping[str, str]


def parse(data: bytes) -> Event:
    """Answer the event that a message tells of. No message makes it raise.

    Other makes leave control characters as they are, and an error text need not be UTF-8; both are
    read. A value that is no text is answered as its JSON.
    """
    try:
        # strict=False takes the control characters; a byte that is not UTF-8 becomes U+FFFD.
        told = json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return _unknown(data)
    if not isinstance(told, dict):
        return _unknown(data)
    name, job_id = told.pop("event", None), told.pop("job", None)
    if not isinstance(name, str) or not isinstance(job_id, str | None):
        return _unknown(data)
    return Event(name, job_id or None, {key: _text(value) for key, value in told.items()})


def _unknown(data: bytes) -> Event:
    return Event(UNKNOWN, None, {"raw": escaped(data)})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


class EventStream:
    """The events of a queue, as they come. Made by `Queue.events`.

        with queue.events() as events:
            for event in events:
                print(event.name, event.job_id)

    Args:
        subscription: To the queue's channel; closed with the stream.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._subscription!r})"

    @property
    def gaps(self) -> int:
        """How often the connection was lost and made anew; events between are missing."""
        return self._subscription.gaps

    @property
    def dropped(self) -> int:
        """Events dropped because nobody had read those before."""
        return self._subscription.dropped

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._subscription.closed

    def get(self, timeout: float | None = math.inf) -> Event | None:
        """Answer the next event, or None if none comes in time.

        Args:
            timeout: Seconds; 0 looks at what has come, None is the connector's default.

        Raises:
            Closed: The stream or its connector was closed, or the reader was too slow.
            TransportError: The connection was lost and cannot be made anew in time.
        """
        message = self._subscription.get(timeout)
        return None if message is None else parse(message.payload)

    def __iter__(self) -> Iterator[Event]:
        """Events as they come, until the stream is closed."""
        for message in self._subscription:
            yield parse(message.payload)

    def close(self) -> None:
        """Receive no more."""
        self._subscription.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncEventStream:
    """The events of a queue, as they come. Made by `AsyncQueue.events`.

        async with await queue.events() as events:
            async for event in events:
                print(event.name, event.job_id)

    Args:
        subscription: To the queue's channel; closed with the stream.
    """

    def __init__(self, subscription: AsyncSubscription) -> None:
        self._subscription = subscription

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._subscription!r})"

    @property
    def gaps(self) -> int:
        """How often the connection was lost and made anew; events between are missing."""
        return self._subscription.gaps

    @property
    def dropped(self) -> int:
        """Events dropped because nobody had read those before."""
        return self._subscription.dropped

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._subscription.closed

    async def get(self, timeout: float | None = math.inf) -> Event | None:
        """Answer the next event, or None if none comes in time.

        Args:
            timeout: Seconds; 0 looks at what has come, None is the connector's default.

        Raises:
            Closed: The stream or its connector was closed, or the reader was too slow.
            TransportError: The connection was lost and cannot be made anew in time.
        """
        message = await self._subscription.get(timeout)
        return None if message is None else parse(message.payload)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events as they come, until the stream is closed."""
        async for message in self._subscription:
            yield parse(message.payload)

    async def close(self) -> None:
        """Receive no more."""
        await self._subscription.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


__all__ = ["UNKNOWN", "AsyncEventStream", "Event", "EventStream", "parse"]

"""What a queue library must do to be timed, as a producer and as a worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import resp

QUEUE: Final = "bench"
BULK: Final = 1000  # jobs that are enqueued in one call
MOST_JOBS: Final = 1_000_000

Seen = Callable[[int], None]


class Party(ABC):
    """One queue library in one process, that enqueues or works.

    A job carries one number, and its handler does nothing but tell `seen` of it.

    Args:
        url: The server, as `redis://host:port/db`.
        seen: What a handler calls, with the number of its job.

    Attributes:
        bulk: Whether `enqueue_many` is more than `enqueue` again and again.
    """

    bulk: bool = False

    def __init__(self, url: str, seen: Seen) -> None:
        self.url = url
        self.seen = seen

    @abstractmethod
    async def open(self, jobs: int) -> None:
        """Be ready to enqueue, up to so many jobs."""

    @abstractmethod
    async def enqueue(self, number: int) -> None:
        """Add one job."""

    async def enqueue_many(self, count: int) -> None:
        """Add so many jobs that carry a 0, at most `BULK`."""
        for _ in range(count):
            await self.enqueue(0)

    @abstractmethod
    def work(self) -> None:
        """Serve the queue in the main thread, until the process is killed or nothing is left."""

    @staticmethod
    @abstractmethod
    def left(connector: resp.Connector) -> int:
        """Answer how many jobs the server does not know to be done."""


def number(reply: object) -> int:
    """A reply that is an integer."""
    if not isinstance(reply, int):
        raise TypeError(f"the server answered {reply!r:.80}, and an integer was due")
    return reply

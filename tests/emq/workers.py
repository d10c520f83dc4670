"""Consumers of either kind in the background, so that one test says what both must do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Final

import emq
from emq import AsyncQueue, Queue
from emq.aio_consumer import AsyncConsumer
from emq.consumer import Consumer

from .shells import Loop

PATIENCE_S: Final = 20.0  # longer than any wait that a test means

# Whose slots are threads or tasks, and what the handler is.
KINDS: Final = ("threads", "threads-coroutine", "aio", "aio-function")


def until(done: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """Wait until a condition holds; answer what it answered."""
    end = monotonic() + seconds
    while True:
        answer = done()
        if answer:
            return answer
        assert monotonic() < end, "it never came to be"
        sleep(0.002)


class Worker:
    """A consumer, whose methods block.

    Args:
        kind: One of `KINDS`.
        url, queue: What it works on.
        handler: A function of a job; where the kind wants a coroutine function, it is called by
            one, on a thread, so that it may block.
    """

    def __init__(
        self, kind: str, url: str, queue: str, handler: Callable[[Any], Any], **options: Any
    ) -> None:
        self.kind = kind
        self._loop: Loop | None = None
        given: Any = handler
        if kind in ("threads-coroutine", "aio"):

            async def given(job: Any) -> Any:
                return await asyncio.to_thread(handler, job)

        self.consumer: Any
        if kind.startswith("threads"):
            self.connector: Any = emq.connect(url)
            self.consumer = Consumer(Queue(self.connector, queue), given, **options)
        else:
            self._loop = Loop()
            self.connector = self._loop.run(lambda: emq.connect_async(url))
            self.consumer = AsyncConsumer(AsyncQueue(self.connector, queue), given, **options)

    def _do(self, call: Callable[[], Any]) -> Any:
        return call() if self._loop is None else self._loop.run(call)

    def start(self, **options: Any) -> None:
        self._do(lambda: self.consumer.start(**options))

    def run(self, **options: Any) -> None:
        self._do(lambda: self.consumer.run(signals=False, **options))

    def stop(self, timeout: float | None = None) -> None:
        self._do(lambda: self.consumer.stop(timeout))

    def stop_later(self, timeout: float | None = None) -> threading.Thread:
        """Begin to stop; the thread ends when it has stopped."""
        thread = threading.Thread(target=self.stop, args=(timeout,), daemon=True)
        thread.start()
        return thread

    def wait_ended(self) -> None:
        """Return when a run has come to its end."""
        until(lambda: self.consumer._shift.ended.is_set())

    @property
    def stats(self) -> dict[str, int]:
        stats: dict[str, int] = self.consumer.stats()
        return stats

    @property
    def idle(self) -> bool:
        return bool(self.consumer.idle)

    def wait_idle(self) -> None:
        """Return when it is parked."""
        until(lambda: self.idle and self.consumer._shift._parked)

    def close(self) -> None:
        try:
            self.stop(0.0)
        finally:
            self._do(self.connector.close)
            if self._loop is not None:
                loop = self._loop
                loop.run(lambda: asyncio.get_running_loop().shutdown_default_executor())
                loop.close()


class Gate:
    """A handler that says that it has begun, and goes on when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()
        self.jobs: list[Any] = []
        self.ended: list[Any] = []

    def __call__(self, job: Any) -> None:
        self.jobs.append(job)
        self.begun.set()
        assert self.open.wait(PATIENCE_S)
        self.ended.append(job)

    def wait_begun(self) -> Any:
        """Answer the first job, when it was begun."""
        assert self.begun.wait(PATIENCE_S)
        return self.jobs[0]

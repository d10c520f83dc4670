"""Both shells, read synchronously, so that one test says what both must do."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any, cast

import emq
from emq import AsyncQueue, Queue


class Shell:
    """One connector, and queues over it.

    Args:
        kind: `threads` or `aio`.
        protocol: 2 or 3.
        url: Where the server is.
    """

    def __init__(self, kind: str, protocol: int, url: str) -> None:
        self.kind = kind
        self.protocol = protocol
        self.connector: Any
        self._loop: Loop | None = None
        if kind == "threads":
            self.connector = emq.connect(url, protocol=protocol)
        else:
            self._loop = Loop()
            self._async = self._loop.run(lambda: emq.connect_async(url, protocol=protocol))
            self.connector = Blocking(self._async, self._loop)

    def __str__(self) -> str:
        return f"{self.kind}-resp{self.protocol}"

    def queue(self, name: str, **options: Any) -> Queue:
        """A queue of this shell, whose verbs answer instead of being awaited."""
        if self._loop is None:
            return Queue(self.connector, name, **options)
        return cast(Queue, Blocking(AsyncQueue(self._async, name, **options), self._loop))

    def close(self) -> None:
        self.connector.close()
        if self._loop is not None:
            self._loop.close()


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test loop")
        self._thread.start()

    def run(self, call: Callable[[], Any]) -> Any:
        """Make a call on the loop; answer what it answers, or what its awaitable does."""

        async def go() -> Any:
            answer = call()
            return await answer if inspect.isawaitable(answer) else answer

        return asyncio.run_coroutine_threadsafe(go(), self._loop).result(timeout=60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """An object of the async shell, whose methods block."""

    def __init__(self, inner: Any, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._inner, name)
        if not callable(member):
            return member
        return lambda *args, **kwargs: self._loop.run(lambda: member(*args, **kwargs))

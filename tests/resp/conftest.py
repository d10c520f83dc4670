"""Both shells, read synchronously, so that one test says what both must do."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar, cast

import pytest

from resp import Connector, connect, connect_async

from .fake import PATIENCE_S, Fake, Script

T = TypeVar("T")


LOOPS: Final = [
    "asyncio",
    pytest.param(
        "uvloop",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed"
        ),
    ),
]


def loop_factory(kind: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes event loops of a kind of `LOOPS`."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if kind == "uvloop":
        factory = importlib.import_module("uvloop").new_event_loop
    return factory


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

        return asyncio.run_coroutine_threadsafe(go(), self._loop).result(60)

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
        if name == "sibling":
            return lambda **changes: Blocking(self._loop.run(lambda: member(**changes)), self._loop)
        return lambda *args, **options: self._loop.run(lambda: member(*args, **options))

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner)


class Shell:
    """Makes connectors of one kind, and closes them when the test is over.

    Attributes:
        kind: `threads` or `aio`.
    """

    def __init__(self, kind: str, loop: Loop) -> None:
        self.kind = kind
        self._loop = loop
        self._made: list[Any] = []

    def connect(self, url: str, **options: Any) -> Connector:
        """A connector; that of the async shell blocks like the other."""
        connector: Any
        if self.kind == "threads":
            connector = connect(url, **options)
        else:
            connector = Blocking(self._loop.run(lambda: connect_async(url, **options)), self._loop)
        self._made.append(connector)
        return cast(Connector, connector)

    def close(self) -> None:
        for connector in self._made:
            connector.close()


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    """The event loop of the run's async connectors."""
    made = Loop()
    yield made
    made.close()


class Fakes(Protocol):
    """Starts a fake server that plays scripts."""

    def __call__(
        self, *scripts: Script, unix: bool = False, receive_buffer: int | None = None
    ) -> Fake: ...


@pytest.fixture
def fake() -> Iterator[Fakes]:
    """Fake servers that end with the test, and make it fail if a script of theirs failed."""
    started: list[Fake] = []

    def start(*scripts: Script, unix: bool = False, receive_buffer: int | None = None) -> Fake:
        started.append(Fake(*scripts, unix=unix, receive_buffer=receive_buffer))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture(params=["threads", "aio"])
def shell(request: pytest.FixtureRequest, loop: Loop, fake: Fakes) -> Iterator[Shell]:
    """Each shell. Its connectors are closed before the fake servers that they talk to."""
    made = Shell(request.param, loop)
    yield made
    made.close()


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def connector(request: pytest.FixtureRequest, shell: Shell, server: Any) -> Connector:
    """A connector of each shell and protocol to the run's own Valkey."""
    return shell.connect(server.url, protocol=request.param)


def begin(function: Callable[..., T], *args: Any, **options: Any) -> Future[T]:
    """Make a call in a thread of its own; its answer or its error comes in the future."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function(*args, **options))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="test call", daemon=True).start()
    return future


def until(condition: Callable[[], object]) -> None:
    """Return when `condition` holds; for a state that gives no notice."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.0005)

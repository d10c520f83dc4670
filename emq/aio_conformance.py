"""The scenarios of the wire, played on asyncio."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Any, Self

from resp import AsyncConnector, AsyncSubscription, RespError, TransportError

from .conformance import RETRY_S, SCENE_S, Run, still_there
from .dial import connect_async
from .scenarios import Scene, Wish
from .scenarios.kit import Ask, Hear, Listen, say, to_next_wish


def play_all(run: Run, url: str, options: dict[str, Any]) -> None:
    """Play a run's scenes on an event loop of its own."""
    asyncio.run(_play_all(run, url, options))


async def _play_all(run: Run, url: str, options: dict[str, Any]) -> None:
    async with await connect_async(url, **options) as connector:
        try:
            for name, scene in run.scenes():
                try:
                    await play(connector, scene)
                except Exception as error:
                    run.report.failed(name, error)
                    if isinstance(error, TransportError):
                        await connector.run(still_there())
                else:
                    run.report.passed(name)
        finally:
            try:
                await connector.run(run.sweep(), timeout=math.inf)
            except RespError:
                run.not_swept()
                raise


async def play(connector: AsyncConnector, scene: Scene[None]) -> None:
    """Play a scene on asyncio; what it raises is why it fails."""
    async with _Ear(connector) as ear:
        fact: Any = None
        while True:
            wish = await connector.run(to_next_wish(scene, fact), timeout=SCENE_S)
            if wish is None:
                return
            try:
                fact = await ear.fulfil(wish)
            except Exception as error:  # the scene's to judge
                fact = error


class _Ear:
    """What fulfils the wishes of a scene: a second connection, once there is one."""

    def __init__(self, connector: AsyncConnector) -> None:
        self._connector = connector
        self._line: AsyncConnector | None = None
        self._messages: AsyncSubscription | None = None

    async def fulfil(self, wish: Wish) -> Any:
        if isinstance(wish, Listen):
            assert self._line is None, "a scene listens once"
            self._line = await self._connector.sibling(protocol=3, backoff=RETRY_S)
            self._messages = await self._line.subscribe(wish.channel)
            return None
        assert self._line is not None, "a scene listens before it asks and hears"
        assert self._messages is not None
        match wish:
            case Ask(command):
                return await self._line.run(say(*command))
            case Hear(seconds):
                message = await self._messages.get(timeout=seconds)
                return None if message is None else message.payload

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._line is not None:
            await self._line.close()


__all__ = ["play", "play_all"]

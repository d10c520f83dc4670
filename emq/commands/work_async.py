"""`emq work` for a coroutine function: one event loop runs all of its jobs."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ..aio_consumer import AsyncConsumer
from ..dial import connect_async
from ..queue import AsyncQueue
from .work import made


def run(
    options: argparse.Namespace, handler: Callable[..., Any], settings: Mapping[str, Any]
) -> dict[str, int]:
    """Work on an event loop until stopped; the counters."""
    return asyncio.run(_run(options, handler, settings))


async def _run(
    options: argparse.Namespace, handler: Callable[..., Any], settings: Mapping[str, Any]
) -> dict[str, int]:
    async with await connect_async(options.url, wire_version=options.wire_version) as connector:
        consumer = made(AsyncConsumer, AsyncQueue(connector, options.queue), handler, settings)
        await consumer.run(burst=options.burst)
        stats: dict[str, int] = consumer.stats()
        return stats


__all__ = ["run"]

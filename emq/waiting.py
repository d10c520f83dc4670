"""Waiting for a job's end: by message, with a read that closes the race."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from resp import ConnectionLost, RequiresResp3

from .job import Outcome
from .keyspace import Keyspace
from .plans import reads

# A message can be lost with its connection, and a job can be deleted by somebody who tells nobody.
_LOOK_S: Final = 5.0
_POLL_S: Final = (0.01, 0.25)  # where there are no messages: the first pause, and the longest


def wait(
    connector: Any, keys: Keyspace, job_id: str | bytes, timeout: float | None
) -> Outcome | None:
    """Wait for a job's end on threads; what `Queue.wait` says."""
    ends = _ends(timeout)
    channel = keys.result(job_id)
    try:
        news = connector.subscribe(channel)
    except RequiresResp3:
        news = None
    pause = _POLL_S[0]
    try:
        while True:
            outcome: Outcome | None
            try:
                outcome = connector.run(reads.outcome(keys, job_id))
            except ConnectionLost:  # nothing was written, so it can be asked again
                outcome = connector.run(reads.outcome(keys, job_id))
            left = ends - time.monotonic()
            if outcome is not None or left <= 0:
                return outcome
            if news is not None:
                news.get(timeout=min(left, _LOOK_S))
            else:
                time.sleep(min(left, pause))
                pause = min(pause * 2, _POLL_S[1])
    finally:
        if news is not None:
            news.close()


async def wait_async(
    connector: Any, keys: Keyspace, job_id: str | bytes, timeout: float | None
) -> Outcome | None:
    """Wait for a job's end on asyncio; what `Queue.wait` says."""
    import asyncio  # a queue on threads need not load it

    ends = _ends(timeout)
    channel = keys.result(job_id)
    try:
        news = await connector.subscribe(channel)
    except RequiresResp3:
        news = None
    pause = _POLL_S[0]
    try:
        while True:
            outcome: Outcome | None
            try:
                outcome = await connector.run(reads.outcome(keys, job_id))
            except ConnectionLost:  # nothing was written, so it can be asked again
                outcome = await connector.run(reads.outcome(keys, job_id))
            left = ends - time.monotonic()
            if outcome is not None or left <= 0:
                return outcome
            if news is not None:
                await news.get(timeout=min(left, _LOOK_S))
            else:
                await asyncio.sleep(min(left, pause))
                pause = min(pause * 2, _POLL_S[1])
    finally:
        if news is not None:
            await news.close()


def _ends(timeout: float | None) -> float:
    if timeout is None:
        return math.inf
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout >= 0:
        raise ValueError("timeout is a number of seconds from 0, or None")
    return time.monotonic() + timeout


__all__ = ["wait", "wait_async"]

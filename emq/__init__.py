"""The job bus on Valkey: every transition one script, every settle fenced by a token.

    import emq

    with emq.connect("valkey://127.0.0.1:6379") as connector:
        queue = emq.Queue(connector, "orders")
        queue.enqueue(b"cargo")
        job = queue.claim()
        queue.complete(job)

`connect_async` and `AsyncQueue` are the same with `await`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .dial import connect, connect_async
    from .errors import (
        AtCeiling,
        ContractError,
        EmqError,
        FenceError,
        FlowError,
        InvalidId,
        JobError,
        JobGone,
        JobLocked,
        LaneError,
        StaleToken,
        WrongKind,
        WrongState,
    )
    from .fence import WIRE_VERSION
    from .ids import Mint
    from .job import Item, Job, Receipt, Row, Sweep
    from .queue import AsyncQueue, Queue

__all__ = [
    "WIRE_VERSION",
    "AsyncQueue",
    "AtCeiling",
    "ContractError",
    "EmqError",
    "FenceError",
    "FlowError",
    "InvalidId",
    "Item",
    "Job",
    "JobError",
    "JobGone",
    "JobLocked",
    "LaneError",
    "Mint",
    "Queue",
    "Receipt",
    "Row",
    "StaleToken",
    "Sweep",
    "WrongKind",
    "WrongState",
    "connect",
    "connect_async",
]

_MODULES: Final = {
    "WIRE_VERSION": "fence",
    "Mint": "ids",
    **dict.fromkeys(("connect", "connect_async"), "dial"),
    **dict.fromkeys(("AsyncQueue", "Queue"), "queue"),
    **dict.fromkeys(("Item", "Job", "Receipt", "Row", "Sweep"), "job"),
}


def __getattr__(name: str) -> Any:
    # Each name is imported when it is first asked for: a program that catches our errors, or holds
    # our values, need not load the client, nor one on threads what is for asyncio.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_MODULES.get(name, 'errors')}", __name__)
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

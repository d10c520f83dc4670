"""The job bus on Valkey: every transition one script, every settle fenced by a token.

    import emq

    queue = emq.Queue(emq.connect("valkey://127.0.0.1:6379"), "orders")
    queue.enqueue(b"cargo")
    emq.Consumer(queue, lambda job: print(job.payload)).run()

`connect_async`, `AsyncQueue` and `AsyncConsumer` are the same with `await`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .aio_consumer import AsyncConsumer
    from .backoff import Backoff, exponential, fixed, jitter
    from .cancel import Cancelled, CancelToken
    from .consumer import Consumer
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
    from .events import AsyncEventStream, Event, EventStream
    from .fence import WIRE_VERSION
    from .ids import Mint
    from .job import Entry, Item, Job, Metric, Outcome, Receipt, Row, Sweep
    from .options import JobOptions
    from .queue import AsyncQueue, Queue
    from .tasks import BadPayload, Task, Tasks, UnknownTask
    from .telemetry import Telemetry
    from .work import AsyncHeldJob, Delay, Discard, HeldJob, Retry

_NAMES: Final = {
    "aio_consumer": ("AsyncConsumer",),
    "backoff": ("Backoff", "exponential", "fixed", "jitter"),
    "cancel": ("CancelToken", "Cancelled"),
    "consumer": ("Consumer",),
    "dial": ("connect", "connect_async"),
    "errors": (
        "AtCeiling",
        "ContractError",
        "EmqError",
        "FenceError",
        "FlowError",
        "InvalidId",
        "JobError",
        "JobGone",
        "JobLocked",
        "LaneError",
        "StaleToken",
        "WrongKind",
        "WrongState",
    ),
    "events": ("AsyncEventStream", "Event", "EventStream"),
    "fence": ("WIRE_VERSION",),
    "ids": ("Mint",),
    "job": ("Entry", "Item", "Job", "Metric", "Outcome", "Receipt", "Row", "Sweep"),
    "options": ("JobOptions",),
    "queue": ("AsyncQueue", "Queue"),
    "tasks": ("BadPayload", "Task", "Tasks", "UnknownTask"),
    "telemetry": ("Telemetry",),
    "work": ("AsyncHeldJob", "Delay", "Discard", "HeldJob", "Retry"),
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "WIRE_VERSION",
    "AsyncConsumer",
    "AsyncEventStream",
    "AsyncHeldJob",
    "AsyncQueue",
    "AtCeiling",
    "Backoff",
    "BadPayload",
    "CancelToken",
    "Cancelled",
    "Consumer",
    "ContractError",
    "Delay",
    "Discard",
    "EmqError",
    "Entry",
    "Event",
    "EventStream",
    "FenceError",
    "FlowError",
    "HeldJob",
    "InvalidId",
    "Item",
    "Job",
    "JobError",
    "JobGone",
    "JobLocked",
    "JobOptions",
    "LaneError",
    "Metric",
    "Mint",
    "Outcome",
    "Queue",
    "Receipt",
    "Retry",
    "Row",
    "StaleToken",
    "Sweep",
    "Task",
    "Tasks",
    "Telemetry",
    "UnknownTask",
    "WrongKind",
    "WrongState",
    "connect",
    "connect_async",
    "exponential",
    "fixed",
    "jitter",
]


def __getattr__(name: str) -> Any:
    # Each name is imported when it is first asked for: a program that catches our errors, or holds
    # our values, need not load the client, nor one on threads what is for asyncio.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Who there is, what of each is timed, and how many jobs it gets."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Final

from .party import Party

QUEUE_OF_OURS: Final = "emq.Queue"
CONSUMER: Final = "emq.Consumer"
BATCHED: Final = "emq.Consumer, batch=50"
ASYNC_CONSUMER: Final = "emq.AsyncConsumer"
BARE: Final = "bare socket"
HAND: Final = "bare LPUSH, BLPOP"
TASKIQ: Final = "taskiq"
BULLMQ: Final = "bullmq"
HUEY: Final = "huey"
DRAMATIQ: Final = "dramatiq"
SAQ: Final = "saq"
RQ: Final = "rq"
CELERY: Final = "celery"


@dataclass(frozen=True)
class Contender:
    """Somebody who may be timed.

    Attributes:
        name: What the table calls it.
        party: The module of this package and the class that it is.
        sections: Where it takes part.
        packages: What must be installed, as pip names it.
        needs: The modules of those.
        share: The part of the jobs that it gets, for those that would take all day.
        ours: Whether the run has failed where it fails.
    """

    name: str
    party: tuple[str, str]
    sections: tuple[str, ...]
    packages: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    share: float = 1
    ours: bool = False

    def is_missing(self) -> bool:
        """Whether a module that it needs is not installed."""
        return any(importlib.util.find_spec(module) is None for module in self.needs)

    def load(self) -> type[Party]:
        """The class, imported now."""
        module, name = self.party
        found: type[Party] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        return found


_ALL: Final = ("jobs", "enqueue", "latency", "life", "idle", "left")
_WORKER: Final = ("jobs", "latency", "life", "idle", "left")

CONTENDERS: Final = (
    Contender(BARE, ("ours", "Bare"), ("jobs", "enqueue")),
    Contender(HAND, ("ours", "Hand"), ("latency",)),
    Contender(QUEUE_OF_OURS, ("ours", "Verbs"), ("jobs", "enqueue", "life"), ours=True),
    Contender(CONSUMER, ("ours", "Threads"), _WORKER, ours=True),
    Contender(BATCHED, ("ours", "Batches"), ("jobs", "life"), ours=True),
    Contender(ASYNC_CONSUMER, ("ours", "Tasks"), _ALL, ours=True),
    Contender(
        TASKIQ,
        ("peers", "Taskiq"),
        _ALL,
        ("taskiq", "taskiq-redis", "uvloop"),
        ("taskiq", "taskiq_redis", "uvloop"),
    ),
    Contender(BULLMQ, ("peers", "Bullmq"), _ALL, ("bullmq",), ("bullmq",), share=0.5),
    Contender(HUEY, ("peers", "Huey"), _ALL, ("huey", "redis"), ("huey", "redis")),
    Contender(DRAMATIQ, ("peers", "Dramatiq"), _ALL, ("dramatiq",), ("dramatiq", "redis")),
    Contender(SAQ, ("peers", "Saq"), _ALL, ("saq",), ("saq", "redis"), share=0.4),
    Contender(RQ, ("peers", "Rq"), _ALL, ("rq",), ("rq",), share=0.1),
    Contender(CELERY, ("peers", "Celery"), _ALL, ("celery",), ("celery", "redis"), share=0.1),
)

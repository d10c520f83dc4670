"""Batches without their loop: when to take one, what a handler's answer says, what came of it.

A handler of batches answers once for all its jobs, with a mapping of id to verdict. What it left
out, and what cannot be read, is retried: a job is done only where the handler said so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from .numbers import MAX, whole
from .work import Delay, Retry


class Wait(Enum):
    """There is no batch to take yet."""

    WAIT = "wait"


WAIT: Final = Wait.WAIT


class Flush(NamedTuple):
    """Take a batch now.

    Attributes:
        size: Of so many jobs.
    """

    size: int


class Shaper:
    """Waits for a batch that is worth a handler's run, but not for ever.

    Args:
        min_size: A batch is taken as soon as this many jobs are pending.
        timeout_ms: And with fewer, at least one, when they have waited this long, in ms.
        max_size: No batch is larger; None takes all that is pending.

    Raises:
        ValueError: A number is out of range, or `max_size` is below `min_size`.
    """

    def __init__(
        self, min_size: int = 1, timeout_ms: int = 1_000, max_size: int | None = None
    ) -> None:
        self.min_size = whole("min_size", min_size, 1)
        self.timeout_ms = whole("timeout_ms", timeout_ms, 1)
        self.max_size = None if max_size is None else whole("max_size", max_size, 1)
        if self.max_size is not None and self.max_size < self.min_size:
            raise ValueError(f"max_size {max_size} is below min_size {min_size}")

    def decide(self, depth: int, elapsed_ms: float) -> Flush | Literal[Wait.WAIT]:
        """Answer what to do with `depth` pending jobs in a window open for `elapsed_ms`."""
        if depth > 0 and (depth >= self.min_size or elapsed_ms >= self.timeout_ms):
            return Flush(depth if self.max_size is None else min(depth, self.max_size))
        return WAIT


class Window:
    """How long jobs have waited for a batch: from the first look that found one to the flush.

    A look that finds none closes the window. So the time in which a queue was empty does not
    count, and the first job after it waits for others as any first one does.

    Args:
        shaper: Decides.
    """

    def __init__(self, shaper: Shaper) -> None:
        self._shaper = shaper
        self._opened_ms: float | None = None

    def look(self, depth: int, now_ms: float) -> Flush | Literal[Wait.WAIT]:
        """Answer what to do with `depth` pending jobs.

        Args:
            depth: How many are pending, and can be claimed: none while the queue is paused.
            now_ms: By a clock that does not go back.
        """
        if depth < 1:
            self._opened_ms = None
            return WAIT
        if self._opened_ms is None:
            self._opened_ms = now_ms
        decision = self._shaper.decide(depth, now_ms - self._opened_ms)
        if decision is not WAIT:
            self._opened_ms = None
        return decision

    def left_ms(self, now_ms: float) -> float | None:
        """Answer when to look again at the latest, in ms from now; None where nobody waits."""
        if self._opened_ms is None:
            return None
        return max(0.0, self._opened_ms + self._shaper.timeout_ms - now_ms)


class Done(NamedTuple):
    """A verdict: the job is done.

    Attributes:
        result: Kept for whoever waits for it; None keeps nothing.
    """

    result: Any = None


# An exception is why a job is not done; `Retry`, `Discard` and `Delay` say how it goes on.
Verdict: TypeAlias = Done | Exception


def verdicts(ids: Iterable[str], answer: object) -> dict[str, Verdict]:
    """Answer the verdict on each job of a batch, in order, from what its handler returned.

    Args:
        ids: Of the batch.
        answer: A mapping of id to verdict. A verdict is None, True or "ok", or a `Done` or
            `("ok", result)`; an exception, or `("error", reason)`; a `Delay`, or `("delay", ms)`.
            Ids that are not of the batch do not matter. An exception in place of the mapping is
            the verdict on all; any other answer has all of them retried.
    """
    if isinstance(answer, Exception):
        return dict.fromkeys(ids, answer)
    if not isinstance(answer, Mapping):
        bad = _bad(answer)
        return dict.fromkeys(ids, bad)
    return {id: _of(id, answer) for id in ids}


def _of(id: str, answer: Mapping[Any, Any]) -> Verdict:
    try:
        told = answer[id]
    except KeyError:
        return Retry(reason="missing verdict")
    except Exception as error:  # a mapping of the handler's own make
        return error
    if told is None or told is True:
        return Done()
    if isinstance(told, Done | Exception):
        return told
    if isinstance(told, str):
        return Done() if told == "ok" else _bad(told)
    if isinstance(told, tuple | list) and len(told) == 2 and isinstance(told[0], str):
        word, what = told
        if word == "ok":
            return Done(what)
        if word == "error":
            return what if isinstance(what, Exception) else Retry(reason=_reason(what))
        if word == "delay" and type(what) is int and 0 <= what <= MAX:
            return Delay(what)
    return _bad(told)


def _bad(told: object) -> Retry:
    # Its type alone: the handler may have answered with the payloads.
    return Retry(reason=f"bad verdict: {type(told).__name__}")


def _reason(what: object) -> str:
    try:
        return str(what)
    except Exception as error:
        return f"its reason cannot be had: {type(error).__name__}"


class Partition(NamedTuple):
    """A batch's ids by what became of them: each once, in the order in which they came.

    Attributes:
        completed: Settled as done.
        delayed: Put off.
        dead: Failed once too often.
        retried: All others. They fall due again, or their leases will end.
    """

    completed: list[str]
    delayed: list[str]
    dead: list[str]
    retried: list[str]


def partition(
    ids: Iterable[str], verdicts: Mapping[str, Verdict], outcomes: Mapping[str, object]
) -> Partition:
    """Sort a batch's ids by what the handler said and what the server made of it.

    Args:
        ids: Of the batch.
        verdicts: As the function of that name answers.
        outcomes: What the server answered for each: `completed`, `delayed`, `scheduled` or `dead`,
            or an exception where it refused.
    """
    parts = Partition([], [], [], [])
    for id in dict.fromkeys(ids):
        _part(parts, verdicts.get(id), outcomes.get(id)).append(id)
    return parts


def _part(parts: Partition, verdict: Verdict | None, outcome: object) -> list[str]:
    match outcome:
        case "completed" if isinstance(verdict, Done):
            return parts.completed
        case "delayed" if isinstance(verdict, Delay):
            return parts.delayed
        case "dead" if isinstance(verdict, Exception) and not isinstance(verdict, Delay):
            return parts.dead
        case _:
            return parts.retried


__all__ = [
    "WAIT",
    "Done",
    "Flush",
    "Partition",
    "Shaper",
    "Verdict",
    "Wait",
    "Window",
    "partition",
    "verdicts",
]

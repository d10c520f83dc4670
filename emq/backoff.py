"""How long a failed job waits before it is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from .numbers import MAX, whole

_MOST_DOUBLINGS: Final = 53  # 2^53 ms is the longest delay there is


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay for each attempt that failed: `base_ms`, doubled by each further one, up to `cap_ms`.

    `fixed`, `exponential` and `jitter` make them.

    Attributes:
        base_ms: After the first attempt, in ms.
        cap_ms: Never more than this, in ms; `base_ms` itself makes the delay fixed.
        jittered: Wait anything between 0 and the delay, so that jobs that failed together do not
            come back together.
    """

    base_ms: int
    cap_ms: int
    jittered: bool = False

    def __post_init__(self) -> None:
        whole("base_ms", self.base_ms, 0)
        whole("cap_ms", self.cap_ms, 0)

    def delay_ms(self, attempt: int, random: Callable[[], float] = random.random) -> int:
        """Answer the delay after the attempt of this number, in ms.

        Args:
            attempt: The attempt that failed; the first is 1.
            random: Answers 0 <= x < 1.

        Raises:
            ValueError: `attempt` is no whole number from 1.
        """
        doublings = min(whole("attempt", attempt, 1) - 1, _MOST_DOUBLINGS)
        delay = min(self.base_ms << doublings, self.cap_ms, MAX)
        return int(random() * (delay + 1)) if self.jittered else delay

    def told(self) -> list[Any]:
        """Answer it as JSON has it: `[base_ms, cap_ms, jittered]`."""
        return [self.base_ms, self.cap_ms, int(self.jittered)]

    @classmethod
    def read(cls, told: object) -> Self | None:
        """Answer what `told` wrote; None for anything else."""
        match told:
            case [base, cap, 0 | 1 as jittered] if type(base) is type(cap) is int:
                possible = 0 <= base <= MAX and 0 <= cap <= MAX
                return cls(base, cap, bool(jittered)) if possible else None
            case _:
                return None


def fixed(ms: int) -> Backoff:
    """Answer a backoff of always `ms`."""
    return Backoff(ms, ms)


def exponential(base_ms: int, cap_ms: int) -> Backoff:
    """Answer a backoff of `base_ms`, doubled by each further attempt, up to `cap_ms`."""
    return Backoff(base_ms, cap_ms)


def jitter(inner: Backoff) -> Backoff:
    """Answer a backoff of anything between 0 and what `inner` says, evenly spread.

    Raises:
        TypeError: `inner` is no backoff.
    """
    if not isinstance(inner, Backoff):
        raise TypeError(f"inner is a Backoff, not {type(inner).__name__}")
    return Backoff(inner.base_ms, inner.cap_ms, jittered=True)


__all__ = ["Backoff", "exponential", "fixed", "jitter"]

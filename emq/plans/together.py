"""Many plans at once: a step of each in one flush."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from resp import Command, Plan

from ..errors import JobError

T = TypeVar("T")


def together(plans: Iterable[Plan[T]]) -> Plan[list[T | JobError]]:
    """Run plans side by side, and answer what each answers, or the refusal that it raises.

    The caller bounds how many they are.

    Raises:
        Whatever else a plan raises; of the others some have run then.
    """
    outcomes: dict[int, T | JobError] = {}
    running: list[tuple[int, Plan[T], Any]] = [(at, plan, None) for at, plan in enumerate(plans)]
    while running:
        asked = []
        flush: list[Command] = []
        for at, plan, reply in running:
            try:
                step = plan.send(reply)
            except StopIteration as end:
                outcomes[at] = end.value
            except JobError as error:
                outcomes[at] = error
            else:
                start = len(flush)
                flush += step if isinstance(step, list) else [step]
                whole = slice(start, len(flush)) if isinstance(step, list) else start
                asked.append((at, plan, whole))
        replies = (yield flush) if flush else []
        running = [(at, plan, replies[whole]) for at, plan, whole in asked]
    return [outcomes[at] for at in range(len(outcomes))]


__all__ = ["together"]

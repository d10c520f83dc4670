"""Many plans in one flush."""

from __future__ import annotations

from typing import Any

import pytest

from emq.errors import JobGone
from emq.plans.together import together
from resp import Plan, ServerError


def asks(*commands: str) -> Plan[list[Any]]:
    replies = []
    for command in commands:
        replies.append((yield (command,)))
    return replies


def asks_two() -> Plan[Any]:
    return (yield [("A",), ("B",)])


def raises(error: Exception) -> Plan[list[Any]]:
    yield ("X",)
    raise error


def driven(plan: Plan[Any]) -> tuple[list[Any], Any]:
    """What a plan flushes, and answers where each command is answered by itself."""
    steps = []
    try:
        step = next(plan)
        while True:
            assert isinstance(step, list)
            names = [str(command[0]) for command in step if isinstance(command, tuple)]
            steps.append(names)
            step = plan.send([name.lower() for name in names])
    except StopIteration as end:
        return steps, end.value


def test_steps_share_flushes_and_answers_keep_their_order() -> None:
    steps, answers = driven(together([asks("A", "B"), asks(), asks("C"), asks_two()]))
    assert steps == [["A", "C", "A", "B"], ["B"]]
    assert answers == [["a", "b"], [], ["c"], ["a", "b"]]


def test_a_refusal_is_an_answer() -> None:
    gone = JobGone("JOB0EEMl9I7KXg")
    steps, answers = driven(together([raises(gone), asks("A", "B")]))
    assert steps == [["X", "A"], ["B"]]
    assert answers == [gone, ["a", "b"]]


def test_another_error_is_raised() -> None:
    with pytest.raises(ServerError):
        driven(together([raises(ServerError("OOM", "OOM no", "SET")), asks("A")]))


def test_none_sends_nothing() -> None:
    assert driven(together([])) == ([], [])

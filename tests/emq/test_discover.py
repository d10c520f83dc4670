"""Queues are found by their keys."""

from __future__ import annotations

from typing import Any

import pytest

import emq
from emq.discover import Discovery, discover, queues_of
from resp import ErrorReply, Plan, ServerError
from tests.conftest import Server


def answered(plan: Plan[Any], *replies: Any) -> Any:
    """What a plan answers to these replies."""
    step = next(plan)
    try:
        for reply in replies:
            assert isinstance(step, tuple)
            assert step[0] == "SCAN"
            step = plan.send(reply)
    except StopIteration as end:
        return end.value
    raise AssertionError(f"the plan goes on with {step!r}")


@pytest.mark.parametrize(
    ("key", "queue"),
    [
        (b"emq:{q}:pending", "q"),
        (b"emq:{a.b-C_1}:job:JOB0EEMl9I7KXg", "a.b-C_1"),
        (b"emq:{q}", "q"),
        (b"{emq}:version", None),
        (b"emq:{emq}:version", None),
        (b"emq:{}:pending", None),
        (b"emq:{a b}:pending", None),
        (b"emq:{\xff}:pending", None),
        (b"emq:pending", None),
        (b"emq:x{q}:pending", None),
    ],
)
def test_the_queue_of_a_key(key: bytes, queue: str | None) -> None:
    assert queues_of([key]) == ({queue} if queue else set())


@pytest.mark.parametrize("protocol", [2, 3])
def test_queues_of_a_server(server: Server, fresh_name: str, protocol: int) -> None:
    names = [f"{fresh_name}-{number}" for number in range(600)]
    for name in names:
        server.admin.set(f"emq:{{{name}}}:meta", "")
    with emq.connect(server.url, protocol=protocol) as connector:
        found = connector.run(discover())
    assert found == sorted(found)
    assert set(names) <= set(found)
    assert "emq" not in found


def test_a_walk_goes_on_where_it_was() -> None:
    found = Discovery()
    assert answered(found.look(1), [b"7", [b"emq:{b}:x"]]) == ["b"]
    assert not found.whole
    assert answered(found.look(1), [b"0", [b"emq:{a}:x", b"emq:{b}:y"]]) == ["a", "b"]
    assert found.whole

    # The next walk forgets a queue when it has come to its end without it.
    assert answered(found.look(1), [b"7", [b"emq:{c}:x"]]) == ["a", "b", "c"]
    assert answered(found.look(9), [b"0", [b"emq:{b}:x"]]) == ["b", "c"]


def test_an_error_is_raised() -> None:
    with pytest.raises(ServerError, match="NOPERM"):
        answered(Discovery().look(1), ErrorReply("NOPERM", "NOPERM no"))

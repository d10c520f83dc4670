"""Workers and servers that are killed lose nothing: `python -m tests.chaos`, at a small size."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.chaos import Line, Run, Story, handovers, work_folder


def test_kills_lose_nothing() -> None:
    with work_folder() as folder:
        run = Run(folder, seed=7, workers=3, kills=40)
        run.go(monotonic() + 60, lambda what: None)

    assert not run.violations, "\n".join(run.violations)
    assert run.killed >= 40
    assert run.counts["blows to the server"]
    assert run.counts["killed by poison"]


def test_the_job_of_a_killed_worker_is_begun_again_within_its_lease_and_a_second(
    server: Any, fresh_name: str, tmp_path: Path
) -> None:
    lease_ms = 500

    assert max(handovers(server.unix_url, fresh_name, tmp_path, 3, lease_ms)) < lease_ms / 1000 + 1


def lines(*phases: tuple[str, int]) -> list[Line]:
    return [Line("", token, 1, 1, phase, 0) for phase, token in phases]


def test_a_job_may_be_begun_by_two() -> None:
    told = ["admitted", "claimed#1", "stalled#1", "waits", "claimed#2", "completed"]
    both = lines(("start", 1), ("start", 2), ("done", 2), ("done", 1))

    assert not list(Story(told, both).wrongs())


ONCE = lines(("start", 1), ("done", 1))


@pytest.mark.parametrize(
    ("told", "by_handlers", "wrong"),
    [
        ("admitted claimed#1 completed completed", ONCE, "it ended 2 times"),
        ("admitted claimed#1 completed dead", ONCE, "it ended 2 times"),
        ("admitted claimed#1 completed claimed#2", ONCE, "it ended 1 times, or went on"),
        ("admitted claimed#1 scheduled waits", ONCE, "it ended 0 times"),
        ("admitted claimed#1 completed admitted completed", ONCE, "it was not admitted once"),
        ("admitted claimed#2 completed", lines(("start", 2), ("done", 2)), "its tokens are not"),
        ("admitted claimed#1 completed", lines(("start", 1)), "the handler of its last claim"),
        ("admitted claimed#1 waits claimed#2 completed", ONCE, "the handler of its last claim"),
        ("admitted claimed#1 completed", [*ONCE, *ONCE], "claim 1 was begun 2 times"),
        ("admitted completed", ONCE, "a claim was begun that the server has not made"),
    ],
)
def test_what_must_not_happen_is_noticed(told: str, by_handlers: list[Line], wrong: str) -> None:
    assert any(wrong in each for each in Story(told.split(), by_handlers).wrongs())

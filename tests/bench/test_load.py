"""A lap makes the calls that it is told to, and times them all."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.load import from_tasks, from_threads, in_turn, system_calls


def test_one_caller_calls_in_turn() -> None:
    made: list[int] = []
    lap = in_turn(lambda: made.append(threading.get_ident()), 7)
    assert made == [threading.get_ident()] * (1 + 7)
    assert lap.us > 0
    assert lap.cpu_us >= 0


def test_each_thread_calls_its_own() -> None:
    made: list[tuple[int, int]] = []
    together = threading.Barrier(3, timeout=10)

    def call(number: int) -> None:
        together.wait()  # none could pass if they called in turn
        made.append((number, threading.get_ident()))

    lap = from_threads([lambda n=n: call(n) for n in range(3)], 5)  # type: ignore[misc]
    assert set(Counter(made).values()) == {5}
    assert {number for number, _ in made} == {0, 1, 2}
    assert len({thread for _, thread in made}) == 3
    assert lap.p99_us >= lap.us > 0


def test_error_in_a_thread_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        from_threads([lambda: None, lambda: 1 / 0], 2)


def test_each_task_awaits_its_own() -> None:
    made: list[int] = []

    async def call(number: int) -> None:
        made.append(number)
        await asyncio.sleep(0)

    lap = asyncio.run(
        from_tasks([lambda: call(0), lambda: call(1), lambda: call(2)], 2),
    )
    assert made == [0, 1, 2] * 2
    assert lap.us > 0


def test_system_calls_are_those_of_the_calls() -> None:
    def call() -> None:
        os.stat("/")
        os.stat("/")
        time.perf_counter()

    count = system_calls(call, 5)
    if count is None:
        pytest.skip("strace is missing or may not attach")
    assert count == 2


@pytest.mark.parametrize("program", [None, "#!/bin/sh\necho no such right >&2\n"])
def test_without_strace_none_are_counted(
    program: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program is not None:
        (tmp_path / "strace").write_text(program)
        (tmp_path / "strace").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert system_calls(lambda: None, 1) is None

"""The works of `wire`, ours alone, under pytest-benchmark; `test_codec` says how to compare."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from emq.embedded import Embedded

from .load import from_tasks, from_threads
from .peers import OURS, PEERS, Call
from .works import WORKS

_TIMES = 10  # calls of each caller


@pytest.mark.parametrize("name", [work.name for work in WORKS])
def test_work(name: str, server: Embedded, benchmark: BenchmarkFixture) -> None:
    work = next(one for one in WORKS if one.name == name)
    peer = next(one for one in PEERS if one.name == OURS and work.section in one.sections)
    stack = AsyncExitStack()

    async def opened() -> list[Call]:
        return work.prepare(await peer.open(server, stack))

    with asyncio.Runner() as runner:
        calls = runner.run(opened())
        if work.how == "threads":
            benchmark(from_threads, calls, _TIMES)
        elif work.how == "tasks":
            benchmark(lambda: runner.run(from_tasks(calls, _TIMES)))
        else:
            assert benchmark(calls[0]) == work.answers[0]
        runner.run(stack.aclose())

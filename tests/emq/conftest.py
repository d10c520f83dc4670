"""A queue on each shell and each protocol, and ways to let time pass without waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import pytest

from emq import Queue
from emq.job import Job

from .shells import Shell

_left_out: Counter[str] = Counter()


def needs(*verbs: str) -> pytest.MarkDecorator:
    """Marks a test of the bus contract's verbs that not every version of the client has."""
    return pytest.mark.needs(*verbs)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*verbs): taken out where Queue has not all of them")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marks = item.iter_markers("needs")
        missing = {verb for mark in marks for verb in mark.args if not hasattr(Queue, verb)}
        (left_out if missing else kept).append(item)
        _left_out.update(missing)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


SHELLS = [("threads", 2), ("threads", 3), ("aio", 2), ("aio", 3)]


@pytest.fixture(scope="session")
def shells(server: Any) -> Iterator[Callable[[str, int], Shell]]:
    """Answers the shell of a kind and a protocol; each is dialled once a run."""
    dialled: dict[tuple[str, int], Shell] = {}

    def shell(kind: str, protocol: int) -> Shell:
        if (kind, protocol) not in dialled:
            dialled[kind, protocol] = Shell(kind, protocol, server.url)
        return dialled[kind, protocol]

    yield shell
    for each in dialled.values():
        each.close()


@pytest.fixture(params=SHELLS, ids=lambda param: f"{param[0]}-resp{param[1]}")
def shell(request: pytest.FixtureRequest, shells: Callable[[str, int], Shell]) -> Shell:
    """Each shell on each protocol."""
    return shells(*request.param)


class Queues(Protocol):
    """Makes a queue of the test's shell; another suffix is another queue."""

    def __call__(self, suffix: str = "", **options: Any) -> Queue: ...


@pytest.fixture
def queues(shell: Shell, fresh_name: str) -> Queues:
    """Queues of one shell under one fresh name."""
    return lambda suffix="", **options: shell.queue(fresh_name + suffix, **options)


@pytest.fixture
def queue(queues: Queues) -> Queue:
    """A queue that nobody used, on each shell and each protocol."""
    return queues()


Expire: TypeAlias = Callable[[Job], None]


@pytest.fixture
def expire(server: Any) -> Expire:
    """Let a job's lease end, by moving its score into the past."""

    def end_lease(job: Job) -> None:
        moved = server.admin.zadd(f"emq:{{{job.queue}}}:active", {job.id: 1}, xx=True, ch=True)
        assert moved == 1, "the job has no lease to end"

    return end_lease


Due: TypeAlias = Callable[[str], None]


@pytest.fixture
def due(server: Any, fresh_name: str) -> Due:
    """Let a scheduled job become due, by moving its score into the past."""

    def come_due(job_id: str) -> None:
        moved = server.admin.zadd(f"emq:{{{fresh_name}}}:schedule", {job_id: 1}, xx=True, ch=True)
        assert moved == 1, "the job is not scheduled"

    return come_due


@pytest.fixture
def keys(server: Any, fresh_name: str) -> Keys:
    """The queue's keys, behind the code's back."""
    return Keys(server.admin, fresh_name)


class Keys:
    """A queue's keys, read and written without the code under test."""

    def __init__(self, admin: Any, queue: str) -> None:
        self.admin = admin
        self.base = f"emq:{{{queue}}}:"

    def row(self, job_id: str) -> dict[str, bytes]:
        fields = self.admin.hgetall(f"{self.base}job:{job_id}")
        return {name.decode(): value for name, value in fields.items()}

    def members(self, suffix: str) -> list[str]:
        return [member.decode() for member in self.admin.zrange(self.base + suffix, 0, -1)]

    def score(self, suffix: str, member: str) -> float | None:
        score: float | None = self.admin.zscore(self.base + suffix, member)
        return score

    def dumped(self) -> dict[bytes, bytes]:
        from .snapshot import dumped

        return dumped(self.admin, self.base)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much of the recordings was played: what is left out must not go unseen."""
    stats = terminalreporter.stats
    if any("test_golden.py" in report.nodeid for report in stats.get("passed", ())):
        from .golden import summary

        terminalreporter.write_line(f"golden recordings: {summary()}")
    for verb, tests in sorted(_left_out.items()):
        terminalreporter.write_line(f"{tests} tests are for the verb {verb}, which is not there")

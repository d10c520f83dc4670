"""The command, run in this process on the run's own server, and a queue behind its back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

import emq
from emq import Queue
from emq.cli import main
from emq.ids import Mint
from emq.job import Job
from tests.conftest import Server

from ..conftest import Keys

GROUP: Final = "PRT0EEMl9I7KXg"
OTHER_GROUP: Final = "PRT0EEMl9I7KXh"


@dataclass(frozen=True)
class Done:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]

    @property
    def facts(self) -> dict[str, str]:
        """The lines of `show`, by what they begin with."""
        pairs = [line.split("  ", 1) for line in self.lines]
        return {name: value.strip() for name, value in pairs}


Emq = Callable[..., Done]


@pytest.fixture(autouse=True)
def _no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMQ_URL", raising=False)


@pytest.fixture
def run(server: Server, capsys: pytest.CaptureFixture[str]) -> Emq:
    """Runs `emq` with arguments on the server; `code` is how it must end."""

    def command(*argv: str, code: int = 0, url: str = server.url) -> Done:
        capsys.readouterr()
        try:
            ended = main([argv[0], "--url", url, *argv[1:]])
        except SystemExit as left:
            ended = int(left.code or 0)
        captured = capsys.readouterr()
        done = Done(ended, captured.out, captured.err)
        assert done.code == code, done
        return done

    return command


@pytest.fixture(scope="session")
def connector(server: Server) -> Iterator[Any]:
    with emq.connect(server.url) as connector:
        yield connector


@pytest.fixture
def queue(connector: Any, fresh_name: str) -> Queue:
    """A queue that nobody used."""
    return Queue(connector, fresh_name)


@pytest.fixture
def keys(server: Any, fresh_name: str) -> Keys:
    return Keys(server.admin, fresh_name)


class Hands:
    """Makes jobs in every condition, by the keys alone."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.mint = Mint().mint

    def row(self, id: str | None = None, **fields: str) -> str:
        id = id or self.mint()
        self._keys.admin.hset(f"{self._keys.base}job:{id}", mapping=fields)
        return id

    def put(self, suffix: str, id: str, score: float = 0) -> str:
        self._keys.admin.zadd(self._keys.base + suffix, {id: score})
        return id

    def laned(self, group: str = GROUP, **fields: str) -> str:
        """A job that waits in a lane, which is in rotation."""
        fields = {"state": "pending", "attempts": "0", "payload": "p", "group": group, **fields}
        id = self.put(f"g:{group}:pending", self.row(**fields))
        if self._keys.admin.lpos(f"{self._keys.base}ring", group) is None:
            self._keys.admin.rpush(f"{self._keys.base}ring", group)
        return id


@pytest.fixture
def hands(keys: Keys) -> Hands:
    return Hands(keys)


def claimed(queue: Queue) -> Job:
    job = queue.claim()
    assert job is not None
    return job


def dead(queue: Queue, payload: bytes = b"p", error: str = "boom") -> str:
    """The id of a job that died."""
    id = queue.enqueue(payload).job_id
    assert queue.retry(claimed(queue), delay_ms=0, max_attempts=1, error=error) == "dead"
    return id

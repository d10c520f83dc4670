"""Nothing grows with the number of jobs: `python -m tests.long_run`, at a small size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emq.embedded import Embedded
from tests.long_run import RSS_GROWTH, SERVER_GROWTH, Sample, growth, measure


@pytest.fixture
def own_server() -> Iterator[str]:
    """A server that no other test writes to, since all its keys are counted."""
    with Embedded() as server:
        yield server.url


@pytest.mark.parametrize(("shell", "batch"), [("threads", 1), ("threads", 50), ("aio", 50)])
def test_nothing_grows(shell: str, batch: int, own_server: str) -> None:
    samples = measure(own_server, 10_000, shell=shell, batch=batch)

    assert not growth(samples), samples


def samples(**last: int) -> list[Sample]:
    first = Sample(jobs=1, keys=3, used=10 << 20, rss=40 << 20, rate=1.0)
    return [first, *[first._replace(**last)] * 3]


def test_what_grows_is_noticed() -> None:
    assert not growth(samples())
    assert growth(samples(keys=4))
    assert growth(samples(used=(10 << 20) + SERVER_GROWTH + 1))
    assert growth(samples(rss=(40 << 20) + RSS_GROWTH + 1))

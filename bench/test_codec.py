"""The workloads of `codec`, ours alone, under pytest-benchmark.

pytest bench --benchmark-only --benchmark-autosave     # at one commit
pytest bench --benchmark-only --benchmark-compare      # at another
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from .codec import Lap, decode_ours, encodings, workloads

_ENCODINGS = dict(encodings())
_NAMES = [workload.name for workload in workloads()]


@pytest.mark.parametrize("name", _NAMES)
def test_decode(name: str, benchmark: BenchmarkFixture) -> None:
    workload = next(one for one in workloads() if one.name == name)
    assert benchmark(decode_ours(workload)) == workload.replies


@pytest.mark.parametrize("name", _ENCODINGS)
def test_encode(name: str, benchmark: BenchmarkFixture) -> None:
    run: Lap = _ENCODINGS[name]
    benchmark(run)

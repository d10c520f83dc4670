"""The suites run under pytest-benchmark, and one that is slower is found by its comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def _pytest(*words: str) -> str:
    # A run of its own, whatever this one was told, be it a worker of many.
    told = ("PYTEST_", "COVERAGE_", "COV_CORE_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=_ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_works_of_every_suite_are_timed(tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    _pytest(
        "bench/test_codec.py::test_decode[integers]",
        "bench/test_wire.py::test_work[GET]",
        "bench/test_wire.py::test_work[GET, 50 tasks]",
        "bench/test_jobs.py::test_consumer",
        *("--benchmark-only", "--benchmark-max-time=0.01", "--benchmark-min-rounds=1"),
        f"--benchmark-json={file}",
    )
    told = {
        one["name"]: one["stats"]["median"] for one in json.loads(file.read_text())["benchmarks"]
    }
    assert set(told) == {
        *("test_decode[integers]", "test_work[GET]", "test_work[GET, 50 tasks]", "test_consumer"),
    }
    assert min(told.values()) > 0


def test_they_pass_without_being_timed() -> None:
    assert "passed" in _pytest("bench/test_jobs.py", "--benchmark-disable")

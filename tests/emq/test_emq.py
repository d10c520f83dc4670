"""The package's face: its names are there, and cost nothing until they are used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import emq


def loaded_by(code: str) -> set[str]:
    """Which modules a fresh interpreter has loaded after some code."""
    # What measures coverage would load modules of its own.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")
    }
    told = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(emq.__file__).parents[1],
    )
    return set(told.stdout.split())


@pytest.mark.parametrize("name", emq.__all__)
def test_name_is_there(name: str) -> None:
    assert getattr(emq, name) is not None
    assert name in dir(emq)


def test_names_are_sorted_and_once() -> None:
    assert len(emq.__all__) == len(set(emq.__all__))


def test_another_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = emq.nothing_like_it


def test_import_alone_loads_no_client() -> None:
    loaded = loaded_by("import emq")

    assert "emq" in loaded
    assert not loaded & {"resp", "emq.queue", "socket", "asyncio"}


def test_threads_load_no_asyncio() -> None:
    loaded = loaded_by("import emq; emq.Queue, emq.connect, emq.JobGone")

    assert {"emq.queue", "emq.dial", "resp"} <= loaded
    assert "asyncio" not in loaded

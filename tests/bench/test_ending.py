"""However a command of the benchmarks or of the proofs ends, it ends in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.ending import INTERRUPTED, UNREAD, exit_code

_ROOT = Path(__file__).parent.parent.parent
_PROOFS = ("chaos", "explore", "fuzz", "guided", "long_run", "matrix", "model", "mutants", "paths")
_WITHOUT_DEV = """
import runpy, sys
for name in ("redis", "pytest", "hypothesis", "atheris"):
    sys.modules[name] = None
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def _unread(*command: str) -> tuple[int, str]:
    """Run a command whose stdout nobody reads; answer its exit code, and its stderr."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
    finally:
        os.close(write)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["bench bytes", "tests.explore --only reclaim"])
def test_closed_pipe_is_no_fault_found(command: str) -> None:
    assert _unread(*command.split()) == (UNREAD, "")


def test_interrupt_ends_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        print("half")
        raise KeyboardInterrupt

    assert exit_code(command) == INTERRUPTED
    assert capsys.readouterr() == ("half\n", "")


@pytest.mark.parametrize("name", _PROOFS)
def test_each_proof_ends_so(name: str) -> None:
    assert "sys.exit(exit_code(main))" in (_ROOT / "tests" / f"{name}.py").read_text("utf-8")


@pytest.mark.parametrize("name", ["chaos", "fuzz", "long_run", "matrix", "model", "mutants"])
def test_without_the_dev_extra_a_proof_says_what_it_needs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DEV, f"tests.{name}", "--help"],
        capture_output=True,
        text=True,
        cwd=_ROOT,
    )
    needs = f"tests.{name}: needs the dev extra; pip install -e '.[dev]'\n"
    assert (done.returncode, done.stderr) == (2, needs)

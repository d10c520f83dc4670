"""However a command of the benchmarks or of the proofs ends, it ends in order."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.ending import INTERRUPTED, TERMINATED, UNREAD, exit_code, lost_connection

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


def test_sigterm_unwinds_what_runs_and_is_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    unwound = []

    def command() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            unwound.append(True)
        return 0

    assert exit_code(command) == TERMINATED
    assert unwound == [True]
    assert signal.getsignal(signal.SIGTERM) is before


def test_interrupt_among_other_errors_is_an_interrupt() -> None:
    def command() -> int:
        raise BaseExceptionGroup("tasks", [ValueError("else"), KeyboardInterrupt()])

    assert exit_code(command) == INTERRUPTED


def test_sigterm_ends_a_forked_child_at_once() -> None:
    def command() -> int:
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert exit_code(command) == -signal.SIGTERM


def test_server_that_goes_in_the_middle_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def goes(argv: object) -> int:
        raise ExceptionGroup("clients", [ValueError("else"), ConnectionResetError(104, "reset")])

    monkeypatch.setattr("bench.bytes.main", goes)
    assert main(["bytes"]) == 3
    assert capsys.readouterr().err == "bench bytes: the server has gone: [Errno 104] reset\n"
    assert lost_connection(ValueError("a fault")) is None


@pytest.mark.parametrize(
    "command",
    [
        "chaos --kills -1",
        "chaos --kills 0",
        "chaos --workers 0",
        "chaos --minutes nan",
        "chaos --handovers -1",
        f"chaos --keep {_ROOT}",
        f"guided decoder --corpus {__file__}",
        "long_run --jobs 9",
        "long_run --batch 0",
        "model --examples 0",
        "mutants lua --sample 1_0",
        "mutants lua --tests nowhere.py",
        f"mutants lua --resume {_ROOT}",
        f"mutants lua --resume {__file__}",
    ],
)
def test_what_a_proof_cannot_do_is_refused_before_it_begins(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *words = command.split()
    if name == "guided":
        pytest.importorskip("atheris")
    with pytest.raises(SystemExit) as refused:
        importlib.import_module(f"tests.{name}").main(words)
    assert refused.value.code == 2
    assert words[-2] in capsys.readouterr().err


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

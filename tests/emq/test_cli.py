"""The command: what it takes, its exit codes, and its one-line errors."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emq import cli
from emq.cli import main
from emq.embedded import EmbeddedError
from emq.errors import FenceError
from tests.conftest import Server


@pytest.mark.parametrize("argv", [[], ["nothing"], ["demo", "--nothing"], ["demo", "extra"]])
def test_wrong_usage_is_two(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2
    assert "usage: emq" in capsys.readouterr().err


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    assert "demo" in capsys.readouterr().out


def _one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    assert line.startswith("emq: ")
    return line


def test_a_url_that_cannot_be_used_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--url", "http://127.0.0.1"]) == 2
    assert "valkey://" in _one_line(capsys)


def test_no_server_is_three(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert main(["demo", "--url", f"unix://{tmp_path}/nobody"]) == 3
    assert "nobody" in _one_line(capsys)


def test_a_wrong_password_is_three_and_is_not_shown(
    password_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"valkey://:hunter2@{password_server.host}:{password_server.port}"
    assert main(["demo", "--url", url]) == 3
    assert "hunter2" not in _one_line(capsys)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EmbeddedError("install it"), 3),
        (FenceError(b"echomq:2.0.0", "echomq:3.0.0"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_demo", fail)
    assert main(["demo"]) == code


def test_a_reader_that_goes_away_ends_it_quietly(server: Server) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "emq", "demo", "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("On ")
        process.stdout.close()
        complaints = process.stderr.read()
        process.wait()
    assert complaints == ""
    assert process.returncode in (0, 1)  # 0 where it was faster than the closing


def test_a_broken_pipe_is_no_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(options: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(cli, "_demo", fail)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["demo"]) == 1
        print("what is flushed at exit", flush=True)
    assert (tmp_path / "out").read_text() == ""


def test_the_package_runs_as_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["emq", "demo", "--url", "nothing"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("emq", run_name="__main__")
    assert left.value.code == 2

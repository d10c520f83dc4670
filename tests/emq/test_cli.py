"""The command: what it takes, its exit codes, and its one-line errors."""

from __future__ import annotations

import argparse
import os
import runpy
import shlex
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

import emq
from emq import cli
from emq.cli import main
from emq.embedded import EmbeddedError
from emq.errors import EmqError, FenceError
from resp import ConnectFailed, ConnectionLost, Refused, ServerError
from tests.conftest import Server

COMMANDS = [*cli._COMMANDS, "demo"]


@pytest.fixture(autouse=True)
def _no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMQ_URL", raising=False)


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
    out = capsys.readouterr().out
    assert all(f"\n    {name}" in out for name in COMMANDS)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        number = version("echomq")
    except PackageNotFoundError:
        number = "of a source tree that was not installed"
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert not left.value.code
    assert capsys.readouterr().out == f"emq {number}, wire {emq.WIRE_VERSION}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_commands_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: emq {name} ")
    assert "EMQ_URL" in out
    assert name == "demo" or f"\n  emq {name}" in out


@pytest.mark.parametrize("argv", [["ls"], ["top", "--once"], ["doctor"], ["pause", "q"]])
def test_the_server_is_that_of_the_option_else_of_the_environment_else_the_usual(
    argv: list[str],
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "_DEFAULT_URL", "unix:///the-usual")
    assert main(argv) == 3
    assert "the-usual" in _one_line(capsys)
    monkeypatch.setenv("EMQ_URL", "unix:///of-the-environment")
    assert main(argv) == 3
    assert "of-the-environment" in _one_line(capsys)
    assert main([*argv, "--url", "unix:///of-the-option"]) == 3
    assert "of-the-option" in _one_line(capsys)
    monkeypatch.setenv("EMQ_URL", server.url)
    assert main(argv) in (0, 1)


def test_the_demo_takes_the_server_of_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMQ_URL", "unix:///of-the-environment")
    assert main(["demo"]) == 3
    assert "of-the-environment" in _one_line(capsys)


def test_a_command_loads_no_more_than_it_needs(server: Server) -> None:
    code = (
        "import sys; from emq.cli import main\n"
        f"code = main(['ls', '--url', {server.url!r}, '--json', 'none'])\n"
        "print(code, *sorted({'asyncio', 'emq.demo', 'emq.consumer', 'emq.commands.work', "
        "'logging', 'json.tool'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "0\n"


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
    assert process.returncode in (0, 141)  # 0 where it was faster than the closing


def _emq(redirection: str, *argv: str, url: str = "") -> tuple[int, list[str]]:
    """Run the command in a shell; its exit code, and what it said on stderr."""
    words = [sys.executable, "-m", "emq", *argv, *(["--url", url] if url else [])]
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join(words)} {redirection}"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("argv", [["demo"], ["demo", "--json"], ["--help"]], ids=" ".join)
def test_a_full_disk_is_one_line(server: Server, argv: list[str]) -> None:
    code, [line] = _emq("> /dev/full", *argv, url=server.url if argv[0] == "demo" else "")
    assert code == 1
    assert line.startswith("emq: stdout cannot be written: No space left")
    assert ";" in line


@pytest.mark.parametrize("argv", [["demo"], ["demo", "--json"]], ids=" ".join)
def test_a_closed_stdout_is_one_line_and_nothing_is_done(argv: list[str]) -> None:
    code, [line] = _emq(">&-", *argv, url="unix:///nowhere")
    assert code == 1
    assert line.startswith("emq: stdout is closed; ")


@pytest.mark.parametrize("argv", [["demo"], ["demo", "--json"]], ids=" ".join)
def test_a_broken_pipe_is_141_and_quiet(server: Server, argv: list[str]) -> None:
    code, told = _emq("| true; exit ${PIPESTATUS[0]}", *argv, url=server.url)
    assert (code, told) == (141, [])


def test_an_error_does_not_take_stdout_where_stderr_is_closed() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m emq demo --url x 2>&-"],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize(
    ("error", "code", "step"),
    [
        (ConnectFailed("h:1: refused"), 3, "is it running? give another --url"),
        (Refused("h:1 refused HELLO: WRONGPASS", "WRONGPASS"), 3, "put user:password@ in the URL"),
        (ServerError("NOAUTH", "NOAUTH Authentication required.", "GET"), 1, "put user:password@"),
        (ServerError("READONLY", "READONLY a replica", "SET"), 1, "takes writes"),
        (ConnectionLost("the server closed the connection"), 3, "is the server still up?"),
        (ConnectFailed("h:1: refused; look into it"), 3, "refused; look into it"),
        (EmqError("one\nline"), 1, "emq: one line; "),
    ],
)
def test_an_error_names_the_next_step(
    error: Exception,
    code: int,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(options: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_demo", fail)
    assert main(["demo", "--url", "valkey://h"]) == code
    line = _one_line(capsys)
    assert step in line
    assert line.count(";") == 1
    assert main(["demo"]) == code
    assert ";" in _one_line(capsys)


@pytest.mark.parametrize(
    ("error", "code", "step"),
    [
        (ConnectFailed("h:1: refused"), 3, "is it running? give another --url"),
        (FenceError(b"echomq:2.0.0", "echomq:3.0.0"), 1, "(--wire-version); or give another"),
        (ServerError("WRONGTYPE", "WRONGTYPE no", "ZCARD"), 1, "emq doctor tells which"),
        (argparse.ArgumentError(None, "both"), 2, "see emq pause --help"),
        (argparse.ArgumentError(None, "both; take one"), 2, "both; take one"),
    ],
)
def test_an_error_of_the_other_commands_tells_of_no_private_server(
    error: Exception,
    code: int,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(options: object) -> int:
        raise error

    monkeypatch.setattr("emq.commands.link.to_write", fail)
    assert main(["pause", "q", "--url", "valkey://h"]) == code
    line = _one_line(capsys)
    assert step in line
    assert "private" not in line


def test_a_url_that_cannot_be_used_is_two_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["ls"], ["top"], ["doctor"], ["retry", "q", "--all-dead"]):
        assert main([*argv, "--url", "http://h"]) == 2
        assert "valkey://user" in _one_line(capsys)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("argv", [["ls", "q"], ["show", "q", "--json"], ["ls", "--help"]])
def test_a_full_disk_is_one_line_for_all(server: Server, argv: list[str]) -> None:
    code, [line] = _emq("> /dev/full", *argv, url=server.url)
    assert code == 1
    assert line.startswith("emq: stdout cannot be written: No space left")


@pytest.mark.parametrize("argv", [["ls", "q"], ["top", "q", "--interval", "1ms"]], ids=" ".join)
def test_a_broken_pipe_is_141_for_all(server: Server, argv: list[str]) -> None:
    code, told = _emq("| true; exit ${PIPESTATUS[0]}", *argv, url=server.url)
    assert code == 141 or (argv[0] == "ls" and code == 0)  # 0 where it was faster than true
    assert told == []


def test_real_errors_name_the_next_step(
    password_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    there = f"{password_server.host}:{password_server.port}"
    for url, step in (
        ("valkey://127.0.0.1:1", "is it running?"),
        (f"valkey://{there}", "user:password@"),
        (f"valkey://:hunter2@{there}", "user:password@"),
        ("http://127.0.0.1", "--url"),
        ("127.0.0.1:6379", "--url"),
    ):
        assert main(["demo", "--url", url]) in (2, 3)
        line = _one_line(capsys)
        assert step in line
        assert "hunter2" not in line


def test_the_package_runs_as_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["emq", "demo", "--url", "nothing"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("emq", run_name="__main__")
    assert left.value.code == 2


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_leaves_no_key_behind(server: Server, name: str, code: int) -> None:
    before = set(server.admin.keys("emq:{demo-*"))
    command = [sys.executable, "-u", "-m", "emq", "demo", "--url", server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "worker A" in line:
                break
        demo.send_signal(getattr(signal, name))
        demo.stdout.read()
        assert demo.wait(20) in (code, 0)  # 0: it was done before the signal came
    assert set(server.admin.keys("emq:{demo-*")) == before


def test_keys_that_cannot_be_removed_are_named(
    server: Server, fresh_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = server.admin
    admin.acl_setuser(
        "nodelete", enabled=True, passwords=["+p"], keys=["*"], commands=["+@all", "-unlink"]
    )
    try:
        url = f"valkey://nodelete:p@{server.host}:{server.port}"
        main(["demo", "--url", url])
        assert "could not be removed: emq:{demo-" in capsys.readouterr().err
    finally:
        admin.acl_deluser("nodelete")
        for key in admin.keys("emq:{demo-*"):
            admin.delete(key)

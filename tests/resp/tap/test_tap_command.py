"""`python -m resp` and its `tap`: what it takes, shows, writes and exits with."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from resp import cli, connect
from resp.cli import main
from resp.tap import recording
from tests.conftest import Server

_ROOT: Final = Path(__file__).parents[3]
_PATIENCE_S: Final = 30.0
_TAP: Final = [sys.executable, "-m", "resp", "tap"]
_GET: Final = (
    "import os, socket, sys, urllib.parse\n"
    "url = urllib.parse.urlsplit(os.environ['REDIS_URL'])\n"
    "with socket.create_connection((url.hostname, url.port)) as sock:\n"
    "    sock.sendall(b'PING\\r\\n'); sys.stdout.write(sock.recv(100).decode())\n"
)


def run(*words: str, env: dict[str, str] | None = None, **options: Any) -> Any:
    """Run the command as a process of its own."""
    return subprocess.run(
        [*_TAP, *words],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(_ROOT), **(env or {})},
        **options,
    )


@contextmanager
def listening(server: Server, *words: str, **options: Any) -> Iterator[tuple[Any, int]]:
    """A proxy in a process of its own, and its port."""
    process = subprocess.Popen(
        [*_TAP, "--listen", "127.0.0.1:0", "--to", server.url, *words],
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        **options,
    )
    try:
        assert process.stderr is not None
        told = process.stderr.readline()
        found = re.search(r"listening on 127\.0\.0\.1:([0-9]+), passing on to ", told)
        assert found, told
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate()


def ended(process: Any, number: int) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=_PATIENCE_S)
    return process.returncode, out, err


# The command line.


def test_the_subcommands_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert not left.value.code
    out = capsys.readouterr().out
    assert all(f"\n    {name}" in out for name in cli._COMMANDS)


@pytest.mark.parametrize("name", sorted(cli._COMMANDS))
def test_each_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert not left.value.code
    assert f"python -m resp {name}" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert not left.value.code
    assert capsys.readouterr().out.startswith("resp ")


@pytest.mark.parametrize(
    "words",
    [
        ["URL"],
        ["tap", "URL"],
        ["tap", "--count", "URL", "f"],
        ["tap", "--filter", "URL", "f"],
        ["tap", "--listen", "URL"],
        ["tap", "--listen", "127.0.0.1:0", "--to", "u:hunter2@h"],
        ["tap", "--", "URL", "x"],
        ["tap", "--scripts", "URL", "--", "PING"],
        ["decode", "URL"],
    ],
)
def test_an_error_quotes_no_password(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    url = "valkey://u:hunter2@127.0.0.1:1"
    with contextlib.suppress(SystemExit):
        assert main([url if word == "URL" else word for word in words])
    told = capsys.readouterr().err
    assert "hunter2" not in told
    assert "***@" in told


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nothing"],
        ["tap", "--nothing"],
        ["tap", "--as", "other", "f"],
        ["tap", "file", "another"],
        ["tap", "--filter", "sise>3", "f"],
        ["tap", "--filter", "ky:cart:*", "f"],
        ["tap", "--count", "0", "f"],
        ["tap", "--limit", "x", "f"],
    ],
)
def test_wrong_usage_is_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    asked = " tap" if words[:1] == ["tap"] else ""
    assert line.startswith("resp: ")
    assert line.endswith(f"; see python -m resp{asked} --help")


@pytest.mark.parametrize(
    "words",
    [
        ["tap"],
        ["tap", "--"],
        ["tap", "file", "--", "true"],
        ["tap", "--listen", ":0", "--", "true"],
        ["tap", "--listen", ":0", "file"],
        ["tap", "--follow", "--", "true"],
        ["tap", "--to", "127.0.0.1:1", "file"],
        ["tap", "--write", "other", "file"],
        ["tap", "--json", "--as", "line", "file"],
        ["tap", "--", "no-such-program"],
        ["tap", "--to", "http://x", "--", "true"],
        ["tap", "--listen", "host:port"],
    ],
)
def test_what_does_not_go_together_is_one_line_and_two(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("resp: ")
    assert "; " in line


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["tap", "/no/such/file"], 1),
        (["tap", "--scripts", "/no/such/file", "--", "true"], 1),
        (["tap", "-o", "/no/such/folder/out", "--", "true"], 1),
        (["tap", "--write", "/no/such/folder/out", "--", "true"], 1),
        (["tap", "--html", "/no/such/folder/out", "--", "true"], 1),
        (["tap", "--to", "127.0.0.1:1", "--", "PING"], 3),
        (["tap", "--listen", "203.0.113.1:1"], 3),
    ],
)
def test_a_refusal_is_one_line_that_names_the_next_step(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    assert line.startswith("resp: ")
    assert "; " in line
    assert not captured.out


def test_an_unforeseen_error_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from resp.commands import tap

    monkeypatch.setattr(tap, "run", lambda options: 1 // 0)
    assert main(["tap", "file"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError in test_tap_command.py:" in line


# A program.


def test_a_program_finds_the_proxy_and_its_own_streams_are_its_own(server: Server) -> None:
    done = run("--to", server.url, "--as", "line", "--", sys.executable, "-c", _GET)
    assert done.returncode == 0
    assert done.stdout == "+PONG\r\n".replace("\r\n", "\n")
    [line] = done.stderr.splitlines()
    assert " PING " in line


def test_its_exit_code_and_its_stdin_are_passed_on(server: Server) -> None:
    code = "import sys; sys.exit(len(sys.stdin.read()))"
    done = run("--to", server.url, "--", sys.executable, "-c", code, input="x" * 42)
    assert done.returncode == 42
    assert not done.stderr
    killed = "import os; os.kill(os.getpid(), 9)"
    assert run("--to", server.url, "--", sys.executable, "-c", killed).returncode == 137


def test_the_urls_keep_user_password_and_database(password_server: Server) -> None:
    from urllib.parse import quote

    user = f"{password_server.user}:{quote(password_server.user_password, safe='')}@"
    to = f"valkey://{user}{password_server.host}:{password_server.port}/3?client_name=me"
    code = (
        "import os, sys, resp, redis\n"
        "print(os.environ['EMQ_URL'], sys.argv[1:])\n"
        "for url in (os.environ['EMQ_URL'], os.environ['VALKEY_URL'], os.environ['REDIS_URL']):\n"
        "    with resp.connect(url) as connector:\n"
        "        print(connector.command('CLIENT', 'INFO'))\n"
        "with redis.Redis.from_url(os.environ['REDIS_URL']) as client: print(client.acl_whoami())\n"
    )
    words = [sys.executable, "-c", code, "{url}", "at={host}:{port}", "{other}"]
    done = run("--", *words, env={"EMQ_URL": to})
    assert done.returncode == 0, done.stderr
    first, *infos, whoami = done.stdout.splitlines()
    assert re.match(re.escape(f"valkey://{user}127.0.0.1:") + r"\d+/3\?client_name=me ", first)
    assert f"'redis://{user}127.0.0.1:" in first
    assert re.search(r"'at=127\.0\.0\.1:\d+', '\{other\}'", first)
    assert len(infos) == 3
    assert all(" db=3 " in info and " user=worker " in info for info in infos)
    assert " name=me " in infos[0]
    assert whoami == "worker"
    secret = password_server.user_password
    assert secret not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_and_then_the_tap(server: Server, number: int) -> None:
    code = "import signal, sys; print('up', flush=True); signal.pause()"
    process = subprocess.Popen(
        [*_TAP, "--to", server.url, "--ledger", "--", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    returncode, _, err = ended(process, number)
    assert returncode == 128 + number
    assert "0 exchanges" in err  # what is told at the end is told
    assert "resp/" not in err  # the tap itself has no traceback


def test_a_program_that_cannot_reach_its_server_is_told_why() -> None:
    done = run("--to", "127.0.0.1:1", "--", sys.executable, "-c", _GET)
    assert "127.0.0.1:1 cannot be reached" in done.stderr


# A command.


def test_a_command_is_sent_and_shown(server: Server, fresh_name: str) -> None:
    done = run("--to", server.url, "--", "SET", fresh_name, "a value")
    assert done.returncode == 0, done.stderr
    assert '"a value"' in done.stdout
    assert "HELLO" not in done.stdout
    assert server.admin.get(fresh_name) == b"a value"
    shown = run("--to", server.url, "--json", "--", "GET", fresh_name)
    assert json.loads(shown.stdout)["replies"] == [["a value"]]


def test_a_command_that_is_refused_is_shown_and_one(server: Server, fresh_name: str) -> None:
    done = run("--to", f"{server.host}:{server.port}", "--", "INCR", fresh_name, "x")
    assert done.returncode == 1
    assert "wrong number of arguments" in done.stdout
    assert run("--to", server.url, "--", "SUBSCRIBE", "x").returncode == 1


# Listening.


def test_any_client_can_be_pointed_at_it(server: Server, fresh_name: str) -> None:
    with listening(server) as (process, port):
        with redis.Redis(port=port) as client:
            client.set(fresh_name, "x")
            assert client.get(fresh_name) == b"x"
        assert process.stdout is not None
        shown = _until(process.stdout, f"GET {fresh_name}")
        assert f"SET {fresh_name}" in shown
        code, _, err = ended(process, signal.SIGTERM)
        assert code == 143
        assert not err


def _until(stream: Any, text: str) -> str:
    """What a stream says, up to a text: it is said while the traffic goes on."""
    shown = ""
    os.set_blocking(stream.fileno(), False)
    until = time.monotonic() + _PATIENCE_S
    while text not in shown:
        assert time.monotonic() < until, shown
        select.select([stream], [], [], 0.5)
        shown += stream.read() or ""
    os.set_blocking(stream.fileno(), True)
    return shown


def test_ctrl_c_ends_it_in_order(server: Server, tmp_path: Path) -> None:
    written = [tmp_path / name for name in ("a.tap", "a.html", "a.txt")]
    words = ["--write", str(written[0]), "--html", str(written[1]), "-o", str(written[2])]
    with listening(server, *words, "--ledger") as (process, port):
        with connect(f"valkey://127.0.0.1:{port}") as connector:
            connector.command("ECHO", "crossed")
        code, out, err = ended(process, signal.SIGINT)
    assert (code, out, err) == (130, "", "")
    assert "ECHO" in [one.name for one in recording.exchanges(written[0])]
    assert b"ECHO" in written[1].read_bytes()
    shown = written[2].read_text()
    assert "ECHO" in shown
    assert "round trips" in shown


def test_who_reads_stdout_may_go_and_it_ends_quietly(server: Server) -> None:
    reading, writing = os.pipe()
    with listening(server, stdout=writing) as (process, port):
        os.close(writing)
        os.close(reading)
        with redis.Redis(port=port) as client:
            for _ in range(100):
                try:
                    client.ping()
                except redis.ConnectionError:
                    break
        _, err = process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 141
        assert not err


def test_a_reader_that_is_slow_does_not_hold_up_the_traffic(server: Server) -> None:
    """Nobody reads stdout; more is shown than a pipe holds."""
    reading, writing = os.pipe()
    try:
        with listening(server, stdout=writing) as (process, port):
            with connect(f"valkey://127.0.0.1:{port}", timeout=_PATIENCE_S) as connector:
                for _ in range(5):
                    replies = connector.pipeline([("ECHO", f"{n}" * 10) for n in range(1000)])
                    assert replies[7] == b"7" * 10
            assert process.poll() is None
    finally:
        os.close(reading)
        os.close(writing)


def test_a_full_disk_ends_the_views_and_not_the_traffic(server: Server) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with listening(server, "-o", "/dev/full") as (process, port):
        with redis.Redis(port=port) as client:
            assert [client.echo(str(n)) for n in range(50)] == [str(n).encode() for n in range(50)]
        code, _, err = ended(process, signal.SIGTERM)
    assert code == 143
    [line] = err.splitlines()
    assert "No space left" in line
    assert "the traffic goes on" in line


def test_a_client_that_is_killed_takes_nobody_along(server: Server) -> None:
    with listening(server) as (process, port):
        victim = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import redis, sys\n"
                f"client = redis.Redis(port={port})\n"
                "client.ping(); print('up', flush=True)\n"
                "while True: client.pipeline().ping().ping().execute()",
            ],
            stdout=subprocess.PIPE,
        )
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"up\n"
        victim.kill()
        victim.communicate()
        threading.Thread(target=process.stdout.read, daemon=True).start()
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(os.urandom(10_000) + b"\r\n")
        with redis.Redis(port=port) as client:
            assert client.echo("still there") == b"still there"
        assert process.poll() is None


# Views.


@pytest.mark.parametrize("view", ["line", "tree", "hex"])
def test_views(server: Server, view: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("--to", server.url, "--as", view, "-o", str(out), "--", "ECHO", "shown")
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    shown = out.read_text()
    assert {"line": "ECHO", "tree": '"shown"', "hex": "73 68 6f 77"}[view] in shown
    assert "\x1b" not in shown


def test_colours_are_for_terminals_or_on_demand(server: Server) -> None:
    words = ["--to", server.url, "--", "ECHO", "x"]
    assert "\x1b[" not in run(*words).stdout
    assert "\x1b[" in run("--color", "always", *words, env={"NO_COLOR": "1"}).stdout


def test_filter_and_count(server: Server) -> None:
    with listening(server, "--json", "--filter", "ECHO up>100", "--count", "3") as (process, port):
        with redis.Redis(port=port) as client:
            client.ping()
            for n in range(3):
                client.echo("short")
                client.echo(f"{n}" * 200)
        out, _ = process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 0
    shown = [json.loads(line) for line in out.splitlines()]
    assert [one["request"] for one in shown] == [["ECHO", f"{n}" * 200] for n in range(3)]


def test_json_lines_say_all(server: Server, fresh_name: str) -> None:
    code = (
        "import os, resp\n"
        "with resp.connect(os.environ['EMQ_URL']) as c:\n"
        f"    c.command('HSET', '{fresh_name}', 'a', b'\\xff')\n"
        f"    c.command('HGETALL', '{fresh_name}')\n"
        "    c.pipeline([('GET',), ('EVAL', 'return {1,false,{2}}', 0)])\n"
    )
    done = run("--to", server.url, "--json", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in done.stderr.splitlines()]
    assert [one["name"] for one in shown] == ["HELLO", "HSET", "HGETALL", "GET", "EVAL"]
    assert shown[1]["request"] == ["HSET", fresh_name, "a", "\\xff"]
    assert shown[2]["replies"] == [[{"map": [["a", "\\xff"]]}]]
    assert "wrong number" in shown[3]["replies"][0][0]["error"]
    assert shown[4]["replies"] == [[[1, None, [2]]]]
    assert all(one["kind"] == "reply" and one["rtt_ms"] > 0 for one in shown)


def test_payloads_can_be_masked_everywhere(server: Server, tmp_path: Path, fresh_name: str) -> None:
    secret = "payload-of-a-customer"
    written = [tmp_path / name for name in ("a.tap", "a.html", "a.txt")]
    words = ["--write", str(written[0]), "--html", str(written[1]), "-o", str(written[2])]
    done = run(
        "--no-payloads", "--to", server.url, "--as", "hex", *words, "--", "SET", fresh_name, secret
    )
    assert done.returncode == 0, done.stderr
    for path in written:
        assert path.stat().st_size
        assert secret.encode() not in path.read_bytes()


def test_passwords_are_in_nothing_that_is_shown_or_written(
    password_server: Server, tmp_path: Path
) -> None:
    written = [tmp_path / name for name in ("a.tap", "a.html", "a.txt")]
    words = ["--write", str(written[0]), "--html", str(written[1]), "-o", str(written[2])]
    to = f"{password_server.host}:{password_server.port}"
    code = (
        "import os, sys, redis\n"
        "from urllib.parse import urlsplit\n"
        "for protocol in (2, 3):\n"
        "    with redis.Redis(port=urlsplit(os.environ['REDIS_URL']).port, protocol=protocol,\n"
        "        username=sys.argv[1], password=sys.argv[2]) as client: client.ping()\n"
    )
    user = [password_server.user, password_server.user_password]
    done = run("--to", to, "--as", "hex", *words, "--", sys.executable, "-c", code, *user)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    secret = password_server.user_password.encode()
    for path in written:
        data = path.read_bytes()
        assert data
        assert secret not in data
        assert secret.hex(" ") not in data.decode("latin-1")


# Recordings.


def test_a_recording_is_read_again(server: Server, tmp_path: Path) -> None:
    path = str(tmp_path / "a.tap")
    code = "import os, resp; c = resp.connect(os.environ['EMQ_URL']); c.command('ECHO', 'x')"
    assert run("--to", server.url, "--write", path, "--", sys.executable, "-c", code).stderr == ""
    shown = run(path, "--filter", "ECHO").stdout
    assert shown.count("\n") == 1
    assert " ECHO " in shown
    assert "command names" in run(path, "--ledger").stdout
    assert run(path, "--count", "1", "--json").stdout.count("\n") == 1


def test_a_recording_is_followed(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "a.tap"
    with recording.Writer(path) as writer:
        number = writer.connection()
        process = subprocess.Popen(
            [*_TAP, str(path), "--follow", "--count", "2", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )
        for n in range(2):
            writer.sent(number, b"*2\r\n$4\r\nECHO\r\n$1\r\n%d\r\n" % n)
            writer.received(number, b"$1\r\n%d\r\n" % n)
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["request"] == ["ECHO", str(n)]
        assert process.wait(_PATIENCE_S) == 0
        process.communicate()


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tap"
    path.write_bytes(b"nothing of the kind" * 10)
    done = run(str(path))
    assert done.returncode == 1
    assert "no recording" in done.stderr
    assert "Traceback" not in done.stderr


# Speed.


def test_a_pipelined_load_keeps_a_good_part_of_its_rate(server: Server, tmp_path: Path) -> None:
    """redis-py, 1000 GETs at a time, lines to a file; half is the aim, of which this guards a part.

    The two are measured in turn, so that what else the machine does is shared by both.
    """
    with listening(server, "--as", "line", "-o", str(tmp_path / "out")) as (_, port):
        ways = [redis.Redis(port=server.port), redis.Redis(port=port)]
        times: list[list[float]] = [[], []]
        for _ in range(9):
            for way, taken in zip(ways, times, strict=True):
                began = time.perf_counter()
                for _ in range(5):
                    piped = way.pipeline(transaction=False)
                    for n in range(1000):
                        piped.get(f"key:{n}")
                    piped.execute()
                taken.append(time.perf_counter() - began)
        for way in ways:
            way.close()
    direct, through = map(statistics.median, times)
    assert direct / through > 0.2


@pytest.mark.parametrize("option", ["-o", "--html"])
def test_a_recording_that_is_read_is_not_written_over(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "day.tap"
    recording.Writer(kept).close()
    before = kept.read_bytes()
    link = tmp_path / "link"
    link.symlink_to(kept)
    for other in (kept, link, tmp_path / "." / "day.tap"):
        assert main(["tap", str(kept), option, str(other)]) == 2
        assert f"FILE and {option} are one file" in capsys.readouterr().err
        assert kept.read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [["-o", "x", "--write", "x"], ["-o", "x", "--html", "./x"], ["--write", "x", "--html", "x"]],
)
def test_two_outputs_are_two_files(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tap", *words, "--", "true"]) == 2
    assert not (tmp_path / "x").exists()


def test_a_filter_that_lets_nothing_through_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "day.tap"
    with recording.Writer(kept) as writer:
        number = writer.connection()
        writer.sent(number, b"*1\r\n$4\r\nPING\r\n", 1)
        writer.received(number, b"+PONG\r\n", 2)
    assert main(["tap", str(kept), "--filter", "PNIG"]) == 0
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.startswith("resp: none of 1 exchanges got through --filter; ")
    assert main(["tap", str(kept), "--filter", "PING"]) == 0
    assert not capsys.readouterr().err


def test_in_capitals_a_command_may_be_one_that_we_do_not_know(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tap", "--to", server.url, "--as", "line", "--", "JSON.NOSUCH", "a"]) == 1
    assert "unknown command" in capsys.readouterr().out


def test_a_host_that_is_none_is_named_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tap", "--listen", "no-such-host.invalid:0"]) == 3
    assert "Unknown error" not in capsys.readouterr().err

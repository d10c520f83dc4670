"""The shell, as a process: from arguments, from a pipe, and on a terminal of its own."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from resp.commands import shell as module
from tests.conftest import Server

from .conftest import Fakes, until
from .fake import Peer

_ROOT: Final = Path(__file__).parents[2]
_PATIENCE_S: Final = 30
_SECRET: Final = "hunter2-very-secret"


def _environment(server: Server, home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return {
        **kept,
        "EMQ_URL": server.url,
        "HOME": str(home),
        "NO_COLOR": "1",
        "TERM": "dumb",
        "INPUTRC": os.devnull,
        "PYTHONPATH": str(_ROOT),
    }


Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Run:
    """Runs the shell with arguments and stdin."""

    def go(*words: str | bytes, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "resp", "shell", *words],
            input=stdin,
            capture_output=True,
            env=_environment(server, tmp_path),
            timeout=_PATIENCE_S,
            check=False,
        )

    return go


# A command in the arguments.


def test_a_command_and_its_reply(run: Run, fresh_name: str) -> None:
    done = run("SET", fresh_name, "a\tb")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"OK\n", b"")
    assert run("GET", fresh_name).stdout == b"a\tb\n"
    assert run("--typed", "GET", fresh_name).stdout == b'"a\\tb"\n'
    assert run("--json", "GET", fresh_name).stdout == b'"a\\tb"\n'
    assert run("--", "GET", fresh_name).stdout == b"a\tb\n"


def test_arguments_are_bytes_and_may_look_like_options(
    run: Run, server: Server, fresh_name: str
) -> None:
    assert run("SET", fresh_name, b"\xff-\xfe").returncode == 0
    assert server.admin.get(fresh_name) == b"\xff-\xfe"
    assert run("APPEND", fresh_name, "--raw").stdout == b"8\n"
    assert run("GETRANGE", fresh_name, "-5", "-1").stdout == b"--raw\n"


def test_stdin_is_the_last_argument(run: Run, server: Server, fresh_name: str) -> None:
    data = bytes(range(256)) + b"\r\n"
    assert run("-x", "SET", fresh_name, stdin=data).stdout == b"OK\n"
    assert server.admin.get(fresh_name) == data
    assert run("GET", fresh_name).stdout == data + b"\n"
    done = run("-x")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"-x needs a command" in done.stderr


def test_an_error_is_one(run: Run) -> None:
    done = run("GET")
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout == b"ERR wrong number of arguments for 'get' command\n"


def test_no_connection_is_three(run: Run) -> None:
    done = run("--url", "unix:///nowhere/at-all", "PING")
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.count(b"\n") == 1
    done = run("--url", "unix:///nowhere/at-all", stdin=b"PING\nPING\n")
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.count(b"\n") == 1  # the second is not tried


def test_a_wrong_url_is_two(run: Run) -> None:
    done = run("--url", f"valky://u:{_SECRET}@h", "PING")
    assert (done.returncode, done.stdout) == (2, b"")
    assert _SECRET.encode() not in done.stderr


@pytest.mark.parametrize(("option", "version"), [("-2", b"2"), ("-3", b"3"), (None, b"3")])
def test_the_protocol(run: Run, option: str | None, version: bytes) -> None:
    options = [] if option is None else [option]
    done = run(*options, "CLIENT", "INFO")
    assert re.search(rb"resp=(\d)", done.stdout)[1] == version  # type: ignore[index]


# Lines from a pipe.


def test_lines_are_answered_in_order(run: Run, fresh_name: str) -> None:
    lines = f"""
        SET {fresh_name} "a b\\x00"

        GET {fresh_name}
        NOSUCH x
        GET "open
        STRLEN '{fresh_name}'
    """
    done = run("--typed", stdin=lines.encode())
    assert done.stdout.decode().splitlines() == [
        "OK",
        '"a b\\x00"',
        "(error) ERR unknown command 'NOSUCH', with args beginning with: 'x' ",
        '(error) column 13: the " is not closed',
        "(integer) 4",
    ]
    assert (done.returncode, done.stderr) == (1, b"")


def test_json_answers_each_line_with_a_line(run: Run) -> None:
    done = run("--json", stdin=b'ECHO "a\\nb"\nNOSUCH\nMONITOR\nECHO \'x\nECHO \xff\n')
    values = [json.loads(line) for line in done.stdout.splitlines()]
    assert values[0] == "a\nb"
    assert [set(value) for value in values[1:4]] == [{"$error"}] * 3
    assert values[4] == {"$base64": "/w=="}


def test_it_stops_at_an_error_if_told_to(run: Run) -> None:
    done = run("--stop", stdin=b"ECHO a\nNOSUCH\nECHO b\n")
    assert done.returncode == 1
    assert done.stdout.startswith(b"a\nERR unknown command")
    assert b"\nb\n" not in done.stdout


def test_quit_ends_it(run: Run) -> None:
    assert run(stdin=b"ECHO a\nquit\nECHO b\n").stdout == b"a\n"
    assert run(stdin=b"ECHO a\n\\quit\nECHO b\n").stdout == b"a\n"


def test_nothing_at_all_is_nothing_done(run: Run) -> None:
    done = run(stdin=b"\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_transaction_leaves_in_one_piece(run: Run, fresh_name: str) -> None:
    lines = f"""
        MULTI
        SET {fresh_name} 1
        INCR {fresh_name}
        GET {fresh_name}
        LPUSH {fresh_name} x
        EXEC
        \\line
        GET {fresh_name}
    """
    done = run("--typed", stdin=lines.encode())
    out = done.stdout.decode().splitlines()
    assert out[:5] == ["OK", *["QUEUED"] * 4]
    assert out[5:8] == ["1) OK", "2) (integer) 2", '3) "2"']
    assert out[8].startswith("4) (error) WRONGTYPE")
    assert out[-1] == '"2"'
    assert any("MULTI" in line for line in out[9:-1])  # what \line shows was said at EXEC
    assert any("EXEC" in line for line in out[9:-1])


def test_a_transaction_may_be_dropped_or_refused(run: Run, server: Server, fresh_name: str) -> None:
    lines = f"""
        EXEC
        DISCARD
        MULTI
        MULTI
        SET {fresh_name} 1
        SELECT 1
        SUBSCRIBE c
        HELLO 3
        WATCH k
        DISCARD
        MULTI
        SET {fresh_name} 1
        NOSUCH
        EXEC
    """
    done = run("--typed", stdin=lines.encode())
    out = done.stdout.decode().splitlines()
    assert [line.startswith("(error)") for line in out] == [
        True, True, False, True, False, True, True, True, True, False, False, False, False, True,
    ]  # fmt: skip
    assert "EXECABORT" in out[-1]
    assert "NOSUCH" in out[-1]
    assert server.admin.get(fresh_name) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("MONITOR", "python -m resp tap"),
        ("SYNC", "replica"),
        ("PSYNC ? -1", "replica"),
        ("HELLO 2", "\\connect"),
        ("WATCH k", "script"),
        ("UNSUBSCRIBE", "Ctrl-C"),
        ("CLIENT REPLY OFF", "send()"),
        ("SELECT x", "number"),
        ("AUTH", "password"),
        ("SUBSCRIBE", "channels"),
    ],
)
def test_what_would_change_the_connection_is_refused_with_a_way(
    run: Run, line: str, told: str
) -> None:
    done = run("--typed", stdin=f"{line}\nPING\n".encode())
    error, pong = done.stdout.decode().splitlines()
    assert error.startswith("(error) ")
    assert told in error
    assert pong == "PONG"
    assert done.returncode == 1


def test_select_stays_when_the_connection_is_made_anew(
    run: Run, server: Server, fresh_name: str
) -> None:
    lines = (
        f"SELECT 7\nSET {fresh_name} 7\nCLIENT KILL TYPE normal SKIPME no\nPING\nGET {fresh_name}\n"
    )
    done = run(stdin=lines.encode())
    assert done.stdout.splitlines()[:2] == [b"OK", b"OK"]
    assert done.stdout.splitlines()[-1] == b"7"
    assert server.admin.get(fresh_name) is None
    run(stdin=f"SELECT 7\nDEL {fresh_name}".encode())


def test_a_lost_connection_is_told_and_made_anew(run: Run, fake: Fakes) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        peer.expect("INCR", "a")
        peer.close()

    def serve(peer: Peer) -> None:
        peer.hello()
        peer.expect("INCR", "b")  # what was lost is not said again
        peer.send(b":1\r\n")
        peer.swallow()

    done = run("--url", fake(cut, serve).url, stdin=b"INCR a\nINCR b\n")
    assert (done.returncode, done.stdout) == (3, b"1\n")
    assert b"may have run" in done.stderr


# The shell's own commands.


def test_bytes_of_the_last_command_and_of_all(run: Run) -> None:
    done = run(stdin=b"PING\nECHO abc\n\\bytes\n")
    last, total = done.stdout.decode().splitlines()[2:]
    assert re.fullmatch(r"last   23 B up, 9 B down, 1 round trip, \d+\.\d{3} ms", last)
    # HELLO 3, PING and ECHO.
    found = re.fullmatch(r"total  (\d+) B up, (\d+) B down, 3 round trips", total)
    assert found is not None
    assert int(found[1]) == 22 + 14 + 23


def test_tree_hex_and_line_show_the_last_command(run: Run, fresh_name: str) -> None:
    done = run(stdin=f"SET {fresh_name} other\nGET {fresh_name}\n\\tree\n".encode())
    assert done.returncode == 0, done.stderr
    tree = done.stdout.decode()
    assert "GET" in tree
    assert "SET" not in tree
    assert fresh_name in tree
    done = run(stdin=f"SET {fresh_name} other\nGET {fresh_name}\n\\hex\n".encode())
    assert "47 45 54" in done.stdout.decode()
    done = run(stdin=f"SET {fresh_name} other\nGET {fresh_name}\n\\line\n\\line 2\n".encode())
    lines = done.stdout.decode().splitlines()[2:]
    assert ["GET" in line for line in lines] == [True, False, True]
    assert ["SET" in line for line in lines] == [False, True, False]


def test_the_ledger_counts_commands(run: Run) -> None:
    done = run(stdin=b"PING\nPING\n\\ledger\n")
    assert re.search(r"PING +2 ", done.stdout.decode())


def test_a_script_is_sent_once(run: Run, server: Server, tmp_path: Path, fresh_name: str) -> None:
    source = f"-- raise: add to a number\n-- KEYS[1] counter  str  {fresh_name}\n" + (
        "-- ARGV[1] step     int  how much\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])\n"
    )
    path = tmp_path / "raise.lua"
    path.write_text(source)
    server.admin.script_flush()
    lines = f"""
        \\load {path}
        \\run raise 1 {fresh_name} 5
        \\line
        \\run raise 1 {fresh_name} 5
        \\line
        \\tree
        MULTI
        \\run raise 1 {fresh_name} 5
        EXEC
    """
    done = run("--typed", stdin=lines.encode())
    out = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert re.search(r"^raise = [0-9a-f]{40}$", out, re.M)
    head, _, tail = out.partition("(integer) 10")
    assert "SCRIPT LOAD" in head
    assert "SCRIPT LOAD" not in tail
    assert "KEYS[1] counter" in tail
    assert "ARGV[1] step" in tail
    assert tail.splitlines()[-3:] == ["OK", "QUEUED", "1) (integer) 15"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("\\nothing", "\\help"),
        ("\\run", "usage: \\run"),
        ("\\run x y", "usage: \\run"),
        ("\\run x 0", "\\load"),
        ("\\load", "usage: \\load"),
        ("\\load /nowhere/x.lua", "No such file"),
        ("\\tree x", "usage: \\tree"),
        (f"\\tree {9:05000d}", "usage: \\tree"),
        ("\\tree", "no bytes crossed"),
        ("\\watch", "usage: \\watch"),
        ("\\watch x PING", "usage: \\watch"),
        ("\\watch 0 PING", "usage: \\watch"),
        ("\\connect", "usage: \\connect"),
        ("\\help nosuchcommand", "nothing of nosuchcommand"),
    ],
)
def test_what_the_shell_does_not_understand(run: Run, line: str, told: str) -> None:
    done = run(stdin=line.encode())
    assert done.stdout == b""
    assert told in done.stderr.decode()
    assert done.returncode == (0 if line == "\\tree" else 1)


def test_help_lists_all_and_tells_of_a_command(run: Run) -> None:
    out = run(stdin=b"\\help\n").stdout.decode()
    assert all(f"\n{name}" in f"\n{out}" for name in map("\\{}".format, module._OWN))
    for option in ("-2", "-3"):
        out = run(option, stdin=b"\\help zrange\n\\help client kill\n\\bytes\n").stdout.decode()
        assert "ZRANGE key start stop" in out
        assert "CLIENT KILL" in out
        assert "total  0 B up" in out  # asked on another connection, and not recorded


def test_connect_goes_elsewhere(run: Run, password_server: Server) -> None:
    where = f"{password_server.host}:{password_server.port}"
    user = f"worker:{'w0rk%20er%23%26'}"
    lines = f"\\connect valkey://{user}@{where}/3?protocol=2\nACL WHOAMI\nCLIENT INFO\n"
    done = run(stdin=lines.encode())
    out = done.stdout.decode()
    assert out.startswith("worker\n")
    assert "db=3" in out
    assert "resp=2" in out
    assert "w0rk" not in out + done.stderr.decode()


def test_auth_is_another_user_after_a_lost_connection_too(
    run: Run, password_server: Server
) -> None:
    where = f"{password_server.host}:{password_server.port}"
    lines = (
        f"AUTH worker wrong-{_SECRET}\n"
        f'AUTH worker "{password_server.user_password}"\n'
        "ACL WHOAMI\nCLIENT KILL USER worker SKIPME no\nPING\nACL WHOAMI\n\\tree 100\n\\hex 100\n"
    )
    done = run("--url", f"valkey://{where}", stdin=lines.encode())
    out = done.stdout.decode().splitlines()
    assert "WRONGPASS" in out[0]
    assert out[1:3] == ["OK", "worker"]
    assert "worker" in out[3:6]
    told = done.stdout + done.stderr
    assert _SECRET.encode() not in told
    assert password_server.user_password.encode() not in told
    assert b"w0rk" not in told


# A terminal.


class Terminal:
    """The shell on a terminal of its own."""

    def __init__(self, *words: str, env: dict[str, str], out: int | None = None) -> None:
        self.said = ""
        self.prompt = ""
        self._master, slave = pty.openpty()
        # Wide, so that no line is broken, and no echo of a terminal's own where readline is off.
        termios.tcsetwinsize(slave, (50, 1000))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "resp", "shell", *words],
            stdin=slave,
            stdout=slave if out is None else out,
            stderr=slave,
            env=env,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)

    def read(self, until_said: str) -> str:
        """What is said up to and with a text."""
        end = time.monotonic() + _PATIENCE_S
        while until_said not in self.said:
            ready, _, _ = select.select([self._master], [], [], max(end - time.monotonic(), 0))
            assert ready, f"waiting for {until_said!r}: {self.said!r}"
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # what Linux says of a terminal that nobody holds open
                data = b""
            assert data, f"it ended before {until_said!r}: {self.said!r}"
            self.said += data.decode("utf-8", "replace").replace("\r\n", "\n")
        head, _, self.said = self.said.partition(until_said)
        return head + until_said

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C at the prompt, and again until a new one is there.

        A signal that comes while readline is busy, before it waits for a key, is seen with the
        next key.
        """
        end = time.monotonic() + _PATIENCE_S
        self.said = ""
        while "> " not in self.said:
            assert time.monotonic() < end, f"no prompt: {self.said!r}"
            self.type("\x03")
            while "> " not in self.said and select.select([self._master], [], [], 2)[0]:
                self.said += os.read(self._master, 65_536).decode("utf-8", "replace")
        self.said = ""

    def say(self, line: str, prompt: str = "") -> str:
        """Type a line at the prompt; what is answered, up to the next one."""
        self.prompt = prompt or self.prompt
        self.type(line + "\r")
        self.read(line)
        end = f"\n{self.prompt}"
        return self.read(end).removesuffix(end).removeprefix("\n")

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(_PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(server: Server, tmp_path: Path) -> Iterator[Open]:
    """Opens terminals with a shell each, at its first prompt."""
    opened: list[Terminal] = []

    def start(*words: str, **changes: str) -> Terminal:
        env = {**_environment(server, tmp_path), **changes}
        opened.append(Terminal(*words, env=env))
        opened[-1].prompt = opened[-1].read("> ").rpartition("\n")[2]
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_a_conversation(terminal: Open, server: Server, fresh_name: str) -> None:
    shell = terminal()
    assert shell.say(f'SET {fresh_name} "\\x1b[2J"') == "OK"
    assert shell.say(f"GET {fresh_name}") == '"\\x1b[2J"'
    assert shell.say("GET") == "(error) ERR wrong number of arguments for 'get' command"
    prompt = shell.prompt
    assert shell.say("MULTI", prompt.replace("> ", "(TX)> ")) == "OK"
    assert shell.say("PING") == "QUEUED"
    assert shell.say("EXEC", prompt) == "1) PONG"
    shell.type("SELECT 3\r")
    assert "[3]> " in shell.read("[3]> ")
    shell.type("\x04")
    assert shell.wait() == 0


def test_nothing_of_a_peer_moves_the_cursor(
    terminal: Open, server: Server, fresh_name: str
) -> None:
    server.admin.set(fresh_name, "\x1b[31m\x9b1m\r\x07")
    for form in ("--typed", "--raw", "--json"):
        shell = terminal(form)
        told = shell.say(f"GET {fresh_name}")
        assert "31m" in told
        assert not set(told) & {"\x1b", "\x07", "\r", "\x9b"}
        told = shell.say("EVAL \"return redis.error_reply('ERR \\x1b[31m')\" 0")
        assert "31m" in told
        assert "\x1b" not in told


def test_a_quote_that_is_open_is_pointed_at(terminal: Open) -> None:
    shell = terminal()
    shell.type('GET "abc\r')
    shell.read('GET "abc\n')
    told = shell.read("> ")
    caret, message, prompt = told.split("\n")
    # The column of the quote, behind a prompt that is as long as the next one.
    assert caret == " " * (len(prompt) + 4) + "^"
    assert 'column 5: the " is not closed' in message


def test_ctrl_c_ends_a_command_that_waits(terminal: Open, server: Server, fresh_name: str) -> None:
    shell = terminal()
    shell.type(f"BLPOP {fresh_name} 0\r")
    until(lambda: server.admin.info("clients")["blocked_clients"])
    shell.type("\x03")
    assert "interrupted" in shell.read("> ")
    # The server blocks for nobody any more, and does not give the item to who has gone.
    until(lambda: not server.admin.info("clients")["blocked_clients"])
    assert shell.say(f"RPUSH {fresh_name} a") == "(integer) 1"
    assert shell.say(f"LLEN {fresh_name}") == "(integer) 1"


def test_a_command_that_waits_is_answered(terminal: Open, server: Server, fresh_name: str) -> None:
    shell = terminal()
    shell.type(f"BLPOP {fresh_name} 0\r")
    until(lambda: server.admin.info("clients")["blocked_clients"])
    server.admin.rpush(fresh_name, "a")
    assert f'1) "{fresh_name}"\n2) "a"' in shell.read("> ")


def test_ctrl_c_at_the_prompt_drops_the_line(terminal: Open) -> None:
    shell = terminal()
    shell.type("NOSUCH")
    shell.read("NOSUCH")
    shell.interrupt()
    assert shell.say("ECHO a") == '"a"'


@pytest.mark.parametrize(
    ("verb", "name", "publish"),
    [
        ("SUBSCRIBE", "{}", "PUBLISH"),
        ("PSUBSCRIBE", "{}*", "PUBLISH"),
        ("SSUBSCRIBE", "{}", "SPUBLISH"),
    ],
)
def test_messages_until_ctrl_c(
    terminal: Open, server: Server, fresh_name: str, verb: str, name: str, publish: str
) -> None:
    shell = terminal()
    shell.type(f"{verb} {name.format(fresh_name)}\r")
    shell.read("Ctrl-C ends it")
    server.admin.execute_command(publish, fresh_name, b"\x1b[m")
    told = shell.read('"\\x1b[m"')
    assert 'message"' in told
    shell.type("\x03")
    shell.read("> ")
    assert shell.say("ECHO a") == '"a"'


def test_watch_says_it_again_until_ctrl_c(terminal: Open, fresh_name: str) -> None:
    shell = terminal()
    shell.type(f"\\watch 0.01 INCR {fresh_name}\r")
    shell.read("(integer) 3\n")
    shell.type("\x03")
    shell.read("> ")
    assert int(shell.say(f"INCR {fresh_name}").split()[-1]) >= 4


def test_pushes_are_shown(terminal: Open, server: Server, fresh_name: str) -> None:
    shell = terminal()
    shell.say("CLIENT TRACKING ON")
    shell.say(f"GET {fresh_name}")
    server.admin.set(fresh_name, "1")
    shell.type("PING\r")
    shell.read('PONG\n1> "invalidate"\n')
    assert fresh_name in shell.read("> ") + shell.read("\n")


def test_a_server_that_is_not_there_leaves_a_prompt(terminal: Open, server: Server) -> None:
    shell = terminal("--url", "unix:///nowhere/at-all")
    assert "nowhere" in shell.say("PING")
    assert "connected to" in shell.say(f"\\connect {server.url}", f"{server.host}:{server.port}> ")
    assert shell.say("PING") == "PONG"


def test_names_are_completed(terminal: Open) -> None:
    shell = terminal()
    shell.type("zrevrangebys\t")
    shell.read("ZREVRANGEBYSCORE ")
    shell.interrupt()
    shell.type("client trackingi\t")
    shell.read("CLIENT TRACKINGINFO ")
    shell.interrupt()
    shell.type("\\led\t")
    shell.read("\\ledger ")


def test_history_outlives_the_shell_and_has_no_secrets(
    terminal: Open, server: Server, tmp_path: Path
) -> None:
    shell = terminal()
    path = tmp_path / ".local" / "state" / "resp" / "history"
    shell.say("ECHO kept")
    secrets = [
        f"AUTH {_SECRET}",
        f"auth worker {_SECRET}",
        f"HELLO 3 AUTH worker {_SECRET}",
        f"ACL SETUSER nobody{_SECRET[:3]} >{_SECRET}",
        f"CONFIG SET requirepass '{_SECRET}' nosuch 1",
        f"MIGRATE h 1 k 0 1 AUTH {_SECRET}",
        f"\\connect valkey://u:{_SECRET}@127.0.0.1:1",
        f"\\watch x AUTH {_SECRET}",
        f'AUTH "{_SECRET}',
        f"\\conect valkey://u:{_SECRET}@127.0.0.1:1",
        f"\\help valkey://u:{_SECRET}@127.0.0.1:1",
    ]
    answers = [shell.say(line) for line in secrets]
    server.admin.acl_deluser(f"nobody{_SECRET[:3]}")
    assert not [told for told in answers if _SECRET in told]
    assert _SECRET not in shell.say("\\tree 1000")
    assert _SECRET not in shell.say("\\hex 1000")
    shell.say("ECHO last")
    shell.say("ECHO last")
    shell.type("\x04")
    shell.wait()

    assert path.read_text().splitlines() == ["ECHO kept", "\\tree 1000", "\\hex 1000", "ECHO last"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0

    shell = terminal()
    shell.type("\x10\x10\x10\x10\r")
    assert '"kept"' in shell.read('"kept"')


def test_a_history_that_others_could_read_is_closed_and_kept_short(
    terminal: Open, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "resp" / "history"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"ECHO {number}\n" for number in range(5000)))
    path.chmod(0o644)
    shell = terminal(XDG_STATE_HOME=str(tmp_path / "state"))
    shell.say("ECHO new")
    shell.type("\x04")
    shell.wait()
    lines = path.read_text().splitlines()
    assert lines[0] == "ECHO 3000"
    assert lines[-1] == "ECHO new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_home_that_cannot_be_written_costs_the_history_alone(terminal: Open) -> None:
    shell = terminal(XDG_STATE_HOME="/proc/nothing")
    assert shell.say("ECHO a") == '"a"'


def test_sigterm_ends_it_at_the_prompt(terminal: Open) -> None:
    shell = terminal()
    # A signal that comes between the prompt and readline's wait for a key is seen with the next
    # thing that wakes it, so it is sent until it is heard.
    for _ in range(20):
        shell.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.process.wait(timeout=1)
            break
    assert shell.wait() == 143


def test_stdout_may_go_elsewhere_while_somebody_types(server: Server, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        shell = Terminal(env=_environment(server, tmp_path), out=out.fileno())
        with contextlib.closing(shell):
            shell.read("> ")
            shell.type("ECHO a\r")
            shell.read("> ")
            shell.type("\x04")
            assert shell.wait() == 0
    assert (tmp_path / "out").read_bytes().strip() == b"a"


def test_ctrl_c_ends_a_pipe(server: Server, tmp_path: Path, fresh_name: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "resp", "shell"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(server, tmp_path),
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(f"BLPOP {fresh_name} 0\n".encode())
        process.stdin.flush()
        until(lambda: server.admin.info("clients")["blocked_clients"])
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
    assert process.returncode == 130


def test_tap_sees_what_a_shell_says(server: Server, tmp_path: Path, fresh_name: str) -> None:
    words = [sys.executable, "-m", "resp"]
    done = subprocess.run(
        [*words, "tap", "--filter", "GET", "--", *words, "shell", "GET", fresh_name],
        env=_environment(server, tmp_path),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    [line] = done.stderr.splitlines()
    assert f"GET {fresh_name}" in line


def test_views_count_from_the_beginning_and_show_what_dialing_said(run: Run) -> None:
    shown = run(stdin=b"PING\n\\line 9\nSELECT 1\n\\line\n\\tree 0\n")
    seconds = [float(line.split()[0]) for line in shown.stdout.splitlines() if b" B> " in line]
    assert seconds
    assert max(seconds) < _PATIENCE_S
    assert b"SELECT 1" in shown.stdout.partition(b"OK\n")[2]
    assert b"usage: \\tree" in shown.stderr

"""`emq top`."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from emq import Queue
from emq.commands import top
from emq.commands.top import Watch, frame
from resp import ConnectionLost
from tests.conftest import Server

from ..conftest import Keys
from .conftest import Emq, Hands, claimed, dead


def columns(lines: list[str], name: str) -> dict[str, str]:
    """A queue's row of a frame, by the head."""
    [head] = [line for line in lines if line.startswith("QUEUE")]
    [row] = [line for line in lines if line.startswith(f"{name} ")]
    # The last column has no head.
    return dict(zip([*head.split(), "", ""], re.split(r" {2,}", row), strict=False))


def test_one_look(run: Emq, queue: Queue, hands: Hands) -> None:
    for error in ("no card", "no\x1b[7mtime", "no card"):
        dead(queue, error=error)
    queue.enqueue_many([b"p"] * 3)
    queue.enqueue(b"p", delay_ms=60_000)
    hands.laned()
    claimed(queue)

    done = run("top", queue.name, "--once")

    assert done.lines[0].startswith("emq top  ")
    assert "1 queue " in done.lines[0]
    row = columns([line.replace("NEXT DUE", "NEXT_DUE") for line in done.lines], queue.name)
    assert [row[name] for name in ("PENDING", "LANES", "ACTIVE", "SCHEDULE", "DEAD")] == [
        *("2", "1", "1", "1", "3")
    ]
    assert (row["DONE/S"], row["LAPSED"], row[">10S"]) == ("-", "0", "1")
    assert row["NEXT_DUE"].endswith("s") or row["NEXT_DUE"] == "1m"
    assert f"dead in {queue.name}: 2x no card, 1x no\\x1b[7mtime" in done.lines
    assert "\x1b" not in done.out


def test_leases_by_their_ends(run: Emq, queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([b"p"] * 6)
    for lease_ms in (5_000, 6_000, 60_000):
        queue.claim(lease_ms)
    for _ in range(3):
        keys.admin.zadd(f"{keys.base}active", {claimed(queue).id: 1}, xx=True)

    [told] = run("top", queue.name, "--once", "--json").documents

    assert told["leases"] == {"lapsed": 3, "soon": 2, "later": 1}


def test_what_cannot_be_read_is_shown_as_that(run: Emq, queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    keys.admin.set(f"{keys.base}active", "x")
    keys.admin.set(f"{keys.base}metrics:completed", "x")
    keys.admin.set(f"{keys.base}meta", "x")
    keys.admin.set(f"{keys.base}ring", "x")

    done = run("top", queue.name, "--once", code=1)

    row = columns([line.replace("NEXT DUE", "NEXT_DUE") for line in done.lines], queue.name)
    for name in ("ACTIVE", "DONE/S", "LAPSED", ">10S", "LANES"):
        assert row[name] == "error", name
    assert row["PENDING"] == "1"
    assert any(line.startswith(f"error in {queue.name}: active: WRONGTYPE") for line in done.lines)
    assert "emq doctor" in done.err


def test_no_server_is_three(run: Emq) -> None:
    run("top", "--once", code=3, url="unix:///nowhere")


def test_rates_are_of_the_counters_between_two_looks(
    queue: Queue, connector: Any, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch([queue.name])
    [first] = connector.run(watch.look())
    before = first.overview._replace(now_ms=first.overview.now_ms - 2000)
    monkeypatch.setattr(watch, "_before", {queue.name: before})
    keys.admin.hset(f"{keys.base}metrics:completed", "count", 100)
    dead(queue)

    [second] = connector.run(watch.look())

    assert first.completed_per_s is first.failed_per_s is None
    assert second.completed_per_s == pytest.approx(50, rel=0.2)
    assert second.failed_per_s == pytest.approx(0.5, rel=0.2)

    keys.admin.delete(f"{keys.base}metrics:completed")  # as when the queue is obliterated
    [third] = connector.run(watch.look())
    assert third.completed_per_s is None


def test_queues_that_come_are_seen(connector: Any, queue: Queue) -> None:
    watch = Watch([])
    assert queue.name not in [seen.overview.queue for seen in connector.run(watch.look())]
    queue.enqueue(b"p")
    assert queue.name in [seen.overview.queue for seen in connector.run(watch.look())]


def test_a_failure_is_shown_and_the_next_look_may_see_again(
    run: Emq, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(b"p")
    looks = iter([None, ConnectionLost("the server closed the connection"), None])
    look = Watch.look

    def sometimes(self: Watch) -> Any:
        error = next(looks, KeyboardInterrupt())
        if error is not None:
            raise error
        return look(self)

    monkeypatch.setattr(Watch, "look", sometimes)
    done = run("top", queue.name, "--interval", "1ms")  # ended by the Ctrl-C, with 0

    assert [line for line in done.lines if line.startswith("error")] == [
        "error: the server closed the connection"
    ]
    assert sum(line.startswith(f"{queue.name} ") for line in done.lines) == 2

    looks = iter([None, ConnectionLost("gone")])
    assert run("top", queue.name, "--interval", "1ms", "--json").documents[-1] == {"error": "gone"}


def test_a_frame_tells_when_and_how_to_end_it(queue: Queue, connector: Any) -> None:
    [seen] = connector.run(Watch([queue.name]).look())
    at = seen.overview._replace(now_ms=1_700_000_000_000)

    (_, head), *_ = frame([seen._replace(overview=at)], "", "h:1", 500)

    assert head == "emq top  h:1  1 queue  2023-11-14 22:13:20Z  every 500ms, q ends"


# On a terminal.


@contextmanager
def terminal(server: Server, *argv: str, **environ: str) -> Iterator[tuple[Any, int]]:
    """`emq top` on a terminal of 24 lines, and the terminal's other end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "emq", "top", "--url", server.url, *argv],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", **environ},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        with process:
            yield process, ours
    finally:
        process.kill()
        os.close(ours)


def shown(ours: int, until: bytes) -> bytes:
    data = b""
    while until not in data:
        data += os.read(ours, 65_536)
    return data


def test_q_ends_it_and_the_terminal_is_as_before(server: Server, queue: Queue) -> None:
    queue.enqueue(b"p")
    dead(queue)
    with terminal(server, queue.name, "--interval", "50ms") as (process, ours):
        data = shown(ours, b"dead in")
        shown(ours, b"dead in")  # drawn anew
        os.write(ours, b"q")
        data += shown(ours, b"\x1b[?1049l")
        assert process.wait(20) == 0
        assert process.stderr.read() == b""
        flags = termios.tcgetattr(ours)[3]
    assert data.startswith(b"\x1b[?1049h\x1b[?25l\x1b[H")
    assert b"\x1b[33mdead in" in data
    assert b"\x1b[?25h" in data
    assert flags & termios.ICANON
    assert flags & termios.ECHO


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 0), ("SIGTERM", 143)])
def test_a_signal_gives_the_terminal_back(
    server: Server, queue: Queue, name: str, code: int
) -> None:
    dead(queue)
    with terminal(server, queue.name, NO_COLOR="1") as (process, ours):
        data = shown(ours, b"dead in")
        process.send_signal(getattr(signal, name))
        shown(ours, b"\x1b[?1049l")
        assert process.wait(20) == code
    assert b"\x1b[3" not in data


def test_a_frame_is_cut_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((5, 2)))
    top._draw(iter([("1", "head and more"), ("", "row"), ("", "beyond")]), True)
    assert capsys.readouterr().out == "\x1b[H\r\x1b[1mhead \x1b[0m\x1b[K\n\rrow\x1b[K\x1b[J"

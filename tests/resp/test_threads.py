"""What only threads can do: share the socket, hand it on, be interrupted at any point."""

from __future__ import annotations

import collections
import contextlib
import dis
import gc
import itertools
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar, Final

import pytest

from resp import (
    Closed,
    Command,
    ConnectionLost,
    Connector,
    Options,
    Plan,
    Reentered,
    ReplyTimeout,
    RespError,
    Script,
    Tap,
    connect,
)

from .conftest import Fakes, begin, until
from .fake import PATIENCE_S, Peer

_ROOT: Final = Path(__file__).parents[2]


def echo(peer: Peer) -> None:
    peer.hello()
    for command in peer.commands():
        peer.echo(command)


@pytest.fixture
def dial(fake: Fakes) -> Iterator[Callable[..., Connector]]:
    """Connects, and closes before the fake servers end."""
    made: list[Connector] = []

    def connecting(url: str, **options: Any) -> Connector:
        made.append(connect(url, **options))
        return made[-1]

    yield connecting
    for connector in made:
        connector.close()


def asleep(connector: Connector) -> int:
    """How many callers sleep while another reads; nothing public tells."""
    link = connector._link
    return len(link._sleepers) if link is not None else 0


# Sharing.


def test_each_of_fifty_threads_gets_its_own_replies(
    dial: Callable[..., Connector], fake: Fakes
) -> None:
    """A tenth of the calls time out; their replies come, late, before those of others."""
    gates: dict[bytes, threading.Event] = collections.defaultdict(threading.Event)

    def late(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            if command[1].startswith(b"late"):
                peer.wait(gates[command[1]])
            peer.echo(command)

    connector = dial(fake(late).url, timeout=PATIENCE_S)
    wrong: list[Any] = []
    timed_out: list[bytes] = []

    def work(number: int) -> None:
        for turn in range(20):
            name = b"%d.%d" % (number, turn)
            if (number + turn) % 10 == 0:
                name = b"late " + name
                try:
                    reply = connector.command("ECHO", name, timeout=0.001)
                except ReplyTimeout:
                    timed_out.append(name)
                    continue
                finally:
                    gates[name].set()
            else:
                reply = connector.command("ECHO", name)
            if reply != name:
                wrong.append((name, reply))

    for call in [begin(work, number) for number in range(50)]:
        call.result(60)
    assert wrong == []
    assert len(timed_out) == 100
    assert connector.command("ECHO", "last") == b"last"
    stats = connector.stats()
    assert (stats["pending"], stats["reconnects"]) == (0, 0)
    assert stats["replies"] == stats["commands"] == 1000 + 2


def test_fifty_threads_increment_keys_of_their_own(
    dial: Callable[..., Connector], server: Any, fresh_name: str
) -> None:
    connector = dial(server.url, timeout=PATIENCE_S)

    def work(number: int) -> list[Any]:
        key = f"{fresh_name}:{number}"
        counted = [connector.command("INCR", key) for _ in range(20)]
        return counted + connector.pipeline([("INCR", key)] * 20)

    for call in [begin(work, number) for number in range(50)]:
        assert call.result(60) == list(range(1, 41))


@pytest.fixture
def restless() -> Iterator[None]:
    """The interpreter switches threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless")
def test_threads_that_switch_at_every_step(dial: Callable[..., Connector], server: Any) -> None:
    connector = dial(server.url, timeout=PATIENCE_S)

    def work(number: int) -> None:
        for turn in range(150):
            assert connector.command("ECHO", f"{number}.{turn}") == b"%d.%d" % (number, turn)

    for call in [begin(work, number) for number in range(16)]:
        call.result(60)
    assert connector.stats()["commands"] == 16 * 150 + 1
    assert connector.stats()["pending"] == 0


def test_callers_that_meet_at_the_socket_join_one_write(
    dial: Callable[..., Connector], fake: Fakes
) -> None:
    gate = threading.Event()

    def deaf(peer: Peer) -> None:
        peer.hello()
        peer.wait(gate)
        for command in peer.commands():
            peer.send(b"$1\r\n%b\r\n" % command[-1][:1])

    tap = Tap()
    connector = dial(fake(deaf, receive_buffer=16_384).url, tap=tap, timeout=PATIENCE_S)
    tap.clear()
    calls = [begin(connector.command, "ECHO", b"w" * (16 << 20))]
    until(lambda: len(tap) == 1)
    for number in range(9):
        calls.append(begin(connector.command, "ECHO", number))
    until(lambda: connector.stats()["pending"] == 10)
    assert len([record for record in tap if record.sent]) == 1
    gate.set()
    replies = [call.result(PATIENCE_S) for call in calls]
    assert replies == [b"w", *(b"%d" % number for number in range(9))]
    writes = [record.data for record in tap if record.sent]
    assert len(writes) == 2
    assert writes[1].count(b"ECHO") == 9


def test_the_reader_hands_the_socket_on(dial: Callable[..., Connector], fake: Fakes) -> None:
    gates = [threading.Event() for _ in range(3)]

    def step_by_step(peer: Peer) -> None:
        peer.hello()
        commands = [peer.command() for _ in range(3)]
        for gate, command in zip(gates, commands, strict=True):
            peer.wait(gate)
            peer.echo(command)

    connector = dial(fake(step_by_step).url, timeout=PATIENCE_S)
    calls: list[Future[Any]] = []
    for number in range(3):
        calls.append(begin(connector.command, "ECHO", number))
        until(lambda: asleep(connector) == len(calls) - 1 and _reading(connector))
    for number, (gate, call) in enumerate(zip(gates, calls, strict=True)):
        gate.set()
        assert call.result(5) == b"%d" % number
        assert not any(later.done() for later in calls[number + 1 :])


def _reading(connector: Connector) -> bool:
    link = connector._link
    return link is not None and link._reader is not None and link._writer is None


def test_a_reader_that_times_out_hands_the_socket_on(
    dial: Callable[..., Connector], fake: Fakes
) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        commands = [peer.command(), peer.command()]
        peer.wait(gate)
        for command in commands:
            peer.echo(command)

    connector = dial(fake(slow).url, timeout=PATIENCE_S)
    first = begin(connector.command, "ECHO", "first", timeout=0.1)
    until(lambda: _reading(connector))
    second = begin(connector.command, "ECHO", "second")
    until(lambda: asleep(connector) == 1)
    assert isinstance(first.exception(5), ReplyTimeout)
    gate.set()
    assert second.result(5) == b"second"


def test_a_follower_that_times_out_disturbs_nobody(
    dial: Callable[..., Connector], fake: Fakes
) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        commands = [peer.command() for _ in range(3)]
        peer.wait(gate)
        for command in commands:
            peer.echo(command)

    connector = dial(fake(slow).url, timeout=PATIENCE_S)
    first = begin(connector.command, "ECHO", "first")
    until(lambda: _reading(connector))
    with pytest.raises(ReplyTimeout):
        connector.command("ECHO", "second", timeout=0.05)
    third = begin(connector.command, "ECHO", "third")
    until(lambda: asleep(connector) == 1)
    gate.set()
    assert first.result(5) == b"first"
    assert third.result(5) == b"third"
    assert asleep(connector) == 0


def test_one_thread_dials_for_all(dial: Callable[..., Connector], fake: Fakes) -> None:
    gate = threading.Event()

    def cut(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    def slow(peer: Peer) -> None:
        peer.wait(gate)
        echo(peer)

    server = fake(cut, slow)
    connector = dial(server.url, timeout=PATIENCE_S)
    with pytest.raises(ConnectionLost):
        connector.command("ECHO", "lost")
    calls = [begin(connector.command, "ECHO", number) for number in range(10)]
    until(lambda: len(server.peers) == 2)
    gate.set()
    assert [call.result(5) for call in calls] == [b"%d" % number for number in range(10)]
    assert len(server.peers) == 2


def test_close_while_dialling(fake: Fakes) -> None:
    dialled = threading.Event()

    def cut(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    def slow(peer: Peer) -> None:
        dialled.set()
        peer.swallow()
        gone.set()

    gone = threading.Event()
    connector = connect(fake(cut, slow).url, timeout=PATIENCE_S)
    with pytest.raises(ConnectionLost):
        connector.command("ECHO", "lost")
    call = begin(connector.command, "ECHO", "x")
    assert dialled.wait(5)
    connector.close()
    assert isinstance(call.exception(5), Closed)
    assert gone.wait(5)
    assert connector.stats()["status"] == "closed"


def test_close_frees_the_descriptor(server: Any) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    if before is None:
        pytest.skip("no /proc here")
    connectors = [connect(server.url) for _ in range(5)]
    for connector in connectors:
        connector.close()
    assert len(os.listdir("/proc/self/fd")) == before


# Writing to a peer that does not read.


def test_a_peer_that_never_reads_costs_no_more_than_the_timeout(
    dial: Callable[..., Connector], fake: Fakes
) -> None:
    gate = threading.Event()

    def deaf(peer: Peer) -> None:
        peer.hello()
        peer.wait(gate)

    connector = dial(fake(deaf, echo, receive_buffer=16_384).url, timeout=PATIENCE_S)
    big = begin(connector.command, "ECHO", b"x" * (16 << 20), timeout=0.2)
    until(lambda: _writing(connector))
    small = begin(connector.command, "ECHO", "small")
    error = big.exception(5)
    assert isinstance(error, ReplyTimeout)
    assert error.may_have_run
    assert isinstance(small.exception(5), ConnectionLost), "half a command was sent"
    gate.set()
    assert connector.command("ECHO", "next") == b"next"


def _writing(connector: Connector) -> bool:
    link = connector._link
    return link is not None and link._writer is not None


def test_a_socket_that_takes_not_one_byte(dial: Callable[..., Connector], fake: Fakes) -> None:
    gate = threading.Event()

    def deaf(peer: Peer) -> None:
        peer.hello()
        peer.wait(gate)

    connector = dial(fake(deaf, echo, unix=True).url)
    told = ""
    for _ in range(5000):
        with pytest.raises(ReplyTimeout) as caught:
            connector.command("ECHO", b"x" * 8192, timeout=0.001)
        told = str(caught.value)
        if "did not take" in told:
            break
    assert "did not take" in told
    gate.set()
    assert connector.command("ECHO", "next") == b"next"


def test_others_are_answered_while_one_writes_slowly(
    dial: Callable[..., Connector], fake: Fakes
) -> None:
    """The writer has no reader to lean on when the one who read is done."""
    gates = [threading.Event(), threading.Event()]

    def deaf(peer: Peer) -> None:
        peer.hello()
        peer.expect("ECHO", "reader")
        peer.wait(gates[0])
        peer.send(b"$6\r\nreader\r\n")
        peer.wait(gates[1])
        peer.send(b"$1\r\n%b\r\n" % peer.command()[-1][:1])
        for command in peer.commands():
            peer.echo(command)

    connector = dial(fake(deaf, receive_buffer=16_384).url, timeout=PATIENCE_S)
    reader = begin(connector.command, "ECHO", "reader")
    until(lambda: _reading(connector))
    writer = begin(connector.command, "ECHO", b"w" * (16 << 20))
    until(lambda: _writing(connector))
    follower = begin(connector.command, "ECHO", "follower")
    until(lambda: connector.stats()["pending"] == 3)
    gates[0].set()
    assert reader.result(5) == b"reader"
    gates[1].set()
    assert writer.result(PATIENCE_S) == b"w"
    assert follower.result(5) == b"follower"


# System calls.


class CountingSocket(socket.socket):
    """Counts the calls that become system calls."""

    calls: ClassVar[collections.Counter[str]] = collections.Counter()

    def send(self, *args: Any) -> int:
        self.calls["send"] += 1
        return super().send(*args)

    def recv(self, *args: Any) -> bytes:
        self.calls["recv"] += 1
        return super().recv(*args)

    def setsockopt(self, *args: Any) -> None:
        self.calls["setsockopt"] += 1
        super().setsockopt(*args)


def test_an_uncontended_call_is_one_send_and_one_receive(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resp.threads.socket.socket", CountingSocket)
    with connect(server.url) as connector:
        connector.command("PING")
        CountingSocket.calls.clear()
        for _ in range(500):
            connector.command("PING")
        assert CountingSocket.calls == {"send": 500, "recv": 500}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_kernel_counts_two_system_calls_a_call(server: Any) -> None:
    program = textwrap.dedent(
        """
        import os, sys
        from resp import connect
        connector = connect(sys.argv[1])
        connector.command("PING")
        os.getppid()
        for _ in range(200):
            connector.command("PING")
        os.getppid()
        """
    )
    traced = subprocess.run(
        ["strace", "-f", "-qq", sys.executable, "-X", "faulthandler", "-c", program, server.url],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=_ROOT,
        check=False,
    )
    if "getppid" not in traced.stderr:
        pytest.skip("strace cannot trace here")
    lines = traced.stderr.splitlines()
    marks = [at for at, line in enumerate(lines) if "getppid(" in line]
    names = [
        found[1]
        for line in lines[marks[0] + 1 : marks[1]]
        if (found := re.search(r"([a-z0-9_]+)\(", line))
    ]
    memory = {"brk", "mmap", "munmap"}  # the allocator's own, now and then
    assert collections.Counter(name for name in names if name not in memory) == {
        "sendto": 200,
        "recvfrom": 200,
    }


# Interrupts.

CHECKED: Final = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD"}


class Interrupt:
    """Raises KeyboardInterrupt in this thread, at the nth point where a signal could.

    The interpreter looks for signals when a function begins, after a call of a built-in one, and
    when a loop goes round. A trace function sees each of these, so every one can be tried.

    Args:
        at: Which point, counted from 1.

    Attributes:
        raised: Where it was, or "" if the call had fewer points.
    """

    def __init__(self, at: int) -> None:
        self.raised = ""
        self._at = at
        self._points = 0
        self._codes: dict[CodeType, bytes] = {}
        self._before: dict[FrameType, str] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        tracer = sys.gettrace()
        gc.disable()  # a collection runs code that is no part of the call
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(tracer)
            gc.enable()
            self._before.clear()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename in (__file__, contextmanager.__code__.co_filename):
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        if event == "call":
            self._point(frame)
        elif event == "opcode":
            before = self._before.get(frame)
            code = self._codes.get(frame.f_code)
            if code is None:
                code = self._codes[frame.f_code] = frame.f_code.co_code
            self._before[frame] = dis.opname[code[frame.f_lasti]]
            if before in CHECKED:
                self._point(frame)
        elif event == "return" and frame.f_back is not None:
            self._before.pop(frame.f_back, None)  # the caller goes on without a look
        return self._trace

    def _point(self, frame: FrameType) -> None:
        self._points += 1
        if self._points == self._at:
            self.raised = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            raise KeyboardInterrupt


def every_interrupt(attempt: Callable[[Interrupt], None], at_least: int) -> None:
    """Make `attempt` with an interrupt at each point in turn, until it has none left."""
    failures = []
    for at in range(1, 1000):
        interrupt = Interrupt(at)
        try:
            # In a thread: CPython may leave what a traced `except` handled on the thread's stack.
            begin(attempt, interrupt).result(60)
        except (AssertionError, RespError) as error:
            failures.append(f"{interrupt.raised}: {str(error).splitlines()[0]}")
        if not interrupt.raised:
            break
    assert at > at_least, "the tracing of interrupts does not work"
    assert failures == []


def interrupted(interrupt: Interrupt, call: Callable[[], Any]) -> Any:
    try:
        with interrupt():
            return call()
    except KeyboardInterrupt:
        return KeyboardInterrupt


def test_a_caller_interrupted_anywhere(server: Any) -> None:
    def attempt(interrupt: Interrupt) -> None:
        with connect(server.url, timeout=0.5) as connector:
            reply = interrupted(interrupt, lambda: connector.command("ECHO", "interrupted"))
            assert reply in (b"interrupted", KeyboardInterrupt)
            for word in (b"next", b"and next"):
                assert connector.command("ECHO", word) == word
            assert connector.stats()["pending"] == 0

    every_interrupt(attempt, 10)


def test_a_pipeline_interrupted_anywhere(server: Any) -> None:
    def attempt(interrupt: Interrupt) -> None:
        with connect(server.url, timeout=0.5, max_pending=8) as connector:
            interrupted(interrupt, lambda: connector.pipeline([("ECHO", n) for n in range(6)]))
            assert connector.pipeline([("ECHO", "next")] * 3) == [b"next"] * 3
            assert connector.stats()["pending"] == 0

    every_interrupt(attempt, 10)


def test_a_repair_interrupted_anywhere(server: Any, fresh_name: str) -> None:
    def attempt(interrupt: Interrupt) -> None:
        script = Script("once", f"return redis.call('INCR', KEYS[1]) -- {next(numbers)}")
        with connect(server.url, timeout=0.5) as connector:
            before = int(connector.command("INCR", fresh_name))
            interrupted(interrupt, lambda: connector.eval(script, [fresh_name]))
            runs = connector.eval(script, [fresh_name])
            assert runs - before in (1, 2)
            assert connector.stats()["pending"] == 0

    numbers = itertools.count()
    every_interrupt(attempt, 10)


# A socket that was just made when the interrupt came is closed by its destructor, which says so.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_dial_interrupted_anywhere(server: Any) -> None:
    def attempt(interrupt: Interrupt) -> None:
        with connect(server.url, timeout=0.5) as connector:
            assert connector._link is not None
            connector._link.end("the test cut it")
            interrupted(interrupt, lambda: connector.command("ECHO", "interrupted"))
            assert connector.command("ECHO", "next") == b"next"

    every_interrupt(attempt, 10)


def test_a_reader_interrupted_anywhere_with_a_follower(fake: Fakes) -> None:
    """The follower gets its reply, or hears at once that the connection is gone."""
    begun, ended = threading.Event(), threading.Event()
    connector: Connector

    def gated(peer: Peer) -> None:
        """Answers nobody until the follower asked, and the follower when the reader is done."""
        peer.hello()
        waiting: list[list[bytes]] = []
        for command in peer.commands():
            if command[-1] == b"next":
                peer.echo(command)
                continue
            waiting.append(command)
            if command[-1] == b"mine":
                begun.set()
            else:
                until(lambda: asleep(connector) or ended.is_set() or len(waiting) == 1)
                for each in waiting:
                    if each[-1] == b"theirs":
                        peer.wait(ended)
                    peer.echo(each)

    def follow() -> Any:
        assert begun.wait(5)
        until(lambda: _reading(connector) or ended.is_set())
        return connector.command("ECHO", "theirs")

    server = fake(gated)

    def attempt(interrupt: Interrupt) -> None:
        nonlocal connector
        begun.clear()
        ended.clear()
        with connect(server.url, timeout=0.5) as connector:
            follower = begin(follow)
            interrupted(interrupt, lambda: connector.command("ECHO", "mine"))
            begun.set()
            ended.set()
            undisturbed(follower, b"theirs")
            assert connector.command("ECHO", "next") == b"next"

    every_interrupt(attempt, 10)


def undisturbed(call: Future[Any], reply: bytes) -> None:
    """It got its reply, or heard at once that the connection is gone; it did not hang."""
    error = call.exception(5)
    if error is None:
        assert call.result() == reply
    else:
        assert isinstance(error, ConnectionLost), f"another's call: {error!r}"


def test_a_follower_interrupted_anywhere(fake: Fakes) -> None:
    """It is told to read, or given its reply, and leaves: the socket goes to the next."""
    ended = threading.Event()
    connector: Connector

    def gated(peer: Peer) -> None:
        """Answers nobody until the third asked, and the third when the second is done."""
        peer.hello()
        waiting: list[list[bytes]] = []
        for command in peer.commands():
            if command[-1] == b"next":
                peer.echo(command)
                continue
            waiting.append(command)
            if command[-1] == b"third":
                until(lambda: asleep(connector) == 2 or ended.is_set())
                for each in waiting:
                    if each[-1] == b"third":
                        peer.wait(ended)
                    peer.echo(each)

    def third() -> Any:
        until(lambda: asleep(connector) == 1 or ended.is_set())
        return connector.command("ECHO", "third")

    server = fake(gated)

    def attempt(interrupt: Interrupt) -> None:
        nonlocal connector
        ended.clear()
        with connect(server.url, timeout=0.5) as connector:
            first = begin(connector.command, "ECHO", "first")
            until(lambda: _reading(connector))
            last = begin(third)
            interrupted(interrupt, lambda: connector.command("ECHO", "mine"))
            ended.set()
            undisturbed(first, b"first")
            undisturbed(last, b"third")
            assert connector.command("ECHO", "next") == b"next"

    every_interrupt(attempt, 10)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Interrupts the main thread, as a user does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main == threading.get_ident()

    def press() -> None:
        signal.pthread_kill(main, signal.SIGINT)

    yield press
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_reading(
    dial: Callable[..., Connector], fake: Fakes, ctrl_c: Callable[[], None]
) -> None:
    """A signal in the wait itself loses nothing: the connection stays, the place is kept."""
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        commands = [peer.command(), peer.command()]
        until(lambda: asleep(connector) == 1)
        ctrl_c()
        peer.wait(gate)
        for command in commands:
            peer.echo(command)
        for command in peer.commands():
            peer.echo(command)

    server = fake(slow)
    connector = dial(server.url, timeout=PATIENCE_S)
    followers: list[Future[Any]] = []

    def follow() -> Any:
        until(lambda: _reading(connector))
        return connector.command("ECHO", "theirs")

    followers.append(begin(follow))
    with pytest.raises(KeyboardInterrupt):
        connector.command("ECHO", "mine")
    gate.set()
    assert followers[0].result(5) == b"theirs"
    assert connector.command("ECHO", "next") == b"next"
    assert len(server.peers) == 1


def test_ctrl_c_while_following(
    dial: Callable[..., Connector], fake: Fakes, ctrl_c: Callable[[], None]
) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        commands = [peer.command(), peer.command()]
        until(lambda: asleep(connector) == 1)
        ctrl_c()
        peer.wait(gate)
        for command in commands:
            peer.echo(command)
        for command in peer.commands():
            peer.echo(command)

    server = fake(slow)
    connector = dial(server.url, timeout=PATIENCE_S)
    reader = begin(connector.command, "ECHO", "theirs")
    until(lambda: _reading(connector))
    with pytest.raises(KeyboardInterrupt):
        connector.command("ECHO", "mine")
    gate.set()
    assert reader.result(5) == b"theirs"
    assert connector.command("ECHO", "next") == b"next"
    assert len(server.peers) == 1


def test_ctrl_c_while_writing_ends_the_connection(
    dial: Callable[..., Connector], fake: Fakes, ctrl_c: Callable[[], None]
) -> None:
    """Half a command may have been sent, so nothing can follow it."""
    dialled, over = threading.Event(), threading.Event()

    def deaf(peer: Peer) -> None:
        peer.hello()
        peer.wait(dialled)
        until(lambda: _writing(connector))
        ctrl_c()
        peer.wait(over)

    connector = dial(fake(deaf, echo, receive_buffer=16_384).url, timeout=PATIENCE_S)
    dialled.set()
    with pytest.raises(KeyboardInterrupt):
        connector.command("ECHO", b"x" * (64 << 20))
    over.set()
    assert connector.command("ECHO", "next") == b"next"
    assert connector.stats()["reconnects"] == 1


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that hits a GC
def test_ctrl_c_again_and_again(dial: Callable[..., Connector], server: Any) -> None:
    """Whatever it hits, no reply reaches another's call and nobody hangs."""
    connector = dial(server.url, timeout=5)
    over = threading.Event()
    pauses = random.Random(7)
    wrong: list[Any] = []
    armed = False
    interrupts = 0
    turns = 0

    def on_signal(number: int, frame: object) -> None:
        nonlocal armed, interrupts
        if armed:
            armed = False
            interrupts += 1
            raise KeyboardInterrupt

    def work(number: int) -> int:
        turn = 0
        while not over.is_set():
            turn += 1
            name = b"%d.%d" % (number, turn)
            try:
                reply = connector.command("ECHO", name)
            except ConnectionLost:
                continue
            except Exception as error:
                reply = error
            if reply != name:
                wrong.append((name, reply))
                break
        return turn

    def press(main: int) -> None:
        while not over.wait(pauses.uniform(0.0001, 0.004)):
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, on_signal)
    workers = [begin(work, number) for number in range(3)]
    presser = begin(press, threading.get_ident())
    try:
        while interrupts < 100 and not wrong:
            turns += 1
            name = b"main %d" % turns
            try:
                armed = True
                reply = connector.command("ECHO", name)
            except (KeyboardInterrupt, ConnectionLost):
                continue
            finally:
                armed = False
            if reply != name:
                wrong.append((name, reply))
    finally:
        over.set()
        presser.result(5)  # before the handler goes, so that nobody else is interrupted
        signal.signal(signal.SIGINT, before)
    assert all(worker.result(10) for worker in workers)
    assert wrong == []
    assert connector.command("ECHO", "last") == b"last"


# Where the system's own limits show.


def test_options_of_the_socket(server: Any) -> None:
    with connect(server.url) as connector:
        assert connector._link is not None
        sock = connector._link._sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connector._options == Options()


def test_a_plan_interrupted_is_closed(server: Any) -> None:
    cleaned: list[bool] = []

    def plan() -> Plan[None]:
        try:
            yield ("PING",)
            raise KeyboardInterrupt
        finally:
            cleaned.append(True)

    with connect(server.url) as connector:
        with pytest.raises(KeyboardInterrupt):
            connector.run(plan())
        assert cleaned == [True]
        assert connector.command("PING") == "PONG"


# What must not end the connection, and what must not hang.


def test_overload_and_timeouts_end_no_connection(
    dial: Callable[..., Connector], server: Any
) -> None:
    connector = dial(server.url, max_pending=8, timeout=5)
    stop = time.monotonic() + 1
    seen: collections.Counter[str] = collections.Counter()

    def call(number: int) -> None:
        while time.monotonic() < stop:
            try:
                connector.command("ECHO", number, timeout=0.0005 if number % 3 == 0 else None)
                seen["ok"] += 1
            except RespError as error:
                seen[type(error).__name__] += 1

    for future in [begin(call, number) for number in range(16)]:
        future.result(30)
    assert set(seen) <= {"ok", "Overloaded", "ReplyTimeout"}
    assert seen["Overloaded"]
    assert connector.stats()["reconnects"] == 0


def test_many_who_look_at_a_connection_that_was_closed_meanwhile(
    dial: Callable[..., Connector], server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resp.threads._IDLE_S", 0)
    connector = dial(server.url)
    for _ in range(20):
        connection = connector.command("CLIENT", "ID")
        server.admin.client_kill_filter(_id=connection)
        calls = [begin(connector.command, "PING") for _ in range(8)]
        for call in calls:
            error = call.exception(10)
            assert error is None or isinstance(error, ConnectionLost)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_look_interrupted_anywhere(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resp.threads._IDLE_S", 0)

    def attempt(interrupt: Interrupt) -> None:
        with connect(server.url, timeout=0.5) as connector:
            interrupted(interrupt, lambda: connector.command("ECHO", "interrupted"))
            for word in (b"next", b"after"):
                with contextlib.suppress(ConnectionLost):
                    assert connector.command("ECHO", word) == word

    every_interrupt(attempt, at_least=10)


def test_a_close_interrupted_anywhere_tells_everybody(server: Any) -> None:
    def attempt(interrupt: Interrupt) -> None:
        connector = connect(server.url, timeout=5)
        calls = [begin(connector.command, "BLPOP", f"none{n}", 0) for n in range(3)]
        until(lambda: connector.stats()["pending"] == 3)
        interrupted(interrupt, connector.close)
        connector.close()
        for call in calls:
            assert isinstance(call.exception(2), ConnectionLost)

    every_interrupt(attempt, at_least=10)


def test_a_role_that_was_lost_is_found_out(server: Any) -> None:
    """Two interrupts within microseconds can take a caller away in the middle of its leaving."""
    with connect(server.url, timeout=0.1) as connector:
        link = connector._link
        assert link is not None
        link._reader = object()
        with pytest.raises(ReplyTimeout):
            connector.command("ECHO", "waits in vain")
        assert connector.command("ECHO", "next") == b"next"
        assert connector.stats()["reconnects"] == 1


def test_a_signal_handler_that_calls_the_connector(server: Any) -> None:
    """It is answered, or told at once that it stands within another call; nobody waits for ever."""
    inner: list[Any] = []

    def handle(*_: object) -> None:
        try:
            inner.append(connector.command("ECHO", "inner", timeout=0.5))
        except RespError as error:
            inner.append(type(error))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with connect(server.url, timeout=5) as connector:
            signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
            for number in range(3000):
                assert connector.command("ECHO", number) == b"%d" % number
            # Now in the middle of a call that waits.
            connector.command("BLPOP", "none", 0.05)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert connector.command("ECHO", "outer") == b"outer"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert set(inner) <= {b"inner", Reentered}
    assert Reentered in inner


def test_a_finalizer_that_calls_the_connector(server: Any) -> None:
    class Releases:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with contextlib.suppress(RespError):
                connector.command("ECHO", "finally", timeout=0.5)

    thresholds = gc.get_threshold()
    gc.set_threshold(5, 2, 2)
    try:
        with connect(server.url, timeout=5) as connector:
            for number in range(1000):
                Releases()
                assert connector.command("ECHO", number) == b"%d" % number
            gc.collect()
    finally:
        gc.set_threshold(*thresholds)


def test_a_signal_handler_within_a_watching_transaction(server: Any, fresh_name: str) -> None:
    """It would wait for the one that it interrupted; it is told so at once."""
    inner: list[object] = []
    with connect(server.url, timeout=math.inf) as connector:

        def decide() -> Plan[list[Command]]:
            yield ("GET", fresh_name)
            with pytest.raises(Reentered) as caught:
                connector.transaction([("PING",)], watch=[fresh_name])
            inner.append(caught.value.may_have_run)
            return [("SET", fresh_name, 1)]

        assert connector.transaction(decide, watch=[fresh_name]) == ["OK"]
    assert inner == [False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_child_that_is_forked_while_a_lock_is_held_is_not_held_up(server: Any) -> None:
    with connect(server.url, timeout=5) as connector:
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with connector._registry._lock, connector._probing, connector._watching:
                held.set()
                over.wait(10)

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(5)
        child = os.fork()
        if not child:
            signal.alarm(5)  # ends a child that hangs
            os._exit(0 if connector.command("ECHO", "x") == b"x" else 1)
        over.set()
        holder.join()
        assert os.waitpid(child, 0)[1] == 0
        assert connector.command("ECHO", "parent") == b"parent"

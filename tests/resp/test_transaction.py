"""Transactions are whole or nothing, nothing comes between, and `send` leaves nobody a reply."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final

import pytest

from resp import (
    Closed,
    Command,
    ConnectionLost,
    Connector,
    EncodeError,
    EncodeTypeError,
    ErrorReply,
    Overloaded,
    Plan,
    RefusedCommand,
    ReplyTimeout,
    RespError,
    Script,
    ServerError,
    Tap,
    TransactionAborted,
    TransportError,
    connect_async,
)

from .conftest import Fakes, Shell, begin, until
from .fake import Peer

OFF: Final = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n"
ON: Final = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$2\r\nON\r\n"


def counting(tag: str) -> Script:
    """A script that counts its runs, with a digest that no other test has."""
    return Script("count", f"return redis.call('INCR', KEYS[1]) -- {tag}")


def commands(data: bytes) -> list[list[bytes]]:
    """The commands that `data` is made of."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n")
        words = []
        for _ in range(int(head[1:])):
            size, _, data = data.partition(b"\r\n")
            words.append(data[: int(size[1:])])
            data = data[int(size[1:]) + 2 :]
        found.append(words)
    return found


def sent(tap: Tap) -> list[list[bytes]]:
    """The commands that were sent, in order."""
    return commands(b"".join(record.data for record in tap if record.sent))


def received(tap: Tap) -> bytes:
    return b"".join(record.data for record in tap if not record.sent)


def verbs(tap: Tap) -> list[bytes]:
    return [words[0] for words in sent(tap)]


def connections(server: Any, name: str) -> list[Any]:
    """The connections that call themselves `name`."""
    return [client for client in server.admin.client_list() if client["name"] == name]


def as_user(server: Any, name: str, *rules: str) -> str:
    """The URL of a new user with all rights but those that `rules` take away."""
    server.admin.execute_command(
        "ACL", "SETUSER", name, "reset", "on", ">pw", "~*", "&*", "+@all", *rules
    )
    return f"valkey://{name}:pw@{server.host}:{server.port}"


@pytest.fixture
def user(server: Any, fresh_name: str) -> Iterator[Callable[..., str]]:
    """Makes a user, who goes with the test."""
    yield lambda *rules: as_user(server, fresh_name, *rules)
    server.admin.execute_command("ACL", "DELUSER", fresh_name)


def workers(shell: Shell) -> int:
    return 8 if shell.kind == "threads" else 50


# What a transaction answers.


def test_a_transaction_answers_what_each_command_did(connector: Connector, fresh_name: str) -> None:
    said: list[Command] = [
        ("SET", fresh_name, 5),
        ("INCR", fresh_name),
        ("GET", fresh_name),
        ("GET", f"{fresh_name}:none"),
        ("MGET", fresh_name, f"{fresh_name}:none"),
    ]
    assert connector.transaction(said) == ["OK", 6, b"6", None, [b"6", None]]
    assert connector.transaction(iter(said)) == ["OK", 6, b"6", None, [b"6", None]]
    assert connector.transaction(command for command in said)[1] == 6


def test_an_error_within_exec_is_a_value_in_its_place(
    connector: Connector, fresh_name: str
) -> None:
    first, wrong, last = connector.transaction(
        [("SET", fresh_name, "text"), ("INCR", fresh_name), ("GET", fresh_name)]
    )
    assert (first, last) == ("OK", b"text")
    assert isinstance(wrong, ErrorReply)
    assert (wrong.code, wrong.message) == (
        "ERR",
        "ERR value is not an integer or out of range",
    )


def test_one_refused_command_aborts_all_and_is_named(
    connector: Connector, server: Any, fresh_name: str
) -> None:
    with pytest.raises(TransactionAborted, match="NOSUCH") as caught:
        connector.transaction(
            [("SET", fresh_name, 1), ("nosuch", "secret"), ("GET", fresh_name, "too", "many")]
        )
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ServerError)
    assert caught.value.__cause__.command == "NOSUCH"
    assert not server.admin.exists(fresh_name)
    assert connector.transaction([("SET", fresh_name, 2)]) == ["OK"]


def test_a_command_that_the_acl_refuses_aborts_all(
    shell: Shell, server: Any, user: Callable[..., str], fresh_name: str
) -> None:
    connector = shell.connect(user("-incr"))
    with pytest.raises(TransactionAborted, match=r"NOPERM.*INCR"):
        connector.transaction([("SET", fresh_name, 1), ("INCR", fresh_name)])
    assert not server.admin.exists(fresh_name)
    assert connector.command("PING") == "PONG"


@pytest.mark.parametrize("null", [b"_\r\n", b"*-1\r\n"])
def test_exec_that_answers_null_ran_nothing(shell: Shell, fake: Fakes, null: bytes) -> None:
    def changed(peer: Peer) -> None:
        peer.hello()
        for word in ("MULTI", "PING", "EXEC"):
            peer.expect(word)
        peer.send(b"+OK\r\n+QUEUED\r\n" + null)
        peer.expect("ECHO", "after")
        peer.send(b"$5\r\nafter\r\n")

    connector = shell.connect(fake(changed).url)
    with pytest.raises(TransactionAborted, match="watched"):
        connector.transaction([("PING",)])
    assert connector.command("ECHO", "after") == b"after"


def test_commands_that_ran_without_multi_are_told_honestly(
    shell: Shell, server: Any, user: Callable[..., str], fresh_name: str
) -> None:
    connector = shell.connect(user("-multi"))
    with pytest.raises(ServerError, match="NOPERM") as caught:
        connector.transaction([("SET", fresh_name, 1), ("INCR", fresh_name)])
    assert caught.value.command == "MULTI"
    assert caught.value.replies == ["OK", 2]
    assert "no transaction" in "".join(caught.value.__notes__)
    assert server.admin.get(fresh_name) == b"2"
    assert connector.command("ECHO", "mine") == b"mine"


def test_exec_that_is_refused_leaves_nobody_within_multi(
    shell: Shell, server: Any, user: Callable[..., str], fresh_name: str
) -> None:
    connector = shell.connect(user("-exec"))
    with pytest.raises(TransactionAborted, match="NOPERM"):
        connector.transaction([("SET", fresh_name, 1)])
    assert connector.command("ECHO", "mine") == b"mine"
    assert not server.admin.exists(fresh_name)


def test_an_empty_transaction_sends_nothing(shell: Shell, server: Any) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    tap.clear()
    assert connector.transaction([]) == []
    assert connector.transaction(iter(())) == []
    connector.send([])
    connector.send(iter(()))
    assert len(tap) == 0


BAD: Final[list[Any]] = [
    ("SET", "k", None),
    ("SET", "k", "\ud800"),
    (),
    "PING",
    None,
    ("SUBSCRIBE", "c"),
    ("monitor",),
    (b"PSYNC", "?", -1),
    ("SYNC",),
    ("QUIT",),
    ("RESET",),
    ("HELLO", 2),
    ("SELECT", 1),
    ("CLIENT", "REPLY", "SKIP"),
    ("client", b"reply", "on"),
    ("WATCH", "k"),
    ("MULTI",),
    Script("s", "return 1")("text"),
    Script("s", "return 1")(["k"], [None]),  # type: ignore[list-item]
]


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize("verb", ["transaction", "send"])
def test_what_cannot_be_sent_is_told_before_anything_is(
    shell: Shell, server: Any, verb: str, bad: Any
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    tap.clear()
    for said in ([bad], [("SET", "never", 1), bad], [bad, ("SET", "never", 1)]):
        with pytest.raises((EncodeError, RefusedCommand)):
            getattr(connector, verb)(said)
    assert len(tap) == 0
    assert connector.command("PING") == "PONG"


@pytest.mark.parametrize(
    "said",
    ["PING", b"PING", bytearray(b"PING"), {"PING": 1}, 5, None, ("SET", "k", 1), len],
    ids=repr,
)
@pytest.mark.parametrize("verb", ["transaction", "send"])
def test_what_is_no_list_of_commands_is_refused(
    shell: Shell, server: Any, verb: str, said: Any
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    tap.clear()
    with pytest.raises(EncodeTypeError):
        getattr(connector, verb)(said)
    assert len(tap) == 0


@pytest.mark.parametrize("word", ["EXEC", "discard"])
def test_a_transaction_cannot_be_split_from_within(
    shell: Shell, server: Any, fresh_name: str, word: str
) -> None:
    """Each list would be two transactions on the wire, the first committed or dropped unseen."""
    connector = shell.connect(server.url)
    for said in (
        [("SET", fresh_name, 1), (word,), ("MULTI",), ("SET", fresh_name, 2)],
        [(word,), ("MULTI",)],
        [(word,)],
        [("SET", fresh_name, 1), (word,)],
        [("MULTI",), ("SET", fresh_name, 1), (word,)],
    ):
        with pytest.raises(RefusedCommand):
            connector.transaction(said)
        assert not server.admin.exists(fresh_name)
    assert connector.command("PING") == "PONG"


def test_a_transaction_within_max_pending_and_one_beyond(shell: Shell, server: Any) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap, max_pending=6)
    assert connector.transaction([("PING",)] * 4) == ["PONG"] * 4
    tap.clear()
    with pytest.raises(RefusedCommand, match="max_pending"):
        connector.transaction([("PING",)] * 5)
    assert len(tap) == 0
    assert connector.transaction([("PING",)] * 4) == ["PONG"] * 4


def test_a_transaction_that_finds_no_room_sends_nothing(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        waiting = peer.command()
        peer.wait(gate)
        peer.echo(waiting)
        for word in ("MULTI", "PING", "EXEC"):
            peer.expect(word)
        peer.send(b"+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n")

    server = fake(slow)
    connector = shell.connect(server.url, max_pending=3)
    call = begin(connector.command, "ECHO", 1)
    until(lambda: connector.stats()["pending"] == 1)
    with pytest.raises(Overloaded) as caught:
        connector.transaction([("PING",)])
    assert not caught.value.may_have_run
    gate.set()
    assert call.result(20) == b"1"
    assert connector.transaction([("PING",)]) == ["PONG"]


def test_a_large_transaction_is_whole(connector: Connector, server: Any, fresh_name: str) -> None:
    said: list[Command] = [("RPUSH", fresh_name, b"v" * 1000) for _ in range(3000)]
    assert connector.transaction(said) == list(range(1, 3001))
    assert server.admin.llen(fresh_name) == 3000


# A transaction that fails on its way.


def test_a_transaction_in_flight_when_the_connection_ends_may_have_run(
    shell: Shell, fake: Fakes
) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        for word in ("MULTI", "PING", "PING", "EXEC"):
            peer.expect(word)
        peer.send(b"+OK\r\n+QUEUED\r\n")
        peer.close()

    connector = shell.connect(fake(cut).url)
    with pytest.raises(ConnectionLost) as caught:
        connector.transaction([("PING",), ("PING",)])
    assert caught.value.may_have_run


def test_replies_of_a_failed_transaction_are_as_many_as_its_commands_or_none(
    shell: Shell, fake: Fakes
) -> None:
    """MULTI and EXEC are not the caller's commands: their replies would shift all others."""

    def cut(peer: Peer) -> None:
        peer.hello()
        for word in ("MULTI", "PING", "PING", "EXEC"):
            peer.expect(word)
        peer.send(b"+OK\r\n+QUEUED\r\n")
        peer.close()

    connector = shell.connect(fake(cut).url)
    with pytest.raises(ConnectionLost) as caught:
        connector.transaction([("PING",), ("PING",)])
    assert caught.value.replies is None or len(caught.value.replies) == 2


def test_the_late_replies_of_a_transaction_reach_nobody(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def late(peer: Peer) -> None:
        peer.hello()
        for word in ("MULTI", "PING", "EXEC"):
            peer.expect(word)
        peer.send(b"+OK\r\n")
        peer.wait(gate)
        peer.send(b"+QUEUED\r\n*1\r\n+PONG\r\n")
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(late).url)
    with pytest.raises(ReplyTimeout) as caught:
        connector.transaction([("PING",)], timeout=0.05)
    assert caught.value.may_have_run
    gate.set()
    assert connector.command("ECHO", "mine") == b"mine"
    assert connector.stats()["pending"] == 0


@pytest.mark.parametrize("answer", [b"+OK\r\n", b":1\r\n", b"*0\r\n", b"*2\r\n:1\r\n:2\r\n"])
def test_exec_that_answers_what_it_cannot_is_an_error_of_ours(
    shell: Shell, fake: Fakes, answer: bytes
) -> None:
    def odd(peer: Peer) -> None:
        peer.hello()
        for word in ("MULTI", "PING", "EXEC"):
            peer.expect(word)
        peer.send(b"+OK\r\n+QUEUED\r\n" + answer)

    connector = shell.connect(fake(odd).url)
    with pytest.raises(RespError):
        connector.transaction([("PING",)])


# Scripts in a transaction.


def test_scripts_are_loaded_before_and_once_a_connection(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    script, other = counting(f"{fresh_name} a"), counting(f"{fresh_name} b")
    tap.clear()
    assert connector.transaction(
        [script([fresh_name]), ("PING",), other([fresh_name]), script([fresh_name])]
    ) == [1, "PONG", 2, 3]
    assert verbs(tap) == [
        *[b"SCRIPT"] * 2,
        *[b"MULTI", b"EVALSHA", b"PING", b"EVALSHA", b"EVALSHA", b"EXEC"],
    ]
    tap.clear()
    assert connector.transaction([script([fresh_name])]) == [4]
    assert verbs(tap) == [b"MULTI", b"EVALSHA", b"EXEC"]
    assert connector.stats()["script_loads"] == 2


def test_a_script_flushed_in_between_is_an_error_value_and_loaded_for_the_next(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url)
    script = counting(fresh_name)
    assert connector.transaction([script([fresh_name])]) == [1]
    server.admin.script_flush()
    before, missing, after = connector.transaction(
        [("INCR", f"{fresh_name}:a"), script([fresh_name]), ("INCR", f"{fresh_name}:a")]
    )
    assert (before, after) == (1, 2)
    assert isinstance(missing, ErrorReply)
    assert missing.code == "NOSCRIPT"
    assert server.admin.get(fresh_name) == b"1"  # it was not run after all
    assert connector.transaction([script([fresh_name])]) == [2]


@pytest.mark.parametrize("end", ["error", "digest", "close", "silence"])
def test_what_exec_did_is_told_though_loading_for_the_next_time_fails(
    shell: Shell, fake: Fakes, end: str
) -> None:
    """It ran. To say that it may not have would make its caller run it twice."""
    script = Script("s", "return 1")

    def flushed(peer: Peer) -> None:
        peer.hello()
        peer.expect("SCRIPT", "LOAD", "return 1")
        peer.send(b"$40\r\n%b\r\n" % script.sha.encode())
        for _ in range(4):
            peer.command()
        peer.send(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n-NOSCRIPT No matching script.\r\n")
        with contextlib.suppress(Exception):
            peer.command()
            if end == "error":
                peer.send(b"-NOPERM no\r\n")
            elif end == "digest":
                peer.send(b"$3\r\nabc\r\n")
            elif end == "close":
                peer.close()

    connector = shell.connect(fake(flushed).url)
    ran = connector.transaction([("INCR", "n"), script()], timeout=0.5)
    assert ran[0] == 1
    assert isinstance(ran[1], ErrorReply)
    assert ran[1].code == "NOSCRIPT"


@pytest.mark.parametrize("verb", ["transaction", "send"])
def test_nothing_ran_where_the_script_was_not_loaded_in_time(
    shell: Shell, fake: Fakes, verb: str
) -> None:
    def mute(peer: Peer) -> None:
        peer.hello()
        peer.expect("SCRIPT", "LOAD", "return 1")

    server = fake(mute)
    connector = shell.connect(server.url)
    with pytest.raises(ReplyTimeout) as caught:
        getattr(connector, verb)([("SET", "k", 1), Script("s", "return 1")()], timeout=0.05)
    assert b"SET" not in server.peers[0].received
    assert not caught.value.may_have_run


@pytest.mark.parametrize("verb", ["transaction", "send"])
def test_a_script_that_cannot_be_loaded_keeps_all_from_running(
    shell: Shell, server: Any, user: Callable[..., str], fresh_name: str, verb: str
) -> None:
    connector = shell.connect(user("-script|load"))
    with pytest.raises(ServerError, match="NOPERM") as caught:
        getattr(connector, verb)([("SET", fresh_name, 1), counting(fresh_name)([fresh_name])])
    assert caught.value.command == "SCRIPT LOAD"
    assert not server.admin.exists(fresh_name)
    assert connector.command("PING") == "PONG"


def test_nothing_runs_twice_while_the_cache_is_flushed(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url)
    script = counting(fresh_name)
    done = threading.Event()

    def flush() -> int:
        for count in itertools.count():
            if done.is_set():
                return count
            server.admin.script_flush()
        raise AssertionError

    flusher = begin(flush)
    plain = scripted = rounds = 0
    while rounds < 150 or not 0 < scripted < rounds:
        rounds += 1
        one, two = connector.transaction([("INCR", f"{fresh_name}:a"), script([fresh_name])])
        plain += one == rounds
        scripted += not isinstance(two, ErrorReply)
        assert isinstance(two, ErrorReply) or two == scripted
    done.set()
    assert flusher.result(20)
    assert plain == rounds == int(server.admin.get(f"{fresh_name}:a"))
    assert scripted == int(server.admin.get(fresh_name))


# Other callers.


def test_nothing_of_others_comes_between(connector: Connector, fresh_name: str) -> None:
    """A list that each transaction fills, measures and empties, while others push to it."""
    done = threading.Event()

    def push() -> int:
        count = 0
        while not done.is_set():
            assert isinstance(connector.command("RPUSH", fresh_name, "theirs"), int)
            connector.pipeline([("RPUSH", fresh_name, "theirs")] * 3)
            count += 4
        return count

    def transact(number: int) -> None:
        said: list[Command] = [
            ("DEL", fresh_name),
            *[("RPUSH", fresh_name, f"{number}-{at}") for at in range(10)],
            ("LRANGE", fresh_name, 0, -1),
        ]
        for _ in range(20):
            answer = connector.transaction(said)
            assert answer[1:11] == list(range(1, 11))
            assert answer[11] == [b"%d-%d" % (number, at) for at in range(10)]

    pushers = [begin(push) for _ in range(4)]
    for each in [begin(transact, number) for number in range(4)]:
        each.result(60)
    done.set()
    assert all(pusher.result(20) for pusher in pushers)


# WATCH.


def raising(key: str, step: int = 1) -> Callable[[], Plan[list[Command]]]:
    """Decides to raise a counter by what it reads of it."""

    def decide() -> Plan[list[Command]]:
        before = yield ("GET", key)
        return [("SET", key, int(before or 0) + step)]

    return decide


def test_a_plan_decides_on_what_it_reads(
    connector: Connector, server: Any, fresh_name: str
) -> None:
    assert connector.transaction(raising(fresh_name), watch=[fresh_name]) == ["OK"]
    assert connector.transaction(raising(fresh_name, 5), watch=(fresh_name,)) == ["OK"]
    assert connector.transaction(raising(fresh_name), watch={fresh_name}) == ["OK"]
    assert server.admin.get(fresh_name) == b"7"


def test_a_plan_that_was_made_already_is_refused(
    connector: Connector, server: Any, fresh_name: str
) -> None:
    """Its reads would run as the transaction, and what it decides would be dropped."""
    made: Any = raising(fresh_name)()
    with pytest.raises(EncodeTypeError, match="the function"):
        connector.transaction(made, watch=[fresh_name])
    assert server.admin.get(fresh_name) is None


def test_a_plan_may_flush_lists_and_call_scripts(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url)
    script = counting(fresh_name)
    server.admin.set(fresh_name, 7)

    def decide() -> Plan[list[Command]]:
        both = yield [("GET", fresh_name), ("GET", fresh_name, "too many")]
        assert both[0] == b"7"
        assert isinstance(both[1], ErrorReply)
        ran = yield script([f"{fresh_name}:other"])  # which the server does not hold
        assert ran == 1
        return [script([fresh_name]), ("GET", fresh_name)]

    assert connector.transaction(decide, watch=[fresh_name]) == [8, b"8"]


def test_a_key_that_another_client_changes_aborts_all(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url)
    aborts = [True, False]

    def decide() -> Plan[list[Command]]:
        before = yield ("GET", fresh_name)
        if aborts.pop(0):
            server.admin.set(fresh_name, 100)
        return [("SET", fresh_name, int(before or 0) + 1), ("SET", f"{fresh_name}:b", 1)]

    with pytest.raises(TransactionAborted, match="watched"):
        connector.transaction(decide, watch=["other", fresh_name])
    assert server.admin.get(fresh_name) == b"100"
    assert not server.admin.exists(f"{fresh_name}:b")
    assert connector.transaction(decide, watch=["other", fresh_name]) == ["OK", "OK"]
    assert server.admin.get(fresh_name) == b"101"


def test_a_key_that_the_same_connector_changes_aborts_all(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url)
    reading, changed = threading.Event(), f"{fresh_name}:changed"

    def decide() -> Plan[list[Command]]:
        yield ("GET", fresh_name)
        reading.set()
        yield ("BLPOP", changed, 0)
        return [("SET", fresh_name, "lost")]

    call = begin(connector.transaction, decide, watch=[fresh_name])
    assert reading.wait(20)
    connector.command("SET", fresh_name, "kept")  # nobody waits for the plan, though it blocks
    connector.command("RPUSH", changed, 1)
    with pytest.raises(TransactionAborted):
        call.result(20)
    assert server.admin.get(fresh_name) == b"kept"


def test_plain_commands_with_watch(connector: Connector, server: Any, fresh_name: str) -> None:
    assert connector.transaction([("SET", fresh_name, 1)], watch=[fresh_name]) == ["OK"]
    assert connector.transaction([("INCR", fresh_name)] * 2, watch=[fresh_name, "k"]) == [2, 3]
    assert server.admin.get(fresh_name) == b"3"


def test_deciding_for_nothing_watches_nothing_on(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url)

    def nothing() -> Plan[list[Command]]:
        yield ("GET", fresh_name)
        return []

    assert connector.transaction(nothing, watch=[fresh_name]) == []
    assert connector.transaction([], watch=[fresh_name]) == []
    server.admin.set(fresh_name, 1)
    assert connector.transaction([("PING",)], watch=["other"]) == ["PONG"]


def test_a_counter_that_all_raise_with_retries_is_exact(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    """From two connectors, so that not only turns on one connection keep them apart."""
    connectors = [shell.connect(server.url, timeout=20.0) for _ in range(2)]
    each = 20 if shell.kind == "threads" else 4

    def work(number: int) -> int:
        aborted = 0
        for _ in range(each):
            while True:
                try:
                    connectors[number % 2].transaction(raising(fresh_name), watch=[fresh_name])
                    break
                except TransactionAborted:
                    aborted += 1
        return aborted

    calls = [begin(work, number) for number in range(workers(shell))]
    for call in calls:
        call.result(60)
    assert int(server.admin.get(fresh_name)) == each * workers(shell)


class _Odd(Exception):
    pass


def _raises(key: str) -> Plan[Any]:
    yield ("GET", key)
    raise _Odd


def _returns_nothing(key: str) -> Plan[Any]:
    yield ("GET", key)


def _returns_text(key: str) -> Plan[Any]:
    yield ("GET", key)
    return "PING"


def _returns_what_cannot_be_sent(key: str) -> Plan[Any]:
    yield ("GET", key)
    return [("SET", key, "never"), ("SET", key, None)]


def _returns_exec(key: str) -> Plan[Any]:
    yield ("GET", key)
    return [("SET", key, "never"), ("EXEC",)]


def _returns_a_command_unknown(key: str) -> Plan[Any]:
    yield ("GET", key)
    return [("SET", key, "never"), ("NOSUCH",)]


def _says_what_cannot_be_sent(key: str) -> Plan[Any]:
    yield ("GET", key)
    yield ("GET", None)  # type: ignore[misc]


def _says_what_is_refused(key: str) -> Plan[Any]:
    yield ("GET", key)
    yield ("MULTI",)


def _says_half_a_transaction(key: str) -> Plan[Any]:
    yield [("MULTI",), ("SET", key, "never")]


def _aborts_by_itself(key: str) -> Plan[Any]:
    yield ("GET", key)
    raise TransactionAborted("it is not worth it")


def _takes_too_long(key: str) -> Plan[Any]:
    yield ("GET", key)
    yield ("BLPOP", f"{key}:never", 0)
    return [("SET", key, "never")]


def _takes_too_long_and_goes_on(key: str) -> Plan[Any]:
    with contextlib.suppress(TransportError):
        yield ("BLPOP", f"{key}:never", 0)
    return [("SET", key, "never")]


def _is_no_plan(key: str) -> Any:
    return [("SET", key, "never")]


_HALF_WAY: Final = [
    _raises,
    _returns_nothing,
    _returns_text,
    _returns_what_cannot_be_sent,
    _returns_exec,
    _returns_a_command_unknown,
    _says_what_cannot_be_sent,
    _says_what_is_refused,
    _says_half_a_transaction,
    _aborts_by_itself,
    _takes_too_long,
    _takes_too_long_and_goes_on,
    _is_no_plan,
]


@pytest.mark.parametrize("plan", _HALF_WAY, ids=lambda plan: plan.__name__.strip("_"))
def test_a_plan_that_ends_half_way_leaves_no_watch_and_no_multi_behind(
    shell: Shell, server: Any, fresh_name: str, plan: Callable[[str], Plan[Any]]
) -> None:
    connector = shell.connect(server.url)
    server.admin.set(fresh_name, "kept")
    with pytest.raises((RespError, _Odd)):
        connector.transaction(lambda: plan(fresh_name), watch=[fresh_name], timeout=0.3)
    assert server.admin.get(fresh_name) == b"kept"
    server.admin.set(fresh_name, 1)  # whoever watches still, would run nothing
    assert connector.transaction([("PING",)], watch=["other"]) == ["PONG"]
    assert connector.transaction(raising(fresh_name), watch=[fresh_name]) == ["OK"]
    assert server.admin.get(fresh_name) == b"2"
    assert connector.command("ECHO", "mine") == b"mine"


def test_a_plan_that_is_cancelled_half_way_leaves_nothing_behind(
    server: Any, fresh_name: str
) -> None:
    def decide() -> Plan[list[Command]]:
        yield ("GET", fresh_name)
        yield ("BLPOP", f"{fresh_name}:never", 0)
        return [("SET", fresh_name, "never")]

    async def main() -> None:
        async with await connect_async(server.url) as connector:
            for turns in range(30):
                call = asyncio.ensure_future(connector.transaction(decide, watch=[fresh_name]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                waiting = asyncio.ensure_future(connector.transaction([("PING",)], watch=["k"]))
                await asyncio.sleep(0)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                server.admin.set(fresh_name, turns)
                assert await waiting == ["PONG"]
                assert await connector.transaction(raising(fresh_name), watch=[fresh_name])
                assert server.admin.get(fresh_name) == b"%d" % (turns + 1)
                assert await connector.command("ECHO", turns) == b"%d" % turns

    asyncio.run(main())


def test_a_transaction_cancelled_at_any_turn_is_whole_or_nothing(
    server: Any, fresh_name: str
) -> None:
    async def main() -> None:
        a, b = f"{fresh_name}:a", f"{fresh_name}:b"
        script = counting(fresh_name)
        async with await connect_async(server.url) as connector:
            for turns in range(40):
                for watch in ((), (a,)):
                    call = asyncio.ensure_future(
                        connector.transaction([("INCR", a), script([b])], watch=watch)
                    )
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    call.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await call
                    assert await connector.command("ECHO", turns) == b"%d" % turns
            both = await connector.transaction([("GET", a), ("GET", b)], watch=["k"])
            assert both[0] == both[1]

    asyncio.run(main())


def test_a_plan_that_is_interrupted_half_way_leaves_nothing_behind(
    server: Any, fresh_name: str, shell: Shell
) -> None:
    if shell.kind == "aio":
        pytest.skip("an interrupt ends the loop, and with it all connections")
    connector = shell.connect(server.url)
    server.admin.set(fresh_name, 0)

    def decide() -> Plan[list[Command]]:
        yield ("GET", fresh_name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        connector.transaction(decide, watch=[fresh_name])
    server.admin.set(fresh_name, 1)
    assert connector.transaction([("PING",)], watch=["other"], timeout=2) == ["PONG"]


@pytest.mark.parametrize(
    "watch",
    ["key", b"key", bytearray(b"key"), {"key": 1}, 5, None, iter(["key"])],
    ids=lambda watch: type(watch).__name__,
)
def test_what_is_no_list_of_keys_is_refused(shell: Shell, server: Any, watch: Any) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    tap.clear()
    with pytest.raises(EncodeTypeError, match="watch"):
        connector.transaction([("SET", "key", 1)], watch=watch)
    assert len(tap) == 0


@pytest.mark.parametrize("key", [None, True, ["key"], "\ud800"], ids=ascii)
def test_a_key_that_cannot_be_sent_is_told_before_anything_is(
    shell: Shell, server: Any, key: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url)
    with pytest.raises(EncodeError):
        connector.transaction([("SET", fresh_name, 1)], watch=["key", key])
    assert not server.admin.exists(fresh_name)
    assert connector.transaction([("PING",)], watch=["key"]) == ["PONG"]


def test_a_function_needs_keys_to_go_by(shell: Shell, server: Any) -> None:
    connector = shell.connect(server.url)
    with pytest.raises(EncodeTypeError, match="watch="):
        connector.transaction(raising("k"))


@pytest.mark.parametrize("catches", [False, True])
def test_a_connection_lost_between_watch_and_exec_runs_nothing(
    shell: Shell, server: Any, fresh_name: str, catches: bool
) -> None:
    """Nothing goes on over a new connection, which watches nothing."""
    connector = shell.connect(server.url)

    def decide() -> Plan[list[Command]]:
        own = yield ("CLIENT", "ID")
        server.admin.client_kill_filter(_id=own)
        server.admin.set(fresh_name, "kept")
        with contextlib.suppress(*([ConnectionLost] if catches else [])):
            yield ("GET", fresh_name)
        return [("SET", fresh_name, "lost")]

    with pytest.raises(ConnectionLost):
        connector.transaction(decide, watch=[fresh_name])
    assert server.admin.get(fresh_name) == b"kept"
    server.admin.set(fresh_name, 1)
    assert connector.transaction(raising(fresh_name), watch=[fresh_name]) == ["OK"]


def test_watch_that_is_refused_runs_nothing(
    shell: Shell, server: Any, user: Callable[..., str], fresh_name: str
) -> None:
    connector = shell.connect(user("-watch"))
    decided: list[int] = []

    def decide() -> Plan[list[Command]]:
        decided.append(1)
        yield ("PING",)
        return [("SET", fresh_name, 1)]

    with pytest.raises(ServerError, match="NOPERM") as caught:
        connector.transaction(decide, watch=[fresh_name])
    assert caught.value.command == "WATCH"
    assert not decided
    assert not server.admin.exists(fresh_name)


def blocked(connector: Connector, server: Any, key: str) -> Future[Any]:
    """A transaction whose plan waits for `key`, and holds the connection that watches."""
    reached = threading.Event()

    def decide() -> Plan[list[Command]]:
        reached.set()
        yield ("BLPOP", key, 0)
        return [("PING",)]

    call = begin(connector.transaction, decide, watch=["k"])
    assert reached.wait(20)
    until(lambda: server.admin.info("clients")["blocked_clients"])
    return call


def test_close_ends_the_transactions_that_wait(shell: Shell, server: Any, fresh_name: str) -> None:
    connector = shell.connect(server.url, timeout=60.0)
    call = blocked(connector, server, fresh_name)
    turns = [begin(connector.transaction, [("SET", fresh_name, 1)], watch=["k"]) for _ in range(3)]
    connector.close()
    with pytest.raises(ConnectionLost):
        call.result(20)
    for turn in turns:
        with pytest.raises(Closed):
            turn.result(20)
    with pytest.raises(Closed):
        connector.transaction([("PING",)], watch=["k"])
    until(lambda: not server.admin.info("clients")["blocked_clients"])
    assert not server.admin.exists(fresh_name)


def test_who_waits_too_long_for_its_turn_sent_nothing(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url)
    call = blocked(connector, server, fresh_name)
    with pytest.raises(ReplyTimeout) as caught:
        connector.transaction([("SET", "never", 1)], watch=["k"], timeout=0.05)
    assert not caught.value.may_have_run
    assert connector.command("PING") == "PONG"
    assert connector.transaction([("RPUSH", fresh_name, 1)]) == [1]
    assert call.result(20) == ["PONG"]
    assert connector.transaction([("PING",)], watch=["k"]) == ["PONG"]


def test_a_watching_transaction_within_another_ends_in_an_error(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    if shell.kind == "aio":
        pytest.skip("a plan cannot await")
    connector = shell.connect(server.url)

    def decide() -> Plan[list[Command]]:
        yield ("GET", fresh_name)
        connector.transaction([("PING",)], watch=[fresh_name], timeout=0.05)
        return [("SET", fresh_name, 1)]

    with pytest.raises(TransportError):
        connector.transaction(decide, watch=[fresh_name], timeout=2)
    assert not server.admin.exists(fresh_name)
    assert connector.transaction([("PING",)], watch=[fresh_name]) == ["PONG"]


def test_the_connection_that_watches_is_counted_and_closed_with_its_connector(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url, client_name=fresh_name)
    assert len(connections(server, fresh_name)) == 1
    before = connector.stats()
    for _ in range(3):
        connector.transaction([("PING",)], watch=["k"])
    assert len(connections(server, fresh_name)) == 2
    after = connector.stats()
    # HELLO, then WATCH, MULTI, PING, EXEC each time.
    assert int(after["commands"]) - int(before["commands"]) == 13
    assert int(after["replies"]) - int(before["replies"]) == 13
    assert after["reconnects"] == after["pending"] == 0
    connector.close()
    until(lambda: not connections(server, fresh_name))


def test_the_connection_that_watches_is_set_up_like_the_other(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    booted: list[int] = []

    def on_connect() -> Plan[None]:
        booted.append((yield ("CLIENT", "ID")))

    connector = shell.connect(f"{server.url}/3", on_connect=on_connect, protocol=2)
    assert connector.transaction([("SET", fresh_name, 1)], watch=[fresh_name]) == ["OK"]
    assert connector.command("GET", fresh_name) == b"1"
    assert not server.admin.exists(fresh_name)  # which is in another database
    assert connector.command("DEL", fresh_name) == 1
    assert len(set(booted)) == 2


# Commands without replies.


@pytest.mark.parametrize("count", [1, 3, 127, 128, 129, 1000])
@pytest.mark.parametrize("protocol", [2, 3])
def test_one_ok_a_slice_is_all_that_comes_back(
    shell: Shell, server: Any, fresh_name: str, count: int, protocol: int
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, protocol=protocol, tap=tap)
    tap.clear()
    connector.send([("RPUSH", fresh_name, at) for at in range(count)])
    said = sent(tap)
    slices = said.count([b"CLIENT", b"REPLY", b"ON"])
    assert 1 <= slices <= 1 + count // 32
    assert received(tap) == b"+OK\r\n" * slices
    assert said[0] == [b"CLIENT", b"REPLY", b"OFF"]
    assert said[-1] == [b"CLIENT", b"REPLY", b"ON"]
    assert [words[2] for words in said if words[0] == b"RPUSH"] == [
        b"%d" % at for at in range(count)
    ]
    assert server.admin.llen(fresh_name) == count
    assert connector.command("ECHO", "mine") == b"mine"


def test_all_of_a_hundred_thousand_have_run_when_it_returns(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url, timeout=60.0)
    connector.send(("INCR", fresh_name) for _ in range(100_000))
    assert server.admin.get(fresh_name) == b"100000"
    assert int(connector.stats()["bytes_in"]) < 30_000
    assert connector.stats()["pending"] == 0


def test_large_commands_are_sent(connector: Connector, server: Any, fresh_name: str) -> None:
    connector.send([("APPEND", fresh_name, b"v" * 3_000_000)] * 4)
    assert server.admin.strlen(fresh_name) == 12_000_000


def test_errors_are_silent(connector: Connector, server: Any, fresh_name: str) -> None:
    connector.send([("SET", fresh_name, "x"), ("INCR", fresh_name), ("NOSUCH",), ("GET",)])
    connector.send([("APPEND", fresh_name, "y")])
    assert server.admin.get(fresh_name) == b"xy"
    assert connector.command("ECHO", "mine") == b"mine"


def test_a_send_owes_little_whatever_its_size(shell: Shell, server: Any, fresh_name: str) -> None:
    connector = shell.connect(server.url, max_pending=1)
    connector.send([("INCR", fresh_name)] * 500)
    assert server.admin.get(fresh_name) == b"500"


def test_a_transaction_may_be_sent(connector: Connector, server: Any, fresh_name: str) -> None:
    inside: list[Command] = [("MULTI",), *[("INCR", fresh_name)] * 300, ("EXEC",)]
    connector.send([("SET", fresh_name, 5), *inside, ("INCR", fresh_name)])
    assert server.admin.get(fresh_name) == b"306"
    assert connector.command("ECHO", "mine") == b"mine"


def test_scripts_are_sent(shell: Shell, server: Any, fresh_name: str) -> None:
    connector = shell.connect(server.url)
    script = counting(fresh_name)
    connector.send([script([fresh_name])] * 200)
    assert server.admin.get(fresh_name) == b"200"
    assert connector.stats()["script_loads"] == 1
    assert connector.stats()["evalsha_calls"] == 200


def test_a_script_that_was_flushed_since_is_loaded_before_the_next_send(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    """Nobody would ever learn that it does not run."""
    connector = shell.connect(server.url)
    script = counting(fresh_name)
    connector.send([script([fresh_name])])
    server.admin.script_flush()
    connector.send([script([fresh_name])])
    assert server.admin.get(fresh_name) == b"2"
    connector.command("SCRIPT", "FLUSH")
    connector.send([script([fresh_name])])
    assert server.admin.get(fresh_name) == b"3"


def test_others_are_answered_right_while_some_send(
    connector: Connector, server: Any, fresh_name: str
) -> None:
    done = threading.Event()

    def ask(number: int) -> int:
        for at in itertools.count():
            word = b"%d-%d" % (number, at)
            assert connector.command("ECHO", word) == word
            assert connector.pipeline([("ECHO", word), ("ECHO", number)]) == [
                word,
                b"%d" % number,
            ]
            assert connector.transaction([("ECHO", word)]) == [word]
            if done.is_set():
                return at
        raise AssertionError

    def send() -> None:
        for _ in range(10):
            connector.send([("INCR", fresh_name)] * 150)

    askers = [begin(ask, number) for number in range(5)]
    for sender in [begin(send) for _ in range(3)]:
        sender.result(60)
    done.set()
    assert all(asker.result(20) for asker in askers)
    assert server.admin.get(fresh_name) == b"4500"


@pytest.mark.parametrize("count", [1, 1000])
def test_client_reply_that_is_refused_ends_the_connection(
    shell: Shell, server: Any, user: Callable[..., str], fresh_name: str, count: int
) -> None:
    connector = shell.connect(user("-client|reply"))
    before = connector.command("CLIENT", "ID")
    with pytest.raises(ServerError, match="NOPERM") as caught:
        connector.send([("INCR", fresh_name)] * count)
    assert caught.value.command == "CLIENT REPLY"
    assert connector.command("ECHO", "mine") == b"mine"
    assert connector.command("CLIENT", "ID") != before


def test_nobody_gets_a_wrong_reply_though_client_reply_is_refused(
    shell: Shell, user: Callable[..., str], fresh_name: str
) -> None:
    connector = shell.connect(user("-client|reply"), backoff=(0.001, 0.01))
    done = threading.Event()

    def ask(number: int) -> int:
        right = 0
        for at in itertools.count():
            if done.is_set():
                return right
            word = b"%d-%d" % (number, at)
            with contextlib.suppress(TransportError):
                assert connector.command("ECHO", word) == word
                right += 1
        raise AssertionError

    askers = [begin(ask, number) for number in range(4)]
    refused = 0
    for count in range(40):
        with pytest.raises((ServerError, TransportError)) as caught:
            connector.send([("ECHO", "nobody's")] * (1 + 20 * count))
        refused += isinstance(caught.value, ServerError)
    done.set()
    assert sum(asker.result(20) for asker in askers)
    assert refused


def test_a_send_that_is_refused_on_its_way_may_have_run(
    shell: Shell, server: Any, user: Callable[..., str], fresh_name: str
) -> None:
    connector = shell.connect(user("-client|reply"))
    with pytest.raises(RespError) as caught:
        connector.send([("INCR", fresh_name)] * 1000)
    assert int(server.admin.get(fresh_name)) > 0
    assert getattr(caught.value, "may_have_run", True)


def test_a_send_that_fails_after_its_first_slice_may_have_run(shell: Shell, fake: Fakes) -> None:
    def breaks(peer: Peer) -> None:
        peer.hello()
        while peer.command() != [b"CLIENT", b"REPLY", b"ON"]:
            pass
        peer.send(b"+OK\r\n?")

    connector = shell.connect(fake(breaks).url)
    with pytest.raises(ConnectionLost) as caught:
        connector.send([("SET", "k", b"v" * 50_000)] * 100)
    assert caught.value.may_have_run


def test_a_send_in_flight_when_the_connection_ends_may_have_run(shell: Shell, fake: Fakes) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        peer.expect_bytes(OFF + b"*1\r\n$4\r\nPING\r\n" + ON)
        peer.close()

    connector = shell.connect(fake(cut).url)
    with pytest.raises(ConnectionLost) as caught:
        connector.send([("PING",)])
    assert caught.value.may_have_run


def test_the_late_ok_of_a_send_reaches_nobody(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def late(peer: Peer) -> None:
        peer.hello()
        peer.expect_bytes(OFF + b"*1\r\n$4\r\nPING\r\n" + ON)
        peer.wait(gate)
        peer.send(b"+OK\r\n")
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(late).url)
    with pytest.raises(ReplyTimeout) as caught:
        connector.send([("PING",)], timeout=0.05)
    assert caught.value.may_have_run
    gate.set()
    assert connector.command("ECHO", "mine") == b"mine"
    assert connector.stats()["pending"] == 0


@pytest.mark.parametrize("answer", [b"$2\r\nOK\r\n", b":1\r\n", b"+PONG\r\n", b"_\r\n"])
def test_an_answer_to_on_that_is_no_ok_ends_the_connection(
    shell: Shell, fake: Fakes, answer: bytes
) -> None:
    """It is a reply to something else, so nobody knows what comes next."""

    def odd(peer: Peer) -> None:
        peer.hello()
        peer.expect_bytes(OFF + b"*1\r\n$4\r\nPING\r\n" + ON)
        peer.send(answer)

    def sound(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(odd, sound).url)
    with pytest.raises(RespError):
        connector.send([("PING",)])
    assert connector.command("ECHO", "mine") == b"mine"


def test_a_send_cancelled_at_any_turn_leaves_every_reply_to_its_owner(
    server: Any, fresh_name: str
) -> None:
    async def main() -> None:
        async with await connect_async(server.url) as connector:
            for turns in range(30):
                call = asyncio.ensure_future(
                    connector.send([("INCR", fresh_name), ("ECHO", "nobody's")] * 200)
                )
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await call
                words = [b"%d-%d" % (turns, at) for at in range(20)]
                assert words == await asyncio.gather(
                    *(connector.command("ECHO", word) for word in words)
                )
            assert connector.stats()["pending"] == 0
            assert connector.stats()["reconnects"] == 0

    asyncio.run(main())

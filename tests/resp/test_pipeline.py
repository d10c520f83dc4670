"""Pipelines that are long, heavy or slow, and what one that failed on its way tells."""

from __future__ import annotations

import itertools
import random
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from emq.embedded import Embedded
from resp import (
    Command,
    ConnectFailed,
    ConnectionLost,
    Connector,
    EncodeError,
    EncodeValueError,
    ErrorReply,
    Overloaded,
    Plan,
    ProtocolError,
    RefusedCommand,
    ReplyTimeout,
    Script,
    Tap,
    TransportError,
    Unanswered,
    encode_command,
)

from ..proxy import Fault, Proxy
from .conftest import Fakes, Loop, Shell, begin, until
from .fake import PATIENCE_S, Peer

NOT_SENT: Final = Unanswered.NOT_SENT
MAY_HAVE_RUN: Final = Unanswered.MAY_HAVE_RUN
MB: Final = 1 << 20

PUSH: Final = "return redis.call('RPUSH', KEYS[1], ARGV[1])"
ECHO: Final = Script("echo", "return ARGV[1]")
_sources: Final = itertools.count()


class Said:
    """A command that knows its own bytes."""

    command = "ECHO"

    def __init__(self, word: Any) -> None:
        self.word = word

    def frame(self) -> bytes:
        return encode_command("ECHO", self.word)


class Framed:
    """A command whose bytes are whatever it was made with."""

    command = "ECHO"

    def __init__(self, data: Any) -> None:
        self.data = data

    def frame(self) -> Any:
        return self.data


def echo(peer: Peer) -> None:
    peer.hello()
    for command in peer.commands():
        peer.echo(command)


@pytest.fixture(scope="module")
def lonely() -> Iterator[tuple[str, Any]]:
    """A server of this module's own, whose limits and statistics nobody else sees: URL, admin."""
    with (
        Embedded(tcp=True) as valkey,
        redis.Redis(host=valkey.host, port=valkey.port) as admin,
    ):
        yield valkey.url, admin


# Long and heavy.


def test_a_hundred_thousand_commands(shell: Shell, server: Any) -> None:
    connector = shell.connect(server.url)
    commands = [("ECHO", number) for number in range(100_000)]
    assert connector.pipeline(commands, timeout=60) == [b"%d" % n for n in range(100_000)]
    assert connector.stats()["pending"] == 0


def test_neither_side_keeps_more_than_a_little_of_much(
    shell: Shell, lonely: tuple[str, Any]
) -> None:
    """400 MB of answers and 60 MB of values: beside what is answered, nobody holds them at once."""
    url, admin = lonely
    connector = shell.connect(url)
    body = b"x" * MB
    reads, writes = [("GET", "k")] * 400, [("SET", "k", body)] * 60
    connector.pipeline([writes[0], reads[0]])
    tracemalloc.start()
    try:
        replies = connector.pipeline([*reads[:200], *writes, *reads[200:]], timeout=60)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert replies == [body] * 200 + ["OK"] * 60 + [body] * 200
    assert peak < (400 + 32) * MB
    assert admin.info("clients")["client_recent_max_output_buffer"] < 100 * MB


def test_a_trickle_both_ways(shell: Shell, server: Any) -> None:
    with Proxy((server.host, server.port)) as proxy:
        proxy.to_server = proxy.to_client = Fault(piece=1)
        connector = shell.connect(proxy.url, timeout=PATIENCE_S)
        commands: list[Any] = [("ECHO", number) for number in range(100)]
        commands[40:40] = [("INCR",), ECHO((), ["\r\n"]), ("MULTI",), ("PING",), ("EXEC",)]
        replies = connector.pipeline(commands)
        assert [reply.code for reply in replies[40:41]] == ["ERR"]
        assert replies[41:45] == [b"\r\n", "OK", "QUEUED", ["PONG"]]
        assert replies[:40] + replies[45:] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("begins", [1020, 1022, 1023, 1024, 2000])
def test_a_transaction_wherever_it_stands_leaves_in_one_piece(
    connector: Connector, begins: int
) -> None:
    group: list[Command] = [("MULTI",), *[("ECHO", n) for n in range(60)], ("EXEC",)]
    commands: list[Command] = [("ECHO", n) for n in range(3000)]
    commands[begins:begins] = group
    replies: list[Any] = connector.pipeline(commands)
    came = replies[begins : begins + len(group)]
    assert came == ["OK", *["QUEUED"] * 60, [b"%d" % n for n in range(60)]]
    assert replies[:begins] + replies[begins + len(group) :] == [b"%d" % n for n in range(3000)]


# What cannot be sent.


def generator(word: str) -> Iterator[str]:
    yield word


class Unsayable:
    command = "NOTHING"

    def frame(self) -> bytes:
        raise EncodeValueError("nothing to say")


BAD: Final[dict[str, Callable[[], Any]]] = {
    "None": lambda: ("SET", "k", None),
    "a bool": lambda: ("SET", "k", True),
    "a list": lambda: ("SET", "k", ["v"]),
    "a surrogate": lambda: ("SET", "k", "\ud800"),
    "a surrogate within text": lambda: ("SET", "k", "ä\udfffö"),
    "no name": lambda: (),
    "an empty list": list,
    "None as a command": lambda: None,
    "text as a command": lambda: "PING",
    "a number as a command": lambda: 7,
    "a generator as a command": lambda: generator("PING"),
    "None as a script's key": lambda: ECHO([None]),  # type: ignore[list-item]
    "text as a script's keys": lambda: ECHO("key"),
    "a bool as a script's argument": lambda: ECHO((), [False]),
    "a surrogate as a script's argument": lambda: ECHO((), ["\udc80"]),
    "a generator as a script's keys": lambda: ECHO(generator("key")),  # type: ignore[arg-type]
    "a generator as a script's arguments": lambda: ECHO(
        (),
        generator("argument"),  # type: ignore[arg-type]
    ),
    "a script that is not called": lambda: ECHO,
    "an object that cannot be said": Unsayable,
    "an object that says text": lambda: Framed("*1\r\n$4\r\nPING\r\n"),
    "an object that says nothing": lambda: Framed(b""),
    "a verb of its own": lambda: ("SUBSCRIBE", "channel"),
    "silence": lambda: ["client", b"reply", "OFF"],
    "half a transaction": lambda: ("MULTI",),
    "the other half": lambda: (b"exec",),
}


@pytest.mark.parametrize("kind", BAD)
def test_one_bad_command_among_thousands_sends_nothing(
    shell: Shell, server: Any, kind: str
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap, timeout=1)
    connector.pipeline([("ECHO", "known"), ECHO((), ["known"])])
    tap.clear()
    calls = [ECHO((), [number]) for number in range(5000)]
    tuples = [("ECHO", number) for number in range(5000)]
    mixed: list[Any] = list(tuples)
    mixed[::7] = [["ECHO", 10**40, "ß"]] * len(mixed[::7])
    mixed[::11] = [Said("own")] * len(mixed[::11])
    mixed[::13] = calls[::13]
    wrong: list[object] = []
    for commands, at in ((tuples, 0), (tuples, 1024), (mixed, 4999), (calls, 3), (calls, 4999)):
        said = list(commands)
        said[at] = BAD[kind]()
        try:
            connector.pipeline(said)
        except (EncodeError, RefusedCommand) as error:
            if error.replies is not None:
                wrong.append(error.replies)
        except Exception as error:
            wrong.append(error)
        else:
            wrong.append("it was sent")
    assert wrong == []
    assert len(tap) == 0
    assert connector.stats()["pending"] == 0
    assert connector.command("ECHO", "next") == b"next"


@pytest.mark.parametrize("verb", ["eval", "pipeline", "run"])
def test_what_can_be_read_only_once_is_no_argument_list(
    connector: Connector, fresh_name: str, verb: str
) -> None:
    """It would be empty when the call is said again, after its script was loaded."""
    script = Script("push", f"{PUSH} -- {fresh_name}")

    def plan(call: Any) -> Plan[Any]:
        return (yield call)

    verbs: dict[str, Callable[[Any, Any], Any]] = {
        "eval": lambda keys, args: connector.eval(script, keys, args),
        "pipeline": lambda keys, args: connector.pipeline([script(keys, args)]),
        "run": lambda keys, args: connector.run(plan(script(keys, args))),
    }
    for keys, args in (([fresh_name], generator("a")), (iter([fresh_name]), ["a"])):
        with pytest.raises(EncodeError):
            verbs[verb](keys, args)
    assert connector.command("EXISTS", fresh_name) == 0


# What a pipeline that failed tells.


def right(
    error: TransportError, count: int, replies: list[Any], received: int, written: int
) -> None:
    """What `error` tells of `count` commands is true.

    Those replies came; so many commands arrived at the server, and at the most so many were
    written.
    """
    told = error.replies
    assert told is not None
    assert len(told) == count
    assert told[: len(replies)] == replies
    rest = told[len(replies) :]
    may, unsent = rest.count(MAY_HAVE_RUN), rest.count(NOT_SENT)
    assert rest == [MAY_HAVE_RUN] * may + [NOT_SENT] * unsent
    assert received - len(replies) <= may <= written - len(replies)
    assert error.may_have_run is bool(replies or may)


def stop_in_a_reply(peer: Peer) -> None:
    peer.send(b"$10\r\nhalf")
    peer.half_close()


ENDS: Final[dict[str, Callable[[Peer], object]]] = {
    "an end": Peer.half_close,
    "a reset": Peer.reset,
    "half a reply": stop_in_a_reply,
    "malformed bytes": lambda peer: peer.send(b"?"),
    "a push within a reply": lambda peer: peer.send(b"*2\r\n>1\r\n+x\r\n:1\r\n"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("answered", [0, 1, 10, 31, 32, 33, 64, 100, 199])
def test_each_command_has_its_outcome_after_any_end(
    shell: Shell, fake: Fakes, end: str, answered: int
) -> None:
    received: list[int] = []

    def cut(peer: Peer) -> None:
        peer.hello()
        for _ in range(answered):
            peer.echo(peer.command())
        peer.command()
        ENDS[end](peer)
        received.append(peer.received.count(b"ECHO"))

    connector = shell.connect(fake(cut, echo).url, max_pending=128)
    with pytest.raises(ConnectionLost) as caught:
        connector.pipeline([("ECHO", number) for number in range(200)])
    until(lambda: received)
    came = [b"%d" % number for number in range(answered)]
    if end == "a reset":  # what had come may be lost with it
        assert caught.value.replies is not None
        came = [reply for reply in caught.value.replies if type(reply) is bytes]
        assert came == [b"%d" % number for number in range(len(came))]
    right(caught.value, 200, came, received[0], min(200, answered + 128))
    if end.startswith(("malformed", "a push")):
        assert isinstance(caught.value.__cause__, ProtocolError)
    assert connector.command("ECHO", "next") == b"next"
    assert connector.stats()["pending"] == 0


@pytest.mark.parametrize("answered", [0, 10, 40])
def test_a_timeout_tells_what_came_and_the_connection_goes_on(
    shell: Shell, fake: Fakes, answered: int
) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        commands = [peer.command() for _ in range(50)]
        for command in commands[:answered]:
            peer.echo(command)
        peer.wait(gate)
        for command in commands[answered:]:
            peer.echo(command)
        for command in peer.commands():
            peer.echo(command)

    server = fake(slow)
    connector = shell.connect(server.url)
    with pytest.raises(ReplyTimeout) as caught:
        connector.pipeline([("ECHO", number) for number in range(50)], timeout=0.1)
    right(caught.value, 50, [b"%d" % number for number in range(answered)], 50, 50)
    told = list(caught.value.replies or ())
    gate.set()
    assert connector.pipeline([("ECHO", "next"), ("ECHO", "too")]) == [b"next", b"too"]
    assert caught.value.replies == told, "what came later changes nothing of what was told"
    assert len(server.peers) == 1


def test_a_timeout_says_that_the_rest_was_not_sent(shell: Shell, fake: Fakes) -> None:
    """The window was never opened again; what stands behind it will never run."""

    def mute(peer: Peer) -> None:
        peer.hello()
        peer.echo(peer.command())

    server = fake(mute)
    connector = shell.connect(server.url, max_pending=8)
    with pytest.raises(ReplyTimeout) as caught:
        connector.pipeline([("ECHO", number) for number in range(100)], timeout=0.1)
    right(caught.value, 100, [b"0"], 2, 9)
    unsent = (caught.value.replies or []).index(NOT_SENT)
    connector.close()
    assert encode_command("ECHO", unsent) not in server.peers[0].received


def test_a_peer_that_takes_no_more_tells_what_it_took(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def deaf(peer: Peer) -> None:
        peer.hello()
        for command in [peer.command() for _ in range(2)]:
            peer.echo(command)
        peer.wait(gate)

    server = fake(deaf, receive_buffer=4096)
    connector = shell.connect(server.url)
    body = b"x" * (4 * MB)
    with pytest.raises(TransportError) as caught:
        connector.pipeline([("ECHO", 0), ("ECHO", 1), *[("SET", "k", body)] * 30], timeout=0.3)
    right(caught.value, 32, [b"0", b"1"], 2, 31)
    gate.set()


def test_a_server_that_cuts_a_client_off_for_what_it_holds(
    shell: Shell, lonely: tuple[str, Any]
) -> None:
    """Small replies come first, so many large ones are asked for at once."""
    url, admin = lonely
    body = b"x" * MB
    admin.set("k", body)
    admin.delete("ran")
    limit = admin.config_get("client-output-buffer-limit")["client-output-buffer-limit"]
    admin.config_set("client-output-buffer-limit", "normal 2mb 0 0")
    try:
        connector = shell.connect(url)
        commands: list[Command] = [("RPUSH", "ran", number) for number in range(100)]
        for number in range(100, 150):
            commands += [("GETRANGE", "k", 0, -1), ("RPUSH", "ran", number)]
        with pytest.raises(ConnectionLost) as caught:
            connector.pipeline(commands)
    finally:
        admin.config_set("client-output-buffer-limit", limit)
    told = caught.value.replies
    assert told is not None
    assert len(told) == 200
    assert caught.value.may_have_run
    assert told[-1] in (MAY_HAVE_RUN, NOT_SENT)
    truthful(told[:100] + told[101::2], ran(admin, "ran"))
    assert set(told[100::2]) <= {body, MAY_HAVE_RUN, NOT_SENT}
    assert connector.pipeline([("GETRANGE", "k", 0, -1)]) == [body]


def test_a_value_that_the_server_refuses_and_what_stands_behind_it(
    shell: Shell, lonely: tuple[str, Any]
) -> None:
    """Its words are the first one's answer, even where the write met a closed socket."""
    url, admin = lonely
    admin.delete("k", "behind")
    limit = admin.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
    admin.config_set("proto-max-bulk-len", MB)
    try:
        for _ in range(20):
            connector = shell.connect(url)
            with pytest.raises(ConnectionLost) as caught:
                connector.pipeline([("SET", "k", b"x" * (2 * MB)), ("INCR", "behind")])
            assert caught.value.replies is not None
            refused, behind = caught.value.replies
            assert isinstance(refused, ErrorReply)
            assert "invalid bulk length" in refused.message
            assert behind in (MAY_HAVE_RUN, NOT_SENT)
    finally:
        admin.config_set("proto-max-bulk-len", limit)
    assert admin.exists("k", "behind") == 0


def test_an_overload_at_the_start_ran_nothing(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        first = peer.command()
        peer.wait(gate)
        peer.echo(first)
        for command in peer.commands():
            peer.echo(command)

    server = fake(slow)
    connector = shell.connect(server.url, max_pending=1)
    busy = begin(connector.command, "ECHO", "busy")
    until(lambda: connector.stats()["pending"] == 1)
    with pytest.raises(Overloaded) as caught:
        connector.pipeline([("ECHO", "too much")] * 3)
    assert caught.value.replies == [NOT_SENT] * 3
    assert not caught.value.may_have_run
    gate.set()
    assert busy.result(5) == b"busy"
    assert connector.pipeline([("ECHO", "next")] * 3) == [b"next"] * 3
    assert b"too much" not in server.peers[0].received


def test_an_overload_within_a_repair_tells_what_ran_before(shell: Shell, fake: Fakes) -> None:
    """While a script is loaded, another caller takes all places but one, and two are needed."""
    loading, over = threading.Event(), threading.Event()

    def play(peer: Peer) -> None:
        peer.hello()
        said = [peer.command()[0] for _ in range(4)]
        assert said == [b"SET", b"EVALSHA", b"EVALSHA", b"INCR"]
        peer.send(b"+OK\r\n" + 2 * b"-NOSCRIPT No matching script.\r\n" + b":2\r\n")
        peer.expect("SCRIPT", "LOAD", ECHO.source)
        loading.set()
        assert [peer.command()[0] for _ in range(63)][-1] == b"EXEC"
        peer.send(b"$40\r\n%b\r\n" % ECHO.sha.encode())
        peer.wait(over)
        peer.send(b"+OK\r\n" * 63)
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(play).url, max_pending=64, timeout=PATIENCE_S)
    pipeline = begin(
        connector.pipeline, [("SET", "k", 1), ECHO((), ["a"]), ECHO((), ["b"]), ("INCR", "k")]
    )
    assert loading.wait(PATIENCE_S)
    other = begin(connector.pipeline, [("MULTI",), *[("PING",)] * 61, ("EXEC",)])
    error = pipeline.exception(PATIENCE_S)
    over.set()
    assert isinstance(error, Overloaded)
    assert error.replies == ["OK", NOT_SENT, NOT_SENT, 2]
    assert error.may_have_run, "the others of the pipeline ran"
    assert other.result(PATIENCE_S) == ["OK"] * 63
    assert connector.command("ECHO", "next") == b"next"


def test_a_plan_is_thrown_the_same_and_may_go_on(shell: Shell, fake: Fakes) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        for _ in range(3):
            peer.echo(peer.command())
        peer.close()

    thrown: list[ConnectionLost] = []

    def plan() -> Plan[Any]:
        try:
            yield [("ECHO", number) for number in range(10)]
        except ConnectionLost as error:
            thrown.append(error)
        return (yield [("ECHO", "again")])

    assert shell.connect(fake(cut, echo).url).run(plan()) == [b"again"]
    assert thrown[0].replies == [b"0", b"1", b"2", *[MAY_HAVE_RUN] * 7]
    assert thrown[0].may_have_run


def truthful(replies: list[Any], ran: list[int]) -> None:
    """What is said of commands that push their number to a list is what the list tells."""
    for number, reply in enumerate(replies):
        if reply is NOT_SENT or (isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT"):
            assert number not in ran
        elif reply is not MAY_HAVE_RUN:
            assert ran[reply - 1] == number


def ran(admin: Any, key: str) -> list[int]:
    return list(map(int, admin.lrange(key, 0, -1)))


@pytest.mark.parametrize("way", ["to_server", "to_client"])
def test_no_lie_wherever_it_is_cut(shell: Shell, server: Any, fresh_name: str, way: str) -> None:
    """Two scripts have to be loaded, and three commands of seven are a transaction."""
    checked: Counter[object] = Counter()

    def attempt(cut: int | None) -> int:
        key = f"{fresh_name}{cut}"
        one, two = (Script("s", f"{PUSH}--{next(_sources)}") for _ in "ab")
        commands: list[Command] = [
            ("RPUSH", key, 0),
            one([key], [1]),
            ("MULTI",),
            ("RPUSH", key, 3),
            ("EXEC",),
            two([key], [5]),
            ("RPUSH", key, 6),
        ]
        setattr(proxy, way, Fault(cut=cut))
        connector = shell.connect(proxy.url, protocol=2, max_pending=12)
        error: TransportError | None = None
        try:
            replies = connector.pipeline(commands)
        except TransportError as failed:
            error = failed
            replies = failed.replies or []
        link = proxy.links[-1]
        passed = int(getattr(link, way).passed)
        setattr(proxy, way, Fault())
        if error is not None:
            assert connector.command("ECHO", "next") == b"next"
        connector.close()
        link.wait_ended()

        assert len(replies) == 7
        checked.update(map(type, replies))
        checked.update(reply for reply in replies if isinstance(reply, Unanswered))
        came = ran(server.admin, key)
        opened, queued, done = replies[2:5]
        if isinstance(done, list):
            assert (opened, queued) == ("OK", "QUEUED")
            done = done[0]
        others = [replies[0], replies[1], MAY_HAVE_RUN, done, MAY_HAVE_RUN, *replies[5:]]
        truthful(others, came)
        if error is not None:
            assert error.may_have_run is any(reply is not NOT_SENT for reply in replies)
        assert error is not None or cut is None or cut >= passed
        return passed

    with Proxy((server.host, server.port)) as proxy:
        whole = attempt(None)
        for cut in range(whole):
            attempt(cut)
    assert checked[NOT_SENT]
    assert checked[MAY_HAVE_RUN]
    assert checked[int]


def test_no_lie_to_many_at_once(shell: Shell, server: Any, fresh_name: str) -> None:
    """Their commands leave in joined writes, and the connection ends anywhere among them."""
    random_ = random.Random(5)
    with Proxy((server.host, server.port)) as proxy:
        for turn in range(15):
            keys = [f"{fresh_name}:{turn}:{caller}" for caller in range(6)]
            connector = shell.connect(proxy.url, protocol=2, max_pending=64)
            link = proxy.links[-1]
            way = random_.choice([link.to_server, link.to_client])
            way.fault = Fault(cut=random_.randrange(12_000), reset=turn % 3 == 0)
            calls = []
            for key in keys:
                script = Script("s", f"{PUSH}--{next(_sources)}")
                commands: list[Command] = [("RPUSH", key, number) for number in range(60)]
                commands[::9] = [script([key], [number]) for number in range(0, 60, 9)]
                calls.append(begin(connector.pipeline, commands))
            told = []
            for call in calls:
                error = call.exception(PATIENCE_S)
                if error is None:
                    told.append(call.result())
                    continue
                assert isinstance(error, TransportError)
                if isinstance(error, (Overloaded, ConnectFailed)):
                    assert not error.may_have_run or error.replies is not None
                told.append(error.replies or [])
            connector.close()
            link.wait_ended()
            for key, replies in zip(keys, told, strict=True):
                truthful(replies, ran(server.admin, key))


@pytest.mark.parametrize("end", ["a kill", "a close"])
def test_no_lie_when_a_long_one_is_ended(
    shell: Shell, server: Any, fresh_name: str, end: str
) -> None:
    """Its replies come slowly; the server ends the connection meanwhile, or another caller does."""
    with Proxy((server.host, server.port)) as proxy:
        proxy.to_client = Fault(piece=500, delay=0.001)
        connector = shell.connect(proxy.url)
        me = connector.command("CLIENT", "ID")
        pipeline = begin(connector.pipeline, [("RPUSH", fresh_name, n) for n in range(20_000)])
        until(lambda: server.admin.llen(fresh_name) > 1000)
        if end == "a kill":
            server.admin.client_kill_filter(_id=me)
        else:
            connector.close()
        error = pipeline.exception(PATIENCE_S)
        proxy.links[-1].wait_ended()
    assert isinstance(error, ConnectionLost)
    assert error.may_have_run
    told = error.replies
    assert told is not None
    assert len(told) == 20_000
    came = server.admin.llen(fresh_name)
    answered, unsent = told.index(MAY_HAVE_RUN), told.count(NOT_SENT)
    assert told[:answered] == list(range(1, answered + 1))
    assert set(told[answered:]) == {MAY_HAVE_RUN, NOT_SENT}
    assert told[20_000 - unsent :] == [NOT_SENT] * unsent
    assert 0 < answered <= came <= 20_000 - unsent < 20_000


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_what_was_said_without_replies_may_have_run(shell: Shell, fake: Fakes, slices: int) -> None:
    """Some of it was acknowledged before the connection ended; the rest had not been written."""

    def cut(peer: Peer) -> None:
        peer.hello()
        silences = 0
        for command in peer.commands():
            if command == [b"CLIENT", b"REPLY", b"ON"]:
                silences += 1
                peer.send(b"+OK\r\n" + (b"?" if silences == slices else b""))

    connector = shell.connect(fake(cut, echo).url)
    with pytest.raises(ConnectionLost) as caught:
        connector.send([("SET", "k", number) for number in range(2000)])
    assert caught.value.may_have_run
    assert connector.command("ECHO", "next") == b"next"


# Anything at all.

words = st.one_of(
    st.binary(max_size=50),
    st.text(max_size=20).filter(lambda text: text.isascii() or _is_utf8(text)),
    st.integers(),
    st.integers(min_value=10**40, max_value=10**45),
    st.floats(allow_nan=False),
    st.sampled_from([b"x" * 70_000, "ä" * 40_000, b"y" * 300_000]),
)
singles = st.tuples(st.sampled_from(["tuple", "list", "script", "object"]), words)
pieces = st.one_of(
    singles.map(lambda single: [single]),
    st.tuples(singles, st.integers(1, 200)).map(lambda run: [run[0]] * run[1]),
    st.lists(words, max_size=3).map(lambda group: [("group", group)]),
)


def _is_utf8(text: str) -> bool:
    try:
        return bool(text.encode()) or not text
    except UnicodeEncodeError:
        return False


def _said(word: Any) -> bytes:
    return encode_command(word).split(b"\r\n", 2)[2][:-2]


def _script(word: Any) -> Command:
    return ECHO(("a key",), [word])


@pytest.mark.parametrize("kind", ["threads", "aio"])
@given(
    drawn=st.lists(pieces, max_size=12).map(lambda some: list(itertools.chain(*some))),
    max_pending=st.one_of(st.integers(5, 40), st.just(10_000)),
    protocol=st.sampled_from([2, 3]),
)
def test_any_pipeline_answers_in_order(
    server: Any, loop: Loop, kind: str, drawn: list[Any], max_pending: int, protocol: int
) -> None:
    makers: dict[str, Callable[[Any], Any]] = {
        "tuple": lambda word: ("ECHO", word),
        "list": lambda word: ["ECHO", word],
        "script": _script,
        "object": Said,
    }
    commands: list[Any] = []
    expected: list[Any] = []
    for what, word in drawn:
        if what == "group":
            commands += [("MULTI",), *[("ECHO", each) for each in word], ("EXEC",)]
            expected += ["OK", *["QUEUED"] * len(word), [_said(each) for each in word]]
        else:
            commands.append(makers[what](word))
            expected.append(_said(word))
    shell = Shell(kind, loop)
    try:
        connector = shell.connect(server.url, max_pending=max_pending, protocol=protocol)
        assert connector.pipeline(commands, timeout=30) == expected
        assert connector.stats()["pending"] == 0
    finally:
        shell.close()

"""Scripts by digest: a hit is one round trip, a miss is repaired once, and each call runs once."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from resp import (
    Command,
    ConnectionLost,
    Connector,
    EncodeError,
    EncodeTypeError,
    ErrorReply,
    Plan,
    ReplyTimeout,
    Script,
    ServerError,
    ShaMismatch,
    Tap,
    connect_async,
    encode_command,
)
from resp.script import Load, missed, repair

from .conftest import Fakes, Shell, begin, until
from .fake import Peer

NOSCRIPT: Final = b"-NOSCRIPT No matching script.\r\n"
SHA: Final = hashlib.sha1(b"return 1").hexdigest()


def make(name: str = "one") -> Script:
    return Script(name, "return 1")


def counting(tag: str) -> Script:
    """A script that counts its runs, with a digest that no other test has."""
    return Script("count", f"return redis.call('INCR', KEYS[1]) -- {tag}")


def verbs(tap: Tap) -> list[bytes]:
    """The names of the commands that were sent, in order."""
    data = b"".join(record.data for record in tap if record.sent)
    names = []
    while data:
        head, _, data = data.partition(b"\r\n")
        words = []
        for _ in range(int(head[1:])):
            size, _, data = data.partition(b"\r\n")
            words.append(data[: int(size[1:])])
            data = data[int(size[1:]) + 2 :]
        names.append(b" ".join(words[:2]) if words[0] == b"SCRIPT" else words[0])
    return names


# A script is a value.


@pytest.mark.parametrize("source", ["return 1", b"return 1", bytearray(b"return 1")])
def test_the_digest_is_the_sources(source: Any) -> None:
    script = Script("one", source)
    assert script.sha == SHA
    assert script.source == b"return 1"
    assert script.load() == encode_command("SCRIPT", "LOAD", "return 1")


def test_a_source_is_sent_as_utf8() -> None:
    assert Script("s", "return 'é'").sha == hashlib.sha1("return 'é'".encode()).hexdigest()


@pytest.mark.parametrize(
    ("keys", "args"),
    [((), ()), (["k"], []), (("k", b"l"), (1, 2.5, bytearray(b"x"))), (["k"] * 100, ["a"] * 100)],
)
def test_a_call_is_an_evalsha(keys: Any, args: Any) -> None:
    call = make()(keys, args)
    assert call.frame() == encode_command("EVALSHA", SHA, len(keys), *keys, *args)
    assert encode_command(*call) == call.frame()
    assert call.command == "EVALSHA"


def test_what_is_shown_of_a_call_is_no_argument() -> None:
    call = make()(["secret"], ["secret"])
    assert "secret" not in repr(call)
    assert "one" in repr(call)
    assert SHA in repr(make())


def test_a_miss_is_told_by_its_code() -> None:
    assert missed(ErrorReply("NOSCRIPT", "NOSCRIPT whatever it says"))
    for reply in (
        ErrorReply("ERR", "ERR NOSCRIPT"),
        ErrorReply("NOSCRIPTS", "NOSCRIPTS"),
        b"NOSCRIPT No matching script.",
        "NOSCRIPT",
        None,
    ):
        assert not missed(reply)


def test_the_rule_of_repair_without_a_server() -> None:
    first, second = make("first"), Script("second", "return 2")
    calls = [first(["a"]), second(["b"]), first(["c"])]
    plan = repair(calls, 9)
    loads = []
    load = next(plan)
    for script in (first, second):
        assert isinstance(load, Load)
        loads.append(load)
        assert (load.script, load.missed_at) == (script, 9)
        load = plan.send((script.sha.upper().encode(), True))
    assert load == calls
    with pytest.raises(StopIteration) as end:
        plan.send(([1, 2, 3], 12))
    assert end.value.value == [1, 2, 3]


GONE = ErrorReply("NOSCRIPT", "NOSCRIPT No matching script.")


def test_a_call_begins_one_load_and_rides_on_those_of_others() -> None:
    """The cache is emptied twice while 1000 callers share their loads; nobody's call is lost."""
    script = make("ridden")
    plan = repair([script(["a"])], 5)
    load = next(plan)
    assert isinstance(load, Load)
    assert load.may_begin
    plan.send((script.sha, True))
    load = plan.send(([GONE], 8))
    assert isinstance(load, Load)
    assert (load.may_begin, load.missed_at) == (False, 8)
    plan.send((script.sha, False))
    with pytest.raises(StopIteration) as end:
        plan.send((["ran"], 12))
    assert end.value.value == ["ran"]


def test_a_second_miss_stands_where_nobody_loads() -> None:
    script = make("alone")
    plan = repair([script(["a"])], 5)
    next(plan)
    plan.send((script.sha, True))
    plan.send(([GONE], 8))
    with pytest.raises(StopIteration) as end:
        plan.send(None)
    assert end.value.value == [GONE]


def test_a_noscript_of_the_scripts_own_is_never_ridden_on() -> None:
    script = make("liar")
    plan = repair([script(["a"])], 5)
    next(plan)
    plan.send((script.sha, True))
    own = ErrorReply("NOSCRIPT", "NOSCRIPT says the script")
    with pytest.raises(StopIteration) as end:
        plan.send(([own], 8))
    assert end.value.value == [own]


@pytest.mark.parametrize("keys", ["abc", b"abc", None, 5, {"a": 1}])
def test_keys_and_arguments_are_sequences(shell: Shell, server: Any, keys: Any) -> None:
    """A str would be taken apart, and the script run on the keys a, b and c."""
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    script = make("picky")
    tap.clear()
    for arguments in ((keys, ()), ((), keys)):
        with pytest.raises(EncodeTypeError, match="lists or tuples"):
            connector.eval(script, *arguments)
        with pytest.raises(EncodeTypeError, match="lists or tuples"):
            connector.pipeline([("PING",), script(*arguments)])
    with pytest.raises(EncodeTypeError, match="runs a Script"):
        connector.eval("return 1")  # type: ignore[arg-type]
    assert len(tap) == 0


@pytest.mark.parametrize("source", [None, 1, "secret \udc80"])
def test_a_source_is_text_or_bytes(source: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        Script("s", source)
    assert "secret" not in repr(caught.value)


def test_script_calls_are_values() -> None:
    script = make("value")
    assert script(["a"], [1]) == script(("a",), (1,))
    assert script(["a"], [1]) != script(["a"], [2])
    assert script(["a"]) != ("EVALSHA", script.sha, 1, "a")
    assert len({script(["a"]), script(["a"])}) == 1


# On a server.


def test_a_hit_is_one_round_trip(shell: Shell, server: Any, fresh_name: str) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    script = counting(fresh_name)
    assert connector.eval(script, [fresh_name]) == 1
    tap.clear()
    assert connector.eval(script, [fresh_name]) == 2
    records = list(tap)
    assert [record.sent for record in records] == [True, False]
    assert records[0].data == encode_command("EVALSHA", script.sha, 1, fresh_name)
    assert records[1].data == b":2\r\n"


def test_a_miss_is_three(shell: Shell, server: Any, fresh_name: str) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    script = counting(fresh_name)
    tap.clear()
    assert connector.eval(script, [fresh_name]) == 1
    evalsha = encode_command("EVALSHA", script.sha, 1, fresh_name)
    assert [record.data for record in tap if record.sent] == [evalsha, script.load(), evalsha]
    assert [record.sent for record in tap] == [True, False] * 3
    stats = connector.stats()
    assert (stats["script_loads"], stats["evalsha_calls"]) == (1, 2)


def test_through_every_way_in(connector: Connector, server: Any, fresh_name: str) -> None:
    def plan(step: Any) -> Plan[Any]:
        return (yield step)

    ways: list[Callable[[Script], Any]] = [
        lambda script: connector.eval(script, (fresh_name,), (1,)),
        lambda script: connector.eval(script, [fresh_name], [1]),
        lambda script: connector.run(plan(script([fresh_name], [1]))),
        lambda script: connector.run(plan([script([fresh_name], [1])]))[0],
        lambda script: connector.pipeline([script([fresh_name], [1])])[0],
        lambda script: connector.command("EVALSHA", script.sha, 1, fresh_name),
    ]
    script = counting(fresh_name)
    for number, way in enumerate(ways, 1):
        if number < len(ways):
            server.admin.script_flush()
        assert way(script) == number


def test_a_script_that_fails_is_run_once(connector: Connector, fresh_name: str) -> None:
    script = Script(
        "fail",
        f"redis.call('INCR', KEYS[1]) return redis.error_reply('EMQSTALE no') -- {fresh_name}",
    )
    for runs in (1, 2):  # a miss, and a hit
        with pytest.raises(ServerError) as caught:
            connector.eval(script, [fresh_name])
        assert (caught.value.code, caught.value.message) == ("EMQSTALE", "EMQSTALE no")
        assert caught.value.command == "EVALSHA"
        assert connector.command("GET", fresh_name) == b"%d" % runs


def test_a_script_whose_own_error_begins_with_noscript(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    script = Script("liar", f"return redis.error_reply('NOSCRIPT fake') -- {fresh_name}")
    for cold in (True, False):
        tap.clear()
        with pytest.raises(ServerError) as caught:
            connector.eval(script)
        assert caught.value.code == "NOSCRIPT"
        assert verbs(tap) == [b"EVALSHA", b"SCRIPT LOAD", b"EVALSHA"], f"cold={cold}"
        assert [reply.code for reply in connector.pipeline([script()])] == ["NOSCRIPT"]


def test_a_script_that_cannot_be_compiled(connector: Connector, fresh_name: str) -> None:
    script = Script("broken", f"return return -- {fresh_name}")
    with pytest.raises(ServerError, match="Error compiling script") as caught:
        connector.eval(script)
    assert caught.value.command == "SCRIPT LOAD"
    assert connector.command("PING") == "PONG"


def test_two_scripts_with_one_source(shell: Shell, server: Any, fresh_name: str) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    tap.clear()
    one, two = counting(fresh_name), counting(fresh_name)
    assert connector.pipeline([one([fresh_name]), two([fresh_name])]) == [1, 2]
    assert verbs(tap).count(b"SCRIPT LOAD") == 1
    assert connector.eval(two, [fresh_name]) == 3


def test_a_script_loaded_for_good_outlives_others(
    connector: Connector, server: Any, fresh_name: str
) -> None:
    """A server evicts what came by EVAL; what came by SCRIPT LOAD stays."""
    script = counting(fresh_name)
    connector.eval(script, [fresh_name])
    connector.pipeline([("EVAL", f"return {number} -- {fresh_name}", 0) for number in range(600)])
    loads = connector.stats()["script_loads"]
    assert connector.eval(script, [fresh_name]) == 2
    assert connector.stats()["script_loads"] == loads


# In a pipeline.


def test_missed_calls_of_a_pipeline_keep_their_places(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    scripts = [
        Script(name, f"redis.call('RPUSH', KEYS[1], ARGV[1]) return ARGV[1] -- {name}{fresh_name}")
        for name in "abc"
    ]
    warm = scripts[1]
    connector.eval(warm, [fresh_name], ["warm"])
    tap.clear()
    replies = connector.pipeline(
        [
            ("SET", fresh_name + "n", 1),
            scripts[0]([fresh_name], ["0"]),
            ("INCR", fresh_name + "n"),
            scripts[2]([fresh_name], ["1"]),
            warm([fresh_name], ["2"]),
            scripts[0]([fresh_name], ["3"]),
            ("INCR", fresh_name),
            scripts[2]([fresh_name], ["4"]),
            ("GET", fresh_name + "n"),
        ]
    )
    assert replies[:6] == ["OK", b"0", 2, b"1", b"2", b"3"]
    assert isinstance(replies[6], ErrorReply)
    assert replies[7:] == [b"4", b"2"]
    # The hit ran with the pipeline; those that missed ran after it, in their order.
    assert connector.command("LRANGE", fresh_name, 0, -1) == [b"warm", b"2", b"0", b"1", b"3", b"4"]
    sent = Counter(verbs(tap))
    assert sent[b"SCRIPT LOAD"] == 2
    assert sent[b"EVALSHA"] == 5 + 4
    assert sent[b"INCR"] == 2
    assert connector.stats()["pending"] == 0


def test_a_long_pipeline_of_misses(connector: Connector, fresh_name: str) -> None:
    script = counting(fresh_name)
    assert connector.pipeline([script([fresh_name])] * 1000) == list(range(1, 1001))
    assert connector.stats()["script_loads"] == 1


def test_a_plan_of_steps_that_miss(connector: Connector, server: Any, fresh_name: str) -> None:
    script = counting(fresh_name)

    def plan() -> Plan[list[Any]]:
        replies = [(yield script([fresh_name]))]
        server.admin.script_flush()
        both: list[Command] = [script([fresh_name]), ("GET", fresh_name)]
        replies += yield both
        server.admin.script_flush()
        replies += [(yield script([fresh_name]))]
        return replies

    assert connector.run(plan()) == [1, 2, b"1", 3]


# What a real server never answers.


def load_answered_with(answer: bytes, then: Callable[[Peer], None] | None = None) -> Any:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.expect("EVALSHA", SHA, 0)
        peer.send(NOSCRIPT)
        peer.expect("SCRIPT", "LOAD", "return 1")
        peer.send(answer)
        if then is not None:
            then(peer)

    return play


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (b"$40\r\n%b\r\n" % (b"0" * 40), b"0" * 40),
        (b"+%b\r\n" % (b"0" * 40), "0" * 40),
        (b"$39\r\n%b\r\n" % SHA[:39].encode(), SHA[:39].encode()),
        (b"$41\r\n%b \r\n" % SHA.encode(), SHA.encode() + b" "),
        (b":1\r\n", 1),
        (b"$-1\r\n", None),
        (b"_\r\n", None),
        (b"*1\r\n$40\r\n%b\r\n" % SHA.encode(), [SHA.encode()]),
        (b"+OK\r\n", "OK"),
        (b"$0\r\n\r\n", b""),
    ],
)
def test_another_digest_is_refused(shell: Shell, fake: Fakes, answer: bytes, got: object) -> None:
    server = fake(load_answered_with(answer, lambda peer: peer.echo(peer.command())))
    connector = shell.connect(server.url)
    with pytest.raises(ShaMismatch) as caught:
        connector.eval(make())
    assert (caught.value.expected, caught.value.got) == (SHA, got)
    assert connector.command("ECHO", "next") == b"next"
    assert server.peers[0].received.count(b"EVALSHA") == 1, "the script was not run"


@pytest.mark.parametrize(
    "answer",
    [
        b"$40\r\n%b\r\n" % SHA.encode(),
        b"$40\r\n%b\r\n" % SHA.upper().encode(),
        b"+%b\r\n" % SHA.encode(),
        b"+%b\r\n" % SHA.upper().encode(),
        b"=44\r\ntxt:%b\r\n" % SHA.encode(),
    ],
)
def test_the_right_digest_is_accepted_in_any_case(shell: Shell, fake: Fakes, answer: bytes) -> None:
    def run(peer: Peer) -> None:
        peer.expect("EVALSHA", SHA, 0)
        peer.send(b":1\r\n")

    assert shell.connect(fake(load_answered_with(answer, run)).url).eval(make()) == 1


def test_a_load_that_is_refused(shell: Shell, fake: Fakes) -> None:
    server = fake(load_answered_with(b"-NOPERM no\r\n", lambda peer: peer.echo(peer.command())))
    connector = shell.connect(server.url)
    with pytest.raises(ServerError) as caught:
        connector.eval(make())
    assert (caught.value.code, caught.value.command) == ("NOPERM", "SCRIPT LOAD")
    assert connector.command("ECHO", "next") == b"next"


def test_a_server_that_always_misses_is_asked_twice(shell: Shell, fake: Fakes) -> None:
    def forgetful(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            if command[0] == b"SCRIPT":
                peer.send(b"$40\r\n%b\r\n" % SHA.encode())
            elif command[0] == b"ECHO":
                peer.echo(command)
            else:
                peer.send(b"-NOSCRIPT No matching script. Please use EVAL.\r\n")

    server = fake(forgetful)
    connector = shell.connect(server.url)
    for rounds in (1, 2):
        with pytest.raises(ServerError) as caught:
            connector.eval(make())
        assert caught.value.code == "NOSCRIPT"
        assert server.peers[0].received.count(b"EVALSHA") == 2 * rounds
    replies = connector.pipeline([("ECHO", "a"), make()(), ("ECHO", "b")])
    assert replies[0::2] == [b"a", b"b"]
    assert replies[1].code == "NOSCRIPT"


def test_a_connection_cut_during_the_load_ran_nothing(shell: Shell, fake: Fakes) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.send(NOSCRIPT)
        peer.expect("SCRIPT", "LOAD", "return 1")
        peer.close()

    connector = shell.connect(fake(cut).url)
    with pytest.raises(ConnectionLost) as caught:
        connector.eval(make())
    assert not caught.value.may_have_run


def test_a_connection_cut_after_the_load_may_have_run_the_script(shell: Shell, fake: Fakes) -> None:
    def cut(peer: Peer) -> None:
        peer.expect("EVALSHA", SHA, 0)
        peer.close()

    server = fake(load_answered_with(b"$40\r\n%b\r\n" % SHA.encode(), cut))
    with pytest.raises(ConnectionLost) as caught:
        shell.connect(server.url).eval(make())
    assert caught.value.may_have_run


def test_a_pipeline_cut_during_the_load_has_run_its_other_commands(
    shell: Shell, fake: Fakes
) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        for answer in (b"+OK\r\n", NOSCRIPT, b":2\r\n"):
            peer.command()
            peer.send(answer)
        peer.expect("SCRIPT", "LOAD", "return 1")
        peer.close()

    connector = shell.connect(fake(cut).url)
    with pytest.raises(ConnectionLost) as caught:
        connector.pipeline([("SET", "a", 1), make()(), ("INCR", "a")])
    assert caught.value.may_have_run


def test_the_timeout_of_a_call_bounds_its_repair(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def slow(peer: Peer) -> None:
        peer.wait(gate)
        peer.send(b"$40\r\n%b\r\n" % SHA.encode())
        peer.expect("EVALSHA", SHA, 0)
        peer.send(b":1\r\n")

    connector = shell.connect(fake(load_answered_with(b"", slow)).url)
    with pytest.raises(ReplyTimeout) as caught:
        connector.eval(make(), timeout=0.05)
    assert not caught.value.may_have_run
    gate.set()
    assert connector.eval(make()) == 1


def joined(connector: Any) -> int:
    """How many callers wait for a load; nothing public tells."""
    link = connector._link
    return sum(len(load.joined) for load in link.protocol._loads.values())


def both_miss(load: threading.Event, answer: bytes) -> Any:
    """Two calls miss before a load is asked for; the load is answered when told."""

    def play(peer: Peer) -> None:
        peer.hello()
        first, second = peer.command(), peer.command()
        assert first[:2] == second[:2] == [b"EVALSHA", SHA.encode()]
        peer.send(NOSCRIPT + NOSCRIPT)
        peer.expect("SCRIPT", "LOAD", "return 1")
        peer.wait(load)
        peer.send(answer)
        for command in peer.commands():
            assert command[0] == b"EVALSHA"
            peer.send(b":%b\r\n" % command[-1])

    return play


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_loader_that_left_does_not_take_the_others_along(
    shell: Shell, fake: Fakes, leaves: int
) -> None:
    """One of the two is the loader; whichever leaves, the other gets its answer."""
    load = threading.Event()
    server = fake(both_miss(load, b"$40\r\n%b\r\n" % SHA.encode()))
    connector = shell.connect(server.url)
    calls = []
    for number in range(2):
        timeout = 0.2 if number == leaves else 5
        calls.append(begin(connector.eval, make(), (), (number,), timeout=timeout))
        until(lambda: connector.stats()["evalsha_calls"] or connector.stats()["pending"])
    with pytest.raises(ReplyTimeout) as caught:
        calls[leaves].result(5)
    assert not caught.value.may_have_run
    assert joined(connector) == 2
    load.set()
    assert calls[1 - leaves].result(5) == 1 - leaves
    assert server.peers[0].received.count(b"LOAD") == 1


@pytest.mark.parametrize(
    ("answer", "kind"), [(b"-NOPERM no\r\n", ServerError), (b":1\r\n", ShaMismatch)]
)
def test_a_load_that_fails_fails_all_who_shared_it(
    shell: Shell, fake: Fakes, answer: bytes, kind: type[Exception]
) -> None:
    load = threading.Event()
    server = fake(both_miss(load, answer))
    connector = shell.connect(server.url)
    calls = [begin(connector.eval, make(), (), (number,)) for number in range(2)]
    until(lambda: getattr(connector, "_link", None) and joined(connector) == 2)
    load.set()
    for call in calls:
        assert isinstance(call.exception(5), kind)
    assert server.peers[0].received.count(b"EVALSHA") == 2
    assert server.peers[0].received.count(b"LOAD") == 1


# A cache that is flushed while many call.


def run_threads(count: int, work: Callable[[int], None]) -> None:
    start = threading.Barrier(count)

    def go(number: int) -> None:
        start.wait(10)
        work(number)

    for call in [begin(go, number) for number in range(count)]:
        call.result(60)


def test_fifty_threads_on_a_cold_cache_load_once(server: Any, fresh_name: str, loop: Any) -> None:
    shell = Shell("threads", loop)
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    scripts = [counting(f"{fresh_name}{number}") for number in range(3)]
    tap.clear()
    before = server.admin.info("commandstats").get("cmdstat_script|load", {}).get("calls", 0)
    runs: list[Any] = []

    def work(number: int) -> None:
        for script in scripts:
            runs.append((script.sha, connector.eval(script, [fresh_name + script.sha])))

    run_threads(50, work)
    shell.close()
    for script in scripts:
        assert sorted(run for sha, run in runs if sha == script.sha) == list(range(1, 51))
    assert verbs(tap).count(b"SCRIPT LOAD") == len(scripts)
    after = server.admin.info("commandstats")["cmdstat_script|load"]["calls"]
    assert after - before == len(scripts)


def test_fifty_threads_while_the_cache_is_flushed(server: Any, fresh_name: str, loop: Any) -> None:
    shell = Shell("threads", loop)
    connector = shell.connect(server.url, timeout=30)
    script = counting(fresh_name)
    runs: list[Any] = []
    refused: list[str] = []
    over = threading.Event()

    def flush() -> None:
        while not over.is_set():
            server.admin.script_flush()

    def work(number: int) -> None:
        for _ in range(20):
            try:
                runs.append(connector.eval(script, [fresh_name]))
            except ServerError as error:  # flushed between its load and its second try
                refused.append(error.code)

    flusher = begin(flush)
    run_threads(50, work)
    over.set()
    flusher.result(10)
    assert len(runs) + len(refused) == 1000
    assert set(refused) <= {"NOSCRIPT"}
    assert sorted(runs) == list(range(1, len(runs) + 1))
    assert int(server.admin.get(fresh_name)) == len(runs)
    stats = connector.stats()
    assert stats["pending"] == 0
    assert 2 <= int(stats["script_loads"]) <= 1000
    shell.close()


async def _tasks(url: str, admin: Any, name: str, flushing: bool) -> Tap:
    tap = Tap(1_000_000)
    script = counting(name)
    flushes = 0
    async with await connect_async(url, tap=tap, timeout=30) as connector:
        tap.clear()
        over = asyncio.Event()

        async def flush() -> None:
            nonlocal flushes
            async with await connect_async(url) as other:
                while not over.is_set():
                    await other.command("SCRIPT", "FLUSH")
                    flushes += 1

        flusher = asyncio.create_task(flush()) if flushing else None
        answers = await asyncio.gather(
            *(connector.eval(script, [name]) for _ in range(1000)), return_exceptions=True
        )
        if flushing:
            answers += await asyncio.gather(
                *(connector.eval(script, [name]) for _ in range(1000)), return_exceptions=True
            )
        over.set()
        if flusher is not None:
            await flusher
            assert flushes
        assert connector.stats()["pending"] == 0
    runs = [answer for answer in answers if isinstance(answer, int)]
    refused = [answer for answer in answers if not isinstance(answer, int)]
    assert sorted(runs) == list(range(1, len(runs) + 1))
    assert int(admin.get(name)) == len(runs)
    assert all(isinstance(error, ServerError) and error.code == "NOSCRIPT" for error in refused)
    assert flushing or not refused
    return tap


def test_a_thousand_tasks_on_a_cold_cache_load_once(server: Any, fresh_name: str) -> None:
    tap = asyncio.run(_tasks(server.url, server.admin, fresh_name, flushing=False))
    sent = Counter(verbs(tap))
    assert sent[b"SCRIPT LOAD"] == 1
    assert sent[b"EVALSHA"] <= 2000


def test_a_thousand_tasks_while_the_cache_is_flushed(server: Any, fresh_name: str) -> None:
    asyncio.run(_tasks(server.url, server.admin, fresh_name, flushing=True))


@pytest.mark.parametrize("size", [2, 300])
def test_pipelines_of_threads_while_the_cache_is_flushed(
    server: Any, fresh_name: str, size: int, loop: Any
) -> None:
    shell = Shell("threads", loop)
    connector = shell.connect(server.url, timeout=30)
    script = counting(fresh_name)
    runs: list[Any] = []

    def work(number: int) -> None:
        for turn in range(5):
            if number == 0:
                server.admin.script_flush()
            commands: list[Any] = [script([fresh_name]), ("ECHO", f"{number}.{turn}")] * size
            replies = connector.pipeline(commands)
            assert replies[1::2] == [b"%d.%d" % (number, turn)] * size
            runs.extend(reply for reply in replies[0::2] if not isinstance(reply, ErrorReply))

    run_threads(8, work)
    assert sorted(runs) == list(range(1, len(runs) + 1))
    assert int(server.admin.get(fresh_name)) == len(runs)
    shell.close()


def test_a_script_that_says_denied_is_no_refusal(shell: Shell, server: Any) -> None:
    """It ran, so nothing may say that it did not, and the connection stands."""
    script = Script("denied", "return redis.error_reply('DENIED Valkey has too many')")
    connector = shell.connect(server.url)
    for _ in range(2):
        with pytest.raises(ServerError, match="DENIED"):
            connector.eval(script)
    with pytest.raises(ServerError, match="DENIED"):
        connector.command("EVALSHA", script.sha, 0)
    assert connector.stats()["reconnects"] == 0

"""Plans and pipelines: what may be sent, in what order, and what a plan is told."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp import (
    Command,
    ConnectFailed,
    ConnectionLost,
    Connector,
    EncodeError,
    EncodeTypeError,
    ErrorReply,
    Plan,
    RefusedCommand,
    ReplyTimeout,
    Script,
    ServerError,
    Tap,
    TransportError,
    Unanswered,
)
from resp.encode import Rows, encode_command
from resp.plan import (
    WINDOW,
    Pace,
    boot_frame,
    command_name,
    frame,
    prepare,
    run,
    run_async,
    slices,
)

from .conftest import Fakes, Shell, begin
from .fake import Peer

Drive = Callable[..., Any]


def _run_async(plan: Plan[Any], exchange: Callable[[Any], Any], **options: Any) -> Any:
    async def answer(step: Any) -> Any:
        return exchange(step)

    return asyncio.run(run_async(plan, answer, **options))


@pytest.fixture(params=[run, _run_async], ids=["run", "run_async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """Both drivers of plans."""
    drive: Drive = request.param
    return drive


# Plans, without a server.


def test_a_plan_receives_the_answer_to_each_step(drive: Drive) -> None:
    def plan() -> Plan[list[Any]]:
        one = yield ("A",)
        both: list[Command] = [("B",), ("C",)]
        many = yield both
        none = yield ("D",)
        return [one, many, none]

    answers = {("A",): 1, ("D",): None}
    asked: list[Any] = []

    def exchange(step: Any) -> Any:
        asked.append(step)
        return [2, 3] if isinstance(step, list) else answers[step]

    assert drive(plan(), exchange) == [1, [2, 3], None]
    assert asked == [("A",), [("B",), ("C",)], ("D",)]


def test_a_plan_without_a_step(drive: Drive) -> None:
    def plan() -> Plan[int]:
        return 7
        yield ("NEVER",)

    assert drive(plan(), pytest.fail) == 7


def test_a_failure_is_thrown_in_and_may_be_caught(drive: Drive) -> None:
    lost = ConnectionLost("cut")
    caught: list[TransportError] = []

    def plan() -> Plan[Any]:
        try:
            yield ("A",)
        except TransportError as error:
            caught.append(error)
            return (yield ("B",))

    def exchange(step: Any) -> Any:
        if step == ("A",):
            raise lost
        return "after"

    assert drive(plan(), exchange) == "after"
    assert caught == [lost]


def test_a_failure_that_is_not_caught_leaves_by_the_plan(drive: Drive) -> None:
    cleaned: list[bool] = []

    def plan() -> Plan[None]:
        try:
            yield ("A",)
        finally:
            cleaned.append(True)

    def exchange(step: Any) -> Any:
        raise ConnectionLost("cut")

    with pytest.raises(ConnectionLost, match="cut"):
        drive(plan(), exchange)
    assert cleaned == [True]


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("whole", [True, False])
def test_whether_an_error_tells_of_the_steps_before(
    drive: Drive, whole: bool, failing: int
) -> None:
    def plan() -> Plan[None]:
        yield ("INCR", "first")
        yield ("INCR", "second")

    steps = iter([1, 2])

    def exchange(_: Any) -> int:
        if (step := next(steps)) == failing:
            raise ConnectFailed("nobody listens")
        return step

    with pytest.raises(ConnectFailed) as caught:
        drive(plan(), exchange, whole=whole)
    assert caught.value.may_have_run == (whole and failing == 2)


def test_a_plan_that_went_on_after_a_loss_does_not_deny_it(drive: Drive) -> None:
    def plan() -> Plan[None]:
        with contextlib.suppress(ConnectionLost):
            yield ("INCR", "first")
        yield ("INCR", "second")

    errors = iter([ConnectionLost("gone"), ConnectFailed("nobody listens")])

    def exchange(_: Any) -> int:
        raise next(errors)

    with pytest.raises(ConnectFailed) as caught:
        drive(plan(), exchange, whole=True)
    assert caught.value.may_have_run


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, ZeroDivisionError])
def test_what_is_no_failure_of_the_connection_closes_the_plan(
    drive: Drive, interrupt: type[BaseException]
) -> None:
    seen: list[type[BaseException]] = []

    def plan() -> Plan[None]:
        try:
            yield ("A",)
        except BaseException as error:
            seen.append(type(error))
            raise

    running = plan()

    def exchange(step: Any) -> Any:
        raise interrupt

    with pytest.raises(interrupt):
        drive(running, exchange)
    assert seen == [GeneratorExit]
    assert inspect.getgeneratorstate(running) == inspect.GEN_CLOSED


def test_a_plan_may_raise_what_it_wants(drive: Drive) -> None:
    def plan() -> Plan[None]:
        yield ("A",)
        raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        drive(plan(), lambda step: "x")


# Commands.


class Named(NamedTuple):
    verb: str
    key: str


@pytest.mark.parametrize(
    "command",
    [
        ("GET", "k"),
        ["GET", "k"],
        Named("GET", "k"),
        (b"GET", b"k"),
        (bytearray(b"GET"), memoryview(b"k")),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_is_a_sequence_of_arguments(command: Any) -> None:
    assert frame(command) == b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"


@pytest.mark.parametrize("command", ["PING", b"PING", 5, None, {"a": 1}, {1, 2}])
def test_what_is_no_command_is_refused(command: Any) -> None:
    with pytest.raises(EncodeTypeError):
        frame(command)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("get", "secret"), "GET"),
        ((b"get", b"secret"), "GET"),
        ((bytearray(b"get"),), "GET"),
        ((), ""),
        (("\x1b[2J",), "\\x1b[2J"),
        (("x" * 1000,), "X" * 64),
        ((b"\x01\xd7",), "\\x01\\xd7"),
    ],
)
def test_the_name_of_a_command_is_safe_to_print(command: Any, name: str) -> None:
    assert command_name(command) == name


def test_the_name_of_a_script_call() -> None:
    assert command_name(Script("s", "return 1")(["secret"])) == "EVALSHA"


REFUSED = [
    ("SUBSCRIBE", "c"),
    ("PSUBSCRIBE", "c*"),
    ("SSUBSCRIBE", "c"),
    ("UNSUBSCRIBE",),
    ("PUNSUBSCRIBE",),
    ("SUNSUBSCRIBE",),
    ("MONITOR",),
    ("SYNC",),
    ("PSYNC", "?", -1),
    ("CLIENT", "REPLY", "OFF"),
    ("HELLO", 2),
    ("RESET",),
    ("QUIT",),
    ("SELECT", 5),
]


def _spellings(command: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    def words(change: Callable[[str], Any]) -> tuple[Any, ...]:
        return tuple(change(word) if isinstance(word, str) else word for word in command)

    return [
        command,
        words(str.lower),
        words(str.capitalize),
        words(str.encode),
        words(lambda word: word.lower().encode()),
        words(lambda word: bytearray(word.encode())),
        words(lambda word: memoryview(word.encode())),
    ]


@pytest.mark.parametrize("command", REFUSED, ids=lambda command: " ".join(map(str, command)))
def test_what_changes_the_meaning_of_replies_is_refused(
    shell: Shell, server: Any, command: tuple[Any, ...]
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    connector.command("CLIENT", "ID")
    before = len(tap)

    def plan(step: Any) -> Plan[Any]:
        return (yield step)

    for spelling in _spellings(command):
        ways: list[Callable[[Any], Any]] = [
            lambda refused: connector.command(*refused),
            lambda refused: connector.pipeline([("PING",), refused]),
            lambda refused: connector.pipeline([("PING",), list(refused)]),  # type: ignore[list-item]
            lambda refused: connector.run(plan(refused)),
            lambda refused: connector.run(plan([("PING",), refused])),
        ]
        for way in ways:
            with pytest.raises(RefusedCommand, match=command[0]):
                way(spelling)
    assert len(tap) == before
    assert connector.command("PING") == "PONG"


def test_a_refusal_names_the_right_verb() -> None:
    for command, verb in ((("QUIT",), "close()"), (("HELLO", 3), "connect(")):
        with pytest.raises(RefusedCommand, match="cannot be sent") as caught:
            frame(command)
        assert verb in str(caught.value)


def test_many_names_pass_and_are_not_all_remembered() -> None:
    from resp import plan

    for number in range(3000):
        frame((f"NAME{number}",))
    assert len(plan._heads) <= 1000
    assert "NAME2999" in plan._heads, "a name that came when many had come before"
    frame(("N" * 1000,))
    assert "N" * 1000 not in plan._heads
    with pytest.raises(RefusedCommand):
        frame(("QUIT",))
    assert boot_frame(("QUIT",)) == b"*1\r\n$4\r\nQUIT\r\n"


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 5000])
@pytest.mark.parametrize("max_pending", [1, 3, 8, 10_000])
def test_slices_hold_every_command_once_in_order(count: int, max_pending: int) -> None:
    commands: list[Any] = [("ECHO", number) for number in range(count)]
    cut = cut_all(commands, max_pending)
    assert b"".join(data for data, _ in cut) == b"".join(
        encode_command(*command) for command in commands
    )
    assert sum(held for _, held in cut) == count
    assert all(held for _, held in cut)
    if max_pending >= WINDOW:
        assert all(held * WINDOW <= max_pending for _, held in cut)


def cut_all(commands: list[Any], max_pending: int = 10_000) -> list[tuple[bytes, int]]:
    """All slices of `commands`, by the pace of small replies."""
    pace = Pace(max_pending)
    pace.learn(1, 5)
    return list(slices(prepare(commands, max_pending), pace))


def test_a_slice_ends_when_it_is_long_enough() -> None:
    cut = cut_all([("SET", "k", b"x" * 60_000)] * 4)
    assert [held for _, held in cut] == [2, 2]


def test_the_pace_follows_what_the_replies_weigh() -> None:
    pace = Pace(10_000)
    assert (pace.most, pace.window) == (32, 2)  # nothing is known yet
    pace.learn(10, 50)
    assert (pace.most, pace.window) == (256, WINDOW)
    pace.learn(10, 10 * 32_768)
    assert pace.most == 32
    pace.learn(1, 16 << 20)
    assert pace.most == 1
    pace.learn(0, 0)
    assert pace.most == 256


def test_a_slice_is_made_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server works on the first slices while the rest is encoded."""
    made: list[int] = []
    encode = Rows.encode

    def told(rows: Rows, start: int, most: int, size: int) -> tuple[bytes, int]:
        data, count = encode(rows, start, most, size)
        made.append(count)
        return data, count

    monkeypatch.setattr(Rows, "encode", told)
    script = Script("s", "return 1")
    calls = [script(["k"], [number]) for number in range(300)]
    for commands in ([("ECHO", number) for number in range(300)], calls):
        frame(commands[0])
        made.clear()
        cut = slices(prepare(commands, 10_000), Pace(10_000))
        assert made == []
        next(cut)
        assert made == [32]


_SAME_FORM = st.one_of(
    st.tuples(st.just("ECHO%d"), st.text(st.characters(max_codepoint=127))),
    st.tuples(st.just(b"a%s\xff"), st.binary(), st.integers(), st.text(max_size=3)),
    st.tuples(st.just("SET"), st.text(), st.floats(allow_nan=False), st.just(bytearray(b"x"))),
)


@given(st.lists(_SAME_FORM, min_size=1, max_size=30), st.integers(1, 40))
def test_commands_of_one_form_are_the_same_bytes(commands: list[Any], most: int) -> None:
    commands = [commands[0], *(each for each in commands if each[0] == commands[0][0])] * 5
    frame(commands[0])
    pace = Pace(10_000)
    pace.most = most
    cut = list(slices(prepare(commands, 10_000), pace))
    assert b"".join(data for data, _ in cut) == b"".join(map(frame, commands))
    assert sum(held for _, held in cut) == len(commands)
    assert max(held for _, held in cut) <= most


@given(st.lists(st.tuples(st.text(), st.integers(), st.binary()), min_size=8, max_size=30))
def test_calls_of_one_script_are_the_same_bytes(rows: list[tuple[str, int, bytes]]) -> None:
    script = Script("s", "return 1")
    calls = [script([key], (number, data)) for key, number, data in rows]
    cut = list(slices(prepare(calls, 10_000), Pace(10_000)))
    assert b"".join(data for data, _ in cut) == b"".join(call.frame() for call in calls)


# Pipelines.


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 512, 513, 5000])
def test_a_pipeline_answers_in_order(connector: Connector, count: int) -> None:
    commands = [("ECHO", number) for number in range(count)]
    assert connector.pipeline(commands) == [b"%d" % number for number in range(count)]
    assert connector.stats()["pending"] == 0


def test_an_empty_pipeline_sends_nothing(shell: Shell, server: Any) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    before = len(tap)
    assert connector.pipeline([]) == []
    assert connector.pipeline(iter(())) == []
    assert len(tap) == before


def test_a_pipeline_may_be_any_iterable(connector: Connector) -> None:
    assert connector.pipeline(("ECHO", word) for word in "abc") == [b"a", b"b", b"c"]


def test_error_replies_of_a_pipeline_are_values(connector: Connector, fresh_name: str) -> None:
    replies = connector.pipeline(
        [
            ("SET", fresh_name, "text"),
            ("INCR", fresh_name),
            ("NOSUCHCOMMAND",),
            ("", "an empty name"),
            ("GET", fresh_name),
        ]
    )
    assert replies[0] == "OK"
    assert isinstance(replies[1], ErrorReply)
    assert replies[1].message == "ERR value is not an integer or out of range"
    assert [reply.code for reply in replies[2:4]] == ["ERR", "ERR"]
    assert replies[4] == b"text"


@pytest.mark.parametrize("max_pending", [1, 2, 5, 100])
def test_a_pipeline_is_larger_than_max_pending(shell: Shell, server: Any, max_pending: int) -> None:
    connector = shell.connect(server.url, max_pending=max_pending)
    assert connector.pipeline([("ECHO", number) for number in range(600)]) == [
        b"%d" % number for number in range(600)
    ]
    assert connector.stats()["overloads"] == 0


def test_a_pipeline_owes_no_more_than_its_window(shell: Shell, fake: Fakes) -> None:
    owed: list[int] = []

    def serve(peer: Peer) -> None:
        peer.hello()
        for number, command in enumerate(peer.commands()):
            if number % 50 == 0:
                owed.append(int(connector.stats()["pending"]))
            peer.echo(command)

    connector = shell.connect(fake(serve).url, max_pending=100)
    assert len(connector.pipeline([("ECHO", number) for number in range(2000)])) == 2000
    assert max(owed) <= 100


def test_large_replies_stream(connector: Connector, fresh_name: str) -> None:
    body = b"x" * (1 << 20)
    connector.command("SET", fresh_name, body)
    replies = connector.pipeline([("GET", fresh_name)] * 200, timeout=60)
    assert len(replies) == 200
    assert all(reply == body for reply in replies)


def test_large_commands_with_large_replies_stream(connector: Connector) -> None:
    bodies = [bytes([number]) * (1 << 20) for number in range(40)]
    assert connector.pipeline([("ECHO", body) for body in bodies], timeout=60) == bodies


def test_a_server_that_writes_before_it_reads_on(shell: Shell, fake: Fakes) -> None:
    """Both directions are full: the shell reads while it writes."""
    big = 8 << 20

    def write_first(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.send(b"$%d\r\n%b\r\n" % (big, command[-1][:1] * big))

    connector = shell.connect(fake(write_first, receive_buffer=16_384).url)
    replies = connector.pipeline([("ECHO", b"%d" % n + b"x" * big) for n in range(3)], timeout=30)
    assert replies == [b"%d" % n * big for n in range(3)]
    assert connector.command("ECHO", b"7" + b"x" * big, timeout=30) == b"7" * big


def test_bytes_that_trickle_in(shell: Shell, fake: Fakes) -> None:
    def slow(peer: Peer) -> None:
        peer.hello()
        commands = [peer.command() for _ in range(3)]
        peer.trickle(
            b"*2\r\n$2\r\n\r\n\r\n:1\r\n>2\r\n+news\r\n_\r\n-ERR no\r\n%1\r\n+a\r\n,1.5\r\n"
        )
        assert len(commands) == 3

    connector = shell.connect(fake(slow).url)
    assert connector.pipeline([("A",), ("B",), ("C",)]) == [
        [b"\r\n", 1],
        ErrorReply("ERR", "ERR no"),
        {"a": 1.5},
    ]
    assert connector.stats()["pushes"] == 1


# Plans, with a server.


def test_a_plan_over_a_connector(connector: Connector, fresh_name: str) -> None:
    def swap(key: str, value: bytes) -> Plan[list[Any]]:
        before = yield ("GET", key)
        commands: list[Command] = [("SET", key, value), ("INCR", key), ("GET", key)]
        several = yield commands
        nothing = yield []
        refused = yield ("INCR", key)
        return [before, *several, nothing, refused]

    before, stored, error, after, nothing, refused = connector.run(swap(fresh_name, b"new"))
    assert (before, stored, after, nothing) == (None, "OK", b"new", [])
    assert isinstance(error, ErrorReply)
    assert refused == error


def test_a_plan_may_catch_the_loss_of_its_connection(shell: Shell, fake: Fakes) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        peer.expect("ECHO", "first")
        peer.close()

    def serve(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.echo(command)

    def plan() -> Plan[Any]:
        try:
            yield ("ECHO", "first")
        except ConnectionLost:
            return (yield ("ECHO", "second"))

    assert shell.connect(fake(cut, serve).url).run(plan()) == b"second"


def test_an_argument_that_cannot_be_sent_is_raised_within_the_plan(connector: Connector) -> None:
    raised: list[Exception] = []

    def plan() -> Plan[Any]:
        try:
            bad: Any = ("ECHO", None)
            yield bad
        except EncodeError as error:
            raised.append(error)
        return (yield ("ECHO", "fine"))

    assert connector.run(plan()) == b"fine"
    assert len(raised) == 1


def test_a_plan_that_raises_leaves_the_connector_usable(connector: Connector) -> None:
    closed: list[bool] = []

    def plan() -> Generator[Any, Any, None]:
        try:
            yield ("PING",)
            raise LookupError("its own")
        finally:
            closed.append(True)

    with pytest.raises(LookupError, match="its own"):
        connector.run(plan())
    assert closed == [True]
    assert connector.command("PING") == "PONG"


def test_the_timeout_of_a_plan_bounds_all_of_its_steps(shell: Shell, fake: Fakes) -> None:
    """Each step alone would be in time."""
    steps: list[Any] = []

    def slow(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            time.sleep(0.04)
            peer.echo(command)

    def plan() -> Plan[None]:
        for number in range(10):
            steps.append((yield ("ECHO", number)))

    connector = shell.connect(fake(slow).url)
    with pytest.raises(ReplyTimeout):
        connector.run(plan(), timeout=0.15)
    assert len(steps) <= 3


# Replies.

STATEMENTS = [
    ("return 7", 7, 7),
    ("return 'bulk'", b"bulk", b"bulk"),
    ("return ''", b"", b""),
    ("return redis.status_reply('FINE')", "FINE", "FINE"),
    ("return nil", None, None),
    ("return {1, 'a', {2}}", [1, b"a", [2]], [1, b"a", [2]]),
    ("return {}", [], []),
    ("return {double=1.5}", b"1.5", 1.5),
    ("return {map={a=1}}", [b"a", 1], {b"a": 1}),
    ("return {set={a=true}}", [b"a"], {b"a"}),
    ("return true", 1, True),
    ("return false", 0, False),
    ("return {big_number='12345678901234567890'}", b"12345678901234567890", 12345678901234567890),
    ("return {verbatim_string={format='txt', string='hi'}}", b"hi", b"hi"),
]


@pytest.mark.parametrize(("statement", "resp2", "resp3"), STATEMENTS)
def test_every_type_of_reply(
    connector: Connector, statement: str, resp2: object, resp3: object
) -> None:
    told = resp2 if connector.stats()["protocol"] == 2 else resp3
    source = f"redis.setresp(3) {statement}"
    for reply in (
        connector.command("EVAL", source, 0),
        connector.pipeline([("EVAL", source, 0)])[0],
        connector.eval(Script("typed", source)),
    ):
        assert reply == told
        assert type(reply) is type(told) or isinstance(told, bytes)


def test_commands(connector: Connector, fresh_name: str) -> None:
    assert connector.command("SET", fresh_name, b"\x00\r\n\xff") == "OK"
    assert connector.command("GET", fresh_name) == b"\x00\r\n\xff"
    assert connector.command("GET", fresh_name + "-none") is None
    assert connector.command("STRLEN", fresh_name) == 4
    with pytest.raises(ServerError):
        connector.command("LPUSH", fresh_name, 1)


@pytest.mark.parametrize("score", [0.1, 1e-5, 1e300, -0.0, 5e-324, float("inf"), float("-inf")])
def test_a_float_comes_back_as_it_went(connector: Connector, fresh_name: str, score: float) -> None:
    connector.command("ZADD", fresh_name, score, "member")
    came = connector.command("ZSCORE", fresh_name, "member")
    assert float(came) == score


def test_nan_is_the_servers_to_refuse(connector: Connector, fresh_name: str) -> None:
    with pytest.raises(ServerError, match="not a valid float"):
        connector.command("ZADD", fresh_name, float("nan"), "member")


def test_a_push_takes_no_place(shell: Shell, server: Any, fresh_name: str) -> None:
    """Invalidations come before, between and after replies; none of them answers a command."""
    connector = shell.connect(server.url, protocol=3)
    connector.command("CLIENT", "TRACKING", "ON")
    connector.command("GET", fresh_name)
    server.admin.set(fresh_name, "theirs")
    assert connector.command("ECHO", "mine") == b"mine"
    assert connector.pipeline(
        [("GET", fresh_name), ("SET", fresh_name, 1), ("GET", fresh_name)]
    ) == [b"theirs", "OK", b"1"]
    assert connector.pipeline(
        [
            ("MULTI",),
            ("SET", fresh_name, 2),
            ("GET", fresh_name),
            ("EXEC",),
            ("ECHO", "x"),
        ]
    ) == ["OK", "QUEUED", "QUEUED", ["OK", b"2"], b"x"]
    assert connector.command("PING") == "PONG"
    assert connector.stats()["pushes"] == 3


# MULTI .. EXEC.


@pytest.mark.parametrize("word", ["MULTI", "exec", b"DISCARD", "WATCH"])
def test_half_a_transaction_is_refused(shell: Shell, server: Any, word: Any) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    tap.clear()

    def plan() -> Plan[Any]:
        yield (word, "k")

    for way in (
        lambda: connector.command(word, "k"),
        lambda: connector.pipeline([("PING",), (word,)]),
        lambda: connector.pipeline([("MULTI",), ("MULTI",), ("EXEC",)]),
        lambda: connector.run(plan()),
    ):
        with pytest.raises(RefusedCommand):
            way()
    assert len(tap) == 0


def test_nothing_comes_between_multi_and_exec(shell: Shell, server: Any, fresh_name: str) -> None:
    """However long the transaction is, it leaves in one piece: nobody else is answered QUEUED."""
    connector = shell.connect(server.url)
    transaction: list[Command] = [
        ("MULTI",),
        *[("SET", fresh_name, b"v" * 2000)] * 300,
        ("EXEC",),
    ]

    def others() -> list[Any]:
        return [connector.command("ECHO", "z") for _ in range(300)]

    callers = [begin(others) for _ in range(3)]
    for _ in range(20):
        assert connector.pipeline(transaction)[-1] == ["OK"] * 300
    for caller in callers:
        assert caller.result(30) == [b"z"] * 300


def test_a_plan_is_a_generator(connector: Connector) -> None:
    with pytest.raises(TypeError, match="a generator"):
        connector.run(5)  # type: ignore[arg-type]


def test_a_plan_runs_once(connector: Connector) -> None:
    def plan() -> Plan[Any]:
        return (yield ("PING",))

    once = plan()
    assert connector.run(once) == "PONG"
    with pytest.raises(ValueError, match="runs once"):
        connector.run(once)


def test_a_transaction_beyond_max_pending_is_refused(shell: Shell, server: Any) -> None:
    """It cannot be cut, and waiting would not help."""
    tap = Tap()
    connector = shell.connect(server.url, max_pending=10, tap=tap)
    tap.clear()
    with pytest.raises(RefusedCommand, match="max_pending"):
        connector.pipeline([("MULTI",), *[("PING",)] * 9, ("EXEC",)])
    assert len(tap) == 0
    assert connector.pipeline([("MULTI",), *[("PING",)] * 8, ("EXEC",)])[-1] == ["PONG"] * 8


def test_a_script_that_cannot_be_loaded_says_what_else_ran(
    connector: Connector, fresh_name: str
) -> None:
    broken = Script("broken", "return (")
    with pytest.raises(ServerError) as caught:
        connector.pipeline([("SET", fresh_name, 1), broken()])
    assert caught.value.replies == ["OK", Unanswered.NOT_SENT]
    assert connector.command("GET", fresh_name) == b"1"

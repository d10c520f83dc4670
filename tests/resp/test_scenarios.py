"""What has gone wrong in other clients, and what a crowd of callers does to this one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from emq.embedded import Embedded
from resp import (
    AsyncConnector,
    ConnectFailed,
    ConnectionLost,
    Connector,
    ErrorReply,
    Refused,
    ReplyTimeout,
    Script,
    ServerError,
    connect,
    connect_async,
)

from ..proxy import Fault, Proxy
from .conftest import LOOPS, Fakes, Shell, begin, loop_factory, until
from .fake import PATIENCE_S, Peer

_ROOT: Final = Path(__file__).parents[2]
LONG: Final = os.environ.get("HYPOTHESIS_PROFILE") == "long"
CALLS: Final = 100_000
MB: Final = 1 << 20


@pytest.fixture(scope="module")
def lonely() -> Iterator[tuple[str, Any]]:
    """A server of this module's own, whose limits nobody else meets: its URL, and an admin."""
    with (
        Embedded(tcp=True) as valkey,
        redis.Redis(host=valkey.host, port=valkey.port) as admin,
    ):
        yield valkey.url, admin


# Crowds.


@pytest.mark.parametrize("network", ["fast", "slow"])
def test_fifty_threads_a_tenth_of_whose_calls_is_late(server: Any, network: str) -> None:
    """No token comes back to another, none is lost, nobody hangs."""
    wrong: list[Any] = []
    seen: Counter[str] = Counter()
    calls = CALLS if network == "fast" else CALLS // 20

    def work(connector: Connector, number: int) -> None:
        mine: Counter[str] = Counter()
        for turn in range(calls // 50):
            token = b"%d.%d" % (number, turn)
            late = (number + turn) % 10 == 0
            try:
                reply = connector.command("ECHO", token, timeout=0.0005 if late else PATIENCE_S)
            except ReplyTimeout:
                mine["late" if late else "late without cause"] += 1
                continue
            mine["answered"] += 1
            if reply != token:
                wrong.append((token, reply))
        seen.update(mine)

    with Proxy((server.host, server.port)) as proxy:
        proxy.to_client = Fault(delay=0.001)
        url = server.url if network == "fast" else proxy.url
        with connect(url) as connector:
            for call in [begin(work, connector, number) for number in range(50)]:
                call.result(300)
            assert connector.command("ECHO", "last") == b"last"
            stats = connector.stats()
    assert wrong == []
    assert set(seen) <= {"answered", "late"}
    assert seen["late"]
    assert seen.total() == calls // 50 * 50
    assert (stats["pending"], stats["reconnects"]) == (0, 0)
    assert stats["replies"] == stats["commands"]


@pytest.mark.parametrize("loop_kind", LOOPS)
def test_a_thousand_tasks_cancelled_and_late_at_random(server: Any, loop_kind: str) -> None:
    random_ = random.Random(1)
    seen: Counter[str] = Counter()
    calling: dict[asyncio.Task[None], None] = {}

    async def work(connector: AsyncConnector, number: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        for turn in range(CALLS // 1000):
            token = b"%d.%d" % (number, turn)
            late = random_.random() < 0.1
            calling[task] = None
            try:
                reply = await connector.command(
                    "ECHO", token, timeout=0.001 if late else PATIENCE_S
                )
            except ReplyTimeout:
                assert late
                seen["late"] += 1
            except asyncio.CancelledError:
                seen["cancelled"] += 1
                task.uncancel()
            else:
                assert reply == token
                seen["answered"] += 1
            finally:
                del calling[task]

    async def main() -> None:
        async with await connect_async(server.url) as connector:
            tasks = [asyncio.create_task(work(connector, number)) for number in range(1000)]
            while not all(task.done() for task in tasks):
                for task in random_.sample(list(calling), min(5, len(calling))):
                    if not task.cancelling():
                        task.cancel()
                await asyncio.sleep(0.0005)
            await asyncio.gather(*tasks)
            assert await connector.command("ECHO", "last") == b"last"
            stats = connector.stats()
            assert (stats["pending"], stats["reconnects"]) == (0, 0)
            assert stats["replies"] == stats["commands"]

    factory = loop_factory(loop_kind)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert seen["late"]
    assert seen["cancelled"]
    assert seen.total() == CALLS


def test_a_crowd_of_every_verb(shell: Shell, server: Any, fresh_name: str) -> None:
    """Transactions, scripts, pipelines, silent commands and messages, at once on one connection."""
    connector = shell.connect(server.url, timeout=PATIENCE_S)
    rounds = 200 if LONG else 20
    sources = itertools.count()

    def transactions(number: int) -> None:
        for turn in range(rounds):
            token = b"%d.%d" % (number, turn)
            script = Script("s", f"return ARGV[1]--{fresh_name}{next(sources)}")
            assert connector.transaction([("ECHO", token), script((), [token])]) == [token, token]

    def watching(number: int) -> None:
        key = f"{fresh_name}:watched{number}"
        for turn in range(rounds):

            def decide() -> Any:
                before = yield ("GET", key)
                return [("INCR", key), ("ECHO", before or "none")]

            before = b"%d" % turn if turn else b"none"
            assert connector.transaction(decide, watch=[key]) == [turn + 1, before]

    def silent(number: int) -> None:
        key = f"{fresh_name}:silent{number}"
        for turn in range(rounds):
            connector.send([("INCR", key)] * 100)
            assert connector.command("GET", key) == b"%d" % (100 * (turn + 1))

    def pipelines(number: int) -> None:
        for turn in range(rounds):
            tokens = [b"%d.%d.%d" % (number, turn, n) for n in range(300)]
            assert connector.pipeline([("ECHO", token) for token in tokens]) == tokens

    def messages(number: int) -> None:
        channel = f"{fresh_name}:channel{number}"
        subscription: Any = connector.subscribe(channel)
        for turn in range(rounds):
            assert connector.command("PUBLISH", channel, turn) == 1
            if shell.kind == "threads":  # the other shell's is not wrapped
                message = subscription.get(PATIENCE_S)
                assert message.payload == b"%d" % turn

    def calls(number: int) -> None:
        for turn in range(rounds * 10):
            token = b"%d.%d" % (number, turn)
            assert connector.command("ECHO", token) == token

    verbs = [transactions, watching, silent, pipelines, messages, calls]
    for call in [begin(verb, number) for number in range(3) for verb in verbs]:
        call.result(60)
    stats = connector.stats()
    assert (stats["pending"], stats["reconnects"]) == (0, 0)


# The wire.


def test_a_socket_that_takes_a_byte_at_a_time_and_none_each_second_time(server: Any) -> None:
    with connect(server.url, timeout=PATIENCE_S) as connector:
        link: Any = connector._link
        send, sends = link._send, itertools.count()

        def reluctant(data: Any, flags: int) -> int:
            if next(sends) % 2:
                raise BlockingIOError
            return int(send(memoryview(data)[:1], flags))

        link._send = reluctant
        count = 5000 if LONG else 1000
        began = time.process_time()
        commands = [("ECHO", number) for number in range(count)]
        assert connector.pipeline(commands) == [b"%d" % number for number in range(count)]
        spent = time.process_time() - began
        size = next(sends)
    assert size > 40 * count
    assert spent < size * 100e-6, "it polls in between, and does not spin"


def test_a_path_that_passes_a_byte_at_a_time(shell: Shell, server: Any) -> None:
    count = 5000 if LONG else 300
    with Proxy((server.host, server.port)) as proxy:
        proxy.to_server = proxy.to_client = Fault(piece=1)
        connector = shell.connect(proxy.url, timeout=60)
        for start in range(0, count, 100):
            commands = [("ECHO", number) for number in range(start, start + 100)]
            expected = [b"%d" % number for number in range(start, start + 100)]
            assert connector.pipeline(commands) == expected


def test_a_query_that_the_server_will_not_buffer(shell: Shell, lonely: tuple[str, Any]) -> None:
    """It closes without a word."""
    url, admin = lonely
    limit = admin.config_get("client-query-buffer-limit")["client-query-buffer-limit"]
    admin.config_set("client-query-buffer-limit", MB)
    try:
        connector = shell.connect(url)
        with pytest.raises(ConnectionLost) as caught:
            connector.command("ECHO", b"x" * (3 * MB))
        assert caught.value.may_have_run
        assert connector.command("ECHO", "next") == b"next"
        assert connector.stats()["reconnects"] == 1
    finally:
        admin.config_set("client-query-buffer-limit", limit)


def test_too_many_arguments_before_a_password(shell: Shell, password_server: Any) -> None:
    """RESP2 without a password: nothing is said at the boot, so the first command is told why."""
    connector = shell.connect(password_server.url, protocol=2)
    with pytest.raises(ServerError) as caught:
        connector.command("PING")
    assert caught.value.code == "NOAUTH"
    with pytest.raises(ServerError, match="unauthenticated multibulk length"):
        connector.command("MSET", *range(20))


@pytest.mark.parametrize("protocol", [None, 2, 3])
def test_a_password_that_is_too_long(
    shell: Shell, password_server: Any, protocol: int | None
) -> None:
    secret = "s" * 16_385
    url = password_server.url.replace("://", f"://:{secret}@")
    with pytest.raises(Refused, match="unauthenticated bulk length") as caught:
        shell.connect(url, protocol=protocol)
    assert secret not in str(caught.value)
    assert secret not in repr(caught.value)
    assert not caught.value.may_have_run


def test_text_that_is_no_text_is_one_replys_own(shell: Shell, fake: Fakes) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        for answer in (
            b"+\xff\xfe\r\n",
            b"-ERR \x80\xff\r\n",
            b"%1\r\n$1\r\na\r\n$2\r\n\xc3\x28\r\n",
        ):
            peer.command()
            peer.send(answer)
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(play).url)
    status = connector.command("A")
    assert isinstance(status, str)
    assert status.encode(errors="surrogateescape") == b"\xff\xfe"
    with pytest.raises(ServerError) as caught:
        connector.command("B")
    assert caught.value.code == "ERR"
    assert str(caught.value).isascii()
    assert connector.command("C") == {b"a": b"\xc3\x28"}
    assert connector.command("ECHO", "next") == b"next"


@pytest.mark.parametrize("shell_kind", ["threads", "aio"])
def test_numbers_of_any_size_under_the_tightest_limit(server: Any, shell_kind: str) -> None:
    """In a process of its own, where the interpreter turns no more than 640 digits into an int."""
    program = textwrap.dedent(
        """
        import asyncio, sys
        sys.set_int_max_str_digits(640)
        from resp import connect, connect_async

        url, kind = sys.argv[1:]
        big = 10**999 + 7
        commands = [
            ("EVAL", "redis.setresp(3) return {big_number='1'..string.rep('0', 998)..'7'}", 0),
            ("EVAL", "redis.setresp(3) return {double=1234567.5}", 0),
            ("ECHO", big),
            ("ECHO", 1234567.5),
        ]

        async def main():
            async with await connect_async(url) as connector:
                return await connector.pipeline(commands)

        if kind == "aio":
            replies = asyncio.run(main())
        else:
            with connect(url) as connector:
                replies = connector.pipeline(commands)
        assert replies == [big, 1234567.5, b"1" + b"0" * 998 + b"7", b"1234567.5"]
        assert sys.get_int_max_str_digits() == 640
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, server.url, shell_kind],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=_ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_only_looks_is_connected_again_over_a_slow_path(
    server: Any, fresh_name: str
) -> None:
    """The way there and back takes longer than each of its looks."""
    with Proxy((server.host, server.port)) as proxy:
        proxy.to_client = Fault(delay=0.03)
        with connect(proxy.url) as connector, connector.subscribe(fresh_name) as subscription:
            proxy.links[-1].cut()
            for _ in range(30):
                with contextlib.suppress(ConnectFailed):
                    subscription.get(0)
                if subscription.gaps:
                    break
                time.sleep(0.02)  # what such a reader does between its looks
            assert subscription.gaps == 1


# Scripts.


@pytest.mark.parametrize("wrote", [False, True])
def test_a_script_that_does_not_end(shell: Shell, lonely: tuple[str, Any], wrote: bool) -> None:
    """Others are told that the server is busy; a script that wrote cannot be killed."""
    url, admin = lonely
    admin.config_set("busy-reply-threshold", 1)
    source = (
        "redis.call('SET', 'written', 1) local n = 0 "
        "local began = os.clock() while os.clock() - began < 0.7 do n = n + 1 end return 'over'"
        if wrote
        else "while true do end"
    )
    runner, connector = shell.connect(url), shell.connect(url)
    running = begin(runner.eval, Script("endless", source), timeout=PATIENCE_S)

    def busy() -> bool:
        reply = connector.pipeline([("GET", "k")])[0]
        return isinstance(reply, ErrorReply) and reply.code == "BUSY"

    until(busy)
    with pytest.raises(ServerError) as caught:
        connector.command("GET", "k")
    assert caught.value.code == "BUSY"
    if wrote:
        [refused] = connector.pipeline([("SCRIPT", "KILL")])
        assert isinstance(refused, ErrorReply)
        assert refused.code == "UNKILLABLE"
        with pytest.raises(ServerError) as unkillable:
            connector.command("SCRIPT", "KILL")
        assert unkillable.value.code == "UNKILLABLE"
        assert running.result(PATIENCE_S) == b"over"
    else:
        assert connector.command("SCRIPT", "KILL") == "OK"
        error = running.exception(PATIENCE_S)
        assert isinstance(error, ServerError)
        assert "killed" in error.message.lower()
    for each in (runner, connector):
        assert each.command("ECHO", "next") == b"next"
        assert each.stats()["reconnects"] == 0


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("3.99", 3),
        ("-3.99", -3),
        ("9007199254740993", 2**53),
        ("1e300", -(2**63)),
        ("0/0", -(2**63)),
        ("tostring(1730000000123456)", b"1.7300000001235e+15"),
        ("cjson.encode(cjson.decode('[]'))", b"{}"),
        ("cjson.encode({12345678901234567890})", b"[1.2345678901235e+19]"),
        ("ARGV[1]", b"12345678901234567890"),
    ],
)
def test_what_numbers_become_in_a_script(
    shell: Shell, server: Any, expression: str, answer: object
) -> None:
    """The server's doing, all of it: what it answers is handed on as it came."""
    script = Script("numbers", f"return {expression}")
    assert shell.connect(server.url).eval(script, (), [12345678901234567890]) == answer


def test_ten_thousand_runs_while_another_client_flushes(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    """Each call runs once, or answers NOSCRIPT and has not run."""
    connector = shell.connect(server.url)
    script = Script("count", f"return redis.call('INCR', KEYS[1]) -- {fresh_name}")
    over = threading.Event()

    def flush() -> int:
        count = 0
        while not over.is_set():
            server.admin.script_flush()
            count += 1
        return count

    flusher = begin(flush)
    refused: set[str] = set()
    ran = 0
    try:
        for _ in range(10_000 if LONG else 1000):
            try:
                answer = connector.eval(script, [fresh_name])
            except ServerError as error:
                refused.add(error.code)
            else:
                ran += 1
                assert answer == ran
        for reply in connector.pipeline([script([fresh_name])] * 1000):
            if isinstance(reply, ErrorReply):
                assert reply.code == "NOSCRIPT"
            else:
                ran += 1
    finally:
        over.set()
    assert flusher.result(PATIENCE_S) > 10
    assert refused <= {"NOSCRIPT"}
    assert connector.command("GET", fresh_name) == b"%d" % ran

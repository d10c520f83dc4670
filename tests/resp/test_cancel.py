"""Callers that are taken away, tasks by cancellation and threads by a signal, in every stage."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import itertools
import os
import random
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import wait
from typing import Any, Final

import pytest

from resp import (
    AsyncConnector,
    AsyncSubscription,
    Closed,
    ConnectFailed,
    ConnectionLost,
    Connector,
    Plan,
    RespError,
    Script,
    TransactionAborted,
    connect,
    connect_async,
)

from ..proxy import Proxy
from ..tls import Certificates, TlsRelay
from .conftest import LOOPS, Fakes, begin, loop_factory, until
from .fake import HELLO, PATIENCE_S, Peer
from .test_threads import Interrupt, every_interrupt, interrupted

_sources: Final = itertools.count()
_DESCRIPTORS: Final = "/dev/fd"


def fresh_script() -> Script:
    """One that no server holds; it answers its argument."""
    return Script("fresh", f"return ARGV[1] -- {os.getpid()}.{next(_sources)}")


def descriptors() -> int:
    return len(os.listdir(_DESCRIPTORS))


# Tasks.


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Any:
    """Runs a coroutine on each event loop; no task and no descriptor is left behind."""
    factory = loop_factory(request.param)

    def go(coroutine: Coroutine[Any, Any, Any]) -> None:
        async def main() -> None:
            await asyncio.wait_for(coroutine, 60)
            async with asyncio.timeout(PATIENCE_S):
                while left := asyncio.all_tasks() - {asyncio.current_task()}:
                    await asyncio.wait(left)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.sleep(0))  # what the first loop of a process opens stays open
        before = descriptors()
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
        gc.collect()  # what was not closed says so now, and in this test
        until(lambda: descriptors() <= before)

    return go


async def reached(event: threading.Event) -> None:
    """Wait for a thread's event without holding the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not event.is_set():
            await asyncio.sleep(0.0005)


async def came_true(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.0005)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel it; it ends so, and soon."""
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5)
    assert done, "the cancellation was swallowed, or waited"
    with pytest.raises(asyncio.CancelledError):
        task.result()


async def undisturbed(connector: AsyncConnector, count: int = 10) -> None:
    """Every call gets its own reply, at the first try, and nothing is left in any line."""
    names = [b"%d" % number for number in range(count)]
    assert await asyncio.gather(*(connector.command("ECHO", name) for name in names)) == names
    link: Any = connector._link
    assert connector.stats()["pending"] == 0
    assert not link.protocol.owed
    assert not link.protocol.outbox
    assert not link.protocol.listeners


class Held:
    """A server that answers everything, and stops before its answer to one command.

    Args:
        words: The command before whose answer it stops, or its beginning.
        nth: Which of those.
        half: What it says of the answer before it stops.

    Attributes:
        asked: Set when it has stopped.
        gate: To be set for it to go on.
    """

    def __init__(self, *words: str, nth: int = 1, half: bytes = b"") -> None:
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.gone = threading.Event()
        self._words = [word.encode() for word in words]
        self._left = nth
        self._half = half

    def __call__(self, peer: Peer) -> None:
        scripts: set[bytes] = set()
        queued: list[bytes] | None = None
        mute = False
        for command in peer.commands():
            answer = self._answer(command, scripts)
            if command == [b"CLIENT", b"REPLY", b"OFF"]:
                mute = True
            elif command == [b"CLIENT", b"REPLY", b"ON"]:
                mute = False
            if command[0] == b"MULTI":
                queued = []
            elif command[0] == b"EXEC":
                answer = b"*%d\r\n%b" % (len(queued or ()), b"".join(queued or ()))
                queued = None
            elif queued is not None:
                queued.append(answer)
                answer = b"+QUEUED\r\n"
            if command[: len(self._words)] == self._words:
                self._left -= 1
                if not self._left:
                    peer.send(self._half)
                    self.asked.set()
                    peer.wait(self.gate)
                    answer = answer.removeprefix(self._half)
            if not mute:
                peer.send(answer)
        self.gone.set()

    def _answer(self, command: list[bytes], scripts: set[bytes]) -> bytes:
        match command:
            case [b"HELLO", *_]:
                return HELLO
            case [b"SCRIPT", _, source]:
                sha = hashlib.sha1(source).hexdigest().encode()
                scripts.add(sha)
                return b"$40\r\n%b\r\n" % sha
            case [b"EVALSHA", sha, *_] if sha not in scripts:
                return b"-NOSCRIPT No matching script.\r\n"
            case [b"SUBSCRIBE" | b"UNSUBSCRIBE" as verb, channel]:
                kind = verb.lower()
                return b">3\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n:1\r\n" % (
                    len(kind),
                    kind,
                    len(channel),
                    channel,
                )
            case [b"ECHO" | b"EVALSHA" | b"BLPOP", *_]:
                return b"$%d\r\n%b\r\n" % (len(command[-1]), command[-1])
        return b"+OK\r\n"


def deciding() -> Plan[list[Any]]:
    seen = yield ("ECHO", "decide")
    return [("ECHO", seen)]


async def closing(connector: AsyncConnector) -> None:
    subscription = await connector.subscribe("news")
    await subscription.close()


Call = Callable[[AsyncConnector], Awaitable[Any]]
MANY: Final = [("ECHO", number) for number in range(300)]
STAGES: Final[dict[str, tuple[Held, Call]]] = {}


def stage(name: str, *words: str, nth: int = 1, half: bytes = b"") -> Callable[[Call], Call]:
    def added(call: Call) -> Call:
        STAGES[name] = Held(*words, nth=nth, half=half), call
        return call

    return added


stage("a command", "ECHO", "x")(lambda c: c.command("ECHO", "x"))
stage("half a reply", "ECHO", "xyz", half=b"$3\r\nxy")(lambda c: c.command("ECHO", "xyz"))
stage("a blocking pop", "BLPOP")(lambda c: c.command("BLPOP", "k", 0, timeout=60))
stage("a pipeline", "ECHO", "150")(lambda c: c.pipeline(MANY))
stage("the end of a pipeline", "ECHO", "299")(lambda c: c.pipeline(MANY))
stage("evalsha", "EVALSHA")(lambda c: c.eval(fresh_script(), (), ["x"]))
stage("a load", "SCRIPT")(lambda c: c.eval(fresh_script(), (), ["x"]))
stage("evalsha after a load", "EVALSHA", nth=2)(lambda c: c.eval(fresh_script(), (), ["x"]))
stage("a load of a pipeline", "SCRIPT")(
    lambda c: c.pipeline([("ECHO", 1), fresh_script()((), ["x"]), fresh_script()((), ["y"])])
)
stage("a load before a transaction", "SCRIPT")(lambda c: c.transaction([fresh_script()((), ["x"])]))
stage("multi", "MULTI")(lambda c: c.transaction([("ECHO", "x")]))
stage("exec", "EXEC")(lambda c: c.transaction([("ECHO", "x")]))
stage("watch", "WATCH")(lambda c: c.transaction(deciding, watch=["k"]))
stage("between watch and exec", "ECHO", "decide")(lambda c: c.transaction(deciding, watch=["k"]))
stage("exec of what watched", "EXEC")(lambda c: c.transaction(deciding, watch=["k"]))
stage("commands without replies", "SET", "k", "150")(
    lambda c: c.send([("SET", "k", number) for number in range(300)])
)
stage("their one reply", "CLIENT", "REPLY", "ON")(lambda c: c.send([("SET", "k", 1)]))
stage("subscribe", "SUBSCRIBE")(lambda c: c.subscribe("news"))
stage("what follows subscribe", "HELLO", nth=2)(lambda c: c.subscribe("news"))
stage("unsubscribe", "UNSUBSCRIBE")(closing)
stage("a plan", "ECHO", "7")(lambda c: c.run(echoing()))


def echoing() -> Plan[None]:
    for number in range(10):
        yield ("ECHO", number)


_TWICE: Final = ("a load", "between watch and exec", "subscribe", "unsubscribe")


@pytest.mark.parametrize(
    ("name", "twice"),
    [*((name, False) for name in STAGES), *((name, True) for name in _TWICE)],
    ids=lambda given: {False: "once", True: "twice"}.get(given, given),
)
def test_a_task_cancelled_at_a_stage(run: Any, fake: Fakes, name: str, twice: bool) -> None:
    """Who comes after it gets its own reply, on the same connection."""
    old, call = STAGES[name]
    held = Held(*(word.decode() for word in old._words), nth=old._left, half=old._half)
    server = fake(held)

    async def main() -> None:
        async with await connect_async(server.url, timeout=PATIENCE_S) as connector:

            async def calling() -> None:
                await call(connector)

            task = asyncio.create_task(calling())
            await reached(held.asked)
            behind = asyncio.create_task(connector.command("ECHO", "behind"))
            await asyncio.sleep(0)
            if twice:
                task.cancel()
                await asyncio.sleep(0)
            await cancelled(task)
            held.gate.set()
            assert await behind == b"behind"
            await undisturbed(connector)
            assert connector.stats()["reconnects"] == 0
            assert connector._registry.wanted == []
            # The same verb again, from one end to the other.
            await call(connector)
            assert connector.stats()["reconnects"] == int("watch" in name)
            await undisturbed(connector)

    run(main())


BOOTS: Final[dict[str, tuple[list[str], str, dict[str, Any]]]] = {
    "hello": (["HELLO"], "", {}),
    "hello with a password": (["HELLO", "3", "AUTH"], "user:secret@", {}),
    "auth": (["AUTH"], "user:secret@", {"protocol": 2}),
    "the name": (["CLIENT", "SETNAME"], "", {"protocol": 2, "client_name": "me"}),
    "select": (["SELECT"], "", {}),
    "on_connect": (["ECHO", "boot"], "", {"on_connect": lambda: booting()}),
    "half of hello": (["HELLO"], "", {}),
}


def booting() -> Plan[None]:
    yield ("ECHO", "boot")


@pytest.mark.parametrize("name", BOOTS)
def test_a_connect_cancelled_at_a_stage_of_the_boot(run: Any, fake: Fakes, name: str) -> None:
    words, user, options = BOOTS[name]
    held = Held(*words, half=HELLO[:20] if name.startswith("half") else b"")
    url = fake(held).url.replace("://", f"://{user}") + "/3"

    async def main() -> None:
        task = asyncio.create_task(connect_async(url, timeout=PATIENCE_S, **options))
        await reached(held.asked)
        await cancelled(task)
        held.gate.set()
        await reached(held.gone)

    run(main())


@pytest.mark.parametrize("name", BOOTS)
def test_a_call_cancelled_while_its_connection_is_booted_again(
    run: Any, fake: Fakes, name: str
) -> None:
    """Another, that waits for the same connection, gets it."""
    words, user, options = BOOTS[name]
    held = Held(*words, half=HELLO[:20] if name.startswith("half") else b"")

    def cut(peer: Peer) -> None:
        for command in peer.commands():
            if command == [b"ECHO", b"cut"]:
                peer.close()
                return
            peer.send(Held()._answer(command, set()))

    server = fake(cut, held)
    url = server.url.replace("://", f"://{user}") + "/3"

    async def main() -> None:
        async with await connect_async(url, timeout=PATIENCE_S, **options) as connector:
            with pytest.raises(ConnectionLost):
                await connector.command("ECHO", "cut")
            first = asyncio.create_task(connector.command("ECHO", "first"))
            second = asyncio.create_task(connector.command("ECHO", "second"))
            await reached(held.asked)
            await cancelled(first)
            held.gate.set()
            assert await second == b"second"
            await undisturbed(connector)
            assert len(server.peers) == 2

    run(main())
    assert b"first" not in server.peers[1].received


def test_a_dial_cancelled_while_nobody_accepts(run: Any) -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):  # more than it lets wait
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())

        async def main() -> None:
            url = f"valkey://127.0.0.1:{listener.getsockname()[1]}"
            task = asyncio.create_task(connect_async(url))
            await asyncio.sleep(0.05)
            assert not task.done(), "the dial was to hang"
            await cancelled(task)

        run(main())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def test_a_tls_handshake_cancelled(run: Any, server: Any, certificates: Certificates) -> None:
    place = (server.host, server.port)

    async def main(port: int) -> None:
        url = f"valkeys://127.0.0.1:{port}"
        task = asyncio.create_task(connect_async(url, tls=certificates.trusting()))
        await asyncio.sleep(0.05)
        assert not task.done(), "the handshake was to hang"
        await cancelled(task)

    with TlsRelay(place, certificates.good, manner="stall") as relay:
        run(main(relay.port))


def test_a_wait_before_dialling_again_cancelled(run: Any, server: Any) -> None:
    async def main(proxy: Proxy) -> None:
        async with await connect_async(proxy.url, backoff=(1, 1)) as connector:
            proxy.refuse = True
            proxy.links[-1].cut()
            with pytest.raises((ConnectFailed, ConnectionLost)):
                await connector.command("ECHO", "lost", timeout=0.05)
            with pytest.raises(ConnectFailed):
                await connector.command("ECHO", "refused", timeout=0.05)
            first = asyncio.create_task(connector.command("ECHO", "first"))
            second = asyncio.create_task(connector.command("ECHO", "second"))
            await came_true(lambda: connector._dialling is not None)
            await cancelled(first)
            proxy.refuse = False
            assert await second == b"second"
            await undisturbed(connector)

    with Proxy((server.host, server.port)) as proxy:
        run(main(proxy))


def test_a_read_of_a_subscription_cancelled_loses_no_message(
    run: Any, server: Any, fresh_name: str
) -> None:
    server.admin.ping()

    async def main() -> None:
        async with await connect_async(server.url) as connector:
            subscription = await connector.subscribe(fresh_name)
            for number in range(200):
                task = asyncio.create_task(subscription.get(5))
                for _ in range(number % 5):
                    await asyncio.sleep(0)
                server.admin.publish(fresh_name, number)
                if number % 2:
                    await asyncio.sleep(0.001)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    message = await task
                    assert message is not None
                    assert message.payload == b"%d" % number
                    continue
                message = await subscription.get(5)
                assert message is not None
                assert message.payload == b"%d" % number
            await undisturbed(connector)
            assert not subscription._inbox.parked
            await subscription.close()

    run(main())


def counting(key: str) -> Callable[[], Plan[list[Any]]]:
    def raise_by_one() -> Plan[list[Any]]:
        before = yield ("GET", key)
        return [("SET", key, int(before or 0) + 1)]

    return raise_by_one


def test_hundreds_of_calls_cancelled_after_any_time(run: Any, server: Any, fresh_name: str) -> None:
    """Whatever was under way: the next calls are right, and nothing leaks."""
    pauses = random.Random(11)
    ended = {"cancelled": 0, "done": 0}

    async def popping(connector: AsyncConnector) -> None:
        async with await connector.sibling() as sibling:
            await sibling.command("BLPOP", fresh_name + "none", 0)

    async def listening(connector: AsyncConnector) -> None:
        subscription: AsyncSubscription = await connector.subscribe(fresh_name, fresh_name + "2")
        try:
            await subscription.get(0.001)
        finally:
            await subscription.close()

    async def dialling(connector: AsyncConnector) -> None:
        await (await connect_async(server.url)).close()

    calls: list[Callable[[AsyncConnector], Awaitable[Any]]] = [
        lambda c: c.command("ECHO", "x" * 100_000),
        lambda c: c.pipeline(MANY),
        lambda c: c.eval(fresh_script(), (), ["x"]),
        lambda c: c.pipeline([fresh_script()((), [n]) for n in range(5)]),
        lambda c: c.transaction([("ECHO", "x"), fresh_script()((), ["x"])]),
        lambda c: c.transaction(counting(fresh_name), watch=[fresh_name]),
        lambda c: c.send([("SET", fresh_name + "k", n) for n in range(300)]),
        lambda c: c.run(echoing()),
        listening,
        popping,
        dialling,
    ]

    async def main() -> None:
        async with await connect_async(server.url) as connector:
            for turn in range(500):
                call = calls[turn % len(calls)]

                async def calling(
                    call: Callable[[AsyncConnector], Awaitable[Any]] = call,
                ) -> None:
                    await call(connector)

                task = asyncio.create_task(calling())
                for _ in range(pauses.choice([0, 1, 2, 3, 5, 8, 13, 21])):
                    await asyncio.sleep(0)
                await asyncio.sleep(pauses.choice([0, 0, 0, 0.001]))
                task.cancel()
                done, _ = await asyncio.wait([task], timeout=5)
                assert done, f"call {turn % len(calls)} did not end"
                if task.cancelled():
                    ended["cancelled"] += 1
                else:
                    task.result()
                    ended["done"] += 1
                await undisturbed(connector, 3)
            assert connector._registry.wanted == []
            count = await connector.transaction(counting(fresh_name), watch=[fresh_name])
            assert count == ["OK"]

    before = len(server.admin.client_list())
    run(main())
    until(lambda: len(server.admin.client_list()) <= before)
    assert ended["cancelled"] > 100


def test_a_loop_that_is_stopped_in_the_middle(run: Any, server: Any, fresh_name: str) -> None:
    """As Ctrl-C does with asyncio.run: every task is cancelled at once, and all end."""

    async def main() -> None:
        async with await connect_async(server.url) as connector:
            calls = [
                *(connector.command("BLPOP", fresh_name + "none", 0, timeout=60) for _ in range(3)),
                *(connector.pipeline(MANY) for _ in range(3)),
                *(connector.eval(fresh_script()) for _ in range(3)),
                *(connector.transaction(counting(fresh_name), watch=["k"]) for _ in range(3)),
                connector.send([("PING",)]),
                connector.subscribe(fresh_name),
                connector.sibling(),
            ]
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(call) for call in calls]
            await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
            done, left = await asyncio.wait(tasks, timeout=5)
            assert not left
            for task in done:
                if not task.cancelled() and isinstance(task.result(), AsyncConnector):
                    await task.result().close()

    run(main())


@pytest.mark.parametrize("verb", ["command", "pipeline", "eval", "transaction", "send"])
def test_a_callers_own_time_limit_is_told_as_such(run: Any, fake: Fakes, verb: str) -> None:
    held = Held("ECHO", "x")
    calls: dict[str, Call] = {
        "command": lambda c: c.command("ECHO", "x"),
        "pipeline": lambda c: c.pipeline([("ECHO", "x")]),
        "eval": lambda c: c.eval(fresh_script(), (), ["x"]),
        "transaction": lambda c: c.transaction([("ECHO", "x")]),
        "send": lambda c: c.send([("ECHO", "x")]),
    }
    if verb == "eval":
        held = Held("EVALSHA")
    server = fake(held)

    async def main() -> None:
        async with await connect_async(server.url, timeout=PATIENCE_S) as connector:
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.05):
                    await calls[verb](connector)
            assert not isinstance(caught.value, RespError)
            held.gate.set()
            await undisturbed(connector)

    run(main())


def test_closing_while_everything_is_under_way(run: Any, server: Any, fresh_name: str) -> None:
    """Everybody hears of it; nobody hangs, and no task is cancelled for it."""

    async def main() -> None:
        for turn in range(20):
            connector = await connect_async(server.url)
            subscription = await connector.subscribe(fresh_name)
            calls: list[Coroutine[Any, Any, Any]] = [
                connector.command("BLPOP", fresh_name + "none", 0, timeout=60),
                connector.pipeline(MANY),
                connector.eval(fresh_script()),
                connector.transaction(counting(fresh_name), watch=["k"]),
                connector.send([("PING",)]),
                connector.subscribe("other"),
                subscription.get(),
                subscription.close(),
            ]
            tasks = [asyncio.create_task(call) for call in calls]
            for _ in range(turn):
                await asyncio.sleep(0)
            await connector.close()
            done, left = await asyncio.wait(tasks, timeout=5)
            assert not left
            for task in done:
                assert not task.cancelled()
                error = task.exception()
                assert error is None or isinstance(error, (ConnectionLost, Closed, ConnectFailed))

    run(main())


# Threads.


@pytest.mark.parametrize("verb", ["command", "pipeline", "load", "subscribe", "send"])
def test_a_reader_interrupted_anywhere_while_it_serves_another(fake: Fakes, verb: str) -> None:
    """Both answers come at once. The other gets its own, or hears that the connection is gone."""
    script = Script("shared", "return ARGV[1]")
    load = b"$40\r\n%b\r\n" % script.sha.encode()
    # What the other says, its answer, and the call.
    calls: dict[str, tuple[bytes, bytes, Callable[[], Any]]] = {
        "command": (b"ECHO", b"+theirs\r\n", lambda: connector.command("ECHO", "theirs")),
        "pipeline": (b"GET", b"+theirs\r\n" * 3, lambda: connector.pipeline([("GET", "k")] * 3)),
        "load": (b"SCRIPT", load, lambda: connector.transaction([script()])),
        "subscribe": (b"SUBSCRIBE", HELLO, lambda: connector.subscribe("news")),
        "send": (b"CLIENT", b"+OK\r\n", lambda: connector.send([("SET", "k", 1)])),
    }
    name, answer, call = calls[verb]
    connector: Connector
    begun = threading.Event()
    quiet = threading.Event()

    def both_at_once(peer: Peer) -> None:
        peer.hello()
        waiting = b""
        for command in peer.commands():
            if command[-1] == b"mine":
                waiting = b"+mine\r\n"
                begun.set()
            elif command[0] == name:
                until(lambda: _asleep(connector) or quiet.is_set())
                peer.send(waiting + answer)
                break
        for command in peer.commands():
            if command[0] == b"EXEC":
                peer.send(b"*1\r\n+ran\r\n")
            elif command[0] not in (b"GET", b"HELLO", b"SET", b"CLIENT"):
                peer.send(b"+QUEUED\r\n" if verb == "load" else b"+late\r\n")

    server = fake(both_at_once)

    def follow() -> Any:
        assert begun.wait(PATIENCE_S)
        until(lambda: _reading(connector) or quiet.is_set())
        return call()

    def attempt(interrupt: Interrupt) -> None:
        nonlocal connector
        begun.clear()
        quiet.clear()
        with connect(server.url, timeout=10) as connector:
            other = begin(follow)
            interrupted(interrupt, lambda: connector.command("ECHO", "mine"))
            begun.set()
            quiet.set()
            wait([other], 5)
            assert other.done(), "another hangs"
            error = other.exception()
            assert error is None or isinstance(error, ConnectionLost), f"another's: {error!r}"

    every_interrupt(attempt, 10)


def _reading(connector: Connector) -> bool:
    link = connector._link
    return link is not None and link._reader is not None


def _asleep(connector: Connector) -> bool:
    link = connector._link
    return link is not None and bool(link._sleepers)


def right_again(connector: Connector) -> None:
    """The next calls are right. One of them may hear first that the connection is gone."""
    with contextlib.suppress(ConnectionLost):
        assert connector.command("ECHO", "next") == b"next"
    for word in (b"after", b"and after"):
        assert connector.command("ECHO", word) == word
    assert connector.stats()["pending"] == 0


VERBS: Final[dict[str, Callable[[Connector], Any]]] = {
    "transaction": lambda c: c.transaction([("ECHO", "a"), ("ECHO", "b")]),
    "transaction of scripts": lambda c: c.transaction([fresh_script()((), ["a"])]),
    "send": lambda c: c.send([("SET", "k", 1), ("SET", "k", 2)]),
    "subscribe": lambda c: c.subscribe("news"),
}


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_interrupted_anywhere(server: Any, verb: str) -> None:
    call = VERBS[verb]

    def attempt(interrupt: Interrupt) -> None:
        with connect(server.url, timeout=5) as connector:
            call(connector)
            interrupted(interrupt, lambda: call(connector))
            right_again(connector)
            with contextlib.suppress(ConnectionLost):
                call(connector)
            call(connector)
            right_again(connector)

    every_interrupt(attempt, 10)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_transaction_that_watches_interrupted_anywhere(server: Any, fresh_name: str) -> None:
    """Its connection is dialled within the call. No key stays watched, for those who come after."""
    other = fresh_name + "other"

    def attempt(interrupt: Interrupt) -> None:
        with connect(server.url, timeout=5) as connector:
            interrupted(
                interrupt,
                lambda: connector.transaction(counting(fresh_name), watch=[fresh_name]),
            )
            server.admin.set(fresh_name, 0)
            assert connector.transaction(counting(other), watch=[other]) == ["OK"]
            right_again(connector)

    every_interrupt(attempt, 10)


def test_a_read_of_a_subscription_interrupted_anywhere(server: Any, fresh_name: str) -> None:
    """A message that was taken may go with the interrupt; none after it is lost."""

    def attempt(interrupt: Interrupt) -> None:
        with (
            connect(server.url, timeout=5) as connector,
            connector.subscribe(fresh_name) as subscription,
        ):
            server.admin.publish(fresh_name, "first")
            first = interrupted(interrupt, lambda: subscription.get(5))
            assert first is KeyboardInterrupt or first.payload == b"first"
            right_again(connector)  # if the connection has ended, it is made anew
            server.admin.publish(fresh_name, "second")
            payloads = []
            while b"second" not in payloads:
                message = subscription.get(5)
                assert message is not None
                payloads.append(message.payload)
            assert payloads in ([b"second"], [b"first", b"second"])
            right_again(connector)

    every_interrupt(attempt, 10)


def test_a_close_of_a_subscription_interrupted_anywhere(server: Any, fresh_name: str) -> None:
    def attempt(interrupt: Interrupt) -> None:
        with connect(server.url, timeout=5) as connector:
            subscription = connector.subscribe(fresh_name)
            other = connector.subscribe(fresh_name + "other")
            interrupted(interrupt, subscription.close)
            subscription.close()
            assert connector._registry.wanted == [other._inbox]
            right_again(connector)
            with pytest.raises(Closed):
                subscription.get(0.1)
            server.admin.publish(fresh_name + "other", "heard")
            message = other.get(5)
            assert message is not None

    every_interrupt(attempt, 10)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("begins", ["with the dial", "after it"])
def test_tls_interrupted_anywhere(server: Any, certificates: Certificates, begins: str) -> None:
    context = certificates.trusting()
    with TlsRelay((server.host, server.port), certificates.good) as relay:
        url = f"valkeys://127.0.0.1:{relay.port}"

        def attempt(interrupt: Interrupt) -> None:
            with connect(url, timeout=5, tls=context) as connector:
                link: Any = connector._link
                if begins == "with the dial":
                    link.end("the test cut it")
                reply = interrupted(interrupt, lambda: connector.command("ECHO", "mine"))
                assert reply in (b"mine", KeyboardInterrupt)
                right_again(connector)

        every_interrupt(attempt, 10)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that hits a GC
@pytest.mark.parametrize("scheme", ["valkey", "valkeys"])
def test_signals_at_any_time_in_any_verb(
    server: Any, certificates: Certificates, fresh_name: str, scheme: str
) -> None:
    """Other threads that use the connector hear at the most that the connection is gone."""
    random_ = random.Random(3)
    over = threading.Event()
    armed = False
    hits = 0

    def on_alarm(*_: object) -> None:
        nonlocal armed, hits
        if armed:
            armed = False
            hits += 1
            raise KeyboardInterrupt

    def work(number: int) -> int:
        for turn in itertools.count():
            if over.is_set():
                return turn
            name = b"%d.%d" % (number, turn)
            with contextlib.suppress(ConnectionLost):
                assert connector.command("ECHO", name) == name
        return 0

    def listen() -> None:
        with connector.subscribe(fresh_name) as subscription:
            subscription.get(0.001)

    calls: list[Callable[[], Any]] = [
        lambda: connector.transaction([("ECHO", "x"), fresh_script()((), ["x"])]),
        lambda: connector.transaction(counting(fresh_name), watch=[fresh_name]),
        lambda: connector.send([("SET", fresh_name + "k", n) for n in range(300)]),
        lambda: connector.pipeline(MANY),
        lambda: connector.eval(fresh_script(), (), ["x"]),
        listen,
    ]
    with TlsRelay((server.host, server.port), certificates.good) as relay:
        secure = f"valkeys://127.0.0.1:{relay.port}"
        options = {"tls": certificates.trusting()} if scheme == "valkeys" else {}
        connector = connect(secure if options else server.url, timeout=5, **options)
        workers = [begin(work, number) for number in range(2)]
        before = signal.signal(signal.SIGALRM, on_alarm)
        try:
            for turn in range(1000):
                call = calls[turn % len(calls)]
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, random_.uniform(0.00005, 0.003))
                    call()
                except (KeyboardInterrupt, ConnectionLost, TransactionAborted, ConnectFailed):
                    pass
                finally:
                    armed = False
                if hits >= 120 or any(worker.done() for worker in workers):
                    break
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            over.set()
        for worker in workers:
            assert worker.result(10)
        assert hits >= 60
        right_again(connector)
        for _ in range(2):
            with contextlib.suppress(ConnectionLost):
                connector.transaction(counting(fresh_name), watch=[fresh_name])
        assert connector.transaction(counting(fresh_name), watch=[fresh_name]) == ["OK"]
        connector.close()


def test_an_interrupt_of_a_wait_before_dialling_again(server: Any) -> None:
    def on_alarm(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        with (
            Proxy((server.host, server.port)) as proxy,
            connect(proxy.url, backoff=(1, 1)) as connector,
        ):
            proxy.refuse = True
            proxy.links[-1].cut()
            for _ in range(2):
                with pytest.raises((ConnectFailed, ConnectionLost)):
                    connector.command("ECHO", "lost", timeout=0.05)
            waiting = begin(connector.command, "ECHO", "theirs", timeout=PATIENCE_S)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                connector.command("ECHO", "mine")
            proxy.refuse = False
            assert waiting.result(PATIENCE_S) == b"theirs"
            right_again(connector)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

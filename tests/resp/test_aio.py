"""What only tasks can do: share the transport by the thousand, and be cancelled at any await."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import pytest

from resp import (
    AsyncConnector,
    Closed,
    ConnectFailed,
    ConnectionLost,
    ErrorReply,
    Plan,
    ReplyTimeout,
    Script,
    Tap,
    TransportError,
    WrongLoop,
    connect_async,
)

from .conftest import LOOPS, Fakes, loop_factory
from .fake import PATIENCE_S, Peer

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]

SCRIPT: Final = Script("one", "return 1")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Any:
    """Runs a coroutine on each event loop; nothing may be left behind by it."""
    factory = loop_factory(request.param)

    def go(coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def main() -> Any:
            answer = await asyncio.wait_for(coroutine, 60)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks left behind: {left}"
            return answer

        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())

    yield go
    gc.collect()  # an unclosed transport says so now, and in this test


def echo(peer: Peer) -> None:
    peer.hello()
    for command in peer.commands():
        peer.echo(command)


async def reached(event: threading.Event, within: float = PATIENCE_S) -> None:
    """Wait for a thread's event without holding the loop."""
    assert await asyncio.to_thread(event.wait, within)


async def routed(connector: AsyncConnector, count: int = 20) -> None:
    """Every call gets its own reply, at the first try."""
    names = [b"%d" % number for number in range(count)]
    assert await asyncio.gather(*(connector.command("ECHO", name) for name in names)) == names
    assert connector.stats()["pending"] == 0


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Sharing.


def test_each_of_a_thousand_tasks_gets_its_own_reply(run: Any, server: Any) -> None:
    async def main() -> None:
        async with await connect_async(server.url, timeout=PATIENCE_S) as connector:
            for _ in range(3):
                await routed(connector, 1000)

    run(main())


def test_a_thousand_tasks_increment_keys_of_their_own(
    run: Any, server: Any, fresh_name: str
) -> None:
    async def main() -> None:
        async with await connect_async(server.url, timeout=PATIENCE_S) as connector:

            async def work(number: int) -> list[Any]:
                key = f"{fresh_name}:{number}"
                one = await connector.command("INCR", key)
                return [one, *await connector.pipeline([("INCR", key)] * 2)]

            answers = await asyncio.gather(*(work(number) for number in range(1000)))
            assert answers == [[1, 2, 3]] * 1000

    run(main())


def test_tasks_that_meet_join_their_writes(run: Any, server: Any) -> None:
    async def main() -> None:
        tap = Tap()
        async with await connect_async(server.url, tap=tap) as connector:
            tap.clear()
            await routed(connector, 100)
            writes = [record.data for record in tap if record.sent]
            assert sum(data.count(b"ECHO") for data in writes) == 100
            assert len(writes) <= 10
            assert writes[0].count(b"ECHO") == 1, "the first goes at once"

    run(main())


def test_a_quiet_connection_is_written_at_once(run: Any, server: Any) -> None:
    """Before the loop's turn ends: nothing else is coming."""

    async def main() -> None:
        tap = Tap()
        async with await connect_async(server.url, tap=tap) as connector:
            tap.clear()
            call = connector.command("PING")
            call.send(None)
            assert [record.sent for record in tap] == [True]
            call.close()
            assert await connector.command("ECHO", "next") == b"next"

    run(main())


def test_a_tenth_of_the_tasks_is_late(run: Any, fake: Fakes) -> None:
    gate = threading.Event()

    def serve(peer: Peer) -> None:
        peer.hello()
        waiting = [peer.command() for _ in range(100)]
        peer.wait(gate)
        for command in waiting:
            peer.echo(command)
        for command in peer.commands():
            peer.echo(command)

    async def main(url: str) -> None:
        async with await connect_async(url, timeout=PATIENCE_S) as connector:

            async def work(number: int) -> Any:
                late = number % 10 == 0
                try:
                    return await connector.command("ECHO", number, timeout=0.02 if late else 10)
                except ReplyTimeout:
                    return "late"

            tasks = [asyncio.create_task(work(number)) for number in range(100)]
            assert [await task for task in tasks[::10]] == ["late"] * 10
            gate.set()
            for number, task in enumerate(tasks):
                assert await task == ("late" if number % 10 == 0 else b"%d" % number)
            await routed(connector)

    run(main(fake(serve).url))


# Cancellation.


@pytest.mark.parametrize("verb", ["command", "pipeline", "run"])
def test_a_cancelled_call_keeps_its_place(run: Any, fake: Fakes, verb: str) -> None:
    asked, gate = threading.Event(), threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        first = peer.command()
        asked.set()
        peer.wait(gate)
        peer.echo(first)
        for command in peer.commands():
            peer.echo(command)

    def plan() -> Plan[Any]:
        return (yield ("ECHO", "first"))

    async def main(url: str) -> None:
        async with await connect_async(url) as connector:
            calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
                "command": lambda: connector.command("ECHO", "first"),
                "pipeline": lambda: connector.pipeline([("ECHO", "first")]),
                "run": lambda: connector.run(plan()),
            }
            task = asyncio.create_task(calls[verb]())
            await reached(asked)
            await cancelled(task)
            assert connector.stats()["pending"] == 1
            gate.set()
            await routed(connector)
            assert connector.stats()["reconnects"] == 0

    run(main(fake(slow).url))


def test_cancellation_at_every_turn_of_the_loop(run: Any, server: Any, fresh_name: str) -> None:
    """Dialling, the answer to HELLO, a call, a pipeline, a script's three steps: all are cut."""
    numbers = itertools.count()

    async def main() -> None:
        for attempt in range(400):
            turns = attempt % 40
            script = Script("s", f"return 1 -- {next(numbers)} {fresh_name}")

            async def all_of_it(script: Script = script) -> None:
                await connector.command("ECHO", "one")
                await connector.pipeline([("ECHO", "many")] * 300)
                await connector.eval(script)
                await connector.pipeline([script(), ("ECHO", "after"), script()])

            async with await connect_async(server.url) as connector:
                if attempt % 2:
                    connector._link.end("the test cut it")  # type: ignore[union-attr]
                tasks = [asyncio.create_task(all_of_it()) for _ in range(2)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                tasks[0].cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)
                assert done[0] is None or isinstance(done[0], asyncio.CancelledError)
                assert done[1] is None, "the other is not disturbed"
                await routed(connector, 5)

    run(main())


def test_a_thousand_cancellations_on_one_connection(run: Any, server: Any) -> None:
    async def main() -> None:
        async with await connect_async(server.url) as connector:
            for attempt in range(1000):
                tasks = [
                    asyncio.create_task(connector.command("ECHO", f"{attempt}.{number}"))
                    for number in range(3)
                ]
                for _ in range(attempt % 6):
                    await asyncio.sleep(0)
                tasks[attempt % 3].cancel()
                replies = await asyncio.gather(*tasks, return_exceptions=True)
                for number, reply in enumerate(replies):
                    if number == attempt % 3 and isinstance(reply, asyncio.CancelledError):
                        continue
                    assert reply == b"%d.%d" % (attempt, number)
            await routed(connector)
            assert connector.stats()["reconnects"] == 0
            assert not connector._link.protocol.everybody()  # type: ignore[union-attr]

    run(main())


@pytest.mark.parametrize("when", ["dialling", "hello"])
def test_who_is_cancelled_while_dialling_does_not_take_the_others_along(
    run: Any, fake: Fakes, when: str
) -> None:
    asked, gate = threading.Event(), threading.Event()

    def cut(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    def slow(peer: Peer) -> None:
        asked.set()
        peer.wait(gate)
        echo(peer)

    server = fake(cut, slow)

    async def main() -> None:
        async with await connect_async(server.url) as connector:
            with pytest.raises(ConnectionLost):
                await connector.command("ECHO", "lost")
            first, second = (
                asyncio.create_task(connector.command("ECHO", number)) for number in range(2)
            )
            if when == "hello":
                await reached(asked)
            else:
                await asyncio.sleep(0)
            await cancelled(first)
            gate.set()
            assert await second == b"1"
            await routed(connector)
            assert len(server.peers) == 2

    run(main())


@pytest.mark.parametrize("verb", ["connect_async", "sibling"])
def test_who_gives_up_connecting_leaves_no_connection_behind(
    run: Any, fake: Fakes, verb: str
) -> None:
    asked, gate, gone = threading.Event(), threading.Event(), threading.Event()

    def slow(peer: Peer) -> None:
        assert peer.command()[0] == b"HELLO"
        asked.set()
        peer.wait(gate)
        peer.swallow()
        gone.set()

    async def main(url: str) -> None:
        first = await connect_async(url) if verb == "sibling" else None
        dial = first.sibling() if first is not None else connect_async(url)
        task: asyncio.Task[AsyncConnector] = asyncio.create_task(dial)
        await reached(asked)
        await cancelled(task)
        gate.set()
        await reached(gone, within=2)
        if first is not None:
            await first.close()

    run(main(fake(echo, slow).url if verb == "sibling" else fake(slow).url))


def test_a_cancelled_loader_does_not_take_the_others_along(run: Any, fake: Fakes) -> None:
    asked, gate = threading.Event(), threading.Event()
    noscript = b"-NOSCRIPT No matching script.\r\n"

    def play(peer: Peer) -> None:
        peer.hello()
        for _ in range(3):
            assert peer.command()[0] == b"EVALSHA"
        peer.send(noscript * 3)
        peer.expect("SCRIPT", "LOAD", SCRIPT.source)
        asked.set()
        peer.wait(gate)
        peer.send(b"$40\r\n%b\r\n" % SCRIPT.sha.encode())
        for command in peer.commands():
            peer.echo(command)

    server = fake(play)

    async def main() -> None:
        async with await connect_async(server.url) as connector:
            tasks = [
                asyncio.create_task(connector.eval(SCRIPT, (), (f"call {number}",)))
                for number in range(3)
            ]
            await reached(asked)
            await cancelled(tasks[0])
            gate.set()
            assert [await task for task in tasks[1:]] == [b"call 1", b"call 2"]
            await routed(connector)

    run(main())
    assert server.peers[0].received.count(b"LOAD") == 1
    assert b"call 0" not in server.peers[0].received.partition(b"LOAD")[2]


def test_a_call_cancelled_while_the_transport_is_full_sends_nothing(run: Any, fake: Fakes) -> None:
    gate = threading.Event()

    def deaf(peer: Peer) -> None:
        peer.hello()
        peer.wait(gate)
        for command in peer.commands():
            peer.send(b"$1\r\n%b\r\n" % command[-1][:1])

    server = fake(deaf, receive_buffer=16_384)

    async def main() -> None:
        async with await connect_async(server.url, timeout=PATIENCE_S) as connector:
            big = asyncio.create_task(connector.command("ECHO", b"b" * (16 << 20)))
            await asyncio.sleep(0)
            waiting = [asyncio.create_task(connector.command("ECHO", n)) for n in range(3)]
            await asyncio.sleep(0)
            await cancelled(waiting[0])
            with pytest.raises(ReplyTimeout) as caught:
                await connector.command("ECHO", "x", timeout=0.02)
            assert not caught.value.may_have_run
            gate.set()
            assert await big == b"b"
            assert [await task for task in waiting[1:]] == [b"1", b"2"]

    run(main())
    assert b"$1\r\n0\r\n" not in server.peers[0].received


# Ends.


def test_an_idle_connection_that_ends_is_dialled_again_before_the_next_call(
    run: Any, fake: Fakes
) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        peer.close()

    async def main(url: str) -> None:
        async with await connect_async(url) as connector:
            while connector.stats()["status"] == "connected":
                await asyncio.sleep(0)
            assert await connector.command("ECHO", "next") == b"next"
            assert connector.stats()["reconnects"] == 1

    run(main(fake(cut, echo).url))


def test_close_while_dialling(run: Any, fake: Fakes) -> None:
    asked = threading.Event()

    def cut(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    def mute(peer: Peer) -> None:
        asked.set()
        peer.swallow()

    async def main(url: str) -> None:
        connector = await connect_async(url)
        with pytest.raises(ConnectionLost):
            await connector.command("ECHO", "lost")
        task = asyncio.create_task(connector.command("ECHO", "x"))
        await reached(asked)
        await connector.close()
        with pytest.raises(Closed):
            await task
        with pytest.raises(Closed):
            await connector.command("PING")

    run(main(fake(cut, mute).url))


def test_who_is_cancelled_while_closing_is_cancelled(run: Any, fake: Fakes) -> None:
    asked = threading.Event()

    def cut(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    def mute(peer: Peer) -> None:
        asked.set()
        peer.swallow()

    async def main(url: str) -> None:
        connector = await connect_async(url)
        with pytest.raises(ConnectionLost):
            await connector.command("ECHO", "lost")
        task = asyncio.create_task(connector.command("ECHO", "x"))
        await reached(asked)
        task.cancel()
        await connector.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main(fake(cut, mute).url))


def test_a_dial_that_fails_fails_all_who_wait_for_it(run: Any, fake: Fakes) -> None:
    def cut(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    def refuse(peer: Peer) -> None:
        peer.command()
        peer.send(b"-ERR not now\r\n")

    server = fake(cut, refuse, echo)

    async def main() -> None:
        async with await connect_async(server.url) as connector:
            with pytest.raises(ConnectionLost):
                await connector.command("ECHO", "lost")
            errors = await asyncio.gather(
                *(connector.command("ECHO", n) for n in range(5)), return_exceptions=True
            )
            assert all(isinstance(error, ConnectFailed) for error in errors)
            await routed(connector)
            assert len(server.peers) == 3

    run(main())


def test_a_pipeline_and_single_calls_side_by_side(run: Any, server: Any) -> None:
    async def main() -> None:
        async with await connect_async(server.url, timeout=PATIENCE_S) as connector:
            pipeline, _, again = await asyncio.gather(
                connector.pipeline([("ECHO", n) for n in range(2000)]),
                routed_while_busy(connector),
                connector.pipeline([("ECHO", n) for n in range(2000)] + [("NOSUCH",)]),
            )
            assert pipeline == again[:-1] == [b"%d" % n for n in range(2000)]
            assert isinstance(again[-1], ErrorReply)

    async def routed_while_busy(connector: AsyncConnector) -> None:
        for number in range(50):
            assert await connector.command("ECHO", number) == b"%d" % number

    run(main())


def test_transport_errors_leave_no_timer_behind(run: Any, fake: Fakes) -> None:
    def mute(peer: Peer) -> None:
        peer.hello()
        peer.swallow()

    async def main(url: str) -> None:
        connector = await connect_async(url)
        calls = [
            asyncio.create_task(connector.command("PING", timeout=timeout))
            for timeout in (100, 0.02, 200, 0.04)
        ]
        for late in (calls[1], calls[3]):
            with pytest.raises(ReplyTimeout):
                await late
        link = connector._link
        assert link is not None
        assert link._alarm is not None
        await connector.close()
        assert link._alarm is None
        for call in (calls[0], calls[2]):
            with pytest.raises(TransportError):
                await call

    run(main(fake(mute).url))


def test_a_timeout_that_is_over_at_once_disturbs_nobody(run: Any, server: Any) -> None:
    """Not every loop's timer says when it rings."""

    async def main() -> None:
        connector = await connect_async(server.url)

        async def hurried() -> None:
            with contextlib.suppress(ReplyTimeout):
                await connector.command("PING", timeout=1e-6)

        for _ in range(100):
            words = [str(number).encode() for number in range(5)]
            calls = [connector.command("ECHO", word) for word in words]
            _, *answers = await asyncio.gather(hurried(), *calls)
            assert answers == words
        link = connector._link
        assert link is not None
        assert not link.protocol.everybody()
        await connector.close()

    run(main())


def test_a_connector_is_of_one_loop(server: Any, fresh_name: str) -> None:
    """Nothing is sent from another one: the command would run, and nobody get its reply."""
    loop = asyncio.new_event_loop()
    connector = loop.run_until_complete(connect_async(server.url))

    async def elsewhere() -> None:
        for call in (
            lambda: connector.command("INCR", fresh_name),
            lambda: connector.pipeline([("INCR", fresh_name)]),
            lambda: connector.eval(SCRIPT, [fresh_name]),
            connector.close,
        ):
            with pytest.raises(WrongLoop, match="another event loop"):
                await call()

    asyncio.run(elsewhere())
    assert not server.admin.exists(fresh_name)
    loop.run_until_complete(connector.close())
    loop.close()


def test_closing_after_the_loop_is_over(server: Any) -> None:
    loop = asyncio.new_event_loop()
    connector = loop.run_until_complete(connect_async(server.url))
    link = connector._link
    assert link is not None
    link.end("over")
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    asyncio.run(connector.close())
    assert connector.stats()["status"] == "closed"


def test_a_connector_that_is_dropped_says_so_and_closes(run: Any, server: Any) -> None:
    async def main() -> None:
        holder = [await connect_async(server.url)]
        identity = await holder[0].command("CLIENT", "ID")
        with pytest.warns(ResourceWarning, match="unclosed"):
            holder.clear()
        await asyncio.sleep(0.01)
        assert str(identity) not in {client["id"] for client in server.admin.client_list()}

    run(main())

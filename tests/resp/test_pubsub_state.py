"""Who is subscribed to what, without a server: inboxes, the registry, pushes."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from resp import Closed, Decoder, ErrorReply, Message, Push, ServerError
from resp.protocol import Waiter
from resp.pubsub import Feed, Inbox, Overflow, Registry, Verb

VERBS: Final[tuple[Verb, ...]] = ("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE")
KINDS: Final[dict[str, bytes]] = dict(
    zip(VERBS, (b"message", b"pmessage", b"smessage"), strict=True)
)
HELLO: Final = [b"HELLO"]


def inbox(
    *channels: str | bytes,
    verb: Verb = "SUBSCRIBE",
    capacity: int = 100,
    overflow: Overflow = "drop-oldest",
) -> Inbox:
    return Inbox(verb, channels, capacity, overflow)


def registry(pushes: list[Push] | None = None) -> Registry:
    return Registry(contextlib.nullcontext(), None if pushes is None else pushes.append)


def begun(pushes: list[Push] | None = None) -> tuple[Registry, Feed]:
    """A registry, and its first connection."""
    made = registry(pushes)
    return made, made.feed()


def commands(data: bytes | None) -> list[list[bytes]]:
    """What is said to the server, as lists of words."""
    return cast(Any, Decoder().decode(data)) if data else []


def enter(wanted: Registry, read: Inbox, feed: Feed) -> list[list[bytes]]:
    """Record that `read` wants its channels; what is said on the connection."""
    return commands(wanted.enter(read, feed))


def again(read: Inbox, feed: Feed) -> list[list[bytes]]:
    """What is said on a new connection."""
    return commands(feed.entering(read))


def leave(wanted: Registry, read: Inbox, feed: Feed) -> list[list[bytes]]:
    """Record that `read` wants no more; what is said on the connection."""
    wanted.leave(read)
    said = [words for data in wanted.surplus(feed) for words in commands(data)]
    feed.forget()
    return said


def test_a_lost_connection_delivers_nothing_behind_the_next() -> None:
    wanted = Registry(contextlib.nullcontext(), None)
    read = Inbox("SUBSCRIBE", ["a"], 10, "drop-oldest")
    lost = wanted.feed()
    enter(wanted, read, lost)
    lost(Push("message", [b"a", b"1"]))
    feed = wanted.feed()
    again(read, feed)
    feed(Push("message", [b"a", b"3"]))
    lost(Push("message", [b"a", b"2"]))  # what a thread had read of it, and hands out late
    assert payloads(read) == [b"1", b"3"]


def payloads(read: Inbox) -> list[bytes]:
    came = []
    while len(read):
        message = read.take()
        assert message is not None
        came.append(message.payload)
    return came


def note(payload: bytes, channel: bytes = b"a") -> Message:
    return Message(channel, payload)


def message(channel: bytes, payload: bytes, verb: str = "SUBSCRIBE") -> Push:
    items: list[Any] = [channel, payload]
    return Push(KINDS[verb].decode(), [channel, *items] if verb == "PSUBSCRIBE" else items)


# An inbox.


def test_messages_are_taken_in_the_order_in_which_they_came() -> None:
    read = inbox("a")
    for number in range(5):
        read.put(note(b"%d" % number))
    assert len(read) == 5
    assert payloads(read) == [b"0", b"1", b"2", b"3", b"4"]
    assert read.take() is None


@pytest.mark.parametrize("capacity", [1, 2, 7])
def test_the_oldest_give_way(capacity: int) -> None:
    read = inbox("a", capacity=capacity)
    for number in range(10):
        read.put(note(b"%d" % number))
    assert read.dropped == 10 - capacity
    assert payloads(read) == [b"%d" % number for number in range(10 - capacity, 10)]


def test_one_too_many_closes_it() -> None:
    read = inbox("a", capacity=2, overflow="close")
    for number in range(5):
        read.put(note(b"%d" % number))
    assert payloads(read) == [b"0", b"1"]
    for _ in range(2):
        with pytest.raises(Closed, match="2 messages that nobody had read"):
            read.take()
    assert read.dropped == 0


def test_the_first_reason_for_an_end_stands() -> None:
    read = inbox("a")
    read.put(note(b"before"))
    read.end(Closed("first"))
    read.end(Closed("second"))
    read.put(note(b"after"))
    assert payloads(read) == [b"before"]
    with pytest.raises(Closed, match="first"):
        read.take()


def test_all_who_wait_are_woken_by_a_message_and_by_the_end() -> None:
    read = inbox("a")
    wakes: list[Callable[[], None]] = [lambda: read.put(note(b"x")), lambda: read.end(Closed())]
    for wake in wakes:
        waiters = [Waiter(b"", 0) for _ in range(3)]
        read.parked = dict.fromkeys(waiters)
        wake()
        assert all(waiter.done for waiter in waiters)


def test_a_reader_may_take_the_last_message_just_when_it_would_be_dropped() -> None:
    class Taken(deque[Message]):
        """Somebody takes all as soon as somebody has looked how many there are."""

        def __len__(self) -> int:
            count = super().__len__()
            self.clear()
            return count

    read = inbox("a", capacity=1)
    read.put(note(b"1"))
    read._messages = Taken(read._messages)
    read.put(note(b"2"))
    assert read.take() == note(b"2")


def test_channels_are_named_once_and_in_bytes() -> None:
    assert inbox("b", b"a", "b", "é").channels == (b"b", b"a", "é".encode())


# The registry.


def test_the_commands_of_a_subscription_end_with_hello() -> None:
    for verb in VERBS:
        wanted, feed = begun()
        first, second = inbox("a", "b", verb=verb), inbox("b", "c", verb=verb)
        assert enter(wanted, first, feed) == [[verb.encode(), b"a", b"b"], HELLO]
        assert enter(wanted, second, feed) == [[verb.encode(), b"b", b"c"], HELLO]
        word = verb.replace("SUB", "UNSUB").encode()
        assert leave(wanted, first, feed) == [[word, b"a"], HELLO]
        assert leave(wanted, second, feed) == [[word, b"b", b"c"], HELLO]
        assert wanted.wanted == []


def test_a_subscription_that_was_left_is_left_once() -> None:
    wanted, feed = begun()
    first, second = inbox("a"), inbox("a")
    enter(wanted, first, feed)
    enter(wanted, second, feed)
    for _ in range(3):
        assert leave(wanted, first, feed) in ([], [HELLO])
    assert leave(wanted, inbox("a"), feed) in ([], [HELLO])
    feed(message(b"a", b"x"))
    assert (payloads(first), payloads(second)) == ([], [b"x"])


def test_what_is_wanted_is_asked_for_in_the_order_in_which_it_was() -> None:
    wanted, feed = begun()
    many = [inbox(f"{number}") for number in range(5)]
    for each in many:
        enter(wanted, each, feed)
    leave(wanted, many[2], feed)
    assert wanted.wanted == [many[0], many[1], many[3], many[4]]
    assert again(many[0], feed) == [[b"SUBSCRIBE", b"0"], HELLO]


def test_a_new_connection_counts_a_gap_or_ends_what_was_refused() -> None:
    wanted, feed = begun()
    kept, refused = inbox("a", "b"), inbox("a")
    enter(wanted, kept, feed)
    enter(wanted, refused, feed)
    wanted.again(kept, None)
    wanted.again(refused, ErrorReply("NOPERM", "NOPERM no"))
    assert (kept.gaps, refused.gaps) == (1, 0)
    assert wanted.wanted == [kept]
    feed(message(b"a", b"x"))
    assert payloads(kept) == [b"x"]
    with pytest.raises(ServerError, match="NOPERM no"):
        refused.take()


# The pushes of a connection.


@pytest.mark.parametrize("verb", VERBS)
def test_a_message_goes_to_all_that_want_its_channel_and_kind(verb: Verb) -> None:
    other: list[Push] = []
    wanted, feed = begun(other)
    mine = [inbox("a", "b", verb=verb), inbox("a", verb=verb)]
    theirs = [inbox("a", verb=each) for each in VERBS if each != verb]
    for each in (*mine, *theirs):
        enter(wanted, each, feed)
    feed(message(b"a", b"x", verb))
    assert [payloads(each) for each in mine] == [[b"x"], [b"x"]]
    assert [payloads(each) for each in theirs] == [[], []]
    assert other == []


def test_a_pattern_is_told_with_the_channel() -> None:
    wanted, feed = begun()
    read = inbox("n*", verb="PSUBSCRIBE")
    enter(wanted, read, feed)
    feed(Push("pmessage", [b"n*", b"news", b"x"]))
    assert read.take() == Message(b"news", b"x", b"n*")


@pytest.mark.parametrize(
    "push",
    [
        Push("invalidate", [[b"k"]]),
        Push("invalidate", [None]),
        Push("tracking-redir-broken", [7]),
        Push("message", []),
        Push("message", [b"a"]),
        Push("message", [b"a", b"x", b"y"]),
        Push("message", [b"a", 1]),
        Push("message", [["a"], b"x"]),
        Push("message", [{}, {}]),
        Push("message", [b"unwanted", b"x"]),
        Push("pmessage", [b"a", b"x"]),
        Push("smessage", [b"a", b"x"]),
        Push("Message", [b"a", b"x"]),
        Push("", []),
    ],
    ids=repr,
)
def test_what_is_no_message_of_a_subscription_goes_to_the_hook(push: Push) -> None:
    other: list[Push] = []
    wanted, feed = begun(other)
    read = inbox("a")
    enter(wanted, read, feed)
    feed(push)
    assert other == [push]
    assert (payloads(read), read.ended) == ([], None)
    registry().feed()(push)  # without a hook


@pytest.mark.parametrize(
    "items", [[], [None, 0], [[b"a"], 0], [{}, 0], [b"b", 0], [1, 0]], ids=repr
)
def test_an_end_of_what_nobody_has_ends_nothing(items: list[Any]) -> None:
    wanted, feed = begun()
    read = inbox("a")
    enter(wanted, read, feed)
    for kind in ("unsubscribe", "punsubscribe", "sunsubscribe", "subscribe"):
        feed(Push(kind, items))
    feed(Push("sunsubscribe", [b"a", 0]))  # of another kind
    assert read.ended is None


def test_the_end_that_was_asked_for_is_told_from_the_servers_own() -> None:
    wanted, feed = begun()
    first, second = inbox("a"), inbox("a")
    enter(wanted, first, feed)
    leave(wanted, first, feed)
    enter(wanted, second, feed)
    feed(Push("subscribe", [b"a", 1]))
    feed(Push("unsubscribe", [b"a", 0]))
    feed(Push("subscribe", [b"a", 1]))
    assert second.ended is None
    feed(Push("unsubscribe", [b"a", 0]))
    with pytest.raises(Closed, match="the server ended the subscription to a"):
        second.take()


def test_a_new_connection_owes_no_confirmations_of_the_one_before() -> None:
    wanted, feed = begun()
    first, second = inbox("a"), inbox("a")
    enter(wanted, first, feed)
    leave(wanted, first, feed)
    enter(wanted, second, feed)
    wanted.feed()(Push("unsubscribe", [b"a", 0]))
    assert second.ended is not None


def test_confirmations_that_came_are_forgotten() -> None:
    wanted, feed = begun()
    for number in range(100):
        read = inbox(f"{number}")
        enter(wanted, read, feed)
        leave(wanted, read, feed)
        feed(Push("unsubscribe", [b"%d" % number, 0]))
    assert len(feed.leaving) == 0


# All of it, against a model of a server.


@dataclass(eq=False)
class Reader:
    """A subscription, and what its reader should find."""

    inbox: Inbox
    found: deque[bytes]
    dropped: int = 0
    taken: list[bytes] = field(default_factory=list)


class Wire(RuleBasedStateMachine):
    """A connector and a server with a slow wire either way, which is cut at any time.

    The server acts on one command at a time, in order. What it says waits until it is delivered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.registry = registry()
        self.readers: list[Reader] = []
        self.published = 0
        self.gaps = 0
        self.connect()

    def connect(self) -> None:
        self.feed: Feed = self.registry.feed()
        self.to_server: deque[list[bytes]] = deque()
        self.to_client: deque[Push] = deque()
        self.subscribed: set[tuple[str, bytes]] = set()

    def say(self, said: list[list[bytes]]) -> None:
        self.to_server.extend(words for words in said if words != HELLO)

    @rule(
        verb=st.sampled_from(VERBS),
        channels=st.lists(st.sampled_from("abc"), min_size=1, max_size=3),
        capacity=st.integers(1, 4),
    )
    def enter(self, verb: Verb, channels: list[str], capacity: int) -> None:
        read = inbox(*channels, verb=verb, capacity=capacity)
        self.readers.append(Reader(read, deque(maxlen=capacity)))
        self.say(enter(self.registry, read, self.feed))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        reader.inbox.end(Closed())
        self.say(leave(self.registry, reader.inbox, self.feed))
        assert payloads(reader.inbox) == list(reader.found)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        message = reader.inbox.take()
        found = reader.found.popleft() if reader.found else None
        assert (message.payload if message is not None else None) == found

    @precondition(lambda self: self.to_server)
    @rule()
    def serve(self) -> None:
        word, *channels = self.to_server.popleft()
        kind = word.decode()
        verb = kind.replace("UNSUB", "SUB")
        for channel in channels:
            change = self.subscribed.add if kind == verb else self.subscribed.discard
            change((verb, channel))
            self.to_client.append(Push(kind.lower(), [channel, 0]))

    @precondition(lambda self: self.subscribed)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        verb, channel = data.draw(st.sampled_from(sorted(self.subscribed)))
        self.published += 1
        self.to_client.append(message(channel, b"%d" % self.published, verb))

    @precondition(lambda self: self.to_client)
    @rule()
    def deliver(self) -> None:
        push = self.to_client.popleft()
        self.feed(push)
        if push.kind.encode() not in KINDS.values():
            return
        for reader in self.readers:
            wants = KINDS[reader.inbox.verb].decode() == push.kind
            if wants and push.items[0] in reader.inbox.channels:
                reader.dropped += len(reader.found) == reader.inbox.capacity
                reader.found.append(push.items[-1])

    @precondition(lambda self: not self.to_server and not self.to_client and self.subscribed)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """The server ends a subscription of its own accord."""
        at = data.draw(st.sampled_from(sorted(self.subscribed)))
        verb, channel = at
        self.subscribed.discard(at)
        self.feed(Push(verb.lower().replace("sub", "unsub"), [channel, 0]))
        ended = [
            reader
            for reader in self.readers
            if reader.inbox.verb == verb and channel in reader.inbox.channels
        ]
        for reader in ended:
            assert reader.inbox.ended is not None
            self.readers.remove(reader)
            self.say(leave(self.registry, reader.inbox, self.feed))

    @rule()
    def cut(self) -> None:
        self.connect()
        for read in self.registry.wanted:
            self.say(again(read, self.feed))
            self.registry.again(read, None)
        self.gaps += 1

    @invariant()
    def readers_stand_and_miss_nothing(self) -> None:
        assert self.registry.wanted == [reader.inbox for reader in self.readers]
        for reader in self.readers:
            assert reader.inbox.ended is None
            assert len(reader.inbox) == len(reader.found) <= reader.inbox.capacity
            assert reader.inbox.dropped == reader.dropped
            assert reader.inbox.gaps <= self.gaps

    @invariant()
    def the_server_sends_what_is_wanted_and_nothing_else(self) -> None:
        if self.to_server:
            return
        assert self.subscribed == {
            (reader.inbox.verb, channel)
            for reader in self.readers
            for channel in reader.inbox.channels
        }
        if not self.to_client:
            assert +self.feed.leaving == {}


TestWire = Wire.TestCase

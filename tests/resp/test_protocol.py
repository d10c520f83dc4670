"""Whose each reply is, without a socket."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from resp import (
    ConnectionLost,
    Decoder,
    ErrorReply,
    Overloaded,
    ProtocolError,
    Push,
    TransportError,
)
from resp.protocol import Counters, Protocol, Waiter

SHA = "a" * 40
OTHER = "b" * 40


class Asker(Waiter):
    """A waiter that counts how often it was told."""

    __slots__ = ("told",)

    def __init__(self, data: bytes = b"?", missing: int = 1) -> None:
        super().__init__(data, missing)
        self.told = 0

    def settle(self) -> None:
        super().settle()
        self.told += 1


def ask(protocol: Protocol, *sizes: int) -> list[Asker]:
    """Ask and write, one waiter a size."""
    askers = [Asker(missing=size) for size in sizes]
    for asker in askers:
        protocol.ask(asker)
    protocol.take_outbox()
    return askers


def stream(numbers: range) -> bytes:
    return b"".join(b":%d\r\n" % number for number in numbers)


def feed(protocol: Protocol, data: bytes, cuts: list[int]) -> None:
    ends = sorted({cut for cut in cuts if cut < len(data)} | {len(data)})
    for start, end in pairwise([0, *ends]):
        protocol.receive(data[start:end])


# Routing.


def test_one_reply_to_one_waiter() -> None:
    protocol = Protocol(Counters())
    (asker,) = ask(protocol, 1)
    assert protocol.pending == 1
    protocol.receive(b"+O")
    assert not asker.done
    protocol.receive(b"K\r\n")
    assert asker.replies == ["OK"]
    assert (asker.done, asker.told, asker.missing) == (True, 1, 0)
    assert protocol.pending == 0


def test_places_follow_the_order_of_asking() -> None:
    protocol = Protocol(Counters())
    first, second = Asker(b"1"), Asker(b"2")
    assert first.place == 0
    protocol.ask(first)
    protocol.ask(second)
    assert protocol.take_outbox() == b"12"
    (third,) = ask(protocol, 1)
    assert [first.place, second.place, third.place] == [1, 2, 3]
    assert list(protocol.owed) == [first, second, third]


def test_a_waiter_that_stands_in_the_outbox_is_owed_nothing_yet() -> None:
    protocol = Protocol(Counters())
    ask(protocol, 1)
    protocol.ask(Asker())
    with pytest.raises(ProtocolError, match="nobody is owed"):
        protocol.receive(b":1\r\n:2\r\n")


PUSH = b">2\r\n+news\r\n:7\r\n"


@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=12),
    pushes=st.lists(st.integers(0, 100), max_size=8),
    cuts=st.lists(st.integers(1, 1500), max_size=30),
)
def test_batches_cut_anywhere_with_pushes_anywhere(
    sizes: list[int], pushes: list[int], cuts: list[int]
) -> None:
    pushed: list[Push] = []
    counters = Counters()
    protocol = Protocol(counters, on_push=pushed.append)
    askers = ask(protocol, *sizes)
    total = sum(sizes)
    frames = [b":%d\r\n" % number for number in range(total)]
    for place in sorted(pushes, reverse=True):
        frames.insert(min(place, len(frames)), PUSH)
    feed(protocol, b"".join(frames), cuts)

    assert [reply for asker in askers for reply in asker.replies] == list(range(total))
    assert [len(asker.replies) for asker in askers] == sizes
    assert all(asker.told == 1 for asker in askers)
    assert pushed == [Push("news", [7])] * len(pushes)
    assert (protocol.pending, counters.replies, counters.pushes) == (0, total, len(pushes))
    assert counters.bytes_in == sum(map(len, frames))


def test_every_cut_of_a_reply_of_every_type() -> None:
    wire = b"$5\r\nab\r\nc\r\n*2\r\n:1\r\n$-1\r\n" + PUSH + b"-ERR no\r\n%1\r\n+k\r\n~1\r\n:1\r\n"
    for cut in range(1, len(wire)):
        protocol = Protocol(Counters())
        askers = ask(protocol, 1, 3)
        feed(protocol, wire, [cut])
        assert [asker.replies for asker in askers] == [
            [b"ab\r\nc"],
            [[1, None], ErrorReply("ERR", "ERR no"), {"k": {1}}],
        ]


def test_pushes_with_nobody_waiting() -> None:
    pushed: list[Push] = []
    protocol = Protocol(Counters(), on_push=pushed.append)
    protocol.receive(PUSH)
    protocol.receive(PUSH + PUSH)
    assert len(pushed) == 3
    (asker,) = ask(protocol, 1)
    protocol.receive(b":1\r\n")
    assert asker.replies == [1]


def test_a_push_that_nobody_handles_is_dropped() -> None:
    counters = Counters()
    protocol = Protocol(counters)
    (asker,) = ask(protocol, 1)
    protocol.receive(PUSH + b":1\r\n" + PUSH)
    assert asker.replies == [1]
    assert counters.pushes == 2


def test_a_push_within_a_reply_is_malformed() -> None:
    protocol = Protocol(Counters())
    (asker,) = ask(protocol, 1)
    with pytest.raises(ProtocolError):
        protocol.receive(b"*2\r\n:1\r\n" + PUSH)
    assert not asker.done


class Conversation(RuleBasedStateMachine):
    """A client that asks, writes and reads in any order, and a server that numbers its replies."""

    def __init__(self) -> None:
        super().__init__()
        self.counters = Counters()
        self.protocol = Protocol(self.counters, max_pending=40)
        self.written: list[Asker] = []
        self.waiting: list[Asker] = []
        self.answers = 0  # replies that the server has said
        self.wire = b""  # said and not received

    @property
    def owed(self) -> int:
        return sum(len(asker.data) for asker in self.written) - self.answers

    @rule(size=st.integers(1, 9), counted=st.booleans())
    def ask(self, size: int, counted: bool) -> None:
        asker = Asker(b"?" * size, size)
        full = self.protocol.pending + size > 40
        if counted and full:
            with pytest.raises(Overloaded):
                self.protocol.ask(asker)
            assert asker not in self.protocol.outbox
            return
        self.protocol.ask(asker, counted=counted)
        self.waiting.append(asker)

    @precondition(lambda self: self.waiting)
    @rule()
    def write(self) -> None:
        data = self.protocol.take_outbox()
        assert data == b"".join(asker.data for asker in self.waiting)
        self.written += self.waiting
        self.waiting = []

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.owed))
        self.wire += stream(range(self.answers, self.answers + count))
        self.answers += count

    @rule()
    def push(self) -> None:
        self.wire += PUSH

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        cut = data.draw(st.integers(1, len(self.wire)))
        self.protocol.receive(self.wire[:cut])
        self.wire = self.wire[cut:]

    @invariant()
    def each_reply_is_its_askers(self) -> None:
        number = 0
        for asker in self.written:
            assert asker.replies == list(range(number, number + len(asker.replies)))
            assert asker.done == (len(asker.replies) == len(asker.data))
            assert asker.told == asker.done
            number += len(asker.data)
        assert not any(asker.replies or asker.done for asker in self.waiting)

    @invariant()
    def what_is_owed_is_counted(self) -> None:
        askers = [*self.written, *self.waiting]
        assert self.protocol.pending == sum(
            len(asker.data) - len(asker.replies) for asker in askers
        )
        assert self.counters.commands == sum(len(asker.data) for asker in askers)
        assert self.counters.bytes_out == sum(len(asker.data) for asker in self.written)


TestConversation = Conversation.TestCase


# Ends.


@pytest.mark.parametrize("cut", [None, 4])
def test_a_reply_that_nobody_is_owed(cut: int | None) -> None:
    protocol = Protocol(Counters())
    askers = ask(protocol, 1, 2)
    with pytest.raises(ProtocolError, match="nobody is owed") as caught:
        feed(protocol, stream(range(4)), [] if cut is None else [cut])
    assert [asker.replies for asker in askers] == [[0], [1, 2]]
    assert 0 < caught.value.offset <= len(stream(range(4)))


def test_a_reply_before_anybody_asked() -> None:
    protocol = Protocol(Counters())
    with pytest.raises(ProtocolError, match="nobody is owed"):
        protocol.receive(b"-ERR max number of clients reached\r\n")


def test_replies_before_a_malformed_byte_are_handed_out() -> None:
    protocol = Protocol(Counters())
    first, second = ask(protocol, 1, 1)
    with pytest.raises(ProtocolError) as caught:
        protocol.receive(b":1\r\n:x\r\n")
    assert first.replies == [1]
    assert not second.done
    assert caught.value.offset == 4
    with pytest.raises(ProtocolError):
        protocol.receive(b":2\r\n")


def test_the_end_tells_everybody_once_and_what_may_have_run() -> None:
    protocol = Protocol(Counters())
    half, written = ask(protocol, 2, 1)
    protocol.receive(b":1\r\n")
    waiting = Asker()
    protocol.ask(waiting)
    cause = OSError("cut")
    protocol.end("the line was cut", cause)
    protocol.end("again", None)

    assert protocol.broken == "the line was cut"
    for asker, may_have_run in ((half, True), (written, True), (waiting, False)):
        assert asker.told == 1
        assert isinstance(asker.error, ConnectionLost)
        assert asker.error.may_have_run is may_have_run
        assert asker.error.__cause__ is cause
        assert str(asker.error) == "the line was cut"
    assert len({id(asker.error) for asker in (half, written, waiting)}) == 3
    assert (protocol.pending, protocol.outbox) == (0, [])


def test_nothing_is_asked_after_the_end() -> None:
    protocol = Protocol(Counters())
    protocol.end("cut")
    calls: list[Callable[[], object]] = [
        lambda: protocol.ask(Asker()),
        lambda: protocol.join_load(SHA, b"load", 1, Asker()),
    ]
    for call in calls:
        with pytest.raises(ConnectionLost) as caught:
            call()
        assert not caught.value.may_have_run


def test_only_a_broken_protocol_is_a_wire_error() -> None:
    counters = Counters()
    Protocol(counters).end("cut", OSError())
    assert counters.wire_errors == 0
    Protocol(counters).end("garbage", ProtocolError("bad", 0))
    assert counters.wire_errors == 1


def test_a_decoder_may_be_given() -> None:
    protocol = Protocol(Counters(), decoder=Decoder(max_bulk=3))
    ask(protocol, 1)
    with pytest.raises(ProtocolError):
        protocol.receive(b"$4\r\nabcd\r\n")


# Shared loads.


def joined(protocol: Protocol, missed_at: int, sha: str = SHA) -> tuple[Asker, bool]:
    waiter = Asker(b"", 0)
    return waiter, bool(protocol.join_load(sha, b"load", missed_at, waiter))


def test_callers_that_miss_together_share_one_load() -> None:
    counters = Counters()
    protocol = Protocol(counters)
    ask(protocol, 1, 1)
    protocol.receive(b"-NOSCRIPT a\r\n-NOSCRIPT b\r\n")
    first, begun = joined(protocol, 1)
    second, begun_too = joined(protocol, 2)
    assert (begun, begun_too) == (True, False)
    assert protocol.take_outbox() == b"load"
    third, begun_late = joined(protocol, 2)
    assert not begun_late
    protocol.receive(b"$40\r\n%b\r\n" % SHA.encode())
    assert [waiter.replies for waiter in (first, second, third)] == [[SHA.encode()]] * 3
    assert [waiter.told for waiter in (first, second, third)] == [1, 1, 1]
    assert counters.script_loads == 1
    assert protocol.pending == 0


def test_a_miss_before_the_last_load_needs_none_of_its_own() -> None:
    counters = Counters()
    protocol = Protocol(counters)
    ask(protocol, 1, 1)
    protocol.receive(b"-NOSCRIPT a\r\n-NOSCRIPT b\r\n")
    joined(protocol, 1)
    protocol.take_outbox()
    protocol.receive(b"$40\r\n%b\r\n" % SHA.encode())

    late, begun = joined(protocol, 2)
    assert not begun
    assert late.done
    assert late.replies[0] in (SHA, SHA.encode())
    assert counters.script_loads == 1


def test_a_miss_after_the_last_load_loads_again() -> None:
    counters = Counters()
    protocol = Protocol(counters)
    for _ in range(2):
        (asker,) = ask(protocol, 1)
        protocol.receive(b"-NOSCRIPT a\r\n")
        _, begun = joined(protocol, asker.place)
        assert begun
        protocol.take_outbox()
        protocol.receive(b"$40\r\n%b\r\n" % SHA.encode())
    assert counters.script_loads == 2


def test_scripts_do_not_share_their_loads() -> None:
    protocol = Protocol(Counters())
    ask(protocol, 2)
    protocol.receive(b"-NOSCRIPT a\r\n-NOSCRIPT b\r\n")
    one, begun = joined(protocol, 1)
    other, begun_too = joined(protocol, 1, OTHER)
    assert begun
    assert begun_too
    protocol.take_outbox()
    protocol.receive(b"+one\r\n+other\r\n")
    assert (one.replies, other.replies) == (["one"], ["other"])


@pytest.mark.parametrize("answer", [b"-ERR no\r\n", b"$3\r\nbad\r\n", b":1\r\n"])
def test_a_load_that_did_not_load_answers_no_later_miss(answer: bytes) -> None:
    """Two calls missed; the second one looks at its miss when the load was answered already."""
    protocol = Protocol(Counters())
    ask(protocol, 1, 1)
    protocol.receive(b"-NOSCRIPT a\r\n-NOSCRIPT b\r\n")
    first, _ = joined(protocol, 1)
    protocol.take_outbox()
    protocol.receive(answer)
    assert first.done

    late, begun = joined(protocol, 2)
    assert begun or late.replies == first.replies


def test_a_load_counts_against_max_pending() -> None:
    counters = Counters()
    protocol = Protocol(counters, max_pending=1)
    ask(protocol, 1)
    with pytest.raises(Overloaded):
        joined(protocol, 1)
    assert counters.script_loads == 0
    protocol.receive(b":1\r\n")
    _, begun = joined(protocol, 1)
    assert begun


def test_nothing_ran_for_those_whose_load_was_cut() -> None:
    protocol = Protocol(Counters())
    ask(protocol, 1, 1)
    protocol.receive(b"-NOSCRIPT a\r\n-NOSCRIPT b\r\n")
    waiters = [joined(protocol, place)[0] for place in (1, 2)]
    protocol.take_outbox()
    cause = ProtocolError("bad", 1)
    protocol.end("cut", cause)
    errors: list[TransportError | None] = [waiter.error for waiter in waiters]
    assert all(isinstance(error, ConnectionLost) for error in errors)
    assert errors[0] is not errors[1]
    assert [error and error.may_have_run for error in errors] == [False, False]
    assert [error and error.__cause__ for error in errors] == [cause, cause]

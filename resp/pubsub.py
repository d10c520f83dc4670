"""Who is subscribed to what, and what they have not read yet: publish/subscribe without a socket.

On RESP3 everything about subscriptions but a refusal comes as a push, at any place between the
replies, so the same connection goes on answering commands. What is wanted is recorded before it is
written, in the order in which it is written; a connection that is made anew asks for all of it
again (`Registry.wanted`).

The server confirms each channel of each command, in order. So an `unsubscribe` that was not asked
for can be told from one that was: it means that the server ended the subscription, as it does when
a shard's slot moves away.

Source: RESP3, "Push types"; the server's own order of confirmations, replies and messages.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from .decode import ErrorReply, Push
from .encode import Arg, encode_command
from .errors import (
    Closed,
    EncodeTypeError,
    EncodeValueError,
    RequiresResp3,
    RespError,
    ServerError,
    escaped,
)
from .protocol import Waiter

Verb: TypeAlias = Literal["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"]
Overflow: TypeAlias = Literal["drop-oldest", "close"]

_HELLO: Final = encode_command("HELLO")
_LEAVE: Final[dict[Verb, str]] = {
    "SUBSCRIBE": "UNSUBSCRIBE",
    "PSUBSCRIBE": "PUNSUBSCRIBE",
    "SSUBSCRIBE": "SUNSUBSCRIBE",
}
_MESSAGES: Final[dict[str, Verb]] = {
    "message": "SUBSCRIBE",
    "pmessage": "PSUBSCRIBE",
    "smessage": "SSUBSCRIBE",
}
_LEFT: Final[dict[str, Verb]] = {leave.lower(): verb for verb, leave in _LEAVE.items()}
_ENTERED: Final = frozenset(verb.lower() for verb in _LEAVE)


class Message(NamedTuple):
    """One published message.

    Attributes:
        channel: Where it was published.
        payload: What was published.
        pattern: The pattern that the channel matched, for `psubscribe`; else None.
    """

    channel: bytes
    payload: bytes
    pattern: bytes | None = None


class Inbox:
    """The messages of one subscription that its reader has not taken yet.

    Attributes:
        verb: How its channels are subscribed to.
        channels: Names, or patterns.
        capacity: Messages kept for a reader that is slower than the publishers.
        overflow: What happens to one more: the oldest is dropped, or the subscription closed.
        dropped: Messages dropped so far.
        gaps: How often a connection was lost and the subscription made anew: messages that were
            published in between are missing.
        ended: Why no more messages will come, or None.
        parked: Those who wait for a message.
        reading: Answers the subscription that reads it, or None where that was dropped.
    """

    __slots__ = (
        "_messages",
        "capacity",
        "channels",
        "dropped",
        "ended",
        "gaps",
        "overflow",
        "parked",
        "reading",
        "verb",
    )

    def __init__(
        self, verb: Verb, channels: Sequence[Arg], capacity: int, overflow: Overflow
    ) -> None:
        if not channels:
            raise EncodeValueError(f"{verb.lower()} needs at least one channel")
        if type(capacity) is not int or capacity < 1:
            raise EncodeValueError(f"capacity must be a whole number above 0: {capacity!r}")
        if overflow not in ("drop-oldest", "close"):
            raise EncodeValueError(f"overflow must be 'drop-oldest' or 'close': {overflow!r}")
        self.verb = verb
        self.channels = tuple(dict.fromkeys(map(_name, channels)))
        self.capacity = capacity
        self.overflow = overflow
        self.dropped = 0
        self.gaps = 0
        self.ended: RespError | None = None
        self.parked: dict[Waiter, None] = {}
        self.reading: Callable[[], object] | None = None
        self._messages: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def take(self) -> Message | None:
        """The oldest message, or None if there is none.

        Raises:
            RespError: There is none, and no more will come.
        """
        try:
            return self._messages.popleft()
        except IndexError:
            if self.ended is not None:
                raise copy.copy(self.ended) from None  # one that is raised again would grow
            return None

    def put(self, message: Message) -> None:
        """Keep `message` for the reader, by the policy."""
        if self.ended is not None:
            return
        if len(self._messages) >= self.capacity:
            if self.overflow == "close":
                self.end(
                    Closed(
                        f"the subscription had {self.capacity} messages that nobody had read, and "
                        "was closed; read faster, or raise capacity"
                    )
                )
                return
            with contextlib.suppress(IndexError):  # a reader may have taken it just now
                self._messages.popleft()
                self.dropped += 1
        self._messages.append(message)
        self.wake()

    def end(self, error: RespError) -> None:
        """No more messages will come, for `error`; those that came can still be taken."""
        if self.ended is None:
            self.ended = error
        self.wake()

    def wake(self) -> None:
        """Let those who wait look again."""
        for waiter in list(self.parked):
            waiter.settle()


class Reading:
    """What a subscription of either shell tells about itself.

    Attributes:
        closed: Whether it was closed by its reader.
    """

    def __init__(self, inbox: Inbox, registry: Registry) -> None:
        self._inbox = inbox
        inbox.reading = weakref.ref(self)
        self._registry = registry
        self.closed = False

    def __del__(self) -> None:
        # Dropped without close(): nobody will read it, so nothing is kept for it any more.
        if (registry := getattr(self, "_registry", None)) is not None:  # else never made
            registry.leave(self._inbox)

    @property
    def channels(self) -> tuple[bytes, ...]:
        """Its channels, or patterns."""
        return self._inbox.channels

    @property
    def dropped(self) -> int:
        """Messages dropped because nobody had read those before."""
        return self._inbox.dropped

    @property
    def gaps(self) -> int:
        """How often its connection was lost and made anew; messages between are missing."""
        return self._inbox.gaps

    def __len__(self) -> int:
        """Messages that came and were not read yet."""
        return len(self._inbox)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        names = ", ".join(escaped(channel.decode("latin-1")) for channel in self.channels[:3])
        more = ", ..." if len(self.channels) > 3 else ""
        return f"<{self._inbox.verb.lower()} {names}{more}, {len(self)} unread>"

    def _end(self) -> None:
        self.closed = True
        self._inbox.end(Closed("the subscription is closed; subscribe again"))


def _name(channel: Arg) -> bytes:
    if isinstance(channel, str):
        try:
            return channel.encode()
        except UnicodeEncodeError:
            raise EncodeValueError(
                "a channel is str with a lone surrogate; encode it to bytes yourself"
            ) from None
    if isinstance(channel, bytes | bytearray | memoryview):
        try:
            return bytes(channel)
        except ValueError:
            raise EncodeValueError("a channel is memoryview that was released") from None
    raise EncodeTypeError(f"a channel is str or bytes, not {type(channel).__name__}")


class Registry:
    """The subscriptions of a connector, over all of its connections.

    Args:
        lock: Held while what is wanted changes. Whoever says what `enter` and `leave` answer sees
            to it that this is said in the order in which it was recorded.
        on_push: Gets every push that is no subscription's.
    """

    def __init__(
        self, lock: AbstractContextManager[Any], on_push: Callable[[Push], None] | None
    ) -> None:
        self._lock = lock
        self._on_push = on_push
        # Tuples, replaced as a whole: whoever delivers looks without the lock.
        self._readers: dict[tuple[Verb, bytes], tuple[Inbox, ...]] = {}
        self._inboxes: dict[int, Inbox] = {}
        self.current: Feed | None = None  # of the latest connection

    def renew(self, lock: AbstractContextManager[Any]) -> None:
        """In a forked child: another lock, for a thread that is no more may hold the one before."""
        self._lock = lock

    @property
    def wanted(self) -> list[Inbox]:
        """Every subscription that stands, in the order in which they were made."""
        return list(self._inboxes.values())

    def enter(self, inbox: Inbox, feed: Feed) -> bytes:
        """Record that `inbox` wants its channels; the commands that say so."""
        with self._lock:
            self._inboxes[id(inbox)] = inbox
            for channel in inbox.channels:
                at = inbox.verb, channel
                self._readers[at] = (*self._readers.get(at, ()), inbox)
        return feed.entering(inbox)

    def leave(self, inbox: Inbox) -> None:
        """Record that it wants them no more, if it ever did."""
        with self._lock:
            for channel in inbox.channels:
                at = inbox.verb, channel
                others = tuple(each for each in self._readers.get(at, ()) if each is not inbox)
                if others:
                    self._readers[at] = others
                else:
                    self._readers.pop(at, None)
            self._inboxes.pop(id(inbox), None)

    def surplus(self, feed: Feed) -> list[bytes]:
        """The commands that end what a connection gets and nobody wants any more.

        Once they stand in line, `Feed.forget`; until then they are answered again.
        """
        with self._lock:
            for inbox in self.wanted:  # those whose reader an interrupt kept from leaving
                if inbox.reading is not None and inbox.reading() is None:
                    self.leave(inbox)
            ends = [at for at in list(feed.said) if at not in self._readers]
        begun, feed.ending = feed.ending, ends  # some where an interrupt kept it from being said
        feed.leaving.update(set(ends).difference(begun))
        by_verb: dict[Verb, list[bytes]] = {}
        for verb, channel in ends:
            by_verb.setdefault(verb, []).append(channel)
        return [encode_command(_LEAVE[verb], *by_verb[verb]) + _HELLO for verb in by_verb]

    def again(self, inbox: Inbox, refusal: ErrorReply | None) -> None:
        """A new connection subscribed `inbox` again, or was refused."""
        if refusal is None:
            inbox.gaps += 1
        else:
            self.end(inbox, ServerError(refusal.code, refusal.message, inbox.verb))

    def end(self, inbox: Inbox, error: RespError) -> None:
        """`inbox` gets no more, for `error`."""
        self.leave(inbox)
        inbox.end(error)

    def feed(self) -> Feed:
        """What takes the pushes of one new connection; the one before takes no messages any more.

        What a thread has read from a connection that was lost must not be delivered behind what
        came through the next.
        """
        self.current = Feed(self, self._readers, self._on_push)
        return self.current


class Feed:
    """The pushes of one connection.

    Attributes:
        said: Channels that it was told to subscribe to.
        leaving: Channels whose unsubscription was asked for and has not been confirmed.
    """

    def __init__(
        self,
        registry: Registry,
        readers: dict[tuple[Verb, bytes], tuple[Inbox, ...]],
        on_push: Callable[[Push], None] | None,
    ) -> None:
        self.said: dict[tuple[Verb, bytes], None] = {}
        self.ending: list[tuple[Verb, bytes]] = []
        self.leaving: Counter[tuple[Verb, bytes]] = Counter()
        self._registry = registry
        self._readers = readers
        self._on_push = on_push

    def entering(self, inbox: Inbox) -> bytes:
        """The command that subscribes `inbox`, and HELLO, which marks the end of its answers."""
        entered = dict.fromkeys((inbox.verb, channel) for channel in inbox.channels)
        self.said.update(entered)
        self.ending = [at for at in self.ending if at not in entered]
        return encode_command(inbox.verb, *inbox.channels) + _HELLO

    def forget(self) -> None:
        """The end of the surplus was asked for."""
        for at in self.ending:
            self.said.pop(at, None)
        self.ending = []

    def __call__(self, push: Push) -> None:
        """Deliver one push."""
        kind, items = push.kind, push.items
        verb = _MESSAGES.get(kind)
        if verb is not None and self._message(verb, items):
            return
        if kind in _ENTERED:
            return  # the reply behind it says that all came
        verb = _LEFT.get(kind)
        if verb is not None and items:
            self._left(verb, items[0])
            return
        if self._on_push is not None:
            self._on_push(push)

    def _message(self, verb: Verb, items: list[Any]) -> bool:
        if len(items) != (3 if verb == "PSUBSCRIBE" else 2) or not all(
            isinstance(item, bytes) for item in items
        ):
            return False
        if self._registry.current is not self:
            return True
        readers = self._readers.get((verb, items[0]), ())
        pattern = items[0] if verb == "PSUBSCRIBE" else None
        message = Message(items[-2], items[-1], pattern)
        for inbox in readers:
            inbox.put(message)
            if inbox.ended is not None:
                self._registry.leave(inbox)
        return bool(readers)

    def _left(self, verb: Verb, channel: object) -> None:
        if not isinstance(channel, bytes):
            return
        at = verb, channel
        if self.leaving[at] > 1:
            self.leaving[at] -= 1
        elif self.leaving.pop(at, 0):
            pass
        else:
            self.said.pop(at, None)
            told = escaped(channel.decode("latin-1"))
            for inbox in self._readers.get(at, ()):
                self._registry.end(
                    inbox,
                    Closed(f"the server ended the subscription to {told}; subscribe again"),
                )


def reminder(inbox: Inbox) -> list[bytes]:
    """What draws an answer, if somebody may be reading who has to be told that `inbox` is over."""
    return [_HELLO] if inbox.parked else []


def needs_resp3(inbox: Inbox) -> RequiresResp3:
    """The error for a subscription on a connection that cannot carry it."""
    return RequiresResp3(
        f"{inbox.verb.lower()} needs RESP3, and this connection speaks RESP2; connect with "
        "protocol=3, to a server that knows it"
    )


def lost_resp3(inbox: Inbox) -> RequiresResp3:
    """The error for one whose connection was made anew, and cannot carry it any more."""
    return RequiresResp3(f"{inbox.verb.lower()} needs RESP3, and the server now speaks RESP2")

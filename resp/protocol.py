"""A connection without its socket: who asked, in what order, and whose each reply is.

The server answers in the order it was asked, so a connection needs no ids: a first-in, first-out
line of waiters is enough, one place for each reply that is owed. The rules that everything else
relies on:

1. A waiter joins the line (`owed`) in the order in which its bytes are written, never otherwise.
   Until it is written it stands in the `outbox`, with its bytes.
2. A waiter leaves the line only when its last reply came or the connection ended. One whose caller
   timed out or was cancelled keeps its place; its replies are dropped as they come.
3. A push takes no place. A reply that nobody is owed ends the connection.
4. When the connection ends, every waiter is told, and whether its command may have run.

`receive` is the whole loop of Erlang's `active: :once`: the shell reads one chunk and calls it;
every reply that the chunk completes goes to the waiter at the head; then the shell reads again.

The shells add the socket: they wake callers (`Waiter.settle`), take turns at writing
(`take_outbox`) and at reading (`receive`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final

from .decode import Decoder, ErrorReply, Pairs, Push, Reply
from .errors import (
    ConnectionLost,
    Overloaded,
    ProtocolError,
    ReplyTimeout,
    TransportError,
    Unanswered,
    escaped,
)

COUNTED: Final = (
    "commands",
    "pipelines",
    "replies",
    "reconnects",
    "script_loads",
    "evalsha_calls",
    "bytes_out",
    "bytes_in",
    "wire_errors",
    "pushes",
    "overloads",
)


class Counters:
    """What a connector has done since it was made, over all of its connections.

    Attributes:
        commands: Commands asked, those of pipelines, boots and script loads included.
        pipelines: Calls of `pipeline`.
        replies: Replies received.
        reconnects: Connections made after the first.
        script_loads: SCRIPT LOAD commands.
        evalsha_calls: EVALSHA commands, repairs included.
        bytes_out, bytes_in: Bytes written and read.
        wire_errors: Connections ended because the peer broke the protocol.
        pushes: Pushes received.
        overloads: Calls refused with `Overloaded`.
    """

    __slots__ = COUNTED

    def __init__(self) -> None:
        self.commands = 0
        self.pipelines = 0
        self.replies = 0
        self.reconnects = 0
        self.script_loads = 0
        self.evalsha_calls = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.wire_errors = 0
        self.pushes = 0
        self.overloads = 0

    def told(self) -> dict[str, int]:
        """Answer all of them by name."""
        return {name: getattr(self, name) for name in COUNTED}


CLOSED: Final = "the server closed the connection"
CUT: Final = "the connection was cut: it ended without TLS saying so"
SILENT: Final = "the server has been silent for too long"


class Beat(Enum):
    """What `Protocol.beat` says is to be done."""

    NOTHING = "nothing"
    ASK = "ask"
    DEAD = "dead"


class Waiter:
    """A place in line for `missing` replies to the commands in `data`.

    Attributes:
        data: The bytes of its commands.
        count: How many replies they draw.
        missing: Replies still owed.
        replies: Those that came, in order.
        place: Where it stands among all that was asked on this connection; 0 before it asks.
        done: Whether nothing more will come: all replies, or `error`.
        error: Why the replies will not come.
        left: Whether its caller has given up waiting.
        sleep: What the shell wakes the caller from; None until it has to sleep.
    """

    __slots__ = ("count", "data", "done", "error", "left", "missing", "place", "replies", "sleep")

    def __init__(self, data: bytes, missing: int) -> None:
        self.data = data
        self.count = missing
        self.missing = missing
        self.replies: list[Reply] = []
        self.place = 0
        self.done = False
        self.error: TransportError | None = None
        self.left = False
        self.sleep: Any = None

    def forsaken(self) -> bool:
        """Whether nobody waits for its replies any more."""
        return self.left

    def settle(self) -> None:
        """Nothing more will come. A shell's waiter wakes its caller here."""
        self.done = True

    def fail(self, error: TransportError) -> None:
        """The replies will not come."""
        self.error = error
        self.settle()


def late(waiter: Waiter) -> ReplyTimeout:
    """The error for a caller whose time is up; its waiter keeps its place."""
    waiter.left = True
    return ReplyTimeout(f"no reply in time, {waiter.missing} owed; timeout= says how long to wait")


def may_have_run(waiter: Waiter) -> bool:
    """Whether a command of `waiter` may have run, now that its caller gives up."""
    if not waiter.place:
        return False
    return waiter.error is None or waiter.error.may_have_run


def outcomes(waiters: Iterable[Waiter], count: int) -> list[Reply | Unanswered]:
    """What is known of `count` commands, of which `waiters` were asked: replies, in order, and an
    `Unanswered` in each place without one."""
    found: list[Reply | Unanswered] = []
    for waiter in waiters:
        came = list(waiter.replies)
        rest = Unanswered.MAY_HAVE_RUN if may_have_run(waiter) else Unanswered.NOT_SENT
        missing = waiter.count - len(came)
        found += came
        found += [rest] * missing
    return found + [Unanswered.NOT_SENT] * (count - len(found))


class _Errand(Waiter):
    """A place in line that no caller owns, so that none can take it away from others.

    Attributes:
        joined: Those who wait for what it brings.
    """

    __slots__ = ("joined",)

    def __init__(self, data: bytes) -> None:
        super().__init__(data, 1)
        self.joined: list[Waiter] = []

    def settle(self) -> None:
        """Tell those who wait, and once more those who joined meanwhile, or were left out by an
        interrupt: who joins looks at `done` afterwards."""
        self._tell()
        self.done = True
        self._tell()

    def _tell(self) -> None:
        for waiter in self.joined:
            if not waiter.done:
                waiter.replies = self.replies
                waiter.error = self.error
                waiter.settle()

    def forsaken(self) -> bool:
        return all(waiter.left for waiter in self.joined)


class _Load(_Errand):
    """A SCRIPT LOAD in flight."""

    __slots__ = ("_loaded", "sha")

    def __init__(self, data: bytes, sha: str, loaded: dict[str, int]) -> None:
        super().__init__(data)
        self.sha = sha
        self._loaded = loaded

    def settle(self) -> None:
        if self.error is None and is_digest(self.replies[0], self.sha):
            self._loaded[self.sha] = self.place
        super().settle()

    def _tell(self) -> None:
        if self.error is None:
            super()._tell()
            return
        for waiter in self.joined:
            if not waiter.done:
                error = type(self.error)(str(self.error), may_have_run=False)
                error.__cause__ = self.error.__cause__
                waiter.fail(error)


class _Change(_Errand):
    """A change of the subscriptions: a command that is answered by pushes, and HELLO behind it.

    The command itself draws a reply only where it is refused. HELLO, without arguments, changes
    nothing, no ACL can refuse it, and its reply is a map, which no refusal is: so if the first
    reply is an error it is the command's, and one more is owed. All confirmations came before.
    """

    __slots__ = ("_protocol",)

    def __init__(self, data: bytes, protocol: Protocol) -> None:
        super().__init__(data)
        self._protocol = protocol

    def settle(self) -> None:
        refused = self.error is None and len(self.replies) == 1
        if refused and type(self.replies[0]) is ErrorReply:
            self._protocol.owe_again(self)
            return
        super().settle()
        if self.error is None and not isinstance(self.replies[-1], (dict, Pairs)):
            # That was not HELLO's answer, so whose it is, and whose are all behind it, is unknown.
            told = type(self.replies[-1]).__name__
            raise ProtocolError(f"HELLO was answered with a {told}", self._protocol.offset)


class _Silence(_Errand):
    """Commands between CLIENT REPLY OFF and ON: one reply is owed, to ON."""

    __slots__ = ("_protocol",)

    def __init__(self, data: bytes, protocol: Protocol) -> None:
        super().__init__(data)
        self._protocol = protocol

    def settle(self) -> None:
        super().settle()
        if self.error is None and self.replies != ["OK"]:
            # OFF was not taken for what it is, so every command between was or will be answered.
            reply = self.replies[0]
            told = escaped(reply.message) if isinstance(reply, ErrorReply) else type(reply).__name__
            raise ProtocolError(
                f"replies that should have been off, after {told}", self._protocol.offset
            )


def is_digest(answer: Reply, sha: str) -> bool:
    """Whether SCRIPT LOAD answered `sha`, in whatever case."""
    if isinstance(answer, bytes):
        answer = answer.decode("latin-1")
    return isinstance(answer, str) and answer.lower() == sha


class Protocol:
    """The state of one connection.

    Args:
        counters: Where to count.
        max_pending: Replies that may be owed at once.
        on_push: Called with each push, in the order of arrival.
        decoder: Where received bytes become replies.
    """

    __slots__ = (
        "_asked_for_life",
        "_cause",
        "_counters",
        "_decoder",
        "_loaded",
        "_loads",
        "_mark",
        "_on_push",
        "_received",
        "answered",
        "asked",
        "broken",
        "listeners",
        "max_pending",
        "outbox",
        "owed",
        "refusal",
    )

    def __init__(
        self,
        counters: Counters,
        *,
        max_pending: int = 10_000,
        on_push: Callable[[Push], None] | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        self.owed: deque[Waiter] = deque()
        self.outbox: list[Waiter] = []
        self.asked = 0
        self.answered = 0
        self.max_pending = max_pending
        self.broken: str | None = None
        self._cause: BaseException | None = None
        self._counters = counters
        self._on_push = on_push
        self._decoder = decoder or Decoder()
        self._loads: dict[str, _Load] = {}
        self._loaded: dict[str, int] = {}
        self._mark: tuple[int, float] | None = None
        self._asked_for_life = False
        self._received = 0  # bytes, on this connection alone
        self.refusal: ErrorReply | None = None  # what came before anything was asked
        self.listeners: dict[Waiter, None] = {}  # who is told of the end, and owed nothing

    @property
    def offset(self) -> int:
        """Bytes taken from the connection's stream so far."""
        return self._decoder.offset

    @property
    def pending(self) -> int:
        """Replies owed. Two counts, for whoever asks and whoever reads may be two threads."""
        return self.asked - self.answered

    def ask(self, waiter: Waiter, counted: bool = True) -> None:
        """Stand in the outbox, to be written with whoever stands there.

        Args:
            waiter: Its data is to be written.
            counted: Whether `max_pending` applies; not to the rest of a pipeline under way.

        Raises:
            Overloaded: `max_pending` replies are owed; nothing will be sent.
            ConnectionLost: The connection ended before; nothing was sent.
        """
        if self.broken is not None:
            raise ConnectionLost(self.broken, may_have_run=False) from self._cause
        missing = waiter.missing
        place = self.asked + missing
        if counted and place - self.answered > self.max_pending:
            raise self.overload()
        self.asked = waiter.place = place
        self._counters.commands += missing
        # One step for the interpreter: an interrupt leaves the waiter out, or in with its bytes.
        self.outbox.append(waiter)

    def make_room(self) -> None:
        """See that one more reply may be owed, before what draws it is recorded.

        Raises:
            Overloaded: `max_pending` replies are owed.
        """
        if self.broken is None and self.asked - self.answered >= self.max_pending:
            raise self.overload()

    def overload(self) -> Overloaded:
        """The error for a call that is one too many."""
        self._counters.overloads += 1
        return Overloaded(
            f"{self.pending} replies are owed and max_pending is {self.max_pending}; "
            "wait for some, or raise max_pending"
        )

    def take_outbox(self) -> bytes:
        """What is to be written now. Those who stand there join the line, in order."""
        taken = self.outbox
        owed = self.owed
        # Into the line first: an interrupt leaves nobody out, and the write that it ends tells all.
        if len(taken) == 1:
            owed.append(taken[0])
            data = taken[0].data
        else:
            owed.extend(taken)
            data = b"".join([waiter.data for waiter in taken])
        self.outbox = []
        size = len(data)  # before: a thread of another connection may count between the two
        self._counters.bytes_out += size
        return data

    def receive(self, data: bytes) -> None:
        """Hand each reply that `data` completes to the waiter that is owed it.

        Raises:
            ProtocolError: Malformed bytes, or a reply that nobody is owed. The replies before it
                have been handed out; the caller ends the connection with `end`.
        """
        size = len(data)
        self._received += size
        self._counters.bytes_in += size
        owed = self.owed
        replies = self._decoder.decode(data)
        while replies:
            if len(replies) == 1 and owed and type(replies[0]) is not Push:
                waiter = owed[0]
                waiter.replies.append(replies[0])
                waiter.missing -= 1
                self.answered += 1
                self._counters.replies += 1
                if not waiter.missing:
                    waiter.settle()
                    if not waiter.missing:
                        owed.popleft()
            else:
                self._hand_out(replies)
            if not owed:
                return  # what is left, if anything, is judged when more arrives
            replies = self._decoder.replies()

    def _hand_out(self, replies: list[Reply]) -> None:
        if Push in map(type, replies):
            for push in replies:
                if type(push) is Push:
                    self._counters.pushes += 1
                    if self._on_push is not None:
                        self._on_push(push)
            replies = [reply for reply in replies if type(reply) is not Push]
        owed = self.owed
        count = len(replies)
        at = 0
        try:
            while at < count:
                if not owed:
                    if not self.answered and isinstance(replies[at], ErrorReply):
                        self.refusal = replies[at]
                    raise ProtocolError(
                        f"a reply that nobody is owed, a {type(replies[at]).__name__}",
                        self._decoder.offset,
                    )
                waiter = owed[0]
                missing = waiter.missing
                if missing == 1:
                    waiter.replies.append(replies[at])
                    at += 1
                else:
                    share = replies[at : at + missing]
                    at += len(share)
                    waiter.replies += share
                    if len(share) < missing:
                        waiter.missing = missing - len(share)
                        break
                waiter.missing = 0
                waiter.settle()  # first: an interrupt between the two would lose it
                if not waiter.missing:
                    owed.popleft()
        finally:
            self.answered += at
            self._counters.replies += at

    def everybody(self) -> list[Waiter]:
        """Whoever may be waiting for something."""
        found: list[Waiter] = []
        for waiter in (*self.owed, *self.outbox, *self.listeners):
            if isinstance(waiter, _Errand):
                found += waiter.joined
            else:
                found.append(waiter)
        return found

    def owe_again(self, waiter: Waiter) -> None:
        """One more reply is owed to `waiter`, which stays at the head of the line."""
        self.answered -= 1  # not one more asked: that count is for whoever asks
        waiter.missing = 1

    def ask_change(self, data: bytes, waiter: Waiter, counted: bool = True) -> None:
        """Ask for a change of the subscriptions, `data` with HELLO behind it.

        `waiter` gets one reply, or two, the first of which is the server's refusal.
        """
        change = _Change(data, self)
        change.joined.append(waiter)
        self.ask(change, counted)
        waiter.place = change.place

    def ask_silently(self, waiter: Waiter, counted: bool = True) -> None:
        """Ask for commands without replies: the data of `waiter`, CLIENT REPLY OFF .. ON.

        `waiter` gets what ON is answered.
        """
        silence = _Silence(waiter.data, self)
        silence.joined.append(waiter)
        self.ask(silence, counted)
        self._counters.commands += waiter.count + 1  # OFF, and those between
        waiter.place = silence.place

    def beat(self, now: float, heartbeat: float, patience: float) -> Beat:
        """What to do about silence, if it has lasted.

        A connection that owes nothing is asked, with a PING that nobody waits for, once nothing has
        come for `heartbeat` seconds; where that is not answered within `patience`, it is dead. So
        is one that owes a reply that nobody waits for any more, after `heartbeat`. While somebody
        waits for what the server is to answer next, silence is not judged: it may be at work.

        Args:
            now: Seconds on any clock that never goes back.
        """
        received = self._received
        if self._mark is None or self._mark[0] != received:
            self._mark = received, now
            self._asked_for_life = False
        silent_s = now - self._mark[1]
        if self.outbox:
            return Beat.NOTHING
        if not self.owed:
            if silent_s < heartbeat:
                return Beat.NOTHING
            self._mark = received, now
            self._asked_for_life = True
            return Beat.ASK
        if not self.owed[0].forsaken():
            self._mark = None
            return Beat.NOTHING
        bearable_s = patience if self._asked_for_life else heartbeat
        return Beat.NOTHING if silent_s < bearable_s else Beat.DEAD

    def join_load(
        self, sha: str, load: bytes, missed_at: int, waiter: Waiter, may_begin: bool = True
    ) -> bool | None:
        """Wait for a SCRIPT LOAD of `sha`, begun here unless one is under way.

        A call that missed before the last load was written needs none of its own: that load
        answers its miss. So callers that miss together share one load, however late each of them
        comes to look at its miss.

        Args:
            sha: The script's digest.
            load: The SCRIPT LOAD command.
            missed_at: The place of the call that met NOSCRIPT.
            waiter: Gets the load's reply.
            may_begin: Whether one may be begun.

        Returns:
            Whether a load was put in the outbox, to be written; None where there is none to join.
        """
        if self.broken is not None:
            raise ConnectionLost(self.broken, may_have_run=False) from self._cause
        if self._loaded.get(sha, 0) > missed_at:
            waiter.replies = [sha]
            waiter.settle()
            return False
        under_way = self._loads.get(sha)
        if under_way is not None and not under_way.done:
            under_way.joined.append(waiter)
            if under_way.done and not waiter.done:
                under_way.settle()
            return False
        if not may_begin:
            return None
        begun = _Load(load, sha, self._loaded)
        begun.joined.append(waiter)
        self.ask(begun)
        self._loads[sha] = begun
        self._counters.script_loads += 1
        return True

    def end(self, reason: str, cause: BaseException | None = None) -> None:
        """Nothing more will be sent or received; everybody in line is told."""
        if self.broken is None:
            self.broken = reason
            self._cause = cause
            if isinstance(cause, ProtocolError):
                self._counters.wire_errors += 1
        # Those who were told are done: an interrupt in the middle loses nobody, for a second call
        # goes on. The lines stay as they are, since whoever reads may be at them.
        listeners = list(self.listeners)
        for waiters, ran in ((list(self.owed), True), (self.outbox + listeners, False)):
            for waiter in waiters:
                if not waiter.done or isinstance(waiter, _Errand):
                    error = ConnectionLost(self.broken, may_have_run=ran)
                    error.__cause__ = self._cause
                    waiter.fail(error)
        self.outbox = []
        self.answered = self.asked

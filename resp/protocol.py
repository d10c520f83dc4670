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
from dataclasses import dataclass
from typing import Any

from .decode import Decoder, Push, Reply
from .errors import ConnectionLost, Overloaded, ProtocolError, ReplyTimeout, TransportError


@dataclass(slots=True)
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

    commands: int = 0
    pipelines: int = 0
    replies: int = 0
    reconnects: int = 0
    script_loads: int = 0
    evalsha_calls: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    wire_errors: int = 0
    pushes: int = 0
    overloads: int = 0


class Waiter:
    """A place in line for `missing` replies to the commands in `data`.

    Attributes:
        data: The bytes of its commands.
        missing: Replies still owed.
        replies: Those that came, in order.
        place: Where it stands among all that was asked on this connection; 0 before it asks.
        done: Whether nothing more will come: all replies, or `error`.
        error: Why the replies will not come.
        sleep: What the shell wakes the caller from; None until it has to sleep.
    """

    __slots__ = ("data", "done", "error", "missing", "place", "replies", "sleep")

    def __init__(self, data: bytes, missing: int) -> None:
        self.data = data
        self.missing = missing
        self.replies: list[Reply] = []
        self.place = 0
        self.done = False
        self.error: TransportError | None = None
        self.sleep: Any = None

    def settle(self) -> None:
        """Nothing more will come. A shell's waiter wakes its caller here."""
        self.done = True

    def fail(self, error: TransportError) -> None:
        """The replies will not come."""
        self.error = error
        self.settle()


def late(waiter: Waiter) -> ReplyTimeout:
    """The error for a caller whose time is up; its waiter keeps its place."""
    return ReplyTimeout(f"no reply in time, {waiter.missing} owed; timeout= says how long to wait")


def any_may_have_run(waiters: Iterable[Waiter]) -> bool:
    """Whether a command of any of them may have run, now that their caller gives up."""
    return any(waiter.error is None or waiter.error.may_have_run for waiter in waiters)


class _Load(Waiter):
    """A SCRIPT LOAD in flight. No caller owns it, so none can take it away from the others."""

    __slots__ = ("_loaded", "joined", "sha")

    def __init__(self, data: bytes, sha: str, loaded: dict[str, int]) -> None:
        super().__init__(data, 1)
        self.sha = sha
        self.joined: list[Waiter] = []
        self._loaded = loaded

    def settle(self) -> None:
        self.done = True
        if self.error is None and is_digest(self.replies[0], self.sha):
            self._loaded[self.sha] = self.place
        for waiter in self.joined:
            if self.error is not None:
                error = type(self.error)(str(self.error), may_have_run=False)
                error.__cause__ = self.error.__cause__
                waiter.fail(error)
            else:
                waiter.replies = self.replies
                waiter.settle()


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
        "_cause",
        "_counters",
        "_decoder",
        "_loaded",
        "_loads",
        "_on_push",
        "answered",
        "asked",
        "broken",
        "max_pending",
        "outbox",
        "owed",
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
            raise ConnectionLost(self.broken, may_have_run=False)
        if counted and self.asked - self.answered + waiter.missing > self.max_pending:
            self._counters.overloads += 1
            raise Overloaded(
                f"{self.pending} replies are owed and max_pending is {self.max_pending}; "
                "wait for some, or raise max_pending"
            )
        self.asked = waiter.place = self.asked + waiter.missing
        self._counters.commands += waiter.missing
        # One step for the interpreter: an interrupt leaves the waiter out, or in with its bytes.
        self.outbox.append(waiter)

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
        self._counters.bytes_out += len(data)
        return data

    def receive(self, data: bytes) -> None:
        """Hand each reply that `data` completes to the waiter that is owed it.

        Raises:
            ProtocolError: Malformed bytes, or a reply that nobody is owed. The replies before it
                have been handed out; the caller ends the connection with `end`.
        """
        self._counters.bytes_in += len(data)
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
                    owed.popleft()
                    waiter.settle()
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
        at = 0
        while at < len(replies):
            if not owed:
                raise ProtocolError(
                    f"a reply that nobody is owed, a {type(replies[at]).__name__}",
                    self._decoder.offset,
                )
            waiter = owed[0]
            share = replies[at : at + waiter.missing]
            at += len(share)
            waiter.replies += share
            waiter.missing -= len(share)
            self.answered += len(share)
            self._counters.replies += len(share)
            if not waiter.missing:
                owed.popleft()
                waiter.settle()

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
            raise ConnectionLost(self.broken, may_have_run=False)
        if self._loaded.get(sha, 0) > missed_at:
            waiter.replies = [sha]
            waiter.settle()
            return False
        under_way = self._loads.get(sha)
        if under_way is not None and not under_way.done:
            under_way.joined.append(waiter)
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
        for waiters, may_have_run in ((list(self.owed), True), (self.outbox, False)):
            for waiter in waiters:
                if not waiter.done:
                    error = ConnectionLost(self.broken, may_have_run=may_have_run)
                    error.__cause__ = self._cause
                    waiter.fail(error)
        self.outbox = []
        self.answered = self.asked

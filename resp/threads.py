"""The shell for threads: one socket, shared by whoever calls.

No thread of its own. Every caller does what is needed next, for everybody:

- *Writing.* A caller puts its commands in the outbox. If nobody is writing it becomes the writer
  and sends all that stands there, and again what came meanwhile; so callers that meet join one
  write.
- *Reading.* A caller whose replies have not come, and who finds nobody reading, becomes the
  reader: it reads a chunk, hands every reply in it to its owner, and goes on until its own has
  come. Then it hands the socket on to one of those who still wait. The others sleep, each on a
  lock of its own.

Both roles are held under the caller's name (`_writer`, `_reader`), so that a caller who leaves by
an exception, at whatever point, can be found out and its role passed on (`_leave`):

- A write that was interrupted may have sent half a command, so it ends the connection.
- What `recv` returned is in `_chunks` before any exception can come between, so a reader that is
  interrupted loses nothing, and the next one begins with what is there.
- Being interrupted while replies are handed out ends the connection: nobody could say which were.
- What stands in the outbox when a caller leaves, it writes, if nobody else does.
- A role whose holder is gone all the same is found out by whoever waits for it in vain.

A timeout of the socket (SO_RCVTIMEO) costs no system call per read; it is set anew only where it
would end a wait too late. So an uncontended call is two system calls: one send, one receive.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from time import monotonic
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from .address import Address, Options, boot, change_options, check_timeout, parse_url, refuse_tls
from .decode import ErrorReply, Reply
from .encode import Arg
from .errors import (
    Closed,
    ConnectFailed,
    EncodeTypeError,
    ProtocolError,
    Reentered,
    ReplyTimeout,
    ServerError,
    TransportError,
)
from .plan import WINDOW, Command, Plan, Step, boot_frame, command_name, encode_slices, frame
from .plan import run as run_plan
from .protocol import Counters, Protocol, Waiter, any_may_have_run, late
from .script import Load, Loaded, Request, Script, ScriptCall, flush, missed, repair

if TYPE_CHECKING:
    from typing import Self

    from .tap import Tap

T = TypeVar("T")

_CHUNK: Final = (65_536,)  # bytes a read; a tuple, to be mapped over
_IDLE_S: Final = 0.01  # after so long without a call, a look at the socket costs nobody anything
_LATE_S: Final = 0.01  # how much too late the socket's own timeout may end a wait
_LEAVING_S: Final = 0.5  # for writing what others left to a caller that was interrupted
_BLOCKED_S: Final = 0.05  # how often a writer whose peer does not read looks for a reader
_ASLEEP_AT_MOST_S: Final = 3600.0  # what a lock and a socket take for a timeout is bounded
_SEND_FLAGS: Final = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)


class _Caller(Waiter):
    """A waiter whose caller is a thread; it sleeps on a lock."""

    __slots__ = ()

    def settle(self) -> None:
        self.done = True
        if self.sleep is not None:
            _wake(self.sleep)


def _wake(bed: threading.Lock) -> None:
    # One that is unlocked was woken already; whoever wakes looks at all it may be woken for.
    with contextlib.suppress(RuntimeError):
        bed.release()


class _Link:
    """One connected socket, its protocol, and who writes and reads at the moment."""

    def __init__(self, sock: socket.socket, protocol: Protocol, tap: Tap | None) -> None:
        self.protocol = protocol
        self._sock = sock
        self._recv = sock.recv
        self._send = sock.send
        self._tap = tap
        self._number = tap.connection() if tap is not None else 0
        # Owned, not only held: a signal handler or a finalizer may come between any two steps, and
        # what it calls must not wait for the very thread that it runs on.
        self._mutex = threading.RLock()
        self._owned: Callable[[], bool] = self._mutex._is_owned  # type: ignore[attr-defined]
        self._writer: object = None
        self._reader: object = None
        self._handing_out = False
        self._chunks: list[bytes] = []
        self._sleepers: dict[_Caller, object] = {}
        self._tick = math.inf  # SO_RCVTIMEO, seconds
        self.used = monotonic()

    # Calls. `me` is the name under which the caller holds a role.

    def exchange(self, data: bytes, deadline: float) -> _Caller:
        """Send one command and wait for its reply."""
        me = waiter = _Caller(data, 1)
        if self._owned():
            raise Reentered(may_have_run=False)
        try:
            self._post(waiter, me, deadline)
            self._wait(waiter, me, deadline)
        except BaseException as error:
            try:
                self._leave(me, error)
            except BaseException:  # an interrupt of the leaving itself: once more, then it is told
                self._leave(me, error)
                raise
            raise
        if waiter.error is not None:
            raise waiter.error
        return waiter

    def stream(self, slices: Iterable[tuple[bytes, int]], deadline: float) -> list[_Caller]:
        """Send slices of commands, a window at a time, and wait for all of their replies."""
        me = object()
        sent: list[_Caller] = []
        if self._owned():
            raise Reentered(may_have_run=False)
        try:
            for data, count in slices:
                waiter = _Caller(data, count)
                self._post(waiter, me, deadline, not sent)
                sent.append(waiter)
                if len(sent) >= WINDOW:
                    self._wait(sent[-WINDOW], me, deadline)
            for waiter in sent:
                self._wait(waiter, me, deadline)
                if waiter.error is not None:
                    raise waiter.error
        except BaseException as error:
            try:
                self._leave(me, error)
            except BaseException:  # an interrupt of the leaving itself: once more, then it is told
                self._leave(me, error)
                raise
            if isinstance(error, TransportError) and sent:
                error.may_have_run = any_may_have_run(sent)
            raise
        return sent

    def look(self) -> None:
        """See whether something came while nobody waited: the connection's end, or pushes."""
        me = object()
        if self._owned():
            raise Reentered(may_have_run=False)
        try:
            with self._mutex:
                protocol = self.protocol
                busy = self._reader is not None or protocol.owed or protocol.outbox
                if busy or protocol.broken is not None:
                    return
                self._reader = me
            if self._ready(select.POLLIN, 0):
                self._read_chunk()
            with self._mutex:
                self._hand_on()
        except BaseException as error:
            try:
                self._leave(me, error)
            except BaseException:  # an interrupt of the leaving itself: once more, then it is told
                self._leave(me, error)
                raise
            raise

    def load(self, request: Load, deadline: float) -> Loaded:
        """What SCRIPT LOAD answers; one load is shared by all that miss together."""
        me = waiter = _Caller(b"", 0)
        sha, body = request.script.sha, request.script.load()
        if self._owned():
            raise Reentered(may_have_run=False)
        try:
            with self._mutex:
                begun = self.protocol.join_load(
                    sha, body, request.missed_at, waiter, request.may_begin
                )
                if begun is None:
                    return None
            if begun:
                self._flush(me, deadline)
            self._wait(waiter, me, deadline)
        except BaseException as error:
            try:
                self._leave(me, error)
            except BaseException:  # an interrupt of the leaving itself: once more, then it is told
                self._leave(me, error)
                raise
            raise
        if waiter.error is not None:
            raise waiter.error
        return waiter.replies[0], begun

    def end(self, reason: str, cause: BaseException | None = None) -> None:
        """Nothing more is sent or received; everybody is told."""
        with self._mutex:
            self._end(reason, cause)

    def forget(self) -> None:
        """In a forked child: close its descriptor, and nothing of the connection, its parent's."""
        self.protocol.broken = "it belongs to the process that this one was forked from"
        self._sock.close()

    # Writing.

    def _post(self, waiter: _Caller, me: object, deadline: float, counted: bool = True) -> None:
        with self._mutex:
            self.protocol.ask(waiter, counted)
            if self._writer is not None:
                return
            self._writer = me
            if self._reader is None:
                self._reader = me  # who writes is about to wait
            data = self.protocol.take_outbox()
        self._write(data, me, deadline)
        self._writer = None  # before the look at the outbox: see `_flush`
        if self.protocol.outbox or self.protocol.broken is not None:
            self._flush(me, deadline)

    def _flush(self, me: object, deadline: float) -> None:
        """Write what stands in the outbox, unless somebody does, until nothing is left.

        A writer gives its role up before it looks at the outbox, and needs no mutex for that:
        whoever came before the first relies on the second, and whoever comes after it finds that
        nobody writes. (The interpreter's lock is what makes all threads see the two in this order.)
        So a full outbox without a writer is nothing out of order.
        """
        while True:
            with self._mutex:
                if self._writer is not None:
                    return
                if not self.protocol.outbox:
                    if self.protocol.broken is not None:
                        self._close_when_idle()
                    return
                self._writer = me
                data = self.protocol.take_outbox()
            self._write(data, me, deadline)
            self._writer = None

    def _write(self, data: bytes, me: object, deadline: float) -> None:
        if self._tap is not None:
            self._tap.write(self._number, data)
        try:
            sent = self._send(data, _SEND_FLAGS)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.end(f"the connection was lost while writing: {error}", error)
            return
        if sent < len(data):
            self._write_slowly(memoryview(data)[sent:], me, deadline)

    def _write_slowly(self, data: memoryview, me: object, deadline: float) -> None:
        """Write to a peer that takes no more for now, and read meanwhile: it may be waiting for
        just that."""
        while data and self.protocol.broken is None:
            with self._mutex:
                if self._reader is None:
                    self._reader = me
                reading = self._reader is me
            left = deadline - monotonic()
            if left <= 0:
                raise ReplyTimeout("the server did not take the command in time")
            wanted = select.POLLOUT | (select.POLLIN if reading else 0)
            event = self._ready(wanted, min(left, 1 if reading else _BLOCKED_S))
            if reading and event & ~select.POLLOUT:
                self._read_chunk()
            if event & ~select.POLLIN:
                try:
                    data = data[self._send(data, _SEND_FLAGS) :]
                except BlockingIOError:
                    pass
                except OSError as error:
                    self.end(f"the connection was lost while writing: {error}", error)

    def _ready(self, wanted: int, seconds: float) -> int:
        """Which of the `select.POLL...` events that are wanted have come, or come in time."""
        poll = select.poll()
        poll.register(self._sock, wanted)
        found = poll.poll(1000 * seconds)
        return found[0][1] if found else 0

    # Reading.

    def _wait(self, waiter: _Caller, me: object, deadline: float) -> None:
        """Return when `waiter` is done: read for it and for all others, or sleep till woken."""
        while not waiter.done:
            if self._reader is me:
                left = deadline - monotonic()
                if self._tick > left + _LATE_S:
                    if left <= 0:
                        raise late(waiter)
                    self._set_tick(left)
                self._read_chunk()
                continue
            with self._mutex:
                if waiter.sleep is None:
                    roles = (self._reader, self._writer)
                    if any(name in roles for name in _me(sys._getframe()) if name is not me):
                        # It would wait for a call further down this very stack.
                        raise Reentered(may_have_run=True)
                    waiter.sleep = threading.Lock()
                    waiter.sleep.acquire()
                self._sleepers[waiter] = me
                if self._reader is None:
                    self._reader = me
            # It may have been done before it had a lock to be woken from.
            if self._reader is not me and not waiter.done:
                self._sleep(waiter, deadline)
        if waiter.sleep is not None:
            with self._mutex:
                self._sleepers.pop(waiter, None)
        if self._reader is me:
            # In this order: who lies down to sleep does so before looking for a reader.
            self._reader = None
            if self._sleepers or self.protocol.broken is not None:
                with self._mutex:
                    if self._reader is None:
                        self._hand_on()

    def _sleep(self, waiter: _Caller, deadline: float) -> None:
        left = min(deadline - monotonic(), _ASLEEP_AT_MOST_S)
        woken = left > 0 and waiter.sleep.acquire(timeout=left)
        if not woken and not waiter.done and deadline <= monotonic():
            raise late(waiter)

    def _read_chunk(self) -> None:
        """Read once, unless the reader before left something; hand out what came."""
        if not self._chunks:
            try:
                # One step for the interpreter: no signal can come between recv and the list.
                self._chunks.extend(map(self._recv, _CHUNK))
            except BlockingIOError:
                self._tick = math.inf  # it ran out: too short for whoever waits, or just right
                return
            except OSError as error:
                self.end(f"the connection was lost: {error}", error)
                return
        self._handing_out = True
        data = self._chunks.pop()
        if not data:
            self.end("the server closed the connection")
        else:
            if self._tap is not None:
                self._tap.read(self._number, data)
            try:
                self.protocol.receive(data)
            except ProtocolError as error:
                self.end(f"the server broke the protocol: {error}", error)
        self._handing_out = False

    def _set_tick(self, seconds: float) -> None:
        self._tick = seconds
        seconds = min(seconds, _ASLEEP_AT_MOST_S)
        # A time of zero would mean none at all.
        microseconds = max(1, int(seconds * 1_000_000))
        timeval = struct.pack("@ll", *divmod(microseconds, 1_000_000))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    # Leaving.

    def _leave(self, me: object, error: BaseException) -> None:
        """The caller goes, without its replies; whatever it was doing is passed on or ended."""
        with self._mutex:
            for sleeper, name in list(self._sleepers.items()):
                if name is me:
                    del self._sleepers[sleeper]
            if isinstance(error, ReplyTimeout):
                self._find_lost_roles(me)
            if self._writer is me:
                self._writer = None
                self._end("a write to the server was interrupted", error)
            if self._reader is me and self._handing_out:
                self._end("the reading of a reply was interrupted", error)
            if self.protocol.broken is not None:
                self._end(self.protocol.broken)  # goes on where an interrupt left it
            # Nobody, or somebody who may not have been woken, if handing on was interrupted.
            if self._reader is me or self._reader is None:
                self._hand_on()
            for sleeper, name in self._sleepers.items():
                if name is self._reader:
                    _wake(sleeper.sleep)
        if self.protocol.outbox:  # it may be that an interrupt kept the caller from writing it
            self._flush(me, monotonic() + _LEAVING_S)

    def _find_lost_roles(self, me: object) -> None:
        """End the connection if a role is held by a call that is no more.

        Two interrupts within microseconds can take a caller away from its own leaving. Whoever
        waits for it in vain finds out, at the end of its time.
        """
        held = {me, None}
        for innermost in sys._current_frames().values():
            held.update(_me(innermost))
        if self._writer not in held or self._reader not in held:
            if self._writer not in held:
                self._writer = None
            if self._reader not in held:
                self._reader = None
            self._end("an interrupted call left the connection in disorder")

    def _hand_on(self) -> None:
        """Nobody reads; whoever has slept longest is woken to read."""
        self._reader = None
        if self.protocol.broken is not None:
            self._end(self.protocol.broken)
            return
        for sleeper, name in self._sleepers.items():
            if not sleeper.done:
                self._reader = name
                _wake(sleeper.sleep)
                return

    def _end(self, reason: str, cause: BaseException | None = None) -> None:
        """End the connection, or go on with that where an interrupt left it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # ends a read that another thread is in
        self.protocol.end(reason, cause)
        for sleeper in self._sleepers:
            if sleeper.done:
                _wake(sleeper.sleep)  # again, if an interrupt came before
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        """Close, unless a thread may be in a system call on the descriptor."""
        if self._reader is None and self._writer is None:
            self._sock.close()


_CALLS: Final = frozenset(
    call.__code__ for call in (_Link.exchange, _Link.stream, _Link.look, _Link.load)
)


def _me(frame: FrameType | None) -> Iterator[object]:
    """The names of the calls that a thread is in, from the innermost outwards."""
    while frame is not None:
        if frame.f_code in _CALLS:
            yield frame.f_locals.get("me")
        frame = frame.f_back


# A child that was forked must not say a word on its parent's sockets, nor shut them down.
_connectors: weakref.WeakSet[Connector] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for connector in list(_connectors):
        connector._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Connector:
    """A connection to one server, shared by the threads of a process. Made by `connect`.

    Any number of threads may call at once: their commands leave in joined writes and their replies
    are handed out in order. Nothing runs in the background. A forked child shares nothing with its
    parent: its first call makes a connection of its own. A connection that was lost fails the
    calls in flight and is made again by the next call.

    Bounds and errors common to all calls:

    `timeout` bounds a whole call, in seconds: dialling, loading a script, every reply of a
    pipeline. None is the connector's default, `math.inf` no limit.

    Raises:
        EncodeError, RefusedCommand, Overloaded, Closed, ConnectFailed: Nothing was sent.
        ReplyTimeout, ConnectionLost: No reply; `may_have_run` says whether the command may have
            run. It is not sent again.
    """

    def __init__(self, address: Address, options: Options) -> None:
        self._address = address
        self._options = options
        self._counters = Counters()
        self._link: _Link | None = None
        self._dialling = threading.Lock()
        self._closed = False
        self._dials = 0
        self._protocol = 0
        _connectors.add(self)

    # Calls.

    def command(self, *args: Arg, timeout: float | None = None) -> Reply:
        """Say one command and answer its reply.

        Raises:
            ServerError: The server answered an error.
        """
        data = frame(args)
        link, deadline = self._begin(timeout)
        reply = link.exchange(data, deadline).replies[0]
        if type(reply) is ErrorReply:
            raise ServerError(reply.code, reply.message, command_name(args))
        return reply

    def eval(
        self,
        script: Script,
        keys: Sequence[Arg] = (),
        args: Sequence[Arg] = (),
        timeout: float | None = None,
    ) -> Reply:
        """Run a script by its digest; its body is sent only where the server does not hold it.

        Raises:
            ServerError: The script, or SCRIPT LOAD, answered an error.
            ShaMismatch: SCRIPT LOAD answered another digest; the script was not run.
        """
        try:
            data = script.frame(keys, args)
        except AttributeError:
            if isinstance(script, Script):
                raise
            raise EncodeTypeError(f"eval runs a Script, not {type(script).__name__}") from None
        link, deadline = self._begin(timeout)
        waiter = link.exchange(data, deadline)
        self._counters.evalsha_calls += 1
        reply = waiter.replies[0]
        if missed(reply):
            plan = repair([script(keys, args)], waiter.place)
            [reply] = run_plan(plan, self._exchange(link, deadline))
        if type(reply) is ErrorReply:
            raise ServerError(reply.code, reply.message, ScriptCall.command)
        return reply

    def pipeline(self, commands: Iterable[Command], timeout: float | None = None) -> list[Reply]:
        """Say many commands at once; their replies in order, error replies as `ErrorReply` values.

        All commands are encoded before the first is sent. They are not a transaction: commands of
        other callers may come between. A large pipeline is sent a window at a time, its replies
        read meanwhile.
        """
        deadline = self._deadline(timeout)
        self._counters.pipelines += 1
        return self._say_all(list(commands), deadline)

    def run(self, plan: Plan[T], timeout: float | None = None) -> T:
        """Drive a plan; what it returns."""
        deadline = self._deadline(timeout)
        return run_plan(plan, lambda step: self._say(step, deadline))

    def stats(self) -> dict[str, int | str]:
        """Counters since the connector was made, and how it stands."""
        link = self._link
        return {
            **asdict(self._counters),
            "pending": 0 if link is None else link.protocol.pending,
            "protocol": self._protocol,
            "status": self._status(),
        }

    def sibling(self, **changes: Any) -> Connector:
        """Another connector to the same server, with the same options but for `changes`."""
        connector = Connector(self._address, change_options(self._options, changes))
        connector._live(monotonic() + connector._options.connect_timeout)
        return connector

    def close(self) -> None:
        """End the connection. Calls in flight get ConnectionLost; later ones get Closed."""
        self._closed = True
        link = self._link
        if link is not None:
            link.end("the connector was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connector to {self._address}, {self._status()}>"

    # Steps of a plan.

    def _say(self, step: Step, deadline: float) -> Any:
        if type(step) is list:
            return self._say_all(step, deadline)
        command = cast(Command, step)
        data = frame(command)
        link = self._live(deadline)
        waiter = link.exchange(data, deadline)
        reply = waiter.replies[0]
        if isinstance(command, ScriptCall):
            self._counters.evalsha_calls += 1
            if missed(reply):
                plan = repair([command], waiter.place)
                [reply] = run_plan(plan, self._exchange(link, deadline))
        return reply

    def _say_all(self, commands: list[Command], deadline: float) -> list[Reply]:
        if not commands:
            return []
        return run_plan(flush(commands), self._exchange(self._live(deadline), deadline))

    def _exchange(self, link: _Link, deadline: float) -> Callable[[Request], Any]:
        """What answers the requests of `flush` and `repair`, on one connection."""

        def answer(request: Request) -> Any:
            if isinstance(request, Load):
                return link.load(request, deadline)
            slices = encode_slices(request, self._options.max_pending)
            self._counters.evalsha_calls += [type(one) for one in request].count(ScriptCall)
            waiters = link.stream(slices, deadline)
            return [reply for waiter in waiters for reply in waiter.replies], waiters[-1].place

        return answer

    # Connections.

    def _forget(self) -> None:
        """In a forked child: leave the parent's connection alone; the next call dials its own."""
        self._dialling = threading.Lock()
        link, self._link = self._link, None
        if link is not None:
            link.forget()

    def _deadline(self, timeout: float | None) -> float:
        if timeout is None:
            return monotonic() + self._options.timeout
        return monotonic() + check_timeout(timeout)

    def _status(self) -> str:
        if self._closed:
            return "closed"
        link = self._link
        return "connected" if link is not None and link.protocol.broken is None else "disconnected"

    def _begin(self, timeout: float | None) -> tuple[_Link, float]:
        """The connection, and the deadline of a call that begins now."""
        now = monotonic()
        deadline = now + (self._options.timeout if timeout is None else check_timeout(timeout))
        link = self._link
        if link is None or link.protocol.broken is not None or now - link.used > _IDLE_S:
            return self._live(deadline), deadline
        link.used = now
        return link, deadline

    def _live(self, deadline: float) -> _Link:
        """The connection, made anew if it was lost. One caller dials; others wait for it."""
        link = self._link
        if link is not None and link.protocol.broken is None:
            now = monotonic()
            if now - link.used > _IDLE_S:
                link.look()
            link.used = now
            if link.protocol.broken is None:
                return link
        left = min(deadline - monotonic(), _ASLEEP_AT_MOST_S)
        mine: list[bool] = []
        try:
            # One step for the interpreter: no signal can come between the lock and its owner.
            mine.extend(map(self._dialling.acquire, (True,), (max(left, 0),)))
            if not mine[0]:
                raise ConnectFailed(f"no connection to {self._address} in time")
            if self._closed:
                raise Closed
            link = self._link
            if link is None or link.protocol.broken is not None:
                link = self._dial(min(deadline, monotonic() + self._options.connect_timeout))
                self._link = link
                if self._closed:  # while dialling
                    link.end("the connector was closed")
                    raise Closed
            return link
        finally:
            if mine and mine[0]:
                self._dialling.release()

    def _dial(self, deadline: float) -> _Link:
        options = self._options
        sock = _open(self._address, deadline)
        protocol = Protocol(self._counters, max_pending=options.max_pending)
        link = _Link(sock, protocol, options.tap)

        def answer(step: Step) -> Any:
            if type(step) is list:
                return [
                    waiter.replies[0]
                    for waiter in link.stream([(boot_frame(one), 1) for one in step], deadline)
                ]
            return link.exchange(boot_frame(cast(Command, step)), deadline).replies[0]

        try:
            version = run_plan(boot(self._address, options), answer)
            if options.on_connect is not None:
                run_plan(options.on_connect(), answer)
        except BaseException as error:
            link.end("the connection could not be set up", error)
            if isinstance(error, TransportError) and not isinstance(error, ConnectFailed):
                raise ConnectFailed(f"{self._address}: {error}") from error
            raise
        if self._dials:
            self._counters.reconnects += 1
        self._dials += 1
        self._protocol = version
        return link


def _open(address: Address, deadline: float) -> socket.socket:
    """A connected socket. Every address of a name is tried, each with its share of the time."""
    try:
        if address.path is not None:
            places: list[Any] = [(socket.AF_UNIX, address.path)]
        else:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            places = [(family, where) for family, _, _, _, where in found]
    except (OSError, ValueError) as error:  # ValueError: a name that can be nobody's
        raise ConnectFailed(f"{address}: {error}") from error
    tried = []
    for at, (family, where) in enumerate(places):
        share = max((deadline - monotonic()) / (len(places) - at), 0.001)
        try:
            return _dialled(family, where, share if share < math.inf else None)
        except (OSError, ValueError) as error:
            tried.append(f"{where[0]}: {error}" if len(places) > 1 else str(error))
    raise ConnectFailed(f"{address}: {'; '.join(tried)}")


def _dialled(family: int, where: Any, seconds: float | None) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(None if seconds is None else min(seconds, _ASLEEP_AT_MOST_S))
        sock.connect(where)
        sock.settimeout(None)
        if isinstance(where, tuple):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def connect(url: str, **options: Any) -> Connector:
    """Connect to the server at `url`; the connection stands when this returns.

    Args:
        url: `valkey://user:password@host:port/db`, `redis://...`, or `unix:///path?db=1`.
        **options: See `Options`.

    Raises:
        AddressError: The URL or an option cannot be used.
        ConnectFailed: The server cannot be reached; `Refused` if it refused.
    """
    address, settings = parse_url(url, **options)
    refuse_tls(address)
    connector = Connector(address, settings)
    connector._live(monotonic() + settings.connect_timeout)
    return connector

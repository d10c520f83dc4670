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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from time import monotonic
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from .address import (
    Address,
    Backoff,
    Options,
    again,
    boot,
    change_options,
    check_timeout,
    check_tls,
    is_loading,
    is_network,
    is_unasked,
    parse_url,
    refused,
)
from .decode import ErrorReply, Reply
from .encode import Arg, encode_command
from .errors import (
    Closed,
    ConnectFailed,
    ConnectionLost,
    EncodeTypeError,
    ProtocolError,
    Reentered,
    ReplyTimeout,
    RespError,
    ServerError,
    TransactionAborted,
    TransportError,
    Unanswered,
)
from .events import Event, exchanged, guarded
from .net import tune
from .plan import Command, Pace, Plan, Step, boot_frame, command_name, frame, prepare, slices
from .plan import run as run_plan
from .protocol import (
    CLOSED,
    CUT,
    SILENT,
    Beat,
    Counters,
    Protocol,
    Waiter,
    late,
    may_have_run,
    outcomes,
)
from .pubsub import (
    Feed,
    Inbox,
    Message,
    Overflow,
    Reading,
    Registry,
    Verb,
    lost_resp3,
    needs_resp3,
    reminder,
)
from .script import Load, Loaded, Muted, Request, Script, ScriptCall, flush, missed, repair
from .transaction import (
    Decide,
    atomically,
    check_commands,
    check_keys,
    muted,
    silenced,
    was_loading,
    watched,
)

if TYPE_CHECKING:
    import ssl
    from typing import Self

    from .tls import Tls

T = TypeVar("T")

_PING: Final = encode_command("PING")
_CHUNK: Final = (65_536,)  # bytes a read; a tuple, to be mapped over
_IDLE_S: Final = 0.01  # after so long without a call, a look at the socket costs nobody anything
_LATE_S: Final = 0.01  # how much too late the socket's own timeout may end a wait
_LEAVING_S: Final = 0.5  # for writing what others left to a caller that was interrupted
_BLOCKED_S: Final = 0.05  # how often a writer whose peer does not read looks for a reader
_DIAL_S: Final = 1.0  # for a reader that looks at messages for a shorter time than a dial takes
_ASLEEP_AT_MOST_S: Final = 3600.0  # what a lock and a socket take for a timeout is bounded
_SEND_FLAGS: Final = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)


class _Caller(Waiter):
    """A waiter whose caller is a thread; it sleeps on a lock."""

    __slots__ = ()

    def settle(self) -> None:
        self.done = True
        if self.sleep is not None:
            _wake(self.sleep)


def _holders(place: object, role: str) -> int:
    """How many references there are to what `place` has for `role`."""
    return sys.getrefcount(getattr(place, role))


class _Place:
    role = object()


_ALONE: Final = _holders(_Place, "role")  # where nothing else refers to it


def _wake(bed: threading.Lock) -> None:
    # One that is unlocked was woken already; whoever wakes looks at all it may be woken for.
    with contextlib.suppress(RuntimeError):
        bed.release()


class _Link:
    """One connected socket, its protocol, and who writes and reads at the moment."""

    def __init__(
        self,
        sock: socket.socket,
        protocol: Protocol,
        counters: Counters,
        options: Options,
        tls: Tls | None,
        address: str,
    ) -> None:
        self.protocol = protocol
        self.feed: Feed
        self.on_end: Callable[[BaseException], None] | None = None
        self._sock = sock
        self._recv = sock.recv
        self._send = sock.send
        self._counters = counters
        self._tls = tls
        self._tap = tap = options.tap
        self._number = tap.connection(address) if tap is not None else 0
        self._heartbeat = options.heartbeat
        self._patience = min(options.timeout, options.heartbeat)
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
        me = object()
        waiter = _Caller(data, 1)
        if self._owned():
            raise Reentered(may_have_run=False)
        try:
            self._post(waiter, me, deadline)
            self._wait(waiter, me, deadline)
        except BaseException as error:  # as in `_guarded`, without the cost of a call
            waiter.left = True
            try:
                self._leave(me, error)
            except BaseException:
                self._leave(me, error)
                raise
            raise
        if waiter.error is not None:
            raise waiter.error
        return waiter

    def stream(
        self,
        parts: Iterable[tuple[bytes, int]],
        pace: Pace,
        deadline: float,
        sent: list[_Caller],
        silent: bool = False,
    ) -> None:
        """Send slices of commands, a window at a time, and wait for all of their replies.

        Args:
            parts: Bytes, and how many commands they are; made one by one.
            pace: Is told what the replies weigh.
            deadline: For all of them.
            sent: Gets a waiter for each slice, whatever becomes of it.
            silent: Whether each slice owes one reply, that to CLIENT REPLY ON.
        """
        self._guarded(self._stream, parts, pace, deadline, sent, silent)

    def _stream(
        self,
        me: object,
        parts: Iterable[tuple[bytes, int]],
        pace: Pace,
        deadline: float,
        sent: list[_Caller],
        silent: bool,
    ) -> None:
        counters = self._counters
        replies, received = counters.replies, counters.bytes_in
        try:
            for data, count in parts:
                waiter = _Caller(data, count)
                sent.append(waiter)
                self._post(waiter, me, deadline, len(sent) == 1, silent)
                if len(sent) >= pace.window:
                    first = sent[-pace.window]
                    self._wait(first, me, deadline)
                    if first.error is not None:
                        raise first.error
                    pace.learn(counters.replies - replies, counters.bytes_in - received)
                    if first is not sent[0]:  # which tells what began
                        first.data = b""
            for waiter in sent:
                self._wait(waiter, me, deadline)
                if waiter.error is not None:
                    raise waiter.error
        except BaseException:
            for waiter in sent:
                waiter.left = True
            raise

    def look(self) -> None:
        """See whether something came while nobody waited: the connection's end, or pushes."""
        self._guarded(self._look)

    def _look(self, me: object) -> None:
        with self._mutex:
            protocol = self.protocol
            if self._reader is not None or protocol.broken is not None:
                return
            self._reader = me
        if self._ready(select.POLLIN, 0):
            self._read_chunk()
        with self._mutex:
            self._hand_on()

    def load(self, request: Load, deadline: float) -> Loaded:
        """What SCRIPT LOAD answers; one load is shared by all that miss together."""
        return self._guarded(self._load, request, deadline)

    def _load(self, me: object, request: Load, deadline: float) -> Loaded:
        waiter = _Caller(b"", 0)
        sha, body = request.script.sha, request.script.load()
        with self._mutex:
            begun = self.protocol.join_load(sha, body, request.missed_at, waiter, request.may_begin)
            if begun is None:
                return None
        if begun:
            self._flush(me, deadline)
        self._wait(waiter, me, deadline)
        if waiter.error is not None:
            raise waiter.error
        return waiter.replies[0], begun

    def change(
        self, record: Callable[[], list[bytes]], deadline: float, counted: bool = True
    ) -> list[ErrorReply | None]:
        """Change what is subscribed to; of each command the server's refusal, or None.

        Args:
            record: Records what is wanted, and answers the commands that say so, if any.
            deadline: For the server's answers.
            counted: Whether `max_pending` applies.
        """
        return self._guarded(self._change, record, deadline, counted)

    def _change(
        self, me: object, record: Callable[[], list[bytes]], deadline: float, counted: bool
    ) -> list[ErrorReply | None]:
        waiters = []
        with self._mutex:  # what is recorded is written in that order
            if counted:  # before it is recorded: what is not said needs no taking back
                self.protocol.make_room()
            for data in record():
                waiters.append(_Caller(b"", 0))
                self.protocol.ask_change(data, waiters[-1], False)
            self.feed.forget()
        if not waiters:
            return []
        self._flush(me, deadline)
        refusals = []
        for waiter in waiters:
            self._wait(waiter, me, deadline)
            if waiter.error is not None:
                raise waiter.error
            refusal = waiter.replies[0]
            refusals.append(refusal if isinstance(refusal, ErrorReply) else None)
        return refusals

    def listen(self, inbox: Inbox, deadline: float) -> None:
        """Wait until `inbox` has something, or the connection ends, or it is time."""
        with contextlib.suppress(ReplyTimeout):
            self._guarded(self._listen, inbox, deadline)

    def _listen(self, me: object, inbox: Inbox, deadline: float) -> None:
        waiter = _Caller(b"", 0)
        listeners = self.protocol.listeners
        try:
            listeners[waiter] = None
            inbox.parked[waiter] = None
            # After it was entered: what came before is seen here, what comes now wakes it.
            if not inbox and inbox.ended is None and self.protocol.broken is None:
                self._wait(waiter, me, deadline)
        finally:
            listeners.pop(waiter, None)
            inbox.parked.pop(waiter, None)

    def beat(self) -> None:
        """Ask a silent server whether it is there; end the connection if it is not."""
        self._guarded(self._beat)

    def _beat(self, me: object) -> None:
        with self._mutex:
            now = monotonic()
            todo = self.protocol.beat(now, self._heartbeat, self._patience)
            if todo is Beat.DEAD:
                self._end(SILENT)
        if todo is Beat.ASK:
            ping = _Caller(_PING, 1)
            ping.left = True
            self._post(ping, me, now + self._patience)
            with self._mutex:
                if self._reader is me:
                    self._hand_on()

    def _guarded(self, work: Callable[..., T], *args: Any) -> T:
        """Do `work` under a name of its own; if it fails, leave nothing behind."""
        me = object()
        if self._owned():
            raise Reentered(may_have_run=False)
        try:
            return work(me, *args)
        except BaseException as error:
            try:
                self._leave(me, error)
            except BaseException:  # an interrupt of the leaving itself: once more, then it is told
                self._leave(me, error)
                raise
            raise

    def end(self, reason: str, cause: BaseException | None = None) -> None:
        """Nothing more is sent or received; everybody is told."""
        with self._mutex:
            self._end(reason, cause)
        if self._tap is not None:
            self._tap.closed(self._number, reason)

    def forget(self) -> None:
        """In a forked child: close its descriptor, and nothing of the connection, its parent's."""
        self.protocol.broken = "it belongs to the process that this one was forked from"
        self._sock.close()

    # Writing.

    def _post(
        self,
        waiter: _Caller,
        me: object,
        deadline: float,
        counted: bool = True,
        silent: bool = False,
    ) -> None:
        with self._mutex:
            if silent:
                self.protocol.ask_silently(waiter, counted)
            else:
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
            if self._tls is not None:
                data = self._tls.encrypt(data)
            sent = self._send(data, _SEND_FLAGS)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lost(error, me)
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
                    self._lost(error, me)
                    return

    def _lost(self, error: OSError, me: object) -> None:
        """A write failed. A server that closes may have said why: that is read before the end."""
        if isinstance(error, (BrokenPipeError, ConnectionResetError)):
            with self._mutex:
                if self._reader is None:
                    self._reader = me
                if self._reader is not me:
                    return  # whoever reads comes to the end, and tells all
            while self.protocol.broken is None and self._ready(select.POLLIN, 0):
                self._read_chunk()
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
                    if self._is_below(me):
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

    def _is_below(self, me: object) -> bool:
        """Whether a role is held by a call further down this very stack, for which to wait would
        be for ever. (Nothing of a role is kept in a variable: see `_find_lost_roles`.)"""
        return any(
            name is not me and (name is self._reader or name is self._writer)
            for name in _me(sys._getframe())
        )

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
        if self._tls is not None:
            self._decrypt(self._tls, data)
        elif data:
            self._receive(data)
        else:
            self.end(CLOSED)
        self._handing_out = False

    def _receive(self, data: bytes) -> None:
        if self._tap is not None:
            self._tap.read(self._number, data)
        try:
            self.protocol.receive(data)
        except ProtocolError as error:
            self.end(f"the server broke the protocol: {error}", error)

    def _decrypt(self, tls: Tls, data: bytes) -> None:
        try:
            plain = tls.decrypt(data)
        except OSError as error:  # what ssl raises is one
            self.end(f"TLS failed: {error}", error)
            return
        if plain:
            self._receive(plain)
        if tls.ended:
            self.end(CLOSED)
        elif not data:
            self.end(CUT)

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
                self._find_lost_roles()
            if self._writer is me:
                self._writer = None
                self._end("a write to the server was interrupted", error)
            if self._reader is me and self._handing_out:
                self._end("the reading of a reply was interrupted", error)
            if isinstance(error, ReplyTimeout) and self.protocol.owed:
                beat = self.protocol.beat(monotonic(), self._heartbeat, self._patience)
                if beat is Beat.DEAD:
                    self._end(SILENT)
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
            with self._mutex:
                if self._reader is me:  # it read while its peer took no more
                    self._hand_on()

    def _find_lost_roles(self) -> None:
        """End the connection if a role is held by a call that is no more.

        Two interrupts within microseconds can take a caller away from its own leaving. Whoever
        waits for it in vain finds out, at the end of its time: the name of a call that goes on is
        held by that call too, and one of a call that is no more by its role alone.
        """
        lost = [role for role in ("_writer", "_reader") if _holders(self, role) <= _ALONE]
        for role in lost:
            setattr(self, role, None)
        if lost:
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
        if self.protocol.broken is None and self._tls is not None and self._writer is None:
            with contextlib.suppress(OSError):
                self._send(self._tls.close(), _SEND_FLAGS)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # ends a read that another thread is in
        self.protocol.end(reason, cause)
        for sleeper in self._sleepers:
            if sleeper.done:
                _wake(sleeper.sleep)  # again, if an interrupt came before
        self._close_when_idle()
        told, self.on_end = self.on_end, None
        if told is not None:
            told(cause or ConnectionLost(reason))

    def _close_when_idle(self) -> None:
        """Close, unless a thread may be in a system call on the descriptor."""
        if self._reader is None and self._writer is None:
            self._sock.close()


_CALLS: Final = frozenset(call.__code__ for call in (_Link.exchange, _Link._guarded))


class _ObservedLink(_Link):
    """A link that tells of each exchange, once it may."""

    emit: Callable[[Event], None] | None = None
    address = ""

    def exchange(self, data: bytes, deadline: float) -> _Caller:
        began = monotonic()
        try:
            waiter = super().exchange(data, deadline)
        except BaseException as error:
            self._tell(data, 1, began, error)
            raise
        self._tell(data, 1, began, None)
        return waiter

    def stream(
        self,
        parts: Iterable[tuple[bytes, int]],
        pace: Pace,
        deadline: float,
        sent: list[_Caller],
        silent: bool = False,
    ) -> None:
        began = monotonic()
        failed: BaseException | None = None
        try:
            super().stream(parts, pace, deadline, sent, silent)
        except BaseException as error:
            failed = error
            raise
        finally:
            if sent:
                self._tell(sent[0].data, sum(each.count for each in sent), began, failed)

    def _tell(self, data: bytes, count: int, began: float, error: BaseException | None) -> None:
        if self.emit is not None:
            self.emit(exchanged(self.address, data, count, monotonic() - began, error))


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
        check_tls(address, options)
        self._address = address
        self._options = options
        self._counters = Counters()
        self._link: _Link | None = None
        self._emit = None if options.on_event is None else guarded(options.on_event)
        self._registry = Registry(
            threading.RLock(), None if options.on_push is None else guarded(options.on_push)
        )
        # Owned, as a link's mutex is: a signal handler may come while it is held.
        self._dialling = threading.RLock()
        self._probing = threading.RLock()  # a signal handler may come within a look
        self._backoff = Backoff(*options.backoff)
        self._tries = 0
        self._watcher: Connector | None = None
        self._watching = threading.RLock()
        self._closed = False
        self._closing = threading.Lock()  # locked until `close`, for those who wait meanwhile
        self._closing.acquire()
        self._opening: socket.socket | None = None  # while it is dialled
        self._tried_until = math.inf
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
        waiter = link.exchange(data, deadline)
        reply = waiter.replies[0]
        if type(reply) is ErrorReply:
            self._judge(link, reply, waiter.place)
            if is_loading(reply):
                reply = self._when_loaded(lambda: self._ask(data, deadline), reply, deadline)
                if type(reply) is not ErrorReply:
                    return reply
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
        try:
            waiter = link.exchange(data, deadline)
        except TransportError as error:
            self._counters.evalsha_calls += error.may_have_run
            raise
        self._counters.evalsha_calls += 1
        reply = waiter.replies[0]
        if type(reply) is ErrorReply:
            reply = self._mended(script(keys, args), waiter, link, deadline)
        if type(reply) is ErrorReply:
            raise ServerError(reply.code, reply.message, ScriptCall.command)
        return reply

    def pipeline(self, commands: Iterable[Command], timeout: float | None = None) -> list[Reply]:
        """Say many commands at once; their replies in order, error replies as `ErrorReply` values.

        All commands are looked at before the first is sent. They are not a transaction: commands
        of other callers may come between. A pipeline of any length is sent a window at a time, and
        its replies are read meanwhile.

        Raises:
            TransportError: It failed on its way: `replies` holds what came, and what is known of
                the rest.
        """
        deadline = self._deadline(timeout)
        self._counters.pipelines += 1
        return self._say_all(list(commands), deadline)

    def transaction(
        self,
        commands: Iterable[Command] | Decide,
        *,
        watch: Collection[Arg] = (),
        timeout: float | None = None,
    ) -> list[Reply]:
        """Run commands in MULTI .. EXEC; what EXEC answers, error replies as values.

            def raise_by_one() -> Plan[list[Command]]:
                before = yield ("GET", "n")
                return [("SET", "n", int(before or 0) + 1)]

            connector.transaction(raise_by_one, watch=["n"])

        Args:
            commands: What to run; with `watch`, also a function that makes a plan, which looks at
                what it needs and returns what to run.
            watch: Keys; if any of them changes before EXEC, nothing runs. A connection of its own
                is kept for such transactions, which take turns on it.
            timeout: For all of it.

        Raises:
            TransactionAborted: Nothing ran: a watched key changed, or a command was refused.
            ServerError: MULTI was refused, and the commands ran one by one, or EXEC was.
        """
        deadline = self._deadline(timeout)
        most = self._options.max_pending
        keys = check_keys(watch)
        if not keys:
            return self._transact(check_commands(commands), deadline)
        watching = self._watching  # in a child that is forked meanwhile it is another
        if _owned(watching):  # by a hook, a plan that decides, or a signal handler
            raise Reentered(may_have_run=False)
        mine: list[bool] = []
        try:
            _acquire(watching, deadline, mine)
            if not mine[0]:
                raise ReplyTimeout(
                    "other transactions that watch took too long", may_have_run=False
                )
            if self._watcher is None:
                self._watcher = Connector(self._address, self._options)
                self._watcher._counters = self._counters
            if self._closed:
                raise Closed
            link = self._watcher._live(deadline)
            try:
                plan = watched(keys, commands, most)
                return run_plan(plan, self._exchange(link, deadline))
            except TransactionAborted:
                raise
            except BaseException as error:
                link.end("a transaction was left half way", error)
                raise
        finally:
            if mine and mine[0]:
                watching.release()

    def send(self, commands: Iterable[Command], timeout: float | None = None) -> None:
        """Say commands whose replies nobody wants: the server sends none, errors neither.

        When this returns, the server has run all of them, or refused some. Their scripts are loaded
        before; a script that another client flushes meanwhile does not run.

        Raises:
            ServerError: CLIENT REPLY was refused; the commands ran all the same.
        """
        deadline = self._deadline(timeout)
        said = check_commands(commands)
        prepare(said, self._options.max_pending)
        if said:
            run_plan(muted(said), self._exchange(self._live(deadline), deadline))

    def subscribe(
        self,
        *channels: Arg,
        capacity: int = 10_000,
        overflow: Overflow = "drop-oldest",
        timeout: float | None = None,
    ) -> Subscription:
        """Receive what is published to `channels` from now on.

        Args:
            *channels: Names, str or bytes.
            capacity: Messages kept for a reader that falls behind.
            overflow: What then happens to one more: "drop-oldest", or "close" the subscription.
            timeout: For the server's confirmation.

        Raises:
            RequiresResp3: The connection speaks RESP2. Nothing was sent.
            ServerError: The server refused a channel; there is no subscription to any of them.
        """
        return self._subscribe("SUBSCRIBE", channels, capacity, overflow, timeout)

    def psubscribe(
        self,
        *patterns: Arg,
        capacity: int = 10_000,
        overflow: Overflow = "drop-oldest",
        timeout: float | None = None,
    ) -> Subscription:
        """As `subscribe`, to all channels whose names match `patterns` (`news.*`)."""
        return self._subscribe("PSUBSCRIBE", patterns, capacity, overflow, timeout)

    def ssubscribe(
        self,
        *channels: Arg,
        capacity: int = 10_000,
        overflow: Overflow = "drop-oldest",
        timeout: float | None = None,
    ) -> Subscription:
        """As `subscribe`, to what is published with SPUBLISH, on this server's shard."""
        return self._subscribe("SSUBSCRIBE", channels, capacity, overflow, timeout)

    def run(self, plan: Plan[T], timeout: float | None = None) -> T:
        """Drive a plan; what it returns.

        The `may_have_run` of a `TransportError` that leaves the plan is about all of its steps.
        """
        deadline = self._deadline(timeout)
        return run_plan(plan, lambda step: self._say(step, deadline), whole=True)

    def stats(self) -> dict[str, int | str]:
        """Counters since the connector was made, and how it stands."""
        link = self._link
        return {
            **self._counters.told(),
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
        _wake(self._closing)
        for inbox in self._registry.wanted:
            inbox.end(Closed())
        if self._watcher is not None:
            self._watcher.close()
        link = self._link
        if link is not None:
            link.end("the connector was closed")
        opening = self._opening
        if opening is not None:  # whoever dials finds out at once
            with contextlib.suppress(OSError):
                opening.shutdown(socket.SHUT_RDWR)

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

    def _ask(self, data: bytes, deadline: float) -> Reply:
        return self._live(deadline).exchange(data, deadline).replies[0]

    def _say(self, step: Step, deadline: float) -> Any:
        if type(step) is list:
            return self._say_all(step, deadline)
        command = cast(Command, step)
        data = frame(command)
        link = self._live(deadline)
        try:
            waiter = link.exchange(data, deadline)
        except TransportError as error:
            if isinstance(command, ScriptCall):
                self._counters.evalsha_calls += error.may_have_run
            raise
        reply = waiter.replies[0]
        if isinstance(command, ScriptCall):
            self._counters.evalsha_calls += 1
            if type(reply) is ErrorReply:
                return self._mended(command, waiter, link, deadline)
        elif type(reply) is ErrorReply:
            self._judge(link, reply, waiter.place)
            if is_loading(reply):
                return self._when_loaded(lambda: self._ask(data, deadline), reply, deadline)
        return reply

    def _judge(self, link: _Link, reply: ErrorReply, place: int = 1) -> None:
        """Raise, if `reply` is no answer, but says that the server takes no such client."""
        if place == 1 and is_unasked(reply):  # in the place of the first answer, or never
            link.end("the server refused the connection")
            raise refused(self._address, "", reply)

    def _mended(self, call: ScriptCall, waiter: _Caller, link: _Link, deadline: float) -> Reply:
        """The answer of a script call whose first answer was an error."""
        reply = waiter.replies[0]
        if isinstance(reply, ErrorReply):
            self._judge(link, reply, waiter.place)
        if is_loading(reply):
            say = partial(self._flush, [call], deadline)
            [reply] = self._when_loaded(say, [reply], deadline)
        elif missed(reply):
            [reply] = run_plan(repair([call], waiter.place), self._exchange(link, deadline))
        return reply

    def _say_all(self, commands: list[Command], deadline: float) -> list[Reply]:
        if not commands:
            return []
        replies = self._flush(commands, deadline)
        if is_loading(replies[0]):
            say = partial(self._flush, commands, deadline)
            return self._when_loaded(say, replies, deadline)
        return replies

    def _flush(self, commands: list[Command], deadline: float) -> list[Reply]:
        return run_plan(flush(commands), self._exchange(self._live(deadline), deadline))

    def _when_loaded(self, say: Callable[[], T], answer: T, deadline: float) -> T:
        """`answer`, or that to saying it again, as long as the server ran nothing of it because
        it was loading its dataset."""
        first, longest = self._options.backoff
        wait = first
        while is_loading(answer) and (left := deadline - monotonic()) > first:
            self._pause(min(wait, left - first / 2))
            wait = min(2 * wait, longest)
            answer = say()
        return answer

    def _transact(self, commands: list[Command], deadline: float) -> list[Reply]:
        first, longest = self._options.backoff
        wait = first
        while True:
            try:
                plan = atomically(commands, self._options.max_pending)
                return run_plan(plan, self._exchange(self._live(deadline), deadline))
            except RespError as error:
                left = deadline - monotonic()
                if left <= first or not was_loading(error):
                    raise
            self._pause(min(wait, left - first / 2))
            wait = min(2 * wait, longest)

    def _exchange(self, link: _Link, deadline: float) -> Callable[[Request], Any]:
        """What answers the requests of plans over requests, on one connection."""
        most = self._options.max_pending

        def answer(request: Request) -> Any:
            if isinstance(request, Load):
                return link.load(request, deadline)
            sent: list[_Caller] = []
            pace = Pace(most)
            if isinstance(request, Muted):
                said = request.commands
                parts = silenced(slices(prepare(said, most), pace))
                try:
                    link.stream(parts, pace, deadline, sent, silent=True)
                except TransportError as error:
                    error.may_have_run = any(map(may_have_run, sent))
                    if all(waiter.replies in ([], ["OK"]) for waiter in sent):
                        raise
                finally:
                    self._count_calls(said, sent)
                for waiter in sent:
                    if waiter.replies != ["OK"]:
                        return waiter.replies[0]
                return "OK"
            ready = prepare(request, most)
            try:
                link.stream(slices(ready, pace), pace, deadline, sent)
            except TransportError as error:
                error.replies = outcomes(sent, len(request))
                error.may_have_run = any(
                    reply is not Unanswered.NOT_SENT for reply in error.replies
                )
                raise
            finally:
                self._count_calls(request, sent)
            replies = list(chain.from_iterable(waiter.replies for waiter in sent))
            return replies, sent[-1].place

        return answer

    def _count_calls(self, commands: list[Command], sent: list[_Caller]) -> None:
        asked = sum(waiter.count for waiter in sent if waiter.place)
        calls = list(map(type, commands[:asked])).count(ScriptCall)
        self._counters.evalsha_calls += calls  # in one step: others count too

    # Subscriptions.

    def _subscribe(
        self,
        verb: Verb,
        channels: Sequence[Arg],
        capacity: int,
        overflow: Overflow,
        timeout: float | None,
    ) -> Subscription:
        inbox = Inbox(verb, channels, capacity, overflow)
        deadline = self._deadline(timeout)
        link = self._live(deadline)
        if self._protocol != 3:
            raise needs_resp3(inbox)
        subscription = Subscription(self, inbox)
        try:
            *_, refusal = link.change(
                lambda: [
                    *self._registry.surplus(link.feed),
                    self._registry.enter(inbox, link.feed),
                ],
                deadline,
            )
            if refusal is not None:
                raise ServerError(refusal.code, refusal.message, verb)
        except BaseException:
            self._unsubscribe(inbox, monotonic() + _LEAVING_S)
            raise
        return subscription

    def _unsubscribe(self, inbox: Inbox, deadline: float) -> None:
        """See that `inbox` gets no more; tell the server, if there is one, what nobody wants."""
        self._registry.leave(inbox)
        link = self._link
        if link is not None and link.protocol.broken is None:
            with contextlib.suppress(TransportError):
                link.change(
                    lambda: self._registry.surplus(link.feed) or reminder(inbox), deadline, False
                )

    def _again(self, link: _Link, deadline: float) -> None:
        """Subscribe anew, on a new connection, to all that is wanted."""
        wanted = self._registry.wanted
        if self._protocol != 3:
            for inbox in wanted:
                self._registry.end(inbox, lost_resp3(inbox))
            return
        refusals = link.change(
            lambda: [link.feed.entering(each) for each in wanted], deadline, False
        )
        for inbox, refusal in zip(wanted, refusals, strict=True):
            self._registry.again(inbox, refusal)

    def _next(self, inbox: Inbox, timeout: float | None) -> Message | None:
        """The next message, or None if none comes in time."""
        if timeout is None:
            timeout = self._options.timeout
        elif timeout != 0:
            check_timeout(timeout)
        deadline = monotonic() + timeout
        tick = min(self._options.heartbeat, self._options.timeout)
        looked = False
        while True:
            try:
                message = inbox.take()
            except RespError:
                self._unsubscribe(inbox, monotonic() + _LEAVING_S)
                raise
            if message is not None:
                return message
            now = monotonic()
            link = self._link
            if link is None or link.protocol.broken is not None:
                wait = self._backoff.not_before - now
                if 0 < wait < deadline - now:
                    self._nap(inbox, wait)
                    continue
                try:
                    self._live(max(deadline, now + _DIAL_S))
                except ConnectFailed as error:
                    now = monotonic()
                    if now >= deadline or not is_network(error):
                        raise
                    wait = max(self._backoff.not_before - now, _LATE_S)
                    self._nap(inbox, min(wait, deadline - now))
            elif now < deadline:
                link.listen(inbox, min(deadline, now + tick))
                link.used = monotonic()
                if not inbox:
                    link.beat()
            elif looked:
                return None
            else:
                link.look()
                if not inbox:
                    link.beat()
                looked = True

    def _nap(self, inbox: Inbox, seconds: float) -> None:
        """Wait, unless `inbox` ends meanwhile."""
        waiter = _Caller(b"", 0)
        waiter.sleep = threading.Lock()
        waiter.sleep.acquire()
        try:
            inbox.parked[waiter] = None
            if inbox.ended is None:
                waiter.sleep.acquire(timeout=min(seconds, _ASLEEP_AT_MOST_S))
        finally:
            inbox.parked.pop(waiter, None)

    # Connections.

    def _forget(self) -> None:
        """In a forked child: leave the parent's connection alone; the next call dials its own."""
        self._dialling = threading.RLock()
        self._probing = threading.RLock()
        self._watching = threading.RLock()
        self._registry.renew(threading.RLock())
        self._opening = None
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
                self._probe(link, deadline)
            if link.protocol.broken is None:
                link.used = now
                return link
        if self._closed:
            raise Closed
        dialling = self._dialling  # in a child that is forked meanwhile it is another
        if _owned(dialling):  # by a hook of the dial, or a signal handler
            raise Reentered(may_have_run=False)
        tries = self._tries
        self._backoff.check(monotonic(), deadline)
        mine: list[bool] = []
        try:
            _acquire(dialling, deadline, mine)
            if not mine[0]:
                raise ConnectFailed(f"no connection to {self._address} in time")
            link = self._link
            if link is not None and link.protocol.broken is None:
                return link
            if self._closed:
                raise Closed
            failed = self._backoff.error
            if self._tries != tries and failed is not None and deadline <= self._tried_until:
                raise again(failed)  # somebody tried meanwhile, for everybody
            self._pause(self._backoff.check(monotonic(), deadline))
            until = min(deadline, monotonic() + self._options.connect_timeout)
            try:
                self._link = link = self._dial(until)
            except Exception as error:
                if self._closed:
                    raise Closed from error
                # One that ran out of its caller's time says nothing to those who have more.
                self._tried_until = until if monotonic() >= until else math.inf
                self._tries += 1
                self._backoff.failed(monotonic(), error)
                raise
            finally:
                self._opening = None
            self._backoff.worked()
            if self._closed:  # while dialling
                link.end("the connector was closed")
                raise Closed
            # Somebody may have closed a subscription while it was being made anew.
            with contextlib.suppress(TransportError):
                link.change(lambda: self._registry.surplus(link.feed), deadline, False)
            return link
        finally:
            if mine and mine[0]:
                dialling.release()

    def _pause(self, seconds: float) -> None:
        """Wait, unless the connector is closed meanwhile."""
        if seconds > 0 and self._closing.acquire(timeout=seconds):
            _wake(self._closing)  # for the others
        if self._closed:
            raise Closed

    def _probe(self, link: _Link, deadline: float) -> None:
        """See whether a connection still stands that was not used for a while.

        One caller looks. Those who come meanwhile wait for what it finds, else they would take a
        dead connection for one that is in use.
        """
        probing = self._probing
        mine: list[bool] = []
        try:
            _acquire(probing, deadline, mine)
            now = monotonic()
            silent_s = now - link.used
            if not mine[0] or silent_s <= _IDLE_S or link.protocol.broken is not None:
                return
            link.look()
            if silent_s > self._options.heartbeat and link.protocol.broken is None:
                if link.protocol.owed:  # an answer to a question would come after what is owed
                    link.beat()
                else:
                    self._ask_for_life(link, now, deadline)
            link.used = now
        finally:
            if mine and mine[0]:
                probing.release()

    def _ask_for_life(self, link: _Link, now: float, deadline: float) -> None:
        patience = min(self._options.timeout, self._options.heartbeat, (deadline - now) / 2)
        try:
            link.exchange(_PING, now + patience)
        except ReplyTimeout:
            link.end(SILENT)
        except TransportError:
            pass  # it ended, or is busy enough to be alive

    def _dial(self, deadline: float) -> _Link:
        options = self._options
        began = monotonic()
        sock = _open(self._address, options.heartbeat, deadline, self._opens)
        try:
            tls = _secured(sock, self._address, options.tls, deadline)
        except BaseException:
            sock.close()
            raise
        feed = self._registry.feed()
        protocol = Protocol(self._counters, max_pending=options.max_pending, on_push=feed)
        kind = _Link if self._emit is None else _ObservedLink
        link = kind(sock, protocol, self._counters, options, tls, str(self._address))
        link.feed = feed

        def say(step: Step) -> Any:
            if type(step) is list:
                sent: list[_Caller] = []
                parts = [(boot_frame(one), 1) for one in step]
                link.stream(parts, Pace(options.max_pending), deadline, sent)
                return [waiter.replies[0] for waiter in sent]
            return link.exchange(boot_frame(cast(Command, step)), deadline).replies[0]

        def answer(step: Step) -> Any:
            return self._when_loaded(lambda: say(step), say(step), deadline)

        try:
            self._protocol = run_plan(boot(self._address, options), answer)
            if options.on_connect is not None:
                run_plan(options.on_connect(), answer)
            self._again(link, deadline)
        except BaseException as error:
            link.end("the connection could not be set up", error)
            if isinstance(error, TransportError) and not isinstance(error, ConnectFailed):
                raise ConnectFailed(f"{self._address}: {error}") from error
            raise
        self._announce(link, monotonic() - began)
        return link

    def _opens(self, sock: socket.socket) -> None:
        """`sock` is about to be dialled; `close` ends that."""
        self._opening = sock
        if self._closed:  # before it could see the socket
            raise Closed

    def _announce(self, link: _Link, took_s: float) -> None:
        first = not self._dials
        self._dials += 1
        if not first:
            self._counters.reconnects += 1
        emit, address = self._emit, str(self._address)
        if emit is None:
            return
        made = monotonic()
        link.on_end = lambda error: emit(
            Event("disconnected", address, monotonic() - made, error=error)
        )
        if isinstance(link, _ObservedLink):
            link.emit, link.address = emit, address
        emit(Event("connected" if first else "reconnected", address, took_s))


class Subscription(Reading):
    """Messages of some channels. Made by `Connector.subscribe`, `psubscribe` and `ssubscribe`.

        with connector.subscribe("news") as subscription:
            for message in subscription:
                print(message.channel, message.payload)

    While it is read, its reader makes a lost connection anew and subscribes again; `gaps` counts
    how often messages may have been missed. Nobody reads the socket while nobody calls: what
    arrives meanwhile waits in the system's buffers, and then in the server's.
    """

    def __init__(self, connector: Connector, inbox: Inbox) -> None:
        super().__init__(inbox, connector._registry)
        self._connector = connector

    def get(self, timeout: float | None = math.inf) -> Message | None:
        """The next message, or None if none comes in time.

        Args:
            timeout: Seconds; 0 looks at what has come, None is the connector's default. Where the
                connection was lost, making it anew may take a second, however short the time.

        Raises:
            Closed: The subscription or its connector was closed, or a reader was too slow.
            ServerError: The server refused the channels when it was connected again.
            ConnectFailed: The server cannot be reached, and time is up; or it refused.
        """
        return self._connector._next(self._inbox, timeout)

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the subscription is closed."""
        while True:
            try:
                message = self.get()
            except Closed:
                if self.closed or self._connector._closed:
                    return
                raise
            if message is not None:
                yield message

    def close(self, timeout: float | None = None) -> None:
        """Receive no more. Channels that other subscriptions want stay subscribed to."""
        deadline = self._connector._deadline(timeout)
        self._end()
        self._connector._unsubscribe(self._inbox, deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _owned(lock: Any) -> bool:
    """Whether this thread holds `lock`."""
    owned: bool = lock._is_owned()
    return owned


def _acquire(lock: Any, deadline: float, mine: list[bool]) -> None:
    """Put into `mine` whether `lock` was acquired in time."""
    left = max(min(deadline - monotonic(), _ASLEEP_AT_MOST_S), 0)
    # One step for the interpreter: no signal can come between the lock and its owner.
    mine.extend(map(lock.acquire, (True,), (left,)))


def _open(
    address: Address, heartbeat: float, deadline: float, opens: Callable[[socket.socket], None]
) -> socket.socket:
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
            return _dialled(family, where, heartbeat, share if share < math.inf else None, opens)
        except (OSError, ValueError) as error:
            tried.append(f"{where[0]}: {error}" if len(places) > 1 else str(error))
    raise ConnectFailed(f"{address}: {'; '.join(tried)}")


def _dialled(
    family: int,
    where: Any,
    heartbeat: float,
    seconds: float | None,
    opens: Callable[[socket.socket], None],
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(None if seconds is None else min(seconds, _ASLEEP_AT_MOST_S))
        opens(sock)
        sock.connect(where)
        sock.settimeout(None)
        if isinstance(where, tuple):
            tune(sock, heartbeat)
    except BaseException:
        sock.close()
        raise
    return sock


def _secured(
    sock: socket.socket, address: Address, context: ssl.SSLContext | None, deadline: float
) -> Tls | None:
    """Shake hands, if the address wants TLS."""
    if not address.tls:
        return None
    from .tls import Tls  # ssl takes longer to import than all of the rest

    tls = Tls(address, context)
    try:
        try:
            data = tls.handshake()
            while True:
                left = deadline - monotonic()
                if left <= 0:
                    raise TimeoutError("timed out")
                sock.settimeout(min(left, _ASLEEP_AT_MOST_S))
                if data:
                    sock.sendall(data)
                if tls.ready:
                    break
                data = tls.handshake(sock.recv(_CHUNK[0]))
        except ConnectFailed:
            with contextlib.suppress(OSError):
                sock.sendall(tls.farewell())
            raise
    except OSError as error:
        raise ConnectFailed(f"{address}: TLS handshake: {error}") from error
    sock.settimeout(None)
    return tls


def connect(url: str, **options: Any) -> Connector:
    """Connect to the server at `url`; the connection stands when this returns.

    Args:
        url: `valkey://user:password@host:port/db` or `redis://...`, `valkeys://...` or
            `rediss://...` for TLS, or `unix:///path?db=1`.
        **options: See `Options`.

    Raises:
        AddressError: The URL or an option cannot be used.
        ConnectFailed: The server cannot be reached; `Refused` if it refused.
    """
    address, settings = parse_url(url, **options)
    connector = Connector(address, settings)
    connector._live(monotonic() + settings.connect_timeout)
    return connector

"""The shell for asyncio: one transport, shared by the tasks of one event loop.

The loop is the reader: it calls `data_received` with each chunk, and every reply in it goes to the
task that is owed it. The outbox is written at once where nothing is in flight, since nothing else
is to come; otherwise at the end of the loop's turn, or as soon as at least `_FLUSH_AT` callers, and
a third of all whose replies are owed, stand in it: the server starts on them while the loop still
makes more, and neither of the two waits for the other.

Deadlines share one timer a connection. It looks at everybody's when the earliest falls due; with
one timeout for all calls it is set once in that time, not once a call.

A task that is cancelled, or whose time is up, leaves its place in line behind; the late reply finds
nobody and is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import warnings
import weakref
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import chain
from time import monotonic
from types import TracebackType
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
    ReplyTimeout,
    RespError,
    ServerError,
    TransactionAborted,
    TransportError,
    Unanswered,
    WrongLoop,
)
from .events import Event, exchanged, guarded
from .net import tune
from .plan import (
    Command,
    Pace,
    Plan,
    Step,
    boot_frame,
    command_name,
    frame,
    prepare,
    run_async,
    slices,
)
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
    from collections.abc import AsyncIterator
    from typing import Self

    from .tls import Tls

T = TypeVar("T")

_PING: Final = encode_command("PING")
_READ: Final = 65_536  # bytes, where a closing socket is read to its end
_LEAVING_S: Final = 0.5  # for telling the server of a subscription that was given up
_FLUSH_AT: Final = 16  # callers that are worth a write before the loop's turn ends
_HIGH_WATER: Final = 1 << 20  # bytes unsent, above which callers wait before they add to them
_LATE_S: Final = 0.001  # how long after a deadline its caller may be told


class _Task(Waiter):
    """A waiter whose caller is a task; it sleeps on a future.

    Attributes:
        deadline: On the monotonic clock.
    """

    __slots__ = ("deadline",)

    def __init__(self, data: bytes, count: int, deadline: float) -> None:
        # What Waiter.__init__ does; to call it would be a tenth of all of a call's bookkeeping.
        self.data = data
        self.count = self.missing = count
        self.replies = []
        self.place = 0
        self.done = self.left = False
        self.error = self.sleep = None
        self.deadline = deadline

    def forsaken(self) -> bool:
        sleep = self.sleep
        return self.left or (sleep is not None and sleep.done())  # by a timeout, or cancelled

    def settle(self) -> None:
        self.done = True
        sleep = self.sleep
        if sleep is not None and not sleep.done():
            sleep.set_result(None)


class _Link(asyncio.Protocol):
    """One transport, its protocol, and the tasks that wait."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Protocol,
        counters: Counters,
        options: Options,
        tls: Tls | None,
        address: str,
    ) -> None:
        self.protocol = protocol
        self.feed: Feed
        self.on_end: Callable[[BaseException], None] | None = None
        self.secured: asyncio.Future[None] | None = None
        self._loop = loop
        self._counters = counters
        self._tls = tls
        self._tap = tap = options.tap
        self._number = tap.connection(address) if tap is not None else 0
        self._heartbeat = options.heartbeat
        self._patience = min(options.timeout, options.heartbeat)
        self._pulse: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self.writable: asyncio.Event | None = None  # set while writing is not paused
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf  # not every loop's handle tells

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        if self._tls is not None:
            self.secured = self._loop.create_future()
            self._transport.write(self._tls.handshake())

    def data_received(self, data: bytes) -> None:
        if self._tls is not None:
            self._decrypt(self._tls, data)
        else:
            self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, (BrokenPipeError, ConnectionResetError)):
            self._drain()
        if exc is not None:
            self.end(f"the connection was lost: {exc}", exc)
        else:
            self.end(CLOSED if self._tls is None or self._tls.ended else CUT)

    def _receive(self, data: bytes) -> None:
        if self._tap is not None:
            self._tap.read(self._number, data)
        try:
            self.protocol.receive(data)
        except ProtocolError as error:
            self.end(f"the server broke the protocol: {error}", error)

    def _decrypt(self, tls: Tls, data: bytes) -> None:
        transport = cast(asyncio.Transport, self._transport)
        try:
            if not tls.ready:
                transport.write(tls.handshake(data))
                if not tls.ready:
                    return
                _settle(self.secured, None)
                data = b""  # what came behind it is there already
            plain = tls.decrypt(data)
        except ConnectFailed as error:
            transport.write(tls.farewell())
            _settle(self.secured, error)
            transport.close()
            return
        except OSError as error:  # what ssl raises is one
            self.end(f"TLS failed: {error}", error)
            return
        if plain:
            self._receive(plain)
        if tls.ended:
            self.end(CLOSED)

    def _drain(self) -> None:
        """A write failed. A server that closes may have said why: that is read before the end."""
        sock = cast(asyncio.Transport, self._transport).get_extra_info("socket")
        try:
            while self.protocol.broken is None and (data := os.read(sock.fileno(), _READ)):
                self.data_received(data)
        except OSError:
            pass  # there is no more

    def pause_writing(self) -> None:
        if self.writable is None:
            self.writable = asyncio.Event()
        self.writable.clear()

    def resume_writing(self) -> None:
        if self.writable is not None:
            self.writable.set()

    # Calls.

    async def exchange(self, data: bytes, deadline: float) -> _Task:
        """Send one command and wait for its reply."""
        if self.writable is not None:
            await self.room(deadline)
        waiter = self.begin(data, deadline)
        await waiter.sleep
        if waiter.error is not None:
            raise waiter.error
        return waiter

    def begin(self, data: bytes, deadline: float) -> _Task:
        """Send one command; its waiter sleeps already, on a future that is to be awaited."""
        waiter = _Task(data, 1, deadline)
        waiter.sleep = self._loop.create_future()
        protocol = self.protocol
        protocol.ask(waiter)
        waiting = len(protocol.outbox)  # as in `_post`, without the cost of calls
        if not protocol.owed or (
            waiting >= _FLUSH_AT and 3 * waiting >= protocol.asked - protocol.answered
        ):
            self._flush()
        elif not self._flush_due:
            self._flush_soon()
        if self._alarm_at > deadline + _LATE_S:
            self._set_alarm(deadline)
        return waiter

    async def stream(
        self,
        parts: Iterable[tuple[bytes, int]],
        pace: Pace,
        deadline: float,
        sent: list[_Task],
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
        counters = self._counters
        replies, received = counters.replies, counters.bytes_in
        try:
            for data, count in parts:
                waiter = _Task(data, count, deadline)
                if self.writable is not None:
                    await self.room(deadline)
                sent.append(waiter)
                self._post(waiter, len(sent) == 1, silent)
                if len(sent) >= pace.window:
                    first = sent[-pace.window]
                    await self._wait(first)
                    if first.error is not None:
                        raise first.error
                    pace.learn(counters.replies - replies, counters.bytes_in - received)
                    if first is not sent[0]:  # which tells what began
                        first.data = b""
            for waiter in sent:
                await self._wait(waiter)
                if waiter.error is not None:
                    raise waiter.error
        except BaseException:
            for waiter in sent:
                waiter.left = True
            raise

    async def load(self, request: Load, deadline: float) -> Loaded:
        """What SCRIPT LOAD answers; one load is shared by all that miss together."""
        waiter = _Task(b"", 0, deadline)
        sha, body = request.script.sha, request.script.load()
        begun = self.protocol.join_load(sha, body, request.missed_at, waiter, request.may_begin)
        if begun is None:
            return None
        if begun:
            self._flush_soon()
        await self._wait(waiter)
        if waiter.error is not None:
            raise waiter.error
        return waiter.replies[0], begun

    async def change(
        self, record: Callable[[], list[bytes]], deadline: float, counted: bool = True
    ) -> list[ErrorReply | None]:
        """Change what is subscribed to; of each command the server's refusal, or None.

        Args:
            record: Records what is wanted, and answers the commands that say so, if any.
            deadline: For the server's answers.
            counted: Whether `max_pending` applies.
        """
        waiters = []
        if counted:  # before it is recorded: what is not said needs no taking back
            self.protocol.make_room()
        for data in record():
            waiters.append(_Task(b"", 0, deadline))
            self.protocol.ask_change(data, waiters[-1], False)
        self.feed.forget()
        if waiters:
            self._flush_soon()
        refusals = []
        for waiter in waiters:
            await self._wait(waiter)
            if waiter.error is not None:
                raise waiter.error
            refusal = waiter.replies[0]
            refusals.append(refusal if isinstance(refusal, ErrorReply) else None)
        return refusals

    async def listen(self, inbox: Inbox, deadline: float) -> None:
        """Wait until `inbox` has something, or the connection ends, or it is time."""
        waiter = _Task(b"", 0, deadline)
        if inbox or inbox.ended is not None or self.protocol.broken is not None:
            return
        self.protocol.listeners[waiter] = None
        inbox.parked[waiter] = None
        try:
            await self._wait(waiter)
        except ReplyTimeout:
            pass
        finally:
            self.protocol.listeners.pop(waiter, None)
            inbox.parked.pop(waiter, None)

    def end(self, reason: str, cause: BaseException | None = None) -> None:
        """Nothing more is sent or received; everybody is told."""
        transport = self._transport
        if self.protocol.broken is None and self._tls is not None and transport is not None:
            transport.write(self._tls.close())
        self.protocol.end(reason, cause)
        if self._tap is not None:
            self._tap.closed(self._number, reason)
        for timer in (self._alarm, self._pulse):
            if timer is not None:
                timer.cancel()
        self._alarm = self._pulse = None
        _settle(self.secured, ConnectFailed(reason))
        if transport is not None:
            transport.abort()
        self.resume_writing()
        told, self.on_end = self.on_end, None
        if told is not None:
            told(cause or ConnectionLost(reason))

    # Silence.

    def watch(self) -> None:
        """From now on, ask a silent server whether it is there, and give up a dead one."""
        if self._heartbeat < math.inf and self.protocol.broken is None:
            self.protocol.beat(monotonic(), self._heartbeat, self._patience)  # from here on
            self._pulse = self._loop.call_later(self._heartbeat, self._beat)

    def _beat(self) -> None:
        beat = self.protocol.beat(monotonic(), self._heartbeat, self._patience)
        if beat is Beat.DEAD:
            self.end(SILENT)
            return
        if beat is Beat.ASK:
            ping = _Task(_PING, 1, math.inf)
            ping.left = True
            self._post(ping)
        if self.protocol.broken is None:
            wait = self._patience if beat is Beat.ASK else self._heartbeat
            self._pulse = self._loop.call_later(wait, self._beat)

    # Writing.

    def _post(self, waiter: _Task, counted: bool = True, silent: bool = False) -> None:
        protocol = self.protocol
        quiet = not protocol.owed
        if silent:
            protocol.ask_silently(waiter, counted)
        else:
            protocol.ask(waiter, counted)
        waiting = len(protocol.outbox)
        if quiet or (waiting >= _FLUSH_AT and 3 * waiting >= protocol.pending):
            self._flush()
        else:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        if self.protocol.outbox and self.protocol.broken is None:
            transport = cast(asyncio.Transport, self._transport)
            if transport.is_closing():
                return  # it was lost, and connection_lost is about to say so
            data = self.protocol.take_outbox()
            if self._tap is not None:
                self._tap.write(self._number, data)
            if self._tls is not None:
                try:
                    data = self._tls.encrypt(data)
                except OSError as error:
                    self.end(f"TLS failed: {error}", error)
                    return
            transport.write(data)

    async def room(self, deadline: float) -> None:
        """Wait while the transport holds more than it should."""
        while self.writable is not None and not self.writable.is_set():
            if self.protocol.broken is not None:
                return
            try:
                async with _until(deadline):
                    await self.writable.wait()
            except TimeoutError:
                raise ReplyTimeout(
                    "the server took no commands in time", may_have_run=False
                ) from None

    # Waiting.

    async def _wait(self, waiter: _Task) -> None:
        """Return when `waiter` is done; raise ReplyTimeout at its deadline."""
        if waiter.done:
            return
        waiter.sleep = future = self._loop.create_future()
        if self._alarm_at > waiter.deadline + _LATE_S:
            self._set_alarm(waiter.deadline)
        await future

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_at = when
        if when < math.inf:
            self._alarm = self._loop.call_later(max(0, when - monotonic()), self._ring)

    def _ring(self) -> None:
        """Tell those whose time is up, and look again when the next one's is."""
        self._alarm = None
        self._alarm_at = math.inf
        now = monotonic()
        earliest = math.inf
        for waiter in self.protocol.everybody():
            future = waiter.sleep
            if future is None or future.done():
                continue
            deadline = cast(_Task, waiter).deadline
            if deadline <= now:
                future.set_exception(late(waiter))
            else:
                earliest = min(earliest, deadline)
        self._set_alarm(earliest)
        if self.protocol.owed:
            beat = self.protocol.beat(now, self._heartbeat, self._patience)
            if beat is Beat.DEAD:
                self.end(SILENT)


class _ObservedLink(_Link):
    """A link that tells of each exchange, once it may."""

    emit: Callable[[Event], None] | None = None
    address = ""

    def begin(self, data: bytes, deadline: float) -> _Task:
        began = monotonic()
        try:
            waiter = super().begin(data, deadline)
        except TransportError as error:
            self._tell(data, 1, began, error)
            raise

        def told(future: asyncio.Future[None]) -> None:
            error: BaseException | None = waiter.error
            if future.cancelled():
                error = asyncio.CancelledError()
            elif future.exception() is not None:
                error = future.exception()
            self._tell(data, 1, began, error)

        waiter.sleep.add_done_callback(told)
        return waiter

    async def stream(
        self,
        parts: Iterable[tuple[bytes, int]],
        pace: Pace,
        deadline: float,
        sent: list[_Task],
        silent: bool = False,
    ) -> None:
        began = monotonic()
        failed: BaseException | None = None
        try:
            await super().stream(parts, pace, deadline, sent, silent)
        except BaseException as error:
            failed = error
            raise
        finally:
            if sent:
                self._tell(sent[0].data, sum(each.count for each in sent), began, failed)

    def _tell(self, data: bytes, count: int, began: float, error: BaseException | None) -> None:
        if self.emit is not None:
            took_s = monotonic() - began
            self.emit(exchanged(self.address, data, count, took_s, error))


def _until(deadline: float) -> asyncio.Timeout:
    """As `asyncio.timeout`, for a deadline on the monotonic clock."""
    return asyncio.timeout(deadline - monotonic() if deadline < math.inf else None)


def _settle(future: asyncio.Future[None] | None, error: Exception | None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # whoever dialled may have been cancelled


_connectors: weakref.WeakSet[AsyncConnector] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A transport cannot be closed here: its selector is shared with the parent.
    for connector in list(_connectors):
        connector._home = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class AsyncConnector:
    """A connection to one server, shared by the tasks of an event loop. Made by `connect_async`.

    The twin of `Connector`: the same verbs, the same bounds, the same errors, with `await`. A task
    may be cancelled at any point: its command may have run, and everybody else's are untouched.
    """

    def __init__(self, address: Address, options: Options) -> None:
        check_tls(address, options)
        self._address = address
        self._options = options
        self._counters = Counters()
        self._link: _Link | None = None
        self._emit = None if options.on_event is None else guarded(options.on_event)
        self._registry = Registry(
            contextlib.nullcontext(),
            None if options.on_push is None else guarded(options.on_push),
        )
        self._loop = get_running_loop()
        self._home: asyncio.AbstractEventLoop | None = self._loop  # None in a forked child
        _connectors.add(self)
        self._dialling: asyncio.Task[_Link] | None = None
        self._backoff = Backoff(*options.backoff)
        self._watcher: AsyncConnector | None = None
        self._watching = asyncio.Lock()
        self._timeout = options.timeout
        self._closed = False
        self._closing = asyncio.Event()
        self._dials = 0
        self._protocol = 0

    # Calls.

    async def command(self, *args: Arg, timeout: float | None = None) -> Reply:
        """Say one command and answer its reply.

        Raises:
            ServerError: The server answered an error.
        """
        # As in `_deadline`, without the cost of a call.
        if timeout is None and get_running_loop() is self._home:
            deadline = monotonic() + self._timeout
        else:
            deadline = self._deadline(timeout)
        data = frame(args)
        link = self._link
        if link is None or link.protocol.broken is not None:
            link = await self._live(deadline)
        if link.writable is not None:  # as in `exchange`, without the cost of a coroutine
            await link.room(deadline)
        waiter = link.begin(data, deadline)
        await waiter.sleep
        if waiter.error is not None:
            raise waiter.error
        reply = waiter.replies[0]
        if type(reply) is ErrorReply:
            self._judge(link, reply, waiter.place)
            if is_loading(reply):
                reply = await self._when_loaded(lambda: self._ask(data, deadline), reply, deadline)
                if type(reply) is not ErrorReply:
                    return reply
            raise ServerError(reply.code, reply.message, command_name(args))
        return reply

    async def eval(
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
        if timeout is None and get_running_loop() is self._home:
            deadline = monotonic() + self._timeout
        else:
            deadline = self._deadline(timeout)
        try:
            data = script.frame(keys, args)
        except AttributeError:
            if isinstance(script, Script):
                raise
            raise EncodeTypeError(f"eval runs a Script, not {type(script).__name__}") from None
        link = self._link
        if link is None or link.protocol.broken is not None:
            link = await self._live(deadline)
        if link.writable is not None:
            await link.room(deadline)
        waiter = link.begin(data, deadline)
        self._counters.evalsha_calls += 1
        await waiter.sleep
        if waiter.error is not None:
            raise waiter.error
        reply = waiter.replies[0]
        if type(reply) is ErrorReply:
            reply = await self._mended(script(keys, args), waiter, link, deadline)
        if type(reply) is ErrorReply:
            raise ServerError(reply.code, reply.message, ScriptCall.command)
        return reply

    async def pipeline(
        self, commands: Iterable[Command], timeout: float | None = None
    ) -> list[Reply]:
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
        return await self._say_all(list(commands), deadline)

    async def transaction(
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

            await connector.transaction(raise_by_one, watch=["n"])

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
            return await self._transact(check_commands(commands), deadline)
        try:
            async with _until(deadline):
                await self._watching.acquire()
        except TimeoutError:
            raise ReplyTimeout(
                "other transactions that watch took too long", may_have_run=False
            ) from None
        try:
            if self._closed:
                raise Closed
            if self._watcher is None:
                self._watcher = AsyncConnector(self._address, self._options)
                self._watcher._counters = self._counters
            link = await self._watcher._live(deadline)
            try:
                plan = watched(keys, commands, most)
                return await run_async(plan, self._exchange(link, deadline))
            except TransactionAborted:
                raise
            except BaseException as error:
                link.end("a transaction was left half way", error)
                raise
        finally:
            self._watching.release()

    async def send(self, commands: Iterable[Command], timeout: float | None = None) -> None:
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
            plan = muted(said)
            await run_async(plan, self._exchange(await self._live(deadline), deadline))

    async def subscribe(
        self,
        *channels: Arg,
        capacity: int = 10_000,
        overflow: Overflow = "drop-oldest",
        timeout: float | None = None,
    ) -> AsyncSubscription:
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
        return await self._subscribe("SUBSCRIBE", channels, capacity, overflow, timeout)

    async def psubscribe(
        self,
        *patterns: Arg,
        capacity: int = 10_000,
        overflow: Overflow = "drop-oldest",
        timeout: float | None = None,
    ) -> AsyncSubscription:
        """As `subscribe`, to all channels whose names match `patterns` (`news.*`)."""
        return await self._subscribe("PSUBSCRIBE", patterns, capacity, overflow, timeout)

    async def ssubscribe(
        self,
        *channels: Arg,
        capacity: int = 10_000,
        overflow: Overflow = "drop-oldest",
        timeout: float | None = None,
    ) -> AsyncSubscription:
        """As `subscribe`, to what is published with SPUBLISH, on this server's shard."""
        return await self._subscribe("SSUBSCRIBE", channels, capacity, overflow, timeout)

    async def run(self, plan: Plan[T], timeout: float | None = None) -> T:
        """Drive a plan; what it returns.

        The `may_have_run` of a `TransportError` that leaves the plan is about all of its steps.
        """
        deadline = self._deadline(timeout)
        return await run_async(plan, lambda step: self._say(step, deadline), whole=True)

    def stats(self) -> dict[str, int | str]:
        """Counters since the connector was made, and how it stands."""
        link = self._link
        return {
            **self._counters.told(),
            "pending": 0 if link is None else link.protocol.pending,
            "protocol": self._protocol,
            "status": self._status(),
        }

    async def sibling(self, **changes: Any) -> AsyncConnector:
        """Another connector to the same server, with the same options but for `changes`."""
        return await AsyncConnector(
            self._address, change_options(self._options, changes)
        )._connected()

    async def close(self) -> None:
        """End the connection. Calls in flight get ConnectionLost; later ones get Closed."""
        self._closed = True
        self._closing.set()
        for inbox in self._registry.wanted:
            inbox.end(Closed())
        if self._loop.is_closed() or self._home is None:
            return  # its transport went with its loop, or is its parent's
        self._stay_home()
        if self._dialling is not None:
            self._dialling.cancel()
        if self._watcher is not None:
            await self._watcher.close()
        if self._link is not None:
            self._link.end("the connector was closed")
            await asyncio.sleep(0)  # the transport closes its socket in the loop's next turn

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        link = getattr(self, "_link", None)  # None too where it could not be made
        if link is None or link.protocol.broken is not None or self._home is None:
            return
        _warn(f"unclosed {self!r}", ResourceWarning, source=self)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(link.end, "the connector was dropped without close()")

    def __repr__(self) -> str:
        return f"<AsyncConnector to {self._address}, {self._status()}>"

    # Steps of a plan.

    async def _ask(self, data: bytes, deadline: float) -> Reply:
        link = await self._live(deadline)
        return (await link.exchange(data, deadline)).replies[0]

    async def _say(self, step: Step, deadline: float) -> Any:
        if type(step) is list:
            return await self._say_all(step, deadline)
        command = cast(Command, step)
        data = frame(command)
        link = self._link
        if link is None or link.protocol.broken is not None:
            link = await self._live(deadline)
        try:
            waiter = await link.exchange(data, deadline)
        except TransportError as error:
            if isinstance(command, ScriptCall):
                self._counters.evalsha_calls += error.may_have_run
            raise
        reply = waiter.replies[0]
        if isinstance(command, ScriptCall):
            self._counters.evalsha_calls += 1
            if type(reply) is ErrorReply:
                return await self._mended(command, waiter, link, deadline)
        elif type(reply) is ErrorReply:
            self._judge(link, reply, waiter.place)
            if is_loading(reply):
                return await self._when_loaded(lambda: self._ask(data, deadline), reply, deadline)
        return reply

    def _judge(self, link: _Link, reply: ErrorReply, place: int = 1) -> None:
        """Raise, if `reply` is no answer, but says that the server takes no such client."""
        if place == 1 and is_unasked(reply):  # in the place of the first answer, or never
            link.end("the server refused the connection")
            raise refused(self._address, "", reply)

    async def _mended(self, call: ScriptCall, waiter: _Task, link: _Link, deadline: float) -> Reply:
        """The answer of a script call whose first answer was an error."""
        reply = waiter.replies[0]
        if isinstance(reply, ErrorReply):
            self._judge(link, reply, waiter.place)
        if is_loading(reply):
            [reply] = await self._when_loaded(
                lambda: self._flush([call], deadline), [reply], deadline
            )
        elif missed(reply):
            plan = repair([call], waiter.place)
            [reply] = await run_async(plan, self._exchange(link, deadline))
        return reply

    async def _say_all(self, commands: list[Command], deadline: float) -> list[Reply]:
        if not commands:
            return []
        replies = await self._flush(commands, deadline)
        if is_loading(replies[0]):
            return await self._when_loaded(
                lambda: self._flush(commands, deadline), replies, deadline
            )
        return replies

    async def _flush(self, commands: list[Command], deadline: float) -> list[Reply]:
        link = await self._live(deadline)
        return await run_async(flush(commands), self._exchange(link, deadline))

    async def _when_loaded(self, say: Callable[[], Awaitable[T]], answer: T, deadline: float) -> T:
        """`answer`, or that to saying it again, as long as the server ran nothing of it because
        it was loading its dataset."""
        first, longest = self._options.backoff
        wait = first
        while is_loading(answer) and (left := deadline - monotonic()) > first:
            await self._pause(min(wait, left - first / 2))
            wait = min(2 * wait, longest)
            answer = await say()
        return answer

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the connector is closed meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        if self._closed:
            raise Closed

    async def _transact(self, commands: list[Command], deadline: float) -> list[Reply]:
        first, longest = self._options.backoff
        wait = first
        while True:
            try:
                plan = atomically(commands, self._options.max_pending)
                return await run_async(plan, self._exchange(await self._live(deadline), deadline))
            except RespError as error:
                left = deadline - monotonic()
                if left <= first or not was_loading(error):
                    raise
            await self._pause(min(wait, left - first / 2))
            wait = min(2 * wait, longest)

    def _exchange(self, link: _Link, deadline: float) -> Callable[[Request], Awaitable[Any]]:
        """What answers the requests of plans over requests, on one connection."""
        most = self._options.max_pending

        async def answer(request: Request) -> Any:
            if isinstance(request, Load):
                return await link.load(request, deadline)
            sent: list[_Task] = []
            pace = Pace(most)
            if isinstance(request, Muted):
                said = request.commands
                parts = silenced(slices(prepare(said, most), pace))
                try:
                    await link.stream(parts, pace, deadline, sent, silent=True)
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
                await link.stream(slices(ready, pace), pace, deadline, sent)
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

    def _count_calls(self, commands: list[Command], sent: list[_Task]) -> None:
        asked = sum(waiter.count for waiter in sent if waiter.place)
        calls = list(map(type, commands[:asked])).count(ScriptCall)
        self._counters.evalsha_calls += calls  # in one step: others count too

    # Subscriptions.

    async def _subscribe(
        self,
        verb: Verb,
        channels: Sequence[Arg],
        capacity: int,
        overflow: Overflow,
        timeout: float | None,
    ) -> AsyncSubscription:
        inbox = Inbox(verb, channels, capacity, overflow)
        deadline = self._deadline(timeout)
        link = await self._live(deadline)
        if self._protocol != 3:
            raise needs_resp3(inbox)
        try:
            *_, refusal = await link.change(
                lambda: [
                    *self._registry.surplus(link.feed),
                    self._registry.enter(inbox, link.feed),
                ],
                deadline,
            )
            if refusal is not None:
                raise ServerError(refusal.code, refusal.message, verb)
        except BaseException:
            await self._unsubscribe(inbox, monotonic() + _LEAVING_S)
            raise
        return AsyncSubscription(self, inbox)

    async def _unsubscribe(self, inbox: Inbox, deadline: float) -> None:
        """See that `inbox` gets no more; tell the server, if there is one, what nobody wants."""
        self._registry.leave(inbox)
        link = self._link
        if link is not None and link.protocol.broken is None:
            with contextlib.suppress(TransportError):
                await link.change(lambda: self._registry.surplus(link.feed), deadline, False)

    async def _again(self, link: _Link, deadline: float) -> None:
        """Subscribe anew, on a new connection, to all that is wanted."""
        wanted = self._registry.wanted
        if self._protocol != 3:
            for inbox in wanted:
                self._registry.end(inbox, lost_resp3(inbox))
            return
        refusals = await link.change(
            lambda: [link.feed.entering(each) for each in wanted], deadline, False
        )
        for inbox, refusal in zip(wanted, refusals, strict=True):
            self._registry.again(inbox, refusal)
        # Somebody may have closed a subscription while it was being made anew.
        while await link.change(lambda: self._registry.surplus(link.feed), deadline, False):
            pass

    async def _next(self, inbox: Inbox, timeout: float | None) -> Message | None:
        """The next message, or None if none comes in time."""
        if timeout is None:
            timeout = self._options.timeout
        elif timeout != 0:
            check_timeout(timeout)
        self._stay_home()
        deadline = monotonic() + timeout
        looked = False
        while True:
            try:
                message = inbox.take()
            except RespError:
                await self._unsubscribe(inbox, monotonic() + _LEAVING_S)
                raise
            if message is not None:
                return message
            now = monotonic()
            link = self._link
            if link is None or link.protocol.broken is not None:
                wait = self._backoff.not_before - now
                if 0 < wait < deadline - now:
                    await self._nap(inbox, wait)
                    continue
                try:
                    await self._live(max(deadline, now + _LATE_S))
                except ConnectFailed as error:
                    now = monotonic()
                    if now >= deadline or not is_network(error):
                        raise
                    wait = max(self._backoff.not_before - now, _LATE_S)
                    await self._nap(inbox, min(wait, deadline - now))
            elif now < deadline:
                await link.listen(inbox, deadline)
            elif looked:
                return None
            else:
                # The loop's next turn comes to this task before it comes to the socket.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                looked = True

    async def _nap(self, inbox: Inbox, seconds: float) -> None:
        """Wait, unless `inbox` ends meanwhile."""
        waiter = _Task(b"", 0, math.inf)
        waiter.sleep = self._loop.create_future()
        inbox.parked[waiter] = None
        try:
            if inbox.ended is None:
                await asyncio.wait((waiter.sleep,), timeout=seconds)
        finally:
            inbox.parked.pop(waiter, None)

    # Connections.

    def _stay_home(self) -> None:
        if get_running_loop() is not self._home:
            raise WrongLoop(
                "this connector belongs to another event loop, or to the process that this one was "
                "forked from; connect in the loop that uses it"
            )

    def _deadline(self, timeout: float | None) -> float:
        if get_running_loop() is not self._home:
            self._stay_home()
        if timeout is None:
            return monotonic() + self._timeout
        return monotonic() + check_timeout(timeout)

    def _status(self) -> str:
        if self._closed:
            return "closed"
        link = self._link
        return "connected" if link is not None and link.protocol.broken is None else "disconnected"

    async def _connected(self) -> Self:
        """Itself, once connected; if that fails or is cancelled, nothing is left behind."""
        try:
            await self._live(monotonic() + self._options.connect_timeout)
        except BaseException:
            await self.close()
            raise
        return self

    async def _live(self, deadline: float) -> _Link:
        """The connection, made anew if it was lost. One task dials; others wait for it."""
        link = self._link
        if link is not None and link.protocol.broken is None:
            return link
        if self._closed:
            raise Closed
        wait = self._backoff.check(monotonic(), deadline)
        # A task of its own: whoever is cancelled while waiting does not take it along.
        if self._dialling is None:
            self._dialling = self._loop.create_task(self._redial(wait))
            self._dialling.add_done_callback(self._dialled)
        dialling = self._dialling
        try:
            async with _until(deadline):
                link = await asyncio.shield(dialling)
        except TimeoutError:
            raise ConnectFailed(f"no connection to {self._address} in time") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if dialling.cancelled() and not (task is not None and task.cancelling()):
                raise Closed from None  # `close` cancelled the dial, nobody cancelled this task
            raise
        except Exception as error:
            raise again(error) from error  # for each who waited, one of its own
        if link.protocol.refusal is not None:  # it came before anything was said
            self._judge(link, link.protocol.refusal)
        return link

    def _dialled(self, task: asyncio.Task[_Link]) -> None:
        self._dialling = None
        if not task.cancelled():
            task.exception()  # those who wait raise it; with nobody left it is nobody's

    async def _redial(self, wait: float) -> _Link:
        if wait:
            await asyncio.sleep(wait)
        try:
            link = await self._dial(monotonic() + self._options.connect_timeout)
        except Exception as error:
            self._backoff.failed(monotonic(), error)
            raise
        self._backoff.worked()
        return link

    async def _dial(self, deadline: float) -> _Link:
        options, address = self._options, self._address
        began = monotonic()
        tls: Tls | None = None
        if address.tls:
            from .tls import Tls  # ssl takes longer to import than all of the rest

            tls = Tls(address, options.tls)
        feed = self._registry.feed()
        protocol = Protocol(self._counters, max_pending=options.max_pending, on_push=feed)
        kind = _Link if self._emit is None else _ObservedLink
        link = kind(self._loop, protocol, self._counters, options, tls, str(address))
        link.feed = feed

        async def say(step: Step) -> Any:
            if type(step) is list:
                sent: list[_Task] = []
                parts = [(boot_frame(one), 1) for one in step]
                await link.stream(parts, Pace(options.max_pending), deadline, sent)
                return [waiter.replies[0] for waiter in sent]
            return (await link.exchange(boot_frame(cast(Command, step)), deadline)).replies[0]

        async def answer(step: Step) -> Any:
            return await self._when_loaded(lambda: say(step), await say(step), deadline)

        try:
            sock = await self._open(deadline)
            if address.path is not None:
                await self._loop.create_unix_connection(lambda: link, sock=sock)
            else:
                await self._loop.create_connection(lambda: link, sock=sock)
            if link.secured is not None:
                async with _until(deadline):
                    await link.secured
            self._protocol = await run_async(boot(address, options), answer)
            if options.on_connect is not None:
                await run_async(options.on_connect(), answer)
            await self._again(link, deadline)
        except BaseException as error:
            link.end("the connection could not be set up", error)
            if isinstance(error, ConnectFailed):
                raise
            if isinstance(error, (TransportError, OSError)):  # a TimeoutError is an OSError
                told = str(error) or "no connection in time"
                raise ConnectFailed(f"{address}: {told}") from error
            raise
        link.watch()
        self._announce(link, monotonic() - began)
        self._link = link
        return link

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

    async def _open(self, deadline: float) -> socket.socket:
        """A connected socket. Every address of a name is tried, each with its share of the time."""
        address = self._address
        try:
            if address.path is not None:
                places: list[Any] = [(socket.AF_UNIX, address.path)]
            else:
                async with _until(deadline):
                    found = await self._loop.getaddrinfo(
                        address.host, address.port, type=socket.SOCK_STREAM
                    )
                places = [(family, where) for family, _, _, _, where in found]
        except (OSError, ValueError) as error:  # ValueError: a name that can be nobody's
            raise ConnectFailed(f"{address}: {error}") from error
        tried = []
        for at, (family, where) in enumerate(places):
            share = max((deadline - monotonic()) / (len(places) - at), 0.001)
            try:
                async with asyncio.timeout(share if share < math.inf else None):
                    return await self._dialled_socket(family, where)
            except (OSError, ValueError) as error:
                told = str(error) or "timed out"
                tried.append(f"{where[0]}: {told}" if len(places) > 1 else told)
        raise ConnectFailed(f"{address}: {'; '.join(tried)}")

    async def _dialled_socket(self, family: int, where: Any) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await self._loop.sock_connect(sock, where)
            if isinstance(where, tuple):
                tune(sock, self._options.heartbeat)
        except BaseException:
            sock.close()
            raise
        return sock


class AsyncSubscription(Reading):
    """Messages of some channels. Made by `AsyncConnector.subscribe`, `psubscribe` and `ssubscribe`.

        async with await connector.subscribe("news") as subscription:
            async for message in subscription:
                print(message.channel, message.payload)

    While it is read, its reader makes a lost connection anew and subscribes again; `gaps` counts
    how often messages may have been missed.
    """

    def __init__(self, connector: AsyncConnector, inbox: Inbox) -> None:
        super().__init__(inbox, connector._registry)
        self._connector = connector

    async def get(self, timeout: float | None = math.inf) -> Message | None:
        """The next message, or None if none comes in time.

        Args:
            timeout: Seconds; 0 looks at what has come, None is the connector's default. Where the
                connection was lost, it is made anew meanwhile, and by later calls.

        Raises:
            Closed: The subscription or its connector was closed, or a reader was too slow.
            ServerError: The server refused the channels when it was connected again.
            ConnectFailed: The server cannot be reached, and time is up; or it refused.
        """
        return await self._connector._next(self._inbox, timeout)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they come, until the subscription is closed."""
        while True:
            try:
                message = await self.get()
            except Closed:
                if self.closed or self._connector._closed:
                    return
                raise
            if message is not None:
                yield message

    async def close(self, timeout: float | None = None) -> None:
        """Receive no more. Channels that other subscriptions want stay subscribed to."""
        deadline = self._connector._deadline(timeout)
        self._end()
        await self._connector._unsubscribe(self._inbox, deadline)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def connect_async(url: str, **options: Any) -> AsyncConnector:
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
    return await AsyncConnector(address, settings)._connected()

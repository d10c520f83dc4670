"""The shell for asyncio: one transport, shared by the tasks of one event loop.

The loop is the reader: it calls `data_received` with each chunk, and every reply in it goes to the
task that is owed it. The outbox is written at once where nothing is in flight, since nothing else
is to come; otherwise at the end of the loop's turn, or as soon as `_FLUSH_AT` callers stand in it,
so that the server starts on them while the loop still makes more.

Deadlines share one timer a connection. It looks at everybody's when the earliest falls due; with
one timeout for all calls it is set once in that time, not once a call.

A task that is cancelled, or whose time is up, leaves its place in line behind; the late reply finds
nobody and is dropped.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from .address import Address, Options, boot, change_options, check_timeout, parse_url, refuse_tls
from .decode import ErrorReply, Reply
from .encode import Arg
from .errors import (
    Closed,
    ConnectFailed,
    EncodeTypeError,
    ProtocolError,
    ReplyTimeout,
    ServerError,
    TransportError,
    WrongLoop,
)
from .plan import (
    WINDOW,
    Command,
    Plan,
    Step,
    boot_frame,
    command_name,
    encode_slices,
    frame,
    run_async,
)
from .protocol import Counters, Protocol, Waiter, any_may_have_run, late
from .script import Load, Loaded, Request, Script, ScriptCall, flush, missed, repair

if TYPE_CHECKING:
    from typing import Self

    from .tap import Tap

T = TypeVar("T")

_FLUSH_AT: Final = 16  # callers that are written together at the most
_HIGH_WATER: Final = 1 << 20  # bytes unsent, above which callers wait before they add to them
_LATE_S: Final = 0.001  # how long after a deadline its caller may be told


class _Task(Waiter):
    """A waiter whose caller is a task; it sleeps on a future.

    Attributes:
        deadline: On the loop's clock.
    """

    __slots__ = ("deadline",)

    def __init__(self, data: bytes, missing: int, deadline: float) -> None:
        super().__init__(data, missing)
        self.deadline = deadline

    def settle(self) -> None:
        self.done = True
        if self.sleep is not None and not self.sleep.done():
            self.sleep.set_result(None)


class _Link(asyncio.Protocol):
    """One transport, its protocol, and the tasks that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Protocol, tap: Tap | None):
        self.protocol = protocol
        self._loop = loop
        self._tap = tap
        self._number = tap.connection() if tap is not None else 0
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._writable: asyncio.Event | None = None  # set while writing is not paused
        self._waiting: dict[_Task, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf  # not every loop's handle tells

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self._tap is not None:
            self._tap.read(self._number, data)
        try:
            self.protocol.receive(data)
        except ProtocolError as error:
            self.end(f"the server broke the protocol: {error}", error)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the server closed the connection" if exc is None else f"the connection: {exc}"
        self.end(reason, exc)

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = asyncio.Event()
        self._writable.clear()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()

    # Calls.

    async def exchange(self, data: bytes, deadline: float) -> _Task:
        """Send one command and wait for its reply."""
        waiter = _Task(data, 1, deadline)
        if self._writable is not None:
            await self._room(deadline)
        self._post(waiter)
        await self._wait(waiter)
        if waiter.error is not None:
            raise waiter.error
        return waiter

    async def stream(self, slices: Iterable[tuple[bytes, int]], deadline: float) -> list[_Task]:
        """Send slices of commands, a window at a time, and wait for all of their replies."""
        sent: list[_Task] = []
        try:
            for data, count in slices:
                if len(sent) >= WINDOW:
                    await self._wait(sent[-WINDOW])
                await self._room(deadline)
                waiter = _Task(data, count, deadline)
                self._post(waiter, not sent)
                sent.append(waiter)
            for waiter in sent:
                await self._wait(waiter)
                if waiter.error is not None:
                    raise waiter.error
        except TransportError as error:
            if sent:
                error.may_have_run = any_may_have_run(sent)
            raise
        return sent

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

    def end(self, reason: str, cause: BaseException | None = None) -> None:
        """Nothing more is sent or received; everybody is told."""
        self.protocol.end(reason, cause)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._transport is not None:
            self._transport.abort()
        self.resume_writing()

    # Writing.

    def _post(self, waiter: _Task, counted: bool = True) -> None:
        protocol = self.protocol
        quiet = not protocol.owed
        protocol.ask(waiter, counted)
        if quiet or len(protocol.outbox) >= _FLUSH_AT:
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
            data = self.protocol.take_outbox()
            if self._tap is not None:
                self._tap.write(self._number, data)
            transport = cast(asyncio.Transport, self._transport)
            if transport.is_closing():  # it was lost, and connection_lost is about to say so
                self.end("the connection was lost")
            else:
                transport.write(data)

    async def _room(self, deadline: float) -> None:
        """Wait while the transport holds more than it should."""
        while self._writable is not None and not self._writable.is_set():
            if self.protocol.broken is not None:
                return
            try:
                async with asyncio.timeout_at(deadline if deadline < math.inf else None):
                    await self._writable.wait()
            except TimeoutError:
                raise ReplyTimeout(
                    "the server took no commands in time", may_have_run=False
                ) from None

    # Waiting.

    async def _wait(self, waiter: _Task) -> None:
        """Return when `waiter` is done; raise ReplyTimeout at its deadline."""
        if waiter.done:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        waiter.sleep = future
        self._waiting[waiter] = None
        try:
            if self._alarm_at > waiter.deadline + _LATE_S:
                self._set_alarm(waiter.deadline)
            await future
        finally:
            self._waiting.pop(waiter, None)
            waiter.sleep = None

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_at = when
        if when < math.inf:
            self._alarm = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        """Tell those whose time is up, and look again when the next one's is."""
        self._alarm = None
        self._alarm_at = math.inf
        now = self._loop.time()
        earliest = math.inf
        for waiter in list(self._waiting):
            future = waiter.sleep
            if waiter.deadline <= now:
                if future is not None and not future.done():
                    future.set_exception(late(waiter))
            else:
                earliest = min(earliest, waiter.deadline)
        self._set_alarm(earliest)


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
        self._address = address
        self._options = options
        self._counters = Counters()
        self._link: _Link | None = None
        self._loop = asyncio.get_running_loop()
        self._home: asyncio.AbstractEventLoop | None = self._loop  # None in a forked child
        _connectors.add(self)
        self._dialling: asyncio.Task[_Link] | None = None
        self._closed = False
        self._dials = 0
        self._protocol = 0

    # Calls.

    async def command(self, *args: Arg, timeout: float | None = None) -> Reply:
        """Say one command and answer its reply.

        Raises:
            ServerError: The server answered an error.
        """
        deadline = self._deadline(timeout)
        data = frame(args)
        link = self._link
        if link is None or link.protocol.broken is not None:
            link = await self._live(deadline)
        reply = (await link.exchange(data, deadline)).replies[0]
        if type(reply) is ErrorReply:
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
        if not isinstance(script, Script):
            raise EncodeTypeError(f"eval runs a Script, not {type(script).__name__}")
        reply = await self._say(script(keys, args), self._deadline(timeout))
        if type(reply) is ErrorReply:
            raise ServerError(reply.code, reply.message, ScriptCall.command)
        return reply

    async def pipeline(
        self, commands: Iterable[Command], timeout: float | None = None
    ) -> list[Reply]:
        """Say many commands at once; their replies in order, error replies as `ErrorReply` values.

        All commands are encoded before the first is sent. They are not a transaction: commands of
        other callers may come between. A large pipeline is sent a window at a time, its replies
        read meanwhile.
        """
        deadline = self._deadline(timeout)
        self._counters.pipelines += 1
        return await self._say_all(list(commands), deadline)

    async def run(self, plan: Plan[T], timeout: float | None = None) -> T:
        """Drive a plan; what it returns."""
        deadline = self._deadline(timeout)
        return await run_async(plan, lambda step: self._say(step, deadline))

    def stats(self) -> dict[str, int | str]:
        """Counters since the connector was made, and how it stands."""
        link = self._link
        return {
            **asdict(self._counters),
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
        if self._loop.is_closed() or self._home is None:
            return  # its transport went with its loop, or is its parent's
        self._stay_home()
        if self._dialling is not None:
            self._dialling.cancel()
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
        link = self._link
        if link is None or link.protocol.broken is not None or self._home is None:
            return
        _warn(f"unclosed {self!r}", ResourceWarning, source=self)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(link.end, "the connector was dropped without close()")

    def __repr__(self) -> str:
        return f"<AsyncConnector to {self._address}, {self._status()}>"

    # Steps of a plan.

    async def _say(self, step: Step, deadline: float) -> Any:
        if type(step) is list:
            return await self._say_all(step, deadline)
        command = cast(Command, step)
        data = frame(command)
        link = self._link
        if link is None or link.protocol.broken is not None:
            link = await self._live(deadline)
        waiter = await link.exchange(data, deadline)
        reply = waiter.replies[0]
        if isinstance(command, ScriptCall):
            self._counters.evalsha_calls += 1
            if missed(reply):
                plan = repair([command], waiter.place)
                [reply] = await run_async(plan, self._exchange(link, deadline))
        return reply

    async def _say_all(self, commands: list[Command], deadline: float) -> list[Reply]:
        if not commands:
            return []
        return await run_async(
            flush(commands), self._exchange(await self._live(deadline), deadline)
        )

    def _exchange(self, link: _Link, deadline: float) -> Callable[[Request], Awaitable[Any]]:
        """What answers the requests of `flush` and `repair`, on one connection."""

        async def answer(request: Request) -> Any:
            if isinstance(request, Load):
                return await link.load(request, deadline)
            slices = encode_slices(request, self._options.max_pending)
            self._counters.evalsha_calls += [type(one) for one in request].count(ScriptCall)
            waiters = await link.stream(slices, deadline)
            return [reply for waiter in waiters for reply in waiter.replies], waiters[-1].place

        return answer

    # Connections.

    def _stay_home(self) -> None:
        if asyncio.get_running_loop() is not self._home:
            raise WrongLoop(
                "this connector belongs to another event loop, or to the process that this one was "
                "forked from; connect in the loop that uses it"
            )

    def _deadline(self, timeout: float | None) -> float:
        self._stay_home()
        if timeout is None:
            return self._loop.time() + self._options.timeout
        return self._loop.time() + check_timeout(timeout)

    def _status(self) -> str:
        if self._closed:
            return "closed"
        link = self._link
        return "connected" if link is not None and link.protocol.broken is None else "disconnected"

    async def _connected(self) -> Self:
        """Itself, once connected; if that fails or is cancelled, nothing is left behind."""
        try:
            await self._live(self._loop.time() + self._options.connect_timeout)
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
        # A task of its own: whoever is cancelled while waiting does not take it along.
        if self._dialling is None:
            limit = self._loop.time() + self._options.connect_timeout
            self._dialling = self._loop.create_task(self._dial(limit))
            self._dialling.add_done_callback(self._dialled)
        dialling = self._dialling
        try:
            async with asyncio.timeout_at(deadline if deadline < math.inf else None):
                return await asyncio.shield(dialling)
        except TimeoutError:
            raise ConnectFailed(f"no connection to {self._address} in time") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if dialling.cancelled() and not (task is not None and task.cancelling()):
                raise Closed from None  # `close` cancelled the dial, nobody cancelled this task
            raise

    def _dialled(self, task: asyncio.Task[_Link]) -> None:
        self._dialling = None
        if not task.cancelled():
            task.exception()  # those who wait raise it; with nobody left it is nobody's

    async def _dial(self, deadline: float) -> _Link:
        options = self._options
        protocol = Protocol(self._counters, max_pending=options.max_pending)
        link = _Link(self._loop, protocol, options.tap)

        async def answer(step: Step) -> Any:
            if type(step) is list:
                slices = [(boot_frame(one), 1) for one in step]
                return [each.replies[0] for each in await link.stream(slices, deadline)]
            return (await link.exchange(boot_frame(cast(Command, step)), deadline)).replies[0]

        try:
            sock = await self._open(deadline)
            if self._address.path is not None:
                await self._loop.create_unix_connection(lambda: link, sock=sock)
            else:
                await self._loop.create_connection(lambda: link, sock=sock)
            version = await run_async(boot(self._address, options), answer)
            if options.on_connect is not None:
                await run_async(options.on_connect(), answer)
        except BaseException as error:
            link.end("the connection could not be set up", error)
            if isinstance(error, ConnectFailed):
                raise
            if isinstance(error, (TransportError, OSError)):  # a TimeoutError is an OSError
                told = str(error) or "no connection in time"
                raise ConnectFailed(f"{self._address}: {told}") from error
            raise
        if self._dials:
            self._counters.reconnects += 1
        self._dials += 1
        self._protocol = version
        self._link = link
        return link

    async def _open(self, deadline: float) -> socket.socket:
        """A connected socket. Every address of a name is tried, each with its share of the time."""
        address = self._address
        try:
            if address.path is not None:
                places: list[Any] = [(socket.AF_UNIX, address.path)]
            else:
                async with asyncio.timeout_at(deadline if deadline < math.inf else None):
                    found = await self._loop.getaddrinfo(
                        address.host, address.port, type=socket.SOCK_STREAM
                    )
                places = [(family, where) for family, _, _, _, where in found]
        except (OSError, ValueError) as error:  # ValueError: a name that can be nobody's
            raise ConnectFailed(f"{address}: {error}") from error
        tried = []
        for at, (family, where) in enumerate(places):
            share = max((deadline - self._loop.time()) / (len(places) - at), 0.001)
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
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except BaseException:
            sock.close()
            raise
        return sock


async def connect_async(url: str, **options: Any) -> AsyncConnector:
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
    return await AsyncConnector(address, settings)._connected()

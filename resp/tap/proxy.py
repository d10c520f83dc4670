"""A proxy that shows what a client and its server say to each other.

    with Proxy("valkey://127.0.0.1:6379", see=print) as proxy:  # a thread of its own
        connect(proxy.url)

    async with Proxy(...) as proxy:  # on the loop that runs

It passes on every byte, in order, and passes it on before it looks at it: what it finds out about
the bytes, and what fails while it does, changes nothing of them. Ends are passed on as they are, a
half-close as a half-close and a reset as a reset. A side that does not read is waited for: no more
than a few hundred kB of a direction are held, and the other side is not read until they are gone.

Looking waits for an idle moment of the loop, so that a client is not kept waiting for it; for how
long, and behind how many bytes, is bounded. Then looking is waited for, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast
from urllib.parse import quote

from ..address import Address, parse_url
from ..errors import AddressError, ConnectFailed
from .dialogue import Dialogue, Exchange

if TYPE_CHECKING:
    import ssl

_HELD: Final = 256 * 1024  # bytes that a side has not taken, above which the other is not read
_UNSEEN: Final = 32 << 20  # bytes that were passed on and not looked at: a burst
_UNSEEN_NS: Final = 800_000_000  # and for how long, while sockets are busy
_QUIET_S: Final = 0.002  # sockets that bring nothing for so long are idle
_LATE_NS: Final = 400_000_000  # behind by so much, any moment without bytes will do
_OVERHEAD: Final = 200  # bytes that a chunk costs beside its own
_SLICE_NS: Final = 500_000  # how long the loop may be kept from sockets by looking
_DIAL_S: Final = 10.0
_LINGER_S: Final = 1.0  # see _Link._ended
_BACKLOG: Final = 512
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, by a reset


class Watcher(Protocol):
    """What looks at the traffic. Its calls come in order, from the proxy's thread."""

    def opened(self, connection: int, peer: str, time_ns: int) -> object:
        """A client has come, from the address `peer`, which may be `""`."""

    def crossed(self, connection: int, sent: bool, data: bytes, time_ns: int) -> object:
        """A chunk was passed on: to the server if `sent`."""

    def closed(self, connection: int, time_ns: int) -> object:
        """Nothing more comes of this connection."""


class Recorder(Protocol):
    """What keeps the bytes, secrets masked; a `recording.Writer` is one."""

    def connection(self, address: str = "", role: str = "client") -> int:
        """A connection began; its number for the calls below."""

    def sent(self, connection: int, data: bytes, time_ns: int) -> object:
        """Bytes went to the server."""

    def received(self, connection: int, data: bytes, time_ns: int) -> object:
        """Bytes came from it."""

    def closed(self, connection: int, reason: str = "", time_ns: int | None = None) -> object:
        """The connection ended."""


class Reader:
    """Reads the traffic of many connections: a `Watcher` that answers exchanges.

    Args:
        see: Is given the exchanges that a chunk has finished, if any.
        recorder: Is given every chunk, secrets masked.
        dialogue: Makes the dialogue of a connection, which pairs its streams.
    """

    def __init__(
        self,
        see: Callable[[list[Exchange]], object] | None = None,
        *,
        recorder: Recorder | None = None,
        dialogue: Callable[[int], Dialogue] = Dialogue,
    ) -> None:
        self._see = see
        self._recorder = recorder
        self._dialogue = dialogue
        self._dialogues: dict[int, Dialogue] = {}
        self._recorded: dict[int, int] = {}  # numbers of connections, to the recorder's

    def opened(self, connection: int, peer: str, time_ns: int) -> None:
        self._dialogues[connection] = self._dialogue(connection)
        if self._recorder is not None:
            self._recorded[connection] = self._recorder.connection(peer)

    def crossed(self, connection: int, sent: bool, data: bytes, time_ns: int) -> None:
        dialogue = self._dialogues.get(connection)
        if dialogue is None:  # reading it failed once, so nobody knows what in it is a secret
            return
        try:
            masked, done = (dialogue.sent if sent else dialogue.received)(data, time_ns)
        except BaseException:
            del self._dialogues[connection]
            raise
        try:
            number = self._recorded.get(connection)
            if number is not None and self._recorder is not None:
                recorder = self._recorder
                (recorder.sent if sent else recorder.received)(number, masked, time_ns)
        finally:
            if done and self._see is not None:
                self._see(done)

    def closed(self, connection: int, time_ns: int) -> None:
        dialogue = self._dialogues.pop(connection, None)
        done = dialogue.end(time_ns) if dialogue is not None else []
        try:
            number = self._recorded.pop(connection, None)
            if number is not None and self._recorder is not None:
                self._recorder.closed(number, "", time_ns)
        finally:
            if done and self._see is not None:
                self._see(done)


class Proxy:
    """Listens, and passes everything on to one server.

    Args:
        target: A URL, `HOST:PORT`, the path of a unix socket, or an Address. Who connects, and to
            which database, is the clients' own affair.
        listen: `HOST:PORT`, where port 0 is a free one, or the path of a unix socket.
        see: Is given the exchanges that a chunk has finished.
        watcher: Looks at the traffic, instead of `see`.
        tell: Is given what went wrong, a line each: a target that refuses, a watcher that fails.
        tls: How a `valkeys://` target is verified; None is by the system's authorities.

    Attributes:
        host, port: Where it listens; `""` and 0 on a unix socket.
        path: Of the unix socket, or None.
        target: The Address of the server.
        connections: Clients that came so far.

    Raises:
        AddressError: A target or a place to listen that cannot be one.
        ConnectFailed: On entry: it cannot listen there.
    """

    def __init__(
        self,
        target: str | Address,
        *,
        listen: str = "127.0.0.1:0",
        see: Callable[[list[Exchange]], object] | None = None,
        watcher: Watcher | None = None,
        tell: Callable[[str], object] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.target = target if isinstance(target, Address) else server_address(target)
        self._listen = place(listen)
        self.path = self._listen.path
        self.host = "" if self.path else self._listen.host
        self.port = 0
        self.connections = 0
        self._tls = tls
        self._tell = tell
        self._look = _Look(watcher or Reader(see), self.tell)
        self._links: set[_Link] = set()
        self._server: asyncio.AbstractServer | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """Where clients connect, without credentials."""
        if self.path is not None:
            return f"unix://{quote(os.path.abspath(self.path))}"
        return f"valkey://{self.address}"

    @property
    def address(self) -> str:
        """`HOST:PORT`, or `unix:PATH`."""
        return str(self._listen._replace(port=self.port))

    @property
    def open(self) -> int:
        """Connections that are open."""
        return len(self._links)

    def tell(self, told: str) -> None:
        """Hand a line to whoever listens; a fault of theirs is nobody's."""
        if self._tell is not None:
            with contextlib.suppress(Exception):
                self._tell(told)

    def fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell of what went wrong on the loop; an exception handler for one that is ours alone."""
        error = context.get("exception")
        told = f"{type(error).__name__}: {error}" if error else str(context.get("message"))
        self.tell(f"{ascii(told)[1:-1][:200]}; the other connections go on")

    # On a loop.

    async def start(self) -> None:
        """Listen.

        Raises:
            ConnectFailed: The place is taken, or cannot be used.
        """
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._idle = asyncio.Event()
        self._look.loop = loop
        if self.target.tls and self._tls is None:
            import ssl  # which takes longer to import than all of the rest

            self._tls = ssl.create_default_context()
        try:
            if self.path is not None:
                self._server = await loop.create_unix_server(
                    self._client, sock=_bound(self.path), backlog=_BACKLOG
                )
            else:
                self._server = server = await loop.create_server(
                    self._client, self._listen.host, self._listen.port, backlog=_BACKLOG
                )
                self.host, self.port = server.sockets[0].getsockname()[:2]
        except OSError as error:
            # The number of an error in a name is none of the system's.
            if error.errno and not isinstance(error, socket.gaierror):
                told = os.strerror(error.errno)
            else:
                told = error.strerror or str(error)
            raise ConnectFailed(
                f"cannot listen on {self._listen}: {told}; give another place to --listen"
            ) from error

    async def close(self) -> None:
        """End all connections, look at what is left to be seen, and listen no more."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for link in list(self._links):
            link.abort()
        while self._links and self._idle is not None:
            self._idle.clear()
            await self._idle.wait()
        self._look.finish()
        if self.path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    async def drained(self) -> None:
        """Return when no connection is open."""
        while self._links and self._idle is not None:
            self._idle.clear()
            await self._idle.wait()

    def _client(self) -> _Side:
        self.connections += 1
        link = _Link(self, self.connections)
        self._links.add(link)
        return link.client

    def _gone(self, link: _Link) -> None:
        self._links.discard(link)
        if not self._links and self._idle is not None:
            self._idle.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # In a thread of its own.

    def __enter__(self) -> Self:
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="proxy", daemon=True
        )
        self._thread.start()
        started.result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended itself
                self._loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    def seen(self) -> None:
        """Return when all that was passed on so far has been looked at; from another thread."""

        async def look() -> None:
            self._look.finish()

        self._run(look())

    def drain(self, timeout: float) -> bool:
        """Wait until no connection is open, from another thread; whether it is so.

        Args:
            timeout: Seconds.
        """

        async def drain() -> bool:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self.drained()
            return not self._links

        return bool(self._run(drain()))

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _serve(self, started: Future[None]) -> None:
        self._stop = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(self.fault)
        try:
            await self.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        await self._stop.wait()
        await self.close()


class _Look:
    """Looks at what was passed on: later, but not much, and whatever comes of it."""

    def __init__(self, watcher: Watcher, tell: Callable[[str], None]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._watcher = watcher
        self._tell = tell
        self._told: set[str] = set()
        self._queue: deque[tuple[int, bool | None, bytes | str, int]] = deque()
        self._bytes = 0
        self._asleep = True
        self._busy = False  # whether bytes came since the last turn

    def add(self, connection: int, sent: bool | None, data: bytes | str, time_ns: int) -> None:
        """Have a chunk looked at.

        Args:
            sent: None for what is no chunk.
            data: For a connection's begin the client's address, for its end b"".
        """
        self._queue.append((connection, sent, data, time_ns))
        self._busy = True
        self._bytes += len(data) + _OVERHEAD
        while self._bytes > _UNSEEN:
            self._next()
        if self._asleep and self.loop is not None:
            self._asleep = False
            self.loop.call_later(_QUIET_S, self._turn)

    def _turn(self) -> None:
        queue = self._queue
        if not queue or self.loop is None:
            self._asleep = True
            return
        now = time.monotonic_ns()
        behind_ns = now - queue[0][3]
        if self._busy and behind_ns < _UNSEEN_NS:
            self._busy = False  # sockets first: what they bring is somebody's wait
            if behind_ns < _LATE_NS:
                self.loop.call_later(_QUIET_S, self._turn)
            else:
                self.loop.call_soon(self._turn)
            return
        until = now + _SLICE_NS
        while queue and time.monotonic_ns() < until:
            self._next()
        self.loop.call_soon(self._turn)

    def finish(self) -> None:
        """Look at all there is."""
        while self._queue:
            self._next()

    def _next(self) -> None:
        connection, sent, data, time_ns = self._queue.popleft()
        self._bytes -= len(data) + _OVERHEAD
        watcher = self._watcher
        try:
            if isinstance(data, str):
                watcher.opened(connection, data, time_ns)
            elif sent is None:
                watcher.closed(connection, time_ns)
            else:
                watcher.crossed(connection, sent, data, time_ns)
        except Exception as error:
            told = f"{type(error).__name__}: {ascii(str(error))[1:-1][:200]}"
            if told not in self._told and len(self._told) < 100:
                self._told.add(told)
                self._tell(
                    f"connection {connection} could not be shown: {told}; its bytes are passed on"
                )


class _Link:
    """One connection: the client's socket and the server's."""

    def __init__(self, proxy: Proxy, number: int) -> None:
        self.number = number
        self.look = proxy._look
        self.client = _Side(self, sent=True)
        self.server = _Side(self, sent=False)
        self.client.other, self.server.other = self.server, self.client
        self._proxy = proxy
        self._dialling: asyncio.Task[None] | None = None
        self._lost = 0
        self._linger: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The client is there: dial the server. Until then nothing is read."""
        self.look.add(self.number, None, self._peer(), time.monotonic_ns())
        self.client.pause()
        self._dialling = asyncio.get_running_loop().create_task(self._dial())

    def _peer(self) -> str:
        assert self.client.transport is not None
        peer = self.client.transport.get_extra_info("peername")
        return str(Address(host=peer[0], port=peer[1])) if isinstance(peer, tuple) else ""

    async def _dial(self) -> None:
        target = self._proxy.target
        loop = asyncio.get_running_loop()
        tls = self._proxy._tls if target.tls else None
        try:
            async with asyncio.timeout(_DIAL_S):
                if target.path is not None:
                    await loop.create_unix_connection(lambda: self.server, target.path)
                else:
                    await loop.create_connection(
                        lambda: self.server, target.host, target.port, ssl=tls
                    )
        except Exception as error:
            told = str(error) or "no answer"
            if isinstance(error, TimeoutError):
                told = f"no answer within {_DIAL_S:g} s"
            elif isinstance(error, OSError) and error.errno and error.errno > 0:
                told = os.strerror(error.errno)
            self._proxy.tell(
                f"connection {self.number}: {target} cannot be reached: {ascii(told)[1:-1]}; "
                "is it running? the client was closed"
            )
            self.server.lost = True
            self._end()
            if self.client.transport is not None:
                self.client.transport.close()
        else:
            if self.client.lost:
                self.server.reset()
            else:
                self.client.resume()

    def ended(self, side: _Side) -> None:
        """A side has said its last, and goes on reading."""
        other = side.other
        transport = other.transport
        if transport is None or other.lost:
            return
        if other.ended:
            transport.close()
            if side.transport is not None:
                side.transport.close()
        elif transport.can_write_eof():
            with contextlib.suppress(OSError):  # it has gone itself
                transport.write_eof()
        else:
            # TLS knows no half-close here. What is on its way back must not be lost, and nobody
            # says when it is all there: so it ends when nothing has come for a while.
            self._wait_for_silence(other)

    def _wait_for_silence(self, side: _Side, came: int = -1) -> None:
        if side.lost or side.transport is None:
            return
        if side.came == came:
            side.transport.close()
            return
        loop = asyncio.get_running_loop()
        self._linger = loop.call_later(_LINGER_S, self._wait_for_silence, side, side.came)

    def lost(self, side: _Side, error: Exception | None) -> None:
        """A side's socket is closed."""
        other = side.other
        if not other.lost and other.transport is not None:
            if error is not None:
                other.reset()
            else:
                other.transport.close()  # once what is held for it is written
        elif other.transport is None and not other.lost:
            # The client left while its server was being dialled: one that was never dialled.
            if self._dialling is not None:
                self._dialling.cancel()
            other.lost = True
            self._end()
        self._end()

    def _end(self) -> None:
        self._lost += 1
        if self._lost == 2:
            if self._linger is not None:
                self._linger.cancel()
            self.look.add(self.number, None, b"", time.monotonic_ns())
            self._proxy._gone(self)

    def abort(self) -> None:
        """End both sides now."""
        if self._dialling is not None and not self._dialling.done():
            self._dialling.cancel()
        for side in (self.client, self.server):
            if side.transport is not None and not side.lost:
                side.transport.abort()


class _Side(asyncio.Protocol):
    """One socket of a connection; what comes from it goes to the other one."""

    other: _Side

    def __init__(self, link: _Link, *, sent: bool) -> None:
        self.transport: asyncio.Transport | None = None
        self.ended = False
        self.lost = False
        self.came = 0
        self._link = link
        self._sent = sent
        self._write: Callable[[bytes], None] | None = None  # to the other side
        self._look = link.look.add
        self._number = link.number

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(_HELD)
        self.other._write = self.transport.write
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._sent:
            self._link.begin()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if self._write is not None:
            self._write(data)
        self.came += len(data)
        self._look(self._number, self._sent, data, now)

    def eof_received(self) -> bool:
        self.ended = True
        self._link.ended(self)
        return self.transport is not None and self.transport.can_write_eof()

    def pause_writing(self) -> None:
        self.other.pause()

    def resume_writing(self) -> None:
        self.other.resume()

    def pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def reset(self) -> None:
        """Close by a reset, as the other side was."""
        if self.transport is None:
            return
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):  # what is no TCP knows none
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        self._link.lost(self, error)


def server_address(target: str) -> Address:
    """Answer the address of a URL, of `HOST:PORT`, or of a unix socket's path.

    Raises:
        AddressError: It is none of them.
    """
    if "://" in target:
        return parse_url(target)[0]
    return place(target, port_zero=False)


def place(text: str, *, port_zero: bool = True) -> Address:
    """Answer the address that `HOST:PORT`, `:PORT`, `unix:PATH` or a path with a `/` means.

    Raises:
        AddressError: It means none.
    """
    path = text.removeprefix("unix://").removeprefix("unix:")
    if path != text or "/" in text:
        if not path or "\0" in path:
            raise AddressError("the path of a unix socket is empty; write unix:/path/to/socket")
        return Address(path=path)
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = ("127.0.0.1", text) if text.isdecimal() else (text, "6379")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65_536):
        raise AddressError(f"{ascii(text)[:80]} is no address; write HOST:PORT or unix:/path")
    if not int(port) and not port_zero:
        raise AddressError(f"{ascii(text)[:80]} names no port; it must be 1 to 65535")
    return Address(host=host, port=int(port))


def _bound(path: str) -> socket.socket:
    """Bind a unix socket; in the place of one whose owner died, and of nothing else.

    Raises:
        OSError: Something is there.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        try:
            sock.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_stale(path):
                raise
            os.unlink(path)
            sock.bind(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_stale(path: str) -> bool:
    """Whether a path is a socket on which nobody listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return stat.S_ISSOCK(os.stat(path).st_mode)
        except OSError:
            pass
    return False


__all__ = ["Proxy", "Reader", "Recorder", "Watcher", "place", "server_address"]

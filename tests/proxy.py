"""A proxy between a client and a real server, that treats their bytes as bad networks do.

    with Proxy((server.host, server.port)) as proxy:
        connector = connect(proxy.url)
        way = proxy.links[-1].to_client
        way.fault = Fault(cut=way.passed + 3)  # three bytes more, and the connection ends

A fault is one direction's: `proxy.to_server` and `proxy.to_client` are for the connections to come,
the ways of a link for that one connection. One thread moves all bytes, and what a test asks of it
is done there too, after the bytes that had arrived by then: so counts are exact, and a fault holds
for every byte that is sent after it was set.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic
from typing import Final, Literal, Self, TypeAlias, TypeVar

T = TypeVar("T")

Where: TypeAlias = tuple[str, int] | str  # host and port, or the path of a unix socket

PATIENCE_S: Final = 20.0  # longer than any wait that a test means
CHUNK: Final = 65_536  # bytes a read, and kept for a peer that takes no more
_ABORT: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, by a reset


@dataclass(frozen=True)
class Fault:
    """What happens to the bytes of one direction.

    Attributes:
        delay: Seconds that each piece waits before it is passed on.
        piece: Bytes passed on at a time; 1 is a trickle.
        cut: The connection ends as soon as so many bytes in all have been passed on, and no more.
        reset: A cut is a reset to the client, not an end of stream.
        hole: "swallow": read and drop. "block": do not read, so that the buffers before it fill.
    """

    delay: float = 0.0
    piece: int = CHUNK
    cut: int | None = None
    reset: bool = False
    hole: Literal["", "swallow", "block"] = ""


class Way:
    """One direction of one link."""

    def __init__(self, proxy: Proxy, source: socket.socket, sink: socket.socket, fault: Fault):
        self._proxy = proxy
        self._source = source
        self._sink = sink
        self._fault = fault
        self._kept = bytearray()
        self._due = 0.0  # when the next piece of what is kept may be passed on
        self._passed = 0
        self._taken = 0
        self._ended = False  # the source has said its last

    @property
    def fault(self) -> Fault:
        """What happens to its bytes from now on. What waits already keeps the delay it met."""
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._proxy.do(lambda: setattr(self, "_fault", fault))

    @property
    def passed(self) -> int:
        """Bytes passed on so far."""
        return self._proxy.do(lambda: self._passed)

    @property
    def taken(self) -> int:
        """Bytes read so far, those that were dropped or still wait included."""
        return self._proxy.do(lambda: self._taken)

    # For the proxy's thread.

    def is_cut(self) -> bool:
        return self._fault.cut is not None and self._passed >= self._fault.cut

    def is_done(self) -> bool:
        return self._ended and not self._kept

    def reads(self) -> bool:
        return not self._ended and len(self._kept) < CHUNK and self._fault.hole != "block"

    def due(self) -> float:
        return self._due if self._kept else math.inf

    def move(self) -> None:
        """Read what is there and pass on what is due, as far as both sides let it.

        Raises:
            OSError: A side was reset.
        """
        if self.reads() and (data := _received(self._source)) is not None:
            self._ended = not data
            self._taken += len(data)
            if self._fault.hole != "swallow":
                if not self._kept:
                    self._due = monotonic() + self._fault.delay
                self._kept += data
        now = monotonic()
        if self.due() <= now:
            size = self._fault.piece
            if self._fault.cut is not None:
                size = min(size, self._fault.cut - self._passed)
            with contextlib.suppress(BlockingIOError):
                sent = self._sink.send(self._kept[:size])
                del self._kept[:sent]
                self._passed += sent
                self._due = now + self._fault.delay
        if self.is_done():
            with contextlib.suppress(OSError):  # it has gone itself
                self._sink.shutdown(socket.SHUT_WR)


class Link:
    """A connection through the proxy: a client's socket and the server's, and the ways between.

    Attributes:
        ended: Set when both sockets are closed. The server has then acted on all that was passed.
    """

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.ended = threading.Event()
        self.to_server = Way(proxy, client, server, proxy.to_server)
        self.to_client = Way(proxy, server, client, proxy.to_client)
        self._proxy = proxy
        self._client = client
        self._server = server
        self._is_cut = False

    def cut(self, *, reset: bool = False) -> None:
        """End the connection now."""
        self._proxy.do(lambda: self._cut(reset))

    def wait_ended(self) -> None:
        """Return when `ended` is set."""
        assert self.ended.wait(PATIENCE_S), "the server never closed its end"

    # For the proxy's thread.

    def watch(self, poll: select.poll) -> float:
        """Register what to wait for; answers when something is due at the latest."""
        if self._is_cut:
            poll.register(self._server, select.POLLIN)
            return math.inf
        now = monotonic()
        wanted = {self._client: 0, self._server: 0}
        for way in (self.to_server, self.to_client):
            wanted[way._source] |= select.POLLIN if way.reads() else 0
            wanted[way._sink] |= select.POLLOUT if way.due() <= now else 0
        for sock, events in wanted.items():
            if events:  # else poll would tell of a reset that a hole is not to notice
                poll.register(sock, events)
        waits = [way.due() for way in (self.to_server, self.to_client)]
        return min([due for due in waits if due > now], default=math.inf)

    def move(self) -> None:
        try:
            for way in (self.to_server, self.to_client):
                if not (self._is_cut or self._cut_if_due()):
                    way.move()
                    self._cut_if_due()
            if self._is_cut:
                while data := _received(self._server):
                    pass
                if data is not None:
                    self.close()
            elif self.to_server.is_done() and self.to_client.is_done():
                self.close()
        except OSError:
            if self._is_cut:  # it was the server's socket
                self.close()
            self._cut(reset=False)

    def close(self) -> None:
        self._client.close()
        self._server.close()
        self.ended.set()

    def _cut_if_due(self) -> bool:
        for way in (self.to_server, self.to_client):
            if not self._is_cut and way.is_cut():
                self._cut(way.fault.reset)
        return self._is_cut

    def _cut(self, reset: bool) -> None:
        """The client is told at once. The server is heard to its end, so that it is known when."""
        if self._is_cut or self.ended.is_set():
            return
        self._is_cut = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            if reset:
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            else:
                while _received(self._client):  # closed with bytes unread, it would be a reset
                    pass
        self._client.close()


def _received(sock: socket.socket) -> bytes | None:
    """What can be read at once; b"" at the end of the stream, None where nothing can."""
    try:
        return sock.recv(CHUNK)
    except BlockingIOError:
        return None


class Proxy:
    """A listening socket of 127.0.0.1 whose connections are led on to a server.

    Args:
        server: Where it is.
        buffer: Bytes that the kernel keeps between a client and the proxy, or None.

    Attributes:
        url: Where to connect.
        to_server, to_client: The faults that a new connection begins with.
    """

    def __init__(self, server: Where, *, buffer: int | None = None) -> None:
        self.to_server = self.to_client = Fault()
        self._server = server
        self._buffer = buffer
        self._links: list[Link] = []
        self._live: list[Link] = []
        self._calls: list[Callable[[], object]] = []
        self._bell, self._ear = socket.socketpair()
        self._listener: socket.socket | None = self._listen(0)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"valkey://127.0.0.1:{self.port}"
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @property
    def links(self) -> list[Link]:
        """The connections so far, those that ended included."""
        return self.do(lambda: list(self._links))

    @property
    def refuse(self) -> bool:
        """Whether new connections are refused, as by a host where nothing listens."""
        return self._listener is None

    @refuse.setter
    def refuse(self, refuse: bool) -> None:
        self.do(lambda: self._refuse(refuse))

    def do(self, call: Callable[[], T]) -> T:
        """What `call` answers on the proxy's thread, once all that has arrived was looked at."""
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return call()
        answer: Future[T] = Future()

        def answered() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        self._calls.append(answered)
        self._bell.send(b"!")
        return answer.result(PATIENCE_S)

    def close(self) -> None:
        """End everything."""
        self.do(lambda: setattr(self, "_closing", True))
        self._thread.join(PATIENCE_S)
        self._bell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffer)
        listener.bind(("127.0.0.1", port))
        listener.listen(100)
        listener.setblocking(False)
        return listener

    def _refuse(self, refuse: bool) -> None:
        if refuse and self._listener is not None:
            self._listener.close()
            self._listener = None
        elif not refuse and self._listener is None:
            self._listener = self._listen(self.port)

    # For the proxy's thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            for link in self._live:
                link.close()
            self._refuse(True)
            self._ear.close()

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._ear, select.POLLIN)
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        due = min([link.watch(poll) for link in self._live], default=math.inf)
        poll.poll(None if due == math.inf else 1000 * max(due - monotonic(), 0))
        calls = self._calls.copy()  # before what has arrived is looked at, which they come after
        self._accept()
        for link in self._live:
            link.move()
        for call in calls:
            self._ear.recv(1)
            self._calls.remove(call)
            call()
        if calls:  # a cut may be due at once
            for link in self._live:
                if not link.ended.is_set():
                    link.move()
        self._live = [link for link in self._live if not link.ended.is_set()]

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._listener is not None:
                client, _ = self._listener.accept()
                self._lead_on(client)

    def _lead_on(self, client: socket.socket) -> None:
        unix = isinstance(self._server, str)
        server = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        try:
            server.connect(self._server)
        except OSError:
            server.close()
            client.close()
            return
        for sock in (client, server):
            sock.setblocking(False)
            if sock.family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(self, client, server)
        self._links.append(link)
        self._live.append(link)

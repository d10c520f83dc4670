"""A server that says what a script tells it to, for what a real one never says.

    def late(peer: Peer) -> None:
        peer.hello()
        peer.expect("GET", "a")
        peer.wait(gate)
        peer.send(b"$1\\r\\n1\\r\\n")

    with Fake(late) as fake:
        connect(fake.url)

It listens on a real socket. Each connection is played, in a thread of its own, by the next of the
scripts; a further one is played by the last. A script that returns leaves its connection open and
mute. A script that fails makes the `with` block fail.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self, TypeAlias

PATIENCE_S: Final = 20.0  # longer than any wait that a test means
HELLO: Final = b"%2\r\n$6\r\nserver\r\n$4\r\nfake\r\n$5\r\nproto\r\n:3\r\n"


class Gone(Exception):
    """The client closed its end; for a script that serves until then, a normal end."""


class Peer:
    """One connection, seen from the server.

    Attributes:
        received: Every byte that the client sent and that was read.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.received = bytearray()
        self._sock = sock
        self._at = 0  # where the next command begins in `received`

    # What the client said.

    def command(self) -> list[bytes]:
        """The next command, whole.

        Raises:
            Gone: The client closed instead.
        """
        at = self._at
        words: list[bytes] = []
        missing = 1
        while missing > len(words):
            line, at = self._line(at)
            if line[:1] == b"*":
                missing = int(line[1:])
                continue
            assert line[:1] == b"$", f"no command: {line[:80]!r}"
            end = at + int(line[1:])
            self._need(end + 2)
            words.append(bytes(self.received[at:end]))
            at = end + 2
        self._at = at
        return words

    def commands(self) -> Iterator[list[bytes]]:
        """Every command until the client closes."""
        with contextlib.suppress(Gone):
            while True:
                yield self.command()

    def expect(self, *args: bytes | str | int) -> None:
        """The next command is this one."""
        wanted = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
        try:
            came = self.command()
        except Gone:
            raise AssertionError(f"the client closed instead of saying {wanted}") from None
        assert came == wanted, f"{came} instead of {wanted}"

    def expect_bytes(self, data: bytes) -> None:
        """The next bytes are these."""
        try:
            self._need(self._at + len(data))
        except Gone:
            raise AssertionError(f"the client closed instead of saying {data!r}") from None
        came = bytes(self.received[self._at : self._at + len(data)])
        assert came == data, f"{came!r} instead of {data!r}"
        self._at += len(data)

    def hello(self) -> None:
        """The client asks for RESP3 and nothing else; it gets it."""
        self.expect("HELLO", 3)
        self.send(HELLO)

    def swallow(self) -> None:
        """Read until the client closes."""
        with contextlib.suppress(Gone):
            while True:
                self._need(len(self.received) + 1)

    @property
    def unread(self) -> bytes:
        """What was read and belongs to no command that was taken."""
        return bytes(self.received[self._at :])

    # What the server does.

    def send(self, data: bytes) -> None:
        """Say `data`, waiting for the client to read it where the socket is full."""
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise
        except OSError as error:
            raise Gone from error

    def trickle(self, data: bytes) -> None:
        """Say `data` a byte at a time, each in a packet of its own."""
        for at in range(len(data)):
            self.send(data[at : at + 1])

    def echo(self, command: list[bytes]) -> None:
        """Answer a command with its last argument."""
        self.send(b"$%d\r\n%b\r\n" % (len(command[-1]), command[-1]))

    def wait(self, event: threading.Event) -> None:
        """Do nothing until the test says so."""
        assert event.wait(PATIENCE_S), "the test never set the event"

    def half_close(self) -> None:
        """Say that nothing more will come, and go on reading."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection; the client reads its end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def reset(self) -> None:
        """End the connection in a way that the client's next read or write fails."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def _line(self, at: int) -> tuple[bytes, int]:
        while (end := self.received.find(b"\r\n", at)) < 0:
            self._need(len(self.received) + 1)
        return bytes(self.received[at:end]), end + 2

    def _need(self, size: int) -> None:
        while len(self.received) < size:
            try:
                data = self._sock.recv(1 << 20)
            except TimeoutError:
                raise
            except OSError as error:  # reset by the client, or closed by the Fake
                raise Gone from error
            if not data:
                raise Gone
            self.received += data


Script: TypeAlias = Callable[[Peer], None]


class Fake:
    """A listening socket whose connections are played by scripts.

    Args:
        scripts: For the first connection, the second ...; the last for all that follow.
        unix: Listen on a unix socket rather than on a loopback port.
        receive_buffer: Bytes the kernel keeps of what a script does not read, or None.

    Attributes:
        url: Where to connect.
        peers: The connections so far.
    """

    def __init__(
        self, *scripts: Script, unix: bool = False, receive_buffer: int | None = None
    ) -> None:
        self.peers: list[Peer] = []
        self._scripts = scripts
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._folder = tempfile.TemporaryDirectory() if unix else None
        if self._folder is not None:
            path = os.path.join(self._folder.name, "fake.sock")
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(path)
            self.url = f"unix://{path}"
        else:
            self._listener = socket.socket()
            self._listener.bind(("127.0.0.1", 0))
            self.url = f"valkey://127.0.0.1:{self._listener.getsockname()[1]}"
        if receive_buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._listener.listen(100)
        self._doorman = threading.Thread(target=self._accept, name="fake", daemon=True)
        self._doorman.start()

    @property
    def port(self) -> int:
        """The loopback port."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """End everything.

        Raises:
            BaseException: What the first script that failed raised.
        """
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._doorman.join(PATIENCE_S)
        self._listener.close()
        for peer in self.peers:
            peer.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        if self._folder is not None:
            self._folder.cleanup()
        if self._failures:
            raise self._failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(PATIENCE_S)
            if sock.family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(sock)
            script = self._scripts[min(len(self.peers), len(self._scripts) - 1)]
            self.peers.append(peer)
            thread = threading.Thread(
                target=self._play, args=(script, peer), name="fake peer", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _play(self, script: Script, peer: Peer) -> None:
        try:
            script(peer)
            peer.swallow()
        except Gone:
            pass
        except BaseException as error:
            self._failures.append(error)
        finally:
            peer.close()

"""A relay between a client and a server that counts what crosses: bytes both ways, commands."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from typing import Final, Self

import resp

_CHUNK: Final = 65_536


@dataclass(frozen=True)
class Crossed:
    """What has crossed: bytes of both directions together, and commands that a client said."""

    size: float = 0
    commands: float = 0

    def __sub__(self, other: Crossed) -> Crossed:
        return Crossed(self.size - other.size, self.commands - other.commands)

    def times(self, factor: float) -> Crossed:
        """So much of it."""
        return Crossed(self.size * factor, self.commands * factor)


class Relay:
    """A listening socket of 127.0.0.1 whose connections are led on to a server.

    Two threads a connection pass its bytes on, each after it has counted them: what a client or
    the server knows of is in the count.

    Args:
        host, port: Where the server is.

    Attributes:
        port: Where to connect.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._lock = threading.Lock()
        self._size = self._commands = 0
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def crossed(self) -> Crossed:
        """What has crossed so far."""
        with self._lock:
            return Crossed(self._size, self._commands)

    def close(self) -> None:
        """End every connection, and accept no more."""
        with self._lock:
            sockets = [self._listener, *self._sockets]
        for sock in sockets:
            with contextlib.suppress(OSError):  # it has gone itself
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                with self._lock:
                    self._sockets += client, server
                for sock in (client, server):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for ends, decoder in (
                    ((client, server), resp.Decoder()),
                    ((server, client), None),
                ):
                    threading.Thread(
                        target=self._pass_on, args=(*ends, decoder), name="relay", daemon=True
                    ).start()

    def _pass_on(
        self, source: socket.socket, sink: socket.socket, decoder: resp.Decoder | None
    ) -> None:
        with contextlib.suppress(OSError):  # a side was reset, or closed
            while data := source.recv(_CHUNK):
                commands = 0
                if decoder is not None:  # a command is an array of bulk strings, like a reply
                    decoder.feed(data)
                    commands = len(decoder.replies())
                with self._lock:
                    self._size += len(data)
                    self._commands += commands
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

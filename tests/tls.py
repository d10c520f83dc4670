"""TLS before a server that speaks none: certificates made at run time, and a relay.

    certificates = Certificates(tmp_path)
    with TlsRelay((server.host, server.port), certificates.good) as relay:
        connect(f"valkeys://localhost:{relay.port}", tls=certificates.trusting())

The relay ends TLS and passes the bytes on, and can do what a peer seldom does: say much in one
record, end the stream with or without saying so, never answer a handshake. It cannot send a TLS 1.3
KeyUpdate, for Python's `ssl` has no call that makes one.
"""

from __future__ import annotations

import contextlib
import datetime
import select
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import trustme

PATIENCE_S: Final = 20.0  # longer than any wait that a test means
_CHUNK: Final = 65_536

Manner: TypeAlias = Literal["serve", "stall", "plain"]


class Certificates:
    """A certificate authority and what it signed, as PEM files; a key comes first in its file.

    Args:
        folder: Where the files are written.

    Attributes:
        ca: The authority's certificate, for those who trust it.
        good: For localhost and 127.0.0.1.
        wrong_name: For a host of another name.
        expired: For localhost and 127.0.0.1, until yesterday.
        client: A client's.
    """

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        names = ("localhost", "127.0.0.1")
        now = datetime.datetime.now(datetime.UTC)
        issued = {
            "good": authority.issue_cert(*names),
            "wrong_name": authority.issue_cert("elsewhere.example"),
            "expired": authority.issue_cert(
                *names,
                not_before=now - datetime.timedelta(days=2),
                not_after=now - datetime.timedelta(days=1),
            ),
            "client": authority.issue_cert("worker@client.example", common_name="worker"),
        }
        for name, certificate in issued.items():
            certificate.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
        authority.cert_pem.write_to_path(folder / "ca.pem")
        self.ca = folder / "ca.pem"
        self.good = folder / "good.pem"
        self.wrong_name = folder / "wrong_name.pem"
        self.expired = folder / "expired.pem"
        self.client = folder / "client.pem"

    def trusting(self, certificate: Path | None = None) -> ssl.SSLContext:
        """A client's context that trusts the authority, and shows `certificate` if asked."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


class Session:
    """One connection to the relay.

    Attributes:
        version: The version agreed on, such as `TLSv1.3`; None before the handshake is over.
        shown: The common name of the client's certificate, or None.
        failure: Why the handshake failed, or None.
        goodbye: Whether the client said close_notify before it ended; None while it has not ended.
    """

    def __init__(self, client: socket.socket, server: socket.socket, tls: ssl.SSLContext) -> None:
        self.version: str | None = None
        self.shown: str | None = None
        self.failure: OSError | None = None
        self.goodbye: bool | None = None
        self._client = client
        self._server = server
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._in, self._out, server_side=True)
        self._lock = threading.Lock()  # of `_tls`, its buffers, and what is held
        self._held: bytearray | None = None

    def hold(self) -> None:
        """Gather what the server says from now on."""
        with self._lock:
            self._held = bytearray()

    @property
    def held(self) -> bytes:
        """What was gathered."""
        with self._lock:
            return bytes(self._held or b"")

    def release(self) -> None:
        """Say what was gathered in one record, 16 KiB at the most, and gather no more."""
        with self._lock:
            if self._held:
                self._tls.write(self._held)
            self._held = None
            self._say()

    def end(self, *, goodbye: bool) -> None:
        """End the connection, after a close_notify or, as one who cuts the wire would, without."""
        with self._lock:
            if goodbye:
                with contextlib.suppress(ssl.SSLError):  # it wants the client's, too
                    self._tls.unwrap()
                self._say()
        self.shut()

    # For the relay.

    def shut(self) -> None:
        """End both streams; whoever serves them notices."""
        for sock in (self._client, self._server):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Shake hands, then pass bytes until a side ends."""
        try:
            try:
                self._shake_hands()
            except ssl.SSLError as error:
                self.failure = error
                self._say()  # the alert that tells the client why
                return
            self._pass_on()
        except OSError:  # a side was reset
            self.goodbye = bool(self.goodbye)

    def _shake_hands(self) -> None:
        while True:
            with self._lock:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    self._say()
                else:
                    break
            self._hear()
        with self._lock:
            self._say()
            self.version = self._tls.version()
            shown: Any = self._tls.getpeercert() or {}
            subject = dict(pair for names in shown.get("subject", ()) for pair in names)
            self.shown = subject.get("commonName")

    def _pass_on(self) -> None:
        heard = True  # the handshake's last bytes may have brought more
        while True:
            while heard and (data := self._understood()) is not None:
                if not data:
                    self.end(goodbye=bool(self.goodbye))
                    return
                self._server.sendall(data)
            ready, _, _ = select.select([self._client, self._server], [], [])
            heard = self._client in ready
            if heard:
                self._hear()
            if self._server in ready:
                data = self._server.recv(_CHUNK)
                if not data:
                    self.end(goodbye=True)
                    return
                with self._lock:
                    if self._held is None:
                        self._tls.write(data)
                        self._say()
                    else:
                        self._held += data

    def _understood(self) -> bytes | None:
        """What the client said, in clear; b"" at its end, None where nothing is there."""
        with self._lock:
            try:
                data = self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                return None
            except ssl.SSLEOFError:
                self.goodbye = False
                return b""
            finally:
                self._say()
            if not data:
                self.goodbye = True
            return data

    def _hear(self) -> None:
        data = self._client.recv(_CHUNK)
        with self._lock:
            if data:
                self._in.write(data)
            else:
                self._in.write_eof()

    def _say(self) -> None:
        self._client.sendall(self._out.read())


class TlsRelay:
    """A port of 127.0.0.1 that speaks TLS and passes what it hears to a plain server.

    Args:
        server: Host and port of the server.
        certificate: The relay's own; one of `Certificates`.
        client_ca: Ask the client for a certificate that this authority signed, and insist.
        minimum, maximum: The versions of TLS that the relay speaks.
        manner: "serve"; "stall": take the connection and never say a word; "plain": answer the
            first bytes as a server that speaks no TLS does, and never say another.

    Attributes:
        port: Where to connect.
        sessions: The connections so far; only where it serves.
    """

    def __init__(
        self,
        server: tuple[str, int],
        certificate: Path,
        *,
        client_ca: Path | None = None,
        minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
        maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        manner: Manner = "serve",
    ) -> None:
        self.sessions: list[Session] = []
        self._server = server
        self._manner = manner
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version, self._tls.maximum_version = minimum, maximum
        self._tls.load_cert_chain(certificate)
        if client_ca is not None:
            self._tls.load_verify_locations(client_ca)
            self._tls.verify_mode = ssl.CERT_REQUIRED
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def close(self) -> None:
        """End everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(PATIENCE_S)
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="tls relay", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(client)
            self._start(self._serve if self._manner == "serve" else self._be_rude, client)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            self._open.add(server)
            session = Session(client, server, self._tls)
            self.sessions.append(session)
            session.serve()

    def _be_rude(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self._manner == "plain" and client.recv(_CHUNK):
                client.sendall(b"-ERR unknown command\r\n")
            while client.recv(_CHUNK):
                pass

"""The relay and its certificates, seen by a client of the standard library."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from .tls import PATIENCE_S, Certificates, Manner, Session, TlsRelay

PING: Final = b"*1\r\n$4\r\nPING\r\n"
PONG: Final = b"+PONG\r\n"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def dial(
    relay: TlsRelay, context: ssl.SSLContext, name: str = "localhost", timeout: float = PATIENCE_S
) -> ssl.SSLSocket:
    """A client that takes an end without close_notify for the attack that it may be."""
    with socket.create_connection(("127.0.0.1", relay.port), timeout) as sock:
        return context.wrap_socket(sock, server_hostname=name, suppress_ragged_eofs=False)


def ping(sock: ssl.SSLSocket) -> bytes:
    sock.sendall(PING)
    return sock.recv(100)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.001)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_bytes_go_through(server: Any, certificates: Certificates, name: str) -> None:
    with (
        TlsRelay((server.host, server.port), certificates.good) as relay,
        dial(relay, certificates.trusting(), name) as sock,
    ):
        assert ping(sock) == ping(sock) == PONG
        [session] = relay.sessions
        assert session.version == sock.version() == "TLSv1.3"
        assert (session.shown, session.failure, session.goodbye) == (None, None, None)


def test_much_goes_through(server: Any, certificates: Certificates) -> None:
    with (
        TlsRelay((server.host, server.port), certificates.good) as relay,
        dial(relay, certificates.trusting()) as sock,
    ):
        value = os.urandom(1 << 20)
        sock.sendall(b"*2\r\n$4\r\nECHO\r\n$%d\r\n%b\r\n" % (len(value), value))
        answer = b"$%d\r\n%b\r\n" % (len(value), value)
        got = b""
        while len(got) < len(answer):
            got += sock.recv(1 << 20)
        assert got == answer


@pytest.mark.parametrize(
    ("certificate", "told"),
    [("wrong_name", "Hostname mismatch"), ("expired", "certificate has expired")],
)
def test_a_bad_certificate(
    server: Any, certificates: Certificates, certificate: str, told: str
) -> None:
    with TlsRelay((server.host, server.port), getattr(certificates, certificate)) as relay:
        with pytest.raises(ssl.SSLCertVerificationError, match=told):
            dial(relay, certificates.trusting())
        until(lambda: relay.sessions[0].failure)


def test_an_authority_that_is_not_trusted(server: Any, certificates: Certificates) -> None:
    with (
        TlsRelay((server.host, server.port), certificates.good) as relay,
        pytest.raises(ssl.SSLCertVerificationError, match="issuer"),
    ):
        dial(relay, ssl.create_default_context())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_certificate(
    server: Any, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    with TlsRelay(
        (server.host, server.port), certificates.good, client_ca=certificates.ca, maximum=version
    ) as relay:
        with dial(relay, certificates.trusting(certificates.client)) as sock:
            assert ping(sock) == PONG
            assert relay.sessions[0].shown == "worker"
        # With TLS 1.3 the client's handshake is over before the server looks.
        with (
            pytest.raises(ssl.SSLError, match=r"(?i)certificate.required|handshake.failure"),
            dial(relay, certificates.trusting()) as sock,
        ):
            sock.recv(1)
        until(lambda: relay.sessions[1].failure)


def test_versions(server: Any, certificates: Certificates) -> None:
    old = certificates.trusting()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    where = server.host, server.port
    with (
        TlsRelay(where, certificates.good, maximum=ssl.TLSVersion.TLSv1_2) as relay,
        dial(relay, certificates.trusting()) as sock,
    ):
        assert sock.version() == "TLSv1.2"
    with (
        TlsRelay(where, certificates.good, minimum=ssl.TLSVersion.TLSv1_3) as relay,
        pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
    ):
        dial(relay, old)


def test_one_record_of_many_replies(server: Any, certificates: Certificates) -> None:
    with (
        TlsRelay((server.host, server.port), certificates.good) as relay,
        dial(relay, certificates.trusting()) as sock,
    ):
        assert ping(sock) == PONG
        [session] = relay.sessions
        session.hold()
        for _ in range(40):
            sock.sendall(PING)
        until(lambda: session.held == 40 * PONG)
        session.release()
        # One byte asked for: the whole record is read and decrypted, and the rest waits inside.
        assert sock.recv(1) == PONG[:1]
        assert sock.pending() == len(40 * PONG) - 1
        assert sock.recv(1000) == (40 * PONG)[1:]
        assert ping(sock) == PONG


@pytest.mark.parametrize("goodbye", [True, False])
def test_an_end(server: Any, certificates: Certificates, goodbye: bool) -> None:
    with (
        TlsRelay((server.host, server.port), certificates.good) as relay,
        dial(relay, certificates.trusting()) as sock,
    ):
        assert ping(sock) == PONG
        relay.sessions[0].end(goodbye=goodbye)
        if goodbye:
            assert sock.recv(1) == b""
        else:
            with pytest.raises(ssl.SSLEOFError):
                sock.recv(1)


@pytest.mark.parametrize("goodbye", [True, False])
def test_how_the_client_ended(server: Any, certificates: Certificates, goodbye: bool) -> None:
    with TlsRelay((server.host, server.port), certificates.good) as relay:
        with dial(relay, certificates.trusting()) as sock:
            assert ping(sock) == PONG
            if goodbye:
                sock.unwrap().close()  # which waits for the relay's
        session: Session = relay.sessions[0]
        until(lambda: session.goodbye is not None)
        assert session.goodbye is goodbye


def test_a_server_that_says_goodbye(server: Any, certificates: Certificates) -> None:
    with (
        TlsRelay((server.host, server.port), certificates.good) as relay,
        dial(relay, certificates.trusting()) as sock,
    ):
        sock.sendall(b"*1\r\n$4\r\nQUIT\r\n")
        assert sock.recv(100) == b"+OK\r\n"
        assert sock.recv(100) == b""


def test_a_stall(server: Any, certificates: Certificates) -> None:
    where = server.host, server.port
    with TlsRelay(where, certificates.good, manner="stall") as relay:
        with pytest.raises(TimeoutError):
            dial(relay, certificates.trusting(), timeout=0.05)
        assert relay.sessions == []


def test_a_plain_port(server: Any, certificates: Certificates) -> None:
    where = server.host, server.port
    with (
        TlsRelay(where, certificates.good, manner="plain") as relay,
        pytest.raises(ssl.SSLError, match=r"(?i)wrong.version.number"),
    ):
        dial(relay, certificates.trusting())


def test_nothing_is_left_behind(server: Any, certificates: Certificates) -> None:
    before = set(os.listdir("/dev/fd"))
    where = server.host, server.port
    manners: list[Manner] = ["serve", "stall", "plain"]
    for manner in manners:
        with TlsRelay(where, certificates.good, manner=manner) as relay:
            socks = [socket.create_connection(("127.0.0.1", relay.port)) for _ in range(3)]
            if manner == "serve":
                socks.append(dial(relay, certificates.trusting()))
        for sock in socks:
            sock.close()
    assert set(os.listdir("/dev/fd")) <= before
    assert "tls relay" not in [thread.name for thread in threading.enumerate()]

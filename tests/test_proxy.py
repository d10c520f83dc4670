"""The proxy does what its faults say, to the byte, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from .proxy import PATIENCE_S, Fault, Link, Proxy

PING: Final = b"*1\r\n$4\r\nPING\r\n"
PONG: Final = b"+PONG\r\n"


@pytest.fixture
def proxy(server: Any) -> Iterator[Proxy]:
    """A proxy before the run's own Valkey."""
    with Proxy((server.host, server.port)) as made:
        yield made


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S)


def read(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or all before the end of the stream."""
    data = b""
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return data


def ping(sock: socket.socket) -> bytes:
    sock.sendall(PING)
    return read(sock, len(PONG))


def descriptors() -> set[str]:
    return set(os.listdir("/dev/fd"))


@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_bytes_go_through_and_are_counted(server: Any, where: str) -> None:
    with (
        Proxy((server.host, server.port) if where == "tcp" else server.path) as proxy,
        dial(proxy) as one,
        dial(proxy) as other,
    ):
        assert ping(one) == ping(one) == ping(other) == PONG
        first, second = proxy.links
        assert (first.to_server.passed, first.to_client.passed) == (2 * len(PING), 2 * len(PONG))
        assert (second.to_server.taken, second.to_client.taken) == (len(PING), len(PONG))


def test_more_than_all_buffers_hold_goes_through(proxy: Proxy, fresh_name: str) -> None:
    value = os.urandom(1 << 20) * 8
    with dial(proxy) as sock:
        command = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (
            len(fresh_name),
            fresh_name.encode(),
            len(value),
        )
        sock.sendall(command + value + b"\r\n")
        assert read(sock, 5) == b"+OK\r\n"
        sock.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(fresh_name), fresh_name.encode()))
        answer = b"$%d\r\n%b\r\n" % (len(value), value)
        assert read(sock, len(answer)) == answer


def test_either_side_may_end_its_stream(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        assert ping(sock) == PONG
        [link] = proxy.links
    link.wait_ended()
    with dial(proxy) as sock:
        sock.sendall(b"*1\r\n$4\r\nQUIT\r\n")
        assert read(sock, 100) == b"+OK\r\n"


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("cut", range(len(PING) + 1))
def test_a_cut_on_the_way_to_the_server(proxy: Proxy, cut: int, reset: bool) -> None:
    with dial(proxy) as sock:
        [link] = proxy.links
        link.to_server.fault = Fault(cut=cut, reset=reset)
        if cut:
            sock.sendall(PING)
        end(sock, reset)
        link.wait_ended()
        assert (link.to_server.passed, link.to_client.passed) == (cut, 0)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("cut", range(1, len(PONG) + 1))
def test_a_cut_on_the_way_to_the_client(proxy: Proxy, cut: int, reset: bool) -> None:
    proxy.to_client = Fault(cut=cut, reset=reset)
    with dial(proxy) as sock:
        sock.sendall(PING)
        assert read(sock, cut) == PONG[:cut]
        end(sock, reset)
        [link] = proxy.links
        assert (link.to_server.passed, link.to_client.passed) == (len(PING), cut)


def end(sock: socket.socket, reset: bool) -> None:
    """The stream ends here, in this way."""
    if reset:
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    else:
        assert sock.recv(1) == b""


def test_a_fault_of_an_open_connection_is_its_own(proxy: Proxy) -> None:
    with dial(proxy) as one, dial(proxy) as other:
        assert ping(one) == ping(other) == PONG
        way = proxy.links[0].to_client
        way.fault = Fault(cut=way.passed + 1)
        assert ping(one) == PONG[:1]
        assert ping(other) == PONG
        proxy.links[1].cut(reset=True)
        end(other, reset=True)


def test_a_delay_each_way(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        assert ping(sock) == PONG
        [link] = proxy.links
        link.to_server.fault = link.to_client.fault = Fault(delay=0.05)
        began = time.monotonic()
        assert ping(sock) == PONG
        assert time.monotonic() - began >= 0.1
        link.to_server.fault = link.to_client.fault = Fault(delay=60)
        link.to_server.fault = link.to_client.fault = Fault()
        assert ping(sock) == PONG


def test_a_trickle(proxy: Proxy) -> None:
    proxy.to_client = Fault(piece=1, delay=0.005)
    with dial(proxy) as sock:
        began = time.monotonic()
        assert ping(sock) == PONG
        assert time.monotonic() - began >= 0.005 * len(PONG)


def test_what_is_swallowed_is_gone(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        assert ping(sock) == PONG
        [link] = proxy.links
        link.to_client.fault = Fault(hole="swallow")
        sock.sendall(PING)
        until_taken(link, 2 * len(PONG))
        link.to_client.fault = Fault()
        assert ping(sock) == PONG
        assert link.to_client.passed == 2 * len(PONG)


def until_taken(link: Link, size: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while link.to_client.taken < size:
        assert time.monotonic() < end, "the server never said it"


def test_a_block_fills_the_buffers_and_loses_nothing(server: Any) -> None:
    with Proxy((server.host, server.port), buffer=4096) as proxy:
        proxy.to_server = Fault(hole="block")
        with dial(proxy) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            sock.setblocking(False)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while sent < 1 << 20:
                    sent += sock.send(PING)
            assert sent < 1 << 20
            [link] = proxy.links
            assert link.to_server.taken == 0
            link.to_server.fault = Fault()
            sock.settimeout(PATIENCE_S)
            sock.sendall(PING[sent % len(PING) :])
            sent += len(PING[sent % len(PING) :])
            answers = PONG * (sent // len(PING))
            assert read(sock, len(answers)) == answers


def test_new_connections_are_refused_and_open_ones_stay(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        assert ping(sock) == PONG
        proxy.refuse = True
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
        assert ping(sock) == PONG
        proxy.refuse = False
        with dial(proxy) as other:
            assert ping(other) == PONG
        assert len(proxy.links) == 2


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with Proxy(str(tmp_path / "nobody")) as proxy, dial(proxy) as sock:
        assert sock.recv(1) == b""
        assert proxy.links == []


def test_nothing_is_left_behind(server: Any) -> None:
    before = descriptors()
    with Proxy((server.host, server.port)) as proxy:
        socks = [dial(proxy) for _ in range(5)]
        assert {ping(sock) for sock in socks} == {PONG}
        one, two, three, *_ = proxy.links
        one.cut()
        two.to_client.fault = Fault(hole="block")
        three.to_server.fault = Fault(delay=60)
        socks[2].sendall(PING)
    for sock in socks:
        sock.close()
    assert descriptors() <= before
    assert "proxy" not in [thread.name for thread in threading.enumerate()]
    assert one.to_client.passed == len(PONG)  # counts may still be asked

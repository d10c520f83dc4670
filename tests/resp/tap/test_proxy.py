"""The proxy: every byte and every end as it came, whatever becomes of the views."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from resp import AddressError, ConnectFailed, ConnectionLost, connect, encode_command
from resp.address import Address
from resp.tap.dialogue import Dialogue, Exchange
from resp.tap.proxy import Proxy, Reader, place, server_address
from tests.conftest import Server
from tests.resp.fake import PATIENCE_S, Fake, Peer
from tests.tls import Certificates, TlsRelay

GET = encode_command("GET", "a")


class Seen:
    """What a proxy saw, and what it told."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.told: list[str] = []

    def named(self, name: str) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.name == name]


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def proxy(server: Server, seen: Seen) -> Iterator[Proxy]:
    with Proxy(server.url, see=seen.exchanges.extend, tell=seen.told.append) as made:
        yield made
    assert not seen.told


def raw(proxy: Proxy) -> socket.socket:
    sock = socket.create_connection((proxy.host, proxy.port))
    sock.settimeout(PATIENCE_S)
    return sock


def until_end(sock: socket.socket) -> bytes:
    parts = []
    while data := sock.recv(65_536):
        parts.append(data)
    return b"".join(parts)


def test_a_client_notices_nothing_and_all_is_seen(proxy: Proxy, seen: Seen) -> None:
    with connect(proxy.url) as connector:
        assert connector.command("SET", "proxied", "x" * 100) == "OK"
        assert connector.pipeline([("GET", "proxied"), ("ECHO", "b")]) == [b"x" * 100, b"b"]
        connector.command("DEL", "proxied")
    proxy.drain(PATIENCE_S)
    proxy.seen()
    assert [exchange.name for exchange in seen.exchanges] == [
        "HELLO", "SET", "GET", "ECHO", "DEL",
    ]  # fmt: skip
    assert all(exchange.kind == "reply" for exchange in seen.exchanges)
    assert seen.named("GET")[0].replies[0].data == b"$100\r\n" + b"x" * 100 + b"\r\n"
    assert proxy.connections == 1
    assert not proxy.open


def test_each_connection_is_a_conversation_of_its_own(proxy: Proxy, seen: Seen) -> None:
    clients = [connect(proxy.url, protocol=2) for _ in range(20)]

    def talk(number: int) -> None:
        for _ in range(20):
            assert clients[number].command("ECHO", f"of {number}") == f"of {number}".encode()

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for client in clients:
        client.close()
    proxy.drain(PATIENCE_S)
    proxy.seen()
    by_connection: dict[int, set[bytes]] = {}
    for exchange in seen.named("ECHO"):
        assert exchange.request is not None
        assert exchange.request.words is not None
        word = exchange.request.words[1]
        assert exchange.replies[0].data == b"$%d\r\n%b\r\n" % (len(word), word)
        by_connection.setdefault(exchange.connection, set()).add(word)
    assert len(seen.named("ECHO")) == 400
    assert sorted(map(len, by_connection.values())) == [1] * 20


def test_bytes_pass_as_they_are_also_where_they_are_no_resp(seen: Seen) -> None:
    garbage = bytes(range(256)) * 40

    def answer(peer: Peer) -> None:
        peer.expect_bytes(garbage)
        peer.trickle(b"?what\x00" * 10)
        peer.send(garbage)
        peer.half_close()

    with (
        Fake(answer, lambda peer: None) as fake,
        Proxy(fake.url, see=seen.exchanges.extend, tell=seen.told.append) as proxy,
    ):
        with raw(proxy) as sock:
            sock.sendall(garbage)
            assert until_end(sock) == b"?what\x00" * 10 + garbage
        with raw(proxy):  # the next one is served as ever
            pass
        proxy.drain(PATIENCE_S)
    assert "malformed" in {exchange.kind for exchange in seen.exchanges}
    assert not seen.told


def test_a_half_close_is_passed_on_and_the_answer_still_comes(seen: Seen) -> None:
    def answer(peer: Peer) -> None:
        peer.swallow()  # until the client has said its last
        peer.send(b"$1\r\n1\r\n")
        peer.half_close()

    with Fake(answer) as fake, Proxy(fake.url, see=seen.exchanges.extend) as proxy:
        with raw(proxy) as sock:
            sock.sendall(GET)
            sock.shutdown(socket.SHUT_WR)
            assert until_end(sock) == b"$1\r\n1\r\n"
        assert proxy.drain(PATIENCE_S)
    assert [(exchange.name, exchange.kind) for exchange in seen.exchanges] == [("GET", "reply")]


def test_a_server_that_half_closes_is_still_spoken_to(seen: Seen) -> None:
    heard: list[bytes] = []

    def answer(peer: Peer) -> None:
        peer.half_close()
        peer.swallow()
        heard.append(bytes(peer.received))

    with Fake(answer) as fake, Proxy(fake.url, see=seen.exchanges.extend) as proxy:
        with raw(proxy) as sock:
            assert until_end(sock) == b""
            sock.sendall(GET)
        assert proxy.drain(PATIENCE_S)
    assert heard == [GET]
    assert [(exchange.name, exchange.kind) for exchange in seen.exchanges] == [("GET", "lost")]


def test_a_servers_reset_is_a_reset_to_the_client() -> None:
    def answer(peer: Peer) -> None:
        peer.expect("GET", "a")
        peer.reset()

    with Fake(answer) as fake, Proxy(fake.url) as proxy, raw(proxy) as sock:
        sock.sendall(GET)
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_a_clients_reset_is_a_reset_to_the_server() -> None:
    errors: list[OSError] = []
    reset = threading.Event()

    def answer(peer: Peer) -> None:
        peer.expect("GET", "a")
        try:
            peer._sock.recv(1)
        except OSError as error:
            errors.append(error)
        reset.set()

    with Fake(answer) as fake, Proxy(fake.url) as proxy:
        sock = raw(proxy)
        sock.sendall(GET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
        assert reset.wait(PATIENCE_S)
    [error] = errors
    assert isinstance(error, ConnectionResetError)


def test_a_target_that_refuses_is_told_of_and_the_client_is_closed(seen: Seen) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unused.getsockname()[1]}"
        with Proxy(target, see=seen.exchanges.extend, tell=seen.told.append) as proxy:
            for _ in range(2):
                with raw(proxy) as sock:
                    assert until_end(sock) == b""
            with pytest.raises(ConnectFailed):
                connect(proxy.url)
    assert len(seen.told) == 3
    assert "connection 1: " in seen.told[0]
    assert target in seen.told[0]
    assert "refused" in seen.told[0]
    assert "; " in seen.told[0]


def test_a_server_that_dies_ends_its_connections_and_a_new_one_is_dialled(seen: Seen) -> None:
    def die(peer: Peer) -> None:
        peer.hello()
        peer.expect("GET", "a")
        peer.close()

    def live(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.echo(command)

    with Fake(die, live) as fake, Proxy(fake.url, see=seen.exchanges.extend) as proxy:
        with connect(proxy.url) as connector:
            with pytest.raises(ConnectionLost):
                connector.command("GET", "a")
            assert connector.command("GET", "b") == b"b"
        proxy.drain(PATIENCE_S)
    assert [(e.connection, e.kind) for e in seen.named("GET")] == [(1, "lost"), (2, "reply")]


@pytest.mark.parametrize("way", ["up", "down"])
def test_who_does_not_read_is_waited_for_and_little_is_held(way: str) -> None:
    """64 MiB are offered; what the other end has not read stays with the one that says it."""
    size = 64 << 20
    go = threading.Event()
    counted: list[int] = []

    def count(sock: socket.socket) -> int:
        counts = 0
        while data := sock.recv(1 << 20):
            counts += len(data)
        return counts

    def answer(peer: Peer) -> None:
        if way == "up":
            assert go.wait(PATIENCE_S)
            counted.append(count(peer._sock))
        else:
            with contextlib.suppress(OSError):
                peer.send(b"$%d\r\n" % size + bytes(size) + b"\r\n")
            peer.half_close()

    with Fake(answer, receive_buffer=65_536) as fake, Proxy(fake.url) as proxy:
        sock = raw(proxy)
        sock.settimeout(None)
        sent: list[int] = [0]
        if way == "up":
            sock.settimeout(0.5)
            piece = bytes(1 << 20)
            with contextlib.suppress(TimeoutError):
                while sent[0] < size:
                    sent[0] += sock.send(piece)
            assert sent[0] < size // 2  # the proxy has stopped reading
            go.set()
            sock.settimeout(PATIENCE_S)
            sock.shutdown(socket.SHUT_WR)
            until_end(sock)
            sock.close()
            proxy.drain(PATIENCE_S)
            assert counted == sent
        else:
            while not proxy._links:  # it is accepted on the loop
                _pause(0.01)
            link = next(iter(proxy._links))
            while (came := link.server.came) < 65_536 or came != _later(link.server):
                pass  # until it has stopped reading
            assert came < size // 2
            assert count(sock) == size + len(b"$%d\r\n" % size) + 2
            sock.close()


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _later(side: Any) -> int:
    _pause(0.2)
    return int(side.came)


def test_large_values_cross_whole_both_ways_at_once(proxy: Proxy, seen: Seen) -> None:
    values = [os.urandom(3 << 20) for _ in range(8)]
    with connect(proxy.url, timeout=60) as connector:
        assert connector.pipeline([("ECHO", value) for value in values]) == values
    proxy.drain(PATIENCE_S)
    proxy.seen()
    sizes = [(e.up, e.down) for e in seen.named("ECHO")]
    assert sizes == [(14 + 10 + (3 << 20) + 2, 10 + (3 << 20) + 2)] * 8


class Broken:
    """A watcher that fails, always."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def fail(*_: object) -> None:
            raise ZeroDivisionError("in a view")

        return fail


def test_a_fault_of_the_views_changes_nothing_of_the_traffic(server: Server, seen: Seen) -> None:
    with (
        Proxy(server.url, watcher=Broken(), tell=seen.told.append) as proxy,
        connect(proxy.url) as connector,
    ):
        assert connector.pipeline([("ECHO", str(n)) for n in range(1000)]) == [
            str(n).encode() for n in range(1000)
        ]
        proxy.seen()
    [told] = set(seen.told)  # once, not for each chunk
    assert "ZeroDivisionError" in told
    assert "passed on" in told


def test_a_connection_that_could_not_be_read_is_not_recorded_any_further(server: Server) -> None:
    """For nobody knows then what in it is a secret."""

    class Failing(Dialogue):
        def sent(self, data: bytes, time_ns: int) -> tuple[bytes, list[Exchange]]:
            if b"fail" in data:
                raise ZeroDivisionError
            return super().sent(data, time_ns)

    kept: list[bytes] = []

    class Keeper:
        def connection(self, address: str = "", role: str = "client") -> int:
            return 7

        def sent(self, connection: int, data: bytes, time_ns: int) -> None:
            assert connection == 7
            kept.append(data)

        received = sent

        def closed(self, connection: int, reason: str = "", time_ns: int | None = None) -> None:
            kept.append(b"closed")

    reader = Reader(recorder=Keeper(), dialogue=Failing)
    with Proxy(server.url, watcher=reader) as proxy:
        with connect(proxy.url, protocol=2) as connector:
            assert connector.command("ECHO", "before") == b"before"
            assert connector.command("ECHO", "fail") == b"fail"
            assert connector.command("ECHO", "after") == b"after"
        proxy.drain(PATIENCE_S)
    assert b"before" in b"".join(kept)
    assert b"after" not in b"".join(kept)
    assert kept[-1] == b"closed"


def test_a_tell_that_fails_is_nobodys_problem() -> None:
    def fail(told: str) -> None:
        raise ZeroDivisionError

    with Proxy("127.0.0.1:1", tell=fail) as proxy, raw(proxy) as sock:
        assert until_end(sock) == b""


def test_passwords_do_not_come_out_of_it(password_server: Server) -> None:
    seen: list[Exchange] = []
    secret = password_server.password.encode()
    with (
        Proxy(password_server.url, see=seen.extend) as proxy,
        redis.Redis(host=proxy.host, port=proxy.port, password=password_server.password) as client,
    ):
        assert client.ping()
        proxy.seen()
    assert seen
    assert secret not in repr(seen).encode()
    assert secret not in b"".join(e.request.data for e in seen if e.request is not None)


def test_it_listens_on_a_unix_socket_and_speaks_to_one(
    server: Server, tmp_path: Path, seen: Seen
) -> None:
    path = tmp_path / "proxy.sock"
    with Proxy(server.unix_url, listen=str(path), see=seen.exchanges.extend) as proxy:
        assert proxy.url == f"unix://{path}"
        with connect(proxy.url) as connector:
            assert connector.command("ECHO", "x") == b"x"
        proxy.drain(PATIENCE_S)
    assert not path.exists()
    assert len(seen.named("ECHO")) == 1


def test_a_socket_of_a_proxy_that_died_is_taken_over_and_any_other_file_is_not(
    server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as died:
        died.bind(str(path))
    with Proxy(server.url, listen=str(path)) as proxy, connect(proxy.url) as connector:
        assert connector.command("ECHO", "x") == b"x"
        with pytest.raises(ConnectFailed, match="--listen"), Proxy(server.url, listen=str(path)):
            pass
        assert connector.command("ECHO", "y") == b"y"
    path.write_text("mine")
    with pytest.raises(ConnectFailed), Proxy(server.url, listen=str(path)):
        pass
    assert path.read_text() == "mine"


def test_a_port_that_is_taken_is_told(server: Server) -> None:
    with pytest.raises(ConnectFailed, match=f"cannot listen on 127.0.0.1:{server.port}"):
        Proxy(server.url, listen=f"127.0.0.1:{server.port}").__enter__()


def test_it_speaks_tls_to_the_server_and_plainly_to_the_client(
    server: Server, tmp_path: Path, seen: Seen
) -> None:
    certificates = Certificates(tmp_path)
    with (
        TlsRelay((server.host, server.port), certificates.good) as relay,
        Proxy(
            f"valkeys://localhost:{relay.port}",
            see=seen.exchanges.extend,
            tls=certificates.trusting(),
        ) as proxy,
    ):
        with connect(proxy.url) as connector:
            value = os.urandom(1 << 20)
            assert connector.pipeline([("ECHO", value)] * 4) == [value] * 4
        with raw(proxy) as sock:
            sock.sendall(b"PING\r\n")
            sock.shutdown(socket.SHUT_WR)  # TLS has none, and yet the answer comes
            assert until_end(sock) == b"+PONG\r\n"
        assert proxy.drain(PATIENCE_S)
    assert len(seen.named("ECHO")) == 4


def test_on_a_loop(server: Server) -> None:
    async def go() -> list[str]:
        seen: list[Exchange] = []
        async with Proxy(server.url, see=seen.extend) as proxy:
            reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
            writer.write(b"PING\r\n")
            assert await reader.readline() == b"+PONG\r\n"
            writer.close()
            await writer.wait_closed()
            await proxy.drained()
        return [exchange.name for exchange in seen]

    assert asyncio.run(go()) == ["PING"]


def test_the_end_ends_all_connections_and_what_was_open_is_lost(
    server: Server, seen: Seen, fresh_name: str
) -> None:
    with Proxy(server.url, see=seen.exchanges.extend) as proxy:
        sock = raw(proxy)
        sock.sendall(encode_command("PING") + encode_command("BLPOP", fresh_name, 0))
        assert sock.recv(100) == b"+PONG\r\n"
    with sock, contextlib.suppress(ConnectionResetError):
        assert until_end(sock) == b""
    assert [(e.name, e.kind) for e in seen.exchanges] == [("PING", "reply"), ("BLPOP", "lost")]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7000", Address("127.0.0.1", 7000)),
        (":7000", Address("127.0.0.1", 7000)),
        ("7000", Address("127.0.0.1", 7000)),
        ("valkey.example", Address("valkey.example", 6379)),
        ("[::1]:7000", Address("::1", 7000)),
        ("unix:/run/x.sock", Address(path="/run/x.sock")),
        ("./x.sock", Address(path="./x.sock")),
        ("redis://host:7000/2", Address("host", 7000, db=2)),
        ("unix:///run/x.sock", Address(path="/run/x.sock")),
    ],
)
def test_places(text: str, address: Address) -> None:
    assert server_address(text) == address


@pytest.mark.parametrize(
    "text", ["host:", "host:x", "host:99999", "host:1_0", "host:-1", "unix:", "http://x", "h:0"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(AddressError):
        server_address(text)


def test_port_0_is_a_place_to_listen() -> None:
    assert place("127.0.0.1:0").port == 0

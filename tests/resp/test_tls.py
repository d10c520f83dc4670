"""TLS, through a relay that speaks it before the run's own Valkey, and some that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp import (
    AddressError,
    ConnectFailed,
    ConnectionLost,
    Connector,
    Event,
    Refused,
    ReplyTimeout,
    RespError,
    Script,
    Tap,
    TransportError,
    connect,
    connect_async,
)
from resp.address import Address
from resp.tls import Tls

from ..conftest import Server
from ..proxy import Fault, Proxy
from ..tls import Certificates, Manner, TlsRelay
from .conftest import Blocking, Fakes, Shell, begin, until
from .fake import PATIENCE_S, Peer

PROMPT_S: Final = 2.5  # what takes next to no time takes less, on any machine
QUICK: Final = (0.01, 0.05)  # a backoff that is no part of what is tested


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def relay(server: Server, certificates: Certificates, shell: Shell) -> Iterator[TlsRelay]:
    """A relay to the run's own Valkey."""
    with TlsRelay((server.host, server.port), certificates.good) as made:
        yield made


@pytest.fixture
def secure(relay: TlsRelay, certificates: Certificates, shell: Shell) -> Connector:
    """A connector of each shell, to the run's own Valkey, by TLS."""
    return shell.connect(url(relay), tls=certificates.trusting())


@pytest.fixture
def loops() -> list[Callable[[], asyncio.AbstractEventLoop]]:
    """The kinds of event loop that are installed."""
    kinds: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop]
    with contextlib.suppress(ImportError):
        import uvloop

        kinds.append(uvloop.new_event_loop)
    return kinds


def url(relay: TlsRelay, host: str = "localhost") -> str:
    return f"valkeys://{host}:{relay.port}"


def echo(peer: Peer) -> None:
    peer.hello()
    for command in peer.commands():
        peer.echo(command)


def behind(fake: Fakes, certificates: Certificates, script: Callable[[Peer], None]) -> TlsRelay:
    """A relay to a fake server."""
    return TlsRelay(("127.0.0.1", fake(script).port), certificates.good)


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc here")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)


# All that works in clear.


def test_commands_errors_and_their_order(secure: Connector, fresh_name: str) -> None:
    assert secure.command("SET", fresh_name, b"\x00\xff\r\n") == "OK"
    assert secure.command("GET", fresh_name) == b"\x00\xff\r\n"
    with pytest.raises(RespError, match="WRONGTYPE"):
        secure.command("LPUSH", fresh_name, "x")
    assert secure.transaction([("INCR", f"{fresh_name}:n")] * 3) == [1, 2, 3]
    secure.send([("INCR", f"{fresh_name}:n")] * 10)
    assert secure.command("GET", f"{fresh_name}:n") == b"13"
    assert secure.stats()["reconnects"] == 0


@pytest.mark.parametrize("size", [1, 16_383, 16_384, 16_385, 65_536, 1 << 20, 20_000_000])
def test_values_of_every_size_in_both_directions(secure: Connector, size: int) -> None:
    value = random.Random(size).randbytes(size)
    assert secure.command("ECHO", value) == value


def test_a_pipeline_of_five_thousand(secure: Connector) -> None:
    names = [b"%d" % number for number in range(5000)]
    assert secure.pipeline([("ECHO", name) for name in names]) == names


def test_a_pipeline_of_large_values_is_read_while_it_is_written(secure: Connector) -> None:
    values = [os.urandom(300_000) for _ in range(100)]
    assert secure.pipeline([("ECHO", value) for value in values], timeout=PATIENCE_S) == values


def test_a_script_that_the_server_lost_is_loaded_again(
    secure: Connector, server: Server, fresh_name: str
) -> None:
    script = Script("count", f"return redis.call('INCR', KEYS[1]) -- {fresh_name}")
    for turn in range(1, 4):
        server.admin.script_flush()
        assert secure.eval(script, [fresh_name]) == turn
    assert secure.stats()["script_loads"] == 3


def test_messages_are_received_beside_replies(
    shell: Shell, secure: Connector, server: Server, fresh_name: str
) -> None:
    subscription: Any = secure.subscribe(fresh_name)
    if shell.kind == "aio":
        subscription = Blocking(subscription, shell._loop)
    for number in range(50):
        server.admin.publish(fresh_name, number)
        assert secure.command("ECHO", b"%d" % number) == b"%d" % number
    got = [subscription.get(timeout=PATIENCE_S).payload for _ in range(50)]
    assert got == [b"%d" % number for number in range(50)]
    subscription.close()


def test_each_of_many_callers_gets_its_own_replies(shell: Shell, secure: Connector) -> None:
    def work(number: int) -> None:
        for turn in range(20):
            name = b"%d.%d" % (number, turn)
            if turn % 5 == 0:
                name *= 5000
            assert secure.command("ECHO", name, timeout=PATIENCE_S) == name
        names = [b"%d/%d" % (number, turn) for turn in range(50)]
        assert secure.pipeline([("ECHO", name) for name in names], timeout=PATIENCE_S) == names

    for call in [begin(work, number) for number in range(8 if shell.kind == "threads" else 50)]:
        call.result(PATIENCE_S * 2)
    assert secure.stats()["pending"] == 0
    assert secure.stats()["reconnects"] == 0


def test_every_kind_of_loop(
    server: Server,
    certificates: Certificates,
    loops: list[Callable[[], asyncio.AbstractEventLoop]],
) -> None:
    async def main(relay: TlsRelay) -> None:
        context = certificates.trusting()
        async with await connect_async(url(relay), tls=context) as connector:
            value = os.urandom(1 << 20)
            assert await connector.command("ECHO", value) == value
            names = [b"%d" % number for number in range(5000)]
            assert await connector.pipeline([("ECHO", name) for name in names]) == names
            calls = [connector.command("ECHO", name) for name in names[:50]]
            assert await asyncio.gather(*calls) == names[:50]
            relay.sessions[-1].end(goodbye=False)
            until_async = asyncio.get_running_loop().time() + PATIENCE_S
            while connector.stats()["status"] == "connected":
                await asyncio.sleep(0.001)
                assert asyncio.get_running_loop().time() < until_async
            assert await connector.command("ECHO", "again") == b"again"
        assert asyncio.all_tasks() == {asyncio.current_task()}

    for kind in loops:
        with (
            TlsRelay((server.host, server.port), certificates.good) as relay,
            asyncio.Runner(loop_factory=kind) as runner,
        ):
            runner.run(main(relay))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions(
    shell: Shell, server: Server, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    where = server.host, server.port
    with TlsRelay(where, certificates.good, minimum=version, maximum=version) as relay:
        connector = shell.connect(url(relay), tls=certificates.trusting())
        assert connector.command("ECHO", b"x" * 100_000) == b"x" * 100_000
        assert relay.sessions[0].version == version.name.replace("_", ".")
        connector.close()


def test_an_address_in_place_of_a_name(
    shell: Shell, relay: TlsRelay, certificates: Certificates
) -> None:
    connector = shell.connect(url(relay, "127.0.0.1"), tls=certificates.trusting())
    assert connector.command("PING") == "PONG"
    alias = f"rediss://localhost:{relay.port}"
    assert shell.connect(alias, tls=certificates.trusting()).command("PING") == "PONG"


def test_a_sibling_keeps_the_tls_of_its_connector(
    shell: Shell, relay: TlsRelay, certificates: Certificates
) -> None:
    connector = shell.connect(url(relay), tls=certificates.trusting())
    with connector.sibling(client_name="other") as other:
        assert other.command("PING") == "PONG"
        assert [session.version for session in relay.sessions] == ["TLSv1.3"] * 2
    assert connector.command("PING") == "PONG"
    with pytest.raises(Refused):
        connector.sibling(tls=None)


def test_a_watching_transaction_keeps_the_tls_of_its_connector(
    relay: TlsRelay, secure: Connector, fresh_name: str
) -> None:
    assert secure.transaction([("INCR", fresh_name)], watch=[fresh_name]) == [1]
    assert [session.version for session in relay.sessions] == ["TLSv1.3"] * 2


def test_a_tap_shows_what_is_meant_with_passwords_masked(
    shell: Shell, password_server: Server, certificates: Certificates
) -> None:
    tap = Tap()
    with TlsRelay((password_server.host, password_server.port), certificates.good) as relay:
        address = url(relay).replace("://", "://worker:w0rk%20er%23%26@")
        connector = shell.connect(address, tls=certificates.trusting(), tap=tap)
        assert connector.command("ECHO", "in clear") == b"in clear"
        connector.close()
    written = b"".join(record.data for record in tap if record.sent)
    read = b"".join(record.data for record in tap if not record.sent)
    assert written.startswith(b"*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$6\r\nworker\r\n")
    assert b"w0rk" not in written
    assert written.endswith(b"*2\r\n$4\r\nECHO\r\n$8\r\nin clear\r\n")
    assert read.startswith(b"%")
    assert read.endswith(b"$8\r\nin clear\r\n")


def test_statistics_count_what_is_meant(secure: Connector) -> None:
    before = secure.stats()
    secure.command("ECHO", "1234")
    after = secure.stats()
    assert int(after["bytes_out"]) - int(before["bytes_out"]) == 24
    assert int(after["bytes_in"]) - int(before["bytes_in"]) == 10


# Who the server is.


@pytest.mark.parametrize(
    ("certificate", "trusted", "told"),
    [
        ("good", False, "issuer"),
        ("wrong_name", True, "[Hh]ostname mismatch"),
        ("expired", True, "expired"),
    ],
)
def test_a_certificate_that_is_not_accepted_ends_it_before_a_word_is_said(
    shell: Shell,
    server: Server,
    certificates: Certificates,
    certificate: str,
    trusted: bool,
    told: str,
) -> None:
    context = certificates.trusting() if trusted else None
    where = server.host, server.port
    with TlsRelay(where, getattr(certificates, certificate)) as relay:
        address = url(relay).replace("://", "://worker:secret@")
        began = time.monotonic()
        with pytest.raises(Refused, match=told) as caught:
            shell.connect(address, tls=context, backoff=QUICK)
        assert time.monotonic() - began < PROMPT_S
        assert caught.value.code == "CERTIFICATE"
        assert not caught.value.may_have_run
        assert "secret" not in repr(caught.value)
        assert f"localhost:{relay.port}" in str(caught.value)
        until(lambda: relay.sessions[0].failure)  # the client told why it went
        assert [session.version for session in relay.sessions] == [None], "it was tried again"


def test_a_name_that_is_not_in_the_certificate_of_an_address(
    shell: Shell, server: Server, certificates: Certificates
) -> None:
    with (
        TlsRelay((server.host, server.port), certificates.wrong_name) as relay,
        pytest.raises(Refused, match="mismatch"),
    ):
        shell.connect(url(relay, "127.0.0.1"), tls=certificates.trusting())


class Detour:
    """Leads those who want to go to localhost elsewhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = 0
        self._resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host == "localhost" and self.port:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", self.port))]
        return self._resolve(host, port, *args, **options)


def test_a_certificate_that_expires_is_told_by_the_next_call_and_heals(
    shell: Shell,
    server: Server,
    relay: TlsRelay,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    detour = Detour(monkeypatch)
    connector = shell.connect(url(relay), tls=certificates.trusting(), backoff=QUICK)
    with TlsRelay((server.host, server.port), certificates.expired) as expired:
        detour.port = expired.port
        relay.sessions[0].end(goodbye=True)
        time.sleep(0.03)  # nothing tells when the end has arrived
        for turn in range(1, 4):
            with pytest.raises(Refused, match="expired") as caught:
                connector.command("PING")
            assert caught.value.code == "CERTIFICATE"
            assert len(expired.sessions) == turn, "a call tried more than once"
    detour.port = 0
    assert connector.command("PING") == "PONG"


def test_a_context_that_checks_nothing_is_used_as_it_is(
    shell: Shell, server: Server, certificates: Certificates
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with TlsRelay((server.host, server.port), certificates.expired) as relay:
        connector = shell.connect(url(relay), tls=context)
        assert connector.command("PING") == "PONG"
        connector.close()


# Who the client is.


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_certificate_is_presented_or_missed(
    shell: Shell, server: Server, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    where, ca = (server.host, server.port), certificates.ca
    with TlsRelay(where, certificates.good, client_ca=ca, maximum=version) as relay:
        context = certificates.trusting(certificates.client)
        connector = shell.connect(url(relay), tls=context)
        assert connector.command("PING") == "PONG"
        assert relay.sessions[0].shown == "worker"
        began = time.monotonic()
        with pytest.raises(ConnectFailed, match=r"(?i)tls.*(certificate|handshake.failure)"):
            shell.connect(url(relay), tls=certificates.trusting())
        assert time.monotonic() - began < PROMPT_S
        connector.close()


# Records.


def test_forty_replies_in_one_record_reach_their_callers_at_once(
    relay: TlsRelay, secure: Connector
) -> None:
    [session] = relay.sessions
    for turn in range(3):
        session.hold()
        calls = [begin(secure.command, "ECHO", b"%d.%02d" % (turn, n)) for n in range(40)]
        until(lambda: len(session.held) == 40 * len(b"$4\r\n0.00\r\n"))
        assert not any(call.done() for call in calls)
        session.release()
        for number, call in enumerate(calls):
            assert call.result(PROMPT_S) == b"%d.%02d" % (turn, number)


def test_a_pipeline_answered_by_one_record_is_answered_at_once(
    relay: TlsRelay, secure: Connector
) -> None:
    [session] = relay.sessions
    session.hold()
    call = begin(secure.pipeline, [("ECHO", "x")] * 30)
    until(lambda: len(session.held) == 30 * len(b"$1\r\nx\r\n"))
    session.release()
    assert call.result(PROMPT_S) == [b"x"] * 30


def test_bytes_that_trickle_in(shell: Shell, relay: TlsRelay, certificates: Certificates) -> None:
    with Proxy(("127.0.0.1", relay.port)) as proxy:
        proxy.to_client = proxy.to_server = Fault(piece=1)
        connector = shell.connect(f"valkeys://localhost:{proxy.port}", tls=certificates.trusting())
        assert connector.command("ECHO", b"x" * 500) == b"x" * 500
        connector.close()


class Server13:
    """The other side of a `Tls`, in memory."""

    def __init__(self, certificates: Certificates) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.good)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.client = Tls(Address("localhost", tls=True), certificates.trusting())
        data = self.client.handshake()
        while not self.client.ready:
            self.incoming.write(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            data = self.client.handshake(self.outgoing.read())
        self.incoming.write(data)
        self.tls.do_handshake()

    def hear(self) -> Iterator[bytes]:
        with contextlib.suppress(ssl.SSLWantReadError):
            while True:
                yield self.tls.read(65_536)

    def say(self, data: bytes) -> bytes:
        for at in range(0, len(data), 16_384):  # one write is one record
            self.tls.write(data[at : at + 16_384])
        return self.outgoing.read()


@given(
    texts=st.lists(st.binary(min_size=1, max_size=40_000), max_size=5),
    cuts=st.lists(st.integers(0, 100_000), max_size=10),
)
def test_what_is_meant_does_not_depend_on_where_the_stream_is_cut(
    certificates: Certificates, texts: list[bytes], cuts: list[int]
) -> None:
    peer = Server13(certificates)
    stream = b"".join(peer.say(text) for text in texts)
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    heard = [peer.client.decrypt(stream[a:b]) for a, b in itertools.pairwise(places)]
    assert b"".join(heard) == b"".join(texts)
    assert not peer.client.ended
    peer.incoming.write(peer.client.encrypt(b"x" * 100_000))
    assert b"".join(peer.hear()) == b"x" * 100_000


# Ends.


@pytest.mark.parametrize("goodbye", [True, False], ids=["closed", "cut"])
def test_an_end_in_the_middle_of_a_reply_is_a_loss_whether_it_was_said_or_not(
    shell: Shell, fake: Fakes, certificates: Certificates, goodbye: bool
) -> None:
    begun = threading.Event()

    def half(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            if command[1] == b"lost":
                peer.send(b"$10\r\nhalf")
                begun.set()
            else:
                peer.echo(command)

    with behind(fake, certificates, half) as relay:
        connector = shell.connect(url(relay), tls=certificates.trusting(), backoff=QUICK)
        received = connector.stats()["bytes_in"]
        call = begin(connector.command, "ECHO", "lost")
        assert begun.wait(PATIENCE_S)
        until(lambda: int(connector.stats()["bytes_in"]) == int(received) + 9)
        relay.sessions[0].end(goodbye=goodbye)
        error = call.exception(PATIENCE_S)
        assert isinstance(error, ConnectionLost)
        assert error.may_have_run
        assert ("without TLS saying so" in str(error)) is not goodbye
        assert connector.command("ECHO", "next") == b"next"
        connector.close()


@pytest.mark.parametrize("goodbye", [True, False], ids=["closed", "cut"])
def test_an_end_while_idle_is_noticed_before_the_next_command(
    shell: Shell,
    server: Server,
    relay: TlsRelay,
    certificates: Certificates,
    goodbye: bool,
    fresh_name: str,
) -> None:
    events: list[Event] = []
    connector = shell.connect(url(relay), tls=certificates.trusting(), on_event=events.append)
    relay.sessions[0].end(goodbye=goodbye)
    time.sleep(0.03)  # nothing tells when the end has arrived
    assert connector.command("INCR", fresh_name) == 1
    [event] = [event for event in events if event.kind == "disconnected"]
    assert isinstance(event.error, ConnectionLost)
    assert ("without TLS saying so" in str(event.error)) is not goodbye


def test_closing_says_goodbye(relay: TlsRelay, secure: Connector) -> None:
    assert secure.command("PING") == "PONG"
    secure.close()
    until(lambda: relay.sessions[0].goodbye is not None)
    assert relay.sessions[0].goodbye


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x17\x03\x03\x00\x20" + bytes(32),
        b"\x17\x03\x03\xff\xff" + bytes(100),
        b"+PONG\r\n" * 10,
        b"\x15\x03\x03\x00\x02\x02\x28",
        bytes(200),
        b"\xff" * 200,
    ],
    ids=["tampered", "too long", "in clear", "alert", "zeros", "ones"],
)
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_record_that_was_tampered_with_ends_the_connection_and_answers_nobody(
    relay: TlsRelay, secure: Connector, garbage: bytes, busy: bool
) -> None:
    [session] = relay.sessions
    if busy:
        session.hold()
        call = begin(secure.command, "ECHO", "mine", timeout=PATIENCE_S)
        until(lambda: session.held)
    session._client.sendall(garbage)
    if busy:
        error = call.exception(PATIENCE_S)
        assert isinstance(error, ConnectionLost)
        assert error.may_have_run
    else:
        time.sleep(0.03)  # nothing tells when it has arrived
    assert secure.command("ECHO", "next") == b"next"
    assert secure.stats()["reconnects"] == 1


def test_increments_over_a_connection_that_is_cut_again_and_again_are_never_doubled(
    shell: Shell, relay: TlsRelay, certificates: Certificates, server: Server, fresh_name: str
) -> None:
    connector = shell.connect(url(relay), tls=certificates.trusting(), backoff=QUICK)
    done, maybe = itertools.count(), itertools.count()
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            try:
                connector.command("INCR", fresh_name)
                next(done)
            except TransportError as error:
                if error.may_have_run:
                    next(maybe)

    def counted(wanted: int) -> bool:
        return int(server.admin.get(fresh_name) or 0) > wanted

    calls = [begin(work) for _ in range(8 if shell.kind == "threads" else 50)]
    for turn in range(15):
        wanted = 20 + int(server.admin.get(fresh_name) or 0)
        until(partial(counted, wanted))
        with contextlib.suppress(OSError):  # it may have ended, with nobody there to dial yet
            relay.sessions[-1].end(goodbye=turn % 2 == 0)
    over.set()
    assert [call.exception(PATIENCE_S) for call in calls] == [None] * len(calls)
    known = next(done)
    assert known <= int(server.admin.get(fresh_name)) <= known + next(maybe)
    assert int(connector.stats()["reconnects"]) >= 10


# Those who do not speak TLS, or not in time.


def test_a_port_that_answers_in_clear_is_told_as_one(
    shell: Shell, server: Server, certificates: Certificates
) -> None:
    with TlsRelay((server.host, server.port), certificates.good, manner="plain") as relay:
        began = time.monotonic()
        with pytest.raises(ConnectFailed, match="valkey:// instead of valkeys://"):
            shell.connect(url(relay), tls=certificates.trusting())
        assert time.monotonic() - began < PROMPT_S


def test_a_real_server_without_tls_is_bounded(
    shell: Shell, server: Server, certificates: Certificates
) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectFailed, match=f"localhost:{server.port}"):
        shell.connect(
            f"valkeys://localhost:{server.port}", tls=certificates.trusting(), connect_timeout=0.1
        )
    assert time.monotonic() - began < 0.3 + PROMPT_S


def test_a_client_in_clear_on_a_port_with_tls_is_told_in_time(
    shell: Shell, relay: TlsRelay
) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectFailed, match=f"localhost:{relay.port}"):
        shell.connect(f"valkey://localhost:{relay.port}", connect_timeout=PATIENCE_S)
    assert time.monotonic() - began < PROMPT_S


@pytest.mark.parametrize("manner", ["stall", "plain"])
def test_connecting_by_tls_is_bounded_whatever_the_peer_does(
    shell: Shell, server: Server, certificates: Certificates, manner: Manner
) -> None:
    with (
        no_descriptor_left(),
        TlsRelay((server.host, server.port), certificates.good, manner=manner) as relay,
    ):
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(ConnectFailed) as caught:
                shell.connect(url(relay), tls=certificates.trusting(), connect_timeout=0.1)
            assert not caught.value.may_have_run
            assert str(relay.port) in str(caught.value)
        assert time.monotonic() - began < 0.2 + PROMPT_S


def test_a_call_that_meets_a_stalled_handshake_is_bounded_by_its_own_timeout(
    shell: Shell,
    server: Server,
    relay: TlsRelay,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    detour = Detour(monkeypatch)
    connector = shell.connect(
        url(relay), tls=certificates.trusting(), connect_timeout=0.5, backoff=QUICK
    )
    with TlsRelay((server.host, server.port), certificates.good, manner="stall") as stalled:
        detour.port = stalled.port
        relay.sessions[0].end(goodbye=True)
        time.sleep(0.03)  # nothing tells when the end has arrived
        began = time.monotonic()
        with pytest.raises(ConnectFailed):
            connector.command("PING", timeout=0.1)
        assert time.monotonic() - began < 0.1 + PROMPT_S
    detour.port = 0
    until(lambda: _answers(connector))


def _answers(connector: Connector) -> bool:
    with contextlib.suppress(TransportError):
        connector.command("PING", timeout=0.2)
        return True
    return False


def test_a_handshake_that_is_cut_anywhere_is_a_failure_to_connect(
    shell: Shell, relay: TlsRelay, certificates: Certificates
) -> None:
    context = certificates.trusting()
    with no_descriptor_left(), Proxy(("127.0.0.1", relay.port)) as proxy:
        address = f"valkeys://localhost:{proxy.port}"
        for after in (*range(6), 50, 127, 128, 129, 500, 1000):
            for reset in (False, True):
                proxy.to_client = Fault(cut=after, reset=reset)
                with pytest.raises(ConnectFailed) as caught:
                    shell.connect(address, tls=context, connect_timeout=5)
                assert not isinstance(caught.value, Refused)
                assert not caught.value.may_have_run


@pytest.mark.parametrize(
    "answer", [b"\x15\x03\x03\x00\x02\x02\x28", bytes(500), b"HTTP/1.1 400 Bad Request\r\n\r\n"]
)
def test_a_peer_that_answers_the_handshake_with_nonsense(
    shell: Shell, fake: Fakes, certificates: Certificates, answer: bytes
) -> None:
    def nonsense(peer: Peer) -> None:
        peer._need(5)
        peer.send(answer)

    began = time.monotonic()
    with pytest.raises(ConnectFailed) as caught:
        shell.connect(f"valkeys://localhost:{fake(nonsense).port}", tls=certificates.trusting())
    assert not isinstance(caught.value, Refused)
    assert time.monotonic() - began < PROMPT_S


def test_whoever_is_cancelled_in_a_handshake_leaves_nothing_behind(
    server: Server,
    certificates: Certificates,
    loops: list[Callable[[], asyncio.AbstractEventLoop]],
) -> None:
    context = certificates.trusting()

    async def main() -> None:
        for relay in (stalled, served):
            for turns in (*range(12), 40):
                task = asyncio.create_task(connect_async(url(relay), tls=context))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await task).close()
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    where = server.host, server.port
    for kind in loops:
        with (
            no_descriptor_left(),
            TlsRelay(where, certificates.good, manner="stall") as stalled,
            TlsRelay(where, certificates.good) as served,
            asyncio.Runner(loop_factory=kind) as runner,
        ):
            runner.run(main())


def test_ctrl_c_in_a_handshake_leaves_nothing_behind(
    server: Server, certificates: Certificates
) -> None:
    context = certificates.trusting()
    with (
        no_descriptor_left(),
        TlsRelay((server.host, server.port), certificates.good, manner="stall") as relay,
    ):
        for _ in range(3):
            press = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            press.start()
            with pytest.raises(KeyboardInterrupt):
                connect(url(relay), tls=context, connect_timeout=PATIENCE_S)
            press.join()


def test_ctrl_c_while_waiting_for_a_reply_loses_no_connection(
    server: Server, certificates: Certificates
) -> None:
    with (
        TlsRelay((server.host, server.port), certificates.good) as relay,
        connect(url(relay), tls=certificates.trusting()) as connector,
    ):
        for turn in range(3):
            relay.sessions[0].hold()
            press = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            press.start()
            with pytest.raises(KeyboardInterrupt):
                connector.command("ECHO", "late", timeout=PATIENCE_S)
            press.join()
            relay.sessions[0].release()
            assert connector.command("ECHO", b"%d" % turn) == b"%d" % turn
        assert connector.stats()["reconnects"] == 0


def test_a_forked_child_speaks_by_a_handshake_of_its_own(
    server: Server, certificates: Certificates
) -> None:
    with (
        TlsRelay((server.host, server.port), certificates.good) as relay,
        connect(url(relay), tls=certificates.trusting()) as connector,
    ):
        assert connector.command("ECHO", "parent") == b"parent"
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                if all(connector.command("ECHO", "child") == b"child" for _ in range(3)):
                    connector.close()
                    status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert connector.command("ECHO", "parent") == b"parent"
        assert connector.stats()["reconnects"] == 0
        assert [session.version for session in relay.sessions] == ["TLSv1.3"] * 2


# Silence.


def test_a_silent_connection_is_given_up_after_the_heartbeat(
    shell: Shell, relay: TlsRelay, certificates: Certificates
) -> None:
    with Proxy(("127.0.0.1", relay.port)) as proxy:
        address = f"valkeys://localhost:{proxy.port}"
        connector = shell.connect(
            address, tls=certificates.trusting(), heartbeat=0.2, backoff=QUICK
        )
        link = proxy.links[0]
        link.to_server.fault = link.to_client.fault = Fault(hole="swallow")
        with pytest.raises(ReplyTimeout):
            connector.command("PING", timeout=0.1)
        until(lambda: _answers(connector))
        connector.close()


# What cannot be asked for.


@pytest.mark.parametrize(
    "address", ["valkey://127.0.0.1:1", "redis://127.0.0.1:1", "unix:///nowhere.sock"]
)
def test_tls_for_an_address_without_is_refused_before_anything_is_dialled(
    shell: Shell, certificates: Certificates, address: str
) -> None:
    with pytest.raises(AddressError, match="valkeys://"):
        shell.connect(address, tls=certificates.trusting())


def test_a_plain_connector_has_no_sibling_with_tls(
    shell: Shell, server: Server, certificates: Certificates
) -> None:
    connector = shell.connect(server.url)
    with pytest.raises(AddressError, match="valkeys://"):
        connector.sibling(tls=certificates.trusting())
    assert connector.command("PING") == "PONG"


@pytest.mark.parametrize("host", [".localhost", "a" * 64 + ".example", "local..host"])
def test_a_name_that_can_be_nobodys(shell: Shell, certificates: Certificates, host: str) -> None:
    with pytest.raises(ConnectFailed, match=host.replace(".", r"\.")):
        shell.connect(f"valkeys://{host}:1", tls=certificates.trusting())


# A server that speaks TLS itself.


def redis_with_tls() -> str:
    """Path of a redis-server that was built with TLS.

    Where there is none, the test is skipped.
    """
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server here; Debian's has TLS")
    told = subprocess.run(
        [found, "--port", "0", "--tls-port", "1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if "configure TLS" not in told.stdout:
        pytest.skip("this redis-server was built without TLS")
    return found


def test_a_server_that_speaks_tls_itself(
    shell: Shell, certificates: Certificates, tmp_path: Path
) -> None:
    program = redis_with_tls()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    good = str(certificates.good)
    options = {
        "port": "0",
        "tls-port": str(port),
        "tls-cert-file": good,
        "tls-key-file": good,
        "tls-ca-cert-file": str(certificates.ca),
        "save": "",
        "dir": str(tmp_path),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    with subprocess.Popen([program, *words], stdout=subprocess.DEVNULL) as running:
        try:
            address, context = (
                f"valkeys://localhost:{port}",
                certificates.trusting(certificates.client),
            )

            def connected() -> Any:
                with contextlib.suppress(ConnectFailed):
                    return shell.connect(address, tls=context)
                return None

            until(lambda: connected() is not None)
            connector = connected()
            assert connector.command("ECHO", b"x" * (1 << 20)) == b"x" * (1 << 20)
            names = [b"%d" % number for number in range(5000)]
            assert connector.pipeline([("ECHO", name) for name in names]) == names
            with pytest.raises(ConnectFailed):
                shell.connect(f"valkey://localhost:{port}", connect_timeout=PATIENCE_S)
            with pytest.raises(ConnectFailed):
                shell.connect(address, tls=certificates.trusting())
        finally:
            running.terminate()

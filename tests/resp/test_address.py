"""URLs and options, the conversation that begins a connection, and what connecting can meet."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from resp import (
    Address,
    AddressError,
    Command,
    ConnectFailed,
    ConnectionLost,
    ErrorReply,
    Options,
    Pairs,
    Plan,
    Refused,
    ServerError,
    Tap,
    TransportError,
    parse_url,
)
from resp.address import boot, change_options, check_timeout

from .conftest import Fakes, Shell, begin
from .fake import HELLO, Peer

SECRET: Final = "correct-horse-battery"

# URLs.


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("valkey://", Address()),
        ("redis://", Address()),
        ("valkey://h", Address(host="h")),
        ("valkey://h:", Address(host="h")),
        ("valkey://h:1234", Address(host="h", port=1234)),
        ("valkey://h/", Address(host="h")),
        ("redis://h:1/5", Address(host="h", port=1, db=5)),
        ("valkey://h?db=15", Address(host="h", db=15)),
        ("valkey:///3", Address(db=3)),
        ("VALKEY://H.EXAMPLE", Address(host="h.example")),
        ("valkeys://h", Address(host="h", tls=True)),
        ("rediss://h", Address(host="h", tls=True)),
        ("valkey://[::1]:7/1", Address(host="::1", port=7, db=1)),
        ("valkey://[fe80::1%25eth0]", Address(host="fe80::1%eth0")),
        ("valkey://u:p@h", Address(host="h", username="u", password="p")),
        ("valkey://:p@h", Address(host="h", password="p")),
        ("valkey://u:@h", Address(host="h", username="u", password="")),
        (
            "valkey://us%40er:p%40ss%3A%2F%3F%23%25%5B%3D@h",
            Address(host="h", username="us@er", password="p@ss:/?#%[="),
        ),
        ("valkey://:a%2520b@h", Address(host="h", password="a%20b")),
        ("valkey://:p+q@h", Address(host="h", password="p+q")),
        ("valkey://:%C3%A9@h", Address(host="h", password="é")),
        ("valkey://:a:b@h", Address(host="h", password="a:b")),
        ("unix:///run/valkey.sock", Address(path="/run/valkey.sock")),
        ("unix:///run/a%20b.sock?db=1", Address(path="/run/a b.sock", db=1)),
        ("unix://u:p@/run/v", Address(path="/run/v", username="u", password="p")),
        ("unix://:p@/run/v", Address(path="/run/v", password="p")),
    ],
)
def test_good_urls(url: str, address: Address) -> None:
    assert parse_url(url) == (address, Options())


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "must begin with one of"),
        ("h:6379", "must begin with one of"),
        ("127.0.0.1:6379", "must begin with one of"),
        ("http://h", "must begin with one of"),
        ("//h", "must begin with one of"),
        ("valkey:5", "must begin with one of"),
        ("valkey:/5", "must begin with one of"),
        ("valkey://h:port", "host or port"),
        ("valkey://h:99999", "host or port"),
        ("valkey://h:-1", "host or port"),
        ("valkey://h:0", "port must be 1 to 65535"),
        ("valkey://[::1", "host or port"),
        ("valkey://h/one", "database must be a whole number"),
        ("valkey://h/-1", "database must be a whole number"),
        ("valkey://h/1_0", "database must be a whole number"),
        ("valkey://h/٣", "database must be a whole number"),
        ("valkey://h/0/1", "database must be a whole number"),
        ("valkey://h?db=", "database must be a whole number"),
        ("valkey://h/1?db=1", "twice"),
        ("valkey://h?db=1&db=2", "twice"),
        ("valkey://h?timeout=1&timeout=1", "twice"),
        ("valkey://h?nonsense=1", "cannot say 'nonsense'"),
        ("valkey://h?tap=1", "cannot say 'tap'"),
        ("valkey://h?timeout", "name=value"),
        ("valkey://h?timeout=soon", "timeout a value that is no number"),
        ("valkey://h?timeout=-1", "timeout a value that is no number"),
        ("valkey://h?timeout=nan", "timeout a value that is no number"),
        ("valkey://h?timeout=1e3", "timeout a value that is no number"),
        ("valkey://h?timeout=0", "timeout must be a number of seconds above 0"),
        ("valkey://h?connect_timeout=0", "connect_timeout must be"),
        ("valkey://h?protocol=4", "protocol must be 2, 3 or None"),
        ("valkey://h?protocol=three", "protocol a value that is no number"),
        ("valkey://h?max_pending=0", "max_pending must be"),
        ("valkey://h?client_name=two%20words", "client_name"),
        ("valkey://h?client_name=", "client_name"),
        ("valkey://user@h", "user without a password"),
        ("valkey://h/#frag", "%23"),
        ("valkey://h#", "%23"),
        ("valkey://h /", "percent-encode"),
        ("valkey://h\n", "percent-encode"),
        ("valkey://h\x7f", "percent-encode"),
        ("unix://", "needs a path"),
        ("unix:///", "needs a path"),
        ("unix://host/run/v", "no host"),
        ("unix://:1/run/v", "host"),
        (b"valkey://h", "must be str, not bytes"),
        (None, "must be str, not NoneType"),
    ],
)
def test_bad_urls(url: Any, told: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_url(url)
    assert told in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "url",
    [
        f"valkey://:{SECRET}@h:port",
        f"valkey://:{SECRET}@h/x",
        f"valkey://:{SECRET}@[::1",
        f"valkey://u:{SECRET}@h?nonsense=1",
        f"http://u:{SECRET}@h",
        f"valkey://:1/{SECRET}@h",
        f"valkey://:{SECRET}/x@h",
        f"valkey://:{SECRET}#x@h",
        f"valkey://:{SECRET}?x@h",
        f"valkey://:{SECRET}\N{ACCOUNT OF}@h",
        f"valkey://:{SECRET} @h",
        f"unix://:{SECRET}@host/run/v",
    ],
)
def test_a_bad_urls_password_is_shown_nowhere(url: str) -> None:
    """Neither in the message, nor in the traceback that a program prints."""
    with pytest.raises(AddressError) as caught:
        parse_url(url)
    error = caught.value
    printed = "".join(traceback.format_exception_only(error))
    while error.__cause__ is not None:
        error = error.__cause__  # type: ignore[assignment]
        printed += "".join(traceback.format_exception_only(error))
    assert SECRET not in printed


def test_a_good_urls_password_is_shown_nowhere(shell: Shell, password_server: Any) -> None:
    address, options = parse_url(f"valkey://u:{SECRET}@h/1")
    assert SECRET not in repr(address) + str(address) + repr(options)
    password = password_server.password
    connector = shell.connect(_url(password_server, "", password))
    assert password not in repr(connector)
    assert quote(password, safe="") not in repr(connector)


def test_an_address_is_shown_as_a_place() -> None:
    assert str(Address(host="h", port=1)) == "h:1"
    assert str(Address(host="::1")) == "[::1]:6379"
    assert str(Address(path="/run/v")) == "unix:/run/v"


# Options.


def test_options_in_the_query_and_beside_it() -> None:
    url = "valkey://h?protocol=2&client_name=billing&timeout=0.5&connect_timeout=inf&max_pending=9"
    told = Options(
        protocol=2, client_name="billing", timeout=0.5, connect_timeout=math.inf, max_pending=9
    )
    assert parse_url(url)[1] == told
    assert parse_url(url, timeout=3, client_name=None)[1] == Options(
        protocol=2, timeout=3, connect_timeout=math.inf, max_pending=9
    )


@pytest.mark.parametrize(
    "option",
    [
        {"nonsense": 1},
        {"protocol": 1},
        {"protocol": True},
        {"protocol": "3"},
        {"client_name": "two words"},
        {"client_name": "line\n"},
        {"client_name": "é"},
        {"client_name": "x" * 257},
        {"client_name": b"bytes"},
        {"client_name": 5},
        {"timeout": 0},
        {"timeout": -1.0},
        {"timeout": "5"},
        {"timeout": None},
        {"timeout": math.nan},
        {"connect_timeout": True},
        {"max_pending": 0},
        {"max_pending": 1.5},
        {"max_pending": True},
    ],
)
def test_bad_options(option: dict[str, Any]) -> None:
    with pytest.raises(AddressError):
        parse_url("valkey://h", **option)
    with pytest.raises(AddressError):
        change_options(Options(), option)


def test_every_option_that_is_given_is_kept() -> None:
    tap = Tap()

    def plan() -> Plan[None]:
        yield ("PING",)

    options = change_options(Options(), {"tap": tap, "on_connect": plan, "timeout": 1})
    assert (options.tap, options.on_connect, options.timeout) == (tap, plan, 1)


@pytest.mark.parametrize("seconds", [0.001, 1, math.inf])
def test_seconds_that_bound_a_call(seconds: float) -> None:
    assert check_timeout(seconds) == seconds


# The conversation, without a server.


def converse(address: Address, options: Options, *answers: Any) -> tuple[list[Any], Any]:
    """What `boot` says to these answers, and what it returns or raises."""
    plan = boot(address, options)
    said = []
    remaining = list(answers)
    try:
        step = next(plan)
        while True:
            said.append(step)
            step = plan.send(remaining.pop(0))
    except StopIteration as end:
        assert not remaining
        return said, end.value
    except Refused as error:
        assert not remaining
        return said, error


UNKNOWN: Final = ErrorReply("ERR", "ERR unknown command 'HELLO', with args beginning with: '3' ")
UNKNOWN_OLD: Final = ErrorReply("ERR", "ERR unknown command `HELLO`, with args beginning with: ")
NOPROTO: Final = ErrorReply("NOPROTO", "NOPROTO unsupported protocol version")
WHO: Final = Address(username="u", password="p", db=2)
MAP: Final = {b"proto": 3}


@pytest.mark.parametrize(
    ("address", "options", "answers", "said", "version"),
    [
        (Address(), Options(), [MAP], [("HELLO", 3)], 3),
        (Address(), Options(), [Pairs([(b"proto", 3)])], [("HELLO", 3)], 3),
        (Address(), Options(protocol=3), [MAP], [("HELLO", 3)], 3),
        (Address(), Options(protocol=2), [], [], 2),
        (
            Address(password="p"),
            Options(client_name="n"),
            [MAP],
            [("HELLO", 3, "AUTH", "default", "p", "SETNAME", "n")],
            3,
        ),
        (WHO, Options(), [MAP, "OK"], [("HELLO", 3, "AUTH", "u", "p"), ("SELECT", 2)], 3),
        (
            WHO,
            Options(protocol=2, client_name="n"),
            ["OK", "OK", "OK"],
            [("AUTH", "u", "p"), ("CLIENT", "SETNAME", "n"), ("SELECT", 2)],
            2,
        ),
        (Address(password="p"), Options(protocol=2), ["OK"], [("AUTH", "p")], 2),
        (Address(), Options(), [UNKNOWN], [("HELLO", 3)], 2),
        (Address(), Options(), [UNKNOWN_OLD], [("HELLO", 3)], 2),
        (Address(), Options(), [NOPROTO], [("HELLO", 3)], 2),
        (
            WHO,
            Options(),
            [UNKNOWN, "OK", "OK"],
            [("HELLO", 3, "AUTH", "u", "p"), ("AUTH", "u", "p"), ("SELECT", 2)],
            2,
        ),
    ],
)
def test_what_is_said_first(
    address: Address, options: Options, answers: list[Any], said: list[Any], version: int
) -> None:
    assert converse(address, options, *answers) == (said, version)


@pytest.mark.parametrize(
    ("address", "options", "answers", "code"),
    [
        (Address(), Options(protocol=3), [UNKNOWN], "ERR"),
        (Address(), Options(protocol=3), [NOPROTO], "NOPROTO"),
        (WHO, Options(), [ErrorReply("WRONGPASS", "WRONGPASS no")], "WRONGPASS"),
        (Address(), Options(), [ErrorReply("NOAUTH", "NOAUTH HELLO must be called")], "NOAUTH"),
        (Address(), Options(), [ErrorReply("NOPERM", "NOPERM no hello")], "NOPERM"),
        (Address(), Options(), [ErrorReply("ERR", "ERR max number of clients reached")], "ERR"),
        (Address(), Options(), ["OK"], ""),
        (Address(), Options(), [[b"proto", 3]], ""),
        (WHO, Options(protocol=2), [ErrorReply("WRONGPASS", "WRONGPASS no")], "WRONGPASS"),
        (WHO, Options(), [UNKNOWN, ErrorReply("WRONGPASS", "WRONGPASS no")], "WRONGPASS"),
        (Address(db=99), Options(), [MAP, ErrorReply("ERR", "ERR DB index")], "ERR"),
        (Address(db=99), Options(protocol=2), [ErrorReply("ERR", "ERR DB index")], "ERR"),
        (
            Address(),
            Options(protocol=2, client_name="n"),
            [ErrorReply("NOPERM", "NOPERM no")],
            "NOPERM",
        ),
    ],
)
def test_what_ends_the_conversation(
    address: Address, options: Options, answers: list[Any], code: str
) -> None:
    _, error = converse(address, options, *answers)
    assert isinstance(error, Refused)
    assert error.code == code
    assert not error.may_have_run
    assert str(address) in str(error)


def test_a_refusal_carries_the_servers_text_escaped() -> None:
    _, error = converse(Address(), Options(), ErrorReply("ERR", "ERR max\x1b number"))
    assert "ERR max\\x1b number" in str(error)


# The conversation, with servers.


def _url(server: Any, user: str, password: str, db: int = 0) -> str:
    who = f"://{quote(user, safe='')}:{quote(password, safe='')}@"
    return f"{server.url.replace('://', who)}/{db}"


@pytest.mark.parametrize("protocol", [None, 2, 3])
def test_who_connects(shell: Shell, password_server: Any, protocol: int | None) -> None:
    for user, password in (
        ("", password_server.password),
        ("default", password_server.password),
        (password_server.user, password_server.user_password),
    ):
        connector = shell.connect(
            _url(password_server, user, password, 3), protocol=protocol, client_name="billing:7"
        )
        assert connector.command("ACL", "WHOAMI") == (user or "default").encode()
        assert connector.stats()["protocol"] == (protocol or 3)
        listed = connector.command("CLIENT", "LIST").decode()
        mine = connector.command("CLIENT", "ID")
        line = next(line for line in listed.splitlines() if line.startswith(f"id={mine} "))
        assert " name=billing:7 " in line
        assert " db=3 " in line
        assert f" resp={protocol or 3} " in line


@pytest.mark.parametrize("protocol", [None, 2, 3])
def test_a_wrong_password(shell: Shell, password_server: Any, protocol: int | None) -> None:
    for user in ("", password_server.user, "nobody"):
        with pytest.raises(Refused) as caught:
            shell.connect(_url(password_server, user, SECRET), protocol=protocol)
        assert caught.value.code == "WRONGPASS"
        assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_no_password_where_one_is_needed(shell: Shell, password_server: Any) -> None:
    with pytest.raises(Refused) as caught:
        shell.connect(password_server.url)
    assert caught.value.code == "NOAUTH"
    connector = shell.connect(password_server.url, protocol=2)
    with pytest.raises(ServerError) as answered:
        connector.command("PING")
    assert answered.value.code == "NOAUTH"


@pytest.mark.parametrize("protocol", [None, 2, 3])
def test_a_database_that_is_not_there(shell: Shell, server: Any, protocol: int | None) -> None:
    with pytest.raises(Refused, match="DB index is out of range") as caught:
        shell.connect(f"{server.url}/9999", protocol=protocol)
    assert caught.value.code == "ERR"


def test_a_server_that_is_full(shell: Shell, server: Any) -> None:
    limit = server.admin.config_get("maxclients")["maxclients"]
    server.admin.config_set("maxclients", len(server.admin.client_list()))
    try:
        with pytest.raises(ConnectFailed, match="max number of clients reached"):
            shell.connect(server.url)
    finally:
        server.admin.config_set("maxclients", limit)


@pytest.mark.parametrize(
    "refusal",
    [
        b"-ERR unknown command 'HELLO', with args beginning with: '3' \r\n",
        b"-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n",
        b"-NOPROTO sorry, this protocol version is not supported\r\n",
    ],
)
def test_a_server_without_resp3(shell: Shell, fake: Fakes, refusal: bytes) -> None:
    def old(peer: Peer) -> None:
        command = peer.command()
        assert command[:2] == [b"HELLO", b"3"]
        peer.send(refusal)
        for command in peer.commands():
            peer.send(b"+OK\r\n" if command[0] != b"GET" else b"*-1\r\n")

    server = fake(old)
    url = server.url.replace("://", "://u:p@") + "/4"
    connector = shell.connect(url, client_name="n")
    assert connector.stats()["protocol"] == 2
    assert connector.command("GET", "k") is None
    assert bytes(server.peers[0].received).count(b"\r\nAUTH\r\n") == 2
    assert b"$6\r\nSELECT\r\n$1\r\n4\r\n" in server.peers[0].received
    with pytest.raises(Refused):
        shell.connect(url, protocol=3)
    assert len(server.peers) == 2


def test_resp2_is_spoken_without_asking(shell: Shell, fake: Fakes) -> None:
    def old(peer: Peer) -> None:
        peer.expect("GET", "k")
        peer.send(b"$-1\r\n")

    assert shell.connect(fake(old).url, protocol=2).command("GET", "k") is None


@pytest.mark.parametrize("answer", [b"+OK\r\n", b"*2\r\n+proto\r\n:3\r\n", b":3\r\n"])
def test_an_answer_to_hello_that_is_no_map(shell: Shell, fake: Fakes, answer: bytes) -> None:
    def odd(peer: Peer) -> None:
        peer.expect("HELLO", 3)
        peer.send(answer)

    with pytest.raises(Refused, match="answered HELLO 3 with"):
        shell.connect(fake(odd).url)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"\x15\x03\x01\x00\x02\x02F"])
def test_a_server_of_another_protocol(shell: Shell, fake: Fakes, answer: bytes) -> None:
    def web(peer: Peer) -> None:
        peer.command()
        peer.send(answer)

    with pytest.raises(ConnectFailed, match="broke the protocol"):
        shell.connect(fake(web).url)


def test_a_server_that_hangs_up(shell: Shell, fake: Fakes) -> None:
    def rude(peer: Peer) -> None:
        peer.command()
        peer.close()

    with pytest.raises(ConnectFailed) as caught:
        shell.connect(fake(rude).url)
    assert not caught.value.may_have_run


# What connecting can meet.


def test_a_unix_socket(shell: Shell, server: Any, fresh_name: str) -> None:
    for protocol in (2, 3):
        connector = shell.connect(server.unix_url + "?db=2", protocol=protocol)
        connector.command("SET", fresh_name, "x")
        assert connector.command("GET", fresh_name) == b"x"
        connector.command("DEL", fresh_name)


def test_a_fake_on_a_unix_socket(shell: Shell, fake: Fakes) -> None:
    def serve(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.echo(command)

    connector = shell.connect(fake(serve, unix=True).url)
    assert connector.pipeline([("ECHO", n) for n in range(300)]) == [b"%d" % n for n in range(300)]


def _closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("url", ["valkey://127.0.0.1:{port}", "unix:///nonexistent/emq.sock"])
def test_nobody_listens(shell: Shell, url: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectFailed) as caught:
        shell.connect(url.format(port=_closed_port()), connect_timeout=5)
    assert time.monotonic() - began < 2
    assert not caught.value.may_have_run
    assert str(parse_url(url.format(port=1))[0]).partition(":")[0] in str(caught.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70, "a%00b"])
def test_a_name_that_means_nothing(shell: Shell, host: str) -> None:
    with pytest.raises((ConnectFailed, AddressError)):
        shell.connect(f"valkey://{host}", connect_timeout=5)


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A loopback port where connecting hangs: its queue is full and nobody accepts."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    callers = []
    for _ in range(4):
        caller = socket.socket()
        caller.setblocking(False)
        caller.connect_ex(listener.getsockname())
        callers.append(caller)
    yield listener.getsockname()[1]
    for caller in callers:
        caller.close()
    listener.close()


def test_connecting_is_bounded(shell: Shell, black_hole: int, fake: Fakes) -> None:
    def mute(peer: Peer) -> None:
        peer.swallow()

    for port in (black_hole, fake(mute).port):  # no connection; no answer to HELLO
        began = time.monotonic()
        with pytest.raises(ConnectFailed):
            shell.connect(f"valkey://127.0.0.1:{port}", connect_timeout=0.2)
        assert 0.15 < time.monotonic() - began < 2


def test_a_call_is_bounded_while_it_dials(shell: Shell, fake: Fakes) -> None:
    gate = threading.Event()

    def cut(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    def slow(peer: Peer) -> None:
        peer.wait(gate)
        for command in peer.commands():  # none, where the dial was given up
            if command[0] == b"HELLO":
                peer.send(HELLO)
            else:
                peer.echo(command)

    connector = shell.connect(fake(cut, slow).url, connect_timeout=10)
    with pytest.raises(TransportError):
        connector.command("ECHO", "lost")
    began = time.monotonic()
    waiting = [begin(connector.command, "ECHO", n, timeout=0.1) for n in range(3)]
    for call in waiting:
        error = call.exception(5)
        assert isinstance(error, ConnectFailed)
        assert not error.may_have_run
    assert time.monotonic() - began < 2
    gate.set()
    assert connector.command("ECHO", "new") == b"new"


class Names:
    """Addresses that a name has, in place of the system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *places: tuple[int, Any]) -> None:
        self._resolve = socket.getaddrinfo
        self._places = places
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "several.example":
            return self._resolve(host, port, *args, **options)
        return [(family, socket.SOCK_STREAM, 6, "", place) for family, place in self._places]


def _echo(peer: Peer) -> None:
    peer.hello()
    for command in peer.commands():
        peer.echo(command)


def test_a_name_with_several_addresses(
    shell: Shell, fake: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ("127.0.0.1", fake(_echo).port)
    closed = ("127.0.0.1", _closed_port())
    Names(monkeypatch, (socket.AF_INET, closed), (socket.AF_INET, place))
    connector = shell.connect("valkey://several.example")
    assert connector.command("ECHO", "found") == b"found"


def test_an_address_of_a_family_that_this_machine_lacks(
    shell: Shell, fake: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ("127.0.0.1", fake(_echo).port)
    lacking = (int(getattr(socket, "AF_X25", 9)), ("::1", 1))
    Names(monkeypatch, lacking, (socket.AF_INET, place))
    assert shell.connect("valkey://several.example").command("ECHO", "found") == b"found"
    Names(monkeypatch, lacking)
    with pytest.raises(ConnectFailed):
        shell.connect("valkey://several.example")


def test_an_address_that_hangs_leaves_time_for_the_next(
    shell: Shell, fake: Fakes, black_hole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Names(
        monkeypatch,
        (socket.AF_INET, ("127.0.0.1", _closed_port())),
        (socket.AF_INET, ("127.0.0.1", black_hole)),
        (socket.AF_INET, ("127.0.0.1", fake(_echo).port)),
    )
    connector = shell.connect("valkey://several.example", connect_timeout=2)
    assert connector.command("ECHO", "found") == b"found"


def test_every_address_that_was_tried_is_named(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [("127.0.0.1", _closed_port()), ("127.0.0.2", _closed_port())]
    Names(monkeypatch, *((socket.AF_INET, place) for place in places))
    with pytest.raises(ConnectFailed) as caught:
        shell.connect("valkey://several.example")
    assert str(caught.value).count("refused") == 2 or "127.0.0.2" in str(caught.value)


def test_ipv6(shell: Shell) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                peer = Peer(sock)
                _echo(peer)

        serving = begin(serve)
        connector = shell.connect(f"valkey://[::1]:{listener.getsockname()[1]}")
        assert connector.command("ECHO", "six") == b"six"
        connector.close()
        serving.result(5)


def test_tls_is_never_spoken_in_clear(shell: Shell, fake: Fakes) -> None:
    """A URL that asks for TLS sends no password as plain text."""

    def plain(peer: Peer) -> None:
        peer.swallow()

    server = fake(plain)
    url = server.url.replace("valkey://", f"valkeys://u:{SECRET}@")
    with pytest.raises((ConnectFailed, AddressError)):
        shell.connect(url, connect_timeout=0.2)
    for peer in server.peers:
        assert SECRET.encode() not in peer.received


# What runs on every connect.


def test_on_connect_runs_before_anything_else_and_again(shell: Shell, fake: Fakes) -> None:
    def once(peer: Peer) -> None:
        peer.hello()
        peer.expect("GET", "fence")
        peer.send(b"+3\r\n")
        peer.expect("ECHO", "a")
        peer.expect("ECHO", "b")
        peer.send(b"+ok\r\n+ok\r\n")
        peer.expect("ECHO", "first")
        peer.close()

    made: list[str] = []

    def fence() -> Plan[None]:
        made.append((yield ("GET", "fence")))
        both: list[Command] = [("ECHO", "a"), ("ECHO", "b")]
        assert (yield both) == ["ok", "ok"]

    def again(peer: Peer) -> None:
        peer.hello()
        peer.expect("GET", "fence")
        peer.send(b"+3\r\n")
        peer.expect("ECHO", "a")
        peer.expect("ECHO", "b")
        peer.send(b"+ok\r\n+ok\r\n")
        peer.expect("ECHO", "second")
        peer.send(b"+second\r\n")

    connector = shell.connect(fake(once, again).url, on_connect=fence)
    assert made == ["3"]
    with pytest.raises(TransportError):
        connector.command("ECHO", "first")
    assert connector.command("ECHO", "second") == "second"
    assert made == ["3", "3"]


def test_on_connect_that_refuses(shell: Shell, fake: Fakes) -> None:
    class OtherVersion(Exception):
        pass

    def fence() -> Plan[None]:
        raise OtherVersion((yield ("GET", "fence")))

    gone = threading.Event()

    def serve(peer: Peer) -> None:
        peer.hello()
        peer.expect("GET", "fence")
        peer.send(b"+2\r\n")
        peer.swallow()
        gone.set()

    with pytest.raises(OtherVersion, match="2"):
        shell.connect(fake(serve).url, on_connect=fence)
    assert gone.wait(5), "the connection is closed"


def test_a_connection_lost_in_on_connect_is_no_connection(shell: Shell, fake: Fakes) -> None:
    def fence() -> Plan[None]:
        yield ("GET", "fence")

    def cut(peer: Peer) -> None:
        peer.hello()
        peer.command()
        peer.close()

    with pytest.raises(ConnectFailed) as caught:
        shell.connect(fake(cut).url, on_connect=fence)
    assert not caught.value.may_have_run


def test_state_is_set_up_again_after_a_loss(shell: Shell, server: Any, fresh_name: str) -> None:
    connector = shell.connect(f"{server.url}/5", client_name="again")
    connector.command("SET", fresh_name, "five")
    killed = connector.command("CLIENT", "ID")
    server.admin.client_kill_filter(_id=killed)
    with contextlib.suppress(ConnectionLost):  # a loop that reads has seen the end already
        connector.command("PING")
    assert connector.command("GET", fresh_name) == b"five"
    assert connector.command("CLIENT", "GETNAME") == b"again"
    connector.command("DEL", fresh_name)


def test_a_sibling_is_a_connection_of_its_own(shell: Shell, server: Any) -> None:
    connector = shell.connect(f"{server.url}/4", client_name="first", timeout=3)
    with connector.sibling(client_name="second") as sibling:
        assert sibling.command("CLIENT", "GETNAME") == b"second"
        assert sibling.command("CLIENT", "ID") != connector.command("CLIENT", "ID")
        assert b" db=4 " in sibling.command("CLIENT", "INFO")
    assert connector.command("CLIENT", "GETNAME") == b"first"
    with pytest.raises(AddressError, match="nonsense"):
        connector.sibling(nonsense=1)


def test_statistics(shell: Shell, server: Any) -> None:
    connector = shell.connect(server.url, protocol=3)
    connector.command("PING")
    connector.pipeline([("PING",)] * 3)
    stats = connector.stats()
    assert stats["commands"] == 5
    assert stats["replies"] == 5
    assert stats["pipelines"] == 1
    assert stats["bytes_out"] == len(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n") + 4 * 14
    assert stats["status"] == "connected"
    assert "connected" in repr(connector)
    assert set(stats) == {
        *("commands", "pipelines", "replies", "reconnects", "script_loads", "evalsha_calls"),
        *("bytes_out", "bytes_in", "wire_errors", "pushes", "pending", "overloads"),
        *("protocol", "status"),
    }


def test_the_fakes_hello_is_a_real_ones_shape(server: Any) -> None:
    with socket.create_connection((server.host, server.port)) as sock:
        sock.sendall(b"HELLO 3\r\n")
        assert sock.recv(4096)[:1] == HELLO[:1]


def test_the_twins_have_the_same_verbs() -> None:
    """Name for name and argument for argument; only `await` differs."""
    from resp import (
        AsyncConnector,
        AsyncSubscription,
        Connector,
        Subscription,
        connect,
        connect_async,
    )

    def public(kind: type) -> dict[str, Callable[..., Any]]:
        return {
            name: member
            for name, member in vars(kind).items()
            if callable(member) and not name.startswith("_")
        }

    def shape(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
        signature = inspect.signature(function)
        return [
            (parameter.name, parameter.kind, parameter.default, parameter.annotation)
            for parameter in signature.parameters.values()
        ] + [("returns", signature.return_annotation)]

    def told(function: Callable[..., Any]) -> Any:
        return re.sub(r"Async(Connector|Subscription)", r"\1", str(shape(function)))

    for blocking, awaited in ((Connector, AsyncConnector), (Subscription, AsyncSubscription)):
        sync, asyn = public(blocking), public(awaited)
        assert sync.keys() == asyn.keys()
        for name, member in sync.items():
            assert told(member) == told(asyn[name]), name
            assert inspect.iscoroutinefunction(asyn[name]) == (name != "stats"), name
            assert not inspect.iscoroutinefunction(member)
    assert told(connect) == told(connect_async)
    assert told(Connector.__init__) == told(AsyncConnector.__init__)
    assert {"__enter__", "__exit__"} <= vars(Connector).keys()
    assert {"__aenter__", "__aexit__"} <= vars(AsyncConnector).keys()


def test_a_limit_of_any_length_can_be_given(shell: Shell, server: Any) -> None:
    """The system's own timers take less; that is nobody's concern but ours."""
    connector = shell.connect(server.url, connect_timeout=1e12, timeout=1e12)
    assert connector.command("PING") == "PONG"
    assert connector.command("PING", timeout=math.inf) == "PONG"


def test_a_file_is_no_tap(tmp_path: Path) -> None:
    with (
        (tmp_path / "bytes").open("wb") as file,
        pytest.raises(AddressError, match="must be a Tap"),
    ):
        change_options(Options(), {"tap": file})

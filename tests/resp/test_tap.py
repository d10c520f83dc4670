"""The tap: every byte in order, with its direction and time, and no password."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest

from resp import Tap, encode_command

from .conftest import Fakes, Shell
from .fake import HELLO, Peer

SECRET: Final = "correct-horse-battery"


def test_every_byte_in_order(shell: Shell, fake: Fakes) -> None:
    def serve(peer: Peer) -> None:
        peer.hello()
        for command in peer.commands():
            peer.echo(command)

    server = fake(serve)
    tap = Tap()
    before = time.monotonic_ns()
    connector = shell.connect(server.url, tap=tap)
    connector.command("ECHO", "one")
    connector.pipeline([("ECHO", number) for number in range(300)])
    after = time.monotonic_ns()

    records = list(tap)
    assert [(record.sent, record.data) for record in records[:4]] == [
        (True, encode_command("HELLO", 3)),
        (False, HELLO),
        (True, encode_command("ECHO", "one")),
        (False, b"$3\r\none\r\n"),
    ]
    times = [record.time_ns for record in records]
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= after
    assert {record.connection for record in records} == {1}
    assert len(tap) == len(records)

    sent = b"".join(record.data for record in records if record.sent)
    read = b"".join(record.data for record in records if not record.sent)
    assert sent == bytes(server.peers[0].received)
    stats = connector.stats()
    assert (stats["bytes_out"], stats["bytes_in"]) == (len(sent), len(read))


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_tap_agrees_with_the_server(shell: Shell, server: Any, protocol: int) -> None:
    tap = Tap()
    connector = shell.connect(server.url, protocol=protocol, tap=tap)
    connector.pipeline([("ECHO", "x" * number) for number in range(200)])
    listed = connector.command("CLIENT", "LIST", "ID", connector.command("CLIENT", "ID"))
    told = dict(word.split("=", 1) for word in listed.decode().split())
    sent = sum(len(record.data) for record in tap if record.sent)
    assert int(told["tot-net-in"]) == sent == connector.stats()["bytes_out"]


def test_connections_are_numbered(shell: Shell, server: Any) -> None:
    tap = Tap()
    first = shell.connect(server.url, tap=tap)
    second = first.sibling()
    first.command("ECHO", "first")
    second.command("ECHO", "second")
    assert {record.connection for record in tap if b"first" in record.data} == {1}
    assert {record.connection for record in tap if b"second" in record.data} == {2}
    second.close()


def test_the_oldest_records_go_first(shell: Shell, server: Any) -> None:
    tap = Tap(capacity=4)
    connector = shell.connect(server.url, tap=tap)
    for number in range(5):
        connector.command("ECHO", number)
    assert [record.data[-3:-2] for record in tap] == [b"3", b"3", b"4", b"4"]
    assert len(tap) == 4
    tap.clear()
    assert list(tap) == []


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_tap_that_keeps_nothing_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        Tap(capacity)


def test_records_may_come_while_they_are_read(shell: Shell, server: Any) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    for record in tap:
        connector.command("ECHO", len(record.data))


def test_no_password_is_recorded_on_the_way_in(shell: Shell, password_server: Any) -> None:
    from urllib.parse import quote

    for protocol in (2, 3):
        tap = Tap()
        url = f"{password_server.url}".replace(
            "://", f"://worker:{quote(password_server.user_password, safe='')}@"
        )
        connector = shell.connect(url, protocol=protocol, tap=tap, client_name="masked")
        connector.command("PING")
        sent = b"".join(record.data for record in tap if record.sent)
        assert b"worker" in sent
        assert b"masked" in sent
        assert password_server.user_password.encode() not in sent
        assert b"*" * len(password_server.user_password) in sent
        assert connector.stats()["bytes_out"] == len(sent)


# Masks.

HIDDEN: Final = "*" * len(SECRET)


def mask(data: bytes) -> bytes:
    """What a tap records of bytes that are written."""
    tap = Tap()
    tap.write(tap.connection(), data)
    [record] = tap
    return record.data


@pytest.mark.parametrize(
    ("command", "masked"),
    [
        (("AUTH", SECRET), ("AUTH", HIDDEN)),
        (("auth", "user", SECRET), ("auth", "user", HIDDEN)),
        (("AUTH", "AUTH", SECRET), ("AUTH", "AUTH", HIDDEN)),
        (("HELLO", 3, "AUTH", "user", SECRET), ("HELLO", 3, "AUTH", "user", HIDDEN)),
        (
            ("hello", 3, "auth", "AUTH", SECRET, "SETNAME", "n"),
            ("hello", 3, "auth", "AUTH", HIDDEN, "SETNAME", "n"),
        ),
        (("HELLO", 3, "SETNAME", "AUTH"), ("HELLO", 3, "SETNAME", "AUTH")),
        (
            ("ACL", "SETUSER", "u", "on", ">" + SECRET, "~*", "<" + SECRET, "+@all"),
            ("ACL", "SETUSER", "u", "on", "*" + HIDDEN, "~*", "*" + HIDDEN, "+@all"),
        ),
        (
            ("acl", "setuser", "u", "#" + SECRET, "!" + SECRET),
            ("acl", "setuser", "u", "*" + HIDDEN, "*" + HIDDEN),
        ),
        (("CONFIG", "SET", "requirepass", SECRET), ("CONFIG", "SET", "requirepass", HIDDEN)),
        (
            ("config", "set", "maxmemory", 1, "MASTERAUTH", SECRET, "maxclients", 7),
            ("config", "set", "maxmemory", 1, "MASTERAUTH", HIDDEN, "maxclients", 7),
        ),
        (
            ("CONFIG", "SET", "tls-key-file-pass", SECRET),
            ("CONFIG", "SET", "tls-key-file-pass", HIDDEN),
        ),
        (
            ("MIGRATE", "h", 1, "k", 0, 5, "COPY", "AUTH", SECRET),
            ("MIGRATE", "h", 1, "k", 0, 5, "COPY", "AUTH", HIDDEN),
        ),
        (
            ("MIGRATE", "h", 1, "", 0, 5, "AUTH2", "user", SECRET, "KEYS", "a"),
            ("MIGRATE", "h", 1, "", 0, 5, "AUTH2", "*" * 4, HIDDEN, "KEYS", "a"),
        ),
    ],
)
def test_where_passwords_stand(command: Any, masked: Any) -> None:
    data = encode_command(*command)
    assert mask(data) == encode_command(*masked)
    before, after = encode_command("ECHO", "AUTH"), encode_command("SET", "k", "\r\nAUTH\r\n")
    assert mask(before + data + after) == before + encode_command(*masked) + after


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "AUTH", "value"),
        ("ECHO", "\r\nAUTH\r\n"),
        ("AUTH",),
        ("HELLO", 3, "AUTH"),
        ("ACL", "SETUSER", "u"),
        ("ACL", "GETUSER", "u"),
        ("CONFIG", "GET", "requirepass"),
        ("CONFIG", "SET", "requirepass"),
        ("MIGRATE", "h", 1, "k", 0, 5, "AUTH"),
    ],
)
def test_what_holds_no_password_is_recorded_as_it_is(command: Any) -> None:
    assert mask(encode_command(*command)) == encode_command(*command)


@pytest.mark.parametrize("data", [b"", b"AUTH", b"*1\r\nAUTH\r\n", b"x\r\nAUTH\r\n"])
def test_bytes_that_are_no_command_are_recorded_too(data: bytes) -> None:
    assert len(mask(data)) == len(data)


def test_a_password_is_masked_wherever_its_command_is_cut() -> None:
    command = encode_command("HELLO", 3, "AUTH", "user", SECRET)
    for cut in range(1, len(command)):
        tap = Tap()
        number = tap.connection()
        tap.write(number, command[:cut])
        tap.write(number, command[cut:])
        masked = b"".join(record.data for record in tap)
        assert masked == encode_command("HELLO", 3, "AUTH", "user", HIDDEN)


@pytest.mark.parametrize(
    "command",
    [
        ("ACL", "SETUSER", "tapped", "on", ">" + SECRET),
        ("CONFIG", "SET", "masterauth", SECRET),
        ("AUTH", "nobody", SECRET),
    ],
)
def test_a_command_with_a_password_reaches_the_server_whole(
    shell: Shell, server: Any, command: tuple[str, ...]
) -> None:
    tap = Tap()
    connector = shell.connect(server.url, tap=tap)
    replies = connector.pipeline([command, ("CONFIG", "GET", "masterauth")])
    sent = b"".join(record.data for record in tap if record.sent)
    assert SECRET.encode() not in sent
    assert HIDDEN.encode() in sent
    if command[0] == "CONFIG":
        assert SECRET in str(replies[1])
        assert SECRET.encode() not in b"".join(record.data for record in tap)
        server.admin.config_set("masterauth", "")
    elif command[0] == "ACL":
        assert server.admin.acl_getuser("tapped")
        server.admin.acl_deluser("tapped")
    else:
        assert replies[0].code == "WRONGPASS"


def test_what_a_server_quotes_is_masked() -> None:
    """A server that does not know a command quotes its arguments, and they may be a password."""
    tap = Tap()
    tap.write(1, encode_command("AUHT", "x") + encode_command("PING"))
    reply = b"-ERR unknown command 'AUHT', with args beginning with: 'hunter2' \r\n+OK\r\n"
    tap.read(1, reply)
    _, record = tap
    assert b"hunter2" not in record.data
    assert len(record.data) == len(reply)
    assert record.data.endswith(b"\r\n+OK\r\n")


def test_masking_takes_linear_time() -> None:
    body = b"AUTH" * 100_000
    data = encode_command("SET", "k", body + b" ")
    began = time.process_time()
    assert mask(data) == data
    assert time.process_time() - began < 5

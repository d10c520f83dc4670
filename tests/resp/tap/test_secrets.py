"""Which arguments, and which parts of what a real server answers, are secrets."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp import encode_command
from resp.tap.frames import parse
from resp.tap.secrets import (
    COMMANDS,
    draws_secrets,
    is_secret_name,
    secret_arguments,
    secret_parts,
)

SECRET: Final = b"correct-horse-battery"
DIGEST: Final = "b60dd4ce3ea1f3d2e5b5ddc5b0d5a2d1c9a4b04f3d9b8c6d4a0a4f26a0dbd8b5"


def words_of(*words: Any) -> tuple[bytes, ...]:
    return tuple(word if isinstance(word, bytes) else str(word).encode() for word in words)


def masked(data: bytes, parts: list[tuple[int, int]], at: int = 0) -> bytes:
    out = bytearray(data)
    for start, stop in parts:
        start, stop = max(0, start - at), min(len(data), stop - at)
        out[start:stop] = b"*" * (stop - start)
    return bytes(out)


# Arguments. Those that are secrets are in brackets.

COMMANDS_WITH_SECRETS: Final = """
AUTH [p]
auth user [p]
AUTH AUTH [p]
AUTH [my] [pass] [word]
AUTH
HELLO
HELLO 3
HELLO 3 AUTH user [p]
HELLO 3 auth user [p] SETNAME n
HELLO 3 AUTH AUTH [AUTH] SETNAME AUTH
HELLO 3 SETNAME AUTH
HELLO 3 SETNAME AUTH AUTH user [p]
HELLO 3 AUTH [forgot-the-user]
HELLO 3 AUTH
HELLO AUTH user [p]
ACL SETUSER u on [>p] ~* [<p] +@all [#p] [!p] nopass
ACL SETUSER >u [>p]
acl setuser u [(+get] [>p] ~*)
ACL SETUSER u [(>p)]
ACL SETUSER u
ACL GETUSER >u
ACL DRYRUN u AUTH [p]
ACL DRYRUN u ACL SETUSER v [>p]
ACL DRYRUN AUTH GET k
ACL DRYRUN u ACL DRYRUN v CONFIG SET requirepass [p]
COMMAND GETKEYS AUTH [p]
command getkeysandflags MIGRATE h 1 k 0 5 AUTH [p]
COMMAND GETKEYS COMMAND GETKEYS HELLO 3 AUTH u [p]
COMMAND INFO AUTH x
CONFIG SET requirepass [p]
CONFIG SET maxmemory 1 MasterAuth [p] maxclients 7 primaryauth [p]
CONFIG SET masteruser u primaryuser u tls-auth-clients no tls-auth-clients-user CN
CONFIG SET tls-key-file-pass [p] tls-client-key-file-pass [p] tls-key-file f
CONFIG SET ldap.search_bind_passwd [p] mod.api-token [p] mod.client-secret [p]
CONFIG SET requirepass
CONFIG GET requirepass
CONFIG GET requirepass masterauth
MIGRATE h 1 k 0 5 COPY AUTH [p]
MIGRATE h 1 AUTH 0 5 REPLACE AUTH [AUTH] KEYS AUTH b
MIGRATE h 1  0 5 AUTH2 [u] [p] KEYS AUTH AUTH2 c
MIGRATE h 1 k 0 5 AUTH2 [AUTH2] [AUTH2]
MIGRATE h 1 k 0 5 AUTH
MIGRATE auth 1 auth 0 5
SENTINEL SET m auth-pass [p] quorum 2 auth-user u
SENTINEL SET m rename-command CONFIG GUARDED auth-pass [p]
SENTINEL CONFIG SET sentinel-user u sentinel-pass [p]
SENTINEL CONFIG GET sentinel-pass
SENTINEL MASTER auth-pass
MODULE LOADEX /m.so CONFIG m.password [p] CONFIG m.size 1 ARGS secret [p] size 7
MODULE LOAD /m.so requirepass [p] x
MODULE LIST
SET AUTH p
SETUSER ACL >p
GET requirepass
"""
LINES: Final = COMMANDS_WITH_SECRETS.strip().splitlines()


def read_line(line: str) -> tuple[tuple[bytes, ...], list[int]]:
    words = line.split(" ")
    secret = [index for index, word in enumerate(words) if word[:1] == "[" and word[-1:] == "]"]
    return tuple(word.strip("[]").encode() for word in words), secret


@pytest.mark.parametrize("line", LINES)
def test_secrets_among_arguments(line: str) -> None:
    words, secret = read_line(line)
    assert secret_arguments(words, len(words)) == secret
    if secret:
        assert words[0].upper() in COMMANDS


@pytest.mark.parametrize("line", LINES)
def test_what_is_secret_shows_before_its_second_byte(line: str) -> None:
    """Each argument's verdict is there with the arguments before it and its own first byte."""
    words, secret = read_line(line)
    for index in range(1, len(words)):
        before = [*words[:index], words[index][:1]]
        told = index in secret_arguments(before, len(words))
        assert told is (index in secret), before


@given(
    st.lists(
        st.sampled_from(sorted({word for line in LINES for word in read_line(line)[0]})), min_size=1
    ),
    st.integers(0, 3),
)
def test_a_verdict_does_not_change_with_what_follows(words: list[bytes], missing: int) -> None:
    count = len(words) + missing
    whole = secret_arguments(words, count)
    assert whole == sorted(set(whole))
    assert all(0 < index < count for index in whole)
    for index in range(1, len(words)):
        before = secret_arguments([*words[:index], words[index][:1]], count)
        assert (index in before) is (index in whole)


@pytest.mark.parametrize("word", [b"ACL", b"COMMAND", b"MODULE", b"MIGRATE", b"CONFIG", b"HELLO"])
def test_many_arguments_take_linear_time(word: bytes) -> None:
    second = {b"ACL": b"DRYRUN", b"COMMAND": b"GETKEYS"}.get(word, b"SET")
    words = [word, second] * 100_000
    assert len(secret_arguments(words, len(words))) < len(words)


def test_settings_of_a_real_server_that_are_secrets(server: Any) -> None:
    names = {name for name in server.admin.config_get("*") if is_secret_name(name.encode())}
    assert names == {
        "masterauth",
        "primaryauth",
        "requirepass",
        "tls-client-key-file-pass",
        "tls-key-file-pass",
    }


# What a real server answers.


class Raw:
    """A socket that answers bytes."""

    def __init__(self, server: Any, protocol: int) -> None:
        self.protocol = protocol
        self._socket = socket.create_connection((server.host, server.port))
        self._file = self._socket.makefile("rb")
        hello = ("HELLO", protocol, "AUTH", "default", server.password)
        assert self(*(hello if server.password else hello[:2]))[:1] in b"*%"

    def __call__(self, *words: Any) -> bytes:
        self._socket.sendall(encode_command(*words))
        data = b""
        while True:
            data += self._file.read1()
            nodes = parse(data)
            if len(nodes) == 1 and nodes[0].mark != "?" and not nodes[0].error:
                return data

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def raw(request: Any, server: Any) -> Iterator[Raw]:
    connection = Raw(server, request.param)
    yield connection
    connection.close()
    server.admin.config_set("masterauth", "")
    server.admin.acl_deluser("tapped")
    server.admin.slowlog_reset()


def hide(reply: bytes, *words: Any) -> bytes:
    """A reply with its secrets masked, which must not depend on where it is cut."""
    asked = words_of(*words)
    secret = tuple(asked[index] for index in secret_arguments(asked, len(asked)))
    whole = masked(reply, secret_parts(asked, secret, parse(reply, 70)), 70)
    for cut in range(len(reply)):
        first = secret_parts(asked, secret, parse(reply[:cut], 70))
        head = masked(reply, first, 70)[:cut]
        assert all(
            mine == full or mine == ord("*") for mine, full in zip(head, whole[:cut], strict=True)
        ), (reply[:cut], head)
        assert [(node.mark, node.at, node.end) for node in parse(head)] == [
            (node.mark, node.at, node.end) for node in parse(reply[:cut])
        ]
    if whole != reply and b"ERR" not in reply and reply[:1] not in b"+-!":
        assert draws_secrets(asked)
    return whole


def test_config_get(raw: Raw) -> None:
    raw("CONFIG", "SET", "masterauth", SECRET)
    reply = raw("CONFIG", "GET", "*auth*", "maxmemory")
    assert reply.count(SECRET) == 2
    told = hide(reply, "CONFIG", "GET", "*auth*", "maxmemory")
    assert told == reply.replace(SECRET, b"*" * len(SECRET))
    assert b"\r\nyes\r\n" in told  # tls-auth-clients


def test_acl_getuser_and_list(raw: Raw) -> None:
    raw("ACL", "SETUSER", "tapped", "on", b">" + SECRET, ">other", "~>k#", "+get")
    found = raw("ACL", "GETUSER", "tapped")
    digests = re.findall(rb"[0-9a-f]{64}", found)
    assert len(digests) == 2
    told = hide(found, "ACL", "GETUSER", "tapped")
    assert told == re.sub(rb"[0-9a-f]{64}", b"*" * 64, found)

    listed = raw("ACL", "LIST")
    assert digests[0] in listed
    told = hide(listed, "ACL", "LIST")
    assert told == re.sub(rb"[0-9a-f]{64}", b"*" * 64, listed)
    assert b"~>k#" in told


def test_acl_genpass(raw: Raw) -> None:
    assert hide(raw("ACL", "GENPASS"), "ACL", "GENPASS") == b"$64\r\n" + b"*" * 64 + b"\r\n"
    assert hide(raw("acl", "genpass", 20), "acl", "genpass", 20) == b"$5\r\n*****\r\n"


def test_logs_of_commands(raw: Raw) -> None:
    """The server leaves out secrets of commands that it runs, but not of commands inside those."""
    raw("CONFIG", "SET", "slowlog-log-slower-than", 0)
    raw("AUTH", "default", SECRET)
    raw("COMMAND", "GETKEYS", "AUTH", SECRET)
    raw("ECHO", "AUTH")
    raw("CONFIG", "SET", "slowlog-log-slower-than", 10_000)
    for words in (("SLOWLOG", "GET"), ("COMMANDLOG", "GET", 10, "slow")):
        reply = raw(*words)
        if reply[:1] == b"-":
            continue  # an older server has one log
        assert SECRET in reply
        told = hide(reply, *words)
        assert SECRET not in told
        assert b"ECHO\r\n$4\r\nAUTH" in told


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (("AUHT", SECRET), SECRET),
        (("AUHT", "user", b"two\r\nlines " + SECRET), SECRET),
        (("SENTINEL", "SET", "m", "auth-pass", SECRET), SECRET),
        (("ACL", "SETUSER", "tapped", b"<" + SECRET), SECRET),
        (("ACL", "SETUSER", "tapped", b"#" + SECRET), SECRET),
        (("ACL", "SETUSER", "tapped", b"(+get >" + SECRET + b")"), SECRET),
        (("ACL", "SETUSER", "tapped", "(", "+get", b">" + SECRET, ")"), SECRET),
        (("ACL", "SETUSER", "tapped", b"<two\r\nlines"), b"two  lines"),
        (("ACL", "SETUSER", "tapped", b"<up\0to"), b"<up"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_errors_that_quote(raw: Raw, words: tuple[Any, ...], quoted: bytes) -> None:
    reply = raw(*words)
    assert quoted in reply, reply
    told = hide(reply, *words)
    assert quoted not in told
    assert len(told) == len(reply)
    assert told.startswith(b"-ERR ")


@pytest.mark.parametrize(
    "words",
    [
        ("AUTH", "nobody", SECRET),
        ("AUTH", "first", "second", SECRET),
        ("HELLO", 3, "AUTH", "nobody", SECRET),
        ("HELLO", 3, "AUTH", "default", SECRET, "junk"),
        ("CONFIG", "SET", "masterauth", SECRET, "maxclients", "abc"),
        ("MIGRATE", "127.0.0.1", 1, "k", 0, 5, "AUTH", SECRET),
        ("MODULE", "LOADEX", "/no", "CONFIG", "a.password", SECRET),
        ("ACL", "DRYRUN", "default", "AUTH", SECRET),
        ("COMMAND", "GETKEYS", "AUTH", SECRET),
        ("CONFIG", "NONSENSE"),
        ("GET",),
    ],
    ids=lambda value: str(value[0]),
)
def test_errors_that_quote_no_secret_are_told_as_they_are(raw: Raw, words: Any) -> None:
    reply = raw(*words)
    assert SECRET not in reply
    assert hide(reply, *words) == reply


def test_items_of_exec(raw: Raw) -> None:
    raw("CONFIG", "SET", "masterauth", SECRET)
    raw("ACL", "SETUSER", "tapped", "on", b">" + SECRET)
    asked = [("CONFIG", "GET", "masterauth"), ("ACL", "GETUSER", "tapped"), ("PING",)]
    raw("MULTI")
    for words in asked:
        raw(*words)
    reply = raw("EXEC")
    [exec_] = parse(reply)
    parts = []
    for words, item in zip(asked, exec_.items, strict=True):
        parts += secret_parts(words_of(*words), (), [item])
    told = masked(reply, parts)
    assert SECRET in reply
    assert SECRET not in told
    assert not re.search(rb"[0-9a-f]{64}", told)
    assert told.endswith(b"+PONG\r\n")


def test_what_monitor_tells(raw: Raw, server: Any) -> None:
    with server.admin.monitor() as monitor:
        raw("COMMAND", "GETKEYS", "AUTH", SECRET)
        line = monitor.connection.read_response()
    data = b"+" + (line.encode() if isinstance(line, str) else line) + b"\r\n"
    assert SECRET in data
    told = hide(data, "MONITOR")
    assert told == data.replace(SECRET, b"*" * len(SECRET))


# What no server at hand answers.


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (
            b"*2\r\n$13\r\nsentinel-pass\r\n$3\r\nabc\r\n",
            b"*2\r\n$13\r\nsentinel-pass\r\n$3\r\n***\r\n",
        ),
        (b"%1\r\n+auth-pass\r\n=7\r\ntxt:abc\r\n", b"%1\r\n+auth-pass\r\n=7\r\ntxt:***\r\n"),
        (b"*1\r\n*2\r\n+auth-pass\r\n+abc\r\n", b"*1\r\n*2\r\n+auth-pass\r\n+***\r\n"),
        (
            b"*2\r\n+auth-pass\r\n$?\r\n;2\r\nab\r\n;1\r\nc\r\n;0\r\n",
            b"*2\r\n+auth-pass\r\n$?\r\n;2\r\n**\r\n;1\r\n*\r\n;0\r\n",
        ),
        (
            b"*4\r\n+name\r\n+auth-pass\r\n+ip\r\n+h\r\n",
            b"*4\r\n+name\r\n+auth-pass\r\n+ip\r\n+h\r\n",
        ),
        (
            b"|1\r\n+a\r\n+b\r\n%?\r\n+auth-pass\r\n|1\r\n+c\r\n+d\r\n$1\r\nx\r\n.\r\n",
            b"|1\r\n+a\r\n+b\r\n%?\r\n+auth-pass\r\n|1\r\n+c\r\n+d\r\n$1\r\n*\r\n.\r\n",
        ),
        (b"*2\r\n+auth-pass\r\n:12\r\n", b"*2\r\n+auth-pass\r\n:12\r\n"),
        (b"_\r\n", b"_\r\n"),
    ],
    ids=range(8),
)
def test_sentinel_and_odd_types(reply: bytes, told: bytes) -> None:
    assert hide(reply, "SENTINEL", "CONFIG", "GET", "*") == told


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (b"-ERR no 'hunter2' here\r\n", b"-ERR no '*******' here\r\n"),
        (b"!14\r\nERR no hunter2\r\n", b"!14\r\nERR no *******\r\n"),
        (b"*2\r\n-ERR hunter2\r\n+hunter2\r\n", b"*2\r\n-ERR *******\r\n+hunter2\r\n"),
        (b"-hunthunter2hunter\r\n", b"-hunt*******hunter\r\n"),
        (b"-hunter2hunter2\r\n", b"-**************\r\n"),
        (
            b"!46\r\nx, with args beginning with: 'hunter' \r\nand so\r\n",
            b"!46\r\nx, with args beginning with: *****************\r\n",
        ),
        (b"-ERR with args beginning with:\r\n", b"-ERR with args beginning with:\r\n"),
    ],
    ids=range(7),
)
def test_errors_by_type(reply: bytes, told: bytes) -> None:
    assert hide(reply, "AUTH", "hunter2") == told


def test_a_long_secret_is_found_by_what_a_server_quotes_of_it() -> None:
    secret = bytes(range(48, 91)) * 9
    for length in (128, 200, len(secret)):
        reply = b"-ERR '" + secret[:length] + b"'\r\n"
        assert hide(reply, "AUTH", secret) == b"-ERR '" + b"*" * length + b"'\r\n"


@pytest.mark.parametrize(
    ("words", "draws"),
    [
        (("CONFIG", "GET", "x"), True),
        (("acl", "list"), True),
        (("SENTINEL", "MASTERS"), True),
        (("SLOWLOG", "GET"), True),
        (("SLOWLOG", "LEN"), False),
        (("CONFIG", "SET", "requirepass", "x"), False),
        (("ACL",), False),
        (("GET", "GET"), False),
        ((), False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_commands_whose_reply_may_hold_a_secret(words: tuple[str, ...], draws: bool) -> None:
    asked = words_of(*words)
    assert draws_secrets(asked) is draws
    assert not draws or asked[0].upper() in COMMANDS


@given(st.binary(max_size=60), st.lists(st.binary(min_size=1, max_size=5), max_size=3))
def test_garbage_is_no_fault(data: bytes, secrets: list[bytes]) -> None:
    for words in ((b"CONFIG", b"GET"), (b"ACL", b"LIST"), (b"SLOWLOG", b"GET"), ()):
        for start, stop in secret_parts(words, secrets, parse(data)):
            assert 0 <= start <= stop

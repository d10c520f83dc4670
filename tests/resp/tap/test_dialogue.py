"""Pairing: what real servers say is read back as commands and their replies, however it is cut."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resp import encode_command
from resp.tap.dialogue import Dialogue, Exchange, command_name, masked, words_of
from resp.tap.meaning import payload_extents
from resp.tap.scan import Scanner

Chunk = tuple[bool, bytes]
"""Whether it was sent, and its bytes."""


class Talk:
    """A raw conversation with a real server, kept chunk by chunk."""

    def __init__(self, server: Any) -> None:
        self._socket = socket.create_connection((server.host, server.port))
        self._socket.settimeout(10)
        self.chunks: list[Chunk] = []
        self._scanner = Scanner()

    def say(self, *commands: Sequence[Any] | bytes, frames: int) -> None:
        """Send commands in one write, and read until so many replies and pushes have come."""
        data = b"".join(
            command if isinstance(command, bytes) else encode_command(*command)
            for command in commands
        )
        if data:
            self._socket.sendall(data)
            self.chunks.append((True, data))
        while frames > 0:
            received = self._socket.recv(65536)
            assert received, "the server hung up"
            self.chunks.append((False, received))
            frames -= len(self._scanner.feed(received))
        assert frames == 0

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def talk(server: Any) -> Iterator[Callable[[], Talk]]:
    talks = []

    def begin() -> Talk:
        talks.append(Talk(server))
        return talks[-1]

    yield begin
    for one in talks:
        one.close()


def read_back(chunks: Sequence[Chunk], cut: int = 0, **options: Any) -> list[Exchange]:
    """What a dialogue makes of chunks, cut into pieces of so many bytes."""
    dialogue = Dialogue(**options)
    found: list[Exchange] = []
    for time_ns, (sent, data) in enumerate(chunks):
        step = cut or len(data)
        for start in range(0, len(data), step):
            feed = dialogue.sent if sent else dialogue.received
            piece = data[start : start + step]
            shown, done = feed(piece, time_ns)
            assert len(shown) == len(piece)
            found += done
    return found + dialogue.end(len(chunks))


def told(exchanges: Sequence[Exchange]) -> list[tuple[str, str, bytes]]:
    """Kind, name and replies of each."""
    return [(one.kind, one.name, b"".join(r.data for r in one.replies)) for one in exchanges]


CUTS: Final = [0, 1, 7]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("cut", CUTS)
def test_a_pipeline_is_paired(talk: Callable[[], Talk], protocol: int, cut: int) -> None:
    one = talk()
    one.say(("HELLO", protocol), frames=1)
    one.say(*[("ECHO", f"n{number}" * number) for number in range(40)], frames=40)
    one.say(
        ("SET", "key\r\n*1", b"\r\n+OK\r\n$5"), ("GET", "key\r\n*1"), ("DEL", "key\r\n*1"), frames=3
    )
    found = read_back(one.chunks, cut)
    assert [exchange.kind for exchange in found] == ["reply"] * 44
    assert [exchange.number for exchange in found] == list(range(1, 45))
    for number, exchange in enumerate(found[1:41]):
        assert exchange.name == "ECHO"
        text = f"n{number}".encode() * number
        assert exchange.replies[0].data == b"$%d\r\n%b\r\n" % (len(text), text)
    assert [exchange.name for exchange in found[41:]] == ["SET", "GET", "DEL"]
    assert found[42].replies[0].data == b"$9\r\n\r\n+OK\r\n$5\r\n"
    assert sum(exchange.up for exchange in found) == sum(len(d) for sent, d in one.chunks if sent)
    assert sum(exchange.down for exchange in found) == sum(
        len(data) for sent, data in one.chunks if not sent
    )
    at = 0
    for exchange in found:
        assert exchange.request is not None
        assert exchange.request.at == at
        at += exchange.up


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("cut", CUTS)
def test_messages_take_no_reply(
    talk: Callable[[], Talk], fresh_name: str, protocol: int, cut: int
) -> None:
    one, other = talk(), talk()
    a, b = fresh_name + "a", fresh_name + "b"
    one.say(("HELLO", protocol), frames=1)
    one.say(("GET", a), ("SUBSCRIBE", a, b), ("PSUBSCRIBE", a + "*"), frames=4)
    other.say(("PUBLISH", a, "one"), frames=1)
    one.say(frames=2)  # a message, and a pmessage
    one.say(("PING",), ("SSUBSCRIBE", b), ("UNSUBSCRIBE", b), frames=3)
    other.say(("SPUBLISH", b, "two"), frames=1)
    one.say(frames=1)
    one.say(("UNSUBSCRIBE",), ("PUNSUBSCRIBE",), ("SUNSUBSCRIBE",), ("UNSUBSCRIBE",), frames=4)
    one.say(("ECHO", "three"), frames=1)
    found = read_back(one.chunks, cut)
    assert [(exchange.kind, exchange.name, len(exchange.replies)) for exchange in found] == [
        ("reply", "HELLO", 1),
        ("reply", "GET", 1),
        ("reply", "SUBSCRIBE", 2),
        ("reply", "PSUBSCRIBE", 1),
        ("push", "", 1),
        ("push", "", 1),
        ("reply", "PING", 1),
        ("reply", "SSUBSCRIBE", 1),
        ("reply", "UNSUBSCRIBE", 1),
        ("push", "", 1),
        ("reply", "UNSUBSCRIBE", 1),
        ("reply", "PUNSUBSCRIBE", 1),
        ("reply", "SUNSUBSCRIBE", 1),
        ("reply", "UNSUBSCRIBE", 1),
        ("reply", "ECHO", 1),
    ]
    assert found[-1].replies[0].data == b"$5\r\nthree\r\n"
    assert b"one" in found[4].replies[0].data


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("cut", CUTS)
def test_a_transaction_knows_what_it_answers(
    talk: Callable[[], Talk], fresh_name: str, protocol: int, cut: int
) -> None:
    one = talk()
    one.say(("HELLO", protocol), frames=1)
    commands = [("MULTI",), ("INCR", fresh_name), ("GET", fresh_name)]
    one.say(*commands, ("EXEC",), ("ECHO", "after"), frames=5)
    one.say(("MULTI",), ("NO SUCH COMMAND",), ("EXEC",), ("ECHO", "after"), frames=4)
    one.say(("MULTI",), ("GET", "x"), ("DISCARD",), ("EXEC",), ("ECHO", "after"), frames=5)
    one.say(("MULTI",), ("SUBSCRIBE", fresh_name, fresh_name + "b"), ("EXEC",), frames=4)
    one.say(("PING",), frames=1)
    found = read_back(one.chunks, cut)
    [first, second, third, _] = [exchange for exchange in found if exchange.name == "EXEC"]
    assert [command_name(frame.words or (b"",)) for frame in first.queued] == ["INCR", "GET"]
    assert first.replies[0].data == b"*2\r\n:1\r\n$1\r\n1\r\n"
    assert second.replies[0].data.startswith(b"-EXECABORT")
    assert second.queued == ()
    assert third.replies[0].data.startswith(b"-ERR EXEC without MULTI")
    echoes = [one.replies[0].data for one in found if one.name == "ECHO"]
    assert echoes == [b"$5\r\nafter\r\n"] * 3
    assert (found[-1].name, found[-1].kind) == ("PING", "reply")


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_transaction_that_was_given_up_answers_none_of_its_commands(
    talk: Callable[[], Talk], fresh_name: str, protocol: int
) -> None:
    one, other = talk(), talk()
    one.say(("HELLO", protocol), ("WATCH", fresh_name), frames=2)
    other.say(("SET", fresh_name, 1), frames=1)
    one.say(("MULTI",), ("GET", fresh_name), ("EXEC",), frames=3)
    last = read_back(one.chunks)[-1]
    assert last.replies[0].data in (b"*-1\r\n", b"_\r\n")
    assert last.queued == ()


@pytest.mark.parametrize("cut", CUTS)
def test_client_reply_leaves_commands_without_one(
    talk: Callable[[], Talk], fresh_name: str, cut: int
) -> None:
    one = talk()
    one.say(
        ("CLIENT", "REPLY", "SKIP"),
        ("ECHO", "skipped"),
        ("ECHO", "heard"),
        ("CLIENT", "REPLY", "OFF"),
        ("ECHO", "off"),
        ("CLIENT", "REPLY", "SKIP"),
        ("ECHO", "off"),
        ("CLIENT", "REPLY", "ON"),
        ("ECHO", "on"),
        ("CLIENT", "REPLY", "MAYBE"),
        ("CLIENT", "REPLY", "OFF"),
        ("RESET",),
        ("ECHO", "reset"),
        frames=6,
    )
    found = read_back(one.chunks, cut)
    silent = [exchange.number for exchange in found if exchange.kind == "silent"]
    assert silent == [1, 2, 4, 5, 6, 7, 11]
    replies = [(one.number, one.replies[0].data[:8]) for one in found if one.kind == "reply"]
    assert [number for number, _ in replies] == [3, 8, 9, 10, 12, 13]
    assert replies[0][1] == b"$5\r\nhear"
    assert replies[-1][1] == b"$5\r\nrese"


@pytest.mark.parametrize("cut", CUTS)
def test_lines_of_words_and_empty_commands(talk: Callable[[], Talk], cut: int) -> None:
    one = talk()
    one.say(b"PING\r\n", b"\r\n", b"ECHO 'a b'\n", b"*0\r\n", b"*-1\r\n", ("ECHO", ""), frames=3)
    found = read_back(one.chunks, cut)
    assert sorted(told(found)) == [
        ("reply", "ECHO", b"$0\r\n\r\n"),
        ("reply", "ECHO", b"$3\r\na b\r\n"),
        ("reply", "PING", b"+PONG\r\n"),
        *[("silent", "", b"")] * 3,
    ]
    assert [one.request.words for one in found if one.request and one.number == 3] == [
        (b"ECHO", b"a b")
    ]


@pytest.mark.parametrize("cut", CUTS)
def test_a_monitor_hears_without_asking(
    talk: Callable[[], Talk], fresh_name: str, cut: int
) -> None:
    one, other = talk(), talk()
    one.say(("MONITOR",), frames=1)
    other.say(("GET", fresh_name), ("GET", fresh_name), frames=2)
    one.say(frames=2)
    one.say(("RESET",), frames=1)
    one.say(("ECHO", "x"), frames=1)
    found = read_back(one.chunks, cut)
    heard = [exchange for exchange in found if exchange.kind == "push"]
    assert all(fresh_name.encode() in exchange.replies[0].data for exchange in heard)
    named = [exchange.name for exchange in found if exchange.kind == "reply"]
    assert named == ["MONITOR", "RESET", "ECHO"]


def test_what_was_not_answered_is_lost(talk: Callable[[], Talk], fresh_name: str) -> None:
    one = talk()
    one.say(("ECHO", "x"), frames=1)
    request = encode_command("BLPOP", fresh_name, 0)
    chunks = [*one.chunks, (True, request), (False, b"*2\r\n$3\r\nke"), (True, b"*2\r\n$4\r\nEC")]
    found = read_back(chunks)
    assert [(one.kind, one.name, one.error) for one in found] == [
        ("reply", "ECHO", ""),
        ("lost", "BLPOP", "the reply is not whole"),
        ("lost", "", "the request is not whole"),
    ]
    assert found[1].replies[0].data == b"*2\r\n$3\r\nke"


@pytest.mark.parametrize("cut", CUTS)
def test_a_request_that_is_no_resp_gets_its_error(talk: Callable[[], Talk], cut: int) -> None:
    one = talk()
    one.say(("ECHO", "x"), b"*1\r\n:4\r\n", frames=2)
    found = read_back(one.chunks, cut)
    assert [exchange.kind for exchange in found] == ["reply", "malformed"]
    assert found[1].replies[0].data.startswith(b"-ERR Protocol error")
    assert found[1].request is not None
    assert found[1].request.data.startswith(b"*1\r\n:")
    assert found[1].error


@pytest.mark.parametrize("cut", CUTS)
def test_a_reply_that_is_no_resp_ends_the_pairing(cut: int) -> None:
    ask = encode_command("GET", "k")
    chunks = [(True, ask * 3), (False, b"$1\r\nv\r\n?what\r\n$1\r\nv\r\n"), (True, ask)]
    found = read_back(chunks, cut)
    assert [exchange.kind for exchange in found] == ["reply", "malformed", "lost", "lost"]
    assert found[1].error == "an unknown type"


def test_replies_that_nobody_asked_for() -> None:
    found = read_back([(False, b"-ERR max number of clients reached\r\n")])
    assert told(found) == [("malformed", "", b"-ERR max number of clients reached\r\n")]
    assert "nobody" in found[0].error


@pytest.mark.parametrize("cut", CUTS)
def test_a_replica_is_not_looked_into(talk: Callable[[], Talk], cut: int) -> None:
    chunks = [
        (True, encode_command("PING") + encode_command("PSYNC", "?", -1)),
        (False, b"+PONG\r\n+FULLRESYNC 8 0\r\n$4\r\nREDI*1\r\n$4\r\nPING\r\n"),
        (True, encode_command("REPLCONF", "ACK", 0)),
    ]
    found = read_back(chunks, cut)
    assert [one.name for one in found if one.kind == "reply"] == ["PING", "PSYNC"]
    assert not [one for one in found if one.kind == "malformed"]


@pytest.mark.parametrize("cut", CUTS)
def test_sync_is_followed_by_a_file_wherever_it_begins(cut: int) -> None:
    chunks = [
        (True, encode_command("PING") + encode_command("SYNC")),
        (False, b"+PONG\r\n$4\r\nREDI*1\r\n$4\r\nPING\r\n"),
    ]
    found = read_back(chunks, cut)
    assert [(one.kind, one.name) for one in found[:2]] == [("reply", "PING"), ("push", "SYNC")]
    assert {one.kind for one in found[2:]} <= {"push"}
    assert sum(one.down for one in found) == len(chunks[1][1])


@pytest.mark.parametrize("cut", CUTS)
def test_a_replication_stream_unmasks_nothing_before_it(cut: int) -> None:
    answer = b"*2\r\n$11\r\nrequirepass\r\n$13\r\n" + SECRET + b"\r\n"
    chunks = [
        (True, encode_command("CONFIG", "GET", "requirepass") + encode_command("PSYNC", "?", -1)),
        (False, answer + b"+FULLRESYNC 8 0\r\n$4\r\nREDI"),
    ]
    _, down, found = shown(chunks, cut)
    assert down == chunks[1][1].replace(SECRET, b"*" * len(SECRET))
    assert {one.kind for one in found[2:]} == {"push"}
    assert sum(one.down for one in found) == len(down)


def test_attributes_belong_to_their_reply() -> None:
    ask = encode_command("GET", "k")
    noted = b"|1\r\n+ttl\r\n:1\r\n$1\r\nv\r\n"
    found = read_back([(True, ask * 2), (False, noted + b"_\r\n")], 1)
    assert told(found) == [("reply", "GET", noted), ("reply", "GET", b"_\r\n")]


def test_a_long_frame_keeps_its_head_and_its_size() -> None:
    ask = encode_command("SET", "k", b"v" * 5000)
    for cut in (0, 100):
        [one] = read_back([(True, ask), (False, b"+OK\r\n")], cut, keep=64)
        assert one.up == len(ask)
        assert one.request is not None
        assert one.request.data == ask[:64]
        assert one.name == "SET"


def test_names() -> None:
    assert command_name((b"get", b"x")) == "GET"
    assert command_name((b"client", b"setinfo")) == "CLIENT SETINFO"
    assert command_name((b"client",)) == "CLIENT"
    assert command_name((b"\x1b[2J",)) == "?"
    assert command_name((b"config", b"\xff")) == "CONFIG ?"


def test_masked_is_the_same_length() -> None:
    assert masked(b"abcdef", 10, [(8, 11), (13, 14), (15, 99)]) == b"*bc*e*"
    assert masked(b"abc", 0, []) == b"abc"


def test_words_of_what_is_there() -> None:
    assert words_of(b"*3\r\n$3\r\nSET\r\n$1\r\nk") == (b"SET", b"k")
    assert words_of(b'SET "a b" c\r\n') == (b"SET", b"a b", b"c")


# Secrets, in the chunks and in the exchanges.

SECRET: Final = b"correct-horse"


def shown(chunks: Sequence[Chunk], cut: int, **options: Any) -> tuple[bytes, bytes, list[Exchange]]:
    """What a dialogue shows of the two directions, and its exchanges."""
    dialogue = Dialogue(**options)
    out = {True: b"", False: b""}
    found = []
    for sent, data in chunks:
        step = cut or len(data)
        for start in range(0, len(data), step):
            feed = dialogue.sent if sent else dialogue.received
            piece, done = feed(data[start : start + step], 0)
            out[sent] += piece
            found += done
    return out[True], out[False], found + dialogue.end(0)


_SAID: Final[dict[str, bytes]] = {
    "auth": encode_command("AUTH", SECRET),
    "auth2": encode_command("AUTH", "user", SECRET),
    "hello": encode_command("HELLO", 3, "AUTH", "user", SECRET, "SETNAME", "me"),
    "setuser": encode_command("ACL", "SETUSER", "u", "on", b">" + SECRET, "~*"),
    "config": encode_command("CONFIG", "SET", "maxmemory", 0, "requirepass", SECRET),
    "migrate": encode_command("MIGRATE", "h", 1, "", 0, 10, "AUTH", SECRET, "KEYS", "a"),
    "line": b"AUTH " + SECRET + b"\r\n",
    "quoted line": b'"AUTH" "' + SECRET + b'"\r\n',
    "no RESP": b"*2\r\n+AUTH\r\n+" + SECRET + b"\r\n",
}


@pytest.mark.parametrize("cut", [0, 1, 2, 5])
@pytest.mark.parametrize("name", _SAID)
def test_no_secret_is_shown_whatever_the_cut(name: str, cut: int) -> None:
    data = encode_command("PING") + _SAID[name]
    up, _, found = shown([(True, data), (False, b"+PONG\r\n+OK\r\n")], cut)
    assert len(up) == len(data)
    assert up.startswith(encode_command("PING"))
    for size in (6, len(SECRET)):
        assert SECRET[:size] not in up
        assert SECRET[:size] not in repr(found).encode()
    assert found[0].name == "PING"


@pytest.mark.parametrize("name", _SAID)
def test_no_secret_is_shown_of_what_is_cut_off(name: str) -> None:
    data = _SAID[name]
    for end in range(1, len(data)):
        up, _, found = shown([(True, data[:end])], 0)
        for text in (up, repr(found).encode()):
            assert SECRET[:6] not in text


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("protocol", [2, 3])
def test_no_secret_is_shown_of_replies(password_server: Any, protocol: int, cut: int) -> None:
    talk = Talk(password_server)
    password = password_server.password.encode()
    talk.say(("HELLO", protocol, "AUTH", "default", password), frames=1)
    talk.say(("CONFIG", "GET", "requirepass"), ("CONFIG", "GET", "*"), ("PING",), frames=3)
    talk.say(("MULTI",), ("CONFIG", "GET", "requirepass"), ("EXEC",), ("PING",), frames=4)
    talk.say(("ACL", "GENPASS"), ("ACL", "LIST"), ("ACL", "GETUSER", "worker"), frames=3)
    talk.say(("NO SUCH COMMAND", SECRET), ("ACL", "SETUSER", "x", b"<" + SECRET), frames=2)
    talk.close()
    up, down, found = shown(talk.chunks, cut)
    received = b"".join(data for sent, data in talk.chunks if not sent)
    assert password in received
    assert len(down) == len(received)
    for text in (up, down, repr(found).encode()):
        assert password not in text
    assert SECRET not in down
    assert [one.kind for one in found] == ["reply"] * 13
    generated = received[received.index(b"$64\r\n") + 5 :][:64]
    assert generated not in down
    assert b"maxmemory" in down


# Whatever comes.

_WORDS: Final = st.sampled_from(
    b"GET MULTI EXEC SUBSCRIBE UNSUBSCRIBE CLIENT REPLY OFF ON SKIP AUTH ACL SETUSER HELLO CONFIG "
    b"SET MONITOR PSYNC SYNC RESET MIGRATE EVALSHA k >secret".split()
) | st.sampled_from([b"", b"\r\n"])
_COMMANDS: Final = st.lists(_WORDS, min_size=1, max_size=5).map(
    lambda words: encode_command(*words)
)
_REPLIES: Final = st.sampled_from(
    [
        b"+OK\r\n",
        b"+QUEUED\r\n",
        b"-ERR x\r\n",
        b"$2\r\nhi\r\n",
        b":1\r\n",
        b"_\r\n",
        b"*0\r\n",
        b"*2\r\n:1\r\n$1\r\nx\r\n",
        b"*3\r\n$7\r\nmessage\r\n$1\r\nk\r\n$1\r\nv\r\n",
        b"*3\r\n$9\r\nsubscribe\r\n$1\r\nk\r\n:1\r\n",
        b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
        b"|1\r\n+a\r\n:1\r\n",
        b"$?\r\n;1\r\nx\r\n;0\r\n",
        b"%1\r\n+a\r\n+b\r\n",
        b"+1.5 [0 x] y\r\n",
    ]
)
_STREAM: Final = st.lists(
    st.tuples(st.just(True), _COMMANDS | st.binary(max_size=12))
    | st.tuples(st.just(False), _REPLIES | st.binary(max_size=12)),
    max_size=20,
)


@settings(max_examples=300)
@given(_STREAM, st.integers(1, 9))
def test_nothing_harms_a_dialogue(chunks: list[Chunk], cut: int) -> None:
    chunks = [chunk for chunk in chunks if chunk[1]]
    up, down, found = shown(chunks, 0)
    assert len(up) == sum(len(data) for sent, data in chunks if sent)
    assert len(down) == sum(len(data) for sent, data in chunks if not sent)
    assert sum(one.up for one in found) <= len(up)
    assert sum(one.down for one in found) <= len(down)
    in_pieces = shown(chunks, cut)
    if not any(one.kind == "malformed" for one in found):
        # In what is no RESP, more is masked the more of it came at once.
        assert in_pieces[:2] == (up, down)
    named = [(one.kind, one.name, one.replies[:1]) for one in found if one.kind == "reply"]
    assert [
        (one.kind, one.name, one.replies[:1]) for one in in_pieces[2] if one.kind == "reply"
    ] == named


def replied(*asked: Sequence[Any], reply: bytes) -> list[Chunk]:
    return [(True, b"".join(encode_command(*words) for words in asked)), (False, reply)]


def bulk(*words: bytes) -> bytes:
    return b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


_LONG: Final = b"x" * 3000
_ALSO_SAID: Final[dict[str, list[Chunk]]] = {
    "a line with tabs": [(True, b"AUTH\t" + SECRET + b"\r\n")],
    "a word of two parts": [(True, b"AUTH " + SECRET + b'"bar baz"\r\n')],
    "a name with an escape": [(True, b'"\\x41UTH" ' + SECRET + b"\r\n")],
    "a name of two parts": [(True, b"A\"UT\"'H' " + SECRET + b"\r\n")],
    "an argument with an escape": [(True, b'ACL SETUSER b "\\x3e' + SECRET + b'"\r\n')],
    "a setting with an escape": [(True, b'CONFIG SET "require\\x70ass" ' + SECRET + b"\r\n")],
    "a quote that is not closed": [(True, b'AUTH "' + SECRET + b" x\r\n")],
    "a quote that is closed within": [(True, b'AUTH "a' + SECRET + b'"b x\r\n')],
    "all in a quote that is not closed": [(True, b'"AUTH ' + SECRET + b"\r\n")],
    "a line with a NUL": [(True, b"AUTH " + SECRET + b"\0 x\r\n")],
    "headers without line feeds": [(True, b"*2\rX$4\rXAUTH\rX$13\rX" + SECRET + b"\r\n")],
    "no RESP behind a name": [
        (True, b"*4\r\n$6\r\nCONFIG\r\n$3\r\nSETxx$8\r\nm.secret\r\n$13\r\n" + SECRET + b"\r\n")
    ],
    "modules": replied(
        ("MODULE", "LIST"), reply=b"*1\r\n*2\r\n$4\r\nargs\r\n*2\r\n" + bulk(b"password", SECRET)
    ),
    "modules of HELLO": replied(
        ("HELLO", 3),
        reply=b"%1\r\n$7\r\nmodules\r\n*1\r\n%1\r\n$4\r\nargs\r\n*2\r\n"
        + bulk(b"password", SECRET),
    ),
    "a long error": replied(
        ("NOSUCH", 1),
        reply=b"-ERR " + b"y" * 5000 + b", with args beginning with: '" + SECRET + b"'\r\n",
    ),
    "an error that is a blob": replied(
        ("NOSUCH", 1), reply=b"!45\r\nERR with args beginning with: '" + SECRET + b"'\r\n"
    ),
    "an error with attributes": replied(
        ("NOSUCH", 1),
        reply=b"|1\r\n+a\r\n:1\r\n-ERR with args beginning with: '" + SECRET + b"'\r\n",
    ),
    "a reply that is no RESP": replied(
        ("CONFIG", "GET", "*"), reply=b"*2\r\n$11\r\nrequirepass\r\n$13\r\n" + SECRET + b"xx\r\n"
    ),
    "behind a reply that is no RESP": replied(
        ("PING",), ("CONFIG", "GET", "*"), reply=b"@\r\n*2\r\n" + bulk(b"requirepass", SECRET)
    ),
}
_SAID_AT_LENGTH: Final[dict[str, list[Chunk]]] = {
    "rules": [(True, encode_command("ACL", "SETUSER", "u", *["+get"] * 500, b">" + SECRET))],
    "hello": [(True, encode_command("HELLO", 3, "SETNAME", _LONG, "AUTH", "u", SECRET))],
    "user": [(True, encode_command("AUTH", _LONG, SECRET))],
    "setting": [(True, encode_command("CONFIG", "SET", "x", _LONG, "requirepass", SECRET))],
    "no RESP": [
        (True, b"*2\r\n$3\r\nGET\r\n$3000\r\n" + _LONG + b"xx" + encode_command("AUTH", SECRET))
    ],
    "users": replied(
        ("ACL", "LIST"), reply=b"*200\r\n" + 200 * bulk(b"user a on #" + SECRET + b" ~* +@all")
    ),
    "exec": replied(
        ("MULTI",),
        ("GET", "x"),
        ("CONFIG", "GET", "*"),
        ("EXEC",),
        reply=b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n"
        + bulk(_LONG)
        + b"*2\r\n"
        + bulk(b"requirepass", SECRET),
    ),
}


@pytest.mark.parametrize("cut", [0, 1, 2, 5, 700])
@pytest.mark.parametrize(
    ("chunks", "keep"),
    [
        *[(chunks, 1 << 20) for chunks in (*_ALSO_SAID.values(), *_SAID_AT_LENGTH.values())],
        *[(chunks, 2000) for chunks in _SAID_AT_LENGTH.values()],
    ],
    ids=[*_ALSO_SAID, *_SAID_AT_LENGTH, *(f"{name}, not kept" for name in _SAID_AT_LENGTH)],
)
def test_no_secret_is_shown_of_odd_and_long_ones(chunks: list[Chunk], keep: int, cut: int) -> None:
    up, down, found = shown(chunks, cut, keep=keep)
    assert len(up) == sum(len(data) for sent, data in chunks if sent)
    for text in (up, down, repr(found).encode()):
        assert SECRET[:6] not in text


@pytest.mark.parametrize("cut", [0, 1, 5])
def test_what_is_no_secret_is_shown(cut: int) -> None:
    chunks = [
        (True, encode_command("GET", "AUTH") + encode_command("SET", "x", "\r\nAUTH\r\nx")),
        (True, b'SET "auth x" "pass y"\r\nGET auth\r\n' + encode_command("CONFIG", "GET", "a")),
        (True, encode_command("ACL", "SETUSER", ">u", "on", "~k")),
    ]
    assert shown(chunks, cut)[0] == b"".join(data for _, data in chunks)


@pytest.mark.parametrize("cut", [0, 1, 5, 700])
def test_payloads_that_are_not_kept_are_masked(cut: int) -> None:
    def conceal(exchange: Exchange) -> list[tuple[int, int]]:
        return []  # sees none of them

    chunks = replied(("MSET", "a", _LONG, "b", SECRET), ("LRANGE", "a", 0, -1), reply=b"+OK\r\n")
    chunks.append((False, b"*2\r\n" + bulk(_LONG, SECRET)))
    up, down, _ = shown(chunks, cut, keep=2000, conceal=conceal)
    assert SECRET not in up + down
    assert b"LRANGE" in up


@pytest.mark.parametrize("said", [b"SET k ", b"'SET' k ", b"NOSUCH ", b"LPUSH k a "])
def test_payloads_in_a_line_are_masked_wherever_it_is_cut(said: bytes) -> None:
    line = said + SECRET + b"\r\n"
    for cut in range(1, len(line)):
        pieces = [(True, line[:cut]), (True, line[cut:])]
        up, _, found = shown(pieces, 0, conceal=payload_extents)
        assert up.startswith(said.split()[0])
        assert up.endswith(b"\r\n")
        _, _, torn = shown(pieces[:1], 0, conceal=payload_extents)
        for size in (6, len(SECRET)):
            for part in (SECRET[:size], SECRET[-size:]):
                assert part not in up
                assert part not in repr(found + torn).encode()


@pytest.mark.parametrize("cut", [0, 1, 5])
@pytest.mark.parametrize(
    ("password", "error"),
    [
        ("password", b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
        (
            "configuration",
            b"-ERR AUTH <password> called without any password configured for the default user. "
            b"Are you sure your configuration is correct?\r\n",
        ),
    ],
)
def test_a_mask_tells_no_password_that_is_a_word_of_an_error(
    password: str, error: bytes, cut: int
) -> None:
    assert shown(replied(("AUTH", password), reply=error), cut)[1] == error


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("protocol", [2, 3])
def test_client_reply_while_subscribed(
    talk: Callable[[], Talk], fresh_name: str, protocol: int, cut: int
) -> None:
    one = talk()
    one.say(("HELLO", protocol), ("SUBSCRIBE", fresh_name), frames=2)
    one.say(("CLIENT", "REPLY", "OFF"), ("ECHO", 1), frames=2 if protocol == 2 else 0)
    one.say(("RESET",), frames=1)
    one.say(("ECHO", "end"), frames=1)
    found = read_back(one.chunks, cut)
    assert not [one for one in found if one.kind in ("lost", "malformed")]
    echoes = [one.replies[0].data for one in found if one.name == "ECHO" and one.replies]
    assert echoes[-1] == b"$3\r\nend\r\n"
    assert ("silent" in {one.kind for one in found}) is (protocol == 3)


@pytest.mark.parametrize("cut", [0, 1, 5])
def test_a_line_that_is_not_kept_as_a_whole(cut: int) -> None:
    chunks = [(True, b"AUTH " + SECRET + b"\r\nECHO a b c d e f\r\n"), (False, b"+OK\r\n")]
    up, _, found = shown(chunks, cut, keep=7)
    assert SECRET[:6] not in up + repr(found).encode()


@pytest.mark.parametrize("cut", CUTS)
def test_who_monitors_is_not_told_so_again(talk: Callable[[], Talk], cut: int) -> None:
    one = talk()
    one.say(("MONITOR",), ("MONITOR",), frames=1)
    one.say(("RESET",), frames=1)
    one.say(("ECHO", "end"), frames=1)
    found = [one for one in read_back(one.chunks, cut) if one.kind != "push"]
    assert [(one.name, one.kind) for one in sorted(found, key=lambda one: one.number)] == [
        ("MONITOR", "reply"),
        ("MONITOR", "silent"),
        ("RESET", "reply"),
        ("ECHO", "reply"),
    ]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("protocol", [2, 3])
def test_client_reply_and_what_stands_beside_it(
    talk: Callable[[], Talk], fresh_name: str, protocol: int, cut: int
) -> None:
    one = talk()
    # An empty command uses SKIP up.
    one.say(("CLIENT", "REPLY", "SKIP"), b"\r\n", ("ECHO", "heard"), frames=1)
    one.say(("CLIENT", "REPLY", "SKIP"), ("RESET",), ("ECHO", "reset"), frames=1)
    # Within a transaction it is refused, or queued.
    one.say(("MULTI",), ("CLIENT", "REPLY", "OFF"), ("DISCARD",), ("ECHO", "on"), frames=4)
    # Channels are confirmed all the same.
    one.say(("HELLO", protocol), ("CLIENT", "REPLY", "SKIP"), frames=1)
    one.say(("SUBSCRIBE", fresh_name, f"{fresh_name}2"), ("UNSUBSCRIBE",), frames=4)
    one.say(("ECHO", "end"), frames=1)
    found = read_back(one.chunks, cut)
    echoes = [one.replies[0].data for one in found if one.name == "ECHO"]
    assert echoes == [b"$5\r\nheard\r\n", b"$5\r\nreset\r\n", b"$2\r\non\r\n", b"$3\r\nend\r\n"]
    assert not [one for one in found if one.kind in ("lost", "malformed", "push")]
    assert [len(one.replies) for one in found if one.name.endswith("SUBSCRIBE")] == [2, 2]


@pytest.mark.parametrize("conceal", [None, payload_extents])
def test_a_masked_line_keeps_its_end_wherever_it_is_cut(conceal: Any) -> None:
    error = b"-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' \r\n"
    for cut in range(1, len(error)):
        dialogue = Dialogue(conceal=conceal)
        dialogue.sent(encode_command("NOSUCH", "a", "b"), 0)
        shown = [dialogue.received(part, 0)[0] for part in (error[:cut], error[cut:])]
        assert b"".join(shown)[-2:] == b"\r\n", cut
        assert b"'a'" not in b"".join(shown)


@pytest.mark.parametrize("conceal", [None, payload_extents])
def test_a_blob_that_is_an_error_is_masked_wherever_it_is_cut(conceal: Any) -> None:
    told = b"ERR unknown command 'NOSUCH', with args beginning with: '" + SECRET + b"' "
    error = b"!%d\r\n%b\r\n" % (len(told), told)
    for cut in range(1, len(error)):
        chunks = [(True, encode_command("NOSUCH", SECRET)), (False, error[:cut])]
        for heard in (chunks, [*chunks, (False, error[cut:])]):
            _, down, found = shown(heard, 0, conceal=conceal)
            assert down.startswith(error[: min(cut, 20)])
            for part in (SECRET[:6], SECRET[-6:]):
                assert part not in down
                assert part not in repr([one.replies for one in found]).encode()


def test_payloads_that_monitor_tells_are_masked_wherever_it_is_cut() -> None:
    told = b'+1.5 [0 127.0.0.1:1] "SET" "k" "' + SECRET + b'"\r\n'
    for cut in range(1, len(told)):
        chunks = [(True, encode_command("MONITOR")), (False, b"+OK\r\n" + told[:cut])]
        for heard in (chunks, [*chunks, (False, told[cut:])]):
            _, down, found = shown(heard, 0, conceal=payload_extents)
            assert down.startswith(b"+OK\r\n" + told[: min(cut, 21)])
            assert down.endswith(b"\r\n") or heard is chunks
            for part in (SECRET[:6], SECRET[-6:]):
                assert part not in down
                assert part not in repr(found).encode()

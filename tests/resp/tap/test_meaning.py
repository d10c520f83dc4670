"""Meaning: each token of what a real server and its client say gets the right role and label."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emq.lens import lens
from emq.scripts import CLAIM, COMPLETE_AND_CLAIM, ENQUEUE, ENQUEUE_MANY, Transition
from resp import Script, encode_command
from resp.tap import lens as lens_module
from resp.tap.dialogue import Dialogue, Exchange, Frame, words_of
from resp.tap.frames import Node
from resp.tap.meaning import MAX_SCRIPTS, Scripts, annotate, payload_extents, read_names

_ID: Final = "JOB0NgWEfqGTAW"


def converse(server: Any, *commands: Sequence[Any], protocol: int = 2) -> list[Exchange]:
    """What a real server answers, paired; without the HELLO."""
    dialogue = Dialogue()
    found: list[Exchange] = []
    with socket.create_connection((server.host, server.port)) as connection:
        for command in (("HELLO", protocol), *commands):
            data = encode_command(*command)
            connection.sendall(data)
            found += dialogue.sent(data, time.monotonic_ns())[1]
            while dialogue.owed:
                found += dialogue.received(connection.recv(65536), time.monotonic_ns())[1]
    return found[1:]


def _flat(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from _flat(node.items)


def told(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """Role and label of all but framing."""
    return [(node.role, node.label) for node in _flat(nodes) if node.role != "framing"]


def hidden(exchange: Exchange, scripts: Scripts | None = None) -> list[bytes]:
    """The payload in the newest frame."""
    frame = exchange.replies[-1] if exchange.replies else exchange.request
    assert frame is not None
    extents = payload_extents(exchange, scripts=scripts, lenses=[lens])
    return [frame.data[start - frame.at : end - frame.at] for start, end in extents]


def asked(*words: Any) -> Exchange:
    """An exchange of a command alone."""
    data = encode_command(*words)
    return Exchange(1, 1, "lost", Frame(0, 0, len(data), data, words_of(data)), ())


@pytest.fixture
def scripts() -> Scripts:
    return Scripts([lens])


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_scripts_names_come_from_its_header(server: Any, fresh_name: str, protocol: int) -> None:
    base = f"emq:{{{fresh_name}}}:"
    claim, enqueue = CLAIM.script, ENQUEUE.script
    learned = Scripts()
    found = converse(
        server,
        ("SCRIPT", "LOAD", enqueue.source),
        ("SCRIPT", "LOAD", claim.source),
        ("EVALSHA", enqueue.sha, 1, f"{base}job:{_ID}", "cargo", "result_ttl", 5),
        ("EVALSHA", claim.sha, 1, base, 500),
        ("EVALSHA", claim.sha.upper(), 1, base, 500),
        protocol=protocol,
    )
    for exchange in found:
        learned.learn(exchange)
    load, _, put, take, nothing = (annotate(exchange, learned) for exchange in found)
    assert told(load.request)[-1][0] == "script"
    assert told(load.replies[0]) == [("digest", "digest = enqueue")]
    assert told(put.request) == [
        ("command", "command"),
        ("digest", "digest = enqueue"),
        ("argument", "numkeys"),
        ("key", "KEYS[1] row"),
        ("payload", "ARGV[1] payload"),
        ("argument", "ARGV[2] wishes[1]"),
        ("argument", "ARGV[3] wishes[2]"),
    ]
    assert told(put.replies[0]) == [("number", "")]
    assert told(take.request)[3:] == [("key", "KEYS[1] base"), ("argument", "ARGV[1] lease_ms")]
    reply = told(take.replies[0])
    assert [label for _, label in reply][:2] == ["id", "payload"]
    assert [role for role, _ in reply][:3] == ["argument", "payload", "number"]
    assert told(nothing.request)[1] == ("digest", "digest = claim")
    assert [role for role, _ in told(nothing.replies[0])] == ["null"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_transaction_is_read_as_its_commands(server: Any, fresh_name: str, protocol: int) -> None:
    *_, last = converse(
        server,
        ("MULTI",),
        ("SET", fresh_name, "cargo"),
        ("GET", fresh_name),
        ("INCR", fresh_name),
        ("EXEC",),
        protocol=protocol,
    )
    [root] = annotate(last).replies[0]
    assert [(item.role, item.label) for item in root.items] == [
        ("status", "SET"),
        ("payload", "GET"),
        ("error", "INCR"),
    ]


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_are_read_by_their_command(server: Any, fresh_name: str, protocol: int) -> None:
    found = converse(
        server,
        ("HSET", fresh_name, "f", "cargo"),
        ("HGETALL", fresh_name),
        ("KEYS", fresh_name),
        ("SCRIPT", "LOAD", "return 1"),
        ("EVALSHA", "0" * 40, 0),
        ("GET", fresh_name),
        ("DEL", fresh_name),
        protocol=protocol,
    )
    replies = [told(annotate(exchange).replies[0]) for exchange in found]
    assert [role for role, _ in replies[1]][-1] == "payload"
    assert replies[2][0][0] == "key"
    assert replies[3][0][0] == "digest"
    assert replies[4][0][0] == "error"
    assert replies[5][0][0] == "error"
    assert replies[6][0][0] == "number"


def test_a_push_says_its_channel_and_its_payload() -> None:
    data = b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\ncargo\r\n"
    push = Exchange(1, 1, "push", None, (Frame(0, 0, len(data), data),))
    roles = [role for role, _ in told(annotate(push).replies[0])]
    assert roles[-1] == "payload"
    assert hidden(push) == [b"cargo"]


def test_unknown_scripts_and_commands_are_told_as_such() -> None:
    unknown = told(annotate(asked("EVALSHA", "ab" * 20, 1, "k", "a"), Scripts()).request)
    assert unknown[1:] == [
        ("digest", "digest, unknown script"),
        ("argument", "numkeys"),
        ("key", "KEYS[1]"),
        ("argument", "ARGV[1]"),
    ]
    assert [role for role, _ in told(annotate(asked("NO.SUCH", "a", "b")).request)] == [
        "command",
        "argument",
        "argument",
    ]


def test_names_in_other_styles() -> None:
    known = read_names(
        b"--[[\n  Adds a job\n    Input:\n      KEYS[1] 'wait',\n      KEYS[2] \"meta\"\n"
        b"      ARGV[1] msgpacked arguments array\n      ARGV[2] job data\n]]\nreturn 1"
    )
    assert [key.name for key in known.keys] == ["wait", "meta"]
    assert known.args[0].name.startswith("msgpacked")
    assert known.args[1].payload
    assert read_names(b"return KEYS[1]", sha="abcdef" * 7).name == "script abcdefab"
    hostile = read_names(b"-- \x1b[2J: x\n-- KEYS[1] \xe2\x80\xaename hash x\n-- KEYS[999999] a\n")
    assert all(name.isprintable() for name in (hostile.name, *(k.name for k in hostile.keys)))


def test_a_list_is_told_part_by_part(scripts: Scripts) -> None:
    job = f"emq:{{q}}:job:{_ID}"
    items = (_ID, "cargo", 2, "due", "+5", _ID, "5", 0)
    many = asked("EVALSHA", ENQUEUE_MANY.script.sha, 1, "emq:{q}:", *items)
    assert told(annotate(many, scripts).request)[4:] == [
        ("argument", "ARGV[1] items[1].id"),
        ("payload", "ARGV[2] items[1].payload"),
        ("argument", "ARGV[3] items[1].count"),
        ("argument", "ARGV[4] items[1]"),
        ("argument", "ARGV[5] items[1]"),
        ("argument", "ARGV[6] items[2].id"),
        ("payload", "ARGV[7] items[2].payload"),
        ("argument", "ARGV[8] items[2].count"),
    ]
    fused = asked("EVALSHA", COMPLETE_AND_CLAIM.script.sha, 1, job, 1, 500, 0, "cargo")
    assert told(annotate(fused, scripts).request)[-2:] == [
        ("argument", "ARGV[3] kept[1]"),
        ("payload", "ARGV[4] kept[2]"),
    ]
    lying = asked("EVALSHA", ENQUEUE_MANY.script.sha, 1, "emq:{q}:", _ID, "c", "9" * 15, "x")
    assert told(annotate(lying, scripts).request)[-1] == ("argument", "ARGV[4] items[1]")


def test_a_lens_that_fails_harms_no_view(monkeypatch: pytest.MonkeyPatch) -> None:
    def scripts() -> list[Script]:
        raise RuntimeError("broken")

    monkeypatch.setattr(lens_module, "_failures", [])
    registry = Scripts([lens._replace(name="bad", scripts=scripts), lens])
    known = registry.get(CLAIM.script.sha)
    assert known is not None
    assert known.name == "claim"
    assert lens_module.failures() == ["'bad' has no scripts: RuntimeError: broken"]


def test_files_give_names(tmp_path: Path) -> None:
    (tmp_path / "move-11.lua").write_text("-- KEYS[1] 'wait'\nreturn 1")
    (tmp_path / "b.lua").write_text("-- named: so\n")
    registry = Scripts()
    assert registry.files(tmp_path) == 2
    assert registry.files(tmp_path / "b.lua") == 1
    assert registry.named("move") is not None
    assert registry.named("named") is not None
    with pytest.raises(OSError, match="none"):
        registry.files(tmp_path / "none.lua")


def test_what_is_learned_is_bounded() -> None:
    registry = Scripts()
    for number in range(MAX_SCRIPTS + 50):
        registry.learn(asked("EVAL", f"return {number}", 0))
    assert len(registry) == MAX_SCRIPTS


# Payload.


def test_payload_of_requests(scripts: Scripts) -> None:
    assert hidden(asked("SET", "k", "cargo", "EX", 5)) == [b"cargo"]
    assert hidden(asked("GET", "k")) == []
    assert hidden(asked("NO.SUCH", "a", "b")) == [b"a", b"b"]
    job = f"emq:{{q}}:job:{_ID}"
    assert hidden(asked("EVALSHA", ENQUEUE.script.sha, 1, job, "cargo"), scripts) == [b"cargo"]
    assert hidden(asked("EVALSHA", "0" * 40, 1, "k", "cargo"), scripts) == [b"cargo"]
    many = asked("EVALSHA", ENQUEUE_MANY.script.sha, 1, "emq:{q}:", _ID, "cargo", 0)
    assert b"cargo" in hidden(many, scripts)
    assert _ID.encode() not in hidden(many, scripts)


def test_payload_of_replies(server: Any, fresh_name: str, scripts: Scripts) -> None:
    base = f"emq:{{{fresh_name}}}:"
    found = converse(
        server,
        ("EVAL", ENQUEUE.script.source, 1, f"{base}job:{_ID}", "cargo"),
        ("EVAL", CLAIM.script.source, 1, base, 500),
        ("SET", fresh_name, "cargo"),
        ("GET", fresh_name),
        ("INFO", "server"),
        ("CONFIG", "GET", "maxmemory"),
    )
    replies = [hidden(exchange, scripts) for exchange in found]
    assert replies[1] == [b"cargo"]
    assert replies[2] == []
    assert replies[3] == [b"cargo"]
    assert replies[4] == []
    assert replies[5] == []


def test_payload_that_is_still_to_come_is_told_to_its_end() -> None:
    whole = encode_command("SET", "k", "c" * 100)
    data = whole[:-90]
    part = Exchange(1, 1, "lost", Frame(0, 0, len(data), data), ())
    start = whole.index(b"ccc")
    assert payload_extents(part, lenses=[]) == [(start, start + 100)]


# Whatever comes.

_PIECES: Final = st.sampled_from(
    [
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n",
        b"PING\r\n",
        b"%1\r\n+a\r\n",
        b"$?\r\n;1\r\nx\r\n;0\r\n",
        b"*?\r\n",
        b".\r\n",
        b"|1\r\n+a\r\n+b\r\n",
        b">2\r\n+x\r\n:1\r\n",
        b"$5\r\nab",
        b"-ERR unknown command 'x', with args beginning with: 'y'\r\n",
        *b"*0 *-1 $-1 _".split(),
    ]
)
_BYTES: Final = st.binary(max_size=40) | st.lists(_PIECES, max_size=6).map(b"".join)
_WORD: Final = st.binary(max_size=6) | st.sampled_from(
    [
        *b"EVALSHA EVAL SORT XREAD STREAMS MIGRATE 1 99999999999 EXEC SUBSCRIBE".split(),
        *b"CONFIG GET HELLO ZUNION KEYS".split(),
        CLAIM.script.sha.encode(),
    ]
)


@settings(max_examples=300)
@given(
    st.lists(_WORD, min_size=1, max_size=8).map(lambda words: encode_command(*words)) | _BYTES,
    st.lists(_BYTES, max_size=2),
    st.lists(st.lists(_WORD, min_size=1, max_size=4), max_size=3),
    st.integers(0, 60),
)
def test_nothing_is_too_odd_for_it(
    request: bytes, replies: list[bytes], queued: list[list[bytes]], cut: int
) -> None:
    registry = Scripts([lens])
    request = request[: len(request) - cut] if cut < len(request) else request
    exchange = Exchange(
        1,
        1,
        "reply",
        Frame(5, 0, len(request), request, words_of(request)),
        tuple(Frame(9, 0, len(reply), reply) for reply in replies),
        "",
        tuple(Frame(0, 0, 0, b"", tuple(words)) for words in queued),
    )
    registry.learn(exchange)
    found = annotate(exchange, registry)
    assert len(found.replies) == len(replies)
    for node in _flat([*found.request, *(node for reply in found.replies for node in reply)]):
        assert node.role, node
        assert node.label.isprintable()
    frame = exchange.replies[-1] if replies else exchange.request
    assert frame is not None
    for start, end in payload_extents(exchange, scripts=registry, lenses=[lens]):
        assert frame.at <= start < end


def test_all_scripts_of_the_bus_have_names_for_all_they_take(scripts: Scripts) -> None:
    from emq.scripts import names

    for name in names():
        transition = Transition(name)
        known = scripts.get(transition.script.sha)
        assert known is not None
        assert known.name == name
        assert [key.name for key in known.keys] == [key.name for key in transition.header.keys]
        assert [arg.name for arg in known.args] == [arg.name for arg in transition.header.args]

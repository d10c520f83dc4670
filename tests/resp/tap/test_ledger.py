"""The ledger: sums that are exact whatever crossed, waits, and what one subject cost."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resp import Script, Tap, connect, encode_command
from resp.tap import ledger as module
from resp.tap.dialogue import Dialogue, Exchange
from resp.tap.frames import parse, spans
from resp.tap.ledger import KINDS, NONE, OTHERS, Cost, Kind, Ledger, Step
from resp.tap.lens import Lens
from resp.tap.style import COLORS
from tests.conftest import Server

Chunk: TypeAlias = tuple[str, bytes]  # "up" or "down", and the bytes

_MOVE: Final = Script(
    "move",
    """-- move: take a thing from one place to another.
--
-- KEYS[1] row    hash   where it is
-- ARGV[1] token  int    who says so
-- ARGV[2] note   bytes  why
--
-- RETURNS
--   1  it is there

return 1
""",
)


def _subject(data: bytes) -> str | None:
    name = data.removeprefix(b"row:")
    return name.decode() if len(name) == 2 and name[:1] == b"J" else None


_LENS: Final = Lens("test", scripts=lambda: [_MOVE], subject=_subject, subjects="jobs")


def _say(*words: bytes | str | int) -> Chunk:
    return "up", encode_command(*words)


def _talk(chunks: Iterable[Chunk], connection: int = 1, *, keep: int = 1 << 20) -> list[Exchange]:
    """What these chunks are, one a nanosecond."""
    dialogue = Dialogue(connection, keep=keep)
    found: list[Exchange] = []
    now = 0
    for now, (way, data) in enumerate(chunks, 1):
        found += (dialogue.sent if way == "up" else dialogue.received)(data, now)[1]
    return [*found, *dialogue.end(now + 1)]


def _ledger(chunks: Iterable[Chunk], *, most: int = 100, keep: int = 1 << 20) -> Ledger:
    ledger = Ledger(lenses=[_LENS], most=most)
    for exchange in _talk(chunks, keep=keep):
        ledger.add(exchange)
    return ledger


def _kinds(ledger: Ledger) -> dict[str, tuple[int, int]]:
    return {kind: (row.up, row.down) for kind, row in ledger.by_kind.items() if any(row)}


# Sums.


def _check_sums(ledger: Ledger, exchanges: Sequence[Exchange]) -> None:
    up = sum(exchange.up for exchange in exchanges)
    down = sum(exchange.down for exchange in exchanges)
    assert ledger.total[:4] == (len(exchanges), ledger.total.round_trips, up, down)
    for table in (ledger.by_kind, ledger.by_command, ledger.by_script, ledger.by_subject):
        assert sum(row.up for row in table.values()) == up
        assert sum(row.down for row in table.values()) == down
        assert all(row.up >= 0 and row.down >= 0 for row in table.values())
    for costs in (ledger.by_command, ledger.by_script):
        assert sum(row.exchanges for row in costs.values()) == len(exchanges)
    for costs in (ledger.by_command, ledger.by_script, ledger.by_subject):
        for row in costs.values():
            assert row.round_trips <= min(row.exchanges, ledger.total.round_trips)
    for name, row in ledger.by_subject.items():
        life = ledger.subject(name)
        assert life[:4] == row[:4]
        if name not in (NONE, OTHERS):
            assert sum(step.up for step in life.steps) == row.up
            assert sum(step.down for step in life.steps) == row.down
            assert sum(step.exchanges for step in life.steps) == row.exchanges


_words: Final = st.one_of(
    st.sampled_from([b"J1", b"J2", b"J3", b"row:J1", b"row:J2", b"row:x", b"2", b"payload"]),
    st.binary(max_size=12),
)
_commands: Final = st.one_of(
    st.lists(_words, min_size=1, max_size=9),
    st.lists(_words, max_size=6).map(lambda words: [b"EVALSHA", _MOVE.sha.encode(), b"1", *words]),
    st.lists(_words, max_size=6).map(lambda words: [b"EVAL", _MOVE.source, b"1", *words]),
    st.sampled_from(
        [[b"MULTI"], [b"EXEC"], [b"GET", b"row:J1"], [b"SCRIPT", b"LOAD", _MOVE.source],
         [b"SUBSCRIBE", b"J1", b"b"], [b"CLIENT", b"REPLY", b"SKIP"], [b"AUTH", b"J1"]]
    ),
)  # fmt: skip
_replies: Final = st.recursive(
    st.one_of(
        _words.map(lambda word: b"$%d\r\n%b\r\n" % (len(word), word)),
        st.sampled_from(
            [b"+OK\r\n", b"+QUEUED\r\n", b":1\r\n", b"-ERR no\r\n", b"_\r\n", b"$-1\r\n", b"#t\r\n",
             b",1.5\r\n", b"=6\r\ntxt:J1\r\n", b"$?\r\n;2\r\nJ1\r\n;1\r\nx\r\n;0\r\n",
             b">3\r\n+message\r\n+J1\r\n+x\r\n", b"|1\r\n+a\r\n+J2\r\n:1\r\n"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5).map(
            lambda items: b"*%d\r\n%b" % (len(items), b"".join(items))
        ),
        st.lists(st.tuples(inner, inner), max_size=3).map(
            lambda pairs: b"%%%d\r\n%b" % (len(pairs), b"".join(map(b"".join, pairs)))
        ),
    ),
    max_leaves=8,
)  # fmt: skip
_chunks: Final = st.lists(
    st.one_of(
        _commands.map(lambda words: ("up", encode_command(*words))),
        _replies.map(lambda reply: ("down", reply)),
        st.tuples(st.sampled_from(["up", "down"]), st.binary(max_size=6)),
    ),
    max_size=14,
)


@settings(deadline=None, max_examples=300)
@given(_chunks, st.integers(1, 3), st.sampled_from([8, 30, 1 << 20]))
def test_every_table_adds_up_to_the_total(chunks: list[Chunk], most: int, keep: int) -> None:
    exchanges = _talk(chunks, keep=keep)
    ledger = Ledger(lenses=[_LENS], most=most)
    for exchange in exchanges:
        ledger.add(exchange)
    _check_sums(ledger, exchanges)
    assert len(set(ledger.by_subject) - {NONE, OTHERS}) <= most


@settings(deadline=None)
@given(_chunks)
def test_framing_is_what_the_frames_say(chunks: list[Chunk]) -> None:
    exchanges = _talk(chunks)
    ledger = Ledger()
    for exchange in exchanges:
        ledger.add(exchange)
    counted = {"framing": 0, "content": 0, "malformed": 0}
    for exchange in exchanges:
        for frame in exchange.replies:
            for node in parse(frame.data, frame.at):
                for span in spans(node):
                    counted[span.kind] += span.end - span.start
            assert frame.size == len(frame.data)
    assert ledger.by_kind["malformed"].down == counted["malformed"]
    assert ledger.by_kind["framing"].down == counted["framing"]


def test_every_kind_of_byte() -> None:
    ledger = _ledger(
        [
            ("up", b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n"),
            ("down", b"+OK\r\n"),
            ("up", b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
            ("down", b"$5\r\nvalue\r\n"),
            ("up", b"*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n"),
            ("down", b":12\r\n"),
            ("up", b"*1\r\n$3\r\nNOT\r\n"),
            ("down", b"-ERR no\r\n"),
            ("up", b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
            ("down", b"$-1\r\n"),
        ]
    )
    assert _kinds(ledger) == {
        "framing": (4 * 5 + 10 * 6, 3 + 6 + 3 + 3 + 5),
        "command names": (15, 0),
        "keys": (4, 0),
        "payloads": (5, 5),
        "statuses": (0, 2),
        "numbers": (0, 2),
        "errors": (0, 6),
    }


def test_scripts_by_digest_by_source_and_loaded_are_one() -> None:
    sha, size = _MOVE.sha, len(_MOVE.source)
    ledger = _ledger(
        [
            _say("EVALSHA", sha, 1, "row:J1", 7, b"why"),
            ("down", b"-NOSCRIPT No matching script.\r\n"),
            _say("SCRIPT", "LOAD", _MOVE.source),
            ("down", b"$40\r\n%b\r\n" % sha.encode()),
            _say("EVALSHA", sha.upper(), 1, "row:J1", 7, b"why"),
            ("down", b":1\r\n"),
            _say("EVAL", _MOVE.source, 1, "row:J1", 7, b"why"),
            ("down", b":1\r\n"),
            _say("PING"),
            ("down", b"+PONG\r\n"),
        ]
    )
    assert {name: row.exchanges for name, row in ledger.by_script.items()} == {"move": 4, NONE: 1}
    kinds = ledger.by_kind
    assert kinds["digests"] == Kind(80, 40)
    assert kinds["script bodies"] == Kind(2 * size, 0)
    assert kinds["keys"] == Kind(3 * 6, 0)
    assert kinds["command names"].up == 7 + 10 + 7 + 4 + 4


def test_a_script_that_nobody_knows_goes_by_its_digest() -> None:
    digest = hashlib.sha1(b"return 1").hexdigest()
    ledger = _ledger([_say("EVALSHA", digest, 0), ("down", b":1\r\n")])
    assert list(ledger.by_script) == [digest]


def test_a_script_that_crosses_later_has_its_name_at_last() -> None:
    ledger = Ledger()
    for exchange in _talk(
        [
            _say("EVALSHA", _MOVE.sha, 1, "row:J1", 7),
            ("down", b"-NOSCRIPT No matching script.\r\n"),
            _say("SCRIPT", "LOAD", _MOVE.source),
            ("down", b"$40\r\n%b\r\n" % _MOVE.sha.encode()),
        ]
    ):
        ledger.add(exchange)
    assert list(ledger.by_script) == ["move"]


@pytest.mark.parametrize("digest", [b"\xff\x1b[31m", b"\r\n", b"x" * 100])
def test_names_of_a_client_are_escaped(digest: bytes) -> None:
    [name] = _ledger([_say("EVALSHA", digest, 0), ("down", b":1\r\n")]).by_script
    assert name.isprintable()
    assert len(name) <= 4 * 64


def test_pushes_and_what_is_no_resp_have_rows() -> None:
    ledger = _ledger(
        [
            ("down", b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n"),
            _say("GET", "k"),
            ("down", b"?what\r\n"),
        ]
    )
    assert ledger.by_command["(push)"][:4] == (1, 0, 0, 28)
    assert ledger.by_kind["malformed"].down > 0


@pytest.mark.parametrize("size", [99, 100, 101, 5000])
def test_what_is_not_kept_is_known_by_its_header(size: int) -> None:
    words = [b"SET", b"k", b"v" * size, b"NX"]
    ledger = _ledger([_say(*words), ("down", b"+OK\r\n")], keep=100)
    whole = len(encode_command(*words))
    assert ledger.total.up == whole
    assert ledger.by_kind["payloads"].up == size
    assert ledger.by_kind["malformed"].up == 0
    assert list(ledger.by_command) == ["SET"]


# Round trips.


def _trips(chunks: Iterable[Chunk]) -> tuple[int, int]:
    total = _ledger(chunks).total
    return total.exchanges, total.round_trips


_GET: Final = encode_command("GET", "k")
_NIL: Final = b"_\r\n"


def test_one_after_another_each_waits() -> None:
    assert _trips([("up", _GET), ("down", _NIL)] * 3) == (3, 3)


def test_a_pipeline_waits_once_however_it_was_cut() -> None:
    assert _trips([("up", _GET * 3), ("down", _NIL * 3)]) == (3, 1)
    assert _trips([("up", _GET), ("up", _GET), ("up", _GET), ("down", _NIL * 3)]) == (3, 1)
    assert _trips([("up", _GET * 3), *[("down", _NIL)] * 3]) == (3, 1)
    stream = _GET * 3
    bytewise = [("up", stream[at : at + 1]) for at in range(len(stream))]
    assert _trips([*bytewise, ("down", _NIL * 3)]) == (3, 1)


def test_what_is_said_after_a_reply_has_waited_for_it() -> None:
    # The third is said when the first is answered, and the second still is not.
    assert _trips(
        [("up", _GET), ("up", _GET), ("down", _NIL), ("up", _GET), ("down", _NIL * 2)]
    ) == (3, 2)
    # Its reply ends one trip, not two.
    assert _trips(
        [("up", _GET * 2), ("down", _NIL), ("up", _GET), ("up", _GET), ("down", _NIL * 3)]
    ) == (4, 2)


def test_a_row_counts_a_shared_wait_once() -> None:
    ledger = _ledger(
        [
            ("up", encode_command("GET", "row:J1") * 2 + encode_command("GET", "row:J2")),
            ("down", _NIL * 3),
            _say("DEL", "row:J1"),
            ("down", b":1\r\n"),
        ]
    )
    assert ledger.total[:2] == (4, 2)
    assert ledger.by_command["GET"][:2] == (3, 1)
    assert ledger.subject("J1")[:2] == (3, 2)
    assert ledger.subject("J2")[:2] == (1, 1)


def test_connections_wait_apart() -> None:
    ledger = Ledger()
    one, two = (_talk([("up", _GET), ("down", _NIL)] * 2, number) for number in (1, 2))
    for exchanges in zip(one, two, strict=True):
        for exchange in exchanges:
            ledger.add(exchange)
    assert ledger.total[:2] == (4, 4)


def test_a_command_without_a_reply_is_no_wait() -> None:
    assert _trips([_say("CLIENT", "REPLY", "OFF"), ("up", _GET)]) == (2, 0)


def test_connections_that_are_forgotten_cost_no_more_than_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_CONNECTIONS", 2)
    ledger = Ledger()
    for number in range(1, 6):
        for exchange in _talk([("up", _GET * 2), ("down", _NIL * 2)], number):
            ledger.add(exchange)
    assert ledger.total[:2] == (10, 5)


# Subjects.


def test_a_life_is_told_step_by_step() -> None:
    move = ("EVALSHA", _MOVE.sha, 1, "row:J1", 7, b"why")
    chunks = [
        _say("HSET", "row:J1", "payload", b"x" * 50),
        ("down", b":1\r\n"),
        _say(*move),
        ("down", b":1\r\n"),
        _say(*move),
        ("down", b":1\r\n"),
        _say("GET", "other"),
        ("down", _NIL),
        _say("DEL", "row:J1"),
        ("down", b":1\r\n"),
    ]
    ledger = _ledger(chunks)
    first, called, last = len(chunks[0][1]), len(chunks[2][1]), len(chunks[8][1])
    assert ledger.subject("J1") == Cost(
        4,
        4,
        first + 2 * called + last,
        16,
        (Step("HSET", 1, first, 4), Step("move", 2, 2 * called, 8), Step("DEL", 1, last, 4)),
    )
    assert ledger.by_subject[NONE][:4] == (1, 1, len(chunks[6][1]), 3)


def test_one_that_was_never_seen_cost_nothing() -> None:
    assert _ledger([]).subject("J1") == Cost(0, 0, 0, 0)


def test_a_long_life_is_told_in_part_and_counted_in_whole() -> None:
    chunks = []
    for _ in range(100):
        chunks += [_say("GET", "row:J1"), ("down", _NIL), _say("DEL", "row:J1"), ("down", _NIL)]
    life = _ledger(chunks).subject("J1")
    assert life.exchanges == 200
    assert len(life.steps) == 65
    assert life.steps[-1].name == "(more)"
    assert sum(step.exchanges for step in life.steps) == 200


def test_a_question_that_names_nobody_is_of_whom_it_is_answered_with() -> None:
    ask, answer = _say("RANDOMKEY"), b"$6\r\nrow:J1\r\n"
    ledger = _ledger([ask, ("down", answer)])
    assert ledger.subject("J1")[:4] == (1, 1, len(ask[1]), len(answer))
    assert NONE not in ledger.by_subject


def _bulks(*words: bytes) -> list[int]:
    return [len(b"$%d\r\n%b\r\n" % (len(word), word)) for word in words]


def test_what_lies_beside_an_id_is_of_it() -> None:
    words = [b"EVALSHA", b"f" * 40, b"1", b"base", b"J1", b"x" * 10, b"0", b"J2", b"yy", b"0", b"z"]
    size = len(encode_command(*words))
    ledger = _ledger([_say(*words), ("down", b"$2\r\n11\r\n")])
    sizes = _bulks(*words)
    own_1, own_2 = sum(sizes[4:7]), sum(sizes[7:10])
    shared = size - own_1 - own_2
    one, two = ledger.subject("J1"), ledger.subject("J2")
    assert (one.up, two.up) == (own_1 + shared - shared // 2, own_2 + shared // 2)
    assert (one.down, two.down) == (4, 4)
    assert one.up + two.up == size


def test_a_key_is_of_its_subject_and_what_follows_it_is_not() -> None:
    words = [b"MSET", b"row:J1", b"x" * 100, b"row:J2", b"y"]
    size = len(encode_command(*words))
    ledger = _ledger([_say(*words), ("down", b"+OK\r\n")])
    one, two = ledger.subject("J1"), ledger.subject("J2")
    assert one.up - two.up in (0, 1)
    assert one.up + two.up == size
    assert (one.down, two.down) == (3, 2)  # the first has the byte that does not divide


def test_a_list_that_names_one_subject_is_that_ones() -> None:
    first = b"*3\r\n$2\r\nJ1\r\n$3\r\nabc\r\n:1\r\n"
    second = b"*3\r\n$2\r\nJ2\r\n$1\r\nd\r\n:1\r\n"
    ask = _say("EVALSHA", "f" * 40, 0)
    ledger = _ledger([ask, ("down", b"*2\r\n" + first + second)])
    one, two = ledger.subject("J1"), ledger.subject("J2")
    assert (one.down, two.down) == (len(first) + 2, len(second) + 2)
    assert one.up + two.up == len(ask[1])
    assert one.up - two.up in (0, 1)


def test_request_and_reply_may_be_of_different_ones() -> None:
    words = ("EVALSHA", _MOVE.sha, 1, "row:J1", 7, b"why")
    answer = b"*3\r\n$2\r\nJ2\r\n$1\r\nd\r\n:1\r\n"
    ledger = _ledger([_say(*words), ("down", answer)])
    assert ledger.subject("J1")[2:4] == (len(encode_command(*words)), 0)
    assert ledger.subject("J2")[2:4] == (0, len(answer))


def test_what_exec_answers_is_of_those_whom_it_was_asked_about() -> None:
    ledger = _ledger(
        [
            _say("MULTI"),
            ("down", b"+OK\r\n"),
            _say("DEL", "row:J1"),
            ("down", b"+QUEUED\r\n"),
            _say("EXEC"),
            ("down", b"*1\r\n:1\r\n"),
        ]
    )
    assert [step.name for step in ledger.subject("J1").steps] == ["DEL", "EXEC"]
    assert ledger.by_subject[NONE].exchanges == 1


def test_a_payload_that_looks_like_an_id_is_none() -> None:
    ledger = _ledger([_say("SET", "row:J1", "J2"), ("down", b"+OK\r\n")])
    assert list(ledger.by_subject) == ["J1"]


def test_subjects_beyond_the_limit_are_summed_up() -> None:
    ledger = _ledger(
        [
            chunk
            for name in ("J1", "J2", "J3", "J4", "J1")
            for chunk in (_say("GET", f"row:{name}"), ("down", _NIL))
        ],
        most=2,
    )
    assert {name: row.exchanges for name, row in ledger.by_subject.items()} == {
        "J1": 2,
        "J2": 1,
        OTHERS: 2,
    }
    assert ledger.subject(OTHERS).steps == ()


def test_several_beyond_the_limit_in_one_exchange_are_one() -> None:
    ledger = _ledger([_say("DEL", "row:J1", "row:J2", "row:J3"), ("down", b":3\r\n")], most=1)
    assert {name: row.exchanges for name, row in ledger.by_subject.items()} == {
        "J1": 1,
        OTHERS: 1,
    }


def test_a_limit_is_above_zero() -> None:
    with pytest.raises(ValueError, match="above 0: 0"):
        Ledger(most=0)


# How it is told.


def _busy() -> Ledger:
    chunks: list[Chunk] = []
    for at in range(60):
        chunks += [_say("GET", f"row:J{chr(48 + at)}"), ("down", b"$3\r\nabc\r\n")]
        chunks += [_say(f"COMMAND{at}" + "X" * 50, "a"), ("down", b"+OK\r\n")]
    return _ledger(chunks)


@pytest.mark.parametrize("most", [1, 5, 1000])
def test_tables_fit_and_their_rows_add_up(most: int) -> None:
    ledger = _busy()
    lines = ledger.render(most=most)
    assert max(map(len, lines)) <= 100
    assert not any("\n" in line or line != line.rstrip() for line in lines)
    document = json.loads(json.dumps(ledger.as_json(most=most)))
    for table in ("kinds", "commands", "scripts", "subjects"):
        rows = document[table].values()
        assert sum(row["up"] for row in rows) == document["total"]["up"]
        assert sum(row["down"] for row in rows) == document["total"]["down"]
        assert table == "kinds" or len(rows) <= most + 2


def test_what_is_told_of_a_small_talk() -> None:
    ledger = _ledger([_say("SET", "row:J1", b"x" * 20), ("down", b"+OK\r\n")])
    lines = ledger.render()
    assert lines[0] == "1 exchange, 1 round trip, 52 bytes up, 5 bytes down"
    headings = [line.split()[0] for line in lines if line and line.split()[-1] == "share"]
    assert headings == ["kind", "command", "job"]  # no script was called


def test_colours_are_asked_for_and_change_no_text() -> None:
    ledger = _busy()
    plain, colored = ledger.render(), ledger.render(COLORS)
    assert "\x1b" not in "".join(plain)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in colored] == plain
    assert colored != plain


def test_nothing_is_told_in_one_line() -> None:
    assert Ledger().render()[0] == "0 exchanges, 0 round trips, 0 bytes up, 0 bytes down"
    assert set(Ledger().by_kind) == set(KINDS)


# On a server.


def test_it_agrees_with_what_a_connector_counts(server: Server, fresh_name: str) -> None:
    tap = Tap()
    with connect(server.url, tap=tap) as connector:
        row = fresh_name
        connector.command("SET", row, b"x" * 1000)
        connector.pipeline([("GET", row)] * 10)
        connector.pipeline([_MOVE([row], [7, b"why"])])
        connector.command("DEL", row)
        stats = connector.stats()
    ledger = Ledger(lenses=[_LENS])
    for exchange in tap.exchanges():
        ledger.add(exchange)
    assert (ledger.total.up, ledger.total.down) == (stats["bytes_out"], stats["bytes_in"])
    assert ledger.by_kind["payloads"] == Kind(1000 + 2 * 3, 10_000)
    assert ledger.by_command["GET"][:2] == (10, 1)

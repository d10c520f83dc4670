"""Where every byte of RESP stands, against the decoder and against what its nodes must be."""

from __future__ import annotations

import base64
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resp.decode import ErrorReply, Push
from resp.encode import encode_command
from resp.tap.frames import AGGREGATES, Node, Span, parse, spans
from tests.strategies import (
    Encoded,
    Outcome,
    Stream,
    as_map,
    as_set,
    decode,
    garbage,
    plain,
    runs,
    streams,
    typed,
)

DATA = Path(__file__).parents[2] / "data"
# A view shows what has no place in a reply where the decoder gives up.
SHOWN = ("a push inside another reply", "a push whose kind is no string")

LIMITS = {
    "a line of more than max_line bytes": "a line of more than 64 KiB",
    "more aggregates inside each other than max_depth": (
        "more than 128 aggregates inside each other"
    ),
}
# Frames have any size, so the measure is a decoder that knows no limit to them.
UNLIMITED = partial(plain, max_bulk=10**40, max_elements=10**40)


def captures() -> list[Any]:
    """Answer the recordings, with their names."""
    found = []
    for text in (DATA / "captures.jsonl").read_text().splitlines():
        record = json.loads(text)
        name = f"{record['server']}-{record['protocol']}-{record['name']}"
        found.append(pytest.param(base64.b64decode(record["reply_b64"]), id=name))
    return found


def vectors() -> list[Any]:
    """Answer the vectors' bytes, the malformed ones included, with their names."""
    found = []
    for case in json.loads((DATA / "resp_cases.json").read_text())["cases"]:
        if "input" in case:
            wire = bytes.fromhex(case["input"])
        else:
            wire = b"".join(bytes.fromhex(part) * int(n) for part, n in case["input_parts"])
        found.append(pytest.param(wire, id=case["id"]))
    return found


def covered(wire: bytes, at: int, *, inline: bool = False) -> tuple[list[Node], list[Span]]:
    """Parse, and check that the spans are every byte once and in order, and that trees nest."""
    roots = parse(wire, at, inline=inline)
    leaves = [span for root in roots for span in spans(root)]
    place = at
    for span in leaves:
        assert span.start == place
        assert span.end > span.start
        assert span.node.at <= span.start
        assert span.end <= span.node.end
        place = span.end
    assert place == at + len(wire)
    work = list(roots)
    while work:
        node = work.pop()
        assert node.at <= node.body <= node.stop <= node.end
        assert node.due >= node.stop
        for item in node.items:
            assert node.body <= item.at <= item.end <= node.stop
        work += node.items
    return roots, leaves


def value_of(node: Node) -> Any:
    """Answer what a node stands for, built from its items."""
    if node.mark not in AGGREGATES:
        return node.value
    if node.value is None and not node.items:
        return None
    items = [value_of(item) for item in node.items if item.mark not in "|."]
    match node.mark:
        case "%" | "|":
            return as_map([Encoded(b"", item) for item in items])
        case "~":
            return as_set([Encoded(b"", item) for item in items])
        case ">":
            kind, *rest = items
            return Push(
                kind.decode("utf-8", "surrogateescape") if isinstance(kind, bytes) else kind, rest
            )
    return items


def faults(roots: list[Node]) -> list[Node]:
    """Answer the nodes with something wrong, in the order of the bytes."""
    found = []
    work = roots[::-1]
    while work:
        node = work.pop()
        if node.error:
            found.append(node)
        work += node.items[::-1]
    return found


def check_against_the_decoder(wire: bytes, at: int = 0) -> None:
    roots, _ = covered(wire, at)
    outcome: Outcome = decode(UNLIMITED, [wire])
    expected = outcome.replies
    shown = outcome.error is not None and outcome.error.startswith(SHOWN)
    broken = faults(roots)
    replies = [root for root in roots if root.mark != "|"]
    values = []
    for root in replies[: len(expected)]:
        assert not faults([root])
        values.append(typed(value_of(root)))
    assert values == expected
    if outcome.error is None:
        # What is left is a reply of which bytes are missing: the last tree, and no other.
        assert all(node.end == at + len(wire) for node in broken)
        assert len(replies) - len(expected) <= 1
        assert bool(broken) == (len(replies) > len(expected) or bool(faults(roots[-1:])))
    elif shown:
        assert broken
        # Not always the first that is shown: a push around it may lack items, or a kind as well.
        assert outcome.offset is not None
        found = {node.at: node.error for node in broken}
        assert outcome.error == f"{found[at + outcome.offset]} at offset {outcome.offset}"
    else:
        [malformed] = [node for node in broken if node.mark == "?"]
        assert outcome.offset is not None
        assert malformed.at <= at + outcome.offset <= malformed.end
        told = outcome.error.removesuffix(f" at offset {outcome.offset}")
        told = LIMITS.get(told, told)
        assert malformed.error == f"{told} at offset {at + outcome.offset}"
        assert malformed.end == at + len(wire)


@pytest.mark.parametrize("wire", captures())
def test_recordings(wire: bytes) -> None:
    check_against_the_decoder(wire)


@pytest.mark.parametrize("wire", vectors())
def test_vectors(wire: bytes) -> None:
    check_against_the_decoder(wire)


@given(streams(), st.integers(0, 10**12))
def test_streams(stream: Stream, at: int) -> None:
    check_against_the_decoder(stream.wire, at)
    roots = parse(stream.wire, at)
    assert not faults(roots)
    values, notes = [], []
    for root in roots:
        if root.mark == "|":
            notes.append(root)
        else:
            values.append(typed(value_of(root)))
    assert values == [typed(value) for value in stream.values]
    assert len(notes) >= sum(noted is not None for noted in stream.attributes)


@given(streams(), st.floats(0, 1))
def test_the_start_of_a_stream(stream: Stream, share: float) -> None:
    check_against_the_decoder(stream.wire[: int(share * len(stream.wire))])


@given(garbage())
@example(b">1\r\n:1\r\n+OK\r\n")
@example(b"*1\r\n>1\r\n:1\r\n")
@example(b"*2\r\n>2\r\n+a\r\n:1\r\n:2\r\n+OK\r\n")
@example(b">3\r\n+a\r\n>1\r\n+b\r\n")
@example(b">2\r\n:1\r\n>1\r\n+a\r\n")
@example(b"%?\r\n:1\r\n.\r\n")
@example(b"$?\r\n;1\r\na")
@example(b"*2\r\n*2\r\n$5\r\nab")
def test_garbage(wire: bytes) -> None:
    check_against_the_decoder(wire)


@given(runs())
def test_runs(wire: bytes) -> None:
    check_against_the_decoder(wire)


@given(st.binary(max_size=80) | garbage())
def test_every_byte_of_a_client_is_covered(wire: bytes) -> None:
    covered(wire, 3, inline=True)


# What nodes are


def only(wire: bytes, at: int = 0, *, inline: bool = False) -> Node:
    [node] = covered(wire, at, inline=inline)[0]
    return node


def places(node: Node) -> tuple[int, int, int, int]:
    return node.at, node.body, node.stop, node.end


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (b"+OK\r\n", (100, 101, 103, 105)),
        (b":-5\r\n", (100, 101, 103, 105)),
        (b"_\r\n", (100, 101, 101, 103)),
        (b"$5\r\nhello\r\n", (100, 104, 109, 111)),
        (b"$0\r\n\r\n", (100, 104, 104, 106)),
        (b"$-1\r\n", (100, 105, 105, 105)),
        (b"*-1\r\n", (100, 105, 105, 105)),
        (b"*0\r\n", (100, 104, 104, 104)),
        (b"*1\r\n:1\r\n", (100, 104, 108, 108)),
        (b"*?\r\n:1\r\n.\r\n", (100, 104, 111, 111)),
        (b"$?\r\n;1\r\na\r\n;0\r\n", (100, 104, 115, 115)),
        (b"=5\r\ntxt:a\r\n", (100, 104, 109, 111)),
    ],
)
def test_places(wire: bytes, expected: tuple[int, int, int, int]) -> None:
    assert places(only(wire, 100)) == expected


def test_kinds_of_bytes() -> None:
    wire = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
    _, leaves = covered(wire, 0)
    assert [(span.kind, wire[span.start : span.end]) for span in leaves] == [
        ("framing", b"*2\r\n"),
        ("framing", b"$3\r\n"),
        ("content", b"GET"),
        ("framing", b"\r\n"),
        ("framing", b"$1\r\n"),
        ("content", b"k"),
        ("framing", b"\r\n"),
    ]


def test_a_command_that_is_a_line() -> None:
    wire = b"SET  'a b'\tx\r\nPING\n\r\n*1\r\n$4\r\nPING\r\n"
    roots, leaves = covered(wire, 0, inline=True)
    assert [root.mark for root in roots] == ["inline", "inline", "inline", "*"]
    assert [word.value for word in roots[0].items] == [b"SET", b"'a b'", b"x"]
    assert [word.mark for word in roots[0].items] == ["word"] * 3
    assert [root.value for root in roots] == [3, 1, 0, 1]
    assert [wire[span.start : span.end] for span in leaves[:6]] == [
        *(b"SET", b"  ", b"'a b'", b"\t", b"x", b"\r\n"),
    ]


def test_counts_and_items() -> None:
    node = only(b"%2\r\n+a\r\n|1\r\n+n\r\n+v\r\n:1\r\n+b\r\n*?\r\n.\r\n")
    assert node.value == 2
    assert [item.mark for item in node.items] == ["+", "|", ":", "+", "*"]
    assert node.items[-1].value is None
    assert [item.mark for item in node.items[-1].items] == ["."]


@pytest.mark.parametrize(
    ("wire", "error", "due"),
    [
        (b"$5\r\nhel", "4 bytes are missing", 9),
        (b"$5\r\nhello", "2 bytes are missing", 9),
        (b"$5\r\nhello\r", "1 bytes are missing", 9),
        (b"*2\r\n:1\r\n", "1 items are missing", 8),
        (b"%1\r\n:1\r\n", "1 items are missing", 8),
        (b"*?\r\n:1\r\n", "no end", 8),
        (b"$?\r\n;1\r\na\r\n", "not whole", 11),
    ],
)
def test_what_is_missing_is_said(wire: bytes, error: str, due: int) -> None:
    node = only(wire)
    assert (node.error, node.due, node.end) == (error, due, len(wire))


def test_a_token_that_is_not_whole() -> None:
    roots, _ = covered(b"+OK\r\n$5", 10)
    assert (roots[1].mark, roots[1].at, roots[1].error) == ("?", 15, "not whole")


def test_a_push_inside_an_array_is_shown() -> None:
    node = only(b"*2\r\n>2\r\n+subscribe\r\n:1\r\n:2\r\n")
    assert node.error == ""
    push, number = node.items
    assert push.error == "a push inside another reply"
    assert [item.value for item in push.items] == ["subscribe", 1]
    assert number.value == 2


def test_a_push_whose_kind_is_no_string_is_shown() -> None:
    roots, _ = covered(b">2\r\n:1\r\n:2\r\n+OK\r\n", 0)
    assert [(root.mark, root.error) for root in roots] == [
        (">", "a push whose kind is no string"),
        ("+", ""),
    ]


def test_errors_are_values() -> None:
    assert only(b"-ERR no\r\n").value == ErrorReply("ERR", "ERR no")


@pytest.mark.parametrize(
    "wire",
    [
        b"*1\r\n" * 100_000,
        b"*200000\r\n" + b":1\r\n" * 200_000,
        b"$?\r\n" + b";1\r\na\r\n" * 100_000 + b";0\r\n",
        b"*?\r\n" + b"|1\r\n+a\r\n+b\r\n" * 50_000,
        b"%?\r\n" + b":1\r\n:2\r\n" * 100_000 + b".\r\n",
        encode_command("MSET", *[b"x"] * 200_000),
    ],
    ids=["deep", "long", "chunks", "attributes", "pairs", "command"],
)
def test_work_follows_the_bytes(wire: bytes) -> None:
    began = time.process_time()
    covered(wire, 0)
    assert time.process_time() - began < 20

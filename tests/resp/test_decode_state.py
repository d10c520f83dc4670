"""What a decoder holds between chunks: how much, for how long, and where it says it stands."""

from __future__ import annotations

from typing import Any

import pytest

from resp.decode import NEED_DATA, Decoder, Pairs
from resp.errors import ProtocolError

_EQUAL = 4 * 1024
_LINE = 32 * 1024
_TABLED = 1024


def feed(decoder: Decoder, *pieces: bytes) -> list[Any]:
    """Take what each piece completes, by `replies`."""
    found = []
    for piece in pieces:
        decoder.feed(piece)
        found += decoder.replies()
    return found


def fault(decoder: Decoder, *pieces: bytes) -> ProtocolError:
    """How it refuses the last piece."""
    with pytest.raises(ProtocolError) as caught:
        feed(decoder, *pieces)
    return caught.value


# Pieces that wait.


@pytest.mark.parametrize(
    ("size", "kept"),
    [(1, 1 + 1), (1023, 1 + 4), (1024, 1 + 200), (2000, 1 + 200)],
)
def test_small_pieces_are_put_together(size: int, kept: int) -> None:
    decoder = Decoder()
    feed(decoder, b"$1000000\r\n", *[b"x" * size] * 200)
    assert len(decoder._parts) == kept
    assert {type(part) for part in decoder._parts[1:]} == {bytearray if size < 1024 else bytes}


def test_small_pieces_put_together_have_a_bound() -> None:
    decoder = Decoder()
    feed(decoder, b"$1000000\r\n", *[b"x" * 1000] * 200)
    assert [len(part) for part in decoder._parts[1:]] == [66_000, 66_000, 66_000, 2000]


@pytest.mark.parametrize("size", [1023, 1024, 5000])
@pytest.mark.parametrize("piece", [7, 999, 1000, 1001, 4096])
def test_an_offset_is_right_behind_a_bulk_in_pieces(size: int, piece: int) -> None:
    wire = b":1\r\n" + b"$%d\r\n%b\r\n" % (size, b"x" * size)
    for rest in (b"?", b":1\r\n?", b"+OK\r\n:01\r\n", b"$3\r\nabcd\r\n"):
        whole = wire + rest
        pieces = [whole[at : at + piece] for at in range(0, len(whole), piece)]
        alone, together = Decoder(), Decoder()
        right = fault(alone, *[whole[at : at + 1] for at in range(len(whole))])
        error = fault(together, *pieces, b"")
        assert (str(error), error.offset) == (str(right), right.offset)
        assert together.offset <= error.offset


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 5000, 70_000])
def test_a_bulk_whose_end_comes_apart(size: int) -> None:
    body = b"x" * size
    for ends in ([b"\r", b"\n"], [b"\r\n"], [b"\r", b"\n+OK\r\n"], [b"\r\n+OK\r\n"]):
        decoder = Decoder()
        found = feed(decoder, b"$%d\r\n" % size, body[: size // 2], body[size // 2 :], *ends)
        assert found == [body, "OK"][: 1 + (b"OK" in ends[-1])]
        assert decoder.offset == size + len(b"$%d\r\n\r\n" % size) + 5 * (b"OK" in ends[-1])
        assert decoder._have == 0


def test_a_bulk_whose_end_is_wrong_is_refused_as_soon_as_it_shows() -> None:
    for size in (10, 2000):
        head = b"$%d\r\n" % size
        assert fault(Decoder(), head, b"x" * size, b"\n").offset == len(head) + size
        assert fault(Decoder(), head, b"x" * size, b"\r", b"\r").offset == len(head) + size + 1
        assert fault(Decoder(), head, b"x" * (size + 1)).offset == len(head) + size


def test_nothing_is_kept_behind_a_fault() -> None:
    for wire in (b"*2\r\n*9\r\n:1\r\n?", b"$?\r\n;5\r\nhello\r\n?", b"+OK\n"):
        decoder = Decoder()
        with pytest.raises(ProtocolError):
            feed(decoder, wire, b"")
        held = decoder._stack, decoder._items, decoder._text, decoder._parts, decoder._have
        assert held == ([], [], None, [], 0)
        decoder.feed(b"+OK\r\n" * 1000)
        assert decoder._parts == []
        assert decoder._have == 0
        with pytest.raises(ProtocolError):
            decoder.next()


# Lines.


@pytest.mark.parametrize("limit", [0, 1, 5, 100])
@pytest.mark.parametrize("mark", [b"+", b"-", b":", b"$", b"*"])
def test_a_line_of_max_line_is_taken_and_one_more_is_not(mark: bytes, limit: int) -> None:
    line = b"1" * limit
    for pieces in ([mark + line + b"\r\n"], [mark + line, b"\r\n"], [mark + line + b"\r", b"\n"]):
        decoder = Decoder(max_line=limit, max_bulk=2, max_elements=2)
        if limit == 0 or (mark in b"$*" and limit > 1):
            if mark == b"+" and not limit:
                assert feed(decoder, *pieces) == [""]
            continue
        feed(decoder, *pieces)
    long = mark + line + b"1"
    for pieces in ([long], [mark, line, b"1"], [long + b"\r\n"], [long + b"\r", b"\n"]):
        error = fault(Decoder(max_line=limit), *pieces, b"\r\n")
        assert error.offset == 1 + limit
        assert "max_line" in str(error)


@pytest.mark.parametrize("stray", [b"\n", b"\rx", b"\r\r"])
@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_a_stray_end_of_line_is_told_where_it_is(stray: bytes, at: int) -> None:
    whole = b"+" + b"a" * at + stray + b"bb\r\n"
    for cut in range(len(whole) + 1):
        error = fault(Decoder(max_line=20), whole[:cut], whole[cut:], b"")
        assert error.offset == 1 + at, cut
    assert fault(Decoder(max_line=at), whole, b"").offset == 1 + at
    assert fault(Decoder(max_line=at), b"+" + b"a" * at + stray, b"").offset == 1 + at


def test_an_end_of_line_that_is_half_there_is_waited_for() -> None:
    decoder = Decoder(max_line=3)
    assert feed(decoder, b"+", b"abc", b"\r", b"\n") == ["abc"]
    assert feed(decoder, b"+abc\r") == []
    assert feed(decoder, b"\n") == ["abc"]
    assert decoder.next() is NEED_DATA


# What each limit allows, and what the fast ways are for.


@pytest.mark.parametrize(
    ("limits", "quick"),
    [
        ({}, True),
        ({"max_bulk": _EQUAL}, True),
        ({"max_bulk": _EQUAL - 1}, False),
        ({"max_elements": _TABLED}, True),
        ({"max_elements": _TABLED - 1}, False),
        ({"max_line": _LINE}, True),
        ({"max_line": _LINE - 1}, False),
    ],
)
def test_fast_ways_are_for_decoders_with_room(limits: dict[str, int], quick: bool) -> None:
    assert Decoder(**limits)._quick is quick


@pytest.mark.parametrize("mark", [b"*", b"~", b"%", b">"])
@pytest.mark.parametrize("limit", [1, 2, 3, 1024])
def test_an_aggregate_of_max_elements_is_taken_and_one_more_is_not(mark: bytes, limit: int) -> None:
    width = 2 if mark == b"%" else 1
    if limit < width:
        return
    count = limit // width
    items = b"".join(b"+%d\r\n" % number for number in range(count * width))
    [reply] = feed(Decoder(max_elements=limit), mark + b"%d\r\n" % count + items)
    assert len(reply.items) + 1 == count if mark == b">" else len(reply) == count
    with pytest.raises(ProtocolError, match="max_elements"):
        feed(Decoder(max_elements=limit), mark + b"%d\r\n" % (count + 1))


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_streamed_aggregate_of_max_elements_is_taken_and_one_more_is_not(limit: int) -> None:
    items = b":1\r\n" * limit
    assert feed(Decoder(max_elements=limit), b"*?\r\n" + items + b".\r\n") == [[1] * limit]
    for pieces in ([b"*?\r\n" + items + b":1\r\n"], [b"*?\r\n", items, b":1\r\n"]):
        with pytest.raises(ProtocolError, match="max_elements") as caught:
            feed(Decoder(max_elements=limit), *pieces)
        assert caught.value.offset == 4 + 4 * limit


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_max_depth_is_taken_and_one_more_is_not(depth: int) -> None:
    for mark in (b"*1\r\n", b"~1\r\n", b"*?\r\n"):
        decoder = Decoder(max_depth=depth)
        decoder.feed(mark * depth + b":1\r\n" + b".\r\n" * depth * (mark == b"*?\r\n"))
        assert len(decoder.replies()) == 1
        with pytest.raises(ProtocolError, match="max_depth") as caught:
            feed(Decoder(max_depth=depth), mark * (depth + 1))
        assert caught.value.offset == 4 * depth


@pytest.mark.parametrize("size", [0, 1, 10, 1000])
def test_max_bulk_is_taken_and_one_more_is_not(size: int) -> None:
    for mark in (b"$", b"!", b"="):
        if mark == b"=" and size < 4:
            continue
        body = (b"txt:" + b"x" * size)[:size]
        wire = mark + b"%d\r\n%b\r\n" % (size, body)
        for pieces in ([wire], [wire[:-1], wire[-1:]]):
            assert len(feed(Decoder(max_bulk=size), *pieces)) == 1
        with pytest.raises(ProtocolError, match="max_bulk") as caught:
            feed(Decoder(max_bulk=size), mark + b"%d\r\n" % (size + 1))
        assert caught.value.offset == 0
    halves = b"$?\r\n;%d\r\n%b\r\n" % (size, b"x" * size) if size else b"$?\r\n"
    assert feed(Decoder(max_bulk=size), halves + b";0\r\n") == [b"x" * size]
    with pytest.raises(ProtocolError, match="max_bulk") as caught:
        feed(Decoder(max_bulk=size), halves + b";1\r\nx\r\n")
    assert caught.value.offset == len(halves)


def test_a_verbatim_string_is_its_format_at_the_least() -> None:
    [empty] = feed(Decoder(), b"=4\r\ntxt:\r\n")
    assert (empty, empty.format) == (b"", "txt")
    assert fault(Decoder(), b"=3\r\n").offset == 0


# Keys that share a hash.


@pytest.mark.parametrize("count", [16, 2048, 2049, 3000])
def test_a_large_map_of_keys_of_their_own_is_a_dict(count: int) -> None:
    pairs = b"".join(b":%d\r\n+v\r\n" % number for number in range(count))
    [reply] = feed(Decoder(), b"%%%d\r\n" % count + pairs)
    assert reply == dict.fromkeys(range(count), "v")
    [reply] = feed(Decoder(), b"~%d\r\n" % (2 * count) + pairs.replace(b"+v", b"+w"))
    assert type(reply) is list
    members = b"".join(b":%d\r\n" % number for number in range(2 * count))
    [reply] = feed(Decoder(), b"~%d\r\n" % (2 * count) + members)
    assert reply == set(range(2 * count))


@pytest.mark.parametrize(
    ("count", "kind"), [(16, dict), (2048, dict), (2049, Pairs), (3000, Pairs)]
)
def test_many_keys_that_share_a_hash_make_no_table(count: int, kind: type) -> None:
    keys = [number * (2**61 - 1) for number in range(count)]
    pairs = b"".join(b":%d\r\n:%d\r\n" % (key, at) for at, key in enumerate(keys))
    [reply] = feed(Decoder(), b"%%%d\r\n" % count + pairs)
    found = list(reply.items() if kind is dict else reply)
    assert found == list(zip(keys, range(count), strict=True))
    assert type(reply) is kind


# Attributes.


def test_attributes_are_those_of_the_reply_that_was_answered_last() -> None:
    note = b"|1\r\n+k\r\n:%d\r\n"
    decoder = Decoder()
    decoder.feed(note % 1 + b":1\r\n:2\r\n" + note % 3 + b":3\r\n")
    assert [(decoder.next(), decoder.attributes) for _ in range(3)] == [
        (1, {"k": 1}),
        (2, None),
        (3, {"k": 3}),
    ]
    assert decoder.next() is NEED_DATA
    assert decoder.attributes is None
    decoder.feed(note % 1 + b":1\r\n" + b":2\r\n")
    assert decoder.replies() == [1, 2]
    assert decoder.attributes is None
    decoder.feed(b":1\r\n" + note % 2 + b":2\r\n")
    assert decoder.replies() == [1, 2]
    assert decoder.attributes == {"k": 2}
    assert decoder.replies() == []
    assert decoder.attributes is None
    decoder.feed(note % 5)
    assert decoder.replies() == []
    assert feed(decoder, b"+OK\r\n") == ["OK"]
    assert decoder.attributes == {"k": 5}
    assert decoder.decode(b"+OK\r\n") == ["OK"]
    assert decoder.attributes is None

"""When the decoder looks again at what it has, and what it keeps until then.

Replies alone do not tell: a decoder that looks too often, keeps too much or does without its fast
ways answers the same.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

import pytest

from resp import decode
from resp.decode import NEED_DATA, Decoder, Pairs, Verbatim
from resp.errors import ProtocolError
from tests.strategies import decode as outcome
from tests.strategies import typed

PRIME = 2**61 - 1  # its multiples all hash to 0


def looks(wire: bytes, size: int = 1, **limits: int) -> list[int]:
    """After how many bytes the decoder looks at what it has, if they come in pieces of a size."""
    found: list[int] = []
    fed = 0

    class Looking(Decoder):
        __slots__ = ()

        def _run(self) -> None:
            found.append(fed)
            super()._run()

    decoder = Looking(**limits)
    for at in range(0, len(wire), size):
        fed = min(len(wire), at + size)
        decoder.feed(wire[at : at + size])
        with suppress(ProtocolError):
            decoder.next()
    return found


# When it looks


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (b"+abcdef\r\n", [1, 8, 9]),
        (b"+\r\n", [1, 2, 3]),
        (b"$10\r\n0123456789\r\n", [1, 4, 5, 16, 17]),
        (b"$0\r\n\r\n", [1, 3, 4, 5, 6]),
        (b"*1\r\n:12345\r\n", [1, 3, 4, 5, 11, 12]),
        (b"$?\r\n;3\r\nabc\r\n;0\r\n", [1, 3, 4, 5, 7, 8, 12, 13, 14, 16, 17]),
        (b"=8\r\ntxt:abcd\r\n+a\r\n", [1, 3, 4, 13, 14, 15, 17, 18]),
    ],
)
def test_it_looks_when_a_byte_may_end_something(wire: bytes, expected: list[int]) -> None:
    assert looks(wire) == expected
    assert looks(b"+OK\r\n" + wire)[3:] == [5 + at for at in expected]


def test_it_looks_at_a_line_that_is_too_long_at_its_first_byte_too_many() -> None:
    assert looks(b"+abcdef", max_line=5) == [1, 7]
    assert looks(b"+abcde\r\n", max_line=5) == [1, 7, 8]
    assert looks(b"+ab\rd", max_line=5) == [1, 4, 5]
    assert looks(b"+ab\nd", max_line=5) == [1, 4]


def test_a_crlf_inside_a_blob_is_no_reason_to_look() -> None:
    assert looks(b"$10\r\n" + b"\r\n" * 6, 3) == [3, 6, 17]
    assert looks(b"!10\r\n" + b"\r\n" * 6, 3) == [3, 6, 17]


@pytest.mark.parametrize("size", [100, 2000])
def test_it_looks_at_a_large_bulk_when_its_end_is_there(size: int) -> None:
    wire = b"$5000\r\n" + b"x" * 5000 + b"\r\n"
    last = -(-len(wire) // size) * size
    assert looks(wire, size) == [size, min(last, len(wire))]


# What it keeps


def parts(decoder: Decoder) -> list[tuple[type, int]]:
    return [(type(part), len(part)) for part in decoder._parts]


def test_the_number_of_its_bytes_is_that_of_its_parts() -> None:
    wire = b"+OK\r\n*2\r\n$2000\r\n%b\r\n:1\r\n:2\r\n!x\r\n" % bytes(2000)
    for size in (1, 9, 100, 1500, 5000):
        decoder = Decoder()
        assert decoder._have == 0
        for at in range(0, len(wire), size):
            decoder.feed(wire[at : at + size])
            with suppress(ProtocolError):
                decoder.replies()
            assert decoder._have == sum(map(len, decoder._parts))
    decoder = Decoder()
    for chunk in (b"+OK\r\n", b"+OK\r\n+A\r\n"):
        decoder.feed(chunk)
        decoder.replies()
        assert (decoder._have, decoder._parts) == (0, [])


def test_small_pieces_are_joined_and_large_ones_are_kept_as_they_came() -> None:
    decoder = Decoder()
    decoder.feed(b"$200000\r\n")
    assert decoder.next() is NEED_DATA
    for piece in (1024, 1023, 1023, 1024, 5):
        decoder.feed(b"x" * piece)
    assert parts(decoder) == [(bytes, 9), (bytes, 1024), (bytearray, 2046), (bytes, 1024),
                              (bytearray, 5)]  # fmt: skip
    for _ in range(65):
        decoder.feed(b"x" * 1023)
    assert parts(decoder)[4:] == [(bytearray, 5 + 65 * 1023)]
    assert 64 * 1024 < 5 + 65 * 1023
    decoder.feed(b"y")
    assert parts(decoder)[5:] == [(bytearray, 1)]


def test_an_object_of_joined_pieces_grows_to_its_bound_and_no_further() -> None:
    decoder = Decoder()
    decoder.feed(b"$200000\r\n")
    for _ in range(64):
        decoder.feed(b"x" * 512)
        decoder.feed(b"x" * 512)
    assert parts(decoder) == [(bytes, 9), (bytearray, 64 * 1024)]
    decoder.feed(b"y")
    assert parts(decoder)[2:] == [(bytearray, 1)]


@pytest.mark.parametrize(
    "wire",
    [
        b"*2\r\n*3\r\n:1\r\n:x\r\n",
        b"|1\r\n+a\r\n:x\r\n",
        b"$?\r\n;3\r\nabc\r\n:1\r\n",
        b"*2\r\n$5000\r\n" + b"x" * 5000 + b"xx",
        b"+a\nb\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_a_fault_lets_go_of_everything(wire: bytes, size: int) -> None:
    decoder = Decoder()
    chunks = [wire[at : at + size] for at in range(0, len(wire), size)]
    with pytest.raises(ProtocolError) as caught:
        deque(map(decoder.decode, chunks), maxlen=0)
    offset = caught.value.offset
    for more in (b"", b"+OK\r\n", bytearray(b"\r\n"), b"x" * 2000):
        decoder.feed(more)
        assert (decoder._parts, decoder._have, decoder._stack) == ([], 0, [])
        assert (decoder._items, decoder._text, decoder._out) == ([], None, [])
        for take in (decoder.next, decoder.replies, lambda: decoder.decode(b"+OK\r\n")):
            with pytest.raises(ProtocolError) as again:
                take()
            assert (again.value.offset, str(again.value)) == (offset, str(caught.value))
        assert decoder.offset == offset


@pytest.mark.parametrize("size", [1023, 1024, 1025, 5000])
@pytest.mark.parametrize("before", [b"", b":1\r\n", b"*2\r\n:1\r\n"])
def test_a_bulk_that_ends_in_the_last_of_many_pieces(size: int, before: bytes) -> None:
    """Every place of the last cuts; what is behind the bulk is read where it lies."""
    body = bytes(range(256)) * 20
    body = body[:size]
    wire = before + b"$%d\r\n%b\r\n" % (size, body)
    expected: list[Any] = [body] if not before else [1, body] if before[:1] == b":" else [[1, body]]
    for cut in [*range(len(before), len(before) + 10), *range(len(wire) - 4, len(wire) + 1)]:
        for tail in (b"", b"+OK\r\n:2"):
            whole = wire + tail
            middle = max(cut - 500, len(before) + 9)
            chunks = [whole[:middle], whole[middle:cut], whole[cut:]]
            if cut < middle:
                chunks = [whole[:cut], whole[cut:]]
            decoder = Decoder()
            found = [reply for chunk in chunks for reply in decoder.decode(chunk)]
            assert found == [*expected, *(["OK"] if tail else [])]
            assert decoder.offset == len(wire) + (5 if tail else 0)
            assert decoder.decode(b"\r\n" if tail else b"+a\r\n") == ([2] if tail else ["a"])


@pytest.mark.parametrize("missing", [0, 1, 500])
def test_a_large_bulk_is_joined_apart_from_what_follows(missing: int) -> None:
    last = b"x" * missing + b"\r\n+OK\r\n"
    for size, apart in ((1023, False), (1024, True)):
        decoder = Decoder()
        decoder.feed(b":1\r\n$%d\r\n%b" % (size, b"x" * (size - missing)))
        assert decoder.next() == 1
        assert decoder.next() is NEED_DATA
        assert decoder._blob == ((len(b"$1024\r\n"), size) if apart else None)
        decoder.feed(last)
        buffer, position = decoder._join()
        assert (buffer == last, position) == ((True, missing + 2) if apart else (False, 0))


def test_the_bulk_that_was_joined_apart_says_nothing_of_the_next_blob() -> None:
    text = b"txt:" + b"\r\n" * 548
    wire = b"=%d\r\n%b\r\n" % (len(text), text)
    decoder = Decoder()
    for chunk in (b"$1024\r\n" + b"x" * 24, b"x" * 1000 + b"\r\n" + wire[:500]):
        decoder.feed(chunk)
        found = decoder.replies()
    assert found == [b"x" * 1024]
    decoder.feed(wire[500:])
    assert typed(decoder.replies()) == typed([Verbatim(text[4:])])


@pytest.mark.parametrize("mark", [b"!", b"="])
def test_other_blobs_are_joined_with_what_is_around(mark: bytes) -> None:
    decoder = Decoder()
    decoder.feed(mark + b"2000\r\ntxt:")
    assert decoder.next() is NEED_DATA
    assert decoder._blob is None


# Bounds


def test_a_chunk_is_read_at_one_go_only_between_replies() -> None:
    decoder = Decoder()
    assert decoder._idle
    for chunk, idle in (
        (b":1\r\n:2\r\n", True),
        (b"*2\r\n:1\r\n", False),
        (b":2\r\n", True),
        (b"+O", False),
        (b"K\r\n", True),
        (b"|1\r\n+a\r\n+b\r\n", False),
        (b"+OK\r\n", True),
        (b"$?\r\n", False),
        (b";0\r\n", True),
    ):
        decoder.decode(chunk)
        assert decoder._idle is idle, chunk


def test_keys_that_share_a_hash_are_told_by_their_share() -> None:
    assert not decode._collide([0] * 8)
    assert decode._collide([0] * 9)
    assert not decode._collide([0] * 15 + [1])
    assert decode._collide([0] * 16 + [1])


def test_a_table_is_made_unless_many_keys_share_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_FLOOD", 64)
    few = [number * PRIME for number in range(64)]
    many = [*few, 64 * PRIME]
    assert decode._members(few) == set(few)
    assert decode._members(many) is many
    assert decode._members(list(range(100))) == set(range(100))
    few = [each for number in range(32) for each in (number * PRIME, number)]
    many = [*few, 32 * PRIME, 32]
    assert decode._pairs(few) == dict(zip(few[::2], few[1::2], strict=True))
    assert typed(decode._pairs(many)) == typed(Pairs(zip(many[::2], many[1::2], strict=True)))
    unlike = list(range(100))
    assert decode._pairs(unlike) == dict(zip(unlike[::2], unlike[1::2], strict=True))
    values_alike = [each for number in range(50) for each in (number, 0)]
    assert type(decode._pairs(values_alike)) is dict


@pytest.mark.parametrize("digits", [1, 17, 18, 19, 20, 599, 600, 601, 1199, 1200, 1201, 1801, 2401])
@pytest.mark.parametrize("sign", [b"", b"-"])
def test_an_integer_of_so_many_digits(digits: int, sign: bytes) -> None:
    text = (b"1234567890" * 241)[:digits]
    expected = 0
    for digit in text:
        expected = expected * 10 + digit - 48
    assert Decoder().decode(b":" + sign + text + b"\r\n") == [-expected if sign else expected]
    with pytest.raises(ProtocolError):
        Decoder().decode(b":" + sign + b"0" + text + b"\r\n")


def test_an_attribute_inside_a_reply_needs_a_value_behind_it() -> None:
    for wire in (b"*?\r\n|0\r\n.\r\n", b"*?\r\n:1\r\n|1\r\n:1\r\n:2\r\n.\r\n"):
        with pytest.raises(ProtocolError, match="without its value"):
            Decoder().decode(wire)
    for wire in (b".\r\n", b"*1\r\n.\r\n", b"*2\r\n:1\r\n.\r\n", b"*?\r\n*1\r\n.\r\n"):
        with pytest.raises(ProtocolError, match="without a streamed aggregate") as caught:
            Decoder().decode(wire)
        assert caught.value.offset == len(wire) - 3


@pytest.mark.parametrize("limits", [{}, {"max_bulk": 100}])
def test_attributes_of_a_reply_are_not_those_of_one_that_was_cut(limits: dict[str, int]) -> None:
    decoder = Decoder(**limits)
    assert decoder.decode(b"|1\r\n+a\r\n+b\r\n:1\r\n+cu") == [1]
    assert decoder.attributes == {"a": "b"}
    assert decoder.decode(b"t") == []
    assert decoder.attributes is None
    assert decoder.decode(b"\r\n|1\r\n+a\r\n+b\r\n:2\r\n+x") == ["cut", 2]
    assert decoder.attributes == {"a": "b"}
    assert decoder.decode(b"\r\n") == ["x"]
    assert decoder.attributes is None


# What a fast way must leave to the plain one


@pytest.mark.parametrize(
    ("wire", "values", "offset", "limits"),
    [
        (b"$\r\r\n", [], 1, {}),
        (b":\n\r\n", [], 1, {}),
        (b"+a\r\n:12345\r\n:01\r\n", ["a", 12345], 12, {}),
        (b"$1\r\na\r\n$5000\r\n%b\r\n" % bytes(5000) * 8, [b"a"], 7, {"max_bulk": 4096}),
        (b"*1\r\n*100\r\n" + b"*1\r\n*1\r\n:1\r\n" * 100, [], 14, {"max_depth": 3}),
        (b"$600\r\n%b\r\n" % bytes(600) * 2 + b"$\r\n", [bytes(600)] * 2, 1216, {}),
        (b":1\r\n" + b"|1\r\n+k\r\n+v\r\n" * 2, [1], 16, {"max_elements": 3}),
    ],
)
def test_a_fault_behind_what_is_read_at_once(
    wire: bytes, values: list[Any], offset: int, limits: dict[str, int]
) -> None:
    found = outcome(lambda: Decoder(**limits), [wire], singly=False)
    assert (found.replies, found.offset) == (list(map(typed, values)), offset)


@pytest.mark.parametrize(
    ("chunks", "values", "limits"),
    [
        ([b"*2\r\n+a\r\n", b":7\r\n" * 20], [["a", 7], *[7] * 19], {}),
        ([b"*200\r\n", b":1\r\n" * 200], [[1] * 200], {}),
        ([b"*200\r\n*200\r\n", b":1\r\n" * 399], [[[1] * 200, *[1] * 199]], {}),
        (
            [b"$600\r\n%b\r\n" % bytes(600) * 2 + b"=600\r\ntxt:%b\r\n" % bytes(596)],
            [*[bytes(600)] * 2, Verbatim(bytes(596))],
            {},
        ),
        ([b"$600\r\n%b\r\n" % bytes(600) * 2 + b"$?\r\n;0\r\n"], [*[bytes(600)] * 2, b""], {}),
        (
            [b"*20\r\n" + b"$1\r\na\r\n$2\r\nbc\r\n" * 10 + b"+OK\r\n:5\r\n" * 15],
            [[b"a", b"bc"] * 10, *["OK", 5] * 15],
            {},
        ),
        ([b"|1\r\n+a\r\n+b\r\n*3\r\n:1\r\n:2\r\n:3\r\n"], [[1, 2, 3]], {"max_elements": 3}),
    ],
)
def test_what_follows_what_is_read_at_once(
    chunks: list[bytes], values: list[Any], limits: dict[str, int]
) -> None:
    found = outcome(lambda: Decoder(**limits), chunks, singly=False)
    assert (found.replies, found.error) == (list(map(typed, values)), None)


def test_a_stray_end_of_line_at_the_bound_is_told_as_one() -> None:
    with pytest.raises(ProtocolError, match="a CR or LF inside a line") as caught:
        Decoder(max_line=5).decode(b"+abcde\n")
    assert caught.value.offset == 6

"""The decoder, rule by rule: values, limits, errors, the work it does and the memory it takes."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from resp.decode import NEED_DATA, Decoder, ErrorReply, Pairs, Push, Verbatim
from resp.errors import ProtocolError
from tests.strategies import decode, plain, typed


def replies(wire: bytes, **limits: int) -> list[Any]:
    """Answer the replies in `wire`, taken together and taken one by one."""
    together, singly = Decoder(**limits), Decoder(**limits)
    together.feed(wire)
    singly.feed(wire)
    found = together.replies()
    assert [typed(singly.next()) for _ in found] == [typed(reply) for reply in found]
    assert singly.next() is NEED_DATA
    return found


def exhaust(decoder: Decoder) -> None:
    """Take the replies that are complete, all at once."""
    while decoder.replies():
        pass


def consume(decoder: Decoder, chunks: list[bytes]) -> None:
    """Feed the chunks, and take every reply as soon as it is complete."""
    for chunk in chunks:
        decoder.feed(chunk)
        while decoder.next() is not NEED_DATA:
            pass


def refused(wire: bytes, **limits: int) -> ProtocolError:
    """Answer the error that ends `wire`, the same whole and byte by byte."""
    errors = []
    decoder = Decoder(**limits)
    decoder.feed(wire)
    with pytest.raises(ProtocolError) as caught:
        exhaust(decoder)
    errors.append(caught.value)
    for chunks in ([wire], [bytes((byte,)) for byte in wire]):
        with pytest.raises(ProtocolError) as caught:
            consume(Decoder(**limits), chunks)
        errors.append(caught.value)
    assert len(set(map(str, errors))) == 1
    return errors[0]


# Values


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (b"+OK\r\n", "OK"),
        (b"+\xff\r\n", "\udcff"),
        (b"$3\r\na\r\n\r\n", b"a\r\n"),
        (b":-12\r\n", -12),
        (b"(123456789012345678901234567890\r\n", 123456789012345678901234567890),
        (b",1.5\r\n", 1.5),
        (b",-inf\r\n", -math.inf),
        (b",nan(0x8000)\r\n", math.nan),
        (b",-0\r\n", -0.0),
        (b"#t\r\n", True),
        (b"_\r\n", None),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"-WRONGTYPE x\r\n", ErrorReply("WRONGTYPE", "WRONGTYPE x")),
        (b"!5\r\na\r\nb!\r\n", ErrorReply("", "a\r\nb!")),
        (b"*2\r\n-ERR a\r\n+b\r\n", [ErrorReply("ERR", "ERR a"), "b"]),
        (b"=5\r\ntxt:a\r\n", Verbatim(b"a", "txt")),
        (b"=5\r\n\xff  :a\r\n", Verbatim(b"a", "\udcff  ")),
        (b"%1\r\n+a\r\n:1\r\n", {"a": 1}),
        (b"~2\r\n+a\r\n:1\r\n", {"a", 1}),
        (b">2\r\n$7\r\nmessage\r\n:1\r\n", Push("message", [1])),
        (b">1\r\n=5\r\ntxt:a\r\n", Push("a", [])),
        (b"$?\r\n;2\r\nab\r\n;1\r\nc\r\n;0\r\n", b"abc"),
        (b"*?\r\n:1\r\n*?\r\n.\r\n.\r\n", [1, []]),
        (b"%?\r\n:1\r\n:2\r\n.\r\n", {1: 2}),
        (b"~?\r\n:1\r\n.\r\n", {1}),
    ],
)
def test_value(wire: bytes, value: Any) -> None:
    expected = [typed(value), typed("next")]
    for factory in (Decoder, plain):
        assert decode(factory, [wire + b"+next\r\n"]).replies == expected
        assert decode(factory, [wire, b"+next\r\n"]).replies == expected


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (b"%2\r\n:1\r\n+a\r\n#t\r\n+b\r\n", Pairs([(1, "a"), (True, "b")])),
        (b"%2\r\n,1\r\n+a\r\n:1\r\n+b\r\n", Pairs([(1.0, "a"), (1, "b")])),
        (b"%1\r\n*0\r\n+a\r\n", Pairs([([], "a")])),
        (b"%1\r\n%0\r\n+a\r\n", Pairs([({}, "a")])),
        (b"%2\r\n,nan\r\n:1\r\n,-nan\r\n:2\r\n", Pairs([(math.nan, 1), (math.nan, 2)])),
        (b"%2\r\n=5\r\ntxt:a\r\n:1\r\n$1\r\na\r\n:2\r\n", Pairs([(Verbatim(b"a"), 1), (b"a", 2)])),
        (b"%2\r\n+a\r\n:1\r\n$1\r\na\r\n:2\r\n", {"a": 1, b"a": 2}),
        (b"%1\r\n-ERR\r\n:1\r\n", {ErrorReply("ERR", "ERR"): 1}),
        (b"~2\r\n:1\r\n#t\r\n", [1, True]),
        (b"~1\r\n*0\r\n", [[]]),
        (b"~2\r\n,nan\r\n,nan\r\n", [math.nan, math.nan]),
    ],
)
def test_what_a_dict_or_set_would_lose_is_kept(wire: bytes, value: Any) -> None:
    for factory in (Decoder, plain):
        assert decode(factory, [wire]).replies == [typed(value)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ERR", "ERR"),
        ("ERR x", "ERR"),
        ("ERR ", "ERR"),
        ("E2_A x", "E2_A"),
        ("my thing", ""),
        ("Err x", ""),
        ("ERR: x", ""),
        ("_A x", ""),
        ("2A x", ""),
        ("", ""),
        (" ERR", ""),
        ("ÄRR x", ""),
    ],
)
def test_error_code(text: str, code: str) -> None:
    assert replies(b"-%b\r\n" % text.encode()) == [ErrorReply(code, text)]
    assert replies(b"!%d\r\n%b\r\n" % (len(text.encode()), text.encode())) == [
        ErrorReply(code, text)
    ]


@pytest.mark.parametrize("digits", [599, 600, 601, 1200, 5000, 60_000])
def test_integers_of_any_size(digits: int) -> None:
    limit = sys.get_int_max_str_digits()
    number = 10**digits // 7
    half = 10 ** (digits // 2)
    high, low = divmod(number, half)
    wire = b""
    for part in (high, low):
        pieces = []
        while part:
            part, piece = divmod(part, 10**500)
            pieces.append(b"%0500d" % piece)
        wire += b"".join(reversed(pieces)).lstrip(b"0").zfill(digits // 2 if wire else 0)
    for mark in (b":", b"(", b":-", b"(-"):
        assert replies(mark + wire + b"\r\n") == [-number if mark[1:] else number]
    assert sys.get_int_max_str_digits() == limit


@pytest.mark.parametrize(
    "line",
    [
        *(
            b":" + text
            for text in (b"", b"-", b"+5", b"-0", b"007", b"-01", b" 5", b"5 ", b"1_000")
        ),
        *(b":" + text for text in (b"\xd9\xa5", b"0x10", b"1e3", b"--5", b"12a", b"\t5", b"5\x0b")),
        *(b"(" + text for text in (b"", b"+5", b"1_0", b"12  34", b"abc", b"1.5", b"0" * 700)),
        *(b"," + text for text in (b"", b"1_0", b" 1", b"infinity", b"Inf", b"1e400", b"-1e400")),
        *(b"," + text for text in (b".5", b"1.", b"+1", b"1e", b"e5", b"0x1p3", b"01", b"nan(")),
        *(b"#" + text for text in (b"", b"1", b"true", b"tt")),
        b"_x",
        *(
            b"$" + text
            for text in (b"", b"-2", b"-01", b"01", b"+1", b" 1", b"1.0", b"abc", b"1_0")
        ),
        *(b"*" + text for text in (b"", b"-2", b"-0", b"01", b"x", b"1 ")),
        *(b"%" + text for text in (b"-1", b"01")),
        *(b"~" + text for text in (b"-1", b"x")),
        *(b">" + text for text in (b"-1", b"?", b"0")),
        *(b"|" + text for text in (b"-1", b"?")),
        *(b"!" + text for text in (b"-1", b"?")),
        *(b"=" + text for text in (b"-1", b"?", b"3")),
        b".",
        b".x",
    ],
)
def test_malformed_line(line: bytes) -> None:
    for before in (b"", b"+OK\r\n", b"+OK\r\n" * 100):
        assert refused(before + line + b"\r\n+next\r\n").offset == len(before)


@pytest.mark.parametrize(
    ("wire", "offset"),
    [
        (b"?", 0),
        (b"\r\n", 0),
        (b"HTTP/1.1 400 Bad Request\r\n", 0),
        (b"+OK\r\n?", 5),
        (b";1\r\na\r\n", 0),
        (b"+a\rb\r\n", 2),
        (b"+a\nb\r\n", 2),
        (b"+a\n", 2),
        (b"+a\r\r\n", 2),
        (b"-a\nb\r\n", 2),
        (b":1\n2\r\n", 2),
        (b"$1\n\r\n", 2),
        (b"$1\r\nab\r\n", 5),
        (b"$1\r\na\rb", 6),
        (b"$0\r\n\n", 4),
        (b"=5\r\ntxtxa\r\n", 0),
        (b"*1\r\n>1\r\n+a\r\n", 4),
        (b"|1\r\n+a\r\n>1\r\n+a\r\n", 8),
        (b"+x\r\n>2\r\n:1\r\n:2\r\n", 4),
        (b"$?\r\n+a\r\n", 4),
        (b"$?\r\n$1\r\na\r\n", 4),
        (b"$?\r\n;1\r\nab\r\n", 9),
        (b"$?\r\n;0\r\n\r\n", 8),
        (b"*1\r\n.\r\n", 4),
        (b"*?\r\n.x\r\n", 4),
        (b"%?\r\n:1\r\n.\r\n", 8),
        (b"*?\r\n|1\r\n+a\r\n+b\r\n.\r\n", 16),
        (b"|1\r\n+a\r\n+b\r\n.\r\n", 12),
    ],
)
def test_malformed_stream(wire: bytes, offset: int) -> None:
    error = refused(wire)
    assert error.offset == offset
    assert str(error).endswith(f"at offset {offset}")


# Bursts

ROW = b"*2\r\n$1\r\na\r\n:1\r\n"


@pytest.mark.parametrize(
    ("odd", "value"),
    [
        (b"%1\r\n$1\r\na\r\n:1\r\n", {b"a": 1}),
        (b"~2\r\n$1\r\na\r\n:1\r\n", {b"a", 1}),
        (b"*2\r\n$1\r\nb\r\n:2\r\n", [b"b", 2]),
        (b"*2\r\n$-1\r\n$1\r\n1\r\n", [None, b"1"]),
        (b"*2\r\n$2\r\n\r\n\r\n:1\r\n", [b"\r\n", 1]),
        (b"*2\r\n$1\r\na\r\n+1\r\n", [b"a", "1"]),
        (b"*2\r\n$1\r\na\r\n*0\r\n", [b"a", []]),
        (b"*1\r\n*2\r\n:1\r\n:2\r\n", [[1, 2]]),
        (b"*3\r\n:1\r\n:2\r\n:3\r\n", [1, 2, 3]),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 15, 16, 17, 70, 99])
def test_a_row_unlike_its_neighbours(odd: bytes, value: Any, place: int) -> None:
    rows = [ROW] * 100
    rows[place] = odd
    expected = [[b"a", 1]] * 100
    expected[place] = value
    assert typed(replies(b"".join(rows))) == typed(expected)
    assert typed(replies(b"*100\r\n" + b"".join(rows))) == typed([expected])


@pytest.mark.parametrize("size", [1, 32, 600, 5000])
@pytest.mark.parametrize("place", [0, 1, 3, 4, 15, 16, 63, 64, 90, 99])
def test_a_bulk_unlike_its_neighbours(size: int, place: int) -> None:
    good = b"$%d\r\n%b\r\n" % (size, bytes(size))
    for odd, value in ((b":1\r\n", 1), (b"$2\r\n\r\n\r\n", b"\r\n"), (b"+a\r\n", "a")):
        bulks = [good] * 100
        bulks[place] = odd
        expected: list[Any] = [bytes(size)] * 100
        expected[place] = value
        assert replies(b"".join(bulks)) == expected
        assert replies(b"*100\r\n" + b"".join(bulks)) == [expected]
    for bad, at in (
        (b"$0%d" % size + good[good.index(b"\r\n") :], 0),
        (good[:-2] + b"\rx", len(good) - 1),
        (good[:-2] + b"xx", len(good) - 2),
    ):
        bulks = [good] * 100
        bulks[place] = bad
        assert refused(b"".join(bulks)).offset == place * len(good) + at


@pytest.mark.parametrize("place", [0, 1, 7, 8, 63, 64, 90])
def test_a_line_unlike_its_neighbours(place: int) -> None:
    for line, value in (
        (b":7\r\n", 7),
        (b"+a long enough line to matter\r\n", "a long enough line to matter"),
    ):
        lines = [line] * 100
        lines[place] = b":8\r\n"
        expected: list[Any] = [value] * 100
        expected[place] = 8
        assert replies(b"".join(lines)) == expected
        assert replies(b"*100\r\n" + b"".join(lines) + b":9\r\n") == [expected, 9]


def test_malformed_lines_that_are_all_the_same() -> None:
    assert refused(b"+OK\r\n" + b":+5\r\n" * 100).offset == 5


def test_a_column_of_bulks_with_a_large_one_in_it() -> None:
    sizes = [1, 2, 3, 4, 1500, 5, 6, 7, 8, 9] * 3
    wire = b"".join(b"$%d\r\n%b\r\n" % (size, bytes(size)) for size in sizes)
    assert replies(b"*30\r\n" + wire) == [[bytes(size) for size in sizes]]
    assert replies(wire) == [bytes(size) for size in sizes]


@pytest.mark.parametrize("count", [1, 3, 15, 17, 63, 70, 97, 130, 200])
@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (b":7\r\n", 7),
        (b"$1\r\na\r\n", b"a"),
        (b"$600\r\n%b\r\n" % bytes(600), bytes(600)),
        (b"$5000\r\n%b\r\n" % bytes(5000), bytes(5000)),
        (ROW, [b"a", 1]),
    ],
)
def test_an_array_ends_where_it_says_so(wire: bytes, value: Any, count: int) -> None:
    found = replies(b"*%d\r\n" % count + wire * 250)
    assert found == [[value] * count] + [value] * (250 - count)


# Attributes


def test_attributes_belong_to_the_reply_that_follows() -> None:
    decoder = Decoder()
    decoder.feed(b"+a\r\n|1\r\n+ttl\r\n:3\r\n*1\r\n:1\r\n+c\r\n|0\r\n+d\r\n")
    found = [(decoder.next(), decoder.attributes) for _ in range(5)]
    assert found == [("a", None), ([1], {"ttl": 3}), ("c", None), ("d", {}), (NEED_DATA, None)]


def test_attributes_that_follow_each_other_are_one() -> None:
    decoder = Decoder()
    decoder.feed(
        b"|1\r\n+a\r\n:1\r\n|1\r\n+b\r\n:2\r\n+x\r\n|1\r\n+a\r\n:1\r\n|1\r\n+a\r\n:2\r\n+y\r\n"
    )
    assert (decoder.next(), decoder.attributes) == ("x", {"a": 1, "b": 2})
    assert (decoder.next(), decoder.attributes) == ("y", Pairs([("a", 1), ("a", 2)]))


def test_attributes_inside_a_reply_are_dropped() -> None:
    decoder = Decoder()
    decoder.feed(b"*2\r\n|1\r\n+a\r\n|1\r\n+b\r\n:1\r\n:2\r\n:3\r\n%1\r\n|0\r\n+k\r\n|0\r\n+v\r\n")
    assert (decoder.next(), decoder.attributes) == ([3, {"k": "v"}], None)


def test_attributes_wait_for_their_reply() -> None:
    decoder = Decoder()
    decoder.feed(b"+a\r\n|1\r\n+ttl\r\n:3\r\n")
    assert (decoder.replies(), decoder.attributes) == (["a"], None)
    assert (decoder.replies(), decoder.attributes) == ([], None)
    decoder.feed(b"+b\r\n")
    assert (decoder.replies(), decoder.attributes) == (["b"], {"ttl": 3})
    decoder.feed(b"+c\r\n")
    assert (decoder.replies(), decoder.attributes) == (["c"], None)


def test_attributes_of_the_last_of_many_replies() -> None:
    decoder = Decoder()
    decoder.feed(b"|1\r\n+a\r\n:1\r\n+x\r\n|1\r\n+b\r\n:2\r\n+y\r\n|1\r\n+c\r\n:3\r\n")
    assert (decoder.replies(), decoder.attributes) == (["x", "y"], {"b": 2})
    decoder.feed(b"+z\r\n")
    assert (decoder.next(), decoder.attributes) == ("z", {"c": 3})


def test_a_push_takes_no_part_in_the_array_after_it() -> None:
    assert replies(b">1\r\n+a\r\n*1\r\n:1\r\n>1\r\n+b\r\n") == [Push("a", []), [1], Push("b", [])]


# The two ways to take replies


def test_next_and_replies_take_turns() -> None:
    decoder = Decoder()
    assert decoder.next() is NEED_DATA
    assert decoder.replies() == []
    decoder.feed(b"+a\r\n+b\r\n+c\r\n")
    assert decoder.next() == "a"
    decoder.feed(b"+d\r\n*2\r\n:1\r\n")
    assert decoder.replies() == ["b", "c", "d"]
    decoder.feed(b":2\r\n+e\r\n")
    assert decoder.next() == [1, 2]
    assert decoder.replies() == ["e"]
    assert decoder.offset == 29 + 3


def test_replies_are_given_before_the_error_and_the_error_for_ever_after() -> None:
    decoder = Decoder()
    decoder.feed(b"+a\r\n+b\r\n*2\r\n:1\r\n?")
    assert decoder.replies() == ["a", "b"]
    for _ in range(3):
        with pytest.raises(ProtocolError, match="at offset 16"):
            decoder.replies()
        with pytest.raises(ProtocolError, match="at offset 16"):
            decoder.next()
        decoder.feed(b"+OK\r\n")
        decoder.feed(bytearray(b"+OK\r\n"))
    assert decoder.offset == 16


def test_fed_buffers_may_be_used_again() -> None:
    decoder = Decoder()
    buffer = bytearray(b"$3\r\nabc\r\n*1\r\n")
    decoder.feed(memoryview(buffer)[:9])
    decoder.feed(buffer)
    buffer[:] = b"x" * len(buffer)
    decoder.feed(b"")
    decoder.feed(memoryview(b"+a\r\n"))
    assert decoder.replies() == [b"abc", b"abc", ["a"]]


def test_a_reply_does_not_share_its_containers() -> None:
    decoder = Decoder()
    decoder.feed(b"*0\r\n%0\r\n~0\r\n*0\r\n" * 50)
    found = decoder.replies()
    assert len({id(reply) for reply in found}) == 200


# Limits


def test_max_bulk() -> None:
    assert replies(b"$5\r\nabcde\r\n", max_bulk=5) == [b"abcde"]
    assert refused(b"+a\r\n$6\r\n", max_bulk=5).offset == 4
    assert refused(b"!6\r\n", max_bulk=5).offset == 0
    assert refused(b"$?\r\n;3\r\nabc\r\n;3\r\n", max_bulk=5).offset == 13
    assert replies(b"$?\r\n;3\r\nabc\r\n;2\r\nde\r\n;0\r\n", max_bulk=5) == [b"abcde"]
    assert refused(b"$" + b"9" * 30 + b"\r\n").offset == 0
    assert refused(b"$%d\r\n" % (512 * 1024 * 1024 + 1)).offset == 0
    assert replies(b"$%d\r\n" % (512 * 1024 * 1024)) == []


@pytest.mark.parametrize("size", [4095, 4096, 4097, 50_000])
def test_max_bulk_of_what_comes_whole(size: int) -> None:
    wire = b"$%d\r\n%b\r\n" % (size, bytes(size))
    assert replies(wire, max_bulk=size) == [bytes(size)]
    assert refused(wire, max_bulk=size - 1).offset == 0
    assert refused(wire + wire, max_bulk=size - 1).offset == 0


def test_max_line() -> None:
    assert replies(b"+abcde\r\n", max_line=5) == ["abcde"]
    assert refused(b"+abcdef", max_line=5).offset == 6
    assert refused(b"+abcdef\r\n", max_line=5).offset == 6
    assert refused(b":" + b"1" * 6, max_line=5).offset == 6
    assert refused(b"$" + b"1" * 6, max_line=5).offset == 6
    assert refused(b"+abcde\r\r\n", max_line=5).offset == 6
    assert replies(b"+" + b"a" * 65536 + b"\r\n") == ["a" * 65536]
    assert refused(b"+OK\r\n+" + b"a" * 65537).offset == 6 + 65536


def test_max_elements() -> None:
    assert replies(b"*3\r\n:1\r\n:2\r\n:3\r\n", max_elements=3) == [[1, 2, 3]]
    assert refused(b"*4\r\n", max_elements=3).offset == 0
    assert refused(b"~4\r\n", max_elements=3).offset == 0
    assert refused(b">4\r\n", max_elements=3).offset == 0
    assert replies(b"%1\r\n:1\r\n:2\r\n", max_elements=3) == [{1: 2}]
    assert refused(b"%2\r\n", max_elements=3).offset == 0
    assert refused(b"|2\r\n", max_elements=3).offset == 0
    assert replies(b"*?\r\n:1\r\n:2\r\n:3\r\n.\r\n", max_elements=3) == [[1, 2, 3]]
    assert refused(b"*?\r\n:1\r\n:2\r\n:3\r\n:", max_elements=3).offset == 16
    assert refused(b"%?\r\n:1\r\n:2\r\n:3\r\n:4\r\n", max_elements=3).offset == 16
    assert replies(
        b"*?\r\n:1\r\n|0\r\n$?\r\n;1\r\na\r\n;0\r\n|0\r\n:3\r\n.\r\n", max_elements=3
    ) == [[1, b"a", 3]]
    assert replies(b"*16777216\r\n") == []
    assert refused(b"*16777217\r\n").offset == 0
    assert refused(b"*9223372036854775808\r\n").offset == 0


def test_max_depth() -> None:
    assert replies(b"*1\r\n*1\r\n:1\r\n", max_depth=2) == [[[1]]]
    assert refused(b"*1\r\n*1\r\n*1\r\n", max_depth=2).offset == 8
    assert refused(b"*1\r\n*1\r\n*0\r\n", max_depth=2).offset == 8
    assert refused(b"|1\r\n|1\r\n%?\r\n", max_depth=2).offset == 8
    assert refused(b"*1\r\n", max_depth=0).offset == 0
    assert len(replies((b"*1\r\n" * 128 + b":1\r\n") * 20)) == 20
    assert refused(b"*1\r\n" * 129 + b":1\r\n").offset == 512
    assert refused(b"+OK\r\n" + b"|1\r\n" * 100_000).offset == 5 + 512


# Work and memory


@contextmanager
def _memory_below(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit


@pytest.mark.parametrize(
    "header",
    [
        *(b"*16777216\r\n", b"%8388608\r\n", b"~16777216\r\n", b"|8388608\r\n", b">16777216\r\n"),
        *(b"$536870912\r\n", b"=536870912\r\n", b"$?\r\n;536870912\r\n", b"*16777216\r\n" * 128),
    ],
)
def test_a_length_that_is_announced_takes_no_memory(header: bytes) -> None:
    decoder = Decoder()
    with _memory_below(100_000):
        decoder.feed(header)
        assert decoder.replies() == []
        decoder.feed(b"+a\r\n" if header[:1] in b"*%~|>" else b"a")
        assert decoder.replies() == []


def test_small_pieces_of_a_bulk_take_little_more_memory_than_the_bulk() -> None:
    size = 2**20
    decoder = Decoder()
    with _memory_below(4 * size):
        decoder.feed(b"$%d\r\n" % size)
        for _ in range(size // 8):
            decoder.feed(b"12345678")
            assert decoder.next() is NEED_DATA
        decoder.feed(b"\r\n")
        assert decoder.replies() == [b"12345678" * (size // 8)]


def test_what_was_read_is_let_go() -> None:
    decoder = Decoder()
    chunk = b"*3\r\n$3\r\nabc\r\n:1\r\n+OK\r\n" * 2000
    with _memory_below(40 * len(chunk)):
        for _ in range(50):
            decoder.feed(chunk + b"*2\r\n:1")
            assert len(decoder.replies()) >= 2000
            decoder.feed(b"1\r\n:2\r\n")
            assert decoder.replies() == [[11, 2]]


class Counting(Decoder):
    """Counts the bytes that it looks at."""

    __slots__ = ("looked_at",)

    looked_at: int

    def _join(self) -> tuple[bytes, int]:
        buffer, start = super()._join()
        self.looked_at += len(buffer)
        return buffer, start


@pytest.mark.parametrize("size", [1, 7, 1000, 1460, 65536])
@pytest.mark.parametrize(
    "wire",
    [
        b"$%d\r\n%b\r\n" % (2**20, bytes(2**20)),
        b"*100000\r\n" + b":7\r\n" * 100_000,
        b"+" + b"a" * 60_000 + b"\r\n",
        b"*1000\r\n" + b"$200\r\n%b\r\n" % bytes(200) * 1000,
        b"$?\r\n" + b";1000\r\n%b\r\n" % bytes(1000) * 200 + b";0\r\n",
    ],
    ids=["bulk", "array", "line", "bulks", "streamed"],
)
def test_work_follows_the_bytes_whatever_their_cuts(wire: bytes, size: int) -> None:
    if len(wire) > 500_000 and size == 1:
        wire = b"$%d\r\n%b\r\n" % (2**17, bytes(2**17))
    decoder = Counting()
    decoder.looked_at = 0
    found = 0
    for at in range(0, len(wire), size):
        decoder.feed(wire[at : at + size])
        found += len(decoder.replies())
    assert found == 1
    # A short token is looked at again for each of its bytes that comes alone.
    assert decoder.looked_at < 8 * len(wire)


def test_an_endless_line_stops_at_the_limit() -> None:
    decoder = Counting()
    decoder.looked_at = 0
    chunks = [b"+aaaaaa", *[b"aaaaaaa"] * (65536 // 7 - 1), b"aaa", b"aaaaaaa"]
    with _memory_below(1_000_000):
        consume(decoder, chunks[:-1])
        with pytest.raises(ProtocolError, match="max_line"):
            consume(decoder, chunks[-1:])
    assert decoder.looked_at < 4 * 65536


def test_feeding_more_than_is_taken_stays_linear() -> None:
    decoder = Counting()
    decoder.looked_at = 0
    for _ in range(20_000):
        decoder.feed(b"+a\r\n+b\r\n")
        assert decoder.next() in {"a", "b"}
    assert decoder.looked_at <= 2 * 20_000 * 8
    assert len(decoder.replies()) == 20_000


def test_a_bulk_that_ends_between_its_cr_and_lf() -> None:
    body = bytes(range(256)) * 200
    wire = b"$%d\r\n%b\r\n+OK\r\n" % (len(body), body)
    for cut in range(len(wire) - 9, len(wire) + 1):
        decoder = Decoder()
        for chunk in (wire[:20_000], wire[20_000:40_000], wire[40_000:cut], wire[cut:]):
            decoder.feed(chunk)
            early = decoder.replies()
            if early:
                break
        assert (early + decoder.replies())[0] == body
    for tail in (b"\n\r", b"\rx", b"x\n"):
        chunks = [wire[:30_000], wire[30_000:-7], tail, b"+OK\r\n"]
        assert decode(Decoder, chunks).offset == len(wire) - 7 + (tail[0] == 13)


# The values by themselves


def test_error_reply_is_a_value() -> None:
    error = ErrorReply("ERR", "ERR x")
    assert error == ErrorReply("ERR", "ERR x") != ErrorReply("ERR", "ERR y")
    assert hash(error) == hash(ErrorReply("ERR", "ERR x"))
    assert error != "ERR x"
    assert repr(error) == "ErrorReply(code='ERR', message='ERR x')"
    assert pickle.loads(pickle.dumps(error)) == copy.deepcopy(error) == error
    with pytest.raises(AttributeError):
        error.code = "OK"
    with pytest.raises(AttributeError):
        del error.message
    with pytest.raises(AttributeError):
        error.other = 1


def test_push_verbatim_and_pairs_show_themselves() -> None:
    push = Push("message", ["a"])
    assert push == Push("message", ["a"]) != Push("message", ["b"])
    assert push != ["a"]
    assert repr(push) == "Push(kind='message', items=['a'])"
    with pytest.raises(TypeError):
        hash(push)
    text = Verbatim(b"a", "mkd")
    assert text == b"a"
    assert repr(text) == "Verbatim(b'a', format='mkd')"
    copied = pickle.loads(pickle.dumps(text))
    assert (copied, copied.format) == (b"a", "mkd")
    pairs = Pairs([(1, 2)])
    assert pairs == [(1, 2)]
    assert repr(pairs) == "Pairs([(1, 2)])"
    assert repr(NEED_DATA) == "NEED_DATA"


def test_members_that_share_a_hash_take_linear_time() -> None:
    """All multiples of 2**61 - 1 hash to 0: a table of them is quadratic to build."""
    count = 65_536
    lines = b"".join(b":%d\r\n" % (number * (2**61 - 1)) for number in range(count))
    began = time.process_time()
    for wire in (b"~%d\r\n" % count + lines, b"%%%d\r\n" % (count // 2) + lines):
        decoder = Decoder()
        decoder.feed(wire)
        [reply] = decoder.replies()
        assert type(reply) in (list, Pairs)
    assert time.process_time() - began < 10


def test_the_attributes_before_one_reply_are_bounded() -> None:
    decoder = Decoder(max_elements=1000)
    decoder.feed(b"|1\r\n+k\r\n+v\r\n" * 501)
    with pytest.raises(ProtocolError, match="attributes"):
        decoder.replies()


@pytest.mark.parametrize("limit", [-1, True, 1.5, None, "5"])
def test_a_limit_is_a_whole_number(limit: Any) -> None:
    for name in ("max_bulk", "max_line", "max_elements", "max_depth"):
        with pytest.raises(ValueError, match="whole number"):
            Decoder(**{name: limit})


@pytest.mark.parametrize("data", [5, "text", [1], None])
def test_a_decoder_is_fed_bytes(data: Any) -> None:
    with pytest.raises(TypeError, match="fed bytes"):
        Decoder().feed(data)


@pytest.mark.parametrize("size", [*range(13), *range(95, 104), 999, 1000, 4086, 4096, 9999, 10_000])
def test_one_bulk_a_chunk_is_as_long_as_it_says(size: int) -> None:
    """A chunk's length tells how a bulk that fills it begins; what begins otherwise is no such."""
    whole = b"$%d\r\n%b\r\n" % (size, b"x" * size)
    assert decode(Decoder, [whole], singly=False).replies == [typed(b"x" * size)]
    for near in (
        b"$%d\r\n%b\r\n" % (size + 1, b"x" * size),
        b"$%d\r\n%b\r\n" % (size, b"x" * (size + 1)),
        b"$0%d\r\n%b\r\n" % (size, b"x" * size),
        whole[:-2] + b"xx",
        whole[:-1],
        whole + b"\n",
        b"+" + whole[1:],
    ):
        assert decode(Decoder, [near], singly=False) == decode(plain, [near], singly=False)
    if size:
        with pytest.raises(ProtocolError):
            replies(whole, max_bulk=size - 1)

"""Replies as text, in three forms. The typed ones were compared with redis-cli 7."""

from __future__ import annotations

import json
import math
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp import Decoder, ErrorReply
from resp.commands import typed


def _decoded(wire: bytes) -> Any:
    decoder = Decoder()
    decoder.feed(wire)
    return decoder.next()


@pytest.mark.parametrize(
    ("wire", "told"),
    [
        (b"+OK\r\n", "OK"),
        (b"-ERR no\r\n", "(error) ERR no"),
        (b"!6\r\nERR no\r\n", "(error) ERR no"),
        (b":-7\r\n", "(integer) -7"),
        (b"(123456789012345678901234567890\r\n", "(integer) 123456789012345678901234567890"),
        (b",1.50\r\n", "(double) 1.5"),
        (b",3\r\n", "(double) 3"),
        (b",inf\r\n", "(double) inf"),
        (b",-inf\r\n", "(double) -inf"),
        (b",nan\r\n", "(double) nan"),
        (b"#t\r\n", "(true)"),
        (b"#f\r\n", "(false)"),
        (b"_\r\n", "(nil)"),
        (b"$-1\r\n", "(nil)"),
        (b"$4\r\na\x1b\"\xff\r\n", '"a\\x1b\\"\\xff"'),
        (b"=10\r\ntxt:a\nb\x1b[m\r\n", "a\nb\\x1b[m"),
        (b"+\x1b[31mred\r\n", "\\x1b[31mred"),
        (b"-ERR \x9b1m \xc2\x9b\xe2\x80\xae\r\n", "(error) ERR \\x9b1m \\x9b\\u202e"),
        (b"*0\r\n", "(empty array)"),
        (b"%0\r\n", "(empty hash)"),
        (b"~0\r\n", "(empty set)"),
        (b"*2\r\n:1\r\n$1\r\na\r\n", '1) (integer) 1\n2) "a"'),
        (b"~2\r\n$1\r\nb\r\n$1\r\na\r\n", '1~ "a"\n2~ "b"'),
        (b"%1\r\n$1\r\na\r\n#t\r\n", '1# "a" => (true)'),
        (b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", '1> "message"\n2> "c"\n3> "m"'),
    ],
)  # fmt: skip
def test_typed(wire: bytes, told: str) -> None:
    assert typed.formatted(_decoded(wire)) == told


def test_nesting_is_indented_by_the_width_of_the_numbers() -> None:
    reply = [1] * 8 + [[2, [3], {}], {b"a": {b"b": 1, b"c": [4, 5]}, b"d": [6]}]
    assert typed.formatted(reply) == textwrap.dedent(
        """
             1) (integer) 1
             2) (integer) 1
             3) (integer) 1
             4) (integer) 1
             5) (integer) 1
             6) (integer) 1
             7) (integer) 1
             8) (integer) 1
             9) 1) (integer) 2
                2) 1) (integer) 3
                3) (empty hash)
            10) 1# "a" =>
                   1# "b" => (integer) 1
                   2# "c" =>
                      1) (integer) 4
                      2) (integer) 5
                2# "d" => 1) (integer) 6
            """
    ).strip("\n")


@pytest.mark.parametrize(
    ("wire", "data"),
    [
        (b"$3\r\n\x00\xff\n\r\n", b"\x00\xff\n"),
        (b"+OK\r\n", b"OK"),
        (b"-ERR no\r\n", b"ERR no"),
        (b"_\r\n", b""),
        (b":1\r\n", b"1"),
        (b",1.5\r\n", b"1.5"),
        (b"#t\r\n", b"(true)"),
        (b"=5\r\ntxt:a\r\n", b"a"),
        (b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n:2\r\n", b"1\na\n\n2"),
        (b"%2\r\n+a\r\n:1\r\n+b\r\n*2\r\n:2\r\n:3\r\n", b"a 1\nb 2\n3"),
        (b"~2\r\n+b\r\n+a\r\n", b"a\nb"),
        (b"*0\r\n", b""),
    ],
)
def test_raw(wire: bytes, data: bytes) -> None:
    assert typed.raw(_decoded(wire)) == data


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        (b"$2\r\n\xc3\xbc\r\n", "ü"),
        (b"$1\r\n\xff\r\n", {"$base64": "/w=="}),
        (b"+\xff\r\n", {"$base64": "/w=="}),
        (b"-ERR no\r\n", {"$error": "ERR no"}),
        (b",nan\r\n", {"$double": "nan"}),
        (b",-inf\r\n", {"$double": "-inf"}),
        (b",1.5\r\n", 1.5),
        (b"(123456789012345678901234567890\r\n", 123456789012345678901234567890),
        (b"*3\r\n#t\r\n_\r\n:1\r\n", [True, None, 1]),
        (b"~2\r\n+b\r\n+a\r\n", ["a", "b"]),
        (b"%1\r\n+a\r\n%0\r\n", {"a": {}}),
        (b"%1\r\n:1\r\n:2\r\n", {"$pairs": [[1, 2]]}),
        (b"%1\r\n$1\r\n\xff\r\n:2\r\n", {"$pairs": [[{"$base64": "/w=="}, 2]]}),
        # Two keys of which JSON makes one.
        (b"%2\r\n+a\r\n:1\r\n$1\r\na\r\n:2\r\n", {"$pairs": [["a", 1], ["a", 2]]}),
        (b">2\r\n+k\r\n:1\r\n", {"$push": ["k", 1]}),
        (b"=5\r\ntxt:a\r\n", "a"),
    ],
)
def test_json(wire: bytes, value: Any) -> None:
    line = typed.as_json(_decoded(wire))
    assert line.isascii()
    assert json.loads(line) == value


def test_a_number_of_thousands_of_digits_is_shown() -> None:
    number = -(10**5000)
    assert typed.formatted(number) == f"(integer) -0x{10**5000:x}"
    assert typed.raw(number) == f"-0x{10**5000:x}".encode()
    assert json.loads(typed.as_json([number])) == [{"$integer": f"-0x{10**5000:x}"}]


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.builds(ErrorReply, st.just(""), st.text(st.characters(exclude_categories=["Cs"])))
)
_KEYS = st.binary() | st.integers() | st.booleans()
_REPLIES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner) | st.sets(_KEYS),
    max_leaves=20,
)


@given(_REPLIES)
def test_every_reply_has_all_forms_and_no_controls(reply: Any) -> None:
    told = typed.formatted(reply)
    assert not set(told) & {chr(code) for code in [*range(10), *range(11, 32), *range(127, 160)]}
    assert isinstance(typed.raw(reply), bytes)
    line = typed.as_json(reply)
    assert line.isascii()
    assert line.isprintable()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_members_that_cannot_be_compared_have_an_order() -> None:
    group = {b"b", b"a", "c", 2, 1.5, None, math.nan, True, (1, 2)}
    assert typed.members(group) == typed.members(reversed(list(group)))

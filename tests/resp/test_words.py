"""A typed line into words: redis-cli's rules, and the column of what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp.commands.words import LineError, quoted, split, typed


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("  \t ", []),
        ("GET key", [b"GET", b"key"]),
        ("  GET   key\t", [b"GET", b"key"]),
        ('SET k ""', [b"SET", b"k", b""]),
        ("SET k ''", [b"SET", b"k", b""]),
        (r'"\x00\xfF" "\n\r\t\b\a" "\\\""', [b"\x00\xff", b"\n\r\t\b\a", b'\\"']),
        (r'"\q\xg1\x1"', [b"qxg1x1"]),
        (r"'it\'s' 'a\nb' '\\' '\'", [b"it's", b"a\\nb", b"\\\\", None]),
        ("'a\"b' \"a'b\"", [b'a"b', b"a'b"]),
        ('a"b c"', [b"ab c"]),
        ("a'b c'", [b"ab c"]),
        ("\\x00", [b"\\x00"]),
        ("grüße", ["grüße".encode()]),
        ("\udcff\udcfe", [b"\xff\xfe"]),
        ('"\udcff"', [b"\xff"]),
        ("a\nb", [b"a", b"b"]),
    ],
)
def test_lines(line: str, words: list[bytes | None]) -> None:
    if words and words[-1] is None:  # what ends in an escaped quote is not closed
        with pytest.raises(LineError):
            split(line)
        return
    assert split(line) == words


@pytest.mark.parametrize(
    ("line", "column", "told"),
    [
        ('GET "key', 5, 'the " is not closed'),
        ("GET 'key", 5, "the ' is not closed"),
        ('"', 1, 'the " is not closed'),
        ('GET "a\\"', 5, 'the " is not closed'),
        ('GET "a\\', 5, 'the " is not closed'),
        ('ü "a"b', 6, 'a blank must follow the closing "'),
        ("'a''b'", 4, "a blank must follow the closing '"),
        ('a"b"c', 5, 'a blank must follow the closing "'),
    ],
)
def test_what_is_wrong_has_a_column(line: str, column: int, told: str) -> None:
    with pytest.raises(LineError) as caught:
        split(line)
    assert caught.value.column == column
    assert str(caught.value) == f"column {column}: {told}"


@given(st.lists(st.binary()))
def test_what_is_quoted_is_split_into_itself(words: list[bytes]) -> None:
    assert split(" ".join(map(quoted, words))) == words
    assert split(" ".join(map(typed, words))) == words


@given(st.text(alphabet=st.sampled_from("ab \\\"'x0n\n\udcff")))
def test_any_line_has_words_or_a_column_in_it(line: str) -> None:
    column = 1
    try:
        split(line)
    except LineError as error:
        column = error.column
    assert 1 <= column <= max(len(line), 1)


@given(st.binary())
def test_quoted_is_printable(data: bytes) -> None:
    assert quoted(data).isascii()
    assert quoted(data).isprintable()


def test_what_needs_no_quotes_has_none() -> None:
    assert typed(b"user:1[*]") == "user:1[*]"
    assert typed(b"") == '""'
    assert typed(b"a b") == '"a b"'
    assert typed(b"\\tree") == '"\\\\tree"'

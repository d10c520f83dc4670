"""Commands into bytes: every type of argument, every refusal, and both ways to write a command."""

from __future__ import annotations

import enum
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp.decode import Decoder, Verbatim
from resp.encode import Arg, Head, encode_command, encode_commands
from resp.errors import EncodeError, EncodeTypeError, EncodeValueError, RespError


class Number(enum.IntEnum):
    ONE = 1
    MANY = 70_000


class Name(str, enum.Enum):  # noqa: UP042  # what StrEnum is not: its str() is not its value
    GET = "GET"


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Real(float):
    def __repr__(self) -> str:
        return "something else"


def decoded(command: bytes) -> list[Any]:
    """Answer the arguments of encoded commands, read back by the decoder."""
    decoder = Decoder()
    decoder.feed(command)
    return decoder.replies()


@pytest.mark.parametrize(
    ("arg", "text"),
    [
        (b"a\r\nb", b"a\r\nb"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (memoryview(b"abcdefgh").cast("I"), b"abcdefgh"),
        (Verbatim(b"ab", "txt"), b"ab"),
        ("", b""),
        ("café", b"caf\xc3\xa9"),
        ("😀", b"\xf0\x9f\x98\x80"),
        (Text("ab"), b"ab"),
        (Name.GET, b"GET"),
        (0, b"0"),
        (-1, b"-1"),
        (-2, b"-2"),
        (1023, b"1023"),
        (1024, b"1024"),
        (-(2**63), b"-9223372036854775808"),
        (10**18, b"1000000000000000000"),
        (2**70, b"1180591620717411303424"),
        (Number.ONE, b"1"),
        (Number.MANY, b"70000"),
        (0.1, b"0.1"),
        (1.0, b"1.0"),
        (-0.0, b"-0.0"),
        (1e22, b"1e+22"),
        (5e-324, b"5e-324"),
        (math.inf, b"inf"),
        (-math.inf, b"-inf"),
        (math.nan, b"nan"),
        (Real(1.5), b"1.5"),
        (b"x" * 1023, b"x" * 1023),
        (b"x" * 1024, b"x" * 1024),
        ("y" * 70_000, b"y" * 70_000),
    ],
)
def test_argument(arg: Arg, text: bytes) -> None:
    expected = b"*2\r\n$4\r\nECHO\r\n$%d\r\n%b\r\n" % (len(text), text)
    assert encode_command("ECHO", arg) == expected
    assert Head("ECHO").encode([arg]) == expected
    assert Head("ECHO", arg).encode([]) == expected


@pytest.mark.parametrize("power", [599, 600, 601, 1199, 1200, 1201, 5000, 20_000])
def test_integers_of_any_size(power: int) -> None:
    limit = sys.get_int_max_str_digits()
    for number in (10**power, 10**power - 1, 10**power + 7, -(10**power), 2**power):
        [[text]] = decoded(encode_command(number))
        assert (text[:1] == b"-") is (number < 0)
        assert text.lstrip(b"-").isdigit()
        assert text.lstrip(b"-")[:1] != b"0"
        [value] = decoded(b":" + text + b"\r\n")
        assert value == number
    assert sys.get_int_max_str_digits() == limit


@pytest.mark.parametrize(
    "arg", [True, False, None, [], (), {}, set(), object(), 1j, range(3), [b"a"]]
)
def test_what_is_no_argument(arg: Any) -> None:
    message = rf"^argument 2 is {type(arg).__name__}; "
    with pytest.raises(EncodeTypeError, match=message) as caught:
        encode_command("SET", "k", arg)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, EncodeError)
    assert isinstance(caught.value, RespError)
    with pytest.raises(EncodeTypeError, match=message):
        Head("SET").encode(["k", arg])
    with pytest.raises(EncodeTypeError, match=message):
        Head("SET", "k").encode([arg])
    with pytest.raises(EncodeTypeError, match=message):
        Head("SET", "k", arg)


def test_lone_surrogate() -> None:
    with pytest.raises(
        EncodeValueError, match=r"^argument 1 is str with a lone surrogate"
    ) as caught:
        encode_command("GET", "secret\ud800")
    assert isinstance(caught.value, ValueError)
    assert "secret" not in str(caught.value)
    with pytest.raises(EncodeValueError, match="argument 1"):
        encode_command("GET", Text("\ud800"))


def test_refusals_never_show_a_value() -> None:
    with pytest.raises(EncodeTypeError) as caught:
        encode_command("AUTH", ["secret"])  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_released_memoryview() -> None:
    view = memoryview(b"ab")
    view.release()
    with pytest.raises(EncodeValueError, match="argument 1 is memoryview that was released"):
        encode_command("ECHO", view)


def test_an_empty_command() -> None:
    with pytest.raises(EncodeValueError):
        encode_command()
    with pytest.raises(EncodeValueError):
        Head()
    with pytest.raises(EncodeValueError, match="command 1: "):
        encode_commands([("PING",), ()])


def test_commands_are_encoded_together_or_not_at_all() -> None:
    assert encode_commands([]) == b""
    assert encode_commands(iter([("GET", "a"), ["PING"]])) == (
        encode_command("GET", "a") + encode_command("PING")
    )
    with pytest.raises(EncodeTypeError, match=r"^command 1: argument 1 is NoneType"):
        encode_commands([("GET", "a"), ("GET", None)])  # type: ignore[list-item]
    with pytest.raises(EncodeTypeError, match="command 0 is str, not a sequence of arguments"):
        encode_commands(["PING"])
    with pytest.raises(EncodeTypeError, match="command 1 is bytes, not a sequence of arguments"):
        encode_commands([("PING",), b"PING"])


def test_an_argument_that_is_wrong_once() -> None:
    class Fickle(str):
        __slots__ = ()
        asked = 0

        def encode(self, *args: Any) -> bytes:
            raise AssertionError("never asked")

    assert encode_command(Fickle("a")) == encode_command("a")


ARGS = st.one_of(
    st.binary(max_size=40),
    st.binary(max_size=40).map(bytearray),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.integers(),
    st.integers(-5, 1100),
    st.floats(),
)


def _text(arg: Any) -> bytes:
    if isinstance(arg, str):
        return arg.encode()
    if isinstance(arg, int):
        return b"%d" % arg
    return repr(arg).encode() if isinstance(arg, float) else bytes(arg)


@given(st.lists(ARGS, min_size=1, max_size=80))
def test_a_server_reads_what_was_meant(args: list[Any]) -> None:
    assert decoded(encode_command(*args)) == [[_text(arg) for arg in args]]


@given(st.lists(ARGS, min_size=1, max_size=40), st.integers(1, 40))
def test_a_head_is_the_start_of_a_command(args: list[Any], at: int) -> None:
    head = Head(*args[:at])
    for _ in range(2):
        assert head.encode(args[at:]) == encode_command(*args)
        assert head.encode([]) == encode_command(*args[:at])


@given(st.lists(st.lists(ARGS, min_size=1, max_size=5)))
def test_a_pipeline_is_its_commands(commands: list[list[Any]]) -> None:
    assert encode_commands(commands) == b"".join(encode_command(*args) for args in commands)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.text(st.characters(exclude_categories=["Cs"])),
            st.integers(),
        ),
        min_size=1,
    )
)
def test_hiredis_writes_the_same(args: list[Any]) -> None:
    hiredis = pytest.importorskip("hiredis")
    assert encode_command(*args) == hiredis.pack_command(tuple(args))

"""`decode`: every way in which bytes are written down, and where they stop making sense."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp import encode_command
from resp.commands.decode import InputError, written

_ROOT: Final = Path(__file__).parents[2]
_PING: Final = b"*1\r\n$4\r\nPING\r\n"
_MAP: Final = b"%1\r\n$1\r\na\r\n*2\r\n:1\r\n$3\r\nb\x00\xff\r\n"


def _decode(*options: str, stdin: bytes) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "resp", "decode", *options],
        input=stdin,
        capture_output=True,
        cwd=_ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


# What a text stands for.


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("2b4f4b0d0a", b"+OK\r\n"),
        ("2B 4F 4B 0D 0A\n", b"+OK\r\n"),
        ("2b:4f:4b\n0d:0a", b"+OK\r\n"),
        ("0x2b, 0x4f, 0x4b, 0xd0, 0x0a", b"+OK\xd0\n"),
        ("2b4f 4b0d 0a", b"+OK\r\n"),
        ("2b4f4b0d 0a000000", b"+OK\r\n\0\0\0"),
        ("2a310d0a 24340d0a 50494e47 0d0a", _PING),
        (r"+OK\r\n", b"+OK\r\n"),
        (r"\x2bOK\x0d\x0a", b"+OK\r\n"),
        (r"$3\r\n\0\15\t\r\n" + "\n", b"$3\r\n\0\r\t\r\n"),
        (r"$5\r\na\\r\"b\r\n", b'$5\r\na\\r"b\r\n'),
        (r"+\w\r\n", b"+\\w\r\n"),
        ("*1\\r\\n\n$4\\r\\n\r\nPING\\r\\n\n", _PING),
        ("$2\\r\\n\u00fc\\r\\n", "$2\r\nü\r\n".encode()),
        (r"b'+OK\r\n'", b"+OK\r\n"),
        (r"""  b"$1\r\n'\r\n"  """, b"$1\r\n'\r\n"),
        (r"""b'$1\r\n\'\r\n'""", b"$1\r\n'\r\n"),
        (r"""[b'+a\r\n', b"+b\r\n"]""", b"+a\r\n+b\r\n"),
        ("(b'+a\\r\\n'\n b'+b\\r\\n')\n", b"+a\r\n+b\r\n"),
        (r'"+OK\r\n"', b"+OK\r\n"),
        (
            r"""read(3, "+OK\r\n", 100) = 5""" + "\n" + r"""read(3, ":1\r\n", 9) = 4""",
            b"+OK\r\n:1\r\n",
        ),
        (r"2026-01-01 12:00 DEBUG sent b'*1\r\n$4\r\nPING\r\n' to 7", _PING),
        (
            "0000000 2a 32 0d 0a 24 33 0d 0a 47 45 54 0d 0a 24 31 0d\n"
            "0000020 0a 6b 0d 0a\n0000024\n",
            b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        ),  # od counts in octal
        ("PING\n", b"PING\n"),
        ("", b""),
    ],
)
def test_texts(text: str, data: bytes) -> None:
    assert written(text.encode()) == data


_DUMPS: Final = [
    (
        "xxd",
        "00000000: 2a32 0d0a 2433 0d0a 4745 540d 0a24 310d  *2..$3..GET..$1.\n"
        "00000010: 0a6b 0d0a                                .k..\n",
    ),
    (
        "xxd-g1",
        "00000000: 2a 32 0d 0a 24 33 0d 0a 47 45 54 0d 0a 24 31 0d  *2..$3..GET..$1.\n"
        "00000010: 0a 6b 0d 0a                                      .k..\n",
    ),
    (
        "hexdump-C",
        "00000000  2a 32 0d 0a 24 33 0d 0a  47 45 54 0d 0a 24 31 0d  |*2..$3..GET..$1.|\n"
        "00000010  0a 6b 0d 0a                                       |.k..|\n"
        "00000014\n",
    ),
    (
        "hexdump",
        "0000000 322a 0a0d 3324 0a0d 4547 0d54 240a 0d31\n0000010 6b0a 0a0d                    \n"
        "0000014\n",
    ),
    (
        "od",
        "000000 2a 32 0d 0a 24 33 0d 0a 47 45 54 0d 0a 24 31 0d  >*2..$3..GET..$1.<\n"
        "000010 0a 6b 0d 0a                                      >.k..<\n000014\n",
    ),
]


@pytest.mark.parametrize("dump", [dump for _, dump in _DUMPS], ids=[name for name, _ in _DUMPS])
def test_dumps(dump: str) -> None:
    assert written(dump.encode()) == encode_command("GET", "k")
    assert written(dump.encode(), True) == encode_command("GET", "k")


@pytest.mark.parametrize(
    "command",
    [
        ["xxd"],
        ["xxd", "-g1"],
        ["xxd", "-g4"],
        ["xxd", "-p"],
        ["hexdump", "-C"],
        pytest.param(["hexdump"], marks=pytest.mark.skipif(sys.byteorder == "big", reason="swaps")),
        ["od", "-A", "x", "-t", "x1"],
        ["od", "-A", "x", "-t", "x1z"],
        ["od", "-A", "x", "-t", "x2"],
    ],
    ids="-".join,
)
def test_real_dumps(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    # Lines that are equal, which some of them squeeze; text that looks like hex, and like a bar.
    for data in (
        b"$100\r\n" + b"|" * 100 + b"\r\n",
        b"$64\r\n" + b"\0" * 64 + b"\r\n",
        b"$18\r\n0a 0b > |ab| 00  11\r\n",
        b"$67\r\n" + bytes(range(67)) + b"\r\n",
        b"+" + b"0" * 48 + b"\r\n",
        b"+OK\r\n",
    ):
        dump = subprocess.run(command, input=data, capture_output=True, check=True).stdout
        assert written(dump, True) == data, dump
        assert command == ["xxd", "-p"] or written(dump) == data, dump


def test_a_dump_of_a_part_begins_at_any_offset() -> None:
    dump = (
        "00000040  2b 4f 4b 0d 0a 2b 4f 4b  0d 0a 2b 4f 4b 0d 0a 2b  |+OK..+OK..+OK..+|\n"
        "00000050  4f 4b 0d 0a                                       |OK..|\n"
    )
    assert written(dump.encode()) == b"+OK\r\n" * 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2b4f4", "5 digits, and a byte has two"),
        ("2b 4g", 'line 1, column 5 has "g"'),
        ("2b\n0d 0a zz", 'line 2, column 7 has "z"'),
        ("00000000: 2b4\n", "line 1"),
        ("00000000: 2b4f\n00000010: 0d0a\n", "line 2 is at offset 0x10, and 2 bytes"),
        ("00000000: 2b4f\n4b\n", "line 2 does not begin with an offset"),
        ("0000000 025062 005015\n", "od -A x"),
        ("00000000  2b\n*\nfffffffff\n", "skips"),
    ],
)
def test_what_is_no_dump_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        written(text.encode(), True)
    assert told in str(caught.value)


@given(st.binary(min_size=1))
def test_bytes_come_back_from_what_python_and_c_write(data: bytes) -> None:
    assert written(repr(data).encode()) == data
    assert written(data.hex().encode(), True) == data
    escapes = "".join(f"\\x{byte:02x}" for byte in data)
    assert written(escapes.encode()) == data


# Whole runs.


@pytest.mark.parametrize(
    ("options", "stdin"),
    [
        ((), _MAP),
        (("--raw",), _MAP),
        ((), _MAP.hex().encode()),
        (("--hex",), _MAP.hex(" ").encode()),
        ((), repr(_MAP).encode()),
        (("--base64",), base64.encodebytes(_MAP)),
    ],
    ids=["bytes", "raw", "digits", "hex", "literal", "base64"],
)
def test_values(options: tuple[str, ...], stdin: bytes) -> None:
    assert _decode("--as", "values", *options, stdin=stdin) == (
        0,
        '1# "a" =>\n   1) (integer) 1\n   2) "b\\x00\\xff"\n',
        "",
    )


def test_json_is_a_line_each() -> None:
    code, out, err = _decode("--as", "json", stdin=_MAP + b"+OK\r\n" + b"|1\r\n+t\r\n:3\r\n_\r\n")
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"a": [1, {"$base64": "YgD/"}]},
        "OK",
        {"$attributes": {"t": 3}, "$reply": None},
    ]


def test_requests_are_words() -> None:
    stdin = _PING + b'set "a b" c\r\n' + encode_command("SET", "k", b"\xff")
    code, out, err = _decode("--requests", "--as", "values", stdin=stdin)
    assert (code, out, err) == (0, 'PING\nset "a b" c\nSET k "\\xff"\n', "")
    code, out, _ = _decode("--requests", "--as", "json", stdin=stdin)
    assert out.splitlines()[0] == '["PING"]'


@pytest.mark.parametrize("form", ["tree", "hex", "values", "json"])
def test_a_malformed_byte_is_told_with_its_offset(form: str) -> None:
    code, out, err = _decode("--as", form, stdin=b"+OK\r\n*2\r\n:1\r\n:x\r\n+never\r\n")
    assert code == 1
    assert "OK" in out or "4f 4b" in out  # what was before it
    assert "never" not in out
    assert "at offset 13" in err


@pytest.mark.parametrize(
    ("stdin", "told"),
    [
        (b"$5\r\nab", "5 bytes are missing (a bulk string at offset 0)"),
        (b"*3\r\n:1\r\n", "2 items are missing (an array at offset 0)"),
        (b"+OK\r\n%1\r\n+a\r\n$4\r\nab", "4 bytes are missing (a bulk string at offset 13), "
         "1 items are missing (a map at offset 5)"),
        (b"*2\r\n:1\r\n:2", "not whole"),
        (b"+OK", "not whole"),
    ],
    ids=["bulk", "array", "nested", "line in array", "line"],
)  # fmt: skip
def test_what_is_missing_is_told(stdin: bytes, told: str) -> None:
    code, _, err = _decode("--raw", "--as", "values", stdin=stdin)
    assert code == 1
    assert told in err


@pytest.mark.parametrize("form", ["tree", "hex"])
def test_views_show_every_token(form: str) -> None:
    code, out, err = _decode("--as", form, stdin=_MAP)
    assert (code, err) == (0, "")
    assert "\x00" not in out
    for told in ("a", "62 00 ff" if form == "hex" else "\\x00\\xff"):
        assert told in re.sub(" +", " ", out)


def test_an_empty_stdin_is_no_error() -> None:
    assert _decode(stdin=b"") == (0, "", "resp: stdin is empty; nothing to decode\n")


def test_replies_are_shown_as_they_come() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "resp", "decode", "--as", "json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=_ROOT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(3):
            process.stdin.write(b":%d\r\n:" % number)
            process.stdin.flush()
            assert process.stdout.readline() == b"%d\n" % number
            process.stdin.write(b"7\r\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"7\n"
        process.stdin.close()
    assert process.returncode == 0


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "resp", "decode", "--as", "json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=_ROOT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b":1\r\n" * 100_000)
            process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("form", ["values", "tree", "hex"])
def test_the_work_is_linear(form: str) -> None:
    def took(count: int) -> float:
        stdin = b"*%d\r\n" % count + b"$3\r\nabc\r\n:1\r\n" * (count // 2)
        began = time.monotonic()
        code, _, _ = _decode("--as", form, stdin=stdin)
        assert code == 0
        return time.monotonic() - began

    assert took(80_000) < 8 * took(20_000)


def test_a_large_blob_is_elided() -> None:
    size = 8 << 20
    code, out, _ = _decode("--as", "tree", stdin=b"$%d\r\n%b\r\n" % (size, b"\x00" * size))
    assert code == 0
    assert len(out) < 4096


def test_what_is_no_resp_at_all_is_told_with_a_next_step() -> None:
    code, _, told = _decode(stdin=b"hello world")
    assert (code, told.count("\n")) == (1, 1)
    assert "; RESP is wanted, or a dump of it" in told
    _, _, told = _decode(stdin=b"\x89RESPTAP\r\n\x1a\n")
    assert "python -m resp tap FILE" in told

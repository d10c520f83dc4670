"""The three views: every byte once and in order, nothing of a peer's raw, and what is left out."""

from __future__ import annotations

import codecs
import re
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp.decode import ErrorReply
from resp.encode import encode_command
from resp.script import Script
from resp.tap.dialogue import Dialogue, Exchange, Frame
from resp.tap.frames import AGGREGATES, Node, parse
from resp.tap.meaning import Scripts
from resp.tap.style import COLORS, PLAIN, clipped, escaped, quoted, width
from resp.tap.views import hexdump, hexdump_of, line, tree, tree_of
from tests.strategies import Stream, garbage, streams

from .test_frames import captures, vectors

SOURCE = b"""-- claim: take it.
--
-- KEYS[1] base      -    the base
-- ARGV[1] lease_ms  int  length of the lease
return {1, 2}
"""


def converse(*said: tuple[tuple[Any, ...] | bytes, bytes]) -> list[Exchange]:
    """Answer the exchanges of commands and what came back; 1 ms each way, from 1 s on."""
    dialogue = Dialogue()
    found: list[Exchange] = []
    now = 1_000_000_000
    for command, reply in said:
        wire = command if isinstance(command, bytes) else encode_command(*command)
        for take, data in ((dialogue.sent, wire), (dialogue.received, reply)):
            if data:
                found += take(data, now)[1]
                now += 1_000_000
    return [*found, *dialogue.end(now)]


def only(command: tuple[Any, ...] | bytes, reply: bytes) -> Exchange:
    [exchange] = converse((command, reply))
    return exchange


# Reading the views back


_TREE = re.compile(r"  +(\d+)  +(\d+)  +(?:\(\d+\) )?(\S+)(?:  +(.*))?")
_HEX = re.compile(r"  +(\d+)  ((?:[0-9a-f]{2}  ?){1,16}) ")


def tree_rows(lines: list[str]) -> list[tuple[int, int, str, str]]:
    rows = []
    for shown in lines:
        found = _TREE.fullmatch(shown)
        assert found, shown
        rows.append((int(found[1]), int(found[2]), found[3], found[4] or ""))
    return rows


def hex_bytes(lines: list[str], at: int) -> bytes:
    """Answer the bytes of a dump, after a check that each row says where it stands."""
    data = b""
    for shown in lines:
        found = _HEX.match(shown)
        assert found, shown
        assert int(found[1]) == at + len(data)
        row = bytes.fromhex(found[2])
        data += row
        # The printable column stands at one place, whatever the row has.
        start = shown.index(found[1]) + len(found[1]) + 2 + 50
        text = shown[start : start + 16]
        assert text.ljust(16)[: len(row)] == "".join(
            chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row
        ).rstrip().ljust(len(row))
        kinds = shown[start + 18 : start + 34].ljust(16)
        assert " " not in kinds[: len(row)]
        assert not kinds[len(row) :].strip()
    return data


def unquoted(text: str) -> bytes:
    """Answer the bytes that a quoted text stands for."""
    assert text[0] == text[-1] == '"'
    return bytes(codecs.escape_decode(text[1:-1].encode())[0])


def leaves(nodes: list[Node]) -> list[Node]:
    found, work = [], nodes[::-1]
    while work:
        node = work.pop()
        found.append(node)
        work += node.items[::-1]
    return found


def check_nothing_raw(lines: list[str]) -> None:
    for character in set("".join(lines)):
        assert character.isprintable(), ascii(character)
        assert unicodedata.category(character) not in ("Mn", "Me", "Cf", "Co", "Cn", "Cs")


def check_views(wire: bytes, at: int, *, inline: bool = False) -> None:
    nodes = parse(wire, at, inline=inline)
    shown = tree_of(nodes, wire, at, limit=None)
    dumped = hexdump_of(nodes, wire, at, limit=None)
    check_nothing_raw(shown + dumped)
    assert hex_bytes(dumped, at) == wire
    rows = tree_rows(shown)
    place = at
    for start, size, _, _ in rows:
        assert start == place
        place += size
    assert place == at + len(wire)
    tokens = leaves(nodes)
    assert len(rows) == len(tokens)
    for node, (start, _, mark, rest) in zip(tokens, rows, strict=True):
        assert start == node.at
        assert mark[0] == node.mark[0]
        if (node.mark in AGGREGATES or node.mark in "$!=;") and not node.error:
            assert mark.encode() + b"\r\n" == wire[node.at - at : node.body - at]
        if node.mark in ("$", ";", "word") and isinstance(node.value, bytes):
            text = rest[: _end_of_quote(rest)]
            assert unquoted(text) == node.value
        elif node.mark in "-!" and isinstance(node.value, ErrorReply):
            raw = node.value.message.encode("utf-8", "surrogateescape")
            if rest[:1] == '"':
                assert unquoted(rest[: _end_of_quote(rest)]) == raw
            else:
                assert rest.startswith(raw.decode().rstrip())


def _end_of_quote(text: str) -> int:
    found = re.match(r'"(?:\\.|[^"\\])*"', text)
    assert found, text
    return found.end()


@pytest.mark.parametrize("wire", captures())
def test_recordings(wire: bytes) -> None:
    check_views(wire, 877)


@pytest.mark.parametrize("wire", [param for param in vectors() if len(param.values[0]) < 20_000])
def test_vectors(wire: bytes) -> None:
    check_views(wire, 0)


@given(streams(), st.sampled_from([0, 99, 10**9]))
def test_streams(stream: Stream, at: int) -> None:
    check_views(stream.wire[:50_000], at)


@given(garbage(), st.booleans())
def test_garbage(wire: bytes, inline: bool) -> None:
    check_views(wire, 5, inline=inline)


@given(streams(), st.integers(0, 60), st.integers(0, 300), st.integers(20, 120))
def test_what_is_left_out_is_told(stream: Stream, few: int, some: int, columns: int) -> None:
    """With limits, offsets and sizes still lead from one row to the next."""
    wire = stream.wire[:100_000]
    nodes = parse(wire)
    place = 0
    for start, size, _, _ in tree_rows(tree_of(nodes, wire, limit=few, width=columns)):
        assert start == place
        place += size
    assert place == len(wire)
    place = 0
    for shown in hexdump_of(nodes, wire, limit=some):
        gap = re.fullmatch(r"  +(\d+)  … ([\d,]+) bytes more", shown)
        found = gap or _HEX.match(shown)
        assert found
        assert int(found[1]) == place
        place += int(gap[2].replace(",", "")) if gap else len(bytes.fromhex(found[2]))
    assert place == len(wire)


# Text


@given(
    st.binary(max_size=60) | st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace"))
)
def test_quoted_text_can_be_read_back(text: bytes) -> None:
    shown = quoted(text)
    check_nothing_raw([shown])
    assert unquoted(shown) == text
    cut, whole = clipped(text, 10)
    assert escaped(text).startswith(cut)
    assert width(cut) <= 10
    assert whole == (cut == escaped(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"hello", '"hello"'),
        ("café 漢字".encode(), '"café 漢字"'),
        (b'a"\\', '"a\\"\\\\"'),
        (b"\r\n\t\x00\x1b[31m\x7f", '"\\r\\n\\t\\x00\\x1b[31m\\x7f"'),
        (b"\xff", '"\\xff"'),
        ("\u202e\u200b\ue000\u2028\ufeff".encode(), None),
        ("e\u0301\u3164\u2800\u0085\u00ad".encode(), None),
    ],
)
def test_quoted(text: bytes, shown: str | None) -> None:
    expected = (
        shown
        or '"' + "".join(f"\\x{byte:02x}" if byte >= 0x80 else chr(byte) for byte in text) + '"'
    )
    assert quoted(text) == expected


def test_long_text_is_cut() -> None:
    assert quoted(b"hello world" * 100_000, 9) == '"hello wor…" 1,100,000 B'


# Trees

CLAIM = Script("claim", SOURCE)


def claimed() -> tuple[Exchange, Scripts]:
    scripts = Scripts()
    scripts.add(CLAIM)
    reply = b"*3\r\n$4\r\nJOB0\r\n$2\r\n{}\r\n:1\r\n"
    return only(("EVALSHA", CLAIM.sha, 1, "emq:{q}:", 30000), reply), scripts


def test_a_tree() -> None:
    exchange, scripts = claimed()
    sha = CLAIM.sha
    assert tree(exchange, scripts=scripts, origin_ns=900_000_000) == [
        "1#1  EVALSHA claim emq:{q}: 30000   0.100000 s   sent 96 B   received 26 B   1.000 ms",
        "-> @0  96 B",
        "     0    4  *5",
        '     4   13    $7   "EVALSHA"                                   command',
        f'    17   47    $40  "{sha}"  digest = claim',
        '    64    7    $1   "1"                                         numkeys',
        '    71   14    $8   "emq:{q}:"                                  KEYS[1] base',
        '    85   11    $5   "30000"                                     ARGV[1] lease_ms',
        "<- @0  26 B  after 1.000 ms",
        "     0    4  *3",
        '     4   10    $4  "JOB0"  value',
        '    14    8    $2  "{}"    value',
        "    22    4    :   1       number",
    ]


def test_a_dump() -> None:
    shown = hexdump(only(("GET", "greeting"), b"$5\r\nhello\r\n"))
    assert shown[1:] == [
        "-> @0  27 B",
        "     0  2a 32 0d 0a 24 33 0d 0a  47 45 54 0d 0a 24 38 0d  *2..$3..GET..$8."
        "  ........CCC.....  *2  $3  command  $8",
        "    16  0a 67 72 65 65 74 69 6e  67 0d 0a                 .greeting..     "
        "  .KKKKKKKK..       key",
        "<- @0  11 B  after 1.000 ms",
        "     0  24 35 0d 0a 68 65 6c 6c  6f 0d 0a                 $5..hello..     "
        "  ....PPPPP..       $5  value",
    ]


def test_nulls_bools_and_numbers_are_told_apart() -> None:
    wire = b"*9\r\n$-1\r\n*-1\r\n_\r\n#t\r\n:1\r\n,1\r\n(1\r\n$4\r\nnull\r\n+null\r\n"
    rows = [(mark, rest.split("  ")[0]) for _, _, mark, rest in tree_rows(tree_of(parse(wire)))]
    assert rows == [
        ("*9", ""), ("$-1", "null"), ("*-1", "null"), ("_", "null"), ("#", "true"), (":", "1"),
        (",", "1.0"), ("(", "1"), ("$4", '"null"'), ("+", '"null"'),
    ]  # fmt: skip


def test_malformed_bytes_end_at_the_offending_one() -> None:
    wire = b"*2\r\n+a\rb\r\nrest"
    row = tree_of(parse(wire, 100), wire, 100)[-1]
    assert '"+a" >"\\r"< 7 B more' in row
    assert row.endswith("a CR or LF inside a line at offset 106")


def test_what_is_wrong_is_shown_however_long_the_reply() -> None:
    wire = b"*1000\r\n" + b":1\r\n" * 500 + b"*9\r\n" + b":2\r\n" * 5 + b"?"
    rows = tree_rows(tree_of(parse(wire), wire, limit=10))
    assert len(rows) < 20
    assert rows[-1][2] == "?"
    assert "an unknown type" in rows[-1][3]


def test_what_was_not_kept_is_told() -> None:
    [(command, reply)] = [(encode_command("GET", "k"), b"$5000\r\n" + b"x" * 5000 + b"\r\n")]
    dialogue = Dialogue(keep=1000)
    dialogue.sent(command, 0)
    [exchange] = dialogue.received(reply, 1)[1]
    for shown in (tree(exchange), hexdump(exchange)):
        assert shown[-1] == "  … 4,009 B were not kept"
        assert not any("missing" in row for row in shown)
    assert "of 5,000 B" in tree(exchange)[-2]


def test_a_number_of_more_digits_than_str_takes() -> None:
    wire = b":-1" + b"2" * 9999 + b"\r\n"
    [row] = tree_of(parse(wire), limit=None)
    assert "-1" + "2" * 9999 in row
    [row] = tree_of(parse(wire), limit=20)
    assert "… 10,001 digits" in row


def test_deep_replies_stay_within_a_line() -> None:
    shown = tree_of(parse(b"*1\r\n" * 100 + b":1\r\n"), limit=None)
    assert len(shown) == 101
    assert max(map(len, shown)) < 80


@pytest.mark.parametrize("view", [tree, hexdump])
def test_colours_change_no_text(view: Any) -> None:
    exchange, scripts = claimed()
    plain = view(exchange, scripts=scripts, style=PLAIN)
    painted = view(exchange, scripts=scripts, style=COLORS)
    bare = [re.sub(r"\x1b\[[0-9;]*m", "", row).split() for row in painted]
    for row, other in zip(plain, bare, strict=True):
        assert [word for word in row.split() if not re.fullmatch("[.CDKAPn]+", word)] == [
            word for word in other if not re.fullmatch("[.CDKAPn]+", word)
        ]
    assert any("\x1b[35m" in row for row in painted)


# Lines


def test_a_line_is_the_same_the_quick_way() -> None:
    exchange = only(("GET", "greeting"), b"$5\r\nhello\r\n")
    first = line(exchange, origin_ns=900_000_000)
    assert first == (
        '    0.100000  1#1           27 B> <     11 B      1.000 ms  GET greeting  -> "hello"'
    )
    assert line(exchange, origin_ns=900_000_000) == first
    painted = line(exchange, origin_ns=900_000_000, style=COLORS)
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == first


@pytest.mark.parametrize(
    ("command", "reply", "said"),
    [
        (("SET", "k", "v"), b"+OK\r\n", "SET k  -> OK"),
        (("set", "k", "v"), b"+OK\r\n", "SET k  -> OK"),
        (("GET", "a b"), b"$-1\r\n", 'GET "a b"  -> null'),
        (("GET", ""), b"_\r\n", 'GET ""  -> null'),
        (("PING",), b"+PONG\r\n", "PING  -> PONG"),
        (("GET", "k"), b"$4\r\nnull\r\n", 'GET k  -> "null"'),
        (("GET", "k"), b"+null\r\n", 'GET k  -> +"null"'),
        (("GET", "k"), b"-ERR \x1b[0m\r\n", "GET k  -> -ERR \\x1b[0m"),
        (("GET", "k"), b"!5\r\nERR x\r\n", "GET k  -> -ERR x"),
        (("GET", "k"), b"#t\r\n", "GET k  -> true"),
        (("GET", "k"), b"*0\r\n", "GET k  -> []"),
        (("GET", "k"), b"%0\r\n", "GET k  -> {}"),
        (("GET", "k"), b"*2\r\n:1\r\n*1\r\n:2\r\n", "GET k  -> [2] 1 [1]"),
        (("GET", "k"), b"*4\r\n" + b":1\r\n" * 4, "GET k  -> [4] 1 1 1 …"),
        (("GET", "k"), b"%1\r\n+a\r\n:1\r\n", 'GET k  -> {1} +"a" 1'),
        (("GET", "k"), b"|1\r\n+a\r\n+b\r\n:1\r\n", "GET k  -> 1"),
        (("GET", "k"), b"=5\r\ntxt:a\r\n", 'GET k  -> "a"'),
        (("GET", "k"), b"*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n:2\r\n", None),
        (("GET", "k"), b"$?\r\n;1\r\na\r\n;0\r\n", None),
        (("CLIENT", "SETINFO", "lib-name", "x"), b"+OK\r\n", "CLIENT SETINFO lib-name  -> OK"),
        (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"), b"_\r\n", "XREADGROUP s  -> null"),
        (("EVALSHA", "0" * 40, 0), b":1\r\n", "EVALSHA 00000000…  -> 1"),
        (("EVALSHA", "\x1b", "x"), b":1\r\n", 'EVALSHA "\\x1b"  -> 1'),
        (("\x1b[0m", "k"), b"-ERR\r\n", None),
        (b"get  k\r\n", b"$-1\r\n", "GET k  -> null"),
    ],
)  # fmt: skip
def test_lines(command: tuple[Any, ...] | bytes, reply: bytes, said: str | None) -> None:
    shown = line(only(command, reply))
    check_nothing_raw([shown])
    if said is not None:
        assert shown[60:] == said


def test_a_line_of_a_script() -> None:
    exchange, scripts = claimed()
    assert line(exchange, scripts=scripts)[60:] == (
        'EVALSHA claim emq:{q}: 30000  -> [3] "JOB0" "{}" 1'
    )


def test_a_long_value_in_a_line() -> None:
    shown = line(only(("GET", "k"), b"$1000000\r\n" + b"\xff" * 1_000_000 + b"\r\n"))
    assert shown.endswith('\\xff…" 1,000,000 B')
    assert len(shown) < 140


def test_lines_of_what_is_no_reply() -> None:
    push, lost = converse(
        (b"", b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n"), (("BLPOP", "q", 0), b"")
    )
    assert line(push)[60:] == '<- push  [2] +"invalidate" [1]'
    assert line(lost)[60:].startswith("BLPOP q  -> lost")
    off, _ = converse((("CLIENT", "REPLY", "OFF"), b""), (("SET", "k", "v"), b""))
    assert "no reply is owed" in line(off)
    *_, wrong = converse((("GET", "k"), b"?what\r\n"))
    assert line(wrong)[60:].startswith("GET k  -> malformed: ")


@given(garbage() | st.binary(max_size=40), garbage())
def test_any_exchange_can_be_shown(sent: bytes, received: bytes) -> None:
    dialogue = Dialogue()
    found = dialogue.sent(sent, 1)[1] + dialogue.received(received, 2)[1] + dialogue.end(3)
    for exchange in found:
        shown = [line(exchange), *tree(exchange), *hexdump(exchange)]
        check_nothing_raw(shown)


def test_secrets_stay_masked() -> None:
    exchange = only(("AUTH", "user", "hunter2"), b"+OK\r\n")
    shown = [line(exchange), *tree(exchange), *hexdump(exchange)]
    assert not any("hunter" in row or "68 75 6e" in row for row in shown)


def test_a_line_is_quick() -> None:
    """A proxy writes one an exchange; a hundred times slower would be a fault, not a slow day."""
    exchanges = converse(*[(("GET", f"key:{at}"), b"$5\r\nhello\r\n") for at in range(1000)])
    line(exchanges[0])
    began = time.process_time()
    for _ in range(10):
        for exchange in exchanges:
            line(exchange)
    assert time.process_time() - began < 1.5


def test_a_large_reply_is_shown_in_no_time() -> None:
    frame = Frame(0, 0, 40, encode_command("GET", "k"), (b"GET", b"k"))
    data = b"$1000000\r\n" + bytes(1_000_000) + b"\r\n"
    exchange = Exchange(1, 1, "reply", frame, (Frame(0, 1, len(data), data),))
    began = time.process_time()
    for _ in range(20):
        assert len(tree(exchange)) + len(hexdump(exchange)) < 60
    assert time.process_time() - began < 2

"""What commands print."""

from __future__ import annotations

import io
import sys

import pytest

from emq.commands.render import Progress, blob, note, printable, say, table


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("é 日本", "é 日本"),
        ("é".encode(), "é"),
        (b"\xe9\x00", "\\xe9\\x00"),
        ("a\nb\tc\x1b[0m\x7f", "a\\nb\\tc\\x1b[0m\\x7f"),
        ("\\n", "\\\\n"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
        ("", ""),
    ],
)
def test_nothing_moves_the_cursor(value: str | bytes, shown: str) -> None:
    assert printable(value) == shown


def test_a_cut_says_so() -> None:
    assert printable("x" * 60) == "x" * 60
    assert printable("x" * 61) == "x" * 60 + "..."
    assert printable("\n" * 61, 2) == "\\n\\n..."
    assert printable("x" * 61, None) == "x" * 61


def test_bytes_in_json() -> None:
    assert blob("payload", None) == {"payload": None}
    assert blob("payload", "é".encode()) == {"payload": "é"}
    assert blob("payload", b"\xff") == {"payload_base64": "/w=="}


def test_a_table_aligns_numbers_on_the_right() -> None:
    assert table(["NAME", "COUNT", ""], [["a", "10", ""], ["bcdef", "7", "paused"]]) == [
        "NAME   COUNT",
        "a         10",
        "bcdef      7  paused",
    ]
    assert table(["NAME"], []) == ["NAME"]


def test_a_stream_without_a_character_gets_it_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(raw := io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    say("é")
    assert raw.getvalue() == b"\\xe9\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, shown in ((Terminal(), "\r\x1b[K1 of 2\r\x1b[K"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress() as progress:
            progress.tell("1 of 2")
        assert stream.getvalue() == shown


def test_without_a_stderr_talk_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    note("anything")
    with Progress() as progress:
        progress.tell("anything")
    assert capsys.readouterr().out == ""

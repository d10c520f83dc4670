"""Durations, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emq.units import about, format_ms, parse_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("0s", 0),
        ("500ms", 500),
        ("5s", 5000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        ("1h30m", 5_400_000),
        ("1m5ms", 60_005),
        ("1.5s", 1500),
        ("0.001s", 1),
        ("2.25m", 135_000),
        ("9007199254740992ms", 2**53),
    ],
)
def test_durations_are_read(text: str, ms: int) -> None:
    assert parse_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "s", "-1s", "+1s", "1 s", " 1s", "1s ", "1S", "1w", "1e3s", "1_0s", "٣s", "inf"),
        *("1s1m", "1s1s", "1m1h", "1.s", ".5s", "1..5s", "1.5", "1s\n"),
        *("0.5ms", "1.0001s", "9007199254740993ms", "99999999999d"),
        "9" * 5000 + "s",
    ],
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="; "):
        parse_ms(text)


@given(st.integers(0, 2**53))
def test_what_is_written_is_read_again(ms: int) -> None:
    assert parse_ms(format_ms(ms)) == ms


def test_written() -> None:
    written = {ms: format_ms(ms) for ms in (0, 1, 1500, 60_000, 5_400_000, 90_061_001)}
    assert list(written.values()) == ["0", "1ms", "1s500ms", "1m", "1h30m", "1d1h1m1s1ms"]
    with pytest.raises(ValueError, match="not negative"):
        format_ms(-1)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1999, "1.9s"),
        (9999, "9.9s"),
        (59_999, "59s"),
        (60_000, "1m"),
        (61_000, "1m1s"),
        (3_600_000, "1h"),
        (3_661_000, "1h1m"),
        (90_000_000, "1d1h"),
        (-1500, "-1.5s"),
    ],
)
def test_about(ms: int, text: str) -> None:
    assert about(ms) == text

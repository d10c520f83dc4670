"""The benchmarks' numbers have bounds, and what is out of them is a usage error."""

from __future__ import annotations

import argparse

import pytest

from bench import __main__ as bench
from bench.options import MOST_BODY, up_to


@pytest.mark.parametrize("text", ["1", "7", "67108864"])
def test_number_within_bounds_is_taken(text: str) -> None:
    assert up_to(MOST_BODY)(text) == int(text)


@pytest.mark.parametrize(
    "text", ["0", "-1", "67108865", "1_0", "\u0661", " 1", "1.0", "", "9" * 5000]
)
def test_number_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="1 to 67,108,864"):
        up_to(MOST_BODY)(text)


@pytest.mark.parametrize(
    "argv",
    [
        ["bytes", "--body", "99999999999"],
        ["bytes", "--calls", "99999999999"],
        ["wire", "--calls", "99999999999"],
        ["wire", "--rounds", "99999999999"],
        ["wire", "--rounds", "0"],
        ["codec", "--rounds", "0"],
        ["codec", "--rounds", "99999999999"],
        ["codec", "--only", "no such name"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_two(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        bench.main(argv)
    assert left.value.code == 2
    assert "usage:" in capsys.readouterr().err

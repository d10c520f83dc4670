"""The fuzz tries every property, says how often, and refuses what would try none."""

from __future__ import annotations

import re
import sys

import pytest

from tests import fuzz

_BRIEF = ["--minutes", "0.00001", "--examples", "3", "--seed", "1"]


def test_every_property_runs_however_short_the_time_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(_BRIEF) == 0

    *rounds, last = capsys.readouterr().out.splitlines()
    names = [line.split(": ")[1] for line in rounds]
    assert len(names) == len(set(names)) == 9
    told = re.fullmatch(r"no failure in (\d+) examples: (.*)", last)
    assert told is not None
    each = dict(part.rsplit(" ", 1) for part in told[2].split(", "))
    assert list(each) == names
    assert all(int(count) >= 1 for count in each.values())
    assert sum(map(int, each.values())) == int(told[1])


def test_rounds_go_on_until_the_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--minutes", "0.02", "--examples", "1", "--seed", "1"]) == 0
    assert "seed 2: " in capsys.readouterr().out


def test_a_failure_ends_it_and_is_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main([*_BRIEF, "--decoder", "tests.bench.test_fuzz:Broken"]) == 1

    told = capsys.readouterr().err
    [command] = re.findall(r"reproduce: python -m tests.fuzz (.*)", told)
    assert fuzz.main(command.split()) == 1


class Broken:
    """A decoder that decodes nothing."""

    def __init__(self, **limits: int) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "argv",
    [
        *(["--minutes", minutes] for minutes in ("0", "-1", "nan", "inf", "-inf", "soon")),
        *(["--examples", examples] for examples in ("0", "-1", "x", "9999999999")),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_two(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        fuzz.main(argv)
    assert left.value.code == 2
    assert argv[0] in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nope:X", "resp.decode:Nope", "resp.decode", ":", "", "json:x:y"])
def test_a_decoder_that_is_not_there_is_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz.main(["--decoder", name]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "module:Class" in line
    assert "nope" not in sys.modules

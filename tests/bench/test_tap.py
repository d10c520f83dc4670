"""The benchmark of looking: it runs, and what it tells hangs together."""

from __future__ import annotations

import json

import pytest

from bench import tap


def test_it_measures_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert tap.main(["--rounds", "1", "--calls", "2000", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rounds"], told["calls"]) == (1, 2000)
    works = [(row["work"], row["client"]) for row in told["rows"]]
    assert works == [
        ("tap, one caller", "resp"),
        ("tap, pipelines of 1000", "resp"),
        ("proxy, pipelines of 1000", "redis-py"),
        ("proxy, pipelines of 1000", "resp"),
    ]
    for row in told["rows"]:
        assert row["kept"] == row["looked_at"] / row["direct"] > 0
        assert (row["written"] is None) is row["work"].startswith("tap")


def test_the_table_says_what_was_missed() -> None:
    rows = [
        tap.Row("a", "resp", 100.0, 80.0),
        tap.Row("b", "resp", 100.0, 60.0, 50.0, 0.5),
        tap.Row("c", "resp", 100.0, 40.0, 30.0, 0.5),
    ]
    *_, first, second, third = tap.table(rows, 3, 1000).splitlines()
    assert first.endswith("0.80")
    assert second.endswith(">= 0.5  reached")
    assert third.endswith(">= 0.5  missed")


def test_wrong_arguments_are_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tap.main(["--rounds", "0"])
    assert ended.value.code == 2
    assert "1 to" in capsys.readouterr().err

"""The round-trip benchmark runs, times everybody on everything, and names who is missing."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from importlib.machinery import ModuleSpec

import pytest

from bench import wire
from bench.wire import BARE, OURS, PEER, PURE, WORKS, Result, main
from emq.embedded import EmbeddedError


def test_everybody_is_timed_on_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "2", "--calls", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]

    assert {(row["work"], row["contender"]) for row in rows} == {
        (work.name, contender) for work in WORKS for contender in (OURS, BARE, PEER, PURE)
    }
    for row in rows:
        assert 0 < row["low"] <= row["us"] <= row["high"]
        assert (row["ratio"] == 1) == (row["contender"] == OURS)


def test_table_names_who_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real: Callable[[str], ModuleSpec | None] = importlib.util.find_spec

    def without_hiredis(name: str) -> ModuleSpec | None:
        return None if name == "hiredis" else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_hiredis)
    assert main(["--rounds", "1", "--calls", "1"]) == 0
    out = capsys.readouterr().out
    assert f"missing: {PEER};" in out
    for work in WORKS:
        assert work.name in out


def test_pinning_is_undone(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.sched_getaffinity(0)
    seen: set[int] = set()
    with wire._one_core():
        seen |= os.sched_getaffinity(0)
    assert len(seen) == 1
    assert os.sched_getaffinity(0) == before
    assert main(["--rounds", "1", "--calls", "1", "--pin"]) == 0
    assert os.sched_getaffinity(0) == before


def _result(contender: str, ratio: float) -> Result:
    return Result("EVALSHA 2 keys, 2 args", contender, 1, 1, 1, 1, ratio)


@pytest.mark.parametrize(
    ("contender", "ratio", "said"),
    [
        (PEER, 1.9, "reached"),
        (PEER, 1.7, "missed"),
        (BARE, 1 / 1.2, "reached"),
        (BARE, 1 / 1.4, "missed"),
        (PURE, 9.0, ""),
    ],
)
def test_goals_are_ratios(contender: str, ratio: float, said: str) -> None:
    assert wire._goal(_result(contender, ratio)).endswith(said)


@pytest.mark.parametrize("argv", [["--rounds", "0"], ["--calls", "0"], ["--calls", "many"]])
def test_wrong_usage_is_two(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2


def test_without_a_server_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(rounds: int, calls: int, *, pin: bool) -> None:
        raise EmbeddedError("install it")

    monkeypatch.setattr(wire, "measure", fail)
    assert main([]) == 3
    assert "install it" in capsys.readouterr().err

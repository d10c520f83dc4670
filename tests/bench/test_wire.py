"""The wire benchmark runs, times everybody on everything, and finds a wrong answer."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from bench import wire
from bench.peers import BARE, GLIDE_SYNC, OURS, PEERS, REDIS, REDIS_PURE, Call, Contender, Job, Peer
from bench.wire import Row, main
from bench.works import EVALSHA, REACH, SECTIONS, WORKS
from emq.embedded import Embedded, EmbeddedError

_SHAPES = {
    "one": {"EVALSHA: CPU above bare", "EVALSHA: system calls"},
    "pipeline": set[str](),
    "threads": {"GET, 8 threads: p99", "EVALSHA, 8 threads: p99"},
    "tasks": set[str](),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_everybody_is_timed_on_everything(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "2", "--calls", "3", "--only", section, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = [row for row in told["rows"] if row["work"] not in _SHAPES[section]]
    beside = {row["work"] for row in told["rows"]} & _SHAPES[section]
    peers = [peer for peer in PEERS if section in peer.sections]

    assert {(row["work"], row["contender"]) for row in rows} == {
        (work.name, peer.name)
        for work in WORKS
        for peer in peers
        if work.section == section and not peer.is_missing()
    }
    assert beside >= _SHAPES[section] - {"EVALSHA: system calls"}  # strace may be missing
    assert told["missing"] == [peer.name for peer in peers if peer.is_missing()]
    for row in told["rows"]:
        assert row["section"] == section
        assert 0 < row["low"] <= row["figure"] <= row["high"]
        assert row["ratio"] > 0
        assert row["contender"] != OURS or row["ratio"] == 1
        assert row["reach"] == REACH.get((row["work"], row["contender"]))


def test_what_is_counted_in_one_thread_leaves_out_who_has_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--rounds", "1", "--calls", "1", "--only", "one", "--json"]) == 0
    counted = [row for row in json.loads(capsys.readouterr().out)["rows"] if ":" in row["work"]]
    assert {OURS, REDIS, REDIS_PURE} <= {row["contender"] for row in counted}
    assert GLIDE_SYNC not in {row["contender"] for row in counted}
    calls = {row["contender"]: row["figure"] for row in counted if row["unit"] == "calls"}
    if calls:
        assert calls[OURS] == calls[BARE] == 2


def test_what_is_to_be_reached_is_measured() -> None:
    names = {work.name for work in WORKS}.union(*_SHAPES.values())
    assert {work for work, _ in REACH} <= names
    assert {against for _, against in REACH} <= {peer.name for peer in PEERS}


def test_table_names_who_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real: Callable[[str], ModuleSpec | None] = importlib.util.find_spec

    def without_hiredis(name: str) -> ModuleSpec | None:
        return None if name == "hiredis" else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_hiredis)
    assert main(["--rounds", "1", "--calls", "1", "--only", "one,pipeline"]) == 0
    out = capsys.readouterr().out
    assert f"missing: {REDIS}" in out
    assert "redis.asyncio" not in out  # of a section that was not asked for
    for work in WORKS:
        assert (f"\n{work.name}  " in out) == (work.section in ("one", "pipeline"))


def test_table_says_where_system_calls_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wire, "system_calls", lambda call, times: None)
    assert main(["--rounds", "1", "--calls", "1", "--only", "one"]) == 0
    assert "not counted; strace" in capsys.readouterr().out


class _MixesUp:
    """Answers everybody what the first was to get."""

    def __init__(self, section: str) -> None:
        self._answers = {
            work.name.partition(",")[0].partition(" ")[0]: work.answers[0]
            for work in WORKS
            if work.section == section
        }
        self._later = section == "tasks"

    def _call(self, verb: str) -> Call:
        answer = self._answers[verb]

        async def later() -> object:
            return answer

        return later if self._later else lambda: answer

    def plain(self, verb: str, *args: str | bytes) -> Call:
        return self._call(verb)

    def script(self, job: Job) -> Call:
        return self._call("EVALSHA")

    def gets(self, keys: Sequence[str]) -> Call:
        return self._call("GET")

    def scripts(self, jobs: Sequence[Job]) -> Call:
        return self._call("GET")


@pytest.mark.parametrize(
    ("section", "found"),
    [("pipeline", "EVALSHA x1000"), ("threads", "GET, 8 threads"), ("tasks", "GET, 50 tasks")],
)
def test_wrong_answer_is_found_and_nobody_is_timed(
    section: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def mixes_up(server: Embedded, stack: AsyncExitStack) -> Contender:
        return _MixesUp(section)

    def never(*args: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(wire, "PEERS", (*PEERS, Peer("liar", (section,), (), mixes_up)))
    monkeypatch.setattr(wire, "_round", never)
    assert main(["--rounds", "1", "--calls", "8", "--only", section]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"liar on {found}: answered " in err
    assert f"{OURS} on" not in err


def test_wrong_answer_of_ours_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(vars(EVALSHA), "answers", [b"else"])
    assert main(["--rounds", "1", "--calls", "1", "--only", "one"]) == 1
    err = capsys.readouterr().err
    for peer in PEERS:
        if "one" in peer.sections and not peer.is_missing():
            assert f"{peer.name} on EVALSHA: answered b'payload" in err


def test_pinning_is_undone(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.sched_getaffinity(0)
    seen: set[int] = set()
    with wire._one_core():
        seen |= os.sched_getaffinity(0)
    assert len(seen) == 1
    assert os.sched_getaffinity(0) == before
    assert main(["--rounds", "1", "--calls", "1", "--only", "one", "--pin"]) == 0
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("work", "contender", "ratio", "said"),
    [
        ("EVALSHA", REDIS, 1.9, "reached"),
        ("EVALSHA", REDIS, 1.7, "missed"),
        ("EVALSHA", BARE, 1 / 1.2, "reached"),
        ("EVALSHA", BARE, 1 / 1.4, "missed"),
        ("EVALSHA", REDIS_PURE, 9.0, ""),
        ("EVALSHA: system calls", BARE, 2 / 2, "reached"),
        ("EVALSHA: system calls", BARE, 2 / 3, "missed"),
    ],
)
def test_goals_are_ratios(work: str, contender: str, ratio: float, said: str) -> None:
    row = Row("one", work, contender, "us", 1, 1, 1, ratio, REACH.get((work, contender)))
    assert wire._goal(row).endswith(said)
    assert bool(wire._goal(row)) == bool(said)


@pytest.mark.parametrize(
    "argv",
    [["--rounds", "0"], ["--calls", "0"], ["--calls", "many"], ["--only", ""], ["--only", "one,2"]],
)
def test_wrong_usage_is_two(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2


def test_without_a_server_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Embedded) -> None:
        raise EmbeddedError("install it")

    monkeypatch.setattr(Embedded, "__enter__", fail)
    assert main([]) == 3
    assert "install it" in capsys.readouterr().err

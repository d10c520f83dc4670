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
from bench.goals import GOALS
from bench.options import one_core
from bench.peers import BARE, GLIDE_SYNC, OURS, PEERS, REDIS, REDIS_PURE, Call, Contender, Job, Peer
from bench.wire import main
from bench.works import EVALSHA, SECTIONS, WORKS
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
    rows = [row for row in told["figures"] if row["work"] not in _SHAPES[section]]
    beside = {row["work"] for row in told["figures"]} & _SHAPES[section]
    peers = [peer for peer in PEERS if section in peer.sections]

    assert {(row["work"], row["contender"]) for row in rows} == {
        (work.name, peer.name)
        for work in WORKS
        for peer in peers
        if work.section == section and not peer.is_missing()
    }
    assert beside >= _SHAPES[section] - {"EVALSHA: system calls"}  # strace may be missing
    assert list(told["missing"]) == [peer.name for peer in peers if peer.is_missing()]
    for row in told["figures"]:
        assert row["section"] == SECTIONS[section]
        assert 0 < row["low"] <= row["median"] <= row["high"]
        assert row["ratio"] > 0
        assert row["contender"] != OURS or row["ratio"] == 1
    for verdict in told["verdicts"]:
        own = verdict["work"] in _SHAPES[section] or verdict["against"] == BARE
        assert own or verdict["floor"] > 0


def test_what_is_counted_in_one_thread_leaves_out_who_has_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--rounds", "1", "--calls", "1", "--only", "one", "--json"]) == 0
    counted = [row for row in json.loads(capsys.readouterr().out)["figures"] if ":" in row["work"]]
    assert {OURS, REDIS, REDIS_PURE} <= {row["contender"] for row in counted}
    assert GLIDE_SYNC not in {row["contender"] for row in counted}
    calls = {row["contender"]: row["median"] for row in counted if row["unit"] == "calls"}
    if calls:
        assert calls[OURS] == calls[BARE] == 2


def test_what_is_to_be_reached_is_measured() -> None:
    names = {work.name for work in WORKS}.union(*_SHAPES.values())
    goals = [goal for goal in GOALS if goal.suite == wire.SUITE]
    assert {goal.work for goal in goals} <= names
    assert {goal.against for goal in goals} <= {"", *(peer.name for peer in PEERS)}


def test_bare_socket_says_for_many_callers_all_at_once() -> None:
    crowds = [work for work in WORKS if work.how != "turn"]
    assert crowds
    for work in crowds:
        assert work.at_once is not None
        assert work.at_once.how == "turn"
        assert work.at_once.commands == len(work.answers)
        assert work.at_once.answers == [work.answers]


def test_table_names_who_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real: Callable[[str], ModuleSpec | None] = importlib.util.find_spec

    def without_hiredis(name: str) -> ModuleSpec | None:
        return None if name == "hiredis" else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_hiredis)
    assert main(["--rounds", "1", "--calls", "1", "--only", "one,pipeline"]) == 0
    out = capsys.readouterr().out
    assert f"missing: {REDIS}: pip install redis hiredis" in out
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

    monkeypatch.setattr(wire, "PEERS", (*PEERS, Peer("liar", (section,), (), (), mixes_up)))
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
    with one_core():
        seen |= os.sched_getaffinity(0)
    assert len(seen) == 1
    assert os.sched_getaffinity(0) == before
    assert main(["--rounds", "1", "--calls", "1", "--only", "one", "--pin"]) == 0
    assert os.sched_getaffinity(0) == before


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

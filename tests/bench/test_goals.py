"""The goals are the speed table's, and are judged by what was measured."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench import codec, goals, peers
from bench.figures import Series, Verdict
from bench.goals import GOALS, HALF, HIREDIS, REDIS_PY
from bench.queues import contenders as queues


def _verdict(suite: str, *series: Series, **told: Any) -> Verdict:
    [found] = [
        verdict
        for verdict in goals.verdicts(suite, series)
        if all(getattr(verdict, name) == value for name, value in told.items())
    ]
    return found


def _wire(work: str, **values: list[float]) -> Series:
    names = {"ours": peers.OURS, "bare": peers.BARE, "redis": peers.REDIS}
    return Series("one", work, "us", peers.OURS, values={names[k]: v for k, v in values.items()})


def test_each_goal_is_one_of_a_kind() -> None:
    keys = [(goal.suite, goal.section, goal.work, goal.ours, goal.against) for goal in GOALS]
    assert len(set(keys)) == len(keys)
    assert all(bool(goal.work) != bool(goal.section) for goal in GOALS)


def test_goals_of_the_codec_are_measured() -> None:
    works = {workload.name for workload in codec.workloads()} | {
        name for name, _ in codec.encodings()
    }
    for goal in GOALS:
        if goal.suite == codec.SUITE:
            assert goal.work in {"", *works}
            assert goal.section in {"", *codec.SECTIONS}
            assert goal.against in {HIREDIS, REDIS_PY, HALF}


@pytest.mark.parametrize(("its", "reached"), [(20.0, True), (19.9, False)])
def test_ratio_to_a_peer_with_its_floor_and_its_spread(its: float, reached: bool) -> None:
    series = _wire("GET", ours=[10, 10, 10], bare=[8, 5, 8], redis=[its, 40, 10])
    verdict = _verdict("wire", series)
    assert verdict.reached is reached
    assert verdict.got == its / 10
    assert verdict.floor == its / 8
    assert (verdict.low, verdict.high) == ((1 + its / 10) / 2, (4 + its / 10) / 2)


@pytest.mark.parametrize(("ours", "reached"), [(13.0, True), (13.1, False)])
def test_bare_socket_is_a_bound_above_and_no_floor_of_itself(ours: float, reached: bool) -> None:
    verdict = _verdict("wire", _wire("EVALSHA", ours=[ours], bare=[10]), against=peers.BARE)
    assert (verdict.reached, verdict.got, verdict.floor) == (reached, ours / 10, None)
    assert verdict.low is None


def test_absolute_bound_has_the_unit_of_the_figure() -> None:
    series = Series("one", "EVALSHA: system calls", "calls", peers.OURS)
    series.values = {peers.OURS: [3], peers.BARE: [2]}
    verdict = _verdict("wire", series)
    assert (verdict.got, verdict.floor, verdict.unit, verdict.reached) == (3, 2, "calls", False)


def test_rates_are_compared_as_costs() -> None:
    series = Series("jobs", "no-op jobs", "/s", queues.CONSUMER, rate=True)
    series.values = {queues.CONSUMER: [9], queues.TASKIQ: [2], queues.BARE: [12]}
    verdict = _verdict("jobs", series)
    assert (verdict.got, verdict.floor, verdict.reached) == (4.5, 6, True)


def test_worst_of_a_section_is_judged_and_named() -> None:
    series = [
        Series("decode", name, "us CPU", peers.OURS, values={peers.OURS: [1], REDIS_PY: [its]})
        for name, its in (("a", 5.0), ("b", 1.5), ("c", 3.0))
    ]
    verdict = _verdict("codec", *series, against=REDIS_PY)
    assert (verdict.got, verdict.reached) == (1.5, False)
    assert verdict.work == "any of decode: b"
    assert [goal.section for goal in GOALS if goal.is_told_by(verdict)] == ["decode"]


def test_quadratic_growth_is_found() -> None:
    for whole, reached in ((2.0, True), (4.0, False)):
        series = Series("linear", "a", "us CPU", peers.OURS)
        series.values = {peers.OURS: [whole], HALF: [1.0]}
        assert _verdict("codec", series).reached is reached


def test_what_was_not_measured_has_no_verdict() -> None:
    assert goals.verdicts("wire", [_wire("GET", ours=[1.0], bare=[1.0])]) == []
    assert goals.verdicts("wire", [_wire("GET", redis=[1.0])]) == []
    assert goals.verdicts("jobs", [_wire("GET", ours=[1.0], redis=[1.0])]) == []


def test_every_goal_is_told_by_its_own_verdict_alone() -> None:
    for goal in GOALS:
        work = goal.work or f"any of {goal.section}: x"
        told = (goal.suite, work, goal.ours, goal.against, "x", goal.bound, goal.least, 1.0)
        assert [one for one in GOALS if one.is_told_by(Verdict(*told))] == [goal]
    assert re.fullmatch(r"[ -~]*", "".join(goal.line for goal in GOALS))

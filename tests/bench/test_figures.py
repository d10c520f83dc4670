"""Figures are medians, ratios are of the same round, and a cost is a cost where a rate is shown."""

from __future__ import annotations

import pytest

from bench.figures import Series, Verdict, figures, quartiles


def test_quartiles() -> None:
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([5.0, 1.0, 2.0, 4.0, 3.0]) == (2.0, 3.0, 4.0)


def test_ratio_is_the_median_of_the_rounds_and_not_of_the_medians() -> None:
    series = Series("one", "GET", "us", "ours", values={"ours": [1, 2, 10], "its": [4, 4, 10]})
    ours, its = figures("wire", [series])
    assert (ours.median, ours.ratio) == (2, 1)
    assert (its.median, its.ratio, its.rounds) == (4, 2, 3)


def test_a_rate_that_is_half_costs_twice() -> None:
    series = Series("jobs", "no-op", "/s", "ours", rate=True, values={"ours": [8], "its": [4]})
    assert [figure.ratio for figure in figures("jobs", [series])] == [1, 2]
    assert series.times("ours", "its") == [0.5]


def test_there_is_no_ratio_to_what_costs_nothing_or_is_not_there() -> None:
    none = Series("life", "keys", "", "ours", values={"ours": [0], "its": [2]})
    absent = Series("life", "keys", "", "ours", values={"its": [2]})
    assert [one.ratio for one in figures("jobs", [none, absent])] == [None, None, None]


@pytest.mark.parametrize(
    ("least", "got", "reached"),
    [(True, 4.0, True), (True, 3.9, False), (False, 4.0, True), (False, 4.1, False)],
)
def test_bound_has_a_side(least: bool, got: float, reached: bool) -> None:
    assert Verdict("wire", "GET", "ours", "its", "x", 4, least, got).reached is reached

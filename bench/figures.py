"""What every benchmark answers: figures with their spread, what was to be reached, and on what.

A figure is the median over the rounds of an interleaved run, in which all contenders are timed in
turn so that a noisy moment falls on all; a ratio is the median of the ratios within each round.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

UNITS: Final = {
    "us": "microseconds",
    "us CPU": "microseconds of processor time",
    "ms": "milliseconds",
    "/s": "a second",
    "B": "bytes",
    "calls": "system calls",
    "": "a count",
}


@dataclass(frozen=True)
class Figure:
    """What one contender did at one work.

    Attributes:
        suite: The benchmark: `bytes`, `codec`, `wire`, `jobs`, `tap`, `grow`, `start`.
        section: A part of it, by its title in a table.
        work: What was done.
        contender: Who did it.
        unit: One of `UNITS`.
        median, low, high: Over the rounds; low and high are the quartiles.
        rounds: How often it was measured; 1 for what is counted and not timed.
        ratio: What it costs (also where the figure is a rate) as a multiple of what ours costs in
            the same round, the median; None where there is nothing to compare.
        size: What the work grows with, or None.
    """

    suite: str
    section: str
    work: str
    contender: str
    unit: str
    median: float
    low: float
    high: float
    rounds: int = 1
    ratio: float | None = None
    size: int | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether something was reached.

    Attributes:
        suite, work: What was measured.
        ours: Which contender of ours.
        against: Whose figure ours is compared with; "" for an absolute bound.
        unit: Of `got` and `bound`: "x" for a ratio.
        bound: What is to be reached.
        least: Whether `got` must be at least `bound`, or at most.
        got: What was measured.
        floor: The same of a bare socket, where there is one: ready bytes, an exchange at a time.
        low, high: The quartiles of `got`, or None for what is counted.
    """

    suite: str
    work: str
    ours: str
    against: str
    unit: str
    bound: float
    least: bool
    got: float
    floor: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the bound holds."""
        return self.got >= self.bound if self.least else self.got <= self.bound


@dataclass
class Run:
    """What a benchmark found.

    Attributes:
        figures, verdicts: In the order to be shown.
        missing: Peers that were not measured, and why.
        notes: Sentences for the caption.
        versions: Of the packages and programs that took part.
    """

    figures: list[Figure] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Answer the low quartile, the median and the high quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


@dataclass
class Series:
    """What one work cost every contender, round by round: what figures and verdicts are made of.

    Attributes:
        section, work, unit: As of a `Figure`.
        ours: Whose costs the others' are a multiple of; "" for nobody's.
        rate: Whether the values are rates, so that more of it costs less.
        values: By contender, a value a round.
    """

    section: str
    work: str
    unit: str
    ours: str
    rate: bool = False
    values: dict[str, list[float]] = field(default_factory=dict)

    def times(self, who: str, to: str) -> list[float]:
        """Answer what `who` costs as a multiple of what `to` costs, in each round of both."""
        upper, lower = (to, who) if self.rate else (who, to)
        pairs = zip(self.values[upper], self.values[lower], strict=False)
        return [above / below for above, below in pairs if below]

    def figures(self, suite: str) -> Iterator[Figure]:
        """Answer the median of each contender."""
        for who, values in self.values.items():
            low, median, high = quartiles(values)
            ratios = self.times(who, self.ours) if self.ours in self.values else []
            ratio = statistics.median(ratios) if ratios else None
            yield Figure(
                *(suite, self.section, self.work, who, self.unit, median, low, high),
                rounds=len(values),
                ratio=ratio,
            )


def figures(suite: str, series: Iterable[Series]) -> list[Figure]:
    """Answer the figures of all series."""
    return [figure for one in series for figure in one.figures(suite)]


# How a suite is told what to do, and tells how far it is.


@dataclass(frozen=True)
class Size:
    """How much a suite does.

    Attributes:
        quick: So little that it takes seconds: to see it run.
        rounds: How often each is timed; None is the suite's own number.
    """

    quick: bool = False
    rounds: int | None = None


class Progress(Protocol):
    """Told what is going on, and which part of the suite is done, from 0 to 1."""

    def __call__(self, text: str, part: float = 0.0) -> None:
        """Take it in."""


def silent(text: str, part: float = 0.0) -> None:
    """Be told, and tell nobody."""

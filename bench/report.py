"""How a run is told: as a table for a terminal, as markdown, as JSON, and as the README's table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from . import machine
from .figures import Figure, Run, Verdict
from .goals import GOALS, Goal

HEADINGS: Final = ("work", "contender", "figure", "quartiles", "x ours")
_VERDICTS: Final = ("to reach", "ours", "against", "bound", "measured", "floor", "")
_README: Final = ("work", "against", "reach", "measured", "floor", "reached")


# Numbers.


def number(value: float) -> str:
    """A figure as text: three or four digits that count, and no places for what is whole."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    places = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:,.{places}f}"


def amount(value: float, unit: str) -> str:
    """A figure and its unit."""
    return f"{number(value)}x" if unit == "x" else f"{number(value)} {unit}".rstrip()


def _spread(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}"


def _ratio(figure: Figure) -> str:
    return "" if figure.ratio is None else f"{figure.ratio:.2f}"


def bound(verdict: Verdict) -> str:
    """What was to be reached."""
    return f"{'>=' if verdict.least else '<='} {amount(verdict.bound, verdict.unit)}"


def told(verdict: Verdict) -> str:
    """Whether it was."""
    return "reached" if verdict.reached else "missed"


def measured(verdict: Verdict) -> str:
    """What was measured, and its spread."""
    got = amount(verdict.got, verdict.unit)
    if verdict.low is None or verdict.high is None or verdict.low == verdict.high:
        return got
    return f"{got} ({_spread(verdict.low, verdict.high)})"


def floor(verdict: Verdict) -> str:
    """What the bare socket does."""
    return "" if verdict.floor is None else amount(verdict.floor, verdict.unit)


# Rows of cells.


def sections(run: Run) -> Iterator[tuple[str, list[list[str]]]]:
    """Each section's title and rows; figures of growing sizes share a row."""
    for section, group in itertools.groupby(run.figures, lambda figure: figure.section):
        yield section, list(_rows(list(group)))


def _rows(figures: Sequence[Figure]) -> Iterator[list[str]]:
    work = ""
    for (name, who), group in itertools.groupby(figures, lambda one: (one.work, one.contender)):
        first, *more = group
        cells = [name if name != work else "", who]
        if first.size is None:
            spread = _spread(first.low, first.high) if first.rounds > 1 else ""
            cells += [amount(first.median, first.unit), spread, _ratio(first)]
        else:
            steps = (f"{one.size:,}: {number(one.median)}" for one in (first, *more))
            cells += [f"{',  '.join(steps)} {first.unit}"]
        yield cells
        work = name


def verdict_rows(run: Run) -> list[list[str]]:
    """A row for each verdict, as `_VERDICTS` heads them."""
    return [
        [one.work, one.ours, one.against, bound(one), measured(one), floor(one), told(one)]
        for one in run.verdicts
    ]


def _sum(run: Run) -> str:
    return f"{sum(one.reached for one in run.verdicts)} of {len(run.verdicts)} reached"


def caption(run: Run) -> Iterator[str]:
    """What is to be known about a run: its notes, the versions, and who is missing."""
    yield from run.notes
    if run.versions:
        yield ", ".join(f"{name} {version}" for name, version in run.versions.items())
    for name, reason in run.missing.items():
        yield f"missing: {name}: {reason}"


# The forms.


def _columns(rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """Lines of cells: the first `left` of them to the left, the others to the right."""
    wide = max(map(len, rows))
    full = [row for row in rows if len(row) == wide]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    for row in rows:
        cells = [
            text if len(row) < wide and at == len(row) - 1  # it runs on over what is not there
            else text.ljust(width) if at < left else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=False))
        ]  # fmt: skip
        yield "  ".join(cells).rstrip()


def table(run: Run) -> str:
    """The run as text for a terminal."""
    lines: list[str] = []
    for section, rows in sections(run):
        lines += ["", *_columns([[section, *HEADINGS[1:]], *rows], 2)]
    if run.verdicts:
        lines += ["", *_columns([_VERDICTS, *verdict_rows(run)], 4), _sum(run)]
    return "\n".join([*lines, "", *caption(run)]).strip("\n")


def _marked(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table in markdown."""
    yield _line(headings)
    yield "|" + " --- |" * len(headings)
    for row in rows:
        yield _line([*row, *[""] * (len(headings) - len(row))])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def markdown(run: Run) -> str:
    """The run as tables in markdown."""
    lines: list[str] = []
    for section, rows in sections(run):
        lines += [f"### {section}", "", *_marked(HEADINGS, rows), ""]
    if run.verdicts:
        lines += ["### to reach", "", *_marked(_VERDICTS, verdict_rows(run)), "", _sum(run), ""]
    lines += [f"- {line}" for line in caption(run)]
    return "\n".join(lines).rstrip() + "\n"


def as_json(run: Run) -> dict[str, Any]:
    """The run's facts, for programs."""
    verdicts = [{**asdict(verdict), "reached": verdict.reached} for verdict in run.verdicts]
    return {**asdict(run), "verdicts": verdicts}


# What all suites found together.


@dataclass(frozen=True)
class Setting:
    """What a run of several suites was measured on.

    Attributes:
        machine: Processor, cores, system and Python.
        date: Of the run.
        pinned: The suites that ran with everything on one core.
    """

    machine: str
    date: str
    pinned: tuple[str, ...]

    @classmethod
    def here(cls, pinned: Sequence[str]) -> Setting:
        """This machine, today."""
        return cls(machine.describe(), machine.today(), tuple(pinned))

    def placement(self) -> str:
        """Where client, server and workers ran."""
        if not self.pinned:
            return "everything on whatever core"
        return f"{', '.join(self.pinned)} with everything on one core"

    def lines(self) -> list[str]:
        """As sentences of a caption."""
        return [f"{self.date}, {self.machine}", self.placement()]


def document(setting: Setting, runs: Mapping[str, Run]) -> dict[str, Any]:
    """The runs as JSON."""
    return {**asdict(setting), "suites": {name: as_json(run) for name, run in runs.items()}}


def pages(setting: Setting, runs: Mapping[str, Run]) -> str:
    """The runs as markdown."""
    parts = [f"## {name}\n\n{markdown(run)}" for name, run in runs.items()]
    told = "\n".join(f"- {line}" for line in setting.lines())
    return "\n".join([f"# Figures\n\n{told}\n", *parts])


def readme(setting: Setting, runs: Mapping[str, Run]) -> str:
    """The table of figures, a line for each row of the speed table, and its caption."""
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for run in runs.values():
        versions |= run.versions
        missing |= run.missing
    rounds = ", ".join(
        f"{max(figure.rounds for figure in run.figures)} in {name}"
        for name, run in runs.items()
        if any(figure.rounds > 1 for figure in run.figures)
    )
    caption = [
        f"{setting.date}: {setting.machine}, {setting.placement()}",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        *([f"medians of interleaved rounds ({rounds})"] if rounds else []),
        "±: half of what lies between the quartiles",
        "floor: the same of a bare socket that sends ready bytes, an exchange at a time",
    ]
    if missing:
        caption.append(f"not there to be measured: {', '.join(missing)}")
    return f"{figures_table(list(runs.values()))}\n\n{'; '.join(caption)}."


# The README's table.


def figures_table(runs: Sequence[Run]) -> str:
    """A line for each row of the speed table; goals that share one have a slash between."""
    verdicts = [verdict for run in runs for verdict in run.verdicts]
    rows = []
    goals = [goal for goal in GOALS if goal.line]
    for (line, against), group in itertools.groupby(goals, lambda one: (one.line, one.against)):
        found = [(goal, _find(goal, verdicts)) for goal in group]
        sign = "" if found[0][0].least else "<= "
        bounds = [f"{round(goal.bound, 2):g}{'x' if against else ''}" for goal, _ in found]
        told = [verdict for _, verdict in found]
        floors = [_short(one.floor) if one and one.floor is not None else "" for one in told]
        rows.append(
            [
                line,
                against.replace(" + ", "+"),
                sign + _both(bounds),
                " / ".join(_brief(one) if one else "-" for one in told),
                " / ".join(floors) if any(floors) else "",
                _both([_reached(one) for one in told]),
            ]
        )
    return "\n".join(_marked(_README, rows))


def _both(answers: Sequence[str]) -> str:
    """Answers with a slash between; one where they are the same."""
    return " / ".join(answers if len(set(answers)) > 1 else answers[:1])


def _reached(verdict: Verdict | None) -> str:
    return "not measured" if verdict is None else "yes" if verdict.reached else "no"


def _find(goal: Goal, verdicts: Sequence[Verdict]) -> Verdict | None:
    return next((one for one in verdicts if goal.is_told_by(one)), None)


def _short(value: float) -> str:
    """A number of three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _brief(verdict: Verdict) -> str:
    """What was measured, and half of what lies between its quartiles."""
    got = _short(verdict.got)
    if verdict.low is None or verdict.high is None or verdict.low == verdict.high:
        return got
    return f"{got} ±{(verdict.high - verdict.low) / 2:.1g}"

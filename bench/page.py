"""The report as one HTML file: no script, no network, light and dark."""

from __future__ import annotations

import html as escaping
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from . import peers, report
from .bytes import BOTH_WAYS, BY_KIND
from .charts import STYLE, Bar, Kind, Reached, growth, ladder, pairs, reach, stacks
from .figures import Figure, Run, Verdict
from .goals import GOALS
from .queues import contenders as queues
from .report import Setting

_TITLES: Final = {
    "bytes": "Bytes, counted",
    "codec": "Encoding and decoding",
    "wire": "Commands over loopback TCP",
    "jobs": "Jobs through a queue",
    "tap": "What looking at the bytes costs",
    "grow": "How cost grows",
    "start": "What it costs to begin, and to wait",
}
_FLOORS: Final = (peers.BARE, queues.HAND)
_MANY: Final = 6  # lines in a chart
_STYLE: Final = """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px; max-width: 1180px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 20px; margin: 40px 0 8px; }
h3 { font-size: 16px; margin: 24px 0 8px; } h4 { font-size: 13px; margin: 0 0 6px; }
p, li { color: var(--muted); margin: 4px 0; } ul { padding-left: 20px; }
.panels { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(480px, 1fr)); }
.card { background: var(--card); border: 1px solid var(--grid); border-radius: 8px;
  padding: 12px 14px; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { padding: 3px 10px 3px 0; text-align: left; border-bottom: 1px solid var(--grid);
  white-space: nowrap; }
th { color: var(--muted); font-weight: 600; } td { font-variant-numeric: tabular-nums; }
.reached { color: var(--good); font-weight: 600; } .missed { color: var(--bad); font-weight: 600; }
details { margin: 12px 0; } summary { cursor: pointer; color: var(--muted); }
@media (max-width: 560px) { body { padding: 12px; } .panels { grid-template-columns: 1fr; } }
"""
_HEAD: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Figures</title>
<style>"""


def _text(text: str) -> str:
    return escaping.escape(text, quote=False)


def html(setting: Setting, runs: Mapping[str, Run]) -> str:
    """All runs as one page."""
    verdicts = [one for run in runs.values() for one in run.verdicts if _is_goal(one)]
    reached = sum(verdict.reached for verdict in verdicts)
    parts = [
        f"{_HEAD}{STYLE}{_STYLE}</style>\n</head>\n<body>",
        "<h1>Figures</h1>",
        *(f"<p>{_text(line)}</p>" for line in setting.lines()),
    ]
    if verdicts:
        parts += [f"<h2>To reach: {reached} of {len(verdicts)}</h2>", *_reached(verdicts)]
    for name, run in runs.items():
        parts += [f'<h2 id="{name}">{_TITLES[name]}</h2>', *_suite(run)]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _is_goal(verdict: Verdict) -> bool:
    return any(goal.is_told_by(verdict) for goal in GOALS)


def _card(title: str, chart: str) -> str:
    return f'<div class="card"><h4>{_text(title)}</h4>\n{chart}</div>'


# What was to be reached.


def _reached(verdicts: Sequence[Verdict]) -> Iterator[str]:
    rows = [_near(verdict) for verdict in verdicts if verdict.against and verdict.got > 0]
    if rows:
        yield (
            "<p>How far each is beyond its bound: right of the line at 1 it is reached. A whisker "
            "goes from quartile to quartile; a diamond is the same of a bare socket.</p>"
        )
        yield f'<div class="card">{reach("what was to be reached", rows)}</div>'
    yield from _judged(verdicts)


def _judged(verdicts: Sequence[Verdict]) -> Iterator[str]:
    headings = ("suite", "what", "ours", "against", "bound", "measured", "floor", "")
    yield '<div class="card"><table>' + _row(headings, "th")
    for one in verdicts:
        told = report.told(one)
        cells = (one.suite, one.work, one.ours, one.against, report.bound(one))
        last = f'<td class="{told}">{told}</td></tr>'
        yield _row((*cells, report.measured(one), report.floor(one))).replace("</tr>", last)
    yield "</table></div>"


def _near(verdict: Verdict) -> Reached:
    def part(value: float) -> float:
        return value / verdict.bound if verdict.least else verdict.bound / max(value, 1e-9)

    low, high = verdict.low or verdict.got, verdict.high or verdict.got
    least, most = sorted((part(low), part(high)))
    floor = None if verdict.floor is None else part(verdict.floor)
    ours = "" if verdict.ours == peers.OURS else f"{verdict.ours}: "
    name = f"{ours}{verdict.work} / {verdict.against}"
    told = f"{report.amount(verdict.got, verdict.unit)}, {report.bound(verdict)}"
    return Reached(name, part(verdict.got), least, most, floor, told)


# A suite.


def _suite(run: Run) -> Iterator[str]:
    for section, group in itertools.groupby(run.figures, lambda figure: figure.section):
        figures = list(group)
        yield f"<h3>{_text(section)}</h3>"
        if section == BY_KIND:
            yield _card("bytes", stacks("bytes of one EVALSHA, by kind", _by_work(figures)))
            continue
        if section == BOTH_WAYS:
            yield _card("bytes sent", pairs("bytes sent, both ways", _by_work(figures)))
            continue
        grown = [figure for figure in figures if figure.size is not None]
        others = [figure for figure in figures if figure.size is None]
        if grown:
            yield f'<div class="panels">{"".join(_growing(grown))}</div>'
        elif others:
            yield f'<div class="panels">{"".join(_ladders(others))}</div>'
    if own := [verdict for verdict in run.verdicts if not _is_goal(verdict)]:
        held = sum(verdict.reached for verdict in own)
        yield f"<details><summary>bounds of its own: {held} of {len(own)} hold</summary>"
        yield from _judged(own)
        yield "</details>"
    yield "<details><summary>all figures</summary>"
    for section, rows in report.sections(run):
        yield f'<div class="card"><table>{_row((section, *report.HEADINGS[1:]), "th")}'
        yield from (_row(row) for row in rows)
        yield "</table></div>"
    yield "</details>\n<ul>"
    yield from (f"<li>{_text(line)}</li>" for line in report.caption(run))
    yield "</ul>"


def _row(cells: Sequence[str], tag: str = "td") -> str:
    missing = len(report.HEADINGS) - len(cells)
    wide = f' colspan="{missing + 1}"' if missing > 0 else ""
    *first, last = (_text(cell) for cell in cells)
    drawn = "".join(f"<{tag}>{cell}</{tag}>" for cell in first)
    return f"<tr>{drawn}<{tag}{wide}>{last}</{tag}></tr>\n"


def _by_work(figures: Sequence[Figure]) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for figure in figures:
        rows.setdefault(figure.work, {})[figure.contender] = figure.median
    return rows


def _ladders(figures: Sequence[Figure]) -> Iterator[str]:
    """A panel for each work, whose best contender is on top."""
    for work, group in itertools.groupby(figures, lambda figure: figure.work):
        some = list(group)
        # A ratio of costs puts the best first where the figure is a rate, too.
        if all(figure.ratio is not None for figure in some):
            some.sort(key=lambda figure: figure.ratio or 0)
        else:
            some.sort(key=lambda figure: figure.median)
        bars = [
            Bar(
                figure.contender,
                *(figure.median, figure.low, figure.high, _kind(figure)),
                report.amount(figure.median, figure.unit),
            )
            for figure in some
        ]
        yield _card(work, ladder(work, bars))


def _kind(figure: Figure) -> Kind:
    if figure.contender in _FLOORS:
        return "floor"
    ours = figure.contender.startswith(("emq", "resp", "enqueue, ")) or figure.ratio == 1
    return "ours" if ours else "peer"


def _growing(figures: Sequence[Figure]) -> Iterator[str]:
    """One chart of all works where they are few, and otherwise one for each."""
    by_unit: dict[str, list[Figure]] = {}
    for figure in figures:
        by_unit.setdefault(figure.unit, []).append(figure)
    for unit, some in by_unit.items():
        works = list(dict.fromkeys(figure.work for figure in some))
        contenders = {figure.contender for figure in some}
        if len(works) <= _MANY and len(contenders) == 1:
            yield _card(unit, growth(unit, _lines(some, "work"), unit))
            continue
        for work in works:
            mine = [figure for figure in some if figure.work == work]
            yield _card(work, growth(work, _lines(mine, "contender"), unit))


def _lines(figures: Sequence[Figure], name: str) -> dict[str, dict[int, float]]:
    lines: dict[str, dict[int, float]] = {}
    for figure in figures:
        lines.setdefault(getattr(figure, name), {})[figure.size or 1] = figure.median
    return lines

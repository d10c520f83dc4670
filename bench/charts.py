"""Charts as SVG that needs nothing: bars with whiskers, stacks, lines on two logarithmic scales.

Colours are classes of the page's style (`STYLE`), so a chart follows it from light to dark. Widths
of texts are guessed from their length: a little too wide rather than cut off.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

COLORS: Final = 8
_RULES: Final = """
:root {
  --ink: #1c2330; --muted: #5c6675; --grid: #dfe3e9; --page: #f6f7f9; --card: #fff;
  --ours: #0a7d5a; --floor: #9aa3af; --peer: #7b9cc9; --good: #0a7d5a; --bad: #b3261e;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #b58900; --c5: #56b4e9;
  --c6: #6a51a3; --c7: #7f7f7f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e5e9f0; --muted: #9aa5b5; --grid: #343c49; --page: #14181f; --card: #1c222c;
    --ours: #35c496; --floor: #6b7685; --peer: #5f82b3; --good: #35c496; --bad: #ff8a80;
    --c0: #4aa8e0; --c1: #ff8f4d; --c2: #35c496; --c3: #e09cc3; --c4: #e0c04d; --c5: #8fd0f5;
    --c6: #a994e0; --c7: #a8a8a8;
  }
}
svg { display: block; max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); }
svg .card { fill: var(--card); }
svg .muted { fill: var(--muted); font-size: 11px; }
svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--grid); }
svg .whisker { stroke: var(--ink); stroke-width: 1.2; }
svg .bound { stroke: var(--ink); stroke-dasharray: 3 3; }
svg .ours { fill: var(--ours); } svg .floor { fill: var(--floor); } svg .peer { fill: var(--peer); }
svg .good { fill: var(--good); } svg .bad { fill: var(--bad); }
svg .hollow { fill: var(--card); stroke: var(--muted); stroke-width: 1.5; }
svg polyline { fill: none; stroke-width: 2; }
"""
STYLE: Final = _RULES + "".join(
    f"svg .c{n} {{ fill: var(--c{n}); }} svg .l{n} {{ stroke: var(--c{n}); }}\n"
    for n in range(COLORS)
)

_CHARACTER: Final = 7.4  # pixels, of a wide one
_ROW: Final = 20
_SPAN: Final = 20.0  # from the least value to the most, above which a scale is logarithmic
_LEAST: Final = 1e-9


def _wide(texts: Sequence[str]) -> float:
    return max((len(text) for text in texts), default=0) * _CHARACTER


def brief(value: float) -> str:
    """A number on an axis."""
    for least, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= least:
            return f"{value / least:.3g}{letter}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class Scale:
    """From values to pixels.

    Attributes:
        low, high: The least value and the most.
        begin, end: Where they are.
        log: Whether equal factors are equally far apart, or equal differences.
    """

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value is; at an end where it is beyond."""
        value = min(max(value, self.low), self.high)
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return round(self.begin + part * (self.end - self.begin), 1)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values, few enough to be told apart."""
        if self.log:
            first, last = math.log10(self.low) - 1e-9, math.log10(self.high) + 1e-9
            powers = range(math.floor(first), math.floor(last) + 1)
            within = [10.0**power for power in powers if power >= first]
            if len(within) > 2:
                return within[:: math.ceil(len(within) / most)]
            steps = (10.0**power * factor for power in powers for factor in (1, 2, 5))
            return [step for step in steps if first <= math.log10(step) <= last]
        raw = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step_by = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
        first = math.ceil(self.low / step_by)
        return [n * step_by for n in range(first, math.floor(self.high / step_by + 1e-9) + 1)]


def scale(values: Sequence[float], begin: float, end: float, *, log: bool | None = None) -> Scale:
    """A scale for these values: from nought, or from the power of ten below where it spans much."""
    above = [max(value, _LEAST) for value in values if value > 0] or [1.0]
    if log or (log is None and max(above) / min(above) > _SPAN):
        low = 10.0 ** math.floor(math.log10(min(above)) - 1e-9)
        high = max(above)
        return Scale(low, high if high > low else low * 10, begin, end, log=True)
    return Scale(0, max(above), begin, end)


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{html.escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    told = f"<title>{html.escape(title)}</title>" if title else ""
    size = f'width="{max(width, 0.5):.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} rx="1.5" class="{kind}">{told}</rect>'


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img"'
    return f'{head} aria-label="{html.escape(label)}">\n' + "\n".join(parts) + "\n</svg>"


def sheet(charts: Mapping[str, str], width: float = 940) -> str:
    """Charts below each other, each under its title, as the text of an SVG file of its own."""
    parts, y = [f"<style>{STYLE}</style>", '<rect width="100%" height="100%" class="card"/>'], 30.0
    for title, chart in charts.items():
        head, _, rest = chart.partition(">")
        found = re.search(r'height="(\d+)"', head)
        assert found is not None
        parts.append(_text(20, y, title))
        parts.append(f'{head} x="20" y="{y + 12:.0f}">{rest}')
        y += 12 + int(found[1]) + 36
    return _svg(width, y, ", ".join(charts), parts) + "\n"


def _axis(across: Scale, top: float, bottom: float) -> list[str]:
    """Lines down from the ticks of a scale, and their numbers below."""
    parts = []
    for tick in across.ticks():
        x = across(tick)
        parts += [
            _line(x, top, x, bottom, "grid"),
            _text(x, bottom + 13, brief(tick), "muted middle"),
        ]
    return parts


Kind = Literal["ours", "floor", "peer"]


@dataclass(frozen=True)
class Bar:
    """A value with its spread."""

    name: str
    value: float
    low: float
    high: float
    kind: Kind
    told: str


def ladder(label: str, bars: Sequence[Bar], width: float = 520) -> str:
    """Bars below each other in the order given, with a whisker from quartile to quartile."""
    left = _wide([bar.name for bar in bars]) + 8
    right = _wide([bar.told for bar in bars]) + 10
    width = max(width, left + right + 120)
    bottom = len(bars) * _ROW + 4
    across = scale([end for bar in bars for end in (bar.value, bar.high)], left, width - right)
    parts = _axis(across, 0, bottom)
    for at, bar in enumerate(bars):
        y = at * _ROW + 4
        begin, end = across.begin, across(bar.value)
        tip = max(end, across(bar.high))
        parts.append(_text(left - 6, y + 12, bar.name, "end"))
        parts.append(
            _rect(begin, y + 1, end - begin, _ROW - 6, bar.kind, f"{bar.name}: {bar.told}")
        )
        if bar.high > bar.low:
            middle = y + _ROW / 2 - 2
            parts.append(_line(across(bar.low), middle, across(bar.high), middle, "whisker"))
            for quartile in (bar.low, bar.high):
                x = across(quartile)
                parts.append(_line(x, middle - 3, x, middle + 3, "whisker"))
        parts.append(_text(tip + 5, y + 12, bar.told, "muted"))
    if across.log:
        parts.append(_text(left - 24, bottom + 13, "log", "muted end"))
    return _svg(width, bottom + 18, label, parts)


def pairs(label: str, rows: Mapping[str, Mapping[str, float]], width: float = 900) -> str:
    """Bars of the same contenders for each of many names, on one scale, without spread."""
    legend, top = _legend(list(next(iter(rows.values()))), 0, width)
    left = _wide(list(rows)) + 8
    most = max(value for bars in rows.values() for value in bars.values())
    across = Scale(0, most, left, width - _wide([f"{most:,.0f}"]) - 6)
    parts, y = [*legend], top + 4
    for name, bars in rows.items():
        parts.append(_text(left - 6, y + 6 * len(bars) + 4, name, "end"))
        for at, (who, value) in enumerate(bars.items()):
            end, told = across(value), f"{value:,.0f}"
            parts.append(_rect(left, y, end - left, 10, f"c{at}", f"{name}, {who}: {told}"))
            parts.append(_text(end + 5, y + 9, told, "muted"))
            y += 12
        y += 5
    return _svg(width, y + 18, label, [*_axis(across, top, y), *parts])


def stacks(label: str, rows: Mapping[str, Mapping[str, float]], width: float = 900) -> str:
    """A bar for each name, of parts whose colours the legend above it tells."""
    kinds = list(dict.fromkeys(kind for parts in rows.values() for kind in parts))
    legend, top = _legend(kinds, 0, width)
    left = _wide(list(rows)) + 8
    most = max(sum(parts.values()) for parts in rows.values())
    across = Scale(0, most, left, width - 60)
    bottom = top + len(rows) * _ROW + 4
    drawn = [*legend, *_axis(across, top, bottom)]
    for at, (name, parts) in enumerate(rows.items()):
        y, sum_ = top + at * _ROW + 4, 0.0
        drawn.append(_text(left - 6, y + 12, name, "end"))
        for kind, value in parts.items():
            begin, end = across(sum_), across(sum_ + value)
            color = f"c{kinds.index(kind) % COLORS}"
            drawn.append(
                _rect(begin, y + 1, end - begin, _ROW - 6, color, f"{name}, {kind}: {value:,.0f}")
            )
            sum_ += value
        drawn.append(_text(across(sum_) + 5, y + 12, f"{sum_:,.0f}", "muted"))
    return _svg(width, bottom + 18, label, drawn)


def _legend(names: Sequence[str], left: float, width: float) -> tuple[list[str], float]:
    """Colours and names in as many lines as they need, and where what follows begins."""
    parts, x, y = [], left, 0.0
    for at, name in enumerate(names):
        wide = 18 + _wide([name]) + 10
        if x > left and x + wide > width:
            x, y = left, y + 17
        parts += [_rect(x, y + 2, 11, 11, f"c{at % COLORS}"), _text(x + 16, y + 12, name)]
        x += wide
    return parts, y + 22


def growth(
    label: str, lines: Mapping[str, Mapping[int, float]], unit: str, width: float = 520
) -> str:
    """Lines over a growing size, on two logarithmic scales."""
    legend, top = _legend(list(lines), 0, width)
    sizes = sorted({size for line in lines.values() for size in line})
    values = [value for line in lines.values() for value in line.values()]
    bottom, left, right = top + 190, 46.0, width - 16
    across = Scale(sizes[0], max(sizes[-1], sizes[0] * 10), left, right, log=True)
    up = scale(values, bottom, top + 6, log=True)
    if up.high < up.low * 10:  # one decade at least, so that what is flat looks flat
        up = Scale(up.low, up.low * 10, up.begin, up.end, log=True)
    parts = [*legend, *_axis(across, top, bottom)]
    for tick in up.ticks():
        y = up(tick)
        parts += [
            _line(left, y, right, y, "grid"),
            _text(left - 5, y + 4, brief(tick), "muted end"),
        ]
    for at, (name, line) in enumerate(lines.items()):
        color = at % COLORS
        points = [(across(size), up(value)) for size, value in sorted(line.items())]
        drawn = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{drawn}" class="l{color}"/>')
        for (x, y), (size, value) in zip(points, sorted(line.items()), strict=True):
            told = f"<title>{html.escape(name)}, {size:,}: {value:,.3g} {unit}</title>"
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" class="c{color}">{told}</circle>')
    parts.append(_text(0, bottom + 13, unit, "muted"))
    return _svg(width, bottom + 20, label, parts)


@dataclass(frozen=True)
class Reached:
    """How near a bound something came: 1 is the bound, more is better.

    Attributes:
        name: What it is.
        got, low, high: As a multiple of the bound.
        floor: The same of the bare socket, or None.
        told: In words.
    """

    name: str
    got: float
    low: float
    high: float
    floor: float | None
    told: str


def reach(label: str, rows: Sequence[Reached], width: float = 900) -> str:
    """A point for each row with its whisker, beside the line at 1 and a diamond for the floor."""
    left = _wide([row.name for row in rows]) + 8
    right = _wide([row.told for row in rows]) + 8
    width = max(width, left + right + 200)
    values = [value for row in rows for value in (row.got, row.low, row.high, row.floor or 1)]
    least, most = min(values), max(values)
    across = Scale(min(least, 0.5) * 0.8, max(most, 2) * 1.2, left, width - right, log=True)
    bottom = len(rows) * _ROW + 4
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
    parts = []
    for tick in (step for step in steps if across.low <= step <= across.high):
        x = across(tick)
        parts.append(_line(x, 0, x, bottom, "bound" if tick == 1 else "grid"))
        parts.append(_text(x, bottom + 13, f"{tick:g}", "muted middle"))
    for at, row in enumerate(rows):
        y = at * _ROW + _ROW / 2 + 3
        parts.append(_text(left - 6, y + 4, row.name, "end"))
        parts.append(_line(across(row.low), y, across(row.high), y, "whisker"))
        if row.floor is not None:
            x = across(row.floor)
            diamond = f"M{x} {y - 5}L{x + 5} {y}L{x} {y + 5}L{x - 5} {y}Z"
            parts.append(f'<path d="{diamond}" class="hollow"><title>floor</title></path>')
        kind = "good" if row.got >= 1 else "bad"
        told = f"<title>{html.escape(f'{row.name}: {row.told}')}</title>"
        x = across(row.got)
        parts.append(f'<circle cx="{x}" cy="{y}" r="4.5" class="{kind}">{told}</circle>')
        parts.append(_text(width - right + 8, y + 4, row.told, "muted"))
    return _svg(width, bottom + 18, label, parts)

"""Charts keep to their frame, and their scales are right."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from bench import charts
from bench.charts import Bar, Reached, Scale

_SVG = "{http://www.w3.org/2000/svg}"


def test_linear_scale() -> None:
    scale = Scale(0, 200, 100, 300)
    assert [scale(value) for value in (0, 50, 200, 300, -1)] == [100, 150, 300, 300, 100]
    assert scale.ticks() == [0, 50, 100, 150, 200]


def test_logarithmic_scale() -> None:
    scale = Scale(1, 100, 0, 200, log=True)
    assert [scale(value) for value in (1, 10, 100, 1000, 0)] == [0, 100, 200, 200, 0]
    assert Scale(10, 3_000_000, 0, 1, log=True).ticks(3) == [10, 1000, 100_000]
    assert Scale(1, 30, 0, 1, log=True).ticks() == [1, 2, 5, 10, 20]


@pytest.mark.parametrize(
    ("values", "low", "log"),
    [([1, 19], 0, False), ([1, 21], 0.1, True), ([0, 5], 0, False), ([0, 0], 0, False)],
)
def test_scale_is_logarithmic_where_it_spans_much(
    values: list[float], low: float, log: bool
) -> None:
    scale = charts.scale(values, 0, 100)
    assert scale.low == pytest.approx(low)
    assert scale.log is log
    for tick in scale.ticks():
        assert scale.low - 1e-9 <= tick <= scale.high + 1e-9


@pytest.mark.parametrize(
    ("value", "told"), [(0, "0"), (0.25, "0.25"), (1000, "1k"), (2_500_000, "2.5M"), (3e9, "3G")]
)
def test_brief(value: float, told: str) -> None:
    assert charts.brief(value) == told


_BARS = [
    Bar("ours", 10, 9, 12, "ours", "10 us"),
    Bar("a peer of a long & <odd> name", 2000, 1900, 2500, "peer", "2,000 us"),
    Bar("nothing", 0, 0, 0, "floor", "0 us"),
]
_REACHED = [Reached("a", 1.2, 1.1, 1.3, None, "2.4x"), Reached("b", 0.4, 0.4, 0.4, 30, "0.8x")]
_DRAWN = {
    "ladder": charts.ladder("bars", _BARS),
    "pairs": charts.pairs("two", {"claim": {"EVAL": 11_367, "EVALSHA": 91}}),
    "stacks": charts.stacks("kinds", {"claim": {"keys": 30, "rest": 61}, "state": {"rest": 5}}),
    "growth": charts.growth("lines", {"a": {10: 1.0, 1000: 90.0}, "b": {10: 2.0}}, "us"),
    "reach": charts.reach("reached", _REACHED),
    "sheet": charts.sheet({"one": charts.ladder("bars", _BARS), "two": charts.ladder("b", _BARS)}),
}


@pytest.mark.parametrize("name", _DRAWN)
def test_nothing_is_outside_of_the_frame(name: str) -> None:
    root = ET.fromstring(_DRAWN[name])
    for svg in root.iter(f"{_SVG}svg"):
        width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
        for shape in svg:
            for key, most in (("x", width), ("x1", width), ("x2", width), ("cx", width)):
                assert 0 <= float(shape.attrib.get(key, 0)) <= most
            for key in ("y", "y1", "y2", "cy"):
                assert 0 <= float(shape.attrib.get(key, 0)) <= height
            if shape.tag == f"{_SVG}rect" and shape.attrib["width"] != "100%":
                assert float(shape.attrib["x"]) + float(shape.attrib["width"]) <= width


def test_bars_are_as_long_as_their_values() -> None:
    bars = [Bar("a", 10, 10, 10, "ours", ""), Bar("b", 5, 5, 5, "peer", "")]
    found = re.findall(r'<rect [^>]*width="([\d.]+)"', charts.ladder("bars", bars))
    assert float(found[0]) == pytest.approx(2 * float(found[1]), abs=0.2)


def test_whisker_is_drawn_where_there_is_a_spread() -> None:
    assert _DRAWN["ladder"].count("whisker") == 2 * 3
    assert "&lt;odd&gt;" in _DRAWN["ladder"]


def test_what_is_missed_is_left_of_the_line() -> None:
    text = _DRAWN["reach"]
    line = float(re.findall(r'x1="([\d.]+)"[^>]*class="bound"', text)[0])
    good, bad = (
        float(re.findall(rf'cx="([\d.]+)"[^>]*class="{kind}"', text)[0]) for kind in ("good", "bad")
    )
    assert bad < line < good

"""A run is told as text, markdown, JSON, an HTML page and the README's table."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from bench import page, report
from bench.bytes import BY_KIND
from bench.figures import Figure, Run, Verdict
from bench.goals import GOALS
from bench.peers import BARE, OURS, REDIS
from bench.report import Setting

SETTING = Setting("a machine", "2026-01-01", ("wire",))
_WIDTH = 110


def _run() -> Run:
    one = Figure("wire", "one caller", "GET", OURS, "us", 10.25, 9, 12, 5, 1.0)
    grown = Figure("grow", "queue", "claim", "server", "us", 8, 7, 9, 5, size=1000)
    kinds = Figure("bytes", BY_KIND, "claim", "framing", "B", 36, 36, 36)
    return Run(
        [
            one,
            replace(one, contender=BARE, median=8, low=8, high=8, ratio=0.8),
            replace(one, contender=REDIS, median=25_000, low=24_000, high=26_000, ratio=2444.0),
            replace(
                one, section="counted", work="a | b", unit="", median=0, low=0, high=0, rounds=1
            ),
            grown,
            replace(grown, size=10_000, median=9),
            kinds,
            replace(kinds, contender="keys & <more>", median=10),
        ],
        [
            Verdict("wire", "GET", OURS, REDIS, "x", 2.0, True, 2.444, 3.125, 2.4, 2.5),
            Verdict("wire", "EVALSHA: system calls", OURS, "", "calls", 2, False, 3, 2),
        ],
        {"a peer": "pip install <it>"},
        ["medians of 5 rounds"],
        {"Valkey": "9"},
    )


def test_numbers() -> None:
    told = [report.number(value) for value in (0, 3, 0.0581, 0.5, 12.34, 999.96, 1234.5, 2e6)]
    assert told == ["0", "3", "0.058", "0.50", "12.3", "1,000.0", "1,234", "2,000,000"]


def test_table() -> None:
    text = report.table(_run())
    lines = text.splitlines()
    assert lines[0].split() == ["one", "caller", "contender", "figure", "quartiles", "x", "ours"]
    assert re.fullmatch(r"GET +resp +10\.2 us +9 to 12 +1\.00", lines[1])
    assert re.fullmatch(r" +bare socket +8 us +8 to 8 +0\.80", lines[2])
    assert re.search(r"^claim +server +1,000: 8,  10,000: 9 us$", text, re.M)
    assert re.search(
        r"^GET +resp +redis-py \+ hiredis +>= 2x +2\.44x \(2\.40 to 2\.50\) +3\.12x +reached$",
        text,
        re.M,
    )
    assert re.search(r"^EVALSHA: system calls .* <= 2 calls +3 calls +2 calls +missed$", text, re.M)
    assert lines[-4:] == [
        *("", "medians of 5 rounds", "Valkey 9", "missing: a peer: pip install <it>"),
    ]
    assert "1 of 2 reached" in lines


def test_table_of_nothing() -> None:
    assert report.table(Run(notes=["nothing"])) == "nothing"


def test_markdown_has_as_many_cells_in_each_line() -> None:
    text = report.markdown(_run())
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({line.count("|") for line in block.splitlines()}) == 1
    assert "a &#124; b" in text


def test_json_has_everything() -> None:
    run = _run()
    told = json.loads(json.dumps(report.as_json(run)))
    assert [Figure(**figure) for figure in told["figures"]] == run.figures
    assert [verdict["reached"] for verdict in told["verdicts"]] == [True, False]
    assert told["missing"] == run.missing
    assert set(report.document(SETTING, {"wire": run})["suites"]) == {"wire"}


def _all_reached() -> list[Verdict]:
    """A verdict for each goal, with numbers as long as they come."""
    return [
        Verdict(
            goal.suite,
            goal.work or f"any of {goal.section}: x",
            *(goal.ours, goal.against, "x" if goal.against else "", goal.bound, goal.least),
            *(11.234, 322.456, 11.0, 11.51),
        )
        for goal in GOALS
    ]


def test_readme_has_a_narrow_line_for_each_row() -> None:
    lines = report.figures_table([Run(verdicts=_all_reached())]).splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= _WIDTH
    told = "\n".join(lines)
    assert "not measured" not in told
    for goal in GOALS:
        assert goal.line in told


def test_readme_tells_what_is_measured_and_what_is_not() -> None:
    lines = report.figures_table([_run()]).splitlines()
    [two] = [line for line in lines if line.startswith("| one caller: GET ")]
    assert two == (
        "| one caller: GET / SET 1 KB | redis-py+hiredis | 2x / 2.2x | 2.44 ±0.05 / - | 3.12 /  "
        "| yes / not measured |"
    )
    [calls] = [line for line in lines if line.startswith("| its system calls ")]
    assert calls == "| its system calls |  | <= 2 | 3 | 2 | no |"
    caption = report.readme(SETTING, {"wire": _run()}).splitlines()[-1]
    for words in (
        "2026-01-01",
        "a machine",
        "wire with everything on one core",
        "Valkey 9",
        "a peer",
    ):
        assert words in caption


class _Page(HTMLParser):
    """What a page has, and whether its elements close in order."""

    _EMPTY = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self._EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_page_stands_by_itself() -> None:
    text = page.html(SETTING, {"wire": _run()})
    parsed = _Page(text)
    assert parsed.open == []
    tags = [tag for tag, _ in parsed.seen]
    assert not {"script", "link", "img", "iframe", "object"} & set(tags)
    policies = [told["content"] for tag, told in parsed.seen if tag == "meta" and "content" in told]
    assert "default-src 'none'; style-src 'unsafe-inline'" in policies
    for _, told in parsed.seen:
        assert not [
            name for name in told if name.startswith("on") or name in ("src", "href", "style")
        ]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize(
    "told",
    [
        *("GET", "redis-py + hiredis", "25,000 us", "2.44x (2.40 to 2.50)", "reached", "missed"),
        *("keys &amp; &lt;more&gt;", "pip install &lt;it&gt;", "To reach: 1 of 2", "a machine"),
        "claim, framing: 36",
    ],
)
def test_page_tells(told: str) -> None:
    assert told in page.html(SETTING, {"wire": _run()})


def test_page_draws_each_kind_of_chart() -> None:
    text = page.html(SETTING, {"wire": _run()})
    labels = re.findall(r'aria-label="([^"]*)"', text)
    assert labels == [
        *("what was to be reached", "GET", "a | b", "us", "bytes of one EVALSHA, by kind"),
    ]
    assert text.count("<polyline") == 1
    assert 'class="ours"' in text
    assert 'class="floor"' in text
    assert 'class="peer"' in text

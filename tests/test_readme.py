"""What the README shows is so: its code runs, its output and its figures are right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from bench.goals import GOALS
from emq.scripts import CLAIM
from resp import encode_command
from resp.tap.dialogue import Exchange, Frame, words_of
from resp.tap.meaning import Scripts
from resp.tap.views import tree
from tests.conftest import Server

_README: Final = (Path(__file__).parents[1] / "README.md").read_text()
_TABLE: Final = Path(__file__).parent / "data" / "bytes.json"
_SERVER: Final = "valkey://127.0.0.1:6379"


class Block(NamedTuple):
    """A fenced block: its language and its text."""

    language: str
    text: str


_BLOCKS: Final = [
    Block(*found)
    for found in re.findall(r"^```(\w*)\n(.*?)^```$", _README, re.DOTALL | re.MULTILINE)
]


def test_first_two_blocks_are_the_two_commands() -> None:
    demo, tests = _BLOCKS[:2]
    assert demo.language == tests.language == "sh"
    assert demo.text.endswith(" .venv/bin/emq demo\n")
    assert tests.text.endswith(" .venv/bin/python -m pytest\n")
    assert demo.text.count("\n") == tests.text.count("\n") == 1


def test_code_prints_what_is_shown(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.admin.delete(*server.admin.keys("emq:*"), "no such key")
    shown = [block.text for block in _BLOCKS if block.language == "text"]
    code = [block.text for block in _BLOCKS if block.language == "python"]
    assert len(code) == len(shown) == 5
    for text, output in zip(code, shown, strict=True):
        assert _SERVER in text
        exec(compile(text.replace(_SERVER, server.url), "README.md", "exec"), {})
        assert capsys.readouterr().out == output
    # Nothing is left but the counts of what was done, and the one outcome that was to be kept.
    left = {key.decode() for key in server.admin.keys("emq:{*}:*")}
    [kept] = (key for key in left if key.endswith(":result"))
    assert left - {kept} == {f"emq:{{{name}}}:metrics:completed" for name in ("hellos", "orders")}


def test_a_job_and_its_worker_are_six_lines() -> None:
    hellos = [block.text for block in _BLOCKS if block.language == "python"][:2]
    for text in hellos:
        assert len([line for line in text.splitlines() if line]) <= 6


def test_figures_are_those_of_the_table() -> None:
    table = json.loads(_TABLE.read_text())
    told = re.search(
        r"([\d,]+) calls of a script of ([\d,]+) bytes send ([\d,]+) bytes by EVAL and ([\d,]+) by",
        _README,
    )
    assert told is not None
    written = table["rows"][0]["written"]
    assert [int(number.replace(",", "")) for number in told.groups()] == [
        table["calls"],
        table["body"],
        written["eval"],
        written["evalsha"],
    ]


def test_the_exchange_is_what_the_tree_shows() -> None:
    [shown] = [block.text for block in _BLOCKS if "digest = claim" in block.text]
    request = encode_command("EVALSHA", CLAIM.script.sha, 1, "emq:{orders}:")
    [id] = re.findall(r"JOB\w{11}", shown)
    reply = b'*3\r\n$14\r\n%b\r\n$15\r\n{"order": 1043}\r\n:1\r\n' % id.encode()
    exchange = Exchange(
        connection=1,
        number=5,
        kind="reply",
        request=Frame(186, 50_752_000, len(request), request, words_of(request)),
        replies=(Frame(239, 50_880_000, len(reply), reply),),
    )
    scripts = Scripts()
    scripts.add(CLAIM.script.source)
    assert tree(exchange, scripts=scripts) == shown.splitlines()


def test_modules_that_it_names_are_there() -> None:
    root = Path(__file__).parents[1]
    for name in re.findall(r"python -m ((?:tests|bench|resp)[\w.]*)", _README):
        path = root / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


def test_it_is_six_screens_long() -> None:
    assert len(_README.splitlines()) <= 275
    caption, _ = _README.split("<!-- /figures -->")[0].rstrip().rsplit("\n", 1)[::-1]
    assert max(len(line) for line in _README.splitlines() if line != caption) <= 115


def test_every_row_of_the_goals_is_in_the_table_of_figures() -> None:
    table = _README.partition("<!-- figures -->")[2].partition("<!-- /figures -->")[0]
    rows = {
        line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:] if "|" in line
    }
    assert rows >= {goal.line for goal in GOALS if goal.line}

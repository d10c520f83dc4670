"""The mutation check: what it changes, and that the tests notice a fixed few of its mutants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import Lua, Module, Mutant, Python, Scripts, let_be, mutants_of

LUA = """\
-- one: a comment == no code.

local function f(id, ...)
  local found = {
    { 'a', 1 },
  }
  if not found or #found >= 2 then
    return string.gsub(id, '[%c]', function(char)
      return char .. '0'
    end)
  elseif id then
    redis.call('ZADD', KEYS[1],
      found[1] + 1, id)
  end
end
"""


def kinds(source: str, edits: object) -> list[str]:
    made: list[Mutant] = list(mutants_of("a.lua", source, edits))  # type: ignore[arg-type]
    return [f"{each.line} {each.kind}" for each in made]


def test_what_is_changed_in_lua() -> None:
    assert kinds(LUA, Lua(LUA).edits()) == [
        "4 drop",
        "4 'a' -> 'ax'",
        "4 1 -> 2",
        "7 not -> nothing",
        "7 or -> and",
        "7 >= -> <",
        "7 >= -> >",
        "7 2 -> 3",
        "8 drop",
        "9 drop",
        "9 '0' -> '1'",
        "7 negate",
        "12 drop",
        "12 1 -> 2",
        "12 + -> -",
        "12 1 -> 2",
    ]


def test_a_statement_is_dropped_whole_and_its_comment_stays() -> None:
    drops = [
        each.source.splitlines()
        for each in mutants_of("a.lua", LUA, Lua(LUA).edits())
        if each.kind == "drop" and each.text.startswith("redis.call")
    ]

    assert drops == [[*LUA.splitlines()[:11], "    ", *LUA.splitlines()[13:]]]


def test_each_statement_says_its_line_before_it_runs() -> None:
    told = Lua(LUA).told("a.lua").splitlines()

    said = [line for line in told if "PUBLISH" in line]
    assert [line.split("'a.lua ")[1].split("'")[0] for line in said] == [*"34789", "12"]
    assert said[3].endswith("return string.gsub(id, '[%c]', function(char)")


@pytest.mark.parametrize("source", ["end", "local a = @"])
def test_what_is_no_lua_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"line|closes"):
        Lua(source)


def test_every_statement_of_the_scripts_begins_its_line() -> None:
    for name, source in Scripts().sources.items():
        parsed = Lua(source)
        for statement in parsed.statements:
            assert parsed.tokens[statement.first].first, (name, parsed.tokens[statement.first])


PYTHON = '''\
LIMIT = 1


class A:
    def f(self, at: int) -> int:
        """Docstring."""
        if not self.b and at + 1 <= LIMIT:
            raise ValueError
        while self.rest():
            at -= 0
        return at
'''


def test_what_is_changed_in_python() -> None:
    assert kinds(PYTHON, Python(PYTHON).edits()) == [
        "5 not -> nothing",
        "5 and -> or",
        "5 + -> -",
        "5 1 -> 2",
        "5 <= -> <",
        "5 <= -> >",
        "5 drop",
        "5 negate",
        "5 drop",
        "5 -= -> +=",
        "5 0 -> 1",
        "5 drop",
    ]


def test_names_of_mutants_tell_them_apart_and_do_not_change_with_lines_elsewhere() -> None:
    target = Module()
    made = target.mutants()
    keys = [each.key for each in made]
    source = f"A = 1\n\n\n{target.source}"
    moved = mutants_of("decode.py", source, Python(source).edits())

    assert len(set(keys)) == len(keys) > 1000
    assert [each.key for each in moved] == keys


def test_survivors_that_are_let_be_are_mutants_with_a_reason() -> None:
    known = let_be()
    keys = {each.key for each in (*Scripts().mutants(), *Module().mutants())}

    assert not set(known) - keys
    assert all(known.values())


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.mutants", *options]
    # A run of its own: it counts no lines of this one's, and what it breaks is not counted.
    told = ("PYTEST_", "COVERAGE_", "COV_CORE_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    return subprocess.run(
        command, cwd=mutants.ROOT, env=environ, capture_output=True, text=True, timeout=120
    )


KILLED_IN_LUA = [
    "_sweep.lua: 1 -> 2: local stalled = count_of(job[3]) + 1",
    "_places.lua: drop: redis.call('ZCARD', base .. place)",
    "recount.lua: > -> >=: if redis.call('ZCARD', base .. 'active') > tonumber(limit) then",
    "recount.lua: drop: lane.leave_ring()",
    "repair.lua: and -> or: if holder and redis.call('EXISTS', base .. 'job:' .. holder) == 0 then",
    "repair.lua: 'lane' -> 'lanex': return tell(name, 'rowless', 'lane', mends)",
    "retry.lua: negate: if again then",
]
KILLED_IN_PYTHON = [
    "decode.py: drop: return self.replies()",
    "decode.py: drop: self._base += len(data)",
    "decode.py: drop: self.attributes = None #2",
]


def only(keys: list[str]) -> list[str]:
    return [word for key in keys for word in ("--only", key)]


def test_a_few_mutants_of_scripts_are_killed(tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    options = ["--tests", "tests/emq/test_scenes.py", "--resume", str(found), "--json"]

    ran = run("lua", *only(KILLED_IN_LUA), *options)
    told = {each["mutant"]: each["verdict"] for each in map(json.loads, ran.stdout.splitlines())}
    assert told == dict.fromkeys(KILLED_IN_LUA, "killed"), ran.stderr
    assert ran.returncode == 0
    kept = found.read_text()
    assert run("lua", *only(KILLED_IN_LUA), *options).stdout == ran.stdout
    assert found.read_text() == kept


def test_a_few_mutants_of_the_decoder_are_killed() -> None:
    options = ["--tests", "tests/resp/test_decode_at_once.py", "--json"]

    ran = run("decoder", *only(KILLED_IN_PYTHON), *options)
    told = {each["mutant"]: each["verdict"] for each in map(json.loads, ran.stdout.splitlines())}
    assert told == dict.fromkeys(KILLED_IN_PYTHON, "killed"), ran.stderr


def test_a_mutant_that_no_test_notices_is_a_fault() -> None:
    known = "log.lua: > -> >=: if keep > 0 and lines > keep then #2"
    other = "log.lua: > -> >=: if keep > 0 and lines > keep then"

    ran = run("lua", *only([known, other]), "--tests", "tests/emq/test_units.py")

    assert ran.returncode == 1
    assert ran.stdout.splitlines()[-1] == f"not run: {other}"
    assert len(ran.stdout.splitlines()) == 5


@pytest.mark.parametrize(
    "options", [["lua", "--only", "nothing"], ["lua", "--jobs", "0"], ["python"]]
)
def test_what_there_is_none_of_is_usage(options: list[str]) -> None:
    assert run(*options).returncode == 2

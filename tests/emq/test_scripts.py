"""The header of every script is a contract that the loader can read, and the callers keep to."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from emq import scripts
from emq.errors import ContractError, JobGone, StaleToken, WrongKind
from emq.scripts import Answer, Parameter, Transition, header_of, names, source_of
from resp import ErrorReply, ScriptCall, ServerError

LUA = Path(scripts.__file__).with_name("lua")
SCRIPTS = names()
PIECES = sorted(path.stem[1:] for path in LUA.glob("_*.lua"))

# A queue whose settings cannot be read goes on settling, and old servers know no such command. A
# key of another's beside the jobs, or a parent that cannot be told, must not hold up all of them.
MAY_FAIL = {
    "_queue": {"pcall('HMGET',"},
    "_locks": {"pcall('HPEXPIRE',"},
    "_try": {"pcall(...)"},
    "_sweep": {"pcall(parent_of,"},
}

HEADER = """\
-- move: put a job elsewhere.
--
-- KEYS[1]   base   -       emq:{queue}:, the base of DERIVES
-- ARGV[1]   id     str     job id
-- ARGV[2..] places list    where to
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'job:' .. id
--
-- RETURNS
--   1        moved
--   [id, token]  with what a holder needs,
--            and nothing else
--   EMQSTALE move token mismatch  nothing written
--
-- COST O(1),
-- at most.

local base = KEYS[1]
-- DERIVES base .. 'active'
-- ARGV[9] is no declaration here
"""


def transitions() -> dict[str, Transition]:
    return {value.name: value for value in vars(scripts).values() if isinstance(value, Transition)}


def body_of(source: str) -> str:
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("--"))


# The reader.


def test_header_is_read_whole() -> None:
    header = header_of(HEADER)

    assert header.name == "move"
    assert header.summary == "put a job elsewhere."
    assert header.keys == (
        Parameter("base", "-", False, False, "emq:{queue}:, the base of DERIVES"),
    )
    assert header.args == (
        Parameter("id", "str", False, False, "job id"),
        Parameter("places", "list", False, True, "where to"),
    )
    assert header.derives == ("base .. 'pending'", "base .. 'job:' .. id", "base .. 'active'")
    assert header.returns == (
        Answer("1", "moved"),
        Answer("[id, token]", "with what a holder needs, and nothing else"),
        Answer("EMQSTALE move token mismatch", "nothing written"),
    )
    assert header.cost == "O(1), at most."


def test_optional_argument_is_told_by_its_type() -> None:
    header = header_of("-- x: y.\n-- ARGV[1] result  bytes?  what came of it\n")

    assert header.args == (Parameter("result", "bytes", True, False, "what came of it"),)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("-- x: y.\n-- KEYS[2] base  -  skips one\n", "out of order"),
        ("-- x: y.\n-- ARGV[1] id  str  one\n-- ARGV[1] token  int  again\n", "out of order"),
        ("-- x: y.\n-- KEYS[1] base\n", "not a line of a header"),
        ("-- x: y.\n-- whatever this is\n", "not a line of a header"),
        ("-- x: y.\n-- RETURNS\n--       meaning of nothing\n", "not a line of a header"),
    ],
)
def test_header_that_says_something_else_is_refused(broken: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        header_of(broken)


# The files.


def test_every_script_has_a_transition() -> None:
    assert sorted(transitions()) == SCRIPTS
    assert len(SCRIPTS) >= 33


def test_every_piece_is_included() -> None:
    included = {
        name for path in LUA.glob("*.lua") for name in re.findall("INCLUDE (.*)", path.read_text())
    }
    assert included == set(PIECES)


@pytest.mark.parametrize("name", SCRIPTS)
def test_header_is_complete(name: str) -> None:
    header = transitions()[name].header

    assert header.name == name
    assert header.summary.endswith(".")
    assert header.cost.startswith("O(")
    assert header.keys
    assert header.derives
    assert all(parameter.meaning for parameter in header.keys + header.args)
    assert all(answer.meaning for answer in header.returns)
    assert len({answer.text for answer in header.returns}) == len(header.returns)
    assert not any(parameter.optional or parameter.rest for parameter in header.args[:-1])


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_uses_the_keys_and_arguments_that_it_declares(name: str) -> None:
    header, body = transitions()[name].header, body_of(source_of(name))

    assert {int(n) for n in re.findall(r"\bKEYS\[(\w+)\]", body)} == {1}
    assert len(header.keys) == 1
    declared = [parameter.name for parameter in header.args]
    unpacked = re.findall(r"^local ([\w, ]+) = unpack\(ARGV\)$", body, re.MULTILINE)
    rest = bool(declared) and header.args[-1].rest
    last = len(declared)
    if unpacked:
        [taken] = (each.split(", ") for each in unpacked)
        assert taken[: last - rest] == declared[: last - rest]
        assert len(taken) > last if rest else len(taken) == last
        assert "ARGV[" not in body
    elif rest:
        loops = (
            rf"for i = {last}, #ARGV|wishes_at\({last}, #ARGV|ARGV\[{last}\], ARGV\[{last + 1}\]"
        )
        if last == 1:
            loops += r"|in ipairs\(ARGV\)|^local at = 1\nwhile at <= #ARGV"
        assert re.search(loops, body, re.MULTILINE)
        used = {int(n) for n in re.findall(r"\bARGV\[(\d+)\]", body)}
        assert set(range(1, last)) <= used <= set(range(1, last + 2))
    else:
        used = {int(n) for n in re.findall(r"\bARGV\[(\w+)\]", body)}
        assert used == set(range(1, last + 1))


@pytest.mark.parametrize("name", SCRIPTS)
def test_source_holds_no_include_and_no_piece_twice(name: str) -> None:
    source = source_of(name)

    assert "INCLUDE" not in source
    functions = re.findall(r"^local function (\w+)", source, re.MULTILINE)
    assert len(functions) == len(set(functions))


@pytest.mark.parametrize("path", sorted(LUA.glob("*.lua")), ids=lambda path: path.stem)
def test_lua_keeps_to_what_a_script_may_do(path: Path) -> None:
    text = path.read_text()

    assert text.endswith("\n")
    assert "\t" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith(f"-- {path.stem.lstrip('_')}: ")
    assert "cjson" not in text
    caught = set(re.findall(r"pcall\S*", text))
    assert caught <= MAY_FAIL.get(path.stem, set()), "an error must reach the caller"
    # A global would be an error on the server, at the first call that meets it.
    body = body_of(text)
    assert not re.search(r"^\s*function \w+\(", body, re.MULTILINE)


def test_sha_is_that_of_what_is_sent() -> None:
    script = transitions()["complete"].script

    assert script.source.decode() == source_of("complete")
    assert script.sha == hashlib.sha1(source_of("complete").encode()).hexdigest()


# The calls.


def run(plan: Any, reply: Any) -> tuple[ScriptCall, Any]:
    """Answer what a plan of one step yields, and what it returns for a reply."""
    call = next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send(reply)
    return call, end.value.value


def test_call_puts_names_in_the_declared_order() -> None:
    call, answer = run(
        scripts.RETRY(
            reason=b"boom", token=3, row="emq:{q}:job:JOB0EEMl9I7KXg", max_attempts=5, delay_ms=7
        ),
        b"dead",
    )

    assert list(call.keys) == ["emq:{q}:job:JOB0EEMl9I7KXg"]
    assert list(call.args) == [3, 7, 5, b"boom"]
    assert call.script is scripts.RETRY.script
    assert answer == b"dead"


def test_optional_argument_that_is_none_is_left_out() -> None:
    assert list(scripts.CLAIM.call(base="b", lease_ms=None).args) == []
    assert list(scripts.CLAIM.call(base="b", lease_ms=5).args) == [5]
    assert list(scripts.REMOVE.call(row="r", dedup=None).args) == []
    assert list(scripts.LOG.call(row="r", line=b"", keep=0, token=None).args) == [b"", 0]


def test_list_argument_is_spread() -> None:
    call = scripts.EXTEND_MANY.call(base="b", lease_ms=5, lock_ms=0, held=["one", 1, "two", 2])

    assert list(call.args) == [5, 0, "one", 1, "two", 2]
    assert list(scripts.COMPLETE.call(row="r", token=1, kept=[]).args) == [1]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"row": "r"}, "missing: token, kept"),
        ({"row": "r", "token": 1}, "missing: kept"),
        ({"row": "r", "token": 1, "kept": [], "id": "x"}, "not declared: id"),
        ({"row": "r", "tokn": 1, "kept": []}, "missing: token; not declared: tokn"),
    ],
)
def test_call_takes_exactly_the_declared_names(values: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        scripts.COMPLETE.call(**values)
    with pytest.raises(TypeError, match=told):
        next(scripts.COMPLETE(**values))


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("EMQSTALE complete token mismatch", StaleToken),
        ("EMQSTALE job gone", JobGone),
        ("EMQKIND job id must be JOB-namespaced", WrongKind),
    ],
)
def test_refusal_is_raised_as_its_class(message: str, error: type[Exception]) -> None:
    plan = scripts.COMPLETE(row="emq:{q}:job:JOB0EEMl9I7KXg", token=1, kept=[])
    next(plan)

    with pytest.raises(error) as caught:
        plan.send(ErrorReply(message.split()[0], message))
    assert caught.value.job_id == "JOB0EEMl9I7KXg"  # type: ignore[attr-defined]
    assert caught.value.detail == message  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "message"), [("EMQNEW", "EMQNEW of a later version"), ("OOM", "OOM no memory")]
)
def test_other_error_is_the_servers(code: str, message: str) -> None:
    plan = scripts.CLAIM(base="emq:{q}:", lease_ms=None)
    next(plan)

    with pytest.raises(ServerError) as caught:
        plan.send(ErrorReply(code, message))
    assert (caught.value.code, caught.value.message) == (code, message)
    assert caught.value.command == "EVALSHA"


@pytest.mark.parametrize("reply", [None, "dead", b"dead or so", 1.5, [1], True])
@pytest.mark.parametrize("read", ["count", "word", "ids"])
def test_reply_of_another_type_breaks_the_contract(read: str, reply: Any) -> None:
    words = ["dead", "scheduled"] if read == "word" else []
    with pytest.raises(ContractError) as caught:
        getattr(scripts.REAP, read)(reply, *words)
    assert caught.value.script == "reap"


def test_reply_of_the_right_type_is_answered() -> None:
    assert scripts.REAP.count(3) == 3
    assert scripts.STATE.word(b"dead", "scheduled", "dead") == "dead"
    ids = ["JOB0EEMl9I7KXg", "JOB0EEMl9I7KXh"]
    assert scripts.EXTEND_MANY.ids([id.encode() for id in ids]) == ids

"""The explorer: every order of some scenarios keeps every rule, and what breaks one is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest

import resp
from emq import scripts
from emq.embedded import Embedded
from emq.scripts import Transition, source_of
from resp import Connector, Script
from tests import explore
from tests.explore import Explored, Explorer, Violation
from tests.explored import HANDMADE, PAIRS, SCENARIOS, SETTLING, SPLIT, WATCHED, WHOLE, Scenario
from tests.rules import TRANSITIONS

# The same verb twice, and each with the next one: every verb is the stale one, and the fresh one.
SOME_PAIRS: Final = PAIRS[:: len(SETTLING) + 1]

NAMED: Final = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.fixture(scope="module")
def connector() -> Iterator[Connector]:
    """A server of the explorer's own: it empties the database."""
    with Embedded() as server, closing(resp.connect(server.url)) as connector:
        yield connector


@pytest.mark.parametrize("scenario", [*HANDMADE, *SOME_PAIRS], ids=lambda scenario: scenario.name)
def test_every_order_keeps_every_rule(connector: Connector, scenario: Scenario) -> None:
    done = Explorer(connector).explore(scenario)

    assert done.whole
    assert done.orders > 100
    assert done.states > 50


def test_a_completion_in_separate_commands_is_found_out(connector: Connector) -> None:
    with pytest.raises(Violation) as found:
        Explorer(connector).explore(SPLIT)

    assert found.value.breach.rule == "twice"
    told = [f"{who}: {what}" for who, what, _, _ in found.value.steps]
    first, *_, last = told
    assert (first, last) == ("A: claim", "B: complete (DEL)")
    assert len(told) == 10  # two claims, a lease that ends and is reaped, three commands twice
    assert told.index("reaper: reap") < told.index("B: claim") < told.index("A: complete (DEL)")
    assert "10  B: complete (DEL) -> " in str(found.value)
    assert "J1 is completed again" in str(found.value)


def test_the_same_programs_with_a_script_handle_no_job_twice(connector: Connector) -> None:
    def programs(scenario: Scenario) -> dict[str, list[str]]:
        everybody = {**scenario.actors, "start": scenario.start}
        return {name: [step.told for step in program] for name, program in everybody.items()}

    assert programs(WHOLE) == programs(SPLIT)
    assert WHOLE.watches > SPLIT.watches
    assert Explorer(connector).explore(WHOLE).whole


def test_all_orders_are_counted(connector: Connector) -> None:
    only = Scenario("count", dict.fromkeys("ABC", WHOLE.actors["reaper"]), WHOLE.start)
    done = Explorer(connector).explore(only)

    assert done.orders == 90  # 6! / (2! * 2! * 2!)


def test_every_transition_is_called_in_some_scenario(connector: Connector) -> None:
    explorer = Explorer(connector, limit=8)
    called = frozenset[str]().union(*(explorer.explore(each).scripts for each in HANDMADE))

    assert called == frozenset(scripts.names())


def test_a_limited_run_says_that_it_is_not_whole(connector: Connector) -> None:
    def run(seed: int) -> Explored:
        return Explorer(connector, limit=5, seed=seed).explore(NAMED["reclaim"])

    done = run(1)
    assert not done.whole
    assert "not all" in str(done)
    assert (done.orders, done.states) == (run(1).orders, run(1).states)


# What breaks each rule: a piece of a script, what stands there instead, and who meets it. The rule
# that no job is completed twice is broken by SPLIT.
BREAKS: Final = [
    ("answer", "reap", "moved = moved + 1", "", "whole"),
    ("answer", "state", "'active', 'active'", "'active', 'dead'", "notes"),
    ("count", "complete", "tally('completed')", "", "whole"),
    ("count", "give_back", "count(-1)", "count(0)", "lane"),
    ("end", "promote", "'-inf'", "'(1'", "retries"),
    ("fence", "complete", "attempts == token", "true", "whole"),
    ("fence", "retry", "attempts == token", "false", "retries"),
    ("left", "complete", "row .. ':lock', row", "row", "lock x lock"),
    ("lost", "reap", "announce('reaped', id)", "redis.call('DEL', row)", "whole"),
    ("place", "claim", "'state', 'active', ", "", "whole"),
    ("refused", "remove", "if is_locked(row) then", "if not unlock(row) then", "locks"),
    ("wake", "take", "unpark(waiter)", "", "turns"),
    ("wake", "enqueue", "else\n    rouse()", "else", "turns"),
]


@pytest.mark.parametrize(
    ("rule", "name", "old", "new", "met"), BREAKS, ids=[f"{b[0]}-{b[1]}" for b in BREAKS]
)
def test_what_breaks_a_rule_is_found(
    connector: Connector,
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
    name: str,
    old: str,
    new: str,
    met: str,
) -> None:
    source = source_of(name)
    assert old in source
    broken = Transition(name)
    vars(broken)["script"] = Script(name, source.replace(old, new))
    monkeypatch.setitem(vars(TRANSITIONS[name]), "script", broken.script)
    monkeypatch.setitem(vars(TRANSITIONS[name]), "call", broken.call)

    with pytest.raises(Violation) as found:
        Explorer(connector).explore(NAMED[met])
    assert found.value.breach.rule == rule
    assert found.value.breach.told


def test_every_rule_is_broken_by_something() -> None:
    assert {rule for rule, *_ in BREAKS} | SPLIT.watches == set(WATCHED)


def test_the_command_tells_a_line_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert explore.main(["--only", "turns"]) == 0

    head, *lines, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["scenario", "orders", "states", "commands", "seconds"]
    assert [line.split("  ")[0] for line in lines] == ["turns", "turns, lapsed"]
    assert total.startswith("2 scenarios")


def test_the_command_prints_an_order_that_breaks_a_rule(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert explore.main(["--split", "--json"]) == 1

    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["rule"], len(told["steps"])) == ("split", "twice", 10)


def test_the_command_refuses_a_name_that_nobody_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        explore.main(["--only", "nobody"])
    assert ended.value.code == 2
    assert "no scenario's name begins with 'nobody'" in capsys.readouterr().err

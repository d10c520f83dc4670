"""The growth benchmark times every verb on sets of every length, and finds one that scans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from bench import grow
from bench.figures import Run, Size, silent
from bench.grow import EXPONENT, QUICK, ROUND_TRIP, SERVER, decades, exponent, main
from bench.lengths import PENDING, PLACES, Lengths, Verb, verbs
from emq import Queue, scripts
from emq.embedded import EmbeddedError
from resp import Script

_SMALL = replace(QUICK, rounds=1, most=1000, calls=2, commands=600)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_exponent_is_the_slope_of_the_logarithms(power: float) -> None:
    times = {size: 3 * size**power for size in decades(10, 100_000)}

    assert exponent(times) == pytest.approx(power)
    assert exponent({10: 5.0}) == 0


def test_decades_go_to_the_most() -> None:
    assert decades(10, 10_000) == [10, 100, 1000, 10_000]
    assert decades(10, 9999) == [10, 100, 1000]
    assert decades(10, 9) == []


def test_everything_is_measured_at_every_size(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grow, "QUICK", _SMALL)
    assert main(["--quick", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)

    sizes: dict[tuple[str, str, str], list[int]] = {}
    for figure in told["figures"]:
        assert figure["suite"] == "grow"
        if figure["size"] is not None:
            assert 0 <= figure["low"] <= figure["median"] <= figure["high"]
            key = figure["section"], figure["work"], figure["contender"]
            sizes.setdefault(key, []).append(figure["size"])
    for verb in verbs():
        for place in verb.places:
            for contender in (SERVER, ROUND_TRIP):
                assert sizes[f"queue, {place} grows", verb.name, contender] == [100, 1000]
    assert sizes["codec", "array of claim replies, an item", grow.OURS] == [10, 100, 1000]
    assert sizes["codec", "one bulk, KiB", grow.OURS] == [100, 1000, 10_000]
    assert sizes["callers", "GET from tasks, a command", grow.OURS][-1] == 500
    assert sizes["callers", "GET from threads, p99", grow.OURS][-1] == 64

    works = [verdict["work"] for verdict in told["verdicts"]]
    assert len(works) == len(set(works))
    assert f"claim: {EXPONENT}, O(log n) in pending" in works
    assert f"promote(100): {EXPONENT}, O(limit * log n) in schedule" in works


def test_every_script_that_works_on_a_place_is_timed() -> None:
    timed = {verb.script for verb in verbs()}
    for name in scripts.names():
        cost = scripts.Transition(name).header.cost
        # `parked` is as long as there are workers that wait.
        if "log n" in cost and "parked" not in cost:
            assert name in timed
            places = {place for verb in verbs() if verb.script == name for place in verb.places}
            assert places >= {place for place in PLACES if place in cost}


def _judged(monkeypatch: pytest.MonkeyPatch, verb: Verb) -> Run:
    def planted() -> Iterator[Verb]:
        yield verb

    monkeypatch.setattr(grow, "verbs", planted)
    return grow.measure(replace(_SMALL, most=10_000, calls=4), ["queue"])


def test_a_verb_that_scans_the_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = Script("scan", "return #redis.call('ZRANGE', KEYS[1], '0', '-1')")

    def scans(queue: Queue, ids: object) -> Any:
        queue.connector.run(_said(scan, queue.keys.pending))

    def _said(script: Script, key: str) -> Any:
        yield script([key])

    [verdict] = _judged(monkeypatch, Verb("scan", "claim", ("pending",), scans)).verdicts

    assert verdict.got > 0.4
    assert not verdict.reached


def test_a_verb_that_does_something_else_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = next(verb for verb in verbs() if verb.name == "promote(1)")
    monkeypatch.setattr(grow, "verbs", lambda: iter([replace(idle, stages=(PENDING,))]))

    assert main(["--quick", "--only", "queue"]) == 1
    assert "promote(1) at 100: 0" in capsys.readouterr().err


@pytest.mark.parametrize("place", PLACES)
def test_verbs_leave_the_sets_as_long_as_they_were(place: str) -> None:
    with Lengths([200]) as grown:
        grown.grow(place)
        for verb in verbs():
            if place in verb.places:
                grown.time(verb, 200, 2)

                counts = grown.queues[200].counts()
                assert {name: counts[name] for name in PLACES} == {
                    name: 200 if name == place else 0 for name in PLACES
                }


def test_without_a_server_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> None:
        raise EmbeddedError("install it")

    monkeypatch.setattr(grow, "Embedded", none)
    assert main(["--only", "callers"]) == 3
    assert "install it" in capsys.readouterr().err


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, word in ((["--only", "all"], "'all'"), (["--most", "10"], "1,000")):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 2
        assert word in capsys.readouterr().err


def test_suite_takes_its_rounds_from_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[grow.Scale] = []

    def measure(scale: grow.Scale, **_: object) -> Run:
        asked.append(scale)
        return Run()

    monkeypatch.setattr(grow, "measure", measure)
    grow.suite(Size(), silent)
    grow.suite(Size(quick=True), silent)
    grow.suite(Size(rounds=3), silent)

    assert asked == [grow.FULL, QUICK, replace(grow.FULL, rounds=3)]

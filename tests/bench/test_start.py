"""The start benchmark measures everybody, and tells a third-party module from the library's own."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from bench import start
from bench.figures import Run, Size, silent
from bench.start import (
    ASYNC_CONSUMER,
    BARE,
    CONSUMER,
    EMQ,
    NAMED,
    PYTHON,
    QUICK,
    REDIS,
    RESP,
    Scale,
    main,
)
from emq.embedded import EmbeddedError

_SMALL = replace(QUICK, rounds=1, idle=0.5)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "QUICK", _SMALL)


def _without_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[str], ModuleSpec | None] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "redis" else real(name)
    )


def test_everybody_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)

    found: dict[str, dict[str, Any]] = {}
    for figure in told["figures"]:
        assert figure["suite"] == "start"
        assert 0 <= figure["low"] <= figure["median"] <= figure["high"]
        found.setdefault(figure["work"], {})[figure["contender"]] = figure["median"]
    peer = set() if told["missing"] else {REDIS}
    assert found["import"].keys() == {EMQ, NAMED, RESP, *peer}
    assert found["until it can be used"].keys() == {EMQ, RESP, BARE, *peer}
    assert found["a process"].keys() == {"emq --version", "python -m resp decode", PYTHON}
    assert found["process start to handler"].keys() == {"emq work", "emq work, a coroutine"}
    assert found["commands of an idle consumer"].keys() == {CONSUMER, ASYNC_CONSUMER}
    assert found["processor time a minute"].keys() == {CONSUMER, ASYNC_CONSUMER}
    if sys.platform == "linux":
        resident = found["resident, connected"]
        assert resident.keys() == {NAMED, RESP, PYTHON, *peer}
        assert 1 << 20 < resident[PYTHON] < resident[RESP] < resident[NAMED] < 1 << 30

    assert found["third-party modules"][EMQ] == 0
    assert found["import"][EMQ] < found["import"][NAMED]
    judged = {(verdict["work"], verdict["ours"]) for verdict in told["verdicts"]}
    assert judged >= {
        ("third-party modules", EMQ),
        ("commands of an idle consumer", CONSUMER),
        ("commands of an idle consumer", ASYNC_CONSUMER),
    }
    if peer:
        assert ("import", EMQ) in judged
        assert found["third-party modules"][REDIS] >= 0


def test_a_third_party_module_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "IMPORTS", {EMQ: "import pytest"})
    _without_redis(monkeypatch)
    run = start.measure(_SMALL, ["import"])

    [verdict] = run.verdicts
    assert (verdict.work, verdict.ours) == ("third-party modules", EMQ)
    assert verdict.got >= 1
    assert not verdict.reached


def test_a_missing_peer_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_redis(monkeypatch)
    assert main(["--quick", "--json", "--only", "import,connect"]) == 0
    told = json.loads(capsys.readouterr().out)

    assert told["missing"] == {REDIS: "pip install redis"}
    assert REDIS not in {figure["contender"] for figure in told["figures"]}
    assert [verdict["work"] for verdict in told["verdicts"]] == ["third-party modules"]


def test_a_process_that_fails_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "IMPORTS", {EMQ: "import nothing_of_that_name"})

    assert main(["--quick", "--only", "import"]) == 1
    assert "nothing_of_that_name" in capsys.readouterr().err


def test_without_a_server_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> None:
        raise EmbeddedError("install it")

    monkeypatch.setattr(start, "Embedded", none)
    assert main(["--quick"]) == 3
    assert "install it" in capsys.readouterr().err


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "all"])
    assert ended.value.code == 2
    assert "'all'" in capsys.readouterr().err


def test_suite_takes_its_rounds_from_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Scale] = []

    def measure(scale: Scale, **_: object) -> Run:
        asked.append(scale)
        return Run()

    monkeypatch.setattr(start, "measure", measure)
    start.suite(Size(), silent)
    start.suite(Size(quick=True), silent)
    start.suite(Size(rounds=3), silent)

    assert asked == [Scale(), _SMALL, replace(Scale(), rounds=3)]

"""Lenses: found through entry points; one that fails is told of, and harms no other."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from resp import Script
from resp.tap import lens as module
from resp.tap.lens import GROUP, Lens
from resp.tap.meaning import Scripts

GOOD = Lens(
    "good",
    lambda: [Script("hi", "-- hi: says so\n--\n-- KEYS[1] row hash a row\n")],
    lambda data: None,
)
NO_LENS = 3


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_found", None)
    monkeypatch.setattr(module, "_failures", [])


def _install(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    points = [EntryPoint(f"name{n}", value, GROUP) for n, value in enumerate(values)]

    def entry_points(*, group: str) -> list[EntryPoint]:
        assert group == GROUP
        return points

    monkeypatch.setattr(module, "entry_points", entry_points)


def test_they_are_loaded_once_and_failures_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    here = __name__
    _install(monkeypatch, f"{here}:GOOD", f"{here}:NO_LENS", "no_such_module:x", f"{here}:NO_NAME")
    assert module.lenses() == [GOOD]
    told = module.failures()
    assert len(told) == 3
    assert "a Lens is wanted, not int" in told[0]
    assert "ModuleNotFoundError" in told[1]
    assert module.lenses() == [GOOD]
    assert module.failures() == told


def test_its_scripts_are_read_when_a_digest_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def scripts() -> list[Script]:
        asked.append(1)
        return list(GOOD.scripts())

    registry = Scripts([GOOD._replace(scripts=scripts)])
    [script] = GOOD.scripts()
    assert not asked
    known = registry.get(script.sha.upper())
    assert known is not None
    assert (known.name, [key.name for key in known.keys]) == ("hi", ["row"])
    assert registry.get("0" * 40) is None
    assert registry.get(b"short") is None
    assert asked == [1]


def test_the_bus_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from emq.lens import lens
    from emq.scripts import CLAIM

    _install(monkeypatch, "emq.lens:lens")
    assert module.lenses() == [lens]
    known: Any = Scripts.known().get(CLAIM.script.sha)
    assert known.name == "claim"


def test_the_project_declares_it() -> None:
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"][GROUP] == {"emq": "emq.lens:lens"}

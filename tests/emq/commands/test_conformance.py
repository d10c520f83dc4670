"""`emq conformance`: what its arguments are, and that they reach the scenarios."""

from __future__ import annotations

from typing import Any

import pytest

from emq.cli import main

from .conftest import Emq


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the scenarios are asked for, instead of played."""
    calls: list[dict[str, Any]] = []

    def conformance(**options: Any) -> int:
        calls.append(options)
        return 1

    monkeypatch.setattr("emq.conformance.conformance", conformance)
    return calls


def test_arguments_reach_the_scenarios(asked: list[dict[str, Any]]) -> None:
    words = "conformance fence --json --shell aio claim --protocol 2 --url unix:///x"
    assert main([*words.split(), "--wire-version", "w"]) == 1
    assert main(["conformance"]) == 1

    assert asked == [
        {
            "url": "unix:///x",
            "shell": "aio",
            "protocol": 2,
            "only": ["fence", "claim"],
            "as_json": True,
            "wire_version": "w",
        },
        {
            "url": None,  # a private server
            "shell": "threads",
            "protocol": None,
            "only": [],
            "as_json": False,
            "wire_version": "echomq:3.0.0",
        },
    ]


def test_the_server_is_that_of_the_environment(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMQ_URL", "unix:///of-the-environment")
    assert main(["conformance"]) == 1
    assert asked[0]["url"] == "unix:///of-the-environment"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["fences"], "there is no scenario 'fences'"),
        (["--shell", "trio"], "invalid choice: 'trio'"),
        (["--protocol", "4"], "invalid choice: 4"),
    ],
)
def test_wrong_usage_is_two(run: Emq, argv: list[str], told: str) -> None:
    assert told in run("conformance", *argv, code=2).err


def test_another_wire_version_is_one(run: Emq) -> None:
    run("conformance", "fence")
    refused = run("conformance", "fence", "--wire-version", "echomq:2.4.2", code=1)
    assert "--wire-version" in refused.err
    assert refused.out == ""


def test_scenarios_are_played_on_the_server(run: Emq) -> None:
    assert (
        run("conformance", "mint", "claim", "--shell", "aio").lines[-1] == "2 of 2 scenarios pass"
    )
    assert run("conformance", "mint", url="unix:///nowhere/at/all", code=3).out == ""

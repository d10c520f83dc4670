"""The benchmark of looking: it runs, and what it tells hangs together."""

from __future__ import annotations

import json

import pytest

from bench import goals, tap

_TAPPED = (tap.WITHOUT, tap.WITH)
_PROXIED = (goals.DIRECT, goals.PROXIED, tap.WRITTEN)
_CLIENTS = ("redis", "resp")


def test_it_measures_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert tap.main(["--rounds", "1", "--calls", "2000", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["work"], row["contender"]) for row in told["figures"]] == [
        *((work, who) for work in ("one caller", "pipelines of 1000") for who in _TAPPED),
        *((f"pipelines of 1000 of {client}", who) for client in _CLIENTS for who in _PROXIED),
    ]
    found = {(row["work"], row["contender"]): row["median"] for row in told["figures"]}
    assert min(found.values()) > 0
    for client, verdict in zip(("resp", "redis"), told["verdicts"], strict=True):
        work = f"pipelines of 1000 of {client}"
        assert verdict["work"] == work
        assert verdict["got"] == found[work, goals.DIRECT] / found[work, goals.PROXIED]
        assert found[work, goals.PROXIED] >= found[work, tap.WRITTEN]


def test_wrong_arguments_are_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tap.main(["--rounds", "0"])
    assert ended.value.code == 2
    assert "1 to" in capsys.readouterr().err

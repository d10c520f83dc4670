"""The jobs benchmark runs, measures everybody on everything, and says who is missing and why."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

import emq
from bench import jobs
from bench.goals import FUSED, GOALS, VERBS
from bench.jobs import WORKS, main
from bench.queues import contenders as named
from bench.queues.contenders import CONTENDERS, Contender
from bench.queues.host import Failed, Host
from bench.relay import Relay
from emq.embedded import Embedded, EmbeddedError
from resp import encode_command

_PEER = named.HUEY
_QUICK = ["--quick", "--jobs", "50", "--against", _PEER, "--json"]


@pytest.fixture(scope="module")
def server() -> Any:
    with Embedded(tcp=True) as server:
        yield server


def _run(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*_QUICK, *argv]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_everybody_is_measured_on_everything(capsys: pytest.CaptureFixture[str]) -> None:
    told = _run(capsys)
    rows = {(row["work"], row["contender"]): row for row in told["figures"]}
    present = [one for one in CONTENDERS if not one.packages or one.name == _PEER]
    present = [one for one in present if not one.is_missing()]

    for work in WORKS:
        who = {contender for name, contender in rows if name == work.name}
        due = {one.name for one in present if work.section in one.sections}
        if work is jobs.BULK:
            due = {one.name for one in present if one.name in due and one.load().bulk}
        if work.section == "life":
            due.discard(named.QUEUE_OF_OURS)  # told verb by verb
        assert who - {VERBS, FUSED} == due
    assert set(told["missing"]) == {_PEER} - {one.name for one in present}
    for row in told["figures"]:
        assert row["low"] <= row["median"] <= row["high"]
        assert row["ratio"] is None or row["ratio"] >= 0

    # What is counted repeats.
    figures = {key: row["median"] for key, row in rows.items()}
    assert figures["commands a job", VERBS] == 3
    assert figures["commands a job", FUSED] == 2
    assert figures["keys left a job", named.CONSUMER] == 0
    assert figures["keys left a job", named.ASYNC_CONSUMER] == 0
    for verdict in told["verdicts"]:
        if not verdict["against"]:
            assert verdict["got"] == figures[verdict["work"], verdict["ours"]]


def test_what_is_to_be_reached_is_measured() -> None:
    names = {contender.name for contender in CONTENDERS}
    works = {work.name: work for work in WORKS}
    for goal in GOALS:
        if goal.suite == jobs.SUITE:
            assert works[goal.work].section == "life" or goal.ours in names
            assert goal.ours in {VERBS, FUSED, *names}
            assert goal.against in {"", *names}
    assert len(names) == len(CONTENDERS)


def test_sections_that_were_not_asked_for_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = _run(capsys, "--only", "enqueue")
    assert {row["section"] for row in told["figures"]} == {jobs.SECTIONS["enqueue"]}
    assert {verdict["work"] for verdict in told["verdicts"]} <= {"in bulk"}


def test_table_names_who_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real: Callable[[str], ModuleSpec | None] = importlib.util.find_spec

    def without_huey(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "huey" else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_huey)
    argv = ["--quick", "--only", "enqueue", "--against", _PEER]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert f"missing: {_PEER}: pip install huey redis" in out
    assert named.TASKIQ not in out
    assert "Valkey" in out


@pytest.mark.parametrize("ours", [False, True])
def test_who_fails_is_named_with_the_reason(
    ours: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = Contender("stranger", ("ours", "Verbs"), ("enqueue",), ours=ours)
    monkeypatch.setattr(jobs, "CONTENDERS", (stranger, *CONTENDERS))
    if ours:
        assert main([*_QUICK, "--only", "enqueue"]) == 1
        assert "bench jobs: stranger: its producer ended" in capsys.readouterr().err
        return
    told = _run(capsys, "--only", "enqueue")
    assert told["missing"]["stranger"].startswith("its producer ended: StopIteration")
    assert "stranger" not in {row["contender"] for row in told["figures"]}
    assert named.QUEUE_OF_OURS in {row["contender"] for row in told["figures"]}


def test_jobs_that_no_handler_sees_are_found(
    server: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_PATIENCE_S", 0.1)
    with (
        emq.connect(server.url) as connector,
        Host(named.QUEUE_OF_OURS, "worker", server.url.replace("valkey", "redis", 1)) as worker,
    ):
        bench = jobs._Bench(server, connector, [], jobs.Size())
        worker.ask("expect", jobs=3)
        worker.ask("work")
        with pytest.raises(Failed, match="saw 0 of 3 jobs"):
            bench._handled(worker, 3)


def test_jobs_that_are_not_acknowledged_are_found(
    server: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_PATIENCE_S", 0.01)
    with emq.connect(server.url) as connector:
        bench = jobs._Bench(server, connector, [], jobs.Size())
        with pytest.raises(Failed, match="1 jobs were handled, and not acknowledged"):
            bench._acknowledged(lambda connector: 1, connector)


def test_silent_process_is_given_up(server: Embedded) -> None:
    url = server.url.replace("valkey", "redis", 1)
    with Host(named.QUEUE_OF_OURS, "producer", url) as producer:
        producer.ask("open", jobs=1)
        with producer.stopped(), pytest.raises(Failed, match="its producer was silent for 0 s"):
            producer.ask("singly", 0.05, jobs=1)
        assert producer.answer(30)["ns"] > 0


def test_relay_counts_to_the_byte(server: Embedded) -> None:
    with (
        Relay(server.host, server.port) as relay,
        emq.connect(f"valkey://127.0.0.1:{relay.port}", wire_version=None) as connector,
    ):
        began = relay.crossed()
        connector.pipeline([("SET", "relay", b"x" * 100_000), ("GET", "relay")])
        crossed = relay.crossed() - began
    said = len(encode_command("SET", "relay", b"x" * 100_000)) + len(encode_command("GET", "relay"))
    assert crossed.size == said + len(b"+OK\r\n") + len(b"$100000\r\n\r\n") + 100_000
    assert crossed.commands == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["--rounds", "0"],
        ["--jobs", "0"],
        ["--jobs", "99999999999"],
        ["--only", ""],
        ["--only", "jobs,2"],
        ["--against", "nobody"],
    ],
)
def test_wrong_usage_is_two(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2


def test_without_a_server_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Embedded) -> None:
        raise EmbeddedError("install it")

    monkeypatch.setattr(Embedded, "__enter__", fail)
    assert main([]) == 3
    assert "install it" in capsys.readouterr().err

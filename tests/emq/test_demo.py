"""The demo tells what it saw, adds up, leaves nothing, and fails where a claim does not hold."""

from __future__ import annotations

import io
import json
from typing import Any, Final

import pytest

import resp
from emq import demo as module
from emq.cli import main
from emq.demo import Report, demo
from emq.errors import EmqError
from emq.job import Job
from emq.keyspace import VERSION_KEY
from emq.queue import Queue
from resp.tap import Exchange, Ledger
from tests.conftest import Server

_TITLES: Final = [
    "Two ways to finish a job with a reaper running",
    "Run complete with a token",
    "The cached-script call",
    "Bytes on the wire",
]


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def _run(url: str | None, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = demo(url=url, as_json=True)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


def _verdicts(document: dict[str, Any]) -> dict[str, bool]:
    return {
        verdict["claim"]: verdict["holds"]
        for part in document["parts"]
        for verdict in part["verdicts"]
    }


@pytest.fixture(scope="module")
def private() -> dict[str, Any]:
    """What the demo tells of its own private server."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        assert demo(url=None, as_json=True) == 0
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def test_every_verdict_holds_on_a_private_server(private: dict[str, Any]) -> None:
    assert private["holds"] is True
    assert private["server"] == "a private Valkey"
    assert [part["title"] for part in private["parts"]] == _TITLES
    assert all(part["verdicts"] for part in private["parts"])
    assert set(_verdicts(private).values()) == {True}


def test_split_is_handled_twice_and_one_evalsha_once(private: dict[str, Any]) -> None:
    assert private["parts"][0]["facts"]["handled"] == {
        "split": ["worker A", "worker B"],
        "evalsha_then_reap": ["worker A"],
        "reap_then_evalsha": ["worker A"],
    }


def test_the_token_decides(private: dict[str, Any]) -> None:
    facts = private["parts"][1]["facts"]
    assert facts["complete"] == {
        "token_1": "EMQSTALE complete token mismatch",
        "token_2": "retired",
    }
    assert facts["retry"] == ["scheduled", "dead"]


def test_frames_are_those_of_the_wire(private: dict[str, Any]) -> None:
    frames = [event for event in private["parts"][2]["events"] if "bytes" in event]
    begins = [(frame["sent"], frame["data"].split(r"\r\n")[:3]) for frame in frames]
    evalsha = (True, "$7", "EVALSHA")
    assert [
        (sent, *words[1:]) if sent else (sent, words[0].split(" ")[0]) for sent, words in begins
    ] == [
        evalsha,
        (False, ":1"),
        evalsha,
        (False, "-NOSCRIPT"),
        (True, "$6", "SCRIPT"),
        (False, "$40"),
        evalsha,
        (False, ":1"),
        evalsha,
        (False, "-NOSCRIPT"),
        (True, "$6", "SCRIPT"),
        (False, "$40"),
    ]
    for frame in frames:
        raw = frame["data"].encode("latin-1").decode("unicode_escape").encode("latin-1")
        assert len(raw) == frame["bytes"]


def test_kinds_add_up_to_the_wire(private: dict[str, Any]) -> None:
    facts = private["parts"][3]["facts"]
    for way, counter in (("sent", "bytes_out"), ("received", "bytes_in")):
        kinds = dict(facts[way])
        total = kinds.pop("total")
        assert sum(kinds.values()) == total == facts["connectors"][counter]
    assert facts["server"]["sent_to_it"] == facts["server"]["total_net_input_bytes"]
    assert min(facts["sent"][kind] for kind in ("digests", "script bodies", "keys", "payloads")) > 0
    for way in ("sent", "received"):
        assert sum(script[way] for script in facts["scripts"].values()) == facts[way]["total"]


def test_a_job_is_three_commands_and_its_bytes_are_told(private: dict[str, Any]) -> None:
    job = private["parts"][3]["facts"]["job"]
    assert (job["commands"], job["round_trips"]) == (3, 3)
    assert [step["name"] for step in job["steps"]] == ["enqueue", "claim", "complete"]
    assert sum(step["up"] for step in job["steps"]) == job["sent"]
    assert sum(step["down"] for step in job["steps"]) == job["received"]
    assert job["sent"] + job["received"] <= 500


def test_a_given_server_is_left_as_it_was(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(server.admin.keys())
    kept = server.admin.script_load("return 'somebody relies on this'")

    code, document = _run(server.url, capsys)

    assert code == 0
    assert document["server"] == f"{server.host}:{server.port}"
    assert set(_verdicts(document).values()) == {True}
    assert set(server.admin.keys()) == before
    assert server.admin.script_exists(kept) == [True]


@pytest.mark.parametrize("version", [b"echomq:2.4.2", None, b"echomq:3.0.0"])
def test_a_server_of_another_version_is_refused_and_none_is_claimed(
    server: Server, version: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = server.admin
    before = admin.get(VERSION_KEY)
    try:
        admin.delete(VERSION_KEY)
        if version is not None:
            admin.set(VERSION_KEY, version)
        keys, writes = set(admin.keys()), admin.info("persistence")["rdb_changes_since_last_save"]

        refused = version == b"echomq:2.4.2"
        assert main(["demo", "--url", server.url, "--json"]) == (1 if refused else 0)

        captured = capsys.readouterr()
        if refused:
            assert captured.out == ""
            [line] = captured.err.splitlines()
            assert "echomq:2.4.2" in line
            assert "--url" in line
            assert admin.info("persistence")["rdb_changes_since_last_save"] == writes
        assert set(admin.keys()) == keys
        assert admin.get(VERSION_KEY) == version
    finally:
        admin.delete(VERSION_KEY)
        if before is not None:
            admin.set(VERSION_KEY, before)


def test_a_failure_midway_leaves_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(stage: object) -> None:
        raise ZeroDivisionError

    before = set(server.admin.keys())
    monkeypatch.setattr(module, "call_a_cached_script", fail)
    with pytest.raises(ZeroDivisionError):
        demo(url=server.url, as_json=True)
    assert set(server.admin.keys()) == before


# What each of these breaks, a verdict must notice.


def _unfenced(queue: Queue, job: Job, result: bytes | None = None) -> None:
    token = int(queue.connector.run(_say("HGET", queue.keys.job(job.id), "attempts")) or 0)
    queue.connector.run(_say("ZREM", queue.keys.active, job.id))
    queue.connector.run(_say("DEL", queue.keys.job(job.id)))
    queue.connector.run(_say("HINCRBY", queue.keys.metrics_completed, "count", 1))
    assert token >= 0


def _say(*command: Any) -> resp.Plan[Any]:
    return (yield command)


def test_an_unfenced_complete_is_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Queue, "complete", _unfenced)

    assert main(["demo", "--url", server.url]) == 1

    out = capsys.readouterr().out
    assert "token 1 answers EMQSTALE complete token mismatch: DOES NOT HOLD" in out
    assert "byte for byte: DOES NOT HOLD" in out
    assert "as one EVALSHA, the job is handled once (worker A): DOES NOT HOLD" in out
    assert "a hit is one EVALSHA and its reply: DOES NOT HOLD" in out
    assert "15 of 15" not in out


def test_a_reaper_that_misses_its_moment_is_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Queue, "reap", lambda queue: 0)

    assert main(["demo", "--url", server.url]) == 1

    assert "nothing to claim" in capsys.readouterr().err


def test_a_retry_that_never_kills_is_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Queue.retry

    def patient(queue: Queue, job: Job, **options: Any) -> str:
        return real(queue, job, **{**options, "max_attempts": 99})

    monkeypatch.setattr(Queue, "retry", patient)
    code, document = _run(server.url, capsys)

    assert code == 1
    assert [claim for claim, holds in _verdicts(document).items() if not holds] == [
        "at the maximum it dead-letters, and the failed count goes up by one"
    ]


def test_an_impostor_that_is_believed_is_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(module._LIES, "EVALSHA", b":1\r\n")
    code, document = _run(server.url, capsys)

    assert code == 1
    assert [claim for claim, holds in _verdicts(document).items() if not holds] == [
        "a foreign digest is refused, and the script is not run"
    ]


def test_a_byte_that_no_kind_counts_is_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Forgetful(Ledger):
        def add(self, exchange: Exchange) -> None:
            if exchange.number != 2:
                super().add(exchange)

    monkeypatch.setattr(module, "Ledger", Forgetful)
    code, document = _run(server.url, capsys)

    assert code == 1
    [claim] = [claim for claim, holds in _verdicts(document).items() if not holds]
    assert claim.startswith("the kinds add up")


def test_a_life_of_more_commands_is_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Queue.complete

    def curious(queue: Queue, job: Job, result: bytes | None = None) -> None:
        queue.connector.run(_say("HGET", queue.keys.job(job.id), "attempts"))
        real(queue, job, result)

    monkeypatch.setattr(Queue, "complete", curious)
    code, document = _run(server.url, capsys)

    assert code == 1
    assert any(
        claim.startswith("its whole life was 4 commands, 4 round trips") and not holds
        for claim, holds in _verdicts(document).items()
    )


def test_nothing_to_claim_is_an_error(server: Server) -> None:
    def claim() -> None:
        with module.Stage(Report(None), server.url, private=False) as stage:
            stage.claim("worker A")

    with pytest.raises(EmqError, match="nothing to claim"):
        claim()


def test_an_error_reply_ends_the_demo(server: Server) -> None:
    def say() -> None:
        with module.Stage(Report(None), server.url, private=False) as stage:
            stage.say("worker A", ("NOSUCHCOMMAND",))

    with pytest.raises(resp.ServerError, match="unknown command"):
        say()


# How it looks.


def _shown(out: io.StringIO) -> str:
    report = Report(out)
    report.server("somewhere")
    report.part("A part")
    report.verdict("it is so", True)
    report.verdict("it is not", False)
    report.conclude()
    return out.getvalue()


def test_color_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in _shown(Terminal())
    assert "\x1b[" not in _shown(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in _shown(Terminal())


def test_text_fits_a_terminal(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--url", server.url]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "\x1b" not in out
    for title in _TITLES:
        assert title in out


@pytest.mark.parametrize("data", [b"", b"x" * 3000, b"\r\n" * 300, b"ab\r\n" * 40 + b"c" * 99])
def test_frames_are_folded_and_nothing_is_lost(data: bytes) -> None:
    lines = list(module._folded(repr(data)[2:-1]))
    assert "".join(lines) == repr(data)[2:-1]
    assert max(map(len, lines), default=0) <= module._WIDTH

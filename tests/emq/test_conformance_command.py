"""`emq conformance`: what it prints, how it ends, and what it leaves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import pytest

from emq.conformance import conformance
from emq.embedded import Embedded
from emq.errors import FenceError
from emq.output import OutputError
from emq.scenarios import SCENARIOS, Missing, Play, Scene, Trial
from emq.scenarios.kit import say
from resp import TransportError
from tests.conftest import Server

from .test_conformance import BUILT, lua

MISSING: Final = [name for name in SCENARIOS if name not in BUILT]


@dataclass(frozen=True)
class Done:
    """What the command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


Conformance = Callable[..., Done]


@pytest.fixture
def run(server: Server, capsys: pytest.CaptureFixture[str]) -> Conformance:
    """Runs the command on the server."""

    def command(*only: str, **options: Any) -> Done:
        capsys.readouterr()
        code = conformance(**{"url": server.url, "only": only, **options})
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return command


@pytest.fixture
def scenario(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Play], None]:
    """Puts a scenario in the place of another."""

    def put(name: str, play: Play) -> None:
        monkeypatch.setitem(cast(dict[str, Any], SCENARIOS), name, play)

    return put


@pytest.fixture
def untouched(server: Server) -> Iterator[None]:
    """Whatever the test does, the server holds the same keys afterwards, other clients' as well."""
    admin = server.admin
    others = {
        "emq:{conformance-other.claim}:pending": "a queue of nearly that name",
        "emq:{conformance}:meta": "another",
        "conformance-claim": "another program's key",
    }
    admin.mset(others)
    before = set(admin.scan_iter(count=1000)) | {b"{emq}:version"}
    yield
    assert set(admin.scan_iter(count=1000)) | {b"{emq}:version"} == before
    assert admin.mget(list(others)) == [value.encode() for value in others.values()]
    admin.delete(*others)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("shell", ["threads", "aio"])
@pytest.mark.parametrize("protocol", [2, 3, None])
def test_all_pass_on_any_server(run: Conformance, shell: str, protocol: int | None) -> None:
    done = run(shell=shell, protocol=protocol)

    assert done.code == 0
    assert done.err == ""
    *lines, blank, tally = done.lines
    assert [line.split()[:2] for line in lines] == [
        [str(number), name] for number, name in enumerate(SCENARIOS, 1)
    ]
    assert {line.split(maxsplit=2)[2] for line in lines} == {
        "ok",
        *(
            f"not built: needs {scenario.needs}"
            for scenario in SCENARIOS.values()
            if isinstance(scenario, Missing)
        ),
    }
    assert (blank, tally) == ("", "47 of 79 scenarios pass; 32 are not built")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("shell", ["threads", "aio"])
def test_json_is_a_document_a_line(run: Conformance, shell: str) -> None:
    done = run(shell=shell, as_json=True)

    *documents, summary = done.documents
    assert [(each["scenario"], each["number"]) for each in documents] == [
        (name, number) for number, name in enumerate(SCENARIOS, 1)
    ]
    results = {each["scenario"]: each["result"] for each in documents}
    assert results == {name: "ok" if name in BUILT else "not built" for name in SCENARIOS}
    assert summary == {"scenarios": 79, "passed": 47, "failed": [], "not_built": MISSING}


def test_without_a_url_the_server_is_a_private_one(
    run: Conformance, server: Server, scenario: Callable[[str, Play], None]
) -> None:
    pids = []

    def fence(trial: Trial) -> Scene[None]:
        yield from BUILT["fence"](trial)
        pids.append((yield from say("INFO", "server")).split(b"process_id:")[1].split()[0])

    scenario("fence", fence)
    assert run("fence", "claim", url=None).code == 0
    assert int(pids[0]) != server.admin.info("server")["process_id"]


# Some of the scenarios.


def test_some_are_played_in_their_own_order_and_once(run: Conformance) -> None:
    done = run("claim", "mint", "claim")

    assert done.code == 0
    assert done.out == (f" 2 {'mint':29} ok\n 6 {'claim':29} ok\n\n2 of 2 scenarios pass\n")


def test_nothing_that_can_be_played_is_no_success(run: Conformance) -> None:
    done = run("rotate")

    assert done.code == 1
    assert done.out == (
        f"12 {'rotate':29} not built: needs lanes\n\n0 of 1 scenarios pass; 1 are not built\n"
    )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"only": ["claim", "\x1bclaims"]}, r"no scenario '\\x1bclaims'"),
        ({"shell": "trio"}, "threads or aio, not 'trio'"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_dialled(
    run: Conformance, wrong: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        run(url="unix:///nowhere/at/all", **wrong)


# Failures.


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("shell", ["threads", "aio"])
def test_a_broken_bus_is_found(
    run: Conformance, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    lua("claim", "'state', 'active'", "'state', 'running'")(monkeypatch)
    lua("drain", "erase(id, base .. 'job:' .. id, 'drained')", "")(monkeypatch)

    done = run("mint", "claim", "rotate", "drain", shell=shell)

    assert done.code == 1
    told = {line.split()[1]: line.split(maxsplit=2)[2] for line in done.lines[:4]}
    assert told["claim"] == "FAILED: the row's state: b'running' instead of b'active'"
    assert told["drain"].startswith("FAILED: the row of a job that is gone: {'state'")
    assert (told["mint"], told["rotate"]) == ("ok", "not built: needs lanes")
    assert done.lines[-1] == "2 of 4 scenarios fail: claim, drain; 1 are not built"

    done = run("mint", "claim", as_json=True, shell=shell)
    assert done.code == 1
    _, claim, summary = done.documents
    assert claim["result"] == "failed"
    assert claim["why"] == "the row's state: b'running' instead of b'active'"
    assert (summary["passed"], summary["failed"]) == (1, ["claim"])


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("shell", ["threads", "aio"])
def test_an_exception_is_a_failure_and_told_on_one_line(
    run: Conformance, scenario: Callable[[str, Play], None], shell: str
) -> None:
    def claim(trial: Trial) -> Scene[None]:
        yield from trial.enqueue()
        raise RuntimeError("\x1b[2J\n" + "\N{SNOWMAN}" * 400)

    def stale(trial: Trial) -> Scene[None]:
        yield from say("NO-SUCH\r\nCOMMAND")

    scenario("claim", claim)
    scenario("stale", stale)
    done = run("claim", "stale", "complete", shell=shell)

    assert done.code == 1
    claimed, staled, completed = done.lines[:3]
    assert r"FAILED: RuntimeError: \x1b[2J\n\u2603\u2603" in claimed
    assert claimed.endswith(r"\u2603...")
    assert "FAILED: ServerError: " in staled
    assert completed.endswith(" ok")
    assert done.out.replace("\n", "").isprintable()


@pytest.mark.parametrize("shell", ["threads", "aio"])
def test_a_server_that_goes_away_ends_it(
    scenario: Callable[[str, Play], None], shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def claim(trial: Trial) -> Scene[None]:
        yield from say("SHUTDOWN", "NOSAVE")

    scenario("claim", claim)
    with Embedded() as valkey, pytest.raises(TransportError):
        conformance(url=valkey.url, only=["mint", "claim", "stale"], shell=shell)

    captured = capsys.readouterr()
    assert "claim" in captured.out
    assert "FAILED: ConnectionLost" in captured.out
    assert "stale" not in captured.out
    assert captured.err.startswith("emq: keys of the run could not be removed: emq:{conformance-")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("shell", ["threads", "aio"])
def test_an_interrupt_removes_the_keys_too(
    run: Conformance, scenario: Callable[[str, Play], None], shell: str
) -> None:
    class Told(BaseException):
        pass

    def claim(trial: Trial) -> Scene[None]:
        yield from trial.enqueue()
        raise Told

    scenario("claim", claim)
    with pytest.raises(Told):
        run("claim", shell=shell)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("shell", ["threads", "aio"])
def test_stdout_that_nobody_reads_ends_it_without_a_trace(
    server: Server, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(OutputError):
        conformance(url=server.url, shell=shell, only=["mint"])


def test_another_wire_version_is_refused(run: Conformance, server: Server) -> None:
    with Embedded() as valkey:
        assert run("fence", url=valkey.url, wire_version="echomq:2.4.2").code == 0
        with pytest.raises(FenceError):
            run("fence", url=valkey.url)


# On a terminal.


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colors_are_for_terminals(
    server: Server, monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("NO_COLOR", no_color)

    assert conformance(url=server.url, only=["mint"]) == 0
    assert ("\x1b[32mok\x1b[0m" in out.getvalue()) is (no_color == "")

"""`emq work`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emq import Queue
from tests.conftest import Server

from .conftest import Done, Emq

HANDLERS = """
from emq.tasks import Tasks

def echo(job):
    print("did", job.payload.decode(), flush=True)
    return job.payload.upper()

async def aecho(job):
    print("did", job.payload.decode(), flush=True)
    return job.payload.upper()

def double(job):
    return {"twice": job.data["n"] * 2}

def fail(job):
    raise RuntimeError("no\\x1b[7mcard")

def slow(job):
    import time
    print("began", flush=True)
    while not job.lost: time.sleep(0.01)

async def forever(job):
    import asyncio
    print("began", flush=True)
    await asyncio.sleep(60)

def nobody(): pass

def yields(job):
    yield job

class Shop:
    class Mails:
        @staticmethod
        def send(job): pass

class Callable:
    def __call__(self, job): return b"called"

called = Callable()
tasks = Tasks()

@tasks.task
def greet(name): return f"hello {name}"
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder with handlers, which is the current one; the name of its module."""
    name = f"handlers_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    for module in [name, "broken", "needy"]:
        sys.modules.pop(module, None)


def outcomes(queue: Queue, ids: list[str]) -> list[Any]:
    return [queue.wait(id, timeout=5) for id in ids]


def enqueued(queue: Queue, *payloads: bytes) -> list[str]:
    return [queue.enqueue(each, result_ttl_ms=60_000).job_id for each in payloads]


@pytest.mark.parametrize("handler", ["echo", "aecho"])
@pytest.mark.parametrize("options", [[], ["--concurrency", "3"], ["--batch", "4"]], ids=" ".join)
def test_a_burst_does_all_there_is_and_ends(
    run: Emq, queue: Queue, folder: str, handler: str, options: list[str]
) -> None:
    ids = enqueued(queue, b"one", b"two", b"three")

    run("work", f"{folder}:{handler}", "-q", queue.name, "--burst", *options)

    assert [each.result for each in outcomes(queue, ids)] == [b"ONE", b"TWO", b"THREE"]
    assert queue.counts()["completed"] == 3


@pytest.mark.parametrize("handler", ["Shop.Mails.send", "called"])
def test_a_handler_is_found_by_its_dotted_name(
    run: Emq, queue: Queue, folder: str, handler: str
) -> None:
    enqueued(queue, b"one")
    run("work", f"{folder}:{handler}", "-q", queue.name, "--burst")
    assert queue.counts()["completed"] == 1


def test_a_registry_runs_its_tasks(run: Emq, queue: Queue, folder: str) -> None:
    ids = enqueued(queue, b'{"task":"greet","args":["you"]}')
    run("work", f"{folder}:tasks", "-q", queue.name, "--burst")
    assert outcomes(queue, ids)[0].result == b'"hello you"'


def test_a_registrys_jobs_are_told_with_their_tasks(
    run: Emq, queue: Queue, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    [id] = enqueued(queue, b'{"task":"greet","args":["you"]}')
    caplog.set_level("INFO")
    run("work", f"{folder}:tasks", "-q", queue.name, "--burst")
    told = [record.getMessage() for record in caplog.records if record.name == "emq.worker"]
    assert told[0].startswith(f"job {id} (greet): completed in")


def test_json_in_json_out(run: Emq, queue: Queue, folder: str) -> None:
    ids = enqueued(queue, b'{"n": 21}')
    run("work", f"{folder}:double", "-q", queue.name, "--burst", "--codec", "json")
    assert outcomes(queue, ids)[0].result == b'{"twice":42}'


def test_a_job_that_fails_is_tried_as_often_as_told(
    run: Emq, queue: Queue, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    [id] = enqueued(queue, b"one")
    caplog.set_level("INFO")

    argv = ("--burst", "--max-attempts", "2", "--backoff", "1ms")
    run("work", f"{folder}:fail", "-q", queue.name, *argv)

    assert queue.state(id) == "dead"
    assert sum("RuntimeError at" in record.getMessage() for record in caplog.records) == 2
    assert "card" not in caplog.text
    told = [record.getMessage() for record in caplog.records if record.name == "emq.worker"]
    assert told[-1] == f"queue {queue.name}: 0 completed, 2 failed, 1 dead, 0 lost"


def test_a_time_limit_ends_an_attempt(run: Emq, queue: Queue, folder: str) -> None:
    [id] = enqueued(queue, b"one")
    argv = ("--burst", "--max-attempts", "1", "--time-limit", "50ms")
    run("work", f"{folder}:forever", "-q", queue.name, *argv)
    assert queue.state(id) == "dead"


# Handlers that are not there.


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        ("{}", "write shop.mails:send"),
        ("{}:", "write shop.mails:send"),
        (":echo", "write shop.mails:send"),
        ("../{}:echo", "write shop.mails:send"),
        ("{}:nothing", "{} has no attribute nothing"),
        ("{}:Shop.nothing", "{}.Shop has no attribute nothing"),
        ("{}:greet", "is one task; name the emq.Tasks"),
        ("{}:number", "cannot be called, it is of type int"),
        ("{}:nobody", "cannot be called with one job"),
        ("{}:yields", "{}:yields: handler has a yield"),
        ("no_such_module:echo", "no module named no_such_module"),
        ("no_such.module:echo", "no module named no_such"),
        ("{}.more:echo", "no module named {}.more"),
    ],
)
def test_a_handler_that_is_not_there_is_one_line(
    run: Emq, folder: str, handler: str, told: str
) -> None:
    done = run("work", handler.format(folder), "-q", "q", code=2, url="unix:///nowhere")
    [line] = done.err.splitlines()
    assert told.format(folder) in line
    assert ";" in line


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(4)", "SystemExit: 4"),
    ],
)
def test_an_error_in_the_module_shows_its_traceback(
    run: Emq, folder: str, tmp_path: Path, source: str, error: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    done = run("work", "broken:f", "-q", "q", code=1, url="unix:///nowhere")
    assert error in done.err
    assert "broken.py" in done.err
    assert "commands/work.py" not in done.err
    assert done.err.splitlines()[-1].startswith("emq: broken cannot be imported")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "required: -q/--queue"),
        (["-q", "em q"], "queue's name"),
        (["-q", "q", "--concurrency", "0"], "from 1"),
        (["-q", "q", "--lease", "0"], "too short"),
        (["-q", "q", "--codec", "pickle"], "invalid choice"),
    ],
)
def test_wrong_usage(run: Emq, folder: str, argv: list[str], told: str) -> None:
    assert told in run("work", f"{folder}:echo", *argv, code=2, url="unix:///nowhere").err


def test_what_the_consumer_refuses_is_wrong_usage(run: Emq, queue: Queue, folder: str) -> None:
    argv = ("work", f"{folder}:echo", "-q", queue.name, "--concurrency", "1000000")
    assert "concurrency is at most" in run(*argv, code=2).err


def test_no_server_is_three(run: Emq, folder: str) -> None:
    for handler in ("echo", "aecho"):
        run("work", f"{folder}:{handler}", "-q", "q", code=3, url="unix:///nowhere")


# As a process.


@pytest.mark.parametrize(
    ("handler", "name"), [("echo", "SIGTERM"), ("echo", "SIGINT"), ("aecho", "SIGTERM")]
)
def test_a_signal_ends_it_with_0(
    server: Server, queue: Queue, folder: str, handler: str, name: str
) -> None:
    enqueued(queue, b"one")
    with worker(server, f"{folder}:{handler}", "-q", queue.name) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "did one\n"
        process.send_signal(getattr(signal, name))
        assert process.wait(20) == 0


def test_a_job_that_does_not_finish_is_given_back(
    server: Server, queue: Queue, folder: str
) -> None:
    [id] = enqueued(queue, b"one")
    argv = ("-q", queue.name, "--drain-timeout", "10ms", "--log-level", "error")
    with worker(server, f"{folder}:slow", *argv) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "INFO" not in process.stderr.read()
    assert queue.state(id) == "pending"


def worker(server: Server, *argv: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[3]
    return subprocess.Popen(
        [sys.executable, "-m", "emq", "work", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "EMQ_URL": server.url, "PYTHONPATH": str(root)},
    )


def test_jobs_are_told_on_stderr(server: Server, queue: Queue, folder: str) -> None:
    [id] = enqueued(queue, b"one")
    with worker(server, f"{folder}:echo", "-q", queue.name, "--burst") as process:
        out, err = process.communicate(timeout=20)
    done = Done(process.returncode, out, err)
    assert (done.code, done.lines) == (0, ["did one"])
    assert f"INFO job {id}: completed in" in done.err
    assert done.err.splitlines()[-1].endswith("1 completed, 0 failed, 0 dead, 0 lost")

"""`emq enqueue`."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from emq import Queue
from emq.job import Outcome
from tests.conftest import Server

from ..conftest import Keys
from .conftest import Emq, claimed

FIRST = "JOB0EEMl9I7KXg"


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """What commands read as stdin."""
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=data, isatty=lambda: False))
    return data


def test_the_id_is_printed_and_the_job_waits(run: Emq, queue: Queue) -> None:
    [id] = run("enqueue", queue.name, "hällo").lines
    job = claimed(queue)
    assert (job.id, job.payload) == (id, "hällo".encode())


def test_a_known_id_changes_nothing_and_says_so(run: Emq, queue: Queue) -> None:
    assert run("enqueue", queue.name, "one", "--id", FIRST).lines == [FIRST]

    done = run("enqueue", queue.name, "two", "--id", FIRST, "--json")

    assert done.documents == [{"job": FIRST, "admitted": False}]
    assert f"job {FIRST} is there already" in done.err
    assert claimed(queue).payload == b"one"


def test_a_deduplication_key_admits_one(run: Emq, queue: Queue, keys: Keys) -> None:
    argv = ("enqueue", queue.name, "x", "--dedup", "k", "--dedup-ttl", "1h")
    [first] = run(*argv).lines
    [second] = run(*argv).lines
    assert first == second == queue.dedup("k")
    assert 3_500_000 < keys.admin.pttl(f"{keys.base}de:k") <= 3_600_000


def test_what_the_job_wishes_goes_with_it(run: Emq, queue: Queue, keys: Keys) -> None:
    [id] = run(
        *("enqueue", queue.name, "x", "--max-attempts", "3", "--time-limit", "1m30s"),
        *("--result-ttl", "2h"),
    ).lines
    job = claimed(queue)
    assert (job.settings.max_attempts, job.settings.time_limit_ms) == (3, 90_000)
    assert keys.row(id)["result_ttl"] == b"7200000"


def test_options_may_stand_anywhere(run: Emq, queue: Queue) -> None:
    run("enqueue", "--max-attempts", "2", queue.name, "--time-limit=1s", "one")
    run("enqueue", queue.name, "--json", "--", "--two")
    assert [claimed(queue).payload, claimed(queue).payload] == [b"one", b"--two"]


def test_due_times(run: Emq, queue: Queue, keys: Keys) -> None:
    [soon] = run("enqueue", queue.name, "x", "--in", "1h").lines
    [dated] = run("enqueue", queue.name, "x", "--at", "2033-05-18T03:33:20Z").lines
    [exact] = run("enqueue", queue.name, "x", "--at", "2000000000001").lines

    assert keys.score("schedule", dated) == 2_000_000_000_000
    assert keys.score("schedule", exact) == 2_000_000_000_001
    [told] = run("peek", queue.name, "--place", "schedule", "-n", "1", "--json").documents
    assert told["job"] == soon


def test_a_payload_of_bytes_from_a_file_or_stdin(
    run: Emq, queue: Queue, tmp_path: Path, stdin: io.BytesIO
) -> None:
    (tmp_path / "payload").write_bytes(b"\xff\n")
    stdin.write(b"\x00\n")
    stdin.seek(0)

    run("enqueue", queue.name, "--file", str(tmp_path / "payload"))
    run("enqueue", queue.name, "-")

    assert [claimed(queue).payload, claimed(queue).payload] == [b"\xff\n", b"\x00\n"]


def test_lines_are_jobs(
    run: Emq, queue: Queue, stdin: io.BytesIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq.commands.enqueue._BULK", 2)
    stdin.write(b"one\r\n\ntwo\n\xff\nfour")
    stdin.seek(0)

    done = run("enqueue", queue.name, "--lines", "-", "--max-attempts", "2")

    jobs = queue.claim_many(9)
    assert [job.payload for job in jobs] == [b"one", b"two", b"\xff", b"four"]
    assert [job.id for job in jobs] == done.lines
    assert {job.settings.max_attempts for job in jobs} == {2}


def test_lines_of_a_file_later(run: Emq, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(b"one\ntwo\n")
    argv = ("--lines", "--file", str(tmp_path / "jobs"), "--in", "1h", "--json")
    told = run("enqueue", queue.name, *argv).documents
    assert [each["admitted"] for each in told] == [True, True]
    assert queue.counts()["schedule"] == 2


def test_a_file_that_is_not_there_is_refused(run: Emq, queue: Queue, tmp_path: Path) -> None:
    for lines in ([], ["--lines"]):
        done = run("enqueue", queue.name, "--file", str(tmp_path / "none"), *lines, code=1)
        assert "cannot be read: No such file" in done.err
    assert (
        "cannot be read: Is a directory"
        in run("enqueue", queue.name, "--file", str(tmp_path), code=1).err
    )


def test_a_closed_stdin_is_refused(run: Emq, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "stdin is closed" in run("enqueue", queue.name, "-", code=1).err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "give PAYLOAD"),
        (["x", "--file", "y"], "one of them only"),
        (["x", "--in", "5"], "'5' is no duration"),
        (["x", "--in", "1s", "--at", "5"], "not allowed with"),
        (["x", "--at", "tomorrow"], "no instant"),
        (["x", "--at", "2033-05-18"], "add Z"),
        (["x", "--at", "1969-05-18T00:00:00Z"], "before 1970"),
        (["x", "--id", "ORD0EEMl9I7KXg"], "JOB namespace"),
        (["x", "--dedup", "a b"], "deduplication id"),
        (["x", "--dedup-ttl", "1s"], "--dedup"),
        (["x", "--max-attempts", "0"], "from 1"),
        (["x", "--result-ttl", "0"], "too short"),
        (["x", "--lines"], "--file or -"),
        (["-", "--lines", "--wait"], "--wait is for one job"),
        (["-", "--lines", "--id", FIRST], "--id is for one job"),
        (["-", "--lines", "--dedup", "k"], "--dedup is for one job"),
        (["x", "--wire-version", ""], "it is empty"),
    ],
)
def test_wrong_usage(run: Emq, argv: list[str], told: str) -> None:
    assert told in run("enqueue", "q", *argv, code=2, url="unix:///nowhere").err


# --wait


def settle(server: Server, queue: str, action: str) -> subprocess.Popen[bytes]:
    """Another process that settles the next job of a queue."""
    code = (
        "import emq, time\n"
        f"queue = emq.Queue(emq.connect({server.url!r}), {queue!r})\n"
        "while not (job := queue.claim()): time.sleep(0.01)\n" + action
    )
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.mark.parametrize(
    ("action", "code", "told"),
    [
        ("queue.complete(job, b'4\\n2')", 0, "completed: 4\\n2"),
        ("queue.complete(job)", 0, "completed"),
        ("queue.retry(job, delay_ms=0, max_attempts=1, error='boom')", 1, "dead: boom"),
    ],
)
def test_wait_prints_the_outcome(
    run: Emq, queue: Queue, server: Server, action: str, code: int, told: str
) -> None:
    with settle(server, queue.name, action):
        lines = run("enqueue", queue.name, "x", "--wait=20s", code=code).lines
    assert lines[1:] == [told]


def test_wait_as_json(run: Emq, queue: Queue, server: Server) -> None:
    with settle(server, queue.name, "queue.complete(job, b'42')"):
        [told] = run("enqueue", queue.name, "x", "--wait", "--json").documents
    assert told["outcome"] == {"state": "completed", "result": "42", "error": None}


def test_wait_ends_with_its_time(run: Emq, queue: Queue) -> None:
    done = run("enqueue", queue.name, "x", "--wait=20ms", code=1)
    assert "no outcome after 20ms" in done.err
    assert queue.counts()["pending"] == 1
    [told] = run("enqueue", queue.name, "x", "--wait=20ms", "--json", code=1).documents
    assert told["outcome"] is None


def test_wait_for_a_job_that_is_there_already(run: Emq, queue: Queue) -> None:
    id = queue.enqueue(b"p", result_ttl_ms=60_000).job_id
    queue.retry(claimed(queue), delay_ms=0, max_attempts=1, error="boom")
    done = run("enqueue", queue.name, "x", "--id", id, "--wait", code=1)
    assert done.lines == [id, "dead: boom"]


def test_wait_for_a_job_that_is_removed(
    run: Emq, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Queue.wait

    def remove_first(self: Queue, job_id: str, timeout: float | None) -> Outcome | None:
        self.remove(job_id)
        return wait(self, job_id, timeout)

    monkeypatch.setattr(Queue, "wait", remove_first)
    done = run("enqueue", queue.name, "x", "--wait=5s", code=1)
    assert "it is gone, and kept no outcome" in done.err


def test_a_payload_that_is_no_utf8_in_the_arguments(server: Server, queue: Queue) -> None:
    argv: list[str | bytes] = [sys.executable, "-m", "emq", "enqueue", queue.name, b"\xff"]
    environ = {**os.environ, "EMQ_URL": server.url}
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, check=True)
    job = claimed(queue)
    assert (done.stdout, job.payload) == (f"{job.id}\n", b"\xff")

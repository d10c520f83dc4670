"""`emq retry discard pause resume drain obliterate`."""

from __future__ import annotations

import pytest

from emq import Queue

from ..conftest import Keys
from .conftest import GROUP, Emq, Hands, claimed, dead

NOBODY = "JOB0EEMl9I7KXg"


# retry


def test_retry_lets_a_dead_job_run_again_from_its_first_attempt(run: Emq, queue: Queue) -> None:
    id = dead(queue)

    assert run("retry", queue.name, id).lines == ["1 job retried"]

    job = claimed(queue)
    assert (job.id, job.token, job.attempt) == (id, 2, 1)


def test_retry_can_count_on(run: Emq, queue: Queue) -> None:
    run("retry", queue.name, dead(queue), "--keep-attempts")
    assert claimed(queue).attempt == 2


def test_retry_all_that_are_dead(run: Emq, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emq.commands.mend._BULK", 2)
    ids = [dead(queue) for _ in range(5)]

    told = run("retry", queue.name, "--all-dead", "--json").documents

    assert told == [{"job": id, "retried": True, "refused": None} for id in ids]
    assert queue.counts()["pending"] == 5
    assert run("retry", queue.name, "--all-dead").lines == ["0 jobs retried"]


def test_retry_goes_on_after_a_refusal(run: Emq, queue: Queue) -> None:
    waiting = queue.enqueue(b"p").job_id
    killed = queue.enqueue(b"p").job_id
    queue.claim()
    queue.retry(claimed(queue), delay_ms=0, max_attempts=1, error="e")

    done = run("retry", queue.name, waiting, NOBODY, killed, code=1)

    assert done.lines == ["1 job retried"]
    assert f"job {waiting}: " in done.err
    assert f"job {NOBODY}: no such job; " in done.err
    told = run("retry", queue.name, NOBODY, "--json", code=1).documents
    assert told == [{"job": NOBODY, "retried": False, "refused": "JobGone"}]


@pytest.mark.parametrize(
    "argv", [["retry"], ["retry", NOBODY, "--all-dead"], ["discard", NOBODY, "--dead"]]
)
def test_either_jobs_or_all_of_them(run: Emq, argv: list[str]) -> None:
    assert "and not both" in run(argv[0], "q", *argv[1:], code=2, url="unix:///nowhere").err


# discard


def test_discard_needs_yes(run: Emq, queue: Queue) -> None:
    id = queue.enqueue(b"p").job_id

    done = run("discard", queue.name, id, code=1)

    assert "would remove 1 job; add --yes" in done.err
    assert queue.state(id) == "pending"
    assert run("discard", queue.name, id, "--yes").lines == ["1 job discarded"]
    assert queue.state(id) is None


def test_discard_all_that_are_dead(run: Emq, queue: Queue, keys: Keys) -> None:
    for _ in range(3):
        dead(queue)
    kept = queue.enqueue(b"p").job_id

    [told] = run("discard", queue.name, "--dead", "--json", code=1).documents
    assert told["would"] == "3 jobs that are dead"
    run("discard", queue.name, "--dead", "--yes")

    assert keys.members("dead") == []
    assert queue.state(kept) == "pending"


def test_discard_leaves_what_a_worker_has_locked(run: Emq, queue: Queue) -> None:
    queue.enqueue(b"p")
    job = claimed(queue)
    queue.lock(job, 60_000)
    assert "locked" in run("discard", queue.name, job.id, "--yes", code=1).err
    assert queue.state(job.id) == "active"


# pause, resume


def test_pause_and_resume(run: Emq, queue: Queue) -> None:
    queue.enqueue(b"p")
    assert run("pause", queue.name, "--json").documents == [{"queue": queue.name, "paused": True}]
    assert queue.claim() is None
    assert run("resume", queue.name).lines == [f"{queue.name}: resumed"]
    claimed(queue)


# drain


def test_drain_says_what_would_go(run: Emq, queue: Queue) -> None:
    queue.enqueue_many([b"p"] * 3)
    queue.enqueue(b"p", delay_ms=60_000)

    assert "would remove 3 jobs (3 pending);" in run("drain", queue.name, code=1).err
    done = run("drain", queue.name, "--schedule", "--json", code=1)
    assert "4 jobs (3 pending, 1 schedule)" in done.err
    assert done.documents[0]["done"] is False
    assert queue.counts()["pending"] == 3


def test_drain_takes_what_waits(run: Emq, queue: Queue) -> None:
    queue.enqueue_many([b"p"] * 3)
    queue.enqueue(b"p", delay_ms=60_000)
    held = claimed(queue)

    done = run("drain", queue.name, "--yes")
    assert done.lines == [f"{queue.name}: 2 jobs drained"]
    assert "draining" in done.err
    assert queue.counts()["schedule"] == 1
    run("drain", queue.name, "--yes", "--schedule")
    assert queue.counts()["schedule"] == 0
    queue.complete(held)


# obliterate


def test_obliterate_needs_yes_and_a_pause(run: Emq, queue: Queue) -> None:
    queue.enqueue(b"p")
    assert "1 job (1 pending);" in run("obliterate", queue.name, code=1).err
    assert f"run emq pause {queue.name}" in run("obliterate", queue.name, "--yes", code=1).err
    assert queue.counts()["pending"] == 1


def test_obliterate_leaves_active_jobs_unless_forced(run: Emq, queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    claimed(queue)
    queue.pause()
    assert "give --force" in run("obliterate", queue.name, "--yes", code=1).err
    run("obliterate", queue.name, "--yes", "--force")
    assert keys.dumped() == {}


def test_obliterate_leaves_nothing_however_much_there_is(
    run: Emq, queue: Queue, hands: Hands, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq.commands.mend._BUDGET", 4)
    dead(queue)
    queue.enqueue_many([b"p"] * 10)
    queue.enqueue(b"p", delay_ms=60_000, dedup="k")
    for _ in range(3):
        hands.laned(GROUP)
    queue.pause()

    done = run("obliterate", queue.name, "--yes", "--json")

    assert "15 jobs (10 pending, 1 schedule, 1 dead, 3 in lanes)" in done.err
    assert done.documents[0]["obliterated"] is True
    assert keys.dumped() == {}

"""What the scripts publish of each transition, where a queue's settings ask for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emq import Item, Job, Queue
from emq.errors import JobError
from emq.plans import work

from .conftest import Keys
from .shells import Shell

HOUR = 3_600_000
ID = "JOB0EEMl9I7KXg"
SECOND = "JOB0EEMl9I7KXh"


class Ear:
    """Hears all messages of a queue's channel."""

    def __init__(self, admin: Any, base: str) -> None:
        self._admin = admin
        self._channel = base + "events"
        self._pubsub = admin.pubsub()
        self._pubsub.subscribe(self._channel)
        assert self._pubsub.get_message(timeout=5)["type"] == "subscribe"

    def heard(self) -> list[bytes]:
        """What was published up to now."""
        self._admin.publish(self._channel, "that is all")
        messages = []
        while (data := self._pubsub.get_message(timeout=5)["data"]) != b"that is all":
            messages.append(data)
        return messages

    def close(self) -> None:
        self._pubsub.close()


@pytest.fixture
def ear(keys: Keys) -> Iterator[Ear]:
    ear = Ear(keys.admin, keys.base)
    yield ear
    ear.close()


@pytest.fixture
def run(shell: Shell) -> Callable[[Any], Any]:
    return lambda plan: shell.connector.run(plan)


def claim(queue: Queue) -> Job:
    job = queue.claim(HOUR)
    assert job is not None
    return job


def fail(queue: Queue, job: Job, most: int) -> str:
    return queue.retry(job, delay_ms=HOUR, max_attempts=most, error='bo"om')


def held(queue: Queue, keys: Keys) -> Job:
    queue.enqueue(b"p", job_id=ID)
    return claim(queue)


def pending(queue: Queue, keys: Keys) -> Any:
    queue.enqueue(b"p", job_id=ID)


def lapsed(queue: Queue, keys: Keys) -> None:
    keys.admin.zadd(keys.base + "active", {held(queue, keys).id: 1})


def due(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", job_id=ID, run_at_ms=5)


def dead(queue: Queue, keys: Keys) -> None:
    fail(queue, held(queue, keys), 1)


def paused(queue: Queue, keys: Keys) -> None:
    queue.pause()


def then_paused(queue: Queue, keys: Keys) -> None:
    pending(queue, keys)
    queue.pause()


def nothing(queue: Queue, keys: Keys) -> None:
    pass


def job(event: str, id: str = ID, **more: str) -> dict[str, str]:
    return {"event": event, "job": id, **more}


Scene = Callable[[Queue, Keys], Any]
Act = Callable[[Any, Any], Any]
TABLE: dict[str, tuple[Scene, Act, list[dict[str, str]]]] = {
    "enqueue": (nothing, lambda q, _: q.enqueue(b"p", job_id=ID), [job("added")]),
    "enqueue later": (
        nothing,
        lambda q, _: q.enqueue(b"p", job_id=ID, delay_ms=5),
        [job("scheduled")],
    ),
    "enqueue again": (pending, lambda q, _: q.enqueue(b"p", job_id=ID), []),
    "enqueue_many": (
        nothing,
        lambda q, _: q.enqueue_many([Item(b"p", ID), Item(b"q", SECOND, delay_ms=5)]),
        [job("added"), job("scheduled", SECOND)],
    ),
    "claim": (pending, lambda q, _: q.claim(), [job("active")]),
    "claim_many": (pending, lambda q, _: q.claim_many(5), [job("active")]),
    "claim of nothing": (nothing, lambda q, _: q.claim(), []),
    "complete": (held, lambda q, job: q.complete(job, b"r"), [job("completed")]),
    "complete_and_claim": (
        held,
        lambda q, job: (q.enqueue(b"p", job_id=SECOND), q.complete_and_claim(job)),
        [job("added", SECOND), job("completed"), job("active", SECOND)],
    ),
    "retry": (held, lambda q, job: fail(q, job, 5), [job("failed", error='bo"om', to="scheduled")]),
    "retry to death": (
        held,
        lambda q, job: fail(q, job, 1),
        [job("failed", error='bo"om', to="dead")],
    ),
    "delay": (held, lambda q, job: q.delay(job, 5), [job("delayed")]),
    "give_back": (held, lambda q, job: q.give_back([job]), [job("returned")]),
    "extend": (held, lambda q, job: q.extend(job, 5), []),
    "lock": (held, lambda q, job: q.lock(job, 5_000), []),
    "promote": (due, lambda q, _: q.promote(), [job("promoted")]),
    "reap": (lapsed, lambda q, _: q.reap(), [job("reaped")]),
    "sweep": (lapsed, lambda q, _: q.sweep_stalled(2), [job("stalled", to="pending")]),
    "sweep to death": (lapsed, lambda q, _: q.sweep_stalled(1), [job("stalled", to="dead")]),
    "progress": (held, lambda q, job: q.progress(job, "5"), [job("progress", progress="5")]),
    "log": (held, lambda q, job: q.log(job, "line"), []),
    "update_payload": (pending, lambda q, _: q.update_payload(ID, b"q"), [job("updated")]),
    "remove": (pending, lambda q, _: q.remove(ID), [job("removed")]),
    "reprocess": (dead, lambda q, _: q.reprocess(ID), [job("reprocessed")]),
    "pause": (nothing, lambda q, _: (q.pause(), q.pause()), [{"event": "paused"}]),
    "resume": (paused, lambda q, _: (q.resume(), q.resume()), [{"event": "resumed"}]),
    "drain": (
        pending,
        lambda q, _: q.drain(include_schedule=True),
        [{"event": "drained", "place": "pending", "jobs": "1"}],
    ),
    "drain of nothing": (nothing, lambda q, _: q.drain(), []),
    "obliterate": (
        then_paused,
        lambda q, _: q.obliterate(),
        [{"event": "obliterated"}],
    ),
}


@pytest.mark.parametrize("verb", TABLE)
def test_transition_is_told_where_that_was_asked(
    queue: Queue, keys: Keys, ear: Ear, verb: str
) -> None:
    prepare, act, want = TABLE[verb]
    scene = prepare(queue, keys)
    queue.set_events(True)
    ear.heard()
    act(queue, scene)

    messages = ear.heard()
    assert [json.loads(message) for message in messages] == want
    assert [m.decode() for m in messages] == [
        json.dumps(event, separators=(",", ":")) for event in want
    ]


@pytest.mark.parametrize("verb", [verb for verb in TABLE if verb != "progress"])
def test_nothing_is_told_by_default(queue: Queue, keys: Keys, ear: Ear, verb: str) -> None:
    prepare, act, _ = TABLE[verb]
    queue.set_events(True)
    queue.set_events(False)
    act(queue, prepare(queue, keys))

    assert ear.heard() == []


def test_progress_is_told_always(queue: Queue, keys: Keys, ear: Ear) -> None:
    queue.progress(held(queue, keys), "5")

    assert ear.heard() == [b'{"event":"progress","job":"%s","progress":"5"}' % ID.encode()]


def test_turn_tells_of_all_it_did(
    queue: Queue, keys: Keys, ear: Ear, run: Callable[[Any], Any]
) -> None:
    lapsed(queue, keys)
    queue.enqueue(b"p", job_id=SECOND, run_at_ms=5)
    queue.set_events(True)
    ear.heard()
    run(work.take(queue.keys, 2, HOUR, max_stalled=5, wait_ms=5, waiter="w"))

    assert [json.loads(message) for message in ear.heard()] == [
        job("promoted", SECOND),
        job("stalled", to="pending"),
        job("active"),
        job("active", SECOND),
    ]


REFUSALS: dict[str, Act] = {
    "complete": lambda q, job: q.complete(job),
    "complete_and_claim": lambda q, job: q.complete_and_claim(job),
    "retry": lambda q, job: fail(q, job, 5),
    "delay": lambda q, job: q.delay(job, 5),
    "progress": lambda q, job: q.progress(job, "5"),
    "log": lambda q, job: q.log(job, "5"),
    "lock": lambda q, job: q.lock(job, 5),
    "extend": lambda q, job: q.extend(job, 5),
    "reprocess": lambda q, job: q.reprocess(job.id),
    "obliterate": lambda q, job: q.obliterate(),
    "remove": lambda q, job: q.remove("JOB0EEMl9I7KXz"),
    "update_payload": lambda q, job: q.update_payload("JOB0EEMl9I7KXz", b"p"),
}


@pytest.mark.parametrize("verb", REFUSALS)
@pytest.mark.parametrize("waits", [False, True])
def test_refusal_tells_nothing_and_writes_nothing(
    queue: Queue, keys: Keys, ear: Ear, verb: str, waits: bool, run: Callable[[Any], Any]
) -> None:
    """Also where a worker waits, a ceiling is reached, and a lane could be served."""
    stale = held(queue, keys)._replace(token=7)
    queue.set_events(True)
    queue.set_concurrency(1)
    if waits:
        run(work.take(queue.keys, 1, HOUR, max_stalled=5, wait_ms=5_000, waiter="w"))
        queue.enqueue(b"p", job_id=SECOND)
        keys.admin.delete(keys.base + "rouse")
    ear.heard()
    before = keys.dumped()

    with pytest.raises(JobError):
        REFUSALS[verb](queue, stale)
    assert ear.heard() == []
    assert keys.dumped() == before


def test_jobs_that_are_not_held_are_left_and_not_told(queue: Queue, keys: Keys, ear: Ear) -> None:
    stale = held(queue, keys)._replace(token=7)
    queue.set_events(True)
    ear.heard()
    before = keys.dumped()

    assert queue.give_back([stale]) == [ID]
    assert queue.extend_many([stale], 5, lock_ttl_ms=5) == [ID]
    assert queue.unlock(stale) is False
    assert ear.heard() == []
    assert keys.dumped() == before


# Texts.

QUIET = settings(suppress_health_check=list(HealthCheck), deadline=None)


@pytest.fixture
def told(
    shells: Callable[[str, int], Shell], fresh_name: str, server: Any
) -> Iterator[Callable[[bytes], bytes]]:
    """Answers the message that tells of a progress."""
    queue = shells("threads", 3).queue(fresh_name)
    queue.enqueue(b"p", job_id=ID)
    ear = Ear(server.admin, queue.keys.base)

    def tell(text: bytes) -> bytes:
        queue.progress(ID, text)
        [message] = ear.heard()
        return message

    yield tell
    ear.close()


@QUIET
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_told(told: Callable[[bytes], bytes], text: str) -> None:
    assert json.loads(told(text.encode())) == job("progress", progress=text)


@QUIET
@given(
    st.binary()
    | st.lists(st.sampled_from([b"a", b'"', *(bytes([n]) for n in range(128, 256))])).map(b"".join)
)
def test_any_bytes_make_json_of_utf_8(told: Callable[[bytes], bytes], data: bytes) -> None:
    message = told(data).decode()

    text = json.loads(message)["progress"]
    assert text.replace("\ufffd", "") == data.decode("utf-8", "ignore").replace("\ufffd", "")


@pytest.mark.parametrize(
    "bad",
    [
        *(b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf"),
        *(b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\x80", b"\xff"),
        *(b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3"),
    ],
    ids=lambda bad: bad.hex(),
)
def test_what_is_no_utf_8_is_replaced(told: Callable[[bytes], bytes], bad: bytes) -> None:
    text = json.loads(told(b"a" + bad + b"b").decode())["progress"]

    assert set(text[1:-1]) == {"\ufffd"}
    assert text[0] + text[-1] == "ab"


def test_longest_texts_are_told(told: Callable[[bytes], bytes]) -> None:
    text = 'x"\u00e9\n' * 50_000
    assert json.loads(told(text.encode()))["progress"] == text

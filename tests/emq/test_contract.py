"""What the scripts do on a server is what their headers say.

`SCENARIOS` holds, for every line under a header's RETURNS, what makes the script answer so. A new
line without a scenario fails, and so does an answer, or a key, that no header declares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from emq import Queue, scripts
from emq.errors import JobError, JobGone, StaleToken, WrongKind
from emq.ids import Mint
from emq.job import Job
from emq.scripts import Answer, Header, Transition, names
from resp import ErrorReply, Plan, ScriptCall

from .shells import Shell

TRANSITIONS: Final = {
    value.name: value for value in vars(scripts).values() if isinstance(value, Transition)
}
GROUP: Final = "PRT0EEMl9I7KXg"


class Recorder:
    """A connector that writes down what each script answered."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.answers: list[tuple[str, Any]] = []

    def run(self, plan: Plan[Any]) -> Any:
        return self._inner.run(self._watched(plan))

    def _watched(self, plan: Plan[Any]) -> Plan[Any]:
        reply = None
        try:
            while True:
                step = plan.send(reply)
                reply = yield step
                if isinstance(step, list):
                    self._note(zip(step, reply, strict=True))
                else:
                    self._note([(step, reply)])
        except StopIteration as end:
            return end.value

    def _note(self, said: Any) -> None:
        self.answers += [
            (step.script.name, reply) for step, reply in said if isinstance(step, ScriptCall)
        ]


class World:
    """A queue under observation, and hands to set a scene with."""

    def __init__(self, shell: Shell, name: str, admin: Any) -> None:
        self.recorder = Recorder(shell.connector)
        self.queue = Queue(self.recorder, name)
        self.base = self.queue.keys.base
        self.admin = admin
        self.mint = Mint().mint

    def row(self, id: str, **fields: str) -> str:
        self.admin.hset(f"{self.base}job:{id}", mapping=fields)
        return id

    def pending(self, **fields: str) -> str:
        """A pending job, made by hand."""
        id = self.row(
            self.mint(), **{"state": "pending", "attempts": "0", "payload": "p", **fields}
        )
        self.admin.zadd(self.base + "pending", {id: 0})
        return id

    def ghost(self) -> str:
        """An entry in pending without a row."""
        id = self.mint()
        self.admin.zadd(self.base + "pending", {id: 0})
        return id

    def parent(self, children: int = 1, **fields: str) -> str:
        id = self.row(self.mint(), state="awaiting_children", attempts="0", payload="p", **fields)
        self.admin.set(f"{self.base}job:{id}:dependencies", children)
        return id

    def claimed(self, **fields: str) -> Job:
        self.pending(**fields)
        job = self.queue.claim()
        assert job is not None
        return job

    def lapse(self, job: Job) -> Job:
        self.admin.zadd(self.base + "active", {job.id: 1}, xx=True)
        return job

    def laned(self, limit: int | None = None) -> Job:
        """A claimed job of a lane in which another waits."""
        job = self.claimed(group=GROUP)
        waiting = self.row(self.mint(), state="pending", attempts="0", payload="p", group=GROUP)
        self.admin.zadd(f"{self.base}g:{GROUP}:pending", {waiting: 0})
        if limit is not None:
            self.admin.hset(self.base + "glimit", GROUP, limit)
        return job

    def settled(self) -> Job:
        job = self.claimed()
        self.queue.retry(job, delay_ms=60_000, max_attempts=5, error="e")
        return job

    def ghosts(self) -> int:
        """As many entries without a row as one claim looks at, and a job behind them."""
        count = sum(bool(self.ghost()) for _ in range(100))
        self.queue.enqueue(b"behind them")
        return count

    def refused(self, error: type[JobError], verb: Callable[..., Any], *args: Any) -> None:
        with pytest.raises(error):
            verb(*args)


def other(job: Job) -> Job:
    return job._replace(token=job.token + 1)


def nobody(w: World) -> Job:
    return Job(w.mint(), b"", 1, w.queue.name)


def retry(w: World, job: Job, most: int = 5) -> str:
    return w.queue.retry(job, delay_ms=60_000, max_attempts=most, error="boom")


def wrong_kind(w: World, transition: Transition, **values: Any) -> None:
    """Past the host's own check, as another client would come."""
    w.refused(WrongKind, w.recorder.run, transition(**values))


SCENARIOS: Final[dict[tuple[str, str], Callable[[World], Any]]] = {
    ("enqueue", "1"): lambda w: w.queue.enqueue(b"p"),
    ("enqueue", "0"): lambda w: w.queue.enqueue(b"p", job_id=w.pending()),
    ("enqueue", "EMQKIND job id must be JOB-namespaced"): lambda w: wrong_kind(
        w, scripts.ENQUEUE, row=f"{w.base}job:ORD0EEMl9I7KXg", payload=b"p", due=None
    ),
    ("enqueue_many", "<verdicts>"): lambda w: w.queue.enqueue_many([b"p", b"q"]),
    ("enqueue_many", "EMQKIND job id must be JOB-namespaced"): lambda w: wrong_kind(
        w, scripts.ENQUEUE_MANY, base=w.base, items=[w.mint(), "p", "", "ORD0EEMl9I7KXg", "p", ""]
    ),
    ("claim", "[id, payload, token]"): lambda w: w.claimed(),
    ("claim", "[id, payload, token, group]"): lambda w: w.claimed(group=GROUP),
    ("claim", "nil"): lambda w: w.queue.claim(),
    ("claim", "1"): lambda w: (w.ghosts(), w.queue.claim()),
    ("complete", "1"): lambda w: w.queue.complete(w.claimed()),
    ("complete", "0"): lambda w: w.refused(JobGone, w.queue.complete, nobody(w)),
    ("complete", "EMQSTALE complete token mismatch"): lambda w: w.refused(
        StaleToken, w.queue.complete, other(w.claimed())
    ),
    ("complete", "EMQSTALE complete state moved on"): lambda w: w.refused(
        StaleToken, w.queue.complete, w.settled()
    ),
    ("complete_and_claim", "[id, payload, token]"): lambda w: (
        job := w.claimed(),
        w.pending(),
        w.queue.complete_and_claim(job),
    ),
    ("complete_and_claim", "[id, payload, token, group]"): lambda w: (
        job := w.claimed(),
        w.pending(group=GROUP),
        w.queue.complete_and_claim(job),
    ),
    ("complete_and_claim", "nil"): lambda w: w.queue.complete_and_claim(w.claimed()),
    ("complete_and_claim", "1"): lambda w: (
        job := w.claimed(),
        w.ghosts(),
        w.queue.complete_and_claim(job),
    ),
    ("complete_and_claim", "0"): lambda w: w.refused(
        JobGone, w.queue.complete_and_claim, nobody(w)
    ),
    ("complete_and_claim", "EMQSTALE complete token mismatch"): lambda w: w.refused(
        StaleToken, w.queue.complete_and_claim, other(w.claimed())
    ),
    ("complete_and_claim", "EMQSTALE complete state moved on"): lambda w: w.refused(
        StaleToken, w.queue.complete_and_claim, w.settled()
    ),
    ("retry", "scheduled"): lambda w: retry(w, w.claimed()),
    ("retry", "dead"): lambda w: retry(w, w.claimed(), most=1),
    ("retry", "EMQSTALE job gone"): lambda w: w.refused(JobGone, retry, w, nobody(w)),
    ("retry", "EMQSTALE retry token mismatch"): lambda w: w.refused(
        StaleToken, retry, w, other(w.claimed())
    ),
    ("retry", "EMQSTALE retry state moved on"): lambda w: w.refused(
        StaleToken, retry, w, w.settled()
    ),
    ("extend", "1"): lambda w: w.queue.extend(w.claimed(), 60_000),
    ("extend", "0"): lambda w: w.refused(JobGone, w.queue.extend, nobody(w), 60_000),
    ("extend", "EMQSTALE extend token mismatch"): lambda w: w.refused(
        StaleToken, w.queue.extend, other(w.claimed()), 60_000
    ),
    ("extend", "EMQSTALE extend state moved on"): lambda w: w.refused(
        StaleToken, w.queue.extend, w.settled(), 60_000
    ),
    ("extend_many", "[id, ...]"): lambda w: w.queue.extend_many(
        [w.claimed(), other(w.claimed()), nobody(w)], 60_000
    ),
    ("promote", "<moved>"): lambda w: (w.queue.enqueue(b"p", run_at_ms=1), w.queue.promote()),
    ("reap", "<moved>"): lambda w: (w.lapse(w.claimed()), w.queue.reap()),
    ("sweep_stalled", "[recovered, dead]"): lambda w: (
        w.lapse(w.claimed()),
        w.queue.sweep_stalled(2),
        w.lapse(w.claimed()),
        w.queue.sweep_stalled(1),
    ),
    (
        "counts",
        "[pending, active, schedule, dead, completed, failed]",
    ): lambda w: w.queue.counts(),
    ("state", "pending"): lambda w: w.queue.state(w.pending()),
    ("state", "active"): lambda w: w.queue.state(w.claimed().id),
    ("state", "scheduled"): lambda w: w.queue.state(w.settled().id),
    ("state", "dead"): lambda w: (job := w.claimed(), retry(w, job, 1), w.queue.state(job.id)),
    ("state", "awaiting_children"): lambda w: w.queue.state(w.parent()),
    ("state", "unknown"): lambda w: w.queue.state(w.row(w.mint(), state="pending", group=GROUP)),
    ("state", "nil"): lambda w: w.queue.state(w.mint()),
}

# What reaches further keys: lanes, and parents here, elsewhere and above.
FURTHER: Final[dict[str, Callable[[World], Any]]] = {
    "laned_job_completed": lambda w: w.queue.complete(w.laned(limit=1)),
    "laned_job_retried": lambda w: retry(w, w.laned(limit=1)),
    "laned_job_reaped_and_retried": lambda w: (
        job := w.lapse(w.laned(limit=1)),
        w.queue.reap(),
        retry(w, job),
    ),
    "laned_job_swept": lambda w: (w.lapse(w.laned(limit=1)), w.queue.sweep_stalled()),
    "laned_job_promoted": lambda w: (retry(w, w.laned(limit=1)), w.queue.promote()),
    "laned_job_claimed_at_the_limit": lambda w: (w.laned(limit=1), w.claimed(group=GROUP)),
    "child_completed": lambda w: w.queue.complete(w.claimed(parent=w.parent()), b"r"),
    "child_completed_fused": lambda w: w.queue.complete_and_claim(w.claimed(parent=w.parent())),
    "child_completed_for_elsewhere": lambda w: w.queue.complete(
        w.claimed(parent=w.mint(), parent_queue="elsewhere")
    ),
    "child_dead": lambda w: retry(w, w.claimed(parent=w.parent(parent=w.parent())), 1),
    "child_dead_ignored": lambda w: retry(w, w.claimed(parent=w.parent(), parent_policy="id"), 1),
    "child_dead_for_elsewhere": lambda w: retry(
        w, w.claimed(parent=w.mint(), parent_queue="elsewhere"), 1
    ),
    "child_swept": lambda w: (w.lapse(w.claimed(parent=w.parent())), w.queue.sweep_stalled()),
    "laned_job_asked_for": lambda w: (
        w.laned(),
        w.queue.state(w.admin.zrange(f"{w.base}g:{GROUP}:pending", 0, 0)[0].decode()),
    ),
}


@pytest.fixture
def world(shells: Callable[[str, int], Shell], fresh_name: str, server: Any) -> World:
    return World(shells("threads", 3), fresh_name, server.admin)


def declared(name: str) -> Header:
    return TRANSITIONS[name].header


def matching(header: Header, reply: Any) -> list[Answer]:
    """The lines of a header that declare a reply."""
    return [answer for answer in header.returns if _matches(answer.text, reply)]


def _matches(text: str, reply: Any) -> bool:
    match reply:
        case None:
            return text == "nil"
        case ErrorReply():
            return text == reply.message
        case int():
            return text == str(reply) or text == "<moved>"
        case bytes():
            return text == reply.decode() or (text == "<verdicts>" and not reply.strip(b"01"))
        case list():
            parts = text.strip("[]").split(", ")
            shaped = text.startswith("[")
            return shaped and (parts[-1] == "..." or len(parts) == len(reply))
        case _:
            return False


def test_every_declared_answer_has_a_scenario_and_no_other_has() -> None:
    lines = {(name, answer.text) for name in names() for answer in declared(name).returns}

    assert set(SCENARIOS) == lines


@pytest.mark.parametrize("line", SCENARIOS, ids=lambda line: f"{line[0]}: {line[1]}")
def test_answer_is_reached(world: World, line: tuple[str, str]) -> None:
    SCENARIOS[line](world)

    name, text = line
    answers = [reply for script, reply in world.recorder.answers if script == name]
    assert any([a.text for a in matching(declared(name), reply)] == [text] for reply in answers)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *FURTHER], ids=str)
def test_every_answer_is_declared_once(world: World, scenario: Any) -> None:
    act = FURTHER[scenario] if scenario in FURTHER else SCENARIOS[scenario]
    act(world)

    for name, reply in world.recorder.answers:
        assert len(matching(declared(name), reply)) == 1, f"{name} answered {reply!r}"


# Keys.


def pattern(base: str, expression: str) -> re.Pattern[str]:
    """What the keys look like that an expression under DERIVES builds."""
    first, *parts = expression.split(" .. ")
    assert first == "base", f"{expression} starts elsewhere"
    return re.compile(
        re.escape(base)
        + "".join(
            re.escape(part.strip("'")) if part.startswith("'") else "[A-Z]{3}[0-9A-Za-z]{11}"
            for part in parts
        )
    )


class Monitor:
    """What a server was told, and by which script, since the monitor was switched on."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin
        self._names = {transition.script.sha: name for name, transition in TRANSITIONS.items()}

    def __enter__(self) -> Monitor:
        self._monitor = self._admin.monitor().__enter__()
        return self

    def __exit__(self, *caught: object) -> None:
        self._monitor.__exit__(*caught)

    def touched(self) -> Iterator[tuple[str, str, str]]:
        """Each script, its KEYS[1], and each key that a command inside it named, up to now."""
        self._admin.echo("that is all")
        script = passed = ""
        for told in self._monitor.listen():
            command, *words = told["command"].split(" ")
            if told["client_type"] == "lua":
                keys = [word for word in words if word.startswith("emq:{")]
                assert keys or command == "TIME"
                for key in keys:
                    yield script, passed, key
            elif command == "EVALSHA":
                script, passed = self._names.get(words[0], "another"), words[2]
            elif told["command"] == "ECHO that is all":
                return


def test_keys_are_declared_and_of_the_queues_slot(
    shells: Callable[[str, int], Shell], fresh_name: str, server: Any
) -> None:
    used: set[str] = set()
    for number, scenario in enumerate([*SCENARIOS.values(), *FURTHER.values()]):
        world = World(shells("threads", 3), f"{fresh_name}-{number}", server.admin)
        with Monitor(server.admin) as monitor:
            scenario(world)
            for script, passed, key in monitor.touched():
                matched = {
                    expression
                    for expression in declared(script).derives
                    if pattern(world.base, expression).fullmatch(key)
                }
                assert matched or key == passed, f"{script} touched {key}, which is not declared"
                used |= matched

    every = {expression for name in names() for expression in declared(name).derives}
    assert used == every, "declared, and touched by nobody"


def test_an_undeclared_key_is_seen() -> None:
    assert pattern("emq:{q}:", "base .. 'ring'").fullmatch("emq:{q}:ring")
    assert not pattern("emq:{q}:", "base .. 'ring'").fullmatch("emq:{q}:rings")
    lane = pattern("emq:{q}:", "base .. 'g:' .. group .. ':pending'")
    assert lane.fullmatch(f"emq:{{q}}:g:{GROUP}:pending")
    assert not lane.fullmatch(f"emq:{{other}}:g:{GROUP}:pending")

"""What the scripts do on a server is what their headers say.

`SCENARIOS` holds, for every line under a header's RETURNS, what makes the script answer so. A new
line without a scenario fails, and so does an answer, or a key, that no header declares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import pytest

from emq import Queue, scripts
from emq.errors import JobError, JobGone, JobLocked, StaleToken, WrongKind, WrongState
from emq.ids import Mint
from emq.job import Item, Job
from emq.plans import work
from emq.scripts import Answer, Header, Transition, names
from resp import ErrorReply, Plan, ScriptCall

from .shells import Shell

TRANSITIONS: Final = {
    value.name: value for value in vars(scripts).values() if isinstance(value, Transition)
}
COUNTS: Final = ("<moved>", "<drained>")
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
        self.queue: Any = Queue(cast(Any, self.recorder), name)
        self.base: str = self.queue.keys.base
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
        assert isinstance(job, Job)
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

    def ghosts(self, more: int) -> int:
        """More entries without a row than one claim looks at, and a job behind them."""
        count = sum(bool(self.ghost()) for _ in range(100 + more))
        self.queue.enqueue(b"behind them")
        return count

    def dead(self, **fields: str) -> str:
        job = self.claimed(**fields)
        retry(self, job, 1)
        return job.id

    def took(self, count: int = 1, waiter: str = "w") -> work.Taken:
        plan = work.take(
            self.queue.keys, count, 60_000, max_stalled=2, wait_ms=5_000, waiter=waiter
        )
        taken: work.Taken = self.recorder.run(plan)
        return taken

    def left(self, blocks: bool) -> Any:
        return self.recorder.run(work.leave(self.queue.keys, "w", blocks=blocks))

    def forget(self, *suffixes: str) -> Any:
        return self.recorder.run(scripts.FORGET(base=self.base, suffixes=suffixes))

    def refused(self, error: type[JobError], verb: Callable[..., Any], *args: Any) -> Any:
        with pytest.raises(error):
            verb(*args)


def other(job: Job) -> Job:
    return job._replace(token=job.token + 1)


def nobody(w: World) -> Job:
    return Job(w.mint(), b"", 1, w.queue.name)


def retry(w: World, job: Job, most: int = 5) -> Any:
    return w.queue.retry(job, delay_ms=60_000, max_attempts=most, error="boom")


def repair(w: World, *names: str) -> None:
    """Look at each of these names, and at a deduplication key and a lock of jobs that are gone."""
    gone, stray = w.mint(), w.row(w.mint(), state="pending", payload="p", attempts="0")
    w.admin.set(f"{w.base}de:k", gone)
    w.admin.set(f"{w.base}job:{gone}:lock", "1")
    w.admin.zadd(f"{w.base}g:{GROUP}:pending", {stray: 0})
    looked_at = [*names, gone, "de:k", f"g:{GROUP}:{stray}"]
    w.recorder.run(scripts.REPAIR(base=w.base, mend=1, names=looked_at))


def wrong_kind(w: World, transition: Transition, **values: Any) -> None:
    """Past the host's own check, as another client would come."""
    w.refused(WrongKind, w.recorder.run, transition(**values))


SCENARIOS: Final[dict[tuple[str, str], Callable[[World], Any]]] = {
    ("enqueue", "1"): lambda w: w.queue.enqueue(b"p"),
    ("enqueue", "0"): lambda w: w.queue.enqueue(b"p", job_id=w.pending()),
    ("enqueue", "EMQKIND job id must be JOB-namespaced"): lambda w: wrong_kind(
        w, scripts.ENQUEUE, row=f"{w.base}job:ORD0EEMl9I7KXg", payload=b"p", wishes=[]
    ),
    ("enqueue", "<holder>"): lambda w: (
        w.queue.enqueue(b"p", dedup="k", dedup_ttl_ms=60_000),
        w.queue.enqueue(b"p", dedup="k"),
    ),
    ("enqueue_many", "<verdicts>"): lambda w: w.queue.enqueue_many([b"p", b"q"]),
    ("enqueue_many", "EMQKIND job id must be JOB-namespaced"): lambda w: wrong_kind(
        w, scripts.ENQUEUE_MANY, base=w.base, items=[w.mint(), "p", 0, "ORD0EEMl9I7KXg", "p", 0]
    ),
    ("enqueue_many", "[verdicts, id, ...]"): lambda w: w.queue.enqueue_many(
        [Item(b"p", dedup="k"), b"q", Item(b"r", dedup="k")]
    ),
    ("claim", "[id, payload, token]"): lambda w: w.claimed(),
    ("claim", "[id, payload, token, group, excused, options]"): lambda w: w.claimed(group=GROUP),
    ("claim", "nil"): lambda w: w.queue.claim(),
    ("claim", "1"): lambda w: (w.ghosts(2), w.queue.claim()),
    ("claim_many", "[job, ...]"): lambda w: (w.pending(), w.pending(), w.queue.claim_many(3)),
    ("claim_many", "1"): lambda w: (w.ghosts(10), w.queue.claim_many(3)),
    ("take", "[wait_ms, dead, job, ...]"): lambda w: (
        w.took(),
        w.took(1, "v"),
        w.pending(),
        w.pending(),
        w.took(),
    ),
    ("leave", "1"): lambda w: (w.took(), w.pending(), w.left(True), w.left(False)),
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
    ("complete_and_claim", "[id, payload, token, group, excused, options]"): lambda w: (
        job := w.claimed(),
        w.pending(group=GROUP),
        w.queue.complete_and_claim(job),
    ),
    ("complete_and_claim", "nil"): lambda w: w.queue.complete_and_claim(w.claimed()),
    ("complete_and_claim", "1"): lambda w: (
        job := w.claimed(),
        w.ghosts(2),
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
    ("delay", "1"): lambda w: w.queue.delay(w.claimed(), 60_000, excuse=True),
    ("delay", "0"): lambda w: w.refused(JobGone, w.queue.delay, nobody(w), 60_000),
    ("delay", "EMQSTALE delay token mismatch"): lambda w: w.refused(
        StaleToken, w.queue.delay, other(w.claimed()), 60_000
    ),
    ("delay", "EMQSTALE delay state moved on"): lambda w: w.refused(
        StaleToken, w.queue.delay, w.settled(), 60_000
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
    ("give_back", "[id, ...]"): lambda w: w.queue.give_back(
        [w.claimed(), other(w.claimed()), nobody(w)]
    ),
    ("lock", "1"): lambda w: (
        job := w.claimed(),
        w.queue.lock(job, 60_000),
        w.queue.extend_many([job], 60_000, lock_ttl_ms=90_000),
    ),
    ("lock", "0"): lambda w: w.refused(JobGone, w.queue.lock, nobody(w), 60_000),
    ("lock", "EMQSTALE lock token mismatch"): lambda w: w.refused(
        StaleToken, w.queue.lock, other(w.claimed()), 60_000
    ),
    ("lock", "EMQSTALE lock state moved on"): lambda w: w.refused(
        StaleToken, w.queue.lock, w.settled(), 60_000
    ),
    ("unlock", "1"): lambda w: (job := w.claimed(), w.queue.lock(job, 60_000), w.queue.unlock(job)),
    ("unlock", "0"): lambda w: w.queue.unlock(w.claimed()),
    ("promote", "<moved>"): lambda w: (w.queue.enqueue(b"p", run_at_ms=1), w.queue.promote()),
    ("reap", "<moved>"): lambda w: (w.lapse(w.claimed()), w.queue.reap()),
    ("sweep_stalled", "[recovered, dead]"): lambda w: (
        w.lapse(w.claimed()),
        w.queue.sweep_stalled(2),
        w.lapse(w.claimed()),
        w.queue.sweep_stalled(1),
    ),
    ("progress", "1"): lambda w: w.queue.progress(w.claimed(), "50"),
    ("progress", "0"): lambda w: w.refused(JobGone, w.queue.progress, w.mint(), "50"),
    ("progress", "EMQSTALE progress token mismatch"): lambda w: w.refused(
        StaleToken, w.queue.progress, other(w.claimed()), "50"
    ),
    ("progress", "EMQSTALE progress state moved on"): lambda w: w.refused(
        StaleToken, w.queue.progress, w.settled(), "50"
    ),
    ("log", "<lines>"): lambda w: (
        job := w.claimed(),
        w.queue.log(job, "one"),
        w.queue.log(job, "two", keep=1),
    ),
    ("log", "0"): lambda w: w.refused(JobGone, w.queue.log, w.mint(), "line"),
    ("log", "EMQSTALE log token mismatch"): lambda w: w.refused(
        StaleToken, w.queue.log, other(w.claimed()), "line"
    ),
    ("log", "EMQSTALE log state moved on"): lambda w: w.refused(
        StaleToken, w.queue.log, w.settled(), "line"
    ),
    ("update_payload", "1"): lambda w: w.queue.update_payload(w.pending(), "q"),
    ("update_payload", "0"): lambda w: w.refused(JobGone, w.queue.update_payload, w.mint(), "q"),
    ("remove", "1"): lambda w: (
        receipt := w.queue.enqueue(b"p", dedup="k", result_ttl_ms=60_000),
        w.queue.remove(receipt.job_id, dedup="k"),
    ),
    ("remove", "0"): lambda w: w.refused(JobGone, w.queue.remove, w.mint()),
    ("remove", "EMQLOCK job is locked"): lambda w: (
        job := w.claimed(),
        w.queue.lock(job, 60_000),
        w.refused(JobLocked, w.queue.remove, job.id),
    ),
    ("reprocess", "1"): lambda w: w.queue.reprocess(w.dead(), reset=True),
    ("reprocess", "0"): lambda w: w.refused(JobGone, w.queue.reprocess, w.mint()),
    ("reprocess", "EMQSTATE not dead"): lambda w: w.refused(
        WrongState, w.queue.reprocess, w.pending()
    ),
    ("pause", "1"): lambda w: w.queue.pause(),
    ("resume", "1"): lambda w: (w.queue.pause(), w.took(), w.queue.resume()),
    ("configure", "1"): lambda w: (
        w.queue.set_concurrency(1),
        w.queue.set_concurrency(None),
        w.queue.set_events(True),
    ),
    ("drain", "<drained>"): lambda w: (
        w.pending(parent=w.parent()),
        w.queue.enqueue(b"p", delay_ms=60_000),
        w.queue.drain(include_schedule=True),
    ),
    ("obliterate", "0"): lambda w: (w.pending(), w.queue.pause(), w.queue.obliterate()),
    ("obliterate", "1"): lambda w: (w.pending(), w.queue.pause(), w.queue.obliterate(budget=1)),
    ("obliterate", "EMQSTATE not paused"): lambda w: w.refused(WrongState, w.queue.obliterate),
    ("obliterate", "EMQSTATE active jobs present"): lambda w: (
        w.claimed(),
        w.queue.pause(),
        w.refused(WrongState, w.queue.obliterate),
    ),
    ("forget", "0"): lambda w: (w.queue.pause(), w.forget("metrics:completed", "meta")),
    ("forget", "1"): lambda w: (w.queue.pause(), w.pending(), w.forget("meta")),
    ("forget", "EMQSTATE not paused"): lambda w: w.refused(WrongState, w.forget, "meta"),
    ("repair", "[name, fault, detail, mended, ...]"): lambda w: repair(
        w,
        w.ghost(),
        w.row(w.mint(), state="pending", payload="p", attempts="0"),
        w.row(w.mint(), state="dead", payload="p", attempts="0"),
        w.pending(state="scheduled"),
        w.pending(),
    ),
    ("recount", "[group, said, held, ...]"): lambda w: (
        w.laned(),
        w.admin.hset(w.base + "gactive", GROUP, 7),
        w.recorder.run(scripts.RECOUNT(base=w.base, mend=1, limit=10)),
    ),
    ("recount", "nil"): lambda w: (
        w.claimed(),
        w.recorder.run(scripts.RECOUNT(base=w.base, mend=0, limit=0)),
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
    "laned_job_given_back": lambda w: w.queue.give_back([w.laned(limit=1)]),
    "laned_job_delayed": lambda w: w.queue.delay(w.laned(limit=1), 60_000),
    "laned_job_removed": lambda w: (
        job := w.laned(limit=1),
        w.queue.remove(job.id),
        w.queue.remove(w.admin.zrange(f"{w.base}g:{GROUP}:pending", 0, 0)[0].decode()),
    ),
    "outcome_kept": lambda w: (
        w.queue.enqueue(b"p", dedup="k"),
        w.queue.complete(w.queue.claim(), b"r", result_ttl_ms=60_000),
    ),
    "outcome_of_the_dead_kept": lambda w: (
        w.queue.enqueue(b"p", dedup="k", result_ttl_ms=60_000),
        retry(w, w.queue.claim(), 1),
    ),
    "woken": lambda w: (
        w.took(),
        w.pending(),
        w.queue.enqueue(b"p"),
        w.queue.enqueue(b"p", delay_ms=1),
    ),
    "at_the_ceiling": lambda w: (
        w.queue.set_concurrency(1),
        w.lapse(w.claimed()),
        w.pending(),
        w.took(),
        w.queue.reap(),
    ),
    "child_removed": lambda w: w.queue.remove(w.pending(parent=w.parent())),
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
            return text == str(reply) or text in COUNTS or (text == "<lines>" and reply > 0)
        case bytes():
            return (
                text == reply.decode()
                or (text == "<verdicts>" and not reply.strip(b"01"))
                or (text == "<holder>" and reply.startswith(b"JOB"))
            )
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


VARIABLES: Final = {
    "dedup": "[A-Za-z0-9._-]+",
    "place": "pending|schedule",
    "suffix": ".+",
    "waiter": "w",
}


def pattern(base: str, expression: str) -> re.Pattern[str]:
    """What the keys look like that an expression under DERIVES builds."""
    first, *parts = expression.split(" .. ")
    assert first == "base", f"{expression} starts elsewhere"
    return re.compile(
        re.escape(base)
        + "".join(
            re.escape(part.strip("'"))
            if part.startswith("'")
            else VARIABLES.get(part, "[A-Z]{3}[0-9A-Za-z]{11}")
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
                if command == "PUBLISH" and keys[0].endswith(":events"):
                    continue  # a channel, no key
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

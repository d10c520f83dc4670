"""A queue's life against a small model: several holders, fresh and stale tokens, any order.

The model is a dict of jobs. After every step the server must hold exactly what the model says: each
job in one place, its row telling the same, the counts adding up, every lane in the ring exactly if
it can be served. A verb that is refused must have changed no byte. Holders speak through both
shells and both protocols at the same queue; a node of another make fills and serves the lanes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from emq import Queue
from emq.errors import JobGone, StaleToken, WrongState
from emq.ids import Mint
from emq.job import Job

from .foreign import Node
from .shells import Shell
from .snapshot import dumped, snapshot

HOUR = 3_600_000
FAR = 10**12  # above this a score is a time to come, below it one that a test has set

PLACES = ("pending", "active", "schedule", "dead")
GROUPS = ("PRT0EEMl9I7KXg", "PRT0EEMl9I7KXh")
STATE_IN = {"pending": "pending", "active": "active", "schedule": "scheduled", "dead": "dead"}


@dataclass
class Model:
    """What the queue should hold of one job."""

    payload: str
    place: str
    group: str | None = None
    attempts: int = 0
    stalled: int = 0
    excused: int = 0
    last_error: str | None = None
    over: int | None = None  # the score of a lease that has ended, or of a due time that has come

    def move(self, place: str) -> None:
        self.place = place
        self.over = None


@dataclass
class Held:
    """What a holder believes it holds; the belief may be long out of date."""

    id: str
    token: int

    def slipped(self, by: int) -> Held:
        return Held(self.id, max(0, self.token + by))


def holds(job: Model | None, token: int) -> bool:
    """Whether a token settles a job: it is the last claim's, and the job was not settled since."""
    return job is not None and token == job.attempts > 0 and job.place in ("active", "pending")


@dataclass
class World:
    """The queue as the machine sees it: its handles, and the way behind them."""

    queues: list[Queue]
    admin: Any
    base: str
    jobs: dict[str, Model] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    completed: int = 0
    failed: int = 0
    paused: set[str] = field(default_factory=set)
    limits: dict[str, int] = field(default_factory=dict)

    def inside(self, place: str) -> list[str]:
        """The ids in one of the queue's sets. A laned job waits in its lane, not in `pending`."""
        return sorted(
            id
            for id, job in self.jobs.items()
            if job.place == place and not (place == "pending" and job.group)
        )

    def lane(self, group: str) -> list[str]:
        return sorted(
            id for id, job in self.jobs.items() if (job.place, job.group) == ("pending", group)
        )

    def in_flight(self, group: str) -> int:
        return sum((job.place, job.group) == ("active", group) for job in self.jobs.values())

    def serviceable(self, group: str) -> bool:
        return (
            bool(self.lane(group))
            and group not in self.paused
            and self.in_flight(group) < self.limits.get(group, 2**53)
        )

    def over(self, place: str, limit: int) -> list[str]:
        """The jobs whose lease or delay is over, as the server meets them."""
        done = [(job.over, id) for id, job in self.jobs.items() if job.place == place]
        return [id for over, id in sorted(d for d in done if d[0] is not None)][:limit]


class Machine(RuleBasedStateMachine):
    """Any verb, by anybody, at any time. Its test binds it to a world."""

    world_of: Callable[[], World]

    held = Bundle("held")

    handles = st.integers(0, 3)
    slips = st.sampled_from([0, 0, 0, 0, -1, 1])  # added to a token; most holders make none
    errors = st.sampled_from(["boom", "gave up", ""])

    @initialize(jobs=st.integers(0, 5))
    def begin(self, jobs: int) -> None:
        self.world = type(self).world_of()
        self.mint = Mint()
        self.peer = Node(self.world.admin, self.world.base)
        self.scores = itertools.count(1)
        self.rung: tuple[set[str], int] = set(), 0
        for _ in range(jobs):
            self.enqueue(0, "first", None)

    # What a producer does.

    @rule(handle=handles, payload=st.text("ab", max_size=3), delay=st.none() | st.just(HOUR))
    def enqueue(self, handle: int, payload: str, delay: int | None) -> None:
        receipt = self.queue(handle).enqueue(payload, delay_ms=delay)

        assert receipt.admitted
        assert receipt.job_id not in self.world.jobs
        place = "pending" if delay is None else "schedule"
        self.world.jobs[receipt.job_id] = Model(payload, place)

    @rule(handle=handles, count=st.integers(1, 4))
    def enqueue_many(self, handle: int, count: int) -> None:
        receipts = self.queue(handle).enqueue_many([f"m{n}" for n in range(count)])

        ids = [receipt.job_id for receipt in receipts]
        assert all(receipt.admitted for receipt in receipts)
        assert ids == sorted(set(ids))
        self.world.jobs |= {id: Model(f"m{n}", "pending") for n, id in enumerate(ids)}

    @precondition(lambda self: self.world.jobs)
    @rule(handle=handles, data=st.data(), delay=st.none() | st.just(HOUR))
    def enqueue_again(self, handle: int, data: st.DataObject, delay: int | None) -> None:
        id = data.draw(st.sampled_from(sorted(self.world.jobs)))

        before = self.bytes()
        assert self.queue(handle).enqueue("other", job_id=id, delay_ms=delay) == (id, False)
        assert self.bytes() == before

    # What a holder does, be it on time or late.

    @rule(target=held, handle=handles)
    def claim(self, handle: int) -> Any:
        return self.claimed(self.queue(handle).claim(HOUR))

    @rule(held=held, slip=slips, handle=handles)
    def complete(self, held: Held, slip: int, handle: int) -> None:
        held, queue = held.slipped(slip), self.queue(handle)
        if self.settles(held, lambda: queue.complete(held.id, token=held.token)):
            self.completed(held)

    @rule(target=held, held=held, slip=slips, handle=handles)
    def complete_and_claim(self, held: Held, slip: int, handle: int) -> Any:
        held, queue, answer = held.slipped(slip), self.queue(handle), []
        if self.settles(
            held,
            lambda: answer.append(queue.complete_and_claim(held.id, HOUR, token=held.token)),
        ):
            self.completed(held)
            return self.claimed(answer[0])
        return multiple()

    @rule(held=held, slip=slips, handle=handles, most=st.integers(1, 4), error=errors)
    def retry(self, held: Held, slip: int, handle: int, most: int, error: str) -> None:
        held, queue, answer = held.slipped(slip), self.queue(handle), []
        if self.settles(
            held,
            lambda: answer.append(
                queue.retry(
                    held.id, token=held.token, delay_ms=HOUR, max_attempts=most, error=error
                )
            ),
        ):
            job = self.world.jobs[held.id]
            dies = job.attempts - job.stalled - job.excused >= most
            assert answer == ["dead" if dies else "scheduled"]
            job.move("dead" if dies else "schedule")
            job.last_error = error
            self.world.failed += dies

    @rule(held=held, slip=slips, handle=handles)
    def extend(self, held: Held, slip: int, handle: int) -> None:
        held, queue = held.slipped(slip), self.queue(handle)
        job = self.world.jobs.get(held.id)
        good = holds(job, held.token) and job is not None and job.place == "active"
        if self.settles(held, lambda: queue.extend(held.id, HOUR, token=held.token), good):
            self.world.jobs[held.id].over = None

    @rule(beliefs=st.lists(held, max_size=4), handle=handles)
    def extend_many(self, beliefs: list[Held], handle: int) -> None:
        good = {
            belief.id
            for belief in beliefs
            if holds(self.world.jobs.get(belief.id), belief.token)
            and self.world.jobs[belief.id].place == "active"
        }
        bad = [b.id for b in beliefs if b.id not in good or b.token != self.token(b.id)]

        before = self.bytes()
        pairs = [(belief.id, belief.token) for belief in beliefs]
        assert sorted(self.queue(handle).extend_many(pairs, HOUR)) == sorted(bad)
        for id in good:
            self.world.jobs[id].over = None
        if not good:
            assert self.bytes() == before

    @rule(target=held, handle=handles, count=st.integers(1, 3))
    def claim_many(self, handle: int, count: int) -> Any:
        jobs = self.queue(handle).claim_many(count, HOUR)
        assert len(jobs) == min(count, len(self.world.inside("pending")))
        return multiple(*map(self.claimed, jobs))

    @rule(held=held, slip=slips, handle=handles, excuse=st.booleans())
    def delay(self, held: Held, slip: int, handle: int, excuse: bool) -> None:
        held, queue = held.slipped(slip), self.queue(handle)
        was_active = held.id in self.world.inside("active")
        if self.settles(held, lambda: queue.delay(held.id, HOUR, token=held.token, excuse=excuse)):
            job = self.world.jobs[held.id]
            job.excused += excuse and was_active
            job.move("schedule")

    @rule(beliefs=st.lists(held, max_size=3), handle=handles)
    def give_back(self, beliefs: list[Held], handle: int) -> None:
        lost = []
        for belief in beliefs:
            job = self.world.jobs.get(belief.id)
            if job is not None and job.place == "active" and holds(job, belief.token):
                job.excused += 1
                job.move("pending")
            else:
                lost.append(belief.id)
        before = self.bytes()
        pairs = [(belief.id, belief.token) for belief in beliefs]
        assert self.queue(handle).give_back(pairs) == lost
        if len(lost) == len(beliefs):
            assert self.bytes() == before

    # What an operator does, whoever holds the job.

    @precondition(lambda self: self.world.jobs)
    @rule(handle=handles, data=st.data(), reset=st.booleans())
    def reprocess(self, handle: int, data: st.DataObject, reset: bool) -> None:
        id = data.draw(st.sampled_from(self.world.inside("dead") or sorted(self.world.jobs)))
        job = self.world.jobs[id]
        if job.place != "dead":
            before = self.bytes()
            with pytest.raises(WrongState):
                self.queue(handle).reprocess(id, reset=reset)
            assert self.bytes() == before
            return
        self.queue(handle).reprocess(id, reset=reset)
        job.move("pending")
        job.last_error = None
        if reset:
            job.stalled, job.excused = 0, job.attempts

    @precondition(lambda self: self.world.jobs)
    @rule(handle=handles, data=st.data())
    def remove(self, handle: int, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.world.jobs)))
        self.queue(handle).remove(id)
        del self.world.jobs[id]
        self.world.gone.add(id)

    @precondition(lambda self: len(self.world.inside("pending")) < 4)
    @rule(handle=handles, include_schedule=st.booleans())
    def drain(self, handle: int, include_schedule: bool) -> None:
        ids = self.world.inside("pending")
        if include_schedule:
            ids += self.world.inside("schedule")
        assert self.queue(handle).drain(include_schedule=include_schedule) == len(ids)
        for id in ids:
            del self.world.jobs[id]
            self.world.gone.add(id)

    # What a node of another make does with lanes.

    @rule(group=st.sampled_from(GROUPS))
    def peer_enqueues(self, group: str) -> None:
        id = self.mint.mint()
        self.peer.enqueue(group, id, "laned")
        self.world.jobs[id] = Model("laned", "pending", group)

    @rule(target=held)
    def peer_claims(self) -> Any:
        claimed = self.peer.claim(HOUR)
        if claimed is None:
            assert not any(map(self.world.serviceable, GROUPS))
            return multiple()
        id, token = claimed
        job = self.world.jobs[id]
        assert self.world.lane(str(job.group))[0] == id
        assert self.world.serviceable(str(job.group))
        job.move("active")
        job.attempts += 1
        assert job.attempts == token
        return Held(id, token)

    @rule(group=st.sampled_from(GROUPS), most=st.integers(1, 3))
    def peer_limits(self, group: str, most: int) -> None:
        self.peer.limit(group, most)
        self.world.limits[group] = most

    @rule(group=st.sampled_from(GROUPS))
    def peer_pauses_or_resumes(self, group: str) -> None:
        if group in self.world.paused:
            self.peer.resume(group)
            self.world.paused.remove(group)
        else:
            self.peer.pause(group)
            self.world.paused.add(group)

    # What time does, and those who watch it.

    @precondition(lambda self: self.world.inside("active"))
    @rule(data=st.data(), noticed=st.booleans())
    def a_lease_ends(self, data: st.DataObject, noticed: bool) -> None:
        self.let_pass("active", data)
        if noticed:
            self.reap(0, 100)

    @precondition(lambda self: self.world.inside("schedule"))
    @rule(data=st.data(), noticed=st.booleans())
    def a_delay_ends(self, data: st.DataObject, noticed: bool) -> None:
        self.let_pass("schedule", data)
        if noticed:
            self.promote(0, 100)

    @rule(handle=handles, limit=st.sampled_from([1, 2, 100]))
    def promote(self, handle: int, limit: int) -> None:
        due = self.world.over("schedule", limit)
        assert self.queue(handle).promote(limit) == len(due)
        for id in due:
            self.world.jobs[id].move("pending")

    @rule(handle=handles, limit=st.sampled_from([1, 2, 100]))
    def reap(self, handle: int, limit: int) -> None:
        lapsed = self.world.over("active", limit)
        assert self.queue(handle).reap(limit) == len(lapsed)
        for id in lapsed:
            self.world.jobs[id].move("pending")

    @rule(handle=handles, most=st.integers(1, 3), limit=st.sampled_from([1, 2, 100]))
    def sweep_stalled(self, handle: int, most: int, limit: int) -> None:
        lapsed = self.world.over("active", limit)
        dead = [id for id in lapsed if self.world.jobs[id].stalled + 1 >= most]

        swept = self.queue(handle).sweep_stalled(most, limit)
        assert swept.dead == dead
        assert swept.recovered == [id for id in lapsed if id not in dead]
        for id in lapsed:
            job = self.world.jobs[id]
            job.stalled += 1
            job.move("dead" if id in dead else "pending")
            if id in dead:
                job.last_error = "stalled"
        self.world.failed += len(dead)

    # What must hold after every step.

    @invariant()
    def the_server_holds_what_the_model_says(self) -> None:
        state, _ = snapshot(self.world.admin, self.world.base)
        found = {key.removeprefix(self.world.base): entry["value"] for key, entry in state.items()}
        for place in PLACES:
            members = found.pop(place, {})
            assert sorted(members) == self.world.inside(place)
            for id, score in members.items():
                over = self.world.jobs[id].over
                if place in ("pending", "dead"):
                    assert score == 0
                else:
                    assert score == over if over is not None else score > FAR
        for id, job in self.world.jobs.items():
            assert found.pop(f"job:{id}") == self.row(job)
        for name, count in (("completed", self.world.completed), ("failed", self.world.failed)):
            assert found.pop(f"metrics:{name}", None) == ({"count": str(count)} if count else None)
        for group in GROUPS:
            assert sorted(found.pop(f"g:{group}:pending", {})) == self.world.lane(group)
        in_flight = {group: self.world.in_flight(group) for group in GROUPS}
        counted = {group: int(count) for group, count in found.pop("gactive", {}).items()}
        assert counted == {group: count for group, count in in_flight.items() if count}
        ring = found.pop("ring", [])
        assert sorted(ring) == [group for group in GROUPS if self.world.serviceable(group)]
        wake = found.pop("wake", [])
        assert set(wake) <= {"1"}
        assert len(wake) <= 64
        self.ring_grew_with_a_wake(ring, len(wake))
        assert found.pop("paused", []) == sorted(self.world.paused)
        assert found.pop("glimit", {}) == {g: str(n) for g, n in self.world.limits.items()}
        assert found == {}, "keys that nobody should have written"

    @invariant()
    def the_reads_agree(self) -> None:
        counts = self.queue(0).counts()
        assert counts == {
            **{place: len(self.world.inside(place)) for place in PLACES},
            "completed": self.world.completed,
            "failed": self.world.failed,
        }

    def teardown(self) -> None:
        if hasattr(self, "world"):
            for id, job in itertools.islice(self.world.jobs.items(), 5):
                assert self.queue(1).state(id) == STATE_IN[job.place]
            for id in itertools.islice(self.world.gone, 5):
                assert self.queue(2).state(id) is None

    # Helpers.

    def queue(self, handle: int) -> Queue:
        return self.world.queues[handle]

    def bytes(self) -> dict[bytes, bytes]:
        return dumped(self.world.admin, self.world.base)

    def ring_grew_with_a_wake(self, ring: list[str], wakes: int) -> None:
        """Whoever puts a lane in the ring wakes a parked consumer."""
        before, wakes_before = self.rung
        joined = set(ring) - before
        assert wakes >= min(64, wakes_before + len(joined))
        self.rung = set(ring), wakes

    def token(self, id: str) -> int:
        return self.world.jobs[id].attempts if id in self.world.jobs else 0

    def settles(self, held: Held, verb: Callable[[], Any], good: bool | None = None) -> bool:
        """Call a verb; answer whether it was due, and see that it was refused if it was not."""
        job = self.world.jobs.get(held.id)
        if good is None:
            good = holds(job, held.token)
        if good:
            verb()
            return True
        before = self.bytes()
        with pytest.raises(JobGone if job is None else StaleToken) as refused:
            verb()
        assert refused.value.job_id == held.id
        assert self.bytes() == before
        return False

    def completed(self, held: Held) -> None:
        del self.world.jobs[held.id]
        self.world.gone.add(held.id)
        self.world.completed += 1

    def claimed(self, job: Job | None) -> Any:
        waiting = self.world.inside("pending")
        if job is None:
            assert waiting == []
            return multiple()
        assert job.id == waiting[0], "the oldest id comes first"
        model = self.world.jobs[job.id]
        model.move("active")
        model.attempts += 1
        name = self.queue(0).name
        excused = model.stalled + model.excused
        assert job == Job(job.id, model.payload.encode(), model.attempts, name, None, excused)
        return Held(job.id, job.token)

    def let_pass(self, place: str, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.world.inside(place)))
        score = next(self.scores)
        moved = self.world.admin.zadd(self.world.base + place, {id: score}, xx=True, ch=True)
        assert moved == 1
        self.world.jobs[id].over = score

    @staticmethod
    def row(job: Model) -> dict[str, str]:
        row = {
            "state": STATE_IN[job.place],
            "attempts": str(job.attempts),
            "payload": job.payload,
        }
        if job.group is not None:
            row["group"] = job.group
        if job.last_error is not None:
            row["last_error"] = job.last_error
        if job.stalled:
            row["stalled"] = str(job.stalled)
        if job.excused:
            row["excused"] = str(job.excused)
        return row


def test_any_order_of_verbs(
    server: Any, shells: Callable[[str, int], Shell], fresh_name: str
) -> None:
    each = [shells(kind, protocol) for kind in ("threads", "aio") for protocol in (2, 3)]
    numbers = itertools.count()

    def new_world() -> World:
        # A fresh queue an example; the keys of all go with `fresh_name`.
        name = f"{fresh_name}-{next(numbers)}"
        queues = [shell.queue(name) for shell in each]
        return World(queues, server.admin, f"emq:{{{name}}}:")

    machine = type("BoundMachine", (Machine,), {"world_of": staticmethod(new_world)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=2 * settings().max_examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

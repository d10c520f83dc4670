"""Workers that wait: who is told of a job, and who sees to what falls due.

`Parked` workers here never block, unless a test is about that: an entry in `rouse` stands for the
worker that it would wake.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from emq import Item, Job, Queue
from emq.plans import work
from emq.plans.work import Taken
from resp import ServerError

from .conftest import Keys
from .foreign import Node
from .shells import Shell
from .snapshot import now_ms

HOUR = 3_600_000
GROUP = "PRT0EEMl9I7KXg"
ID = "JOB0EEMl9I7KXg"
PARENT = "JOB0EEMl9I7KXz"

Take = Callable[..., Taken]


@pytest.fixture
def take(shell: Shell, queue: Queue) -> Take:
    """A worker's turn; by default it asks for one job, as `w`."""

    def turn(waiter: str = "w", count: int = 1, **options: Any) -> Taken:
        asked = {"lease_ms": HOUR, "max_stalled": 3, "wait_ms": 5_000, **options}
        plan = work.take(queue.keys, count, asked.pop("lease_ms"), waiter=waiter, **asked)
        taken: Taken = shell.connector.run(plan)
        return taken

    return turn


def claim(queue: Queue, lease_ms: int = HOUR) -> Job:
    job = queue.claim(lease_ms)
    assert job is not None
    return job


def entries(keys: Keys) -> int:
    """How many workers have been woken, and have not come yet."""
    return int(keys.admin.llen(keys.base + "rouse"))


def parked(keys: Keys) -> list[str]:
    return keys.members("parked")


# Nobody waits.


def test_where_nobody_waits_no_key_is_left(queue: Queue, keys: Keys) -> None:
    ids = [queue.enqueue(b"p").job_id]
    ids += [receipt.job_id for receipt in queue.enqueue_many([b"q", Item(b"r", delay_ms=5)])]

    names = {f"job:{id}" for id in ids} | {"pending", "schedule"}
    assert set(keys.dumped()) == {(keys.base + name).encode() for name in names}


def test_turn_that_claims_leaves_no_key(queue: Queue, keys: Keys, take: Take) -> None:
    queue.enqueue_many([b"p", b"q"])
    taken = take()

    assert [job.payload for job in taken.jobs] == [b"p"]
    assert (taken.wait_ms, taken.dead) == (0, [])
    assert parked(keys) == []
    assert entries(keys) == 0


# Somebody waits.


def nothing(queue: Queue, keys: Keys) -> Any:
    return None


def a_held_job(queue: Queue, keys: Keys) -> Job:
    queue.enqueue(b"p")
    return claim(queue)


def a_scheduled_job(queue: Queue, keys: Keys) -> str:
    return queue.enqueue(b"p", delay_ms=HOUR).job_id


def a_dead_job(queue: Queue, keys: Keys) -> str:
    job = a_held_job(queue, keys)
    queue.retry(job, delay_ms=0, max_attempts=1, error="e")
    return job.id


def a_paused_queue_with_a_job(queue: Queue, keys: Keys) -> None:
    queue.pause()
    queue.enqueue(b"p")


def a_queue_at_its_ceiling(queue: Queue, keys: Keys) -> Job:
    queue.set_concurrency(1)
    job = a_held_job(queue, keys)
    queue.enqueue(b"q")
    return job


def a_laned_job_at_the_ceiling(queue: Queue, keys: Keys) -> Job:
    node = Node(keys.admin, keys.base)
    node.enqueue(GROUP, ID, "p")
    node.claim(HOUR)
    queue.set_concurrency(1)
    queue.enqueue(b"q")
    return Job(ID, b"p", 1, queue.name, GROUP)


def a_child_and_its_parent(queue: Queue, keys: Keys) -> Job:
    row = {"state": "awaiting_children", "attempts": "0", "payload": "p"}
    keys.admin.hset(f"{keys.base}job:{PARENT}", mapping=row)
    keys.admin.set(f"{keys.base}job:{PARENT}:dependencies", 1)
    job = a_held_job(queue, keys)
    keys.admin.hset(f"{keys.base}job:{job.id}", mapping={"parent": PARENT, "parent_policy": "id"})
    return job


def lapse(queue: Queue, keys: Keys, job: Job) -> None:
    assert keys.admin.zadd(keys.base + "active", {job.id: 1}, xx=True, ch=True) == 1


def come_due(queue: Queue, keys: Keys, id: str) -> None:
    assert keys.admin.zadd(keys.base + "schedule", {id: 1}, xx=True, ch=True) == 1


def then(*acts: Callable[[Queue, Keys, Any], Any]) -> Callable[[Queue, Keys, Any], None]:
    def act(queue: Queue, keys: Keys, scene: Any) -> None:
        for each in acts:
            each(queue, keys, scene)

    return act


def ghost_lapses(queue: Queue, keys: Keys, job: Job) -> None:
    keys.admin.delete(f"{keys.base}job:{job.id}")
    lapse(queue, keys, job)


def fail(queue: Queue, job: Job, delay_ms: int, most: int = 5) -> None:
    queue.retry(job, delay_ms=delay_ms, max_attempts=most, error="e")


Scene = Callable[[Queue, Keys], Any]
Act = Callable[[Queue, Keys, Any], Any]
WAKES: dict[str, tuple[Scene, Act]] = {
    "enqueue": (nothing, lambda q, k, _: q.enqueue(b"p")),
    "enqueue_many": (nothing, lambda q, k, _: q.enqueue_many([b"p"])),
    "enqueue, due soon": (nothing, lambda q, k, _: q.enqueue(b"p", delay_ms=1_000)),
    "enqueue, long due": (nothing, lambda q, k, _: q.enqueue(b"p", run_at_ms=5)),
    "promote": (a_scheduled_job, then(come_due, lambda q, k, _: q.promote())),
    "reap": (a_held_job, then(lapse, lambda q, k, _: q.reap())),
    "sweep": (a_held_job, then(lapse, lambda q, k, _: q.sweep_stalled(2))),
    "reprocess": (a_dead_job, lambda q, k, id: q.reprocess(id)),
    "give_back": (a_held_job, lambda q, k, job: q.give_back([job])),
    "resume": (a_paused_queue_with_a_job, lambda q, k, _: q.resume()),
    "retry, due soon": (a_held_job, lambda q, k, job: fail(q, job, 1_000)),
    "delay, due soon": (a_held_job, lambda q, k, job: q.delay(job, 1_000)),
    "claim under a short lease": (
        nothing,
        then(
            lambda q, k, _: q.enqueue(b"p"),
            lambda q, k, _: k.admin.delete(k.base + "rouse"),
            lambda q, k, _: claim(q, 1_000),
        ),
    ),
    "complete, parent released": (a_child_and_its_parent, lambda q, k, job: q.complete(job)),
    "death, parent released": (a_child_and_its_parent, lambda q, k, job: fail(q, job, 0, 1)),
    "remove, parent released": (a_child_and_its_parent, lambda q, k, job: q.remove(job.id)),
    "complete at the ceiling": (a_queue_at_its_ceiling, lambda q, k, job: q.complete(job)),
    "retry at the ceiling": (a_queue_at_its_ceiling, lambda q, k, job: fail(q, job, HOUR)),
    "death at the ceiling": (a_queue_at_its_ceiling, lambda q, k, job: fail(q, job, 0, 1)),
    "delay at the ceiling": (a_queue_at_its_ceiling, lambda q, k, job: q.delay(job, HOUR)),
    "remove at the ceiling": (a_queue_at_its_ceiling, lambda q, k, job: q.remove(job.id)),
    "stalled to death at the ceiling": (
        a_queue_at_its_ceiling,
        then(lapse, lambda q, k, _: q.sweep_stalled(1)),
    ),
    "ghost reaped at the ceiling": (
        a_queue_at_its_ceiling,
        then(ghost_lapses, lambda q, k, _: q.reap()),
    ),
    "ghost swept at the ceiling": (
        a_queue_at_its_ceiling,
        then(ghost_lapses, lambda q, k, _: q.sweep_stalled()),
    ),
    "laned job reaped at the ceiling": (
        a_laned_job_at_the_ceiling,
        then(lapse, lambda q, k, _: q.reap()),
    ),
    "laned job swept at the ceiling": (
        a_laned_job_at_the_ceiling,
        then(lapse, lambda q, k, _: q.sweep_stalled(5)),
    ),
    "laned job given back at the ceiling": (
        a_laned_job_at_the_ceiling,
        lambda q, k, job: q.give_back([job]),
    ),
    "higher ceiling": (a_queue_at_its_ceiling, lambda q, k, _: q.set_concurrency(2)),
    "no ceiling": (a_queue_at_its_ceiling, lambda q, k, _: q.set_concurrency(None)),
}


@pytest.mark.parametrize("why", WAKES)
def test_who_waits_is_woken(queue: Queue, keys: Keys, take: Take, why: str) -> None:
    prepare, act = WAKES[why]
    scene = prepare(queue, keys)
    taken = take()
    assert taken.jobs == []
    assert taken.wait_ms > 0
    assert (parked(keys), entries(keys)) == (["w"], 0)

    act(queue, keys, scene)
    assert entries(keys) == 1
    assert 0 < keys.admin.pttl(keys.base + "rouse") <= 6_000


SLEEPS: dict[str, tuple[Scene, Act]] = {
    "enqueue, due late": (nothing, lambda q, k, _: q.enqueue(b"p", delay_ms=HOUR)),
    "enqueue of a known id": (
        a_scheduled_job,
        lambda q, k, id: q.enqueue(b"p", job_id=id),
    ),
    "enqueue while paused": (lambda q, k: q.pause(), lambda q, k, _: q.enqueue(b"p")),
    "retry, due late": (a_held_job, lambda q, k, job: fail(q, job, HOUR)),
    "retry, dead": (a_held_job, lambda q, k, job: fail(q, job, 0, 1)),
    "complete": (a_held_job, lambda q, k, job: q.complete(job)),
    "extend": (a_held_job, lambda q, k, job: q.extend(job, HOUR)),
    "promote nothing": (a_scheduled_job, lambda q, k, _: q.promote()),
    "reap nothing": (a_held_job, lambda q, k, _: q.reap()),
    "resume what was not paused": (nothing, lambda q, k, _: q.resume()),
}


@pytest.mark.parametrize("why", SLEEPS)
def test_who_has_nothing_to_hear_sleeps_on(queue: Queue, keys: Keys, take: Take, why: str) -> None:
    prepare, act = SLEEPS[why]
    scene = prepare(queue, keys)
    take()
    act(queue, keys, scene)

    assert entries(keys) == 0


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("jobs", [1, 3, 5])
def test_a_worker_is_woken_for_each_job(
    queue: Queue, keys: Keys, take: Take, jobs: int, bulk: bool
) -> None:
    for waiter in "abc":
        take(waiter)
    if bulk:
        queue.enqueue_many([b"p"] * jobs)
    else:
        for _ in range(jobs):
            queue.enqueue(b"p")

    assert entries(keys) == min(jobs, 3)


# What a turn does.


def test_wait_is_what_was_asked_and_no_longer(take: Take, keys: Keys) -> None:
    assert take(wait_ms=700).wait_ms == 700
    assert take(wait_ms=60_000).wait_ms == 5_000
    score = keys.score("parked", "w")
    assert score is not None
    assert abs(score - now_ms(keys.admin) - 5_000) < 2_000
    assert 5_000 < keys.admin.pttl(keys.base + "parked") <= 6_000


@pytest.mark.parametrize("what", ["due", "lapse"])
def test_wait_ends_with_what_falls_due_next(queue: Queue, take: Take, what: str) -> None:
    if what == "due":
        queue.enqueue(b"p", delay_ms=HOUR)
        queue.enqueue(b"p", delay_ms=2_000)
    else:
        queue.enqueue_many([b"p", b"q"])
        claim(queue, 2_000)
        claim(queue, HOUR)

    assert 1_000 < take().wait_ms <= 2_000
    assert take(wait_ms=50).wait_ms == 50


def test_wait_is_short_at_the_ceiling(queue: Queue, keys: Keys, take: Take) -> None:
    a_queue_at_its_ceiling(queue, keys)

    taken = take()
    assert (taken.jobs, taken.wait_ms) == ([], 1_000)
    assert entries(keys) == 0


def test_turn_promotes_what_is_due(queue: Queue, keys: Keys, take: Take) -> None:
    queue.enqueue(b"due", run_at_ms=5)
    queue.enqueue(b"later", delay_ms=HOUR)

    assert [job.payload for job in take(count=5).jobs] == [b"due"]


def test_turn_sweeps_and_tells_who_died(queue: Queue, keys: Keys, take: Take) -> None:
    a_held_job(queue, keys)
    for stalls in (1, 2):
        [id] = keys.members("active")
        keys.admin.zadd(keys.base + "active", {id: 1})
        taken = take()
        if stalls == 2:  # it waits on its own
            assert taken.jobs == []
            keys.admin.zadd(keys.base + "schedule", {id: 1}, xx=True)
            taken = take()
        [job] = taken.jobs
        assert (job.id, job.excused, job.attempt) == (id, stalls, 1)
    keys.admin.zadd(keys.base + "active", {job.id: 1})

    taken = take()
    assert (taken.jobs, taken.dead) == ([], [job.id])
    assert queue.state(job.id) == "dead"
    assert keys.row(job.id)["last_error"] == b"stalled"
    assert queue.counts()["failed"] == 1


def test_turn_wakes_another_for_what_it_leaves(queue: Queue, keys: Keys, take: Take) -> None:
    queue.pause()
    for waiter in "abc":
        take(waiter)
    queue.enqueue_many([b"1", b"2", b"3", b"4"])
    queue.resume()
    assert entries(keys) == 1

    for at, waiter in enumerate("abc", 1):
        assert keys.admin.lpop(keys.base + "rouse") == b"1"
        assert [job.payload for job in take(waiter).jobs] == [str(at).encode()]
        assert entries(keys) == (1 if waiter != "c" else 0)  # nobody is left to wake
    assert parked(keys) == []


def test_turn_wakes_nobody_for_what_it_takes_itself(queue: Queue, keys: Keys, take: Take) -> None:
    queue.enqueue(b"p", delay_ms=HOUR)
    take("other")
    [id] = keys.members("schedule")
    come_due(queue, keys, id)

    assert [job.id for job in take().jobs] == [id]
    assert entries(keys) == 0


def test_turn_that_reaches_the_ceiling_wakes_nobody(queue: Queue, keys: Keys, take: Take) -> None:
    queue.set_concurrency(1)
    take("other")
    queue.enqueue_many([b"p", b"q"])
    keys.admin.delete(keys.base + "rouse")

    assert len(take().jobs) == 1
    assert entries(keys) == 0


def test_turn_takes_up_to_its_count(queue: Queue, keys: Keys, take: Take) -> None:
    queue.enqueue_many([b"1", b"2", b"3"])

    assert [job.payload for job in take(count=2).jobs] == [b"1", b"2"]
    assert [job.payload for job in take(count=2).jobs] == [b"3"]
    assert parked(keys) == []


def test_turn_without_a_count_is_upkeep(queue: Queue, keys: Keys, take: Take) -> None:
    take("other")
    queue.enqueue(b"p", run_at_ms=5)
    keys.admin.delete(keys.base + "rouse")

    taken = take(count=0)
    assert taken == Taken([], 0, [])
    assert queue.counts()["pending"] == 1
    assert (parked(keys), entries(keys)) == (["other"], 1)


def test_turn_on_a_paused_queue_sees_to_what_is_due_and_claims_nothing(
    queue: Queue, keys: Keys, take: Take
) -> None:
    queue.enqueue_many([b"p", Item(b"q", run_at_ms=5)])
    queue.pause()

    taken = take()
    assert (taken.jobs, taken.wait_ms) == ([], 5_000)
    assert queue.counts()["pending"] == 2
    assert entries(keys) == 0


def test_turn_says_that_the_settings_cannot_be_read(queue: Queue, keys: Keys, take: Take) -> None:
    queue.enqueue(b"p", run_at_ms=5)
    keys.admin.set(keys.base + "meta", "no hash")
    before = keys.dumped()

    with pytest.raises(ServerError, match="WRONGTYPE"):
        take()
    assert keys.dumped() == before


@pytest.mark.parametrize("place", ["schedule", "active"])
def test_turn_that_has_not_seen_all_comes_again_at_once(
    queue: Queue, keys: Keys, take: Take, place: str
) -> None:
    """A hundred entries a turn: those of ghosts here, so that none of them is a job."""
    numbers = range(150)
    keys.admin.zadd(keys.base + place, {f"JOB{n:011}": 1 for n in numbers})

    assert take() == Taken([], 0, [])
    assert parked(keys) == []
    assert take().wait_ms == 5_000
    assert keys.members(place) == []


def test_turn_that_met_only_ghosts_comes_again_at_once(
    queue: Queue, keys: Keys, take: Take
) -> None:
    keys.admin.zadd(keys.base + "pending", {f"JOB{n:011}": 0 for n in range(150)})
    queue.enqueue(b"behind them")

    assert take().wait_ms == 0
    assert [job.payload for job in take().jobs] == [b"behind them"]


def test_worker_that_is_back_is_not_parked(queue: Queue, keys: Keys, take: Take) -> None:
    take("a")
    take("b")
    assert parked(keys) == ["a", "b"]
    queue.enqueue(b"p")

    assert len(take("a").jobs) == 1
    assert parked(keys) == ["b"]


def test_who_comes_and_finds_nothing_takes_away_what_would_wake_others_in_vain(
    queue: Queue, keys: Keys, take: Take
) -> None:
    for waiter in "abc":
        take(waiter)
    queue.enqueue_many([b"1", b"2"])
    assert entries(keys) == 2
    queue.claim_many(5)  # by somebody who never waits

    assert take("a").wait_ms == 5_000
    assert (sorted(parked(keys)), entries(keys)) == (["a", "b", "c"], 0)


def test_who_is_dead_is_forgotten(queue: Queue, keys: Keys, take: Take) -> None:
    keys.admin.zadd(keys.base + "parked", {"dead": 5, "late": now_ms(keys.admin) - 500})

    take("a")
    assert parked(keys) == ["late", "a"]
    assert keys.admin.pttl(keys.base + "parked") > 0


# Who sees to what falls due.


def test_worker_that_goes_to_work_hands_on_what_falls_due(
    queue: Queue, keys: Keys, take: Take
) -> None:
    take("a")
    queue.enqueue(b"later", delay_ms=2_000)
    keys.admin.delete(keys.base + "rouse")  # which b hears, who waits for no longer than that
    assert take("b").wait_ms <= 2_000
    queue.enqueue(b"now")
    keys.admin.delete(keys.base + "rouse")  # and b again, who works from now on

    assert [job.payload for job in take("b").jobs] == [b"now"]
    assert entries(keys) == 1, "a would sleep beyond what falls due"
    assert take("a").wait_ms <= 2_000


@pytest.mark.parametrize("short", ["due", "lapse"])
def test_worker_that_leaves_hands_on_what_falls_due(
    queue: Queue, keys: Keys, take: Take, shell: Shell, short: str
) -> None:
    take("a")
    if short == "due":
        queue.enqueue(b"later", delay_ms=2_000)
    else:
        queue.enqueue(b"p")
        claim(queue, 2_000)
    keys.admin.delete(keys.base + "rouse")
    take("b")
    shell.connector.run(work.leave(queue.keys, "b"))

    assert (parked(keys), entries(keys)) == (["a"], 1)


def test_who_leaves_wakes_another_where_jobs_wait(
    queue: Queue, keys: Keys, take: Take, shell: Shell
) -> None:
    take("a")
    take("b")
    queue.enqueue(b"p")
    assert keys.admin.lpop(keys.base + "rouse") == b"1"  # a has it, and stops

    shell.connector.run(work.leave(queue.keys, "a"))
    assert (parked(keys), entries(keys)) == (["b"], 1)


def test_who_leaves_last_leaves_nothing(queue: Queue, keys: Keys, take: Take, shell: Shell) -> None:
    take("a")
    shell.connector.run(work.leave(queue.keys, "a"))
    assert keys.dumped() == {}
    queue.enqueue(b"p")
    before = keys.dumped()
    shell.connector.run(work.leave(queue.keys, "a"))
    assert keys.dumped() == before


# Blocked for good.


def turns(queue: Queue, name: str) -> dict[str, Any]:
    return {"max_stalled": 2, "wait_ms": 5_000, "waiter": name}


@pytest.mark.parametrize("kind", ["threads", "aio"])
def test_blocked_workers_hear_of_jobs(
    server: Any, fresh_name: str, kind: str, shells: Callable[[str, int], Shell]
) -> None:
    lines = {name: Shell(kind, 3, server.url) for name in "abc"}
    queue = shells(kind, 3).queue(fresh_name)
    try:
        for name, line in lines.items():
            turn = work.take(queue.keys, 1, HOUR, **turns(queue, name))
            assert line.connector.run(turn).wait_ms == 5_000
        with ThreadPoolExecutor(3) as pool:
            waits = [
                pool.submit(
                    line.connector.run,
                    work.park_and_take(queue.keys, 5_000, 1, HOUR, **turns(queue, name)),
                )
                for name, line in lines.items()
            ]
            until(lambda: blocked(server.admin) == 3)
            started = time.monotonic()
            queue.enqueue_many([b"1", b"2", b"3", b"4"])
            taken = [wait.result(10).jobs for wait in waits]
            assert sorted(job.payload for [job] in taken) == [b"1", b"2", b"3"]
            assert time.monotonic() - started < 2
        turn = work.park_and_take(queue.keys, 1, 1, HOUR, **turns(queue, "a"))
        assert [job.payload for job in lines["a"].connector.run(turn).jobs] == [b"4"]
    finally:
        for line in lines.values():
            line.close()


def test_worker_that_stops_is_let_go_at_once(
    server: Any, fresh_name: str, keys: Keys, shells: Callable[[str, int], Shell]
) -> None:
    line, shell = Shell("threads", 3, server.url), shells("threads", 3)
    queue = shell.queue(fresh_name)
    try:
        turn = work.park_and_take(queue.keys, 5_000, 1, HOUR, **turns(queue, "a"))
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(line.connector.run, turn)
            until(lambda: blocked(server.admin) == 1)
            started = time.monotonic()
            shell.connector.run(work.leave(queue.keys, "a", blocks=True))
            assert wait.result(10).wait_ms == 5_000
            assert time.monotonic() - started < 2
        shell.connector.run(work.leave(queue.keys, "a"))
        assert keys.dumped() == {}
    finally:
        line.close()


def blocked(admin: Any) -> int:
    """How many clients of the run's own server block on a list."""
    return sum(
        client["cmd"] == "blpop" and "b" in client["flags"] for client in admin.client_list()
    )


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends, "it never came so far"
        time.sleep(0.002)


# Any order of steps of several workers.


class Worker:
    """One worker: where it is in its loop, and a connection on which it really blocks."""

    def __init__(self, name: str, connection: Any, rouse: str) -> None:
        self.name = name
        self.connection = connection
        self.rouse = rouse
        self.state = "gone"  # or parked, about to block; blocked; busy
        self.job: Job | None = None

    def block(self) -> None:
        self.connection.send_command("BLPOP", self.rouse, f"{self.rouse}:{self.name}", "4.9")
        self.state = "blocked"

    def has_heard(self) -> bool:
        if self.state != "blocked" or not self.connection.can_read(timeout=0):
            return False
        self.connection.read_response()
        return True


class Machine(RuleBasedStateMachine):
    """No wake is lost: whoever hears something takes its turn at once, and all others sleep."""

    world_of: Callable[[], tuple[Queue, Any, list[Any]]]
    who = st.integers(0, 2)

    @initialize(there=st.integers(0, 3))
    def begin(self, there: int) -> None:
        self.queue, self.admin, connections = type(self).world_of()
        self.base = self.queue.keys.base
        self.workers = [
            Worker(f"w{at}", connection, self.base + "rouse")
            for at, connection in enumerate(connections)
        ]
        self.next_name = itertools.count(3)
        self.paused = False
        self.ceiling = 0
        self.held: list[Job] = []  # by claims that never wait
        for worker in self.workers[:there]:
            self.take(worker)
            worker.block()

    # Workers.

    @rule(who=who)
    def goes_on(self, who: int) -> None:
        """The next step of a worker's loop."""
        worker = self.workers[who]
        match worker.state:
            case "gone":
                self.take(worker)
            case "parked":
                worker.block()
            case "busy":
                assert worker.job is not None
                self.queue.complete(worker.job)
                self.take(worker)

    @rule(who=who, due=st.booleans())
    def waits_no_longer(self, who: int, due: bool) -> None:
        worker = self.workers[who]
        if worker.state == "blocked":
            if due:
                for id in self.admin.zrange(self.base + "schedule", 0, 0):
                    self.admin.zadd(self.base + "schedule", {id: 1})
            self.admin.client_unblock(worker.connection.client_id)

    @rule(who=who)
    def stops(self, who: int) -> None:
        worker = self.workers[who]
        if worker.state == "blocked":
            self.run(work.leave(self.queue.keys, worker.name, blocks=True))
            self.admin.ping()
            assert worker.has_heard()
            self.take(worker)
        if worker.state == "busy":
            assert worker.job is not None
            self.queue.give_back([worker.job])
        self.goes(worker)

    @rule(who=who)
    def breaks_down(self, who: int) -> None:
        """A worker goes without a turn, whatever it was to hear of; it says so, as all do."""
        worker = self.workers[who]
        if worker.state == "blocked":
            self.admin.client_unblock(worker.connection.client_id)
            self.admin.ping()
            assert worker.has_heard()
        if worker.state != "busy":
            self.goes(worker)

    @precondition(lambda self: sum(each.state == "blocked" for each in self.workers) > 1)
    @rule()
    def one_breaks_down_with_a_wake(self) -> None:
        self.queue.enqueue(b"p")
        self.admin.ping()
        for worker in self.workers:
            if worker.has_heard():
                self.goes(worker)

    @rule(who=who)
    def sees_to_the_queue(self, who: int) -> None:
        """A busy worker's upkeep, beside its job."""
        worker = self.workers[who]
        if worker.state == "busy":
            self.run(self.turn(worker, 0))

    # Others.

    @rule(count=st.integers(1, 4))
    def enqueue(self, count: int) -> None:
        self.queue.enqueue_many([b"p"] * count)

    @rule(delay=st.sampled_from([500, 2_000, 4_000]))
    def schedule(self, delay: int) -> None:
        self.queue.enqueue(b"p", delay_ms=delay)

    @rule()
    def a_job_falls_due_and_is_promoted(self) -> None:
        for id in self.admin.zrange(self.base + "schedule", 0, 0):
            self.admin.zadd(self.base + "schedule", {id: 1})
            self.queue.promote()

    @rule(lease=st.sampled_from([1_500, HOUR]))
    def claim(self, lease: int) -> None:
        job = self.queue.claim(lease)
        if job is not None:
            self.held.append(job)

    @precondition(lambda self: self.held)
    @rule(how=st.sampled_from(["complete", "retry", "reap", "remove"]))
    def settle_one(self, how: str) -> None:
        job = self.held.pop()
        if how == "complete":
            self.queue.complete(job)
        elif how == "retry":
            self.queue.retry(job, delay_ms=1_000, max_attempts=9, error="e")
        elif how == "remove":
            self.queue.remove(job.id)
        else:
            self.admin.zadd(self.base + "active", {job.id: 1})
            self.queue.reap()

    @rule()
    def pause_or_resume(self) -> None:
        (self.queue.resume if self.paused else self.queue.pause)()
        self.paused = not self.paused

    @rule(limit=st.sampled_from([None, 1, 2]))
    def limit(self, limit: int | None) -> None:
        self.queue.set_concurrency(limit)
        self.ceiling = limit or 0

    # What must hold.

    @invariant()
    def nobody_sleeps_beside_a_job(self) -> None:
        if not hasattr(self, "workers"):
            return
        self.settle()
        pending, active = (self.admin.zcard(self.base + place) for place in ("pending", "active"))
        claimable = pending and not self.paused and not 0 < self.ceiling <= active
        if claimable and self.waiting() and not self.on_their_way():
            raise AssertionError([worker.state for worker in self.workers])

    @invariant()
    def nobody_who_waits_is_missing(self) -> None:
        if hasattr(self, "workers"):
            registered = {name.decode() for name in self.admin.zrange(self.base + "parked", 0, -1)}
            assert {worker.name for worker in self.waiting()} == registered

    @invariant()
    def somebody_is_back_in_time(self) -> None:
        if not hasattr(self, "workers") or self.paused or self.on_their_way():
            return
        ends = [self.admin.zscore(self.base + "parked", each.name) for each in self.waiting()]
        for place in ("schedule", "active"):
            for _, score in self.admin.zrange(self.base + place, 0, 0, withscores=True):
                assert not ends or min(ends) <= max(score, now_ms(self.admin)) + 2

    # Helpers.

    def waiting(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.state in ("parked", "blocked")]

    def on_their_way(self) -> bool:
        """Whether somebody will hear of something as soon as it blocks."""
        about_to = any(worker.state == "parked" for worker in self.workers)
        return about_to and self.admin.llen(self.base + "rouse") > 0

    def turn(self, worker: Worker, count: int) -> Any:
        return work.take(
            self.queue.keys, count, HOUR, max_stalled=5, wait_ms=5_000, waiter=worker.name
        )

    def take(self, worker: Worker) -> None:
        taken = self.run(self.turn(worker, 1))
        if taken.jobs:
            [worker.job] = taken.jobs
            worker.state = "busy"
        else:
            assert taken.wait_ms > 0
            worker.state = "parked"

    def goes(self, worker: Worker) -> None:
        self.run(work.leave(self.queue.keys, worker.name))
        worker.state, worker.job = "gone", None
        worker.name = f"w{next(self.next_name)}"

    def run(self, plan: Any) -> Any:
        return self.queue.connector.run(plan)

    def settle(self) -> None:
        """Let the server write all it has to say, and let those who hear it take their turns."""
        heard = True
        while heard:
            self.admin.ping()
            heard = False
            for worker in self.workers:
                if worker.has_heard():
                    heard = True
                    self.take(worker)

    def teardown(self) -> None:
        for worker in getattr(self, "workers", []):
            if worker.state == "blocked":
                self.admin.client_unblock(worker.connection.client_id)
                self.admin.ping()
                assert worker.has_heard()


@pytest.fixture
def connections(server: Any) -> Iterator[list[Any]]:
    clients = [redis.Redis(host=server.host, port=server.port) for _ in range(3)]
    each: list[Any] = [client.connection_pool.get_connection() for client in clients]
    for connection in each:
        connection.send_command("CLIENT", "ID")
        connection.client_id = connection.read_response()
    yield each
    for client, connection in zip(clients, each, strict=True):
        client.connection_pool.release(connection)
        client.close()


def test_no_wake_is_lost_in_any_order(
    server: Any, shells: Callable[[str, int], Shell], fresh_name: str, connections: list[Any]
) -> None:
    numbers = itertools.count()

    def new_world() -> tuple[Queue, Any, list[Any]]:
        queue = shells("threads", 3).queue(f"{fresh_name}-{next(numbers)}")
        return queue, server.admin, connections

    run_state_machine_as_test(
        type("BoundMachine", (Machine,), {"world_of": staticmethod(new_world)}),
        settings=settings(
            max_examples=3 * settings().max_examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""The operator's verbs: one job, whoever holds it, and the queue as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from emq import Item, Job, Metric, Queue
from emq.errors import AtCeiling, ContractError, JobGone, JobLocked, StaleToken, WrongState
from emq.ids import Mint
from emq.job import Entry
from emq.scripts import FORGET
from resp import ServerError

from .conftest import Due, Expire, Keys, Queues
from .foreign import Node
from .shells import Shell
from .snapshot import now_ms

HOUR = 3_600_000
GROUP = "PRT0EEMl9I7KXg"
LANE = f"g:{GROUP}:pending"
ID = "JOB0EEMl9I7KXg"
SECOND = "JOB0EEMl9I7KXh"
PARENT = "JOB0EEMl9I7KXz"
SUBKEYS = ("logs", "dependencies", "processed", "failed", "unsuccessful", "result")


def claim(queue: Queue) -> Job:
    job = queue.claim(HOUR)
    assert job is not None
    return job


def fail(queue: Queue, job: Job, most: int = 1) -> str:
    return queue.retry(job, delay_ms=HOUR, max_attempts=most, error="boom")


def put(keys: Keys, id: str, place: str | None = "pending", **fields: str) -> str:
    """A job made by hand, as another node may have left it."""
    row = {"state": "pending", "attempts": "0", "payload": "p", **fields}
    keys.admin.hset(f"{keys.base}job:{id}", mapping=row)
    if place is not None:
        keys.admin.zadd(keys.base + place, {id: 0})
    return id


def put_parent(keys: Keys, children: int = 1) -> None:
    put(keys, PARENT, None, state="awaiting_children")
    keys.admin.set(f"{keys.base}job:{PARENT}:dependencies", children)


def put_subkeys(keys: Keys, id: str) -> None:
    for part in SUBKEYS:
        key = f"{keys.base}job:{id}:{part}"
        if part == "logs":
            keys.admin.rpush(key, "line")
        elif part == "dependencies":
            keys.admin.set(key, 1)
        else:
            keys.admin.hset(key, "a", "b")


def suffixes(keys: Keys) -> set[str]:
    return {key.decode().removeprefix(keys.base) for key in keys.dumped()}


# Locks.


def lock_ttls(keys: Keys, id: str) -> tuple[int, int]:
    """How long the lock's key and its field last, in ms."""
    row = f"{keys.base}job:{id}"
    field = -1
    if has_field_ttls(keys):
        (field,) = keys.admin.execute_command("HPTTL", row, "FIELDS", 1, "lock")
    return keys.admin.pttl(row + ":lock"), field


def has_field_ttls(keys: Keys) -> bool:
    return b"hpexpire" in keys.admin.command_list()


def test_lock_is_said_twice_and_ends(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    queue.lock(job, HOUR)

    assert keys.admin.get(f"{keys.base}job:{job.id}:lock") == b"1"
    assert keys.row(job.id)["lock"] == b"1"
    key, field = lock_ttls(keys, job.id)
    assert HOUR - 10_000 < key <= HOUR
    if has_field_ttls(keys):
        assert HOUR - 10_000 < field <= HOUR


def test_locked_job_cannot_be_removed(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    queue.lock(job.id, HOUR, token=job.token)
    before = keys.dumped()

    with pytest.raises(JobLocked) as caught:
        queue.remove(job.id)
    assert caught.value.job_id == job.id
    assert keys.dumped() == before
    assert queue.unlock(job) is True
    assert queue.unlock(job) is False
    queue.remove(job.id)
    assert queue.state(job.id) is None


@pytest.mark.parametrize("which", ["key", "field"])
def test_remove_honours_the_key_and_the_field(queue: Queue, keys: Keys, which: str) -> None:
    row = f"{keys.base}job:{put(keys, ID)}"
    if which == "key":
        keys.admin.set(row + ":lock", "another's")
    else:
        keys.admin.hset(row, "lock", "another's")

    with pytest.raises(JobLocked):
        queue.remove(ID)
    assert queue.unlock(ID, token=1) is False
    keys.admin.delete(row + ":lock")
    keys.admin.hdel(row, "lock")
    queue.remove(ID)


def test_field_that_has_ended_is_no_lock(queue: Queue, keys: Keys) -> None:
    if not has_field_ttls(keys):
        pytest.skip("the server knows no fields that end by themselves")
    row = f"{keys.base}job:{put(keys, ID)}"
    keys.admin.hset(row, "lock", "1")
    keys.admin.execute_command("HPEXPIREAT", row, 1, "FIELDS", 1, "lock")

    queue.remove(ID)
    assert queue.state(ID) is None


def test_extend_many_lets_locks_last_that_are_the_holders(queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([b"1", b"2", b"3"])
    mine, free, others = queue.claim_many(3)
    queue.lock(mine, 10_000)
    keys.admin.set(f"{keys.base}job:{others.id}:lock", "77", px=10_000)

    assert queue.extend_many([mine, free, others], HOUR) == []
    assert lock_ttls(keys, mine.id)[0] <= 10_000
    assert queue.extend_many([mine, free, others], HOUR, lock_ttl_ms=HOUR) == []
    assert min(t for t in lock_ttls(keys, mine.id) if t >= 0) > 10_000
    assert lock_ttls(keys, free.id)[0] < 0
    assert lock_ttls(keys, others.id)[0] <= 10_000
    assert "lock" not in keys.row(free.id)


def test_lock_is_fenced(queue: Queue, keys: Keys, expire: Expire) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    expire(job)
    queue.reap()
    queue.lock(job, HOUR)  # nobody has claimed it since
    queue.unlock(job)
    again = claim(queue)
    for error, held in (
        (StaleToken, job),
        (StaleToken, again._replace(token=0)),
        (JobGone, Job(ID, b"", 1, queue.name)),
    ):
        before = keys.dumped()
        with pytest.raises(error):
            queue.lock(held, HOUR)
        assert keys.dumped() == before
    fail(queue, again, 5)
    with pytest.raises(StaleToken, match="state moved on"):
        queue.lock(again, HOUR)


def test_lock_goes_with_the_job(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", job_id=ID)
    job = claim(queue)
    queue.lock(job, HOUR)
    queue.complete(job)
    queue.enqueue(b"p", job_id=ID)

    queue.remove(ID)
    assert suffixes(keys) == {"metrics:completed"}


# Progress and logs.

Say = Callable[[Queue, Any], Any]
SAYS: dict[str, Say] = {
    "progress": lambda q, job: q.progress(job, "50"),
    "log": lambda q, job: q.log(job, "line"),
}


@pytest.mark.parametrize("text", ["50", b"\x00\xff", "\u00e9", ""])
def test_progress_is_written(queue: Queue, keys: Keys, text: Any) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    queue.progress(job, text)

    want = text.encode() if isinstance(text, str) else text
    assert keys.row(job.id)["progress"] == want
    row = queue.job(job.id)
    assert row is not None
    assert row.fields["progress"] == want.decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("say", SAYS)
def test_holder_says_more_until_the_job_is_another_claims(
    queue: Queue, keys: Keys, expire: Expire, due: Due, say: str
) -> None:
    queue.enqueue(b"p", job_id=ID)
    job = claim(queue)
    SAYS[say](queue, job)
    expire(job)
    queue.reap()
    SAYS[say](queue, job)  # reaped, and nobody's since
    second = claim(queue)

    def refused(held: Job, error: type[Exception] = StaleToken) -> None:
        before = keys.dumped()
        with pytest.raises(error):
            SAYS[say](queue, held)
        assert keys.dumped() == before

    refused(job)
    refused(second._replace(token=0))
    SAYS[say](queue, second)
    fail(queue, second, 5)
    refused(second)  # scheduled
    due(ID)
    queue.promote()
    third = claim(queue)
    fail(queue, third)
    refused(third)  # dead
    queue.reprocess(ID)
    fourth = claim(queue)
    queue.complete(fourth)
    refused(fourth, JobGone)


@pytest.mark.parametrize("say", SAYS)
@pytest.mark.parametrize("place", ["pending", "active", "schedule", "dead", None])
def test_operator_may_say_so_anywhere(
    queue: Queue, keys: Keys, say: str, place: str | None
) -> None:
    put(keys, ID, place)
    SAYS[say](queue, ID)
    SAYS[say](queue, ID.encode())

    assert (keys.row(ID).get("progress"), queue.logs(ID)) == (
        (b"50", []) if say == "progress" else (None, ["line", "line"])
    )


@pytest.mark.parametrize("say", SAYS)
def test_nothing_is_said_of_a_job_that_is_gone(queue: Queue, keys: Keys, say: str) -> None:
    with pytest.raises(JobGone) as caught:
        SAYS[say](queue, ID)
    assert caught.value.job_id == ID
    assert keys.dumped() == {}


def test_log_counts_and_keeps_the_last_lines(queue: Queue) -> None:
    queue.enqueue(b"p", job_id=ID)
    assert [queue.log(ID, str(n)) for n in range(5)] == [1, 2, 3, 4, 5]
    assert queue.log(ID, "5", keep=3) == 3
    assert queue.logs(ID) == ["3", "4", "5"]
    assert queue.log(ID, "6", keep=10) == 4
    assert queue.log(ID, b"\xff\x00\n", keep=1) == 1
    assert queue.logs(ID) == ["\\xff\x00\n"]


def test_logs_of_no_job_are_not_no_lines(queue: Queue) -> None:
    queue.enqueue(b"p", job_id=ID)

    assert queue.logs(ID) == []
    with pytest.raises(JobGone):
        queue.logs(SECOND)


# Payloads.


def test_payload_is_replaced_for_the_next_claim(queue: Queue, expire: Expire) -> None:
    queue.enqueue(b"old")
    job = claim(queue)
    queue.update_payload(job.id, "new \u00e9")

    row = queue.job(job.id)
    assert row is not None
    assert row.payload == "new \u00e9".encode()
    queue.give_back([job])
    assert claim(queue).payload == "new \u00e9".encode()


def test_payload_of_no_job_is_not_written(queue: Queue, keys: Keys) -> None:
    with pytest.raises(JobGone):
        queue.update_payload(ID, b"p")
    assert keys.dumped() == {}


# Remove.


@pytest.mark.parametrize("place", ["pending", "active", "schedule", "dead", None])
def test_remove_takes_a_job_from_anywhere_with_all_its_keys(
    queue: Queue, keys: Keys, place: str | None
) -> None:
    put(keys, ID, place)
    put_subkeys(keys, ID)
    put(keys, SECOND)
    before = suffixes(keys)

    queue.remove(ID)
    assert suffixes(keys) == {f"job:{SECOND}", "pending"} <= before
    assert keys.members("pending") == [SECOND]
    with pytest.raises(JobGone):
        queue.remove(ID)


def test_removed_job_is_gone_for_its_holder(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    queue.remove(job.id)

    for settle in (
        lambda: queue.complete(job),
        lambda: queue.extend(job, HOUR),
        lambda: queue.delay(job, HOUR),
        lambda: fail(queue, job),
    ):
        with pytest.raises(JobGone):
            settle()
    assert queue.give_back([job]) == [job.id]
    assert keys.dumped() == {}


def test_removed_ghost_is_a_job_too(queue: Queue, keys: Keys) -> None:
    keys.admin.hset(f"{keys.base}job:{ID}", "progress", "50")
    keys.admin.zadd(keys.base + "pending", {ID: 0})

    queue.remove(ID)
    assert keys.dumped() == {}


@pytest.mark.parametrize("others", [0, 1])
def test_removed_job_leaves_its_lane(queue: Queue, keys: Keys, others: int) -> None:
    node = Node(keys.admin, keys.base)
    node.enqueue(GROUP, ID, "p")
    if others:
        node.enqueue(GROUP, SECOND, "p")
    queue.remove(ID)

    assert keys.members(LANE) == [SECOND] * others
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == [GROUP.encode()] * others


def test_removed_job_frees_its_place_in_the_lane(queue: Queue, keys: Keys) -> None:
    node = Node(keys.admin, keys.base)
    node.limit(GROUP, 1)
    node.enqueue(GROUP, ID, "p")
    node.enqueue(GROUP, SECOND, "p")
    assert node.claim(HOUR) == (ID, 1)
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == []
    keys.admin.delete(keys.base + "wake")
    queue.remove(ID)

    assert keys.admin.hgetall(keys.base + "gactive") == {}
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == [GROUP.encode()]
    assert keys.admin.lrange(keys.base + "wake", 0, -1) == [b"1"]
    assert node.claim(HOUR) == (SECOND, 1)


@pytest.mark.parametrize("how", ["remove", "drain"])
@pytest.mark.parametrize("policy", ["fp", "id"])
def test_parent_learns_that_its_child_is_gone(
    queue: Queue, keys: Keys, how: str, policy: str
) -> None:
    put_parent(keys, 2)
    put(keys, ID, parent=PARENT, parent_policy=policy)
    if how == "remove":
        queue.remove(ID)
    else:
        assert queue.drain() == 1

    told = "removed" if how == "remove" else "drained"
    part, state = ("failed", "dead") if policy == "fp" else ("unsuccessful", "awaiting_children")
    assert keys.admin.hgetall(f"{keys.base}job:{PARENT}:{part}") == {ID.encode(): told.encode()}
    assert queue.state(PARENT) == state
    assert keys.admin.get(f"{keys.base}job:{PARENT}:dependencies") == (
        b"2" if policy == "fp" else b"1"
    )


def test_parent_of_another_queue_is_sent_word(queue: Queue, keys: Keys) -> None:
    put(keys, ID, parent=PARENT, parent_queue="elsewhere")
    queue.remove(ID)

    assert keys.admin.lrange(keys.base + "flow:outbox", 0, -1) == [
        f"\0fail\0elsewhere\0{PARENT}\0{ID}\0fp\0removed".encode()
    ]


def test_parent_is_not_told_twice_of_a_death(queue: Queue, keys: Keys) -> None:
    put_parent(keys)
    put(keys, ID, parent=PARENT, parent_policy="id")
    fail(queue, claim(queue))
    before = keys.admin.dump(f"{keys.base}job:{PARENT}:unsuccessful")
    queue.remove(ID)

    assert keys.admin.dump(f"{keys.base}job:{PARENT}:unsuccessful") == before


@pytest.mark.parametrize("how", ["remove", "drain"])
def test_parent_that_cannot_be_read_leaves_its_child_as_it_was(
    queue: Queue, keys: Keys, how: str
) -> None:
    keys.admin.set(f"{keys.base}job:{PARENT}", "no hash")
    put(keys, ID, parent=PARENT, dedup="k")
    keys.admin.set(f"{keys.base}de:k", ID)
    before = keys.dumped()

    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.remove(ID, dedup="k") if how == "remove" else queue.drain()
    assert keys.dumped() == before


# Reprocess.


def test_reprocessed_job_waits_again(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", job_id=ID)
    fail(queue, claim(queue))
    queue.reprocess(ID)

    assert keys.row(ID) == {"state": b"pending", "attempts": b"1", "payload": b"p"}
    assert (keys.members("pending"), keys.members("dead")) == ([ID], [])
    job = claim(queue)
    assert (job.token, job.attempt) == (2, 2)
    assert fail(queue, job, 2) == "dead"


def test_reset_lets_attempts_and_stalls_start_anew(
    queue: Queue, keys: Keys, expire: Expire
) -> None:
    queue.enqueue(b"p", job_id=ID)
    expire(claim(queue))
    queue.sweep_stalled(2)
    fail(queue, claim(queue))
    queue.reprocess(ID, reset=True)

    assert "stalled" not in keys.row(ID)
    for attempt in (1, 2):
        job = claim(queue)
        assert (job.token, job.attempt) == (attempt + 2, attempt)
        assert fail(queue, job, 2) == ("scheduled" if attempt == 1 else "dead")
        if attempt == 1:
            keys.admin.zadd(keys.base + "schedule", {ID: 1})
            queue.promote()
    queue.reprocess(ID, reset=True)
    expire(claim(queue))
    assert queue.sweep_stalled(2).recovered == [ID]


def test_reprocessed_job_goes_to_its_lane(queue: Queue, keys: Keys) -> None:
    put(keys, ID, "dead", state="dead", group=GROUP, last_error="e")
    queue.reprocess(ID)

    assert (keys.members(LANE), keys.members("pending")) == ([ID], [])
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == [GROUP.encode()]
    assert Node(keys.admin, keys.base).claim(HOUR) == (ID, 1)


@pytest.mark.parametrize("place", ["pending", "active", "schedule", None])
@pytest.mark.parametrize("reset", [False, True])
def test_what_is_not_dead_is_not_reprocessed(
    queue: Queue, keys: Keys, place: str | None, reset: bool
) -> None:
    put(keys, ID, place)
    before = keys.dumped()

    with pytest.raises(WrongState):
        queue.reprocess(ID, reset=reset)
    with pytest.raises(JobGone):
        queue.reprocess(SECOND, reset=reset)
    assert keys.dumped() == before


def test_dead_ghost_is_not_reprocessed(queue: Queue, keys: Keys) -> None:
    keys.admin.hset(f"{keys.base}job:{ID}", "state", "dead")
    keys.admin.zadd(keys.base + "dead", {ID: 0})
    before = keys.dumped()

    with pytest.raises(WrongState):
        queue.reprocess(ID)
    assert keys.dumped() == before


# Pause, drain.


def test_pause_holds_back_claims_until_resume(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    assert queue.paused() is False
    queue.pause()
    queue.pause()
    assert queue.paused() is True
    assert queue.claim() is None
    queue.resume()
    queue.resume()
    assert queue.paused() is False
    assert claim(queue).payload == b"p"
    assert not keys.admin.exists(keys.base + "meta")


@pytest.mark.parametrize("include_schedule", [False, True])
def test_drain_deletes_what_waits(queue: Queue, keys: Keys, include_schedule: bool) -> None:
    queue.enqueue_many([b"dead", b"active"])
    fail(queue, claim(queue))
    held = claim(queue)
    queue.enqueue_many([b"p"] * 1_001)
    waits = queue.enqueue_many([Item(b"q", delay_ms=HOUR)] * 501)
    ids = keys.members("pending")[:2]
    for id in ids:
        put_subkeys(keys, id)
        keys.admin.set(f"{keys.base}job:{id}:lock", "1")

    assert queue.drain(include_schedule=include_schedule) == (1_502 if include_schedule else 1_001)
    left = {f"job:{held.id}", "active", "dead", "metrics:failed"}
    left |= {f"job:{id}" for id in keys.members("dead")}
    if not include_schedule:
        left |= {"schedule"} | {f"job:{receipt.job_id}" for receipt in waits}
    assert suffixes(keys) == left
    queue.complete(held)


def test_drain_of_nothing_is_none(queue: Queue, keys: Keys) -> None:
    assert queue.drain(include_schedule=True) == 0
    assert keys.dumped() == {}


def test_drain_takes_a_parent_and_its_child(queue: Queue, keys: Keys) -> None:
    put(keys, PARENT)
    put(keys, ID, parent=PARENT)

    assert queue.drain() == 2
    assert suffixes(keys) == set()


# Obliterate.


def filled(queue: Queue, keys: Keys) -> None:
    """Something of everything that may lie under a queue's prefix."""
    queue.enqueue_many([b"p"] * 30)
    fail(queue, claim(queue))
    queue.complete(claim(queue), b"r", result_ttl_ms=HOUR)
    queue.enqueue(b"p", delay_ms=HOUR, dedup="k")
    node = Node(keys.admin, keys.base)
    node.enqueue(GROUP, ID, "p")
    node.limit(GROUP, 1)
    put_parent(keys)
    put_subkeys(keys, PARENT)
    keys.admin.rpush(keys.base + "flow:outbox", "x")
    keys.admin.xadd(keys.base + "stream:s", {"a": "b"})
    keys.admin.set(keys.base.encode() + b"\xff\x00 odd [a-z]*", "x")
    keys.admin.zadd(keys.base + "repeat", {"r": 1})
    queue.set_concurrency(5)


def obliterated(queue: Queue, **options: Any) -> int:
    calls = 1
    while not queue.obliterate(**options):
        calls += 1
        assert calls < 1_000
    return calls


@pytest.mark.parametrize("budget", [1, 7, 1_000])
def test_nothing_is_left_of_an_obliterated_queue(queue: Queue, keys: Keys, budget: int) -> None:
    filled(queue, keys)
    queue.pause()

    assert obliterated(queue, budget=budget) == {1: 32, 7: 5, 1_000: 1}[budget]
    assert keys.dumped() == {}
    assert queue.enqueue(b"p").admitted
    assert claim(queue).token == 1


def test_budget_bounds_a_call(queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([b"p"] * 1_203)
    queue.pause()

    assert queue.obliterate() is False
    assert queue.counts()["pending"] == 203
    assert queue.obliterate(budget=203) is False
    assert queue.paused()
    assert queue.obliterate(budget=1) is True
    assert keys.dumped() == {}


def test_other_queues_are_left_alone(queues: Queues, fresh_name: str, server: Any) -> None:
    mine, longer, shorter = queues("-a"), queues("-a1"), queues("-")
    for each in (mine, longer, shorter):
        each.enqueue(b"p")
        each.pause()
    others = f"emq:{{{fresh_name}-"
    server.admin.set(f"{others}a", "a key of nobody")
    assert mine.obliterate()

    assert longer.counts()["pending"] == shorter.counts()["pending"] == 1
    assert longer.paused()
    assert server.admin.exists(f"{others}a")
    assert not list(server.admin.scan_iter(match=f"{others}a}}*", count=1_000))


def test_obliterate_needs_a_pause(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    before = keys.dumped()

    for force in (False, True):
        with pytest.raises(WrongState, match=r"not paused\b"):
            queue.obliterate(force=force)
    assert keys.dumped() == before


def test_claimed_jobs_are_obliterated_by_force_alone(queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([b"p", b"q"])
    job = claim(queue)
    queue.pause()
    before = keys.dumped()
    with pytest.raises(WrongState, match=r"active jobs present\b"):
        queue.obliterate()
    assert keys.dumped() == before

    assert queue.obliterate(force=True)
    assert keys.dumped() == {}
    with pytest.raises(JobGone):
        queue.complete(job)
    assert keys.dumped() == {}


def test_a_queue_that_goes_on_is_not_forgotten(shell: Shell, queue: Queue, keys: Keys) -> None:
    queue.set_concurrency(3)
    before = keys.dumped()
    with pytest.raises(WrongState, match=r"not paused\b"):
        shell.connector.run(FORGET(base=keys.base, suffixes=["meta"]))
    assert keys.dumped() == before


class Meddler:
    """A connector that does something before the n-th step of a plan."""

    def __init__(self, inner: Any, at: int, act: Callable[[], Any]) -> None:
        self._inner = inner
        self._at = at
        self._act = act

    def run(self, plan: Any) -> Any:
        return self._inner.run(self._watched(plan))

    def _watched(self, plan: Any) -> Any:
        reply = None
        while True:
            try:
                step = plan.send(reply)
            except StopIteration as end:
                return end.value
            self._at -= 1
            if self._at == 0:
                self._act()
            reply = yield step


@pytest.mark.parametrize("step", range(1, 6))
def test_jobs_that_come_meanwhile_are_deleted_or_kept_whole(
    server: Any, fresh_name: str, keys: Keys, shells: Callable[[str, int], Shell], step: int
) -> None:
    shell = shells("threads", 3)
    other = shell.queue(fresh_name)
    other.enqueue_many([b"p"] * 3)
    other.enqueue(b"q", dedup="k")
    other.pause()
    meddler = Meddler(shell.connector, step, lambda: other.enqueue(b"late", job_id=ID))

    done = Queue(cast(Any, meddler), fresh_name).obliterate()
    if ID in keys.members("pending"):
        assert keys.row(ID)["payload"] == b"late"
        assert not done
    else:
        assert done
        assert keys.dumped() == {}
    if not done:
        assert other.paused()
        assert obliterated(other) == 1
        assert keys.dumped() == {}


@pytest.mark.parametrize("step", range(1, 5))
def test_laned_jobs_that_come_meanwhile_are_deleted_or_kept_whole(
    server: Any, fresh_name: str, keys: Keys, shells: Callable[[str, int], Shell], step: int
) -> None:
    shell = shells("threads", 3)
    other = shell.queue(fresh_name)
    node = Node(server.admin, keys.base)
    node.enqueue(GROUP, SECOND, "p")
    other.pause()
    meddler = Meddler(shell.connector, step, lambda: node.enqueue(GROUP, ID, "late"))

    if Queue(cast(Any, meddler), fresh_name).obliterate():
        assert keys.dumped() == {}
        return
    assert keys.members(LANE) == [ID]
    assert keys.row(ID)["payload"] == b"late"
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == [GROUP.encode()]
    assert other.paused()
    assert obliterated(other) == 1
    assert keys.dumped() == {}


def test_laned_jobs_are_obliterated_within_the_budget(queue: Queue, keys: Keys) -> None:
    node = Node(keys.admin, keys.base)
    other = "PRT0EEMl9I7KXh"
    mint = Mint()
    ids = [mint.mint() for _ in range(5)]
    for id in ids:
        node.enqueue(GROUP, id, "p")
    node.enqueue(other, ID, "p")
    node.pause(other)
    queue.pause()

    assert queue.obliterate(budget=3) is False
    assert keys.members(LANE) == ids[3:]
    assert queue.obliterate(budget=2) is False
    assert suffixes(keys) == {"meta", "paused", f"g:{other}:pending", f"job:{ID}", "wake"}
    assert obliterated(queue) == 1
    assert keys.dumped() == {}


def test_claimed_jobs_that_are_obliterated_leave_room_in_their_lane(
    queue: Queue, keys: Keys
) -> None:
    node = Node(keys.admin, keys.base)
    node.limit(GROUP, 1)
    node.enqueue(GROUP, ID, "p")
    node.enqueue(GROUP, SECOND, "p")
    assert node.claim(HOUR) == (ID, 1)
    queue.pause()

    assert queue.obliterate(force=True, budget=1) is False
    queue.resume()
    assert node.claim(HOUR) == (SECOND, 1)


# The ceiling, and other settings.


def test_ceiling_is_set_and_read(queue: Queue, keys: Keys) -> None:
    assert queue.concurrency() is None
    queue.check_ceiling()
    queue.set_concurrency(2)
    assert queue.concurrency() == 2
    assert keys.admin.hget(keys.base + "meta", "concurrency") == b"2"
    queue.enqueue_many([b"1", b"2", b"3"])
    claim(queue)
    queue.check_ceiling()
    claim(queue)
    with pytest.raises(AtCeiling) as caught:
        queue.check_ceiling()
    assert caught.value.job_id is None
    assert queue.claim() is None
    queue.set_concurrency(None)
    queue.check_ceiling()
    assert queue.concurrency() is None
    assert not keys.admin.exists(keys.base + "meta")


@pytest.mark.parametrize("text", ["", "abc", "0", "-1", "2.5", "1e3", "nan"])
def test_ceiling_that_is_no_number_is_none(queue: Queue, keys: Keys, text: str) -> None:
    keys.admin.hset(keys.base + "meta", "concurrency", text)
    queue.enqueue_many([b"1", b"2", b"3"])

    assert queue.concurrency() is None
    queue.check_ceiling()
    jobs = queue.claim_many(2)
    assert len(jobs) == 2
    queue.complete_and_claim(jobs[0])
    fail(queue, jobs[1])
    assert queue.counts()["active"] == 1


def test_rate_limit_is_read_as_an_operator_wrote_it(queue: Queue, keys: Keys) -> None:
    assert (queue.rate_limit(), queue.rate_ttl_ms()) == (0, 0)
    keys.admin.hset(keys.base + "meta", "max", 10)
    keys.admin.set(keys.base + "limiter", 9, px=HOUR)
    assert (queue.rate_limit(), queue.rate_ttl_ms()) == (10, 0)
    assert HOUR - 10_000 < queue.rate_ttl_ms(9) <= HOUR
    keys.admin.incr(keys.base + "limiter")
    assert HOUR - 10_000 < queue.rate_ttl_ms() <= HOUR
    assert queue.rate_ttl_ms(11) == 0
    keys.admin.persist(keys.base + "limiter")
    assert queue.rate_ttl_ms() == 0


def test_settings_are_kept_apart(queue: Queue, keys: Keys) -> None:
    queue.set_events(True)
    queue.set_concurrency(3)
    queue.pause()
    assert keys.admin.hgetall(keys.base + "meta") == {
        b"events": b"1",
        b"concurrency": b"3",
        b"paused": b"1",
    }
    queue.set_events(False)
    queue.resume()
    assert keys.admin.hgetall(keys.base + "meta") == {b"concurrency": b"3"}


# Reads.


def test_metrics_count_what_ended(queue: Queue, keys: Keys) -> None:
    assert queue.metrics() == {"completed": Metric(0, 0), "failed": Metric(0, 0)}
    queue.enqueue_many([b"1", b"2", b"3"])
    first, second, third = queue.claim_many(3)
    queue.complete(first)
    queue.complete(second)
    fail(queue, third)
    keys.admin.rpush(keys.base + "metrics:failed:data", "1", "2")

    assert queue.metrics() == {"completed": Metric(2, 0), "failed": Metric(1, 2)}


def test_peek_shows_who_is_next(queue: Queue, keys: Keys) -> None:
    ids = [receipt.job_id for receipt in queue.enqueue_many([b"1", b"2", b"3"])]
    for at_ms in (7, 5):
        queue.enqueue(b"q", run_at_ms=at_ms)
    assert queue.peek() == [Entry(id, 0) for id in ids]
    assert queue.peek("pending", 1, offset=1) == [Entry(ids[1], 0)]
    assert queue.peek("pending", 5, offset=3) == []
    assert [entry.score for entry in queue.peek("schedule")] == [5, 7]
    job = claim(queue)
    [entry] = queue.peek("active")
    assert entry.job_id == job.id
    assert abs(entry.score - now_ms(keys.admin) - HOUR) < 2_000
    fail(queue, job)
    assert queue.peek("dead") == [Entry(job.id, 0)]
    with pytest.raises(ValueError, match="place is one of"):
        queue.peek("lane")


def test_peek_at_what_is_no_job_breaks_the_contract(queue: Queue, keys: Keys) -> None:
    keys.admin.zadd(keys.base + "dead", {"whatever": 0})
    with pytest.raises(ContractError):
        queue.peek("dead")


def test_mint_is_not_asked_for_a_known_id(queues: Queues) -> None:
    class Silent(Mint):
        def mint(self) -> str:
            raise AssertionError("nobody needs an id")

    assert queues(mint=Silent()).enqueue(b"p", job_id=ID).admitted


def test_peek_shows_a_score_that_is_no_time(queue: Queue, keys: Keys) -> None:
    """Somebody else's score is no reason to see nothing of the others."""
    id = queue.enqueue(b"", delay_ms=60_000).job_id
    other = queue.enqueue(b"", delay_ms=60_000).job_id
    keys.admin.execute_command("ZADD", keys.base + "schedule", "inf", id)

    assert [entry.job_id for entry in queue.peek("schedule")] == [other, id]

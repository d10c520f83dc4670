"""Scripts on keys that the verbs alone never make: each answer to the letter, each key they leave.

What a script does does not hang on the shell that sends it: one does for all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha1
from typing import Any, TypeAlias

import pytest

import emq
from emq import Item, Queue
from emq.ids import Mint
from emq.plans import work
from emq.scripts import CLAIM, FORGET, OBLITERATE, RECOUNT, REPAIR
from resp import ServerError

from .conftest import Keys
from .shells import Shell

GROUP, OTHER_GROUP = "PRT0EEMl9I7KXg", "PRT0EEMl9I7KXh"
LANE, OTHER_LANE = f"g:{GROUP}:pending", f"g:{OTHER_GROUP}:pending"
FAR = 4 * 10**12  # a score that no clock comes to

_mint = Mint().mint


class Scene:
    """A queue's keys, and hands that write and read them."""

    def __init__(self, shell: Shell, keys: Keys, name: str) -> None:
        self.admin, self.base = keys.admin, keys.base
        self.keys = keys
        self.queue = shell.queue(name)
        self._run = shell.connector.run

    def row(self, **fields: Any) -> str:
        id = _mint()
        self.admin.hset(f"{self.base}job:{id}", mapping=fields)
        return id

    def job(self, place: str | None = None, score: int = 0, **fields: Any) -> str:
        """A job, in a place if one is named."""
        id = self.row(**{"state": "pending", "attempts": "0", "payload": "p", **fields})
        return self.put(place, id, score) if place else id

    def put(self, place: str, id: str, score: int = 0) -> str:
        self.admin.zadd(self.base + place, {id: score})
        return id

    def ring(self, *groups: str) -> None:
        self.admin.rpush(self.base + "ring", *groups)

    def count(self, group: str, count: int) -> None:
        self.admin.hset(self.base + "gactive", group, count)

    def counts(self) -> dict[bytes, bytes]:
        counts: dict[bytes, bytes] = self.admin.hgetall(self.base + "gactive")
        return counts

    def in_ring(self) -> list[str]:
        return [group.decode() for group in self.admin.lrange(self.base + "ring", 0, -1)]

    def repair(self, *names: str, mend: bool = True) -> list[tuple[str, str, str, bool]]:
        """What is found: the name, the fault, the detail, and whether it was mended."""
        said = self._run(REPAIR(base=self.base, mend=int(mend), names=names))
        texts = [text.decode() for text in said]
        return [
            (name, fault, detail, {"1": True, "0": False}[mended])
            for name, fault, detail, mended in zip(*[iter(texts)] * 4, strict=True)
        ]

    def recount(self, limit: int = 100, *, mend: bool = True) -> Any:
        return self._run(RECOUNT(base=self.base, mend=int(mend), limit=limit))

    def now_ms(self) -> int:
        seconds, microseconds = self.admin.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def claim(self) -> Any:
        return self._run(CLAIM(base=self.base, lease_ms=None))

    def take(self) -> Any:
        """Take nothing, and see to what is late."""
        return self._run(
            work.take(self.queue.keys, 0, 60_000, max_stalled=99, wait_ms=5000, waiter="w")
        )

    def forget(self, *suffixes: str) -> Any:
        return self._run(FORGET(base=self.base, suffixes=suffixes))

    def obliterate(self, budget: int, *, force: bool = False) -> Any:
        return self._run(OBLITERATE(base=self.base, force=int(force), budget=budget))

    def leave(self, waiter: str, *, blocks: bool) -> Any:
        return self._run(work.leave(self.queue.keys, waiter, blocks=blocks))


@pytest.fixture
def scene(shells: Callable[[str, int], Shell], keys: Keys, fresh_name: str) -> Scene:
    """A queue that nobody used."""
    return Scene(shells("threads", 3), keys, fresh_name)


Made: TypeAlias = Callable[[Scene], str]

FAULTS: dict[str, tuple[Made, str, str]] = {
    "rowless": (lambda s: s.put("schedule", _mint()), "rowless", "schedule"),
    "rowless in two": (
        lambda s: s.put("active", s.put("pending", _mint())),
        "rowless",
        "pending active",
    ),
    "ghost": (lambda s: s.put("schedule", s.row(state="scheduled")), "ghost", "schedule"),
    "ghost of a lane": (lambda s: s.put(LANE, s.row(group=GROUP)), "ghost", "lane"),
    "lock": (lambda s: s.put("pending", s.row(lock="1")), "lock", "pending"),
    "lost": (lambda s: s.job(state="active"), "lost", "active"),
    "lost without a state": (lambda s: s.row(payload="p"), "lost", ""),
    "lost and dead": (lambda s: s.job(state="dead"), "lost", "dead"),
    "state": (lambda s: s.job("schedule", state="active"), "state", "active schedule"),
    "no state": (lambda s: s.put("dead", s.row(payload="p")), "state", " dead"),
    "state of a lane": (lambda s: s.job(LANE, group=GROUP, state="dead"), "state", "dead lane"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_and_mended(scene: Scene, name: str) -> None:
    make, fault, detail = FAULTS[name]
    id = make(scene)
    before = scene.keys.dumped()

    assert scene.repair(id, mend=False) == [(id, fault, detail, False)]
    assert scene.keys.dumped() == before
    assert scene.repair(id) == [(id, fault, detail, True)]
    left = scene.repair(id)
    # A ghost's row is left, in no place any more.
    assert left == ([(id, "ghost", "", False)] if fault == "ghost" else [])


def test_a_job_that_is_lost_and_dead_is_first_among_the_dead(scene: Scene) -> None:
    id = scene.job(state="dead")

    scene.repair(id)

    assert scene.keys.score("dead", id) == 0


def test_a_ghost_that_leaves_active_leaves_room_in_its_lane(scene: Scene) -> None:
    scene.admin.hset(scene.base + "glimit", GROUP, 1)
    scene.count(GROUP, 1)
    scene.job(LANE, group=GROUP)
    ghost = scene.put("active", scene.row(group=GROUP), FAR)

    assert scene.repair(ghost) == [(ghost, "ghost", "active", True)]

    assert scene.counts() == {}
    assert scene.in_ring() == [GROUP]


@pytest.mark.parametrize("place", ["pending", "schedule", "dead"])
def test_a_ghost_that_leaves_another_place_was_not_counted(scene: Scene, place: str) -> None:
    scene.count(GROUP, 2)
    scene.job(LANE, group=GROUP)
    scene.ring(GROUP)

    scene.repair(scene.put(place, scene.row(group=GROUP)))

    assert scene.counts() == {GROUP.encode(): b"2"}
    assert scene.in_ring() == [GROUP]


@pytest.mark.parametrize("others", [False, True])
def test_a_lane_is_served_as_long_as_something_is_in_it(scene: Scene, others: bool) -> None:
    ghost = scene.put(LANE, scene.row(group=GROUP))
    if others:
        scene.job(LANE, group=GROUP)
    scene.ring(GROUP, OTHER_GROUP)

    scene.repair(ghost)

    assert scene.in_ring() == [GROUP, OTHER_GROUP][not others :]


@pytest.mark.parametrize(("own", "mend"), [(OTHER_GROUP, True), (OTHER_GROUP, False), ("", True)])
def test_a_stray_entry_is_told_with_the_rows_own_group(scene: Scene, own: str, mend: bool) -> None:
    id = scene.job(LANE, group=own) if own else scene.job(LANE)
    scene.ring(GROUP)
    entry = f"g:{GROUP}:{id}"

    told = scene.repair(entry, mend=mend)

    if mend:
        assert told == [(entry, "stray", own, True), (id, "lost", "pending", True)]
        assert scene.keys.members(OTHER_LANE if own else "pending") == [id]
        assert scene.keys.members(LANE) == []
        assert scene.in_ring() == ([own] if own else [])
    else:
        assert told == [(entry, "stray", own, False)]


def test_an_entry_of_a_lane_without_a_row_goes(scene: Scene) -> None:
    entry = f"g:{GROUP}:{scene.put(LANE, _mint())}"
    scene.ring(GROUP, GROUP)

    assert scene.repair(entry) == [(entry, "rowless", "lane", True)]
    assert scene.keys.members(LANE) == []
    assert scene.in_ring() == []


def test_a_deduplication_key_whose_job_is_there_is_right(scene: Scene) -> None:
    scene.admin.set(scene.base + "de:k", scene.job("pending"))

    assert scene.repair("de:k", "de:absent") == []
    assert scene.admin.exists(scene.base + "de:k")


# How many of each lane are in flight.


@pytest.mark.parametrize(
    ("held", "said", "told"),
    [
        (0, None, []),
        (0, 0, [b"0", b"0"]),  # a count of nothing is not kept
        (0, 3, [b"3", b"0"]),
        (1, 1, []),
        (1, None, [b"0", b"1"]),
        (2, None, [b"0", b"2"]),
        (2, 1, [b"1", b"2"]),
        (2, 3, [b"3", b"2"]),
    ],
)
def test_lanes_are_counted_anew(
    scene: Scene, held: int, said: int | None, told: list[bytes]
) -> None:
    for _ in range(held):
        scene.job("active", FAR, group=GROUP, state="active")
    if said is not None:
        scene.count(GROUP, said)
    before = scene.keys.dumped()
    answer = [GROUP.encode(), *told] if told else []

    assert scene.recount(mend=False) == answer
    assert scene.keys.dumped() == before
    assert scene.recount(limit=held) == answer
    assert scene.counts() == ({GROUP.encode(): b"%d" % held} if held else {})


def test_more_than_the_limit_is_not_counted(scene: Scene) -> None:
    for _ in range(2):
        scene.job("active", FAR, group=GROUP, state="active")

    assert scene.recount(limit=1) is None
    assert scene.counts() == {}


def test_a_lane_that_proves_full_is_served_no_more(scene: Scene) -> None:
    scene.admin.hset(scene.base + "glimit", GROUP, 1)
    scene.job("active", FAR, group=GROUP, state="active")
    scene.job(LANE, group=GROUP)
    scene.ring(GROUP)

    assert scene.recount() == [GROUP.encode(), b"0", b"1"]
    assert scene.in_ring() == []


# Claims among what is no job.


def test_a_claim_drops_a_hundred_entries_without_a_row_and_no_more(scene: Scene) -> None:
    for _ in range(150):
        scene.put("pending", _mint())

    # The claim asks again, as long as it is told that there may be more.
    assert scene.claim() == 1
    assert len(scene.keys.members("pending")) == 49
    assert scene.claim() is None


def test_a_claim_takes_no_more_than_was_asked_for(scene: Scene) -> None:
    scene.put("pending", "JOB00000000000")
    jobs = [scene.job("pending") for _ in range(3)]

    assert [job.id for job in scene.queue.claim_many(2)] == jobs[:2]
    assert scene.keys.members("pending") == jobs[2:]


# Wakes.


def test_whoever_waits_is_woken_for_a_lease_that_ends_before_its_wait(scene: Scene) -> None:
    scene.put("parked", "w", FAR)
    assert scene.queue.claim(lease_ms=1000) is None
    for lease_ms, wakes in ((5000, 0), (4999, 1)):
        scene.job("pending")
        scene.queue.claim(lease_ms=lease_ms)
        assert scene.admin.llen(scene.base + "rouse") == wakes


def test_nobody_is_woken_for_what_falls_due_as_its_wait_ends(scene: Scene) -> None:
    scene.put("parked", "w", FAR)

    scene.queue.enqueue(b"p", run_at_ms=FAR)
    assert scene.admin.llen(scene.base + "rouse") == 0
    scene.queue.enqueue(b"p", run_at_ms=FAR - 1)
    assert scene.admin.llen(scene.base + "rouse") == 1


def test_nobody_is_woken_by_a_job_that_ends_where_no_ceiling_is(scene: Scene) -> None:
    scene.job("pending")
    scene.job("pending")
    job = scene.queue.claim()
    assert job is not None
    scene.put("parked", "w", FAR)

    scene.queue.complete(job)

    assert scene.admin.llen(scene.base + "rouse") == 0


def test_nobody_is_woken_where_nobody_can_be_seen_to_wait(scene: Scene) -> None:
    scene.admin.set(scene.base + "parked", "a text")

    scene.queue.enqueue(b"p")

    assert not scene.admin.exists(scene.base + "rouse")


@pytest.mark.parametrize("stalled", [1, 2, 6, 7, 8, 20])
def test_how_long_a_job_that_stalled_again_is_apart(scene: Scene, stalled: int) -> None:
    ids = [scene.job("active", 1, state="active", stalled=stalled) for _ in range(8)]

    begun = scene.now_ms()
    scene.take()
    ended = scene.now_ms()

    most_ms = 1000 * 2 ** min(stalled + 1 - 2, 6)
    for id in ids:
        share = int(sha1(f"{id}{stalled + 1}".encode()).hexdigest()[:8], 16) / 2**32
        due = scene.keys.score("schedule", id)
        assert due is not None
        assert begun <= due - int(share * most_ms) <= ended
        assert scene.keys.row(id)["state"] == b"scheduled"


def test_who_listens_hears_where_a_stalled_job_waits(scene: Scene) -> None:
    scene.queue.set_events(True)
    listener = scene.admin.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(scene.base + "events")
    assert listener.get_message(timeout=5) is None

    told = {}
    for stalled in (0, 1):
        scene.job("active", 1, state="active", stalled=stalled)
        scene.take()
        told[stalled] = json.loads(listener.get_message(timeout=5)["data"])["to"]

    assert told == {0: "pending", 1: "scheduled"}
    listener.close()


# A queue that goes away, and a worker that does.


@pytest.mark.parametrize("place", ["pending", "active", "schedule", "dead"])
def test_a_queue_with_jobs_is_not_forgotten(scene: Scene, place: str) -> None:
    scene.queue.pause()
    id = scene.job(place)

    assert scene.forget("meta") == 1
    assert scene.keys.members(place) == [id]
    assert scene.admin.exists(scene.base + "meta")


@pytest.mark.parametrize("where", ["ring", "paused"])
def test_a_queue_with_laned_jobs_is_not_forgotten(scene: Scene, where: str) -> None:
    scene.queue.pause()
    id = scene.job(LANE, group=GROUP)
    if where == "ring":
        scene.ring(GROUP)
    else:
        scene.admin.sadd(scene.base + "paused", GROUP)

    assert scene.forget("meta") == 1
    assert scene.keys.members(LANE) == [id]
    assert scene.admin.exists(scene.base + "meta")


def test_jobs_of_a_paused_lane_are_obliterated_within_the_budget(scene: Scene) -> None:
    scene.queue.pause()
    jobs = [scene.job(LANE, group=GROUP) for _ in range(2)]
    scene.admin.sadd(scene.base + "paused", GROUP)

    assert scene.obliterate(1) == 1
    assert scene.keys.members(LANE) == jobs[1:]
    assert scene.obliterate(2) == 0
    assert scene.keys.members(LANE) == []


@pytest.mark.parametrize(
    ("place", "following"), [("active", "pending"), ("pending", "schedule"), ("schedule", "dead")]
)
def test_a_budget_that_a_place_uses_up_leaves_the_next_alone(
    scene: Scene, place: str, following: str
) -> None:
    scene.queue.pause()
    scene.job(place)
    others = [scene.job(following) for _ in range(2)]

    assert scene.obliterate(1, force=True) == 1
    assert scene.keys.members(place) == []
    assert scene.keys.members(following) == others


def test_who_listens_hears_once_that_a_queue_is_gone(scene: Scene) -> None:
    scene.queue.pause()
    scene.queue.set_events(True)
    listener = scene.admin.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(scene.base + "events")
    assert listener.get_message(timeout=5) is None

    assert scene.forget("paused", "meta", "ring") == 0
    scene.admin.publish(scene.base + "events", '{"event": "the next"}')

    heard = [json.loads(listener.get_message(timeout=5)["data"])["event"] for _ in range(2)]
    assert heard == ["obliterated", "the next"]
    listener.close()


def test_the_word_for_a_worker_that_leaves_goes_away_by_itself(scene: Scene) -> None:
    own = scene.base + "rouse:w"

    scene.leave("w", blocks=True)
    assert scene.admin.lrange(own, 0, -1) == [b"1"]
    assert 0 < scene.admin.pttl(own) <= 6000

    scene.leave("w", blocks=False)
    assert not scene.admin.exists(own)


def test_whoever_waits_for_a_job_that_is_removed_is_told_so(scene: Scene) -> None:
    id = scene.job("pending", result_ttl=60_000)
    listener = scene.admin.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(f"{scene.base}job:{id}:result")
    assert listener.get_message(timeout=5) is None

    scene.queue.remove(id)

    assert listener.get_message(timeout=5)["data"] == b"removed"
    listener.close()


def test_a_result_has_nothing_of_one_before_it(scene: Scene) -> None:
    id = scene.queue.enqueue(b"p", result_ttl_ms=60_000).job_id
    key = f"{scene.base}job:{id}:result"
    scene.admin.hset(key, mapping={"state": "dead", "reason": "boom"})

    job = scene.queue.claim()
    assert job is not None
    scene.queue.complete(job, b"done")

    assert scene.admin.hgetall(key) == {b"state": b"completed", b"result": b"done"}


# Keys of another's in the way.

Verb: TypeAlias = Callable[[Queue, Any], Any]

IN_THE_WAY: dict[str, tuple[str, Verb]] = {
    "retry": ("schedule", lambda q, job: q.retry(job, delay_ms=1000, max_attempts=9, error="e")),
    "retry, the last": ("dead", lambda q, job: q.retry(job, delay_ms=1, max_attempts=1, error="e")),
    "delay": ("schedule", lambda q, job: q.delay(job, 1000)),
    "complete_and_claim": ("pending", lambda q, job: q.complete_and_claim(job)),
    "reap": ("pending", lambda q, job: q.reap()),
    "give_back": ("pending", lambda q, job: q.give_back([job])),
    "promote": ("pending", lambda q, job: q.promote()),
    "reprocess": ("pending", lambda q, job: q.reprocess(job.id)),
    **{
        f"remove beside {place}": (place, lambda q, job: q.remove(job.id))
        for place in ("pending", "active", "schedule", "dead")
    },
    **{
        f"sweep beside {place}": (place, lambda q, job: q.sweep_stalled())
        for place in ("pending", "schedule", "dead")
    },
    **{
        f"enqueue_many beside {place}": (place, many)
        for place, many in {
            "pending": lambda q, job: q.enqueue_many([Item(b"p", delay_ms=1), b"p"]),
            "schedule": lambda q, job: q.enqueue_many([b"p", Item(b"p", delay_ms=1), b"p"]),
        }.items()
    },
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_a_verb_whose_way_is_blocked_has_written_nothing(scene: Scene, name: str) -> None:
    place, verb = IN_THE_WAY[name]
    scene.queue.enqueue(b"p")
    job = scene.queue.claim()
    assert job is not None
    scene.put("active", job.id, 1)
    if name == "promote":
        scene.job("schedule", 1, state="scheduled")
    if name == "reprocess":
        scene.queue.retry(job, delay_ms=1, max_attempts=1, error="e")
    scene.admin.delete(scene.base + place)
    scene.admin.set(scene.base + place, "a text")
    before = scene.keys.dumped()

    with pytest.raises(ServerError, match="WRONGTYPE"):
        verb(scene.queue, job)

    assert scene.keys.dumped() == before


def child(scene: Scene, grandparent: str | None = None) -> tuple[Any, str]:
    """A claimed job, and the base of the keys of its parent, which waits for it."""
    above = scene.job(state="awaiting_children")
    if grandparent is not None:
        scene.admin.hset(f"{scene.base}job:{above}", "parent", grandparent)
    scene.admin.set(f"{scene.base}job:{above}:dependencies", 1)
    scene.job("pending", parent=above)
    job = scene.queue.claim()
    assert job is not None
    return job, f"{scene.base}job:{above}"


@pytest.mark.parametrize(
    "key", [":processed", ":failed", ":unsuccessful", ":dependencies", "pending", "dead"]
)
def test_a_parent_that_cannot_be_told_leaves_its_child_as_it_was(scene: Scene, key: str) -> None:
    job, parent = child(scene)
    key = parent + key if key.startswith(":") else scene.base + key
    scene.admin.delete(key)
    scene.admin.set(key, "a text")
    before = scene.keys.dumped()

    with pytest.raises(ServerError):
        scene.queue.complete(job)

    assert scene.keys.dumped() == before


@pytest.mark.parametrize(
    "where", ["above its parent", "in another queue", "nowhere", "nowhere, in so many words"]
)
def test_an_outbox_that_is_none_is_in_the_way_of_who_needs_it(scene: Scene, where: str) -> None:
    above = {"above its parent": _mint(), "nowhere, in so many words": ""}.get(where)
    job, _ = child(scene, above)
    if where == "in another queue":
        scene.admin.hset(f"{scene.base}job:{job.id}", "parent_queue", "other")
    scene.admin.set(scene.base + "flow:outbox", "a text")
    before = scene.keys.dumped()

    if where.startswith("nowhere"):
        scene.queue.complete(job)
        assert scene.queue.counts()["active"] == 0
    else:
        with pytest.raises(ServerError, match="WRONGTYPE"):
            scene.queue.complete(job)
        assert scene.keys.dumped() == before


@pytest.mark.parametrize("count", ["a text", str(2**63 - 1)])
def test_a_counter_of_anothers_keeps_no_job_from_its_end(scene: Scene, count: str) -> None:
    scene.admin.hset(scene.base + "metrics:completed", "count", count)
    scene.job("pending")
    job = scene.queue.claim()
    assert job is not None

    scene.queue.complete(job)

    assert scene.queue.counts()["active"] == 0
    assert scene.admin.hget(scene.base + "metrics:completed", "count") == count.encode()


def test_an_outcome_takes_the_place_of_what_is_there(scene: Scene) -> None:
    id = scene.job("pending", result_ttl=60_000)
    scene.admin.set(f"{scene.base}job:{id}:result", "a text")
    job = scene.queue.claim()
    assert job is not None

    scene.queue.retry(job, delay_ms=1, max_attempts=1, error="boom")

    assert scene.admin.hget(f"{scene.base}job:{id}:result", "state") == b"dead"


@pytest.mark.parametrize("said", ["key", "field"])
def test_a_lock_is_its_holders_as_a_key_or_as_a_field(scene: Scene, said: str) -> None:
    scene.job("pending")
    job = scene.queue.claim()
    assert job is not None
    if said == "key":
        scene.admin.set(f"{scene.base}job:{job.id}:lock", job.token)
    else:
        scene.admin.hset(f"{scene.base}job:{job.id}", "lock", job.token)

    scene.queue.unlock(job)

    assert not scene.admin.exists(f"{scene.base}job:{job.id}:lock")
    assert "lock" not in scene.keys.row(job.id)


def test_what_is_no_fault_of_a_key_is_raised(server: Any, scene: Scene) -> None:
    """A server that forbids a command has not met another's key."""
    user = f"limited-{scene.queue.name}"
    server.admin.execute_command(
        "ACL", "SETUSER", user, "on", "nopass", "~*", "&*", "+@all", "-hincrby"
    )
    scene.job("pending")
    try:
        with emq.connect(server.url.replace("//", f"//{user}:any@")) as connector:
            queue = Queue(connector, scene.queue.name)
            job = queue.claim()
            assert job is not None
            with pytest.raises(ServerError, match=r"(?i)acl|noperm|permission"):
                queue.complete(job)
    finally:
        server.admin.execute_command("ACL", "DELUSER", user)

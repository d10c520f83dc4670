"""What another program may have left in a queue's keys, and every verb beside it.

Whatever it is: a verb that raises has left each job where it was, one that does not has put it in
one place, and what is in the way of one job does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from emq import Item, Queue
from emq.errors import JobError
from emq.ids import Mint
from emq.plans.work import Taken, take
from emq.scripts import RECOUNT
from resp import ServerError

from .conftest import Keys
from .shells import Shell

GROUP = "PRT0EEMl9I7KXg"
LANE = f"g:{GROUP}:pending"
FAR = 4 * 10**12  # a score that no clock comes to
PLACES = ("pending", "active", "schedule", "dead", LANE)

Ids = dict[str, str]


class Crowd:
    """A queue with a job of each kind, `ids` by what it is."""

    def __init__(self, shell: Shell, queue: Queue, keys: Keys) -> None:
        self.shell, self.queue, self.keys = shell, queue, keys
        self.ids: Ids = {}
        parent = self._add("parent", None)
        keys.admin.set(f"{keys.base}job:{parent}:dependencies", 9)
        for kind, score in (("held", FAR), ("lapsed", 1)):
            self._add(kind, "active", score)
            self._add(f"{kind} laned", "active", score, group=GROUP)
            self._add(f"{kind} child", "active", score, parent=parent)
            self._add(f"{kind} away", "active", score, parent=parent, parent_queue="other")
            self._add(f"{kind} kept", "active", score, dedup=f"d-{kind}", result_ttl=60_000)
            keys.admin.set(f"{keys.base}de:d-{kind}", self.ids[f"{kind} kept"])
        for kind in ("first", "second", "third"):
            self._add(kind, "pending")
            self._add(f"due {kind}", "schedule", 1)
        self._add("flat laned", "pending", group=GROUP)
        self._add("last", "pending")
        self._add("due laned", "schedule", 1, group=GROUP)
        self._add("dead", "dead")
        self._add("dead laned", "dead", group=GROUP)
        self._add("waiting", LANE, group=GROUP)
        keys.admin.hset(keys.base + "gactive", GROUP, 2)
        keys.admin.hset(keys.base + "glimit", GROUP, 9)
        keys.admin.zadd(keys.base + "parked", {"somebody": FAR})

    def _add(self, kind: str, place: str | None, score: int = 0, **more: Any) -> str:
        id = self.ids[kind] = Mint().mint()
        states = {LANE: "pending", "schedule": "scheduled", None: "awaiting_children"}
        row = {"state": states.get(place, place), "attempts": "1", "payload": "p", **more}
        self.keys.admin.hset(f"{self.keys.base}job:{id}", mapping=row)
        if place is not None:
            self.keys.admin.zadd(self.keys.base + place, {id: score})
        return id

    def row(self, kind: str) -> str:
        return f"{self.keys.base}job:{self.ids[kind]}"

    def take(self, max_stalled: int = 9) -> Taken:
        queue, run = self.queue, self.shell.connector.run
        terms: dict[str, Any] = {"max_stalled": max_stalled, "wait_ms": 50, "waiter": "w"}
        taken: Taken = run(take(queue.keys, 99, 60_000, **terms))
        return taken

    def misplaced(self) -> dict[str, list[str]]:
        """The jobs that are not in exactly one place, whose rows are there."""
        admin, base = self.keys.admin, self.keys.base
        places = [place for place in PLACES if admin.type(base + place) == b"zset"]
        found = {
            kind: [place for place in places if admin.zscore(base + place, id) is not None]
            for kind, id in self.ids.items()
        }
        return {
            kind: where
            for kind, where in found.items()
            if len(where) != 1
            and admin.type(self.row(kind)) == b"hash"
            and admin.hmget(self.row(kind), "state", "payload")[0] != b"awaiting_children"
        }


@pytest.fixture
def crowd(shell: Shell, queue: Queue, keys: Keys) -> Crowd:
    return Crowd(shell, queue, keys)


def _verbs() -> dict[str, Callable[[Crowd], Any]]:
    verbs: dict[str, Callable[[Crowd], Any]] = {
        "claim": lambda c: c.queue.claim(),
        "claim_many": lambda c: c.queue.claim_many(9),
        "take": lambda c: c.take(),
        "take and bury": lambda c: c.take(1),
        "promote": lambda c: c.queue.promote(),
        "reap": lambda c: c.queue.reap(),
        "sweep": lambda c: c.queue.sweep_stalled(9),
        "sweep and bury": lambda c: c.queue.sweep_stalled(1),
        "enqueue": lambda c: c.queue.enqueue(b"p", dedup="d-held"),
        "enqueue_many": lambda c: c.queue.enqueue_many([b"p", Item(b"p", delay_ms=1)]),
        "reprocess": lambda c: c.queue.reprocess(c.ids["dead"], reset=True),
        "reprocess laned": lambda c: c.queue.reprocess(c.ids["dead laned"], reset=True),
    }
    for kind in ("held", "held laned", "held child", "held away", "held kept", "lapsed laned"):

        def of(verb: str, kind: str = kind, **more: Any) -> Callable[[Crowd], Any]:
            return lambda c: getattr(c.queue, verb)(c.ids[kind], token=1, **more)

        def give_back(c: Crowd, kind: str = kind) -> Any:
            return c.queue.give_back([(c.ids[kind], 1)])

        def remove(c: Crowd, kind: str = kind) -> Any:
            return c.queue.remove(c.ids[kind])

        verbs |= {
            f"complete {kind}": of("complete", result=b"r"),
            f"complete and claim {kind}": of("complete_and_claim", result=b"r"),
            f"retry {kind}": of("retry", delay_ms=1, max_attempts=9, error="e"),
            f"bury {kind}": of("retry", delay_ms=1, max_attempts=1, error="e"),
            f"delay {kind}": of("delay", delay_ms=1, excuse=True),
            f"give back {kind}": give_back,
            f"remove {kind}": remove,
        }
    return verbs


def _key(suffix: str) -> Callable[[Crowd], Any]:
    def set_key(crowd: Crowd) -> None:
        crowd.keys.admin.set(crowd.keys.base + suffix, "another's")

    return set_key


def _of_parent(suffix: str, value: str) -> Callable[[Crowd], Any]:
    return lambda crowd: crowd.keys.admin.set(crowd.row("parent") + suffix, value)


def _field(name: str, value: str) -> Callable[[Crowd], Any]:
    def set_field(crowd: Crowd) -> None:
        for kind in crowd.ids:
            crowd.keys.admin.hset(crowd.row(kind), name, value)

    return set_field


def _in(key: str, field: str, value: str) -> Callable[[Crowd], Any]:
    return lambda crowd: crowd.keys.admin.hset(crowd.keys.base + key, field, value)


def _row(kind: str) -> Callable[[Crowd], Any]:
    return lambda crowd: crowd.keys.admin.set(crowd.row(kind), "another's")


_KEYS = (
    *PLACES,
    *("ring", "paused", "glimit", "gactive", "wake", "parked", "rouse", "flow:outbox"),
    *("metrics:completed", "metrics:failed"),
)
HOSTILE: dict[str, Callable[[Crowd], Any]] = {
    **{f"{key} is a string": _key(key) for key in _KEYS},
    **{
        f"parent{part} {value}": _of_parent(part, value)
        for part in ("", ":processed", ":failed")
        for value in ("x",)
    },
    **{f"row of {kind} is a string": _row(kind) for kind in ("second", "due second", "lapsed")},
    "dependencies": _of_parent(":dependencies", "x"),
    **{
        f"{field} {value}": _field(field, value)
        for field in ("excused", "stalled", "result_ttl", "options", "parent")
        for value in ("x", "-1", "9" * 25)
    },
    **{f"gactive {value}": _in("gactive", GROUP, value) for value in ("x", "9" * 25)},
    **{
        f"{which} {value}": _in(f"metrics:{which}", "count", value)
        for which in ("completed", "failed")
        for value in ("x", str(2**63 - 1))
    },
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_no_job_is_lost_whatever_another_program_wrote(
    shells: Callable[[str, int], Shell],
    fresh_name: str,
    keys: Keys,
    hostile: Callable[[Crowd], Any],
) -> None:
    shell = shells("threads", 3)  # what is tried here are the scripts
    for name, verb in _verbs().items():
        crowd = Crowd(shell, shell.queue(fresh_name), keys)
        hostile(crowd)
        before = crowd.keys.dumped()
        misplaced = crowd.misplaced()
        try:
            verb(crowd)
        except (ServerError, JobError):
            # A turn, and a bulk of leases, are many steps: those before the one that fails are
            # whole.
            if not name.startswith("take"):
                assert crowd.keys.dumped() == before, name
        assert crowd.misplaced() == misplaced, name
        keys.admin.delete(*keys.admin.keys(keys.base + "*"))


@pytest.mark.parametrize("kind", ["second", "due second", "lapsed", "parent"])
def test_a_row_of_another_type_holds_up_no_other_job(crowd: Crowd, keys: Keys, kind: str) -> None:
    keys.admin.set(crowd.row(kind), "another's")

    taken = crowd.take(1)

    due = {"first", "second", "third", "last", "due first", "due second", "due third", "flat laned"}
    assert {job.id for job in taken.jobs} >= {crowd.ids[each] for each in due - {kind}}
    lapsed = {"lapsed", "lapsed laned", "lapsed kept"}
    assert set(taken.dead) >= {crowd.ids[each] for each in lapsed - {kind}}
    assert keys.score("active", crowd.ids[kind]) is None
    assert keys.admin.get(crowd.row(kind)) == b"another's"


@pytest.mark.parametrize("value", ["x", "-5", "1e3", "1.5", "nan", "inf", str(2**53), "9" * 25])
def test_a_token_is_a_number_that_settles(queue: Queue, keys: Keys, value: str) -> None:
    """A worker renews all its leases in one call: one bad token would have it lose them all."""
    id = queue.enqueue(b"p").job_id
    for field in ("attempts", "stalled", "excused"):
        keys.admin.hset(f"{keys.base}job:{id}", field, value)

    job = queue.claim()

    assert job is not None
    assert job.token == 1
    assert job.attempt == 1
    assert queue.extend_many([job], 60_000) == []
    assert queue.retry(job, delay_ms=0, max_attempts=2, error="e") == "scheduled"


@pytest.mark.parametrize("ttl", ["x", "0", "-1", "9" * 25, "1.5"])
def test_an_outcome_that_is_to_be_kept_for_no_time_is_not_kept(
    queue: Queue, keys: Keys, ttl: str
) -> None:
    ids = [queue.enqueue(b"p", dedup=f"d{i}").job_id for i in range(2)]
    for id in ids:
        keys.admin.hset(f"{keys.base}job:{id}", "result_ttl", ttl)
    done, died = queue.claim_many(2)

    queue.complete(done, b"r")
    assert queue.retry(died, delay_ms=0, max_attempts=1, error="e") == "dead"

    assert keys.admin.keys(keys.base + "*:result") == []
    assert keys.admin.keys(keys.base + "de:*") == []


def test_a_death_that_is_no_jobs_takes_no_claimed_job_along(crowd: Crowd, keys: Keys) -> None:
    keys.admin.zadd(keys.base + "active", {"junk": 1})
    keys.admin.hset(keys.base + "job:junk", mapping={"payload": "p", "attempts": "1"})

    taken = crowd.take(1)

    assert crowd.ids["first"] in {job.id for job in taken.jobs}
    assert keys.score("dead", "junk") == 0


def test_the_doctor_gets_past_a_row_of_another_type(crowd: Crowd, keys: Keys) -> None:
    keys.admin.set(crowd.row("held"), "another's")

    reply = crowd.shell.connector.run(RECOUNT(base=keys.base, mend=1, limit=99))

    assert reply is None or reply == []

"""What `tests.explore` explores: who does what, on which queue.

A scenario is a queue that was prepared, and actors: workers, a reaper, a promoter, an operator, a
producer, each with a short program. A step of a program makes a plan, out of what the actor's
earlier steps were given; where it was given nothing, there is nothing to do. Time is a step like
any other: a lease or a delay ends when its score is moved into the past. Leases, delays and locks
that nobody ends are an hour long.

`SPLIT` is what a queue without scripts would do; it must be found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from emq.ids import Mint
from emq.job import Item, Job
from emq.keyspace import Keyspace
from emq.plans import admin, jobs, reads, recovery, schedule, work
from emq.scripts import RECOUNT, REPAIR
from resp import Plan, Script

HOUR: Final = 3_600_000
PAST: Final = 1  # the score of what is over
_mint = Mint(node=1, clock=lambda: 1_800_000_000_000)
J1, J2, J3 = (_mint.mint() for _ in range(3))
G1: Final = "PRT0EEMl9I7KXg"
SHORT: Final = {J1: "J1", J2: "J2", J3: "J3", G1: "G1"}

Held: TypeAlias = tuple[Job, ...]


@dataclass(frozen=True)
class Step:
    """One verb of a program.

    Attributes:
        told: What to call it.
        plan: Makes its plan, from what its actor was given last; None where it can do nothing.
        claims: What it answers is what its actor holds from then on.
    """

    told: str
    plan: Callable[[Keyspace, Held], Plan[Any] | None]
    claims: bool = False


class Finished(NamedTuple):
    """What a plan answers that completed a job without a script."""

    id: str
    token: int


Program: TypeAlias = tuple[Step, ...]

# What an invariant is about; a scenario may watch some of them only.
WATCHED: Final = {
    "answer": "every answer is true, and none is an unexpected error",
    "count": "metrics, lanes' counts and the ring add up",
    "end": "what is left can be done, exactly once",
    "fence": "the holder of a job may settle it, and nobody else",
    "left": "nothing is left of a job that is gone",
    "lost": "no job is gone that nobody completed, removed or drained",
    "place": "a job is in exactly one place, and its row says so",
    "refused": "a call that is refused, or that only reads, changes no byte",
    "twice": "no job is completed twice",
    "wake": "who found nothing is parked, and is woken where a job can be claimed",
}


@dataclass(frozen=True)
class Scenario:
    """A queue, prepared, and those who meet at it.

    Attributes:
        actors: Each one's program, by name.
        start: Prepares the queue, before the first of them.
        watches: The invariants that must hold.
    """

    name: str
    actors: Mapping[str, Program]
    start: Program
    watches: frozenset[str] = field(default=frozenset(WATCHED))


# Workers.


def _of_held(
    told: str, plan: Callable[[Keyspace, Job], Plan[Any]], *, claims: bool = False
) -> Callable[..., Step]:
    """Make the step that does something to one of the jobs that its actor holds."""

    def nth(n: int = 0) -> Step:
        return Step(
            told if n == 0 else f"{told} (job {n + 1})",
            lambda keys, held: plan(keys, held[n]) if len(held) > n else None,
            claims,
        )

    return nth


CLAIM: Final = Step("claim", lambda keys, _: jobs.claim(keys, HOUR), claims=True)
CLAIM_TWO: Final = Step("claim two", lambda keys, _: jobs.claim_many(keys, 2, HOUR), claims=True)

complete = _of_held("complete", lambda keys, job: jobs.complete(keys, job, b"done", None, None))
complete_and_claim = _of_held(
    "complete and claim",
    lambda keys, job: jobs.complete_and_claim(keys, job, HOUR, None, None, None),
    claims=True,
)
retry = _of_held("retry", lambda keys, job: jobs.retry(keys, job, HOUR, 9, "boom", None))
give_up = _of_held("give up", lambda keys, job: jobs.retry(keys, job, HOUR, 1, "boom", None))
delay = _of_held("delay", lambda keys, job: schedule.delay(keys, job, HOUR, None, None, False))
excuse = _of_held(
    "delay, excused", lambda keys, job: schedule.delay(keys, job, HOUR, None, None, True)
)
extend = _of_held("extend", lambda keys, job: recovery.extend(keys, job, HOUR, None))
give_back = _of_held("give back", lambda keys, job: recovery.give_back(keys, [job]))
lock = _of_held("lock", lambda keys, job: recovery.lock(keys, job, HOUR, None))
unlock = _of_held("unlock", lambda keys, job: recovery.unlock(keys, job, None))
progress = _of_held("progress", lambda keys, job: admin.progress(keys, job, "half", None))
log = _of_held("log", lambda keys, job: admin.log(keys, job, "line", 1, None))

EXTEND_ALL: Final = Step(
    "extend all", lambda keys, held: recovery.extend_many(keys, held, HOUR, None)
)
EXTEND_LOCKED: Final = Step(
    "extend all, locked", lambda keys, held: recovery.extend_many(keys, held, HOUR, HOUR)
)
GIVE_ALL_BACK: Final = Step("give all back", recovery.give_back)


def take(waiter: str, count: int = 1) -> Step:
    """A worker's turn, parked where it brings nothing."""
    return Step(
        "take",
        lambda keys, _: work.take(
            keys,
            count,
            HOUR,
            max_stalled=2,
            wait_ms=work.LONGEST_WAIT_MS,
            waiter=waiter,
        ),
        claims=True,
    )


def settle_and_take(waiter: str) -> Step:
    """Complete all and take the next turn: one flush, but a step for each command."""
    return Step(
        "settle and take",
        lambda keys, held: work.settle_and_take(
            keys,
            [work.Completed(job) for job in held],
            1,
            HOUR,
            max_stalled=2,
            wait_ms=work.LONGEST_WAIT_MS,
            waiter=waiter,
        ),
        claims=True,
    )


def leave(waiter: str) -> Step:
    """A worker waits no more."""
    return Step("leave", lambda keys, _: work.leave(keys, waiter))


# Those who watch the time.


def lapse(id: str) -> Step:
    """A job's lease ends."""
    return _say(f"the lease of {SHORT[id]} ends", "ZADD", "active", "XX", PAST, id)


def fall_due(id: str) -> Step:
    """A job's delay ends."""
    return _say(f"the delay of {SHORT[id]} ends", "ZADD", "schedule", "XX", PAST, id)


REAP: Final = Step("reap", lambda keys, _: recovery.reap(keys, 100))
PROMOTE: Final = Step("promote", lambda keys, _: schedule.promote(keys, 100))


def sweep(most: int) -> Step:
    """Sweep the stalled; `most` stalls are death."""
    return Step(f"sweep at {most}", lambda keys, _: recovery.sweep_stalled(keys, most, 100))


# Operators and producers.

PAUSE: Final = Step("pause", lambda keys, _: admin.pause(keys))
RESUME: Final = Step("resume", lambda keys, _: admin.resume(keys))
COUNTS: Final = Step("counts", lambda keys, _: reads.counts(keys))
RECOUNTED: Final = Step("recount", lambda keys, _: RECOUNT(base=keys.base, mend=1, limit=100))


def remove(id: str, dedup: str | None = None) -> Step:
    return Step(f"remove {SHORT[id]}", lambda keys, _: admin.remove(keys, id, dedup))


def reprocess(id: str, reset: bool = False) -> Step:
    return Step(f"reprocess {SHORT[id]}", lambda keys, _: admin.reprocess(keys, id, reset))


def update_payload(id: str) -> Step:
    return Step(f"update {SHORT[id]}", lambda keys, _: admin.update_payload(keys, id, "new"))


def note(id: str) -> Step:
    """Log as an operator does, who holds no token."""
    return Step(f"log on {SHORT[id]}", lambda keys, _: admin.log(keys, id, "seen", 0, None))


def drain(include_schedule: bool) -> Step:
    told = "drain all" if include_schedule else "drain"
    return Step(told, lambda keys, _: admin.drain(keys, include_schedule))


def obliterate(force: bool, budget: int = 100) -> Step:
    told = "obliterate by force" if force else "obliterate"
    return Step(told, lambda keys, _: admin.obliterate(keys, force, budget))


def ceiling(most: int | None) -> Step:
    return Step(f"ceiling {most}", lambda keys, _: admin.set_concurrency(keys, most))


def state(id: str) -> Step:
    return Step(f"state of {SHORT[id]}", lambda keys, _: reads.state(keys, id))


def repair(*names: str) -> Step:
    """Look for what is wrong, and mend it; nothing ever is."""
    return Step("repair", lambda keys, _: REPAIR(base=keys.base, mend=1, names=names))


def enqueue(id: str, delay_ms: int | None = None, dedup: str | None = None) -> Step:
    item = Item(b"{}", job_id=id, delay_ms=delay_ms, dedup=dedup)
    told = "" if delay_ms is None else ", delayed"
    return Step(f"enqueue {SHORT[id]}{told}", lambda keys, _: jobs.enqueue(keys, _mint, item))


def enqueue_many(*ids: str) -> Step:
    items = [Item(b"{}", job_id=id) for id in ids]
    told = " ".join(SHORT[id] for id in ids)
    return Step(f"enqueue {told}", lambda keys, _: jobs.enqueue_many(keys, _mint, items))


# What nodes of another make write. One step is one command, so their verbs are scripts here.

_LANE_ENQUEUE: Final = Script(
    "lane_enqueue",
    """
local base, group, id = KEYS[1], ARGV[1], ARGV[2]
if redis.call('EXISTS', base .. 'job:' .. id) == 1 then
  return 0
end
redis.call(
  'HSET', base .. 'job:' .. id, 'state', 'pending', 'attempts', '0', 'payload', '{}', 'group', group
)
redis.call('ZADD', base .. 'g:' .. group .. ':pending', '0', id)
local limit = tonumber(redis.call('HGET', base .. 'glimit', group) or nil)
local full = limit and tonumber(redis.call('HGET', base .. 'gactive', group) or '0') >= limit
if redis.call('SISMEMBER', base .. 'paused', group) == 0 and not full
  and not redis.call('LPOS', base .. 'ring', group) then
  redis.call('RPUSH', base .. 'ring', group)
end
return 1
""",
)
_LANE_CLAIM: Final = Script(
    "lane_claim",
    """
local base = KEYS[1]
local group = redis.call('LMOVE', base .. 'ring', base .. 'ring', 'LEFT', 'RIGHT')
if not group then
  return nil
end
local lane = base .. 'g:' .. group .. ':pending'
local id = redis.call('ZPOPMIN', lane)[1]
local row = base .. 'job:' .. id
local time = redis.call('TIME')
local token = redis.call('HINCRBY', row, 'attempts', '1')
redis.call('HSET', row, 'state', 'active')
local ends = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
redis.call('ZADD', base .. 'active', string.format('%.0f', ends), id)
local active = redis.call('HINCRBY', base .. 'gactive', group, '1')
local limit = tonumber(redis.call('HGET', base .. 'glimit', group) or nil)
if (limit and active >= limit) or redis.call('EXISTS', lane) == 0 then
  redis.call('LREM', base .. 'ring', '0', group)
end
return { id, redis.call('HGET', row, 'payload'), token }
""",
)
_LANE_PAUSE: Final = Script(
    "lane_pause",
    """
local base, group = KEYS[1], ARGV[1]
redis.call('SADD', base .. 'paused', group)
return redis.call('LREM', base .. 'ring', '0', group)
""",
)
_LANE_RESUME: Final = Script(
    "lane_resume",
    """
local base, group = KEYS[1], ARGV[1]
redis.call('SREM', base .. 'paused', group)
local limit = tonumber(redis.call('HGET', base .. 'glimit', group) or nil)
local full = limit and tonumber(redis.call('HGET', base .. 'gactive', group) or '0') >= limit
if redis.call('EXISTS', base .. 'g:' .. group .. ':pending') == 1 and not full
  and not redis.call('LPOS', base .. 'ring', group) then
  redis.call('RPUSH', base .. 'ring', group)
end
return 1
""",
)
FOREIGN: Final = (_LANE_ENQUEUE, _LANE_CLAIM, _LANE_PAUSE, _LANE_RESUME)


def lane_claim(keys: Keyspace) -> Plan[Job | None]:
    """Claim as a node does that serves the lanes in turn."""
    reply = yield _LANE_CLAIM([keys.base], [HOUR])
    if reply is None:
        return None
    id, payload, token = reply
    return Job(id.decode(), payload, token, keys.queue, G1)


def lane_enqueue(id: str) -> Step:
    def plan(keys: Keyspace, _: Held) -> Plan[Any]:
        return (yield _LANE_ENQUEUE([keys.base], [G1, id]))

    return Step(f"enqueue {SHORT[id]} in G1", plan)


def _lane_pause(keys: Keyspace) -> Plan[Any]:
    return (yield _LANE_PAUSE([keys.base], [G1]))


def lane_resume(keys: Keyspace) -> Plan[Any]:
    """Let the lane be served again."""
    return (yield _LANE_RESUME([keys.base], [G1]))


LANE_CLAIM: Final = Step("claim of a lane", lambda keys, _: lane_claim(keys), claims=True)
LANE_PAUSE: Final = Step("pause G1", lambda keys, _: _lane_pause(keys))
LANE_RESUME: Final = Step("resume G1", lambda keys, _: lane_resume(keys))
LANE_LIMIT: Final = Step("limit G1 to 1", lambda keys, _: _command("HSET", keys.glimit, G1, 1))


def _flow(parent: str, children: Iterable[str], policy: str) -> Program:
    """Prepare a parent that waits for children, which are enqueued already."""
    names = tuple(children)

    def plan(keys: Keyspace, _: Held) -> Plan[None]:
        row = keys.job(parent)
        fields = ("state", "awaiting_children", "attempts", 0, "payload", "{}")
        yield ("HSET", row, *fields)
        yield ("SET", keys.dependencies(parent), len(names))
        for child in names:
            yield ("HSET", keys.job(child), "parent", parent, "parent_policy", policy)

    return (*(enqueue(child) for child in names), Step("a flow", plan))


def _command(*words: str | int) -> Plan[Any]:
    return (yield words)


def _say(told: str, verb: str, place: str, *words: str | int) -> Step:
    return Step(told, lambda keys, _: _command(verb, keys.base + place, *words))


# The scenarios.

_WORK: Final = (CLAIM, complete())

HANDMADE: Final = (
    Scenario(
        "reclaim",
        {
            "A": (CLAIM, extend(), complete()),
            "B": (*_WORK, *_WORK),
            "reaper": (lapse(J1), REAP, lapse(J1), REAP),
            "operator": (PAUSE, RESUME),
            "producer": (enqueue(J1),),
        },
        (enqueue(J1),),
    ),
    Scenario(
        "retries",
        {
            "A": (CLAIM, retry(), CLAIM, complete()),
            "B": (CLAIM, give_up()),
            "reaper": (lapse(J1), REAP),
            "promoter": (fall_due(J1), PROMOTE),
            "operator": (reprocess(J1),),
        },
        (enqueue(J1),),
    ),
    Scenario(
        "next",
        {
            "A": (CLAIM, complete_and_claim(), complete_and_claim(), complete()),
            "B": (CLAIM, complete_and_claim(), complete_and_claim(), complete()),
            "reaper": (lapse(J1), lapse(J2), REAP),
            "operator": (PAUSE, RESUME),
        },
        (enqueue_many(J1, J2),),
    ),
    Scenario(
        "batches",
        {
            "A": (CLAIM_TWO, EXTEND_ALL, complete(), GIVE_ALL_BACK),
            "B": (CLAIM_TWO, EXTEND_LOCKED, GIVE_ALL_BACK),
            "reaper": (lapse(J1), REAP),
            "operator": (remove(J2),),
        },
        (enqueue_many(J1, J2),),
    ),
    Scenario(
        "stalled",
        {
            "A": (CLAIM, extend(), complete()),
            "B": (CLAIM, retry()),
            "reaper": (lapse(J1), sweep(2), lapse(J1), sweep(2)),
            "operator": (reprocess(J1, reset=True),),
        },
        (enqueue(J1),),
    ),
    Scenario(
        "locks",
        {
            "A": (CLAIM, lock(), unlock(), complete()),
            "B": (CLAIM, lock(), give_back()),
            "reaper": (lapse(J1), REAP),
            "operator": (remove(J1), update_payload(J1)),
        },
        (enqueue(J1),),
    ),
    Scenario(
        "notes",
        {
            "A": (CLAIM, progress(), log(), complete()),
            "B": (CLAIM, log(), excuse()),
            "reaper": (lapse(J1), REAP),
            "operator": (note(J1), state(J1), COUNTS),
        },
        (enqueue(J1),),
    ),
    Scenario(
        "drain",
        {
            "A": (CLAIM, delay()),
            "promoter": (fall_due(J2), PROMOTE),
            "operator": (drain(False), drain(True)),
            "producer": (enqueue(J1), enqueue_many(J2, J3)),
        },
        (enqueue(J1), enqueue(J2, HOUR)),
    ),
    Scenario(
        "obliterate",
        {
            "A": (CLAIM, complete()),
            "operator": (PAUSE, obliterate(False)),
            "other operator": (RESUME,),
            "producer": (enqueue(J1), enqueue(J2)),
        },
        (enqueue(J1),),
    ),
    Scenario(
        "obliterate by force",
        {
            "A": (CLAIM, retry(), complete()),
            "operator": (PAUSE, obliterate(True, budget=1), obliterate(True)),
            "other operator": (RESUME,),
            "producer": (enqueue(J1, HOUR),),
        },
        (enqueue(J1), enqueue(J2)),
    ),
    Scenario(
        "obliterate a lane",
        {
            "A": (LANE_CLAIM, complete()),
            "operator": (PAUSE, obliterate(True)),
            "other operator": (LANE_PAUSE, RESUME),
            "producer": (lane_enqueue(J2), enqueue(J3)),
        },
        (lane_enqueue(J1),),
    ),
    Scenario(
        "lane",
        {
            "A": (LANE_CLAIM, complete()),
            "B": (LANE_CLAIM, give_back(), LANE_CLAIM, retry()),
            "reaper": (lapse(J1), REAP),
            "promoter": (fall_due(J1), PROMOTE),
            "operator": (LANE_PAUSE, LANE_RESUME),
        },
        (LANE_LIMIT, lane_enqueue(J1), lane_enqueue(J2)),
    ),
    Scenario(
        "lane, looked after",
        {
            "A": (LANE_CLAIM, give_up()),
            "B": (LANE_CLAIM, complete_and_claim(), complete()),
            "reaper": (lapse(J1), sweep(2)),
            "operator": (remove(J1), reprocess(J1), RECOUNTED),
            "producer": (enqueue(J3),),
        },
        (lane_enqueue(J1), lane_enqueue(J2)),
    ),
    Scenario(
        "flow",
        {
            "A": (*_WORK, *_WORK),
            "B": (CLAIM, give_up(), *_WORK),
            "reaper": (lapse(J1), sweep(1)),
            "operator": (remove(J1),),
        },
        _flow(J3, [J1, J2], "fp"),
    ),
    Scenario(
        "flow, forgiving",
        {
            "A": (*_WORK, *_WORK),
            "B": (CLAIM, give_up(), *_WORK),
            "reaper": (lapse(J1), sweep(1)),
            "operator": (reprocess(J1), drain(True)),
        },
        _flow(J3, [J1, J2], "id"),
    ),
    Scenario(
        "turns",
        {
            "A": (take("a"), settle_and_take("a"), leave("a")),
            "B": (take("b"), complete(), leave("b")),
            "promoter": (fall_due(J2), PROMOTE),
            "producer": (enqueue(J1),),
        },
        (enqueue(J2, HOUR),),
    ),
    Scenario(
        "turns, lapsed",
        {
            "A": (take("a", 2), complete(), complete(1), leave("a")),
            "B": (take("b"), GIVE_ALL_BACK, take("b")),
            "reaper": (lapse(J1), REAP),
            "operator": (PAUSE, RESUME),
        },
        (enqueue(J1), enqueue(J2)),
    ),
    Scenario(
        "ceiling",
        {
            "A": (take("a"), complete()),
            "B": (take("b"), complete_and_claim(), give_back()),
            "C": (take("c"), retry()),
            "reaper": (lapse(J1), REAP),
            "operator": (ceiling(1), remove(J1)),
        },
        (enqueue(J1), enqueue(J2)),
    ),
    Scenario(
        "deduplication",
        {
            "A": (CLAIM, complete()),
            "B": (CLAIM, give_up()),
            "operator": (remove(J1, "one"), reprocess(J1)),
            "producer": (enqueue(J1, dedup="one"), enqueue(J2, HOUR, dedup="one")),
            "promoter": (fall_due(J2), PROMOTE),
        },
        (),
    ),
    Scenario(
        "doctor",
        {
            "A": (CLAIM, retry()),
            "B": (LANE_CLAIM, complete()),
            "reaper": (lapse(J1), sweep(1)),
            "promoter": (fall_due(J1), PROMOTE),
            "operator": (repair(J1, J2, f"g:{G1}:{J2}", "de:one"), RECOUNTED, remove(J2)),
        },
        (enqueue(J1, dedup="one"), lane_enqueue(J2)),
    ),
)

SETTLING: Final = {
    "complete": complete(),
    "complete_and_claim": complete_and_claim(),
    "retry": retry(),
    "give_up": give_up(),
    "delay": delay(),
    "excuse": excuse(),
    "give_back": give_back(),
    "extend": extend(),
    "extend_many": EXTEND_ALL,
    "lock": lock(),
}


# What kind of job it is that two hold, and how it is claimed.
_KINDS: Final = {
    "": ((enqueue(J1),), CLAIM),
    ", laned": ((LANE_LIMIT, lane_enqueue(J1)), LANE_CLAIM),
    ", in a flow": (_flow(J3, [J1], "fp"), CLAIM),
}


def _pair(first: str, second: str, kind: str) -> Scenario:
    """Two verbs by two who hold the same job, one after the other, or believe so."""
    start, claim = _KINDS[kind]
    return Scenario(
        f"{first} x {second}{kind}",
        {
            "A": (claim, SETTLING[first], complete()),
            "B": (claim, SETTLING[second], complete()),
            "reaper": (lapse(J1), REAP, lapse(J1), sweep(1)),
            "promoter": (fall_due(J1), PROMOTE),
        },
        start,
    )


PAIRS: Final = tuple(
    _pair(first, second, kind) for kind in _KINDS for first in SETTLING for second in SETTLING
)


def _split_complete(keys: Keyspace, job: Job) -> Plan[Finished | None]:
    """Complete a job as a queue without scripts does: read, decide, write, a trip for each."""
    row = keys.job(job.id)
    attempts = yield ("HGET", row, "attempts")
    if attempts is None or int(attempts) != job.token:
        return None
    yield ("ZREM", keys.active, job.id)
    yield ("DEL", row)
    return Finished(job.id, job.token)


def _whole_complete(keys: Keyspace, job: Job) -> Plan[None]:
    yield from jobs.complete(keys, job, None, None, None)


def _two_workers(name: str, finish: Step, watches: frozenset[str]) -> Scenario:
    return Scenario(
        name,
        {"A": (CLAIM, finish), "B": (CLAIM, finish), "reaper": (lapse(J1), REAP)},
        (enqueue(J1),),
        watches,
    )


# Between two commands of a split completion a job is in no place; that is not the point here.
_HANDLING: Final = frozenset({"twice"})
SPLIT: Final = _two_workers("split", _of_held("complete", _split_complete)(), _HANDLING)
WHOLE: Final = _two_workers("whole", _of_held("complete", _whole_complete)(), frozenset(WATCHED))

SCENARIOS: Final = (*HANDMADE, WHOLE, *PAIRS)

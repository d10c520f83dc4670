"""The verbs of a queue, each on sets of growing length: what `bench/grow.py` times on the server.

A verb is about a handful of jobs that are put where it wants them before it is timed, and taken
away after, so that the set around them keeps its length. The sets of all lengths exist at once,
each in a database of its own, and one place of a queue is grown at a time: a verb that takes a job
from one place to another is timed with the one grown, and then with the other.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import emq
import resp
from emq import Queue, Sweep
from emq.embedded import Embedded
from emq.keyspace import Keyspace
from emq.plans.work import take
from emq.scripts import DRAIN, REPAIR, Transition
from resp import Script

_QUEUE: Final = "grow"
PLACES: Final = ("pending", "active", "schedule", "dead")
_FILLED: Final = 20_000  # jobs of one call, some 50 ms
_FAR_MS: Final = 4_000_000_000_000  # in 2096: no lease ends and nothing falls due meanwhile
_PATIENCE_S: Final = 120  # for what empties a server
_DELAY_MS: Final = 3_600_000

_FILL: Final = Script(
    "fill",
    """
local place, state, score = KEYS[1] .. ARGV[1], ARGV[2], tonumber(ARGV[3])
for i = tonumber(ARGV[4]), tonumber(ARGV[5]) do
  local id = string.format('JOB1%010d', i)
  redis.call('ZADD', place, string.format('%.0f', score > 0 and score + i or 0), id)
  redis.call('HSET', KEYS[1] .. 'job:' .. id, 'state', state, 'attempts', '1', 'payload', '{}')
end
""",
)
_PUT: Final = Script(
    "put",
    """
for i = 1, #ARGV, 5 do
  local place, state, score, attempts, id = unpack(ARGV, i, i + 4)
  redis.call('ZADD', KEYS[1] .. place, score, id)
  redis.call(
    'HSET', KEYS[1] .. 'job:' .. id, 'state', state, 'attempts', attempts, 'payload', '{}'
  )
end
""",
)
_CLEAR: Final = Script(
    "clear",
    """
for _, id in ipairs(ARGV) do
  for _, place in ipairs({ 'pending', 'active', 'schedule', 'dead' }) do
    redis.call('ZREM', KEYS[1] .. place, id)
  end
  redis.call('DEL', KEYS[1] .. 'job:' .. id)
end
redis.call('DEL', KEYS[1] .. 'parked', KEYS[1] .. 'rouse')
""",
)
_STATES: Final = {
    "pending": "pending",
    "active": "active",
    "schedule": "scheduled",
    "dead": "dead",
}


_COSTS: Final = {"zrange": "O(log n + limit)"}  # of commands, by the server's manual


class WrongWork(Exception):
    """A verb answered something else than what it is timed for."""


@dataclass(frozen=True)
class Stage:
    """Where a job is put before a verb is timed.

    Attributes:
        place: One of `PLACES`.
        score: What it is put under; None is the middle of those that are there.
        attempts: Of its row, and so the token of who holds it.
    """

    place: str
    score: int | None = 0
    attempts: int = 1


PENDING: Final = Stage("pending", attempts=0)
HELD: Final = Stage("active", None)
LAPSED: Final = Stage("active", 1)
DUE: Final = Stage("schedule", 1)
LATER: Final = Stage("schedule", None)
DEAD: Final = Stage("dead")


def _nothing(ids: Sequence[str]) -> object:
    return None


def _first(ids: Sequence[str]) -> object:
    return ids[0]


@dataclass(frozen=True)
class Verb:
    """A verb, and how it is called.

    Attributes:
        name: What the table calls it.
        script: Its transition, or its command.
        places: Those that are grown, in turn.
        call: Call it, about the jobs of these ids.
        answer: What that must answer.
        stages: Where the jobs are put before, in turn; none are left out of the queue.
        jobs: How many it is about.
        paused: Whether it wants the queue paused.
        exponent: The time is at most the length to the power of this.
    """

    name: str
    script: str
    places: tuple[str, ...]
    call: Callable[[Queue, Sequence[str]], object]
    answer: Callable[[Sequence[str]], object] = _nothing
    stages: tuple[Stage, ...] = ()
    jobs: int = 1
    paused: bool = False
    exponent: float = 0.1  # from 10^3 to 10^6, log n doubles: an exponent of 0.1

    @property
    def cost(self) -> str:
        """How its work grows, as documented; without what it grows with."""
        told = _COSTS.get(self.script) or Transition(self.script).header.cost
        return told.split(" in ", 1)[0].rstrip(".")

    @property
    def command(self) -> str:
        """Whose time on the server is counted."""
        return self.script if self.script in _COSTS else "evalsha"


class Cost(NamedTuple):
    """What a verb took: microseconds a call, of the server alone and from call to answer."""

    server: float
    round_trip: float


def _run(queue: Queue, plan: resp.Plan[Any]) -> Any:
    return queue.connector.run(plan)


def _take(queue: Queue, count: int) -> list[str]:
    plan = take(queue.keys, count, 30_000, max_stalled=5, wait_ms=1000, waiter="w")
    return [job.id for job in _run(queue, plan).jobs]


def _drain(queue: Queue, place: str, limit: int) -> Any:
    return _run(queue, DRAIN(base=queue.keys.base, place=place, limit=limit))


def _obliterate(queue: Queue, ids: Sequence[str]) -> bool:
    return queue.obliterate(force=True, budget=len(ids))


def _claimed(queue: Queue) -> str | None:
    job = queue.claim()
    return job and job.id


def _following(queue: Queue, id: str) -> str | None:
    job = queue.complete_and_claim(id, token=1)
    return job and job.id


def verbs() -> Iterator[Verb]:
    """Answer the verbs that are timed."""
    yield Verb(
        "enqueue",
        "enqueue",
        ("pending",),
        lambda queue, ids: queue.enqueue(b"{}", job_id=ids[0]).admitted,
        lambda ids: True,
    )
    yield Verb(
        "enqueue, later",
        "enqueue",
        ("schedule",),
        lambda queue, ids: queue.enqueue(b"{}", job_id=ids[0], delay_ms=_DELAY_MS).admitted,
        lambda ids: True,
    )
    yield Verb(
        "enqueue_many(100)",
        "enqueue_many",
        ("pending",),
        lambda queue, ids: len(queue.enqueue_many([emq.Item(b"{}", job_id=id) for id in ids])),
        len,
        jobs=100,
    )
    yield Verb(
        "enqueue_many(100), later",
        "enqueue_many",
        ("schedule",),
        lambda queue, ids: len(
            queue.enqueue_many([emq.Item(b"{}", job_id=id, delay_ms=_DELAY_MS) for id in ids])
        ),
        len,
        jobs=100,
    )
    yield Verb(
        "claim",
        "claim",
        ("pending", "active"),
        lambda queue, ids: _claimed(queue),
        _first,
        (PENDING,),
    )
    yield Verb(
        "claim_many(100)",
        "claim_many",
        ("pending", "active"),
        lambda queue, ids: [job.id for job in queue.claim_many(len(ids))],
        list,
        (PENDING,),
        jobs=100,
    )
    yield Verb(
        "complete",
        "complete",
        ("active",),
        lambda queue, ids: queue.complete(ids[0], token=1),
        stages=(HELD,),
    )
    yield Verb(
        "complete_and_claim",
        "complete_and_claim",
        ("pending", "active"),
        lambda queue, ids: _following(queue, ids[0]),
        lambda ids: ids[1],
        (HELD, PENDING),
        jobs=2,
    )
    for name, most, answer, places in (
        ("retry", 5, "scheduled", ("active", "schedule")),
        ("retry, the last", 1, "dead", ("active", "dead")),
    ):
        yield Verb(
            name,
            "retry",
            places,
            partial(_retry, most=most),
            partial(_constant, answer),
            (HELD,),
        )
    yield Verb(
        "delay",
        "delay",
        ("active", "schedule"),
        lambda queue, ids: queue.delay(ids[0], _DELAY_MS, token=1),
        stages=(HELD,),
    )
    yield Verb(
        "extend",
        "extend",
        ("active",),
        lambda queue, ids: queue.extend(ids[0], 30_000, token=1),
        stages=(HELD,),
    )
    yield Verb(
        "extend_many(100)",
        "extend_many",
        ("active",),
        lambda queue, ids: queue.extend_many([(id, 1) for id in ids], 30_000),
        lambda ids: [],
        (HELD,),
        jobs=100,
    )
    yield Verb(
        "give_back(100)",
        "give_back",
        ("pending", "active"),
        lambda queue, ids: queue.give_back([(id, 1) for id in ids]),
        lambda ids: [],
        (HELD,),
        jobs=100,
    )
    for jobs in (1, 100):
        yield Verb(
            f"promote({jobs})",
            "promote",
            ("pending", "schedule"),
            lambda queue, ids: queue.promote(len(ids)),
            len,
            (DUE,),
            jobs,
        )
        yield Verb(
            f"reap({jobs})",
            "reap",
            ("pending", "active"),
            lambda queue, ids: queue.reap(len(ids)),
            len,
            (LAPSED,),
            jobs,
        )
    yield Verb(
        "sweep_stalled(100)",
        "sweep_stalled",
        ("pending", "active"),
        lambda queue, ids: queue.sweep_stalled(5, len(ids)),
        lambda ids: Sweep(list(ids), []),
        (LAPSED,),
        jobs=100,
    )
    yield Verb(
        "sweep_stalled(100), all dead",
        "sweep_stalled",
        ("active", "dead"),
        lambda queue, ids: queue.sweep_stalled(1, len(ids)),
        lambda ids: Sweep([], list(ids)),
        (LAPSED,),
        jobs=100,
    )
    yield Verb(
        "take, nothing due",
        "take",
        ("active", "schedule"),
        lambda queue, ids: _take(queue, 1),
        lambda ids: [],
    )
    yield Verb(
        "take, one",
        "take",
        ("pending", "active", "schedule"),
        lambda queue, ids: _take(queue, 1),
        list,
        (PENDING,),
    )
    for stage in (PENDING, HELD, LATER, DEAD):
        yield Verb(
            "remove",
            "remove",
            (stage.place,),
            lambda queue, ids: queue.remove(ids[0]),
            stages=(stage,),
        )
    yield Verb(
        "reprocess",
        "reprocess",
        ("pending", "dead"),
        lambda queue, ids: queue.reprocess(ids[0]),
        stages=(DEAD,),
    )
    for stage in (PENDING, DUE):
        yield Verb(
            "drain, a step of 100",
            "drain",
            (stage.place,),
            partial(_drained, place=stage.place),
            len,
            (stage,),
            jobs=100,
        )
    for stage in (PENDING, LAPSED, DUE, DEAD):
        yield Verb(
            "obliterate, a step of 100",
            "obliterate",
            (stage.place,),
            _obliterate,
            lambda ids: False,
            (stage,),
            jobs=100,
            paused=True,
        )
    yield Verb(
        "repair(100)",
        "repair",
        ("pending", "active"),
        lambda queue, ids: _run(queue, REPAIR(base=queue.keys.base, mend=0, names=ids)),
        lambda ids: [],
        (PENDING,),
        jobs=100,
    )
    yield Verb(
        "counts",
        "counts",
        ("pending",),
        lambda queue, ids: len(queue.counts()),
        lambda ids: 6,
    )
    yield Verb(
        "state",
        "state",
        ("pending", "dead"),
        lambda queue, ids: queue.state(ids[0]),
        partial(_constant, "dead"),
        (DEAD,),
    )
    yield Verb(
        "browse(100)",
        "zrange",
        ("pending",),
        lambda queue, ids: len(queue.browse(len(ids))),
        len,
        (PENDING,),
        jobs=100,
    )
    yield Verb(
        "peek(100)",
        "zrange",
        ("pending", "active"),
        lambda queue, ids: len(queue.peek("pending", len(ids))),
        len,
        (PENDING,),
        jobs=100,
    )


def _retry(queue: Queue, ids: Sequence[str], most: int) -> str:
    return queue.retry(ids[0], token=1, delay_ms=_DELAY_MS, max_attempts=most, error="no")


def _drained(queue: Queue, ids: Sequence[str], place: str) -> object:
    return _drain(queue, place, len(ids))


def _constant(answer: object, ids: Sequence[str]) -> object:
    return answer


class Lengths:
    """A server with a queue of each length, until the block ends.

    Args:
        sizes: The lengths.

    Attributes:
        queues: By length.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._stack = ExitStack()
        self._connectors: dict[int, resp.Connector] = {}
        self.queues: dict[int, Queue] = {}

    def __enter__(self) -> Lengths:
        with ExitStack() as stack:
            server = stack.enter_context(Embedded(tcp=True))
            for database, size in enumerate(self._sizes):
                url = f"{server.url.rstrip('/')}/{database}"
                connector = stack.enter_context(emq.connect(url, timeout=_PATIENCE_S))
                self._connectors[size] = connector
                self.queues[size] = Queue(connector, _QUEUE)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def grow(self, place: str) -> None:
        """Empty the server, then fill a place to each length."""
        base = Keyspace(_QUEUE).base
        for size, connector in self._connectors.items():
            connector.command("FLUSHDB")
            score = _FAR_MS if place in ("active", "schedule") else 0
            for start in range(0, size, _FILLED):
                last = min(size, start + _FILLED) - 1
                connector.eval(_FILL, [base], [place, _STATES[place], score, start, last])

    def time(self, verb: Verb, size: int, calls: int) -> Cost:
        """Call a verb `calls` times on the queue of a length.

        Raises:
            WrongWork: An answer is another than the verb's.
        """
        queue, connector = self.queues[size], self._connectors[size]
        base = queue.keys.base
        hands = [
            [f"JOB0{call * verb.jobs + job:010d}" for job in range(verb.jobs)]
            for call in range(calls)
        ]
        connector.eval(_PUT, [base], list(self._staged(verb, size, hands)))
        if verb.paused:
            queue.pause()
        clock, call = time.perf_counter, verb.call
        connector.command("CONFIG", "RESETSTAT")
        answers, trips, spent = [], [], [0]
        for ids in hands:
            began = clock()
            answers.append(call(queue, ids))
            trips.append(clock() - began)
            spent.append(_spent(connector, verb.command))
        if verb.paused:
            queue.resume()
        connector.eval(_CLEAR, [base], [id for ids in hands for id in ids])
        for answer, ids in zip(answers, hands, strict=True):
            if answer != verb.answer(ids):
                raise WrongWork(f"{verb.name} at {size:,}: {str(answer)[:200]}")
        each = [after - before for before, after in itertools.pairwise(spent)]
        return Cost(_undisturbed(each), statistics.median(trips) * 1e6)

    def _staged(self, verb: Verb, size: int, hands: Sequence[Sequence[str]]) -> Iterator[str | int]:
        if not verb.stages:
            return
        for ids in hands:
            for at, id in enumerate(ids):
                stage = verb.stages[at % len(verb.stages)]
                score = _FAR_MS + size // 2 if stage.score is None else stage.score
                yield from (stage.place, _STATES[stage.place], score, stage.attempts, id)


def _undisturbed(values: Sequence[float]) -> float:
    """The mean of the lower half.

    The server counts whole microseconds, and goes on counting while another process has its core.
    """
    return statistics.fmean(sorted(values)[: (len(values) + 1) // 2])


def _spent(connector: resp.Connector, command: str) -> int:
    """The microseconds that the server spent on a command since its statistics began anew."""
    info: Any = connector.command("INFO", "commandstats")
    for line in bytes(info).decode().splitlines():
        name, _, told = line.removeprefix("cmdstat_").partition(":")
        if name == command:
            return int(dict(pair.split("=") for pair in told.split(","))["usec"])
    raise WrongWork(f"the server has not run {command}")

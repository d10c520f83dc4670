"""Recordings of the bus: what its own scripts left behind, step by step.

A recording is a list of operations, each with its arguments, what it answered and every key that it
changed. `perform` does one with our verbs. An operation that we have no verb for is *foreign*: the
changes that were recorded for it are written by hand, as if a node of another make had done it. So
every recording can run to its end, and our verbs have to go on from any state that the bus can be
in: laned and flow rows, paused lanes, outboxes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from emq import Queue
from emq.errors import (
    AtCeiling,
    InvalidId,
    JobGone,
    JobLocked,
    StaleToken,
    WrongKind,
    WrongState,
)
from emq.job import Item, Job

from .snapshot import State, differences, put, raw, snapshot, text

PREFIX = "emq:{golden"  # every queue of every recording

_DATA = Path(__file__).parents[1] / "data"


class Recording(NamedTuple):
    """One sequence; `expected` is the state it ends in, `right` what it should have ended in."""

    name: str
    area: str
    tags: tuple[str, ...]
    tolerance: int
    ops: list[dict[str, Any]]
    expected: State
    right: str

    def __str__(self) -> str:
        return self.name


def load(file: str) -> list[Recording]:
    """Read a file of recordings."""
    lines = (_DATA / file).read_text(encoding="utf-8").splitlines()
    return [
        Recording(
            told["name"],
            told.get("area") or told["fault"],
            tuple(told.get("tags", ())),
            told["tol_ms"],
            told["ops"],
            told["state"],
            told.get("right_outcome", ""),
        )
        for told in map(json.loads, lines)
    ]


class Verb(NamedTuple):
    """An operation of the recordings in terms of ours: the method it needs, and the call."""

    method: str
    call: Callable[[Any, dict[str, Any]], Any]


def _enqueued(receipt: Any, admitted: str = "enqueued") -> str:
    return admitted if receipt.admitted else "duplicate"


def _enqueue_many(queue: Queue, args: dict[str, Any]) -> Any:
    receipts = queue.enqueue_many([Item(raw(j["payload"]), j["job_id"]) for j in args["jobs"]])
    # To the bus an empty batch is an error; this client answers an empty list.
    return [_enqueued(receipt) for receipt in receipts] or {"error": "empty"}


def _claimed(job: Job | None) -> Any:
    if job is None:
        return "empty"
    told = {"job_id": job.id, "payload": text(job.payload), "attempts": job.token}
    return told | ({} if job.group is None else {"group": job.group})


def _retry(queue: Queue, args: dict[str, Any]) -> Any:
    try:
        return queue.retry(
            args["job_id"],
            token=args["token"],
            delay_ms=args["delay_ms"],
            max_attempts=args["max_attempts"],
            error=raw(args["error"]),
        )
    except JobGone:
        return {"error": "stale"}  # the bus tells a retry's two refusals apart by text alone


def _held(queue: Queue, args: dict[str, Any]) -> list[Job]:
    return [Job(h["job_id"], b"", h["token"], args["queue"]) for h in args["held"]]


def _row(row: Any) -> Any:
    if row is None:
        return "absent"
    told = {"state": row.state, "attempts": str(row.attempts), "payload": text(row.payload)}
    return told | row.fields


def _swept(sweep: Any) -> Any:
    return {"recovered": list(sweep.recovered), "dead": list(sweep.dead)}


def _has_stalled(row: Any) -> bool:
    return row is not None and int(row.fields.get("stalled", "0")) > 0


def _metric(queue: Queue, args: dict[str, Any]) -> Any:
    metric = queue.metrics()[args["which"]]
    return {"count": metric.total, "data_points": metric.data_points}


def _dedup(holder: str | None) -> Any:
    return "absent" if holder is None else {"job_id": holder}


def _publish(queue: Queue, args: dict[str, Any]) -> str:
    queue.publish(args["event"], args["job_id"], **dict(args.get("extra", ())))
    return "ok"


def _obliterate(queue: Queue, args: dict[str, Any]) -> str:
    options = {option: args[option] for option in ("force", "budget") if option in args}
    return "ok" if queue.obliterate(**options) else "more"


# Tracking locks is a process's own memory: here it is `args["tracked"]`, the stage's.


def _track(queue: Queue, args: dict[str, Any]) -> str:
    queue.lock(args["job_id"], args["marker_ttl_ms"], token=args["token"])
    args["tracked"][args["job_id"]] = args["token"]
    return "ok"


def _beat(queue: Queue, args: dict[str, Any]) -> Any:
    tracked = args["tracked"]
    held = list(tracked.items())
    lost = queue.extend_many(held, args["lease_ms"], lock_ttl_ms=args["marker_ttl_ms"])
    return {"extended": len(held) - len(lost), "dropped": lost}


def _untrack(queue: Queue, args: dict[str, Any]) -> str:
    token = args["tracked"].pop(args["job_id"], None)
    if token is not None:
        queue.unlock(args["job_id"], token=token)
    return "ok"


VERBS: dict[str, Verb] = {
    "enqueue": Verb(
        "enqueue", lambda q, a: _enqueued(q.enqueue(raw(a["payload"]), job_id=a["job_id"]))
    ),
    "enqueue_in": Verb(
        "enqueue",
        lambda q, a: _enqueued(
            q.enqueue(raw(a["payload"]), job_id=a["job_id"], delay_ms=a["delay_ms"]), "scheduled"
        ),
    ),
    "enqueue_at": Verb(
        "enqueue",
        lambda q, a: _enqueued(
            q.enqueue(raw(a["payload"]), job_id=a["job_id"], run_at_ms=a["at_ms"]), "scheduled"
        ),
    ),
    "enqueue_many": Verb("enqueue_many", _enqueue_many),
    "claim": Verb("claim", lambda q, a: _claimed(q.claim(a["lease_ms"]))),
    "claim_batch": Verb(
        "claim_many",
        lambda q, a: (
            [_claimed(job) for job in q.claim_many(a["size"], lease_ms=a["lease_ms"])] or "empty"
        ),
    ),
    "complete": Verb(
        "complete",
        lambda q, a: (
            q.complete(a["job_id"], raw(a["result"]) if "result" in a else None, token=a["token"])
            or "ok"
        ),
    ),
    "retry": Verb("retry", _retry),
    "delay": Verb(
        "delay",
        lambda q, a: (
            q.delay(a["job_id"], a.get("delay_ms"), run_at_ms=a.get("at_ms"), token=a["token"])
            or "ok"
        ),
    ),
    "extend_lock": Verb(
        "extend", lambda q, a: q.extend(a["job_id"], a["lease_ms"], token=a["token"]) or "ok"
    ),
    "extend_locks": Verb(
        "extend_many",
        lambda q, a: {"failed": list(q.extend_many(_held(q, a), a["lease_ms"]))},
    ),
    "promote": Verb("promote", lambda q, a: q.promote(a["limit"])),
    "reap": Verb("reap", lambda q, a: q.reap()),
    "stalled_check": Verb(
        "sweep_stalled",
        lambda q, a: _swept(
            q.sweep_stalled(**{k: a[k] for k in ("max_stalled", "limit") if k in a})
        ),
    ),
    "get_counts": Verb("counts", lambda q, a: {s: q.counts()[s] for s in a["states"]}),
    "get_state": Verb("state", lambda q, a: q.state(a["job_id"]) or "absent"),
    "get_job": Verb("job", lambda q, a: _row(q.job(a["job_id"]))),
    "pending_size": Verb("counts", lambda q, a: q.counts()["pending"]),
    "is_stalled": Verb("job", lambda q, a: _has_stalled(q.job(a["job_id"]))),
    "get_metrics": Verb("metrics", _metric),
    "update_data": Verb(
        "update_payload", lambda q, a: q.update_payload(a["job_id"], raw(a["payload"])) or "ok"
    ),
    "update_progress": Verb(
        "progress", lambda q, a: q.progress(a["job_id"], raw(a["progress"])) or "ok"
    ),
    "add_log": Verb("log", lambda q, a: q.log(a["job_id"], raw(a["line"]), keep=a.get("keep", 0))),
    "get_logs": Verb("logs", lambda q, a: q.logs(a["job_id"])),
    "remove": Verb("remove", lambda q, a: q.remove(a["job_id"], dedup=a.get("dedup_id")) or "ok"),
    "reprocess": Verb("reprocess", lambda q, a: q.reprocess(a["job_id"]) or "ok"),
    "get_dedup": Verb("dedup", lambda q, a: _dedup(q.dedup(a["dedup_id"]))),
    "rate_limit": Verb("rate_limit", lambda q, a: q.rate_limit()),
    "rate_ttl": Verb("rate_ttl_ms", lambda q, a: q.rate_ttl_ms(a.get("max", 0))),
    "is_maxed": Verb("check_ceiling", lambda q, a: q.check_ceiling() or "ok"),
    "publish_event": Verb("publish", _publish),
    "is_paused": Verb("paused", lambda q, a: q.paused()),
    "queue_pause": Verb("pause", lambda q, a: q.pause() or "ok"),
    "queue_resume": Verb("resume", lambda q, a: q.resume() or "ok"),
    "drain": Verb("drain", lambda q, a: q.drain(include_schedule=a.get("include_schedule", False))),
    "obliterate": Verb("obliterate", _obliterate),
    "lock_track": Verb("lock", _track),
    "lock_beat": Verb("extend_many", _beat),
    "lock_tracked": Verb("lock", lambda q, a: sorted(a["tracked"])),
    "lock_untrack": Verb("unlock", _untrack),
}


BY_HAND = frozenset({"set_score", "raw"})  # time that passes, or an operator

OURS = frozenset(op for op, verb in VERBS.items() if hasattr(Queue, verb.method))


def perform(queue: Queue, op: str, args: dict[str, Any]) -> Any:
    """Do one operation with our verbs; answer in the recordings' terms."""
    try:
        return VERBS[op].call(queue, args)
    except InvalidId:
        return {"error": "invalid_id"}
    except WrongKind:
        return {"error": "kind"}
    except StaleToken:
        return {"error": "stale"}
    except JobGone:
        return {"error": "gone"}
    except JobLocked:
        return {"error": "locked"}
    except AtCeiling:
        return {"error": "rate"}
    except WrongState as error:
        # EMQSTATE not dead, not paused, active jobs present
        words = error.detail.removeprefix("EMQSTATE ").split()
        return {"error": "active" if words[0] == "active" else "_".join(words[:2])}
    except ValueError:
        return {"error": "invalid_argument"}


def agrees(want: Any, got: Any, tolerance: int = 0) -> bool:
    """Whether an answer is the recorded one; True and 1 are not the same."""
    if isinstance(want, dict) and isinstance(got, dict):
        return want.keys() == got.keys() and all(agrees(want[k], got[k], tolerance) for k in want)
    if isinstance(want, list) and isinstance(got, list):
        pairs = zip(want, got, strict=False)
        return len(want) == len(got) and all(agrees(*pair, tolerance) for pair in pairs)
    if isinstance(want, dict) and want.keys() == {"approx_ms"}:
        return type(got) is int and got > 0 and abs(got - want["approx_ms"]) <= tolerance
    if isinstance(want, dict) and want.keys() == {"hex"} and isinstance(got, str):
        return raw(want).decode("utf-8", "backslashreplace") == got  # a line of a log, as text
    return bool(want == got) and isinstance(want, bool) == isinstance(got, bool)


@dataclass
class Stage:
    """Where a recording is played: a server's golden keys, and one shell's queues over them.

    Attributes:
        admin: A client to look with, and to write by hand.
        queue: Answers the queue of a name.
        state: What should be there.
        tracked: The jobs whose locks are kept alive, and their tokens.
    """

    admin: Any
    queue: Callable[[str], Queue]
    state: State = field(default_factory=dict)
    tracked: dict[str, int] = field(default_factory=dict)

    def wipe(self) -> None:
        keys = list(self.admin.scan_iter(match=PREFIX + "*", count=1000))
        if keys:
            self.admin.delete(*keys)
        self.state = {}
        self.tracked = {}

    def look(self) -> State:
        return snapshot(self.admin, PREFIX)[0]

    def play(self, op: dict[str, Any]) -> Any:
        """Do one operation, whoever can, and answer what it answered."""
        if op["op"] in BY_HAND:
            return self._by_hand(op["op"], op["args"])
        if op["op"] in OURS:
            args = op["args"] | {"tracked": self.tracked}
            return perform(self.queue(args["queue"]), op["op"], args)
        return self.foreign(op)

    def foreign(self, op: dict[str, Any]) -> Any:
        """Leave behind what the recorded operation left behind; answer what it answered."""
        for key, entry in op["changes"].items():
            put(self.admin, key, entry)
        return op["result"]

    def _by_hand(self, op: str, args: dict[str, Any]) -> None:
        if op == "set_score":
            self.admin.zadd(args["key"], {args["member"]: args["score"]}, xx=True)
        else:
            self.admin.execute_command(*(raw(part) for part in args["command"]))

    def follow(self, op: dict[str, Any], tolerance: int) -> list[str]:
        """Play one operation; answer how its outcome differs from the recorded one."""
        answer = self.play(op)
        lines = []
        if op["op"] not in BY_HAND and not agrees(op["result"], answer, tolerance):
            lines.append(f"answered {answer!r}, want {op['result']!r}")
        for key, entry in op["changes"].items():
            if entry is None:
                self.state.pop(key, None)
            else:
                self.state[key] = entry
        found, now = snapshot(self.admin, PREFIX)
        lines += differences(self.state, found, now, tolerance)
        for key, members in op.get("equal_scores", ()):
            scores = {found.get(key, {}).get("value", {}).get(m) for m in members}
            if len(scores) != 1:
                lines.append(f"{key}: {members} do not score alike")
        return lines


def ours(recording: Recording) -> int:
    """How many of a recording's steps our own verbs do."""
    return sum(op["op"] in OURS for op in recording.ops)


def summary() -> str:
    """How much of the recordings our verbs play."""
    recordings = load("golden.jsonl")
    run = [recording for recording in recordings if ours(recording)]
    steps = sum(map(ours, run))
    foreign = sum(op["op"] not in OURS | BY_HAND for recording in run for op in recording.ops)
    return (
        f"{len(run)} of {len(recordings)} sequences run, {len(recordings) - len(run)} have no "
        f"verb of ours; {steps} steps are ours, {foreign} are set up as recorded"
    )

"""The recorded sequences, step by step: our verbs leave the bytes that the bus's scripts leave."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .golden import BY_HAND, OURS, PREFIX, Recording, Stage, load, ours
from .shells import Shell

RECORDINGS = load("golden.jsonl")
RUN = [recording for recording in RECORDINGS if ours(recording)]

# What must run, so that nobody loses it in silence: a verb that vanishes or is renamed makes its
# operations foreign, and a recording without any of ours is not run at all.
LEAST_RUN = 172
LEAST_STEPS = 933
CORE = {
    *("enqueue", "enqueue_in", "enqueue_at", "enqueue_many", "claim", "claim_batch"),
    *("complete", "retry", "delay", "extend_lock", "extend_locks"),
    *("promote", "reap", "stalled_check", "is_stalled"),
    *("get_counts", "pending_size", "get_state", "get_job", "get_metrics", "get_dedup"),
    *("update_data", "update_progress", "add_log", "get_logs", "publish_event"),
    *("remove", "reprocess", "drain", "obliterate", "queue_pause", "queue_resume", "is_paused"),
    *("rate_limit", "rate_ttl", "is_maxed"),
    *("lock_track", "lock_beat", "lock_tracked", "lock_untrack"),
}

# What of these planes is written by hand: lanes, flows and repeats are another's, here.
FOREIGN = ("lane_", "flow_", "repeat_", "stream_", "archived_")
FOREIGN_READS = {"reap_group", "dependencies", "children_values", "ignored_failures"}

# Where this client does better than the bus, on purpose: by recording and step, what is otherwise.
BETTERED: dict[str, dict[int, dict[str, Any]]] = {
    # A job that waits in its lane is pending; the bus does not look there.
    "reads_laned_and_unknown": {1: {"result": "pending"}},
    # A completed job takes its log along; the bus leaves it to the next job of that id.
    "random_laned_34": {22: {"changes": {"emq:{golden}:job:JOB0EEMl9I7KXg:logs": None}}},
}


def steps_of(recording: Recording) -> Iterator[dict[str, Any]]:
    otherwise = BETTERED.get(recording.name, {})
    for number, op in enumerate(recording.ops):
        ours = otherwise.get(number, {})
        yield op | ours | {"changes": op["changes"] | ours.get("changes", {})}


@pytest.fixture(params=[("threads", 3), ("aio", 2)], ids=["threads-resp3", "aio-resp2"])
def stage(
    request: pytest.FixtureRequest, server: Any, shells: Callable[[str, int], Shell]
) -> Iterator[Stage]:
    stage = Stage(server.admin, shells(*request.param).queue)
    stage.wipe()
    yield stage
    stage.wipe()


@pytest.fixture
def heard(server: Any) -> Iterator[Callable[[], list[Any]]]:
    """Answers what was published on the queues' channels since it was asked last."""
    with server.admin.pubsub() as listener:
        listener.psubscribe(PREFIX + "*")
        listener.get_message(timeout=5)

        def messages() -> list[Any]:
            marker = PREFIX + "}:that is all"
            server.admin.publish(marker, "")
            found = []
            while (message := listener.get_message(timeout=5))["channel"] != marker.encode():
                found.append((message["channel"].decode(), json.loads(message["data"])))
            return found

        yield messages


@pytest.mark.parametrize("recording", RUN, ids=str)
def test_recording(recording: Recording, stage: Stage, heard: Callable[[], list[Any]]) -> None:
    for number, op in enumerate(steps_of(recording)):
        lines = stage.follow(op, recording.tolerance)
        assert not lines, f"step {number}, {op['op']} {op['args']}: " + "\n".join(lines)
        if op["op"] in OURS:
            assert heard() == [(m["channel"], m["json"]) for m in op.get("published", ())]


def test_nothing_recorded_is_lost() -> None:
    assert len(RECORDINGS) == 213
    assert {r.name for r in RECORDINGS} >= BETTERED.keys()
    assert all(r.tags for r in RECORDINGS if r.name in BETTERED)
    assert OURS == CORE
    played = {op["op"] for recording in RECORDINGS for op in recording.ops}
    foreign = played - OURS - BY_HAND - FOREIGN_READS
    assert all(op.startswith(FOREIGN) for op in foreign)
    assert len(RUN) >= LEAST_RUN
    assert sum(map(ours, RUN)) >= LEAST_STEPS


def test_a_difference_is_seen(stage: Stage) -> None:
    """The comparison itself can fail: a recording with one byte changed does not pass."""
    recording = next(r for r in RECORDINGS if r.name == "enqueue_one")
    (op,) = recording.ops
    row = next(key for key in op["changes"] if ":job:" in key)
    changed = op["changes"][row] | {"value": op["changes"][row]["value"] | {"payload": "carga"}}

    for altered in (
        op | {"changes": op["changes"] | {row: changed}},
        op | {"changes": {row: op["changes"][row]}},
        op | {"result": "duplicate"},
        op | {"changes": op["changes"] | {"emq:{golden}:wake": {"type": "list", "value": ["1"]}}},
    ):
        stage.wipe()
        assert stage.follow(altered, recording.tolerance)
    stage.wipe()
    assert stage.follow(op, recording.tolerance) == []

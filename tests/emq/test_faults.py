"""Where the bus is known to go wrong, and what this client does there instead.

Each recording is played with our verbs; what they have no verb for is written as it was recorded.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emq import Queue
from emq.errors import ContractError, InvalidId, JobGone, JobLocked, StaleToken, WrongKind
from emq.ids import Mint
from emq.job import Item, Job, Outcome, Receipt
from emq.plans import work
from resp import ErrorReply, ServerError

from .conftest import Due, Expire, Keys, Queues
from .foreign import Node
from .golden import OURS, PREFIX, Recording, Stage, agrees, load
from .shells import Shell
from .snapshot import State, dumped

FAULTS = {recording.name: recording for recording in load("faults.jsonl")}

ID = "JOB0EEMl9I7KXg"
CHILD = "JOB0EEMl9I7KXh"
GROUP = "PRT0EEMl9I7KXg"
BASE = "emq:{golden}:"


@pytest.fixture
def stage(server: Any, shell: Shell) -> Iterator[Stage]:
    stage = Stage(server.admin, shell.queue)
    stage.wipe()
    yield stage
    stage.wipe()


def play(stage: Stage, name: str, steps: int | None = None) -> list[Any]:
    """Play a recording, or its first steps; answer what each step answered."""
    return [stage.play(op) for op in FAULTS[name].ops[:steps]]


def refused(stage: Stage, name: str, step: int) -> None:
    """Play a recording up to a step that must be refused and change nothing."""
    ops = FAULTS[name].ops
    for op in ops[:step]:
        answer = stage.play(op)
        assert op["result"] is None or agrees(op["result"], answer)
    assert ops[step]["op"] in OURS
    before = dumped(stage.admin, PREFIX)
    assert stage.play(ops[step]) == {"error": "stale"}
    assert dumped(stage.admin, PREFIX) == before


def value(state: State, suffix: str) -> Any:
    return state[BASE + suffix]["value"] if BASE + suffix in state else None


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("B3_1", 3),  # complete, after retry
        ("B3_4", 3),  # retry, after delay
        ("B3_6", 4),  # complete of a laned job, after retry
        ("B3_7", 1),  # complete with token 0
        ("B6_3", 4),  # extend, after a reap
        ("B6_5", 3),  # extend of a dead job
        ("B6_6", 4),  # extend of a laned job, after a reap
    ],
)
def test_late_verb_is_refused(stage: Stage, name: str, step: int) -> None:
    refused(stage, name, step)


def test_a_refused_complete_leaves_the_retried_job_to_be_served_again(stage: Stage) -> None:
    refused(stage, "B3_2", 3)
    promoted, claimed = [stage.play(op) for op in FAULTS["B3_2"].ops[4:]][1:]

    assert promoted == 1
    assert claimed == {"job_id": ID, "payload": "p", "attempts": 2}


def test_a_refused_extend_leaves_the_reaped_job_to_the_next_claim(stage: Stage) -> None:
    refused(stage, "B6_3", 4)
    claimed = stage.play(FAULTS["B6_3"].ops[5])

    assert claimed["attempts"] == 2
    assert value(stage.look(), "pending") is None


def test_a_reaped_laned_job_completed_late_leaves_its_lane(stage: Stage) -> None:
    refused(stage, "B6_6", 4)
    assert stage.play(FAULTS["B6_6"].ops[5]) == "ok"

    state = stage.look()
    assert value(state, f"g:{GROUP}:pending") is None
    assert value(state, "ring") is None
    assert value(state, "gactive") is None
    assert value(state, f"job:{ID}") is None
    assert value(state, "metrics:completed") == {"count": "1"}


def test_extend_many_names_the_reaped_job_and_writes_nothing(stage: Stage) -> None:
    play(stage, "B6_4", 4)
    before = dumped(stage.admin, PREFIX)

    assert stage.play(FAULTS["B6_4"].ops[4]) == {"failed": [ID]}
    assert dumped(stage.admin, PREFIX) == before


def test_an_entry_without_a_row_is_not_promoted(stage: Stage) -> None:
    *_, promoted, claimed = play(stage, "B5_1")

    assert promoted == 0
    assert claimed == "empty"
    assert stage.look() == {}


def test_an_entry_without_a_row_is_not_claimed(stage: Stage) -> None:
    assert play(stage, "B5_2")[-1] == "empty"
    assert stage.look() == {}


def test_a_batch_serves_only_jobs_with_a_row(stage: Stage) -> None:
    answer = play(stage, "B5_3")[-1]

    assert answer == [{"job_id": CHILD, "payload": "p", "attempts": 1}]
    assert set(stage.look()) == {BASE + "active", BASE + f"job:{CHILD}"}


def test_a_lease_without_a_row_is_dropped(stage: Stage) -> None:
    assert play(stage, "B5_5")[-1] == 0
    assert stage.look() == {}


def test_a_lease_without_a_row_is_dropped_by_the_sweep(stage: Stage) -> None:
    play(stage, "B5_5", 4)

    assert stage.queue("golden").sweep_stalled() == ([], [])
    assert stage.look() == {}


def test_a_removed_parent_is_not_made_anew_by_its_last_child(stage: Stage) -> None:
    *_, completed, claimed = play(stage, "B5_6")

    assert (completed, claimed) == ("ok", "empty")
    state = stage.look()
    assert value(state, f"job:{ID}") is None
    assert value(state, f"job:{ID}:processed") is None
    assert value(state, "pending") is None
    assert value(state, "active") is None


def test_a_removed_parent_is_not_made_anew_by_a_dying_child(stage: Stage) -> None:
    assert play(stage, "B5_8")[-1] == "dead"

    state = stage.look()
    assert value(state, f"job:{ID}") is None
    assert value(state, f"job:{ID}:failed") is None
    assert value(state, "dead") == {CHILD: 0}


def test_a_dying_child_takes_a_waiting_parent_along(stage: Stage) -> None:
    """Its parent may be pending already: an operator's hand, or a dead child that was run again."""
    play(stage, "N3_1", 2)
    stage.admin.hset(BASE + f"job:{ID}", "state", "pending")
    stage.admin.zadd(BASE + "pending", {ID: 0})

    queue = stage.queue("golden")
    assert queue.retry(CHILD, token=1, delay_ms=0, max_attempts=1, error="boom") == "dead"
    state = stage.look()
    assert value(state, "pending") is None
    assert value(state, "dead") == {ID: 0, CHILD: 0}
    assert value(state, f"job:{ID}")["state"] == "dead"
    assert value(state, f"job:{ID}:failed") == {CHILD: "boom"}


def test_a_dying_child_leaves_a_running_parent_to_its_holder(stage: Stage) -> None:
    play(stage, "N3_1", 2)
    stage.admin.hset(BASE + f"job:{ID}", mapping={"state": "active", "attempts": "1"})
    stage.admin.zadd(BASE + "active", {ID: 4102444800000})

    queue = stage.queue("golden")
    queue.retry(CHILD, token=1, delay_ms=0, max_attempts=1, error="boom")
    assert value(stage.look(), "dead") == {CHILD: 0}
    queue.complete(ID, token=1)
    assert queue.counts() | {"completed": 1, "dead": 1} == queue.counts()


def test_a_late_completion_still_counts_for_the_parent(stage: Stage) -> None:
    *_, completed, dependencies, parent, claimed = play(stage, "B2_1", 5) + [None] * 3

    assert completed == "ok"
    assert dependencies is parent is claimed is None
    state = stage.look()
    assert value(state, f"job:{ID}:dependencies") == "0"
    assert value(state, f"job:{ID}:processed") == {CHILD: CHILD}
    assert value(state, f"job:{ID}")["state"] == "pending"
    assert value(state, "pending") == {ID: 0}
    assert stage.queue("golden").claim() == Job(ID, b"payload-0", 1, "golden")


def test_the_sweep_rings_the_lane_whose_slot_it_freed(stage: Stage) -> None:
    swept = play(stage, "B7_1", 6)[-1]

    assert swept == {"recovered": [], "dead": [ID]}
    state = stage.look()
    assert value(state, "ring") == [GROUP]
    assert value(state, "wake") == ["1", "1"]
    assert value(state, "gactive") is None


def test_a_reprocessed_laned_job_goes_back_to_its_lane(stage: Stage) -> None:
    assert play(stage, "B8_1", 5)[-1] == "ok"

    state = stage.look()
    assert value(state, f"g:{GROUP}:pending") == {ID: 0}
    assert value(state, "ring") == [GROUP]
    assert value(state, "wake") == ["1", "1"]
    assert value(state, "pending") is value(state, "gactive") is value(state, "dead") is None
    assert Node(stage.admin, BASE).claim(60_000) == (ID, 2)
    stage.queue("golden").complete(ID, token=2)
    assert value(stage.look(), "gactive") is None


def test_a_laned_job_among_the_flat_ones_takes_a_slot_of_its_lane(stage: Stage) -> None:
    """A peer's reprocess puts a dead laned job there; settling it frees the slot that it took."""
    play(stage, "B8_1", 4)
    for op in FAULTS["B8_1"].ops[4:6]:
        stage.foreign(op)  # reprocessed; another job waits in the lane, whose limit is 1
    queue = stage.queue("golden")

    job = queue.claim()
    assert job == Job(ID, b"p", 2, "golden", GROUP)
    state = stage.look()
    assert value(state, "gactive") == {GROUP: "1"}
    assert value(state, "ring") is None
    queue.complete(job)
    state = stage.look()
    assert value(state, "gactive") is None
    assert value(state, "ring") == [GROUP]


@pytest.mark.parametrize("policy", ["fp", "id"])
def test_the_sweep_tells_the_parent_of_a_child_it_kills(stage: Stage, policy: str) -> None:
    play(stage, "N3_1", 2)
    stage.admin.hset(BASE + f"job:{CHILD}", "parent_policy", policy)
    stage.admin.zadd(BASE + "active", {CHILD: 1}, xx=True)

    assert stage.queue("golden").sweep_stalled() == ([], [CHILD])
    state = stage.look()
    if policy == "fp":
        assert value(state, f"job:{ID}:failed") == {CHILD: "stalled"}
        assert value(state, "dead") == {ID: 0, CHILD: 0}
    else:
        assert value(state, f"job:{ID}:unsuccessful") == {CHILD: "stalled"}
        assert value(state, f"job:{ID}:dependencies") == "0"
        assert value(state, "pending") == {ID: 0}


def test_the_sweep_leaves_word_for_a_parent_in_another_queue(stage: Stage) -> None:
    flow_add, _, claim, *_ = FAULTS["B5_7"].ops
    stage.play(flow_add)
    stage.play(claim)
    stage.admin.zadd("emq:{golden.x}:active", {CHILD: 1}, xx=True)

    assert stage.queue("golden.x").sweep_stalled() == ([], [CHILD])
    # An empty field marks a failure; then the parent's queue and id, the child, its policy, why.
    entry = ["", "fail", "golden", ID, CHILD, "fp", "stalled"]
    assert stage.admin.lrange("emq:{golden.x}:flow:outbox", 0, -1) == ["\0".join(entry).encode()]


def test_remove_of_a_claimed_laned_job_gives_its_slot_back(stage: Stage) -> None:
    assert play(stage, "B9_2", 5)[-1] == "ok"

    state = stage.look()
    assert value(state, "gactive") is None
    assert value(state, "ring") == [GROUP]
    assert value(state, "wake") == ["1", "1"]
    assert Node(stage.admin, BASE).claim(60_000) == (CHILD, 1)


def test_remove_of_a_laned_job_leaves_no_entry_in_its_lane(stage: Stage) -> None:
    Node(stage.admin, BASE).enqueue(GROUP, ID, "p")

    stage.queue("golden").remove(ID)
    assert set(stage.look()) == {BASE + "wake"}


@pytest.mark.parametrize("verb", ["remove", "drain"])
@pytest.mark.parametrize("policy", ["fp", "id"])
def test_a_parent_is_told_of_a_child_that_is_taken_away(
    stage: Stage, verb: str, policy: str
) -> None:
    name, reason = ("B9_3", "removed") if verb == "remove" else ("B31_1", "drained")
    ops = FAULTS[name].ops
    stage.play(ops[0])
    stage.admin.hset(BASE + f"job:{CHILD}", "parent_policy", policy)

    assert stage.play(ops[1]) == ops[1]["result"]
    state = stage.look()
    assert value(state, f"job:{CHILD}") is None
    if policy == "fp":
        assert value(state, f"job:{ID}:failed") == {CHILD: reason}
        assert value(state, f"job:{ID}")["state"] == "dead"
        assert value(state, "dead") == {ID: 0}
        assert value(state, "pending") is None
    else:
        assert value(state, f"job:{ID}:unsuccessful") == {CHILD: reason}
        assert value(state, f"job:{ID}:dependencies") == "0"
        assert value(state, "pending") == {ID: 0}


def test_word_is_left_for_the_parent_in_another_queue(stage: Stage) -> None:
    stage.play(FAULTS["B5_7"].ops[0])

    stage.queue("golden.x").remove(CHILD)
    entry = ["", "fail", "golden", ID, CHILD, "fp", "removed"]
    assert stage.admin.lrange("emq:{golden.x}:flow:outbox", 0, -1) == ["\0".join(entry).encode()]


def test_a_removed_parent_takes_its_flows_keys_along(stage: Stage) -> None:
    play(stage, "B5_6", 1)
    for part in ("processed", "failed", "unsuccessful"):
        stage.admin.hset(BASE + f"job:{ID}:{part}", CHILD, "x")

    stage.queue("golden").remove(ID)
    assert set(stage.look()) == {BASE + f"job:{CHILD}", BASE + "pending"}


@pytest.mark.parametrize("verb", ["remove", "drain"])
def test_an_unreadable_parent_leaves_its_child_where_it_is(stage: Stage, verb: str) -> None:
    stage.play(FAULTS["B9_3"].ops[0])
    stage.admin.delete(BASE + f"job:{ID}")
    stage.admin.set(BASE + f"job:{ID}", "not a row")
    queue = stage.queue("golden")
    before = dumped(stage.admin, PREFIX)

    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.remove(CHILD) if verb == "remove" else queue.drain()
    assert dumped(stage.admin, PREFIX) == before


def test_a_drained_child_and_its_pending_parent_are_both_gone(stage: Stage) -> None:
    """The child's end kills the parent, which is to be drained itself."""
    stage.play(FAULTS["B31_1"].ops[0])
    mint = Mint()
    child, parent = sorted([mint.mint(), mint.mint()])
    for id, fields in ((child, {"parent": parent}), (parent, {})):
        row = {"state": "pending", "attempts": "0", "payload": "p", **fields}
        stage.admin.hset(BASE + f"job:{id}", mapping=row)
        stage.admin.zadd(BASE + "pending", {id: 0})

    stage.queue("golden").drain()
    state = stage.look()
    assert value(state, f"job:{parent}") is value(state, f"job:{child}") is None
    assert value(state, "pending") is None
    assert value(state, "dead") == {ID: 0}  # the parent of the recording's own child


def test_a_run_again_child_leaves_its_dead_parent_in_one_place(stage: Stage) -> None:
    assert play(stage, "B14_2")[-1] == "ok"

    state = stage.look()
    assert value(state, "dead") == {ID: 0}
    assert value(state, "pending") is None
    assert value(state, f"job:{ID}")["state"] == "dead"


@pytest.mark.parametrize("name", ["B10_1", "B10_2", "B10_3"])
def test_obliterate_leaves_no_key(stage: Stage, name: str) -> None:
    assert play(stage, name)[-1] == "ok"
    assert stage.look() == {}


def test_obliterate_of_more_than_lua_can_unpack(queue: Queue, keys: Keys) -> None:
    ids = [f"JOB{n:011}" for n in range(9000)]
    for place in ("pending", "dead"):
        keys.admin.zadd(keys.base + place, dict.fromkeys(ids, 0))
    queue.pause()

    assert queue.obliterate(budget=8999) is False
    assert len(keys.members("pending")) == 1
    assert queue.obliterate(budget=20_000) is True
    assert keys.dumped() == {}


def test_drain_works_in_bounded_steps(queue: Queue, keys: Keys, told: Told) -> None:
    queue.enqueue_many([b"p"] * 1001)
    queue.enqueue(b"p", delay_ms=60_000)
    job = queue.claim()
    assert job is not None

    commands, drained = told(queue.drain)
    assert commands == ["EVALSHA"] * 3
    assert drained == 1000
    assert queue.counts() | {"active": 1, "schedule": 1} == queue.counts()
    assert queue.drain(include_schedule=True) == 1
    queue.complete(job)
    assert set(keys.dumped()) == {f"{keys.base}metrics:completed".encode()}


def test_a_drained_job_takes_its_lock_along(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    job = queue.claim()
    assert job is not None
    queue.lock(job, 60_000)
    queue.log(job, "line")
    queue.give_back([job])

    queue.drain()
    assert keys.dumped() == {}


def test_locking_a_job_that_is_gone_makes_no_row(stage: Stage) -> None:
    *_, locked, again, state = play(stage, "B30_1")

    assert locked == {"error": "gone"}
    assert (again, state) == ("enqueued", "pending")
    assert stage.queue("golden").extend_many([(ID, 1)], 1000, lock_ttl_ms=1000) == [ID]
    assert "lock" not in value(stage.look(), f"job:{ID}")


def test_a_completed_job_leaves_no_lock(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p")
    job = queue.claim()
    assert job is not None
    queue.lock(job, 60_000)
    with pytest.raises(JobLocked):
        queue.remove(job.id)

    queue.complete(job)
    assert set(keys.dumped()) == {f"{keys.base}metrics:completed".encode()}


def test_a_completed_jobs_log_is_not_the_next_ones(stage: Stage) -> None:
    assert play(stage, "B32_1")[-1] == []
    assert BASE + f"job:{ID}:logs" not in stage.look()


def test_a_jobs_outcome_is_kept_for_who_asks(queue: Queue, keys: Keys) -> None:
    kept = [queue.enqueue(b"p", result_ttl_ms=60_000).job_id for _ in range(2)]
    queue.enqueue(b"p")

    for job in queue.claim_many(3):
        if job.id == kept[1]:
            queue.retry(job, delay_ms=0, max_attempts=1, error="boom")
        else:
            queue.complete(job, b"\0result")
    assert queue.wait(kept[0], 0) == Outcome("completed", b"\0result", None)
    assert queue.wait(kept[1], 0) == Outcome("dead", None, "boom")
    results = [key for key in keys.dumped() if key.endswith(b":result")]
    assert len(results) == 2
    assert all(0 < keys.admin.pttl(key) <= 60_000 for key in results)


def test_a_job_that_runs_again_has_not_ended(queue: Queue) -> None:
    id = queue.enqueue(b"p", result_ttl_ms=60_000).job_id
    job = queue.claim()
    assert job is not None
    queue.retry(job, delay_ms=0, max_attempts=1, error="boom")

    queue.reprocess(id)
    assert queue.wait(id, 0) is None
    job = queue.claim()
    assert job is not None
    queue.complete(job, b"done")
    assert queue.wait(id, 0) == Outcome("completed", b"done", None)
    queue.enqueue(b"p", job_id=id, result_ttl_ms=60_000)
    assert queue.wait(id, 0) is None
    queue.remove(id)
    queue.enqueue_many([Item(b"p", id, result_ttl_ms=60_000)])
    assert queue.wait(id, 0) is None


def test_a_jobs_log_keeps_its_last_lines(queue: Queue) -> None:
    id = queue.enqueue(b"p").job_id

    assert [queue.log(id, f"line {n}", keep=2) for n in range(5)] == [1, 2, 2, 2, 2]
    assert queue.logs(id) == ["line 3", "line 4"]
    assert queue.log(id, "line 5") == 3


def test_a_dedup_key_is_free_when_its_job_is_done(stage: Stage) -> None:
    ops = FAULTS["B25_1"].ops
    queue = stage.queue("golden")
    # Recorded with a key written by hand, since the bus's own enqueue writes none.
    assert queue.enqueue(b"p", job_id=ID, dedup="order-1") == (ID, True)
    assert queue.enqueue(b"p", job_id=CHILD, dedup="order-1") == (ID, False)

    assert [stage.play(op) for op in ops[3:5]] == [ops[3]["result"], "ok"]
    assert stage.play(ops[5]) == "absent"
    assert BASE + "de:order-1" not in stage.look()


def test_a_dedup_key_whose_job_is_gone_holds_nothing(stage: Stage) -> None:
    play(stage, "B25_1")
    queue = stage.queue("golden")
    queue.remove(CHILD)
    assert stage.admin.get(BASE + "de:order-1") == ID.encode()

    receipt = queue.enqueue(b"p", dedup="order-1")
    assert receipt.admitted
    assert queue.dedup("order-1") == receipt.job_id


def test_the_ceiling_is_kept(stage: Stage) -> None:
    answers = play(stage, "B25_2")

    assert answers[4:6] == [{"error": "rate"}, "empty"]
    assert value(stage.look(), "pending") == {CHILD: 0}


def test_delay_of_a_laned_job_gives_its_slot_back(stage: Stage) -> None:
    assert play(stage, "B4_2")[-1] == "ok"

    state = stage.look()
    assert value(state, "gactive") is None
    assert set(value(state, "schedule")) == {ID}


def test_delay_after_a_reap_leaves_the_job_in_one_place(stage: Stage) -> None:
    assert play(stage, "B6_2")[-1] == "ok"

    state = stage.look()
    assert set(value(state, "schedule")) == {ID}
    assert value(state, "pending") is None
    assert value(state, f"job:{ID}")["state"] == "scheduled"


CLAIMS: dict[str, Callable[[Shell, Any, Job], Any]] = {
    "claim": lambda shell, queue, held: queue.claim(),
    "claim_many": lambda shell, queue, held: queue.claim_many(2),
    "complete_and_claim": lambda shell, queue, held: queue.complete_and_claim(held),
    "take": lambda shell, queue, held: take(shell, queue).jobs,
}


def take(shell: Shell, queue: Queue, count: int = 2, max_stalled: int = 5) -> work.Taken:
    """A worker's turn."""
    turn = work.take(queue.keys, count, 30_000, max_stalled=max_stalled, wait_ms=1000, waiter="w")
    taken: work.Taken = shell.connector.run(turn)
    return taken


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_settings_that_cannot_be_read_are_an_error(
    queue: Queue, keys: Keys, shell: Shell, claim: Callable[..., Any]
) -> None:
    held = held_and_pending(queue)
    keys.admin.set(keys.base + "meta", "x")
    before = keys.dumped()

    with pytest.raises(ServerError, match="WRONGTYPE"):
        claim(shell, queue, held)
    assert keys.dumped() == before
    queue.complete(held)
    keys.admin.delete(keys.base + "meta")
    assert queue.claim() is not None


def test_a_pause_that_cannot_be_read_is_an_error(stage: Stage) -> None:
    ops = FAULTS["N2_1"].ops
    play(stage, "N2_1", 2)

    for step in (2, 3):
        with pytest.raises(ServerError, match="WRONGTYPE"):
            stage.play(ops[step])
    stage.play(ops[4])
    assert stage.play(ops[5]) == {"job_id": ID, "payload": "p", "attempts": 1}


def held_and_pending(queue: Queue) -> Job:
    """Enqueue two jobs and claim the older."""
    queue.enqueue_many([b"held", b"pending"])
    held = queue.claim()
    assert held is not None
    return held


def test_no_job_is_taken_after_pause_has_answered(stage: Stage) -> None:
    ops = FAULTS["B24_1"].ops
    assert play(stage, "B24_1", 3) == ["enqueued", False, "ok"]

    # Recorded as a claim whose look at the pause came before it; here nothing does.
    assert stage.play({"op": "claim", "args": ops[3]["args"]}) == "empty"
    assert value(stage.look(), "pending") == {ID: 0}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_the_pause_is_a_part_of_the_claims_own_script(
    queue: Queue, keys: Keys, shell: Shell, told: Told, claim: Callable[..., Any]
) -> None:
    held = held_and_pending(queue)
    queue.pause()
    pending = keys.members("pending")

    # One command a claim, so no pause can come between a look and the claim.
    commands, answer = told(lambda: claim(shell, queue, held))
    assert commands == ["EVALSHA"]
    assert not answer
    assert keys.members("pending") == pending
    queue.resume()
    assert queue.claim() is not None


Told = Callable[[Callable[[], Any]], tuple[list[str], Any]]


@pytest.fixture
def told(server: Any) -> Told:
    """Makes a call; answers which commands the server was told, but for scripts' own, and what the
    call answered."""

    def listen(call: Callable[[], Any]) -> tuple[list[str], Any]:
        with server.admin.monitor() as monitor:
            server.admin.echo("now")  # on a connection that it may have to dial
            answer = call()
            server.admin.echo("that is all")
            said = (line for line in monitor.listen() if line["client_type"] != "lua")
            lines = iter(line["command"] for line in said)
            assert "ECHO now" in lines
            heard = itertools.takewhile(lambda line: line != "ECHO that is all", lines)
            return [line.split(" ")[0] for line in heard], answer

    return listen


def test_a_parent_that_cannot_be_read_settles_nothing(stage: Stage) -> None:
    play(stage, "N3_1", 2)
    stage.admin.delete(BASE + f"job:{ID}")
    stage.admin.set(BASE + f"job:{ID}", "not a row")
    queue = stage.queue("golden")
    before = dumped(stage.admin, PREFIX)

    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.complete(CHILD, token=1)
    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.retry(CHILD, token=1, delay_ms=0, max_attempts=1, error="boom")
    assert dumped(stage.admin, PREFIX) == before


# Settling, verb by verb and place by place: token and place must both be right.

Settle = Callable[[Any, str, int], Any]

SETTLE: dict[str, Settle] = {
    "complete": lambda q, id, token: q.complete(id, token=token),
    "complete_and_claim": lambda q, id, token: q.complete_and_claim(id, token=token),
    "retry": lambda q, id, token: q.retry(
        id, token=token, delay_ms=60_000, max_attempts=9, error="boom"
    ),
    "delay": lambda q, id, token: q.delay(id, 60_000, token=token),
    "extend": lambda q, id, token: q.extend(id, 60_000, token=token),
    "lock": lambda q, id, token: q.lock(id, 60_000, token=token),
    "progress": lambda q, id, token: q.progress(id, "half", token=token),
    "log": lambda q, id, token: q.log(id, "line", token=token),
}


@pytest.mark.parametrize("verb", SETTLE)
@pytest.mark.parametrize("place", ["scheduled", "dead", "pending unclaimed", "gone", "claimed"])
def test_a_token_that_is_no_longer_good(
    queue: Queue, keys: Keys, expire: Expire, verb: str, place: str
) -> None:
    mint = Mint()
    id, bystander = mint.mint(), mint.mint()
    queue.enqueue(b"p", job_id=id)
    token = 1
    if place == "pending unclaimed":
        token = 0
    else:
        job = queue.claim()
        assert job is not None
        if place == "gone":
            queue.complete(job)
        elif place == "claimed":
            expire(job)
            queue.reap()
            queue.claim()
        else:
            attempts = 1 if place == "dead" else 2
            queue.retry(job, delay_ms=60_000, max_attempts=attempts, error="boom")
    queue.enqueue(b"p", job_id=bystander)
    before = keys.dumped()

    with pytest.raises(JobGone if place == "gone" else StaleToken) as caught:
        SETTLE[verb](queue, id, token)
    assert caught.value.job_id == id
    assert keys.dumped() == before


@pytest.mark.parametrize("verb", ["complete", "complete_and_claim", "retry", "delay"])
def test_a_reaped_job_may_still_be_settled_until_it_is_claimed(
    queue: Queue, keys: Keys, expire: Expire, verb: str
) -> None:
    id = Mint().mint()
    queue.enqueue(b"p", job_id=id)
    job = queue.claim()
    assert job is not None
    expire(job)
    queue.reap()

    SETTLE[verb](queue, id, job.token)
    assert keys.members("pending") == []
    assert keys.members("active") == []
    assert keys.members("schedule") == ([id] if verb in ("retry", "delay") else [])


# N8 and its kin: what no script checks is refused before a byte is sent.

BAD_CALLS: dict[str, Callable[[Any], Any]] = {
    "retry, negative delay": lambda q: q.retry(ID, token=1, delay_ms=-1, max_attempts=1, error="e"),
    "retry, no attempts": lambda q: q.retry(ID, token=1, delay_ms=0, max_attempts=0, error="e"),
    "retry, beyond 2^53": lambda q: q.retry(
        ID, token=1, delay_ms=2**53 + 1, max_attempts=1, error="e"
    ),
    "enqueue, negative delay": lambda q: q.enqueue(b"p", delay_ms=-1),
    "enqueue, beyond 2^53": lambda q: q.enqueue(b"p", run_at_ms=2**53 + 1),
    "enqueue, both times": lambda q: q.enqueue(b"p", delay_ms=1, run_at_ms=1),
    "enqueue_many, one bad id": lambda q: q.enqueue_many([b"p", Item(b"p", "nope")]),
    "enqueue_many, one bad delay": lambda q: q.enqueue_many([b"p", Item(b"p", delay_ms=-1)]),
    "claim, no lease": lambda q: q.claim(0),
    "claim, negative lease": lambda q: q.claim(-1),
    "claim, beyond 2^53": lambda q: q.claim(2**53 + 1),
    "complete_and_claim, no lease": lambda q: q.complete_and_claim(ID, token=1, lease_ms=0),
    "extend, no lease": lambda q: q.extend(ID, 0, token=1),
    "extend_many, no lease": lambda q: q.extend_many([(ID, 1)], 0),
    "promote, no limit": lambda q: q.promote(0),
    "reap, no limit": lambda q: q.reap(0),
    "sweep_stalled, no limit": lambda q: q.sweep_stalled(limit=0),
    "sweep_stalled, no maximum": lambda q: q.sweep_stalled(max_stalled=0),
    "browse, no limit": lambda q: q.browse(0),
    "claim_many, none": lambda q: q.claim_many(0),
    "claim_many, no lease": lambda q: q.claim_many(1, lease_ms=0),
    "delay, negative": lambda q: q.delay(ID, -1, token=1),
    "delay, no time": lambda q: q.delay(ID, token=1),
    "delay, both times": lambda q: q.delay(ID, 1, run_at_ms=1, token=1),
    "enqueue, no time to live": lambda q: q.enqueue(b"p", dedup="k", dedup_ttl_ms=0),
    "enqueue, a time to live of nothing": lambda q: q.enqueue(b"p", dedup_ttl_ms=1),
    "enqueue, no attempts": lambda q: q.enqueue(b"p", max_attempts=0),
    "extend_many, no lock": lambda q: q.extend_many([(ID, 1)], 1, lock_ttl_ms=0),
    "lock, no time": lambda q: q.lock(ID, 0, token=1),
    "log, negative": lambda q: q.log(ID, "line", keep=-1),
    "obliterate, no budget": lambda q: q.obliterate(budget=0),
    "set_concurrency, none": lambda q: q.set_concurrency(0),
    "rate_ttl_ms, negative": lambda q: q.rate_ttl_ms(-1),
    "peek, no limit": lambda q: q.peek(limit=0),
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_number_out_of_range_is_refused_before_a_byte_is_sent(
    queue: Queue, shell: Shell, call: Callable[[Queue], Any]
) -> None:
    before = shell.connector.stats()["bytes_out"]

    with pytest.raises(
        ValueError, match=r"whole number|exclude|branded id|needs its end|pass dedup="
    ):
        call(queue)
    assert shell.connector.stats()["bytes_out"] == before


BY_ID: dict[str, Callable[[Queue, str], Any]] = {
    "enqueue": lambda q, id: q.enqueue(b"p", job_id=id),
    "enqueue_many": lambda q, id: q.enqueue_many([b"p", Item(b"p", id)]),
    "complete": lambda q, id: q.complete(id, token=1),
    "complete_and_claim": lambda q, id: q.complete_and_claim(id, token=1),
    "retry": lambda q, id: q.retry(id, token=1, delay_ms=0, max_attempts=1, error="e"),
    "extend": lambda q, id: q.extend(id, 1, token=1),
    "extend_many": lambda q, id: q.extend_many([(id, 1)], 1),
    "delay": lambda q, id: q.delay(id, 1, token=1),
    "give_back": lambda q, id: q.give_back([(id, 1)]),
    "lock": lambda q, id: q.lock(id, 1, token=1),
    "unlock": lambda q, id: q.unlock(id, token=1),
    "state": lambda q, id: q.state(id),
    "job": lambda q, id: q.job(id),
    "progress": lambda q, id: q.progress(id, "half"),
    "log": lambda q, id: q.log(id, "line"),
    "logs": lambda q, id: q.logs(id),
    "update_payload": lambda q, id: q.update_payload(id, b"p"),
    "remove": lambda q, id: q.remove(id),
    "reprocess": lambda q, id: q.reprocess(id),
    "publish": lambda q, id: q.publish("done", id),
    "wait": lambda q, id: q.wait(id, 0),
}


@pytest.mark.parametrize("call", BY_ID.values(), ids=BY_ID)
def test_a_bad_id_is_refused_before_a_byte_is_sent(
    queue: Queue, shell: Shell, call: Callable[[Queue, str], Any]
) -> None:
    before = shell.connector.stats()["bytes_out"]

    for bad in ("x", "", "JOBAzL8n0Y58m8", "job0EEMl9I7KXg"):
        with pytest.raises(InvalidId):
            call(queue, bad)
    with pytest.raises(WrongKind):
        call(queue, "ORD0EEMl9I7KXg")
    assert shell.connector.stats()["bytes_out"] == before


def test_a_ghost_costs_no_claim_its_job(queue: Queue, keys: Keys) -> None:
    """More rowless entries than one script call looks at, and then a job."""
    mint = Mint()
    keys.admin.zadd(keys.base + "pending", {mint.mint(): 0 for _ in range(1234)})
    id = queue.enqueue(b"p").job_id

    job = queue.claim()
    assert job is not None
    assert job.id == id
    assert keys.members("pending") == []


def test_a_row_without_a_payload_is_left_as_it_is(queue: Queue, keys: Keys, due: Due) -> None:
    mint = Mint()
    waiting, scheduled = mint.mint(), mint.mint()
    for id, place in ((waiting, "pending"), (scheduled, "schedule")):
        keys.admin.hset(f"{keys.base}job:{id}", mapping={"state": "pending", "attempts": "4"})
        keys.admin.zadd(keys.base + place, {id: 1 if place == "schedule" else 0})

    assert queue.claim() is None
    assert queue.promote() == 0
    for id in (waiting, scheduled):
        assert keys.row(id) == {"state": b"pending", "attempts": b"4"}
    assert keys.members("pending") == keys.members("schedule") == keys.members("active") == []


class Stutter(Mint):
    """A mint that mints each id twice, as two processes of one node would."""

    __slots__ = ("_again",)

    def __init__(self) -> None:
        super().__init__()
        self._again: str | None = None

    def mint(self) -> str:
        if self._again is None:
            self._again = super().mint()
            return self._again
        again, self._again = self._again, None
        return again


def test_a_clash_of_minted_ids_loses_no_job(queues: Queues, keys: Keys) -> None:
    """To the bus a clash is a duplicate, which reads like success; here it mints again."""
    queue = queues(mint=Stutter())

    one = [queue.enqueue(f"one {n}") for n in range(3)]
    many = queue.enqueue_many([f"many {n}" for n in range(5)])
    assert all(receipt.admitted for receipt in one + many)
    assert len({receipt.job_id for receipt in one + many}) == 8
    payloads = [keys.row(receipt.job_id)["payload"].decode() for receipt in one + many]
    assert payloads == [*(f"one {n}" for n in range(3)), *(f"many {n}" for n in range(5))]


def test_an_id_that_was_given_is_not_minted_again(queues: Queues, keys: Keys) -> None:
    queue = queues(mint=Stutter())
    id = Mint().mint()

    assert queue.enqueue_many([Item("a", id), Item("b", id), "c"])[:2] == [(id, True), (id, False)]
    assert keys.row(id)["payload"] == b"a"


def test_two_mints_of_one_node_and_one_clock_lose_no_job(queues: Queues, keys: Keys) -> None:
    """As two hosts whose operator gave them the same number, within one ms."""
    first, second = (queues(mint=Mint(node=1, clock=lambda: 1_750_000_000_000)) for _ in range(2))
    receipts = [first.enqueue(b"1"), *first.enqueue_many([b"2", b"3"])]

    receipts += [second.enqueue(b"4"), second.enqueue(b"5", delay_ms=60_000)]
    receipts += second.enqueue_many([b"6", Item(b"7", delay_ms=60_000), Item(b"8", dedup="k")])
    assert all(receipt.admitted for receipt in receipts)
    payloads = [keys.row(receipt.job_id)["payload"] for receipt in receipts]
    assert payloads == [b"%d" % n for n in range(1, 9)]
    assert first.counts() | {"pending": 6, "schedule": 2} == first.counts()


# B25: deduplication, and the ceiling.

ENDS: dict[str, Callable[[Any, Job], Any]] = {
    "completed": lambda q, job: q.complete(job),
    "completed, and the next claimed": lambda q, job: q.complete_and_claim(job),
    "dead": lambda q, job: q.retry(job, delay_ms=0, max_attempts=1, error="boom"),
    "removed": lambda q, job: q.remove(job.id),
    "drained": lambda q, job: (q.give_back([job]), q.drain()),
    "drained of the schedule": lambda q, job: (q.delay(job, 1000), q.drain(include_schedule=True)),
    "obliterated": lambda q, job: (q.pause(), q.obliterate(force=True)),
}
GOES_ON: dict[str, Callable[[Any, Job], Any]] = {
    "claimed": lambda q, job: None,
    "retried": lambda q, job: q.retry(job, delay_ms=60_000, max_attempts=9, error="boom"),
    "delayed": lambda q, job: q.delay(job, 60_000),
    "given back": lambda q, job: q.give_back([job]),
}


@pytest.fixture
def deduped(queue: Queue) -> Job:
    """A claimed job that holds the key `k`."""
    assert queue.enqueue(b"p", dedup="k").admitted
    job = queue.claim()
    assert job is not None
    assert queue.dedup("k") == job.id
    return job


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_end_of_a_job_frees_its_dedup_key(
    queue: Queue, keys: Keys, deduped: Job, end: Callable[[Queue, Job], Any]
) -> None:
    end(queue, deduped)

    assert queue.dedup("k") is None
    assert not keys.admin.exists(keys.base + "de:k")
    assert queue.enqueue(b"p", dedup="k").admitted


def test_a_job_that_stalls_to_death_frees_its_dedup_key(
    queue: Queue, shell: Shell, expire: Expire, deduped: Job
) -> None:
    expire(deduped)

    assert take(shell, queue, max_stalled=1).dead == [deduped.id]
    assert queue.dedup("k") is None


@pytest.mark.parametrize("step", GOES_ON.values(), ids=GOES_ON)
def test_a_job_that_is_not_done_keeps_its_dedup_key(
    queue: Queue, keys: Keys, deduped: Job, step: Callable[[Queue, Job], Any]
) -> None:
    step(queue, deduped)
    before = keys.dumped()

    assert queue.enqueue(b"q", dedup="k") == Receipt(deduped.id, False)
    assert queue.enqueue(b"q", dedup="k", delay_ms=1) == Receipt(deduped.id, False)
    assert queue.enqueue_many([Item(b"q", dedup="k")]) == [(deduped.id, False)]
    assert keys.dumped() == before


def test_the_end_of_another_job_leaves_a_dedup_key(queue: Queue, keys: Keys, deduped: Job) -> None:
    """A key that ran out, and that another job holds by now."""
    keys.admin.delete(keys.base + "de:k")
    holder = queue.enqueue(b"q", dedup="k").job_id

    queue.complete(deduped)
    assert queue.dedup("k") == holder
    queue.remove(queue.enqueue(b"r").job_id, dedup="k")
    assert queue.dedup("k") == holder


def test_a_dedup_key_is_written_by_the_enqueue_itself(queue: Queue, told: Told) -> None:
    queue.enqueue(b"p", dedup="other")

    commands, receipt = told(lambda: queue.enqueue(b"p", dedup="k", dedup_ttl_ms=1000))
    assert commands == ["EVALSHA"]
    assert queue.dedup("k") == receipt.job_id


def test_a_dedup_key_ends_by_itself(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", dedup="k", dedup_ttl_ms=60_000)
    queue.enqueue(b"p", dedup="forever")

    assert 50_000 < keys.admin.pttl(keys.base + "de:k") <= 60_000
    assert keys.admin.pttl(keys.base + "de:forever") == -1
    # Where the key of a job that is gone had an end, its successor's has none.
    keys.admin.set(keys.base + "de:k2", ID, px=60_000)
    assert queue.enqueue(b"p", dedup="k2").admitted
    assert keys.admin.pttl(keys.base + "de:k2") == -1


def test_a_job_enqueued_again_is_its_own_duplicate(queue: Queue) -> None:
    id = Mint().mint()
    assert queue.enqueue(b"p", job_id=id, dedup="k") == (id, True)

    assert queue.enqueue(b"p", job_id=id, dedup="k") == (id, False)
    assert queue.enqueue_many([Item(b"p", id, dedup="k")]) == [(id, False)]


def test_a_bulk_with_dedup_keys(queue: Queue, keys: Keys) -> None:
    holder = queue.enqueue(b"p", dedup="a").job_id

    receipts = queue.enqueue_many(
        [
            Item(b"1", dedup="a"),
            b"2",
            Item(b"3", dedup="b", delay_ms=60_000),
            Item(b"4", dedup="b"),
            Item(b"5", dedup="c", dedup_ttl_ms=60_000),
        ]
    )
    assert [receipt.admitted for receipt in receipts] == [False, True, True, False, True]
    assert receipts[0].job_id == holder
    assert receipts[3].job_id == receipts[2].job_id
    assert (queue.dedup("b"), queue.dedup("c")) == (receipts[2].job_id, receipts[4].job_id)
    assert keys.admin.pttl(keys.base + "de:c") > 50_000
    assert queue.counts() | {"pending": 3, "schedule": 1} == queue.counts()


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_claims_keep_to_the_ceiling(
    queue: Queue, keys: Keys, shell: Shell, claim: Callable[..., Any]
) -> None:
    queue.set_concurrency(2)
    queue.enqueue_many([b"p"] * 4)
    held, other = queue.claim_many(4)
    assert len(keys.members("active")) == 2

    taken = claim(shell, queue, held)
    assert len(keys.members("active")) == 2
    if claim is CLAIMS["complete_and_claim"]:
        assert taken is not None
        queue.set_concurrency(1)
        assert queue.complete_and_claim(other) is None
        assert keys.members("active") == [taken.id]
    else:
        assert not taken
        queue.complete(other)
        assert claim(shell, queue, held)
        assert len(keys.members("active")) == 2
    queue.set_concurrency(None)
    assert queue.claim() is not None


@pytest.mark.parametrize("written", ["lots", "-1", "1.5", "", "0", "nan"])
def test_a_ceiling_that_is_no_number_is_none(
    queue: Queue, keys: Keys, shell: Shell, written: str
) -> None:
    """An operator's hand may have written it. Whatever it says, what is claimed can be settled."""
    held = held_and_pending(queue)
    keys.admin.hset(keys.base + "meta", "concurrency", written)

    taken = queue.complete_and_claim(held)
    assert taken is not None
    queue.retry(taken, delay_ms=60_000, max_attempts=9, error="boom")
    queue.check_ceiling()
    queue.enqueue_many([b"p"] * 4)
    assert queue.claim() is not None
    assert len(queue.claim_many(2)) == 2
    assert len(take(shell, queue).jobs) == 1


# B17 and B26: what counts as an attempt, and what as a stall.


def test_a_job_that_kills_its_workers_is_dead_in_the_end(
    queue: Queue, shell: Shell, keys: Keys, expire: Expire, due: Due
) -> None:
    """Somebody else reaps now and then, and what reaps does not count."""
    id = queue.enqueue(b"p").job_id
    dead: list[str] = []
    for turn in range(1, 20):
        taken = take(shell, queue, max_stalled=3)
        dead += taken.dead
        if queue.state(id) == "scheduled":  # where it stalled before
            due(id)
            taken = take(shell, queue, max_stalled=3)
        if not taken.jobs:
            break
        expire(taken.jobs[0])
        if turn % 2:
            assert queue.reap() == 1
    assert dead == [id]
    assert turn == 7  # its third stall
    assert keys.row(id)["last_error"] == b"stalled"
    assert queue.state(id) == "dead"
    assert queue.metrics()["failed"].total == 1


def test_jobs_that_stalled_together_again_come_back_apart(
    queue: Queue, shell: Shell, keys: Keys, expire: Expire
) -> None:
    """One of them may have killed its workers: it must not take the others along."""
    ids = {receipt.job_id for receipt in queue.enqueue_many([b"p"] * 8)}
    for stalls in (1, 2):
        for job in take(shell, queue, 8).jobs:
            expire(job)
        taken = take(shell, queue, 0)
        assert not taken.dead
        assert {keys.row(id)["stalled"] for id in ids} == {b"%d" % stalls}
        assert queue.counts()["pending"] == (8 if stalls == 1 else 0)
    dues = [entry.score for entry in queue.peek("schedule")]
    assert len(set(dues)) > 4
    assert max(dues) - min(dues) < 2000


@pytest.mark.parametrize("way", ["sent again", "swept"])
def test_an_attempt_is_excused_once(
    queue: Queue, shell: Shell, expire: Expire, due: Due, way: str
) -> None:
    id = queue.enqueue(b"p").job_id
    job = queue.claim()
    assert job is not None
    if way == "sent again":  # its answer was lost
        queue.delay(job, 0, excuse=True)
        due(id)
        queue.promote()
    else:
        expire(job)
        take(shell, queue, 0, 99)
    queue.delay(job, 0, excuse=True)
    due(id)
    queue.promote()
    again = queue.claim()
    assert again is not None
    assert (again.token, again.excused) == (2, 1)


SPARED: dict[str, Callable[[Shell, Any, Job], Any]] = {
    "put off": lambda shell, q, job: q.delay(job, 0, excuse=True),
    "given back": lambda shell, q, job: q.give_back([job]),
    "stalled": lambda shell, q, job: take(shell, q, 0, 99),
    "swept": lambda shell, q, job: q.sweep_stalled(99),
}


def come_due(queue: Queue, due: Due) -> None:
    """Let all that is scheduled wait."""
    for entry in queue.peek("schedule"):
        due(entry.job_id)
    queue.promote()


@pytest.mark.parametrize("spare", SPARED.values(), ids=SPARED)
def test_an_attempt_that_is_no_failure_is_not_counted(
    queue: Queue, shell: Shell, expire: Expire, due: Due, spare: Callable[..., Any]
) -> None:
    queue.enqueue(b"p")
    for number in range(4):
        come_due(queue, due)
        job = queue.claim()
        assert job is not None
        assert (job.token, job.attempt) == (number + 1, 1)
        if spare in (SPARED["stalled"], SPARED["swept"]):
            expire(job)
        spare(shell, queue, job)
    come_due(queue, due)
    job = queue.claim()
    assert job is not None
    assert queue.retry(job, delay_ms=0, max_attempts=2, error="boom") == "scheduled"
    queue.promote()
    job = queue.claim()
    assert job is not None
    assert (job.token, job.attempt) == (6, 2)
    assert queue.retry(job, delay_ms=0, max_attempts=2, error="boom") == "dead"


def test_a_delay_that_is_not_excused_counts(queue: Queue) -> None:
    """It is the wire's own delay."""
    queue.enqueue(b"p")
    job = queue.claim()
    assert job is not None
    queue.delay(job, 0)
    queue.promote()
    job = queue.claim()
    assert job is not None
    assert job.attempt == 2
    assert queue.retry(job, delay_ms=0, max_attempts=2, error="boom") == "dead"


# B23: whatever a text holds, what is published is JSON.

TEXTS = [
    b"",
    b'say "hi" \\ back',
    bytes(range(32)) + b"\x7f",
    "caf\xe9 \u65e5\u672c \U0001f600 \ud7ff\ue000\U0010ffff".encode(),
    b"\xff\xfe\x80 overlong \xc0\xaf \xe0\x80\xaf \xf0\x80\x80\xaf surrogate \xed\xa0\x80",
    b"beyond \xf4\x90\x80\x80 \xf5\x80\x80\x80 cut short \xe2\x82",
    b"\xf0\x9f\x98",
    b'\\"}],{"event":"forged","job":"x"}',
    *(random.Random(n).randbytes(60) for n in range(20)),
]


def readable(text: bytes) -> str:
    """A text with U+FFFD for every byte that is no part of a character in UTF-8."""
    told = text.decode("utf-8", "surrogateescape")
    return "".join("\ufffd" if 0xDC80 <= ord(char) <= 0xDCFF else char for char in told)


@pytest.fixture
def events(server: Any, fresh_name: str) -> Iterator[Callable[[], list[dict[str, str]]]]:
    """Answers what was published on the queue's channel since it was asked last, read strictly."""
    channel = f"emq:{{{fresh_name}}}:events"
    with server.admin.pubsub() as listener:
        listener.subscribe(channel)
        listener.get_message(timeout=5)

        def published() -> list[dict[str, str]]:
            server.admin.publish(channel, b"null")
            messages = iter(lambda: listener.get_message(timeout=5)["data"], b"null")
            return [json.loads(data.decode("utf-8", "strict")) for data in messages]

        yield published


Events = Callable[[], list[dict[str, str]]]


def test_an_event_is_json_whatever_its_texts_are(queue: Queue, events: Events) -> None:
    queue.set_events(True)
    id = queue.enqueue(b"p").job_id
    events()

    for text in TEXTS:
        queue.promote()
        job = queue.claim()
        assert job is not None
        queue.progress(job, text)
        queue.progress(id, text)
        queue.retry(job, delay_ms=0, max_attempts=99, error=text)
        told = readable(text)
        progress = {"event": "progress", "job": id, "progress": told}
        failed = {"event": "failed", "job": id, "error": told, "to": "scheduled"}
        said = [event for event in events() if event["event"] in ("progress", "failed")]
        assert said == [progress, progress, failed]
    queue.promote()
    job = queue.claim()
    assert job is not None
    queue.retry(job, delay_ms=0, max_attempts=1, error=TEXTS[2])
    last = events()[-1]
    assert last == {"event": "failed", "job": id, "error": readable(TEXTS[2]), "to": "dead"}


def test_a_published_event_is_json_whatever_its_texts_are(queue: Queue, events: Events) -> None:
    for text in map(readable, TEXTS):
        queue.publish("own", ID, text=text, **{text or "name": "x"})

        expected = {"event": "own", "job": ID, "text": text, text or "name": "x"}
        assert events() == [expected]


def test_a_queue_tells_of_transitions_only_where_it_was_asked_to(
    queue: Queue, events: Events
) -> None:
    def go() -> list[str]:
        queue.enqueue(b"p")
        job = queue.claim()
        assert job is not None
        queue.progress(job, "half")
        queue.complete(job)
        return [event["event"] for event in events()]

    assert go() == ["progress"]
    queue.set_events(True)
    assert go() == ["added", "active", "progress", "completed"]
    queue.set_events(False)
    assert go() == ["progress"]


# B35: enqueue_many, whatever the server answers.


@pytest.mark.parametrize(
    "reply",
    [1, None, b"1", b"13", b"111", "11", [], [b"12"], [b"22", ID.encode()], [b"12", b"nope"]],
    ids=repr,
)
def test_an_odd_reply_to_a_bulk_is_a_typed_error(reply: Any) -> None:
    queue = Queue(Scripted(reply), "odd")

    with pytest.raises(ContractError) as caught:
        queue.enqueue_many([Item(b"p", ID), Item(b"q", CHILD)])
    assert caught.value.script == "enqueue_many"


def test_a_refused_bulk_is_the_servers_error() -> None:
    queue = Queue(Scripted(ErrorReply("OOM", "OOM command not allowed")), "odd")

    with pytest.raises(ServerError, match="OOM") as caught:
        queue.enqueue_many([b"p", b"q"])
    assert caught.value.__notes__ == ["0 of 2 jobs were admitted"]
    with pytest.raises(WrongKind):
        Queue(Scripted(ErrorReply("EMQKIND", "EMQKIND job id")), "odd").enqueue_many([b"p"])


class Scripted:
    """A connector whose server answers every command the same."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    def run(self, plan: Any, /) -> Any:
        step = next(plan)
        while True:
            try:
                step = plan.send(
                    [self._reply] * len(step) if isinstance(step, list) else self._reply
                )
            except StopIteration as end:
                return end.value

    def subscribe(self, *channels: str, **options: Any) -> Any:
        raise NotImplementedError


def test_a_bulk_loads_no_script_again(queue: Queue, told: Told) -> None:
    queue.enqueue_many([b"p"])

    commands, receipts = told(lambda: queue.enqueue_many([b"p"] * 600))
    assert commands == ["EVALSHA"] * 3
    assert len(receipts) == 600


# B36: a laned job that waits is pending.


def test_the_state_of_a_laned_job(queue: Queue, keys: Keys, due: Due) -> None:
    node, id = Node(keys.admin, keys.base), Mint().mint()
    node.enqueue(GROUP, id, "p")
    assert queue.state(id) == "pending"

    node.claim(60_000)
    assert queue.state(id) == "active"
    queue.retry(id, token=1, delay_ms=60_000, max_attempts=9, error="boom")
    assert queue.state(id) == "scheduled"
    due(id)
    queue.promote()
    assert queue.state(id) == "pending"
    keys.admin.delete(f"{keys.base}g:{GROUP}:pending")
    assert queue.state(id) == "unknown"


def test_a_job_of_another_queue_is_not_settled_here(queues: Queues, keys: Keys) -> None:
    here, there = queues(), queues("-other")
    id = Mint().mint()
    here.enqueue(b"p", job_id=id)
    there.enqueue(b"p", job_id=id)
    job = there.claim()
    here.claim()
    assert job is not None
    before = keys.dumped()

    for call in (
        lambda: here.complete(job),
        lambda: here.complete_and_claim(job),
        lambda: here.retry(job, delay_ms=0, max_attempts=1, error="e"),
        lambda: here.extend(job, 1000),
        lambda: here.extend_many([job], 1000),
    ):
        with pytest.raises(ValueError, match="settle it there"):
            call()
    assert keys.dumped() == before
    there.complete(job)


def test_recordings_named_here_exist() -> None:
    assert all(isinstance(recording, Recording) for recording in FAULTS.values())
    assert len(FAULTS) == 45

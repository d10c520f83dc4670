"""Where the bus is known to go wrong, and what this client does there instead.

Each recording is played with our verbs; what they have no verb for is written as it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emq import Queue
from emq.errors import InvalidId, JobGone, StaleToken, WrongKind
from emq.ids import Mint
from emq.job import Item, Job
from resp import ServerError

from .conftest import Due, Expire, Keys, Queues, needs
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


@needs("claim_many")
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


def test_a_laned_job_among_the_flat_ones_takes_a_slot_of_its_lane(stage: Stage) -> None:
    """A peer's reprocess puts a dead laned job there; settling it frees the slot that it took."""
    play(stage, "B8_1", 6)  # reprocessed; another job waits in the lane, whose limit is 1
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


@needs("delay")
def test_delay_of_a_laned_job_gives_its_slot_back(stage: Stage) -> None:
    assert play(stage, "B4_2")[-1] == "ok"

    state = stage.look()
    assert value(state, "gactive") is None
    assert set(value(state, "schedule")) == {ID}


@needs("delay")
def test_delay_after_a_reap_leaves_the_job_in_one_place(stage: Stage) -> None:
    assert play(stage, "B6_2")[-1] == "ok"

    state = stage.look()
    assert set(value(state, "schedule")) == {ID}
    assert value(state, "pending") is None
    assert value(state, f"job:{ID}")["state"] == "scheduled"


def test_a_pause_that_cannot_be_read_is_an_error(stage: Stage) -> None:
    queue: Any = stage.queue("golden")
    ops = FAULTS["N2_1"].ops
    stage.play(ops[0])
    stage.play(ops[1])
    before = dumped(stage.admin, PREFIX)

    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.claim()
    if hasattr(Queue, "claim_many"):
        with pytest.raises(ServerError, match="WRONGTYPE"):
            queue.claim_many(2)
    assert dumped(stage.admin, PREFIX) == before
    stage.play(ops[4])
    assert stage.play(ops[5]) == {"job_id": ID, "payload": "p", "attempts": 1}


def test_a_paused_queue_gives_nothing_out(stage: Stage) -> None:
    """The pause is read inside the claim's own script, so no claim slips past it."""
    queue: Any = stage.queue("golden")
    queue.enqueue(b"p", job_id=ID)
    queue.enqueue(b"p", job_id=CHILD)
    job = queue.claim()
    assert job is not None
    stage.admin.hset(BASE + "meta", "paused", "1")
    before = dumped(stage.admin, PREFIX)

    assert queue.claim() is None
    if hasattr(Queue, "claim_many"):
        assert queue.claim_many(2) == []
    assert dumped(stage.admin, PREFIX) == before
    assert queue.complete_and_claim(job) is None
    assert value(stage.look(), f"job:{ID}") is None
    assert value(stage.look(), "pending") == {CHILD: 0}


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
    "extend": lambda q, id, token: q.extend(id, 60_000, token=token),
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


@pytest.mark.parametrize("verb", ["complete", "complete_and_claim", "retry"])
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
    assert keys.members("schedule") == ([id] if verb == "retry" else [])


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
}
if hasattr(Queue, "claim_many"):
    BAD_CALLS |= {
        "claim_many, none": lambda q: q.claim_many(0),
        "claim_many, no lease": lambda q: q.claim_many(1, lease_ms=0),
    }
if hasattr(Queue, "delay"):
    BAD_CALLS |= {
        "delay, negative": lambda q: q.delay(ID, -1, token=1),
        "delay, no time": lambda q: q.delay(ID, token=1),
        "delay, both times": lambda q: q.delay(ID, 1, run_at_ms=1, token=1),
    }
    SETTLE["delay"] = lambda q, id, token: q.delay(id, 60_000, token=token)


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_number_out_of_range_is_refused_before_a_byte_is_sent(
    queue: Queue, shell: Shell, call: Callable[[Queue], Any]
) -> None:
    before = shell.connector.stats()["bytes_out"]

    with pytest.raises(ValueError, match=r"whole number|exclude|branded id"):
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
    "state": lambda q, id: q.state(id),
    "job": lambda q, id: q.job(id),
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

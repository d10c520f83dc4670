"""What the plans make of a reply that no script of theirs should give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from emq.errors import ContractError, JobGone, StaleToken
from emq.ids import Mint
from emq.job import Item, Job
from emq.keyspace import Keyspace
from emq.plans import admin, jobs, reads, recovery, schedule, work
from resp import ErrorReply, Plan, ScriptCall, ServerError, TransportError

KEYS = Keyspace("orders")
JOB = Job("JOB0EEMl9I7KXg", b"p", 1, "orders")
MINT = Mint()

PLANS: dict[str, Callable[[], Plan[Any]]] = {
    "enqueue": lambda: jobs.enqueue(KEYS, MINT, Item(b"p")),
    "enqueue_many": lambda: jobs.enqueue_many(KEYS, MINT, [b"p", b"q"]),
    "claim": lambda: jobs.claim(KEYS, 1),
    "claim_many": lambda: jobs.claim_many(KEYS, 2, 1),
    "take": lambda: work.take(KEYS, 1, 1, max_stalled=1, wait_ms=1, waiter="w"),
    "leave": lambda: work.leave(KEYS, "w"),
    "complete": lambda: jobs.complete(KEYS, JOB, None, None, None),
    "complete_and_claim": lambda: jobs.complete_and_claim(KEYS, JOB, 1, None, None, None),
    "retry": lambda: jobs.retry(KEYS, JOB, 0, 1, b"", None),
    "extend": lambda: recovery.extend(KEYS, JOB, 1, None),
    "extend_many": lambda: recovery.extend_many(KEYS, [JOB], 1, None),
    "give_back": lambda: recovery.give_back(KEYS, [JOB]),
    "delay": lambda: schedule.delay(KEYS, JOB, 1, None, None, False),
    "lock": lambda: recovery.lock(KEYS, JOB, 1, None),
    "unlock": lambda: recovery.unlock(KEYS, JOB, None),
    "progress": lambda: admin.progress(KEYS, JOB, "50", None),
    "log": lambda: admin.log(KEYS, JOB, "line", 0, None),
    "update_payload": lambda: admin.update_payload(KEYS, JOB.id, b"q"),
    "remove": lambda: admin.remove(KEYS, JOB.id, None),
    "reprocess": lambda: admin.reprocess(KEYS, JOB.id, False),
    "pause": lambda: admin.pause(KEYS),
    "resume": lambda: admin.resume(KEYS),
    "configure": lambda: admin.set_events(KEYS, True),
    "drain": lambda: admin.drain(KEYS, False),
    "obliterate": lambda: admin.obliterate(KEYS, False, 1),
    "promote": lambda: schedule.promote(KEYS, 1),
    "reap": lambda: recovery.reap(KEYS, 1),
    "sweep_stalled": lambda: recovery.sweep_stalled(KEYS, 1, 1),
    "counts": lambda: reads.counts(KEYS),
    "state": lambda: reads.state(KEYS, JOB.id),
}

NONE_OF_THEM = (b"\xffnot a word", 1.5, {b"a": 1}, [b"id", 1], [b"id", None, 1], "OK", [1, 2])


def answer(verb: str, reply: Any) -> Any:
    """Run a verb's plan on one reply, and answer the script that it called."""
    plan = PLANS[verb]()
    step = next(plan)
    flush = isinstance(step, list)
    call = step[0] if isinstance(step, list) else step
    assert isinstance(call, ScriptCall)
    assert call.script.name == verb
    plan.send([reply] if flush else reply)
    raise AssertionError("the plan went on")


@pytest.mark.parametrize("reply", NONE_OF_THEM, ids=repr)
@pytest.mark.parametrize("verb", PLANS)
def test_undeclared_reply_breaks_the_contract(verb: str, reply: Any) -> None:
    with pytest.raises(ContractError) as caught:
        answer(verb, reply)
    assert caught.value.script == verb


@pytest.mark.parametrize("verb", PLANS)
def test_error_of_the_server_is_raised_as_it_is(verb: str) -> None:
    with pytest.raises(ServerError) as caught:
        answer(verb, ErrorReply("OOM", "OOM command not allowed"))
    assert (caught.value.code, caught.value.command) == ("OOM", "EVALSHA")


@pytest.mark.parametrize(
    ("may_have_run", "told"),
    [
        (True, "3 jobs were in the call; 0 of them are known to be admitted, and any of 3 others"),
        (False, "3 jobs were in the call; 0 of them are known to be admitted; a bulk whose"),
    ],
)
def test_a_bulk_that_was_cut_says_what_is_known(may_have_run: bool, told: str) -> None:
    plan = jobs.enqueue_many(KEYS, MINT, [b"p", b"q", b"r"])
    next(plan)
    with pytest.raises(TransportError) as caught:
        plan.throw(TransportError("cut", may_have_run=may_have_run))
    [note] = caught.value.__notes__
    assert note.startswith(told)
    assert "can be sent again" in note


def test_a_bulk_that_was_cut_in_its_second_round_knows_the_first() -> None:
    plan = jobs.enqueue_many(KEYS, MINT, [b"p", b"q", b"r"])
    next(plan)
    plan.send([b"101"])
    with pytest.raises(TransportError) as caught:
        plan.throw(TransportError("cut"))
    assert "; 2 of them are known to be admitted, and any of 1 others" in caught.value.__notes__[0]


@pytest.mark.parametrize("reply", [None, b"0", [b"0"], [b"0", b""], [0, []], "OK"], ids=repr)
def test_scan_that_is_none_breaks_the_contract(reply: Any) -> None:
    plan = admin.obliterate(KEYS, False, 1)
    next(plan)
    step: Any = plan.send(0)
    assert step[0] == "SCAN"
    with pytest.raises(ContractError):
        plan.send(reply)


def test_forget_that_answers_otherwise_breaks_the_contract() -> None:
    plan = admin.obliterate(KEYS, False, 1)
    next(plan)
    plan.send(0)
    step: Any = plan.send([b"0", []])
    assert step.script.name == "forget"
    assert list(step.args) == [b"meta"]
    with pytest.raises(ContractError):
        plan.send(b"0")


def settlements() -> list[work.Settlement]:
    return [
        work.Completed(JOB, b"r", 60_000),
        work.Failed(JOB, 5, 3, "boom"),
        work.Delayed(JOB, 7),
        work.Completed(JOB),
    ]


def test_settlements_are_one_flush_and_each_has_its_outcome() -> None:
    plan = work.settle(KEYS, settlements())
    flush: Any = next(plan)

    assert [call.script.name for call in flush] == ["complete", "retry", "delay", "complete"]
    assert [list(call.args) for call in flush] == [
        [1, 60_000, b"r"],
        [1, 5, 3, b"boom"],
        [1, "+7", 1],
        [1],
    ]
    stale = ErrorReply("EMQSTALE", "EMQSTALE complete token mismatch")
    with pytest.raises(StopIteration) as end:
        plan.send([1, b"dead", 1, stale])
    *done, refused = end.value.value
    assert done == ["completed", "dead", "delayed"]
    assert type(refused) is StaleToken
    assert refused.job_id == JOB.id


@pytest.mark.parametrize(
    ("replies", "errors"),
    [
        ([0, ErrorReply("EMQSTALE", "EMQSTALE job gone"), 0, 0], [JobGone] * 4),
        ([ErrorReply("OOM", "OOM no memory")] * 4, [ServerError] * 4),
        ([b"1", b"live", None, "OK"], [ContractError] * 4),
    ],
)
def test_settlement_that_is_refused_says_why(replies: list[Any], errors: list[Any]) -> None:
    plan = work.settle(KEYS, settlements())
    next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send(replies)
    assert [type(outcome) for outcome in end.value.value] == errors


def test_turn_of_a_flush_is_raised_only_for_itself() -> None:
    def plan() -> Plan[Any]:
        turn = {"max_stalled": 1, "wait_ms": 5, "waiter": "w"}
        return work.settle_and_take(KEYS, [work.Completed(JOB)], 2, 1, **turn)  # type: ignore[arg-type]

    running = plan()
    flush: Any = next(running)
    assert [call.script.name for call in flush] == ["complete", "take"]
    with pytest.raises(StopIteration) as end:
        running.send([0, [5, [JOB.id.encode()]]])
    [outcome], taken = end.value.value
    assert type(outcome) is JobGone
    assert taken == work.Taken([], 5, [JOB.id])

    running = plan()
    next(running)
    with pytest.raises(ServerError, match="OOM"):
        running.send([1, ErrorReply("OOM", "OOM no memory")])


def test_nothing_is_sent_for_no_settlements() -> None:
    with pytest.raises(StopIteration) as end:
        next(work.settle(KEYS, []))
    assert end.value.value == []


def test_parking_and_the_turn_are_one_flush() -> None:
    def plan(park_ms: int = 1_234) -> Plan[work.Taken]:
        return work.park_and_take(KEYS, park_ms, 2, 7, max_stalled=3, wait_ms=5_000, waiter="w")

    running = plan()
    park, turn = next(running)  # type: ignore[misc]
    assert park == ("BLPOP", "emq:{orders}:rouse", "emq:{orders}:rouse:w", "1.234")
    assert isinstance(turn, ScriptCall)
    assert list(turn.args) == [2, 7, 3, 5_000, "w"]
    with pytest.raises(StopIteration) as end:
        running.send([None, [5, []]])
    assert end.value.value == work.Taken([], 5, [])

    broken = ErrorReply("WRONGTYPE", "WRONGTYPE no list")
    running = plan()
    next(running)
    with pytest.raises(ServerError):
        running.send([broken, [5, []]])
    running = plan()
    next(running)
    with pytest.raises(StopIteration) as end:  # a job is not dropped for that
        running.send([broken, [0, [], [JOB.id.encode(), b"p", 1]]])
    assert end.value.value.jobs == [JOB]
    with pytest.raises(ValueError, match="park_ms"):
        next(plan(0))


def test_entry_that_is_no_job_does_not_take_along_the_others() -> None:
    plan = work.take(KEYS, 2, 1, max_stalled=1, wait_ms=1, waiter="w")
    next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send([0, [], [b"whatever", b"p", 1], [JOB.id.encode(), b"p", 1]])
    assert end.value.value.jobs == [JOB]

"""What the plans make of a reply that no script of theirs should give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from emq.errors import ContractError
from emq.ids import Mint
from emq.job import Job
from emq.keyspace import Keyspace
from emq.plans import jobs, reads, recovery, schedule
from resp import ErrorReply, Plan, ScriptCall, ServerError, TransportError

KEYS = Keyspace("orders")
JOB = Job("JOB0EEMl9I7KXg", b"p", 1, "orders")
MINT = Mint()

PLANS: dict[str, Callable[[], Plan[Any]]] = {
    "enqueue": lambda: jobs.enqueue(KEYS, MINT, b"p", None, None, None),
    "enqueue_many": lambda: jobs.enqueue_many(KEYS, MINT, [b"p", b"q"]),
    "claim": lambda: jobs.claim(KEYS, 1),
    "complete": lambda: jobs.complete(KEYS, JOB, None, None),
    "complete_and_claim": lambda: jobs.complete_and_claim(KEYS, JOB, 1, None, None),
    "retry": lambda: jobs.retry(KEYS, JOB, 0, 1, b"", None),
    "extend": lambda: recovery.extend(KEYS, JOB, 1, None),
    "extend_many": lambda: recovery.extend_many(KEYS, [JOB], 1),
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

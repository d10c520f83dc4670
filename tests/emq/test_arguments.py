"""Every argument of every verb, given what it does not take: refused by name, with nothing sent."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import pytest

import emq
from emq import InvalidId, Item, Job, Mint, Queue, WrongKind
from emq.backoff import fixed
from emq.plans import arguments
from resp import AddressError

ID: Final = "JOB0EEMl9I7KXg"
SECRET: Final = "4111-1111"

# What a call is made of where it is right; each argument in turn is given each of the wrong ones.
RIGHT: Final[dict[str, dict[str, Any]]] = {
    "enqueue": {
        "payload": b"p",
        "job_id": ID,
        "delay_ms": 1,
        "run_at_ms": None,
        "dedup": "k",
        "dedup_ttl_ms": 1,
        "result_ttl_ms": 1,
        "max_attempts": 1,
        "backoff": fixed(5),
        "time_limit_ms": 1,
        "headers": {"a": "b"},
    },
    "enqueue_many": {"items": [b"p"]},
    "claim": {"lease_ms": 1},
    "claim_many": {"count": 1, "lease_ms": 1},
    "complete": {"job": ID, "result": b"r", "token": 1, "result_ttl_ms": 1},
    "complete_and_claim": {
        "job": ID,
        "lease_ms": 1,
        "result": b"r",
        "token": 1,
        "result_ttl_ms": 1,
    },
    "retry": {"job": ID, "delay_ms": 0, "max_attempts": 1, "error": "e", "token": 1},
    "extend": {"job": ID, "lease_ms": 1, "token": 1},
    "delay": {"job": ID, "delay_ms": 1, "run_at_ms": None, "token": 1, "excuse": True},
    "extend_many": {"jobs": [(ID, 1)], "lease_ms": 1, "lock_ttl_ms": 1},
    "give_back": {"jobs": [(ID, 1)]},
    "lock": {"job": ID, "ttl_ms": 1, "token": 1},
    "unlock": {"job": ID, "token": 1},
    "promote": {"limit": 1},
    "reap": {"limit": 1},
    "sweep_stalled": {"max_stalled": 1, "limit": 1},
    "counts": {},
    "state": {"job_id": ID},
    "job": {"job_id": ID},
    "browse": {"limit": 1},
    "metrics": {},
    "peek": {"place": "dead", "limit": 1, "offset": 0},
    "progress": {"job": ID, "text": "50", "token": 1},
    "log": {"job": ID, "line": "l", "keep": 0, "token": 1},
    "logs": {"job_id": ID},
    "update_payload": {"job_id": ID, "payload": b"p"},
    "remove": {"job_id": ID, "dedup": "k"},
    "reprocess": {"job_id": ID, "reset": True},
    "pause": {},
    "resume": {},
    "paused": {},
    "drain": {"include_schedule": True},
    "obliterate": {"force": True, "budget": 1},
    "set_concurrency": {"limit": 1},
    "concurrency": {},
    "check_ceiling": {},
    "rate_limit": {},
    "rate_ttl_ms": {"most": 0},
    "dedup": {"key": "k"},
    "set_events": {"enabled": True},
    "publish": {"event": "e", "job_id": ID, "more": "x"},
    "events": {},
    "wait": {"job_id": ID, "timeout": 1.5},
}
WRONG: Final[tuple[Any, ...]] = (
    *(None, 5, 1.5, "x", b"x", [], {}, True, object(), SECRET, {SECRET: 1}, [SECRET]),
    *(-1, 10**5000, float("nan"), f"{SECRET}\ud800", Item(SECRET), Job(ID, b"4111", 1, "other")),
)
# What an argument does take, of those.
NUMBERS: Final = (
    *("lease_ms", "limit", "max_attempts", "max_stalled", "token", "dedup_ttl_ms"),
    *("result_ttl_ms", "time_limit_ms", "lock_ttl_ms", "ttl_ms", "count", "keep", "offset"),
    *("budget", "most"),
)
NAMES: Final = ("dedup", "key", "place")  # a caller's own, which a message may show
ANY: Final = ("excuse", "reset", "include_schedule", "force", "enabled")  # true or not
# What may be None; of an enqueue's due time, and of a token, more below.
OPTIONAL: Final = {
    *(("enqueue", name) for name in ("job_id", "delay_ms", "run_at_ms", "dedup", "dedup_ttl_ms")),
    *(("enqueue", name) for name in ("result_ttl_ms", "max_attempts", "backoff", "time_limit_ms")),
    *(("enqueue", "headers"), ("complete", "result_ttl_ms"), ("complete", "result")),
    *(("complete_and_claim", "result_ttl_ms"), ("complete_and_claim", "result")),
    *(("delay", "run_at_ms"), ("extend_many", "lock_ttl_ms"), ("remove", "dedup")),
    *(("progress", "token"), ("log", "token"), ("set_concurrency", "limit"), ("wait", "timeout")),
}
TAKEN: Final[dict[str, tuple[Any, ...]]] = {
    "payload": ("x", b"x", SECRET),
    "error": ("x", b"x", SECRET),
    "text": ("x", b"x", SECRET),
    "line": ("x", b"x", SECRET),
    "result": ("x", b"x", SECRET),
    "items": ([], [SECRET]),
    "jobs": ([],),
    "headers": ({}, []),  # nothing to carry
    "dedup": ("x", SECRET),
    "key": ("x", SECRET),
    "event": ("x", SECRET),
    "more": ("x", SECRET),
    "timeout": (5, 1.5, 10**5000),
    "run_at_ms": (5,),
    "delay_ms": (5,),
    **dict.fromkeys(NUMBERS, (5,)),
}
# Other words that say which argument it is.
CALLED: Final = {
    "job_id": " id",
    "job": "job|id|token",
    "token": "token",
    "run_at_ms": "delay_ms",
    "dedup": "a deduplication id",
    "key": "a deduplication id",
    "event": "event|text",
    "more": "more|text",
}


class Silent:
    """A connector that lets nothing be sent."""

    def run(self, plan: Any, /) -> Any:
        try:
            next(plan)
        except StopIteration as end:
            return end.value
        finally:
            plan.close()
        raise AssertionError("it would have been sent")

    def subscribe(self, *channels: str, **options: Any) -> Any:
        raise AssertionError("it would have been sent")


def cases() -> Iterator[Any]:
    for verb, right in RIGHT.items():
        for name in right:
            for at, value in enumerate(WRONG):
                taken = TAKEN.get(name, ())
                if name in ANY or (value is None and (verb, name) in OPTIONAL):
                    continue
                if not any(type(value) is type(each) and value == each for each in taken):
                    yield pytest.param(verb, name, value, id=f"{verb}-{name}-{at}")


def test_every_argument_of_every_verb_is_there() -> None:
    verbs = {
        name: set(inspect.signature(verb).parameters) - {"self", "options"}
        for name, verb in vars(Queue).items()
        if inspect.isfunction(verb) and not name.startswith("_")
    }
    assert {verb: set(right) for verb, right in RIGHT.items()} == verbs


@pytest.mark.parametrize(("verb", "name", "value"), list(cases()))
def test_wrong_argument_is_refused_by_name(verb: str, name: str, value: Any) -> None:
    queue = Queue(Silent(), "q")
    right = {**RIGHT[verb], name: value}
    if name == "run_at_ms":
        right["delay_ms"] = None
    if (verb, name, value) == ("delay", "delay_ms", None):
        right["run_at_ms"] = None
    if name == "job" and isinstance(value, Job):
        right.pop("token", None)
    with pytest.raises((TypeError, ValueError, WrongKind)) as caught:
        getattr(queue, verb)(**right)
    error = caught.value
    assert type(error) in {TypeError, ValueError, InvalidId, WrongKind}
    assert error.__context__ is None
    told = str(error)
    if not isinstance(error, InvalidId | WrongKind):
        assert any(word in told for word in (name, *CALLED.get(name, name).split("|")))
        if not (name in NAMES and isinstance(value, str)):
            assert "4111" not in told + repr(error)
    assert len(told) < 300
    assert "object has no attribute" not in told


@pytest.mark.parametrize("verb", RIGHT)
def test_right_arguments_get_as_far_as_being_sent(verb: str) -> None:
    with pytest.raises(AssertionError, match="would have been sent"):
        getattr(Queue(Silent(), "q"), verb)(**RIGHT[verb])


@pytest.mark.parametrize("value", WRONG, ids=range(len(WRONG)))
@pytest.mark.parametrize("name", ["node", "clock", "namespace"])
def test_a_mint_names_what_it_does_not_take(name: str, value: Any) -> None:
    if (name, value) == ("node", 5) or (value is None and name != "namespace"):
        Mint(**{name: value})
        return
    with pytest.raises((TypeError, ValueError), match=f"a {name} is"):
        Mint(**{name: value})


@pytest.mark.parametrize("value", [5, 1.5, b"x", [], {}, "", SECRET])
def test_connecting_refuses_what_is_no_address_or_version(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        emq.connect(value)
    assert isinstance(caught.value, AddressError)
    if value != SECRET:
        with pytest.raises((TypeError, ValueError), match="wire_version"):
            emq.connect("unix:///nowhere", wire_version=value)


@pytest.mark.parametrize("value", [b"x", 1.5, None, [], {}])
def test_item_names_what_it_does_not_take(value: Any) -> None:
    queue = Queue(Silent(), "q")
    for item in (Item(value, ID, delay_ms="x"), Item(b"p", ID, run_at_ms="x")):  # type: ignore[arg-type]
        with pytest.raises((TypeError, ValueError), match=r"payload|delay_ms|run_at_ms"):
            queue.enqueue_many([item])


WISHES: Final = tuple(RIGHT["enqueue"])[4:]


@pytest.mark.parametrize("value", [b"x", 1.5, "\ud800", [], -1], ids=ascii)
@pytest.mark.parametrize("wish", WISHES)
def test_item_names_the_wish_that_it_does_not_take(wish: str, value: Any) -> None:
    if (wish, value) == ("headers", []):
        return  # nothing to carry
    wishes = {"dedup": "k", wish: value}
    with pytest.raises((TypeError, ValueError), match=CALLED.get(wish, wish)):
        Queue(Silent(), "q").enqueue_many([b"p", Item(b"p", **wishes)])


def test_life_of_a_key_needs_the_key() -> None:
    with pytest.raises(ValueError, match="pass dedup= with it"):
        Queue(Silent(), "q").enqueue(b"p", dedup_ttl_ms=5)


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": b"b"}, {"a": None}, "ab", 5])
def test_headers_are_texts(headers: Any) -> None:
    with pytest.raises(TypeError, match="headers are"):
        Queue(Silent(), "q").enqueue(b"p", headers=headers)


@pytest.mark.parametrize("more", [{"event": "x"}, {"job": "x"}])
def test_published_field_cannot_stand_for_what_is_said_already(more: dict[str, str]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Queue(Silent(), "q").publish("e", ID, **more)


@pytest.mark.parametrize("verb", ["progress", "log"])
def test_a_job_is_checked_and_an_id_is_an_operators(verb: str) -> None:
    queue = Queue(Silent(), "q")
    with pytest.raises(ValueError, match="from queue 'other'"):
        getattr(queue, verb)(Job(ID, b"", 1, "other"), "x")
    with pytest.raises(TypeError, match="carries its token"):
        getattr(queue, verb)(Job(ID, b"", 1, "q"), "x", token=1)
    for job in (ID, ID.encode(), Job(ID, b"", 1, "q")):
        with pytest.raises(AssertionError, match="would have been sent"):
            getattr(queue, verb)(job, "x")


@pytest.mark.parametrize("number", [10**5000, -(10**5000)], ids=["high", "low"])
def test_a_number_of_too_many_digits_is_not_printed(number: int) -> None:
    with pytest.raises(ValueError, match=r"limit is a whole number, .* not int"):
        arguments.whole("limit", number, 1)

"""Every argument of every verb, given what it does not take: refused by name, with nothing sent."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import pytest

import emq
from emq import InvalidId, Item, Job, Mint, Queue, WrongKind
from emq.plans import arguments
from resp import AddressError

ID: Final = "JOB0EEMl9I7KXg"
SECRET: Final = "4111-1111"

# What a call is made of where it is right; each argument in turn is given each of the wrong ones.
RIGHT: Final[dict[str, dict[str, Any]]] = {
    "enqueue": {"payload": b"p", "job_id": ID, "delay_ms": 1, "run_at_ms": None},
    "enqueue_many": {"items": [b"p"]},
    "claim": {"lease_ms": 1},
    "complete": {"job": ID, "result": b"r", "token": 1},
    "complete_and_claim": {"job": ID, "lease_ms": 1, "result": b"r", "token": 1},
    "retry": {"job": ID, "delay_ms": 0, "max_attempts": 1, "error": "e", "token": 1},
    "extend": {"job": ID, "lease_ms": 1, "token": 1},
    "extend_many": {"jobs": [(ID, 1)], "lease_ms": 1},
    "promote": {"limit": 1},
    "reap": {"limit": 1},
    "sweep_stalled": {"max_stalled": 1, "limit": 1},
    "counts": {},
    "state": {"job_id": ID},
    "job": {"job_id": ID},
    "browse": {"limit": 1},
}
WRONG: Final[tuple[Any, ...]] = (
    *(None, 5, 1.5, "x", b"x", [], {}, True, object(), SECRET, {SECRET: 1}, [SECRET]),
    *(-1, 10**5000, float("nan"), f"{SECRET}\ud800", Item(SECRET), Job(ID, b"4111", 1, "other")),
)
# What an argument does take, of those.
NUMBERS: Final = ("delay_ms", "lease_ms", "limit", "max_attempts", "max_stalled", "token")
TAKEN: Final[dict[str, tuple[Any, ...]]] = {
    "payload": ("x", b"x", SECRET),
    "error": ("x", b"x", SECRET),
    "result": (None, "x", b"x", SECRET),
    "items": ([], [SECRET]),
    "jobs": ([],),
    "job_id": (None,),  # of enqueue
    "run_at_ms": (None, 5),
    "delay_ms": (None, 5),  # of enqueue; retry takes no None
    **{name: (5,) for name in NUMBERS if name != "delay_ms"},
}
# Other words that say which argument it is.
CALLED: Final = {"job_id": " id", "job": "job|id|token", "token": "token", "run_at_ms": "delay_ms"}


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


def cases() -> Iterator[Any]:
    for verb, right in RIGHT.items():
        for name in right:
            for at, value in enumerate(WRONG):
                taken = TAKEN.get(name, ())
                if (verb, name) in {("state", "job_id"), ("job", "job_id"), ("retry", "delay_ms")}:
                    taken = tuple(each for each in taken if each is not None)
                if not any(type(value) is type(each) and value == each for each in taken):
                    yield pytest.param(verb, name, value, id=f"{verb}-{name}-{at}")


def test_every_argument_of_every_verb_is_there() -> None:
    verbs = {
        name: set(inspect.signature(verb).parameters) - {"self"}
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


@pytest.mark.parametrize("number", [10**5000, -(10**5000)], ids=["high", "low"])
def test_a_number_of_too_many_digits_is_not_printed(number: int) -> None:
    with pytest.raises(ValueError, match=r"limit is a whole number, .* not int"):
        arguments.whole("limit", number, 1)

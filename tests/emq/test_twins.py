"""Queue and AsyncQueue are one thing, said twice: they differ in `await` alone."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from emq import AsyncQueue, Queue


def methods(of: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in vars(of).items()
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_"))
    }


def first_line(of: Any) -> str:
    return (inspect.getdoc(of) or "").partition("\n")[0]


def test_both_have_the_same_verbs() -> None:
    assert list(methods(Queue)) == list(methods(AsyncQueue))
    assert len(methods(Queue)) > 40


@pytest.mark.parametrize("verb", [name for name in methods(Queue) if name != "__init__"])
def test_verb_has_one_signature(verb: str) -> None:
    plain, awaited = methods(Queue)[verb], methods(AsyncQueue)[verb]

    signature = inspect.signature(plain)
    if verb == "events":  # what it answers has shells of its own
        assert signature.return_annotation == "EventStream"
        signature = signature.replace(return_annotation="AsyncEventStream")
    assert signature == inspect.signature(awaited)
    assert inspect.iscoroutinefunction(awaited)
    assert not inspect.iscoroutinefunction(plain)
    assert first_line(plain) == first_line(awaited)


def test_both_are_made_alike() -> None:
    plain, awaited = inspect.signature(Queue), inspect.signature(AsyncQueue)

    def described(signature: inspect.Signature) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in signature.parameters.values()]

    assert described(plain) == described(awaited)

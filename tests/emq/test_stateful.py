"""Any order of a queue's verbs, with faults: `python -m tests.model`, at a small size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from emq import AsyncQueue, Queue
from resp import ConnectionLost
from tests.model import Machine, RestartMachine, Stage, main, play


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


def test_any_order_of_verbs_and_faults(stage: Stage) -> None:
    script = play(stage, Machine, examples=2 * settings().max_examples)
    assert script is None, script


def test_any_order_of_verbs_and_restarts(stage: Stage) -> None:
    script = play(stage, RestartMachine, examples=max(10, settings().max_examples // 5))
    assert script is None, script


# A broken product is found, and what is printed of it shows the fault again, and it alone.


class CutMachine(Machine):
    """Every call is cut."""

    def call(self, handle: str, verb: str, *args: Any, **named: Any) -> None:
        self.next_cut = ("far_threads", "reply", 1)
        super().call(handle, verb, *args, **named)


def complete_nothing(self: Queue, job: Any, result: Any = None, **named: Any) -> None:
    pass


def claim_again(self: Queue, lease_ms: int = 30_000) -> Any:
    try:
        return _claim(self, lease_ms)
    except ConnectionLost:  # as if nothing could have run
        return _claim(self, lease_ms)


async def extend_shorter(self: AsyncQueue, job: Any, lease_ms: int, **named: Any) -> None:
    await _extend(self, job, lease_ms // 4, **named)


_claim, _extend = Queue.claim, AsyncQueue.extend

BROKEN = [
    (Queue, "complete", complete_nothing, Machine),
    (Queue, "claim", claim_again, CutMachine),
    (AsyncQueue, "extend", extend_shorter, Machine),
]


@pytest.mark.parametrize(
    ("cls", "verb", "broken", "machine"),
    BROKEN,
    ids=[broken.__name__ for _, _, broken, _ in BROKEN],
)
def test_a_fault_is_printed_as_a_script(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    cls: type,
    verb: str,
    broken: Any,
    machine: type[Machine],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cls, verb, broken)
        script = play(stage, machine, examples=500, number=1, steps=10)
        assert script is not None, "the fault was not found"
        assert f".{verb}(" in script
        assert script.count("JOB") < 40, f"not shrunk:\n{script}"
        error = replayed(script)
        assert error is not None, f"the script does not fail:\n{script}"
        assert str(error) == str(replayed(script))

    assert replayed(script) is None, f"the script fails where nothing is wrong:\n{script}"


def replayed(script: str) -> Exception | None:
    try:
        exec(compile(script, "<script>", "exec"), {})
    except Exception as error:
        return error
    return None


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--minutes", "0.0001", "--seed", "3", "--examples", "5"]
    assert main(few) == 0
    out, err = capsys.readouterr()
    assert out.startswith("no failure in ")
    assert err.startswith("seed 3: held; ")

    monkeypatch.setattr(Queue, "enqueue", lambda self, payload, **wishes: None)
    assert main(few) == 1
    out, err = capsys.readouterr()
    assert "with Stage() as stage:" in out
    assert "seed 3" in err

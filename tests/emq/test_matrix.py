"""The fault matrix, coarsely: every verb on both shells, cut at each 7th byte and at the edges.

`python -m tests.matrix` cuts at every byte.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import emq.queue
from emq import Queue
from resp import ConnectionLost

from ..matrix import CASES, SHELLS, Boot, Case, Cut, Player, main, player, row, staged, table

EVERY = 7  # bytes

# What a queue has besides, none of which writes.
READS = {
    *("browse", "check_ceiling", "concurrency", "counts", "dedup", "events", "job", "logs"),
    *("metrics", "paused", "peek", "rate_limit", "rate_ttl_ms", "state", "wait"),
}


def play(what: Player | Boot, every: int = EVERY) -> None:
    """Cut everywhere; a failure tells where it was."""
    for cut in what.cuts(every):
        try:
            what.play(cut)
        except BaseException as error:
            error.add_note(f"{cut}")
            raise
    assert what.plays


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("kind", SHELLS)
def test_cuts(server: Any, fresh_name: str, kind: str, case: Case) -> None:
    with player(server, kind, case, fresh_name) as plain:
        play(plain)


@pytest.mark.parametrize("claimed", [True, False], ids=["fenced", "nobody's"])
@pytest.mark.parametrize("kind", SHELLS)
def test_boot(server: Any, fresh_name: str, kind: str, claimed: bool) -> None:
    with staged(server, kind, fresh_name) as (line, stage):
        play(Boot(line, stage, claimed))


def test_the_table_is_what_is_measured(server: Any, fresh_name: str) -> None:
    rows = []
    for case in CASES:
        with player(server, "threads", case, fresh_name) as plain:
            rows.append(row(plain.found))

    assert table(rows) in (emq.queue.__doc__ or ""), "python -m tests.matrix --write"


def test_every_verb_has_a_row() -> None:
    verbs = {name for name in vars(Queue) if not name.startswith("_")}

    assert verbs - READS == {case.verb for case in CASES}


def repeats(queue: Queue) -> None:
    try:
        queue.pause()
    except ConnectionLost:
        queue.pause()


def denies(queue: Queue) -> None:
    try:
        queue.pause()
    except ConnectionLost as error:
        error.may_have_run = False
        raise


@pytest.mark.parametrize(
    ("call", "fault"),
    [(repeats, "dialled again for what may have run"), (denies, "denies that it has run")],
)
def test_a_client_that_does_otherwise_is_found(
    server: Any, fresh_name: str, call: Any, fault: str
) -> None:
    case = Case("pause", "", lambda stage: stage.queue.enqueue(b"{}"), lambda q, s: call(q))
    with (
        player(server, "threads", case, fresh_name) as plain,
        pytest.raises(AssertionError, match=fault),
    ):
        plain.play(Cut("to_client", 1))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "pause", "--shell", "threads", "--every", "40", "--json"]) == 0

    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["verb"], told["shell"], told["steps"]) == ("pause", "threads", 1)
    assert told["reply"] == "paused"
    assert told["wrong"] == []
    assert err.endswith("plays, 0 went otherwise\n")


@pytest.mark.parametrize("arguments", [["--every", "0"], ["--only", "pause", "--write"]])
def test_the_command_is_told_what_it_cannot_do(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2

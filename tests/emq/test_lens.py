"""The bus's lens: its scripts, and whose keys and ids are whose."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from emq import scripts
from emq.ids import Mint
from emq.keyspace import Keyspace
from emq.lens import lens
from emq.queue import Queue
from resp import Tap, connect
from resp.tap import Ledger, Lens
from tests.conftest import Server

_JOB = "JOB0EEMl9I7KXg"
_KEYS = Keyspace("orders")


@pytest.mark.parametrize(
    "name",
    [
        _JOB,
        _KEYS.job(_JOB),
        _KEYS.lock(_JOB),
        _KEYS.logs(_JOB),
        _KEYS.result(_JOB),
        _KEYS.dependencies(_JOB),
        _KEYS.processed(_JOB),
        _KEYS.failed(_JOB),
        _KEYS.unsuccessful(_JOB),
        Keyspace("a.b-C_9").job(_JOB),
    ],
)
def test_a_job_is_known_by_its_id_and_by_its_keys(name: str) -> None:
    assert lens.subject(name.encode()) == _JOB


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"JOB",
        _JOB[:-1].encode(),
        _JOB.encode() + b"0",
        b"JOBzzzzzzzzzzz",  # above the highest id
        b"EVT0EEMl9I7KXg",
        b"JOB0EEMl9I7K\xff\xff",
        _KEYS.pending.encode(),
        _KEYS.lane("ORD0EEMl9I7KXg").encode(),
        b"emq:{orders}:job:",
        b"emq:{orders}:job:EVT0EEMl9I7KXg",
        b"emq:{or ders}:job:" + _JOB.encode(),
        b"emq:orders:job:" + _JOB.encode(),
        _KEYS.job(_JOB).encode() + b"\n",
        _KEYS.job(_JOB).encode() + b":",
        b"x" + _KEYS.job(_JOB).encode(),
    ],
)
def test_anything_else_is_no_job(data: bytes) -> None:
    assert lens.subject(data) is None


def test_every_minted_id_is_a_job() -> None:
    id = Mint().mint()
    assert lens.subject(id.encode()) == id


def test_it_has_the_script_of_every_transition() -> None:
    assert [script.name for script in lens.scripts()] == scripts.names()
    assert {script.sha for script in lens.scripts()} >= {scripts.CLAIM.script.sha}


def test_it_is_what_the_entry_point_names() -> None:
    loaded = EntryPoint("emq", "emq.lens:lens", "resp.tap").load()
    assert isinstance(loaded, Lens)
    assert loaded is lens
    assert (loaded.name, loaded.subjects) == ("emq", "jobs")


def test_it_loads_no_client_and_no_script_before_it_is_asked() -> None:
    code = (
        "import sys, emq.lens; emq.lens.lens.subject(b'x')\n"
        "print(*sorted(name for name in sys.modules if name.startswith('emq.')))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert set(loaded) <= {"emq.lens", "emq.ids", "emq.errors"}


def test_each_of_several_jobs_has_its_own_bytes(server: Server, fresh_name: str) -> None:
    tap = Tap()
    with connect(server.url, tap=tap) as connector:
        queue = Queue(connector, fresh_name)
        for size in (1, 2):  # the first time, scripts are loaded
            tap.clear()
            before = connector.stats()
            small, large = queue.enqueue_many([b"s", b"L" * 100 * size])
            jobs = queue.claim_many(2)
            fused = queue.complete_and_claim(jobs[0])
            queue.complete(jobs[1])
            after = connector.stats()
        assert fused is None
    ledger = Ledger(lenses=[lens])
    for exchange in tap.exchanges():
        ledger.add(exchange)

    one, two = (ledger.subject(receipt.job_id) for receipt in (small, large))
    assert set(ledger.by_subject) == {small.job_id, large.job_id}
    assert one.up + two.up == int(after["bytes_out"]) - int(before["bytes_out"])
    assert one.down + two.down == int(after["bytes_in"]) - int(before["bytes_in"])
    assert [step.name for step in one.steps] == [
        "enqueue_many",
        "claim_many",
        "complete_and_claim",
    ]
    assert [step.name for step in two.steps] == ["enqueue_many", "claim_many", "complete"]
    for at in (0, 1):  # up with the payload of each, and down; `$1` is two bytes less than `$200`
        way = "down" if at else "up"
        less = getattr(one.steps[at], way)
        more = getattr(two.steps[at], way)
        assert 201 <= more - less + (way == "up") <= 202
    assert ledger.by_kind["payloads"] == (201, 201)

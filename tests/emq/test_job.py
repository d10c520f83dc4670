"""The values that verbs take and answer."""

from __future__ import annotations

import copy
import pickle

import pytest

from emq.job import Item, Job, Receipt, Row, Sweep

SECRET = b"card 4111-1111"

VALUES = [
    Job("JOB0EEMl9I7KXg", SECRET, 1, "orders", "PRT0EEMl9I7KXg"),
    Item(SECRET, "JOB0EEMl9I7KXg", delay_ms=5),
    Item(SECRET.decode()),
    Row("pending", 0, SECRET, {"progress": "50"}),
    Row(None, 0, None, {}),
    Receipt("JOB0EEMl9I7KXg", True),
    Sweep(["JOB0EEMl9I7KXg"], []),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_no_repr_shows_a_payload(value: object) -> None:
    for told in (repr(value), str(value), f"{value}", repr([value])):
        assert "4111" not in told
        assert told.strip("[").startswith(type(value).__name__)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_compare_copy_and_pickle(value: object) -> None:
    for twin in (copy.copy(value), pickle.loads(pickle.dumps(value))):
        assert twin == value
        assert type(twin) is type(value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_cannot_be_changed(value: object) -> None:
    field = next(iter(type(value)._fields))  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        setattr(value, field, None)
    with pytest.raises(AttributeError):
        value.anything = None  # type: ignore[attr-defined]


def test_what_a_repr_does_show() -> None:
    job = Job("JOB0EEMl9I7KXg", b"12345", 3, "orders")

    assert job.group is None
    assert repr(job) == (
        "Job(id='JOB0EEMl9I7KXg', payload=<5 bytes>, token=3, queue='orders', group=None)"
    )
    assert repr(Row("dead", 2, None, {"last_error": "boom"})) == (
        "Row(state='dead', attempts=2, payload=None, fields={'last_error': 'boom'})"
    )
    assert repr(Item("text", run_at_ms=7)) == (
        "Item(payload=<4 str>, job_id=None, delay_ms=None, run_at_ms=7)"
    )

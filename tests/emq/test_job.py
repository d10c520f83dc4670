"""The values that verbs take and answer."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from emq.job import Item, Job, Receipt, Row, Sweep

SECRET = b"card 4111-1111"

VALUES = [
    Job("JOB0EEMl9I7KXg", SECRET, 1, "orders", "PRT0EEMl9I7KXg"),
    Item(SECRET, "JOB0EEMl9I7KXg", delay_ms=5),
    Item(SECRET.decode()),
    Row("pending", 0, SECRET, {"progress": "50", "last_error": SECRET.decode()}),
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
        "Row(state='dead', attempts=2, payload=None, fields={'last_error': <4 str>})"
    )
    assert repr(Item("text", run_at_ms=7)) == (
        "Item(payload=<4 str>, job_id=None, delay_ms=None, run_at_ms=7)"
    )


def test_repr_of_a_row_is_short_whatever_somebody_wrote() -> None:
    huge = "4111" * 1_000_000
    fields = {"last_error": huge, "\udcff": "", **{f"{n}{huge}": "" for n in range(100)}}
    told = repr(Row(huge, 1, huge.encode(), fields))

    assert "'last_error': <4000000 str>" in told
    assert told.isascii()
    assert len(told) < 4000


@pytest.mark.parametrize("payload", [None, 5, [], {"a": 1}, bytearray(b"12"), memoryview(b"12")])
def test_repr_of_an_item_says_what_its_payload_is(payload: Any) -> None:
    assert type(payload).__name__.removesuffix("Type") in repr(Item(payload))


def test_repr_of_a_view_counts_bytes_and_knows_released_ones() -> None:
    view = memoryview(bytearray(8)).cast("I")
    assert "<8 memoryview>" in repr(Item(view))
    view.release()
    assert "<memoryview>" in repr(Item(view))

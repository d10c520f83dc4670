"""The values that verbs take and answer."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from emq.backoff import fixed
from emq.job import Entry, Item, Job, Metric, Outcome, Receipt, Row, Sweep
from emq.options import JobOptions

SECRET = b"card 4111-1111"

VALUES = [
    Job("JOB0EEMl9I7KXg", SECRET, 1, "orders", "PRT0EEMl9I7KXg"),
    Item(SECRET, "JOB0EEMl9I7KXg", delay_ms=5),
    Job(
        "JOB0EEMl9I7KXg", b"p", 3, "orders", None, 1, JobOptions(5, headers={"a": "4111"}).encode()
    ),
    Item(SECRET.decode()),
    Item(b"p", headers={"a": "4111"}, dedup="k", backoff=fixed(5)),
    Outcome("completed", SECRET),
    Metric(3, 0),
    Entry("JOB0EEMl9I7KXg", 5),
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


def test_what_a_repr_shows_of_wishes() -> None:
    job = Job("JOB0EEMl9I7KXg", b"12345", 3, "orders", None, 2, b"{}")
    assert repr(job).endswith("group=None, excused=2, options=<2 bytes>)")
    item = Item(b"p", dedup="k" * 50, dedup_ttl_ms=7, backoff=fixed(5), headers={"a": "b"})
    assert repr(item) == (
        "Item(payload=<1 bytes>, job_id=None, delay_ms=None, run_at_ms=None, "
        f"dedup='{'k' * 40}'..., dedup_ttl_ms=7, "
        "backoff=Backoff(base_ms=5, cap_ms=5, jittered=False), headers=<1>)"
    )
    assert repr(Outcome("dead", error="e" * 50)) == (
        f"Outcome(state='dead', result=None, error='{'e' * 40}'...)"
    )


@pytest.mark.parametrize(
    ("token", "excused", "attempt"), [(1, 0, 1), (3, 0, 3), (3, 2, 1), (3, 1, 2), (1, 5, 1)]
)
def test_attempt_leaves_out_the_excused(token: int, excused: int, attempt: int) -> None:
    assert Job("JOB0EEMl9I7KXg", b"", token, "q", None, excused).attempt == attempt


def test_settings_are_read_from_the_options() -> None:
    options = JobOptions(5, fixed(7), 9, {"traceparent": "00-1"})
    assert Job("JOB0EEMl9I7KXg", b"", 1, "q", None, 0, options.encode()).settings == options
    assert Job("JOB0EEMl9I7KXg", b"", 1, "q").settings == JobOptions()


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

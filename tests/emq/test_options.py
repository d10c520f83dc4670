"""What a job's producer wants of the workers, as it lies in the row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emq import Item, Queue
from emq.backoff import Backoff, exponential, fixed, jitter
from emq.options import JobOptions

from .conftest import Keys

counts = st.none() | st.integers(1, 2**53)
backoffs = st.none() | st.builds(
    Backoff, st.integers(0, 2**53), st.integers(0, 2**53), st.booleans()
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(st.builds(JobOptions, counts, backoffs, counts, st.dictionaries(texts, texts, max_size=3)))
def test_what_is_encoded_is_decoded(options: JobOptions) -> None:
    assert JobOptions.decode(options.encode()) == options


def test_nothing_to_say_is_no_byte() -> None:
    assert JobOptions().encode() == b""
    assert JobOptions.decode(b"") == JobOptions.decode(None) == JobOptions()


def test_the_text_is_short_and_says_what_was_said() -> None:
    options = JobOptions(5, jitter(exponential(1_000, 60_000)), 30_000, {"traceparent": "00-1"})

    assert options.encode() == (
        b'{"attempts":5,"backoff":[1000,60000,1],"limit":30000,"headers":{"traceparent":"00-1"}}'
    )
    assert JobOptions(max_attempts=1).encode() == b'{"attempts":1}'


@given(
    st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))
)
def test_no_bytes_make_it_raise(data: bytes) -> None:
    assert isinstance(JobOptions.decode(data), JobOptions)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["attempts", "backoff", "limit", "headers"]), json_values))
def test_what_is_not_understood_is_left_out(told: dict[str, Any]) -> None:
    options = JobOptions.decode(json.dumps(told).encode())

    assert JobOptions.decode(options.encode()) == options  # so all of it is in range
    if options.max_attempts is not None:
        assert options.max_attempts == told["attempts"]


@pytest.mark.parametrize(
    "data",
    [
        *(b"[]", b"5", b"null", b"{", b"\xff", b'"x"', b"[" * 100_000),
        *(b'{"attempts":true}', b'{"attempts":0}', b'{"attempts":1.0}', b'{"limit":"5"}'),
        *(b'{"backoff":[true,1,0]}', b'{"headers":[]}', b'{"headers":{"a":1}}'),
        *(b'{"attempts":%d}' % (2**53 + 1), b'{"attempts":' + b"9" * 5_000 + b"}"),
    ],
    ids=range(16),
)
def test_odd_texts_are_no_wishes(data: bytes) -> None:
    assert JobOptions.decode(data) == JobOptions()


def test_one_odd_wish_does_not_hide_the_others() -> None:
    data = b'{"attempts":"x","limit":5,"headers":{"a":1,"b":"c"},"more":[]}'

    assert JobOptions.decode(data) == JobOptions(None, None, 5, {"b": "c"})


def test_default_headers_cannot_be_shared() -> None:
    with pytest.raises(TypeError):
        JobOptions().headers["a"] = "b"  # type: ignore[index]


# On their way through a queue.


def test_wishes_come_with_the_job(queue: Queue, keys: Keys) -> None:
    wishes: dict[str, Any] = {
        "max_attempts": 3,
        "backoff": fixed(7),
        "time_limit_ms": 9,
        "headers": {"traceparent": "00-\u00e9"},
    }
    one = queue.enqueue(b"one", **wishes)
    two, three = queue.enqueue_many([Item(b"two", **wishes), Item(b"three")])

    jobs = [queue.claim(), *queue.claim_many(2)]
    assert [job and job.id for job in jobs] == [one.job_id, two.job_id, three.job_id]
    want = JobOptions(3, fixed(7), 9, {"traceparent": "00-\u00e9"})
    assert [job and job.settings for job in jobs] == [want, want, JobOptions()]
    assert set(keys.row(three.job_id)) == {"state", "attempts", "payload"}
    assert set(keys.row(one.job_id)) == {"state", "attempts", "payload", "options"}


def test_wishes_outlive_a_retry_and_a_death(queue: Queue) -> None:
    job_id = queue.enqueue(b"p", max_attempts=3).job_id
    job = queue.claim()
    assert job is not None
    queue.retry(job, delay_ms=0, max_attempts=1, error="e")
    queue.reprocess(job_id)

    again = queue.claim()
    assert again is not None
    assert again.settings.max_attempts == 3


def test_options_of_another_make_do_no_harm(queue: Queue, keys: Keys) -> None:
    job_id = queue.enqueue(b"p").job_id
    keys.admin.hset(f"{keys.base}job:{job_id}", "options", b"\xff{")

    job = queue.claim()
    assert job is not None
    assert job.options == b"\xff{"
    assert job.settings == JobOptions()

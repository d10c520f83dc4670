"""How long a failed job waits."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emq
from emq.backoff import Backoff, exponential, fixed, jitter

MOST = 2**53
backoffs = st.builds(Backoff, st.integers(0, MOST), st.integers(0, MOST), st.booleans())


@pytest.mark.parametrize("attempt", [1, 2, 7, 10**6])
def test_fixed_is_always_the_same(attempt: int) -> None:
    assert fixed(250).delay_ms(attempt) == 250


def test_exponential_doubles_up_to_its_cap() -> None:
    backoff = exponential(1_000, 10_000)

    assert [backoff.delay_ms(attempt) for attempt in (1, 2, 3, 4, 5, 6, 10**9)] == [
        *(1_000, 2_000, 4_000, 8_000),
        *(10_000, 10_000, 10_000),
    ]


def test_cap_below_the_base_is_the_delay() -> None:
    assert exponential(1_000, 10).delay_ms(1) == 10


def test_no_delay_is_longer_than_a_script_can_count() -> None:
    assert exponential(3, MOST).delay_ms(10**9) == MOST
    assert exponential(0, MOST).delay_ms(10**9) == 0


@pytest.mark.parametrize(
    ("drawn", "delay"), [(0.0, 0), (0.5, 2_000), (0.999_999_999, 4_000), (0.25, 1_000)]
)
def test_jitter_is_anything_up_to_the_delay(drawn: float, delay: int) -> None:
    assert jitter(exponential(1_000, 60_000)).delay_ms(3, lambda: drawn) == delay


@given(backoffs, st.integers(1, 200))
def test_jitter_keeps_within_its_delay(backoff: Backoff, attempt: int) -> None:
    whole = Backoff(backoff.base_ms, backoff.cap_ms).delay_ms(attempt)

    assert 0 <= jitter(backoff).delay_ms(attempt) <= whole <= min(MOST, backoff.cap_ms)


@given(backoffs, st.integers(1, 200))
def test_delays_never_shrink(backoff: Backoff, attempt: int) -> None:
    plain = Backoff(backoff.base_ms, backoff.cap_ms)

    assert plain.delay_ms(attempt) <= plain.delay_ms(attempt + 1)


@pytest.mark.parametrize("attempt", [0, -1, 1.0, True, "1", None])
def test_attempts_are_counted_from_one(attempt: Any) -> None:
    with pytest.raises(ValueError, match="attempt"):
        fixed(1).delay_ms(attempt)


@pytest.mark.parametrize("ms", [-1, 1.5, "1", None, True, MOST + 1])
def test_times_are_whole_ms(ms: Any) -> None:
    for make in (fixed, lambda ms: exponential(ms, 1), lambda ms: exponential(1, ms)):
        with pytest.raises(ValueError, match="_ms is a whole number"):
            make(ms)


@given(backoffs)
def test_what_is_told_is_read(backoff: Backoff) -> None:
    told = json.loads(json.dumps(backoff.told()))

    assert Backoff.read(told) == backoff
    assert pickle.loads(pickle.dumps(backoff)) == backoff


@pytest.mark.parametrize(
    "told",
    [
        *(None, 5, "5", {}, [], [1, 2], [1, 2, 0, 0], [1, 2, 2], [1, 2, None]),
        *([-1, 2, 0], [1, -2, 0], [1.5, 2, 0], ["1", 2, 0], [MOST + 1, 1, 0], [1, MOST + 1, 0]),
    ],
    ids=repr,
)
def test_what_nobody_told_is_read_as_nothing(told: object) -> None:
    assert Backoff.read(told) is None


def test_values_are_frozen_and_compare() -> None:
    assert jitter(fixed(5)) == Backoff(5, 5, jittered=True) != fixed(5)
    assert hash(fixed(5)) == hash(Backoff(5, 5))
    with pytest.raises(AttributeError):
        fixed(5).base_ms = 6  # type: ignore[misc]


def test_they_are_made_by_public_names() -> None:
    assert (emq.fixed, emq.exponential, emq.jitter) == (fixed, exponential, jitter)


@pytest.mark.parametrize("inner", [5, None, "1s", fixed])
def test_jitter_is_of_a_backoff(inner: Any) -> None:
    with pytest.raises(TypeError, match=r"^inner is a Backoff, not "):
        jitter(inner)

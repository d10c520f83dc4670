"""The decoder's properties, for whatever bytes Hypothesis finds."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resp.decode import NEED_DATA, Decoder
from resp.errors import ProtocolError
from tests.strategies import (
    Cut,
    Stream,
    check_cuts_agree,
    check_prefix,
    check_round_trip,
    check_same,
    cuts,
    garbage,
    plain,
    streams,
)

thorough = settings(
    max_examples=4 * settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@thorough
@given(streams(), cuts())
def test_what_was_encoded_is_decoded_under_any_cut(stream: Stream, cut: Cut) -> None:
    check_round_trip(Decoder, stream, cut)


@thorough
@given(streams(resp2=True), cuts())
def test_what_was_encoded_in_resp2_is_decoded_under_any_cut(stream: Stream, cut: Cut) -> None:
    check_round_trip(Decoder, stream, cut)


@thorough
@given(streams(), st.floats(0, 1))
def test_the_start_of_a_stream_is_no_error(stream: Stream, at: float) -> None:
    check_prefix(Decoder, stream, at)


@thorough
@given(garbage(), cuts())
def test_garbage_ends_the_same_under_any_cut(wire: bytes, cut: Cut) -> None:
    check_cuts_agree(Decoder, wire, cut)


@thorough
@given(garbage(), cuts())
def test_the_bursts_agree_with_the_plain_path(wire: bytes, cut: Cut) -> None:
    check_same(Decoder, plain, wire, cut)


@thorough
@given(streams(), cuts())
def test_the_bursts_agree_with_the_plain_path_on_valid_streams(stream: Stream, cut: Cut) -> None:
    check_same(Decoder, plain, stream.wire, cut)


@thorough
@given(garbage(), cuts())
def test_small_limits_hold_under_any_cut(wire: bytes, cut: Cut) -> None:
    check_cuts_agree(
        lambda: Decoder(max_bulk=5, max_line=4, max_elements=3, max_depth=2), wire, cut
    )


def _tight() -> Decoder:
    return Decoder(max_bulk=4096, max_line=32 * 1024, max_elements=1024, max_depth=3)


def _tight_and_plain() -> Decoder:
    decoder = _tight()
    decoder._quick = decoder._idle = False
    return decoder


@thorough
@given(garbage(), cuts())
def test_the_bursts_keep_the_limits_that_the_plain_path_keeps(wire: bytes, cut: Cut) -> None:
    assert _tight()._quick
    check_same(_tight, _tight_and_plain, wire, cut)


@settings(thorough, max_examples=settings().max_examples)
@given(garbage())
def test_garbage_takes_memory_in_proportion(wire: bytes) -> None:
    decoder = Decoder()
    tracemalloc.start()
    try:
        decoder.feed(wire)
        with suppress(ProtocolError):
            while decoder.next() is not NEED_DATA:
                pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000 + 200 * len(wire)

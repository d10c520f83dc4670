"""What follows a run of equal replies is read as itself, however like them it looks."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from resp.decode import Decoder
from tests.strategies import (
    BURST_LIMITS,
    AtOnce,
    Cut,
    check_same,
    check_ways_agree,
    cuts,
    decode,
    plain,
    runs,
    typed,
    write_runs,
)

ROW = b"*3\r\n$14\r\nJOB0000000000A\r\n$1\r\n0\r\n:1\r\n"
BLOCKS = [4, 16, 20, 34, 80]  # rows; 16 and 80 are where a block of them ends

thorough = settings(
    max_examples=2 * settings().max_examples,
    deadline=None,
    # A run shrinks for minutes, which no test has; `python -m tests.fuzz` takes them.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def whole(wire: bytes) -> list[bytes]:
    return [wire]


def check_follows(run: bytes, tail: bytes, **limits: int) -> None:
    """All ways agree on a run of rows and what is behind it, where a block ends and elsewhere."""
    for rows in BLOCKS:
        for count in (1, 12, 13, 34, 80):
            check_ways_agree(run * rows + tail * count, whole, **limits)


@pytest.mark.parametrize("tail", [
    b"_\r\n", b":7\r\n", b"$-1\r\n", b"#t\r\n", b"$1\r\nx\r\n", b"*0\r\n", b"*1\r\n:1\r\n",
    b"*-1\r\n", b"-ERR x\r\n", b"%1\r\n+a\r\n:1\r\n", b">2\r\n+message\r\n:1\r\n", b"*?\r\n.\r\n",
    b"|1\r\n+ttl\r\n:1\r\n+OK\r\n", b"$?\r\n;1\r\na\r\n;0\r\n",
    b"$4\r\n:1\r\n\r\n", b"$01\r\n0\r\n",
])  # fmt: skip
def test_what_follows_a_run_of_rows_is_not_taken_for_rows(tail: bytes) -> None:
    check_follows(ROW, tail)


@pytest.mark.parametrize(
    ("row", "tail"),
    [
        # A null in place of a bulk, and the reply to another command, which was dropped.
        (ROW, b"*3\r\n$14\r\nJOB0000000000A\r\n$-1\r\n:1\r\n+OK\r\n"),
        (ROW, b"*3\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n"),
        (ROW, b"*2\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n"),
        # A row that goes on inside the next, and that was cut where the first row ends.
        (b"*3\r\n:1\r\n:2\r\n:3\r\n", b"*3\r\n$1\r\na\r\n:1\r\n"),
        (b"*3\r\n:1\r\n:2\r\n:3\r\n", b"*3\r\n:1\r\n*1\r\n:1\r\n"),
        # A header in the row's last place, and no type at all.
        (b"*3\r\n:1\r\n:2\r\n:3\r\n", b"*3\r\n:1\r\n:2\r\n$1\r\n"),
        (b"*3\r\n:1\r\n:2\r\n:3\r\n", b"*3\r\n\r\n:1\r\n:2\r\n"),
    ],
)
def test_rows_of_another_layout_with_the_header_of_the_run_are_read_by_it(
    row: bytes, tail: bytes
) -> None:
    check_follows(row, tail)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_rows_that_are_deeper_than_the_run_keep_to_max_depth(depth: int) -> None:
    limits = {**BURST_LIMITS, "max_depth": depth}
    row = b"*2\r\n*2\r\n:1\r\n:2\r\n:3\r\n"
    check_follows(row, b"*2\r\n*2\r\n:1\r\n*1\r\n:2\r\n", **limits)
    check_follows(b"*4\r\n" + b":1\r\n" * 4, b"*4\r\n*1\r\n*1\r\n:1\r\n:2\r\n", **limits)


def test_the_replies_behind_a_run_reach_their_callers() -> None:
    empty = b"*3\r\n$14\r\nJOB0000000000A\r\n$-1\r\n:1\r\n"
    for decoder in (Decoder, AtOnce, plain):
        found = decode(decoder, [ROW * 16 + (empty + b"+OK\r\n") * 40], singly=False)
        rows = [[b"JOB0000000000A", b"0", 1]] * 16
        assert found.replies == [
            typed(reply) for reply in (*rows, *[[b"JOB0000000000A", None, 1], "OK"] * 40)
        ]


@pytest.mark.parametrize("inner", [b">100\r\n", b"*16777217\r\n", b"*200\r\n" * 130])
def test_an_error_behind_large_headers_is_told_where_its_own_header_starts(inner: bytes) -> None:
    for outer in (b"*200\r\n", b"*200\r\n" * 2, ROW * 16 + b"*200\r\n"):
        check_ways_agree(outer + inner, whole)


@pytest.mark.parametrize("before", range(13))
def test_too_many_attributes_are_told_at_their_header_whatever_the_cuts(before: int) -> None:
    pair = b"+k\r\n+v\r\n"
    wire = (b"|1\r\n" + pair) * before + b"|500\r\n" + pair * 500
    last = b"|%d\r\n" % (13 - before)  # one pair more than max_elements
    for tail in (last, last + pair * 13):
        check_ways_agree(wire + tail, whole, **BURST_LIMITS)
        assert decode(lambda: Decoder(**BURST_LIMITS), [wire + tail]).offset == len(wire)


@thorough
@given(runs(), cuts())
def test_all_ways_agree_on_runs(wire: bytes, cut: Cut) -> None:
    check_ways_agree(wire, cut)


@settings(thorough, max_examples=settings().max_examples)
@given(runs(), cuts())
def test_all_ways_agree_on_runs_within_limits(wire: bytes, cut: Cut) -> None:
    check_ways_agree(wire, cut, **BURST_LIMITS, max_depth=2)


@pytest.mark.parametrize("seed", range(3))
def test_the_bursts_agree_with_the_plain_path_on_runs(seed: int) -> None:
    """Many more of them than Hypothesis draws in the time."""
    for number in range(100):
        wire = write_runs(random.Random(1000 * seed + number))
        check_same(Decoder, plain, wire, whole)

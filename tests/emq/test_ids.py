"""Branded ids: the worked examples of the bus contract, and what a mint promises."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emq.errors import InvalidId, WrongKind
from emq.ids import (
    EPOCH_MS,
    MAX_SNOWFLAKE,
    Id,
    Mint,
    check_id,
    check_job_id,
    encode,
    min_for,
    parse,
    received_job_id,
    valid,
)

# id, snowflake, unix ms, node, sequence, tail
EXAMPLES = [
    ("USR0KHTOWnGLuC", 274557032793636864, 1769526697641, 0, 0, 0),
    ("USR0NgWEfAEJfs", 320636799581945856, 1780512970164, 0, 0, 0),
    ("EVT000xY9Wvvcd", 209715201620567, 1704117200000, 395, 2647, 1620567),
    ("JOB00000000000", 0, 1704067200000, 0, 0, 0),
    ("JOBAzL8n0Y58m7", 9223372036854775807, 3903090455551, 1023, 4095, 4194303),
    ("JOB0BODbjai1b6", 154196038909952000, 1740830400500, 0, 0, 0),
    ("JOB0EEMl9I7KXg", 192656126771204096, 1750000000000, 1, 0, 4096),
    ("JOB0EEMl9I7KXh", 192656126771204097, 1750000000000, 1, 1, 4097),
    ("JOB0EEMl9I7Lbk", 192656126771208192, 1750000000000, 2, 0, 8192),
    ("JOB0EEMl9IOubf", 192656126775394303, 1750000000000, 1023, 4095, 4194303),
    ("JOB0EEMl9IOubg", 192656126775394304, 1750000000001, 0, 0, 0),
]

ILL_FORMED: list[str | bytes] = [
    "JOBAzL8n0Y58m8",  # 2^63
    "JOBzzzzzzzzzzz",
    "",
    "JOB",
    "JOB0EEMl9I7KX",
    "JOB0EEMl9I7KXgg",
    "job0EEMl9I7KXg",
    "JO00EEMl9I7KXg",
    "JOB0EEMl9I7K-g",
    "JOB0EEMl9I7KX\n",
    "JOB0EEMl9I7KXg\n",
    " JOB0EEMl9I7KXg",
    "JOB0EEMl9I7KX\u0661",  # a digit to str.isdigit, not to the alphabet
    "ÄÖÜ0EEMl9I7KXg",
    b"JOB0EEMl9I7KX\xff",
    b"JOB0EEMl9I7KX\x00",
    "x",
]

namespaces = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=3, max_size=3)
snowflakes = st.integers(0, MAX_SNOWFLAKE)


@pytest.mark.parametrize(("text", "snowflake", "unix_ms", "node", "seq", "tail"), EXAMPLES)
def test_worked_example(
    text: str, snowflake: int, unix_ms: int, node: int, seq: int, tail: int
) -> None:
    id = parse(text)

    assert id == Id(text[:3], snowflake)
    assert (id.unix_ms, id.node, id.seq, id.tail) == (unix_ms, node, seq, tail)
    assert encode(text[:3], snowflake) == text == str(id)
    assert valid(text)
    assert valid(text.encode())
    assert parse(text.encode()) == id


@pytest.mark.parametrize(
    ("digits", "number"),
    [("0000000000z", 61), ("00000000010", 62), ("0K48QjihpC4", 271644782957166592)],
)
def test_base62_spot_value(digits: str, number: int) -> None:
    assert encode("JOB", number) == "JOB" + digits
    assert parse("JOB" + digits).snowflake == number


@pytest.mark.parametrize("text", ILL_FORMED)
def test_ill_formed_id(text: str | bytes) -> None:
    assert not valid(text)
    for check in (parse, check_id, check_job_id):
        with pytest.raises(InvalidId) as caught:
            check(text)
        assert isinstance(caught.value, ValueError)
        assert str(caught.value).isascii()
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [None, 5, ["JOB0EEMl9I7KXg"], bytearray(b"JOB0EEMl9I7KXg")])
def test_what_is_no_text_is_no_id(value: object) -> None:
    assert not valid(value)  # type: ignore[arg-type]
    with pytest.raises(InvalidId):
        parse(value)  # type: ignore[arg-type]


def test_a_job_id_is_in_the_job_namespace() -> None:
    assert check_job_id("JOB0EEMl9I7KXg") == "JOB0EEMl9I7KXg"
    assert check_job_id(b"JOB0EEMl9I7KXg") == "JOB0EEMl9I7KXg"
    with pytest.raises(WrongKind) as caught:
        check_job_id(b"ORD0EEMl9I7KXg")
    assert caught.value.job_id == "ORD0EEMl9I7KXg"
    assert check_id(b"ORD0EEMl9I7KXg") == "ORD0EEMl9I7KXg"


@given(namespaces, snowflakes)
def test_encode_and_parse_are_inverse(namespace: str, snowflake: int) -> None:
    assert parse(encode(namespace, snowflake)) == Id(namespace, snowflake)


@given(snowflakes, snowflakes)
def test_order_of_bytes_is_order_of_snowflakes(one: int, other: int) -> None:
    first, second = encode("JOB", one).encode(), encode("JOB", other).encode()

    assert (first < second) == (one < other)
    assert (first == second) == (one == other)


@given(st.text(max_size=20) | st.binary(max_size=20))
def test_any_text_is_valid_exactly_if_it_parses(text: str | bytes) -> None:
    try:
        id = parse(text)
    except InvalidId:
        assert not valid(text)
    else:
        assert valid(text)
        assert str(id) == (text.decode() if isinstance(text, bytes) else text)


@pytest.mark.parametrize("namespace", ["", "JO", "JOBS", "job", "J0B", "JOB\n", "ÄÖÜ"])
def test_encode_refuses_a_bad_namespace(namespace: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        encode(namespace, 1)
    with pytest.raises(ValueError, match="namespace"):
        Mint(namespace=namespace)


@pytest.mark.parametrize("snowflake", [-1, 2**63, 2**64])
def test_encode_refuses_what_does_not_fit(snowflake: int) -> None:
    with pytest.raises(ValueError, match="snowflake"):
        encode("JOB", snowflake)


def test_min_for_is_the_smallest_of_its_ms() -> None:
    assert min_for(EPOCH_MS) == 0
    assert min_for(1750000000001) == 192656126775394304
    assert encode("EVT", min_for(1740830400500)) == "EVT0BODbjai1b6"
    assert Id("JOB", min_for(1750000000001) - 1).unix_ms == 1750000000000
    for outside in (EPOCH_MS - 1, EPOCH_MS + 2**41):
        with pytest.raises(ValueError, match="2024"):
            min_for(outside)


def test_a_given_node_counts_from_zero_in_each_ms() -> None:
    clock = Clock(1750000000000)
    mint = Mint(node=1, clock=clock)

    assert [mint.mint(), mint.mint()] == ["JOB0EEMl9I7KXg", "JOB0EEMl9I7KXh"]
    clock.now += 1
    third = parse(mint.mint())
    assert (third.unix_ms, third.node, third.seq) == (1750000000001, 1, 0)
    assert mint.node == 1


def test_namespace_of_a_mint() -> None:
    assert parse(Mint(namespace="EVT").mint()).namespace == "EVT"
    assert parse(Mint().mint()).namespace == "JOB"


@pytest.mark.parametrize("node", [-1, 1024])
def test_a_node_is_ten_bits(node: int) -> None:
    with pytest.raises(ValueError, match="node"):
        Mint(node=node)


def test_a_clock_that_goes_back_is_outwaited() -> None:
    clock = Clock(1750000000000)
    mint = Mint(node=0, clock=clock)
    before = mint.mint()
    clock.now -= 3_600_000

    after = [mint.mint() for _ in range(3)]
    assert [before, *after] == sorted({before, *after})
    assert parse(after[-1]).unix_ms == 1750000000000


def test_a_full_ms_borrows_from_the_next() -> None:
    mint = Mint(node=7, clock=Clock(1750000000000))
    ids = [parse(mint.mint()) for _ in range(4098)]

    assert (ids[4095].unix_ms, ids[4095].seq) == (1750000000000, 4095)
    assert (ids[4096].unix_ms, ids[4096].seq) == (1750000000001, 0)
    assert {id.node for id in ids} == {7}
    assert len({id.snowflake for id in ids}) == 4098


def test_a_clock_before_the_epoch_still_mints() -> None:
    mint = Mint(node=0, clock=Clock(0))
    assert [mint.mint(), mint.mint()] == ["JOB00000000000", "JOB00000000001"]


def test_a_clock_past_the_last_date_spoils_nothing() -> None:
    clock = Clock(EPOCH_MS + 2**41)
    mint = Mint(node=0, clock=clock)
    with pytest.raises(ValueError, match="2093"):
        mint.mint()

    clock.now = EPOCH_MS + 2**41 - 1
    assert parse(mint.mint()).unix_ms == clock.now
    clock.now = EPOCH_MS
    assert parse(mint.mint()).unix_ms == EPOCH_MS + 2**41 - 1


@given(st.lists(st.integers(EPOCH_MS - 5, EPOCH_MS + 5) | st.integers(0, 4 * 10**12), max_size=60))
def test_strictly_increasing_whatever_the_clock_does(times: list[int]) -> None:
    remaining: Iterator[int] = iter(times)
    mint = Mint(node=1023, clock=lambda: next(remaining))
    last = ""
    for now in times:
        try:
            id = mint.mint()
        except ValueError:
            assert now >= EPOCH_MS + 2**41
            continue
        assert id > last
        assert valid(id)
        last = id


def test_strictly_increasing_from_several_threads() -> None:
    jumps = iter([0, 5, -3, 1, -1000, 2, 0, 0] * 4000)
    mint = Mint(node=3, clock=lambda: 1750000000000 + next(jumps))
    minted: list[list[str]] = [[] for _ in range(4)]
    together = threading.Barrier(4)

    def work(mine: list[str]) -> None:
        together.wait()
        mine.extend(mint.mint() for _ in range(2000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in minted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for mine in minted:
        assert len(mine) == 2000
        assert mine == sorted(mine)
    assert len({id for mine in minted for id in mine}) == 8000


def test_mints_of_one_process_share_a_count() -> None:
    mints = [Mint(), Mint(), Mint(namespace="EVT")]
    ids = [parse(mints[n % 3].mint()).snowflake for n in range(300)]

    assert ids == sorted(set(ids))
    assert len({mint.node for mint in mints}) == 1


def test_mints_with_clocks_of_their_own_draw_their_identities() -> None:
    clock = Clock(1750000000000)
    first_ids = {Mint(clock=clock).mint() for _ in range(200)}

    # 200 draws out of three million clash about once in 160 runs; twice, never.
    assert len(first_ids) >= 199
    assert all(parse(id).seq < 3072 for id in first_ids)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("node", [None, 5])
def test_a_forked_child_mints_other_ids(node: int | None) -> None:
    """At a frozen clock only the identity can tell parent from child."""
    mint = Mint(node=node, clock=Clock(1750000000000))
    mint.mint()
    children = [_in_a_fork(lambda: [mint.mint() for _ in range(20)]) for _ in range(3)]
    mine = [mint.mint() for _ in range(20)]

    nodes = [parse(ids[0]).node for ids in (mine, *children)]
    assert all(ids == sorted(set(ids)) for ids in children)
    # Four draws of 1024: two may agree by chance, all four do not.
    assert len(set(nodes)) > 1
    assert parse(mine[0]).node == mint.node


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_while_another_thread_mints_leaves_the_child_a_free_lock() -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow_clock() -> int:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            leave.wait()
        return 1750000000000

    mint = Mint(node=1, clock=slow_clock)
    thread = threading.Thread(target=mint.mint)
    thread.start()
    try:
        inside.wait()  # the thread holds the mint's lock now
        assert len(_in_a_fork(lambda: [mint.mint()])) == 1
    finally:
        leave.set()
        thread.join()


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def _in_a_fork(work: object) -> list[str]:
    """Run `work` in a forked child and answer the ids that it made."""
    assert callable(work)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, " ".join(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ids = pipe.read().split()
    os.waitpid(pid, 0)
    return ids


@given(
    st.one_of(
        st.binary(max_size=16),
        st.from_regex(rb"[I-K][N-P][A-C][0-9A-Za-z]{11}", fullmatch=True),
        snowflakes.map(lambda number: encode("JOB", number).encode()),
        st.sampled_from([id.encode() if isinstance(id, str) else id for id in ILL_FORMED]),
    )
)
def test_an_id_from_a_server_is_checked_like_a_callers(id: bytes) -> None:
    try:
        want: str | None = check_job_id(id)
    except (InvalidId, WrongKind):
        want = None
    assert received_job_id(id) == want


def test_ends_of_the_range_are_ids() -> None:
    for id in ("JOB00000000000", "JOBAzL8n0Y58m7"):
        assert received_job_id(id.encode()) == id


@pytest.mark.parametrize("value", [None, "x", b"x", 1.5, []])
def test_wrong_types_are_named(value: Any) -> None:
    with pytest.raises(TypeError, match="a snowflake is an int"):
        encode("JOB", value)
    with pytest.raises(TypeError, match="unix_ms is an int"):
        min_for(value)
    with pytest.raises((TypeError, ValueError), match="a namespace is"):
        encode(value, 1)


@pytest.mark.parametrize("node", [1024, -1, 10**5000], ids=["1024", "-1", "huge"])
def test_a_node_out_of_range_is_refused(node: int) -> None:
    with pytest.raises(ValueError, match="a node is 0 to 1023"):
        Mint(node)

"""The key grammar of the bus contract, key by key."""

from __future__ import annotations

import pytest
import redis.crc
from hypothesis import given
from hypothesis import strategies as st

from emq.errors import InvalidId, WrongKind
from emq.keyspace import SLOTS, VERSION_KEY, Keyspace, hashtag, slot

JOB = "JOB0EEMl9I7KXg"
GROUP = "PRT0EEMl9I7KXg"

SUFFIXES = {
    "base": "",
    "pending": "pending",
    "active": "active",
    "schedule": "schedule",
    "dead": "dead",
    "job_prefix": "job:",
    "parked": "parked",
    "rouse": "rouse",
    "ring": "ring",
    "paused": "paused",
    "glimit": "glimit",
    "gactive": "gactive",
    "gweight": "gweight",
    "wake": "wake",
    "meta": "meta",
    "limiter": "limiter",
    "metrics_completed": "metrics:completed",
    "metrics_failed": "metrics:failed",
    "metrics_completed_data": "metrics:completed:data",
    "metrics_failed_data": "metrics:failed:data",
    "repeat": "repeat",
    "flow_outbox": "flow:outbox",
    "events": "events",
}

OF_A_JOB = {
    "result": ":result",
    "job": "",
    "lock": ":lock",
    "logs": ":logs",
    "dependencies": ":dependencies",
    "processed": ":processed",
    "failed": ":failed",
    "unsuccessful": ":unsuccessful",
}

names = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True).filter(lambda name: name != "emq")


@pytest.mark.parametrize(("attribute", "suffix"), SUFFIXES.items())
def test_key_of_the_queue(attribute: str, suffix: str) -> None:
    assert getattr(Keyspace("orders"), attribute) == "emq:{orders}:" + suffix


def test_every_attribute_is_in_the_table() -> None:
    assert set(Keyspace.__slots__) == {*SUFFIXES, "queue"}


@pytest.mark.parametrize(("method", "suffix"), OF_A_JOB.items())
def test_key_of_a_job(method: str, suffix: str) -> None:
    key = getattr(Keyspace("orders"), method)

    assert key(JOB) == f"emq:{{orders}}:job:{JOB}{suffix}"
    assert key(JOB.encode()) == key(JOB)
    with pytest.raises(InvalidId):
        key("x")
    with pytest.raises(WrongKind):
        key(GROUP)


def test_key_of_a_lane() -> None:
    keys = Keyspace("orders")

    assert keys.lane(GROUP) == f"emq:{{orders}}:g:{GROUP}:pending"
    assert keys.lane(GROUP.encode()) == keys.lane(GROUP)
    with pytest.raises(InvalidId):
        keys.lane("tenant")


def test_keys_by_name() -> None:
    keys = Keyspace("orders")

    assert keys.dedup("order-42") == "emq:{orders}:de:order-42"
    assert keys.stream("wl") == "emq:{orders}:stream:wl"
    assert keys.archived("wl") == "emq:{orders}:stream:wl:archived"
    assert keys.repeat_record("daily") == "emq:{orders}:repeat:daily"
    for bad in ("", "a b", "x" * 256, "a\n"):
        with pytest.raises(ValueError, match="deduplication"):
            keys.dedup(bad)
    for key in (keys.stream, keys.archived, keys.repeat_record):
        with pytest.raises(ValueError, match="name"):
            key("")


def test_the_row_prefix_is_seventeen_bytes_for_orders() -> None:
    assert len(Keyspace("orders").job_prefix) == 17
    assert repr(Keyspace("orders")) == "Keyspace('orders')"


@pytest.mark.parametrize("name", ["q", "orders.eu-west_1", "x" * 128, "emq2", "EMQ", "-", "0"])
def test_good_queue_name(name: str) -> None:
    assert Keyspace(name).queue == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "emq",
        "x" * 129,
        "a b",
        "a:b",
        "{a}",
        "a}",
        "a\n",
        "a\0",
        "ä",
        "a/b",
        "\u0661",
        b"q",
        None,
    ],
)
def test_bad_queue_name(name: str) -> None:
    with pytest.raises(ValueError, match="rename"):
        Keyspace(name)


@pytest.mark.parametrize(
    ("key", "number"),
    [
        ("123456789", 12739),
        ("emq:{orders}:pending", 105),
        ("emq:{q1}:pending", 7450),
        ("{emq}:version", 9051),
        ("emq:{}:pending", 7387),
    ],
)
def test_slot_vector(key: str, number: int) -> None:
    assert slot(key) == number
    assert slot(key.encode()) == number


@pytest.mark.parametrize(
    ("key", "tag"),
    [
        ("emq:{orders}:pending", "orders"),
        ("{emq}:version", "emq"),
        ("emq:{}:pending", "emq:{}:pending"),
        ("a{}{b}", "a{}{b}"),
        ("{{a}}", "{a"),
        ("a}b{c}d", "c"),
        ("a}b", "a}b"),
        ("a{b", "a{b"),
        ("", ""),
    ],
)
def test_hashtag(key: str, tag: str) -> None:
    assert hashtag(key) == tag
    assert hashtag(key.encode()) == tag.encode()


@given(names)
def test_all_keys_of_a_queue_share_its_slot(name: str) -> None:
    keys = Keyspace(name)
    every = [getattr(keys, attribute) for attribute in SUFFIXES]
    every += [getattr(keys, method)(JOB) for method in OF_A_JOB]
    every += [keys.lane(GROUP), keys.stream("a{b}c"), keys.repeat_record("{x}"), keys.dedup("d")]

    assert {hashtag(key) for key in every} == {name}
    assert {slot(key) for key in every} == {slot(name)}
    assert all(not key.startswith("{emq}:") for key in every)
    assert 0 <= slot(name) < SLOTS


def test_the_reserve_is_in_a_slot_of_its_own_name() -> None:
    assert VERSION_KEY == "{emq}:version"
    assert hashtag(VERSION_KEY) == "emq"


@given(st.binary(max_size=40) | st.lists(st.sampled_from([b"{", b"}", b"a"])).map(b"".join))
def test_another_client_agrees_on_slots(key: bytes) -> None:
    assert slot(key) == redis.crc.key_slot(key)

"""What the verbs do, and what they refuse before anything is sent."""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import emq
from emq import AsyncQueue, Queue
from emq.errors import ContractError, EmqError, InvalidId, JobGone, StaleToken, WrongKind
from emq.ids import Mint
from emq.job import Item, Job, Receipt, Row
from emq.plans import recovery
from resp import Plan, ServerError

from .conftest import Due, Expire, Keys, Queues

HOUR = 3_600_000
GROUP = "PRT0EEMl9I7KXg"
LANE = f"g:{GROUP}:pending"
ID = "JOB0EEMl9I7KXg"
SECOND = "JOB0EEMl9I7KXh"
THIRD = "JOB0EEMl9I7KXi"
PARENT = "JOB0EEMl9I7KXz"
ABOVE = "JOB0EEMl9I7KY0"


class Steered(Mint):
    """A mint that mints what it was given."""

    def __init__(self, *ids: str) -> None:
        super().__init__()
        self._ids: Iterator[str] = iter(ids)

    def mint(self) -> str:
        return next(self._ids)


def claim(queue: Queue, lease_ms: int = HOUR) -> Job:
    job = queue.claim(lease_ms)
    assert job is not None
    return job


def put(keys: Keys, id: str, place: str | None = "pending", **fields: str) -> str:
    """A job made by hand, as another node may have left it."""
    row = {"state": "pending", "attempts": "0", "payload": "p", **fields}
    keys.admin.hset(f"{keys.base}job:{id}", mapping=row)
    if place is not None:
        keys.admin.zadd(keys.base + place, {id: 0})
    return id


def put_parent(keys: Keys, children: int = 1, /, **fields: str) -> None:
    put(keys, PARENT, None, state="awaiting_children", **fields)
    keys.admin.set(f"{keys.base}job:{PARENT}:dependencies", children)


def now_ms(keys: Keys) -> int:
    seconds, microseconds = keys.admin.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def near(score: float | None, at_ms: int) -> bool:
    return score is not None and score == int(score) and abs(score - at_ms) < 2000


def sent(queue: Queue) -> int:
    stats = queue.connector.stats()  # type: ignore[attr-defined]
    return int(stats["bytes_out"])


def evalsha_calls(queue: Queue) -> int:
    return int(queue.connector.stats()["evalsha_calls"])  # type: ignore[attr-defined]


# Arguments.

Call = Callable[[Queue, Any], Any]

BY_ID: dict[str, Call] = {
    "enqueue": lambda q, id: q.enqueue(b"p", job_id=id),
    "enqueue_many": lambda q, id: q.enqueue_many([b"p", Item(b"p", id)]),
    "complete": lambda q, id: q.complete(id, token=1),
    "complete_job": lambda q, id: q.complete(Job(id, b"", 1, q.name)),
    "complete_and_claim": lambda q, id: q.complete_and_claim(id, token=1),
    "retry": lambda q, id: q.retry(id, delay_ms=0, max_attempts=1, error="", token=1),
    "extend": lambda q, id: q.extend(id, 1, token=1),
    "extend_many": lambda q, id: q.extend_many([(SECOND, 1), (id, 1)], 1),
    "state": lambda q, id: q.state(id),
    "job": lambda q, id: q.job(id),
}

BY_NUMBER: dict[tuple[str, str], tuple[int, Call]] = {
    ("enqueue", "delay_ms"): (0, lambda q, n: q.enqueue(b"", delay_ms=n)),
    ("enqueue", "run_at_ms"): (0, lambda q, n: q.enqueue(b"", run_at_ms=n)),
    ("enqueue_many", "delay_ms"): (0, lambda q, n: q.enqueue_many([Item(b"", delay_ms=n)])),
    ("enqueue_many", "run_at_ms"): (0, lambda q, n: q.enqueue_many([Item(b"", run_at_ms=n)])),
    ("claim", "lease_ms"): (1, lambda q, n: q.claim(n)),
    ("complete", "token"): (0, lambda q, n: q.complete(ID, token=n)),
    ("complete", "job.token"): (0, lambda q, n: q.complete(Job(ID, b"", n, q.name))),
    ("complete_and_claim", "lease_ms"): (1, lambda q, n: q.complete_and_claim(ID, n, token=1)),
    ("retry", "delay_ms"): (
        0,
        lambda q, n: q.retry(ID, delay_ms=n, max_attempts=1, error="", token=1),
    ),
    ("retry", "max_attempts"): (
        1,
        lambda q, n: q.retry(ID, delay_ms=0, max_attempts=n, error="", token=1),
    ),
    ("extend", "lease_ms"): (1, lambda q, n: q.extend(ID, n, token=1)),
    ("extend_many", "lease_ms"): (1, lambda q, n: q.extend_many([], n)),
    ("extend_many", "token"): (0, lambda q, n: q.extend_many([(ID, n)], 1)),
    ("promote", "limit"): (1, lambda q, n: q.promote(n)),
    ("reap", "limit"): (1, lambda q, n: q.reap(n)),
    ("sweep_stalled", "max_stalled"): (1, lambda q, n: q.sweep_stalled(n)),
    ("sweep_stalled", "limit"): (1, lambda q, n: q.sweep_stalled(1, n)),
    ("browse", "limit"): (1, lambda q, n: q.browse(n)),
}


@pytest.mark.parametrize("verb", BY_ID)
@pytest.mark.parametrize("id", ["", "x", "JOBAzL8n0Y58m8", ID + "\n", f" {ID}", 7])
def test_ill_formed_id_is_refused_unsent(queue: Queue, verb: str, id: Any) -> None:
    before = sent(queue)
    with pytest.raises(InvalidId):
        BY_ID[verb](queue, id)
    assert sent(queue) == before


def test_an_id_is_taken_as_bytes_too(queue: Queue) -> None:
    id = ID.encode()
    assert queue.enqueue(b"p", job_id=id) == Receipt(ID, True)
    assert queue.enqueue_many([Item(b"p", id)]) == [Receipt(ID, False)]
    token = claim(queue).token
    assert queue.extend_many([(id, token)], HOUR) == []
    queue.extend(id, HOUR, token=token)
    assert queue.state(id) == "active"
    assert queue.job(id) == Row("active", 1, b"p", {})
    queue.complete(id, bytearray(b"r"), token=token)
    assert queue.state(id) is None


@pytest.mark.parametrize("verb", BY_ID)
def test_id_of_another_kind_is_refused_unsent(queue: Queue, verb: str) -> None:
    before = sent(queue)
    with pytest.raises(WrongKind) as caught:
        BY_ID[verb](queue, "ORD0EEMl9I7KXg")
    assert caught.value.job_id == "ORD0EEMl9I7KXg"
    assert sent(queue) == before


@pytest.mark.parametrize("which", BY_NUMBER, ids=".".join)
def test_number_out_of_range_is_refused_unsent(queue: Queue, which: tuple[str, str]) -> None:
    least, call = BY_NUMBER[which]
    before = sent(queue)
    for number in (least - 1, 2**53 + 1, True, 1.0, "1", b"1", float("nan")):
        with pytest.raises(ValueError, match="whole number"):
            call(queue, number)
    assert sent(queue) == before


@pytest.mark.parametrize("which", BY_NUMBER, ids=".".join)
def test_number_at_its_ends_is_taken(queue: Queue, which: tuple[str, str]) -> None:
    least, call = BY_NUMBER[which]
    for number in (least, 2**53):
        with suppress(JobGone, StaleToken):  # the server's word, not the client's
            call(queue, number)


@pytest.mark.parametrize("payload", [None, 1, 1.5, ["p"], object()])
def test_payload_of_another_type_is_refused_unsent(queue: Queue, payload: Any) -> None:
    before = sent(queue)
    for call in (
        lambda: queue.enqueue(payload),
        lambda: queue.enqueue_many([b"p", payload]),
        lambda: queue.enqueue_many([Item(payload)]),
        lambda: queue.retry(ID, delay_ms=0, max_attempts=1, error=payload, token=1),
    ):
        with pytest.raises(TypeError, match="is bytes or str, not"):
            call()
    assert sent(queue) == before


def test_result_of_another_type_is_refused_unsent(queue: Queue) -> None:
    result: Any = {"a": 1}
    before = sent(queue)
    with pytest.raises(TypeError, match="result is bytes or str, not dict"):
        queue.complete(ID, result, token=1)
    with pytest.raises(TypeError, match="result is bytes or str, not dict"):
        queue.complete_and_claim(ID, result=result, token=1)
    assert sent(queue) == before


def test_text_that_is_no_unicode_is_refused_unsent(queue: Queue) -> None:
    before = sent(queue)
    text = "4111 \ud800"
    for name, call in (
        ("payload", lambda: queue.enqueue(text)),
        ("payload", lambda: queue.enqueue_many([b"p", text])),
        ("payload", lambda: queue.enqueue_many([Item(text)])),
        ("result", lambda: queue.complete(ID, text, token=1)),
        ("result", lambda: queue.complete_and_claim(ID, result=text, token=1)),
        ("error", lambda: queue.retry(ID, delay_ms=0, max_attempts=1, error=text, token=1)),
    ):
        with pytest.raises(ValueError, match=f"{name} is str with .* bytes yourself") as caught:
            call()
        assert type(caught.value) is ValueError
        assert caught.value.__context__ is None
        assert b"4111" not in pickle.dumps(caught.value)
    assert sent(queue) == before


def test_view_that_was_released_is_refused_unsent(queue: Queue) -> None:
    view = memoryview(b"p")
    view.release()
    with pytest.raises(ValueError, match="payload is a memoryview that was released"):
        queue.enqueue(view)


def test_two_due_times_are_refused_unsent(queue: Queue) -> None:
    before = sent(queue)
    with pytest.raises(ValueError, match="exclude each other"):
        queue.enqueue(b"p", delay_ms=1, run_at_ms=1)
    with pytest.raises(ValueError, match="exclude each other"):
        queue.enqueue_many([Item(b"p", None, 1, 1)])
    assert sent(queue) == before


def test_an_id_needs_its_token_and_a_job_has_one(queue: Queue) -> None:
    before = sent(queue)
    with pytest.raises(TypeError, match="an id needs its token"):
        queue.complete(ID)
    with pytest.raises(TypeError, match="a Job carries its token"):
        queue.complete(Job(ID, b"", 1, queue.name), token=1)
    assert sent(queue) == before


def test_a_job_of_another_queue_is_refused_unsent(queues: Queues, queue: Queue) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    other = queues("-other")

    before = sent(queue)
    with pytest.raises(ValueError, match="was claimed from queue"):
        other.complete(job)
    assert sent(queue) == before
    queue.complete(job)


@pytest.mark.parametrize("name", ["", "emq", "a{b}", "a b", "a" * 129, None])
def test_queue_with_a_bad_name_is_not_made(name: Any) -> None:
    with pytest.raises(ValueError, match="rename the queue"):
        Queue(Plain(), name)
    with pytest.raises(ValueError, match="rename the queue"):
        AsyncQueue(Awaited(), name)


def test_queue_tells_its_name(queue: Queue) -> None:
    assert queue.name == queue.keys.queue
    assert queue.name in repr(Queue(Plain(), queue.name))
    assert queue.name in repr(AsyncQueue(Awaited(), queue.name))


class Plain:
    """A connector of one shell."""

    def run(self, plan: Plan[Any], /) -> Any:
        raise AssertionError("nothing is run")

    def subscribe(self, *channels: str, **options: Any) -> Any:
        raise AssertionError("nobody listens")


class Awaited:
    """A connector of the other."""

    async def run(self, plan: Plan[Any], /) -> Any:
        raise AssertionError("nothing is run")

    async def subscribe(self, *channels: str, **options: Any) -> Any:
        raise AssertionError("nobody listens")


def test_a_connector_of_the_other_shell_is_refused(server: Any) -> None:
    with emq.connect(server.url) as connector:
        with pytest.raises(TypeError, match=r"AsyncQueue needs .*; use Queue with this Connector"):
            AsyncQueue(connector, "q")  # type: ignore[arg-type]
        Queue(connector, "q")

    async def go() -> None:
        async with await emq.connect_async(server.url) as connector:
            with pytest.raises(TypeError, match=r"Queue needs .*; use AsyncQueue with this Async"):
                Queue(connector, "q")  # type: ignore[arg-type]
            AsyncQueue(connector, "q")

    asyncio.run(go())
    with pytest.raises(TypeError, match="; use AsyncQueue with"):
        Queue(Awaited(), "q")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="; use Queue with"):
        AsyncQueue(Plain(), "q")


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
@pytest.mark.parametrize("connector", [None, "valkey://127.0.0.1", 5, object()])
def test_what_is_no_connector_is_refused_at_once(kind: Any, connector: Any) -> None:
    with pytest.raises(TypeError, match=r"connector is what emq\.connect.*; dial first"):
        kind(connector, "q")


def test_a_pool_that_hides_its_code_can_stand_in() -> None:
    class Pool:
        def __init__(self, of: Any) -> None:
            self.run = functools.partial(type(of).run, of)
            self.subscribe: Any = of.subscribe

    for kind in (Queue, AsyncQueue):
        for of in (Plain(), Awaited()):
            kind(Pool(of), "q")


@pytest.mark.parametrize("mint", [5, "mint", object()])
def test_what_is_no_mint_is_refused(mint: Any) -> None:
    with pytest.raises(TypeError, match=r"mint is an emq\.Mint or None"):
        Queue(Plain(), "q", mint=mint)
    with pytest.raises(TypeError, match=r"mint is an emq\.Mint or None"):
        AsyncQueue(Awaited(), "q", mint=mint)


# Enqueue.


@pytest.mark.parametrize(
    "payload", [b"", "text \u00e9", b"\x00\xff\r\n", bytearray(b"array"), memoryview(b"view")]
)
def test_payload_comes_back_as_bytes(queue: Queue, payload: Any) -> None:
    queue.enqueue(payload)

    want = payload.encode() if isinstance(payload, str) else bytes(payload)
    assert claim(queue).payload == want


def test_minted_ids_are_served_in_order(queue: Queue) -> None:
    receipts = [queue.enqueue(b"p") for _ in range(5)]

    assert all(receipt.admitted for receipt in receipts)
    assert [claim(queue).id for _ in range(5)] == [receipt.job_id for receipt in receipts]


def test_delay_is_counted_by_the_servers_clock(queue: Queue, keys: Keys) -> None:
    receipt = queue.enqueue(b"p", delay_ms=HOUR)

    assert receipt.admitted
    assert near(keys.score("schedule", receipt.job_id), now_ms(keys) + HOUR)
    assert keys.row(receipt.job_id) == {
        "state": b"scheduled",
        "attempts": b"0",
        "payload": b"p",
    }
    assert queue.claim() is None
    assert queue.promote() == 0


@pytest.mark.parametrize("at_ms", [0, 1, 1_750_000_000_005, 2**53])
def test_due_time_is_kept_to_the_ms(queue: Queue, keys: Keys, at_ms: int) -> None:
    receipt = queue.enqueue(b"p", run_at_ms=at_ms)

    assert keys.score("schedule", receipt.job_id) == at_ms
    assert queue.promote() == (1 if at_ms < now_ms(keys) else 0)


def test_minted_id_that_is_taken_is_minted_again(queues: Queues, keys: Keys) -> None:
    queue = queues(mint=Steered(ID, ID, SECOND, THIRD))
    queue.enqueue(b"first")

    assert queue.enqueue(b"second") == Receipt(SECOND, True)
    assert keys.row(ID)["payload"] == b"first"
    assert keys.row(SECOND)["payload"] == b"second"


def test_mint_that_stands_still_is_an_error_and_no_lost_job(queues: Queues, keys: Keys) -> None:
    queue = queues(mint=Steered(*[ID] * 1000))
    queue.enqueue(b"first")
    before = keys.dumped()

    with pytest.raises(EmqError, match="minted ids in a row"):
        queue.enqueue(b"second")
    with pytest.raises(EmqError, match="minted ids in a row"):
        queue.enqueue_many([b"second"])
    assert keys.dumped() == before


def test_given_id_that_is_taken_changes_nothing(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"first", job_id=ID)
    before = keys.dumped()

    assert queue.enqueue(b"again", job_id=ID) == Receipt(ID, False)
    assert queue.enqueue(b"again", job_id=ID, delay_ms=0) == Receipt(ID, False)
    assert queue.enqueue_many([Item(b"again", ID)]) == [Receipt(ID, False)]
    assert keys.dumped() == before


# Enqueue many.


def test_nothing_is_sent_for_no_items(queue: Queue) -> None:
    before = sent(queue)
    assert queue.enqueue_many([]) == []
    assert queue.enqueue_many(iter(())) == []
    assert sent(queue) == before


@pytest.mark.parametrize(
    "items",
    ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc"), {"a": 1}, Item(b"p"), None, 5],
    ids=lambda items: type(items).__name__,
)
def test_one_thing_is_no_collection_of_items(queue: Queue, items: Any) -> None:
    before = sent(queue)
    with pytest.raises(TypeError, match="items is a collection, such as a list, of payloads"):
        queue.enqueue_many(items)
    assert sent(queue) == before


def test_items_of_every_form_keep_their_order(queue: Queue, keys: Keys) -> None:
    receipts = queue.enqueue_many(
        [
            b"bytes",
            "text",
            Item("given", ID),
            Item(b"delayed", delay_ms=HOUR),
            Item(b"at", SECOND, run_at_ms=5),
            Item(b"repeated", ID),
        ]
    )

    assert [receipt.admitted for receipt in receipts] == [True] * 5 + [False]
    ids = [receipt.job_id for receipt in receipts]
    assert ids[2] == ids[5] == ID
    assert [keys.row(id)["payload"] for id in ids[:3]] == [b"bytes", b"text", b"given"]
    assert set(keys.members("pending")) == set(ids[:3])
    assert keys.score("schedule", SECOND) == 5
    assert near(keys.score("schedule", ids[3]), now_ms(keys) + HOUR)


@pytest.mark.parametrize(
    "of",
    [
        lambda job: job,
        lambda job: [job.id],
        lambda job: [(job.id,)],
        lambda job: [(job.id, 1, 2)],
        lambda job: {job.id: 1},
        lambda job: [{job.id: 1}],
        lambda job: [None],
        lambda job: [job, "ab"],
        lambda job: [(job, 1)],
        lambda job: (job.id, 1),
        lambda job: job.id,
        lambda job: None,
        lambda job: 5,
    ],
)
def test_what_is_no_job_and_no_pair_is_refused_unsent(queue: Queue, of: Any) -> None:
    job = Job(ID, b"4111", 1, queue.name)
    before = sent(queue)
    with pytest.raises(
        TypeError, match=r"^jobs (is|are) .*Jobs or pairs of id and token"
    ) as caught:
        queue.extend_many(of(job), HOUR)
    assert "4111" not in str(caught.value)
    assert sent(queue) == before


def test_one_bad_item_leaves_all_unsent(queue: Queue, keys: Keys) -> None:
    before = sent(queue)
    with pytest.raises(InvalidId):
        queue.enqueue_many([b"good", Item(b"bad", "x")])
    with pytest.raises(WrongKind):
        queue.enqueue_many([Item(b"good", ID), Item(b"bad", "ORD0EEMl9I7KXg")])
    with pytest.raises(ValueError, match="delay_ms"):
        queue.enqueue_many([b"good", Item(b"bad", delay_ms=-1)])
    assert sent(queue) == before
    assert keys.dumped() == {}


def test_only_the_clashed_are_minted_again(queues: Queues, keys: Keys) -> None:
    queue = queues(mint=Steered(ID, ID, SECOND, THIRD))
    queue.enqueue(b"there")
    calls = evalsha_calls(queue)

    receipts = queue.enqueue_many([b"clashes", b"fits", Item(b"given", ID)])
    assert receipts == [Receipt(THIRD, True), Receipt(SECOND, True), Receipt(ID, False)]
    assert keys.row(ID)["payload"] == b"there"
    assert keys.row(SECOND)["payload"] == b"fits"
    assert keys.row(THIRD)["payload"] == b"clashes"
    assert evalsha_calls(queue) - calls <= 3  # two flushes, and perhaps a script to load


def test_many_items_are_many_calls_in_order(queue: Queue, keys: Keys) -> None:
    receipts = queue.enqueue_many(str(number) for number in range(1000))

    ids = [receipt.job_id for receipt in receipts]
    assert keys.members("pending") == ids == sorted(set(ids))
    assert [keys.row(id)["payload"] for id in (ids[0], ids[256], ids[999])] == [
        b"0",
        b"256",
        b"999",
    ]


def test_large_payloads_are_not_put_into_one_call(queue: Queue) -> None:
    queue.enqueue_many([b"load the script"])
    calls = evalsha_calls(queue)

    receipts = queue.enqueue_many([b"x" * 200_000] * 3)
    assert all(receipt.admitted for receipt in receipts)
    assert evalsha_calls(queue) - calls == 3


def test_a_part_that_the_server_refuses_is_told_with_what_it_admitted(
    queue: Queue, keys: Keys
) -> None:
    keys.admin.set(keys.base + "schedule", "not a sorted set")

    with pytest.raises(ServerError, match="WRONGTYPE") as caught:
        queue.enqueue_many([b"p"] * 256 + [Item(b"late", delay_ms=1)])
    assert caught.value.__notes__ == ["256 of 257 jobs were admitted"]
    assert len(keys.members("pending")) == 256
    assert len(list(keys.admin.scan_iter(match=keys.base + "job:*", count=1000))) == 256


# Claim.


def test_claim_leases_by_the_servers_clock(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", job_id=ID)
    queue.enqueue(b"q", job_id=SECOND)

    assert queue.claim() == Job(ID, b"p", 1, queue.name)
    assert near(keys.score("active", ID), now_ms(keys) + 30_000)
    assert queue.claim(lease_ms=HOUR) == Job(SECOND, b"q", 1, queue.name)
    assert near(keys.score("active", SECOND), now_ms(keys) + HOUR)
    assert queue.claim() is None


@pytest.mark.parametrize("flag", ["1", "0", ""])
def test_paused_queue_hands_out_nothing(queue: Queue, keys: Keys, flag: str) -> None:
    queue.enqueue(b"p")
    keys.admin.hset(keys.base + "meta", "paused", flag)
    before = keys.dumped()

    assert queue.claim() is None
    assert keys.dumped() == before
    keys.admin.hdel(keys.base + "meta", "paused")
    assert claim(queue).payload == b"p"


def test_pause_that_cannot_be_read_is_an_error(queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([Item(b"p", ID), Item(b"q", SECOND)])
    job = claim(queue)
    keys.admin.set(keys.base + "meta", "not a hash")
    before = keys.dumped()

    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.claim()
    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.complete_and_claim(job)
    assert keys.dumped() == before


def test_ghosts_are_dropped_and_the_next_job_is_served(queue: Queue, keys: Keys) -> None:
    keys.admin.zadd(keys.base + "pending", {ID: 0})
    keys.admin.zadd(keys.base + "pending", {SECOND: 0})
    keys.admin.hset(keys.base + "job:" + SECOND, mapping={"state": "pending", "attempts": "1"})
    queue.enqueue(b"p", job_id=THIRD)

    assert claim(queue) == Job(THIRD, b"p", 1, queue.name)
    assert keys.members("pending") == []
    assert keys.row(ID) == {}
    assert keys.row(SECOND) == {"state": b"pending", "attempts": b"1"}


def test_any_number_of_ghosts_hides_no_job(queue: Queue, keys: Keys) -> None:
    mint = Mint()
    for behind in ([mint.mint() for _ in range(count)] for count in (100, 250)):
        keys.admin.zadd(keys.base + "pending", dict.fromkeys(behind, 0))
    receipt = queue.enqueue(b"p", job_id=mint.mint())

    assert claim(queue).id == receipt.job_id
    keys.admin.zadd(keys.base + "pending", {mint.mint(): 0 for _ in range(100)})
    assert queue.complete_and_claim(receipt.job_id, token=1) is None
    assert keys.members("pending") == []


def test_a_few_ghosts_cost_no_second_call(queue: Queue, keys: Keys) -> None:
    mint = Mint()
    queue.claim()  # loads the script
    keys.admin.zadd(keys.base + "pending", {mint.mint(): 0 for _ in range(99)})
    queue.enqueue(b"p", job_id=mint.mint())
    calls = evalsha_calls(queue)

    assert claim(queue).payload == b"p"
    assert evalsha_calls(queue) - calls == 1


def test_laned_row_among_the_flat_ones_is_counted_in_and_out(queue: Queue, keys: Keys) -> None:
    put(keys, ID, group=GROUP)
    put(keys, SECOND, group=GROUP)
    put(keys, THIRD, LANE, group=GROUP)
    keys.admin.hset(keys.base + "glimit", GROUP, 2)
    keys.admin.rpush(keys.base + "ring", GROUP)

    first = claim(queue)
    assert first == Job(ID, b"p", 1, queue.name, GROUP)
    assert keys.admin.hget(keys.base + "gactive", GROUP) == b"1"
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == [GROUP.encode()]

    second = claim(queue)
    assert keys.admin.hget(keys.base + "gactive", GROUP) == b"2"
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == []

    queue.complete(first)
    assert keys.admin.hget(keys.base + "gactive", GROUP) == b"1"
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == [GROUP.encode()]
    queue.complete(second)
    assert keys.admin.hgetall(keys.base + "gactive") == {}


# Settle.


def refused(queue: Queue, keys: Keys, held: Job) -> None:
    """Every settle of `held` is stale, and writes nothing."""
    before = keys.dumped()
    for verb, settle in (
        ("complete", lambda: queue.complete(held)),
        ("complete", lambda: queue.complete_and_claim(held)),
        ("retry", lambda: queue.retry(held, delay_ms=0, max_attempts=1, error="e")),
        ("extend", lambda: queue.extend(held, HOUR)),
    ):
        with pytest.raises(StaleToken) as caught:
            settle()
        assert caught.value.job_id == held.id
        assert caught.value.detail.startswith(f"EMQSTALE {verb} ")
        assert keys.dumped() == before
    assert queue.extend_many([held], HOUR) == [held.id]
    assert keys.dumped() == before


def test_wrong_tokens_are_refused(queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([Item(b"p", ID), b"next"])
    job = claim(queue)

    for token in (0, 2, 11, 2**53):
        refused(queue, keys, job._replace(token=token))
    queue.complete(job)


def test_job_that_nobody_claimed_is_nobodys(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", job_id=ID)
    queue.enqueue(b"p", job_id=SECOND, delay_ms=HOUR)

    refused(queue, keys, Job(ID, b"p", 0, queue.name))
    refused(queue, keys, Job(SECOND, b"p", 0, queue.name))


def test_settled_job_is_not_settled_again(queue: Queue, keys: Keys, due: Due) -> None:
    queue.enqueue(b"p", job_id=ID)
    job = claim(queue)
    queue.retry(job, delay_ms=HOUR, max_attempts=2, error="e")

    refused(queue, keys, job)
    due(ID)
    queue.promote()
    again = claim(queue)
    refused(queue, keys, job)
    queue.retry(again, delay_ms=HOUR, max_attempts=2, error="e")
    assert queue.state(ID) == "dead"
    refused(queue, keys, again)


@pytest.mark.parametrize("verb", ["complete", "retry", "extend"])
def test_refusal_for_place_says_so(queue: Queue, verb: str) -> None:
    queue.enqueue(b"p")
    job = claim(queue)
    queue.retry(job, delay_ms=HOUR, max_attempts=2, error="e")

    settle: dict[str, Call] = {
        "complete": lambda q, job: q.complete(job),
        "retry": lambda q, job: q.retry(job, delay_ms=0, max_attempts=2, error="e"),
        "extend": lambda q, job: q.extend(job, HOUR),
    }
    with pytest.raises(StaleToken) as caught:
        settle[verb](queue, job)
    assert caught.value.detail == f"EMQSTALE {verb} state moved on"


def test_gone_job_is_gone_to_every_verb(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"next")
    before = keys.dumped()

    for settle in (
        lambda: queue.complete(ID, token=1),
        lambda: queue.complete_and_claim(ID, token=1),
        lambda: queue.retry(ID, token=1, delay_ms=0, max_attempts=1, error="e"),
        lambda: queue.extend(ID, HOUR, token=1),
    ):
        with pytest.raises(JobGone) as caught:
            settle()
        assert caught.value.job_id == ID
    assert queue.extend_many([(ID, 1)], HOUR) == [ID]
    assert keys.dumped() == before


def test_reaped_job_may_be_settled_until_it_is_claimed(
    queue: Queue, keys: Keys, expire: Expire
) -> None:
    queue.enqueue_many([Item(b"p", ID), Item(b"q", SECOND), Item(b"r", THIRD)])
    jobs = [claim(queue) for _ in range(3)]
    for job in jobs:
        expire(job)
    assert queue.reap() == 3

    queue.complete(jobs[0])
    assert queue.retry(jobs[1], delay_ms=HOUR, max_attempts=3, error="e") == "scheduled"
    assert keys.members("pending") == [THIRD]
    assert claim(queue) == jobs[2]._replace(token=2)
    refused(queue, keys, jobs[2])


def test_completed_job_leaves_a_count_behind_and_nothing_else(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"p", job_id=ID)
    keys.admin.rpush(f"{keys.base}job:{ID}:logs", "line")

    queue.complete(claim(queue), b"dropped")
    assert {key.decode() for key in keys.dumped()} == {keys.base + "metrics:completed"}
    assert queue.counts()["completed"] == 1


def test_complete_and_claim_does_both(queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([Item(b"p", ID), Item(b"q", SECOND)])

    second = queue.complete_and_claim(claim(queue), HOUR)
    assert second == Job(SECOND, b"q", 1, queue.name)
    assert near(keys.score("active", SECOND), now_ms(keys) + HOUR)
    assert keys.row(ID) == {}
    assert queue.complete_and_claim(SECOND, token=1) is None
    assert queue.counts()["completed"] == 2
    assert keys.members("active") == []


def test_complete_and_claim_on_a_paused_queue_only_completes(queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([Item(b"p", ID), Item(b"q", SECOND)])
    job = claim(queue)
    keys.admin.hset(keys.base + "meta", "paused", "1")

    assert queue.complete_and_claim(job) is None
    assert queue.counts() | {"pending": 1, "active": 0, "completed": 1} == queue.counts()


@pytest.mark.parametrize("error", ["boom \u00e9", b"\x00\xff", ""])
def test_retry_keeps_the_error(queue: Queue, keys: Keys, error: Any) -> None:
    queue.enqueue(b"p", job_id=ID)

    queue.retry(claim(queue), delay_ms=HOUR, max_attempts=2, error=error)
    want = error.encode() if isinstance(error, str) else error
    assert keys.row(ID)["last_error"] == want
    assert near(keys.score("schedule", ID), now_ms(keys) + HOUR)


def test_extend_moves_the_end_of_the_lease(queue: Queue, keys: Keys, expire: Expire) -> None:
    queue.enqueue(b"p", job_id=ID)
    job = claim(queue)

    queue.extend(job, 2 * HOUR)
    assert near(keys.score("active", ID), now_ms(keys) + 2 * HOUR)
    expire(job)
    queue.extend(ID, HOUR, token=1)
    assert near(keys.score("active", ID), now_ms(keys) + HOUR)
    assert queue.reap() == 0
    expire(job)
    queue.reap()
    with pytest.raises(StaleToken, match="state moved on"):
        queue.extend(job, HOUR)
    assert keys.members("active") == []


def test_extend_many_answers_those_it_could_not(queue: Queue, keys: Keys, expire: Expire) -> None:
    ids = [receipt.job_id for receipt in queue.enqueue_many([b"p"] * 4)]
    jobs = [claim(queue) for _ in range(3)]
    expire(jobs[2])
    queue.reap()

    held: list[Job | tuple[str, int]]
    held = [jobs[0], (ids[1], 7), jobs[2], (ids[3], 0), (ID, 1), (ids[1], 1)]
    assert queue.extend_many(held, 2 * HOUR) == [ids[1], ids[2], ids[3], ID]
    scores = {keys.score("active", id) for id in ids[:2]}
    assert len(scores) == 1
    assert near(scores.pop(), now_ms(keys) + 2 * HOUR)
    assert keys.members("active") == ids[:2]


def test_extend_many_of_nothing_sends_nothing(queue: Queue) -> None:
    before = sent(queue)
    assert queue.extend_many([], HOUR) == []
    assert sent(queue) == before


def test_extend_many_takes_any_number(
    queue: Queue, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_CALL_HELD", 3)
    ids = [receipt.job_id for receipt in queue.enqueue_many([b"p"] * 8)]
    jobs = [claim(queue) for _ in range(8)]
    held: list[Job | tuple[str, int]]
    held = [jobs[0], *((id, 9) for id in ids[1:5]), *jobs[5:]]

    assert queue.extend_many(held, 2 * HOUR) == ids[1:5]
    extended = [id for id in ids if near(keys.score("active", id), now_ms(keys) + 2 * HOUR)]
    assert extended == [ids[0], *ids[5:]]


# Promote, reap, sweep.


def test_limit_bounds_what_is_looked_at(queue: Queue, keys: Keys) -> None:
    ghost, first, second = (Mint().mint() for _ in range(3))
    keys.admin.zadd(keys.base + "schedule", {ghost: 1})
    queue.enqueue(b"p", job_id=second, run_at_ms=3)
    queue.enqueue(b"p", job_id=first, run_at_ms=2)

    assert queue.promote(2) == 1
    assert keys.members("pending") == [first]
    assert keys.row(ghost) == {}
    assert queue.promote() == 1
    assert keys.members("schedule") == []


@pytest.mark.parametrize("verb", ["reap", "sweep_stalled"])
def test_lease_of_a_ghost_is_dropped_and_its_row_left(queue: Queue, keys: Keys, verb: str) -> None:
    keys.admin.zadd(keys.base + "active", {ID: 1, SECOND: 2})
    keys.admin.hset(keys.base + "job:" + SECOND, mapping={"attempts": "1", "group": GROUP})
    keys.admin.hset(keys.base + "gactive", GROUP, 1)
    put(keys, THIRD, LANE, group=GROUP)

    assert getattr(queue, verb)() in (0, ([], []))
    assert keys.members("active") == []
    assert keys.row(ID) == {}
    assert keys.row(SECOND) == {"attempts": b"1", "group": GROUP.encode()}
    assert keys.admin.hgetall(keys.base + "gactive") == {}
    assert keys.admin.lrange(keys.base + "ring", 0, -1) == [GROUP.encode()]


def test_sweep_counts_and_then_kills(queue: Queue, keys: Keys, expire: Expire) -> None:
    queue.enqueue(b"p", job_id=ID)
    for stalled in (1, 2):
        expire(claim(queue))
        assert queue.sweep_stalled(3) == ([ID], [])
        assert keys.row(ID)["stalled"] == str(stalled).encode()
        assert keys.row(ID)["state"] == b"pending"
    expire(claim(queue))

    assert queue.sweep_stalled(3) == ([], [ID])
    assert keys.row(ID) == {
        "state": b"dead",
        "attempts": b"3",
        "payload": b"p",
        "stalled": b"3",
        "last_error": b"stalled",
    }
    assert keys.score("dead", ID) == 0
    assert queue.counts()["failed"] == 1


def test_sweep_keeps_to_its_limit(queue: Queue, expire: Expire) -> None:
    ids = [receipt.job_id for receipt in queue.enqueue_many([b"p"] * 3)]
    for job in [claim(queue) for _ in ids]:
        expire(job)

    assert queue.sweep_stalled(limit=2) == ([], ids[:2])
    assert queue.sweep_stalled(2) == ([ids[2]], [])


# Lanes: jobs of another client's making.


def leased(queue: Queue, keys: Keys, id: str = ID) -> Job:
    """A claimed job of a lane."""
    put(keys, id, None, group=GROUP, state="active", attempts="1")
    keys.admin.zadd(keys.base + "active", {id: now_ms(keys) + HOUR})
    keys.admin.hincrby(keys.base + "gactive", GROUP, 1)
    return Job(id, b"p", 1, queue.name, GROUP)


def lane(keys: Keys) -> tuple[list[str], list[bytes], dict[bytes, bytes], list[bytes]]:
    """Who waits in the lane, the ring, the counts and the wake list."""
    return (
        keys.members(LANE),
        keys.admin.lrange(keys.base + "ring", 0, -1),
        keys.admin.hgetall(keys.base + "gactive"),
        keys.admin.lrange(keys.base + "wake", 0, -1),
    )


SETTLES: dict[str, Call] = {
    "complete": lambda q, job: q.complete(job),
    "complete_and_claim": lambda q, job: q.complete_and_claim(job),
    "retry": lambda q, job: q.retry(job, delay_ms=HOUR, max_attempts=5, error="e"),
    "retry to death": lambda q, job: q.retry(job, delay_ms=HOUR, max_attempts=1, error="e"),
}


@pytest.mark.parametrize("verb", SETTLES)
def test_settle_frees_a_place_in_the_lane(queue: Queue, keys: Keys, verb: str) -> None:
    keys.admin.hset(keys.base + "glimit", GROUP, 1)
    job = leased(queue, keys)
    put(keys, SECOND, LANE, group=GROUP)

    SETTLES[verb](queue, job)
    assert lane(keys) == ([SECOND], [GROUP.encode()], {}, [b"1"])


@pytest.mark.parametrize("verb", SETTLES)
@pytest.mark.parametrize("why", ["empty", "paused", "full", "in the ring"])
def test_lane_that_cannot_be_served_is_not_rung(
    queue: Queue, keys: Keys, verb: str, why: str
) -> None:
    job = leased(queue, keys)
    if why != "empty":
        put(keys, SECOND, LANE, group=GROUP)
    if why == "paused":
        keys.admin.sadd(keys.base + "paused", GROUP)
    if why == "full":
        keys.admin.hset(keys.base + "glimit", GROUP, 1)
        leased(queue, keys, THIRD)
    ring = [GROUP.encode()] if why == "in the ring" else []
    if ring:
        keys.admin.rpush(keys.base + "ring", GROUP)

    SETTLES[verb](queue, job)
    waiting, rung, counted, woken = lane(keys)
    assert (rung, woken) == (ring, [])
    assert waiting == ([] if why == "empty" else [SECOND])
    assert counted == ({GROUP.encode(): b"1"} if why == "full" else {})


@pytest.mark.parametrize("verb", SETTLES)
@pytest.mark.parametrize("others", [0, 1])
def test_late_settle_takes_the_job_out_of_its_lane(
    queue: Queue, keys: Keys, verb: str, others: int, expire: Expire
) -> None:
    job = leased(queue, keys)
    if others:
        put(keys, SECOND, LANE, group=GROUP)
    expire(job)
    assert queue.reap() == 1
    assert lane(keys)[1:] == ([GROUP.encode()], {}, [b"1"])
    assert ID in lane(keys)[0]

    SETTLES[verb](queue, job)
    assert lane(keys)[:3] == ([SECOND] * others, [GROUP.encode()] * others, {})


def test_wake_list_is_bounded(queue: Queue, keys: Keys) -> None:
    keys.admin.rpush(keys.base + "wake", *["1"] * 64)
    put(keys, SECOND, LANE, group=GROUP)

    queue.complete(leased(queue, keys))
    assert keys.admin.llen(keys.base + "wake") == 64


def test_sweep_rings_the_lane_of_what_it_kills(queue: Queue, keys: Keys, expire: Expire) -> None:
    keys.admin.hset(keys.base + "glimit", GROUP, 1)
    put(keys, SECOND, LANE, group=GROUP)
    expire(leased(queue, keys))

    assert queue.sweep_stalled() == ([], [ID])
    assert lane(keys) == ([SECOND], [GROUP.encode()], {}, [b"1"])


def test_sweep_puts_what_it_recovers_back_in_its_lane(
    queue: Queue, keys: Keys, expire: Expire
) -> None:
    expire(leased(queue, keys))

    assert queue.sweep_stalled(2) == ([ID], [])
    assert lane(keys) == ([ID], [GROUP.encode()], {}, [b"1"])
    assert keys.members("pending") == []


def test_promoted_job_goes_to_its_lane(queue: Queue, keys: Keys) -> None:
    put(keys, ID, "schedule", group=GROUP, state="scheduled")

    assert queue.promote() == 1
    assert lane(keys) == ([ID], [GROUP.encode()], {}, [b"1"])
    assert keys.row(ID)["state"] == b"pending"
    assert queue.state(ID) == "pending"


# Flows: rows of another client's making.


def child(queue: Queue, keys: Keys, id: str = ID, **fields: str) -> Job:
    put(keys, id, parent=PARENT, **fields)
    return claim(queue)


def flow(keys: Keys, part: str, id: str = PARENT) -> Any:
    key = f"{keys.base}job:{id}:{part}"
    if part == "dependencies":
        return int(keys.admin.get(key) or 0)
    return {k.decode(): v for k, v in keys.admin.hgetall(key).items()}


def outbox(keys: Keys) -> list[bytes]:
    lines: list[bytes] = keys.admin.lrange(keys.base + "flow:outbox", 0, -1)
    return lines


@pytest.mark.parametrize("result", [None, b"", b"\x00r", "text"])
@pytest.mark.parametrize("fused", [False, True])
def test_parent_gets_the_result(queue: Queue, keys: Keys, result: Any, fused: bool) -> None:
    put_parent(keys, 2)
    job = child(queue, keys)

    if fused:
        queue.complete_and_claim(job, result=result)
    else:
        queue.complete(job, result)
    want = ID.encode() if result is None else result
    want = want.encode() if isinstance(want, str) else want
    assert flow(keys, "processed") == {ID: want}
    assert flow(keys, "dependencies") == 1
    assert queue.state(PARENT) == "awaiting_children"


def test_last_child_releases_the_parent(queue: Queue, keys: Keys) -> None:
    put_parent(keys)

    released = queue.complete_and_claim(child(queue, keys))
    assert released == Job(PARENT, b"p", 1, queue.name)


@pytest.mark.parametrize("verb", ["reap", "sweep"])
def test_late_completion_of_a_child_counts(
    queue: Queue, keys: Keys, expire: Expire, verb: str
) -> None:
    put_parent(keys)
    job = child(queue, keys)
    expire(job)
    if verb == "reap":
        queue.reap()
    else:
        queue.sweep_stalled(2)

    queue.complete(job, b"late")
    assert flow(keys, "processed") == {ID: b"late"}
    assert keys.members("pending") == [PARENT]
    assert keys.row(PARENT)["state"] == b"pending"


def test_late_completion_of_a_child_from_elsewhere_is_sent(
    queue: Queue, keys: Keys, expire: Expire
) -> None:
    job = child(queue, keys, parent_queue="elsewhere")
    expire(job)
    queue.reap()

    queue.complete(job, b"a\x00b")
    assert outbox(keys) == [b"elsewhere\x00%s\x00%s\x00a\x00b" % (PARENT.encode(), ID.encode())]


def test_parent_in_its_childs_own_queue_is_told_at_once(queue: Queue, keys: Keys) -> None:
    put_parent(keys)

    queue.complete(child(queue, keys, parent_queue=queue.name))
    assert outbox(keys) == []
    assert keys.members("pending") == [PARENT]


def test_parent_that_cannot_be_read_leaves_its_child_as_it_was(queue: Queue, keys: Keys) -> None:
    keys.admin.set(f"{keys.base}job:{PARENT}", "not a hash")
    job = child(queue, keys)
    before = keys.dumped()

    for settle in (
        lambda: queue.complete(job),
        lambda: queue.retry(job, delay_ms=0, max_attempts=1, error="e"),
    ):
        with pytest.raises(ServerError, match="WRONGTYPE"):
            settle()
    assert keys.dumped() == before


@pytest.mark.parametrize("state", ["dead", "active", "pending", "scheduled"])
def test_parent_that_waits_no_more_is_not_released(queue: Queue, keys: Keys, state: str) -> None:
    put_parent(keys)
    keys.admin.hset(f"{keys.base}job:{PARENT}", "state", state)

    queue.complete(child(queue, keys))
    assert keys.row(PARENT)["state"] == state.encode()
    assert keys.members("pending") == []


def test_removed_parent_is_not_made_anew(queue: Queue, keys: Keys) -> None:
    queue.complete(child(queue, keys))
    die(queue, child(queue, keys, SECOND))
    die(queue, child(queue, keys, THIRD, parent_policy="id"))

    assert not list(keys.admin.scan_iter(match=f"{keys.base}job:{PARENT}*", count=1000))
    assert keys.members("pending") == []
    assert keys.members("dead") == [SECOND, THIRD]


def die(queue: Queue, job: Job, error: str = "boom") -> None:
    assert queue.retry(job, delay_ms=0, max_attempts=1, error=error) == "dead"


def test_dead_child_fails_its_parent(queue: Queue, keys: Keys) -> None:
    put_parent(keys, 2)

    die(queue, child(queue, keys))
    assert flow(keys, "failed") == {ID: b"boom"}
    assert flow(keys, "dependencies") == 2
    assert keys.members("dead") == sorted([ID, PARENT])
    assert keys.row(PARENT) == {"state": b"dead", "attempts": b"0", "payload": b"p"}
    assert queue.counts()["failed"] == 1
    assert outbox(keys) == []


def test_parent_that_was_released_is_killed_all_the_same(queue: Queue, keys: Keys) -> None:
    put_parent(keys)
    job = child(queue, keys)
    put(keys, PARENT)

    die(queue, job)
    assert keys.members("pending") == []
    assert keys.members("dead") == [ID, PARENT]


def test_retried_child_asks_for_no_parent(queue: Queue, keys: Keys) -> None:
    keys.admin.set(f"{keys.base}job:{PARENT}", "not a hash")

    queue.retry(child(queue, keys), delay_ms=HOUR, max_attempts=2, error="e")
    assert queue.state(ID) == "scheduled"


def test_retried_child_tells_nobody(queue: Queue, keys: Keys) -> None:
    put_parent(keys)

    queue.retry(child(queue, keys), delay_ms=0, max_attempts=2, error="e")
    assert flow(keys, "failed") == {}
    assert queue.state(PARENT) == "awaiting_children"


def test_running_parent_is_not_killed(queue: Queue, keys: Keys) -> None:
    put_parent(keys, parent=ABOVE)
    keys.admin.hset(f"{keys.base}job:{PARENT}", "state", "active")
    keys.admin.zadd(keys.base + "active", {PARENT: now_ms(keys) + HOUR})

    die(queue, child(queue, keys))
    assert flow(keys, "failed") == {ID: b"boom"}
    assert queue.state(PARENT) == "active"
    assert keys.members("dead") == [ID]
    assert outbox(keys) == []


def test_ignored_child_counts_as_done(queue: Queue, keys: Keys) -> None:
    put_parent(keys, 2)

    die(queue, child(queue, keys, parent_policy="id"), "one")
    assert flow(keys, "unsuccessful") == {ID: b"one"}
    assert flow(keys, "dependencies") == 1
    die(queue, child(queue, keys, SECOND, parent_policy="id"), "two")
    assert flow(keys, "dependencies") == 0
    assert keys.members("pending") == [PARENT]
    assert keys.members("dead") == [ID, SECOND]


@pytest.mark.parametrize("end", ["done", "dead"])
def test_ignored_child_that_is_run_again_does_not_count_twice(
    queue: Queue, keys: Keys, end: str
) -> None:
    put_parent(keys, 2)
    die(queue, child(queue, keys, parent_policy="id"), "first")
    keys.admin.zrem(keys.base + "dead", ID)
    keys.admin.zadd(keys.base + "pending", {ID: 0})

    again = claim(queue)
    if end == "done":
        queue.complete(again, b"r")
        assert flow(keys, "processed") == {ID: b"r"}
    else:
        die(queue, again, "second")
        assert flow(keys, "unsuccessful") == {ID: b"second"}
    assert flow(keys, "dependencies") == 1
    assert queue.state(PARENT) == "awaiting_children"


@pytest.mark.parametrize(
    ("policy", "sent_policy"), [(None, b"fp"), ("fp", b"fp"), ("id", b"id"), ("what", b"fp")]
)
def test_dead_child_from_elsewhere_is_sent(
    queue: Queue, keys: Keys, policy: str | None, sent_policy: bytes
) -> None:
    fields = {} if policy is None else {"parent_policy": policy}

    die(queue, child(queue, keys, parent_queue="elsewhere", **fields), "a\x00b")
    names = (PARENT.encode(), ID.encode(), sent_policy)
    assert outbox(keys) == [b"\x00fail\x00elsewhere\x00%s\x00%s\x00%s\x00a\x00b" % names]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("policy", ["fp", "id"])
@pytest.mark.parametrize("verb", ["retry", "sweep"])
def test_dead_parent_is_news_for_its_own_parent(
    queue: Queue, keys: Keys, expire: Expire, elsewhere: bool, policy: str, verb: str
) -> None:
    link = {"parent_queue": "elsewhere"} if elsewhere else {}
    put_parent(keys, parent=ABOVE, parent_policy=policy, **link)
    job = child(queue, keys)

    if verb == "retry":
        die(queue, job, "stalled")
    else:
        expire(job)
        queue.sweep_stalled()
    assert keys.members("dead") == [ID, PARENT]
    names = (
        b"elsewhere" if elsewhere else queue.name.encode(),
        ABOVE.encode(),
        PARENT.encode(),
        policy.encode(),
    )
    assert outbox(keys) == [b"\x00fail\x00%s\x00%s\x00%s\x00%s\x00stalled" % names]


def test_sweep_tells_the_parents_of_what_it_kills(queue: Queue, keys: Keys, expire: Expire) -> None:
    put_parent(keys, 2)
    jobs = [
        child(queue, keys, ID, parent_policy="id"),
        child(queue, keys, SECOND, parent_queue="elsewhere"),
        child(queue, keys, THIRD),
    ]
    for job in jobs:
        expire(job)

    assert queue.sweep_stalled() == ([], [ID, SECOND, THIRD])
    assert flow(keys, "unsuccessful") == {ID: b"stalled"}
    assert flow(keys, "failed") == {THIRD: b"stalled"}
    assert flow(keys, "dependencies") == 1
    assert outbox(keys) == [
        b"\x00fail\x00elsewhere\x00%s\x00%s\x00fp\x00stalled" % (PARENT.encode(), SECOND.encode())
    ]
    assert queue.state(PARENT) == "dead"


# Reads.


def test_counts_are_by_place(queue: Queue, keys: Keys) -> None:
    places = ("pending", "active", "schedule", "dead", "completed", "failed")
    assert queue.counts() == dict.fromkeys(places, 0)

    queue.enqueue_many([b"p"] * 5)
    queue.enqueue_many([Item(b"p", delay_ms=HOUR)] * 4)
    jobs = [claim(queue) for _ in range(4)]
    queue.complete(jobs[0])
    die(queue, jobs[1])
    put(keys, ID, LANE, group=GROUP)
    assert queue.counts() == dict(zip(places, (1, 2, 4, 1, 1, 1), strict=True))


def test_state_asks_the_places_first(queue: Queue, keys: Keys) -> None:
    put(keys, ID, "active", state="pending")
    put(keys, SECOND, LANE, group=GROUP)
    put(keys, THIRD, None, group=GROUP)
    put(keys, PARENT, None, state="awaiting_children")
    keys.admin.zadd(keys.base + "dead", {ABOVE: 0})

    asked = [ID, SECOND, THIRD, PARENT, ABOVE, Mint().mint()]
    want = ["active", "pending", "unknown", "awaiting_children", "dead", None]
    assert [queue.state(id) for id in asked] == want


def test_row_is_read_apart(queue: Queue, keys: Keys) -> None:
    queue.enqueue(b"\x00\xff", job_id=ID)
    assert queue.job(ID) == Row("pending", 0, b"\x00\xff", {})

    queue.retry(claim(queue), delay_ms=HOUR, max_attempts=3, error="\u00e9")
    assert queue.job(ID) == Row("scheduled", 1, b"\x00\xff", {"last_error": "\u00e9"})
    assert queue.job(SECOND) is None


def test_odd_row_is_read_as_it_is(queue: Queue, keys: Keys) -> None:
    keys.admin.hset(keys.base + "job:" + ID, mapping={"lock": b"\xff", "attempts": "many"})

    assert queue.job(ID) == Row(None, 0, None, {"lock": "\udcff"})
    keys.admin.set(keys.base + "job:" + SECOND, "not a hash")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.job(SECOND)


def test_browse_is_newest_first(queue: Queue, keys: Keys) -> None:
    ids = [receipt.job_id for receipt in queue.enqueue_many([b"p"] * 5)]

    assert queue.browse() == ids[::-1]
    assert queue.browse(2) == [ids[4], ids[3]]
    keys.admin.delete(keys.base + "pending")
    assert queue.browse() == []
    keys.admin.set(keys.base + "pending", "not a sorted set")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.browse()


# What somebody else wrote.

FOREIGN = [
    b"\xff\xff",
    b"",
    b"x",
    b"JOBAzL8n0Y58m8",
    b"ORD0EEMl9I7KXg",
    "JOB\u00e90EEMl9I7K".encode(),
]


@pytest.mark.parametrize("id", FOREIGN, ids=repr)
def test_entry_whose_id_is_no_jobs_breaks_the_contract(
    queue: Queue, keys: Keys, expire: Expire, id: bytes
) -> None:
    def write(place: str) -> None:
        keys.admin.hset(keys.base.encode() + b"job:" + id, mapping={"payload": "4111"})
        keys.admin.zadd(keys.base + place, {id: 0})

    def refused(call: Callable[[], object]) -> None:
        with pytest.raises(ContractError) as caught:
            call()
        assert "for a job's id" in str(caught.value)
        assert "4111" not in str(caught.value) + repr(caught.value)

    write("pending")
    refused(queue.browse)
    refused(queue.claim)
    # It is leased: whoever comes next gets past it.
    queue.enqueue(b"good", job_id=ID)
    job = claim(queue)
    assert job.payload == b"good"
    keys.admin.delete(keys.base + "active")
    keys.admin.zadd(keys.base + "active", {ID: 2**53})

    write("pending")
    refused(lambda: queue.complete_and_claim(job))
    assert queue.state(ID) is None  # it was completed
    keys.admin.delete(keys.base + "active")

    for max_stalled in (99, 1):  # recovered, then dead
        write("active")
        refused(lambda stalls=max_stalled: queue.sweep_stalled(stalls))  # type: ignore[misc]


def test_group_that_is_no_text_is_told_escaped(queue: Queue, keys: Keys) -> None:
    put(keys, ID)
    keys.admin.hset(keys.base + "job:" + ID, "group", b"\xff")
    assert claim(queue).group == r"\xff"


def test_attempts_of_too_many_digits_are_none(queue: Queue, keys: Keys) -> None:
    put(keys, ID, attempts="9" * 5000)
    row = queue.job(ID)
    assert row is not None
    assert row.attempts == 0

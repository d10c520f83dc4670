"""`emq doctor`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emq import Queue
from emq.commands import doctor
from emq.plans.doctor import Fault, Server, look
from tests.conftest import Server as Valkey

from ..conftest import Keys
from .conftest import GROUP, OTHER_GROUP, Emq, Hands, claimed, dead


@pytest.fixture(autouse=True)
def durable(server: Valkey) -> Iterator[None]:
    """The run's server says that it saves, so that there is nothing to find about it."""
    server.admin.config_set("save", "86400 100000000")
    yield
    server.admin.config_set("save", "")


def checks(run: Emq, *argv: str, code: int = 1) -> list[tuple[str, str | None, bool]]:
    """What a checkup found: the check, the job, and whether it was mended."""
    told = run("doctor", *argv, "--json", code=code).documents
    return [(each["check"], each["job"], each["mended"]) for each in told]


# Queues.


def test_all_is_well(run: Emq, queue: Queue, hands: Hands, keys: Keys) -> None:
    """No state that the verbs make is a finding, and mending changes nothing."""
    queue.enqueue(b"p", dedup="k", result_ttl_ms=60_000)
    queue.enqueue(b"p", delay_ms=60_000)
    dead(queue)
    queue.complete(claimed(queue), b"kept")
    queue.lock((queue.enqueue(b"p"), claimed(queue))[1], 60_000)
    hands.laned()
    parent = hands.row(state="awaiting_children", payload="p")
    keys.admin.set(f"{keys.base}job:{parent}:dependencies", 1)
    held = hands.row(state="active", payload="p", group=GROUP)
    hands.put("active", held, 10**15)
    keys.admin.hset(f"{keys.base}gactive", GROUP, 1)
    before = keys.dumped()

    done = run("doctor", queue.name, "--repair")

    assert done.lines == ["all is well: 1 queue, 6 jobs"]
    assert keys.dumped() == before


def test_a_queue_without_keys_is_well(run: Emq, queue: Queue) -> None:
    assert run("doctor", queue.name).lines == ["all is well: 0 queues, 0 jobs"]


Scene = Callable[[Hands, Keys, Queue], str | None]


def dedup_of_nobody(hands: Hands, keys: Keys, queue: Queue) -> str:
    keys.admin.set(f"{keys.base}de:k", id := hands.mint())
    return id


def lock_of_nobody(hands: Hands, keys: Keys, queue: Queue) -> str:
    keys.admin.set(f"{keys.base}job:{(id := hands.mint())}:lock", "1")
    return id


def miscount(hands: Hands, keys: Keys, queue: Queue) -> None:
    keys.admin.hset(f"{keys.base}gactive", GROUP, 3)


MENDED: dict[str, Scene] = {
    "rowless": lambda hands, keys, queue: hands.put("pending", hands.mint()),
    "rowless in active": lambda hands, keys, queue: hands.put("active", hands.mint(), 10**15),
    "rowless in a lane": lambda hands, keys, queue: hands.put(f"g:{GROUP}:pending", hands.mint()),
    "lost": lambda hands, keys, queue: hands.row(state="pending", payload="p"),
    "lost without a state": lambda hands, keys, queue: hands.row(payload="p"),
    "lost and dead": lambda hands, keys, queue: hands.row(state="dead", payload="p"),
    "lost of a lane": lambda hands, keys, queue: hands.row(
        state="active", payload="p", group=GROUP
    ),
    "state": lambda hands, keys, queue: hands.put("dead", hands.row(state="active", payload="p")),
    "state of a lane": lambda hands, keys, queue: hands.laned(state="dead"),
    "lock": lock_of_nobody,
    "lock alone": lambda hands, keys, queue: hands.row(lock="1"),
    "dedup": dedup_of_nobody,
    "count": miscount,
}


@pytest.mark.parametrize("scene", MENDED)
def test_what_is_safe_is_mended(
    run: Emq, queue: Queue, hands: Hands, keys: Keys, scene: str
) -> None:
    job = MENDED[scene](hands, keys, queue)
    bystander = queue.enqueue(b"p").job_id
    check = scene.split()[0]
    before = keys.dumped()

    assert checks(run, queue.name) == [(check, job, False)]
    assert keys.dumped() == before

    assert checks(run, queue.name, "--repair", code=0) == [(check, job, True)]
    assert checks(run, queue.name, code=0) == []
    assert queue.state(bystander) == "pending"


def test_lost_jobs_are_where_they_belong(run: Emq, queue: Queue, hands: Hands, keys: Keys) -> None:
    flat = hands.row(state="active", payload="p")
    due = hands.row(state="scheduled", payload="p")
    laned = hands.row(state="active", payload="p", group=GROUP)
    killed = hands.row(state="dead", payload="p", last_error="boom")

    run("doctor", queue.name, "--repair")

    assert keys.members("pending") == sorted([flat, due])
    assert keys.members(f"g:{GROUP}:pending") == [laned]
    assert keys.admin.lrange(f"{keys.base}ring", 0, -1) == [GROUP.encode()]
    assert keys.members("dead") == [killed]
    assert {keys.row(id)["state"] for id in (flat, due, laned)} == {b"pending"}


def test_a_stray_entry_goes_and_its_job_finds_its_lane(
    run: Emq, queue: Queue, hands: Hands, keys: Keys
) -> None:
    id = hands.laned()
    keys.admin.hset(f"{keys.base}job:{id}", "group", OTHER_GROUP)

    told = checks(run, queue.name, "--repair", code=0)

    assert ("stray", id, True) in told
    assert keys.members(f"g:{GROUP}:pending") == []
    assert keys.members(f"g:{OTHER_GROUP}:pending") == [id]
    assert checks(run, queue.name, code=0) == []


def test_a_ghosts_entry_goes_and_its_row_is_left(
    run: Emq, queue: Queue, hands: Hands, keys: Keys
) -> None:
    id = hands.put("pending", hands.row(state="pending"))

    assert checks(run, queue.name) == [("ghost", id, False)]
    assert ("ghost", id, True) in checks(run, queue.name, "--repair")

    assert keys.members("pending") == []
    assert keys.row(id) == {"state": b"pending"}
    done = run("doctor", queue.name, "--repair", code=1)
    assert f"emq discard {queue.name} {id} --yes removes it" in done.out


def test_a_full_lane_is_served_again_once_its_count_is_right(
    run: Emq, queue: Queue, hands: Hands, keys: Keys
) -> None:
    hands.laned()
    keys.admin.delete(f"{keys.base}ring")
    keys.admin.hset(f"{keys.base}glimit", GROUP, 1)
    keys.admin.hset(f"{keys.base}gactive", GROUP, 1)
    assert (
        f"lane {GROUP} counts 1 jobs in flight, and has 0" in run("doctor", queue.name, code=1).out
    )

    run("doctor", queue.name, "--repair")

    assert keys.admin.lrange(f"{keys.base}ring", 0, -1) == [GROUP.encode()]
    assert keys.admin.hgetall(f"{keys.base}gactive") == {}


@pytest.mark.parametrize("scene", ["twice", "unknown", "alien", "unreadable", "type"])
def test_what_is_not_safe_is_left(
    run: Emq, queue: Queue, hands: Hands, keys: Keys, scene: str
) -> None:
    job: str | None = None
    lost = hands.row(state="pending", payload="p") if scene != "type" else None
    match scene:
        case "twice":
            job = hands.put("pending", hands.put("dead", hands.row(state="dead", payload="p")))
        case "unknown":
            job = hands.row(state="dreaming", payload="p")
        case "alien":
            hands.put("dead", "nobody's id")
        case "unreadable":
            job = hands.mint()
            keys.admin.set(f"{keys.base}job:{job}", "x")
        case "type":
            keys.admin.rpush(f"{keys.base}schedule", "x")

    told = checks(run, queue.name, "--repair")

    # What can be mended beside it is mended.
    assert sorted(told, key=str) == sorted(
        [(scene, job, False), *([("lost", lost, True)] if lost else [])], key=str
    )
    assert checks(run, queue.name) == [(scene, job, False)]


def test_a_job_that_moves_meanwhile_is_not_touched(
    connector: Any, queue: Queue, hands: Hands, keys: Keys
) -> None:
    """Between the look and the mending the job is put right by another."""
    id = hands.row(state="active", payload="p")
    other = hands.row(state="active", payload="p")
    plan = look(queue.keys, [id, other], True)
    step = next(plan)
    found = connector.run(one(step))
    hands.put("active", id, 10**15)

    step = plan.send(found)
    with pytest.raises(StopIteration) as end:
        plan.send(connector.run(one(step)))

    assert end.value.value == [Fault(other, "lost", "active", True)]
    assert keys.members("active") == [id]
    assert keys.members("pending") == [other]


def one(step: Any) -> Any:
    """A plan of one step."""
    return (yield step)


def test_leases_and_due_jobs_that_nobody_sees_to(run: Emq, queue: Queue, keys: Keys) -> None:
    queue.enqueue_many([b"p"] * 2)
    for _ in range(2):
        keys.admin.zadd(f"{keys.base}active", {claimed(queue).id: 1}, xx=True)
    late = queue.enqueue(b"p", run_at_ms=1).job_id

    done = run("doctor", queue.name, code=1)

    assert "2 leases ended more than 1m ago" in done.out
    assert "1 job fell due more than 1m ago" in done.out
    assert "run a worker: emq work" in done.out
    queue.pause()
    assert "overdue" not in [check for check, *_ in checks(run, queue.name)]
    assert queue.state(late) == "scheduled"


def test_many_findings_of_a_kind_are_summed_up(run: Emq, queue: Queue, hands: Hands) -> None:
    for _ in range(600):  # more than one step of a walk
        hands.put("pending", hands.mint())

    done = run("doctor", queue.name, code=1)

    assert sum("has no row" in line for line in done.lines) == 20
    assert f"queue {queue.name}: 580 more of rowless; --json shows all" in done.lines
    assert done.lines[-1].startswith("600 findings, 0 mended, 600 left: ")
    assert len(checks(run, queue.name)) == 600
    run("doctor", queue.name, "--repair")
    assert queue.counts()["pending"] == 0


def test_all_queues_are_looked_at_in_one_walk(run: Emq, queue: Queue, hands: Hands) -> None:
    id = hands.row(state="pending", payload="p")
    told = run("doctor", "--json", code=1).documents
    assert (queue.name, id) in [(each["queue"], each["job"]) for each in told]


def test_a_queue_with_more_active_jobs_than_are_counted(
    run: Emq, queue: Queue, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq.plans.doctor._COUNTED", 1)
    keys.admin.hset(f"{keys.base}gactive", GROUP, 3)
    queue.enqueue_many([b"p"] * 2)
    for _ in range(2):
        claimed(queue)
    assert checks(run, queue.name, code=0) == []


def test_what_others_wrote_is_escaped(run: Emq, queue: Queue, hands: Hands) -> None:
    hands.put("dead", "\x1b[2J\n")
    hands.row(state="\x1b[2J", payload="p")
    assert "\x1b" not in run("doctor", queue.name, code=1).out


# The server.


def asked(**facts: Any) -> Server:
    well = {
        "version": b"echomq:3.0.0",
        "policy": "noeviction",
        "saves": "3600 1",
        "appends": False,
        "replica": False,
        "used": 1,
        "most": 100,
    }
    return Server(**{**well, **facts})


@pytest.mark.parametrize(
    ("facts", "check"),
    [
        ({}, None),
        ({"policy": "allkeys-lru"}, "eviction"),
        ({"saves": ""}, "persistence"),
        ({"saves": "", "appends": True}, None),
        ({"saves": "", "appends": None}, None),
        ({"saves": None, "policy": None, "replica": None, "used": None, "most": None}, None),
        ({"replica": True}, "replica"),
        ({"used": 95}, "memory"),
        ({"used": 95, "most": 0}, None),
        ({"version": b"echomq:2.0.0"}, "fence"),
    ],
)
def test_of_the_server(facts: dict[str, Any], check: str | None) -> None:
    found = [finding.check for finding in doctor._of_server(asked(**facts), "echomq:3.0.0")]
    assert found == ([] if check is None else [check])


def test_a_server_of_the_older_protocol_is_asked_too(
    run: Emq, queue: Queue, server: Valkey, hands: Hands
) -> None:
    server.admin.config_set("save", "")
    id = hands.put("dead", hands.mint())
    url = f"{server.url}?protocol=2"
    told = run("doctor", queue.name, "--json", url=url, code=1).documents
    assert [(each["check"], each["job"]) for each in told] == [
        ("persistence", None),
        ("rowless", id),
    ]


def test_the_server_is_asked(run: Emq, queue: Queue, server: Valkey) -> None:
    admin = server.admin
    admin.config_set("save", "")
    admin.config_set("maxmemory-policy", "allkeys-lru")  # without a limit, so that nothing goes
    try:
        told = [check for check, *_ in checks(run, queue.name)]
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", int(admin.info("memory")["used_memory"] * 1.05))
        told += [check for check, *_ in checks(run, queue.name)]
    finally:
        admin.config_set("maxmemory", 0)
        admin.config_set("maxmemory-policy", "noeviction")
    assert sorted(told) == ["eviction", "memory", "persistence", "persistence"]


def test_a_user_who_may_not_ask_is_told_of_the_queues(
    run: Emq, queue: Queue, server: Valkey, hands: Hands
) -> None:
    hands.put("pending", hands.mint())
    server.admin.acl_setuser(
        "looker",
        enabled=True,
        passwords=["+p"],
        keys=["*"],
        commands=["+@all", "-config", "-info"],
    )
    try:
        url = f"valkey://looker:p@{server.host}:{server.port}"
        told = run("doctor", queue.name, "--json", url=url, code=1).documents
    finally:
        server.admin.acl_deluser("looker")
    assert [each["check"] for each in told] == ["rowless"]


def test_a_server_of_nobodys_is_claimed_by_repair_alone(
    run: Emq, queue: Queue, server: Valkey
) -> None:
    version = server.admin.getdel("{emq}:version")
    try:
        assert checks(run, queue.name) == [("fence", None, False)]
        assert server.admin.get("{emq}:version") is None
        assert checks(run, queue.name, "--repair", code=0) == [("fence", None, True)]
        assert server.admin.get("{emq}:version") == version
    finally:
        server.admin.set("{emq}:version", version)


def test_a_server_of_another_version_is_not_repaired(
    run: Emq, queue: Queue, server: Valkey, hands: Hands
) -> None:
    id = hands.put("pending", hands.mint())
    version = server.admin.get("{emq}:version")
    server.admin.set("{emq}:version", "echomq:2.0.0")
    try:
        assert checks(run, queue.name) == [("fence", None, False), ("rowless", id, False)]
        done = run("doctor", queue.name, "--repair", code=1)
    finally:
        server.admin.set("{emq}:version", version)
    assert "--wire-version" in done.err
    assert "has no row" not in done.out


def test_clocks_that_differ_are_told(
    run: Emq, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: here() - 5_000_000_000)
    [told] = run("doctor", queue.name, "--json", code=1).documents
    assert told["check"] == "clock"
    assert "ahead of this one" in told["message"]

"""The wire's scenarios pass on both shells and protocols, and a bus that is broken is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import emq
from emq import Queue, aio_conformance, conformance, scripts
from emq.batch import WAIT, Done, Flush, Shaper
from emq.cancel import CancelToken
from emq.ids import Mint
from emq.keyspace import Keyspace
from emq.plans import reads
from emq.scenarios import SCENARIOS, Mismatch, Missing, Scene, Trial, batches, life
from emq.scenarios.kit import Ask, Hear, Listen, expect, expect_between, say, to_next_wish
from emq.scripts import Transition, source_of
from emq.telemetry import Telemetry
from resp import ConnectionLost, Plan, RespError, Script, ServerError
from tests.conftest import Server

from .conftest import SHELLS, Expire
from .shells import Loop

Player = Callable[[Scene[None]], None]

BUILT: Final = {
    name: scenario for name, scenario in SCENARIOS.items() if not isinstance(scenario, Missing)
}


@pytest.fixture(scope="session", params=SHELLS, ids=lambda param: f"{param[0]}-resp{param[1]}")
def player(request: pytest.FixtureRequest, server: Server) -> Iterator[Player]:
    """What plays a scene, on each shell and each protocol."""
    kind, protocol = request.param
    if kind == "threads":
        with emq.connect(server.url, protocol=protocol) as connector:
            yield lambda scene: conformance.play(connector, scene)
        return
    loop = Loop()
    awaited = loop.run(lambda: emq.connect_async(server.url, protocol=protocol))
    yield lambda scene: loop.run(lambda: aio_conformance.play(awaited, scene))
    loop.run(awaited.close)
    loop.close()


@pytest.fixture(scope="session")
def play(server: Server) -> Iterator[Player]:
    """What plays a scene on threads."""
    with emq.connect(server.url) as connector:
        yield lambda scene: conformance.play(connector, scene)


@pytest.fixture
def trial(fresh_name: str) -> Trial:
    return Trial(fresh_name)


@pytest.mark.parametrize("name", BUILT)
def test_scenario(player: Player, trial: Trial, name: str) -> None:
    player(BUILT[name](trial))


def test_the_wire_has_79_scenarios_and_these_can_be_played() -> None:
    numbers = [number for number, name in enumerate(SCENARIOS, 1) if name in BUILT]

    assert len(SCENARIOS) == 79
    assert numbers == [
        *range(1, 12),
        15,
        *range(17, 24),
        *range(25, 42),
        *(58, 59),
        *range(62, 68),
        *range(71, 74),
    ]


# What breaks the bus, or the client.

Break = Callable[[pytest.MonkeyPatch], None]


def lua(name: str, old: str, new: str) -> Break:
    """A script with a piece of it replaced."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        source = source_of(name)
        assert old in source, f"{name}.lua has no {old}"
        altered = Transition(name)
        vars(altered)["script"] = Script(name, source.replace(old, new))
        own = next(
            each
            for each in vars(scripts).values()
            if isinstance(each, Transition) and each.name == name
        )
        patch.setitem(vars(own), "script", altered.script)
        patch.setitem(vars(own), "call", altered.call)

    return apply


def python(owner: Any, name: str, value: Any) -> Break:
    """A function, or an attribute, replaced."""
    return lambda patch: patch.setattr(owner, name, value)


def key(attribute: str) -> Break:
    """A key, or a channel, under another name."""

    class Wrong(Keyspace):
        def __init__(self, queue_name: str) -> None:
            super().__init__(queue_name)
            setattr(self, attribute, self.base + "elsewhere")

    return lambda patch: patch.setattr("emq.scenarios.kit.Keyspace", Wrong)


def _oldest_first(keys: Keyspace, limit: int) -> Plan[list[str]]:
    ids = yield from say("ZRANGE", keys.pending, 0, limit - 1)
    return [id.decode() for id in ids]


def _dedup_elsewhere(keys: Keyspace, key: str) -> Plan[str | None]:
    id = yield from say("GET", f"{keys.base}dedup:{key}")
    return None if id is None else id.decode()


def _never(keys: Keyspace) -> Plan[None]:
    yield from ()


IS_HELD: Final = "return attempts == token and token ~= '0'"

# For each scenario, breaks that it must find.
BREAKS: Final[dict[str, list[Break]]] = {
    "fence": [python(Trial, "__init__", lambda self, queue: _as_of_another_version(self, queue))],
    "mint": [
        lua("enqueue", "'attempts', '0'", "'attempts', '1'"),
        lua("enqueue", "'pending', '0', id", "'pending', '1', id"),
    ],
    "duplicate": [lua("enqueue", "'EXISTS', row) == 1", "'EXISTS', row) == 2")],
    "kind": [
        lua("enqueue", "if not is_job(id)", "if false"),
        lua("enqueue", "EMQKIND job id", "EMQKIND the job id"),
    ],
    "order": [python(reads, "browse", _oldest_first)],
    "claim": [
        lua("claim", "from_now(lease_ms)", "from_now(lease_ms * 2)"),
        lua("claim", "count_of(job[1]) + 1", "count_of(job[1]) + 2"),
        lua("claim", "'state', 'active'", "'state', 'running'"),
    ],
    "stale": [
        lua("complete", IS_HELD, "return true"),
        lua("complete", "'token mismatch'", "'wrong token'"),
    ],
    "complete": [
        lua("complete", "redis.call('DEL', row, ", "redis.call('DEL', "),
        lua("complete", "redis.call('ZREM', base .. 'active', id) == 1", "true"),
    ],
    "retry": [
        lua("retry", "from_now(delay_ms)", "from_now(0)"),
        lua("retry", "'state', 'scheduled'", "'state', 'schedule'"),
    ],
    "dead": [
        lua("retry", "failures < tonumber(max_attempts)", "failures <= tonumber(max_attempts)"),
        lua("retry", "base .. 'dead', '0', id", "base .. 'dead', '1', id"),
    ],
    "reap": [
        lua("reap", "redis.call('ZREM', base .. 'active', id)", ""),
        lua("reap", "'state', 'pending'", "'state', 'reaped'"),
        lua("reap", "from_now(0)", "'+inf'"),
    ],
    "schedule": [
        lua("promote", "redis.call('ZREM', base .. 'schedule', id)", ""),
        lua("promote", "from_now(0)", "'+inf'"),
        lua("enqueue", "due and 'scheduled' or", "due and 'schedule' or"),
    ],
    "backoff": [lua("retry", "'state', 'dead', 'last_error', reason", "'state', 'dead'")],
    "counts": [lua("counts", "'ZCARD', base .. 'schedule'", "'ZCARD', base .. 'dead'")],
    "state": [lua("state", "{ 'schedule', 'scheduled' }", "{ 'schedule', 'pending' }")],
    "metrics": [lua("complete", "tally('completed')", "tally('failed')")],
    "dedup": [python(reads, "dedup", _dedup_elsewhere)],
    "rate": [key("meta")],
    "queue_pause": [
        lua("pause", "'meta', 'paused', '1'", "'meta', 'halted', '1'"),
        lua("claim", "if is_paused then", "if false then"),
    ],
    "drain": [lua("drain", "erase(id, base .. 'job:' .. id, 'drained')", "")],
    "obliterate": [
        lua("obliterate", "if not is_paused", "if false"),
        lua("forget", "redis.call('UNLINK', base .. suffix)", ""),
    ],
    "update_data": [lua("update_payload", "'payload', ARGV[1]", "'data', ARGV[1]")],
    "update_progress": [lua("progress", "'\"event\":'", "'\"event\": '")],
    "job_logs": [lua("log", "':logs', -keep", "':logs', -3"), lua("log", "':logs'", "':log'")],
    "remove_job": [lua("remove", "redis.call('EXISTS', row .. ':lock') == 1 or", "")],
    "reprocess_job": [
        lua("reprocess", "redis.call('HDEL', row, 'last_error')", ""),
        lua("reprocess", "redis.call('ZREM', base .. 'dead', id) == 0", "false"),
    ],
    "lock_extend": [
        lua("extend", "'XX', from_now(lease_ms)", "'XX', from_now(1)"),
        lua("extend", IS_HELD, "return true"),
    ],
    "stalled": [lua("sweep_stalled", "stalled >= most", "stalled > most")],
    "events": [key("events")],
    "telemetry": [python(Telemetry, "job_completed", lambda self, *told, **more: None)],
    "cancel": [python(CancelToken, "check", lambda self: None)],
    "unknown_state": [lua("state", "return 'unknown'", "return 'active'")],
    "rate_consult": [python(reads, "check_ceiling", _never)],
    "dedup_release": [lua("remove", "release(id, ARGV[1])", "")],
    "extend_locks_batch": [lua("extend_many", IS_HELD, "return true")],
    "native_lock_field": [lua("state", "{ 'pending', 'pending' }", "{ 'pending', 'active' }")],
    "native_lock_refuses": [lua("remove", "or redis.call('HEXISTS', row, 'lock') == 1", "")],
    "batch_claim": [
        lua("claim_many", "ends = ends or from_now(lease_ms)", "ends = from_now(lease_ms + #jobs)")
    ],
    "batch_claim_short": [lua("claim_many", "if is_paused then", "if false then")],
    "batch_partial_failure": [lua("retry", "'last_error', reason", "'error', reason")],
    "batch_shaping_floor": [python(Shaper, "decide", lambda self, depth, ms: WAIT)],
    "batch_shaping_timeout": [python(Shaper, "decide", lambda self, depth, ms: Flush(depth))],
    "batch_shaping_partial_failure": [
        python(batches, "verdicts", lambda ids, answer: dict.fromkeys(ids, Done()))
    ],
    "batch_partition": [lua("retry", "return 'dead'", "return 'scheduled'")],
    "batch_delay": [lua("delay", "'state', 'scheduled'", "'state', 'delayed'")],
    "batch_delay_stale": [lua("delay", IS_HELD, "return true")],
}


def _as_of_another_version(trial: Trial, queue: str) -> None:
    trial.queue, trial.base, trial.wire_version = queue, "", "echomq:9.9.9"


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, breaks in BREAKS.items() for number in range(len(breaks))],
)
def test_scenario_finds_a_break(
    play: Player, fresh_name: str, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    BREAKS[name][number](monkeypatch)

    with pytest.raises(Mismatch):
        play(BUILT[name](Trial(fresh_name)))


def test_every_scenario_that_can_be_played_has_a_break_to_find() -> None:
    # What resubscribe would find is below: no change to the client on this page makes it.
    assert {*BUILT} - {*BREAKS} == {"resubscribe"}


def test_a_subscriber_that_stays_away_is_found(trial: Trial) -> None:
    def answer(step: Any) -> Any:
        match step:
            case Listen():
                return None
            case Ask():
                return 7  # the same connection, for ever
            case Hear(seconds):
                return b"before" if seconds == 1.0 else None
            case _:
                return 1

    def play_to_the_end() -> None:
        scene, fact = life.resubscribe(trial), None
        while True:
            fact = answer(scene.send(fact))

    with pytest.raises(Mismatch, match="not connected again within 2 s"):
        play_to_the_end()


# What scenarios are made of.


def test_errors_of_commands_and_of_wishes_reach_the_scene(player: Player, trial: Trial) -> None:
    seen: list[Exception] = []

    def scene() -> Scene[None]:
        yield Listen(trial.key("chan"))
        for part in (say("NO-SUCH-COMMAND"), _asking("NO-SUCH-COMMAND")):
            try:
                yield from part
            except RespError as error:
                seen.append(error)

    def _asking(*command: str) -> Scene[None]:
        yield Ask(command)

    player(scene())

    assert [type(error) for error in seen] == [ServerError, ServerError]


def test_a_wish_comes_out_and_its_answer_goes_in() -> None:
    seen = []

    def scene() -> Scene[None]:
        seen.append((yield ("PING",)))
        seen.append((yield Hear(1.0)))
        try:
            yield Hear(2.0)
        except ConnectionLost:
            seen.append((yield ("ECHO", "x")))

    playing = scene()
    part = to_next_wish(playing, None)
    assert part.send(None) == ("PING",)
    with pytest.raises(StopIteration) as ended:
        part.send("PONG")
    assert ended.value.value == Hear(1.0)
    with pytest.raises(StopIteration) as ended:
        to_next_wish(playing, b"message").send(None)
    assert ended.value.value == Hear(2.0)
    part = to_next_wish(playing, ConnectionLost("lost", may_have_run=False))
    assert part.send(None) == ("ECHO", "x")
    with pytest.raises(StopIteration) as ended:
        part.send(b"x")
    assert ended.value.value is None
    assert seen == ["PONG", b"message", b"x"]


def test_a_mismatch_says_both_values_on_one_printable_line() -> None:
    with pytest.raises(Mismatch) as caught:
        expect("the row's state", b"\x1b[2J", "a" * 1000)
    told = str(caught.value)
    assert told.startswith(r"the row's state: b'\x1b[2J' instead of 'aaa")
    assert told.endswith("...")
    assert len(told) < 300
    with pytest.raises(Mismatch, match=r"the score: None is not within 1\.\.2"):
        expect_between("the score", None, 1, 2)
    expect_between("the score", 2.0, 1, 2)


# Beside the scenarios.


def test_stalled_once_is_dead_by_the_wire_default(queue: Queue, expire: Expire) -> None:
    id = Mint().mint()
    queue.enqueue(b"work", job_id=id)
    job = queue.claim()
    assert job is not None
    expire(job)

    assert queue.sweep_stalled() == ([], [id])

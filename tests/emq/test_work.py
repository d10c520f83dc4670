"""What the consumers share: options, verdicts, leases, errors. No server, no thread, no loop."""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

import pytest

from emq.backoff import fixed
from emq.errors import ContractError, JobGone, StaleToken
from emq.job import Job
from emq.keyspace import Keyspace
from emq.options import JobOptions
from emq.plans.work import Completed, Delayed, Failed, Settlement
from emq.work import (
    DIALS_S,
    Again,
    AsyncHeldJob,
    Delay,
    Discard,
    Held,
    HeldJob,
    JsonCodec,
    Leases,
    Pauses,
    RawCodec,
    Reporter,
    Retry,
    Settings,
    Signal,
    Tally,
    Tries,
    Trouble,
    Weather,
    assumed_place,
    check_handler,
    check_seconds,
    error_text,
    in_a_row,
    on_error,
    on_return,
    on_time_limit,
    time_limit_ms,
    total,
    waiter_name,
    worker_name,
)
from resp import Closed, ConnectFailed, ConnectionLost, Refused, ReplyTimeout, ServerError

KEYS = Keyspace("work")
SETTINGS = Settings(backoff=fixed(700), max_attempts=4, time_limit_ms=90)


def job(token: int = 1, id: str = "JOB0EEMl9I7KXg", **own: Any) -> Job:
    return Job(id, b"payload", token, "work", None, 0, JobOptions(**own).encode())


def held(token: int = 1, claimed: float = 0.0, id: str = "JOB0EEMl9I7KXg") -> Held:
    made = HeldJob(job(token, id), KEYS, lambda plan: None)
    made.claimed = claimed
    return made


# Verdicts.


def test_a_return_completes() -> None:
    settings = Settings(result_ttl_ms=5)

    assert on_return(job(), SETTINGS, None) == Completed(job(), None, None)
    assert on_return(job(), settings, "text") == Completed(job(), b"text", 5)
    assert on_return(job(), settings, bytearray(b"a")) == Completed(job(), b"a", 5)
    assert on_return(job(), Settings(codec=JsonCodec()), [1]) == Completed(job(), b"[1]", None)


@pytest.mark.parametrize("value", [7, {}, "\ud800"])
def test_a_result_that_cannot_be_kept_is_dropped(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert on_return(job(), SETTINGS, value) == Completed(job())
    assert f"returned {type(value).__name__}" in caplog.text


def placeless(settlement: Settlement) -> Settlement:
    """A settlement without what only logs get to see."""
    return settlement._replace(place="") if isinstance(settlement, Failed) else settlement


def test_a_log_gets_to_know_an_errors_type_and_its_place() -> None:
    try:
        int("a secret payload")
    except ValueError as raised:
        settlement = on_error(job(), SETTINGS, raised)
    assert isinstance(settlement, Failed)
    assert re.fullmatch(r"ValueError at test_work.py:\d+", settlement.place)


@pytest.mark.parametrize(
    ("signal", "verdict"),
    [
        (Retry(), Failed(job(), 700, 4, b"Retry")),
        (Retry(0, "now"), Failed(job(), 0, 4, b"now")),
        (Discard(), Failed(job(), 0, 1, b"Discard")),
        (Discard("no use"), Failed(job(), 0, 1, b"no use")),
        (Delay(9), Delayed(job(), 9)),
        (Signal("bare"), Failed(job(), 700, 4, b"Signal: bare")),
    ],
    ids=repr,
)
def test_signals_mean_the_same_raised_and_returned(signal: Signal, verdict: object) -> None:
    assert placeless(on_error(job(), SETTINGS, signal)) == verdict
    assert placeless(on_return(job(), SETTINGS, signal)) == verdict


def test_a_signals_class_stands_for_itself() -> None:
    assert placeless(on_return(job(), SETTINGS, Retry)) == Failed(job(), 700, 4, b"Retry")
    assert placeless(on_return(job(), SETTINGS, Discard)) == Failed(job(), 0, 1, b"Discard")
    without = on_return(job(), SETTINGS, Delay)
    assert isinstance(without, Failed)
    assert b"delay_ms" in without.error if isinstance(without.error, bytes) else False


@pytest.mark.parametrize("make", [lambda: Retry(-1), lambda: Delay(-1), lambda: Retry(True)])
def test_signals_check_their_delays(make: Any) -> None:
    with pytest.raises(ValueError, match="delay_ms"):
        make()


def test_a_jobs_own_wishes_win() -> None:
    own = job(max_attempts=2, backoff=fixed(3), time_limit_ms=4)

    error = on_error(own, SETTINGS, ValueError("a"))
    assert placeless(error) == Failed(own, 3, 2, b"ValueError: a")
    assert placeless(on_error(own, SETTINGS, Retry(8, "b"))) == Failed(own, 8, 2, b"b")
    late = on_time_limit(own, SETTINGS)
    assert placeless(late) == Failed(own, 3, 2, b"time limit of 4 ms")
    late = on_time_limit(job(), SETTINGS)
    assert placeless(late) == Failed(job(), 700, 4, b"time limit of 90 ms")
    assert (time_limit_ms(own, SETTINGS), time_limit_ms(job(), Settings())) == (4, None)


def test_the_backoff_is_that_of_the_attempt_and_not_of_the_claim() -> None:
    from emq.backoff import exponential

    third = Job("JOB0EEMl9I7KXg", b"", 5, "work", None, 2)
    verdict = on_error(third, Settings(backoff=exponential(10, 10_000)), ValueError())

    assert isinstance(verdict, Failed)
    assert verdict.delay_ms == 40


def test_error_texts_are_bounded_and_always_there() -> None:
    assert error_text(ValueError()) == b"ValueError"
    assert error_text(ValueError("\u20ac\ud800")) == "ValueError: \u20ac\\ud800".encode()
    long = error_text(ValueError("\u20ac" * 5000)).decode()
    assert (len(long), long[-4:]) == (2000, "\u20ac...")


# Leases.


def test_only_what_is_held_longer_than_a_beat_is_renewed() -> None:
    leases = Leases(Settings(lease_ms=3000))
    now = monotonic() + 10
    old, young, waiting, settling = held(1, now - 1.5), held(2, now - 0.5), held(3), held(4)
    leases.running.update({old: old, young: young})
    leases.waiting[waiting] = waiting
    leases.settling[settling] = settling

    assert sorted(token for _, token in leases.due(now)) == [1, 3, 4]
    leases.renewed(now)
    assert leases.due(now + 0.9) == []
    assert len(leases.due(now + 1.0)) == 4
    leases.again(now, 0.1)
    assert len(leases.due(now + 0.2)) == 3
    old.lost = True
    assert len(leases.due(now + 0.2)) == 2


def test_of_a_job_that_is_held_twice_the_older_claim_is_lost() -> None:
    leases = Leases(SETTINGS)
    first, second = held(1), held(2)
    leases.running.update({first: first, second: second})
    asked = [(each.id, each.token) for each in (second, first)]

    assert leases.lost(asked, [first.id]) == [first]
    assert leases.lost(asked, []) == []


def test_a_job_that_is_being_settled_is_not_lost_yet() -> None:
    leases = Leases(SETTINGS)
    each = held()
    leases.settling[each] = each

    assert leases.due(monotonic() + 1e6) == [(each.id, each.token)]
    assert leases.lost([(each.id, each.token)], [each.id]) == []


def test_who_takes_a_job_out_settles_it_and_nobody_else() -> None:
    leases = Leases(SETTINGS)
    each = held()
    leases.running[each] = each

    assert leases.take(each)
    assert each.lost
    assert each in leases.strays
    assert not leases.take(each)
    other = held()
    assert not leases.take(other)
    assert other not in leases.strays


def test_the_watch_wakes_for_the_next_limit() -> None:
    leases = Leases(Settings(lease_ms=30_000))
    each = held()
    each.ends = monotonic() + 1
    assert leases.wake_at() > each.ends
    leases.running[each] = each
    assert leases.wake_at() == each.ends
    assert leases.overdue(each.ends - 0.1) == []
    assert leases.overdue(each.ends) == [each]


# Errors.


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (StaleToken(), Trouble.REFUSED),
        (JobGone(), Trouble.REFUSED),
        (ConnectionLost("lost"), Trouble.AWAY),
        (ReplyTimeout("late"), Trouble.AWAY),
        (Closed(), Trouble.AWAY),
        (ServerError("READONLY", "READONLY replica"), Trouble.MOVED),
        (ServerError("OOM", "OOM"), Trouble.PASSING),
        (ServerError("NOSCRIPT", "NOSCRIPT"), Trouble.PASSING),
        (ServerError("LOADING", "LOADING"), Trouble.PASSING),
        (ServerError("WRONGTYPE", "WRONGTYPE"), Trouble.WRONG),
        (ContractError("claim", 5), Trouble.WRONG),
        (KeyError(), Trouble.WRONG),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_have_their_kinds(error: Exception, trouble: Trouble) -> None:
    assert Trouble.of(error) is trouble


def test_a_refusal_after_a_lost_answer_says_that_it_is_settled() -> None:
    assert Tries().after(StaleToken()) is Again.REFUSED
    for lost in (ConnectionLost("lost"), ReplyTimeout("late"), ServerError("WRONGTYPE", "W")):
        tries = Tries()
        assert tries.after(lost) is Again.TRY
        assert tries.after(ConnectFailed("not there")) is Again.TRY
        assert tries.after(JobGone()) is Again.SETTLED
    for unsent in (ConnectFailed("not there"), ServerError("LOADING", "L")):
        tries = Tries()
        assert tries.after(unsent) is Again.TRY
        assert tries.after(JobGone()) is Again.REFUSED
    assert Tries(may_have_run=True).after(JobGone()) is Again.SETTLED


def test_what_no_waiting_mends_is_given_up() -> None:
    tries = Tries()
    told = [tries.after(ServerError("WRONGTYPE", "W")) for _ in range(5)]
    assert told == [Again.TRY] * 4 + [Again.GIVE_UP]
    tries = Tries()
    assert {tries.after(ServerError("OOM", "OOM")) for _ in range(100)} == {Again.TRY}


def test_where_a_job_is_that_was_settled_unheard() -> None:
    assert assumed_place(Completed(job())) == "completed"
    assert assumed_place(Delayed(job(), 1)) == "delayed"
    assert assumed_place(Failed(job(), 1, 2, b"")) == "scheduled"
    assert assumed_place(Failed(job(2), 1, 2, b"")) == "dead"


def test_pauses_grow_and_are_bounded() -> None:
    pauses = Pauses(0.1, 1.0)
    drawn = [pauses.next() for _ in range(30)]
    assert 0.05 <= drawn[0] <= 0.1
    assert all(0.5 <= each <= 1.0 for each in drawn[5:])
    pauses.worked()
    assert pauses.next() <= 0.1


def test_a_loop_that_is_told_to_come_again_at_once_is_slowed_down() -> None:
    pauses = Pauses()
    assert [in_a_row(pauses) for _ in range(5)] == [False, False, False, True, True]
    pauses.worked()
    assert not in_a_row(pauses)


def test_the_weather_is_told_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    weather = Weather("it")
    with caplog.at_level(logging.INFO, "emq"):
        weather.good()
        for _ in range(3):
            weather.bad(ConnectionLost("lost"))
        weather.bad(ServerError("OOM", "OOM full"))
        weather.good()
        weather.good()

    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]


def test_a_refusal_is_told_apart_from_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    weather = Weather("it")
    refused = Refused("host refused HELLO: WRONGPASS", "WRONGPASS")
    again = ConnectFailed("not tried again yet")
    again.__cause__ = refused
    with caplog.at_level(logging.INFO, "emq"):
        for error in (ConnectionLost("lost"), refused, again, ConnectionLost("lost"), refused):
            weather.bad(error)

    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "WRONGPASS" in told[1]


def test_most_dials_are_short() -> None:
    assert sum(seconds <= 1 for seconds in DIALS_S) / len(DIALS_S) > 0.8
    assert max(DIALS_S) >= 5


# The rest.


def test_raw_and_json() -> None:
    assert RawCodec().decode(b"\xff") == b"\xff"
    assert JsonCodec().decode(JsonCodec().encode({"a": ["\u20ac"]})) == {"a": ["\u20ac"]}


def test_handlers_are_known_by_their_kind() -> None:
    async def coroutine(job: Any) -> None: ...

    class Called:
        async def __call__(self, job: Any) -> None: ...

    assert check_handler(coroutine)
    assert check_handler(Called())
    assert not check_handler(lambda job: None)
    with pytest.raises(TypeError, match="handler"):
        check_handler(None)


def _yields(job: Any) -> Iterator[Any]:
    yield job


async def _yields_later(job: Any) -> AsyncIterator[Any]:
    yield job


class _Yields:
    def __call__(self, job: Any) -> Iterator[Any]:
        yield job


@pytest.mark.parametrize("handler", [_yields, _yields_later, _Yields()])
def test_a_handler_that_yields_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match="handler has a yield"):
        check_handler(handler)
    done = on_return(job(), SETTINGS, handler(None))  # a wrapper hid it
    assert isinstance(done, Failed)
    assert "handler has a yield" in str(done.error)


@pytest.mark.parametrize("handler", [lambda: None, lambda job, more: None, lambda *, job: None])
def test_a_handler_that_takes_no_job_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"one job \(.*\); write def handler\(job\)"):
        check_handler(handler)


@pytest.mark.parametrize("handler", [print, dict, functools.partial(max, 1), [].append])
def test_a_handler_need_not_be_written_in_python(handler: Any) -> None:
    assert not check_handler(handler)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "1"])
def test_seconds_are_checked(value: object) -> None:
    with pytest.raises(ValueError, match="timeout"):
        check_seconds("timeout", value)


def test_names_are_not_given_twice() -> None:
    assert worker_name("mine") == "mine"
    assert worker_name(None) != worker_name(None)
    assert waiter_name() != waiter_name()


def test_what_was_counted_is_added_up() -> None:
    tallies = [Tally(), Tally()]
    for place in ("completed", "completed", "scheduled", "dead", "delayed"):
        tallies[0].settled(place)
    tallies[1].settled("completed")

    assert {name: count for name, count in total(tallies).items() if count} == {
        "completed": 3,
        "failed": 2,
        "retried": 1,
        "dead": 1,
        "delayed": 1,
    }


def test_a_held_job_shows_no_payload() -> None:
    for kind in (HeldJob, AsyncHeldJob):
        each = kind(job(), KEYS, lambda plan: None)
        assert "payload=<7 bytes>" in repr(each)
        assert each.headers == {}


def test_telemetry_that_swallows_errors_swallows_none_of_the_handlers() -> None:
    class Swallows:
        def emit(self, *told: Any) -> None: ...

        @contextmanager
        def handling(self, job: Any) -> Iterator[None]:
            with suppress(ValueError):
                yield

    reporter = Reporter(Swallows(), "q", "w", lambda job: None)
    with pytest.raises(ValueError, match="the handler's"), reporter.handling(held()):
        raise ValueError("the handler's")


def test_telemetry_whose_end_fails_changes_no_outcome(caplog: pytest.LogCaptureFixture) -> None:
    class Fails:
        def emit(self, *told: Any) -> None: ...

        @contextmanager
        def handling(self, job: Any) -> Iterator[None]:
            yield
            raise RuntimeError("a hook")

    with Reporter(Fails(), "q", "w", lambda job: None).handling(held()):
        pass
    assert "a hook" in caplog.text


@pytest.mark.parametrize("value", [10**30, 1e300, 10**9 + 1, -1, float("nan"), True, "1"])
def test_seconds_are_as_many_as_a_wait_can_take(value: object) -> None:
    with pytest.raises(ValueError, match="seconds, 0 to 10"):
        check_seconds("drain_timeout", value)


def test_a_watch_over_endless_leases_waits_for_no_longer_than_it_can() -> None:
    assert Leases(Settings(lease_ms=2**53)).wake_at() < threading.TIMEOUT_MAX

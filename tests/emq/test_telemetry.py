"""Hooks on events: who hears what, what a bad hook does, and what an event nobody hears costs."""

from __future__ import annotations

import asyncio
import logging
import threading
import timeit
from collections.abc import Mapping
from typing import Any

import pytest

import emq
import resp
from emq import Item, Queue
from emq.telemetry import Telemetry
from resp import Overloaded

JOB = "JOB0EEMl9I7KXg"


class Heard(list[tuple[str, dict[str, Any], dict[str, Any]]]):
    """A hook that keeps what it heard."""

    def __call__(
        self, name: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> None:
        self.append((name, dict(measurements), dict(metadata)))

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self]


@pytest.mark.parametrize(
    ("attached", "hears"),
    [
        ("emq.job.start", ["emq.job.start"]),
        ("emq.job", ["emq.job.start", "emq.job.starting"]),
        ("emq", ["emq.job.start", "emq.job.starting", "emq.jobs"]),
        ("", ["emq.job.start", "emq.job.starting", "emq.jobs", "other"]),
        ("emq.j", []),
    ],
)
def test_a_hook_hears_its_name_and_what_is_below_it(attached: str, hears: list[str]) -> None:
    telemetry, heard = Telemetry(), Heard()
    telemetry.attach(attached, heard)

    for name in ("emq.job.start", "emq.job.starting", "emq.jobs", "other"):
        telemetry.emit(name, {"n": 1}, {"queue": "q"})

    assert heard.names == hears
    assert all(told[1:] == ({"n": 1}, {"queue": "q"}) for told in heard)


def test_hooks_are_called_in_order_and_detached_one_by_one() -> None:
    telemetry = Telemetry()
    heard: list[str] = []
    first = telemetry.attach("", lambda *_: heard.append("first"))
    second = telemetry.attach("", lambda *_: heard.append("second"))

    telemetry.emit("a")
    first()
    first()
    telemetry.emit("b")
    second()
    telemetry.emit("c")

    assert heard == ["first", "second", "second"]


def test_the_same_hook_attached_twice_is_two() -> None:
    telemetry, heard = Telemetry(), Heard()
    detach = telemetry.attach("", heard)
    telemetry.attach("", heard)
    detach()
    telemetry.emit("a")

    assert heard.names == ["a"]


def test_a_hook_may_detach_itself_while_it_is_called() -> None:
    telemetry, heard = Telemetry(), Heard()

    def once(*_: object) -> None:
        detach()

    detach = telemetry.attach("", once)
    telemetry.attach("", heard)
    telemetry.emit("a")
    telemetry.emit("b")

    assert heard.names == ["a", "b"]


def test_a_hook_that_raises_harms_nobody_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry, heard = Telemetry(), Heard()

    def broken(*_: object) -> None:
        raise RuntimeError("broken hook")

    telemetry.attach("", broken)
    telemetry.attach("", heard)
    with caplog.at_level(logging.ERROR, "emq.telemetry"):
        telemetry.emit("a")
        telemetry.emit("b")

    assert heard.names == ["a", "b"]
    [record] = caplog.records
    assert record.exc_info is not None
    assert "broken hook" in str(record.exc_info[1])


def test_an_interrupt_goes_through_a_hook() -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    telemetry = Telemetry()
    telemetry.attach("", interrupted)
    with pytest.raises(KeyboardInterrupt):
        telemetry.emit("a")


@pytest.mark.parametrize(("name", "hook"), [(None, print), (b"emq", print), ("emq", "print")])
def test_attach_says_what_it_takes(name: Any, hook: Any) -> None:
    with pytest.raises(TypeError, match=r"(name|hook) is"):
        Telemetry().attach(name, hook)


def test_an_event_that_nobody_hears_costs_well_below_a_microsecond() -> None:
    telemetry = Telemetry()
    telemetry.attach("", print)()

    def seconds(said: str) -> float:
        calls = 10_000
        return min(timeit.repeat(said, globals={"t": telemetry}, number=calls, repeat=9)) / calls

    assert seconds("t.emit('emq.job.start')") < 0.5e-6
    assert seconds("t.job_started('q', 'JOB0EEMl9I7KXg', worker='w')") < 0.7e-6


def test_attaching_from_many_threads_loses_no_hook() -> None:
    telemetry, heard = Telemetry(), Heard()

    def attach_some() -> None:
        for _ in range(200):
            telemetry.attach("kept", heard)
            telemetry.attach("gone", heard)()
            telemetry.emit("other")

    threads = [threading.Thread(target=attach_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    telemetry.emit("gone")
    telemetry.emit("kept")

    assert heard.names == ["kept"] * 800


def test_a_span_tells_how_a_block_began_and_ended() -> None:
    telemetry, heard = Telemetry(), Heard()
    telemetry.attach("emq", heard)
    with telemetry.span("sweep", {"queue": "q"}):
        assert heard.names == ["emq.sweep.start"]

    (_, began, start), (name, ended, stop) = heard
    assert began["system_time"] > 1_600_000_000_000_000_000  # ns since 1970
    assert name == "emq.sweep.stop"
    assert ended["duration"] > 0
    assert type(ended["duration"]) is int
    assert start == stop == {"queue": "q"}


@pytest.mark.parametrize(("error", "kind"), [(ValueError("no"), "error"), (SystemExit(), "exit")])
def test_a_span_tells_of_an_exception_and_lets_it_go_on(error: BaseException, kind: str) -> None:
    telemetry, heard = Telemetry(), Heard()
    telemetry.attach("emq.sweep.exception", heard)
    with pytest.raises(type(error)) as raised, telemetry.span("sweep", {"queue": "q"}):
        raise error

    assert raised.value is error
    [(_, measurements, metadata)] = heard
    assert measurements["duration"] > 0
    assert metadata["queue"] == "q"
    assert metadata["kind"] == kind
    assert metadata["reason"] is error
    assert metadata["stacktrace"].tb_frame.f_code.co_name == (
        "test_a_span_tells_of_an_exception_and_lets_it_go_on"
    )


def test_each_event_has_its_name_its_measurements_and_its_metadata() -> None:
    telemetry, heard = Telemetry(), Heard()
    telemetry.attach("", heard)
    telemetry.job_added("q", JOB, job_name="greet")
    telemetry.job_started("q", JOB, job_name="greet", worker="w")
    telemetry.job_completed("q", JOB, 5, job_name="greet", worker="w")
    telemetry.job_failed("q", JOB, 6, "boom", job_name="greet", worker="w")
    telemetry.job_retried("q", JOB, 2, 1000, job_name="greet")
    telemetry.job_lost("q", JOB, 7, job_name="greet", worker="w")
    telemetry.worker_started("q", "w", 4)
    telemetry.worker_stopped("q", "w", 8)
    telemetry.rate_limited("q", 30)

    plain = {"queue": "q", "job_id": JOB, "job_name": "greet"}
    worked = {**plain, "worker": "w"}
    worker = {"queue": "q", "worker": "w"}
    assert isinstance(heard[0][1].pop("queue_time"), int)
    assert isinstance(heard[1][1].pop("system_time"), int)
    assert list(heard) == [
        ("emq.job.add", {}, plain),
        ("emq.job.start", {}, worked),
        ("emq.job.complete", {"duration": 5}, worked),
        ("emq.job.fail", {"duration": 6}, {**worked, "error": "boom"}),
        ("emq.job.retry", {"attempt": 2, "delay": 1000}, plain),
        ("emq.job.lost", {"duration": 7}, worked),
        ("emq.worker.start", {"concurrency": 4}, worker),
        ("emq.worker.stop", {"uptime": 8}, worker),
        ("emq.rate_limit.hit", {"delay": 30}, {"queue": "q"}),
    ]


def test_it_carries_nothing_and_wraps_nothing_of_itself() -> None:
    telemetry = Telemetry()
    assert telemetry.headers() == {}
    with telemetry.handling():
        pass


class Carrying(Telemetry):
    def headers(self) -> dict[str, str]:
        return {"trace": "t", "own": "telemetry"}


def test_an_enqueue_is_told_of_and_carries_headers(server: Any, fresh_name: str) -> None:
    telemetry, heard = Carrying(), Heard()
    telemetry.attach("emq.job.add", heard)
    with emq.connect(server.url) as connector:
        queue = Queue(connector, fresh_name)
        first = telemetry.enqueue(
            queue, b"one", headers={"own": "caller"}, job_name="greet", dedup="k"
        )
        again = telemetry.enqueue(queue, b"two", dedup="k")
        items: list[bytes | Item] = [b"three", Item(b"four", headers={"own": "item"})]
        more = telemetry.enqueue_many(queue, items)
        jobs = queue.claim_many(10)

    assert again == (first.job_id, False)
    told = [(m["queue"], m["job_id"], m["job_name"]) for _, _, m in heard]
    assert told == [
        (fresh_name, first.job_id, "greet"),
        *((fresh_name, receipt.job_id, None) for receipt in more),
    ]
    assert [(job.payload, dict(job.settings.headers)) for job in jobs] == [
        (b"one", {"trace": "t", "own": "caller"}),
        (b"three", {"trace": "t", "own": "telemetry"}),
        (b"four", {"trace": "t", "own": "item"}),
    ]


def test_an_enqueue_on_asyncio_is_told_of_and_carries_headers(server: Any, fresh_name: str) -> None:
    telemetry, heard = Carrying(), Heard()
    telemetry.attach("emq.job.add", heard)

    async def go() -> list[Any]:
        async with await emq.connect_async(server.url) as connector:
            queue = emq.AsyncQueue(connector, fresh_name)
            await telemetry.enqueue_async(queue, b"one", job_name="greet")
            await telemetry.enqueue_many_async(queue, [b"two"])
            return await queue.claim_many(10)

    jobs = asyncio.run(go())
    assert [job.settings.headers["trace"] for job in jobs] == ["t", "t"]
    assert [m["job_id"] for _, _, m in heard] == [job.id for job in jobs]


def test_a_plain_telemetry_leaves_a_job_as_it_was(server: Any, fresh_name: str) -> None:
    with emq.connect(server.url) as connector:
        queue = Queue(connector, fresh_name)
        Telemetry().enqueue(queue, b"one")
        Telemetry().enqueue_many(queue, [b"two"])
        jobs = queue.claim_many(2)

    assert [(job.payload, job.options) for job in jobs] == [(b"one", b""), (b"two", b"")]


def test_a_connector_is_told_of(server: Any) -> None:
    telemetry, heard = Telemetry(), Heard()
    telemetry.attach("emq.connector", heard)
    hook = telemetry.connector_events()
    with resp.connect(server.url, on_event=hook, backoff=(0.001, 0.01)) as connector:
        connector.command("PING")
        connector.pipeline([("PING",), ("ECHO", b"secret")])
        connector.transaction([("PING",)])
        connector.command("CLIENT", "ID")
        server.admin.client_kill_filter(_id=connector.command("CLIENT", "ID"))
        with pytest.raises(resp.TransportError):
            connector.command("PING")
        connector.command("PING")

    assert heard.names[0] == "emq.connector.connection"
    label = heard[0][2]["label"]
    assert all(metadata["label"] == label for _, _, metadata in heard)
    talks = [
        (metadata["kind"], metadata["command"], measurements["commands"])
        for name, measurements, metadata in heard
        if name == "emq.connector.pipeline.stop" and metadata["error"] is None
    ]
    assert talks[:2] == [("plain", "PING", 1), ("plain", "PING", 2)]
    assert talks[2][:2] == ("transaction", "MULTI")
    assert talks[3] == ("plain", "CLIENT", 1)
    assert {"emq.connector.disconnection", "emq.connector.reconnect"} <= set(heard.names)
    assert "secret" not in repr(heard)
    assert all(
        type(measurements["duration"]) is int and measurements["duration"] >= 0
        for _, measurements, _ in heard
    )


def test_an_overload_is_told_of() -> None:
    telemetry, heard = Telemetry(), Heard()
    hook = telemetry.connector_events()
    error = Overloaded("full")
    event = resp.Event("overloaded", "valkey://h:1", 0.5, "GET", 3, error)
    hook(event)  # nobody hears it
    telemetry.attach("", heard)
    hook(event)

    assert list(heard) == [
        ("emq.connector.overload", {"commands": 3}, {"label": "valkey://h:1", "error": error})
    ]


@pytest.mark.parametrize("items", ["abc", {"a": 1}, b"abc"])
def test_one_payload_is_not_taken_for_many(queue: Queue, items: Any) -> None:
    with pytest.raises(TypeError, match="collection"):
        Telemetry().enqueue_many(queue, items)
    assert queue.counts()["pending"] == 0

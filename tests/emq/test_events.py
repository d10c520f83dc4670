"""What is published, as values: any message is read, and a stream ends when it is told to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import emq
from emq import AsyncQueue, Queue
from emq.events import AsyncEventStream, Event, EventStream, parse
from resp import Closed

JOB = "JOB0EEMl9I7KXg"


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (b'{"event":"completed","job":"JOB1"}', Event("completed", "JOB1", {})),
        (b'{"event":"paused"}', Event("paused", None, {})),
        (b'{"job":"","event":"paused"}', Event("paused", None, {})),
        (b' {"x": "1", "event": "failed", "job": "J"}', Event("failed", "J", {"x": "1"})),
        # Neither escaped nor UTF-8, as others publish them.
        (b'{"event":"e","job":"J","a":"l1\nl2\x00"}', Event("e", "J", {"a": "l1\nl2\x00"})),
        (b'{"event":"e","job":"J","a":"\xff!"}', Event("e", "J", {"a": "\ufffd!"})),
        (b'{"event":"e","n":1,"l":[1, 2]}', Event("e", None, {"n": "1", "l": "[1,2]"})),
        (b'{"event":"e","z":null}', Event("e", None, {"z": "null"})),
        ('{"event":"e","job":"J","a":"é"}'.encode(), Event("e", "J", {"a": "é"})),
    ],
)  # fmt: skip
def test_a_message_is_an_event(message: bytes, event: Event) -> None:
    assert parse(message) == event


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"ping",
        b"[1]",
        b'"event"',
        b"null",
        b"{",
        b'{"job":"J"}',
        b'{"event":1}',
        b'{"event":"e","job":1}',
        b"[" * 100_000,
    ],
)
def test_any_other_message_is_unknown(message: bytes) -> None:
    name, job_id, fields = parse(message)

    assert (name, job_id, list(fields)) == ("unknown", None, ["raw"])
    assert fields["raw"].startswith(message[:80].decode().replace("'", "\\'"))
    assert len(fields["raw"]) < 100


@given(st.binary())
@example(b'{"event":"\\ud800"}')
@example(b'{"event":"e","n":' + b"9" * 5000 + b"}")
@example(b'{"event":"e","n":NaN}')
def test_no_message_makes_it_raise(message: bytes) -> None:
    event = parse(message)

    assert isinstance(event, Event)
    assert all(isinstance(value, str) for value in event.fields.values())


@given(
    st.text(min_size=1),
    st.none() | st.text(min_size=1),
    st.dictionaries(st.text().filter(lambda key: key not in ("event", "job")), st.text()),
)
def test_what_was_told_is_heard(name: str, job_id: str | None, more: dict[str, str]) -> None:
    told = {"event": name, **({} if job_id is None else {"job": job_id}), **more}
    assert parse(json.dumps(told).encode()) == Event(name, job_id, more)


def test_raw_is_printable() -> None:
    assert parse(b"\x1b[2J\xff").fields["raw"].isascii()
    assert "\x1b" not in parse(b"\x1b[2J\xff").fields["raw"]


def test_a_stream_answers_events_in_order(server: Any, fresh_name: str) -> None:
    with emq.connect(server.url, protocol=3) as connector:
        queue = Queue(connector, fresh_name)
        with queue.events() as events:
            assert isinstance(events, EventStream)
            assert events.get(timeout=0) is None
            queue.publish("first", JOB)
            server.admin.publish(queue.keys.events, "foreign")
            queue.publish("second", JOB, note="n")

            assert events.get(timeout=5) == Event("first", JOB, {})
            assert events.get(timeout=5) == Event("unknown", None, {"raw": "foreign"})
            for event in events:
                assert event == Event("second", JOB, {"note": "n"})
                break
            assert (events.gaps, events.dropped, events.closed) == (0, 0, False)
            assert fresh_name in repr(events)
        assert events.closed
        assert list(events) == []
        with pytest.raises(Closed):
            events.get(timeout=0)


def test_a_stream_counts_what_it_dropped_and_missed(server: Any, fresh_name: str) -> None:
    options: Any = {"protocol": 3, "backoff": (0.001, 0.01)}
    with emq.connect(server.url, **options) as connector, emq.connect(server.url) as other:
        queue, elsewhere = Queue(connector, fresh_name), Queue(other, fresh_name)
        with queue.events(capacity=1) as events:
            for name in ("one", "two", "three"):
                elsewhere.publish(name, JOB)
            queue.counts()  # its answer comes behind all three
            assert events.get(timeout=5) == Event("three", JOB, {})
            assert events.dropped == 2

            [mine] = [
                client["id"]
                for client in server.admin.client_list()
                if client["sub"] == "1" and client["resp"] == "3"
            ]
            server.admin.client_kill_filter(_id=mine)
            for _ in range(500):
                if events.get(timeout=0.02) is None and events.gaps:
                    break
            assert events.gaps == 1
            elsewhere.publish("four", JOB)
            assert events.get(timeout=5) == Event("four", JOB, {})


def test_a_stream_on_asyncio_does_the_same(server: Any, fresh_name: str) -> None:
    async def go() -> None:
        async with await emq.connect_async(server.url, protocol=3) as connector:
            queue = AsyncQueue(connector, fresh_name)
            async with await queue.events() as events:
                assert isinstance(events, AsyncEventStream)
                assert await events.get(timeout=0) is None
                await queue.publish("first", JOB)
                await queue.publish("second", JOB, note="n")

                assert await events.get(timeout=5) == Event("first", JOB, {})
                iterated = aiter(events)
                assert await anext(iterated) == Event("second", JOB, {"note": "n"})
                await events.close()
                with pytest.raises(StopAsyncIteration):
                    await anext(iterated)
                assert (events.gaps, events.dropped, events.closed) == (0, 0, True)
                assert fresh_name in repr(events)

    asyncio.run(go())

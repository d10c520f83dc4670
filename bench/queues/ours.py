"""This project's queue, and the floors under it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, cast
from urllib.parse import urlsplit

import emq
import resp
from emq.work import AsyncHeldJob, HeldJob
from resp import Plan, ScriptCall, encode_command

from .party import BULK, MOST_JOBS, QUEUE, Party, number

T = TypeVar("T")

_TASKS: Final = 50
_BATCH: Final = 50
_HAND: Final = "bench:hand"
_CHUNK: Final = 65_536


def _plain(url: str) -> str:
    return url.replace("redis://", "valkey://", 1)


class Verbs(Party):
    """`emq.Queue` in a loop: claim, then complete and claim in one."""

    bulk = True

    async def open(self, jobs: int) -> None:
        self._queue = emq.Queue(emq.connect(_plain(self.url)), QUEUE)

    async def enqueue(self, number: int) -> None:
        self._queue.enqueue(b"%d" % number)

    async def enqueue_many(self, count: int) -> None:
        self._queue.enqueue_many([b"0"] * count)

    def work(self) -> None:
        queue = emq.Queue(emq.connect(_plain(self.url)), QUEUE)
        job = queue.claim()
        while job is not None:
            self.seen(int(job.payload))
            job = queue.complete_and_claim(job)

    @staticmethod
    def left(connector: resp.Connector) -> int:
        counts = emq.Queue(connector, QUEUE).counts()
        return counts["pending"] + counts["active"]


class Threads(Verbs):
    """`emq.Consumer`, one job after another."""

    options: ClassVar[dict[str, Any]] = {"concurrency": 1}

    def work(self) -> None:
        from emq.consumer import Consumer

        queue = emq.Queue(emq.connect(_plain(self.url)), QUEUE)
        Consumer(queue, self._handle, **self.options).run(signals=False)

    def _handle(self, job: HeldJob) -> None:
        self.seen(int(job.payload))


class Batches(Threads):
    """`emq.Consumer` that claims and settles many at a time."""

    options: ClassVar[dict[str, Any]] = {"concurrency": 1, "batch": _BATCH}


class Tasks(Verbs):
    """`emq.AsyncConsumer`, with `emq.AsyncQueue` before it."""

    async def open(self, jobs: int) -> None:
        self._async_queue = emq.AsyncQueue(await emq.connect_async(_plain(self.url)), QUEUE)

    async def enqueue(self, number: int) -> None:
        await self._async_queue.enqueue(b"%d" % number)

    async def enqueue_many(self, count: int) -> None:
        await self._async_queue.enqueue_many([b"0"] * count)

    def work(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        from emq.aio_consumer import AsyncConsumer

        queue = emq.AsyncQueue(await emq.connect_async(_plain(self.url)), QUEUE)
        consumer = AsyncConsumer(queue, self._handle, concurrency=_TASKS)
        await consumer.run(signals=False)

    async def _handle(self, job: AsyncHeldJob) -> None:
        self.seen(int(job.payload))


class _Listener:
    """Stands where a queue's connector does, and keeps what a verb begins by saying."""

    def __init__(self) -> None:
        self.calls: list[ScriptCall] = []

    def run(self, plan: Plan[T], /) -> T:
        step: Any = next(plan)
        plan.close()
        self.calls = step if isinstance(step, list) else [step]
        return cast(T, None)


class Bare(Verbs):
    """Ready bytes on a socket, and answers that nobody reads: the floor under the verbs."""

    async def open(self, jobs: int) -> None:
        self._wire = _Wire(self.url)
        self._one = [self._wire.ready(lambda queue: queue.enqueue(b"0")) for _ in range(jobs)]
        self._many = [
            self._wire.ready(lambda queue: queue.enqueue_many([b"0"] * BULK))
            for _ in range(-(-jobs // BULK))
        ]

    async def enqueue(self, number: int) -> None:
        self._wire.say(self._one.pop())

    async def enqueue_many(self, count: int) -> None:
        if count != BULK:
            self._many[-1] = self._wire.ready(lambda queue: queue.enqueue_many([b"0"] * count))
        self._wire.say(self._many.pop())

    def work(self) -> None:
        wire = _Wire(self.url)
        with emq.connect(_plain(self.url)) as connector:
            ids = emq.Queue(connector, QUEUE).browse(MOST_JOBS)[::-1]
        jobs = [emq.Job(id, b"", 1, QUEUE) for id in ids]
        first = wire.ready(lambda queue: queue.claim())
        then = [wire.ready(partial(emq.Queue.complete_and_claim, job=job)) for job in jobs]
        wire.say(first)
        for ready in then:
            self.seen(0)
            wire.say(ready)


class Hand(Party):
    """LPUSH and BLPOP on two sockets: the floor under any pickup."""

    async def open(self, jobs: int) -> None:
        self._wire = _Wire(self.url)

    async def enqueue(self, number: int) -> None:
        self._wire.say((encode_command("LPUSH", _HAND, number), 1))

    def work(self) -> None:
        wire = _Wire(self.url)
        pop = encode_command("BLPOP", _HAND, 0)
        while True:
            *_, number, _ = wire.say((pop, 1)).split(b"\r\n")
            self.seen(int(number))

    @staticmethod
    def left(connector: resp.Connector) -> int:
        return number(connector.command("LLEN", _HAND))


_Ready = tuple[bytes, int]  # and how many replies it gets


class _Wire:
    """A socket that says what is ready."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self._sock = socket.create_connection((at.hostname, at.port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listener = _Listener()
        self._queue = emq.Queue(cast(Any, self._listener), QUEUE)
        self._loaded: set[str] = set()
        if at.path.strip("/"):
            self.say((encode_command("SELECT", at.path.strip("/")), 1))

    def ready(self, verb: Callable[[emq.Queue], object]) -> _Ready:
        """The bytes of a verb, whose scripts the server has from now on."""
        verb(self._queue)
        calls = self._listener.calls
        for script in {call.script.sha: call.script for call in calls}.values():
            if script.sha not in self._loaded:
                self.say((encode_command("SCRIPT", "LOAD", script.source), 1))
                self._loaded.add(script.sha)
        return b"".join(call.frame() for call in calls), len(calls)

    def say(self, ready: _Ready) -> bytes:
        """Send, and wait for what one read brings of a single reply, or for all of many."""
        data, replies = ready
        self._sock.sendall(data)
        answer = self._sock.recv(_CHUNK)
        if replies > 1:
            decoder = resp.Decoder()
            decoder.feed(answer)
            while (replies := replies - len(decoder.replies())) > 0:
                decoder.feed(self._sock.recv(_CHUNK))
        return answer

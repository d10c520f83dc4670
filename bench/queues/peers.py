"""Other queues, each set up the fastest way that its manual names.

Handlers do nothing, results are not asked for, and what a library keeps of a finished job is what
it keeps by default. They are imported where they are used, since none of them need be installed.
"""

from __future__ import annotations

import asyncio
import threading
from importlib import import_module
from typing import Any, Final, NoReturn

import resp

from .party import QUEUE, Party, Seen, number

_TASK: Final = "noop"


def _from(module: str, name: str) -> Any:
    """What a module has, whether or not it ships types."""
    return getattr(import_module(module), name)


def _wait_for_ever() -> NoReturn:
    while True:
        threading.Event().wait(3600)


class Taskiq(Party):
    """taskiq with taskiq-redis's RedisStreamBroker, and its receiver on uvloop as its command has.

    Up to 100 tasks at once, fetched 100 at a time, and arguments taken as they come.
    """

    def __init__(self, url: str, seen: Seen) -> None:
        super().__init__(url, seen)
        self._broker = _from("taskiq_redis", "RedisStreamBroker")(url, queue_name=QUEUE)

        async def noop(number: int) -> None:
            seen(number)

        self._noop = self._broker.task(task_name=_TASK)(noop)

    async def open(self, jobs: int) -> None:
        await self._broker.startup()

    async def enqueue(self, number: int) -> None:
        await self._noop.kiq(number)

    def work(self) -> None:
        _from("uvloop", "run")(self._serve())

    async def _serve(self) -> None:
        receive = _from("taskiq.api", "run_receiver_task")
        await receive(self._broker, run_startup=True, validate_params=False, max_async_tasks=100)

    @staticmethod
    def left(connector: resp.Connector) -> int:
        groups: Any = connector.command("XINFO", "GROUPS", QUEUE)
        return sum(number(group[b"lag"]) + number(group[b"pending"]) for group in groups)


class Bullmq(Party):
    """BullMQ's own Worker and Queue for Python, one job at a time: more are slower at no-ops."""

    bulk = True

    async def open(self, jobs: int) -> None:
        self._queue = _from("bullmq", "Queue")(QUEUE, {"connection": self.url})

    async def enqueue(self, number: int) -> None:
        await self._queue.add(_TASK, {"number": number})

    async def enqueue_many(self, count: int) -> None:
        await self._queue.addBulk([{"name": _TASK, "data": {"number": 0}}] * count)

    def work(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        async def noop(job: Any, token: str) -> None:
            self.seen(job.data["number"])

        options = {"connection": self.url, "concurrency": 1, "autorun": False}
        await _from("bullmq", "Worker")(QUEUE, noop, options).run()

    @staticmethod
    def left(connector: resp.Connector) -> int:
        lists = ("LLEN", f"bull:{QUEUE}:wait"), ("LLEN", f"bull:{QUEUE}:active")
        return sum(map(number, connector.pipeline(lists)))


class Huey(Party):
    """huey's RedisHuey and Consumer, one thread; it acknowledges nothing."""

    def __init__(self, url: str, seen: Seen) -> None:
        super().__init__(url, seen)

        def noop(number: int) -> None:
            seen(number)

        self._huey = _from("huey", "RedisHuey")(QUEUE, url=url, results=False)
        self._noop = self._huey.task(name=_TASK)(noop)

    async def open(self, jobs: int) -> None:
        pass

    async def enqueue(self, number: int) -> None:
        self._noop(number)

    def work(self) -> None:
        self._huey.create_consumer(workers=1, periodic=False).run()

    @staticmethod
    def left(connector: resp.Connector) -> int:
        return number(connector.command("LLEN", f"huey.redis.{QUEUE}"))


class Dramatiq(Party):
    """dramatiq's RedisBroker and Worker, eight threads as its command has."""

    def __init__(self, url: str, seen: Seen) -> None:
        super().__init__(url, seen)

        def noop(number: int) -> None:
            seen(number)

        self._broker = _from("dramatiq.brokers.redis", "RedisBroker")(url=url)
        self._noop = _from("dramatiq", "actor")(noop, broker=self._broker, queue_name=QUEUE)

    async def open(self, jobs: int) -> None:
        pass

    async def enqueue(self, number: int) -> None:
        self._noop.send(number)

    def work(self) -> None:
        _from("dramatiq", "Worker")(self._broker, worker_threads=8).start()
        _wait_for_ever()

    @staticmethod
    def left(connector: resp.Connector) -> int:
        return number(connector.command("HLEN", f"dramatiq:{QUEUE}.msgs"))


class Saq(Party):
    """SAQ's Queue and Worker, ten tasks at once as its command has."""

    async def open(self, jobs: int) -> None:
        self._queue = self._made()

    def _made(self) -> Any:
        return _from("saq", "Queue").from_url(self.url, name=QUEUE)

    async def enqueue(self, number: int) -> None:
        await self._queue.enqueue(_TASK, number=number)

    def work(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        async def noop(_: Any, *, number: int) -> None:
            self.seen(number)

        await _from("saq", "Worker")(self._made(), [(_TASK, noop)], concurrency=10).start()

    @staticmethod
    def left(connector: resp.Connector) -> int:
        return number(connector.command("ZCARD", f"saq:{QUEUE}:incomplete"))


class Rq(Party):
    """rq's SimpleWorker, which does not fork."""

    bulk = True

    async def open(self, jobs: int) -> None:
        self._queue = self._made()

    def _made(self) -> Any:
        return _from("rq", "Queue")(QUEUE, connection=_from("redis", "Redis").from_url(self.url))

    async def enqueue(self, number: int) -> None:
        self._queue.enqueue(rq_job, number)

    async def enqueue_many(self, count: int) -> None:
        self._queue.enqueue_many([self._queue.prepare_data(rq_job, (0,)) for _ in range(count)])

    def work(self) -> None:
        _told.append(self.seen)
        queue = self._made()
        worker = _from("rq", "SimpleWorker")([queue], connection=queue.connection)
        worker.work(logging_level="ERROR")

    @staticmethod
    def left(connector: resp.Connector) -> int:
        waiting, held = connector.pipeline(
            [("LLEN", f"rq:queue:{QUEUE}"), ("ZCARD", f"rq:wip:{QUEUE}")]
        )
        return number(waiting) + number(held)


_told: list[Seen] = []  # of this process's worker: rq finds a job's function by its name


def rq_job(number: int) -> None:
    """What rq's worker runs."""
    _told[0](number)


class Celery(Party):
    """celery on Redis, a solo pool without gossip, mingle and heartbeat, acknowledging late."""

    def __init__(self, url: str, seen: Seen) -> None:
        super().__init__(url, seen)

        def noop(number: int) -> None:
            seen(number)

        self._app = _from("celery", "Celery")(QUEUE, broker=url)
        self._app.conf.update(
            task_default_queue=QUEUE,
            task_ignore_result=True,
            task_acks_late=True,
            worker_prefetch_multiplier=100,
            worker_hijack_root_logger=False,
        )
        self._noop = self._app.task(name=_TASK)(noop)

    async def open(self, jobs: int) -> None:
        pass

    async def enqueue(self, number: int) -> None:
        self._noop.delay(number)

    def work(self) -> None:
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR")
        self._app.worker_main(["worker", "--pool", "solo", *quiet])

    @staticmethod
    def left(connector: resp.Connector) -> int:
        waiting, held = connector.pipeline([("LLEN", QUEUE), ("HLEN", "unacked")])
        return number(waiting) + number(held)

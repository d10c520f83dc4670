"""Other clients through the proxy: they notice nothing, and each reply is paired with its command.

Commands whose replies name them (ECHO of a value of its own) tell what belongs to what.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis
import redis.asyncio
from redis import _parsers as parsers

import emq
from resp.tap.dialogue import Exchange
from resp.tap.frames import parse
from resp.tap.proxy import Proxy
from tests.conftest import Server

_NODE: Final = Path(__file__).with_name("node")
_PATIENCE_S: Final = 20


class Seen:
    """The proxy, and what it saw."""

    def __init__(self, server: Server) -> None:
        self.exchanges: list[Exchange] = []
        self.told: list[str] = []
        self.proxy = Proxy(server.url, see=self.exchanges.extend, tell=self.told.append)

    def check(self) -> None:
        """Nothing is lost, orphaned or malformed, and every ECHO has its own echo."""
        assert self.proxy.drain(_PATIENCE_S)
        self.proxy.seen()
        assert not self.told
        wrong = [one for one in self.exchanges if one.kind not in ("reply", "push")]
        assert not wrong, wrong[:3]
        for one in self.exchanges:
            assert (one.kind == "reply") is (one.request is not None)
            if one.name == "ECHO" and one.replies[0].data != b"+QUEUED\r\n":
                assert one.request is not None
                assert one.request.words is not None
                assert value(one) == one.request.words[1]
        self._numbers_and_offsets()

    def _numbers_and_offsets(self) -> None:
        """Every byte is in one exchange, and every number is there once."""
        for connection in {one.connection for one in self.exchanges}:
            mine = [one for one in self.exchanges if one.connection == connection]
            assert sorted(one.number for one in mine) == list(range(1, len(mine) + 1))
            for frames in (
                [one.request for one in mine if one.request is not None],
                [reply for one in mine for reply in one.replies],
            ):
                at = 0
                for frame in sorted(frames):
                    assert frame.at == at
                    at += frame.size

    def named(self, name: str) -> list[Exchange]:
        return [one for one in self.exchanges if one.name == name]

    def pushes(self, kind: bytes) -> list[list[Any]]:
        """Messages that were no replies, their kind left out."""
        heads = (parse(one.replies[0].data)[0].items for one in self.exchanges if not one.request)
        return [[item.value for item in head[1:]] for head in heads if head[0].value == kind]


def value(exchange: Exchange) -> Any:
    return parse(exchange.replies[-1].data)[0].value


def words(exchange: Exchange) -> tuple[bytes, ...]:
    assert exchange.request is not None
    assert exchange.request.words is not None
    return exchange.request.words


@pytest.fixture
def seen(server: Server) -> Iterator[Seen]:
    made = Seen(server)
    with made.proxy:
        yield made


# redis-py.

_PARSERS: Final[dict[str, dict[int, Any]]] = {
    "hiredis": {2: parsers._HiredisParser, 3: parsers._HiredisParser},
    "python": {2: parsers._RESP2Parser, 3: parsers._RESP3Parser},
}
_ASYNC_PARSERS: Final[dict[str, dict[int, Any]]] = {
    "hiredis": {2: parsers._AsyncHiredisParser, 3: parsers._AsyncHiredisParser},
    "python": {2: parsers._AsyncRESP2Parser, 3: parsers._AsyncRESP3Parser},
}
_SCRIPT: Final = "return {KEYS[1], ARGV[1], '%s'}"


def _client(port: int, protocol: int, parser: str) -> Any:
    pool = redis.ConnectionPool(
        host="127.0.0.1",
        port=port,
        protocol=protocol,
        parser_class=_PARSERS[parser][protocol],
        socket_timeout=_PATIENCE_S,
    )
    return redis.Redis(connection_pool=pool)


def _talk(client: Any, name: str) -> dict[str, Any]:
    """Speak as programs do; everything that came."""
    got: dict[str, Any] = {}
    got["echoes"] = [client.echo(f"echo:{n}") for n in range(50)]
    piped = client.pipeline(transaction=False)
    for n in range(1000):
        piped.echo(f"piped:{n}")
    piped.lpush(f"{name}:no", "x").get(f"{name}:no")
    got["piped"] = [str(one) for one in piped.execute(raise_on_error=False)]
    got["transaction"] = (
        client.pipeline().set(f"{name}:t", 1).incr(f"{name}:t").echo("in a transaction").execute()
    )
    with client.pipeline() as watching:
        watching.watch(f"{name}:t")
        client.incr(f"{name}:t")
        watching.multi()
        watching.echo("never")
        with pytest.raises(redis.WatchError):
            watching.execute()
    with client.pubsub() as listener:
        listener.subscribe(f"{name}:a", f"{name}:b")
        listener.psubscribe(f"{name}:p*")
        confirmed = [_next(listener) for _ in range(3)]
        for n in range(10):
            client.publish(f"{name}:a" if n % 2 else f"{name}:b", f"m{n}")
            client.publish(f"{name}:p{n}", f"p{n}")
        got["messages"] = [_next(listener) for _ in range(20)]
        listener.unsubscribe()
        listener.punsubscribe()
        got["confirmed"] = confirmed + [_next(listener) for _ in range(3)]
    timer = threading.Thread(target=_push_when_blocked, args=(client, f"{name}:list"))
    timer.start()
    got["popped"] = client.blpop([f"{name}:list"], _PATIENCE_S)
    timer.join()
    got["timeout"] = client.blpop([f"{name}:empty"], 0.05)
    script = client.register_script(_SCRIPT % name)
    got["scripts"] = [script(keys=["k"], args=[n]) for n in range(3)]
    client.hset(f"{name}:h", mapping={f"f{n}": n for n in range(100)})
    got["hash"] = client.hgetall(f"{name}:h")
    client.set(f"{name}:large", b"v" * 300_000)
    got["large"] = client.get(f"{name}:large")
    with pytest.raises(redis.ResponseError) as error:
        client.execute_command("NOSUCHCOMMAND", "x")
    got["error"] = str(error.value)
    client.connection_pool.disconnect()
    return got


def _next(listener: Any) -> Any:
    while True:
        message = listener.get_message(timeout=_PATIENCE_S)
        if message is not None:
            return message


def _push_when_blocked(client: Any, key: str) -> None:
    while not any("b" in one["flags"] for one in client.client_list()):
        pass
    client.rpush(key, "pushed")


@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
@pytest.mark.parametrize("parser", ["hiredis", "python"])
def test_redis_py(server: Server, seen: Seen, fresh_name: str, protocol: int, parser: str) -> None:
    name = f"{fresh_name}-one"
    server.admin.script_flush()
    direct = _talk(_client(server.port, protocol, parser), name)
    server.admin.delete(*server.admin.keys(f"{name}*"))
    server.admin.script_flush()
    through = _talk(_client(seen.proxy.port, protocol, parser), name)
    seen.check()

    assert through == direct
    assert len(seen.named("ECHO")) == 50 + 1000 + 1 + 1
    _check_pubsub(seen, name)
    _check_transactions(seen)
    _check_scripts(seen, (_SCRIPT % name).encode(), name, 3)
    [popped, nothing] = seen.named("BLPOP")
    assert [item.value for item in parse(popped.replies[0].data)[0].items] == [
        f"{name}:list".encode(),
        b"pushed",
    ]
    assert nothing.rtt_ns is not None
    assert nothing.rtt_ns >= 50_000_000


def _check_pubsub(seen: Seen, name: str) -> None:
    sent = [(words(one)[1], words(one)[2]) for one in seen.named("PUBLISH")]
    plain = [(channel, said) for channel, said in seen.pushes(b"message")]
    matched = [(channel, said) for _, channel, said in seen.pushes(b"pmessage")]
    assert sorted(plain + matched) == sorted(sent)
    assert len(sent) == 20
    [subscribed] = seen.named("SUBSCRIBE")
    assert len(subscribed.replies) == 2
    for one in (*seen.named("SUBSCRIBE"), *seen.named("PSUBSCRIBE")):
        for word, reply in zip(words(one)[1:], one.replies, strict=True):
            assert parse(reply.data)[0].items[1].value == word
    channels = [
        parse(reply.data)[0].items[1].value
        for one in (*seen.named("UNSUBSCRIBE"), *seen.named("PUNSUBSCRIBE"))
        for reply in one.replies
    ]
    assert sorted(channels) == sorted(
        [f"{name}:a".encode(), f"{name}:b".encode(), f"{name}:p*".encode()]
    )


def _check_transactions(seen: Seen) -> None:
    ran, *aborted = seen.named("EXEC")
    names = [frame.words[0].upper() for frame in ran.queued if frame.words]
    assert [name[:4] for name in names] == [b"SET", b"INCR", b"ECHO"]  # or INCRBY
    answers = [item.value for item in parse(ran.replies[0].data)[0].items]
    assert answers == ["OK", 2, b"in a transaction"]
    for one in aborted:  # by a key that was watched
        assert parse(one.replies[0].data)[0].value is None


def _check_scripts(seen: Seen, source: bytes, name: str, calls: int) -> None:
    sha = hashlib.sha1(source).hexdigest().encode()
    evalsha = [one for one in seen.named("EVALSHA") if words(one)[1] == sha]
    missed = [one for one in evalsha if one.replies[0].data.startswith(b"-NOSCRIPT")]
    assert missed == evalsha[:1]
    sources = [*seen.named("EVAL"), *seen.named("SCRIPT LOAD")]
    assert source in {word for one in sources for word in words(one)}
    answered = [*evalsha[1:], *seen.named("EVAL")]
    assert len(answered) == calls
    for one in answered:
        items = parse(one.replies[0].data)[0].items
        assert [item.value for item in items] == [words(one)[3], words(one)[4], name.encode()]


async def _talk_async(client: Any, name: str) -> dict[str, Any]:
    got: dict[str, Any] = {}
    got["echoes"] = await asyncio.gather(*(client.echo(f"echo:{n}") for n in range(100)))
    async with client.pipeline(transaction=False) as piped:
        for n in range(500):
            piped.echo(f"piped:{n}")
        got["piped"] = await piped.execute()
    async with client.pipeline() as piped:
        piped.set(f"{name}:t", 1).incr(f"{name}:t").echo("in a transaction")
        got["transaction"] = await piped.execute()
    async with client.pubsub() as listener:
        await listener.subscribe(f"{name}:a", f"{name}:b")
        await listener.psubscribe(f"{name}:p*")
        got["confirmed"] = [await _next_async(listener) for _ in range(3)]
        for n in range(10):
            await client.publish(f"{name}:a" if n % 2 else f"{name}:b", f"m{n}")
            await client.publish(f"{name}:p{n}", f"p{n}")
        got["messages"] = [await _next_async(listener) for _ in range(20)]
        await listener.unsubscribe()
        await listener.punsubscribe()
        got["unconfirmed"] = [await _next_async(listener) for _ in range(3)]
    popped = asyncio.ensure_future(client.blpop([f"{name}:list"], _PATIENCE_S))
    await client.rpush(f"{name}:list", "pushed")
    got["popped"] = await popped
    script = client.register_script(_SCRIPT % name)
    got["scripts"] = [await script(keys=["k"], args=[n]) for n in range(3)]
    await client.aclose()
    await client.connection_pool.disconnect()
    return got


async def _next_async(listener: Any) -> Any:
    while True:
        message = await listener.get_message(timeout=_PATIENCE_S)
        if message is not None:
            return message


@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
@pytest.mark.parametrize("parser", ["hiredis", "python"])
def test_redis_py_on_asyncio(
    server: Server, seen: Seen, fresh_name: str, protocol: int, parser: str
) -> None:
    name = f"{fresh_name}-one"

    async def talk(port: int) -> dict[str, Any]:
        pool = redis.asyncio.ConnectionPool(
            host="127.0.0.1",
            port=port,
            protocol=protocol,
            parser_class=_ASYNC_PARSERS[parser][protocol],
            socket_timeout=_PATIENCE_S,
        )
        return await _talk_async(redis.asyncio.Redis(connection_pool=pool), name)

    server.admin.script_flush()
    direct = asyncio.run(talk(server.port))
    server.admin.delete(*server.admin.keys(f"{name}*"))
    server.admin.script_flush()
    through = asyncio.run(talk(seen.proxy.port))
    seen.check()

    assert through == direct
    assert len(seen.named("ECHO")) == 100 + 500 + 1
    _check_pubsub(seen, name)
    _check_transactions(seen)
    _check_scripts(seen, (_SCRIPT % name).encode(), name, 3)


# A client in another language.


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Run a script of the folder `node` with the packages that it needs; the JSON it prints."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} on PATH")
    folder = tmp_path_factory.mktemp("node")
    for file in _NODE.iterdir():
        if file.suffix in (".js", ".json"):
            shutil.copy(file, folder)
    install = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=200)
    except subprocess.TimeoutExpired:
        pytest.skip("npm install took longer than 200 s")
    if done.returncode:
        told = done.stderr.strip().splitlines() or ["no message"]
        pytest.skip(f"npm install failed: {told[0][:200]}")

    def run(script: str, *arguments: str | int) -> dict[str, Any]:
        talked = subprocess.run(
            ["node", script, *map(str, arguments)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert talked.returncode == 0, talked.stderr
        got: dict[str, Any] = json.loads(talked.stdout)
        return got

    return run


@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
def test_ioredis(
    node: Callable[..., dict[str, Any]],
    server: Server,
    seen: Seen,
    fresh_name: str,
    protocol: int,
) -> None:
    name = f"{fresh_name}-one"
    server.admin.script_flush()
    direct = node("talk.js", server.host, server.port, protocol, name)
    server.admin.delete(*server.admin.keys(f"{name}*"))
    server.admin.script_flush()
    through = node("talk.js", seen.proxy.host, seen.proxy.port, protocol, name)
    seen.check()

    assert through == direct
    assert through["large"]
    assert through["echoes"] == [f"echo:{n}" for n in range(300)]
    assert len(seen.named("ECHO")) == 300 + 300 + 1 + 1
    assert bool(seen.named("HELLO")) is (protocol == 3)
    _check_pubsub(seen, name)
    _check_transactions(seen)
    _check_scripts(seen, f"return {{KEYS[1], ARGV[1], '{name}'}}".encode(), name, 3)


# Job queues.


def test_emq_through_it(server: Server, seen: Seen, fresh_name: str) -> None:
    with emq.connect(seen.proxy.url) as connector:
        queue = emq.Queue(connector, fresh_name)
        receipts = queue.enqueue_many([b"%d" % n for n in range(50)])
        claimed = []
        while job := queue.claim():
            claimed.append((job.id, job.payload))
            queue.complete(job)
    seen.check()
    assert [payload for _, payload in claimed] == [b"%d" % n for n in range(50)]
    assert [job_id for job_id, _ in claimed] == [receipt.job_id for receipt in receipts]
    assert {one.name for one in seen.exchanges} >= {"EVALSHA", "SCRIPT LOAD"}


def test_bullmq_through_it(server: Server, seen: Seen, fresh_name: str) -> None:
    bullmq = pytest.importorskip("bullmq")

    async def go() -> list[Any]:
        options = {"connection": f"redis://127.0.0.1:{seen.proxy.port}"}
        queue = bullmq.Queue(fresh_name, options)
        done: list[Any] = []
        all_done = asyncio.Event()

        async def work(job: Any, token: str) -> Any:
            done.append(job.data["n"])
            if len(done) == 20:
                all_done.set()
            return job.data["n"]

        for n in range(20):
            await queue.add("job", {"n": n})
        worker = bullmq.Worker(fresh_name, work, options)
        await asyncio.wait_for(all_done.wait(), _PATIENCE_S)
        await worker.close()
        await queue.close()
        return done

    assert sorted(asyncio.run(go())) == list(range(20))
    seen.proxy.drain(2)
    seen.proxy.seen()
    assert {one.kind for one in seen.exchanges} <= {"reply", "push", "lost"}
    # A worker that is closed leaves the pop that it waits in.
    lost = [one.name for one in seen.exchanges if one.kind == "lost"]
    assert set(lost) <= {"BZPOPMIN"}
    assert sum(one.name.startswith("EVAL") for one in seen.exchanges) >= 40

"""Who is timed on the wire: this project, a bare socket, and other clients.

Each is a `Contender`: it turns a command into a call with everything that can be made before made
before, so that a lap times what its users would pay. Each is set up the fastest way that its manual
names, with a timeout of 5 s as ours has: hiredis or libvalkey as the parser, RESP2 where that is
the default. Imports are in the functions that open a peer, since none of them need be installed.
"""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import resp
from emq.embedded import Embedded
from resp import Arg, Script, encode_command

OURS: Final = "resp"
BARE: Final = "bare socket"
REDIS: Final = "redis-py + hiredis"
REDIS_PURE: Final = "redis-py"
VALKEY: Final = "valkey-py + libvalkey"
GLIDE_SYNC: Final = "valkey-glide-sync"
REDIS_ASYNC: Final = "redis.asyncio + hiredis"
COREDIS: Final = "coredis"
GLIDE: Final = "valkey-glide"

MOST_TASKS: Final = 500  # callers at once; redis.asyncio gives each a connection
_TIMEOUT_S: Final = 5

# Two writes and a read, as a claim does, and nothing that grows.
SCRIPT: Final = Script(
    "touch",
    "redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])\n"
    "redis.call('HSET', KEYS[2], 'state', 'active')\n"
    "return redis.call('HGET', KEYS[2], 'payload')\n",
)

Call = Callable[[], Any]
Job = tuple[tuple[str, str], tuple[str, str]]  # a script's keys and arguments


class Contender(Protocol):
    """A client. On asyncio, what its calls answer is to be awaited."""

    def plain(self, verb: str, *args: str | bytes) -> Call:
        """Make a call that says one command and answers its reply."""

    def script(self, job: Job) -> Call:
        """Make a call that runs `SCRIPT` by its digest."""

    def gets(self, keys: Sequence[str]) -> Call:
        """Make a call that says a GET of each key in one pipeline, and answers the replies."""

    def scripts(self, jobs: Sequence[Job]) -> Call:
        """Make a call that runs `SCRIPT` for each job in one pipeline."""


class _Ours:
    def __init__(self, connector: resp.Connector | resp.AsyncConnector) -> None:
        self._connector = connector

    def plain(self, verb: str, *args: str | bytes) -> Call:
        return partial(self._connector.command, verb, *args)

    def script(self, job: Job) -> Call:
        return partial(self._connector.eval, SCRIPT, *job)

    def gets(self, keys: Sequence[str]) -> Call:
        return lambda: self._connector.pipeline([("GET", key) for key in keys])

    def scripts(self, jobs: Sequence[Job]) -> Call:
        return lambda: self._connector.pipeline([SCRIPT(keys, args) for keys, args in jobs])


class _Bare:
    """Ready bytes out, and as many bytes in as the first answer had: the floor under any client."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def plain(self, verb: str, *args: str | bytes) -> Call:
        return self._exchange([(verb, *args)], alone=True)

    def script(self, job: Job) -> Call:
        return self._exchange([_evalsha(job)], alone=True)

    def gets(self, keys: Sequence[str]) -> Call:
        return self._exchange([("GET", key) for key in keys])

    def scripts(self, jobs: Sequence[Job]) -> Call:
        return self._exchange(list(map(_evalsha, jobs)))

    def _exchange(self, commands: Sequence[tuple[Arg, ...]], *, alone: bool = False) -> Call:
        request = b"".join(encode_command(*command) for command in commands)
        send, receive = self._sock.sendall, self._sock.recv
        send(request)
        decoder, length, replies = resp.Decoder(), 0, list[resp.Reply]()
        while len(replies) < len(commands):
            data = receive(65_536)
            length += len(data)
            decoder.feed(data)
            replies += decoder.replies()
        answer = replies[0] if alone else replies

        def call() -> object:
            send(request)
            left = length
            while left:
                left -= len(receive(65_536))
            return answer

        return call


def _evalsha(job: Job) -> tuple[Arg, ...]:
    keys, args = job
    return ("EVALSHA", SCRIPT.sha, len(keys), *keys, *args)


class _RedisPy:
    """redis-py, its asyncio half, and valkey-py, which began as a copy of it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def plain(self, verb: str, *args: str | bytes) -> Call:
        return partial(getattr(self._client, verb.lower()), *args)

    def script(self, job: Job) -> Call:
        return partial(self._client.evalsha, *_evalsha(job)[1:])

    def gets(self, keys: Sequence[str]) -> Call:
        def call() -> object:
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.get(key)
            return pipeline.execute()

        return call

    def scripts(self, jobs: Sequence[Job]) -> Call:
        def call() -> object:
            pipeline = self._client.pipeline(transaction=False)
            for keys, args in jobs:
                pipeline.evalsha(SCRIPT.sha, 2, *keys, *args)
            return pipeline.execute()

        return call


class _Glide:
    """valkey-glide, given its module of either kind."""

    def __init__(self, client: Any, glide: Any) -> None:
        self._client = client
        self._batch = partial(glide.Batch, is_atomic=False)
        self._script = glide.Script(SCRIPT.source)

    def plain(self, verb: str, *args: str | bytes) -> Call:
        return partial(getattr(self._client, verb.lower()), *args)

    def script(self, job: Job) -> Call:
        return partial(self._client.invoke_script, self._script, *map(list, job))

    def gets(self, keys: Sequence[str]) -> Call:
        def call() -> object:
            batch = self._batch()
            for key in keys:
                batch.get(key)
            return self._client.exec(batch, raise_on_error=False)

        return call

    def scripts(self, jobs: Sequence[Job]) -> Call:
        def call() -> object:
            batch = self._batch()
            for keys, args in jobs:
                batch.custom_command(["EVALSHA", SCRIPT.sha, "2", *keys, *args])
            return self._client.exec(batch, raise_on_error=False)

        return call


class _Coredis(_RedisPy):
    def script(self, job: Job) -> Call:
        keys, args = job
        return partial(self._client.evalsha, SCRIPT.sha, keys=keys, args=args)


# Opening them. Each is closed by the stack.


async def _ours(server: Embedded, stack: AsyncExitStack) -> Contender:
    return _Ours(stack.enter_context(resp.connect(server.url)))


async def _ours_async(server: Embedded, stack: AsyncExitStack) -> Contender:
    return _Ours(await stack.enter_async_context(await resp.connect_async(server.url)))


async def _bare(server: Embedded, stack: AsyncExitStack) -> Contender:
    sock = stack.enter_context(socket.create_connection((server.host, server.port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(encode_command("HELLO", 3))  # our own dialect
    sock.recv(65_536)
    return _Bare(sock)


def _redis_options(server: Embedded) -> dict[str, Any]:
    return {
        "host": server.host,
        "port": server.port,
        "protocol": 2,
        "socket_timeout": _TIMEOUT_S,
    }


async def _redis(server: Embedded, stack: AsyncExitStack) -> Contender:
    import redis

    return _RedisPy(stack.enter_context(redis.Redis(**_redis_options(server))))


async def _redis_pure(server: Embedded, stack: AsyncExitStack) -> Contender:
    import redis
    from redis import _parsers as parsers

    options: dict[str, Any] = {**_redis_options(server), "parser_class": parsers._RESP2Parser}
    pool = redis.ConnectionPool(**options)
    return _RedisPy(stack.enter_context(redis.Redis.from_pool(pool)))


async def _redis_async(server: Embedded, stack: AsyncExitStack) -> Contender:
    import redis.asyncio

    # Its default pool, but for the size: that one raises where more than 100 call at once.
    client: Any = redis.asyncio.Redis(**_redis_options(server), max_connections=MOST_TASKS)
    return _RedisPy(await stack.enter_async_context(client))


async def _valkey(server: Embedded, stack: AsyncExitStack) -> Contender:
    import valkey

    return _RedisPy(stack.enter_context(valkey.Valkey(**_redis_options(server))))


async def _coredis(server: Embedded, stack: AsyncExitStack) -> Contender:
    import coredis

    client: Any = coredis.Redis(server.host, server.port, stream_timeout=_TIMEOUT_S)
    return _Coredis(await stack.enter_async_context(client))


def _glide_options(server: Embedded, glide: Any) -> Any:
    address = glide.NodeAddress(server.host, server.port)
    return glide.GlideClientConfiguration([address], request_timeout=1000 * _TIMEOUT_S)


async def _glide_sync(server: Embedded, stack: AsyncExitStack) -> Contender:
    import glide_sync

    client: Any = glide_sync.GlideClient.create(_glide_options(server, glide_sync))
    stack.callback(client.close)
    return _Glide(client, glide_sync)


async def _glide(server: Embedded, stack: AsyncExitStack) -> Contender:
    import glide

    client: Any = await glide.GlideClient.create(_glide_options(server, glide))
    stack.push_async_callback(client.close)
    return _Glide(client, glide)


@dataclass(frozen=True)
class Peer:
    """Somebody who may be timed.

    Attributes:
        name: What the table calls it.
        sections: Where it takes part.
        needs: The modules that must be installed.
        packages: What they come in, as pip names it.
        open: Connect to a server, until the stack ends.
        alone: Whether all of its work is done in its caller's thread, and can be counted there.
    """

    name: str
    sections: tuple[str, ...]
    needs: tuple[str, ...]
    packages: tuple[str, ...]
    open: Callable[[Embedded, AsyncExitStack], Awaitable[Contender]]
    alone: bool = True

    def is_missing(self) -> bool:
        """Whether a module that it needs is not installed."""
        return any(importlib.util.find_spec(module) is None for module in self.needs)


_SYNC: Final = ("one", "pipeline", "threads")
_ASYNC: Final = ("tasks",)

PEERS: Final = (
    Peer(OURS, _SYNC, (), (), _ours),
    Peer(OURS, _ASYNC, (), (), _ours_async),
    Peer(BARE, (*_SYNC, *_ASYNC), (), (), _bare),
    Peer(REDIS, _SYNC, ("redis", "hiredis"), ("redis", "hiredis"), _redis),
    Peer(REDIS_PURE, ("one",), ("redis",), ("redis",), _redis_pure),
    Peer(VALKEY, _SYNC, ("valkey", "libvalkey"), ("valkey", "libvalkey"), _valkey),
    Peer(GLIDE_SYNC, _SYNC, ("glide_sync",), ("valkey-glide-sync",), _glide_sync, alone=False),
    Peer(REDIS_ASYNC, _ASYNC, ("redis", "hiredis"), ("redis", "hiredis"), _redis_async),
    Peer(COREDIS, _ASYNC, ("coredis",), ("coredis",), _coredis),
    Peer(GLIDE, _ASYNC, ("glide",), ("valkey-glide",), _glide, alone=False),
)

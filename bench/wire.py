"""One caller's round trips over loopback TCP, beside redis-py and beside a bare socket.

    python -m bench wire [--rounds 15] [--calls 2000] [--pin] [--json]

Every contender says the same command to the same private server, one call at a time. The bare
socket sends bytes that were made before and counts the bytes of the answer: what is left of its
time is the kernel's and the server's, the floor under any client. A round times all contenders in
turn, on every work, so that a noisy moment falls on all of them; a figure is the median over the
rounds, and a ratio is the median of the ratios within each round. A peer that is not installed is
named as missing.

Client and server take turns, so whether the scheduler keeps them on one core or wakes one core from
the other can double every figure, the floor's too. `--pin` keeps both on one core: figures that
repeat, and in which a client's own work is what differs.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import resp
from emq.embedded import Embedded, EmbeddedError
from resp import Arg, Script, encode_command

from .options import MOST_CALLS, MOST_ROUNDS, up_to

OURS: Final = "resp"
BARE: Final = "bare socket"
PEER: Final = "redis-py + hiredis"
PURE: Final = "redis-py"

# Two writes and a read, as a claim does, and nothing that grows.
_SCRIPT: Final = Script(
    "touch",
    "redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])\n"
    "redis.call('HSET', KEYS[2], 'state', 'active')\n"
    "return redis.call('HGET', KEYS[2], 'payload')\n",
)
_KEYS: Final = ("bench:{q}:active", "bench:{q}:job:JOB0EEMl9I7KXg")
_ARGS: Final = ("1750000000000", "JOB0EEMl9I7KXg")
_SMALL: Final = b"x" * 16
_KILOBYTE: Final = b"x" * 1024

Call = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """One command, as each kind of client says it.

    Attributes:
        name: What it is.
        reach: How many times faster than redis-py with hiredis it is to be.
        command: Its arguments, for the bare socket.
        ours, theirs: A call, given a connector or a redis-py client.
    """

    name: str
    reach: float
    command: tuple[Arg, ...]
    ours: Callable[[resp.Connector], Call]
    theirs: Callable[[Any], Call]


def _plain(name: str, reach: float, *command: Arg) -> Work:
    verb = str(command[0]).lower()
    return Work(
        name,
        reach,
        command,
        lambda connector: lambda: connector.command(*command),
        lambda client: lambda: getattr(client, verb)(*command[1:]),
    )


WORKS: Final = (
    _plain("GET", 2.0, "GET", "bench:small"),
    _plain("SET 1 KB", 2.2, "SET", "bench:big", _KILOBYTE),
    Work(
        "EVALSHA 2 keys, 2 args",
        1.8,
        ("EVALSHA", _SCRIPT.sha, 2, *_KEYS, *_ARGS),
        lambda connector: lambda: connector.eval(_SCRIPT, _KEYS, _ARGS),
        lambda client: lambda: client.evalsha(_SCRIPT.sha, 2, *_KEYS, *_ARGS),
    ),
    _plain("HGETALL 20", 1.6, "HGETALL", "bench:hash"),
)
_BARE_REACH: Final = {"EVALSHA 2 keys, 2 args": 1.3}  # our time as a multiple of its time


def _bare(sock: socket.socket, command: tuple[Arg, ...]) -> Call:
    """A call that sends ready bytes and waits for as many as the first answer had."""
    request = encode_command(*command)
    sock.sendall(request)
    decoder, length = resp.Decoder(), 0
    while decoder.next() is resp.NEED_DATA:
        data = sock.recv(65_536)
        length += len(data)
        decoder.feed(data)
    send, receive = sock.sendall, sock.recv

    def call() -> None:
        send(request)
        left = length
        while left:
            left -= len(receive(65_536))

    return call


def _contenders(server: Embedded, stack: ExitStack) -> Iterator[tuple[str, Callable[[Work], Call]]]:
    connector = stack.enter_context(resp.connect(server.url))
    connector.pipeline(
        [
            ("SET", "bench:small", _SMALL),
            ("HSET", "bench:hash", *(f"{kind}{n}" for n in range(20) for kind in ("field:", "v"))),
            ("HSET", _KEYS[1], "payload", b"y" * 64),
            ("SCRIPT", "LOAD", _SCRIPT.source),
        ]
    )
    yield OURS, lambda work: work.ours(connector)

    sock = stack.enter_context(socket.create_connection((server.host, server.port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(encode_command("HELLO", 3))  # the dialect that the others speak
    sock.recv(65_536)
    yield BARE, lambda work: _bare(sock, work.command)

    if importlib.util.find_spec("redis") is not None:
        import redis
        from redis import _parsers as parsers

        if importlib.util.find_spec("hiredis") is not None:
            fast = stack.enter_context(
                redis.Redis(host=server.host, port=server.port, protocol=3, socket_timeout=5)
            )
            yield PEER, lambda work: work.theirs(fast)
        pool = redis.ConnectionPool(
            host=server.host,
            port=server.port,
            protocol=3,
            socket_timeout=5,
            parser_class=parsers._RESP3Parser,
        )
        plain = stack.enter_context(redis.Redis.from_pool(pool))
        yield PURE, lambda work: work.theirs(plain)


@dataclass(frozen=True)
class Result:
    """What one contender needed for one work.

    Attributes:
        us: Microseconds a call, the median over the rounds.
        low, high: The quartiles of the same.
        cpu_us: Microseconds of the client's own CPU a call, the median.
        ratio: Its time as a multiple of ours in the same round, the median.
    """

    work: str
    contender: str
    us: float
    low: float
    high: float
    cpu_us: float
    ratio: float


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process, and those that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def measure(rounds: int, calls: int, *, pin: bool = False) -> list[Result]:
    """Time every contender on every work, `rounds` times `calls` calls."""
    with ExitStack() as stack:
        if pin:
            stack.enter_context(_one_core())
        server = stack.enter_context(Embedded(tcp=True))
        contenders = dict(_contenders(server, stack))
        series = {
            (work.name, name): prepare(work)
            for work in WORKS
            for name, prepare in contenders.items()
        }
        wall: dict[tuple[str, str], list[float]] = {key: [] for key in series}
        cpu: dict[tuple[str, str], list[float]] = {key: [] for key in series}
        for call in series.values():
            _time(call, max(1, calls // 10))  # caches, branches and sockets get warm
        for _ in range(rounds):
            gc.collect()
            gc.disable()
            try:
                for key, call in series.items():
                    took, used = _time(call, calls)
                    wall[key].append(took)
                    cpu[key].append(used)
            finally:
                gc.enable()
    return [
        Result(
            work,
            name,
            statistics.median(times),
            *_quartiles(times),
            statistics.median(cpu[work, name]),
            statistics.median(
                time / ours for time, ours in zip(times, wall[work, OURS], strict=True)
            ),
        )
        for (work, name), times in wall.items()
    ]


def _time(call: Call, calls: int) -> tuple[float, float]:
    """Microseconds a call: on the clock, and of this process's CPU."""
    used, start = time.process_time(), time.perf_counter()
    for _ in range(calls):
        call()
    took, used = time.perf_counter() - start, time.process_time() - used
    return took / calls * 1e6, used / calls * 1e6


def _quartiles(times: list[float]) -> tuple[float, float]:
    if len(times) < 2:
        return times[0], times[0]
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, high


def _goal(result: Result) -> str:
    """The ratio to be reached, and whether it is."""
    work = next(work for work in WORKS if work.name == result.work)
    if result.contender == PEER:
        goal, reached = f">= {work.reach}", result.ratio >= work.reach
    elif result.contender == BARE and work.name in _BARE_REACH:
        most = _BARE_REACH[work.name]
        goal, reached = f">= {1 / most:.2f}", 1 / result.ratio <= most
    else:
        return ""
    return f"{goal}  {'reached' if reached else 'missed'}"


def table(results: Sequence[Result], rounds: int, calls: int) -> str:
    """The results as text."""
    lines = [
        f"One caller over loopback TCP: us a call, medians of {rounds} rounds of {calls:,} calls",
        "",
        f"{'work':24}{'client':20}{'us':>8}{'quartiles':>16}{'CPU us':>8}{'x ours':>8}  goal",
    ]
    last = ""
    for result in results:
        work = result.work if result.work != last else ""
        spread = f"{result.low:.1f} to {result.high:.1f}"
        figures = f"{result.us:8.1f}{spread:>16}{result.cpu_us:8.1f}{result.ratio:8.2f}"
        lines.append(f"{work:24}{result.contender:20}{figures}  {_goal(result)}".rstrip())
        last = result.work
    missing = {PEER, PURE} - {result.contender for result in results}
    if missing:
        lines += ["", f'missing: {", ".join(sorted(missing))}; pip install -e ".[bench]"']
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Measure and print; 3 where there is no server to measure on."""
    parser = argparse.ArgumentParser(
        prog="python -m bench wire", description="One caller's round trips, beside peers."
    )
    parser.add_argument(
        "--rounds", type=up_to(MOST_ROUNDS), default=15, help="how often each is timed"
    )
    parser.add_argument("--calls", type=up_to(MOST_CALLS), default=2000, help="calls a round")
    parser.add_argument("--pin", action="store_true", help="client and server on one core (Linux)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args(argv)
    if options.pin and not hasattr(os, "sched_setaffinity"):
        parser.error("--pin needs Linux")

    try:
        results = measure(options.rounds, options.calls, pin=options.pin)
    except EmbeddedError as error:
        print(f"bench wire: {error}", file=sys.stderr)
        return 3
    if options.json:
        rows = [{**vars(result), "goal": _goal(result)} for result in results]
        print(
            json.dumps({"rounds": options.rounds, "calls": options.calls, "rows": rows}, indent=2)
        )
    else:
        print(table(results, options.rounds, options.calls))
    return 0

"""What it costs to begin, and to wait: imports, connects, commands, memory, idle consumers.

    python -m bench start [--rounds 15] [--only import,connect,command,first,memory,idle] [--quick]
                          [--json]

    import   an import statement in a fresh interpreter (`python -I`), from before it until after
             it, and how many modules of third parties it loads
    connect  until a connection can be used: ours when dial, HELLO and fence are done, redis-py's
             when its first PING is answered, a bare socket's when HELLO is
    command  a process from its start to its end
    first    `emq work` on a queue that has a job: from the start of the process to the handler
    memory   resident bytes of a process that has connected (Linux)
    idle     commands a second, and processor time a minute, of a consumer that has nothing to do

A round times everybody in turn, so that a noisy moment falls on all; a figure is the median over
the rounds. `x ours` says how many times as much as ours it costs.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import emq
import resp
from emq.embedded import Embedded, EmbeddedError
from resp import encode_command

from . import goals, options
from .figures import Progress, Run, Series, Size, Verdict, figures, silent
from .relay import Relay

SUITE: Final = "start"
SECTIONS: Final = ("import", "connect", "command", "first", "memory", "idle")

RESP: Final = "resp"
EMQ: Final = goals.EMQ
NAMED: Final = "emq, its Queue and connect"
REDIS: Final = goals.REDIS
BARE: Final = "bare socket"
PYTHON: Final = "python, nothing"
CONSUMER: Final = "emq Consumer"
ASYNC_CONSUMER: Final = "emq AsyncConsumer"

IMPORTS: Final = {
    EMQ: "import emq",
    NAMED: "from emq import Queue, connect",
    RESP: "import resp",
    REDIS: "import redis",
}

_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(emq.__file__)))
_QUEUE: Final = "start"
_PATIENCE_S: Final = 30.0
_IDLE_COMMANDS: Final = 0.5  # a second
_SETTLE_S: Final = 0.5  # for what a consumer says before it has nothing to do

# What children run. The first argument is where the packages are: -I leaves PYTHONPATH out.
_PATH: Final = "import sys; sys.path.insert(0, sys.argv[1])\n"
_IMPORT: Final = (
    _PATH
    + """
import time
before = set(sys.modules)
began = time.perf_counter()
{statement}
took = time.perf_counter() - began
loaded = {{name.partition('.')[0] for name in set(sys.modules) - before}}
print(took, len(loaded - set(sys.stdlib_module_names) - {{'emq', 'resp', 'redis'}}))
"""
)
_RESIDENT: Final = """
for line in open('/proc/self/status'):
    if line.startswith('VmRSS:'):
        print(int(line.split()[1]) * 1024)
"""
# The second is the server's URL, as the client wants it.
_MEMORY: Final = {
    NAMED: "from emq import Queue, connect\nqueue = Queue(connect(sys.argv[2]), 'q')\n"
    "queue.counts()\n",
    RESP: "import resp\nconnector = resp.connect(sys.argv[2])\nconnector.command('PING')\n",
    REDIS: "import redis\nclient = redis.Redis.from_url(sys.argv[2])\nclient.ping()\n",
    PYTHON: "",
}
_IDLE: Final = (
    _PATH
    + """
import threading, time
def tell():
    for _ in sys.stdin:
        print(time.process_time(), flush=True)
threading.Thread(target=tell, daemon=True).start()
"""
)
_CONSUMERS: Final = {
    CONSUMER: """
import emq
emq.Consumer(emq.Queue(emq.connect(sys.argv[2]), 'q'), print).run()
""",
    ASYNC_CONSUMER: """
import asyncio, emq
async def handle(job):
    print(job)
async def main():
    queue = emq.AsyncQueue(await emq.connect_async(sys.argv[2]), 'q')
    await emq.AsyncConsumer(queue, handle).run()
asyncio.run(main())
""",
}
_HANDLERS: Final = """
import time
def handle(job):
    print(time.monotonic_ns(), flush=True)
async def handle_async(job):
    print(time.monotonic_ns(), flush=True)
"""


class Failed(Exception):
    """A process did not do what it was started for."""


@dataclass(frozen=True)
class Scale:
    """How much is done.

    Attributes:
        rounds: How often each is timed.
        connects: Of each, a round.
        idle: Seconds that idle consumers are listened to.
    """

    rounds: int = 15
    connects: int = 20
    idle: float = 10.0


QUICK: Final = Scale(rounds=2, connects=2, idle=1.0)


class _Bench:
    """One run."""

    def __init__(self, scale: Scale, folder: Path, server: Embedded) -> None:
        self.run = Run()
        self.scale = scale
        self._folder = folder
        self.progress: Progress = silent
        self._server = server
        self._has_redis = importlib.util.find_spec("redis") is not None
        if not self._has_redis:
            self.run.missing[REDIS] = "pip install redis"

    def _here(self, *names: str) -> list[str]:
        return [name for name in names if name != REDIS or self._has_redis]

    def _rounds(self, what: str) -> Iterator[bool]:
        """Go through the rounds, and one before: it wrote bytecode, and is not to be noted."""
        for at in range(self.scale.rounds + 1):
            self.progress(f"{what}, round {at}", at / (self.scale.rounds + 1))
            yield at > 0

    def _add(self, *series: Series) -> None:
        self.run.figures += figures(SUITE, series)
        self.run.verdicts += goals.verdicts(SUITE, series)

    def _python(self, code: str, *words: str) -> list[str]:
        """Run code in a fresh interpreter, and answer the words that it printed.

        Raises:
            Failed: It did not end well.
        """
        cache = f"pycache_prefix={self._folder / 'bytecode'}"
        return self._done([sys.executable, "-I", "-X", cache, "-c", code, _ROOT, *words])

    def _module(self, *words: str, told: str = "") -> None:
        self._done([sys.executable, "-m", *words], told)

    def _done(self, command: Sequence[str], told: str = "") -> list[str]:
        done = subprocess.run(
            command,
            input=told,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{command[-1][:80]!r}: {done.stderr.strip()[-300:]}")
        return done.stdout.split()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": _ROOT,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self._folder / "bytecode"),
        }

    def imports(self) -> None:
        """Time import statements."""
        took = Series("import", "import", "ms", EMQ)
        loaded = Series("import", "third-party modules", "", "")
        for noted in self._rounds("import"):
            for name in self._here(*IMPORTS):
                seconds, others = self._python(_IMPORT.format(statement=IMPORTS[name]))
                if noted:
                    _note(took, name, float(seconds) * 1000)
                    _note(loaded, name, float(others))
        self._add(took, loaded)

    def connects(self) -> None:
        """Time connects."""
        ways: dict[str, Callable[[], None]] = {
            EMQ: lambda: emq.connect(self._server.url).close(),
            RESP: lambda: resp.connect(self._server.url).close(),
            REDIS: lambda: _redis_ping(self._server),
            BARE: lambda: _bare_hello(self._server),
        }
        work = Series("connect", "until it can be used", "ms", EMQ)
        for noted in self._rounds("connect"):
            for name in self._here(*ways):
                connect = ways[name]
                began = time.perf_counter()
                for _ in range(self.scale.connects):
                    connect()
                took = time.perf_counter() - began
                if noted:
                    _note(work, name, took / self.scale.connects * 1000)
        self._add(work)

    def commands(self) -> None:
        """Time commands that need no server."""
        ways: dict[str, Callable[[], object]] = {
            "emq --version": lambda: self._module("emq", "--version"),
            "python -m resp decode": lambda: self._module("resp", "decode", told="+OK\\r\\n"),
            PYTHON: lambda: self._done([sys.executable, "-c", ""]),
        }
        work = Series("command", "a process", "ms", "emq --version")
        for noted in self._rounds("command"):
            for name, run in ways.items():
                began = time.perf_counter()
                run()
                if noted:
                    _note(work, name, (time.perf_counter() - began) * 1000)
        self._add(work)

    def first(self) -> None:
        """Time a worker's way to its first job."""
        (self._folder / "handlers.py").write_text(_HANDLERS)
        handlers = {"emq work": "handle", "emq work, a coroutine": "handle_async"}
        work = Series("first", "process start to handler", "ms", "emq work")
        with emq.connect(self._server.url) as connector:
            queue = emq.Queue(connector, _QUEUE)
            for noted in self._rounds("first job"):
                for name, handler in handlers.items():
                    queue.enqueue(b"{}")
                    took = self._worker(handler)
                    if noted:
                        _note(work, name, took)
        self._add(work)

    def _worker(self, handler: str) -> float:
        words = ["emq", "work", f"handlers:{handler}", "-q", _QUEUE, "--url", self._server.url]
        began = time.monotonic_ns()
        done = subprocess.run(
            [sys.executable, "-m", *words, "--burst", "--log-level", "error"],
            cwd=self._folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        if done.returncode or len(done.stdout.split()) != 1:
            raise Failed(f"emq work: {done.stdout[-100:]} {done.stderr[-300:]}")
        return (int(done.stdout) - began) / 1e6

    def memory(self) -> None:
        """Ask processes for their resident memory."""
        if not Path("/proc/self/status").exists():
            self.run.notes.append("memory: not measured; it is read from /proc, which Linux has")
            return
        work = Series("memory", "resident, connected", "B", NAMED)
        url = f"redis://{self._server.host}:{self._server.port}/0"
        for noted in self._rounds("memory"):
            for name in self._here(*_MEMORY):
                [size] = self._python(_PATH + _MEMORY[name] + _RESIDENT, url)
                if noted:
                    _note(work, name, float(size))
        self._add(work)

    def idle(self) -> None:
        """Listen to consumers that have nothing to do, all at the same time."""
        said = Series("idle", "commands of an idle consumer", "/s", CONSUMER)
        spent = Series("idle", "processor time a minute", "ms", CONSUMER)
        with ExitStack() as stack:
            listened = []
            for name, code in _CONSUMERS.items():
                relay = stack.enter_context(Relay(self._server.host, self._server.port))
                url = f"valkey://127.0.0.1:{relay.port}/0"
                child = stack.enter_context(self._child(_IDLE + code, url))
                listened.append((name, relay, child))
            for _, relay, child in listened:
                _wait(child, relay)
            self.progress("listening to idle consumers")
            time.sleep(_SETTLE_S)
            before = [(relay.crossed(), _processor_s(child)) for _, relay, child in listened]
            time.sleep(self.scale.idle)
            for (name, relay, child), (crossed, used) in zip(listened, before, strict=True):
                _note(said, name, (relay.crossed() - crossed).commands / self.scale.idle)
                _note(spent, name, (_processor_s(child) - used) / self.scale.idle * 60_000)
        self._add(said, spent)
        for name in _CONSUMERS:
            [got] = said.values[name]
            work = "commands of an idle consumer"
            self.run.verdicts.append(
                Verdict(SUITE, work, name, "", "/s", _IDLE_COMMANDS, False, got)
            )

    @contextmanager
    def _child(self, code: str, url: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-I", "-c", code, _ROOT, url]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
            try:
                yield child
            finally:
                child.kill()


def _note(series: Series, contender: str, value: float) -> None:
    series.values.setdefault(contender, []).append(value)


def _wait(child: subprocess.Popen[str], relay: Relay) -> None:
    """Wait until a consumer has said something."""
    end = time.monotonic() + _PATIENCE_S
    while relay.crossed().commands < 3:  # HELLO, the fence, and its first turn
        if child.poll() is not None or time.monotonic() > end:
            raise Failed("an idle consumer has not begun")
        time.sleep(0.01)


def _processor_s(child: subprocess.Popen[str]) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    told = child.stdout.readline()
    if not told:
        raise Failed("an idle consumer has ended")
    return float(told)


def _redis_ping(server: Embedded) -> None:
    import redis

    client: Any = redis.Redis(host=server.host, port=server.port, socket_timeout=5)
    client.ping()
    client.close()


def _bare_hello(server: Embedded) -> None:
    with socket.create_connection((server.host, server.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(encode_command("HELLO", 3))
        sock.recv(65_536)


_MEASURES: Final[dict[str, Callable[[_Bench], None]]] = {
    "import": _Bench.imports,
    "connect": _Bench.connects,
    "command": _Bench.commands,
    "first": _Bench.first,
    "memory": _Bench.memory,
    "idle": _Bench.idle,
}


def measure(scale: Scale, only: Sequence[str] = SECTIONS, progress: Progress = silent) -> Run:
    """Measure some sections.

    Raises:
        EmbeddedError: There is no server.
        Failed: A process did not do what it was started for.
    """
    with tempfile.TemporaryDirectory() as folder, Embedded(tcp=True) as server:
        bench = _Bench(scale, Path(folder), server)
        for at, section in enumerate(only):

            def told(text: str, part: float = 0.0, at: int = at) -> None:
                progress(text, (at + part) / len(only))

            bench.progress = told
            _MEASURES[section](bench)
    progress("", 1)
    return bench.run


def suite(size: Size, progress: Progress) -> Run:
    """Measure everything."""
    scale = QUICK if size.quick else Scale()
    return measure(replace(scale, rounds=size.rounds or scale.rounds), progress=progress)


def main(argv: Sequence[str]) -> int:
    """Measure and print; 3 where there is no server, 1 where a process failed."""
    parser = options.parser(SUITE, "What it costs to begin, and to wait.")
    parser.add_argument(
        "--rounds",
        type=options.up_to(options.MOST_ROUNDS),
        help=f"how often each is timed; {Scale().rounds}",
    )
    parser.add_argument(
        "--only",
        type=options.some(*SECTIONS),
        default=list(SECTIONS),
        metavar="SECTIONS",
        help=f"some of {','.join(SECTIONS)}",
    )
    parser.add_argument("--quick", action="store_true", help="two rounds, to see it run")
    told = parser.parse_args(argv)
    scale = QUICK if told.quick else Scale()
    try:
        scale = replace(scale, rounds=told.rounds or scale.rounds)
        run = measure(scale, told.only, options.terminal())
    except (EmbeddedError, Failed) as error:
        print(f"bench {SUITE}: {error}", file=sys.stderr)
        return 3 if isinstance(error, EmbeddedError) else 1
    options.tell(run, as_document=told.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

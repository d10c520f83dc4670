"""What looking costs: a connector with a tap, and clients through the proxy, beside going without.

    python -m bench tap [--rounds N] [--calls N] [--json]

    tap      one caller's GETs, and pipelines of 1000, on a connector without a tap and with one
    proxy    pipelines of 1000 GETs, straight to the server and through `python -m resp tap` with a
             line for each exchange written to a file; client, proxy and server are processes of
             their own

A round does everything once, in turn; the figures are medians over the rounds, and rates are what
the client sees. A proxy forwards before it looks, so its lines may be written later: `until the
last line is written` is the rate with that. What is to be reached is in `goals`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import resp
from emq.embedded import Embedded, EmbeddedError

from . import goals, machine
from .figures import Progress, Run, Series, Size, figures, silent
from .goals import DIRECT, PROXIED, REDIS
from .options import MOST_CALLS, MOST_ROUNDS, parser, tell, terminal, up_to
from .peers import OURS

SUITE: Final = "tap"
ROUNDS: Final = 9
CALLS: Final = 100_000
WITHOUT: Final = "resp"
WITH: Final = "resp, with a tap"
WRITTEN: Final = "until the last line is written"

_WIDTH: Final = 1000  # commands a pipeline
_PATIENCE_S: Final = 60
_SECTIONS: Final = {"tap": "a connector, and one with a tap", "proxy": "a client, and the proxy"}


def _time(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _one_by_one(connector: resp.Connector, calls: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(calls):
            connector.command("GET", "key:1")

    return run


def _pipelines(connector: resp.Connector, calls: int) -> Callable[[], object]:
    commands = [("GET", f"key:{number}") for number in range(_WIDTH)]

    def run() -> None:
        for _ in range(calls // _WIDTH):
            connector.pipeline(commands)

    return run


def _redis_py(port: int, calls: int) -> Callable[[], object] | None:
    try:
        import redis
    except ImportError:
        return None
    client: Any = redis.Redis(port=port)

    def run() -> None:
        for _ in range(calls // _WIDTH):
            pipeline = client.pipeline(transaction=False)
            for number in range(_WIDTH):
                pipeline.get(f"key:{number}")
            pipeline.execute()

    return run


def measure_tap(url: str, rounds: int, calls: int, progress: Progress = silent) -> list[Series]:
    """A connector without a tap, and one with."""
    found = []
    with resp.connect(url) as without, resp.connect(url, tap=resp.Tap()) as with_tap:
        for work, make in (("one caller", _one_by_one), ("pipelines of 1000", _pipelines)):
            progress(f"tap: {work}")
            runs = {WITHOUT: make(without, calls), WITH: make(with_tap, calls)}
            series = Series(_SECTIONS["tap"], work, "/s", WITHOUT, rate=True)
            series.values = {who: [] for who in runs}
            for _ in range(rounds):
                for who, run in runs.items():
                    series.values[who].append(calls / _time(run))
            found.append(series)
    return found


@contextmanager
def _proxy(target: str, file: str) -> Iterator[int]:
    """A proxy before the server, with its lines in a file; its port."""
    words = [sys.executable, "-m", "resp", "tap", "--listen", "127.0.0.1:0", "--to", target]
    with subprocess.Popen([*words, "-o", file], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
            yield int(told.split("127.0.0.1:")[1].split(",")[0])
        finally:
            process.terminate()


class _Lines:
    """Counts the lines of a file that grows."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Look no more."""
        self._file.close()

    def wait(self, count: int) -> None:
        """Wait for so many more.

        Raises:
            TimeoutError: They did not come.
        """
        end = time.monotonic() + _PATIENCE_S
        while count > 0:
            data = self._file.read(1 << 20)
            count -= data.count(b"\n")
            if not data:
                if time.monotonic() > end:
                    raise TimeoutError(f"{count} lines were not written")
                time.sleep(0.001)


def measure_proxy(
    host: str, port: int, rounds: int, calls: int, progress: Progress = silent
) -> list[Series]:
    """Clients straight to the server, and through the proxy."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "lines")
        with _proxy(f"{host}:{port}", file) as proxied:
            for name in (REDIS, OURS):
                work = f"pipelines of 1000 of {name}"
                runs = []
                connectors = []
                for to in (port, proxied):
                    if name == OURS:
                        connectors.append(resp.connect(f"valkey://{host}:{to}", timeout=60))
                        runs.append(_pipelines(connectors[-1], calls))
                    elif run := _redis_py(to, calls):
                        runs.append(run)
                if not runs:
                    continue
                direct, through = runs
                direct()
                through()
                time.sleep(2)  # for the lines of the first, whose connection has some of its own
                series = Series(_SECTIONS["proxy"], work, "/s", DIRECT, rate=True)
                series.values = {DIRECT: [], PROXIED: [], WRITTEN: []}
                with closing(_Lines(file)) as lines:
                    for at in range(rounds):
                        progress(f"proxy: {name}, round {at + 1} of {rounds}")
                        series.values[DIRECT].append(calls / _time(direct))
                        start = time.perf_counter()
                        through()
                        series.values[PROXIED].append(calls / (time.perf_counter() - start))
                        lines.wait(calls)
                        series.values[WRITTEN].append(calls / (time.perf_counter() - start))
                found.append(series)
                for connector in connectors:
                    connector.close()
    return found


def measure(rounds: int, calls: int, progress: Progress = silent) -> Run:
    """Measure both, with `calls` commands a round, rounded to whole pipelines.

    Raises:
        EmbeddedError: There is no server.
    """
    calls = max(_WIDTH, calls // _WIDTH * _WIDTH)
    with Embedded(tcp=True) as server:
        with resp.connect(server.url) as connector:
            connector.pipeline([("SET", f"key:{n}", f"value:{n}") for n in range(_WIDTH)])
            versions = machine.server(connector)
        found = measure_tap(server.url, rounds, max(_WIDTH, calls // 10), progress)
        found += measure_proxy(server.host, server.port, rounds, calls, progress)
    progress("")
    run = Run(figures(SUITE, found), goals.verdicts(SUITE, found))
    run.notes = [f"GETs a second, medians of {rounds} rounds of {calls:,}"]
    run.versions = versions | machine.versions([REDIS])
    if not run.versions.get(REDIS):
        run.missing[REDIS] = f"pip install {REDIS}"
    return run


def suite(size: Size, progress: Progress) -> Run:
    """Measure for `bench all`."""
    if size.quick:
        return measure(size.rounds or 1, _WIDTH, progress)
    return measure(size.rounds or 5, CALLS // 2, progress)


def main(argv: Sequence[str]) -> int:
    """Measure and print; 3 where there is no server to measure on."""
    line = parser(SUITE, "What looking at the bytes costs.")
    line.add_argument("--rounds", type=up_to(MOST_ROUNDS), default=ROUNDS, help="how often (9)")
    line.add_argument(
        "--calls", type=up_to(MOST_CALLS), default=CALLS, help="commands a round (100000)"
    )
    options = line.parse_args(argv)
    try:
        run = measure(options.rounds, options.calls, terminal())
    except EmbeddedError as error:
        print(f"bench tap: {error}", file=sys.stderr)
        return 3
    tell(run, as_document=options.json)
    return 0

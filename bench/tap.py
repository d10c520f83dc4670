"""What looking costs: a connector with a tap, and clients through the proxy, beside going without.

    python -m bench tap [--rounds N] [--calls N] [--json]

    tap      one caller's GETs, and pipelines of 1000, on a connector without a tap and with one
    proxy    pipelines of 1000 GETs, straight to the server and through `python -m resp tap` with a
             line for each exchange written to a file; client, proxy and server are processes of
             their own

A round does everything once, in turn; the figures are medians over the rounds. `rate` is what the
client sees. A proxy forwards before it looks, so its lines may be written later: `written` is the
rate until the last of them is. `kept` is the rate through the proxy as a part of the direct one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import resp
from emq.embedded import Embedded, EmbeddedError

from .options import MOST_CALLS, MOST_ROUNDS, up_to

_WIDTH: Final = 1000  # commands a pipeline
_PATIENCE_S: Final = 60
_PROXY: Final = "proxy, pipelines of 1000"


@dataclass
class Row:
    """One comparison.

    Attributes:
        work: What was done.
        client: By whom.
        direct, looked_at: Commands a second without anybody looking, and with.
        written: Commands a second until all of them were shown, too; None where nothing is shown.
        kept: `looked_at` as a part of `direct`.
        reach: What `kept` must be at least, or None.
    """

    work: str
    client: str
    direct: float
    looked_at: float
    written: float | None = None
    reach: float | None = None

    @property
    def kept(self) -> float:
        """The part of the rate that is left."""
        return self.looked_at / self.direct


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


def measure_tap(url: str, rounds: int, calls: int) -> list[Row]:
    """A connector without a tap, and one with."""
    rows = []
    with resp.connect(url) as without, resp.connect(url, tap=resp.Tap()) as with_tap:
        for work, make in (("one caller", _one_by_one), ("pipelines of 1000", _pipelines)):
            runs = make(without, calls), make(with_tap, calls)
            times = [[_time(run) for run in runs] for _ in range(rounds)]
            direct, looked_at = (calls / median(column) for column in zip(*times, strict=True))
            rows.append(Row(f"tap, {work}", "resp", direct, looked_at))
    return rows


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


def measure_proxy(host: str, port: int, rounds: int, calls: int) -> list[Row]:
    """Clients straight to the server, and through the proxy."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "lines")
        with _proxy(f"{host}:{port}", file) as proxied:
            for name in ("redis-py", "resp"):
                runs = []
                connectors = []
                for to in (port, proxied):
                    if name == "resp":
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
                times = []
                with closing(_Lines(file)) as lines:
                    for _ in range(rounds):
                        straight = _time(direct)
                        start = time.perf_counter()
                        through()
                        seen = time.perf_counter() - start
                        lines.wait(calls)
                        times.append((straight, seen, time.perf_counter() - start))
                figures = [calls / median(column) for column in zip(*times, strict=True)]
                straight, seen, written = figures
                rows.append(Row(_PROXY, name, straight, seen, written, reach=0.5))
                for connector in connectors:
                    connector.close()
    return rows


def table(rows: Sequence[Row], rounds: int, calls: int) -> str:
    """The rows as text."""
    lines = [
        f"GETs a second, medians of {rounds} rounds of {calls:,}",
        "",
        f"{'work':28}{'client':10}{'direct':>12}{'rate':>12}{'written':>12}{'kept':>7}  reach",
    ]
    for row in rows:
        written = f"{row.written:,.0f}" if row.written is not None else ""
        goal = ""
        if row.reach is not None:
            goal = f">= {row.reach}  {'reached' if row.kept >= row.reach else 'missed'}"
        cells = f"{row.work:28}{row.client:10}{row.direct:12,.0f}{row.looked_at:12,.0f}"
        lines.append(f"{cells}{written:>12}{row.kept:7.2f}  {goal}".rstrip())
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Measure and print; 3 where there is no server to measure on."""
    parser = argparse.ArgumentParser(
        prog="python -m bench tap", description="What looking at the bytes costs."
    )
    parser.add_argument("--rounds", type=up_to(MOST_ROUNDS), default=9, help="how often (9)")
    parser.add_argument(
        "--calls", type=up_to(MOST_CALLS), default=100_000, help="commands a round (100000)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args(argv)
    calls = max(_WIDTH, options.calls // _WIDTH * _WIDTH)
    try:
        with Embedded(tcp=True) as server:
            with resp.connect(server.url) as connector:
                connector.pipeline([("SET", f"key:{n}", f"value:{n}") for n in range(_WIDTH)])
            rows = measure_tap(server.url, options.rounds, max(_WIDTH, calls // 10))
            rows += measure_proxy(server.host, server.port, options.rounds, calls)
    except EmbeddedError as error:
        print(f"bench tap: {error}", file=sys.stderr)
        return 3
    if options.json:
        told = {"rounds": options.rounds, "calls": calls}
        print(json.dumps({**told, "rows": [{**asdict(row), "kept": row.kept} for row in rows]}))
    else:
        print(table(rows, options.rounds, calls))
    return 0

"""How a lap is timed: calls one after another, from threads, or from tasks.

A lap is short, and answers what one command took. The garbage collector is the caller's business.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .peers import Call


@dataclass(frozen=True)
class Lap:
    """What a call took.

    Attributes:
        us: Microseconds of the clock, from the first call to the last, divided by the calls.
        cpu_us: Microseconds of the calling thread's CPU a call; 0 where several call.
        p99_us: Of a hundred calls from threads, one took longer; 0 where it is not told.
    """

    us: float
    cpu_us: float = 0
    p99_us: float = 0


def in_turn(call: Call, times: int) -> Lap:
    """Call again and again; once before, untimed, for whoever was timed last left cold caches."""
    call()
    used, began = time.thread_time(), time.perf_counter()
    for _ in range(times):
        call()
    took, used = time.perf_counter() - began, time.thread_time() - used
    return Lap(took / times * 1e6, used / times * 1e6)


def from_threads(calls: Sequence[Call], times: int) -> Lap:
    """Call each from a thread of its own, `times` times; all begin together."""
    barrier = threading.Barrier(len(calls))

    def run(call: Call) -> list[float]:
        clock = time.perf_counter
        barrier.wait()
        stamps = [clock()]
        for _ in range(times):
            call()
            stamps.append(clock())
        return stamps

    with ThreadPoolExecutor(len(calls)) as pool:
        series = list(pool.map(run, calls))
    took = max(stamps[-1] for stamps in series) - min(stamps[0] for stamps in series)
    each = sorted(end - begin for stamps in series for begin, end in itertools.pairwise(stamps))
    return Lap(took / len(each) * 1e6, p99_us=each[len(each) * 99 // 100] * 1e6)


async def from_tasks(calls: Sequence[Call], times: int) -> Lap:
    """Await each in a task of its own, `times` times."""

    async def run(call: Call) -> None:
        for _ in range(times):
            await call()

    began = time.perf_counter()
    await asyncio.gather(*map(run, calls))
    return Lap((time.perf_counter() - began) / len(calls) / times * 1e6)


def system_calls(call: Call, times: int) -> float | None:
    """System calls that this thread makes a call, or None where strace cannot tell."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        command = ["strace", "-o", str(log), "-p", str(threading.get_native_id())]
        try:
            strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        except OSError:
            return None
        with strace:
            assert strace.stderr is not None
            if "attached" not in strace.stderr.readline():
                return None
            call()  # strace's coming took time, and a client may look after a pause
            os.getppid()  # marks the log
            for _ in range(times):
                call()
            os.getppid()
            strace.terminate()
        between = log.read_text().split("getppid()")[1]
    # The first line is the rest of the mark's own.
    return (between.count("\n") - 1) / times

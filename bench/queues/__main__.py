"""`python -m bench.queues CONTENDER ROLE URL`: one process of a benchmark, told what to do.

Each line of stdin is a JSON object whose `do` names what to do, and each line of stdout answers
one. A producer says how long it took; a worker, what its handler saw. Times are of the monotonic
clock, which all processes of a machine share (on Linux and macOS).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from .contenders import CONTENDERS
from .party import BULK, Party

Ask = dict[str, Any]
Told = dict[str, Any]
_clock: Final = time.monotonic_ns


class _Tally:
    """What a handler saw, and when."""

    def __init__(self) -> None:
        self.expect(0)

    def expect(self, jobs: int) -> None:
        """Begin anew."""
        self._done = threading.Event()
        self._seen: list[tuple[int, int]] = []
        self._jobs = jobs

    def __call__(self, number: int) -> None:
        seen = self._seen
        seen.append((number, _clock()))
        if len(seen) >= self._jobs:
            self._done.set()

    def report(self, patience: float) -> Told:
        """Wait for the last job that is expected."""
        self._done.wait(patience)
        seen = self._seen.copy()
        times = [at for _, at in seen]
        return {
            "seen": len(seen),
            "first": min(times, default=0),
            "late_us": [(at - sent) / 1000 for sent, at in seen if sent],
        }


def _work(contender: Callable[[_Tally], Party], tell: Callable[[Told], None]) -> None:
    tally = _Tally()
    party = contender(tally)
    begin = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            ask: Ask = json.loads(line)
            match ask["do"]:
                case "expect":
                    tally.expect(ask["jobs"])
                    tell({})
                case "work":
                    begin.set()
                    tell({})
                case "report":
                    tell(tally.report(ask["patience"]))
        os._exit(0)  # who asked has gone, and a worker may not let go

    threading.Thread(target=listen, daemon=True).start()
    tell({})
    begin.wait()
    party.work()
    threading.Event().wait()  # it had no more to do; stdin ends it


async def _produce(party: Party, tell: Callable[[Told], None]) -> None:
    loop = asyncio.get_running_loop()
    tell({})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        ask: Ask = json.loads(line)
        began = _clock()
        match ask["do"]:
            case "open":
                await party.open(ask["jobs"])
            case "singly":
                for _ in range(ask["jobs"]):
                    await party.enqueue(0)
            case "bulk":
                for start in range(0, ask["jobs"], BULK):
                    await party.enqueue_many(min(BULK, ask["jobs"] - start))
            case "pace":
                for _ in range(ask["jobs"]):
                    await asyncio.sleep(random.uniform(ask["low"], ask["high"]))
                    await party.enqueue(_clock())
        tell({"ns": _clock() - began})


def main(argv: list[str]) -> None:
    """Be one process, until stdin ends."""
    name, role, url = argv
    # What a library prints is not to be taken for an answer.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(told: Told) -> None:
        out.write(json.dumps(told) + "\n")
        out.flush()

    cls = next(contender for contender in CONTENDERS if contender.name == name).load()
    if role == "worker":
        _work(lambda tally: cls(url, tally), tell)
    else:
        asyncio.run(_produce(cls(url, lambda number: None), tell))
        os._exit(0)  # a library's threads may not let go


if __name__ == "__main__":
    main(sys.argv[1:])

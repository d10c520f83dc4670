"""Commands over loopback TCP, beside other clients and beside a bare socket.

    python -m bench wire [--rounds 15] [--calls 2000] [--only one,pipeline,threads,tasks] [--pin]
                         [--json]

Every contender says the same commands to the same private server: one call at a time, a pipeline of
1000, from 8 threads, and from tasks of an event loop. The bare socket sends bytes that were made
before and counts the bytes of the answer: what is left of its time is the kernel's and the
server's, the floor under any client. A round times all contenders in turn, on every work, so that a
noisy moment falls on all of them; a figure is the median over the rounds, and a ratio is the median
of the ratios within each round. Before that everybody's answers are compared with the right ones. A
peer that is not installed is named as missing.

`x ours` says how many times as much as ours it costs: time, CPU or system calls a command, also
where the figure shown is a rate. What is to be reached is in `goals`.

Client and server take turns, so whether the scheduler keeps them on one core or wakes one core from
the other can double every figure, the floor's too. `--pin` keeps both on one core: figures that
repeat, and in which a client's own work is what differs.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import resp
from emq.embedded import Embedded, EmbeddedError

from . import goals, machine
from .figures import Progress, Run, Series, Size, figures, silent
from .load import Lap, from_tasks, from_threads, in_turn, system_calls
from .options import CAN_PIN, MOST_CALLS, MOST_ROUNDS, one_core, parser, some, tell, terminal, up_to
from .peers import BARE, OURS, PEERS, Call
from .works import EVALSHA, SECTIONS, WORKS, Work, fill

SUITE: Final = "wire"
ROUNDS: Final = 15
CALLS: Final = 2000
_COUNTED: Final = 20  # calls whose system calls are counted


# Measuring.


class WrongAnswer(Exception):
    """A contender answered something else than what is right; nobody was timed."""


@dataclass(frozen=True)
class _Entry:
    work: Work
    contender: str
    calls: list[Call]
    alone: bool


async def measure(
    rounds: int,
    calls: int,
    only: Sequence[str] = tuple(SECTIONS),
    progress: Progress = silent,
) -> Run:
    """Time every contender on every work of some sections, `rounds` times `calls` commands.

    Raises:
        WrongAnswer: Before anything was timed.
        EmbeddedError: There is no server.
    """
    peers = [peer for peer in PEERS if any(section in only for section in peer.sections)]
    run = Run(notes=[f"commands over loopback TCP, medians of {rounds} rounds of {calls:,}"])
    run.missing = {
        peer.name: f"pip install {' '.join(peer.packages)}" for peer in peers if peer.is_missing()
    }
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Embedded(tcp=True))
        fill(server)
        with resp.connect(server.url) as connector:
            run.versions = machine.server(connector)
        present = [
            (peer, await peer.open(server, stack)) for peer in peers if peer.name not in run.missing
        ]
        run.versions |= machine.versions(name for peer, _ in present for name in peer.packages)
        entries = []
        for work in WORKS:
            for peer, contender in present:
                if work.section in only and work.section in peer.sections:
                    own = work.at_once if peer.name == BARE and work.at_once else work
                    entries.append(_Entry(own, peer.name, own.prepare(contender), peer.alone))
        progress("comparing answers")
        # Caches, branches and sockets get warm by what finds the wrong answers.
        wrong = [told for entry in entries if (told := await _try(entry, max(1, calls // 10)))]
        laps: list[list[Lap]] = []
        counts: dict[str, float] = {}
        if not wrong:
            for at in range(rounds):
                progress(f"round {at + 1} of {rounds}", at / rounds)
                laps.append(await _round(entries, calls))
            counts = _count(entries)
    progress("")
    if wrong:  # outside, for a client that keeps tasks would wrap it in a group
        raise WrongAnswer("; ".join(wrong))
    if not counts and EVALSHA.section in only:
        run.notes.append("system calls: not counted; strace is missing or may not attach")
    series = _series(entries, laps, counts)
    run.figures = figures(SUITE, series)
    run.verdicts = goals.verdicts(SUITE, series)
    return run


async def _round(entries: Sequence[_Entry], calls: int) -> list[Lap]:
    gc.collect()
    gc.disable()
    try:
        return [await _lap(entry.work, entry.calls, calls) for entry in entries]
    finally:
        gc.enable()


async def _lap(work: Work, made: Sequence[Call], calls: int) -> Lap:
    """Make `calls` commands in all, or as few more as give everybody one call."""
    times = max(1, calls // (len(made) * work.commands))
    if work.how == "threads":
        return from_threads(made, times)
    if work.how == "tasks":
        return await from_tasks(made, times)
    lap = in_turn(made[0], times)
    return Lap(lap.us / work.commands, lap.cpu_us / work.commands)


async def _try(entry: _Entry, calls: int) -> str | None:
    """Run a lap in which every answer is looked at; what was wrong, if anything was."""
    pairs = zip(entry.calls, entry.work.answers, strict=True)
    try:
        await _lap(entry.work, [partial(_checked, *pair) for pair in pairs], calls)
    except WrongAnswer as error:
        return f"{entry.contender} on {entry.work.name}: {error}"
    return None


def _checked(call: Call, right: object) -> Any:
    answer = call()
    if inspect.isawaitable(answer):
        return _checked_later(answer, right)
    return _compare(answer, right)


async def _checked_later(answer: Any, right: object) -> None:
    _compare(await answer, right)


def _compare(answer: object, right: object) -> None:
    if answer is True:  # what redis-py makes of OK
        answer = "OK"
    if answer != right:
        raise WrongAnswer(f"answered {answer!r:.80}, and right is {right!r:.80}")


def _count(entries: Sequence[_Entry]) -> dict[str, float]:
    """System calls of an EVALSHA, by contender; nothing where they cannot be counted."""
    found = {}
    for entry in entries:
        if entry.work is EVALSHA and entry.alone:
            count = system_calls(entry.calls[0], _COUNTED)
            if count is None:
                break
            found[entry.contender] = count
    return found


def _series(
    entries: Sequence[_Entry], laps: Sequence[Sequence[Lap]], counts: dict[str, float]
) -> list[Series]:
    found: dict[str, Series] = {}

    def note(
        entry: _Entry, beside: str, unit: str, values: Sequence[float], *, rate: bool = False
    ) -> None:
        work = f"{entry.work.name}{beside}"
        series = found.setdefault(
            work, Series(SECTIONS[entry.work.section], work, unit, OURS, rate)
        )
        series.values[entry.contender] = list(values)

    above = ": CPU above bare"
    for entry, *series in zip(entries, *laps, strict=True):
        if entry.work.section in ("threads", "tasks"):
            note(entry, "", "/s", [1e6 / lap.us for lap in series], rate=True)
        else:
            note(entry, "", "us", [lap.us for lap in series])
        if entry.work.how == "threads":
            note(entry, ": p99", "us", [lap.p99_us for lap in series])
        if entry.work is EVALSHA and entry.alone:
            note(entry, above, "us CPU", [lap.cpu_us for lap in series])
            if entry.contender in counts:
                note(entry, ": system calls", "calls", [counts[entry.contender]])
    if spent := found.get(f"{EVALSHA.name}{above}"):
        floor = spent.values.pop(BARE)
        for who, values in spent.values.items():
            # Never nothing, though a clock that ticks may say so.
            spent.values[who] = [max(a - b, 0.1) for a, b in zip(values, floor, strict=True)]
    return list(found.values())


# Telling.


def suite(size: Size, progress: Progress) -> Run:
    """Measure for `bench all`."""
    rounds = size.rounds or (1 if size.quick else ROUNDS)
    return asyncio.run(measure(rounds, 50 if size.quick else CALLS, progress=progress))


def main(argv: Sequence[str]) -> int:
    """Measure and print; 3 where there is no server to measure on, 1 after a wrong answer."""
    line = parser(SUITE, "Commands over loopback TCP, beside peers.")
    line.add_argument(
        "--rounds", type=up_to(MOST_ROUNDS), default=ROUNDS, help="how often each is timed"
    )
    line.add_argument("--calls", type=up_to(MOST_CALLS), default=CALLS, help="commands a round")
    line.add_argument(
        "--only",
        type=some(*SECTIONS),
        default=list(SECTIONS),
        metavar="SECTIONS",
        help=f"some of {','.join(SECTIONS)}",
    )
    line.add_argument("--pin", action="store_true", help="client and server on one core (Linux)")
    options = line.parse_args(argv)
    if options.pin and not CAN_PIN:
        line.error("--pin needs Linux")

    measuring = measure(options.rounds, options.calls, options.only, terminal())
    try:
        with one_core() if options.pin else nullcontext():
            run = asyncio.run(measuring)
    except (EmbeddedError, WrongAnswer) as error:
        print(f"bench wire: {error}", file=sys.stderr)
        return 3 if isinstance(error, EmbeddedError) else 1
    tell(run, as_document=options.json)
    return 0

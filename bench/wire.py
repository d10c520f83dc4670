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
where the figure shown is a rate. `reach` is the ratio that the project holds itself to.

Client and server take turns, so whether the scheduler keeps them on one core or wakes one core from
the other can double every figure, the floor's too. `--pin` keeps both on one core: figures that
repeat, and in which a client's own work is what differs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import inspect
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from emq.embedded import Embedded, EmbeddedError

from .load import Lap, from_tasks, from_threads, in_turn, system_calls
from .options import MOST_CALLS, MOST_ROUNDS, up_to
from .peers import BARE, OURS, PEERS, Call
from .works import EVALSHA, REACH, SECTIONS, WORKS, Work, fill

_COUNTED: Final = 20  # calls whose system calls are counted


# Measuring.


class WrongAnswer(Exception):
    """A contender answered something else than what is right; nobody was timed."""


@dataclass(frozen=True)
class Row:
    """What one contender needed for one work.

    Attributes:
        section, work, contender: Who did what.
        unit: Of the figure: `us` or `us CPU` a command, commands a `second`, or `calls`.
        figure: The median over the rounds.
        low, high: The quartiles of the same.
        ratio: What it costs as a multiple of what ours does in the same round, the median.
        reach: What the ratio must be at least, or None.
    """

    section: str
    work: str
    contender: str
    unit: str
    figure: float
    low: float
    high: float
    ratio: float
    reach: float | None

    @property
    def reached(self) -> bool | None:
        """Whether the ratio is what it must be; None where nothing is asked."""
        return None if self.reach is None else self.ratio >= self.reach


@dataclass
class Report:
    """The rows, and why there are not more of them."""

    rows: list[Row] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry:
    work: Work
    contender: str
    calls: list[Call]
    alone: bool


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process, and those that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


async def measure(rounds: int, calls: int, only: Sequence[str] = tuple(SECTIONS)) -> Report:
    """Time every contender on every work of some sections, `rounds` times `calls` commands.

    Raises:
        WrongAnswer: Before anything was timed.
        EmbeddedError: There is no server.
    """
    peers = [peer for peer in PEERS if any(section in only for section in peer.sections)]
    report = Report(missing=[peer.name for peer in peers if peer.is_missing()])
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Embedded(tcp=True))
        fill(server)
        present = [
            (peer, await peer.open(server, stack))
            for peer in peers
            if peer.name not in report.missing
        ]
        entries = [
            _Entry(work, peer.name, work.prepare(contender), peer.alone)
            for work in WORKS
            for peer, contender in present
            if work.section in only and work.section in peer.sections
        ]
        # Caches, branches and sockets get warm by what finds the wrong answers.
        wrong = [told for entry in entries if (told := await _try(entry, max(1, calls // 10)))]
        laps: list[list[Lap]] = []
        counts: dict[str, float] = {}
        if not wrong:
            laps = [await _round(entries, calls) for _ in range(rounds)]
            counts = _count(entries)
    if wrong:  # outside, for a client that keeps tasks would wrap it in a group
        raise WrongAnswer("; ".join(wrong))
    report.rows = list(_rows(entries, laps, counts))
    return report


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
    if work.section == "threads":
        return from_threads(made, times)
    if work.section == "tasks":
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


def _rows(
    entries: Sequence[_Entry], laps: Sequence[Sequence[Lap]], counts: dict[str, float]
) -> Iterator[Row]:
    # By section, work and unit: what it cost each contender, round by round.
    costs: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(dict)
    for entry, *series in zip(entries, *laps, strict=True):
        section, name, who = entry.work.section, entry.work.name, entry.contender
        unit = "second" if section in ("threads", "tasks") else "us"
        costs[section, name, unit][who] = [lap.us for lap in series]
        if section == "threads":
            costs[section, f"{name}: p99", "us"][who] = [lap.p99_us for lap in series]
        if entry.work is EVALSHA and entry.alone:
            cpu = [lap.cpu_us for lap in series]
            costs[section, f"{name}: CPU above bare", "us CPU"][who] = cpu
        if who in counts and entry.work is EVALSHA:
            costs[section, f"{name}: system calls", "calls"][who] = [counts[who]]
    for (section, name, unit), found in costs.items():
        if unit == "us CPU":
            floor = found.pop(BARE)
            for who, values in found.items():
                # Never nothing, though a clock that ticks may say so.
                found[who] = [max(a - b, 0.1) for a, b in zip(values, floor, strict=True)]
        yield from _compared(section, name, unit, found)


def _compared(section: str, work: str, unit: str, costs: dict[str, list[float]]) -> Iterator[Row]:
    for who, values in costs.items():
        ratio = statistics.median(a / b for a, b in zip(values, costs[OURS], strict=True))
        shown = [1e6 / value for value in values] if unit == "second" else values
        figures = (statistics.median(shown), *_quartiles(shown))
        yield Row(section, work, who, unit, *figures, ratio, REACH.get((work, who)))


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


# Telling.


def _figure(row: Row) -> tuple[str, str]:
    """The figure and its quartiles, as text."""
    if row.unit == "second":
        return f"{row.figure:,.0f} /s", f"{row.low:,.0f} to {row.high:,.0f}"
    places = 1 if row.figure >= 10 else 2
    spread = f"{row.low:,.{places}f} to {row.high:,.{places}f}"
    return f"{row.figure:,.{places}f} {row.unit}", spread


def _goal(row: Row) -> str:
    """The ratio to be reached, and whether it is."""
    if row.reach is None:
        return ""
    return f">= {row.reach:.2f}  {'reached' if row.reached else 'missed'}"


def table(report: Report, rounds: int, calls: int) -> str:
    """The report as text."""
    lines = [f"Commands over loopback TCP, medians of {rounds} rounds of {calls:,} commands"]
    section = work = ""
    for row in report.rows:
        if row.section != section:
            head = f"{SECTIONS[row.section]:28}{'contender':26}{'figure':>14}{'quartiles':>22}"
            lines += ["", f"{head}{'x ours':>8}  reach"]
        name = row.work if row.work != work else ""
        figure, spread = _figure(row)
        cells = f"{name:28}{row.contender:26}{figure:>14}{spread:>22}{row.ratio:8.2f}"
        lines.append(f"{cells}  {_goal(row)}".rstrip())
        section, work = row.section, row.work
    lines += ["", *_notes(report)]
    return "\n".join(lines).rstrip()


def _notes(report: Report) -> Iterator[str]:
    asked = [row for row in report.rows if row.reach is not None]
    yield f"{sum(row.reached is True for row in asked)} of {len(asked)} reached"
    units = {row.unit for row in report.rows if row.section == EVALSHA.section}
    if units and "calls" not in units:
        yield "system calls: not counted; strace is missing or may not attach"
    if report.missing:
        yield f'missing: {", ".join(report.missing)}; pip install -e ".[bench]"'


def _sections(text: str) -> list[str]:
    """argparse's type of `--only`."""
    words = text.split(",")
    if unknown := [word for word in words if word not in SECTIONS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(SECTIONS)}")
    return words


def main(argv: Sequence[str]) -> int:
    """Measure and print; 3 where there is no server to measure on, 1 after a wrong answer."""
    parser = argparse.ArgumentParser(
        prog="python -m bench wire", description="Commands over loopback TCP, beside peers."
    )
    parser.add_argument(
        "--rounds", type=up_to(MOST_ROUNDS), default=15, help="how often each is timed"
    )
    parser.add_argument("--calls", type=up_to(MOST_CALLS), default=2000, help="commands a round")
    parser.add_argument(
        "--only",
        type=_sections,
        default=list(SECTIONS),
        metavar="SECTIONS",
        help=f"some of {','.join(SECTIONS)}",
    )
    parser.add_argument("--pin", action="store_true", help="client and server on one core (Linux)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args(argv)
    if options.pin and not hasattr(os, "sched_setaffinity"):
        parser.error("--pin needs Linux")

    try:
        with _one_core() if options.pin else nullcontext():
            report = asyncio.run(measure(options.rounds, options.calls, options.only))
    except (EmbeddedError, WrongAnswer) as error:
        print(f"bench wire: {error}", file=sys.stderr)
        return 3 if isinstance(error, EmbeddedError) else 1
    if options.json:
        rows = [{**asdict(row), "reached": row.reached} for row in report.rows]
        told = {"rounds": options.rounds, "calls": options.calls, "missing": report.missing}
        print(json.dumps({**told, "rows": rows}, indent=2))
    else:
        print(table(report, options.rounds, options.calls))
    return 0

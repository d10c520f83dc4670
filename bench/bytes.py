"""Bytes on the wire: EVAL every time, against EVALSHA after one SCRIPT LOAD. Exact, not timed.

    python -m bench bytes [--calls 1000] [--body 800] [--json] [--svg FILE]

Each row is one script, called `calls` times with the same keys and arguments, three ways:

    EVAL          the body with every call
    EVALSHA       one SCRIPT LOAD, then the digest with every call
    cold EVALSHA  the digest from the start, as `eval` does: the first call misses, so it is sent
                  twice, with one SCRIPT LOAD between

Every total is got four times: summed over what a connector wrote, read off the server's own
`total_net_input_bytes`, computed from the lengths of the parts alone, and added up by a ledger of
what a tap saw. The four must agree to the byte, or the exit code is 1. The ledger says too of what
kind the bytes of a call are. The first row's body is made of the size asked for; the others are the
bus's own scripts, called as the queue's verbs call them.

Below stands what one job costs from its enqueue to its completion, both ways, as the ledger has it
by job: with a command for each of the three verbs, and with completion and the next claim in one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import resp
from emq.embedded import Embedded, EmbeddedError
from emq.job import Item, Job
from emq.lens import lens
from emq.plans.work import leave, take
from emq.queue import Queue
from emq.scripts import FORGET, RECOUNT, REPAIR
from resp import Arg, Command, Connector, Plan, Script, ScriptCall, Tap, encode_command
from resp.tap import Ledger, Scripts

from . import charts, machine
from .figures import Figure, Progress, Run, Size, Verdict
from .options import MOST_BODY, MOST_CALLS, parser, up_to

T = TypeVar("T")

SUITE: Final = "bytes"
CALLS: Final = 1000
BODY: Final = 800
BOTH_WAYS: Final = f"{CALLS:,} calls"
BY_KIND: Final = "one EVALSHA, by kind"
_DIGEST: Final = 40
_SLICE: Final = 1000  # commands a pipeline, at most ...
_SLICE_BYTES: Final = 16 << 20  # ... and bytes: each must cross within the connector's timeout
_TAPPED_BYTES: Final = 2 * MOST_BODY + _SLICE_BYTES  # a pipeline, and a SCRIPT LOAD
_SCRIPTS: Final = Scripts([lens])  # whose headers tell a payload from other arguments
_INFO: Final = ("INFO", "stats")
_BAR: Final = 48  # characters

_QUEUE: Final = "orders"
_ID: Final = "JOB0EEMl9I7KXg"
_WORKER: Final = "host-4711-1"
_JOB: Final = Job(id=_ID, payload=b"", token=1, queue=_QUEUE)
_PAYLOAD: Final = b"{}".ljust(100)
_ERROR: Final = "TimeoutError: the mail server did not answer"


def bulk(size: int) -> int:
    """Bytes of a bulk string: `$<size>`, the content, and a CRLF after each."""
    return len(f"${size}\r\n") + size + len("\r\n")


def frame(sizes: Sequence[int]) -> int:
    """Bytes of a command whose arguments have these sizes: RESP, "Arrays" of "Bulk strings"."""
    return len(f"*{len(sizes)}\r\n") + sum(map(bulk, sizes))


@dataclass(frozen=True)
class ClosedForm:
    """What the lengths of the parts alone say; no command is encoded to learn it.

    Attributes:
        eval, evalsha, load: Bytes of one EVAL, one EVALSHA, and the SCRIPT LOAD.
        break_even: Calls from which EVALSHA after one load has sent fewer bytes; None is never.
        break_even_cold: The same, counting the call that missed.
    """

    eval: int
    evalsha: int
    load: int
    break_even: int | None
    break_even_cold: int | None

    @classmethod
    def of(cls, body: int, keys: Sequence[int], args: Sequence[int]) -> ClosedForm:
        """From the sizes of a script's body, its keys and its arguments."""
        tail = (len(str(len(keys))), *keys, *args)
        once = frame((len("EVAL"), body, *tail))
        by_digest = frame((len("EVALSHA"), _DIGEST, *tail))
        load = frame((len("SCRIPT"), len("LOAD"), body))
        return cls(
            once,
            by_digest,
            load,
            _break_even(load, once - by_digest),
            _break_even(load + by_digest, once - by_digest),
        )

    def totals(self, calls: int) -> Totals:
        """Bytes of so many calls, each way."""
        by_digest = self.load + calls * self.evalsha
        return Totals(calls * self.eval, by_digest, by_digest + self.evalsha)


def _break_even(first_cost: int, saved_a_call: int) -> int | None:
    """The smallest number of calls whose savings exceed what was paid first."""
    return first_cost // saved_a_call + 1 if saved_a_call > 0 else None


@dataclass(frozen=True)
class Totals:
    """Bytes of all calls of one script, each way."""

    eval: int
    evalsha: int
    cold_evalsha: int


@dataclass(frozen=True)
class Row:
    """One script's bytes, four times over, and what follows from them.

    Attributes:
        computed, written, received, counted: By the closed form, the connector, the server, and the
            ledger.
        kinds: Bytes of one EVAL, one EVALSHA and the SCRIPT LOAD, by kind, as the ledger has them.
    """

    script: str
    body: int
    keys: list[int]
    args: list[int]
    form: ClosedForm
    computed: Totals
    written: Totals
    received: Totals
    counted: Totals
    kinds: dict[str, dict[str, int]]

    @property
    def agrees(self) -> bool:
        """Whether connector, server, closed form and ledger say the same."""
        once = {verb: sum(kinds.values()) for verb, kinds in self.kinds.items()}
        form = {"eval": self.form.eval, "evalsha": self.form.evalsha, "load": self.form.load}
        return self.computed == self.written == self.received == self.counted and once == form

    @property
    def saved(self) -> float:
        """The part of EVAL's bytes that EVALSHA did not send; negative where it sent more."""
        return 1 - self.written.evalsha / self.written.eval

    def as_json(self) -> dict[str, Any]:
        """The row's facts, for programs."""
        facts = asdict(self)
        form = facts.pop("form")
        return {
            **facts,
            "per_call": {"eval": form["eval"], "evalsha": form["evalsha"], "load": form["load"]},
            "break_even": form["break_even"],
            "break_even_cold": form["break_even_cold"],
            "saved": round(self.saved, 6),
            "agrees": self.agrees,
        }


class _Meter:
    """Counts what one connector sends, at both ends. Nobody else may use the server meanwhile."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._own = len(encode_command(*_INFO))

    def _read(self) -> tuple[int, int]:
        text: Any = self._connector.command(*_INFO)
        for line in bytes(text).splitlines():
            name, _, value = line.partition(b":")
            if name == b"total_net_input_bytes":
                # The server has counted this INFO already, and so has the connector.
                return int(self._connector.stats()["bytes_out"]), int(value)
        raise RuntimeError("the server's INFO tells no total_net_input_bytes")

    def start(self) -> None:
        """Begin to count."""
        self._written, self._received = self._read()

    def stop(self) -> tuple[int, int]:
        """Bytes since `start`: written by the connector, received by the server."""
        written, received = self._read()
        return written - self._written - self._own, received - self._received - self._own


def _repeat(
    connector: Connector, tap: Tap, ledger: Ledger, command: Command, size: int, times: int
) -> None:
    """Send one command again and again; what it answers, an error too, is of no interest here."""
    most = max(1, min(_SLICE, _SLICE_BYTES // size))
    for start in range(0, times, most):
        connector.pipeline([command] * min(most, times - start))
        _count(tap, ledger)


def _count(tap: Tap, ledger: Ledger) -> None:
    """Add what a tap holds, exchanges that have ended, to a ledger."""
    for exchange in tap.exchanges():
        ledger.add(exchange)
    tap.clear()


def _kinds(ledger: Ledger, calls: int) -> dict[str, int]:
    """Bytes of one of `calls` equal calls, by kind."""
    return {kind: both.up // calls for kind, both in ledger.by_kind.items() if both.up}


def measure_script(
    connector: Connector,
    tap: Tap,
    script: Script,
    keys: Sequence[Arg],
    args: Sequence[Arg],
    calls: int,
) -> Row:
    """Call one script `calls` times in each of the three ways, and count."""
    key_sizes = [_size(key) for key in keys]
    arg_sizes = [_size(arg) for arg in args]
    form = ClosedForm.of(len(script.source), key_sizes, arg_sizes)
    by_digest = ("EVALSHA", script.sha, len(keys), *keys, *args)
    call = script(keys, args)
    meter = _Meter(connector)
    ends = []
    by_source, load, warm, cold = ledgers = [Ledger(_SCRIPTS) for _ in range(4)]

    def start() -> None:
        connector.command("SCRIPT", "FLUSH")
        meter.start()
        tap.clear()

    start()
    by_text = ("EVAL", script.source, len(keys), *keys, *args)
    _repeat(connector, tap, by_source, by_text, form.eval, calls)
    ends.append(meter.stop())

    start()
    connector.command("SCRIPT", "LOAD", script.source)
    _count(tap, load)
    _repeat(connector, tap, warm, by_digest, form.evalsha, calls)
    ends.append(meter.stop())

    start()
    _repeat(connector, tap, cold, call, form.evalsha, 1)
    _repeat(connector, tap, cold, call, form.evalsha, calls - 1)
    ends.append(meter.stop())

    sent = [ledger.total.up for ledger in ledgers]
    return Row(
        script=script.name,
        body=len(script.source),
        keys=key_sizes,
        args=arg_sizes,
        form=form,
        computed=form.totals(calls),
        written=Totals(*(written for written, _ in ends)),
        received=Totals(*(received for _, received in ends)),
        counted=Totals(sent[0], sent[1] + sent[2], sent[3]),
        kinds={
            "eval": _kinds(by_source, calls),
            "evalsha": _kinds(warm, calls),
            "load": _kinds(load, 1),
        },
    )


def _size(arg: Arg) -> int:
    """Bytes of an argument as it crosses; numbers cross as their decimal text."""
    if isinstance(arg, int | float):
        arg = str(arg)
    return len(arg.encode() if isinstance(arg, str) else bytes(arg))


def sized_script(body: int) -> Script:
    """A script whose source has exactly `body` bytes; short of `return 1`, nothing but blanks."""
    source = b"return 1" if body >= len(b"return 1") else b""
    return Script(f"a body of {body}", source.ljust(body))


class _Listener:
    """Stands where a queue's connector does, and keeps the first script call of every plan."""

    subscribe = staticmethod(print)  # no verb here listens

    def __init__(self) -> None:
        self.calls: list[ScriptCall] = []

    def run(self, plan: Plan[T], /) -> T:
        """Take the plan's first step, and answer nothing."""
        step = next(plan)
        plan.close()
        call = step[0] if isinstance(step, list) else step
        if isinstance(call, ScriptCall):
            self.calls.append(call)
        return cast(T, None)


def bus_calls() -> list[ScriptCall]:
    """One call of each of the bus's scripts, as the queue's verbs make it."""
    listener = _Listener()
    queue = Queue(listener, _QUEUE)
    queue.enqueue(_PAYLOAD, job_id=_ID)
    queue.enqueue_many([Item(_PAYLOAD, job_id=_ID)] * 10)
    queue.claim()
    queue.complete(_JOB)
    queue.complete_and_claim(_JOB)
    queue.retry(_JOB, delay_ms=1000, max_attempts=5, error=_ERROR)
    queue.extend(_JOB, 30_000)
    queue.extend_many([_JOB] * 10, 30_000)
    queue.promote()
    queue.reap()
    queue.sweep_stalled()
    queue.counts()
    queue.state(_ID)
    queue.claim_many(10)
    queue.delay(_JOB, 1000)
    queue.give_back([_JOB] * 10)
    queue.lock(_JOB, 30_000)
    queue.unlock(_JOB)
    queue.progress(_JOB, "50")
    queue.log(_JOB, _ERROR)
    queue.update_payload(_ID, _PAYLOAD)
    queue.remove(_ID)
    queue.reprocess(_ID)
    queue.pause()
    queue.resume()
    queue.set_concurrency(10)
    queue.drain()
    queue.obliterate()
    listener.run(take(queue.keys, 1, 30_000, max_stalled=5, wait_ms=5000, waiter=_WORKER))
    listener.run(leave(queue.keys, _WORKER))
    base = queue.keys.base
    return [
        *listener.calls,
        FORGET.call(base=base, suffixes=["parked", "metrics:completed"]),
        REPAIR.call(base=base, mend=1, names=[_ID] * 10),
        RECOUNT.call(base=base, mend=1, limit=100),
    ]


@dataclass(frozen=True)
class Life:
    """What one job costs from its enqueue to its completion, its scripts loaded.

    Attributes:
        verbs: The queue's, in order.
        payload: Bytes of its payload.
        commands: For each job, where one follows another.
        round_trips: The same.
        up, down: Bytes of this job, sent and received, by the ledger.
        steps: The scripts that moved it, with its bytes in each. Where a command completes one job
            and claims the next, the request is of the first and the reply of the second.
        agrees: Whether the connector counts as many bytes for each job.
    """

    verbs: list[str]
    payload: int
    commands: float
    round_trips: float
    up: int
    down: int
    steps: list[dict[str, Any]]
    agrees: bool


_JOBS: Final = [f"{_ID[:-1]}{digit}" for digit in range(8)]


def measure_lives(connector: Connector, tap: Tap) -> list[Life]:
    """Lead jobs through their lives, one after another, with three commands each and with two."""
    queue = Queue(connector, _QUEUE)

    def in_three(job_id: str, held: Job | None) -> Job | None:
        queue.enqueue(_PAYLOAD, job_id=job_id)
        queue.complete(cast(Job, queue.claim()))
        return None

    def in_two(job_id: str, held: Job | None) -> Job | None:
        queue.enqueue(_PAYLOAD, job_id=job_id)
        return queue.claim() if held is None else queue.complete_and_claim(held)

    lives = []
    for verbs, lead in (
        (["enqueue", "claim", "complete"], in_three),
        (["enqueue", "complete_and_claim"], in_two),
    ):
        held = None
        for job_id in _JOBS[:2]:  # their calls load what the server does not have
            held = lead(job_id, held)
        tap.clear()
        before = connector.stats()
        for job_id in _JOBS[2:]:
            held = lead(job_id, held)
        after = connector.stats()
        ledger = Ledger(lenses=[lens])
        _count(tap, ledger)
        if held is not None:
            queue.complete(held)
        jobs = len(_JOBS) - 2
        cost = ledger.subject(_JOBS[3])  # neither the first nor the last
        lives.append(
            Life(
                verbs=verbs,
                payload=len(_PAYLOAD),
                commands=ledger.total.exchanges / jobs,
                round_trips=ledger.total.round_trips / jobs,
                up=cost.up,
                down=cost.down,
                steps=[step._asdict() for step in cost.steps],
                agrees=(cost.up * jobs, cost.down * jobs)
                == tuple(int(after[way]) - int(before[way]) for way in ("bytes_out", "bytes_in")),
            )
        )
    return lives


def measure(calls: int, body: int) -> tuple[list[Row], list[Life]]:
    """The rows of the table, and what jobs cost, got from a private server."""
    bus = bus_calls()
    # The body that was asked for is called with what a completion needs: its keys, id and token.
    shape = next(call for call in bus if call.script.name == "complete")
    tap = Tap(max_bytes=_TAPPED_BYTES)
    with Embedded() as server, resp.connect(server.url, tap=tap) as connector:
        lives = measure_lives(connector, tap)
        rows = [
            measure_script(connector, tap, script, call.keys, call.args, calls)
            for script, call in [
                (sized_script(body), shape),
                *((call.script, call) for call in bus),
            ]
        ]
    return rows, lives


# For `bench all`.


def suite(size: Size, progress: Progress) -> Run:
    """Count for `bench all`: the same table, however long one waits."""
    progress("counting")
    rows, lives = measure(CALLS, BODY)
    run = Run(notes=[f"bytes of {CALLS:,} calls of each script, counted in four ways"])
    with Embedded() as server, resp.connect(server.url) as connector:
        run.versions = machine.server(connector)
    for row in rows:
        for way, total in asdict(row.written).items():
            name = way.replace("_", " ").replace("eval", "EVAL").replace("sha", "SHA")
            ratio = total / row.written.evalsha
            told = BOTH_WAYS, row.script, name, "B"
            run.figures.append(Figure(SUITE, *told, total, total, total, ratio=ratio))
    for row in rows[1:]:
        for kind, count in row.kinds["evalsha"].items():
            run.figures.append(Figure(SUITE, BY_KIND, row.script, kind, "B", count, count, count))
    for way in ("up", "down"):
        for life in lives:
            told = "a job's life", f"bytes {way}", ", ".join(life.verbs), "B"
            run.figures.append(Figure(SUITE, *told, *[getattr(life, way)] * 3))
    agree = [row.agrees for row in rows] + [life.agrees for life in lives]
    run.verdicts = [
        Verdict(SUITE, "totals that differ", "resp", "", "", 0, False, agree.count(False))
    ]
    progress("")
    return run


# Telling.


_HEADINGS: Final = (
    "script",
    "body",
    "EVAL",
    "EVALSHA",
    "load",
    "pays from",
    "EVAL, all",
    "EVALSHA, all",
    "saved",
)


def _cells(row: Row) -> tuple[str, ...]:
    form = row.form
    return (
        row.script,
        f"{row.body:,}",
        f"{form.eval:,}",
        f"{form.evalsha:,}",
        f"{form.load:,}",
        "never" if form.break_even is None else f"call {form.break_even:,}",
        f"{row.written.eval:,}",
        f"{row.written.evalsha:,}",
        f"{row.saved:.1%}",
    )


def _columns(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells, the first one to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if at else text.ljust(width)
            for at, (text, width) in enumerate(zip(cell, widths, strict=True))
        ).rstrip()
        for cell in cells
    ]


def _kinds_table(rows: Sequence[Row]) -> list[str]:
    """What one EVALSHA of each script is made of."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.kinds["evalsha"]))
    cells = [("script", *kinds, "all")]
    for row in rows:
        sizes = row.kinds["evalsha"]
        counts = [f"{sizes[kind]:,}" if kind in sizes else "" for kind in kinds]
        cells.append((row.script, *counts, f"{sum(sizes.values()):,}"))
    return _columns(cells)


def _lives_table(lives: Sequence[Life]) -> list[str]:
    cells: list[Sequence[str]] = [("verbs", "commands", "round trips", "up", "down", "both")]
    for life in lives:
        counts = f"{life.commands:g}", f"{life.round_trips:g}"
        sizes = f"{life.up:,}", f"{life.down:,}", f"{life.up + life.down:,}"
        cells.append((", ".join(life.verbs), *counts, *sizes))
        for step in life.steps:
            up, down = step["up"], step["down"]
            cells.append((f"  {step['name']}", "", "", f"{up:,}", f"{down:,}", f"{up + down:,}"))
    return _columns(cells)


def table(rows: Sequence[Row], lives: Sequence[Life], calls: int) -> str:
    """The rows as text, with bars of what one call sends."""
    lines = [
        f"Bytes that a client sends: {calls:,} calls of each script",
        "",
        *_columns([_HEADINGS, *map(_cells, rows)]),
    ]

    width = max(len(row.script) for row in rows)
    longest = max(row.form.eval for row in rows)
    lines += ["", "Bytes a call"]
    for row in rows:
        for name, verb, size in (
            (row.script, "EVAL", row.form.eval),
            ("", "EVALSHA", row.form.evalsha),
        ):
            bar = "#" * max(1, round(_BAR * size / longest))
            lines.append(f"{name:{width}}  {verb:7}  {bar} {size:,}")

    lines += ["", "Bytes of one EVALSHA, by kind", "", *_kinds_table(rows)]
    lines += [
        "",
        f"Bytes of a job's life, with a payload of {lives[0].payload}, its scripts loaded",
        "",
        *_lives_table(lives),
    ]

    lines += [
        "",
        "load        the one SCRIPT LOAD; EVALSHA, all has it in it",
        "pays from   the call from which EVALSHA after one load has sent less than EVAL every time",
        "a cold start by EVALSHA, without a load before, sends one EVALSHA more",
    ]
    wrong = [row for row in rows if not row.agrees]
    if not wrong:
        lines.append(
            "what connectors wrote = what the server received = closed form = ledger, to the byte"
        )
    for row in wrong:
        lines.append(
            f"{row.script}: NOT EQUAL: written {row.written}, received {row.received}, "
            f"computed {row.computed}, counted {row.counted}"
        )
    for life in lives:
        if not life.agrees:
            lines.append(f"{', '.join(life.verbs)}: NOT EQUAL: the connector counts other bytes")
    return "\n".join(lines)


def chart(rows: Sequence[Row], calls: int, path: str) -> None:
    """Draw the table: what calls add up to, and what one call of each script sends.

    Raises:
        OSError: The file cannot be written.
    """
    first, *bus = rows
    form, last = first.form, max(calls, 2)
    counts = sorted({1, last} | {round(last ** (step / 20)) for step in range(21)})
    totals = {count: form.totals(count) for count in counts}
    pays = "never pays" if form.break_even is None else f"pays from call {form.break_even:,}"
    adds_up = charts.growth(
        "bytes sent",
        {
            "EVAL every time": {count: total.eval for count, total in totals.items()},
            "EVALSHA after one load": {count: total.evalsha for count, total in totals.items()},
        },
        "B",
        width=900,
    )
    once = {
        row.script: {"EVAL": float(row.form.eval), "EVALSHA": float(row.form.evalsha)}
        for row in bus
    }
    drawn = {
        f"{first.script} bytes, called again and again: bytes sent; EVALSHA {pays}": adds_up,
        "one call of each of the bus's scripts: bytes sent": charts.pairs("bytes sent", once),
    }
    Path(path).write_text(charts.sheet(drawn), "utf-8")


def main(argv: Sequence[str]) -> int:
    """Count, print, and answer 0 if connector, server, closed form and ledger agree."""
    line = parser(
        SUITE, "EVAL every time against EVALSHA after one SCRIPT LOAD, counted to the byte."
    )
    line.add_argument("--calls", type=up_to(MOST_CALLS), default=CALLS, help="calls of each script")
    line.add_argument(
        "--body", type=up_to(MOST_BODY), default=BODY, help="bytes of the first script"
    )
    line.add_argument("--svg", metavar="FILE", help="draw a chart too")
    options = line.parse_args(argv)

    try:
        rows, lives = measure(options.calls, options.body)
    except (EmbeddedError, resp.TransportError) as error:
        print(f"bench bytes: {error}", file=sys.stderr)
        return 3
    if options.json:
        document = {
            "calls": options.calls,
            "body": options.body,
            "rows": [row.as_json() for row in rows],
            "lives": [asdict(life) for life in lives],
        }
        print(json.dumps(document, indent=2))
    else:
        print(table(rows, lives, options.calls))
    agree = [row.agrees for row in rows] + [life.agrees for life in lives]
    code = 0 if all(agree) else 1
    if options.svg:
        try:
            chart(rows, options.calls, options.svg)
        except OSError as error:
            print(f"bench bytes: {options.svg}: {error.strerror}", file=sys.stderr)
            return 1
    return code

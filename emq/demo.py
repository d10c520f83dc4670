"""`emq demo`: what one fenced EVALSHA a transition buys, shown on a running server.

Nothing in it is canned. What is printed was read back from the server or off the wire (a tap on
every connection), and a verdict is computed from that alone.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socketserver
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, TextIO, cast

from resp import (
    Command,
    Connector,
    Decoder,
    ErrorReply,
    Plan,
    Record,
    RespError,
    Script,
    ScriptCall,
    ServerError,
    ShaMismatch,
    Tap,
    connect,
    parse_url,
)
from resp.tap import Ledger

from .embedded import Embedded
from .errors import EmqError, JobGone, StaleToken, escaped
from .fence import fence
from .job import Job
from .lens import lens
from .output import stdout, write
from .plans import jobs
from .queue import Queue

_PAYLOAD: Final = b'{"order": 1042, "total": "19.90"}'
_MAX_ATTEMPTS: Final = 2
_RETRY_MS: Final = 60_000
_SHOWN: Final = 320  # characters of a frame; the middle of a longer one is left out
_WIDTH: Final = 78  # characters of a frame on one line
_BAR: Final = 24  # characters of the bar of all that crossed
_LIFE_BYTES: Final = 500  # what a job may cost from its enqueue to its completion, both ways
_WORKER_A, _WORKER_B, _REAPER = "worker A", "worker B", "reaper"


def demo(*, url: str | None, as_json: bool) -> int:
    """Run all four parts; 0 if every verdict holds, else 1."""
    out = stdout()
    report = Report(None if as_json else out)
    with ExitStack() as stack:
        private = url is None
        if url is None:
            url = stack.enter_context(Embedded()).url
        stage = stack.enter_context(Stage(report, url, private=private))
        report.server("a private Valkey" if private else str(parse_url(url)[0]))
        finish_with_a_reaper_running(stage)
        complete_with_a_token(stage)
        call_a_cached_script(stage)
        count_the_bytes(stage)
    holds = report.conclude()
    if as_json:
        write(json.dumps(report.document(), indent=2) + "\n", out)
    return 0 if holds else 1


class Report:
    """What was done and seen: printed as it happens, and kept for `--json`.

    Args:
        out: Where to print; None keeps only.
    """

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._color = out is not None and out.isatty() and not os.environ.get("NO_COLOR")
        self._server = ""
        self._parts: list[dict[str, Any]] = []

    def server(self, name: str) -> None:
        """Say which server all this happens on."""
        self._server = name
        self._print(f"On {escaped(name, 200)}. -> was sent, <- was received.")

    def part(self, title: str) -> None:
        """Begin a part of the demo."""
        self._parts.append(
            {
                "part": len(self._parts) + 1,
                "title": title,
                "events": [],
                "facts": {},
                "verdicts": [],
            }
        )
        self._print(f"\n{self._paint('1', f'{len(self._parts)}. {title}')}")

    def scene(self, title: str) -> None:
        """Begin a scene of a part."""
        self._keep({"scene": title})
        self._print(f"\n   {title}")

    def step(self, who: str, did: str, saw: str) -> None:
        """Tell who did what, and what came of it."""
        self._keep({"who": who, "did": did, "saw": saw})
        self._print(f"     {who:9} {did:34} {saw}")

    def frame(self, record: Record) -> None:
        """Show bytes as they crossed."""
        text = repr(record.data)[2:-1]
        self._keep({"sent": record.sent, "bytes": len(record.data), "data": text})
        if len(text) > _SHOWN:
            text = f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 4 :]}"
        start = f"     {'->' if record.sent else '<-'} {len(record.data):>6,} bytes  "
        for line in _folded(text):
            self._print(start + self._paint("2", line))
            start = " " * len(start)

    def line(self, text: str) -> None:
        """Print a line that the facts hold already."""
        self._print(f"     {text}")

    def fact(self, name: str, value: Any) -> None:
        """Keep a value under a name, for programs."""
        self._parts[-1]["facts"][name] = value

    def verdict(self, claim: str, holds: bool) -> None:
        """Say whether a claim holds."""
        self._parts[-1]["verdicts"].append({"claim": claim, "holds": holds})
        word = self._paint("32", "holds") if holds else self._paint("1;31", "DOES NOT HOLD")
        self._print(f"   = {claim}: {word}")

    def conclude(self) -> bool:
        """Sum up; whether every verdict holds."""
        verdicts = [verdict for part in self._parts for verdict in part["verdicts"]]
        held = [verdict for verdict in verdicts if verdict["holds"]]
        self._print(f"\n{len(held)} of {len(verdicts)} verdicts hold.")
        return len(held) == len(verdicts)

    def document(self) -> dict[str, Any]:
        """Everything that was told."""
        holds = all(verdict["holds"] for part in self._parts for verdict in part["verdicts"])
        return {"demo": "emq", "server": self._server, "holds": holds, "parts": self._parts}

    def _keep(self, event: dict[str, Any]) -> None:
        self._parts[-1]["events"].append(event)

    def _print(self, text: str) -> None:
        if self._out is not None:
            write(text + "\n", self._out)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color else text


def _folded(text: str) -> Iterator[str]:
    """A frame's text in lines, broken after a CRLF where there is one."""
    line = ""
    for piece in re.findall(rf".{{,{_WIDTH - 4}}}?\\r\\n|.{{1,{_WIDTH}}}", text):
        if line and len(line) + len(piece) > _WIDTH:
            yield line
            line = ""
        line += piece
    yield line


class Finish(NamedTuple):
    """How a completion went.

    Attributes:
        refused: What the refusal says; "" if there was none.
        at_once: One EVALSHA was all that was sent.
    """

    refused: str
    at_once: bool


_WAYS: Final = {
    ("EVALSHA",): "one EVALSHA",
    ("EVALSHA", "SCRIPT LOAD", "EVALSHA"): "EVALSHA, loaded first",
}


class Stage:
    """The actors: two workers and a reaper, each with a connector of its own, under one tap.

    Its queue is new, and removed at the end. A server that belongs to another wire version is
    refused; one that is nobody's is not claimed, since the demo leaves it as it was.

    Args:
        private: The server has no other client.
    """

    def __init__(self, report: Report, url: str, *, private: bool) -> None:
        self.report = report
        self.private = private
        self.tap = Tap(capacity=1_000_000)
        self.connectors: list[Connector] = []
        self._url = url
        self._name = f"demo-{secrets.token_hex(4)}"
        self._written: set[str] = set()

    def __enter__(self) -> Stage:
        fenced = {} if self.private else {"on_connect": fence(claim=False)}
        with ExitStack() as undo:
            undo.callback(self.leave)
            self.queues = {
                who: Queue(self.dial(self._url, **fenced), self._name)
                for who in (_WORKER_A, _WORKER_B, _REAPER)
            }
            undo.pop_all()
        self.keys = self.queues[_REAPER].keys
        self._written |= {
            self.keys.pending,
            self.keys.active,
            self.keys.schedule,
            self.keys.dead,
            self.keys.metrics_completed,
            self.keys.metrics_failed,
        }
        self._counted_before = self._both_ends() if self.private else (0, 0)
        return self

    def __exit__(self, *raised: object) -> None:
        self.leave()

    def dial(self, url: str, **options: Any) -> Connector:
        """Connect, under the tap."""
        connector = connect(url, tap=self.tap, **options)
        self.connectors.append(connector)
        return connector

    def clean(self) -> None:
        """Delete what the demo wrote."""
        if self._written:
            self.say(_REAPER, ("UNLINK", *sorted(self._written)))
            self._written.clear()

    def leave(self) -> None:
        """Delete what the demo wrote, and hang up."""
        try:
            self.clean()
        except RespError:
            left = f"emq:{{{self._name}}}:*"
            print(f"emq: keys of the demo could not be removed: {left}", file=sys.stderr)
        for connector in self.connectors:
            connector.close()

    def _both_ends(self) -> tuple[int, int]:
        """Bytes so far: sent by the actors, and received by their server from anybody."""
        text: bytes = self.say(_REAPER, ("INFO", "stats"))
        [received] = re.findall(rb"^total_net_input_bytes:(\d+)", text, re.MULTILINE)
        actors = self.connectors[: len(self.queues)]
        return sum(int(actor.stats()["bytes_out"]) for actor in actors), int(received)

    def counted(self) -> tuple[int, int]:
        """Bytes since the beginning, as the actors and as their server count them."""
        sent, received = self._both_ends()
        return sent - self._counted_before[0], received - self._counted_before[1]

    def say(self, who: str, command: Command) -> Any:
        """Send one plain command from an actor's connector."""
        return self.flush(who, [command])[0]

    def flush(self, who: str, commands: list[Command]) -> list[Any]:
        """Send plain commands together."""
        return self.queues[who].connector.run(_flush(commands))

    def handlings(self, job: Job) -> list[str]:
        """Who handled a job, in order, as their handlers wrote it on the server."""
        return [who.decode() for who in self.say(_REAPER, ("LRANGE", self._effects(job.id), 0, -1))]

    def _effects(self, job_id: str) -> str:
        return f"{self.keys.base}handled:{job_id}"

    # What actors do; each tells the report.

    def enqueue(self) -> str:
        """Add a job."""
        job_id = self.queues[_REAPER].enqueue(_PAYLOAD).job_id
        self._written |= {self.keys.job(job_id), self._effects(job_id)}
        return job_id

    def claim(self, who: str) -> Job:
        """Take the job that waits."""
        job = self.queues[who].claim()
        if job is None:
            raise EmqError(f"{who} found nothing to claim; run the demo again, on a server at rest")
        self.report.step(who, "claim", f"{job.id}, token {job.token}")
        return job

    def handle(self, who: str, job: Job) -> None:
        """Do a job's work: here, leave a mark on the server that nothing takes back."""
        self.say(who, ("RPUSH", self._effects(job.id), who))
        self.report.step(who, "does the work", "handled by " + ", ".join(self.handlings(job)))

    def end_lease(self, job: Job) -> None:
        """Let time pass."""
        self.say(_REAPER, ("ZADD", self.keys.active, "XX", 0, job.id))
        self.report.step("time", "the lease ends", "its score in active is moved to the past")

    def reap(self) -> int:
        """Give back what nobody holds any more."""
        reaped = self.queues[_REAPER].reap()
        self.report.step(_REAPER, "reap", f"{reaped} back in pending")
        return reaped

    def finish(self, who: str, job: Job) -> Finish:
        """Complete a job."""
        mark = len(self.tap)
        refused = ""
        try:
            self.queues[who].complete(job)
        except (JobGone, StaleToken) as refusal:
            refused = refusal.detail or refusal.fact
        said = _names([record.data for record in list(self.tap)[mark:] if record.sent])
        how = _WAYS.get(tuple(said), ", ".join(said))
        self.report.step(who, f"complete: {how}", f"refused: {refused}" if refused else "done")
        return Finish(refused, said == ["EVALSHA"])

    def find_nothing(self, who: str) -> bool:
        """Look for work; whether there is none."""
        job = self.queues[who].claim()
        self.report.step(who, "claim", "nothing to do" if job is None else job.id)
        return job is None


def _flush(commands: list[Command]) -> Plan[list[Any]]:
    replies: list[Any] = yield commands
    for reply in replies:
        if isinstance(reply, ErrorReply):
            raise ServerError(reply.code, reply.message)
    return replies


def finish_with_a_reaper_running(stage: Stage) -> None:
    """Part 1: the same moment, met by separate commands and by one EVALSHA."""
    report = stage.report
    report.part("Two ways to finish a job with a reaper running")

    report.scene("As separate commands, the reaper let in between the read and the writes")
    stage.enqueue()
    first = stage.claim(_WORKER_A)
    stage.handle(_WORKER_A, first)
    attempts = int(stage.say(_WORKER_A, ("HGET", stage.keys.job(first.id), "attempts")))
    goes_on = attempts == first.token
    report.step(
        _WORKER_A, "HGET row attempts", f"{attempts}, its token" if goes_on else "not its own"
    )
    stage.end_lease(first)
    stage.reap()
    second = stage.claim(_WORKER_B)
    stage.handle(_WORKER_B, second)
    writes: list[Command] = [
        ("ZREM", stage.keys.active, first.id),
        ("DEL", stage.keys.job(first.id)),
        ("HINCRBY", stage.keys.metrics_completed, "count", 1),
    ]
    released = stage.flush(_WORKER_A, writes)[0] if goes_on else 0
    report.step(_WORKER_A, "ZREM active, DEL row, HINCRBY", f"{released} lease ended: worker B's")
    refused = stage.finish(_WORKER_B, second).refused
    split = stage.handlings(first)
    report.verdict(
        f"as separate commands, the job is handled twice ({', '.join(split)})",
        split == [_WORKER_A, _WORKER_B] and released == 1 and bool(refused),
    )

    report.scene("As one EVALSHA, the reaper coming just after")
    stage.enqueue()
    job = stage.claim(_WORKER_A)
    stage.handle(_WORKER_A, job)
    stage.end_lease(job)
    finish = stage.finish(_WORKER_A, job)
    reaped = stage.reap()
    idle = stage.find_nothing(_WORKER_B)
    after = stage.handlings(job)
    report.verdict(
        f"as one EVALSHA, the job is handled once ({', '.join(after)})",
        after == [_WORKER_A] and finish == Finish("", at_once=True) and reaped == 0 and idle,
    )

    report.scene("As one EVALSHA, the reaper coming just before")
    stage.enqueue()
    job = stage.claim(_WORKER_A)
    stage.handle(_WORKER_A, job)
    stage.end_lease(job)
    reaped = stage.reap()
    finish = stage.finish(_WORKER_A, job)
    idle = stage.find_nothing(_WORKER_B)
    before = stage.handlings(job)
    report.verdict(
        f"and once even then, for nobody had claimed it anew ({', '.join(before)})",
        before == [_WORKER_A] and finish == Finish("", at_once=True) and reaped == 1 and idle,
    )
    report.fact(
        "handled", {"split": split, "evalsha_then_reap": after, "reap_then_evalsha": before}
    )


def complete_with_a_token(stage: Stage) -> None:
    """Part 2: who holds an old token changes nothing; at the last attempt a retry is a death."""
    report, keys = stage.report, stage.keys
    report.part("Run complete with a token")

    report.scene("The row is at attempts 2; worker A still holds token 1, worker B holds token 2")
    stage.enqueue()
    stale = stage.claim(_WORKER_A)
    stage.end_lease(stale)
    stage.reap()
    held = stage.claim(_WORKER_B)

    def facts() -> list[Any]:
        return stage.flush(
            _REAPER,
            [
                ("DUMP", keys.job(held.id)),
                ("ZSCORE", keys.active, held.id),
                ("ZCARD", keys.pending),
                ("HGET", keys.metrics_completed, "count"),
            ],
        )

    before = facts()
    mark = len(stage.tap)
    refused = stage.finish(_WORKER_A, stale).refused
    for record in list(stage.tap)[mark:]:
        report.frame(record)
    after = facts()
    report.step(
        "server", "DUMP row", f"{len(before[0])} bytes before, {len(after[0] or b'')} after"
    )
    report.verdict(
        "token 1 answers EMQSTALE complete token mismatch",
        refused == "EMQSTALE complete token mismatch",
    )
    report.verdict("the row, its lease and the counts are the same, byte for byte", before == after)

    accepted = not stage.finish(_WORKER_B, held).refused
    row, lease, _, completed = facts()
    gone = row is None and lease is None
    told = f"{'neither is there' if gone else 'still there'}; completed {_number(completed)}"
    report.step("server", "DUMP row, ZSCORE active", told)
    report.verdict(
        "token 2 retires the job",
        accepted and gone and _number(completed) == _number(before[3]) + 1,
    )

    report.scene(f"The branch of retry, with at most {_MAX_ATTEMPTS} attempts")
    job_id = stage.enqueue()
    counts = stage.queues[_REAPER].counts()
    outcomes = [_fail(stage, stage.claim(_WORKER_A))]
    scheduled = stage.queues[_REAPER].state(job_id)
    due = stage.say(_REAPER, ("ZSCORE", keys.schedule, job_id))
    report.step("server", "state, ZSCORE schedule", f"{scheduled}, due {float(due or 0):.0f}")
    stage.say(_REAPER, ("ZADD", keys.schedule, "XX", 0, job_id))
    report.step("time", "the job falls due", "its score in schedule is moved to the past")
    promoted = stage.queues[_REAPER].promote()
    report.step(_REAPER, "promote", f"{promoted} back in pending")
    outcomes.append(_fail(stage, stage.claim(_WORKER_A)))
    dead = stage.queues[_REAPER].state(job_id)
    failed = stage.queues[_REAPER].counts()["failed"] - counts["failed"]
    report.step("server", "state, failed", f"{dead}, +{failed}")
    report.verdict(
        "below the maximum, retry schedules", (outcomes[0], scheduled) == ("scheduled",) * 2
    )
    report.verdict(
        "at the maximum it dead-letters, and the failed count goes up by one",
        (outcomes[1], dead, failed) == ("dead", "dead", 1),
    )
    report.fact("complete", {"token_1": refused, "token_2": "retired" if gone else "kept"})
    report.fact("retry", outcomes)


def _fail(stage: Stage, job: Job) -> str:
    """Have a job fail; what retry answers."""
    outcome = stage.queues[_WORKER_A].retry(
        job, delay_ms=_RETRY_MS, max_attempts=_MAX_ATTEMPTS, error="card declined"
    )
    stage.report.step(_WORKER_A, f"retry at attempt {job.token}", outcome)
    return outcome


def _number(text: bytes | None) -> int:
    return int(text or 0)


def call_a_cached_script(stage: Stage) -> None:
    """Part 3: what crosses on a hit, on a miss, and where a server loads something else."""
    report = stage.report
    report.part("The cached-script call")
    worker = stage.queues[_WORKER_A]
    stage.enqueue()
    stage.enqueue()
    report.scene("Two jobs to complete")
    warm, cold = stage.claim(_WORKER_A), stage.claim(_WORKER_A)

    report.scene("A warm cache: complete, one round trip")
    mark = len(stage.tap)
    worker.complete(warm)
    sent, _ = _show(stage, mark)
    report.verdict("a hit is one EVALSHA and its reply", _names(sent) == ["EVALSHA"])

    plan = jobs.complete(stage.keys, cold, None, None, None)
    call = cast(ScriptCall, next(plan))  # what `complete` says first
    plan.close()
    if stage.private:
        report.scene("The same call after SCRIPT FLUSH")
        stage.say(_REAPER, ("SCRIPT", "FLUSH"))
    else:
        # Other clients of this server may rely on its cache; a script it never saw misses alike.
        report.scene("A script that this server never saw (its cache is not the demo's to flush)")
        source = call.script.source + f"\n-- {stage.keys.queue}\n".encode()
        call = Script(call.script.name, source)(call.keys, call.args)
    mark = len(stage.tap)
    [answer] = worker.connector.run(_flush([call]))
    sent, received = _show(stage, mark)
    again = len(sent) == 3 and sent[0] == sent[2]
    report.verdict(
        "a miss is EVALSHA, SCRIPT LOAD, and the same EVALSHA again",
        _names(sent) == ["EVALSHA", "SCRIPT LOAD", "EVALSHA"] and again and answer == 1,
    )
    digest = call.script.sha.encode()
    report.verdict(
        "NOSCRIPT came first, then the script's own digest",
        received[0].startswith(b"-NOSCRIPT ") and digest in received[1],
    )

    report.scene("A server that answers SCRIPT LOAD with another digest")
    mark = len(stage.tap)
    with _Impostor() as impostor, ThreadPoolExecutor(1) as thread:
        thread.submit(impostor.handle_request)
        connector = stage.dial(f"valkey://127.0.0.1:{impostor.server_address[1]}", protocol=2)
        refusal: RespError | None = None
        try:
            connector.run(_flush([call]))
        except RespError as error:
            refusal = error
        finally:
            connector.close()
    sent, _ = _show(stage, mark)
    mismatch = refusal if isinstance(refusal, ShaMismatch) else None
    if mismatch is not None:
        report.line(f"ShaMismatch: expected  {mismatch.expected}")
        report.line(f"             got       {mismatch.got!r}")
    report.verdict(
        "a foreign digest is refused, and the script is not run",
        mismatch is not None
        and mismatch.expected == call.script.sha
        and _names(sent) == ["EVALSHA", "SCRIPT LOAD"]
        and impostor.asked == ["EVALSHA", "SCRIPT LOAD"],
    )
    report.fact("refused", None if refusal is None else str(refusal))


class _Impostor(socketserver.TCPServer):
    """A server for one connection, which loads something else than it was given."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.timeout = 10
        self.asked: list[str] = []


_LIES: Final = {
    "EVALSHA": b"-NOSCRIPT No matching script.\r\n",
    "SCRIPT LOAD": b"$40\r\n" + b"f" * 40 + b"\r\n",
}


class _Answers(socketserver.BaseRequestHandler):
    server: _Impostor

    def handle(self) -> None:
        """Answer until the client hangs up."""
        decoder = Decoder()
        while data := self.request.recv(65_536):
            decoder.feed(data)
            for words in decoder.replies():
                name = _name(words)
                self.server.asked.append(name)
                self.request.sendall(_LIES.get(name, b"-ERR unknown command\r\n"))


def _show(stage: Stage, mark: int) -> tuple[list[bytes], list[bytes]]:
    """Print what crossed since `mark`; what was sent, and what was received."""
    records = list(stage.tap)[mark:]
    for record in records:
        stage.report.frame(record)
    return (
        [record.data for record in records if record.sent],
        [record.data for record in records if not record.sent],
    )


def _commands(data: bytes) -> list[list[bytes]]:
    """The commands in bytes that were sent: arrays of bulk strings, which are RESP like replies."""
    decoder = Decoder()
    decoder.feed(data)
    return [command for command in decoder.replies() if isinstance(command, list)]


def _name(words: list[bytes]) -> str:
    """A command's name, with the second word of one that has two."""
    width = 2 if words[0] in (b"SCRIPT", b"CLIENT") else 1
    return b" ".join(words[:width]).decode("latin-1")


def _names(sent: list[bytes]) -> list[str]:
    return [_name(words) for data in sent for words in _commands(data)]


def count_the_bytes(stage: Stage) -> None:
    """Part 4: what one job cost, and everything that crossed, checked against both ends' counts."""
    report = stage.report
    report.part("Bytes on the wire")
    report.scene("One job more, its scripts loaded")
    for _ in range(2):  # the first one loads what the server does not have any more
        job_id = stage.enqueue()
        job = stage.queues[_WORKER_A].claim()
        if job is not None:
            stage.queues[_WORKER_A].complete(job)
    ledger = Ledger(lenses=[lens])
    for exchange in stage.tap.exchanges():
        ledger.add(exchange)

    life = ledger.subject(job_id)
    rows = [(step.name, step.up, step.down) for step in life.steps]
    _tell_bytes(report, job_id, rows, life.up, life.down)
    report.fact(
        "job",
        {
            "commands": life.exchanges,
            "round_trips": life.round_trips,
            "sent": life.up,
            "received": life.down,
            "steps": [step._asdict() for step in life.steps],
        },
    )
    report.verdict(
        f"its whole life was {life.exchanges} commands, {life.round_trips} round trips and "
        f"{life.size} bytes, at most {_LIFE_BYTES}",
        [step.name for step in life.steps] == ["enqueue", "claim", "complete"]
        and life.exchanges == life.round_trips == 3
        and life.size <= _LIFE_BYTES,
    )

    report.scene("All that crossed in this demo")
    kinds = [(kind, *both) for kind, both in ledger.by_kind.items() if any(both)]
    sent, received = sum(up for _, up, _ in kinds), sum(down for _, _, down in kinds)
    _tell_bytes(report, "kind", kinds, sent, received)
    report.fact("sent", {**{kind: up for kind, up, _ in kinds}, "total": sent})
    report.fact("received", {**{kind: down for kind, _, down in kinds}, "total": received})
    report.scene("The same by script, its loads included")
    scripts = [(name, cost.up, cost.down) for name, cost in ledger.by_script.items()]
    _tell_bytes(report, "script", scripts, sent, received)
    report.fact("scripts", {name: {"sent": up, "received": down} for name, up, down in scripts})
    written, read = (
        sum(int(connector.stats()[way]) for connector in stage.connectors)
        for way in ("bytes_out", "bytes_in")
    )
    report.fact("connectors", {"bytes_out": written, "bytes_in": read})
    report.verdict(
        f"the kinds add up to the connectors' own counts, {written:,} out and {read:,} in",
        (sent, received) == (written, read),
    )
    if stage.private:
        actors, server = stage.counted()
        report.fact("server", {"sent_to_it": actors, "total_net_input_bytes": server})
        report.verdict(
            f"the server counted what the workers and the reaper sent it, {server:,} bytes",
            actors == server,
        )


def _tell_bytes(
    report: Report, heading: str, rows: list[tuple[str, int, int]], sent: int, received: int
) -> None:
    """Print what was sent and received, by row, with each row's part of what crossed."""
    report.line(f"{heading:<28}{'sent':>10}{'received':>10}{'share':>8}")
    for name, up, down in rows:
        share = (up + down) / max(1, sent + received)
        bar = "#" * round(_BAR * share)
        report.line(f"{name:<28}{up:>10,}{down:>10,}{share:>8.1%}  {bar}".rstrip())
    report.line(f"{'total':<28}{sent:>10,}{received:>10,}")

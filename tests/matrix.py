"""Cut the connection after every byte of every verb, and look at what became of it.

    python -m tests.matrix [--only VERB] [--every N] [--shell threads|aio] [--json] [--write]

`CASES` has a row for each verb of a queue that writes, and for each way in which its outcome
differs. A row sets a queue on a real Valkey and makes one call, through `tests.proxy`. First the
call is made uncut, by which it is known at which byte of the request a command is whole, and which
bytes of replies a command waits for. Then, from the same state byte by byte, the connection ends
after each byte of the request and of the reply, by an end of stream and by a reset, with a server
that knows the scripts and with one that has forgotten them, on both shells. Each time:

- A command runs if its last byte came, and only then: the queue's keys are what they were, byte
  for byte, or what the commands that came make of them.
- The caller gets the answer if all of it came, else a `ConnectionLost` or a `ConnectFailed`. Its
  `may_have_run` is never False where a command has run.
- The caller then says the same again on the same connector. What it is answered, and what the
  server holds then, is what an uncut call gives in that state.

What is found is the table in the docstring of `emq.queue`: `--write` writes it there, and a test
compares it. The boot of a connection is cut as well: then nothing has run, and the next dial is as
good as any. A play that goes otherwise is printed, and the run ends with 1. `--every N` cuts at
each Nth byte, and around the last one of each command and reply.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from unittest.mock import patch

from bench.ending import exit_code, needs_dev

try:
    import redis
except ImportError:
    raise needs_dev("tests.matrix") from None

import emq.plans.jobs
import emq.queue
from emq.embedded import Embedded, EmbeddedError
from emq.errors import EmqError
from emq.ids import Mint
from emq.job import Item, Job, Sweep
from emq.keyspace import VERSION_KEY
from emq.queue import Queue
from resp import ConnectFailed, ConnectionLost, Decoder, ErrorReply, encode_command

from .emq.shells import Blocking, Shell
from .proxy import Fault, Link, Proxy, Way

Direction: TypeAlias = Literal["to_server", "to_client"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("to_server", "to_client")
SHELLS: Final = ("threads", "aio")

HOUR_MS: Final = 3_600_000  # longer than any run: nothing ends while it is looked at
_MINUTE_MS: Final = 60_000
_TIMES: Final = 10**12  # numbers above it are times, in ms since 1970
_PLACES: Final = ("pending", "active", "schedule", "dead")

# Every key of a queue with all that it holds, and the time of the look.
_LOOK: Final = """
local read = {
  string = function(key) return { 'value', redis.call('GET', key) } end,
  hash = function(key) return redis.call('HGETALL', key) end,
  zset = function(key) return redis.call('ZRANGE', key, '0', '-1', 'WITHSCORES') end,
  list = function(key)
    local flat = {}
    for at, value in ipairs(redis.call('LRANGE', key, '0', '-1')) do
      flat[2 * at - 1], flat[2 * at] = tostring(at), value
    end
    return flat
  end,
}
local time = redis.call('TIME')
local found = { time[1] * 1000 + math.floor(time[2] / 1000) }
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  found[#found + 1] = {
    key, redis.call('PTTL', key), redis.call('DUMP', key), read[redis.call('TYPE', key).ok](key),
  }
end
return found
"""


class Held(NamedTuple):
    """What a queue's keys hold, and what was published.

    Attributes:
        dumps: Each key's value, byte for byte.
        ttls: Each key's time to live, in ms; -1 is none.
        told: Each part of each key, by suffix and part. A time that was not there before is told in
            minutes from the look, so that two runs of one call hold the same.
        heard: The messages.
    """

    dumps: dict[bytes, bytes]
    ttls: dict[bytes, int]
    told: dict[tuple[str, str], str]
    heard: list[bytes]

    def same(self, other: Held) -> bool:
        """Whether two looks tell the same."""
        return self.told == other.told and self.heard == other.heard

    def place(self, job_id: str) -> str:
        """Where a job is: one of the places, or `gone`."""
        places = [place for place in _PLACES if (place, job_id) in self.told]
        assert len(places) == (("job:" + job_id, "state") in self.told), (job_id, places)
        return places[0] if places else "gone"


class Given:
    """A mint that starts again from where it was."""

    def __init__(self) -> None:
        mint = Mint()
        self.ids = [mint.mint() for _ in range(12)]
        self.at = 0

    def mint(self) -> str:
        self.at += 1
        return self.ids[self.at - 1]


class Stage:
    """A queue that is set once, put back as it was for each play, and looked at.

    Attributes:
        queue: For setting it, past the proxy.
        mint: Where ids come from, for its jobs and for those of the call.
        jobs: The jobs that were claimed, in order.
        new: An id that no job has.
        before: What it holds when it is set.
    """

    def __init__(self, admin: Any, direct: Shell, name: str) -> None:
        self.admin = admin
        self.mint = Given()
        self.queue = direct.queue(name, mint=self.mint)
        self.jobs: list[Job] = []
        self._known: dict[tuple[str, str], str] | None = None
        self.base = f"emq:{{{name}}}:"
        self._listener = admin.pubsub()
        self._listener.subscribe(self.base + "events")

    def set(self, setting: Callable[[Stage], object]) -> None:
        """Make the state that a case begins with."""
        setting(self)
        self.new = self.mint.mint()
        self._minted = self.mint.at
        self.before = self.look()
        self.put_back()
        self.before = self.look()  # what comes from a dump may be another encoding of the same
        self._known = self.before.told

    def close(self) -> None:
        """Delete what it holds."""
        if keys := self.admin.keys(self.base + "*"):
            self.admin.delete(*keys)
        self._listener.close()

    def put_back(self) -> None:
        """Let the server hold what it held before."""
        self.mint.at = self._minted
        keys = self.admin.keys(self.base + "*")
        with self.admin.pipeline(transaction=False) as pipe:
            if keys:
                pipe.delete(*keys)
            for key, dump in self.before.dumps.items():
                pipe.restore(key, max(self.before.ttls[key], 0), dump)
            pipe.execute()
        self._messages()

    def look(self) -> Held:
        """What it holds now, and what was published since it was last asked."""
        now, *keys = self.admin.eval(_LOOK, 0, self.base + "*")
        told: dict[tuple[str, str], str] = {}
        for key, ttl, _, flat in sorted(keys):
            suffix = key.decode().removeprefix(self.base)
            for part, value in zip(flat[0::2], flat[1::2], strict=True):
                told[suffix, _text(part)] = _text(value)
            if ttl >= 0:
                told[suffix, "(ttl)"] = str(round(ttl / _MINUTE_MS))
        if self._known is not None:
            for at, value in told.items():
                if value != self._known.get(at) and value.isdigit() and int(value) > _TIMES:
                    told[at] = f"{round((int(value) - now) / _MINUTE_MS):+} minutes"
        dumps = {key: dump for key, _, dump, _ in keys}
        ttls = {key: ttl for key, ttl, _, _ in keys}
        return Held(dumps, ttls, told, self._messages())

    def _messages(self) -> list[bytes]:
        self._listener.ping()
        found: list[bytes] = []
        while (message := self._listener.get_message(timeout=20))["type"] != "pong":
            if message["type"] == "message":
                found.append(message["data"])
        return found


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


class Case(NamedTuple):
    """A row: a state and a call that changes it.

    Attributes:
        verb: The method of `Queue`.
        way: What tells it from the verb's other rows.
        set: Makes the state.
        call: Makes the call.
        limits: Bounds of the plans that are made smaller, so that few jobs take many steps.
    """

    verb: str
    way: str
    set: Callable[[Stage], object]
    call: Callable[[Queue, Stage], object]
    limits: tuple[tuple[Any, str, int], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.verb} ({self.way})" if self.way else self.verb


def waiting(count: int) -> Callable[[Stage], object]:
    """So many jobs are pending."""
    return lambda stage: [stage.queue.enqueue(b"the payload") for _ in range(count)]


def claimed(count: int = 1, more: int = 0) -> Callable[[Stage], object]:
    """So many jobs are claimed, and more are pending."""

    def claim(stage: Stage) -> None:
        waiting(count + more)(stage)
        stage.jobs = stage.queue.claim_many(count, HOUR_MS)

    return claim


def ended(stage: Stage) -> None:
    """The leases of two jobs are over."""
    claimed(2)(stage)
    for job in stage.jobs:
        stage.admin.zadd(stage.base + "active", {job.id: 1}, xx=True)


def due(stage: Stage) -> None:
    """Two jobs are scheduled, and due."""
    for _ in range(2):
        stage.queue.enqueue(b"the payload", run_at_ms=1)


def dead(stage: Stage) -> None:
    """A job is dead."""
    claimed()(stage)
    [job] = stage.jobs
    stage.queue.retry(job, delay_ms=0, max_attempts=1, error=b"the reason")


def locked(stage: Stage) -> None:
    """A job is claimed and locked."""
    claimed()(stage)
    stage.queue.lock(stage.jobs[0], HOUR_MS)


def paused(stage: Stage) -> None:
    """The queue is paused; of its jobs one is claimed, one pending and one scheduled."""
    claimed(1, 1)(stage)
    stage.queue.enqueue(b"the payload", delay_ms=HOUR_MS)
    stage.queue.pause()


def scheduled(stage: Stage) -> None:
    """A job is pending and one is scheduled."""
    waiting(1)(stage)
    stage.queue.enqueue(b"the payload", delay_ms=HOUR_MS)


def nothing(stage: Stage) -> None:
    """Nobody has used the queue."""


def _retry(attempts: int) -> Callable[[Queue, Stage], object]:
    return lambda q, s: q.retry(
        s.jobs[0], delay_ms=HOUR_MS, max_attempts=attempts, error=b"the reason"
    )


def _bulk(q: Queue, s: Stage) -> object:
    return q.enqueue_many([Item(b"the payload", job_id) for job_id in s.mint.ids[-4:]])


_JOBS: Final = emq.plans.jobs

CASES: Final = (
    Case("enqueue", "job_id", waiting(1), lambda q, s: q.enqueue(b"the payload", job_id=s.new)),
    Case("enqueue", "no job_id", waiting(1), lambda q, s: q.enqueue(b"the payload")),
    Case("enqueue", "dedup", nothing, lambda q, s: q.enqueue(b"the payload", dedup="the-key")),
    Case(
        "enqueue",
        "job_id, delay_ms",
        nothing,
        lambda q, s: q.enqueue(b"the payload", job_id=s.new, delay_ms=HOUR_MS),
    ),
    Case("enqueue_many", "job_id", nothing, _bulk),
    Case("enqueue_many", "no job_id", nothing, lambda q, s: q.enqueue_many([b"one", b"two"])),
    Case("enqueue_many", "job_id, in 2 scripts", nothing, _bulk, ((_JOBS, "_CALL_ITEMS", 2),)),
    Case("claim", "", waiting(2), lambda q, s: q.claim(HOUR_MS)),
    Case("claim_many", "", waiting(4), lambda q, s: q.claim_many(2, HOUR_MS)),
    Case(
        "claim_many",
        "in 2 scripts",
        waiting(4),
        lambda q, s: q.claim_many(2, HOUR_MS),
        ((_JOBS, "_CALL_CLAIMS", 1),),
    ),
    Case("complete", "", claimed(), lambda q, s: q.complete(s.jobs[0])),
    Case(
        "complete",
        "result_ttl_ms",
        claimed(),
        lambda q, s: q.complete(s.jobs[0], b"the result", result_ttl_ms=HOUR_MS),
    ),
    Case(
        "complete_and_claim",
        "",
        claimed(1, 2),
        lambda q, s: q.complete_and_claim(s.jobs[0], HOUR_MS),
    ),
    Case("retry", "scheduled", claimed(), _retry(2)),
    Case("retry", "dead", claimed(), _retry(1)),
    Case("delay", "", claimed(), lambda q, s: q.delay(s.jobs[0], HOUR_MS)),
    Case("delay", "excuse", claimed(), lambda q, s: q.delay(s.jobs[0], HOUR_MS, excuse=True)),
    Case("extend", "", claimed(), lambda q, s: q.extend(s.jobs[0], 2 * HOUR_MS)),
    Case("extend_many", "", claimed(2), lambda q, s: q.extend_many(s.jobs, 2 * HOUR_MS)),
    Case("give_back", "", claimed(2), lambda q, s: q.give_back(s.jobs)),
    Case("lock", "", claimed(), lambda q, s: q.lock(s.jobs[0], HOUR_MS)),
    Case("unlock", "", locked, lambda q, s: q.unlock(s.jobs[0])),
    Case("promote", "", due, lambda q, s: q.promote()),
    Case("reap", "", ended, lambda q, s: q.reap()),
    Case("sweep_stalled", "recovered", ended, lambda q, s: q.sweep_stalled(2)),
    Case("sweep_stalled", "dead", ended, lambda q, s: q.sweep_stalled(1)),
    Case("progress", "", claimed(), lambda q, s: q.progress(s.jobs[0], b"half")),
    Case("log", "", claimed(), lambda q, s: q.log(s.jobs[0], b"a line")),
    Case("update_payload", "", waiting(1), lambda q, s: q.update_payload(s.mint.ids[0], b"new")),
    Case("remove", "", waiting(1), lambda q, s: q.remove(s.mint.ids[0])),
    Case("reprocess", "", dead, lambda q, s: q.reprocess(s.mint.ids[0])),
    Case("pause", "", waiting(1), lambda q, s: q.pause()),
    Case("resume", "", paused, lambda q, s: q.resume()),
    Case("drain", "", scheduled, lambda q, s: q.drain()),
    Case("drain", "include_schedule", scheduled, lambda q, s: q.drain(include_schedule=True)),
    Case("obliterate", "", paused, lambda q, s: q.obliterate(force=True)),
    Case("set_concurrency", "", waiting(1), lambda q, s: q.set_concurrency(3)),
    Case("set_events", "", waiting(1), lambda q, s: q.set_events(True)),
    Case("publish", "", waiting(1), lambda q, s: q.publish("seen", s.mint.ids[0])),
)


class Tap:
    """Keeps what a connection says and hears, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[bool, bytes]] = []  # whether it is a request, and its bytes

    def connection(self, address: object) -> int:
        return 0

    def write(self, number: int, data: bytes) -> None:
        self.heard.append((True, bytes(data)))

    def read(self, number: int, data: bytes) -> None:
        self.heard.append((False, bytes(data)))

    def closed(self, number: int, reason: object) -> None:
        pass


class Line:
    """A shell whose connection leads through a proxy. After a failure it dials again at once."""

    def __init__(self, kind: str, server: tuple[str, int]) -> None:
        self.tap = Tap()
        self.proxy = Proxy(server)
        self.shell = Shell(kind, 3, self.proxy.url)
        waits = self.shell.connector
        self.shell.connector = waits.sibling(backoff=(0.001, 0.001), tap=self.tap)
        waits.close()
        if self.shell._loop is not None:
            self.shell._async = self.shell.connector
            self.shell.connector = Blocking(self.shell._async, self.shell._loop)

    def close(self) -> None:
        self.shell.close()
        self.proxy.close()

    def live(self) -> Link:
        """The link of a connection over which the boot has gone."""
        link = self.proxy.links[-1]
        if link.ended.is_set():
            try:
                self.shell.connector.command("PING")
            except ConnectionLost:  # it had not noticed
                self.shell.connector.command("PING")
            link = self.proxy.links[-1]
        return link


class Cut(NamedTuple):
    """Where a connection ends, and how.

    Attributes:
        direction: Whose bytes are counted.
        after: How many, from the call on.
        reset: By a reset, not by an end of stream.
        alone: The server refuses new connections until the call has ended.
        flushed: The server has forgotten its scripts.
    """

    direction: Direction
    after: int
    reset: bool = False
    alone: bool = False
    flushed: bool = False

    def __str__(self) -> str:
        what = "request" if self.direction == "to_server" else "reply"
        told = [f"{'reset' if self.reset else 'end'} after byte {self.after} of the {what}"]
        told += ["no new connection"] if self.alone else []
        return ", ".join(told + (["no script known"] if self.flushed else []))


class Course(NamedTuple):
    """How an uncut call goes over the wire.

    Attributes:
        ends: For each command that runs, the byte of the request that completes it.
        waits: For each of them, the bytes of the reply that come before it is sent.
        edges: The bytes at which something ends, in each direction.
    """

    ends: list[int]
    waits: list[int]
    edges: dict[Direction, list[int]]

    def ran(self, cut: Cut) -> int:
        """How many commands have run when the connection ends there."""
        if cut.direction == "to_server":
            return bisect_right(self.ends, cut.after)
        return bisect_left(self.waits, cut.after)

    def size(self, direction: Direction) -> int:
        return self.edges[direction][-1]


def course(heard: Iterable[tuple[bool, bytes]]) -> Course:
    """Read what a tap has heard of one call."""
    requests, answers = Decoder(), Decoder()
    sent: list[tuple[int, int, list[bytes]]] = []
    replies: list[Any] = []
    edges: dict[Direction, list[int]] = {"to_server": [0], "to_client": [0]}
    asked = answered = 0
    for is_request, data in heard:
        if is_request:
            requests.feed(data)
            for command in requests.replies():
                asked += len(encode_command(*command))
                sent.append((asked, answered, command))
            edges["to_server"].append(asked)
        else:
            answers.feed(data)
            replies += answers.replies()
            answered += len(data)
            edges["to_client"].append(answered)
    ends, waits = [], []
    for (end, wait, command), reply in zip(sent, replies, strict=True):
        missed = isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT"
        if command[0] != b"SCRIPT" and not missed:
            ends.append(end)
            waits.append(wait)
    edges["to_server"] = sorted({*edges["to_server"], *(end for end, _, _ in sent)})
    return Course(ends, waits, edges)


class Known(NamedTuple):
    """What the server holds when some commands have run, and what the same call does then."""

    held: Held
    again: str
    after: Held


class Found(NamedTuple):
    """What a case gave.

    Attributes:
        case: The row.
        ids: The ids of the jobs that are there, and of those that the call adds.
        states: What is known for each number of commands that have run.
        answer: What the call answers when it is not cut.
        course, flushed: How it goes where the server knows the scripts, and where it does not.
    """

    case: Case
    ids: list[str]
    states: list[Known]
    answer: str
    course: Course
    flushed: Course


class Player:
    """Plays one case on one shell.

    Attributes:
        found: How the call goes when nothing is cut, and what it leaves behind at each step.
        plays: How many cuts were tried.
    """

    def __init__(self, line: Line, stage: Stage, case: Case) -> None:
        self.line = line
        self.stage = stage
        self.case = case
        self.queue = line.shell.queue(stage.queue.name, mint=stage.mint)
        self.plays = 0
        stage.set(case.set)
        self._uncut(flushed=False)  # loads the scripts
        course, flushed = self._uncut(flushed=False), self._uncut(flushed=True)
        steps = len(course.ends)
        assert len(flushed.ends) == steps, "another number of commands, as no script was known"
        answer = ""
        states: list[Known] = []
        for ran in range(steps + 1):
            stage.put_back()
            if ran == steps:
                answer = repr(self._say())
            else:
                self._cut_call(Cut("to_server", course.ends[ran - 1] if ran else 0, alone=True))
            held = stage.look()
            states.append(Known(held, outcome(self._say), stage.look()))
        assert _nameless(states[0].again) == _nameless(answer), "not run, it is another call"
        self.found = Found(case, stage.mint.ids, states, answer, course, flushed)

    def cuts(self, every: int) -> Iterator[Cut]:
        """Where to cut: at each `every`th byte, and around each byte at which something ends.

        Where the script is unknown, most bytes are a script's text; these are cut more rarely, and
        if `every` leaves bytes out, in one manner each.
        """
        for flushed, way in ((False, self.found.course), (True, self.found.flushed)):
            for direction in DIRECTIONS:
                size, edges = way.size(direction), way.edges[direction]
                near = {edge + by for edge in edges for by in (-1, 0, 1)} & {*range(size + 1)}
                step = every * 61 if flushed and direction == "to_server" else every
                for after in sorted({*range(0, size, step), *near}):
                    both = every == 1 or (after in near and not flushed)
                    for reset in (False, True) if both else (after % 2 == 1,):
                        yield Cut(direction, after, reset, flushed=flushed)
                        # Between two commands a shell that sees the end dials again.
                        if both and after in edges:
                            yield Cut(direction, after, reset, alone=True, flushed=flushed)

    def play(self, cut: Cut) -> None:
        """Cut there.

        Raises:
            AssertionError: It went otherwise than it should.
        """
        self.plays += 1
        self.stage.put_back()
        if cut.flushed:
            self.stage.admin.script_flush()
        way = self.found.flushed if cut.flushed else self.found.course
        answer, error, again = self._cut_call(cut)
        held = self.stage.look()

        ran, steps = way.ran(cut), len(way.ends)
        if again:
            between = cut.direction == "to_client" and cut.after in way.edges["to_client"]
            assert between or cut.after == 0, "it dialled again for what may have run"
            assert error is None, f"it dialled again, and then {error!r}"
            ran = steps
        if error is None:
            whole = cut.direction == "to_client" and cut.after == way.size("to_client")
            assert again or whole, f"answered {answer} to a call that was cut"
            assert answer == self.found.answer, f"answered {answer}, not {self.found.answer}"
        elif not error.may_have_run:
            assert held.dumps == self.stage.before.dumps, f"{error!r} denies that it has run"
            assert not held.heard, f"{error!r} denies what was published"
        if ran == 0:
            assert held.dumps == self.stage.before.dumps, "it has run"
        want = self.found.states[ran]
        assert held.same(want.held), f"{ran} of {steps} ran, but {differ(want.held, held)}"

        said = outcome(self._say)
        after = self.stage.look()
        assert said == want.again, f"said again, it answers {said}, not {want.again}"
        assert after.same(want.after), f"said again, {differ(want.after, after)}"

    def _uncut(self, *, flushed: bool) -> Course:
        self.stage.put_back()
        self.line.live()
        if flushed:
            self.stage.admin.script_flush()
        self.line.tap.heard.clear()
        self._say()
        return course(self.line.tap.heard)

    def _say(self) -> object:
        return self.case.call(self.queue, self.stage)

    def _cut_call(self, cut: Cut) -> tuple[str, ConnectionLost | ConnectFailed | None, bool]:
        """What the call answers, how it was lost, and whether it dialled again."""
        proxy = self.line.proxy
        link = self.line.live()
        links = len(proxy.links)
        if cut.alone:
            proxy.refuse = True
        way: Way = getattr(link, cut.direction)
        way.fault = Fault(cut=way.passed + cut.after, reset=cut.reset)
        answer, error = "", None
        try:
            answer = repr(self._say())
        except (ConnectionLost, ConnectFailed) as lost:
            error = lost
        link.wait_ended()
        if cut.alone:
            proxy.refuse = False
        again = len(proxy.links) > links
        self.line.live()
        return answer, error, again


class Boot:
    """Cuts while a shell dials: its greeting and the fence, and nothing else, are on the way.

    Args:
        line, stage: As for a `Player`.
        claimed: The fence stands already; else each dial claims it.
    """

    def __init__(self, line: Line, stage: Stage, claimed: bool) -> None:
        self.line = line
        self.stage = stage
        self.claimed = claimed
        self.queue = line.shell.queue(stage.queue.name)
        self.plays = 0
        stage.set(waiting(1))

    def cuts(self, every: int) -> Iterator[Cut]:
        """Where to cut: at each `every`th byte of a boot, and at its last one."""
        self._hang_up()
        link = self.line.live()
        sizes: dict[Direction, int] = {
            "to_server": link.to_server.passed - len(b"*1\r\n$4\r\nPING\r\n"),
            "to_client": link.to_client.passed - len(b"+PONG\r\n"),
        }
        for direction, size in sizes.items():
            for after in sorted({*range(0, size, every), size - 1}):
                for reset in (False, True) if every == 1 else (after % 2 == 1,):
                    yield Cut(direction, after, reset)

    def play(self, cut: Cut) -> None:
        """Cut there, each time that the shell dials.

        Raises:
            AssertionError: It went otherwise than it should.
        """
        self.plays += 1
        self.stage.put_back()
        self._hang_up()
        setattr(self.line.proxy, cut.direction, Fault(cut=cut.after, reset=cut.reset))
        try:
            with suppress(ConnectionLost, ConnectFailed):  # as the shell has noticed, or not
                self.line.shell.connector.command("PING")
                raise AssertionError("the boot was cut, and PING was answered")
            for dial in (self.queue.claim, self.line.shell.connector.sibling):
                self._disclaim()
                try:
                    dial()
                except ConnectFailed as error:
                    feared = error.may_have_run
                else:
                    raise AssertionError("the boot was cut, and the call was answered")
                assert not feared, "the boot was cut, and something may have run"
        finally:
            setattr(self.line.proxy, cut.direction, Fault())
        assert self.stage.look().dumps == self.stage.before.dumps, "something has run"
        job = self.queue.claim()
        assert job is not None, "there is a job, and none was claimed afterwards"
        self.queue.complete(job)

    def _hang_up(self) -> None:
        self.line.live().cut()
        self._disclaim()

    def _disclaim(self) -> None:
        if not self.claimed:
            self.stage.admin.delete(VERSION_KEY)


def outcome(call: Callable[[], object]) -> str:
    """What a call answers, or the name of the error that it is refused with."""
    try:
        return repr(call())
    except EmqError as error:
        return type(error).__name__


def _nameless(answer: str) -> str:
    return re.sub(r"'JOB\w+'", "an id", answer)


def differ(want: Held, held: Held) -> str:
    """How a look differs from the one that was wanted."""
    parts = [
        f"{'/'.join(at)} is {held.told.get(at)}, not {want.told.get(at)}"
        for at in sorted(want.told.keys() | held.told.keys())
        if want.told.get(at) != held.told.get(at)
    ]
    if want.heard != held.heard:
        parts.append(f"{held.heard} was published, not {want.heard}")
    return "; ".join(parts)


@contextmanager
def staged(server: Any, kind: str, name: str) -> Iterator[tuple[Line, Stage]]:
    """A line of one shell to `server`, which has `host`, `port`, `url` and `admin`; and a queue."""
    with ExitStack() as stack:
        direct = Shell("threads", 3, server.url)
        stack.callback(direct.close)
        line = Line(kind, (server.host, server.port))
        stack.callback(line.close)
        stage = Stage(server.admin, direct, name)
        stack.callback(stage.close)
        yield line, stage


@contextmanager
def player(server: Any, kind: str, case: Case, name: str) -> Iterator[Player]:
    """A player of one case on one shell."""
    with staged(server, kind, name) as (line, stage), ExitStack() as limits:
        for module, limit, value in case.limits:
            limits.enter_context(patch.object(module, limit, value))
        yield Player(line, stage, case)


# What the table says of a part of the settings or of a row that has changed.
_CHANGES: Final = {
    "payload": "the new payload",
    "progress": "the text",
    "lock": "locked",
    "paused": "paused",
    "concurrency": "the new limit",
    "events": "the new setting",
}


def changes(before: Held, after: Held, ids: Iterable[str]) -> str:
    """What became of a queue, in a few words."""
    moves: dict[str, list[str]] = {}
    for job_id in ids:
        came, went = before.place(job_id), after.place(job_id)
        if came != went:
            moves.setdefault(went, []).append("new" if came == "gone" else came)
    said = [f"{', '.join(dict.fromkeys(came))} -> {went}" for went, came in moves.items()]
    both = before.told.keys() & after.told.keys()
    for at in sorted(before.told.keys() | after.told.keys()):
        suffix, part = at
        if before.told.get(at) == after.told.get(at):
            continue
        if suffix == "active" and at in both:
            said.append("the lease ends later")
        elif suffix.endswith(":logs"):
            said.append("a line more")
        elif part == "result":
            said.append("its outcome")
        elif part in _CHANGES and (suffix == "meta" or (suffix, "state") in both):
            said.append(_CHANGES[part] if at in after.told else f"not {_CHANGES[part]}")
    if after.heard and not said:
        said.append("published")
    return ", ".join(dict.fromkeys(said))


class Row(NamedTuple):
    """A line of the table."""

    verb: str
    request: str
    reply: str
    again: str


def row(found: Found) -> Row:
    """What a case gave, in the words of the table."""
    first, last = found.states[0], found.states[-1]
    steps = len(found.states) - 1
    least = found.course.ran(Cut("to_client", 1))
    reply = changes(first.held, last.held, found.ids)
    return Row(
        found.case.name,
        "as it was" if steps == 1 else f"0-{steps - 1} of {steps} steps",
        reply if least == steps else f"{least}-{steps} of {steps} steps: {reply}",
        _said(last.again, changes(last.held, last.after, found.ids)),
    )


def _said(answer: str, more: str) -> str:
    if "Receipt(" in answer:
        [admitted] = set(re.findall("admitted=([A-Z][a-z]+)", answer))
        return "another job" if more else f"admitted {admitted}"
    if "Job(" in answer:
        return "the next Jobs" if answer.startswith("[") else "the next Job"
    if answer.startswith("['"):
        return "their ids"
    if answer == repr(Sweep([], [])):
        return "an empty Sweep"
    return f"{answer}, {more}" if more else answer


_WIDTHS: Final = (29, 14, 32, 19)  # 100 characters, with what is between


def table(rows: Iterable[Row]) -> str:
    """The table, with verbs that do alike in one row."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in rows:
        alike.setdefault(one[1:], []).append(one.verb)
    lines = [["verb", "request cut", "reply cut", "said again"], ["-" * n for n in _WIDTHS]]
    for cells, verbs in alike.items():
        wrapped = [
            textwrap.wrap(cell, width)
            for cell, width in zip((", ".join(verbs), *cells), _WIDTHS, strict=True)
        ]
        lines += [list(line) for line in zip_longest(*wrapped, fillvalue="")]
    return "\n".join(
        "  ".join(cell.ljust(n) for cell, n in zip(line, _WIDTHS, strict=True)).rstrip()
        for line in lines
    )


MODULE: Final = Path(emq.queue.__file__)
BEGIN: Final = "What a lost connection leaves behind, by verb:\n\n"
END: Final = "\n\nEach row is what `python -m tests.matrix` measures.\n"


def write(told: str) -> None:
    """Put the table where the module's docstring has it."""
    text = MODULE.read_text()
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    MODULE.write_text(before + BEGIN + told + END + after)


class Server(NamedTuple):
    """A Valkey of the command's own."""

    host: str
    port: int
    url: str
    admin: Any


def main(argv: list[str] | None = None) -> int:
    """Play what is asked for and print what was found; 1 where a play went otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = sorted({case.verb for case in CASES} | {"boot"})
    parser.add_argument("--only", choices=verbs, metavar="VERB", help="one verb, or boot")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="byte; 1")
    parser.add_argument("--shell", choices=SHELLS, help="one of the shells")
    parser.add_argument("--json", action="store_true", help="a line for each row and shell")
    parser.add_argument("--write", action="store_true", help="the table into emq/queue.py")
    options = parser.parse_args(argv)
    if options.every < 1:
        parser.error("--every is a number of bytes, from 1")
    if options.write and options.only:
        parser.error("--write needs all rows; leave out --only")
    try:
        with Embedded(tcp=True) as valkey, redis.Redis(host=valkey.host, port=valkey.port) as admin:
            return _run(Server(valkey.host, valkey.port, valkey.url, admin), options)
    except (EmbeddedError, redis.ConnectionError) as error:
        print(f"python -m tests.matrix: no server: {error}", file=sys.stderr)
        return 3


def _run(server: Server, options: argparse.Namespace) -> int:
    rows: list[Row] = []
    plays = faults = 0
    for kind in [options.shell] if options.shell else SHELLS:
        found = []
        for case in CASES:
            if options.only in (None, case.verb):
                with player(server, kind, case, "matrix") as plain:
                    wrong = _play(plain, options.every, f"{case.name}, {kind}")
                    found.append(row(plain.found))
                    _tell(options.json, kind, plain, wrong)
                plays, faults = plays + plain.plays, faults + len(wrong)
        if options.only in (None, "boot"):
            for claimed in (True, False):
                name = f"boot ({'fenced' if claimed else 'not fenced yet'}), {kind}"
                with staged(server, kind, "matrix") as (line, stage):
                    boot = Boot(line, stage, claimed)
                    wrong = _play(boot, options.every, name)
                plays, faults = plays + boot.plays, faults + len(wrong)
        if rows and found != rows:
            print("the shells differ in what they leave behind", file=sys.stderr)
            faults += 1
        rows = found
    if not options.json and rows:
        print(table(rows))
    if options.write and not faults:
        write(table(rows))
    print(f"{plays} plays, {faults} went otherwise", file=sys.stderr)
    return 1 if faults else 0


def _play(what: Player | Boot, every: int, name: str) -> list[str]:
    wrong = []
    for cut in what.cuts(every):
        if sys.stderr.isatty():
            print(f"\r\x1b[K{name}: {cut}", end="", file=sys.stderr, flush=True)
        try:
            what.play(cut)
        except AssertionError as error:
            wrong.append(f"{name}, {cut}: {error}")
        except redis.ConnectionError:  # of the one who sets the stage: the server has gone
            raise
        except Exception as error:  # neither an answer nor a lost connection
            wrong.append(f"{name}, {cut}: {error!r}")
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    for each in wrong[:5]:
        print(each, file=sys.stderr)
    if len(wrong) > 5:
        print(f"{name}: {len(wrong) - 5} more", file=sys.stderr)
    return wrong


def _tell(as_json: bool, kind: str, plain: Player, wrong: list[str]) -> None:
    if as_json:
        told = {
            **row(plain.found)._asdict(),
            "verb": plain.case.verb,
            "way": plain.case.way,
            "shell": kind,
            "request_bytes": plain.found.course.size("to_server"),
            "reply_bytes": plain.found.course.size("to_client"),
            "steps": len(plain.found.course.ends),
            "plays": plain.plays,
            "wrong": wrong,
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(exit_code(main))

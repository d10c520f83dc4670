"""What a scenario is, and what scenarios are made of.

A scenario plays a piece of the wire: it says plain commands, runs plans of ours with `yield from`,
and compares what it finds with what the wire promises. It is a plan, written once, and both shells
play it. Beside commands it may yield a wish, which only a shell can fulfil:

    Listen(channel)   dial a second connection, on RESP3, and subscribe
    Ask(command)      what the server answers on that connection
    Hear(seconds)     the next message, or None if none comes in time

Nothing waits for a lease or a delay to end: its score is moved into the past.

The names of keys are written out here and in the scenarios, as the wire has them, so that a wrong
name in the client is found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from resp import Command, Plan, RespError, Script, ScriptCall, Step

from ..errors import EmqError, JobError
from ..fence import WIRE_VERSION
from ..ids import Mint
from ..job import Blob, Item, Job
from ..keyspace import Keyspace
from ..plans import jobs, schedule
from ..plans.reads import answered

T = TypeVar("T")

LEASE_MS: Final = 60_000
_LONG_AGO: Final = 1
_SHOWN: Final = 200  # characters of a value


class Listen(NamedTuple):
    """A wish: a subscription to `channel`, on a connection of its own. It answers None."""

    channel: str


class Ask(NamedTuple):
    """A wish: what the server answers to `command` on the subscription's connection."""

    command: tuple[Any, ...]


class Hear(NamedTuple):
    """A wish: the next message's payload; None if none comes within `seconds`."""

    seconds: float


Wish: TypeAlias = Listen | Ask | Hear
Scene: TypeAlias = Generator[Step | Wish, Any, T]


class Mismatch(EmqError):
    """The server, or the client, does not do what the wire promises. The text can be printed."""


class Missing(NamedTuple):
    """In a scenario's place: this client cannot play it.

    Attributes:
        needs: What it lacks.
    """

    needs: str


def expect(what: str, found: object, wanted: object) -> None:
    """Go on if what was found is what the wire promises.

    Raises:
        Mismatch: It is not.
    """
    if found != wanted:
        raise Mismatch(f"{what}: {_shown(found)} instead of {_shown(wanted)}")


def expect_between(what: str, found: float | None, least: float, most: float) -> None:
    """Go on if a number is there, and within bounds."""
    if found is None or not least <= found <= most:
        raise Mismatch(f"{what}: {_shown(found)} is not within {least:.0f}..{most:.0f}")


def refused(
    kind: type[JobError], what: str, plan: Plan[Any], words: str | None = None
) -> Plan[None]:
    """Go on if a plan is refused.

    Args:
        kind: With this error.
        what: What the plan does.
        words: And these are the server's words, all of them.
    """
    try:
        answer = yield from plan
    except kind as error:
        if words is not None:
            expect(f"the refusal of {what}", error.detail, words)
        return
    raise Mismatch(f"{what} answered {_shown(answer)} instead of a refusal, {kind.__name__}")


def say(*command: Any) -> Plan[Any]:
    """Say one plain command.

    Raises:
        ServerError: It was answered with an error.
    """
    return answered(str(command[0]), (yield command))


def clock() -> Plan[int]:
    """Answer the server's time, in ms since 1970."""
    seconds, micros = yield from say("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def rescripted(plan: Plan[T], change: Callable[[Script], Script]) -> Plan[T]:
    """Answer a plan with other scripts in the place of its own."""

    def changed(command: Command) -> Command:
        if isinstance(command, ScriptCall):
            return ScriptCall(change(command.script), command.keys, command.args)
        return command

    resume: Callable[[Any], Step] = plan.send
    fact: Any = None
    while True:
        try:
            step = resume(fact)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            fact = yield [*map(changed, step)] if isinstance(step, list) else changed(step)
            resume = plan.send
        except RespError as error:
            fact = error
            resume = plan.throw


def to_next_wish(scene: Scene[None], fact: Any) -> Plan[Wish | None]:
    """Play a scene up to its next wish, and answer that; None at the scene's end.

    A shell runs this on its connector, fulfils the wish, and runs it again.

    Args:
        fact: What fulfilled the wish before, or the error that did not let it; None at first.
    """
    resume: Callable[[Any], Step | Wish] = (
        scene.throw if isinstance(fact, Exception) else scene.send
    )
    while True:
        try:
            step = resume(fact)
        except StopIteration:
            return None
        if isinstance(step, Listen | Ask | Hear):
            return step
        try:
            fact = yield step
            resume = scene.send
        except RespError as error:
            fact = error
            resume = scene.throw


class Trial:
    """A queue that a scenario has for itself.

    Args:
        queue: Its name, which nobody has used.
        wire_version: What the connection claimed.

    Attributes:
        keys: The client's names of its keys, for plans.
        base: The wire's, which all of them begin with.
    """

    def __init__(self, queue: str, wire_version: str = WIRE_VERSION) -> None:
        self.queue = queue
        self.keys = Keyspace(queue)
        self.base = "emq:{" + queue + "}:"
        self.wire_version = wire_version
        self.minter = Mint()

    def beside(self, suffix: str) -> Trial:
        """Answer another queue, whose name begins with this one's."""
        return Trial(f"{self.queue}.{suffix}", self.wire_version)

    def key(self, suffix: str) -> str:
        return self.base + suffix

    def row_key(self, job_id: str) -> str:
        return f"{self.base}job:{job_id}"

    def mint(self) -> str:
        """A fresh job's id."""
        return self.minter.mint()

    # What many scenarios do on their way.

    def enqueue(self, payload: Blob = b"work", delay_ms: int | None = None) -> Plan[str]:
        """Add a job under a fresh id, and answer that."""
        id = self.mint()
        receipt = yield from self.admit(payload, id, delay_ms)
        expect("the receipt", receipt, (id, True))
        return id

    def admit(
        self, payload: Blob, job_id: str, delay_ms: int | None = None
    ) -> Plan[tuple[str, bool]]:
        """Add a job under an id; answer whether it was admitted, and as which."""
        receipt = yield from jobs.enqueue(
            self.keys, self.minter, Item(payload, job_id, delay_ms=delay_ms)
        )
        return receipt.job_id, receipt.admitted

    def enqueue_some(self, count: int) -> Plan[list[str]]:
        """Add jobs; their ids, oldest first."""
        ids = []
        for _ in range(count):
            ids.append((yield from self.enqueue()))
        return ids

    def claim(self, job_id: str | None = None, token: int = 1) -> Plan[Job]:
        """Take the oldest job, which must be there, and under this token.

        Args:
            job_id: It must be this one; None takes any.
        """
        job = yield from jobs.claim(self.keys, LEASE_MS)
        if job is None:
            raise Mismatch("a claim: nothing instead of a job")
        expect("the claimed job's id", job.id, job_id or job.id)
        expect("the claim's token", job.token, token)
        return job

    def claim_nothing(self, why: str) -> Plan[None]:
        expect(f"a claim {why}", (yield from jobs.claim(self.keys, LEASE_MS)), None)

    def complete(
        self, job: Job | str, token: int | None = None, result: Blob | None = None
    ) -> Plan[None]:
        return jobs.complete(self.keys, job, result, token, None)

    def retry(self, job: Job, max_attempts: int, error: str, delay_ms: int = 60_000) -> Plan[str]:
        return jobs.retry(self.keys, job, delay_ms, max_attempts, error, None)

    def delay(self, job: Job | str, delay_ms: int, token: int | None = None) -> Plan[None]:
        return schedule.delay(self.keys, job, delay_ms, None, token, False)

    def dead(self, error: str = "gave up") -> Plan[str]:
        """Add a job, and let it fail for good; its id."""
        id = yield from self.enqueue()
        outcome = yield from self.retry((yield from self.claim(id)), 1, error)
        expect("a retry at the last attempt", outcome, "dead")
        return id

    def unseen(self, plan: Plan[T]) -> Plan[T]:
        """Run a plan with copies of its scripts that the server cannot have.

        So its answers come by way of NOSCRIPT, a load and a second call. The server's cache is
        other clients', too, and is not flushed for this.
        """
        copies: dict[str, Script] = {}

        def copy(script: Script) -> Script:
            if script.sha not in copies:
                source = script.source + f"\n-- {self.queue}\n".encode()
                copies[script.sha] = Script(script.name, source)
            return copies[script.sha]

        answer = yield from rescripted(plan, copy)
        cached = yield from say("SCRIPT", "EXISTS", *(each.sha for each in copies.values()))
        expect("the scripts that were loaded on the way", cached, [1] * len(copies))
        return answer

    # Letting time pass.

    def lapse(self, job_id: str) -> Plan[None]:
        """Let a lease end."""
        yield from self._past("active", job_id)

    def fall_due(self, job_id: str) -> Plan[None]:
        """Let a scheduled job fall due, and promote it; no other may be due."""
        expect("a promote before the job is due", (yield from schedule.promote(self.keys, 10)), 0)
        yield from self._past("schedule", job_id)
        expect("a promote when the job is due", (yield from schedule.promote(self.keys, 10)), 1)
        yield from self.expect_places([job_id], "pending")

    def _past(self, place: str, job_id: str) -> Plan[None]:
        moved = yield from say("ZADD", self.key(place), "XX", "CH", _LONG_AGO, job_id)
        expect(f"entries of {place} that could be moved into the past", moved, 1)

    # Looking, past the client.

    def row(self, job_id: str) -> Plan[dict[str, bytes]]:
        """All fields of a job's row."""
        reply = yield from say("HGETALL", self.row_key(job_id))
        # RESP3 answers a map, RESP2 a list of fields and values in turn.
        pairs = (
            reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        )
        return {name.decode("latin-1"): value for name, value in pairs}

    def exists(self, key: str) -> Plan[bool]:
        return bool((yield from say("EXISTS", key)))

    def score(self, place: str, job_id: str) -> Plan[float | None]:
        score = yield from say("ZSCORE", self.key(place), job_id)
        return None if score is None else float(score)

    def newest_first(self, place: str) -> Plan[list[str]]:
        """The ids in a place whose scores are all 0."""
        ids = yield from say("ZRANGE", self.key(place), "+", "-", "BYLEX", "REV")
        return [id.decode("latin-1") for id in ids]

    def expect_row(self, job_id: str, **fields: bytes) -> Plan[None]:
        """Go on if a row has these values in these fields, whatever it has in others."""
        row = yield from self.row(job_id)
        for name, value in fields.items():
            expect(f"the row's {name}", row.get(name), value)

    def expect_gone(self, job_id: str) -> Plan[None]:
        expect("the row of a job that is gone", (yield from self.row(job_id)), {})

    def expect_due(
        self, place: str, job_id: str, earliest: int, latest: int, ms: int
    ) -> Plan[None]:
        """Go on if a score is `ms` from when something was done, by the server's clock."""
        score = yield from self.score(place, job_id)
        expect_between(f"the score in {place}", score, earliest + ms, latest + ms)

    def expect_places(self, job_ids: Iterable[str], place: str | None) -> Plan[None]:
        """Go on if jobs are in one place, and in no other."""
        for id in job_ids:
            for each in ("pending", "active", "schedule", "dead"):
                score = yield from self.score(each, id)
                expect(f"whether the job is in {each}", score is not None, each == place)


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


__all__ = [
    "LEASE_MS",
    "Ask",
    "Hear",
    "Listen",
    "Mismatch",
    "Missing",
    "Scene",
    "Trial",
    "Wish",
    "clock",
    "expect",
    "expect_between",
    "refused",
    "rescripted",
    "say",
    "to_next_wish",
]

"""Run every order in which a few actors' steps can meet at a queue, and look after each step.

    python -m tests.explore [--only NAME] [--limit N] [--seed N] [--split] [--json]

`tests.explored` says who does what. A step is one command, as a plan of `emq.plans` yields it, so
it is what the server does at once; the explorer decides whose comes next, in every order that there
is, on a real Valkey of its own. After each step the queue is looked at behind the code's back; what
must hold then is listed in `tests.explored.WATCHED`, and `tests.rules` knows how. At the end of
each order, leases and delays end, and all that is left is worked off: each job that is not dead can
be done, exactly once.

Orders that lead to the same state go on as one: what comes next depends on nothing but the queue's
keys, what the actors hold and what has been counted so far. And what a command does depends on the
keys alone, so it is said once where they hold the same. Thus all orders are covered, and counted,
in seconds. Keys are put back as they were, byte by byte; scores in the future are kept as seconds
from now, so that time stands still between steps. The columns: orders; states that they lead
through; commands that the server was given.

An order that breaks a rule is printed step by step, with what was answered and the state after it;
no shorter order does. Then the run ends with 1. `--split` explores a completion in separate
commands instead, as a queue without scripts has it, and prints how a job comes to be done twice.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import resp
from bench.ending import exit_code
from emq.embedded import Embedded, EmbeddedError
from emq.errors import EmqError, JobError
from emq.job import Job
from emq.keyspace import Keyspace
from emq.plans import admin, jobs, recovery, schedule
from emq.plans.work import Taken
from resp import Command, Connector, Plan, Script, ServerError
from resp.plan import command_name, frame
from tests import numbers
from tests.explored import (
    FOREIGN,
    HOUR,
    SCENARIOS,
    SPLIT,
    Finished,
    Held,
    Program,
    Scenario,
    lane_claim,
    lane_resume,
)
from tests.rules import (
    LOOK,
    PUT,
    TRANSITIONS,
    Breach,
    Ledger,
    Look,
    completed,
    is_script,
    judge,
    standing,
    text_of,
)

_QUEUE: Final = "explored"
_BATCH: Final = 64  # steps that are said in one flush

# All that could be waited for is over.
_EASE: Final = Script(
    "ease",
    """
for _, place in ipairs({ 'active', 'schedule' }) do
  for _, id in ipairs(redis.call('ZRANGE', KEYS[1] .. place, '0', '-1')) do
    redis.call('ZADD', KEYS[1] .. place, '1', id)
  end
end
return 1
""",
)


class Cursor(NamedTuple):
    """How far an actor has come.

    Attributes:
        step: The number of the step of its program that is next, or that it is in.
        replies: What that step's plan was answered so far.
        held: The jobs that its last claim answered.
    """

    step: int
    replies: tuple[Any, ...]
    held: Held


_START: Final = Cursor(0, (), ())


class Ended(NamedTuple):
    """A plan is over: what it answered, or what it raised."""

    value: Any
    error: Exception | None = None


class Node:
    """A state that some orders lead to, and one of the shortest of them."""

    __slots__ = ("cursors", "ledger", "look", "orders", "parent", "said")

    def __init__(
        self,
        look: Look,
        cursors: tuple[Cursor, ...],
        ledger: Ledger,
        parent: Node | None,
        said: tuple[str, str, str],
        orders: int,
    ) -> None:
        self.look = look
        self.cursors = cursors
        self.ledger = ledger
        self.parent = parent
        self.said = said  # who did what, and what was answered
        self.orders = orders

    def key(self) -> tuple[Any, ...]:
        """What all that comes next depends on. Replies are lists, so their text stands for them."""
        cursors = tuple((step, held, repr(replies)) for step, replies, held in self.cursors)
        return self.look, cursors, self.ledger


class Edge(NamedTuple):
    """An actor's next command, in a state."""

    node: Node
    actor: int
    command: Command


class Done(NamedTuple):
    """What a command did: its reply, what the keys hold then, and whether no byte changed."""

    reply: Any
    look: Look
    same: bool


class Violation(Exception):
    """An order that broke a rule.

    Attributes:
        breach: Which rule, and how.
        steps: Who did what, what was answered, and the state after it.
        start: The state before the first step.
    """

    def __init__(self, scenario: str, breach: Breach, node: Node) -> None:
        super().__init__(scenario, breach)
        self.scenario = scenario
        self.breach = breach
        self.steps: list[tuple[str, str, str, str]] = []
        while node.parent is not None:
            self.steps.append((*node.said, node.look.told()))
            node = node.parent
        self.steps.reverse()
        self.start = node.look.told()

    def __str__(self) -> str:
        lines = [f"{self.scenario}: {self.breach.rule}: {self.breach.told}", f"      {self.start}"]
        for number, (who, what, answer, state) in enumerate(self.steps, 1):
            lines += [f"  {number:2}  {who}: {what} -> {answer}", f"      {state}"]
        return "\n".join(lines)

    def json(self) -> str:
        """One line for programs."""
        told = {"name": self.scenario, "rule": self.breach.rule, "told": self.breach.told}
        return json.dumps({**told, "start": self.start, "steps": self.steps})


@dataclass(frozen=True)
class Explored:
    """How a scenario went.

    Attributes:
        orders: How many orders there are, or were run where `whole` is False.
        states: How many different states they went through.
        commands: How many the server was given.
        seconds: How long it took.
        scripts: The transitions that were called.
        whole: Every order was run.
    """

    name: str
    orders: int
    states: int
    commands: int
    seconds: float
    scripts: frozenset[str]
    whole: bool

    def __str__(self) -> str:
        orders = f"{self.orders:,}" if self.whole else "not all"
        return (
            f"{self.name:40} {orders:>12} {self.states:8,} {self.commands:8,} {self.seconds:8.2f}"
        )

    def json(self) -> str:
        """One line for programs."""
        return json.dumps({**asdict(self), "scripts": sorted(self.scripts)})


class Explorer:
    """Runs scenarios on one server, whose database it empties.

    Args:
        limit: Go on from this many states of a depth at most, drawn by `seed`; None for all.
    """

    def __init__(self, connector: Connector, limit: int | None = None, seed: int = 0) -> None:
        self._connector = connector
        self._limit = limit
        self._random = random.Random(seed)
        # In a flush, a script that is loaded only when it is missed would run after the look.
        scripts = (*(each.script for each in TRANSITIONS.values()), *FOREIGN, LOOK, PUT, _EASE)
        connector.pipeline([("SCRIPT", "LOAD", script.source) for script in scripts])

    def explore(self, scenario: Scenario) -> Explored:
        """Run every order of a scenario.

        Raises:
            Violation: One broke a rule; none that is shorter does.
        """
        began = time.monotonic()
        meeting = _Meeting(self._connector, scenario)
        level = [meeting.begin()]
        orders, states, whole = 0, 0, True
        while level:
            states += len(level)
            edges = [edge for node in level for edge in meeting.edges(node)]
            orders += sum(node.orders for node in level if meeting.is_over(node))
            below: dict[Any, Node] = {}
            for child in meeting.follow(edges):
                known = below.setdefault(child.key(), child)
                if known is not child:
                    known.orders += child.orders
            level = list(below.values())
            if self._limit is not None and len(level) > self._limit:
                whole = False
                level = self._random.sample(level, self._limit)
        seconds = time.monotonic() - began
        return Explored(
            scenario.name, orders, states, meeting.commands, seconds, meeting.called, whole
        )


class _Meeting:
    """The states of one scenario, and the ways between them.

    Attributes:
        commands: How many the server was given.
        called: The transitions among them.
    """

    def __init__(self, connector: Connector, scenario: Scenario) -> None:
        self._connector = connector
        self._scenario = scenario
        self._keys = Keyspace(_QUEUE)
        self._names = tuple(scenario.actors)
        self._programs = tuple(scenario.actors.values())
        self._looks: dict[Any, Look] = {}  # one for all that are equal
        self._done: dict[tuple[Look, bytes], Done] = {}
        self._worked_off: set[Look] = set()
        self.commands = 0
        self.called: frozenset[str] = frozenset()

    def begin(self) -> Node:
        """Prepare the queue; answer the state before the first step."""
        self._connector.command("FLUSHDB", "SYNC")
        held: Held = ()
        for step in self._scenario.start:
            plan = step.plan(self._keys, held)
            if plan is not None:
                held = _held(held, step.claims, Ended(self._connector.run(plan)))
        look = self._look()
        ledger = Ledger(frozenset(), look.ended("completed"), look.ended("failed"))
        cursors = tuple(_passed(program, _START, self._keys) for program in self._programs)
        node = Node(look, cursors, ledger, None, ("", "", ""), 1)
        self._check(node, standing(look, ledger))
        return node

    def edges(self, node: Node) -> Iterator[Edge]:
        """Answer what may come next; where that is nothing, all that is left is worked off."""
        over = True
        for actor, program in enumerate(self._programs):
            command = _next(program, node.cursors[actor], self._keys)
            if command is not None:
                over = False
                yield Edge(node, actor, command)
        if over and node.look not in self._worked_off:
            self._worked_off.add(node.look)
            self._work_off(node)

    def is_over(self, node: Node) -> bool:
        """Whether all programs have come to their ends."""
        ends = map(len, self._programs)
        return all(cursor.step == end for cursor, end in zip(node.cursors, ends, strict=True))

    def follow(self, edges: Sequence[Edge]) -> Iterator[Node]:
        """Take each edge; answer where it leads.

        Raises:
            Violation: It broke a rule.
        """
        # What a command does depends on the keys alone: once is enough, whoever says it.
        keys = [(edge.node.look, frame(edge.command)) for edge in edges]
        new = {k: edge for k, edge in zip(keys, edges, strict=True) if k not in self._done}
        ways = list(new.items())
        for at in range(0, len(ways), _BATCH):
            batch = ways[at : at + _BATCH]
            flush: list[Command] = []
            for _, edge in batch:
                flush += [edge.node.look.put(), edge.command, LOOK()]
            replies = iter(self._connector.pipeline(flush))
            for key, _ in batch:
                digest, reply, found = islice(replies, 3)
                look = Look(self._keys.base, found)
                done = Done(reply, self._looks.setdefault(look.key, look), look.digest == digest)
                self._done[key] = done
        self.commands += len(ways)
        said = {edge.command.script.name for _, edge in ways if is_script(edge.command)}
        self.called |= said & TRANSITIONS.keys()
        for key, edge in zip(keys, edges, strict=True):
            yield self._led(edge, self._done[key])

    def _led(self, edge: Edge, done: Done) -> Node:
        """Answer where an edge leads."""
        node, actor, command = edge
        program, cursor = self._programs[actor], node.cursors[actor]
        step = program[cursor.step]
        replies = (*cursor.replies, done.reply)
        moved = _drive(step.plan(self._keys, cursor.held), replies)
        told = step.told
        if cursor.replies or not isinstance(moved, Ended) or not is_script(command):
            told += f" ({_name(command)})"  # one of several
        look = done.look
        ledger, breaches = judge(command, done.reply, node.look, look, done.same, node.ledger)
        if isinstance(moved, Ended):
            if moved.error is not None and not isinstance(moved.error, JobError):
                breaches.append(Breach("answer", str(moved.error)))
            if isinstance(moved.value, Finished):
                ledger, more = completed(ledger, moved.value.id)
                breaches += more
            held = _held(cursor.held, step.claims, moved)
            cursor = _passed(program, Cursor(cursor.step + 1, (), held), self._keys)
        else:
            cursor = cursor._replace(replies=replies)
        cursors = (*node.cursors[:actor], cursor, *node.cursors[actor + 1 :])
        said = (self._names[actor], told, text_of(done.reply))
        child = Node(look, cursors, ledger, node, said, node.orders)
        self._check(child, breaches)
        return child

    def _check(self, node: Node, breaches: Iterable[Breach]) -> None:
        for breach in breaches:
            if breach.rule in self._scenario.watches:
                raise Violation(self._scenario.name, breach, node)

    def _look(self) -> Look:
        look = Look(self._keys.base, self._connector.pipeline([LOOK()])[0])
        return self._looks.setdefault(look.key, look)

    def _work_off(self, node: Node) -> None:
        """Do all that is left to do, as a queue would in the end.

        Raises:
            Violation: A job could not be done, or was done twice.
        """
        run, keys = self._connector.run, self._keys
        self._connector.pipeline([node.look.put()])
        run(admin.resume(keys))
        if "paused" in node.look.values:
            run(lane_resume(keys))
        due = sorted(id for id in node.look.rows if node.look.place(id) != "dead")
        done: list[str] = []
        # Rounds enough for each job to wait for each of the others.
        for _ in due:
            self._connector.pipeline([_EASE([keys.base])])
            run(recovery.reap(keys, 100))
            run(schedule.promote(keys, 100))
            for job in self._claim_all():
                run(jobs.complete(keys, job, None, None, None))
                done.append(job.id)
        left = self._look()
        dead = set(left.inside("dead"))
        breach = None
        if sorted(done) != sorted(set(due) - dead):
            breach = f"done were {text_of(sorted(done))}, of {text_of(due)}"
        elif left.rows.keys() - dead:
            breach = f"left over are {text_of(sorted(left.rows.keys() - dead))}"
        elif stale := [name for name in ("gactive", "ring") if name in left.values]:
            breach = f"nobody works, but there is {stale[0]}"
        if breach:
            self._check(node, [Breach("end", f"{breach}; then {left.told()}")])

    def _claim_all(self) -> list[Job]:
        run, keys = self._connector.run, self._keys
        found = []
        while claimed := run(jobs.claim_many(keys, 10, HOUR)):
            found += claimed
        # Lanes are for other nodes to serve; the flat ones' verbs know nothing of them.
        while laned := run(lane_claim(keys)):
            found.append(laned)
        return found


def _name(command: Command) -> str:
    return command.script.name if is_script(command) else command_name(command)


def _drive(plan: Plan[Any] | None, replies: Iterable[Any]) -> Command | Ended:
    """Answer what a plan says next, after so many replies, or how it ended."""
    if plan is None:
        return Ended(None)
    given = iter(replies)
    fact: Any = None
    try:
        while True:
            step = plan.send(fact)
            commands = step if isinstance(step, list) else [step]
            got = list(islice(given, len(commands)))
            if len(got) < len(commands):
                return commands[len(got)]
            fact = got if isinstance(step, list) else got[0]
    except StopIteration as end:
        return Ended(end.value)
    except (EmqError, ServerError) as error:
        return Ended(None, error)
    finally:
        plan.close()


def _next(program: Program, cursor: Cursor, keys: Keyspace) -> Command | None:
    """Answer an actor's next command; None at the end of its program."""
    if cursor.step == len(program):
        return None
    command = _drive(program[cursor.step].plan(keys, cursor.held), cursor.replies)
    return None if isinstance(command, Ended) else command


def _passed(program: Program, cursor: Cursor, keys: Keyspace) -> Cursor:
    """Leave out the steps with nothing to do: they say nothing, so they meet nobody."""
    while cursor.step < len(program):
        step = program[cursor.step]
        if not isinstance(_drive(step.plan(keys, cursor.held), ()), Ended):
            break
        cursor = Cursor(cursor.step + 1, (), cursor.held)
    return cursor


def _held(held: Held, claims: bool, ended: Ended) -> Held:
    """Answer what an actor holds after a step."""
    if not claims or ended.error is not None:
        return held
    match ended.value:
        case Job() as job:
            return (job,)
        case Taken(taken) | (_, Taken(taken)) | list(taken):
            return tuple(taken)
        case _:
            return ()


# The command.


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; answer its exit code."""
    told = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=told)
    parser.add_argument("--only", metavar="NAME", help="the scenarios whose names begin so")
    parser.add_argument(
        "--limit", type=numbers.count, metavar="N", help="go on from N states of a depth at most"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the states for --limit; 0")
    parser.add_argument("--split", action="store_true", help="a completion without a script")
    parser.add_argument("--json", action="store_true", help="a line of JSON a scenario")
    options = parser.parse_args(argv)
    chosen = [
        scenario
        for scenario in ((SPLIT,) if options.split else SCENARIOS)
        if scenario.name.startswith(options.only or "")
    ]
    if not chosen:
        parser.error(f"no scenario's name begins with {options.only!r}")
    try:
        with Embedded() as server, closing(resp.connect(server.url)) as connector:
            return _explore(Explorer(connector, options.limit, options.seed), chosen, options.json)
    except (EmbeddedError, resp.TransportError) as error:
        print(f"python -m tests.explore: {error}", file=sys.stderr)
        return 3


def _explore(explorer: Explorer, scenarios: Iterable[Scenario], as_json: bool) -> int:
    total: list[Explored] = []
    broken = 0
    if not as_json:
        print(f"{'scenario':40} {'orders':>12} {'states':>8} {'commands':>8} {'seconds':>8}")
    for scenario in scenarios:
        try:
            done = explorer.explore(scenario)
        except Violation as violation:
            broken += 1
            print(violation.json() if as_json else violation, flush=True)
            continue
        total.append(done)
        print(done.json() if as_json else done, flush=True)
    if not as_json and len(total) > 1:
        print(_sum(total))
    return 1 if broken else 0


def _sum(explored: Sequence[Explored]) -> Explored:
    return Explored(
        f"{len(explored)} scenarios",
        sum(each.orders for each in explored),
        sum(each.states for each in explored),
        sum(each.commands for each in explored),
        sum(each.seconds for each in explored),
        frozenset().union(*(each.scripts for each in explored)),
        all(each.whole for each in explored),
    )


if __name__ == "__main__":
    sys.exit(exit_code(main))

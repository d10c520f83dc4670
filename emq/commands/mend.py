"""`emq retry discard pause resume drain obliterate`: the operator's verbs.

What destroys counts first what would go, says so, and does it with `--yes` alone.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, Final

from resp import Plan

from ..errors import EmqError, JobError
from ..keyspace import Keyspace
from ..plans import admin
from ..plans.overview import Overview, overview
from ..plans.together import together
from ..queue import Queue
from . import link
from .arguments import add_queue, add_yes, explain, job_id
from .render import Progress, note, say, say_json

_BULK: Final = 200  # jobs that are moved in one flush
_BUDGET: Final = 1000  # jobs that one step of obliterate takes away


class Unconfirmed(EmqError):
    """Something would be destroyed, and --yes was not given. Nothing was."""


def configure(name: str, command: argparse.ArgumentParser) -> None:
    what, examples, run = _VERBS[name]
    explain(command, what, *examples)
    add_queue(command)
    if name in ("retry", "discard"):
        command.add_argument("jobs", metavar="JOB", nargs="*", type=job_id, help="a job's id")
    match name:
        case "retry":
            command.add_argument(
                "--all-dead", action="store_true", help="all jobs that are dead now"
            )
            command.add_argument(
                "--keep-attempts",
                action="store_true",
                help="count on: who dies again dies at once (default: attempts start anew)",
            )
        case "discard":
            command.add_argument("--dead", action="store_true", help="all jobs that are dead now")
            add_yes(command)
        case "drain":
            command.add_argument(
                "--schedule", action="store_true", help="those that are scheduled, too"
            )
            add_yes(command)
        case "obliterate":
            command.add_argument("--force", action="store_true", help="jobs that are active, too")
            add_yes(command)
    command.set_defaults(run=run)


# Jobs.


def retry(options: argparse.Namespace) -> int:
    _check_jobs(options, "--all-dead", options.all_dead)
    with link.to_write(options) as connector:
        queue = Queue(connector, options.queue)
        ids = _dead(queue) if options.all_dead else options.jobs
        return _each(
            queue,
            options,
            ids,
            "retried",
            lambda id: admin.reprocess(queue.keys, id, not options.keep_attempts),
        )


def discard(options: argparse.Namespace) -> int:
    _check_jobs(options, "--dead", options.dead)
    with link.to_write(options) as connector:
        queue = Queue(connector, options.queue)
        ids = _dead(queue) if options.dead else options.jobs
        if not options.yes:
            raise _unconfirmed(options, f"{_jobs(len(ids))}{' that are dead' * options.dead}")
        return _each(
            queue, options, ids, "discarded", lambda id: admin.remove(queue.keys, id, None)
        )


def _check_jobs(options: argparse.Namespace, name: str, given: bool) -> None:
    if bool(options.jobs) is given:
        raise argparse.ArgumentError(None, f"name jobs, or give {name}, and not both")


def _dead(queue: Queue) -> list[str]:
    """The jobs that are dead now: those that die meanwhile are for another time."""
    ids: list[str] = []
    while part := queue.peek("dead", 1000, offset=len(ids)):
        ids += [entry.job_id for entry in part]
    return ids


def _each(
    queue: Queue,
    options: argparse.Namespace,
    ids: list[str],
    done: str,
    plan: Callable[[str], Plan[None]],
) -> int:
    """Move jobs, many in one flush; those that refuse are told of one by one."""
    moved = 0
    with Progress() as progress:
        for at in range(0, len(ids), _BULK):
            bulk = ids[at : at + _BULK]
            outcomes: list[Any] = queue.connector.run(together(plan(id) for id in bulk))
            for id, outcome in zip(bulk, outcomes, strict=True):
                refused = outcome if isinstance(outcome, JobError) else None
                moved += refused is None
                if options.json or refused is not None:
                    progress.tell("")
                if options.json:
                    why = None if refused is None else type(refused).__name__
                    say_json({"job": id, done: refused is None, "refused": why})
                elif refused is not None:
                    note(f"job {id}: {refused.fact}{_ADVICE.get(type(refused).__name__, '')}")
            progress.tell(f"{moved} of {_jobs(len(ids))} {done}")
    if not options.json:
        say(f"{_jobs(moved)} {done}")
    return 0 if moved == len(ids) else 1


_ADVICE: Final = {
    "JobGone": "; check the id and the queue's name",
    "WrongState": "; only a dead job can be retried, emq show tells where it is",
    "JobLocked": "; a worker holds it, try again when it has settled it",
}


# Queues.


def pause(options: argparse.Namespace) -> int:
    with link.to_write(options) as connector:
        Queue(connector, options.queue).pause()
    _tell(options, "paused; jobs that are active go on", paused=True)
    return 0


def resume(options: argparse.Namespace) -> int:
    with link.to_write(options) as connector:
        Queue(connector, options.queue).resume()
    _tell(options, "resumed", paused=False)
    return 0


def drain(options: argparse.Namespace) -> int:
    with link.to_write(options) as connector:
        queue = Queue(connector, options.queue)
        counts = queue.counts()
        places = ("pending", "schedule") if options.schedule else ("pending",)
        would = _told({place: counts[place] for place in places})
        if not options.yes:
            raise _unconfirmed(options, would, **counts)
        note(f"draining {options.queue}: {would}")
        drained = connector.run(admin.drain(queue.keys, options.schedule), math.inf)
    _tell(options, f"{_jobs(drained)} drained", drained=drained)
    return 0


def obliterate(options: argparse.Namespace) -> int:
    with link.to_write(options) as connector:
        queue = Queue(connector, options.queue)
        found = connector.run(overview(Keyspace(options.queue)))
        would = _all_of(found)
        if not options.yes:
            raise _unconfirmed(options, would, **found.counts, lanes=found.backlog)
        if found.paused is False:
            raise EmqError(f"queue {queue.name} is not paused; run emq pause {queue.name} first")
        if found.counts["active"] and not options.force:
            raise EmqError(
                f"{_jobs(found.counts['active'])} of queue {queue.name} active; "
                "wait until they are settled, or give --force"
            )
        note(f"obliterating {queue.name}: {would}")
        steps = 0
        with Progress() as progress:
            while not connector.run(admin.obliterate(queue.keys, options.force, _BUDGET), math.inf):
                steps += 1
                progress.tell(f"about {_jobs(steps * _BUDGET)} gone")
    _tell(options, f"obliterated: {would}", obliterated=True, **found.counts)
    return 0


def _all_of(found: Overview) -> str:
    places = {name: found.counts[name] or 0 for name in ("pending", "active", "schedule", "dead")}
    return _told({**places, "in lanes": found.backlog})


def _told(places: dict[str, int]) -> str:
    told = ", ".join(f"{count} {name}" for name, count in places.items() if count)
    return _jobs(sum(places.values())) + (f" ({told})" if told else "")


def _jobs(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"


def _unconfirmed(options: argparse.Namespace, would: str, **facts: Any) -> Unconfirmed:
    """The refusal that says what would go; as JSON, too, where that was asked for."""
    if options.json:
        say_json({"queue": options.queue, "done": False, "would": would, **facts})
    return Unconfirmed(
        f"{options.command} {options.queue} would remove {would}; add --yes to do it"
    )


def _tell(options: argparse.Namespace, what: str, **facts: Any) -> None:
    if options.json:
        say_json({"queue": options.queue, **facts})
    else:
        say(f"{options.queue}: {what}")


_VERBS: Final[dict[str, tuple[str, tuple[str, ...], Callable[[argparse.Namespace], int]]]] = {
    "retry": (
        "Let dead jobs run again. Their attempts start anew.",
        ("emq retry mails JOB0EEMl9I7KXg", "emq retry mails --all-dead"),
        retry,
    ),
    "discard": (
        "Remove jobs, wherever they are, unless a worker has locked them.",
        ("emq discard mails JOB0EEMl9I7KXg --yes", "emq discard mails --dead --yes"),
        discard,
    ),
    "pause": (
        "Stop claims from a queue. Jobs can be added, and those that are active go on.",
        ("emq pause mails",),
        pause,
    ),
    "resume": ("Let claims from a queue go on.", ("emq resume mails",), resume),
    "drain": (
        "Remove the jobs of a queue that wait. Those that are active go on, and those in lanes or\n"
        "in the morgue stay.",
        ("emq drain mails --yes", "emq drain mails --schedule --yes"),
        drain,
    ),
    "obliterate": (
        "Remove a queue with all its jobs, settings and counters. It must be paused.",
        ("emq pause mails && emq obliterate mails --yes", "emq obliterate mails --force --yes"),
        obliterate,
    ),
}

__all__ = ["Unconfirmed", "configure"]

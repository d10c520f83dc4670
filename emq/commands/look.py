"""`emq ls`, `emq show`, `emq peek`: how queues and jobs are. Nothing here writes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from resp import Connector, Plan

from ..discover import Discovery
from ..errors import JobGone
from ..ids import parse
from ..job import Outcome, Row
from ..keyspace import Keyspace
from ..plans.overview import COUNTED, Overview, glances, now_ms, overview, overviews
from ..plans.reads import outcome
from . import link
from .arguments import add_queue, add_queues, count, explain, job_id
from .render import Unreadable, age, blob, note, printable, say, say_json, table

if TYPE_CHECKING:
    from ..queue import Queue

PLACES: Final = ("pending", "active", "schedule", "dead")


def configure(name: str, command: argparse.ArgumentParser) -> None:
    match name:
        case "ls":
            explain(
                command,
                "List the queues of a server, with how many of their jobs are where.\n\n"
                "LANES are the jobs that wait in lanes, and are not among the PENDING; OLDEST is\n"
                "how long ago the oldest job that waits was enqueued.",
                "emq ls",
                "emq ls orders mails --json",
            )
            add_queues(command, "these queues (default: all that the server has keys of)")
            command.set_defaults(run=ls)
        case "show":
            explain(
                command,
                "Show a queue in detail, or one of its jobs.",
                "emq show orders",
                "emq show orders JOB0EEMl9I7KXg --full",
            )
            add_queue(command)
            command.add_argument("job", metavar="JOB", nargs="?", type=job_id, help="a job's id")
            command.add_argument(
                "--full", action="store_true", help="all of the payload, the logs and the fields"
            )
            command.set_defaults(run=show)
        case _:
            explain(
                command,
                "Show the next jobs of a queue: those that would be claimed, whose leases end, or\n"
                "that fall due first. Jobs that wait in lanes are not shown.",
                "emq peek orders",
                "emq peek orders --place dead -n 100 --json",
            )
            add_queue(command)
            command.add_argument(
                "--place",
                choices=PLACES,
                default="pending",
                help="where to look (default: pending)",
            )
            command.add_argument(
                "-n", type=count, default=10, metavar="COUNT", help="how many (default: 10)"
            )
            command.set_defaults(run=peek)


def ls(options: argparse.Namespace) -> int:
    with link.to_read(options) as connector:
        names = options.queues or _names(connector)
        found = connector.run(overviews(Keyspace(name) for name in names))
    if options.json:
        say_json(*map(document, found))
    elif found:
        say(*queue_table(found))
        _note_unknown(found)
    else:
        note("no queues here; emq enqueue QUEUE PAYLOAD makes one")
    complain(found)
    return 0


def _names(connector: Connector) -> list[str]:
    """All queues of the server. Each look is a call of its own, so that none takes long."""
    discovery = Discovery()
    while not discovery.whole:
        connector.run(discovery.look(100))
    return discovery.names


def show(options: argparse.Namespace) -> int:
    with link.to_read(options) as connector:
        if options.job is not None:
            return _show_job(connector, options)
        found = connector.run(overview(Keyspace(options.queue)))
    if options.json:
        say_json(document(found))
    else:
        say(*_details(found))
        _note_unknown([found])
    complain([found])
    return 0


def _note_unknown(found: Iterable[Overview]) -> None:
    """Say of which queues the server has no trace: their names may be misspelt."""
    for each in found:
        marks = (*each.counts.values(), each.backlog, each.paused, each.waiting, each.errors)
        if not any(marks) and each.concurrency is None and not each.events:
            note(f"nobody has used queue {each.queue} yet; emq ls tells which there are")


def peek(options: argparse.Namespace) -> int:
    from ..queue import Queue  # more than the other commands need

    with link.to_read(options) as connector:
        queue = Queue(connector, options.queue)
        entries = queue.peek(options.place, options.n)
        now = connector.run(now_ms())
        seen = connector.run(glances(queue.keys, [entry.job_id for entry in entries]))
    timed = {"active": "LEASE ENDS", "schedule": "DUE"}.get(options.place)
    if options.json:
        named = {"active": "lease_end_ms", "schedule": "due_ms"}.get(options.place)
        say_json(
            *(
                {
                    "job": entry.job_id,
                    "age_ms": now - parse(entry.job_id).unix_ms,
                    **({named: entry.score} if named else {}),
                    **glance._asdict(),
                }
                for entry, glance in zip(entries, seen, strict=True)
            )
        )
        return 0
    if not entries:
        note(f"nothing is in {options.place}; emq show {options.queue} tells what is where")
        return 0
    head = ["JOB", "AGE", "ATTEMPTS", "SIZE", *([timed] if timed else []), "LAST ERROR"]
    rows = [
        [
            entry.job_id,
            age(now - parse(entry.job_id).unix_ms),
            "-" if glance.attempts is None else str(glance.attempts),
            "none" if glance.size is None else str(glance.size),
            *([_when(entry.score - now)] if timed else []),
            "-" if glance.last_error is None else printable(glance.last_error),
        ]
        for entry, glance in zip(entries, seen, strict=True)
    ]
    say(*table(head, rows))
    return 0


# Queues.


def document(found: Overview) -> dict[str, Any]:
    """Answer a queue as JSON. What could not be read is null, and among the errors."""
    return {
        "queue": found.queue,
        **found.counts,
        "lanes": found.lanes,
        "paused": found.paused,
        "concurrency": found.concurrency,
        "rate_limit": found.rate_limit,
        "events": found.events,
        "waiting_workers": found.waiting,
        "oldest_ms": found.oldest_ms,
        "next_due_ms": found.next_due_ms,
        "next_lease_end_ms": found.next_lease_end_ms,
        "leases": None if found.leases is None else found.leases._asdict(),
        "errors": found.errors,
    }


def queue_table(found: list[Overview]) -> list[str]:
    laned = any(each.lanes for each in found)
    head = ["QUEUE", *(name.upper() for name in COUNTED), "OLDEST", ""]
    rows = [
        [each.queue, *(number(each, name) for name in COUNTED), oldest(each), standing(each)]
        for each in found
    ]
    if laned:
        for line, cell in zip(
            [head, *rows], ["LANES", *(str(e.backlog) for e in found)], strict=True
        ):
            line.insert(2, cell)
    return table(head, rows)


def number(found: Overview, name: str) -> str:
    """Answer a count for a table. One that could not be read is no number."""
    value = found.counts[name]
    return "error" if value is None else str(value)


def oldest(found: Overview) -> str:
    return "error" if "oldest" in found.errors else age(found.oldest_ms)


def standing(found: Overview) -> str:
    """Answer what stands in the way of the queue's claims, as words for a table."""
    if found.paused is None:
        return "error"
    active = found.counts["active"]
    if found.paused:
        return "paused"
    if found.concurrency is not None and active is not None and active >= found.concurrency:
        return "at its ceiling"
    return ""


def _details(found: Overview) -> list[str]:
    def known(value: object, name: str) -> str:
        return f"error: {printable(found.errors[name])}" if name in found.errors else str(value)

    leases = (
        ""
        if found.leases is None or not found.leases.lapsed
        else (f" ({found.leases.lapsed} with a lease that has ended)")
    )
    facts = [
        ("queue", found.queue),
        *((name, known(found.counts[name], name)) for name in COUNTED),
        ("lanes", _lanes(found)),
        ("paused", known("yes" if found.paused else "no", "meta")),
        ("ceiling", known(found.concurrency or "none", "meta")),
        ("rate limit", known(found.rate_limit or "none", "meta")),
        ("events", known("on" if found.events else "off", "meta")),
        ("oldest waits", known(age(found.oldest_ms), "oldest")),
        ("next due", known(_when(found.next_due_ms), "next due")),
        ("next lease end", known(_when(found.next_lease_end_ms), "next lease") + leases),
        ("idle workers", known(found.waiting, "waiting")),
    ]
    return _facts(facts)


def _lanes(found: Overview) -> str:
    if not found.lanes:
        return "none wait"
    most = sorted(found.lanes.items(), key=lambda lane: -lane[1])
    told = ", ".join(f"{group} {size}" for group, size in most[:5])
    rest = f" and {len(most) - 5} lanes more" if most[5:] else ""
    return f"{found.backlog} jobs wait: {told}{rest}"


def complain(found: Iterable[Overview]) -> None:
    """Raise the first of what could not be read; whatever could has been told."""
    for each in found:
        for name, message in each.errors.items():
            raise Unreadable(
                f"{name} of queue {each.queue} could not be read: {printable(message, 100)}; "
                f"emq doctor {each.queue} tells more"
            )


# Jobs.


def _show_job(connector: Connector, options: argparse.Namespace) -> int:
    from ..queue import Queue  # more than the other commands need

    queue, id = Queue(connector, options.queue), options.job
    row = queue.job(id)
    if row is None:
        return _show_outcome(connector, queue, options)
    place = queue.state(id)
    try:
        logs = queue.logs(id)
    except JobGone:  # it ended meanwhile
        logs = []
    now = connector.run(now_ms())
    score = connector.run(_score(queue.keys, place, id))
    if options.json:
        say_json(
            {
                "job": id,
                "queue": queue.name,
                "place": place,
                "state": row.state,
                "attempts": row.attempts,
                "age_ms": now - parse(id).unix_ms,
                **({_SCORES[place][1]: score} if place in _SCORES and score is not None else {}),
                "fields": row.fields,
                **blob("payload", row.payload),
                "logs": logs,
            }
        )
        return 0
    limit = None if options.full else 60
    facts = [
        ("job", id),
        ("queue", queue.name),
        ("state", _state(row, place)),
        ("attempts", str(row.attempts)),
        ("enqueued", f"{_date(parse(id).unix_ms)} ({age(now - parse(id).unix_ms)} ago)"),
    ]
    if place in _SCORES and score is not None:
        facts.append((_SCORES[place][0], f"{_when(score - now)} ({_date(score)})"))
    facts += [
        (printable(name, 30).replace("_", " "), printable(value, limit))
        for name, value in sorted(row.fields.items())
    ]
    size = "none" if row.payload is None else f"{len(row.payload)} B"
    payload = "" if not row.payload else f": {printable(row.payload, limit)}"
    facts.append(("payload", size + payload))
    shown = logs if options.full else logs[-10:]
    facts += [("log", printable(line, limit)) for line in shown]
    if len(shown) < len(logs):
        facts.append(("", f"{len(logs) - len(shown)} older lines; --full shows them"))
    say(*_facts(facts))
    return 0


_SCORES: Final[Mapping[str | None, tuple[str, str]]] = {
    "active": ("lease ends", "lease_end_ms"),
    "scheduled": ("due", "due_ms"),
}


def _score(keys: Keyspace, place: str | None, id: str) -> Plan[int | None]:
    """Answer when a job falls due, or its lease ends; None where neither is to come."""
    key = {"active": keys.active, "scheduled": keys.schedule}.get(place or "")
    if key is None:
        return None
    reply = yield ("ZSCORE", key, id)
    return int(float(reply)) if isinstance(reply, bytes | float) else None


def _state(row: Row, place: str | None) -> str:
    if place is None:
        return f"{printable(row.state or 'none')} (it is gone by now)"
    said = {"scheduled": "scheduled", "unknown": "in no place"}.get(place, place)
    if place == row.state:
        return said
    return f"{said}, its row says {printable(row.state or 'nothing')}"


def _show_outcome(connector: Connector, queue: Queue, options: argparse.Namespace) -> int:
    """Show how a job ended that kept that, or refuse: it is not there."""
    id: str = options.job
    found = connector.run(outcome(queue.keys, id))
    if found is None:  # it came meanwhile
        raise JobGone(id)
    if options.json:
        say_json({"job": id, "queue": queue.name, **told(found)})
    else:
        say(*_facts([("job", id), ("queue", queue.name), *_ended(found, options.full)]))
    return 0


def _ended(outcome: Outcome, full: bool) -> list[tuple[str, str]]:
    limit = None if full else 60
    facts = [("state", outcome.state)]
    if outcome.result is not None:
        facts.append(("result", printable(outcome.result, limit)))
    if outcome.error is not None:
        facts.append(("error", printable(outcome.error, limit)))
    return facts


def told(outcome: Outcome) -> dict[str, Any]:
    """Answer how a job ended, as JSON."""
    return {"state": outcome.state, **blob("result", outcome.result), "error": outcome.error}


def _facts(facts: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in facts)
    return [f"{name:{width}}  {value}".rstrip() for name, value in facts]


def _when(ms: int | None) -> str:
    if ms is None:
        return "-"
    return f"in {age(ms)}" if ms >= 0 else f"{age(-ms)} ago"


def _date(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


__all__ = [
    "complain",
    "configure",
    "document",
    "number",
    "oldest",
    "queue_table",
    "standing",
    "told",
]

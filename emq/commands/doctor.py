"""`emq doctor`: what is wrong with a server and its queues, and how some of it is mended."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from resp import Connector

from ..errors import FenceError
from ..fence import fence
from ..keyspace import Keyspace
from ..plans import doctor as plans
from ..plans.overview import now_ms
from ..units import about
from . import link
from .arguments import add_queues, explain
from .render import Progress, printable, say, say_json

_SKEW_MS: Final = 1000
_FULL: Final = 0.9  # of maxmemory
_LONG_MS: Final = 60_000  # a worker would have reaped, or promoted, by then
_SHOWN: Final = 20  # findings of one kind of one queue that people are shown one by one


def configure(name: str, command: argparse.ArgumentParser) -> None:
    explain(
        command,
        "Look for what is wrong: with the server (it evicts, or forgets at a restart, is a\n"
        "replica, is nearly full, has another clock or another wire version), and with its queues\n"
        "(jobs that are lost, in two places, or in a place without a row; leases that nobody\n"
        "reaps; counts and keys that were left behind).\n\n"
        "--repair mends what is safe: it drops entries without a job, lets lost jobs wait again,\n"
        "and sets states, counts and left-behind keys right. Each job is looked at anew in the\n"
        "step that mends it, so queues can stay in use meanwhile.\n\n"
        "Exits 0 if all is well, also after it was mended, and 1 if findings are left.",
        "emq doctor",
        "emq doctor orders --repair",
        "emq doctor --json | jq .message",
    )
    add_queues(command, "look at these queues (default: all that the server has keys of)")
    command.add_argument("--repair", action="store_true", help="mend what can be mended safely")
    command.set_defaults(run=doctor)


class Finding(NamedTuple):
    """Something that is not as it should be.

    Attributes:
        check: What was looked at, in a word.
        queue: Where; None for the server.
        job: The job it is about, if it is about one.
        message: What is wrong.
        advice: What to do.
        mended: It is right now.
    """

    check: str
    queue: str | None
    job: str | None
    message: str
    advice: str
    mended: bool = False


class Report:
    """Tells findings as they come, and counts them.

    Args:
        as_json: For programs.
        progress: What may stand on the terminal's line, and is wiped off first.
    """

    def __init__(self, as_json: bool, progress: Progress) -> None:
        self._as_json = as_json
        self._progress = progress
        self._told: set[tuple[str, str | None, str | None, str]] = set()
        self._kinds: Counter[tuple[str | None, str]] = Counter()
        self.found = self.mended = 0

    def tell(self, finding: Finding) -> None:
        """Tell a finding; one that a walk meets twice is told once."""
        key = (finding.check, finding.queue, finding.job, finding.message)
        if key in self._told:
            return
        self._told.add(key)
        self.found += 1
        self.mended += finding.mended
        self._kinds[finding.queue, finding.check] += 1
        self._progress.tell("")
        if self._as_json:
            say_json(finding._asdict())
        elif self._kinds[finding.queue, finding.check] <= _SHOWN:
            where = "server" if finding.queue is None else f"queue {finding.queue}"
            end = "mended" if finding.mended else finding.advice
            say(f"{where}: {finding.message}; {end}")

    def conclude(self, looked_at: str) -> int:
        """Sum up; the exit code."""
        left = self.found - self.mended
        if not self._as_json:
            for (queue, check), count in self._kinds.items():
                if count > _SHOWN:
                    where = "server" if queue is None else f"queue {queue}"
                    say(f"{where}: {count - _SHOWN} more of {check}; --json shows all")
            if not self.found:
                say(f"all is well: {looked_at}")
            else:
                findings = "1 finding" if self.found == 1 else f"{self.found} findings"
                say(f"{findings}, {self.mended} mended, {left} left: {looked_at}")
        return 1 if left else 0


def doctor(options: argparse.Namespace) -> int:
    with link.to_examine(options) as connector, Progress() as progress:
        report = Report(options.json, progress)
        server = connector.run(plans.ask())
        for finding in _of_server(server, options.wire_version):
            report.tell(finding)
        foreign = server.version not in (None, options.wire_version.encode())
        if options.repair and foreign:
            raise FenceError(server.version, options.wire_version)
        if server.version is None:
            report.tell(_claimed(connector, options))
        for finding in _clock(connector):
            report.tell(finding)
        checkup = _Checkup(connector, report, options.repair, progress)
        for pattern in [f"emq:{{{name}}}:*" for name in options.queues] or ["emq:*"]:
            checkup.walk(pattern)
    return report.conclude(f"{_number(len(checkup.seen), 'queue')}, {_number(checkup.jobs, 'job')}")


# The server.


def _of_server(server: plans.Server, version: str) -> Iterator[Finding]:
    def finding(check: str, message: str, advice: str) -> Finding:
        return Finding(check, None, None, message, advice)

    if server.version not in (None, version.encode()):
        yield finding(
            "fence",
            f"its wire version is '{printable(server.version or b'')}', this client's is "
            f"'{printable(version)}'",
            "connect with the --wire-version that its other clients use",
        )
    if server.policy is not None and server.policy != "noeviction":
        yield finding(
            "eviction",
            f"it removes keys when memory is short (maxmemory-policy {printable(server.policy)}), "
            "and jobs with them",
            "CONFIG SET maxmemory-policy noeviction",
        )
    if server.saves == "" and server.appends is False:
        yield finding(
            "persistence",
            "it keeps nothing on disk: a restart loses all jobs",
            "CONFIG SET appendonly yes, unless they may be lost",
        )
    if server.replica:
        yield finding(
            "replica", "it follows another server, and takes no writes", "give the primary's --url"
        )
    if server.used is not None and server.most and server.used > _FULL * server.most:
        yield finding(
            "memory",
            f"it uses {server.used * 100 // server.most}% of the memory that it may use",
            "raise maxmemory, or drain what is not needed",
        )


def _claimed(connector: Connector, options: argparse.Namespace) -> Finding:
    """The finding that the server is nobody's; claimed, where things are to be mended."""
    if options.repair:
        connector.run(fence(options.wire_version)())
    return Finding(
        "fence",
        None,
        None,
        "it has no wire version, so clients of another version could join in unseen",
        "--repair claims it, and so does any client that connects",
        options.repair,
    )


def _clock(connector: Connector) -> Iterator[Finding]:
    """Compare the clocks; of some looks the one that took least is the most exact."""
    looks = []
    for _ in range(3):
        before = time.time_ns() // 1_000_000
        server = connector.run(now_ms())
        after = time.time_ns() // 1_000_000
        looks.append((after - before, server - (before + after) // 2))
    took, skew = min(looks)
    if abs(skew) - took > _SKEW_MS:
        yield Finding(
            "clock",
            None,
            None,
            f"its clock is {about(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this one",
            "set both by NTP; absolute due times and the ages of ids are off by that much",
        )


# Queues.


class _Checkup:
    """Walks over the keys of queues, and looks at all that it meets.

    Attributes:
        seen: The queues that it met.
        jobs: How many jobs it looked at.
    """

    def __init__(
        self, connector: Connector, report: Report, mends: bool, progress: Progress
    ) -> None:
        self._connector = connector
        self._report = report
        self._mends = mends
        self._progress = progress
        self._unreadable: set[str] = set()
        self.seen: set[str] = set()
        self.jobs = 0

    def walk(self, pattern: str) -> None:
        cursor = b"0"
        while True:
            cursor, found = self._connector.run(plans.walk(cursor, pattern))
            for queue, names in found.names.items():
                keys = Keyspace(queue)
                if queue not in self.seen:
                    self.seen.add(queue)
                    self._queue(keys)
                if queue in self._unreadable:
                    continue
                for group in found.lanes.get(queue, ()):
                    self._place(keys, keys.lane(group), group)
                self._look(keys, names)
                self.jobs += sum(not name.startswith("de:") for name in names)
            self._progress.tell(f"looked at {self.jobs} jobs")
            if cursor == b"0":
                return

    def _queue(self, keys: Keyspace) -> None:
        now = self._connector.run(now_ms())
        standing = self._connector.run(plans.standing(keys, now, _LONG_MS, self._mends))
        for suffix, (found, right) in standing.wrong_types.items():
            self._tell(
                keys,
                "type",
                f"its key {suffix} holds a {printable(found)}, not a {right}",
                "another program wrote it: move it away",
            )
        if standing.lapsed:
            self._tell(
                keys,
                "lapsed",
                f"{_number(standing.lapsed, 'lease')} ended more than {about(_LONG_MS)} ago, and "
                "nobody takes the jobs back",
                f"run a worker: emq work MODULE:HANDLER --queue {keys.queue}",
            )
        if standing.overdue and not standing.paused:
            self._tell(
                keys,
                "overdue",
                f"{_number(standing.overdue, 'job')} fell due more than {about(_LONG_MS)} ago, and "
                "nobody lets them run",
                f"run a worker: emq work MODULE:HANDLER --queue {keys.queue}",
            )
        for group, (said, held) in standing.miscounted.items():
            self._tell(
                keys,
                "count",
                f"lane {printable(group)} counts {printable(said)} jobs in flight, and has {held}",
                "--repair sets it right",
                mended=self._mends,
            )
        if {*plans.PLACES, "meta", "ring", "paused", "glimit", "gactive", "wake", "parked"} & {
            *standing.wrong_types
        }:
            self._unreadable.add(keys.queue)
            return
        for place in plans.PLACES:
            self._place(keys, keys.base + place, None)

    def _place(self, keys: Keyspace, key: str, group: str | None) -> None:
        """Look at each entry of a place, or of a lane."""
        cursor = b"0"
        while True:
            cursor, members = self._connector.run(plans.entries(key, cursor))
            names, aliens = plans.named(members, group)
            for fault in aliens:
                self._tell(
                    keys,
                    "alien",
                    f"'{printable(fault.name)}' in {key.removeprefix(keys.base)} is no job's id",
                    "another program wrote it: take it out with ZREM",
                )
            self._look(keys, names)
            if cursor == b"0":
                return

    def _look(self, keys: Keyspace, names: list[str]) -> None:
        for fault in self._connector.run(plans.look(keys, names, self._mends)):
            message, advice = _EXPLAINED[fault.fault](fault, keys.queue)
            job = fault.name.rpartition(":")[2] if fault.fault != "dedup" else fault.detail
            self._tell(keys, fault.fault, message, advice, job=job, mended=fault.mended)

    def _tell(
        self,
        keys: Keyspace,
        check: str,
        message: str,
        advice: str,
        *,
        job: str | None = None,
        mended: bool = False,
    ) -> None:
        self._report.tell(Finding(check, keys.queue, job, message, advice, mended))


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _job(fault: plans.Fault) -> str:
    return f"job {printable(fault.name.rpartition(':')[2])}"


def _both(places: str) -> str:
    return printable(" and in ".join(places.split()))


def _ghost(fault: plans.Fault, queue: str) -> tuple[str, str]:
    if fault.detail:
        return (
            f"{_job(fault)} is in {_both(fault.detail)}, and its row has no payload",
            "--repair drops the entry",
        )
    return (
        f"{_job(fault)} is in no place, and its row has no payload",
        f"emq discard {queue} {fault.name} --yes removes it",
    )


def _state(fault: plans.Fault, queue: str) -> tuple[str, str]:
    said, _, place = fault.detail.rpartition(" ")
    return (
        f"{_job(fault)} is in {place}, and its row says {printable(said) or 'nothing'}",
        "--repair sets the row right",
    )


def _lost(fault: plans.Fault, queue: str) -> tuple[str, str]:
    does = "puts it back there" if fault.detail == "dead" else "lets it wait again"
    return (
        f"{_job(fault)} is in no place, and its row says {fault.detail or 'nothing'}",
        f"--repair {does}",
    )


_EXPLAINED: Final[dict[str, Callable[[plans.Fault, str], tuple[str, str]]]] = {
    "rowless": lambda fault, queue: (
        f"{_job(fault)} is in {_both(fault.detail)}, and has no row",
        "--repair drops the entry",
    ),
    "ghost": _ghost,
    "lost": _lost,
    "twice": lambda fault, queue: (
        f"{_job(fault)} is in {_both(fault.detail)} at once",
        f"let it be settled and look again, or emq discard {queue} {fault.name} --yes removes it",
    ),
    "state": _state,
    "unknown": lambda fault, queue: (
        f"{_job(fault)} is in no place, and its row says {printable(fault.detail)}",
        "see what wrote it: this client knows no such state",
    ),
    "stray": lambda fault, queue: (
        f"{_job(fault)} is in the lane of another group than its row's",
        "--repair drops the entry",
    ),
    "lock": lambda fault, queue: (
        f"{_job(fault)} is gone, and still locked",
        "--repair deletes the lock",
    ),
    "dedup": lambda fault, queue: (
        f"deduplication key {fault.name.removeprefix('de:')} is held by a job that is gone",
        "--repair deletes it",
    ),
    "unreadable": lambda fault, queue: (
        f"{printable(fault.name)} cannot be read: {printable(fault.detail)}",
        "another program wrote its key: move it away",
    ),
}

__all__ = ["Finding", "Report", "configure"]

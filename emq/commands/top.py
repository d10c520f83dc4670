"""`emq top`: the queues of a server, watched."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from resp import Connector, Plan, RespError, parse_url

from ..discover import Discovery
from ..errors import EmqError, JobError
from ..keyspace import Keyspace
from ..output import stdout, write
from ..plans.overview import Overview, death_reasons, overviews
from ..plans.together import together
from ..units import format_ms
from . import link
from .arguments import add_queues, duration, explain
from .look import complain, document, number, oldest, standing
from .render import age, encodable, printable, say, say_json, table

_STEPS: Final = 20  # of the walk over all keys in one look: 10,000 keys
_SAMPLE: Final = 100  # dead jobs whose errors are read, a queue
_REASONS: Final = 3
_RED, _YELLOW, _BOLD = "31", "33", "1"


def configure(name: str, command: argparse.ArgumentParser) -> None:
    explain(
        command,
        "Watch queues: how many jobs are where, what was completed and has failed in a second,\n"
        "how long the oldest has waited, when leases end, and why jobs died. On a terminal the\n"
        "view is drawn anew until q or Ctrl-C; elsewhere each look is printed after the other.\n\n"
        "A LAPSED lease has ended, and no worker has taken its job back yet.",
        "emq top",
        "emq top orders mails --interval 500ms",
        "emq top --once --json",
    )
    add_queues(command, "these queues (default: all that the server has keys of)")
    command.add_argument(
        "--interval",
        type=duration,
        default=1000,
        metavar="TIME",
        help="from one look to the next (default: 1s)",
    )
    command.add_argument("--once", action="store_true", help="look once, without the rates")
    command.set_defaults(run=top)


def top(options: argparse.Namespace) -> int:
    out = stdout()
    live = out.isatty() and not (options.once or options.json)
    server = str(parse_url(options.url)[0])
    try:
        with link.to_read(options) as connector, _screen(live), _Keyboard(live) as keyboard:
            watch = Watch(options.queues)
            while True:
                seen, error = _look(connector, watch)
                if options.json:
                    _tell_json(seen, error)
                elif live:
                    _draw(frame(seen, error, server, options.interval), _paints())
                else:
                    say(*(text for _, text in frame(seen, error, server, None)), "")
                if options.once:
                    complain(each.overview for each in seen)
                    return 0
                if keyboard.ends(options.interval / 1000):
                    return 0
    except KeyboardInterrupt:
        return 0


class Seen(NamedTuple):
    """A queue at one look.

    Attributes:
        overview: The queue.
        completed_per_s, failed_per_s: Since the look before; None at the first, and where a
            counter could not be read or was removed.
        reasons: Why its newest dead jobs died, with how many did, the commonest first.
    """

    overview: Overview
    completed_per_s: float | None
    failed_per_s: float | None
    reasons: Sequence[tuple[str, int]]


class Watch:
    """Looks at queues, one after the other, each with what has changed since.

    Args:
        names: The queues; none are all of the server.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._discovery = Discovery()
        self._before: dict[str, Overview] = {}
        self.has_seen = False

    def look(self) -> Plan[list[Seen]]:
        names = self._names
        if not names:
            names = yield from self._discovery.look(_STEPS)
            while not self._discovery.whole:
                names = yield from self._discovery.look(_STEPS)
        found = yield from overviews(Keyspace(name) for name in names)
        with_dead = [each.queue for each in found if each.counts["dead"]]
        told = yield from together(
            death_reasons(Keyspace(name), _SAMPLE, _REASONS) for name in with_dead
        )
        reasons = {
            name: some
            for name, some in zip(with_dead, told, strict=True)
            if not isinstance(some, JobError)
        }
        seen = [
            Seen(
                each,
                self._rate(each, "completed"),
                self._rate(each, "failed"),
                reasons.get(each.queue, ()),
            )
            for each in found
        ]
        self._before = {each.queue: each for each in found}
        return seen

    def _rate(self, now: Overview, name: str) -> float | None:
        before = self._before.get(now.queue)
        if before is None or now.now_ms <= before.now_ms:
            return None
        count, earlier = now.counts[name], before.counts[name]
        if count is None or earlier is None or count < earlier:
            return None
        return (count - earlier) * 1000 / (now.now_ms - before.now_ms)


def frame(
    seen: Sequence[Seen], error: str, server: str, interval_ms: int | None
) -> Iterator[tuple[str, str]]:
    """Answer a look's lines, each with its colour.

    Args:
        error: Why there was nothing to see; "" if there was.
        interval_ms: The time between looks, where a key ends them.
    """
    now = seen[0].overview.now_ms if seen else time.time_ns() // 1_000_000
    at = datetime.fromtimestamp(now / 1000, UTC)
    queues = "1 queue" if len(seen) == 1 else f"{len(seen)} queues"
    keys = "" if interval_ms is None else f"  every {format_ms(interval_ms)}, q ends"
    yield _BOLD, f"emq top  {printable(server, 200)}  {queues}  {at:%Y-%m-%d %H:%M:%SZ}{keys}"
    if error:
        yield _RED, f"error: {printable(error, 200)}"
        return
    head, *rows = table(_HEAD, [_row(each) for each in seen])
    yield _BOLD, head
    for each, row in zip(seen, rows, strict=True):
        yield (_RED if each.overview.errors else ""), row
    for each in seen:
        for name, message in each.overview.errors.items():
            yield _RED, f"error in {each.overview.queue}: {name}: {printable(message, 100)}"
        if each.reasons:
            told = ", ".join(f"{count}x {printable(reason)}" for reason, count in each.reasons)
            yield _YELLOW, f"dead in {each.overview.queue}: {told}"


_HEAD: Final = (
    "QUEUE",
    "PENDING",
    "LANES",
    "ACTIVE",
    "SCHEDULE",
    "DEAD",
    "DONE/S",
    "FAILED/S",
    "OLDEST",
    "NEXT DUE",
    "LAPSED",
    "<10S",
    ">10S",
    "IDLE",
    "",
)


def _row(seen: Seen) -> list[str]:
    found = seen.overview
    unread = "error"
    leases = [unread] * 3 if found.leases is None else [str(count) for count in found.leases]
    laned = any("lane" in name or name == "ring" for name in found.errors)
    return [
        found.queue,
        number(found, "pending"),
        unread if laned else str(found.backlog),
        *(number(found, name) for name in ("active", "schedule", "dead")),
        _per_s(found, "completed", seen.completed_per_s),
        _per_s(found, "failed", seen.failed_per_s),
        oldest(found),
        unread if "next due" in found.errors else age(found.next_due_ms),
        *leases,
        unread if found.waiting is None else str(found.waiting),
        standing(found),
    ]


def _per_s(found: Overview, name: str, rate: float | None) -> str:
    if name in found.errors:
        return "error"
    return "-" if rate is None else f"{rate:.1f}"


def _look(connector: Connector, watch: Watch) -> tuple[list[Seen], str]:
    """Look once. A failure is shown, since the next look may see again; the first is raised."""
    try:
        seen = connector.run(watch.look())
    except (RespError, EmqError) as error:
        if not watch.has_seen:
            raise
        return [], str(error)
    watch.has_seen = True
    return seen, ""


def _tell_json(seen: Sequence[Seen], error: str) -> None:
    if error:
        say_json({"error": error})
    say_json(*map(_document, seen))


def _document(seen: Seen) -> Mapping[str, Any]:
    return {
        "now_ms": seen.overview.now_ms,
        **document(seen.overview),
        "completed_per_s": seen.completed_per_s,
        "failed_per_s": seen.failed_per_s,
        "dead_reasons": dict(seen.reasons),
    }


# The terminal.


def _paints() -> bool:
    return not os.environ.get("NO_COLOR")


def _draw(lines: Iterator[tuple[str, str]], paints: bool) -> None:
    """Write a look over the one before."""
    width, height = shutil.get_terminal_size()
    text = "\x1b[H"
    for at, (color, line) in enumerate(lines):
        if at == height:
            break
        cut = line[:width]
        painted = f"\x1b[{color}m{cut}\x1b[0m" if color and paints else cut
        text += f"{'' if at == 0 else chr(10)}\r{painted}\x1b[K"
    out = stdout()
    write(encodable(text + "\x1b[J", out), out)


@contextmanager
def _screen(live: bool) -> Iterator[None]:
    """Use the terminal's other screen, without a cursor."""
    if not live:
        yield
        return
    out = stdout()
    write("\x1b[?1049h\x1b[?25l", out)
    try:
        yield
    finally:
        write("\x1b[?25h\x1b[?1049l", out)


class _Keyboard:
    """Tells whether q was pressed; where stdin is no terminal, it lets the time pass."""

    def __init__(self, live: bool) -> None:
        self._fd = -1
        self._before: Any = None
        if live and sys.stdin is not None and sys.stdin.isatty():
            self._fd = sys.stdin.fileno()

    def __enter__(self) -> _Keyboard:
        if self._fd >= 0:
            try:
                import termios
            except ImportError:  # not everywhere
                self._fd = -1
            else:
                self._before = termios.tcgetattr(self._fd)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            import termios

            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    def ends(self, timeout: float) -> bool:
        """Wait for a time, in s, or until q was pressed; whether it was."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            if self._before is None:
                time.sleep(left)
            elif self._key(left) in (b"q", b"Q", b"\x04"):
                return True
        return False

    def _key(self, timeout: float) -> bytes:
        """The key that is pressed within a time, in s; b"" if none is."""
        import termios

        mode = termios.tcgetattr(self._fd)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VMIN] = 0  # answer with nothing when the time is up
        mode[6][termios.VTIME] = min(max(int(timeout * 10), 1), 255)  # tenths of a second
        termios.tcsetattr(self._fd, termios.TCSANOW, mode)
        return os.read(self._fd, 1)


__all__ = ["Seen", "Watch", "configure", "frame"]

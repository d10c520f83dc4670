"""All benchmarks in turn, and what they found as one report.

    python -m bench all [--quick] [--rounds N] [--only SUITES] [--pin | --free] [--json FILE]
                        [--markdown FILE] [--html FILE] [--readme README.md]

Takes ten minutes on two quiet cores, and less than one with `--quick`, whose figures say little.
Where the system can, `wire`, `tap` and `jobs` run with everything on one core: figures that repeat,
and in which a client's own work is what differs. `--free` leaves that to the scheduler.

Tables go to stdout, unless there is a file to write. `--readme` puts the lines of the speed table
between `<!-- figures -->` and `<!-- /figures -->` of a file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from emq.embedded import EmbeddedError

from . import page, report
from .figures import Progress, Run, Size
from .options import CAN_PIN, MOST_ROUNDS, one_core, some, terminal, up_to
from .report import Setting

# By suite, the part of the whole time that it takes.
SUITES: Final = {
    "bytes": 0.01,
    "codec": 0.07,
    "start": 0.08,
    "wire": 0.15,
    "tap": 0.05,
    "jobs": 0.47,
    "grow": 0.17,
}
PINNED: Final = ("wire", "tap", "jobs")
BEGIN: Final = "<!-- figures -->\n"
END: Final = "<!-- /figures -->"


def measure(
    size: Size, only: Sequence[str], progress: Progress, *, pin: bool
) -> tuple[dict[str, Run], dict[str, str]]:
    """Run some suites, in the order in which they are listed here.

    Answers:
        The runs by suite, and why there is none of the others.

    Raises:
        EmbeddedError: There is no server.
    """
    due = [name for name in SUITES if name in only]
    whole = sum(SUITES[name] for name in due)
    runs: dict[str, Run] = {}
    failed: dict[str, str] = {}
    begun = 0.0
    for name in due:
        suite: Callable[[Size, Progress], Run] = importlib.import_module(f"bench.{name}").suite
        told = partial(_within, progress, name, begun / whole, SUITES[name] / whole)
        try:
            with one_core() if pin and name in PINNED else nullcontext():
                runs[name] = suite(size, told)
        except EmbeddedError:
            raise
        except Exception as error:  # whatever it is, the other suites' figures are worth having
            failed[name] = f"{type(error).__name__}: {error}"
        begun += SUITES[name]
    progress("")
    return runs, failed


def _within(
    progress: Progress, suite: str, begun: float, share: float, text: str, part: float = 0.0
) -> None:
    if text:  # a suite that has ended is followed by the next one
        progress(f"{suite}: {text}", begun + share * part)


def replaced(text: str, figures: str) -> str:
    """Put figures between the two marks of a text.

    Raises:
        ValueError: It has not exactly one of each, in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in before or END in after:
        raise ValueError(f"needs one line {BEGIN.strip()} and one line {END} after it")
    return f"{before}{begin}{figures}\n{end}{after}"


def _options(argv: Sequence[str]) -> argparse.Namespace:
    line = argparse.ArgumentParser(prog="python -m bench all", description="All benchmarks.")
    line.add_argument("--quick", action="store_true", help="little of each, to see it run")
    line.add_argument("--rounds", type=up_to(MOST_ROUNDS), help="how often each is timed")
    line.add_argument(
        "--only",
        type=some(*SUITES),
        default=list(SUITES),
        metavar="SUITES",
        help=f"some of {','.join(SUITES)}",
    )
    either = line.add_mutually_exclusive_group()
    pinned = ", ".join(PINNED)
    either.add_argument("--pin", action="store_true", help=f"{pinned} on one core (where it can)")
    either.add_argument("--free", action="store_true", help="on whatever core")
    for form in ("json", "markdown", "html"):
        line.add_argument(f"--{form}", type=Path, metavar="FILE", help=f"write it as {form}")
    line.add_argument("--readme", type=Path, metavar="FILE", help="put the table there")
    options = line.parse_args(argv)
    if options.pin and not CAN_PIN:
        line.error("--pin needs Linux")
    options.pin = CAN_PIN and not options.free
    if options.readme:  # before ten minutes are spent
        try:
            replaced(options.readme.read_text("utf-8"), "")
        except (OSError, ValueError) as error:
            line.error(f"{options.readme}: {error}")
    return options


def main(argv: Sequence[str]) -> int:
    """Measure and tell; 3 where there is no server to measure on, 1 where a suite failed."""
    options = _options(argv)
    setting = Setting.here(PINNED if options.pin else ())
    size = Size(options.quick, options.rounds)
    try:
        runs, failed = measure(size, options.only, terminal(), pin=options.pin)
    except EmbeddedError as error:
        print(f"bench all: {error}", file=sys.stderr)
        return 3
    for name, reason in failed.items():
        print(f"bench all: {name}: {reason}", file=sys.stderr)
    try:
        _write(options, setting, runs)
    except (OSError, ValueError) as error:
        print(f"bench all: {error}", file=sys.stderr)
        return 1
    return 1 if failed else 0


def _write(options: argparse.Namespace, setting: Setting, runs: Mapping[str, Run]) -> None:
    asked = [options.json, options.markdown, options.html, options.readme]
    if not any(asked):
        for name, run in runs.items():
            print(f"== {name}\n\n{report.table(run)}\n")
        print("\n".join(setting.lines()))
    if options.json:
        options.json.write_text(json.dumps(report.document(setting, runs), indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(report.pages(setting, runs), "utf-8")
    if options.html:
        options.html.write_text(page.html(setting, runs), "utf-8")
    if options.readme:
        text = replaced(options.readme.read_text("utf-8"), report.readme(setting, runs))
        options.readme.write_text(text, "utf-8")

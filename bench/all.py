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
import os
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
FORMS: Final = ("json", "markdown", "html")
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
    for form in FORMS:
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
    for path in _files(options).values():
        if reason := _unwritable(path):
            line.error(f"{path}: {reason}")
    return options


def _files(options: argparse.Namespace) -> dict[str, Path]:
    """The files to write, by form."""
    found = {form: getattr(options, form) for form in (*FORMS, "readme")}
    return {form: path for form, path in found.items() if path}


def _unwritable(path: Path) -> str:
    """Why a file could not be written, or nothing; it stays as it is."""
    if path.is_dir():
        return "is a directory"
    if path.exists():
        return "" if os.access(path, os.W_OK) else "cannot be written"
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}"
    return "" if os.access(path.parent, os.W_OK) else f"{path.parent} cannot be written to"


def main(argv: Sequence[str]) -> int:
    """Measure and tell; 3 where there is no server to measure on, 1 where a suite failed."""
    options = _options(argv)
    size = Size(options.quick, options.rounds)
    try:
        runs, failed = measure(size, options.only, terminal(), pin=options.pin)
    except EmbeddedError as error:
        print(f"bench all: {error}", file=sys.stderr)
        return 3
    for name, reason in failed.items():
        print(f"bench all: {name}: {reason}", file=sys.stderr)
    setting = Setting.here([name for name in runs if options.pin and name in PINNED])
    written = _write(options, setting, runs)
    return 1 if failed or not written else 0


def _write(options: argparse.Namespace, setting: Setting, runs: Mapping[str, Run]) -> bool:
    """Tell what was found; False, with the reason on stderr, where a file was not written."""
    files = _files(options)
    if not files:
        for name, run in runs.items():
            print(f"== {name}\n\n{report.table(run)}\n")
        print("\n".join(setting.lines()))
    whole = True
    for form, path in files.items():
        try:
            path.write_text(_told(form, path, setting, runs), "utf-8")
        except (OSError, ValueError) as error:  # the other forms have the figures, too
            print(f"bench all: {path}: {error}", file=sys.stderr)
            whole = False
    return whole


def _told(form: str, path: Path, setting: Setting, runs: Mapping[str, Run]) -> str:
    match form:
        case "json":
            return json.dumps(report.document(setting, runs), indent=2) + "\n"
        case "markdown":
            return report.pages(setting, runs)
        case "html":
            return page.html(setting, runs)
        case _:
            return replaced(path.read_text("utf-8"), report.readme(setting, runs))

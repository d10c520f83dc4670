"""What the benchmarks' command lines share."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from .figures import Progress, Run, silent
from .report import as_json, table

# Above these, a run would take days, or more memory than the machine has.
MOST_CALLS: Final = 1_000_000
MOST_ROUNDS: Final = 10_000
MOST_BODY: Final = 64 << 20  # bytes

_BAR: Final = 20  # characters
_TEXT: Final = 56


def up_to(most: int) -> Callable[[str], int]:
    """Answer argparse's type of a whole number, 1 to `most`."""

    def number(text: str) -> int:
        # isdecimal before int(): that takes "1_0", and refuses long numbers in words of its own.
        if text.isascii() and text.isdecimal() and len(text) <= 12 and 1 <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 to {most:,}")

    return number


def some(*names: str) -> Callable[[str], list[str]]:
    """Answer argparse's type of a list of some names, with commas between."""

    def words(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [word for word in found if word not in names]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names)}")
        return found

    return words


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Begin the command line of a suite, with the options that all have."""
    found = argparse.ArgumentParser(prog=f"python -m bench {name}", description=description)
    found.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    return found


def tell(run: Run, *, as_document: bool) -> None:
    """Print a run, as a JSON document or as a table."""
    print(json.dumps(as_json(run), indent=2) if as_document else table(run))


def terminal() -> Progress:
    """Answer what tells progress on stderr, in one line, where that is a terminal."""
    return _on_terminal if sys.stderr.isatty() else silent


def _on_terminal(text: str, part: float = 0.0) -> None:
    bar = "#" * round(min(part, 1.0) * _BAR)
    line = f"[{bar:.<{_BAR}}] {text:{_TEXT}.{_TEXT}}" if text else " " * (_BAR + _TEXT + 3)
    print(f"\r{line}\r", end="", file=sys.stderr, flush=True)


# Affinity. Linux alone has it.

CAN_PIN: Final = hasattr(os, "sched_setaffinity")


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and those that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)

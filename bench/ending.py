"""How a command of the benchmarks or of the proofs ends, whatever ends it.

It imports nothing of the product, for what runs may be about to break or to instrument that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

UNREAD = 141
"""The exit code where whoever read stdout has gone: as if SIGPIPE had ended it."""
INTERRUPTED = 130
"""The exit code after Ctrl-C: as if SIGINT had ended it."""


def exit_code(command: Callable[[], int]) -> int:
    """Run a command; answer its exit code, or what stands for a closed pipe or Ctrl-C."""
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:  # now, while it can be told
                sys.stdout.flush()
    except BrokenPipeError:
        _drop()
        return UNREAD
    except KeyboardInterrupt:
        return INTERRUPTED


def needs_dev(command: str) -> SystemExit:
    """Say that a command needs the `dev` extra; answer what ends it with 2."""
    print(f"{command}: needs the dev extra; pip install -e '.[dev]'", file=sys.stderr)
    return SystemExit(2)


def _drop() -> None:
    """Let what stdout still holds go nowhere: the flush at exit must not fail on it again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

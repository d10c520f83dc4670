"""How a command of the benchmarks or of the proofs ends, whatever ends it.

It imports nothing of the product, for what runs may be about to break or to instrument that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

UNREAD = 141
"""The exit code where whoever read stdout has gone: as if SIGPIPE had ended it."""
INTERRUPTED = 130
"""The exit code after Ctrl-C: as if SIGINT had ended it."""
TERMINATED = 143
"""The exit code after SIGTERM."""


def exit_code(command: Callable[[], int]) -> int:
    """Run a command; answer its exit code, or what stands for a closed pipe, Ctrl-C or SIGTERM.

    Each of them unwinds the command, so that the servers and files that it made go with it.
    """
    told: list[int] = []
    before = _unwind_on_sigterm(told)
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
        return TERMINATED if told else INTERRUPTED
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        return TERMINATED if told else INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def lost_connection(error: BaseException) -> OSError | None:
    """Answer the lost connection that an error tells of, whichever client raised it; else None."""
    pending: list[BaseException | None] = [error]
    for each in pending:
        if isinstance(each, ConnectionError):
            return each
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
        if each is not None:
            pending.append(each.__cause__ or each.__context__)
    return None


def needs_dev(command: str) -> SystemExit:
    """Say that a command needs the `dev` extra; answer what ends it with 2."""
    print(f"{command}: needs the dev extra; pip install -e '.[dev]'", file=sys.stderr)
    return SystemExit(2)


def _unwind_on_sigterm(told: list[int]) -> Any:
    """Have SIGTERM do what Ctrl-C does, and note it; answer what it did before."""
    owner = os.getpid()

    def end(number: int, frame: object) -> None:
        if os.getpid() != owner:  # a forked child has nothing of its own to take away
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        told.append(number)
        if callable(signal.getsignal(signal.SIGINT)):  # an event loop has one of its own
            signal.raise_signal(signal.SIGINT)
        else:
            raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, end)


def _drop() -> None:
    """Let what stdout still holds go nowhere: the flush at exit must not fail on it again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

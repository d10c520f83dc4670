"""Stdout, where the commands put their data, and what becomes of data that it does not take."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from .errors import EmqError


class OutputError(EmqError):
    """Stdout cannot be written.

    Attributes:
        unread: Whoever read it has gone away: it was a pipe.
    """

    def __init__(self, message: str, *, unread: bool = False) -> None:
        super().__init__(message)
        self.unread = unread


def stdout() -> TextIO:
    """Answer the stream.

    Raises:
        OutputError: It was closed before the command began.
    """
    out: TextIO | None = sys.stdout
    if out is None:
        raise OutputError("stdout is closed; send it to a file, to a pipe or to /dev/null")
    return out


def write(text: str, out: TextIO) -> None:
    """Write a text and flush it, so that a failure is known while it can be told.

    Raises:
        OutputError: Not all of it, or of what was written before, could be written.
    """
    try:
        out.write(text)
        out.flush()
    except BrokenPipeError:
        raise OutputError("whoever read stdout has gone; nothing to do", unread=True) from None
    except OSError as error:
        raise OutputError(
            f"stdout cannot be written: {error.strerror or error}; make room, or send it elsewhere"
        ) from None


def drop() -> None:
    """Let what stdout still holds go nowhere: the flush at exit must not fail on it again."""
    if sys.stdout is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):  # a stream without a descriptor
        pass
    finally:
        os.close(nowhere)


__all__ = ["OutputError", "drop", "stdout", "write"]

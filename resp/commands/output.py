"""Where the commands put their data, and what becomes of data that nobody takes.

Stdout is data, stderr is talk.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Any, Final, TextIO

from ..errors import RespError

_PASSWORD: Final = re.compile(r":(?!//)[^\s:]\S*@")


def without_passwords(text: str) -> str:
    """Answer a text with the passwords of URLs in it masked: `valkey://user:***@host`."""
    return _PASSWORD.sub(":***@", text)


class OutputError(RespError):
    """What was to be written cannot be.

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


def write(text: str, out: Any = None) -> None:
    """Write a text and flush it, so that a failure is known while it can be told.

    Args:
        out: A text stream; None is stdout.

    Raises:
        OutputError: Not all of it, or of what was written before, could be written.
    """
    out = stdout() if out is None else out
    try:
        out.write(text)
        out.flush()
    except BrokenPipeError:
        raise OutputError("whoever read it has gone; nothing to do", unread=True) from None
    except OSError as error:
        name = "stdout" if out is sys.stdout else ascii(getattr(out, "name", "a file"))
        raise OutputError(
            f"{name} cannot be written: {error.strerror or error}; make room, or send it elsewhere"
        ) from None


def tell(told: str, *, who: str = "resp") -> None:
    """Say something on stderr, in one line, if there is one; without passwords of URLs."""
    if sys.stderr is not None:  # where it was closed, print would take stdout
        with suppress(OSError, ValueError):
            line = without_passwords(" ".join(told.split()))
            print(f"{who}: {line}", file=sys.stderr, flush=True)


def paints(out: Any, color: str = "auto") -> bool:
    """Whether a stream's text is coloured.

    Args:
        color: `always`, `never`, or `auto`: on a terminal, where NO_COLOR is not set.
    """
    if color != "auto":
        return color == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(out is not None and out.isatty())


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


__all__ = ["OutputError", "drop", "paints", "stdout", "tell", "without_passwords", "write"]

"""What commands print: tables and notes for people, JSON lines for programs.

Bytes and texts of a server are escaped before they are printed, so that no payload can move a
terminal's cursor, or look like a line of our own.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TextIO

from ..errors import EmqError
from ..output import stdout, write
from ..units import about

CUT: Final = 60  # characters of a payload where not all of it was asked for


class Unreadable(EmqError):
    """Something could not be read, and is shown as that: the rest was told."""


def say(*lines: str) -> None:
    """Write lines to stdout.

    Raises:
        OutputError: They could not be written.
    """
    out = stdout()
    write(encodable("".join(f"{line}\n" for line in lines), out), out)


def say_json(*documents: Mapping[str, Any]) -> None:
    """Write documents to stdout, one a line.

    Raises:
        OutputError: They could not be written.
    """
    say(*(json.dumps(document, separators=(",", ":")) for document in documents))


def note(text: str) -> None:
    """Write a line to stderr; it is talk, so whether anybody hears it does not matter."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(encodable(f"emq: {text}", sys.stderr), file=sys.stderr, flush=True)


class Progress:
    """A line on stderr that is written over again and again; nothing where that is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._print("\r\x1b[K")

    def tell(self, text: str) -> None:
        """Show a text in place of the one before; an empty one wipes that off."""
        self._print(f"\r\x1b[K{text}")

    def _print(self, text: str) -> None:
        if self._shown:
            with suppress(OSError):
                print(text, end="", file=sys.stderr, flush=True)


def encodable(text: str, out: TextIO) -> str:
    """Answer a text as a stream can write it; characters that it has not are escaped."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def printable(value: str | bytes, limit: int | None = CUT) -> str:
    """Answer a text as one that can be printed on one line, cut to `limit` characters.

    Bytes are read as UTF-8, and those that are not are escaped. So are a backslash and what has no
    glyph of its own: control characters, line ends, what turns the direction of writing.
    """
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    cut = text if limit is None else text[:limit]
    shown = "".join(_escaped(character) for character in cut)
    return shown if cut is text or len(text) == len(cut) else f"{shown}..."


def _escaped(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def blob(name: str, value: bytes | None) -> dict[str, Any]:
    """Answer bytes as a member of a JSON document: `name`, or `name_base64` if they are no text."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Answer a table's lines. Columns of numbers and of durations stand on the right."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [
        all(_is_number(cell) for cell in column[1:]) and len(column) > 1
        for column in zip(*lines, strict=True)
    ]
    return [
        "  ".join(
            cell.rjust(width) if numbers else cell.ljust(width)
            for cell, width, numbers in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]


def _is_number(cell: str) -> bool:
    return cell in ("", "-", "error") or cell.lstrip("-+~")[:1].isdigit()


def age(ms: float | None) -> str:
    """Answer a duration for a table; `-` where there is none."""
    return "-" if ms is None else about(ms)


__all__ = [
    "CUT",
    "Progress",
    "Unreadable",
    "age",
    "blob",
    "encodable",
    "note",
    "printable",
    "say",
    "say_json",
    "table",
]

"""How bytes of a peer become text for a terminal: escaped, cut, and coloured by what they are.

Nothing of a peer's reaches a terminal but characters with a glyph of their own. Control characters
could move the cursor, marks of direction could reorder what is read, and what has no width could
hide in it; those, and bytes that are no UTF-8, are written as `\\xNN`, one for each byte. So what
is shown between quotes can be read back to the very bytes.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# In printable ASCII only a quote and a backslash need an escape.
_PLAIN: Final = re.compile(rb"[ !#-\[\]-~]*")
_SHORT: Final = {ord("\r"): "\\r", ord("\n"): "\\n", ord("\t"): "\\t", 0x22: '\\"', 0x5C: "\\\\"}
# Letters by their category, and yet blank.
_BLANK: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800")

ELLIPSIS: Final = "…"


def escaped(text: bytes) -> str:
    """Answer bytes as one line of printable characters; UTF-8 stays text where it has glyphs."""
    if _PLAIN.fullmatch(text):
        return text.decode("ascii")
    return "".join(map(_escape, text.decode("utf-8", "surrogateescape")))


def _escape(character: str) -> str:
    code = ord(character)
    if code in _SHORT:
        return _SHORT[code]
    if (
        character.isprintable()
        and character not in _BLANK
        and (code < 0x300 or unicodedata.category(character) not in ("Mn", "Me"))
    ):
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def quoted(text: bytes, limit: int | None = None) -> str:
    """Answer bytes in quotes, cut to about `limit` columns; what is cut is told by its size."""
    if limit is None:
        return f'"{escaped(text)}"'
    shown, whole = clipped(text, limit)
    return f'"{shown}"' if whole else f'"{shown}{ELLIPSIS}" {len(text):,} B'


def clipped(text: bytes, limit: int) -> tuple[str, bool]:
    """Answer bytes escaped, as far as they fit into `limit` columns, and whether that is all."""
    if len(text) <= limit and _PLAIN.fullmatch(text):
        return text.decode("ascii"), True
    head = text[: 4 * limit + 4]  # no character has more than four bytes
    pieces: list[str] = []
    room = limit
    for character in head.decode("utf-8", "surrogateescape"):
        piece = _escape(character)
        room -= width(piece)
        if room < 0:
            return "".join(pieces), False
        pieces.append(piece)
    return "".join(pieces), len(head) == len(text)


def width(text: str) -> int:
    """Answer how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(character) in "WF" for character in text)


def padded(text: str, columns: int) -> str:
    """Answer a text with blanks behind it, so that it takes so many columns."""
    return text + " " * (columns - width(text))


class Style:
    """How the roles of bytes are told apart.

    Args:
        colors: With ANSI's sixteen colours, those that are legible on light and on dark; else
            without any.
    """

    __slots__ = ("_codes", "colors")

    def __init__(self, colors: bool) -> None:
        self.colors = colors
        self._codes = _CODES if colors else {}

    def paint(self, role: str, text: str) -> str:
        """Answer a text in the colour of a role."""
        code = self._codes.get(role)
        return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


_CODES: Final = {
    "framing": "90", "command": "1", "digest": "35", "script": "34", "key": "36",
    "payload": "32", "status": "32", "number": "36", "null": "90",
    "error": "31", "malformed": "1;31", "faint": "90", "title": "1",
}  # fmt: skip

PLAIN: Final = Style(False)
COLORS: Final = Style(True)

__all__ = [
    "COLORS", "ELLIPSIS", "PLAIN", "Style", "clipped", "escaped", "padded", "quoted", "width",
]  # fmt: skip

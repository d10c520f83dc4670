r"""A typed line into the arguments of a command, by redis-cli's rules.

SET greeting "hello\x00\n"      double quotes: \n \r \t \b \a \\ \" and \xHH, a byte
SET greeting 'it\'s'            single quotes: \' alone
SET a"b c"d x                   quotes may begin inside of a word, and end it
"""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(r"[^\s\"']+")
_BLANK: Final = re.compile(r"\s*")
_DOUBLE: Final = re.compile(r"[^\"\\]+|\\x([0-9a-fA-F]{2})|\\(.)|\"", re.DOTALL)
_SINGLE: Final = re.compile(r"(?:[^'\\]|\\(?!'))+|\\(')|'", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "a": "\a"}
_NAMES: Final = {
    ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", ord("\b"): "\\b", ord("\a"): "\\a",
    ord("\\"): "\\\\", ord('"'): '\\"',
}  # fmt: skip
_SHOWN: Final = [
    _NAMES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")
    for byte in range(256)
]
# What needs no quotes. A backslash would begin one of the shell's own commands.
_BARE: Final = re.compile(rb"[!#-&(-\[\]-~]+")


class LineError(ValueError):
    """A line that is no command.

    Attributes:
        column: Of the character at fault, from 1.
    """

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message, column)
        self.column = column

    def __str__(self) -> str:
        return f"column {self.column}: {self.args[0]}"


def split(line: str) -> list[bytes]:
    """Answer the words of `line`, text as UTF-8.

    Args:
        line: What was typed; bytes that are no UTF-8 stand in it as `surrogateescape` has them.

    Raises:
        LineError: A quote is not closed, or something sticks to a closed one.
    """
    words: list[bytes] = []
    at = _end(_BLANK, line, 0)
    while at < len(line):
        word, at = _word(line, at)
        words.append(word)
        at = _end(_BLANK, line, at)
    return words


def _end(pattern: re.Pattern[str], line: str, at: int) -> int:
    found = pattern.match(line, at)
    return found.end() if found is not None else at


def _word(line: str, at: int) -> tuple[bytes, int]:
    parts: list[bytes] = []
    while at < len(line) and not line[at].isspace():
        quote = line[at]
        if quote not in "\"'":
            after = _end(_PLAIN, line, at)
            parts.append(line[at:after].encode("utf-8", "surrogateescape"))
            at = after
            continue
        opened, at = at, at + 1
        pattern = _DOUBLE if quote == '"' else _SINGLE
        while True:
            found = pattern.match(line, at)
            if found is None:
                raise LineError(f"the {quote} is not closed", opened + 1)
            at = found.end()
            if found[0] == quote:
                break
            parts.append(_unescaped(found))
        if at < len(line) and not line[at].isspace():
            raise LineError(f"a blank must follow the closing {quote}", at + 1)
    return b"".join(parts), at


def _unescaped(found: re.Match[str]) -> bytes:
    groups = found.groups()
    if len(groups) == 2 and groups[0] is not None:
        return bytes.fromhex(groups[0])
    character = groups[-1]
    if character is None:
        text = found[0]
    elif len(groups) == 2:
        text = _ESCAPES.get(character, character)
    else:
        text = character
    return text.encode("utf-8", "surrogateescape")


def quoted(data: bytes) -> str:
    r"""Answer `data` between double quotes, as it can be typed: printable ASCII and escapes."""
    return '"' + "".join([_SHOWN[byte] for byte in data]) + '"'


def typed(word: bytes) -> str:
    """Answer `word` as it can be typed, quoted only where it must be."""
    return word.decode("ascii") if _BARE.fullmatch(word) else quoted(word)


__all__ = ["LineError", "quoted", "split", "typed"]

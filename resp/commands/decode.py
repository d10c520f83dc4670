r"""`python -m resp decode`: what bytes on stdin say, and where they stop making sense.

The bytes may come as they are, or written down: as a hex dump (`xxd`, `hexdump -C`, `od -A x`), as
hex digits, as a Python literal, or with escapes as logs have them (`*1\r\n$4\r\nPING\r\n`). Which
of these it is, the beginning tells: RESP has a CRLF in its first line, a text has none.

Bytes as they are, are shown as they come, a command or reply at a time.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import io
import re
import sys
from collections.abc import Callable, Iterator
from typing import Final, cast

from ..decode import NEED_DATA, Decoder
from ..errors import ProtocolError
from ..tap.frames import Node, parse, unquoted
from ..tap.scan import Scanner
from ..tap.style import COLORS, PLAIN
from . import output, typed
from .words import quoted
from .words import typed as typed_word

_CHUNK: Final = 64 * 1024
_HEAD: Final = 4 * 1024  # bytes that are looked at, for what they are
_EXAMPLES: Final = r"""
examples:
  printf '*1\r\n$4\r\nPING\r\n' | python -m resp decode --requests
  echo '%1\r\n+a\r\n:1\r\n' | python -m resp decode
  echo '2b 4f 4b 0d 0a' | python -m resp decode --as hex
  xxd reply.bin | python -m resp decode --as json

Exit codes: 0 done, 1 bytes that are no RESP, or that are not whole, 2 wrong usage.
"""


class InputError(ValueError):
    """A text that stands for no bytes; the message says where."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Tell `parser` what the command takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Read RESP on stdin, as bytes or written down (hex dumps, hex digits, escapes as in logs,\n"
        "Python literals), and show it; malformed bytes up to the offending one."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--as",
        dest="form",
        choices=("tree", "hex", "values", "json"),
        default="tree",
        help="tree: each token with its offset (default); hex: offsets, bytes and text; values: "
        "as the shell shows replies; json: a line for each",
    )
    source = parser.add_mutually_exclusive_group()
    for name, told in (
        ("raw", "stdin is the bytes themselves"),
        ("hex", "stdin is a hex dump, or hex digits"),
        ("base64", "stdin is base64"),
    ):
        source.add_argument(f"--{name}", dest="source", action="store_const", const=name, help=told)
    parser.add_argument(
        "--requests",
        action="store_true",
        help="they are a client's: commands, among them such as are lines of words",
    )


def run(options: argparse.Namespace) -> int:
    """Show what stdin says; the exit code."""
    try:
        chunks = read(options.source)
        return _Reader(options).run(chunks)
    except InputError as error:
        output.tell(str(error))
        return 1


class _Reader:
    """Shows frames, one by one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._requests: bool = options.requests
        self._decoder = Decoder()
        self._write: Callable[[int, bytes, list[Node]], None] = {
            "tree": self._tree,
            "hex": self._hex,
            "values": self._value,
            "json": self._value,
        }[options.form]
        self._json = options.form == "json"
        self._style = COLORS if output.paints(output.stdout()) else PLAIN

    def run(self, chunks: Iterator[bytes]) -> int:
        """Show the frames of a stream until it ends, or is no RESP any more; the exit code."""
        # Of a long frame every byte is shown, so it is kept.
        scanner = Scanner(requests=self._requests, keep=sys.maxsize)
        for chunk in chunks:
            for at, _, data, _ in scanner.feed(chunk):
                if not self._frame(at, data):
                    return 1
            output.write("")
            if scanner.fault:
                break
        if not scanner.offset:
            output.tell("stdin is empty; nothing to decode")
        if not scanner.open_size:
            return 0
        at, data = scanner.open_at, scanner.open()
        nodes = parse(data, at, inline=self._requests)
        self._write(at, data, nodes)
        told = _told(nodes) or scanner.fault or "the input ends within a frame"
        if nodes and nodes[0].mark == "?" and not nodes[0].at:
            told += _what_else(data)
        output.tell(told)
        return 1

    def _frame(self, at: int, data: bytes) -> bool:
        """Show a frame that has an end; whether it is RESP in between, too."""
        nodes = parse(data, at, inline=self._requests)
        self._write(at, data, nodes)
        told = _told(nodes)
        if told:
            output.tell(told)
        return not told

    def _tree(self, at: int, data: bytes, nodes: list[Node]) -> None:
        from ..tap import views

        _say("\n".join(views.tree_of(nodes, style=self._style)))

    def _hex(self, at: int, data: bytes, nodes: list[Node]) -> None:
        from ..tap import views

        _say("\n".join(views.hexdump_of(nodes, data, at, style=self._style)))

    def _value(self, at: int, data: bytes, nodes: list[Node]) -> None:
        if self._requests:
            self._words(nodes)
            return
        decoder = self._decoder
        try:
            decoder.feed(data)
            reply = decoder.next()
        except ProtocolError:  # told by its tree
            return
        if reply is NEED_DATA:
            return
        attributes = decoder.attributes
        if self._json:
            told = typed.as_json(reply)
            if attributes is not None:
                told = f'{{"$attributes": {typed.as_json(attributes)}, "$reply": {told}}}'
        else:
            told = typed.formatted(reply)
            if attributes is not None:
                told = f"(attributes)\n{typed.formatted(attributes)}\n{told}"
        _say(told)

    def _words(self, nodes: list[Node]) -> None:
        for node in nodes:
            if node.mark == "?" or node.error:
                continue
            line = node.mark == "inline"
            words = [unquoted(item.value) if line else item.value for item in node.items]
            _say(typed.as_json(words) if self._json else " ".join(map(typed_word, words)))


def _say(text: str) -> None:
    out = output.stdout()
    encoding = getattr(out, "encoding", None) or "utf-8"
    try:
        out.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    except OSError:
        output.write("", out)  # which tells
        raise


def _told(nodes: list[Node]) -> str:
    """What is wrong with a frame, from the outermost to the innermost, or `""`."""
    wrong = []
    trail = nodes[-1:]
    while trail:
        node = trail[-1]
        if node.error:
            wrong.append(node)
        trail = node.items[-1:]
    if not wrong:  # an error in the middle leaves what is behind it in order
        wrong = [node for root in nodes for node in _walk(root) if node.error][:1]
    if not wrong:
        return ""
    last = wrong[-1]
    if last.mark == "?" and last.error != "not whole":
        return last.error
    parts = [
        f"{node.error} ({_NAMES.get(node.mark, 'a line')} at offset {node.at})" for node in wrong
    ]
    if last.error == "a push inside another reply":
        return parts[-1]
    return f"the input ends at offset {last.end}, too early: {', '.join(reversed(parts))}"


def _what_else(data: bytes) -> str:
    """What to do with an input that is no RESP from its first byte on."""
    if data.startswith(b"\x89RESPTAP"):
        return "; it is a recording, which python -m resp tap FILE shows"
    return "; RESP is wanted, or a dump of it: see python -m resp decode --help"


_NAMES: Final = {
    "*": "an array", "%": "a map", "~": "a set", ">": "a push", "|": "attributes",
    "$": "a bulk string", "!": "an error", "=": "a verbatim string", ";": "a chunk",
}  # fmt: skip


def _walk(node: Node) -> Iterator[Node]:
    work = [node]
    while work:
        found = work.pop()
        yield found
        work.extend(reversed(found.items))


# What stdin is.

_RESP: Final = re.compile(rb"[-+:,#(_$!=*%~>|;.][^\r\n]*\r\n")
_DUMPED: Final = re.compile(
    r"\s*(?:[0-9a-fA-F]{6,16}:\s|0{6,16}\s|[0-9a-fA-F]{6,16}\s.*\|\s*$)", re.M
)
_LITERAL: Final = re.compile(r"[\s(\[]*[bB]?[\"']")
_ESCAPED: Final = re.compile(r"\\(?:[rn0]|x[0-9a-fA-F]{2})")
_MARKED: Final = re.compile(r"\s*[-+:,#($_!=*%~>|;.]")
# RESP in quotes, with anything around it: `read(3, "+OK\r\n", 100) = 5`.
_LOGGED: Final = re.compile(r"""(["'])([-+:,#(_$!=*%~>|](?:\\.|(?!\1)[^\\\n])*?\\r\\n)\1""")
_DIGITS: Final = re.compile(r"(?:0[xX])?[0-9a-fA-F]+(?:[\s,:;]+(?:0[xX])?[0-9a-fA-F]+)*[\s,:;]*")


def read(source: str | None) -> Iterator[bytes]:
    """Answer the bytes that stdin is or stands for, in chunks.

    Args:
        source: `raw`, `hex`, `base64`, or None to find out.

    Raises:
        InputError: It stands for none.
    """
    if sys.stdin is None:
        return iter(())
    stdin = cast(io.BufferedReader, sys.stdin.buffer)
    if source == "raw":
        return iter(lambda: stdin.read1(_CHUNK), b"")
    head = b""
    if source is None:
        while len(head) < _HEAD and b"\n" not in head:
            chunk = stdin.read1(_CHUNK)
            if not chunk:
                break
            head += chunk
        if _RESP.match(head):
            return _joined(head, iter(lambda: stdin.read1(_CHUNK), b""))
    data = head + stdin.read()
    if source == "base64":
        return iter((_base64(data),))
    return iter((written(data, source == "hex"),))


def _joined(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from rest


def written(data: bytes, digits: bool = False) -> bytes:
    """Answer the bytes that a text stands for; itself, if it is none.

    Args:
        data: The text.
        digits: Whether it is known to be a hex dump or hex digits.

    Raises:
        InputError: It is a dump, or digits, and does not go on as one.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if digits:
            raise InputError(f"no hex: byte {data[error.start]:#04x} at {error.start}") from None
        return data
    if _DUMPED.match(text):
        return _undumped(text)
    if digits:
        return _from_digits(text)
    if _LITERAL.match(text):
        return _from_literals(text)
    if _ESCAPED.search(text):
        if _LOGGED.search(text) and not _MARKED.match(text):
            return _unescaped("".join(found[2] for found in _LOGGED.finditer(text)))
        # Lines as they were pasted: those of the stream are escapes.
        return _unescaped(text.replace("\r", "").replace("\n", ""))
    if _DIGITS.fullmatch(text.strip()):
        return _from_digits(text)
    return data


def _base64(data: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"no base64: {error}") from None


_NO_DIGIT: Final = re.compile(r"[^0-9a-fA-F\s,:;]")
_BETWEEN: Final = re.compile(r"0[xX]|[\s,:;]+")


def _from_digits(text: str) -> bytes:
    digits = _BETWEEN.sub("", text)
    wrong = _NO_DIGIT.search(digits)
    if wrong:
        at = text.index(wrong[0])
        line = text.count("\n", 0, at) + 1
        column = at - (text.rfind("\n", 0, at) + 1) + 1
        raise InputError(f"no hex: line {line}, column {column} has {quoted(wrong[0].encode())}")
    if len(digits) % 2:
        raise InputError(f"no hex: {len(digits)} digits, and a byte has two; one is missing")
    return bytes.fromhex(digits)


_OFFSET: Final = re.compile(r"\s*([0-9a-fA-F]{6,16})(:?)\s*")
# The groups, up to the column of text: that begins behind two blanks or a bar.
_GROUPS: Final = re.compile(r"(?:[0-9a-fA-F]{2,16}(?:\s{1,2}(?=[0-9a-fA-F])|\s|$))*")


def _undumped(text: str) -> bytes:
    """Answer the bytes of a dump: of `xxd`, of `hexdump` with and without -C, of `od`."""
    try:
        return _of_dump(text, 16)
    except InputError:
        # od counts in octal, if it is not told otherwise.
        try:
            return _of_dump(text, 8)
        except ValueError:
            pass
        raise


def _of_dump(text: str, radix: int) -> bytes:
    data = bytearray()
    base: int | None = None
    line_bytes = b""
    squeezed = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if line.strip() == "*":  # the line before, again and again
            squeezed = True
            continue
        found = _OFFSET.match(line)
        if found is None:
            raise InputError(f"no dump: line {number} does not begin with an offset")
        offset = int(found[1], radix)
        base = offset if base is None else base
        here = offset - base
        if squeezed and line_bytes and here > len(data):
            if here - len(data) > 1 << 30:
                raise InputError(f"no dump: line {number} skips {here - len(data):,} bytes")
            missing = here - len(data)
            data += (line_bytes * (missing // len(line_bytes) + 1))[:missing]
        squeezed = False
        rest = line[found.end() :]
        if not rest:  # the last line is where it ends: within the word of an odd one
            del data[max(here, 0) :]
            continue
        if here != len(data):
            raise InputError(
                f"no dump: line {number} is at offset {offset:#x}, and {len(data)} bytes came so "
                "far; a line is missing"
            )
        line_bytes = _line_of_dump(rest, bool(found[2]), number)
        data += line_bytes
    return bytes(data)


def _line_of_dump(rest: str, colon: bool, number: int) -> bytes:
    if colon:  # xxd: two blanks, then text
        groups = re.split(r"\s{2,}", rest, maxsplit=1)[0].split()
    else:
        groups = re.split(r"[|>]", rest, maxsplit=1)[0].split()
    for group in groups:
        if not re.fullmatch(r"(?:[0-9a-fA-F]{2}){1,16}", group) or (
            not colon and len(group) not in (2, 4)
        ):
            raise InputError(
                f"no hex dump: line {number} has {quoted(group.encode()[:40])}; xxd, hexdump -C "
                "and od -A x -t x1 make one"
            )
    if not colon and groups and len(groups[0]) == 4:
        # Words of a little-endian machine.
        return b"".join(bytes.fromhex(group)[::-1] for group in groups)
    return bytes.fromhex("".join(groups))


_LITERALS: Final = re.compile(
    r"""[\s,+()\[\]]*(?:[bB]?(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'))""", re.DOTALL
)


def _from_literals(text: str) -> bytes:
    parts = []
    at = 0
    while found := _LITERALS.match(text, at):
        parts.append(_unescaped(found[1] if found[1] is not None else found[2]))
        at = found.end()
    if text[at:].strip(" \t\r\n,+()[]"):
        line = text.count("\n", 0, at) + 1
        column = at - (text.rfind("\n", 0, at) + 1) + 1
        raise InputError(f"no literal: line {line}, column {column}: a quote is not closed")
    return b"".join(parts)


_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{1,3})|(\n)|(.))", re.DOTALL)
_CONTROLS: Final = {
    "n": b"\n", "r": b"\r", "t": b"\t", "a": b"\a", "b": b"\b", "f": b"\f", "v": b"\v",
    "e": b"\x1b",
}  # fmt: skip


def _unescaped(text: str) -> bytes:
    parts = []
    at = 0
    for found in _ESCAPE.finditer(text):
        parts.append(text[at : found.start()].encode())
        at = found.end()
        hexed, octal, line_end, other = found.groups()
        if hexed is not None:
            parts.append(bytes.fromhex(hexed))
        elif octal is not None:
            parts.append(bytes([int(octal, 8) & 0xFF]))
        elif line_end is None:
            parts.append(
                _CONTROLS.get(other) or (other if other in "\\\"'?" else f"\\{other}").encode()
            )
    parts.append(text[at:].encode())
    return b"".join(parts)


__all__ = ["InputError", "arguments", "read", "run", "written"]

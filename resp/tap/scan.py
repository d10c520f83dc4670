"""Where one command or reply ends and the next begins: a stream cut into frames, quickly.

A tap and a proxy see chunks. Whoever pairs commands with replies needs to know only where frames
end, so values are not built and contents not checked: a frame is looked into when it is shown. The
work is proportional to the bytes however they are cut, and no more than `keep` bytes of a frame are
held.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

KEEP: Final = 1 << 20
"""Bytes that are kept of a frame, by default."""

_MAX_LINE: Final = 64 * 1024  # as for the decoder
_MAX_DEPTH: Final = 128
_MAX_LENGTH: Final = 20  # digits
_SPLIT: Final = 256 * 1024  # bytes of a chunk that is worth splitting into lines

_COUNTS: Final = {b"*%d" % count: count for count in range(1, 129)}
_LENGTHS: Final = {b"%d" % size: size for size in range(1024)}
_LENGTH: Final = re.compile(rb"0|[1-9][0-9]{0,%d}" % (_MAX_LENGTH - 1))

_ARRAY: Final = ord("*")
_BULK: Final = ord("$")
_ATTRIBUTE: Final = ord("|")
_CHUNK: Final = ord(";")
_END: Final = ord(".")
_LINES: Final = frozenset(b"+-:,#(_")
_BLOBS: Final = frozenset(b"$!=")
_WIDTHS: Final = {ord("*"): 1, ord("%"): 2, ord("~"): 1, ord(">"): 1, ord("|"): 2}
_MARKS: Final = frozenset({*_LINES, *_BLOBS, *_WIDTHS, _CHUNK, _END})
_NULLABLE: Final = frozenset(b"$*")
_STREAMABLE: Final = frozenset(b"$*%~")

_NO_CRLF: Final = "a blob that does not end with CRLF"

# Lengths that are none.
_NULL: Final = -1
_STREAM: Final = -2

# Items that an open aggregate misses, where that is no plain number.
_ENDLESS: Final = -1  # until the end mark
_TEXT: Final = -2  # a streamed string: until the empty chunk
_NOTES: Final = 1 << 48  # added to those of attributes, which are no item of what is around them

Found: TypeAlias = tuple[int, int, bytes, "tuple[bytes, ...] | None"]
"""A frame: offset, size, its first `keep` bytes, and a command's arguments where they are known."""


class Scanner:
    """Cuts one direction of a connection into frames.

    Args:
        requests: It is the client's: arrays of bulk strings, or commands that are lines.
        keep: Bytes kept of a frame.

    Attributes:
        offset: Bytes fed so far.
        fault: What ended the stream's being RESP, or `""`. The frame in which that happened stays
            open, with all that comes behind it.
    """

    __slots__ = (
        "_carry", "_held", "_keep", "_requests", "_size", "_stack", "_want", "_whole",
        "fault", "offset",
    )  # fmt: skip

    def __init__(self, *, requests: bool = False, keep: int = KEEP) -> None:
        self._requests = requests
        self._keep = keep
        self._held = bytearray()  # of the open frame, but its last line if that is not whole
        self._size = 0  # bytes of the open frame, without _carry
        self._carry = bytearray()  # a line that is not whole
        self._want = 0  # bytes of a blob, with its CRLF, that are still to come
        self._stack: list[int] = []  # items that the open aggregates miss
        self._whole = False  # whether the token taken last was a frame's last
        self.fault = ""
        self.offset = 0

    @property
    def open_at(self) -> int:
        """Offset of the frame that is not whole; `offset` if there is none."""
        return self.offset - self._size - len(self._carry)

    @property
    def open_size(self) -> int:
        """Bytes that are there of the frame that is not whole."""
        return self._size + len(self._carry)

    @property
    def open_mark(self) -> int:
        """The first byte of the frame that is not whole, or 0."""
        return (self._held or self._carry or b"\0")[0]

    def open(self) -> bytes:
        """Answer what is there of the frame that is not whole, its first `keep` bytes."""
        return bytes(self._held + self._carry)[: self._keep]

    def feed(self, data: bytes) -> list[Found]:
        """Take a chunk. Answer the frames that end in it, in order."""
        start = self.offset
        self.offset += len(data)
        found: list[Found] = []
        if self.fault:
            self._hold(data)
        elif self._size or self._carry:
            self._go_on(data, start, found)
        else:
            position = self._plain_commands(data, 0, start, found) if self._requests else 0
            if position < len(data):
                self._scan(data, start, position, position, found)
        return found

    def _plain_commands(self, data: bytes, position: int, start: int, found: list[Found]) -> int:
        """Add the plain commands from `position` on, many at once; where that ends."""
        if position == len(data) or len(data) > min(_SPLIT, self._keep):
            return position
        return position + _split(data[position:], start + position, found)

    def _go_on(self, data: bytes, start: int, found: list[Found]) -> None:
        """Take a chunk that begins inside a frame."""
        position = begin = 0
        if self._want:
            tail = data[max(self._want - 2, 0) : self._want]
            if tail != b"\r\n"[max(2 - self._want, 0) :][: len(tail)]:
                self._fail(_NO_CRLF)
                self._hold(data)
                return
            if len(data) < self._want:
                self._want -= len(data)
                self._hold(data)
                return
            position = self._want
            self._want = 0
            if self._taken():
                self._found(data, 0, position, start, found)
                if self._requests:
                    position = self._plain_commands(data, position, start, found)
                begin = position
        elif self._carry:
            if b"\n" not in data and len(self._carry) + len(data) <= _MAX_LINE:
                self._carry += data
                return
            start -= len(self._carry)
            data = bytes(self._carry) + data
            self._carry.clear()
        self._scan(data, start, begin, position, found)

    def _scan(self, data: bytes, start: int, begin: int, position: int, found: list[Found]) -> None:
        """Take the tokens of `data` from `position` on.

        Args:
            start: Offset of the first byte of `data`.
            begin: Where in it the bytes of the open frame begin that are not held yet.
        """
        size = len(data)
        inside = self._size > 0
        while position < size:
            if not self._requests and not self._stack:
                after = _scalar(data, position)
                if after and not self._size and after - begin <= self._keep:
                    found.append((start + begin, after - begin, data[begin:after], None))
                    begin = position = after
                    continue
            after = self._token(data, position)
            if after > size:  # a blob that goes on in the next chunk
                self._want = after - size
                position = size
            elif after > 0:
                position = after
                if self._whole:
                    self._found(data, begin, position, start, found)
                    if inside and self._requests:
                        inside = False
                        position = self._plain_commands(data, position, start, found)
                    begin = position
            else:
                if self.fault:
                    position = size
                break
        self._hold(data[begin:position])
        self._carry += data[position:]

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        room = self._keep - len(self._held)
        if room > 0:
            self._held += piece[:room]

    def _found(self, data: bytes, begin: int, end: int, start: int, found: list[Found]) -> None:
        """Add the frame that ends at `end` of `data`."""
        if not self._size:
            piece = data[begin : min(end, begin + self._keep)]
            found.append((start + begin, end - begin, piece, None))
            return
        self._hold(data[begin:end])
        found.append((start + end - self._size, self._size, bytes(self._held), None))
        self._held.clear()
        self._size = 0

    def _taken(self) -> bool:
        """An item is whole, and so are the aggregates that end with it; is the frame?"""
        stack = self._stack
        while stack:
            left = stack[-1]
            if left < 0:
                return False
            if left == _NOTES + 1:  # what the attributes belong to comes next
                stack.pop()
                return False
            if left != 1:
                stack[-1] = left - 1
                return False
            stack.pop()
        return True

    def _token(self, data: bytes, position: int) -> int:
        """Take one token; where it ends, which is beyond the data for a blob that goes on there.

        Answers 0 if the token is not whole, or is none: then `fault` says so.
        """
        mark = data[position]
        self._whole = False
        if self._requests:
            if not self._stack and mark != _ARRAY:
                return self._line_of_words(data, position)
            if self._stack and mark != _BULK:
                return self._fail("a command's argument that is no bulk string")
        eol = data.find(b"\r\n", position + 1, position + _MAX_LINE + 3)
        if eol < 0:
            if mark not in _MARKS:
                return self._fail("an unknown type")
            if len(data) - position > _MAX_LINE + 1:
                return self._fail("a line of more than 64 KiB")
            return 0
        if mark in _LINES:
            if self._stack and self._stack[-1] == _TEXT:
                return self._fail("something else inside a streamed string")
            self._whole = self._taken()
            return eol + 2
        if mark not in _MARKS:
            return self._fail("an unknown type")
        line = data[position + 1 : eol]
        length = _LENGTHS.get(line)
        if length is None:
            length = self._odd_length(mark, line)
        if self.fault:
            return 0
        if (mark == _CHUNK) is not (bool(self._stack) and self._stack[-1] == _TEXT):
            return self._fail("a chunk outside a streamed string, or something else inside one")
        if mark in _WIDTHS:
            self._open(mark, length)
            return eol + 2 if not self.fault else 0
        if length == _NULL:
            self._whole = self._taken()
            return eol + 2
        if length == _STREAM:
            self._stack.append(_TEXT)
            return eol + 2
        if mark == _CHUNK and not length:
            self._stack.pop()
            self._whole = self._taken()
            return eol + 2
        end = eol + 2 + length + 2
        if not b"\r\n".startswith(data[end - 2 : end]):  # as far as it is there
            return self._fail(_NO_CRLF)
        if end <= len(data):
            self._whole = self._taken()
        return end

    def _odd_length(self, mark: int, line: bytes) -> int:
        """Read what is no small number: a large one, a null, a stream, or an end mark's nothing."""
        if not self._requests:
            if line == b"-1" and mark in _NULLABLE:
                return _NULL
            if line == b"?" and mark in _STREAMABLE:
                return _STREAM
            if mark == _END and not line:
                return self._end()
        elif line == b"-1" and mark == _ARRAY:
            return 0  # a server takes it for nothing
        if not _LENGTH.fullmatch(line):
            return self._fail("not a length")
        return int(line)

    def _end(self) -> int:
        if not self._stack or self._stack[-1] != _ENDLESS:
            return self._fail("an end without a streamed aggregate")
        self._stack.pop()
        return _NULL  # from here on it is taken as a whole item

    def _open(self, mark: int, length: int) -> None:
        if length == _NULL or not length:
            self._whole = mark != _ATTRIBUTE and self._taken()
        elif len(self._stack) >= _MAX_DEPTH:
            self._fail(f"more than {_MAX_DEPTH} aggregates inside each other")
        elif length == _STREAM:
            self._stack.append(_ENDLESS)
        else:
            left = length * _WIDTHS[mark]
            self._stack.append(left + _NOTES if mark == _ATTRIBUTE else left)

    def _fail(self, message: str) -> int:
        self.fault = message
        return 0

    def _line_of_words(self, data: bytes, position: int) -> int:
        lf = data.find(b"\n", position, position + _MAX_LINE + 2)
        if lf >= 0:
            self._whole = True
            return lf + 1
        if len(data) - position > _MAX_LINE:
            return self._fail("a line of more than 64 KiB")
        return 0


def _scalar(data: bytes, position: int) -> int:
    """Where a plain scalar ends that is whole; 0 for anything else."""
    mark = data[position]
    if mark == _BULK:
        eol = data.find(b"\r\n", position + 1, position + 6)
        length = _LENGTHS.get(data[position + 1 : eol]) if eol > 0 else None
        if length is None:
            return 0
        end = eol + length + 4
        return end if data[end - 2 : end] == b"\r\n" else 0
    if mark in _LINES:
        eol = data.find(b"\r\n", position + 1, position + _MAX_LINE + 3)
        return eol + 2 if eol > 0 else 0
    return 0


def _split(data: bytes, start: int, found: list[Found]) -> int:
    """Add the commands at the head of `data`, as long as they are plain; where that ends.

    An argument with a CRLF of its own, or anything that is no array of bulk strings, stops it.
    """
    lines = data.split(b"\r\n")
    most = len(lines) - 1
    at = position = 0
    while at < most:
        count = _COUNTS.get(lines[at])
        if count is None:
            break
        after = at + 1 + 2 * count
        if after > most:
            break
        words = lines[at + 2 : after : 2]
        if [b"$%d" % len(word) for word in words] != lines[at + 1 : after : 2]:
            break
        end = position + sum(map(len, lines[at:after])) + 2 * (after - at)
        found.append((start + position, end - position, data[position:end], tuple(words)))
        position = end
        at = after
    return position


__all__ = ["KEEP", "Found", "Scanner"]

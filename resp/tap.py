"""Every byte, recorded: what crossed a connector's sockets, when, and which way.

    tap = Tap()
    with connect(url, tap=tap) as connector:
        connector.command("PING")
    for record in tap:
        print(record.sent, record.data)

Passwords are masked before a record is made, and so are the arguments that a server quotes when it
does not know a command; the mask has their length, so that sizes and offsets stay those of the
wire.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple


class Record(NamedTuple):
    """One write, or one read.

    Attributes:
        time_ns: `time.monotonic_ns()` just before a write, just after a read.
        connection: Number of the connection, counted from 1 within the tap.
        sent: True for bytes written, False for bytes read.
        data: The bytes, passwords masked.
    """

    time_ns: int
    connection: int
    sent: bool
    data: bytes


class Tap:
    """The last `capacity` reads and writes of the connectors it was given to.

    Args:
        capacity: Records kept; the oldest go first.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be above 0: {capacity}")
        self._records: deque[Record] = deque(maxlen=capacity)
        self._connections = 0

    def connection(self) -> int:
        """A number for a new connection."""
        self._connections += 1
        return self._connections

    def write(self, connection: int, data: bytes) -> None:
        """Record bytes that are about to be written."""
        self._records.append(Record(time.monotonic_ns(), connection, True, mask(data)))

    def read(self, connection: int, data: bytes) -> None:
        """Record bytes that were read."""
        self._records.append(Record(time.monotonic_ns(), connection, False, mask_reply(data)))

    def clear(self) -> None:
        """Forget what was recorded."""
        self._records.clear()

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records))

    def __len__(self) -> int:
        return len(self._records)


# Where a secret may stand: AUTH, HELLO .. AUTH, ACL SETUSER, CONFIG SET requirepass, MIGRATE.
_MAY_HOLD_SECRET: Final = re.compile(
    rb"\r\n(?:AUTH2?|SETUSER|[A-Z-]{0,32}(?:PASS|AUTH)[A-Z-]{0,32})\r\n", re.IGNORECASE
)
_BULK: Final = re.compile(rb"\$([0-9]+)\r\n")
_ARRAY: Final = re.compile(rb"\*([0-9]+)\r\n")


_QUOTED: Final = re.compile(rb"(?<=with args beginning with: )[^\r\n]*")


def mask_reply(data: bytes) -> bytes:
    """`data`, a chunk of replies, with what a server quotes of a command overwritten."""
    if b"with args beginning with" not in data:
        return data
    return _QUOTED.sub(lambda quoted: b"*" * len(quoted[0]), data)


def mask(data: bytes) -> bytes:
    """`data`, one or more whole commands, with every password overwritten by asterisks."""
    if not _MAY_HOLD_SECRET.search(data):
        return data
    masked = bytearray(data)
    at = 0
    while head := _ARRAY.match(data, at):
        at = head.end()
        spans = []
        for _ in range(int(head[1])):
            bulk = _BULK.match(data, at)
            if bulk is None:
                return bytes(masked)
            end = bulk.end() + int(bulk[1])
            spans.append((bulk.end(), end))
            at = end + 2
        words = [bytes(data[start:end]).upper() for start, end in spans]
        for index in _secret_arguments(words):
            start, end = spans[index]
            masked[start:end] = b"*" * (end - start)
    return bytes(masked)


def _secret_arguments(words: list[bytes]) -> list[int]:
    """Which of a command's arguments are secrets; `words` are its arguments in upper case."""
    match words:
        case [b"AUTH", *rest]:
            return [len(rest)] if rest else []
        case [b"HELLO", *_] if b"AUTH" in words:
            return [at for at in (words.index(b"AUTH") + 2,) if at < len(words)]
        case [b"ACL", b"SETUSER", _, *rules]:
            return [at for at, rule in enumerate(rules, 3) if rule[:1] in (b">", b"<", b"#", b"!")]
        case [b"CONFIG", b"SET", *pairs]:
            return [
                at + 1
                for at in range(2, len(pairs) + 1, 2)
                if b"PASS" in words[at] or b"AUTH" in words[at]
            ]
        case [b"MIGRATE", *_]:
            for at, word in enumerate(words):
                if word in (b"AUTH", b"AUTH2"):
                    return list(range(at + 1, min(at + (3 if word == b"AUTH2" else 2), len(words))))
    return []

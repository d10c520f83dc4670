"""What a tap keeps: one write, or one read."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """One write, or one read.

    Attributes:
        time_ns: `time.monotonic_ns()` just before a write, just after a read.
        connection: Number of the connection, counted from 1 within the tap.
        sent: True for bytes written, False for bytes read.
        data: The bytes, secrets masked.
    """

    time_ns: int
    connection: int
    sent: bool
    data: bytes


__all__ = ["Record"]

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


def check_number(name: str, number: object, least: int = 1) -> None:
    """Check an argument that is a whole number from `least`.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is below.
    """
    if type(number) is not int:
        raise TypeError(f"{name} is a whole number, not {type(number).__name__}")
    if number < least:
        raise ValueError(f"{name} must be above {least - 1}: {number}")


__all__ = ["Record", "check_number"]

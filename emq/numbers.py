"""The numbers that verbs take."""

from __future__ import annotations

from typing import Final

MAX: Final = 2**53  # what a script, whose numbers are doubles, can still count by ones


def whole(name: str, value: object, least: int) -> int:
    """Answer a number that is `least` to 2^53.

    Raises:
        ValueError: It is not; a bool, a float or a text is not a whole number either.
    """
    if type(value) is int and least <= value <= MAX:
        return value
    raise ValueError(f"{name} is a whole number, {least} to 2^53, not {shown(value)}")


def shown(value: object) -> str:
    """Answer a value for a message: a number as it is, anything else by its type.

    A text may be a payload in the wrong place, and a long number may not be printable.
    """
    number = isinstance(value, int | float) and -(2**64) < value < 2**64
    return repr(value) if number else type(value).__name__


__all__ = ["MAX", "shown", "whole"]

"""What the proofs' command lines take for a number: types for argparse."""

from __future__ import annotations

import argparse
import math


def minutes(text: str) -> float:
    """A number of minutes above 0."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError("must be a number of minutes above 0")
    return found


def count(text: str) -> int:
    """A whole number, 1 or more."""
    # isdecimal before int(): that takes "1_0", and refuses long numbers in words of its own.
    if not (text.isascii() and text.isdecimal() and len(text) <= 12 and int(text)):
        raise argparse.ArgumentTypeError("must be a whole number, 1 or more")
    return int(text)

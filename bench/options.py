"""What the benchmarks' command lines share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

# Above these, a run would take days, or more memory than the machine has.
MOST_CALLS: Final = 1_000_000
MOST_ROUNDS: Final = 10_000
MOST_BODY: Final = 64 << 20  # bytes


def up_to(most: int) -> Callable[[str], int]:
    """Answer argparse's type of a whole number, 1 to `most`."""

    def number(text: str) -> int:
        # isdecimal before int(): that takes "1_0", and refuses long numbers in words of its own.
        if text.isascii() and text.isdecimal() and len(text) <= 12 and 1 <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 to {most:,}")

    return number

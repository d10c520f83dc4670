"""Durations as people write them: `500ms`, `5s`, `1h30m`. Inside the program they are whole ms."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_MOST_MS: Final = 2**53  # what the bus can carry

_part = re.compile(r"(\d{1,16})(?:\.(\d{1,6}))?(ms|[smhd])")
_whole = re.compile(rf"(?:{_part.pattern})+").fullmatch


def parse_ms(text: str) -> int:
    """Read a duration, in ms.

    Args:
        text: Numbers, each with its unit (`ms`, `s`, `m`, `h`, `d`), larger units first: `500ms`,
            `1.5s`, `1h30m`. `0` needs none.

    Raises:
        ValueError: It is no duration, or no whole number of ms, or more than 2^53 ms.
    """
    if text == "0":
        return 0
    told = ascii(text)[:60]
    parts = _part.findall(text) if text.isascii() and _whole(text) else []
    sizes = [_MS[unit] for _, _, unit in parts]
    if not parts or any(after >= before for before, after in pairwise(sizes)):
        raise ValueError(f"{told} is no duration; write 500ms, 5s, 2m, 1h or 1h30m")
    total = 0
    for (whole, fraction, _), size in zip(parts, sizes, strict=True):
        extra, rest = divmod(int(fraction or 0) * size, 10 ** len(fraction))
        if rest:
            raise ValueError(f"{told} is no whole number of ms; round it")
        total += int(whole) * size + extra
    if total > _MOST_MS:
        raise ValueError(f"{told} is more than 2^53 ms; give a shorter time")
    return total


def format_ms(ms: int) -> str:
    """Write a duration so that `parse_ms` reads the same: `1h30m`, `500ms`, `0`.

    Raises:
        ValueError: It is negative.
    """
    if ms < 0:
        raise ValueError(f"a duration is not negative: {ms} ms")
    parts = []
    for unit, size in _MS.items():
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0"


def about(ms: float) -> str:
    """Write a duration for reading, by its two largest units: `3h12m`, `4.2s`, `-5s`, `12ms`."""
    if ms < 0:
        return f"-{about(-ms)}"
    if ms < 1000:
        return f"{ms:.0f}ms"
    if ms < 10_000:
        return f"{int(ms / 100) / 10:g}s"
    units = list(_MS.items())
    for (unit, size), (smaller, part) in pairwise(units):
        if ms >= size and part > 1:
            count, rest = divmod(int(ms), size)
            rest //= part
            return f"{count}{unit}{rest}{smaller}" if rest else f"{count}{unit}"
    return f"{int(ms) // 1000}s"


__all__ = ["about", "format_ms", "parse_ms"]

"""What the bus tells a tap: its scripts, and which job a key or an argument is of.

`resp.tap` finds `lens` through the entry point of the group `resp.tap`. Nothing is read before the
scripts are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from resp import Script
from resp.tap import Lens

from .ids import received_job_id

_job_key = re.compile(rb"emq:\{[A-Za-z0-9._-]{1,128}\}:job:([0-9A-Za-z]+)(?::[a-z]+)?").fullmatch


def scripts() -> Iterator[Script]:
    """Answer the script of every transition."""
    from .scripts import Transition, names

    for name in names():
        yield Transition(name).script


def subject(data: bytes) -> str | None:
    """Answer the id of the job that `data` is, or whose row or kept thing it is the key of."""
    key = _job_key(data)
    return received_job_id(data if key is None else key[1])


lens: Final = Lens("emq", scripts=scripts, subject=subject, subjects="jobs")

__all__ = ["lens", "scripts", "subject"]

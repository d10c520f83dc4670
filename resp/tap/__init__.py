"""Every byte that crossed, recorded, told apart, shown and counted.

`Record` and `Tap` are loaded with it; the rest when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .record import Record, Tap

if TYPE_CHECKING:
    from .dialogue import Dialogue, Exchange, Frame
    from .ledger import Cost, Ledger
    from .lens import Lens
    from .meaning import Scripts, annotate
    from .recording import RecordingError, Writer, exchanges, read
    from .views import hexdump, line, tree

_LAZY = {
    "Cost": "ledger",
    "Dialogue": "dialogue",
    "Exchange": "dialogue",
    "Frame": "dialogue",
    "Ledger": "ledger",
    "Lens": "lens",
    "RecordingError": "recording",
    "Scripts": "meaning",
    "Writer": "recording",
    "annotate": "meaning",
    "exchanges": "recording",
    "hexdump": "views",
    "line": "views",
    "read": "recording",
    "tree": "views",
}

__all__ = [
    "Cost",
    "Dialogue",
    "Exchange",
    "Frame",
    "Ledger",
    "Lens",
    "Record",
    "RecordingError",
    "Scripts",
    "Tap",
    "Writer",
    "annotate",
    "exchanges",
    "hexdump",
    "line",
    "read",
    "tree",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

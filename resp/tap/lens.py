"""What another package adds to what a tap knows: its scripts, and what its bytes are about.

A package that uses this driver gives its `Lens` an entry point of the group `resp.tap`:

    [project.entry-points."resp.tap"]
    emq = "emq.lens:lens"

Then its scripts' keys and arguments have names in every view, and a ledger says what each of its
subjects (a job, say) cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Final, NamedTuple

from ..script import Script

GROUP: Final = "resp.tap"
"""The group of the entry points."""


class Lens(NamedTuple):
    """What a package knows of its own traffic.

    Attributes:
        name: The package's, in a word.
        scripts: Answers its scripts; called when a digest is met that nobody knows.
        subject: Answers what a key, an argument or a part of a reply is about, or None. A subject
            is a name, never something that a user stored: it is shown where payload is masked.
        subjects: What subjects are, in the plural.
    """

    name: str
    scripts: Callable[[], Iterable[Script]]
    subject: Callable[[bytes], str | None]
    subjects: str = "subjects"


_found: list[Lens] | None = None
_failures: list[str] = []


def lenses() -> list[Lens]:
    """Answer the lenses of the packages that are installed; they are loaded once.

    One that cannot be loaded is left out: `failures` says why.
    """
    global _found
    if _found is None:
        _found = []
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
            try:
                lens = entry.load()
                if not isinstance(lens, Lens):
                    raise TypeError(f"a Lens is wanted, not {type(lens).__name__}")
            except Exception as error:  # whatever a package does when it is imported
                kind = type(error).__name__
                _failures.append(f"{entry.name!r} ({entry.value}) left out: {kind}: {error}")
            else:
                _found.append(lens)
    return list(_found)


def told_of(lens: Lens, error: Exception) -> None:
    """Add to `failures` that a lens could not answer its scripts."""
    _failures.append(f"{lens.name!r} has no scripts: {type(error).__name__}: {error}")


def failures() -> list[str]:
    """Answer a line for each lens that could not be loaded or used, for whoever called `lenses`."""
    lenses()
    return list(_failures)


__all__ = ["GROUP", "Lens", "failures", "lenses", "told_of"]

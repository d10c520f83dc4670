"""What a connector tells an `on_event` hook: that it was connected, and what was said through it.

    def watch(event: Event) -> None:
        if event.kind == "exchange":
            histogram.observe(event.duration_s, event.command)

    connect(url, on_event=watch)

A hook runs in the thread, or on the loop, where the thing happened, often with others waiting for
it: it should count and return. It must not call its own connector. What it raises goes to
`sys.unraisablehook`, and harms no call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from .errors import Overloaded

Kind: TypeAlias = Literal["connected", "reconnected", "disconnected", "overloaded", "exchange"]


class Event(NamedTuple):
    """One thing that happened to a connector.

    Attributes:
        kind: `connected` and `reconnected`: a connection stands, booted. `disconnected`: one
            ended, for `error`. `overloaded`: commands were refused with `Overloaded`, and not
            sent. `exchange`: commands were written and answered, or failed with `error`.
        address: Of the server; nothing secret.
        duration_s: Seconds it took to connect, or that the connection stood, or from asking to the
            last reply.
        command: Name of the (first) command of an exchange; never its arguments.
        commands: How many commands the exchange had.
        error: What it failed with, or None.
    """

    kind: Kind
    address: str
    duration_s: float = 0.0
    command: str = ""
    commands: int = 0
    error: BaseException | None = None


def exchanged(
    address: str, data: bytes, commands: int, duration_s: float, error: BaseException | None
) -> Event:
    """The event of an exchange that began with the command at the head of `data`, or was to."""
    kind: Kind = "overloaded" if isinstance(error, Overloaded) else "exchange"
    name = data.split(b"\r\n", 3)[2][:64].decode("latin-1").upper()
    return Event(kind, address, duration_s, ascii(name)[1:-1], commands, error)


def guarded(hook: Callable[[Any], object]) -> Callable[[Any], None]:
    """`hook`, whose own failures are reported and go no further."""

    def call(fact: Any) -> None:
        try:
            hook(fact)
        except Exception as error:
            _report(error)

    return call


def _report(error: Exception) -> None:
    """Give `error` to `sys.unraisablehook`, as the interpreter does."""

    # Only the interpreter can make the arguments of that hook, and it bears with one that fails.
    def a_hook_of_a_connector(_: object) -> None:
        raise error

    victim: set[object] = set()
    reference = weakref.ref(victim, a_hook_of_a_connector)
    del victim
    del reference

"""The version fence: who speaks another wire version does not get in.

One key of the deployment holds the wire version that its clients speak. Every connection reads it
before it says anything else, and claims it where nobody has. Equal is equal to the byte: there is
no older and no newer, since a client that guesses what another version means can lose jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from resp import ErrorReply, Plan, ServerError

from .errors import FenceError
from .keyspace import VERSION_KEY
from .plans.arguments import blob

WIRE_VERSION: Final = "echomq:3.0.0"


def fence(wire_version: str = WIRE_VERSION, *, claim: bool = True) -> Callable[[], Plan[None]]:
    """Answer an `on_connect` that lets a connection through only at this wire version.

    Args:
        wire_version: The version.
        claim: Claim it where nobody has. Without, a server that is nobody's is let pass, and
            nothing is written.

    Raises:
        TypeError: `wire_version` is no str.
        ValueError: It is empty, or holds a lone surrogate.

    The plan raises:
        FenceError: The server belongs to another version, or nobody could claim it.
        ServerError: The server would not say, such as NOPERM where the user may not read the key.
            That is no verdict on the version, so it is not a FenceError; the connection is not
            used either way.
    """
    if not isinstance(wire_version, str):
        raise TypeError(
            f"wire_version is str, or None for no fence, not {type(wire_version).__name__}"
        )
    if not wire_version:
        raise ValueError("wire_version is empty; pass None for no fence")
    expected = blob("wire_version", wire_version)

    def check() -> Plan[None]:
        found = _answer("GET", (yield ("GET", VERSION_KEY)))
        if found is None and not claim:
            return
        if found is None:
            # Whoever comes second finds the key there, and the read after tells whose it is.
            _answer("SET", (yield ("SET", VERSION_KEY, wire_version, "NX")))
            found = _answer("GET", (yield ("GET", VERSION_KEY)))
        if found != expected:
            raise FenceError(found, wire_version)

    return check


def _answer(command: str, reply: Any) -> Any:
    if isinstance(reply, ErrorReply):
        raise ServerError(reply.code, reply.message, command)
    return reply


__all__ = ["WIRE_VERSION", "fence"]

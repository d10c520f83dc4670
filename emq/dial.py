"""Connecting, with the version fence in front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import resp

from .fence import WIRE_VERSION, fence

if TYPE_CHECKING:
    from resp import AsyncConnector, Connector


def connect(url: str, *, wire_version: str | None = WIRE_VERSION, **options: Any) -> Connector:
    """Dial a server, for threads, and make sure that it speaks this wire version.

    Args:
        url: `valkey://user:password@host:port/db`, `valkeys://...` for TLS, or `unix:///path`.
        wire_version: What the server's other clients speak. It is compared on every connect and
            reconnect, and claimed where nobody has. None connects without looking.
        options: Those of `resp.connect`.

    Raises:
        TypeError, ValueError: The URL, an option or `wire_version` cannot be used; nothing was
            dialled.
        FenceError: The server belongs to another wire version.
        ConnectFailed: No connection could be made.
    """
    return resp.connect(url, **_fenced(wire_version, options))


async def connect_async(
    url: str, *, wire_version: str | None = WIRE_VERSION, **options: Any
) -> AsyncConnector:
    """Dial a server, for asyncio; arguments and errors are those of `connect`."""
    return await resp.connect_async(url, **_fenced(wire_version, options))


def _fenced(wire_version: str | None, options: dict[str, Any]) -> dict[str, Any]:
    if wire_version is None:
        return options
    if options.get("on_connect") is not None:
        raise TypeError("the fence is the on_connect; pass wire_version=None to have your own")
    return {**options, "on_connect": fence(wire_version)}


__all__ = ["connect", "connect_async"]

"""The connection of a command to its server."""

from __future__ import annotations

import argparse

import resp
from resp import Connector

from ..dial import connect
from ..fence import fence


def to_write(options: argparse.Namespace) -> Connector:
    """Dial the server that the options name, and claim it where it is nobody's.

    Raises:
        FenceError: The server belongs to another wire version.
        ConnectFailed: No connection could be made.
    """
    return connect(options.url, wire_version=options.wire_version)


def to_read(options: argparse.Namespace) -> Connector:
    """Dial the server that the options name, without writing anything.

    Raises:
        FenceError: The server belongs to another wire version.
        ConnectFailed: No connection could be made.
    """
    return resp.connect(options.url, on_connect=fence(options.wire_version, claim=False))


def to_examine(options: argparse.Namespace) -> Connector:
    """Dial the server that the options name, whomever it belongs to.

    Raises:
        ConnectFailed: No connection could be made.
    """
    return resp.connect(options.url)


__all__ = ["to_examine", "to_read", "to_write"]

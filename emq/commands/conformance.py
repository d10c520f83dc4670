"""`emq conformance`: the scenarios of the bus's wire, on a server."""

from __future__ import annotations

import argparse
import importlib

from .arguments import explain


def configure(name: str, command: argparse.ArgumentParser) -> None:
    explain(
        command,
        "Check a server, and this client on it, against the scenarios of the bus's wire. Each is\n"
        "played under a fresh queue name, which is removed afterwards. Exits 1 if one fails.",
        "emq conformance",
        "emq conformance fence claim --json",
    )
    command.add_argument(
        "scenarios", metavar="SCENARIO", nargs="*", help="these scenarios (default: all)"
    )
    command.set_defaults(run=conformance)


def conformance(options: argparse.Namespace) -> int:
    code: int = importlib.import_module("..conformance", __package__).main(options)
    return code


__all__ = ["configure"]

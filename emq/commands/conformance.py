"""`emq conformance`: the scenarios of the bus's wire, on a server."""

from __future__ import annotations

import argparse

from ..scenarios import SCENARIOS
from .arguments import explain


def configure(name: str, command: argparse.ArgumentParser) -> None:
    explain(
        command,
        "Check a server, and this client on it, against the scenarios of the bus's wire. Each is\n"
        "played under a fresh queue name, which is removed afterwards. Exits 1 if one fails.",
        "emq conformance",
        "emq conformance --url valkey://127.0.0.1:6379 --shell aio --protocol 2",
        "emq conformance fence claim --json",
        private=True,
    )
    command.add_argument(
        "scenarios",
        metavar="SCENARIO",
        nargs="*",
        type=_scenario,
        help="these scenarios (default: all)",
    )
    command.add_argument(
        "--shell",
        choices=("threads", "aio"),
        default="threads",
        help="which of the client's two shells plays them (default: threads)",
    )
    command.add_argument(
        "--protocol",
        type=int,
        choices=(2, 3),
        help="the version of RESP (default: 3, or 2 where the server knows no other)",
    )
    command.set_defaults(run=run)


def _scenario(name: str) -> str:
    if name not in SCENARIOS:
        raise argparse.ArgumentTypeError(
            f"there is no scenario {ascii(name)[:80]}; leave the names out to see them all"
        )
    return name


def run(options: argparse.Namespace) -> int:
    from ..conformance import conformance  # what --help does not need

    return conformance(
        url=options.url,
        shell=options.shell,
        protocol=options.protocol,
        only=options.scenarios,
        as_json=options.json,
        wire_version=options.wire_version,
    )


__all__ = ["configure"]

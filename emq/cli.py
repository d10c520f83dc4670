"""The `emq` command.

Stdout is data, stderr is talk. Exit codes: 0 done, 1 refused, 2 usage, 3 no connection. An error is
one line that names the next step.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from resp import AddressError, RespError, TransportError

from .embedded import EmbeddedError
from .errors import EmqError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; its exit code."""
    options = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.run
    try:
        return command(options)
    except AddressError as error:
        return _fail(2, error)
    except (TransportError, EmbeddedError) as error:
        return _fail(3, error)
    except (EmqError, RespError) as error:
        return _fail(1, error)
    except BrokenPipeError:
        # Whoever read the output has seen enough; the flush at exit must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _fail(code: int, error: Exception) -> int:
    print(f"emq: {error}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="emq", description="A job bus on Valkey.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    return parser


def _add_demo(commands: Any) -> None:
    command = commands.add_parser(
        "demo",
        help="show what one EVALSHA a transition buys, live",
        description=(
            "Show, on a private Valkey or on the one at --url, from real bytes and real server "
            "state: a completion raced by a reaper, the fencing token, the cached script, and the "
            "bytes on the wire. Exits 1 if a verdict does not hold."
        ),
    )
    command.add_argument(
        "--url",
        help="use this server, under a fresh queue name that is removed at the end "
        "(default: a private one, which needs echomq[embedded])",
    )
    command.add_argument("--json", action="store_true", help="the same facts as one JSON document")
    command.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from .demo import demo  # what other commands do not need

    return demo(url=options.url, as_json=options.json)

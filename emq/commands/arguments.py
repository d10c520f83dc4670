"""What the commands take: arguments that are checked as they are read, and options that many share.

A wrong one is wrong usage: nothing has been dialled by then.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from ..errors import InvalidId, WrongKind
from ..fence import WIRE_VERSION
from ..ids import check_job_id
from ..keyspace import Keyspace, dedup_key
from ..numbers import MAX
from ..units import parse_ms

_USUAL: Final = "valkey://127.0.0.1:6379"


def explain(
    command: argparse.ArgumentParser,
    what: str,
    *examples: str,
    json: bool = True,
    private: bool = False,
) -> None:
    """Say what a command does, with examples, and give it the options that all commands have.

    Args:
        json: It has `--json`, too.
        private: Without a server it starts a private one.
    """
    usual = "a private one, which needs echomq[embedded]" if private else _USUAL
    command.description = what
    command.epilog = "\n".join(["examples:" if examples[1:] else "example:", *_indented(examples)])
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument(
        "--url",
        help="the server: valkey://user:password@host:port/db, valkeys:// for TLS, or "
        f"unix:///path (default: EMQ_URL from the environment, else {usual})",
    )
    command.add_argument(
        "--wire-version",
        type=_version,
        default=WIRE_VERSION,
        metavar="VERSION",
        help=f"what the server's other clients speak (default: {WIRE_VERSION})",
    )
    if json:
        command.add_argument("--json", action="store_true", help="one JSON object a line")


def _indented(lines: tuple[str, ...]) -> list[str]:
    return [f"  {line}" for line in lines]


def _checked(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Answer a reader of an argument whose ValueError says what is wrong."""

    def checked(text: str) -> Any:
        try:
            return read(text)
        except (ValueError, InvalidId, WrongKind) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 17 and 1 <= int(text) <= MAX):
        raise ValueError(f"{ascii(text)[:60]} is no whole number from 1")
    return int(text)


def _date(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 17:
        return int(text)
    from datetime import datetime  # what most commands do not need

    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{ascii(text)[:60]} is no instant; write ms since 1970, or 2030-01-31T12:00:00Z"
        ) from None
    if at.tzinfo is None:
        raise ValueError(f"{text} is in no time zone; add Z for UTC, or +02:00")
    if at.timestamp() < 0:
        raise ValueError(f"{text} is before 1970; nothing can fall due then")
    return round(at.timestamp() * 1000)


def _some_ms(text: str) -> int:
    ms = parse_ms(text)
    if ms < 1:
        raise ValueError(f"{text} is too short; give 1ms at least")
    return ms


def _version(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; leave the option out for the default")
    return text


queue_name = _checked(lambda text: Keyspace(text).queue)
job_id = _checked(check_job_id)
dedup_id = _checked(dedup_key)
count = _checked(_count)
delay = _checked(parse_ms)  # 0 and up
duration = _checked(_some_ms)
date = _checked(_date)


def add_queue(command: argparse.ArgumentParser) -> None:
    command.add_argument("queue", metavar="QUEUE", type=queue_name, help="the queue's name")


def add_queues(command: argparse.ArgumentParser, meaning: str) -> None:
    command.add_argument("queues", metavar="QUEUE", nargs="*", type=queue_name, help=meaning)


def add_yes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--yes", action="store_true", help="do it; without, say what would go and exit 1"
    )


__all__ = [
    "add_queue",
    "add_queues",
    "add_yes",
    "count",
    "date",
    "dedup_id",
    "delay",
    "duration",
    "explain",
    "job_id",
    "queue_name",
]

"""The `emq` command.

Stdout is data, stderr is talk. An error is one line that names the next step. Exit codes:

    0    done
    1    refused, or stdout cannot be written
    2    usage, a URL that cannot be used among it
    3    no connection
    130  a Ctrl-C; 143 and 129 are SIGTERM and SIGHUP: all three clean up first
    141  whoever read stdout has gone; quietly, as shells report a program that SIGPIPE ended
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

from resp import AddressError, ConnectFailed, RespError, ServerError, TransportError

from . import output
from .embedded import EmbeddedError
from .errors import EmqError, FenceError

_CREDENTIALS: Final = ("NOAUTH", "WRONGPASS", "NOPERM")
_PRIVATE: Final = "leave --url out for a private server"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; its exit code."""
    url: str | None = None
    try:
        try:
            options = _parser().parse_args(argv)
        except SystemExit as done:
            if not done.code:  # what --help told must have been written, too
                output.write("", output.stdout())
            raise
        output.stdout()  # before anything is done whose outcome could not be told
        url = options.url
        command: Callable[[argparse.Namespace], int] = options.run
        with _signals_unwind():
            return command(options)
    except output.OutputError as error:
        output.drop()
        return 141 if error.unread else _fail(1, str(error))
    except AddressError as error:
        return _fail(2, _with_step(error, url))
    except (TransportError, EmbeddedError) as error:
        return _fail(3, _with_step(error, url))
    except (EmqError, RespError) as error:
        return _fail(1, _with_step(error, url))
    except KeyboardInterrupt:
        return 130
    except _Told as told:
        return 128 + told.signal


class _Told(BaseException):
    """A signal that asks for the end; raised, so that what the command holds is given back."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, as Ctrl-C does."""

    def unwind(number: int, frame: object) -> NoReturn:
        raise _Told(number)

    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # not every platform has both
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            with suppress(ValueError):  # a thread that is not the main one gets no signals
                before[number] = signal.signal(number, unwind)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail(code: int, told: str) -> int:
    if sys.stderr is not None:  # where it was closed, print would take stdout
        with suppress(OSError):
            print(f"emq: {' '.join(told.split())}", file=sys.stderr)
    return code


def _with_step(error: Exception, url: str | None) -> str:
    """An error's message, with what to do next. Messages that say so themselves have a `;`."""
    told = str(error)
    if isinstance(error, FenceError):
        return f"{told}; or give another --url, or {_PRIVATE}"
    if ";" in told:
        return told
    if url is None:
        return f"{told}; run it again, or name a server with --url"
    if isinstance(error, AddressError):
        step = f"give --url as valkey://user:password@host:port/db or unix:///path, or {_PRIVATE}"
    elif getattr(error, "code", None) in _CREDENTIALS:
        step = f"put user:password@ in the URL, of a user who may do this, or {_PRIVATE}"
    elif isinstance(error, ServerError):
        step = f"see to it that the server takes writes and scripts, or {_PRIVATE}"
    elif isinstance(error, ConnectFailed):
        step = f"is it running? give another --url, or {_PRIVATE}"
    else:
        step = f"is the server still up? run it again, or {_PRIVATE}"
    return f"{told}; {step}"


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

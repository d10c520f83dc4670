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
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

from resp import AddressError, ConnectFailed, RespError, ServerError, TransportError

from . import output
from .embedded import EmbeddedError
from .errors import EmqError, FenceError

_DEFAULT_URL: Final = "valkey://127.0.0.1:6379"
_CREDENTIALS: Final = ("NOAUTH", "WRONGPASS", "NOPERM")
_PRIVATE: Final = ", or leave --url out for a private server"
# They start a private server if they are given none.
_SELF_SUFFICIENT: Final = ("demo", "conformance")

# Each with the module of `emq.commands` that it is in, which is imported where it is asked for.
_COMMANDS: Final = {
    "ls": ("look", "list the queues, with their counts"),
    "show": ("look", "show a queue, or a job"),
    "peek": ("look", "show the next jobs of a queue"),
    "top": ("top", "watch the queues, live"),
    "enqueue": ("enqueue", "add jobs to a queue"),
    "work": ("work", "run a handler on the jobs of a queue"),
    "retry": ("mend", "let dead jobs run again"),
    "discard": ("mend", "remove jobs"),
    "pause": ("mend", "stop claims from a queue"),
    "resume": ("mend", "let claims from a queue go on"),
    "drain": ("mend", "remove the jobs of a queue that wait"),
    "obliterate": ("mend", "remove a queue with all its jobs"),
    "doctor": ("doctor", "find what is wrong with a server and its queues, and mend it"),
    "conformance": ("conformance", "check a server, and this client on it, against the bus's wire"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    options = argparse.Namespace(command="", url=None)
    try:
        try:
            _parser(words).parse_args(words, options)
        except SystemExit as done:
            if not done.code:  # what --help told must have been written, too
                output.write("", output.stdout())
            raise
        output.stdout()  # before anything is done whose outcome could not be told
        options.url = options.url or os.environ.get("EMQ_URL")
        if options.command not in _SELF_SUFFICIENT:
            options.url = options.url or _DEFAULT_URL
        run: Callable[[argparse.Namespace], int] = options.run
        with _signals_unwind():
            return run(options)
    except output.OutputError as error:
        output.drop()
        return 141 if error.unread else _fail(1, str(error))
    except argparse.ArgumentError as error:  # arguments that do not go together
        told = str(error)
        return _fail(2, told if ";" in told else f"{told}; see emq {options.command} --help")
    except AddressError as error:
        return _fail(2, _with_step(error, options))
    except (TransportError, EmbeddedError) as error:
        return _fail(3, _with_step(error, options))
    except (EmqError, RespError) as error:
        return _fail(1, _with_step(error, options))
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


def _with_step(error: Exception, options: argparse.Namespace) -> str:
    """An error's message, with what to do next. Messages that say so themselves have a `;`."""
    told = str(error)
    private = _PRIVATE if options.command in _SELF_SUFFICIENT else ""
    if isinstance(error, FenceError):
        here = "" if options.command == "demo" else " (--wire-version)"
        return f"{told}{here}; or give another --url{private}"
    if ";" in told:
        return told
    if options.url is None:
        return f"{told}; run it again, or name a server with --url"
    code = getattr(error, "code", None)
    if isinstance(error, AddressError):
        step = f"give --url as valkey://user:password@host:port/db or unix:///path{private}"
    elif code in _CREDENTIALS:
        step = f"put user:password@ in the URL, of a user who may do this{private}"
    elif code == "WRONGTYPE":
        step = "another program wrote a key of the queue, emq doctor tells which"
    elif isinstance(error, ServerError):
        step = f"see to it that the server takes writes and scripts{private}"
    elif isinstance(error, ConnectFailed):
        step = f"is it running? give another --url{private}"
    else:
        step = f"is the server still up? run it again{private}"
    return f"{told}; {step}"


class _Command(argparse.ArgumentParser):
    """A command's parser. It takes options between the arguments, too: `emq show Q --full JOB`."""

    _intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._intermixing:
            return super().parse_known_args(args, namespace)
        self._intermixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixing = False


class _Version(argparse.Action):
    """Print the version, which takes time to look up, and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            told = version("echomq")
        except PackageNotFoundError:
            told = "of a source tree that was not installed"
        from .fence import WIRE_VERSION

        output.write(f"emq {told}, wire {WIRE_VERSION}\n", output.stdout())
        parser.exit()


class _Aligned(argparse.HelpFormatter):
    """Leaves room for the longest command's name, which argparse takes for two shorter."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if action.choices:
            longest = max(map(len, action.choices), default=0)
            self._action_max_length = max(self._action_max_length, longest + 4)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of a command line. Only the command that it names is told its arguments."""
    parser = argparse.ArgumentParser(
        prog="emq",
        description="A job bus on Valkey.",
        formatter_class=_Aligned,
        epilog="emq COMMAND --help tells more, with examples. Exit codes: 0 done, 1 refused, "
        "2 wrong usage, 3 no connection.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show the version, and that of the wire"
    )
    commands = parser.add_subparsers(
        title="commands",
        metavar="COMMAND",
        dest="command",
        required=True,
        parser_class=_Command,
    )
    asked = next((word for word in words if not word.startswith("-")), None)
    for name, (module, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == asked:
            importlib.import_module(f".commands.{module}", __package__).configure(name, command)
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
        "(default: EMQ_URL from the environment, else a private one, which needs "
        "echomq[embedded])",
    )
    command.add_argument("--json", action="store_true", help="the same facts as one JSON document")
    command.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from .demo import demo  # what other commands do not need

    return demo(url=options.url, as_json=options.json)

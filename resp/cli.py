"""`python -m resp`: a shell, a tap, and a decoder of bytes.

Stdout is data, stderr is talk. An error is one line that names the next step. Exit codes:

    0    done
    1    refused, or what was to be written cannot be
    2    usage, a URL that cannot be used among it
    3    no connection
    130  a Ctrl-C; 143 and 129 are SIGTERM and SIGHUP: all three clean up first
    141  whoever read stdout has gone; quietly, as shells report a program that SIGPIPE ended

`tap -- PROGRAM` ends with the program's own.
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

from .commands import output
from .errors import AddressError, ConnectFailed, RespError, ServerError, TransportError

PROG: Final = "python -m resp"
_CREDENTIALS: Final = ("NOAUTH", "WRONGPASS", "NOPERM")

# Each with the module of `resp.commands` that it is in, which is imported where it is asked for.
_COMMANDS: Final = {
    "shell": "type commands, see typed replies; \\tree and \\hex show their bytes",
    "tap": "see every byte between a program and its server, or of a recording",
    "decode": "read RESP bytes on stdin, and show them",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    options = argparse.Namespace(command="", url=None, program=None)
    try:
        try:
            _parser(words).parse_args(_own(words, options), options)
        except SystemExit as done:
            if not done.code:  # what --help told must have been written, too
                output.write("", output.stdout())
            raise
        output.stdout()  # before anything is done whose outcome could not be told
        module = importlib.import_module(f".commands.{options.command}", __package__)
        run: Callable[[argparse.Namespace], int] = module.run
        with _signals_unwind():
            code = run(options)
        output.write("", output.stdout())  # what a command left in the buffer
        return code
    except output.OutputError as error:
        output.drop()
        return 141 if error.unread else _fail(1, str(error))
    except BrokenPipeError:
        output.drop()
        return 141
    except argparse.ArgumentError as error:  # arguments that do not go together
        told = error.message
        return _fail(2, told if ";" in told else f"{told}; see {PROG} {options.command} --help")
    except AddressError as error:
        return _fail(2, _with_step(error))
    except TransportError as error:
        return _fail(3, _with_step(error))
    except RespError as error:
        return _fail(1, _with_step(error))
    except KeyboardInterrupt:
        return 130
    except _Told as told_to:
        return 128 + told_to.signal
    except Exception as error:
        return _fail(1, f"{_fault(error)}; a fault of this program, please report it")


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
    output.tell(told)
    return code


def _fault(error: Exception) -> str:
    """Name an error that nobody foresaw, and the line that it comes from."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__} in {place}: {ascii(str(error))[1:-1][:200]}"


def _with_step(error: Exception) -> str:
    """An error's message, with what to do next. Messages that say so themselves have a `;`."""
    told = str(error)
    if ";" in told:
        return told
    code = getattr(error, "code", None)
    if isinstance(error, AddressError):
        step = "write it as valkey://user:password@host:port/db or unix:///path"
    elif code in _CREDENTIALS:
        step = "put user:password@ in the URL, of a user who may do this"
    elif isinstance(error, ServerError):
        step = "see what the server's documentation says of it"
    elif isinstance(error, ConnectFailed):
        step = "is it running? give another URL"
    elif isinstance(error, TransportError):
        step = "is the server still up? run it again"
    else:
        step = f"see {PROG} --help"
    return f"{told}; {step}"


def _own(words: list[str], options: argparse.Namespace) -> list[str]:
    """Answer the words that are `tap`'s; those behind `--` are the program's, whatever they are."""
    if words[:1] == ["tap"] and "--" in words:
        at = words.index("--")
        options.program = words[at + 1 :]
        return words[:at]
    return words


class _Version(argparse.Action):
    """Print the version, which takes time to look up, and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            told = version("echomq")
        except PackageNotFoundError:
            told = "of a source tree that was not installed"
        output.write(f"resp {told}\n", output.stdout())
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are a line, which names the command whose --help tells more.

    They quote no password: a URL may stand where it does not belong.
    """

    def __init__(self, *args: Any, command: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self._command = command

    def error(self, message: str) -> NoReturn:
        where = f"{PROG} {self._command}".rstrip()
        output.tell(f"{output.without_passwords(message)}; see {where} --help")
        raise SystemExit(2)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of a command line. Only the command that it names is told its arguments."""
    asked = next((word for word in words if not word.startswith("-")), None)
    parser = _Parser(
        prog=PROG,
        command=asked if asked in _COMMANDS else "",
        description="Look at what goes over the wire between a program and its Valkey.",
        epilog="COMMAND --help tells more, with examples. Exit codes: 0 done, 1 refused, "
        "2 wrong usage, 3 no connection.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, command=name)
        if name == asked:
            importlib.import_module(f".commands.{name}", __package__).arguments(command)
    return parser

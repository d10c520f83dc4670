r"""`python -m resp shell`: type commands, see typed replies, and the bytes that they were.

A line is a command, split as redis-cli does it, or one of the shell's own, which begin with a
backslash. What belongs to a connection is the shell's to change, not a command's, so that a
connection that was lost is made again as it was: AUTH, SELECT and RESET dial anew. MULTI keeps what
follows here, and EXEC sends it in one piece.

A Ctrl-C ends the connection of the command that waits: a server that blocks for it would let the
next one wait, too.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from ..address import Address, Options, change_options, parse_url
from ..decode import ErrorReply, Pairs, Push, Reply
from ..errors import (
    ConnectFailed,
    Refused,
    RespError,
    ServerError,
    TransactionAborted,
    TransportError,
)
from ..plan import Command, Plan, check_name
from ..script import Script
from ..tap import Tap
from ..tap.secrets import secret_arguments
from ..threads import Connector, Subscription
from . import output, typed
from .words import LineError, quoted, split

if TYPE_CHECKING:
    from ..tap.dialogue import Exchange
    from ..tap.meaning import Scripts
    from ..tap.style import Style

_DEFAULT_URL: Final = "valkey://127.0.0.1:6379"
_URLS: Final = ("EMQ_URL", "VALKEY_URL")  # as for tap, which sets both for what it runs
_ASIDE_S: Final = 2.0  # for what the shell asks on its own account
_EXAMPLES: Final = r"""
examples:
  python -m resp shell
  python -m resp shell --url valkey://user:password@host:6379/5 GET greeting
  echo 'HGETALL user:1' | python -m resp shell --json
  python -m resp shell -x SET image < image.png
  printf 'GET greeting\n\\tree\n' | python -m resp shell

\help, typed at the prompt, lists the shell's own commands. Exit codes: 0 done, 1 an error was
answered, 2 wrong usage, 3 no connection.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Tell `parser` what the command takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Say commands to a server and show its replies: one that is given here, or those that are\n"
        "typed, or one a line from a pipe."
    )
    parser.usage = (
        "%(prog)s [-h] [--url URL] [-2 | -3] [--typed | --raw | --json] [-x] [--stop]\n"
        "                            [COMMAND [ARGUMENT ...]]"
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--url",
        help=f"the server: valkey://user:password@host:port/db, valkeys:// for TLS, or "
        f"unix:///path (default: {', else '.join(_URLS)}, else {_DEFAULT_URL})",
    )
    version = parser.add_mutually_exclusive_group()
    version.add_argument("-2", dest="protocol", action="store_const", const=2, help="speak RESP2")
    version.add_argument(
        "-3",
        dest="protocol",
        action="store_const",
        const=3,
        help="speak RESP3 or nothing (default: RESP3, and RESP2 where the server knows no other)",
    )
    form = parser.add_mutually_exclusive_group()
    for name, told in (
        ("typed", "replies with their types, as on a terminal"),
        ("raw", "replies as they are, as into a pipe; on a terminal controls are escaped"),
        ("json", "a line of JSON for each reply"),
    ):
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=told)
    parser.add_argument(
        "-x", dest="stdin", action="store_true", help="read the last argument from stdin, as it is"
    )
    parser.add_argument(
        "--stop", action="store_true", help="end at the first error, with exit code 1"
    )
    parser.add_argument(
        "words",
        metavar="COMMAND",
        nargs=argparse.REMAINDER,
        help="a command with its arguments; without one, commands are read from stdin",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command, or those that are typed; the exit code."""
    words = [os.fsencode(word) for word in options.words]
    if words[:1] == [b"--"]:
        del words[0]
    if options.stdin:
        if not words:
            raise argparse.ArgumentError(
                None, "-x needs a command whose last argument stdin is; name one"
            )
        words.append(sys.stdin.buffer.read())
    out = output.stdout()
    screen = out.isatty()
    typing = not words and sys.stdin is not None and sys.stdin.isatty()
    shell = Shell(
        options.url or next(filter(None, map(os.environ.get, _URLS)), _DEFAULT_URL),
        protocol=options.protocol,
        form=options.form or ("typed" if screen else "raw"),
        screen=screen,
        typing=typing,
    )
    try:
        if words:
            shell.say(words)
        elif typing:
            _converse(shell)
        else:
            _read(shell, options.stop)
    finally:
        shell.close()
    return shell.code


def _read(shell: Shell, stop: bool) -> None:
    """Run what comes through a pipe, a line a command."""
    while not shell.ended:
        data = sys.stdin.buffer.readline() if sys.stdin is not None else b""
        if not data:
            return
        line = data.decode("utf-8", "surrogateescape").rstrip("\r\n")
        if not line.strip():
            continue
        try:
            shell.line(line)
        except LineError as error:
            shell.deny(str(error))
        if shell.unreachable or (stop and shell.code):
            return


def _converse(shell: Shell) -> None:
    """Run what is typed at a prompt, until Ctrl-D."""
    shell.greet()
    history = _History(shell)
    while not shell.ended:
        prompt = shell.prompt()
        try:
            line = history.ask(prompt)
        except EOFError:
            output.write("\n")
            break
        except KeyboardInterrupt:
            output.write("\n")
            continue
        if not line.strip():
            continue
        try:
            history.remember(line)
            shell.line(line)
        except LineError as error:
            # Below what was typed; the line itself may hold a password, and is not said again.
            output.write(f"{' ' * (len(prompt) + error.column - 1)}^\n", sys.stderr)
            shell.refuse(str(error))
        except KeyboardInterrupt:
            shell.interrupted()


class Shell:
    """A connection, what was said through it, and how replies are shown.

    Args:
        url: Where to connect; dialled by the first command.
        protocol: RESP version, or None for 3 with a fallback to 2.
        form: How replies are shown: `typed`, `raw` or `json`.
        screen: Whether stdout is a terminal, on which every byte of a peer's is escaped.
        typing: Whether somebody types.

    Attributes:
        code: Exit code so far.
        ended: Whether it was told to end.
        unreachable: Whether the last try to connect failed.

    Raises:
        AddressError: The URL cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        protocol: int | None = None,
        form: str = "raw",
        screen: bool = False,
        typing: bool = False,
    ) -> None:
        self.code = 0
        self.ended = False
        self.unreachable = False
        self._protocol = protocol
        self._form = form
        self._screen = screen
        self._typing = typing
        self._pushes: list[Push] = []
        self._tap = Tap()
        self._origin_ns = time.monotonic_ns()  # the 0 of what views show
        self._address, self._options = self._where(url)
        self._connector: Connector | None = None
        self._scripts: Scripts | None = None
        self._loaded: dict[str, Script] = {}
        self._queue: list[Command] | None = None  # since MULTI
        self._began_ns = self._ended_ns = 0  # of the last command
        self._names: list[str] | None = None

    def _where(self, url: str) -> tuple[Address, Options]:
        said = {name for name, _ in parse_qsl(url.partition("?")[2])}
        options: dict[str, Any] = {
            # Nobody else waits, and whoever does has Ctrl-C. A question after life within MULTI,
            # or from a prompt that is left alone, would only blur what is looked at.
            "timeout": math.inf,
            "heartbeat": math.inf,
            "protocol": self._protocol,
        }
        told = {name: value for name, value in options.items() if name not in said}
        return parse_url(url, tap=self._tap, on_push=self._pushes.append, **told)

    # What is typed.

    def line(self, line: str) -> None:
        """Run a line.

        Raises:
            LineError: It cannot be split into words.
        """
        if line.lstrip().startswith("\\"):
            name, rest = _own_name(line)
            words = split(rest)
            own = _OWN.get(name[1:].lower())
            if own is None:
                self.refuse(f"no command {typed.plain(name)}; \\help lists the shell's own")
                return
            try:
                own.run(self, words)
            except _Usage:
                self.refuse(f"usage: {own.usage}; \\help tells more")
            return
        self.say(split(line))

    def say(self, words: Sequence[bytes]) -> None:
        """Say a command, or do what stands for it, and show what was answered."""
        name = words[0].decode("latin-1").upper()
        special = _SPECIAL.get(name)
        try:
            if special is not None:
                special(self, words)
            else:
                self._command(tuple(words))
        except RespError as error:
            self._failed(error)

    def _command(self, command: tuple[bytes, ...]) -> None:
        if self._queue is not None:
            check_name(command)
            self._queued(command)
        else:
            self.show(self.ask(command))

    def _queued(self, command: Command) -> None:
        assert self._queue is not None
        self._queue.append(command)
        self.show("QUEUED")

    def ask(self, command: Command) -> Reply:
        """Say a command; its reply, an error reply as a value."""
        return self._exchange(lambda connector: connector.run(_step(command)))

    def _exchange(self, work: Callable[[Connector], Reply]) -> Reply:
        connector = self._connector
        if connector is None:
            connector = self._connector = Connector(self._address, self._options)
        made = connector.stats()["reconnects"]
        self._began_ns = time.monotonic_ns()
        self.unreachable = False
        try:
            return work(connector)
        except KeyboardInterrupt:
            self._drop()
            raise
        finally:
            self._ended_ns = time.monotonic_ns()
            if connector.stats()["reconnects"] != made:
                output.tell("the connection had been lost, and was made anew")

    def _drop(self) -> None:
        connector, self._connector = self._connector, None
        if connector is not None:
            connector.close()

    def close(self) -> None:
        """End the connection."""
        self._drop()

    def interrupted(self) -> None:
        """Tell what a Ctrl-C did."""
        output.write("\n", sys.stderr)
        if self._connector is None:
            output.tell("interrupted; the command may have run, the next one dials anew")

    def _dial(self, address: Address, options: Options) -> bool:
        """Be connected so from now on, if that works."""
        self._began_ns = time.monotonic_ns()
        try:
            # Dials, which a connector that was only made does not.
            connector = Connector(address, options).sibling()
        except Refused as error:  # what is there goes on
            self.deny(str(error))
            return False
        finally:
            self._ended_ns = time.monotonic_ns()
        self._drop()
        self._connector, self._address, self._options = connector, address, options
        self._names = None
        return True

    # What is shown.

    def show(self, reply: Reply) -> None:
        """Show a reply, and what the server said without being asked."""
        if isinstance(reply, ErrorReply):
            self._fails(1)
        self._write(self._bytes(reply))
        pushes = self._pushes[:]
        del self._pushes[: len(pushes)]
        if self._typing:
            for push in pushes:
                self._write(self._bytes(push))

    def _bytes(self, reply: Reply) -> bytes:
        if self._form == "raw":
            data = typed.raw(reply)
            if self._screen:
                data = typed.shown(data.decode("utf-8", "surrogateescape")).encode()
            return data
        text = typed.as_json(reply) if self._form == "json" else typed.formatted(reply)
        return _encoded(text)

    def _write(self, data: bytes) -> None:
        out = output.stdout()
        output.write("", out)
        output.write(data + b"\n", out.buffer)  # type: ignore[arg-type]

    def lines(self, lines: Sequence[str]) -> None:
        """Show lines of text."""
        if lines:
            self._write(_encoded("\n".join(lines)))

    def deny(self, told: str) -> None:
        """Show why a command was not sent, where its reply would be."""
        self.show(ErrorReply("", told))

    def refuse(self, told: str) -> None:
        """Tell why one of the shell's own commands did nothing."""
        self._fails(1)
        output.tell(told)

    def _fails(self, code: int) -> None:
        if not self._typing:  # whoever types sees what fails
            self.code = max(self.code, code)

    def _failed(self, error: RespError) -> None:
        if isinstance(error, ConnectFailed):
            self._fails(3)
            self.unreachable = True
            step = "" if ";" in str(error) else "; is it running? --url and \\connect name another"
            output.tell(f"{error}{step}")
        elif isinstance(error, TransportError):
            self._fails(3)
            ran = "may have run" if error.may_have_run else "did not run"
            output.tell(f"{error}; the command {ran}, the next one dials anew")
        elif isinstance(error, ServerError):
            self.show(ErrorReply(error.code, error.message))
        else:
            self.deny(str(error))

    def greet(self) -> None:
        """Connect, and say so."""
        try:
            self._connector = Connector(self._address, self._options).sibling()
        except RespError as error:
            self._failed(error)
            return
        version = self._connector.stats()["protocol"]
        output.tell(f"{self._address}, RESP{version}; \\help lists the shell's own commands")

    def prompt(self) -> str:
        """What stands before what is typed."""
        connector = self._connector
        if connector is None or connector.stats()["status"] != "connected":
            return "not connected> "
        db = f"[{self._address.db}]" if self._address.db else ""
        return f"{self._address}{db}{'(TX)' if self._queue is not None else ''}> "

    # Commands that are not simply sent.

    def multi(self, words: Sequence[bytes]) -> None:
        """Keep what follows, until EXEC."""
        if len(words) > 1 or self._queue is not None:
            self.deny("MULTI takes nothing, and none is open yet" if len(words) > 1 else _OPEN)
            return
        self._queue = []
        self.show("OK")

    def discard(self, words: Sequence[bytes]) -> None:
        """Forget what was kept."""
        if self._queue is None:
            self.deny("DISCARD without MULTI")
            return
        self._queue = None
        self.show("OK")

    def exec(self, words: Sequence[bytes]) -> None:
        """Say what was kept, in one piece."""
        commands, self._queue = self._queue, None
        if commands is None:
            self.deny("EXEC without MULTI")
            return
        try:
            self.show(self._exchange(lambda connector: connector.transaction(commands)))
        except TransactionAborted as error:
            self.show(ErrorReply("EXECABORT", f"EXECABORT {error}"))

    def select(self, words: Sequence[bytes]) -> None:
        """Use another database, after a lost connection, too."""
        if len(words) != 2 or not words[1].isdigit() or len(words[1]) > 9:
            self.deny("SELECT takes the number of a database")
        elif self._settled() and self._dial(
            self._address._replace(db=int(words[1])), self._options
        ):
            self.show("OK")

    def auth(self, words: Sequence[bytes]) -> None:
        """Be another user, after a lost connection, too."""
        if not 2 <= len(words) <= 3:
            self.deny("AUTH takes a password, or a user and a password")
            return
        if not self._settled():
            return
        try:
            *user, password = (word.decode() for word in words[1:])
        except UnicodeDecodeError:
            self.deny("the user or the password is not UTF-8")
            return
        address = self._address._replace(username=user[0] if user else None, password=password)
        if self._dial(address, self._options):
            self.show("OK")

    def reset(self, words: Sequence[bytes]) -> None:
        """A new connection."""
        self._queue = None
        self._drop()
        if self._dial(self._address, self._options):
            self.show("RESET")

    def _settled(self) -> bool:
        if self._queue is not None:
            self.deny("a new connection cannot begin within MULTI; EXEC or DISCARD first")
        return self._queue is None

    def quit(self, words: Sequence[bytes]) -> None:
        """End."""
        self.ended = True

    def subscribe(self, words: Sequence[bytes]) -> None:
        """Show what is published, until Ctrl-C."""
        verb = words[0].decode("latin-1").lower()
        if len(words) < 2:
            self.deny(f"{verb.upper()} takes channels")
            return
        if not self._settled():
            return

        def listen(connector: Connector) -> None:
            enter: Callable[..., Subscription] = getattr(connector, verb)
            with enter(*words[1:]) as subscription:
                names = " ".join(map(quoted, words[1:]))
                output.tell(f"{verb}d to {names}; Ctrl-C ends it")
                kind = verb.removesuffix("subscribe") + "message"
                for message in subscription:
                    head = [] if message.pattern is None else [message.pattern]
                    self.show(Push(kind, [*head, message.channel, message.payload]))

        self._exchange(listen)

    # The shell's own.

    def connect(self, words: Sequence[bytes]) -> None:
        """Go to another server."""
        if len(words) != 1:
            raise _Usage
        try:
            address, options = self._where(words[0].decode("utf-8", "surrogateescape"))
            self._queue = None
            if self._dial(address, options):
                output.tell(f"connected to {address}")
        except RespError as error:
            self._failed(error)

    def _known(self, exchanges: Sequence[Exchange]) -> Scripts:
        """The scripts that were loaded, that packages brought, or whose source crossed."""
        from ..tap.meaning import Scripts

        if self._scripts is None:
            self._scripts = Scripts.known()
            for script in self._loaded.values():
                self._scripts.add(script)
        for exchange in exchanges:
            self._scripts.learn(exchange)
        return self._scripts

    def _style(self) -> Style:
        from ..tap.style import COLORS, PLAIN

        return COLORS if output.paints(output.stdout()) else PLAIN

    def _view(
        self, words: Sequence[bytes], show: Callable[[Exchange, Scripts, Style], list[str]]
    ) -> None:
        """Show the exchanges of the last command, or as many of the last as a number says."""
        if len(words) > 1 or (
            words and not (words[0].isdigit() and 0 < int(words[0][:10]) < 10**9)
        ):
            raise _Usage
        held = list(self._tap.exchanges())
        began, ended = self._began_ns, self._ended_ns
        if words:
            chosen = held[max(len(held) - int(words[0]), 0) :]
        else:
            chosen = [each for each in held if began <= each.time_ns <= ended]
        if not chosen:
            output.tell("no bytes crossed")
        scripts, style = self._known(held), self._style()
        for exchange in chosen:
            self.lines(show(exchange, scripts, style))

    def tree(self, words: Sequence[bytes]) -> None:
        """Show what the bytes of the last command were, a token a line."""
        from ..tap import views

        self._view(
            words,
            lambda one, scripts, style: views.tree(
                one, scripts=scripts, style=style, origin_ns=self._origin_ns
            ),
        )

    def hex(self, words: Sequence[bytes]) -> None:
        """Show the bytes of the last command."""
        from ..tap import views

        self._view(
            words,
            lambda one, scripts, style: views.hexdump(
                one, scripts=scripts, style=style, origin_ns=self._origin_ns
            ),
        )

    def summary(self, words: Sequence[bytes]) -> None:
        """Show the last command in a line for each exchange."""
        from ..tap import views

        self._view(
            words,
            lambda one, scripts, style: [
                views.line(one, scripts=scripts, style=style, origin_ns=self._origin_ns)
            ],
        )

    def cost(self, words: Sequence[bytes]) -> None:
        """Show what the last command cost, and all of them."""
        if words:
            raise _Usage
        held = list(self._tap.exchanges())
        began, ended = self._began_ns, self._ended_ns
        last = [each for each in held if began <= each.time_ns <= ended]
        lines = [f"total  {_cost(held)}"]
        if last:
            took_ns = max(each.time_ns + (each.rtt_ns or 0) for each in last) - last[0].time_ns
            lines.insert(0, f"last   {_cost(last)}, {took_ns / 1e6:.3f} ms")
        self.lines(lines)

    def ledger(self, words: Sequence[bytes]) -> None:
        """Show where the bytes went."""
        from ..tap.ledger import Ledger
        from ..tap.lens import lenses

        if words:
            raise _Usage
        held = list(self._tap.exchanges())
        ledger = Ledger(self._known(held), lenses())
        for exchange in held:
            ledger.add(exchange)
        self.lines(ledger.render(self._style()))

    def load(self, words: Sequence[bytes]) -> None:
        """Read a script from a file; nothing is sent."""
        if len(words) != 1:
            raise _Usage
        path = Path(os.fsdecode(words[0])).expanduser()
        try:
            source = path.read_bytes()
        except OSError as error:
            self.refuse(f"{str(path)!a} cannot be read: {error.strerror}")
            return
        script = Script(path.stem, source)
        self._loaded[path.stem] = script
        if self._scripts is not None:
            self._scripts.add(script)
        self.lines([f"{typed.plain(path.stem)} = {script.sha}"])

    def run(self, words: Sequence[bytes]) -> None:
        """Run a script that was loaded, by its digest; its source is sent if it must be."""
        name = os.fsdecode(words[0]) if words else ""
        if len(words) < 2 or not words[1].isdigit() or len(words[1]) > 9:
            raise _Usage
        script = self._loaded.get(name)
        if script is None:
            known = ", ".join(map(typed.plain, self._loaded)) or "none so far"
            self.refuse(f"no script {typed.plain(name)}; \\load FILE reads one ({known})")
            return
        count = int(words[1])
        keys, values = words[2 : 2 + count], words[2 + count :]
        if len(keys) < count:
            self.refuse(f"{count} keys were announced, and {len(keys)} words follow")
            return
        call = script(list(keys), list(values))
        try:
            if self._queue is not None:
                self._queued(call)
            else:
                self.show(self.ask(call))
        except RespError as error:
            self._failed(error)

    def watch(self, words: Sequence[bytes]) -> None:
        """Say a command again and again, until Ctrl-C."""
        try:
            seconds = float(words[0])
        except (IndexError, ValueError):
            raise _Usage from None
        if len(words) < 2 or not 0 < seconds < 1e6:
            raise _Usage
        while not self.ended and not self.unreachable:
            if self._screen and self._form == "typed":
                output.write("\x1b[H\x1b[2J")
                output.write(f"every {seconds:g} s, {time.strftime('%H:%M:%S')}; Ctrl-C ends it\n")
            self.say(words[1:])
            time.sleep(seconds)

    def help(self, words: Sequence[bytes]) -> None:
        """List the shell's own commands, or tell what the server knows of one of its."""
        if not words:
            width = max(len(own.usage) for own in _OWN.values())
            self.lines([f"{own.usage:<{width}}  {own.told}" for own in _OWN.values()])
            return
        name = b"|".join(words).decode("utf-8", "replace")
        own = _OWN.get(name.removeprefix("\\").lower())
        if name.startswith("\\") and own is not None:
            self.lines([f"{own.usage}  {own.told}"])
            return
        try:
            reply = self._aside("COMMAND", "DOCS", name)
        except RespError as error:
            self._failed(error)
            return
        found = _mapping(reply)
        if isinstance(reply, ErrorReply) or not found:
            self.refuse(
                f"the server knows nothing of {typed.plain(name)}; \\help lists the shell's"
            )
            return
        for command, facts in found.items():
            self.lines(_described(_name(command), _mapping(facts)))

    def _aside(self, *words: str) -> Reply:
        """Ask on the shell's own account: on another connection, and unrecorded."""
        changes = {"tap": None, "on_push": None, "connect_timeout": _ASIDE_S}
        options = change_options(self._options, changes)
        with Connector(self._address, options) as connector:
            return connector.run(_step(words), timeout=_ASIDE_S)

    def names(self) -> list[str]:
        """The server's commands, and the shell's own, for completion."""
        if self._names is None:
            try:
                reply = self._aside("COMMAND", "LIST")
            except RespError:
                reply = None
            found = reply if isinstance(reply, list) else []
            # As they are typed: `client|list` is two words.
            self._names = sorted(
                _name(each).replace("|", " ").upper() for each in found if isinstance(each, bytes)
            )
        return [*self._names, *(f"\\{name}" for name in _OWN)]


_OPEN: Final = "MULTI is open already; EXEC sends what was kept, DISCARD forgets it"


class _Usage(Exception):
    """One of the shell's own commands was given what it does not take."""


def _step(command: Command) -> Plan[Reply]:
    return (yield command)


def _encoded(text: str) -> bytes:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace")


def _cost(exchanges: Sequence[Exchange]) -> str:
    up = sum(each.up for each in exchanges)
    down = sum(each.down for each in exchanges)
    trips = sum(each.rtt_ns is not None for each in exchanges)
    return f"{up:,} B up, {down:,} B down, {trips:,} round trip{'s' * (trips != 1)}"


def _name(word: Any) -> str:
    return typed.plain(typed.raw(word).decode("utf-8", "surrogateescape"))


def _mapping(reply: Reply) -> dict[Any, Any]:
    """A map as a dict; RESP2 has a list instead."""
    if isinstance(reply, Pairs):
        return dict(list(reply))
    if isinstance(reply, list):
        return dict(zip(reply[::2], reply[1::2], strict=False))
    return reply if isinstance(reply, dict) else {}


def _described(name: str, facts: dict[Any, Any]) -> list[str]:
    syntax = _syntax(facts.get(b"arguments"))
    lines = [f"{name.replace('|', ' ').upper()}{' ' * bool(syntax)}{syntax}"]
    for title in ("summary", "since", "complexity", "group"):
        if title.encode() in facts:
            lines.append(f"  {title + ':':<12}{_name(facts[title.encode()])}")
    subcommands = _mapping(facts.get(b"subcommands"))
    if subcommands:
        names = (_name(each).replace("|", " ").upper() for each in subcommands)
        lines.append(f"  with: {', '.join(sorted(names))}")
    return lines


def _syntax(items: Any) -> str:
    return " ".join(map(_argument, items)) if isinstance(items, list) else ""


def _argument(item: Any) -> str:
    facts = _mapping(item)
    kind = _name(facts.get(b"type", b""))
    flags = {_name(flag) for flag in facts.get(b"flags") or ()}
    inner = facts.get(b"arguments")
    if kind == "pure-token":
        text = ""
    elif kind == "oneof" and isinstance(inner, list):
        text = " | ".join(map(_argument, inner))
        if "optional" not in flags or b"token" in facts:
            text = f"<{text}>"
    elif kind == "block":
        text = _syntax(inner)
    else:
        text = _name(facts.get(b"display_text", facts.get(b"name", b"")))
    token = _name(facts[b"token"]) if b"token" in facts else ""
    if "multiple" in flags:
        again = f"{token} {text}" if token and "multiple_token" in flags else text
        text = f"{text} [{again} ...]"
    text = " ".join(filter(None, (token, text)))
    return f"[{text}]" if "optional" in flags else text


class _Own:
    """One of the shell's own commands: how it is typed, what it does, and what does it."""

    def __init__(
        self, usage: str, told: str, run: Callable[[Shell, Sequence[bytes]], None]
    ) -> None:
        self.usage = usage
        self.told = told
        self.run = run


_OWN: Final = {
    own.usage.split()[0][1:]: own
    for own in (
        _Own("\\tree [N]", "the last command, or N exchanges: what each byte is", Shell.tree),
        _Own("\\hex [N]", "the same as offsets, bytes and text", Shell.hex),
        _Own("\\line [N]", "the same, a line each", Shell.summary),
        _Own("\\bytes", "what the last command cost, and all of them", Shell.cost),
        _Own("\\ledger", "where the bytes went: by kind, command and script", Shell.ledger),
        _Own("\\load FILE.lua", "read a script; nothing is sent", Shell.load),
        _Own("\\run NAME NUMKEYS [KEY ...] [ARG ...]", "run it, by its digest first", Shell.run),
        _Own("\\watch SECONDS COMMAND ...", "say a command again and again", Shell.watch),
        _Own("\\help [COMMAND]", "this, or what the server knows of a command", Shell.help),
        _Own("\\connect URL", "go to another server, or be another user", Shell.connect),
        _Own("\\quit", "end", Shell.quit),
    )
}


def _explain(told: str) -> Callable[[Shell, Sequence[bytes]], None]:
    def refuse(shell: Shell, words: Sequence[bytes]) -> None:
        shell.deny(f"{words[0].decode('latin-1').upper()} was not sent: {told}")

    return refuse


_FEED: Final = _explain("the shell would not see where it ends; a replica is what can read it")
_LEAVE: Final = _explain("a subscription ends with Ctrl-C")

_SPECIAL: Final[dict[str, Callable[[Shell, Sequence[bytes]], None]]] = {
    "MULTI": Shell.multi,
    "EXEC": Shell.exec,
    "DISCARD": Shell.discard,
    "SELECT": Shell.select,
    "AUTH": Shell.auth,
    "RESET": Shell.reset,
    "QUIT": Shell.quit,
    "EXIT": Shell.quit,
    "SUBSCRIBE": Shell.subscribe,
    "PSUBSCRIBE": Shell.subscribe,
    "SSUBSCRIBE": Shell.subscribe,
    "UNSUBSCRIBE": _LEAVE,
    "PUNSUBSCRIBE": _LEAVE,
    "SUNSUBSCRIBE": _LEAVE,
    "MONITOR": _explain(
        "it turns the connection into a feed; python -m resp tap shows what a program says"
    ),
    "SYNC": _FEED,
    "PSYNC": _FEED,
    "WATCH": _explain(
        "MULTI is kept here until EXEC, so it would guard too late; use a script, or "
        "connector.transaction(..., watch=) in a program"
    ),
    "HELLO": _explain(
        "it would change the connection until it is lost; \\connect takes a user and a password, "
        "and ?protocol=2, and the shell -2"
    ),
}


def is_secret(words: Sequence[bytes]) -> bool:
    """Whether a line's words hold what must not be stored."""
    if not words:
        return False
    if words[0].startswith(b"\\"):
        name = words[0].lower()
        if name == b"\\connect":
            return True
        return is_secret(words[2 if name == b"\\watch" else 1 :])
    return bool(secret_arguments(words, len(words)))


class _History:
    """Lines that were typed, where readline exists, and in a file that only its user can read."""

    _MOST: Final = 2000

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._readline: Any = None
        self._matches: list[str] = []
        try:
            import readline
        except ImportError:
            return
        if not sys.stdout.isatty():  # where input() would not use it
            return
        self._readline = readline
        self._path = _state_home() / "resp" / "history"
        readline.clear_history()
        readline.set_auto_history(False)
        for line in self._stored():
            readline.add_history(line)
        readline.set_completer(self._complete)
        readline.set_completer_delims("")  # a command's name may be two words
        # libedit, on some systems, has another language.
        libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")

    def ask(self, prompt: str) -> str:
        """Answer a line that somebody types.

        Raises:
            EOFError: Nobody will type any more.
        """
        if sys.stdout.isatty():
            return input(prompt)
        output.write(prompt, sys.stderr)  # stdout goes elsewhere
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def remember(self, line: str) -> None:
        """Store a line, unless it may hold a secret."""
        if self._readline is None or _holds_secret(line):
            return
        count = self._readline.get_current_history_length()
        if count and self._readline.get_history_item(count) == line:
            return
        self._readline.add_history(line)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(number, "ab") as file:
                os.chmod(self._path, 0o600)
                file.write(line.encode("utf-8", "surrogateescape") + b"\n")
        except OSError:  # a home that cannot be written costs the history alone
            pass

    def _stored(self) -> list[str]:
        try:
            data = self._path.read_bytes()
        except OSError:
            return []
        lines = data.decode("utf-8", "replace").splitlines()
        if len(lines) > 2 * self._MOST:
            self._shorten(lines[-self._MOST :])
        return lines[-self._MOST :]

    def _shorten(self, lines: list[str]) -> None:
        fresh = self._path.with_name(f"history.{os.getpid()}")
        try:
            number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(number, "wb") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
            os.replace(fresh, self._path)
        except OSError:  # it stays long
            pass

    def _complete(self, text: str, state: int) -> str | None:
        if state == 0:
            wanted = text if text.startswith("\\") else text.upper()
            self._matches = [name for name in self._shell.names() if name.startswith(wanted)]
        return f"{self._matches[state]} " if state < len(self._matches) else None


def _own_name(line: str) -> tuple[str, str]:
    """The name of one of the shell's own commands, and what follows it."""
    name, *rest = line.split(None, 1)
    return name, rest[0].rstrip("\r\n") if rest else ""


def _holds_secret(line: str) -> bool:
    if line.lstrip().startswith("\\"):
        name, rest = _own_name(line)
        head = [name.encode("utf-8", "surrogateescape")]
    else:
        head, rest = [], line
    if "://" in line and output.without_passwords(line) != line:
        return True
    try:
        return is_secret([*head, *split(rest)])
    except LineError:  # what it would have been, nobody knows
        return True


def _state_home() -> Path:
    home = os.environ.get("XDG_STATE_HOME")
    return Path(home) if home and os.path.isabs(home) else Path.home() / ".local" / "state"


__all__ = ["Shell", "arguments", "run"]

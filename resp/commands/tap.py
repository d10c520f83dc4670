"""`python -m resp tap`: what a program and its server say, seen from between them."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from ..address import Address
from ..errors import RespError
from ..tap import filters
from ..tap.dialogue import Dialogue, Exchange
from ..tap.filters import FilterError
from .output import OutputError, paints, stdout, tell

if TYPE_CHECKING:
    from ..tap.proxy import Proxy

_DEFAULT_URL: Final = "valkey://127.0.0.1:6379"
_URLS: Final = ("EMQ_URL", "VALKEY_URL", "REDIS_URL")
_IN_CAPITALS: Final = re.compile(r"[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_.]+)?")
_BATCH: Final = 500  # exchanges of a recording
_KEEP: Final = 64 * 1024  # bytes kept of a frame for views that elide; --full keeps the usual
_WAITING: Final = 8 << 20  # characters of views that a slow reader may leave untaken
_LEARNED: Final = (b"E", b"e", b"S", b"s")  # EVAL, SCRIPT LOAD; a quick look for many
_LEAVING_S: Final = 2.0  # for what is on its way when the program has ended, or a reader is slow
_EPILOG: Final = """\
examples:
  python -m resp tap -- python worker.py
  python -m resp tap --as tree --filter 'EVALSHA script:claim' -- emq work orders handler.py
  python -m resp tap --listen 127.0.0.1:7000 --to 127.0.0.1:6379 --filter 'key:cart:* rtt>5'
  python -m resp tap --listen :7000 --write day.tap --html day.html
  python -m resp tap day.tap --ledger
  python -m resp tap --as hex -- SET greeting hello

filters, one of which must let an exchange through; the terms of one must all hold:
  GET, H*, CLIENT:SETINFO     the command       size>1k, up>100, down>1M   bytes
  key:cart:*                  a key             rtt>5, rtt>500us, rtt>1s   the round trip
  script:claim, script:9f3a   a script          conn:1,3                   connections
  dir:push                    reply, push, silent, lost, malformed; up, down
  error                       an error reply    !TERM                      not so
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = (
        "python -m resp tap [OPTIONS] -- PROGRAM [ARGUMENT ...]\n"
        "       python -m resp tap [OPTIONS] -- COMMAND [ARGUMENT ...]\n"
        "       python -m resp tap [OPTIONS] --listen HOST:PORT [--to HOST:PORT|URL]\n"
        "       python -m resp tap [OPTIONS] FILE [--follow]"
    )
    parser.description = (
        "Run PROGRAM with a proxy before its server, and show what crosses, on stderr; send one\n"
        "COMMAND of the server's, in capitals or where no program has its name; listen for any\n"
        "clients; or read a FILE that --write has written. PROGRAM finds the proxy in EMQ_URL,\n"
        "VALKEY_URL and REDIS_URL, or as {url}, {host} and {port} in its arguments; its exit\n"
        "code is passed on.\n"
        "Passwords are masked in all that is shown or written."
    )
    parser.epilog = _EPILOG
    parser.add_argument("file", nargs="?", metavar="FILE", help="show this recording")
    parser.add_argument("--follow", action="store_true", help="go on as the recording grows")
    parser.add_argument(
        "--to",
        metavar="URL",
        help="the server: valkey://user:password@host:port/db, valkeys:// for TLS, "
        "unix:///path, or HOST:PORT (default: EMQ_URL, else VALKEY_URL, else " + _DEFAULT_URL + ")",
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="listen here for clients; or on unix:/path"
    )
    shown = parser.add_argument_group("what is shown")
    shown.add_argument(
        "--as",
        dest="view",
        choices=("line", "tree", "hex"),
        help="an exchange a line; a tree of its parts; or its bytes (default: line, of a COMMAND "
        "tree; nothing where --ledger, --html or --write is asked for)",
    )
    shown.add_argument("--json", action="store_true", help="one JSON object an exchange")
    shown.add_argument("--ledger", action="store_true", help="at the end, what all of it cost")
    shown.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="TERMS",
        type=_filter,
        help="only exchanges that these terms let through; repeat it for alternatives",
    )
    shown.add_argument("--count", type=_number, metavar="N", help="end after N exchanges shown")
    shown.add_argument(
        "--scripts",
        action="append",
        default=[],
        metavar="PATH",
        help="Lua files, or a folder of them, that give names to digests",
    )
    shown.add_argument(
        "--no-payloads", action="store_true", help="mask what callers keep on the server"
    )
    shown.add_argument(
        "--limit", type=_number, default=80, metavar="N", help="bytes shown of a value (80)"
    )
    shown.add_argument("--full", action="store_true", help="show values whole, up to 1 MiB")
    shown.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="(auto)"
    )
    written = parser.add_argument_group("where it goes")
    written.add_argument("-o", metavar="FILE", dest="out", help="the views, instead of stdout")
    written.add_argument(
        "--write",
        metavar="FILE",
        help="record all that crosses, whatever the filters; a recording that is there goes on",
    )
    written.add_argument("--html", metavar="FILE", help="one page with all of it, at the end")


def _filter(text: str) -> str:
    try:
        filters.compile([text])
    except FilterError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise argparse.ArgumentTypeError(f"{ascii(text)[:40]} is no whole number from 1")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Do what the arguments say.

    Raises:
        argparse.ArgumentError: They do not go together.
    """
    program: list[str] | None = options.program
    asked = [program is not None, options.listen is not None, options.file is not None]
    if sum(asked) != 1:
        raise argparse.ArgumentError(
            None, "give one of: -- PROGRAM, --listen HOST:PORT, or a recording's FILE"
        )
    if options.follow and options.file is None:
        raise argparse.ArgumentError(None, "--follow is for a recording's FILE")
    if options.to is not None and options.file is not None:
        raise argparse.ArgumentError(None, "--to names no server for a recording; leave it out")
    if options.write and options.file is not None:
        raise argparse.ArgumentError(None, "--write makes a recording, FILE is one; leave one out")
    if options.json and options.view:
        raise argparse.ArgumentError(None, "--json and --as are two views; choose one")
    _different_files(options)
    if options.file is not None:
        return _read(options)
    if options.listen is not None:
        return _serve(options)
    if not program:
        raise argparse.ArgumentError(None, "there is no program behind --")
    from ..tap.table import find

    words = [os.fsencode(word) for word in program]
    # Some systems have a program GET: in capitals it is the server's, and a path is a program's.
    is_command = find(words) is not None
    if not (is_command and program[0].isupper()) and shutil.which(program[0]) is not None:
        return _wrap(options, program)
    if is_command or _IN_CAPITALS.fullmatch(program[0]):  # of a module, or newer than our table
        return _command(options, words)
    raise argparse.ArgumentError(
        None,
        f"{ascii(program[0])[:80]} is no program on PATH and no command of the server's; "
        "write its path, or the command in full",
    )


def _different_files(options: argparse.Namespace) -> None:
    """Refuse to write over the recording that is read, or two things into one file."""
    named: list[tuple[str, str]] = []
    for name, path in (
        ("FILE", options.file),
        ("-o", options.out),
        ("--write", options.write),
        ("--html", options.html),
    ):
        if path is None or _is_device(path):
            continue
        for other, before in named:
            if _same_file(path, before):
                raise argparse.ArgumentError(
                    None, f"{other} and {name} are one file, {path!a}; name another for {name}"
                )
        named.append((name, path))


def _is_device(path: str) -> bool:
    """Whether nothing that is written there can be lost: a terminal, a pipe, /dev/null."""
    return os.path.exists(path) and not os.path.isfile(path)


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one is not there yet
        return os.path.realpath(one) == os.path.realpath(other)


def _server(options: argparse.Namespace) -> str:
    to: str = (
        options.to or os.environ.get("EMQ_URL") or os.environ.get("VALKEY_URL") or _DEFAULT_URL
    )
    return to


# What becomes of the exchanges.


class _Sink(Protocol):
    def add(self, exchanges: list[Exchange]) -> object: ...

    def close(self) -> object: ...


class _Out:
    """Where a view is written. It may be waited for."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def close(self) -> None:
        self._stream.flush()


class _File(_Out):
    """A file of its own, without a buffer: what was written is there after a crash."""

    def write(self, text: str) -> None:
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        while left:
            left = left[self._stream.write(left) :]

    def close(self) -> None:
        self._stream.close()


class _Queue(_Out):
    """A stream that somebody reads, who may be slow: a thread of its own waits for him.

    Traffic must not wait for a pager. What is too much is left out, and counted.

    Args:
        failed: Is called, from that thread, when the stream takes no more.
    """

    def __init__(self, stream: Any, failed: Callable[[OSError], object]) -> None:
        super().__init__(stream)
        self._failed = failed
        self.left_out = 0
        self.error: OSError | None = None
        self._waiting = 0
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="view", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        if self.error is not None:
            raise self.error
        if self._waiting > _WAITING:
            self.left_out += 1
            return
        self._waiting += len(text)
        self._queue.put(text)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(_LEAVING_S if self.left_out else None)
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        while (text := self._queue.get()) is not None:
            texts = [text]
            with contextlib.suppress(Empty):  # all there is, in one write
                while len(texts) < 1000:
                    more = self._queue.get_nowait()
                    if more is None:
                        self._queue.put(None)
                        break
                    texts.append(more)
            joined = "".join(texts)
            try:
                self._stream.write(joined)
                self._stream.flush()
            except (OSError, ValueError) as error:
                self.error = error if isinstance(error, OSError) else OSError(str(error))
                self._failed(self.error)
                return
            self._waiting -= len(joined)


class _Views:
    """Renders exchanges, a batch into one write."""

    def __init__(self, render: Callable[[Exchange], str], out: _Out) -> None:
        self._render = render
        self._out = out

    def add(self, exchanges: list[Exchange]) -> None:
        self._out.write("\n".join([*map(self._render, exchanges), ""]))

    def close(self) -> None:
        pass


class _Ledger:
    def __init__(self, ledger: Any, tell_it: Callable[[Any], str], out: _Out) -> None:
        self._ledger = ledger
        self._tell = tell_it
        self._out = out

    def add(self, exchanges: list[Exchange]) -> None:
        for exchange in exchanges:
            self._ledger.add(exchange)

    def close(self) -> None:
        self._out.write(self._tell(self._ledger))


class _Page:
    def __init__(self, page: Any, path: str) -> None:
        self._page = page
        self._path = path

    def add(self, exchanges: list[Exchange]) -> None:
        for exchange in exchanges:
            self._page.add(exchange)

    def close(self) -> None:
        self._page.write(self._path)


class _Show:
    """Everything that becomes of the exchanges, and of the records that they were read from.

    A sink that fails is told of once, and left out from then on: the others go on.
    """

    def __init__(
        self, options: argparse.Namespace, stream: Any, *, live: bool, view: str = "line"
    ) -> None:
        from ..tap.meaning import Scripts

        self.failed = False
        self.unread = False
        self.filtered = self.passed = 0  # exchanges that met the filters, and that got through
        self.stop: Callable[[], object] | None = None  # called when there is nothing more to do
        self.origin_ns: int | None = None
        self._options = options
        self._count: int | None = options.count
        self.scripts = Scripts.known()
        _learn_files(self.scripts, options.scripts)
        self._learn = self.scripts.learn
        self._test = filters.compile(options.filter, scripts=self.scripts)
        self._filters = bool(options.filter)
        self._sinks: list[_Sink] = []
        self._out = self._open(stream, live)
        self._writer: Any = None
        quiet = options.ledger or options.html or options.write
        if options.json:
            self._sinks.append(_Views(self._json, self._out))
        elif options.view or not quiet or options.out:
            self._sinks.append(_Views(self._renderer(options.view or view), self._out))
        if options.ledger:
            self._sinks.append(self._ledger())
        if options.html:
            self._sinks.append(self._page())
        if options.write:
            self._writer = self._recording(options.write)

    # Making them.

    def _open(self, stream: Any, live: bool) -> _Out:
        options = self._options
        self._stream = stream
        if options.out is None:
            return _Queue(stream, self._gone) if live and stream is not None else _Out(stream)
        try:
            self._stream = open(options.out, "wb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise _unwritable(options.out, error) from None
        return _File(self._stream)

    def _renderer(self, view: str) -> Callable[[Exchange], str]:
        from ..tap import views

        options = self._options
        style = views.COLORS if paints(self._stream, options.color) else views.PLAIN
        scripts = self.scripts
        limit = (1 << 62) if options.full else options.limit
        width = shutil.get_terminal_size((100, 24)).columns if self._stream_is_tty() else 100
        if view == "line":
            line = views.line
            return lambda exchange: line(
                exchange, scripts=scripts, origin_ns=self.origin_ns or 0, style=style
            )
        if view == "tree":
            return lambda exchange: "\n".join(
                views.tree(
                    exchange,
                    scripts=scripts,
                    width=width,
                    limit=limit,
                    style=style,
                    origin_ns=self.origin_ns or 0,
                )
            )
        return lambda exchange: "\n".join(
            views.hexdump(exchange, scripts=scripts, style=style, origin_ns=self.origin_ns or 0)
        )

    def _stream_is_tty(self) -> bool:
        return bool(self._stream is not None and self._stream.isatty())

    def _ledger(self) -> _Sink:
        from ..tap import views
        from ..tap.ledger import Ledger
        from ..tap.lens import lenses

        style = views.COLORS if paints(self._stream, self._options.color) else views.PLAIN
        as_json = self._options.json

        def told(ledger: Ledger) -> str:
            if as_json:
                return json.dumps({"ledger": ledger.as_json()}) + "\n"
            return "\n".join([*ledger.render(style), ""])

        return _Ledger(Ledger(self.scripts, lenses()), told, self._out)

    def _page(self) -> _Sink:
        from ..tap.page import Page

        options = self._options
        # A program's arguments may hold a password.
        asked = os.path.basename(options.program[0]) if options.program else _server(options)
        title = options.file or asked.rpartition("@")[2]
        folder = os.path.dirname(os.path.abspath(options.html))
        if not os.access(folder, os.W_OK):  # at the end it would be too late
            raise OutputError(f"{options.html!a} cannot be written; name another --html")
        return _Page(Page(self.scripts, title=title), options.html)

    def _recording(self, path: str) -> Any:
        from ..tap.recording import Writer

        try:
            return Writer(path)
        except OSError as error:
            raise _unwritable(path, error) from None

    # Using them.

    def reading(self) -> dict[str, Any]:
        """Answer how a dialogue is to read: no more is kept than what is shown."""
        options = self._options
        # What is recorded is masked by what is kept.
        whole = options.full or options.write
        reading: dict[str, Any] = {} if whole else {"keep": max(_KEEP, options.limit)}
        if options.no_payloads:
            from ..tap.lens import lenses
            from ..tap.meaning import payload_extents

            reading["conceal"] = partial(payload_extents, scripts=self.scripts, lenses=lenses())
        return reading

    def dialogue(self, connection: int) -> Dialogue:
        """Make the dialogue of a connection."""
        return Dialogue(connection, **self.reading())

    def see(self, exchanges: list[Exchange]) -> None:
        """Take what is finished."""
        if self._count == 0:
            return
        if self.origin_ns is None and exchanges:
            self.origin_ns = exchanges[0].time_ns
        for exchange in exchanges:
            request = exchange.request
            if request is not None and request.words and request.words[0][:1] in _LEARNED:
                self._learn(exchange)
        if self._filters:
            self.filtered += len(exchanges)
            exchanges = list(filter(self._test, exchanges))
            self.passed += len(exchanges)
        if self._count is not None:
            exchanges = exchanges[: self._count]
            self._count -= len(exchanges)
        if exchanges:
            self._each(lambda sink: sink.add(exchanges))
        if self._count == 0 and self.stop is not None:
            self.stop()

    # A recorder: all that crosses is kept, whatever the filters.

    def connection(self, address: str = "", role: str = "client") -> int:
        return int(self._keep(lambda writer: writer.connection(address, role)) or 0)

    def sent(self, connection: int, data: bytes, time_ns: int) -> None:
        self._keep(lambda writer: writer.sent(connection, data, time_ns))

    def received(self, connection: int, data: bytes, time_ns: int) -> None:
        self._keep(lambda writer: writer.received(connection, data, time_ns))

    def closed(self, connection: int, reason: str = "", time_ns: int | None = None) -> None:
        self._keep(lambda writer: writer.closed(connection, reason, time_ns))

    def _keep(self, call: Callable[[Any], Any]) -> Any:
        if self._writer is None:
            return None
        try:
            return call(self._writer)
        except (OSError, ValueError, KeyError) as error:
            writer, self._writer = self._writer, None
            self._fail(f"{self._options.write!a}: {error}")
            with contextlib.suppress(OSError):
                writer.close()
        return None

    @property
    def records(self) -> bool:
        """Whether what crosses is kept."""
        return self._writer is not None

    def _each(self, call: Callable[[_Sink], object]) -> None:
        for sink in list(self._sinks):
            try:
                call(sink)
            except BrokenPipeError:
                self._sinks.remove(sink)
                self.unread = self.failed = True
                if self.stop is not None:
                    self.stop()
            except (OSError, ValueError) as error:
                self._sinks.remove(sink)
                self._fail(str(getattr(error, "strerror", None) or error))

    def _gone(self, error: OSError) -> None:
        """End, if whoever read the views has gone. The next view that is written tells the rest."""
        if isinstance(error, BrokenPipeError):
            self.unread = self.failed = True
            if self.stop is not None:
                self.stop()

    def _fail(self, told: str) -> None:
        self.failed = True
        tell(f"a view cannot be written: {told}; the traffic goes on without it")

    def close(self) -> None:
        """Write what is written at the end."""
        self._each(lambda sink: sink.close())
        try:
            self._out.close()
        except BrokenPipeError:
            self.unread = self.failed = True
        except (OSError, ValueError) as error:
            self._fail(str(error))
        if self.filtered and not self.passed and not self.failed:
            tell(
                f"none of {self.filtered:,} exchanges got through --filter; "
                "see python -m resp tap --help"
            )
        left_out = getattr(self._out, "left_out", 0)
        if left_out:
            tell(f"{left_out} chunks of views were left out: their reader is slow; use -o FILE")
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.close()
            except OSError as error:
                self._fail(str(error))

    def code(self) -> int:
        """What the views alone would exit with."""
        return 141 if self.unread else 1 if self.failed else 0

    def _json(self, exchange: Exchange) -> str:
        return json.dumps(as_object(exchange, self.origin_ns or 0, self.scripts))


def _unwritable(path: str, error: OSError) -> OutputError:
    return OutputError(f"{path!a} cannot be written: {error.strerror or error}; name another file")


def _learn_files(scripts: Any, paths: Sequence[str]) -> None:
    for path in paths:
        try:
            scripts.files(path)
        except (OSError, ValueError) as error:
            told = error.strerror if isinstance(error, OSError) else error
            raise RespError(
                f"{path!a} cannot be read: {told}; give Lua files to --scripts"
            ) from None


def as_object(exchange: Exchange, origin_ns: int, scripts: Any) -> dict[str, Any]:
    """Answer an exchange as what JSON can say; bytes as text, what is no UTF-8 escaped."""
    from ..tap.frames import parse

    request = exchange.request
    rtt_ns = exchange.rtt_ns
    told: dict[str, Any] = {
        "connection": exchange.connection,
        "number": exchange.number,
        "kind": exchange.kind,
        "time_ms": round((exchange.time_ns - origin_ns) / 1e6, 6),
        "rtt_ms": None if rtt_ns is None else round(rtt_ns / 1e6, 6),
        "name": exchange.name,
        "up": exchange.up,
        "down": exchange.down,
        "at_up": None if request is None else request.at,
        "at_down": exchange.replies[0].at if exchange.replies else None,
        "request": None if request is None else [_text(word) for word in request.words or ()],
        "replies": [
            [_value(node) for node in parse(reply.data, reply.at)] for reply in exchange.replies
        ],
    }
    if exchange.name in ("EVALSHA", "EVALSHA_RO") and request is not None and request.words:
        known = scripts.get(request.words[1]) if len(request.words) > 1 else None
        told["script"] = None if known is None else str(known.name)
    if exchange.error:
        told["error"] = exchange.error
    return told


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _value(node: Any) -> Any:
    """Answer a node as what JSON can say."""
    if node.error:
        return {"malformed": node.error}
    if node.mark in "*~>%|" and node.value is None and not node.items:
        return None
    if node.mark in "*~>":
        return [_value(item) for item in node.items if item.mark not in (".", "|")]
    if node.mark in ("%", "|"):
        items = [_value(item) for item in node.items if item.mark not in (".", "|")]
        pairs = [list(pair) for pair in zip(items[::2], items[1::2], strict=False)]
        return {"attributes": pairs} if node.mark == "|" else {"map": pairs}
    value = node.value
    if node.mark in ("-", "!"):
        return {"error": value.message}
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, float) and not -1e308 < value < 1e308:
        return str(value)  # JSON has neither infinity nor nan
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value


# The four ways to get exchanges.


def _read(options: argparse.Namespace) -> int:
    """Show a recording."""
    from ..tap import recording

    show = _Show(options, stdout(), live=False)
    done = False

    def stop() -> None:
        nonlocal done
        done = True

    show.stop = stop
    try:
        read = recording.exchanges(options.file, follow=options.follow, **show.reading())
        for exchanges in _batches(read, 1 if options.follow else _BATCH):
            show.see(exchanges)
            if done:
                break
    except OSError as error:
        raise RespError(
            f"{options.file!a} cannot be read: {error.strerror or error}; "
            "give a file that --write has written"
        ) from None
    finally:
        show.close()
    return _ended(show)


def _batches(exchanges: Iterator[Exchange], size: int) -> Iterator[list[Exchange]]:
    while batch := list(itertools.islice(exchanges, size)):
        yield batch


def _serve(options: argparse.Namespace) -> int:
    """Listen for clients, until a signal or the last exchange that was asked for."""
    ended = threading.Event()
    show = _Show(options, stdout(), live=True)
    show.stop = ended.set
    try:
        with _proxy(options, show, options.listen) as proxy:
            tell(f"listening on {proxy.address}, passing on to {proxy.target}; Ctrl-C ends it")
            _wait(ended)
    finally:
        show.close()
    return _ended(show)


def _wait(event: threading.Event) -> None:
    while not event.wait(3600):
        pass


def _ended(show: _Show) -> int:
    if show.unread:
        raise OutputError("whoever read the views has gone; nothing to do", unread=True)
    return show.code()


def _proxy(options: argparse.Namespace, show: _Show, listen: str) -> Proxy:
    from ..tap.proxy import Proxy, Reader

    reader = Reader(show.see, recorder=show if show.records else None, dialogue=show.dialogue)
    return Proxy(_server(options), listen=listen, watcher=reader, tell=tell)


def _wrap(options: argparse.Namespace, program: list[str]) -> int:
    """Run a program with the proxy before its server; its exit code."""
    from ..tap.proxy import server_address

    to = _server(options)
    address = server_address(to)
    show = _Show(options, sys.stderr, live=True)
    try:
        with _proxy(options, show, "127.0.0.1:0") as proxy:
            urls = _urls(to, address, proxy.host, proxy.port)
            words = [program[0], *(_filled(word, urls, proxy) for word in program[1:])]
            environment = {**os.environ, **urls}
            try:
                child = subprocess.Popen(words, env=environment)
            except OSError as error:
                raise RespError(
                    f"{program[0]!a} cannot be run: {error.strerror or error}; "
                    "see whether it is a program for this machine"
                ) from None
            code = _waited(child)
            # What it said last may still be on its way.
            proxy.drain(_LEAVING_S)
    finally:
        show.close()
    return code


def _filled(word: str, urls: dict[str, str], proxy: Proxy) -> str:
    for name, value in (
        ("{url}", urls["REDIS_URL"]),
        ("{host}", proxy.host),
        ("{port}", str(proxy.port)),
    ):
        word = word.replace(name, value)
    return word


def _urls(to: str, address: Address, host: str, port: int) -> dict[str, str]:
    """Answer the environment in which a program finds the proxy instead of its server."""
    user = ""
    if address.password is not None:
        user = f"{quote(address.username or '', safe='')}:{quote(address.password, safe='')}@"
    where = f"{user}{host}:{port}/{address.db}"
    # resp's own options in the query are for those that know them.
    query = "&".join(
        pair for pair in to.partition("?")[2].split("&") if pair and not pair.startswith("db=")
    )
    ours = f"valkey://{where}{'?' if query else ''}{query}"
    return {"EMQ_URL": ours, "VALKEY_URL": f"valkey://{where}", "REDIS_URL": f"redis://{where}"}


def _waited(child: subprocess.Popen[bytes]) -> int:
    """Wait for the program, hand signals on to it, and answer its exit code as shells do."""
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt:
            if not _at_terminal():  # which has told the program itself
                child.send_signal(signal.SIGINT)
        except BaseException as told:
            number = getattr(told, "signal", signal.SIGTERM)
            child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                child.wait(30)
            if child.poll() is None:
                child.kill()
                child.wait()
            raise
    return code if code >= 0 else 128 - code


def _at_terminal() -> bool:
    """Whether Ctrl-C at a terminal reaches all of this process's group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _command(options: argparse.Namespace, words: list[bytes]) -> int:
    """Send one command, and show it."""
    from .. import connect
    from ..errors import ServerError
    from ..tap.proxy import server_address
    from ..tap.record import Tap

    to = _server(options)
    if "://" not in to:
        to = _url(server_address(to))
    tap = Tap(payloads=not options.no_payloads)
    show = _Show(options, stdout(), live=False, view="tree")
    code = 0
    try:
        with connect(to, tap=tap) as connector:
            tap.clear()  # what connecting has said is not what was asked for
            try:
                connector.command(*words, timeout=float("inf"))
            except ServerError:
                code = 1  # it is shown
        if show.records:
            number = show.connection(str(server_address(to)), "resp")
            for record in tap:
                (show.sent if record.sent else show.received)(number, record.data, record.time_ns)
        show.see(list(tap.exchanges()))
    finally:
        show.close()
    return _ended(show) or code


def _url(address: Address) -> str:
    if address.path is not None:
        return f"unix://{quote(os.path.abspath(address.path))}"
    return f"valkey://{address}"

"""Where a server is, how to connect to it, and what is said first.

A URL names the server; options say how to use it. Options that are plain values may also stand in
the URL's query; keyword arguments win over the query:

    valkey://user:password@host:port/db?client_name=billing&timeout=2
    unix:///run/valkey.sock?db=1

`boot` is the conversation that begins every connection.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from .decode import ErrorReply, Pairs, Push, Reply
from .errors import AddressError, ConnectFailed, Refused, ServerFull, escaped
from .plan import Plan

if TYPE_CHECKING:
    import ssl

    from .events import Event
    from .tap import Tap

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 6379
_TLS_OF_SCHEME: Final = {"valkey": False, "redis": False, "valkeys": True, "rediss": True}
_SCHEMES: Final = ", ".join(f"{scheme}://" for scheme in (*_TLS_OF_SCHEME, "unix"))
_CLIENT_NAME: Final = re.compile(r"[!-~]{1,256}")  # what CLIENT SETNAME takes: no blank, no newline


class Address(NamedTuple):
    """Where a server listens, and who connects.

    Attributes:
        host: Name or address; unused where `path` is given.
        port: TCP port.
        path: Of a Unix socket, or None.
        username: None is the server's `default` user.
        password: Never shown: not by `repr`, not in an error.
        db: Number of the database to SELECT.
        tls: Whether TLS is spoken.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    path: str | None = None
    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool = False

    def __repr__(self) -> str:
        told = self._asdict()
        del told["password"]
        return f"Address({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    def __str__(self) -> str:
        """Where, and nothing secret: for messages."""
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class _Fields(NamedTuple):
    protocol: int | None = None
    client_name: str | None = None
    connect_timeout: float = 5.0
    timeout: float = 5.0
    max_pending: int = 10_000
    heartbeat: float = 30.0
    backoff: tuple[float, float] = (0.1, 2.0)
    tls: ssl.SSLContext | None = None
    tap: Tap | None = None
    on_connect: Callable[[], Plan[Any]] | None = None
    on_push: Callable[[Push], object] | None = None
    on_event: Callable[[Event], object] | None = None


class Options(_Fields):
    """How a connector behaves.

    Attributes:
        protocol: RESP version: 3, 2, or None for 3 with a fallback to 2 where HELLO is unknown.
        client_name: Told to the server (CLIENT SETNAME), or None.
        connect_timeout: Seconds for dialling and booting together.
        timeout: Seconds for a whole call; `math.inf` for no limit.
        max_pending: Replies that may be owed on a connection before `Overloaded`.
        heartbeat: Seconds of silence after which a connection is asked whether it still stands,
            and after which one that owes a reply that nobody waits for is given up; `math.inf`
            never asks.
        backoff: Seconds to wait after a first failure to connect, and at the most after many; each
            wait is drawn at random from its upper half.
        tls: How the server is verified and what is presented to it, with `valkeys://`; None
            verifies it, name included, against the system's authorities.
        tap: Records every byte, before TLS; None records nothing and costs nothing.
        on_connect: Makes the plan that runs on every new connection before anything else. So it
            does on the one kept for transactions that watch, which in the shell for threads is
            read only while there is one: let it ask for no pushes that nobody's reads caused, as
            CLIENT TRACKING with BCAST does; use a `sibling` for those.
        on_push: Gets every push that belongs to no subscription, such as `invalidate`; None drops
            them. It runs where replies are handed out, and must not call its connector.
        on_event: Gets an `Event` for each connection made or lost and each exchange; None makes
            none and costs nothing.
    """

    __slots__ = ()

    def __new__(cls, *values: Any, **named: Any) -> Self:
        self = super().__new__(cls, *values, **named)
        self._check()
        return self

    def _check(self) -> None:
        if self.protocol not in (None, 2, 3) or isinstance(self.protocol, bool):
            raise AddressError(f"protocol must be 2, 3 or None, not {self.protocol!r}")
        name = self.client_name
        if name is not None and not (isinstance(name, str) and _CLIENT_NAME.fullmatch(name)):
            raise AddressError("client_name must be printable ASCII without blanks")
        try:
            check_timeout(self.connect_timeout, "connect_timeout")
            check_timeout(self.timeout)
            check_timeout(self.heartbeat, "heartbeat")
        except ValueError as error:
            raise AddressError(str(error)) from None
        if type(self.max_pending) is not int or self.max_pending < 1:
            raise AddressError(f"max_pending must be a whole number above 0: {self.max_pending!r}")
        _check_backoff(self.backoff)
        if self.tls is not None:
            _check_context(self.tls)
        for hook in ("on_push", "on_event"):
            if getattr(self, hook) is not None and not callable(getattr(self, hook)):
                raise AddressError(f"{hook} must be a function, or None")
        methods = ("connection", "write", "read", "closed")
        if isinstance(self.tap, type):
            raise AddressError(f"tap must be a Tap, as in tap={self.tap.__name__}(), not the class")
        if self.tap is not None and not all(hasattr(self.tap, name) for name in methods):
            raise AddressError(f"tap must be a Tap or None, not {type(self.tap).__name__}")
        if self.on_connect is not None and not callable(self.on_connect):
            raise AddressError("on_connect must be a function that makes a plan, or None")


def _check_context(context: Any) -> None:
    # ssl takes longer to import than all of the rest: so a look at what only its own can have.
    if isinstance(context, type) or not hasattr(context, "wrap_bio"):
        raise AddressError(f"tls must be an ssl.SSLContext, not {type(context).__name__}")
    if getattr(getattr(context, "protocol", None), "name", "") == "PROTOCOL_TLS_SERVER":
        raise AddressError("tls is a context for servers; ssl.create_default_context() makes one")


def _check_backoff(backoff: Any) -> None:
    try:
        first, most = backoff
        if check_timeout(first) <= check_timeout(most) < math.inf:
            return
    except (TypeError, ValueError):
        pass
    raise AddressError(
        f"backoff must be two numbers of seconds, the first and the longest: {backoff!r}"
    )


class Backoff:
    """When to try again after failures to connect. It knows no clock: it is told the time.

    Attributes:
        failures: In a row.
        not_before: When the next try is due.
        error: Of the latest failure, or None.
    """

    __slots__ = ("_first", "_most", "error", "failures", "not_before")

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self.failures = 0
        self.not_before = -math.inf
        self.error: BaseException | None = None

    def failed(self, now: float, error: BaseException | None = None) -> float:
        """A try failed; how long to wait before the next, in seconds."""
        import random  # not at import time: most programs never come here

        wait = self._first * 2.0 ** min(self.failures, 64)
        wait = min(wait, self._most) * random.uniform(0.5, 1.0)
        self.failures += 1
        self.not_before = now + wait
        self.error = error
        return wait

    def worked(self) -> None:
        """A try succeeded."""
        self.failures = 0
        self.not_before = -math.inf
        self.error = None

    def check(self, now: float, deadline: float) -> float:
        """How many seconds a caller has to wait before it may try.

        Raises:
            RespError: The latest failure, if its time would be up before.
        """
        wait = max(self.not_before - now, 0.0)
        if self.error is not None and now + wait > deadline:
            raise again(self.error)
        return wait


def is_network(error: BaseException) -> bool:
    """Whether waiting may mend it: nobody was reached, or one who was not ready."""
    return isinstance(error, ConnectFailed) and (
        isinstance(error, ServerFull) or not isinstance(error, Refused)
    )


def again(error: BaseException) -> BaseException:
    """`error`, to be raised at another place too: a copy where one can be made."""
    try:
        fresh = copy.copy(error)
    except Exception:
        return error
    fresh.__cause__ = error
    return fresh


def change_options(options: Options, changes: dict[str, Any]) -> Options:
    """`options` with `changes`.

    Raises:
        AddressError: There is no such option, or its value cannot be used.
    """
    unknown = sorted(set(changes) - _OPTIONS)
    if unknown:
        raise AddressError(f"no such option: {', '.join(unknown)}")
    return Options(**{**options._asdict(), **changes})


def check_timeout(seconds: object, name: str = "timeout") -> float:
    """`seconds` as a float, if it can bound a call.

    Raises:
        ValueError: It is not a number above 0.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"{name} must be a number of seconds above 0, or math.inf: {seconds!r}")
    try:
        return float(seconds)
    except OverflowError:  # an int of hundreds of digits
        raise ValueError(f"{name} is too large; math.inf is no limit") from None


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):  # int() also takes "1_0" and " 5"
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?|inf", text):
        raise ValueError
    return float(text)


_IN_QUERY: Final[dict[str, Callable[[str], Any]]] = {
    "protocol": _whole,
    "client_name": str,
    "connect_timeout": _seconds,
    "timeout": _seconds,
    "max_pending": _whole,
    "heartbeat": _seconds,
}
_OPTIONS: Final = frozenset(Options._fields)


def parse_url(url: str, **options: Any) -> tuple[Address, Options]:
    """The address and the options that `url` and keyword `options` describe.

    Raises:
        AddressError: Anything that cannot be used, named; the message never holds the URL itself,
            for a URL may hold a password.
    """
    if not isinstance(url, str):
        raise AddressError(f"the URL must be str, not {type(url).__name__}")
    if any(character <= " " or character == "\x7f" for character in url):
        raise AddressError("the URL holds a blank or a control character; percent-encode it")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # whose text may quote the password
        raise AddressError(
            "the URL's host or port is malformed; percent-encode what is special in a password"
        ) from None
    if parts.fragment or url.endswith("#"):
        raise AddressError("the URL holds a '#'; percent-encode it as %23")

    query: dict[str, str] = {}
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise AddressError("the URL's query is not name=value&name=value") from None
    for name, value in pairs:
        if name in query:
            raise AddressError(f"the URL's query gives {name!r} twice")
        query[name] = value

    username = _decoded(parts.username) if parts.username else None
    password = _decoded(parts.password) if parts.password is not None else None
    if username is not None and password is None:
        raise AddressError("the URL names a user without a password: write user:password@")

    if "://" not in url.partition("?")[0]:  # `valkey:5` is a scheme and a path, to a URL parser
        raise AddressError(f"the URL must begin with one of {_SCHEMES}")
    if parts.scheme == "unix":
        if parts.hostname or port is not None:
            raise AddressError("a unix URL has no host: write unix:///path/to/socket")
        if len(parts.path) < 2:
            raise AddressError("a unix URL needs a path: write unix:///path/to/socket")
        address = Address(path=_decoded(parts.path), username=username, password=password)
    elif parts.scheme in _TLS_OF_SCHEME:
        if port == 0:
            raise AddressError("the URL's port must be 1 to 65535")
        path = parts.path.removeprefix("/")
        if path:
            if "db" in query:
                raise AddressError("the URL names its database twice: in its path and as db=")
            query["db"] = path
        address = Address(
            host=_decoded(parts.hostname) if parts.hostname else DEFAULT_HOST,
            port=DEFAULT_PORT if port is None else port,
            username=username,
            password=password,
            tls=_TLS_OF_SCHEME[parts.scheme],
        )
    else:
        raise AddressError(f"the URL must begin with one of {_SCHEMES}")

    if "db" in query:
        address = address._replace(db=_database(query.pop("db")))
    told = {}
    for name, value in query.items():
        convert = _IN_QUERY.get(name)
        if convert is None:
            known = ", ".join(("db", *_IN_QUERY))
            raise AddressError(f"the URL's query cannot say {name!r}; it can say {known}")
        try:
            told[name] = convert(value)
        except ValueError:
            raise AddressError(f"the URL's query gives {name} a value that is no number") from None
    return address, change_options(Options(**told), options)


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise AddressError("what the URL percent-encodes is not UTF-8") from None


def _database(text: str) -> int:
    try:
        return _whole(text)
    except ValueError:
        raise AddressError("the URL's database must be a whole number, as in /0") from None


def check_tls(address: Address, options: Options) -> None:
    """See that nothing is said in clear where TLS was asked for.

    Raises:
        AddressError: The URL and the options disagree.
    """
    if options.tls is not None and not address.tls:
        raise AddressError(
            "tls= is given, and the URL is of a server without TLS: write valkeys://"
        )


def boot(address: Address, options: Options) -> Plan[int]:
    """Agree on a protocol and say who connects; answers the RESP version spoken.

    HELLO 3 carries the password and the name with it. Only a server that does not know HELLO, or
    not version 3, is spoken to in RESP2, and only where the caller left the choice open.

    Raises:
        Refused: The server answered an error.
    """
    version = yield from _greeted(address, options)
    if address.db:
        yield from _accepted(address, ("SELECT", address.db))
    return version


def _greeted(address: Address, options: Options) -> Plan[int]:
    if options.protocol != 2:
        hello: list[str | int] = ["HELLO", 3]
        if address.password is not None:
            hello += ["AUTH", address.username or "default", address.password]
        if options.client_name is not None:
            hello += ["SETNAME", options.client_name]
        reply = yield tuple(hello)
        if not isinstance(reply, ErrorReply):
            if not isinstance(reply, (dict, Pairs)):
                raise Refused(f"{address} answered HELLO 3 with a {type(reply).__name__}", "")
            return 3
        if options.protocol == 3 or not _knows_no_hello(reply):
            raise refused(address, "HELLO", reply)

    if address.password is not None:
        user = () if address.username is None else (address.username,)
        yield from _accepted(address, ("AUTH", *user, address.password))
    if options.client_name is not None:
        yield from _accepted(address, ("CLIENT", "SETNAME", options.client_name))
    return 2


def is_loading(reply: object) -> bool:
    """Whether the server says that it did not run a command, since it is not ready for any yet.

    Of a list of replies: whether it says so of all of them, so that none ran.
    """
    if isinstance(reply, list):
        return bool(reply) and all(map(is_loading, reply))
    return (
        isinstance(reply, ErrorReply)
        and reply.code == "LOADING"
        and "loading the dataset in memory" in reply.message
    )


def _knows_no_hello(reply: ErrorReply) -> bool:
    return reply.code == "NOPROTO" or reply.message.lower().startswith("err unknown command")


def _accepted(address: Address, command: tuple[str | int, ...]) -> Plan[None]:
    reply: Reply = yield command
    if isinstance(reply, ErrorReply):
        raise refused(address, str(command[0]), reply)


def is_unasked(reply: ErrorReply) -> bool:
    """Whether the server says that it takes no such client: before anything was said, and so no
    answer to what was. Only the first reply of a connection can say so; in any other it is a
    script's own word."""
    return reply.message.startswith(("ERR max number of clients", "DENIED Valkey", "DENIED Redis"))


def refused(address: Address, command: str, reply: ErrorReply) -> Refused:
    """The error for a connection that the server refused."""
    message = reply.message
    if address.password:
        message = message.replace(address.password, "***")
    if "max number of clients" in message:
        return ServerFull(f"{address} takes no more clients: {escaped(message)}", reply.code)
    if reply.code == "DENIED":
        return Refused(f"{address} refused the connection: {escaped(message)}", reply.code)
    told = f"{address} refused {command}: {escaped(message)}"
    if reply.code in ("NOAUTH", "WRONGPASS"):
        told += "; put user:password@ into the URL, percent-encoded"
    return Refused(told, reply.code)

"""A Lua script, called by its digest.

A script's digest is computed from its source when it is declared, so no round trip is spent to
learn it: EVALSHA goes first. Only where the server answers NOSCRIPT is the body sent, once, with
SCRIPT LOAD; the digest that the server answers must be the script's own, or the script is not run;
then the same EVALSHA goes again, and what it answers is the answer. `repair` is that rule, and
`flush` says commands together by it; both are plans over requests, so that the two shells, and any
number of calls at once, follow it alike.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from .decode import ErrorReply, Reply
from .encode import Arg, Head, encode_command
from .errors import (
    EncodeTypeError,
    EncodeValueError,
    RespError,
    ServerError,
    ShaMismatch,
    TransportError,
    Unanswered,
)
from .plan import Command
from .protocol import is_digest

try:
    # hashlib loads OpenSSL, which takes as long as the codec and 4 MB.
    from _sha1 import sha1  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # it is no promise of the language's
    from hashlib import sha1

T = TypeVar("T")

NOSCRIPT: Final = "NOSCRIPT"
_SEQUENCES: Final = frozenset({list, tuple})
_NO_SEQUENCES: Final = frozenset({str, bytes, bytearray, memoryview, type(None), int, float, dict})


class Script:
    """A Lua script: its name, its source, and the digest that stands for it on the wire.

    Calling a script makes a `ScriptCall`, a command that pipelines and plans take wherever a tuple
    of arguments stands.

    Args:
        name: What to call it in errors and statistics; never sent.
        source: Lua, as text (sent as UTF-8) or as bytes.

    Attributes:
        sha: The SHA-1 of the source, 40 lower-case hex digits.
    """

    __slots__ = ("_heads", "_load", "name", "sha", "source")

    def __init__(self, name: str, source: str | bytes) -> None:
        self.name = name
        if isinstance(source, str):
            try:
                source = source.encode()
            except UnicodeEncodeError:
                raise EncodeValueError(
                    f"script {name!r} is str with a lone surrogate; encode it to bytes yourself"
                ) from None
        elif not isinstance(source, bytes | bytearray | memoryview):
            raise EncodeTypeError(f"a script's source is str or bytes: {type(source).__name__}")
        self.source = bytes(source)
        self.sha: str = sha1(self.source, usedforsecurity=False).hexdigest()
        self._heads: dict[int, Head] = {}
        self._load: bytes | None = None

    def __call__(self, keys: Sequence[Arg] = (), args: Sequence[Arg] = ()) -> ScriptCall:
        return ScriptCall(self, keys, args)

    def __repr__(self) -> str:
        return f"Script({self.name!r}, sha={self.sha})"

    def head(self, number_of_keys: int) -> Head:
        """`EVALSHA <sha> <number_of_keys>`, encoded once."""
        head = self._heads.get(number_of_keys)
        if head is None:
            head = self._heads[number_of_keys] = Head("EVALSHA", self.sha, number_of_keys)
        return head

    def frame(self, keys: Sequence[Arg], args: Sequence[Arg]) -> bytes:
        """Its EVALSHA command with these keys and arguments.

        Raises:
            EncodeError: They cannot be encoded, or are no sequences.
        """
        if type(keys) in _NO_SEQUENCES or type(args) in _NO_SEQUENCES:
            raise EncodeTypeError(
                f"keys and args of script {self.name!r} are lists or tuples of arguments, not "
                f"{type(keys).__name__} and {type(args).__name__}"
            )
        try:
            count = len(keys)
            len(args)  # one that can be read only once could not be said again
        except TypeError:
            raise EncodeTypeError(
                f"keys and args of script {self.name!r} are lists or tuples of arguments, not "
                f"{type(keys).__name__} and {type(args).__name__}"
            ) from None
        head = self._heads.get(count) or self.head(count)
        return head.encode((*keys, *args))

    def load(self) -> bytes:
        """`SCRIPT LOAD <source>`, encoded once."""
        if self._load is None:
            self._load = encode_command("SCRIPT", "LOAD", self.source)
        return self._load


class ScriptCall:
    """One call of a script, with its keys and its arguments: a command like any tuple."""

    __slots__ = ("args", "keys", "script")

    command: Final = "EVALSHA"

    def __init__(self, script: Script, keys: Sequence[Arg], args: Sequence[Arg]) -> None:
        self.script = script
        self.keys = keys
        self.args = args

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScriptCall):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __iter__(self) -> Iterator[Arg]:
        """The arguments of its EVALSHA command."""
        return iter(("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args))

    def __repr__(self) -> str:
        return f"<{self.script.name}: {len(self.keys)} keys, {len(self.args)} args>"

    def frame(self) -> bytes:
        """Its EVALSHA command, as it is sent."""
        return self.script.frame(self.keys, self.args)

    @staticmethod
    def _rows_of_calls(calls: Sequence[ScriptCall]) -> tuple[bytes, list[Any], int] | None:
        """Of calls that differ in keys and arguments alone: how their commands begin, all of their
        keys and arguments, and how many each has. None where they differ in more."""
        forms = {
            (call.script, len(call.keys), len(call.args), type(call.keys), type(call.args))
            for call in calls
        }
        script, keys, args, *kinds = forms.pop()
        if forms or not keys + args or not _SEQUENCES.issuperset(kinds):
            return None
        flat = [arg for call in calls for arg in (*call.keys, *call.args)]
        return script.head(keys).start(keys + args), flat, keys + args


def missed(reply: Reply) -> bool:
    """Whether an EVALSHA met a server that does not hold the script."""
    return type(reply) is ErrorReply and reply.code == NOSCRIPT


class Load:
    """A request of `repair`: have `script` loaded by a SCRIPT LOAD written after `missed_at`.

    Attributes:
        may_begin: Whether a load may be begun for it, if none is under way.
    """

    __slots__ = ("may_begin", "missed_at", "script")

    def __init__(self, script: Script, missed_at: int, may_begin: bool) -> None:
        self.script = script
        self.missed_at = missed_at
        self.may_begin = may_begin


Loaded: TypeAlias = tuple[Reply, bool] | None
"""The answer to a `Load`: what SCRIPT LOAD answered, and whether it was begun for this request."""


class Muted:
    """A request: say `commands` between CLIENT REPLY OFF and ON, and receive no replies."""

    __slots__ = ("commands",)

    def __init__(self, commands: list[Command]) -> None:
        self.commands = commands


Request: TypeAlias = Load | Muted | list[Command]
Exchange: TypeAlias = Generator[Request, Any, T]


def flush(commands: list[Command]) -> Exchange[list[Reply]]:
    """Say `commands` together; script calls among them that meet NOSCRIPT are repaired.

    Yields lists of commands, and receives their replies and the place of the latest of them; and
    what `repair` yields. Each reply stands in its command's place.
    """
    if not commands:
        return []
    replies: list[Reply]
    replies, place = yield commands
    again = []
    if ErrorReply in set(map(type, replies)):
        again = [
            (at, command)
            for at, command in enumerate(commands)
            if isinstance(command, ScriptCall) and missed(replies[at])
        ]
    if again:
        calls = [call for _, call in again]
        try:
            repaired = yield from repair(calls, place, others_ran=len(again) < len(commands))
        except RespError as error:
            came: list[Any] = list(replies)
            for (at, _), outcome in zip(again, error.replies or (), strict=True):
                came[at] = outcome
            error.replies = came
            raise
        for (at, _), reply in zip(again, repaired, strict=True):
            replies[at] = reply
    return replies


def repair(
    calls: list[ScriptCall], missed_at: int, others_ran: bool = False
) -> Exchange[list[Reply]]:
    """Load the scripts of `calls`, all of which met NOSCRIPT, and run them again, in order.

    Yields a `Load` for each script, and receives a `Loaded`; then yields the calls, and receives
    their replies and the place of the latest of them. What they answer is the answer, a second
    NOSCRIPT too: a call has at most one load begun for it. Only where the cache was emptied in
    between, and another call has begun a load since, does it ride on that one.

    Args:
        calls: The calls, in the order in which they were written.
        missed_at: The place of the latest of them on its connection.
        others_ran: Whether the same caller had other commands, which ran.

    Raises:
        ServerError: SCRIPT LOAD was answered with an error; the script was not run.
        ShaMismatch: SCRIPT LOAD answered anything but the script's digest; it was not run.
        TransportError: The connection failed; of these calls, none has run while one is loaded.
    """
    replies: list[Any] = [Unanswered.NOT_SENT] * len(calls)
    pending = list(range(len(calls)))
    begun: set[Script] = set()
    running = False
    try:
        for _ in range(_RIDES):
            loaded = set()
            for script in dict.fromkeys(calls[at].script for at in pending):
                found: Loaded = yield Load(script, missed_at, script not in begun)
                if found is None:
                    continue
                answer, mine = found
                if isinstance(answer, ErrorReply):
                    raise ServerError(answer.code, answer.message, "SCRIPT LOAD")
                if not is_digest(answer, script.sha):
                    raise ShaMismatch(script.sha, answer)
                loaded.add(script)
                if mine:
                    begun.add(script)
            again = [at for at in pending if calls[at].script in loaded]
            if not again:
                break
            running = True
            answers, missed_at = yield [calls[at] for at in again]
            running = False
            for at, reply in zip(again, answers, strict=True):
                replies[at] = reply
            pending = [at for at in again if _was_emptied(replies[at])]
            others_ran = others_ran or len(pending) < len(again)
    except RespError as error:
        for at in pending:  # not run so far, whatever was answered
            replies[at] = Unanswered.NOT_SENT
        if running:
            for at, outcome in zip(again, error.replies or (), strict=False):
                replies[at] = outcome
        error.replies = replies
        if isinstance(error, TransportError):
            error.may_have_run = others_ran or (running and error.may_have_run)
        raise
    return replies


_RIDES: Final = 8  # rounds; more would need a cache that is emptied in each of them


def _was_emptied(reply: Reply) -> bool:
    """Whether it is the server that says NOSCRIPT, and not the script, which would run again."""
    return missed(reply) and reply.message.startswith("NOSCRIPT No matching script")

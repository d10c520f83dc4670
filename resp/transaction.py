"""MULTI .. EXEC on a connection that is shared, and commands without replies.

`atomically` says a transaction in one piece, so that nothing of other callers comes between, and
judges what EXEC answers. `watched` decides what to say after looking: WATCH needs a connection on
which nobody else speaks, and the shells keep one for it. `muted` says commands whose replies nobody
wants. All three are plans over the requests of `script`.

Inside MULTI a call of a script that the server does not hold cannot be repaired, and without
replies nobody would learn of it. So scripts are loaded before: for transactions once a connection,
and again when one met NOSCRIPT; without replies each time.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from .address import is_loading
from .decode import ErrorReply, Reply
from .encode import Arg, encode_command
from .errors import (
    ConnectionLost,
    EncodeTypeError,
    RespError,
    ServerError,
    ShaMismatch,
    TransactionAborted,
    TransportError,
)
from .plan import Command, Plan, command_name, prepare
from .protocol import is_digest
from .script import Exchange, Load, Loaded, Muted, Script, ScriptCall, flush, missed

Decide: TypeAlias = Callable[[], Plan[Iterable[Command]]]

_MULTI: Final = ("MULTI",)
_EXEC: Final = ("EXEC",)
_OFF: Final = encode_command("CLIENT", "REPLY", "OFF")
_ON: Final = encode_command("CLIENT", "REPLY", "ON")


class _Unchecked:
    """A command that a shared connection refuses, for one that is not shared."""

    __slots__ = ("_args", "command")

    def __init__(self, *args: Arg) -> None:
        self._args = args
        self.command = str(args[0])

    def frame(self) -> bytes:
        return encode_command(*self._args)


def check_keys(watch: Collection[Arg]) -> tuple[Arg, ...]:
    """`watch`, if it is a list of keys.

    Raises:
        EncodeTypeError: It is one key, or nothing of the kind.
    """
    if not isinstance(watch, (list, tuple, set, frozenset)):
        raise EncodeTypeError(f"watch is a list or tuple of keys, not {type(watch).__name__}")
    return tuple(watch)


def check_commands(commands: object) -> list[Command]:
    """`commands` as a list.

    Raises:
        EncodeTypeError: They are no commands.
    """
    if callable(commands):
        raise EncodeTypeError("a function that decides needs watch=, the keys that it goes by")
    if isinstance(commands, (str, bytes, bytearray, dict)) or not isinstance(commands, Iterable):
        raise EncodeTypeError(f"commands are a list of commands, not {type(commands).__name__}")
    return list(commands)


def atomically(commands: Sequence[Command], max_pending: int) -> Exchange[list[Reply]]:
    """Run `commands` in a transaction; what EXEC answers, error replies as values.

    Raises:
        TransactionAborted: EXEC ran nothing: a watched key changed, or a command was refused.
        ServerError: MULTI was refused, and the commands ran one by one; or EXEC was.
    """
    said: list[Command] = [_MULTI, *commands, _EXEC]
    prepare(said, max_pending)  # what cannot be sent is told before anything is
    prepare(commands, max_pending)  # nor can an EXEC among them end it early
    if not commands:
        return []
    yield from _loaded(commands)
    try:
        answers, place = yield said
    except TransportError as lost:
        lost.replies = None  # MULTI and EXEC are no commands of the caller's
        raise
    opened, *queued, ran = answers
    if isinstance(opened, ErrorReply):
        error = ServerError(opened.code, opened.message, "MULTI")
        error.add_note("so the commands were no transaction: each was answered by itself")
        error.replies = queued
        raise error
    if ran is None:
        raise TransactionAborted("a watched key was changed, and EXEC ran nothing")
    if isinstance(ran, ErrorReply):
        error = ServerError(ran.code, ran.message, "EXEC")
        if ran.code != "EXECABORT":
            raise error
        for command, reply in zip(commands, queued, strict=True):
            if isinstance(reply, ErrorReply):
                refused = ServerError(reply.code, reply.message, command_name(command))
                raise TransactionAborted(f"EXEC ran nothing: {refused}") from refused
        raise TransactionAborted(f"EXEC ran nothing: {error}") from error
    if not isinstance(ran, list) or len(ran) != len(commands):
        raise ServerError("", f"a {type(ran).__name__} that is not {len(commands)} replies", "EXEC")
    replies: list[Reply] = ran
    emptied = [
        command.script
        for command, reply in zip(commands, replies, strict=False)
        if isinstance(command, ScriptCall) and missed(reply)
    ]
    for script in dict.fromkeys(emptied):  # nothing runs again, but the next one finds it
        with contextlib.suppress(RespError):  # which that one will be told
            yield Load(script, place, True)
    return replies


def was_loading(error: BaseException) -> bool:
    """Whether a transaction ran nothing because the server was loading its dataset."""
    cause = error.__cause__ if isinstance(error, TransactionAborted) else error
    return isinstance(cause, ServerError) and is_loading(ErrorReply(cause.code, cause.message))


def watched(
    keys: Sequence[Arg], commands: Iterable[Command] | Decide, max_pending: int
) -> Exchange[list[Reply]]:
    """WATCH `keys`, then decide, then run what was decided in a transaction.

    Args:
        keys: A change of any of them, by anybody, from now on makes EXEC run nothing.
        commands: A function that makes a plan, which may look at anything and returns the commands;
            or the commands themselves. None at all runs nothing.
        max_pending: Of the connection, which nobody else may use.
    """
    if isinstance(commands, Generator):
        raise EncodeTypeError(
            "with watch=, commands is the function that makes the plan, not the plan; or a list"
        )
    [reply] = yield from flush([_Unchecked("WATCH", *keys)])
    if isinstance(reply, ErrorReply):
        raise ServerError(reply.code, reply.message, "WATCH")
    try:
        decided = check_commands(
            (yield from _steps(commands())) if callable(commands) else commands
        )
    except TransactionAborted:
        yield from flush([_Unchecked("UNWATCH")])
        raise
    if not decided:
        yield from flush([_Unchecked("UNWATCH")])
        return []
    return (yield from atomically(decided, max_pending))


def muted(commands: Sequence[Command]) -> Exchange[None]:
    """Say `commands` without replies.

    Raises:
        ServerError: CLIENT REPLY was refused.
    """
    yield from _loaded(commands, sys.maxsize)  # anew: nobody would learn of a flush since
    reply = yield Muted(list(commands))
    if isinstance(reply, ErrorReply):
        raise ServerError(reply.code, reply.message, "CLIENT REPLY")
    if reply != "OK":
        raise ConnectionLost(f"CLIENT REPLY ON was answered with a {type(reply).__name__}")


def silenced(slices: Iterator[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Slices of commands, each between OFF and ON, whose one reply is ON's."""
    for data, count in slices:
        yield b"".join((_OFF, data, _ON)), count


def _loaded(commands: Sequence[Command], missed_at: int = 0) -> Exchange[None]:
    """Have every script that is called loaded, unless it was on this connection."""
    called = [command.script for command in commands if isinstance(command, ScriptCall)]
    for script in dict.fromkeys(called):
        yield from _load(script, missed_at)


def _load(script: Script, missed_at: int) -> Exchange[None]:
    try:
        found: Loaded = yield Load(script, missed_at, True)
    except TransportError as error:
        error.may_have_run = False
        raise
    answer = None if found is None else found[0]
    if isinstance(answer, ErrorReply):
        raise ServerError(answer.code, answer.message, "SCRIPT LOAD")
    if not is_digest(answer, script.sha):
        raise ShaMismatch(script.sha, answer)


def _steps(plan: Plan[Any]) -> Exchange[Any]:
    """Drive a plan of steps as a plan of requests."""
    if not hasattr(plan, "send"):
        raise EncodeTypeError(
            "with watch=, commands is a function that makes a plan (a generator), or the commands"
        )
    resume: Callable[[Any], Any] = plan.send
    fact: Any = None
    try:
        while True:
            step = resume(fact)
            try:
                if type(step) is list:
                    fact = yield from flush(step)
                else:
                    [fact] = yield from flush([step])
                resume = plan.send
            except RespError as error:
                fact = error
                resume = plan.throw
    except StopIteration as end:
        return end.value
    finally:
        plan.close()

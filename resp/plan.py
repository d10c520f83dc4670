"""A plan: an operation written once, without a socket, a lock, a clock or a loop.

A plan is a generator. It yields what should be said to the server and receives what was answered:

    def swap(key: str, value: bytes) -> Plan[bytes | None]:
        before = yield ("GET", key)
        yield [("SET", key, value), ("EXPIRE", key, 60)]
        return before

A step is one command (it receives one reply) or a list of commands, flushed together (it receives
the list of their replies, in order). A command is a tuple of arguments, or a value that knows its
own bytes, such as a script call. Error replies arrive as `ErrorReply` values; a failure of the
connection is thrown into the plan, which may catch it, clean up and yield again. `Connector.run`
and `AsyncConnector.run` drive plans; a plan never knows which.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from .encode import Arg, encode_command
from .errors import EncodeTypeError, RefusedCommand, RespError

S = TypeVar("S")
T = TypeVar("T")


class Call(Protocol):
    """A command that is not a tuple: it has a name, and knows its own bytes."""

    @property
    def command(self) -> str:
        """The command's name, for errors."""

    def frame(self) -> bytes:
        """The command as it is sent."""


WINDOW: Final = 4  # slices of a pipeline that may be unanswered at a time
_SLICE_COMMANDS: Final = 128
_SLICE_BYTES: Final = 65_536

Command: TypeAlias = tuple[Arg, ...] | Call
Step: TypeAlias = Command | list[Command]
Plan: TypeAlias = Generator[Step, Any, T]


def _check_plan(plan: object) -> None:
    if not isinstance(plan, Generator):
        raise TypeError(f"a plan is a generator, what calling its function makes, not {plan!r:.60}")
    if getattr(plan, "gi_frame", plan) is None:
        raise ValueError("a plan runs once, and this one has; call its function again")


def run(plan: Generator[S, Any, T], exchange: Callable[[S], Any]) -> T:
    """Drive `plan` with a function that says one step and answers its reply or replies."""
    _check_plan(plan)
    resume: Callable[[Any], S] = plan.send
    fact: Any = None
    try:
        while True:
            step = resume(fact)
            try:
                fact = exchange(step)
                resume = plan.send
            except RespError as error:
                fact = error
                resume = plan.throw
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        plan.close()  # an interrupt leaves by here; the plan cleans up now, not when collected


async def run_async(plan: Generator[S, Any, T], exchange: Callable[[S], Awaitable[Any]]) -> T:
    """Drive `plan` with a coroutine function that says one step and answers its replies."""
    _check_plan(plan)
    resume: Callable[[Any], S] = plan.send
    fact: Any = None
    try:
        while True:
            step = resume(fact)
            try:
                fact = await exchange(step)
                resume = plan.send
            except RespError as error:
                fact = error
                resume = plan.throw
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        plan.close()


# What would change what this connection's replies mean, and the verb that does it safely.
_REFUSED: Final[dict[str, str]] = {
    **dict.fromkeys(("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"), "its messages are no replies"),
    **dict.fromkeys(("UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"), "its answers are no replies"),
    **dict.fromkeys(
        ("MULTI", "EXEC", "DISCARD"),
        "what other callers say would come between; say all of MULTI .. EXEC in one pipeline",
    ),
    "WATCH": "it would watch for every caller of the connection; decide in a script instead",
    "SELECT": "it would move every caller, until the connection is lost; name it in the URL, as /5",
    **dict.fromkeys(("MONITOR", "SYNC", "PSYNC"), "it turns the connection into a feed"),
    "CLIENT REPLY": "it stops the replies that others wait for",
    "HELLO": "it changes the protocol for everybody; use connect(..., protocol=, client_name=)",
    "RESET": "it undoes what connecting set up; close() and connect again",
    "QUIT": "it ends the connection for everybody; use close()",
}
_TRANSACTION: Final = ("MULTI", "EXEC", "DISCARD")
# Names that need no second look. Bounded: a caller may draw names from anywhere.
_passed: set[object] = set()
_PASSED_AT_MOST: Final = 1000


def frame(command: Command) -> bytes:
    """The bytes of one command.

    Raises:
        EncodeError: It cannot be encoded.
        RefusedCommand: It would change what the connection's replies mean.
    """
    if type(command) is tuple:
        try:
            known = command[0] in _passed
        except (IndexError, TypeError, ValueError):  # empty, or a name that cannot be hashed
            known = False
        if not known:
            check_name(command)
        return encode_command(*command)
    own = getattr(command, "frame", None)
    if own is not None:
        return own()  # type: ignore[no-any-return]
    if isinstance(command, (list, tuple)):  # a tuple of a kind of its own, or nearly one
        return frame(tuple(command))
    raise EncodeTypeError(
        f"a command is a tuple of arguments or a script call, not {type(command).__name__}"
    )


def encode_slices(commands: Sequence[Command], max_pending: int) -> list[tuple[bytes, int]]:
    """The bytes of `commands` in slices to be written one by one, and how many each holds.

    All of them are encoded, or none. A slice is small enough that the server's work on one overlaps
    with the writing of the next, and that a window of slices stays below `max_pending`. No cut goes
    through MULTI .. EXEC: what other callers say would come between.

    Raises:
        EncodeError: A command cannot be encoded.
        RefusedCommand: One may not be sent, or a MULTI has no EXEC or DISCARD, or one no MULTI.
    """
    most = max(1, min(_SLICE_COMMANDS, max_pending // WINDOW))
    slices = []
    frames: list[bytes] = []
    size = 0
    inside = False
    for command in commands:
        try:
            data = frame(command)
        except RefusedCommand:
            word = command_name(command)
            if word not in _TRANSACTION or (word == "MULTI") is inside:
                raise
            inside = word == "MULTI"
            data = encode_command(*cast(tuple[Arg, ...], command))
        frames.append(data)
        size += len(data)
        if len(frames) > max_pending:
            raise RefusedCommand(
                f"MULTI .. EXEC leaves in one piece, and this one owes more replies than "
                f"max_pending, {max_pending}; raise it, or say less at once"
            )
        if not inside and (len(frames) >= most or size >= _SLICE_BYTES):
            slices.append((b"".join(frames), len(frames)))
            frames = []
            size = 0
    if inside:
        raise RefusedCommand("MULTI has no EXEC in this pipeline; say all of it in one")
    if frames:
        slices.append((b"".join(frames), len(frames)))
    return slices


def boot_frame(command: Command) -> bytes:
    """The bytes of a command of the boot sequence, where nothing is refused."""
    return encode_command(*command) if isinstance(command, tuple) else command.frame()


def command_name(command: Command) -> str:
    """A command's name, for an error: never its arguments."""
    own = getattr(command, "command", None)
    if own is not None:
        return str(own)
    words = cast(tuple[Arg, ...], command)
    return _word(words[0]) if words else ""


def check_name(command: tuple[Arg, ...]) -> None:
    """Let `command` pass, unless it may not be sent through a shared connection.

    Raises:
        RefusedCommand: It may not; the message says why, and what to use.
    """
    if not command:
        return  # encoding it says what is wrong
    word = _word(command[0])
    name = word
    if word == "CLIENT":
        name = f"CLIENT {_word(command[1])}" if len(command) > 1 else word
    if name in _REFUSED:
        raise RefusedCommand(f"{name} cannot be sent as a command: {_REFUSED[name]}")
    one_word = word != "CLIENT" and isinstance(command[0], (str, bytes))
    if one_word and len(_passed) < _PASSED_AT_MOST:
        _passed.add(command[0])


def _word(argument: object) -> str:
    if isinstance(argument, (bytes, bytearray, memoryview)):
        argument = bytes(argument).decode("latin-1")
    return ascii(str(argument)[:64].upper())[1:-1]


__all__ = ["Call", "Command", "Plan", "Step", "command_name", "frame", "run", "run_async"]

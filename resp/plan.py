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

from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from .encode import Arg, Head, Rows, encode_command
from .errors import EncodeTypeError, RefusedCommand, RespError, TransportError

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
_SLICE_COMMANDS: Final = 256
_FIRST_COMMANDS: Final = 32
_SLICE_BYTES: Final = 65_536
_IN_FLIGHT_BYTES: Final = 4 << 20  # of replies, going by those before
_LOOK: Final = 1024  # commands that are looked at together
_FEW: Final = 8  # commands that are encoded one by one, whatever their form
_PLAIN_INT: Final = 10**18
_FIRST: Final = itemgetter(0)

Command: TypeAlias = tuple[Arg, ...] | Call
Step: TypeAlias = Command | list[Command]
Plan: TypeAlias = Generator[Step, Any, T]


def _check_plan(plan: object) -> None:
    if not isinstance(plan, Generator):
        raise TypeError(f"a plan is a generator, what calling its function makes, not {plan!r:.60}")
    if getattr(plan, "gi_frame", plan) is None:
        raise ValueError("a plan runs once, and this one has; call its function again")


def run(plan: Generator[S, Any, T], exchange: Callable[[S], Any], *, whole: bool = False) -> T:
    """Drive `plan` with a function that says one step and answers its reply or replies.

    Args:
        plan: A fresh one.
        exchange: Says a step.
        whole: The `may_have_run` of an error that leaves the plan is about all of its steps, not
            about the one that failed alone.
    """
    _check_plan(plan)
    resume: Callable[[Any], S] = plan.send
    fact: Any = None
    ran = False
    try:
        while True:
            step = resume(fact)
            try:
                fact = exchange(step)
                resume = plan.send
                ran = whole
            except RespError as error:
                fact = error
                resume = plan.throw
                ran = ran or (whole and getattr(error, "may_have_run", False))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except TransportError as error:
        if ran:
            error.may_have_run = True
        raise
    finally:
        plan.close()  # an interrupt leaves by here; the plan cleans up now, not when collected


async def run_async(
    plan: Generator[S, Any, T], exchange: Callable[[S], Awaitable[Any]], *, whole: bool = False
) -> T:
    """Drive `plan` as `run` does, with a coroutine function that says one step."""
    _check_plan(plan)
    resume: Callable[[Any], S] = plan.send
    fact: Any = None
    ran = False
    try:
        while True:
            step = resume(fact)
            try:
                fact = await exchange(step)
                resume = plan.send
                ran = whole
            except RespError as error:
                fact = error
                resume = plan.throw
                ran = ran or (whole and getattr(error, "may_have_run", False))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except TransportError as error:
        if ran:
            error.may_have_run = True
        raise
    finally:
        plan.close()


# What would change what this connection's replies mean, and the verb that does it safely.
_REFUSED: Final[dict[str, str]] = {
    **{
        verb: f"its messages are no replies; use {verb.lower()}()"
        for verb in ("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE")
    },
    **dict.fromkeys(
        ("UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"),
        "its answers are no replies; close() the subscription",
    ),
    **dict.fromkeys(
        ("MULTI", "EXEC", "DISCARD"),
        "what other callers say would come between; use transaction()",
    ),
    "WATCH": "it would watch for every caller of the connection; use transaction(..., watch=)",
    "SELECT": "it would move every caller, until the connection is lost; name it in the URL, as /5",
    **dict.fromkeys(("MONITOR", "SYNC", "PSYNC"), "it turns the connection into a feed"),
    "CLIENT REPLY": "it stops the replies that others wait for; use send()",
    "HELLO": "it changes the protocol for everybody; use connect(..., protocol=, client_name=)",
    "RESET": "it undoes what connecting set up; close() and connect again",
    "QUIT": "it ends the connection for everybody; use close()",
}
_TRANSACTION: Final = ("MULTI", "EXEC", "DISCARD")
# Names that need no second look, and how their commands begin. Bounded: a caller may draw names
# from anywhere. When it is full it begins anew, for the next names may be the ones that come often.
_heads: dict[object, Head] = {}
_HEADS_AT_MOST: Final = 1000
_LONGEST_NAME: Final = 64


def frame(command: Command) -> bytes:
    """The bytes of one command.

    Raises:
        EncodeError: It cannot be encoded.
        RefusedCommand: It would change what the connection's replies mean.
    """
    if type(command) is tuple:
        try:
            head = _heads.get(command[0])
        except (IndexError, TypeError, ValueError):  # empty, or a name that cannot be hashed
            head = None
        if head is None:
            check_name(command)
            return encode_command(*command)
        return head.encode(command[1:])
    if isinstance(command, (list, tuple)) and not _is_call(command):
        return frame(tuple(command))  # a tuple of a kind of its own, or nearly one
    return _framed(command)


def _is_call(command: object) -> bool:
    return getattr(command, "command", None) is not None and hasattr(command, "frame")


def _framed(command: Command) -> bytes:
    if _is_call(command):
        data = cast(Call, command).frame()
        if type(data) is not bytes or not data:
            told = f"{len(data)} bytes" if type(data) is bytes else type(data).__name__
            raise EncodeTypeError(f"what a command's frame() answers is its bytes, not {told}")
        return data
    raise EncodeTypeError(
        f"a command is a tuple of arguments or a script call, not {type(command).__name__}"
    )


_Ready: TypeAlias = "tuple[Arg, ...] | bytes | Piece | Rows"


class Piece:
    """Commands that leave in one piece: their bytes, and how many they are."""

    __slots__ = ("count", "data")

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        self.count = count


class Pace:
    """How many commands of a pipeline may be sent at a time, going by what its replies weigh.

    Small replies: as many as keep client and server busy at once. Large ones: so few that what is
    on its way stays within `_IN_FLIGHT_BYTES`, be it in the server's buffers or in ours.

    Attributes:
        most: Commands of the next slice.
        window: Slices that may be unanswered before the next is sent.
    """

    __slots__ = ("_most", "most", "window")

    def __init__(self, max_pending: int) -> None:
        self._most = max(1, min(_SLICE_COMMANDS, max_pending // WINDOW))
        self.most = min(self._most, _FIRST_COMMANDS)  # until it is known what a reply weighs
        self.window = 2

    def learn(self, replies: int, received: int) -> None:
        """So many replies came within so many bytes."""
        each = max(1, received // max(1, replies))
        self.most = max(1, min(self._most, _IN_FLIGHT_BYTES // WINDOW // each))
        self.window = WINDOW


def prepare(commands: Sequence[Command], max_pending: int) -> list[_Ready]:
    """`commands`, all of them encoded, or such that encoding them cannot fail.

    The latter are encoded later, slice by slice, so that the server can work on what was sent while
    the rest is encoded, and so that memory does not hold all of it; those of one form, which large
    pipelines are made of, many at a time. MULTI .. EXEC becomes one piece:
    what other callers say must not come between.

    Raises:
        EncodeError: A command cannot be encoded.
        RefusedCommand: One may not be sent, or a MULTI has no EXEC or DISCARD, or one no MULTI.
    """
    ready: list[_Ready] = []
    inside: list[bytes] | None = None  # the frames since MULTI
    for at in range(0, len(commands), _LOOK):
        block = commands[at : at + _LOOK]
        rows = _rows(block) if inside is None else None
        if rows is not None:
            ready.append(rows)
            continue
        for command in block:
            word = ""
            if inside is None and _is_plain(command):
                ready.append(cast("tuple[Arg, ...]", command))
                continue
            try:
                data = frame(command)
            except RefusedCommand:
                word = command_name(command)
                if word not in _TRANSACTION or (word == "MULTI") is (inside is not None):
                    raise
                data = encode_command(*cast(tuple[Arg, ...], command))
            if word == "MULTI":
                inside = []
            if inside is None:
                ready.append(data)
                continue
            inside.append(data)
            if len(inside) > max_pending:
                raise RefusedCommand(
                    f"MULTI .. EXEC leaves in one piece, and this one owes more replies than "
                    f"max_pending, {max_pending}; raise it, or say less at once"
                )
            if word in ("EXEC", "DISCARD"):
                ready.append(Piece(b"".join(inside), len(inside)))
                inside = None
    if inside is not None:
        raise RefusedCommand("MULTI has no EXEC in this pipeline; say all of it in one")
    return ready


def _rows(commands: Sequence[Command]) -> Rows | None:
    """`commands`, if a glance shows that they may be sent, can be encoded, and are of one form."""
    kinds = set(map(type, commands))
    kind = kinds.pop()
    if kinds or len(commands) < _FEW:
        return None
    try:
        if kind is tuple:
            found = _rows_of_tuples(cast("Sequence[tuple[Arg, ...]]", commands))
        elif (rows := getattr(kind, "_rows_of_calls", None)) is not None:
            found = rows(commands)
        else:
            return None
        if found is None:
            return None
        head, flat, width = found
        for arg in flat:
            kind = type(arg)
            if kind is str:
                if not arg.isascii():
                    return None
            elif kind is not bytes and (kind is not int or not -_PLAIN_INT < arg < _PLAIN_INT):
                return None
        return Rows(head, flat, width)
    except (IndexError, TypeError, ValueError):  # empty, refused, without a hash, no arguments
        return None


def _is_plain(command: Command) -> bool:
    """Whether a glance shows that a tuple may be sent, and that encoding it cannot fail."""
    if type(command) is not tuple:
        return False
    try:
        known = command[0] in _heads
    except (IndexError, TypeError, ValueError):
        return False
    for arg in command:
        kind = type(arg)
        if kind is str:
            known = known and cast(str, arg).isascii()
        elif kind is not bytes and kind is not int:
            return False
    return known


def _rows_of_tuples(commands: Sequence[tuple[Arg, ...]]) -> tuple[bytes, list[Any], int] | None:
    names = set(map(_FIRST, commands))
    lengths = set(map(len, commands))
    name = names.pop()
    length = lengths.pop()
    if names or lengths or length < 2:
        return None
    if name not in _heads:
        if _word(name) == "CLIENT":  # what may be sent depends on the second word
            return None
        check_name((name,))
    flat: list[Any] = list(chain.from_iterable(commands))
    del flat[::length]
    return Head(name).start(length - 1), flat, length - 1


def slices(ready: Sequence[_Ready], pace: Pace) -> Iterator[tuple[bytes, int]]:
    """The bytes of commands that were prepared, in slices to be written one by one, and how many
    commands each holds. Each is made when it is asked for, as long as `pace` says then."""
    frames: list[bytes] = []
    count = size = 0
    for item in ready:
        if isinstance(item, Rows):
            at = 0
            while at < item.count:
                data, held = item.encode(at, pace.most - count, _SLICE_BYTES - size)
                at += held
                count += held
                size += len(data)
                frames.append(data)
                if count >= pace.most or size >= _SLICE_BYTES:
                    yield b"".join(frames), count
                    frames, count, size = [], 0, 0
            continue
        if isinstance(item, tuple):
            data, held = frame(item), 1
        elif isinstance(item, bytes):
            data, held = item, 1
        else:
            data, held = item.data, item.count
        if count and count + held > pace.most:
            yield b"".join(frames), count
            frames, count, size = [], 0, 0
        frames.append(data)
        count += held
        size += len(data)
        if count >= pace.most or size >= _SLICE_BYTES:
            yield b"".join(frames), count
            frames, count, size = [], 0, 0
    if frames:
        yield b"".join(frames), count


def boot_frame(command: Command) -> bytes:
    """The bytes of a command of the boot sequence, where nothing is refused."""
    return encode_command(*command) if isinstance(command, tuple) else _framed(command)


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
    if one_word and len(cast("str | bytes", command[0])) <= _LONGEST_NAME:
        if len(_heads) >= _HEADS_AT_MOST:
            _heads.clear()
        _heads[command[0]] = Head(command[0])


def _word(argument: object) -> str:
    try:
        if isinstance(argument, (bytes, bytearray, memoryview)):
            argument = bytes(argument).decode("latin-1")
        argument = str(argument)
    except ValueError:  # a view that was released, an int of thousands of digits: not refused here
        argument = type(argument).__name__
    return ascii(str(argument)[:64].upper())[1:-1]


__all__ = ["Call", "Command", "Plan", "Step", "command_name", "frame", "run", "run_async"]

"""A command as the bytes that are sent: an array of bulk strings, whatever its arguments' types.

    argument                        goes out as
    bytes, bytearray, memoryview    its bytes
    str                             UTF-8
    int (an IntEnum too)            decimal digits
    float                           the shortest text that reads back as the same float; inf, nan

Nothing else is an argument: a bool or None would have to be guessed at, and a list would change how
many arguments there are. Errors name an argument's position (the command's name is argument 0) and
its type, never its value. Encoding is all or nothing: what raises has made no bytes to send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from .errors import EncodeError, EncodeTypeError, EncodeValueError

Arg: TypeAlias = bytes | bytearray | memoryview | str | int | float

# Every piece of a command but its last CRLF starts with the CRLF of the piece before it, so that an
# argument is two pieces, and a small int is one.
_PLAIN: Final = 10**18
_SHORT: Final = 16
_SMALL: Final = 1024
_SIZES: Final = tuple(b"\r\n$%d\r\n" % size for size in range(_SMALL))
_INTS: Final = {
    number: b"\r\n$%d\r\n%d" % (len(b"%d" % number), number) for number in range(-1, _SMALL)
}

# sys.set_int_max_str_digits() goes down to 640 digits; below that, printing an int cannot fail.
_SAFE_BITS: Final = 2048
_SAFE_DIGITS: Final = 600


def encode_command(*args: Arg) -> bytes:
    """Encode one command.

    Raises:
        EncodeTypeError: An argument is not bytes, str, int or float.
        EncodeValueError: There is no argument, or a str holds a lone surrogate.
    """
    if not args:
        raise EncodeValueError("a command needs at least its name")
    return _encode_after_nothing(args)


def encode_commands(commands: Iterable[Sequence[Arg]]) -> bytes:
    """Encode a pipeline: all of its commands, or none.

    Raises:
        EncodeError: As `encode_command` does; the message says which command.
    """
    encoded: list[bytes] = []
    for index, command in enumerate(commands):
        if isinstance(command, str | bytes | bytearray | memoryview):
            told = type(command).__name__
            raise EncodeTypeError(f"command {index} is {told}, not a sequence of arguments")
        try:
            encoded.append(encode_command(*command))
        except EncodeError as error:
            raise type(error)(f"command {index}: {error}") from None
    return b"".join(encoded)


class Head:
    """The constant start of a command, encoded once.

        increment = Head("EVALSHA", sha, 1, key)
        increment.encode([b"5"])  # the whole command

    Raises:
        EncodeError: As `encode_command` does.
    """

    __slots__ = ("_count", "_encoded", "_starts")

    def __init__(self, *args: Arg) -> None:
        encoded = encode_command(*args)
        self._set(len(args), encoded[encoded.index(b"\r\n") : -2])

    def _set(self, count: int, encoded: bytes) -> None:
        self._count = count
        self._encoded = encoded
        self._starts = tuple(b"*%d%b" % (count + tail, encoded) for tail in range(_SHORT))

    def start(self, count: int) -> bytes:
        """The bytes up to here of a command that has `count` more arguments."""
        return b"*%d%b" % (self._count + count, self._encoded)

    def encode(self, tail: Sequence[Arg]) -> bytes:
        """Encode the command that starts with this head and goes on with `tail`.

        Raises:
            EncodeError: As `encode_command` does; positions count from the command's name.
        """
        count = len(tail)
        pieces = [self._starts[count] if count < _SHORT else self.start(count)]
        arg: Any
        try:
            for arg in tail:
                kind = type(arg)
                if kind is str:
                    arg = arg.encode()
                elif kind is not bytes:
                    if kind is int:
                        if arg in _INTS:
                            pieces.append(_INTS[arg])
                            continue
                        arg = b"%d" % arg if -_PLAIN < arg < _PLAIN else _int(arg)
                    else:
                        arg = _text(arg)
                size = len(arg)
                pieces += (_SIZES[size] if size < _SMALL else b"\r\n$%d\r\n" % size, arg)
        except (EncodeError, UnicodeEncodeError):
            _refuse(tail, self._count)
            raise  # unless an argument changed while it was looked at
        pieces.append(b"\r\n")
        return b"".join(pieces)


class Rows:
    """Commands that differ in some arguments alone, encoded many at a time.

    Args:
        head: How each of them begins: its constant arguments, in its array of all.
        flat: The other arguments of all commands, one after the other: bytes, int, or ASCII str.
        width: How many of them belong to a command.
    """

    __slots__ = ("_flat", "_head", "_texts", "_width", "count")

    def __init__(self, head: bytes, flat: list[Any], width: int) -> None:
        self._head = head.replace(b"%", b"%%")
        self._width = width
        self._texts = set(map(type, flat)) <= {str}
        if not self._texts:
            flat = [
                arg if type(arg) is bytes else b"%d" % arg if type(arg) is int else arg.encode()
                for arg in flat
            ]
        self._flat = flat
        self.count = len(flat) // width

    def encode(self, start: int, most: int, size: int) -> tuple[bytes, int]:
        """Encode the commands from number `start` on.

        Args:
            start: The first, counted from 0.
            most: How many, at the most.
            size: Bytes of arguments after which to stop; at least one command is encoded.

        Returns:
            Their bytes, and how many they are.
        """
        width = self._width
        part = self._flat[start * width : (start + most) * width]
        sizes = list(map(len, part))
        if (total := sum(sizes)) > size:
            most = max(1, len(part) // width * size // total)
            del part[most * width :], sizes[most * width :]
        count = len(part) // width
        values = tuple(chain.from_iterable(zip(sizes, part, strict=True)))
        if self._texts:
            text = (self._head.decode("latin-1") + "\r\n$%d\r\n%s" * width + "\r\n") * count
            return (text % values).encode("latin-1"), count
        return (self._head + b"\r\n$%d\r\n%b" * width + b"\r\n") * count % values, count


def _nothing() -> Head:
    head = Head.__new__(Head)
    head._set(0, b"")
    return head


_encode_after_nothing: Final = _nothing().encode


def _refuse(args: Sequence[Arg], before: int) -> None:
    """Raise again for the argument that cannot be encoded, with its position."""
    for index, arg in enumerate(args, before):
        try:
            _text(arg)
        except UnicodeEncodeError:
            raise EncodeValueError(
                f"argument {index} is str with a lone surrogate; encode it to bytes yourself"
            ) from None
        except EncodeError as error:
            raise type(error)(f"argument {index} {error}") from None


def _text(arg: Any) -> bytes:
    """Answer the bytes of one argument of any type."""
    if not isinstance(arg, bool):
        for kind, encode in _ENCODERS.items():
            if isinstance(arg, kind):
                return encode(arg)
    raise EncodeTypeError(f"is {type(arg).__name__}; send bytes, str, int or float")


def _view(arg: memoryview) -> bytes:
    try:
        return arg.tobytes()
    except ValueError:
        raise EncodeValueError("is memoryview that was released") from None


def _float(arg: float) -> bytes:
    return float.__repr__(arg).encode()


def _int(arg: int) -> bytes:
    arg = int(arg)
    if arg.bit_length() <= _SAFE_BITS:
        return b"%d" % arg
    sign, rest = (b"-", -arg) if arg < 0 else (b"", arg)
    powers = [10**_SAFE_DIGITS]
    while powers[-1] <= rest:
        powers.append(powers[-1] ** 2)
    # Each round halves every part, by a power of ten that is half as long as the one before.
    parts = [rest]
    for power in reversed(powers):
        parts = [half for part in parts for half in divmod(part, power)]
    return sign + b"".join(b"%0*d" % (_SAFE_DIGITS, part) for part in parts).lstrip(b"0")


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    bytes: bytes,
    str: str.encode,
    int: _int,
    float: _float,
    bytearray: bytes,
    memoryview: _view,
}

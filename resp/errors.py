"""What can go wrong between a caller and a server, and what each error says about the command.

RespError
  EncodeError          an argument cannot be a command; nothing was sent
    EncodeTypeError, EncodeValueError
  AddressError         a URL or an option that cannot be used; nothing was dialled
  ProtocolError        the peer sent bytes that are not RESP; `offset` says where
  ServerError          the server answered an error; `code`, `message`, `command`
  ShaMismatch          SCRIPT LOAD answered another digest; the script was not run
  RefusedCommand       a command that would break the connection's framing; nothing was sent
  RequiresResp3        a verb that only RESP3 can carry
  TransactionAborted   EXEC ran nothing
  WrongLoop            an asyncio connector outside the loop that it was made in; nothing was sent
  TransportError       no reply; `may_have_run` says whether the command may have run
    ConnectFailed      no connection could be made
      Refused          the server refused the connection itself, or its certificate was; `code`
        ServerFull     it takes no more clients for now
    ConnectionLost     the connection ended with replies owed
    ReplyTimeout       the reply did not come in time
    Overloaded         too many replies owed; nothing was sent
    Reentered          called by a signal handler within another call
    Closed             the connector, or the subscription, was closed; nothing was sent

A pipeline that fails on its way carries in `replies` what came, and an `Unanswered` for each
command without an answer.
"""

from __future__ import annotations

import builtins
from enum import Enum
from typing import Any, Final

_QUOTED: Final = ", with args beginning with"


def escaped(message: str) -> str:
    """A server's text as printable ASCII, without the arguments that it may quote.

    A server that does not know a command quotes what came with it, be it a password.
    """
    told = message.partition(_QUOTED)[0]
    return ascii(told)[1:-1]


class Unanswered(Enum):
    """What stands in the place of a reply that did not come, in `RespError.replies`."""

    NOT_SENT = "not sent"
    """The server did not run the command."""
    MAY_HAVE_RUN = "may have run"
    """The command was written, or was being written; nobody can say whether it ran."""


class RespError(Exception):
    """Anything this package raises on purpose.

    Attributes:
        replies: Of a pipeline that failed on its way, a list as long as its commands: the replies
            that came, and an `Unanswered` for each other command. None for anything else.
    """

    replies: list[Any] | None = None


class EncodeError(RespError):
    """An argument that has no place in a command. Not one byte of the call was sent."""


class EncodeTypeError(EncodeError, TypeError):
    """The argument's type is not bytes, str, int or float."""


class EncodeValueError(EncodeError, ValueError):
    """The argument's type is right and its value is not: an empty command, a lone surrogate."""


class AddressError(RespError, ValueError):
    """A URL or a connection option that cannot be used. Nothing was dialled."""


class ProtocolError(RespError):
    """The peer sent bytes that are not RESP, or a reply that nobody is owed.

    Attributes:
        offset: Bytes of the stream before the offending one, counted from the connection's start.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message, offset)
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.args[0]} at offset {self.offset}"


class ServerError(RespError):
    """The server answered an error.

    Attributes:
        code: The first word where it is an error code (`WRONGTYPE`), else `""`.
        message: The whole text, code included.
        command: The name of the command that drew it; never its arguments.
    """

    def __init__(self, code: str, message: str, command: str = "") -> None:
        super().__init__(code, message, command)
        self.code = code
        self.message = message
        self.command = command

    def __str__(self) -> str:
        told = escaped(self.message)
        return f"{told} (answering {self.command})" if self.command else told

    def __repr__(self) -> str:
        # Not `args`: loggers and event loops show this, and the text may quote what came with it.
        told = self.message.partition(_QUOTED)[0]
        return f"{type(self).__name__}({self.code!a}, {told!a}, {self.command!a})"


class ShaMismatch(RespError):
    """SCRIPT LOAD answered something that is not the script's own digest; the script was not run.

    Attributes:
        expected: The digest computed from the source, 40 lower-case hex digits.
        got: What the server answered.
    """

    def __init__(self, expected: str, got: object) -> None:
        super().__init__(expected, got)
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        try:
            told = f"{self.got!r:.100}"
        except ValueError:  # an int of thousands of digits
            told = type(self.got).__name__
        return f"script load answered {told} instead of the digest {self.expected}"


class RefusedCommand(RespError, ValueError):
    """A command that would change what the connection's replies mean. Nothing was sent."""


class RequiresResp3(RespError):
    """A verb whose messages only RESP3 can tell apart from replies. Nothing was sent."""


class TransactionAborted(RespError):
    """EXEC ran none of the transaction's commands."""


class WrongLoop(RespError, RuntimeError):
    """The connector belongs to another event loop, or process. Nothing was sent."""


class TransportError(RespError):
    """The call ended without its reply.

    Attributes:
        may_have_run: False only where the server certainly did not run the command.
    """

    def __init__(self, message: str, *, may_have_run: bool = True) -> None:
        super().__init__(message)
        self.may_have_run = may_have_run


class ConnectFailed(TransportError):
    """No connection could be made; the command was not sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, may_have_run=False)


class Refused(ConnectFailed):
    """The server refused the connection: AUTH, ACL, SELECT, HELLO, or too many clients.

    Or its certificate was refused. Waiting for another try within the call would not help.

    Attributes:
        code: The code of the server's error, such as `WRONGPASS`; `CERTIFICATE` where it is the
            server's certificate that was refused.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.args = (message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class ServerFull(Refused):
    """The server takes no more clients, for now."""


class ConnectionLost(TransportError, builtins.ConnectionError):
    """The connection ended while the reply was owed. Nothing is sent a second time."""


class ReplyTimeout(TransportError, builtins.TimeoutError):
    """The reply did not come in time. It is dropped when it comes; the connection stays usable."""


class Overloaded(TransportError):
    """The connection owes `max_pending` replies already; nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, may_have_run=False)


class Reentered(TransportError):
    """A signal handler or a finalizer called a connector whose call it had interrupted.

    The call that was interrupted is further down the same stack, so there is nothing to wait for.
    """

    def __init__(
        self,
        message: str = "called from within a call of the same connector, by a signal handler or a "
        "finalizer; use sibling() for a connection of its own",
        *,
        may_have_run: bool = True,
    ) -> None:
        super().__init__(message, may_have_run=may_have_run)


class Closed(TransportError):
    """The connector was closed; nothing was sent."""

    def __init__(self, message: str = "the connector is closed; connect again") -> None:
        super().__init__(message, may_have_run=False)

"""RESP2 and RESP3 on a raw socket: every byte counted, every reply routed, scripts by digest.

>>> from resp import connect
>>> with connect("valkey://127.0.0.1:6379") as connector:
...     connector.command("SET", "greeting", b"hello")
...     connector.command("GET", "greeting")
'OK'
b'hello'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .address import Address, Options, parse_url
from .decode import NEED_DATA, Decoder, ErrorReply, Pairs, Push, Reply, Verbatim
from .encode import Arg, encode_command
from .errors import (
    AddressError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    EncodeError,
    EncodeTypeError,
    EncodeValueError,
    Overloaded,
    ProtocolError,
    Reentered,
    Refused,
    RefusedCommand,
    ReplyTimeout,
    RequiresResp3,
    RespError,
    ServerError,
    ServerFull,
    ShaMismatch,
    TransactionAborted,
    TransportError,
    Unanswered,
    WrongLoop,
)
from .events import Event
from .plan import Command, Plan, Step
from .pubsub import Message
from .script import Script, ScriptCall
from .threads import Connector, Subscription, connect

if TYPE_CHECKING:
    from .aio import AsyncConnector, AsyncSubscription, connect_async
    from .tap import Record, Tap

# Loaded when it is asked for: asyncio takes longer to import than all of the rest, and a program on
# threads needs none; and few programs look at their bytes.
_LAZY = {
    "AsyncConnector": "aio",
    "AsyncSubscription": "aio",
    "connect_async": "aio",
    "Record": "tap",
    "Tap": "tap",
}

__all__ = [
    "NEED_DATA",
    "Address",
    "AddressError",
    "Arg",
    "AsyncConnector",
    "AsyncSubscription",
    "Closed",
    "Command",
    "ConnectFailed",
    "ConnectionLost",
    "Connector",
    "Decoder",
    "EncodeError",
    "EncodeTypeError",
    "EncodeValueError",
    "ErrorReply",
    "Event",
    "Message",
    "Options",
    "Overloaded",
    "Pairs",
    "Plan",
    "ProtocolError",
    "Push",
    "Record",
    "Reentered",
    "Refused",
    "RefusedCommand",
    "Reply",
    "ReplyTimeout",
    "RequiresResp3",
    "RespError",
    "Script",
    "ScriptCall",
    "ServerError",
    "ServerFull",
    "ShaMismatch",
    "Step",
    "Subscription",
    "Tap",
    "TransactionAborted",
    "TransportError",
    "Unanswered",
    "Verbatim",
    "WrongLoop",
    "connect",
    "connect_async",
    "encode_command",
    "parse_url",
]


def __getattr__(name: str) -> Any:
    module = "tap" if name == "tap" else _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    loaded = import_module(f"{__name__}.{module}")
    return loaded if name == "tap" else getattr(loaded, name)

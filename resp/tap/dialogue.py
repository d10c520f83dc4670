"""Which reply belongs to which command: one connection's two streams, read as a conversation.

A server answers in the order in which it was asked, so the oldest command that is owed a reply gets
the next one. The rest of the rules is about what breaks that order:

- SUBSCRIBE and its kin are answered once a channel; UNSUBSCRIBE without one, once for each that is
  subscribed, and at least once.
- A message is no reply: in RESP3 it is a push, in RESP2 an array by its first item, on a connection
  that is subscribed. So is what follows MONITOR.
- CLIENT REPLY OFF and SKIP leave commands without a reply.
- What EXEC answers are the replies of the commands that were queued since MULTI.
- SYNC and PSYNC are followed by a stream that is no RESP, until the end.
- A request that is no RESP is answered by an error, and the connection ends.

The same pass masks secrets, in the chunk as it came: what may be one follows from what came before
it, whatever the cuts, so that nothing has to be held back.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from .chunk import check_number
from .frames import WORD, Node, is_sound, parse, unquoted
from .scan import KEEP, Scanner
from .secrets import COMMANDS, draws_secrets, secret_arguments, secret_parts

Kind: TypeAlias = Literal["reply", "push", "silent", "lost", "malformed"]
Extent: TypeAlias = tuple[int, int]
"""Two offsets in a stream: of the first byte, and of the one behind the last."""


class Frame(NamedTuple):
    """A command or a reply, as it crossed.

    Attributes:
        at: Offset of its first byte in its direction of its connection.
        time_ns: Monotonic time of the chunk in which a command began, or in which a reply ended.
        size: Its bytes on the wire.
        data: The bytes, secrets masked; not all of them if it is longer than what is kept.
        words: Of a command that is whole, its arguments, masked too; else None.
    """

    at: int
    time_ns: int
    size: int
    data: bytes
    words: tuple[bytes, ...] | None = None


class Exchange(NamedTuple):
    """A command with what answered it.

    Attributes:
        connection: Number of the connection.
        number: From 1, in the order in which the commands were sent; a push takes the next one.
        kind: `reply`: it was answered. `push`: nobody asked. `silent`: no reply is owed. `lost`:
            the connection, or the recording, ended before the reply. `malformed`: bytes that are
            no RESP, in the request or in the last of the replies.
        request: The command, or None if nobody asked.
        replies: What answered it: one, but for SUBSCRIBE and its kin, or none.
        error: What is wrong, or `""`.
        queued: Of EXEC, the commands that its reply's items answer.
    """

    connection: int
    number: int
    kind: Kind
    request: Frame | None
    replies: tuple[Frame, ...]
    error: str = ""
    queued: tuple[Frame, ...] = ()

    @property
    def name(self) -> str:
        """The command, with its subcommand if it has one: `GET`, `CLIENT SETINFO`; or `""`."""
        if self.request is None or not self.request.words:
            return ""
        return command_name(self.request.words)

    @property
    def up(self) -> int:
        """Bytes sent."""
        return self.request.size if self.request is not None else 0

    @property
    def down(self) -> int:
        """Bytes received."""
        replies = self.replies
        return replies[0].size if len(replies) == 1 else sum(reply.size for reply in replies)

    @property
    def time_ns(self) -> int:
        """Monotonic time at which it began."""
        return self.request.time_ns if self.request is not None else self.replies[0].time_ns

    @property
    def rtt_ns(self) -> int | None:
        """From the command to its last reply, or None."""
        if self.request is None or not self.replies:
            return None
        return self.replies[-1].time_ns - self.request.time_ns


CONTAINERS: Final = frozenset(
    {
        b"ACL", b"CLIENT", b"CLUSTER", b"COMMAND", b"COMMANDLOG", b"CONFIG", b"FUNCTION",
        b"LATENCY", b"MEMORY", b"MODULE", b"OBJECT", b"PUBSUB", b"SCRIPT", b"SENTINEL", b"SLOWLOG",
        b"XGROUP", b"XINFO",
    }
)  # fmt: skip
"""Commands whose second word is a part of their name."""

_new: Final[Any] = tuple.__new__  # a named tuple's own is three times as slow

_PLAIN: Final = re.compile(rb"[A-Za-z0-9_.|-]{1,64}")
_WITH_SUBCOMMAND: Final = frozenset(name.decode() for name in CONTAINERS)
_names: dict[bytes, str] = {}  # of words that were seen; bounded
_MOST_NAMES: Final = 4096


def command_name(words: Sequence[bytes]) -> str:
    """Answer a command's name in capitals, with its subcommand; `?` for what can be none."""
    name = _names.get(words[0]) or _name(words[0])
    if name in _WITH_SUBCOMMAND and len(words) > 1:
        return f"{name} {_names.get(words[1]) or _name(words[1])}"
    return name


def _name(word: bytes) -> str:
    name = word.decode().upper() if _PLAIN.fullmatch(word) else "?"
    if len(_names) < _MOST_NAMES:
        _names[word] = name
    return name


_SUBSCRIBES: Final = {
    b"SUBSCRIBE": b"subscribe",
    b"PSUBSCRIBE": b"psubscribe",
    b"SSUBSCRIBE": b"ssubscribe",
    b"UNSUBSCRIBE": b"unsubscribe",
    b"PUNSUBSCRIBE": b"punsubscribe",
    b"SUNSUBSCRIBE": b"sunsubscribe",
}
_CHANGES_STATE: Final = frozenset(
    {b"MULTI", b"EXEC", b"DISCARD", b"MONITOR", b"RESET", b"SYNC", b"PSYNC"}
)
# Commands that change what follows, or may hold a secret.
_LOOKED_AT: Final = frozenset({*_SUBSCRIBES, *COMMANDS, *_CHANGES_STATE, b"CLIENT"})

# The head of what may be no reply: a push, and in RESP2 the arrays of a subscribed connection.
_MESSAGE: Final = re.compile(
    rb"(?:>[0-9]+\r\n(?:[$][0-9]+\r\n|[+])|[*][34]\r\n[$][0-9]+\r\n)([a-z_-]+)\r\n"
)
_CONFIRMATIONS: Final = frozenset(_SUBSCRIBES.values())
_MESSAGES: Final = frozenset({b"message", b"pmessage", b"smessage"})
_MONITORED: Final = re.compile(rb"\+[0-9]+\.[0-9]+ \[")
_QUEUED: Final = b"+QUEUED\r\n"

_ODD: Final = frozenset(b"->|!")  # first bytes of what may be no plain reply
_QUOTES: Final = frozenset(b"-|!")  # of what may be, or hold, an error
_ERROR: Final = ord("-")
_PUSH: Final = ord(">")
_ARRAY: Final = ord("*")
_ATTRIBUTE: Final = ord("|")

# In bytes that are no RESP, what is behind one of these might be a secret.
_SUSPICIOUS: Final = re.compile(rb"auth|pass|setuser|secret|token|credential", re.IGNORECASE)
_SUSPECT: Final = 9  # bytes, one less than the longest of them
_ENDLESS: Final = 1 << 62  # an offset behind all
_ENDS_WORD: Final = re.compile(rb"\s")


class _Special:
    """What is to be known of a command that is not like most, until its reply has come."""

    __slots__ = ("channels", "fault", "left", "name", "replies", "secrets", "suspect", "words")

    def __init__(self, name: bytes, words: tuple[bytes, ...]) -> None:
        self.name = name
        self.words = words  # as sent, secrets and all
        self.secrets: tuple[bytes, ...] = ()
        self.suspect = False  # whether a reply may hold a secret
        self.channels = b""  # the kind of its confirmations, for SUBSCRIBE and its kin
        self.left = 1  # replies to come; 0 is one for each channel that is subscribed
        self.replies: list[Frame] = []
        self.fault = ""  # what made a request no RESP


_Asked: TypeAlias = tuple[int, Frame, "_Special | None"]
"""A command whose reply is still to come, with its number."""


class Dialogue:
    """One connection's conversation.

        masked, exchanges = dialogue.sent(chunk, time.monotonic_ns())
        masked, exchanges = dialogue.received(chunk, time.monotonic_ns())

    Args:
        connection: Its number, for the exchanges.
        keep: Bytes kept of a frame.
        conceal: Answers the extents in an exchange's newest frame that are to be masked, beside
            secrets; of its last reply if it has one, else of its request. Frames that are not whole
            are asked about too, with what is there of them.
    """

    def __init__(
        self,
        connection: int = 1,
        *,
        keep: int = KEEP,
        conceal: Callable[[Exchange], Iterable[Extent]] | None = None,
    ) -> None:
        check_number("connection", connection, 0)
        check_number("keep", keep, 0)
        if conceal is not None and not callable(conceal):
            raise TypeError(f"conceal is a function or None, not {type(conceal).__name__}")
        self.connection = connection
        self._conceal = conceal
        self._up = Scanner(requests=True, keep=keep)
        self._down = Scanner(keep=keep)
        self._began = 0  # time of the chunk in which the open request began
        self._harmless = -1  # offset of an open request in which there is nothing to mask
        self._known = 0, 0  # offsets up and down, up to which open frames were looked at
        self._open: tuple[list[Extent], list[Extent]] = [], []  # what was found to mask in them
        self._asked: deque[_Asked] = deque()
        self._number = 0
        self._mute = ""  # by CLIENT REPLY: "off", or "skip" for the next command
        self._queued: list[_Asked] | None = None  # what was queued since MULTI
        self._channels: dict[bytes, set[bytes]] = {b"": set(), b"p": set(), b"s": set()}
        self._subscribed = False
        self._monitoring = False
        self._replicating = False
        self._veiled = False  # the client's bytes are no RESP any more, and may hold secrets
        self._tail = b""  # the last of what was seen of them
        self._malformed = False
        self._hushed = False  # the server's bytes are no RESP any more, and may hold secrets
        # What the client has said so far makes of the connection, replies or not: whether MULTI is
        # open, whether it speaks RESP3, and what it wants to be subscribed to.
        self._opened = False
        self._speaks_3 = False
        self._wanted: dict[bytes, set[bytes]] = {}

    @property
    def owed(self) -> int:
        """Commands that wait for a reply."""
        return len(self._asked)

    # What the client says.

    def sent(self, data: bytes, time_ns: int) -> tuple[bytes, list[Exchange]]:
        """Take a chunk of the client's; it with its secrets masked, and what is finished by it."""
        done: list[Exchange] = []
        extents: list[Extent] = []
        scanner = self._up
        base = scanner.offset
        if scanner.fault:
            scanner.feed(data)
            return self._veil(data), done
        began = self._began if scanner.open_size else time_ns
        plain = self._conceal is None
        for at, size, frame_data, words in scanner.feed(data):
            if words is None:
                words = words_of(frame_data)
            frame = _new(Frame, (at, began, size, frame_data, words))
            began = time_ns
            self._number += 1
            if (
                plain
                and not self._mute
                and words
                and words[0].upper() not in _LOOKED_AT
                and frame_data[0] == _ARRAY
            ):
                self._asked.append((self._number, frame, None))
            else:
                self._say(frame, words, extents, done)
        if scanner.fault:
            return self._malformed_request(data, base, began, extents), done
        if scanner.open_size:
            self._began = began
            self._look_at_open_request(began, extents)
        return (masked(data, base, extents) if extents else data), done

    def _say(
        self,
        frame: Frame,
        words: tuple[bytes, ...],
        extents: list[Extent],
        done: list[Exchange],
    ) -> None:
        """Take a command that is not like most."""
        name = words[0].upper() if words else b""
        hidden: list[Extent] = []
        special = _Special(name, words)
        if name in COMMANDS or frame.data[:1] != b"*":
            secret, hidden = _secrets_of(frame, words)
            special.secrets = secret
            special.suspect = bool(secret) or draws_secrets(words)
        if self._conceal is not None:
            asked = Exchange(self.connection, self._number, "lost", frame, ())
            hidden = [*hidden, *self._conceal(asked)]
        if frame.size > len(frame.data) and (name in COMMANDS or self._conceal is not None):
            nodes = parse(frame.data, frame.at, inline=True)
            hidden.append((_unseen(nodes, frame), frame.at + frame.size))
        if hidden:
            extents += hidden
            data = masked(frame.data, frame.at, hidden)
            frame = frame._replace(data=data, words=words_of(data))
        if self._is_silent(name, words):
            done.append(Exchange(self.connection, self._number, "silent", frame, ()))
            return
        if name in _SUBSCRIBES:
            special.channels = _SUBSCRIBES[name]
            special.left = len(words) - 1
        elif not special.suspect and name not in _CHANGES_STATE:
            self._asked.append((self._number, frame, None))
            return
        self._asked.append((self._number, frame, special))

    def _is_silent(self, name: bytes, words: tuple[bytes, ...]) -> bool:
        """Whether no reply is owed to a command."""
        if not words:  # an empty line, or an empty array; SKIP is used up by it
            if self._mute == "skip":
                self._mute = ""
            return True
        confined = not self._speaks_3 and any(self._wanted.values())
        if name == b"RESET":
            self._speaks_3 = False
            self._wanted = {}
        elif confined and name not in _SUBSCRIBES:
            if name != b"EXEC":  # refused, but for PING and QUIT
                return bool(self._mute)
        elif name == b"HELLO" and len(words) > 1 and not self._opened:
            self._speaks_3 = words[1] == b"3"
        elif name in _SUBSCRIBES and not self._opened:
            wanted = self._wanted.setdefault(_class_of(name.lower()), set())
            if b"UNSUB" not in name:
                wanted.update(words[1:])
            else:
                wanted.difference_update(words[1:] or tuple(wanted))
        if name == b"MULTI":
            self._opened = self._opened or len(words) == 1
        elif name in (b"EXEC", b"DISCARD", b"RESET"):
            self._opened = False
        elif self._opened:  # it is queued, or refused: CLIENT REPLY among them
            return bool(self._mute)
        if name == b"CLIENT" and len(words) == 3 and words[1].upper() == b"REPLY":
            match words[2].upper():
                case b"ON":
                    self._mute = ""
                    return False
                case b"OFF":
                    self._mute = "off"
                    return True
                case b"SKIP":
                    self._mute = self._mute or "skip"
                    return True
        if name == b"RESET" and self._mute == "off":  # after SKIP it is not heard of
            self._mute = ""
        muted = bool(self._mute)
        if name == b"MONITOR" and (self._monitoring or self._awaits_monitor()):
            muted = True  # who is one already is not told so
        if self._mute == "skip":
            self._mute = ""
        if name in _SUBSCRIBES and (len(words) > 1 or b"UNSUB" in name):
            return False  # confirmations come all the same
        return muted

    def _awaits_monitor(self) -> bool:
        return any(asked[2] is not None and asked[2].name == b"MONITOR" for asked in self._asked)

    def _look_at_open_request(self, began: int, extents: list[Extent]) -> None:
        """Find what is to be masked in a command of which bytes are still to come."""
        scanner = self._up
        at = scanner.open_at
        if at == self._harmless:
            return
        if scanner.offset <= self._known[0]:
            extents += self._open[0]
            return
        data = scanner.open()
        nodes = parse(data, at, inline=True)
        hidden: list[Extent] = []
        due = 0
        if nodes and nodes[0].mark == "*":
            items = [item for item in nodes[0].items if item.mark == "$"]
            words = [item.value for item in items]
            named = bool(items) and not items[0].error
            if named and words[0].upper() in COMMANDS:
                secret = secret_arguments(words, nodes[0].value or 0)
                hidden = [(items[at].body, items[at].due) for at in secret if at < len(items)]
            elif named and self._conceal is None:
                self._harmless = at
                return
            # What an argument is may hang on its first byte.
            due = items[-1].due if items and items[-1].stop > items[-1].body else 0
        elif data[:1] != b"*":  # a line of words; which are payload shows when all are there
            hidden = _behind_name(data, at, any_name=self._conceal is not None)
        if nodes and data[:1] == b"*":  # a header that has no end yet, and may be none
            rest = nodes[0].items[-1] if nodes[0].items else nodes[0]
            found = _SUSPICIOUS.search(data, rest.at - at) if rest.mark == "?" else None
            if found:
                hidden.append((at + found.end(), _ENDLESS))
        frame = Frame(at, began, scanner.open_size, data)
        if self._conceal is not None:
            asked = Exchange(
                self.connection, self._number + 1, "lost", frame._replace(words=words_of(data)), ()
            )
            hidden = [*hidden, *self._conceal(asked)]
        if frame.size > len(data):
            hidden.append((_unseen(nodes, frame), _ENDLESS))
        self._known = due, self._known[1]
        self._open = hidden, self._open[1]
        extents += hidden

    def _malformed_request(
        self, data: bytes, base: int, began: int, extents: list[Extent]
    ) -> bytes:
        """The client's bytes are no RESP any more; a server answers with an error, and closes."""
        scanner = self._up
        at = scanner.open_at
        raw = scanner.open()
        data = masked(data, base, extents)
        found = _SUSPICIOUS.search(raw)
        start = at + found.end() if found else _ENDLESS
        if self._conceal is not None:
            start = at
        elif not found and scanner.open_size > len(raw):  # what comes is not kept
            found = _SUSPICIOUS.search(data, max(0, at - base))
            start = base + found.end() if found else _ENDLESS
        self._veiled = start < _ENDLESS
        self._tail = (raw if scanner.open_size == len(raw) else data)[-_SUSPECT:]
        data = masked(data, base, [(start, scanner.offset)])
        frame = Frame(at, began, scanner.open_size, masked(raw, at, [(start, scanner.offset)]))
        self._number += 1
        special = _Special(b"", ())
        special.fault = scanner.fault
        self._asked.append((self._number, frame, special))
        return data

    def _veil(self, data: bytes) -> bytes:
        """Mask what is behind a word that a secret might follow, in bytes that are no RESP."""
        if self._veiled:
            return b"*" * len(data)
        found = _SUSPICIOUS.search(self._tail + data)
        if not found:
            self._tail = (self._tail + data)[-_SUSPECT:]
            return data
        self._veiled = True
        shown = found.end() - len(self._tail)
        return data[:shown] + b"*" * (len(data) - shown)

    # What the server says.

    def received(self, data: bytes, time_ns: int) -> tuple[bytes, list[Exchange]]:
        """Take a chunk of the server's; it with its secrets masked, and what is finished by it."""
        done: list[Exchange] = []
        extents: list[Extent] = []
        scanner = self._down
        base = scanner.offset
        if self._replicates():
            return self._replicate(data, base, time_ns, done), done
        asked = self._asked
        connection = self.connection
        plain = self._is_plain()
        for at, size, frame_data, _ in scanner.feed(data):
            frame = _new(Frame, (at, time_ns, size, frame_data, None))
            if plain and asked and asked[0][2] is None and frame_data[0] not in _ODD:
                number, request, _ = asked.popleft()
                done.append(
                    _new(Exchange, (connection, number, "reply", request, (frame,), "", ()))
                )
                continue
            if self._replicates():
                break
            self._hear(frame, extents, done)
            plain = self._is_plain()
        else:
            at = scanner.open_at
        if self._replicates():
            rest = self._replicate(data[at - base :], at, time_ns, done)
            return masked(data[: at - base], base, extents) + rest, done
        if scanner.open_size:
            if scanner.fault:
                self._malformed_reply(base, time_ns, extents, done)
            else:
                self._look_at_open_reply(time_ns, extents)
        return (masked(data, base, extents) if extents else data), done

    def _is_plain(self) -> bool:
        """Whether what is neither a push nor an error is the reply to the oldest command."""
        return (
            self._conceal is None
            and self._queued is None
            and not self._subscribed
            and not self._monitoring
            and not self._replicating
        )

    def _hear(self, frame: Frame, extents: list[Extent], done: list[Exchange]) -> None:
        """Take a reply, or what might be one."""
        data = frame.data
        if data[0] == _ATTRIBUTE:
            data = _behind_attributes(frame)
        head = self._asked[0] if self._asked else None
        message = self._message(data, head)
        if message and not (head and head[2] and head[2].channels == message):
            self._number += 1
            frame = self._hide(frame, None, (), extents)
            done.append(Exchange(self.connection, self._number, "push", None, (frame,)))
            if message in _CONFIRMATIONS:
                self._confirmed(data, message)
            return
        if head is None:
            self._number += 1
            frame = self._hide(frame, None, (), extents)
            told = "a reply that nobody asked for"
            done.append(Exchange(self.connection, self._number, "malformed", None, (frame,), told))
            return
        number, request, special = head
        if special is not None and message:
            special.replies.append(frame)
            if not special.left:
                special.left = max(1, len(self._channels[_class_of(message)]))
            special.left -= 1
            self._confirmed(data, message)
            if special.left:
                return
        queued = tuple(self._queued or ()) if special and special.name == b"EXEC" else ()
        if special is None or not special.replies:
            frame = self._hide(frame, head, queued, extents)
        self._asked.popleft()
        self._settle(head, data)
        replies = (frame,) if special is None or not special.replies else tuple(special.replies)
        fault = special.fault if special else ""
        done.append(
            Exchange(
                self.connection,
                number,
                "malformed" if fault else "reply",
                request,
                replies,
                fault,
                tuple(asked[1] for asked in queued)
                if data[0] == _ARRAY and data != b"*-1\r\n"
                else (),
            )
        )

    def _message(self, data: bytes, head: _Asked | None) -> bytes:
        """The kind of a push or a message, or `""` for a reply."""
        mark = data[0]
        if mark == _PUSH:
            found = _MESSAGE.match(data)
            return found[1] if found else b"?"
        if mark == _ARRAY and (self._subscribed or (head and head[2] and head[2].channels)):
            found = _MESSAGE.match(data)
            if found and (found[1] in _CONFIRMATIONS or (found[1] in _MESSAGES)):
                return found[1]
        elif self._monitoring and _MONITORED.match(data):
            return b"monitor"
        return b""

    def _confirmed(self, data: bytes, kind: bytes) -> None:
        """A confirmation has come: the channel it names is subscribed, or no longer."""
        nodes = parse(data)
        items = nodes[0].items if nodes else []
        channel = items[1].value if len(items) > 1 else None
        channels = self._channels[_class_of(kind)]
        if isinstance(channel, bytes):
            (channels.discard if b"unsub" in kind else channels.add)(channel)
        self._subscribed = any(self._channels.values())

    def _settle(self, head: _Asked, data: bytes) -> None:
        """A command was answered: let it change the connection's state."""
        special = head[2]
        if self._queued is not None and data == _QUEUED:
            self._queued.append(head)
            return
        if special is None or data[0] == _ERROR:
            if special is not None and special.name == b"EXEC":
                self._queued = None
            return
        match special.name:
            case b"MULTI":
                self._queued = []
            case b"EXEC":
                # A SUBSCRIBE in it was confirmed within its reply.
                queued = self._queued or ()
                self._subscribed |= any(asked[2] and asked[2].channels for asked in queued)
                self._queued = None
            case b"DISCARD":
                self._queued = None
            case b"MONITOR":
                self._monitoring = True
            case b"PSYNC":
                self._replicating = True
            case b"RESET":
                self._queued = None
                self._subscribed = self._monitoring = False
                for channels in self._channels.values():
                    channels.clear()

    def _hide(
        self,
        frame: Frame,
        head: _Asked | None,
        queued: tuple[_Asked, ...],
        extents: list[Extent],
    ) -> Frame:
        """Mask what is to be masked in a reply."""
        hidden = self._secret_extents(frame, head, queued)
        if self._conceal is not None:
            hidden = [*hidden, *self._conceal(self._as_exchange(frame, head, queued))]
        if self._conceal is not None and frame.size > len(frame.data):
            hidden.append((_unseen(parse(frame.data, frame.at), frame), _ENDLESS))
        if not hidden:
            return frame
        end = frame.at + frame.size
        extents += [(start, min(stop, end)) for start, stop in hidden]
        return frame._replace(data=masked(frame.data, frame.at, hidden))

    def _secret_extents(
        self, frame: Frame, head: _Asked | None, queued: tuple[_Asked, ...]
    ) -> list[Extent]:
        special = head[2] if head else None
        suspects = any(asked[2] and asked[2].suspect for asked in queued)
        error = self._may_quote(frame.data[0])
        if not (error or suspects or (special and special.suspect)):
            return []
        nodes = parse(frame.data, frame.at)
        found: list[Extent] = []
        if suspects and nodes and nodes[-1].mark == "*":
            items: list[Node] = [item for item in nodes[-1].items if item.mark != "|"]
            for asked, item in zip(queued, items, strict=False):
                found += _parts(asked, [item])
        if error or (special and special.suspect):
            found += _parts(head, nodes)
        if frame.size > len(frame.data) and (frame.data[:1] != b"|" or suspects or special):
            found.append((_unseen(nodes, frame), _ENDLESS))
        return found

    def _may_quote(self, mark: int) -> bool:
        """Whether what begins so may quote arguments of a command that nobody knows here."""
        return mark in _QUOTES or self._monitoring

    def _as_exchange(
        self, frame: Frame, head: _Asked | None, queued: tuple[_Asked, ...]
    ) -> Exchange:
        request = head[1] if head else None
        kind: Kind = "reply" if head else "push"
        frames = tuple(asked[1] for asked in queued)
        return Exchange(self.connection, 0, kind, request, (frame,), "", frames)

    def _look_at_open_reply(self, time_ns: int, extents: list[Extent]) -> None:
        """Find what is to be masked in a reply of which bytes are still to come."""
        scanner = self._down
        head = self._asked[0] if self._asked else None
        special = head[2] if head else None
        if scanner.offset <= self._known[1]:
            extents += self._open[1]
            return
        queued = tuple(self._queued or ()) if special and special.name == b"EXEC" else ()
        suspects = [special, *(asked[2] for asked in queued)]
        innocent = self._conceal is None and not any(one and one.suspect for one in suspects)
        if innocent and not self._may_quote(scanner.open_mark):
            return
        data = scanner.open()
        if self._message(data, head):
            head, queued = None, ()
        frame = Frame(scanner.open_at, time_ns, scanner.open_size, data)
        hidden = self._secret_extents(frame, head, queued)
        if self._conceal is not None:
            hidden = [*hidden, *self._conceal(self._as_exchange(frame, head, queued))]
        nodes = parse(data, frame.at)
        if frame.size > len(data):
            hidden.append((_unseen(nodes, frame), _ENDLESS))
        self._known = self._known[0], _due(nodes)
        self._open = self._open[0], hidden
        extents += hidden

    def _malformed_reply(
        self, base: int, time_ns: int, extents: list[Extent], done: list[Exchange]
    ) -> None:
        """The server's bytes are no RESP any more, and whose reply they are nobody knows."""
        asked = [*self._asked, *(self._queued or ())]
        self._hushed = (
            self._hushed
            or self._conceal is not None
            or self._may_quote(self._down.open_mark)
            or any(one[2] is not None and one[2].suspect for one in asked)
        )
        if self._malformed:
            if self._hushed:
                extents.append((base, _ENDLESS))
            return
        self._malformed = True
        scanner = self._down
        frame = Frame(scanner.open_at, time_ns, scanner.open_size, scanner.open())
        if self._hushed:
            # What stands before what is no RESP was looked at as it came.
            start = _unsound(parse(frame.data, frame.at), frame.at)
            if self._conceal is not None:
                start = frame.at
            hidden = [(start, _ENDLESS)]
            if self._asked:
                hidden += self._secret_extents(frame, self._asked[0], tuple(self._queued or ()))
            extents += hidden
            frame = frame._replace(data=masked(frame.data, frame.at, hidden))
        if self._asked:
            number, request, _ = self._asked.popleft()
        else:
            self._number += 1
            number, request = self._number, None
        done.append(
            Exchange(self.connection, number, "malformed", request, (frame,), scanner.fault)
        )

    # What is no conversation any more.

    def _replicates(self) -> bool:
        """Whether what comes next is a replication stream: SYNC has no reply before it."""
        head = self._asked[0][2] if self._asked else None
        return self._replicating or (head is not None and head.name == b"SYNC")

    def _replicate(self, data: bytes, at: int, time_ns: int, done: list[Exchange]) -> bytes:
        """Take a part of a replication stream, which is commands and files, not replies."""
        self._replicating = True
        if data:
            self._number += 1
            request = self._asked.popleft()[1] if self._asked else None
            frame = Frame(at, time_ns, len(data), b"")
            told = "a replication stream, not looked into"
            done.append(Exchange(self.connection, self._number, "push", request, (frame,), told))
        return data

    def end(self, time_ns: int) -> list[Exchange]:
        """The connection, or the recording of it, ended: what is left, as lost or malformed."""
        done: list[Exchange] = []
        down = self._down
        torn: tuple[Frame, ...] = ()
        if down.open_size and not down.fault and not self._replicating:
            extents: list[Extent] = []
            self._known = self._known[0], 0
            self._look_at_open_reply(time_ns, extents)
            data = masked(down.open(), down.open_at, extents)
            torn = (Frame(down.open_at, time_ns, down.open_size, data),)
        for number, request, special in self._asked:
            replies = (*(special.replies if special else ()), *torn)
            fault = special.fault if special else ""
            told = fault or ("the reply is not whole" if torn else "")
            kind: Kind = "malformed" if fault else "lost"
            done.append(Exchange(self.connection, number, kind, request, replies, told))
            torn = ()
        self._asked.clear()
        if torn:
            self._number += 1
            told = "a reply that nobody asked for, and not whole"
            done.append(Exchange(self.connection, self._number, "malformed", None, torn, told))
        up = self._up
        if up.open_size and not up.fault:
            extents = []
            self._known = 0, self._known[1]
            self._look_at_open_request(self._began, extents)
            data = masked(up.open(), up.open_at, extents)
            self._number += 1
            frame = Frame(up.open_at, self._began, up.open_size, data)
            told = "the request is not whole"
            done.append(Exchange(self.connection, self._number, "lost", frame, (), told))
        return done


def masked(data: bytes, base: int, extents: Iterable[Extent]) -> bytes:
    """Answer `data`, whose first byte has the offset `base`, with extents of it as asterisks."""
    hidden = None
    size = len(data)
    for start, end in extents:
        start, end = max(0, start - base), min(size, end - base)
        if start < end:
            if hidden is None:
                hidden = bytearray(data)
            hidden[start:end] = b"*" * (end - start)
    return data if hidden is None else bytes(hidden)


def words_of(data: bytes) -> tuple[bytes, ...]:
    """Answer the arguments of a command, as far as they are there."""
    words = []
    at = data.find(b"\r\n") + 2 if data[:1] == b"*" else len(data)
    while data[at : at + 1] == b"$":
        eol = data.find(b"\r\n", at)
        if eol < 0 or not data[at + 1 : eol].isdigit():
            break
        end = eol + 2 + int(data[at + 1 : eol])
        words.append(data[eol + 2 : end])
        at = end + 2
    if at == len(data) and words:
        return tuple(words)
    nodes = parse(data, inline=True)
    if not nodes:
        return ()
    if nodes[0].mark == "inline":
        return tuple(unquoted(item.value) for item in nodes[0].items)
    return tuple(item.value for item in nodes[0].items if type(item.value) is bytes)


def _secrets_of(frame: Frame, words: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], list[Extent]]:
    """The secrets in a command, and where they stand."""
    [node, *_] = parse(frame.data, frame.at, inline=True)
    if node.mark == "?":  # a line that is not kept as a whole
        return (), _behind_name(frame.data, frame.at)
    if node.mark == "inline" and not all(is_sound(item.value) for item in node.items):
        # No command for a server; what it would have been, nobody knows.
        return (), _behind_name(frame.data, frame.at)
    places = [(item.body, item.due) for item in node.items]
    count = max(len(words), node.value or 0)
    indices = [index for index in secret_arguments(words, count) if index < len(places)]
    return tuple(words[index] for index in indices), [places[index] for index in indices]


def _behind_name(line: bytes, at: int, *, any_name: bool = False) -> list[Extent]:
    """Where secrets may be in a line of words that is not whole, or that no server can split.

    With `any_name`, what is behind a name may be one whatever the command.
    """
    first = WORD.search(line)
    if first is None:
        return []
    start = first.end()
    known = any_name or unquoted(first[0]).upper() in COMMANDS
    if start < len(line) and (known or is_sound(first[0])):
        if not known:
            return []
        blank = _ENDS_WORD.match(line, start)
        return [(at + (blank.end() if blank else start), at + len(line.rstrip(b"\r\n")))]
    found = _SUSPICIOUS.search(line) if b'"' in first[0] or b"'" in first[0] else None
    return [(at + found.end(), at + len(line.rstrip(b"\r\n")))] if found else []


def _unseen(nodes: list[Node], frame: Frame) -> int:
    """Offset in a frame from which on nothing is known of it: it was not kept."""
    return max(frame.at + len(frame.data), _due(nodes))


def _unsound(nodes: list[Node], at: int) -> int:
    """Offset of the bytes at the end of some tokens that are no RESP, or `at`."""
    node = nodes[-1] if nodes else None
    while node is not None and node.items:
        node = node.items[-1]
    return node.at if node is not None and node.mark == "?" else at


def _parts(asked: _Asked | None, nodes: list[Node]) -> list[Extent]:
    """Where the secrets are in a reply to a command."""
    if asked is None:
        return secret_parts((), (), nodes)
    special = asked[2]
    if special is None:
        return secret_parts(asked[1].words or (), (), nodes)
    return secret_parts(special.words, special.secrets, nodes)


def _behind_attributes(frame: Frame) -> bytes:
    """What follows the attributes at the head of a frame."""
    for node in parse(frame.data, frame.at):
        if node.mark != "|":
            return frame.data[node.at - frame.at :]
    return frame.data


def _class_of(kind: bytes) -> bytes:
    """`p` of psubscribe and punsubscribe, `s` of ssubscribe, and so on."""
    return kind.removesuffix(b"subscribe").removesuffix(b"un")


def _due(nodes: list[Node]) -> int:
    """Offset where the innermost open blob ends, or 0."""
    node = nodes[-1] if nodes else None
    while node is not None and node.items:
        node = node.items[-1]
    if node is None or node.mark == "!":  # what an error quotes shows as it comes
        return 0
    return node.due if node.due > node.stop else 0


__all__ = [
    "Dialogue",
    "Exchange",
    "Extent",
    "Frame",
    "Kind",
    "command_name",
    "masked",
    "words_of",
]

"""What every token of an exchange is: command, key, argument, payload, and a script's by name.

`annotate` parses an exchange's frames and gives each node a role and a label:

    role       framing command digest script key argument payload
               and in replies: status error number null digest script key argument payload framing
    label      `seconds`, `KEYS[2] row`, `ARGV[2] token`, `digest = claim`; `""` if the role says
               it all

What stands where is told by `table`. Names of a script's keys and arguments are those that comments
of its source declare; a `Scripts` knows them by the script's digest.

Nothing here trusts the bytes: a frame that is not whole, a `numkeys` that lies or a malformed reply
gets the roles that can be given, and the rest is unknown.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from ..decode import ErrorReply
from ..script import Script
from .dialogue import Exchange, Extent, Frame
from .frames import AGGREGATES, Node, parse
from .lens import Lens, told_of
from .lens import lenses as known_lenses
from .table import (
    NAME,
    UNKNOWN,
    VALUE,
    Inside,
    Item,
    Many,
    Pattern,
    Place,
    arguments,
    reply_of,
)

MAX_SOURCE: Final = 64 * 1024
"""Bytes of a script that are read for names: a header stands at its top."""
MAX_SCRIPTS: Final = 4096
"""Scripts that are learned from what crosses; the oldest go first."""
_MAX_PARAMETERS: Final = 256  # of a script
_MAX_NAME: Final = 64  # characters


class Parameter(NamedTuple):
    """A key or an argument that a script declares.

    Attributes:
        name: Printable.
        type: As declared (`int`, `bytes`, `hash`), or `""`.
        rest: It is a list: what follows belongs to it too.
        payload: It carries what a user stores, or may carry it.
        each: What an item of it consists of, by name; `#` is how many of `*` follow. Empty if that
            is not said.
        like: Name of the script that declares it in full, or `""`.
    """

    name: str
    type: str = ""
    rest: bool = False
    payload: bool = False
    each: tuple[str, ...] = ()
    like: str = ""


class Known(NamedTuple):
    """What is known of a script.

    Attributes:
        name: What to call it; printable.
        keys, args: What it declares, in order.
        answers: The lists that it may answer, each as its items' names; `...` as the last one: the
            item before it again and again.
        answers_as: Names of scripts whose lists it answers too.
        answer: What a text is that it answers, or `""`.
    """

    name: str
    keys: tuple[Parameter, ...] = ()
    args: tuple[Parameter, ...] = ()
    answers: tuple[tuple[str, ...], ...] = ()
    answers_as: tuple[str, ...] = ()
    answer: str = ""


# A parameter's line in a comment: `KEYS[1] row hash meaning`, `ARGV[2..] ids list`, and BullMQ's
# `KEYS[1] 'wait',` or `ARGV[2]  job id`.
_PARAMETER: Final = re.compile(r"(KEYS|ARGV)\[([1-9][0-9]{0,2})(\.\.)?\][ \t]+(['\"\w].*)")
_TYPED: Final = re.compile(
    r"(\w+)[ \t]+(-|hash|zset|set|list|string|stream|str|bytes|int|integer|float|number|bool)\??"
    r"(?:[ \t]+(.*))?"
)
_QUOTED: Final = re.compile(r"(['\"])(.+?)\1")
_SUMMARY: Final = re.compile(r"([A-Za-z_][\w.-]{0,63}): +\S")
_OPENER: Final = re.compile(r"--\[(={0,8})\[")
_ANSWER: Final = re.compile(r" {2,3}(?:\[([\w., ]{1,200})\]|<(\w{1,64})>)(?: {2,}(.*))?")
# What an item of a list is: `id, token for each`, `for each: id, how many texts follow, and those`.
_EACH: Final = re.compile(r"for each: ([\w ,]{1,200})|([\w ,]{1,200}) for each")
_AS_IN: Final = re.compile(r"as in (\w{1,64})")
_ANSWERS_AS: Final = re.compile(r"\bas (\w{1,64}) answers\b")

_NUMBERS: Final = ":,(#"  # a number that a script answers is said in words, not by a name

_VISIBLE_TYPES: Final = frozenset({"int", "integer", "float", "number", "bool", "str", "string"})
_PAYLOAD_NAMES: Final = frozenset({"payload", "result", "value", "data", "message", "body"})
_PAYLOAD_WORDS: Final = re.compile(r"\b(?:payload|result|return ?value|data|message|body)\b")


def printable(text: str, most: int = _MAX_NAME) -> str:
    """Answer a peer's text in characters that can be printed, `most` of them at most."""
    text = text[: most + 1]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"


def _comments(text: str) -> list[str]:
    """Answer the lines of a Lua source's comments, without what makes them comments."""
    lines: list[str] = []
    at = text.find("--")
    while at >= 0:
        opener = _OPENER.match(text, at)
        if opener:
            stop = text.find(f"]{opener[1]}]", opener.end())
            after = len(text) if stop < 0 else stop
            lines += text[opener.end() : after].split("\n")
        else:
            after = text.find("\n", at)
            after = len(text) if after < 0 else after
            lines.append(text[at + 2 : after])
        at = text.find("--", after)
    return lines


def read_names(source: bytes, name: str | None = None, sha: str = "") -> Known:
    """Read what the comments of a script say of it: its name, its keys and its arguments.

    Args:
        source: Lua, the first 64 KiB of which are read.
        name: What to call it, if its comments do not say.
        sha: Its digest, for a script without a name.
    """
    lines = _comments(source[:MAX_SOURCE].decode(errors="replace"))
    found: dict[str, dict[int, Parameter]] = {"KEYS": {}, "ARGV": {}}
    answers: list[tuple[str, ...]] = []
    answers_as: list[str] = []
    texts: list[str] = []
    summary = _SUMMARY.match(lines[0].strip()) if lines else None
    returns = False
    for place, raw in enumerate(lines):
        line = raw.strip()
        if line == "RETURNS":
            returns = True
        elif returns and not line:
            returns = False
        elif returns:
            answer = _ANSWER.fullmatch(raw)
            if answer and answer[1]:
                answers.append(tuple(printable(word) for word in answer[1].split(", ")))
            elif answer and answer[2]:
                texts.append(printable(answer[2]))
            answers_as += _ANSWERS_AS.findall(line)
        elif match := _PARAMETER.match(line):
            of = found[match[1]]
            if int(match[2]) not in of and len(of) < _MAX_PARAMETERS:
                of[int(match[2])] = _parameter(match[4], bool(match[3]), lines[place + 1 :][:4])
    if summary:
        name = summary[1]
    return Known(
        name=printable(name) if name else f"script {sha[:8]}".rstrip(),
        keys=_in_order(found["KEYS"]),
        args=_in_order(found["ARGV"]),
        answers=tuple(answers[:16]),
        answers_as=tuple(dict.fromkeys(answers_as[:16])),
        answer=texts[0] if len(texts) == 1 else "",
    )


def _in_order(found: dict[int, Parameter]) -> tuple[Parameter, ...]:
    """Answer the parameters by their numbers; one that is not declared has no name."""
    last = max(found, default=0)
    return tuple(found.get(number, Parameter("")) for number in range(1, last + 1))


def _parameter(text: str, rest: bool, below: list[str]) -> Parameter:
    typed = _TYPED.fullmatch(text)
    if typed is None:
        quoted = _QUOTED.match(text)
        name = quoted[2] if quoted else text.rstrip(" \t,")
        payload = bool(_PAYLOAD_WORDS.search(text.lower()))
        return Parameter(printable(name, 40), "", rest, payload)
    name, kind = typed[1], typed[2]
    payload = kind == "bytes" or name in _PAYLOAD_NAMES
    each: tuple[str, ...] = ()
    like = ""
    if kind == "list":
        # What its items are is told in words, on lines that are indented further.
        told = typed[3] or ""
        for line in below:
            if not line.startswith("     "):
                break
            told += " " + line.strip()
        payload = payload or bool(_PAYLOAD_WORDS.search(told.lower()))
        each = _parts(told)
        as_in = _AS_IN.fullmatch(told)
        like = as_in[1] if as_in else ""
    return Parameter(printable(name, 40), kind, rest, payload, each, like)


def _parts(told: str) -> tuple[str, ...]:
    """Read what an item of a list consists of, as `Parameter.each`."""
    found = _EACH.fullmatch(told)
    if found is None:
        return ()
    parts = []
    for word in (found[1] or found[2]).split(", "):
        if word.startswith("how many ") and word.endswith(" follow"):
            parts.append("#")
        elif word == "and those" and "#" in parts:
            parts.append("*")
        elif word.isidentifier():
            parts.append(printable(word, 40))
        else:
            return ()
    return tuple(parts)


class Scripts:
    """Scripts by their digests.

    Args:
        lenses: Whose scripts it knows, too; they are asked when a digest is met that is not known
            yet. None stands for those that are installed.
    """

    def __init__(self, lenses: Iterable[Lens] | None = ()) -> None:
        self._lenses = None if lenses is None else list(lenses)
        self._asked = self._lenses == []
        self._known: dict[str, Known] = {}
        self._learned: dict[str, Known] = {}
        self._by_name: dict[str, Known] = {}

    @classmethod
    def known(cls) -> Scripts:
        """Answer a registry that knows the scripts of all packages that gave a lens."""
        return cls(None)

    def __len__(self) -> int:
        return len(self._known) + len(self._learned)

    def get(self, sha: bytes | str) -> Known | None:
        """Answer what is known of a script by its digest, in capitals or not."""
        digest = sha if isinstance(sha, str) else sha.decode("latin-1")
        found = self._known.get(digest) or self._learned.get(digest)
        if found is None:
            if len(digest) != 40:
                return None
            digest = digest.lower()
            if not self._asked:
                self._ask()
            found = self._known.get(digest) or self._learned.get(digest)
        return found

    def named(self, name: str) -> Known | None:
        """Answer what is known of a script by its name."""
        return self._by_name.get(name)

    def add(self, script: Script | str | bytes, name: str | None = None) -> Known:
        """Add a script.

        Args:
            script: It, or its source.
            name: What to call it, if its comments do not say.
        """
        if isinstance(script, Script):
            source, name = script.source, name or script.name
        else:
            source = script.encode() if isinstance(script, str) else script
        sha = digest_of(source)
        known = self._known[sha] = read_names(source, name, sha)
        self._by_name[known.name] = known
        return known

    def files(self, path: str | os.PathLike[str]) -> int:
        """Add a file, or the files `*.lua` of a folder; answer how many there were.

        A file is a script as it is sent. One whose comments do not name it is called what the file
        is called, up to a `-` and a number (`moveToActive-11.lua`).

        Raises:
            OSError: It cannot be read.
        """
        path = os.fspath(path)
        paths = [path]
        if os.path.isdir(path):
            names = sorted(os.listdir(path))
            paths = [os.path.join(path, name) for name in names if name.endswith(".lua")]
        for file in paths:
            with open(file, "rb") as opened:
                source = opened.read()
            stem, _ = os.path.splitext(os.path.basename(file))
            self.add(source, re.sub(r"-[0-9]+\Z", "", stem))
        return len(paths)

    def learn(self, exchange: Exchange) -> None:
        """Remember the script whose source crosses in an exchange, if one does."""
        request = exchange.request
        if request is None or not request.words or len(request.words) < 2:
            return
        words = request.words
        name = words[0].upper()
        if name in _EVALS:
            self.learn_source(words[1])
        elif name == b"SCRIPT" and len(words) == 3 and words[1].upper() == b"LOAD":
            self.learn_source(words[2])

    def learn_source(self, source: bytes) -> Known:
        """Remember a script that a peer has; answer what is known of it."""
        sha = digest_of(source)
        found = self.get(sha)
        if found is None:
            found = self._learned[sha] = read_names(source, None, sha)
            if len(self._learned) > MAX_SCRIPTS:
                del self._learned[next(iter(self._learned))]
        return found

    def _ask(self) -> None:
        self._asked = True
        lenses = known_lenses() if self._lenses is None else self._lenses
        for lens in lenses:
            try:
                for script in lens.scripts():
                    self.add(script)
            except Exception as error:  # whatever a package does; no view is worth less for it
                told_of(lens, error)


def digest_of(source: bytes) -> str:
    """Answer the digest that stands for a script on the wire."""
    return hashlib.sha1(source, usedforsecurity=False).hexdigest()


@lru_cache(maxsize=64)
def _read_once(source: bytes) -> Known:
    return read_names(source, None, digest_of(source))


_EVALS: Final = frozenset({b"EVAL", b"EVAL_RO"})
_CALLS: Final = frozenset({*_EVALS, b"EVALSHA", b"EVALSHA_RO", b"FCALL", b"FCALL_RO"})
_SUBSCRIBES: Final = frozenset(
    {b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE"}
)


class Annotated(NamedTuple):
    """An exchange's tokens, each with its role and its label.

    Attributes:
        request: Of the command; empty without one.
        replies: Of each reply.
    """

    request: list[Node]
    replies: list[list[Node]]


Hide: TypeAlias = Callable[[Node], None]
"""Told of each node that holds what may be a user's own."""


def annotate(exchange: Exchange, scripts: Scripts | None = None) -> Annotated:
    """Answer an exchange's tokens, each with its role and its label.

    Args:
        exchange: It may be anything: not whole, malformed, masked.
        scripts: Knows names of scripts, and of what they take.
    """
    request: list[Node] = []
    words: Sequence[bytes] = ()
    if exchange.request is not None:
        request, words = _request(exchange.request, scripts, None)
    return Annotated(
        request,
        [_reply(exchange, frame, words, scripts, None) for frame in exchange.replies],
    )


def payload_extents(
    exchange: Exchange,
    *,
    scripts: Scripts | None = None,
    lenses: Iterable[Lens] | None = None,
) -> list[Extent]:
    """Answer where payload stands in an exchange's newest frame: its last reply, or its request.

    Payload is what users store: values and members, a script's arguments unless they are declared
    to be something else, and whatever else is not known to be none; in a reply all texts but those
    of which it is known. What is about something that a lens knows by name (a job's id) is none.

    Args:
        exchange: The frame may be one of which bytes are still to come; of text that is not whole
            the extent reaches to where it will end.
        scripts: Knows which arguments of scripts are something else.
        lenses: Tell what is a name; None asks those that are installed.
    """
    subjects = [lens.subject for lens in (known_lenses() if lenses is None else lenses)]
    extents: list[Extent] = []

    def hide(node: Node) -> None:
        if not node.error and isinstance(node.value, bytes):
            for subject in subjects:
                if subject(node.value) is not None:
                    return
        if node.items:  # a streamed text
            extents.extend(
                (chunk.body, chunk.due) for chunk in node.items if chunk.body < chunk.due
            )
        else:
            start = node.body + 4 * (node.mark == "=")  # its format is none of the text
            if start < node.due:
                extents.append((start, node.due))

    if exchange.replies:
        words = _words_of(exchange.request) if exchange.request is not None else ()
        _reply(exchange, exchange.replies[-1], words, scripts, hide)
    elif exchange.request is not None:
        _request(exchange.request, scripts, hide)
    return extents


# Requests.


def _words_of(frame: Frame) -> Sequence[bytes]:
    if frame.words is not None:
        return frame.words
    nodes = parse(frame.data, frame.at, inline=True)
    return [_word(item) for item in nodes[0].items] if nodes else ()


def _word(node: Node) -> bytes:
    return node.value if isinstance(node.value, bytes) else b""


def _request(
    frame: Frame, scripts: Scripts | None, hide: Hide | None
) -> tuple[list[Node], Sequence[bytes]]:
    """Answer a command's tokens, and its arguments as far as they are there."""
    nodes = parse(frame.data, frame.at, inline=True)
    if not nodes:
        return nodes, ()
    root = nodes[0]
    items = root.items
    words = frame.words
    if words is None or len(words) != len(items):
        words = tuple(map(_word, items))
    places = arguments(words, root.value if isinstance(root.value, int) else None)
    for node, place in zip(items, places, strict=True):
        if node.mark in "$word":
            node.role, node.label, private = place
            if private and hide is not None and words[0].upper() not in _CALLS:
                hide(node)
        else:
            _frame(node)
    root.role = "framing"
    for node in nodes[1:]:
        _frame(node)
    if words and words[0].upper() in _CALLS and len(items) > 1:
        _call(items, words, scripts, hide)
    return nodes, words


def _frame(node: Node) -> None:
    """Call a node framing, with all that is inside: it is where no such thing belongs."""
    work = [node]
    while work:
        one = work.pop()
        one.role = "framing"
        one.label = "malformed" if one.mark == "?" else ""
        work += one.items


def _call(
    items: list[Node], words: Sequence[bytes], scripts: Scripts | None, hide: Hide | None
) -> None:
    """Name what a call of a script is given."""
    known = _script_of(words, scripts)
    script = items[1]
    if script.role == "digest":
        script.label = f"digest = {known.name}" if known else "digest, unknown script"
    elif script.role == "script" and known:
        script.label = f"script = {known.name}"
    keys = 0
    given: list[tuple[Node, bytes]] = []
    for node, word in zip(items[2:], words[2:], strict=False):
        if node.role == "key":
            keys += 1
            name = _name_of(known.keys, keys) if known else None
            node.label = f"KEYS[{keys}] {name[0]}".rstrip() if name else f"KEYS[{keys}]"
        elif node.role == "payload":
            given.append((node, word))
    parts = _parts_of(known, [word for _, word in given], scripts)
    for number, ((node, _), part) in enumerate(zip(given, parts, strict=True), 1):
        node.label = f"ARGV[{number}] {part.label}".rstrip()
        node.role = "payload" if part.payload else "argument"
        if part.private and hide is not None:
            hide(node)


class _Part(NamedTuple):
    """An argument of a script, or a part of an item of a list: what to call it, and what it is."""

    label: str
    payload: bool
    private: bool


_NAMELESS: Final = _Part("", False, True)


def _parts_of(known: Known | None, words: list[bytes], scripts: Scripts | None) -> list[_Part]:
    """Answer what each of the arguments is that a script is given."""
    declared = known.args if known else ()
    parts: list[_Part] = []
    for parameter in declared:
        if len(parts) >= len(words):
            break
        if parameter.rest:
            parts += _parts_of_list(_in_full(parameter, scripts), words[len(parts) :])
        else:
            private = parameter.payload or parameter.type not in _VISIBLE_TYPES
            parts.append(_Part(parameter.name, parameter.payload, private))
    return parts + [_NAMELESS] * (len(words) - len(parts))


def _in_full(parameter: Parameter, scripts: Scripts | None) -> Parameter:
    """Answer a parameter as the script declares it that its own declaration refers to."""
    other = scripts.named(parameter.like) if scripts is not None and parameter.like else None
    for one in other.args if other else ():
        if one.name == parameter.name:
            return one
    return parameter


def _parts_of_list(parameter: Parameter, words: list[bytes]) -> list[_Part]:
    """Answer what each argument of a list is."""
    name = parameter.name
    if not parameter.each:
        counts = parameter.type == "list"  # whose items are counts and times, too
        private = parameter.payload or parameter.type not in _VISIBLE_TYPES
        return [
            _Part(
                f"{name}[{number}]",
                parameter.payload and not (counts and _is_small(word)),
                private,
            )
            for number, word in enumerate(words, 1)
        ]
    parts: list[_Part] = []
    item = 0
    while len(parts) < len(words):
        item += 1
        follow = 0
        for part in parameter.each:
            label = f"{name}[{item}]"
            if part == "*":
                parts += [_Part(label, False, True)] * min(follow, len(words) - len(parts))
            elif len(parts) < len(words):
                if part == "#":
                    word = words[len(parts)]
                    follow = int(word) if word and _is_small(word) else 0
                    part = "count"
                parts.append(_Part(f"{label}.{part}", part in _PAYLOAD_NAMES, True))
    return parts


_SMALL: Final = re.compile(rb"[0-9]{0,15}")


def _is_small(word: bytes) -> bool:
    """Whether an item of a list is nothing, or a number: a count or a time, not a payload."""
    return _SMALL.fullmatch(word) is not None


def _script_of(words: Sequence[bytes], scripts: Scripts | None) -> Known | None:
    name = words[0].upper()
    if name in _EVALS:
        source = words[1]
        return _read_once(source) if scripts is None else scripts.learn_source(source)
    if scripts is None or name not in (b"EVALSHA", b"EVALSHA_RO"):
        return None
    return scripts.get(words[1])


def _name_of(declared: tuple[Parameter, ...], number: int) -> tuple[str, Parameter] | None:
    """Answer the name of a key or an argument by its number, and its declaration."""
    if number <= len(declared):
        parameter = declared[number - 1]
        return (f"{parameter.name}[1]" if parameter.rest else parameter.name), parameter
    if declared and declared[-1].rest:
        return f"{declared[-1].name}[{number - len(declared) + 1}]", declared[-1]
    return None


# Replies.

_ROLES: Final = {
    "+": "status", "-": "error", "!": "error", ":": "number", ",": "number", "#": "number",
    "(": "number", "_": "null",
}  # fmt: skip
_QUOTES: Final = b"with args beginning with: "
_MONITORED: Final = re.compile(rb"[0-9]+\.[0-9]+ \[[^\]]*\] ")

_KIND: Final = Place("status", "kind")
_CHANNEL: Final = Place("argument", "channel")
_PATTERN: Final = Place("argument", "pattern")
_MESSAGE: Final = Place("payload", "message", private=True)
_COUNT: Final = Place("argument", "subscriptions")
_KEYS: Final = Many((Place("key", "key"),))
_WORD: Final = Place("argument", "")
_PUSHES: Final[dict[bytes, Pattern]] = {
    b"message": (_KIND, _CHANNEL, _MESSAGE),
    b"smessage": (_KIND, _CHANNEL, _MESSAGE),
    b"pmessage": (_KIND, _PATTERN, _CHANNEL, _MESSAGE),
    b"subscribe": (_KIND, _CHANNEL, _COUNT),
    b"ssubscribe": (_KIND, _CHANNEL, _COUNT),
    b"psubscribe": (_KIND, _PATTERN, _COUNT),
    b"unsubscribe": (_KIND, _CHANNEL, _COUNT),
    b"sunsubscribe": (_KIND, _CHANNEL, _COUNT),
    b"punsubscribe": (_KIND, _PATTERN, _COUNT),
    b"invalidate": (_KIND, Inside((_KEYS,))),
}
_ANY_PUSH: Final[Pattern] = (_KIND, Many((VALUE,)))


def _reply(
    exchange: Exchange,
    frame: Frame,
    words: Sequence[bytes],
    scripts: Scripts | None,
    hide: Hide | None,
) -> list[Node]:
    nodes = parse(frame.data, frame.at)
    reader = _Reader(scripts, hide)
    name = words[0].upper() if words else b""
    for node in nodes:
        if node.mark == "|":
            reader.attributes(node)
        elif node.mark == ">" or (
            node.mark == "*" and (exchange.request is None or name in _SUBSCRIBES)
        ):
            reader.push(node)
        elif name == b"EXEC" and node.mark in AGGREGATES:
            reader.transaction(node, exchange.queued)
        else:
            reader.answer(node, words)
            if node.role == "digest" and scripts is not None and isinstance(node.value, bytes):
                known = scripts.get(node.value)
                node.label = f"digest = {known.name}" if known else node.label
    return nodes


class _Reader:
    """Gives the nodes of replies their roles."""

    def __init__(self, scripts: Scripts | None, hide: Hide | None) -> None:
        self._scripts = scripts
        self._hide = hide

    def attributes(self, node: Node) -> None:
        """They are the server's own words."""
        self._all(node, _WORD)
        node.label = "attributes"

    def push(self, node: Node) -> None:
        """Read a push, or a message of RESP2."""
        kind = next((item.value for item in node.items if item.mark != "|"), b"")
        if isinstance(kind, str):
            kind = kind.encode(errors="replace")
        pattern = _PUSHES.get(kind, _ANY_PUSH) if isinstance(kind, bytes) else _ANY_PUSH
        self._inside(node, pattern)

    def transaction(self, node: Node, queued: tuple[Frame, ...]) -> None:
        """Read what EXEC answers: each item as its command's reply."""
        node.role = "framing"
        at = 0
        for item in node.items:
            if item.mark in "|.":
                self._other(item)
            elif at < len(queued):
                frame = queued[at]
                words = _words_of(frame)
                at += 1
                self.answer(item, words)
                item.label = Exchange(0, 0, "reply", frame._replace(words=tuple(words)), ()).name
            else:
                self.read(item, VALUE)

    def answer(self, node: Node, words: Sequence[bytes]) -> None:
        """Read the reply to a command."""
        if not words:
            self.read(node, VALUE)
        elif words[0].upper() in _CALLS and len(words) > 1:
            self._script(node, _script_of(words, self._scripts))
        else:
            self.read(node, reply_of(words) or VALUE)

    def read(self, node: Node, item: Item) -> None:
        """Read a reply, or a part of one, of which it is known what it is."""
        aggregate = node.mark in AGGREGATES
        if isinstance(item, Inside):
            if aggregate and not _is_null(node):
                self._inside(node, item.pattern)
            else:
                self._leaf(node, _first(item.pattern))
        elif isinstance(item, Place):
            if aggregate:
                self._all(node, item)
            else:
                self._leaf(node, item)

    def _inside(self, node: Node, pattern: Pattern) -> None:
        """Lay a pattern over the items of an aggregate."""
        node.role = "framing"
        items = []
        for item in node.items:
            if item.mark in "|.":
                self._other(item)
            else:
                items.append(item)
        at = 0
        for part in pattern:
            if isinstance(part, Many):
                at = self._many(items, at, part)
            elif at < len(items):
                self.read(items[at], part)
                at += 1
        for item in items[at:]:
            self.read(item, VALUE)

    def _many(self, items: list[Node], at: int, many: Many) -> int:
        group = many.group
        end = len(items) - many.least
        while at < end:
            item = items[at]
            if len(group) > 1 and item.mark in AGGREGATES and isinstance(group[0], Place):
                self._inside(item, group)  # RESP3 has pairs where RESP2 has them side by side
                at += 1
                continue
            for part in group:
                if isinstance(part, Many):
                    at = self._many(items, at, part)
                elif at < end:
                    self.read(items[at], part)
                    at += 1
        return at

    def _all(self, node: Node, place: Place) -> None:
        """All strings inside of a node are the same."""
        work = [(node, place)]
        while work:
            one, here = work.pop()
            if one.mark not in AGGREGATES:
                self._leaf(one, here)
                continue
            one.role = "null" if _is_null(one) else "framing"
            if one.mark in "%|":
                field = here._replace(label="field")
                at = 0
                for item in one.items:
                    if item.mark not in "|.":
                        work.append((item, here if at % 2 else field))
                        at += 1
                    else:
                        work.append((item, _WORD))
            else:
                work += [(item, here) for item in one.items]

    def _other(self, node: Node) -> None:
        """A node that is no item of what is around it: attributes, and the mark of an end."""
        if node.mark == "|":
            self.attributes(node)
        else:
            node.role = "framing"

    def _leaf(self, node: Node, place: Place) -> None:
        mark = node.mark
        if mark in "$=":
            if node.value is None and not node.items and node.body == node.stop and not node.error:
                node.role = "null"
                return
            node.role, node.label, private = place
            for chunk in node.items:
                chunk.role = place.role if chunk.mark in "$;" else "framing"
            if private and self._hide is not None:
                self._hide(node)
            return
        role = _ROLES.get(mark)
        if role is None:
            _frame(node)
            if mark == "?" and self._hide is not None and node.value[:1] == b"+":
                self._hide_monitored(node, node.value.removesuffix(b"\r"), 1)
            return
        node.role = role
        if role == "number":
            if place.role == "argument":
                node.label = place.label
        elif role == "error":
            value = node.value
            node.label = value.code if isinstance(value, ErrorReply) else ""
            if self._hide is not None:
                self._hide_quoted(node)
        elif role == "status":
            if place.role == "status":
                node.label = place.label
            elif self._hide is not None:
                self._hide_monitored(node, node.value.encode(errors="surrogateescape"))

    def _hide_quoted(self, node: Node) -> None:
        """An error about a command that the server does not know quotes what it was given."""
        value = node.value  # bytes, as long as some are missing
        text = value if type(value) is bytes else value.message.encode(errors="surrogateescape")
        at = text.find(_QUOTES)
        if at >= 0:
            self._hide_from(node, at + len(_QUOTES), node.due)

    def _hide_monitored(self, node: Node, text: bytes, at: int = 0) -> None:
        """A line of MONITOR says a whole command; it may be one whose end is still to come."""
        found = _MONITORED.match(text, at)
        if found:
            self._hide_from(node, found.end(), node.body + len(text))

    def _hide_from(self, node: Node, at: int, stop: int) -> None:
        part = Node("?", node.body + at, node.body + at, stop, stop, None)
        assert self._hide is not None
        self._hide(part)

    def _script(self, node: Node, known: Known | None) -> None:
        """Read what a script answers: lists by the names of their items."""
        if known is None or node.mark in _NUMBERS:
            self.read(node, VALUE)
            return
        lists = [*known.answers]
        for name in known.answers_as:
            other = self._scripts.named(name) if self._scripts is not None else None
            lists += other.answers if other else ()
        self._by_names(node, lists, known.answer)

    def _by_names(self, node: Node, lists: list[tuple[str, ...]], name: str) -> None:
        if node.mark not in AGGREGATES or _is_null(node):
            self.read(node, _named(name))
            return
        items = [item for item in node.items if item.mark not in "|."]
        if node.mark == "%":
            self.read(node, VALUE)
            return
        node.role = "framing"
        node.label = name
        for item in node.items:
            if item.mark in "|.":
                self._other(item)
        names = next((names for names in lists if len(names) == len(items)), ())
        if "..." in names or not names:
            names = next((names for names in lists if names[-1] == "..."), ())
            names = (*names[:-2], *names[-2:-1] * (len(items) - len(names) + 2))
        for at, item in enumerate(items):
            self._by_names(item, lists, names[at] if at < len(names) else "")


def _named(name: str) -> Place:
    """What a script answers by a name. Whatever it is called, it may be what a user stored."""
    if not name or name in _PAYLOAD_NAMES:
        return Place("payload", name or "value", private=True)
    return Place("argument", name, private=True)


def _is_null(node: Node) -> bool:
    return node.value is None and not node.items and node.body == node.end and not node.error


def _first(pattern: Pattern) -> Place:
    """The first thing that a pattern tells of."""
    while pattern:
        item = pattern[0]
        if isinstance(item, Place):
            return item
        if isinstance(item, Many):
            pattern = item.group
        elif isinstance(item, Inside):
            pattern = item.pattern
        else:
            break
    return UNKNOWN


__all__ = [
    "MAX_SCRIPTS",
    "MAX_SOURCE",
    "NAME",
    "Annotated",
    "Known",
    "Parameter",
    "Scripts",
    "annotate",
    "digest_of",
    "payload_extents",
    "printable",
    "read_names",
]

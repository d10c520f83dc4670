"""Which exchanges are shown: a small language of terms.

    GET            the command, by its name or by a glob, `H*`; a container's name, `CLIENT`, is all
                   of its subcommands, `CLIENT:SETINFO` is one
    key:emq:*      a key that the command names, by a glob
    script:claim   the script that it calls, by its name, its digest or the digest's beginning
    size>1k        bytes of both ways; `up>`, `down>` of one; k and M are powers of 1024
    rtt>5          the round trip, in ms; or with a unit: `rtt>500us`, `rtt>1s`
    dir:push       reply, push, silent, lost or malformed; `up` has a command, `down` has an answer
    conn:3         the connection's number, or several: `conn:1,3`
    error          an error reply, or bytes that are no RESP
    !TERM          not so

Terms of one filter stand side by side and must all hold; of several filters one must. `>`, `>=`,
`<`, `<=` and `=` compare. A term with blanks is quoted: `"key:a b*"`. In a glob `*` is any bytes,
`?` is one, `[a-c]` is one of these, and a backslash takes what follows as it is, as in the server's
KEYS.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ..errors import RespError
from .dialogue import CONTAINERS, Exchange
from .frames import parse

if TYPE_CHECKING:
    from .meaning import Scripts

Test: TypeAlias = Callable[[Exchange], bool]

_KINDS: Final = ("reply", "push", "silent", "lost", "malformed")
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_TERM: Final = re.compile(r"\s*(?:(!?\"(?:\\.|[^\"\\])*\")(?=\s|$)|(\S+))")
_COMPARISON: Final = re.compile(r"(size|up|down|rtt)(>=|<=|>|<|=)(.*)", re.DOTALL)
_LABELLED: Final = re.compile(r"(key|script|dir|kind|conn)[:=](.*)", re.DOTALL)
_COMMAND: Final = re.compile(r"[A-Za-z0-9_.*?\[\]^|-]+(?::[A-Za-z0-9_.*?\[\]^-]+)?")
_BYTES: Final = {"": 1, "b": 1, "k": 1024, "kb": 1024, "m": 1 << 20, "mb": 1 << 20}
_MS: Final = {"": 1.0, "ms": 1.0, "us": 0.001, "s": 1000.0}
_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([A-Za-z]*)")
_KNOWN: Final = (
    "a command, key:GLOB, script:NAME, size>N, up>N, down>N, rtt>MS, dir:KIND, conn:N, error, !TERM"
)


class FilterError(RespError, ValueError):
    """A filter that is none.

    Attributes:
        text: The filter.
        at: Where in it the term stands that is wrong.
    """

    def __init__(self, text: str, at: int, told: str) -> None:
        super().__init__(f"{ascii(text)[1:-1][:200]!r}, at {at}: {told}")
        self.text = text
        self.at = at


class _Scripts(Protocol):
    def get(self, sha: Any, /) -> Any: ...


def compile(filters: Sequence[str], *, scripts: Scripts | _Scripts | None = None) -> Test:
    """Make the test that one of `filters` lets an exchange through; none lets all through.

    Args:
        scripts: Knows the names of scripts by their digests.

    Raises:
        FilterError: A term is none.
    """
    alternatives = [_all_of(list(_terms(text, scripts))) for text in filters]
    if not alternatives:
        return lambda exchange: True
    if len(alternatives) == 1:
        return alternatives[0]
    return lambda exchange: any(test(exchange) for test in alternatives)


def _all_of(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    return lambda exchange: all(test(exchange) for test in tests)


def _terms(text: str, scripts: Any) -> Iterator[Test]:
    at = 0
    found = False
    while match := _TERM.match(text, at):
        term, at = match[1] or match[2], match.end()
        start = at - len(term)
        if match[2] and re.match(r'!*"', term):
            raise FilterError(text, start, 'a quote without its end; write "key:a b*"')
        negated = term.startswith("!")
        term = term.removeprefix("!")
        if match[1]:
            term = re.sub(r'\\(["\\])', r"\1", term[1:-1])
        try:
            test = _term(term, scripts)
        except ValueError as error:
            raise FilterError(text, start, str(error)) from None
        yield _not(test) if negated else test
        found = True
    if not found:
        raise FilterError(text, 0, f"there is no term; write {_KNOWN}")


def _not(test: Test) -> Test:
    return lambda exchange: not test(exchange)


def _term(term: str, scripts: Any) -> Test:
    if term.startswith("!"):
        raise ValueError("two !; one is enough")
    if found := _COMPARISON.fullmatch(term):
        return _comparison(found[1], found[2], found[3])
    if found := _LABELLED.fullmatch(term):
        label, value = found[1], found[2]
        if not value:
            raise ValueError(f"nothing behind {label}:")
        if label == "key":
            return _key(value)
        if label == "script":
            return _script(value, scripts)
        if label == "conn":
            return _connection(value)
        return _direction(value)
    if term == "error":
        return is_error
    if not _COMMAND.fullmatch(term) or not _may_have(term):
        raise ValueError(f"{ascii(term)[:60]} is no term; write {_KNOWN}")
    return _command(term)


def _may_have(term: str) -> bool:
    """Whether a term `CONTAINER:SUB` can be one: a label that is misspelt would match nothing."""
    first, colon, _ = term.upper().partition(":")
    if not colon or not first.replace("_", "").isalnum():  # a glob, or a command of a module
        return True
    return first.encode() in CONTAINERS


def _command(term: str) -> Test:
    first, colon, second = term.upper().partition(":")
    name = _glob(first)
    if not colon:
        # `H*` is no container's subcommand's, but `CLIENT*` and `CLIENT` are.
        return lambda exchange: (
            bool(name(exchange.name.partition(" ")[0].encode())) and bool(exchange.name)
        )
    sub = _glob(second)

    def test(exchange: Exchange) -> bool:
        one, _, two = exchange.name.partition(" ")
        return name(one.encode()) and sub(two.encode())

    return test


def _comparison(what: str, sign: str, amount: str) -> Test:
    compare = _COMPARE[sign]
    units = _MS if what == "rtt" else _BYTES
    found = _AMOUNT.fullmatch(amount)
    unit = units.get(found[2].lower()) if found else None
    if found is None or unit is None:
        wanted = "ms, or with us, ms or s" if what == "rtt" else "bytes, or with k or M"
        raise ValueError(f"{ascii(amount)[:40]} is no amount of {wanted}")
    bound = float(found[1]) * unit
    match what:
        case "size":
            return lambda exchange: compare(exchange.up + exchange.down, bound)
        case "up":
            return lambda exchange: compare(exchange.up, bound)
        case "down":
            return lambda exchange: compare(exchange.down, bound)

    def test(exchange: Exchange) -> bool:
        rtt_ns = exchange.rtt_ns
        return rtt_ns is not None and compare(rtt_ns / 1e6, bound)

    return test


def _direction(value: str) -> Test:
    wanted = set(value.split(","))
    unknown = wanted - {*_KINDS, "up", "down"}
    if unknown:
        raise ValueError(f"{ascii(min(unknown))[:40]} is none of {', '.join(_KINDS)}, up, down")

    def test(exchange: Exchange) -> bool:
        return (
            exchange.kind in wanted
            or ("up" in wanted and exchange.request is not None)
            or ("down" in wanted and bool(exchange.replies))
        )

    return test


def _connection(value: str) -> Test:
    numbers = set()
    for part in value.split(","):
        if not (part.isascii() and part.isdecimal() and len(part) < 10 and int(part)):
            raise ValueError(f"{ascii(part)[:40]} is no connection's number; they begin at 1")
        numbers.add(int(part))
    return lambda exchange: exchange.connection in numbers


def is_error(exchange: Exchange) -> bool:
    """Whether an exchange ended in an error reply, or in bytes that are no RESP."""
    if exchange.kind == "malformed":
        return True
    for reply in exchange.replies:
        mark = reply.data[:1]
        if mark == b"|":  # attributes: what they belong to comes behind
            mark = next((node.mark for node in parse(reply.data) if node.mark != "|"), "").encode()
        if mark in (b"-", b"!"):
            return True
    return False


def _key(pattern: str) -> Test:
    matches = _glob(pattern)
    from .table import keys  # a large table, for this alone

    def test(exchange: Exchange) -> bool:
        request = exchange.request
        words = request.words if request is not None else None
        return bool(words) and any(map(matches, keys(words or ())))

    return test


def _script(value: str, scripts: Any) -> Test:
    lower = value.lower()
    digest = re.fullmatch(r"[0-9a-f]{4,40}", lower) is not None
    matches = _glob(value)

    def test(exchange: Exchange) -> bool:
        request = exchange.request
        words = request.words if request is not None else None
        if not words or len(words) < 2:
            return False
        match exchange.name:
            case "EVALSHA" | "EVALSHA_RO":
                sha = words[1].decode("latin-1").lower()
            case "EVAL" | "EVAL_RO":
                sha = hashlib.sha1(words[1], usedforsecurity=False).hexdigest()
            case "SCRIPT LOAD" if len(words) > 2:
                sha = hashlib.sha1(words[2], usedforsecurity=False).hexdigest()
            case "FCALL" | "FCALL_RO":
                return matches(words[1])
            case _:
                return False
        if digest and sha.startswith(lower):
            return True
        known = scripts.get(sha) if scripts is not None else None
        return known is not None and matches(str(known.name).encode())

    return test


def _glob(pattern: str) -> Callable[[bytes], bool]:
    """Make the test of a glob, as the server's KEYS has them."""
    raw = pattern.encode("utf-8", "surrogateescape")
    pieces: list[list[bytes]] = [[]]  # between the stars
    parts = pieces[0]
    at = 0
    while at < len(raw):
        byte = raw[at : at + 1]
        at += 1
        if byte == b"*":
            parts = []
            pieces.append(parts)
        elif byte == b"?":
            parts.append(b".")
        elif byte == b"\\" and at < len(raw):
            parts.append(re.escape(raw[at : at + 1]))
            at += 1
        elif byte == b"[" and (found := _CLASS.match(raw, at)):
            members = b"".join(re.escape(bytes([member])) for member in _members(found[2]))
            parts.append(b"[%b%b]" % (found[1], members))
            at = found.end()
        else:
            parts.append(re.escape(byte))
    first, *between = map(b"".join, pieces)
    if between:
        # The first place where a piece fits will do for all but the last, so none is tried again.
        *between, last = between
        first += b"".join(b"(?>.*?%b)" % piece for piece in between if piece) + b".*" + last
    compiled = re.compile(first, re.DOTALL)
    return lambda text: compiled.fullmatch(text) is not None


_CLASS: Final = re.compile(rb"(\^?)((?:\\.|[^\]\\])+)\]", re.DOTALL)
_MEMBER: Final = re.compile(rb"\\?(.)(?:-\\?(.))?", re.DOTALL)


def _members(inside: bytes) -> list[int]:
    members: set[int] = set()
    for first, last in _MEMBER.findall(inside):
        low, high = sorted((first[0], last[0] if last else first[0]))  # as the server does
        members.update(range(low, high + 1))
    return sorted(members)


__all__ = ["FilterError", "Test", "compile", "is_error"]

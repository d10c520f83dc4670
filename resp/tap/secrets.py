"""Which bytes of a conversation are secrets: arguments of commands, and parts of replies.

What is a secret is decided while bytes are still to come: that of an argument by those before it,
by how many there are, or by its own first byte; that of a part of a reply by what stands before it.
So a mask can be laid over a chunk as it comes, and nothing has to be held back.

Known are the commands of Valkey and Redis, modules' settings by their names, and Sentinel. Not
known is what a caller's own script, or a renamed command, does with a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from .frames import Node

COMMANDS: Final = frozenset(
    {
        b"ACL", b"AUTH", b"COMMAND", b"COMMANDLOG", b"CONFIG", b"HELLO", b"MIGRATE", b"MODULE",
        b"MONITOR", b"SENTINEL", b"SLOWLOG",
    }
)  # fmt: skip
"""Commands of which an argument may be a secret, or a part of the reply."""

_SECRET_NAME: Final = re.compile(rb"PASS|SECRET|CREDENTIAL|(?:^|[^A-Z])TOKEN", re.IGNORECASE)
_AUTH_NAME: Final = re.compile(rb"AUTH", re.IGNORECASE)
# Users and switches, where the name speaks of authentication.
_HARMLESS_NAME: Final = re.compile(
    rb".*user(?:name)?|tls-auth-clients|.*-enabled", re.IGNORECASE | re.DOTALL
)
_RULES: Final = (b">", b"<", b"#", b"!", b"(")
"""First bytes of ACL rules that are a password, its digest, or may hold one: a selector."""


def is_secret_name(name: bytes) -> bool:
    """Say whether a setting of this name holds a secret: `requirepass`, `ldap.bind-password`."""
    if _AUTH_NAME.search(name) and not _HARMLESS_NAME.fullmatch(name):
        return True
    return bool(_SECRET_NAME.search(name))


# Arguments.


def secret_arguments(words: Sequence[bytes], count: int) -> list[int]:
    """Answer which of a command's arguments are secrets, as indices in ascending order.

    What is told of an argument stays so when later ones come, and so does what is told of one of
    which the first byte is there.

    Args:
        words: Its first arguments, name included, as they are; the last may be cut.
        count: How many it has in all.
    """
    at = 0
    while True:  # a command within a command
        name, second = _upper(words, at), _upper(words, at + 1)
        if name == b"ACL" and second == b"DRYRUN":
            at += 3
        elif name == b"COMMAND" and second in (b"GETKEYS", b"GETKEYSANDFLAGS"):
            at += 2
        else:
            break
    find = _ARGUMENTS.get(name)
    return [index for index in find(words, at, count) if index < count] if find else []


def _upper(words: Sequence[bytes], at: int) -> bytes:
    return words[at].upper() if at < len(words) else b""


def _auth(words: Sequence[bytes], at: int, count: int) -> Iterator[int]:
    """AUTH password, AUTH user password; of more the server takes none, and all may be one."""
    given = count - at - 1
    return iter(range(at + (2 if given == 2 else 1), count))


def _hello(words: Sequence[bytes], at: int, count: int) -> Iterator[int]:
    index = at + 1
    while index < len(words):
        option = _upper(words, index)
        if option == b"AUTH":
            yield min(index + 2, max(count - 1, index + 1))  # the user may be forgotten
            index += 3
        else:
            index += 2 if option == b"SETNAME" else 1


def _acl(words: Sequence[bytes], at: int, count: int) -> Iterator[int]:
    if _upper(words, at + 1) == b"SETUSER":
        for index in range(at + 3, len(words)):
            if words[index][:1] in _RULES:
                yield index


def _pairs(words: Sequence[bytes], start: int) -> Iterator[int]:
    index = start
    while index < len(words):
        if is_secret_name(words[index]):
            yield index + 1
        index += 3 if _upper(words, index) == b"RENAME-COMMAND" else 2


def _config(words: Sequence[bytes], at: int, count: int) -> Iterator[int]:
    if _upper(words, at + 1) == b"SET":
        yield from _pairs(words, at + 2)


def _sentinel(words: Sequence[bytes], at: int, count: int) -> Iterator[int]:
    second = _upper(words, at + 1)
    if second == b"SET" or (second == b"CONFIG" and _upper(words, at + 2) == b"SET"):
        yield from _pairs(words, at + 3)


def _migrate(words: Sequence[bytes], at: int, count: int) -> Iterator[int]:
    index = at + 4  # behind the key, which may have any name
    while index < len(words):
        option = _upper(words, index)
        if option == b"KEYS":
            return
        if option == b"AUTH":
            yield index + 1
            index += 1
        elif option == b"AUTH2":
            yield from (index + 1, index + 2)
            index += 2
        index += 1


def _module(words: Sequence[bytes], at: int, count: int) -> Iterator[int]:
    if _upper(words, at + 1) not in (b"LOAD", b"LOADEX"):
        return
    index = at + 3
    settings = _upper(words, at + 1) == b"LOADEX"
    while index < len(words):
        if settings and _upper(words, index) == b"CONFIG":
            if index + 1 < len(words) and is_secret_name(words[index + 1]):
                yield index + 2
            index += 3
        elif settings and _upper(words, index) == b"ARGS":
            settings = False
            index += 1
        elif is_secret_name(words[index]):  # a module's own arguments: mostly name, value
            yield index + 1
            index += 2
        else:
            index += 1


_ARGUMENTS: Final[dict[bytes, Callable[[Sequence[bytes], int, int], Iterator[int]]]] = {
    b"AUTH": _auth,
    b"HELLO": _hello,
    b"ACL": _acl,
    b"CONFIG": _config,
    b"SENTINEL": _sentinel,
    b"MIGRATE": _migrate,
    b"MODULE": _module,
}


# Replies.

Part = tuple[int, int]
"""Two offsets in a stream: of the first byte, and of the one behind the last."""


def draws_secrets(words: Sequence[bytes]) -> bool:
    """Say whether a reply to a command, if it is no error, may hold a secret."""
    return _kind_of(words) is not None


def secret_parts(
    words: Sequence[bytes], secrets: Sequence[bytes], nodes: Sequence[Node]
) -> list[Part]:
    """Answer which parts of a reply are secrets, as far as the reply is there.

    Of a blob that is not whole, what is still to come of it is a part, too, if it might hold a
    secret. Whoever asks again when more is there gets what is told apart.

    Args:
        words: The command's arguments, as they were sent; empty if nobody knows.
        secrets: Those of them that are secrets.
        nodes: The reply's tokens, as trees.
    """
    parts: list[Part] = []
    find = _kind_of(words)
    sought = _sought(secrets)
    # What was quoted of an unknown command may be quoted anywhere: in an item of EXEC, too.
    for node in _walk(nodes):
        if node.mark in "+?" and _text(node)[:2].strip(b"+").isdigit():
            _monitored(node, parts)
        elif node.mark in "-!?":
            _error(node, sought, parts)
    if find is not None:
        for node in nodes:
            if node.mark not in "-!|":
                find(node, parts)
    return parts


def _kind_of(words: Sequence[bytes]) -> Callable[[Node, list[Part]], None] | None:
    name, second = _upper(words, 0), _upper(words, 1)
    if name == b"SENTINEL":
        return _settings
    if name == b"HELLO":
        return _modules
    return _REPLIES.get((name, second))


def _walk(nodes: Sequence[Node]) -> Iterator[Node]:
    work = list(reversed(nodes))
    while work:
        node = work.pop()
        yield node
        if node.items:
            work.extend(reversed(node.items))


def _whole(node: Node, parts: list[Part]) -> None:
    """Add all strings that are in a node."""
    for leaf in _walk([node]):
        if leaf.items:
            continue
        if leaf.mark in "$!;" or (leaf.mark == "+"):
            parts.append((leaf.body, leaf.due))
        elif leaf.mark == "=":
            parts.append((leaf.body + 4, leaf.due))  # behind its format
        elif leaf.mark == "?" and _text(leaf)[:1] == b"+":
            parts.append((leaf.at + 1, leaf.at + len(_text(leaf))))


def _text(node: Node) -> bytes:
    """The bytes of a scalar, from its body on; of what is not whole, from its first byte on."""
    value = node.value
    if isinstance(value, bytes):
        # A CR that a chunk ends with is the half of a line's end, which must stay what it is.
        return value.removesuffix(b"\r") if node.mark == "?" else value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    message = getattr(value, "message", None)
    return message.encode("utf-8", "surrogateescape") if isinstance(message, str) else b""


def _items(node: Node) -> list[Node]:
    return [item for item in node.items if item.mark not in "|."]


def _settings(node: Node, parts: list[Part]) -> None:
    """Values of secret names: in a map, in an array of names and values, or in arrays of those."""
    for found in _walk([node]):
        if found.mark in "*%~" and found.items:
            items = _items(found)
            for name, value in zip(items[::2], items[1::2], strict=False):
                if name.mark in "$+=" and not name.error and is_secret_name(_text(name)):
                    _whole(value, parts)


def _modules(node: Node, parts: list[Part]) -> None:
    """Arguments with which modules were loaded, that follow a secret name."""
    for found in _walk([node]):
        if found.mark not in "*%" or not found.items:
            continue
        items = _items(found)
        for name, value in zip(items[::2], items[1::2], strict=False):
            if name.mark in "$+" and not name.error and _text(name).lower() == b"args":
                arguments = _items(value)
                secret = False
                for argument in arguments:
                    if secret:
                        _whole(argument, parts)
                    secret = not secret and is_secret_name(_text(argument))


def _user(node: Node, parts: list[Part]) -> None:
    items = _items(node)
    for name, value in zip(items[::2], items[1::2], strict=False):
        if _text(name).lower() == b"passwords":
            _whole(value, parts)


_TOKEN: Final = re.compile(rb"(?:(?<=[ (])|^)[#><!]([^ )]*)")


def _users(node: Node, parts: list[Part]) -> None:
    """Digests in the rules of ACL LIST."""
    for found in _walk([node]):
        if found.mark not in "$+=?" or found.items:
            continue
        text = _text(found)
        if found.mark == "?":
            if text[:1] != b"+":
                continue
            start = found.at
        else:
            start = found.stop - len(text)
        parts += [(start + token.start(1), start + token.end(1)) for token in _TOKEN.finditer(text)]
        if found.due > found.stop:
            parts.append((found.stop, found.due))


def _log(node: Node, parts: list[Part]) -> None:
    """Arguments of the commands in a log. Servers leave out most, but not those in GETKEYS."""
    for entry in node.items:
        fields = _items(entry)
        if len(fields) > 3 and fields[3].mark == "*":
            arguments = _items(fields[3])
            words = [_text(argument) for argument in arguments]
            for index in secret_arguments(words, fields[3].value or len(words)):
                if index < len(arguments):
                    _whole(arguments[index], parts)


_REPLIES: Final[dict[tuple[bytes, bytes], Callable[[Node, list[Part]], None]]] = {
    (b"CONFIG", b"GET"): _settings,
    (b"ACL", b"GETUSER"): _user,
    (b"ACL", b"LIST"): _users,
    (b"ACL", b"GENPASS"): _whole,
    (b"SLOWLOG", b"GET"): _log,
    (b"COMMANDLOG", b"GET"): _log,
    (b"MODULE", b"LIST"): _modules,
}


# Texts: errors, and what MONITOR tells.

_QUOTING: Final = b"with args beginning with:"
_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")
_QUOTED_AT_LEAST: Final = 128  # bytes of an argument that an error quotes, however long it is
# What quotes nothing. Of a password that is a word of it, a mask would tell where it stands.
_FIXED: Final = (
    b"WRONGPASS invalid username-password pair or user is disabled.",
    b"WRONGPASS invalid username-password pair",
    b"NOAUTH Authentication required.",
    b"NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO "
    b"<proto> AUTH <user> <pass> option can be used to authenticate the client and select the "
    b"RESP protocol version at the same time",
    b"ERR AUTH <password> called without any password configured for the default user. Are you "
    b"sure your configuration is correct?",
    b"ERR Client sent AUTH, but no password is set",
    b"ERR invalid password",
    b"ERR syntax error",
)


def _sought(secrets: Sequence[bytes]) -> list[bytes]:
    """Secrets as an error may quote them: on one line, up to a NUL, with or without a rule's mark.

    Longest first, so that none hides behind a shorter one.
    """
    found = set()
    for secret in secrets:
        text = secret.translate(_SPACES).partition(b"\0")[0]
        found.add(text)
        if text[:1] in _RULES:
            found.add(text[1:])
    found.discard(b"")
    return sorted(found, key=len, reverse=True)


def _error(node: Node, sought: list[bytes], parts: list[Part]) -> None:
    text = _text(node)
    start = node.body
    whole = node.mark != "?" and not node.error
    if node.mark == "?" and text[:1] != b"-":
        return
    if whole:
        if text in _FIXED:
            return
    elif node.mark == "?" and any(fixed.startswith(text[1:]) for fixed in _FIXED):
        return
    quoted = text.find(_QUOTING)
    if quoted >= 0:
        quoted += len(_QUOTING)
        quoted += text[quoted : quoted + 1] == b" "
        end = start + len(text)
        parts.append((start + quoted, end if node.mark == "?" else max(end, node.due)))
        text = text[:quoted]
    for secret in sought:
        head = secret[:_QUOTED_AT_LEAST]
        at = text.find(head)
        while at >= 0:
            end = at + len(head)
            most = min(len(text) - at, len(secret))
            while end - at < most and text[end] == secret[end - at]:
                end += 1
            parts.append((start + at, start + end))
            at = text.find(head, at + 1)
        if not whole and quoted < 0:
            for size in range(min(len(head) - 1, len(text)), 0, -1):
                if text.endswith(head[:size]):
                    parts.append((start + len(text) - size, start + len(text)))
                    break
    if sought and node.due > node.stop:
        parts.append((node.stop, node.due))


_MONITORED: Final = re.compile(rb"[0-9]+\.[0-9]+ \[[^\]\"]*\] ")
_MONITORED_WORD: Final = re.compile(rb"\"((?:\\.|[^\"\\])*)(?:\"|\\?$)")  # the last may be cut


def _monitored(node: Node, parts: list[Part]) -> None:
    text = _text(node)
    start = node.body
    if node.mark == "?":
        text, start = text[1:], start + 1
    head = _MONITORED.match(text)
    if head is None:
        return
    found = list(_MONITORED_WORD.finditer(text, head.end()))
    for index in secret_arguments([word[1] for word in found], len(found)):
        parts.append((start + found[index].start(1), start + found[index].end(1)))


__all__ = ["COMMANDS", "draws_secrets", "is_secret_name", "secret_arguments", "secret_parts"]

"""What is known of commands: their keys are those that a real server finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

import resp
from resp.tap.table import NAME, OPTION, UNKNOWN, arguments, blocks, find, keys, reply_of

_NUMERIC: Final = {"integer": "1", "double": "1.5", "unix-time": "1"}


class _Made:
    """Makes a command's arguments from what COMMAND DOCS tells of them."""

    def __init__(self, choice: int, with_options: bool, times: int) -> None:
        self._choice = choice
        self._with_options = with_options
        self._times = times
        self._keys = 0

    def words(self, arguments: list[dict[bytes, Any]]) -> Iterator[str]:
        counted = any(_text(one, "name") == "numkeys" for one in arguments)
        for one in arguments:
            flags = {
                flag if isinstance(flag, str) else flag.decode() for flag in one.get(b"flags", ())
            }
            if "optional" in flags and not self._with_options:
                continue
            if _text(one, "name") == "numkeys":
                yield str(self._times)
                continue
            kind = _text(one, "type")
            several = "multiple" in flags or (counted and kind == "key")
            for turn in range(self._times if several else 1):
                token = _text(one, "token")
                if token and (turn == 0 or "multiple_token" in flags):
                    yield token
                yield from self._one(one, kind)

    def _one(self, one: dict[bytes, Any], kind: str) -> Iterator[str]:
        if kind == "key":
            self._keys += 1
            yield f"k{self._keys}"
        elif kind == "oneof":
            inner = one[b"arguments"]
            yield from self.words([inner[self._choice % len(inner)]])
        elif kind == "block":
            yield from self.words(one[b"arguments"])
        elif kind != "pure-token":
            yield _NUMERIC.get(kind, "w")


def _text(one: dict[bytes, Any], name: str) -> str:
    value = one.get(name.encode(), b"")
    return value.decode() if isinstance(value, bytes) else str(value)


def _commands(docs: dict[bytes, Any]) -> Iterator[tuple[str, list[dict[bytes, Any]]]]:
    for name, told in docs.items():
        inner = told.get(b"subcommands")
        if inner:
            yield from _commands(inner)
        else:
            yield name.decode().replace("|", " ").upper(), told.get(b"arguments", [])


def test_keys_are_those_of_the_server(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    compared: set[str] = set()
    silent: set[str] = set()
    with resp.connect(server.url) as connector:
        docs: Any = connector.command("COMMAND", "DOCS")
        for name, told in _commands(docs):
            for choice in range(3):
                for with_options in (False, True):
                    for times in (1, 3):
                        made = _Made(choice, with_options, times)
                        words = [*name.split(), *made.words(told)]
                        [found] = connector.pipeline([("COMMAND", "GETKEYS", *words)])
                        if not isinstance(found, list):
                            silent.add(name)
                            continue
                        compared.add(name)
                        asked = [word.encode() for word in words]
                        assert keys(asked) == found, words
    with capsys.disabled():
        print(f"\nkeys of {len(compared)} commands compared;", end=" ")
        print(f"{len(silent - compared)} have none, or were not understood as made up")
    assert len(compared) >= 150
    # Those without a key are not all: each that names one by hand is known.
    for command in ("GET", "EVALSHA", "XREAD", "BLMPOP", "ZUNIONSTORE", "SORT", "MIGRATE"):
        assert command in compared or find([command.encode()]) is not None


def _said(*words: str) -> list[str]:
    asked = [word.encode() for word in words]
    return [f"{place.role} {place.label}".strip() for place in arguments(asked)]


@pytest.mark.parametrize(
    ("command", "payloads"),
    [
        ("SET k v EX 5", ["v"]),
        ("HSET h f v g w", ["v", "w"]),
        ("MSET a 1 b 2", ["1", "2"]),
        ("LPUSH l x y", ["x", "y"]),
        ("PUBLISH c text", ["text"]),
        ("APPEND k v", ["v"]),
        ("SETEX k 5 v", ["v"]),
        ("XADD s MAXLEN ~ 5 * f v g w", ["v", "w"]),
        ("GET k", []),
        ("EXPIRE k 5", []),
    ],
)
def test_payloads(command: str, payloads: list[str]) -> None:
    words = command.encode().split()
    found = [
        word.decode()
        for word, place in zip(words, arguments(words), strict=True)
        if place.role == "payload"
    ]
    assert found == payloads


def test_options_are_told_from_values() -> None:
    words = [b"SET", b"EX", b"EX", b"EX", b"5"]
    assert arguments(words)[3] is OPTION
    assert _said("SET", "EX", "EX", "EX", "5")[1:3] == ["key key", "payload value"]


def test_what_is_not_known() -> None:
    assert arguments([b"NO.SUCH", b"a", b"b"]) == [NAME, UNKNOWN, UNKNOWN]
    assert arguments([]) == []
    assert keys([b"NO.SUCH", b"a"]) == []
    assert find([]) is None
    assert reply_of([b"NO.SUCH"]) is None
    assert not blocks([b"NO.SUCH"])


def test_numkeys_that_lies() -> None:
    assert keys([b"EVALSHA", b"a" * 40, b"99999999", b"k"]) == [b"k"]
    assert keys([b"EVALSHA", b"a" * 40, b"-1", b"k"]) == []
    assert keys([b"EVALSHA", b"a" * 40, b"x", b"k"]) == []


@pytest.mark.parametrize(
    ("command", "waits"),
    [
        ("BLPOP a 0", True),
        ("XREAD STREAMS a 0", False),
        ("XREAD BLOCK 5 STREAMS a 0", True),
        ("LPOP a", False),
        ("WAIT 1 0", True),
    ],
)
def test_what_blocks(command: str, waits: bool) -> None:
    assert blocks(command.encode().split()) is waits

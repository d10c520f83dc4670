"""The decoder against streams from outside: vectors made by hand, and recordings of servers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp.decode import Decoder, Pairs
from tests.strategies import AtOnce, Cut, Outcome, cuts, decode, plain, typed

DATA = Path(__file__).parent.parent / "data"

# The vectors know two decoders, one a protocol; ours reads both.
ONLY_IN_RESP3 = {
    "blob-error-resp2-r2",
    "double-resp2-r2",
    "null3-resp2-r2",
    "sarr-resp2-r2",
    "verb-resp2-r2",
}
# A `:` has any size.
ANY_SIZE = {"int-overflow-r2", "int-overflow-r3", "int-huge-digits-r2", "int-huge-digits-r3"}
# A kind that is no string is an error, as the vector accepts.
REFUSED = {"push-first-not-string-r3"}
# What a server sends that no decoder can make sense of.
MALFORMED_CAPTURES = {"lua_bad_bignum", "multi_subscribe_DESYNC", "multi_subscribe_one", "lua_deep"}


def _vectors() -> list[dict[str, Any]]:
    cases = json.loads((DATA / "resp_cases.json").read_text())["cases"]
    return [case for case in cases if case["id"] not in ONLY_IN_RESP3]


def _captures() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "captures.jsonl").read_text().splitlines()]


def _wire(case: dict[str, Any]) -> bytes:
    if "input" in case:
        return bytes.fromhex(case["input"])
    return b"".join(bytes.fromhex(part) * int(count) for part, count in case["input_parts"])


VECTORS = _vectors()
CAPTURES = _captures()
EARLY = [
    case
    for case in VECTORS
    if "error_detectable_after_bytes" in case and case["id"] not in ANY_SIZE
]
SMALL_VECTORS = [case for case in VECTORS if case["length"] <= 4096]


def _bytes(node: dict[str, Any]) -> bytes:
    if "b_repeat" in node:
        byte, count = node["b_repeat"]
        return bytes.fromhex(byte) * int(count)
    return bytes.fromhex(node["b"])


def _text(node: dict[str, Any]) -> str:
    return _bytes(node).decode("utf-8", "surrogateescape")


def _expected(node: dict[str, Any]) -> Any:
    """Answer the typed form of what a vector's node stands for."""
    match node["t"]:
        case "simple":
            return "str", _text(node)
        case "error":
            return "ErrorReply", node["code"], _text(node)
        case "int" | "bignum":
            return "int", hex(int(node["v"]))
        case "bulk":
            return "bytes", _bytes(node)
        case "null":
            return "NoneType", None
        case "double":
            return typed(float(node["v"]))
        case "bool":
            return "bool", node["v"]
        case "verbatim":
            return (
                "Verbatim",
                _bytes(node),
                bytes.fromhex(node["fmt"]).decode() if _hex(node["fmt"]) else node["fmt"],
            )
        case "array":
            return "list", [_expected(item) for item in _items(node)]
        case "push":
            kind, *items = _items(node)
            return "Push", _text(kind), ("list", [_expected(item) for item in items])
        case "map":
            return _map(node["v"])
        case "set":
            members = [_expected(item) for item in node["v"]]
            if _unfit(members):
                return "list", members
            return "set", sorted(members, key=repr)
    raise AssertionError(node)


def _hex(text: str) -> bool:
    return len(text) == 6


def _items(node: dict[str, Any]) -> list[dict[str, Any]]:
    if "repeat" in node:
        item, count = node["repeat"]
        return [item] * count
    items: list[dict[str, Any]] = node["v"]
    return items


def _map(pairs: list[list[dict[str, Any]]]) -> Any:
    found = [(_expected(key), _expected(value)) for key, value in pairs]
    return "Pairs" if _unfit([key for key, _ in found]) else "dict", found


def _unfit(keys: list[Any]) -> bool:
    """Say whether a dict would lose one of the keys, or not take it."""
    if any(key[0] in {"list", "dict", "Pairs", "set"} for key in keys):
        return True
    return len({_python(key) for key in keys}) < len(keys)


def _python(key: Any) -> Any:
    match key:
        case ("int", text):
            return int(text, 16)
        case ("float", "nan"):
            return "nan"
        case ("float", text):
            return float.fromhex(text)
        case ("bool", value):
            return value
    return key


def _check(case: dict[str, Any], outcome: Outcome) -> None:
    if case["id"] in ANY_SIZE:
        digits = _wire(case)[1:-2]
        assert outcome == Outcome([("int", hex(_number(digits)))], [("NoneType", None)])
    elif case["id"] in REFUSED:
        assert outcome.error is not None
    else:
        assert outcome.replies == [_expected(frame) for frame in case["frames"]]
        assert (outcome.error is not None) is (case["status"] == "error")


def _number(digits: bytes) -> int:
    number = 0
    for digit in digits:
        number = number * 10 + digit - 48
    return number


@pytest.mark.parametrize("case", VECTORS, ids=[case["id"] for case in VECTORS])
def test_vector(case: dict[str, Any]) -> None:
    wire = _wire(case)
    for factory in (Decoder, plain):
        for size in (len(wire) or 1, 1460, 7, 1):
            if len(wire) // size <= 200_000:
                chunks = [wire[at : at + size] for at in range(0, len(wire), size)]
                _check(case, decode(factory, chunks))
                _check(case, decode(factory, chunks, singly=False))
                if factory is Decoder:
                    _check(case, decode(AtOnce, chunks, singly=False))


@pytest.mark.parametrize("case", EARLY, ids=[case["id"] for case in EARLY])
def test_vector_fails_as_early_as_it_can(case: dict[str, Any]) -> None:
    enough = case["error_detectable_after_bytes"]
    outcome = decode(Decoder, [_wire(case)[:enough]])
    assert outcome.error is not None
    assert outcome.offset is not None
    assert outcome.offset < enough


@pytest.mark.parametrize(
    "case",
    [case for case in VECTORS if any("attrs" in frame for frame in case["frames"])],
    ids=lambda case: case["id"],
)
def test_vector_of_attributes(case: dict[str, Any]) -> None:
    outcome = decode(Decoder, [_wire(case)])
    assert outcome.attributes == [_map(frame["attrs"]) for frame in case["frames"]]


@given(st.sampled_from(SMALL_VECTORS), cuts())
def test_vectors_cut_anywhere(case: dict[str, Any], cut: Cut) -> None:
    _check(case, decode(Decoder, cut(_wire(case))))


def _named(captures: list[dict[str, Any]]) -> Iterator[Any]:
    for capture in captures:
        name = f"{capture['server']}-r{capture['protocol']}-{capture['name']}"
        yield pytest.param(capture, id=name)


@pytest.mark.parametrize("capture", list(_named(CAPTURES)))
def test_capture(capture: dict[str, Any]) -> None:
    wire = base64.b64decode(capture["reply_b64"])
    whole = decode(Decoder, [wire])
    _check_capture(capture, whole)
    assert decode(plain, [wire]) == whole
    assert decode(Decoder, [bytes((byte,)) for byte in wire]) == whole
    assert decode(Decoder, [wire], singly=False).replies == whole.replies
    assert decode(AtOnce, [wire], singly=False).replies == whole.replies


@given(st.sampled_from(CAPTURES), cuts())
def test_captures_cut_anywhere(capture: dict[str, Any], cut: Cut) -> None:
    chunks = cut(base64.b64decode(capture["reply_b64"]))
    _check_capture(capture, decode(Decoder, chunks))
    _check_capture(capture, decode(AtOnce, chunks, singly=False))


# What a recorded frame's type may have become.
TYPES = {
    "simple": {"str"},
    "error": {"ErrorReply"},
    "bloberror": {"ErrorReply"},
    "int": {"int"},
    "bignum": {"int"},
    "bulk": {"bytes"},
    "null": {"NoneType"},
    "double": {"float"},
    "bool": {"bool"},
    "verbatim": {"Verbatim"},
    "array": {"list"},
    "map": {"dict", "Pairs"},
    "set": {"set", "list"},
    "push": {"Push"},
}


def _check_capture(capture: dict[str, Any], outcome: Outcome) -> None:
    malformed = capture["name"] in MALFORMED_CAPTURES
    if malformed and (capture["protocol"] == 3 or capture["name"] == "lua_deep"):
        assert outcome.error is not None
        return
    assert outcome.error is None
    assert len(outcome.replies) == capture["frames"]
    for reply, kind in zip(outcome.replies, capture["frame_types"], strict=True):
        assert reply[0] in TYPES[kind]


def test_a_key_that_repeats_is_kept() -> None:
    decoder = Decoder()
    decoder.feed(b"%2\r\n$1\r\ns\r\n:1\r\n$1\r\ns\r\n:2\r\n")
    assert decoder.replies() == [Pairs([(b"s", 1), (b"s", 2)])]

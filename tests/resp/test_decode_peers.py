"""The decoder against hiredis and redis-py's own parser, on streams that all of them can read."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp.decode import Decoder
from tests.strategies import blob, line, typed

hiredis = pytest.importorskip("hiredis")
parsers = pytest.importorskip("redis._parsers")
buffers = pytest.importorskip("redis._parsers.socket")


# redis-py's parser of RESP3 does not know the nulls of RESP2.
_OLD_NULLS = st.sampled_from([b"$-1\r\n", b"*-1\r\n"])
_OLD = st.one_of(
    st.binary(max_size=30).map(lambda text: blob(b"$", text)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: line(b":", b"%d" % number)),
)
_NEW = st.one_of(
    _OLD,
    st.floats(allow_nan=False).map(lambda number: line(b",", repr(number).encode())),
    st.sampled_from([b"_\r\n", b"#t\r\n", b"#f\r\n"]),
)


def _maps(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    keys = st.binary(max_size=8)
    return st.dictionaries(keys, values, max_size=5).map(
        lambda pairs: (
            b"%%%d\r\n" % len(pairs)
            + b"".join(blob(b"$", key) + value for key, value in pairs.items())
        )
    )


def _arrays(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(values, max_size=40).map(
        lambda items: b"*%d\r\n" % len(items) + b"".join(items)
    )


RESP2 = st.recursive(_OLD | _OLD_NULLS, _arrays, max_leaves=60)
RESP3 = st.recursive(_NEW, lambda inner: _arrays(inner) | _maps(inner), max_leaves=60)
SIZES = st.sampled_from([5, 100, 10_000])


class _Socket:
    def __init__(self, wire: bytes) -> None:
        self._wire = wire

    def recv(self, size: int) -> bytes:
        taken, self._wire = self._wire[:size], self._wire[size:]
        return taken

    def recv_into(self, buffer: Any, size: int = 0) -> int:
        taken = self.recv(len(buffer))
        buffer[: len(taken)] = taken
        return len(taken)

    def settimeout(self, timeout: float | None) -> None: ...


def _ours(wire: bytes, size: int) -> list[Any]:
    decoder = Decoder()
    found: list[Any] = []
    for at in range(0, len(wire), size):
        decoder.feed(wire[at : at + size])
        found += decoder.replies()
    return found


def _check_redis_py(parser: Any, replies: list[bytes], size: int) -> None:
    wire = b"".join(replies)
    parser._sock = _Socket(wire)
    parser._buffer = buffers.SocketBuffer(parser._sock, 4096, None)
    theirs = [parser.read_response(disable_decoding=True) for _ in replies]
    assert [typed(reply) for reply in _ours(wire, size)] == [typed(reply) for reply in theirs]


@given(st.lists(RESP2 | RESP3, min_size=1, max_size=8), SIZES)
def test_hiredis_reads_the_same(replies: list[bytes], size: int) -> None:
    wire = b"".join(replies)
    reader = hiredis.Reader()
    reader.feed(wire)
    theirs = [reader.gets() for _ in replies]
    assert [typed(reply) for reply in _ours(wire, size)] == [typed(reply) for reply in theirs]


@given(st.lists(RESP2, min_size=1, max_size=8), SIZES)
def test_redis_py_reads_the_same_resp2(replies: list[bytes], size: int) -> None:
    _check_redis_py(parsers._RESP2Parser(4096), replies, size)


@given(st.lists(RESP3, min_size=1, max_size=8), SIZES)
def test_redis_py_reads_the_same_resp3(replies: list[bytes], size: int) -> None:
    _check_redis_py(parsers._RESP3Parser(4096), replies, size)


def test_nan_is_read_alike() -> None:
    reader = hiredis.Reader()
    reader.feed(b",nan\r\n")
    assert math.isnan(reader.gets())
    assert all(map(math.isnan, _ours(b",nan\r\n", 6)))

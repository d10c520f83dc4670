"""Each stream is read by the ways that are written down, and all ways answer the same."""

from __future__ import annotations

import json

import pytest

from resp.decode import Decoder
from tests import paths
from tests.strategies import AtOnce, decode, plain

_STREAMS = dict(paths.streams())
_GROUPS = 16  # tests; one a stream would be mostly pytest's own time


def _group(number: int) -> list[str]:
    return list(_STREAMS)[number::_GROUPS]


@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_stream_is_read_by_the_ways_that_are_written_down(group: int) -> None:
    known = json.loads(paths.FILE.read_text())
    assert known.keys() == _STREAMS.keys()
    for name in _group(group):
        for chunk, ways in known[name].items():
            assert paths.read(_STREAMS[name], int(chunk)) == ways, (name, chunk)


@pytest.mark.parametrize("group", range(_GROUPS))
def test_all_ways_answer_the_same(group: int) -> None:
    for name in _group(group):
        wire = _STREAMS[name]
        expected = decode(plain, [wire])
        for size in paths.CHUNKS:
            chunks = [wire[at : at + size] for at in range(0, len(wire), size)]
            for found in (decode(way, chunks, singly=False) for way in (Decoder, AtOnce)):
                assert found.replies == expected.replies, (name, size)
                assert (found.error, found.offset) == (expected.error, expected.offset)

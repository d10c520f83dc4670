"""`decode`, which feeds a chunk and answers what is complete: by itself, and beside the others."""

from __future__ import annotations

import pytest

from resp.decode import Decoder
from resp.errors import ProtocolError

CHUNKS = [b"+OK\r\n", b":1\r\n:2\r\n:", b"3\r", b"\n$2\r\nab\r\n", b"*1\r\n", b":4\r\n"]
ANSWERS = [["OK"], [1, 2], [], [3, b"ab"], [], [[4]]]


def test_each_chunk_answers_what_it_completes() -> None:
    decoder = Decoder()

    assert [decoder.decode(chunk) for chunk in CHUNKS] == ANSWERS


def test_offset_is_where_the_next_reply_starts() -> None:
    """Told by `decode` and by `replies`, whether a chunk is whole replies or a part of one."""
    at_once, fed = Decoder(), Decoder()
    offsets = []
    for chunk in CHUNKS:
        at_once.decode(chunk)
        fed.feed(chunk)
        fed.replies()
        offsets.append((at_once.offset, fed.offset))

    assert offsets == [(5, 5), (13, 13), (13, 13), (25, 25), (29, 29), (33, 33)]


@pytest.mark.parametrize("wire", [b"+OK\r\n", b":1\r\n:2\r\n", b"$2\r\nab\r\n", b"*1\r\n:4\r\n"])
def test_what_follows_a_reply_has_none_of_its_attributes(wire: bytes) -> None:
    for take in (Decoder.decode, _feed):
        decoder = Decoder()
        assert decoder.attributes is None
        take(decoder, b"|1\r\n+a\r\n:1\r\n+b\r\n")
        assert decoder.attributes == {"a": 1}
        take(decoder, wire)
        assert decoder.attributes is None


def test_an_error_is_told_where_it_is_behind_chunks_that_were_whole() -> None:
    for take in (Decoder.decode, _feed):
        decoder = Decoder()
        take(decoder, b"+OK\r\n")
        take(decoder, b"$2\r\nab\r\n")
        with pytest.raises(ProtocolError) as caught:
            take(decoder, b"!x\r\n")
        assert caught.value.offset == decoder.offset == 13


def _feed(decoder: Decoder, chunk: bytes) -> list[object]:
    decoder.feed(chunk)
    return decoder.replies()

"""What `python -m tests.guided` calls: functions of bytes that raise if a promise is broken.

A fuzzer makes bytes and knows nothing of RESP, so a target gives each of them a meaning:

    byte 0    which check, and with which limits or options
    byte 1    how the wire is cut into chunks: below 128 into pieces of so many bytes and one,
              else at places drawn by it
    the rest  the wire; F4 and a byte n stand for n more of what is between it and the F4 or F5
              before it, so that a long run is a short input; F5 ends a part: a side's turn to
              speak, or a record of a file

`decoder` tries the Decoder, `tap` what a tap does with bytes. Neither needs a fuzzer: a corpus of
inputs, one a line in `tests/data/corpus`, is replayed by `tests/resp/test_corpus.py`.
"""

from __future__ import annotations

import json
import random
import re
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

from resp.encode import encode_command
from resp.tap.dialogue import Dialogue, Exchange, Frame
from resp.tap.filters import FilterError, compile
from resp.tap.ledger import Ledger
from resp.tap.meaning import payload_extents
from resp.tap.page import render
from resp.tap.record import Record
from resp.tap.recording import RECEIVED, SENT, RecordingError, exchanges, read
from resp.tap.scan import KEEP
from resp.tap.views import hexdump, line, tree
from tests.resp.tap.test_frames import check_against_the_decoder, covered
from tests.resp.tap.test_scan import check_cuts, check_one_a_reply, scan
from tests.resp.tap.test_views import check_nothing_raw, check_views
from tests.strategies import BURST_LIMITS, Cut, check_ways_agree

PART: Final = b"\xf5"
_LONGEST: Final = 12 * 1024  # bytes of a wire: more than most bursts look at, and quick to decode

CORPUS: Final = Path(__file__).with_name("data") / "corpus"

_REPEATED: Final = re.compile(rb"([^\xf4\xf5]*)(?:\xf4(.))?", re.DOTALL)


def meaning(data: bytes) -> tuple[int, Cut, list[bytes]]:
    """Answer what an input stands for: its first byte, its cuts, and the parts of its wire."""
    head, cut, wire = data[:1], data[1:2], data[2:]
    parts = []
    room = _LONGEST
    for part in wire.split(PART):
        pieces = []
        for piece, count in _REPEATED.findall(part):
            more = min(ord(count or b"\0"), max(room // max(len(piece), 1) - 1, 0))
            pieces.append(piece * (1 + more))
            room -= len(pieces[-1])
        parts.append(b"".join(pieces))
    return ord(head or b"\0"), _cut(ord(cut or b"\0")), parts


def _cut(way: int) -> Cut:
    def cut(wire: bytes) -> list[bytes]:
        if way < 128:
            return [wire[at : at + way + 1] for at in range(0, len(wire), way + 1)]
        rng = random.Random(way)
        places = sorted(rng.randint(0, len(wire)) for _ in range(rng.randrange(8)))
        return [wire[start:stop] for start, stop in pairwise([0, *places, len(wire)])]

    return cut


# The decoder

_LIMITS: Final[tuple[dict[str, int], ...]] = (
    {},
    *({**BURST_LIMITS, "max_depth": depth} for depth in range(4)),
    {"max_bulk": 16, "max_line": 12, "max_elements": 6, "max_depth": 3},
    {"max_bulk": 0, "max_line": 0, "max_elements": 0, "max_depth": 0},
)


def decoder(data: bytes) -> None:
    """Any bytes give the same replies, then the same error at the same place, whatever the way."""
    head, cut, parts = meaning(data)
    check_ways_agree(b"".join(parts), cut, **_LIMITS[head % len(_LIMITS)])


# The tap

_KEEPS: Final = (KEEP, 1, 7, 40)
_ORIGINS: Final = (0, 99, 10**9)


def tap(data: bytes) -> None:
    """Frames, trees, conversations, views and recordings keep what they promise of any bytes."""
    head, cut, parts = meaning(data)
    check = _CHECKS[head % len(_CHECKS)]
    check(parts, cut, head // len(_CHECKS))


def _replies(parts: list[bytes], cut: Cut, option: int) -> None:
    """Scanner, parse and Decoder agree where replies end; views show each byte once."""
    wire = b"".join(parts)
    at = _ORIGINS[option % len(_ORIGINS)]
    check_cuts(wire, cut, keep=_KEEPS[option % len(_KEEPS)])
    check_one_a_reply(wire, scan([wire])[0])
    check_against_the_decoder(wire, at)
    check_views(wire, at)


def _requests(parts: list[bytes], cut: Cut, option: int) -> None:
    """Scanner and parse agree where commands end; views show each byte once."""
    wire = b"".join(parts)
    at = _ORIGINS[option % len(_ORIGINS)]
    check_cuts(wire, cut, requests=True, keep=_KEEPS[option % len(_KEEPS)])
    found, _ = scan([wire], requests=True)
    roots, _ = covered(wire, at, inline=True)
    ends = [root.end - at for root in roots]
    assert [start + size for start, size, _, _ in found] == ends[: len(found)]
    check_views(wire, at, inline=True)


SECRET: Final = b"correct-horse"
_TOLD: Final = SECRET[:6]  # as much of it as is never in the views of anything else
_SECRETIVE: Final = (
    encode_command("AUTH", SECRET),
    encode_command("AUTH", "user", SECRET),
    encode_command("HELLO", 3, "AUTH", "user", SECRET, "SETNAME", "me"),
    encode_command("ACL", "SETUSER", "u", "on", b">" + SECRET, "~*"),
    encode_command("CONFIG", "SET", "maxmemory", 0, "requirepass", SECRET),
    encode_command("MIGRATE", "h", 1, "", 0, 10, "AUTH", SECRET, "KEYS", "a"),
    b"AUTH " + SECRET + b"\r\n",
    b'"AUTH" "' + SECRET + b'"\r\n',
    b"*2\r\n+AUTH\r\n+" + SECRET + b"\r\n",
)


def _dialogue(parts: list[bytes], cut: Cut, option: int) -> None:
    """A conversation is as long as it was, and what is masked and paired hangs on no cut."""
    chunks = _turns(parts)
    options: dict[str, Any] = {"keep": _KEEPS[option % 4 if option & 4 else 0]}
    if option & 8:
        options["conceal"] = payload_extents
    up, down, found = _shown(chunks, None, options)
    up_in_pieces, down_in_pieces, found_in_pieces = _shown(chunks, cut, options)
    said, heard = (b"".join(data for sent, data in chunks if sent is way) for way in (True, False))
    assert sum(one.up for one in found) <= len(said)
    assert sum(one.down for one in found) <= len(heard)
    if not any(one.kind == "malformed" for one in found):
        # In what is no RESP, more is masked the more of it came at once.
        _check_masks(said, up, up_in_pieces)
        _check_masks(heard, down, down_in_pieces)
        lines = any(one.request and one.request.data[:1] != b"*" for one in found)
        if options["keep"] == KEEP and not lines:
            assert up_in_pieces == up
    assert _answered(found_in_pieces) == _answered(found)
    for exchange in found:
        if exchange.kind in ("malformed", "lost"):
            continue  # hidden in hindsight, when it proved to be no RESP or was never answered
        if exchange.request is not None:
            _check_hidden(exchange.request, said, up)
        for reply in exchange.replies:
            _check_hidden(reply, heard, down)
    _look_at(found)


def _check_hidden(frame: Frame, data: bytes, shown: bytes) -> None:
    """Check that what a frame hides is hidden in the stream as well."""
    here = slice(frame.at, frame.at + len(frame.data))
    for byte, kept, crossed in zip(data[here], frame.data, shown[here], strict=True):
        assert kept in (byte, ord("*"))
        assert kept == byte or crossed != byte


def _check_masks(data: bytes, whole: bytes, in_pieces: bytes) -> None:
    """Check that what is masked in a stream is so however it is cut.

    More is, as long as nobody knows how many words a line has, where in a text a secret ends, or
    what stood in the part of a frame that was not kept.
    """
    assert len(data) == len(whole) == len(in_pieces)
    for byte, at_once, piecewise in zip(data, whole, in_pieces, strict=True):
        assert at_once in (byte, ord("*"))
        assert piecewise in (byte, ord("*"))
        # A CR at the end of a piece may be half of a line's end, which is shown.
        assert at_once == byte or piecewise != byte or byte == ord("\r")


def _secret(parts: list[bytes], cut: Cut, option: int) -> None:
    """A secret that a client tells is shown nowhere, whatever was said before and comes after."""
    if SECRET in b"".join(parts) or _TOLD in b"".join(parts):
        return
    chunks = _turns(parts)
    said = b"".join(data for sent, data in chunks if sent)
    ends = [0, *(at + size for at, size, _, _ in scan([said], requests=True)[0])]
    place = ends[option % len(ends)]
    secretive = _SECRETIVE[option % len(_SECRETIVE)]
    for index, (sent, data) in enumerate(chunks):
        if sent and place <= len(data):
            chunks[index] = True, data[:place] + secretive + data[place:]
            break
        place -= len(data) if sent else 0
    for pieces in (None, cut):
        up, down, found = _shown(chunks, pieces, {})
        told = f"{up!r}{down!r}{found!r}".encode()
        assert _TOLD not in told
        assert SECRET[-6:] not in told


_TURN: Final = 512  # bytes, as what is open may be looked at again with each piece of it


def _turns(parts: list[bytes]) -> list[tuple[bool, bytes]]:
    """The client speaks first, then each in turn; a part that is empty is silence."""
    turns = [(at % 2 == 0, part[:_TURN]) for at, part in enumerate(parts) if part or not at]
    return [
        (sent, b"".join(data for _, data in same))
        for sent, same in groupby(turns, lambda turn: turn[0])
    ]


def _shown(
    chunks: list[tuple[bool, bytes]], cut: Cut | None, options: dict[str, Any]
) -> tuple[bytes, bytes, list[Exchange]]:
    """What a dialogue shows of the two directions, and its exchanges."""
    dialogue = Dialogue(**options)
    out = {True: b"", False: b""}
    found: list[Exchange] = []
    for sent, data in chunks:
        for piece in cut(data) if cut else [data]:
            masked, done = (dialogue.sent if sent else dialogue.received)(piece, 0)
            assert len(masked) == len(piece)
            out[sent] += masked
            found += done
    return out[True], out[False], found + dialogue.end(0)


def _answered(found: list[Exchange]) -> list[tuple[Any, ...]]:
    return [(one.name, one.request, one.replies[:1]) for one in found if one.kind == "reply"]


def _look_at(found: list[Exchange]) -> None:
    """Show exchanges in every way, and count them."""
    ledger = Ledger()
    for exchange in found:
        check_nothing_raw([line(exchange), *tree(exchange), *hexdump(exchange)])
        ledger.add(exchange)
    assert ledger.total.exchanges == len(found)
    assert ledger.total.up == sum(one.up for one in found)
    assert ledger.total.down == sum(one.down for one in found)
    json.dumps(ledger.as_json())
    check_nothing_raw(ledger.render())


def _filter(parts: list[bytes], cut: Cut, option: int) -> None:
    """A filter is refused in words or answers for every exchange, as a page shows every one."""
    text, *turns = parts
    found = _shown(_turns(turns or [b""]), None, {})[2]
    try:
        test = compile([text.decode("utf-8", "surrogateescape")])
    except FilterError as error:
        check_nothing_raw([str(error)])
    else:
        assert all(type(test(exchange)) is bool for exchange in found)
    if not option % 16:
        render(found).encode()


# A recording's format, from its module's first lines.
_HEADER: Final = struct.Struct("<12sHHI")
_RECORD: Final = struct.Struct("<IB")
_CHUNK: Final = 24  # bytes of a chunk's body before the chunk
_MARK: Final = b"mark"


def _recording(parts: list[bytes], cut: Cut, option: int) -> None:
    """A file is a recording with damage, or none; what is read from it was written to it.

    The first part damages it, three bytes at a time: a place, and what to flip there; nothing to
    flip ends the file there. Each other part is a record, its kind first.
    """
    flips, *records = parts
    header = _HEADER.pack(b"\x89RESPTAP\r\n\x1a\n", 1, 0, int.from_bytes(_MARK, "little"))
    file = header + zlib.crc32(header).to_bytes(4, "little")
    written = []
    for record in records:
        kind, body = (record[:1] or b"\0")[0], record[1:]
        checked = _RECORD.pack(len(body), kind) + body
        file += _MARK + zlib.crc32(_MARK + checked).to_bytes(4, "little") + checked
        if kind in (SENT, RECEIVED) and len(body) >= _CHUNK:
            written.append((kind == SENT, body[_CHUNK:]))
    damaged = bytearray(file)
    for at in range(0, len(flips) - 2, 3):
        place = int.from_bytes(flips[at : at + 2], "little") % len(file)
        if not flips[at + 2]:
            del damaged[place:]
        elif place < len(damaged):
            damaged[place] ^= flips[at + 2]
    with tempfile.NamedTemporaryFile() as kept:
        kept.write(damaged)
        kept.flush()
        try:
            recording = read(kept.name)
        except RecordingError:
            assert damaged[:_CHUNK] != file[:_CHUNK]
            return
        found = [(item.sent, item.data) for item in recording if isinstance(item, Record)]
        _look_at(list(exchanges(kept.name)))
    if damaged == file:
        assert found == written
        assert not recording.damaged
        assert not recording.torn
    assert not Counter(found) - Counter(written)


_CHECKS: Final[tuple[Callable[[list[bytes], Cut, int], None], ...]] = (
    _replies,
    _requests,
    _dialogue,
    _secret,
    _filter,
    _recording,
)

TARGETS: Final[dict[str, Callable[[bytes], None]]] = {"decoder": decoder, "tap": tap}
WAYS: Final = {"decoder": len(_LIMITS), "tap": len(_CHECKS)}
"""Limits of the decoder, checks of the tap: an input's first byte, modulo this, is one of them."""


# The corpus


def corpus(target: str) -> dict[str, bytes]:
    """Answer the inputs that are kept for a target, by name."""
    found: dict[str, bytes] = {}
    for text in (CORPUS / f"{target}.jsonl").read_text().splitlines():
        entry = json.loads(text)
        assert entry["name"] not in found
        found[entry["name"]] = entry["input"].encode("latin-1")
    return found


def keep(target: str, inputs: dict[str, bytes]) -> None:
    """Write the inputs of a target, the shortest first."""
    ordered = sorted(inputs.items(), key=lambda entry: (len(entry[1]), entry[1]))
    lines = [
        json.dumps({"name": name, "input": data.decode("latin-1")}) + "\n" for name, data in ordered
    ]
    (CORPUS / f"{target}.jsonl").write_text("".join(lines))


__all__ = ["CORPUS", "PART", "TARGETS", "WAYS", "corpus", "decoder", "keep", "meaning", "tap"]

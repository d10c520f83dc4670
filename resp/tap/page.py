"""A recording as one HTML file: time line, table, tree, hex and ledger, without a server.

What is computed here is what needs the parser: the tree of each frame, what its parts are, and what
they cost. What is drawn is decided in the browser, by page.js. Trees of one shape are alike in many
exchanges (offsets are counted from the frame's start), so each is written once and numbered; values
are read from the bytes.

The file must be safe whatever a peer sent. Bytes go in as base64 and text as JSON without `<`, so
that nothing in it can end the element; the page puts them on the screen as text alone; and a policy
in its head allows no script but its own, by its hash, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from .dialogue import Exchange, Frame
from .frames import Node
from .ledger import Cost, Ledger
from .lens import Lens
from .lens import lenses as known_lenses
from .meaning import Scripts, annotate

LIMIT: Final = 20_000
"""Exchanges in a page: 10,000 scroll smoothly on a slow machine, and twice that still opens."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Bytes of frames in a page, before they are a third longer in base64."""

KEEP: Final = 64 * 1024
"""Bytes of one frame in a page: more than anyone reads, and one of them cannot fill it."""

_KINDS: Final = ("reply", "push", "silent", "lost", "malformed")
_UNTOLD: Final = "(none)"


class Page:
    """Exchanges on their way into a page.

    Adding one stores it and does no more, so that it can be done beside a running proxy.

    Args:
        scripts: What is known of scripts; None learns from the exchanges.
        lenses: What other packages know; None asks those that are installed.
        title: What was recorded, for the reader.
        limit: Exchanges that are kept; beyond that the oldest one leaves.
        max_bytes: Bytes of frames that are kept; beyond that the oldest exchange leaves.
        keep: Bytes that are kept of one frame.

    Attributes:
        left_out: Exchanges that had to leave.
    """

    def __init__(
        self,
        scripts: Scripts | None = None,
        lenses: Iterable[Lens] | None = None,
        *,
        title: str = "tap",
        limit: int = LIMIT,
        max_bytes: int = MAX_BYTES,
        keep: int = KEEP,
    ) -> None:
        if limit < 1 or max_bytes < 1 or keep < 1:
            raise ValueError("limit, max_bytes and keep must be at least 1")
        self._scripts = scripts
        self._lenses = None if lenses is None else list(lenses)
        self._title = title
        self._limit = limit
        self._max_bytes = max_bytes
        self._keep = keep
        self._exchanges: deque[Exchange] = deque()
        self._bytes = 0
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._exchanges)

    def add(self, exchange: Exchange) -> None:
        """Take one more exchange."""
        cut = self._cut(exchange)
        self._exchanges.append(cut)
        self._bytes += _kept(cut)
        while len(self._exchanges) > self._limit or (
            self._bytes > self._max_bytes and len(self._exchanges) > 1
        ):
            self._bytes -= _kept(self._exchanges.popleft())
            self.left_out += 1

    def _cut(self, exchange: Exchange) -> Exchange:
        keep = self._keep
        request, replies = exchange.request, exchange.replies
        if request is not None and len(request.data) > keep:
            exchange = exchange._replace(request=request._replace(data=request.data[:keep]))
        if any(len(reply.data) > keep for reply in replies):
            exchange = exchange._replace(
                replies=tuple(reply._replace(data=reply.data[:keep]) for reply in replies)
            )
        return exchange

    def render(self) -> str:
        """Answer the page as text."""
        book = _Book(self._scripts, self._lenses)
        # Connections finish exchanges in an order of their own; a reader expects that of time.
        exchanges = sorted(self._exchanges, key=lambda one: one.time_ns)
        for exchange in exchanges:
            book.learn(exchange)
        for exchange in exchanges:
            book.add(exchange)
        return _assemble(self._title, book.document(self._title, self.left_out))

    def write(self, path: str | os.PathLike[str]) -> int:
        """Write the page to a file. Answer how many exchanges are in it.

        A reader, or a run that is interrupted, never meets half of one. What is no regular file, a
        device or a pipe, is written to; a link stays one.

        Raises:
            OSError: It cannot be written; what was there before still is.
        """
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            target.write_text(self.render(), encoding="utf-8", newline="\n")
            return len(self._exchanges)
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            beside.write_text(self.render(), encoding="utf-8", newline="\n")
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        return len(self._exchanges)


def render(
    exchanges: Iterable[Exchange],
    *,
    scripts: Scripts | None = None,
    lenses: Iterable[Lens] | None = None,
    title: str = "tap",
    limit: int = LIMIT,
) -> str:
    """Answer a page of these exchanges as text; of the newest, if they are more than `limit`."""
    return _filled(exchanges, scripts, lenses, title, limit).render()


def write(
    path: str | os.PathLike[str],
    exchanges: Iterable[Exchange],
    *,
    scripts: Scripts | None = None,
    lenses: Iterable[Lens] | None = None,
    title: str = "tap",
    limit: int = LIMIT,
) -> int:
    """Write a page of these exchanges to a file. Answer how many are in it.

    Raises:
        OSError: It cannot be written; what was there before still is.
    """
    return _filled(exchanges, scripts, lenses, title, limit).write(path)


def _filled(
    exchanges: Iterable[Exchange],
    scripts: Scripts | None,
    lenses: Iterable[Lens] | None,
    title: str,
    limit: int,
) -> Page:
    page = Page(scripts, lenses, title=title, limit=limit)
    for exchange in exchanges:
        page.add(exchange)
    return page


def _kept(exchange: Exchange) -> int:
    request = exchange.request
    size = len(request.data) if request is not None else 0
    return size + sum(len(reply.data) for reply in exchange.replies)


class _Numbered(dict[Any, int]):
    """What is written once and named by its number after that."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class _Book:
    """The document: columns of numbers, and what they stand for."""

    def __init__(self, scripts: Scripts | None, lenses: list[Lens] | None) -> None:
        self._scripts = scripts if scripts is not None else Scripts()
        self._lenses = known_lenses() if lenses is None else lenses
        if scripts is None:
            for lens in self._lenses:
                for script in lens.scripts():
                    self._scripts.add(script)
        self._text = _Numbered({"": 0})
        self._shapes = _Numbered()
        self._parts = _Numbered()
        self._costs = _Numbered()
        self._columns: dict[str, list[int]] = {
            name: [] for name in ("connection", "number", "kind", "time", "name", "script",
                                  "error", "cost", "subjects", "frames")
        }  # fmt: skip
        self._queued: dict[int, list[int]] = {}
        self._data = bytearray()
        self._origin: int | None = None
        self._before = 0

    def learn(self, exchange: Exchange) -> None:
        """Look for sources of scripts: what is called before it is loaded has a name, too."""
        self._scripts.learn(exchange)

    def add(self, exchange: Exchange) -> None:
        text, columns = self._text, self._columns
        ledger = Ledger(self._scripts, self._lenses)
        ledger.add(exchange)
        if self._origin is None:
            self._origin = self._before = exchange.time_ns
        columns["connection"].append(exchange.connection)
        columns["number"].append(exchange.number)
        columns["kind"].append(_KINDS.index(exchange.kind))
        columns["time"].append(exchange.time_ns - self._before)
        self._before = exchange.time_ns
        columns["name"].append(text[exchange.name])
        columns["script"].append(text[_only(ledger.by_script)])
        columns["error"].append(text[exchange.error])
        columns["cost"].append(self._costs[self._cost(ledger)])
        subjects = [
            (text[subject], cost.up, cost.down)
            for subject, cost in ledger.by_subject.items()
            if subject != _UNTOLD
        ]
        columns["subjects"].append(len(subjects))
        columns["subjects"] += (number for subject in subjects for number in subject)
        if exchange.queued:
            at = len(columns["number"]) - 1
            self._queued[at] = [frame.at for frame in exchange.queued]
        self._frames(exchange)

    def _cost(self, ledger: Ledger) -> tuple[int, ...]:
        return tuple(
            number
            for kind, cost in ledger.by_kind.items()
            if cost.up or cost.down
            for number in (self._text[kind], cost.up, cost.down)
        )

    def _frames(self, exchange: Exchange) -> None:
        annotated = annotate(exchange, self._scripts)
        column = self._columns["frames"]
        column.append(len(exchange.replies) * 2 + (exchange.request is not None))
        if exchange.request is not None:
            self._frame(exchange.request, annotated.request, exchange.time_ns)
        for reply, nodes in zip(exchange.replies, annotated.replies, strict=True):
            self._frame(reply, nodes, exchange.time_ns)

    def _frame(self, frame: Frame, nodes: list[Node], since: int) -> None:
        shape = tuple(self._shape(nodes, frame.at))
        self._columns["frames"] += (
            frame.at,
            frame.time_ns - since,
            frame.size,
            len(frame.data),
            self._shapes[shape],
        )
        self._data += frame.data

    def _shape(self, nodes: list[Node], base: int) -> Iterator[int]:
        """Answer a tree in order, each node as its depth, offset and a number for all the rest.

        Most of what a node is (its lengths, role and label) recurs in many shapes, too.
        """
        text = self._text
        work = [(node, 0) for node in reversed(nodes)]
        while work:
            node, depth = work.pop()
            part = (
                node.body - node.at,
                node.stop - node.body,
                node.end - node.stop,
                text[node.mark],
                text[node.role],
                text[node.label],
                text[node.error],
            )
            yield depth
            yield node.at - base
            yield self._parts[part]
            work += ((item, depth + 1) for item in reversed(node.items))

    def document(self, title: str, left_out: int) -> dict[str, Any]:
        return {
            "title": title,
            "left_out": left_out,
            "kinds": _KINDS,
            "text": list(self._text),
            "parts": list(self._parts),
            "shapes": list(self._shapes),
            "costs": list(self._costs),
            "queued": self._queued,
            "subject": next((lens.subjects for lens in self._lenses), "subjects"),
            **self._columns,
            "data": base64.b64encode(self._data).decode(),
        }


def _only(by_script: dict[str, Cost]) -> str:
    return next((name for name in by_script if name != _UNTOLD), "")


# Each of these would end the element, or a line of the script, before its time.
_ESCAPES: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def _json(document: object) -> str:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    return text.translate(_ESCAPES)


def _assemble(title: str, document: dict[str, Any]) -> str:
    style, script = _asset("page.css"), _asset("page.js")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'sha256-{_digest(script)}'",
            f"style-src 'sha256-{_digest(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    page = _asset("page.html")
    # One pass, so that nothing in a part can be taken for the place of another.
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(title),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": _json(document),
    }
    out: list[str] = []
    for index, piece in enumerate(page.split("%%")):
        out.append(parts[piece] if index % 2 else piece)
    return "".join(out)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


__all__ = ["KEEP", "LIMIT", "MAX_BYTES", "Page", "render", "write"]

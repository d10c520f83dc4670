"""What it cost: bytes and round trips by kind, by command, by script and by subject. Exact.

    ledger = Ledger(lenses=lenses())
    for exchange in tap.exchanges():
        ledger.add(exchange)
    print(*ledger.render(), sep="\\n")

Every byte of an exchange is of one kind, of one command, of one script or `(none)`, and of one
subject or `(none)`, so that each of the four tables adds up to the total, up and down.

**Round trips** are waits. A command begins a new one if, since the command before it on its
connection was sent, a reply came: only then can it have waited for one. So what is pipelined shares
one, however many writes it took. A command without a reply by design is in none. A row's round
trips are those in which it had a part, so that of a pipeline of ten commands each command's row
has one, and the total has one.

**Subjects** are what a lens finds in keys, arguments and replies: for a job bus, its jobs. Sent
bytes belong to the subjects named in the command; if it names none, to those in its reply. The
bytes of a reply belong the other way round. Where there are several, each has the bytes of what
names it, and of what lies beside it: a list that names one subject is that subject's; in a list
that names several by bare ids, what follows an id belongs to it up to the next one, and behind the
last as many items as behind the one before. The rest (framing, the command's name, a digest) is
split evenly; the first ones take one byte more where it does not divide. An exchange that concerns
several counts as one for each.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .chunk import check_number
from .meaning import Scripts, annotate

if TYPE_CHECKING:
    from .dialogue import Exchange, Frame
    from .frames import Node
    from .lens import Lens
    from .style import Style

KINDS: Final = (
    "framing",  # types, lengths, counts, CRLFs
    "command names",
    "digests",  # that stand for scripts
    "script bodies",
    "keys",
    "arguments",  # of commands, but for the next
    "payloads",  # what callers keep on the server: values, jobs
    "values",  # of replies, but for payloads and the next
    "statuses",  # OK, QUEUED, PONG
    "errors",
    "numbers",
    "malformed",  # no RESP, or not whole
    "not kept",  # the tail of a frame that is longer than what a tap keeps
)
"""What a byte may be, in the order of the tables."""

NONE: Final = "(none)"
OTHERS: Final = "(others)"

_SENT: Final = {
    "framing": "framing", "null": "framing", "command": "command names", "digest": "digests",
    "script": "script bodies", "key": "keys", "payload": "payloads", "status": "statuses",
    "error": "errors", "number": "arguments",
}  # fmt: skip
_RECEIVED: Final = {**_SENT, "number": "numbers"}

_BY_DIGEST: Final = frozenset({b"EVALSHA", b"EVALSHA_RO"})
_BY_SOURCE: Final = frozenset({b"EVAL", b"EVAL_RO"})
_BY_NAME: Final = frozenset({b"FCALL", b"FCALL_RO"})

_MOST_SUBJECTS: Final = 100_000  # some 60 MB of rows
_MOST_ROWS: Final = 10_000  # commands, scripts: names that a client makes up must end somewhere
_MOST_CONNECTIONS: Final = 10_000  # whose last round trip is remembered
_MOST_STEPS: Final = 64
_LONGEST_NAME: Final = 1024  # bytes in which a subject is looked for


class Kind(NamedTuple):
    """Bytes of one kind, each way."""

    up: int
    down: int


class Step(NamedTuple):
    """Exchanges of one script or command in a row, in the life of a subject.

    Attributes:
        name: The script's, or the command's.
        exchanges: How many.
        up, down: Bytes of the subject in them.
    """

    name: str
    exchanges: int
    up: int
    down: int


class Cost(NamedTuple):
    """What something cost.

    Attributes:
        exchanges: In which it had a part.
        round_trips: In which it had a part.
        up, down: Bytes sent and received.
        steps: Of a subject, what was done with it, in order: where the bytes went.
    """

    exchanges: int
    round_trips: int
    up: int
    down: int
    steps: tuple[Step, ...] = ()

    @property
    def size(self) -> int:
        """Bytes both ways."""
        return self.up + self.down


class _Row:
    """A row that is being added to."""

    __slots__ = ("down", "exchanges", "key", "round_trips", "steps", "up")

    def __init__(self, key: str, steps: list[_Step] | None = None) -> None:
        self.key = key
        self.exchanges = self.round_trips = self.up = self.down = 0
        self.steps = steps

    def cost(self) -> Cost:
        return Cost(self.exchanges, self.round_trips, self.up, self.down)


class _Step:
    __slots__ = ("down", "exchanges", "row", "up")

    def __init__(self, row: _Row | None) -> None:
        self.row = row  # of the script or command; None: what came behind the last that is told
        self.exchanges = self.up = self.down = 0


class _Table:
    """Rows by key: the first so many, and one for all others."""

    def __init__(self, most: int, *, told: bool = False) -> None:
        self.rows: dict[str, _Row] = {}
        self._most = most
        self._told = told

    def row(self, key: str) -> _Row:
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= self._most and key not in (NONE, OTHERS):
                return self.row(OTHERS)
            told = self._told and key not in (NONE, OTHERS)
            row = self.rows[key] = _Row(key, [] if told else None)
        return row


class _Line:
    """A connection's latest round trip."""

    __slots__ = ("answers", "trip")

    def __init__(self) -> None:
        self.answers: deque[int] = deque()  # when replies came, those after the latest command
        self.trip: set[_Row] = set()  # the rows that have counted it


class Ledger:
    """Bytes and round trips, added up.

    Args:
        scripts: Whose names and headers are known; what crosses is learned too. None begins with
            those of the lenses.
        lenses: Which find subjects. Without one, everything is of subject `(none)`.
        most: Subjects that get a row. Those seen after so many are summed up as `(others)`, so that
            memory is bounded and a row is always whole.

    Attributes:
        scripts: Those known by now.
    """

    def __init__(
        self,
        scripts: Scripts | None = None,
        lenses: Iterable[Lens] = (),
        *,
        most: int = _MOST_SUBJECTS,
    ) -> None:
        check_number("most", most)
        self._lenses = tuple(lenses)
        self.scripts = Scripts(self._lenses) if scripts is None else scripts
        self._find: list[Callable[[bytes], str | None]] = [lens.subject for lens in self._lenses]
        self._total = _Row("")
        self._up = dict.fromkeys(KINDS, 0)
        self._down = dict.fromkeys(KINDS, 0)
        self._commands = _Table(_MOST_ROWS)
        self._scripts = _Table(_MOST_ROWS)
        self._subjects = _Table(most, told=True)
        self._lines: dict[int, _Line] = {}

    def add(self, exchange: Exchange) -> None:
        """Count an exchange. Those of one connection come in the order in which they ended."""
        self.scripts.learn(exchange)
        annotated = annotate(exchange, self.scripts)
        request, replies = exchange.request, exchange.replies
        up, down = exchange.up, exchange.down
        received = [node for nodes in annotated.replies for node in nodes]
        sent_names, received_names = self._names(annotated.request), self._names(received)
        unseen = "malformed" if exchange.kind == "malformed" else "not kept"
        if request is not None:
            kinds = _Kinds(_SENT, "arguments", unseen, sent_names)
            kinds.count(annotated.request, request, self._up)
        kinds = _Kinds(_RECEIVED, "values", unseen, received_names)
        for nodes, reply in zip(annotated.replies, replies, strict=True):
            kinds.count(nodes, reply, self._down)

        command = self._commands.row(_command(exchange))
        script = self._scripts.row(_script(exchange))
        rows = [self._total, command, script]
        for row in rows:
            row.exchanges += 1
            row.up += up
            row.down += down
        rows += self._add_subjects(
            exchange,
            _owned(annotated.request, sent_names),
            _owned(received, received_names),
            command if script.key == NONE else script,
        )
        if request is not None and exchange.kind != "silent":
            self._add_round_trip(exchange, request, rows)

    def _add_subjects(
        self, exchange: Exchange, sent: dict[str, int], back: dict[str, int], did: _Row
    ) -> list[_Row]:
        up, down = exchange.up, exchange.down
        named = list(sent) or list(back)
        if not named and exchange.queued:
            named = list(
                dict.fromkeys(
                    found
                    for frame in exchange.queued
                    for word in frame.words or ()
                    if (found := self._subject(word)) is not None
                )
            )
        sent = _split(sent or dict.fromkeys(back or named, 0), up)
        back = _split(back or dict.fromkeys(named, 0), down)
        costs: dict[_Row, list[int]] = {}  # what is of several others is added up before it is told
        for way, shares in enumerate((sent, back)):
            for key, share in shares.items():
                costs.setdefault(self._subjects.row(key), [0, 0])[way] += share
        if not costs:
            costs[self._subjects.row(NONE)] = [0, 0]
        for row, (its_up, its_down) in costs.items():
            row.exchanges += 1
            row.up += its_up
            row.down += its_down
            if row.steps is not None:
                _tell(row.steps, did, its_up, its_down)
        return list(costs)

    def _add_round_trip(self, exchange: Exchange, request: Frame, rows: list[_Row]) -> None:
        lines = self._lines
        line = lines.get(exchange.connection)
        waited = line is None
        if line is None:
            if len(lines) >= _MOST_CONNECTIONS:
                del lines[next(iter(lines))]
            line = lines[exchange.connection] = _Line()
        answers, asked_ns = line.answers, request.time_ns
        while answers and answers[0] <= asked_ns:
            answers.popleft()
            waited = True
        if waited:
            line.trip.clear()
        for reply in exchange.replies[-1:]:
            if not answers or answers[-1] != reply.time_ns:
                answers.append(reply.time_ns)
        for row in rows:
            if row not in line.trip:
                line.trip.add(row)
                row.round_trips += 1

    # Subjects.

    def _subject(self, data: bytes) -> str | None:
        if len(data) <= _LONGEST_NAME:
            for find in self._find:
                found = find(data)
                if found is not None:
                    return found
        return None

    def _names(self, roots: Sequence[Node]) -> dict[int, str]:
        """The subjects that nodes name, by the nodes' offsets, in order."""
        names: dict[int, str] = {}
        if self._find:
            # A payload that happens to look like an id is no subject, where anything else is one.
            for payloads in (False, True):
                for node, role in _leaves(roots):
                    if isinstance(node.value, bytes) and (role == "payload") is payloads:
                        found = self._subject(node.value)
                        if found is not None:
                            names[node.at] = found
                if names:
                    break
        return names

    # What it says.

    @property
    def total(self) -> Cost:
        """Everything."""
        return self._total.cost()

    @property
    def by_kind(self) -> dict[str, Kind]:
        """Bytes by what they are: all of `KINDS`, in order."""
        return {kind: Kind(self._up[kind], self._down[kind]) for kind in KINDS}

    @property
    def by_command(self) -> dict[str, Cost]:
        """By command, the dearest first; `(push)` is what nobody asked for."""
        return _costs(self._commands.rows.values(), _key_of)

    @property
    def by_script(self) -> dict[str, Cost]:
        """By script, the dearest first: its name, or its digest; `(none)` is everything else.

        EVALSHA, EVAL and SCRIPT LOAD of one source are one script. What its calls answer inside of
        a transaction is EXEC's.
        """
        return _costs(self._scripts.rows.values(), self._script_name)

    @property
    def by_subject(self) -> dict[str, Cost]:
        """By subject, the dearest first, without steps; then `(others)`, and `(none)`."""
        return _costs(self._subjects.rows.values(), _key_of)

    @property
    def subjects(self) -> str:
        """What the subjects are: `jobs`; `""` without a lens."""
        return ", ".join(dict.fromkeys(lens.subjects for lens in self._lenses))

    def subject(self, name: str) -> Cost:
        """What one subject cost in its life, step by step; zeros for one that never was seen."""
        row = self._subjects.rows.get(name)
        if row is None:
            return Cost(0, 0, 0, 0)
        steps = (
            Step(self._did(step.row), step.exchanges, step.up, step.down)
            for step in row.steps or ()
        )
        return row.cost()._replace(steps=tuple(steps))

    def _did(self, row: _Row | None) -> str:
        if row is None:
            return "(more)"
        return row.key if self._commands.rows.get(row.key) is row else self._script_name(row)

    def _script_name(self, row: _Row) -> str:
        known = self.scripts.get(row.key) if row.key not in (NONE, OTHERS) else None
        return known.name if known is not None else row.key

    def as_json(self, *, most: int | None = None) -> dict[str, Any]:
        """All of it, for programs.

        Args:
            most: Rows of a table; what is beyond is summed up as `(others)`. None is all.
        """
        return {
            "total": _facts(self.total),
            "kinds": {kind: row._asdict() for kind, row in self.by_kind.items()},
            "commands": {name: _facts(row) for name, row in _first(self.by_command, most).items()},
            "scripts": {name: _facts(row) for name, row in _first(self.by_script, most).items()},
            "subjects_are": self.subjects,
            "subjects": {name: _facts(row) for name, row in _first(self.by_subject, most).items()},
        }

    def render(self, style: Style | None = None, *, most: int = 20) -> list[str]:
        """The tables, as lines of at most 100 characters.

        Args:
            style: Colours: `style.COLORS` for a terminal; None is without.
            most: Rows of a table; what is beyond is summed up as `(others)`.
        """
        check_number("most", most)
        total = self.total
        lines = [
            f"{_many(total.exchanges, 'exchange')}, {_many(total.round_trips, 'round trip')}, "
            f"{_many(total.up, 'byte')} up, {_many(total.down, 'byte')} down"
        ]
        kinds = {kind: Cost(0, 0, *row) for kind, row in self.by_kind.items() if row.up or row.down}
        lines += ["", *_table("kind", kinds, total, style, counts=False)]
        for heading, rows in (
            ("command", self.by_command),
            ("script", self.by_script),
            (_singular(self.subjects), self.by_subject),
        ):
            if set(rows) - {NONE}:
                lines += ["", *_table(heading, _first(rows, most), total, style)]
        return lines


# Bytes by kind.


class _Kinds:
    """Tells the kinds of one direction's bytes.

    Args:
        kinds: By role; `other` is the kind of what has another one.
        unseen: The kind of what a frame does not keep.
        names: Offsets of nodes that name a subject, which is no payload.
    """

    __slots__ = ("_kinds", "_names", "_other", "_unseen")

    def __init__(
        self, kinds: dict[str, str], other: str, unseen: str, names: Container[int]
    ) -> None:
        self._kinds = kinds
        self._other = other
        self._unseen = unseen
        self._names = names

    def count(self, roots: Iterable[Node], frame: Frame, counts: dict[str, int]) -> None:
        """Add a frame's bytes to `counts`: what is of no other kind is framing."""
        end, there = frame.at + frame.size, frame.at + len(frame.data)
        framing = frame.size
        known = there
        for node, role in _leaves(roots):
            if node.mark == "?":
                kind, stop = "malformed" if end == there else self._unseen, node.end
            else:
                # What a blob is of which the end is not kept, its header tells.
                stop = min(node.due, end)
                known = max(known, stop)
                if role == "payload" and node.at in self._names:
                    kind = self._other
                else:
                    kind = self._kinds.get(role, self._other)
            if kind != "framing":
                counts[kind] += stop - node.body
                framing -= stop - node.body
        if end - known > len("\r\n"):  # else it is the CRLF of the last
            counts[self._unseen] += end - known
            framing -= end - known
        counts["framing"] += framing


def _leaves(roots: Iterable[Node]) -> Iterator[tuple[Node, str]]:
    """The nodes without items, in order, and their roles; chunks have that of their string."""
    work = [(node, node.role) for node in roots]
    work.reverse()
    while work:
        node, role = work.pop()
        if not node.items:
            yield node, role
        else:
            work += [
                (item, role if item.mark == ";" else item.role) for item in reversed(node.items)
            ]


# Bytes by subject.


def _owned(roots: Sequence[Node], names: dict[int, str]) -> dict[str, int]:
    """The subjects named, in order, with the bytes of these nodes that are theirs alone."""
    owned = dict.fromkeys(names.values(), 0)
    if len(owned) > 1:
        _divide(roots, names, owned)
    return owned


def _divide(siblings: Sequence[Node], names: dict[int, str], owned: dict[str, int]) -> None:
    """Give what lies in `siblings` to the subjects named there."""
    runs: list[tuple[str, list[Node]]] = []  # after each bare id, what names nobody
    open_run = False
    for node in siblings:
        inside = {names[leaf.at] for leaf, _ in _leaves([node]) if leaf.at in names}
        if not inside:
            if open_run:
                runs[-1][1].append(node)
            continue
        open_run = False
        if len(inside) > 1:
            _divide(node.items, names, owned)
            continue
        [name] = inside
        owned[name] += node.end - node.at
        if not node.items and node.role != "key":
            runs.append((name, []))
            open_run = True
    for at, (name, beside) in enumerate(runs):
        last = at == len(runs) - 1
        most = len(beside) if not last else len(runs[at - 1][1]) if at else 0
        owned[name] += sum(node.end - node.at for node in beside[:most])


def _split(owned: dict[str, int], size: int) -> dict[str, int]:
    """What each subject has: its own, and its part of the rest of `size`; the sum is `size`."""
    if not owned:
        return {NONE: size} if size else {}
    each, more = divmod(size - sum(owned.values()), len(owned))
    return {name: share + each + (at < more) for at, (name, share) in enumerate(owned.items())}


def _tell(steps: list[_Step], did: _Row, up: int, down: int) -> None:
    if not steps or (steps[-1].row is not did and steps[-1].row is not None):
        steps.append(_Step(did if len(steps) < _MOST_STEPS else None))
    step = steps[-1]
    step.exchanges += 1
    step.up += up
    step.down += down


# What an exchange is of.


def _command(exchange: Exchange) -> str:
    if exchange.name:
        return exchange.name
    if exchange.kind == "malformed":
        return "(malformed)"
    return "(push)" if exchange.request is None else NONE


def _script(exchange: Exchange) -> str:
    """The digest of the script that is called or loaded, the function's name, or `(none)`."""
    words = exchange.request.words if exchange.request is not None else None
    if not words or len(words) < 2:
        return NONE
    verb = words[0].upper()
    if verb in _BY_DIGEST:
        return _printable(words[1].lower())
    if verb in _BY_SOURCE:
        return hashlib.sha1(words[1], usedforsecurity=False).hexdigest()
    if verb in _BY_NAME:
        return _printable(words[1])
    if verb == b"SCRIPT" and len(words) > 2 and words[1].upper() == b"LOAD":
        return hashlib.sha1(words[2], usedforsecurity=False).hexdigest()
    return NONE


def _printable(name: bytes) -> str:
    return name[:64].decode("latin-1").encode("unicode_escape").decode("ascii")


# Tables.


def _key_of(row: _Row) -> str:
    return row.key


def _costs(rows: Iterable[_Row], name_of: Callable[[_Row], str]) -> dict[str, Cost]:
    """Costs by name, the dearest first; rows of one name are added up."""
    costs: dict[str, Cost] = {}
    for row in rows:
        name = name_of(row)
        cost = row.cost()
        costs[name] = _sum((costs[name], cost)) if name in costs else cost
    return dict(
        sorted(costs.items(), key=lambda item: (item[0] == NONE, item[0] == OTHERS, -item[1].size))
    )


def _sum(costs: Iterable[Cost]) -> Cost:
    exchanges, round_trips, up, down = map(sum, zip(*(cost[:4] for cost in costs), strict=True))
    return Cost(exchanges, round_trips, up, down)


def _first(rows: dict[str, Cost], most: int | None) -> dict[str, Cost]:
    """The first rows and, as one, the others; `(none)` stays."""
    if most is not None:
        check_number("most", most)
    if most is None or len(rows) <= most:
        return rows
    none = rows.get(NONE)
    others = [(name, cost) for name, cost in rows.items() if name != NONE]
    first = dict(others[:most])
    rest = [cost for _, cost in others[most:]]
    if OTHERS in first:
        rest.append(first.pop(OTHERS))
    if rest:
        first[OTHERS] = _sum(rest)
    if none is not None:
        first[NONE] = none
    return first


def _facts(cost: Cost) -> dict[str, Any]:
    facts = cost._asdict()
    steps = facts.pop("steps")
    return {**facts, "steps": [step._asdict() for step in steps]} if steps else facts


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _singular(subjects: str) -> str:
    return subjects.removesuffix("s") or "subject"


_NAME: Final = 34  # characters of a row's name
_BAR: Final = 16
_COLOR: Final = {
    "framing": "framing", "command names": "command", "digests": "digest",
    "script bodies": "script", "keys": "key", "payloads": "payload", "statuses": "status",
    "errors": "error", "numbers": "number", "malformed": "malformed", "not kept": "faint",
    NONE: "faint", OTHERS: "faint",
}  # fmt: skip
"""Roles whose colours the rows of tables have."""


def _table(
    heading: str,
    rows: dict[str, Cost],
    total: Cost,
    style: Style | None,
    *,
    counts: bool = True,
) -> Iterator[str]:
    columns = [*(("exchanges", "trips") if counts else ()), "up", "down", "share"]
    cells = [[heading, *columns]]
    for name, cost in rows.items():
        if len(name) > _NAME:
            name = f"{name[: _NAME - 3]}..."
        share = cost.size / total.size if total.size else 0.0
        count = [f"{cost.exchanges:,}", f"{cost.round_trips:,}"] if counts else []
        cells.append([name, *count, f"{cost.up:,}", f"{cost.down:,}", f"{share:.1%}"])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sizes = [cost.size for cost in rows.values()]
    longest = max(sizes, default=0)
    for at, (name, *numbers) in enumerate(cells):
        padded = "  ".join(
            [
                name.ljust(widths[0]),
                *(text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)),
            ]
        )
        if not at:
            yield padded if style is None else style.paint("title", padded)
            continue
        size = sizes[at - 1]
        bar = "#" * max(1, round(_BAR * size / longest)) if size else ""
        line = f"{padded}  {bar}".rstrip()
        yield line if style is None else style.paint(_COLOR.get(name.rstrip(), ""), line)


__all__ = ["KINDS", "NONE", "OTHERS", "Cost", "Kind", "Ledger", "Step"]

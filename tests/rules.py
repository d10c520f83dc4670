"""What must hold at a queue, looked at behind the code's back.

A `Look` is all that the queue's keys hold. `judge` says which rules of `tests.explored.WATCHED` a
step broke, from what was said and answered and the looks before and after it; `standing` says which
a state breaks by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Final, NamedTuple, TypeGuard

import emq.scripts
from resp import Command, ErrorReply, Script, ScriptCall
from tests.explored import PAST, SHORT

_TIMED: Final = ("active", "schedule", "parked")  # sets whose scores are times
_PLACES: Final = {"pending": "pending", "active": "active", "schedule": "scheduled", "dead": "dead"}
_ID_BYTES: Final = 14

# The keys of the database, sorted, and a digest of all that they hold, byte for byte.
_BYTES: Final = """
local keys = redis.call('KEYS', '*')
table.sort(keys)
local dumps = {}
for i, key in ipairs(keys) do
  dumps[i] = redis.call('DUMP', key)
end
local digest = redis.sha1hex(table.concat(keys, ' ') .. table.concat(dumps))
"""
# Each of them, with the time of the look.
_LOOK: Final = """
local read = {
  string = function(key) return redis.call('GET', key) end,
  hash = function(key) return redis.call('HGETALL', key) end,
  set = function(key) return redis.call('SMEMBERS', key) end,
  list = function(key) return redis.call('LRANGE', key, '0', '-1') end,
  zset = function(key) return redis.call('ZRANGE', key, '0', '-1', 'WITHSCORES') end,
}
local found = { now(), digest }
for i, key in ipairs(keys) do
  local kind = redis.call('TYPE', key).ok
  found[#found + 1] = { key, kind, redis.call('PTTL', key), dumps[i], read[kind](key) }
end
return found
"""
_NOW: Final = """
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""
_PUT: Final = """
redis.call('FLUSHDB', 'SYNC')
local at, start = 1, now()
while ARGV[at] do
  local key, ttl, dump, scores = unpack(ARGV, at, at + 3)
  at = at + 4
  if dump ~= '' then
    redis.call('RESTORE', key, ttl, dump)
  end
  for _ = 1, scores do
    local score, member = ARGV[at], ARGV[at + 1]
    if string.sub(score, 1, 1) == '+' then
      score = string.format('%.0f', start + score * 1000)
    end
    redis.call('ZADD', key, score, member)
    at = at + 2
  end
  if dump == '' and ttl ~= '0' then
    redis.call('PEXPIRE', key, ttl)
  end
end
"""
LOOK: Final = Script("look", _NOW + _BYTES + _LOOK)
PUT: Final = Script("put", _NOW + _PUT + _BYTES + "return digest")

TRANSITIONS: Final = {name: getattr(emq.scripts, name.upper()) for name in emq.scripts.names()}


class Look:
    """What the queue's keys hold, in a form to compare and to put back.

    Attributes:
        values: By the key's name after the base; scores in the future are `+<seconds>`.
        key: The same, to find an equal look by.
        digest: Of all that they hold, byte for byte.
    """

    def __init__(self, base: str, reply: Sequence[Any]) -> None:
        now, self.digest, *entries = reply
        self._base = base
        self.values: dict[str, Any] = {}
        self._dumps: dict[str, bytes] = {}
        self._ttls: dict[str, int] = {}
        for key, kind, ttl, dump, value in entries:
            name = key.decode().removeprefix(base)
            self._dumps[name] = dump
            self._ttls[name] = max(0, ttl)
            pairs = value[0::2], value[1::2]
            if kind == b"hash":
                self.values[name] = tuple(sorted(zip(*pairs, strict=True)))
            elif name in _TIMED:
                scores = (_relative(int(score), now) for score in pairs[1])
                self.values[name] = tuple(sorted(zip(pairs[0], scores, strict=True)))
            elif kind == b"zset":
                self.values[name] = tuple(pairs[0])
            elif kind == b"set":
                self.values[name] = tuple(sorted(value))
            else:
                self.values[name] = tuple(value) if kind == b"list" else value
        lasting = tuple(ttl > 0 for ttl in self._ttls.values())
        self.key = (*self.values.items(), lasting)

    def put(self) -> ScriptCall:
        """Make the queue be so again."""
        args: list[Any] = []
        for name, value in self.values.items():
            timed = name in _TIMED
            args += [self._base + name, self._ttls[name], b"" if timed else self._dumps[name]]
            args.append(len(value) if timed else 0)
            if timed:
                for member, score in value:
                    args += [score, member]
        return PUT((), args)

    @cached_property
    def rows(self) -> dict[str, dict[str, str]]:
        """Each job's row, by its id."""
        found: dict[str, dict[str, str]] = {}
        for name, value in self.values.items():
            kind, _, id = name.partition(":")
            if kind == "job" and len(id) == _ID_BYTES:
                found[id] = {field.decode(): text.decode() for field, text in value}
        return found

    @cached_property
    def places(self) -> dict[str, list[str]]:
        """The places that each id is in; a lane is one, by its key's name."""
        found: dict[str, list[str]] = {id: [] for id in self.rows}
        for name, value in self.values.items():
            if name in _PLACES or (name.startswith("g:") and name.endswith(":pending")):
                for entry in value:
                    id = (entry[0] if name in _TIMED else entry).decode()
                    found.setdefault(id, []).append(name)
        return found

    def place(self, id: str) -> str | None:
        """Where a job is; a lane counts as pending."""
        found = self.places.get(id)
        if not found:
            return None
        return "pending" if found[0].startswith("g:") else found[0]

    def inside(self, place: str) -> list[str]:
        return [id for id, found in self.places.items() if place in found]

    def field(self, name: str, field: str) -> str | None:
        """A field of a hash."""
        for key, value in self.values.get(name, ()):
            if key == field.encode():
                return str(value.decode())
        return None

    def left(self) -> list[str]:
        """The keys that belong to jobs that are gone.

        An outcome is kept for who asked for it; what a parent was told by its children stays.
        """
        found = []
        for name, value in self.values.items():
            kind, _, rest = name.partition(":")
            owner, _, part = rest.partition(":")
            if kind == "de":
                owner, part = value.decode(), "key"
            elif kind != "job":
                continue
            if part in ("logs", "lock", "key") and owner not in self.rows:
                found.append(name)
        return found

    @cached_property
    def faults(self) -> list[Breach]:
        """The rules that the keys break by themselves."""
        return list(_faults(self))

    def ended(self, how: str) -> int:
        return int(self.field(f"metrics:{how}", "count") or 0)

    def holds(self, id: str, token: int) -> bool:
        """Whether a token is that of a job's last claim."""
        return token > 0 and self.rows.get(id, {}).get("attempts") == str(token)

    def told(self) -> str:
        """In one line, for a reader."""
        parts = []
        for name, value in self.values.items():
            if name in _TIMED:
                shown = [f"{text_of(m)}{'' if s.startswith('+') else ' (over)'}" for m, s in value]
            elif name in _PLACES or name.startswith("g:") or name in ("ring", "paused", "rouse"):
                shown = [text_of(member) for member in value]
            else:
                continue
            parts.append(f"{text_of(name)}: {' '.join(shown)}")
        for id, row in self.rows.items():
            parts.append(f"row {text_of(id)}: {row.get('state')} {row.get('attempts')}")
        return "; ".join(parts) or "no job"


def _relative(score: int, now: int) -> str:
    if score <= now:
        return str(PAST)
    return f"+{max(1, round((score - now) / 1000))}"


def text_of(value: Any) -> str:
    """A reply or a name as text, with the jobs' short names."""
    if isinstance(value, ErrorReply):
        told = value.message
    elif isinstance(value, bytes):
        told = value.decode("utf-8", "backslashreplace")
    elif isinstance(value, list):
        told = f"[{', '.join(map(text_of, value))}]"
    else:
        told = "nil" if value is None else str(value)
    for id, short in SHORT.items():
        told = told.replace(id, short)
    return told


@dataclass(frozen=True)
class Ledger:
    """What was settled so far, by what was answered.

    Attributes:
        done: The jobs that were completed, and are not enqueued anew.
        completed, failed: How many ended either way, as the metrics should have it.
    """

    done: frozenset[str]
    completed: int
    failed: int


class Breach(NamedTuple):
    """A rule that does not hold: which of `WATCHED`, and how."""

    rule: str
    told: str


def is_script(command: Command) -> TypeGuard[ScriptCall]:
    return isinstance(command, ScriptCall)


# What an answer claims, and whether the queue agrees.

_SETTLING: Final = frozenset({"complete", "complete_and_claim", "retry", "delay"})
_HOLDING: Final = frozenset({"extend", "lock", "progress", "log"})
_HOLDING_MANY: Final = frozenset({"extend_many", "give_back"})
_MOVES: Final = {"reap": ("active", "pending"), "promote": ("schedule", "pending")}
_READING: Final = frozenset({"counts", "state"})


def judge(
    command: Command, reply: Any, before: Look, after: Look, same: bool, ledger: Ledger
) -> tuple[Ledger, list[Breach]]:
    """Answer the ledger after a step, and the rules that the step broke.

    Args:
        same: No byte has changed.
    """
    breaches: list[Breach] = []
    if is_script(command) and command.script.name in TRANSITIONS:
        call = _Call(command, reply, before, after, same)
        ledger = call.enter(ledger)
        breaches = call.breaches
        gone = before.rows.keys() - after.rows.keys() - call.may_end()
        breaches += [Breach("lost", f"{text_of(id)} is gone") for id in sorted(gone)]
    elif isinstance(reply, ErrorReply):
        breaches.append(Breach("answer", reply.message))
    return ledger, breaches + standing(after, ledger)


class _Call:
    """A transition's call: what it was told and answered, and what it did."""

    def __init__(
        self, command: ScriptCall, reply: Any, before: Look, after: Look, same: bool
    ) -> None:
        self.name = command.script.name
        self.reply = reply
        self.before = before
        self.after = after
        self.same = same
        self.breaches: list[Breach] = []
        header = TRANSITIONS[self.name].header
        self._args: dict[str, Any] = {}
        for names, values in ((header.keys, command.keys), (header.args, command.args)):
            for at, parameter in enumerate(names):
                rest = values[at:]
                if parameter.rest:
                    self._args[parameter.name] = [_string(value) for value in rest]
                else:
                    self._args[parameter.name] = _string(rest[0]) if rest else None
        row = self._args.get("row")
        self.id = row.rpartition(":")[2] if row else ""

    def enter(self, ledger: Ledger) -> Ledger:
        """Check the call; answer the ledger with what it settled."""
        refused = isinstance(self.reply, ErrorReply)
        if refused and not self.reply.code.startswith("EMQ"):
            self._breach("answer", self.reply.message)
        silent = refused or self.name in _READING or self._answers("nothing written")
        if silent and not self.same:
            self._breach("refused", f"{self.name} answered {text_of(self.reply)}, but wrote")
        for token, id, payload in self._claimed():
            self._check_claim(id, token, payload)
        return self._entered(ledger, accepted=not refused and self.reply != 0)

    def _entered(self, ledger: Ledger, *, accepted: bool) -> Ledger:
        name, before, after = self.name, self.before, self.after
        if name in _SETTLING or name in _HOLDING:
            self._check_holder(accepted)
        elif name in _HOLDING_MANY and accepted:
            self._check_holders()
        elif name == "claim" and self.reply is None:
            self._check_nothing()
        elif name in ("take", "leave") and accepted:
            waits = name == "take" and len(self.reply) == 2 and self.reply[0] > 0
            parked = dict(after.values.get("parked", ()))
            if (self._args["waiter"].encode() in parked) != waits:
                self._breach(
                    "wake", f"after {name} its worker {'is not' if waits else 'is'} parked"
                )
        elif name == "state":
            self._check_state()
        elif name == "counts":
            found = [len(before.inside(place)) for place in _PLACES]
            if self.reply != [*found, before.ended("completed"), before.ended("failed")]:
                self._breach("answer", f"there are {found}, not {self.reply}")
        elif name in _MOVES and isinstance(self.reply, int):
            place, to = _MOVES[name]
            moved = [id for id in before.inside(place) if after.place(id) == to]
            if self.reply != len(moved):
                self._breach("answer", f"{name} moved {len(moved)}, not {self.reply}")
        elif name in ("repair", "recount") and self.reply:
            self._breach("answer", f"nothing was wrong, but {name} found {text_of(self.reply)}")

        match name:
            case "complete" | "complete_and_claim" if accepted:
                ledger, more = completed(ledger, self.id)
                self.breaches += more
                return replace(ledger, completed=ledger.completed + 1)
            case "retry" if self.reply == b"dead":
                return replace(ledger, failed=ledger.failed + 1)
            case "sweep_stalled" | "take" if accepted:
                return replace(ledger, failed=ledger.failed + len(self.reply[1]))
            case "enqueue" | "enqueue_many":
                return replace(ledger, done=ledger.done.difference(after.rows))
            case "forget" if self.reply == 0:
                kept = set(self._args["suffixes"])
                return replace(
                    ledger,
                    completed=0 if "metrics:completed" in kept else ledger.completed,
                    failed=0 if "metrics:failed" in kept else ledger.failed,
                )
        return ledger

    def may_end(self) -> frozenset[str]:
        """The jobs that are rightly gone after this call."""
        before = self.before
        match self.name:
            case "complete" | "complete_and_claim" | "remove":
                return frozenset({self.id})
            case "drain":
                return frozenset(before.inside(self._args["place"]))
            case "obliterate" | "forget":
                return frozenset(before.rows)
        return frozenset()

    def _check_holder(self, accepted: bool) -> None:
        token = self._args["token"]
        if token is None:
            return  # an operator's, whom no token binds
        places = ("active",) if self.name == "extend" else ("active", "pending")
        self._fence(self.id, int(token), places, accepted)
        if not accepted:
            return
        match self.name:
            case "complete" | "complete_and_claim":
                self._expect(self.id, None)
            case "retry":
                self._expect(self.id, "dead" if self.reply == b"dead" else "schedule")
            case "delay":
                self._expect(self.id, "schedule")
            case _:
                self._expect(self.id, self.before.place(self.id))

    def _check_holders(self) -> None:
        held = self._args["held"]
        lost = {id.decode() for id in self.reply}
        for id, token in zip(held[0::2], held[1::2], strict=True):
            self._fence(id, int(token), ("active",), id not in lost)
            if id not in lost:
                self._expect(id, "active" if self.name == "extend_many" else "pending")
        if len(lost) * 2 == len(held) and not self.same:
            self._breach("refused", f"{self.name} had nothing to do, but wrote")

    def _fence(self, id: str, token: int, places: tuple[str, ...], accepted: bool) -> None:
        held = self.before.holds(id, token) and self.before.place(id) in places
        if held != accepted:
            row = self.before.rows.get(id, {})
            verdict = "was accepted" if accepted else "was refused"
            self._breach(
                "fence",
                f"{self.name} of {text_of(id)} with token {token} {verdict}; its row's attempts "
                f"are {row.get('attempts')}, its place is {self.before.place(id)}",
            )

    def _expect(self, id: str, place: str | None) -> None:
        if self.after.place(id) != place:
            self._breach(
                "place",
                f"after {self.name} {text_of(id)} is in {self.after.place(id)}, not in {place}",
            )

    def _check_claim(self, id: str, token: int, payload: bytes) -> None:
        row = self.before.rows.get(id, {})
        if str(token - 1) != row.get("attempts") or not self.after.holds(id, token):
            self._breach("fence", f"{text_of(id)} was claimed with token {token}")
        if payload.decode() != row.get("payload"):
            self._breach("answer", f"{text_of(id)} was claimed without its payload")
        # What is due may have been promoted, and a parent set free, in the same step.
        place = self.before.place(id)
        waits = row.get("state") == "awaiting_children"
        ready = {"take": place in ("schedule", "active"), "complete_and_claim": waits}
        if not ready.get(self.name) and id not in self.before.inside("pending"):
            self._breach("fence", f"{text_of(id)} was claimed out of {place}")
        self._expect(id, "active")

    def _claimed(self) -> Iterator[tuple[int, str, bytes]]:
        reply = self.reply
        match self.name:
            case "claim" | "complete_and_claim":
                claimed = [reply] if isinstance(reply, list) else []
            case "claim_many":
                claimed = reply if isinstance(reply, list) else []
            case "take":
                claimed = reply[2:] if isinstance(reply, list) else []
            case _:
                claimed = []
        for id, payload, token, *_ in claimed:
            yield token, id.decode(), payload

    def _check_nothing(self) -> None:
        if _claimable(self.before):
            self._breach("answer", "there was a job to claim, but none was claimed")

    def _check_state(self) -> None:
        place = self.before.place(self.id)
        row = self.before.rows.get(self.id)
        told = _PLACES[place] if place else row["state"] if row else None
        if self.reply != (told.encode() if told else None):
            self._breach("answer", f"{text_of(self.id)} is {told}, not {text_of(self.reply)}")

    def _answers(self, meaning: str) -> bool:
        """Whether the header says so of this answer."""
        return (self.name, text_of(self.reply)) in _meaning(meaning)

    def _breach(self, rule: str, told: str) -> None:
        self.breaches.append(Breach(rule, told))


@cache
def _meaning(words: str) -> frozenset[tuple[str, str]]:
    """The transitions' answers that mean so, by their headers."""
    return frozenset(
        (name, answer.text)
        for name, transition in TRANSITIONS.items()
        for answer in transition.header.returns
        if words in answer.meaning
    )


def _string(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def completed(ledger: Ledger, id: str) -> tuple[Ledger, list[Breach]]:
    twice = [Breach("twice", f"{text_of(id)} is completed again")] if id in ledger.done else []
    return replace(ledger, done=ledger.done | {id}), twice


def _claimable(look: Look) -> bool:
    """Whether a claim must find a job."""
    most = int(look.field("meta", "concurrency") or 0)
    room = most == 0 or len(look.inside("active")) < most
    return bool(look.inside("pending")) and room and look.field("meta", "paused") is None


def standing(look: Look, ledger: Ledger) -> list[Breach]:
    """Answer which rules a state breaks, whatever led to it."""
    return look.faults + [
        Breach("count", f"{number} {how}, but counted {look.ended(how)}")
        for how, number in (("completed", ledger.completed), ("failed", ledger.failed))
        if look.ended(how) != number
    ]


def _faults(look: Look) -> Iterator[Breach]:
    for id, found in look.places.items():
        row = look.rows.get(id)
        state = row and row.get("state")
        own = f"g:{row['group']}:pending" if row and "group" in row else "pending"
        fits = {own: "pending", "active": "active", "schedule": "scheduled", "dead": "dead"}
        waits = state == "awaiting_children" and not found
        if [fits.get(place) for place in found] != [state] and not waits:
            told = " and ".join(map(text_of, found)) or "no place"
            yield Breach("place", f"{text_of(id)} is in {told}, and its row says {state}")
    yield from (Breach("left", f"{text_of(name)} is there") for name in look.left())
    yield from _lanes(look)
    if "parked" in look.values and _claimable(look) and "rouse" not in look.values:
        yield Breach("wake", "a job can be claimed, but no parked worker is woken")


def _lanes(look: Look) -> Iterator[Breach]:
    ring = [group.decode() for group in look.values.get("ring", ())]
    counted = {group.decode() for group, _ in look.values.get("gactive", ())}
    groups = {row["group"] for row in look.rows.values() if "group" in row}
    for group in sorted(groups | counted | set(ring)):
        active = sum(
            row.get("group") == group and look.place(id) == "active"
            for id, row in look.rows.items()
        )
        if (look.field("gactive", group) or "0") != str(active):
            yield Breach("count", f"{active} of {text_of(group)} are active, not as counted")
        limit = int(look.field("glimit", group) or active + 1)
        paused = group.encode() in look.values.get("paused", ())
        served = f"g:{group}:pending" in look.values and not paused and active < limit
        if ring.count(group) != served:
            yield Breach("count", f"{text_of(group)} is {ring.count(group)} times in the ring")

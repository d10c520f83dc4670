"""What is wrong with a server and its queues, step by bounded step, and how some of it is mended.

A job's row and its places are compared, and mended, in one script: what has moved meanwhile is
looked at where it is then, and a job that is right is never touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from resp import Command, Plan, ServerError

from ..discover import queues_of, scan
from ..ids import received_job_id, valid
from ..keyspace import VERSION_KEY, Keyspace, hashtag
from ..scripts import RECOUNT, REPAIR, Transition
from .reads import answered

PLACES: Final = ("pending", "active", "schedule", "dead")

_STEP: Final = 500  # entries of a place that one step reads
_LOOKED_AT: Final = 200  # names that one call of the script looks at: about a ms of the server's
_COUNTED: Final = 5000  # jobs in active that a recount reads


class Server(NamedTuple):
    """What a server says of itself. What it would not say is None.

    Attributes:
        version: The wire version it belongs to; None where it is nobody's.
        policy: Its maxmemory-policy.
        saves: The conditions under which it saves itself to disk; "" if never.
        appends: It keeps an append-only file.
        replica: It follows another server.
        used, most: The memory it uses and may use, in bytes; `most` is 0 without a limit.
    """

    version: bytes | None
    policy: str | None
    saves: str | None
    appends: bool | None
    replica: bool | None
    used: int | None
    most: int | None


class Standing(NamedTuple):
    """A queue's standing, apart from its jobs.

    Attributes:
        wrong_types: The keys that hold another type than theirs, by suffix, with both types.
        lapsed: How many leases ended long ago.
        overdue: How many scheduled jobs fell due long ago.
        paused: Nothing is claimed.
        miscounted: The groups whose count of jobs in flight is wrong: what it says, and what is.
    """

    wrong_types: Mapping[str, tuple[str, str]]
    lapsed: int
    overdue: int
    paused: bool
    miscounted: Mapping[str, tuple[str, str]]


class Fault(NamedTuple):
    """Something that is wrong with a job, or with a key of one.

    Attributes:
        name: The job's id; `g:<group>:<id>`, an entry of a lane; or `de:<dedup>`, a key.
        fault: Which it is, in a word of the script's header, or `alien` (a member of a place is no
            job's id) or `unreadable`.
        detail: More of it, in the script's words.
        mended: It is right now.
    """

    name: str
    fault: str
    detail: str
    mended: bool


class Found(NamedTuple):
    """What one step over the keys met, by queue.

    Attributes:
        names: What to look at.
        lanes: The groups that have a lane.
    """

    names: Mapping[str, list[str]]
    lanes: Mapping[str, list[str]]


def ask() -> Plan[Server]:
    """Answer what the server says of itself."""
    flush: list[Command] = [
        ("GET", VERSION_KEY),
        ("CONFIG", "GET", "maxmemory-policy"),
        ("CONFIG", "GET", "save"),
        ("CONFIG", "GET", "appendonly"),
        ("INFO", "memory"),
        ("INFO", "replication"),
        ("INFO", "persistence"),
    ]
    version, policy, saves, appends, memory, replication, persistence = yield flush
    appended = _setting(appends) or _info(persistence, "aof_enabled")
    role = _info(replication, "role")
    return Server(
        version=answered("GET", version),
        policy=_setting(policy) or _info(memory, "maxmemory_policy"),
        saves=_setting(saves),
        appends=None if appended is None else appended in ("yes", "1"),
        replica=None if role is None else role != "master",
        used=_size(_info(memory, "used_memory")),
        most=_size(_info(memory, "maxmemory")),
    )


def standing(keys: Keyspace, now: int, long_ms: int, mend: bool) -> Plan[Standing]:
    """Answer how a queue is, apart from its jobs.

    Args:
        now: The server's time, in ms since 1970.
        long_ms: What ended or fell due more than this ago was forgotten.
        mend: Set the counts of jobs in flight right.
    """
    flush: list[Command] = [("TYPE", keys.base + suffix) for suffix in _TYPES]
    replies = yield flush
    wrong = {
        suffix: (found, right)
        for (suffix, right), reply in zip(_TYPES.items(), replies, strict=True)
        if (found := str(answered("TYPE", reply))) not in ("none", right)
    }
    lapsed = overdue = 0
    paused = False
    miscounted: dict[str, tuple[str, str]] = {}
    if "active" not in wrong:
        lapsed = yield from _count(keys.active, now - long_ms)
    if "schedule" not in wrong:
        overdue = yield from _count(keys.schedule, now - long_ms)
    if "meta" not in wrong:
        paused = answered("HGET", (yield ("HGET", keys.meta, "paused"))) is not None
    if not {"active", "gactive", "glimit", "ring", "paused", "wake"}.intersection(wrong):
        reply = yield from RECOUNT(base=keys.base, mend=int(mend), limit=_COUNTED)
        texts = _texts(RECOUNT, [] if reply is None else reply, 3)
        miscounted = {group: (said, held) for group, said, held in texts}
    return Standing(wrong, lapsed, overdue, paused, miscounted)


def walk(cursor: bytes, pattern: str) -> Plan[tuple[bytes, Found]]:
    """Answer one step over the keys of queues: the next cursor, `0` at the end, and what it met."""
    cursor, keys = yield from scan(cursor, pattern)
    names: dict[str, dict[str, None]] = {}
    lanes: dict[str, dict[str, None]] = {}
    queues = queues_of(keys)
    for key in keys:
        queue = hashtag(key).decode("latin-1")
        if queue not in queues or not key.startswith(b"emq:{"):
            continue
        names.setdefault(queue, {})
        suffix = key[len(queue) + len("emq:{}:") :].decode("utf-8", "surrogateescape")
        if (found := _row(suffix)) and received_job_id(found[1].encode("utf-8", "replace")):
            names[queue][found[1]] = None
        elif (found := _lane(suffix)) and valid(found[1]):
            lanes.setdefault(queue, {})[found[1]] = None
        elif _dedup(suffix):
            names[queue][suffix] = None
    return cursor, Found(
        {queue: list(some) for queue, some in names.items()},
        {queue: list(some) for queue, some in lanes.items()},
    )


def entries(key: str, cursor: bytes) -> Plan[tuple[bytes, list[bytes]]]:
    """Answer one step over a place's entries: the next cursor, `0` at the end, and its members."""
    reply = answered("ZSCAN", (yield ("ZSCAN", key, cursor, "COUNT", _STEP)))
    following, flat = reply
    return following, [item[0] for item in flat] if _paired(flat) else flat[::2]


def named(members: Iterable[bytes], group: str | None = None) -> tuple[list[str], list[Fault]]:
    """Answer what to look at of a place's entries, and the faults of those that are no ids.

    Args:
        group: The place is the lane of this group.
    """
    names, faults = [], []
    for member in members:
        id = received_job_id(member)
        if id is None:
            text = member.decode("utf-8", "surrogateescape")
            faults.append(Fault(text, "alien", "" if group is None else group, False))
        else:
            names.append(id if group is None else f"g:{group}:{id}")
    return names, faults


def look(keys: Keyspace, names: list[str], mend: bool) -> Plan[list[Fault]]:
    """Answer what is wrong with jobs and keys of jobs, and mend what can be mended safely.

    Args:
        names: As `Fault.name`, at most a few thousand.
        mend: Mend; else only look.
    """
    faults: list[Fault] = []
    for at in range(0, len(names), _LOOKED_AT):
        found = yield from _look(keys, names[at : at + _LOOKED_AT], False)
        faulty = list(dict.fromkeys(each.name for each in found if each.fault != "unreadable"))
        if mend and faulty:
            # Looked at anew in the step that mends; what has moved meanwhile may be right by now.
            found = [each for each in found if each.fault == "unreadable"]
            found += yield from _look(keys, faulty, True)
        faults += found
    return faults


def _look(keys: Keyspace, names: list[str], mend: bool) -> Plan[list[Fault]]:
    try:
        reply = yield from REPAIR(base=keys.base, mend=int(mend), names=names)
    except ServerError as error:
        # A row that is none ends the script: the names are halved until it stands alone.
        if error.code != "WRONGTYPE":
            raise
        if len(names) == 1:
            return [Fault(names[0], "unreadable", error.message, False)]
        half = len(names) // 2
        first = yield from _look(keys, names[:half], mend)
        return first + (yield from _look(keys, names[half:], mend))
    return [
        Fault(name, fault, detail, mended == "1")
        for name, fault, detail, mended in _texts(REPAIR, reply, 4)
    ]


_TYPES: Final = {
    **dict.fromkeys(PLACES, "zset"),
    **dict.fromkeys(("repeat", "parked"), "zset"),
    **dict.fromkeys(("ring", "wake", "rouse", "flow:outbox"), "list"),
    **dict.fromkeys(("glimit", "gactive", "gweight", "meta"), "hash"),
    **dict.fromkeys(("metrics:completed", "metrics:failed"), "hash"),
    "paused": "set",
    "limiter": "string",
}

_row = re.compile(r"job:([^:]+)(?::lock)?").fullmatch
_lane = re.compile(r"g:([^:]+):pending").fullmatch
_dedup = re.compile(r"de:[A-Za-z0-9._-]{1,255}").fullmatch


def _count(key: str, until: int) -> Plan[int]:
    count: int = answered("ZCOUNT", (yield ("ZCOUNT", key, "-inf", until)))
    return count


def _texts(script: Transition, reply: Any, width: int) -> Iterator[list[str]]:
    """The texts of a script's answer, a few at a time."""
    flat = isinstance(reply, list) and all(isinstance(text, bytes) for text in reply)
    if not flat or len(reply) % width:
        raise script.unexpected(reply)
    texts = [text.decode("utf-8", "surrogateescape") for text in reply]
    for at in range(0, len(texts), width):
        yield texts[at : at + width]


def _paired(flat: Any) -> bool:
    return bool(flat) and isinstance(flat[0], list)


def _setting(reply: Any) -> str | None:
    """What CONFIG GET answers for one name: a map in RESP3, a list in RESP2; None if refused."""
    if isinstance(reply, dict):
        values = list(reply.values())
    else:
        values = reply[1:] if isinstance(reply, list) else []
    return values[0].decode("utf-8", "replace") if values else None


def _info(reply: Any, name: str) -> str | None:
    if not isinstance(reply, bytes):
        return None
    found = re.search(rf"^{name}:(.*?)\r?$".encode(), reply, re.MULTILINE)
    return found[1].decode("utf-8", "replace") if found else None


def _size(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


__all__ = [
    "PLACES",
    "Fault",
    "Found",
    "Server",
    "Standing",
    "ask",
    "entries",
    "look",
    "named",
    "standing",
    "walk",
]

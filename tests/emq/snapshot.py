"""What a queue's keys hold: as bytes, to see that nothing changed, and in a form to compare.

A key's entry is `type`, `value`, and `ttl` or `field_ttl` where there are any. Bytes are text, or
`{"hex": ...}` where they are not printable. In a stored entry a score may be `{"now_plus": ms}`
against the server's clock, and a time to live is `{"approx_ms": ms}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Entry = dict[str, Any]
State = dict[str, Entry]


def text(value: bytes | None) -> Any:
    """Bytes as text if they are printable, else as `{"hex": ...}`."""
    if value is None:
        return None
    try:
        told = value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
    return {"hex": value.hex()} if any(ord(c) < 32 and c not in "\n\t" for c in told) else told


def name(value: bytes) -> str:
    """Bytes as the name of a field or a member."""
    told = text(value)
    return told if isinstance(told, str) else "hex:" + told["hex"]


def raw(value: Any) -> bytes:
    """The bytes that `text` or `name` showed."""
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    told = str(value)
    return bytes.fromhex(told[4:]) if told.startswith("hex:") else told.encode()


def now_ms(admin: Any) -> int:
    seconds, microseconds = admin.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def keys_of(admin: Any, prefix: str) -> list[bytes]:
    return sorted(set(admin.scan_iter(match=prefix + "*", count=1000)))


def dumped(admin: Any, prefix: str) -> dict[bytes, bytes]:
    """Every key below a prefix, byte for byte."""
    keys = keys_of(admin, prefix)
    with admin.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.dump(key)
        return dict(zip(keys, pipe.execute(), strict=True))


def snapshot(admin: Any, prefix: str) -> tuple[State, int]:
    """Every key below a prefix with its exact scores, and the server's time of the look."""
    keys = keys_of(admin, prefix)
    with admin.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key)
            pipe.pttl(key)
        answers = pipe.execute()
    types = [kind.decode() for kind in answers[0::2]]
    with admin.pipeline(transaction=False) as pipe:
        for key, kind in zip(keys, types, strict=True):
            pipe.execute_command(*_READ[kind], key, *_READ_TAIL.get(kind, ()))
        pipe.time()
        *values, (seconds, microseconds) = pipe.execute()
    state: State = {}
    for key, kind, ttl, value in zip(keys, types, answers[1::2], values, strict=True):
        entry: Entry = {"type": kind, "value": _SHOWN[kind](value)}
        if ttl >= 0:
            entry["ttl"] = ttl
        if kind == "hash" and (ttls := _field_ttls(admin, key, list(value))):
            entry["field_ttl"] = ttls
        state[name(key)] = entry
    return state, int(seconds) * 1000 + int(microseconds) // 1000


_READ = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "list": ("LRANGE",),
    "set": ("SMEMBERS",),
    "zset": ("ZRANGE",),
    "stream": ("XRANGE",),
}
_READ_TAIL = {"list": ("0", "-1"), "zset": ("0", "-1", "WITHSCORES"), "stream": ("-", "+")}


def _pairs(value: Any) -> dict[bytes, Any]:
    if isinstance(value, dict):
        return value
    if value and isinstance(value[0], (tuple, list)):
        return {pair[0]: pair[1] for pair in value}
    return dict(zip(value[0::2], value[1::2], strict=True))


def _score(value: Any) -> int | float:
    number = float(value)
    return int(number) if number.is_integer() else number


_SHOWN: dict[str, Any] = {
    "string": text,
    "hash": lambda value: {name(k): text(v) for k, v in _pairs(value).items()},
    "list": lambda value: [text(v) for v in value],
    "set": lambda value: sorted(name(v) for v in value),
    "zset": lambda value: {name(k): _score(v) for k, v in _pairs(value).items()},
    "stream": lambda value: [[i.decode(), [text(x) for x in _flat(kv)]] for i, kv in value],
}


def _flat(fields: Any) -> list[bytes]:
    if isinstance(fields, dict):
        return [x for pair in fields.items() for x in pair]
    return list(fields)


def _field_ttls(admin: Any, key: bytes, fields: list[bytes]) -> dict[str, int]:
    # Only a lock marker carries one, and asking for each row would double the cost of a look.
    if b"lock" not in fields:
        return {}
    (ttl,) = admin.execute_command("HPTTL", key, "FIELDS", 1, "lock")
    return {"lock": ttl} if ttl >= 0 else {}


def put(admin: Any, key: str, entry: Entry | None) -> None:
    """Make a key hold what a stored entry says; None deletes it."""
    where = raw(key)
    with admin.pipeline(transaction=True) as pipe:
        pipe.delete(where)
        if entry is not None:
            value = entry["value"]
            match entry["type"]:
                case "string":
                    pipe.set(where, raw(value))
                case "hash":
                    pipe.hset(where, mapping={raw(k): raw(v) for k, v in value.items()})
                case "list":
                    pipe.rpush(where, *(raw(v) for v in value))
                case "set":
                    pipe.sadd(where, *(raw(v) for v in value))
                case "zset":
                    now = now_ms(admin)
                    pipe.zadd(where, {raw(m): _absolute(s, now) for m, s in value.items()})
                case "stream":
                    for id, fields in value:
                        pipe.execute_command("XADD", where, id, *(raw(f) for f in fields))
            if "ttl" in entry:
                pipe.pexpire(where, entry["ttl"]["approx_ms"])
            for field, ttl in entry.get("field_ttl", {}).items():
                pipe.execute_command("HPEXPIRE", where, ttl["approx_ms"], "FIELDS", 1, raw(field))
        pipe.execute()


def _absolute(score: Any, now: int) -> Any:
    return now + score["now_plus"] if isinstance(score, dict) else score


def differences(want: State, found: State, now: int, tolerance: int) -> list[str]:
    """How a look differs from a stored state, a line each."""
    lines = []
    for key in sorted(want.keys() | found.keys()):
        if key not in found:
            lines.append(f"{key}: missing, want {_brief(want[key])}")
        elif key not in want:
            lines.append(f"{key}: {_brief(found[key])}, want no such key")
        else:
            lines += [f"{key}{line}" for line in _differ(want[key], found[key], now, tolerance)]
    return lines


def _differ(want: Entry, found: Entry, now: int, tolerance: int) -> Iterable[str]:
    if want["type"] != found["type"]:
        yield f": {found['type']}, want {want['type']}"
        return
    if isinstance(want["value"], dict) and want["type"] != "string":
        for part in sorted(want["value"].keys() | found["value"].keys()):
            expected, got = want["value"].get(part), found["value"].get(part)
            if isinstance(expected, dict) and "now_plus" in expected:
                if got is None or abs(got - now - expected["now_plus"]) > tolerance:
                    told = "nothing" if got is None else f"now{got - now:+}"
                    yield f"[{part}]: {told}, want now{expected['now_plus']:+} +-{tolerance}"
            elif expected != got:
                yield f"[{part}]: {got!r}, want {expected!r}"
    elif want["value"] != found["value"]:
        yield f": {_brief(found['value'])}, want {_brief(want['value'])}"
    for part, expected, got in _ttls(want, found):
        if expected is None or got is None or abs(got - expected["approx_ms"]) > tolerance:
            yield f"{part}: ttl {got}, want {expected}"


def _ttls(want: Entry, found: Entry) -> Iterable[tuple[str, Any, Any]]:
    if "ttl" in want or "ttl" in found:
        yield "", want.get("ttl"), found.get("ttl")
    wanted, got = want.get("field_ttl", {}), found.get("field_ttl", {})
    for field in sorted(wanted.keys() | got.keys()):
        yield f"[{field}]", wanted.get(field), got.get(field)


def _brief(value: Any) -> str:
    return json.dumps(value)[:200]

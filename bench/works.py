"""What is timed on the wire, and the right answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import resp
from emq.embedded import Embedded

from .peers import MOST_TASKS, SCRIPT, Call, Contender, Job

SECTIONS: Final = {
    "one": "one caller",
    "pipeline": "one pipeline of 1000",
    "threads": "8 threads on one connector",
    "tasks": "tasks on one connector",
}
_PIPELINE: Final = 1000
_THREADS: Final = 8
_TASKS: Final = (1, 50, MOST_TASKS)


# What is said, and the right answers. Everybody has a key and a job of their own.


def _key(number: int) -> str:
    return f"bench:text:{number}"


def _text(number: int) -> bytes:
    return b"text %011d" % number


def _job(number: int) -> Job:
    job_id = f"JOB{number:011}"
    return ("bench:{q}:active", f"bench:{{q}}:job:{job_id}"), ("1750000000000", job_id)


def _payload(number: int) -> bytes:
    return b"payload %056d" % number


_HASH: Final = {b"field:%d" % n: b"value %d" % n for n in range(20)}


def fill(server: Embedded) -> None:
    """Put there what is asked for, and the script."""
    numbers = range(max(_PIPELINE, MOST_TASKS))
    with resp.connect(server.url) as connector:
        connector.pipeline([("SET", _key(n), _text(n)) for n in numbers])
        connector.pipeline([("HSET", _job(n)[0][1], "payload", _payload(n)) for n in numbers])
        connector.command("HSET", "bench:hash", *(part for item in _HASH.items() for part in item))
        connector.command("SCRIPT", "LOAD", SCRIPT.source)


@dataclass(frozen=True)
class Work:
    """What every contender of a section does in a lap.

    Attributes:
        section: One of `SECTIONS`.
        name: What it is.
        prepare: The calls of a contender, one for each that calls at once.
        answers: The right answer to each of them.
        commands: Commands in a call.
        how: How the calls are made: in turn, or from a thread or a task each.
        at_once: What the bare socket does instead where many callers share a connection: says all
            of their commands in one write. None is the same as everybody.
    """

    section: str
    name: str
    prepare: Callable[[Contender], list[Call]]
    answers: Sequence[object]
    commands: int = 1
    how: Literal["turn", "threads", "tasks"] = "turn"
    at_once: Work | None = None


def _plain(name: str, answer: object, *command: str | bytes) -> Work:
    verb, *args = command
    return Work("one", name, lambda who: [who.plain(str(verb), *args)], [answer])


def _crowd(how: Literal["threads", "tasks"], count: int) -> Iterator[Work]:
    numbers = range(count)
    callers = f"{count} {how}" if count > 1 else "1 task"
    gets, scripts = f"GET, {callers}", f"EVALSHA, {callers}"
    texts, payloads = [_text(n) for n in numbers], [_payload(n) for n in numbers]
    yield Work(
        how,
        gets,
        lambda who: [who.plain("GET", _key(n)) for n in numbers],
        texts,
        how=how,
        at_once=Work(how, gets, lambda who: [who.gets(list(map(_key, numbers)))], [texts], count),
    )
    yield Work(
        how,
        scripts,
        lambda who: [who.script(_job(n)) for n in numbers],
        payloads,
        how=how,
        at_once=Work(
            how, scripts, lambda who: [who.scripts(list(map(_job, numbers)))], [payloads], count
        ),
    )


_ALL: Final = range(_PIPELINE)
EVALSHA: Final = Work("one", "EVALSHA", lambda who: [who.script(_job(0))], [_payload(0)])
WORKS: Final = (
    _plain("GET", _text(0), "GET", _key(0)),
    _plain("SET 1 KB", "OK", "SET", "bench:big", b"x" * 1024),
    EVALSHA,
    _plain("HGETALL 20", _HASH, "HGETALL", "bench:hash"),
    Work(
        "pipeline",
        "GET x1000",
        lambda who: [who.gets([_key(n) for n in _ALL])],
        [[_text(n) for n in _ALL]],
        _PIPELINE,
    ),
    Work(
        "pipeline",
        "EVALSHA x1000",
        lambda who: [who.scripts([_job(n) for n in _ALL])],
        [[_payload(n) for n in _ALL]],
        _PIPELINE,
    ),
    *_crowd("threads", _THREADS),
    *(work for count in _TASKS for work in _crowd("tasks", count)),
)

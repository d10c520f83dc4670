"""A job's life: enqueue, claim, complete, retry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from resp import Command, ErrorReply, Plan, TransportError

from ..errors import EmqError, JobGone
from ..ids import Mint, check_job_id
from ..job import Blob, Item, Job, Receipt
from ..keyspace import Keyspace
from ..scripts import (
    CLAIM,
    CLAIM_MANY,
    COMPLETE,
    COMPLETE_AND_CLAIM,
    ENQUEUE,
    ENQUEUE_MANY,
    RETRY,
    Transition,
    id_of,
)
from .arguments import blob, held, kept, many, whole, wishes

# Mints that clash are a few ids apart at most, and the next ms has other ids: many clashes in a row
# are a clock that stands still.
_MINTS: Final = 100

# One call of a script keeps everybody else waiting: what it takes is about a millisecond's work.
_CALL_ITEMS: Final = 256
_CALL_BYTES: Final = 256 * 1024
_CALL_CLAIMS: Final = 250

_LEASE_MS: Final = 30_000  # what the script takes where it is told nothing


def enqueue(keys: Keyspace, mint: Mint, item: Item) -> Plan[Receipt]:
    data = blob("payload", item.payload)
    told = wishes(item)
    if item.job_id is not None:
        return (yield from _admit(keys, check_job_id(item.job_id), data, told))
    for _ in range(_MINTS):
        id = mint.mint()
        receipt = yield from _admit(keys, id, data, told)
        if receipt.admitted or receipt.job_id != id:
            return receipt
    raise _exhausted()


def _admit(keys: Keyspace, id: str, payload: bytes, told: list[str | bytes]) -> Plan[Receipt]:
    reply = yield from ENQUEUE(row=keys.job_prefix + id, payload=payload, wishes=told)
    match reply:
        case 1:
            return Receipt(id, True)
        case 0:
            return Receipt(id, False)
        case bytes():
            return Receipt(id_of(ENQUEUE.name, reply, reply), False)
        case _:
            raise ENQUEUE.unexpected(reply)


def enqueue_many(keys: Keyspace, mint: Mint, items: Iterable[Blob | Item]) -> Plan[list[Receipt]]:
    todo = [_Entry(item, mint) for item in many("items", items, "payloads or Items")]
    entries = todo
    for _ in range(_MINTS):
        if not todo:
            return [Receipt(entry.holder or entry.id, entry.admitted) for entry in entries]
        calls = list(_calls(todo))
        flush: list[Command] = [
            ENQUEUE_MANY.call(
                base=keys.base,
                items=[
                    part
                    for entry in call
                    for part in (entry.id, entry.payload, len(entry.wishes), *entry.wishes)
                ],
            )
            for call in calls
        ]
        try:
            replies = yield flush
        except TransportError as error:
            error.add_note(_cut_short(entries, todo, error.may_have_run))
            raise
        _note_verdicts(calls, replies)
        todo = [entry for entry in todo if entry.minted and not entry.admitted and not entry.holder]
        for entry in todo:
            entry.id = mint.mint()
    raise _exhausted()


def _cut_short(entries: list[_Entry], sent: list[_Entry], may_have_run: bool) -> str:
    """What a caller should know whose bulk was cut by a failure of the connection."""
    admitted = sum(entry.admitted for entry in entries)
    told = f"{len(entries)} jobs were in the call; {admitted} of them are known to be admitted"
    if may_have_run:
        told += f", and any of {len(sent)} others may be"
    return f"{told}; a bulk whose Items all have a job_id can be sent again without harm"


class _Entry:
    """One job of a bulk enqueue, on its way."""

    __slots__ = ("admitted", "holder", "id", "minted", "payload", "wishes")

    def __init__(self, item: Blob | Item, mint: Mint) -> None:
        if not isinstance(item, Item):
            item = Item(item)
        self.payload = blob("payload", item.payload)
        self.wishes = wishes(item)
        self.holder = ""
        self.minted = item.job_id is None
        self.id = mint.mint() if item.job_id is None else check_job_id(item.job_id)
        self.admitted = False


def _calls(entries: list[_Entry]) -> Iterator[list[_Entry]]:
    """Cut entries into what one call of the script takes."""
    call: list[_Entry] = []
    size = 0
    for entry in entries:
        if call and (len(call) == _CALL_ITEMS or size + len(entry.payload) > _CALL_BYTES):
            yield call
            call, size = [], 0
        call.append(entry)
        size += len(entry.payload)
    if call:
        yield call


def _note_verdicts(calls: list[list[_Entry]], replies: list[Any]) -> None:
    """Write down who was admitted; then raise the first error, if there was one."""
    failed = None
    for call, reply in zip(calls, replies, strict=True):
        if type(reply) is ErrorReply:
            failed = failed or reply
            continue
        verdicts, *holders = reply if type(reply) is list and reply else [reply]
        if (
            type(verdicts) is not bytes
            or len(verdicts) != len(call)
            or verdicts.strip(b"012")
            or verdicts.count(b"2") != len(holders)
        ):
            raise ENQUEUE_MANY.unexpected(reply)
        held_by = iter(ENQUEUE_MANY.ids(holders))
        for entry, verdict in zip(call, verdicts, strict=True):
            entry.admitted = verdict == ord("1")
            if verdict == ord("2"):
                entry.holder = next(held_by)
    if failed is not None:
        admitted = sum(entry.admitted for call in calls for entry in call)
        try:
            ENQUEUE_MANY.reply(failed)
        except Exception as error:
            error.add_note(f"{admitted} of {sum(map(len, calls))} jobs were admitted")
            raise


def claim(keys: Keyspace, lease_ms: int) -> Plan[Job | None]:
    whole("lease_ms", lease_ms, 1)
    told = None if lease_ms == _LEASE_MS else lease_ms
    while True:
        reply = yield from CLAIM(base=keys.base, lease_ms=told)
        if reply != 1:
            return _claimed(keys, CLAIM, reply)


def claim_many(keys: Keyspace, count: int, lease_ms: int) -> Plan[list[Job]]:
    whole("count", count, 1)
    whole("lease_ms", lease_ms, 1)
    jobs: list[Job] = []
    while len(jobs) < count:
        asked = min(count - len(jobs), _CALL_CLAIMS)
        reply = yield from CLAIM_MANY(base=keys.base, count=asked, lease_ms=lease_ms)
        if reply == 1:
            continue
        if type(reply) is not list:
            raise CLAIM_MANY.unexpected(reply)
        jobs += [claimed(keys, CLAIM_MANY, job) for job in reply]
        if len(reply) < asked:
            break
    return jobs


def _claimed(keys: Keyspace, script: Transition, reply: Any) -> Job | None:
    return None if reply is None else claimed(keys, script, reply)


def claimed(keys: Keyspace, script: Transition, reply: Any) -> Job:
    """Answer a job as a claim's reply, or a part of one, has it.

    Raises:
        ContractError: It is none.
    """
    # An id that no verb of ours would take back is refused here, not by the script: the check is
    # far cheaper in Python than the server's one thread is, and a claim that raises has harmed
    # nobody. The entry is leased, so the next claim gets past it, and it can be found in active.
    match reply:
        case [bytes(id), bytes(payload), int(token)]:
            return Job(id_of(script.name, reply, id), payload, token, keys.queue)
        case [bytes(id), bytes(payload), int(token), group, int(excused), bytes(options)] if (
            group is None or type(group) is bytes
        ):
            lane = None if group is None else group.decode("utf-8", "backslashreplace")
            job = id_of(script.name, reply, id)
            return Job(job, payload, token, keys.queue, lane, excused, options)
        case _:
            raise script.unexpected(reply)


def complete(
    keys: Keyspace,
    job: Job | str | bytes,
    result: Blob | None,
    token: int | None,
    result_ttl_ms: int | None,
) -> Plan[None]:
    id, token = held(keys, job, token)
    reply = yield from COMPLETE(
        row=keys.job_prefix + id, token=token, kept=kept(result, result_ttl_ms)
    )
    match reply:
        case 1:
            return
        case 0:
            raise JobGone(id)
        case _:
            raise COMPLETE.unexpected(reply)


def complete_and_claim(
    keys: Keyspace,
    job: Job | str | bytes,
    lease_ms: int,
    result: Blob | None,
    token: int | None,
    result_ttl_ms: int | None,
) -> Plan[Job | None]:
    id, token = held(keys, job, token)
    whole("lease_ms", lease_ms, 1)
    reply = yield from COMPLETE_AND_CLAIM(
        row=keys.job_prefix + id, token=token, lease_ms=lease_ms, kept=kept(result, result_ttl_ms)
    )
    match reply:
        case 0:
            raise JobGone(id)
        case 1:
            return (yield from claim(keys, lease_ms))
        case _:
            return _claimed(keys, COMPLETE_AND_CLAIM, reply)


def retry(
    keys: Keyspace,
    job: Job | str | bytes,
    delay_ms: int,
    max_attempts: int,
    error: Blob,
    token: int | None,
) -> Plan[str]:
    id, token = held(keys, job, token)
    reply = yield from RETRY(
        row=keys.job_prefix + id,
        token=token,
        delay_ms=whole("delay_ms", delay_ms, 0),
        max_attempts=whole("max_attempts", max_attempts, 1),
        reason=blob("error", error),
    )
    return RETRY.word(reply, "scheduled", "dead")


def _exhausted() -> EmqError:
    return EmqError(
        f"{_MINTS} minted ids in a row were taken already; "
        "give each process a node of its own, and the mint a clock that moves"
    )


__all__ = [
    "claim",
    "claim_many",
    "claimed",
    "complete",
    "complete_and_claim",
    "enqueue",
    "enqueue_many",
    "retry",
]

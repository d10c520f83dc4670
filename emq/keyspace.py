"""The names of a queue's keys.

Every key of queue Q is `emq:{Q}:` and a suffix. The braces are literal, so the cluster hashes `Q`
alone and all keys of a queue share one slot. What belongs to the whole deployment is under
`{emq}:`, which is why no queue may be called `emq`.
"""

from __future__ import annotations

import binascii
import re
from typing import AnyStr, Final

from .ids import check_id, check_job_id

VERSION_KEY: Final = "{emq}:version"
SLOTS: Final = 16384

_queue_name = re.compile(r"[A-Za-z0-9._-]{1,128}").fullmatch
_dedup_id = re.compile(r"[A-Za-z0-9._-]{1,255}").fullmatch


class Keyspace:
    """The keys of one queue, as str.

    Args:
        queue_name: 1 to 128 of `A-Z a-z 0-9 . _ -`, and not `emq`.

    Raises:
        ValueError: The name is not one.

    A method that takes an id checks it first: an ill-formed id raises `InvalidId`, and an id that
    is no job's raises `WrongKind`, before there is a key to send.
    """

    __slots__ = (
        "active",
        "base",
        "dead",
        "events",
        "flow_outbox",
        "gactive",
        "glimit",
        "gweight",
        "job_prefix",
        "limiter",
        "meta",
        "metrics_completed",
        "metrics_completed_data",
        "metrics_failed",
        "metrics_failed_data",
        "parked",
        "paused",
        "pending",
        "queue",
        "repeat",
        "ring",
        "rouse",
        "schedule",
        "wake",
    )

    def __init__(self, queue_name: str) -> None:
        if not isinstance(queue_name, str) or not _queue_name(queue_name):
            raise ValueError(
                "a queue's name is 1 to 128 of A-Z a-z 0-9 . _ -, "
                f"not {ascii(queue_name)[:140]}; rename the queue"
            )
        if queue_name == "emq":
            raise ValueError("'emq' is reserved for the deployment's own keys; rename the queue")
        base = f"emq:{{{queue_name}}}:"
        self.queue = queue_name
        self.base = base
        # Where jobs are, by state. Flat jobs wait in `pending`, laned ones in their lane.
        self.pending = base + "pending"
        self.active = base + "active"
        self.schedule = base + "schedule"
        self.dead = base + "dead"
        self.job_prefix = base + "job:"
        # Lanes.
        self.ring = base + "ring"
        self.paused = base + "paused"
        self.glimit = base + "glimit"
        self.gactive = base + "gactive"
        self.gweight = base + "gweight"
        self.wake = base + "wake"
        # Workers that wait for a job.
        self.parked = base + "parked"
        self.rouse = base + "rouse"
        # The queue itself.
        self.meta = base + "meta"
        self.limiter = base + "limiter"
        self.metrics_completed = base + "metrics:completed"
        self.metrics_failed = base + "metrics:failed"
        self.metrics_completed_data = base + "metrics:completed:data"
        self.metrics_failed_data = base + "metrics:failed:data"
        self.repeat = base + "repeat"
        self.flow_outbox = base + "flow:outbox"
        self.events = base + "events"  # a channel, not a key

    def __repr__(self) -> str:
        return f"Keyspace({self.queue!r})"

    def job(self, id: str | bytes) -> str:
        """The job's row."""
        return self.job_prefix + check_job_id(id)

    def lock(self, id: str | bytes) -> str:
        """The lock that an operator's remove honours."""
        return self.job(id) + ":lock"

    def logs(self, id: str | bytes) -> str:
        """The job's log lines, oldest first."""
        return self.job(id) + ":logs"

    def result(self, id: str | bytes) -> str:
        """How a job ended that keeps its outcome; a channel too, on which its end is told."""
        return self.job(id) + ":result"

    def dependencies(self, id: str | bytes) -> str:
        """How many children a flow's parent still waits for."""
        return self.job(id) + ":dependencies"

    def processed(self, id: str | bytes) -> str:
        """The results of a flow's children, by child."""
        return self.job(id) + ":processed"

    def failed(self, id: str | bytes) -> str:
        """The errors of the children that failed their parent, by child."""
        return self.job(id) + ":failed"

    def unsuccessful(self, id: str | bytes) -> str:
        """The errors of the children that their parent ignores, by child."""
        return self.job(id) + ":unsuccessful"

    def lane(self, group: str | bytes) -> str:
        """The jobs that wait in a group's lane. A group is a branded id of any namespace."""
        return f"{self.base}g:{check_id(group)}:pending"

    def dedup(self, dedup_id: str) -> str:
        """The job that a caller's deduplication id stands for; 1 to 255 of `A-Z a-z 0-9 . _ -`."""
        return f"{self.base}de:{dedup_key(dedup_id)}"

    def repeat_record(self, name: str) -> str:
        """A repeating job's period and template."""
        return f"{self.base}repeat:{_named('a repeat', name)}"

    def stream(self, name: str) -> str:
        """A stream's entries."""
        return f"{self.base}stream:{_named('a stream', name)}"

    def archived(self, name: str) -> str:
        """The id up to which a stream has been archived."""
        return self.stream(name) + ":archived"


def dedup_key(dedup_id: str) -> str:
    """Answer a deduplication id, which is well formed.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(dedup_id, str) or not _dedup_id(dedup_id):
        raise ValueError(
            f"a deduplication id is 1 to 255 of A-Z a-z 0-9 . _ -, not {ascii(dedup_id)[:140]}"
        )
    return dedup_id


def hashtag(key: AnyStr) -> AnyStr:
    """Answer the part of a key that the cluster hashes.

    It is what stands between the first `{` and the first `}` after it, if anything does, and the
    whole key otherwise.
    """
    if isinstance(key, bytes):
        opening, closing = b"{", b"}"
    else:
        opening, closing = "{", "}"
    start = key.find(opening) + 1
    end = key.find(closing, start)
    return key[start:end] if 0 < start < end else key


def slot(key: str | bytes) -> int:
    """Answer the cluster slot of a key, 0..16383."""
    tag = hashtag(key.encode() if isinstance(key, str) else key)
    return binascii.crc_hqx(tag, 0) % SLOTS  # CRC-16/XMODEM


def _named(what: str, name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what}'s name is a text that is not empty, not {ascii(name)[:140]}")
    return name


__all__ = ["SLOTS", "VERSION_KEY", "Keyspace", "dedup_key", "hashtag", "slot"]

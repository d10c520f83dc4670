"""What is published of jobs, by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping

from resp import Plan

from ..ids import check_job_id
from ..keyspace import Keyspace
from .reads import answered


def publish(keys: Keyspace, event: str, job_id: str | bytes, more: Mapping[str, str]) -> Plan[int]:
    if not more.keys().isdisjoint(("event", "job")):
        raise ValueError("event and job are said already; give the field another name")
    told = {"event": event, "job": check_job_id(job_id), **more}
    for name, value in told.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is str, not {type(value).__name__}")
    message = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    try:
        data = message.encode()
    except UnicodeEncodeError:
        data = b""  # the error carries the whole text, so it must not be the context of the next
    if not data:
        raise ValueError("an event's text has a lone surrogate; leave it out")
    receivers: int = answered("PUBLISH", (yield ("PUBLISH", keys.events, data)))
    return receivers


__all__ = ["publish"]

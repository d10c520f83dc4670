"""Due times: what lets the scheduled jobs wait to be claimed."""

from __future__ import annotations

from resp import Plan

from ..keyspace import Keyspace
from ..scripts import PROMOTE
from .arguments import whole


def promote(keys: Keyspace, limit: int) -> Plan[int]:
    reply = yield from PROMOTE(base=keys.base, limit=whole("limit", limit, 1))
    return PROMOTE.count(reply)


__all__ = ["promote"]

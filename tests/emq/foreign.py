"""A node of another make: the lane verbs, written from the bus contract with plain commands.

A test that drives it is alone at the queue, so it needs no script to be atomic.
"""

from __future__ import annotations

from typing import Any


class Node:
    """One queue's lanes, as a peer serves them."""

    def __init__(self, admin: Any, base: str) -> None:
        self.admin = admin
        self.base = base

    def lane(self, group: str) -> str:
        return f"{self.base}g:{group}:pending"

    def enqueue(self, group: str, id: str, payload: str) -> None:
        row = {"state": "pending", "attempts": "0", "payload": payload, "group": group}
        self.admin.hset(f"{self.base}job:{id}", mapping=row)
        self.admin.zadd(self.lane(group), {id: 0})
        self._ring(group)

    def claim(self, lease_ms: int) -> tuple[str, int] | None:
        """Serve the next lane of the ring; answer id and token."""
        ring = self.base + "ring"
        group = self.admin.lmove(ring, ring, "LEFT", "RIGHT")
        if group is None:
            return None
        group = group.decode()
        popped = self.admin.zpopmin(self.lane(group))
        if not popped:
            self.admin.lrem(ring, 0, group)
            return None
        id = popped[0][0].decode()
        row = f"{self.base}job:{id}"
        token = self.admin.hincrby(row, "attempts", 1)
        self.admin.hset(row, "state", "active")
        seconds, microseconds = self.admin.time()
        ends = seconds * 1000 + microseconds // 1000 + lease_ms
        self.admin.zadd(self.base + "active", {id: ends})
        active = self.admin.hincrby(self.base + "gactive", group, 1)
        limit = self.admin.hget(self.base + "glimit", group)
        if (limit and active >= int(limit)) or not self.admin.zcard(self.lane(group)):
            self.admin.lrem(ring, 0, group)
        return id, token

    def limit(self, group: str, most: int) -> None:
        self.admin.hset(self.base + "glimit", group, most)
        if self._active(group) >= most:
            self.admin.lrem(self.base + "ring", 0, group)
        elif self.admin.zcard(self.lane(group)):
            self._ring(group)

    def pause(self, group: str) -> None:
        self.admin.sadd(self.base + "paused", group)
        self.admin.lrem(self.base + "ring", 0, group)

    def resume(self, group: str) -> None:
        self.admin.srem(self.base + "paused", group)
        if self.admin.zcard(self.lane(group)):
            self._ring(group)

    def _active(self, group: str) -> int:
        return int(self.admin.hget(self.base + "gactive", group) or 0)

    def _ring(self, group: str) -> None:
        if self.admin.sismember(self.base + "paused", group):
            return
        limit = self.admin.hget(self.base + "glimit", group)
        if limit and self._active(group) >= int(limit):
            return
        if self.admin.lpos(self.base + "ring", group) is not None:
            return
        self.admin.rpush(self.base + "ring", group)
        self.admin.lpush(self.base + "wake", "1")
        self.admin.ltrim(self.base + "wake", 0, 63)

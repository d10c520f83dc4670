"""The queues of a server, found by their keys: nobody keeps a list of them.

SCAN walks the whole keyspace, other programs' keys included, a bounded step at a time. What is
found is what had a key: a queue that was never written to, or was obliterated, is not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from resp import Plan

from .keyspace import Keyspace, hashtag
from .plans.reads import answered

_STEP: Final = 500  # keys that the server looks at in one step, about half a ms of its time


class Discovery:
    """The queues of one server, kept up to date by looking on now and then.

    Attributes:
        names: The queues known, sorted. One that has lost its keys stays until a whole walk, from
            its beginning to its end, has passed without meeting it.
        whole: One walk at least has come to its end.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.whole = False
        self._cursor = b"0"
        self._met: set[str] = set()

    def look(self, steps: int) -> Plan[list[str]]:
        """Walk on by a number of steps, and answer the names.

        The walk ends early where it comes to its end; the next look begins a new one.
        """
        for _ in range(steps):
            self._cursor, keys = yield from scan(self._cursor, "emq:*")
            self._met.update(queues_of(keys))
            if self._cursor == b"0":
                self.names, self._met = sorted(self._met), set()
                self.whole = True
                break
        else:
            self.names = sorted(self._met.union(self.names))
        return self.names


def discover() -> Plan[list[str]]:
    """Answer the queues of a server, sorted, after one walk over all of its keys."""
    found = Discovery()
    while not found.whole:
        yield from found.look(1)
    return found.names


def scan(cursor: bytes, pattern: str) -> Plan[tuple[bytes, list[bytes]]]:
    """Answer one step of a walk over the keys: the next cursor, `0` at the end, and its keys.

    Raises:
        ServerError: The server would not say.
    """
    reply = yield ("SCAN", cursor, "MATCH", pattern, "COUNT", _STEP)
    following, keys = answered("SCAN", reply)
    return following, keys


def queues_of(keys: Iterable[bytes]) -> set[str]:
    """Answer the queues that keys belong to. Keys that no queue can have are passed over."""
    names = set()
    for tag in {hashtag(key) for key in keys if key.startswith(b"emq:{")}:
        try:
            names.add(Keyspace(tag.decode("latin-1")).queue)
        except ValueError:  # not a queue's name
            continue
    return names


__all__ = ["Discovery", "discover", "queues_of", "scan"]

"""Conformance: whether a server, and this client on it, keep to the wire.

The scenarios are those of `emq.scenarios`, in the wire's order. Each has a queue of its own, whose
name is new; when all have been played, the keys of these queues are deleted, and no others. The
walk that finds them is the only command whose work grows with what else the server holds.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self, TextIO

from resp import Connector, Plan, RespError, Subscription, TransportError

from .dial import connect
from .discover import scan
from .embedded import Embedded
from .fence import WIRE_VERSION
from .output import stdout, write
from .plans.reads import answered
from .scenarios import SCENARIOS, Mismatch, Missing, Scene, Trial, Wish
from .scenarios.kit import Ask, Hear, Listen, say, to_next_wish

SCENE_S: Final = 60.0  # a scene is a hundred round trips at the most
RETRY_S: Final = (0.02, 0.05)  # between a subscriber's attempts to connect again
_SHOWN: Final = 300  # characters of an error
_NAME_WIDTH: Final = max(map(len, SCENARIOS))


def conformance(
    *,
    url: str | None,
    shell: str = "threads",
    protocol: int | None = None,
    only: Sequence[str] = (),
    as_json: bool = False,
    wire_version: str = WIRE_VERSION,
) -> int:
    """Play scenarios, and tell of each; 0 if all that can be played pass, and any can, else 1.

    Args:
        url: The server; None starts a private one. It is claimed for the wire version, as any
            connection of the client does.
        shell: `threads` or `aio`.
        protocol: 2, 3, or None for the best that the server speaks.
        only: Names of scenarios; none for all.
        as_json: A JSON object a line, for programs.

    Raises:
        ValueError: There is no scenario of a name, or no such shell.
        FenceError: The server belongs to another wire version.
        TransportError: It cannot be reached, or went away.
    """
    if shell not in ("threads", "aio"):
        raise ValueError(f"shell is threads or aio, not {ascii(shell)[:80]}")
    run = Run(Report(stdout(), as_json), only, wire_version)
    with ExitStack() as stack:
        if url is None:
            url = stack.enter_context(Embedded()).url
        options: dict[str, Any] = {"protocol": protocol, "wire_version": wire_version}
        if shell == "threads":
            _play_all(run, url, options)
        else:
            from .aio_conformance import play_all  # a loop, which threads do not need

            play_all(run, url, options)
    return run.report.conclude()


class Run:
    """One run: which scenarios, on which queues, and what became of them.

    Args:
        report: Is told.
        only: Names of scenarios; none for all.
        wire_version: What the connections claim.

    Attributes:
        base: What the names of its queues begin with.

    Raises:
        ValueError: There is no scenario of a name.
    """

    def __init__(self, report: Report, only: Sequence[str], wire_version: str) -> None:
        for name in only:
            if name not in SCENARIOS:
                raise ValueError(
                    f"there is no scenario {ascii(name)[:80]}; leave the names out to see them all"
                )
        self.report = report
        self.base = f"conformance-{secrets.token_hex(8)}"
        self._only = set(only or SCENARIOS)
        self._wire_version = wire_version

    def scenes(self) -> Iterator[tuple[str, Scene[None]]]:
        """The scenes to play, in order, each with its name. The others are told of on the way."""
        for name, scenario in SCENARIOS.items():
            if name not in self._only:
                continue
            if isinstance(scenario, Missing):
                self.report.missing(name, scenario.needs)
            else:
                yield name, scenario(Trial(f"{self.base}.{name}", self._wire_version))

    def sweep(self) -> Plan[None]:
        """Delete the keys of the run's queues."""
        prefix = "emq:{" + self.base + "."
        cursor = b"0"
        while True:
            cursor, keys = yield from scan(cursor, prefix + "*")
            # One by one: the queues are in different slots.
            replies = yield [("UNLINK", key) for key in keys if key.startswith(prefix.encode())]
            for reply in replies:
                answered("UNLINK", reply)
            if cursor == b"0":
                return

    def not_swept(self) -> None:
        """Say which keys are left behind."""
        left = f"emq:{{{self.base}.*"
        print(f"emq: keys of the run could not be removed: {left}", file=sys.stderr)


def still_there() -> Plan[None]:
    """Raise if the server has gone, so that not every scenario has to find out by itself."""
    yield from say("PING")


class Report:
    """What became of the scenarios: told as it happens, and summed up.

    Args:
        out: Where to write.
        as_json: A JSON object a line.
    """

    def __init__(self, out: TextIO, as_json: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._color = not as_json and out.isatty() and not os.environ.get("NO_COLOR")
        self._numbers = {name: number for number, name in enumerate(SCENARIOS, 1)}
        self._passed: list[str] = []
        self._failed: list[str] = []
        self._missing: list[str] = []

    def passed(self, name: str) -> None:
        self._passed.append(name)
        self._tell(name, "ok", "32")

    def failed(self, name: str, error: Exception) -> None:
        self._failed.append(name)
        self._tell(name, "FAILED", "1;31", why=_why(error))

    def missing(self, name: str, needs: str) -> None:
        self._missing.append(name)
        self._tell(name, "not built", "2", needs=needs)

    def conclude(self) -> int:
        """Sum up; the exit code."""
        total = len(self._passed) + len(self._failed) + len(self._missing)
        if self._as_json:
            self._write_json(
                scenarios=total,
                passed=len(self._passed),
                failed=self._failed,
                not_built=self._missing,
            )
        else:
            if self._failed:
                told = f"{len(self._failed)} of {total} scenarios fail: {', '.join(self._failed)}"
            else:
                told = f"{len(self._passed)} of {total} scenarios pass"
            if self._missing:
                told += f"; {len(self._missing)} are not built"
            write(f"\n{told}\n", self._out)
        return 0 if self._passed and not self._failed else 1

    def _tell(self, name: str, result: str, color: str, **more: str) -> None:
        if self._as_json:
            self._write_json(
                scenario=name, number=self._numbers[name], result=result.lower(), **more
            )
            return
        told = f"\x1b[{color}m{result}\x1b[0m" if self._color else result
        for key, text in more.items():
            told += f": {'needs ' if key == 'needs' else ''}{text}"
        write(f"{self._numbers[name]:>2} {name:{_NAME_WIDTH}} {told}\n", self._out)

    def _write_json(self, **document: Any) -> None:
        write(json.dumps(document, separators=(",", ":")) + "\n", self._out)


def _why(error: Exception) -> str:
    """An error on one line, with nothing in it that could move a terminal's cursor."""
    if isinstance(error, Mismatch):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    cut = text[:_SHOWN].encode("unicode_escape").decode("ascii")
    return cut if len(text) <= _SHOWN else f"{cut}..."


def _play_all(run: Run, url: str, options: dict[str, Any]) -> None:
    """Play a run's scenes on threads."""
    with connect(url, **options) as connector:
        try:
            for name, scene in run.scenes():
                try:
                    play(connector, scene)
                except Exception as error:
                    run.report.failed(name, error)
                    if isinstance(error, TransportError):
                        connector.run(still_there())
                else:
                    run.report.passed(name)
        finally:
            try:
                connector.run(run.sweep(), timeout=math.inf)
            except RespError:
                run.not_swept()
                raise


def play(connector: Connector, scene: Scene[None]) -> None:
    """Play a scene on threads; what it raises is why it fails."""
    with _Ear(connector) as ear:
        fact: Any = None
        while True:
            wish = connector.run(to_next_wish(scene, fact), timeout=SCENE_S)
            if wish is None:
                return
            try:
                fact = ear.fulfil(wish)
            except Exception as error:  # the scene's to judge
                fact = error


class _Ear:
    """What fulfils the wishes of a scene: a second connection, once there is one."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._line: Connector | None = None
        self._messages: Subscription | None = None

    def fulfil(self, wish: Wish) -> Any:
        if isinstance(wish, Listen):
            assert self._line is None, "a scene listens once"
            self._line = self._connector.sibling(protocol=3, backoff=RETRY_S)
            self._messages = self._line.subscribe(wish.channel)
            return None
        assert self._line is not None, "a scene listens before it asks and hears"
        assert self._messages is not None
        match wish:
            case Ask(command):
                return self._line.run(say(*command))
            case Hear(seconds):
                message = self._messages.get(timeout=seconds)
                return None if message is None else message.payload

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._line is not None:
            self._line.close()


__all__ = ["RETRY_S", "SCENE_S", "Report", "Run", "conformance", "play", "still_there"]

"""A producer or a worker in a process of its own, and what it is told to do."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import IO, Any, Final, Self

_ROOT: Final = Path(__file__).parents[2]
_START_S: Final = 30.0
_CHUNK: Final = 65_536


class Failed(Exception):
    """A contender's process ended, or did not answer in time."""


class Host:
    """One process of a contender, ended with the block.

    Args:
        name: The contender.
        role: `producer` or `worker`.
        url: The server.
    """

    def __init__(self, name: str, role: str, url: str) -> None:
        self._role = role
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._kept = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.queues", name, role, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path])},
        )
        self._ready = False

    def ask(self, do: str, timeout: float = _START_S, **what: Any) -> dict[str, Any]:
        """Have something done, and wait until it is.

        Raises:
            Failed: With what the process said last.
        """
        self.tell(do, **what)
        return self.answer(timeout)

    def tell(self, do: str, **what: Any) -> None:
        """Have something done; `answer` waits for it."""
        if not self._ready:
            self.answer(_START_S)
            self._ready = True
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer will say why
            self._process.stdin.write(json.dumps({"do": do, **what}).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self, timeout: float) -> dict[str, Any]:
        """Wait for the answer to what was told."""
        assert self._process.stdout is not None
        end = monotonic() + timeout
        while b"\n" not in self._kept:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, end - monotonic()))
            if not ready:
                raise Failed(f"its {self._role} was silent for {timeout:.0f} s{self._said()}")
            data = os.read(self._process.stdout.fileno(), _CHUNK)
            if not data:
                raise Failed(f"its {self._role} ended{self._said()}")
            self._kept += data
        line, _, self._kept = self._kept.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Keep the process from running meanwhile."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process at once: nothing of it is needed any more."""
        with self._process:
            self._process.kill()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _said(self) -> str:
        """The last line that it wrote to stderr."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f": {last[:200]}" if last else ""

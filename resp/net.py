"""What both shells do to a socket that was connected."""

from __future__ import annotations

import math
import socket


def tune(sock: socket.socket, heartbeat: float) -> None:
    """Send at once, and let the system find out that a silent peer is gone.

    Args:
        sock: A connected TCP socket.
        heartbeat: Seconds of silence after which the system asks, and for which bytes may stay
            unacknowledged; `math.inf` leaves the system's own.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if heartbeat == math.inf:
        return
    seconds = min(max(1, math.ceil(heartbeat)), 32_767)  # the most that Linux takes
    for name, value in (
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPINTVL", max(1, seconds // 3)),
        ("TCP_KEEPCNT", 3),
        # Longer: it counts a peer that is merely too busy to read, too.
        ("TCP_USER_TIMEOUT", 4 * 1000 * seconds),
    ):
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

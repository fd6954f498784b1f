"""What systemd is told, where it started us: sd_notify(3), without a library."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> bool:
    """Says so; False when nobody listens."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.connect("\0" + where[1:] if where.startswith("@") else where)
        connection.sendall(state.encode())
        return True
    return False

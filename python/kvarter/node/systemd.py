"""What systemd is told, and what it keeps for us, where it started us: sd_notify(3), without a library."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

_FIRST = 3  # of the descriptors that systemd hands over


def notify(state: str, descriptors: Sequence[int] = ()) -> bool:
    """Says so, and gives it copies of the descriptors; False when nobody listens."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.connect("\0" + where[1:] if where.startswith("@") else where)
        socket.send_fds(connection, [state.encode()], list(descriptors))
        return True
    return False


def store(descriptors: Sequence[int]) -> None:
    """Gives them to the descriptor store (`FileDescriptorStoreMax=`), which outlives this process."""
    for fd in descriptors:
        notify("FDSTORE=1\nFDNAME=kvarter", [fd])


def stored() -> list[int]:
    """What the store had, once: ours from now on."""
    count = os.environ.pop("LISTEN_FDS", "0")
    if os.environ.pop("LISTEN_PID", "") != str(os.getpid()) or not count.isdigit():
        return []
    descriptors = list(range(_FIRST, _FIRST + int(count)))
    for fd in descriptors:
        os.set_inheritable(fd, False)
    return descriptors

"""What a node says to systemd, and what it takes back from it. None runs where tests do: a stand-in speaks its end of
the protocol, as sd_notify(3) and sd_listen_fds(3) have it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from served_words import Client

# As systemd starts a service: what was stored is at 3 and up, and is said to be for this very process.
_START = """
import fcntl, os, sys
count = int(sys.argv[1])
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 500) for fd in sys.argv[2 : 2 + count]]
for number, fd in enumerate(high):
    os.dup2(fd, 3 + number)
    os.close(fd)
if count:
    os.environ |= {"LISTEN_FDS": str(count), "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, "-m", "kvarter.cli.main", "serve", *sys.argv[2 + count :]])
"""


class Systemd:
    """Starts a node, hears what it says, and keeps its descriptors beyond its death."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "node" / "n.sock")
        self._notify = str(directory / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(60)
        self._socket.bind(self._notify)
        self.kept: list[int] = []
        self.said: list[str] = []

    def start(self) -> None:
        kept, self.kept = self.kept, []
        options = "--socket", self.path, "--dram", "64MiB"
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(len(kept)), *map(str, kept), *options],
            env={**os.environ, "NOTIFY_SOCKET": self._notify},
            pass_fds=kept,
        )
        for fd in kept:
            os.close(fd)
        self.hear("READY=1")

    def hear(self, state: str) -> None:
        while True:
            message, fds, _, _ = socket.recv_fds(self._socket, 4096, 16)
            self.kept += fds
            self.said.append(message.decode())
            if state in self.said[-1].split("\n"):
                return

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        for fd in self.kept:
            os.close(fd)
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    systemd = Systemd(tmp_path)
    systemd.start()
    yield systemd
    systemd.close()


def test_a_pool_that_nobody_but_systemd_holds_is_the_next_nodes(systemd: Systemd) -> None:
    assert all("FDSTORE=1" in said for said in systemd.said[:-1]) and len(systemd.kept) >= 2
    client = Client(systemd, "a")
    written = client.put(client.tokens(1, 20), {0: range(20)})
    client.close()
    systemd.process.kill()
    systemd.process.wait(60)
    systemd.start()
    client = Client(systemd, "a")
    assert client.get(client.store.match(client.tokens(1, 20))) == written
    assert len(client.put(client.tokens(2, 20), {0: range(20)})) == 20
    client.store.audit()
    client.close()


def test_a_node_that_stops_in_order_says_so_and_one_without_its_pool_starts_empty(systemd: Systemd) -> None:
    client = Client(systemd, "a")
    client.put(client.tokens(1, 20), {0: range(20)})
    client.close()
    systemd.process.send_signal(signal.SIGTERM)
    systemd.hear("STOPPING=1")
    assert systemd.process.wait(60) == 0
    for fd in systemd.kept:
        os.close(fd)
    systemd.kept = []
    systemd.start()
    client = Client(systemd, "a")
    assert not client.store.match(client.tokens(1, 20))
    client.close()

"""The language of the tests of the directory: a real Redis, and nodes that use it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np

from kvarter.peers.directory import Directory, Prefix
from kvarter.peers.redis_client import Terms
from kvarter.peers.redis_directory import RedisDirectory
from peer_words import Talker
from served_words import SECONDS, stop, until

STRIDE = 64  # tokens; units of 16
TERMS = Terms(stride=STRIDE, lease=5.0, patience=SECONDS / 4)


class Redis:
    """A server in a process of its own, at one port for its whole life. cluster: of one node, that has all slots.
    within: the command that runs it, on another host that has this address."""

    def __init__(
        self, directory: Path, cluster: bool = False, address: str = "127.0.0.1", within: Seq[str] = ()
    ) -> None:
        self._directory, self._cluster = directory, cluster
        self._address, self._within = address, within
        self._socket = str(directory / "redis.sock")
        for _ in range(20):  # somebody may take the port first
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            if self.port < 50000 and self.start():
                break
        else:
            raise AssertionError("no port for a server")
        if cluster:
            assert self.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383") == "+OK"
            until(lambda: "cluster_state:ok" in self.command("CLUSTER", "INFO"), "the cluster stands")

    @property
    def url(self) -> str:
        return f"{'redis+cluster' if self._cluster else 'redis'}://{self._address}:{self.port}"

    def start(self) -> bool:
        options = ["--port", str(self.port), "--bind", self._address, "--save", "", "--appendonly", "no"]
        options += ["--unixsocket", self._socket, "--protected-mode", "no"]
        options += ["--cluster-enabled", "yes"] if self._cluster else []
        self.process = subprocess.Popen(
            [*self._within, "redis-server", *options, "--dir", str(self._directory)],
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            try:
                if self.command("PING") == "+PONG":
                    return True
            except OSError:
                time.sleep(0.01)
        return False

    def command(self, *words: str) -> str:
        """What it answers; of a long answer, some of it."""
        parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SECONDS)
            connection.connect(self._socket)
            connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            return connection.recv(1 << 16).decode().strip()

    def keys(self) -> int:
        return int(self.command("DBSIZE").removeprefix(":"))

    def stop(self) -> None:
        stop(self.process.pid)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)

    def close(self) -> None:
        self.kill()


class Member(Talker):
    """A node that keeps a directory, and nothing else."""

    def __init__(self, url: str, terms: Terms = TERMS, directory: Directory | None = None) -> None:
        super().__init__()
        self.directory: Any = directory or RedisDirectory(url, terms)
        self.meeting.call(self.directory.begin, self.meeting, self.at)

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.meeting.loop).result(SECONDS)

    def whom(self, prefix: Prefix, above: int = 0) -> list[str]:
        found: list[str] = self.run(self.directory.whom(prefix, above))
        return found

    def has(self, prefix: Prefix, units: int) -> None:
        """Once the directory knows."""
        before = self.directory.counts["told"]
        self.meeting.call(self.directory.have, prefix, units)
        until(lambda: self.directory.counts["told"] > before, "told")

    def knows(self, nodes: int) -> None:
        until(lambda: len(self.directory._living) == nodes, f"{nodes} nodes: {self.directory.status()}")


def prefix(number: int, units: int, unit_tokens: int = 16) -> Prefix:
    """Digests of a sequence that shares nothing with one of another number."""
    digests = np.random.default_rng(number).bytes(32 * units)
    return Prefix(b"n" * 32, unit_tokens, digests)

"""The language of the node's tests: a node in a process of its own, and clients that move bytes through its pool."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from kvarter import _core
from kvarter.geometry import CacheGroup
from kvarter.node import Attachment, Invitation, RemoteStore
from kvarter.node.control import Control
from kvarter.node.messages import Audit, Done, Status
from kvarter.sequence import Sequence
from words import KIB, MIB, World, full, namespace

SECONDS = 60.0  # a guard against hanging, never a condition
PATIENCE = 20.0  # of stores under test on a crowded machine; tests of patience say another

_NODE = """
import json, sys
from kvarter.node import Node
from kvarter.store import Store
from kvarter.tiers.log import DiskOptions
path, options = sys.argv[1], json.loads(sys.argv[2])
disk, others = options.pop("disk", None), options.pop("peers", None)
store = Store(options.pop("dram"), disk=DiskOptions(**disk) if disk else None, populate=False, **options)
peers = None
if others is not None:
    from kvarter.config import Peers as Settings
    from kvarter.peers.options import peer_options
    from kvarter.peers.service import Peers
    peers = Peers(store, peer_options(Settings(**others)))
node = Node(store, path, peers=peers)
print("serving", flush=True)
sys.stdin.read()
node.close()
"""


def until(holds: Callable[[], Any], what: str = "it", seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.01)


def stop(pid: int) -> None:
    """A signal is on its way for a while: waits until the process stands still."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "stopped")


class ServedNode:
    """A node that ends with its standard input, so with whoever runs the test."""

    def __init__(
        self, directory: Path, *, dram: int = 4 * MIB, within: Seq[str] = (), **options: Any
    ) -> None:
        """within: the command that runs it."""
        self.path = str(directory / "node" / "node.sock")
        self._within = within
        self._options = json.dumps({"dram": dram, **options})
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*self._within, sys.executable, "-c", _NODE, self.path, self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "serving\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """Until it is continued, it does nothing."""
        stop(self.pid)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def close(self) -> None:
        """In order, as by `kvarter serve` at SIGTERM."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            assert self.process.stdin is not None
            self.process.stdin.close()
            assert self.process.wait(SECONDS) == 0
        self._reap()

    def _reap(self) -> None:
        self.process.wait(SECONDS)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    # -- looking in

    def ask(self, question: Any) -> dict[str, Any]:
        control = Control(self.path, timeout=SECONDS)
        try:
            answer = control.ask(question, SECONDS)
        finally:
            control.close()
        assert isinstance(answer, Done), answer
        return answer.report

    def status(self) -> dict[str, Any]:
        return self.ask(Status)

    def engines(self) -> dict[str, dict[str, Any]]:
        return {engine["name"]: engine for engine in self.status()["engines"]}

    def ledger(self) -> dict[str, int]:
        """Audited."""
        report = self.ask(Audit)
        assert report["findings"] == []
        ledger: dict[str, int] = report["ledger"]
        return ledger

    def holds(self, **parts: int) -> None:
        """Waits until these parts of the ledger are so."""
        until(lambda: {part: self.ledger()[part] for part in parts} == parts, f"{parts}, but {self.ledger()}")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def resident_kib(self) -> int:
        """Memory of its own: the pool, which is shared, does not count."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


class Served(Protocol):
    """A node, for who comes to it."""

    path: str


class Client(World):
    """An engine of one rank in this process: a session, and a mapping that its one worker would have."""

    def __init__(self, node: Served, name: str, *groups: CacheGroup, **options: Any) -> None:
        self.node = node
        self.namespace = namespace(*(groups or (full(64 * KIB),)), **options.pop("names", {}))
        self._stamp = hash(name) % 1000 << 32
        self.store = RemoteStore(node.path, name, **{"patience": PATIENCE, "timeout": SECONDS, **options})  # type: ignore[assignment]
        self.attach()

    def attach(self) -> None:
        """Of the node that there is now."""
        self.copier = _core.HostCopyEngine(0)
        invitation = Invitation(self.node.path, self.store.name, _core.LAYOUT_VERSION)  # type: ignore[attr-defined]
        self.attachment = Attachment(invitation, 0, self.copier, SECONDS)
        self.mapping = self.attachment._mapping
        until(lambda: self.store.attached() == 1, "attached")  # type: ignore[attr-defined]

    def tokens(self, number: int, units: int) -> Sequence:
        """A sequence of so many blocks that shares nothing with one of another number, and a token more."""
        return self.sequence([number] * (units * self.namespace.unit_tokens + 1))

    def came_back(self, incarnation: int) -> None:
        """The store has found the next node by itself; the worker follows it."""
        until(lambda: self.store.incarnation > incarnation and self.store.connected, "attached again")  # type: ignore[attr-defined]
        self.attach()

    def close(self) -> None:
        self.attachment.close()
        self.store.close()


@contextmanager
def served(directory: Path, **options: Any) -> Iterator[ServedNode]:
    node = ServedNode(directory, **options)
    try:
        yield node
        node.ledger()
    finally:
        node.close()

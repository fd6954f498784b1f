"""A real `kvarter serve`, and an engine of one rank in the test's own process."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from kvarter import _core
from kvarter.geometry import CacheGroup, Full
from kvarter.keys import Namespace
from kvarter.node import Attachment, Invitation, RemoteStore
from kvarter.sequence import Sequence
from kvarter.transfers import Match
from served_words import until

UNIT, BLOCK = 16, 1 << 16
NAMESPACE = Namespace(
    model="m",
    weights="w",
    kv_dtype="float16",
    layout="flat",
    groups=(CacheGroup("full", Full(), UNIT, (BLOCK,)),),
    unit_tokens=UNIT,
    shard_grid=(("tp", 1),),
)
_GUARD = 60.0  # seconds: against hanging


def sequence(start: int, blocks: int) -> Sequence:
    """Of tokens that only sequences of the same start have."""
    return Sequence(NAMESPACE, range(start, start + blocks * UNIT))


class Served:
    """The process. `port`: of its metrics."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.path = str(directory / "k" / "node.sock")
        command = [sys.executable, "-m", "kvarter.cli.main", "serve", "--socket", self.path, *options]
        self.log = directory / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([*command, "--metrics", "0"], stderr=log)
        until(lambda: self.process.poll() is not None or "metrics are at port" in self.log.read_text())
        assert self.process.poll() is None, self.log.read_text()
        said = re.search(r"metrics are at port (\d+)", self.log.read_text())
        assert said is not None
        self.port = int(said[1])

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(_GUARD)


class Engine:
    """Scheduler and worker in one."""

    def __init__(self, path: str, name: str) -> None:
        self.store = RemoteStore(path, name)
        self._copies = _core.HostCopyEngine(0)
        self.attachment = Attachment(Invitation(path, name, _core.LAYOUT_VERSION), 0, self._copies)
        until(lambda: self.store.attached() == 1)

    def put(self, seq: Sequence, blocks: range) -> int:
        """Stores them with their checksums; how many were written."""
        reservation = self.store.reserve(seq, {0: blocks}, 10)
        slots = reservation.slots(0) if len(reservation) else np.empty((0, 1), _core.SLOT_DTYPE)
        sums = []
        for number, address in enumerate(self.attachment.addresses(slots).ravel()):
            ctypes.memset(int(address), number % 251, BLOCK)
            written = np.frombuffer(ctypes.string_at(int(address), BLOCK), np.uint8)
            sums.append(_core.xxh3_64(written))
        reservation.commit(0, np.ones(len(sums), np.uint8), np.array(sums, np.uint64))
        return len(sums)

    def get(self, match: Match, request: str | None = None) -> _core.Status:
        with self.store.load(match, 10, request=request) as ticket:
            ticket.wait(10)
            return ticket.status

    def close(self) -> None:
        self.attachment.close()
        self.store.close()

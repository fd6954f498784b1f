"""What the disk has dropped and memory still has: it goes down again, and never in a circle."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping

from .. import _core
from ..finding import Space
from .copydown import CopyDown
from .log import room

NAMES = 4096  # that are remembered, and as many that the log keeps between two looks; of more the latest
LOOK_SECONDS = 1.0  # between two looks
_CHAINS = 64  # in one look
_SHARE = 1 / 8  # of the bytes that stores and hits send down
_EVICTED = _core.DISK_REASONS.index("evicted")
_LOST = {_core.DISK_REASONS.index(reason) for reason in ("corrupt", "read_failed", "orphaned", "unsynced")}
_NO_PARENT = bytes(32)

Name = tuple[int, int, int, bytes]  # namespace in the log, group, sub, digest


class Again:
    """For the disk's own thread.

    What was lost, by rot or by the device, goes down again at the next look. What was evicted was worth least to the
    disk. Written again at once it would count as used now and push out a better one, which may come back the same way.
    So it waits for its next hit (`Disk.used`), or for the disk to have room. Both stay within a share of what goes down
    anyhow: a device that loses what it gets is not written to for ever, and a loop nobody thought of dies out.

    most_bytes: of that share, saved up.
    """

    def __init__(self, log: _core.DiskLog, index: _core.Index, down: CopyDown, most_bytes: int) -> None:
        self._log, self._index, self._down = log, index, down
        self._evicted: deque[Name] = deque(maxlen=NAMES)
        self._most = self._budget = most_bytes
        self._seen = 0  # of the bytes that went down
        self._next = 0.0

    def look(self, spaces: Mapping[int, Space]) -> None:
        """Queues what may go; does nothing until the last look is `LOOK_SECONDS` ago, nor while the device rests after
        a failure: it would refuse what nobody offers again. spaces: by number in the log."""
        if (now := time.monotonic()) < self._next or self._log.resting:
            return
        self._next = now + LOOK_SECONDS
        offered = self._down.offered_bytes
        self._budget = min(self._budget + int((offered - self._seen) * _SHARE), self._most)
        lost: list[Name] = []
        for ns, group, sub, digest, reason in self._log.dropped():
            if reason == _EVICTED:
                self._evicted.append((ns, group, sub, digest))
            elif reason in _LOST:
                lost.append((ns, group, sub, digest))
        self._queue(spaces, lost, self._budget)
        if (free := room(self._log)) > 0 and self._evicted:
            names = list(self._evicted)
            self._evicted.clear()
            self._queue(spaces, names, min(free, self._budget))
        self._seen = self._down.offered_bytes

    def _queue(self, spaces: Mapping[int, Space], names: Iterable[Name], most: int) -> None:
        """A chain's blocks are dropped from its end on, so the first name has the others on its way to the root."""
        done: set[tuple[int, int, bytes]] = set()
        chains = 0
        for ns, group, sub, digest in names:
            space = spaces.get(ns)
            if space is None or (ns, group, digest) in done or chains == _CHAINS:
                continue
            found = self._index.lineage(space.above, group, sub, digest)
            if found is None:
                continue
            chains += 1
            digests, first_unit, block = found
            done.update((ns, group, row.tobytes()) for row in digests)
            above = _core.Chain(space.above, digests, first_unit, _NO_PARENT)
            below = _core.Chain(ns, digests, first_unit, _NO_PARENT)
            chained = space.geometry.chained(group)
            start = self._log.leading(below, group, 0, block + 1) if chained else block
            count = block + 1 - start
            nbytes = count * sum(space.geometry.groups[group].shard_bytes)
            if count and nbytes <= most:
                most -= nbytes
                self._budget -= nbytes
                self._down.offer(space, above, below, [(group, start, count)], known=True)

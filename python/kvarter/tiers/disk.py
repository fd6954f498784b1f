"""The disk below the pool: committed blocks are copied down, and what a match needs is brought up again.

One thread waits for the log (csrc/include/kvarter/disk.h) and does all of the copying down; whoever calls the store
only queues, and asks for reads. The engine never waits for the device: a block that is late is a block that is
computed.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..finding import Space, runs
from ..geometry import Geometry
from ..matching import Range
from ..policy import LoadPolicy
from ..sequence import Sequence
from ..transfers import Blocks, Match
from .again import LOOK_SECONDS, NAMES, Again
from .copydown import CopyDown
from .log import DiskOptions
from .promotion import Lease, Promotions

logger = logging.getLogger("kvarter.disk")
_WAIT_SECONDS = 0.02  # for the log, before the queue is looked at again


class _Reads:
    """The log as what blocks come up from."""

    def __init__(self, log: _core.DiskLog) -> None:
        self._log = log
        self.expired = log.expired

    def read(
        self, space: Space, match: Match, ranges: list[Range], slots: npt.NDArray[np.void], deadline: int
    ) -> int:
        assert space.below is not None
        return self._log.read(match.sequence.chain(space.below), ranges, slots, deadline)


class Disk:
    """A log under a pool and its index. Thread-safe."""

    def __init__(
        self,
        options: DiskOptions,
        pool: _core.Pool,
        index: _core.Index,
        clock: _core.Clock,
        policy: LoadPolicy,
    ) -> None:
        """Recovers what is there. Raises `ConfigError` for a directory that cannot be used, saying why."""
        self.log = options.open(pool, clock, max_dropped=NAMES, above=index)
        self._down = CopyDown(self.log, pool, index, options.queue_bytes, options.admit_all)
        self._again = Again(self.log, index, self._down, options.queue_bytes)
        self._up = Promotions(_Reads(self.log), index, clock, policy)
        self._spaces: dict[int, Space] = {}  # by their number in the log
        self._index = index
        self._wake = threading.Condition()
        self._tickets: set[int] = set()  # of flushes and invalidations
        self._flushed: set[int] = set()  # of flushes that are done
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kvarter-disk", daemon=True)
        self._thread.start()
        # A store that nobody closed: its thread may not be inside the core when the interpreter goes.
        atexit.register(self.close)

    # --- namespaces

    def open(self, digest: bytes, above: int, geometry: Geometry) -> Space:
        """A namespace that the index has under the number `above`."""
        below = self.log.open_namespace(digest, geometry.shapes(), above)
        space = self._spaces[below] = Space(above, below, geometry, self._index)
        return space

    def invalidate(self, space: Space) -> None:
        """Nothing of it is served any more; soon no crash can bring it back."""
        if space.below is not None:
            self._spaces.pop(space.below, None)
            with self._wake:
                self._tickets.add(self.log.invalidate(space.below))
                self._wake.notify_all()

    # --- what a store asks

    def copier(self, space: Space, sequence: Sequence) -> Callable[[dict[int, Blocks]], None] | None:
        """What takes stored blocks of a sequence, as it is now, to be copied down; None where nothing goes there."""
        if space.below is None:
            return None
        above, below = sequence.chain(space.above), sequence.chain(space.below)
        known = sequence.seen_tokens > 0

        def copy(blocks: dict[int, Blocks]) -> None:
            ranges = [
                (group, run.start, len(run))
                for group, stored in blocks.items()
                for run in runs(stored.tolist())
            ]
            self._down.offer(space, above, below, ranges, known)
            self._notify()

        return copy

    def used(self, space: Space, match: Match, ranges: list[Range]) -> None:
        """A hit above is a use below, and what the disk has lost of it is to be copied down again."""
        if space.below is None:
            return
        above, below = match.sequence.chain(space.above), match.sequence.chain(space.below)
        lost: list[Range] = []
        for group, first, count in ranges:
            self.log.touch(below, group, first, count)
            if not self.log.contains(below, group, first + count - 1):
                lost.append((group, first, count))
        if lost:
            self._down.offer(space, above, below, lost, known=True)
            self._notify()

    def fetch(
        self, space: Space, match: Match, until: int, lease: Callable[[], Lease]
    ) -> Callable[[], Lease | None]:
        """Begins to bring up what the match has on disk; see `Promotions.fetch`."""
        attempt = self._up.fetch(space, match, until, lease)
        self._notify()
        return attempt

    @property
    def queued_reads(self) -> int:
        """Bytes that were asked for and have not come."""
        return self._up.queued

    @property
    def queued_bytes(self) -> int:
        """Bytes that were stored and have not been handed to the log."""
        return self._down.queued_bytes

    # --- the thread

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._closed or self._down.busy or self._up.busy or self._tickets, LOOK_SECONDS
                )
                if self._closed:
                    return
            try:
                self._down.step()
                self.log.wait(_WAIT_SECONDS)
                self._collect()
                self._again.look(self._spaces)
            except Exception:  # a slower cache, never an error to the engine
                logger.exception("the disk tier goes on without what it was doing")
                time.sleep(_WAIT_SECONDS)

    def _collect(self) -> None:
        for ticket, statuses, _, _, checksums in self.log.poll():
            if self._down.arrived(ticket) or self._up.arrived(ticket, statuses, checksums):
                continue
            with self._wake:
                self._tickets.discard(ticket)
                if statuses[0] == _core.Status.Ok:
                    self._flushed.add(ticket)
                self._wake.notify_all()

    # --- account and end

    def stats(self) -> dict[str, Any]:
        """The log's counters, and blocks that were never handed to it, by reason. What a crash now would lose is
        `undurable_bytes`, those after `durable_sequence` up to `last_sequence`, and what is queued."""
        counts = self._down.counts
        return {**self.log.counters(), **{f"down_{reason}": count for reason, count in counts.items()}}

    def flush(self, seconds: float) -> bool:
        """Copies down what is queued and makes it durable; whether that was done in time."""
        until = time.monotonic() + seconds
        while self._down.busy:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        with self._wake:
            self._flushed.clear()
            ticket = self.log.flush()
            self._tickets.add(ticket)
            self._wake.notify_all()
            return self._wake.wait_for(lambda: ticket in self._flushed, max(until - time.monotonic(), 0))

    def close(self, seconds: float = 30.0) -> None:
        """Flushes, and gives the directory back. What is not done in so many seconds is given up."""
        until = time.monotonic() + seconds
        atexit.unregister(self.close)
        if not self.flush(seconds):
            logger.warning("not all blocks were copied to disk in %.0f s", seconds)
        with self._wake:
            if not self._wake.wait_for(lambda: not self._tickets, max(until - time.monotonic(), 0)):
                logger.warning("an invalidation may not outlast this process: the disk has not confirmed it")
            self._closed = True
            self._wake.notify_all()
        self._thread.join()
        self.log.close()  # the device is in no slot any more
        self._down.give_up()
        self._up.give_up()

"""What goes down: blocks that were stored, in the order that their children need, as the log has room for them."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass

from .. import _core
from ..finding import Space, runs
from ..matching import Range
from .log import is_full

_FOREVER = 1 << 62
_PATIENCE = 5.0  # seconds for blocks that wait for their ancestors to be stored
_IN_FLIGHT = (
    64 << 20
)  # bytes handed to the log at a time: what is queued here can be dropped, and is not leased


@dataclass
class _Offer:
    space: Space
    above: _core.Chain
    below: _core.Chain
    ranges: list[Range]
    nbytes: int
    until: float  # blocks that are not in the pool by then never will be


class CopyDown:
    """A queue in front of the log. `offer` may be called by any thread, the rest by the disk's own.

    queue_bytes: of blocks that wait; past that the least valuable are dropped. admit_all: also what was seen once, when
    the log is full. `counts`: blocks that were not handed to the log, by reason. `offered_bytes`: since start.
    """

    def __init__(
        self, log: _core.DiskLog, pool: _core.Pool, index: _core.Index, queue_bytes: int, admit_all: bool
    ) -> None:
        self._log, self._index = log, index
        self._queue_bytes, self._admit_all = queue_bytes, admit_all
        self._most = min(_IN_FLIGHT, pool.bytes // 8)
        self._lock = threading.Lock()
        self._known: deque[_Offer] = deque()  # blocks of sequences that have been seen before
        self._once: deque[_Offer] = deque()  # and of those that have not
        self._queued = self._writing = 0  # bytes
        self.offered_bytes = 0
        self._in_hand = False  # whether the thread is looking at what it took from the queue
        self._writes: dict[int, tuple[int, int]] = {}  # ticket -> (lease, bytes)
        self.counts: Counter[str] = Counter()

    @property
    def busy(self) -> bool:
        """Whether anything is queued, or with the log."""
        return bool(self._known or self._once or self._in_hand or self._writes)

    @property
    def queued_bytes(self) -> int:
        """Of blocks that wait here."""
        return self._queued

    def offer(
        self, space: Space, above: _core.Chain, below: _core.Chain, ranges: list[Range], known: bool
    ) -> None:
        """These blocks are in the pool now, or will be at once. `known`: what they go on from was seen before."""
        groups = space.geometry.groups
        nbytes = sum(count * sum(groups[group].shard_bytes) for group, _, count in ranges)
        with self._lock:
            self.offered_bytes += nbytes
            if not known and not self._admit_all and is_full(self._log):
                self.counts["not_admitted"] += sum(count for *_, count in ranges)
                return
            until = time.monotonic() + _PATIENCE
            (self._known if known else self._once).append(_Offer(space, above, below, ranges, nbytes, until))
            self._queued += nbytes
            while self._queued > self._queue_bytes:
                last = (self._once or self._known).pop()
                self._queued -= last.nbytes
                self.counts["queue_full"] += sum(count for *_, count in last.ranges)

    def step(self) -> None:
        """Hands the log what it has room for."""
        late: list[_Offer] = []
        try:
            while self._writing < self._most and (offer := self._take()) is not None:
                missing = [self._missing(offer, wanted) for wanted in offer.ranges]
                if any(waiting for _, waiting in missing) and time.monotonic() < offer.until:
                    late.append(offer)  # whole, so that parents go down before their children
                    continue
                self.counts["gone"] += sum(waiting for _, waiting in missing)
                if ranges := [r for found, _ in missing for r in found]:
                    self._write(offer, ranges)
        finally:
            with self._lock:
                self._in_hand = False
                self._known.extendleft(reversed(late))
                self._queued += sum(offer.nbytes for offer in late)

    def _take(self) -> _Offer | None:
        with self._lock:
            if not (self._known or self._once):
                return None
            offer = (self._known or self._once).popleft()
            self._queued -= offer.nbytes
            self._in_hand = True
            return offer

    def _missing(self, offer: _Offer, wanted: Range) -> tuple[list[Range], int]:
        """What of it is in the pool and not on disk yet, and how many blocks are not in the pool."""
        group, first, count = wanted
        if offer.space.geometry.chained(group):
            end = max(self._index.leading(offer.above, group, first + count), first)
            # From its first ancestor that is not there: those go first, whoever offers them.
            start = self._log.leading(offer.below, group, 0, end)
            return [(group, start, end - start)] if end > start else [], first + count - end
        there = [b for b in range(first, first + count) if self._index.contains(offer.above, group, b)]
        missing = [b for b in there if not self._log.contains(offer.below, group, b)]
        return [(group, run.start, len(run)) for run in runs(missing)], count - len(there)

    def _write(self, offer: _Offer, ranges: list[Range]) -> None:
        status, lease = self._index.lease(offer.above, ranges, _core.LeaseKind.Copy, 0, _FOREVER)
        if status != _core.Status.Ok:  # evicted since
            self.counts["gone"] += sum(count for *_, count in ranges)
            return
        slots = self._index.slots(lease)
        nbytes = int(slots["length"].sum())
        with self._lock:
            ticket = self._log.write(offer.below, ranges, slots)
            if ticket:
                self._writes[ticket] = lease, nbytes
                self._writing += nbytes
        if not ticket:
            self.counts["queue_full"] += sum(count for *_, count in ranges)
            self._index.release(lease, _core.Outcome.Unused)

    def arrived(self, ticket: int) -> bool:
        """The log has done with a ticket, whatever became of its blocks. False when it is not of a write."""
        with self._lock:
            lease, nbytes = self._writes.pop(ticket, (0, 0))
            self._writing -= nbytes
        return bool(lease) and self._index.release(lease, _core.Outcome.Unused)

    def give_up(self) -> None:
        """Nothing comes from the log any more."""
        for ticket in list(self._writes):
            self.arrived(ticket)

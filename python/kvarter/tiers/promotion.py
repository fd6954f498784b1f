"""What comes up: blocks that a match needs, read into the pool once, whoever waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .. import _core
from ..finding import Space, runs
from ..matching import Range, in_memory
from ..policy import LoadPolicy
from ..transfers import Match

_FOREVER = 1 << 62
_IN_FLIGHT_ALREADY = _core.REASONS.index("already_in_flight")
Lease = tuple[_core.Status, int]


class Reader(Protocol):
    """Where blocks come up from. What became of a read is said by `Promotions.arrived`."""

    def read(
        self, space: Space, match: Match, ranges: list[Range], slots: npt.NDArray[np.void], deadline: int
    ) -> int:
        """Fills the slots with the match's blocks in `ranges`, all shards of each, in order. A ticket; 0: it will not.
        `deadline` of the clock is for the device."""

    def expired(self, ticket: int) -> bool:
        """Whether that is over, though the device may still be in its slots."""


@dataclass(eq=False)
class Promotion:
    """Blocks on their way up. `done` once none of them is touched any more; `failed`: some did not come."""

    space: Space
    handles: dict[int, npt.NDArray[np.uint64]] = field(default_factory=dict)  # of what is read, by group
    others: bool = False  # somebody else brings or writes some of them
    failed: bool = False
    nbytes: int = 0
    begun: float = 0.0
    ticket: int = 0
    event: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        return self.event.is_set()


class Promotions:
    """Reads under way. Thread-safe. `queued`: bytes that were asked for and have not come."""

    def __init__(self, reader: Reader, index: _core.Index, clock: _core.Clock, policy: LoadPolicy) -> None:
        self._reader, self._index, self._clock, self._policy = reader, index, clock, policy
        self._lock = threading.Lock()
        self._reads: dict[int, Promotion] = {}
        self._closed = False
        self.queued = 0

    @property
    def busy(self) -> bool:
        return bool(self._reads)

    def fetch(
        self, space: Space, match: Match, until: int, lease: Callable[[], Lease]
    ) -> Callable[[], Lease | None]:
        """Begins to bring up what of the match is not in memory. What it returns takes the `lease` when all is there,
        says TimedOut at `until`, and None before."""
        above = match.sequence.chain(space.above)
        # What is in memory already stays until the rest has come.
        _, kept = self._index.lease(above, in_memory(match), _core.LeaseKind.Copy, 0, until)
        promotion = self._promote(space, above, match, until)

        def attempt() -> Lease | None:
            late = self._clock.now() >= until
            if not promotion.done and not late and not self._expired(promotion):
                return None
            taken = (_core.Status.TimedOut, 0) if late or not promotion.done else lease()
            if taken[0] == _core.Status.NotFound and promotion.others and not promotion.failed:
                return None  # somebody else brings the rest
            self._index.release(kept, _core.Outcome.Unused)
            return taken

        return attempt

    def _promote(self, space: Space, above: _core.Chain, match: Match, deadline: int) -> Promotion:
        """Reads the blocks that nobody else brings."""
        promotion = Promotion(space, begun=time.monotonic())
        ranges: list[Range] = []
        slots: list[npt.NDArray[np.void]] = []
        for group, wanted in enumerate(match.below):
            handles = []
            for run in runs(wanted):
                _, reasons, made, where = self._index.reserve(
                    above, (group, run.start, len(run)), (0, 0), 0, _FOREVER
                )
                promotion.others |= bool((reasons == _IN_FLIGHT_ALREADY).any())
                granted = np.flatnonzero(made)
                ranges += [(group, run.start + r.start, len(r)) for r in runs(granted.tolist())]
                handles.append(made[granted])
                slots.append(where)
            if handles:
                promotion.handles[group] = np.concatenate(handles)
        if ranges:
            self._read(promotion, match, ranges, np.concatenate(slots), deadline)
        else:
            promotion.event.set()
        return promotion

    def _read(
        self,
        promotion: Promotion,
        match: Match,
        ranges: list[Range],
        slots: npt.NDArray[np.void],
        deadline: int,
    ) -> None:
        promotion.nbytes = int(slots["length"].sum())
        with self._lock:
            if not self._closed:
                promotion.ticket = self._reader.read(promotion.space, match, ranges, slots, deadline)
            if promotion.ticket:
                self._reads[promotion.ticket] = promotion
                self.queued += promotion.nbytes
        if not promotion.ticket:
            promotion.failed = True
            self._complete(promotion, None, None)

    def _expired(self, promotion: Promotion) -> bool:
        """Past its deadline, though the device may still be in its slots."""
        return not promotion.done and promotion.ticket != 0 and self._reader.expired(promotion.ticket)

    def arrived(
        self, ticket: int, statuses: npt.NDArray[np.uint8], checksums: npt.NDArray[np.uint64]
    ) -> bool:
        """The device is in none of a ticket's slots any more. False when it is not of a read."""
        with self._lock:
            promotion = self._reads.pop(ticket, None)
            if promotion is None:
                return False
            self.queued -= promotion.nbytes
        ok = statuses == _core.Status.Ok
        promotion.failed = not bool(ok.all())
        if not promotion.failed:
            self._policy.loaded(promotion.nbytes + self.queued, time.monotonic() - promotion.begun)
        self._complete(promotion, ok, checksums)
        return True

    def _complete(
        self, promotion: Promotion, ok: npt.NDArray[np.bool_] | None, checksums: npt.NDArray[np.uint64] | None
    ) -> None:
        """The slots are no more touched: what came becomes resident, of the rest the slots are free again."""
        block = slot = 0
        for group, handles in promotion.handles.items():
            shards, count = len(promotion.space.geometry.groups[group].shard_bytes), len(handles)
            good = np.zeros(count, np.uint8) if ok is None else ok[block : block + count].astype(np.uint8)
            sums = (
                np.zeros(count * shards, np.uint64)
                if checksums is None
                else checksums[slot : slot + count * shards]
            )
            for shard in range(shards):
                self._index.complete(handles, shard, good, np.ascontiguousarray(sums[shard::shards]))
            block, slot = block + count, slot + count * shards
        promotion.event.set()

    def give_up(self) -> None:
        """Nothing comes any more, and nothing is asked for."""
        with self._lock:
            self._closed = True
            reads, self._reads = list(self._reads.values()), {}
        for promotion in reads:
            promotion.failed = True
            self._complete(promotion, None, None)

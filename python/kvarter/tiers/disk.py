"""The disk below the pool: committed blocks are copied down, and what a match needs is brought up again.

One thread waits for the log (csrc/include/kvarter/disk.h) and does all of the copying down; whoever calls the store
only queues, and asks for reads. The engine never waits for the device: a block that is late is a block that is
computed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import ConfigError
from ..finding import Space, runs
from ..geometry import Geometry
from ..matching import Range, in_memory
from ..policy import LoadPolicy
from ..sequence import Sequence
from ..transfers import Blocks, Match

logger = logging.getLogger("kvarter.disk")
_FOREVER = 1 << 62
_WAIT_SECONDS = 0.02  # for the log, before the queue is looked at again
_FULL = 0.65  # of the room: the log keeps live blocks below 0.85 of it
_PATIENCE = 5.0  # seconds for blocks that wait for their ancestors to be stored
_IN_FLIGHT = 64 << 20  # bytes handed to the log at a time: what is queued here can still be dropped


@dataclass(frozen=True)
class DiskOptions:
    """Where the log lies, and what it may take.

    path: a directory of its own. capacity: bytes of everything in it, as du says. segment_bytes: of a new directory.
    device: "auto" tries io_uring first. queue_bytes: of blocks that wait to be copied down; past that the least
    valuable are dropped, counted. admit_all: also copy down what was seen once, when the log is full.
    """

    path: str
    capacity: int
    segment_bytes: int = 256 << 20
    device: str = "auto"
    queue_depth: int = 8
    queue_bytes: int = 256 << 20
    admit_all: bool = False


@dataclass
class _Offer:
    space: Space
    above: _core.Chain
    below: _core.Chain
    ranges: list[Range]
    nbytes: int
    until: float  # blocks that are not in the pool by then never will be


@dataclass(eq=False)
class Promotion:
    """Blocks on their way up. `done` once none of them is touched any more; `failed`: some did not come."""

    space: Space
    handles: dict[int, npt.NDArray[np.uint64]] = field(default_factory=dict)  # of what is read, by group
    refused: bool = False  # the pool had no room
    others: bool = False  # somebody else brings or writes some of them
    failed: bool = False
    nbytes: int = 0
    begun: float = 0.0
    ticket: int = 0
    event: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        return self.event.is_set()


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
        try:
            self.log = _core.DiskLog(
                options.path,
                pool,
                clock,
                options.capacity,
                segment_bytes=options.segment_bytes,
                device=options.device,
                queue_depth=options.queue_depth,
            )
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"no disk tier in {options.path}: {error}") from None
        self._options = options
        self._index, self._clock, self._policy = index, clock, policy
        self._work = threading.Condition()
        self._known: deque[_Offer] = deque()  # blocks of sequences that have been seen before
        self._once: deque[_Offer] = deque()  # and of those that have not
        self._queued = self._writing = 0  # bytes
        self._in_hand = False  # whether the thread is looking at what it took from the queue
        self._writes: dict[int, tuple[int, int]] = {}  # ticket -> (lease, bytes)
        self._reads: dict[int, Promotion] = {}
        self._others: set[int] = set()  # tickets of flushes and invalidations
        self._answers: dict[int, _core.Status] = {}
        self._reading = 0  # bytes
        self._closed = False
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="kvarter-disk", daemon=True)
        self._thread.start()

    # --- namespaces

    def open(self, digest: bytes, geometry: Geometry) -> int:
        """The namespace's number in the log."""
        return self.log.open_namespace(digest, geometry.shapes())

    def invalidate(self, space: Space) -> None:
        """Nothing of it is served any more; soon no crash can bring it back."""
        if space.below is not None:
            with self._work:
                self._others.add(self.log.invalidate(space.below))
                self._work.notify()

    # --- what a store asks

    def copier(self, space: Space, sequence: Sequence) -> Callable[[dict[int, Blocks]], None] | None:
        """What takes stored blocks of a sequence, as it is now, to be copied down; None where nothing goes there."""
        if space.below is None:
            return None
        above, below, known = (
            sequence.chain(space.above),
            sequence.chain(space.below),
            sequence.seen_tokens > 0,
        )

        def copy(blocks: dict[int, Blocks]) -> None:
            ranges = [
                (group, run.start, len(run))
                for group, stored in blocks.items()
                for run in runs(stored.tolist())
            ]
            self.offer(space, above, below, ranges, known)

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
            self.offer(space, above, below, lost, known=True)

    def fetch(
        self, space: Space, match: Match, until: int, lease: Callable[[], tuple[_core.Status, int]]
    ) -> Callable[[], tuple[_core.Status, int] | None]:
        """Begins to bring up what the match has on disk. What it returns takes the `lease` when all is there, says
        TimedOut at `until`, and None before."""
        assert space.below is not None
        above, below = match.sequence.chain(space.above), match.sequence.chain(space.below)
        # What is in memory already stays until the rest has come.
        _, kept = self._index.lease(above, in_memory(match), _core.LeaseKind.Copy, 0, until)
        promotion = self._promote(space, above, below, match.below, until)

        def attempt() -> tuple[_core.Status, int] | None:
            late = self._clock.now() >= until
            if not promotion.done and not late and not self._expired(promotion):
                return None
            taken = (_core.Status.TimedOut, 0) if late or not promotion.done else lease()
            if taken[0] == _core.Status.NotFound and promotion.others and not promotion.failed:
                return None  # somebody else brings the rest
            self._index.release(kept, _core.Outcome.Unused)
            return taken

        return attempt

    # --- down

    def offer(
        self, space: Space, above: _core.Chain, below: _core.Chain, ranges: list[Range], known: bool
    ) -> None:
        """These blocks are in the pool now, or will be at once. `known`: what they go on from was seen before."""
        groups = space.geometry.groups
        nbytes = sum(count * sum(groups[group].shard_bytes) for group, _, count in ranges)
        with self._work:
            if not known and not self._options.admit_all and self._full():
                self.counts["not_admitted"] += sum(count for *_, count in ranges)
                return
            until = time.monotonic() + _PATIENCE
            (self._known if known else self._once).append(_Offer(space, above, below, ranges, nbytes, until))
            self._queued += nbytes
            while self._queued > self._options.queue_bytes:
                last = (self._once or self._known).pop()
                self._queued -= last.nbytes
                self.counts["queue_full"] += sum(count for *_, count in last.ranges)
            self._work.notify()

    def _full(self) -> bool:
        """Whether something has to go soon for what comes."""
        ledger = self.log.ledger()
        return bool(
            ledger["resident"] + ledger["reserved"] > _FULL * (ledger["capacity"] - ledger["overhead"])
        )

    def _run(self) -> None:
        while True:
            with self._work:
                while not (
                    self._closed or self._known or self._once or self._writes or self._reads or self._others
                ):
                    self._work.wait()
                if self._closed and not (self._writes or self._reads or self._others):
                    return
            try:
                self._copy_down()
                self.log.wait(_WAIT_SECONDS)
                self._collect()
            except Exception:  # a slower cache, never an error to the engine
                logger.exception("the disk tier goes on without what it was doing")
                time.sleep(_WAIT_SECONDS)

    def _copy_down(self) -> None:
        late = []
        while self._writing < _IN_FLIGHT:
            with self._work:
                if self._closed or not (self._known or self._once):
                    break
                offer = (self._known or self._once).popleft()
                self._queued -= offer.nbytes
                self._in_hand = True
            missing = [self._missing(offer, wanted) for wanted in offer.ranges]
            if any(waiting for _, waiting in missing) and time.monotonic() < offer.until:
                late.append(offer)  # whole, so that parents go down before their children
                continue
            self.counts["gone"] += sum(waiting for _, waiting in missing)
            if ranges := [r for found, _ in missing for r in found]:
                self._write(offer, ranges)
        with self._work:
            self._in_hand = False
            self._known.extendleft(reversed(late))
            self._queued += sum(offer.nbytes for offer in late)

    def _missing(self, offer: _Offer, wanted: Range) -> tuple[list[Range], int]:
        """What of it is in the pool and not on disk yet, and how many blocks are not in the pool."""
        group, first, count = wanted
        if offer.space.geometry.chained(group):
            end = max(self._index.leading(offer.above, group, first + count), first)
            start = self.log.leading(
                offer.below, group, 0, end
            )  # its ancestors go first, whoever offers them
            return [(group, start, end - start)] if end > start else [], first + count - end
        there = [b for b in range(first, first + count) if self._index.contains(offer.above, group, b)]
        missing = [b for b in there if not self.log.contains(offer.below, group, b)]
        return [(group, run.start, len(run)) for run in runs(missing)], count - len(there)

    def _write(self, offer: _Offer, ranges: list[Range]) -> None:
        status, lease = self._index.lease(offer.above, ranges, _core.LeaseKind.Copy, 0, _FOREVER)
        if status != _core.Status.Ok:  # evicted since
            self.counts["gone"] += sum(count for *_, count in ranges)
            return
        slots = self._index.slots(lease)
        nbytes = int(slots["length"].sum())
        with self._work:
            ticket = self.log.write(offer.below, ranges, slots)
            if ticket:
                self._writes[ticket] = lease, nbytes
                self._writing += nbytes
        if not ticket:
            self.counts["queue_full"] += sum(count for *_, count in ranges)
            self._index.release(lease, _core.Outcome.Unused)

    # --- up

    def _promote(
        self, space: Space, above: _core.Chain, below: _core.Chain, blocks: Seq[Seq[int]], deadline: int
    ) -> Promotion:
        """Reads the blocks, by group, that nobody else brings; `deadline` of the clock is for the device."""
        promotion = Promotion(space, begun=time.monotonic())
        ranges: list[Range] = []
        slots: list[npt.NDArray[np.void]] = []
        for group, wanted in enumerate(blocks):
            handles = []
            for run in runs(wanted):
                status, reasons, made, where = self._index.reserve(
                    above, (group, run.start, len(run)), (0, 0), 0, _FOREVER
                )
                promotion.refused |= bool((status == _core.Status.Rejected).any())
                promotion.others |= bool((reasons == _IN_FLIGHT_ALREADY).any())
                granted = np.flatnonzero(made)
                ranges += [(group, run.start + r.start, len(r)) for r in runs(granted.tolist())]
                handles.append(made[granted])
                slots.append(where)
            if handles:
                promotion.handles[group] = np.concatenate(handles)
        if ranges:
            self._read(promotion, below, ranges, np.concatenate(slots), deadline)
        else:
            promotion.event.set()
        return promotion

    def _read(
        self,
        promotion: Promotion,
        below: _core.Chain,
        ranges: list[Range],
        slots: npt.NDArray[np.void],
        deadline: int,
    ) -> None:
        promotion.nbytes = int(slots["length"].sum())
        with self._work:
            promotion.ticket = 0 if self._closed else self.log.read(below, ranges, slots, deadline)
            if promotion.ticket:
                self._reads[promotion.ticket] = promotion
                self._reading += promotion.nbytes
                self._work.notify()
        if not promotion.ticket:
            promotion.failed = True
            self._complete(promotion, None, None)

    def _expired(self, promotion: Promotion) -> bool:
        """Past its deadline, though the device may still be in its slots."""
        return not promotion.done and promotion.ticket != 0 and self.log.expired(promotion.ticket)

    @property
    def queued_reads(self) -> int:
        """Bytes that were asked for and have not come."""
        return self._reading

    def _collect(self) -> None:
        for ticket, statuses, _, _, checksums in self.log.poll():
            with self._work:
                lease, nbytes = self._writes.pop(ticket, (0, 0))
                promotion = self._reads.pop(ticket, None)
                self._writing -= nbytes
                if ticket in self._others:
                    self._others.discard(ticket)
                    self._answers[ticket] = _core.Status(int(statuses[0]))
                    self._work.notify_all()
            if lease:
                self._index.release(lease, _core.Outcome.Unused)
            if promotion is not None:
                self._arrived(promotion, statuses, checksums)

    def _arrived(
        self, promotion: Promotion, statuses: npt.NDArray[np.uint8], checksums: npt.NDArray[np.uint64]
    ) -> None:
        with self._work:
            self._reading -= promotion.nbytes
        ok = statuses == _core.Status.Ok
        promotion.failed = not bool(ok.all())
        if not promotion.failed:
            self._policy.loaded(promotion.nbytes + self._reading, time.monotonic() - promotion.begun)
        self._complete(promotion, ok, checksums)

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

    # --- account and end

    def stats(self) -> dict[str, int]:
        """The log's counters, and what was never handed to it, by reason."""
        return {**self.log.counters(), **{f"down_{reason}": count for reason, count in self.counts.items()}}

    def flush(self, seconds: float) -> bool:
        """Copies down what is queued and makes it durable; whether that was done in time."""
        until = time.monotonic() + seconds
        while self._known or self._once or self._in_hand or self._writes:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        with self._work:
            ticket = self.log.flush()
            self._others.add(ticket)
            self._work.notify()
            done = self._work.wait_for(lambda: ticket in self._answers, max(until - time.monotonic(), 0))
            return done and self._answers.pop(ticket) == _core.Status.Ok

    def close(self, seconds: float = 30.0) -> None:
        """Flushes, and gives the directory back."""
        if not self.flush(seconds):
            logger.warning("not all blocks were copied to disk in %.0f s", seconds)
        with self._work:
            self._closed = True
            self._work.notify_all()
        self._thread.join(seconds)
        self.log.close()


_IN_FLIGHT_ALREADY = _core.REASONS.index("already_in_flight")

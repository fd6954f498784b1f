"""The store: one engine-neutral class that connectors, node, replayer and benches share."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _core
from .errors import AuditError, CapacityError, ConfigError
from .finding import Found, Space, runs
from .geometry import Geometry
from .keys import Namespace
from .policy import AlwaysLoad, LoadPolicy, Measured
from .sequence import Sequence
from .tiers.disk import Disk, DiskOptions, Range
from .transfers import Blocks, Match, Reservation, Ticket

DEFAULT_BLOCK_BYTES = 16 << 10  # slot records are made for blocks of at least this size on average
_MAX_HINTS = 4096


@dataclass(frozen=True)
class Hint:
    """What a caller knows about a session's future. Kept; the placement policy weighs it."""

    session: str
    ends: bool = False
    returns_within: float | None = None
    priority: int = 0
    ttl: float | None = None


class Store:
    """KV blocks in a shared-memory pool, by prefix.

    dram: bytes of payload memory. max_blocks: slot records, one for each shard of a block (default: one for every
    16 KiB of the pool). hold_seconds: how long a match stays true without being loaded. headroom: share of the pool
    that is kept free in the background, so that a put finds room at once. disk: a log below the pool, which the store
    closes. clock: where time comes from.

    Raises `CapacityError`, with the numbers, when the pool does not fit the host's memory or the cgroup.
    Thread-safe, except for the Sequences given to it. No call blocks on another one's work.
    """

    def __init__(
        self,
        dram: int,
        *,
        max_blocks: int | None = None,
        hold_seconds: float = 2.0,
        hold_share: float = 0.5,
        headroom: float = 0.02,
        load_policy: LoadPolicy | None = None,
        disk: DiskOptions | None = None,
        clock: _core.Clock | None = None,
        populate: bool = True,
    ) -> None:
        if dram < 2 << 20:
            raise ConfigError(f"a pool of {dram} bytes; expected at least 2 MiB")
        slots = max_blocks or max(dram // DEFAULT_BLOCK_BYTES, 64)
        metadata = slots * 256  # records, columns and hash table, rounded up
        try:
            _core.check_memory(dram + metadata)
        except ValueError as error:
            raise CapacityError(str(error)) from None
        self._clock = clock or _core.SteadyClock()
        self._hold_seconds = hold_seconds
        self.load_policy = load_policy or (AlwaysLoad() if disk is None else Measured())
        self.pool = _core.Pool(dram, dram, populate)
        self._hold_share = hold_share
        self.index = _core.Index(self.pool, self._clock, slots, hold_share, headroom)
        self.disk: Disk | None = None
        if disk is not None:
            self.disk = Disk(disk, self.pool, self.index, self._clock, self.load_policy)
        self._spaces: dict[bytes, Space] = {}
        self._holds: OrderedDict[str, tuple[int, int]] = OrderedDict()  # (lease, deadline), the oldest first
        self._hints: OrderedDict[str, Hint] = OrderedDict()
        self._ticks_elsewhere = False
        self._counts = Counter({"not_worthwhile": 0, "too_large_to_promote": 0})

    # --- namespaces

    def open(self, namespace: Namespace) -> int:
        """The namespace's number here; opened at first use."""
        return self._space(namespace).above

    def _space(self, namespace: Namespace) -> Space:
        digest = namespace.digest()
        space = self._spaces.get(digest)
        if space is None:
            geometry = Geometry(namespace.unit_tokens, namespace.groups)
            # Weights of a later epoch have no name that another process could know: nothing of them outlives this one.
            below = (
                self.disk.open(digest, geometry) if self.disk is not None and not namespace.epoch else None
            )
            space = Space(self.index.open_namespace(digest, geometry.shapes()), below, geometry)
            self._spaces[digest] = space
        return space

    def invalidate(self, namespace: Namespace) -> None:
        """Nothing of it is served or stored any more; its memory comes back in the background."""
        space = self._spaces.pop(namespace.digest(), None)
        if space is not None:
            self.index.invalidate(space.above)
            if self.disk is not None:
                self.disk.invalidate(space)

    # --- finding and loading

    def match(
        self,
        sequence: Sequence,
        *,
        limit: int | None = None,
        have_tokens: int = 0,
        request: str | None = None,
        owner: int = 0,
    ) -> Match:
        """The longest boundary of at most `limit` tokens that all required groups can serve.

        limit: default one less than the sequence has, since the engine must compute at least one token.
        have_tokens: what the engine has cached itself; blocks wholly below it are not loaded, and a boundary that
        adds nothing is no hit. request: takes a soft hold under this name, so that the answer is still true at
        `load`; it ends at load, at the next match of the same name, or after `hold_seconds`.
        """
        self._tick()
        space = self._space(sequence.namespace)
        self._forget_ended_holds()
        if request is not None:
            self.drop_hold(request)
        limit = sequence.num_tokens - 1 if limit is None else limit
        limit = min(limit, sequence.units * space.geometry.unit_tokens)
        match = self._best(space, sequence, limit, have_tokens)
        sequence.seen_tokens = max(match.tokens, have_tokens)
        if match and request is not None:
            self._hold(space, match, request, owner)
        return match

    def _best(self, space: Space, sequence: Sequence, limit: int, have: int) -> Match:
        """With the disk as far as that pays, else with memory alone."""
        geometry, miss = space.geometry, Match(sequence, 0, have, ())
        found = Found(space, sequence, self.index)
        in_memory = geometry.boundary(found, limit)
        if self.disk is not None and space.below is not None:
            both = Found(space, sequence, self.index, self.disk.log)
            boundary = geometry.boundary(both, limit)
            if boundary > max(in_memory, have):
                match = self._from_disk(
                    self.disk, space, sequence, both, boundary, max(in_memory, have), have
                )
                if match is not None:
                    return match
        if in_memory <= have:
            return miss
        blocks = self._to_load(geometry, found.needed(in_memory), have)
        if not self.load_policy.worthwhile(in_memory - have, geometry.bytes_at(blocks), 0, 0):
            self._counts["not_worthwhile"] += 1
            return miss
        return Match(sequence, in_memory, have, blocks)

    def _from_disk(
        self,
        disk: Disk,
        space: Space,
        sequence: Sequence,
        found: Found,
        boundary: int,
        without: int,
        have: int,
    ) -> Match | None:
        geometry = space.geometry
        blocks = self._to_load(geometry, found.needed(boundary), have)
        below = tuple(found.not_above(group, need) for group, need in enumerate(blocks))
        nbytes = geometry.bytes_at(below)
        if nbytes > self._hold_share * self.pool.bytes:
            self._counts["too_large_to_promote"] += 1
            return None
        above = max(geometry.bytes_at(blocks) - nbytes, 0)
        if not self.load_policy.worthwhile(boundary - without, above, nbytes, disk.queued_reads):
            self._counts["not_worthwhile"] += 1
            return None
        return Match(sequence, boundary, have, blocks, below, boundary - without)

    @staticmethod
    def _to_load(geometry: Geometry, needed: list[range], have: int) -> tuple[range, ...]:
        return tuple(
            range(max(need.start, have // group.block_tokens), need.stop)
            for group, need in zip(geometry.groups, needed, strict=True)
        )

    def _hold(self, space: Space, match: Match, request: str, owner: int) -> None:
        deadline = self._deadline(self._hold_seconds)
        nbytes = space.geometry.bytes_at(space.geometry.blocks_at(match.tokens))
        status, hold = self.index.lease(
            match.sequence.chain(space.above),
            _in_memory(match),
            _core.LeaseKind.Hold,
            owner,
            deadline,
            nbytes,
        )
        if status == _core.Status.Ok:
            self._holds[request] = (hold, deadline)

    def drop_hold(self, request: str) -> None:
        """Ends the hold of an earlier match of this request, if there is one."""
        lease, _ = self._holds.pop(request, (None, 0))
        if lease is not None:
            self.index.release(lease, _core.Outcome.Unused)

    def _forget_ended_holds(self) -> None:
        now = self._clock.now()
        while self._holds and (oldest := next(iter(self._holds.items())))[1][1] <= now:
            self._holds.pop(oldest[0], None)

    def load(self, match: Match, deadline: float, *, request: str | None = None, owner: int = 0) -> Ticket:
        """Leases the match's blocks for `deadline` seconds, those on disk when they have come up.

        The ticket's status is NotFound when a block is gone, TimedOut when one did not come in time.
        """
        space, until = self._space(match.sequence.namespace), self._deadline(deadline)
        chain = match.sequence.chain(space.above)
        ranges = [(group, need.start, len(need)) for group, need in enumerate(match.blocks) if need]
        nbytes = space.geometry.bytes_at(match.blocks) if match.blocks else 0

        def lease() -> tuple[_core.Status, int]:
            return self.index.lease(chain, ranges, _core.LeaseKind.Read, owner, until, nbytes)

        if not match.disk_tokens or self.disk is None:
            ticket = Ticket(self.index, space.geometry, match, lease)
        else:
            ticket = self._load_from_disk(self.disk, space, match, until, lease)
        if self.disk is not None and space.below is not None:
            self._tell_disk(self.disk, space, match, ranges)
        if request is not None:  # only now: between hold and lease nothing may be evicted
            self.drop_hold(request)
        return ticket

    def _load_from_disk(
        self,
        disk: Disk,
        space: Space,
        match: Match,
        until: int,
        lease: Callable[[], tuple[_core.Status, int]],
    ) -> Ticket:
        assert space.below is not None
        above, below = match.sequence.chain(space.above), match.sequence.chain(space.below)
        # What is in memory already stays until the rest has come.
        _, kept = self.index.lease(above, _in_memory(match), _core.LeaseKind.Copy, 0, until)
        promotion = disk.promote(space, above, below, match.below, until)

        def attempt() -> tuple[_core.Status, int] | None:
            late = self._clock.now() >= until
            if not promotion.done and not late and not disk.expired(promotion):
                return None
            taken = (_core.Status.TimedOut, 0) if late or not promotion.done else lease()
            if taken[0] == _core.Status.NotFound and promotion.others and not promotion.failed:
                return None  # somebody else brings the rest
            self.index.release(kept, _core.Outcome.Unused)
            return taken

        return Ticket(self.index, space.geometry, match, attempt)

    def _tell_disk(self, disk: Disk, space: Space, match: Match, ranges: list[Range]) -> None:
        """A hit above is a use below, and what the disk has lost of it is to be copied down again."""
        assert space.below is not None
        above, below = match.sequence.chain(space.above), match.sequence.chain(space.below)
        lost: list[Range] = []
        for group, first, count in ranges:
            disk.log.touch(below, group, first, count)
            if not disk.log.contains(below, group, first + count - 1):
                lost.append(
                    (group, 0, first + count) if space.geometry.chained(group) else (group, first, count)
                )
        if lost:
            disk.offer(space, above, below, lost, known=True)

    # --- storing

    def reserve(
        self,
        sequence: Sequence,
        blocks: Mapping[int, Seq[int]],
        deadline: float,
        *,
        owner: int = 0,
        shards: tuple[int, int] = (0, 0),
    ) -> Reservation:
        """Slots to write for those `blocks` of each group, in rising order, that are neither resident nor in flight.

        shards: (first, count) of the shards that the caller writes; (0, 0) means all. What is not committed within
        `deadline` seconds is given up, and its slots are quarantined until nobody can write them.
        """
        self._tick()
        space = self._space(sequence.namespace)
        chain = sequence.chain(space.above)
        until = self._deadline(deadline)
        parts = {}
        for group, need in blocks.items():
            results = [
                self.index.reserve(chain, (group, run.start, len(run)), shards, owner, until)
                for run in runs(need)
            ]
            if results:
                status, reasons, handles, slots = (
                    np.concatenate(column) for column in zip(*results, strict=True)
                )
                parts[group] = (np.array(need, np.int64), status, reasons, handles, slots)
        return Reservation(self.index, space.geometry, parts, shards, self._copier(space, sequence))

    def _copier(self, space: Space, sequence: Sequence) -> Callable[[dict[int, Blocks]], None] | None:
        """What hands stored blocks to the disk; None where nothing goes there."""
        disk, below = self.disk, space.below
        if disk is None or below is None:
            return None
        chain_above, chain_below, known = (
            sequence.chain(space.above),
            sequence.chain(below),
            sequence.seen_tokens > 0,
        )

        def copy(blocks: dict[int, Blocks]) -> None:
            ranges = [
                (group, run.start, len(run))
                for group, stored in blocks.items()
                for run in runs(stored.tolist())
            ]
            disk.offer(space, chain_above, chain_below, ranges, known)

        return copy

    # --- wishes

    def hint(self, session: str, **wishes: Any) -> None:
        """Says what is known about a session's future: ends, returns_within, priority, ttl. Kept for the policy."""
        self._hints[session] = Hint(session, **wishes)
        self._hints.move_to_end(session)
        while len(self._hints) > _MAX_HINTS:
            self._hints.popitem(last=False)

    def pin(self, sequence: Sequence, ttl: float, *, tokens: int | None = None) -> int | None:
        """Keeps the blocks of the longest boundary up to `tokens` for `ttl` seconds; None when there are none."""
        space = self._space(sequence.namespace)
        chain = sequence.chain(space.above)
        limit = sequence.num_tokens if tokens is None else tokens
        found = Found(space, sequence, self.index)
        boundary = space.geometry.boundary(found, min(limit, sequence.units * space.geometry.unit_tokens))
        if not boundary:
            return None
        ranges = [(g, need.start, len(need)) for g, need in enumerate(found.needed(boundary)) if need]
        status, pin = self.index.lease(chain, ranges, _core.LeaseKind.Pin, 0, self._deadline(ttl), 0)
        return pin if status == _core.Status.Ok else None

    def unpin(self, pin: int) -> bool:
        """Ends a pin; False when its time was over already."""
        return self.index.release(pin, _core.Outcome.Unused)

    # --- account

    def audit(self) -> dict[str, int]:
        """Recounts every byte from the structures themselves; the ledger when all agree, else `AuditError`."""
        findings = self.index.audit()
        if findings:
            raise AuditError("; ".join(findings))
        return {**self.index.ledger(), "evictable": self.index.evictable()}

    def stats(self) -> dict[str, int]:
        """Counters since start: blocks and bytes by what became of them (csrc/include/kvarter/index.h)."""
        return {**self.index.counters(), **self._counts, "hints": len(self._hints)}

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever a match may answer differently."""
        return self.index.version, self.disk.log.version if self.disk is not None else 0

    def exports(self) -> list[tuple[int, int, int, int]]:
        """(descriptor, bytes, kind, arena) of every memfd that a mapper gets, as the node hands them out."""
        arenas = [(fd, size, 0, number) for number, (fd, size) in enumerate(self.pool.arenas)]
        records, columns = self.index.memfds
        return [*arenas, (*records, 1, 0), (*columns, 2, 0)]

    def delegate_ticks(self) -> None:
        """From now on a node's thread keeps time and sends the fences."""
        self._ticks_elsewhere = True

    def _deadline(self, seconds: float) -> int:
        return self._clock.now() + int(seconds * 1e9)

    def _tick(self) -> None:
        if not self._ticks_elsewhere:
            for (
                owner,
                epoch,
            ) in self.index.tick():  # nobody else maps this pool: its writers are this process's
                self.index.fenced(owner, epoch)

    def __repr__(self) -> str:
        ledger = self.index.ledger()
        used = 1 - ledger["free"] / self.pool.bytes
        mib, blocks = self.pool.bytes >> 20, self.index.counters()["resident_blocks"]
        return f"<Store {mib} MiB, {used:.0%} used, {blocks} blocks>"

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all holds, and leaves on disk what is to be there. The memory goes with the last reference."""
        for request in list(self._holds):
            self.drop_hold(request)
        if self.disk is not None:
            self.disk.close()
            self.disk = None


def _in_memory(match: Match) -> list[Range]:
    """The ranges of a match that are in the pool already."""
    ranges = []
    for group, need in enumerate(match.blocks):
        missing = match.below[group] if match.below else ()
        blocks = [b for b in need if b not in missing] if missing else need
        ranges += [(group, run.start, len(run)) for run in runs(blocks)]
    return ranges

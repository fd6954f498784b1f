"""The store: one engine-neutral class that connectors, node, replayer and benches share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from . import _core
from .errors import AuditError, CapacityError, ConfigError
from .finding import Found, Space, runs
from .geometry import Geometry
from .keys import Namespace
from .matching import Matcher, in_memory
from .policy import DEFAULT, AlwaysLoad, LoadPolicy, Measured, named
from .policy.placement import Placement
from .sequence import Sequence
from .tiers.disk import Disk
from .tiers.log import DiskOptions
from .transfers import Match, Reservation, Ticket
from .wishes import Wishes

DEFAULT_BLOCK_BYTES = 16 << 10  # slot records are made for blocks of at least this size on average


class Store:
    """KV blocks in a shared-memory pool, by prefix.

    dram: bytes of payload memory. max_blocks: slot records, one for each shard of a block (default: one for every
    16 KiB of the pool). hold_seconds: how long a match stays true without being loaded. headroom: share of the pool
    that is kept free in the background, so that a put finds room at once. disk: a log below the pool, which the store
    closes. policy: the placement policy's name (`kvarter.policy.POLICIES`). clock: where time comes from.

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
        policy: str = DEFAULT,
    ) -> None:
        kind = named(policy)
        if dram < 2 << 20:
            raise ConfigError(f"a pool of {dram} bytes; expected at least 2 MiB")
        slots = max_blocks or max(dram // DEFAULT_BLOCK_BYTES, 64)
        # Records, columns and hash table, rounded up, and what the policy remembers.
        metadata = slots * 256 + kind.most_state_bytes(slots)
        try:
            _core.check_memory(dram + metadata)
        except ValueError as error:
            raise CapacityError(str(error)) from None
        self._clock = clock or _core.SteadyClock()
        self._hold_seconds = hold_seconds
        self.load_policy = load_policy or (AlwaysLoad() if disk is None else Measured())
        self.pool = _core.Pool(dram, dram, populate)
        self.index = _core.Index(self.pool, self._clock, slots, hold_share, headroom)
        self.disk: Disk | None = None
        if disk is not None:
            self.disk = Disk(disk, self.pool, self.index, self._clock, self.load_policy)
        self._matcher = Matcher(self.index, self.load_policy, self.disk, int(hold_share * dram))
        self._placement = Placement(self.index, kind(slots), self._seconds)
        self._wishes = Wishes(self._placement, self._seconds)
        self._spaces: dict[bytes, Space] = {}
        self._holds: OrderedDict[str, tuple[int, int]] = OrderedDict()  # (lease, deadline), the oldest first
        self._ticks_elsewhere = False

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
            self._placement.opened(space.above, geometry)
        return space

    def invalidate(self, namespace: Namespace) -> None:
        """Nothing of it is served or stored any more; its memory comes back in the background."""
        if self.disk is not None:
            self._space(namespace)  # what an earlier process left on disk is of it, too
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
        session: str | None = None,
    ) -> Match:
        """The longest boundary of at most `limit` tokens that all required groups can serve.

        limit: default one less than the sequence has, since the engine must compute at least one token.
        have_tokens: what the engine has cached itself; blocks wholly below it are not loaded, and a boundary that
        adds nothing is no hit. request: takes a soft hold under this name, so that the answer is still true at
        `load`; it ends at load, at the next match of the same name, or after `hold_seconds`. session: whose hints
        this request has.
        """
        self._tick()
        space = self._space(sequence.namespace)
        self._forget_ended_holds()
        if request is not None:
            self.drop_hold(request)
        limit = sequence.num_tokens - 1 if limit is None else limit
        match, here = self._matcher.match(space, sequence, limit, have_tokens)
        sequence.seen_tokens = max(match.tokens, have_tokens)
        self._wishes.asked(space, sequence, here, request, session)
        if match and request is not None:
            self._hold(space, match, request, owner)
        return match

    def _hold(self, space: Space, match: Match, request: str, owner: int) -> None:
        deadline = self._deadline(self._hold_seconds)
        nbytes = space.geometry.bytes_at(space.geometry.blocks_at(match.tokens))
        status, hold = self.index.lease(
            match.sequence.chain(space.above),
            in_memory(match),
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

        attempt = self.disk.fetch(space, match, until, lease) if self.disk and match.disk_tokens else lease
        ticket = Ticket(self.index, space.geometry, match, attempt)
        if self.disk is not None:
            self.disk.used(space, match, ranges)
        if request is not None:  # only now: between hold and lease nothing may be evicted
            self.drop_hold(request)
        return ticket

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
            for run in runs(need):
                self._placement.stored(sequence, chain, space.geometry, group, run)
            if len(results) == 1:
                asked = np.arange(need[0], need[-1] + 1, dtype=np.int64)
                parts[group] = (asked, *results[0])
            elif results:
                status, reasons, handles, slots = (
                    np.concatenate(column) for column in zip(*results, strict=True)
                )
                parts[group] = (np.array(need, np.int64), status, reasons, handles, slots)
        copy = self.disk.copier(space, sequence) if self.disk is not None else None
        return Reservation(self.index, space.geometry, parts, shards, copy)

    # --- wishes

    def hint(self, session: str, **wishes: Any) -> None:
        """Says what is known about a session's future, for its blocks and its next requests.

        ends: nothing follows. returns_within: seconds in which the next request comes; after them it says nothing.
        priority: above 0 counts for more than others, below for less. ttl: pins for that many seconds what the
        session's last match found. The policy learns what hints are worth: one that is wrong soon means nothing.
        """
        to_pin = self._wishes.hint(session, **wishes)
        if to_pin is not None:
            sequence, boundary = to_pin
            self.pin(sequence, wishes["ttl"], tokens=boundary)

    def share(self, namespace: Namespace, *, floor: int = 0, quota: int = 0) -> None:
        """Bytes that evictions for others leave to a namespace, and above which its own blocks go first; 0: none.

        Raises ValueError when all floors come to more than the pool, or a floor is above its quota.
        """
        self.index.set_share(self._space(namespace).above, floor, quota)

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
        """Recounts every byte, of the disk too, from the structures themselves; the pool's ledger when all agree, else
        `AuditError`."""
        findings = self.index.audit() + self._placement.audit()
        findings += self.disk.log.audit() if self.disk is not None else []
        if findings:
            raise AuditError("; ".join(findings))
        return {**self.index.ledger(), "evictable": self.index.evictable()}

    def stats(self) -> dict[str, int]:
        """Counters since start: blocks and bytes by what became of them (csrc/include/kvarter/index.h)."""
        return {
            **self.index.counters(),
            **self._matcher.counts,
            "hints": len(self._wishes),
            "policy_bytes": self._placement.policy.state_bytes,
            "policy_passes": self._placement.passes,
        }

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

    def _seconds(self) -> float:
        return self._clock.now() / 1e9

    def _tick(self) -> None:
        self._placement.tick()
        if not self._ticks_elsewhere:
            # Nobody else maps this pool: its writers are this process's.
            for owner, epoch in self.index.tick():
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

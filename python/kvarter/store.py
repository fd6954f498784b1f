"""The store that owns its pool: one engine-neutral class that connectors, node, replayer and benches share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from . import _core
from .base_store import BaseStore
from .errors import AuditError, CapacityError, ConfigError
from .finding import Space
from .geometry import Geometry
from .keys import Namespace
from .matching import NOTHING, Looked, Matcher
from .policy import DEFAULT, AlwaysLoad, LoadPolicy, Measured, named
from .policy.placement import Placement
from .sequence import Sequence
from .tiers.disk import Disk
from .tiers.log import DiskOptions
from .wishes import Wishes

if TYPE_CHECKING:
    from .tiers.peer import PeerTier

_MOST_FORGOTTEN = 1024  # namespaces that end when they are opened

DEFAULT_BLOCK_BYTES = 16 << 10  # slot records are made for blocks of at least this size on average


class Store(BaseStore):
    """KV blocks in a shared-memory pool, by prefix.

    dram: bytes of payload memory. max_blocks: slot records, one for each shard of a block (default: one for every
    16 KiB of the pool). hold_seconds: how long a match stays true without being loaded. headroom: share of the pool
    that is kept free in the background, so that a put finds room at once. disk: a log below the pool, which the store
    closes. policy: the placement policy's name (`kvarter.policy.POLICIES`). arena_bytes: of each memory file at most
    (default: one for each NUMA node). clock: where time comes from.
    adopt: descriptors of the arenas and of the records of a store whose process is gone: taken over, with what is in
    them, in the place of `dram` and `max_blocks`.

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
        arena_bytes: int | None = None,
        adopt: tuple[list[int], int] | None = None,
    ) -> None:
        kind = named(policy)
        if dram < 2 << 20:
            raise ConfigError(f"a pool of {dram} bytes; expected at least 2 MiB")
        slots = max_blocks or max(dram // DEFAULT_BLOCK_BYTES, 64)
        # Records, columns and hash table, rounded up, and what the policy remembers.
        metadata = slots * 256 + kind.most_state_bytes(slots)
        try:
            if adopt is None:
                _core.check_memory(dram + metadata)
        except ValueError as error:
            raise CapacityError(str(error)) from None
        super().__init__(clock or _core.SteadyClock(), hold_seconds)
        self.load_policy = load_policy or (AlwaysLoad() if disk is None else Measured())
        self.index: _core.Index
        if adopt is None:
            self.pool = _core.Pool(dram, arena_bytes or dram, populate)
            self.index = _core.Index(self.pool, self._clock, slots, hold_share, headroom)
        else:
            self.pool = _core.adopt_pool(adopt[0])
            self.index = _core.adopt_index(self.pool, self._clock, adopt[1], hold_share, headroom)
            dram, slots = self.pool.bytes, len(self.index.columns["state"])
        self.disk: Disk | None = None
        if disk is not None:
            self.disk = Disk(disk, self.pool, self.index, self._clock, self.load_policy)
        self._matcher = Matcher(self.load_policy, self.disk, int(hold_share * dram))
        self._placement = Placement(self.index, kind(slots), self._seconds)
        self._wishes = Wishes(self._placement, self._seconds)
        self._ticks_elsewhere = False
        self._tier: PeerTier | None = None
        self._forgotten: OrderedDict[bytes, None] = OrderedDict()
        self._opening = threading.Lock()

    # --- namespaces

    def _space(self, namespace: Namespace) -> Space:
        space = self._spaces.get(namespace.digest())
        if space is None:
            # Weights of a later epoch have no name that another process could know: nothing of them outlives this one.
            geometry = Geometry(namespace.unit_tokens, namespace.groups)
            space = self.open_space(namespace.digest(), geometry, lasting=not namespace.epoch)
        return space

    def open_space(self, digest: bytes, geometry: Geometry, *, lasting: bool) -> Space:
        """A namespace by its digest alone, for who asks on behalf of another process. lasting: may lie on disk."""
        with self._opening:
            space = self._spaces.get(digest)
            if space is None:
                space = self._opened(digest, geometry, lasting)
                if digest in self._forgotten:  # what is on disk of it is of before that
                    del self._forgotten[digest]
                    self._end(space)
                    space = self._opened(digest, geometry, lasting)
                self._spaces[digest] = space
                self._placement.opened(space.above, geometry)
        return space

    def _opened(self, digest: bytes, geometry: Geometry, lasting: bool) -> Space:
        above = self.index.open_namespace(digest, geometry.shapes())
        if self.disk is not None and lasting:
            return self.disk.open(digest, above, geometry)
        return Space(above, None, geometry, self.index)

    def spaces(self) -> dict[bytes, Space]:
        """Open namespaces by digest."""
        return dict(self._spaces)

    def invalidate(self, namespace: Namespace, *, everywhere: bool = True) -> None:
        if self.disk is not None or (everywhere and self._tier is not None):
            self._space(namespace)  # what an earlier process left on disk is of it, too, and what others have
        self.invalidate_space(namespace.digest(), everywhere=everywhere)

    def invalidate_space(self, digest: bytes, *, everywhere: bool) -> bool:
        """As `invalidate`, of a namespace that is open; False when it is not."""
        if everywhere and self._tier is not None and digest in self._spaces:
            self._tier.cleared(digest)  # others are told before anybody here can ask them again
        space = self._spaces.pop(digest, None)
        if space is None:
            return False
        self._end(space)
        return True

    def forget_space(self, digest: bytes) -> None:
        """Ends a namespace here, as somebody elsewhere did: at once, or when it is opened, with what the disk has."""
        with self._opening:
            if not self.invalidate_space(digest, everywhere=False):
                self._forgotten[digest] = None
                if len(self._forgotten) > _MOST_FORGOTTEN:
                    self._forgotten.popitem(last=False)

    def _end(self, space: Space) -> None:
        self.index.invalidate(space.above)
        if self.disk is not None:
            self.disk.invalidate(space)

    # --- wishes

    def hint(self, session: str, **wishes: Any) -> None:
        to_pin = self._wishes.hint(session, **wishes)
        if to_pin is not None:
            self._pin(*to_pin, wishes["ttl"])

    def share(self, namespace: Namespace, *, floor: int = 0, quota: int = 0) -> None:
        self.index.set_share(self._space(namespace).above, floor, quota)

    def asked(
        self,
        space: Space,
        sequence: Sequence,
        boundary: int,
        request: str | None,
        session: str | None,
        looked: Looked = NOTHING,
    ) -> bool:
        if self._tier is not None:
            self._tier.used(space, sequence, boundary)
        return self._wishes.asked(space, sequence, boundary, request, session)

    def stored(self, space: Space, sequence: Sequence, group: int, run: range) -> None:
        self._placement.stored(sequence, sequence.chain(space.above), space.geometry, group, run)
        if self._tier is not None and run and space.geometry.chained(group):
            tokens = space.geometry.groups[group].block_tokens
            self._tier.noted(space, sequence, run.start * tokens, run.stop * tokens)

    # --- account

    def audit(self) -> dict[str, int]:
        findings = self.index.audit() + self._placement.audit()
        findings += self.disk.log.audit() if self.disk is not None else []
        if findings:
            raise AuditError("; ".join(findings))
        return {**self.index.ledger(), "evictable": self.index.evictable()}

    def stats(self) -> dict[str, int]:
        return {
            **self.counters(),
            **self._matcher.counts,
            "hints": len(self._wishes),
            "policy_bytes": self._placement.policy.state_bytes,
            "policy_passes": self._placement.passes,
            "policy_asked_units": self._placement.policy.asked_units,
            "policy_known_units": self._placement.policy.known_units,
        }

    def ledger(self) -> dict[str, int]:
        return self.index.ledger()

    @property
    def version(self) -> tuple[int, ...]:
        return (
            self.index.version,
            self.disk.log.version if self.disk is not None else 0,
            self.beyond.version if self.beyond is not None else 0,
        )

    def join(self, tier: PeerTier) -> None:
        """From now on other hosts are asked for what is not here, and told what is."""
        self._tier = self._matcher.beyond = tier

    def exports(self) -> list[tuple[int, int, int, int]]:
        """(descriptor, bytes, kind, arena) of every memfd that a mapper gets, as the node hands them out."""
        arenas = [(fd, size, 0, number) for number, (fd, size) in enumerate(self.pool.arenas)]
        records, columns = self.index.memfds
        return [*arenas, (*records, 1, 0), (*columns, 2, 0)]

    def place(self) -> None:
        """Lets the policy do its work, for who has a thread for that."""
        self._placement.tick()

    def delegate_ticks(self) -> None:
        """From now on a node's thread keeps time and sends the fences."""
        self._ticks_elsewhere = True

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

    def close(self) -> None:
        """Ends all holds, and leaves on disk what is to be there. The memory goes with the last reference."""
        self._end_holds()
        if self.disk is not None:
            self.disk.close()
            self.disk = None

"""The store: one engine-neutral class that connectors, node, replayer and benches share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _core
from .errors import AuditError, CapacityError, ConfigError
from .geometry import Geometry
from .keys import Namespace
from .policy import CONTINUES, DEFAULT, ENDS, HIGH, LOW, NO_HINT, AlwaysLoad, LoadPolicy, named
from .policy.placement import Placement
from .sequence import Sequence
from .transfers import Match, Reservation, Ticket, _Resident

DEFAULT_BLOCK_BYTES = 16 << 10  # slot records are made for blocks of at least this size on average
_MAX_HINTS = 4096
_ASKED, _MAX_SESSIONS = 1 << 12, 512  # requests and sessions that are remembered


@dataclass(frozen=True)
class Hint:
    """What a caller knows about a session's future. Kept; the placement policy weighs it."""

    session: str
    ends: bool = False
    returns_within: float | None = None
    priority: int = 0
    ttl: float | None = None
    said_at: float = 0.0

    def code(self, now: float) -> int:
        """What a policy is told at `now` seconds; a promise whose time is over says nothing any more."""
        if self.ends:
            return ENDS
        if self.returns_within is not None:
            return CONTINUES if now <= self.said_at + self.returns_within else NO_HINT
        return HIGH if self.priority > 0 else LOW if self.priority < 0 else NO_HINT


class Store:
    """KV blocks in a shared-memory pool, by prefix.

    dram: bytes of payload memory. max_blocks: slot records, one for each shard of a block (default: one for every
    16 KiB of the pool). hold_seconds: how long a match stays true without being loaded. headroom: share of the pool
    that is kept free in the background, so that a put finds room at once. clock: where time comes from. policy: the
    placement policy's name (`kvarter.policy.POLICIES`).

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
        clock: _core.Clock | None = None,
        populate: bool = True,
        policy: str = DEFAULT,
    ) -> None:
        kind = named(policy)
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
        self._load_policy = load_policy or AlwaysLoad()
        self.pool = _core.Pool(dram, dram, populate)
        self.index = _core.Index(self.pool, self._clock, slots, hold_share, headroom)
        self._spaces: dict[bytes, tuple[int, Geometry]] = {}
        self._holds: OrderedDict[str, tuple[int, int]] = OrderedDict()  # (lease, deadline), the oldest first
        self._placement = Placement(self.index, kind(slots), self._seconds)
        self._hints: OrderedDict[str, Hint] = OrderedDict()
        self._asked = np.zeros(
            _ASKED, np.int64
        )  # hashes of requests that the policy knows, each at its place
        self._sessions: OrderedDict[str, tuple[Sequence, int]] = (
            OrderedDict()
        )  # the last match, and its boundary
        self._ticks_elsewhere = False
        self._not_worthwhile = 0

    # --- namespaces

    def open(self, namespace: Namespace) -> int:
        """The namespace's number here; opened at first use."""
        return self._space(namespace)[0]

    def _space(self, namespace: Namespace) -> tuple[int, Geometry]:
        digest = namespace.digest()
        space = self._spaces.get(digest)
        if space is None:
            geometry = Geometry(namespace.unit_tokens, namespace.groups)
            space = (self.index.open_namespace(digest, geometry.shapes()), geometry)
            self._spaces[digest] = space
        return space

    def invalidate(self, namespace: Namespace) -> None:
        """Nothing of it is served or stored any more; its memory comes back in the background."""
        space = self._spaces.pop(namespace.digest(), None)
        if space is not None:
            self.index.invalidate(space[0])

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
        ns, geometry = self._space(sequence.namespace)
        self._forget_ended_holds()
        if request is not None:
            self.drop_hold(request)
        limit = sequence.num_tokens - 1 if limit is None else limit
        chain = sequence.chain(ns)
        resident = _Resident(self.index, chain)
        boundary = geometry.boundary(resident, min(limit, sequence.units * geometry.unit_tokens))
        self._tell(sequence, chain, geometry, boundary, request, session)
        if boundary <= have_tokens:
            return Match(sequence, 0, have_tokens, ())
        blocks = [
            range(max(need.start, have_tokens // group.block_tokens), need.stop)
            for group, need in zip(geometry.groups, self._needed(geometry, chain, boundary), strict=True)
        ]
        if not self._load_policy.worthwhile(boundary - have_tokens, geometry.bytes_at(blocks)):
            self._not_worthwhile += 1
            return Match(sequence, 0, have_tokens, ())
        if request is not None:
            ranges = [(group, need.start, len(need)) for group, need in enumerate(blocks) if need]
            deadline = self._deadline(self._hold_seconds)
            nbytes = geometry.bytes_at(geometry.blocks_at(boundary))
            status, hold = self.index.lease(chain, ranges, _core.LeaseKind.Hold, owner, deadline, nbytes)
            if status == _core.Status.Ok:
                self._holds[request] = (hold, deadline)
        return Match(sequence, boundary, have_tokens, tuple(blocks))

    def _needed(self, geometry: Geometry, chain: _core.Chain, boundary: int) -> list[range]:
        """The blocks of each group at `boundary`; of an optional one only if all are there."""
        needed = list(geometry.blocks_at(boundary))
        for number, group in enumerate(geometry.groups):
            if not group.required and not all(self.index.contains(chain, number, b) for b in needed[number]):
                needed[number] = range(0)
        return needed

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
        """Leases the match's blocks for `deadline` seconds. The ticket's status is NotFound when one is gone."""
        ns, geometry = self._space(match.sequence.namespace)
        ranges = [(group, need.start, len(need)) for group, need in enumerate(match.blocks) if need]
        status, lease = self.index.lease(
            match.sequence.chain(ns),
            ranges,
            _core.LeaseKind.Read,
            owner,
            self._deadline(deadline),
            geometry.bytes_at(match.blocks) if match.blocks else 0,
        )
        if request is not None:  # only now: between hold and lease nothing may be evicted
            self.drop_hold(request)
        return Ticket(self.index, geometry, match, status, lease)

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
        ns, geometry = self._space(sequence.namespace)
        chain = sequence.chain(ns)
        until = self._deadline(deadline)
        parts = {}
        for group, need in blocks.items():
            results = [
                self.index.reserve(chain, (group, run.start, len(run)), shards, owner, until)
                for run in _runs(need)
            ]
            for run in _runs(need):
                self._placement.stored(sequence, chain, geometry, group, run)
            if results:
                status, reasons, handles, slots = (
                    np.concatenate(column) for column in zip(*results, strict=True)
                )
                parts[group] = (np.array(need, np.int64), status, reasons, handles, slots)
        return Reservation(self.index, geometry, parts, shards)

    # --- wishes

    def hint(self, session: str, **wishes: Any) -> None:
        """Says what is known about a session's future, for its blocks and its next requests.

        ends: nothing follows. returns_within: seconds in which the next request comes; after them it says nothing.
        priority: above 0 counts for more than others, below for less. ttl: pins for that many seconds what the
        session's last match found. The policy learns what hints are worth: one that is wrong soon means nothing.
        """
        self._hints[session] = Hint(session, said_at=self._seconds(), **wishes)
        self._act_on(self._hints[session])
        self._hints.move_to_end(session)
        while len(self._hints) > _MAX_HINTS:
            self._hints.popitem(last=False)

    def _act_on(self, hint: Hint) -> None:
        last = self._sessions.get(hint.session)
        if last is None or not last[0].units:
            return
        sequence, boundary = last
        ns, geometry = self._space(sequence.namespace)
        self._placement.rehint(sequence, sequence.chain(ns), geometry, hint.code(self._seconds()))
        if hint.ttl is not None and boundary:
            self.pin(sequence, hint.ttl, tokens=boundary)

    def _tell(
        self,
        sequence: Sequence,
        chain: _core.Chain,
        geometry: Geometry,
        boundary: int,
        request: str | None,
        session: str | None,
    ) -> None:
        """Tells the policy of a request, once."""
        if request is not None:
            name = hash(request)
            if self._asked[name % _ASKED] == name:
                return
            self._asked[name % _ASKED] = name
        hint = NO_HINT
        if session is not None:
            self._sessions[session] = sequence, boundary
            self._sessions.move_to_end(session)
            while len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
            if session in self._hints:
                hint = self._hints[session].code(self._seconds())
        self._placement.asked(sequence, chain, geometry, boundary // geometry.unit_tokens, hint)

    def share(self, namespace: Namespace, *, floor: int = 0, quota: int = 0) -> None:
        """Bytes that evictions for others leave to a namespace, and above which its own blocks go first; 0: none.

        Raises ValueError when all floors come to more than the pool, or a floor is above its quota.
        """
        self.index.set_share(self._space(namespace)[0], floor, quota)

    def pin(self, sequence: Sequence, ttl: float, *, tokens: int | None = None) -> int | None:
        """Keeps the blocks of the longest boundary up to `tokens` for `ttl` seconds; None when there are none."""
        ns, geometry = self._space(sequence.namespace)
        chain = sequence.chain(ns)
        limit = sequence.num_tokens if tokens is None else tokens
        boundary = geometry.boundary(
            _Resident(self.index, chain), min(limit, sequence.units * geometry.unit_tokens)
        )
        if not boundary:
            return None
        needed = self._needed(geometry, chain, boundary)
        ranges = [(g, need.start, len(need)) for g, need in enumerate(needed) if need]
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
        return {
            **self.index.counters(),
            "not_worthwhile": self._not_worthwhile,
            "hints": len(self._hints),
            "policy_bytes": self._placement.policy.state_bytes,
            "policy_passes": self._placement.passes,
        }

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
        """Ends all holds. The memory goes with the last reference."""
        for request in list(self._holds):
            self.drop_hold(request)


def _runs(blocks: Seq[int]) -> Iterator[range]:
    """Consecutive numbers together: one call into the index for each run."""
    if isinstance(blocks, range) and blocks.step == 1:
        if blocks:
            yield blocks
        return
    start = 0
    for at in range(1, len(blocks) + 1):
        if at == len(blocks) or blocks[at] != blocks[at - 1] + 1:
            yield range(blocks[start], blocks[at - 1] + 1)
            start = at

"""What a store answers: matches, load tickets and reservations."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import _core
from .geometry import Geometry

if TYPE_CHECKING:
    from .finding import AnyIndex
    from .sequence import Sequence

Blocks = npt.NDArray[np.int64]  # numbers of blocks in their sequence
Slots = npt.NDArray[np.void]  # of _core.SLOT_DTYPE: record, arena, offset, length, checksum, generation


@dataclass(frozen=True)
class Match:
    """Where a hit may end and what it takes to get there. False when there is no hit.

    tokens: the boundary, 0 for a miss. have_tokens: what the engine has itself. blocks: for each group those to load.
    below: for each group those that must come up first, from disk or from another host. disk_tokens, peer_tokens: how
    many of the new tokens need them, of which only one is not 0. pending: others are being asked what they have, so
    this is no answer yet; ask again soon.
    """

    sequence: Sequence = field(repr=False)
    tokens: int
    have_tokens: int
    blocks: tuple[range, ...]
    below: tuple[Seq[int], ...] = ()
    disk_tokens: int = 0
    peer_tokens: int = 0
    pending: bool = False

    def __bool__(self) -> bool:
        return self.tokens > 0

    @property
    def new_tokens(self) -> int:
        """Tokens that loading adds to what the engine has."""
        return max(self.tokens - self.have_tokens, 0) if self else 0


class Ticket:
    """Leased blocks of one load. Addresses are valid until `finish`, or until the deadline.

    `status` is Busy until `poll` says true: then Ok, or why there is nothing to load. As a context manager it ends as
    loaded, or as failed when the body raised.
    """

    def __init__(
        self,
        index: AnyIndex,
        geometry: Geometry,
        match: Match,
        attempt: Callable[[], tuple[_core.Status, int] | None],
    ) -> None:
        """attempt: takes the lease; None while blocks are still on their way."""
        self._index, self._geometry, self._attempt = index, geometry, attempt
        self.match = match
        self.status, self._lease = _core.Status.Busy, 0
        self._slots: Slots = np.empty(0, _core.SLOT_DTYPE)
        self._starts: list[int] = []  # of each group in _slots
        self._positions: list[int] = []  # of each group's first block in the lease
        at = position = 0
        for group, need in zip(geometry.groups, match.blocks, strict=bool(match.blocks)):
            self._starts.append(at)
            self._positions.append(position)
            at += len(need) * len(group.shard_bytes)
            position += len(need)
        self.poll()

    @property
    def pool(self) -> bytes:
        """Names the pool that the slots are in."""
        return self._index.pool_id

    def epoch(self, owner: int) -> int:
        """What copies of these slots carry."""
        return self._index.epoch(owner)

    def poll(self) -> bool:
        """Whether the bytes are in the slots, or never will be. Blocks in memory always are."""
        if self.status == _core.Status.Busy and (taken := self._attempt()) is not None:
            self.status, self._lease = taken
            if self.status == _core.Status.Ok:
                self._slots = self._index.slots(self._lease)
        return self.status != _core.Status.Busy

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds for `poll`. For those who have nothing else to do."""
        until = time.monotonic() + timeout
        while not self.poll():
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    def slots(self, group: int) -> Slots:
        """Slots [blocks, shards] of `match.blocks[group]`."""
        shards = len(self._geometry.groups[group].shard_bytes)
        start = self._starts[group]
        return self._slots[start : start + len(self.match.blocks[group]) * shards].reshape(-1, shards)

    def drop_corrupt(self, group: int, blocks: Iterable[int]) -> None:
        """These blocks failed their check: removed everywhere, with what leans on them, so that a store heals them."""
        first, base = self.match.blocks[group].start, self._positions[group]
        self._index.drop_corrupt(self._lease, [base + block - first for block in blocks])

    def finish(self, outcome: _core.Outcome) -> bool:
        """Ends the lease. False when it had ended before: what was read after its deadline may be anything."""
        if self.status == _core.Status.Busy:  # given up before its blocks came
            self.status = _core.Status.Closed
        if self.status != _core.Status.Ok:
            return False
        return self._index.release(self._lease, outcome)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.finish(_core.Outcome.Failed if kind else _core.Outcome.Loaded)


Part = tuple[
    npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.uint64], Slots
]


class Reservation:
    """Slots to write. Whole blocks become visible when every shard has been committed, and none before.

    `blocks(group)` says which of the asked blocks were granted; the others were there already, are being made, or
    were refused (`reasons`). Handles stay in the index; this object can be dropped once `commit` or `abort` was said
    for all shards.
    """

    def __init__(
        self,
        index: AnyIndex,
        geometry: Geometry,
        parts: dict[int, Part],
        shards: tuple[int, int],
        on_stored: Callable[[dict[int, Blocks]], None] | None = None,
    ) -> None:
        """on_stored: told the blocks of each group once all of these shards have been reported."""
        self._index, self._geometry = index, geometry
        self._parts = parts
        self._first_shard, self._shards = shards
        self._on_stored = on_stored
        self._reported: defaultdict[int, set[int]] = defaultdict(set)  # shards, by group
        granted = [handles[handles != 0] for _, _, _, handles, _ in parts.values()]
        self.handles: npt.NDArray[np.uint64] = np.concatenate(granted) if granted else np.empty(0, np.uint64)

    def __len__(self) -> int:
        return len(self.handles)

    @property
    def pool(self) -> bytes:
        """Names the pool that the slots are in."""
        return self._index.pool_id

    def epoch(self, owner: int) -> int:
        """What copies into these slots carry."""
        return self._index.epoch(owner)

    def groups(self) -> list[int]:
        """Groups with granted blocks, in the order of `handles`."""
        return [group for group, part in self._parts.items() if part[3].any()]

    def blocks(self, group: int) -> npt.NDArray[np.int64]:
        """Numbers of the granted blocks of a group."""
        asked, _, _, handles, _ = self._parts[group]
        granted: npt.NDArray[np.int64] = asked[handles != 0]
        return granted

    def slots(self, group: int) -> Slots:
        """Slots [granted blocks, shards] of a group, for the caller's shards."""
        shards = self._shards or len(self._geometry.groups[group].shard_bytes)
        return self._parts[group][4].reshape(-1, shards)

    def reasons(self) -> dict[str, int]:
        """How many asked blocks were not granted, by reason."""
        counts: dict[str, int] = {}
        for _, _, reasons, _, _ in self._parts.values():
            for number, count in zip(*np.unique(reasons[reasons != 0], return_counts=True), strict=True):
                counts[_core.REASONS[number]] = counts.get(_core.REASONS[number], 0) + int(count)
        return counts

    def kept(self, group: int) -> npt.NDArray[np.bool_]:
        """Of each asked block, whether it was granted, is resident or is being made; empty when nobody answered."""
        if group not in self._parts:
            return np.empty(0, np.bool_)
        status = self._parts[group][1]
        kept: npt.NDArray[np.bool_] = (status == _core.Status.Ok) | (status == _core.Status.Busy)
        return kept

    def refused(self, group: int, reason: str) -> bool:
        """Whether any block of the group was refused for this reason."""
        return group in self._parts and bool((self._parts[group][2] == _core.REASONS.index(reason)).any())

    def commit(self, rank: int, ok: npt.NDArray[np.uint8], checksums: npt.NDArray[np.uint64]) -> None:
        """A rank has written its shard (ok 1) or has failed (0), of each granted block of each group that it writes
        (`CacheGroup.written_by`), in the order of `handles`."""
        at = 0
        for group, part in self._parts.items():
            if self._geometry.groups[group].written_by(rank):
                handles = part[3][part[3] != 0]
                here = slice(at, at + len(handles))
                shard = self._geometry.groups[group].shard_of(rank)
                self._index.complete(handles, shard, ok[here], checksums[here])
                at += len(handles)
                self._reported[group].add(shard)
        if self._on_stored is not None and all(
            len(self._reported[group]) == self.slots(group).shape[1] for group in self.groups()
        ):
            self._on_stored({group: self.blocks(group) for group in self.groups()})
            self._on_stored = None

    def abort(self) -> None:
        """Gives all of it up. The caller's writers may touch the slots no more; other owners' still may."""
        self._index.abort(self.handles, (self._first_shard, self._shards))

"""Cache groups, their lifetimes, and the planner that finds where a hit may end.

A *boundary* is a token position at which every required group has what it needs; only there may a hit end.
No other module assumes one block size, one group or one shard.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from operator import mul
from typing import Protocol

from .errors import GeometryError


@dataclass(frozen=True)
class Full:
    """Every block back to token 0 is needed."""


@dataclass(frozen=True)
class Window:
    """Only what the next token can still see: the last `tokens - 1` tokens before the boundary.

    `retained_tokens` more tokens before that, and `extra_blocks` more whole blocks (one for speculative drafts),
    are needed where the engine keeps them too.
    """

    tokens: int
    retained_tokens: int = 0
    extra_blocks: int = 0


@dataclass(frozen=True)
class State:
    """One snapshot, valid exactly at its boundary."""


@dataclass(frozen=True)
class Chunked:
    """Only what lies in the same chunk of `tokens` tokens as the next token."""

    tokens: int


Lifetime = Full | Window | State | Chunked


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share one block geometry and one lifetime.

    block_tokens: tokens in a block (for `State`: the distance between possible snapshots).
    shard_bytes: bytes of one block in each shard, padding stripped. One entry a rank, or one for every `copies` ranks.
    required: a boundary without this group's blocks is no boundary.
    replay_tokens: the engine recomputes that many tokens before the boundary itself, so they need not be stored.
    copies: how many neighbouring ranks hold the same bytes, which are stored once, by the first of them.
    """

    name: str
    lifetime: Lifetime
    block_tokens: int
    shard_bytes: tuple[int, ...]
    required: bool = True
    replay_tokens: int = 0
    copies: int = 1

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise GeometryError(
                f"group {self.name!r} has blocks of {self.block_tokens} tokens; expected at least 1"
            )
        if not self.shard_bytes or min(self.shard_bytes) < 1:
            raise GeometryError(
                f"group {self.name!r} has shards of {self.shard_bytes} bytes; each needs at least 1"
            )
        if self.copies < 1:
            raise GeometryError(f"group {self.name!r} has {self.copies} copies; expected at least 1")
        if isinstance(self.lifetime, Window | Chunked) and self.lifetime.tokens < 1:
            raise GeometryError(
                f"group {self.name!r} sees {self.lifetime.tokens} tokens; expected at least 1"
            )
        if isinstance(self.lifetime, State) and self.replay_tokens:
            raise GeometryError(
                f"group {self.name!r} keeps states, which cannot be replayed from {self.replay_tokens} tokens"
            )

    def identity(self) -> bytes:
        """What of this group makes two blocks interchangeable, unambiguously encoded; part of the namespace."""
        life = self.lifetime
        sight = ("tokens", "retained_tokens", "extra_blocks")
        window = tuple(getattr(life, field, 0) for field in sight)
        name, kind = self.name.encode(), type(life).__name__.encode()
        return struct.pack(
            f"<I{len(name)}sI{len(kind)}s3QQQ?II{len(self.shard_bytes)}Q",
            *(len(name), name, len(kind), kind, *window, self.block_tokens, self.replay_tokens),
            *(self.required, self.copies, len(self.shard_bytes), *self.shard_bytes),
        )

    def shard_of(self, rank: int) -> int:
        """Which of a block's shards is a rank's."""
        return rank // self.copies

    def written_by(self, rank: int) -> bool:
        """Whether a rank stores its shard: of those that have it alike, the first one does."""
        return rank % self.copies == 0

    def blocks_at(self, boundary: int) -> range:
        """The blocks that this group needs at `boundary` tokens, a multiple of `block_tokens`."""
        end = -(-max(boundary - self.replay_tokens, 0) // self.block_tokens)
        life = self.lifetime
        if isinstance(life, Full):
            return range(end)
        at = boundary // self.block_tokens
        if isinstance(life, State):
            return range(at - 1, at) if at else range(0)
        if isinstance(life, Chunked):
            return range(min(boundary // life.tokens * life.tokens // self.block_tokens, end), end)
        return range(min(max(at - self._window_blocks(life), 0), end), end)

    def _window_blocks(self, life: Window) -> int:
        return -(-(life.tokens - 1 + life.retained_tokens) // self.block_tokens) + life.extra_blocks


def groups_digest(geometry: Geometry) -> bytes:
    """32 bytes that two hosts have alike for the same groups and units."""
    parts = (struct.pack("<Q", geometry.unit_tokens), *(group.identity() for group in geometry.groups))
    return hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()


class Resident(Protocol):
    """What the planner asks: which blocks of one sequence a store has. All counts are in the group's blocks."""

    def leading(self, group: int, limit: int) -> int:
        """How many blocks are resident from block 0 on, at most `limit`."""

    def last_run(self, group: int, end: int, run: int) -> int:
        """The largest e <= end such that the `min(run, e)` blocks before e are all resident; 0 when there is none."""


@dataclass(frozen=True)
class Geometry:
    """All cache groups of one engine over hash units of `unit_tokens` tokens."""

    unit_tokens: int
    groups: tuple[CacheGroup, ...]

    def __post_init__(self) -> None:
        if self.unit_tokens < 1:
            raise GeometryError(f"hash units of {self.unit_tokens} tokens; expected at least 1")
        if not any(group.required for group in self.groups):
            raise GeometryError(
                f"none of {len(self.groups)} groups is required: nothing would say where a hit ends"
            )
        for group in self.groups:
            if group.block_tokens % self.unit_tokens and self.unit_tokens % group.block_tokens:
                raise GeometryError(
                    f"group {group.name!r} has blocks of {group.block_tokens} tokens and hash units have "
                    f"{self.unit_tokens}; one must be a multiple of the other"
                )

    @cached_property
    def alignment(self) -> int:
        """Boundaries are multiples of this many tokens."""
        return lcm(self.unit_tokens, *(group.block_tokens for group in self.groups if group.required))

    def chained(self, group: int) -> bool:
        """Whether a block of the group is worth nothing without its ancestors."""
        return isinstance(self.groups[group].lifetime, Full)

    def shapes(self) -> list[tuple[int, int, bool, list[int]]]:
        """(units a block, blocks a unit, chained, bytes of each shard) of every group, as the index takes them."""
        return [
            (
                max(group.block_tokens // self.unit_tokens, 1),
                max(self.unit_tokens // group.block_tokens, 1),
                self.chained(number),
                list(group.shard_bytes),
            )
            for number, group in enumerate(self.groups)
        ]

    def boundary(self, resident: Resident, limit: int) -> int:
        """The largest aligned boundary of at most `limit` tokens that all required groups can serve; 0: none."""
        align = self.alignment
        boundary, agreed = max(limit, 0) // align * align, -1
        while boundary != agreed:  # until one pass over all groups lowers nothing
            agreed = boundary
            for number, group in enumerate(self.groups):
                if group.required and boundary:
                    boundary = self._bound(resident, number, group, boundary) // align * align
        return boundary

    @staticmethod
    def _bound(resident: Resident, number: int, group: CacheGroup, boundary: int) -> int:
        """`boundary` when the group can serve it, else a lower position above which it can serve none."""
        need = group.blocks_at(boundary)
        if not need:
            return boundary
        if isinstance(group.lifetime, Full):
            have = resident.leading(number, len(need))
            return boundary if have == len(need) else have * group.block_tokens + group.replay_tokens
        if isinstance(
            group.lifetime, Chunked
        ):  # how far back it reaches depends on where it is: step by step
            return boundary if resident.last_run(number, need.stop, len(need)) == need.stop else boundary - 1
        skipped = boundary // group.block_tokens - need.stop  # whole blocks that the engine replays
        # Where the window is cut off by token 0 the run is shorter; last_run knows that from its end alone.
        run = 1 if isinstance(group.lifetime, State) else group._window_blocks(group.lifetime) - skipped
        return (resident.last_run(number, need.stop, run) + skipped) * group.block_tokens

    def blocks_at(self, boundary: int) -> tuple[range, ...]:
        """For every group the blocks that it needs at `boundary`; empty for optional groups not aligned to it."""
        return tuple(
            group.blocks_at(boundary) if boundary % group.block_tokens == 0 else range(0)
            for group in self.groups
        )

    def kept_blocks(
        self, number: int, first: int, upto: int, kept: Collection[int], dense_from: int
    ) -> list[int]:
        """Those of blocks [first, upto) of a group that some kept boundary needs: one of `kept`, or any aligned
        boundary above `dense_from` tokens. `Full` groups need all."""
        group = self.groups[number]
        if isinstance(group.lifetime, Full):
            return list(range(first, upto))
        align = self.alignment
        life = group.lifetime
        sight = getattr(life, "tokens", 0) + getattr(life, "retained_tokens", 0)
        blocks = getattr(life, "extra_blocks", 0) + 2  # and rounding at both ends
        reach = (
            (upto + blocks) * group.block_tokens + sight + align
        )  # no boundary beyond needs a block below upto
        dense = range(
            max(dense_from // align, first * group.block_tokens // align) * align + align, reach + 1, align
        )
        needed: set[int] = set()
        for boundary in (*kept, *dense):
            if boundary % group.block_tokens == 0:
                needed.update(group.blocks_at(boundary))
        return [block for block in range(first, upto) if block in needed]

    def bytes_at(self, blocks: Sequence[Sequence[int]]) -> int:
        """Payload bytes of these blocks of each group, all shards together."""
        return sum(map(mul, map(len, blocks), self._block_bytes))

    @cached_property
    def _block_bytes(self) -> tuple[int, ...]:
        return tuple(sum(group.shard_bytes) for group in self.groups)

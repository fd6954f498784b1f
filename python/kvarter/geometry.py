"""Cache groups, their lifetimes, and the planner that finds where a hit may end.

A *boundary* is a token position at which every required group has what it needs; only there may a hit end.
No other module assumes one block size, one group or one shard.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
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


Lifetime = Full | Window | State


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share one block geometry and one lifetime.

    block_tokens: tokens in a block (for `State`: the distance between possible snapshots).
    shard_bytes: bytes of one block in each shard, padding stripped; one entry a rank, or one alone if `replicated`.
    required: a boundary without this group's blocks is no boundary.
    replay_tokens: the engine recomputes that many tokens before the boundary itself, so they need not be stored.
    replicated: the blocks are identical on every rank and stored once.
    """

    name: str
    lifetime: Lifetime
    block_tokens: int
    shard_bytes: tuple[int, ...]
    required: bool = True
    replay_tokens: int = 0
    replicated: bool = False

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise GeometryError(f"group {self.name!r} has blocks of {self.block_tokens} tokens; expected at least 1")
        if not self.shard_bytes or min(self.shard_bytes) < 1:
            raise GeometryError(f"group {self.name!r} has shards of {self.shard_bytes} bytes; each needs at least 1")
        if self.replicated and len(self.shard_bytes) != 1:
            raise GeometryError(f"group {self.name!r} is replicated and has {len(self.shard_bytes)} shards; expected 1")
        if isinstance(self.lifetime, Window) and self.lifetime.tokens < 1:
            raise GeometryError(f"group {self.name!r} has a window of {self.lifetime.tokens} tokens; expected at least 1")
        if isinstance(self.lifetime, State) and self.replay_tokens:
            raise GeometryError(f"group {self.name!r} keeps states, which cannot be replayed from {self.replay_tokens} tokens")

    def identity(self) -> bytes:
        """What of this group makes two blocks interchangeable, unambiguously encoded; part of the namespace."""
        life = self.lifetime
        window = (life.tokens, life.retained_tokens, life.extra_blocks) if isinstance(life, Window) else (0, 0, 0)
        name, kind = self.name.encode(), type(life).__name__.encode()
        return struct.pack(
            f"<I{len(name)}sI{len(kind)}s3QQQ??I{len(self.shard_bytes)}Q",
            *(len(name), name, len(kind), kind, *window, self.block_tokens, self.replay_tokens),
            *(self.required, self.replicated, len(self.shard_bytes), *self.shard_bytes),
        )

    def blocks_at(self, boundary: int) -> range:
        """The blocks that this group needs at `boundary` tokens, a multiple of `block_tokens`."""
        end = -(-max(boundary - self.replay_tokens, 0) // self.block_tokens)
        life = self.lifetime
        if isinstance(life, Full):
            return range(end)
        at = boundary // self.block_tokens
        if isinstance(life, State):
            return range(at - 1, at) if at else range(0)
        return range(min(max(at - self._window_blocks(life), 0), end), end)

    def _window_blocks(self, life: Window) -> int:
        return -(-(life.tokens - 1 + life.retained_tokens) // self.block_tokens) + life.extra_blocks


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
            raise GeometryError(f"none of {len(self.groups)} groups is required: nothing would say where a hit ends")
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

    def shapes(self) -> list[tuple[int, int, bool, list[int]]]:
        """(units a block, blocks a unit, chained, bytes of each shard) of every group, as the index takes them."""
        return [
            (
                max(group.block_tokens // self.unit_tokens, 1),
                max(self.unit_tokens // group.block_tokens, 1),
                isinstance(group.lifetime, Full),
                list(group.shard_bytes),
            )
            for group in self.groups
        ]

    def boundary(self, resident: Resident, limit: int) -> int:
        """The largest aligned boundary of at most `limit` tokens that all required groups can serve; 0: none."""
        align = self.alignment
        boundary, agreed = limit // align * align, -1
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
        skipped = boundary // group.block_tokens - need.stop  # replayed by the engine: whole blocks before the boundary
        # Where the window is cut off by token 0 the run is shorter; last_run knows that from its end alone.
        run = 1 if isinstance(group.lifetime, State) else group._window_blocks(group.lifetime) - skipped
        return (resident.last_run(number, need.stop, run) + skipped) * group.block_tokens

    def blocks_at(self, boundary: int) -> tuple[range, ...]:
        """For every group the blocks that it needs at `boundary`; empty for optional groups not aligned to it."""
        return tuple(
            group.blocks_at(boundary) if boundary % group.block_tokens == 0 else range(0) for group in self.groups
        )

    def bytes_at(self, blocks: Sequence[range]) -> int:
        """Payload bytes of these blocks of each group, all shards together."""
        return sum(map(mul, map(len, blocks), self._block_bytes))

    @cached_property
    def _block_bytes(self) -> tuple[int, ...]:
        return tuple(sum(group.shard_bytes) for group in self.groups)

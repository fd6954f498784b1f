"""What is asked of others: who offers it, which slots it shall fill, and what became of it."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..matching import Range
from .directory import Prefix
from .link import Link

MOST_BLOCKS = 4096  # of one request, all shards counted
Outcome = _core.Status


class Offer(NamedTuple):
    """A holder that says it has so many tokens of what was looked for under that number."""

    link: Link
    number: int
    tokens: int


@dataclass(eq=False)
class Wanted:
    """Slots to fill: the blocks of `ranges`, all shards of each, in order. What became of them is in `statuses`, one
    for each block, and `checksums`, one for each slot."""

    prefix: Prefix
    groups: bytes  # digest of the geometry
    shards: Seq[int]  # of each group
    ranges: Seq[Range]
    slots: npt.NDArray[np.void]
    tokens: int  # the boundary that they lead to
    until: float  # of time.monotonic
    statuses: npt.NDArray[np.uint8] = field(init=False)
    checksums: npt.NDArray[np.uint64] = field(init=False)
    blocks: list[tuple[int, int]] = field(init=False)  # (group, number)
    starts: npt.NDArray[np.int64] = field(init=False)  # of each block in slots, and the end

    def __post_init__(self) -> None:
        self.blocks = [(g, first + i) for g, first, count in self.ranges for i in range(count)]
        self.starts = np.concatenate(
            [[0], np.cumsum([self.shards[g] for g, _ in self.blocks], dtype=np.int64)]
        )
        self.statuses = np.full(len(self.blocks), Outcome.NotFound, np.uint8)
        self.checksums = np.zeros(len(self.slots), np.uint64)

    def seconds(self) -> float:
        return self.until - time.monotonic()


def ranges_of(blocks: Seq[tuple[int, int]]) -> list[Range]:
    """(group, first, count) of blocks in order."""
    ranges: list[Range] = []
    for group, number in blocks:
        if ranges and ranges[-1][0] == group and sum(ranges[-1][1:]) == number:
            ranges[-1] = group, ranges[-1][1], ranges[-1][2] + 1
        else:
            ranges.append((group, number, 1))
    return ranges

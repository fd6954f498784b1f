"""Where the blocks of one sequence are: in the pool, or in the log below it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

from . import _core
from .geometry import Geometry
from .sequence import Sequence

AnyIndex = _core.Index | _core.RemoteIndex
"""What a scheduler asks: its own index, or that of a node in another process."""


class Log(Protocol):
    """What a log on disk has of a chain; see csrc/include/kvarter/disk.h."""

    def leading(self, chain: _core.Chain, group: int, from_: int, limit: int, /) -> int: ...
    def last_run(self, chain: _core.Chain, group: int, end: int, run: int, step: int, /) -> int: ...
    def contains(self, chain: _core.Chain, group: int, block: int, /) -> bool: ...
    @property
    def version(self) -> int: ...


@dataclass(frozen=True)
class Space:
    """A namespace as the pool and, where there is one for it, the log number it."""

    above: int
    below: int | None
    geometry: Geometry
    index: AnyIndex = field(compare=False, repr=False)  # whose numbers these are


class Found:
    """The planner's questions (`geometry.Resident`), put to the index and, if there is one, to the log for one chain.

    A chained group's blocks in the pool are a prefix, and so are those in the log (R7): together they are one, too.
    """

    def __init__(self, space: Space, sequence: Sequence, log: Log | None = None) -> None:
        """log: None looks at the pool alone."""
        self._geometry, self._index = space.geometry, space.index
        self._chain = sequence.chain(space.above)
        self._log = log if space.below is not None else None
        self._chain_below = sequence.chain(space.below) if space.below is not None else self._chain

    def leading(self, group: int, limit: int) -> int:
        above = self._index.leading(self._chain, group, limit)
        if self._log is None or above == limit:
            return above
        return self._log.leading(self._chain_below, group, above, limit)

    def last_run(self, group: int, end: int, run: int) -> int:
        if self._log is None:
            return self._index.last_run(self._chain, group, end, run, 1)
        while end > 0:
            end = max(
                self._index.last_run(self._chain, group, end, 1, 1),
                self._log.last_run(self._chain_below, group, end, 1, 1),
            )
            gap = next(
                (b for b in range(end - 1, max(end - run, 0) - 1, -1) if not self._here(group, b)), None
            )
            if gap is None:
                return end
            end = gap
        return 0

    def _here(self, group: int, block: int) -> bool:
        if self._index.contains(self._chain, group, block):
            return True
        return self._log is not None and self._log.contains(self._chain_below, group, block)

    def in_a_row(self, group: int, blocks: range) -> int:
        """How many of these blocks are there, from the first to the first that is missing."""
        if self._geometry.chained(group):
            return max(self.leading(group, blocks.stop) - blocks.start, 0)
        return next((n for n, block in enumerate(blocks) if not self._here(group, block)), len(blocks))

    def needed(self, boundary: int) -> list[range]:
        """The blocks of each group at `boundary`; of an optional one only if all are there."""
        needed = list(self._geometry.blocks_at(boundary))
        for number, group in enumerate(self._geometry.groups):
            if not group.required and not all(self._here(number, block) for block in needed[number]):
                needed[number] = range(0)
        return needed

    def not_above(self, group: int, need: range) -> Seq[int]:
        """Which blocks have to come up so that the pool has all of `need`; of a chained group its ancestors, too."""
        if not need:
            return ()
        if self._geometry.chained(group):
            return range(self._index.leading(self._chain, group, need.stop), need.stop)
        return [b for b in need if not self._index.contains(self._chain, group, b)]


def runs(blocks: Seq[int]) -> Iterator[range]:
    """Consecutive numbers together: one call into the core for each run."""
    if isinstance(blocks, range) and blocks.step == 1:
        if blocks:
            yield blocks
        return
    start = 0
    for at in range(1, len(blocks) + 1):
        if at == len(blocks) or blocks[at] != blocks[at - 1] + 1:
            yield range(blocks[start], blocks[at - 1] + 1)
            start = at

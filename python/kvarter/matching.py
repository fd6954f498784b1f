"""Where a hit ends: the longest boundary that memory can serve, or memory and disk when that pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

from . import _core
from .finding import Found, Log, Space, runs
from .geometry import Geometry
from .policy import LoadPolicy
from .sequence import Sequence
from .transfers import Blocks, Match

Range = tuple[int, int, int]  # group, first block, blocks
Lease = tuple[_core.Status, int]


class Looked(NamedTuple):
    """What a look-up found, in hash units: had by the engine, in memory, on disk, and nowhere or not worth loading.
    Their sum is what was asked for."""

    engine: int
    memory: int
    disk: int
    miss: int
    seconds: float


NOTHING = Looked(0, 0, 0, 0, 0.0)


def looked_up(space: Space, match: Match, limit: int, seconds: float) -> Looked:
    """What became of the first `limit` tokens, as far as the sequence has whole units of them."""
    unit = space.geometry.unit_tokens
    asked = int(min(limit // unit, match.sequence.units))
    engine = int(min(match.have_tokens // unit, asked))
    end = int(max(match.tokens // unit, engine))
    disk = int(min(match.disk_tokens // unit, end - engine))
    return Looked(engine, end - engine - disk, disk, asked - end, seconds)


class Below(Protocol):
    """The disk below a pool, in this process (`tiers.disk.Disk`) or in a node."""

    @property
    def log(self) -> Log: ...
    @property
    def queued_reads(self) -> int:
        """Bytes that were asked for and have not come."""

    def copier(self, space: Space, sequence: Sequence) -> Callable[[dict[int, Blocks]], None] | None:
        """What takes stored blocks of a sequence, as it is now, to be copied down; None where nothing goes there."""

    def used(self, space: Space, match: Match, ranges: list[Range]) -> None:
        """A hit above is a use below, and what the disk has lost of it is to be copied down again."""

    def fetch(
        self, space: Space, match: Match, until: int, lease: Callable[[], Lease]
    ) -> Callable[[], Lease | None]:
        """Begins to bring up what the match has on disk. What it returns takes the `lease` when all is there, says
        TimedOut at `until`, and None before."""


class Matcher:
    """Decides for one store. `counts`: hits that were not taken, by reason.

    most_promoted: bytes that one match may bring up from disk.
    """

    def __init__(self, policy: LoadPolicy, disk: Below | None, most_promoted: int) -> None:
        self._policy, self._disk, self._most_promoted = policy, disk, most_promoted
        self.counts = Counter({"not_worthwhile": 0, "too_large_to_promote": 0})

    def match(self, space: Space, sequence: Sequence, limit: int, have: int) -> tuple[Match, int]:
        """The match for an engine that has `have` tokens itself, and the boundary that memory alone could serve."""
        geometry = space.geometry
        limit = min(limit, sequence.units * geometry.unit_tokens)
        found = Found(space, sequence)
        in_memory = geometry.boundary(found, limit)
        # Where memory serves all there is to serve, the disk is not asked.
        more = in_memory + geometry.alignment <= limit
        if self._disk is not None and space.below is not None and more:
            both = Found(space, sequence, self._disk.log)
            boundary = geometry.boundary(both, limit)
            if boundary > max(in_memory, have):
                match = self._from_disk(
                    self._disk, space, sequence, both, boundary, max(in_memory, have), have
                )
                if match is not None:
                    return match, in_memory
        if in_memory > have:
            blocks = _to_load(geometry, found.needed(in_memory), have)
            if self._policy.worthwhile(in_memory - have, geometry.bytes_at(blocks), 0, 0):
                return Match(sequence, in_memory, have, blocks), in_memory
            self.counts["not_worthwhile"] += 1
        return Match(sequence, 0, have, ()), in_memory

    def _from_disk(
        self,
        disk: Below,
        space: Space,
        sequence: Sequence,
        found: Found,
        boundary: int,
        without: int,
        have: int,
    ) -> Match | None:
        geometry = space.geometry
        blocks = _to_load(geometry, found.needed(boundary), have)
        below = tuple(found.not_above(group, need) for group, need in enumerate(blocks))
        nbytes = geometry.bytes_at(below)
        if nbytes > self._most_promoted:
            self.counts["too_large_to_promote"] += 1
            return None
        above = max(geometry.bytes_at(blocks) - nbytes, 0)
        if not self._policy.worthwhile(boundary - without, above, nbytes, disk.queued_reads):
            self.counts["not_worthwhile"] += 1
            return None
        return Match(sequence, boundary, have, blocks, below, boundary - without)


def _to_load(geometry: Geometry, needed: list[range], have: int) -> tuple[range, ...]:
    return tuple(
        range(max(need.start, have // group.block_tokens), need.stop)
        for group, need in zip(geometry.groups, needed, strict=True)
    )


def in_memory(match: Match) -> list[Range]:
    """The ranges of a match that are in the pool already."""
    ranges = []
    for group, need in enumerate(match.blocks):
        missing = match.below[group] if match.below else ()
        blocks = [b for b in need if b not in missing] if missing else need
        ranges += [(group, run.start, len(run)) for run in runs(blocks)]
    return ranges

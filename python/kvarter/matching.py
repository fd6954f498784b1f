"""Where a hit ends: the longest boundary that memory can serve, or memory and disk when that pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
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
    """What a look-up found, in hash units: had by the engine, in memory, on disk, on another host, and nowhere or not
    worth loading. Their sum is what was asked for."""

    engine: int
    memory: int
    disk: int
    peer: int
    miss: int
    seconds: float


NOTHING = Looked(0, 0, 0, 0, 0, 0.0)


def looked_up(space: Space, match: Match, limit: int, seconds: float) -> Looked:
    """What became of the first `limit` tokens, as far as the sequence has whole units of them."""
    unit = space.geometry.unit_tokens
    asked = int(min(limit // unit, match.sequence.units))
    engine = int(min(match.have_tokens // unit, asked))
    end = int(max(match.tokens // unit, engine))
    disk = int(min(match.disk_tokens // unit, end - engine))
    peer = int(min(match.peer_tokens // unit, end - engine))
    return Looked(engine, end - engine - disk - peer, disk, peer, asked - end, seconds)


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


class Beyond(Protocol):
    """Other hosts' pools, seen from this process (`tiers.peer.PeerTier`) or from a node's."""

    policy: LoadPolicy  # of what comes from there

    def look(self, space: Space, sequence: Sequence, here: int, limit: int) -> int | None:
        """Tokens up to which another host says that it has this sequence, 0 when that is no more than `here`. None:
        they are being asked, for a moment. Never waits."""

    @property
    def queued_reads(self) -> int:
        """Bytes that were asked for and have not come."""

    @property
    def version(self) -> int:
        """Changes whenever a look may answer differently."""

    def fetch(
        self, space: Space, match: Match, until: int, lease: Callable[[], Lease]
    ) -> Callable[[], Lease | None]:
        """As `Below.fetch`."""

    def push(self, space: Space, sequence: Sequence, to: str) -> None:
        """As `BaseStore.push`."""


class Matcher:
    """Decides for one store. `counts`: hits that were not taken, by reason.

    most_promoted: bytes that one match may bring up from disk, or from elsewhere. beyond: may be set later.
    """

    def __init__(
        self, policy: LoadPolicy, disk: Below | None, most_promoted: int, beyond: Beyond | None = None
    ) -> None:
        self._policy, self._disk, self._most_promoted, self.beyond = policy, disk, most_promoted, beyond
        self.counts = Counter({"not_worthwhile": 0, "too_large_to_promote": 0})

    def match(self, space: Space, sequence: Sequence, limit: int, have: int) -> tuple[Match, int]:
        """The match for an engine that has `have` tokens itself, and the boundary that memory alone could serve."""
        limit = min(limit, sequence.units * space.geometry.unit_tokens)
        found = Found(space, sequence)
        in_memory = space.geometry.boundary(found, limit)
        match = self._here(space, sequence, found, in_memory, limit, have)
        here = max(match.tokens, in_memory, have)
        if self.beyond is None or here + space.geometry.alignment > limit:
            return match, in_memory
        there = self.beyond.look(space, sequence, here, limit)
        if there is None:
            return Match(sequence, 0, have, (), pending=True), in_memory
        if there <= here:
            return match, in_memory
        return self._from_peer(self.beyond, space, sequence, found, there, here, have) or match, in_memory

    def _here(
        self, space: Space, sequence: Sequence, found: Found, in_memory: int, limit: int, have: int
    ) -> Match:
        """What memory and disk can serve."""
        geometry = space.geometry
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
                    return match
        if in_memory > have:
            blocks = _to_load(geometry, found.needed(in_memory), have)
            if self._policy.worthwhile(in_memory - have, geometry.bytes_at(blocks), 0, 0):
                return Match(sequence, in_memory, have, blocks)
            self.counts["not_worthwhile"] += 1
        return Match(sequence, 0, have, ())

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
        below = self._worthwhile(self._policy, geometry, found, blocks, boundary - without, disk.queued_reads)
        if below is None:
            return None
        return Match(sequence, boundary, have, blocks, below, boundary - without)

    def _from_peer(
        self,
        beyond: Beyond,
        space: Space,
        sequence: Sequence,
        found: Found,
        boundary: int,
        without: int,
        have: int,
    ) -> Match | None:
        """All that is not in memory comes from there, also what the disk has: one source for each load."""
        geometry = space.geometry
        boundary = boundary // geometry.alignment * geometry.alignment
        blocks = _to_load(geometry, _required(geometry, boundary), have)
        below = self._worthwhile(
            beyond.policy, geometry, found, blocks, boundary - without, beyond.queued_reads
        )
        if below is None:
            return None
        return Match(sequence, boundary, have, blocks, below, peer_tokens=boundary - without)

    def _worthwhile(
        self,
        policy: LoadPolicy,
        geometry: Geometry,
        found: Found,
        blocks: tuple[range, ...],
        tokens: int,
        queued: int,
    ) -> tuple[Seq[int], ...] | None:
        """Which of the blocks must come up for `tokens` more tokens; None when they had better not."""
        below = tuple(found.not_above(group, need) for group, need in enumerate(blocks))
        nbytes = geometry.bytes_at(below)
        if nbytes > self._most_promoted:
            self.counts["too_large_to_promote"] += 1
            return None
        if not policy.worthwhile(tokens, max(geometry.bytes_at(blocks) - nbytes, 0), nbytes, queued):
            self.counts["not_worthwhile"] += 1
            return None
        return below


def from_peer(space: Space, sequence: Sequence, tokens: int) -> Match:
    """Everything that another host has of it up to the boundary at `tokens`, whether it pays or not."""
    found = Found(space, sequence)
    blocks = tuple(_required(space.geometry, tokens))
    below = tuple(found.not_above(group, need) for group, need in enumerate(blocks))
    return Match(sequence, tokens, 0, blocks, below, peer_tokens=tokens)


def _required(geometry: Geometry, boundary: int) -> list[range]:
    needed = geometry.blocks_at(boundary)
    return [n if g.required else range(0) for g, n in zip(geometry.groups, needed, strict=True)]


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

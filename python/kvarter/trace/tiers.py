"""Replays a trace against memory and a disk below it, as a store with a log works.

What a request stores is in memory, by its policy, and is copied down once it is committed. The log drops what was used
least recently, leaf first; a hit above is a use below. A hit ends at the first block that neither has; what came up
from disk is in memory afterwards. A request larger than a tier keeps its head there: of one larger than memory the disk
has more here than a live store would, which stores nothing that finds no room in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..policy.base import NO_HINT, Policy
from ..policy.lru import Lru
from .replay import Cache, Progress, Result, ignore
from .trace import Ints, Trace


@dataclass
class TwoTierResult(Result):
    """`hits` are those of both tiers. above: those that memory served. copied: blocks that went down to disk."""

    above: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    copied: int = 0

    @property
    def above_rate(self) -> float:
        """In percent of all blocks."""
        return 100.0 * float(self.above.sum()) / self.accesses if self.accesses else 0.0


class TwoTiers:
    """Memory of `first` blocks beneath `policy`, above a log of `second` blocks."""

    def __init__(self, trace: Trace, policy: Policy, first: int, second: int) -> None:
        self.trace = trace
        self.above = Cache(trace, policy, first)
        self.below = Cache(trace, Lru(second), second)
        self.copied = 0

    def request(self, number: int, hint: int = NO_HINT) -> tuple[int, int]:
        """Serves one request; the blocks that memory had, and those that either had, from the head on."""
        blocks = self.trace.of_request(number)
        if not len(blocks):
            return 0, 0
        here = self.above.resident[blocks] | self.below.resident[blocks]
        hit = len(here) if here.all() else int(here.argmin())
        above = self.above.request(number, hint)
        if self.below.capacity:
            stored = min(len(blocks), self.below.capacity)
            self.copied += max(stored - self.below.request(number), 0)
        return above, hit


def replay_tiers(
    trace: Trace,
    policy: Policy,
    first: int,
    second: int,
    *,
    hints: npt.NDArray[np.uint8] | None = None,
    progress: Progress = ignore,
) -> TwoTierResult:
    """first, second: blocks that memory and disk hold. A policy is run leaf first, as a store runs it."""
    tiers = TwoTiers(trace, policy, first, second)
    above, hits = np.zeros(trace.requests, np.int64), np.zeros(trace.requests, np.int64)
    for number in range(trace.requests):
        progress(1)
        hint = NO_HINT if hints is None else int(hints[number])
        above[number], hits[number] = tiers.request(number, hint)
    return TwoTierResult(trace.accesses, hits, policy.state_bytes, above, tiers.copied)

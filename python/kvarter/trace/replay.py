"""Replays a trace against one cache, as `facts` of this field are counted.

A request walks its blocks from the head; its hit is the prefix that is in the cache, and everything after the first
gap is a miss. Then all its blocks are in the cache; one of more blocks than the cache has keeps its first ones. The
hit rate is hit blocks over all blocks, the cold start included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from ..policy.base import NO_HINT, Columns, Policy
from ..policy.textbook import Textbook
from .trace import Ints, Trace

Progress = Callable[[int], None]
_CALLS = 2  # of a store for each request, match and reserve: as often a policy may learn at least
_LEAST_AHEAD, _SHARE_AHEAD = 16, 64  # victims ranked at once: 1 / 64 of the cache, at least 16


def ignore(requests: int) -> None:
    """No progress is shown."""


@dataclass
class Result:
    """What a replay counted, in blocks. hits: by request."""

    accesses: int
    hits: Ints
    state_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """In percent of all blocks."""
        return 100.0 * float(self.hits.sum()) / self.accesses if self.accesses else 0.0


def replay(
    trace: Trace,
    policy: Policy,
    capacity: int,
    *,
    leaf_first: bool = False,
    hints: npt.NDArray[np.uint8] | None = None,
    progress: Progress = ignore,
) -> Result:
    """capacity: in blocks. leaf_first: whole chains, as a live store keeps them, also for a policy whose textbook
    form does not. hints: of each request, as `Policy.observe` takes them.
    """
    if isinstance(policy, Textbook) and not leaf_first:
        return _replay_textbook(trace, policy, capacity, progress)
    return Cache(trace, policy, capacity).run(hints, progress)


def _replay_textbook(trace: Trace, policy: Textbook, capacity: int, progress: Progress) -> Result:
    hits = np.zeros(trace.requests, np.int64)
    blocks, first = trace.blocks.tolist(), trace.first.tolist()
    for number in range(trace.requests if capacity else 0):
        progress(1)
        keys = blocks[first[number] : first[number + 1]]
        hits[number] = next((i for i, key in enumerate(keys) if key not in policy), len(keys))
        policy.request(keys[:capacity])
    return Result(trace.accesses, hits)


class Cache:
    """A cache of whole chains: rows are the trace's block numbers."""

    def __init__(self, trace: Trace, policy: Policy, capacity: int) -> None:
        unique = trace.unique
        self.trace, self.policy, self.capacity = trace, policy, capacity
        self.resident = np.zeros(unique, bool)
        self.children = np.zeros(unique, np.int64)  # that are resident
        self.held = 0
        self.columns = Columns(
            last_use=np.zeros(unique, np.int64),
            born=np.zeros(unique, np.int64),
            hits=np.zeros(unique, np.int64),
            depth=trace.depth,
            klass=np.zeros(unique, np.uint16),
            nbytes=np.ones(unique, np.int64),
        )
        self._used = np.zeros(unique, np.int64)  # number of the request that used it last
        self._scores = np.zeros(unique)
        self._parents: list[int] = trace.parent.tolist()
        self._ahead = max(_LEAST_AHEAD, capacity // _SHARE_AHEAD)
        self._queue: Ints = np.zeros(0, np.int64)
        self._queued: Ints = np.zeros(0, np.int64)  # `_used` of each when it was ranked
        self._born = 0

    def run(self, hints: npt.NDArray[np.uint8] | None, progress: Progress) -> Result:
        hits = np.zeros(self.trace.requests, np.int64)
        for number in range(self.trace.requests if self.capacity else 0):
            progress(1)
            hits[number] = self.request(number, NO_HINT if hints is None else int(hints[number]))
        return Result(self.trace.accesses, hits, self.policy.state_bytes)

    def request(self, number: int, hint: int = NO_HINT) -> int:
        """Serves one request of the trace and returns its hit."""
        blocks = self.trace.of_request(number)
        if not len(blocks):
            return 0
        now = float(self.trace.seconds[number])
        here = self.resident[blocks]
        hit = len(blocks) if here.all() else int(here.argmin())
        classes = self.policy.observe(self.trace.keys[blocks], hit, now, hint)
        for _ in range(_CALLS):
            self.policy.learn(now)
        if len(blocks) > self.capacity:
            blocks = blocks[: self.capacity]
        if classes is not None:
            self.columns.klass[blocks] = classes[: len(blocks)]
        old, new = blocks[:hit], blocks[hit:]
        self.columns.hits[old] += 1
        self.columns.last_use[blocks] = int(now * 1e9) + number  # two at the same moment have an order
        self._used[blocks] = number + 1
        if len(new):
            self._insert(new)
            self.evict(self.held - self.capacity, now)
        return hit

    def _insert(self, new: Ints) -> None:
        """What comes is ranked like what is here, so a policy may drop it at once and keep what is worth more."""
        self.resident[new] = True
        self.held += len(new)
        self.columns.hits[new] = 0
        self.columns.born[new] = self._born + np.arange(len(new), 0, -1)  # heads outlive tails
        self._born += len(new)
        above = self.trace.parent[new]
        self.children[above[above >= 0]] += 1  # a chain: each parent once

    def evict(self, count: int, now: float) -> None:
        while count > 0:
            if not len(self._queue):
                self._rank(now)
            rows, used = self._queue[:count], self._queued[:count]
            self._queue, self._queued = self._queue[count:], self._queued[count:]
            rows = rows[self._used[rows] == used]  # what was used since is passed over, with all above it
            self.resident[rows] = False
            above = self.trace.parent[rows]
            np.subtract.at(self.children, above[above >= 0], 1)
            self.held -= len(rows)
            count -= len(rows)

    def _rank(self, now: float) -> None:
        """The next victims in their order: always the leaf that scores least; its parent then scores as much at
        least, as nothing leans on it any more.
        """
        rows = np.flatnonzero(self.resident)
        scores = self.policy.score(self.columns, rows, now)
        self._scores[rows] = scores
        leaves = self.children[rows] == 0
        rows, scores = rows[leaves], scores[leaves]
        if len(rows) > self._ahead:
            lowest = np.argpartition(scores, self._ahead - 1)[: self._ahead]
            rows, scores = rows[lowest], scores[lowest]
        depth = self.trace.depth
        heap = list(zip(scores.tolist(), (-depth[rows]).tolist(), rows.tolist(), strict=True))
        heapify(heap)
        order: list[int] = []
        left: dict[int, int] = {}
        while heap and len(order) < self._ahead:
            score, _, row = heappop(heap)
            order.append(row)
            above = self._parents[row]
            if above < 0:
                continue
            left[above] = left.get(above, int(self.children[above])) - 1
            if left[above] == 0:
                heappush(heap, (max(score, float(self._scores[above])), -int(depth[above]), above))
        self._queue = np.array(order, np.int64)
        self._queued = self._used[self._queue]

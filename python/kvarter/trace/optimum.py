"""The exact optimum, and what a cache without end would serve."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from .replay import Progress, Result, ignore
from .trace import Ints, Trace


def next_use(trace: Trace) -> Ints:
    """Of each access the number of the next request for the same block; the number of requests when there is none."""
    requests = np.repeat(np.arange(trace.requests), np.diff(trace.first))
    following = np.full(trace.accesses, trace.requests, np.int64)
    order = np.argsort(trace.blocks, kind="stable")  # accesses of one block together, in time
    same = trace.blocks[order[1:]] == trace.blocks[order[:-1]]
    following[order[:-1][same]] = requests[order[1:][same]]
    return following


def optimum(trace: Trace, capacity: int, progress: Progress = ignore) -> Result:
    """Belady's choice: the block whose next use is farthest goes, the deepest of those that are equally far, and
    what comes may be passed by. A parent's next use is never later than its child's, so whole chains stay.
    """
    hits = np.zeros(trace.requests, np.int64)
    following = next_use(trace).tolist()
    blocks, first = trace.blocks.tolist(), trace.first.tolist()
    depth = trace.depth.tolist()
    resident: dict[int, int] = {}  # block -> its next use
    heap: list[tuple[int, int, int]] = []  # (-next use, -depth, block); checked when taken
    for number in range(trace.requests if capacity else 0):
        progress(1)
        chain = blocks[first[number] : first[number + 1]]
        hits[number] = next((i for i, block in enumerate(chain) if block not in resident), len(chain))
        for i, block in enumerate(chain, first[number]):
            if following[i] == trace.requests:
                resident.pop(block, None)  # never used again: it need not be kept
                continue
            resident[block] = following[i]
            heappush(heap, (-following[i], -depth[block], block))
        while len(resident) > capacity:
            use, _, block = heappop(heap)
            if resident.get(block) == -use:
                del resident[block]
    return Result(trace.accesses, hits)


def infinite(trace: Trace) -> float:
    """Hit rate in percent of a cache that holds everything: all but the first use of each block."""
    return 100.0 * (1 - trace.unique / trace.accesses) if trace.accesses else 0.0

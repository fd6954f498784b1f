"""What a trace would get of so much memory: hit rates, the bandwidth that they need, and the prefill they save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..policy import DEFAULT, named
from ..trace import Result, Trace, infinite, replay, replay_tiers
from .models import Model

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Point:
    """One size of memory. Rates in percent of blocks; load_gb_per_s: mean over the trace, both tiers.

    worth_loading: of what memory, and what the disk, adds to hits the percent that comes sooner than it is computed, at
    the bandwidths given; None: that tier's is not known, or it serves nothing.
    """

    dram_bytes: int
    disk_bytes: int
    blocks: int
    hit_rate: float
    dram_hit_rate: float
    load_gb_per_s: float
    peak_gb_per_s: float
    prefill_seconds_saved_per_hour: float
    dram_worth_loading: float | None = None
    disk_worth_loading: float | None = None


@dataclass(frozen=True)
class Plan:
    """break_even_gb_per_s: a tier slower than this is slower than computing again."""

    model: Model
    block_bytes: float
    unique_bytes: float
    break_even_gb_per_s: float
    infinite_hit_rate: float
    points: tuple[Point, ...]
    knee: Point


def plan(
    trace: Trace,
    model: Model,
    prefill: float,
    dram: Sequence[int] = (),
    disk: int = 0,
    progress: Callable[[int], None] = lambda requests: None,
    *,
    dram_bandwidth: float = 0.0,
    disk_bandwidth: float = 0.0,
) -> Plan:
    """dram: sizes to look at; default from 0.5 % of what the trace's blocks weigh together to all of it. disk: a
    log beneath each, to which everything is copied down. prefill: tokens a second that the engine computes.
    dram_bandwidth, disk_bandwidth: bytes a second that each delivers; 0: not known.
    """
    boundaries = trace.requests / max(trace.unique, 1)  # a request leaves one: the end of its prompt
    block = model.block_bytes(trace.block_tokens, boundaries)
    total = block * trace.unique
    sizes = list(dram) or [int(total * share) for share in np.geomspace(0.005, 1.0, 10)]
    bandwidths = (dram_bandwidth, disk_bandwidth)
    points = tuple(
        _point(trace, model, prefill, block, size, disk, bandwidths, progress) for size in sorted(sizes)
    )
    even = (block / trace.block_tokens) * prefill / 1e9
    return Plan(model, block, total, even, infinite(trace), points, _knee(points))


def _point(
    trace: Trace,
    model: Model,
    prefill: float,
    block: float,
    dram: int,
    disk: int,
    bandwidths: tuple[float, float],
    progress: Callable[[int], None],
) -> Point:
    first, both = int(dram / block), int((dram + disk) / block)
    policy = named(DEFAULT)(first)
    result: Result
    if disk:
        result = tiers = replay_tiers(trace, policy, first, both - first, progress=progress)
        above = tiers.above
    else:
        result = replay(trace, policy, first, progress=progress)
        above = result.hits
    hits = result.hits
    # A hit loads its blocks and one boundary.
    loaded = hits * trace.block_tokens * model.per_token + (hits > 0) * model.per_boundary
    hours = max(trace.span, 1.0) / 3600
    minutes = np.bincount(((trace.seconds - trace.seconds[0]) // 60).astype(int), weights=loaded)
    return Point(
        dram,
        disk,
        both,
        result.hit_rate,
        100.0 * float(above.sum()) / max(trace.accesses, 1),
        float(loaded.sum()) / max(trace.span, 1.0) / 1e9,
        float(minutes.max(initial=0.0)) / 60 / 1e9,
        float(hits.sum()) * trace.block_tokens / prefill / hours,
        # Of a hit that ends in memory its boundary is there, of one that ends on disk it is there.
        _worth(above * trace.block_tokens, above == hits, model, prefill, bandwidths[0]),
        _worth((hits - above) * trace.block_tokens, hits > above, model, prefill, bandwidths[1]),
    )


def _worth(tokens: Ints, ends: Bools, model: Model, prefill: float, bandwidth: float) -> float | None:
    """Percent of these tokens that come sooner than they are computed; as `policy.load.Measured` decides, all that a
    request has in a tier or nothing.
    """
    if not bandwidth or not tokens.any():
        return None
    nbytes = tokens * model.per_token + ends * model.per_boundary
    pays = nbytes / bandwidth <= tokens / prefill
    return 100.0 * float(tokens[pays].sum()) / float(tokens.sum())


def _knee(points: Sequence[Point]) -> Point:
    """Where the curve of hit rate over the logarithm of size lies highest above the line between its ends."""
    x = np.log([max(point.dram_bytes + point.disk_bytes, 1) for point in points])
    y = np.array([point.hit_rate for point in points])
    if len(points) < 3 or x[-1] == x[0] or y[-1] == y[0]:
        return points[int(y.argmax())]
    return points[int(((y - y[0]) / (y[-1] - y[0]) - (x - x[0]) / (x[-1] - x[0])).argmax())]

"""Blocks between two processes over TCP on the loopback device: our engine, raw UCX, a plain TCP stream, memcpy.

Ours verifies a checksum of every block and looks whether it was asked for; the others do not. Blocks are scattered on
both sides. NIXL and Mooncake are beside it where they are installed. Needs UCX.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from across import GB, Memcpy, Mooncake, Nixl, Ours, PlainTcp, RawUcx, Took
from report import Row, Run, race, spread


def run(run: Run) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        RawUcx.build(directory)
        size = (32 << 20) if run.quick else (128 << 20)
        yield from blocks(run, size, 1 << 20)
        yield from blocks(run, size, 256 << 10)
        yield from blocks(run, size // 8, 4 << 10)
    yield from small(run)
    yield from death(run)


def blocks(run: Run, size: int, block: int) -> Iterator[Row]:
    large = block > (64 << 10)  # thousands of small ones at once, Mooncake gives up
    others = [kind for kind in (Nixl, Mooncake) if large and find_spec(kind.module)]
    contenders: list[Any] = [kind(size, block) for kind in (Ours, RawUcx, PlainTcp, Memcpy, *others)]
    took: list[list[Took]] = [[] for _ in contenders]

    def contend(i: int, number: int) -> float:
        took[i].append(contenders[i].round(number))
        if run.check and i == 0:
            run.require(contenders[0].whole(), f"ucx: blocks of {block} differ")
        return took[i][-1].seconds

    times = race(run.rounds // 2, *[lambda number, i=i: contend(i, number) for i in range(len(contenders))])
    for contender in contenders:
        contender.close()
    what = f"{block >> 10} KiB blocks over TCP"
    names = ["raw UCX", "a plain TCP stream", "memcpy", *(kind.__name__ + " as shipped" for kind in others)]
    goals = {"raw UCX": 0.9, "Nixl as shipped": 5, "Mooncake as shipped": 2} if large else {}
    for name, limit in zip(names, times[1:], strict=True):
        rates = [size / GB / min(seconds) for seconds in (times[0], limit)]
        ratios = [b / a for a, b in zip(times[0], limit, strict=True)]
        yield Row(f"{what} against {name}", "GB/s", *rates, spread=spread(ratios), goal=goals.get(name))
    costs = [statistics.median(t.cpu for t in all_) / (size / GB) for all_ in took]
    yield Row(f"CPU of both sides, {what}, against raw UCX", "s/GB", costs[0], costs[1], better="lower")
    yield Row(
        f"CPU of both sides, {what}, against a plain TCP stream", "s/GB", costs[0], costs[2], better="lower"
    )


def small(run: Run) -> Iterator[Row]:
    """One block of 4 KiB at a time: asked for, sent, verified and told, from Python to Python."""
    import numpy as np

    ours, plain = Ours(1 << 20, 4 << 10), PlainTcp(1 << 20, 4 << 10)
    rounds = 100 if run.quick else 3000
    one = np.arange(1)
    times = race(rounds, lambda number: ours.request(one, one), lambda number: plain.receive(1))
    for name, at in (("p50", 50), ("p99", 99)):
        ends = [float(np.percentile(took, at)) * 1e6 for took in times]
        yield Row(f"a 4 KiB block, {name}, against TCP ping-pong", "us", *ends, better="lower")
    ours.close()
    plain.close()


def death(run: Run) -> Iterator[Row]:
    """How long until a client knows that its owner, from which nothing is under way, was killed."""
    times = []
    for _ in range(3 if run.quick else 20):
        ours = Ours(1 << 20, 4 << 10)
        times.append(ours.until_lost() * 1e3)
        ours.close()
    yield Row(
        "a killed peer is noticed, slowest", "ms", max(times), goal=1000, better="lower", kind="absolute"
    )

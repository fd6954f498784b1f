"""Evicting puts beneath the default policy, which ranks ahead and learns meanwhile; beside leaf-first LRU, which the
index does by itself. And what a pass of the policy takes, and what the policy makes of two synthetic traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter, thread_time

from crowd import Crowd, size
from kvarter.policy import DEFAULT, named
from kvarter.trace import generate, replay
from report import Row, Run, race, rate_row, timed

_IDLE = 2e-5  # seconds of a tick that did nothing, at most


class Puts:
    """Requests that find nothing and are stored in batches, beneath one policy. slowest: seconds of a batch."""

    def __init__(self, run: Run, total: int, units: int, policy: str) -> None:
        self.run, self.crowd = run, Crowd(total, units, policy=policy)
        self.slowest = 0.0

    def batches(self, batch: int, count: int) -> float:
        sequence, store = self.crowd.new_sequence(), self.crowd.store
        store.match(sequence)
        store.match(self.crowd.sequences[0])  # a tick for what was asked before
        evicted = store.stats()["evicted"]

        def put() -> None:
            for at in range(0, count, batch):
                begun = perf_counter()
                self.crowd.put(sequence, range(at, min(at + batch, count)))
                self.slowest = max(self.slowest, perf_counter() - begun)

        seconds = timed(put)
        self.run.require(
            store.stats()["evicted"] - evicted == count, "policy: a put did not evict exactly one block"
        )
        return seconds


def ticking(puts: Puts) -> list[float]:
    """Seconds of this thread's time in each tick of some rounds: after the races, since that clock is a system call."""
    placement, took = puts.crowd.store._placement, []
    tick = placement.tick

    def timed_tick() -> None:
        begun = thread_time()
        tick()
        if (spent := thread_time() - begun) > _IDLE:
            took.append(spent)

    placement.tick = timed_tick  # type: ignore[method-assign]
    for _ in range(70):  # so that it learns, too
        puts.batches(16, 1024)
    del placement.tick
    return took


def run(run: Run) -> Iterator[Row]:
    total, units = (1 << 16, 2048) if run.quick else (1 << 20, 8192)
    ours, plain = Puts(run, total, units, DEFAULT), Puts(run, total, units, "lru")
    for batch in (16, 256):
        count = min(2048, 64 * batch)
        ours.slowest = plain.slowest = 0.0
        times = race(
            run.rounds,
            lambda _, b=batch, n=count: ours.batches(b, n),
            lambda _, b=batch, n=count: plain.batches(b, n),
        )
        case = f"evicting put beneath {DEFAULT}, 4 KiB, batches of {batch}, {size(total)}, against lru"
        yield rate_row(case, "k/s", count / 1e3, *times, goal=300, kind="absolute")
        case = f"slowest put of {batch} beneath {DEFAULT}, against lru"
        yield Row(case, "ms", ours.slowest * 1e3, plain.slowest * 1e3, better="lower")
    ticks = ticking(ours)
    yield Row(
        f"longest of {len(ticks)} ticks of {DEFAULT} that did something, against 0.5 ms",
        "ms",
        max(ticks) * 1e3,
        0.5,
        1.0,
        "lower",
        "absolute",
    )
    for kind in ("chat", "rag"):
        trace = generate(kind, sessions=200 if run.quick else None)
        capacity = trace.unique // 20
        rates = [replay(trace, named(name)(capacity), capacity).hit_rate for name in (DEFAULT, "lru")]
        yield Row(
            f"hit rate of {DEFAULT}, generated {kind}, 5 % of its blocks, against lru", "%", *rates, 1.0
        )
    if run.check:
        run.wrong.extend(f"policy: {finding}" for finding in ours.crowd.audit())

"""A pool in another process beside one in this: round trips, matches, blocks, and sixteen clients at once.

The round trip is beside a Unix socket's between two processes that do nothing else; all else is beside the same
Store embedded, which sends no message. With `--peer PYTHON` LMCache's server is measured too (`peer`).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator

import numpy as np

from crowd import BLOCK as SMALL
from crowd import UNIT, Crowd, size
from kvarter.base_store import BaseStore
from kvarter.node import RemoteStore
from report import Row, Run, race, rate_row, time_row, timed
from served import BUSY, CALLER, echo, end, here, node, process

from . import peer
from .served_cache import ServedCache
from .store import Cache

CLIENTS = 16


def run(run: Run) -> Iterator[Row]:
    if run.peer:
        yield from peer.run(run, run.peer)
    yield from round_trips(run)
    yield from matches(run)
    yield from blocks(run)


def round_trips(run: Run) -> Iterator[Row]:
    rounds = 500 if run.quick else 20_000
    with node(64 << 20, max_blocks=16 << 10, populate=False) as path, echo() as ping:
        store = RemoteStore(path, "caller", timeout=60.0, patience=20.0)
        busy = process(BUSY, here(), path)
        until_full(store)
        look: Callable[[], object] = store.index.look
        ours, plain = race(rounds, lambda _: timed(look), lambda _: timed(ping))
        end(busy)
        for name, at, goal in (("p50", 0.5, 20), ("p99", 0.99, 100)):
            case = f"round trip, {name}, the policy busy, against a Unix socket's"
            ends = [percentile(times, at) * 1e6 for times in (ours, plain)]
            yield Row(case, "us", *ends, goal=goal, better="lower", kind="absolute")
        if run.check:
            store.audit()
        store.close()

        callers = [process(CALLER, path, f"caller {n}", str(rounds // 10)) for n in range(CLIENTS)]
        for caller in callers:
            assert caller.stdin is not None
            caller.stdin.write("\n")
            caller.stdin.flush()
        took = [us for caller in callers for us in json.loads(caller.communicate()[0])]
        middle, late = percentile(took, 0.5), percentile(took, 0.99)
        yield Row(
            f"round trip of {CLIENTS} clients at once, p99, against p50", "us", late, middle, better="lower"
        )


def until_full(store: BaseStore) -> None:
    """Waits until the busy client's puts evict."""
    while store.status()["counters"]["evicted"] == 0:  # type: ignore[attr-defined]
        pass


def percentile(values: list[float], at: float) -> float:
    return statistics.quantiles(values, n=100)[round(at * 100) - 1]


def matches(run: Run) -> Iterator[Row]:
    crowd = Crowd(1 << 16, 2048) if run.quick else Crowd(1 << 20, 8192)
    with node(crowd.total * SMALL, max_blocks=crowd.total, headroom=0.0, populate=False) as path:
        store = RemoteStore(path, "matcher", timeout=60.0, patience=20.0)
        for sequence in crowd.sequences:
            reservation = store.reserve(sequence, {0: range(crowd.units)}, 60.0)
            count = len(reservation)
            reservation.commit(0, np.ones(count, np.uint8), np.zeros(count, np.uint64))

        def look(asked: BaseStore, number: int) -> float:
            sequence = crowd.sequences[number % len(crowd.sequences)]
            found: list[int] = []
            seconds = timed(
                lambda: found.append(asked.match(sequence, limit=sequence.num_tokens, request="r").tokens)
            )
            run.require(found == [crowd.units * UNIT], f"node: match: found {found} tokens")
            asked.drop_hold("r")
            return seconds

        ours, embedded = race(
            2 * run.rounds, lambda number: look(store, number), lambda number: look(crowd.store, number)
        )
        yield time_row(
            f"match and hold of {crowd.units:,} units, {size(crowd.total)}, served against embedded",
            "us",
            ours,
            embedded,
            goal=250,
            kind="absolute",
        )
        if run.check:
            store.audit()
        store.close()


def blocks(run: Run) -> Iterator[Row]:
    dram = (128 << 20) if run.quick else (512 << 20)
    for block, segment, batch in ((1 << 20, 32 << 10, 16), (2 << 20, 64 << 10, 8)):
        # By age: what was put half a pool ago is certainly there, whoever ranks beside.
        with node(dram, max_blocks=dram // block + 64, policy="lru") as path:
            served = ServedCache(path, run, block, segment, batch, dram)
            embedded = Cache(run, block, segment, batch, dram)
            put, own_put, get, own_get = race(
                2 * run.rounds, served.put, embedded.put, served.get, embedded.get
            )
            gigabytes = batch * block / 1e9
            what = (
                f"{block >> 20} MiB block, 1 thread, batches of {batch}, checksums, served against embedded"
            )
            yield rate_row(f"put {what}", "GB/s", gigabytes, put, own_put, goal=0.95)
            yield rate_row(f"get {what}", "GB/s", gigabytes, get, own_get, goal=0.95)
            if run.check:
                served.audit()
                embedded.audit()
            served.close()

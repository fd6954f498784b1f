"""A node beside LMCache's server, in turns: round trips with nobody else there, blocks, and a burst.

A get is timed with what finds the blocks, on both sides. LMCache checks no bytes and, but for the burst, has nothing to
evict; ours does both. Part of the workload `node` when it is given an interpreter with LMCache (`--peer`).
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from report import Row, Run, race, rate_row, spread, timed
from served import node

from .served_cache import ServedCache

SCRIPT = Path(__file__).parent.parent / "peers" / "lmcache_server.py"
# Block, segment and batch of `node`, and the blocks that LMCache keeps as one: one, or 256 tokens, its default.
SHAPES = ((1 << 20, 32 << 10, 16, 1), (1 << 20, 32 << 10, 16, 16), (2 << 20, 64 << 10, 8, 1))


class Peer:
    """The script, as it takes orders. name: with the version."""

    def __init__(self, python: Path, started: subprocess.Popen[str]) -> None:
        self._python, self._started = python, started
        self.name = f"LMCache {self._answer()['lmcache']}'s server"

    def __call__(self, verb: str, count: int = 1) -> Any:
        """A list of what each call took, of touch nothing, of burst the blocks that were refused."""
        assert self._started.stdin is not None
        self._started.stdin.write(f"{verb} {count}\n")
        self._started.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._started.stdout is not None
        line = self._started.stdout.readline()
        if not line:
            ended = f"{self._python} bench/peers/{SCRIPT.name} ended, status {self._started.wait()}"
            raise RuntimeError(f"{ended}: what it said is above; it needs LMCache (`pip install lmcache`)")
        return json.loads(line)


@contextmanager
def peer(python: Path, block: int, batch: int, chunk: int, memory: int) -> Iterator[Peer]:
    words = [str(number) for number in (block >> 20, batch, chunk, memory)]
    with subprocess.Popen(
        [python, SCRIPT, "--answer", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        yield Peer(python, started)  # then its standard input ends, and so do it and its server


def run(run: Run, python: Path) -> Iterator[Row]:
    memory = (256 << 20) if run.quick else (1 << 30)
    for block, segment, batch, chunk in SHAPES:
        dram = (128 << 20) if run.quick else (512 << 20)
        with (
            peer(python, block, batch, chunk, memory) as theirs,
            node(dram, max_blocks=dram // block + 64, policy="lru") as path,
        ):
            theirs("touch", memory)
            ours = ServedCache(path, run, block, segment, batch, dram)
            if (block, chunk) == (SHAPES[0][0], 1):
                yield from round_trips(run, theirs, ours.store.index.look)  # type: ignore[union-attr]
            yield from blocks(run, theirs, ours, chunk)
            ours.close()
    yield from burst(run, python)


def round_trips(run: Run, theirs: Peer, look: Callable[[], object]) -> Iterator[Row]:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(run.rounds):
        times[0].extend(timed(look) * 1e6 for _ in range(100))
        times[1].extend(seconds * 1e6 for seconds in theirs("round_trip", 100))
    for name, at in (("p50", 49), ("p99", 98)):
        ours, limit = (statistics.quantiles(each, n=100)[at] for each in times)
        rounds = [
            [statistics.quantiles(each[n : n + 100], n=100)[at] for n in range(0, len(each), 100)]
            for each in times
        ]
        apart = spread([a / b for a, b in zip(*rounds, strict=True)])
        yield Row(
            f"round trip, {name}, nobody else there, beside {theirs.name}",
            "us",
            ours,
            limit,
            better="lower",
            spread=apart,
        )


def blocks(run: Run, theirs: Peer, ours: ServedCache, chunk: int) -> Iterator[Row]:
    theirs("store", 2)  # so that there is something to retrieve
    put, their_put, get, their_get = race(
        run.rounds,
        ours.put,
        lambda _: theirs("store")[0],
        ours.get,
        lambda _: theirs("retrieve")[0][0],
    )
    gigabytes = ours.batch * ours.block / 1e9
    what = f"{ours.block >> 20} MiB block, 1 thread, batches of {ours.batch}, served, beside {theirs.name}"
    what += f", its chunks {chunk} blocks" if chunk > 1 else ""
    yield rate_row(f"put {what}", "GB/s", gigabytes, put, their_put)
    yield rate_row(f"get {what}", "GB/s", gigabytes, get, their_get)
    if run.check:
        ours.audit()


def burst(run: Run, python: Path) -> Iterator[Row]:
    """Twice as many blocks as there is memory for, one by one; nothing is in use."""
    block, segment, *_ = SHAPES[0]
    memory = (64 << 20) if run.quick else (256 << 20)
    count = 2 * memory // block
    with node(memory, max_blocks=memory // block + 64, policy="lru") as path:
        cache = ServedCache(path, run, block, segment, 1, memory)
        before = cache.stored
        for number in range(count):
            cache.put(number)
        ours = count - (cache.stored - before)
        cache.close()
    with peer(python, block, 1, 1, memory) as theirs:
        yield Row(
            f"dropped of {count} blocks stored at once, room for {count // 2}, beside {theirs.name}",
            "blocks",
            ours,
            theirs("burst", count),
            better="lower",
        )

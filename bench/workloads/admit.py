"""Admission to a disk that is full: what it keeps from being written, and what that does to the hits.

A trace, generated or the one of --trace, goes through a store with a pool of 2 % of its blocks and a log of 10 %, with
and without admission; alone, and with a scan beside it: now and then a long text that nobody asks for again.
"""

from __future__ import annotations

from collections.abc import Iterator

from admission import Replay
from kvarter.trace import generate, read
from report import Row, Run


def run(run: Run) -> Iterator[Row]:
    trace = read(run.trace) if run.trace else generate("chat")
    most = 15_000 if run.quick else 80_000
    for scan in (False, True):
        ours, plain = (Replay(run, trace, most, admit_all).go(scan) for admit_all in (False, True))
        case = f"{trace.name}{' and a scan' if scan else ''}, disk of 10 %, admission against none"
        hits = (100 * each.hits / each.blocks for each in (ours, plain))
        yield Row(f"hit rate of {case}", "%", *hits)
        for what in ("stored", "written"):
            sizes = (getattr(each, what) / (1 << 20) for each in (ours, plain))
            yield Row(f"{what}: {case}", "MiB", *sizes, better="lower")

"""LMCache's server on this host: round trip, store, retrieve, and a burst of twice its memory.

    pip install lmcache
    python bench/peers/lmcache_server.py [--quick] [--json]

Needs an interpreter that has LMCache, and neither a GPU nor an engine. Blocks lie as they do in `bench node`, in 32
segments each. A chunk, what LMCache keeps as one, is one block, or its default of 256 tokens. What helps LMCache is
chosen: no metrics, pages that exist before anything is timed, memory for all that is stored, but for the burst.
Whatever is retrieved is compared with what was stored. Everything that was started is ended.

`bench node --peer PYTHON` starts it with --answer: for each line "VERB COUNT" it answers one line of JSON, so that
both can take turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from lmcache_client import Client, server


@contextmanager
def client(mib: int, batch: int, chunk: int, memory: int) -> Iterator[Client]:
    """A client of a server of its own, with blocks of that many MiB."""
    tokens = 16 * mib
    with server(memory, tokens * chunk) as address:
        connected = Client(address, tokens, batch, chunk)
        try:
            yield connected
        finally:
            connected.close()


def versions() -> dict[str, str]:
    return {**{name: version(name) for name in ("lmcache", "torch")}, "python": platform.python_version()}


def answer(mib: int, batch: int, chunk: int, memory: int) -> None:
    """Does what each line of standard input asks for; says the versions first."""
    with client(mib, batch, chunk, memory) as peer:
        print(json.dumps(versions()), flush=True)
        for line in sys.stdin:
            verb, count = line.split()
            work = getattr(peer, verb)
            once = verb in ("touch", "burst")
            print(json.dumps(work(int(count)) if once else [work() for _ in range(int(count))]), flush=True)


def measure(quick: bool) -> dict[str, Any]:
    """All of it, alone."""
    rounds, memory = (5, 256 << 20) if quick else (40, 1 << 30)
    found: dict[str, Any] = versions()
    for mib, batch, chunk in ((1, 16, 1), (1, 16, 16), (2, 8, 1)):
        with client(mib, batch, chunk, memory) as peer:
            peer.touch(memory)
            what = f"{mib} MiB blocks, {chunk} a chunk"
            trips = [peer.round_trip() * 1e6 for _ in range(100 * rounds)]
            ends = statistics.quantiles(trips, n=100)
            found[f"round trip, {what}, us"] = {"p50": ends[49], "p99": ends[98]}
            stored = [peer.store() for _ in range(rounds)]
            read = [peer.retrieve() for _ in range(rounds)]
            for name, times in (
                ("store", stored),
                ("look up and retrieve", [whole for whole, _ in read]),
                ("retrieve", [alone for _, alone in read]),
            ):
                rates = [peer.block * batch / 1e9 / seconds for seconds in times]
                found[f"{name}, {what}, GB/s"] = {"best": max(rates), "median": statistics.median(rates)}
    with client(1, 1, 1, 256 << 20) as peer:
        found["burst of 512 blocks into memory for 256: refused"] = peer.burst(512)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small and short; the numbers mean little")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument(
        "--answer",
        nargs=4,
        type=int,
        metavar=("MIB", "BATCH", "CHUNK", "MEMORY"),
        help="take orders from standard input",
    )
    options = parser.parse_args()
    if options.answer:
        answer(*options.answer)
        return
    found = measure(options.quick)
    print(
        json.dumps(found) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items())
    )


if __name__ == "__main__":
    main()

"""Batches of pages through SGLang's own controller, into Kvarter and into SGLang's `file` backend, beside plain copies
of the same pages. Runs in SGLang's environment, for workloads/sglang.py: prints the seconds of each as one JSON object.

    python sglang_pages.py ROUNDS DIRECTORY
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.cache_controller import HiCacheController, StorageOperation
from sglang.srt.mem_cache.hicache_storage import HiCacheFile

import hicache_words as words
from kvarter import _core
from kvarter.connectors.sglang.pages import pages_of

PAGES, TOKENS = 128, 64  # a batch of SGLang's, of a megabyte a page
_WARM = 5  # rounds until every page of the pool has been written once by this process


def controller(pool: Any, backend: Any, in_place: bool) -> Any:
    """What SGLang's methods look at of their object."""
    its = SimpleNamespace(storage_backend=backend, storage_host_pool=pool, page_size=pool.page_size)
    kind = HiCacheController
    calls = (kind._page_set_zero_copy, kind._page_get_zero_copy)
    if not in_place:
        calls = (kind._generic_page_set, kind._generic_page_get)
    its.page_set_func, its.page_get_func = (call.__get__(its) for call in calls)
    return its


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main(rounds: int, directory: str) -> None:
    pool = words.mha_pool(
        pages=PAGES, dtype=torch.bfloat16, page_tokens=TOKENS, layers=8, heads=4, dim=128, allocator="shm"
    )
    words.fill(pool, 1)
    ours = words.backend(pool, dram="512MiB", directory=f"{directory}/own")
    log = {"path": f"{directory}/log", "capacity": "4GiB", "straight": True}
    straight = words.backend(pool, allocator="shm", disk=log)
    file = HiCacheFile(words.rank_config(), file_path=f"{directory}/file")
    indices, numbers = words.indices(pool, range(PAGES)), np.arange(PAGES)
    pages, engine = pages_of(pool), _core.HostCopyEngine(0)
    memory = mmap.mmap(-1, PAGES * pages.bytes)
    memory.madvise(mmap.MADV_HUGEPAGE)  # as the pool's is
    slots = np.frombuffer(memory, np.uint8).reshape(PAGES, pages.bytes)
    slots[:] = 1
    addresses = (slots.ctypes.data + numbers * pages.bytes).astype(np.uint64)
    flat = words.memory(pool).view(torch.uint8).numpy().reshape(-1)[: slots.size]  # it has a page more
    source = pages.read(numbers)
    sums: np.ndarray[Any, Any] = np.empty(0)

    def copy(direction: str) -> None:
        nonlocal sums
        expected = sums if direction == "scatter" else None
        ticket = engine.submit(direction, source.blocks, source.numbers, addresses, expected)
        found = engine.take(ticket)[1]
        sums = found if direction == "gather" else sums

    seconds: dict[str, dict[str, list[float]]] = {"set": defaultdict(list), "get": defaultdict(list)}
    ways = {
        "kvarter": controller(pool, ours, True),
        "straight": controller(pool, straight, True),
        "file": controller(pool, file, False),
    }
    for round_ in range(_WARM + rounds):
        keys = words.keys(PAGES, f"round {round_}")
        for name, way in ways.items():
            stored = StorageOperation(indices, [], hash_value=keys, prefix_keys=[])
            seconds["set"][name].append(timed(lambda w=way, o=stored: HiCacheController._page_backup(w, o)))
            assert stored.completed_tokens == PAGES * TOKENS, name
        seconds["set"]["copy"].append(timed(lambda: copy("gather")))
        seconds["set"]["memcpy"].append(timed(lambda: np.copyto(slots.reshape(-1), flat)))
        for name, way in ways.items():
            read = SimpleNamespace(request_id="bench", is_terminated=lambda: False)
            seconds["get"][name].append(
                timed(lambda w=way, r=read, k=keys: w.page_get_func(r, k, indices, words.after([])))
            )
        copy("gather")
        seconds["get"]["copy"].append(timed(lambda: copy("scatter")))
        seconds["get"]["memcpy"].append(timed(lambda: np.copyto(flat, slots.reshape(-1))))
    ours.close()
    straight.close()
    print(
        json.dumps(
            {kind: {name: its[_WARM:] for name, its in ways.items()} for kind, ways in seconds.items()}
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

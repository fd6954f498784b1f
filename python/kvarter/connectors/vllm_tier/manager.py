"""What vLLM's tiering manager calls: a SecondaryTierManager over the log, on the scheduler's thread of an engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from ...config import Config, disabled
from ...errors import ConfigError
from . import metrics
from .identity import ChunkIdentity
from .transfers import Transfers

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

logger = logging.getLogger("kvarter.tier")


@dataclass(frozen=True)
class _Failed:
    """Of a request one of whose loads failed: it never matches again."""


@dataclass(frozen=True)
class _Used:
    """Of a request: the chunks of it that were here, or were stored; those of its beginning first."""

    keys: dict[OffloadKey, None] = field(default_factory=dict)


class KvarterTier(SecondaryTierManager):
    """A bounded, checksummed log behind vLLM's CPU pool. None of its calls waits for the disk, but for `drain_jobs` and
    `shutdown`, which are there for that.

    A chunk that is corrupt, late or gone is a failed key of its job: vLLM computes it, and stores it again.
    """

    medium: ClassVar[Medium | None] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        locality: str | None = None,
        **settings: Any,
    ) -> None:
        """`settings`: as in the connector's extra config. Raises `ConfigError` for one that is unknown or impossible,
        a directory that cannot be used, and weights that nothing tells."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality(locality) if locality is not None else None
        self._stored: list[OffloadKey] = []
        self._events = offloading_spec.kv_events_config.enable_kv_cache_events
        self._transfers: Transfers | None = None
        self._dead: list[JobResult] = []  # jobs of a tier that is turned off
        self._ns: int | None = None
        self._told = False
        if disabled():
            return
        config = Config.load(settings)
        parallel = offloading_spec.config.parallel
        options = config.disk_options(parallel.data_parallel_index, parallel.data_parallel_size)
        if options is None:
            raise ConfigError(f"the tier {tier_type} has no disk.path and no disk.capacity; it needs both")
        self._seconds = config.load_seconds
        self._identity = ChunkIdentity(offloading_spec, self.block_size_bytes, config.weights_id)
        self._transfers = Transfers(options, primary_kv_view, self._events, config.store_seconds)
        self._meter = metrics.Meter(self._transfers)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        ns = self._namespace()
        if self._transfers is None or ns is None:
            return LookupResult.MISS
        if req_context.get_state(_Failed) is not None or not self._transfers.has(ns, key):
            return LookupResult.MISS
        if self._transfers.late(self._seconds):
            self._transfers.counts["load_too_slow"] += 1
            return LookupResult.MISS
        _used(req_context)[key] = None
        return LookupResult.HIT

    def submit_store(self, job_metadata: TransferJob) -> None:
        keys = list(job_metadata.keys)
        if self._transfers is None:
            self._dead.append(JobResult(job_metadata.job_id, success=True, transfer_bytes=0))
            return
        _used(job_metadata.req_context).update(dict.fromkeys(keys))
        self._transfers.store(job_metadata.job_id, self._namespace(), keys, job_metadata.chunk_ids)

    def submit_load(self, job_metadata: TransferJob) -> None:
        keys, ns = list(job_metadata.keys), self._namespace()
        if self._transfers is None or ns is None:  # weights changed since the look-up
            self._dead.append(JobResult(job_metadata.job_id, success=False))
            return
        self._transfers.load(
            job_metadata.job_id, ns, keys, job_metadata.chunk_ids, self._seconds, job_metadata.req_context
        )

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results, self._dead = self._dead, []
        for job in self._transfers.finished() if self._transfers is not None else ():
            if job.load and job.failed and isinstance(job.request, ReqContext):
                job.request.set_state(_Failed())
            if not job.load and self._events:
                self._stored += [OffloadKey(key) for key in job.served]
            results.append(
                JobResult(
                    job.number,
                    success=not job.failed,
                    successful_keys=[OffloadKey(key) for key in job.served] if job.load else None,
                    transfer_time=job.seconds,
                    transfer_bytes=job.nbytes,
                )
            )
        return results

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._transfers is None or self._ns is None or not self._events:
            return
        stored, self._stored = self._stored, []
        gone = [OffloadKey(key) for key in self._transfers.gone(self._ns)]
        for keys, removed in ((stored, False), (gone, True)):
            if keys:
                yield OffloadingEvent(
                    keys,
                    Medium.STORAGE,
                    removed,
                    self.locality,
                    ownership=self.tier_type,
                    removal_expected=True,
                )

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        keys = [*_used(req_context)]
        if self._transfers is not None and self._ns is not None and keys:
            self._transfers.used(self._ns, keys)

    def drain_jobs(self) -> None:
        """vLLM calls it when it resets its caches: before a sleep, and when weights are replaced in place. From now on
        nothing that is on disk is served to this engine: it was made by the weights before."""
        if self._transfers is None:
            return
        self._transfers.drain()
        self._forget()
        self._identity.renew()

    def shutdown(self) -> None:
        """Writes down what is queued and gives the directory back."""
        if self._transfers is not None:
            self._forget()
            self._transfers.close()
            self._transfers = None

    def _forget(self) -> None:
        """Chunks of an epoch that nobody can ask for again are dropped; those of the weights' files stay."""
        if self._transfers is not None and self._ns is not None and self._identity.epoch:
            self._transfers.log.invalidate(self._ns)
        self._ns = None

    def _namespace(self) -> int | None:
        """The namespace's number; None until the weights' fingerprint is there."""
        if self._ns is None and self._transfers is not None:
            namespace = self._identity.namespace()
            error = self._identity.error()
            if namespace is not None:
                self._ns = self._transfers.open(namespace.digest(), self._identity.groups)
            elif error is not None and not self._told:
                self._told = True
                logger.error("the disk tier stores and serves nothing: %s; set weights_id", error)
        return self._ns

    # --- metrics

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        return metrics.definitions()

    def get_stats(self) -> OffloadingConnectorStats | None:
        return self._meter.read() if self._transfers is not None else None


def _used(req_context: ReqContext) -> dict[OffloadKey, None]:
    used: _Used | None = req_context.get_state(_Used)
    if used is None:
        used = _Used()
        req_context.set_state(used)
    return used.keys

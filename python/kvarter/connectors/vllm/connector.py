"""The class that vLLM loads: checks the engine, and hands each call to the half that it is for."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.version import __version__ as vllm_version

from ...base_store import BaseStore
from ...config import Config, disabled
from ...errors import UnsupportedEngine
from ...node import invited
from .. import SUPPORTED_VLLM
from .layout import groups_of
from .messages import EMPTY, Shards, StepMetadata, WorkerReport
from .metrics import Series, Stats
from .scheduler import SchedulerSide
from .worker import WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
    )
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger("kvarter.vllm")
# A drafter that keeps KV writes what depends on the token after a block, which the block's name does not say.
_DRAFTS_WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix")
_stores: weakref.WeakSet[BaseStore] = weakref.WeakSet()


def stores() -> list[BaseStore]:
    """The stores of this process's engines."""
    return list(_stores)


def check_engine(vllm_config: VllmConfig) -> None:
    """Raises `UnsupportedEngine`, one sentence, for what this version cannot serve exactly."""
    if vllm_version.split("+")[0].split(".")[:2] != SUPPORTED_VLLM.split("."):
        raise UnsupportedEngine(
            f"vLLM {vllm_version} is installed; this version of Kvarter supports {SUPPORTED_VLLM}"
        )
    transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
    if transfer.kv_load_failure_policy != "recompute":
        raise UnsupportedEngine(
            f"kv_load_failure_policy is {transfer.kv_load_failure_policy!r}; set it to 'recompute' in the KV transfer "
            "config, so that a failed load costs time and not the request"
        )
    if parallel.nnodes > 1:
        raise UnsupportedEngine(
            f"this engine's ranks are on {parallel.nnodes} hosts; in this version all ranks of an engine must be on one"
        )
    contexts = (parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size)
    if max(contexts) > 1:
        raise UnsupportedEngine(
            f"context parallelism of {max(contexts)}: this version of Kvarter serves engines without it"
        )
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method not in _DRAFTS_WITHOUT_CACHE:
        raise UnsupportedEngine(
            f"speculative decoding by {speculative.method!r} is on; this version of Kvarter serves the methods whose "
            f"drafts have no cache of their own: {', '.join(_DRAFTS_WITHOUT_CACHE)}"
        )


class KvarterConnector(KVConnectorBase_V1, SupportsHMA):
    """Kvarter beneath vLLM. With `KVARTER_DISABLE=1` it does nothing at all."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if disabled():
            logger.warning("KVARTER_DISABLE is set: nothing is cached")
            return
        check_engine(vllm_config)
        config = Config.load(vllm_config.kv_transfer_config.kv_connector_extra_config)
        parallel = vllm_config.parallel_config
        groups = groups_of(kv_cache_config, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(vllm_config, kv_cache_config, groups, config)
            _stores.add(self._scheduler.store)
        else:
            engine = str(vllm_config.kv_transfer_config.engine_id)
            place = invited(engine, config.directory, config.node)
            zeroed_first = vllm_config.use_v2_model_runner and kv_cache_config.needs_kv_cache_zeroing
            self._worker = WorkerSide(
                kv_cache_config,
                groups,
                config,
                parallel.rank,
                place,
                zeroed_first,
                sleeps=vllm_config.model_config.enable_sleep_mode,
            )

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return False  # nothing is done between layers: whole graphs are right

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: what was not stored is recomputed

    # --- scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler:
            self._scheduler.bind_block_pool(kv_cache_manager.block_pool)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        if self._scheduler and self._vllm_config.parallel_config.pipeline_parallel_size > 1:
            said = [
                metadata[place] for place in sorted(metadata)
            ]  # by stage, and by rank in it: vLLM's order
            self._scheduler.set_shards([shards.nbytes for shards in said if isinstance(shards, Shards)])

    def on_new_request(self, request: Request) -> None:
        if self._scheduler:
            self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._scheduler.matched_tokens(request, num_computed_tokens) if self._scheduler else (0, False)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        if self._scheduler:
            self._scheduler.allocated(request, blocks, num_external_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        return self._scheduler.loaded_groups(request) if self._scheduler else ()

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self._scheduler.build_metadata(scheduler_output) if self._scheduler else EMPTY

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if self._scheduler:
            self._scheduler.update(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        if self._scheduler:
            self._scheduler.request_finished(request, block_ids)
        return False, None

    def take_events(self) -> Iterable[KVCacheEvent]:
        return self._scheduler.take_events() if self._scheduler else ()

    def has_pending_push_work(self) -> bool:
        return self._scheduler.has_pending_work() if self._scheduler else False

    def reset_cache(self) -> bool | None:
        return self._scheduler.reset() if self._scheduler else None

    # --- worker

    def get_handshake_metadata(self) -> Shards | None:
        # Only where the scheduler needs it: MultiConnector hands one member's word to all of them.
        staged = self._vllm_config.parallel_config.pipeline_parallel_size > 1
        return self._worker.shards() if self._worker and staged else None

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self._worker:
            self._worker.register(kv_caches)

    def _step(self) -> StepMetadata:
        meta = self._get_connector_metadata()
        assert isinstance(meta, StepMetadata)
        return meta

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if self._worker and isinstance(kv_connector_metadata, StepMetadata):
            self._worker.before_reuse(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker:
            self._worker.start_loads(self._step())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request's blocks are all there before it is scheduled."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: whole blocks are copied after the forward."""

    def wait_for_save(self) -> None:
        if self._worker:
            self._worker.submit_stores(self._step())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = KVConnectorTransferResults()
        if self._worker:
            results.finished_recving, results.failed_recving = self._worker.finished_loads()
        return results

    def build_connector_worker_meta(self) -> WorkerReport | None:
        return self._worker.report() if self._worker else None

    # --- both

    def get_kv_connector_stats(self) -> Stats | None:
        return self._scheduler.stats() if self._scheduler else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Series:
        return Series(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._scheduler:
            _stores.discard(self._scheduler.store)
            self._scheduler.close()
        if self._worker:
            self._worker.close()

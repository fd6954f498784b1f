"""vLLM's real schedulers over `fake_model`, with both halves of the connector: an engine core without a model.

Imports vLLM, so a test imports this module only when it runs. What happens on the worker in a step is vLLM's own code:
the mixin of model runner V1, or `ActiveKVConnector` of V2.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin as Mixin

from fake_model import FakeModel, Truth, spec_of, token_bytes
from kvarter.connectors.vllm import KvarterConnector, stores
from kvarter.geometry import Geometry

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}
_numbers = itertools.count()


@cache
def _config(directory: Path, drafts: int) -> Any:
    (directory / "config.json").write_text(json.dumps(_LLAMA))
    return EngineArgs(
        model=str(directory),
        skip_tokenizer_init=True,
        max_model_len=1024,
        block_size=32,
        enable_prefix_caching=True,
        async_scheduling=False,
        enforce_eager=True,
        load_format="dummy",
        kv_transfer_config={
            "kv_connector": "KvarterConnector",
            "kv_connector_module_path": "kvarter.connectors.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
        },
        speculative_config={"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 3}
        if drafts
        else None,
    ).create_engine_config()


class Runner:
    """What a worker keeps of each request, and a step of it."""

    def __init__(self, config: Any, model: FakeModel, connected: bool, drafter: Any) -> None:
        self._config, self._model, self._drafter = config, model, drafter
        self._connected, self._v2 = connected, config.use_v2_model_runner
        self._spec = config.num_speculative_tokens
        self._tokens: dict[str, list[int]] = {}
        self._tables: dict[str, list[list[int]]] = {}
        self._prompts: dict[str, int] = {}
        self._truth: dict[str, Truth] = {}
        self.drafts: dict[str, list[int]] = {}
        self.accepted = 0  # drafts
        self.wrong: list[tuple[str, int]] = []  # (request, position) where the cache said something else
        self._v2_connector = ActiveKVConnector(config, model.tensors) if connected and self._v2 else None
        if connected and not self._v2:
            kv_transfer_state.get_kv_transfer_group().register_kv_caches(model.tensors)

    def execute(self, so: Any) -> ModelRunnerOutput:
        if not self._connected:
            self._update(so)
            return self._output(self._forward(so), None)
        if self._v2_connector is not None:
            return self._execute_v2(so, self._v2_connector)
        kv_transfer_state.get_kv_transfer_group().handle_preemptions(so.kv_connector_metadata)
        self._update(so)
        if not so.total_num_scheduled_tokens:
            return Mixin.kv_connector_no_forward(so, self._config)
        with (
            set_forward_context(None, self._config),
            Mixin.maybe_get_kv_connector_output(so, defer_finalize=bool(self._spec)) as kv_output,
        ):
            sampled = self._forward(so)
        if self._spec:
            Mixin.finalize_kv_connector()
        return self._output(sampled, kv_output)

    def _execute_v2(self, so: Any, connector: ActiveKVConnector) -> ModelRunnerOutput:
        self._update(so)
        if not so.total_num_scheduled_tokens:
            return connector.no_forward(so)
        ids = list(so.num_scheduled_tokens)
        batch = SimpleNamespace(idx_mapping=None, req_ids=ids, num_tokens=so.total_num_scheduled_tokens)
        with set_forward_context(None, self._config):
            connector.pre_forward(so, batch)
            sampled = self._forward(so)
        connector.finish_forward()
        return self._output(sampled, connector.post_forward(so.finished_req_ids))

    def _update(self, so: Any) -> None:
        for rid in so.finished_req_ids:
            self._tokens.pop(rid, None)
        self._model.zero(so.new_block_ids_to_zero or [])
        assert not so.kv_cache_block_copies  # only where hash units are smaller than a state's blocks
        for new in so.scheduled_new_reqs:
            self._tokens[new.req_id] = list(new.prefill_token_ids or new.prompt_token_ids)
            self._tables[new.req_id] = [list(ids) for ids in new.block_ids]
            self._prompts[new.req_id] = len(new.prompt_token_ids)
            self.drafts.pop(new.req_id, None)
        cached = so.scheduled_cached_reqs
        for rid, blocks, outputs in zip(
            cached.req_ids, cached.new_block_ids, cached.num_output_tokens, strict=True
        ):
            del self._tokens[rid][self._prompts[rid] + outputs :]  # sampled in a step whose load failed
            if rid in cached.resumed_req_ids:
                self._tokens[rid] = list(cached.all_token_ids[rid])
                self._tables[rid] = [list(ids) for ids in blocks]
                self.drafts.pop(rid, None)
            elif blocks is not None:
                for table, ids in zip(self._tables[rid], blocks, strict=True):
                    table += ids

    def _forward(self, so: Any) -> dict[str, list[int]]:
        computed = dict(
            zip(so.scheduled_cached_reqs.req_ids, so.scheduled_cached_reqs.num_computed_tokens, strict=True)
        )
        computed |= {new.req_id: new.num_computed_tokens for new in so.scheduled_new_reqs}
        sampled: dict[str, list[int]] = {}
        for rid, scheduled in so.num_scheduled_tokens.items():
            tokens, tables = self._tokens[rid], self._tables[rid]
            offered = so.scheduled_spec_decode_tokens.get(rid, [])
            # A scheduler that runs ahead does not know the drafts, nor how many of the last were accepted.
            drafts = [
                own if n < 0 else n
                for n, own in zip(offered, [*self.drafts.get(rid, []), *offered], strict=False)
            ]
            start = min(computed[rid], len(tokens) - 1)
            end = start + scheduled - len(drafts)
            assert end <= len(tokens)
            self._model.forward(tables, start, tokens[start:end] + drafts)
            sampled[rid] = self._sample(rid, end, drafts) if end == len(tokens) else []
            self.accepted += max(len(sampled[rid]) - 1, 0)
            tokens += sampled[rid]
            if self._spec:
                self.drafts[rid] = self._drafter(self._truth_of(rid), tokens) if sampled[rid] else []
        return sampled

    def _sample(self, rid: str, end: int, drafts: list[int]) -> list[int]:
        out: list[int] = []
        for draft in [*drafts, None]:
            out.append(self._model.sample(self._tables[rid], end - 1 + len(out)))
            if out[-1] != self._truth_of(rid).after(self._tokens[rid] + out[:-1]):
                self.wrong.append((rid, end - 1 + len(out)))
            if out[-1] != draft:
                break
        return out

    def _truth_of(self, rid: str) -> Truth:
        if rid not in self._truth or self._truth[rid].weights != self._model.weights:
            self._truth[rid] = Truth(self._model.geometry, self._model.weights)
        return self._truth[rid]

    @staticmethod
    def _output(sampled: dict[str, list[int]], kv_output: Any) -> ModelRunnerOutput:
        ids = list(sampled)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={rid: at for at, rid in enumerate(ids)},
            sampled_token_ids=[list(sampled[rid]) for rid in ids],
            kv_connector_output=kv_output,
        )


class Core:
    """`EngineCore` as far as scheduling goes. One a process at a time while it has a connector.

    steps_ahead: batches in flight beyond the one that is updated (1: `AsyncScheduler`). extra: Kvarter's settings, None
    for no connector. connectors: the children of a MultiConnector around it. device: a device_words.FakeDriver, which
    then has the cache.
    """

    def __init__(
        self,
        geometry: Geometry,
        directory: Path,
        *,
        blocks: int,
        budget: int = 64,
        running: int = 8,
        steps_ahead: int = 0,
        drafts: int = 0,
        drafter: Any = None,
        extra: Mapping[str, Any] | None = None,
        transfer: Mapping[str, Any] | None = None,
        block_outermost: bool = False,
        device: Any = None,
    ) -> None:
        self.config = config = copy.deepcopy(_config(directory, drafts))
        config.cache_config.num_gpu_blocks = blocks
        config.cache_config.block_size = min(group.block_tokens for group in geometry.groups)
        config.cache_config.mamba_cache_mode = "align"
        config.scheduler_config.max_num_batched_tokens = budget
        config.scheduler_config.max_num_scheduled_tokens = budget
        config.scheduler_config.max_num_seqs = running
        config.scheduler_config.async_scheduling = bool(steps_ahead)
        self.model = FakeModel(geometry, blocks, block_outermost, device)
        page = max(group.block_tokens for group in geometry.groups) * token_bytes() // 2
        kv_config = KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"{n}.0", f"{n}.1"], spec_of(group, page))
                for n, group in enumerate(geometry.groups)
            ],
        )
        connected = extra is not None or transfer is not None
        if connected:
            config.kv_transfer_config.engine_id = f"scheduler-test-{next(_numbers)}"
            config.kv_transfer_config.kv_connector_extra_config = {
                "dram": "8MiB",
                "weights_id": "fake",
                **(
                    {}
                    if device is None
                    else {"copy_member": "cuda", "cuda": {"driver": device.path, "kernel_below": 0}}
                ),
                **(extra or {}),
            }
            for name, value in (transfer or {}).items():
                setattr(config.kv_transfer_config, name, value)
        else:
            config.kv_transfer_config = None
        size, unit = resolve_kv_cache_block_sizes(kv_config, config)
        kv_config.hash_block_size = unit
        if connected:
            kv_transfer_state._KV_CONNECTOR_AGENT = KVConnectorFactory.create_connector(
                config, KVConnectorRole.WORKER, kv_config
            )
        self.runner = Runner(config, self.model, connected, drafter)
        self.scheduler = (AsyncScheduler if steps_ahead else Scheduler)(
            config,
            kv_config,
            StructuredOutputManager(config),
            block_size=size,
            hash_block_size=unit,
            log_stats=True,
        )
        hasher = get_hash_fn_by_name("sha256")
        init_none_hash(hasher)
        self._block_hasher = get_request_block_hasher(unit, hasher)
        self._steps_ahead, self._queue = steps_ahead, deque[Any]()
        self.outputs: dict[str, list[int]] = {}
        self.stats: list[Any] = []
        self.external_hits = 0  # tokens, as the engine counts them
        self.seen = Counter[str]()  # what happened: preempted, flushed, aborted_loading, accepted (drafts)

    def add(self, name: str, prompt: list[int], count: int) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        sampling.update_from_generation_config({}, None)
        self.outputs[name] = []
        self.scheduler.add_request(
            Request(name, list(prompt), sampling, None, block_hasher=self._block_hasher)
        )

    def abort(self, name: str) -> None:
        request = self.scheduler.requests[name]
        self.seen["aborted_loading"] += request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        """One schedule, and the update from the oldest batch once more than `steps_ahead` are in flight."""
        if self.scheduler.has_requests():
            so = self.scheduler.schedule()
            self.seen["preempted"] += len(so.preempted_req_ids or ())
            self.seen["flushed"] += len(getattr(so.kv_connector_metadata, "flush", ()))
            self._queue.append(so)
            if len(self._queue) <= self._steps_ahead and self.scheduler.has_requests():
                return
        if self._queue:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        so = self._queue.popleft()
        output = self.runner.execute(so)
        self.seen["accepted"] = self.runner.accepted
        for outputs in self.scheduler.update_from_output(so, output).values():
            for one in outputs.outputs:
                self.outputs[one.request_id] += one.new_token_ids
            stats = outputs.scheduler_stats
            if stats is not None and stats.connector_prefix_cache_stats is not None:
                hits = stats.connector_prefix_cache_stats
                self.external_hits += hits.hits + hits.preempted_hits
            if stats is not None and stats.kv_connector_stats:
                self.stats.append(stats.kv_connector_stats)
        if self.runner.drafts and not self._steps_ahead:
            ids = [rid for rid in so.num_scheduled_tokens if rid in self.runner.drafts]
            self.scheduler.update_draft_token_ids(
                DraftTokenIds(ids, [list(self.runner.drafts[rid]) for rid in ids])
            )

    def drain(self) -> None:
        """Until nothing is left to do; raises where the engine comes to no end."""
        steps = 0
        while self._queue or self.scheduler.has_requests():
            self.step()
            steps += 1
            if steps > 20000:
                waiting = {
                    rid: (r.status.name, r.num_computed_tokens) for rid, r in self.scheduler.requests.items()
                }
                free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
                raise TimeoutError(f"not idle after {steps} steps, {free} blocks free: {waiting}")

    def drop_prefix_cache(self) -> None:
        self.drain()
        assert self.scheduler.reset_prefix_cache()

    def settle(self) -> None:
        """Until no batch is in flight and no waiting request holds blocks: the engine resets nothing before that."""
        while self._queue or self.scheduler.kv_holding_waiting:
            if self._queue:
                self._finish_oldest()
            else:
                self.step()

    def change_weights(self, running: bool = True) -> bool:
        """What a pause that keeps requests, a weight update and a cache reset do. running: requests start again."""
        self.settle()
        self.model.weights += 1
        return self.scheduler.reset_prefix_cache(reset_running_requests=running, reset_connector=True)

    def ask(self, prompts: Iterable[list[int]], count: int) -> list[list[int]]:
        """Sends all together and waits."""
        names = []
        for prompt in prompts:
            names.append(f"ask-{next(_numbers)}")
            self.add(names[-1], prompt, count)
        self.drain()
        return [self.outputs[name] for name in names]

    def stores(self) -> list[Any]:
        """Of this process: one while there is one engine."""
        return stores()

    def tokens(self) -> dict[str, int]:
        """Tokens from outside the engine: matched, and what became of them."""
        (ours,) = (c for c in self.connectors() if isinstance(c, KvarterConnector))
        return dict(ours._scheduler.loads.tokens)

    def connectors(self) -> list[Any]:
        """The scheduler's side of each."""
        connector = self.scheduler.connector
        return connector.sub_connectors if isinstance(connector, MultiConnector) else [connector]

    def close(self) -> None:
        self.scheduler.shutdown()
        kv_transfer_state.ensure_kv_transfer_shutdown()

"""A connector that promises to load for requests named "sibling..." and never does: a child of MultiConnector."""

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)


@dataclass
class Promises(KVConnectorMetadata):
    loads: dict[str, list[int]] = field(default_factory=dict)  # engine blocks by request


class Sibling(KVConnectorBase_V1, SupportsHMA):
    """`asynchronous` and `after` (steps until a load fails) come from its extra config."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._asynchronous, self._after = extra["asynchronous"], extra["after"]
        self._new, self._asked = Promises(), set[str]()
        self.promised = 0  # tokens
        self._left: dict[str, int] = {}
        self._invalid = set[int]()

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        if not request.request_id.startswith("sibling") or request.request_id in self._asked:
            return 0, False
        tokens = (request.num_tokens - 1) // 8 * 8 - num_computed_tokens
        return max(tokens, 0), self._asynchronous and tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.promised += num_external_tokens
            self._asked.add(request.request_id)
            self._new.loads[request.request_id] = blocks.get_block_ids()[0]

    def build_connector_meta(self, scheduler_output: Any) -> Promises:
        new, self._new = self._new, Promises()
        return new

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for rid, blocks in self._get_connector_metadata().loads.items():
            if self._asynchronous:
                self._left[rid] = self._after
            else:
                self._invalid |= set(blocks)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        self._left = {rid: left - 1 for rid, left in self._left.items()}
        # One at a time, the last first: the engine frees failed requests in their order, and waits for ever at the
        # first that finds no blocks.
        last = next(reversed(self._left), None)
        ended = {last} if last is not None and self._left[last] < 0 else set()
        for rid in ended:
            del self._left[rid]
        return KVConnectorTransferResults(finished_recving=ended, failed_recving=set(ended))

    def get_block_ids_with_load_errors(self) -> set[int]:
        invalid, self._invalid = self._invalid, set()
        return invalid

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *_: Any, **__: Any) -> None: ...

    def wait_for_save(self) -> None: ...


def beside(**extra: Any) -> dict[str, Any]:
    """`transfer` of a Core whose MultiConnector has this connector, with these settings, and then Kvarter."""
    ours = {"kv_connector": "KvarterConnector", "kv_connector_module_path": "kvarter.connectors.vllm"}
    ours |= {"kv_load_failure_policy": "recompute"}
    other = {"kv_connector": "Sibling", "kv_connector_module_path": "scheduler_sibling"}
    settings = {"dram": "8MiB", "weights_id": "fake"}
    return {
        "kv_connector": "MultiConnector",
        "kv_connector_module_path": None,
        "kv_connector_extra_config": {
            "connectors": [
                {**other, "kv_role": "kv_both", "kv_connector_extra_config": extra},
                {**ours, "kv_role": "kv_both", "kv_connector_extra_config": settings},
            ]
        },
    }

"""Connectors to stand beside ours in a MultiConnector: they find nothing, and count what they are asked."""

from collections import Counter

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

asked: Counter[str] = Counter()


class PlainSibling(KVConnectorBase_V1):
    """Of the kind that knows one cache group."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        asked["match"] += 1
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        asked["allocated"] += 1

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context, **kwargs):
        asked["load"] += 1

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass

    def request_finished(self, request, block_ids):
        asked["finished"] += 1
        return False, None


class HybridSibling(PlainSibling, SupportsHMA):
    """Of the kind that knows several."""

    def request_finished_all_groups(self, request, block_ids):
        asked["finished_all_groups"] += 1
        return False, None

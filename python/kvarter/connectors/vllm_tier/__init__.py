"""A tier behind vLLM's own CPU pool, for deployments that keep vLLM's offloading. Name it in `secondary_tiers`:

    {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
     "kv_connector_extra_config": {
         "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8589934592,
         "secondary_tiers": [{"type": "KvarterTier", "module_path": "kvarter.connectors.vllm_tier",
                              "disk": {"path": "/mnt/nvme/kvarter", "capacity": "400GiB"}}]}}

The rest of its settings are those of `kvarter config show` that concern a disk: `disk`, `weights_id`,
`load_seconds`, `store_seconds`; `locality` is vLLM's. `kvarter vllm-args` prints all of it.

vLLM's CPU pool is a foreign arena: the log (csrc/include/kvarter/disk.h) reads and writes there, nothing is copied.
The interface names blocks by the engine's own hashes and says nothing of their parents, so each chunk stands alone in
the log; which of them make a hit is the engine's to find.
"""

from .manager import KvarterTier

__all__ = ["KvarterTier"]

"""The vLLM connector. Name it in the engine's KV transfer config:

    {"kv_connector": "KvarterConnector", "kv_connector_module_path": "kvarter.connectors.vllm",
     "kv_role": "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"dram": "8GiB"}}

Two instances of one class live in an engine: the scheduler's (scheduler.py), which matches, reserves and commits,
and each worker's (worker.py), which copies. What travels between them is in messages.py.
"""

from .connector import KvarterConnector, stores

__all__ = ["KvarterConnector", "stores"]

"""What the engine tests say about the store beneath the engine of this process."""

from typing import Any

from prometheus_client import REGISTRY

from kvarter.demo import engine

# What each model needs to run small.
_SETTINGS = {
    "llama": {"blocks": 64, "block_size": 32},
    "gptoss": {"blocks": 64, "block_size": 32, "max_model_len": 1024, "max_num_batched_tokens": 128},
    # Its recurrent kernel takes bfloat16 only. Then greedy tokens depend on how a prompt is cut into steps: with
    # caching on, the engine cuts at the same boundaries with and without a hit.
    "qwen3next": {"blocks": 40, "block_size": 256, "max_model_len": 2048, "dtype": "bfloat16"},
}


def settings_of(name: str) -> dict[str, Any]:
    """The engine's settings for one of the small models."""
    return dict(_SETTINGS[name])


def expected_of(baseline: Any, name: str, asked: Any, count: int) -> Any:
    """Greedy tokens of an engine without Kvarter."""
    if name == "qwen3next":
        return baseline(
            name, asked, count, **settings_of(name) | {"blocks": 200, "enable_prefix_caching": True}
        )
    return baseline(name, asked, count)


def the_store() -> Any:
    """The one store that is embedded in this process's engine."""
    from kvarter.connectors.vllm import stores

    (store,) = stores()
    return store


def series(name: str, label: str) -> dict[str, float]:
    """Values of one Prometheus series by one of its labels."""
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples if sample.name == name]
    return {sample.labels[label]: sample.value for sample in samples}


def idle(llm: Any) -> dict[str, int]:
    """The account once the engine has settled: exact, and with nothing held."""
    engine.settle(llm)
    store = the_store()
    ledger = store.audit()
    assert ledger["reserved"] == ledger["leased"] == ledger["quarantined"] == ledger["dead"] == 0
    return store.stats()

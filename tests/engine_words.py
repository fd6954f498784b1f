"""What the engine tests say about the store beneath the engine of this process."""

from typing import Any

from prometheus_client import REGISTRY

from kvarter.demo import engine


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

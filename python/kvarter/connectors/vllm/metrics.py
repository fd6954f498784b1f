"""Kvarter's series in vLLM's own metrics: `kvarter_*` on /metrics, and one line in the engine's log.

The scheduler's side sends what changed in a step (`Stats`); `Series` adds it up in the front end. In tokens,
loaded + failed + expired = matched once nothing is under way, and matched is what vLLM counts as external hits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from ...tiers.disk import Disk
from ...tiers.log import account, at_risk

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Family -> (label, help). Counters carry what changed, gauges what is.
COUNTERS = {
    "hit_tokens": ("tier", "Prompt tokens matched, by the lowest tier that one of their blocks came from"),
    "tokens": ("outcome", "Prompt tokens served from outside the engine, by what became of them"),
    "blocks": (
        "event",
        "Blocks by what became of them: stored, or why not; dropped, and why; leased and loaded",
    ),
    "bytes_moved": ("event", "Payload bytes stored, loaded and evicted"),
    "disk_blocks": ("event", "Blocks on their way to disk and back, and what became of them"),
    "disk_bytes_moved": ("event", "Payload bytes stored and loaded, and bytes that the device wrote"),
    "requests": ("event", "Requests that were loaded, or not cached, and why"),
    "seconds": ("event", "Time lost: waiting for copies whose source was about to be reused"),
}
GAUGES = {
    "bytes": ("state", "Bytes of the pool by what they are; they add up to capacity"),
    "disk_bytes": ("state", "Bytes of the log on disk by what they are; they add up to capacity"),
    "disk_at_risk_bytes": (
        "of",
        "Bytes that a power loss would take: queued (kill -9 takes them, too), undurable",
    ),
    "disk_sequence": ("of", "Sequence numbers: of the last block that can be found, of the last durable one"),
    "rates": ("of", "What loading from disk is weighed by: bytes of it and prompt tokens computed, a second"),
}


class Stats(KVConnectorStats):
    """data: {family: {label value: number}}."""

    data: dict[str, dict[str, float]]

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> Stats:
        for family, values in other.data.items():
            mine = self.data.setdefault(family, {})
            for label, value in values.items():
                mine[label] = value if family in GAUGES else mine.get(label, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        tokens, ledger = self.data.get("tokens", {}), self.data.get("bytes", {})
        summary = {f"tokens_{outcome}": value for outcome, value in tokens.items()}
        summary["blocks_stored"] = self.data.get("blocks", {}).get("stored", 0)
        if ledger:
            summary["pool_used"] = round(1 - ledger["free"] / max(ledger["capacity"], 1), 3)
        return summary

    def is_empty(self) -> bool:
        return not self.data


class Series(KVConnectorPromMetrics):
    """One Prometheus metric for each family, with vLLM's engine labels and ours."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        _forget_earlier_engines()
        self._metrics = {
            family: (self._gauge_cls if family in GAUGES else self._counter_cls)(
                name=f"kvarter_{family}", documentation=text, labelnames=[*labelnames, label]
            )
            for family, (label, text) in {**COUNTERS, **GAUGES}.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        engine = self.per_engine_labelvalues[engine_idx]
        for family, values in transfer_stats_data.items():
            for label, value in values.items():
                metric = self._metrics[family].labels(*engine, label)
                if family in GAUGES:
                    metric.set(value)
                else:
                    metric.inc(value)


def _forget_earlier_engines() -> None:
    """A process may start one engine after another; vLLM takes its own series back the same way."""
    for collector in list(REGISTRY._collector_to_names):
        if any(name.startswith("kvarter_") for name in REGISTRY._collector_to_names[collector]):
            REGISTRY.unregister(collector)


class Meter:
    """Turns running totals into what changed since the last reading."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, float]] = {}
        self._gauges: dict[str, dict[str, float]] = {}

    def read(self, totals: dict[str, dict[str, float]], gauges: dict[str, dict[str, float]]) -> Stats:
        changed: dict[str, dict[str, float]] = {}
        for family, values in totals.items():
            before = self._before.get(family, {})
            moved = {label: value - before.get(label, 0) for label, value in values.items()}
            moved = {label: value for label, value in moved.items() if value}
            if moved:
                changed[family] = moved
        same = not changed and gauges == self._gauges
        self._before, self._gauges = totals, gauges
        return Stats(data={} if same else {**changed, **gauges})


def disk_stats(disk: Disk) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Running totals and gauges of a log, by family."""
    counts = disk.stats()
    blocks, moved = account(counts)
    blocks |= {name: count for name, count in counts.items() if name == "offered" or name.startswith("down_")}
    ledger = {name: float(value) for name, value in disk.log.ledger().items()}
    risk, sequences = at_risk(counts)
    risk["queued"] += disk.queued_bytes
    gauges = {"disk_bytes": ledger, "disk_at_risk_bytes": risk, "disk_sequence": sequences}
    return {"disk_blocks": blocks, "disk_bytes_moved": moved}, gauges

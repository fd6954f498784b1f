"""The tier's series among vLLM's own: `vllm:kvarter_tier_*` on /metrics, labelled by what they count."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

from ...tiers.log import account, at_risk
from .transfers import Transfers

BYTES = "vllm:kvarter_tier_bytes"
CHUNKS = "vllm:kvarter_tier_chunks"
MOVED = "vllm:kvarter_tier_bytes_moved"
AT_RISK = "vllm:kvarter_tier_at_risk_bytes"
SEQUENCE = "vllm:kvarter_tier_sequence"


def definitions() -> dict[str, OffloadingMetricMetadata]:
    return {
        BYTES: OffloadingGaugeMetadata(
            "Bytes of the log on disk by what they are; they add up to capacity", ("state",)
        ),
        AT_RISK: OffloadingGaugeMetadata(
            "Bytes that a power loss would take: queued (kill -9 takes them, too), undurable", ("of",)
        ),
        SEQUENCE: OffloadingGaugeMetadata(
            "Sequence numbers: of the last chunk that can be found, of the last durable one", ("of",)
        ),
        CHUNKS: OffloadingCounterMetadata(
            "Chunks by what became of them: stored, or why not; dropped, and why; loaded, or why not (load_*)",
            ("event",),
        ),
        MOVED: OffloadingCounterMetadata(
            "Payload bytes stored and loaded, and bytes that the device wrote", ("event",)
        ),
    }


class Meter:
    """What changed since the last reading."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._before: dict[tuple[str, str], float] = {}
        self._levels: dict[tuple[str, str], float] = {}

    def read(self) -> OffloadingConnectorStats | None:
        """None when nothing did."""
        counts = self._transfers.log.counters()
        totals, levels = self._totals(counts), self._levels_of(counts)
        changed = {name: value - self._before.get(name, 0) for name, value in totals.items()}
        self._before = totals
        stats = OffloadingConnectorStats()
        for (series, event), value in changed.items():
            if value:
                stats.increase_counter(series, value, (event,))
        if stats.is_empty() and levels == self._levels:
            return None
        self._levels = levels
        for (series, label), value in levels.items():
            stats.set_gauge(series, value, (label,))
        return stats

    def _levels_of(self, counts: dict[str, Any]) -> dict[tuple[str, str], float]:
        risk, sequences = at_risk(counts)
        return {
            **{(BYTES, state): value for state, value in self._transfers.log.ledger().items()},
            **{(AT_RISK, name): value for name, value in risk.items()},
            **{(SEQUENCE, name): value for name, value in sequences.items()},
        }

    def _totals(self, counts: dict[str, Any]) -> dict[tuple[str, str], float]:
        chunks, moved = account(counts)
        for name, count in self._transfers.counts.items():
            chunks[name] = chunks.get(name, 0) + count
        return {
            **{(CHUNKS, name): value for name, value in chunks.items()},
            **{(MOVED, name): value for name, value in moved.items()},
        }

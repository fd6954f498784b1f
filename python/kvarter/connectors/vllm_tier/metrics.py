"""The tier's series among vLLM's own: `vllm:kvarter_tier_*` on /metrics, labelled by what they count."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

from ...tiers.log import account
from .transfers import Transfers

BYTES = "vllm:kvarter_tier_bytes"
CHUNKS = "vllm:kvarter_tier_chunks"
MOVED = "vllm:kvarter_tier_bytes_moved"


def definitions() -> dict[str, OffloadingMetricMetadata]:
    return {
        BYTES: OffloadingGaugeMetadata(
            "Bytes of the log on disk by what they are; they add up to capacity", ("state",)
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

    def read(self) -> OffloadingConnectorStats | None:
        """None when nothing did."""
        totals = self._totals()
        changed = {name: value - self._before.get(name, 0) for name, value in totals.items()}
        self._before = totals
        stats = OffloadingConnectorStats()
        for (series, event), value in changed.items():
            if value:
                stats.increase_counter(series, value, (event,))
        if stats.is_empty():
            return None
        for state, value in self._transfers.log.ledger().items():
            stats.set_gauge(BYTES, value, (state,))
        return stats

    def _totals(self) -> dict[tuple[str, str], float]:
        chunks, moved = account(self._transfers.log.counters())
        for name, count in self._transfers.counts.items():
            chunks[name] = chunks.get(name, 0) + count
        return {
            **{(CHUNKS, name): value for name, value in chunks.items()},
            **{(MOVED, name): value for name, value in moved.items()},
        }

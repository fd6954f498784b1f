"""Kvarter's series in SGLang's own /metrics: `kvarter_*`, with SGLang's ranks as labels; and SGLang's storage series.

SGLang collects the series of all its processes where it was started with --enable-metrics. What concerns the whole pool
is on the node's own /metrics where there is a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .backing import Backing

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

# Family -> (label, help). Counters carry what changed, gauges what is.
COUNTERS = {
    "pages": ("outcome", "Pages that SGLang asked to store or to load, by what became of them"),
    "blocks": (
        "event",
        "Blocks by what became of them: stored, or why not; dropped, and why; leased and loaded",
    ),
    "bytes_moved": ("event", "Payload bytes stored, loaded and evicted"),
    "seconds": ("event", "Time that SGLang's threads spent in the backend"),
}
GAUGES = {"bytes": ("state", "Bytes of the rank's own pool by what they are; they add up to capacity")}
_LEVELS = ("in_flight", "resident_blocks", "leased_now")  # go up and down: the ledger shows them in bytes
_RANKS = ("tp_rank", "pp_rank", "dp_rank")


class Series:
    """One rank's. Registered once in a process, however often a backend is attached."""

    _metrics: dict[str, Any] = {}  # noqa: RUF012  the registry is the process's, too

    def __init__(self, storage: HiCacheStorageConfig) -> None:
        from prometheus_client import Counter as Total
        from prometheus_client import Gauge

        self._ranks = [str(getattr(storage, rank)) for rank in _RANKS]
        self._before: dict[str, Any] = {family: Counter() for family in COUNTERS}
        for family, (label, text) in COUNTERS.items():
            if family not in self._metrics:
                self._metrics[family] = Total(f"kvarter_{family}", text, [*_RANKS, label])
        for family, (label, text) in GAUGES.items():
            if family not in self._metrics:
                self._metrics[family] = Gauge(
                    f"kvarter_{family}", text, [*_RANKS, label], multiprocess_mode="livemostrecent"
                )

    def update(self, session: Backing) -> None:
        blocks = Counter({n: c for n, c in session.counters().items() if n not in _LEVELS})
        moved = Counter({name: blocks.pop(f"{name}_bytes") for name in ("stored", "loaded", "evicted")})
        totals: dict[str, Any] = {
            "pages": Counter(session.pages),
            "blocks": blocks,
            "bytes_moved": moved,
            "seconds": Counter({kind: session.moved[f"{kind}_ns"] / 1e9 for kind in ("put", "get")}),
        }
        for family, now in totals.items():
            for name, value in now.items():
                if (more := value - self._before[family][name]) > 0:
                    self._metrics[family].labels(*self._ranks, name).inc(more)
            self._before[family] = now
        for name, size in session.ledger().items():
            self._metrics["bytes"].labels(*self._ranks, name).set(size)


def interval() -> Callable[[Backing], Any]:
    """What SGLang's own storage series are made of: pages and bandwidth since the last call."""
    from sglang.srt.observability.metrics_collector import StorageMetrics

    before: Counter[str] = Counter()

    def since(session: Backing) -> Any:
        nonlocal before
        now = Counter(session.moved)
        more, before = now - before, now
        metrics = StorageMetrics()
        for kind, pages, bandwidth in (
            ("get", metrics.prefetch_pgs, metrics.prefetch_bandwidth),
            ("put", metrics.backup_pgs, metrics.backup_bandwidth),
        ):
            if more[f"{kind}_pages"]:
                pages.append(more[f"{kind}_pages"])
                bandwidth.append(more[f"{kind}_bytes"] / max(more[f"{kind}_ns"], 1))  # gigabytes a second
        return metrics

    return since

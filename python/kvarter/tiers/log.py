"""The log on disk, for whoever lays blocks into one: where it lies, when it is full, what became of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import _core
from ..errors import ConfigError

_FULL = 0.65  # of the room: the log keeps live blocks below 0.85 of it


@dataclass(frozen=True)
class DiskOptions:
    """Where the log lies, and what it may take.

    path: a directory of its own. capacity: bytes of everything in it, as du says. segment_bytes: of a new directory.
    device: "auto" tries io_uring first; "noop" keeps nothing. queue_bytes: of blocks that wait to be copied down;
    past that the least valuable are dropped, counted. admit_all: also copy down what was seen once, when the log is
    full.
    """

    path: str
    capacity: int
    segment_bytes: int = 256 << 20
    device: str | _core.FaultyDisk = "auto"
    queue_depth: int = 8
    queue_bytes: int = 256 << 20
    admit_all: bool = False

    def open(
        self,
        memory: _core.Pool | _core.ForeignArena,
        clock: _core.Clock,
        *,
        block_bytes: int = 64 << 10,
        max_dropped: int = 0,
        above: _core.Index | None = None,
    ) -> _core.DiskLog:
        """The log, recovered, over that memory's slots; see `DiskLog`. Raises `ConfigError` for a directory that cannot
        be used, saying why."""
        try:
            return _core.DiskLog(
                self.path,
                memory,
                clock,
                self.capacity,
                segment_bytes=self.segment_bytes,
                device=self.device,
                queue_depth=self.queue_depth,
                block_bytes=block_bytes,
                max_dropped=max_dropped,
                above=above,
            )
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"no disk tier in {self.path}: {error}") from None


def room(log: _core.DiskLog) -> int:
    """Bytes that can come before something has to go for them; none when that is so already."""
    ledger = log.ledger()
    most = int(_FULL * (ledger["capacity"] - ledger["overhead"]))
    return max(0, most - ledger["resident"] - ledger["reserved"])


def is_full(log: _core.DiskLog) -> bool:
    """Whether something has to go soon for what comes."""
    return room(log) == 0


def at_risk(counts: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """A log's counters for metrics: bytes that a power loss would take, and the sequence numbers that say up to which
    block of those that can be found one leaves everything."""
    risk: dict[str, float] = {"queued": counts["queued_bytes"], "undurable": counts["undurable_bytes"]}
    return risk, {"last": counts["last_sequence"], "durable": counts["durable_sequence"]}


def account(counts: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """A log's counters for metrics: blocks by what became of them (`load_*`: asked for and not loaded), bytes moved."""
    blocks: dict[str, float] = {name: counts[name] for name in ("stored", "recovered", "loaded")}
    blocks |= counts["reasons"] | {f"load_{name}": count for name, count in counts["not_loaded"].items()}
    moved = {name: counts[f"{name}_bytes"] for name in ("stored", "loaded", "reinserted", "device")}
    return blocks, moved

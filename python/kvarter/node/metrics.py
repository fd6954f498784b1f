"""What a node says of itself, as Prometheus reads it: `kvarter_node_*`, all of it from `Node.status`.

Counters with a `reason` or an `outcome` have every one there is, from the start. Of a tier, offered = stored + refused
+ in flight (or queued); what was stored or recovered and is not dropped is resident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .. import __version__, _core
from ..tiers.log import at_risk
from .latency import Counts, seconds_of
from .peer_metrics import peer_metrics

PREFIX = "kvarter_node_"
_DRAM, _DISK = "dram", "disk"
_SHORTEST, _LONGEST = 8, 32  # buckets that are told: 256 ns to 4.3 s
_NEVER_STORED = ("not_admitted", "queue_full", "gone")  # before the disk's log was asked

Labels = tuple[str, ...]


def _dropped(reasons: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Reasons why a block was not stored, and why a stored one went."""
    first = reasons.index("evicted")
    return list(reasons[1:first]), list(reasons[first:])


_OWN = tuple(reason for reason in _core.REASONS if reason != "node_gone")  # which an engine alone can say
_REFUSED, _DROPPED = _dropped(_OWN)
_DISK_REFUSED, _DISK_DROPPED = _dropped(_core.DISK_REASONS)


class NodeCollector(Collector):
    """Asks for a status at each collection."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield from _node(status)
        yield from _tiers(status)
        yield from _engines(status)
        yield from _found(status)
        if "peers" in status:
            yield from peer_metrics(status["peers"], PREFIX)
            text = "Time from an engine's request until its blocks had come from another node, or would not"
            yield _histogram("peer_fetch_seconds", text, (), {(): status["peer_fetch"]})


def registry(status: Callable[[], dict[str, Any]]) -> CollectorRegistry:
    """Of one node alone, beside whatever else the process has."""
    made = CollectorRegistry()
    made.register(NodeCollector(status))
    return made


def _node(status: dict[str, Any]) -> Iterator[Metric]:
    device = status["disk"]["device"] if "disk" in status else "none"
    info = {"version": __version__, "pages": status["pool"]["pages"], "disk_device": device}
    yield InfoMetricFamily(PREFIX.rstrip("_"), "Which node this is", value=info)
    yield _gauge("start_time_seconds", "When the node started, in Unix time", status["started"])
    yield _gauge("draining", "1 when no new engine is let in", float(status["draining"]))
    door = status["door"]
    sockets = {"engines": "", "control": "control_"}
    for name, text in (
        ("connections", "Connections that came, by socket"),
        ("refused_connections", "Connections that were refused, with a sentence that says why"),
        ("violations", "Connections that were dropped for what nobody may send"),
    ):
        said = name.removesuffix("_connections")
        yield _counter(name, text, ("socket",), {(s,): door[prefix + said] for s, prefix in sockets.items()})
    ignored = "Messages that came too late or made no sense, and were ignored"
    yield _counter("ignored_messages", ignored, (), {(): door["control_ignored"]})
    yield _counter("opened_sessions", "Sessions of engines that were opened", (), {(): door["sessions"]})
    yield _gauge("sessions", "Sessions of engines that stand", door["sessions_now"])
    yield _gauge("mappers", "Live processes that map the pool", door["mappers_now"])
    calls = {(verb,): counts for verb, counts in status["calls"].items()}
    yield _histogram("call_seconds", "Time of sessions' calls at the index, by verb", ("verb",), calls)


def _tiers(status: dict[str, Any]) -> Iterator[Metric]:
    counts, disk = status["counters"], status.get("disk_counters")
    ledgers = {_DRAM: status["pool"]} | ({_DISK: status["disk"]} if disk is not None else {})
    capacity = {(tier,): ledger["capacity"] for tier, ledger in ledgers.items()}
    yield _gauges("capacity_bytes", "Bytes of a tier", ("tier",), capacity)
    told = {
        (tier, state): nbytes
        for tier, ledger in ledgers.items()
        for state, nbytes in ledger.items()
        if state not in ("capacity", "pages", "device")
    }
    text = "Bytes of a tier by what they are; they add up to its capacity"
    yield _gauges("bytes", text, ("tier", "state"), told)

    blocks = {(_DRAM, "resident"): counts["resident_blocks"]}
    blocks |= {(_DRAM, "in_flight"): counts["in_flight"], (_DRAM, "leased"): counts["leased_now"]}
    offered, stored = {(_DRAM,): counts["offered"]}, {(_DRAM,): counts["stored"]}
    refused = {(_DRAM, reason): counts[reason] for reason in _REFUSED}
    dropped = {(_DRAM, reason): counts[reason] for reason in _DROPPED}
    loads = {(_DRAM, "loaded"): counts["loaded"]}
    loads |= {(_DRAM, outcome): counts[f"load_{outcome}"] for outcome in ("failed", "unused", "expired")}
    moved = {(_DRAM, what): counts[f"{what}_bytes"] for what in ("stored", "loaded", "evicted", "moved")}
    if disk is not None:
        blocks |= {(_DISK, "resident"): disk["resident_blocks"]}
        blocks |= {(_DISK, "queued"): disk["queued"], (_DISK, "loading"): disk["loading"]}
        offered[_DISK,], stored[_DISK,] = disk["offered"], disk["stored"]
        refused |= {(_DISK, reason): disk["reasons"][reason] for reason in _DISK_REFUSED}
        dropped |= {(_DISK, reason): disk["reasons"][reason] for reason in _DISK_DROPPED}
        loads |= {(_DISK, "loaded"): disk["loaded"]}
        loads |= {(_DISK, reason): count for reason, count in disk["not_loaded"].items()}
        moved |= {(_DISK, w): disk[f"{w}_bytes"] for w in ("stored", "loaded", "reinserted", "device")}
    yield _gauges("blocks", "Blocks of a tier by what they are", ("tier", "state"), blocks)
    yield _counter("offered_blocks", "Blocks that a tier was asked to store", ("tier",), offered)
    yield _counter("stored_blocks", "Blocks that a tier has stored", ("tier",), stored)
    yield _counter("refused_blocks", "Blocks offered and not stored, by reason", ("tier", "reason"), refused)
    yield _counter("dropped_blocks", "Blocks stored that went, by reason", ("tier", "reason"), dropped)
    text = "Blocks asked for by those who load them, by what became of that"
    yield _counter("load_blocks", text, ("tier", "outcome"), loads)
    yield _counter("moved_bytes", "Payload bytes by what was done with them", ("tier", "event"), moved)
    if disk is not None:
        yield from _disk(disk, status["fetch"])


def _disk(disk: dict[str, Any], fetch: Counts) -> Iterator[Metric]:
    recovered = "Blocks that an earlier process had left on disk"
    yield _counter("recovered_blocks", recovered, (), {(): disk["recovered"]})
    skipped = {(reason,): disk.get(f"down_{reason}", 0) for reason in _NEVER_STORED}
    text = "Blocks that were stored in memory and not offered to the disk, by reason"
    yield _counter("disk_skipped_blocks", text, ("reason",), skipped)
    risk = {(of,): nbytes for of, nbytes in at_risk(disk)[0].items()}
    yield _gauges("disk_at_risk_bytes", "Bytes that a power loss would take", ("of",), risk)
    yield _counter("disk_io_errors", "Operations that the device failed", (), {(): disk["io_errors"]})
    yield _gauge("disk_bad_segments", "Segments that the device spoiled", disk["bad_segments"])
    text = "Time from an engine's request until its blocks had come up from disk, or would not"
    yield _histogram("fetch_seconds", text, (), {(): fetch})


def _engines(status: dict[str, Any]) -> Iterator[Metric]:
    pids: dict[Labels, set[int]] = {}
    for engine in status["engines"]:  # one that returned has its name twice for a while
        pids.setdefault((engine["name"],), set()).update(engine["pids"])
    processes = {name: len(found) for name, found in pids.items()}
    text = "Live processes of an engine that map the pool, its scheduler's among them"
    yield _gauges("engine_processes", text, ("engine",), processes)
    spaces = status["namespaces"]
    of = ("namespace",)
    held = {(space["digest"][:16],): space["blocks"] for space in spaces}
    yield _gauges("namespace_blocks", "Blocks of a namespace in memory", of, held)
    held = {(space["digest"][:16],): space["bytes"] for space in spaces}
    yield _gauges("namespace_bytes", "Bytes of a namespace's blocks in memory", of, held)


def _found(status: dict[str, Any]) -> Iterator[Metric]:
    text = "Time of an engine's look-up, as engines say"
    yield _histogram("match_seconds", text, (), {(): status["match"]})
    found = {(place,): units for place, units in status["found_units"].items()}
    text = "Hash units that requests asked for, by where they were found; engine: it had them itself"
    yield _counter("asked_units", text, ("tier",), found)
    asked, known = (status["counters"][f"policy_{which}_units"] for which in ("asked", "known"))
    text = "Hash units the policy observed; those seen before are what a cache without end would have had"
    yield _counter("observed_units", text, ("seen",), {("before",): known, ("first",): asked - known})


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _gauges(name: str, text: str, labels: Labels, values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for said, value in values.items():
        family.add_metric(said, value)
    return family


def _counter(name: str, text: str, labels: Labels, values: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for said, value in values.items():
        family.add_metric(said, value)
    return family


def _histogram(name: str, text: str, labels: Labels, values: Mapping[Any, Counts]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for said, (counts, nanoseconds) in values.items():
        buckets, below = [], 0
        for bucket, count in enumerate(counts):
            below += count
            if _SHORTEST <= bucket <= _LONGEST:
                buckets.append((f"{seconds_of(bucket):g}", float(below)))
        family.add_metric(said, [*buckets, ("+Inf", float(below))], nanoseconds / 1e9)
    return family

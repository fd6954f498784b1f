"""What a node says of other nodes, as Prometheus reads it: `kvarter_node_peer_*` and `kvarter_node_directory_*`.

Blocks fetched = those that came + those that did not, by reason; blocks lent = asked for, and what became of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_MEETINGS = ("met", "refused", "violations", "lost", "silent", "crowded")
_FETCHED = {"Ok": "loaded", "NotFound": "absent", "Rejected": "refused", "Busy": "busy"}
_FETCHED |= {"Corrupt": "corrupt", "TimedOut": "timed_out", "Closed": "peer_gone"}
_LENT = ("sent", "absent", "refused")
_CALLS = ("looks", "failed", "skipped", "told", "dropped", "forgotten")
_DROPPED = "dropped_"


def peer_metrics(peers: dict[str, Any], prefix: str) -> Iterator[Metric]:
    """Of `Peers.status`."""
    links = GaugeMetricFamily(prefix + "peer_links", "Links to other nodes that stand", labels=("direction",))
    rtt = GaugeMetricFamily(prefix + "peer_rtt_seconds", "Round trip to another node", labels=("peer",))
    for direction, dialed in (("dialed", True), ("accepted", False)):
        links.add_metric((direction,), sum(link["dialed"] is dialed for link in peers["links"]))
    for link in peers["links"]:
        if link["dialed"]:
            rtt.add_metric((link["address"],), link["rtt_seconds"])
    yield links
    yield rtt
    counted = {(name,): peers["meeting"][name] for name in _MEETINGS}
    yield _counter(prefix + "peer_meetings", "Connections with other nodes, by outcome", "outcome", counted)
    counted = {(name,): peers["fetched"][status] for status, name in _FETCHED.items()}
    text = "Blocks asked of other nodes, by what became of them"
    yield _counter(prefix + "peer_fetched_blocks", text, "outcome", counted)
    counted = {(name,): peers["lent"][name] for name in _LENT}
    text = "Parts of blocks that other nodes asked for, by what became of them"
    yield _counter(prefix + "peer_lent_parts", text, "outcome", counted)
    lent = "Bytes leased for other nodes, now"
    yield GaugeMetricFamily(prefix + "peer_lent_bytes", lent, value=peers["lent"]["bytes"])
    counted = {(name,): peers["spread"][name] for name in ("taken", "refused")}
    text = "Copies of hot prefixes that were offered to other nodes, by outcome"
    yield _counter(prefix + "peer_offered_copies", text, "outcome", counted)
    counted = {(name,): peers["copies"][name] for name in ("copied", "had", "declined")}
    text = "Copies of hot prefixes that other nodes offered, by outcome"
    yield _counter(prefix + "peer_taken_copies", text, "outcome", counted)
    counted = {(name,): peers["cleared"][name] for name in ("here", "elsewhere")}
    text = "Namespaces that were invalidated on all nodes, by where that began"
    yield _counter(prefix + "peer_cleared_namespaces", text, "begun", counted)
    wire = peers["ucx"]["counters"]
    counted = {("received",): wire.get("bytes_received", 0), ("sent",): wire.get("bytes_sent", 0)}
    yield _counter(prefix + "peer_bytes", "Payload bytes, by direction", "direction", counted)
    late = {(k.removeprefix(_DROPPED),): n for k, n in wire.items() if k.startswith(_DROPPED)}
    text = "Messages of other nodes that were dropped before a byte entered a slot, by reason"
    yield _counter(prefix + "peer_dropped_messages", text, "reason", late)
    directory = peers["directory"]
    up = "1 while the directory answers"
    yield GaugeMetricFamily(prefix + "directory_available", up, value=float(directory["available"]))
    known = "Nodes that the directory knows, this one included"
    yield GaugeMetricFamily(prefix + "directory_nodes", known, value=directory["nodes"])
    counted = {(name,): directory.get(name, 0) for name in _CALLS}
    yield _counter(prefix + "directory_calls", "What was asked of and told to the directory", "kind", counted)


def _counter(name: str, text: str, label: str, values: dict[tuple[str], float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for said, value in values.items():
        family.add_metric(said, value)
    return family

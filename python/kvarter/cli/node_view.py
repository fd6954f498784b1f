"""A node's status as tables: `kvarter status` shows one, `kvarter top` what changed between two."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from typing import Any

from pydantic import ByteSize
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvarter.node.latency import Counts, quantile

_RATES = {"calls": ("door", "calls"), "stored blocks": ("counters", "stored")}
_RATES |= {"loaded blocks": ("counters", "loaded"), "evicted blocks": ("counters", "evicted")}
_BYTE_RATES = {"stored": ("counters", "stored_bytes"), "loaded": ("counters", "loaded_bytes")}
_BYTE_RATES |= {"from disk": ("disk_counters", "loaded_bytes"), "to disk": ("disk_counters", "device_bytes")}


def view(now: dict[str, Any], before: dict[str, Any] | None = None, seconds: float = 0.0) -> RenderableType:
    """Without an earlier status, latencies and what was found are those since the node's start, and no rates."""
    parts: list[RenderableType] = [_head(now), _tiers(now), _found(now, before)]
    if before is not None and seconds > 0:
        parts.append(_rates(now, before, seconds))
    parts += [_namespaces(now), _engines(now)]
    if "peers" in now:
        parts += _peers(now["peers"])
    parts.append(_latencies(now, before))
    return Group(*parts)


def _head(now: dict[str, Any]) -> Text:
    age, door = max(time.time() - now["started"], 0.0), now["door"]
    minutes, draining = int(age // 60), ", draining" if now["draining"] else ""
    turned = door["refused"] + door["control_refused"], door["violations"] + door["control_violations"]
    return Text(
        f"node {now['pid']} at {now['path']}, up {minutes // 60} h {minutes % 60:02} min{draining}; "
        f"{turned[0]:,} refused, {turned[1]:,} violations"
    )


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _tiers(now: dict[str, Any]) -> Table:
    states = (
        "capacity",
        "free",
        "resident",
        "leased",
        "pinned",
        "reserved",
        "quarantined",
        "dead",
        "overhead",
    )
    table = _table("tier", *states, "blocks")
    rows = [("dram", now["pool"], now["counters"]["resident_blocks"])]
    if "disk" in now:
        rows.append(("disk", now["disk"], now["disk_counters"]["resident_blocks"]))
    for name, ledger, blocks in rows:
        table.add_row(name, *(_bytes(ledger.get(state)) for state in states), f"{blocks:,}")
    return table


def _found(now: dict[str, Any], before: dict[str, Any] | None) -> Text:
    units = {place: _since(now, before, "found_units", place) for place in now["found_units"]}
    asked = sum(units.values())
    shares = ", ".join(f"{place} {_share(count, asked)}" for place, count in units.items())
    counts = now["counters"]  # what is seen again rarely is, within a second: always since the start
    ceiling = _share(counts["policy_known_units"], counts["policy_asked_units"])
    return Text(f"units asked for {asked:,}: {shares}; a cache without end would have had {ceiling}")


def _rates(now: dict[str, Any], before: dict[str, Any], seconds: float) -> Text:
    said = [f"{name} {_since(now, before, *where) / seconds:,.0f}" for name, where in _RATES.items()]
    said += [
        f"{name} {_bytes(int(_since(now, before, *where) / seconds))}"
        for name, where in _BYTE_RATES.items()
        if where[0] in now
    ]
    return Text("a second: " + ", ".join(said))


def _namespaces(now: dict[str, Any]) -> Table:
    table = _table("namespace", "blocks", "bytes", "groups", "on disk")
    for space in now["namespaces"]:
        row = f"{space['blocks']:,}", _bytes(space["bytes"]), ", ".join(space["groups"])
        table.add_row(space["digest"][:16], *row, "yes" if space["on_disk"] else "no")
    return table


def _engines(now: dict[str, Any]) -> Table:
    table = _table("engine", "session", "mapped by", "pids")
    for engine in now["engines"]:
        mapped = f"{engine['attached']} of {engine['ranks']}"
        pids = ", ".join(map(str, sorted(set(engine["pids"]))))
        table.add_row(engine["name"], "stands" if engine["session"] else "over", mapped, pids)
    return table


def _peers(peers: dict[str, Any]) -> list[RenderableType]:
    directory, lent, ucx = peers["directory"], peers["lent"], peers["ucx"]
    answers = "answers" if directory["available"] else "does not answer"
    came = peers["fetched"]
    head = Text(
        f"peers meet at {peers['listen']} by {peers['trust']}; directory {directory['kind']} {answers}, "
        f"{directory['nodes']} nodes; UCX {ucx['version']} of the {ucx['source']}, {', '.join(ucx['transports'])}; "
        f"{came['Ok']:,} of {came['asked']:,} blocks came, {lent['sent']:,} were lent, {_bytes(lent['bytes'])} are"
    )
    table = _table("peer", "link", "round trip", "version")
    for link in sorted(peers["links"], key=lambda link: (link["address"], link["dialed"])):
        way, rtt = "asks it" if link["dialed"] else "asks us", f"{link['rtt_seconds'] * 1e3:.2f} ms"
        table.add_row(link["address"], way, rtt, link["version"])
    return [head, table]


def _latencies(now: dict[str, Any], before: dict[str, Any] | None) -> Table:
    table = _table("latency", "count", "p50 below", "p99 below")
    told: dict[str, Counts] = {
        "match, at engines": now["match"],
        "fetch from disk": now["fetch"],
        "fetch from peers": now["peer_fetch"],
        **now["calls"],
    }
    past: dict[str, Counts] = {}
    if before is not None:
        past = {"match, at engines": before["match"], "fetch from disk": before["fetch"]}
        past |= {"fetch from peers": before["peer_fetch"], **before["calls"]}
    for name, (counts, _) in told.items():
        new = [a - b for a, b in zip(counts, past[name][0], strict=True)] if name in past else counts
        if any(new):
            table.add_row(name, f"{sum(new):,}", _time(new, 0.5), _time(new, 0.99))
    return table


def _since(now: dict[str, Any], before: dict[str, Any] | None, part: str, key: str) -> int:
    return int(now.get(part, {}).get(key, 0) - (before or {}).get(part, {}).get(key, 0))


def _bytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else ByteSize(nbytes).human_readable()


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _time(counts: Seq[int], share: float) -> str:
    seconds = quantile(counts, share) or 0.0
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.1f} ms"

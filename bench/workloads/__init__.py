"""The workloads by name: each takes a Run and yields rows. A new one is a file and a line here."""

from collections.abc import Callable, Iterator

from report import Row, Run

from . import admit, copy, disk, engine, evict, gpu, hash, match, node, policy, pool, sglang, store, tier, ucx

WORKLOADS: dict[str, Callable[[Run], Iterator[Row]]] = {
    "hash": hash.run,
    "copy": copy.run,
    "gpu": gpu.run,
    "store": store.run,
    "match": match.run,
    "evict": evict.run,
    "policy": policy.run,
    "pool": pool.run,
    "disk": disk.run,
    "admit": admit.run,
    "tier": tier.run,
    "engine": engine.run,
    "node": node.run,
    "sglang": sglang.run,
    "ucx": ucx.run,
}

"""How large a pool can be here, what may be locked, and how memory is spread over NUMA nodes."""

import resource
from pathlib import Path

from .. import _core
from ..config import Config
from ..errors import ConfigError
from .finding import Finding, Level, read, size

ROOT = Path("/")


def pool(root: Path = ROOT) -> Finding:
    """The limits of host and cgroup, and the pool that follows from them and the settings."""
    before = "" if root == ROOT else str(root)
    limits = _core.memory_limits(before)
    try:
        config = Config.load()
    except ConfigError:  # the settings' own finding says so
        config = Config()
    wanted = config.pool_bytes(root=before)
    data = {**limits, "pool": wanted, "pool_given": config.dram is not None}
    cgroup = (
        f"the cgroup allows {size(limits['cgroup_limit'])} and uses {size(limits['cgroup_used'])}"
        if limits["cgroup_limit"]
        else "no cgroup limit"
    )
    try:
        _core.check_memory(wanted, before)
    except ValueError as error:
        return Finding("memory", Level.PROBLEM, str(error), "Set a smaller `dram`, or free memory.", data)
    why = "as set" if config.dram is not None else "a quarter of what is allowed"
    found = f"{size(limits['available'])} available, {cgroup}; a pool of {size(wanted)} ({why})"
    return Finding("memory", Level.OK, found, data=data)


def locked() -> Finding:
    """RLIMIT_MEMLOCK. Nothing in this version locks memory; registered buffers and RDMA will."""
    soft, hard = (
        -1 if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_MEMLOCK)
    )
    words = ["unlimited" if limit < 0 else size(limit) for limit in (soft, hard)]
    return Finding(
        "memlock", Level.OK, f"{words[0]}, can be raised to {words[1]}", data={"soft": soft, "hard": hard}
    )


def numa(root: Path = ROOT) -> Finding:
    """The memory of each NUMA node, in bytes."""
    nodes = {}
    for meminfo in sorted((root / "sys/devices/system/node").glob("node[0-9]*/meminfo")):
        for line in read(meminfo).splitlines():
            words = line.split()  # Node 0 MemTotal: 1234 kB
            if words[2:3] == ["MemTotal:"]:
                nodes[int(words[1])] = int(words[3]) << 10
    if not nodes:
        return Finding("NUMA", Level.OK, "the kernel names no nodes", data={"nodes": nodes})
    found = ", ".join(f"node {number} {size(nbytes)}" for number, nbytes in sorted(nodes.items()))
    if len(nodes) == 1:
        return Finding("NUMA", Level.OK, found, data={"nodes": nodes})
    advice = (
        "Start the engine with `numactl --cpunodebind=N --membind=N`, so that pool and workers share a node."
    )
    return Finding("NUMA", Level.NOTE, found, advice, {"nodes": nodes})

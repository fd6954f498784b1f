"""NIXL and Mooncake between two processes, as shipped: blocks scattered on both sides, read in one call over TCP.

Run as a program this is one side of either: `others.py nixl|mooncake own|ask DEVICE SIZE BLOCK`. It says where it is,
is told where the other is, and then does a round for each line: a passive owner has nothing to do in it.
"""

from __future__ import annotations

import base64
import itertools
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Read = Callable[[list[int], list[int]], None]
"""Of blocks at these offsets of the owner's memory, to these of ours."""


def nixl(asks: bool, memory: Any, device: str) -> tuple[str, Callable[[str, int], Read]]:
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    agent = nixl_agent("ask" if asks else "own", nixl_agent_config(backends=["UCX"]))
    base = memory.ctypes.data
    agent.register_memory([(base, memory.nbytes, 0, "")], "DRAM")

    def connect(other: str, block: int) -> Read:
        address, metadata = other.split()
        peer = agent.add_remote_agent(base64.b64decode(metadata))

        def read(sources: list[int], targets: list[int]) -> None:
            theirs = agent.get_xfer_descs([(int(address) + at, block, 0) for at in sources], "DRAM")
            ours = agent.get_xfer_descs([(base + at, block, 0) for at in targets], "DRAM")
            handle = agent.initialize_xfer("READ", ours, theirs, peer, b"")
            state = agent.transfer(handle)
            while state != "DONE":
                state = agent.check_xfer_state(handle)
                if state == "ERR":
                    raise SystemExit("NIXL answered ERR")
            agent.release_xfer_handle(handle)

        return read

    return f"{base} {base64.b64encode(agent.get_agent_metadata()).decode()}", connect


def mooncake(asks: bool, memory: Any, device: str) -> tuple[str, Callable[[str, int], Read]]:
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    base = memory.ctypes.data
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", device) or engine.register_memory(
        base, memory.nbytes
    ):
        raise SystemExit("Mooncake does not start")

    def connect(other: str, block: int) -> Read:
        who, address = other.split()

        def read(sources: list[int], targets: list[int]) -> None:
            ours, theirs = [base + at for at in targets], [int(address) + at for at in sources]
            if engine.batch_transfer_sync_read(who, ours, theirs, [block] * len(ours)) != 0:
                raise SystemExit("Mooncake answered an error")

        return read

    return f"127.0.0.1:{engine.get_rpc_port()} {base}", connect


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(library: str, which: str, device: str, size: int, block: int) -> None:
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    memory[:] = 1
    where, connect = {"nixl": nixl, "mooncake": mooncake}[library](which == "ask", memory, device)
    print("@" + where, flush=True)
    read = connect(sys.stdin.readline().removeprefix("@"), block)
    used = cpu()
    for number in itertools.count():
        if not sys.stdin.readline():
            break
        sources, targets = (
            np.random.default_rng(number + i).permutation(size // block) * block for i in (0, 1000)
        )
        begun = time.perf_counter()
        if which == "ask":
            read(sources.tolist(), targets.tolist())
        seconds, before, used = time.perf_counter() - begun, used, cpu()
        print(f"@{seconds} {used - before}", flush=True)
    sys.stdout.flush()
    os._exit(0)  # NIXL's own ends in a fault


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))  # type: ignore[arg-type]

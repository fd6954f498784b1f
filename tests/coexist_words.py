"""Other users of UCX: ucxx and nixl, beside our engine in one process, and ucxx as a peer in a process of its own.

Runs as a program: `coexist_words.py beside FIRST SECOND`, two of ours, ucxx and nixl, of which each moves bytes before
the other is there and while it is; or `coexist_words.py tags`, the peer with whom a worker of ours exchanges messages;
or `coexist_words.py noise`, one that says to the worker of an engine what that does not understand.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from served_words import SECONDS

SIZES = (1, 1000, 8192, 100_000, 1 << 20)


def noise_of(seed: int, size: int) -> npt.NDArray[np.uint8]:
    """The same bytes as tagged_worker.cpp makes."""
    at = np.arange(size, dtype=np.uint64)
    return ((at * np.uint64(2654435761) + np.uint64(seed) * np.uint64(40503)) >> np.uint64(8)).astype(
        np.uint8
    )


# --- each moves bytes within the process, verified


class Ours:
    def __init__(self) -> None:
        from ucx_words import Side

        self.one, self.other = Side(), Side()
        ones, others = self.one.engine.invite(), self.other.engine.invite()
        self.one.peer = self.one.engine.connect(others, ones)
        self.other.peer = self.other.engine.connect(ones, others)
        self.requests = 0

    def moves(self) -> None:
        import xxhash

        from kvarter.peers.ucx_library import load
        from ucx_words import BLOCK, BLOCKS, pattern

        self.requests += 1
        self.one.blocks[:] = [pattern(block + self.requests) for block in range(BLOCKS)]
        offsets, lengths = np.arange(BLOCKS) * BLOCK, np.full(BLOCKS, BLOCK)
        sums = np.array([xxhash.xxh3_64_intdigest(block) for block in self.one.blocks], np.uint64)
        generation = self.other.engine.expect(self.other.peer, self.requests, offsets[::-1].copy(), lengths)
        self.one.engine.send(
            self.one.peer, self.requests, generation, offsets, lengths, np.zeros(BLOCKS, np.uint8), sums
        )
        received = self.other.wait(load().module.Received)
        assert not received.statuses.any(), received
        assert np.array_equal(self.one.blocks[::-1], self.other.blocks)

    def close(self) -> None:
        self.one.engine.close()
        self.other.engine.close()


class Ucxx:
    def __init__(self) -> None:
        import ucxx._lib.libucxx as u

        config = {"TLS": "tcp", "NET_DEVICES": "lo"}
        self.workers = [u.UCXWorker(u.UCXContext(config)) for _ in range(2)]
        address = u.UCXAddress.create_from_worker(self.workers[1])
        self.endpoint = u.UCXEndpoint.create_from_worker_address(
            self.workers[0], address, endpoint_error_handling=True
        )

    def moves(self) -> None:
        from ucxx._lib.arr import Array
        from ucxx._lib.libucxx import UCXXTag

        for size in SIZES:
            sent, got = noise_of(size, size), np.zeros(size, np.uint8)
            requests = [
                self.workers[1].tag_recv(Array(got), tag=UCXXTag(7)),
                self.endpoint.tag_send(Array(sent), tag=UCXXTag(7)),
            ]
            finish(self.workers, requests)
            assert np.array_equal(sent, got)

    def close(self) -> None:
        del self.endpoint
        self.workers.clear()


class Nixl:
    def __init__(self) -> None:
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agents = [nixl_agent(name, nixl_agent_config(backends=["UCX"])) for name in ("one", "other")]
        self.memory = [np.zeros(1 << 20, np.uint8) for _ in range(2)]
        self.pieces = [[(memory.ctypes.data, memory.nbytes, 0, "")] for memory in self.memory]
        self.registered = [
            agent.register_memory(piece, "DRAM")
            for agent, piece in zip(self.agents, self.pieces, strict=True)
        ]
        self.peer = self.agents[0].add_remote_agent(self.agents[1].get_agent_metadata())

    def moves(self) -> None:
        one = self.agents[0]
        self.memory[0][:], self.memory[1][:] = 0, np.random.default_rng(3).integers(0, 256, 1 << 20, np.uint8)
        here, there = (
            one.get_xfer_descs([(memory.ctypes.data, memory.nbytes, 0)], "DRAM") for memory in self.memory
        )
        handle = one.initialize_xfer("READ", here, there, self.peer, b"")
        state, end = one.transfer(handle), time.monotonic() + SECONDS
        while state != "DONE":
            assert state != "ERR" and time.monotonic() < end, state
            state = one.check_xfer_state(handle)
        one.release_xfer_handle(handle)
        assert np.array_equal(*self.memory)

    def close(self) -> None:
        self.agents[0].remove_remote_agent(self.peer)
        for agent, registered in zip(self.agents, self.registered, strict=True):
            agent.deregister_memory(registered)
        self.agents.clear()


def finish(workers: list[Any], requests: list[Any]) -> None:
    end = time.monotonic() + SECONDS
    while not all(request.completed for request in requests):
        assert time.monotonic() < end, "ucxx hangs"
        for worker in workers:
            worker.progress()
    for request in requests:
        request.check_error()


class Peer:
    """ucxx's worker and its endpoint to a worker of ours, whose address it is given."""

    def __init__(self, theirs: bytes) -> None:
        import ucxx._lib.libucxx as u

        self.worker = u.UCXWorker(u.UCXContext({"TLS": "tcp", "NET_DEVICES": "lo"}))
        address = u.UCXAddress.create_from_buffer(theirs)
        self.endpoint = u.UCXEndpoint.create_from_worker_address(
            self.worker, address, endpoint_error_handling=True
        )

    def finish(self, *requests: Any) -> None:
        finish([self.worker], list(requests))


def tags() -> None:
    """Sends a message of each size, and receives one."""
    import ucxx._lib.libucxx as u
    from ucxx._lib.arr import Array

    peer = Peer(bytes.fromhex(input()))
    print(u.UCXAddress.create_from_worker(peer.worker).tobytes().hex(), flush=True)
    for size in SIZES:
        sent, got = noise_of(size, size), np.zeros(size, np.uint8)
        peer.finish(
            peer.endpoint.tag_send(Array(sent), tag=u.UCXXTag(7)),
            peer.worker.tag_recv(Array(got), tag=u.UCXXTag(7)),
        )
        assert np.array_equal(got, noise_of(size + 1, size)), size
    print("exchanged", flush=True)
    input()  # it is killed: ucxx's endpoints do not outlive the interpreter


def noise() -> None:
    """Tagged messages and active messages of ucxx's, until it is killed."""
    import ucxx._lib.libucxx as u
    from ucxx._lib.arr import Array

    peer, data = Peer(bytes.fromhex(input())), Array(noise_of(1, 1000))
    said = False
    while True:
        peer.finish(peer.endpoint.tag_send(data, tag=u.UCXXTag(7)), peer.endpoint.am_send(data))
        if not said:
            print("spoken", flush=True)
        said = True
        time.sleep(0.02)


def loaded() -> list[str]:
    """The copies of libucp in this process."""
    with Path("/proc/self/maps").open() as maps:
        return sorted({line.split()[-1] for line in maps if "/libucp" in line})


def beside(first: str, second: str) -> None:
    kinds: dict[str, Callable[[], Any]] = {"ours": Ours, "ucxx": Ucxx, "nixl": Nixl}
    one = kinds[first]()
    one.moves()
    other = kinds[second]()
    for _ in range(3):
        other.moves()
        one.moves()
    print("copies", *loaded(), sep="\n", flush=True)
    other.close()
    one.moves()  # which the other's end does not disturb
    one.close()
    print("closed", flush=True)
    if "nixl" in (first, second):
        os._exit(0)  # nixl ends its process by SIGSEGV where it is alone, too


if __name__ == "__main__":
    {"beside": beside, "tags": tags, "noise": noise}[sys.argv[1]](*sys.argv[2:])

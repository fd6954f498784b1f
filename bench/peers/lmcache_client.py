"""A server of LMCache's on this host, and what an engine's worker says to it, by LMCache's own client.

They share memory, as they do beneath an engine on a CPU: the client copies, and asks the server before and after.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["LMCACHE_TRACK_USAGE"] = "false"  # before it is imported: it reports home otherwise
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")

import torch
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.transfer_context import EngineDrivenTransferContext, gather_paged_kv_to_cpu
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

LAYERS, HEADS, HEAD = 16, 8, 128  # of two bytes: a token is 64 KiB, half of it K
MODEL, WORLD, RANK, INSTANCE = "bench", 1, 0, 1
HINTS: Any = {"kv_layout": "NHD"}
PATIENCE = 60.0


@contextmanager
def server(memory: int, tokens: int) -> Iterator[str]:
    """The address of a server with that many bytes, and chunks of that many tokens. It ends with the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name = f"bench_lmcache_{os.getpid()}_{port}"
    options = {
        "--host": "127.0.0.1",
        "--port": port,
        "--chunk-size": tokens,
        "--supported-transfer-mode": "engine_driven",
        "--shm-name": name,
        "--l1-size-gb": memory / (1 << 30),
        "--eviction-policy": "LRU",
    }
    words = [str(word) for option in options.items() for word in option]
    module = "lmcache.v1.multiprocess.server"
    started = subprocess.Popen(
        [sys.executable, "-m", module, *words, "--no-l1-use-lazy", "--disable-observability"],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    try:
        yield f"tcp://127.0.0.1:{port}"
    finally:
        started.terminate()
        try:
            started.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        (Path("/dev/shm") / name).unlink(missing_ok=True)


class Client:
    """A worker with the KV of two batches: one is stored, the other retrieved into.

    tokens: of a block of the engine's. batch: blocks in a call. chunk: blocks that LMCache keeps as one.
    """

    def __init__(self, address: str, tokens: int, batch: int, chunk: int) -> None:
        torch.set_num_threads(1)  # as ours; with more it is slower where cores are shared
        self.tokens, self.batch, self.chunk, self.puts = tokens, batch, chunk, 0
        self.block = LAYERS * 2 * HEADS * HEAD * 2 * tokens
        shape = (2, 2 * batch + 1, tokens, HEADS, HEAD)  # block 0 is the engine's null block
        self.kv = {f"layer.{n}": torch.ones(shape, dtype=torch.float16) for n in range(LAYERS)}
        self.words = [layer.view(torch.int16).flatten(2) for layer in self.kv.values()]
        self.index = torch.arange(self.words[0].shape[2])
        self.source, self.target = range(1, 1 + batch), range(1 + batch, 1 + 2 * batch)
        self.rpc: Any = RequestClientFactory.create(address)
        assert self.rpc.get_chunk_size().result(timeout=PATIENCE) == tokens * chunk
        self.transfer = EngineDrivenTransferContext(INSTANCE, self.rpc)
        group = EngineGroupInfo(0, tuple(range(LAYERS)), tokens)
        self.transfer.register(self.kv, MODEL, WORLD, chunk, PATIENCE, HINTS, [group])

    def close(self) -> None:
        leaving = self.transfer.unregister()
        assert leaving is not None
        leaving.result(timeout=PATIENCE)
        self.transfer.close()
        self.rpc.close()

    def round_trip(self) -> float:
        """Seconds of a call that does nothing."""
        begun = time.perf_counter()
        self.rpc.noop().result(timeout=PATIENCE)
        return time.perf_counter() - begun

    def store(self) -> float:
        """Seconds to store a batch that is new."""
        for layer, words in enumerate(self.words):
            for n, block in enumerate(self.source):
                words[:, block] = self._content(self.puts, layer, n)
        key, blocks = self._key(self.puts, "store"), [list(self.source)]
        begun = time.perf_counter()
        stored = self.transfer.submit_store("", key, self.kv, blocks, None, self.chunk)
        assert stored.result(timeout=PATIENCE)
        seconds = time.perf_counter() - begun
        self.rpc.end_session(key.request_id).result(timeout=PATIENCE)
        self.puts += 1
        return seconds

    def retrieve(self) -> tuple[float, float]:
        """Seconds to find and read a batch that was stored half as many stores ago, and to read it alone."""
        number = self.puts // 2
        for words in self.words:
            words[:, self.target] = -1
        key, blocks = self._key(number, "retrieve"), [list(self.target)]
        begun = time.perf_counter()
        self.rpc.lookup(key, WORLD).result(timeout=PATIENCE)
        found = self.rpc.wait_prefetch_status(key.request_id, PATIENCE).result(timeout=PATIENCE)
        looked = time.perf_counter()
        read = self.transfer.submit_retrieve("", key, self.kv, blocks, None, self.chunk)
        assert read.result(timeout=PATIENCE) and found == self.batch // self.chunk, f"found {found} chunks"
        ended = time.perf_counter()
        self.rpc.end_session(key.request_id).result(timeout=PATIENCE)
        for layer, words in enumerate(self.words):
            for n, block in enumerate(self.target):
                right = bool((words[:, block] == self._content(number, layer, n)).all())
                assert right, f"wrong bytes: store {number}, layer {layer}, block {n}"
        return ended - begun, ended - looked

    def burst(self, blocks: int) -> int:
        """Stores that many as fast as it can, and counts those that were given no memory: LMCache's own store
        calls these stored."""
        context, refused = self.transfer.engine_driven_context, 0
        for _ in range(blocks // self.batch):
            key, source = self._key(self.puts, "burst"), list(self.source)
            slots, given = context.prepare_store(key, INSTANCE) or ([], [])
            if given:
                gather_paged_kv_to_cpu(self.kv, source, self.chunk, HINTS, out=slots, chunk_indices=given)
                context.commit_store(key, INSTANCE, [])
            refused += self.batch - len(given) * self.chunk
            self.puts += 1
        return refused

    def touch(self, memory: int) -> None:
        """Fills the memory once and empties it, so that all its pages exist."""
        self.burst(memory // self.block)
        self.rpc.clear(True).result(timeout=PATIENCE)
        self.puts = 0

    def _key(self, number: int, request: str) -> IPCCacheServerKey:
        """Names the blocks of the store with this number."""
        tokens = (number, *range(1, self.batch * self.tokens))
        request = f"{request} {number}"
        return IPCCacheServerKey(MODEL, WORLD, RANK, tokens, 0, len(tokens), request, num_kv_readers=WORLD)

    def _content(self, number: int, layer: int, block: int) -> torch.Tensor:
        return (self.index * 7 + number * 31 + layer * 1009 + block * 101).to(torch.int16)

"""Memory that workloads copy between, and the content that says where every byte belongs.

Word i of a block that is named n holds n * NAME + i * STEP: no two words of a run are the same, so a byte in
the wrong place, of the wrong block or of an earlier round is seen.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from kvarter import _core
from report import page_kind

NAME, STEP = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
POISON = np.uint64(0xDEADDEADDEADDEAD)
Words = np.ndarray


def words(name: int, nbytes: int) -> Words:
    """The content of the block with this name: uint64[nbytes / 8]."""
    with np.errstate(over="ignore"):
        return np.arange(nbytes // 8, dtype=np.uint64) * STEP + np.uint64(name) * NAME


@dataclass(frozen=True)
class EngineMemory:
    """Blocks as an engine keeps them: a tensor for each segment of a block (a layer's K or V).

    words: uint64[segments, blocks, words of a segment], in anonymous pages.
    """

    words: Words
    blocks: _core.Blocks

    @classmethod
    def of(cls, block_bytes: int, segment_bytes: int, num_blocks: int) -> EngineMemory:
        segments = block_bytes // segment_bytes
        memory = mmap.mmap(-1, block_bytes * num_blocks)
        view = np.frombuffer(memory, np.uint64).reshape(segments, num_blocks, segment_bytes // 8)
        base, stride = view.ctypes.data, num_blocks * segment_bytes
        regions = [
            (base + i * stride, segment_bytes, segment_bytes, 1, segment_bytes) for i in range(segments)
        ]
        view[:] = 1  # every page exists before anything is timed
        return cls(view, _core.Blocks(regions, num_blocks))

    @property
    def pages(self) -> str:
        return page_kind(self.words.ctypes.data)

    def fill(self, block: int, name: int) -> None:
        """Gives a block the content of that name."""
        self.words[:, block] = words(name, self.blocks.bytes).reshape(len(self.words), -1)

    def poison(self, block: int) -> None:
        self.words[:, block] = POISON

    def holds(self, block: int, name: int) -> bool:
        """Whether every word of the block is that of `name`."""
        return np.array_equal(self.words[:, block].ravel(), words(name, self.blocks.bytes))


def mapped(exports: list[tuple[int, int, int, int]]) -> _core.Mapping:
    """The pool as a worker sees it, with every payload page present in this process."""
    mapping = _core.Mapping(exports)
    touch(mapping)
    return mapping


def touch(mapping: _core.Mapping) -> None:
    """Has every payload page present in this process. REQUIRES: nothing is stored yet."""
    arena = 0
    while (payload := mapping.payload(arena)).size:
        payload[:: mmap.PAGESIZE] = 1
        arena += 1

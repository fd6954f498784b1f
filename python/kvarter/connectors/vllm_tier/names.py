"""vLLM's names of chunks as the log takes them: an OffloadKey is the engine's hash and four bytes of group."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from ... import _core

HASH = 32  # bytes


def group_of(key: bytes) -> int:
    return int.from_bytes(key[HASH:], "big")


def key_of(group: int, digest: bytes) -> bytes:
    return digest + group.to_bytes(4, "big")


def chain_of(ns: int, keys: list[bytes]) -> _core.Chain:
    """Not a chain of blocks: the n-th key is the name of block n, whatever its group."""
    joined = b"".join([key[:HASH] for key in keys])
    return _core.Chain(ns, np.frombuffer(joined, np.uint8).reshape(len(keys), HASH))


def ranges_of(keys: list[bytes]) -> list[tuple[int, int, int]]:
    """(group, first, count) of neighbours in one group, in the order of the keys."""
    ranges, first = [], 0
    for group, run in groupby(keys, group_of):
        count = sum(1 for _ in run)
        ranges.append((group, first, count))
        first += count
    return ranges

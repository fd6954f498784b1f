"""Chained digests of 16-token units beside raw SHA-256 over the same padded bytes: 128 B a unit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from kvarter import _core
from report import Row, Run, race, time_row, timed

UNIT, UNITS = 16, 8192
PADDED = 128  # 32 B of digest and 64 B of tokens, padded to two SHA-256 blocks


def plain_chain(tokens: np.ndarray) -> np.ndarray:
    """The same digests by hashlib, one after the other."""
    digest, digests = _core.chain_root(), []
    for unit in tokens.reshape(-1, UNIT):
        digest = hashlib.sha256(digest + unit.tobytes()).digest()
        digests.append(digest)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def run(run: Run) -> Iterator[Row]:
    name = f"chain of {UNITS:,} units of {UNIT} tokens"
    random = np.random.default_rng(1)
    sequences = [random.integers(0, 150_000, UNITS * UNIT, dtype=np.uint32) for _ in range(4)]
    padded = random.integers(0, 256, UNITS * PADDED, dtype=np.uint8)
    root = _core.chain_root()

    ours, raw, openssl, loop = race(
        run.rounds,
        lambda _: timed(_core.chain_digests, sequences[0], UNIT, root),
        lambda _: timed(_core.sha256, padded),
        lambda _: timed(lambda: hashlib.sha256(padded).digest()),
        lambda _: timed(plain_chain, sequences[0]),
    )
    yield time_row(f"{name}, 1 sequence, against raw SHA-256 (ours)", "ms", ours, raw, goal=1.1)
    yield time_row(f"{name}, 1 sequence, against raw SHA-256 (hashlib)", "ms", ours, openssl)
    yield time_row(f"{name}, 1 sequence, against a hashlib loop", "ms", ours, loop, goal=0.6, kind="absolute")
    for count in (2, 4):
        some = sequences[:count]
        together, raw = race(
            run.rounds,
            lambda _, some=some: timed(_core.chain_many, some, UNIT, [root] * len(some)) / len(some),
            lambda _: timed(_core.sha256, padded),
        )
        case = f"{name}, each of {count} interleaved sequences, against raw SHA-256 (ours)"
        yield time_row(case, "ms", together, raw, goal=0.4, kind="absolute")

    if run.check:
        expected = [plain_chain(tokens) for tokens in sequences]
        alone_digests = [_core.chain_digests(tokens, UNIT, root) for tokens in sequences]
        together_digests = _core.chain_many(sequences, UNIT, [root] * 4)
        for i in range(4):
            run.require(np.array_equal(alone_digests[i], expected[i]), f"hash: digests of sequence {i}")
            run.require(
                np.array_equal(together_digests[i], expected[i]), f"hash: interleaved digests of sequence {i}"
            )

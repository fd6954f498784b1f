"""A store full of 4 KiB blocks. Its chains came in turns, as those of many requests do: each lies scattered.

No payload is written: untouched pages of the pool cost nothing, and only the index is looked at.
"""

from __future__ import annotations

import numpy as np

from kvarter.geometry import CacheGroup, Full
from kvarter.keys import Namespace
from kvarter.policy import DEFAULT
from kvarter.sequence import Sequence
from kvarter.store import Store

BLOCK = 4096
UNIT = 16
NAMESPACE = Namespace(
    model="bench",
    weights="bench",
    kv_dtype="bfloat16",
    layout="plain",
    groups=(CacheGroup("all", Full(), UNIT, (BLOCK,)),),
    unit_tokens=UNIT,
    shard_grid=(("tp", 1),),
)


class Crowd:
    """A store with exactly `total` resident blocks and no room for more, in chains of `units` blocks each.

    offsets: uint64[chains, units], where each block's slot was when it was stored.
    """

    def __init__(self, total: int, units: int, turn: int = 32, policy: str = DEFAULT) -> None:
        self.total, self.units = total, units
        self.random = np.random.default_rng(3)
        self.store = Store(total * BLOCK, max_blocks=total, headroom=0.0, populate=False, policy=policy)
        self.sequences = [self.new_sequence() for _ in range(total // units)]
        self.offsets = np.zeros((len(self.sequences), units), np.uint64)
        turns = self.random.permutation(np.repeat(np.arange(len(self.sequences)), units // turn))
        done = [0] * len(self.sequences)
        for which in turns:
            need = range(done[which], done[which] + turn)
            done[which] += turn
            self.offsets[which, need.start : need.stop] = self.put(self.sequences[which], need)

    def new_sequence(self) -> Sequence:
        """A chain that no other chain shares a block with."""
        digests = self.random.integers(0, 256, (self.units, 32), dtype=np.uint8)
        return Sequence.from_digests(NAMESPACE, digests)

    def put(self, sequence: Sequence, need: range) -> np.ndarray:
        """Stores these blocks and returns their slots' offsets."""
        reservation = self.store.reserve(sequence, {0: need}, 60.0)
        count = len(reservation)
        reservation.commit(0, np.ones(count, np.uint8), np.zeros(count, np.uint64))
        return reservation.slots(0)["offset"].ravel()

    def audit(self) -> list[str]:
        """What a recount finds wrong, and what is still open."""
        findings = self.store.index.audit()
        ledger = self.store.index.ledger()
        open_bytes = {
            name: ledger[name] for name in ("reserved", "leased", "quarantined", "dead") if ledger[name]
        }
        return findings + [f"{nbytes} bytes are {name}" for name, nbytes in open_bytes.items()]


def size(total: int) -> str:
    """A number of blocks in words."""
    return f"{total >> 20} M blocks resident" if total >> 20 else f"{total >> 10} Ki blocks resident"

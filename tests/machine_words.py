"""What the state machines of a store and of one at a node share: their groups, and names of blocks and bytes."""

from typing import Any

from kvarter.geometry import CacheGroup, Full, State
from kvarter.sequence import Sequence
from words import KIB

GROUPS = (
    CacheGroup("full", Full(), 4, (60 * KIB, 100 * KIB + 8)),
    CacheGroup("state", State(), 8, (200 * KIB,)),
)
SHARDS = ((0, 0), (0, 1), (1, 1))
Place = tuple[int, bytes]  # group and digest: a key of the one namespace


def place(sequence: Sequence, group: int, block: int) -> Place:
    return group, sequence.digests[(block + 1) * GROUPS[group].block_tokens // 4 - 1].tobytes()


def extent(slot: Any) -> tuple[int, int, int]:
    return int(slot["arena"]), int(slot["offset"]), int(slot["offset"] + slot["length"])

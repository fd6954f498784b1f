"""What of a sequence is in memory, leased, and as UCX's engine takes it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..finding import AnyIndex, Space, runs
from ..matching import Range
from ..node.chains import run_of
from ..sequence import Sequence
from .memory import Memory
from .wanted import MOST_BLOCKS


class Leased(NamedTuple):
    """Of all slots that were asked for, in order; those that are not here have NotFound and nothing else. lease: 0 when
    nothing is here."""

    lease: int
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    statuses: npt.NDArray[np.uint8]
    checksums: npt.NDArray[np.uint64]


def checked(space: Space, sequence: Sequence, ranges: Seq[Range]) -> tuple[int, int]:
    """How many slots and bytes these are. Raises ValueError for what the sequence cannot have, and for too many."""
    groups = space.geometry.groups
    slots = nbytes = 0
    for part in ranges:
        count = len(run_of(space, sequence, part))
        slots += count * len(groups[part[0]].shard_bytes)
        nbytes += count * sum(groups[part[0]].shard_bytes)
    if not 0 < slots <= MOST_BLOCKS:
        raise ValueError(f"{slots} blocks in one request; expected 1 to {MOST_BLOCKS}")
    return slots, nbytes


def leased(
    space: Space, sequence: Sequence, ranges: Seq[Range], slots: int, memory: Memory, deadline: int
) -> Leased:
    """Takes one lease, until `deadline` of the clock, on what is here; none when some of it goes meanwhile."""
    chain, index, groups = sequence.chain(space.above), _own(space.index), space.geometry.groups
    here = _here(space, sequence, ranges)
    parts = [part for parts in here for part in parts]
    answer = Leased(
        0,
        np.zeros(slots, np.int64),
        np.zeros(slots, np.int64),
        np.full(slots, _core.Status.NotFound, np.uint8),
        np.zeros(slots, np.uint64),
    )
    if not parts:
        return answer
    status, lease = index.lease(chain, parts, _core.LeaseKind.Copy, 0, deadline)
    if status != _core.Status.Ok:
        return answer
    found, places, at = index.slots(lease), [], 0
    for (group, first, count), there in zip(ranges, here, strict=True):
        shards = len(groups[group].shard_bytes)
        for _, start, blocks in there:
            begin = at + (start - first) * shards
            places.append(np.arange(begin, begin + blocks * shards))
        at += count * shards
    place = np.concatenate(places)
    answer.offsets[place], answer.lengths[place] = memory.offsets(found), found["length"]
    answer.checksums[place], answer.statuses[place] = found["checksum"], _core.Status.Ok
    return answer._replace(lease=lease)


def drop_corrupt(
    space: Space,
    sequence: Sequence,
    ranges: Seq[Range],
    memory: Memory,
    deadline: int,
) -> None:
    """Looks at the bytes of these blocks. Those that are not what was committed go, with what leans on them."""
    chain, index = sequence.chain(space.above), _own(space.index)
    for part in [part for parts in _here(space, sequence, ranges) for part in parts]:
        status, lease = index.lease(chain, [part], _core.LeaseKind.Copy, 0, deadline)
        if status != _core.Status.Ok:
            continue
        shards, wrong = len(space.geometry.groups[part[0]].shard_bytes), set[int]()
        found = index.slots(lease)
        for at, (slot, begin) in enumerate(zip(found, memory.offsets(found).tolist(), strict=True)):
            if _core.xxh3_64(memory.payload[begin : begin + int(slot["length"])]) != int(slot["checksum"]):
                wrong.add(at // shards)
        index.drop_corrupt(lease, sorted(wrong))
        index.release(lease, _core.Outcome.Unused)


def _own(index: AnyIndex) -> _core.Index:
    assert isinstance(index, _core.Index)  # of a store that has peers
    return index


def _here(space: Space, sequence: Sequence, ranges: Seq[Range]) -> list[list[Range]]:
    """What of each range is in memory."""
    chain, index = sequence.chain(space.above), space.index
    here: list[list[Range]] = []
    for group, first, count in ranges:
        if space.geometry.chained(group):
            end = index.leading(chain, group, first + count)
            here.append([(group, first, end - first)] if end > first else [])
        else:
            blocks = [b for b in range(first, first + count) if index.contains(chain, group, b)]
            here.append([(group, run.start, len(run)) for run in runs(blocks)])
    return here

"""Replays a trace through a real store, scaled down: every block moves as bytes, and every hit is verified."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import _core
from ..geometry import CacheGroup, Full
from ..keys import Namespace
from ..policy.base import CONTINUES, ENDS, NO_HINT
from ..sequence import Sequence
from ..store import Store
from .replay import Progress, Result, ignore
from .trace import Trace

BLOCK_BYTES = 4096
_LEAST_BLOCKS = (2 << 20) // BLOCK_BYTES
_WORDS = BLOCK_BYTES // 8
_APART = 0.01  # seconds between requests of the same moment: the store shares its time out


@dataclass
class RealResult(Result):
    verified_bytes: int = 0


class WrongBytes(AssertionError):
    """A hit served bytes of another block: a bug in Kvarter, worth a report."""


def names_of(trace: Trace) -> tuple[Namespace, npt.NDArray[np.uint8]]:
    """A namespace of blocks of `BLOCK_BYTES`, and in it the digest uint8[unique, 32] of each block of the trace."""
    space = Namespace(
        model="trace",
        weights=trace.name,
        kv_dtype="uint64",
        layout="plain",
        groups=(CacheGroup("blocks", Full(), trace.block_tokens, (BLOCK_BYTES,)),),
        unit_tokens=trace.block_tokens,
        shard_grid=(("tp", 1),),
    )
    names = np.zeros((trace.unique, 32), np.uint8)
    names[:, :8] = trace.keys.view(np.uint8).reshape(-1, 8)
    return space, names


def replay_bytes(
    trace: Trace,
    policy: str,
    capacity: int,
    *,
    hints: npt.NDArray[np.uint8] | None = None,
    progress: Progress = ignore,
) -> RealResult:
    """As `replay`, on a `Store` of `capacity` blocks of 4 KiB whose clock shows the trace's time; at least 2 MiB.

    Stores what is new of a request after loading its hit, as an engine does. Raises `WrongBytes`.
    """
    capacity = max(capacity, _LEAST_BLOCKS)
    space, names = names_of(trace)
    clock = _core.SteppedClock()
    hits = np.zeros(trace.requests, np.int64)
    verified, now = 0, float(trace.seconds[0]) if trace.requests else 0.0
    with Store(
        capacity * BLOCK_BYTES, max_blocks=capacity, headroom=0.0, clock=clock, policy=policy, populate=False
    ) as store:
        mapping = _core.Mapping(store.exports())
        words = mapping.payload(0).view(np.uint64).reshape(-1, _WORDS)
        for number in range(trace.requests):
            progress(1)
            arrives = max(float(trace.seconds[number]), now + _APART)
            clock.advance(arrives - now)
            now = arrives
            blocks = trace.of_request(number)
            if not len(blocks):
                continue
            sequence = Sequence.from_digests(space, names[blocks])
            session = str(number)
            if hints is not None and hints[number] != NO_HINT:
                store.hint(session, **_WISHES[int(hints[number])])
            match = store.match(sequence, limit=len(blocks) * trace.block_tokens, session=session)
            hits[number] = match.tokens // trace.block_tokens
            if match:
                with store.load(match, 60.0) as ticket:
                    at = ticket.slots(0)["offset"].ravel() // BLOCK_BYTES
                    if not np.array_equal(words[at, 0], trace.keys[blocks[: len(at)]]):
                        raise WrongBytes(f"request {number} of {trace.name} was served other blocks' bytes")
                    verified += len(at) * BLOCK_BYTES
            reservation = store.reserve(sequence, {0: range(min(len(blocks), capacity))}, 60.0)
            new = reservation.blocks(0)
            at = reservation.slots(0)["offset"].ravel() // BLOCK_BYTES
            words[at] = trace.keys[blocks[new]][:, None]
            reservation.commit(0, np.ones(len(at), np.uint8), np.zeros(len(at), np.uint64))
        store.audit()
    return RealResult(trace.accesses, hits, store.stats()["policy_bytes"], verified)


_WISHES: dict[int, dict[str, object]] = {CONTINUES: {"returns_within": 1e9}, ENDS: {"ends": True}}

"""More of the language of `words`, for stores with a log below: what is kept, forgotten, served, and by whom."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvarter import _core
from kvarter.geometry import CacheGroup
from kvarter.tiers.log import DiskOptions
from words import KIB, MIB, World

SEGMENT = 1 * MIB
BLOCK = 64 * KIB
TOKENS = list(range(100, 133))  # eight units of four tokens, and one more

# Begins a program for which io_uring_setup is answered with EPERM, as container runtimes do.
FORBID_URING = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)), 0, 0) == 0
"""


@contextlib.contextmanager
def worlds(path: Path) -> Iterator[Callable[..., World]]:
    """``make(*groups, device=..., capacity=..., **store options)``: a world over the same directory each time."""
    made: list[World] = []

    def make(*groups: CacheGroup, device: Any = "threads", capacity: int = 16 * MIB, **options: Any) -> World:
        where = {name: options.pop(name) for name in ("queue_bytes", "admit_all") if name in options}
        disk = DiskOptions(str(path), capacity, SEGMENT, device, **where)
        made.append(World(*groups, disk=disk, **options))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            each.store.close()


def settled(world: World) -> None:
    """Everything that is on its way down has arrived."""
    assert world.store.disk is not None
    assert world.store.disk.flush(20)


def forget(world: World) -> None:
    """Other sequences, later, so many that memory keeps nothing else."""
    world.clock.advance(1)
    for number in range(64):
        world.put(world.sequence([1000 + number] * 5), {0: range(1)})


def from_disk(world: World, sequence: Any, **options: Any) -> dict[tuple[int, int, int], bytes]:
    match = world.store.match(sequence, **options)
    assert match.disk_tokens > 0
    with world.store.load(match, 10) as ticket:
        assert ticket.wait(20)
        assert ticket.status == _core.Status.Ok
        return world.read(ticket)


def held(world: World) -> int:
    ledger = world.store.audit()
    return ledger["reserved"] + ledger["leased"] + ledger["quarantined"]


def exact(world: World) -> bool:
    """The log's ledger adds up, and nothing of memory is left in anybody's hands."""
    ledger = dict(world.store.disk.log.ledger())
    return ledger.pop("capacity") == sum(ledger.values()) and not held(world)


# --- texts, whose blocks hold what their keys say, whoever stores them


def content(number: int, block: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng([number, block]).integers(0, 256, BLOCK, np.uint8)


def keep(world: World, number: int) -> None:
    """Stores the eight blocks of a text, on disk too. For worlds of one group of `BLOCK` bytes."""
    world.clock.advance(0.01)
    reservation = world.store.reserve(world.sequence([number] * 33), {0: range(8)}, 10)
    for block, (slot,) in zip(reservation.blocks(0), reservation.slots(0), strict=True):
        world.slot(slot)[:] = content(number, int(block))
    world.commit(reservation)
    settled(world)


def served(world: World, number: int) -> tuple[int, int]:
    """How many blocks of a text are served, and how many were on disk alone; their bytes are as they must be. What
    fails its check is a miss, and then a shorter prefix is asked for."""
    for _ in range(10):
        match = world.store.match(world.sequence([number] * 33))
        if not match:
            return 0, 0
        with world.store.load(match, 10) as ticket:
            assert ticket.wait(20)
            if ticket.status != _core.Status.Ok:
                continue
            got = world.read(ticket)
        assert all(data == content(number, block).tobytes() for (_, block, _), data in got.items())
        return len(got), match.disk_tokens // 4
    raise AssertionError("matched again and again, and never loaded")


def du(path: Path) -> int:
    total = path.stat().st_blocks * 512
    for file in path.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just got its name
            total += file.stat().st_blocks * 512
    return total


def wait_until(holds: Callable[[], bool], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never happens"
        time.sleep(0.01)

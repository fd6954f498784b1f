"""Reuse of a block in flight: the public failures 36 to 43, numbered as in the project's list of them.

Not here: 36 and 37 as they concern the engine's own blocks, 39 and 42's engine side (a block that finds a new owner
while a store reads it) are in tests/engine/test_exactness.py with real engines. 38 is about streams of a GPU, which
the host copy engine does not have: a batch is ordered after its caller.
"""

import numpy as np

from kvarter import _core
from kvarter.geometry import CacheGroup, State
from words import KIB, MIB, World, full

TOKENS = range(32)


def records(slots):
    return set(slots["record"].ravel().tolist())


def extents(slots):
    return {(int(s["arena"]), int(s["offset"])) for s in slots.ravel()}


def everything_else(world, first=1000):
    """Reserves one-block sequences until nothing fits; their slots' addresses."""
    taken = set()
    for number in range(first, first + 2000):
        reservation = world.store.reserve(world.sequence([number] * 4), {0: range(1)}, 1e6)
        if not len(reservation):
            return taken
        taken |= extents(reservation.slots(0))
    raise AssertionError("the pool has no end")


def test_36_a_slot_that_a_writer_may_still_write_is_given_to_nobody():
    world = World(full(64 * KIB, shards=2))
    first = world.store.reserve(world.sequence(TOKENS), {0: range(1)}, 1e6, owner=1, shards=(0, 1))
    second = world.store.reserve(world.sequence(TOKENS), {0: range(1)}, 1e6, owner=2, shards=(1, 1))
    first.abort()
    assert not extents(second.slots(0)) & everything_else(world)
    world.commit(second, 1)
    assert extents(second.slots(0)) & everything_else(world, 5000)


def test_37_nor_is_one_of_a_hybrid_models_state_when_only_its_full_group_is_done():
    world = World(full(64 * KIB), CacheGroup("state", State(), 4, (64 * KIB,)))
    chain = world.sequence(TOKENS)
    reservation = world.store.reserve(chain, {0: range(1), 1: range(1)}, 1e6)
    handles, state = reservation.handles, extents(reservation.slots(1))
    ok, sums = np.ones(1, np.uint8), np.zeros(1, np.uint64)
    world.store.index.complete(handles[:1], 0, ok, sums)
    world.store.invalidate(world.namespace)
    world.pass_time(0)
    assert world.store.audit()["reserved"] == 64 * KIB
    assert not state & everything_else(world)
    world.store.index.complete(handles[1:], 0, ok, sums)
    assert world.store.audit()["reserved"] == world.store.pool.bytes - 64 * KIB


def test_40_a_leased_block_is_not_evicted_and_an_expired_one_says_so():
    world = World()
    chain = world.sequence(TOKENS)
    written = world.put(chain, {0: range(8)})
    ticket = world.store.load(world.store.match(chain, limit=32), 10)
    slots = ticket.slots(0)
    assert not extents(slots) & everything_else(world)
    assert world.read(ticket) == written
    world.pass_time(11)
    assert extents(slots) & everything_else(world, 5000)
    assert not ticket.finish(_core.Outcome.Loaded)
    assert not _core.unchanged(world.mapping, slots["record"].ravel(), slots["generation"].ravel()).any()


def test_41_a_batch_keeps_its_list_when_the_caller_reuses_the_buffers_it_came_in():
    source = np.arange(4 * KIB, dtype=np.uint8).reshape(4, KIB)
    slots = np.zeros((4, KIB), np.uint8)
    blocks = _core.Blocks([(source.ctypes.data, KIB, KIB, 1, KIB)], 4)
    engine = _core.FaultyCopyEngine(_core.HostCopyEngine(1), delay=0.05)
    which = np.array([3, 1], np.int64)
    where = np.array([slots[0].ctypes.data, slots[1].ctypes.data], np.uint64)
    ticket = engine.submit("gather", blocks, which, where)
    which[:], where[:] = 0, slots[3].ctypes.data
    assert engine.wait(ticket, 60)
    assert (slots[0] == source[3]).all() and (slots[1] == source[1]).all() and not slots[2:].any()


def test_42_a_request_that_comes_back_with_its_store_in_flight_makes_no_second_one():
    world = World()
    chain = world.sequence(TOKENS)
    first = world.store.reserve(chain, {0: range(8)}, 10)
    again = world.store.reserve(chain, {0: range(8)}, 10)
    assert again.reasons() == {"already_in_flight": 8}
    assert not world.store.match(chain)
    bytes_of_first = [world.fill(row[0]) for row in first.slots(0)]
    world.commit(first)
    got = world.get(world.store.match(chain, limit=32))
    assert [got[0, block, 0] for block in range(8)] == bytes_of_first


def test_43_an_aborted_or_late_write_holds_its_memory_until_the_writer_has_drained():
    world = World(full(MIB))
    world.store.delegate_ticks()
    reservation = world.store.reserve(world.sequence(TOKENS), {0: range(1)}, 10, owner=3)
    world.clock.advance(11)
    assert world.store.index.tick() == [(3, 0)]
    assert world.store.audit()["quarantined"] == MIB
    assert not extents(reservation.slots(0)) & everything_else(world)
    world.store.index.fenced(3, 0)
    assert extents(reservation.slots(0)) == everything_else(world, 5000)

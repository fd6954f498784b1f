"""A block that found no room left its parent out of the eviction queue: nothing could be stored any more."""

from words import MIB, World, full


def test_the_parent_of_a_refused_block_can_still_be_evicted():
    world = World(full(2 * MIB))
    chain = world.sequence(range(8))
    world.put(chain, {0: range(1)})
    assert world.store.reserve(chain, {0: range(1, 2)}, 10).reasons() == {"no_space": 1}
    world.store.audit()
    assert world.put(world.sequence(range(50, 54)), {0: range(1)})
    assert world.store.stats()["evicted"] == 1

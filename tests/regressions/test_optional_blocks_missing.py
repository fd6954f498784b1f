"""`pin` wanted the blocks of optional groups, which `match` does without."""

from kvarter.geometry import CacheGroup, State
from words import World, full


def test_a_boundary_without_its_optional_blocks_can_be_pinned():
    world = World(full(), CacheGroup("draft", State(), 4, (4096,), required=False))
    chain = world.sequence(range(8))
    world.put(chain, {0: range(2)})
    assert world.store.match(chain, limit=8).blocks == (range(2), range(0))
    assert world.store.unpin(world.store.pin(chain, 5))


def test_there_is_no_pin_of_nothing():
    world = World()
    assert world.store.pin(world.sequence(range(8)), 5) is None

"""An empty sequence asked for a boundary below 0, which a `State` group could not be asked for."""

from kvarter.geometry import CacheGroup, State
from words import World, full


def test_a_sequence_of_no_tokens_is_a_miss():
    world = World(full(), CacheGroup("state", State(), 4, (4096,)))
    assert not world.store.match(world.sequence(()))
    assert not world.store.match(world.sequence(range(8)), limit=-4)

"""A range past the end of its chain raised after its first blocks had been reserved, and nobody had their handles."""

import pytest

from words import World


def test_a_range_that_the_chain_does_not_have_reserves_nothing():
    world = World()
    with pytest.raises(ValueError, match="block 3 of group 0 ends at unit 3, and the chain has units 0 to 2"):
        world.store.reserve(world.sequence(range(8)), {0: range(4)}, 10)
    assert world.store.audit()["reserved"] == 0

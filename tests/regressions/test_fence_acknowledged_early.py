"""A fence of an epoch was sent once only: a slot of the same epoch that expired later stayed quarantined for ever."""

from words import World


def test_a_slot_that_expires_after_its_epoch_was_fenced_is_freed():
    world = World()
    world.store.reserve(world.sequence(range(4)), {0: range(1)}, 10)
    world.store.reserve(world.sequence(range(4, 8)), {0: range(1)}, 20)
    world.pass_time(11)
    assert world.store.audit()["reserved"] == 4096
    world.pass_time(10)
    assert world.store.audit()["quarantined"] == 0
    assert world.store.stats()["expired"] == 2


def test_a_fence_that_is_still_out_covers_what_expires_meanwhile():
    world = World()
    world.store.delegate_ticks()
    world.store.reserve(world.sequence(range(4)), {0: range(1)}, 10, owner=1)
    world.store.reserve(world.sequence(range(4, 8)), {0: range(1)}, 20, owner=1)
    world.clock.advance(11)
    assert world.store.index.tick() == [(1, 0)]
    world.clock.advance(10)
    assert world.store.index.tick() == []
    assert world.store.audit()["quarantined"] == 8192
    world.store.index.fenced(1, 0)
    assert world.store.audit()["quarantined"] == 0

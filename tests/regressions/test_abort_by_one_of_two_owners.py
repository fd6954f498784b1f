"""One owner's abort freed the slots that another owner of the same block was still writing."""

from words import World, full


def test_abort_by_one_owner_leaves_the_others_slots_reserved_until_they_report():
    world = World(full(shards=2))
    chain = world.sequence(range(4))
    first = world.store.reserve(chain, {0: range(1)}, 10, owner=1, shards=(0, 1))
    second = world.store.reserve(chain, {0: range(1)}, 10, owner=2, shards=(1, 1))
    first.abort()
    assert world.store.audit()["reserved"] == 8192
    assert world.store.stats()["aborted"] == 1
    world.commit(second, 1)
    assert world.store.audit()["reserved"] == 0
    assert not world.store.match(chain, limit=4)

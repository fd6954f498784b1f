"""A refused `extend` kept its tokens, which the next call hashed without their extras: the name of other bytes.

A sequence from a given parent on, without digests of its own, went on from the root.
"""

import pytest

from words import World


def test_a_refused_extend_leaves_the_sequence_as_it_was():
    world = World()
    for tokens, extras in (
        (range(4), [(3, 1, 0, b"x")]),
        (range(4), [(0, 9, 0, b"x")]),
        (range(4), [(0, 1, 4, b"x")]),
        ([1, 2, 3, -1], []),
    ):
        sequence = world.sequence([7])
        with pytest.raises((ValueError, OverflowError)):
            sequence.extend(tokens, extras)
        assert (sequence.num_tokens, sequence.units) == (1, 0)
        sequence.extend([8, 9, 10])
        assert (sequence.digests == world.sequence([7, 8, 9, 10]).digests).all()


def test_a_sequence_of_nothing_but_its_parent_goes_on_from_there():
    world = World()
    whole = world.sequence(range(8))
    after = type(whole).from_digests(world.namespace, whole.digests[:0], 1, whole.digests[0].tobytes())
    after.extend(range(4, 8))
    assert (after.digests == whole.digests[1:]).all()

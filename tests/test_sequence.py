"""Sequences: the same tokens name the same blocks, however they come."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarter.sequence import Sequence
from words import World, full, namespace

TOKENS = range(100, 132)  # 8 units of 4


@pytest.fixture
def world() -> World:
    return World()


tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(tokens, st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_extending_in_any_split_names_the_same_units(ids: list[int], cuts: list[int], salted: bool) -> None:
    ns = namespace(full())
    units = len(ids) // 4
    extras = [(0, 2, 0, b"salt")] * (salted and units > 0) + [(u, 1, 1, b"image") for u in range(1, units, 2)]
    whole = Sequence(ns, ids, extras)
    pieces = Sequence(ns)
    edges = sorted({0, len(ids), *(min(cut, len(ids)) for cut in cuts)})
    for start, end in pairwise(edges):
        here = [extra for extra in extras if start // 4 <= extra[0] < end // 4]
        pieces.extend(ids[start:end], here)
    assert (pieces.digests == whole.digests).all()
    assert pieces.num_tokens == whole.num_tokens == len(ids)


def test_tokens_come_as_numbers_or_as_arrays() -> None:
    ns = namespace(full())
    ids = [random.Random(1).randrange(2**32) for _ in range(20)]
    plain = Sequence(ns, ids).digests
    assert (Sequence(ns, np.array(ids, np.uint32)).digests == plain).all()
    assert (Sequence(ns, memoryview(np.array(ids, np.uint32))).digests == plain).all()


def test_given_digests_with_their_parent_continue_what_is_stored(world: World) -> None:
    whole = world.sequence([*TOKENS, 7])
    world.put(whole, {0: range(4)})
    tail = Sequence.from_digests(world.namespace, whole.digests[4:], 4, whole.digests[3].tobytes())
    assert (tail.units, tail.num_tokens) == (8, 32)
    written = world.put(tail, {0: range(4, 8)})
    assert sorted(block for _, block, _ in written) == [4, 5, 6, 7]
    assert world.store.match(tail, limit=32, have_tokens=16).blocks == (range(4, 8),)
    tail.extend(range(4))
    assert (tail.digests[-1] == world.sequence([*TOKENS, *range(4)]).digests[-1]).all()
    with pytest.raises(ValueError, match="parent digest of 32 bytes, not 3"):
        Sequence.from_digests(world.namespace, whole.digests[4:], 4, b"abc")


def test_the_same_tokens_in_another_namespace_keep_their_digests_and_part_ways() -> None:
    here, there = namespace(full()), namespace(full(), model="another")
    one = Sequence(here, TOKENS)
    other = one.in_namespace(there)
    assert (one.digests == other.digests).all()
    one.extend([1, 2, 3, 4])
    other.extend([5, 6, 7, 8])
    assert (other.digests == Sequence(there, [*TOKENS, 5, 6, 7, 8]).digests).all()
    assert (one.digests == Sequence(here, [*TOKENS, 1, 2, 3, 4]).digests).all()
    with pytest.raises(ValueError, match="units of 16 tokens; the sequence has 4"):
        one.in_namespace(namespace(full(block_tokens=16), unit_tokens=16))


def test_a_chain_stays_as_it_was_while_its_sequence_grows(world: World) -> None:
    growing = world.sequence(TOKENS[:8])
    digests = growing.digests
    before = digests.copy()
    for start in range(8, 32, 4):
        growing.extend(TOKENS[start : start + 4])
    assert (digests == before).all() and not digests.flags.writeable
    assert (growing.digests == world.sequence(TOKENS).digests).all()

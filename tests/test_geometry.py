"""Where a hit may end, judged by brute force over random groups and random resident blocks."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarter.errors import GeometryError
from kvarter.geometry import CacheGroup, Chunked, Full, Geometry, State, Window
from words import Blocks


def oracle(geometry, have, limit):
    """By the words of DESIGN section 6: token by token, from the largest boundary down."""
    for p in range(limit // geometry.alignment * geometry.alignment, 0, -geometry.alignment):
        if all(
            serves(group, number, have, p) for number, group in enumerate(geometry.groups) if group.required
        ):
            return p
    return 0


def serves(group, number, have, p):
    if isinstance(group.lifetime, State):
        return (number, p // group.block_tokens - 1) in have
    if isinstance(group.lifetime, Full):
        tokens = range(p - group.replay_tokens)
    elif isinstance(group.lifetime, Chunked):
        start = p // group.lifetime.tokens * group.lifetime.tokens
        tokens = range(start // group.block_tokens * group.block_tokens, p - group.replay_tokens)
    else:
        first = p - (group.lifetime.tokens - 1) - group.lifetime.retained_tokens
        first = (first // group.block_tokens - group.lifetime.extra_blocks) * group.block_tokens
        tokens = range(max(first, 0), p - group.replay_tokens)
    return all((number, t // group.block_tokens) in have for t in tokens)


lifetimes = st.one_of(
    st.just(Full()),
    st.just(State()),
    st.builds(Chunked, st.integers(1, 150)),
    st.builds(Window, st.integers(1, 150), st.sampled_from([0, 0, 16]), st.sampled_from([0, 0, 1])),
)


@st.composite
def geometries(draw):
    unit = draw(st.sampled_from([4, 16]))
    groups = []
    for number in range(draw(st.integers(1, 4))):
        lifetime = draw(lifetimes)
        tokens = draw(st.sampled_from([unit // 4, unit // 2, unit, unit * 2, unit * 3]))
        replay = 0 if isinstance(lifetime, State) else draw(st.sampled_from([0, 0, 5, 64]))
        groups.append(
            CacheGroup(f"g{number}", lifetime, tokens, (1,), number == 0 or draw(st.booleans()), replay)
        )
    return Geometry(unit, tuple(groups))


@settings(max_examples=600, deadline=None)
@given(geometries(), st.integers(0, 2**32), st.integers(0, 400))
def test_the_planner_agrees_with_brute_force(geometry, seed, limit):
    rng = random.Random(seed)
    share = rng.choice([0.5, 0.9, 0.97, 1.0])
    have = set()
    for number, group in enumerate(geometry.groups):
        resident = [b for b in range(400 // group.block_tokens + 1) if rng.random() < share]
        if isinstance(group.lifetime, Full):  # resident blocks of a chain are a prefix
            resident = range(rng.randrange(400 // group.block_tokens + 2))
        have |= {(number, b) for b in resident}
    assert geometry.boundary(Blocks(have), limit) == oracle(geometry, have, limit)


def test_a_window_needs_exactly_what_the_next_token_can_see():
    group = CacheGroup("w", Window(65), 16, (1,))
    assert group.blocks_at(160) == range(6, 10)
    assert CacheGroup("w", Window(66), 16, (1,)).blocks_at(160) == range(5, 10)
    assert CacheGroup("w", Window(1), 16, (1,)).blocks_at(160) == range(10, 10)
    assert group.blocks_at(32) == range(2)


def test_a_chunk_needs_what_lies_before_the_boundary_in_it() -> None:
    group = CacheGroup("c", Chunked(64), 16, (1,))
    assert group.blocks_at(112) == range(4, 7)
    assert group.blocks_at(128) == range(8, 8)


@settings(max_examples=150, deadline=None)
@given(geometries(), st.integers(0, 20), st.integers(0, 20), st.sets(st.integers(0, 12)), st.integers(0, 400))
def test_kept_blocks_are_exactly_those_that_a_kept_boundary_needs(geometry, first, count, kept, dense_from):
    align = geometry.alignment
    boundaries = {k * align for k in kept}
    every = boundaries | {p for p in range(0, 2000, align) if p > dense_from}
    for number, group in enumerate(geometry.groups):
        wanted = {b for p in every if p % group.block_tokens == 0 for b in group.blocks_at(p)}
        if isinstance(group.lifetime, Full):
            wanted = set(range(1000))
        got = geometry.kept_blocks(number, first, first + count, boundaries, dense_from)
        assert got == [b for b in range(first, first + count) if b in wanted]


def test_a_state_needs_its_snapshot_and_nothing_else():
    assert CacheGroup("s", State(), 256, (1,)).blocks_at(512) == range(1, 2)


def test_an_optional_group_never_shortens_a_hit():
    geometry = Geometry(
        16, (CacheGroup("f", Full(), 16, (1,)), CacheGroup("o", State(), 48, (1,), required=False))
    )
    assert geometry.alignment == 16
    assert geometry.boundary(Blocks({(0, 0), (0, 1)}), 100) == 32


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: CacheGroup("a", Full(), 0, (1,)), "blocks of 0 tokens"),
        (lambda: CacheGroup("a", Full(), 16, ()), "shards of"),
        (lambda: CacheGroup("a", Full(), 16, (1, 1), copies=0), "0 copies"),
        (lambda: CacheGroup("a", Window(0), 16, (1,)), "sees 0 tokens"),
        (lambda: Geometry(16, (CacheGroup("a", Full(), 24, (1,)),)), "one must be a multiple of the other"),
        (
            lambda: Geometry(16, (CacheGroup("a", Full(), 16, (1,), required=False),)),
            "none of 1 groups is required",
        ),
    ],
)
def test_a_geometry_that_contradicts_itself_is_refused_in_words(build, words):
    with pytest.raises(GeometryError, match=words):
        build()


def test_every_field_of_a_group_is_part_of_its_identity():
    base = CacheGroup("a", Full(), 16, (8,))
    others = [
        CacheGroup("b", Full(), 16, (8,)),
        CacheGroup("a", State(), 16, (8,)),
        CacheGroup("a", Window(8), 16, (8,)),
        CacheGroup("a", Window(9), 16, (8,)),
        CacheGroup("a", Chunked(9), 16, (8,)),
        CacheGroup("a", Full(), 32, (8,)),
        CacheGroup("a", Full(), 16, (9,)),
        CacheGroup("a", Full(), 16, (8, 8)),
        CacheGroup("a", Full(), 16, (8,), required=False),
        CacheGroup("a", Full(), 16, (8,), replay_tokens=3),
        CacheGroup("a", Full(), 16, (8,), copies=2),
    ]
    assert len({group.identity() for group in [base, *others]}) == 12

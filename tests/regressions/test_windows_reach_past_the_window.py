"""Blocks that only a boundary far beyond them needs, by retained tokens or extra blocks, were not kept."""

from kvarter.geometry import CacheGroup, Full, Geometry, Window


def test_a_block_that_only_retained_tokens_need_is_kept():
    group = CacheGroup("w", Window(2, retained_tokens=160, extra_blocks=1), 16, (1,))
    geometry = Geometry(16, (CacheGroup("f", Full(), 16, (1,)), group))
    boundary = 16 * 12
    (first, *_) = group.blocks_at(boundary)
    assert boundary - first * 16 > 160
    assert geometry.kept_blocks(1, first, first + 1, (), boundary - 16) == [first]

"""Hangs, lost wakeups, herds: the public failures 62 to 71, numbered as in the project's list of them.

What the engine's side of them does (a request whose load failed never matches again) is in
tests/engine/test_exactness.py.
"""

import numpy as np
import pytest

from kvarter import _core
from kvarter.errors import AttachError
from kvarter.geometry import CacheGroup, Full, State
from kvarter.node.attach import Attachment, Invitation
from words import KIB, World, full

TOKENS = range(32)


def test_62_a_load_whose_completion_never_arrives_ends_at_its_deadline():
    world = World()
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    ticket = world.store.load(world.store.match(chain), 5)
    world.pass_time(5)
    assert not ticket.finish(_core.Outcome.Loaded)
    stats = world.store.stats()
    assert (stats["load_expired"], stats["leased_now"]) == (7, 0)


def test_63_a_report_takes_effect_in_any_order_and_needs_no_later_call():
    world = World()
    chain = world.sequence(TOKENS)
    parts = [world.store.reserve(chain, {0: range(b, b + 1)}, 10) for b in range(8)]
    for part in reversed(parts[1:]):
        world.commit(part)
        assert not world.store.index.leading(chain.chain(world.store.open(world.namespace)), 0, 8)
    world.commit(parts[0])
    assert world.store.index.leading(chain.chain(world.store.open(world.namespace)), 0, 8) == 8


@pytest.mark.parametrize("have", [0, 3, 16, 31, 32, 96, 1 << 40])
def test_64_there_are_never_fewer_than_no_tokens_to_load(have):
    world = World()
    chain = world.sequence([*TOKENS, 7])
    world.put(chain, {0: range(8)})
    match = world.store.match(chain, have_tokens=have)
    assert match.new_tokens == max(32 - have, 0)
    assert bool(match) == (have < 32)
    assert all(len(blocks) >= 0 for blocks in match.blocks)


def test_65_one_deadline_holds_for_every_group():
    world = World(full(), CacheGroup("state", State(), 8, (64 * KIB,)))
    chain = world.sequence([*TOKENS, 7])
    world.put(chain, {0: range(8), 1: range(4)})
    ticket = world.store.load(world.store.match(chain), 5)
    assert len(ticket.slots(0)) == 8 and len(ticket.slots(1)) == 1
    world.store.reserve(world.sequence([5] * 8), {0: range(2), 1: range(1)}, 5)
    world.pass_time(5)
    ledger = world.store.audit()
    assert ledger["leased"] == ledger["reserved"] == ledger["quarantined"] == 0
    assert (world.store.stats()["load_expired"], world.store.stats()["expired"]) == (9, 3)


def test_66_a_node_that_is_not_there_is_an_error_with_its_path_and_no_wait(tmp_path):
    nobody = Invitation(str(tmp_path / "nobody.sock"), "e", _core.LAYOUT_VERSION)
    with pytest.raises(AttachError, match=r"rank 3 cannot attach to the node at .*nobody\.sock"):
        Attachment(nobody, 3, _core.HostCopyEngine(), timeout=3600)


def test_67_a_rank_that_failed_or_is_gone_is_not_waited_for_for_ever():
    world = World(full(shards=2))
    chain = world.sequence(TOKENS)
    failed = world.store.reserve(chain, {0: range(4)}, 1e6)
    world.commit(failed, 0, ok=False)
    world.commit(failed, 1)
    assert world.store.audit()["reserved"] == 0
    silent = world.store.reserve(chain, {0: range(4)}, 5)
    world.commit(silent, 0)
    world.pass_time(5)
    assert world.store.audit()["reserved"] == 0
    gone = world.store.reserve(chain, {0: range(4)}, 1e6, owner=9, shards=(1, 1))
    assert len(gone) == 4
    world.store.index.owner_dead(9)
    assert world.store.audit()["reserved"] == 0


def test_68_a_failed_load_changes_what_a_memoised_verdict_depends_on():
    world = World()
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    match, version = world.store.match(chain), world.store.index.version
    with world.store.load(match, 10) as ticket:
        ticket.drop_corrupt(0, [2])
    assert world.store.index.version != version
    assert world.store.match(chain).tokens == 8


def test_69_what_could_not_be_loaded_is_not_promised_again():
    world = World()
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    stale = world.store.match(chain)
    for number in range(1000, 1600):
        world.clock.advance(1e-6)
        world.put(world.sequence([number] * 4), {0: range(1)})
    assert world.store.load(stale, 10).status == _core.Status.NotFound
    assert not world.store.match(chain)


def test_70_any_number_of_requests_for_one_prefix_read_the_same_slots():
    world = World()
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    tickets = [
        world.store.load(world.store.match(chain, request=f"r{n}"), 10, request=f"r{n}") for n in range(5)
    ]
    assert len({ticket.slots(0).tobytes() for ticket in tickets}) == 1
    assert world.store.audit()["leased"] == 7 * 4 * KIB
    assert world.store.audit()["resident"] == 1 * 4 * KIB


def test_71_ranks_read_their_own_shards_and_what_is_alike_on_all_is_there_once():
    ranks = 8
    world = World(full(shards=ranks), CacheGroup("latent", Full(), 4, (4 * KIB,), copies=ranks))
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8), 1: range(8)})
    with world.store.load(world.store.match(chain, limit=32), 10) as ticket:
        own = [set(ticket.slots(0)[:, rank]["record"].tolist()) for rank in range(ranks)]
        assert sum(map(len, own)) == len(set().union(*own)) == 8 * ranks
        assert ticket.slots(1).shape == (8, 1)
        assert world.store.audit()["leased"] == (8 * ranks + 8) * 4 * KIB
        assert int(np.sum(ticket.slots(0)["length"])) == 8 * ranks * 4 * KIB

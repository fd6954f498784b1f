"""A node that stood still for longer than a session's patience came back, and its engine was never served again: the
session was another owner by then, and the worker, whose own connection had not ended, stayed with the first."""

import logging
from pathlib import Path

import numpy as np

from kvarter import _core
from kvarter.node import Invitation, KeptAttachment, RemoteStore
from kvarter.sequence import Sequence
from served_words import SECONDS, served, until
from words import KIB, World, full, namespace

BLOCK = 64 * KIB
NAMES = namespace(full(BLOCK))
LOGGER = logging.getLogger("kvarter.tests")


def tokens(number: int) -> Sequence:
    return Sequence(NAMES, [number] * 17)


def test_a_worker_follows_its_session_to_another_owner_and_still_answers_for_the_first(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as node:
        store = RemoteStore(node.path, "e", timeout=SECONDS, patience=0.5)
        engine = _core.HostCopyEngine(0)
        worker = KeptAttachment(Invitation(node.path, "e", _core.LAYOUT_VERSION), 0, engine, LOGGER)
        until(lambda: store.attached() == 1, "attached")
        first = worker.now
        given_up = store.reserve(tokens(1), {0: range(4)}, 5.0)
        assert len(given_up) == 4
        node.stop()
        assert store.attached() == 0 and not store.connected
        node.go_on()
        until(lambda: store.incarnation == 2 and store.attached() == 1, "attached again")
        assert first is not None and first.connected and not first.current
        assert worker.now is not first
        node.holds(reserved=0, quarantined=0)  # the first session's fence was answered

        # And it does not hold up the second's copies.
        reservation = store.reserve(tokens(2), {0: range(4)}, 60.0)
        assert worker.now is not None and worker.now.pool == reservation.pool
        memory = np.random.default_rng(1).integers(0, 256, (4, BLOCK), np.uint8)
        blocks = _core.Blocks([(memory.ctypes.data, BLOCK, BLOCK, 1, BLOCK)], 4)
        addresses = worker.now.addresses(reservation.slots(0)[:, 0])
        ticket = engine.submit(
            "gather", blocks, np.arange(4), addresses, None, reservation.epoch(store.owner)
        )
        statuses, sums = engine.take(ticket)
        assert (statuses == _core.Status.Ok).all()
        reservation.commit(0, np.ones(4, np.uint8), sums)
        assert store.match(tokens(2)).tokens == 16
        worker.close()
        store.close()


def test_epochs_of_a_new_owner_are_above_those_of_all_before() -> None:
    world = World()
    world.store.delegate_ticks()
    world.store.reserve(world.sequence(range(4)), {0: range(1)}, 10, owner=1)
    world.clock.advance(11)
    ((_, fenced),) = world.store.index.tick()
    world.store.reserve(world.sequence(range(4, 8)), {0: range(1)}, 10, owner=2)
    assert world.store.index.epoch(2) > fenced

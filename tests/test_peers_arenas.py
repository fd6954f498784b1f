"""A pool with several arenas, as on a machine with several NUMA nodes: blocks go from and to all of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from kvarter import _core
from served_words import Client, until
from street_words import PeerNode, Street, loaded, settled
from words import KIB, MIB, full

pytestmark = pytest.mark.timeout(240)
BLOCKS = 96  # of 64 KiB: 6 MiB in arenas of 2


def test_blocks_come_from_all_arenas_into_all_arenas_and_a_damaged_one_is_found(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        street = stack.enter_context(contextlib.closing(Street(2)))
        nodes, clients = [], []
        for number, other in ((1, 2), (2, 1)):
            node = PeerNode(tmp_path, street, number, [other], arena_bytes=2 * MIB, lend_share=1)
            nodes.append(stack.enter_context(contextlib.closing(node)))
            client = Client(node, f"engine {number}", full(64 * KIB))
            clients.append(stack.enter_context(contextlib.closing(client)))
        nodes[0].knows(2)
        nodes[1].knows(1)
        here, there = clients
        first = there.put(there.tokens(1, BLOCKS // 2), {0: range(BLOCKS // 2)})
        written = there.put(there.tokens(2, BLOCKS // 2), {0: range(BLOCKS // 2)})
        with loaded(there, settled(there, there.tokens(2, BLOCKS // 2))) as ticket:
            slots = ticket.slots(0)[:, 0]
            assert len(set(slots["arena"].tolist())) > 1
            there.slot(slots[-1])[77] ^= 1  # in an arena that is not the first
        with loaded(here, settled(here, here.tokens(1, BLOCKS // 2))) as ticket:
            assert ticket.status == _core.Status.Ok
            assert here.read(ticket) == first
        assert loaded(here, settled(here, here.tokens(2, BLOCKS // 2))).status == _core.Status.NotFound
        kept = settled(
            here, here.tokens(2, BLOCKS // 2), limit=(BLOCKS // 2 - 1) * here.namespace.unit_tokens
        )
        with loaded(here, kept) as ticket:
            assert len(set(ticket.slots(0)["arena"].ravel().tolist())) > 1
            got = here.read(ticket)
            assert len(got) == BLOCKS // 2 - 1 and got == {key: written[key] for key in got}
        whole = BLOCKS // 2 * here.namespace.unit_tokens
        until(lambda: there.store.match(there.tokens(2, BLOCKS // 2)).tokens < whole, "gone at its owner")
        for node in nodes:
            node.quiet()

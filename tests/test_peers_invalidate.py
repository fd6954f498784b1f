"""What is invalidated on one host is invalid on all: it neither stays with others nor comes back from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from served_words import Client, until
from street_words import PeerNode, Street, fetched, settled
from words import KIB, MIB, UNIT, full

pytestmark = pytest.mark.timeout(240)
BLOCKS = 8


class Row:
    """Hosts in a row: each knows the one before and the one after it."""

    def __init__(
        self, directory: Path, stack: contextlib.ExitStack, count: int, disk: Sequence[int] = ()
    ) -> None:
        street = stack.enter_context(contextlib.closing(Street(count)))
        self.nodes: dict[int, PeerNode] = {}
        self.clients: dict[int, Client] = {}
        self._others = {n: [o for o in (n - 1, n + 1) if 0 < o <= count] for n in range(1, count + 1)}
        for number, others in self._others.items():
            below = {"path": str(directory / f"disk{number}"), "capacity": 64 * MIB, "segment_bytes": MIB}
            below["admit_all"] = True
            node = PeerNode(directory, street, number, others, disk=below if number in disk else None)
            self.nodes[number] = stack.enter_context(contextlib.closing(node))
            client = Client(node, f"engine {number}", full(64 * KIB))
            self.clients[number] = stack.enter_context(contextlib.closing(client))
        self.linked()

    def linked(self) -> None:
        for number, others in self._others.items():
            self.nodes[number].knows(*others)

    def finds(self, number: int, sequence: int) -> int:
        client = self.clients[number]
        return settled(client, client.tokens(sequence, BLOCKS)).tokens

    def cleared(self, number: int) -> int:
        return int(self.nodes[number].peers()["cleared"]["elsewhere"])


@pytest.fixture
def row(tmp_path: Path) -> Iterator[Callable[..., Row]]:
    with contextlib.ExitStack() as stack:
        made: list[Row] = []

        def make(count: int, **options: Any) -> Row:
            made.append(Row(tmp_path, stack, count, **options))
            return made[-1]

        yield make
        for node in [node for each in made for node in each.nodes.values()]:
            node.quiet()


def test_what_is_invalidated_on_one_host_ends_on_all_and_can_be_stored_anew(row: Callable[..., Row]) -> None:
    here = row(3)
    first, second, third = here.clients.values()
    third.put(third.tokens(1, BLOCKS), {0: range(BLOCKS)})
    fetched(second, second.tokens(1, BLOCKS))
    fetched(first, first.tokens(1, BLOCKS))
    first.store.invalidate(first.namespace)
    assert here.finds(1, 1) == 0  # at once: its neighbour heard of it before it was asked
    until(lambda: here.cleared(3) == 1, "told from one to the next")
    assert [here.finds(number, 1) for number in (1, 2, 3)] == [0, 0, 0]
    written = third.put(third.tokens(1, BLOCKS), {0: range(BLOCKS)})
    until(
        lambda: here.finds(2, 1) == BLOCKS * UNIT, "found again"
    )  # that there was none is believed for a moment
    assert fetched(second, second.tokens(1, BLOCKS)) == written
    assert (here.cleared(1), here.cleared(2), here.cleared(3)) == (0, 1, 1)


def test_a_node_that_was_away_hears_of_it_before_its_disk_serves_anybody(row: Callable[..., Row]) -> None:
    here = row(2, disk=[2])
    first, second = here.clients.values()
    second.put(second.tokens(2, BLOCKS), {0: range(BLOCKS)})
    until(lambda: here.nodes[2].status()["disk_counters"]["resident_blocks"] >= BLOCKS, "on disk")
    fetched(first, first.tokens(2, BLOCKS))
    here.nodes[2].close()
    here.nodes[1].knows()
    first.store.invalidate(first.namespace)
    assert here.finds(1, 2) == 0
    here.nodes[2].start()
    here.linked()
    until(lambda: here.cleared(2) == 1, "it is told")
    second.came_back(1)
    assert [here.finds(number, 2) for number in (1, 2)] == [0, 0]
    written = second.put(second.tokens(2, BLOCKS), {0: range(BLOCKS)})
    until(lambda: here.finds(1, 2) == BLOCKS * UNIT, "found again")
    assert fetched(first, first.tokens(2, BLOCKS)) == written


def test_an_engine_that_goes_on_under_another_name_takes_nothing_from_others(row: Callable[..., Row]) -> None:
    here = row(2)
    first, second = here.clients.values()
    first.put(first.tokens(3, BLOCKS), {0: range(BLOCKS)})
    written = fetched(second, second.tokens(3, BLOCKS))
    first.store.invalidate(first.namespace, everywhere=False)
    assert here.finds(2, 3) == BLOCKS * UNIT
    assert fetched(first, first.tokens(3, BLOCKS)) == written
    assert here.cleared(2) == 0

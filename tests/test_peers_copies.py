"""Copies of what is hot: nodes that nobody asked have it, and serve it when the first holder is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvarter.tiers.uses import Uses, lengths
from served_words import Client, until
from street_words import PeerNode, Street, fetched, settled
from words import KIB, MIB, UNIT, full

pytestmark = pytest.mark.timeout(240)
BLOCKS = 8  # of 64 KiB


class Three:
    """Hosts 1 to 3 that all know each other, and an engine at each."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack, copies: int, **drams: int) -> None:
        street = stack.enter_context(contextlib.closing(Street(3)))
        self.nodes: dict[int, PeerNode] = {}
        self.clients: dict[int, Client] = {}
        for number in (1, 2, 3):
            others = [other for other in (1, 2, 3) if other != number]
            dram = drams.get(f"host{number}", 8 * MIB)
            node = PeerNode(directory, street, number, others, dram=dram, copies=copies)
            self.nodes[number] = stack.enter_context(contextlib.closing(node))
            client = Client(node, f"engine {number}", full(64 * KIB))
            self.clients[number] = stack.enter_context(contextlib.closing(client))
            client.store.open(client.namespace)
        for number, node in self.nodes.items():
            node.knows(*(other for other in self.nodes if other != number))

    def copied(self, number: int, what: str = "copied") -> int:
        return int(self.nodes[number].peers()["copies"][what])

    def kill(self, *numbers: int) -> None:
        """They are gone, and everybody knows it."""
        for number in numbers:
            self.clients[number].close()
            self.nodes[number].kill()
        living = set(self.nodes) - {
            number for number, node in self.nodes.items() if node.process.poll() is not None
        }
        for number in living:
            self.nodes[number].knows(*(living - {number}))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Callable[..., Three]]:
    with contextlib.ExitStack() as stack:
        made: list[Three] = []

        def make(copies: int, **drams: int) -> Three:
            made.append(Three(tmp_path, stack, copies, **drams))
            return made[-1]

        yield make
        for node in [node for street in made for node in street.nodes.values()]:
            if node.process.poll() is None:
                node.quiet()


def used_until(client: Client, sequence: Any, holds: Callable[[], Any], what: str) -> None:
    """Requests for it, one after another."""

    def once_more() -> Any:
        assert settled(client, sequence, request="again").tokens > 0
        return holds()

    until(once_more, what)


def test_what_is_hot_on_one_node_has_a_copy_that_outlives_it(three: Callable[..., Three]) -> None:
    here = three(copies=2)
    client = here.clients[1]
    written = client.put(client.tokens(1, BLOCKS), {0: range(BLOCKS)})
    used_until(client, client.tokens(1, BLOCKS), lambda: here.copied(2) + here.copied(3) == 1, "a copy")
    with_it, without = (2, 3) if here.copied(2) else (3, 2)
    taken = {"hot": 1, "taken": 1, "refused": 0}
    until(lambda: here.nodes[1].peers()["spread"] == taken, "it knows")
    holder, spread = here.clients[with_it], lambda: here.nodes[with_it].peers()["spread"]
    used_until(holder, holder.tokens(1, BLOCKS), lambda: spread()["hot"], "hot where the copy is")
    assert here.nodes[without].received() == 0  # two have it, and two are enough
    here.kill(1)
    match = settled(holder, holder.tokens(1, BLOCKS))
    assert (match.tokens, match.peer_tokens) == (BLOCKS * UNIT, 0)
    assert holder.get(match) == written
    assert fetched(here.clients[without], here.clients[without].tokens(1, BLOCKS)) == written


def test_who_fetched_it_and_uses_it_often_gives_it_to_a_third(three: Callable[..., Three]) -> None:
    here = three(copies=3)
    first, second, third = here.clients.values()
    written = first.put(first.tokens(2, BLOCKS), {0: range(BLOCKS)})
    assert fetched(second, second.tokens(2, BLOCKS)) == written
    used_until(second, second.tokens(2, BLOCKS), lambda: here.copied(3), "a copy")
    assert here.nodes[3].peers()["looks"]["asked"] == 1  # of who offered it: no request has asked
    here.kill(1, 2)
    match = settled(third, third.tokens(2, BLOCKS))
    assert (match.tokens, match.peer_tokens) == (BLOCKS * UNIT, 0)
    assert third.get(match) == written


def test_who_has_no_room_to_spare_declines_and_another_takes_it(three: Callable[..., Three]) -> None:
    here = three(copies=3, host2=2 * MIB)  # of which an eighth is less than this
    client = here.clients[1]
    written = client.put(client.tokens(4, BLOCKS), {0: range(BLOCKS)})

    def offered_to_both() -> bool:
        spread = here.nodes[1].peers()["spread"]
        return bool(spread["taken"] == spread["refused"] == 1)

    used_until(client, client.tokens(4, BLOCKS), offered_to_both, "both were asked")
    assert (here.copied(2, "declined"), here.copied(3)) == (1, 1)
    assert here.nodes[2].received() == 0
    match = settled(here.clients[3], here.clients[3].tokens(4, BLOCKS))
    assert match.peer_tokens == 0 and here.clients[3].get(match) == written


# --- what is hot


class Watch:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_a_prefix_that_many_share_is_hot_and_their_ends_are_not() -> None:
    uses = Uses(3, 60.0, 100, Watch())
    said = [uses.used([(1, b"end %d" % i), (1, b"shared"), (1, b"first")]) for i in range(4)]
    assert said == [None, None, 1, None]  # and what was said is not said again


def test_uses_long_ago_do_not_count_and_after_a_while_it_is_said_again() -> None:
    watch = Watch()
    uses = Uses(3, 60.0, 100, watch)
    assert [uses.used([(1, b"a")]) for _ in range(2)] == [None, None]
    watch.time = 121
    assert [uses.used([(1, b"a")]) for _ in range(3)] == [None, None, 0]
    watch.time = 241
    assert [uses.used([(1, b"a")]) for _ in range(3)] == [None, None, 0]


def test_however_many_prefixes_there_are_few_are_remembered() -> None:
    uses = Uses(3, 60.0, 100, Watch())
    for i in range(10_000):
        uses.used([(1, b"%d" % i)])
    assert sum(map(len, uses._counts)) <= 200


@pytest.mark.parametrize(
    ("blocks", "at"), [(0, []), (1, [1]), (2, [2, 1]), (5, [5, 4, 2, 1]), (8, [8, 4, 2, 1])]
)
def test_a_sequence_is_counted_at_its_end_and_at_powers_of_two(blocks: int, at: list[int]) -> None:
    assert lengths(blocks) == at

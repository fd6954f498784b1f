"""Three hosts and a Redis: who has what is found there, and when it is gone, so are the hits, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvarter import _core
from redis_words import Redis
from served_words import Client, until
from street_words import PORT, PeerNode, Street, loaded, settled
from words import KIB, MIB, full

pytestmark = pytest.mark.timeout(240)
UNIT = 256  # tokens of a hash unit: positions are every 2,048
STEP = 8


class City:
    """Hosts 1 to 3 with a node each, and a Redis on host 4."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._stack = directory, contextlib.ExitStack()
        self.nodes: dict[int, PeerNode] = {}
        self.clients: dict[int, Client] = {}

    def __enter__(self) -> City:
        with contextlib.ExitStack() as stack:
            self.street = stack.enter_context(contextlib.closing(Street(4)))
            host = {"address": Street.address(4), "within": self.street.within(4)}
            self.redis = stack.enter_context(contextlib.closing(Redis(self._directory, **host)))
            for number in (1, 2, 3):
                node = PeerNode(
                    self._directory, self.street, number, [], dram=16 * MIB, directory=self.redis.url
                )
                self.nodes[number] = stack.enter_context(contextlib.closing(node))
                group, names = full(64 * KIB, block_tokens=UNIT), {"unit_tokens": UNIT}
                client = Client(node, f"engine {number}", group, names=names)
                self.clients[number] = stack.enter_context(contextlib.closing(client))
            self.known(3)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def known(self, nodes: int) -> None:
        for number, node in self.nodes.items():
            until(lambda node=node: node.peers()["directory"]["nodes"] == nodes, f"{number} knows {nodes}")  # type: ignore[misc]

    def told(self, number: int, units: int) -> None:
        """Waits until a node has told of so many positions, in all."""
        until(lambda: self.nodes[number].peers()["directory"]["told"] >= units // STEP, "told")

    def hit(self, client: Client, sequence: int, units: int) -> int:
        """Tokens that come from a peer when it asks for that; they are loaded."""
        match = settled(client, client.tokens(sequence, units))
        if not match.peer_tokens:
            return 0
        with loaded(client, match) as ticket:
            assert ticket.status == _core.Status.Ok
        return match.peer_tokens


@pytest.fixture
def city(tmp_path: Path) -> Iterator[City]:
    with City(tmp_path) as made:
        yield made
        for node in made.nodes.values():
            node.quiet()


def test_the_node_that_the_directory_names_is_met_and_serves(city: City) -> None:
    asks, has = city.clients[1], city.clients[3]
    written = has.put(has.tokens(1, 2 * STEP), {0: range(2 * STEP)})
    city.told(3, 2 * STEP)
    assert city.nodes[1].dialed() == set()
    match = settled(asks, asks.tokens(1, 2 * STEP))
    assert match.peer_tokens == 2 * STEP * UNIT
    with loaded(asks, match) as ticket:
        assert asks.read(ticket) == written
    assert city.nodes[1].dialed() == {f"{Street.address(3)}:{PORT}"}
    city.told(1, 2 * STEP)  # it has them, too, now


def test_a_redis_that_is_killed_or_emptied_costs_hits_and_gives_them_back(city: City) -> None:
    has = city.clients[2]
    for number in (1, 2, 3, 4):
        has.put(has.tokens(number, STEP), {0: range(STEP)})
    city.told(2, 4 * STEP)
    assert city.hit(city.clients[1], 1, STEP) == STEP * UNIT
    city.redis.kill()
    assert city.hit(city.clients[1], 2, STEP) == 0
    mine = city.clients[1].put(city.clients[1].tokens(9, STEP), {0: range(STEP)})
    assert city.clients[1].get(settled(city.clients[1], city.clients[1].tokens(9, STEP))) == mine
    assert city.redis.start()
    city.known(3)

    def told_again(sequence: int) -> bool:
        settled(has, has.tokens(sequence, STEP), request=f"{sequence}")  # it is used where it is
        return city.hit(city.clients[3], sequence, STEP) > 0

    until(lambda: told_again(2), "found again")
    assert city.redis.command("FLUSHALL") == "+OK"
    assert city.hit(city.clients[1], 3, STEP) == 0
    until(lambda: told_again(3), "found again")


def test_a_redis_that_stands_still_holds_up_no_request(city: City) -> None:
    has, asks = city.clients[2], city.clients[1]
    has.put(has.tokens(1, STEP), {0: range(STEP)})
    city.told(2, STEP)
    city.redis.stop()
    assert settled(asks, asks.tokens(1, STEP)).tokens == 0
    for number in range(20, 30):
        assert settled(asks, asks.tokens(number, STEP)).tokens == 0
    assert city.nodes[1].peers()["directory"]["failed"] > 0
    city.redis.go_on()
    until(lambda: city.hit(asks, 1, STEP) > 0, "found again")


def test_a_holder_that_the_directory_still_names_and_that_is_gone_is_a_miss(city: City) -> None:
    has, asks = city.clients[2], city.clients[1]
    has.put(has.tokens(1, STEP), {0: range(STEP)})
    city.told(2, STEP)
    city.nodes[2].kill()
    assert settled(asks, asks.tokens(1, STEP)).tokens == 0
    city.nodes[2].start()
    city.known(3)
    # It is there again, and has nothing: whoever asks it takes it out.
    until(
        lambda: settled(asks, asks.tokens(1, STEP)).tokens == 0 and _positions(city.redis) == 0, "forgotten"
    )


def _positions(redis: Redis) -> int:
    listed = redis.command("KEYS", "kvarter:1:{*")
    return sum(1 for line in listed.splitlines() if "kvarter:1:{" in line and "{nodes}" not in line)

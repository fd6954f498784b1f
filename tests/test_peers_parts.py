"""The parts that peers are made of, alone: answers that are remembered, bytes under way, what a match makes of them."""

import asyncio
from typing import Any

import pytest

from kvarter import _core
from kvarter.matching import Matcher
from kvarter.peers.directory import Prefix
from kvarter.peers.looks import Looks
from kvarter.peers.others import Other
from kvarter.peers.room import Room
from kvarter.policy import AlwaysLoad
from words import UNIT, World


class Elsewhere:
    """Another host that has as many tokens as it is told to say; None: it is being asked."""

    def __init__(self, tokens: int | None, policy: Any = None) -> None:
        self.tokens, self.policy = tokens, policy or AlwaysLoad()
        self.queued_reads = self.version = 0

    def look(self, space: Any, sequence: Any, here: int, limit: int) -> int | None:
        return self.tokens

    def fetch(self, *_: Any) -> Any:
        return lambda: (_core.Status.NotFound, 0)


class Never(AlwaysLoad):
    def worthwhile(self, tokens: int, above: int, below: int, queued: int) -> bool:
        return not below


@pytest.fixture
def world() -> World:
    world = World()
    world.put(world.sequence(range(65)), {0: range(4)})
    return world


def _match(world: World, elsewhere: Elsewhere, **asked: Any) -> Any:
    world.store._matcher.beyond = elsewhere
    return world.store.match(world.sequence(range(65)), **asked)


def test_a_match_is_pending_while_others_are_asked_and_counts_as_no_request(world: World) -> None:
    match = _match(world, Elsewhere(None), request="r")
    assert match.pending and not match and match.new_tokens == 0
    assert world.store._holds == {}


def test_a_match_goes_as_far_as_others_do_and_loads_what_is_not_here(world: World) -> None:
    match = _match(world, Elsewhere(40))
    assert (match.tokens, match.peer_tokens, match.disk_tokens) == (40, 40 - 4 * UNIT, 0)
    assert match.blocks == (range(10),) and match.below == (range(4, 10),)


def test_others_who_have_no_more_change_nothing(world: World) -> None:
    for tokens in (0, 4 * UNIT, 4 * UNIT - 1):
        match = _match(world, Elsewhere(tokens))
        assert (match.tokens, match.peer_tokens) == (4 * UNIT, 0)


def test_what_does_not_pay_to_fetch_is_served_from_here(world: World) -> None:
    match = _match(world, Elsewhere(40, Never()))
    assert (match.tokens, match.peer_tokens) == (4 * UNIT, 0)
    assert world.store.stats()["not_worthwhile"] == 1


def test_others_are_not_asked_where_the_engine_or_memory_has_it_all(world: World) -> None:
    whole = world.sequence(range(17))
    world.store._matcher.beyond = Elsewhere(None)
    assert world.store.match(whole).tokens == 4 * UNIT
    assert not _match(world, Elsewhere(None), limit=6 * UNIT, have_tokens=6 * UNIT).pending


def test_a_matcher_alone_has_nobody_to_ask() -> None:
    assert Matcher(AlwaysLoad(), None, 1).beyond is None


def test_a_question_is_asked_once_and_its_answer_stays_for_a_while() -> None:
    looks: Looks[int] = Looks(0, patience=60.0, keep=60.0)
    asked: list[Any] = []
    assert looks.get("a", asked.append) is None and looks.get("a", asked.append) is None
    assert len(asked) == 1 and looks.version == 0
    asked[0](7)
    assert looks.get("a", asked.append) == 7 and looks.version == 1
    assert looks.get("b", asked.append) is None and len(asked) == 2


def test_who_does_not_answer_has_nothing_and_is_asked_again_later() -> None:
    looks: Looks[int] = Looks(0, patience=0.0, keep=0.0)
    asked: list[Any] = []
    assert looks.get("a", asked.append) is None
    assert looks.get("a", asked.append) == 0
    asked[0](7)  # too late, and still right
    assert looks.get("a", asked.append) is None and len(asked) == 2


def test_no_more_bytes_are_under_way_than_there_is_room_for_and_all_have_their_turn() -> None:
    async def story() -> list[str]:
        room, order = Room(10), list[str]()

        async def take(name: str, nbytes: int, hold: asyncio.Event) -> None:
            await room.enter(nbytes)
            order.append(name)
            await hold.wait()
            room.leave(nbytes)

        holds = {name: asyncio.Event() for name in "abcde"}
        sizes = {"a": 6, "b": 3, "c": 8, "d": 1, "e": 50}
        tasks = {name: asyncio.create_task(take(name, sizes[name], holds[name])) for name in "abcde"}
        for _ in range(3):
            await asyncio.sleep(0)
        assert order == ["a", "b"] and room.used == 9  # d would fit, and waits for c
        tasks["c"].cancel()
        holds["a"].set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert order == ["a", "b", "d"] and room.used == 4
        holds["b"].set()
        holds["d"].set()
        for _ in range(4):
            await asyncio.sleep(0)
        assert order[-1] == "e" and room.used == 50  # alone
        holds["e"].set()
        await tasks["e"]
        assert room.used == 0
        return order

    assert asyncio.run(story()) == ["a", "b", "d", "e"]


def test_what_a_peer_looked_for_is_kept_within_bounds(world: World) -> None:
    other = Other(1, Room(1))
    space = world.store._space(world.namespace)
    for number in range(80):
        other.looked(number, space, world.sequence(range(65)))
    with pytest.raises(LookupError, match="look 15 is not known here any more"):
        other.look(15)
    assert other.look(16)[1].units == 16


def test_a_prefix_knows_where_its_positions_are() -> None:
    assert [units for units, _ in Prefix(b"n" * 32, 16, bytes(32 * 300)).marks(2048, 0, 300)] == [128, 256]

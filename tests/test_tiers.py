"""The tier contract, held against every member, and the harm that the faulty one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarter import _core
from kvarter._core import Status
from kvarter.errors import ConfigError
from kvarter.tiers import Done, Key, Tier, tier_class
from kvarter.tiers.faulty import Faulty, Harm
from kvarter.tiers.noop import Noop
from memory_tier import Memory

SIZE = 512
MEMBERS: dict[str, Callable[[], Tier]] = {
    "noop": Noop,
    "memory": Memory,
    "faulty": lambda: Faulty(Memory()),
    "faulty with delays": lambda: Faulty(Memory(), Harm(delay=3, reorder=True)),
}


def key(number: int, **parts: Any) -> Key:
    fields = {"namespace": b"n" * 32, "digest": number.to_bytes(32, "big"), "group": 0, "sub": 0, "shard": 0}
    return Key(**(fields | parts))


def block(number: int, size: int = SIZE) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(number).integers(1, 256, size, np.uint8)


def sums(blocks: list[Any]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array([_core.xxh3_64(one) for one in blocks], np.uint64)


class Caller:
    """What a store does with a tier: hand a batch over, and poll until it is back."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.polled: dict[int, Done] = {}

    def result(self, ticket: int) -> list[int]:
        for _ in range(10):
            if ticket in self.polled:
                break
            for done in self.tier.poll():
                assert done.ticket not in self.polled
                self.polled[done.ticket] = done
        return self.polled[ticket].statuses.tolist()

    def write(self, *numbers: int) -> list[int]:
        blocks = [block(n) for n in numbers]
        return self.result(self.tier.write([key(n) for n in numbers], blocks, sums(blocks)))

    def lookup(self, *numbers: int) -> list[int]:
        return self.result(self.tier.lookup([key(n) for n in numbers]))

    def delete(self, *numbers: int) -> list[int]:
        return self.result(self.tier.delete([key(n) for n in numbers]))

    def read(self, *numbers: int) -> list[bytes | int]:
        """For each block its bytes if they are as they were written, else why not: R1 as a store keeps it."""
        slots = [np.zeros(SIZE, np.uint8) for _ in numbers]
        ticket = self.tier.read([key(n) for n in numbers], slots)
        statuses = self.result(ticket)
        read: list[bytes | int] = []
        for status, slot, checksum in zip(statuses, slots, self.polled[ticket].checksums, strict=True):
            intact = _core.xxh3_64(slot) == checksum
            read.append(status if status != Status.Ok else slot.tobytes() if intact else int(Status.Corrupt))
        return read


# -- the contract


@pytest.fixture(params=MEMBERS)
def caller(request: pytest.FixtureRequest) -> Caller:
    return Caller(MEMBERS[request.param]())


def test_what_is_kept_is_read_back_with_its_checksum(caller: Caller) -> None:
    assert caller.write(1, 2) == [Status.Ok] * 2
    kept = caller.tier.usage().capacity > 0
    assert caller.lookup(1, 9, 2) == [Status.Ok if kept and n != 9 else Status.NotFound for n in (1, 9, 2)]
    assert caller.read(2, 9) == [block(2).tobytes() if kept else Status.NotFound, Status.NotFound]


def test_what_was_deleted_is_gone_and_what_was_not_there_can_be_deleted(caller: Caller) -> None:
    caller.write(1)
    assert caller.delete(1, 2) == [Status.Ok] * 2
    assert caller.lookup(1) == [Status.NotFound]
    assert caller.tier.usage().used == 0


def test_every_ticket_is_polled_once_with_a_status_for_each_key(caller: Caller) -> None:
    tickets = [caller.tier.lookup([key(n) for n in range(count)]) for count in range(20)]
    found = [done for _ in range(10) for done in caller.tier.poll()]
    assert sorted(done.ticket for done in found) == tickets
    assert len(set(tickets)) == len(tickets)
    assert {done.ticket: len(done.statuses) for done in found} == dict(zip(tickets, range(20), strict=True))
    assert all(done.statuses.dtype == np.uint8 and done.checksums.dtype == np.uint64 for done in found)
    assert all(len(done.checksums) == len(done.statuses) for done in found)


@pytest.mark.parametrize("part", [{"group": 1}, {"sub": 1}, {"shard": 1}, {"namespace": b"m" * 32}])
def test_every_part_of_a_key_counts(caller: Caller, part: dict[str, Any]) -> None:
    caller.write(1)
    assert caller.result(caller.tier.lookup([key(1, **part)])) == [Status.NotFound]


def test_batches_of_unequal_lengths_are_misuse(caller: Caller) -> None:
    with pytest.raises(ValueError, match="2 keys with 1 slots"):
        caller.tier.read([key(1), key(2)], [block(1)])
    with pytest.raises(ValueError, match="1 keys with 1, 2 slots or checksums"):
        caller.tier.write([key(1)], [block(1)], np.zeros(2, np.uint64))


def test_a_closed_tier_answers_closed_to_open_and_later_batches(caller: Caller) -> None:
    caller.write(1)
    opened = caller.tier.lookup([key(1)])
    caller.tier.close()
    caller.tier.close()
    assert caller.result(opened) == [Status.Closed]
    assert caller.lookup(1) == [Status.Closed]
    assert caller.write(2) == [Status.Closed]


def test_a_tier_never_holds_more_than_its_capacity(caller: Caller) -> None:
    for first in range(0, 4096, 512):
        statuses = caller.write(*range(first, first + 512))
        capacity, used, blocks = caller.tier.usage()
        assert used <= capacity and used == blocks * SIZE
        assert set(statuses) <= {Status.Ok, Status.Rejected}
    assert Status.Rejected in statuses or capacity == 0


def test_a_slot_of_another_length_is_never_served() -> None:
    caller = Caller(Memory())
    caller.write(1)
    assert caller.result(caller.tier.read([key(1)], [np.zeros(SIZE + 1, np.uint8)])) == [Status.Corrupt]
    assert caller.lookup(1) == [Status.NotFound]


# -- harm


@pytest.mark.parametrize("harm", [Harm(tear=0.5), Harm(flip=0.5), Harm(tear=0.3, flip=0.3, refuse=0.3)])
@pytest.mark.parametrize("when", ["writing", "reading"])
def test_harm_is_done_and_no_wrong_byte_passes_a_caller_that_checks(harm: Harm, when: str) -> None:
    tier = Faulty(Memory(), harm, seed=1)
    caller = Caller(tier)
    numbers = range(200)
    if when == "reading":
        tier.harm = Harm()
    caller.write(*numbers)
    tier.harm = harm if when == "reading" else Harm()
    read = caller.read(*numbers)
    intact = [number for number in numbers if read[number] == block(number).tobytes()]
    assert 40 < len(intact) < 160
    assert {read[number] for number in numbers if number not in intact} <= {
        Status.Corrupt,
        Status.Rejected,
        Status.NotFound,
    }
    assert Status.Corrupt in read


def test_harm_never_touches_the_slots_of_a_write() -> None:
    blocks = [block(n) for n in range(50)]
    Faulty(Memory(), Harm(tear=1.0, flip=1.0)).write([key(n) for n in range(50)], blocks, sums(blocks))
    assert all((one == block(n)).all() for n, one in enumerate(blocks))


def test_what_is_refused_is_not_passed_on() -> None:
    inner = Memory()
    caller = Caller(Faulty(inner, Harm(refuse=0.5), seed=3))
    statuses = caller.write(*range(100))
    assert [number for number in range(100) if statuses[number] == Status.Ok] == [
        int.from_bytes(one.digest, "big") for one in inner.blocks
    ]
    assert 20 < statuses.count(Status.Rejected) < 80


def test_a_delayed_batch_is_returned_by_a_later_poll() -> None:
    tier = Faulty(Memory(), Harm(delay=4), seed=2)
    tickets = [tier.lookup([key(1)]) for _ in range(50)]
    polls = [[done.ticket for done in tier.poll()] for _ in range(5)]
    assert all(polls)
    assert sorted(ticket for poll in polls for ticket in poll) == tickets


def test_batches_come_back_in_another_order() -> None:
    tier = Faulty(Memory(), Harm(reorder=True), seed=2)
    tickets = [tier.lookup([key(1)]) for _ in range(20)]
    back = [done.ticket for done in tier.poll()]
    assert back != tickets and sorted(back) == tickets


def test_death_closes_what_is_under_way_and_what_comes_until_it_is_revived() -> None:
    tier = Faulty(Memory(), Harm(delay=5), seed=4)
    caller = Caller(tier)
    caller.write(1)
    waiting = [tier.lookup([key(1)]) for _ in range(10)]
    caller.polled |= {done.ticket: done for done in tier.poll()}
    early = set(caller.polled)
    tier.die()
    tier.revive()
    assert {status for ticket in waiting if ticket not in early for status in caller.result(ticket)} == {
        Status.Closed
    }
    tier.die()
    assert caller.read(1) == [Status.Closed]
    tier.revive()
    assert caller.read(1) == [block(1).tobytes()]


steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "read", "lookup", "delete"]), st.lists(st.integers(0, 5), max_size=4)
    ),
    max_size=12,
)


@given(steps, st.integers(0, 1000))
def test_the_same_seed_and_calls_do_the_same_harm(calls: list[tuple[str, list[int]]], seed: int) -> None:
    def run() -> list[object]:
        tier = Faulty(Memory(), Harm(tear=0.3, flip=0.3, refuse=0.2, delay=2, reorder=True), seed)
        caller = Caller(tier)
        return [getattr(caller, name)(*numbers) for name, numbers in calls] + [list(caller.polled)]

    assert run() == run()


# -- names


def test_a_tier_is_found_by_its_name_or_place() -> None:
    assert tier_class("noop") is Noop
    assert tier_class("faulty") is Faulty
    assert tier_class("memory_tier:Memory") is Memory


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nop", "unknown tier 'nop'; did you mean 'noop'?"),
        ("tape", "unknown tier 'tape'; known are noop, faulty, or module:Class"),
        ("nowhere:Tape", "tier 'nowhere:Tape' cannot be loaded: No module named 'nowhere'"),
        ("memory_tier:Tape", "tier 'memory_tier:Tape' cannot be loaded: .*no attribute 'Tape'"),
    ],
)
def test_an_unknown_tier_is_refused_in_words(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        tier_class(name)

"""The store's state machine through the socket: two sessions of one node, against a model of content.

What a match finds is what the blocks that are there make of it, and every byte is what was written. The model does not
predict what is evicted: it looks, through the mapped index. Time does not pass here; tests/test_served_deaths.py has
what comes of deadlines.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvarter import _core
from kvarter.node import RemoteStore
from kvarter.sequence import Sequence
from kvarter.transfers import Match, Reservation, Ticket
from machine_words import GROUPS, SHARDS, Place, extent, place
from served_words import PATIENCE, SECONDS, Client, ServedNode
from words import MIB, namespace

LONG = 600.0  # seconds: longer than any example takes
WHO = st.sampled_from("ab")

units = st.sampled_from([[0] * 2, [0] * 4, [0, 0, 1, 1], [0] * 6, [1, 1], [1, 1, 0], [1]])

_node: ServedNode
_examples = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global _node
    directory: Path = tmp_path_factory.mktemp("machine")
    _node = ServedNode(directory, dram=2 * MIB, max_blocks=40, hold_share=9.0, headroom=0.0)
    yield
    _node.close()


@dataclass
class Writer:
    """One shard of one reservation."""

    who: str
    reservation: Reservation
    shard: int
    handles: list[int]
    slots: list[Any]
    written: list[bytes] | None = field(default=None, repr=False)


@dataclass
class Entry:
    """A block being stored; `order`: of its reservation among all."""

    order: int
    place: Place
    shards: dict[int, bytes] = field(default_factory=dict, repr=False)
    failed: bool = False


@dataclass
class Reader:
    who: str
    ticket: Ticket
    expected: dict[tuple[int, int, int], bytes] = field(repr=False)


class ServedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        example = next(_examples)
        # Who holds nothing sees the bytes, so that a session that ends takes its process's claims with it.
        self.eye = Client(_node, f"eye {example}", *GROUPS, names={"weights": str(example)})
        self.namespace = namespace(*GROUPS, weights=str(example))
        self.names = {who: f"{who} {example}" for who in "ab"}
        self.stores = {who: self.session(who) for who in "ab"}
        self.content: dict[Place, Entry] = {}  # what was completed last
        self.entries: dict[int, Entry] = {}  # by handle
        self.order = itertools.count()
        self.writers: list[Writer] = []
        self.readers: list[Reader] = []
        self.holds: dict[tuple[str, str], tuple[Match, int]] = {}
        self.pins: dict[tuple[str, int], tuple[int, list[tuple[Sequence, int, int]]]] = {}
        self.parts = False  # whether anybody asked for some shards only: the rest may yet come
        self.withdrawn = 0  # times that blocks were taken away in spite of all holds

    # -- words

    def session(self, who: str) -> RemoteStore:
        return RemoteStore(_node.path, self.names[who], hold_seconds=LONG, timeout=SECONDS, patience=PATIENCE)

    def sequence(self, ids: list[int]) -> Sequence:
        return Sequence(self.namespace, [*(unit for unit in ids for _ in range(4)), 9])

    def there(self, sequence: Sequence, group: int, block: int) -> bool:
        index = self.eye.store.index
        return index.contains(sequence.chain(self.eye.store.open(self.namespace)), group, block)

    def boundary(self, sequence: Sequence) -> int:
        """By the words of DESIGN section 6, over what is there."""
        for p in range(sequence.units // 2 * 8, 0, -8):
            full = all(self.there(sequence, 0, block) for block in range(p // 4))
            if full and self.there(sequence, 1, p // 8 - 1):
                return p
        return 0

    def expected(self, match: Match) -> dict[tuple[int, int, int], bytes]:
        return {
            (group, block, shard): content
            for group, blocks in enumerate(match.blocks)
            for block in blocks
            for shard, content in self.content[place(match.sequence, group, block)].shards.items()
        }

    def busy(self) -> list[tuple[int, int, int]]:
        slots = [slot for writer in self.writers for slot in writer.slots]
        for reader in self.readers:
            slots += [slot for group in range(2) for slot in reader.ticket.slots(group).ravel()]
        return [extent(slot) for slot in slots]

    # -- storing

    @rule(who=WHO, ids=units, count=st.integers(1, 6), state=st.booleans(), shards=st.sampled_from(SHARDS))
    def reserve(self, who: str, ids: list[int], count: int, state: bool, shards: tuple[int, int]) -> None:
        self.ask(who, ids, count, state, shards)

    def ask(self, who: str, ids: list[int], count: int, state: bool, shards: tuple[int, int]) -> list[Writer]:
        sequence = self.sequence(ids)
        blocks = {0: range(min(count, len(ids)))}
        if state and shards != (1, 1):
            blocks[1] = range(len(ids) // 2)
        busy = self.busy()
        self.parts |= shards != (0, 0)
        reservation = self.stores[who].reserve(sequence, blocks, LONG, shards=shards)
        handles = iter(reservation.handles.tolist())
        by_shard: dict[int, Writer] = {}
        for group in reservation.groups():
            for block, row in zip(reservation.blocks(group), reservation.slots(group), strict=True):
                handle = next(handles)
                entry = Entry(next(self.order), place(sequence, group, int(block)))
                self.entries.setdefault(handle, entry)
                for shard, slot in enumerate(row, start=shards[0]):
                    writer = by_shard.setdefault(shard, Writer(who, reservation, shard, [], []))
                    writer.handles.append(handle)
                    writer.slots.append(slot)
        for writer in by_shard.values():
            for arena, start, end in map(extent, writer.slots):
                assert not any(arena == a and start < e and s < end for a, s, e in busy)
        self.writers += by_shard.values()
        return list(by_shard.values())

    def report(self, writer: Writer, ok: list[bool]) -> None:
        contents = writer.written or [b""] * len(ok)
        for handle, good, content in zip(writer.handles, ok, contents, strict=True):
            entry = self.entries[handle]
            entry.shards[writer.shard] = content
            entry.failed |= not good
            whole = len(entry.shards) == len(GROUPS[entry.place[0]].shard_bytes)
            before = self.content.get(entry.place)
            if whole and not entry.failed and (before is None or before.order < entry.order):
                self.content[entry.place] = entry
        sums = np.array([_core.xxh3_64(content) for content in contents], np.uint64)
        handles = np.array(writer.handles, np.uint64)
        self.stores[writer.who].index.complete(handles, writer.shard, np.array(ok, np.uint8), sums)
        self.writers.remove(writer)

    def give_up(self, writers: list[Writer]) -> None:
        for writer in writers:
            for handle in writer.handles:
                self.entries[handle].failed = True
            self.writers.remove(writer)

    @rule(who=WHO, ids=units)
    def put(self, who: str, ids: list[int]) -> None:
        """At one stroke: what was granted is there afterwards, unless it waits for another writer's parent."""
        sequence = self.sequence(ids)
        writers = self.ask(who, ids, len(ids), True, (0, 0))
        granted = {self.entries[handle].place for writer in writers for handle in writer.handles}
        for writer in writers:
            writer.written = [self.eye.fill(slot) for slot in writer.slots]
            self.report(writer, [True] * len(writer.handles))
        for block in range(len(ids)):
            mine = place(sequence, 0, block) in granted
            above = all(self.there(sequence, 0, b) for b in range(block))
            assert not mine or not above or self.there(sequence, 0, block)

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        writer.written = [self.eye.fill(slot) for slot in writer.slots]

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), failure=st.integers(0, 8))
    def commit(self, data: st.DataObject, failure: int) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        self.report(writer, [bool(writer.written) and i != failure - 4 for i in range(len(writer.handles))])

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(self.writers)).reservation
        self.give_up([writer for writer in self.writers if writer.reservation is reservation])
        reservation.abort()

    # -- loading

    @rule(who=WHO, ids=units, have=st.sampled_from([0, 0, 5]))
    def match_and_load(self, who: str, ids: list[int], have: int) -> None:
        sequence = self.sequence(ids)
        boundary = self.boundary(sequence)
        match = self.stores[who].match(sequence, have_tokens=have)
        assert match.tokens == (boundary if boundary > have else 0)
        if match:
            self.open(who, self.stores[who].load(match, LONG))

    def open(self, who: str, ticket: Ticket) -> None:
        assert ticket.status == _core.Status.Ok
        expected = self.expected(ticket.match)
        assert self.eye.read(ticket) == expected
        self.readers.append(Reader(who, ticket, expected))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        assert self.eye.read(reader.ticket) == reader.expected
        assert reader.ticket.finish(_core.Outcome.Loaded)
        self.readers.remove(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def find_corrupt(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.readers)).ticket
        group = data.draw(st.sampled_from([g for g, blocks in enumerate(ticket.match.blocks) if blocks]))
        block = data.draw(st.sampled_from(ticket.match.blocks[group]))
        ticket.drop_corrupt(group, [block])
        self.withdrawn += 1

    @rule(who=WHO, ids=units, name=st.sampled_from("xy"))
    def hold(self, who: str, ids: list[int], name: str) -> None:
        match = self.stores[who].match(self.sequence(ids), request=name)
        self.holds.pop((who, name), None)
        if match:
            self.holds[who, name] = match, self.withdrawn

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def load_held(self, data: st.DataObject) -> None:
        who, name = data.draw(st.sampled_from(sorted(self.holds)))
        match, before = self.holds.pop((who, name))
        ticket = self.stores[who].load(match, LONG, request=name)
        if before == self.withdrawn:
            self.open(who, ticket)
        else:
            ticket.finish(_core.Outcome.Unused)

    @rule(who=WHO, ids=units)
    def pin(self, who: str, ids: list[int]) -> None:
        sequence = self.sequence(ids)
        boundary = self.boundary(sequence)
        pin = self.stores[who].pin(sequence, LONG)
        assert (pin is not None) == (boundary > 0)
        if pin is not None:
            blocks = [(sequence, 0, block) for block in range(boundary // 4)]
            self.pins[who, pin] = self.withdrawn, [*blocks, (sequence, 1, boundary // 8 - 1)]

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        who, pin = data.draw(st.sampled_from(sorted(self.pins)))
        self.unpin_one(who, pin)

    def unpin_one(self, who: str, pin: int) -> None:
        del self.pins[who, pin]
        assert self.stores[who].unpin(pin)

    # -- endings

    @rule(who=WHO)
    def a_session_ends_and_comes_back(self, who: str) -> None:
        """Nobody maps the pool for it: with it goes what it held, and at once."""
        self.give_up([writer for writer in self.writers if writer.who == who])
        self.readers = [reader for reader in self.readers if reader.who != who]
        self.holds = {held: hold for held, hold in self.holds.items() if held[0] != who}
        for _, pin in [pinned for pinned in self.pins if pinned[0] == who]:  # pins would stay
            self.unpin_one(who, pin)
        owner = self.stores[who].owner
        self.stores[who].close()
        self.stores[who] = self.session(who)
        assert self.stores[who].owner != owner
        over = {
            "reserved": not self.writers and not self.parts,
            "leased": not (self.readers or self.holds),
            "pinned": not self.pins,
            "dead": not (self.readers or self.holds or self.pins),
        }
        _node.holds(quarantined=0, **{part: 0 for part, none in over.items() if none})

    @rule(who=WHO, really=st.sampled_from([False, False, True]))
    def invalidate(self, who: str, really: bool) -> None:
        if not really:
            return
        self.stores[who].invalidate(self.namespace)
        self.stores[who].open(self.namespace)  # so it was told
        self.withdrawn += 1
        assert not self.stores["ab".replace(who, "")].match(self.sequence([0] * 6))

    # -- what always holds

    @invariant()
    def the_account_adds_up(self) -> None:
        self.stores["a"].audit()

    @invariant()
    def pinned_blocks_stay(self) -> None:
        for before, blocks in self.pins.values():
            assert before != self.withdrawn or all(self.there(*block) for block in blocks)

    def teardown(self) -> None:
        for reader in self.readers:
            assert self.eye.read(reader.ticket) == reader.expected
            assert reader.ticket.finish(_core.Outcome.Loaded)
        for who, pin in list(self.pins):
            self.unpin_one(who, pin)
        self.stores["a"].invalidate(self.namespace)
        self.stores["a"].open(self.namespace)
        for store in (*self.stores.values(), self.eye):
            store.close()
        _node.holds(reserved=0, leased=0, pinned=0, quarantined=0, dead=0, resident=0)


ServedMachine.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestServed = ServedMachine.TestCase

"""The store against a model of content: whatever happens in whatever order, a match is exactly what was written.

The model knows the bytes of every resident block and who may still touch which slot. It does not predict what is
evicted: it looks what went, and holds the counters to it.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvarter import _core
from kvarter.sequence import Sequence
from kvarter.transfers import Match, Reservation, Ticket
from machine_words import GROUPS, SHARDS, Place, extent, place
from words import World

ENGINES = st.integers(1, 2)
HOLD_SECONDS, READ_SECONDS = 2.0, 5.0

# Few, so that they meet: shared beginnings, one too short for a state, one beside a boundary.
units = st.sampled_from([[0] * 2, [0] * 4, [0, 0, 1, 1], [0] * 6, [1, 1], [1, 1, 0], [1]])


@dataclass
class Writer:
    """One shard of one reservation."""

    reservation: Reservation
    owner: int
    shard: int
    epoch: int
    handles: list[int]
    slots: list[Any]
    fenced: bool = False
    written: list[bytes] | None = field(default=None, repr=False)


@dataclass
class Entry:
    """A block being stored: where, and what each shard has committed so far."""

    sequence: Sequence
    group: int
    block: int
    generation: int
    shards: dict[int, bytes] = field(default_factory=dict, repr=False)
    failed: bool = False

    @property
    def place(self) -> Place:
        return place(self.sequence, self.group, self.block)


@dataclass
class Reader:
    ticket: Ticket
    owner: int
    deadline: int
    expected: dict[tuple[int, int, int], bytes] = field(repr=False)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(*GROUPS, max_blocks=40, hold_seconds=HOLD_SECONDS, hold_share=9.0)
        self.store, self.index, self.clock = self.world.store, self.world.store.index, self.world.clock
        self.store.delegate_ticks()  # time is noticed, and fences are acknowledged, when a rule says so
        self.resident: dict[Place, Entry] = {}
        self.entries: dict[int, Entry] = {}  # by handle
        self.writers: list[Writer] = []
        self.readers: list[Reader] = []
        self.fences: list[tuple[int, int]] = []
        self.holds: dict[str, tuple[Match, int, Any]] = {}  # match, deadline, what was withdrawn before
        self.pins: dict[int, tuple[int, Any, list[Place]]] = {}
        self.generation = 0  # of the namespace: invalidations
        self.came = self.closing = 0  # blocks published; blocks of closed generations that may still be there

    # -- words

    def sequence(self, ids: list[int]) -> Sequence:
        return self.world.sequence([*(unit for unit in ids for _ in range(4)), 9])

    def withdrawn(self) -> tuple[int, ...]:
        """What holds and pins do not stand against."""
        stats = self.store.stats()
        return self.generation, stats["corrupt"], stats["orphaned"]

    def boundary(self, sequence: Sequence) -> int:
        """By the words of DESIGN section 6, over what the model has."""
        for p in range(sequence.units // 2 * 8, 0, -8):
            full = all(place(sequence, 0, block) in self.resident for block in range(p // 4))
            if full and place(sequence, 1, p // 8 - 1) in self.resident:
                return p
        return 0

    def expected(self, match: Match) -> dict[tuple[int, int, int], bytes]:
        return {
            (group, block, shard): content
            for group, blocks in enumerate(match.blocks)
            for block in blocks
            for shard, content in self.resident[place(match.sequence, group, block)].shards.items()
        }

    def finish_writing(self, writer: Writer) -> None:
        """Writes what is not written and commits it all."""
        writer.written = writer.written or [self.world.fill(slot) for slot in writer.slots]
        self.report(writer, [True] * len(writer.handles))

    def report(self, writer: Writer, ok: list[bool]) -> None:
        contents = writer.written or [b""] * len(ok)
        for handle, good, content in zip(writer.handles, ok, contents, strict=True):
            if handle in self.entries:
                self.entries[handle].shards[writer.shard] = content
                self.entries[handle].failed |= not good
        sums = np.array([_core.xxh3_64(content) for content in contents], np.uint64)
        self.index.complete(np.array(writer.handles, np.uint64), writer.shard, np.array(ok, np.uint8), sums)
        self.writers.remove(writer)

    def give_up(self, writers: list[Writer]) -> None:
        for writer in writers:
            for handle in writer.handles:
                if handle in self.entries:
                    self.entries[handle].failed = True
            self.writers.remove(writer)

    # -- storing

    @rule(
        ids=units,
        count=st.integers(1, 6),
        state=st.booleans(),
        shards=st.sampled_from(SHARDS),
        owner=ENGINES,
        seconds=st.sampled_from([1.0, 1.0, 20.0]),
    )
    def reserve(
        self, ids: list[int], count: int, state: bool, shards: tuple[int, int], owner: int, seconds: float
    ) -> None:
        self.ask(ids, count, state, shards, owner, seconds)

    def ask(
        self, ids: list[int], count: int, state: bool, shards: tuple[int, int], owner: int, seconds: float
    ) -> list[Writer]:
        self.clock.advance(1e-6)
        sequence = self.sequence(ids)
        blocks = {0: range(min(count, len(ids)))}
        if state and shards != (1, 1):
            blocks[1] = range(len(ids) // 2)
        reservation = self.store.reserve(sequence, blocks, seconds, owner=owner, shards=shards)
        handles = iter(reservation.handles.tolist())
        by_shard: dict[int, Writer] = {}
        for group in reservation.groups():
            for block, row in zip(reservation.blocks(group), reservation.slots(group), strict=True):
                handle = next(handles)
                self.entries.setdefault(handle, Entry(sequence, group, int(block), self.generation))
                for shard, slot in enumerate(row, start=shards[0]):
                    epoch = self.index.epoch(owner)
                    writer = by_shard.setdefault(shard, Writer(reservation, owner, shard, epoch, [], []))
                    writer.handles.append(handle)
                    writer.slots.append(slot)
        self.no_slot_is_used_twice([extent(slot) for w in by_shard.values() for slot in w.slots])
        self.writers += by_shard.values()
        return list(by_shard.values())

    def no_slot_is_used_twice(self, granted: list[tuple[int, int, int]]) -> None:
        busy = [extent(slot) for writer in self.writers if not writer.fenced for slot in writer.slots]
        read = [r.ticket.slots(group).ravel() for r in self.readers for group in range(len(GROUPS))]
        busy += [extent(slot) for slots in read for slot in slots]
        for arena, start, end in granted:
            assert not any(arena == a and start < e and s < end for a, s, e in busy)

    @rule(ids=units, owner=ENGINES)
    def put(self, ids: list[int], owner: int) -> None:
        """At one stroke: what was granted is there afterwards, unless it waits for another writer's parent."""
        writers = self.ask(ids, len(ids), True, (0, 0), owner, 20.0)
        granted = {handle: self.entries[handle] for writer in writers for handle in writer.handles}
        for writer in writers:
            self.finish_writing(writer)
        known = {*self.resident, *(entry.place for entry in granted.values())}
        for handle, entry in granted.items():
            above = range(entry.block) if entry.group == 0 else ()
            if all(place(entry.sequence, 0, block) in known for block in above):
                assert self.index.resident([handle]).all()

    @precondition(lambda self: any(not writer.fenced for writer in self.writers))
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """Also after the deadline: until its fence a writer does not know."""
        writer = data.draw(st.sampled_from([w for w in self.writers if not w.fenced]))
        writer.written = [self.world.fill(slot) for slot in writer.slots]

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

    @rule(ids=units, have=st.sampled_from([0, 0, 5]), owner=ENGINES)
    def match_and_load(self, ids: list[int], have: int, owner: int) -> None:
        self.clock.advance(1e-6)
        sequence = self.sequence(ids)
        match = self.store.match(sequence, have_tokens=have)
        boundary = self.boundary(sequence)
        assert match.tokens == (boundary if boundary > have else 0)
        if match:
            self.open(self.store.load(match, READ_SECONDS, owner=owner), owner)

    def open(self, ticket: Ticket, owner: int) -> None:
        assert ticket.status == _core.Status.Ok
        expected = self.expected(ticket.match)
        assert self.world.read(ticket) == expected
        deadline = self.clock.now() + int(READ_SECONDS * 1e9)
        self.readers.append(Reader(ticket, owner, deadline, expected))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        assert self.world.read(reader.ticket) == reader.expected
        assert reader.ticket.finish(_core.Outcome.Loaded)
        self.readers.remove(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def find_corrupt(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.readers)).ticket
        group = data.draw(st.sampled_from([g for g, blocks in enumerate(ticket.match.blocks) if blocks]))
        ticket.drop_corrupt(group, [data.draw(st.sampled_from(ticket.match.blocks[group]))])

    @rule(ids=units, name=st.sampled_from("ab"))
    def hold(self, ids: list[int], name: str) -> None:
        match = self.store.match(self.sequence(ids), request=name)
        self.holds.pop(name, None)
        if match:
            self.holds[name] = (match, self.clock.now() + int(HOLD_SECONDS * 1e9), self.withdrawn())

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), owner=ENGINES)
    def load_held(self, data: st.DataObject, owner: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.holds)))
        match, _, before = self.holds.pop(name)
        ticket = self.store.load(match, READ_SECONDS, request=name, owner=owner)
        if before == self.withdrawn():
            self.open(ticket, owner)
        else:
            ticket.finish(_core.Outcome.Unused)

    @rule(ids=units, seconds=st.sampled_from([1.0, 8.0]))
    def pin(self, ids: list[int], seconds: float) -> None:
        sequence = self.sequence(ids)
        boundary = self.boundary(sequence)
        pin = self.store.pin(sequence, seconds)
        assert (pin is not None) == (boundary > 0)
        if pin is not None:
            places = [place(sequence, 0, block) for block in range(boundary // 4)]
            places.append(place(sequence, 1, boundary // 8 - 1))
            self.pins[pin] = (self.clock.now() + int(seconds * 1e9), self.withdrawn(), places)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pin = data.draw(st.sampled_from(sorted(self.pins)))
        del self.pins[pin]
        assert self.store.unpin(pin)

    # -- endings

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.tick()

    @rule()
    def pass_time_unnoticed(self) -> None:
        self.clock.advance(1.0)

    def tick(self) -> None:
        self.fences += self.index.tick()
        now = self.clock.now()
        self.closing = 0  # one tick looks at all blocks of a store this small
        self.holds = {name: hold for name, hold in self.holds.items() if hold[1] > now}
        for pin in [pin for pin, (deadline, *_) in self.pins.items() if deadline <= now]:
            assert not self.store.unpin(pin)
            del self.pins[pin]
        self.end_readers([reader for reader in self.readers if reader.deadline <= now])

    def end_readers(self, readers: list[Reader]) -> None:
        for reader in readers:
            assert not reader.ticket.finish(_core.Outcome.Loaded)
            self.readers.remove(reader)

    @precondition(lambda self: self.fences)
    @rule()
    def acknowledge_a_fence(self) -> None:
        owner, epoch = self.fences.pop(0)
        for writer in self.writers:
            writer.fenced |= writer.owner == owner and writer.epoch <= epoch
        self.index.fenced(owner, epoch)

    @rule(owner=ENGINES)
    def an_engine_dies(self, owner: int) -> None:
        self.give_up([writer for writer in self.writers if writer.owner == owner])
        self.index.owner_dead(owner)
        self.end_readers([reader for reader in self.readers if reader.owner == owner])

    @precondition(lambda self: len(self.resident) > 4)
    @rule(really=st.sampled_from([False, False, True]))
    def invalidate(self, really: bool) -> None:
        if not really:
            return
        self.store.invalidate(self.world.namespace)
        self.closing += len(self.resident)
        self.generation += 1

    # -- what always holds

    @invariant()
    def what_goes_and_comes_is_counted(self) -> None:
        ns = self.store.open(self.world.namespace)
        self.resident = {
            where: e
            for where, e in self.resident.items()
            if self.index.contains(e.sequence.chain(ns), e.group, e.block)
        }
        for handle, entry in list(self.entries.items()):
            if not self.index.resident([handle]).all():
                continue
            del self.entries[handle]
            self.came += 1
            assert not entry.failed
            assert set(entry.shards) == set(range(len(GROUPS[entry.group].shard_bytes)))
            if entry.generation == self.generation:
                self.resident[entry.place] = entry
            else:
                self.closing += 1
        stats = self.store.stats()
        assert stats["stored"] == self.came
        assert len(self.resident) <= stats["resident_blocks"] <= len(self.resident) + self.closing

    @invariant()
    def the_account_adds_up(self) -> None:
        self.store.audit()

    @invariant()
    def pinned_blocks_stay(self) -> None:
        for _, before, places in self.pins.values():
            assert before != self.withdrawn() or set(places) <= set(self.resident)

    def teardown(self) -> None:
        for reader in self.readers:
            assert self.world.read(reader.ticket) == reader.expected
            assert reader.ticket.finish(_core.Outcome.Loaded)
        for pin in self.pins:
            assert self.store.unpin(pin)
        for owner in (1, 2):
            self.index.owner_dead(owner)
        self.store.close()
        self.clock.advance(20)  # what waits for a shard that nobody ever claimed
        self.index.tick()
        ledger = self.store.audit()
        idle = ("reserved", "leased", "pinned", "quarantined", "dead")
        assert [ledger[part] for part in idle] == [0] * len(idle)
        assert ledger["evictable"] == ledger["resident"]


StoreMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # says something about the machine that runs it
)
TestStore = StoreMachine.TestCase

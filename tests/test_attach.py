"""Leases that end by what becomes of the processes that map the pool: real workers, stopped, killed and forked."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarter import _core
from kvarter.errors import AttachError
from kvarter.geometry import CacheGroup, Full
from kvarter.keys import Namespace
from kvarter.node import Attachment, Invitation, embed
from kvarter.sequence import Sequence
from kvarter.store import Store

BLOCK = 64 << 10
GROUP = CacheGroup("full", Full(), 16, (BLOCK,))

# A worker: attaches, then gathers 16 source blocks into the slots that it reads from stdin, slowly.
WORKER = """
import ast, os, sys, time
import numpy as np
from kvarter import _core
from kvarter.node import Attachment, Invitation
path, delay, fork = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "fork"
engine = _core.FaultyCopyEngine(_core.HostCopyEngine(0), delay=delay)
attachment = Attachment(Invitation(path, "engine", _core.LAYOUT_VERSION), 0, engine)
if fork and os.fork() == 0:
    os.close(0), os.close(1)  # the socket to the node is what it keeps
    time.sleep(600)
source = np.full((16, 65536), 0xAB, np.uint8)
blocks = _core.Blocks([(source.ctypes.data, 65536, 65536, 1, 65536)], 16)
print("attached", os.getpid(), flush=True)
for line in sys.stdin:
    epoch, slots = ast.literal_eval(line)
    slots = np.array(slots, _core.SLOT_DTYPE)
    ids = np.arange(len(slots), dtype=np.int64)
    ticket = engine.submit("gather", blocks, ids, attachment.addresses(slots), None, epoch)
    print("submitted", flush=True)
    if delay < 1:
        engine.wait(ticket, 60.0)
        status, sums = engine.take(ticket)
        print("done", list(map(int, status)), list(map(int, sums)), flush=True)
"""


class World:
    """A store with one engine of one rank, and clocks that tests turn."""

    def __init__(self, directory: Path) -> None:
        self.clock = _core.SteppedClock()
        self.store = Store(4 << 20, clock=self.clock, populate=False)
        self.node, self.invitation = embed(self.store, "engine", str(directory))
        self.owner = self.node.open_engine("engine", 1)
        self.namespace = Namespace(
            model="m",
            weights="w",
            kv_dtype="f16",
            layout="l",
            groups=(GROUP,),
            unit_tokens=16,
            shard_grid=(("tp", 1),),
        )
        self.workers: list[subprocess.Popen[str]] = []

    def worker(self, delay: float = 0.0, fork: bool = False) -> "subprocess.Popen[str]":
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, self.node.path, str(delay), "fork" if fork else "no"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.workers.append(worker)
        self.says(worker, "attached")
        self.until(lambda: self.node.attached(self.owner) == 1)
        return worker

    def says(self, worker: "subprocess.Popen[str]", word: str) -> str:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        assert line.startswith(word), line
        return line

    def sequence(self, number: int, blocks: int) -> Sequence:
        return Sequence(self.namespace, [number] * (16 * blocks))

    def give(self, worker: "subprocess.Popen[str]", number: int, blocks: int) -> Any:
        """Reserves blocks for ten seconds of the clock and has the worker write them."""
        reservation = self.store.reserve(
            self.sequence(number, blocks), {0: range(blocks)}, 10.0, owner=self.owner
        )
        assert len(reservation) == blocks
        assert worker.stdin is not None
        slots = [tuple(map(int, slot)) for slot in reservation.slots(0)[:, 0]]
        worker.stdin.write(repr((self.store.index.epoch(self.owner), slots)) + "\n")
        worker.stdin.flush()
        self.says(worker, "submitted")
        return reservation

    def until(self, holds: Callable[[], bool]) -> None:
        """The node's thread acts on its own time: waits for what must come, far beyond what it takes."""
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.01)

    def ledger(self, name: str) -> int:
        return int(self.store.audit()[name])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    tmp_path.chmod(0o700)
    world = World(tmp_path)
    yield world
    for worker in world.workers:
        worker.kill()
        worker.communicate()
    world.node.close()
    world.store.audit()


def test_what_a_worker_wrote_is_committed_with_its_checksum_and_read_back(world: World) -> None:
    worker = world.worker()
    reservation = world.give(worker, 1, 4)
    _, _, rest = world.says(worker, "done").partition(" ")
    status, sums = rest.split("] [")
    assert status == "[0, 0, 0, 0"
    checksums = np.array([int(s) for s in sums.strip("]\n").split(",")], np.uint64)
    reservation.commit(0, np.ones(4, np.uint8), checksums)
    match = world.store.match(world.sequence(1, 4), limit=64)
    assert match.tokens == 64
    with world.store.load(match, 5.0) as ticket:
        mapping = _core.Mapping(world.store.exports())
        for slot in ticket.slots(0)[:, 0]:
            payload = mapping.payload(int(slot["arena"]))[int(slot["offset"]) :][:BLOCK]
            assert (payload == 0xAB).all()
            assert _core.xxh3_64(payload) == int(slot["checksum"])


def test_a_late_writer_that_acknowledges_its_fence_gives_the_slots_back(world: World) -> None:
    worker = world.worker(delay=1.5)
    world.give(worker, 1, 4)
    world.clock.advance(20)
    world.until(lambda: world.store.stats()["expired"] > 0)
    world.until(lambda: world.ledger("quarantined") == world.ledger("reserved") == 0)
    assert not world.store.match(world.sequence(1, 4))


def test_a_stopped_writer_keeps_its_slots_in_quarantine_until_it_is_killed(world: World) -> None:
    worker = world.worker(delay=600)
    world.give(worker, 1, 4)
    worker.send_signal(signal.SIGSTOP)
    world.clock.advance(20)
    world.until(lambda: world.ledger("quarantined") == 4 * BLOCK)
    for _ in range(5):  # more ticks of the node do not change that
        time.sleep(0.06)
        assert world.ledger("quarantined") == 4 * BLOCK
    worker.kill()
    world.until(lambda: world.ledger("quarantined") == 0)


def test_a_killed_writer_frees_its_reservations_although_a_forked_child_keeps_the_socket(
    world: World,
) -> None:
    worker = world.worker(delay=600, fork=True)
    world.give(worker, 1, 4)
    assert world.ledger("reserved") == 4 * BLOCK
    os.kill(worker.pid, signal.SIGKILL)
    world.until(lambda: world.ledger("reserved") == 0)
    assert world.store.stats()["owner_dead"] + world.store.stats()["no_parent"] == 4
    subprocess.run(["pkill", "-KILL", "-f", world.node.path], check=False)


def test_a_read_lease_of_a_dead_engine_ends(world: World) -> None:
    worker = world.worker()
    reservation = world.give(worker, 1, 2)
    world.says(worker, "done")
    reservation.commit(0, np.ones(2, np.uint8), np.zeros(2, np.uint64))
    world.store.load(world.store.match(world.sequence(1, 2), limit=32), 600.0, owner=world.owner)
    assert world.ledger("leased") == 2 * BLOCK
    worker.kill()
    world.until(lambda: world.ledger("leased") == 0)
    assert world.store.stats()["load_expired"] == 2


def test_a_reader_sees_after_its_copy_that_its_slot_became_someone_elses(world: World) -> None:
    worker = world.worker()
    reservation = world.give(worker, 1, 2)
    world.says(worker, "done")
    reservation.commit(0, np.ones(2, np.uint8), np.zeros(2, np.uint64))
    ticket = world.store.load(world.store.match(world.sequence(1, 2), limit=32), 5.0)
    slots = ticket.slots(0)[:, 0]
    attachment = Attachment(_second_rank(world), 0, _core.HostCopyEngine(0))
    assert attachment.unchanged(slots).tolist() == [True, True]
    world.clock.advance(10)
    world.until(lambda: world.ledger("leased") == 0)
    assert not ticket.finish(_core.Outcome.Loaded)
    world.store.invalidate(world.namespace)
    world.until(lambda: world.ledger("resident") == 0)
    assert attachment.unchanged(slots).tolist() == [False, False]


def _second_rank(world: World) -> Invitation:
    world.node.open_engine("another", 1)
    return world.invitation._replace(engine="another")


def test_a_worker_of_another_layout_is_refused_with_both_versions(world: World) -> None:
    invitation = world.invitation._replace(layout_version=99)
    with pytest.raises(AttachError, match=f"found 99, expected {_core.LAYOUT_VERSION}"):
        Attachment(invitation, 0, _core.HostCopyEngine(0))


def test_a_directory_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AttachError, match="no socket for workers at"):
        embed(Store(2 << 20, populate=False), "engine", str(tmp_path / "file"))

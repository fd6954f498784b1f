"""Engines that come, store, load, stop and die at one node, for as long as `--soak-seconds` says: every byte that is
read is the one that was written, the account agrees all the time, and the node's memory stays what it was."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from served_words import SECONDS, ServedNode, stop, until
from words import MIB

CLIENTS = 4

# An engine in one process. What it stores says whose it is in every word; what it reads is held to that.
CLIENT = """
import random, signal, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from kvarter import _core
from kvarter.node import Attachment, Invitation, RemoteStore
from kvarter.errors import AttachError
from kvarter.sequence import Sequence
from words import KIB, full, namespace

_, _, path, name, seed = sys.argv
BLOCK, MOST = 64 * KIB, 12
draw = random.Random(int(seed))
space = namespace(full(BLOCK))
store = RemoteStore(path, name, timeout=60.0, hold_seconds=1.0)
copier = _core.HostCopyEngine(0)
worker = Attachment(Invitation(path, name, _core.LAYOUT_VERSION), 0, copier, 60.0)
memory = np.zeros((MOST, BLOCK // 8), np.uint64)
blocks = _core.Blocks([(memory.ctypes.data, BLOCK, BLOCK, 1, BLOCK)], MOST)
over, counts, seen = [], dict.fromkeys(("loaded", "stored", "late", "lost", "missed", "sessions"), 0), 1
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
print("began", flush=True)

def copy(what, ids, slots, sums, epoch):
    ticket = copier.submit(what, blocks, ids, worker.addresses(slots), sums, epoch)
    copier.wait(ticket, 60.0)
    return copier.take(ticket)

while not over:
    if not store.connected or store.incarnation != seen:  # it was stopped for longer than its patience
        time.sleep(0.02)
        if store.connected:
            try:
                worker = Attachment(Invitation(path, name, _core.LAYOUT_VERSION), 0, copier, 60.0)
                seen = store.incarnation
                counts["sessions"] += 1
            except AttachError:
                pass
        continue
    number = int(draw.paretovariate(0.6)) % 60
    units = 1 + number % MOST
    sequence = Sequence(space, [number] * (4 * units) + [9])
    match = store.match(sequence, request=draw.choice((None, "r")), session=str(number))
    if match:
        ticket = store.load(match, draw.choice((0.2, 10.0)), request="r")
        ticket.wait(10.0)
        if ticket.status == _core.Status.Ok and ticket.pool == worker.pool:
            need = match.blocks[0]
            memory[:] = 0
            slots = ticket.slots(0)[:, 0]
            ids = np.arange(len(need), dtype=np.int64)
            status, _ = copy("scatter", ids, slots, slots["checksum"], ticket.epoch(store.owner))
            if draw.random() < 0.02:
                time.sleep(0.4)  # past the shorter deadline
            if ticket.finish(_core.Outcome.Loaded) or worker.unchanged(slots).all():
                expected = np.array([number << 32 | block for block in need], np.uint64)
                if status.any() or (memory[: len(need)] != expected[:, None]).any():
                    print("WRONG", number, list(need), status.tolist(), flush=True)
                    sys.exit(3)
                counts["loaded"] += len(need)
            else:
                counts["late"] += len(need)
        else:
            ticket.finish(_core.Outcome.Unused)
            counts["missed"] += 1
    reservation = store.reserve(sequence, {0: range(units)}, draw.choice((0.2, 10.0)))
    mine = reservation.blocks(0) if 0 in reservation.groups() else ()
    fate = draw.random()
    if len(mine) and reservation.pool == worker.pool and fate > 0.03:
        for at, block in enumerate(mine):
            memory[at] = number << 32 | int(block)
        ids = np.arange(len(mine), dtype=np.int64)
        status, sums = copy("gather", ids, reservation.slots(0)[:, 0], None, reservation.epoch(store.owner))
        if fate > 0.97:
            time.sleep(0.3)  # past the shorter deadline: it may be quarantined and fenced by now
        reservation.commit(0, (status == 0).astype(np.uint8), sums)
        counts["stored"] += len(mine)
    elif fate < 0.02:
        reservation.abort()
    else:
        counts["lost"] += len(mine)  # nobody reports them: the node sees it at their deadline
    if draw.random() < 0.002:
        store.invalidate(space)
    if draw.random() < 0.05:
        store.hint(str(number), ttl=0.5) if draw.random() < 0.5 else store.hint(str(number), ends=True)
print(counts, flush=True)
worker.close()
store.close()
"""


class Crew:
    """Engines at a node, one after the other in each place."""

    def __init__(self, node: ServedNode) -> None:
        self.node, self.seed = node, 0
        self.counts: Counter[str] = Counter()
        self.engines = [self.engine(place) for place in range(CLIENTS)]

    def engine(self, place: int) -> "subprocess.Popen[str]":
        self.seed += 1
        arguments = (str(Path(__file__).parent), self.node.path, f"engine {place}", str(self.seed))
        engine = subprocess.Popen(
            [sys.executable, "-c", CLIENT, *arguments], stdout=subprocess.PIPE, text=True
        )
        assert engine.stdout is not None and engine.stdout.readline() == "began\n"
        return engine

    def kill(self, place: int) -> None:
        assert self.engines[place].poll() is None, self.engines[place].communicate()
        self.engines[place].kill()
        self.engines[place].communicate()
        self.counts["killed"] += 1
        self.engines[place] = self.engine(place)

    def end(self) -> None:
        for engine in self.engines:
            engine.terminate()
        for engine in self.engines:
            out, _ = engine.communicate(timeout=SECONDS)
            assert engine.returncode == 0, out
            self.counts.update(eval(out.splitlines()[-1]))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServedNode]:
    disk = {"path": str(tmp_path / "disk"), "capacity": 64 * MIB, "segment_bytes": 4 * MIB}
    node = ServedNode(tmp_path, dram=8 * MIB, disk=disk)
    yield node
    node.close()


@pytest.mark.timeout(0)
def test_soak(node: ServedNode, pytestconfig: pytest.Config) -> None:
    seconds = pytestconfig.getoption("--soak-seconds")
    draw = random.Random(5)
    crew = Crew(node)
    begun = time.monotonic()
    resident: list[int] = []
    while (gone := time.monotonic() - begun) < seconds:
        time.sleep(0.25)
        assert node.ledger()["capacity"] > 0
        if gone > seconds / 3:
            resident.append(node.resident_kib())
        place = draw.randrange(CLIENTS)
        match draw.randrange(8):
            case 0 | 1:
                crew.kill(place)
            case 2:
                stop(crew.engines[place].pid)
                time.sleep(draw.choice((0.1, 0.5)))
                crew.engines[place].send_signal(signal.SIGCONT)
            case 3:
                stop(crew.engines[place].pid)
                crew.kill(place)
    crew.end()
    until(lambda: not node.engines(), "all have left")
    node.holds(reserved=0, leased=0, pinned=0, quarantined=0, dead=0)
    door = node.status()["door"]
    print(f"{dict(crew.counts)}; {door}; {min(resident)} to {max(resident)} KiB resident")
    assert crew.counts["loaded"] > 100 and crew.counts["stored"] > 100 and crew.counts["killed"] > 0
    assert door["violations"] == door["control_violations"] == 0
    late = len(resident) // 4 + 1
    grown = max(resident[-late:]) - max(resident[:late])
    assert grown < 8 << 10, f"{grown} KiB more: {resident}"

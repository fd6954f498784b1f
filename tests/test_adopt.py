"""A pool outlives its node: the next one goes on with what is in it, and there is never a second."""

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
from kvarter.geometry import CacheGroup, Full
from kvarter.keys import Namespace
from kvarter.node import Attachment, Invitation, RemoteStore
from kvarter.node.adopt import find, legacy_path, started
from kvarter.sequence import Sequence
from served_words import until

BLOCK = 1 << 16
NAMESPACE = Namespace(
    model="m",
    weights="w",
    kv_dtype="float16",
    layout="flat",
    groups=(CacheGroup("full", Full(), 16, (BLOCK,)),),
    unit_tokens=16,
    shard_grid=(("tp", 1),),
)
_GUARD = 60.0  # seconds: against hanging


class Serving:
    def __init__(self, path: str, *options: str) -> None:
        self.path = path
        command = [sys.executable, "-m", "kvarter.cli.main", "serve", "--socket", path, *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if "is served at" in line:
                return
        raise AssertionError("".join(self.said))

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        status = self.process.wait(_GUARD)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return status


class Client:
    """A session, and the one rank of its engine, in this process: bytes in and out."""

    def __init__(self, path: str, name: str = "e") -> None:
        self.path, self.name = path, name
        self.store = RemoteStore(path, name)
        self.copies = _core.HostCopyEngine(0)
        self.attach()

    def attach(self) -> None:
        """The session comes again by itself, and the rank after it."""
        until(lambda: self.store.connected)
        self.attachment = Attachment(Invitation(self.path, self.name, _core.LAYOUT_VERSION), 0, self.copies)

    def ready(self) -> bool:
        return self.store.connected and self.attachment.connected and self.store.attached() == 1

    def copy(self, direction: str, memory: Any, slots: Any, epoch: int, sums: Any = None) -> Any:
        blocks = _core.Blocks([(memory.ctypes.data, BLOCK, BLOCK, 1, BLOCK)], len(memory))
        ids = np.arange(len(memory), dtype=np.int64)
        addresses = self.attachment.addresses(slots[:, 0])
        ticket = self.copies.submit(direction, blocks, ids, addresses, sums, epoch)
        assert self.copies.wait(ticket, _GUARD)
        return self.copies.take(ticket)

    def put(self, sequence: Sequence, seed: int) -> int:
        content = np.random.default_rng(seed).integers(0, 256, (sequence.units, BLOCK), np.uint8)
        reserved = self.store.reserve(sequence, {0: range(sequence.units)}, 10.0)
        assert reserved.pool == self.attachment.pool
        mine = np.ascontiguousarray(content[reserved.blocks(0)])
        status, sums = self.copy("gather", mine, reserved.slots(0), reserved.epoch(0))
        reserved.commit(0, (status == _core.Status.Ok).astype(np.uint8), sums)
        return len(reserved)

    def get(self, sequence: Sequence, seed: int) -> int:
        """How many blocks came, each verified."""
        match = self.store.match(sequence, limit=sequence.num_tokens)
        if not match:
            return 0
        expected = np.random.default_rng(seed).integers(0, 256, (sequence.units, BLOCK), np.uint8)
        with self.store.load(match, 10.0) as ticket:
            assert ticket.status == _core.Status.Ok
            slots = ticket.slots(0)
            memory = np.zeros((len(slots), BLOCK), np.uint8)
            status, _ = self.copy("scatter", memory, slots, ticket.epoch(0), slots[:, 0]["checksum"].copy())
            assert (status == _core.Status.Ok).all()
            assert self.attachment.unchanged(slots).all()
            assert (memory == expected[: len(slots)]).all()
        return len(slots)

    def close(self) -> None:
        self.store.close()
        self.attachment.close()


def sequence(seed: int, blocks: int = 20) -> Sequence:
    return Sequence(NAMESPACE, range(seed * 100_000, seed * 100_000 + 16 * blocks))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "node" / "n.sock")


@pytest.fixture
def nodes(path: str) -> Iterator[Callable[..., Serving]]:
    running: list[Serving] = []

    def serve(*options: str) -> Serving:
        running.append(Serving(path, "--dram", "64MiB", *options))
        return running[-1]

    yield serve
    for each in running:
        if each.process.poll() is None:
            each.process.terminate()
            each.end()


def test_a_node_killed_and_started_again_serves_what_was_there(nodes: Any, path: str) -> None:
    first = nodes()
    client = Client(path)
    pool = client.attachment.pool
    for seed in range(8):
        assert client.put(sequence(seed), seed) == 20
    half = client.store.reserve(sequence(9), {0: range(20)}, 30.0)  # and the node dies before it is written
    assert len(half) == 20
    first.kill()
    assert not client.store.match(sequence(1))
    second = nodes()
    assert any("is taken over" in line for line in second.said)
    client.attach()
    until(client.ready)
    assert client.attachment.pool == pool
    for seed in range(8):
        assert client.get(sequence(seed), seed) == 20
    assert client.get(sequence(9), 9) == 0
    half.commit(
        0, np.ones(20, np.uint8), np.zeros(20, np.uint64)
    )  # of a node that is gone: it reaches nobody
    until(lambda: client.store.status()["pool"]["quarantined"] == 0)
    assert client.get(sequence(9), 9) == 0
    assert client.put(sequence(9), 9) == 20
    assert client.get(sequence(9), 9) == 20
    assert client.store.audit()["reserved"] == 0
    client.close()


def test_what_a_stopped_process_may_still_write_stays_in_quarantine_until_it_is_dead(
    nodes: Any, path: str
) -> None:
    first = nodes()
    child = subprocess.Popen(
        [sys.executable, "-c", _RESERVES, path, str(Path(__file__).parent), "600"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "reserved"
    os.kill(child.pid, signal.SIGSTOP)
    first.kill()
    nodes()
    client = Client(path, "other")
    until(client.ready)
    time.sleep(0.5)
    assert client.store.status()["pool"]["quarantined"] == 5 * BLOCK
    child.kill()
    child.wait()
    child.stdout.close()
    until(lambda: client.store.status()["pool"]["quarantined"] == 0)
    client.store.audit()
    client.close()


def test_a_client_that_does_not_answer_a_fence_is_killed_where_the_operator_says_so(
    nodes: Any, path: str
) -> None:
    nodes("--fence-timeout", "0.5")
    child = subprocess.Popen(
        [sys.executable, "-c", _RESERVES, path, str(Path(__file__).parent), "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "reserved"
    os.kill(child.pid, signal.SIGSTOP)
    assert child.wait(_GUARD) == -signal.SIGKILL
    child.stdout.close()
    client = Client(path, "other")
    until(lambda: client.store.status()["pool"]["quarantined"] == 0)
    assert client.store.audit()["reserved"] == 0
    client.close()


_RESERVES = """
import sys, time
sys.path.insert(0, sys.argv[2])
from test_adopt import Client, sequence
client = Client(sys.argv[1])
assert len(client.store.reserve(sequence(1), {0: range(5)}, float(sys.argv[3]))) == 5
print("reserved", flush=True)
time.sleep(600)
"""


def test_a_takeover_under_load_loses_nothing(nodes: Any, path: str, tmp_path: Path) -> None:
    disk = ("--disk", f"{tmp_path / 'log'}:1GiB")
    first = nodes(*disk)
    client = Client(path)
    stored = [seed for seed in range(12) if client.put(sequence(seed), seed) == 20]
    second = nodes(*disk, "--takeover")
    assert first.end() == 0
    assert any("is taken over" in line for line in second.said)
    client.attach()
    until(client.ready)
    for seed in stored:
        assert client.get(sequence(seed), seed) == 20
    assert client.put(sequence(50), 50) == 20
    client.store.audit()
    client.close()


def test_nobody_holds_the_pool_of_a_node_that_is_gone_with_its_clients(nodes: Any, path: str) -> None:
    first = nodes()
    client = Client(path)
    client.put(sequence(1), 1)
    until(lambda: legacy_path(path).exists())
    found = find(path)
    assert found is not None
    assert {first.process.pid} <= found.elders
    for fd in (*found.arenas, found.records):
        os.close(fd)
    client.close()
    first.kill()
    assert find(path) is None
    assert not any("is taken over" in line for line in nodes().said)


@pytest.mark.parametrize("content", [b"", b"{", b'{"boot": 1}', os.urandom(100)])
def test_a_legacy_that_is_none_is_not_followed(tmp_path: Path, content: bytes) -> None:
    path = str(tmp_path / "n.sock")
    legacy_path(path).write_bytes(content)
    assert find(path) is None


def test_a_process_is_known_by_its_start() -> None:
    assert started(os.getpid()) > 0
    assert started(2**22 + 1) == 0

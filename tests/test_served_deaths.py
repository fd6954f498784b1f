"""What becomes of what an engine held at a node, when some of its processes stop or die."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from served_words import SECONDS, Client, ServedNode, served, stop, until
from words import KIB, MIB, full

pytestmark = pytest.mark.timeout(120)
BLOCK, COUNT = 64 * KIB, 8

# An engine of one scheduler and `ranks` workers, each a process of its own or, with 0, all in one. It does the one
# thing that it is told and says how far it has come; then it waits to be killed.
ENGINE = """
import os, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from kvarter import _core
from kvarter.node import Attachment, Invitation, RemoteStore
from kvarter.sequence import Sequence
from words import KIB, full, namespace

BLOCK, COUNT = 64 * KIB, 8
_, _, path, name, what, deadline, delay = sys.argv
store = RemoteStore(path, name, patience=20.0, timeout=60.0)
copier = _core.FaultyCopyEngine(_core.HostCopyEngine(0), delay=float(delay))
worker = Attachment(Invitation(path, name, _core.LAYOUT_VERSION), 0, copier, 60.0)
sequence = Sequence(namespace(full(BLOCK)), [7] * (4 * COUNT) + [0])
memory = np.full((COUNT, BLOCK), 0xAB, np.uint8)
blocks = _core.Blocks([(memory.ctypes.data, BLOCK, BLOCK, 1, BLOCK)], COUNT)
ids = np.arange(COUNT, dtype=np.int64)
if what in ("reservation", "gather"):
    reservation = store.reserve(sequence, {0: range(COUNT)}, float(deadline))
    assert len(reservation) == COUNT
    slots = reservation.slots(0)[:, 0]
    if what == "gather":
        copy = copier.submit("gather", blocks, ids, worker.addresses(slots), None, reservation.epoch(store.owner))
else:
    match = store.match(sequence, request=None if what == "pin" else "r")
    assert match.tokens == 4 * COUNT
    if what == "scatter":
        ticket = store.load(match, float(deadline), request="r")
        slots = ticket.slots(0)[:, 0]
        epoch = ticket.epoch(store.owner)
        copy = copier.submit("scatter", blocks, ids, worker.addresses(slots), slots["checksum"], epoch)
    elif what == "pin":
        assert store.pin(sequence, float(deadline)) is not None
print("began", flush=True)
sys.stdin.readline()
if what == "gather":
    copier.wait(copy, 60.0)
    status, sums = copier.take(copy)
    reservation.commit(0, (status == 0).astype(np.uint8), sums)
    print([int(s) for s in status], flush=True)
sys.stdin.readline()
"""

# A worker alone: attaches to an engine that another process opened, and stays.
WORKER = """
import sys
from kvarter import _core
from kvarter.node import Attachment, Invitation
invitation = Invitation(sys.argv[1], sys.argv[2], _core.LAYOUT_VERSION)
attachment = Attachment(invitation, int(sys.argv[3]), _core.HostCopyEngine(0), 60.0)
print("attached", flush=True)
sys.stdin.readline()
"""


class Host:
    def __init__(self, node: ServedNode) -> None:
        self.node = node
        self.bystander = Client(node, "bystander", full(BLOCK))
        self._processes: list[subprocess.Popen[str]] = []

    def process(self, *command: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        return process

    def engine(
        self,
        what: str,
        *,
        name: str = "engine",
        deadline: float = 600.0,
        delay: float = 0.0,
        within: Any = (),
    ) -> "subprocess.Popen[str]":
        """One that is in the middle of `what`. within: the command that runs it."""
        here = str(Path(__file__).parent)
        arguments = (here, self.node.path, name, what, str(deadline), str(delay))
        process = self.process(*within, sys.executable, "-c", ENGINE, *arguments)
        says(process, "began")
        return process

    def worker(self, name: str, rank: int) -> "subprocess.Popen[str]":
        process = self.process(sys.executable, "-c", WORKER, self.node.path, name, str(rank))
        says(process, "attached")
        return process

    def stored(self) -> dict[tuple[int, int, int], bytes]:
        """What the engine would read: the bystander has stored it."""
        return self.bystander.put(self.bystander.tokens(7, COUNT), {0: range(COUNT)})

    def whole(self, expected: dict[tuple[int, int, int], bytes]) -> None:
        match = self.bystander.store.match(self.bystander.tokens(7, COUNT))
        assert self.bystander.get(match) == expected

    def stays(self, **parts: int) -> None:
        """Many ticks of the node do not change that."""
        for _ in range(5):
            ledger = self.node.ledger()
            assert {part: ledger[part] for part in parts} == parts
            time.sleep(0.06)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self.node.holds(reserved=0, quarantined=0, leased=0, dead=0)
        self.bystander.close()


def says(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == word + "\n", line


def tell(process: "subprocess.Popen[str]") -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with served(tmp_path, hold_seconds=600.0) as node:
        host = Host(node)
        yield host
        host.close()


@pytest.mark.parametrize("what", ["reservation", "gather"])
def test_an_engine_killed_while_it_writes_frees_its_slots_and_nothing_of_it_is_seen(
    host: Host, what: str
) -> None:
    engine = host.engine(what, delay=600.0)
    assert host.node.ledger()["reserved"] == COUNT * BLOCK
    host.stays(reserved=COUNT * BLOCK)
    engine.kill()
    host.node.holds(reserved=0, quarantined=0, free=4 * MIB)
    assert not host.bystander.store.match(host.bystander.tokens(7, COUNT))
    host.whole(host.stored())


@pytest.mark.parametrize("what", ["match", "scatter"])
def test_an_engine_killed_while_it_reads_gives_its_leases_and_holds_back(host: Host, what: str) -> None:
    written = host.stored()
    engine = host.engine(what, delay=600.0)
    assert host.node.ledger()["leased"] > 0
    engine.kill()
    host.node.holds(leased=0, resident=COUNT * BLOCK, pinned=0)
    host.whole(written)


def test_a_pin_is_a_users_wish_and_outlives_its_engine_until_its_time_is_over(host: Host) -> None:
    host.stored()
    engine = host.engine("pin", deadline=4.0)
    engine.kill()
    until(lambda: "engine" not in host.node.engines(), "forgotten")
    assert host.node.ledger()["pinned"] == COUNT * BLOCK
    host.node.holds(pinned=0, resident=COUNT * BLOCK)


def test_what_an_engine_was_writing_is_free_only_when_its_last_mapper_is_gone(host: Host) -> None:
    engine = host.process(sys.executable, "-c", SCHEDULER, str(Path(__file__).parent), host.node.path)
    says(engine, "open")
    workers = [host.worker("engine", rank) for rank in range(2)]
    tell(engine)
    assert host.node.ledger()["reserved"] == COUNT * BLOCK
    engine.kill()
    workers[0].kill()
    until(lambda: len(host.node.engines()["engine"]["pids"]) == 1, "one mapper left")
    host.stays(reserved=COUNT * BLOCK)
    workers[1].kill()
    host.node.holds(reserved=0, quarantined=0)
    until(lambda: "engine" not in host.node.engines(), "forgotten")


# A scheduler whose workers are other processes; reserves when it is told.
SCHEDULER = """
import sys
sys.path.insert(0, sys.argv[1])
from kvarter.node import RemoteStore
from kvarter.sequence import Sequence
from words import KIB, full, namespace
store = RemoteStore(sys.argv[2], "engine", 2, patience=20.0, timeout=60.0)
print("open", flush=True)
for line in sys.stdin:
    reservation = store.reserve(Sequence(namespace(full(64 * KIB)), [7] * 33), {0: range(8)}, 600.0)
    print(len(reservation), store.attached(), flush=True)
"""


def test_a_worker_alone_that_dies_is_no_longer_attached_and_its_place_is_free(host: Host) -> None:
    engine = host.process(sys.executable, "-c", SCHEDULER, str(Path(__file__).parent), host.node.path)
    says(engine, "open")
    workers = [host.worker("engine", rank) for rank in range(2)]
    assert tell(engine) == "8 2\n"
    workers[0].kill()
    until(lambda: host.node.engines()["engine"]["attached"] == 2, "the session and one rank")
    host.stays(reserved=COUNT * BLOCK)  # the other worker may still be writing
    host.worker("engine", 0)
    assert tell(engine) == "0 2\n"  # on its way already


def test_a_writer_stopped_past_its_deadline_is_quarantined_and_fenced_when_it_goes_on(host: Host) -> None:
    engine = host.engine("gather", deadline=1.0, delay=2.0)
    stop(engine.pid)
    host.node.holds(quarantined=COUNT * BLOCK, reserved=0)
    host.stays(quarantined=COUNT * BLOCK)
    written = host.stored()  # by another, elsewhere: what is quarantined is nobody's
    assert len(written) == COUNT
    engine.send_signal(signal.SIGCONT)
    host.node.holds(quarantined=0)
    tell(engine)  # its late commit means nothing
    host.whole(written)
    again = host.bystander.put(host.bystander.tokens(8, COUNT), {0: range(COUNT)})
    match = host.bystander.store.match(host.bystander.tokens(8, COUNT))
    time.sleep(0.2)
    assert host.bystander.get(match) == again
    host.whole(written)


def test_a_stopped_writer_that_is_killed_frees_its_quarantine(host: Host) -> None:
    engine = host.engine("gather", deadline=1.0, delay=600.0)
    stop(engine.pid)
    host.node.holds(quarantined=COUNT * BLOCK)
    engine.kill()
    host.node.holds(quarantined=0, free=4 * MIB)


def test_a_reader_stopped_past_its_deadline_leases_nothing_any_more(host: Host) -> None:
    written = host.stored()
    engine = host.engine("scatter", deadline=1.0, delay=600.0)
    stop(engine.pid)
    host.node.holds(leased=0)
    for number in range(20, 60):  # its slots are others' by now, and everybody reads their own
        mine = host.bystander.put(host.bystander.tokens(number, COUNT), {0: range(COUNT)})
        assert host.bystander.get(host.bystander.store.match(host.bystander.tokens(number, COUNT))) == mine
    assert written


# -- who is who


# Runs a command where it sees no process of ours, and nobody outside of it sees its own by the same number.
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def test_a_node_sees_the_death_of_an_engine_in_another_pid_namespace(host: Host) -> None:
    outer = host.engine("gather", delay=600.0, within=APART)
    assert host.node.ledger()["reserved"] == COUNT * BLOCK
    assert host.node.engines()["engine"]["attached"] == 2
    outer.kill()  # and with it, by --kill-child, the engine
    host.node.holds(reserved=0, quarantined=0)
    until(lambda: "engine" not in host.node.engines(), "forgotten")


def test_an_engine_sees_the_death_of_a_node_in_another_pid_namespace(tmp_path: Path) -> None:
    node = ServedNode(tmp_path, within=APART)
    client = Client(node, "a", full(BLOCK))
    written = client.put(client.tokens(1, 4), {0: range(4)})
    assert client.get(client.store.match(client.tokens(1, 4))) == written
    node.kill()
    until(lambda: not client.store.connected, "noticed")
    assert not client.store.match(client.tokens(1, 4))
    client.close()


def test_a_process_that_the_node_sees_as_process_0_comes_back_for_its_own_rank(tmp_path: Path) -> None:
    with served(tmp_path, within=APART) as node:
        client = Client(node, "a", full(BLOCK))
        assert node.engines()["a"]["pids"] == [0, 0]
        client.attachment.close()
        client.attach()
        written = client.put(client.tokens(1, 4), {0: range(4)})
        assert client.get(client.store.match(client.tokens(1, 4))) == written
        client.close()


def test_a_mapper_that_the_node_sees_as_process_0_may_not_be_mistaken_for_another(host: Host) -> None:
    engine = host.process(sys.executable, "-c", SCHEDULER, str(Path(__file__).parent), host.node.path)
    says(engine, "open")
    first = host.process(*APART, sys.executable, "-c", WORKER, host.node.path, "engine", "0")
    says(first, "attached")
    second = host.process(*APART, sys.executable, "-c", REFUSED, host.node.path, "engine", "0")
    assert second.stdout is not None
    assert "which is alive" in second.stdout.readline()
    first.kill()
    until(lambda: host.node.engines()["engine"]["attached"] == 1, "the session alone")
    host.worker("engine", 0)


REFUSED = """
import sys
from kvarter import _core
from kvarter.errors import AttachError
from kvarter.node import Attachment, Invitation
path, name, rank = sys.argv[1:]
try:
    Attachment(Invitation(path, name, _core.LAYOUT_VERSION), int(rank), _core.HostCopyEngine(0), 60.0)
    print("let in", flush=True)
except AttachError as error:
    print(error, flush=True)
"""

# Says to both sockets what an engine says, and what comes back.
OTHER_USER = """
import socket, struct, sys
path = sys.argv[1]
for rank in (0, 0x80000001):
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.connect(path)
    door.send(struct.pack("<5I108s", 0x5452564B, int(sys.argv[2]), 1, rank, 1, b"e"))
    answer = door.recv(4096)
    length = struct.unpack_from("<I", answer, 12)[0]
    print(answer[24 : 24 + length].decode())
control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
control.connect(path + ".control")
print(control.recv(4096).decode(errors="replace"))
"""


def test_another_users_process_is_refused_at_both_sockets_with_both_uids(host: Host) -> None:
    """It may even pass the directory: what counts is who it is."""
    other = ["setpriv", "--reuid", "12345", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"]
    process = host.process(*other, sys.executable, "-c", OTHER_USER, host.node.path, "2")
    out, _ = process.communicate(timeout=SECONDS)
    assert out.count(f"uid found 12345, expected {os.geteuid()}") == 3, out
    door = host.node.status()["door"]
    assert (door["refused"], door["control_refused"]) == (2, 1)


def test_a_node_of_another_user_is_not_trusted_with_the_engines_blocks(host: Host) -> None:
    """The engine looks at the node, too."""
    as_other = [
        "setpriv",
        "--reuid",
        "12345",
        "--inh-caps",
        "+dac_override",
        "--ambient-caps",
        "+dac_override",
    ]
    process = host.process(*as_other, sys.executable, "-c", REFUSED, host.node.path, "bystander", "0")
    out, _ = process.communicate(timeout=SECONDS)
    assert f"uid found {os.geteuid()}, expected 12345" in out

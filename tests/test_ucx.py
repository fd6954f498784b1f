"""The transfer engine between processes: over TCP in this host and between network namespaces, and by shared memory.

OTHER_UCX names a directory with another version of libucx than the installed one (`pip install --target DIR --no-deps
libucx-cu12==1.22.0`); without it the tests that need it are skipped.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash

from kvarter import Status
from kvarter.peers.ucx_library import load
from served_words import stop, until
from street_words import Street
from ucx_words import BLOCK, Client, Owner, Side, cut, late, midway, pattern, played, whole

ucx = load().module


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.close()


@pytest.fixture(scope="module")
def street() -> Iterator[Street]:
    street = Street(2)
    yield street
    street.close()


@pytest.fixture(scope="module")
def other_ucx() -> str:
    directory = os.environ.get("OTHER_UCX", "")
    if not directory:
        pytest.skip("OTHER_UCX names no other UCX")
    return directory


def pair() -> tuple[Side, Side]:
    """Two engines of this process, connected."""
    one, other = Side(), Side()
    ones, others = one.engine.invite(), other.engine.invite()
    one.peer, other.peer = one.engine.connect(others, ones), other.engine.connect(ones, others)
    return one, other


def close(*sides: Side) -> None:
    for side in sides:
        side.engine.close()


def between(street: Street, scene: str, *words: str, ucx: str = "") -> None:
    """The client on host 1, the owner on host 2."""
    played(scene, "eth0", *words, within=street.within(1), owner_within=street.within(2), ucx=ucx)


# --- bytes


def test_blocks_arrive_whole_from_another_process(client: Client) -> None:
    whole(client)


def test_blocks_arrive_whole_by_shared_memory() -> None:
    client = Client(transports="posix")
    whole(client)
    client.close()


def test_blocks_arrive_whole_from_another_host(street: Street) -> None:
    between(street, "whole")


def test_blocks_arrive_whole_over_another_version_of_ucx(street: Street, other_ucx: str) -> None:
    between(street, "whole", ucx=other_ucx)


def test_small_blocks_of_odd_sizes_arrive_whole() -> None:
    one, other = pair()
    sizes = np.random.default_rng(1).integers(1, 9000, 3000)
    sources = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    targets = one.memory.nbytes - np.cumsum(sizes)
    one.memory[:] = np.random.default_rng(2).integers(0, 256, one.memory.nbytes, np.uint8)
    ends = zip(sources, sources + sizes, strict=True)
    sums = np.array([xxhash.xxh3_64_intdigest(one.memory[a:b]) for a, b in ends], np.uint64)
    generation = other.engine.expect(other.peer, 1, targets, sizes)
    sent = one.engine.send(one.peer, 1, generation, sources, sizes, np.zeros(sizes.size, np.uint8), sums)
    assert sent == Status.Ok
    received = other.wait(ucx.Received)
    assert set(received.statuses.tolist()) == {Status.Ok}
    assert np.array_equal(received.checksums, sums)
    for source, target, size in zip(sources, targets, sizes, strict=True):
        assert np.array_equal(one.memory[source : source + size], other.memory[target : target + size])
    close(one, other)


# --- late bytes


def test_a_late_byte_enters_no_slot(client: Client) -> None:
    late(client)


def test_a_late_byte_from_another_host_enters_no_slot(street: Street) -> None:
    between(street, "late")


def test_a_late_byte_by_another_version_of_ucx_enters_no_slot(street: Street, other_ucx: str) -> None:
    between(street, "late", ucx=other_ucx)


# --- liars


@pytest.mark.parametrize("wrong", [{"generation": 1}, {"request": 77}])
def test_an_answer_that_nobody_asked_for_is_dropped(client: Client, wrong: dict[str, int]) -> None:
    client.memory[:] = 0xEE
    request = client.ask(range(4), range(4), **wrong)
    client.wait(ucx.Message)
    assert (
        client.counter("dropped_unasked") >= 5
    )  # what it begins with, and a message at least for each block
    assert (client.memory == 0xEE).all()
    assert client.engine.forget(request)


def test_bytes_that_differ_from_their_checksum_are_corrupt(client: Client) -> None:
    client.ask(range(4), range(4), lie=1)
    assert client.wait(ucx.Received).statuses.tolist() == [Status.Corrupt] * 4


def test_blocks_of_another_length_are_corrupt_and_not_written(client: Client) -> None:
    client.memory[:] = 0xEE
    client.ask(range(4), range(4), length=BLOCK // 2)
    assert client.wait(ucx.Received).statuses.tolist() == [Status.Corrupt] * 4
    assert (client.memory == 0xEE).all()


def test_a_stranger_with_our_address_and_no_invite_is_not_heard(client: Client) -> None:
    stranger = Side()
    invite = bytearray(client.engine.invite())
    invite[8] ^= 1  # the secret
    peer = stranger.engine.connect(bytes(invite), stranger.engine.invite())
    assert stranger.engine.message(peer, b"hello") == Status.Ok
    until(lambda: client.counter("dropped_stranger") == 1)
    whole(client)
    stranger.engine.close()


def test_one_peer_cannot_answer_for_another(client: Client) -> None:
    liar = Side()
    ours, theirs = client.engine.invite(), liar.engine.invite()
    peer = liar.engine.connect(ours, theirs)
    client.engine.connect(theirs, ours)
    slots = np.zeros(1, np.int64)
    generation = client.engine.expect(client.peer, 1000, slots, slots + BLOCK)
    statuses, checksums = np.zeros(1, np.uint8), np.zeros(1, np.uint64)
    client.memory[:] = 0xEE
    assert liar.engine.send(peer, 1000, generation, slots, slots + BLOCK, statuses, checksums) == Status.Ok
    until(lambda: client.counter("dropped_unasked") >= 5)
    assert (client.memory == 0xEE).all()
    liar.engine.close()


def test_random_bytes_at_our_port_disturb_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = Client(ports=(port, port))
    random = np.random.default_rng(1)
    for size in (1, 8, 100, 5000):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(random.bytes(size))
    whole(client)
    client.close()


def test_a_peer_whose_messages_nobody_takes_is_closed() -> None:
    one, other = pair()

    def flooded() -> bool:
        one.engine.message(one.peer, bytes(100_000))
        return other.counter("dropped_flood") > 0

    until(flooded)
    assert other.wait(ucx.Closed).peer == other.peer
    close(one, other)


# --- death


def test_a_killed_owner_is_noticed_and_its_requests_end(client: Client) -> None:
    request = midway(client)
    os.kill(client.owner.pid, signal.SIGKILL)
    received = client.wait(ucx.Received)
    assert received.request == request
    assert set(received.statuses.tolist()) <= {Status.Ok, Status.Closed}
    for slot in np.flatnonzero(received.statuses == Status.Ok):
        assert np.array_equal(client.blocks[slot], pattern(int(slot)))
    assert client.wait(ucx.Lost).peer == client.peer
    assert client.wait(ucx.Closed).peer == client.peer
    assert client.engine.message(client.peer, b"") == Status.Closed


def test_an_owner_that_died_is_replaced_by_the_next(client: Client) -> None:
    os.kill(client.owner.pid, signal.SIGKILL)
    client.wait(ucx.Closed)
    client.owner.close()
    client.owner = Owner("lo", "tcp")
    client.meet()
    whole(client)


def test_nobody_can_be_reached_where_somebody_was(client: Client) -> None:
    gone = client.owner.invite
    client.owner.close()
    client.wait(ucx.Closed)
    try:
        peer = client.engine.connect(gone, client.engine.invite())
    except ConnectionError:
        return  # UCX said so at once
    client.engine.message(peer, b"hello")
    assert client.wait(ucx.Lost).peer == peer


def test_a_stopped_owner_is_closed_by_us(client: Client) -> None:
    cut(client)


def test_an_owner_whose_cable_is_pulled_is_closed_by_us(street: Street) -> None:
    try:
        between(street, "cut", "ip", "-n", street.space("s"), "link", "set", "port2", "down")
    finally:
        street.mend(2)


def test_a_stopped_owner_holds_nothing_up_for_another(client: Client) -> None:
    midway(client)
    stopped, client.owner = client.owner, Owner("lo", "tcp")
    client.engine.forget(client.requests)
    client.meet()
    whole(client)
    stopped.close()


# --- one process


def test_an_engine_that_is_closed_leaves_no_descriptor_and_no_thread() -> None:
    def descriptors() -> list[str]:
        return sorted(path.name for path in Path("/proc/self/fd").iterdir())

    Side().engine.close()  # what UCX keeps for the process
    before = descriptors()
    side = Side()
    side.engine.close()
    side.engine.close()
    del side
    assert descriptors() == before


def test_closing_an_engine_ends_its_requests_and_the_calls_after_it(client: Client) -> None:
    stop(client.owner.pid)
    client.ask([0], [0])
    client.engine.close()
    assert client.wait(ucx.Received).statuses.tolist() == [Status.Closed]
    assert client.engine.message(client.peer, b"") == Status.Closed
    with pytest.raises(RuntimeError, match="closed"):
        client.engine.expect(client.peer, 9, np.zeros(1, np.int64), np.ones(1, np.int64))


def program(text: str, **environment: str) -> str:
    path = os.pathsep.join([*sys.path, str(Path(__file__).parents[1] / "python")])
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kvarter_without_ucx_works_and_says_what_is_missing() -> None:
    said = program(
        """if True:
        import sys
        sys.modules["libucx"] = None
        import kvarter
        from kvarter.peers import ucx_library
        ucx_library.SONAME = "libucp.so.none"
        kvarter.Store(2 << 20)
        try:
            ucx_library.load()
        except ImportError as error:
            print(error)
        """
    )
    assert "kvarter[ucx]" in said
    assert "libucp.so.none" in said


def test_importing_kvarter_loads_no_ucx() -> None:
    assert program("import kvarter; print('libucp' in open('/proc/self/maps').read())") == "False\n"


def test_there_is_one_ucx_in_the_process_and_hangup_still_ends_it() -> None:
    said = program(
        """if True:
        from kvarter.peers.ucx_library import load
        first, second = load(), load()
        maps = {line.split()[-1] for line in open("/proc/self/maps") if "libucp" in line}
        caught = next(line for line in open("/proc/self/status") if line.startswith("SigCgt")).split()[1]
        print(first.path in map(type(first.path), maps), len(maps), second.source, int(caught, 16) & 1)
        """
    )
    assert said == "True 1 process 0\n"


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_ucx_is_shared_with_whoever_loads_it_too(ours_first: bool) -> None:
    """libucx.load_library is how ucxx and RAPIDS load it."""
    ours, theirs = (
        "from kvarter.peers.ucx_library import load; load()",
        "import libucx; libucx.load_library()",
    )
    first, second = (ours, theirs) if ours_first else (theirs, ours)
    said = program(
        f"""if True:
        {first}
        {second}
        from ucx_words import Side
        Side().engine.close()
        print(len({{line.split()[-1] for line in open("/proc/self/maps") if "libucp" in line}}))
        """
    )
    assert said.endswith("1\n")

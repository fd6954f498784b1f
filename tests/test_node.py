"""Attaching to the pool, with real processes: who may map it, and when a mapper counts as gone."""

import array
import contextlib
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarter import _core

MiB = 1 << 20
# Forking beside the node's threads is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

LAYOUT = 7
MAGIC, PROTOCOL = 0x5452564B, 1

# A process that runs the Python lines it is sent and answers with what the last one evaluates to.
CHILD = """
import json, os, sys
from kvarter import _core
names = {"_core": _core, "os": os}
for line in sys.stdin:
    kind, text = json.loads(line)
    try:
        answer = [True, eval(text, names) if kind == "eval" else exec(text, names)]
    except Exception as error:
        answer = [False, f"{type(error).__name__}: {error}"]
    print(json.dumps(answer), flush=True)
"""


class Mapper:
    """Another process, told what to do line by line."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def _ask(self, kind: str, text: str) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([kind, text]) + "\n")
        self.process.stdin.flush()
        ok, answer = json.loads(self.process.stdout.readline())
        if not ok:
            raise RuntimeError(answer)
        return answer

    def do(self, text: str) -> None:
        self._ask("exec", text)

    def eval(self, text: str) -> Any:
        return self._ask("eval", text)

    def attach(self, path: str, engine: str = "e", rank: int = 0, handler: str = "None") -> None:
        self.do(
            f"handler = {handler}; client = _core.NodeClient({path!r}, {engine!r}, {rank}, {LAYOUT}, handler)"
        )

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin and self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "never became true"
        time.sleep(0.002)


class Pool:
    """One payload arena, records and index, and a node that hands them out."""

    def __init__(self, path: str) -> None:
        self.listener = _core.RecordingListener()
        self.fds = [os.memfd_create(name, os.MFD_ALLOW_SEALING) for name in ("payload", "records", "index")]
        for fd, size in zip(self.fds, (4 * MiB, MiB, 8192), strict=True):
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.exported = [(self.fds[0], 4 * MiB, 0, 0), (self.fds[1], MiB, 1, 0), (self.fds[2], 8192, 2, 0)]
        self.path = path
        self.server = _core.NodeServer(path, self.exported, LAYOUT, self.listener, 5)
        self.owner = self.server.open_engine("e", 2)

    def heard(self, *event: Any) -> None:
        until(lambda: event in self.listener.events())

    def heard_nothing(self) -> None:
        """Nothing within several whole turns of the server's loop."""
        before = self.listener.ticks
        until(lambda: self.listener.ticks >= before + 4)
        assert self.listener.events() == []

    def close(self) -> None:
        self.server.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def pool() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory() as directory:
        pool = Pool(f"{directory}/node/socket")
        yield pool
        pool.close()


@pytest.fixture
def spawn() -> Iterator[Callable[[], Mapper]]:
    mappers: list[Mapper] = []

    def start() -> Mapper:
        mappers.append(Mapper())
        return mappers[-1]

    yield start
    for mapper in mappers:
        if mapper.process.poll() is None:
            mapper.kill()


def hello(protocol: int = PROTOCOL, layout: int = LAYOUT, rank: int = 0, name: bytes = b"e") -> bytes:
    return struct.pack("<5I108s", MAGIC, protocol, layout, rank, len(name), name)


def connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(60)
    connection.connect(path)
    return connection


def refusal(path: str, packet: bytes) -> tuple[int, str]:
    with connect(path) as connection:
        connection.send(packet)
        _, _, code, length, _, _, text = struct.unpack("<6I488s", connection.recv(4096))
        return code, text[:length].decode()


def granted(connection: socket.socket) -> list[int]:
    """Says hello and takes the descriptors as a client does, but maps nothing."""
    connection.send(hello())
    assert struct.unpack_from("<3I", connection.recv(4096))[2] == 0
    fds = array.array("i")
    _, control, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(32 * fds.itemsize))
    for _, _, data in control:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


# -- mapping


def test_a_mapper_in_another_process_sees_and_writes_the_same_bytes(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    mapper = spawn()
    node = _core.Mapping(pool.exported)
    node.payload(0)[:5] = list(b"hello")
    os.pwrite(pool.fds[1], b"record", 100)
    mapper.attach(pool.path)
    assert mapper.eval("bytes(client.mapping.payload(0)[:5]).decode()") == "hello"
    assert mapper.eval("bytes(client.mapping.records()[100:106]).decode()") == "record"
    mapper.do("client.mapping.payload(0)[4095] = 42")
    assert node.payload(0)[4095] == 42
    until(lambda: pool.server.attached(pool.owner) == 1)
    assert pool.server.mappers(pool.owner) == [mapper.pid]
    assert mapper.eval("client.owner") == pool.owner


def test_payload_is_mapped_at_2_mib_and_left_out_of_forks_and_core_dumps(pool: Pool) -> None:
    mapping = _core.Mapping(pool.exported)
    address = mapping.address(0, 0, 4 * MiB)
    assert address % (2 * MiB) == 0
    entry = Path("/proc/self/smaps").read_text().partition(f"{address:x}-")[2]
    flags = entry.partition("VmFlags:")[2].partition("\n")[0].split()
    assert {"dc", "dd", "wr"} <= set(flags)


def test_records_and_index_views_are_read_only(pool: Pool) -> None:
    client = _core.NodeClient(pool.path, "e", 0, LAYOUT)
    for view in (client.mapping.records(), client.mapping.index()):
        assert not view.flags.writeable
    assert client.mapping.records().size == MiB
    assert client.mapping.index().size == 8192


def test_records_and_index_descriptors_cannot_be_mapped_writable_and_no_file_can_be_resized(
    pool: Pool,
) -> None:
    with connect(pool.path) as connection:
        fds = granted(connection)
        assert len(fds) == 3
        with mmap.mmap(fds[0], MiB) as payload:
            payload[0] = 1
        for fd in fds[1:]:
            with pytest.raises(PermissionError):
                mmap.mmap(fd, 4096)
        for fd in fds:
            with pytest.raises(OSError):
                os.ftruncate(fd, 4096)
            os.close(fd)


def test_addresses_are_bounds_checked_and_the_first_bad_row_is_named(pool: Pool) -> None:
    mapping = _core.Mapping(pool.exported)
    base = mapping.address(0, 0, 0)
    arenas, lengths = np.zeros(3, np.uint32), np.full(3, 4096, np.uint64)
    good = np.array([0, 4096, 4 * MiB - 4096], np.uint64)
    assert mapping.addresses(arenas, good, lengths).tolist() == [base + int(offset) for offset in good]
    with pytest.raises(
        IndexError, match="row 1: arena 0, offset 4190209, length 4096 is outside the arena's 4194304"
    ):
        mapping.addresses(arenas, np.array([0, 4 * MiB - 4095, 2**64 - 1], np.uint64), lengths)
    with pytest.raises(IndexError, match="row 2"):
        mapping.addresses(np.array([0, 0, 1], np.uint32), good, lengths)
    with pytest.raises(IndexError):
        mapping.address(0, 2**64 - 1, 2)
    with pytest.raises(ValueError, match="3, 2 and 3 elements"):
        mapping.addresses(arenas, good[:2], lengths)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ((0, 8 * MiB, 0, 0), "4194304 bytes long, expected at least 8388608"),
        ((0, 0, 0, 0), "more than 0"),
        ((0, MiB, 3, 0), "kind 3, expected 0"),
        ((0, MiB, 0, 512), "payload arena 512, expected below 512"),
        ((0, MiB, 1, 0), "two pool files of kind 1"),
    ],
)
def test_a_pool_that_cannot_be_mapped_is_refused_at_start(
    pool: Pool, change: tuple[int, int, int, int], sentence: str
) -> None:
    exported = [(pool.fds[change[0]], *change[1:]), *pool.exported[1:]]
    with pytest.raises(ValueError, match=sentence):
        _core.NodeServer(pool.path + "2", exported, LAYOUT, pool.listener, 5)


def test_a_pool_of_many_arenas_arrives_whole(pool: Pool) -> None:
    exported = [(pool.fds[0], (1 + arena) * 4096, 0, arena) for arena in range(100)]
    server = _core.NodeServer(pool.path + "2", exported, LAYOUT, pool.listener, 5)
    server.open_engine("e", 1)
    client = _core.NodeClient(server.path, "e", 0, LAYOUT)
    assert [client.mapping.payload(arena).size for arena in range(101)] == [e[1] for e in exported] + [0]
    server.close()


# -- death and fences


def test_a_killed_mapper_is_dead_although_a_forked_child_keeps_its_socket_open(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    mapper = spawn()
    mapper.attach(pool.path)
    child = mapper.eval("os.fork() or __import__('signal').pause()")
    try:
        until(lambda: pool.server.attached(pool.owner) == 1)
        mapper.kill()
        pool.heard("dead", pool.owner, 0)
        assert pool.server.mappers(pool.owner) == []
        os.kill(child, 0)  # the helper is alive and has the socket
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_of_a_mapper_has_no_mapping_and_exits_without_disturbing_it(pool: Pool) -> None:
    client = _core.NodeClient(pool.path, "e", 0, LAYOUT)
    address = client.mapping.address(0, 0, 1)
    child = os.fork()
    if child == 0:
        maps = Path("/proc/self/maps").read_text()
        del client  # must neither hang on the thread that is not here nor unmap what is now elsewhere
        os._exit(1 if f"{address:x}-" in maps else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.connected
    assert client.mapping.payload(0)[0] == 0


def test_a_fence_waits_for_the_copy_that_runs(pool: Pool) -> None:
    fence = _core.ManualFence()
    client = _core.NodeClient(pool.path, "e", 0, LAYOUT, fence)
    pool.server.fence(pool.owner, 5)
    until(lambda: fence.seen() == [5])
    pool.heard_nothing()
    fence.release()
    pool.heard("fenced", pool.owner, 5)
    client.close()


def test_fences_made_while_one_is_open_are_asked_as_one(pool: Pool) -> None:
    fence = _core.ManualFence()
    client = _core.NodeClient(pool.path, "e", 0, LAYOUT, fence)
    pool.server.fence(pool.owner, 1)
    until(lambda: fence.seen() == [1])
    for epoch in (2, 3, 4):
        pool.server.fence(pool.owner, epoch)
    fence.release()
    pool.heard("fenced", pool.owner, 4)
    assert fence.seen() == [1, 4]
    assert pool.listener.events() == [("fenced", pool.owner, 1), ("fenced", pool.owner, 4)]
    pool.server.fence(pool.owner, 2)  # acknowledged long ago
    pool.heard("fenced", pool.owner, 2)
    client.close()


def test_a_fence_of_an_engine_without_mappers_ends_at_once(pool: Pool) -> None:
    pool.server.fence(pool.owner, 9)
    pool.heard("fenced", pool.owner, 9)


def test_a_stopped_mapper_never_acknowledges_and_its_death_ends_the_fence(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    mapper = spawn()
    mapper.attach(pool.path)
    until(lambda: pool.server.attached(pool.owner) == 1)
    mapper.signal(signal.SIGSTOP)
    until(lambda: Path(f"/proc/{mapper.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    pool.server.fence(pool.owner, 1)
    pool.heard_nothing()
    mapper.kill()
    pool.heard("dead", pool.owner, 0)
    assert pool.listener.events() == [("fenced", pool.owner, 1), ("dead", pool.owner, 0)]


def test_of_two_mappers_one_acknowledges_and_one_dies_and_the_fence_ends(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    first, second = spawn(), spawn()
    first.attach(pool.path, rank=0)
    second.attach(pool.path, rank=1, handler="_core.ManualFence()")
    until(lambda: pool.server.attached(pool.owner) == 2)
    pool.server.fence(pool.owner, 3)
    until(lambda: second.eval("handler.seen()") == [3])
    pool.heard_nothing()
    second.kill()
    pool.heard("fenced", pool.owner, 3)
    assert pool.server.mappers(pool.owner) == [first.pid]
    first.kill()
    pool.heard("dead", pool.owner, 0)


def test_a_mapper_that_closed_its_socket_stays_one_until_it_dies_or_comes_back(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    mapper = spawn()
    mapper.attach(pool.path)
    mapper.do("client.close()")
    until(lambda: pool.server.attached(pool.owner) == 0)
    assert pool.server.mappers(pool.owner) == [mapper.pid]
    pool.server.fence(pool.owner, 1)
    pool.heard_nothing()
    mapper.attach(pool.path)  # the same process, the same rank
    pool.heard("fenced", pool.owner, 1)
    until(lambda: pool.server.attached(pool.owner) == 1)
    assert pool.server.mappers(pool.owner) == [mapper.pid]


def test_closing_and_attaching_again_in_one_breath_is_no_duplicate(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    mapper = spawn()
    mapper.attach(pool.path)
    for _ in range(50):
        mapper.do("client.close()")
        mapper.attach(pool.path)
    assert pool.server.mappers(pool.owner) == [mapper.pid]
    assert pool.listener.events() == []


def test_a_rank_with_a_live_mapper_is_refused_and_free_again_after_its_death(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    first, second = spawn(), spawn()
    first.attach(pool.path)
    with pytest.raises(RuntimeError, match=f"NodeRefused: rank 0 of engine 'e' is mapped by pid {first.pid}"):
        second.attach(pool.path)
    first.kill()
    second.attach(pool.path)
    assert pool.server.mappers(pool.owner) == [second.pid]
    pool.heard("dead", pool.owner, 0)


def test_an_engine_that_returns_gets_a_new_owner_and_the_old_one_stays_watched(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    old, new = spawn(), spawn()
    old.attach(pool.path)
    returned = pool.server.open_engine("e", 2)
    assert returned != pool.owner
    new.attach(pool.path)
    until(lambda: pool.server.attached(returned) == 1)
    assert (pool.server.mappers(pool.owner), pool.server.mappers(returned)) == ([old.pid], [new.pid])
    old.kill()
    pool.heard("dead", pool.owner, 0)
    assert pool.server.mappers(returned) == [new.pid]


def test_a_client_outlives_its_node_with_its_mapping(pool: Pool) -> None:
    client = _core.NodeClient(pool.path, "e", 0, LAYOUT)
    assert client.connected
    pool.server.close()
    until(lambda: not client.connected)
    client.mapping.payload(0)[7] = 9
    assert os.pread(pool.fds[0], 1, 7) == b"\x09"


def test_a_killed_node_is_noticed_and_replaced_although_its_forked_child_lives(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    path = pool.path + "2"
    node = spawn()
    node.do("fd = os.memfd_create('p'); os.ftruncate(fd, 4096); listener = _core.RecordingListener()")
    node.do(f"server = _core.NodeServer({path!r}, [(fd, 4096, 0, 0)], {LAYOUT}, listener)")
    node.do("server.open_engine('e', 1)")
    client = _core.NodeClient(path, "e", 0, LAYOUT)
    child = node.eval("os.fork() or __import__('signal').pause()")
    try:
        with pytest.raises(_core.NodeError, match=f"a live node, pid {node.pid}, listens"):
            _core.NodeServer(path, pool.exported, LAYOUT, pool.listener, 5)
        node.kill()
        until(lambda: not client.connected)
        connect(path).close()  # the child still holds the listening socket
        _core.NodeServer(path, pool.exported, LAYOUT, pool.listener, 5).close()
    finally:
        os.kill(child, signal.SIGKILL)


# -- refusals


def test_refusals_name_what_was_found_and_what_was_expected(pool: Pool) -> None:
    assert refusal(pool.path, hello(protocol=4)) == (2, "protocol version found 4, expected 2")
    assert refusal(pool.path, struct.pack("<3I", MAGIC, 9, 0)) == (2, "protocol version found 9, expected 2")
    assert refusal(pool.path, hello(protocol=0)) == (2, "protocol version found 0, expected 2")
    assert refusal(pool.path, hello(layout=8)) == (3, "layout version found 8, expected 7")
    code, sentence = refusal(pool.path, hello(name=b"x\xff\n"))
    assert (code, sentence) == (4, "engine 'x??' is unknown here: it must be opened at the node first")
    assert refusal(pool.path, hello(rank=2)) == (5, "rank 2 of engine 'e' is out of range, expected below 2")
    assert pool.server.mappers(pool.owner) == []


def test_a_refusal_reaches_the_client_as_an_exception(pool: Pool) -> None:
    for engine, rank, layout, sentence in (
        ("e", 0, 8, "layout version found 8, expected 7"),
        ("other", 0, LAYOUT, "engine 'other' is unknown here"),
        ("e", 2, LAYOUT, "rank 2 of engine 'e' is out of range"),
    ):
        with pytest.raises(_core.NodeRefused, match=sentence) as raised:
            _core.NodeClient(pool.path, engine, rank, layout)
        assert isinstance(raised.value, ConnectionError)
    with pytest.raises(ValueError, match="0 bytes, expected 1 to 108"):
        _core.NodeClient(pool.path, "", 0, LAYOUT)


def as_nobody(action: Callable[[], Any]) -> Any:
    """What `action` returns in a forked child with uid 65534."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            answer = action()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    return answer


if os.geteuid() == 0:  # only root can become someone else

    def test_another_uid_is_refused_by_the_node_and_by_the_client(pool: Pool) -> None:
        denied = as_nobody(lambda: refusal(pool.path, hello()))
        assert denied.startswith("PermissionError")  # the directory keeps others out
        path = Path(pool.path)
        for directory in (path.parent, path.parent.parent):  # as if someone had opened it
            directory.chmod(0o711)
        path.chmod(0o666)
        assert as_nobody(lambda: refusal(pool.path, hello())) == [1, "uid found 65534, expected 0"]
        answer = as_nobody(lambda: _core.NodeClient(pool.path, "e", 0, LAYOUT).connected)
        assert answer.startswith("NodeRefused: the node at") and "uid found 0, expected 65534" in answer
        assert pool.server.mappers(pool.owner) == []


def test_malformed_packets_cost_their_connection_and_nothing_else(pool: Pool) -> None:
    client = _core.NodeClient(pool.path, "e", 1, LAYOUT)
    noise = np.random.default_rng(1)
    packets = [hello()[:n] for n in (1, 7, 8, 20, 127)]
    packets += [hello() + b"\0", b"\0" * 128, hello(name=b""), b"x" * 60000]
    packets += [struct.pack("<5I108s", MAGIC, PROTOCOL, LAYOUT, 0, 2**32 - 1, b"e")]
    packets += [noise.bytes(int(size)) for size in noise.integers(1, 600, 200)]
    for packet in packets:
        with connect(pool.path) as connection:
            connection.send(packet)
            assert connection.recv(4096) == b""
    assert client.connected
    assert pool.server.mappers(pool.owner) == [os.getpid()]


@pytest.mark.parametrize(
    "packet",
    [
        struct.pack("<IIQ", 3, 0, 5),  # acknowledges what was never asked
        struct.pack("<IIQ", 1, 0, 1),
        struct.pack("<IIQ", 1, 1, 0),
        struct.pack("<IIQ", 2, 0, 0),
        struct.pack("<IIQ", 4, 0, 0),
        b"\x01\0\0\0",
        b"\x01" + bytes(20),
        hello(),
    ],
)
def test_a_mapper_that_talks_nonsense_loses_its_connection_but_stays_a_mapper(
    pool: Pool, packet: bytes
) -> None:
    with connect(pool.path) as connection:
        for fd in granted(connection):
            os.close(fd)
        connection.send(packet)
        assert connection.recv(4096) == b""
    assert pool.server.attached(pool.owner) == 0
    assert pool.server.mappers(pool.owner) == [os.getpid()]


def test_a_mapper_that_has_not_said_that_it_mapped_is_not_attached(pool: Pool) -> None:
    with connect(pool.path) as connection:
        for fd in granted(connection):
            os.close(fd)
        assert pool.server.mappers(pool.owner) == [os.getpid()]
        assert pool.server.attached(pool.owner) == 0
        connection.send(struct.pack("<IIQ", 1, 0, 0))
        until(lambda: pool.server.attached(pool.owner) == 1)


def test_strangers_that_never_introduce_themselves_do_not_pile_up(pool: Pool) -> None:
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(connect(pool.path)) for _ in range(70)]
        for stranger in strangers[:6]:
            assert stranger.recv(1) == b""
        assert not select.select(strangers[6:], [], [], 0)[0]
        assert _core.NodeClient(pool.path, "e", 0, LAYOUT).connected


# -- the socket's place


def test_the_directory_is_created_for_its_owner_only_and_the_socket_goes_with_the_node(pool: Pool) -> None:
    path = Path(pool.path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    pool.server.close()
    assert not path.exists()
    with pytest.raises(_core.NodeError, match="no node answers at"):
        _core.NodeClient(pool.path, "e", 0, LAYOUT)
    with pytest.raises(_core.NodeError, match="is closed"):
        pool.server.open_engine("late", 1)
    pool.server.fence(pool.owner, 1)  # a tick that falls into the closing: nobody is asked


def test_a_directory_others_can_enter_is_refused(pool: Pool) -> None:
    directory = Path(pool.path).parent
    directory.chmod(0o755)
    with pytest.raises(_core.NodeError, match=f"mode 0755 and owner {os.geteuid()}, expected mode 0700"):
        _core.NodeServer(f"{directory}/other", pool.exported, LAYOUT, pool.listener, 5)


def test_a_live_nodes_socket_is_refused_with_its_pid(pool: Pool) -> None:
    with pytest.raises(_core.NodeError, match=f"a live node, pid {os.getpid()}, listens"):
        _core.NodeServer(pool.path, pool.exported, LAYOUT, pool.listener, 5)
    assert _core.NodeClient(pool.path, "e", 0, LAYOUT).connected


def test_a_dead_nodes_socket_is_replaced_and_a_file_is_not(pool: Pool) -> None:
    stale = pool.path + "2"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(stale)
    server = _core.NodeServer(stale, pool.exported, LAYOUT, pool.listener, 5)
    server.close()
    Path(stale).write_text("precious")
    with pytest.raises(_core.NodeError, match="exists and is no socket"):
        _core.NodeServer(stale, pool.exported, LAYOUT, pool.listener, 5)
    assert Path(stale).read_text() == "precious"


def test_a_path_too_long_for_a_socket_is_refused_with_its_length(pool: Pool) -> None:
    path = pool.path + "x" * (108 - len(pool.path))
    with pytest.raises(_core.NodeError, match="has 108 bytes, expected 1 to 107"):
        _core.NodeServer(path, pool.exported, LAYOUT, pool.listener, 5)
    _core.NodeServer(path[:107], pool.exported, LAYOUT, pool.listener, 5).close()


def test_sockets_go_to_the_runtime_directory_if_it_is_usable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert _core.default_directory() == f"{tmp_path}/kvarter"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert _core.default_directory() == f"{tmp_path}/kvarter-{os.geteuid()}"


def test_a_client_gives_up_on_a_node_that_does_not_answer(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf,
    ):
        deaf.bind(f"{directory}/s")
        deaf.listen()
        with pytest.raises(_core.NodeError, match="did not answer in time"):
            _core.NodeClient(f"{directory}/s", "e", 0, LAYOUT, None, 0.05)


def test_a_node_that_sends_nonsense_is_no_node() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as fake,
    ):
        fake.bind(f"{directory}/s")
        fake.listen()
        welcome = struct.pack("<6I488s", MAGIC, PROTOCOL, 0, 0, 1, 1, b"")
        for packets, sentence in (
            ([b"x" * 512], "is no node"),
            ([b"x" * 100], "sent 100 bytes, expected 512"),
            ([struct.pack("<6I488s", MAGIC, PROTOCOL, 1, 489, 0, 0, b"")], "is no node"),
            ([welcome, struct.pack("<2I512x", 0, 0)], "grants 0 descriptors of 1"),
            ([welcome, struct.pack("<2I512x", 33, 0)], "grants 33 descriptors of 1"),
            ([welcome, struct.pack("<2I512x", 1, 0)], "received 0 of 1 descriptors"),
            ([welcome], "closed the connection before"),
        ):
            child = os.fork()
            if child == 0:
                connection, _ = fake.accept()
                connection.recv(4096)
                for packet in packets:
                    connection.send(packet)
                os._exit(0)
            with pytest.raises(_core.NodeError, match=sentence):
                _core.NodeClient(f"{directory}/s", "e", 0, LAYOUT)
            os.waitpid(child, 0)

"""The language of the tests of attaching: a pool that a node hands out, and processes that map it."""

import array
import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvarter import _core

MiB = 1 << 20

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


@pytest.fixture(name="pool")
def pool_fixture() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory() as directory:
        pool = Pool(f"{directory}/node/socket")
        yield pool
        pool.close()


@pytest.fixture(name="spawn")
def spawn_fixture() -> Iterator[Callable[[], Mapper]]:
    """Makes processes; those that are left at the end are killed."""
    mappers: list[Mapper] = []

    def start() -> Mapper:
        mappers.append(Mapper())
        return mappers[-1]

    try:
        yield start
    finally:
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

"""Two processes and what lies between them: our engine, raw UCX and a plain TCP stream, each behind one call a round.

A contender's `round(number)` moves all its blocks once and says how long that took (Took: wall seconds, and CPU
seconds of both processes).
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvarter import _core
from kvarter.peers.ucx_library import load

GB = 1e9
SEGMENT = 256 << 10


class Took(NamedTuple):
    seconds: float
    cpu: float


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Side:
    """An engine over its own memory, full of random bytes."""

    def __init__(self, device: str, size: int) -> None:
        self.memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        self.memory.view(np.uint64)[:] = np.random.default_rng(1).integers(0, 2**63, size // 8, np.uint64)
        self.ucx = load().module
        self.engine = self.ucx.Engine(self.memory.ctypes.data, size, devices=[device])
        self.invite = self.engine.invite()

    def wait(self, kind: type) -> object:
        while True:
            for event in self.engine.poll(1):
                if isinstance(event, kind):
                    return event
                if isinstance(event, self.ucx.Lost) and kind is not self.ucx.Lost:
                    raise SystemExit(f"lost: {event.why}")
            select.select([self.engine.event_fd], [], [])

    def connect(self, theirs: str) -> None:
        self.peer = self.engine.connect(bytes.fromhex(theirs), self.invite)


def own(device: str, size: int, block: int) -> None:
    """The other process of Ours: sends its blocks, in the order it is told; "" asks for its CPU seconds."""
    side = Side(device, size)
    print(side.invite.hex(), flush=True)
    side.connect(sys.stdin.readline())
    print("connected", flush=True)
    blocks = side.memory.reshape(-1, block)
    sums = np.array([_core.xxh3_64(one) for one in blocks], np.uint64)
    statuses = np.zeros(len(blocks), np.uint8)
    lengths = np.full(len(blocks), block)
    used = cpu()
    while True:
        said = side.wait(side.ucx.Message).data
        if not said:
            side.engine.message(side.peer, json.dumps(cpu() - used).encode())
            used = cpu()
            continue
        request, generation, *order = np.frombuffer(said, np.uint64).tolist()
        n, order = len(order), np.array(order, np.int64)
        side.engine.send(
            side.peer, request, generation, order * block, lengths[:n], statuses[:n], sums[order]
        )
        side.wait(side.ucx.Sent)


def lines(process: subprocess.Popen[str]) -> str:
    """The next line but for what libraries log."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line[0] not in "[I" and "INFO" not in line:
            return line.strip()
    raise SystemExit("the other process has ended")


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def child(*command: str, quiet: bool = False, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
    )


class Ours:
    def __init__(self, size: int, block: int, device: str = "lo") -> None:
        self.block = block
        self.count = size // block
        self.lengths = np.full(self.count, block)
        self.owner = child(sys.executable, __file__, "own", device, str(size), str(block))
        theirs = lines(self.owner)
        self.side = Side(device, size)
        self.side.connect(theirs)
        tell(self.owner, self.side.invite.hex())
        assert lines(self.owner) == "connected"
        self.content = self.side.memory.copy().reshape(-1, block)
        self.requests = 0
        self.request(np.arange(1), np.arange(1))
        self.owners_cpu()

    def owners_cpu(self) -> float:
        self.side.engine.message(self.side.peer, b"")
        return float(json.loads(self.side.wait(self.side.ucx.Message).data))

    def request(self, order: np.ndarray, slots: np.ndarray) -> float:
        """Seconds for these blocks of the owner's into these slots."""
        begun = time.perf_counter()
        self.requests += 1
        lengths = self.lengths[: len(slots)]
        generation = self.side.engine.expect(self.side.peer, self.requests, slots * self.block, lengths)
        asked = np.concatenate([np.array([self.requests, generation], np.uint64), order.astype(np.uint64)])
        self.side.engine.message(self.side.peer, asked.tobytes())
        statuses = self.side.wait(self.side.ucx.Received).statuses
        seconds = time.perf_counter() - begun
        if statuses.any():
            raise SystemExit(f"not all blocks came: {statuses.tolist()}")
        return seconds

    def round(self, number: int) -> Took:
        self.order = np.random.default_rng(number).permutation(self.count)
        self.slots = np.random.default_rng(number + 1000).permutation(self.count)
        used = cpu()
        seconds = self.request(self.order, self.slots)
        used = cpu() - used
        return Took(seconds, used + self.owners_cpu())

    def whole(self) -> bool:
        """Whether the last round's blocks are where they belong."""
        blocks = self.side.memory.reshape(-1, self.block)
        return all(
            np.array_equal(blocks[slot], self.content[block])
            for block, slot in zip(self.order, self.slots, strict=True)
        )

    def until_lost(self) -> float:
        """Kills the owner; seconds until that is known."""
        begun = time.perf_counter()
        self.owner.kill()
        self.side.wait(self.side.ucx.Lost)
        return time.perf_counter() - begun

    def close(self) -> None:
        self.owner.kill()
        self.owner.communicate()
        self.side.engine.close()


class Pair:
    """Two programs that say where they are, are told where the other is, and do a round for each line.

    Between rounds they stand still, so that threads which never sleep take no CPU from whose turn it is.
    """

    def __init__(
        self, own: Sequence[str], ask: Sequence[str], quiet: bool = False, **environment: str
    ) -> None:
        self.sides = [child(*command, quiet=quiet, **environment) for command in (own, ask)]
        places = [lines(side) for side in self.sides]
        for side, place in zip(self.sides, reversed(places), strict=True):
            tell(side, place)
        self.round(0)

    def round(self, number: int) -> Took:
        self._signal(signal.SIGCONT)
        for side in self.sides:
            tell(side, "go")
        (_, owner), (seconds, asker) = (map(float, lines(side).lstrip("@").split()) for side in self.sides)
        self._signal(signal.SIGSTOP)
        return Took(seconds, owner + asker)

    def _signal(self, number: int) -> None:
        for side in self.sides:
            side.send_signal(number)

    def close(self) -> None:
        for side in self.sides:
            side.kill()
            side.communicate()


class RawUcx(Pair):
    """bench/raw_ucx.cpp, compiled with the headers and libraries of PyPI's libucx."""

    _program = ""

    @classmethod
    def build(cls, directory: str) -> None:
        import libucx

        root = Path(libucx.__file__).parent
        cls._program = str(Path(directory) / "raw_ucx")
        source = str(Path(__file__).with_name("raw_ucx.cpp"))
        link = [f"-L{root}/lib", "-lucp", "-lucs", f"-Wl,-rpath,{root}/lib,-rpath-link,{root}/lib"]
        subprocess.run(
            ["c++", "-std=c++20", "-O2", f"-I{root}/include", source, *link, "-o", cls._program], check=True
        )

    def __init__(self, size: int, block: int, device: str = "lo") -> None:
        words = [device, str(size), str(block), str(SEGMENT)]
        super().__init__([self._program, "own", *words], [self._program, "ask", *words])


class Other(Pair):
    """NIXL or Mooncake (others.py), as it is when its user names TCP and the interface and sets nothing else."""

    library = ""
    module = ""

    def __init__(self, size: int, block: int, device: str = "lo") -> None:
        program = [sys.executable, str(Path(__file__).with_name("others.py")), self.library]
        words = [device, str(size), str(block)]
        super().__init__(
            [*program, "own", *words],
            [*program, "ask", *words],
            quiet=True,
            UCX_TLS="tcp",
            UCX_NET_DEVICES=device,
        )


class Nixl(Other):
    library, module = "nixl", "nixl_cu12"


class Mooncake(Other):
    library, module = "mooncake", "mooncake"


class PlainTcp:
    """Blocking sockets: blocks from their place into their place, one after the other."""

    def __init__(self, size: int, block: int) -> None:
        self.owner = child(sys.executable, "-c", _TCP.format(size=size, block=block))
        self.connection = socket.create_connection(("127.0.0.1", int(lines(self.owner))))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.blocks = np.ones(size, np.uint8).reshape(-1, block)
        self.round(0)

    def receive(self, count: int) -> float:
        begun = time.perf_counter()
        self.connection.sendall(count.to_bytes(8, "little"))
        for slot in np.random.default_rng(count).permutation(len(self.blocks))[:count]:
            view = memoryview(self.blocks[slot])
            while view:
                view = view[self.connection.recv_into(view) :]
        return time.perf_counter() - begun

    def round(self, number: int) -> Took:
        used = cpu()
        seconds = self.receive(len(self.blocks))
        return Took(seconds, cpu() - used + float(lines(self.owner)))

    def close(self) -> None:
        self.connection.close()
        self.owner.communicate()


_TCP = """
import numpy as np, resource, socket
door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
connection, _ = door.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
blocks = np.ones({size}, np.uint8).reshape(-1, {block})
def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
while asked := connection.recv(8):
    used = cpu()
    count = int.from_bytes(asked, "little")
    for block in np.random.default_rng(count + 1).permutation(len(blocks))[:count]:
        connection.sendall(blocks[block])
    if count > 1:
        print(cpu() - used, flush=True)
"""


class Memcpy:
    """Blocks from their place into their place, within this process."""

    def __init__(self, size: int, block: int) -> None:
        self.here = np.ones(size, np.uint8).reshape(-1, block)
        self.there = np.ones(size, np.uint8).reshape(-1, block)

    def round(self, number: int) -> Took:
        pairs = list(
            zip(
                *(np.random.default_rng(n).permutation(len(self.here)) for n in (number, -number % 997)),
                strict=True,
            )
        )
        begun, used = time.perf_counter(), cpu()
        for a, b in pairs:
            self.there[b] = self.here[a]
        return Took(time.perf_counter() - begun, cpu() - used)

    def close(self) -> None:
        pass


if __name__ == "__main__":
    own(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

"""The language of the engine's tests: an owner of blocks in a process of its own, and a client that asks it.

Runs as a program too: the owner (`ucx_words.py own DEVICE TRANSPORTS`), or a named scene with the client in it
(`ucx_words.py play SCENE DEVICE TRANSPORTS WITHIN [WORD...]`; WITHIN is the command that runs the owner).
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from kvarter import Status
from kvarter.peers.ucx_library import load
from served_words import SECONDS, stop

if TYPE_CHECKING:
    from kvarter import _ucx

BLOCK = 1 << 20
BLOCKS = 64
T = TypeVar("T")


class Side:
    """An engine and its memory of BLOCKS blocks."""

    def __init__(self, device: str = "lo", transports: str = "tcp", **options: Any) -> None:
        self.memory = np.frombuffer(mmap.mmap(-1, BLOCKS * BLOCK), np.uint8)
        self.blocks = self.memory.reshape(BLOCKS, BLOCK)
        devices = [device] if "tcp" in transports else []
        self.engine = load().module.Engine(
            self.memory.ctypes.data, self.memory.nbytes, devices=devices, transports=transports, **options
        )
        self.events: list[_ucx.Event] = []
        self.peer = 0

    def wait(self, kind: type[T]) -> T:
        """The oldest event of that kind that was not yet waited for."""
        end = time.monotonic() + SECONDS
        while True:
            for event in self.events:
                if isinstance(event, kind):
                    self.events.remove(event)
                    return event
            assert time.monotonic() < end, f"no {kind.__name__}: {self.engine.counters()}"
            select.select([self.engine.event_fd], [], [], 1.0)
            self.events += self.engine.poll()

    def counter(self, name: str) -> int:
        return self.engine.counters()[name]


class Talk:
    """A process that is talked to by lines."""

    def __init__(self, *command: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def said(self) -> str:
        """The next line but for what UCX logs, which goes to standard output; empty when it is over."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return self.said() if line.startswith("[") else line.strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Owner(Talk):
    """The owner's process. It sends what it is asked for; its block b is pattern(b)."""

    def __init__(self, device: str, transports: str, within: Seq[str] = ()) -> None:
        super().__init__(*within, sys.executable, __file__, "own", device, transports)
        self.pid = int(self.said())  # of the owner itself, whatever runs it
        self.invite = bytes.fromhex(self.said())


class Client(Side):
    """A side with an owner that it is connected to."""

    def __init__(
        self, device: str = "lo", transports: str = "tcp", within: Seq[str] = (), **options: Any
    ) -> None:
        super().__init__(device, transports, **options)
        self.owner = Owner(device, transports, within)
        self.requests = 0
        self.meet()

    def meet(self) -> None:
        ours = self.engine.invite()
        self.peer = self.engine.connect(self.owner.invite, ours)
        self.owner.say(ours.hex())
        assert self.owner.said() == "connected"

    def ask(self, blocks: npt.ArrayLike, slots: npt.ArrayLike, **wrong: int) -> int:
        """Asks for these blocks into these slots. The request."""
        self.requests += 1
        slots = np.asarray(slots, np.int64)
        generation = self.engine.expect(
            self.peer, self.requests, slots * BLOCK, np.full(slots.size, BLOCK, np.int64)
        )
        asked = {"request": self.requests, "generation": generation, "blocks": np.asarray(blocks).tolist()}
        assert self.engine.message(self.peer, json.dumps(asked | wrong).encode()) == Status.Ok
        return self.requests

    def close(self) -> None:
        self.engine.close()
        self.owner.close()


def pattern(block: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(block).integers(0, 256, BLOCK, np.uint8)


def own(device: str, transports: str) -> None:
    """The owner: connects to the client whose invite comes by its standard input, and sends what it asks for."""
    print(os.getpid(), flush=True)
    side = Side(device, transports)
    for block in range(BLOCKS):
        side.blocks[block] = pattern(block)
    sums = np.array([xxhash.xxh3_64_intdigest(block) for block in side.blocks], np.uint64)
    ours = side.engine.invite()
    print(ours.hex(), flush=True)
    peer = side.engine.connect(bytes.fromhex(sys.stdin.readline()), ours)
    print("connected", flush=True)
    messages = load().module.Message
    while True:
        asked = json.loads(side.wait(messages).data)
        blocks = np.array(asked["blocks"], np.int64)
        has = (blocks >= 0) & (blocks < BLOCKS)
        statuses = np.where(has, Status.Ok, Status.NotFound).astype(np.uint8)
        sent = side.engine.send(
            peer,
            asked["request"],
            asked["generation"],
            blocks * BLOCK * has,
            np.full(blocks.size, asked.get("length", BLOCK)),
            statuses,
            sums[blocks * has] + np.uint64(asked.get("lie", 0)),
        )
        assert sent == Status.Ok, sent
        side.wait(load().module.Sent)
        side.engine.message(peer, b"sent %d" % asked["request"])


# --- scenes


def whole(client: Client) -> None:
    """Blocks come from anywhere to anywhere, and a second time over other ones."""
    for seed in (1, 2):
        random = np.random.default_rng(seed)
        blocks, slots = random.permutation(BLOCKS), random.permutation(BLOCKS)
        blocks[:3] = BLOCKS + 7  # it does not have these
        client.memory[:] = 0xEE
        request = client.ask(blocks, slots)
        received = client.wait(load().module.Received)
        assert (received.peer, received.request) == (client.peer, request)
        assert received.statuses[:3].tolist() == [Status.NotFound] * 3
        assert set(received.statuses[3:].tolist()) == {Status.Ok}
        for block, slot in zip(blocks[3:], slots[3:], strict=True):
            assert np.array_equal(client.blocks[slot], pattern(int(block)))
        assert (client.blocks[slots[:3]] == 0xEE).all()


def midway(client: Client) -> int:
    """A request whose owner has been stopped in the middle of sending."""
    for _ in range(200):
        before = client.counter("bytes_received")
        request = client.ask(range(BLOCKS), range(BLOCKS))
        while client.counter("bytes_received") == before:
            pass
        stop(client.owner.pid)
        if client.counter("bytes_received") - before < BLOCKS * BLOCK * 3 // 4:
            return request
        os.kill(client.owner.pid, signal.SIGCONT)
        assert client.wait(load().module.Received).request == request
    raise AssertionError("every transfer was over before it could be stopped")


def late(client: Client) -> None:
    """What a stopped owner sends after its request was forgotten enters no slot, and the next request is served."""
    request = midway(client)
    assert client.engine.forget(request)
    client.memory[:] = 0xEE
    os.kill(client.owner.pid, signal.SIGCONT)
    said = client.wait(load().module.Message)
    while said.data != b"sent %d" % request:
        said = client.wait(load().module.Message)
    assert client.counter("dropped_unasked") > 0
    assert (client.memory == 0xEE).all()
    assert client.engine.poll() == []
    whole(client)


def cut(client: Client, *command: str) -> None:
    """An owner that has stopped, or is cut off by the command, is given up, however much is under way."""
    ucx = load().module
    forgotten = midway(client)
    if command:
        subprocess.run(command, check=True)
        os.kill(client.owner.pid, signal.SIGCONT)
    assert client.engine.forget(forgotten)
    client.memory[:] = 0xEE
    request = client.ask(range(4), range(4))
    client.engine.close_peer(client.peer)
    received = client.wait(ucx.Received)
    assert (received.request, set(received.statuses.tolist())) == (request, {Status.Closed})
    assert client.wait(ucx.Closed).peer == client.peer
    assert (client.memory == 0xEE).all()


def disturbed(client: Client) -> None:
    """Somebody who has our address and speaks to it what we do not understand delays nobody's bytes for long."""
    stranger = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("coexist_words.py")), "noise"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert stranger.stdin is not None and stranger.stdout is not None
    address = client.engine.invite()[16:]  # after the magic and the secret
    stranger.stdin.write(address.hex() + "\n")
    stranger.stdin.flush()
    while stranger.stdout.readline() != "spoken\n":
        assert stranger.poll() is None, "it could not speak"
    whole(client)
    assert stranger.poll() is None, "it has stopped speaking"
    stranger.kill()
    stranger.communicate()
    whole(client)
    counters = client.engine.counters()
    assert not [name for name in counters if name.startswith("dropped") and counters[name]], counters


def play(scene: str, device: str, transports: str, within: str, *words: str) -> None:
    client = Client(device, transports, within.split())
    try:
        globals()[scene](client, *words)
    finally:
        client.close()
    print("played")


def played(
    scene: str, device: str, *words: str, within: Seq[str], owner_within: Seq[str], ucx: str = ""
) -> None:
    """Plays a scene over TCP in a process of its own. ucx: a directory with another libucx package."""
    path = os.pathsep.join(filter(None, [ucx, *sys.path, str(Path(__file__).parents[1] / "python")]))
    done = subprocess.run(
        [*within, sys.executable, __file__, "play", scene, device, "tcp", " ".join(owner_within), *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=4 * SECONDS,
    )
    assert done.stdout.endswith("played\n"), done.stdout + done.stderr


if __name__ == "__main__":
    {"own": own, "play": play}[sys.argv[1]](*sys.argv[2:])

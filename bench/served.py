"""Processes around one pool: a node, clients of it, and the plain echo that they are measured beside."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NODE = """
import json, sys
from kvarter.node import Node
from kvarter.store import Store
options = json.loads(sys.argv[2])
node = Node(Store(options.pop("dram"), **options), sys.argv[1])
print("serving", flush=True)
sys.stdin.read()
node.close()
"""

# Answers each packet with one of a reply's size, as a node's thread would that had nothing else to do.
_ECHO = """
import socket, sys
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.bind(sys.argv[1])
door.listen(1)
print("serving", flush=True)
connection, _ = door.accept()
while connection.recv(96):
    connection.send(bytes(64))
"""

# Stores new chains for ever in a pool that is full, so that the policy always has somebody to rank.
BUSY = """
import sys, os
import numpy as np
from kvarter.node import RemoteStore
from kvarter.sequence import Sequence
sys.path.insert(0, sys.argv[1])
from crowd import NAMESPACE
store = RemoteStore(sys.argv[2], "busy", timeout=60.0, patience=20.0)
print("began", flush=True)
while True:
    sequence = Sequence.from_digests(NAMESPACE, np.frombuffer(os.urandom(32 * 64), np.uint8).reshape(-1, 32))
    store.match(sequence, request="r")
    reservation = store.reserve(sequence, {0: range(64)}, 60.0)
    reservation.commit(0, np.ones(len(reservation), np.uint8), np.zeros(len(reservation), np.uint64))
"""

# Round trips until enough; what each took, in microseconds.
CALLER = """
import json, sys, time
from kvarter.node import RemoteStore
store = RemoteStore(sys.argv[1], sys.argv[2], timeout=60.0, patience=20.0)
print("began", flush=True)
sys.stdin.readline()
took = []
for _ in range(int(sys.argv[3])):
    begun = time.perf_counter()
    store.index.look()
    took.append((time.perf_counter() - begun) * 1e6)
print(json.dumps(took), flush=True)
store.close()
"""


def process(*arguments: str) -> subprocess.Popen[str]:
    """A Python program that says one line once it is ready."""
    started = subprocess.Popen(
        [sys.executable, "-c", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None and started.stdout.readline()
    return started


def end(started: subprocess.Popen[str]) -> None:
    started.kill()
    started.communicate()


@contextmanager
def node(dram: int, **options: Any) -> Iterator[str]:
    """The path of a node in another process."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/node/node.sock"
        started = process(_NODE, path, json.dumps({"dram": dram, **options}))
        try:
            yield path
        finally:
            started.communicate()  # its standard input ends, and so does it


@contextmanager
def echo() -> Iterator[Callable[[], None]]:
    """One packet there and one back, between two processes that do nothing else."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/echo.sock"
        started = process(_ECHO, path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(path)
            packet = bytes(96)

            def ping() -> None:
                connection.send(packet)
                connection.recv(64)

            yield ping
        end(started)


def here() -> str:
    return str(Path(__file__).parent)

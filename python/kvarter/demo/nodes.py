"""`kvarter serve` for the demonstration: one node, or two that know each other."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kvarter.errors import AttachError, KvarterError
from kvarter.node.control import Control

_NODE_SECONDS = 60.0  # for a node to come up


class RunFailed(KvarterError, RuntimeError):
    """A run ended without an outcome; the message carries what the engine or the node said last."""


@contextlib.contextmanager
def nodes(count: int, dram: str) -> Iterator[list[str]]:
    """What engines call each of so many nodes, which are peers over loopback when there is more than one."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = _free_ports(count)
        yield [stack.enter_context(_node(directory / str(n), n, ports, dram)) for n in range(count)]


@contextlib.contextmanager
def _node(directory: Path, number: int, ports: list[int], dram: str) -> Iterator[str]:
    directory.mkdir()
    lines = [f'dram = "{dram}"']
    if len(ports) > 1:
        others = ",".join(f"127.0.0.1:{port}" for n, port in enumerate(ports) if n != number)
        lines += ["[peers]", f'listen = "127.0.0.1:{ports[number]}"', 'device = "lo"', f'static = "{others}"']
        lines += ["look_seconds = 2.0"]  # a node of a demonstration shares its cores with two engines
    settings, path = directory / "node.toml", str(directory / "node" / "node.sock")
    settings.write_text("\n".join([*lines, ""]))
    command = [sys.executable, "-m", "kvarter.cli.main", "serve", "--socket", path, "--config", str(settings)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stderr=log)
        try:
            end = time.monotonic() + _NODE_SECONDS
            while not _answers(path):
                if process.poll() is not None or time.monotonic() > end:
                    raise RunFailed(f"`kvarter serve` failed: {last_line(log)}")
                time.sleep(0.05)
            yield f"unix://{path}"
        finally:
            process.terminate()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        doors = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [door.getsockname()[1] for door in doors]


def _answers(path: str) -> bool:
    try:
        Control(path).close()
    except AttachError:
        return False
    return True


def last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"

"""The nodes of this user: their sockets, and the pools that its processes hold."""

import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from .. import _core
from ..config import Config
from ..errors import ConfigError
from .finding import Finding, Level, size

_UCRED = struct.Struct("3i")


class Held(NamedTuple):
    """Memfds that the same processes hold: together mostly one pool."""

    pids: tuple[int, ...]
    files: int
    bytes: int
    resident: int


def sockets(directory: Path | None = None) -> Finding:
    """Each socket in the directory, with the process that answers."""
    where = directory or _directory()
    if not where.is_dir():
        return Finding("sockets", Level.OK, f"none in {where}", data={"directory": str(where), "sockets": {}})
    status = where.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return Finding(
            "sockets",
            Level.PROBLEM,
            f"{where} has mode {status.st_mode & 0o7777:04o} and owner {status.st_uid}, expected mode 0700 and "
            f"owner {os.geteuid()}",
            f"Run `chmod 700 {where}`, or set another `directory`.",
            {"directory": str(where)},
        )
    answers = {path.name: _answers(path) for path in sorted(where.glob("*.sock"))}
    data = {"directory": str(where), "sockets": answers}
    alive = [f"{name} of process {pid}" for name, pid in answers.items() if pid is not None]
    stale = [name for name, pid in answers.items() if pid is None]
    found = ", ".join([*alive, *(f"{name} is stale" for name in stale)]) or "none"
    if stale:
        advice = f"Nothing: the next engine removes what killed ones left; or run `rm {where}/{stale[0]}`."
        return Finding("sockets", Level.NOTE, f"{found} in {where}", advice, data)
    return Finding("sockets", Level.OK, f"{found} in {where}", data=data)


def pools(proc: Path = Path("/proc")) -> Finding:
    """The shared memory of Kvarter that live processes of this user hold, engines' workers included."""
    found = held(proc)
    words = [
        f"{size(pool.bytes)} ({size(pool.resident)} resident) in processes {', '.join(map(str, pool.pids))}"
        for pool in found
    ]
    data = {"pools": [pool._asdict() for pool in found]}
    return Finding("pools", Level.OK, "; ".join(words) or "none", data=data)


def held(proc: Path) -> list[Held]:
    """By the processes that hold them, the largest first."""
    holders: dict[tuple[int, int], set[int]] = {}
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    for link in proc.glob("[0-9]*/fd/*"):
        try:
            if not str(link.readlink()).startswith("/memfd:kvarter-") or link.lstat().st_uid != os.geteuid():
                continue
            status = link.stat()
        except OSError:  # gone meanwhile, or another user's
            continue
        file = (status.st_dev, status.st_ino)
        holders.setdefault(file, set()).add(int(link.parts[-3]))
        sizes[file] = (status.st_size, status.st_blocks * 512)
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for file, pids in holders.items():
        groups.setdefault(tuple(sorted(pids)), []).append(sizes[file])
    found = [
        Held(pids, len(files), sum(nbytes for nbytes, _ in files), sum(resident for _, resident in files))
        for pids, files in groups.items()
    ]
    return sorted(found, key=lambda pool: -pool.bytes)


def _directory() -> Path:
    try:
        return Path(Config.load().directory or _core.default_directory())
    except ConfigError:  # the settings' own finding says so
        return Path(_core.default_directory())


def _answers(path: Path) -> int | None:
    """The process that listens at a socket, None if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, _, _ = _UCRED.unpack(credentials)
    return int(pid)

"""A pool that outlives its node: a node that comes after it finds the memory where it still is, and goes on with it.

While it runs, a node says in a file beside its socket which memory files make its pool, and who maps them. The next one
takes the files from systemd's descriptor store, or out of the processes that hold them: the node before it, engines and
their workers. There is never a second pool where the first can be had.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from . import systemd

logger = logging.getLogger("kvarter.node")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class File(msgspec.Struct, frozen=True):
    """A memory file of a pool. arena: its number; -1 for the records."""

    inode: int
    nbytes: int
    arena: int


class Legacy(msgspec.Struct, frozen=True):
    """What a node says of its pool. mappers: (process id, its start) of those that map it; id 0: of another pid
    namespace."""

    boot: str
    pool: bytes
    files: tuple[File, ...]
    mappers: tuple[tuple[int, int], ...]
    version: int = 1


class Adopted:
    """Descriptors of a pool found, and processes that may still copy for the node before. The store takes the
    descriptors over."""

    def __init__(self, arenas: list[int], records: int, elders: set[int]) -> None:
        self.arenas, self.records, self.elders = arenas, records, elders


def legacy_path(path: str) -> Path:
    return Path(path + ".pool")


def leave(path: str, pool: bytes, files: Iterable[tuple[int, int, int]], mappers: Iterable[int]) -> None:
    """Says so for the next node. files: (descriptor, bytes, arena). Replaces the file at once or not at all."""
    legacy = Legacy(
        _BOOT.read_text().strip(),
        pool,
        tuple(File(os.fstat(fd).st_ino, nbytes, arena) for fd, nbytes, arena in files),
        tuple((pid, started(pid)) for pid in sorted(set(mappers))),
    )
    place = legacy_path(path)
    new = place.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(legacy))
    new.replace(place)


def find(path: str) -> Adopted | None:
    """The pool of the node that was at `path` before; None when there was none, or nobody holds it any more."""
    try:
        legacy = msgspec.json.decode(legacy_path(path).read_bytes(), type=Legacy)
    except (OSError, msgspec.MsgspecError):
        return None
    if legacy.boot != _BOOT.read_text().strip() or legacy.version != 1:
        return None
    alive = {pid for pid, start in legacy.mappers if pid and started(pid) == start}
    wanted = {file.inode: file for file in legacy.files}
    held: dict[int, int] = {}  # descriptors by inode
    for fd in systemd.stored():
        if (inode := os.fstat(fd).st_ino) in wanted and inode not in held:
            held[inode] = fd
        else:
            os.close(fd)
    holders = set()
    for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        if pid == os.getpid():
            continue
        for inode, link in _memory_files(pid).items():
            if inode in wanted:
                holders.add(pid)
                if inode not in held and (opened := _open(link, wanted[inode])) is not None:
                    held[inode] = opened
    foreign = any(pid == 0 for pid, _ in legacy.mappers)
    if foreign or len(held) < len(wanted):
        if holders or alive:
            why = "a process in another pid namespace maps it" if foreign else "not all of it can be reached"
            logger.warning("the pool of the node before is not taken over: %s", why)
        for fd in held.values():
            os.close(fd)
        return None
    arenas = sorted((file for file in legacy.files if file.arena >= 0), key=lambda file: file.arena)
    records = next(file for file in legacy.files if file.arena < 0)
    return Adopted([held[file.inode] for file in arenas], held[records.inode], alive | holders)


def started(pid: int) -> int:
    """When a process started, in ticks since boot; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _memory_files(pid: int) -> dict[int, Path]:
    """Descriptors of Kvarter's memory files that a process of ours has, by inode."""
    found = {}
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if str(link.readlink()).startswith("/memfd:kvarter-"):
                found[link.stat().st_ino] = link
    except OSError:  # gone, or another user's
        pass
    return found


def _open(link: Path, file: File) -> int | None:
    try:
        fd = os.open(link, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(fd).st_ino == file.inode and os.fstat(fd).st_size >= file.nbytes:
        return fd
    os.close(fd)
    return None

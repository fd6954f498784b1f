"""Whether the pool can have pages of 2 MiB."""

import ctypes
import errno
import mmap
import os
from pathlib import Path

from .finding import Finding, Level, read

HUGE = 2 << 20
_MADV_COLLAPSE, _MAP_FIXED, _PROT_NONE = 25, 0x10, 0


def huge_pages(root: Path = Path("/")) -> Finding:
    """What the kernel's switches say, and what it does with a page of ours when asked."""
    shmem = read(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled")
    chosen = shmem.partition("[")[2].partition("]")[0] or "absent"
    reserved = int(read(root / "proc/sys/vm/nr_hugepages") or 0)
    return verdict(collapse(), chosen, reserved)


def verdict(refusal: str, shmem_enabled: str, reserved: int) -> Finding:
    """refusal: what MADV_COLLAPSE got, "" if it works."""
    works = refusal or "works"
    data = {"shmem_enabled": shmem_enabled, "nr_hugepages": reserved, "madv_collapse": works}
    found = f"MADV_COLLAPSE {works}, shmem_enabled {shmem_enabled}, {reserved} reserved"
    if not refusal or shmem_enabled in ("always", "within_size", "advise", "force"):
        return Finding("huge pages", Level.OK, found, data=data)
    advice = (
        "Write `advise` to /sys/kernel/mm/transparent_hugepage/shmem_enabled on the host: copies are faster with "
        "huge pages."
    )
    return Finding("huge pages", Level.NOTE, found, advice, data)


def collapse() -> str:
    """Makes one huge page of shared memory, and unmakes it. "" or the kernel's refusal."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fd = os.memfd_create("kvarter-doctor")
    os.ftruncate(fd, HUGE)
    hole = libc.mmap(None, 2 * HUGE, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if hole == ctypes.c_void_p(-1).value:
        os.close(fd)
        return errno.errorcode[ctypes.get_errno()]
    try:
        page = (hole + HUGE - 1) // HUGE * HUGE
        libc.mmap(page, HUGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd, 0)
        ctypes.memset(page, 1, HUGE)
        refused = libc.madvise(page, HUGE, _MADV_COLLAPSE) != 0
        return errno.errorcode[ctypes.get_errno()] if refused else ""
    finally:
        libc.munmap(hole, 2 * HUGE)
        os.close(fd)

"""Finds UCX and loads it, once and before anything that needs it.

A process must have one UCX: two copies have two sets of globals, and modules that do not know of each other. So
one that is loaded already (by ucxx, say) is used as it is; else the system's, which may reach RDMA devices; else
PyPI's libucx, which cannot. `_ucx` finds the one that is loaded by its SONAME, and is imported in no other way.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvarter.errors import KvarterError

if TYPE_CHECKING:
    from types import ModuleType

SONAME = "libucp.so.0"
Source = Literal["process", "system", "wheel"]
_lock = threading.Lock()


class UcxMissing(KvarterError, ImportError):
    """No UCX that loads, or a Kvarter built without its half of it."""


class Library(NamedTuple):
    """The UCX of this process.

    module: `kvarter._ucx`. source: who brought it: "process", it was there; "system"; "wheel", PyPI's.
    path: of libucp. version: (major, minor, release). rdma: whether its modules include InfiniBand's and RoCE's;
    whether there is such a device is another matter.
    """

    module: ModuleType
    source: Source
    path: Path
    version: tuple[int, int, int]
    rdma: bool


def load(prefer: Literal["system", "wheel"] = "system") -> Library:
    """Loads UCX and returns it; the same each time. Any thread.

    prefer: which is tried first where both are installed. Raises UcxMissing, saying what to install.
    """
    with _lock, _undisturbed_hangup():
        source = _find(prefer)
        try:
            from kvarter import _ucx
        except ImportError as error:
            raise UcxMissing(
                f"kvarter._ucx does not load: {error}. Kvarter was built without UCX (KVARTER_UCX=OFF), or the "
                f"{source}'s UCX is not one of version 1"
            ) from error
    path = _loaded()
    if path is None:
        raise UcxMissing(f"{SONAME} was loaded and is not in /proc/self/maps")
    rdma = any((path.parent / "ucx").glob("libuct_ib*.so*"))
    return Library(_ucx, source, path, _ucx.version(), rdma)


def _find(prefer: Literal["system", "wheel"]) -> Source:
    if _loaded() is not None:
        return "process"
    tried = []
    for source in sorted(("system", "wheel"), key=lambda name: name != prefer):
        try:
            if source == "system":
                ctypes.CDLL(SONAME)
                return "system"
            if find_spec("libucx") is not None:
                import libucx

                libucx.load_library()
                return "wheel"
            tried.append("PyPI's libucx-cu12 is not installed")
        except OSError as error:
            tried.append(f"the {source}'s: {error}")
    raise UcxMissing(
        f"no UCX ({'; '.join(tried)}). Install the cluster's own, which may have RDMA, or "
        '`pip install "kvarter[ucx]"`'
    )


def _loaded() -> Path | None:
    """Where the libucp of this process came from."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        name = line.rpartition(" ")[2]
        if "/libucp.so" in name:
            return Path(name)
    return None


@contextmanager
def _undisturbed_hangup() -> Iterator[None]:
    """Loading UCX makes SIGHUP a debugger's signal. We leave it as it was: it ends a process, or reloads it."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.create_string_buffer(1024)  # a struct sigaction, whatever its size
    if libc.sigaction(signal.SIGHUP, None, before) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield
    finally:
        libc.sigaction(signal.SIGHUP, before, None)

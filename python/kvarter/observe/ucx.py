"""Which UCX there is, and over what it can carry bytes. Nothing in this version needs it."""

import ctypes.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from .finding import Finding, Level

_VERSION = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.ucp_get_version_string.restype = ctypes.c_char_p
print(library.ucp_get_version_string().decode())
"""


def ucx(find_library: Callable[[str], str | None] = ctypes.util.find_library) -> Finding:
    """The system's, which may have RDMA, or else the wheel's. Loaded in a process of its own."""
    wheel = _wheel()
    library = find_library("ucp") or (wheel and str(wheel / "lib" / "libucp.so.0"))
    if not library:
        advice = 'Install the cluster\'s own UCX, or `pip install "kvarter[ucx]"`, to reach other hosts.'
        return Finding("UCX", Level.NOTE, "not found", advice, {"library": None})
    answer = _run(sys.executable, "-c", _VERSION, library)
    if answer.returncode != 0:
        why = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        advice = "Reinstall it; the loader's message says what it misses."
        return Finding("UCX", Level.NOTE, f"{library} does not load: {why}", advice, {"library": library})
    version = answer.stdout.strip()
    info = shutil.which("ucx_info") or (wheel and str(wheel / "bin" / "ucx_info"))
    found = transports(_run(info, "-d").stdout) if info else []
    words = ", ".join(found) or "unknown, without ucx_info"
    data = {"library": library, "version": version, "transports": found}
    return Finding("UCX", Level.OK, f"{version} ({library}); transports: {words}", data=data)


def transports(listing: str) -> list[str]:
    """The names in what `ucx_info -d` prints, each once."""
    lines = [line.partition("Transport:") for line in listing.splitlines()]
    return list(dict.fromkeys(name.strip() for _, mark, name in lines if mark))


def _wheel() -> Path | None:
    spec = find_spec("libucx")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))

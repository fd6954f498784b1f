"""Whether the kernel gives us an io_uring."""

import ctypes
import errno
import os
from pathlib import Path

from .finding import Finding, Level, read

_IO_URING_SETUP = 425  # the same on every architecture
_PARAMS_BYTES = 120


def io_uring(root: Path = Path("/")) -> Finding:
    """Asks for one, by the system call itself."""
    return verdict(setup(), read(root / "proc/sys/kernel/io_uring_disabled"))


def verdict(refusal: str, switch: str) -> Finding:
    """refusal: the error's name, "" for none. switch: what the sysctl io_uring_disabled says, "" where it is absent."""
    data = {"available": not refusal, "errno": refusal, "io_uring_disabled": switch}
    if not refusal:
        return Finding("io_uring", Level.OK, "available", data=data)
    if refusal == "ENOSYS":
        found, advice = "absent from this kernel", "Use a kernel from 5.1 on, or a sandbox that has io_uring."
    elif refusal in ("EPERM", "EACCES") and switch in ("1", "2"):
        found = f"switched off, io_uring_disabled is {switch}"
        advice = "Run `sysctl kernel.io_uring_disabled=0` on the host."
    elif refusal in ("EPERM", "EACCES"):
        found = "blocked by seccomp or a security module"
        advice = (
            "Allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile."
        )
    else:
        found = "refused"
        advice = "Raise the limits of locked memory and of open files (`ulimit -l`, `ulimit -n`)."
    return Finding("io_uring", Level.NOTE, f"{found} ({refusal})", advice, data)


def setup() -> str:
    """Makes a ring of one entry and closes it. "" or the name of the error."""
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(_PARAMS_BYTES)
    fd = libc.syscall(ctypes.c_long(_IO_URING_SETUP), ctypes.c_uint(1), params)
    if fd < 0:
        return errno.errorcode[ctypes.get_errno()]
    os.close(fd)
    return ""

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
    refusal = setup()
    switch = read(root / "proc/sys/kernel/io_uring_disabled")
    data = {"available": not refusal, "errno": refusal, "io_uring_disabled": switch}
    if not refusal:
        return Finding("io_uring", Level.OK, "available", data=data)
    if refusal == "ENOSYS":
        advice = "Use a kernel from 5.1 on, or a sandbox that has io_uring."
        return Finding("io_uring", Level.NOTE, "absent from this kernel (ENOSYS)", advice, data)
    if refusal in ("EPERM", "EACCES") and switch in ("1", "2"):
        advice = "Set it to 0 with `sysctl kernel.io_uring_disabled=0` on the host."
        return Finding("io_uring", Level.NOTE, f"switched off: io_uring_disabled is {switch}", advice, data)
    if refusal in ("EPERM", "EACCES"):
        advice = (
            "Allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile."
        )
        return Finding(
            "io_uring", Level.NOTE, f"blocked by seccomp or a security module ({refusal})", advice, data
        )
    advice = "Raise the limits of locked memory and open files (`ulimit -l`, `ulimit -n`)."
    return Finding("io_uring", Level.NOTE, f"refused ({refusal})", advice, data)


def setup() -> str:
    """Makes a ring of one entry and closes it. "" or the name of the error."""
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(_PARAMS_BYTES)
    fd = libc.syscall(ctypes.c_long(_IO_URING_SETUP), ctypes.c_uint(1), params)
    if fd < 0:
        return errno.errorcode[ctypes.get_errno()]
    os.close(fd)
    return ""

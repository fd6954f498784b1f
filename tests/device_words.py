"""A CUDA driver without a card: tests/fake_driver, built once a session and loaded in place of libcuda.so.1."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parent.parent


def build(directory: Path) -> Path:
    """Its library; the compiler is the one that an installation from source needs."""
    library = directory / "libfakecuda.so"
    sources = sorted(map(str, (ROOT / "tests" / "fake_driver").glob("*.cpp")))
    includes = ["-I", str(ROOT / "tests"), "-I", str(ROOT / "csrc")]
    compiler = os.environ.get("CXX", "c++")
    subprocess.run(
        [
            compiler,
            "-std=c++20",
            "-O1",
            "-shared",
            "-fPIC",
            *includes,
            *sources,
            "-pthread",
            "-o",
            str(library),
        ],
        check=True,
    )
    return library


class FakeDriver:
    """What tests/fake_driver/fake_driver.h offers. Driver and memory are as new; no engine may use it before."""

    def __init__(self, library: Path) -> None:
        self.path = str(library)
        self._calls = ctypes.CDLL(self.path)
        for name in ("fake_alloc", "fake_stream", "fake_count"):
            getattr(self._calls, name).restype = ctypes.c_uint64
        self._calls.fake_violations.restype = ctypes.c_size_t
        self._calls.fake_reset()

    def set_delay(self, microseconds: int, seed: int = 0) -> None:
        self._calls.fake_set_delay(microseconds, seed)

    def set_lock_limit(self, nbytes: int) -> None:
        self._calls.fake_set_lock_limit(ctypes.c_size_t(nbytes))

    def set_version(self, version: int) -> None:
        self._calls.fake_set_version(version)

    def fail(self, function: str, n: int = 1, result: int = 999) -> None:
        self._calls.fake_fail(function.encode(), n, result)

    def fail_copy(self, n: int, result: int = 700) -> None:
        self._calls.fake_fail_copy(n, result)

    def memory(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Memory of the device, as the CPU sees it."""
        at = self._calls.fake_alloc(ctypes.c_size_t(nbytes))
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(at))

    def free(self, memory: npt.NDArray[np.uint8]) -> None:
        self._calls.fake_free(ctypes.c_uint64(memory.ctypes.data))

    def run_kernels(self) -> None:
        """Until the default stream has done all it was told: what a kernel put there now finds done."""
        self._calls.fake_synchronize(ctypes.c_uint64(0))

    def count(self, what: str) -> int:
        return int(self._calls.fake_count(what.encode()))

    def violations(self) -> list[str]:
        room = self._calls.fake_violations(None, ctypes.c_size_t(0)) + 1
        text = ctypes.create_string_buffer(room)
        self._calls.fake_violations(text, ctypes.c_size_t(room))
        return text.value.decode().splitlines()

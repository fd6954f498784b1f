"""The pool as UCX's engine takes it: one piece of memory, however many arenas it has."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from .. import _core


class Memory:
    """Its arenas side by side. payload: u8[bytes], of all of them; it lives as long as this. Thread-safe."""

    def __init__(self, exports: Seq[tuple[int, int, int, int]]) -> None:
        """exports: (descriptor, bytes, kind, arena) of the pool's files."""
        arenas = sorted((export for export in exports if export[2] == 0), key=lambda export: export[3])
        sizes = [export[1] for export in arenas]
        self._starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self._window = _core.Window(arenas)
        self.payload: npt.NDArray[np.uint8] = self._window.payload
        self.address, self.bytes = self._window.address, sum(sizes)

    def offsets(self, slots: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        """Where in it each slot begins."""
        offsets: npt.NDArray[np.int64] = self._starts[slots["arena"]] + slots["offset"].astype(np.int64)
        return offsets

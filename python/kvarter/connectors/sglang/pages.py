"""Where pages lie: in SGLang's host pools, whatever their layout, or in tensors that it hands over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import _core

if TYPE_CHECKING:
    import torch

Indices = npt.NDArray[np.int64]


class Part(NamedTuple):
    """Pages as the copy engine takes them: numbers of `blocks`, in memory that `memory` keeps alive."""

    blocks: _core.Blocks
    numbers: Indices
    memory: npt.NDArray[np.uint8] | None = None


class Pages(ABC):
    """Pages of one kind. `bytes`: of one, as it is stored. `form`: how those bytes are put together."""

    bytes: int
    form: str

    @abstractmethod
    def read(self, at: Seq[Any]) -> Part:
        """What is in these pages."""

    @abstractmethod
    def room(self, at: Seq[Any]) -> Part:
        """Where these pages are to be copied to."""

    @abstractmethod
    def fill(self, at: Seq[Any], part: Part, count: int) -> None:
        """The first `count` have been copied to `room`."""


class Strided(Pages):
    """Pages that lie at equal distances: copied where they are, one run for each region. `at`: their numbers."""

    def __init__(self, regions: Seq[tuple[int, int, int]], count: int) -> None:
        """regions: (address in page 0, distance to the next page, bytes) of each, in the order of a stored page."""
        self.regions, self.count = list(regions), count
        self._blocks = _core.Blocks([(at, stride, size, 1, size) for at, stride, size in regions], count)
        self.bytes = self._blocks.bytes
        self.form = f"regions {[size for _, _, size in regions]}"

    def read(self, at: Seq[Any]) -> Part:
        return Part(self._blocks, np.asarray(at, np.int64))

    room = read

    def fill(self, at: Seq[Any], part: Part, count: int) -> None: ...


class _Staged(Pages):
    """Copied by way of a buffer."""

    def room(self, at: Seq[Any]) -> Part:
        memory = np.empty((len(at), self.bytes), np.uint8)
        blocks = _core.Blocks([(memory.ctypes.data, self.bytes, self.bytes, 1, self.bytes)], len(at))
        return Part(blocks, np.arange(len(at)), memory)


class Flat(_Staged):
    """Pages that only the pool itself can put together. `at`: their numbers."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._empty = pool.get_dummy_flat_data_page()
        self.bytes = self._empty.nbytes
        self.form = f"flat {self.bytes}"

    def read(self, at: Seq[Any]) -> Part:
        part = self.room(at)
        assert part.memory is not None
        for row, page in zip(part.memory, at, strict=True):
            row[:] = as_bytes(self._pool.get_data_page(int(page) * self._pool.page_size, flat=True))
        return part

    def fill(self, at: Seq[Any], part: Part, count: int) -> None:
        assert part.memory is not None
        for row, page in zip(part.memory[:count], at, strict=False):
            data = self._empty.clone()
            as_bytes(data)[:] = row
            self._pool.set_from_flat_data_page(int(page) * self._pool.page_size, data)


class Tensors(_Staged):
    """Pages that SGLang hands over, a flat tensor each. `at`: the tensors."""

    def __init__(self, nbytes: int) -> None:
        self.bytes, self.form = nbytes, f"flat {nbytes}"

    def read(self, at: Seq[Any]) -> Part:
        part = self.room(at)
        assert part.memory is not None
        for row, tensor in zip(part.memory, at, strict=True):
            row[:] = as_bytes(tensor)
        return part

    def fill(self, at: Seq[Any], part: Part, count: int) -> None:
        assert part.memory is not None
        for row, tensor in zip(part.memory[:count], at, strict=False):
            as_bytes(tensor)[:] = row


def as_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The tensor's own memory where it is contiguous, else a copy."""
    import torch

    found: npt.NDArray[np.uint8] = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return found


def pages_of(pool: Any) -> Pages:
    """The pages of a host pool: in place where its own word on where they lie shows equal distances."""
    import torch

    count = pool.size // pool.page_size
    # A pool that shares its memory with others moves its pages while it runs.
    if getattr(pool, "shared_allocation_domain", None) is not None or count < 1:
        return Flat(pool)

    def regions(page: int) -> list[tuple[int, int]]:
        first = page * pool.page_size
        places, sizes = pool.get_page_buffer_meta(torch.arange(first, first + pool.page_size))
        return list(zip(map(int, places), map(int, sizes), strict=True))

    try:
        begin, last = regions(0), regions(count - 1)
    except (AttributeError, NotImplementedError, ValueError):  # how a pool says that it has no such places
        return Flat(pool)
    second = regions(1) if count > 1 else [(at + size, size) for at, size in begin]
    found = [(at, after - at, size) for (at, size), (after, _) in zip(begin, second, strict=True)]
    straight = all(
        size == size_then and then == at + stride * (count - 1)
        for (at, stride, size), (then, size_then) in zip(found, last, strict=True)
    )
    return Strided(found, count) if straight else Flat(pool)

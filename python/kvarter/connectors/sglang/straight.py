"""Pages that go to disk and back from where SGLang has them: a log under its host pool, and no memory of ours."""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _core
from ...config import Config
from ...errors import UnsupportedEngine
from ...geometry import Full
from ...keys import Namespace
from ...sequence import Sequence
from ...tiers.log import account
from ...transfers import Slots
from .backing import Backing, Done
from .pages import Pages, Strided

_STEP_BYTES = 64 << 20  # between looks at the clock
_WAIT_SECONDS = 0.002  # for the log: another thread may have taken the answer
_FLUSH_SECONDS = 30.0


class Straight(Backing):
    """As `Session`, for one rank that has no node: what is stored is on disk, and in DRAM only where SGLang has it.

    Reading a page for a write may go on after its deadline: what is written then fails its checksum, and is a miss. A
    read that the device has begun is waited for. Raises `ConfigError` for settings that name no disk. Thread-safe.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config, self._options = config, config.straight_disk()
        self._clock = _core.SteadyClock()
        self._log: _core.DiskLog | None = None
        self._arena: _core.ForeignArena | None = None
        self._begins, self._strides, self._sizes = np.zeros((3, 0), np.uint64)  # of a page's regions
        self._spaces: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._answers: dict[int, npt.NDArray[np.uint8]] = {}
        self._nobodys: set[int] = set()  # tickets that nobody waits for any more

    def serve(self, name: str, pages: Pages) -> None:
        """The pool whose pages will come. Recovers what is on disk. Raises `UnsupportedEngine` for a second one, and
        for one that does not lie in whole pages of the system's, `ConfigError` for a directory that cannot be used."""
        if self._log is not None:
            raise UnsupportedEngine(
                f"pool {name} is a second one, and disk.straight serves one alone: unset it, and set dram or node"
            )
        if not isinstance(pages, Strided) or any(
            part % _core.GRANULE for region in pages.regions for part in region
        ):
            raise UnsupportedEngine(
                f"pages of pool {name} ({pages.form}) are not all in whole blocks of {_core.GRANULE} bytes, which "
                "disk.straight needs: page_first or page_first_direct, SGLang's allocator shm and a larger page make "
                "them so; or unset it, and set dram or node"
            )
        begin = min(at for at, _, _ in pages.regions)
        end = max(at + stride * (pages.count - 1) + size for at, stride, size in pages.regions)
        self._begins, self._strides, self._sizes = np.array(pages.regions, np.uint64).T
        self._begins = self._begins - np.uint64(begin)
        self._arena = _core.ForeignArena(memoryview((ctypes.c_uint8 * (end - begin)).from_address(begin)))
        self._log = self._options.open(self._arena, self._clock, block_bytes=pages.bytes)
        atexit.register(self.close)  # Python ends a thread inside the core only by ending the process

    def ready(self) -> bool:
        return self._log is not None

    def wait(self, seconds: float) -> bool:
        return self.ready()

    def leading(self, sequence: Sequence, name: str) -> int:
        """How many pages, from the sequence's first known on, are there in a row."""
        if self._log is None or not isinstance(sequence.namespace.groups[0].lifetime, Full):
            return 0
        first, chain = sequence.first_unit, self._chain(sequence)
        pages = self._log.leading(chain, 0, first, sequence.units) - first
        if pages:
            self._log.touch(chain, 0, first, pages)
        return pages

    def there(self, sequence: Sequence) -> Done:
        """Which of the sequence's known pages are there."""
        if self._log is None:
            return np.zeros(sequence.units - sequence.first_unit, np.bool_)
        chain = self._chain(sequence)
        known = range(sequence.first_unit, sequence.units)
        return np.array([self._log.contains(chain, 0, unit) for unit in known], np.bool_)

    def put(self, sequence: Sequence, pages: Pages, at: Seq[Any], shard: int, end: float) -> Done:
        """Writes pages that are not there. Of each, whether it is there now."""
        kept = self.there(sequence)[: len(at)]
        if self._log is None or self._arena is None:
            return self._count(kept, "written", "not_ready")
        new = np.flatnonzero(~kept)
        self.pages["already_resident"] += len(at) - len(new)
        chain, step = self._chain(sequence), max(_STEP_BYTES // pages.bytes, 1)
        for begin in range(0, len(new), step):
            if time.monotonic() > end:
                break
            some = new[begin : begin + step]
            slots = self._slots([at[page] for page in some])
            slots["checksum"] = self._arena.checksums(slots)
            statuses = self._answer(self._log.write(chain, _ranges(some + sequence.first_unit), slots), end)
            if statuses is not None:
                kept[some] = statuses == _core.Status.Ok
        self._count(kept[new], "written", "failed")
        return kept

    def get(self, sequence: Sequence, pages: Pages, at: Seq[Any], shard: int, end: float) -> Done:
        """Reads pages: as many as are there in a row, from the first on."""
        loaded = np.zeros(len(at), np.bool_)
        there = self.there(sequence)[: len(at)]
        row = len(at) if there.all() else int(np.argmin(there))
        self.pages["not_found"] += len(at) - row
        if self._log is None or not row:
            return loaded
        first, chain = sequence.first_unit, self._chain(sequence)
        deadline = self._clock.now() + int(max(end - time.monotonic(), 0.0) * 1e9)
        slots = self._slots(at[:row])
        statuses = self._answer(self._log.read(chain, [(0, first, row)], slots, deadline), None)
        if statuses is not None:
            good = statuses == _core.Status.Ok
            loaded[: row if good.all() else int(np.argmin(good))] = True
        self._count(loaded[:row], "loaded", "failed")
        return loaded

    def _chain(self, sequence: Sequence) -> _core.Chain:
        assert self._log is not None
        namespace = sequence.namespace
        digest = namespace.digest()
        with self._lock:
            if digest not in self._spaces:
                chained = isinstance(namespace.groups[0].lifetime, Full)
                shape = (1, 1, chained, [int(size) for size in self._sizes])
                self._spaces[digest] = self._log.open_namespace(digest, [shape])
            return sequence.chain(self._spaces[digest])

    def _slots(self, at: Seq[Any]) -> Slots:
        """Of each page, one for each of its regions."""
        numbers = np.asarray(at, np.uint64)[:, None]
        slots = np.zeros(numbers.size * len(self._sizes), _core.SLOT_DTYPE)
        slots["offset"] = (self._begins + numbers * self._strides).ravel()
        slots["length"] = np.tile(self._sizes, numbers.size)
        return slots

    def _answer(self, ticket: int, end: float | None) -> npt.NDArray[np.uint8] | None:
        """Of each page; None when the log takes no more, or has not answered by `end`."""
        assert self._log is not None
        while ticket:
            with self._lock:
                for number, statuses, *_ in self._log.poll():
                    self._answers[number] = statuses
                for number in self._nobodys & self._answers.keys():
                    self._nobodys.remove(number)
                    del self._answers[number]
                if (answer := self._answers.pop(ticket, None)) is not None:
                    return answer
                if end is not None and time.monotonic() > end:
                    self._nobodys.add(ticket)
                    return None
            self._log.wait(_WAIT_SECONDS)
        return None

    def invalidate(self, namespace: Namespace) -> None:
        """Nothing of it is served or stored any more, after a restart neither."""
        with self._lock:
            number = self._spaces.pop(namespace.digest(), None)
        if self._log is not None and number is not None:
            self._answer(self._log.invalidate(number), time.monotonic() + self._config.store_seconds)

    def counters(self) -> dict[str, int]:
        if self._log is None:
            return {"stored_bytes": 0, "loaded_bytes": 0, "evicted_bytes": 0}
        blocks, moved = account(self._log.counters())
        blocks |= {f"{name}_bytes": moved[name] for name in ("stored", "loaded")} | {"evicted_bytes": 0}
        return {name: int(value) for name, value in blocks.items()}

    def ledger(self) -> dict[str, int]:
        return self._log.ledger() if self._log is not None else {}

    def close(self) -> None:
        """What was written survives a crash, too. Idempotent."""
        log, arena = self._log, self._arena
        if log is None or arena is None:
            return
        atexit.unregister(self.close)
        self._answer(log.flush(), time.monotonic() + _FLUSH_SECONDS)
        self._log = self._arena = None
        log.close()
        arena.close()


def _ranges(units: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Neighbours together, as the log takes them."""
    runs = np.split(units, np.flatnonzero(np.diff(units) != 1) + 1)
    return [(0, int(run[0]), len(run)) for run in runs]

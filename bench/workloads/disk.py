"""The disk log, and the store over it, beside fio.

Writes go into a log that has been filled, so that segments are recycled, and fio overwrites its file. Checksums
are on. Through the store a write is reserve, checksum, commit and the flush, a read a match and a load by a store that
has just begun, so that all comes from the disk. TMPDIR says on which file system.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from disk_log import Ours
from disk_store import ThroughStore
from fio import fio, in_turns, latency_row, rows
from report import Row, Run


def speed(run: Run, directory: Path, device: str, block: int) -> Iterator[Row]:
    moved = (64 << 20) if run.quick else (1 << 30)
    size = 4 * moved if run.quick else 2 * moved
    path = directory / f"{device}-{block}"
    path.mkdir()
    log = Ours(path / "log", device, block, size + (300 << 20))
    log.write(size // block + log.count)  # from here on segments are recycled
    if shutil.which("fio"):
        fio(path, "write", "io_uring", 1 << 20, size, size)
    rounds = 2 if run.quick else 5
    name = f"{block >> 10} KiB, {device}"
    goal = 0.9 if block >= 1 << 20 else None
    took = in_turns(
        rounds, lambda: log.write(moved // block), lambda: fio(path, "write", device, block, size, moved)
    )
    yield from rows(f"write {name}", goal, *took)
    took = in_turns(
        rounds,
        lambda: log.read(moved // block, run),
        lambda: fio(path, "randread", device, block, size, moved),
    )
    yield from rows(f"read {name}", goal, *took)
    if block == 1 << 20:
        took = in_turns(
            rounds,
            lambda: log.mixed(moved // block),
            lambda: fio(path, "randrw", device, block, size, moved, "--rwmixread=70"),
        )
        yield latency_row(f"p99 of a read of {name}, 70 % reads", *took)
    log.log.close()
    shutil.rmtree(path)


def through_store(run: Run, directory: Path, device: str) -> Iterator[Row]:
    block = 1 << 20
    moved = (64 << 20) if run.quick else (1 << 30)
    path = directory / f"store-{device}"
    path.mkdir()
    ours = ThroughStore(run, path / "log", device, block, moved)
    for _ in range(3):  # from here on segments are recycled
        ours.write()
    if shutil.which("fio"):
        fio(path, "write", "io_uring", block, moved, moved)
    rounds = 2 if run.quick else 5
    name = f"{block >> 10} KiB, {device}, through the store"
    took = in_turns(rounds, ours.write, lambda: fio(path, "write", device, block, moved, moved))
    yield from rows(f"write {name}", 0.9, *took)
    took = in_turns(rounds, ours.read, lambda: fio(path, "randread", device, block, moved, moved))
    yield from rows(f"read {name}", 0.9, *took)
    shutil.rmtree(path)


def read_bytes() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes"):
            return int(line.split()[1])
    return 0


def recovery(run: Run, directory: Path) -> Iterator[Row]:
    blocks = 20_000 if run.quick else 500_000
    block = 4096
    log = Ours(directory / "many", "auto", block, (blocks * block * 3 // 2) + (1 << 30), sparse=True)
    log.write(blocks)
    log.log.close()
    before, begun = read_bytes(), time.perf_counter()
    log.open()
    seconds, moved = time.perf_counter() - begun, read_bytes() - before
    recovered = log.log.counters()["recovered"]
    run.require(recovered == blocks, f"disk: recovered {recovered} of {blocks} blocks")
    case = f"recovery of {blocks:,} blocks"
    yield Row(case, "s", seconds, goal=2.0, better="lower", kind="absolute")
    yield Row(f"{case}, read", "MiB", moved / (1 << 20), goal=100.0, better="lower", kind="absolute")
    log.log.close()


def run(run: Run) -> Iterator[Row]:
    directory = Path(tempfile.mkdtemp(prefix="kvarter-bench-"))
    try:
        for device in ("io_uring", "threads"):
            for block in (64 << 10, 1 << 20, 2 << 20):
                yield from speed(run, directory, device, block)
            yield from through_store(run, directory, device)
        yield from recovery(run, directory)
    finally:
        shutil.rmtree(directory)

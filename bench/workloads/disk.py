"""The disk log beside fio: same depth, same sizes, files whose space has been written before, in turns.

Writes go into a log that has been filled, so that segments are recycled, and fio overwrites its file. Checksums
are on. fio with io_uring has one job of the depth; beside the thread pool it has as many psync jobs as the depth.
Without fio installed the rows stand alone. TMPDIR says on which file system.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvarter import _core
from report import Row, Run, spread

DEPTH = 8
NS = bytes(32)
GB = 1e9


@dataclass(frozen=True)
class Took:
    """Of one round: wall and CPU seconds, and bytes moved."""

    seconds: float
    cpu: float
    bytes: int

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds / GB

    @property
    def cpu_per_gb(self) -> float:
        return self.cpu / (self.bytes / GB)


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Ours:
    """A log of independent blocks of one size, written from and read into the slots of a small pool."""

    def __init__(self, path: Path, device: str, block: int, capacity: int, sparse: bool = False) -> None:
        self.block = block
        self.count = max(64, (256 << 20) // block) if not sparse else 4096
        self.pool = _core.Pool(self.count * block, self.count * block, populate=False)
        memory = np.memmap(f"/proc/self/fd/{self.pool.arenas[0][0]}", np.uint64, "r+")
        memory[:] = np.random.default_rng(1).integers(0, 2**63, len(memory), dtype=np.uint64)
        self.memory = memory.view(np.uint8)
        self.slots = np.zeros(self.count, _core.SLOT_DTYPE)
        self.slots["offset"] = np.arange(self.count) * block
        self.slots["length"] = block
        self.slots["checksum"] = [
            _core.xxh3_64(self.memory[i * block : (i + 1) * block]) for i in range(self.count)
        ]
        self.random = np.random.default_rng(2)
        self.path, self.device = path, device
        self.capacity, self.sparse = capacity, sparse
        self.written: list[np.ndarray] = []
        self.done: set[int] = set()
        self.open()

    def open(self) -> None:
        self.log = _core.DiskLog(
            str(self.path),
            self.pool,
            _core.SteadyClock(),
            self.capacity,
            device=self.device,
            queue_depth=DEPTH,
            write_queue_bytes=4 << 30,
            sparse=self.sparse,
        )
        self.ns = self.log.open_namespace(NS, [(1, 1, False, [self.block])])

    def wait(self, tickets: set[int]) -> None:
        tickets -= self.done
        while tickets:
            self.log.wait(1.0)
            for ticket, status, *_ in self.log.poll():
                self.done.add(ticket)
                tickets.discard(ticket)
                if len(status) and (status != _core.Status.Ok).any():
                    raise RuntimeError(
                        f"disk: {np.count_nonzero(status)} blocks failed: {status[status > 0][0]}"
                    )

    def write(self, blocks: int) -> Took:
        """Writes new blocks, the pool over and over, one batch of it in flight while the next is prepared."""
        begun, used = time.perf_counter(), cpu()
        flying: set[int] = set()
        for first in range(0, blocks, self.count):
            n = min(self.count, blocks - first)
            digests = self.random.integers(0, 256, (n, 32), dtype=np.uint8)
            flying.add(self.log.write(_core.Chain(self.ns, digests), [(0, 0, n)], self.slots[:n]))
            self.written.append(digests)
            if len(flying) > 1:
                self.wait(flying)
        self.wait(flying)
        self.wait({self.log.flush()})
        return Took(time.perf_counter() - begun, cpu() - used, blocks * self.block)

    def read(self, blocks: int, check: Run) -> Took:
        """Reads blocks at random, a pool at a time."""
        chains = []  # of blocks that are there
        for digests in self.written[-16:]:
            chain = _core.Chain(self.ns, digests)
            there = [i for i in range(len(digests)) if self.log.contains(chain, 0, i)]
            if there:
                chains.append((chain, np.array(there)))
        halves = [self.slots[: self.count // 2], self.slots[self.count // 2 :]]
        flying: list[int] = []
        begun, used = time.perf_counter(), cpu()
        done = 0
        while done < blocks:
            chain, there = chains[int(self.random.integers(len(chains)))]
            slots = halves[0]
            halves.reverse()
            n = min(len(there), blocks - done, len(slots))
            ranges = [(0, int(block), 1) for block in self.random.permutation(there)[:n]]
            if len(flying) == 2:  # the older one has these slots
                self.wait({flying.pop(0)})
            flying.append(self.log.read(chain, ranges, slots[:n]))
            done += n
        self.wait(set(flying))
        took = Took(time.perf_counter() - begun, cpu() - used, done * self.block)
        if check.check:
            check.wrong.extend(f"disk: {finding}" for finding in self.log.audit())
        return took


def fio(path: Path, rw: str, device: str, block: int, size: int, moved: int, *more: str) -> dict[str, float]:
    """One run over a file that has been written before; its job's figures."""
    if device == "io_uring":
        engine = ["--ioengine=io_uring", f"--iodepth={DEPTH}", f"--size={size}", f"--io_size={moved}"]
    else:
        engine = ["--ioengine=psync", f"--numjobs={DEPTH}", "--thread", f"--io_size={moved // DEPTH}"]
        # Writers have a part of the file each: they would overwrite one another's.
        part = size // DEPTH
        engine += [f"--offset_increment={part}", f"--size={part}"] if rw == "write" else [f"--size={size}"]
    command = ["fio", "--name=x", f"--filename={path / 'fio'}", "--direct=1", f"--rw={rw}", f"--bs={block}"]
    command += [
        f"--size={size}",
        "--group_reporting",
        "--output-format=json",
        "--end_fsync=1",
        "--randrepeat=0",
    ]
    shown = subprocess.run([*command, *engine, *more], check=True, capture_output=True, text=True).stdout
    job = json.loads(shown[shown.index("{") :])["jobs"][0]
    side = job["write" if rw == "write" else "read"]
    cpu_seconds = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
    return {
        "rate": side["bw_bytes"] / GB,
        "cpu_per_gb": cpu_seconds / (side["io_bytes"] / GB),
        "p99_ms": side["clat_ns"].get("percentile", {}).get("99.000000", 0) / 1e6,
    }


def rows(case: str, goal: float | None, ours: list[Took], theirs: list[dict[str, float]]) -> Iterator[Row]:
    best = max(ours, key=lambda took: took.rate)
    other = max(theirs, key=lambda took: took["rate"]) if theirs else None
    ratios = [a.rate / b["rate"] for a, b in zip(ours, theirs, strict=False)]
    beside = "beside fio" if other else "fio is not installed"
    yield Row(
        f"{case}, {beside}", "GB/s", best.rate, other["rate"] if other else None, goal, spread=spread(ratios)
    )
    lowest = min(took.cpu_per_gb for took in ours)
    fio_lowest = min(took["cpu_per_gb"] for took in theirs) if theirs else None
    yield Row(f"{case}, CPU", "s/GB", lowest, fio_lowest, better="lower")


def in_turns(
    rounds: int, ours: Callable[[], Took], theirs: Callable[[], dict[str, float]]
) -> tuple[list[Took], list[dict[str, float]]]:
    have = shutil.which("fio") is not None
    mine, other = [], []
    for number in range(rounds):
        for who in (0, 1) if number % 2 else (1, 0):
            if who == 0:
                mine.append(ours())
            elif have:
                other.append(theirs())
    return mine, other


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
    log.log.close()
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
        yield from recovery(run, directory)
    finally:
        shutil.rmtree(directory)

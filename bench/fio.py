"""fio, run beside us: same depth, same sizes, over a file whose space has been written before, in turns.

With io_uring it has one job of the depth; beside the thread pool as many psync jobs as the depth. Where it is not
installed our rows stand alone.
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from report import Row, spread

DEPTH = 8
GB = 1e9


@dataclass(frozen=True)
class Took:
    """Of one round: wall and CPU seconds, and bytes moved."""

    seconds: float
    cpu: float
    bytes: int
    p99_ms: float = 0.0

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds / GB

    @property
    def cpu_per_gb(self) -> float:
        return self.cpu / (self.bytes / GB)


class Watch:
    """Begun when it is made."""

    def __init__(self) -> None:
        self.begun, self.used = time.perf_counter(), cpu()

    def took(self, nbytes: int, latencies: list[float] | None = None) -> Took:
        """latencies: in seconds, of what the p99 is of."""
        seconds, used = time.perf_counter() - self.begun, cpu() - self.used
        p99 = float(np.percentile(latencies, 99)) * 1e3 if latencies else 0.0
        return Took(seconds, used, nbytes, p99)


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


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


def latency_row(case: str, ours: list[Took], theirs: list[dict[str, float]]) -> Row:
    """Of the p99: the median of the rounds."""
    other = statistics.median(took["p99_ms"] for took in theirs) if theirs else None
    ratios = [a.p99_ms / b["p99_ms"] for a, b in zip(ours, theirs, strict=False)]
    ms = statistics.median(took.p99_ms for took in ours)
    return Row(case, "ms", ms, other, better="lower", spread=spread(ratios))

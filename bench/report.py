"""Rows, how they are measured, shown, written and compared.

A row sets one number of ours beside a limit (what the machine can do) or a plain baseline (what one would
write without Kvarter) measured in the same run. `race` interleaves the two, so that a noisy neighbour hits
both, and the best of all rounds counts; `spread` says how far the rounds lay apart.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from kvarter import _core

Better = Literal["higher", "lower"]
Contender = Callable[[int], float]
"""Does the work of one round, given its number, and says how many seconds the part that counts took."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    unit: of `ours` and `limit`. ratio: ours / limit. goal: of `ratio` when `kind` is "ratio"; of `ours` when
    it is "absolute", which holds on a quiet machine only. better: in which direction. spread: interquartile
    range of the rounds' ratios over their median.
    """

    case: str
    unit: str
    ours: float
    limit: float | None = None
    goal: float | None = None
    better: Better = "higher"
    kind: Literal["ratio", "absolute"] = "ratio"
    spread: float = 0.0
    ratio: float | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", self.ours / self.limit if self.limit else None)

    @property
    def missed(self) -> bool:
        """Whether there is a goal, and it was not reached."""
        value = self.ratio if self.kind == "ratio" else self.ours
        if self.goal is None or value is None:
            return False
        return value < self.goal if self.better == "higher" else value > self.goal


@dataclass
class Run:
    """What every workload is given.

    quick: a few seconds for all of it, to see that it works. check: verify every byte and audit every store;
    what is wrong goes to `wrong`. trace: to be replayed, instead of a generated one. peer: an interpreter with
    LMCache.
    """

    quick: bool = False
    check: bool = False
    trace: Path | None = None
    peer: Path | None = None
    wrong: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """How often each contender of a race runs."""
        return 5 if self.quick else 40

    def require(self, holds: bool, what: str) -> None:
        """Notes `what` as wrong unless it holds."""
        if not holds:
            self.wrong.append(what)


def timed(work: Callable[..., Any], *args: Any) -> float:
    """Seconds that one call takes."""
    begun = time.perf_counter()
    work(*args)
    return time.perf_counter() - begun


def race(rounds: int, *contenders: Contender) -> list[list[float]]:
    """Seconds of each contender in each round; another one begins each time. A first round is thrown away."""
    times: list[list[float]] = [[] for _ in contenders]
    for number in range(-1, rounds):
        for i in range(len(contenders)):
            who = (i + number) % len(contenders)
            seconds = contenders[who](number + 1)
            if number >= 0:
                times[who].append(seconds)
    return times


def spread(values: Sequence[float]) -> float:
    """Interquartile range over median; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle if middle else 0.0


def time_row(case: str, unit: str, ours: list[float], limit: list[float], **goal: Any) -> Row:
    """A row of durations, lower is better."""
    scale = {"ms": 1e3, "us": 1e6}[unit]
    ratios = [a / b for a, b in zip(ours, limit, strict=True)]
    return Row(
        case, unit, min(ours) * scale, min(limit) * scale, better="lower", spread=spread(ratios), **goal
    )


def rate_row(case: str, unit: str, work: float, ours: list[float], limit: list[float], **goal: Any) -> Row:
    """A row of work per second, higher is better. `work` is what each round did, in the unit's numerator."""
    ratios = [b / a for a, b in zip(ours, limit, strict=True)]
    return Row(case, unit, work / min(ours), work / min(limit), spread=spread(ratios), **goal)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = Path("/proc/cpuinfo").read_text()
    model = next(
        (line.split(":", 1)[1].strip() for line in cpu.splitlines() if "model name" in line),
        platform.machine(),
    )
    memory = next(
        line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory) / (1 << 20), 1),
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "kvarter": _core.__version__,
        **{f"{name}_kernel": used for name, used in (_core.hash_kernels() | _core.copy_kernels()).items()},
    }


def page_kind(address: int) -> str:
    """What pages this process maps at an address: "4 KiB", "2 MiB", or "mixed"."""
    size = huge = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, *rest = line.split()
        if "-" in head and not head.endswith(":"):
            low, high = (int(end, 16) for end in head.split("-"))
            inside = low <= address < high
        elif inside and head == "Rss:":
            size = int(rest[0])
        elif inside and head in ("AnonHugePages:", "ShmemPmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:"):
            huge += int(rest[0])
    return "4 KiB" if huge == 0 else "2 MiB" if huge >= size else "mixed"


def write_json(path: Path, rows: list[Row], where: dict[str, Any]) -> None:
    """{"rows": [...], "machine": {...}}; every row has every field."""
    path.write_text(json.dumps({"rows": [asdict(row) for row in rows], "machine": where}, indent=1) + "\n")


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return ""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f} {unit}".rstrip()


def show(rows: list[Row], where: dict[str, Any], before: dict[str, dict[str, Any]]) -> None:
    """Prints the table, with `ours` of an earlier run beside it where `before` has the case."""
    table = Table(title=f"{where['cpu']}, {where['cores']} cores, load {where['load_average']:.1f}")
    for heading in ("case", "ours", "limit", "ratio", "spread", "goal", ""):
        table.add_column(heading, justify="left" if heading == "case" else "right", overflow="fold")
    if before:
        table.add_column("ratio before", justify="right")
    for row in rows:
        sign = "≥" if row.better == "higher" else "≤"
        goal = (
            ""
            if row.goal is None
            else f"{sign} {_number(row.goal, row.unit if row.kind == 'absolute' else 'x')}"
        )
        mark = "" if row.goal is None else "[red]missed[/]" if row.missed else "[green]ok[/]"
        if row.goal is not None and row.kind == "absolute":
            mark += " [dim](quiet machine)[/]"
        cells = [row.case, _number(row.ours, row.unit), _number(row.limit, row.unit), _number(row.ratio)]
        old = before.get(row.case, {})
        table.add_row(
            *cells, f"{row.spread:.0%}", goal, mark, *([_number(old.get("ratio"))] if before else [])
        )
    Console(width=None if os.isatty(1) else 160).print(table)

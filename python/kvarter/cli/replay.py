"""`kvarter replay`: what a cache of this size would have served of a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvarter.cli import picture
from kvarter.cli.output import AsJson, fail
from kvarter.cli.sizes import Capacity, capacities
from kvarter.errors import KvarterError

OPTIMUM, DEFAULTS = "opt", ("hazard", "lru", "opt")


def replay(
    traces: Annotated[list[Path] | None, typer.Argument(help="Files of JSON lines.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="One or more, by commas; opt is the exact optimum.")
    ] = None,
    capacity: Annotated[
        str, typer.Option(help="Percent of unique blocks, blocks, or bytes (with --model).")
    ] = "1%,5%,10%,20%",
    second: Annotated[
        str | None, typer.Option(help="Capacity of a disk below; what is stored is copied down.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name or config.json: says what a block weighs.")] = None,
    generate: Annotated[
        str | None, typer.Option(help="Replay a synthetic trace instead: chat, agents or rag.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of --generate and --hint.")] = 0,
    sessions: Annotated[int | None, typer.Option(min=1, help="Of --generate.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the generated trace here.")] = None,
    hint: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Tell policies whether a session goes on, right with this chance."),
    ] = None,
    leaf_first: Annotated[
        bool, typer.Option(help="Whole chains also for fifo, lfu, arc and s3fifo, as beneath an engine.")
    ] = False,
    real_bytes: Annotated[
        bool, typer.Option("--bytes", help="Run a real store, scaled down, and verify every byte.")
    ] = False,
    block_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a block, if the trace does not tell.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option(help="Pass over malformed lines and count them.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw hit rate over capacity into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay traces of real traffic against any policy and capacity.

    A request's hit is the prefix that is in the cache; hit rates are in percent of all blocks, the cold start
    included. Formats: mooncake, mooncake-delta, agentic-mooncake, dynamo, applied-compute, bailian, agentx.
    """
    from kvarter.plan import model as named_model
    from kvarter.policy import named
    from kvarter.trace import SHAPES, Trace, TraceError, infinite, read
    from kvarter.trace import generate as make
    from kvarter.trace.generate import save as write

    names = [name for said in policy or DEFAULTS for name in said.split(",")]
    loaded: list[Trace] = []
    try:
        for name in names:
            if name != OPTIMUM:
                named(name)
        sizes = capacities(capacity)
        below = capacities(second) if second else []
        if below and real_bytes:
            fail("--bytes runs a store without a disk; leave out --second", status=2)
        weighed = named_model(model) if model else None
        if generate is not None:
            if generate not in SHAPES:
                fail(f"no kind of traffic {generate!r}; there are {', '.join(SHAPES)}", status=2)
            loaded.append(make(generate, seed, sessions))
            if save:
                write(loaded[0], save)
        loaded += [read(path, skip_bad=skip_bad, block_tokens=block_tokens) for path in traces or ()]
        if not loaded:
            fail("no trace; give files, or --generate chat, agents or rag", status=2)
        if plot:
            picture.figure()  # better now than after all the work
        rows: list[dict[str, Any]] = []
        with _progress(sum(t.requests for t in loaded) * len(sizes) * len(names)) as advance:
            for trace in loaded:
                hints = None if hint is None else _hints(trace, hint, seed)
                block = (
                    weighed.block_bytes(trace.block_tokens, trace.requests / trace.unique)
                    if weighed
                    else None
                )
                for name in names:
                    for size in sizes:
                        rows.append(
                            _row(trace, name, size, below, block, leaf_first, real_bytes, hints, advance)
                        )
    except TraceError as error:
        fail(str(error), status=1)
    except (KvarterError, OSError) as error:
        fail(str(error), status=2)
    about = [
        {
            "trace": t.name,
            "format": t.format,
            "block_tokens": t.block_tokens,
            "requests": t.requests,
            "accesses": t.accesses,
            "unique_blocks": t.unique,
            "infinite_hit_rate": round(infinite(t), 4),
            "skipped_lines": t.skipped,
            "notes": list(t.notes),
        }
        for t in loaded
    ]
    if plot:
        _draw(plot, about, rows, names)
    if as_json:
        print(msgspec.json.encode({"traces": about, "rows": rows}).decode())
        return
    _show(about, rows, names, [size.text for size in sizes])


def _row(
    trace: Any,
    name: str,
    size: Capacity,
    below: list[Capacity],
    block_bytes: float | None,
    leaf_first: bool,
    real_bytes: bool,
    hints: Any,
    advance: Any,
) -> dict[str, Any]:
    from kvarter.policy import named
    from kvarter.trace import optimum, replay_tiers
    from kvarter.trace import replay as run

    first = size.of(trace.unique, block_bytes)
    under = below[0].of(trace.unique, block_bytes) if below else 0
    blocks = first + under
    extra: dict[str, Any] = {}

    def hit_rate(capacity: int) -> float:
        if name == OPTIMUM:
            return optimum(trace, capacity, advance).hit_rate
        if real_bytes:
            from kvarter.trace.real import replay_bytes

            result = replay_bytes(trace, name, capacity, hints=hints, progress=advance)
            extra["verified_bytes"] = result.verified_bytes
            return result.hit_rate
        result_ = run(
            trace, named(name)(capacity), capacity, leaf_first=leaf_first, hints=hints, progress=advance
        )
        extra["state_bytes"] = result_.state_bytes
        return result_.hit_rate

    above = 0.0
    if below and name != OPTIMUM:
        both = replay_tiers(trace, named(name)(first), first, under, hints=hints, progress=advance)
        total, above = both.hit_rate, both.above_rate
        extra |= {"state_bytes": both.state_bytes, "copied_down_blocks": both.copied}
    else:
        total = hit_rate(blocks)  # no two tiers can serve more than the optimum over both
        above = hit_rate(first) if below else total
    row = {
        "trace": trace.name,
        "policy": name,
        "capacity": size.text,
        "capacity_blocks": blocks,
        "hit_rate": round(total, 4),
        **extra,
    }
    if below:
        row |= {
            "second": below[0].text,
            "first_tier_hit_rate": round(above, 4),
            "second_tier_hit_rate": round(total - above, 4),
        }
    if block_bytes is not None:
        row["capacity_bytes"] = int(blocks * block_bytes)
    return row


def _hints(trace: Any, right: float, seed: int) -> Any:
    from kvarter.policy import CONTINUES, ENDS

    wrong = np.random.default_rng(seed).random(trace.requests) >= right
    return np.where(trace.continues() ^ wrong, CONTINUES, ENDS).astype(np.uint8)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Any]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("replaying", total=total)
        done = 0

        def advance(requests: int) -> None:
            nonlocal done
            done += requests
            if done % 256 == 0:
                bars.update(task, completed=done)

        yield advance


def _show(
    about: list[dict[str, Any]], rows: list[dict[str, Any]], names: list[str], sizes: list[str]
) -> None:
    console = Console()
    for trace in about:
        skipped = f", {trace['skipped_lines']} lines skipped" if trace["skipped_lines"] else ""
        console.print(
            f"{trace['trace']}: {trace['format']}, {trace['requests']:,} requests, {trace['accesses']:,} blocks of "
            f"{trace['block_tokens']} tokens, {trace['unique_blocks']:,} unique{skipped}",
            *trace["notes"],
            sep="\n  ",
            highlight=False,
        )
        tiers = ": both tiers = memory + disk" if any("second" in row for row in rows) else ""
        table = Table(caption=f"hit blocks in percent of all{tiers}")
        table.add_column("policy")
        for size in sizes:
            table.add_column(size, justify="right")
        for name in names:
            cells = [
                f"{row['hit_rate']:.2f}"
                + (
                    f" = {row['first_tier_hit_rate']:.2f} + {row['second_tier_hit_rate']:.2f}"
                    if "second" in row
                    else ""
                )
                for row in rows
                if row["trace"] == trace["trace"] and row["policy"] == name
            ]
            table.add_row(name, *cells)
        table.add_row("infinite cache", *[f"{trace['infinite_hit_rate']:.2f}"] * len(sizes), style="dim")
        console.print(table)


def _draw(path: Path, about: list[dict[str, Any]], rows: list[dict[str, Any]], names: list[str]) -> None:
    drawn, axes = picture.figure(len(about))
    for trace, axis in zip(about, axes[:, 0], strict=True):
        for name in names:
            line = sorted(
                (100 * row["capacity_blocks"] / trace["unique_blocks"], row["hit_rate"])
                for row in rows
                if row["trace"] == trace["trace"] and row["policy"] == name
            )
            style = "k--" if name == OPTIMUM else "o-"
            axis.plot(*zip(*line, strict=True), style, label="optimum" if name == OPTIMUM else name)
        axis.axhline(trace["infinite_hit_rate"], color="grey", linestyle=":", label="infinite cache")
        axis.set(
            title=trace["trace"],
            xlabel="capacity, % of unique blocks",
            ylabel="hit blocks, % of all",
            xscale="log",
            ylim=(0, None),
        )
        axis.xaxis.set_major_formatter("{x:g}")
        axis.legend()
    picture.save(drawn, path)

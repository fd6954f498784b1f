"""`kvarter plan`: how much DRAM and NVMe to buy, and what it gets."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from kvarter.cli import picture
from kvarter.cli.output import AsJson, fail
from kvarter.cli.sizes import bytes_of
from kvarter.errors import KvarterError


def plan(
    trace: Annotated[Path, typer.Argument(help="A file of JSON lines.")],
    model: Annotated[str, typer.Option(help="Name of a model, or its Hugging Face config.json.")],
    prefill: Annotated[float, typer.Option(min=1, help="Tokens a second that the engine computes.")],
    dram: Annotated[
        str | None, typer.Option(help="Sizes to look at, by commas; default a range that fits the trace.")
    ] = None,
    disk: Annotated[str | None, typer.Option(help="Size of a disk log beneath each.")] = None,
    dram_bandwidth: Annotated[
        float | None,
        typer.Option(min=0, help="GB/s from memory to the engine, to say what is worth loading."),
    ] = None,
    disk_bandwidth: Annotated[
        float | None, typer.Option(min=0, help="GB/s that the disk delivers, to say what is worth loading.")
    ] = None,
    block_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    skip_bad: Annotated[bool, typer.Option(help="Pass over malformed lines and count them.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the curve into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a trace would get of so much memory beneath a model: hits, bandwidth, and prefill saved.

    A hit loads the blocks of its prefix and one boundary (windows and states) of the model's real geometry.
    """
    from kvarter.cli.replay import _progress
    from kvarter.plan import model as named_model
    from kvarter.plan import plan as make
    from kvarter.trace import TraceError, read

    try:
        found = named_model(model)
        sizes = [bytes_of(size) for size in dram.split(",")] if dram else []
        below = bytes_of(disk) if disk else 0
        if plot:
            picture.figure()
        loaded = read(trace, skip_bad=skip_bad, block_tokens=block_tokens)
        with _progress(loaded.requests * (len(sizes) or 10)) as advance:
            made = make(
                loaded,
                found,
                prefill,
                sizes,
                below,
                advance,
                dram_bandwidth=(dram_bandwidth or 0.0) * 1e9,
                disk_bandwidth=(disk_bandwidth or 0.0) * 1e9,
            )
    except TraceError as error:
        fail(str(error), status=1)
    except KvarterError as error:
        fail(str(error), status=2)
    if plot:
        _draw(plot, made, loaded.name)
    report: dict[str, Any] = {
        "trace": loaded.name,
        "format": loaded.format,
        **asdict(made),
        "bytes_per_token": found.per_token,
        "bytes_per_boundary": found.per_boundary,
    }
    if as_json:
        print(msgspec.json.encode(report).decode())
        return
    _show(made, loaded)


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:,.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} TiB"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1f} %"


def _show(made: Any, trace: Any) -> None:
    console = Console()
    groups = Table(title=made.model.name, caption=made.model.note or None)
    for heading in ("group", "layers", "lifetime", "a token", "a boundary"):
        groups.add_column(heading, justify="left" if heading in ("group", "lifetime") else "right")
    for part in made.model.parts:
        groups.add_row(
            part.name,
            str(part.layers),
            part.lifetime,
            f"{part.per_token:,.0f} B" if part.per_token else "",
            _size(part.per_boundary) if part.per_boundary else "",
        )
    groups.add_row("together", "", "", f"{made.model.per_token:,.0f} B", _size(made.model.per_boundary))
    console.print(groups)
    worth = {
        f"{tier} worth loading": f"{tier}_worth_loading"
        for tier in ("dram", "disk")
        if any(getattr(point, f"{tier}_worth_loading") is not None for point in made.points)
    }
    table = Table(title=f"{trace.name}: {_size(made.unique_bytes)} in all, a boundary a request")
    for heading in (
        "DRAM",
        "disk",
        "hit rate",
        "of it DRAM",
        "load",
        "peak minute",
        "prefill saved",
        *worth,
        "",
    ):
        table.add_column(heading, justify="right")
    for point in made.points:
        table.add_row(
            _size(point.dram_bytes),
            _size(point.disk_bytes) if point.disk_bytes else "",
            f"{point.hit_rate:.1f} %",
            f"{point.dram_hit_rate:.1f} %",
            f"{point.load_gb_per_s:.2f} GB/s",
            f"{point.peak_gb_per_s:.2f} GB/s",
            f"{point.prefill_seconds_saved_per_hour:,.0f} s/h",
            *(_percent(getattr(point, field)) for field in worth.values()),
            "knee" if point == made.knee else "",
        )
    console.print(table)
    console.print(
        f"A cache without end: {made.infinite_hit_rate:.1f} %. Loading pays from a tier faster than "
        f"{made.break_even_gb_per_s:.2f} GB/s.",
        highlight=False,
    )


def _draw(path: Path, made: Any, name: str) -> None:
    drawn, axes = picture.figure()
    axis = axes[0, 0]
    sizes = [(point.dram_bytes + point.disk_bytes) / (1 << 30) for point in made.points]
    axis.plot(sizes, [point.hit_rate for point in made.points], "o-", label="hit rate")
    knee = (made.knee.dram_bytes + made.knee.disk_bytes) / (1 << 30)
    axis.axvline(knee, color="tab:orange", linestyle="--", label=f"knee, {knee:.1f} GiB")
    axis.axhline(made.infinite_hit_rate, color="grey", linestyle=":", label="infinite cache")
    axis.set(
        title=f"{name}, {made.model.name}",
        xlabel="DRAM and disk, GiB",
        ylabel="hit blocks, % of all",
        xscale="log",
        ylim=(0, None),
    )
    axis.legend()
    picture.save(drawn, path)

"""`kvarter disk`: what lies in a log's directory, whether it is whole, and its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from kvarter import _core
from kvarter.cli.output import AsJson, fail

app = typer.Typer(no_args_is_help=True, help="Look into, verify or clear a directory of the disk tier.")
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="What `disk.path` names.")]


@app.command()
def inspect(directory: Directory, as_json: AsJson = False) -> None:
    """Say what the directory holds, from its indexes, also while an engine uses it. Changes nothing."""
    _show(_read(_core.disk_inspect, directory), as_json)


@app.command()
def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Read every block and check it. Changes nothing; exit status 1 when one is corrupt."""
    report = _read(_core.disk_verify, directory)
    _show(report, as_json)
    if report["corrupt"]:
        fail(f"{report['corrupt']} of {report['blocks']} blocks are corrupt; they are never served", status=1)


@app.command()
def clear(
    directory: Directory,
    shred: Annotated[bool, typer.Option("--shred", help="Overwrite the files first.")] = False,
) -> None:
    """Remove the log's files, and nothing else. Refused while a process has it open."""
    try:
        freed = _core.disk_clear(str(directory), shred)
    except (RuntimeError, ValueError, OSError) as error:
        fail(str(error), status=2)
    print(f"{freed:,} bytes removed")


def _read(look: Callable[[str], dict[str, Any]], directory: Path) -> dict[str, Any]:
    try:
        return look(str(directory))
    except (RuntimeError, ValueError, OSError) as error:
        fail(str(error), status=2)


def _show(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(report).decode())
        return
    table = Table(show_header=False, box=None)
    for name, value in report.items():
        if name != "findings":
            table.add_row(name.replace("_", " "), f"{value:,}" if value or name != "owner" else "nobody")
    Console().print(table)
    for finding in report["findings"]:
        print(f"- {finding}")

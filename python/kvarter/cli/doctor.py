"""`kvarter doctor`: what this machine offers Kvarter, and what to do about what it lacks."""

import platform

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvarter import __version__
from kvarter.cli.output import AsJson
from kvarter.observe import Level, examine

_STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "bold red"}


def doctor(as_json: AsJson = False) -> None:
    """Look at kernels, memory, huge pages, io_uring, UCX, engines, sockets and pools, and say what to do.

    Exit status 1 when there is a problem; a note is none.
    """
    findings = list(examine())
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    system = {"kvarter": __version__, "python": platform.python_version(), "kernel": platform.release()}
    if as_json:
        print(msgspec.json.encode({**system, "problems": problems, "findings": findings}).decode())
    else:
        console = Console()
        console.print(*(f"{name} {at}" for name, at in system.items()), sep=", ", highlight=False)
        table = Table.grid(padding=(0, 2))
        for finding in findings:
            level = Text(finding.level, style=_STYLES[finding.level])
            table.add_row(level, finding.name, Text(finding.found))
            if finding.advice:
                table.add_row("", "", Text(f"-> {finding.advice}"))
        console.print(table)
    raise typer.Exit(1 if problems else 0)

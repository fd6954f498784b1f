"""What the commands share: how one ends that cannot go on, and values as people write them."""

from typing import Annotated, Any, NoReturn

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def fail(message: str, status: int) -> NoReturn:
    """One line on stderr, and this exit status."""
    typer.echo(f"kvarter: {message}", err=True)
    raise typer.Exit(status)


def readable(value: Any) -> str:
    """A setting's value in a table; sizes with their unit."""
    if value is None:
        return "-"
    return value.human_readable() if hasattr(value, "human_readable") else str(value)

"""Pictures, where matplotlib is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvarter.cli.output import fail


def figure(rows: int = 1) -> tuple[Any, Any]:
    """A new figure and its axes, one above the other; ends the command when there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        fail('a picture needs matplotlib: pip install "kvarter[plot]"', status=2)
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(rows, 1, figsize=(8, 5 * rows), squeeze=False, layout="constrained")
    return drawn, axes


def save(drawn: Any, path: Path) -> None:
    """Writes the figure; ends the command when it cannot."""
    try:
        drawn.savefig(path, dpi=90)
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}", status=2)

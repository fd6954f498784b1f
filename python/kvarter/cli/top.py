"""`kvarter top`: a node's status, again and again, with rates."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from kvarter.cli.node import Socket, asking
from kvarter.cli.node_view import view


def top(
    socket: Socket = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one interval, and end.")] = False,
) -> None:
    """Watch the node: tiers, what engines ask for, rates a second, namespaces, engines, latencies. Ctrl-C ends it."""
    with asking(socket) as node:
        before, at = node.status(), time.monotonic()
        if once:
            time.sleep(seconds)
            Console().print(view(node.status(), before, time.monotonic() - at))
            return
        with (
            contextlib.suppress(KeyboardInterrupt),
            Live(view(before), auto_refresh=False, screen=True) as live,
        ):
            while True:
                time.sleep(seconds)
                now = node.status()
                then, at = at, time.monotonic()
                live.update(view(now, before, at - then), refresh=True)
                before = now

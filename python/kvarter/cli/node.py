"""`kvarter status`, `audit`, `drain` and `invalidate`: a word with the node that serves this host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from kvarter.cli.node_view import view
from kvarter.cli.output import AsJson, fail
from kvarter.cli.serve import default_socket
from kvarter.errors import AttachError
from kvarter.node import messages as m
from kvarter.node.control import Control

Socket = Annotated[
    Path | None, typer.Option("--socket", metavar="PATH", help="Of the node; default the one of this user.")
]
_STATUS_SECONDS, _AUDIT_SECONDS, _DRAIN_SECONDS = 10.0, 120.0, 60.0


class Asking:
    """A connection to the node. Whatever ends it ends the command, in one sentence and with exit status 2."""

    def __init__(self, socket: Path | None) -> None:
        path = str(socket or default_socket())
        if not Path(m.control_path(path)).is_socket():
            fail(
                f"no node listens at {path}: start one with `kvarter serve`, or say where with --socket",
                status=2,
            )
        try:
            self.control = Control(path)
        except AttachError as error:
            fail(f"{error}; start one with `kvarter serve`, or say where with --socket", status=2)

    def report(self, question: Callable[[int], m.Question], seconds: float) -> dict[str, Any]:
        """What the node answers."""
        try:
            answer = self.control.ask(question, seconds)
        except (AttachError, ValueError) as error:
            fail(str(error), status=2)
        if not isinstance(answer, m.Done):
            fail(f"the node answers {answer!r}", status=2)
        return answer.report

    def status(self) -> dict[str, Any]:
        return self.report(m.Status, _STATUS_SECONDS)


@contextlib.contextmanager
def asking(socket: Path | None) -> Iterator[Asking]:
    """Raises typer.Exit when there is no node."""
    node = Asking(socket)
    try:
        yield node
    finally:
        node.control.close()


def status(socket: Socket = None, as_json: AsJson = False) -> None:
    """Say what the node holds, for whom, and how long its calls took since its start."""
    with asking(socket) as node:
        report = node.status()
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        Console().print(view(report))


def audit(socket: Socket = None, as_json: AsJson = False) -> None:
    """Have the node recount every byte and block of its memory and disk; exit status 1 when anything disagrees."""
    with asking(socket) as node:
        report = node.report(m.Audit, _AUDIT_SECONDS)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        for finding in report["findings"]:
            print(f"- {finding}")
        ledger = report["ledger"]
        print(f"{ledger['capacity']:,} bytes, of which {ledger['resident']:,} hold blocks")
    if report["findings"]:
        fail("the audit has findings: what fails its check is never served", status=1)


def drain(socket: Socket = None, as_json: AsJson = False) -> None:
    """Let no new engine in and make durable what is queued for disk. Those who are in stay; SIGTERM ends the node.

    Exit status 1 when the disk did not take all in time.
    """
    with asking(socket) as node:
        report = node.report(m.Drain, _DRAIN_SECONDS)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        print(f"draining: {report['engines']} engines are still here")
    if not report["flushed"]:
        fail("not all that is queued for disk was durable in time; ask again", status=1)


def invalidate(
    namespace: Annotated[str, typer.Argument(help="The first hex digits of its digest, as status shows.")],
    socket: Socket = None,
    as_json: AsJson = False,
) -> None:
    """Serve nothing of a namespace any more, from memory or disk; its room comes back in the background."""
    with asking(socket) as node:
        digests = [space["digest"] for space in node.status()["namespaces"]]
        meant = [digest for digest in digests if namespace and digest.startswith(namespace.lower())]
        if len(meant) != 1:
            known = ", ".join(digest[:16] for digest in digests) or "none"
            fail(f"{len(meant)} namespaces begin with {namespace!r}; open here: {known}", status=2)
        report = node.report(lambda number: m.Invalidate(number, bytes.fromhex(meant[0])), _STATUS_SECONDS)
    print(msgspec.json.encode(report).decode() if as_json else f"{meant[0]} is invalid from now on")

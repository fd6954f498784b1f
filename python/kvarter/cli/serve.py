"""`kvarter serve`: one pool for all engines of this user on this host."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvarter import _core
from kvarter.cli.output import fail
from kvarter.config import Config
from kvarter.errors import KvarterError
from kvarter.node import Node, systemd
from kvarter.node import messages as m
from kvarter.node.adopt import find
from kvarter.node.control import Control
from kvarter.node.http import MetricsServer, address
from kvarter.store import Store

if TYPE_CHECKING:
    from kvarter.peers.service import Peers

logger = logging.getLogger("kvarter.node")
_HAND_OVER_SECONDS = 120.0
_PORT_SECONDS = 10.0  # until the node before has left the port of its metrics


def default_socket() -> str:
    """Where the node listens unless told otherwise."""
    return str(Path(_core.default_directory()) / "node.sock")


def serve(
    dram: Annotated[
        str | None, typer.Option(help="Size of the pool, like 64GiB; default a quarter of what is allowed.")
    ] = None,
    disk: Annotated[
        str | None, typer.Option(metavar="DIR:SIZE", help="A log on local disk below the pool, and its size.")
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(help="Where engines attach, in an owner-only directory.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML or YAML file of the same settings.")] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="/metrics and /healthz; a PORT alone is on loopback."),
    ] = None,
    fence_timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Seconds after which a client that does not answer a fence is killed; default: never.",
        ),
    ] = None,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Take over from the node that is running there, with its pool.")
    ] = False,
) -> None:
    """Own one pool, one index and one disk log, and serve the engines of this user on this host.

    Engines name it with `node: unix://SOCKET`. Ends at SIGTERM or SIGINT: what is to be on disk is there then.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        web = None if metrics is None else address(metrics)
        node = start(
            settings(dram, disk, config), str(socket or default_socket()), fence_timeout, takeover=takeover
        )
    except (KvarterError, ValueError, OSError) as error:
        fail(str(error), status=2)
    logger.info("%r is served at unix://%s", node.store, node.path)
    pages = None if web is None else _pages(node, web, takeover)
    systemd.store([fd for fd, _, kind, _ in node.store.exports() if kind < 2])
    systemd.notify("READY=1")
    while not stop.wait(0.1) and not node.handed_over.is_set():
        pass
    systemd.notify("STOPPING=1")
    if pages is not None:
        pages.close()
    logger.info("ending: what is queued for disk is written first")
    node.close()


def _pages(node: Node, where: tuple[str, int], takeover: bool) -> MetricsServer | None:
    """What `--metrics` asks for. Ends the process when it cannot be had, but not one that has taken over a pool."""
    try:
        pages = MetricsServer(node.status, *where, patience=_PORT_SECONDS if takeover else 0.0)
        logger.info("metrics are at port %d", pages.port)
        return pages
    except KvarterError as error:
        if not takeover:
            node.close()
            fail(str(error), status=2)
        logger.error("%s", error)
        return None


def settings(dram: str | None, disk: str | None, config: Path | None) -> Config:
    """What the options say, above the file and the environment. Raises `ConfigError`."""
    said: dict[str, Any] = {}
    if config is not None:
        said["config"] = str(config)
    if dram is not None:
        said["dram"] = dram
    if disk is not None:
        path, colon, size = disk.rpartition(":")
        if not colon or not path or not size:
            fail(f"--disk is {disk!r}; expected DIR:SIZE, like /var/lib/kvarter:500GiB", status=2)
        said["disk"] = {"path": path, "capacity": size}
    return Config.load(said)


def start(config: Config, path: str, fence_timeout: float | None = None, *, takeover: bool = False) -> Node:
    """A node of these settings, with the pool of the one before it where that can be had. Raises `KvarterError` for
    what cannot be had, saying why."""
    before = Control(path) if takeover else None
    try:
        if before is not None:
            before.ask(m.HandOver, _HAND_OVER_SECONDS)
        found = find(path)
        store, elders = None, set[int]()
        if found is not None:
            try:
                store, elders = _store(config, (found.arenas, found.records)), found.elders
                logger.info("the pool of the node before is taken over: %r", store)
            except (RuntimeError, ValueError) as error:
                logger.warning("the pool of the node before is not taken over: %s", error)
        store = store or _store(config)
        peers = None
        try:
            peers = _peers(config, store)
            return Node(store, path, elders, fence_timeout, peers)
        except KvarterError:
            if peers is not None:
                peers.close()
            store.close()
            raise
    finally:
        if before is not None:
            before.close()


def _peers(config: Config, store: Store) -> Peers | None:
    if config.peers == type(config.peers)():
        return None
    from kvarter.peers.options import peer_options
    from kvarter.peers.service import Peers

    options = peer_options(config.peers)
    return None if options is None else Peers(store, options)


def _store(config: Config, adopt: tuple[list[int], int] | None = None) -> Store:
    return Store(
        config.pool_bytes(),
        max_blocks=config.max_blocks,
        hold_seconds=config.hold_seconds,
        policy=config.policy,
        disk=config.disk_options(),
        adopt=adopt,
    )

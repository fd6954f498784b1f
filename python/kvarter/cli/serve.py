"""`kvarter serve`: one pool for all engines of this user on this host."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from kvarter import _core
from kvarter.cli.output import fail
from kvarter.config import Config
from kvarter.errors import KvarterError
from kvarter.node import Node
from kvarter.node.http import MetricsServer, address
from kvarter.node.systemd import notify
from kvarter.store import Store

logger = logging.getLogger("kvarter.node")


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
        node = start(settings(dram, disk, config), str(socket or default_socket()))
    except (KvarterError, OSError) as error:
        fail(str(error), status=2)
    logger.info("%r is served at unix://%s", node.store, node.path)
    try:
        pages = None if web is None else MetricsServer(node.status, *web)
    except KvarterError as error:
        node.close()
        fail(str(error), status=2)
    if pages is not None:
        logger.info("metrics are at port %d", pages.port)
    notify("READY=1")
    stop.wait()
    notify("STOPPING=1")
    if pages is not None:
        pages.close()
    logger.info("ending: what is queued for disk is written first")
    node.close()


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


def start(config: Config, path: str) -> Node:
    """A node of these settings. Raises `KvarterError` for what cannot be had, saying why."""
    store = Store(
        config.pool_bytes(),
        max_blocks=config.max_blocks,
        hold_seconds=config.hold_seconds,
        policy=config.policy,
        disk=config.disk_options(),
    )
    try:
        return Node(store, path)
    except KvarterError:
        store.close()
        raise

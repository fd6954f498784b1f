"""`--metrics`: a small web server that says `/metrics` and `/healthz`, and nothing else."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ..errors import ConfigError
from .metrics import registry

logger = logging.getLogger("kvarter.node")
_SECONDS = 5.0  # that a request may take to arrive, and its answer to leave
_LOOPBACK = "127.0.0.1"


def address(said: str) -> tuple[str, int]:
    """HOST:PORT, [HOST]:PORT or PORT, which is on loopback alone. Raises `ConfigError`."""
    host, _, port = said.rpartition(":")
    if not port.isdecimal() or not int(port) < 1 << 16:
        raise ConfigError(f"--metrics is {said!r}; expected HOST:PORT, or a PORT on {_LOOPBACK}")
    return host.strip("[]") or _LOOPBACK, int(port)


class MetricsServer:
    """Answers from threads of its own until `close`. status: as `Node.status`. Raises `ConfigError` when nobody can
    listen there within `patience` seconds. Port 0 takes any; `port` says which."""

    def __init__(
        self, status: Callable[[], dict[str, Any]], host: str, port: int, *, patience: float = 0.0
    ) -> None:
        asked = registry(status)

        class Handler(_Handler):
            def pages(self) -> dict[str, Callable[[], tuple[int, str, bytes]]]:
                return {
                    "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(asked)),
                    "/healthz": lambda: _health(status()),
                }

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = AF_INET6 if ":" in host else ThreadingHTTPServer.address_family

        until = time.monotonic() + patience
        while True:
            try:
                self._server = Server((host, port), Handler)
                break
            except OSError as error:
                if time.monotonic() >= until:
                    raise ConfigError(f"no metrics at {host}:{port}: {error.strerror or error}") from None
                time.sleep(0.05)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="kvarter-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _health(status: dict[str, Any]) -> tuple[int, str, bytes]:
    return (503, "text/plain", b"draining\n") if status["draining"] else (200, "text/plain", b"ok\n")


class _Handler(BaseHTTPRequestHandler):
    timeout = _SECONDS

    def pages(self) -> dict[str, Callable[[], tuple[int, str, bytes]]]:
        raise NotImplementedError

    def do_GET(self) -> None:
        page = self.pages().get(self.path.partition("?")[0])
        try:
            code, kind, body = page() if page else (404, "text/plain", b"/metrics and /healthz are here\n")
        except Exception:
            logger.exception("no answer to %s", self.path)
            code, kind, body = 500, "text/plain", b"the node's log says why\n"
        with contextlib.suppress(OSError):  # whoever asked may be gone
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)

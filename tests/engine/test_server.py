"""The OpenAI server as people run it: its own processes, the connector by name, hits seen over HTTP and in /metrics;
killed, and started again."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Server:
    """One `vllm` API server and the process group that belongs to it."""

    def __init__(self, model: Path, directory: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = log
        transfer = {
            "kv_connector": "KvarterConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"dram": "64MiB", "directory": str(directory)},
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
                *("--served-model-name", "small", "--host", "127.0.0.1", "--port", str(self.port)),
                *("--dtype", "float32", "--max-model-len", "1024", "--enforce-eager", "--block-size", "32"),
                *("--num-gpu-blocks-override", "64", "--kv-cache-memory-bytes", str(64 << 20)),
                *("--enable-prompt-tokens-details", "--kv-transfer-config", json.dumps(transfer)),
            ],
            env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_SERVER_DEV_MODE": "1"},
            stdout=log.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def get(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def ready(self) -> "Server":
        end = time.monotonic() + 400
        while True:
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()[-3000:]
            try:
                self.get("/health")
                return self
            except OSError:
                time.sleep(0.3)

    def complete(self, prompt: list[int], salt: str | None = None) -> tuple[str, int]:
        """The text of eight greedy tokens, and how many prompt tokens were cached."""
        body = {"model": "small", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answer = json.loads(self.get("/v1/completions", body | ({"cache_salt": salt} if salt else {})))
        details = answer["usage"]["prompt_tokens_details"] or {}
        return answer["choices"][0]["text"], details.get("cached_tokens") or 0

    def drop_prefix_cache(self) -> None:
        self.get("/reset_prefix_cache", {})

    def series(self, name: str) -> float:
        lines = self.get("/metrics").decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def kill(self) -> None:
        """As the kernel would: the whole group, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def serve(model: Any, tmp_path: Path) -> Iterator[Callable[[], Server]]:
    started: list[Server] = []
    directory = tmp_path / "sockets"
    directory.mkdir(mode=0o700)

    def start() -> Server:
        started.append(Server(model("llama"), directory, tmp_path / "log"))
        return started[-1].ready()

    yield start
    for server in started:
        if server.process.poll() is None:
            server.kill()


def pool_memory(server: Server) -> int:
    """Bytes of memfds named after Kvarter's pools that any process of a server's group has open."""
    files = {}
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.getpgid(int(fd.parts[2])) == server.process.pid and "memfd:kvarter-" in str(fd.readlink()):
                files[fd.stat().st_ino] = fd.stat().st_size
        except OSError:
            continue
    return sum(files.values())


def test_hits_salts_and_metrics_over_http_and_again_after_a_kill(
    serve: Any, prompts: Any, tmp_path: Path
) -> None:
    (asked,) = prompts(1, 300, seed=11)
    server = serve()
    first, _ = server.complete(asked)
    server.drop_prefix_cache()
    assert server.complete(asked) == (first, 288)
    server.drop_prefix_cache()
    assert server.complete(asked, salt="another user") == (first, 0)
    server.drop_prefix_cache()
    assert server.complete(asked, salt="another user") == (first, 288)
    assert server.series('kvarter_tokens_total{engine="0",model_name="small",outcome="loaded"}') == 2 * 288
    assert server.series("vllm:external_prefix_cache_hits_total") == 2 * 288
    capacity = server.series('kvarter_bytes{engine="0",model_name="small",state="capacity"}')
    assert capacity == server.series("kvarter_bytes{") - capacity
    assert pool_memory(server) >= 64 << 20

    server.kill()
    end = time.monotonic() + 60  # a killed process takes a moment to be gone
    while pool_memory(server):
        assert time.monotonic() < end
        time.sleep(0.1)
    (left,) = (tmp_path / "sockets").iterdir()  # nobody could remove it
    again = serve()
    assert not left.exists()
    assert again.complete(asked) == (first, 0)  # embedded: the pool went with the engine
    again.drop_prefix_cache()
    assert again.complete(asked) == (first, 288)

"""The language of the tests in tests/sglang: real SGLang servers, each a process of its own environment."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import kvarter
import served_words
from kvarter.cli.sglang_args import flags

SECONDS = 240.0  # a guard against hanging, never a condition: a server starts in minutes on a busy box
TOKENS = 700  # of a prompt: ten pages, and some
_CPU = Path(__file__).parent / "sglang" / "cpu"
_KEY = "admin"
_ALONE = [
    *("--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--admin-api-key", _KEY),
    *("--mem-fraction-static", "0.1", "--max-total-tokens", "8192", "--max-running-requests", "8"),
    *("--disable-overlap-schedule", "--grammar-backend", "none", "--skip-server-warmup"),
    *("--enable-cache-report", "--enable-metrics", "--hicache-storage-prefetch-policy", "wait_complete"),
]


class Reply(NamedTuple):
    """Greedy tokens, how many of the prompt's came from the storage backend, and how long it all took."""

    tokens: list[int]
    stored: int
    seconds: float


def until(holds: Callable[[], Any], what: str) -> None:
    served_words.until(holds, what, SECONDS)


def prompt(seed: int, tokens: int = TOKENS) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.randrange(3, 259) for _ in range(tokens)]


def environment(directory: Path) -> dict[str, str]:
    """Of a process of SGLang's environment: this Kvarter, and what lets SGLang run on a CPU."""
    directory.mkdir(parents=True, exist_ok=True)
    linked = directory / "kvarter"
    if not linked.is_symlink():
        linked.symlink_to(Path(kvarter.__file__).parent)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "KVARTER_"))}
    return {
        **ours,
        "PYTHONPATH": os.pathsep.join(map(str, (directory, _CPU))),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than it saves, and asks for Triton
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_EXTENSIONS_DIR": str(directory / "extensions"),  # where it compiles the hash of its pages
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`python -m sglang.launch_server` with the flags of `kvarter sglang-args`, until `close` or `kill`."""

    def __init__(
        self, python: str, directory: Path, model: Path, node: str | None, *more: str, **settings: Any
    ) -> None:
        """more: further flags of SGLang's. settings: further settings of Kvarter's."""
        self._environment = environment(directory / "path")
        if "--tp-size" in more:  # SGLang binds ranks to NUMA nodes otherwise, and there may be one
            cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
            self._environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join((2 * cores)[:2])
        self._log = directory / f"server-{time.monotonic_ns()}.log"
        self._command = [python, "-m", "sglang.launch_server", "--model-path", str(model)]
        self._command += [*_ALONE, *flags(node, "64MiB", **settings), *more]
        self.start()

    def start(self) -> None:
        self._port = free_port()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, "--port", str(self._port)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(lambda: self._says("ready to roll") or self._process.poll() is not None, "the server is ready")
        assert self._process.poll() is None, self.log()[-4000:]

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _says(self, words: str) -> bool:
        return words in self.log()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """The status and the text of an answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {_KEY}"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ask(self, tokens: list[int], output: int = 8, **more: Any) -> Reply:
        sampling = {"max_new_tokens": output, "temperature": 0, "ignore_eos": True}
        begun = time.perf_counter()
        status, text = self.call(
            "POST", "/generate", {"input_ids": tokens, "sampling_params": sampling, **more}
        )
        assert status == 200, text + self.log()[-2000:]
        answer = json.loads(text)
        cached = answer["meta_info"].get("cached_tokens_details") or {}
        return Reply(answer["output_ids"], cached.get("storage", 0), time.perf_counter() - begun)

    def drop(self) -> None:
        """Forgets its own cache; an engine that still has something to do says no."""
        until(lambda: self.call("POST", "/flush_cache")[0] == 200, "its cache is flushed")

    def total(self, series: str) -> float:
        """The sum of a series of its /metrics over all labels."""
        _, text = self.call("GET", "/metrics")
        found = re.findall(rf"^{re.escape(series)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def cold(self, tokens: list[int], output: int = 8) -> Reply:
        """Asks, waits until what is new of the prompt's whole pages has been stored, and forgets its own cache."""
        stored = self.total("sglang:backuped_tokens_total")
        reply = self.ask(tokens, output)
        new = len(tokens) // 64 * 64 - reply.stored
        until(lambda: self.total("sglang:backuped_tokens_total") >= stored + new, f"{new} tokens stored")
        self.drop()
        return reply

    def attach(self, node: str | None, **settings: Any) -> None:
        """Takes this backend into service, none being there."""
        words = flags(node, "64MiB", **settings)
        body = {
            "hicache_storage_backend": "dynamic",
            "hicache_storage_backend_extra_config_json": words[words.index("dynamic") + 2],
            "hicache_storage_prefetch_policy": "wait_complete",
            "hicache_write_policy": "write_through",
        }
        until(lambda: self.call("PUT", "/hicache/storage-backend", body)[0] == 200, "attached")

    def detach(self) -> None:
        until(lambda: self.call("DELETE", "/hicache/storage-backend")[0] == 200, "detached")

    def kill(self) -> None:
        """Every process of it, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(SECONDS)

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()

"""Beneath SGLang on a CPU: batches of 128 pages through its own controller, beside its `file` backend, our own copy and
memcpy; and the time to the first token of a prompt that is in storage, beside computing it again and beside `file`.

Needs SGLANG_PYTHON (.ci/sglang-venv), and the tests' stand-ins for what SGLang has for GPUs only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import Row, Run

TESTS = Path(__file__).parent.parent.parent / "tests"
_FILE = (
    *("--hicache-storage-backend", "file"),
    *("--hicache-storage-backend-extra-config", '{"hicache_storage_pass_prefix_keys": true}'),
)


def batches(bench: Run, python: str, directory: Path) -> list[Row]:
    """128 pages of 1 MiB, page_first, in GB/s; the best of interleaved rounds."""
    from sglang_words import environment

    its = environment(directory / "path")
    its["PYTHONPATH"] += os.pathsep + str(TESTS)
    script = Path(__file__).parent.parent / "sglang_pages.py"
    command = [python, "-W", "ignore", str(script), "2" if bench.quick else "8", str(directory)]
    shown = subprocess.run(command, env=its, check=True, capture_output=True, text=True).stdout
    seconds = json.loads(shown.splitlines()[-1])
    rows = []
    for kind, ways in seconds.items():
        best = {way: 128 / 1024 * 1.073741824 / min(times) for way, times in ways.items()}
        spread = {way: (max(times) - min(times)) / min(times) for way, times in ways.items()}
        beside = (("kvarter", "copy", 0.8), ("kvarter", "memcpy", None), ("kvarter", "file", None))
        for way, limit, goal in (*beside, ("straight", "file", None)):
            how = "straight to or from disk, " if way == "straight" else ""
            rows.append(
                Row(f"sglang {kind}, 128 pages of 1 MiB, {how}beside {limit}", "GB/s", best[way], best[limit],
                    goal=goal, spread=spread[way])
            )  # fmt: skip
    return rows


def first_token(bench: Run, python: str, directory: Path) -> list[Row]:
    """A prompt of 4,000 tokens, of a small model, by servers one after another; the best of each."""
    from kvarter.demo import engine, models
    from kvarter.demo import run as demo
    from served_words import ServedNode
    from sglang_words import Server, prompt

    engine.prepare()
    model = models.make("llama-demo", demo.models_directory())
    os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(directory / "files")
    node = ServedNode(directory, dram=1 << 30)
    seconds: dict[str, list[float]] = {"computed": [], "own": [], "kvarter": [], "file": []}
    for way, flags in (("kvarter", ()), ("file", _FILE)):
        server = Server(python, directory, model, f"unix://{node.path}", *flags)
        try:
            server.cold(prompt(-1, 300))
            for round_ in range(1 if bench.quick else 4):
                tokens = prompt(round_, 4000)
                first, reply, own = server.cold(tokens, 1), server.ask(tokens, 1), server.ask(tokens, 1)
                seconds["own"].append(own.seconds)
                seconds["computed"].append(first.seconds)
                seconds[way].append(reply.seconds)
                bench.require(
                    reply.stored == 4000 // 64 * 64 and reply.tokens == first.tokens,
                    f"{way}: {reply.stored} of 4,000 tokens from storage",
                )
        finally:
            server.close()
    node.close()
    best = {way: 1e3 * min(times) for way, times in seconds.items()}
    spread = (max(seconds["kvarter"]) - min(seconds["kvarter"])) / min(seconds["kvarter"])
    return [
        Row(f"sglang first token, 4,000 tokens from storage, beside {beside}", "ms", best["kvarter"], best[way],
            better="lower", spread=spread)
        for beside, way in (("computing", "computed"), ("a hit of its own", "own"), ("`file`", "file"))
    ]  # fmt: skip


def run(bench: Run) -> list[Row]:
    python = os.environ.get("SGLANG_PYTHON")
    if not python:
        raise SystemExit(
            "sglang: set SGLANG_PYTHON to an environment's interpreter; .ci/sglang-venv makes one"
        )
    sys.path.insert(0, str(TESTS))
    with tempfile.TemporaryDirectory() as scratch:
        return [*batches(bench, python, Path(scratch)), *first_token(bench, python, Path(scratch))]

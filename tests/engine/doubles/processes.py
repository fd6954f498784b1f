"""A multi-process engine with Kvarter, by its name alone, for test_start.py. JSON in: prompts; out: tokens, counts."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from kvarter.demo import engine

engine.prepare()


def descendants(pid: int) -> list[int]:
    children = [
        int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()
    ]
    return children + [d for c in children for d in descendants(c)]


def main() -> None:
    asked = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as directory:
        config = {
            "kv_connector": "KvarterConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"dram": "64MiB", "directory": directory},
        }
        with engine.engine(
            Path(sys.argv[1]),
            blocks=64,
            block_size=32,
            kv=config,
            distributed_executor_backend="mp",
            tensor_parallel_size=int(sys.argv[2]),
        ) as llm:
            first = engine.ask(llm, asked, 12)
            for _ in range(200):  # until EngineCore has drained its stores, it refuses nothing and we wait
                if llm.reset_prefix_cache():
                    break
                time.sleep(0.05)
            second = engine.ask(llm, asked, 12)
            answer = {
                "first": [reply.tokens for reply in first],
                "second": [reply.tokens for reply in second],
                "cached": [reply.cached_tokens for reply in second],
                "external_hits": engine.counter(llm, "vllm:external_prefix_cache_hits"),
                "processes": 1 + len(descendants(os.getpid())),
            }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

"""An engine in a process of its own, which ends: JSON in (model, kv, settings, prompts), greedy tokens out."""

import json
import sys
from pathlib import Path

from kvarter.demo import engine

engine.prepare()


def main() -> None:
    task = json.load(sys.stdin)
    sys.path[:0] = task["path"]
    with engine.engine(Path(task["model"]), kv=task["kv"], **task["settings"]) as llm:
        for _ in range(2):  # what the first round came too early for, the second one stores
            replies = engine.ask(llm, task["prompts"], task["output_tokens"])
            engine.drop_prefix_cache(llm)
    print(json.dumps([reply.tokens for reply in replies]), flush=True)


if __name__ == "__main__":
    main()

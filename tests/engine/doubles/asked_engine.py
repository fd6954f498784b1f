"""An engine in a process of its own that does as it is told: a line of JSON in, a line of JSON out, until it ends.

First line: model, kv, settings. Then {"ask": prompts, "tokens": n} -> [tokens, cached tokens] of each, {"drop": true}.
"""

import json
import sys
from pathlib import Path

from kvarter.demo import engine

engine.prepare()


def main() -> None:
    task = json.loads(sys.stdin.readline())
    with engine.engine(Path(task["model"]), kv=task["kv"], **task["settings"]) as llm:
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            if "ask" in order:
                replies = engine.ask(llm, order["ask"], order["tokens"])
                engine.settle(llm)
                print(json.dumps([[reply.tokens, reply.cached_tokens] for reply in replies]), flush=True)
            else:
                engine.drop_prefix_cache(llm)
                print(json.dumps("dropped"), flush=True)


if __name__ == "__main__":
    main()

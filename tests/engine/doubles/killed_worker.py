"""An engine with its worker in a process of its own, which is killed between two rounds or not, for test_faults.py.

JSON in: prompts; out: what they came to before, and whether the engine died of the kill.
"""

import json
import os
import signal
import sys
from pathlib import Path

from processes import descendants

from kvarter.demo import engine

engine.prepare()


def main() -> None:
    asked = json.load(sys.stdin)
    config = {
        "kv_connector": "KvarterConnector",
        "kv_connector_module_path": "kvarter.connectors.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"dram": "64MiB", "directory": sys.argv[2]},
    }
    died = False
    where = Path(sys.argv[1])
    settings = {"blocks": 64, "block_size": 32, "distributed_executor_backend": "mp"}
    try:
        with engine.engine(where, kv=config, **settings) as llm:
            tokens = [reply.tokens for reply in engine.ask(llm, asked, 8)]
            if sys.argv[3] == "kill":
                names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in descendants(os.getpid())}
                (worker,) = [pid for pid, comm in names.items() if "Worker" in comm]
                os.kill(worker, signal.SIGKILL)
            llm.reset_prefix_cache()
            tokens = [reply.tokens for reply in engine.ask(llm, asked, 8)]
    except Exception:
        if sys.argv[3] != "kill":
            raise
        died = True
    print(json.dumps({"died": died, "tokens": tokens}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

"""A vLLM engine inside this process: opened, asked, settled, its prefix cache dropped, and closed again.

Several may follow one another in one process. vLLM is imported by the first; whoever imports it before that
calls :func:`prepare` first.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kvarter.demo.guard import hide_broken_packages

# In-process and single-threaded: more OpenMP threads than idle cores make a small model far slower.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class Reply(NamedTuple):
    """What one request came to: greedy tokens, prompt tokens that were cached, time to the first token."""

    tokens: list[int]
    cached_tokens: int
    seconds_to_first_token: float


def prepare() -> dict[str, str]:
    """Set up this process for an engine: the environment, where settings of the user win, and the guard.

    Returns:
        What the guard hid, with the reasons.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return hide_broken_packages()


@contextmanager
def engine(
    model: Path, *, blocks: int, block_size: int = 128, kv: Mapping[str, Any] | None = None, **settings: Any
) -> Iterator[Any]:
    """A ``vllm.LLM`` with ``blocks`` KV blocks of ``block_size`` tokens, its memory freed at the end.

    Computes in float32 unless `settings` say otherwise. The engine keeps one of the blocks for itself.

    Args:
        kv: vLLM's ``kv_transfer_config``; None for an engine without a connector.
        settings: further arguments of ``vllm.LLM``, before those chosen here.
    """
    prepare()
    from vllm import LLM
    from vllm.distributed.kv_transfer.kv_transfer_state import ensure_kv_transfer_shutdown

    try:
        llm = LLM(
            model=str(model),
            block_size=block_size,
            num_gpu_blocks_override=blocks,
            kv_transfer_config=None if kv is None else dict(kv),
            **{
                "dtype": "float32",
                "max_model_len": min(8192, (blocks - 1) * block_size),
                "kv_cache_memory_bytes": 1 << 30,
                "enforce_eager": True,
                "enable_prefix_caching": True,
                "distributed_executor_backend": "uni",
                "disable_log_stats": False,
                **settings,
            },
        )
    except BaseException:
        ensure_kv_transfer_shutdown()  # the workers' half was there already, and belongs to the process
        raise
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def ask(llm: Any, prompts: Sequence[Sequence[int]], output_tokens: int) -> list[Reply]:
    """Send token prompts together, wait for exactly ``output_tokens`` greedy tokens of each."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
    inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    return [
        Reply(list(out.outputs[0].token_ids), out.num_cached_tokens or 0, out.metrics.first_token_latency)
        for out in llm.generate(inputs, sampling, use_tqdm=False)
    ]


def settle(llm: Any, deadline: float = 30.0) -> None:
    """Step the engine until nothing is left to do, so that stores still under way are complete.

    Raises:
        TimeoutError: it still had work after ``deadline`` seconds.
    """
    core, end = llm.llm_engine.engine_core.engine_core, time.monotonic() + deadline
    while core.scheduler.has_requests():
        if time.monotonic() > end:
            raise TimeoutError(f"the engine is not idle after {deadline:g} s")
        llm.llm_engine.step()


def drop_prefix_cache(llm: Any) -> None:
    """Make the idle engine forget its own prefix cache, and nothing else.

    Raises:
        RuntimeError: the engine kept it, because something still holds a block of it.
    """
    settle(llm)
    if not llm.reset_prefix_cache():
        raise RuntimeError("the engine kept its prefix cache: a block of it is still in use")


def counter(llm: Any, name: str) -> int:
    """The value of one of vLLM's counters, summed over its labels; 0 if it never counted."""
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == name)


def groups(llm: Any) -> int:
    """How many KV cache groups the engine has made of the model."""
    return len(llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_groups)

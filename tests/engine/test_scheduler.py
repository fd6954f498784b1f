"""vLLM's own schedulers, without a model: whatever they do to requests and blocks, the tokens stay right."""

import ast
import inspect
import random
from collections import Counter
from typing import Any

import pytest

from chaos_words import GEOMETRIES, Chaos, prompts


@pytest.mark.parametrize("shape", GEOMETRIES)
@pytest.mark.parametrize("ahead", [0, 1])
def test_the_engine_alone_says_what_it_should(core: Any, shape: str, ahead: int) -> None:
    from fake_model import Truth

    engine = core(GEOMETRIES[shape], blocks=60, steps_ahead=ahead)
    asked = prompts(random.Random(1), 12)
    assert engine.ask(asked, 20) == [Truth(GEOMETRIES[shape]).say(prompt, 20) for prompt in asked]
    assert engine.runner.wrong == []


def test_tokens_are_right_under_pressure_and_aborts(core: Any, runner: str) -> None:
    seen = Counter[str]()
    for seed in range(10):
        chaos = Chaos(core, seed)
        assert chaos.engine.config.use_v2_model_runner == (runner == "v2")
        for _ in range(3):
            chaos.run(10, aborts=0.05)
            chaos.engine.drop_prefix_cache()
        seen += chaos.judge()
    for event in ("preempted", "flushed", "aborted_loading", "loaded", "evicted", "already_in_flight"):
        assert seen[event] > 0, event


def test_only_accepted_tokens_are_stored(core: Any, runner: str) -> None:
    seen = Counter[str]()
    for seed in range(8):
        chaos = Chaos(core, seed, shape=["full", "window", "sizes"][seed % 3], drafts=3)
        for _ in range(3):
            chaos.run(10, aborts=0.05)
            chaos.engine.drop_prefix_cache()
        seen += chaos.judge()
    for event in ("accepted", "preempted", "loaded"):
        assert seen[event] > 0, event


@pytest.mark.parametrize("fault", [{"fail_every": 7}, {"flip_every": 7}], ids=["failing", "flipping"])
def test_a_failed_load_becomes_a_recompute(core: Any, runner: str, fault: Any) -> None:
    seen = Counter[str]()
    for seed in range(4):
        chaos = Chaos(core, seed, faults=fault)
        for _ in range(4):
            chaos.run(8, aborts=0.05)
            chaos.engine.drop_prefix_cache()
        seen += chaos.judge()
    for event in ("loaded", "load_failed", "preempted"):
        assert seen[event] > 0, event


def test_new_weights_void_what_was_stored(core: Any, runner: str) -> None:
    seen = Counter[str]()
    for seed in range(4):
        chaos = Chaos(core, seed, faults={"delay": 0.001})
        for round_ in range(4):
            for prompt in prompts(random.Random(round_ // 2), 6):
                chaos.add(prompt)
            for _ in range(chaos.numbers.randint(2, 30)):
                chaos.engine.step()
            assert chaos.engine.change_weights()
            chaos.run(6)
            chaos.engine.drop_prefix_cache()
        seen += chaos.judge()
    for event in ("invalidated", "loaded", "preempted"):
        assert seen[event] > 0, event


@pytest.mark.parametrize("ahead", [0, 1])
def test_beside_another_connector_tokens_are_right_and_statistics_add_up(
    core: Any, runner: str, ahead: int
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    from scheduler_sibling import beside

    seen = Counter[str]()
    for seed, shape in enumerate(GEOMETRIES):
        other = beside(asynchronous=True, after=seed)
        chaos = Chaos(core, seed, shape=shape, steps_ahead=ahead, siblings=0.3, extra=None, transfer=other)
        for _ in range(3):
            chaos.run(10, aborts=0.05)
            chaos.engine.drop_prefix_cache()
        seen += chaos.judge()
        stats = [MultiConnector.build_kv_connector_stats(data=data) for data in chaos.engine.stats]
        total = stats[0]
        for more in stats[1:]:
            total = total.aggregate(more)
        moved = total.data["KvarterConnector"].data
        assert {name: n for name, n in moved["tokens"].items() if n} == chaos.engine.tokens()
    for event in ("loaded", "preempted", "aborted_loading"):
        assert seen[event] > 0, event


def test_connectors_have_every_hook_that_a_model_runner_calls() -> None:
    from vllm.v1.worker import kv_connector_model_runner_mixin as v1
    from vllm.v1.worker.gpu import kv_connector as v2

    from kvarter.connectors.vllm import KvarterConnector

    calls = set()
    for module in (v1, v2):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            match node:
                case ast.Call(func=ast.Attribute(attr=hook, value=owner), args=args, keywords=keywords):
                    if ast.unparse(owner) in ("kv_connector", "self.kv_connector"):
                        names = {key.arg or "**" for key in keywords}
                        calls.add((hook, len(args), tuple(sorted(names))))
    assert {"handle_preemptions", "start_load_kv", "finish_forward", "wait_for_save"} <= {
        call[0] for call in calls
    }
    # What V2 adds to start_load_kv (ActiveKVConnector._build_load_kwargs).
    more = ("scheduler_output", "request_state_indices", "request_ids", "num_tokens", "attn_metadata")
    for hook, count, names in calls:
        keywords = [name for given in names for name in (more if given == "**" else [given])]
        signature = inspect.signature(getattr(KvarterConnector, hook))
        signature.bind(None, *range(count), **dict.fromkeys(keywords))  # raises where it does not fit

"""vLLM's own schedulers, without a model: whatever they do to requests and blocks, the tokens stay right."""

import ast
import inspect
import random
from collections import Counter
from typing import Any

import pytest

from kvarter.geometry import CacheGroup, Full, Geometry, State, Window


def geometry(*groups: CacheGroup) -> Geometry:
    return Geometry(min(group.block_tokens for group in groups), groups)


GEOMETRIES = {
    "full": geometry(CacheGroup("full", Full(), 8, (1,))),
    "window": geometry(CacheGroup("full", Full(), 8, (1,)), CacheGroup("window", Window(20), 8, (1,))),
    "sizes": geometry(CacheGroup("full", Full(), 16, (1,)), CacheGroup("window", Window(20), 8, (1,))),
    "state": geometry(CacheGroup("full", Full(), 8, (1,)), CacheGroup("state", State(), 8, (1,))),
    "all": geometry(
        CacheGroup("full", Full(), 8, (1,)),
        CacheGroup("window", Window(20), 8, (1,)),
        CacheGroup("state", State(), 8, (1,)),
    ),
}


def prompts(numbers: random.Random, count: int) -> list[list[int]]:
    stems = [[numbers.randrange(61) for _ in range(numbers.randint(10, 90))] for _ in range(3)]
    return [
        [*numbers.choice(stems), *(numbers.randrange(61) for _ in range(numbers.randint(1, 40)))]
        for _ in range(count)
    ]


# Why an offered block was not stored (csrc/include/kvarter/index.h).
WHY_NOT = (
    *("already_resident", "already_in_flight", "no_space", "no_parent", "namespace_closed"),
    *("aborted", "failed", "expired", "owner_dead"),
)


@pytest.mark.parametrize("shape", GEOMETRIES)
@pytest.mark.parametrize("ahead", [0, 1])
def test_the_engine_alone_says_what_it_should(core: Any, shape: str, ahead: int) -> None:
    from fake_model import Truth

    engine = core(GEOMETRIES[shape], blocks=60, steps_ahead=ahead)
    asked = prompts(random.Random(1), 12)
    assert engine.ask(asked, 20) == [Truth(GEOMETRIES[shape]).say(prompt, 20) for prompt in asked]
    assert engine.runner.wrong == []


def balance(engine: Any) -> dict[str, int]:
    """The account of an engine that has drained: exact, nothing held, every offered block and token counted once."""
    (store,) = engine.stores()
    ledger, counts = store.audit(), store.stats()
    assert ledger["reserved"] == ledger["leased"] == ledger["quarantined"] == ledger["dead"] == 0
    why_not = {name: counts.get(name, 0) for name in WHY_NOT}
    assert counts["offered"] == counts.get("stored", 0) + sum(why_not.values())
    tokens = engine.tokens()
    outcomes = sum(tokens.get(outcome, 0) for outcome in ("loaded", "failed", "expired"))
    elsewhere = sum(getattr(connector, "promised", 0) for connector in engine.connectors())
    assert tokens.get("matched", 0) == outcomes == engine.external_hits - elsewhere
    return counts


def drafter(seed: int) -> Any:
    """Three drafts, each right more often than not."""
    numbers = random.Random(seed)

    def draft(truth: Any, tokens: list[int]) -> list[int]:
        right = truth.say(tokens, 3)
        return [token if numbers.random() < 0.7 else numbers.randrange(61) for token in right]

    return draft


class Chaos:
    """A random engine, workload and sequence of events; all that happens follows from the seed."""

    def __init__(self, make: Any, seed: int, **fixed: Any) -> None:
        self.numbers = numbers = random.Random(seed)
        self.shape = fixed.pop("shape", None) or numbers.choice(list(GEOMETRIES))
        # Often more than fit at once, so that requests are preempted.
        blocks = numbers.choice([30, 36, 80]) + 20 * len(GEOMETRIES[self.shape].groups[1:])
        self.siblings = fixed.pop("siblings", 0.0)
        faults = {"delay": numbers.choice([0, 0, 0.0003, 0.001])} | fixed.pop("faults", {})
        self.settings = {
            "blocks": blocks,
            "budget": numbers.choice([16, 32, 64, 256]),
            "running": numbers.choice([3, 4, 8]),
            "steps_ahead": numbers.choice([0, 1]),
            "block_outermost": numbers.random() < 0.5,
            "extra": {
                "copy_member": "faulty",
                "faults": faults,
                "max_blocks": numbers.choice([100, 2000, 2000]),
                "boundary_interval": numbers.choice([8, 48, 4096]),
            },
        } | fixed
        if self.settings.get("drafts"):
            self.settings["drafter"] = drafter(seed)
        self.engine = make(GEOMETRIES[self.shape], **self.settings)
        self.asked: dict[str, tuple[list[int], int]] = {}
        self.aborted: set[str] = set()
        self.prompts: list[list[int]] = []

    def add(self, prompt: list[int]) -> None:
        sibling = "sibling " if self.numbers.random() < self.siblings else ""
        name, count = f"{sibling}{len(self.asked)}", self.numbers.randint(1, 80)
        self.asked[name] = prompt, count
        self.engine.add(name, prompt, count)

    def abort(self) -> None:
        alive = [name for name in self.asked if name in self.engine.scheduler.requests]
        if alive:
            name = self.numbers.choice(alive)
            self.aborted.add(name)
            self.engine.abort(name)

    def run(self, requests: int, aborts: float = 0.0) -> None:
        self.prompts += prompts(self.numbers, requests - len(self.prompts) // 2)
        todo = self.numbers.sample(self.prompts, requests)
        while todo:
            self.add(todo.pop())
            for _ in range(self.numbers.choice([0, 0, 1, 3, 20])):
                self.engine.step()
                if self.numbers.random() < aborts:
                    self.abort()
        self.engine.drain()

    def judge(self) -> Counter[str]:
        """The counters of the store and of what happened, once all is found right."""
        from fake_model import Truth

        assert self.engine.runner.wrong == []
        if not self.engine.model.weights:
            for name, (prompt, count) in self.asked.items():
                if name not in self.aborted:
                    assert self.engine.outputs[name] == Truth(GEOMETRIES[self.shape]).say(prompt, count), name
        return Counter(balance(self.engine)) + self.engine.seen


@pytest.fixture(params=["v1", "v2"])
def runner(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Which of vLLM's model runners drives the worker's side."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(request.param == "v2")))
    return request.param


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

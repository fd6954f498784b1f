"""vLLM's own schedulers, without a model: whatever they do to requests and blocks, the tokens stay right."""

import random
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


@pytest.fixture(scope="module")
def words() -> Any:
    import scheduler_words

    return scheduler_words


@pytest.fixture
def core(words: Any, tmp_path: Any) -> Any:
    running = []

    def make(shape: str, **settings: Any) -> Any:
        made = words.Core(GEOMETRIES[shape], tmp_path, **settings)
        running.append(made)
        return made

    yield make
    for one in running:
        one.close()


def prompts(numbers: random.Random, count: int) -> list[list[int]]:
    stems = [[numbers.randrange(61) for _ in range(numbers.randint(10, 90))] for _ in range(3)]
    return [
        [*numbers.choice(stems), *(numbers.randrange(61) for _ in range(numbers.randint(1, 40)))] for _ in range(count)
    ]


@pytest.mark.parametrize("shape", GEOMETRIES)
@pytest.mark.parametrize("ahead", [0, 1])
def test_the_engine_alone_says_what_it_should(core: Any, shape: str, ahead: int) -> None:
    from fake_model import Truth

    engine = core(shape, blocks=60, steps_ahead=ahead)
    asked = prompts(random.Random(1), 12)
    assert engine.ask(asked, 20) == [Truth(GEOMETRIES[shape]).say(prompt, 20) for prompt in asked]
    assert engine.runner.wrong == []


def balance(engine: Any) -> dict[str, int]:
    """The account of an engine that has drained: exact, nothing held, every block that was offered counted once."""
    from engine_words import the_store

    ledger, counts = the_store().audit(), the_store().stats()
    assert ledger["reserved"] == ledger["leased"] == ledger["quarantined"] == ledger["dead"] == 0
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
        blocks = numbers.choice([34, 44, 80]) * len(GEOMETRIES[self.shape].groups)
        faults = {"delay": numbers.choice([0, 0, 0.0003, 0.001])} | fixed.pop("faults", {})
        self.settings = {
            "blocks": blocks,
            "budget": numbers.choice([16, 32, 64, 256]),
            "running": numbers.choice([2, 4, 8]),
            "steps_ahead": numbers.choice([0, 1]),
            "block_outermost": numbers.random() < 0.5,
            "extra": {
                "copy_member": "faulty",
                "faults": faults,
                "max_blocks": numbers.choice([40, 150, 2000]),
                "boundary_interval": numbers.choice([8, 48, 4096]),
            },
        } | fixed
        if self.settings.get("drafts"):
            self.settings["drafter"] = drafter(seed)
        self.engine = make(self.shape, **self.settings)
        self.asked: dict[str, tuple[list[int], int]] = {}
        self.aborted: set[str] = set()

    def add(self, prompt: list[int]) -> None:
        name, count = f"r{len(self.asked)}", self.numbers.randint(1, 40)
        self.asked[name] = prompt, count
        self.engine.add(name, prompt, count)

    def abort(self) -> None:
        alive = [name for name in self.asked if name in self.engine.scheduler.requests]
        if alive:
            name = self.numbers.choice(alive)
            self.aborted.add(name)
            self.engine.abort(name)

    def run(self, requests: int, aborts: float = 0.0) -> None:
        todo = prompts(self.numbers, requests)
        todo += self.numbers.sample(todo, requests // 2)
        while todo:
            self.add(todo.pop())
            for _ in range(self.numbers.choice([0, 0, 1, 3, 20])):
                self.engine.step()
                if self.numbers.random() < aborts:
                    self.abort()
        self.engine.drain()

    def judge(self) -> dict[str, int]:
        from fake_model import Truth

        assert self.engine.runner.wrong == []
        if not self.engine.model.weights:
            for name, (prompt, count) in self.asked.items():
                if name not in self.aborted:
                    assert self.engine.outputs[name] == Truth(GEOMETRIES[self.shape]).say(prompt, count), name
        return balance(self.engine)


@pytest.mark.parametrize("seed", range(24))
def test_tokens_are_right_under_pressure_and_aborts(core: Any, seed: int) -> None:
    chaos = Chaos(core, seed)
    for _ in range(3):
        chaos.run(10, aborts=0.05)
        chaos.engine.drop_prefix_cache()
    counts = chaos.judge()
    print(chaos.shape, chaos.settings, chaos.engine.steps, {k: v for k, v in counts.items() if v})


@pytest.mark.parametrize("seed", range(12))
def test_speculation(core: Any, seed: int) -> None:
    chaos = Chaos(core, seed, shape=["full", "window", "sizes"][seed % 3], drafts=3)
    for _ in range(3):
        chaos.run(10, aborts=0.05)
        chaos.engine.drop_prefix_cache()
    counts = chaos.judge()
    print(chaos.shape, chaos.settings, chaos.engine.steps, {k: v for k, v in counts.items() if v})


@pytest.mark.parametrize("seed", range(12))
def test_faults(core: Any, seed: int) -> None:
    chaos = Chaos(core, seed, faults=[{"fail_every": 7}, {"flip_every": 7}][seed % 2])
    for _ in range(3):
        chaos.run(10, aborts=0.05)
        chaos.engine.drop_prefix_cache()
    counts = chaos.judge()
    print(chaos.shape, chaos.settings, chaos.engine.steps, {k: v for k, v in counts.items() if v})

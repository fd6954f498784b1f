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

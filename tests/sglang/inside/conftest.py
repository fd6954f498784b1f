"""In SGLang's own environment, without a server: run by tests/sglang/test_inside.py, or by hand as it does."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():  # of SGLang's own imports
    warnings.simplefilter("ignore")
    import hicache_words


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of SGLang's own code are no concern here; those of ours are errors as anywhere."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore", r"error:::kvarter(\.|$)"))


@pytest.fixture(scope="session", autouse=True)
def on_cpu() -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``attach(pool, sidecars, **settings)``: a backend (hicache_words.backend), closed when the test ends."""
    made: list[Any] = []

    def make(*args: Any, **settings: Any) -> Any:
        where = {} if "node" in settings else {"directory": str(tmp_path / "own")}
        made.append(hicache_words.backend(*args, **where, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``node(dram=...)``: a node in a process of its own (served_words.ServedNode)."""
    from served_words import ServedNode

    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(ServedNode(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()

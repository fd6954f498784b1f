"""Real SGLang servers, each a process of the environment that SGLANG_PYTHON names (.ci/sglang-venv makes one)."""

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

collect_ignore = ["cpu"]
if importlib.util.find_spec("sglang.srt") is None:
    collect_ignore.append("inside")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(900))  # a server starts in minutes on a busy box
            item.add_marker(pytest.mark.filterwarnings("ignore", r"error:::kvarter(\.|$)"))


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """The interpreter of an environment with SGLang; without one these tests are skipped, which fails the run in CI."""
    python = os.environ.get("SGLANG_PYTHON")
    if not python:
        pytest.skip("SGLANG_PYTHON names no interpreter of an environment with SGLang (.ci/sglang-venv)")
    return python


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model."""
    from kvarter.demo import engine, models

    engine.prepare()
    return models.make("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def gptoss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of full attention and sliding windows, in float32, which its config has to say for SGLang."""
    from kvarter.demo import engine, models

    engine.prepare()
    path = models.make("gptoss", tmp_path_factory.mktemp("models"))
    config = path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": "float32"}))
    return path


@pytest.fixture(scope="session")
def serve(
    sglang_python: str, llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Any]]:
    """``serve(node, *flags, model=PATH, **settings)``: a running server (sglang_words.Server), of the llama unless a
    model is said; all end with the session."""
    from sglang_words import Server

    directory, made = tmp_path_factory.mktemp("sglang"), []

    def make(node: str | None, *more: str, model: Path = llama, **settings: Any) -> Any:
        made.append(Server(sglang_python, directory, model, node, *more, **settings))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture(scope="session")
def node(sglang_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A node that all servers share (served_words.ServedNode)."""
    from served_words import ServedNode

    serving = ServedNode(tmp_path_factory.mktemp("node"), dram=256 << 20)
    yield serving
    serving.close()


@pytest.fixture(scope="session")
def server(serve: Callable[..., Any], node: Any) -> Any:
    """One server at the node, for all tests that need just one. Each asks prompts of its own."""
    return serve(f"unix://{node.path}", allocator="shm")

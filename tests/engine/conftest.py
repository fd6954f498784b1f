"""Real engines in this process, one after another: models, prompts, what an engine without Kvarter says."""

import importlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_node_words import AskedEngine
from engine_words import settings_of
from kvarter.demo import engine, models
from router import Router

engine.prepare()  # before anything imports torch: it reads the environment then


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of the engine's own code are no concern here; those of ours are errors as anywhere."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.engine)
            item.add_marker(
                pytest.mark.timeout(900)
            )  # an engine of several processes starts in minutes on a busy box
            item.add_marker(pytest.mark.filterwarnings("ignore", r"error:::kvarter(\.|$)"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``model("llama")``: the path of a small model, made once."""
    directory = tmp_path_factory.mktemp("models")
    return lambda name: models.make(name, directory)


Prompts = list[list[int]]


@pytest.fixture(scope="session")
def prompts() -> Callable[..., Prompts]:
    """``prompts(count, tokens, shared=0, families=1, seed=0)``: random, sharing ``shared`` in each family."""

    def make(count: int, tokens: int, shared: int = 0, families: int = 1, seed: int = 0) -> Prompts:
        numbers = random.Random(seed)
        prefixes = [[numbers.randrange(3, 259) for _ in range(shared)] for _ in range(families)]
        return [
            prefixes[i % families] + [numbers.randrange(3, 259) for _ in range(tokens - shared)]
            for i in range(count)
        ]

    return make


@pytest.fixture(scope="session")
def kvarter_config() -> Callable[..., dict[str, Any]]:
    """``kvarter_config(dram="64MiB", ...)``: the engine's kv_transfer_config that names the connector."""

    def make(**extra: Any) -> dict[str, Any]:
        return {
            "kv_connector": "KvarterConnector",
            "kv_connector_module_path": "kvarter.connectors.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"dram": "64MiB", **extra},
        }

    return make


class Truth:
    """What the connector in doubles/kvarter_truth.py has seen: blocks `copied`, `torn`, jobs `flushed`."""

    def __init__(self, kvarter_config: Callable[..., dict[str, Any]]) -> None:
        self._kvarter_config = kvarter_config
        self._module = importlib.import_module("kvarter_truth")
        self._module.forget()

    def config(self, **extra: Any) -> dict[str, Any]:
        """The engine's kv_transfer_config that names that connector."""
        named = {"kv_connector": "TruthConnector", "kv_connector_module_path": "kvarter_truth"}
        return {**self._kvarter_config(**extra), **named}

    def __getattr__(self, name: str) -> int:
        return getattr(self._module, name)


@pytest.fixture
def truth(kvarter_config: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Truth:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "doubles"))
    return Truth(kvarter_config)


@pytest.fixture
def start(model: Callable[[str], Path]) -> Iterator[Callable[..., Any]]:
    """``start("llama", blocks=64, kv=None, **settings)``: a running ``LLM``, closed when the test ends.

    One at a time: starting another closes the one before, and `start.close()` the last.
    """
    running: list[Any] = []

    def close() -> None:
        while running:
            running.pop().__exit__(None, None, None)

    def make(name: str, **settings: Any) -> Any:
        close()
        context = engine.engine(model(name), **settings)
        llm = context.__enter__()
        running.append(context)
        return llm

    make.close = close
    yield make
    close()


@pytest.fixture
def earlier_engine(model: Callable[[str], Path]) -> Callable[..., Prompts]:
    """``earlier_engine("llama", prompts, 8, kv=..., **settings)``: the tokens of an engine in another process, which
    has ended by then."""
    doubles = Path(__file__).parent / "doubles"

    def run(name: str, prompts: Prompts, output_tokens: int, *, kv: Any, **settings: Any) -> Prompts:
        task = {"model": str(model(name)), "kv": kv, "settings": settings, "path": [str(doubles)]}
        result = subprocess.run(
            [sys.executable, str(doubles / "one_engine.py")],
            input=json.dumps({**task, "prompts": prompts, "output_tokens": output_tokens}),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-3000:]
        tokens: Prompts = json.loads(result.stdout.splitlines()[-1])
        return tokens

    return run


@pytest.fixture(scope="session")
def baseline(model: Callable[[str], Path]) -> Callable[..., list[list[int]]]:
    """``baseline("llama", prompts, output_tokens)``: greedy tokens by an engine without Kvarter, made once.

    Each prompt is alone in an engine with ample cache, and nothing of it is cached. Ask before `start`: a connector
    belongs to its whole process, and an engine that runs beside it would register its tensors there.
    """
    known: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}

    def tokens(name: str, prompts: Prompts, output_tokens: int, **settings: Any) -> list[list[int]]:
        keys = [(name, output_tokens, tuple(prompt)) for prompt in prompts]
        missing = [key for key in dict.fromkeys(keys) if key not in known]
        if missing:
            ample = {"blocks": 512, "block_size": 32, "enable_prefix_caching": False, **settings}
            with engine.engine(model(name), **ample) as llm:
                for key in missing:
                    known[key] = engine.ask(llm, [key[2]], output_tokens)[0].tokens
        return [known[key] for key in keys]

    return tokens


@pytest.fixture(params=["v1", "v2"])
def runner(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Which of vLLM's model runners drives the worker's side."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(request.param == "v2")))
    return request.param


@pytest.fixture
def events(tmp_path: Path) -> Iterator[tuple[Router, dict[str, Any]]]:
    """A router, and the engine's settings under which it hears of everything."""
    endpoint = f"ipc://{tmp_path}/events"
    router = Router(endpoint)
    yield router, {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    router.close()


@pytest.fixture
def another(model: Any) -> Iterator[Callable[..., AskedEngine]]:
    """``another("llama", kv)``: an engine in a process of its own; all end with the test."""
    engines: list[AskedEngine] = []

    def make(name: str, kv: Any) -> AskedEngine:
        engines.append(AskedEngine(model(name), kv, settings_of(name)))
        return engines[-1]

    yield make
    for each in engines:
        each.close()

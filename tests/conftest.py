"""What all tests share: a skipped test fails the run in CI, where everything must be able to run."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_LEFT_OUT = pytest.StashKey[list[str]]()


def _a_gpu_is_here() -> bool:
    from kvarter import _core

    return bool(_core.find_cuda_driver()["devices"])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Tests that need a GPU where there is none are left out, and said to be."""
    left_out = config.stash.get(_LEFT_OUT, [])
    if left_out:
        terminalreporter.section("tests that need a GPU, left out: there is none here")
        for name in left_out:
            terminalreporter.write_line(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-seconds",
        type=float,
        default=float(os.environ.get("SOAK_SECONDS", 20)),
        help="how long engines come, work, stop and die at one node (default 20, or SOAK_SECONDS)",
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", ()))
    if skipped and os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{skipped} tests were skipped, and in CI none may be", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a CUDA driver without a card (device_words)."""
    import device_words

    return device_words.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def fake(fake_library: Path) -> Iterator[Any]:
    """A fake driver (device_words.FakeDriver); nothing may be left in it, nor anything have gone wrong in it."""
    import gc

    from device_words import FakeDriver

    driver = FakeDriver(fake_library)
    yield driver
    gc.collect()  # engines that a failed test's traceback does not hold
    assert driver.violations() == []


@pytest.fixture
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has set nothing yet: no variable KVARTER_*, no file in this directory for configuration."""
    for name in [name for name in os.environ if name.upper().startswith("KVARTER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need a GPU run where there is one. Tests over vLLM's scheduler need vLLM wherever they lie, and
    warnings of its code are no concern of theirs."""
    need = [item for item in items if item.get_closest_marker("gpu")]
    if need and not _a_gpu_is_here():
        config.stash[_LEFT_OUT] = [item.nodeid for item in need]
        items[:] = [item for item in items if item not in need]
        config.hook.pytest_deselected(items=need)
    for item in items:
        if "core" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.filterwarnings("ignore", r"error:::kvarter(\.|$)"))


@pytest.fixture
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """``core(geometry, blocks=40, ...)``: vLLM's scheduler and Kvarter without a model (scheduler_words.Core).

    One at a time: making another closes the one before.
    """
    from kvarter.demo import engine

    engine.prepare()
    import scheduler_words

    directory = tmp_path_factory.getbasetemp() / "llama"
    directory.mkdir(exist_ok=True)
    made: list[Any] = []

    def close() -> None:
        while made:
            made.pop().close()

    def make(geometry: Any, **settings: Any) -> Any:
        close()
        made.append(scheduler_words.Core(geometry, directory, **settings))
        return made[-1]

    yield make
    close()

"""Real SGLang servers, each a process of the environment that SGLANG_PYTHON names (.ci/sglang-venv makes one)."""

import importlib.util
from pathlib import Path

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

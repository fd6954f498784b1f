"""What `import kvarter` gives: the public names, each documented, one version, and nothing that happens by itself."""

import enum
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

import kvarter
from kvarter import _core

NAMES = {
    *("Store", "Sequence", "Namespace", "CacheGroup", "Full", "Window", "State", "chain_digests", "Status"),
    *("KvarterError", "ConfigError", "GeometryError", "CapacityError", "UnsupportedEngine"),
    *("FingerprintError", "AttachError", "AuditError"),
}
# Run where nothing else is imported: what an import brings along, starts and touches.
WATCHED = """
import json, os, sys, threading
touched = []
def watch(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or event.startswith(
        ("socket.", "os.mkdir", "subprocess.", "os.fork")
    ):
        touched.append([event, str(arguments[0])])
before = {*sys.modules}
sys.dont_write_bytecode = True
descriptors = len(os.listdir("/proc/self/fd"))
sys.addaudithook(watch)
import kvarter
if sys.argv[1:]:
    getattr(kvarter, sys.argv[1])
print(json.dumps({
    "packages": sorted({name.partition(".")[0] for name in {*sys.modules} - before} - sys.stdlib_module_names),
    "threads": len(os.listdir("/proc/self/task")),
    "descriptors": len(os.listdir("/proc/self/fd")) - descriptors,
    "touched": touched,
}))
"""


def importing(*names: str) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-c", WATCHED, *names],
        env={**os.environ, "PYTHONPATH": str(Path(kvarter.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_public_names_are_these() -> None:
    assert set(kvarter.__all__) == NAMES
    assert len(kvarter.__all__) == len(NAMES)
    assert {*dir(kvarter)} > NAMES
    namespace: dict[str, Any] = {}
    exec("from kvarter import *", namespace)
    assert {*namespace} > NAMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kvarter' has no attribute 'Stor'"):
        _ = kvarter.Stor  # type: ignore[attr-defined]


def documented(name: str) -> Iterator[tuple[str, object]]:
    """A public name, and if it is a class of ours its public methods and properties."""
    found = getattr(kvarter, name)
    yield name, found
    if inspect.isclass(found) and not issubclass(found, Exception | enum.Enum):
        for member, value in vars(found).items():
            if not member.startswith("_") and (callable(value) or isinstance(value, property | classmethod)):
                yield f"{name}.{member}", value


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_is_documented(name: str) -> None:
    for member, value in documented(name):
        text = inspect.getdoc(value)
        assert text, f"{member} has no docstring"
        if inspect.isclass(value):
            assert not text.startswith(f"{name}("), f"{member} has only the docstring of any dataclass"


@pytest.mark.parametrize(
    "name", sorted(name for name in NAMES if name.endswith("Error") or "Unsupported" in name)
)
def test_every_error_is_ours_and_the_builtin_that_a_caller_expects(name: str) -> None:
    error = getattr(kvarter, name)
    assert issubclass(error, kvarter.KvarterError)
    if error is not kvarter.KvarterError:
        assert any(base.__module__ == "builtins" and base is not Exception for base in error.__bases__)


def test_there_is_one_version() -> None:
    assert kvarter.__version__ == _core.__version__


def test_the_installed_distribution_has_the_same_version() -> None:
    try:
        installed = version("kvarter")
    except PackageNotFoundError:
        installed = kvarter.__version__  # run from the checkout, nothing is installed
    assert installed == kvarter.__version__


def test_importing_the_package_loads_nothing_else() -> None:
    assert importing() == {"packages": ["kvarter"], "threads": 1, "descriptors": 0, "touched": []}


def test_the_store_needs_numpy_alone_and_nothing_starts() -> None:
    assert importing("Store") == {
        "packages": ["kvarter", "numpy"],
        "threads": 1,
        "descriptors": 0,
        "touched": [],
    }

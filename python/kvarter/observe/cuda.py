"""Whether a CUDA driver is here, and what it offers the copy engine."""

from .. import _core
from ..config import Config
from .finding import Finding, Level


def cuda() -> Finding:
    """The driver's version and devices. Nothing is allocated on any."""
    driver = Config.load().cuda.driver or ""
    found = _core.find_cuda_driver(driver)
    if found["missing"]:
        if driver:
            return Finding("CUDA", Level.PROBLEM, found["missing"], "Correct or unset cuda.driver.", found)
        return Finding("CUDA", Level.OK, f"{found['missing']}; caches in host memory alone", data=found)
    version = f"driver of CUDA {found['version'] // 1000}.{found['version'] % 1000 // 10}"
    devices = ", ".join(f"{number} {name}" for number, name in enumerate(found["devices"])) or "no device"
    if not found["batches"]:
        return Finding(
            "CUDA",
            Level.NOTE,
            f"{version}, {devices}, one call for each run of bytes",
            "Update the driver to CUDA 12.8 or later: it copies in batches.",
            found,
        )
    return Finding("CUDA", Level.OK, f"{version}, {devices}, copies in batches", data=found)

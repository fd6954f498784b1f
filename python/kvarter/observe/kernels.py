"""Which kernels hash and copy here."""

from collections.abc import Callable

from .. import _core
from .finding import Finding, Level

_VARIABLES = {"sha256": "KVARTER_SHA256", "xxh3": "KVARTER_XXH3", "copy": "KVARTER_COPY"}


def hashing() -> Finding:
    """The kernels of both hashes."""
    return _kernels("hash kernels", _core.hash_kernels, _core.usable_hash_kernels())


def copying() -> Finding:
    """The copy kernel."""
    return _kernels("copy kernel", _core.copy_kernels, _core.usable_copy_kernels())


def _kernels(name: str, chosen: Callable[[], dict[str, str]], usable: dict[str, list[str]]) -> Finding:
    variables = " and ".join(_VARIABLES[work] for work in usable)
    try:
        kernels = chosen()
    except RuntimeError as error:
        return Finding(name, Level.PROBLEM, str(error), f"Unset {variables}.", {"usable": usable})
    found = ", ".join(f"{work} {kernel} (of {', '.join(usable[work])})" for work, kernel in kernels.items())
    data = {"chosen": kernels, "usable": usable}
    slower = [_VARIABLES[work] for work, kernel in kernels.items() if kernel != usable[work][-1]]
    if slower:
        return Finding(name, Level.NOTE, found, f"Unset {' and '.join(slower)} for the fastest.", data)
    return Finding(name, Level.OK, found, data=data)

"""Lets SGLang import on a machine without a GPU. On PYTHONPATH, so that each of its processes begins with this.

A stand-in, for tests alone: SGLang imports these packages everywhere and, on a CPU without AMX and for a plain model,
calls none of them. Their names resolve to classes; what is called says so and raises, except for decorators of kernels,
which leave the function as it was. What a user installs in their place is in SGLang's own requirements.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

STANDS_IN_FOR = (
    "IPython",
    "gguf",
    "jsonschema",
    "scipy",
    "sgl_kernel",
    "soundfile",
    "torchvision",
    "triton",
    "tvm_ffi",
    "xgrammar",
)
_AT_IMPORT = ("jit", "autotune", "heuristics", "Config", "constexpr", "add")


class _Name(type):
    """A class by the name that was asked for; a subclass of it is a class as any other."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(f"{cls.__module__}.{cls.__name__}", name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "stands_in" not in cls.__dict__:
            return super().__call__(*args, **kwargs)
        if cls.__name__ not in _AT_IMPORT:
            raise RuntimeError(
                f"{cls.__module__}.{cls.__name__} is a stand-in (tests/sglang/cpu), and was called"
            )
        return args[0] if len(args) == 1 and isinstance(args[0], types.FunctionType) else cls


def _stand_in(module: str, name: str) -> _Name:
    return _Name(
        name, (), {"__module__": module, "stands_in": True, "__get_pydantic_core_schema__": _anything}
    )


def _anything(*_: Any) -> Any:
    from pydantic_core import core_schema

    return core_schema.any_schema()


class _Module(types.ModuleType):
    __version__ = "0.0.0"
    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in STANDS_IN_FOR:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


sys.meta_path.insert(0, _Finder())

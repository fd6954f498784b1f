"""Python runs this at the start of every process below one that called ``guard.hide_broken_packages``.

It hides the same packages there, then runs the ``sitecustomize`` that it stands before, if there is one.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_here = Path(__file__).parent
# By file: the package that the guard belongs to, and its extension, have no business in every child.
for _spec in (
    spec_from_file_location("_kvarter_guard", _here.parent / "guard.py"),
    PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path) != _here]),
):
    if _spec is not None and _spec.loader is not None:
        _module = module_from_spec(_spec)
        _spec.loader.exec_module(_module)
        if _spec.name == "_kvarter_guard":
            _module.hide_here()

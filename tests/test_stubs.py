"""The stubs of the extensions say what they have: same names, same parameters, same simple types."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvarter

SIMPLE = {"int", "bool", "str", "bytes", "None"}  # what the generator knows as well as we do


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Functions and methods by dotted name, without the special ones that every enum and class has."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            found |= {f"{node.name}.{item.name}": item for item in methods}
    special = (".__new__", ".__format__", ".__repr__")
    return {name: function for name, function in found.items() if not name.endswith(special)}


def classes(tree: ast.Module) -> dict[str, tuple[list[str], set[str]]]:
    """Bases and attributes of each class."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            targets = [
                item.target if isinstance(item, ast.AnnAssign) else item.targets[0]
                for item in node.body
                if isinstance(item, ast.AnnAssign | ast.Assign)
            ]
            found[node.name] = ([ast.unparse(base) for base in node.bases], {ast.unparse(t) for t in targets})
    return found


def signature(function: ast.FunctionDef) -> tuple[list[str], list[str], int, int, list[str]]:
    a = function.args
    defaults = sum(default is not None for default in a.kw_defaults)
    return (
        [arg.arg for arg in a.posonlyargs + a.args],
        [arg.arg for arg in a.kwonlyargs],
        len(a.defaults),
        defaults,
        [ast.unparse(decorator) for decorator in function.decorator_list],
    )


@pytest.fixture(scope="module", params=["_core", "_ucx"])
def module(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def generated(module: str, tmp_path_factory: pytest.TempPathFactory) -> ast.Module:
    pytest.importorskip("pybind11_stubgen", reason="the stubs are compared with what pybind11-stubgen writes")
    out = tmp_path_factory.mktemp("stubs")
    path = "import sys; sys.path[:0] = [sys.argv.pop(1)]"
    load = "from kvarter.peers.ucx_library import load; load()" if module == "_ucx" else "pass"
    main = "from pybind11_stubgen import main; main()"
    root = str(Path(kvarter.__file__).parents[1])
    command = [sys.executable, "-c", f"{path}; {load}; {main}", root, f"kvarter.{module}", "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    found = [*out.rglob(f"{module}.pyi"), *out.rglob(f"{module}/__init__.pyi")]
    return ast.parse(found[0].read_text())


@pytest.fixture(scope="module")
def committed(module: str) -> ast.Module:
    return ast.parse((Path(__file__).parents[1] / "python" / "kvarter" / f"{module}.pyi").read_text())


def test_the_stubs_have_every_function_with_its_parameters(
    generated: ast.Module, committed: ast.Module
) -> None:
    assert {name: signature(f) for name, f in functions(committed).items()} == {
        name: signature(f) for name, f in functions(generated).items()
    }


def test_the_stubs_have_every_class_with_its_bases_and_attributes(
    generated: ast.Module, committed: ast.Module
) -> None:
    assert classes(committed) == classes(generated)


def test_results_of_simple_types_agree(generated: ast.Module, committed: ast.Module) -> None:
    ours = functions(committed)
    for name, function in functions(generated).items():
        found = ast.unparse(function.returns) if function.returns else "None"
        if found in SIMPLE:
            assert ast.unparse(ours[name].returns or ast.Constant(None)) == found, name

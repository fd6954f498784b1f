"""The import guard, on packages made for the purpose: a torchvision whose ops link what torch has not got."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kvarter

GUARDED = """
    import logging, sys
    logging.basicConfig()
    from kvarter.demo.guard import hide_broken_packages
    hidden = hide_broken_packages()
"""


class Site:
    """A directory in front of sys.path with a torch and a torchvision, and Python processes that see it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for package in ("torch", "torchvision"):
            (directory / package).mkdir(parents=True)
            (directory / package / "__init__.py").touch()
        self.libraries = directory / "torch" / "lib"
        self.libraries.mkdir()
        self.build("libtorch_cpu.so", self.libraries)
        self.build("libtorch_cuda.so", self.libraries)
        self.build("_C.so", directory / "torchvision", f"-L{self.libraries}", "-ltorch_cpu", "-ltorch_cuda")

    def build(self, name: str, directory: Path, *link: str) -> None:
        target = directory / name
        options = ["-shared", "-nostdlib", "-Wl,--no-as-needed", f"-Wl,-soname,{name}", "-o", str(target)]
        subprocess.run(["c++", "-x", "c++", "/dev/null", "-x", "none", *options, *link], check=True)

    def run(self, *programs: str, path: str = "") -> "subprocess.CompletedProcess[str]":
        paths = [str(self.directory), path, str(Path(kvarter.__file__).parents[1])]
        return subprocess.run(
            [sys.executable, "-c", "".join(textwrap.dedent(program) for program in programs)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
            check=True,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


@pytest.fixture
def broken(site: Site) -> Site:
    (site.libraries / "libtorch_cuda.so").unlink()
    return site


IS_ABSENT = """
    from importlib.util import find_spec
    assert find_spec("torchvision") is None
    try:
        import torchvision
    except ModuleNotFoundError:
        print("absent")
"""


def test_a_torchvision_that_needs_what_torch_lacks_is_absent(broken: Site) -> None:
    child = broken.run(GUARDED, "assert 'libtorch_cuda.so' in hidden['torchvision']\n", IS_ABSENT)
    assert child.stdout == "absent\n"


def test_a_torchvision_that_finds_its_libraries_is_left_alone(site: Site) -> None:
    child = site.run(
        GUARDED, "assert 'torchvision' not in hidden\nimport torchvision\nprint(torchvision.__file__)\n"
    )
    assert Path(child.stdout.strip()).is_relative_to(site.directory)


def test_a_torchvision_imported_before_is_left_alone(broken: Site) -> None:
    child = broken.run("import torchvision\n", GUARDED, "print('torchvision' in hidden)\n")
    assert child.stdout == "False\n"


def test_nothing_is_hidden_where_torch_is_laid_out_in_an_unknown_way(broken: Site) -> None:
    (broken.libraries / "libtorch_cpu.so").unlink()
    assert broken.run(GUARDED, "print(hidden)\n").stdout == "{}\n"


def test_the_guard_says_what_it_hid_exactly_once(broken: Site) -> None:
    child = broken.run(GUARDED, "assert hide_broken_packages() == {}\n")
    assert child.stderr.count("torchvision counts as absent") == 1


def test_the_guard_imports_nothing(broken: Site) -> None:
    child = broken.run(GUARDED, "print('torch' in sys.modules)\n")
    assert child.stdout == "False\n"


def test_child_processes_find_it_absent_too(broken: Site) -> None:
    child = broken.run(
        GUARDED,
        f"import subprocess\nsubprocess.run([sys.executable, '-c', {textwrap.dedent(IS_ABSENT)!r}])\n",
    )
    assert child.stdout == "absent\n"
    assert child.stderr.count("torchvision counts as absent") == 1


def test_spawned_workers_find_it_absent_too(broken: Site) -> None:
    child = broken.run(
        GUARDED,
        """
        import multiprocessing
        from importlib.util import find_spec
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(find_spec, ["torchvision"]))
        """,
    )
    assert child.stdout == "None\n"


def test_a_sitecustomize_of_the_users_still_runs_in_children(broken: Site, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    program = "import subprocess\nsubprocess.run([sys.executable, '-c', 'pass'])\n"
    assert broken.run(GUARDED, program, path=str(tmp_path)).stdout == "mine\nmine\n"


def test_the_doctor_calls_it_a_problem_and_hides_nothing(broken: Site) -> None:
    child = broken.run(
        """
        import sys
        from kvarter.observe.engines import torchvision
        print(torchvision().level, "torchvision" in sys.modules, torchvision().advice)
        """
    )
    assert child.stdout.startswith("problem False Run `pip uninstall torchvision")

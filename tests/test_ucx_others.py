"""Other users of UCX beside us: ucxx as an independent peer, ucxx and nixl in one process with us, and whose UCX it is.

OTHER_UCX_USERS names a directory with the packages `ucxx` and `nixl` of .ci/ucx-users, OTHER_UCX one with another
libucx than the installed one; without them the tests that need them are skipped.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coexist_words import SIZES
from served_words import SECONDS, until
from street_words import PORT, PeerNode, Street
from ucx_words import Talk, played

ROOT = Path(__file__).parent.parent
WORDS = str(ROOT / "tests" / "coexist_words.py")


def directory(variable: str, name: str = "") -> Path:
    path = os.environ.get(variable, "")
    if not path:
        pytest.skip(f"{variable} names no directory{name and f' with {name}'}")
    return Path(path) / name


@pytest.fixture(scope="module")
def other_ucx() -> Path:
    return directory("OTHER_UCX")


@pytest.fixture(scope="module")
def ucxx() -> Path:
    """With a libucx of its own."""
    return directory("OTHER_UCX_USERS", "ucxx")


@pytest.fixture(scope="module")
def nixl() -> Path:
    return directory("OTHER_UCX_USERS", "nixl")


def environment(*packages: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([*map(str, packages), *sys.path, str(ROOT / "python")])
    return {**os.environ, "PYTHONPATH": path, **more}


def beside(first: str, second: str, *packages: Path) -> list[str]:
    """What the process says of the copies of UCX in it."""
    done = subprocess.run(
        [sys.executable, WORDS, "beside", first, second],
        env=environment(*packages),
        capture_output=True,
        text=True,
        timeout=4 * SECONDS,
    )
    said = done.stdout.splitlines()
    assert done.returncode == 0 and said[-1:] == ["closed"], done.stdout + done.stderr
    return said[said.index("copies") + 1 : -1]


@pytest.mark.parametrize("order", [("ours", "ucxx"), ("ucxx", "ours")])
def test_we_and_ucxx_move_bytes_in_one_process_with_one_ucx(order: tuple[str, str], ucxx: Path) -> None:
    assert len(beside(*order, ucxx)) == 1


@pytest.mark.parametrize("order", [("ours", "nixl"), ("nixl", "ours")])
def test_we_and_nixl_move_bytes_in_one_process_each_with_its_ucx(order: tuple[str, str], nixl: Path) -> None:
    copies = beside(*order, nixl)
    assert len(copies) == 2
    assert len([copy for copy in copies if "nixl" in copy]) == 1


# --- an independent peer


@pytest.fixture(scope="module")
def tagged_worker(ucxx: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program of tests/tagged_worker, of our context, worker and endpoint, with ucxx's UCX."""
    program, ucx = str(tmp_path_factory.mktemp("tagged") / "tagged_worker"), ucxx / "libucx"
    sources = [ROOT / "tests/tagged_worker/tagged_worker.cpp"]
    sources += [ROOT / f"csrc/ucx/ucp/{name}.cpp" for name in ("context", "worker", "endpoint")]
    library = ["-L", ucx / "lib", "-lucp", "-lucs", f"-Wl,-rpath-link,{ucx / 'lib'}"]
    includes = ["-I", ROOT / "csrc/include", "-I", ucx / "include"]
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20"]
    subprocess.run([*compiler, *includes, *sources, *library, "-o", program], check=True)
    return program


@pytest.fixture
def pair(tagged_worker: str, ucxx: Path) -> Iterator[tuple[Talk, Talk]]:
    """Our worker and ucxx."""
    ours = Talk(tagged_worker, *map(str, SIZES), env=environment(LD_LIBRARY_PATH=str(ucxx / "libucx/lib")))
    theirs = Talk(sys.executable, WORDS, "tags", env=environment(ucxx))
    yield ours, theirs
    ours.close()
    theirs.close()


def test_our_worker_and_ucxx_exchange_tagged_messages_eager_and_by_rendezvous(
    pair: tuple[Talk, Talk],
) -> None:
    ours, theirs = pair
    theirs.say(ours.said())
    ours.say(theirs.said())
    assert theirs.said() == "exchanged"
    ours.say("end")
    assert ours.said() == "exchanged"
    assert ours.process.wait(SECONDS) == 0


def test_ucxx_at_our_address_with_messages_of_its_own_disturbs_nobody(ucxx: Path) -> None:
    played("disturbed", "lo", within=[], owner_within=[], ucx=str(ucxx))


# --- whose UCX it is


@pytest.mark.parametrize("prefer", ["system", "wheel"])
def test_the_systems_ucx_is_preferred_and_the_wheels_where_that_is_asked_for(
    prefer: str, other_ucx: Path
) -> None:
    """The system's is what the loader finds by its SONAME."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"""if True:
            import coexist_words
            from kvarter.peers.ucx_library import load
            print(load({prefer!r})[1:])
            ours = coexist_words.Ours()
            ours.moves()
            ours.close()
            print(*coexist_words.loaded())
            """,
        ],
        env=environment(LD_LIBRARY_PATH=str(other_ucx / "libucx/lib")),
        capture_output=True,
        text=True,
        timeout=4 * SECONDS,
    )
    assert done.returncode == 0, done.stderr
    library, copies = (line for line in done.stdout.splitlines() if not line.startswith("["))  # UCX's log
    assert len(copies.split()) == 1 and copies in library, "one UCX"
    assert library.startswith(f"('{prefer}', ")
    assert (str(other_ucx) in copies) == (prefer == "system")


def test_nodes_with_different_ucx_do_not_link_and_both_say_so(
    other_ucx: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = ""

    def heard(number: int) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        about = f"no link to the peer at {Street.address(number)}:{PORT}: "
        return any(about in line and "UCX version found" in line for line in said.splitlines())

    with contextlib.ExitStack() as stack:
        street = stack.enter_context(contextlib.closing(Street(2)))
        here = stack.enter_context(contextlib.closing(PeerNode(tmp_path, street, 1, [2])))
        there = stack.enter_context(
            contextlib.closing(PeerNode(tmp_path, street, 2, [1], ucx=str(other_ucx)))
        )
        until(lambda: heard(1) and heard(2), "why there is no link, of both")
        assert here.peers()["links"] == there.peers()["links"] == []

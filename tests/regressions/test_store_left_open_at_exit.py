"""A store with a disk that nobody closed aborted its process at exit, its thread waiting inside the core."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from kvarter.tiers.log import DiskOptions
from words import World, full

world = World(full(), disk=DiskOptions(sys.argv[1], 8 << 20, 1 << 20))
world.put(world.sequence(range(33)), {0: range(8)})
print("left open", flush=True)
"""


def test_a_store_left_open_ends_with_its_process_and_leaves_its_blocks(tmp_path: Path) -> None:
    path = [str(Path(__file__).parents[1]), *sys.path]
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{PROGRAM}", str(tmp_path / "log")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (result.returncode, result.stdout, result.stderr) == (0, "left open\n", "")
    from kvarter import _core

    assert _core.disk_inspect(str(tmp_path / "log"))["blocks"] == 8

"""Which UCX there is, and over what it can carry bytes between hosts. Everything else works without one."""

import json
import os
import subprocess
import sys

from .finding import Finding, Level

_CHILD = """
import json
from kvarter.peers.ucx_library import UcxMissing, load
try:
    library = load()
except UcxMissing as error:
    print(json.dumps({"library": None, "why": str(error)}))
else:
    print(json.dumps({
        "library": str(library.path),
        "source": library.source,
        "version": ".".join(map(str, library.version)),
        "rdma": library.rdma,
        "transports": sorted({name.partition("/")[0] for name in library.module.available()}),
    }))
"""


def ucx(*path: str) -> Finding:
    """Loads it in a process of its own. path: where that process looks for modules before all else."""
    search = os.pathsep.join([*path, *sys.path])
    answer = _run(search)
    try:
        data = json.loads(answer.stdout.splitlines()[-1])  # UCX may have logged before
    except (ValueError, IndexError):
        why = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        data = {"library": None, "why": f"it does not start: {why}"}
    if data["library"] is None:
        advice = 'Install the cluster\'s own UCX, or `pip install "kvarter[ucx]"`, to share blocks with other hosts.'
        return Finding("UCX", Level.NOTE, data["why"], advice, data)
    words = ", ".join(data["transports"])
    rdma = "with" if data["rdma"] else "without"
    found = f"{data['version']}, the {data['source']}'s, {rdma} RDMA ({data['library']}); transports: {words}"
    return Finding("UCX", Level.OK, found, data=data)


def _run(search: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", _CHILD]
    environment = {**os.environ, "PYTHONPATH": search}
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))

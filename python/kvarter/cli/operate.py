"""`kvarter dashboard` and `kvarter unit`: files that an operator installs elsewhere, from beside the node's code."""

from __future__ import annotations

import sys
from importlib import resources

import kvarter.node


def dashboard() -> None:
    """Print a Grafana dashboard over what `kvarter serve --metrics` says, to be imported there."""
    print(_file("dashboard.json"), end="")


def unit() -> None:
    """Print a systemd unit for kvarter@USER, which serves the engines of that user.

    kvarter unit > /etc/systemd/system/kvarter@.service; settings go to /etc/kvarter/USER.env (KVARTER_DRAM=64GiB).
    Engines name it with `node: unix:///run/kvarter/USER/node.sock`.
    """
    print(_file("kvarter@.service").replace("@PYTHON@", sys.executable), end="")


def _file(name: str) -> str:
    return resources.files(kvarter.node).joinpath(name).read_text()

"""Settings are checked at start: what is wrong, what was found, and what would be right."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kvarter.config import Config, disabled
from kvarter.errors import ConfigError

MIB, GIB = 1 << 20, 1 << 30
pytestmark = pytest.mark.usefixtures("nothing_set")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"copy_thread": 1}, "unknown setting 'copy_thread'; did you mean 'copy_threads'"),
        ({"holdSeconds": 1}, "unknown setting 'holdSeconds'; did you mean 'hold_seconds'"),
        ({"faults": {"delya": 1}}, "unknown setting 'faults.delya'; did you mean 'faults.delay'"),
        ({"colour": 1}, "unknown setting 'colour'; known are dram, max_blocks"),
        ({"dram": "lots"}, "dram='lots': expected a number of bytes, or a size such as '4GiB'"),
        ({"dram": -1}, "dram=-1: expected a number of bytes"),
        ({"dram": "1MiB"}, "dram='1MiB': input should be greater than or equal to 2097152"),
        ({"max_blocks": 0}, "max_blocks=0: input should be greater than 0"),
        ({"max_blocks": 1 << 32}, "max_blocks=4294967296: input should be less than or equal to 4294967294"),
        ({"weights_id": ""}, "weights_id='': string should have at least 1 character"),
        ({"hold_seconds": 0}, "hold_seconds=0: input should be greater than 0"),
        ({"load_seconds": float("inf")}, "load_seconds=inf: input should be less than"),
        ({"store_seconds": float("nan")}, "store_seconds=nan: input should be"),
        ({"copy_threads": 65}, "copy_threads=65: input should be less than or equal to 64"),
        ({"copy_member": "gpu"}, "copy_member='gpu': input should be 'auto', 'host', 'cuda' or 'faulty'"),
        ({"faults": {"fail_every": -1}}, "faults.fail_every=-1: input should be greater than or equal to 0"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Config.load(setting)
    assert sentence in str(refusal.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"copy_threads=-1: .*; unknown setting 'dramm'; did you mean 'dram'\?"
    ):
        Config.load({"copy_threads": -1, "dramm": 5})


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        ("256MiB", 256 * MIB),
        ("256MB", 256_000_000),
        ("2 GiB", 2 * GIB),
        ("0.5GiB", GIB // 2),
        (4 * MIB, 4 * MIB),
    ],
)
def test_sizes_are_numbers_or_words(size: str | int, nbytes: int) -> None:
    assert Config.load({"dram": size}).pool_bytes() == nbytes


def test_a_size_that_was_given_is_not_shared_out() -> None:
    assert Config.load({"dram": "256MiB"}).pool_bytes(sharers=4) == 256 * MIB


def test_settings_do_not_change_afterwards() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().hold_seconds = 3.0


def host(root: Path, available: int, limit: int | None) -> str:
    """What a system with so much memory, and such a cgroup, says of itself."""
    files = {
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available >> 10} kB\n",
        "proc/self/cgroup": "0::/engine\n",
        "sys/fs/cgroup/engine/memory.max": f"{limit or 'max'}\n",
        "sys/fs/cgroup/engine/memory.current": "0\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("available", "limit", "sharers", "expected"),
    [
        (64 * GIB, 16 * GIB, 1, 4 * GIB),
        (64 * GIB, 16 * GIB, 2, 2 * GIB),
        (64 * GIB, None, 1, 16 * GIB),
        (8 * GIB, 16 * GIB, 1, 2 * GIB),  # the cgroup may have more than there is
        (4 * MIB, None, 8, 2 * MIB),  # never less than a pool can be
    ],
)
def test_the_default_pool_is_a_quarter_of_what_is_allowed_shared_among_ranks(
    tmp_path: Path, available: int, limit: int | None, sharers: int, expected: int
) -> None:
    assert Config().pool_bytes(sharers, host(tmp_path, available, limit)) == expected


@pytest.mark.parametrize(
    ("value", "off"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)]
)
def test_the_environment_turns_everything_off(
    monkeypatch: pytest.MonkeyPatch, value: str | None, off: bool
) -> None:
    if value is None:
        monkeypatch.delenv("KVARTER_DISABLE", raising=False)
    else:
        monkeypatch.setenv("KVARTER_DISABLE", value)
    assert disabled() is off

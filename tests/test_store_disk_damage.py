"""Segment files that somebody damaged, on the real file system: never a wrong byte, and the next store heals."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disk_words import BLOCK, MIB, SEGMENT, World, du, exact, keep, served, worlds
from words import full

TEXTS = 6  # half a MiB each: more than two segments
CAPACITY = 16 * MIB


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def start(log: Path) -> Iterator[Callable[[], World]]:
    """Starts a store over the log; the one before has been closed."""
    with worlds(log) as make:
        yield lambda: make(full(BLOCK), capacity=CAPACITY)


def segments(log: Path) -> list[Path]:
    """Those with something in them."""
    return [file for file in sorted(log.glob("segment-*")) if any(file.read_bytes()[4096 : 64 << 10])]


def overwrite(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def truncated(files: list[Path]) -> None:
    os.truncate(files[0], SEGMENT // 2)
    os.truncate(files[1], 0)


def over_long(files: list[Path]) -> None:
    with files[0].open("ab") as opened:
        opened.write(files[0].read_bytes())


def zeroed(files: list[Path]) -> None:
    overwrite(files[0], 0, bytes(SEGMENT))


def zeroed_in_the_middle(files: list[Path]) -> None:
    for file in files:
        overwrite(file, SEGMENT // 4, bytes(SEGMENT // 4))


def without_indexes(files: list[Path]) -> None:
    for file in files:
        overwrite(file, SEGMENT - 4096, bytes(4096))
        overwrite(file, SEGMENT // 2, b"rot")


def bits_flipped(files: list[Path]) -> None:
    for file in files:
        data = bytearray(file.read_bytes())
        for at in range(20_000, SEGMENT, 150_000):
            data[at] ^= 1
        file.write_bytes(data)


def swapped(files: list[Path]) -> None:
    aside = files[0].with_name("aside.new")
    files[0].rename(aside)
    files[1].rename(files[0])
    aside.rename(files[1])


def pages_swapped(files: list[Path]) -> None:
    data = files[0].read_bytes()
    overwrite(files[0], 128 << 10, data[512 << 10 : 576 << 10])
    overwrite(files[0], 512 << 10, data[128 << 10 : 192 << 10])


def duplicated_onto_another(files: list[Path]) -> None:
    shutil.copyfile(files[0], files[1])


def gone(files: list[Path]) -> None:
    files[0].unlink()


DAMAGE = [
    truncated,
    over_long,
    zeroed,
    zeroed_in_the_middle,
    without_indexes,
    bits_flipped,
    swapped,
    pages_swapped,
    duplicated_onto_another,
    gone,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_what_damaged_files_still_serve_verifies_and_the_next_store_heals(
    damage: Callable[[list[Path]], None], log: Path, start: Callable[[], World]
) -> None:
    first = start()
    for number in range(TEXTS):
        keep(first, number)
    first.store.close()
    damage(segments(log))

    second = start()
    found = [served(second, number)[0] for number in range(TEXTS)]
    assert 0 < sum(found) < 8 * TEXTS
    assert du(log) <= CAPACITY
    assert second.store.disk.log.audit() == []
    for number in range(TEXTS):
        keep(second, number)
    assert exact(second)
    second.store.close()

    third = start()
    assert [served(third, number) for number in range(TEXTS)] == [(8, 8)] * TEXTS
    assert third.store.disk.log.audit() == []
    assert exact(third)
    assert du(log) <= CAPACITY


def test_a_copy_under_a_number_of_its_own_adds_nothing(log: Path, start: Callable[[], World]) -> None:
    first = start()
    for number in range(TEXTS):
        keep(first, number)
    first.store.close()
    for number in (9, 12):
        shutil.copyfile(segments(log)[0], log / f"segment-{number:08x}")
    second = start()
    assert second.store.disk.log.counters()["recovered"] == 8 * TEXTS
    assert [served(second, number) for number in range(TEXTS)] == [(8, 8)] * TEXTS
    assert du(log) <= CAPACITY
    assert second.store.disk.log.audit() == []
    assert exact(second)


def test_segments_restored_from_a_backup_serve_nothing_wrong(log: Path, start: Callable[[], World]) -> None:
    first = start()
    for number in range(TEXTS):
        keep(first, number)
    first.store.close()
    backup = {file: file.read_bytes() for file in segments(log)}
    second = start()
    for number in range(TEXTS, 40):  # more than the log holds
        keep(second, number)
        served(second, number)
    second.store.close()
    for file, data in backup.items():
        file.write_bytes(data)
    third = start()
    assert sum(served(third, number)[0] for number in range(40)) > 0
    assert third.store.disk.log.audit() == []
    assert exact(third)


def test_what_a_backup_brings_back_of_an_invalidated_namespace_goes_when_it_is_invalidated_again(
    log: Path, start: Callable[[], World]
) -> None:
    first = start()
    for number in range(TEXTS):
        keep(first, number)
    first.store.close()
    backup = {file: file.read_bytes() for file in log.iterdir()}
    second = start()
    second.store.invalidate(second.namespace)
    second.store.close()
    for file, data in backup.items():  # with the manifest: it knows of no invalidation
        file.write_bytes(data)
    third = start()
    assert [served(third, number) for number in range(TEXTS)] == [(8, 8)] * TEXTS
    third.store.invalidate(third.namespace)
    third.store.close()
    fourth = start()
    assert [served(fourth, number) for number in range(TEXTS)] == [(0, 0)] * TEXTS
    assert exact(fourth)

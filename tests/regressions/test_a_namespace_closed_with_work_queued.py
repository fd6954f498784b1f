"""Classes that a policy had queued for a namespace that was closed meanwhile raised into the engine."""

from pathlib import Path

from kvarter.tiers.log import DiskOptions
from words import World, full, namespace


def test_what_is_queued_for_a_closed_namespace_is_forgotten(tmp_path: Path) -> None:
    disk = DiskOptions(str(tmp_path / "log"), 8 << 20, 1 << 20)
    world = World(full(), max_blocks=512, disk=disk)
    for number in range(40):
        sequence = world.sequence([number] * 41)
        world.store.match(sequence, request=str(number), session="s")
        world.put(sequence, {0: range(10)})
        if number % 4 == 3:
            world.store.invalidate(world.namespace)
            for _ in range(4):  # until the last of it is swept, and its number may be another's
                world.pass_time(0.1)
            world.store.hint("s", ends=True)
            world.namespace = namespace(full(), weights=str(number))
    assert world.store.disk is not None
    assert world.store.disk.flush(20)
    world.store.audit()
    world.store.close()

"""The cache on a GPU, with a driver without a card: streams overtake one another, and the tokens stay right."""

import ctypes
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from chaos_words import GEOMETRIES, Chaos, balance, prompts


def test_tokens_are_right_when_copies_are_late(core: Any, fake: Any, runner: str) -> None:
    seen = Counter[str]()
    for seed in range(6):
        fake.set_delay(2000 if seed % 2 else 300, seed)
        chaos = Chaos(core, seed, device=fake)
        assert chaos.engine.config.use_v2_model_runner == (runner == "v2")
        for _ in range(3):
            chaos.run(10, aborts=0.05)
            chaos.engine.drop_prefix_cache()
        seen += chaos.judge()
    for event in ("preempted", "flushed", "aborted_loading", "loaded", "evicted", "already_in_flight"):
        assert seen[event] > 0, event


def test_nobody_waits_on_the_host_for_blocks_about_to_be_reused(core: Any, fake: Any) -> None:
    """As long as a copy takes, the engine's stream waits for it, not the engine."""
    from vllm.distributed.kv_transfer import kv_transfer_state

    flushed = 0
    for seed in range(4):
        chaos = Chaos(core, seed, device=fake, blocks=40)
        worker = kv_transfer_state.get_kv_transfer_group()._worker
        waits = []
        worker._engine = _Counting(worker._engine, waits)
        chaos.run(12)
        flushed += chaos.judge()["flushed"]
        assert waits == []
    assert flushed > 0


class _Counting:
    """A copy engine that notes who waits."""

    def __init__(self, engine: Any, waits: list[int]) -> None:
        self._engine, self._waits = engine, waits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def wait(self, ticket: int, timeout: float) -> bool:
        self._waits.append(ticket)
        return bool(self._engine.wait(ticket, timeout))


@pytest.mark.parametrize(
    "fault", [{"fail": "cuMemcpyBatchAsync"}, {"fail": "cuEventRecord"}, {"copies": True}], ids=str
)
def test_what_the_driver_fails_is_recomputed(core: Any, fake: Any, fault: Any) -> None:
    seen = Counter[str]()
    for seed in range(4):
        chaos = Chaos(core, seed, device=fake)
        for round_ in range(4):
            if round_:
                for n in range(1, 200, 7):
                    if "fail" in fault:
                        fake.fail(fault["fail"], n)
                    elif round_ == 3 and n == 1:
                        fake.fail_copy(50)  # all that follows on its stream fails too
            chaos.run(8)
            chaos.engine.drop_prefix_cache()
        seen += chaos.judge()
    assert seen["loaded"] > 0
    assert seen["failed"] + seen["load_failed"] > 0


def test_a_pool_that_cannot_be_locked_serves_all_the_same(core: Any, fake: Any) -> None:
    fake.set_lock_limit(4096)
    chaos = Chaos(core, 3, device=fake)
    for _ in range(3):
        chaos.run(10)
        chaos.engine.drop_prefix_cache()
    assert chaos.judge()["loaded"] > 0
    assert fake.count("locked") == 0


def test_after_sleep_the_cache_is_elsewhere_and_the_pool_is_still_locked(core: Any, fake: Any) -> None:
    """What vLLM's sleep does to a worker: it settles, the memory goes, other memory comes, tensors are registered."""
    import torch
    from vllm.distributed.kv_transfer import kv_transfer_state

    engine = core(GEOMETRIES["window"], blocks=60, extra={}, device=fake)
    asked = prompts(random.Random(4), 6)
    expected = engine.ask(asked, 10)
    engine.drop_prefix_cache()
    connector = kv_transfer_state.get_kv_transfer_group()
    connector._worker.settle()
    old, model = engine.model._memory, engine.model
    there = fake.memory(old.nbytes)
    there[:] = old.reshape(-1)
    fake.free(old.reshape(-1))
    moved = there.ctypes.data - old.ctypes.data
    model._rows = [_at(rows, moved) for rows in model._rows]
    tensors = {name: torch.from_numpy(_at(tensor.numpy(), moved)) for name, tensor in model.tensors.items()}
    model._memory = there
    connector.register_kv_caches(tensors)
    locks = fake.count("calls:cuMemHostRegister")
    assert engine.ask(asked, 10) == expected
    assert engine.external_hits > 0
    assert engine.runner.wrong == []
    assert fake.count("calls:cuMemHostRegister") == locks
    balance(engine)


def _at(array: Any, moved: int) -> Any:
    """The same view, `moved` bytes further on."""
    span = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
    memory = (ctypes.c_uint8 * span).from_address(array.ctypes.data + moved)
    return np.ndarray(array.shape, array.dtype, memory, 0, array.strides)


def test_the_cache_is_on_one_device_that_something_reaches() -> None:
    import torch

    from kvarter.connectors.vllm.device import device_of
    from kvarter.errors import UnsupportedEngine

    host, nowhere = torch.empty(1), torch.empty(1, device="meta")
    assert device_of([host, host]) == torch.device("cpu")
    with pytest.raises(
        UnsupportedEngine, match=r"this rank's cache is on \['cpu', 'meta'\]; it must be on one"
    ):
        device_of([host, nowhere])
    with pytest.raises(
        UnsupportedEngine, match="the cache is on meta; this version of Kvarter copies to and"
    ):
        device_of([nowhere])


def test_the_copy_engine_is_the_devices_unless_the_settings_say_otherwise(fake: Any) -> None:
    import torch

    from kvarter.config import Config
    from kvarter.connectors.vllm.device import make_copy_engine
    from kvarter.errors import UnsupportedEngine

    def name(device: str, **settings: Any) -> str:
        settings.setdefault("cuda", {"driver": fake.path})
        return make_copy_engine(Config.load(settings), torch.device(device)).name

    assert name("cpu") == "host"
    assert name("cuda:1") == "cuda"
    assert name("cpu", copy_member="faulty") == "faulty(host)"
    assert name("cuda:0", copy_member="faulty") == "faulty(cuda)"
    with pytest.raises(UnsupportedEngine, match="copy_member is 'host', and the cache is on cuda:0"):
        name("cuda:0", copy_member="host")
    with pytest.raises(UnsupportedEngine, match="no copies to and from cuda:5: device 5 is asked for, and"):
        name("cuda:5")
    with pytest.raises(
        UnsupportedEngine, match="no copies to and from cuda:0: no CUDA driver: /nowhere/libcuda"
    ):
        name("cuda:0", cuda={"driver": "/nowhere/libcuda.so.1"})


def test_copies_have_ended_before_vllm_unmaps_what_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own sleep back-end, over an allocator that says what is asked of it."""
    from vllm import device_allocator
    from vllm.device_allocator.sleep_mode_backend import CuMemBackend

    from kvarter.connectors.vllm.device import before_sleep

    happened: list[str] = []

    class Allocator:
        def sleep(self, offload_tags: Any = None) -> None:
            happened.append("unmapped")

        def discard(self, tags: Any) -> None:
            happened.append("discarded")

    allocator = Allocator()
    monkeypatch.setattr(device_allocator, "get_mem_allocator_instance", lambda: allocator)
    before_sleep(lambda: happened.append("settled"))
    backend = CuMemBackend()
    backend.suspend(1)
    backend.discard(("kv_cache",))
    assert happened == ["settled", "unmapped", "settled", "discarded"]


def test_whole_graphs_are_right() -> None:
    from kvarter.connectors.vllm import KvarterConnector

    assert not KvarterConnector.requires_piecewise_for_cudagraph({})

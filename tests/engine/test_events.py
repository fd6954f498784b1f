"""KV events as a router gets them: over the engine's own publisher, replayed, and held against what is served."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_words import idle, the_store
from kvarter.demo import engine

BLOCK = 32


class Router:
    """What a router knows: the hashes that each group has in medium CPU, and the chain that it saw."""

    def __init__(self, endpoint: str) -> None:
        import zmq
        from vllm.distributed.kv_events import KVEventBatch

        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(endpoint)
        self._socket.subscribe("")
        self._decode = msgspec.msgpack.Decoder(type=KVEventBatch).decode
        self.here: dict[int, set[Any]] = {}
        self.chains: dict[tuple[Any, tuple[int, ...]], Any] = {}  # (parent, tokens) -> hash
        self.stored = self.removed = 0
        self.strays: list[Any] = []  # removals of what was never stored, stores of what is here already

    def listen(self) -> None:
        """Everything published so far: the publisher's thread needs a moment."""
        while self._socket.poll(500):
            *_, payload = self._socket.recv_multipart()
            for event in self._decode(payload).events:
                # Without a medium: the engine has cleared its own cache, which is not this one.
                if getattr(event, "medium", "GPU") == "CPU":
                    self._apply(event)

    def _apply(self, event: Any) -> None:
        here = self.here.setdefault(event.group_idx, set())
        (name,) = event.block_hashes
        if type(event).__name__ == "BlockRemoved":
            self.removed += 1
            if name not in here:
                self.strays.append(event)
            here.discard(name)
            return
        self.stored += 1
        if name in here or len(event.token_ids) != event.block_size:
            self.strays.append(event)
        here.add(name)
        self.chains[event.parent_block_hash, tuple(event.token_ids)] = name

    def leading(self, prompt: list[int], group: int) -> int:
        """Tokens of the prompt that the group's blocks cover from its start."""
        parent = None
        for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
            name = self.chains.get((parent, tuple(prompt[start : start + BLOCK])))
            if name is None or name not in self.here[group]:
                return start
            parent = name
        return len(prompt) // BLOCK * BLOCK

    def close(self) -> None:
        self._socket.close(0)


@pytest.fixture
def events(tmp_path: Path) -> Iterator[tuple[Router, dict[str, Any]]]:
    """A router, and the engine's settings under which it hears of everything."""
    endpoint = f"ipc://{tmp_path}/events"
    router = Router(endpoint)
    yield router, {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    router.close()


@pytest.mark.parametrize("name", ["llama", "gptoss"])
def test_a_router_that_replays_the_events_knows_what_is_served(
    start: Any, prompts: Any, kvarter_config: Any, events: Any, name: str
) -> None:
    router, settings = events
    asked = prompts(10, 320, shared=160, families=3, seed=31)
    full = {"llama": 0, "gptoss": 1}[name]
    small = {"llama": "3MiB", "gptoss": "2MiB"}[name]  # holds a part: blocks go while others come
    kv = kvarter_config(dram=small)
    llm = start(name, kv=kv, blocks=64, block_size=BLOCK, max_model_len=640, kv_events_config=settings)
    for prompt in asked:
        engine.ask(llm, [prompt], 4)
        engine.drop_prefix_cache(llm)
    for prompt in (*asked, *asked[:4]):
        engine.settle(llm)
        router.listen()
        resident = sum(map(len, router.here.values()))
        assert resident == the_store().stats()["resident_blocks"]
        expected = min(router.leading(prompt, full), len(prompt) - 1) // BLOCK * BLOCK
        (reply,) = engine.ask(llm, [prompt], 4)
        if name == "llama":
            assert reply.cached_tokens == expected
        else:
            assert reply.cached_tokens <= expected
        engine.drop_prefix_cache(llm)
    assert idle(llm)["evicted"] > 0
    router.listen()
    assert router.removed > 0
    assert router.strays == []


def test_blocks_of_void_weights_are_removed_and_told_again_when_they_return(
    start: Any, prompts: Any, kvarter_config: Any, events: Any
) -> None:
    router, settings = events
    (prompt,) = prompts(1, 320, seed=32)
    llm = start("llama", kv=kvarter_config(), blocks=64, block_size=BLOCK, kv_events_config=settings)
    engine.ask(llm, [prompt], 4)
    engine.settle(llm)
    router.listen()
    assert router.leading(prompt, 0) == 320
    assert llm.llm_engine.reset_prefix_cache(reset_connector=True)  # weights changed: the old blocks are void
    engine.ask(llm, [prompt], 4)
    engine.settle(llm)
    for _ in range(20):  # the void blocks go in the background
        engine.ask(llm, [prompt[:8]], 1)
    router.listen()
    assert router.leading(prompt, 0) == 320
    assert sum(map(len, router.here.values())) == the_store().stats()["resident_blocks"]
    assert router.strays == []

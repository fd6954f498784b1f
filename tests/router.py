"""What hears an engine's KV events, for tests of them: a router that replays all it is told."""

from typing import Any

import msgspec

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

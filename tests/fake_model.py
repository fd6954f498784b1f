"""A model of integer arithmetic over a real paged cache: the next token depends on every byte that attention reads.

Each position has a number x that depends on all tokens up to it. `Full` and `Window` groups keep x in every word of the
position's row, `State` groups a running number of all x. A token is sampled from what the cache holds, so a block that
is torn, stale or someone else's changes it; `Truth` says what it should be, from the tokens alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kvarter.geometry import CacheGroup, Full, Geometry, State, Window

VOCABULARY = 61
LAYERS, HEADS, WORDS = 2, 2, 2  # of 8 bytes, for each token, head and layer
STATE_WORDS = 5
_MASK = (1 << 64) - 1
_BOUND = 4096  # positions


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def _odd(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, 1 << 63, shape, np.uint64) * np.uint64(2) + np.uint64(1)


_PLACES = _odd(0, _BOUND)


def token_bytes() -> int:
    return LAYERS * HEADS * WORDS * 8


def _next_x(x: int, token: int, weights: int) -> int:
    return _mix((x ^ ((token + 2) * 0x9E3779B97F4A7C15) ^ (weights << 17)) & _MASK)


def _token(full: int, window: int, states: list[int]) -> int:
    value = _mix(full) ^ _mix(window ^ 1)
    for state in states:
        value = _mix(value ^ state)
    return value % VOCABULARY


class Truth:
    """What the model says after each prefix of one sequence."""

    def __init__(self, geometry: Geometry, weights: int = 0) -> None:
        self.weights = weights
        self._window = max(
            (g.lifetime.tokens for g in geometry.groups if isinstance(g.lifetime, Window)), default=0
        )
        self._states = sum(isinstance(g.lifetime, State) for g in geometry.groups)
        self._tokens: list[int] = []
        self._x: list[int] = []
        self._sums, self._state = [0], [0]

    def after(self, tokens: list[int]) -> int:
        """The token that follows."""
        common = next((n for n, (a, b) in enumerate(zip(self._tokens, tokens, strict=False)) if a != b), None)
        if common is not None:
            del self._tokens[common:], self._x[common:], self._sums[common + 1 :], self._state[common + 1 :]
        for token in tokens[len(self._tokens) :]:
            at = len(self._tokens)
            x = _next_x(self._x[-1] if at else 0, token, self.weights)
            self._tokens.append(token)
            self._x.append(x)
            self._sums.append((self._sums[-1] + x * int(_PLACES[at])) & _MASK)
            self._state.append(_mix((self._state[-1] + x) & _MASK))
        n = len(tokens)
        window = (self._sums[n] - self._sums[max(n - self._window, 0)]) & _MASK if self._window else 0
        return _token(self._sums[n], window, [self._state[n]] * self._states)

    def say(self, prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(self.after(tokens))
        return tokens[len(prompt) :]


class FakeModel:
    """Its cache groups share one piece of memory, as the engine's do: a block belongs to one group at a time.

    device: a device_words.FakeDriver whose memory it is in. What writes it is then a kernel on the default stream.
    """

    def __init__(self, geometry: Geometry, blocks: int, block_outermost: bool, device: Any = None) -> None:
        self.weights = 0
        self._device = device
        self.geometry, self._groups = geometry, geometry.groups
        page = max(group.block_tokens for group in geometry.groups) * token_bytes() // LAYERS
        memory = np.random.default_rng(9).integers(0, 256, LAYERS * blocks * page, np.uint8)
        if device is not None:
            on_device = device.memory(memory.nbytes)
            on_device[:] = memory
            memory = on_device
        shape = (blocks, LAYERS, page) if block_outermost else (LAYERS, blocks, page)
        self._memory = memory.reshape(shape)
        pages = self._memory.transpose(1, 0, 2) if block_outermost else self._memory
        self.tensors: dict[str, torch.Tensor] = {}
        self._rows: list[Any] = []
        for number, group in enumerate(self._groups):
            for layer in range(LAYERS):
                part = torch.from_numpy(pages[layer]).view(torch.int8)
                size, width = group.block_tokens, WORDS * 8
                if isinstance(group.lifetime, State):
                    part = part[:, None, None, : STATE_WORDS * 8]
                else:
                    part = part[:, : HEADS * size * width].unflatten(1, (HEADS, size, width))
                self.tensors[f"{number}.{layer}"] = part
            self._rows.append(pages.view(np.uint64))
        self._factors = [
            _odd(
                number + 1, LAYERS, *([STATE_WORDS] if isinstance(group.lifetime, State) else [HEADS, WORDS])
            )
            for number, group in enumerate(self._groups)
        ]
        self._checks = [_odd(number + 100, *factors.shape) for number, factors in enumerate(self._factors)]
        for checks in self._checks:
            checks.flat[0] += np.uint64(
                1
            )  # else the sum of an even number of odd products would have no inverse
        self._inverse = [
            pow(int((factors * checks).sum()), -1, 1 << 64)
            for factors, checks in zip(self._factors, self._checks, strict=True)
        ]

    def _view(self, group: int) -> Any:
        """[layers, blocks, heads, tokens, words] of an attention group, [layers, blocks, words] of states."""
        rows = self._rows[group]
        size = self._groups[group].block_tokens
        if isinstance(self._groups[group].lifetime, State):
            return rows[:, :, :STATE_WORDS]
        return rows[:, :, : HEADS * size * WORDS].reshape(LAYERS, rows.shape[1], HEADS, size, WORDS)

    def zero(self, blocks: list[int]) -> None:
        """What the engine does with fresh blocks of a model that has states."""
        self._launch()
        self._rows[0][:, blocks] = 0

    def forward(self, tables: list[list[int]], start: int, tokens: list[int]) -> None:
        """Writes what `tokens` at positions `start`, ... add to the cache."""
        self._launch()
        x, xs = self._read_x(tables, start - 1) if start else 0, []
        for token in tokens:
            x = _next_x(x, token, self.weights)
            xs.append(x)
        column = np.array(xs, np.uint64)
        for number, group in enumerate(self._groups):
            table = np.array(tables[number])
            if isinstance(group.lifetime, State):
                state = self._read_state(number, tables, start) if start else 0
                for x in xs:
                    state = _mix((state + x) & _MASK)
                block = table[(start + len(xs) - 1) // group.block_tokens]
                assert block
                self._view(number)[:, block] = np.uint64(state) * self._factors[number]
            else:
                at = np.arange(start, start + len(xs))
                blocks = table[at // group.block_tokens]
                assert blocks.all()
                self._view(number)[:, blocks, :, at % group.block_tokens, :] = (
                    column[:, None, None, None] * self._factors[number]
                )

    def _launch(self) -> None:
        if self._device is not None:
            self._device.run_kernels()

    def sample(self, tables: list[list[int]], position: int) -> int:
        """The token after `position`, the last of those forwarded for `State` groups."""
        full = window = 0
        states = []
        for number, group in enumerate(self._groups):
            if isinstance(group.lifetime, State):
                states.append(self._read_state(number, tables, position + 1))
            elif isinstance(group.lifetime, Window):
                window = self._read_sum(
                    number, tables, max(position + 1 - group.lifetime.tokens, 0), position + 1
                )
            else:
                full = self._read_sum(number, tables, 0, position + 1)
        return _token(full, window, states)

    def _read_sum(self, group: int, tables: list[list[int]], first: int, end: int) -> int:
        at = np.arange(first, end)
        size = self._groups[group].block_tokens
        blocks = np.array(tables[group])[at // size]
        rows = self._view(group)[:, blocks, :, at % size, :]
        total = (rows * self._checks[group]).sum(axis=(1, 2, 3)) * _PLACES[first:end]
        return int(total.sum()) * self._inverse[group] & _MASK

    def _read_x(self, tables: list[list[int]], position: int) -> int:
        total = self._read_sum(0, tables, position, position + 1)
        return total * pow(int(_PLACES[position]), -1, 1 << 64) & _MASK

    def _read_state(self, group: int, tables: list[list[int]], tokens: int) -> int:
        block = tables[group][(tokens - 1) // self._groups[group].block_tokens]
        return int((self._view(group)[:, block] * self._checks[group]).sum()) * self._inverse[group] & _MASK


def spec_of(group: CacheGroup, page: int) -> Any:
    """The engine's own description of a group whose blocks take `page` bytes of each layer."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    shape = {
        "block_size": group.block_tokens,
        "num_kv_heads": HEADS,
        "head_size": WORDS,
        "dtype": torch.float32,
        "page_size_padded": page,
    }
    if isinstance(group.lifetime, Full):
        return FullAttentionSpec(**shape)
    if isinstance(group.lifetime, Window):
        return SlidingWindowSpec(**shape, sliding_window=group.lifetime.tokens)
    return MambaSpec(
        block_size=group.block_tokens,
        shapes=((STATE_WORDS * 2,),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
        page_size_padded=page,
    )

"""KV events: which blocks the store holds, told to routers in the engine's own hashes (`medium` CPU).

The index says what came and went, by handle; here are the engine's names of those handles. It has them of the blocks
that it stores, and of all that is there of a request when that ends: an engine tells what it can be asked for with
profit, whoever of a node's engines stored it. A hash that two blocks carry, of an old and a new weights epoch for one,
is told when the first comes and when the last goes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    resolve_block_hashes,
    to_event_extra_keys,
)
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

from ...base_store import BaseStore
from ...sequence import Sequence
from ...transfers import Reservation
from .layout import Groups

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

_REMEMBERED = 1 << 20  # changes between two steps


class _Group(NamedTuple):
    number: int  # vLLM's
    block_tokens: int
    kind: str
    window: int | None


class Events:
    """What a scheduler's `take_events` answers. Only for engines that publish events: it remembers every block."""

    def __init__(self, store: BaseStore, config: KVCacheConfig, groups: Groups) -> None:
        self._store, self._index = store, store.index
        self._index.watch(_REMEMBERED)
        self._hash_block = groups.geometry.unit_tokens
        self._groups = []
        for number, group in zip(groups.ids, groups.geometry.groups, strict=True):
            spec = config.kv_cache_groups[number].kv_cache_spec
            kind, window = get_kv_cache_spec_kind(spec).value, get_kv_cache_spec_sliding_window(spec)
            self._groups.append(_Group(number, group.block_tokens, kind, window))
        self._named: dict[int, BlockStored] = {}  # by handle: blocks in flight and resident ones
        self._told: set[int] = set()  # handles of those that came
        self._copies: Counter[tuple[int | None, object]] = Counter()  # of these, by group and hash
        self._over: list[KVCacheEvent] = []  # to be told before what the index says

    def _follow(self) -> None:
        """The store has found another node: its handles are others, and nothing that was told is known of it."""
        if self._store.index is self._index:
            return
        for handle in sorted(self._told):
            self._over += self._gone(handle)
        self._named.clear()
        self._index = self._store.index
        self._index.watch(_REMEMBERED)

    def reserved(self, reservation: Reservation, request: Request) -> None:
        """These blocks of the request may become resident."""
        self._follow()
        handles = iter(reservation.handles.tolist())
        for number in reservation.groups():
            group = self._groups[number]
            hashes = resolve_block_hashes(request.block_hashes, self._hash_block, group.block_tokens)
            for block in reservation.blocks(number).tolist():
                self._named[next(handles)] = self._event(request, group, hashes, block)

    def ended(self, request: Request, sequence: Sequence) -> None:
        """What others stored of this request, or came up from disk for it, is here under names not known yet."""
        self._follow()
        for number, group in enumerate(self._groups):
            hashes = resolve_block_hashes(request.block_hashes, self._hash_block, group.block_tokens)
            blocks = range(min(sequence.units * self._hash_block // group.block_tokens, len(hashes)))
            for block, handle in enumerate(self._store.handles(sequence, number, blocks).tolist()):
                if handle and handle not in self._named:
                    self._named[handle] = self._event(request, group, hashes, block)
                    self._over += self._came(handle)

    def _event(self, request: Request, group: _Group, hashes: list[bytes], block: int) -> BlockStored:
        start, end = block * group.block_tokens, (block + 1) * group.block_tokens
        lora = request.lora_request
        extra_keys, _ = generate_block_hash_extra_keys(request, start, end, 0)
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(hashes[block])],
            parent_block_hash=maybe_convert_block_hash(hashes[block - 1]) if block else None,
            token_ids=request.all_token_ids[start:end],
            block_size=group.block_tokens,
            lora_id=lora.adapter_id if lora else None,
            medium=MEDIUM_CPU,
            lora_name=lora.name if lora else None,
            extra_keys=to_event_extra_keys([extra_keys]),
            group_idx=group.number,
            kv_cache_spec_kind=group.kind,
            kv_cache_spec_sliding_window=group.window,
            locality="LOCAL",
            session_id=request.session_id,
        )

    def take(self) -> list[KVCacheEvent]:
        """What came and went since the last call, in its order."""
        self._follow()
        events, self._over = self._over, []
        complete, handles, reasons = self._index.changes()
        if not complete:  # more than was remembered, or the node is gone: look at every block
            known = sorted(self._named)
            for handle, here in zip(known, self._index.resident(known), strict=True):
                events += self._came(handle) if here else self._gone(handle) if handle in self._told else []
            return events
        for handle, gone in zip(handles.tolist(), reasons.tolist(), strict=True):
            events += self._gone(handle) if gone else self._came(handle)
        return events

    def _came(self, handle: int) -> list[KVCacheEvent]:
        event = self._named.get(handle)
        if event is None or handle in self._told:
            return []
        self._told.add(handle)
        name = (event.group_idx, event.block_hashes[0])
        self._copies[name] += 1
        return [event] if self._copies[name] == 1 else []

    def _gone(self, handle: int) -> list[KVCacheEvent]:
        event = self._named.pop(handle, None)
        if event is None or handle not in self._told:
            return []
        self._told.discard(handle)
        name = (event.group_idx, event.block_hashes[0])
        self._copies[name] -= 1
        if self._copies[name]:
            return []
        del self._copies[name]
        return [BlockRemoved(event.block_hashes, MEDIUM_CPU, event.group_idx, locality="LOCAL")]

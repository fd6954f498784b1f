"""The scheduler's half: matches prefixes, reserves slots, commits what the workers report.

Runs on EngineCore's main thread. Nothing here blocks, and nothing raises into the engine at run time. The order of
steps is the one that the engine's block lifetime demands: a stored block is never held. It is watched instead
(`touch` + `unpin_blocks`), and a copy still running when the block finds a new owner is flushed first.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...base_store import BaseStore
from ...config import Config
from ...errors import AttachError
from ...geometry import State
from ...node import home
from ...policy import AlwaysLoad
from ...store import Store
from ...tiers.disk import Disk
from ...transfers import Match, Reservation
from .events import Events
from .hints import hints_of
from .identity import Identity
from .jobs import Jobs, Table
from .layout import Groups, with_shards
from .loads import Loads
from .messages import EMPTY, StepMetadata, WorkerReport
from .metrics import Meter, Stats, disk_stats
from .requests import RequestState

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger("kvarter.vllm")
_ATTACH_SECONDS = 10.0
_PREFILL = 64  # tokens in a step from which on it says how fast prompts are computed


class SchedulerSide:
    """See the module. `tokens` counts matches by outcome, `requests` by what happened to them."""

    def __init__(
        self, vllm_config: VllmConfig, kv_config: KVCacheConfig, groups: Groups, config: Config
    ) -> None:
        parallel = vllm_config.parallel_config
        self._groups, self._config = groups, config
        self._ranks = parallel.world_size
        engine = str(vllm_config.kv_transfer_config.engine_id)
        rank, sharers = parallel.data_parallel_rank_local or 0, parallel.data_parallel_size_local
        self.home = home(
            lambda: _own_store(config, rank, sharers),
            engine,
            self._ranks,
            directory=config.directory,
            node=config.node,
            hold_seconds=config.hold_seconds,
            load_policy=None if config.disk.measure else AlwaysLoad(),
        )
        self._identity = Identity(vllm_config, kv_config, groups, config.weights_id)
        self._identity_error_logged = False
        self._plan_confirmed_only = bool(vllm_config.scheduler_config.async_scheduling)
        self._states: dict[str, RequestState] = {}
        self.loads = Loads(self.home, groups, config.load_seconds)
        self._jobs = Jobs(self._ranks, config.store_seconds)
        self._earlier_blocks: dict[int, object] = {}  # that the engine kept over a change of weights
        self._positional = [g for g, group in enumerate(groups.geometry.groups) if group.lifetime != State()]
        self.requests: Counter[str] = Counter()  # that are not cached, and why
        self._not_offered: Counter[str] = Counter()  # blocks that no slot was asked for, and why
        self._stall_seconds = 0.0
        self._step = (0.0, 0)  # when the last step began, and its tokens
        self._meter, self._changed = Meter(), False
        published = vllm_config.kv_events_config
        self._events: Events | None = None
        if published is not None and published.enable_kv_cache_events:
            self._events = Events(self.store, kv_config, groups)
        self._await_ranks()

    def _await_ranks(self) -> None:
        """At start, and only then: the workers are up and looking for the node. Recurrent states are offered in the
        first step and never again, so the first request should find every rank attached, and the weights named."""
        until = time.monotonic() + _ATTACH_SECONDS
        while not (self._ready() and self._identity.settled()) and time.monotonic() < until:
            time.sleep(0.01)
        if not self._ready():
            logger.warning(
                "not all of %d ranks are attached yet; nothing is cached until they are", self._ranks
            )

    def set_shards(self, by_rank: Sequence[tuple[int, ...]]) -> None:
        """What each rank said of its blocks, before the first request. Raises when ranks disagree."""
        if len(by_rank) != self._ranks:
            raise AttachError(f"{len(by_rank)} ranks said what their blocks are; expected {self._ranks}")
        self._groups = with_shards(self._groups, by_rank)
        self._identity.groups = self.loads.groups = self._groups

    @property
    def store(self) -> BaseStore:
        return self.home.store

    def bind_block_pool(self, pool: object) -> None:
        self._jobs.bind(pool)

    # --- matching and loading

    def on_new_request(self, request: Request) -> None:
        state = RequestState(request, [0] * len(self._groups.ids))
        self._states[request.request_id] = state
        try:
            state.hints = hints_of(request)
        except ValueError as error:
            self.requests["hint_not_understood"] += 1
            logger.warning("request %s: %s; it is served without its hints", request.request_id, error)
        if state.hints.session is not None and state.hints.wishes:
            self.store.hint(state.hints.session, **state.hints.wishes)

    def matched_tokens(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Tokens beyond `computed` that a load would bring, and that it would be asynchronous. None: other hosts are
        being asked, for a moment; the engine goes on with other requests and asks again."""
        state = self._states.get(request.request_id)
        if state is None or state.never_match or request.skip_reading_prefix_cache or not self._ready():
            return 0, False
        if self.loads.failing:
            return 0, False
        key = (self.store.version, computed, request.num_tokens)
        # Asked again and again while the request waits.
        if state.match is None or state.match.pending or state.match_key != key:
            state.match_key, state.match = key, self._match(state, computed)
        if state.match.pending:
            return None, False
        return state.match.new_tokens, bool(state.match)

    def _match(self, state: RequestState, computed: int) -> Match:
        tokens = state.request.num_tokens
        if not self._nameable(state, tokens) or state.sequence is None:
            return _NO_MATCH
        return self.store.match(
            state.sequence,
            limit=tokens - 1,
            have_tokens=computed,
            request=state.request.request_id,
            owner=self.home.owner,
            session=state.hints.session,
        )

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """The engine has blocks for the request; with external tokens it now waits for them to be loaded."""
        rid = request.request_id
        state = self._states.get(rid)
        if state is None:
            return
        state.computed_unknown = (
            True  # until it is scheduled: another connector may be loading what is computed
        )
        if external_tokens > 0:
            self.loads.begin(rid, state, blocks, external_tokens)
        elif state.ticket is None:
            self.store.drop_hold(rid)

    def loaded_groups(self, request: Request) -> tuple[int, ...]:
        """Exactly the engine's groups that the request's open load restores."""
        state = self._states.get(request.request_id)
        if state is None or state.match is None:
            return ()
        return tuple(
            n for n, need in zip(self._groups.ids, state.match.blocks, strict=bool(state.match)) if need
        )

    # --- storing

    def build_metadata(self, so: SchedulerOutput) -> StepMetadata:
        """Once a step, after all scheduling decisions. This step's blocks may be planned: workers copy after it."""
        flush = self._jobs.take_flush()
        for rid in so.preempted_req_ids or ():
            if rid in self._states:
                self._states[rid].restart()
                self._states[rid].earlier_weights = False  # it gave its blocks away
        offered = so.kv_connector_block_state
        if offered is not None and self._ready():
            for rid, scheduled in so.num_scheduled_tokens.items():
                state = self._states.get(rid)
                if state is None:
                    continue
                state.computed_unknown = False
                computed = state.request.num_computed_tokens
                computed += -state.request.num_output_placeholders if self._plan_confirmed_only else scheduled
                table = offered.get_block_ids(rid)
                if self._earlier_blocks and table is not None and not any(state.done):
                    state.earlier_weights |= self._jobs.any_of(self._earlier_blocks, table)
                self._plan(state, computed, table)
            for rid, states in offered.boundary_state_offloads.items():
                state = self._states.get(rid)
                if state is None or rid not in so.num_scheduled_tokens or rid in (so.preempted_req_ids or ()):
                    self._not_offered["state_unscheduled"] += len(states)
                else:
                    self._plan_states(state, states)
        self._jobs.expire()
        stores = self._jobs.take_new()
        loads = self.loads.take_ready()
        self._step = time.monotonic(), so.total_num_scheduled_tokens
        if not stores and not loads and not flush:
            return EMPTY
        return StepMetadata(stores, loads, flush)

    def _plan(self, state: RequestState, computed: int, table: tuple[list[int], ...] | None) -> None:
        """Reserves slots for the blocks that `computed` tokens have completed, and hands them to the workers."""
        if table is None or not state.storable:
            return
        geometry = self._groups.geometry
        ready = {
            g: min(computed, state.request.num_tokens) // geometry.groups[g].block_tokens
            for g in self._positional
        }
        if all(upto <= state.done[g] for g, upto in ready.items()):
            return
        if not self._nameable(state, computed) or state.sequence is None:
            return
        kept, dense_from = self._kept(state.request, computed)
        wanted = {}
        for group, upto in ready.items():
            blocks = table[self._groups.ids[group]]
            first = 0 if group in state.retry else state.done[group]
            needed = geometry.kept_blocks(group, first, min(upto, len(blocks)), kept, dense_from)
            wanted[group] = [b for b in needed if blocks[b] != 0]  # 0: the engine has let go of it already
            self._not_offered["null_block"] += len(needed) - len(wanted[group])
            state.done[group] = max(state.done[group], upto)
        reservation = self._reserve(state, wanted, {g: table[self._groups.ids[g]] for g in wanted})
        state.retry = {group for group in wanted if reservation.refused(group, "no_parent")}

    def _plan_states(self, state: RequestState, offers: list[tuple[int, int, int]]) -> None:
        """Recurrent states that the engine hands over at a boundary; they are good until the end of this step."""
        if not state.storable:
            self._not_offered["not_storable"] += len(offers)
            return
        tables: dict[int, dict[int, int]] = {}
        for number, block, boundary in offers:
            group = self._groups.ids.index(number)
            tokens = self._groups.geometry.groups[group].block_tokens
            if boundary % tokens:
                self._not_offered["partial_tail_unsupported"] += 1
            else:
                tables.setdefault(group, {})[boundary // tokens - 1] = block
        if tables and self._nameable(state, max(boundary for _, _, boundary in offers)):
            self._reserve(state, {group: sorted(table) for group, table in tables.items()}, tables)

    def _reserve(
        self, state: RequestState, wanted: Mapping[int, list[int]], tables: Mapping[int, Table]
    ) -> Reservation:
        assert state.sequence is not None
        known = {g: [b for b in blocks if self._named(state, g, b)] for g, blocks in wanted.items()}
        reservation = self.store.reserve(
            state.sequence, known, self._config.store_seconds, owner=self.home.owner
        )
        if len(reservation):
            if self._events is not None:
                self._events.reserved(reservation, state.request)
            self._jobs.add(reservation, tables, reservation.epoch(self.home.owner))
        self._changed = True
        return reservation

    def _named(self, state: RequestState, group: int, block: int) -> bool:
        """Whether the sequence has the digest that names a block: its last unit is complete."""
        assert state.sequence is not None
        return (block + 1) * self._groups.geometry.groups[group].block_tokens <= state.sequence.num_tokens

    def _kept(self, request: Request, computed: int) -> tuple[list[int], int]:
        """Boundaries whose windows are worth their bytes: where this prompt and those that share a part of it resume,
        one at every interval, and from the prompt's end on all, since any may be the end of the turn."""
        align, interval = self._groups.geometry.alignment, self._config.boundary_interval
        interval = -(-interval // align) * align
        kept = [
            (request.num_prompt_tokens - 1) // align * align,
            request.shared_prefix_boundary // align * align,
        ]
        return [*kept, *range(interval, computed + interval + 1, interval)], request.num_prompt_tokens

    def request_finished(self, request: Request, table: tuple[list[int], ...]) -> None:
        """Stores what became complete after the last schedule; never from a request whose load is open or failed."""
        state = self._states.pop(request.request_id, None)
        if state is None:
            return
        self.store.drop_hold(request.request_id)
        if self._ready() and request.request_id not in self.loads:
            self._plan(state, request.num_computed_tokens - request.num_output_placeholders, table)
        if self._events is not None and state.sequence is not None:
            self._events.ended(request, state.sequence)
        if state.hints.ttl and state.sequence is not None:
            self.store.pin(state.sequence, state.hints.ttl)
        if state.sequence is not None:
            for node in state.hints.push:
                self.store.push(state.sequence, node)

    def has_pending_work(self) -> bool:
        """Whether the engine must go on stepping so that copies are submitted and reported."""
        return self._jobs.pending()

    # --- reports

    def update(self, output: KVConnectorOutput) -> None:
        if output.invalid_block_ids:  # another connector's load has failed, in a step that computed with it
            self._jobs.doubt()
            for known in self._states.values():
                known.restart()
        report = output.kv_connector_worker_meta
        if isinstance(report, WorkerReport):
            self._changed = True
            self._stall_seconds += report.stall_seconds
            for job, stored in report.stored.items():
                self._jobs.finish(job, stored)
            self.loads.reported(report.loaded)
        # Another connector's too: vLLM counts twice what such a request needs when it loads again, and may never
        # admit it, nor what is behind it.
        for rid in output.failed_recving & self._states.keys():
            self._states[rid].never_match = True
        for rid in output.finished_recving or ():
            self._changed |= self.loads.ended(rid, failed=rid in output.failed_recving)

    def stats(self) -> Stats | None:
        """What changed since the last call, once a step at its end; None when nothing can have."""
        begun, tokens = self._step
        if tokens >= _PREFILL:
            self.store.computed(tokens, time.monotonic() - begun)
            self._step = 0.0, 0
        if not self._changed and self.store.disk is None:  # a disk goes on by itself
            return None
        self._changed = False
        blocks = {name: float(n) for name, n in self.store.counters().items() if name not in _LEVELS}
        moved = {name: blocks.pop(f"{name}_bytes") for name in ("stored", "loaded", "evicted")}
        blocks |= {reason: float(count) for reason, count in self._not_offered.items()}
        totals: dict[str, dict[str, float]] = {
            "tokens": dict(self.loads.tokens),
            "hit_tokens": dict(self.loads.hits),
            "requests": {**self.requests, **self.loads.requests},
            "blocks": blocks,
            "bytes_moved": moved,
            "seconds": {"store_stall": self._stall_seconds},
        }
        gauges = {"bytes": {name: float(value) for name, value in self.store.ledger().items()}}
        if isinstance(self.store.disk, Disk):  # of a node it is told by the node
            of_disk, gauges_of_disk = disk_stats(self.store.disk)
            totals, gauges = totals | of_disk, gauges | gauges_of_disk
            gauges["rates"] = self.store.load_policy.seen()
        return self._meter.read(totals, gauges)

    def take_events(self) -> list[KVCacheEvent]:
        """Which blocks came and went since the last call; nothing unless the engine publishes events."""
        return self._events.take() if self._events is not None else []

    def reset(self) -> bool:
        """The weights changed: a new epoch, under which nothing stored so far is ever found."""
        for namespace in self._identity.renew():
            self.store.invalidate(namespace, everywhere=False)  # others' weights did not change
        self._earlier_blocks = self._jobs.cached_blocks()  # none, unless the engine's own reset has failed
        for state in self._states.values():
            state.match = None
            state.restart()
            state.earlier_weights = state.request.num_computed_tokens > 0
        return True

    def close(self) -> None:
        self.home.close()

    # --- readiness

    def _ready(self) -> bool:
        """Every rank is attached; before that nothing is matched or reserved."""
        return self.home.ready()

    def _nameable(self, state: RequestState, tokens: int) -> bool:
        """Whether the request's units have names; extends its sequence to `tokens`."""
        if state.uncacheable is not None:
            return False
        namespace = self._identity.namespace(state.request.lora_request)
        if namespace is None:
            self.requests["identity_unknown"] += 1
            error = self._identity.error()
            if error is not None and not self._identity_error_logged:
                self._identity_error_logged = True
                logger.error(
                    "nothing is cached: %s; set weights_id in Kvarter's settings to name the weights", error
                )
            return False
        try:
            state.extend(namespace, tokens)
        except ValueError as error:
            state.uncacheable = str(error)
            self.requests["uncacheable"] += 1
            logger.warning("request %s is not cached: %s", state.request.request_id, error)
            return False
        return True


def _own_store(config: Config, rank: int, sharers: int) -> Store:
    """Of an engine that is data-parallel rank `rank` of the `sharers` on this host."""
    return Store(
        config.pool_bytes(sharers),
        max_blocks=config.max_blocks,
        hold_seconds=config.hold_seconds,
        policy=config.policy,
        load_policy=None if config.disk.measure else AlwaysLoad(),
        disk=config.disk_options(rank, sharers),
    )


_LEVELS = {"in_flight", "resident_blocks", "leased_now"}  # go up and down: the ledger shows them in bytes
_NO_MATCH = Match(None, 0, 0, ())  # type: ignore[arg-type]

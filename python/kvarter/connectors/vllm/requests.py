"""What the scheduler's side knows of one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...keys import Extra, Namespace
from ...sequence import Sequence
from ...transfers import Match, Ticket
from .hints import Hints
from .identity import request_extras

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass
class RequestState:
    """One request from `on_new_request` to its end; a load may outlive it.

    done: for each group, how many blocks from 0 on have been offered for storing.
    retry: groups whose parent blocks were gone; they are offered from block 0 again with the next full block.
    """

    request: Request
    done: list[int]
    hints: Hints = Hints(None, {}, None)  # noqa: RUF009  immutable
    sequence: Sequence | None = None
    extras: list[Extra] = field(default_factory=list)
    uncacheable: str | None = None  # why nothing of this request can be named
    retry: set[int] = field(default_factory=set)
    match: Match | None = None
    match_key: tuple[tuple[int, ...], int, int] = ((-1, -1), -1, -1)  # what the memoised match depends on
    ticket: Ticket | None = None  # an open load
    external_tokens: int = 0  # that the engine counts as hits of that load
    never_match: bool = False  # a load of this request has failed
    computed_unknown: bool = False  # its load has failed, and the engine has not scheduled it since
    earlier_weights: bool = False  # some of what it has was computed before a change of weights

    @property
    def storable(self) -> bool:
        """Whether the engine's blocks hold what the request's tokens say, under the weights of now."""
        return self.ticket is None and not self.computed_unknown and not self.earlier_weights

    def restart(self) -> None:
        """All of its blocks are to be offered again."""
        self.done = [0] * len(self.done)
        self.retry.clear()

    def extend(self, namespace: Namespace, tokens: int) -> Sequence:
        """The request's sequence with the full units of its first `tokens` tokens."""
        unit_tokens = namespace.unit_tokens
        if self.sequence is None:
            self.extras = request_extras(self.request, unit_tokens)
            self.sequence = Sequence(namespace)
        elif self.sequence.namespace is not namespace:
            self.sequence = self.sequence.in_namespace(namespace)
        known = self.sequence.num_tokens
        upto = min(tokens, self.request.num_tokens) // unit_tokens * unit_tokens
        if upto > known:
            first, last = known // unit_tokens, upto // unit_tokens
            extras = [extra for extra in self.extras if first <= extra[0] < last] if self.extras else ()
            self.sequence.extend(self.request._all_token_ids[known:upto], extras)
        return self.sequence

"""What a request says of its future: `kv_transfer_params={"kvarter": {...}}`, in vLLM's sampling parameters.

session         name of the conversation or agent; default the request's own `session_id`
ends            true: nothing follows
returns_within  seconds in which the next request of the session comes
priority        above 0 counts for more than others, below for less; default what the request's `priority` says
ttl             seconds for which its blocks are pinned once it has finished
push            HOST:PORT of another host's node, or a list of them: they fetch the blocks once the request ended
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from vllm.v1.request import Request


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    session: str | None = None
    ends: bool = False
    returns_within: float | None = None
    priority: int = 0
    ttl: float | None = None
    push: str | list[str] = []


class Hints(NamedTuple):
    """session: None when nothing names it. wishes: for `Store.hint`. At the request's end, ttl: of the pin; push: to
    whom."""

    session: str | None
    wishes: dict[str, Any]
    ttl: float | None
    push: tuple[str, ...] = ()


def hints_of(request: Request) -> Hints:
    """Raises ValueError, one sentence, for what is not understood."""
    params = request.kv_transfer_params or {}
    try:
        said = msgspec.convert(params.get("kvarter", {}), _Said, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"kv_transfer_params['kvarter']: {error}") from None
    # vLLM serves smaller priorities first.
    priority = said.priority or (request.priority < 0) - (request.priority > 0)
    session = said.session or request.session_id
    wishes = {"ends": said.ends, "returns_within": said.returns_within, "priority": priority}
    if session is None or wishes == {"ends": False, "returns_within": None, "priority": 0}:
        wishes = {}
    push = (said.push,) if isinstance(said.push, str) else tuple(said.push)
    return Hints(session, wishes, said.ttl, push)

"""The formats of traces: how each is known by its first line, and how its lines become requests.

Ids of blocks mean different things. In Mooncake's files an id names a block and all before it, and new ids rise; where
ids are hashes of single blocks (Bailian) or count within one session (AgentX), the trace tells equal ids under
different parents apart, so both come out right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

from .trace import Request

_NUMBERED = 1 << 31  # ids below it are numbers by first appearance, others are hashes


class Malformed(Exception):
    """What was found and what was expected; the reader adds file and line."""


class Line(NamedTuple):
    number: int
    value: dict[str, Any]


class Reader:
    """Takes the lines of one file. block: tokens of a block, where the user or the file says so."""

    def __init__(self, block: int | None) -> None:
        self.block = block
        self.requests: list[Request] = []
        self.notes: list[str] = []

    def take(self, line: Line) -> None:
        raise NotImplementedError

    def finish(self) -> tuple[list[Request], int]:
        """All requests, and the tokens of a block."""
        return self.requests, self.block or block_of(self.requests)


@dataclass(frozen=True)
class Format:
    name: str
    fits: Callable[[dict[str, Any]], bool]
    reader: Callable[[int | None], Reader]


def number(value: dict[str, Any], field: str, least: float = 0, default: float | None = None) -> float:
    found = value.get(field, default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found) or found < least:
        raise Malformed(
            f"{field} is {found!r}; expected a number of at least {least:g}"
            if field in value
            else f"no {field}; expected a number of at least {least:g}"
        )
    return found


def count(value: dict[str, Any], field: str, default: int | None = None) -> int:
    found = number(value, field, 0, default)
    if found != int(found):
        raise Malformed(f"{field} is {found!r}; expected whole tokens")
    return int(found)


def ids(value: dict[str, Any], field: str) -> tuple[Any, ...]:
    found = value.get(field)
    if not isinstance(found, list) or not all(
        isinstance(i, int | str) and not isinstance(i, bool) for i in found
    ):
        raise Malformed(f"{field} is {_short(found)}; expected a list of block ids")
    if any(isinstance(i, int) and i < 0 for i in found):
        raise Malformed(
            f"{field} has the id {min(i for i in found if isinstance(i, int))}; expected none below 0"
        )
    return tuple(found)


def part(value: dict[str, Any], field: str) -> dict[str, Any]:
    found = value.get(field)
    if not isinstance(found, dict):
        raise Malformed(f"{field} is {_short(found)}; expected an object")
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def block_of(requests: list[Request]) -> int:
    """The power of two of tokens that most requests' lengths and numbers of blocks agree with."""
    sizes = [1 << i for i in range(14)]
    sample = [r for r in requests if r.blocks][:2000]
    if not sample:
        raise Malformed("no request has a block; expected some, or their size by --block-tokens")

    def agree(size: int) -> int:
        return sum(len(r.blocks) in (r.tokens // size, -(-r.tokens // size)) for r in sample)

    best = max(sizes, key=agree)
    if 2 * agree(best) < len(sample):
        raise Malformed(
            f"lengths and numbers of blocks agree with no size of block ({sample[0].tokens} tokens in "
            f"{len(sample[0].blocks)} blocks); expected one size, or --block-tokens"
        )
    return best


class _Prefixes:
    """Checks ids that name a block and all before it."""

    def __init__(self) -> None:
        self._above: dict[Any, tuple[Any, int]] = {}  # id -> the id before it, and the line that said so

    def check(self, blocks: tuple[Any, ...], line: int) -> None:
        above: Any = None
        newest = -1
        fresh = []
        for block in blocks:
            known = self._above.get(block)
            if known is None:
                if isinstance(block, int) and block < _NUMBERED:
                    if block <= newest:
                        raise Malformed(
                            f"new block id {block} after {newest}; expected new ids that rise along a prompt"
                        )
                    newest = block
                fresh.append((block, above))
            elif known[0] != above:
                raise Malformed(
                    f"block id {block} stands after {above} here and after {known[0]} in line {known[1]}; "
                    "expected one prefix for each id"
                )
            above = block
        if len(set(blocks)) != len(blocks):
            raise Malformed("a block id stands twice in one prompt; expected each once")
        self._above.update({block: (before, line) for block, before in fresh})


class Mooncake(Reader):
    """{timestamp (ms), input_length, output_length, hash_ids}; with session_id and delay, lines are what each turn
    adds to its session.
    """

    def __init__(self, block: int | None, delta: bool = False) -> None:
        super().__init__(block)
        self._prefixes = _Prefixes()
        self._delta = delta
        self._sessions: dict[str, tuple[int, tuple[Any, ...]]] = {}

    def take(self, line: Line) -> None:
        value = line.value
        seconds = number(value, "timestamp") / 1000
        tokens, blocks = count(value, "input_length"), ids(value, "hash_ids")
        output = count(value, "output_length", 0)
        session = str(value.get("session_id", value.get("session", "")))
        if len(blocks) > tokens:
            raise Malformed(f"{len(blocks)} blocks of {tokens} tokens; expected at least a token a block")
        if self._delta and session:
            before = self._sessions.get(session, (0, ()))
            if before[1][:1] != blocks[:1]:  # else the line tells the whole prompt again
                tokens, blocks = before[0] + tokens, before[1] + blocks
            self._prefixes.check(blocks, line.number)
            self._sessions[session] = (tokens + output, blocks)
        else:
            self._prefixes.check(blocks, line.number)
        self.requests.append(Request(seconds, tokens, output, blocks, session))


class MooncakeDelta(Mooncake):
    def __init__(self, block: int | None) -> None:
        super().__init__(block, delta=True)
        self.notes.append("turns add to their session; what was answered between them has no blocks")


class Bailian(Reader):
    """{chat_id, parent_chat_id, timestamp (s), input_length, output_length, turn, hash_ids}: one hash a block of 16
    tokens, whatever stands before it.
    """

    def __init__(self, block: int | None) -> None:
        super().__init__(block)
        self._roots: dict[str, str] = {}
        self.notes.append("hashes of single blocks, told apart by what stands before them")

    def take(self, line: Line) -> None:
        value = line.value
        chat, parent = str(value.get("chat_id")), str(value.get("parent_chat_id", -1))
        root = self._roots.setdefault(chat, self._roots.get(parent, chat))
        self.requests.append(
            Request(
                number(value, "timestamp"),
                count(value, "input_length"),
                count(value, "output_length", 0),
                ids(value, "hash_ids"),
                root,
            )
        )


class AgenticMooncake(Reader):
    """A header with the schema, then requests that start at a time or after others."""

    def __init__(self, block: int | None) -> None:
        super().__init__(block)
        self._starts: dict[str, float] = {}
        self._local = False
        self.notes.append("a request that waits for another starts its delay after that one's start")

    def take(self, line: Line) -> None:
        value = line.value
        if "schema" in value:
            self.block = self.block or count(value, "block_size")
            self._local = value.get("hash_id_scope") == "local"
            return
        starts = [number(value, "not_before_ms", 0, 0) / 1000]
        for other in value.get("dependencies") or ():
            if not isinstance(other, dict) or other.get("request_id") not in self._starts:
                raise Malformed(f"it waits for {_short(other)}; expected a request of a line before")
            starts.append(self._starts[other["request_id"]] + number(other, "delay_ms", 0, 0) / 1000)
        self._starts[str(value.get("request_id"))] = max(starts)
        scope = str(value.get("play_id", "")) if self._local else ""
        self.requests.append(
            Request(
                max(starts),
                count(value, "input_length"),
                count(value, "output_length", 0),
                tuple((scope, block) for block in ids(value, "hash_ids")),
                f"{scope}/{value.get('session_id', '')}",
            )
        )


class Dynamo(Reader):
    """dynamo.request.trace.v1: an event a line; those of kind request_end say what was asked for."""

    def take(self, line: Line) -> None:
        value = line.value
        if value.get("event_type") != "request_end":
            return
        request = part(value, "request")
        replay = part(request, "replay")
        self.block = self.block or count(replay, "trace_block_size")
        context = value.get("agent_context")
        self.requests.append(
            Request(
                number(request, "request_received_ms") / 1000,
                count(replay, "input_length"),
                count(request, "output_tokens", 0),
                ids(replay, "input_sequence_hashes"),
                str(context.get("session_id", "")) if isinstance(context, dict) else "",
            )
        )


class AppliedCompute(Reader):
    """A session a line, as lengths alone: {num_turns, input_prompt_length, assistant_response_length, ...}."""

    def __init__(self, block: int | None) -> None:
        super().__init__(block)
        self.block = self.block or 16
        self.notes.append("lengths alone: sessions share nothing, all begin at 0, generation takes no time")

    def take(self, line: Line) -> None:
        value = line.value
        turns = count(value, "num_turns")
        answers, results = (
            _lengths(value, field, turns)
            for field in ("assistant_response_length", "tool_call_output_length")
        )
        waits = value.get("tool_call_latency")
        tokens, seconds = count(value, "input_prompt_length"), 0.0
        size = self.block or 16
        for turn in range(turns + 1):
            final = turn == turns
            if final:
                answer = count(value, "final_assistant_response_length", 0)
            else:
                answer = count({"a length of an answer": answers[turn]}, "a length of an answer")
            blocks = tuple((line.number, i) for i in range(tokens // size))
            self.requests.append(Request(seconds, tokens, answer, blocks, str(line.number)))
            if not final:
                tokens += answer + count({"a length of a result": results[turn]}, "a length of a result")
                wait = waits[turn] if isinstance(waits, list) and turn < len(waits) else 0.0
                seconds += number({"tool_call_latency": wait}, "tool_call_latency")


def _lengths(value: dict[str, Any], field: str, turns: int) -> list[Any]:
    found = value.get(field)
    if not isinstance(found, list) or len(found) != turns:
        raise Malformed(f"{field} is {_short(found)}; expected a list of {turns} lengths")
    return found


class AgentX(Reader):
    """A session tree a line: {id, block_size, requests: [{t, type, in, out, hash_ids}, subagents]}; ids count within
    the line.
    """

    def __init__(self, block: int | None) -> None:
        super().__init__(block)
        self.notes.append("sessions share no blocks, since ids count within each; all begin at 0")

    def take(self, line: Line) -> None:
        self.block = self.block or count(line.value, "block_size", 64)
        found: list[Request] = []
        self._requests(line.value, str(line.value.get("id", line.number)), line.number, 0.0, found)
        self.requests += found

    def _requests(
        self, value: dict[str, Any], session: str, scope: int, start: float, found: list[Request]
    ) -> None:
        requests = value.get("requests")
        if not isinstance(requests, list):
            raise Malformed(f"requests is {_short(requests)}; expected a list")
        for request in requests:
            if not isinstance(request, dict):
                raise Malformed(f"a request is {_short(request)}; expected an object")
            seconds = number(request, "t", 0, start)
            if request.get("type") == "subagent":
                self._requests(request, f"{session}/{request.get('agent_id')}", scope, seconds, found)
                continue
            blocks = tuple((scope, block) for block in ids(request, "hash_ids"))
            found.append(Request(seconds, count(request, "in"), count(request, "out", 0), blocks, session))


FORMATS = (
    Format("agentic-mooncake", lambda v: v.get("schema") == "dynamo.agentic_mooncake", AgenticMooncake),
    Format(
        "dynamo",
        lambda v: v.get("schema") == "dynamo.request.trace.v1" or "event_type" in v,
        Dynamo,
    ),
    Format("agentx", lambda v: isinstance(v.get("requests"), list), AgentX),
    Format("applied-compute", lambda v: "num_turns" in v, AppliedCompute),
    Format("bailian", lambda v: "chat_id" in v and "hash_ids" in v, Bailian),
    Format(
        "mooncake-delta", lambda v: "session_id" in v and "hash_ids" in v and "turn" not in v, MooncakeDelta
    ),
    Format("mooncake", lambda v: "timestamp" in v or "hash_ids" in v, Mooncake),
)

"""Traces: every format becomes the same chains, and what is wrong is said in one sentence, with its place."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kvarter.trace import SHAPES, Trace, TraceError, generate, read
from kvarter.trace.generate import save

MOONCAKE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 1500, "input_length": 1700, "output_length": 5, "hash_ids": [0, 1, 3, 4]},
]


def written(path: Path, *lines: object) -> Path:
    file = path / "trace.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def chains(trace: Trace) -> list[list[int]]:
    return [trace.of_request(i).tolist() for i in range(trace.requests)]


def test_mooncakes_ids_become_chains_and_lengths_tell_the_block(tmp_path: Path) -> None:
    trace = read(written(tmp_path, *MOONCAKE))
    assert (trace.format, trace.block_tokens, trace.unique) == ("mooncake", 512, 5)
    assert chains(trace) == [[0, 1, 2], [0, 1, 3, 4]]
    assert trace.parent.tolist() == [-1, 0, 1, 1, 3]
    assert trace.seconds.tolist() == [0.0, 1.5]


def test_a_session_told_by_what_each_turn_adds_is_put_together(tmp_path: Path) -> None:
    lines = [
        {"session_id": "a", "timestamp": 0, "input_length": 16, "output_length": 4, "hash_ids": [1]},
        {"session_id": "b", "timestamp": 1, "input_length": 16, "output_length": 4, "hash_ids": [7]},
        {
            "session_id": "a",
            "timestamp": 2,
            "delay": 1,
            "input_length": 16,
            "output_length": 4,
            "hash_ids": [2],
        },
    ]
    trace = read(written(tmp_path, *lines))
    assert trace.format == "mooncake-delta"
    assert chains(trace) == [[0], [1], [0, 2]]
    assert trace.tokens.tolist() == [16, 16, 36]


def test_hashes_of_single_blocks_are_told_apart_by_what_stands_before(tmp_path: Path) -> None:
    line = {"parent_chat_id": -1, "input_length": 32, "output_length": 1, "turn": 1, "type": "text"}
    trace = read(
        written(
            tmp_path,
            {"chat_id": 1, "timestamp": 0.5, "hash_ids": [11, 12], **line},
            {"chat_id": 2, "timestamp": 1.5, "hash_ids": [13, 12], **line},
        )
    )
    assert (trace.format, trace.block_tokens) == ("bailian", 16)
    assert chains(trace) == [[0, 1], [2, 3]]
    assert trace.seconds.tolist() == [0.5, 1.5]


def test_ids_of_agentx_count_within_one_session_and_subagents_are_requests(tmp_path: Path) -> None:
    request = {"type": "n", "model": "m", "out": 3, "api_time": 1, "think_time": 1}
    tree = [
        {"t": 0.0, "in": 128, "hash_ids": [0, 1], **request},
        {
            "type": "subagent",
            "t": 1.0,
            "agent_id": "x",
            "requests": [{"t": 1.5, "in": 64, "hash_ids": [5], **request}],
        },
        {"t": 2.0, "in": 192, "hash_ids": [0, 1, 2], **request},
    ]
    session = {"models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": tree}
    trace = read(written(tmp_path, {"id": "a", **session}, {"id": "b", **session}))
    assert (trace.format, trace.block_tokens, trace.requests, trace.unique) == ("agentx", 64, 6, 8)
    assert chains(trace)[-1] == [3, 4, 7] or chains(trace)[-1] == [2, 3, 7]


def test_dynamos_events_that_are_no_requests_are_no_errors(tmp_path: Path) -> None:
    replay = {"trace_block_size": 4, "input_length": 8, "input_sequence_hashes": [501, 502]}
    request = {"request_id": "r", "output_tokens": 2, "request_received_ms": 2000, "replay": replay}
    trace = read(
        written(
            tmp_path,
            {"event_type": "request_payload", "request_id": "r"},
            {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request},
        )
    )
    assert (trace.format, trace.block_tokens, chains(trace)) == ("dynamo", 4, [[0, 1]])


def test_a_request_that_waits_for_others_starts_after_them(tmp_path: Path) -> None:
    request = {"play_id": "p", "session_id": "s", "input_length": 4, "output_length": 1}
    after = [{"request_id": "1", "trigger": "dispatch", "delay_ms": 250}]
    trace = read(
        written(
            tmp_path,
            {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local"},
            {"request_id": "1", "hash_ids": [3], "not_before_ms": 1000, "dependencies": [], **request},
            {"request_id": "2", "hash_ids": [4], "not_before_ms": 0, "dependencies": after, **request},
        )
    )
    assert trace.format == "agentic-mooncake"
    assert trace.seconds.tolist() == [1.0, 1.25]


def test_lengths_alone_make_sessions_that_share_nothing(tmp_path: Path) -> None:
    line = {
        "num_turns": 2,
        "input_prompt_length": 16,
        "assistant_response_length": [4, 4],
        "tool_call_output_length": [12, 12],
        "tool_call_latency": [0.5, 0.5],
        "final_assistant_response_length": 4,
    }
    trace = read(written(tmp_path, line, line))
    assert (trace.format, trace.requests, trace.unique) == ("applied-compute", 6, 6)
    assert sorted(trace.tokens.tolist()) == [16, 16, 32, 32, 48, 48]


BAD = {
    "not JSON": ("{oops", "line 2: not JSON at column 2; expected one JSON object"),
    "a list": ("[1, 2]", "line 2: a JSON list; expected one JSON object"),
    "a negative length": (
        {**MOONCAKE[1], "input_length": -5},
        "line 2: input_length is -5; expected a number of at least 0",
    ),
    "no ids": ({"timestamp": 1, "input_length": 5}, "line 2: hash_ids is None; expected a list of block ids"),
    "no time": (
        {"input_length": 5, "hash_ids": [0]},
        "line 2: no timestamp; expected a number of at least 0",
    ),
    "time that is no number": (
        {**MOONCAKE[1], "timestamp": "soon"},
        "line 2: timestamp is 'soon'; expected a number of at least 0",
    ),
    "ids out of order": (
        {**MOONCAKE[1], "hash_ids": [0, 2, 1]},
        "line 2: block id 2 stands after 0 here and after 1 in line 1; expected one prefix for each id",
    ),
    "new ids out of order": (
        {**MOONCAKE[1], "hash_ids": [0, 1, 9, 5]},
        "line 2: new block id 5 after 9; expected new ids that rise along a prompt",
    ),
    "an id twice": (
        {**MOONCAKE[1], "hash_ids": [0, 1, 1]},
        "line 2: block id 1 stands after 1 here and after 0 in line 1; expected one prefix for each id",
    ),
    "a negative id": (
        {**MOONCAKE[1], "hash_ids": [0, -1]},
        "line 2: hash_ids has the id -1; expected none below 0",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_line_is_named_with_what_was_expected(tmp_path: Path, what: str) -> None:
    line, said = BAD[what]
    file = written(tmp_path, MOONCAKE[0], line)
    with pytest.raises(TraceError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}, {said}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", BAD)
def test_a_bad_line_is_skipped_and_counted_on_demand(tmp_path: Path, what: str) -> None:
    trace = read(written(tmp_path, MOONCAKE[0], BAD[what][0], MOONCAKE[1]), skip_bad=True)
    assert (trace.requests, trace.skipped) == (2, 1)
    assert chains(trace) == [[0, 1, 2], [0, 1, 3, 4]]


def test_what_is_no_trace_at_all_is_said_so(tmp_path: Path) -> None:
    empty, packed = tmp_path / "empty.jsonl", tmp_path / "trace.jsonl.gz"
    empty.write_text("\n")
    packed.write_bytes(gzip.compress(json.dumps(MOONCAKE[0]).encode()))
    for path, said in (
        (empty, "no request in it; expected one JSON object a line"),
        (packed, "line 1: gzip data; expected JSON lines"),
        (tmp_path, "is a directory; expected a file of JSON lines"),
        (tmp_path / "nowhere", "No such file or directory; expected a file of JSON lines"),
        (written(tmp_path, {"speed": 1}), "line 1: an object with speed; expected the fields of one of"),
    ):
        with pytest.raises(TraceError) as caught:
            read(path)
        assert str(caught.value).startswith(str(path)) and said in str(caught.value)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_generated_trace_is_the_same_for_the_same_seed(kind: str) -> None:
    one, same, other = (generate(kind, seed, sessions=30) for seed in (1, 1, 2))
    assert np.array_equal(one.blocks, same.blocks) and np.array_equal(one.seconds, same.seconds)
    assert not np.array_equal(one.blocks, other.blocks)
    assert "seed 1" in one.notes[0]


def test_a_saved_trace_reads_back_as_it_was(tmp_path: Path) -> None:
    trace = generate("chat", sessions=20)
    save(trace, tmp_path / "chat.jsonl")
    back = read(tmp_path / "chat.jsonl")
    assert chains(back) == chains(trace)
    assert (back.format, back.block_tokens, back.skipped) == ("mooncake", 16, 0)


def test_halves_of_a_trace_are_its_requests_each_from_a_cold_start() -> None:
    trace = generate("chat", sessions=20)
    first, second = trace.halves()
    assert first.requests + second.requests == trace.requests
    assert first.accesses + second.accesses == trace.accesses
    assert second.blocks[0] == 0

"""Who has what, as far as a directory knows; and what it costs when it knows nothing, or nobody answers."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvarter import _core
from kvarter.errors import ConfigError
from kvarter.peers.breaker import Breaker
from kvarter.peers.directory import Prefix, Static
from kvarter.peers.pulse import Backoff
from kvarter.peers.redis_client import Terms
from kvarter.peers.redis_directory import RedisDirectory
from peer_words import Talker
from redis_words import STRIDE, TERMS, Member, Redis, prefix
from served_words import until

pytestmark = pytest.mark.timeout(120)
STEP = STRIDE // 16


@pytest.fixture(params=[False, True], ids=["alone", "cluster"])
def redis(tmp_path: Path, request: Any) -> Iterator[Redis]:
    server = Redis(tmp_path, cluster=request.param)
    yield server
    server.close()


@pytest.fixture
def one_redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    yield server
    server.close()


@pytest.fixture
def member() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> Member:
            return stack.enter_context(contextlib.closing(Member(*arguments, **options)))

        yield make


def test_positions_are_multiples_of_the_stride_beyond_what_is_known() -> None:
    sequence = prefix(1, 10)
    assert [units for units, _ in sequence.marks(64, 0, 10)] == [4, 8]
    assert [units for units, _ in sequence.marks(64, 4, 10)] == [8]
    assert [units for units, _ in sequence.marks(64, 3, 7)] == [4]
    assert list(sequence.marks(64, 8, 10)) == []
    assert next(sequence.marks(64, 0, 10))[1] == sequence.digests[32 * 3 : 32 * 4]
    assert [units for units, _ in prefix(1, 4, unit_tokens=256).marks(64, 0, 4)] == [1, 2, 3, 4]


def test_a_static_list_names_everybody_but_this_node_and_seeks_them() -> None:
    with contextlib.closing(Talker()) as here, contextlib.closing(Talker()) as there:
        directory = Static([here.at, there.at, there.at])
        here.meeting.call(directory.begin, here.meeting, here.at)
        until(lambda: len(here.here()) == 1 == len(there.here()), "met")
        assert directory.status() == {"kind": "static", "available": True, "nodes": 2}


def test_those_who_have_most_are_named_first(redis: Redis, member: Any) -> None:
    near, far, asks = (member(redis.url) for _ in range(3))
    sequence = prefix(1, 5 * STEP + 1)
    near.has(sequence, 2 * STEP + 1)
    far.has(sequence, 4 * STEP)
    asks.knows(3)
    assert asks.whom(sequence) == [far.at, near.at]
    assert asks.whom(sequence, above=2 * STEP) == [far.at]
    assert asks.whom(sequence, above=4 * STEP) == []
    assert asks.whom(prefix(2, 5 * STEP)) == []
    other = sequence._replace(namespace=b"o" * 32)
    assert asks.whom(other) == []
    far.knows(3)
    assert far.whom(sequence) == [near.at]


def test_a_prompt_of_128_k_tokens_is_one_round_trip(one_redis: Redis, member: Any) -> None:
    terms = Terms(lease=6.0, patience=TERMS.patience)
    here, there = member(one_redis.url, terms), member(one_redis.url, terms)
    sequence = prefix(3, 128 * 1024 // 16)
    there.has(sequence, sequence.units)
    here.knows(2)
    assert here.whom(sequence) == [there.at]
    assert one_redis.keys() == 64 + 3
    one_redis.command("CONFIG", "RESETSTAT")
    here.whom(sequence)
    reads = one_redis.command("INFO", "commandstats")
    assert "cmdstat_zrevrange:calls=64" in reads


def test_what_a_node_does_not_have_any_more_is_forgotten_when_it_was_asked(redis: Redis, member: Any) -> None:
    there, here = member(redis.url), member(redis.url)
    sequence = prefix(4, 3 * STEP)
    there.has(sequence, 3 * STEP)
    here.knows(2)
    here.meeting.call(here.directory.not_at, there.at, sequence, STEP)
    until(lambda: here.whom(sequence, above=STEP) == [], "forgotten")
    assert here.whom(sequence) == [there.at]


def test_a_position_knows_no_more_than_so_many_nodes(one_redis: Redis, member: Any) -> None:
    terms = Terms(stride=STRIDE, lease=5.0, patience=TERMS.patience, holders=2)
    members = [member(one_redis.url, terms) for _ in range(3)]
    sequence = prefix(5, STEP)
    for each in members:
        each.has(sequence, STEP)
    asks = member(one_redis.url, terms)
    asks.knows(4)
    assert sorted(asks.whom(sequence)) == sorted([members[1].at, members[2].at])


def test_a_node_that_is_gone_is_not_named_and_leaves_the_set(one_redis: Redis, member: Any) -> None:
    terms = Terms(stride=STRIDE, lease=4.0, patience=TERMS.patience)
    here = member(one_redis.url, terms)
    gone = Member(one_redis.url, terms)
    sequence = prefix(6, STEP)
    gone.has(sequence, STEP)
    here.knows(2)
    assert here.whom(sequence) == [gone.at]
    gone.close()
    here.knows(1)
    assert here.whom(sequence) == []
    until(lambda: one_redis.command("SCARD", "kvarter:1:{nodes}") == ":1", "taken out")


def test_everything_that_is_told_ends_by_itself(one_redis: Redis, member: Any) -> None:
    terms = Terms(stride=STRIDE, lease=1.0, ttl=1.0, patience=TERMS.patience)
    there = member(one_redis.url, terms)
    there.has(prefix(7, STEP * 8), STEP * 8)
    until(lambda: one_redis.keys() == 2, "only the node is left")


def test_a_server_that_is_killed_costs_look_ups_and_is_used_again(redis: Redis, member: Any) -> None:
    here, there = member(redis.url), member(redis.url)
    sequence = prefix(8, STEP)
    there.has(sequence, STEP)
    here.knows(2)
    assert here.whom(sequence) == [there.at]
    redis.kill()
    assert here.whom(sequence) == []
    until(lambda: not here.directory.status()["available"], "noticed")
    assert here.whom(sequence) == []
    assert redis.start()
    if redis._cluster:
        redis.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    until(lambda: here.directory.status()["available"], "noticed")

    def told_again() -> bool:
        there.meeting.call(there.directory.have, sequence, STEP)
        return here.whom(sequence) == [there.at]

    until(told_again, "found again")


def test_a_server_that_is_stopped_is_waited_for_no_longer_than_said(one_redis: Redis, member: Any) -> None:
    terms = Terms(stride=STRIDE, lease=5.0, patience=0.5)
    here = member(one_redis.url, terms)
    here.knows(1)
    one_redis.stop()
    sequence = prefix(9, STEP)
    for _ in range(20):
        assert here.whom(sequence) == []
    assert here.directory.counts["failed"] >= 3
    until(lambda: here.directory.counts["skipped"] > 0, "most were not asked at all")
    one_redis.go_on()
    until(lambda: here.directory.status()["available"], "used again")


def test_what_a_server_that_was_emptied_knew_is_told_again_as_it_is_used(
    one_redis: Redis, member: Any
) -> None:
    here, there = member(one_redis.url), member(one_redis.url)
    sequence = prefix(10, STEP)
    there.has(sequence, STEP)
    here.knows(2)
    assert one_redis.command("FLUSHALL") == "+OK"
    assert here.whom(sequence) == []

    def told_again() -> bool:
        there.meeting.call(there.directory.have, sequence, STEP)
        return here.whom(sequence) == [there.at]

    until(told_again, "found again")


def test_what_waits_to_be_told_is_bounded(one_redis: Redis, member: Any) -> None:
    here = member(one_redis.url, Terms(stride=16, lease=5.0, patience=TERMS.patience))
    here.knows(1)
    one_redis.stop()
    for number in range(3):
        here.meeting.call(here.directory.have, prefix(number, 10_000), 10_000)
    until(lambda: here.directory.counts["dropped"] > 0, "dropped")
    assert len(here.directory._waiting) <= 1 << 14
    one_redis.go_on()


def test_an_answer_that_makes_no_sense_is_no_answer(one_redis: Redis, member: Any) -> None:
    here = member(one_redis.url)
    here.knows(1)
    sequence = prefix(11, STEP)
    from kvarter.peers.redis_directory import _key

    (_, mark), *_ = sequence.marks(STRIDE, 0, STEP)
    one_redis.command("SET", _key(sequence, mark), "no sorted set")
    assert here.whom(sequence) == []
    one_redis.command("DEL", _key(sequence, mark))
    one_redis.command("ZADD", _key(sequence, mark), "1", "\u00e9: no address")
    assert here.whom(sequence) == []


def test_an_url_that_is_none_and_a_client_that_is_missing_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        ConfigError, match=r"directory 'etcd://h:1'; expected redis://, rediss:// or redis\+cluster://"
    ):
        RedisDirectory("etcd://h:1")
    with pytest.raises(ConfigError, match="directory 'redis://h:x'"):
        RedisDirectory("redis://h:x")
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigError, match=r'pip install "kvarter\[redis\]"'):
        RedisDirectory("redis://h:1")


def test_a_breaker_lets_one_through_at_a_time_until_one_succeeds() -> None:
    clock = _core.SteppedClock()
    breaker = Breaker(clock, Backoff(1.0, 4.0, uniform=lambda least, most: most))
    for _ in range(3):
        assert breaker.allows()
        breaker.failed()
    assert not breaker.closed and not breaker.allows()
    clock.advance(1.0)
    assert breaker.allows() and not breaker.allows()
    breaker.failed()
    clock.advance(1.9)
    assert not breaker.allows()
    clock.advance(0.1)
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.closed and breaker.allows() and breaker.allows()


def test_a_prefix_counts_its_units() -> None:
    assert Prefix(b"n" * 32, 16, bytes(96)).units == 3

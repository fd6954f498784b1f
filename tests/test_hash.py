"""Chain digests and checksums, against hashlib, PyPI xxhash and a second implementation of the format."""

import hashlib
import os
import struct
import subprocess
import sys
from array import array

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvarter import _core

ROOT = _core.chain_root()
token = st.integers(0, 2**32 - 1)


def item(tag, offset, data):
    return struct.pack("<BII", tag, offset, len(data)) + data


def reference(tokens, unit_tokens, previous, extras=()):
    digests = []
    for unit in range(len(tokens) // unit_tokens):
        message = previous + struct.pack(
            f"<{unit_tokens}I", *tokens[unit * unit_tokens : (unit + 1) * unit_tokens]
        )
        for _, tag, offset, data in (e for e in extras if e[0] == unit):
            message += item(tag, offset, data)
        previous = hashlib.sha256(message).digest()
        digests.append(previous)
    return digests


def chain(tokens, unit_tokens=16, root=ROOT, extras=None):
    return [row.tobytes() for row in _core.chain_digests(tokens, unit_tokens, root, extras)]


@st.composite
def sequences(draw):
    unit_tokens = draw(st.sampled_from([1, 2, 5, 6, 8, 13, 16, 17, 24, 40, 64]))
    tokens = draw(st.lists(token, max_size=5 * unit_tokens))
    units = len(tokens) // unit_tokens
    one = st.tuples(
        st.integers(0, units - 1), st.integers(1, 4), st.integers(0, unit_tokens - 1), st.binary(max_size=80)
    )
    return (
        tokens,
        unit_tokens,
        draw(st.binary(min_size=32, max_size=32)),
        draw(st.lists(one)) if units else [],
    )


def test_the_root_is_the_hash_of_the_schemes_name():
    assert hashlib.sha256(b"kvarter/chain/1").digest() == ROOT


def test_the_chain_gives_the_formats_test_vectors():
    extras = [(1, 1, 3, b"image"), (1, 2, 0, b"salt")]
    first, second = chain(list(range(32)), extras=extras)
    assert first.hex() == "39fafbfba58b22e5a149d02b0d7059f575458119691675d75a3ff2fb2d16c24d"
    assert [first, second] == reference(list(range(32)), 16, ROOT, extras)


@given(sequences())
def test_the_chain_equals_hashlib_over_the_written_format(sequence):
    tokens, unit_tokens, root, extras = sequence
    assert chain(tokens, unit_tokens, root, extras) == reference(tokens, unit_tokens, root, extras)


@given(st.lists(sequences(), max_size=9))
def test_sequences_hash_together_as_they_do_alone(drawn):
    drawn = [
        (tokens, root, [(u, t, 0, b) for u, t, _, b in extras if u < len(tokens) // 4])
        for tokens, _, root, extras in drawn
    ]
    together = _core.chain_many([d[0] for d in drawn], 4, [d[1] for d in drawn], [d[2] for d in drawn])
    assert [[row.tobytes() for row in each] for each in together] == [
        reference(t, 4, r, e) for t, r, e in drawn
    ]


@given(st.lists(token, min_size=1, max_size=70), st.binary(min_size=32, max_size=32), st.binary(max_size=9))
def test_a_tail_equals_hashlib_over_the_written_format(tokens, previous, data):
    message = previous + b"tail" + struct.pack(f"<I{len(tokens)}I", len(tokens), *tokens)
    assert _core.tail_digest(previous, tokens) == hashlib.sha256(message).digest()
    with_extra = hashlib.sha256(message + item(4, 0, data)).digest()
    assert _core.tail_digest(previous, tokens, [(0, 4, 0, data)]) == with_extra


def test_a_tail_is_no_full_unit_of_the_same_tokens():
    tokens = list(range(16))
    assert _core.tail_digest(ROOT, tokens) != chain(tokens)[0]


@given(st.lists(st.integers(0, 2**31), min_size=32, max_size=60))
def test_every_kind_of_tokens_gives_the_same_digests(tokens):
    expected = reference(tokens, 16, ROOT)
    for same in (
        tuple(tokens),
        array("I", tokens),
        np.array(tokens, np.uint32),
        np.array(tokens),
        array("q", tokens),
    ):
        assert chain(same) == expected


def test_extras_may_come_in_any_order_of_units():
    extras = [(1, 1, 0, b"b"), (0, 3, 1, b"a"), (1, 1, 0, b"a")]
    assert chain(range(32), extras=extras) == reference(range(32), 16, ROOT, extras)


def differs_from_the_second_unit_on(one, other):
    return one[0] == other[0] and all(a != b for a, b in zip(one[1:], other[1:], strict=True))


@given(st.integers(16, 31), token)
def test_another_token_changes_its_unit_and_every_later_one(position, value):
    tokens = list(range(64))
    changed = [*tokens[:position], value, *tokens[position + 1 :]]
    assert changed == tokens or differs_from_the_second_unit_on(chain(tokens), chain(changed))


@pytest.mark.parametrize(
    "other",
    [
        [],
        [(1, 1, 3, b"imagf")],
        [(1, 1, 3, b"image\0")],
        [(1, 1, 4, b"image")],
        [(1, 2, 3, b"image")],
        [(1, 1, 3, b"image"), (1, 1, 3, b"")],
        [(1, 1, 3, b"image"), (1, 1, 3, b"image")],
        [(1, 1, 3, b"ima"), (1, 1, 3, b"ge")],
    ],
)
def test_another_extra_changes_its_unit_and_every_later_one(other):
    tokens = list(range(64))
    assert differs_from_the_second_unit_on(
        chain(tokens, extras=[(1, 1, 3, b"image")]), chain(tokens, extras=other)
    )


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_moving_a_boundary_between_extras_changes_the_digest(one, other):
    def digest(parts):
        return chain(range(16), extras=[(0, 1, 0, part) for part in parts])

    assert (digest(one) == digest(other)) == (one == other)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: chain([1], 0), ValueError, "unit_tokens is 0, expected at least 1"),
        (lambda: chain([1], -1), ValueError, "unit_tokens is -1, expected 0 to 4294967295"),
        (lambda: chain([1], root=b"x" * 31), ValueError, "root has 31 bytes, expected 32"),
        (lambda: chain([1, 2**32]), ValueError, r"tokens\[1\] is 4294967296, expected 0 to 4294967295"),
        (lambda: chain([1, 2, -3]), ValueError, r"tokens\[2\] is -3, expected 0 to 4294967295"),
        (lambda: chain(np.array([0, -3])), ValueError, r"tokens\[1\] is -3"),
        (lambda: chain(["1"]), TypeError, r"expected an int as tokens\[0\], found a str"),
        (lambda: chain([1.0]), TypeError, r"expected an int as tokens\[0\], found a float"),
        (
            lambda: chain(7),
            TypeError,
            "expected a uint32 buffer or a sequence of ints as tokens, found a int",
        ),
        (lambda: chain(np.zeros((2, 16), np.uint32)), ValueError, "tokens has 2 dimensions, expected 1"),
        (lambda: chain(np.zeros(32, np.uint32)[::2]), ValueError, "expected a C-contiguous one"),
        (
            lambda: chain(range(33), extras=[(2, 1, 0, b"")]),
            ValueError,
            "unit 2, but 33 tokens make 2 full units of 16",
        ),
        (lambda: chain(range(32), extras=[(-1, 1, 0, b"")]), ValueError, "an extra's unit is -1"),
        (
            lambda: chain(range(32), extras=[(1, 7, 0, b"")]),
            ValueError,
            "an extra of unit 1 has tag 7, expected 1",
        ),
        (
            lambda: chain(range(32), extras=[(1, 0, 0, b"")]),
            ValueError,
            "an extra of unit 1 has tag 0, expected 1",
        ),
        (
            lambda: chain(range(32), extras=[(1, 1, 16, b"")]),
            ValueError,
            "offset 16, expected less than the unit's 16",
        ),
        (
            lambda: chain(range(32), extras=[(1, 1, 0, "x")]),
            TypeError,
            "expected contiguous bytes, found a str",
        ),
        (
            lambda: chain(range(32), extras=[(1, 1, 0)]),
            TypeError,
            r"expected a tuple \(unit, tag, offset, bytes\)",
        ),
        (lambda: _core.tail_digest(ROOT, []), ValueError, "a tail has 0 tokens, expected at least 1"),
        (lambda: _core.tail_digest(ROOT, [1], [(1, 1, 0, b"")]), ValueError, "an extra names unit 1"),
        (lambda: _core.tail_digest(ROOT[:9], [1]), ValueError, "previous has 9 bytes, expected 32"),
        (lambda: _core.chain_many([[1]], 1, []), ValueError, "found 1 sequences, 0 roots"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_was_found_and_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()


@given(st.binary(max_size=300))
def test_sha256_equals_hashlib(data):
    assert _core.sha256(data) == hashlib.sha256(data).digest()


@given(st.integers(0, 9000), st.randoms(use_true_random=False))
def test_xxh3_equals_xxhash(size, random):
    data = random.randbytes(size)
    assert _core.xxh3_64(data) == xxhash.xxh3_64_intdigest(data)


def test_xxh3_equals_xxhash_at_every_length_near_a_boundary():
    data = os.urandom(5200)
    near = [*range(520), *(block * 1024 + delta for block in range(1, 6) for delta in range(-66, 67))]
    assert [_core.xxh3_64(data[:n]) for n in near] == [xxhash.xxh3_64_intdigest(data[:n]) for n in near]


FORCED = """
import hashlib, sys, xxhash
from kvarter import _core
sys.path.insert(0, sys.argv[1])
import test_hash as t
name, kernel = sys.argv[2:]
assert _core.hash_kernels()[name] == kernel, _core.hash_kernels()
data = bytes(i * 7919 % 251 for i in range(6000))
assert all(_core.sha256(data[:n]) == hashlib.sha256(data[:n]).digest() for n in range(200))
assert all(_core.xxh3_64(data[:n]) == xxhash.xxh3_64_intdigest(data[:n]) for n in range(6000))
for unit in range(1, 40):
    assert t.chain(range(200), unit) == t.reference(range(200), unit, t.ROOT)
"""


def run_forced(name, kernel):
    variable = {"sha256": "KVARTER_SHA256", "xxh3": "KVARTER_XXH3"}[name]
    here = os.path.dirname(__file__)  # noqa: PTH120
    command = [sys.executable, "-c", FORCED, here, name, kernel]
    return subprocess.run(command, env=os.environ | {variable: kernel}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("sha256", each) for each in _core.usable_hash_kernels()["sha256"]]
    + [("xxh3", each) for each in _core.usable_hash_kernels()["xxh3"]],
)
def test_every_kernel_this_cpu_has_gives_the_same_answers(name, kernel):
    result = run_forced(name, kernel)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["sha256", "xxh3"])
def test_an_unknown_kernel_is_refused_at_first_use(name):
    result = run_forced(name, "abacus")
    assert result.returncode != 0
    variable = {"sha256": "KVARTER_SHA256", "xxh3": "KVARTER_XXH3"}[name]
    assert f"RuntimeError: {variable} is 'abacus', expected a kernel this CPU can run (" in result.stderr

"""Column functions give the same result as a loop over the values."""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.store.wire import columns

SIZES = st.one_of(
    st.lists(st.integers(0, 300), min_size=1, max_size=150),
    st.builds(lambda size, count: [size] * count, st.integers(0, 300), st.integers(1, 150)),
)
IDS = st.integers(0, 2**63 - 50_000)
"""Ids with room below 2^63 for the count or the offsets of a column."""
LONG_COLUMN = 9_000
"""More values than the cached columns have."""


def longs(numbers):
    return struct.pack(f"<{len(numbers)}q", *numbers)


def ints(numbers):
    return struct.pack(f"<{len(numbers)}i", *numbers)


def offsets(sizes):
    return list(accumulate(sizes, initial=0))


def view(numbers):
    return memoryview(ints(numbers)).cast("i")


@given(IDS, st.integers(1, 300))
def test_consecutive_packs_a_range_of_ids(first, count):
    assert columns.consecutive(first, count) == longs(range(first, first + count))


def test_columns_too_long_for_the_cache_are_the_same():
    assert columns.consecutive(7, LONG_COLUMN) == longs(range(7, 7 + LONG_COLUMN))
    assert columns.equal_offsets(LONG_COLUMN, 4) == ints(range(0, 4 * LONG_COLUMN + 1, 4))


@pytest.mark.parametrize("number", [0, 5, -1, -(2**63), 2**63 - 1])
def test_repeated_packs_a_number_many_times(number):
    assert columns.repeated(number, 3) == longs([number] * 3)


@given(SIZES)
def test_offsets_of_accumulates_sizes(sizes):
    assert columns.offsets_of(sizes) == ints(offsets(sizes))


@pytest.mark.parametrize("size", [0, 1, 4, 1000])
def test_equal_offsets_equal_the_offsets_of_equal_sizes(size):
    assert columns.equal_offsets(70, size) == columns.offsets_of([size] * 70)


@given(SIZES, st.integers(0, 10**9))
def test_from_zero_moves_offsets_to_zero(sizes, start):
    assert columns.from_zero(view([start + offset for offset in offsets(sizes)])) == ints(offsets(sizes))


@given(SIZES, IDS)
def test_ends_after_adds_each_offset_to_a_start(sizes, start):
    expected = [start + end for end in offsets(sizes)[1:]]
    assert columns.ends_after(start, columns.offsets_of(sizes)) == longs(expected)


@given(SIZES)
def test_ascends_accepts_the_offsets_of_any_sizes(sizes):
    found = offsets(sizes)
    assert columns.ascends(view(found), found[-1])


@pytest.mark.parametrize("bad", [[1, 2, 3], [0, 2, 1, 3], [0, -1, 3], [0, 4, 3], [3, 3, 3]])
def test_ascends_refuses_offsets_that_do_not_ascend_from_zero(bad):
    assert not columns.ascends(view(bad), bad[-1])


@given(SIZES)
def test_values_are_the_bytes_between_their_offsets(sizes):
    ends = offsets(sizes)
    data = bytes(i % 251 for i in range(ends[-1]))
    expected = [data[a:b] for a, b in pairwise(ends)]
    assert list(map(bytes, columns.values(view(ends), memoryview(data)))) == expected
    assert list(columns.values(view(ends), data)) == expected


def test_long_value_is_not_copied():
    data = memoryview(bytearray(20_000))
    first, _ = columns.values(view([0, 10_000, 20_000]), data)
    data[0] = 1
    assert first[0] == 1


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4), min_size=1, max_size=150))
def test_rows_interleave_four_columns(rows):
    packed = [longs(column) for column in zip(*rows, strict=True)]
    assert list(columns.rows(packed)) == [struct.pack("<4q", *row) for row in rows]

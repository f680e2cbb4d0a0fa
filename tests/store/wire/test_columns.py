"""Columns made and compared whole are what a loop over their values makes of them."""

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
"""Numbers to which what a column has may be added."""
LONG_COLUMN = 9_000
"""So many values are not kept to be compared with."""


def longs(numbers):
    return struct.pack(f"<{len(numbers)}q", *numbers)


def ints(numbers):
    return struct.pack(f"<{len(numbers)}i", *numbers)


def offsets(sizes):
    return list(accumulate(sizes, initial=0))


def view(numbers):
    return memoryview(ints(numbers)).cast("i")


@given(IDS, st.integers(1, 300))
def test_consecutive_ids(first, count):
    assert columns.consecutive(first, count) == longs(range(first, first + count))


def test_a_column_that_is_not_kept_is_the_same():
    assert columns.consecutive(7, LONG_COLUMN) == longs(range(7, 7 + LONG_COLUMN))
    assert columns.equal_offsets(LONG_COLUMN, 4) == ints(range(0, 4 * LONG_COLUMN + 1, 4))


@pytest.mark.parametrize("number", [0, 5, -1, -(2**63), 2**63 - 1])
def test_a_repeated_number(number):
    assert columns.repeated(number, 3) == longs([number] * 3)


@given(SIZES)
def test_offsets_of_sizes(sizes):
    assert columns.offsets_of(sizes) == ints(offsets(sizes))


@pytest.mark.parametrize("size", [0, 1, 4, 1000])
def test_equal_offsets_are_those_of_equal_sizes(size):
    assert columns.equal_offsets(70, size) == columns.offsets_of([size] * 70)


@given(SIZES, st.integers(0, 10**9))
def test_offsets_moved_to_zero(sizes, start):
    assert columns.from_zero(view([start + offset for offset in offsets(sizes)])) == ints(offsets(sizes))


@given(SIZES, IDS)
def test_where_each_value_ends(sizes, start):
    expected = [start + end for end in offsets(sizes)[1:]]
    assert columns.ends_after(start, columns.offsets_of(sizes)) == longs(expected)


@given(SIZES)
def test_offsets_that_ascend(sizes):
    found = offsets(sizes)
    assert columns.ascends(view(found), found[-1])


@pytest.mark.parametrize("bad", [[1, 2, 3], [0, 2, 1, 3], [0, -1, 3], [0, 4, 3], [3, 3, 3]])
def test_offsets_that_do_not_ascend_from_zero(bad):
    assert not columns.ascends(view(bad), bad[-1])


@given(SIZES)
def test_values_are_what_lies_between_their_offsets(sizes):
    ends = offsets(sizes)
    data = bytes(i % 251 for i in range(ends[-1]))
    expected = [data[a:b] for a, b in pairwise(ends)]
    assert list(map(bytes, columns.values(view(ends), memoryview(data)))) == expected
    assert list(columns.values(view(ends), data)) == expected


def test_a_long_value_is_not_copied():
    data = memoryview(bytearray(20_000))
    first, _ = columns.values(view([0, 10_000, 20_000]), data)
    data[0] = 1
    assert first[0] == 1


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4), min_size=1, max_size=150))
def test_rows_of_columns(rows):
    packed = [longs(column) for column in zip(*rows, strict=True)]
    assert list(columns.rows(packed)) == [struct.pack("<4q", *row) for row in rows]

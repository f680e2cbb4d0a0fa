"""Splitting ranges into partitions of about equal size: no row is repeated and none is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookspark.logs.rows import splits
from bookspark.logs.rows.splits import Piece, positioned, rows_within, split
from bookspark.protocol.logs.commits import EntryRange

RANGES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 400), st.integers(0, 1 << 22)).map(
        lambda t: EntryRange(1, t[0], t[0] + t[1] - 1, t[1], t[2])
    ),
    max_size=30,
)


def rows(ranges: list[EntryRange]) -> list[tuple[int, int]]:
    """(position, entry id) of each row."""
    ids = [i for r in ranges for i in range(r.first_entry_id, r.last_entry_id + 1)]
    return list(enumerate(ids))


def rows_of(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [
        (p.position + i - p.first_entry_id, i) for p in pieces for i in range(p.first_entry_id, p.last_entry_id + 1)
    ]


@given(RANGES, st.integers(1, 40))
def test_partitions_in_order_are_the_ranges_in_order(ranges: list[EntryRange], min_partitions: int) -> None:
    parts = split(positioned(ranges), min_partitions)
    assert [row for part in parts for row in rows_of(part)] == rows(ranges)
    assert all(parts)
    assert len(parts) >= min(min_partitions, len(rows(ranges)))


@given(RANGES, st.integers(0, 5000), st.integers(0, 5000))
def test_cut_by_positions_is_a_slice(ranges: list[EntryRange], start: int, end: int) -> None:
    pieces = [piece for piece, _ in positioned(ranges, 0, start, end)]
    assert rows_of(pieces) == [row for row in rows(ranges) if start <= row[0] < end]


def test_large_range_becomes_partitions_of_the_target_size() -> None:
    count = 100_000
    parts = split(positioned([EntryRange(1, 0, count - 1, count, 1 << 30)]), 1)
    weight = (1 << 30) + splits.ENTRY_COST_BYTES * count
    assert len(parts) == -(-weight // splits.PARTITION_BYTES_MAX)
    sizes = [sum(p.last_entry_id - p.first_entry_id + 1 for p in part) for part in parts]
    assert max(sizes) - min(sizes[:-1]) <= 1


def test_rows_of_a_single_task_are_divided_evenly_by_default() -> None:
    """A micro-batch of less than 32 MiB was one partition, and 40 MiB became partitions of 32 and 8 MiB."""
    for mebibytes, expected in ((1, 1), (8, 1), (12, 2), (40, 5), (300, 32), (2048, 64)):
        count = 1 << 14
        size = (mebibytes << 20) - splits.ENTRY_COST_BYTES * count
        parts = split(positioned([EntryRange(1, 0, count - 1, count, size)]), 1)
        assert len(parts) == expected
        sizes = [sum(piece.rows for piece in part) for part in parts]
        assert max(sizes) - min(sizes) <= 2


@given(st.integers(1, 300), st.integers(2, 100), st.integers(1 << 10, 1 << 24), st.integers(0, 99))
def test_entries_of_many_rows_stay_whole(entries: int, rows_each: int, size_each: int, cut: int) -> None:
    """An entry shared by two partitions is read twice."""
    rows = entries * rows_each
    whole = EntryRange(1, 0, entries - 1, rows, entries * size_each)
    parts = split(positioned([whole], start=min(cut, rows_each - 1)), 1)
    assert sum(piece.entries for part in parts for piece in part) == entries


def test_few_entries_are_cut_if_more_partitions_are_requested() -> None:
    parts = split(positioned([EntryRange(1, 0, 1, 200, 1 << 20)]), 8)
    assert [sum(piece.rows for piece in part) for part in parts] == [25] * 8


def test_few_long_rows_are_spread_over_partitions() -> None:
    ranges = [EntryRange(1, 0, 9, 10, 10 * (splits.PARTITION_BYTES_MAX - 1))]
    assert len(split(positioned(ranges), 1)) == 10


def test_limit_takes_rows_or_bytes_up_to_it_and_at_least_a_row() -> None:
    ranges = [EntryRange(1, 0, 9, 10, 100), EntryRange(2, 5, 24, 20, 2000)]

    def within(rows: int | None = None, size: int | None = None) -> int | None:
        return rows_within(positioned(ranges, 100), rows, size)

    assert [within(rows=n) for n in (1, 9, 10, 11, 29)] == [101, 109, 110, 111, 129]
    assert [within(rows=n) for n in (30, 31)] == [None, None]
    assert [within(size=n) for n in (1, 10, 99, 100, 250, 2099)] == [101, 101, 109, 110, 111, 129]
    assert within(size=2100) is within() is None
    assert rows_within([], 1, None) is None


# Rows of each entry of a ledger, and entries of each of its commits.
ENTRIES_OF = st.tuples(st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=20))


@given(st.lists(ENTRIES_OF, max_size=4), st.integers(1, 9))
def test_adjacent_commits_of_a_ledger_become_a_single_piece(
    ledgers: list[tuple[int, list[int]]], min_partitions: int
) -> None:
    """A log of 10,000 micro-batches was 10,000 pieces, and each opened its ledger again."""
    ranges = []
    for ledger_id, (rows_each, commits) in enumerate(ledgers):
        first = 0
        for entries in commits:
            ranges.append(EntryRange(ledger_id, first, first + entries - 1, entries * rows_each, entries))
            first += entries
    parts = split(positioned(ranges), min_partitions)
    found = [
        (piece.ledger_id, piece.position + n, divmod(piece.skip + n, piece.rows_each)[0] + piece.first_entry_id)
        for part in parts
        for piece in part
        for n in range(piece.rows)
    ]
    owed = [(r.ledger_id, r.first_entry_id + n // r.rows_each) for r in ranges for n in range(r.rows)]
    assert found == [(ledger_id, position, entry_id) for position, (ledger_id, entry_id) in enumerate(owed)]
    assert all(len(part) == len({piece.ledger_id for piece in part}) for part in parts)

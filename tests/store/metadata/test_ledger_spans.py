"""Ranges of ledger ids for tasks: every ledger in exactly one range, with about as many ledgers in each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookspark.store.metadata.records.ledger_spans import IDS_PER_SPAN, LedgerSpan, ranges_of, spans_of

IDS = st.lists(st.integers(0, 12 * IDS_PER_SPAN), max_size=300, unique=True).map(sorted)


@given(IDS, st.integers(1, 400))
def test_every_ledger_is_in_exactly_one_range(ids: list[int], each: int) -> None:
    ranges = ranges_of(spans_of(ids), each)
    assert [one for first, last in ranges for one in ids if first <= one <= last] == ids
    assert all(before < first <= last for (_, before), (first, last) in zip([(0, -1), *ranges], ranges, strict=False))


def test_ten_million_ledgers_make_fewer_than_fifty_ranges() -> None:
    spans = [LedgerSpan(number * IDS_PER_SPAN, IDS_PER_SPAN) for number in range(1000)]
    ranges = ranges_of(spans, 10_000_000 // 48 + 1)
    assert len(ranges) < 50
    counts = [(last + 1 - first) for first, last in ranges]
    assert sum(counts) == 10_000_000 and max(counts) < 1.1 * 10_000_000 / 48


def test_full_span_is_split_for_smaller_tasks() -> None:
    assert ranges_of([LedgerSpan(0, 10_000)], 2000) == [(at, at + 1999) for at in range(0, 10_000, 2000)]
    assert ranges_of([LedgerSpan(0, 300), LedgerSpan(50_000, 100)], 2000) == [(0, 59_999)]

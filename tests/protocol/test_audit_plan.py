"""Marks of an auditor for a single ledger."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.repair.audit_plan import absent, confirmed, mark_of_lacking, mark_of_lost, merged
from bookspark.protocol.repair.underreplication_task import Mark, Reason

OPEN = LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "b", "d"))))
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry_id=19)
RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)).map(lambda r: (r[0], r[0] + r[1])), max_size=6)


def ids(ranges: list[tuple[int, int]]) -> set[int]:
    return {entry_id for low, high in ranges for entry_id in range(low, high + 1)}


def test_ledger_without_lost_bookies_is_not_marked() -> None:
    assert mark_of_lost(CLOSED, {"x"}) is None and mark_of_lost(CLOSED, ()) is None


def test_mark_names_all_lost_bookies_of_a_ledger() -> None:
    found = mark_of_lost(CLOSED, {"c", "d", "x"})
    assert found == Mark(7, {"c": Reason.LOST, "d": Reason.LOST}, "c, d lost")


def test_last_fragment_of_an_open_ledger_is_marked() -> None:
    """Its writer replaces the bookie if a spare exists; the worker waits for that."""
    assert mark_of_lost(OPEN, {"d"}) is not None


def test_ledger_without_entries_is_marked() -> None:
    """It has nothing to copy, but its metadata must name only existing bookies."""
    empty = LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("a", "b", "c")),), LedgerState.CLOSED)
    assert mark_of_lost(empty, {"a"}) is not None


def test_bookie_with_all_its_entries_lacks_nothing() -> None:
    assert absent(CLOSED, "a", [(12, 19), (0, 5), (6, 12)]) == []
    assert absent(CLOSED, "d", [(10, 19)]) == [] and absent(CLOSED, "x", []) == []


def test_absent_lists_the_missing_ranges_by_fragment() -> None:
    assert absent(CLOSED, "a", [(15, 19), (0, 3)]) == [(4, 9), (10, 14)]
    assert absent(CLOSED, "c", []) == [(0, 9)]


def test_last_fragment_of_an_open_ledger_is_not_checked_for_absent_entries() -> None:
    assert absent(OPEN, "a", [(0, 9)]) == [] and absent(OPEN, "d", []) == []
    assert absent(OPEN, "c", [(0, 8)]) == [(9, 9)]


def test_mark_lists_the_first_ranges() -> None:
    ranges = [(0, 3), (7, 7), (9, 10), (12, 12), (14, 15)]
    mark = mark_of_lacking(7, "a", ranges)
    assert mark == Mark(7, {"a": Reason.LACKS}, "a lacks 0..3, 7, 9..10 and 2 more ranges")


@given(RANGES)
def test_merged_ranges_have_the_same_ids(ranges: list[tuple[int, int]]) -> None:
    result = merged(ranges)
    assert ids(result) == ids(ranges)
    assert all(following[0] > before[1] + 1 for before, following in pairwise(result))


@given(RANGES, RANGES)
def test_confirmed_absence_is_the_intersection_of_two_audits(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    assert ids(confirmed(merged(first), merged(second))) == ids(first) & ids(second)

"""What an auditor marks of one ledger."""

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


def test_a_ledger_that_names_no_lost_bookie_is_not_marked() -> None:
    assert mark_of_lost(CLOSED, {"x"}) is None and mark_of_lost(CLOSED, ()) is None


def test_a_ledger_is_marked_with_all_lost_bookies_that_it_names() -> None:
    found = mark_of_lost(CLOSED, {"c", "d", "x"})
    assert found == Mark(7, {"c": Reason.LOST, "d": Reason.LOST}, "c, d lost")


def test_the_last_fragment_of_an_open_ledger_is_marked_too() -> None:
    """Its writer replaces the bookie if there is one; the worker waits for that."""
    assert mark_of_lost(OPEN, {"d"}) is not None


def test_a_ledger_without_entries_is_marked_too() -> None:
    """There is nothing to copy, but its metadata shall name only bookies that there are."""
    empty = LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("a", "b", "c")),), LedgerState.CLOSED)
    assert mark_of_lost(empty, {"a"}) is not None


def test_a_bookie_that_holds_everything_lacks_nothing() -> None:
    assert absent(CLOSED, "a", [(12, 19), (0, 5), (6, 12)]) == []
    assert absent(CLOSED, "d", [(10, 19)]) == [] and absent(CLOSED, "x", []) == []


def test_what_a_bookie_lacks() -> None:
    assert absent(CLOSED, "a", [(15, 19), (0, 3)]) == [(4, 9), (10, 14)]
    assert absent(CLOSED, "c", []) == [(0, 9)]


def test_the_fragment_that_is_written_to_is_left_alone() -> None:
    assert absent(OPEN, "a", [(0, 9)]) == [] and absent(OPEN, "d", []) == []
    assert absent(OPEN, "c", [(0, 8)]) == [(9, 9)]


def test_a_mark_tells_the_first_ranges() -> None:
    ranges = [(0, 3), (7, 7), (9, 10), (12, 12), (14, 15)]
    mark = mark_of_lacking(7, "a", ranges)
    assert mark == Mark(7, {"a": Reason.LACKS}, "a lacks 0..3, 7, 9..10 and 2 more ranges")


@given(RANGES)
def test_merged_ranges_are_the_same_ids(ranges: list[tuple[int, int]]) -> None:
    result = merged(ranges)
    assert ids(result) == ids(ranges)
    assert all(following[0] > before[1] + 1 for before, following in pairwise(result))


@given(RANGES, RANGES)
def test_confirmed_is_what_was_absent_both_times(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    assert ids(confirmed(merged(first), merged(second))) == ids(first) & ids(second)

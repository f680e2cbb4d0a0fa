"""Decisions of autorecovery and the integrity plan, against simple twins that check every id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.ledger.quorum import write_set
from bookspark.protocol.repair.replication_plan import (
    Copy,
    Patience,
    Piece,
    Repair,
    Unreadable,
    assigned,
    copies,
    few,
    is_unchanged,
    lacks,
    may_fence,
    missing,
    repaired,
    repairs,
    stripe,
    unreadable,
    waits_for_close,
)
from tests.protocol.ledgers import metadata

PIECES = [Piece(0, 1, ("b1",)), Piece(3, 4, ("b2",)), Piece(20, 20, ("b1",)), Piece(22, 29, ("b3",))]
TWO = (Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b1", "b2", "b4")))
OPEN = metadata(fragments=TWO)
CLOSED = metadata(fragments=TWO, state=LedgerState.CLOSED, last_entry_id=9, length=100)


def ids(ranges):
    return [i for first, last in ranges for i in range(first, last + 1)]


class TestAuditor:
    def test_repair_of_each_fragment_replaces_all_its_lost_bookies(self):
        assert list(repairs(CLOSED, {"b3", "b2"})) == [
            Repair(0, 4, ("b1", "b2", "b3"), ("b2", "b3")),
            Repair(5, 9, ("b1", "b2", "b4"), ("b2",)),
        ]

    def test_last_fragment_of_an_open_ledger_waits_for_its_writer(self):
        assert list(repairs(OPEN, {"b1"})) == [Repair(0, 4, ("b1", "b2", "b3"), ("b1",))]
        assert waits_for_close(OPEN, {"b4"})
        assert not waits_for_close(OPEN, {"b3"})
        assert not waits_for_close(CLOSED, {"b4"})

    def test_empty_ledger_is_repaired_without_copies(self):
        """A record that still names a lost bookie would block its decommissioning for ever."""
        empty = metadata(state=LedgerState.CLOSED, last_entry_id=-1, length=0)
        (repair,) = repairs(empty, {"b1"})
        assert list(unreadable(empty, repair)) == []
        assert list(copies(empty, repair, {"b1": "b4"})) == []
        after = repaired(empty, repair, {"b1": "b4"})
        assert after is not None and after.last_fragment.ensemble == ("b4", "b2", "b3")

    def test_copy_is_named_only_in_its_own_fragment(self):
        (repair,) = repairs(CLOSED, {"b3"})
        chosen = {"b3": "b9"}
        assert list(copies(CLOSED, repair, chosen)) == [Copy(0, 4, "b9")]
        changed = repaired(CLOSED, repair, chosen)
        assert changed.fragments == (Fragment(0, ("b1", "b2", "b9")), TWO[1])
        assert (changed.state, changed.last_entry_id) == (LedgerState.CLOSED, 9)

    def test_repair_keeps_a_concurrent_ensemble_change(self):
        (repair,) = repairs(OPEN, {"b3"})
        now = OPEN.with_ensemble(7, ("b1", "b5", "b4"))
        assert repaired(now, repair, {"b3": "b9"}).fragments == (
            Fragment(0, ("b1", "b2", "b9")), TWO[1], Fragment(7, ("b1", "b5", "b4")),
        )  # fmt: skip

    def test_repair_of_a_concurrently_changed_fragment_is_dropped(self):
        (repair,) = repairs(CLOSED, {"b3"})
        assert repaired(CLOSED.re_replicated(0, {"b3": "b8"}), repair, {"b3": "b9"}) is None

    def test_replacement_must_be_outside_the_ensemble(self):
        (repair,) = repairs(CLOSED, {"b3"})
        with pytest.raises(AssertionError):
            list(copies(CLOSED, repair, {"b3": "b1"}))

    def test_entries_without_any_source_are_unreadable(self):
        (repair, _) = repairs(CLOSED, {"b1", "b2", "b3"})
        assert list(unreadable(CLOSED, repair)) == [Unreadable(0, 4, ("b1", "b2", "b3"))]

    def test_striped_ledger_loses_only_some_entries_with_two_bookies(self):
        closed = metadata(e=3, wq=2, aq=2, state=LedgerState.CLOSED, last_entry_id=6, length=70)
        (repair,) = repairs(closed, {"b1", "b2"})
        assert [u.first for u in unreadable(closed, repair)] == [0, 3, 6]


class TestMayFence:
    LOST = frozenset({"b4"})

    def test_fencing_waits_for_the_grace_time(self):
        patience = Patience(30.0, 100.0)
        assert not may_fence(patience, waited_seconds=29.0, silent_seconds=29.0)
        assert may_fence(patience, waited_seconds=30.0, silent_seconds=30.0)

    def test_writer_that_lives_has_longer(self):
        patience = Patience(30.0, 100.0)
        assert not may_fence(patience, waited_seconds=99.0, silent_seconds=29.0)
        assert may_fence(patience, waited_seconds=100.0, silent_seconds=0.0)

    def test_no_fencing_if_the_bookie_is_back(self):
        assert not is_unchanged(OPEN, OPEN, frozenset())

    def test_no_fencing_if_the_writer_changed_its_ensemble(self):
        assert not is_unchanged(OPEN, OPEN.with_ensemble(8, ("b1", "b2", "b5")), self.LOST)
        assert not is_unchanged(OPEN, OPEN.with_ensemble(8, ("b1", "b5", "b4")), self.LOST)

    def test_no_fencing_of_a_closed_ledger(self):
        assert not is_unchanged(OPEN, CLOSED, self.LOST)

    def test_no_fencing_if_a_recovery_just_began(self):
        assert not is_unchanged(OPEN, OPEN.in_recovery(), self.LOST)

    def test_abandoned_recovery_may_be_repeated(self):
        assert is_unchanged(OPEN.in_recovery(), OPEN.in_recovery(), self.LOST)


@pytest.mark.parametrize(("e", "wq"), [(e, wq) for e in range(1, 6) for wq in range(1, e + 1)])
def test_write_set_of_an_entry_comes_from_its_fragment(e, wq):
    first, second = tuple(f"a{i}" for i in range(e)), tuple(f"b{i}" for i in range(e))
    m = metadata(e=e, wq=wq, aq=1, fragments=(Fragment(0, first), Fragment(7, second)))
    for entry_id in range(20):
        ensemble = first if entry_id < 7 else second
        assert m.write_set_of(entry_id) == tuple(ensemble[i] for i in write_set(entry_id, e, wq))


@pytest.mark.parametrize(("e", "wq"), [(e, wq) for e in range(1, 6) for wq in range(1, e + 1)])
def test_stripe_equals_the_write_sets(e, wq):
    shape = metadata(e=e, wq=wq, aq=1)
    for position in range(e):
        for first in range(7):
            for last in range(first - 1, 20):
                expected = [i for i in range(first, last + 1) if position in write_set(i, e, wq)]
                assert ids(stripe(shape, position, first, last)) == expected


class TestIntegrity:
    def test_bookie_lacks_its_assigned_entries_of_any_fragment(self):
        assert list(lacks(CLOSED, "b1", [(2, 3), (8, 20)])) == [Copy(0, 1, "b1"), Copy(4, 4, "b1"), Copy(5, 7, "b1")]
        assert list(lacks(CLOSED, "b4", [])) == [Copy(5, 9, "b4")]
        assert list(lacks(CLOSED, "b7", [])) == []

    def test_open_fragment_is_judged_up_to_the_lac(self):
        assert list(assigned(OPEN, "b4")) == []
        assert list(lacks(OPEN, "b4", [(5, 5)], last_add_confirmed=7)) == [Copy(6, 7, "b4")]
        assert list(lacks(OPEN, "b3", [(0, 3)])) == [Copy(4, 4, "b3")]


ranges = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=8).map(
    lambda steps: [
        (start, start + size)
        for start, size in zip(
            [sum(gap + length + 1 for gap, length in steps[:i]) + steps[i][0] for i in range(len(steps))],
            [length for _, length in steps],
            strict=True,
        )
    ]
)


@given(ranges, ranges)
def test_missing_is_the_set_difference(wanted, held):
    result = list(missing(wanted, held))
    assert ids(result) == sorted(set(ids(wanted)) - set(ids(held)))


@pytest.mark.parametrize(
    ("count_max", "expected"),
    [
        (4, PIECES),
        (3, [*PIECES[:2], Piece(20, 29, ("b1", "b3"))]),
        (2, [Piece(0, 4, ("b1", "b2")), Piece(20, 29, ("b1", "b3"))]),
        (1, [Piece(0, 29, ("b1", "b2", "b3"))]),
    ],
)
def test_nearest_pieces_are_joined_down_to_the_limit(count_max, expected):
    assert few(PIECES, count_max) == expected

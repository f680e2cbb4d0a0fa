"""The sync cursor, against a simple twin that keeps sets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.protocol.ledger.quorum import write_set
from bookspark.protocol.ledger.sync_cursor import Assignment, SyncCursor, assignment

SHAPES = [(e, wq) for e in range(1, 6) for wq in range(1, e + 1)]


def dumb(synced, first, e, wq, position):
    """The highest id up to which every assigned id is synced, checked id by id."""
    entry_id = first
    while entry_id in synced or position not in write_set(entry_id, e, wq):
        entry_id += 1
    return entry_id - 1


@pytest.mark.parametrize(("e", "wq"), SHAPES)
def test_assignment_holds_the_ids_of_its_write_sets(e, wq):
    for position in range(e):
        mine = Assignment(0, e, wq, position)
        assert [i for i in range(30) if mine.holds(i)] == [i for i in range(30) if position in write_set(i, e, wq)]


def test_positions_of_an_unstriped_ledger_share_an_assignment():
    assert assignment(5, 3, 3, 0) == assignment(5, 3, 3, 2) == Assignment(5)
    assert assignment(5, 3, 2, 0) != assignment(5, 3, 2, 2)


def test_cursor_advances_over_ids_synced_in_order():
    cursor = SyncCursor()
    cursor.assign(Assignment(0))
    assert cursor.last_add_synced == -1
    cursor.synced(0, 0)
    cursor.synced(1, 5)
    assert cursor.key() == (Assignment(0), 5, ())


def test_bp14_id_after_a_gap_is_kept_as_a_range():
    cursor = SyncCursor()
    cursor.assign(Assignment(0))
    cursor.synced(2, 3)
    cursor.synced(6, 6)
    assert cursor.key() == (Assignment(0), -1, ((2, 3), (6, 6)))
    cursor.synced(0, 1)
    assert cursor.key() == (Assignment(0), 3, ((6, 6),))


def test_striped_cursor_skips_ids_of_other_bookies():
    cursor = SyncCursor()
    cursor.assign(Assignment(0, 3, 1, 1))
    assert cursor.last_add_synced == 0, "e0 is on position 0"
    cursor.synced(1, 1)
    assert cursor.last_add_synced == 3, "e4 is the next one here"


def test_cursor_of_a_late_bookie_starts_before_its_fragment():
    cursor = SyncCursor()
    cursor.assign(Assignment(7))
    assert cursor.last_add_synced == 6


def test_entries_on_disk_at_boot_count_once_the_assignment_is_known():
    cursor = SyncCursor([(0, 4), (6, 6)])
    cursor.assign(Assignment(0))
    assert cursor.last_add_synced == 4


def test_new_position_resets_the_cursor():
    """Ids of other bookies in the old stripe may belong to this bookie in the new one. The caller must report the synced ids
    again, otherwise entries synced before would never count."""
    cursor = SyncCursor()
    assert not cursor.assign(Assignment(0, 3, 1, 0))
    cursor.synced(0, 0)
    cursor.synced(6, 6)
    assert not cursor.assign(Assignment(1, 3, 1, 0)), "the same stripe in a later fragment"
    assert cursor.assign(Assignment(2, 3, 1, 1))
    assert cursor.last_add_synced == 3
    assert cursor.last_add_synced_for(Assignment(0, 3, 1, 0)) == -1
    assert cursor.last_add_synced_for(Assignment(2, 3, 1, 1)) == 3


def test_late_request_of_an_earlier_stay_changes_nothing():
    cursor = SyncCursor()
    cursor.assign(Assignment(5, 3, 1, 1))
    before = cursor.key()
    assert not cursor.assign(Assignment(0, 3, 1, 0))
    assert cursor.key() == before


runs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)).map(lambda r: (r[0], r[0] + r[1])), max_size=15)


@given(runs, runs, st.sampled_from(SHAPES), st.integers(0, 4), st.lists(st.integers(0, 12), max_size=3))
def test_cursor_equals_its_simple_twin(on_disk, synced, shape, position, firsts):
    e, wq = shape
    position %= e
    cursor = SyncCursor(on_disk)
    ids = {i for a, b in on_disk for i in range(a, b + 1)}
    first = 0
    cursor.assign(Assignment(0, e, wq, position))
    for number, (a, b) in enumerate(synced):
        cursor.synced(a, b)
        ids |= set(range(a, b + 1))
        if number < len(firsts):
            first = max(first, firsts[number])
            cursor.assign(Assignment(firsts[number], e, wq, position))
        assert cursor.last_add_synced == dumb(ids | set(range(first)), first, e, wq, position)
        assert all(one[1] + 1 < two[0] for one, two in pairwise(cursor.ranges))
        copy = cursor.copy()
        assert copy.key() == cursor.key()

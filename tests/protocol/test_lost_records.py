"""Ledger ids that a bookie takes for ledgers whose metadata records are lost."""

from __future__ import annotations

import pytest

from bookspark.protocol.bookie.garbage_collection import sort_suspects
from bookspark.protocol.bookie.lost_records import BEYOND, IDS_MAX, LostRecords, lost_records, skipped_to
from bookspark.protocol.ledger.ledger_metadata import BOOKKEEPERS_LEDGER_ID_MAX, LEDGER_ID_MAX


@pytest.mark.parametrize(
    ("held", "given_out", "expected"),
    [
        ((), -1, None),
        ((0, 7), 7, None),
        ((0,), -1, LostRecords(0, BEYOND)),
        ((3, 9, 9, 8), 7, LostRecords(8, 9 + BEYOND)),
        ((7 + IDS_MAX,), 7, LostRecords(8, 7 + IDS_MAX + BEYOND)),
        ((7 + IDS_MAX + 1,), 7, None),
        ((9, 9_999_999_999), 7, LostRecords(8, 9 + BEYOND)),
        ((BOOKKEEPERS_LEDGER_ID_MAX,), BOOKKEEPERS_LEDGER_ID_MAX - 1, LostRecords(*[BOOKKEEPERS_LEDGER_ID_MAX] * 2)),
    ],
)
def test_held_ids_just_beyond_the_issued_ids_are_lost_unlike_distant_ids(held, given_out, expected):
    assert lost_records(held, given_out) == expected


@pytest.mark.parametrize(
    ("given", "held", "expected"),
    [
        (1_700_000_000, 1_700_000_050, LostRecords(1_700_000_001, 1_700_000_050 + BEYOND)),
        (5_000_000_000, 5_000_000_005, LostRecords(5_000_000_001, 5_000_000_005)),
        (LEDGER_ID_MAX - 1, LEDGER_ID_MAX, LostRecords(LEDGER_ID_MAX, LEDGER_ID_MAX)),
    ],
)
def test_lost_user_given_ids_far_beyond_the_counter_leave_it_unchanged(given, held, expected):
    lost = lost_records([held], given)
    assert lost == expected
    assert skipped_to(lost, 7) is None


def test_impossible_ledger_id_is_not_noted_as_lost():
    assert lost_records([LEDGER_ID_MAX + 1], LEDGER_ID_MAX - 1) is None


def test_counter_skips_nearby_lost_ids_within_its_own_range():
    assert skipped_to(LostRecords(8, 7 + IDS_MAX + BEYOND), 7) == 7 + IDS_MAX + BEYOND
    last = BOOKKEEPERS_LEDGER_ID_MAX
    assert skipped_to(LostRecords(last - 5, last + 5), last - 9) == last
    assert skipped_to(LostRecords(last + 1, last + 5), last - 9) is None


def test_lost_record_of_a_ledger_is_never_requested():
    found = sort_suspects((-5, 3, 4, 6, 7, 9), 8, [LostRecords(4, 6)])
    assert (found.asked, found.not_given_out, found.lost, found.no_ledgers) == ((3, 7), (9,), (4, 6), (-5,))

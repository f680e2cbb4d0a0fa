"""Which ids a bookie takes for those of ledgers whose records are lost."""

from __future__ import annotations

import pytest

from bookspark.protocol.bookie.garbage_collection import sort_suspects
from bookspark.protocol.bookie.lost_records import BEYOND, IDS_MAX, LostRecords, lost_records
from bookspark.protocol.ledger.ledger_metadata import BOOKKEEPERS_LEDGER_ID_MAX


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
def test_what_is_held_beyond_what_was_given_out_is_lost_and_a_far_id_is_not(held, given_out, expected):
    assert lost_records(held, given_out) == expected


def test_a_ledger_whose_record_is_lost_is_never_asked_for():
    found = sort_suspects((-5, 3, 4, 6, 7, 9), 8, [LostRecords(4, 6)])
    assert (found.asked, found.not_given_out, found.lost, found.no_ledgers) == ((3, 7), (9,), (4, 6), (-5,))

"""Failures of BookKeeper's writers, as steps of the machines here (docs/befell.md)."""

from __future__ import annotations

import pytest

from bookspark.protocol.ledger.ledger_metadata import Fragment
from tests.protocol.ledger_pair import LedgerPair


def copies_where_the_metadata_says(pair: LedgerPair) -> list[int]:
    """For each confirmed entry: the number of bookies that hold it, of the write set in the metadata."""
    found = []
    for entry_id in range(pair.writer.confirmed + 1):
        ensemble = [f for f in pair.metadata.fragments if f.first_entry_id <= entry_id][-1].ensemble
        write_set = [ensemble[(entry_id + i) % len(ensemble)] for i in range(pair.metadata.write_quorum)]
        found.append(sum(entry_id in pair.bookies(bookie).entries for bookie in write_set))
    return found


@pytest.mark.parametrize("acks_come", ["before bookies are chosen", "before the write", "after the write"])
def test_4651_entries_acknowledged_during_a_change_are_on_the_new_bookies(acks_come):
    """BookKeeper #4651: entries 5 and 6 of a 2/2/1 ledger were pending when both bookies failed at entry 7. The change
    replaced both from entry 5 on. While it was being written, the old bookies acknowledged 5 and 6, and the writer took them for
    complete: the metadata named two bookies that never got them."""
    pair = LedgerPair(e=2, wq=2, aq=1)
    pair.appended(5)
    pair.append(3)
    writer = pair.writer
    writer.refuses("b1", 7)
    writer.refuses("b2", 7)

    def old_bookies_acknowledge():
        writer.answers("b1", 5, 6)
        writer.answers("b2", 5, 6)
        assert writer.confirmed == 4

    if acks_come == "before bookies are chosen":
        old_bookies_acknowledge()
    writer.chooses("b3")  # requested before b2 failed too
    writer.chooses("b3", "b4")
    if acks_come == "before the write":
        old_bookies_acknowledge()
    writer.writes()
    if acks_come == "after the write":
        old_bookies_acknowledge()
    assert pair.metadata.fragments == (Fragment(0, ("b1", "b2")), Fragment(5, ("b3", "b4")))
    writer.all_answer()
    assert writer.confirmed == 7
    assert copies_where_the_metadata_says(pair) == [2] * 8


def test_4194_complete_entries_behind_an_incomplete_one_are_resent_after_a_striped_change():
    """BookKeeper #4194: on a striped ledger, entries 1 and 2 had their acks and waited for entry 0. Then b3, which has both,
    failed at entry 5 and was replaced from entry 0 on. Meanwhile b1 acknowledged entry 0, and all three were reported as
    complete. In b3's place the metadata names a bookie that has neither 1 nor 2."""
    pair = LedgerPair(e=4, wq=2, aq=2)
    writer = pair.writer
    pair.append(4)
    for bookie, entry_ids in (("b2", (0, 1)), ("b3", (1, 2)), ("b4", (2, 3))):
        writer.answers(bookie, *entry_ids)
    pair.append(3)
    writer.refuses("b3", 5)
    writer.chooses("b5")
    writer.answers("b1", 0, 3)
    assert writer.confirmed == -1, "nothing is told as done while a change is under way"
    writer.writes()
    assert pair.metadata.fragments == (Fragment(0, ("b1", "b2", "b5", "b4")),)
    assert writer.waits_for("b5") == [1, 2, 5, 6], "what b3 had acknowledged too"
    assert writer.confirmed == 0
    writer.all_answer()
    assert writer.confirmed == 6
    assert min(copies_where_the_metadata_says(pair)) >= 2

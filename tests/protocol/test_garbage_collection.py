"""Ledgers that a bookie may collect, and the mark it keeps of collected ids."""

from __future__ import annotations

import pytest

from bookspark.protocol.bookie.bookie_boot import NO_LOSSY_BOOT, LossyBootNoted, answer_unsure, first_contact
from bookspark.protocol.bookie.bookie_ledger import FENCE_UNSURE
from bookspark.protocol.bookie.garbage_collection import (
    NOTHING_COLLECTED,
    CollectionNoted,
    Complete,
    Incomplete,
    collectable,
    note_collection,
    sort_suspects,
    suspects,
)
from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
from bookspark.protocol.ledger.responses import FENCED, Negative, NegativeReason, Positive, Unknown, UnknownReason
from tests.protocol.ledgers import metadata

GONE = Negative(NegativeReason.NO_SUCH_LEDGER)


class TestSuspects:
    def test_held_ledgers_missing_from_the_listing_are_suspects(self):
        assert suspects([5, 1, 3, 5], Complete({3, 4})) == (1, 5)

    def test_failed_or_partial_listing_has_no_suspects(self):
        assert suspects({1, 2}, Incomplete("no answer for /ledgers/00/0001")) == ()

    def test_suspects_of_an_empty_listing_need_a_second_look_too(self):
        """#870: BookKeeper handled an empty listing separately, without the second look."""
        assert collectable(suspects({1}, Complete(set())), {}) == ()

    def test_ledger_created_after_the_listing_began_is_no_suspect(self):
        held_before = {1}
        listing = Complete({1})
        held_now = {1, 2}
        assert suspects(held_before, listing) == ()
        assert suspects(held_now, listing) == (2,), "which is why it has to be noted before"


class TestSortSuspects:
    def test_suspects_are_sorted_into_issued_unissued_and_impossible_ids(self):
        found = sort_suspects((-5, 0, 7, 8, LEDGER_ID_MAX, LEDGER_ID_MAX + 1, 1 << 62), 7)
        assert found == ((0, 7), (8, LEDGER_ID_MAX), (), (-5, LEDGER_ID_MAX + 1, 1 << 62))

    def test_store_that_issued_no_id_has_only_unissued_suspects(self):
        assert sort_suspects((0,), -1) == ((), (0,), (), ())


class TestCollectable:
    def test_ledger_is_collectable_after_an_explicit_no_such_ledger(self):
        assert collectable([1, 2], {1: GONE, 2: Positive()}) == (1,)

    @pytest.mark.parametrize(
        "answer", [Positive(), Negative(NegativeReason.NO_SUCH_ENTRY), *map(Unknown, UnknownReason)], ids=str
    )
    def test_ledger_is_not_collectable_after_any_other_answer(self, answer):
        assert collectable([1], {1: answer}) == ()

    def test_ledger_is_not_collectable_without_an_answer(self):
        assert collectable([1], {}) == ()


class TestCollectionNote:
    def test_note_keeps_the_highest_collected_id(self):
        assert note_collection(CollectionNoted(4), (2, 9, 7)) == CollectionNoted(9)
        assert note_collection(CollectionNoted(4), (2,)) == CollectionNoted(4)
        assert note_collection(NOTHING_COLLECTED, ()) == NOTHING_COLLECTED

    def test_old_writers_add_to_a_collected_ledger_asks_metadata_and_is_refused(self):
        again = first_contact(7, NO_LOSSY_BOOT, CollectionNoted(9))
        decision = again.admit_add(b"key", recovery=False)
        assert (decision.response, decision.ask_metadata) == (FENCE_UNSURE, True)
        assert answer_unsure("b1", None) == FENCED

    def test_metadata_admits_adds_to_an_open_ledger_the_bookie_joins_late(self):
        ledger = first_contact(7, NO_LOSSY_BOOT, CollectionNoted(9))
        assert answer_unsure("b1", metadata(3, 3, 2)) == Positive()
        ledger.fence_is_sure()
        assert ledger.admit_add(b"key", recovery=False).response == Positive()

    def test_new_ledger_needs_no_metadata_read(self):
        assert not first_contact(10, NO_LOSSY_BOOT, CollectionNoted(9)).fence_unsure

    def test_higher_of_collection_note_and_lossy_boot_note_holds(self):
        assert first_contact(7, LossyBootNoted(1, 8), CollectionNoted(3)).fence_unsure
        assert first_contact(7, LossyBootNoted(1, 3), CollectionNoted(8)).fence_unsure

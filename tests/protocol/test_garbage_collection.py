"""Which ledgers a bookie may throw away, and what it remembers of them."""

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
    def test_what_is_held_and_not_listed(self):
        assert suspects([5, 1, 3, 5], Complete({3, 4})) == (1, 5)

    def test_a_failed_or_partial_listing_has_none(self):
        assert suspects({1, 2}, Incomplete("no answer for /ledgers/00/0001")) == ()

    def test_an_empty_listing_is_one_like_any_other(self):
        """#870: BookKeeper had a case of its own for it, without the second look."""
        assert collectable(suspects({1}, Complete(set())), {}) == ()

    def test_a_ledger_that_came_after_the_listing_began_was_not_held_then(self):
        held_before = {1}
        listing = Complete({1})
        held_now = {1, 2}
        assert suspects(held_before, listing) == ()
        assert suspects(held_now, listing) == (2,), "which is why it has to be noted before"


class TestWhatCanBeSaid:
    def test_of_what_was_given_out_of_what_was_not_and_of_what_can_not_be(self):
        found = sort_suspects((-5, 0, 7, 8, LEDGER_ID_MAX, LEDGER_ID_MAX + 1, 1 << 62), 7)
        assert found == ((0, 7), (8, LEDGER_ID_MAX), (), (-5, LEDGER_ID_MAX + 1, 1 << 62))

    def test_of_a_store_that_gave_out_nothing(self):
        assert sort_suspects((0,), -1) == ((), (0,), (), ())


class TestCollectable:
    def test_an_explicit_no_such_ledger(self):
        assert collectable([1, 2], {1: GONE, 2: Positive()}) == (1,)

    @pytest.mark.parametrize(
        "answer", [Positive(), Negative(NegativeReason.NO_SUCH_ENTRY), *map(Unknown, UnknownReason)], ids=str
    )
    def test_nothing_else_will_do(self, answer):
        assert collectable([1], {1: answer}) == ()

    def test_nor_will_silence(self):
        assert collectable([1], {}) == ()


class TestWhatIsRemembered:
    def test_the_highest_id(self):
        assert note_collection(CollectionNoted(4), (2, 9, 7)) == CollectionNoted(9)
        assert note_collection(CollectionNoted(4), (2,)) == CollectionNoted(4)
        assert note_collection(NOTHING_COLLECTED, ()) == NOTHING_COLLECTED

    def test_the_old_writers_add_to_a_collected_ledger_asks_the_metadata_and_is_refused(self):
        again = first_contact(7, NO_LOSSY_BOOT, CollectionNoted(9))
        decision = again.admit_add(b"key", recovery=False)
        assert (decision.response, decision.ask_metadata) == (FENCE_UNSURE, True)
        assert answer_unsure("b1", None) == FENCED

    def test_an_open_ledger_that_the_bookie_joins_late_is_let_in_by_its_metadata(self):
        ledger = first_contact(7, NO_LOSSY_BOOT, CollectionNoted(9))
        assert answer_unsure("b1", metadata(3, 3, 2)) == Positive()
        ledger.fence_is_sure()
        assert ledger.admit_add(b"key", recovery=False).response == Positive()

    def test_a_new_ledger_pays_nothing(self):
        assert not first_contact(10, NO_LOSSY_BOOT, CollectionNoted(9)).fence_unsure

    def test_the_higher_one_of_it_and_the_lossy_boot_mark_holds(self):
        assert first_contact(7, LossyBootNoted(1, 8), CollectionNoted(3)).fence_unsure
        assert first_contact(7, LossyBootNoted(1, 3), CollectionNoted(8)).fence_unsure

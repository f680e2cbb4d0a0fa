"""Ensemble changes of a writer: when they begin, their metadata write, and appends meanwhile."""

from __future__ import annotations

import tracemalloc

import pytest

from bookspark.errors import (
    AddTimeoutError,
    LedgerFencedError,
    MetadataStoreError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    RecordFullError,
)
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    ChooseBookies,
    DeadlinePassed,
    EnsembleChanged,
    Fail,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadMetadata,
    RecordFull,
    SendAdd,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState, Replication
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.ledger.transitions import IllegalEventError
from bookspark.protocol.writing.ensemble_change import ChangeMode, EnsembleChanges
from bookspark.protocol.writing.writer import (
    Append,
    BookieBack,
    BookiesChanged,
    BookiesLost,
    Close,
    HeldUp,
    LedgerWriter,
    State,
)
from tests.protocol.ledger_pair import LedgerPair
from tests.protocol.ledgers import LOST, OK, metadata


def failing(mode=ChangeMode.AT_ONCE, **quorums):
    """A writer after a failure of b3: e0 is confirmed, e1 pending and acknowledged by b1."""
    pair = LedgerPair(changes=mode, **quorums)
    pair.appended()
    pair.append()
    pair.writer.answers("b1", 1)
    pair.writer.refuses("b3", 1)
    return pair


def test_mode_off_leaves_the_ensemble_unchanged():
    pair = failing(ChangeMode.OFF)
    assert pair.writer.wanted == []
    pair.writer.answers("b2", 1)
    assert pair.writer.confirmed == 1


def test_failed_bookie_is_replaced_in_its_position_from_the_first_unconfirmed_entry():
    pair = failing()
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]
    pair.writer.chooses("b4")
    changed = metadata(fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(1, ("b1", "b2", "b4"))))
    assert pair.writer.wanted == [WriteMetadata(changed, 0)]
    pair.writer.writes()
    assert pair.writer.told[-1] == EnsembleChanged(changed, 1)
    assert pair.writer.waits_for("b4") == [1]


def test_fragment_without_confirmed_entries_gets_the_new_ensemble():
    pair = LedgerPair()
    pair.append()
    pair.writer.refuses("b1", 0)
    pair.change_ensemble("b4")
    assert pair.metadata.fragments == (Fragment(0, ("b4", "b2", "b3")),)


def test_no_append_completes_during_a_change():
    pair = failing()
    pair.writer.answers("b2", 1)
    assert pair.writer.confirmed == 0
    pair.writer.chooses("b4")
    assert pair.writer.confirmed == 0
    pair.writer.writes()
    assert pair.writer.confirmed == 1


def test_acks_of_a_replaced_bookie_are_taken_back():
    pair = LedgerPair()
    pair.append(2)
    pair.writer.answers("b3", 1)
    pair.writer.refuses("b3", 0)
    pair.writer.answers("b1", 0)
    pair.writer.answers("b1", 1)
    pair.writer.answers("b2", 0)
    pair.change_ensemble("b4")
    assert pair.writer.confirmed == 0, "e1 has b1 alone: what b3 has does not count"
    pair.writer.answers("b4", 1)
    assert pair.writer.confirmed == 1


def test_late_ack_of_a_replaced_bookie_does_not_count():
    pair = LedgerPair()
    pair.append(2)
    pair.writer.parks("b3", 1)
    pair.writer.refuses("b3", 0)
    pair.change_ensemble("b4")
    pair.writer.answers("b1", 1)
    pair.writer.releases("b3", 1)
    pair.writer.answers("b1", 0)
    pair.writer.answers("b2", 0)
    assert pair.writer.confirmed == 0


def test_late_refusal_of_a_replaced_bookie_starts_no_change():
    pair = LedgerPair()
    pair.append(2)
    pair.writer.refuses("b3", 0)
    pair.change_ensemble("b4")
    pair.writer.step(AddAnswered("b3", 1, 1, Unknown(UnknownReason.IO_ERROR)))
    assert pair.writer.wanted == []


def test_many_failures_make_a_single_metadata_write():
    pair = LedgerPair(e=5, wq=3, aq=2)
    pair.append(5)
    pair.writer.refuses("b1", 0)
    pair.writer.refuses("b2", 0)
    pair.writer.refuses("b1", 3)
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3", "b4", "b5"), ("b1",))]
    pair.writer.chooses("b6")
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3", "b4", "b5"), ("b1", "b2"))]
    pair.change_ensemble("b6", "b7")
    assert pair.store == (pair.metadata, 1)
    assert pair.ensemble == ("b6", "b7", "b3", "b4", "b5")


def test_failure_during_the_metadata_write_starts_the_next_change():
    pair = failing()
    pair.writer.answers("b2", 1)
    pair.writer.chooses("b4")
    pair.append()
    pair.writer.refuses("b2", 2)
    pair.writer.writes()
    assert pair.writer.confirmed == 0, "the next change follows at once: still nothing completes"
    pair.change_ensemble("b5")
    pair.writer.answers("b5", 1)
    assert pair.writer.confirmed == 1
    assert pair.metadata.fragments == (Fragment(0, ("b1", "b2", "b3")), Fragment(1, ("b1", "b5", "b4")))


def test_failure_during_a_change_counts_even_if_the_bookie_acknowledges_again():
    pair = LedgerPair()
    pair.append(2)
    for bookie in ("b1", "b3"):
        pair.writer.answers(bookie, 0)
    pair.writer.refuses("b3", 1)
    pair.writer.chooses("b4")
    pair.writer.refuses("b2", 0)
    pair.writer.answers("b2", 1)
    pair.writer.writes()
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b4"), ("b2",))]


def test_bookie_that_failed_on_a_confirmed_entry_is_replaced_for_later_entries():
    pair = LedgerPair()
    pair.append()
    pair.writer.answers("b1", 0)
    pair.writer.answers("b2", 0)
    pair.writer.refuses("b3", 0)
    pair.change_ensemble("b4")
    assert pair.metadata.last_fragment == Fragment(1, ("b1", "b2", "b4"))


def test_appends_during_a_change_are_not_sent_to_the_leaving_bookie():
    pair = failing()
    pair.append()
    assert pair.writer.waits_for("b3") == []
    pair.change_ensemble("b4")
    assert pair.writer.waits_for("b4") == [1, 2]


def test_only_striped_entries_of_the_replaced_position_are_sent_again():
    pair = LedgerPair(e=4, wq=2, aq=2)
    pair.append(4)
    for bookie, entry in (("b1", 0), ("b2", 1), ("b3", 2), ("b4", 2), ("b4", 3), ("b1", 3)):
        pair.writer.answers(bookie, entry)
    pair.writer.refuses("b2", 0)
    pair.change_ensemble("b5")
    assert pair.writer.waits_for("b5") == [0, 1]
    pair.writer.all_answer()
    assert pair.writer.confirmed == 3


def test_busy_bookie_has_not_failed():
    pair = LedgerPair()
    pair.append()
    pair.writer.refuses("b3", 0, response=Unknown(UnknownReason.TOO_MANY_REQUESTS))
    assert pair.writer.wanted == []


class TestDelayed:
    def test_failed_bookie_stays_while_every_write_set_has_an_ack_quorum(self):
        pair = failing(ChangeMode.DELAYED)
        assert pair.writer.wanted == []
        pair.writer.answers("b2", 1)
        assert pair.writer.confirmed == 1

    def test_all_failed_bookies_are_replaced_once_a_write_set_lacks_an_ack_quorum(self):
        pair = failing(ChangeMode.DELAYED)
        pair.writer.refuses("b2", 1)
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b2", "b3"))]

    def test_read_only_bookie_is_replaced_at_once_with_all_failed_bookies(self):
        pair = LedgerPair(changes=ChangeMode.DELAYED, e=5, wq=5, aq=2)
        pair.append()
        pair.writer.refuses("b2", 0)
        assert pair.writer.wanted == []
        pair.writer.refuses("b4", 0, response=Unknown(UnknownReason.READ_ONLY))
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3", "b4", "b5"), ("b2", "b4"))]

    def test_returned_bookie_that_was_read_only_delays_changes_again(self):
        pair = LedgerPair(changes=ChangeMode.DELAYED, e=5, wq=5, aq=2)
        pair.append()
        pair.writer.refuses("b4", 0, response=Unknown(UnknownReason.READ_ONLY))
        pair.writer.step(NoBookies(NotEnoughBookiesError("none")))
        pair.writer.step(BookieBack("b4"))
        pair.writer.refuses("b2", 0)
        pair.writer.step(BookiesChanged())
        assert pair.writer.wanted[1:] == []

    def test_acknowledging_bookie_no_longer_counts_as_failed(self):
        pair = failing(ChangeMode.DELAYED)
        pair.writer.answers("b2", 1)
        for _ in range(2):
            pair.append()
            pair.writer.all_answer()
        pair.append()
        pair.writer.refuses("b2", 4)
        assert pair.writer.wanted == []

    def test_reconnected_bookie_no_longer_counts_as_failed(self):
        pair = failing(ChangeMode.DELAYED)
        pair.writer.step(BookieBack("b3"))
        assert pair.writer.waits_for("b3") == [1]
        pair.writer.refuses("b2", 1)
        assert pair.writer.wanted == []


class TestConflict:
    """Another client changed the metadata before the change was written."""

    @pytest.fixture
    def writer(self):
        """e0 to e4 are confirmed on two fragments, b2 failed on e5, and the metadata write conflicted."""
        found = metadata(fragments=(Fragment(0, ("b1", "b2", "b9")), Fragment(3, ("b1", "b2", "b3"))))
        writer = LedgerWriter(found, 4, ChangeMode.AT_ONCE)
        cursors = writer.cursors
        cursors.last_add_confirmed = cursors.last_add_pushed = cursors.released = 4
        writer.step(Append(1, 10))
        writer.step(AddAnswered("b2", 5, 5, LOST))
        (write,) = writer.step(BookiesChosen(("b4",)))
        assert write.version == 4
        assert writer.step(MetadataConflict()) == [ReadMetadata()]
        return writer

    def test_re_replication_of_an_older_fragment_is_merged(self, writer):
        found = metadata(fragments=(Fragment(0, ("b1", "b2", "b8")), Fragment(3, ("b1", "b2", "b3"))))
        (write,) = writer.step(MetadataRead(found, 7))
        assert write == WriteMetadata(found.with_ensemble(5, ("b1", "b4", "b3")), 7)
        changed, send = writer.step(MetadataWritten(8))
        assert changed == EnsembleChanged(write.metadata, 8)
        assert send == SendAdd(("b4",), 5, 5, 4)

    def test_own_write_is_recognized_after_a_lost_answer(self, writer):
        found = writer.metadata.with_ensemble(5, ("b1", "b4", "b3"))
        changed, _ = writer.step(MetadataRead(found, 5))
        assert changed == EnsembleChanged(found, 5)

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: m.in_recovery(),
            lambda m: m.close_at(4, 50),
            lambda m: m.with_ensemble(5, ("b1", "b7", "b3")),
        ],
        ids=["IN_RECOVERY", "CLOSED", "another writer"],
    )
    def test_any_other_metadata_fences_the_writer(self, writer, change):
        (fail,) = writer.step(MetadataRead(change(writer.metadata), 7))
        assert isinstance(fail.error, LedgerFencedError)
        assert writer.state is State.FAILED


class TestRecordWithoutRoom:
    """BookKeeper #611: the number of ensemble changes has no bound, and the record of a ledger has."""

    FULL = RecordFullError("the record of ledger 7 has no room")

    def full(self, pair, *chosen):
        pair.writer.chooses(*chosen)
        assert isinstance(pair.writer.wanted.pop(0), WriteMetadata)
        pair.writer.step(RecordFull(self.FULL))

    def test_ledger_goes_on_with_its_ensemble_if_an_ack_quorum_works(self):
        pair = failing()
        pair.writer.answers("b2", 1)
        self.full(pair, "b4")
        assert pair.writer.wanted == [] and pair.writer.confirmed == 1
        pair.append()
        assert pair.writer.waits_for("b3") == [2] and pair.writer.waits_for("b4") == []
        pair.writer.step(Close())
        pair.writer.all_answer("b3")
        pair.writer.writes()
        assert (pair.metadata.state, pair.metadata.last_entry_id) == (LedgerState.CLOSED, 2)
        assert len(pair.metadata.fragments) == 1 and pair.writer.error is None

    def test_ledger_without_an_ack_quorum_is_closed_and_the_error_says_why(self):
        pair = failing()
        pair.writer.refuses("b2", 1)
        pair.writer.chooses("b4")
        self.full(pair, "b4", "b5")
        assert pair.writer.error is None, "the user is told once the ledger is closed"
        pair.writer.writes()
        assert pair.writer.error is self.FULL
        assert (pair.metadata.state, pair.metadata.last_entry_id) == (LedgerState.CLOSED, 0)

    def test_guaranteed_ledger_waits_for_its_bookie_and_says_why(self):
        pair = failing(guaranteed=True)
        self.full(pair, "b4")
        assert pair.writer.wanted == [] and pair.writer.error is None
        pair.writer.step(DeadlinePassed())
        assert isinstance(pair.writer.error, AddTimeoutError) and str(self.FULL) in str(pair.writer.error)


class TestNoBookies:
    def test_ledger_continues_with_an_ack_quorum(self):
        pair = failing()
        pair.append()
        pair.writer.answers("b2", 1)
        pair.writer.chooses()
        assert pair.writer.confirmed == 1
        assert pair.writer.wanted == []
        assert pair.writer.waits_for("b3") == [2], "it is still a member"

    def test_change_is_retried_when_bookies_may_be_available(self):
        pair = failing()
        pair.writer.chooses()
        pair.writer.refuses("b3", 1)
        assert pair.writer.wanted == [], "not at each failure"
        pair.writer.step(BookiesChanged())
        pair.change_ensemble("b4")
        assert pair.ensemble == ("b1", "b2", "b4")

    def test_news_of_bookies_during_the_choice_is_not_lost(self):
        """The choice was made from a list read before the spare appeared."""
        pair = failing()
        pair.writer.step(BookiesChanged())
        pair.writer.chooses()
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]
        pair.writer.chooses()
        assert pair.writer.wanted == [], "but then there are none"

    def test_another_failure_starts_a_new_choice(self):
        pair = failing()
        pair.writer.chooses()
        pair.writer.refuses("b2", 1)
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b2", "b3"))]

    def test_ledger_without_an_ack_quorum_is_closed_at_the_last_confirmed_entry(self):
        pair = failing()
        pair.writer.refuses("b2", 1)
        pair.writer.chooses("b4")
        pair.writer.chooses()
        assert pair.writer.error is None, "the user is told once the ledger is closed"
        pair.writer.writes()
        assert isinstance(pair.writer.error, NotEnoughBookiesError)
        assert (pair.metadata.state, pair.metadata.last_entry_id) == (LedgerState.CLOSED, 0)
        assert pair.writer.machine.state is State.FAILED

    def test_timed_out_close_reports_why_the_ledger_was_given_up(self):
        pair = failing()
        pair.writer.refuses("b2", 1)
        pair.writer.chooses("b4")
        pair.writer.chooses()
        assert pair.writer.machine.state is State.WRITING
        (action,) = pair.writer.machine.step(DeadlinePassed())
        assert isinstance(action, Fail) and isinstance(action.error, NotEnoughBookiesError)

    def test_bookie_that_returned_during_the_choice_stays_if_there_is_no_spare(self):
        pair = failing()
        pair.writer.refuses("b2", 1)
        pair.writer.chooses("b4")
        pair.writer.step(BookieBack("b2"))
        assert pair.writer.waits_for("b2") == []
        pair.writer.chooses()
        assert pair.writer.waits_for("b2") == [1]
        pair.writer.answers("b2", 1)
        assert pair.writer.confirmed == 1

    def test_kept_bookie_that_acknowledges_again_has_not_failed(self):
        """It counted as failed for good after a missed deadline: when another bookie failed, hours and thousands of entries
        later, the ledger was closed although two of three bookies served."""
        pair = failing()
        pair.writer.chooses()
        pair.writer.answers("b2", 1)
        for _ in range(2):
            pair.append()
            pair.writer.all_answer()
        pair.append()
        pair.writer.refuses("b1", 4)
        pair.writer.chooses()
        assert pair.writer.wanted == [] and pair.writer.machine.state is State.OPEN
        pair.writer.answers("b2", 4)
        pair.writer.answers("b3", 4)
        assert pair.writer.confirmed == 4

    def test_kept_bookie_counts_as_failed_while_its_missed_entry_is_pending(self):
        """The missed entry is not sent again: without it too few copies are possible."""
        pair = failing()
        pair.append()
        pair.writer.chooses()
        pair.writer.refuses("b3", 1)
        pair.writer.answers("b3", 2)
        pair.writer.refuses("b2", 1)
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b2", "b3"))]

    def test_writer_that_gives_up_is_fenced_by_a_faster_recovery(self):
        pair = failing()
        pair.writer.refuses("b2", 1)
        pair.writer.chooses("b4")
        pair.writer.chooses()
        assert pair.recover("b2").closed.last_entry_id == 1, "e1 is on b1, so recovery keeps it"
        pair.writer.writes()
        pair.writer.reads_metadata()
        assert isinstance(pair.writer.error, LedgerFencedError)


class TestClose:
    def test_close_waits_for_the_running_change(self):
        pair = failing()
        pair.writer.answers("b2", 1)
        pair.writer.step(Close())
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]
        pair.change_ensemble("b4")
        pair.writer.writes()
        assert pair.writer.closed.last_entry_id == 1
        assert pair.metadata.fragments == (Fragment(0, ("b1", "b2", "b3")), Fragment(1, ("b1", "b2", "b4")))

    def test_close_follows_a_change_without_pending_appends(self):
        pair = LedgerPair()
        pair.append()
        pair.writer.answers("b1", 0)
        pair.writer.answers("b2", 0)
        pair.writer.refuses("b3", 0)
        pair.writer.step(Close())
        pair.change_ensemble("b4")
        pair.writer.writes()
        assert pair.writer.closed.last_entry_id == 0

    def test_closing_ledger_without_pending_adds_starts_no_change(self):
        pair = LedgerPair()
        pair.append()
        pair.writer.answers("b1", 0)
        pair.writer.answers("b2", 0)
        pair.writer.step(Close())
        pair.writer.refuses("b3", 0)
        assert pair.writer.wanted == [WriteMetadata(metadata(state=LedgerState.CLOSED, last_entry_id=0, length=10), 0)]


def test_fence_ends_a_change():
    pair = failing()
    pair.writer.chooses("b4")
    pair.writer.refuses("b2", 1, response=Unknown(UnknownReason.FENCED))
    assert isinstance(pair.writer.error, LedgerFencedError)
    pair.writer.writes()
    assert len(pair.writer.told) == 2, "the answer to the metadata write changes nothing any more"


class TestStoreOutage:
    """The metadata store does not answer the write of the change, so its outcome is unknown."""

    def unanswered(self, written):
        pair = failing()
        pair.writer.answers("b2", 1)
        pair.writer.chooses("b4")
        write = pair.writer.wanted.pop()
        if written:
            pair.store = (write.metadata, 1)
        pair.writer.step(MetadataFailed(MetadataStoreError("no answer")))
        pair.writer.step(MetadataFailed(MetadataStoreError("still none")))
        assert pair.writer.confirmed == 0, "meanwhile nothing completes"
        pair.writer.wanted = pair.writer.wanted[:1]
        pair.writer.reads_metadata()
        return pair

    def test_change_completes_if_its_unanswered_write_took_effect(self):
        assert self.unanswered(written=True).writer.confirmed == 1

    def test_change_is_written_again_if_its_unanswered_write_was_lost(self):
        pair = self.unanswered(written=False)
        pair.writer.writes()
        assert pair.writer.confirmed == 1

    def test_deleted_ledger_ends_the_writer(self):
        pair = failing()
        pair.writer.chooses("b4")
        pair.writer.step(MetadataFailed(NoSuchLedgerError("deleted")))
        assert isinstance(pair.writer.error, NoSuchLedgerError)


@pytest.mark.parametrize("lost", [("b3",), ("b1", "b2")])
def test_choice_is_repeated_if_the_metadata_store_does_not_answer(lost):
    """The failure was taken for "there are no bookies", and without a quorum the ledger was closed."""
    pair = LedgerPair()
    pair.append()
    for bookie in lost:
        pair.writer.refuses(bookie, 0)
    for _ in range(2):
        asked = pair.writer.wanted.pop()
        pair.writer.wanted.clear()
        pair.writer.step(MetadataFailed(MetadataStoreError("no answer")))
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), lost)]
        assert isinstance(asked, ChooseBookies) and pair.writer.error is None
    pair.change_ensemble(*("b4", "b5")[: len(lost)])
    pair.writer.all_answer()
    assert pair.writer.confirmed == 0


def test_placement_may_not_choose_a_member():
    writer = LedgerWriter(metadata(), 0, ChangeMode.AT_ONCE)
    writer.step(Append(1, 10))
    writer.step(AddAnswered("b3", 0, 0, LOST))
    with pytest.raises(IllegalEventError, match="outside the ensemble"):
        writer.step(BookiesChosen(("b1",)))


def test_runs_of_entries_are_sent_again_whole():
    writer = LedgerWriter(metadata(), 0, ChangeMode.AT_ONCE)
    writer.step(Append(10, 100))
    writer.step(AddAnswered("b1", 0, 9, OK))
    writer.step(AddAnswered("b3", 0, 9, LOST))
    writer.step(BookiesChosen(("b4",)))
    assert writer.step(MetadataWritten(1))[1:] == [SendAdd(("b4",), 0, 9, -1)]


def test_chosen_bookies_are_ignored_after_the_end():
    pair = failing()
    pair.writer.refuses("b2", 1, response=Unknown(UnknownReason.FENCED))
    assert pair.writer.machine.step(NoBookies(NotEnoughBookiesError("x"))) == []
    assert pair.writer.machine.step(BookiesChosen(("b4",))) == []


# -- lost bookies, and a writer with nothing to write


@pytest.mark.parametrize("mode", [ChangeMode.AT_ONCE, ChangeMode.DELAYED])
@pytest.mark.parametrize("entries", [0, 2])
def test_writer_without_appends_replaces_a_lost_bookie(mode, entries):
    """Autorecovery fenced such writers after the grace time: only an append noticed a dead bookie."""
    pair = LedgerPair(changes=mode)
    for entry_id in range(entries):
        pair.append()
        for bookie in ("b1", "b2", "b3"):
            pair.writer.answers(bookie, entry_id)
    pair.writer.step(BookiesLost(("b2", "b9")))
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b2",))]
    pair.writer.chooses("b4")
    pair.writer.writes()
    assert pair.writer.machine.metadata.last_fragment == Fragment(entries, ("b1", "b4", "b3"))
    pair.append()
    assert pair.writer.waits_for("b4")[-1] == entries


def test_writer_without_appends_waits_for_bookies_and_does_not_give_up():
    """Two of three bookies are lost and there are no others: it is closed only if an append needs them."""
    pair = LedgerPair(changes=ChangeMode.AT_ONCE)
    pair.writer.step(BookiesLost(("b1", "b2")))
    pair.writer.chooses()
    assert pair.writer.machine.state is State.OPEN
    assert pair.writer.wanted == []
    pair.writer.step(BookiesChanged())
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b1", "b2"))]
    pair.writer.chooses("b4", "b5")
    pair.writer.writes()
    pair.append()
    for bookie in ("b4", "b5"):
        pair.writer.answers(bookie, 0)
    assert pair.writer.confirmed == 0


def test_lost_bookie_without_a_replacement_stays_and_counts_again_once_it_is_back():
    pair = LedgerPair(changes=ChangeMode.AT_ONCE)
    pair.writer.step(BookiesLost(("b1", "b2")))
    pair.writer.chooses()
    for bookie in ("b1", "b2"):
        pair.writer.step(BookieBack(bookie))
    pair.append()
    for bookie in ("b1", "b2"):
        pair.writer.answers(bookie, 0)
    assert pair.writer.confirmed == 0
    assert pair.writer.wanted == []


# -- a bookie much slower than the others


def held_up(*bookies, **quorums):
    """A writer held up by ``bookies``; e0 is pending and acknowledged by b3."""
    pair = LedgerPair(changes=ChangeMode.AT_ONCE, **quorums)
    pair.append()
    pair.writer.answers("b3", 0)
    pair.writer.step(HeldUp(bookies))
    return pair


def test_bookie_that_holds_up_the_writer_is_replaced_by_a_sound_bookie():
    pair = held_up("b1")
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b1",), sound_only=True)]
    pair.writer.chooses("b4")
    pair.writer.writes()
    pair.writer.answers("b4", 0)
    assert pair.writer.confirmed == 0


def test_worse_of_two_slow_bookies_is_replaced_if_the_quorum_needs_the_other():
    """Failing both would close a ledger with a single spare bookie, although the slow bookie serves."""
    pair = held_up("b2", "b1")
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b2",), sound_only=True)]


def test_slow_bookie_needed_for_an_ack_quorum_is_not_replaced():
    assert held_up("b1", aq=3).writer.wanted == []


def test_slow_bookie_stays_if_there_is_no_spare():
    pair = held_up("b1")
    pair.writer.chooses()
    assert pair.writer.machine.state is State.OPEN
    pair.writer.step(HeldUp(("b1",)))
    assert pair.writer.wanted == []
    pair.writer.answers("b2", 0)
    assert pair.writer.confirmed == 0
    pair.append()
    assert pair.writer.waits_for("b1")[-1] == 1


def test_writer_continues_with_a_slow_bookie_if_a_failed_bookie_has_no_replacement():
    """It gave up and closed the ledger, although an ack quorum served: the slow bookie counted as lost."""
    pair = held_up("b1")
    pair.writer.chooses()
    pair.writer.refuses("b2", 0)
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b1", "b2"))]
    pair.writer.chooses()
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b2",))], "one might take the place of one"
    pair.writer.chooses()
    assert pair.writer.machine.state is State.OPEN
    assert pair.writer.wanted == []
    pair.writer.answers("b1", 0)
    assert pair.writer.confirmed == 0


@pytest.mark.parametrize("replication", [Replication.BEST_EFFORT, Replication.GUARANTEED])
def test_only_spare_replaces_the_failed_bookie_instead_of_the_slow_bookie(replication):
    """Both requested a replacement, only one existed, and neither was replaced: a guaranteed writer waited until its deadline."""
    pair = LedgerPair(changes=ChangeMode.AT_ONCE, guaranteed=replication is Replication.GUARANTEED)
    pair.append()
    pair.writer.step(HeldUp(("b1",)))
    pair.writer.chooses()
    pair.writer.refuses("b2", 0)
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b1", "b2"))]
    pair.append()
    pair.writer.chooses()
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b2",))]
    assert pair.writer.waits_for("b1")[-1] == 1, "what was held back for the slow one is sent to it"
    pair.writer.chooses("b4")
    pair.writer.writes()
    assert pair.writer.machine.metadata.last_fragment.ensemble == ("b1", "b4", "b3")
    assert pair.writer.wanted == [ChooseBookies(("b1", "b4", "b3"), ("b1",), sound_only=True)]
    pair.writer.chooses()
    for bookie in ("b1", "b4", "b3"):
        pair.writer.answers(bookie)
    assert pair.writer.confirmed == 1


def test_slow_bookie_that_fails_is_replaced_by_any_bookie():
    pair = held_up("b1")
    pair.writer.chooses()
    pair.writer.refuses("b1", 0)
    pair.writer.step(BookiesChanged())
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b1",))]


@pytest.mark.parametrize(("fails", "missed"), [(failing, 1), (lambda: held_up("b1"), 0)], ids=["refused", "held up"])
@pytest.mark.parametrize("is_released", [True, False])
def test_kept_bookie_counts_as_failed_up_to_its_last_missed_entry(fails, missed, is_released):
    pair = fails()
    (choose,) = pair.writer.wanted
    pair.writer.chooses()
    if is_released:
        pair.writer.answers("b2", missed)
    pair.append()
    pair.writer.answers(choose.replaced[0], missed + 1)
    pair.writer.step(BookiesChanged())
    assert pair.writer.wanted == ([] if is_released else [choose])


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_postponed_change_is_due_if_giving_up_leaves_too_few_copies(copies):
    """Two of three bookies are left: enough for two copies, too few for three."""
    changes, ledger = EnsembleChanges(ChangeMode.AT_ONCE), metadata()
    changes.fail("b3", 0)
    changes.choose(ledger, changes.due(ledger, copies, gives_up=True))
    changes.abandon()
    assert changes.due(ledger, copies, gives_up=True) == ({"b3"} if copies == 3 else set())
    assert changes.due(ledger, copies, gives_up=False) == set()
    changes.fail("b1", 0)
    assert changes.due(ledger, copies, gives_up=False) == {"b1", "b3"}


def test_idle_writer_uses_little_memory_for_failed_bookies():
    """Each had five empty sets of 216 bytes, and a client may have ten thousand writers."""
    tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = [EnsembleChanges(ChangeMode.AT_ONCE) for _ in range(1000)]
        each = (tracemalloc.get_traced_memory()[0] - before) / len(made)
    finally:
        tracemalloc.stop()
    assert each < 400


def test_pinned_bookie_is_replaced_once_others_have_its_entries():
    """It was checked only when entries became fully replicated. The freeing copy was no such step, and the close waited until
    its deadline."""
    pair = LedgerPair(guaranteed=True, changes=ChangeMode.AT_ONCE)
    pair.append(2)
    pair.writer.answers("b1", 0)
    pair.writer.answers("b2", 0, 1)
    pair.writer.answers("b3", 1)
    pair.writer.refuses("b3", 0)
    assert pair.writer.wanted == [], "e1 would have one copy"
    pair.writer.answers("b1", 1)
    assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]

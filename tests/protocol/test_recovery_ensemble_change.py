"""Ledger recovery that replaces bookies, and recovery of guaranteed ledgers."""

from __future__ import annotations

import pytest

from bookspark.errors import LedgerRecoveryError
from bookspark.protocol.ledger.actions import ChooseBookies, WriteMetadata
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from tests.protocol.ledger_pair import IO_ERROR, LedgerPair

FIRST = Fragment(0, ("b1", "b2", "b3"))


def to_write_back(**options):
    """A recovery up to the write-back of e1; e0 is on all bookies, e1 on b1 alone."""
    pair = LedgerPair(**options)
    pair.appended()
    pair.append()
    pair.writer.answers("b1", 1)
    recovery = pair.recoverer()
    recovery.writes()
    recovery.answers("b1", -1)
    recovery.answers("b2", -1)
    recovery.answers("b1", 1)
    recovery.sent = [(bookie, request) for bookie, request in recovery.sent if hasattr(request, "entries")]
    assert sorted(bookie for bookie, _ in recovery.sent) == ["b1", "b2", "b3"]
    return pair, recovery


def begins_again(recovery):
    """The closing compare-and-set fails. Recovery reads e1 from b1 again and closes the ledger."""
    recovery.writes()
    recovery.reads_metadata()
    recovery.answers("b1", -1)
    recovery.answers("b2", -1)
    recovery.answers("b1", 1)
    recovery.runs()


def test_failed_bookie_is_not_replaced_if_an_ack_quorum_remains():
    _, recovery = to_write_back()
    recovery.refuses("b2", 1)
    recovery.answers("b1", 1)
    recovery.answers("b3", 1)
    recovery.runs()
    assert recovery.closed.fragments == (FIRST,)


def test_two_bookies_that_reject_an_entry_are_both_replaced():
    _, recovery = to_write_back()
    recovery.refuses("b2", 1)
    recovery.refuses("b3", 1)
    assert recovery.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b2", "b3"))]
    recovery.chooses("b4", "b5")
    recovery.answers("b1", 1)
    recovery.answers("b4", 1)
    recovery.runs()
    assert recovery.closed.fragments == (FIRST, Fragment(1, ("b1", "b4", "b5")))
    assert recovery.closed.last_entry_id == 1


def test_ensemble_change_of_recovery_is_written_only_with_the_close():
    """Trap 2, BookKeeper #2615."""
    pair, recovery = to_write_back()
    recovery.refuses("b2", 1)
    recovery.refuses("b3", 1)
    recovery.chooses("b4", "b5")
    assert pair.metadata.fragments == (FIRST,)
    recovery.all_answer()
    (write,) = recovery.wanted
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.state, len(write.metadata.fragments)) == (LedgerState.CLOSED, 2)


def test_recovery_keeps_reading_from_its_first_ensemble():
    _, recovery = to_write_back()
    recovery.refuses("b2", 1)
    recovery.refuses("b3", 1)
    recovery.chooses("b4", "b5")
    recovery.answers("b1", 1)
    recovery.answers("b4", 1)
    assert {bookie for bookie, request in recovery.sent if hasattr(request, "fence")} == {"b1", "b2", "b3"}


def test_replacement_that_refuses_is_replaced():
    _, recovery = to_write_back()
    recovery.refuses("b2", 1)
    recovery.refuses("b3", 1)
    recovery.chooses("b4", "b5")
    recovery.refuses("b4", 1)
    recovery.refuses("b5", 1)
    recovery.chooses("b6", "b7")
    recovery.runs()
    assert recovery.closed.last_fragment == Fragment(1, ("b1", "b6", "b7"))


def test_bookie_that_refuses_during_the_choice_is_replaced_with_the_others():
    _, recovery = to_write_back()
    recovery.refuses("b2", 1)
    recovery.refuses("b3", 1)
    recovery.refuses("b1", 1)
    recovery.chooses("b4", "b5")
    assert recovery.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b1", "b2", "b3"))]
    recovery.chooses("b4", "b5", "b6")
    recovery.runs()
    assert recovery.closed.last_fragment == Fragment(1, ("b4", "b5", "b6"))


def test_late_answer_of_a_replaced_bookie_does_not_count():
    pair, recovery = to_write_back()
    recovery.parks("b1", 1)
    sent_to_b2 = [request for bookie, request in recovery.sent if bookie == "b2"]
    recovery.refuses("b2", 1)
    recovery.refuses("b3", 1)
    recovery.chooses("b4", "b5")
    recovery.step(pair.bookies("b2").take(sent_to_b2[0], recovery=True))
    recovery.releases("b1", 1)
    assert recovery.machine.next_entry_id == 1, "b1 alone of the new write set has it"


def test_lost_compare_and_set_drops_the_ensemble_change():
    pair, recovery = to_write_back()
    other = pair.recoverer()
    recovery.refuses("b2", 1)
    recovery.refuses("b3", 1)
    recovery.chooses("b4", "b5")
    recovery.all_answer()
    found, version = pair.store
    pair.store = (found, version + 1)
    begins_again(recovery)
    assert recovery.closed.fragments == (FIRST,)
    assert recovery.closed.last_entry_id == 1, "an end before the change would hide it"
    assert other.closed is None


def test_lost_compare_and_set_keeps_the_other_clients_change():
    """Re-replication replaces b3 by b7 while recovery replaces b2 and b6 in the last fragment."""
    pair = LedgerPair()
    pair.appended()
    pair.append()
    pair.writer.refuses("b3", 1)
    pair.change_ensemble("b6")
    pair.writer.answers("b1", 1)
    recovery = pair.recoverer()
    recovery.writes()
    recovery.answers("b1", -1)
    recovery.answers("b2", -1)
    recovery.answers("b1", 1)
    recovery.refuses("b2", 1)
    recovery.refuses("b6", 1)
    recovery.chooses("b4", "b5")
    recovery.all_answer()
    found, version = pair.store
    pair.store = (found.re_replicated(0, {"b3": "b7"}), version + 1)
    begins_again(recovery)
    assert recovery.closed.fragments == (Fragment(0, ("b1", "b2", "b7")), Fragment(1, ("b1", "b2", "b6")))
    assert recovery.closed.last_entry_id == 1


def test_recovery_without_spare_bookies_stops_and_changes_nothing():
    pair, recovery = to_write_back()
    recovery.refuses("b2", 1)
    recovery.refuses("b3", 1)
    recovery.chooses()
    assert isinstance(recovery.error, LedgerRecoveryError)
    assert pair.metadata.state is LedgerState.IN_RECOVERY


def test_stopped_recovery_succeeds_on_a_later_attempt():
    pair, recovery = to_write_back()
    recovery.refuses("b2", 1)
    recovery.refuses("b3", 1)
    recovery.chooses()
    assert pair.recover("b2").closed.last_entry_id == 1


class TestAckQuorumReads:
    """BP-46: an entry is recoverable at AQ positive reads."""

    def test_single_copy_among_unknown_answers_stops_recovery(self):
        pair = LedgerPair()
        pair.append()
        pair.writer.answers("b1", 0)
        recovery = pair.recoverer(ack_quorum_reads=True)
        recovery.writes()
        recovery.answers("b1", -1)
        recovery.answers("b2", -1)
        recovery.answers("b1", 0)
        recovery.refuses("b2", 0)
        recovery.refuses("b3", 0)
        assert isinstance(recovery.error, LedgerRecoveryError)

    def test_recovered_run_has_only_entries_on_an_ack_quorum(self):
        pair = LedgerPair()
        pair.append(3)
        pair.writer.answers("b1")
        pair.writer.answers("b2", 0)
        recovery = pair.recoverer(ack_quorum_reads=True)
        recovery.writes()
        recovery.answers("b1", -1)
        recovery.answers("b3", -1)
        recovery.answers("b1", 0)
        recovery.answers("b2", 0)
        assert [r.last for b, r in recovery.sent if b == "b3" and hasattr(r, "entries")] == [0]


class TestGuaranteed:
    """Tweak 3: recovery starts after LAFR, writes back to WQ, and never closes below the highest LAC seen."""

    def confirmed_at_an_ack_quorum(self):
        """e0 is on all bookies, e1 and e2 are confirmed by b1 and b2, e3 is on b1."""
        pair = LedgerPair(guaranteed=True)
        pair.appended()
        pair.append(3)
        for entry in (1, 2):
            pair.writer.answers("b1", entry)
            pair.writer.answers("b2", entry)
        pair.append()
        pair.writer.answers("b1", 4)
        return pair

    def test_recovery_starts_after_lafr(self):
        pair = self.confirmed_at_an_ack_quorum()
        recovery = pair.recoverer()
        recovery.writes()
        recovery.answers("b1", -1)
        recovery.answers("b2", -1)
        assert (recovery.machine.last_add_fully_replicated, recovery.machine.last_add_confirmed) == (0, 2)
        assert recovery.machine.next_entry_id == 1

    def test_closed_ledger_has_every_entry_on_its_write_quorum(self):
        pair = self.confirmed_at_an_ack_quorum()
        closed = pair.recover().closed
        assert closed.last_entry_id == 2
        assert all(len(pair.replicas(entry)) == 3 for entry in range(3))

    def test_unreachable_bookie_is_replaced(self):
        pair = self.confirmed_at_an_ack_quorum()
        closed = pair.recover("b3", spares=("b4",)).closed
        assert closed.fragments == (FIRST, Fragment(1, ("b1", "b2", "b4")))
        assert all(len(pair.replicas(entry)) == 3 for entry in range(3))

    def test_recovery_without_spare_bookies_stops_and_can_be_retried(self):
        pair = self.confirmed_at_an_ack_quorum()
        assert isinstance(pair.recover("b3").error, LedgerRecoveryError)
        assert pair.metadata.state is LedgerState.IN_RECOVERY
        assert pair.recover().closed.last_entry_id == 2

    def test_recovery_never_closes_below_the_highest_lac(self):
        """Two bookies lost a confirmed entry, against all rules, and deny it: that does not prove a shorter ledger."""
        pair = self.confirmed_at_an_ack_quorum()
        del pair.bookies("b2").entries[2]
        error = pair.recover("b1").error
        assert error is not None, "b1 is needed"
        recovery = pair.recoverer()
        recovery.answers("b1", -1)
        recovery.answers("b2", -1)
        recovery.refuses("b1", 1, response=Unknown(UnknownReason.TIMEOUT))
        recovery.answers("b2", 1)
        for bookie in ("b1", "b2", "b3"):
            recovery.answers(bookie, 1)
        recovery.refuses("b1", 2, response=IO_ERROR)
        recovery.answers("b2", 2)
        recovery.answers("b3", 2)
        assert isinstance(recovery.error, LedgerRecoveryError)
        assert "confirmed, but seems absent" in str(recovery.error)

    @pytest.mark.parametrize("striped", [False, True])
    def test_recovered_empty_ledger_is_closed_empty(self, striped):
        pair = LedgerPair(e=4 if striped else 3, guaranteed=True)
        assert pair.recover().closed.last_entry_id == -1

"""Decisions of ledger recovery, one test for each sentence of the sources."""

from __future__ import annotations

import pytest

from bookspark.errors import LedgerRecoveryError, UnauthorizedAccessError
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    DeadlinePassed,
    Fail,
    Finish,
    LacAnswered,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    ReadAnswered,
    ReadMetadata,
    SendAdd,
    SendRead,
    SendReadLac,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.reading.recovery import LedgerRecovery, RecoveryPhase
from tests.protocol.ledgers import LOST, NO, OK, metadata

IN_RECOVERY = metadata(state=LedgerState.IN_RECOVERY)


def closed(last, length):
    return metadata(state=LedgerState.CLOSED, last_entry_id=last, length=length)


def fencing(found=IN_RECOVERY):
    recovery = LedgerRecovery()
    return recovery, recovery.step(MetadataRead(found, 3))


def lac(recovery, **by_bookie):
    """Answers to the fencing LAC reads; None is Unknown."""
    actions = []
    for bookie, value in by_bookie.items():
        answer = LacAnswered(bookie, LOST) if value is None else LacAnswered(bookie, OK, value)
        actions += recovery.step(answer)
    return actions


def read(recovery, bookie, first, count, following=NO):
    """The bookie has ``count`` entries from ``first`` on, 10 bytes each."""
    last = first + count - 1
    return recovery.step(ReadAnswered(bookie, first, last, following, f"{first}..{last}", 10 * (last + 1)))


def test_open_ledger_is_first_marked_in_recovery():
    recovery, actions = fencing(metadata())
    assert actions == [WriteMetadata(IN_RECOVERY, 3)]
    assert recovery.step(MetadataWritten(4)) == [SendReadLac(b, fence=True) for b in ("b1", "b2", "b3")]


def test_closed_ledger_needs_no_recovery():
    assert fencing(closed(4, 50))[1] == [Finish(closed(4, 50), 3)]


def test_lac_reads_and_recovery_reads_carry_the_fence_flag():
    """Trap 1, BookKeeper #2616: an unfenced recovery read lets the writer continue on the bookie that answered it."""
    recovery, fences = fencing()
    assert all(action.fence for action in fences)
    reads = lac(recovery, b1=-1, b2=-1)
    assert reads
    assert all(isinstance(action, SendRead) and action.fence for action in reads)


def test_reading_begins_once_every_ack_quorum_has_a_fenced_bookie():
    recovery, _ = fencing()
    assert lac(recovery, b1=4) == []
    assert [action.first for action in lac(recovery, b2=-1)] == [5, 5, 5]


def test_reading_starts_after_the_highest_lac():
    recovery, _ = fencing()
    assert {action.first for action in lac(recovery, b3=1, b1=7)} == {8}


def test_reading_starts_at_the_last_fragment_if_the_lac_is_older():
    """Trap 2: max(highest LAC, first entry of the last fragment − 1) + 1."""
    two = (Fragment(0, ("b1", "b2", "b3")), Fragment(20, ("b1", "b2", "b4")))
    recovery, fences = fencing(metadata(state=LedgerState.IN_RECOVERY, fragments=two))
    assert [action.bookie for action in fences] == ["b1", "b2", "b4"]
    assert {action.first for action in lac(recovery, b1=11, b4=12)} == {20}


def test_recovery_stops_if_an_ack_quorum_cannot_be_fenced():
    recovery, _ = fencing()
    (fail,) = lac(recovery, b1=None, b2=None)
    assert isinstance(fail.error, LedgerRecoveryError)
    assert "fenced" in str(fail.error)


def test_single_hung_bookie_does_not_block_recovery():
    """BookKeeper #1067."""
    recovery, _ = fencing()
    lac(recovery, b1=-1, b2=-1)
    (write,) = read(recovery, "b1", 0, 3)
    assert write == SendAdd(("b1", "b2", "b3"), 0, 2, -1, "0..2")
    recovery.step(AddAnswered("b1", 0, 2, OK))
    reads = recovery.step(AddAnswered("b2", 0, 2, OK))
    assert [action.first for action in reads] == [3, 3, 3]
    read(recovery, "b1", 3, 0)
    assert read(recovery, "b2", 3, 0) == [WriteMetadata(closed(2, 30), 3)]
    assert recovery.step(MetadataWritten(4)) == [Finish(closed(2, 30), 4)]


def test_entry_of_a_single_bookie_is_recovered_even_after_a_negative():
    recovery, _ = fencing()
    lac(recovery, b1=-1, b2=-1)
    assert read(recovery, "b2", 0, 0) == []
    (write,) = read(recovery, "b1", 0, 1)
    assert isinstance(write, SendAdd)


def test_ledger_ends_before_an_entry_denied_by_a_quorum_coverage():
    recovery, _ = fencing()
    lac(recovery, b1=-1, b2=-1)
    read(recovery, "b2", 0, 0)
    assert read(recovery, "b3", 0, 0) == [WriteMetadata(closed(-1, 0), 3)]


def test_unknown_answers_never_end_a_ledger():
    """BP-46: a bookie that lost data answers Unknown; truncating on it loses acknowledged entries (scenario 2)."""
    recovery, _ = fencing()
    lac(recovery, b1=-1, b2=-1)
    limbo = Unknown(UnknownReason.LIMBO)
    assert read(recovery, "b1", 0, 0, limbo) == []
    assert read(recovery, "b2", 0, 0, NO) == []
    (fail,) = read(recovery, "b3", 0, 0, LOST)
    assert isinstance(fail.error, LedgerRecoveryError)
    assert "in limbo" in str(fail.error)
    assert recovery.phase is RecoveryPhase.DONE


def test_length_is_read_if_no_entry_is_written_back():
    recovery, _ = fencing()
    lac(recovery, b1=6, b2=6)
    read(recovery, "b1", 7, 0)
    reads = read(recovery, "b2", 7, 0)
    assert reads == [SendRead(b, 6, 6) for b in ("b1", "b2", "b3")]
    assert recovery.step(ReadAnswered("b1", 6, 5, LOST)) == []
    assert recovery.step(ReadAnswered("b2", 6, 6, OK, "6..6", 70)) == [WriteMetadata(closed(6, 70), 3)]


def test_length_never_comes_from_a_late_answer_of_the_reading_phase():
    recovery, _ = fencing()
    lac(recovery, b1=0, b2=0)
    read(recovery, "b2", 1, 0)
    read(recovery, "b3", 1, 0)
    assert recovery.phase is RecoveryPhase.MEASURING
    assert read(recovery, "b1", 1, 1) == [], "it has e1, which the ledger does not"
    assert recovery.step(ReadAnswered("b1", 0, 0, OK, "0..0", 10)) == [WriteMetadata(closed(0, 10), 3)]


def test_unreadable_confirmed_entry_stops_the_recovery():
    recovery, _ = fencing()
    lac(recovery, b1=6, b2=6)
    read(recovery, "b1", 7, 0)
    read(recovery, "b2", 7, 0)
    for bookie in ("b1", "b2"):
        assert recovery.step(ReadAnswered(bookie, 6, 5, NO)) == []
    (fail,) = recovery.step(ReadAnswered("b3", 6, 5, LOST))
    assert isinstance(fail.error, LedgerRecoveryError)


def test_write_back_without_an_ack_quorum_stops_the_recovery():
    recovery, _ = fencing()
    lac(recovery, b1=-1, b2=-1)
    read(recovery, "b1", 0, 1)
    assert recovery.step(AddAnswered("b2", 0, 0, LOST)) == []
    (fail,) = recovery.step(AddAnswered("b3", 0, 0, LOST))
    assert isinstance(fail.error, LedgerRecoveryError)


def test_write_backs_carry_the_lac_seen_at_fencing():
    recovery, _ = fencing()
    lac(recovery, b1=3, b2=5)
    (write,) = read(recovery, "b1", 6, 2)
    assert write.last_add_confirmed == 5


def test_later_of_two_recoverers_adopts_the_closed_metadata():
    """Trap 5."""
    recovery, _ = fencing()
    lac(recovery, b1=-1, b2=-1)
    read(recovery, "b1", 0, 0)
    read(recovery, "b2", 0, 0)
    assert recovery.step(MetadataConflict()) == [ReadMetadata()]
    assert recovery.step(MetadataRead(closed(0, 9), 8)) == [Finish(closed(0, 9), 8)]


def test_recovery_restarts_if_its_closing_write_conflicts():
    recovery, _ = fencing()
    lac(recovery, b1=-1, b2=-1)
    read(recovery, "b1", 0, 0)
    read(recovery, "b2", 0, 0)
    recovery.step(MetadataConflict())
    assert recovery.step(MetadataRead(IN_RECOVERY, 9)) == [SendReadLac(b, fence=True) for b in ("b1", "b2", "b3")]


def test_late_answers_of_an_earlier_round_change_nothing():
    recovery, _ = fencing()
    lac(recovery, b1=-1, b2=-1)
    read(recovery, "b1", 0, 1)
    recovery.step(AddAnswered("b1", 0, 0, OK))
    recovery.step(AddAnswered("b2", 0, 0, OK))
    assert read(recovery, "b3", 0, 0) == []
    assert lac(recovery, b3=9) == []
    assert recovery.next_entry_id == 1


def test_striped_ledger_is_read_entry_by_entry_from_each_write_set():
    found = metadata(e=4, wq=2, aq=2, state=LedgerState.IN_RECOVERY)
    recovery, _ = fencing(found)
    reads = lac(recovery, b1=0, b2=-1, b3=0, b4=0)
    assert reads == [SendRead("b2", 1, 1, fence=True), SendRead("b3", 1, 1, fence=True)]


def test_bookie_that_refuses_the_password_counts_as_unknown():
    """One bookie that a stranger asked first ended the recovery."""
    recovery, _ = fencing()
    assert recovery.step(LacAnswered("b1", Unknown(UnknownReason.UNAUTHORIZED))) == []
    assert lac(recovery, b2=-1, b3=-1), "it goes on with the others"


def test_password_refused_by_too_many_ends_the_recovery():
    recovery, _ = fencing()
    assert recovery.step(LacAnswered("b1", Unknown(UnknownReason.UNAUTHORIZED))) == []
    (fail,) = recovery.step(LacAnswered("b2", Unknown(UnknownReason.UNAUTHORIZED)))
    assert isinstance(fail.error, UnauthorizedAccessError)


@pytest.mark.parametrize("found", [metadata(), IN_RECOVERY])
def test_deadline_ends_recovery(found):
    recovery, _ = fencing(found)
    (fail,) = recovery.step(DeadlinePassed())
    assert isinstance(fail, Fail)
    assert recovery.step(MetadataWritten(4)) == []

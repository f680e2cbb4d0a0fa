"""Autorecovery of one ledger, step by step."""

from __future__ import annotations

from bookspark.errors import LedgerRecoveryError, NotEnoughBookiesError
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    ChooseBookies,
    DeadlinePassed,
    Fail,
    Finish,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadAnswered,
    ReadMetadata,
    SendAdd,
    SendRead,
    SendReadLac,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.repair.ledger_replication import (
    LedgerReplication,
    ReplicationPhase,
    WaitForWriter,
    WriterWaitedFor,
)
from tests.protocol.ledgers import LOST, OK, metadata

CLOSED = metadata(state=LedgerState.CLOSED, last_entry_id=9, length=100)
OPEN = metadata()
REPAIRED = CLOSED.re_replicated(0, {"b3": "b4"})


def replication(found, lost=("b3",), run_entries_max=100):
    machine = LedgerReplication(lost, grace_seconds=30.0, run_entries_max=run_entries_max)
    return machine, machine.step(MetadataRead(found, 5))


def copied(machine, actions, first, last, target="b4"):
    """A peer delivers the run that is read, and ``target`` syncs it."""
    (read,) = actions
    assert isinstance(read, SendRead) and (read.first, read.last) == (first, last) and read.bookie != target
    (add,) = machine.step(ReadAnswered(read.bookie, first, last, OK, "entries"))
    assert add == SendAdd((target,), first, last, 9, "entries")
    return machine.step(AddAnswered(target, first, last, OK))


def test_copies_are_made_first_and_named_last():
    machine, actions = replication(CLOSED, run_entries_max=6)
    assert actions == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]
    actions = copied(machine, machine.step(BookiesChosen(("b4",))), 0, 5)
    assert copied(machine, actions, 6, 9) == [ReadMetadata()]
    assert machine.step(MetadataRead(CLOSED, 8)) == [WriteMetadata(REPAIRED, 8)]
    assert machine.step(MetadataWritten(9)) == [Finish(REPAIRED)]


def test_two_lost_bookies_of_a_fragment_are_named_together():
    machine, actions = replication(CLOSED, lost=("b2", "b3"))
    assert actions == [ChooseBookies(("b1", "b2", "b3"), ("b2", "b3"))]
    actions = copied(machine, machine.step(BookiesChosen(("b4", "b5"))), 0, 9, "b4")
    assert copied(machine, actions, 0, 9, "b5") == [ReadMetadata()]
    (write,) = machine.step(MetadataRead(CLOSED, 8))
    assert write.metadata.fragments == (Fragment(0, ("b1", "b4", "b5")),)


def test_a_record_that_changed_meanwhile_is_read_again_and_the_change_kept():
    machine, _ = replication(CLOSED)
    copied(machine, machine.step(BookiesChosen(("b4",))), 0, 9)
    machine.step(MetadataRead(CLOSED, 5))
    assert machine.step(MetadataConflict()) == [ReadMetadata()]
    assert machine.step(MetadataRead(CLOSED, 6)) == [WriteMetadata(REPAIRED, 6)]


def test_if_another_repaired_the_fragment_first_it_looks_anew():
    machine, _ = replication(CLOSED)
    copied(machine, machine.step(BookiesChosen(("b4",))), 0, 9)
    other = CLOSED.re_replicated(0, {"b3": "b9"})
    assert machine.step(MetadataRead(other, 6)) == [Finish(other)]


def test_an_entry_that_nobody_has_ends_it_and_nothing_is_named():
    machine, _ = replication(CLOSED)
    actions = machine.step(BookiesChosen(("b4",)))
    while isinstance(actions[0], SendRead):
        actions = machine.step(ReadAnswered(actions[0].bookie, 0, -1, LOST))
    assert isinstance(actions[0], Fail)
    assert machine.phase is ReplicationPhase.DONE


def test_a_copy_that_is_refused_ends_it():
    machine, _ = replication(CLOSED)
    (read,) = machine.step(BookiesChosen(("b4",)))
    machine.step(ReadAnswered(read.bookie, 0, 9, OK, "entries"))
    (fail,) = machine.step(AddAnswered("b4", 0, 9, LOST))
    assert isinstance(fail.error, LedgerRecoveryError)


def test_without_bookies_it_fails_and_can_be_tried_again():
    machine, _ = replication(CLOSED)
    assert machine.step(NoBookies(error := NotEnoughBookiesError("none is left"))) == [Fail(error)]


def test_fewer_copies_than_were_lost_are_better_than_none():
    """Four bookies are left of five: the fragment gets back to two copies, and the reason says what is missing."""
    machine, _ = replication(CLOSED, lost=("b2", "b3"))
    assert machine.step(NoBookies(NotEnoughBookiesError("two"))) == [ChooseBookies(("b1", "b2", "b3"), ("b2",))]
    assert copied(machine, machine.step(BookiesChosen(("b4",))), 0, 9) == [ReadMetadata()]
    (write,) = machine.step(MetadataRead(CLOSED, 8))
    assert write.metadata.fragments == (Fragment(0, ("b1", "b4", "b3")),)
    assert machine.step(MetadataWritten(9)) == [ChooseBookies(("b1", "b4", "b3"), ("b3",))]
    assert machine.step(NoBookies(error := NotEnoughBookiesError("one"))) == [Fail(error)]


class TestAFragmentThatCannotBeRepaired:
    """BookKeeper gives the ledger up at its first fragment that fails."""

    TWO = metadata(
        1, 1, 1, LedgerState.CLOSED, (Fragment(0, ("b1",)), Fragment(5, ("b2",))), last_entry_id=9, length=100
    )

    def test_the_others_are_repaired_and_the_reason_is_told_at_the_end(self):
        machine, actions = replication(self.TWO, lost=("b1", "b2"))
        assert actions == [ChooseBookies(("b1",), ("b1",))]
        (read,) = machine.step(BookiesChosen(("b4",)))
        assert machine.step(ReadAnswered("b1", 0, -1, LOST)) == [ChooseBookies(("b2",), ("b2",))]
        (read,) = machine.step(BookiesChosen(("b4",)))
        machine.step(ReadAnswered(read.bookie, 5, 9, OK, "entries"))
        assert machine.step(AddAnswered("b4", 5, 9, OK)) == [ReadMetadata()]
        (write,) = machine.step(MetadataRead(self.TWO, 5))
        (fail,) = machine.step(MetadataWritten(6))
        assert write.metadata.fragments == (Fragment(0, ("b1",)), Fragment(5, ("b4",)))
        assert "entry 0 could not be read" in str(fail.error)

    def test_how_many_there_are_is_told(self):
        machine, _ = replication(self.TWO, lost=("b1", "b2"))
        machine.step(NoBookies(NotEnoughBookiesError("none is left")))
        (fail,) = machine.step(NoBookies(NotEnoughBookiesError("none is left")))
        assert str(fail.error) == "2 fragments of ledger 7 were not repaired, the first one: none is left"

    def test_it_does_not_keep_the_last_fragment_from_being_closed(self):
        found = metadata(1, 1, 1, fragments=(Fragment(0, ("b1",)), Fragment(5, ("b1",))))
        machine, _ = replication(found, lost=("b1",))
        assert machine.step(NoBookies(NotEnoughBookiesError("none is left"))) == [WaitForWriter(30.0)]


def test_the_replica_that_delivered_is_asked_first_and_a_lost_one_last():
    """A dead bookie first in the ensemble would cost every run the time to find that out."""
    machine, _ = replication(CLOSED, lost=("b1",), run_entries_max=6)
    (read,) = machine.step(BookiesChosen(("b4",)))
    assert read.bookie == "b2"
    (other,) = machine.step(ReadAnswered("b2", 0, -1, LOST))
    assert other.bookie == "b3"
    machine.step(ReadAnswered("b3", 0, 5, OK, "entries"))
    assert machine.step(AddAnswered("b4", 0, 5, OK)) == [SendRead("b3", 6, 9)]


class TestAMisplacedBookie:
    def test_it_is_replaced_where_nothing_is_written_any_more(self):
        machine = LedgerReplication((), 30.0, misplaced=("b3",))
        assert machine.step(MetadataRead(CLOSED, 5)) == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]

    def test_nobody_is_fenced_for_it(self):
        assert LedgerReplication((), 30.0, misplaced=("b3",)).step(MetadataRead(OPEN, 5)) == [Finish(OPEN)]


class TestALedgerThatIsStillWrittenTo:
    def test_the_writer_has_the_grace_time_to_replace_the_bookie(self):
        machine, actions = replication(OPEN)
        assert actions == [WaitForWriter(30.0)]
        assert machine.step(WriterWaitedFor(30.0)) == [ReadMetadata()]
        replaced = OPEN.with_ensemble(4, ("b1", "b2", "b4"))
        assert machine.step(MetadataRead(replaced, 6)) == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]

    def test_then_it_is_recovered_which_fences_it(self):
        machine, _ = replication(OPEN)
        machine.step(WriterWaitedFor(30.0))
        (write,) = machine.step(MetadataRead(OPEN, 5))
        assert write.metadata.state is LedgerState.IN_RECOVERY
        assert machine.step(MetadataWritten(6)) == [SendReadLac(b, fence=True) for b in ("b1", "b2", "b3")]

    def test_too_early_is_not_late_enough(self):
        machine, _ = replication(OPEN)
        machine.step(WriterWaitedFor(29.0))
        assert machine.step(MetadataRead(OPEN, 5)) == [WaitForWriter(30.0)]

    def test_nobody_lost_nothing_to_do(self):
        assert replication(OPEN, lost=("b9",))[1] == [Finish(OPEN)]


def test_a_deadline_ends_it_in_any_phase():
    machine, _ = replication(OPEN)
    (fail,) = machine.step(DeadlinePassed())
    assert isinstance(fail.error, LedgerRecoveryError)
    assert machine.step(WriterWaitedFor(30.0)) == []

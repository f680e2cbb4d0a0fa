"""Autorecovery of a ledger, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.errors import EntriesNotCopiedError, LedgerRecoveryError, NotEnoughBookiesError, RecordFullError
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
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
    RecordFull,
    SendAdd,
    SendRead,
    SendReadLac,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import WRITE_QUORUM_LABEL, Fragment, LedgerState
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.repair.ledger_replication import (
    LedgerReplication,
    ReplicationPhase,
    WaitForWriter,
    WriterWaitedFor,
)
from tests.protocol.ledgers import LOST, NO, OK, metadata

CLOSED = metadata(state=LedgerState.CLOSED, last_entry_id=9, length=100)
OPEN = metadata()
REPAIRED = CLOSED.re_replicated(0, {"b3": "b4"})


def replication(found, lost=("b3",), run_entries_max=100, grace_seconds=30.0):
    machine = LedgerReplication(lost, grace_seconds, run_entries_max, grace_seconds_max=100.0)
    return machine, machine.step(MetadataRead(found, 5))


def copied(machine, actions, first, last, *targets):
    """A peer delivers the run, and ``targets`` sync it."""
    targets = targets or ("b4",)
    (read,) = actions
    assert isinstance(read, SendRead) and (read.first, read.last) == (first, last) and read.bookie not in targets
    (add,) = machine.step(ReadAnswered(read.bookie, first, last, OK, "entries"))
    assert add == SendAdd(targets, first, last, 9, "entries")
    *early, last_target = targets
    for target in early:
        assert machine.step(AddAnswered(target, first, last, OK)) == []
    return machine.step(AddAnswered(last_target, first, last, OK))


def answered(machine, actions, answer):
    """Answer every read by ``answer(read)`` and acknowledge every write. Returns the writes and the remaining actions."""
    writes, rest, todo = [], [], list(actions)
    while todo:
        action = todo.pop(0)
        match action:
            case SendRead():
                todo += machine.step(answer(action))
            case SendAdd():
                writes.append((action.first, action.last, action.bookies))
                for target in action.bookies:
                    todo += machine.step(AddAnswered(target, action.first, action.last, OK))
            case _:
                rest.append(action)
    return writes, rest


def gives_all_but(*ids, denied_by=NO, away=("b3",)):
    """Answers of bookies that hold every entry except ``ids``; bookies in ``away`` are unreachable."""

    def answer(read):
        if read.bookie in away:
            return ReadAnswered(read.bookie, read.first, read.first - 1, LOST)
        if read.first in ids:
            return ReadAnswered(read.bookie, read.first, read.first - 1, denied_by)
        last = min([read.last, *(i - 1 for i in ids if i > read.first)])
        return ReadAnswered(read.bookie, read.first, last, OK if last == read.last else denied_by, "entries", last + 1)

    return answer


def test_copies_are_made_before_the_metadata_names_them():
    machine, actions = replication(CLOSED, run_entries_max=6)
    assert actions == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]
    first, second = machine.step(BookiesChosen(("b4",)))
    assert copied(machine, [second], 6, 9) == []
    assert copied(machine, [first], 0, 5) == [WriteMetadata(REPAIRED, 5)]
    assert machine.step(MetadataWritten(9)) == [Finish(REPAIRED)]


def few_copies(**changes):
    """A ledger of two copies that should have three."""
    wanted = {WRITE_QUORUM_LABEL: b"3"}
    return replace(
        CLOSED,
        ensemble_size=2,
        write_quorum=2,
        fragments=(Fragment(0, ("b1", "b2")), Fragment(5, ("b1", "b3"))),
        custom_metadata=wanted,
        **changes,
    )


def test_ledger_with_few_copies_gets_another_in_each_fragment_by_one_write():
    few = few_copies()
    machine, (choose,) = replication(few, lost=())
    assert choose.ensemble[:2] == ("b1", "b2") and choose.replaced == choose.ensemble[2:]
    (choose,) = copied(machine, machine.step(BookiesChosen(("b3",))), 0, 4, "b3")
    assert choose.ensemble[:2] == ("b1", "b3") and choose.replaced == choose.ensemble[2:]
    whole = replace(
        few,
        ensemble_size=3,
        write_quorum=3,
        fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b1", "b3", "b2"))),
    )
    assert copied(machine, machine.step(BookiesChosen(("b2",))), 5, 9, "b2") == [WriteMetadata(whole, 5)]
    assert machine.step(MetadataWritten(9)) == [Finish(whole)]


def test_ledger_with_few_copies_says_so_while_no_bookie_is_there_for_another():
    machine, _ = replication(few_copies(), lost=())
    ((failed),) = machine.step(NoBookies(NotEnoughBookiesError("none")))
    assert "has 2 of 3 copies, and no other bookie can take one" in str(failed.error)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": LedgerState.OPEN, "last_entry_id": -1, "length": 0},
        {"accepted_loss": AcceptedLoss("operator", 0, (), (Loss(LossKind.ENTRIES, 0, 0, ("b1",)),))},
    ],
)
def test_ledger_that_is_open_or_has_an_accepted_loss_gets_no_other_copy(changes):
    _, actions = replication(few_copies(**changes), lost=())
    assert [type(one) for one in actions] == [Finish]


def test_two_lost_bookies_of_a_fragment_are_replaced_together():
    machine, actions = replication(CLOSED, lost=("b2", "b3"))
    assert actions == [ChooseBookies(("b1", "b2", "b3"), ("b2", "b3"))]
    (write,) = copied(machine, machine.step(BookiesChosen(("b4", "b5"))), 0, 9, "b4", "b5")
    assert write.metadata.fragments == (Fragment(0, ("b1", "b4", "b5")),)


def named(found, changed):
    """The next actions, after ``changed`` replaced the record ``found`` during the copying."""
    machine, _ = replication(found)
    copied(machine, machine.step(BookiesChosen(("b4",))), 0, 9)
    assert machine.step(MetadataConflict()) == [ReadMetadata()]
    return machine.step(MetadataRead(changed, 6))


def test_copies_of_a_closed_ledger_are_made_anew_after_a_conflict():
    """Their target may have collected them: a bookie writes the record, unchanged, before it collects unnamed copies."""
    assert named(CLOSED, CLOSED) == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]


def test_copies_of_a_ledger_that_is_still_open_are_named_after_a_conflict():
    found = metadata(fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(10, ("b1", "b2", "b5"))))
    changed = found.with_ensemble(20, ("b1", "b2", "b6"))
    assert named(found, changed) == [WriteMetadata(changed.re_replicated(0, {"b3": "b4"}), 6)]


def test_replication_ends_if_another_worker_repaired_the_fragment_first():
    other = CLOSED.re_replicated(0, {"b3": "b9"})
    assert named(CLOSED, other) == [Finish(other)]


def test_fragment_without_readable_entries_keeps_its_ensemble():
    machine, _ = replication(CLOSED)
    writes, (fail,) = answered(machine, machine.step(BookiesChosen(("b4",))), gives_all_but(*range(10)))
    assert writes == [] and isinstance(fail.error, EntriesNotCopiedError)
    assert machine.phase is ReplicationPhase.DONE


def test_fragments_without_room_in_the_record_are_given_up_and_the_others_repaired():
    """Entries that could not be copied would get fragments of their own."""
    two = metadata(
        state=LedgerState.CLOSED,
        fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b1", "b5", "b3"))),
        last_entry_id=9,
        length=100,
    )
    machine, _ = replication(two)
    (write,) = answered(machine, machine.step(BookiesChosen(("b4",))), gives_all_but(2))[1]
    assert len(write.metadata.fragments) == 4
    assert machine.step(RecordFull(RecordFullError("no room"))) == [ChooseBookies(("b1", "b5", "b3"), ("b3",))]
    (write,) = answered(machine, machine.step(BookiesChosen(("b4",))), gives_all_but())[1]
    assert [f.ensemble for f in write.metadata.fragments] == [("b1", "b2", "b3"), ("b1", "b5", "b4")]
    (fail,) = machine.step(MetadataWritten(6))
    assert isinstance(fail, Fail)


class TestUnreadableEntries:
    """Each copying ended at its first unreadable entry."""

    def repaired(self, *ids, lost=("b3",), targets=("b4",), away=("b3",)):
        machine, _ = replication(CLOSED, lost=lost)
        actions = machine.step(BookiesChosen(targets))
        writes, rest = answered(machine, actions, gives_all_but(*ids, away=away))
        (write,) = rest
        (fail,) = machine.step(MetadataWritten(6))
        return writes, write.metadata.fragments, fail.error

    @pytest.mark.parametrize("ids", [(0,), (9,), (3, 4), (0, 5, 9)])
    def test_other_entries_are_copied_and_unreadable_entries_reported(self, ids):
        writes, fragments, error = self.repaired(*ids)
        assert sorted(i for first, last, _ in writes for i in range(first, last + 1)) == sorted(
            set(range(10)) - set(ids)
        )
        record = replace(CLOSED, fragments=fragments)
        for entry_id in range(10):
            assert ("b3" if entry_id in ids else "b4") in record.write_set_of(entry_id)
        assert [i for one in error.entries for i in range(one.first, one.last + 1)] == list(ids)
        assert not any(one.lost for one in error.entries), "the lost bookie may have them"

    def test_two_lost_bookies_stay_in_the_ensemble_of_unreadable_entries(self):
        _, fragments, _ = self.repaired(4, lost=("b2", "b3"), targets=("b4", "b5"))
        assert fragments == (
            Fragment(0, ("b1", "b4", "b5")),
            Fragment(4, ("b1", "b2", "b3")),
            Fragment(5, ("b1", "b4", "b5")),
        )

    def test_next_attempt_copies_only_the_remaining_entries(self):
        _, fragments, _ = self.repaired(4)
        machine, actions = replication(replace(CLOSED, fragments=fragments))
        assert actions == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]
        (write,) = copied(machine, machine.step(BookiesChosen(("b4",))), 4, 4)
        assert "b3" not in write.metadata.bookies()

    def test_number_of_fragments_is_bounded_with_many_unreadable_entries(self):
        found = metadata(state=LedgerState.CLOSED, last_entry_id=999, length=100)
        machine, _ = replication(found)
        ids = range(0, 1000, 3)
        (write,) = answered(machine, machine.step(BookiesChosen(("b4",))), gives_all_but(*ids))[1]
        assert 100 < len(write.metadata.fragments) <= 201
        assert all("b3" in write.metadata.write_set_of(i) for i in ids)
        (fail,) = machine.step(MetadataWritten(6))
        assert [(one.first, one.last) for one in fail.error.entries] == [(i, i) for i in ids]

    def test_target_that_fails_midway_is_named_for_its_copied_entries(self):
        machine, _ = replication(CLOSED, run_entries_max=5)
        first, second = machine.step(BookiesChosen(("b4",)))
        copied(machine, [first], 0, 4)
        machine.step(ReadAnswered(second.bookie, 5, 9, OK, "entries"))
        (write,) = machine.step(AddAnswered("b4", 5, 9, Unknown(UnknownReason.READ_ONLY)))
        assert write.metadata.fragments == (Fragment(0, ("b1", "b2", "b4")), Fragment(5, ("b1", "b2", "b3")))
        (fail,) = machine.step(MetadataWritten(6))
        assert str(fail.error) == (
            "ledger 7: entries 5..9 could not be copied to b4 (b4: read-only); they are tried again"
        )


def test_refused_copy_fails_the_replication():
    machine, _ = replication(CLOSED)
    (read,) = machine.step(BookiesChosen(("b4",)))
    machine.step(ReadAnswered(read.bookie, 0, 9, OK, "entries"))
    (fail,) = machine.step(AddAnswered("b4", 0, 9, LOST))
    assert isinstance(fail.error, LedgerRecoveryError)


def test_replication_without_spare_bookies_fails():
    machine, _ = replication(CLOSED)
    assert machine.step(NoBookies(error := NotEnoughBookiesError("none is left"))) == [Fail(error)]


def test_too_few_spares_still_replace_some_lost_bookies():
    """Four of five bookies are left: the fragment returns to two copies, and the error names the missing bookie."""
    machine, _ = replication(CLOSED, lost=("b2", "b3"))
    assert machine.step(NoBookies(NotEnoughBookiesError("two"))) == [ChooseBookies(("b1", "b2", "b3"), ("b2",))]
    (write,) = copied(machine, machine.step(BookiesChosen(("b4",))), 0, 9)
    assert write.metadata.fragments == (Fragment(0, ("b1", "b4", "b3")),)
    assert machine.step(MetadataWritten(9)) == [ChooseBookies(("b1", "b4", "b3"), ("b3",))]
    assert machine.step(NoBookies(error := NotEnoughBookiesError("one"))) == [Fail(error)]


class TestUnrepairableFragment:
    """BookKeeper gives up a ledger at its first failing fragment."""

    TWO = metadata(
        1, 1, 1, LedgerState.CLOSED, (Fragment(0, ("b1",)), Fragment(5, ("b2",))), last_entry_id=9, length=100
    )

    def test_other_fragments_are_repaired_before_the_error(self):
        machine, actions = replication(self.TWO, lost=("b1", "b2"))
        assert actions == [ChooseBookies(("b1",), ("b1",))]
        actions = machine.step(BookiesChosen(("b4",)))
        assert answered(machine, actions, gives_all_but(away=("b1",)))[1] == [ChooseBookies(("b2",), ("b2",))]
        (read,) = machine.step(BookiesChosen(("b4",)))
        machine.step(ReadAnswered(read.bookie, 5, 9, OK, "entries"))
        (write,) = machine.step(AddAnswered("b4", 5, 9, OK))
        (fail,) = machine.step(MetadataWritten(6))
        assert write.metadata.fragments == (Fragment(0, ("b1",)), Fragment(5, ("b4",)))
        assert "entries 0..4 could not be read (b1: not reachable)" in str(fail.error)

    def test_error_counts_the_unrepaired_fragments(self):
        machine, _ = replication(self.TWO, lost=("b1", "b2"))
        machine.step(NoBookies(NotEnoughBookiesError("none is left")))
        (fail,) = machine.step(NoBookies(NotEnoughBookiesError("none is left")))
        assert str(fail.error) == "2 fragments of ledger 7 were not repaired, the first one: none is left"

    def test_last_fragment_is_still_closed(self):
        found = metadata(1, 1, 1, fragments=(Fragment(0, ("b1",)), Fragment(5, ("b1",))))
        machine, _ = replication(found, lost=("b1",))
        assert machine.step(NoBookies(NotEnoughBookiesError("none is left"))) == [WaitForWriter(30.0)]


def test_delivering_replica_is_asked_first_and_a_lost_replica_last():
    """A dead bookie at the head of the ensemble would delay every run."""
    machine, _ = replication(CLOSED, lost=("b1",), run_entries_max=6)
    first, second = machine.step(BookiesChosen(("b4",)))
    assert (first.bookie, second.bookie) == ("b2", "b2")
    (other,) = machine.step(ReadAnswered("b2", 0, -1, LOST))
    assert other.bookie == "b3"
    _, third = machine.step(ReadAnswered("b3", 0, 3, OK, "entries"))
    assert third == SendRead("b3", 4, 5)


class TestMisplacedBookie:
    def test_misplaced_bookie_of_a_closed_ledger_is_replaced(self):
        machine = LedgerReplication((), 30.0, misplaced=("b3",))
        assert machine.step(MetadataRead(CLOSED, 5)) == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]

    def test_misplaced_bookie_of_an_open_ledger_fences_no_writer(self):
        assert LedgerReplication((), 30.0, misplaced=("b3",)).step(MetadataRead(OPEN, 5)) == [Finish(OPEN)]


class TestOpenLedger:
    def test_writer_has_the_grace_time_to_replace_the_bookie(self):
        machine, actions = replication(OPEN)
        assert actions == [WaitForWriter(30.0, ("b1", "b2"))]
        assert machine.step(WriterWaitedFor(30.0)) == [ReadMetadata()]
        replaced = OPEN.with_ensemble(4, ("b1", "b2", "b4"))
        assert machine.step(MetadataRead(replaced, 6)) == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]

    def test_ledger_is_recovered_after_the_grace_time(self):
        machine, _ = replication(OPEN)
        machine.step(WriterWaitedFor(30.0))
        assert machine.step(MetadataRead(OPEN, 5)) == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]
        (write,) = machine.step(BookiesChosen(("b4",)))
        assert write.metadata.state is LedgerState.IN_RECOVERY
        assert machine.step(MetadataWritten(6)) == [SendReadLac(b, fence=True) for b in ("b1", "b2", "b3")]

    def test_living_writer_keeps_its_ledger_up_to_a_bound(self):
        machine, _ = replication(OPEN)
        for seconds in (30.0, 30.0, 10.0):
            machine.step(WriterWaitedFor(30.0, lives=True))
            assert machine.step(MetadataRead(OPEN, 5)) == [WaitForWriter(seconds, ("b1", "b2"))]
        machine.step(WriterWaitedFor(10.0, lives=True))
        assert machine.step(MetadataRead(OPEN, 5)) == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]

    def test_living_writer_keeps_its_ledger_without_a_grace_time_too(self):
        machine, _ = replication(OPEN, grace_seconds=0.0)
        machine.step(WriterWaitedFor(0.1, lives=True))
        (wait,) = machine.step(MetadataRead(OPEN, 5))
        assert isinstance(wait, WaitForWriter) and wait.grace_seconds > 0
        machine.step(WriterWaitedFor(wait.grace_seconds))
        assert machine.step(MetadataRead(OPEN, 5)) == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]

    def test_living_writer_without_a_grace_time_is_not_fenced_if_no_bookie_is_free(self):
        machine, _ = replication(OPEN, grace_seconds=0.0)
        machine.step(WriterWaitedFor(100.0, lives=True))
        machine.step(MetadataRead(OPEN, 5))
        (fail,) = machine.step(NoBookies(NotEnoughBookiesError("none is left")))
        assert str(fail.error) == "none is left"

    def test_writer_that_dies_has_the_grace_time_after_its_last_sign(self):
        machine, _ = replication(OPEN)
        machine.step(WriterWaitedFor(30.0, lives=True))
        machine.step(MetadataRead(OPEN, 5))
        machine.step(WriterWaitedFor(30.0))
        assert machine.step(MetadataRead(OPEN, 5)) == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]

    def test_fenced_writer_that_is_connected_delays_nothing(self):
        begun = OPEN.in_recovery()
        machine, _ = replication(begun)
        machine.step(WriterWaitedFor(30.0, lives=True))
        assert machine.step(MetadataRead(begun, 5)) == [SendReadLac(b, fence=True) for b in ("b1", "b2", "b3")]

    def test_living_writer_is_not_fenced_if_no_bookie_is_free(self):
        """With three bookies, of which one was dead, autorecovery ended each live writer and gained no copy."""
        machine, _ = replication(OPEN)
        machine.step(WriterWaitedFor(100.0, lives=True))
        machine.step(MetadataRead(OPEN, 5))
        (fail,) = machine.step(NoBookies(NotEnoughBookiesError("none is left")))
        assert str(fail.error) == "none is left"

    def test_ledger_of_a_dead_writer_is_recovered_without_a_free_bookie(self):
        machine, _ = replication(OPEN)
        machine.step(WriterWaitedFor(30.0))
        machine.step(MetadataRead(OPEN, 5))
        (write,) = machine.step(NoBookies(NotEnoughBookiesError("none is left")))
        assert write.metadata.state is LedgerState.IN_RECOVERY

    def test_ledger_with_two_lost_bookies_is_recovered_if_one_is_free(self):
        machine, _ = replication(OPEN, lost=("b2", "b3"))
        machine.step(WriterWaitedFor(30.0))
        assert machine.step(MetadataRead(OPEN, 5)) == [ChooseBookies(("b1", "b2", "b3"), ("b2", "b3"))]
        assert machine.step(NoBookies(NotEnoughBookiesError("one is left"))) == [
            ChooseBookies(("b1", "b2", "b3"), ("b2",))
        ]
        (write,) = machine.step(BookiesChosen(("b4",)))
        assert write.metadata.state is LedgerState.IN_RECOVERY

    def test_begun_recovery_is_finished_without_a_free_bookie(self):
        begun = OPEN.in_recovery()
        machine, _ = replication(begun)
        machine.step(WriterWaitedFor(30.0))
        assert machine.step(MetadataRead(begun, 5)) == [SendReadLac(b, fence=True) for b in ("b1", "b2", "b3")]

    def test_too_short_a_wait_starts_the_grace_time_again(self):
        machine, _ = replication(OPEN)
        machine.step(WriterWaitedFor(29.0))
        assert machine.step(MetadataRead(OPEN, 5)) == [WaitForWriter(30.0, ("b1", "b2"))]

    def test_open_ledger_without_lost_bookies_needs_nothing(self):
        assert replication(OPEN, lost=("b9",))[1] == [Finish(OPEN)]


def test_deadline_ends_replication():
    machine, _ = replication(OPEN)
    (fail,) = machine.step(DeadlinePassed())
    assert isinstance(fail.error, LedgerRecoveryError)
    assert machine.step(WriterWaitedFor(30.0)) == []


def refused_by(machine, actions, *refusing):
    """Answer all reads with entries, and writes by these bookies with a refusal of the password."""
    rest, todo = [], list(actions)
    while todo:
        action = todo.pop(0)
        match action:
            case SendRead():
                todo += machine.step(gives_all_but()(action))
            case SendAdd():
                for target in action.bookies:
                    answer = Unknown(UnknownReason.UNAUTHORIZED) if target in refusing else OK
                    todo += machine.step(AddAnswered(target, action.first, action.last, answer))
            case _:
                rest.append(action)
    return rest


def test_repair_goes_on_with_another_bookie_if_one_refuses_the_password():
    """A stranger's entry at the spare bookie blocked the repair for ever."""
    machine, _ = replication(CLOSED)
    (choose,) = refused_by(machine, machine.step(BookiesChosen(("b4",))), "b4")
    assert choose == ChooseBookies(("b1", "b2", "b3"), ("b3",), refusing=("b4",))
    (write,) = refused_by(machine, machine.step(BookiesChosen(("b5",))), "b4")
    assert write.metadata.fragments[0].ensemble == ("b1", "b2", "b5")


def test_repair_names_the_password_if_all_bookies_refuse_it():
    machine, _ = replication(CLOSED)
    refused_by(machine, machine.step(BookiesChosen(("b4",))), "b4")
    (fail,) = machine.step(NoBookies(NotEnoughBookiesError("no other")))
    assert "wrong password" in str(fail.error)

"""Transition tables of the reading and recovering machines, checked for every pair of a state and an event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.lab.simulation.values import freeze
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    DeadlinePassed,
    Finish,
    HeldAnswered,
    LacAnswered,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadAnswered,
    ReadIsLate,
    SendRead,
    SendReadLac,
)
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState, Replication
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.ledger.transitions import IllegalEventError
from bookspark.protocol.reading import lac_read, lac_wait, range_read, recovery
from bookspark.protocol.reading.lac_read import LacRead, LacReadPhase
from bookspark.protocol.reading.lac_wait import LacWait, LacWaitPhase
from bookspark.protocol.reading.range_read import RangeRead, RangeReadPhase
from bookspark.protocol.reading.read_order import ReadOrder
from bookspark.protocol.reading.recovery import LedgerRecovery, RecoveryPhase
from tests.protocol.event_samples import samples
from tests.protocol.ledgers import LOST, NO, OK, metadata
from tests.protocol.transitions_kit import TransitionsKit

IN_RECOVERY = metadata(state=LedgerState.IN_RECOVERY)
CLOSED = metadata(state=LedgerState.CLOSED, last_entry_id=0, length=10)
ALL = ("b1", "b2", "b3")
LIMBO = Unknown(UnknownReason.LIMBO)


def stepped(machine, *events):
    for event in events:
        machine.step(event)
    return machine


# -- RangeRead: entries 0..9; b2 delivered 0 to 4 while b1 was late


def range_read_in(phase):
    read = RangeRead(metadata(), 0, 9, ReadOrder(sticky=False), rereads_metadata=True)
    if phase is RangeReadPhase.NEW:
        return read
    read.start()
    stepped(read, ReadIsLate(0), ReadAnswered("b2", 0, 4, OK, "0..4"))
    if phase is RangeReadPhase.READING:
        return read
    while read.phase is RangeReadPhase.READING:
        read.step(ReadAnswered(next(iter(read._asked)), 5, 4, LOST))
    return read if phase is RangeReadPhase.LOOKING else stepped(read, MetadataRead(metadata(), 1))


def next_read(read):
    asked = next(iter(read._asked), None)
    return ReadAnswered("b1", 0, 9, OK, "0..9") if asked is None else ReadAnswered(asked, 5, 9, OK, "5..9")


RANGE_READ = TransitionsKit(
    {phase.name: lambda phase=phase: range_read_in(phase) for phase in RangeReadPhase},
    samples(ReadAnswered=next_read, ReadIsLate=lambda read: ReadIsLate(read.next_entry_id)),
    lambda machine, event: range_read.TRANSITIONS[machine.phase].get(type(event)),
)

# -- LacRead


def lac_read_in(phase):
    read = LacRead(metadata())
    if phase is LacReadPhase.NEW:
        return read
    read.start()
    return read if phase is LacReadPhase.ASKING else stepped(read, DeadlinePassed())


LAC_READ = TransitionsKit(
    {phase.name: lambda phase=phase: lac_read_in(phase) for phase in LacReadPhase},
    samples(),
    lambda machine, event: lac_read.TRANSITIONS[machine.phase].get(type(event)),
)

# -- LacWait


def lac_wait_in(phase):
    wait = LacWait(metadata(), 5)
    if phase is LacWaitPhase.NEW:
        return wait
    wait.start()
    if phase is not LacWaitPhase.WAITING:
        stepped(wait, *(LacAnswered(bookie, LOST) for bookie in ALL * 2))
    return stepped(wait, DeadlinePassed()) if phase is LacWaitPhase.DONE else wait


LAC_WAIT = TransitionsKit(
    {phase.name: lambda phase=phase: lac_wait_in(phase) for phase in LacWaitPhase},
    samples(
        LacAnswered=lambda wait: LacAnswered("b1", OK, 4),
        MetadataRead=lambda wait: MetadataRead(metadata().with_ensemble(3, ("b1", "b2", "b4")), 1),
    ),
    lambda machine, event: lac_wait.TRANSITIONS[machine.phase].get(type(event)),
)

# -- LedgerRecovery: in its second round where possible, so that bookies may be late with any kind of answer


def fenced(machine, last_add_confirmed=-1):
    return stepped(machine, LacAnswered("b1", OK, last_add_confirmed), LacAnswered("b2", OK, last_add_confirmed))


def written(machine):
    return stepped(machine, AddAnswered("b1", 0, 0, OK), AddAnswered("b2", 0, 0, OK))


def denied(machine):
    entry_id = machine.next_entry_id
    return stepped(machine, *(ReadAnswered(bookie, entry_id, entry_id - 1, NO) for bookie in ("b1", "b2")))


ENTRY_0 = ReadAnswered("b1", 0, 0, OK, "e0", 10)


def nobody_knows(machine):
    """The next entry is unknown: its loss may be accepted if no bookie has a later entry."""
    entry_id = machine.next_entry_id
    answers = (("b1", NO), ("b2", LIMBO), ("b3", LIMBO))
    return stepped(machine, *(ReadAnswered(bookie, entry_id, entry_id - 1, answer) for bookie, answer in answers))


def none_is_later(machine):
    first = machine.next_entry_id + 1
    return stepped(machine, *(HeldAnswered(bookie, first, first - 1, OK) for bookie in ALL))


def recovery_in(phase):
    machine = LedgerRecovery(replaces_bookies=True, accepted_loss=AcceptedLoss("ann", 1))
    if phase is RecoveryPhase.NEW:
        return machine
    machine.step(MetadataRead(metadata(), 0))
    if phase is RecoveryPhase.STARTING:
        return machine
    machine.step(MetadataWritten(1))
    none_is_later(nobody_knows(written(stepped(fenced(machine), ENTRY_0))))
    if phase is RecoveryPhase.CLOSING:
        return machine
    machine.step(MetadataConflict())
    if phase is RecoveryPhase.REREADING:
        return machine
    machine.step(MetadataRead(IN_RECOVERY, 2))
    match phase:
        case RecoveryPhase.READING:
            fenced(machine)
        case RecoveryPhase.LOOKING:
            nobody_knows(fenced(machine, 0))
        case RecoveryPhase.WRITING | RecoveryPhase.CHOOSING:
            stepped(fenced(machine), ENTRY_0)
            if phase is RecoveryPhase.CHOOSING:
                stepped(machine, AddAnswered("b2", 0, 0, LOST), AddAnswered("b3", 0, 0, LOST))
        case RecoveryPhase.MEASURING:
            denied(fenced(machine, 0))
        case RecoveryPhase.DONE:
            machine.step(DeadlinePassed())
    return machine


def next_recovery_read(machine):
    if machine.phase is RecoveryPhase.READING:
        return ReadAnswered("b3", machine.next_entry_id, machine.next_entry_id, OK, "e0", 10)
    return ENTRY_0


RECOVERY = TransitionsKit(
    {phase.name: lambda phase=phase: recovery_in(phase) for phase in RecoveryPhase},
    samples(
        ReadAnswered=next_recovery_read,
        LacAnswered=lambda machine: LacAnswered("b3", OK, 0),
        HeldAnswered=lambda machine: HeldAnswered("b1", 2, 1, OK),
        BookiesChosen=lambda machine: BookiesChosen(("b8", "b9")),
    ),
    lambda machine, event: recovery.TRANSITIONS[machine.phase].get(type(event)),
)

KITS = {
    "range_read": (RANGE_READ, RangeReadPhase, range_read.TRANSITIONS),
    "lac_read": (LAC_READ, LacReadPhase, lac_read.TRANSITIONS),
    "lac_wait": (LAC_WAIT, LacWaitPhase, lac_wait.TRANSITIONS),
    "recovery": (RECOVERY, RecoveryPhase, recovery.TRANSITIONS),
}


@pytest.mark.parametrize("event_type", RANGE_READ.events())
def test_range_read_follows_its_table(event_type):
    RANGE_READ.check(event_type)


@pytest.mark.parametrize("event_type", LAC_READ.events())
def test_lac_read_follows_its_table(event_type):
    LAC_READ.check(event_type)


@pytest.mark.parametrize("event_type", LAC_WAIT.events())
def test_lac_wait_follows_its_table(event_type):
    LAC_WAIT.check(event_type)


@pytest.mark.parametrize("event_type", RECOVERY.events())
def test_recovery_follows_its_table(event_type):
    RECOVERY.check(event_type)


@pytest.mark.parametrize("name", KITS)
def test_each_table_is_complete_and_every_taken_event_acts(name):
    kit, phases, table = KITS[name]
    assert {place: make().phase.name for place, make in kit.places.items()} == {place: place for place in kit.places}
    assert set(table) == set(phases)
    assert {event_type for row in table.values() for event_type in row} <= set(kit.samples)
    assert kit.idle_places(lambda machine: machine.phase) == set()


class TestUnrequestedAnswers:
    """The table allows the event type, but the content is impossible."""

    @pytest.mark.parametrize(
        "event",
        [
            ReadAnswered("b9", 5, 9, OK, "5..9"),
            ReadAnswered("b2", 6, 9, OK, "6..9"),
            ReadAnswered("b1", 5, 10, OK, "5..10"),
            ReadAnswered("b1", 5, 3, OK),
            ReadAnswered("b1", 5, 5, NO, "5", ahead=((10, "10"),)),
            ReadAnswered("b1", 5, 6, NO, "5..6", ahead=((6, "6"),)),
            ReadAnswered("b1", -1, 4, OK),
            ReadIsLate(6),
        ],
    )
    def test_range_read_refuses_unrequested_answers(self, event):
        read = RangeRead(metadata(), 0, 9)
        read.start()
        read.step(ReadAnswered("b1", 0, 4, OK, "0..4"))
        RANGE_READ.check_illegal(read, event)

    def test_range_read_refuses_a_second_answer_of_a_bookie(self):
        read = RangeRead(metadata(), 0, 9)
        read.start()
        read.step(ReadAnswered("b1", 0, -1, LOST))
        RANGE_READ.check_illegal(read, ReadAnswered("b1", 0, -1, LOST))

    def test_lac_read_refuses_unrequested_answers(self):
        LAC_READ.check_illegal(lac_read_in(LacReadPhase.ASKING), LacAnswered("b4", OK, 5))

    def test_long_poll_refuses_unrequested_answers(self):
        LAC_WAIT.check_illegal(lac_wait_in(LacWaitPhase.WAITING), LacAnswered("b4", OK, 5))

    @pytest.mark.parametrize("phase", list(RecoveryPhase)[2:])
    @pytest.mark.parametrize(
        "event",
        [
            LacAnswered("b4", OK, 9),
            ReadAnswered("b4", 0, 0, OK, "e0", 10),
            ReadAnswered("b1", 2, 2, OK, "e2", 30),
            ReadAnswered("b1", 1, -1, NO),
            AddAnswered("b4", 0, 0, OK),
            AddAnswered("b1", 0, 1, OK),
            AddAnswered("b1", 0, -1, OK),
        ],
    )
    def test_recovery_refuses_unrequested_answers(self, phase, event):
        RECOVERY.check_illegal(recovery_in(phase), event)

    @pytest.mark.parametrize("chosen", [("b8",), ("b8", "b8"), ("b8", "b1"), ("b8", "b2"), ("b7", "b8", "b9"), ()])
    def test_recovery_refuses_unrequested_bookies(self, chosen):
        RECOVERY.check_illegal(recovery_in(RecoveryPhase.CHOOSING), BookiesChosen(chosen))

    @pytest.mark.parametrize("event", [ENTRY_0, AddAnswered("b1", 0, 0, OK)])
    def test_recovery_refuses_answers_to_later_requests(self, event):
        RECOVERY.check_illegal(stepped(LedgerRecovery(), MetadataRead(IN_RECOVERY, 1)), event)


class TestLateAnswers:
    """Late answers are legal and change nothing."""

    def unchanged(self, machine, event):
        before = freeze(machine)
        assert machine.step(event) == [] and freeze(machine) == before

    def test_late_answer_of_a_former_ensemble_member_changes_nothing(self):
        """The second round has other bookies than the first."""
        machine = stepped(LedgerRecovery(), MetadataRead(IN_RECOVERY, 1))
        denied(fenced(machine))
        assert machine.phase is RecoveryPhase.CLOSING
        moved = metadata(state=LedgerState.IN_RECOVERY, fragments=(Fragment(0, ("b4", "b5", "b6")),))
        stepped(machine, MetadataConflict(), MetadataRead(moved, 2))
        self.unchanged(machine, LacAnswered("b3", OK, 7))
        stepped(machine, LacAnswered("b4", OK), LacAnswered("b5", OK))
        self.unchanged(machine, ReadAnswered("b3", 0, 0, OK, "e0", 10))

    def test_late_answer_for_an_entry_delivered_by_another_replica_changes_nothing(self):
        self.unchanged(range_read_in(RangeReadPhase.READING), ReadAnswered("b1", 0, 9, OK, "0..9"))
        self.unchanged(range_read_in(RangeReadPhase.READING), ReadIsLate(4))

    def test_late_answer_of_a_bookie_replaced_in_a_write_back_changes_nothing(self):
        machine = stepped(recovery_in(RecoveryPhase.CHOOSING), BookiesChosen(("b8", "b9")))
        self.unchanged(machine, AddAnswered("b2", 0, 0, OK))


def test_write_back_with_enough_copies_waits_for_the_running_choice():
    """Two refusals belong to the round before, and the same bookies accept the run in this round. Continuing at once would
    leave a running choice that the next run takes for its own."""
    machine = recovery_in(RecoveryPhase.CHOOSING)
    stepped(machine, AddAnswered("b2", 0, 0, OK), AddAnswered("b3", 0, 0, OK))
    assert machine.phase is RecoveryPhase.CHOOSING
    for event in (BookiesChosen(("b8", "b9")), samples()[NoBookies](None)):
        machine = recovery_in(RecoveryPhase.CHOOSING)
        stepped(machine, AddAnswered("b2", 0, 0, OK), AddAnswered("b3", 0, 0, OK))
        assert machine.step(event) == [SendRead(bookie, 1, 10_000, fence=True) for bookie in ("b2", "b3", "b1")]


def test_long_poll_continues_after_an_answer_during_the_metadata_read():
    wait = lac_wait_in(LacWaitPhase.LOOKING)
    assert wait.step(LacAnswered("b1", OK, 4)) == [SendReadLac("b1", wait_for=5)]
    assert wait.step(MetadataRead(metadata(), 0)) == []
    assert wait.phase is LacWaitPhase.WAITING
    assert wait.step(LacAnswered("b1", OK, 5)) == [Finish(metadata())]


def test_long_poll_whose_last_bookie_failed_during_the_metadata_read_asks_all_again():
    """No bookie was asked any more, and the wait lasted until its deadline."""
    wait = stepped(lac_wait_in(LacWaitPhase.LOOKING), LacAnswered("b1", OK, 4), LacAnswered("b1", LOST))
    assert wait.step(MetadataRead(metadata(), 0)) == [SendReadLac(bookie, wait_for=5) for bookie in ALL]
    assert wait.phase is LacWaitPhase.WAITING


@pytest.mark.parametrize("phase", [RecoveryPhase.READING, RecoveryPhase.MEASURING])
def test_ok_answer_without_an_entry_counts_as_a_bad_request(phase):
    """The recovery ended in an AssertionError, and so did each further recovery while the bookie answered so."""
    machine = recovery_in(phase)
    first = machine._round.first
    assert machine.step(ReadAnswered("b1", first, first - 1, OK)) == []
    assert machine.phase is phase
    assert machine._round.answers["b1"].reason is UnknownReason.BAD_REQUEST


@pytest.mark.parametrize(
    "machine",
    [range_read_in(RangeReadPhase.LOOKING), lac_wait_in(LacWaitPhase.WAITING), recovery_in(RecoveryPhase.REREADING)],
    ids=["range read", "LAC wait", "recovery"],
)
@pytest.mark.parametrize("other", [{"ledger_id": 8}, {"ack_quorum": 1}, {"replication": Replication.GUARANTEED}])
def test_metadata_of_another_ledger_is_illegal(machine, other):
    """Its bookies would have been asked for this ledger's entries."""
    RECOVERY.check_illegal(machine, MetadataRead(replace(metadata(), **other), 5))


@pytest.mark.parametrize("machine", [RangeRead(metadata(), 0, 9), LacRead(metadata()), LacWait(metadata(), 5)])
def test_machine_starts_once(machine):
    machine.start()
    before = freeze(machine)
    with pytest.raises(IllegalEventError):
        machine.start()
    assert freeze(machine) == before

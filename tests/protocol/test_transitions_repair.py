"""Transition tables of the repair machines, checked for every pair of a state and an event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.errors import LedgerRecoveryError
from bookspark.lab.simulation.values import freeze
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    DeadlinePassed,
    Fail,
    Finish,
    LacAnswered,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    ReadAnswered,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.ledger.transitions import Cell
from bookspark.protocol.reading import recovery
from bookspark.protocol.reading.recovery import RecoveryPhase
from bookspark.protocol.repair import bookie_healing, entry_copying, ledger_replication
from bookspark.protocol.repair.bookie_healing import HealingPhase, HeldListed, LedgerHealing, LimboIsCleared
from bookspark.protocol.repair.entry_copying import CopyingPhase, EntryCopying
from bookspark.protocol.repair.ledger_replication import LedgerReplication, ReplicationPhase, WriterWaitedFor
from bookspark.protocol.repair.replication_plan import Copy
from tests.protocol.event_samples import samples
from tests.protocol.ledgers import LOST, NO, OK, metadata
from tests.protocol.transitions_kit import TransitionsKit

IN_RECOVERY = metadata(state=LedgerState.IN_RECOVERY)
CLOSED = metadata(state=LedgerState.CLOSED, last_entry_id=0, length=10)


def stepped(machine, *events):
    for event in events:
        machine.step(event)
    return machine


# -- EntryCopying: entries 0..9 to b4


def copying_in(phase):
    machine = EntryCopying(metadata(state=LedgerState.CLOSED, last_entry_id=9, length=100), [Copy(0, 9, "b4")], 5)
    if phase is CopyingPhase.NEW:
        return machine
    machine.start()
    return stepped(machine, DeadlinePassed()) if phase is CopyingPhase.DONE else machine


def copying_writes():
    """One run is being written, the other is being read."""
    machine = copying_in(CopyingPhase.COPYING)
    return stepped(machine, next_read(machine))


def copying_of(machine):
    return machine if isinstance(machine, EntryCopying) else getattr(machine, "_copying", None)


def next_read(machine):
    copying = copying_of(machine)
    if copying is None or not copying._readings:
        return ReadAnswered("b3", 0, 0, OK, "e0", 10)
    asked = next(iter(copying._readings.values())).asked
    return ReadAnswered(asked.bookie, asked.first, asked.last, OK, "entries", 100)


def next_ack(machine):
    copying = copying_of(machine)
    if copying is None or not copying._writing:
        return AddAnswered("b3", 0, 0, OK)
    return AddAnswered(*next(iter(copying._writing)), OK)


def copying_cell(machine, event):
    cell = entry_copying.TRANSITIONS[machine.phase].get(type(event))
    is_answer = isinstance(event, ReadAnswered | AddAnswered)
    return None if is_answer and cell is Cell.TAKEN and not machine.awaits(event) else cell


COPYING = TransitionsKit(
    {phase.name: lambda phase=phase: copying_in(phase) for phase in CopyingPhase} | {"COPYING-WRITING": copying_writes},
    samples(ReadAnswered=next_read, AddAnswered=next_ack),
    copying_cell,
)


# -- a whole recovery up to a given phase, with all answers of b3 late


def recovery_steps():
    """Each event with the phase that it leads to."""
    yield MetadataRead(metadata(), 0), RecoveryPhase.STARTING
    yield MetadataWritten(1), RecoveryPhase.FENCING
    yield LacAnswered("b1", OK, -1), RecoveryPhase.FENCING
    yield LacAnswered("b2", OK, -1), RecoveryPhase.READING
    yield ReadAnswered("b1", 0, 0, OK, "e0", 10), RecoveryPhase.WRITING
    yield AddAnswered("b1", 0, 0, OK), RecoveryPhase.WRITING
    yield AddAnswered("b2", 0, 0, OK), RecoveryPhase.READING
    yield ReadAnswered("b1", 1, 0, NO), RecoveryPhase.READING
    yield ReadAnswered("b2", 1, 0, NO), RecoveryPhase.CLOSING
    yield MetadataConflict(), RecoveryPhase.REREADING
    yield MetadataRead(IN_RECOVERY, 2), RecoveryPhase.FENCING
    yield LacAnswered("b1", OK, 0), RecoveryPhase.FENCING
    yield LacAnswered("b2", OK, 0), RecoveryPhase.READING
    yield ReadAnswered("b1", 1, 0, NO), RecoveryPhase.READING
    yield ReadAnswered("b2", 1, 0, NO), RecoveryPhase.MEASURING
    yield ReadAnswered("b1", 0, 0, OK, "e0", 10), RecoveryPhase.CLOSING
    yield MetadataWritten(3), RecoveryPhase.DONE


def recovered(machine, until=RecoveryPhase.DONE):
    """``machine`` with its recovery in the last occurrence of the phase ``until``."""
    steps = list(recovery_steps())
    last = max(i for i, (_, phase) in enumerate(steps) if phase is until)
    while last > 0 and steps[last - 1][1] is until:
        last -= 1
    (begin, _), *others = steps[: last + 1]
    # Autorecovery fences a writer only if there is a bookie for the copies.
    chosen = [BookiesChosen(("b4",))] if isinstance(machine, LedgerReplication) else []
    return stepped(machine, begin, *chosen, *(event for event, _ in others))


# -- LedgerHealing


def healing_in(phase):
    machine = LedgerHealing("b2", 3)
    if phase is HealingPhase.NEW:
        return machine
    if phase is HealingPhase.RECOVERING:
        return recovered(machine, RecoveryPhase.REREADING)
    recovered(machine)
    match phase:
        case HealingPhase.COPYING:
            machine.step(HeldListed(()))
        case HealingPhase.CLEARING:
            machine.step(HeldListed(((0, 0),)))
        case HealingPhase.DONE:
            machine.step(DeadlinePassed())
    return machine


def healing_copies():
    """While the copy is being written."""
    machine = healing_in(HealingPhase.COPYING)
    return stepped(machine, next_read(machine))


def healing_cell(machine, event):
    cell = bookie_healing.TRANSITIONS[machine.phase].get(type(event))
    if machine._recovery is not None and cell is not None:
        return recovery.TRANSITIONS[machine._recovery.phase].get(type(event))
    if isinstance(event, ReadAnswered | AddAnswered) and cell is Cell.TAKEN and not machine._copying.awaits(event):
        return Cell.LATE  # an answer to the recovery
    return cell


NOT_WITHIN = (RecoveryPhase.NEW, RecoveryPhase.LOOKING, RecoveryPhase.CHOOSING, RecoveryPhase.DONE)
"""Repair accepts no loss, and healing replaces no bookie."""


def recovering_places(make):
    return {
        f"RECOVERING-{phase.name}": lambda phase=phase: recovered(make(), phase)
        for phase in RecoveryPhase
        if phase not in NOT_WITHIN
    }


HEALING = TransitionsKit(
    {phase.name: lambda phase=phase: healing_in(phase) for phase in HealingPhase}
    | recovering_places(lambda: LedgerHealing("b2", 3))
    | {"COPYING-WRITING": healing_copies},
    samples(ReadAnswered=next_read, AddAnswered=next_ack, LacAnswered=lambda machine: LacAnswered("b3", OK, 0)),
    healing_cell,
)

# -- LedgerReplication of a ledger that lost b3


def replication_in(phase):
    """After a ledger recovery, where the phase allows it."""
    machine = LedgerReplication({"b3"}, grace_seconds=30.0)
    if phase is ReplicationPhase.NEW:
        return machine
    machine.step(MetadataRead(metadata(), 0))
    if phase is ReplicationPhase.WAITING:
        return machine
    machine.step(WriterWaitedFor(30.0))
    if phase is ReplicationPhase.LOOKING_AGAIN:
        return machine
    if phase is ReplicationPhase.RECOVERING:
        return recovered(machine, RecoveryPhase.REREADING)
    recovered(machine)
    if phase is ReplicationPhase.CHOOSING:
        return machine
    machine.step(BookiesChosen(("b4",)))
    if phase is ReplicationPhase.COPYING:
        return machine
    stepped(machine, next_read(machine))
    stepped(machine, next_ack(machine))
    if phase is ReplicationPhase.REREADING:
        machine.step(MetadataConflict())
    return stepped(machine, DeadlinePassed()) if phase is ReplicationPhase.DONE else machine


def replication_copies():
    machine = replication_in(ReplicationPhase.COPYING)
    return stepped(machine, next_read(machine))


def after_waiting():
    machine = LedgerReplication({"b3"}, grace_seconds=30.0)
    return stepped(machine, MetadataRead(metadata(), 0), WriterWaitedFor(30.0))


def replication_choosing():
    """In the middle of the recovery."""
    machine = recovered(after_waiting(), RecoveryPhase.REREADING)
    stepped(machine, MetadataRead(IN_RECOVERY, 2), LacAnswered("b1", OK), LacAnswered("b2", OK))
    stepped(machine, ReadAnswered("b1", 0, 0, OK, "e0", 10))
    return stepped(machine, AddAnswered("b1", 0, 0, LOST), AddAnswered("b2", 0, 0, LOST))


def replication_cell(machine, event):
    cell = ledger_replication.TRANSITIONS[machine.phase].get(type(event))
    if machine._recovery is not None and cell is not None:
        return recovery.TRANSITIONS[machine._recovery.phase].get(type(event))
    if isinstance(event, ReadAnswered | AddAnswered) and cell is Cell.TAKEN and not machine._copying.awaits(event):
        return Cell.LATE  # an answer to the recovery
    return cell


def chosen(machine):
    return BookiesChosen(("b4",) if machine._recovery is None else ("b4", "b5"))


REPLICATION = TransitionsKit(
    {phase.name: lambda phase=phase: replication_in(phase) for phase in ReplicationPhase}
    | recovering_places(after_waiting)
    | {"COPYING-WRITING": replication_copies, "RECOVERING-CHOOSING": replication_choosing},
    samples(
        MetadataRead=lambda machine: MetadataRead(CLOSED, 4),
        ReadAnswered=next_read,
        AddAnswered=next_ack,
        LacAnswered=lambda machine: LacAnswered("b3", OK, 0),
        BookiesChosen=chosen,
    ),
    replication_cell,
)


@pytest.mark.parametrize("event_type", COPYING.events())
def test_copying_follows_its_table(event_type):
    COPYING.check(event_type)


@pytest.mark.parametrize("event_type", HEALING.events())
def test_healing_follows_its_table(event_type):
    HEALING.check(event_type)


@pytest.mark.parametrize("event_type", REPLICATION.events())
def test_replication_follows_its_table(event_type):
    REPLICATION.check(event_type)


@pytest.mark.parametrize(
    ("kit", "phases", "table"),
    [
        (COPYING, CopyingPhase, entry_copying.TRANSITIONS),
        (HEALING, HealingPhase, bookie_healing.TRANSITIONS),
        (REPLICATION, ReplicationPhase, ledger_replication.TRANSITIONS),
    ],
    ids=["copying", "healing", "replication"],
)
def test_each_table_is_complete_and_every_taken_event_acts(kit, phases, table):
    found = {place: make().phase.name for place, make in kit.places.items()}
    assert all(place.split("-")[0] == phase for place, phase in found.items())
    assert kit.states_without_a_place(phases, lambda machine: machine.phase) == set()
    assert set(table) == set(phases)
    assert {event_type for row in table.values() for event_type in row} <= set(kit.samples)
    assert kit.idle_places(lambda machine: machine.phase) == set()


def test_places_of_the_inner_recovery_have_the_named_phase():
    for make in (lambda: LedgerHealing("b2", 3), after_waiting):
        for place, at in recovering_places(make).items():
            assert f"RECOVERING-{at()._recovery.phase.name}" == place
    assert replication_choosing()._recovery.phase is RecoveryPhase.CHOOSING


class TestUnrequestedAnswers:
    @pytest.mark.parametrize(
        "event",
        [
            ReadAnswered("b4", 0, 4, OK, "entries"),
            ReadAnswered("b2", 0, 4, OK, "entries"),
            ReadAnswered("b1", 1, 4, OK, "entries"),
            ReadAnswered("b1", 0, 5, OK, "entries"),
            ReadAnswered("b1", 0, -2, NO),
        ],
    )
    def test_unrequested_reads_of_a_copying_are_illegal(self, event):
        COPYING.check_illegal(copying_in(CopyingPhase.COPYING), event)

    @pytest.mark.parametrize(
        "event", [AddAnswered("b1", 0, 4, OK), AddAnswered("b4", 0, 3, OK), AddAnswered("b4", 5, 9, OK)]
    )
    def test_unrequested_writes_of_a_copying_are_illegal(self, event):
        COPYING.check_illegal(copying_writes(), event)

    @pytest.mark.parametrize("chosen", [(), ("b4", "b5"), ("b1",), ("b3",)])
    def test_unrequested_bookies_of_a_replication_are_illegal(self, chosen):
        REPLICATION.check_illegal(replication_in(ReplicationPhase.CHOOSING), BookiesChosen(chosen))

    @pytest.mark.parametrize("phase", [ReplicationPhase.LOOKING_AGAIN, ReplicationPhase.REREADING])
    def test_metadata_of_another_ledger_is_illegal(self, phase):
        """It would have been written with the bookies of this ledger's copies."""
        REPLICATION.check_illegal(replication_in(phase), MetadataRead(replace(CLOSED, ledger_id=8), 5))

    @pytest.mark.parametrize("phase", ["CHOOSING", "COPYING", "REREADING", "NAMING"])
    def test_answers_to_a_recovery_that_never_ran_are_illegal(self, phase):
        """The ledger was closed when the replication began, so no recovery answer can be late."""
        machine = stepped(LedgerReplication({"b3"}, 30.0), MetadataRead(CLOSED, 3))
        for event in (BookiesChosen(("b4",)), next_read, next_ack, MetadataConflict()):
            if machine.phase.name == phase:
                break
            machine.step(event(machine) if callable(event) else event)
        assert machine.phase.name == phase
        for event in (LacAnswered("b1", OK), ReadAnswered("b2", 0, 0, OK, "e0"), AddAnswered("b1", 0, 0, OK)):
            REPLICATION.check_illegal(machine, event)


class TestInnerRecovery:
    """A refusal by the inner machine leaves the outer machine unchanged."""

    @pytest.mark.parametrize(
        "event",
        [LacAnswered("b9", OK), ReadAnswered("b1", 7, 7, OK, "e7"), AddAnswered("b1", 0, 7, OK), MetadataWritten(9)],
    )
    @pytest.mark.parametrize("make", [lambda: LedgerHealing("b2", 3), after_waiting], ids=["healing", "replication"])
    def test_refused_event_leaves_both_machines_unchanged(self, make, event):
        HEALING.check_illegal(recovered(make(), RecoveryPhase.REREADING), event)

    @pytest.mark.parametrize("late", [ReadAnswered("b3", 0, 0, OK, "e0", 10), AddAnswered("b3", 0, 0, OK)])
    @pytest.mark.parametrize("place", ["COPYING", "COPYING-WRITING"])
    def test_late_recovery_answers_are_not_taken_for_answers_of_the_copying(self, place, late):
        for kit in (HEALING, REPLICATION):
            machine = kit.places[place]()
            before = freeze(machine)
            assert machine.step(late) == [] and freeze(machine) == before


def test_copying_alone_ends_at_its_deadline():
    """A long read ended in a TypeError, and a write looped until it was answered."""
    for machine in (copying_in(CopyingPhase.COPYING), copying_writes()):
        (fail,) = machine.step(DeadlinePassed())
        assert isinstance(fail, Fail) and isinstance(fail.error, LedgerRecoveryError)


def test_copying_without_entries_ends_at_once():
    assert EntryCopying(CLOSED, (), 5).start() == [Finish(CLOSED)]
    assert stepped(healing_in(HealingPhase.CLEARING), LimboIsCleared()).phase is HealingPhase.DONE

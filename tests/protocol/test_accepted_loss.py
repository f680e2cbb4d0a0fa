"""Ledger recovery in which an operator accepts the loss of unknown entries (docs/decisions/without-the-journal.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    Fail,
    Finish,
    HeldAnswered,
    LacAnswered,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    ReadAnswered,
    ReadMetadata,
    SendListHeld,
    SendRead,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerState, Replication
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.repair.bookie_healing import ClearLimbo, HeldListed, LedgerHealing
from bookspark.protocol.repair.replication_plan import Copy, copies, lacks, repaired, repairs
from tests.protocol.ledgers import LOST, NO, OK, metadata

LIMBO = Unknown(UnknownReason.LIMBO)
AWAY = (LOST, Unknown(UnknownReason.TIMEOUT))
DAMAGED = Unknown(UnknownReason.LOST)
OPERATOR = AcceptedLoss("ann@host", 1700000000000)
ONE_IS_ENOUGH = metadata(aq=1, state=LedgerState.IN_RECOVERY)
GUARANTEED = metadata(state=LedgerState.IN_RECOVERY, replication=Replication.GUARANTEED)


def recovery(found=ONE_IS_ENOUGH, accepted=OPERATOR):
    machine = LedgerRecovery(accepted_loss=accepted)
    machine.step(MetadataRead(found, 3))
    return machine


def answer_fencing(machine, b3=LIMBO, lac=-1):
    actions = []
    for bookie, response in (("b3", b3), ("b1", OK), ("b2", OK)):
        actions += machine.step(LacAnswered(bookie, response, lac if response is OK else -1))
    return actions


def answer_read(machine, first, *responses, held=()):
    """Answer a recovery read, then the question for later entries, if any: reachable bookies report those of ``held``."""
    actions = []
    for bookie, response in zip(("b1", "b2", "b3"), responses, strict=True):
        actions += machine.step(ReadAnswered(bookie, first, first - 1, response))
    while any(isinstance(action, SendListHeld) for action in actions):
        asked, actions = actions, []
        for action, response in zip(asked, responses, strict=True):
            bookie, after = action.bookie, action.first
            has = dict(held).get(bookie, after - 1)
            actions += machine.step(HeldAnswered(bookie, after, has, response if response in AWAY else OK))
    return actions


def test_ledger_with_ack_quorum_1_and_a_bookie_in_limbo_can_be_closed():
    machine = recovery()
    assert [action.first for action in answer_fencing(machine)] == [0, 0, 0]
    (write,) = answer_read(machine, 0, NO, NO, LIMBO)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.state, write.metadata.last_entry_id) == (LedgerState.CLOSED, -1)
    (finish,) = machine.step(MetadataWritten(4))
    loss = finish.metadata.accepted_loss
    assert (loss.by, loss.at_ms) == ("ann@host", 1700000000000)
    fenced, entry = loss.not_known
    assert "writer is fenced" in fenced and "b3: in limbo" in fenced
    assert "entry 0" in entry and "b3: in limbo" in entry and "b1: no such entry" in entry


def test_recovery_stops_without_an_operators_acceptance():
    machine = recovery(accepted=None)
    (fail,) = answer_fencing(machine)
    assert isinstance(fail, Fail)


def test_all_bookies_are_asked_before_a_loss_is_accepted():
    """A bookie that answers late may know a higher LAC."""
    machine = recovery()
    assert machine.step(LacAnswered("b3", LIMBO)) == []
    assert machine.step(LacAnswered("b1", OK, -1)) == []
    assert [action.first for action in machine.step(LacAnswered("b2", OK, 6))] == [7, 7, 7]


def test_acceptance_does_not_wait_for_unneeded_answers():
    machine = recovery(metadata(state=LedgerState.IN_RECOVERY))
    assert machine.step(LacAnswered("b1", OK, 6)) == []
    assert [action.first for action in machine.step(LacAnswered("b2", OK, 6))] == [7, 7, 7]


def test_readable_entries_are_kept():
    machine = recovery()
    answer_fencing(machine)
    (add,) = machine.step(ReadAnswered("b2", 0, 4, NO, "entries", 50))
    machine.step(AddAnswered("b1", add.first, add.last, OK))
    (write,) = answer_read(machine, 5, NO, NO, LIMBO)
    assert (write.metadata.last_entry_id, write.metadata.length) == (4, 50)


def test_ledger_that_needed_no_accepted_loss_has_no_note():
    machine = recovery()
    answer_fencing(machine, b3=OK)
    (write,) = answer_read(machine, 0, NO, NO, NO)
    assert write.metadata.accepted_loss is None


def test_custom_metadata_is_kept():
    machine = recovery(metadata(aq=1, state=LedgerState.IN_RECOVERY, custom_metadata={"owner": b"me"}))
    answer_fencing(machine)
    (write,) = answer_read(machine, 0, NO, NO, LIMBO)
    assert write.metadata.custom_metadata["owner"] == b"me"


@pytest.mark.parametrize("answers", [(NO, NO, DAMAGED), (LIMBO, DAMAGED, DAMAGED), (NO, NO, NO)])
def test_confirmed_entry_is_not_truncated(answers):
    """It stays in the ledger as unreadable, because later entries were acknowledged."""
    machine = recovery(GUARANTEED)
    answer_fencing(machine, b3=OK, lac=1)
    reads = answer_read(machine, 0, *answers)
    assert {(read.first, read.fence) for read in reads} == {(1, True)}
    machine.step(ReadAnswered("b1", 1, 1, NO, "entry 1", 20))
    for bookie in ("b1", "b2", "b3"):
        machine.step(AddAnswered(bookie, 1, 1, OK))
    (write,) = answer_read(machine, 2, NO, NO, NO)
    assert (write.metadata.last_entry_id, write.metadata.length) == (1, 20)
    assert [what.split(" (")[0] for what in write.metadata.accepted_loss.not_known] == ["entry 0"]


def test_unknown_length_is_noted_as_accepted_loss():
    machine = recovery()
    assert [action.first for action in answer_fencing(machine, lac=3)] == [4, 4, 4]
    reads = answer_read(machine, 4, NO, NO, LIMBO)
    assert all(isinstance(read, SendRead) and read.first == 3 for read in reads)
    (write,) = answer_read(machine, 3, DAMAGED, DAMAGED, LIMBO)
    assert (write.metadata.last_entry_id, write.metadata.length) == (3, 0)
    assert "length" in write.metadata.accepted_loss.not_known[-1]


def test_lost_compare_and_set_drops_the_accepted_loss():
    machine = recovery()
    answer_fencing(machine)
    answer_read(machine, 0, NO, NO, LIMBO)
    assert machine.step(MetadataConflict()) == [ReadMetadata()]
    machine.step(MetadataRead(ONE_IS_ENOUGH, 4))
    answer_fencing(machine, b3=OK)
    (write,) = answer_read(machine, 0, NO, NO, NO)
    assert write.metadata.accepted_loss is None


def test_closed_ledger_is_left_unchanged():
    closed = metadata(state=LedgerState.CLOSED, last_entry_id=4, length=50)
    assert LedgerRecovery(accepted_loss=OPERATOR).step(MetadataRead(closed, 3)) == [Finish(closed, 3)]


# -- an unreachable bookie is lost only if an operator names it


def named(*bookies):
    return AcceptedLoss("ann@host", 1700000000000, bookies)


ONE_OF_TWO = metadata(state=LedgerState.IN_RECOVERY)


@pytest.mark.parametrize("away", [LOST, Unknown(UnknownReason.TIMEOUT), Unknown(UnknownReason.IO_ERROR)])
def test_recovery_truncates_nothing_if_all_bookies_are_merely_stopped(away):
    machine = recovery(ONE_OF_TWO)
    actions = []
    for bookie in ("b1", "b2", "b3"):
        actions = machine.step(LacAnswered(bookie, away))
    (fail,) = actions
    words = str(fail.error)
    assert "b1, b2, b3 did not say that it is lost" in words and "Nothing was truncated" in words
    assert "bookspark ledger recover 7 --accept-loss b1 b2 b3" in words


@pytest.mark.parametrize(
    ("lost", "answers", "blamed"),
    [
        ((), (NO, LOST, LOST), "b2, b3 did"),
        (("b2",), (NO, LOST, LOST), "b3 did"),
        (("b2",), (LIMBO, LOST, LOST), "b3 did"),
        ((), (DAMAGED, LIMBO, LOST), "b3 did"),
        (("b1", "b3"), (LOST, LOST, NO), "b2 did"),
    ],
)
@pytest.mark.parametrize("confirmed", [-1, 0])
def test_single_bookie_that_may_hold_the_entry_prevents_its_loss(lost, answers, blamed, confirmed):
    """Confirmed or not, the entry is neither truncated nor noted as lost."""
    machine = recovery(GUARANTEED if confirmed == 0 else ONE_OF_TWO, named(*lost))
    answer_fencing(machine, b3=OK, lac=confirmed)
    (fail,) = answer_read(machine, 0, *answers)
    assert isinstance(fail, Fail) and blamed in str(fail.error) and "Nothing was truncated" in str(fail.error)


def test_suggested_command_repeats_the_named_bookies():
    machine = recovery(ONE_OF_TWO, named("b2"))
    answer_fencing(machine, b3=OK)
    (fail,) = answer_read(machine, 0, NO, LOST, LOST)
    assert "--accept-loss b2 b3" in str(fail.error)


def test_named_bookies_count_as_lost_and_are_recorded():
    machine = recovery(ONE_OF_TWO, named("b2", "b3"))
    actions = []
    for bookie, response in (("b2", LOST), ("b3", LOST), ("b1", OK)):
        actions = machine.step(LacAnswered(bookie, response, 4 if response is OK else -1))
    assert [action.first for action in actions] == [5, 5, 5]
    answer_read(machine, 5, NO, LOST, LOST)
    (write,) = machine.step(ReadAnswered("b1", 4, 4, OK, "entry 4", 50))
    assert (write.metadata.last_entry_id, write.metadata.length) == (4, 50)
    loss = write.metadata.accepted_loss
    assert loss.named == ("b2", "b3")
    assert loss.losses == (Loss(LossKind.FENCE, -1, -1, ("b2", "b3")), Loss(LossKind.END, 5, 5, ("b2", "b3")))


def test_answer_of_a_named_bookie_counts():
    machine = recovery(ONE_IS_ENOUGH, named("b1", "b2", "b3"))
    answer_fencing(machine, b3=OK)
    machine.step(ReadAnswered("b1", 0, -1, LOST))
    (add,) = machine.step(ReadAnswered("b2", 0, 2, NO, "entries", 30))
    assert (add.first, add.last) == (0, 2)


def test_unnamed_unreachable_bookie_stops_the_recovery_at_the_fence():
    """b2 can still acknowledge entries that b3, in limbo, cannot report."""
    machine = recovery(ONE_IS_ENOUGH)
    for bookie, response in (("b1", OK), ("b3", LIMBO)):
        assert machine.step(LacAnswered(bookie, response)) == []
    (fail,) = machine.step(LacAnswered("b2", LOST))
    assert "b2 did not say" in str(fail.error)


def test_all_bookies_are_heard_before_a_confirmed_entry_is_given_up():
    machine = recovery(GUARANTEED)
    answer_fencing(machine, b3=OK, lac=0)
    for bookie in ("b1", "b2"):
        assert machine.step(ReadAnswered(bookie, 0, -1, NO)) == []
    (add,) = machine.step(ReadAnswered("b3", 0, 0, NO, "entry 0", 10))
    assert add.entries == "entry 0"


# -- entries behind an unknown entry


def test_held_entry_behind_an_unknown_entry_is_not_truncated():
    """With ack quorum 1 each entry may be confirmed on another bookie: e0 was on b3, which lost it, and e1 is on b2."""
    machine = recovery()
    answer_fencing(machine)
    assert [action.first for action in answer_read(machine, 0, NO, NO, LIMBO, held={"b2": 1})] == [1, 1, 1]
    (add,) = machine.step(ReadAnswered("b2", 1, 1, NO, "entry 1", 20))
    machine.step(AddAnswered("b1", add.first, add.last, OK))
    (write,) = answer_read(machine, 2, NO, NO, LIMBO)
    assert (write.metadata.last_entry_id, write.metadata.length) == (1, 20)
    everybody = ("b1", "b2", "b3")
    assert write.metadata.accepted_loss.losses[1:] == (
        Loss(LossKind.ENTRIES, 0, 0, everybody),
        Loss(LossKind.END, 2, 2, ("b3",)),
    )


def test_entry_held_by_a_bookie_in_limbo_is_not_truncated():
    machine = recovery()
    answer_fencing(machine)
    assert [action.first for action in answer_read(machine, 0, NO, NO, LIMBO, held={"b3": 4})] == [1, 1, 1]


def test_unknown_entries_before_a_held_entry_are_skipped_without_more_questions():
    machine = recovery()
    answer_fencing(machine)
    answer_read(machine, 0, NO, NO, LIMBO, held={"b2": 3})
    for entry_id in (1, 2):
        again = answer_read(machine, entry_id, NO, NO, LIMBO)
        assert [action.first for action in again] == 3 * [entry_id + 1]


def test_certainly_absent_entry_ends_the_ledger_despite_a_later_entry():
    """It was never confirmed, so no later entry was."""
    machine = recovery(metadata(state=LedgerState.IN_RECOVERY))
    answer_fencing(machine, b3=OK)
    answer_read(machine, 0, NO, LIMBO, LIMBO, held={"b1": 2})
    answer_read(machine, 1, NO, NO, NO)
    (write,) = answer_read(machine, 0, NO, LIMBO, LIMBO)
    assert write.metadata.last_entry_id == 0


@pytest.mark.parametrize("named_too", [False, True])
def test_bookie_that_may_hold_a_later_entry_must_return_or_be_named(named_too):
    """b4 does not hold e0, but may hold e1."""
    striped = metadata(4, 3, 1, state=LedgerState.IN_RECOVERY)
    machine = recovery(striped, named("b4") if named_too else OPERATOR)
    for bookie, response in (("b1", OK), ("b2", OK), ("b3", LIMBO), ("b4", OK)):
        machine.step(LacAnswered(bookie, response, -1))
    actions = []
    for bookie, response in (("b1", NO), ("b2", NO), ("b3", LIMBO)):
        actions = machine.step(ReadAnswered(bookie, 0, -1, response))
    assert actions == [SendListHeld(bookie, 1) for bookie in ("b1", "b2", "b3", "b4")]
    for bookie in ("b1", "b2", "b3"):
        assert machine.step(HeldAnswered(bookie, 1, 0, OK)) == []
    (end,) = machine.step(HeldAnswered("b4", 1, 0, LOST))
    if named_too:
        assert end.metadata.last_entry_id == -1
    else:
        assert "b4 did not say" in str(end.error) and "--accept-loss b4" in str(end.error)


# -- the record of the loss, and repair


def with_a_hole(e=3, wq=3):
    """Entries 0, 1 and 4 of a closed ledger are lost."""
    losses = (Loss(LossKind.ENTRIES, 0, 1, ("b1", "b2", "b3")), Loss(LossKind.ENTRIES, 4, 4, ("b1", "b2", "b3")))
    loss = AcceptedLoss("ann", 1, (), (*losses, Loss(LossKind.END, 10, 10, ("b2",))))
    return metadata(e, wq, state=LedgerState.CLOSED, last_entry_id=9, length=90, accepted_loss=loss)


def test_lost_entries_are_recorded_as_ranges():
    machine = recovery(GUARANTEED)
    answer_fencing(machine, b3=OK, lac=3)
    for entry_id in (0, 1):
        answer_read(machine, entry_id, NO, DAMAGED, NO)
    machine.step(ReadAnswered("b1", 2, 2, NO, "entry 2", 20))
    for bookie in ("b1", "b2", "b3"):
        machine.step(AddAnswered(bookie, 2, 2, OK))
    answer_read(machine, 3, NO, NO, DAMAGED)
    answer_read(machine, 4, NO, NO, NO)
    (write,) = answer_read(machine, 3, NO, NO, DAMAGED)
    assert write.metadata.accepted_loss.losses == (
        Loss(LossKind.ENTRIES, 0, 1, ("b1", "b2", "b3")),
        Loss(LossKind.ENTRIES, 3, 3, ("b1", "b2", "b3")),
    )


def test_replacement_in_recovery_inherits_the_lost_entries():
    machine = LedgerRecovery(accepted_loss=OPERATOR, replaces_bookies=True)
    machine.step(MetadataRead(GUARANTEED, 3))
    answer_fencing(machine, b3=OK, lac=2)
    answer_read(machine, 0, NO, NO, DAMAGED)
    machine.step(ReadAnswered("b1", 1, 1, NO, "entry 1", 20))
    for bookie, answer in (("b1", OK), ("b2", OK), ("b3", LOST)):
        machine.step(AddAnswered(bookie, 1, 1, answer))
    machine.step(BookiesChosen(("b4",)))
    machine.step(AddAnswered("b4", 1, 1, OK))
    answer_read(machine, 2, NO, NO, DAMAGED)
    answer_read(machine, 3, NO, NO, NO)
    (write,) = answer_read(machine, 2, NO, NO, DAMAGED)
    assert write.metadata.accepted_loss.losses == (
        Loss(LossKind.ENTRIES, 0, 0, ("b1", "b2", "b3")),
        Loss(LossKind.ENTRIES, 2, 2, ("b1", "b2", "b4")),
    )


def test_repair_skips_exactly_the_accepted_entries():
    ledger = with_a_hole()
    assert list(lacks(ledger, "b2", [(5, 6)])) == [Copy(2, 3, "b2"), Copy(7, 9, "b2")]
    (repair,) = repairs(ledger, {"b1"})
    assert list(copies(ledger, repair, {"b1": "b4"})) == [Copy(2, 3, "b4"), Copy(5, 9, "b4")]
    after = repaired(ledger, repair, {"b1": "b4"})
    assert list(lacks(after, "b4", [(2, 3), (5, 9)])) == [], "who takes over lacks the same entries"
    assert after.accepted_loss.losses[-1] == ledger.accepted_loss.losses[-1]


def test_loss_is_split_for_a_partial_replacement_and_joined_again():
    loss = AcceptedLoss("ann", 1, (), (Loss(LossKind.ENTRIES, 2, 6, ("b1", "b2")), Loss(LossKind.END, 10, 10, ("b1",))))
    part = loss.taken_over(4, 5, {"b1": "b4"})
    assert part.losses == (
        Loss(LossKind.ENTRIES, 2, 3, ("b1", "b2")),
        Loss(LossKind.ENTRIES, 4, 5, ("b4", "b2")),
        Loss(LossKind.ENTRIES, 6, 6, ("b1", "b2")),
        Loss(LossKind.END, 10, 10, ("b1",)),
    )
    assert part.taken_over(4, 5, {"b4": "b1"}) == loss
    assert loss.taken_over(7, 9, {"b1": "b4"}) == loss


def test_repair_copies_accepted_entries_to_bookies_outside_the_loss():
    ledger = with_a_hole()
    others = replace(ledger.accepted_loss, losses=(Loss(LossKind.ENTRIES, 4, 4, ("b1", "b2")),))
    assert list(lacks(replace(ledger, accepted_loss=others), "b3", [])) == [Copy(0, 9, "b3")]


def test_healed_bookie_needs_no_accepted_entries():
    machine = LedgerHealing("b2", 1)
    machine.step(MetadataRead(with_a_hole(), 3))
    assert machine.step(HeldListed(((2, 3), (5, 9)))) == [ClearLimbo(1)]


def test_contradictory_loss_records_are_refused():
    with pytest.raises(ConfigurationError, match="IN_RECOVERY"):
        metadata(state=LedgerState.IN_RECOVERY, accepted_loss=OPERATOR)
    for loss in ((3, 2, ("b1",)), (-1, 2, ("b1",)), (0, 2, ()), (0, 2, ("b1", "b1"))):
        with pytest.raises(ConfigurationError):
            AcceptedLoss("ann", 1, (), (Loss(LossKind.ENTRIES, *loss),))
    with pytest.raises(ConfigurationError, match="not one of"):
        replace(with_a_hole(), last_entry_id=2)


@pytest.mark.parametrize(
    "mine",
    [
        b"mine",
        b"{}",
        b"[1]",
        b'"x"',
        b"\xff",
        b"[" * 100_000,
        b'{"by": 1, "at_ms": 2, "not_known": []}',
        b'{"by": "me", "at_ms": 99999999999999999999, "not_known": []}',
        b'{"by": "me", "at_ms": -1, "not_known": []}',
    ],
    ids=range(9),
)
def test_users_own_label_of_that_name_does_no_harm(mine):
    labelled = replace(ONE_IS_ENOUGH, custom_metadata={"bookspark.accepted_loss": mine})
    machine = recovery(labelled)
    answer_fencing(machine)
    (write,) = answer_read(machine, 0, NO, NO, LIMBO)
    assert write.metadata.custom_metadata == labelled.custom_metadata
    assert write.metadata.accepted_loss.by == "ann@host"

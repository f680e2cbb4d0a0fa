"""Ledger recovery that takes what can't be known for lost, on an operator's word (docs/decisions/without-the-journal.md)."""

from __future__ import annotations

import pytest

from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, accepted_loss_of
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    Fail,
    Finish,
    LacAnswered,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    ReadAnswered,
    ReadMetadata,
    SendRead,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerState, Replication
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.reading.recovery import LedgerRecovery
from tests.protocol.ledgers import LOST, NO, OK, metadata

LIMBO = Unknown(UnknownReason.LIMBO)
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


def answer_read(machine, first, *responses):
    actions = []
    for bookie, response in zip(("b1", "b2", "b3"), responses, strict=True):
        actions += machine.step(ReadAnswered(bookie, first, first - 1, response))
    return actions


def test_ack_quorum_1_and_a_bookie_in_limbo_can_be_closed():
    machine = recovery()
    assert [action.first for action in answer_fencing(machine)] == [0, 0, 0]
    (write,) = answer_read(machine, 0, NO, NO, LIMBO)
    assert isinstance(write, WriteMetadata)
    assert (write.metadata.state, write.metadata.last_entry_id) == (LedgerState.CLOSED, -1)
    (finish,) = machine.step(MetadataWritten(4))
    loss = accepted_loss_of(finish.metadata)
    assert (loss.by, loss.at_ms) == ("ann@host", 1700000000000)
    fenced, entry = loss.not_known
    assert "writer is fenced" in fenced and "b3: in limbo" in fenced
    assert "entry 0" in entry and "b3: in limbo" in entry and "b1: no such entry" in entry


def test_without_an_operator_it_stops():
    machine = recovery(accepted=None)
    (fail,) = answer_fencing(machine)
    assert isinstance(fail, Fail)


def test_all_are_asked_before_anything_counts_as_lost():
    """A bookie that answers late may know of a higher LAC."""
    machine = recovery()
    assert machine.step(LacAnswered("b3", LIMBO)) == []
    assert machine.step(LacAnswered("b1", OK, -1)) == []
    assert [action.first for action in machine.step(LacAnswered("b2", OK, 6))] == [7, 7, 7]


def test_what_can_be_read_is_kept():
    machine = recovery()
    answer_fencing(machine)
    (add,) = machine.step(ReadAnswered("b2", 0, 4, NO, "entries", 50))
    machine.step(AddAnswered("b1", add.first, add.last, OK))
    (write,) = answer_read(machine, 5, NO, NO, LIMBO)
    assert (write.metadata.last_entry_id, write.metadata.length) == (4, 50)


def test_a_ledger_that_could_be_closed_without_it_has_no_note():
    machine = recovery()
    answer_fencing(machine, b3=OK)
    (write,) = answer_read(machine, 0, NO, NO, NO)
    assert accepted_loss_of(write.metadata) is None


def test_custom_metadata_is_kept():
    machine = recovery(metadata(aq=1, state=LedgerState.IN_RECOVERY, custom_metadata={"owner": b"me"}))
    answer_fencing(machine)
    (write,) = answer_read(machine, 0, NO, NO, LIMBO)
    assert write.metadata.custom_metadata["owner"] == b"me"


@pytest.mark.parametrize("answers", [(NO, NO, LOST), (LOST, LOST, LOST)])
def test_a_confirmed_entry_is_not_cut_off(answers):
    """It stays in the ledger, unreadable: what comes after it was acknowledged."""
    machine = recovery(GUARANTEED)
    answer_fencing(machine, b3=OK, lac=1)
    reads = answer_read(machine, 0, *answers)
    assert {(read.first, read.fence) for read in reads} == {(1, True)}
    machine.step(ReadAnswered("b1", 1, 1, NO, "entry 1", 20))
    for bookie in ("b1", "b2", "b3"):
        machine.step(AddAnswered(bookie, 1, 1, OK))
    (write,) = answer_read(machine, 2, NO, NO, NO)
    assert (write.metadata.last_entry_id, write.metadata.length) == (1, 20)
    assert [what.split(" (")[0] for what in accepted_loss_of(write.metadata).not_known] == ["entry 0"]


def test_the_length_may_be_what_is_not_known():
    machine = recovery()
    assert [action.first for action in answer_fencing(machine, lac=3)] == [4, 4, 4]
    reads = answer_read(machine, 4, NO, NO, LIMBO)
    assert all(isinstance(read, SendRead) and read.first == 3 for read in reads)
    (write,) = answer_read(machine, 3, LOST, LOST, LIMBO)
    assert (write.metadata.last_entry_id, write.metadata.length) == (3, 0)
    assert "length" in accepted_loss_of(write.metadata).not_known[-1]


def test_a_lost_compare_and_set_forgets_what_was_accepted():
    machine = recovery()
    answer_fencing(machine)
    answer_read(machine, 0, NO, NO, LIMBO)
    assert machine.step(MetadataConflict()) == [ReadMetadata()]
    machine.step(MetadataRead(ONE_IS_ENOUGH, 4))
    answer_fencing(machine, b3=OK)
    (write,) = answer_read(machine, 0, NO, NO, NO)
    assert accepted_loss_of(write.metadata) is None


def test_a_closed_ledger_is_left_as_it_is():
    closed = metadata(state=LedgerState.CLOSED, last_entry_id=4, length=50)
    assert LedgerRecovery(accepted_loss=OPERATOR).step(MetadataRead(closed, 3)) == [Finish(closed, 3)]

"""Phase two of a lossy boot, decision by decision (BP-46, "The Full Boot-Up Sequence")."""

from __future__ import annotations

import pytest

from bookspark.protocol.ledger.actions import (
    AddAnswered,
    DeadlinePassed,
    Fail,
    Finish,
    LacAnswered,
    MetadataRead,
    ReadAnswered,
    SendAdd,
    SendRead,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.repair.bookie_healing import (
    ClearLimbo,
    HealingPhase,
    HeldListed,
    LedgerHealing,
    LimboIsCleared,
    ListHeld,
)
from tests.protocol.ledgers import LOST, NO, OK, metadata

CLOSED = metadata(state=LedgerState.CLOSED, last_entry_id=9, length=100)


def healing(found=CLOSED):
    machine = LedgerHealing("b2", boot=3)
    return machine, machine.step(MetadataRead(found, 5))


def ranges(actions):
    """What is read, from whichever peer."""
    assert all(isinstance(action, SendRead) for action in actions)
    return [(action.first, action.last) for action in actions]


def copied(machine, first, last):
    """A peer delivers, and the copy is synced here."""
    (add,) = machine.step(ReadAnswered("b1", first, last, OK, f"{first}..{last}"))
    assert add == SendAdd(("b2",), first, last, 9, f"{first}..{last}")
    return machine.step(AddAnswered("b2", first, last, OK))


def test_a_ledger_that_is_not_closed_is_recovered_first():
    machine, actions = healing(metadata())
    assert isinstance(actions[0], WriteMetadata)
    assert machine.phase is HealingPhase.RECOVERING


def test_a_recovery_that_stops_leaves_it_in_limbo():
    machine, _ = healing(metadata(state=LedgerState.IN_RECOVERY))
    machine.step(LacAnswered("b1", LOST))
    (fail,) = machine.step(LacAnswered("b2", LOST))
    assert isinstance(fail, Fail)
    assert machine.phase is HealingPhase.DONE


def test_of_a_closed_ledger_what_is_here_is_listed():
    assert healing()[1] == [ListHeld()]


def test_what_is_missing_is_copied_run_by_run_and_limbo_ends_last():
    machine, _ = healing()
    assert ranges(machine.step(HeldListed(((2, 4), (7, 9))))) == [(0, 1)]
    assert ranges(copied(machine, 0, 1)) == [(5, 6)]
    assert copied(machine, 5, 6) == [ClearLimbo(3)]
    assert machine.step(LimboIsCleared()) == [Finish(CLOSED)]


def test_a_run_that_comes_in_pieces_is_saved_piece_by_piece():
    machine, _ = healing()
    machine.step(HeldListed(((4, 9),)))
    assert ranges(copied(machine, 0, 1)) == [(2, 3)]
    assert copied(machine, 2, 3) == [ClearLimbo(3)]


def test_with_nothing_missing_limbo_ends_at_once():
    machine, _ = healing()
    assert machine.step(HeldListed(((0, 9),))) == [ClearLimbo(3)]


@pytest.mark.parametrize("answer", [NO, LOST])
def test_what_no_peer_returns_leaves_it_in_limbo(answer):
    machine, _ = healing()
    actions = machine.step(HeldListed(()))
    for asked in ("b1", "b3", "b2"):
        assert [action.bookie for action in actions] == [asked]
        actions = machine.step(ReadAnswered(asked, 0, -1, answer))
    (fail,) = actions
    assert isinstance(fail, Fail)
    assert machine.step(LimboIsCleared()) == []


def test_a_copy_that_is_refused_leaves_it_in_limbo():
    machine, _ = healing()
    machine.step(HeldListed(((1, 9),)))
    machine.step(ReadAnswered("b1", 0, 0, OK, "0"))
    (fail,) = machine.step(AddAnswered("b2", 0, 0, LOST))
    assert isinstance(fail, Fail)


def test_a_deadline_ends_it_in_any_phase():
    machine, _ = healing()
    machine.step(HeldListed(()))
    (fail,) = machine.step(DeadlinePassed())
    assert isinstance(fail, Fail)

"""Phase two of a lossy boot, decision by decision (BP-46, "The Full Boot-Up Sequence")."""

from __future__ import annotations

import pytest

from bookspark.protocol.bookie.bookie_ledger import LOST_AT_BOOT
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
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
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


def copied(machine, first, last, from_bookie="b1"):
    """A peer delivers, and the copy is synced here."""
    (add,) = machine.step(ReadAnswered(from_bookie, first, last, OK, f"{first}..{last}"))
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
    assert ranges(machine.step(HeldListed(((2, 4), (7, 9))))) == [(0, 1), (5, 6)]
    assert copied(machine, 0, 1) == []
    assert copied(machine, 5, 6, from_bookie="b3") == [ClearLimbo(3)]
    assert machine.step(LimboIsCleared()) == [Finish(CLOSED)]


def test_a_run_that_comes_in_pieces_is_saved_piece_by_piece():
    machine, _ = healing()
    machine.step(HeldListed(((4, 9),)))
    _, further = machine.step(ReadAnswered("b1", 0, 1, OK, "0..1"))
    assert ranges([further]) == [(2, 3)]
    assert machine.step(AddAnswered("b2", 0, 1, OK)) == []
    assert copied(machine, 2, 3) == [ClearLimbo(3)]


def test_with_nothing_missing_limbo_ends_at_once():
    machine, _ = healing()
    assert machine.step(HeldListed(((0, 9),))) == [ClearLimbo(3)]


def all_read(machine, actions, answers):
    """What follows when each bookie answers every read of ``answers[entry]`` so, and gives everything else."""
    todo, ends = list(actions), []
    while todo:
        action = todo.pop(0)
        match action:
            case SendRead(bookie, first) if first in answers:
                todo += machine.step(ReadAnswered(bookie, first, first - 1, answers[first][bookie]))
            case SendRead(bookie, first, last):
                last = min([last, *(entry - 1 for entry in answers if entry > first)])
                following = answers[last + 1][bookie] if last + 1 in answers else OK
                todo += machine.step(ReadAnswered(bookie, first, last, following, "entries"))
            case SendAdd(_, first, last):
                todo += machine.step(AddAnswered("b2", first, last, OK))
            case _:
                ends.append(action)
    return ends


DAMAGED = Unknown(UnknownReason.LOST)
IN_LIMBO = Unknown(UnknownReason.LIMBO)


class TestEntriesThatNoPeerGives:
    @pytest.mark.parametrize(
        "answer", [LOST, IN_LIMBO, Unknown(UnknownReason.TIMEOUT), Unknown(UnknownReason.IO_ERROR)]
    )
    def test_one_that_may_come_back_leaves_it_in_limbo(self, answer):
        machine, _ = healing()
        actions = machine.step(HeldListed(((0, 8),)))
        (fail,) = all_read(machine, actions, {9: {"b1": NO, "b2": NO, "b3": answer}})
        assert "entry 9 could not be read" in str(fail.error)
        assert machine.step(LimboIsCleared()) == []

    @pytest.mark.parametrize(
        ("one", "other"),
        [(NO, NO), (NO, DAMAGED), (DAMAGED, Unknown(UnknownReason.DIGEST_MISMATCH)), (LOST_AT_BOOT, LOST_AT_BOOT)],
    )
    def test_one_that_nobody_has_any_more_is_noted_as_lost_and_limbo_ends(self, one, other):
        """Healing never ended, and the exact check left that bookie out for ever. Bookies that are being healed at the same time
        don't wait for each other."""
        machine, _ = healing()
        actions = machine.step(HeldListed(()))
        answers = {"b1": one, "b2": IN_LIMBO, "b3": other}
        assert all_read(machine, actions, {0: answers, 1: answers, 5: answers}) == [ClearLimbo(3, ((0, 1), (5, 5)))]
        assert machine.step(LimboIsCleared()) == [Finish(CLOSED)]

    def test_those_behind_one_that_can_not_be_reached_are_copied_all_the_same(self):
        machine, _ = healing()
        (fail,) = all_read(machine, machine.step(HeldListed(())), {3: {"b1": LOST, "b2": IN_LIMBO, "b3": LOST}})
        assert [(one.first, one.last) for one in fail.error.entries] == [(3, 3)]


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

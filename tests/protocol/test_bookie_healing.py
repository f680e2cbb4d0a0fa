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
    """Ranges of the reads, from whichever peer."""
    assert all(isinstance(action, SendRead) for action in actions)
    return [(action.first, action.last) for action in actions]


def copied(machine, first, last, from_bookie="b1"):
    """A peer delivers the entries, and this bookie syncs its copy."""
    (add,) = machine.step(ReadAnswered(from_bookie, first, last, OK, f"{first}..{last}"))
    assert add == SendAdd(("b2",), first, last, 9, f"{first}..{last}")
    return machine.step(AddAnswered("b2", first, last, OK))


def test_open_ledger_is_recovered_first():
    machine, actions = healing(metadata())
    assert isinstance(actions[0], WriteMetadata)
    assert machine.phase is HealingPhase.RECOVERING


def test_stopped_recovery_leaves_the_ledger_in_limbo():
    machine, _ = healing(metadata(state=LedgerState.IN_RECOVERY))
    machine.step(LacAnswered("b1", LOST))
    (fail,) = machine.step(LacAnswered("b2", LOST))
    assert isinstance(fail, Fail)
    assert machine.phase is HealingPhase.DONE


def test_closed_ledgers_held_entries_are_listed():
    assert healing()[1] == [ListHeld()]


def test_missing_entries_are_copied_run_by_run_before_limbo_ends():
    machine, _ = healing()
    assert ranges(machine.step(HeldListed(((2, 4), (7, 9))))) == [(0, 1), (5, 6)]
    assert copied(machine, 0, 1) == []
    assert copied(machine, 5, 6, from_bookie="b3") == [ClearLimbo(3)]
    assert machine.step(LimboIsCleared()) == [Finish(CLOSED)]


def test_run_delivered_in_pieces_is_saved_piece_by_piece():
    machine, _ = healing()
    machine.step(HeldListed(((4, 9),)))
    _, further = machine.step(ReadAnswered("b1", 0, 1, OK, "0..1"))
    assert ranges([further]) == [(2, 3)]
    assert machine.step(AddAnswered("b2", 0, 1, OK)) == []
    assert copied(machine, 2, 3) == [ClearLimbo(3)]


def test_limbo_ends_at_once_if_nothing_is_missing():
    machine, _ = healing()
    assert machine.step(HeldListed(((0, 9),))) == [ClearLimbo(3)]


def all_read(machine, actions, answers):
    """Actions that follow when each bookie answers each read of ``answers[entry]`` so and delivers all other entries."""
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


class TestEntriesThatNoPeerDelivers:
    @pytest.mark.parametrize(
        "answer", [LOST, IN_LIMBO, Unknown(UnknownReason.TIMEOUT), Unknown(UnknownReason.IO_ERROR)]
    )
    def test_entry_that_may_come_back_keeps_the_ledger_in_limbo(self, answer):
        machine, _ = healing()
        actions = machine.step(HeldListed(((0, 8),)))
        (fail,) = all_read(machine, actions, {9: {"b1": NO, "b2": NO, "b3": answer}})
        assert "entry 9 could not be read" in str(fail.error)
        assert machine.step(LimboIsCleared()) == []

    @pytest.mark.parametrize(
        ("one", "other"),
        [(NO, NO), (NO, DAMAGED), (DAMAGED, Unknown(UnknownReason.DIGEST_MISMATCH)), (LOST_AT_BOOT, LOST_AT_BOOT)],
    )
    def test_entry_without_any_copy_is_noted_as_lost_and_limbo_ends(self, one, other):
        """Healing never ended, and the exact check excluded that bookie for ever. Bookies that heal at the same time do not wait
        for each other."""
        machine, _ = healing()
        actions = machine.step(HeldListed(()))
        answers = {"b1": one, "b2": IN_LIMBO, "b3": other}
        assert all_read(machine, actions, {0: answers, 1: answers, 5: answers}) == [ClearLimbo(3, ((0, 1), (5, 5)))]
        assert machine.step(LimboIsCleared()) == [Finish(CLOSED)]

    def test_entries_behind_an_unreachable_entry_are_copied(self):
        machine, _ = healing()
        (fail,) = all_read(machine, machine.step(HeldListed(())), {3: {"b1": LOST, "b2": IN_LIMBO, "b3": LOST}})
        assert [(one.first, one.last) for one in fail.error.entries] == [(3, 3)]


def test_refused_copy_leaves_the_ledger_in_limbo():
    machine, _ = healing()
    machine.step(HeldListed(((1, 9),)))
    machine.step(ReadAnswered("b1", 0, 0, OK, "0"))
    (fail,) = machine.step(AddAnswered("b2", 0, 0, LOST))
    assert isinstance(fail, Fail)


def test_deadline_ends_healing():
    machine, _ = healing()
    machine.step(HeldListed(()))
    (fail,) = machine.step(DeadlinePassed())
    assert isinstance(fail, Fail)

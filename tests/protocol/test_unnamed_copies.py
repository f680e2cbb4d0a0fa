"""Collection of copies that the metadata does not name: which copies, and on whose word."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bookspark.protocol.bookie.unnamed_copies import (
    bookies_to_ask,
    collectable_copies,
    may_be_spare,
    names,
    spare_copies,
)
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from tests.protocol.ledgers import metadata

MOVED = metadata(state=LedgerState.CLOSED, last_entry_id=9, length=100).re_replicated(0, {"b3": "b4"})
ALL = [(0, 9)]


def test_copies_of_a_bookie_that_was_replaced_are_spare_and_go_once_the_others_hold_theirs():
    assert spare_copies(MOVED, "b3", ALL) == ((0, 9),) and spare_copies(MOVED, "b4", ALL) == ()
    assert not names(MOVED, "b3") and may_be_spare(MOVED, "b3", 9) and not may_be_spare(MOVED, "b4", 9)
    assert bookies_to_ask(MOVED, ((0, 9),)) == ["b1", "b2", "b4"]
    assert collectable_copies(MOVED, ((0, 9),), dict.fromkeys(("b1", "b2", "b4"), ALL)) == ((0, 9),)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_no_copy_of_a_ledger_that_is_not_closed_is_spare(state):
    found = metadata(state=state, fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b1", "b2", "b4"))))
    assert spare_copies(found, "b3", ALL) == () and not may_be_spare(found, "b3", 9)


@pytest.mark.parametrize("silent", ["b1", "b2", "b4"])
def test_a_copy_stays_while_a_named_bookie_is_silent_or_lacks_the_entry(silent):
    """It may be the last copy."""
    answers = dict.fromkeys(("b1", "b2", "b4"), ALL)
    del answers[silent]
    assert collectable_copies(MOVED, ((0, 9),), answers) == ()
    answers[silent] = [(0, 3), (5, 9)]
    assert collectable_copies(MOVED, ((0, 9),), answers) == ((0, 3), (5, 9))


def test_a_copy_of_an_entry_that_an_operator_gave_up_stays():
    """Nobody else has it: it may still bring the entry back."""
    loss = AcceptedLoss("operator", 0, (), (Loss(LossKind.ENTRIES, 4, 4, ("b1", "b2", "b4")),))
    answers = {name: [(0, 3), (5, 9)] for name in ("b1", "b2", "b4")}
    assert collectable_copies(replace(MOVED, accepted_loss=loss), ((0, 9),), answers) == ((0, 3), (5, 9))


def test_entries_beyond_the_end_go_without_a_question():
    found = metadata(state=LedgerState.CLOSED, last_entry_id=9, length=100)
    assert may_be_spare(found, "b3", 12)
    spare = spare_copies(found, "b3", [(0, 12)])
    assert spare == ((10, 12),) and bookies_to_ask(found, spare) == []
    assert collectable_copies(found, spare, {}) == ((10, 12),)


def test_entries_beyond_the_end_stay_on_a_bookie_that_the_last_fragment_does_not_name():
    """An older copy of the metadata was put back, and did not know this bookie: a recovery ended the ledger too early."""
    assert spare_copies(MOVED, "b3", [(0, 12)]) == ((0, 9),)


def test_only_fragments_that_name_others_are_spare():
    found = metadata(
        state=LedgerState.CLOSED,
        fragments=(Fragment(0, ("b1", "b2", "b4")), Fragment(5, ("b1", "b2", "b3"))),
        last_entry_id=9,
        length=100,
    )
    assert spare_copies(found, "b3", ALL) == ((0, 4),) and names(found, "b3")
    assert bookies_to_ask(found, ((0, 4),)) == ["b1", "b2", "b4"]
    assert collectable_copies(found, ((0, 4),), {name: [(0, 4)] for name in ("b1", "b2", "b4")}) == ((0, 4),)


def test_rules_equal_a_plain_reading_of_each_entrys_write_set():
    random = Random(5)
    for _ in range(300):
        size = random.choice(((2, 2, 1), (3, 2, 2), (4, 3, 2)))
        names_ = [f"b{i}" for i in range(6)]
        starts = sorted({0, random.randrange(20)})
        fragments = tuple(Fragment(start, tuple(random.sample(names_, size[0]))) for start in starts)
        found = metadata(*size, LedgerState.CLOSED, fragments, last_entry_id=random.randrange(starts[-1], 25), length=1)
        holds = {name: {i for i in range(30) if random.random() < 0.8} for name in names_}
        silent = set(random.sample(names_, random.choice((0, 0, 1))))
        me = "b0"
        expected = set()
        for entry_id in holds[me]:
            named = found.write_set_of(entry_id) if entry_id <= found.last_entry_id else ()
            if not named and me not in found.last_fragment.ensemble:
                continue
            if me not in named and all(name not in silent and entry_id in holds[name] for name in named):
                expected.add(entry_id)
        spare = spare_copies(found, me, [(i, i) for i in sorted(holds[me])])
        asked = set(bookies_to_ask(found, spare)) - silent
        copies = collectable_copies(found, spare, {name: [(i, i) for i in sorted(holds[name])] for name in asked})
        assert {i for first, last in copies for i in range(first, last + 1)} == expected
        assert may_be_spare(found, me, max(holds[me])) or not spare

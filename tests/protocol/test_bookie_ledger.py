"""A bookie's decisions about one ledger."""

from __future__ import annotations

from copy import deepcopy

import pytest

from bookspark.protocol.bookie.bookie_ledger import (
    BookieLedger,
    Decision,
    FenceNoted,
    LastAddConfirmedNoted,
    MasterKeyNoted,
    answer_absent,
    may_read,
    same_content,
)
from bookspark.protocol.ledger.responses import (
    FENCED,
    UNAUTHORIZED,
    Negative,
    NegativeReason,
    Positive,
    Unknown,
    UnknownReason,
)

KEY, WRONG = b"k" * 16, b"w" * 16
ADMITTED, REFUSED = Decision(Positive()), Decision(FENCED)
WRONG_KEY = Decision(UNAUTHORIZED)


def used(**state):
    return BookieLedger(7, master_key=KEY, **state)


def test_the_first_add_fixes_the_master_key():
    ledger = BookieLedger(7)
    decision = ledger.admit_add(KEY, recovery=False)
    assert decision.response == Positive() and decision.records == (MasterKeyNoted(7, KEY),)
    assert ledger == BookieLedger(7), "an admitted add changes nothing until it is taken"
    ledger.added(decision, 4, 3)
    assert (ledger.master_key, ledger.last_add_confirmed, ledger.last_add_fully_replicated) == (KEY, 4, 3)
    assert ledger.admit_add(KEY, recovery=False) == ADMITTED


@pytest.mark.parametrize("fenced", [False, True])
def test_a_wrong_password_has_no_side_effect(fenced):
    ledger = used(fenced=fenced, last_add_confirmed=3)
    before = deepcopy(ledger)
    assert ledger.admit_add(WRONG, recovery=True).response == UNAUTHORIZED
    assert ledger.fence(WRONG) == WRONG_KEY
    assert ledger.write_last_add_confirmed(WRONG, 9) == WRONG_KEY
    assert ledger == before


def test_a_fenced_ledger_takes_adds_of_recovery_only():
    ledger = used()
    assert ledger.fence(KEY) == Decision(Positive(), (FenceNoted(7),))
    assert ledger.admit_add(KEY, recovery=False) == REFUSED
    assert ledger.admit_add(KEY, recovery=True) == ADMITTED._replace(recovery=True)


def test_4462_a_fenced_ledger_is_not_made_anew_by_its_old_writers_add():
    ledger = BookieLedger(7)  # never seen: the fence comes before any entry
    assert ledger.fence(KEY).records == (MasterKeyNoted(7, KEY), FenceNoted(7))
    rebooted = BookieLedger(7)
    for record in ledger.control_records():
        rebooted.replay(record)
    assert rebooted.admit_add(KEY, recovery=False).response == FENCED


def test_a_fence_without_a_key_still_fences():
    ledger = BookieLedger(7, fenced=True)
    assert ledger.admit_add(KEY, recovery=False).response == FENCED
    assert ledger.admit_add(KEY, recovery=True).records == (MasterKeyNoted(7, KEY),)


def test_fencing_twice_is_fencing_once():
    ledger = used()
    ledger.fence(KEY)
    before = deepcopy(ledger)
    assert ledger.fence(KEY) == ADMITTED
    assert ledger == before


def test_the_last_add_confirmed_never_goes_back():
    ledger = used()
    assert ledger.note(5, 2)
    assert not ledger.note(4, 1)
    assert not ledger.note(5, 2)
    assert (ledger.last_add_confirmed, ledger.last_add_fully_replicated) == (5, 2)


def test_the_last_add_confirmed_is_frozen_at_fencing_for_the_old_writer():
    ledger = used(last_add_confirmed=5)
    ledger.fence(KEY)
    assert ledger.write_last_add_confirmed(KEY, 8) == REFUSED
    assert ledger.admit_add(KEY, recovery=False).response == FENCED
    assert ledger.last_add_confirmed == 5


def test_an_explicit_last_add_confirmed_is_a_control_record_once():
    ledger = BookieLedger(7)
    first = ledger.write_last_add_confirmed(KEY, 8)
    assert first.records == (MasterKeyNoted(7, KEY), LastAddConfirmedNoted(7, 8))
    assert ledger.last_add_confirmed == 8
    assert ledger.write_last_add_confirmed(KEY, 8) == ADMITTED
    assert ledger.write_last_add_confirmed(KEY, 3) == ADMITTED


def test_replay_of_control_records_makes_the_same_state_in_any_order():
    ledger = used()
    ledger.write_last_add_confirmed(KEY, 8)
    ledger.fence(KEY)
    records = ledger.control_records()
    for order in (records, records[::-1], records * 2):
        again = BookieLedger(7)
        for record in order:
            again.replay(record)
        assert again == ledger


def test_absence_is_negative_only_where_the_storage_is_whole():
    assert answer_absent(None, False) == Negative(NegativeReason.NO_SUCH_LEDGER)
    assert answer_absent(used(), False) == Negative(NegativeReason.NO_SUCH_ENTRY)
    for ledger, damaged in ((None, True), (used(), True), (used(damaged=True), False)):
        answer = answer_absent(ledger, damaged)
        assert isinstance(answer, Unknown) and answer.reason is UnknownReason.IO_ERROR


def test_a_reader_shows_no_key_or_the_right_one():
    assert may_read(used(), None) and may_read(used(), KEY) and may_read(None, WRONG)
    assert not may_read(used(), WRONG)


def test_copies_are_equal_when_length_and_payload_are():
    assert same_content((5, b"ab"), (5, memoryview(b"ab")))
    assert not same_content((5, b"ab"), (6, b"ab"))
    assert not same_content((5, b"ab"), (5, b"ac"))

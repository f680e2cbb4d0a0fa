"""A bookie's decisions about one ledger."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from random import Random

import pytest

from bookspark.protocol.bookie.bookie_ledger import (
    BookieLedger,
    Decision,
    EntriesLost,
    FenceNoted,
    LastAddConfirmedNoted,
    MasterKeyNoted,
    absence_proven,
    answer_absent,
    may_read,
    same_content,
)
from bookspark.protocol.ledger.entry_ranges import _FEW, _MANY, NO_RANGES, first_within, with_ranges, without_ranges
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
WRONG_KEY = Decision(UNAUTHORIZED, keys_meet=True)


def used(**state):
    return BookieLedger(7, master_key=KEY, **state)


def test_first_add_sets_the_master_key():
    ledger = BookieLedger(7)
    decision = ledger.admit_add(KEY, recovery=False)
    assert decision.response == Positive() and decision.records == (MasterKeyNoted(7, KEY),)
    assert ledger == BookieLedger(7), "an admitted add changes nothing until it is taken"
    ledger.added(decision, 4, 3)
    assert (ledger.master_key, ledger.last_add_confirmed, ledger.last_add_fully_replicated) == (KEY, 4, 3)
    assert ledger.admit_add(KEY, recovery=False) == ADMITTED


@pytest.mark.parametrize("fenced", [False, True])
def test_wrong_password_has_no_side_effect(fenced):
    ledger = used(fenced=fenced, last_add_confirmed=3)
    before = deepcopy(ledger)
    assert ledger.admit_add(WRONG, recovery=True).response == UNAUTHORIZED
    assert ledger.fence(WRONG) == WRONG_KEY
    assert ledger.write_last_add_confirmed(WRONG, 9) == WRONG_KEY
    assert ledger == before


def test_fenced_ledger_admits_only_recovery_adds():
    ledger = used()
    assert ledger.fence(KEY) == Decision(Positive(), (FenceNoted(7),))
    assert ledger.admit_add(KEY, recovery=False) == REFUSED
    assert ledger.admit_add(KEY, recovery=True) == ADMITTED._replace(recovery=True)


def test_4462_old_writers_add_does_not_recreate_a_fenced_ledger():
    ledger = BookieLedger(7)  # never seen: the fence comes before any entry
    assert ledger.fence(KEY).records == (MasterKeyNoted(7, KEY), FenceNoted(7))
    rebooted = BookieLedger(7)
    for record in ledger.control_records():
        rebooted.replay(record)
    assert rebooted.admit_add(KEY, recovery=False).response == FENCED


def test_fence_without_a_master_key_still_fences():
    ledger = BookieLedger(7, fenced=True)
    assert ledger.admit_add(KEY, recovery=False).response == FENCED
    assert ledger.admit_add(KEY, recovery=True).records == (MasterKeyNoted(7, KEY),)


def test_second_fence_changes_nothing():
    ledger = used()
    ledger.fence(KEY)
    before = deepcopy(ledger)
    assert ledger.fence(KEY) == ADMITTED
    assert ledger == before


def test_last_add_confirmed_never_goes_back():
    ledger = used()
    assert ledger.note(5, 2)
    assert not ledger.note(4, 1)
    assert not ledger.note(5, 2)
    assert (ledger.last_add_confirmed, ledger.last_add_fully_replicated) == (5, 2)


def test_fencing_freezes_the_old_writers_last_add_confirmed():
    ledger = used(last_add_confirmed=5)
    ledger.fence(KEY)
    assert ledger.write_last_add_confirmed(KEY, 8) == REFUSED
    assert ledger.admit_add(KEY, recovery=False).response == FENCED
    assert ledger.last_add_confirmed == 5


def test_explicit_last_add_confirmed_is_recorded_once():
    ledger = BookieLedger(7)
    first = ledger.write_last_add_confirmed(KEY, 8)
    assert first.records == (MasterKeyNoted(7, KEY), LastAddConfirmedNoted(7, 8))
    assert ledger.last_add_confirmed == 8
    assert ledger.write_last_add_confirmed(KEY, 8) == ADMITTED
    assert ledger.write_last_add_confirmed(KEY, 3) == ADMITTED


def test_replay_of_control_records_gives_the_same_state_in_any_order():
    ledger = used()
    ledger.write_last_add_confirmed(KEY, 8)
    ledger.fence(KEY)
    ledger.replay(EntriesLost(7, 3, 5, 99))
    ledger.replay(EntriesLost(7, 8, 8))
    records = ledger.control_records()
    for order in (records, records[::-1], records * 2):
        again = BookieLedger(7)
        for record in order:
            again.replay(record)
        assert again == ledger


def test_absence_is_negative_only_on_undamaged_storage():
    assert answer_absent(None, 0, storage_damaged=False) == Negative(NegativeReason.NO_SUCH_LEDGER)
    assert answer_absent(used(), 0, storage_damaged=False) == Negative(NegativeReason.NO_SUCH_ENTRY)
    for ledger in (None, used()):
        answer = answer_absent(ledger, 0, storage_damaged=True)
        assert isinstance(answer, Unknown) and answer.reason is UnknownReason.IO_ERROR, "it may be readable tomorrow"
        answer = answer_absent(ledger, 0, storage_damaged=False, boot_unsure=True)
        assert isinstance(answer, Unknown) and answer.reason is UnknownReason.LOST, "only another copy brings it back"


def test_absence_is_unknown_exactly_for_lost_entries():
    ledger = used()
    for record in (EntriesLost(7, 3, 5, 99), EntriesLost(7, 6, 6), EntriesLost(7, 9, 9, 50)):
        ledger.replay(record)
    unknown = [i for i in range(12) if isinstance(answer_absent(ledger, i, storage_damaged=False), Unknown)]
    assert unknown == [3, 4, 5, 6, 9]
    assert [absence_proven(ledger, first, 11, storage_damaged=False) for first in (0, 3, 6, 7, 10)] == [2, 2, 5, 8, 11]
    assert absence_proven(ledger, 0, 2, storage_damaged=False) == 2
    assert absence_proven(ledger, 0, 11, storage_damaged=True) == -1
    assert absence_proven(ledger, 0, 11, storage_damaged=False, boot_unsure=True) == -1
    ledger.entries_back([(0, 4), (4, 5), (9, 20)])
    assert ledger.lost == ((6, 6),)


def test_entry_ranges_equal_sets_of_entry_ids():
    random = Random(16)
    for _ in range(300):
        ranges, ids = NO_RANGES, set()
        for _ in range(random.randrange(6)):
            first = random.randrange(20)
            last = first + random.randrange(5)
            ranges, ids = with_ranges(ranges, [(first, last)]), ids | set(range(first, last + 1))
        assert [i for first, last in ranges for i in range(first, last + 1)] == sorted(ids)
        assert all(one[1] + 1 < other[0] for one, other in pairwise(ranges))
        others = sorted((first, first + random.randrange(5)) for first in random.choices(range(25), k=3))
        left = without_ranges(ranges, others)
        assert {i for first, last in left for i in range(first, last + 1)} == ids - {
            i for first, last in others for i in range(first, last + 1)
        }
        first, last = sorted(random.choices(range(25), k=2))
        assert first_within(ranges, first, last) == min((i for i in ids if first <= i <= last), default=None)


def test_adding_few_ranges_to_many_gives_the_same_set():
    random = Random(17)
    for _ in range(50):
        first, ids = 0, set()
        for _ in range(_MANY + 20):
            first += 2 + random.randrange(4)
            ids |= set(range(first, first := first + 1 + random.randrange(3)))
        ranges = with_ranges(NO_RANGES, [(one, one) for one in ids])
        assert len(ranges) > _MANY
        others = [
            (one, one + random.randrange(9)) for one in random.choices(range(first + 9), k=random.randrange(_FEW + 1))
        ]
        ids |= {one for begin, end in others for one in range(begin, end + 1)}
        assert with_ranges(ranges, others) == with_ranges(NO_RANGES, [(one, one) for one in ids])


def test_entries_in_an_unused_directory_are_lacking_until_held_again():
    ledger = used()
    ledger.lose([(0, 1)])
    ledger.lose_for_now([(3, 4)])
    assert (ledger.lost, ledger.lacking) == (((0, 1),), ((0, 1), (3, 4)))
    ledger.entries_back([(1, 3)])
    assert (ledger.lost, ledger.lacking) == (((0, 0),), ((0, 0), (4, 4)))
    assert isinstance(answer_absent(ledger, 4, storage_damaged=False), Unknown), "it may come back with its directory"


def test_reader_shows_no_key_or_the_right_key():
    assert may_read(used(), None) and may_read(used(), KEY) and may_read(None, WRONG)
    assert not may_read(used(), WRONG)


def test_copies_are_equal_if_length_and_payload_are():
    assert same_content((5, b"ab"), (5, memoryview(b"ab")))
    assert not same_content((5, b"ab"), (6, b"ab"))
    assert not same_content((5, b"ab"), (5, b"ac"))

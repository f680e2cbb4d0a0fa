"""Decisions of a bookie at and after a lossy boot (BP-46)."""

from __future__ import annotations

from itertools import permutations

import pytest

from bookspark.protocol.bookie.bookie_boot import (
    NO_LOSSY_BOOT,
    NOT_NAMED,
    HealedNoted,
    LossyBootNoted,
    MarksTogether,
    MarksTold,
    absence_over,
    absence_unsure,
    answer_unsure,
    first_contact,
    first_mark,
    in_limbo,
    is_lossy,
    mark_above,
    marks_together,
    only_absent,
    phase_one,
)
from bookspark.protocol.bookie.bookie_ledger import (
    IN_LIMBO,
    NO_SUCH_ENTRY,
    BookieLedger,
    FenceNoted,
    FenceUnsureNoted,
    LimboCleared,
    LimboNoted,
    MasterKeyNoted,
    acked_after_sync,
    answer_absent,
    answer_last_add_confirmed,
)
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.ledger.responses import FENCED, UNAUTHORIZED, Positive
from tests.protocol.ledgers import metadata

KEY = b"k" * 16
MARK = LossyBootNoted(1, 20)
IN_RECOVERY, CLOSED = LedgerState.IN_RECOVERY, LedgerState.CLOSED


def replayed(*records):
    ledger = BookieLedger(7)
    for record in records:
        ledger.replay(record)
    return ledger


class TestPhaseOne:
    @pytest.mark.parametrize(("unclean", "lost", "lossy"), [(0, 0, False), (1, 0, True), (0, 1, True), (1, 1, True)])
    def test_boot_is_lossy_if_the_marker_stands_or_a_directory_is_lost(self, unclean, lost, lossy):
        assert is_lossy(unclean=bool(unclean), directory_lost=bool(lost)) is lossy

    @pytest.mark.parametrize("state", [LedgerState.OPEN, IN_RECOVERY])
    def test_each_open_ledger_is_fenced_and_in_limbo(self, state):
        """BP-46: "For each non-closed ledger, mark the ledger as fenced and in-limbo in the index"."""
        found = phase_one("b2", [metadata(state=state, master_key=KEY)], 20)
        assert found.records == (MasterKeyNoted(7, KEY), FenceNoted(7), LimboNoted(7, 1))

    def test_closed_ledger_gets_no_records(self):
        found = phase_one("b2", [metadata(state=CLOSED, last_entry_id=3, length=4)], 20)
        assert found == (LossyBootNoted(1, 20), ())

    def test_ledger_whose_last_fragment_is_elsewhere_gets_no_records(self):
        moved = metadata(fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(4, ("b1", "b4", "b3"))))
        assert phase_one("b2", [moved], 20).records == ()

    def test_boots_are_counted_and_the_mark_never_falls(self):
        assert phase_one("b2", [], 15, LossyBootNoted(4, 20)).mark == LossyBootNoted(5, 20)
        assert phase_one("b2", [], 25, LossyBootNoted(4, 20)).mark == LossyBootNoted(5, 25)

    def test_ledger_with_unreadable_metadata_is_treated_as_open_on_the_bookie(self):
        assert phase_one("b2", [], 20, unreadable=[3]).records == (FenceNoted(3), LimboNoted(3, 1))


class TestLimbo:
    def test_explicit_negative_becomes_unknown(self):
        """BP-46: "all explicit negatives are converted to unknowns"."""
        assert answer_absent(replayed(LimboNoted(7, 1)), 0, storage_damaged=False) == IN_LIMBO

    def test_bookie_in_limbo_counts_towards_no_coverage(self):
        assert answer_last_add_confirmed(replayed(LimboNoted(7, 1))) == IN_LIMBO
        assert answer_last_add_confirmed(replayed()) == Positive()

    def test_fence_is_accepted_in_limbo(self):
        ledger = replayed(LimboNoted(7, 1))
        assert FenceNoted(7) in ledger.fence(KEY).records
        assert ledger.fenced

    def test_write_backs_are_accepted_in_limbo(self):
        ledger = replayed(MasterKeyNoted(7, KEY), FenceNoted(7), LimboNoted(7, 1))
        assert ledger.admit_add(KEY, recovery=True).response == Positive()

    def test_repair_ends_limbo(self):
        ledger = replayed(LimboNoted(7, 1))
        assert ledger.clear_limbo(1).records == (LimboCleared(7, 1),)
        assert not ledger.limbo
        assert answer_absent(ledger, 0, storage_damaged=False) == NO_SUCH_ENTRY

    def test_repair_begun_before_the_last_lossy_boot_does_not_end_limbo(self):
        ledger = replayed(LimboNoted(7, 1), LimboNoted(7, 2))
        ledger.clear_limbo(1)
        assert ledger.limbo

    def test_records_replay_in_any_order(self):
        records = [LimboNoted(7, 1), LimboCleared(7, 1), LimboNoted(7, 2), FenceUnsureNoted(7), FenceNoted(7)]
        assert len({repr(replayed(*order)) for order in permutations(records)}) == 1

    def test_control_records_restore_the_same_ledger(self):
        ledger = replayed(MasterKeyNoted(7, KEY), LimboNoted(7, 2), LimboCleared(7, 1), FenceUnsureNoted(7))
        assert replayed(*ledger.control_records()) == ledger

    @pytest.mark.parametrize(
        ("records", "limbo"),
        [
            ([LimboNoted(7, 1)], {7}),
            ([LimboNoted(7, 1), LimboCleared(7, 1)], set()),
            ([LimboNoted(7, 2), LimboNoted(7, 1), LimboCleared(7, 1)], {7}),
            ([LimboNoted(7, 2), LimboCleared(7, 2), LimboCleared(7, 1)], set()),
            ([LimboNoted(7, 1), LimboNoted(8, 1), LimboCleared(7, 1), FenceNoted(9)], {8}),
        ],
    )
    def test_ledgers_in_limbo_follow_from_a_directorys_records_in_any_order(self, records, limbo):
        assert all(in_limbo(order) == limbo for order in permutations(records))


class TestLossyBootMark:
    def test_ledger_above_the_mark_is_new(self):
        assert first_contact(21, MARK).admit_add(KEY, recovery=False).response == Positive()
        assert first_contact(7, NO_LOSSY_BOOT).admit_add(KEY, recovery=False).response == Positive()

    def test_writers_add_up_to_the_mark_needs_the_metadata(self):
        decision = first_contact(20, MARK).admit_add(KEY, recovery=False)
        assert decision.ask_metadata
        assert not isinstance(decision.response, Positive)

    def test_wrong_password_is_refused_without_a_metadata_read(self):
        ledger = first_contact(7, MARK)
        ledger.replay(MasterKeyNoted(7, b"other"))
        assert ledger.admit_add(KEY, recovery=False).response == UNAUTHORIZED

    def test_open_ledger_that_names_the_bookie_admits_adds(self):
        assert answer_unsure("b2", metadata()) == Positive()

    @pytest.mark.parametrize("found", [metadata(state=IN_RECOVERY), metadata(state=CLOSED), None])
    def test_any_other_metadata_means_that_a_fence_may_be_lost(self, found):
        assert answer_unsure("b2", found) == FENCED

    def test_writer_that_replaced_the_bookie_is_refused_but_not_fenced(self):
        """Its add is late; FENCED would end a handle that continues elsewhere."""
        assert answer_unsure("b4", metadata()) == NOT_NAMED

    def test_adds_are_admitted_once_the_fence_is_sure(self):
        ledger = first_contact(7, MARK)
        ledger.fence_is_sure()
        assert ledger.admit_add(KEY, recovery=False).response == Positive()

    def test_fence_during_the_metadata_read_wins(self):
        ledger = first_contact(7, MARK)
        assert ledger.admit_add(KEY, recovery=False).ask_metadata
        ledger.fence(KEY)
        ledger.fence_is_sure()
        assert ledger.admit_add(KEY, recovery=False).response == FENCED

    def test_repair_copy_does_not_make_the_fence_sure(self):
        """Repair of a closed ledger recreates it on a bookie that lost it: its old writer must still be refused."""
        ledger = first_contact(7, MARK)
        copied = ledger.admit_add(KEY, recovery=True)
        assert copied.records == (MasterKeyNoted(7, KEY), FenceUnsureNoted(7))
        ledger.added(copied, -1, -1)
        assert ledger.admit_add(KEY, recovery=False).ask_metadata
        assert replayed(*copied.records).admit_add(KEY, recovery=False).ask_metadata

    def test_explicit_lac_is_refused_up_to_the_mark(self):
        ledger = first_contact(7, MARK)
        assert not isinstance(ledger.write_last_add_confirmed(KEY, 3).response, Positive)
        assert ledger.last_add_confirmed == -1


@pytest.mark.parametrize(
    ("recovery", "volatile", "journal", "waits"),
    [
        (False, False, True, True),
        (False, False, False, False),
        (False, True, True, False),
        (False, True, False, False),
        (True, False, False, True),
        (True, True, False, True),
        (True, True, True, True),
    ],
)
def test_recovery_writes_are_synced_before_their_ack_in_every_mode(recovery, volatile, journal, waits):
    assert acked_after_sync(recovery=recovery, volatile=volatile, journal_write_data=journal) is waits


class TestSyncOfVdLedger:
    def test_writer_may_request_a_sync(self):
        assert BookieLedger(7).admit_sync(KEY).response == Positive()
        assert replayed(MasterKeyNoted(7, KEY)).admit_sync(KEY).response == Positive()

    def test_sync_is_refused_after_the_fence(self):
        """Recovery writes are synced here too; reporting them to the old writer would confirm truncated entries."""
        assert replayed(MasterKeyNoted(7, KEY), FenceNoted(7)).admit_sync(KEY).response == FENCED

    def test_sync_is_refused_while_the_fence_is_unsure(self):
        assert not isinstance(first_contact(7, MARK).admit_sync(KEY).response, Positive)

    def test_sync_is_refused_with_a_wrong_password(self):
        assert replayed(MasterKeyNoted(7, b"other")).admit_sync(KEY).response == UNAUTHORIZED


def told(boot, highest_ledger_id, healed):
    return MarksTold(LossyBootNoted(boot, highest_ledger_id), HealedNoted(healed))


class TestSeveralDirectories:
    @pytest.mark.parametrize(
        ("tell", "together"),
        [
            # All are healed.
            ([told(1, 20, 1)], ((1, 20), 1, ())),
            ([told(1, 20, 1), told(2, 30, 2)], ((2, 30), 2, ())),
            # One directory never had a lossy boot.
            ([told(0, -1, 0), told(2, 20, 1)], ((3, 20), 1, (1,))),
            # None is healed: the number rises above all.
            ([told(1, 20, 0), told(1, 20, 0)], ((2, 20), 0, (0, 1))),
            ([told(1, 20, 0), told(3, 30, 2)], ((4, 30), 2, (0, 1))),
            # Entries healed in one directory may be lost again in a later boot of the other. The order of the boots is unknown:
            # older metadata that is put back issues the same ids again.
            ([told(1, 20, 0), told(1, 30, 1)], ((2, 30), 1, (0,))),
            ([told(1, 30, 0), told(1, 20, 1)], ((2, 30), 1, (0,))),
            ([told(1, 20, 0), told(1, 20, 1)], ((2, 20), 1, (0,))),
            ([told(1, 30, 0), told(5, 20, 5)], ((6, 30), 5, (0,))),
        ],
    )
    def test_directories_are_healed_together_only_if_each_is(self, tell, together):
        mark, healed, not_healed = together
        assert marks_together(tell) == MarksTogether(LossyBootNoted(*mark), HealedNoted(healed), not_healed)


@pytest.mark.parametrize(
    ("records", "boot"),
    [
        ([], 1),
        ([LimboNoted(7, 3)], 3),
        ([LimboCleared(7, 3), LimboNoted(8, 2)], 3),
        ([HealedNoted(4), FenceNoted(7)], 4),
        ([LossyBootNoted(2, 30)], 2),
    ],
)
def test_mark_after_lost_records_has_the_highest_boot_number_left(records, boot):
    assert mark_above(MARK, records) == LossyBootNoted(boot, 20)


class TestAbsenceOutsideLimbo:
    @pytest.mark.parametrize(
        ("ledger_id", "ledger", "healed", "unsure"),
        [
            (7, None, 1, True),
            (20, None, 1, True),
            (21, None, 1, False),
            (7, None, 2, False),
            (7, replayed(), 1, True),
            (7, replayed(LimboNoted(7, 2)), 1, False),
            (7, replayed(LimboNoted(7, 2), LimboCleared(7, 2)), 1, False),
            (7, replayed(LimboNoted(7, 1), LimboCleared(7, 1)), 1, True),
        ],
    )
    def test_ledger_up_to_the_mark_may_lack_entries_until_healed(self, ledger_id, ledger, healed, unsure):
        assert absence_unsure(ledger_id, ledger, LossyBootNoted(2, 20), HealedNoted(healed)) is unsure

    @pytest.mark.parametrize(
        ("before", "healed", "other_causes", "absent"),
        [
            (NO_LOSSY_BOOT, 0, False, 0b10),
            (NO_LOSSY_BOOT, 0, True, 0),
            (LossyBootNoted(1, 20), 1, False, 0b10),
            (LossyBootNoted(1, 20), 0, False, 0),
            (LossyBootNoted(1, 20, 0b100), 0, False, 0b110),
            (LossyBootNoted(1, 20, 0b100), 1, False, 0b10),
        ],
    )
    def test_absence_is_the_only_cause_if_it_was_of_all_boots_not_healed(self, before, healed, other_causes, absent):
        assert only_absent(0b10, other_causes=other_causes, before=before, healed=HealedNoted(healed)) == absent

    @pytest.mark.parametrize(
        ("mark", "healed", "absent", "over"),
        [
            (LossyBootNoted(1, 20, 0b110), 0, 0, True),
            (LossyBootNoted(1, 20, 0b110), 0, 0b1000, True),
            (LossyBootNoted(1, 20, 0b110), 0, 0b100, False),
            (LossyBootNoted(1, 20, 0b110), 1, 0, False),
            (LossyBootNoted(1, 20), 0, 0, False),
        ],
    )
    def test_lossy_boot_is_over_when_all_directories_that_it_lacked_are_back(self, mark, healed, absent, over):
        assert absence_over(mark, HealedNoted(healed), absent) is over

    def test_directories_that_lacked_each_other_are_back_together(self):
        told = [
            MarksTold(LossyBootNoted(1, 5, 0b10), HealedNoted(0)),
            MarksTold(LossyBootNoted(1, 9, 1), HealedNoted(0)),
        ]
        assert marks_together(told).mark == LossyBootNoted(2, 9, 0b11)
        told.append(MarksTold(LossyBootNoted(1, 9), HealedNoted(0)))
        assert marks_together(told).mark == LossyBootNoted(2, 9, 0)

    def test_first_boot_marks_the_existing_ledgers(self):
        assert first_mark(20) == LossyBootNoted(0, 20)
        assert first_mark(0) == LossyBootNoted(0, 0)
        assert first_mark(-1) is None
        assert first_mark(20, MARK) is None

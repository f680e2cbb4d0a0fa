"""BP-14, "Relax Durability", sentence by sentence, and its future work: ensemble change and striping.

Bookies sync when the test says so. "The paper" is BP-14; the rules beyond it are those of docs/decisions/relaxed-durability.md.
"""

from __future__ import annotations

from itertools import product

import pytest

from bookspark.errors import AddTimeoutError, NotEnoughBookiesError
from bookspark.protocol.ledger.actions import Acknowledge, Confirm, SendSync, SyncAnswered
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.ledger.quorum import last_add_confirmed_of
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import BookieBack, Close, Sync
from tests.protocol.ledger_pair import LedgerPair


def volatile(**options):
    return LedgerPair(volatile=True, **options)


def synced_and_told(pair, bookie):
    """The bookie syncs and reports it with its answer to the next add."""
    pair.bookies(bookie).sync()
    pair.append()
    pair.writer.answers(bookie)


class TestExample:
    """The ensemble is A, B, C; their LastAddSynced are 1, 2, 3."""

    @pytest.mark.parametrize(("ack_quorum", "lac"), [(1, 3), (2, 2), (3, 1)])
    def test_lac_follows_the_papers_rule(self, ack_quorum, lac):
        assert last_add_confirmed_of(3, ack_quorum, (1, 2, 3)) == lac

    @pytest.mark.parametrize(("ack_quorum", "lac"), [(1, 3), (2, 2), (3, 1)])
    def test_writer_confirms_by_the_papers_rule(self, ack_quorum, lac):
        pair = volatile(aq=ack_quorum)
        pair.append(4)
        for number, bookie in enumerate(("b1", "b2", "b3")):
            for entry in range(number + 2):
                pair.writer.answers(bookie, entry)
            pair.bookies(bookie).sync()
        assert pair.writer.confirmed == -1, "acknowledged is not synced"
        for number, bookie in enumerate(("b1", "b2", "b3")):
            pair.append()
            pair.writer.answers(bookie, 4 + number)
        assert pair.writer.confirmed == lac


@pytest.mark.parametrize(
    ("e", "wq", "aq"), [(e, w, a) for e in range(1, 5) for w in range(1, e + 1) for a in range(1, w + 1)]
)
def test_lac_covers_exactly_the_entries_synced_on_an_ack_quorum(e, wq, aq):
    """Against a simple twin that counts the syncing bookies entry by entry."""
    for synced in product(range(-1, 5), repeat=e):
        lac = last_add_confirmed_of(wq, aq, synced)
        for entry in range(lac + 1):
            members = [(entry + i) % e for i in range(wq)]
            assert sum(synced[position] >= entry for position in members) >= aq
        if e == wq:
            assert sum(s >= lac + 1 for s in synced) < aq, "and it is the highest such id"


class TestAcknowledgement:
    def test_acknowledgement_happens_after_replication_to_volatile_memory(self):
        pair = volatile()
        pair.append()
        pair.writer.answers("b1", 0)
        assert pair.writer.acknowledged == -1
        pair.writer.answers("b2", 0)
        assert pair.writer.told == [Acknowledge(0)]
        assert (pair.writer.acknowledged, pair.writer.confirmed) == (0, -1)

    def test_entries_are_acknowledged_in_order(self):
        pair = volatile()
        pair.append(2)
        pair.writer.answers("b1", 1)
        pair.writer.answers("b2", 1)
        assert pair.writer.acknowledged == -1
        pair.writer.answers("b1", 0)
        pair.writer.answers("b2", 0)
        assert pair.writer.acknowledged == 1

    def test_lac_advances_only_over_synced_entries(self):
        pair = volatile()
        pair.appended(3)
        pair.bookies("b1").sync()
        synced_and_told(pair, "b1")
        assert pair.writer.confirmed == -1
        pair.bookies("b2").sync()
        pair.writer.answers("b2")
        assert pair.writer.confirmed == 2

    def test_adds_carry_the_synced_lac(self):
        pair = volatile()
        pair.appended(2)
        pair.append()
        assert {request.last_add_confirmed for _, request in pair.writer.sent} == {-1}


class TestSync:
    def test_sync_confirms_all_earlier_appends(self):
        pair = volatile()
        pair.append(2)
        pair.writer.step(Sync())
        assert "sync" not in pair.writer.waits_for("b1"), "not before all is acknowledged"
        pair.writer.all_answer()
        assert pair.writer.confirmed == 1

    def test_sync_sends_one_request_to_each_bookie(self):
        pair = volatile()
        pair.appended(100)
        pair.writer.step(Sync())
        assert [request for _, request in pair.writer.sent] == 3 * [SendSync(("b1", "b2", "b3"), Assignment(0))]

    def test_sync_never_covers_a_later_add(self):
        pair = volatile()
        pair.appended()
        pair.writer.step(Sync())
        pair.writer.parks("b1", "sync")
        pair.writer.parks("b2", "sync")
        pair.append()
        pair.writer.answers("b1", 1)
        pair.writer.answers("b2", 1)
        pair.writer.releases("b1")
        pair.writer.releases("b2")
        assert (pair.writer.confirmed, pair.writer.acknowledged) == (0, 1)

    def test_straggler_is_asked_again_after_its_ack(self):
        pair = volatile(aq=3)
        pair.append(2)
        pair.writer.answers("b1")
        pair.writer.answers("b2")
        pair.writer.answers("b3", 0)
        pair.writer.step(Sync())
        pair.writer.answers("b3", 1)
        pair.writer.all_answer()
        assert pair.writer.confirmed == 1

    def test_each_bookie_has_one_sync_at_a_time(self):
        pair = volatile()
        pair.appended()
        pair.writer.step(Sync())
        pair.append()
        for bookie in ("b1", "b2", "b3"):
            pair.writer.answers(bookie, 1)
        pair.writer.step(Sync())
        assert pair.writer.waits_for("b1") == ["sync"]
        pair.writer.all_answer()
        assert pair.writer.confirmed == 1

    def test_sync_without_entries_sends_nothing(self):
        pair = volatile()
        pair.writer.step(Sync())
        assert pair.writer.sent == []

    def test_sync_of_a_pd_ledger_sends_nothing(self):
        pair = LedgerPair()
        pair.append()
        before = len(pair.writer.sent)
        pair.writer.step(Sync())
        assert len(pair.writer.sent) == before

    def test_writer_syncs_by_itself_after_sync_bytes(self):
        pair = volatile(sync_bytes=100)
        pair.appended(9)
        assert pair.writer.confirmed == -1
        pair.appended()
        assert pair.writer.confirmed == 9
        assert len(pair.writer.machine.cursors.pending) == 0

    def test_steady_stream_of_appends_does_not_delay_the_sync(self):
        pair = volatile(sync_bytes=20)
        for entry in range(20):
            pair.append()
            for bookie in ("b1", "b2", "b3"):
                if entry:
                    pair.writer.answers(bookie, entry - 1)
            if entry % 4 == 3:
                for bookie in ("b1", "b2", "b3"):
                    if "sync" in pair.writer.waits_for(bookie):
                        pair.writer.answers(bookie, "sync")
        assert pair.writer.confirmed > 10


class TestClose:
    def test_close_syncs_to_confirm_its_entries(self):
        pair = volatile()
        pair.appended(3)
        pair.writer.step(Close())
        assert pair.writer.wanted == []
        pair.writer.all_answer()
        pair.writer.writes()
        assert pair.writer.closed.last_entry_id == 2

    def test_close_that_cannot_sync_in_time_leaves_the_ledger_open(self):
        from bookspark.protocol.ledger.actions import DeadlinePassed

        pair = volatile()
        pair.appended(3)
        pair.writer.step(Close())
        pair.writer.step(DeadlinePassed())
        assert isinstance(pair.writer.error, AddTimeoutError)
        assert "0..2 are not yet synced on 2 bookies" in str(pair.writer.error)
        assert pair.metadata.state is LedgerState.OPEN


class TestCrash:
    def test_new_incarnation_takes_back_unsynced_acks_and_resends_their_entries(self):
        pair = volatile()
        pair.appended(2)
        pair.bookies("b1").sync()
        synced_and_told(pair, "b1")
        pair.restart("b1")
        assert pair.writer.waits_for("b1") == [2], "e0 and e1 were synced"
        assert pair.bookies("b1").entries.keys() == {0, 1}

    def test_any_answer_reveals_a_new_incarnation(self):
        pair = volatile(changes=ChangeMode.OFF)
        pair.appended(2)
        pair.bookies("b1").crash()
        pair.append()
        pair.writer.answers("b1", 2)
        assert pair.writer.waits_for("b1") == [0, 1]
        pair.writer.step(Sync())
        pair.writer.all_answer()
        assert pair.writer.confirmed == 2

    def test_ack_of_the_earlier_process_does_not_count(self):
        pair = volatile(aq=3)
        pair.append(2)
        pair.writer.answers("b2")
        pair.writer.answers("b3")
        pair.writer.answers("b1", 0)
        pair.writer.parks("b1", 1)
        pair.restart("b1")
        pair.writer.releases("b1", 1)
        assert pair.writer.acknowledged == 0
        assert pair.writer.machine.cursors.pending[1].acks == {"b2", "b3"}

    def test_confirmed_entries_survive_a_crash_of_every_bookie(self):
        pair = volatile()
        pair.appended(3)
        pair.writer.step(Sync())
        pair.writer.all_answer()
        pair.appended(2)
        for bookie in ("b1", "b2", "b3"):
            pair.bookies(bookie).crash()
        closed = pair.recover().closed
        assert closed.last_entry_id == 2

    def test_sync_continues_on_a_restarted_bookie(self):
        pair = volatile(changes=ChangeMode.OFF, aq=3)
        pair.appended(2)
        pair.writer.step(Sync())
        pair.writer.refuses("b1", "sync", response=Unknown(UnknownReason.UNREACHABLE))
        pair.writer.all_answer()
        assert pair.writer.confirmed == -1
        pair.restart("b1")
        pair.writer.all_answer()
        assert pair.writer.confirmed == 1

    def test_sync_continues_on_a_reconnected_bookie(self):
        pair = volatile(changes=ChangeMode.OFF, aq=3)
        pair.appended(2)
        pair.writer.step(Sync())
        pair.writer.refuses("b1", "sync", response=Unknown(UnknownReason.UNREACHABLE))
        pair.writer.all_answer()
        pair.writer.step(BookieBack("b1", 1))
        assert pair.writer.waits_for("b1") == ["sync"]


class TestEnsembleChange:
    """Future work of the paper: allow ensemble changes for ledgers with no-sync entries."""

    def lost(self, **options):
        """e0 and e1 are confirmed, e2 and e3 acknowledged by all but synced nowhere, and b3 is lost."""
        pair = volatile(**options)
        pair.appended(2)
        pair.writer.step(Sync())
        pair.writer.all_answer()
        pair.appended(2)
        pair.append()
        pair.writer.refuses("b3", 4)
        return pair

    def test_acknowledged_unsynced_entries_are_sent_to_the_new_bookie(self):
        pair = self.lost()
        pair.change_ensemble("b4")
        assert pair.metadata.fragments == (Fragment(0, ("b1", "b2", "b3")), Fragment(2, ("b1", "b2", "b4")))
        assert pair.writer.waits_for("b4") == [2, 3, 4]
        (assignment,) = {request.assignment for bookie, request in pair.writer.sent if bookie == "b4"}
        assert assignment == Assignment(2)

    def test_sync_of_a_new_bookie_counts_only_with_the_earlier_entries(self):
        pair = self.lost()
        pair.change_ensemble("b4")
        pair.writer.answers("b1", 4)
        pair.writer.answers("b4", 4)
        pair.bookies("b4").sync()
        pair.append()
        pair.writer.answers("b4", 5)
        pair.bookies("b1").sync()
        pair.writer.answers("b1", 5)
        assert pair.writer.confirmed == 1, "b4 has e4 synced, but not e2 and e3"
        pair.writer.answers("b4")
        pair.bookies("b4").sync()
        pair.writer.step(Sync())
        pair.writer.all_answer()
        assert pair.writer.confirmed == 5

    def test_late_report_of_the_lost_bookie_does_not_count(self):
        pair = volatile()
        pair.appended(2)
        pair.writer.step(Sync())
        pair.writer.parks("b3", "sync")
        pair.append()
        pair.writer.refuses("b3", 2)
        pair.change_ensemble("b4")
        pair.writer.releases("b3")
        pair.writer.answers("b1", "sync")
        assert pair.writer.confirmed == -1, "b1 alone of the new ensemble has synced"
        pair.writer.answers("b2", "sync")
        assert pair.writer.confirmed == 1

    def test_lac_does_not_advance_during_a_change(self):
        pair = self.lost()
        pair.writer.step(Sync())
        for bookie in ("b1", "b2"):
            pair.writer.answers(bookie)
        pair.writer.chooses("b4")
        assert (pair.writer.confirmed, pair.writer.acknowledged) == (1, 3)
        pair.writer.writes()
        assert pair.writer.acknowledged == 4
        pair.writer.all_answer()
        assert pair.writer.confirmed == 4

    def test_failed_sync_counts_as_a_failure_of_the_bookie(self):
        pair = volatile()
        pair.appended(2)
        pair.writer.step(Sync())
        pair.writer.refuses("b2", "sync")
        pair.change_ensemble("b4")
        pair.writer.all_answer()
        assert pair.writer.confirmed == 1

    def test_ledger_with_acknowledged_unsynced_entries_stays_open_without_spare_bookies(self):
        """A soak: the ledger was closed at the last synced entry, and entries that bookies had acknowledged and still held were
        truncated, although no process had lost anything."""
        pair = self.lost()
        pair.writer.refuses("b2", 4)
        pair.writer.chooses("b4")
        pair.writer.chooses()
        assert isinstance(pair.writer.error, NotEnoughBookiesError)
        assert "left open: entries up to 3 were acknowledged" in str(pair.writer.error)
        assert pair.metadata.state is LedgerState.OPEN
        assert pair.recover().closed.last_entry_id >= 3

    def test_fully_synced_ledger_is_closed_without_spare_bookies(self):
        pair = volatile()
        pair.appended(2)
        pair.writer.step(Sync())
        pair.writer.all_answer()
        pair.append()
        for bookie in ("b2", "b3"):
            pair.writer.refuses(bookie, 2)
        pair.writer.chooses()
        pair.writer.writes()
        assert isinstance(pair.writer.error, NotEnoughBookiesError)
        assert pair.metadata.last_entry_id == 1


class TestStriping:
    """Future work of the paper: allow no-sync writes on striping ledgers."""

    def test_each_bookie_gets_its_stripe_as_assignment(self):
        pair = volatile(e=3, wq=2, aq=2)
        pair.append(2)
        told = {bookie: request.assignment for bookie, request in pair.writer.sent}
        assert told == {name: Assignment(0, 3, 2, i) for i, name in enumerate(("b1", "b2", "b3"))}

    def test_lac_follows_every_write_set(self):
        pair = volatile(e=3, wq=2, aq=2)
        pair.appended(6)
        pair.writer.step(Sync())
        pair.writer.answers("b1", "sync")
        pair.writer.answers("b2", "sync")
        assert pair.writer.confirmed == 0, "e1 is on b2 and b3"
        pair.writer.answers("b3", "sync")
        assert pair.writer.confirmed == 5

    def test_ensemble_change_resends_entries_of_the_replaced_stripe(self):
        pair = volatile(e=3, wq=2, aq=2)
        pair.appended(6)
        pair.append()
        pair.writer.refuses("b1", 6)
        pair.change_ensemble("b4")
        assert pair.writer.waits_for("b4") == [0, 2, 3, 5, 6]
        pair.writer.step(Sync())
        pair.writer.all_answer()
        assert pair.writer.confirmed == 6
        assert all(len(pair.replicas(entry)) == 2 for entry in range(7))

    def test_bookie_that_returns_at_another_position_starts_again(self):
        pair = volatile(e=3, wq=1, aq=1)
        pair.appended(3)
        pair.append(2)
        pair.writer.refuses("b1", 3)
        pair.change_ensemble("b4")
        pair.writer.refuses("b2", 4)
        pair.change_ensemble("b1")
        assert pair.ensemble == ("b4", "b1", "b3")
        pair.writer.step(Sync())
        pair.writer.all_answer()
        assert pair.writer.confirmed == 4
        assert all(pair.replicas(entry) for entry in range(5))

    def test_bookie_syncs_again_although_another_bookies_entry_is_pending_first(self):
        """b2's sync began before it had e4. When it ends, the writer still waits for e0 of b1."""
        pair = volatile(e=3, wq=1, aq=1)
        pair.appended(3)
        pair.writer.step(Sync())
        pair.writer.parks("b2", "sync")
        pair.append(2)
        pair.writer.answers("b1", 3)
        pair.writer.answers("b2", 4)
        pair.writer.step(Sync())
        pair.writer.releases("b2", "sync")
        assert pair.writer.waits_for("b2") == ["sync"]
        pair.writer.all_answer()
        assert pair.writer.confirmed == 4

    def test_sync_report_of_an_earlier_stay_does_not_count_for_the_present_position(self):
        """b1 had synced its stripe and left; when its report arrives, b1 is back at b2's position without b2's entries."""
        pair = volatile(e=3, wq=1, aq=1)
        pair.appended(3)
        pair.writer.step(Sync())
        pair.writer.parks("b1", "sync")
        pair.writer.step(SyncAnswered("b1", Unknown(UnknownReason.TIMEOUT)))
        pair.change_ensemble("b4")
        pair.writer.refuses("b2", "sync")
        pair.change_ensemble("b1")
        assert pair.ensemble == ("b4", "b1", "b3")
        pair.writer.answers("b4", 0)
        pair.writer.answers("b4", "sync")
        pair.writer.answers("b3", "sync")
        assert pair.writer.confirmed == 0
        pair.writer.releases("b1", "sync")
        assert pair.writer.confirmed == 0
        assert not pair.replicas(1)
        pair.writer.all_answer()
        assert pair.writer.confirmed == 2


class TestGuaranteed:
    """Both modes together: LAFR follows the entries synced on the whole write set."""

    def test_lac_advances_at_aq_and_lafr_at_wq(self):
        pair = volatile(guaranteed=True)
        pair.appended(2)
        pair.writer.step(Sync())
        pair.writer.answers("b1", "sync")
        pair.writer.answers("b2", "sync")
        cursors = pair.writer.machine.cursors
        assert (cursors.last_add_confirmed, cursors.last_add_fully_replicated) == (1, -1)
        pair.writer.answers("b3", "sync")
        assert (cursors.last_add_confirmed, cursors.last_add_fully_replicated) == (1, 1)

    def test_bookies_that_synced_a_confirmed_entry_below_wq_are_pinned(self):
        pair = volatile(guaranteed=True)
        pair.appended()
        pair.writer.step(Sync())
        pair.writer.answers("b1", "sync")
        pair.writer.answers("b2", "sync")
        pair.append()
        pair.writer.refuses("b1", 1)
        assert pair.writer.wanted == []
        pair.writer.answers("b3", "sync")
        pair.change_ensemble("b4")
        assert pair.metadata.last_fragment == Fragment(1, ("b4", "b2", "b3"))

    def test_bookie_that_only_acknowledged_an_entry_is_not_pinned(self):
        pair = volatile(guaranteed=True)
        pair.appended()
        pair.append()
        pair.writer.refuses("b1", 1)
        pair.change_ensemble("b4")
        assert pair.metadata.fragments == (Fragment(0, ("b4", "b2", "b3")),)

    def test_close_waits_until_all_entries_are_synced_on_wq(self):
        pair = volatile(guaranteed=True)
        pair.appended(2)
        pair.writer.step(Close())
        pair.writer.answers("b1", "sync")
        pair.writer.answers("b2", "sync")
        assert pair.writer.wanted == []
        pair.writer.answers("b3", "sync")
        pair.writer.writes()
        assert pair.writer.closed.last_entry_id == 1


def test_confirmation_acknowledges_too():
    """A sync report may cover an entry whose ack was lost."""
    pair = volatile()
    pair.append()
    pair.writer.parks("b1", 0)
    pair.writer.parks("b2", 0)
    for bookie in ("b1", "b2"):
        pair.bookies(bookie).sync()
    pair.append()
    pair.writer.answers("b1", 1)
    pair.writer.answers("b2", 1)
    assert Confirm(0) in pair.writer.told
    assert pair.writer.acknowledged == 1

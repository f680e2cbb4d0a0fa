"""The figures of "Tweaking the BookKeeper protocol - Guaranteeing write quorum", step by step on the real machines.

All use WQ 3 and AQ 2. Entries, bookies and errors are the paper's; where its text leaves the order open, the order here leads
to its picture.
"""

from __future__ import annotations

from bookspark.protocol.ledger.actions import ChooseBookies, DeadlinePassed
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.writing.replication import GuaranteedWriteQuorum
from bookspark.protocol.writing.writer import BookiesChanged, Close
from tests.protocol.ledger_pair import LedgerPair


class WithoutPinning(GuaranteedWriteQuorum):
    """The error shown by figure 3: entries below WQ move along, but the bookies that hold them are not pinned."""

    __slots__ = ()

    def replaceable(self, failed, confirmed, metadata):
        return failed


def replication_factors(pair, count):
    return [len(pair.replicas(entry)) for entry in range(count)]


def figure_1(**options):
    """e0 to e3; b3 fails on e0, and its replacement b4 fails on e2."""
    pair = LedgerPair(**options)
    pair.append()
    pair.writer.answers("b1", 0)
    pair.writer.answers("b2", 0)
    pair.writer.refuses("b3", 0)
    pair.change_ensemble("b4")
    pair.appended()
    pair.append()
    pair.writer.answers("b1", 2)
    pair.writer.answers("b2", 2)
    pair.writer.refuses("b4", 2)
    pair.change_ensemble("b5")
    pair.appended()
    return pair


def test_figure_1_series_of_ensemble_changes_leaves_several_entries_at_aq():
    pair = figure_1()
    assert pair.metadata.fragments == (
        Fragment(0, ("b1", "b2", "b3")),
        Fragment(1, ("b1", "b2", "b4")),
        Fragment(3, ("b1", "b2", "b5")),
    )
    assert pair.writer.confirmed == 3


def test_figure_2_top_entries_0_and_2_stay_at_aq():
    assert replication_factors(figure_1(), 4) == [2, 3, 2, 3]


def test_figure_2_bottom_all_entries_at_aq_is_a_legal_state():
    pair = LedgerPair()
    for entry, (failing, chosen) in enumerate([("b3", "b4"), ("b1", "b5"), ("b4", "b6"), ("b2", "b7")]):
        pair.append()
        for bookie in pair.ensemble:
            if bookie != failing:
                pair.writer.answers(bookie, entry)
        pair.writer.refuses(failing, entry)
        pair.change_ensemble(chosen)
    pair.writer.step(Close())
    pair.writer.writes()
    assert pair.writer.closed.last_entry_id == 3
    assert replication_factors(pair, 4) == [2, 2, 2, 2]


class TestFigure3:
    """By moving acknowledged entries into the next ensemble, and changing the ensemble until it is completely disjoint from the
    bookies that host the committed entries, the committed entries become lost."""

    def committed_on_b1_and_b2(self, **options):
        pair = LedgerPair(guaranteed=True, **options)
        pair.append()
        pair.writer.answers("b1", 0)
        pair.writer.answers("b2", 0)
        assert pair.writer.confirmed == 0
        pair.append()
        pair.writer.refuses("b3", 0)
        pair.change_ensemble("b4")
        pair.writer.refuses("b1", 1)
        return pair

    def test_committed_entry_is_lost_without_pinning(self):
        pair = self.committed_on_b1_and_b2(policy=WithoutPinning())
        pair.change_ensemble("b5")
        pair.writer.refuses("b2", 1)
        pair.change_ensemble("b6")
        assert pair.metadata.fragments == (Fragment(0, ("b5", "b6", "b4")),)
        assert pair.replicas(0) == set()
        assert pair.recover().closed.last_entry_id == -1, "e0 had been acknowledged"

    def test_pinning_keeps_the_bookies_that_host_the_entry(self):
        pair = self.committed_on_b1_and_b2()
        pair.writer.refuses("b2", 1)
        assert pair.writer.wanted == []
        assert pair.ensemble == ("b1", "b2", "b4")
        assert pair.recover().closed.last_entry_id == 0


def test_figure_4_entries_from_the_first_below_wq_move_into_the_next_fragment():
    """The text: the above leaves entries 0 and 2 at WQ instead of AQ like in fig 1."""
    pair = figure_1(guaranteed=True)
    assert pair.metadata.fragments == (Fragment(0, ("b1", "b2", "b4")), Fragment(2, ("b1", "b2", "b5")))
    assert replication_factors(pair, 4) == [3, 3, 3, 3]
    assert pair.writer.machine.cursors.last_add_fully_replicated == 3


class TestFigure5:
    """Ensemble changes that would have replaced bookies that hosted committed entries below WQ are postponed until they no longer
    host committed but not fully replicated entries."""

    def test_change_is_postponed_until_e0_is_at_wq(self):
        pair = LedgerPair(guaranteed=True)
        pair.append()
        pair.writer.answers("b1", 0)
        pair.writer.answers("b2", 0)
        pair.append(2)
        pair.writer.refuses("b3", 0)
        pair.change_ensemble("b4")
        pair.writer.refuses("b1", 1)
        pair.writer.refuses("b2", 1)
        assert pair.writer.wanted == [], "b1 and b2 are pinned by e0"
        pair.writer.refuses("b4", 0)
        pair.change_ensemble("b5")
        assert pair.ensemble == ("b1", "b2", "b5")
        pair.writer.answers("b5", 0)
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b5"), ("b1", "b2"))], "e0 is at WQ"
        pair.change_ensemble("b6", "b7")
        assert pair.metadata.fragments == (Fragment(0, ("b1", "b2", "b5")), Fragment(1, ("b6", "b7", "b5")))
        for bookie in ("b6", "b7"):
            pair.writer.refuses(bookie)
        assert pair.writer.confirmed == 0, "only e0 got committed, the rest did not reach AQ"
        closed = pair.recover().closed
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 0)
        assert pair.replicas(0) == {"b1", "b2", "b5"}, "no data loss"


class TestTweak1:
    """Ensemble changes."""

    def test_pending_add_is_acknowledged_at_aq_and_removed_at_wq(self):
        pair = LedgerPair(guaranteed=True)
        pair.append()
        pair.writer.answers("b1", 0)
        pair.writer.answers("b2", 0)
        assert (pair.writer.confirmed, list(pair.writer.machine.cursors.pending)) == (0, [0])
        pair.writer.answers("b3", 0)
        assert list(pair.writer.machine.cursors.pending) == []

    def test_adds_complete_during_a_change_by_acks_of_staying_bookies(self):
        pair = LedgerPair(guaranteed=True)
        pair.append(2)
        pair.writer.refuses("b3", 0)
        pair.writer.answers("b3", 1)
        pair.writer.answers("b1", 0)
        pair.writer.answers("b1", 1)
        assert pair.writer.confirmed == -1, "b3 leaves: its ack of e1 does not count"
        pair.writer.answers("b2", 0)
        assert pair.writer.confirmed == 0
        pair.writer.chooses("b4")
        pair.writer.answers("b2", 1)
        assert pair.writer.confirmed == 1
        pair.writer.writes()
        assert pair.metadata.fragments == (Fragment(0, ("b1", "b2", "b4")),)
        assert pair.writer.waits_for("b4") == [0, 1]

    def test_late_ack_of_a_leaving_bookie_does_not_count(self):
        pair = LedgerPair(guaranteed=True)
        pair.append(2)
        pair.writer.answers("b1")
        pair.writer.refuses("b3", 0)
        pair.writer.chooses("b4")
        pair.writer.answers("b3", 1)
        assert pair.writer.confirmed == -1
        pair.writer.writes()
        pair.writer.answers("b4", 0)
        assert pair.writer.confirmed == 0
        assert pair.writer.machine.cursors.pending[1].acks == {"b1"}

    def test_entry_at_wq_behind_an_entry_below_wq_keeps_an_ack_quorum(self):
        """Not in the paper, which replaces one bookie at a time: replacing two would leave e1 on a single bookie."""
        pair = LedgerPair(guaranteed=True)
        pair.append(2)
        pair.writer.answers("b1")
        pair.writer.answers("b2", 1)
        pair.writer.answers("b3", 1)
        assert pair.writer.confirmed == -1
        pair.writer.answers("b2", 0)
        assert pair.writer.confirmed == 1
        pair.append()
        pair.writer.refuses("b3", 0)
        pair.writer.refuses("b2", 2)
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3"), ("b3",))]
        pair.change_ensemble("b4")
        assert len(pair.replicas(1)) == 2
        assert pair.writer.wanted == [], "b1 and b2 are pinned until b4 has e0 and e1"
        pair.writer.answers("b4")
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b4"), ("b2",))]

    def test_striped_entry_at_wq_keeps_an_ack_quorum_without_pinned_bookies(self):
        """e1 is confirmed by b2, e2 is on b3 and b4. Both fail while no spare is available: one of them stays."""
        pair = LedgerPair(e=4, wq=2, aq=1, guaranteed=True)
        pair.appended()
        pair.append(3)
        pair.writer.answers("b2", 1)
        pair.writer.answers("b3", 2)
        pair.writer.answers("b4", 2)
        assert pair.writer.confirmed == 2
        pair.writer.refuses("b3", 1)
        pair.writer.chooses()
        pair.writer.refuses("b4", 3)
        assert pair.writer.wanted == [ChooseBookies(("b1", "b2", "b3", "b4"), ("b3",))]
        pair.change_ensemble("b5")
        assert pair.replicas(2) == {"b4"}
        assert pair.recover("b3").closed.last_entry_id >= 2

    def test_ledger_without_spare_bookies_waits_and_stays_open(self):
        pair = LedgerPair(guaranteed=True)
        pair.append()
        for bookie in ("b2", "b3"):
            pair.writer.refuses(bookie, 0)
        pair.writer.chooses("b4")
        pair.writer.chooses()
        assert (pair.writer.wanted, pair.writer.error) == ([], None)
        pair.writer.step(BookiesChanged())
        pair.change_ensemble("b4", "b5")
        pair.writer.all_answer()
        assert pair.writer.confirmed == 0
        assert replication_factors(pair, 1) == [3]


class TestTweak2:
    """Closing ledgers: only complete a close once there are no remaining pending add ops."""

    def test_close_waits_for_wq(self):
        pair = LedgerPair(guaranteed=True)
        pair.append()
        pair.writer.answers("b1", 0)
        pair.writer.answers("b2", 0)
        pair.writer.step(Close())
        assert pair.writer.wanted == []
        pair.writer.answers("b3", 0)
        pair.writer.writes()
        assert pair.writer.closed.last_entry_id == 0
        assert replication_factors(pair, 1) == [3]

    def test_close_continues_once_a_bookie_appears(self):
        pair = self.without_a_third_bookie()
        pair.writer.step(BookiesChanged())
        pair.change_ensemble("b4")
        pair.writer.answers("b4", 0)
        pair.writer.writes()
        assert pair.writer.closed.last_entry_id == 0

    def test_close_at_its_deadline_leaves_the_ledger_open_for_recovery(self):
        pair = self.without_a_third_bookie()
        pair.writer.step(DeadlinePassed())
        assert "entries 0..0 are not yet synced on 3 bookies (waiting for b3, b3 failed)" in str(pair.writer.error)
        assert pair.metadata.state is LedgerState.OPEN
        closed = pair.recover("b3", spares=("b4",)).closed
        assert closed.last_entry_id == 0
        assert replication_factors(pair, 1) == [3]

    def without_a_third_bookie(self):
        """Closing the ledger is no longer an option if a ledger handle can't make progress."""
        pair = LedgerPair(guaranteed=True)
        pair.append()
        pair.writer.answers("b1", 0)
        pair.writer.answers("b2", 0)
        pair.writer.step(Close())
        pair.writer.refuses("b3", 0)
        pair.writer.chooses()
        assert (pair.writer.closed, pair.writer.error) == (None, None)
        return pair

    def test_close_waits_until_the_replacement_has_entries_2_and_3(self):
        """Without tweak 2 "the head of the last fragment would have remained at AQ"."""
        pair = LedgerPair(guaranteed=True)
        pair.appended(2)
        pair.append(2)
        for entry in (2, 3):
            pair.writer.answers("b1", entry)
            pair.writer.answers("b2", entry)
        pair.writer.step(Close())
        pair.writer.refuses("b3", 2)
        pair.writer.refuses("b3", 3)
        pair.change_ensemble("b5")
        assert pair.writer.closed is None
        pair.writer.answers("b5")
        pair.writer.writes()
        assert replication_factors(pair, 4) == [3, 3, 3, 3]

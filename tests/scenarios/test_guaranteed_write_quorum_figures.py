"""The figures of "Tweaking the BookKeeper protocol - Guaranteeing write quorum", step by step over the real machines.

All are at WQ 3, AQ 2. The entries, bookies and errors are the paper's; where its text leaves an order open, the order here is
one that leads to its picture.
"""

from __future__ import annotations

from bookspark.protocol.ledger.actions import ChooseBookies, DeadlinePassed
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.writing.replication import GuaranteedWriteQuorum
from bookspark.protocol.writing.writer import BookiesChanged, Close
from tests.protocol.ledger_pair import LedgerPair


class WithoutPinning(GuaranteedWriteQuorum):
    """What figure 3 warns of: entries below WQ are moved along, and nothing keeps the bookies that hold them."""

    __slots__ = ()

    def replaceable(self, failed, confirmed, metadata):
        return failed


def replication_factors(pair, count):
    return [len(pair.replicas(entry)) for entry in range(count)]


def figure_1(**options):
    """e0 to e3, while b3 fails on e0, and b4, which came for it, fails on e2."""
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


def test_figure_1_a_series_of_ensemble_changes_leaves_multiple_entries_at_aq():
    pair = figure_1()
    assert pair.metadata.fragments == (
        Fragment(0, ("b1", "b2", "b3")),
        Fragment(1, ("b1", "b2", "b4")),
        Fragment(3, ("b1", "b2", "b5")),
    )
    assert pair.writer.confirmed == 3


def test_figure_2_top_entries_0_and_2_are_left_at_aq():
    assert replication_factors(figure_1(), 4) == [2, 3, 2, 3]


def test_figure_2_bottom_all_entries_left_at_aq_is_also_a_legal_state():
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

    def test_without_pinning_a_committed_entry_is_unreadable_and_recovery_closes_the_ledger_as_empty(self):
        pair = self.committed_on_b1_and_b2(policy=WithoutPinning())
        pair.change_ensemble("b5")
        pair.writer.refuses("b2", 1)
        pair.change_ensemble("b6")
        assert pair.metadata.fragments == (Fragment(0, ("b5", "b6", "b4")),)
        assert pair.replicas(0) == set()
        assert pair.recover().closed.last_entry_id == -1, "e0 had been acknowledged"

    def test_with_pinning_the_bookies_that_host_it_are_not_replaced(self):
        pair = self.committed_on_b1_and_b2()
        pair.writer.refuses("b2", 1)
        assert pair.writer.wanted == []
        assert pair.ensemble == ("b1", "b2", "b4")
        assert pair.recover().closed.last_entry_id == 0


def test_figure_4_entries_from_the_first_one_below_wq_on_are_moved_into_the_next_fragment():
    """The text: the above leaves entries 0 and 2 at WQ instead of AQ like in fig 1."""
    pair = figure_1(guaranteed=True)
    assert pair.metadata.fragments == (Fragment(0, ("b1", "b2", "b4")), Fragment(2, ("b1", "b2", "b5")))
    assert replication_factors(pair, 4) == [3, 3, 3, 3]
    assert pair.writer.machine.cursors.last_add_fully_replicated == 3


class TestFigure5:
    """Ensemble changes that would have replaced bookies that hosted committed entries below WQ are postponed until they no longer
    host committed but not fully replicated entries."""

    def test_the_change_is_postponed_until_e0_is_at_wq(self):
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

    def test_a_pending_add_is_removed_at_wq_and_acknowledged_at_aq(self):
        pair = LedgerPair(guaranteed=True)
        pair.append()
        pair.writer.answers("b1", 0)
        pair.writer.answers("b2", 0)
        assert (pair.writer.confirmed, list(pair.writer.machine.cursors.pending)) == (0, [0])
        pair.writer.answers("b3", 0)
        assert list(pair.writer.machine.cursors.pending) == []

    def test_adds_go_on_completing_while_a_change_is_under_way_counting_only_bookies_that_stay(self):
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

    def test_a_late_ack_of_a_bookie_that_is_being_replaced_does_not_count(self):
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

    def test_an_entry_at_wq_behind_one_that_is_not_keeps_an_ack_quorum(self):
        """Not in the paper, which replaces one bookie at a time: two at once would leave e1 on one bookie of the new ensemble."""
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

    def test_also_on_a_striped_ledger_where_no_pinned_bookie_holds_it(self):
        """e1 is confirmed by b2, e2 is whole on b3 and b4. Both fail before bookies can be had: one of them stays."""
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

    def test_without_bookies_the_ledger_waits_and_is_not_closed(self):
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

    def test_we_either_keep_trying(self):
        pair = self.without_a_third_bookie()
        pair.writer.step(BookiesChanged())
        pair.change_ensemble("b4")
        pair.writer.answers("b4", 0)
        pair.writer.writes()
        assert pair.writer.closed.last_entry_id == 0

    def test_or_leave_the_ledger_open_for_a_later_ledger_recovery_operation(self):
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

    def test_the_paper_s_hazard_b5_fails_on_entries_2_and_3_and_the_client_closes(self):
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

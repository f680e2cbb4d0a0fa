"""The traps of design.md section 6, one test (or class) a trap, named after it: 1 to 6 and 9, which are the protocol's own.

Each tells the published bug as steps of the real machines, and where a step can be taken wrongly by hand, what it would lose.
"""

from __future__ import annotations

from dataclasses import replace

from bookspark.protocol.actions import SendAdd, SendRead, SendReadLac
from bookspark.protocol.bookie_ledger import BookieLedger
from bookspark.protocol.errors import LedgerFencedError
from bookspark.protocol.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.responses import FENCED, UNAUTHORIZED, Positive
from bookspark.protocol.writer import Close, State
from tests.protocol.ledger_pair import LedgerPair


class TestTrap1LacFencingReadsAndRecoveryReadsCarryTheFenceFlag:
    """BookKeeper #2614 and #2616."""

    def after_the_reads(self, flag):
        """The counterexample at 3/3/2, no crash at all; ``flag``: do recovery reads fence?"""
        # 1. The writer sends e0 to b1, b2, b3. 2. b2 has it, its answer is under way.
        pair = LedgerPair()
        pair.append()
        pair.writer.parks("b2", 0)
        # 3. A recoverer marks the ledger IN_RECOVERY. 4. It fences b1 and b2, a coverage; the message to b3 is slow.
        recovery = pair.recoverer()
        recovery.writes()
        recovery.answers("b1", -1)
        recovery.answers("b2", -1)
        # 5. It reads e0. 6. b1 denies it. 7. So does b3, where the writer's message has not arrived.
        if not flag:
            recovery.sent = [(b, replace(r, fence=False) if isinstance(r, SendRead) else r) for b, r in recovery.sent]
        recovery.answers("b1", 0)
        recovery.answers("b3", 0)
        # 8. Two of three deny it: no ack quorum can have it. The ledger is closed as empty.
        recovery.writes()
        assert recovery.closed.last_entry_id == -1
        # 9. The writer's e0 arrives at b3. 10. b2's answer arrives.
        pair.writer.answers("b3", 0)
        pair.writer.releases("b2", 0)
        return pair

    def test_the_recovery_read_fenced_b3_so_the_writer_is_refused(self):
        pair = self.after_the_reads(flag=True)
        assert isinstance(pair.writer.error, LedgerFencedError)
        assert pair.writer.confirmed == -1

    def test_without_the_flag_e0_would_be_acknowledged_behind_the_end(self):
        pair = self.after_the_reads(flag=False)
        assert pair.writer.confirmed == 0
        assert pair.metadata.last_entry_id == -1

    def test_every_read_of_a_recovery_before_its_end_is_known_carries_it(self):
        pair = LedgerPair()
        pair.appended(2)
        recovery = pair.recoverer()
        recovery.writes()
        assert all(request == SendReadLac(bookie, fence=True) for bookie, request in recovery.sent)
        recovery.answers("b1")
        recovery.answers("b3")
        reads = [request for _, request in recovery.sent if isinstance(request, SendRead)]
        assert len(reads) == 3 and all(request.fence for request in reads)

    def test_recovery_adds_carry_the_lac_found_at_fencing(self):
        pair = LedgerPair()
        pair.appended(2)
        pair.append()
        pair.writer.answers("b1", 2)
        recovery = pair.recoverer()
        recovery.writes()
        recovery.answers("b1", -1)
        recovery.answers("b2", -1)
        recovery.answers("b1", 2)
        adds = {request.last_add_confirmed for _, request in recovery.sent if isinstance(request, SendAdd)}
        assert adds == {1}


class TestTrap2WhereRecoveryStartsAndWhatItReads:
    """BookKeeper #2615."""

    def test_it_starts_at_the_last_fragment_if_no_later_lac_is_heard(self):
        pair = LedgerPair()
        pair.append(3)
        for bookie in ("b1", "b2"):
            pair.writer.answers(bookie)
        pair.writer.refuses("b3", 0)
        pair.change_ensemble("b4")
        assert pair.metadata.last_fragment == Fragment(3, ("b1", "b2", "b4"))
        assert pair.recover().closed.last_entry_id == 2, "b1 and b2 have heard of no LAC at all"

    def test_its_own_ensemble_changes_go_into_the_final_write_only(self):
        # e0 and e1 are acknowledged, and as they were pipelined no bookie knows of a LAC.
        pair = LedgerPair()
        pair.append(2)
        pair.writer.all_answer()
        assert pair.writer.confirmed == 1
        # A recoverer writes e0 back; b2 and b3 refuse; it goes on with b4 and b5, which have e0 then, and dies.
        first = pair.recoverer(run_entries_max=1)
        first.writes()
        first.answers("b1", -1)
        first.answers("b2", -1)
        first.answers("b1", 0)
        for bookie in ("b2", "b3"):
            first.sent = [(b, r) for b, r in first.sent if b != bookie or isinstance(r, SendAdd)]
            first.refuses(bookie, 0)
        first.chooses("b4", "b5")
        first.answers("b4", 0)
        assert pair.metadata.fragments == (Fragment(0, ("b1", "b2", "b3")),)
        # Another recoverer. With (b1, b4, b5) in the metadata, b4 and b5 would deny e1: two of three, and e1 would be lost.
        assert pair.recover("b1").closed.last_entry_id == 1


class TestTrap3AcksOfReplacedBookies:
    def test_best_effort_takes_back_acks_above_the_lac_and_completes_nothing_meanwhile(self):
        pair = LedgerPair()
        pair.append(2)
        pair.writer.answers("b3", 1)
        pair.writer.answers("b1", 1)
        pair.writer.refuses("b3", 0)
        pair.writer.answers("b1", 0)
        pair.writer.answers("b2", 0)
        assert pair.writer.confirmed == -1, "a change is under way"
        pair.change_ensemble("b4")
        assert pair.writer.confirmed == 0, "e1 has b1 only: the ack of b3 was taken back"

    def test_guaranteed_takes_back_acks_above_lafr_and_goes_on_completing(self):
        pair = LedgerPair(guaranteed=True)
        pair.append(2)
        pair.writer.answers("b3", 1)
        pair.writer.answers("b1")
        pair.writer.refuses("b3", 0)
        pair.writer.answers("b2", 0)
        assert pair.writer.confirmed == 0
        pair.change_ensemble("b4")
        assert pair.writer.waits_for("b4") == [0, 1]

    def test_many_failures_at_once_make_one_metadata_write(self):
        pair = LedgerPair(e=5, wq=5, aq=3)
        pair.append(3)
        pair.writer.refuses("b1", 0)
        pair.writer.refuses("b5", 1)
        pair.writer.chooses("b6")
        pair.change_ensemble("b6", "b7")
        assert (pair.store[1], pair.ensemble) == (1, ("b6", "b2", "b3", "b4", "b7"))


class TestTrap4TheThreeOutcomesOfClose:
    def closing(self):
        """The writer has e0 and e1, and its close is on the way to the metadata store."""
        pair = LedgerPair()
        pair.appended(2)
        pair.writer.step(Close())
        return pair

    def test_still_open(self):
        pair = self.closing()
        found, version = pair.store
        pair.store = (found, version + 1)
        pair.writer.writes()
        pair.writer.reads_metadata()
        pair.writer.writes()
        assert pair.writer.closed.last_entry_id == 1

    def test_closed_by_a_recoverer_with_the_same_last_entry_and_length(self):
        pair = self.closing()
        pair.recover()
        pair.writer.writes()
        pair.writer.reads_metadata()
        assert pair.writer.closed == pair.metadata
        assert pair.writer.machine.state is State.CLOSED

    def test_in_recovery(self):
        pair = self.closing()
        pair.recoverer().writes()
        pair.writer.writes()
        pair.writer.reads_metadata()
        assert isinstance(pair.writer.error, LedgerFencedError)

    def test_closed_with_another_end(self):
        pair = LedgerPair()
        pair.appended()
        pair.append()
        pair.writer.answers("b1", 1)
        pair.recover("b2")
        assert pair.metadata.last_entry_id == 1
        pair.writer.refuses("b3", 1)
        pair.writer.refuses("b2", 1)
        pair.writer.chooses("b4")
        pair.writer.chooses()
        pair.writer.writes()
        pair.writer.reads_metadata()
        assert isinstance(pair.writer.error, LedgerFencedError)
        assert "closed at entry 1" in str(pair.writer.error)


def test_trap_5_two_recoverers_at_once_end_the_same():
    pair = LedgerPair()
    pair.appended(2)
    pair.append()
    pair.writer.answers("b1", 2)
    one, other = pair.recoverer(), pair.recoverer()
    one.writes()
    other.writes()  # loses the compare-and-set, and reads the record again
    other.reads_metadata()
    other.answers("b3", -1)
    other.answers("b2", -1)
    one.runs()
    other.runs()
    assert one.closed == other.closed == pair.metadata
    assert pair.metadata.state is LedgerState.CLOSED


class TestTrap6AFencedLedgerIsNotRecreatedByItsOldWritersAdd:
    """BookKeeper #4462."""

    def test_a_fence_needs_no_entry_to_stand_on(self):
        pair = LedgerPair()
        pair.append()
        pair.recover()
        assert pair.bookies("b3").entries == {}
        for bookie in ("b1", "b2", "b3"):
            if pair.writer.machine.state is State.OPEN:
                pair.writer.answers(bookie, 0)
        assert isinstance(pair.writer.error, LedgerFencedError)
        assert all(pair.bookies(bookie).entries == {} for bookie in ("b1", "b2", "b3"))

    def test_nor_does_it_after_a_restart(self):
        fenced = BookieLedger(7)
        fenced.fence(b"key")
        again = BookieLedger(7)
        for record in fenced.control_records():
            again.replay(record)
        assert again.admit_add(b"key", recovery=False).response == FENCED


def test_trap_9_a_wrong_password_has_no_side_effect_it_does_not_fence():
    ledger = BookieLedger(7)
    ledger.added(ledger.admit_add(b"key", recovery=False), -1, -1)
    assert ledger.fence(b"wrong").response == UNAUTHORIZED
    assert ledger.write_last_add_confirmed(b"wrong", 5).response == UNAUTHORIZED
    assert ledger.admit_add(b"wrong", recovery=True).response == UNAUTHORIZED
    assert not ledger.fenced
    assert ledger.last_add_confirmed == -1
    assert isinstance(ledger.admit_add(b"key", recovery=False).response, Positive)

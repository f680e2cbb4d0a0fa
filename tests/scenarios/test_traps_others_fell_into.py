"""The traps of docs/decisions/traps.md, one test or class for each trap.

Each plays the published bug as steps of the real machines, and shows the loss where a step can be done wrongly by hand.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from bookspark.errors import InvalidCookieError, LedgerFencedError, MetadataStoreError
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.bookie.garbage_collection import Complete, Incomplete, collectable, suspects
from bookspark.protocol.ledger.actions import SendAdd, SendRead, SendReadLac
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.ledger.responses import (
    FENCED,
    UNAUTHORIZED,
    Negative,
    NegativeReason,
    Positive,
    Unknown,
    UnknownReason,
)
from bookspark.protocol.writing.writer import Close, State
from bookspark.servers.daemon.directories import write_cookie
from bookspark.servers.daemon.identity import Identity
from bookspark.store.bookie.bookie_config import BookieConfig
from tests.lab.simulation.stage import Stage
from tests.protocol.ledger_pair import LedgerPair


class TestTrap1LacFencingReadsAndRecoveryReadsCarryTheFenceFlag:
    """BookKeeper #2614 and #2616."""

    def after_the_reads(self, flag):
        """The counterexample at 3/3/2 without any crash; ``flag``: whether recovery reads fence."""
        # 1. The writer sends e0 to b1, b2, b3. 2. b2 stores it, and its answer is delayed.
        pair = LedgerPair()
        pair.append()
        pair.writer.parks("b2", 0)
        # 3. A recoverer marks the ledger IN_RECOVERY. 4. It fences b1 and b2, a coverage; the message to b3 is slow.
        recovery = pair.recoverer()
        recovery.writes()
        recovery.answers("b1", -1)
        recovery.answers("b2", -1)
        # 5. It reads e0. 6. b1 denies it. 7. So does b3, which the writer's message has not reached.
        if not flag:
            recovery.sent = [(b, replace(r, fence=False) if isinstance(r, SendRead) else r) for b, r in recovery.sent]
        recovery.answers("b1", 0)
        recovery.answers("b3", 0)
        # 8. Two of three deny it, so no ack quorum can have it. The ledger is closed as empty.
        recovery.writes()
        assert recovery.closed.last_entry_id == -1
        # 9. The writer's e0 arrives at b3. 10. b2's answer arrives.
        pair.writer.answers("b3", 0)
        pair.writer.releases("b2", 0)
        return pair

    def test_recovery_read_fences_b3_and_the_writer_is_refused(self):
        pair = self.after_the_reads(flag=True)
        assert isinstance(pair.writer.error, LedgerFencedError)
        assert pair.writer.confirmed == -1

    def test_e0_is_acknowledged_behind_the_end_without_the_fence_flag(self):
        pair = self.after_the_reads(flag=False)
        assert pair.writer.confirmed == 0
        assert pair.metadata.last_entry_id == -1

    def test_every_lac_read_and_recovery_read_carries_the_fence_flag(self):
        pair = LedgerPair()
        pair.appended(2)
        recovery = pair.recoverer()
        recovery.writes()
        assert all(request == SendReadLac(bookie, fence=True) for bookie, request in recovery.sent)
        recovery.answers("b1")
        recovery.answers("b3")
        reads = [request for _, request in recovery.sent if isinstance(request, SendRead)]
        assert len(reads) == 3 and all(request.fence for request in reads)

    def test_recovery_adds_carry_the_lac_seen_at_fencing(self):
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


class TestTrap2StartAndReadsOfRecovery:
    """BookKeeper #2615."""

    def test_recovery_starts_at_the_last_fragment_without_a_later_lac(self):
        pair = LedgerPair()
        pair.append(3)
        for bookie in ("b1", "b2"):
            pair.writer.answers(bookie)
        pair.writer.refuses("b3", 0)
        pair.change_ensemble("b4")
        assert pair.metadata.last_fragment == Fragment(3, ("b1", "b2", "b4"))
        assert pair.recover().closed.last_entry_id == 2, "b1 and b2 have heard of no LAC at all"

    def test_ensemble_changes_of_recovery_are_written_only_with_the_close(self):
        # e0 and e1 are acknowledged; as they were pipelined, no bookie knows a LAC.
        pair = LedgerPair()
        pair.append(2)
        pair.writer.all_answer()
        assert pair.writer.confirmed == 1
        # A recoverer writes e0 back; b2 and b3 refuse; it replaces them by b4 and b5, writes e0 there, and dies.
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
        # Another recoverer. With (b1, b4, b5) in the metadata, b4 and b5 would deny e1, and e1 would be lost.
        assert pair.recover("b1").closed.last_entry_id == 1


class TestTrap3AcksOfReplacedBookies:
    def test_best_effort_change_takes_back_acks_above_the_lac_and_completes_nothing(self):
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

    def test_guaranteed_change_takes_back_acks_above_lafr_and_completes_adds(self):
        pair = LedgerPair(guaranteed=True)
        pair.append(2)
        pair.writer.answers("b3", 1)
        pair.writer.answers("b1")
        pair.writer.refuses("b3", 0)
        pair.writer.answers("b2", 0)
        assert pair.writer.confirmed == 0
        pair.change_ensemble("b4")
        assert pair.writer.waits_for("b4") == [0, 1]

    def test_many_failures_make_a_single_metadata_write(self):
        pair = LedgerPair(e=5, wq=5, aq=3)
        pair.append(3)
        pair.writer.refuses("b1", 0)
        pair.writer.refuses("b5", 1)
        pair.writer.chooses("b6")
        pair.change_ensemble("b6", "b7")
        assert (pair.store[1], pair.ensemble) == (1, ("b6", "b2", "b3", "b4", "b7"))


class TestTrap4ThreeOutcomesOfClose:
    def closing(self):
        """The writer has e0 and e1, and its close is on its way to the metadata store."""
        pair = LedgerPair()
        pair.appended(2)
        pair.writer.step(Close())
        return pair

    def test_close_of_a_still_open_ledger_is_retried(self):
        pair = self.closing()
        found, version = pair.store
        pair.store = (found, version + 1)
        pair.writer.writes()
        pair.writer.reads_metadata()
        pair.writer.writes()
        assert pair.writer.closed.last_entry_id == 1

    def test_close_succeeds_if_a_recoverer_closed_at_the_same_end(self):
        pair = self.closing()
        pair.recover()
        pair.writer.writes()
        pair.writer.reads_metadata()
        assert pair.writer.closed == pair.metadata
        assert pair.writer.machine.state is State.CLOSED

    def test_close_fails_if_the_ledger_is_in_recovery(self):
        pair = self.closing()
        pair.recoverer().writes()
        pair.writer.writes()
        pair.writer.reads_metadata()
        assert isinstance(pair.writer.error, LedgerFencedError)

    def test_close_fails_if_the_ledger_is_closed_at_another_end(self):
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


def test_trap_5_two_concurrent_recoverers_end_the_same():
    pair = LedgerPair()
    pair.appended(2)
    pair.append()
    pair.writer.answers("b1", 2)
    one, other = pair.recoverer(), pair.recoverer()
    one.writes()
    other.writes()  # loses the compare-and-set, and reads the metadata again
    other.reads_metadata()
    other.answers("b3", -1)
    other.answers("b2", -1)
    one.runs()
    other.runs()
    assert one.closed == other.closed == pair.metadata
    assert pair.metadata.state is LedgerState.CLOSED


class TestTrap6OldWritersAddDoesNotRecreateAFencedLedger:
    """BookKeeper #4462."""

    def test_fence_holds_without_any_entry(self):
        pair = LedgerPair()
        pair.append()
        pair.recover()
        assert pair.bookies("b3").entries == {}
        for bookie in ("b1", "b2", "b3"):
            if pair.writer.machine.state is State.OPEN:
                pair.writer.answers(bookie, 0)
        assert isinstance(pair.writer.error, LedgerFencedError)
        assert all(pair.bookies(bookie).entries == {} for bookie in ("b1", "b2", "b3"))

    def test_fence_holds_after_a_restart(self):
        fenced = BookieLedger(7)
        fenced.fence(b"key")
        again = BookieLedger(7)
        for record in fenced.control_records():
            again.replay(record)
        assert again.admit_add(b"key", recovery=False).response == FENCED

    A_LEDGER_IS_CLOSED_DELETED_AND_COLLECTED = """
        the writer appends e0
        the recoverer opens the ledger
        the recoverer writes the metadata (IN_RECOVERY)
        the recoverer learns that its metadata was written
        the recoverer's fencing LAC read reaches b1
        the recoverer's fencing LAC read reaches b2
        the recoverer hears from b1
        the recoverer hears from b2
        the recoverer's fencing read of entry 0 on reaches b1: it answers 0 no such entry
        the recoverer's fencing read of entry 0 on reaches b2: it answers 0 no such entry
        the recoverer hears from b1
        the recoverer hears from b2
        the recoverer writes the metadata (CLOSED at entry -1)
        the ledger is deleted (CLOSED at entry -1)
        b1 collects the ledger
    """

    def test_fence_holds_after_deletion_and_collection(self):
        stage = Stage(SimulationOptions(2, 2, 1, deletes=True))
        stage.play(self.A_LEDGER_IS_CLOSED_DELETED_AND_COLLECTED)
        stage.play("""
            the writer's add of e0 (LAC -1) reaches b1: it waits for the metadata
            b1 reads the metadata (it is deleted) for an add
            b1 decides the add that waited: it answers add of 0 unknown (fenced)
            the writer hears from b1: add of 0 unknown (fenced); it ends with LedgerFencedError
        """)
        assert stage.violation is None
        assert stage.view.writer.last_add_confirmed == -1

    def test_bookie_without_the_collection_mark_accepts_the_add(self):
        stage = Stage(SimulationOptions(2, 2, 1, deletes=True).without("collection_mark"))
        stage.play(self.A_LEDGER_IS_CLOSED_DELETED_AND_COLLECTED)
        stage.play("""
            the writer's add of e0 (LAC -1) reaches b1: it answers add of 0 ok
            the writer hears from b1: add of 0 ok; entry 0 is confirmed
        """)
        assert stage.violation is not None


class TestTrap7FailedPreBootCheckKeepsTheBookieDown:
    """BookKeeper's boot drops the result of its checks. Here the bookie's identity *is* their result, so nothing continues
    without it (``tests/system/cluster/test_local_cluster_daemon.py`` has the refusals of real processes)."""

    def identity(self, directory, instance, read_cookie):
        """Identity from the boot checks of a directory of b1, of cluster ``instance``, over this metadata store."""
        write_cookie(directory, Cookie("b1", (directory,), instance, "nonce"))
        store = SimpleNamespace(read_cookie=read_cookie, instance_id="here")
        return Identity(BookieConfig(directories=(directory,), zookeeper="127.0.0.1:1"), store, {})

    def test_unanswered_check_fails_the_boot(self, tmp_path):
        def no_answer(_):
            raise MetadataStoreError("no answer in time")

        with pytest.raises(MetadataStoreError, match="no answer in time"):
            self.identity(str(tmp_path), "here", no_answer)

    def test_negative_check_fails_the_boot(self, tmp_path):
        with pytest.raises(InvalidCookieError, match="of another cluster"):
            self.identity(str(tmp_path), "elsewhere", lambda _: None)

    def test_passed_checks_give_the_bookies_identity(self, tmp_path):
        assert self.identity(str(tmp_path), "here", lambda _: None).cookie.bookie_id == "b1"


class TestTrap8FailedOrPartialListingCollectsNothing:
    """BookKeeper #870: live ledgers were missing from a listing."""

    GONE = Negative(NegativeReason.NO_SUCH_LEDGER)

    def test_failed_or_partial_listing_has_no_suspects(self):
        assert suspects({1, 2, 3}, Incomplete("/ledgers/00/0001 could not be listed")) == ()

    def test_wrong_listing_deletes_nothing(self):
        """Wrong listings lost data: each ledger's own metadata decides."""
        wrong = Complete(frozenset())
        assert collectable(suspects({1, 2}, wrong), {1: Positive(), 2: Unknown(UnknownReason.TIMEOUT)}) == ()

    def test_ledger_missing_in_listing_and_metadata_is_deleted(self):
        assert collectable(suspects({1, 2}, Complete(frozenset({2}))), {1: self.GONE}) == (1,)


def test_trap_9_wrong_password_has_no_side_effect():
    ledger = BookieLedger(7)
    ledger.added(ledger.admit_add(b"key", recovery=False), -1, -1)
    assert ledger.fence(b"wrong").response == UNAUTHORIZED
    assert ledger.write_last_add_confirmed(b"wrong", 5).response == UNAUTHORIZED
    assert ledger.admit_add(b"wrong", recovery=True).response == UNAUTHORIZED
    assert not ledger.fenced
    assert ledger.last_add_confirmed == -1
    assert isinstance(ledger.admit_add(b"key", recovery=False).response, Positive)

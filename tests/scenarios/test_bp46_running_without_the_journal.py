"""BP-46, "Running without the journal": its two scenarios and the case that its boot sequence leaves open, step by step.

C1 is the writer, C2 the recoverer; the paper's B1 is b1, its E1 and E2 are e0 and e1 (our ids start at 0). Bookies ack before
they sync. Each scenario is played without the protection, which shows the paper's loss, and with it, which shows none.
"""

from __future__ import annotations

from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.lab.simulation.story import sentence
from bookspark.protocol.bookie.bookie_ledger import IN_LIMBO, answer_absent, answer_last_add_confirmed
from bookspark.protocol.writing.ensemble_change import ChangeMode
from tests.lab.simulation.stage import Stage

DISKS_LOST = SimulationOptions(entries=2, crashes=1, crash_loses=CrashLoses.EVERYTHING, journal_write_data=False)
UNSYNCED_LOST = SimulationOptions(
    entries=1, crashes=1, losses=1, spares=1, ensemble_changes=ChangeMode.AT_ONCE, journal_write_data=False
)
NO_DIVERGENCE = "no_divergence_between_writer_and_metadata"

C2_CLOSES_THE_LEDGER_AT_E0 = """
    # 4. C1 writes entry E1 to L1. The write hits all three bookies. (b3's answer is late.)
    the writer appends e0
    the writer's add of e0 (LAC -1) reaches b1
    the writer's add of e0 (LAC -1) reaches b2
    the writer's add of e0 (LAC -1) reaches b3
    the writer hears from b1
    the writer hears from b2: add of 0 ok; entry 0 is confirmed
    # 11 begins: C1 has sent E2 to all bookies, and 5. hangs.
    the writer appends e1
    # 6. C2 tries to recover the ledger L1.
    the recoverer opens the ledger
    the recoverer writes the metadata (IN_RECOVERY)
    the recoverer learns that its metadata was written
    # 8. The fencing message succeeds in arriving at B1 & B2. The message to B3 is lost.
    the recoverer's fencing LAC read reaches b1
    the recoverer hears from b1
    the recoverer's fencing LAC read reaches b2
    the recoverer hears from b2
    # 9. C2 continues with the read/write phase, finding that E1 is the last entry,
    the recoverer's fencing read of entry 0 on reaches b1: it answers e0
    the recoverer hears from b1
    the recoverer's write-back of e0 (LAC -1) reaches b1
    the recoverer hears from b1
    the recoverer's write-back of e0 (LAC -1) reaches b2
    the recoverer hears from b2
    the recoverer's fencing read of entry 1 on reaches b1: it answers 1 no such entry
    the recoverer hears from b1
    the recoverer's fencing read of entry 1 on reaches b2: it answers 1 no such entry
    the recoverer hears from b2
    # and committing the endpoint of the ledger in the ZK.
    the recoverer writes the metadata (CLOSED at entry 0)
"""


class TestScenario1LostFencedStatusAllowsWritesAfterLedgerClose:
    def test_ledger_diverges_without_the_protections(self):
        stage = Stage(DISKS_LOST.without("limbo", "boot_fencing", "lossy_boot_mark"))
        stage.play(C2_CLOSES_THE_LEDGER_AT_E0)
        assert stage.violation is None
        stage.play("""
            # 10. B2 crashes and boots again with all unflushed operations lost.
            b2 crashes
            b2 serves again (not fenced, not in limbo)
            # 11. B2 & B3 acknowledge positively, so C1 considers E2 as persisted.
            the writer's add of e1 (LAC 0) reaches b2: it answers add of 1 ok
            the writer hears from b2
            the writer's add of e1 (LAC 0) reaches b3: it answers add of 1 ok
            the writer hears from b3: add of 1 ok; entry 1 is confirmed
        """)
        assert stage.violation.invariant == NO_DIVERGENCE

    def test_b2_refuses_adds_because_its_fence_may_be_lost(self):
        """The ledger is closed when B2 boots, so phase one does not fence it: the lossy-boot mark protects it."""
        stage = Stage(DISKS_LOST)
        stage.play(C2_CLOSES_THE_LEDGER_AT_E0)
        stage.play("""
            b2 crashes
            b2 serves again (lossy-boot mark set, not fenced, not in limbo)
            the writer's add of e1 (LAC 0) reaches b2: it waits for the metadata
            b2 reads the metadata (CLOSED at entry 0) for an add
            b2 decides the add that waited: it answers add of 1 unknown (fenced)
            the writer's add of e1 (LAC 0) reaches b3
            the writer hears from b3: add of 1 ok
            the writer hears from b2: add of 1 unknown (fenced); it ends with LedgerFencedError
        """)
        assert stage.violation is None
        assert stage.view.writer.last_add_confirmed == stage.view.metadata.last_entry_id == 0

    def test_crash_before_the_close_leaves_b2_fenced(self):
        """BP-46: "for each non-closed ledger, mark the ledger as fenced"."""
        stage = Stage(DISKS_LOST)
        before_the_close, _, _ = C2_CLOSES_THE_LEDGER_AT_E0.partition("# and committing")
        stage.play(before_the_close)
        stage.play("""
            b2 crashes
            b2 serves again (lossy-boot mark set, fenced, in limbo)
            the writer's add of e1 (LAC 0) reaches b2: it answers add of 1 unknown (fenced)
        """)
        assert stage.violation is None


C1_CONFIRMS_E0_AND_B1_LOSES_IT = """
    # 1. C1 adds E0 to B1, B2, B3.
    the writer appends e0
    # 2. B1 and B3 confirms. C1 confirms the write to its client.
    the writer's add of e0 (LAC -1) reaches b1: it answers add of 0 ok
    the writer's add of e0 (LAC -1) reaches b3: it answers add of 0 ok
    the writer hears from b1
    the writer hears from b3: add of 0 ok; entry 0 is confirmed
    # 3. C2 starts recovery.
    the recoverer opens the ledger
    the recoverer writes the metadata (IN_RECOVERY)
    the recoverer learns that its metadata was written
    # 4. B2 fails to respond. C1 tries to change ensemble but gets a metadata version conflict.
    the writer waits no longer for b2
    the writer is to use b4
    the writer writes the metadata (OPEN, from 0 on b1 b2 b3, from 1 on b1 b4 b3), and loses
    the writer learns that the record had changed
    the writer reads the metadata (IN_RECOVERY)
    # 5. B1 crashes and restarts, has lost E0.
    b1 crashes and loses what was not synced
    b1 serves again
    # 6. C2 fences the ledger on B1, B2, B3.
    the recoverer's fencing LAC read reaches b1
    the recoverer's fencing LAC read reaches b2
    the recoverer's fencing LAC read reaches b3
"""


class TestScenario2RecoveryTruncatesPreviouslyAcknowledgedEntries:
    def test_acknowledged_entry_is_lost_without_limbo(self):
        stage = Stage(UNSYNCED_LOST.without("limbo"))
        stage.play(C1_CONFIRMS_E0_AND_B1_LOSES_IT)
        stage.play("""
            the recoverer hears from b1: LAC -1
            the recoverer hears from b2: LAC -1
            # 7. C2 sends Read E0 to B1, B2, B3. 8. B1 responds with NoSuchEntry. 9. B2 responds with NoSuchEntry.
            the recoverer's fencing read of entry 0 on reaches b1: it answers 0 no such entry
            the recoverer hears from b1
            the recoverer's fencing read of entry 0 on reaches b2: it answers 0 no such entry
            the recoverer hears from b2
            # 10. QC negative response threshold reached. C2 closes the ledger as empty. Losing E0.
            the recoverer writes the metadata (CLOSED at entry -1)
        """)
        assert stage.violation.invariant == NO_DIVERGENCE

    def test_b1_in_limbo_answers_unknown_and_recovery_keeps_e0(self):
        stage = Stage(UNSYNCED_LOST)
        stage.play(C1_CONFIRMS_E0_AND_B1_LOSES_IT)
        stage.play("""
            the recoverer hears from b1: LAC unknown (in limbo
            the recoverer hears from b2: LAC -1
            the recoverer hears from b3: LAC -1
            the recoverer's fencing read of entry 0 on reaches b1: it answers 0 unknown (in limbo
            the recoverer hears from b1
            the recoverer's fencing read of entry 0 on reaches b2: it answers 0 no such entry
            the recoverer hears from b2
            # One negative is no quorum coverage, so C2 waits for B3, which has E0.
            the recoverer's fencing read of entry 0 on reaches b3: it answers e0
            the recoverer hears from b3
            the recoverer's write-back of e0 (LAC -1) reaches b1
            the recoverer's write-back of e0 (LAC -1) reaches b2
            the recoverer hears from b1
            the recoverer hears from b2
            the recoverer's fencing read of entry 1 on reaches b2: it answers 1 no such entry
            the recoverer's fencing read of entry 1 on reaches b3: it answers 1 no such entry
            the recoverer hears from b2
            the recoverer hears from b3
            the recoverer writes the metadata (CLOSED at entry 0)
        """)
        assert stage.violation is None


def test_disk_lost_after_the_close_does_not_readmit_the_old_writer():
    """Not in the paper, whose boot sequence fences only open ledgers. A model found it
    (docs/decisions/without-the-journal.md)."""
    one_copy = SimulationOptions(2, 2, 1, crashes=1, crash_loses=CrashLoses.EVERYTHING, journal_write_data=False)
    closed = """
        the writer appends e0
        the recoverer opens the ledger
        the recoverer writes the metadata (IN_RECOVERY)
        the recoverer learns that its metadata was written
        the recoverer's fencing LAC read reaches b1
        the recoverer hears from b1
        the recoverer's fencing LAC read reaches b2
        the recoverer hears from b2
        the recoverer's fencing read of entry 0 on reaches b1
        the recoverer hears from b1
        the recoverer's fencing read of entry 0 on reaches b2
        the recoverer hears from b2
        the recoverer writes the metadata (CLOSED at entry -1)
        b1 crashes and loses everything
        b1 serves again
    """
    without = Stage(one_copy.without("lossy_boot_mark"))
    without.play(closed)
    without.play("""
        the writer's add of e0 (LAC -1) reaches b1: it answers add of 0 ok
        the writer hears from b1: add of 0 ok; entry 0 is confirmed
    """)
    assert without.violation.invariant == NO_DIVERGENCE
    stage = Stage(one_copy)
    stage.play(closed)
    stage.play("""
        the writer's add of e0 (LAC -1) reaches b1: it waits for the metadata
        b1 reads the metadata (CLOSED at entry -1) for an add
        b1 decides the add that waited: it answers add of 0 unknown (fenced)
        the writer hears from b1: add of 0 unknown (fenced); it ends with LedgerFencedError
    """)
    assert stage.violation is None


def test_phase_two_recovers_the_ledger_copies_missing_entries_and_clears_limbo():
    """BP-46, "The Full Boot-Up Sequence", phase two."""
    stage = Stage(
        SimulationOptions(2, 2, 2, crashes=1, recoverers=0, closes=False, journal_write_data=False, heals=True)
    )
    stage.play("""
        the writer appends e0
        the writer's add of e0 (LAC -1) reaches b1
        the writer's add of e0 (LAC -1) reaches b2
        the writer hears from b1
        the writer hears from b2: add of 0 ok; entry 0 is confirmed
        b2 crashes and loses what was not synced: its boot is lossy
        b2 serves again (lossy-boot mark set, fenced, in limbo)
        # 1. If the ledger is in-limbo, open and recover the ledger.
        b2 begins to heal the ledger
        the healing of b2 writes the metadata (IN_RECOVERY)
        the healing of b2 learns that its metadata was written
        the healing of b2's fencing LAC read reaches b1
        the healing of b2 hears from b1: LAC -1
    """)
    assert stage.view.bookies["b2"].ledger.limbo
    assert 0 not in stage.view.bookies["b2"].rows
    finish(stage, "healing of b2", "b1 syncs", "b2 syncs")
    healed = stage.view.bookies["b2"]
    assert stage.view.metadata.last_entry_id == 0
    assert healed.rows[0].content == "e0"
    assert 0 not in healed.unsynced
    assert not healed.ledger.limbo
    assert healed.ledger.fenced
    assert stage.violation is None


def finish(stage, *words):
    """Make every possible move whose sentence contains one of ``words``, until there is none."""
    for _ in range(100):
        possible = [m for m in stage.world.moves(stage.state) if m.kind not in ("crash", "heal", "user")]
        told = {_said(stage, move): move for move in possible}
        fitting = [move for said, move in told.items() if any(word in said for word in words)]
        if not fitting:
            return
        stage.state = stage.world.apply(stage.state, fitting[0])
    raise AssertionError("it does not end")


def _said(stage, move):
    return sentence(stage.world, stage.state, move, stage.world.apply(stage.state, move))


def test_ledger_in_limbo_serves_its_entries_but_no_negatives():
    """BP-46: "Limbo ledgers can serve read requests, but never respond with an explicit negative"."""
    stage = Stage(SimulationOptions(2, 2, 1, crashes=1, entries=2, closes=False, journal_write_data=False))
    stage.play("""
        the writer appends e0
        the writer's add of e0 (LAC -1) reaches b1
        b1 syncs
        the writer appends e1
        the writer's add of e1 (LAC -1) reaches b1
        b1 crashes and loses what was not synced
        b1 serves again (lossy-boot mark set, fenced, in limbo)
        the recoverer opens the ledger
        the recoverer writes the metadata (IN_RECOVERY)
        the recoverer learns that its metadata was written
        the recoverer's fencing LAC read reaches b1: it answers LAC unknown (in limbo
    """)
    assert stage.view.bookies["b1"].rows.keys() == {0}
    ledger = stage.view.bookies["b1"].ledger
    assert answer_absent(ledger, 0, storage_damaged=False) == IN_LIMBO
    assert answer_last_add_confirmed(ledger) == IN_LIMBO

"""Violations that the simulator found in the machines, shortened to the essential moves."""

from __future__ import annotations

from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.protocol.ledger.ledger_metadata import LedgerType
from tests.lab.simulation.stage import Stage


def test_fenced_bookie_refuses_a_sync_of_the_old_writer():
    """A VD writer's LAC follows its bookies' synced entries. A late recoverer writes an entry back after the end at which
    another recoverer closed the ledger; reported to the old writer, that copy confirmed the entry (random seed
    1001117)."""
    stage = Stage(SimulationOptions(3, 3, 2, entries=2, recoverers=2, ledger_type=LedgerType.VD_JOURNAL))
    stage.play("""
        the writer appends e0
        the writer's add of e0 (LAC -1) reaches b1
        the writer's add of e0 (LAC -1) reaches b3
        the writer hears from b1: add of 0 ok, synced up to -1
        the writer hears from b3: add of 0 ok, synced up to -1
        the writer's user asks for a sync
        the writer appends e1
        the writer's add of e1 (LAC -1) reaches b3
        # Both recoverers begin; the second is slow.
        the recoverer 1 opens the ledger
        the recoverer 1 writes the metadata (IN_RECOVERY)
        the recoverer 1 learns that its metadata was written
        the recoverer 2 opens the ledger and reads its metadata (IN_RECOVERY)
        the recoverer 1's fencing LAC read reaches b1
        the recoverer 1 hears from b1
        the recoverer 1's fencing LAC read reaches b2
        the recoverer 1 hears from b2
        the recoverer 1's fencing read of entry 0 on reaches b1: it answers e0, 1 no such entry
        the recoverer 1 hears from b1
        the recoverer 1's write-back of e0 (LAC -1) reaches b1
        the recoverer 1's write-back of e0 (LAC -1) reaches b2
        b1 syncs
        b2 syncs
        the recoverer 1 hears from b1: add of 0 ok
        the recoverer 1 hears from b2: add of 0 ok
        the recoverer 1's fencing read of entry 1 on reaches b1: it answers 1 no such entry
        the recoverer 1 hears from b1: 1 no such entry
        the recoverer 1's fencing read of entry 1 on reaches b2: it answers 1 no such entry
        the recoverer 1 hears from b2: 1 no such entry
        the recoverer 1 writes the metadata (CLOSED at entry 0)
        # The second one finds e1 on b3, and writes it back to b1, synced.
        the recoverer 2's fencing LAC read reaches b1
        the recoverer 2's fencing LAC read reaches b3
        the recoverer 2 hears from b1: LAC -1
        the recoverer 2 hears from b3: LAC -1
        the recoverer 2's fencing read of entry 0 on reaches b3: it answers e0, e1
        the recoverer 2 hears from b3: e0, e1
        the recoverer 2's write-back of e0, e1 (LAC -1) reaches b1
        b1 syncs
        b3 syncs
        # Now the writer's requests to sync arrive. b1 holds e1, but not from him.
        the writer's request to sync reaches b1: it answers unknown (fenced)
        the writer's request to sync reaches b3: it answers unknown (fenced)
        the writer hears from b3: unknown (fenced); it ends with LedgerFencedError
    """)
    assert stage.violation is None
    assert stage.view.writer.last_add_confirmed == -1

"""A repair has done what it says.

Law: a copy that a repair's record names is there, synced: only a disk that is lost takes it away. A repair that ended well names
no bookie any more that it took for lost. Nothing is asked of entries that are accepted as lost
(docs/decisions/delta-snapshots.md).
"""

from __future__ import annotations

from bookspark.lab.simulation.simulation_options import CrashLoses
from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    if view.deleted:
        return None
    metadata = view.metadata
    crashes_lose_disks = view.options.crash_loses is CrashLoses.EVERYTHING
    for replicator in view.replicators:
        if replicator.still_named:
            return f"a repair ended well, and its record still names {replicator.still_named}, which it took for lost"
        for entry_id, target in replicator.copied:
            bookie = view.bookies[target]
            lost_its_disk = bookie.gone or (crashes_lose_disks and bookie.lost_boots)
            # Others may have replaced it again, or have cut the ledger off before the entry.
            asked = target in metadata.write_set_of(entry_id) and not (
                metadata.closed and entry_id > metadata.last_entry_id
            )
            if asked and not lost_its_disk and not view.accepted_as_lost(entry_id) and entry_id not in bookie.rows:
                return f"a repair named {target} for entry {entry_id}, and {target} does not have it"
    return None

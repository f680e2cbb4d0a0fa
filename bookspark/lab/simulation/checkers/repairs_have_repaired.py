"""A repair keeps its word.

Law: a copy named by a repair's record exists, synced: only the loss of its disk takes it away. The record of a successful
repair no longer names the lost bookie. Entries accepted as lost are exempt (docs/decisions/delta-snapshots.md).
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
            # Other clients may have replaced it again, or have cut the ledger off before the entry.
            asked = target in metadata.write_set_of(entry_id) and not (
                metadata.closed and entry_id > metadata.last_entry_id
            )
            if asked and not lost_its_disk and not view.accepted_as_lost(entry_id) and entry_id not in bookie.rows:
                return f"a repair named {target} for entry {entry_id}, and {target} does not have it"
    return None

"""All but the last fragment of a guaranteed ledger is on the whole write quorum.

Law: every id up to LAFR (last add fully replicated), and every id of every fragment but the last, is on all bookies that the
metadata assigns to it, less one for each possible loss of entries by a bookie. "Guaranteeing write quorum"; TLA+:
``TailFragmentsReachWriteQuorum``.
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView
from bookspark.protocol.ledger.ledger_metadata import Replication


def check(view: WorldView) -> str | None:
    if view.deleted or view.options.replication is not Replication.GUARANTEED:
        return None
    needed = view.options.write_quorum - view.lost_boots
    last = max(view.writer.last_add_fully_replicated, view.metadata.last_fragment.first_entry_id - 1)
    for entry_id in range(last + 1):
        holders = view.holders(entry_id)
        if len(holders) < needed and not view.accepted_as_lost(entry_id):
            return (
                f"entry {entry_id} is below LAFR or the last fragment, and only {', '.join(holders) or 'nobody'} has it"
            )
    return None

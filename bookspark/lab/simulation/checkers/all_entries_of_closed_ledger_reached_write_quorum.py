"""A closed guaranteed ledger is on the whole write quorum.

Law: every entry is on all bookies that the metadata assigns to it, less one for each possible loss of entries by a bookie,
unless an operator gave the entry up. "Guaranteeing write quorum", tweaks 2 and 3; TLA+:
``AllEntriesOfClosedLedgerReachedWriteQuorum``.
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView
from bookspark.protocol.ledger.ledger_metadata import Replication


def check(view: WorldView) -> str | None:
    if view.deleted or not view.metadata.closed or view.options.replication is not Replication.GUARANTEED:
        return None
    for entry_id in range(view.metadata.last_entry_id + 1):
        holders = view.holders(entry_id)
        if len(holders) < view.options.write_quorum - view.lost_boots and not view.accepted_as_lost(entry_id):
            return f"the ledger is closed, and only {', '.join(holders) or 'nobody'} has entry {entry_id}"
    return None

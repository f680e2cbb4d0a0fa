"""Every entry of a closed ledger is on a bookie.

Law: every entry up to the last one of a closed ledger is on at least one bookie that the metadata assigns to it, as long as
fewer than AQ (ack quorum) copies may have been lost with disks. This is ``all_acked_entries_are_readable`` for entries that
recovery confirmed. ``accepted_losses_are_losses`` judges entries that are given up.
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    if view.deleted or not view.metadata.closed or view.lost_boots >= view.options.ack_quorum:
        return None
    for entry_id in range(view.metadata.last_entry_id + 1):
        if not view.holders(entry_id) and not view.accepted_as_lost(entry_id):
            return f"the ledger is closed at entry {view.metadata.last_entry_id}, and nobody has entry {entry_id}"
    return None

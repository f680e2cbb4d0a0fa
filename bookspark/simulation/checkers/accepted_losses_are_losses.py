"""Only what is gone is accepted as lost.

Law: with an accepted loss, a confirmed entry may be cut off, or be given up, only if an ack quorum of copies of it may have been
lost. If nobody else may have written it back meanwhile (another recoverer, repair), no bookie has it either: a bookie that is
merely away keeps its entries.
"""

from __future__ import annotations

from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    options, metadata = view.options, view.metadata
    if view.deleted or metadata.accepted_loss is None:
        return None
    end = metadata.last_entry_id
    given_up = [entry_id for entry_id in range(end + 1) if view.accepted_as_lost(entry_id)]
    alone = options.recoverers == 1 and options.ensemble_changes is ChangeMode.OFF
    alone = alone and not (options.heals or options.replicators)
    for entry_id in (*given_up, *range(end + 1, view.writer.last_add_confirmed + 1)):
        holders = [name for name, bookie in view.bookies.items() if entry_id in bookie.rows]
        if view.lost_boots < options.ack_quorum or (alone and holders):
            return (
                f"entry {entry_id} was confirmed and is accepted as lost, and {', '.join(holders) or 'nobody'} has it"
            )
    return None

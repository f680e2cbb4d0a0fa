"""A closed ledger ends at or after every entry confirmed to its writer.

Law: while the metadata is CLOSED, no writer has a LAC (last add confirmed) above its last entry, unless an operator accepted a
loss (``accepted_losses_are_losses`` judges that). Each of BookKeeper's published truncations broke this law (#2614, #2616;
BP-46, scenarios 1 and 2). TLA+: ``NoDivergenceBetweenWriterAndMetaData``.
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    lac, metadata = view.writer.last_add_confirmed, view.metadata
    if metadata.closed and lac > metadata.last_entry_id and metadata.accepted_loss is None:
        return f"the ledger is closed at entry {metadata.last_entry_id}, and entry {lac} was confirmed to its writer"
    return None

"""A LAC (last add confirmed) that a bookie reports is confirmed.

Law: the entry is confirmed to the writer, or the ledger is closed at or after it. Readers read up to the LAC (TLA+:
``NoDirtyReads``).
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    confirmed = view.writer.last_add_confirmed
    if view.metadata.closed:
        confirmed = max(confirmed, view.metadata.last_entry_id)
    for name, bookie in view.bookies.items():
        if bookie.ledger is not None and bookie.ledger.last_add_confirmed > confirmed:
            return f"{name} tells LAC {bookie.ledger.last_add_confirmed}, and only {confirmed} is confirmed"
    return None
